//! Paths that a route tries in its folder, compiled when the configuration is loaded.

use std::fmt;

/// A path to look up, in which `$path` stands for the request's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    written: String,
    /// The text in front of the request's path, if that is in it. It begins without a
    /// slash, and ends with one unless it is empty.
    before: Option<Box<str>>,
    /// The text behind it, or all of the text; a slash at the front of all is left out.
    after: Box<str>,
}

impl Candidate {
    const PATH: &str = "$path";

    /// Compiles a text.
    pub fn new(written: &str) -> Self {
        let (before, after) = match written.split_once(Self::PATH) {
            Some((before, after)) => {
                let before = before.trim_matches('/');
                let slash = if before.is_empty() { "" } else { "/" };
                (Some(format!("{before}{slash}").into()), after)
            }
            None => (None, written.trim_start_matches('/')),
        };
        Candidate {
            written: written.to_owned(),
            before,
            after: after.into(),
        }
    }

    /// The texts around the request's path, where it is made of that.
    pub fn around(&self) -> Option<(&str, &str)> {
        self.before.as_deref().map(|before| (before, &*self.after))
    }

    /// Whether it is the request's path and nothing else.
    pub fn is_path_alone(&self) -> bool {
        matches!(self.written.as_str(), "$path" | "/$path")
    }

    /// The path, where it is not made of the request's; without a leading slash.
    pub fn fixed(&self) -> Option<&str> {
        self.before.is_none().then_some(&*self.after)
    }
}

/// As it was written.
impl fmt::Display for Candidate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.written)
    }
}
