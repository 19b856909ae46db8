//! Paths that a route changes before they are sent on.
//!
//! Invariant: a request was let in with every reading of its path in view (see
//! `reading`). No server reads a changed path in a way that none of them was changed to.

use std::borrow::Cow;

use super::path;
use super::reading::{self, Oddity};

/// Servers would read the changed path in a way that the request was not let in with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AmbiguousPath;

/// The path that is sent on instead of `path`; `None` where it stays as it is.
///
/// `change` gets a reading of the path, in normal form. It gives the replacement,
/// percent-encoded, or `None` to leave the path.
///
/// # Errors
/// Not all readings are changed, or the rest has a reading that none was changed to.
pub fn rewrite(
    path: &[u8],
    change: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<Option<Vec<u8>>, AmbiguousPath> {
    let normal = path::normalise(path);
    let is_ambiguous = match &normal {
        Cow::Borrowed(_) => false,
        Cow::Owned(_) => match reading::oddity(path) {
            Oddity::Nothing => false,
            Oddity::Ambiguous => true,
            Oddity::Nul => return Err(AmbiguousPath),
        },
    };
    let changed = change(&normal);
    let mut allowed: Vec<Vec<u8>> = changed.iter().cloned().collect();
    if is_ambiguous {
        let readings = readings(path)?;
        for reading in &readings[1..] {
            match change(reading) {
                Some(text) => allowed.push(text),
                None if changed.is_none() => {}
                None => return Err(AmbiguousPath),
            }
        }
        if changed.is_none() && !allowed.is_empty() {
            return Err(AmbiguousPath);
        }
    }
    let Some(changed) = changed else {
        return Ok(None);
    };
    if !changed.starts_with(b"/") {
        return Err(AmbiguousPath);
    }
    let left = match (path::normalise(&changed), reading::oddity(&changed)) {
        (Cow::Borrowed(_), _) => return Ok(Some(changed)),
        (normal, Oddity::Nothing) => vec![normal.into_owned()],
        (_, Oddity::Ambiguous) => readings(&changed)?,
        (_, Oddity::Nul) => return Err(AmbiguousPath),
    };
    if left.iter().all(|it| allowed.contains(it)) {
        Ok(Some(changed))
    } else {
        Err(AmbiguousPath)
    }
}

fn readings(path: &[u8]) -> Result<Vec<Vec<u8>>, AmbiguousPath> {
    reading::readings(path).map_err(|reading::TooMany| AmbiguousPath)
}

/// The rest of a path in normal form without `prefix`, which has no slash at its end: `/api` is
/// taken off `/api/x` and `/api`, but not off `/apis`.
pub fn without_prefix<'a>(path: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    match path.strip_prefix(prefix)? {
        [] => Some(b"/"),
        rest => rest.starts_with(b"/").then_some(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stripped(path: &str) -> Result<Option<String>, AmbiguousPath> {
        let strip = |path: &[u8]| without_prefix(path, b"/api").map(<[u8]>::to_vec);
        let text = |path| String::from_utf8(path).expect("ASCII");
        rewrite(path.as_bytes(), strip).map(|it| it.map(text))
    }

    #[test]
    fn a_prefix_is_taken_off_whole_segments() {
        for (path, left) in [
            ("/api/x", Some("/x")),
            ("/api/", Some("/")),
            ("/api", Some("/")),
            ("/apis/x", None),
            ("/x/api/y", None),
            ("/%61pi/caf%C3%A9", Some("/caf%C3%A9")),
            ("/api/a%2Fb", Some("/a%2Fb")),
            ("/api/a;b", Some("/a;b")),
            ("/api/x/./y", Some("/x/y")),
            ("/api//x", Some("/x")),
        ] {
            assert_eq!(stripped(path), Ok(left.map(str::to_owned)), "{path}");
        }
    }

    #[test]
    fn what_some_server_reads_as_another_path_is_refused() {
        for path in [
            "/api/..%2f..%2fadmin",
            "/api/%2e%2e/admin",
            "/api;x/y",
            "//api/x",
            "/x/..%2fapi/y",
            "/api/a%00",
        ] {
            assert_eq!(stripped(path), Err(AmbiguousPath), "{path}");
        }
        // Paths that are made of harmless parts.
        for made in ["/..", "//evil.example", "/a/../b", "x", "/a%2fb", "/a\\b"] {
            let made = |_: &[u8]| Some(made.as_bytes().to_vec());
            assert_eq!(rewrite(b"/x", made), Err(AmbiguousPath));
        }
    }

    proptest! {
        /// Every reading of the rest is that of a path that was let in.
        #[test]
        fn no_reading_is_new(path in "/(api|a|b|/|/|\\.\\.|\\.|;|%3b|%2f|%5C|\\\\|%2e){0,10}") {
            let path = path.as_bytes();
            let strip = |path: &[u8]| without_prefix(path, b"/api").map(<[u8]>::to_vec);
            if let Ok(Some(left)) = rewrite(path, strip) {
                let before = reading::readings(path).unwrap();
                let allowed: Vec<_> = before.iter().filter_map(|it| strip(it)).collect();
                for reading in reading::readings(&left).unwrap() {
                    prop_assert!(allowed.contains(&reading));
                }
            }
        }
    }
}
