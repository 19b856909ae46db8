//! The kinds of value that the options of files take.

use std::path::PathBuf;

use evenkeel_proto::coding::Coding;

use super::diagnostics::Report;
use super::setting::{Fault, FromText, Resolve, Setting, resolve_to};
use super::shape::{Choice, Shape};
use super::tree::Node;
use super::value::{FieldValue, choice, is_token};

choice!(Coding {
    "br" => Coding::Brotli, "Brotli: the smallest, and slow to make";
    "zstd" => Coding::Zstd, "Zstandard: nearly as small, and quick to make";
    "gzip" => Coding::Gzip, "what every client takes";
});

resolve_to!(
    InnerPath => String,
    FileName => String,
    Ending => String,
    MediaType => String,
    TypePrefix => String,
);

impl Resolve for Candidate {
    type Resolved = super::candidate::Candidate;

    fn resolve(&self) -> Option<Self::Resolved> {
        Some(super::candidate::Candidate::new(&self.0))
    }
}

/// Path of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderPath(pub PathBuf);

impl FromText for FolderPath {
    const FORM: &'static str = "the path of a folder, such as `\"/srv/www\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        if text.is_empty() {
            return Err(Fault::new("the path is empty")
                .help("`\".\"` is the folder of the configuration file"));
        }
        let fault = Fault::new(format!("`{text}` is not the path of a folder"));
        if let Some(path) = text.strip_prefix("file://") {
            return Err(fault.help(format!("did you mean `\"{path}\"`?")));
        }
        if text.contains("://") {
            return Err(fault.help(
                "`root` is a local folder; to pass requests to another server, use `upstream`",
            ));
        }
        if text.starts_with('~') {
            return Err(fault.help("`~` is not expanded: write the full path"));
        }
        if text.contains(char::is_control) {
            Err(fault.help("it must not contain control characters"))
        } else {
            Ok(Self(PathBuf::from(text)))
        }
    }
}

/// The front of a request's path, without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Front(pub String);

impl FromText for Front {
    const FORM: &'static str = "the prefix of a path, such as `\"/img\"`";
    const PATTERN: Option<&'static str> = Some("^/[^?#*]*$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = Fault::new(format!("`{text}` is not a valid prefix of a path"));
        if let Some((front, _)) = text.split_once('*') {
            let front = front.trim_end_matches('/');
            return Err(if front.starts_with('/') {
                fault.help(format!(
                    "wildcards do not work here: did you mean `\"{front}\"`?"
                ))
            } else {
                fault.help("wildcards do not work here: write it as in \"/img\"")
            });
        }
        if !text.starts_with('/') {
            return Err(fault.help(format!("a path begins with `/`: \"/{text}\"")));
        }
        match wrong_in_path(text) {
            Some(help) => Err(fault.help(help)),
            None => Ok(Self(text.strip_suffix('/').unwrap_or(text).to_owned())),
        }
    }
}

/// A path to look up, in which `$path` stands for the request's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate(pub String);

/// Placeholder for the request's path in a [`Candidate`].
const PATH: &str = "$path";

impl FromText for Candidate {
    const FORM: &'static str = "a path, such as `\"$path\"`, `\"$path.html\"` or `\"/index.html\"`";
    const PATTERN: Option<&'static str> = Some(r"^(/|\$path)[^?#]*$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = Fault::new(format!("`{text}` is not a valid path to try"));
        if let Some(rest) = text.strip_prefix("$uri")
            && Self::from_text(&format!("{PATH}{rest}")).is_ok()
        {
            return Err(fault.help(format!("did you mean \"{PATH}{rest}\"?")));
        }
        let mut words = text.match_indices('$').map(|(at, _)| &text[at..]);
        if words.any(|it| !it.starts_with(PATH)) || text.starts_with('{') {
            return Err(fault.help("`$path`, the path of the request, is the only variable here"));
        }
        if text.starts_with('=') {
            return Err(fault.help("leave it out: if no file is found, the answer is 404"));
        }
        if let Some(name) = text.strip_prefix('@') {
            return Err(fault.help(format!(
                "to pass requests on if no file is found, write `upstream = \"{name}\"` beside \
                 `try`"
            )));
        }
        if text.contains("/$path") {
            return Err(fault.help("leave out the slash: `$path` begins with one"));
        }
        if !text.starts_with('/') && !text.starts_with(PATH) {
            return Err(fault.help(format!("it begins with `/` or `$path`: \"/{text}\"")));
        }
        if text.len() > 1 && text.ends_with('/') {
            return Err(fault.help(format!(
                "\"{}\" also finds a folder, and then its index file",
                text.trim_end_matches('/')
            )));
        }
        match wrong_in_path(text) {
            Some(help) => Err(fault.help(help)),
            None => Ok(Self(text.to_owned())),
        }
    }
}

/// Path of a file within a folder, from that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InnerPath(pub String);

impl FromText for InnerPath {
    const FORM: &'static str = "the path of a file in the folder, such as `\"/404.html\"`";
    const PATTERN: Option<&'static str> = Some("^/[^?#]*[^?#/]$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = Fault::new(format!(
            "`{text}` is not a valid path of a file in the folder"
        ));
        if !text.starts_with('/') {
            return Err(fault.help(format!("it begins with `/`: \"/{text}\"")));
        }
        if text.ends_with('/') {
            return Err(fault.help("write the path of a file, as in \"/404.html\""));
        }
        match wrong_in_path(text) {
            Some(help) => Err(fault.help(help)),
            None => Ok(Self(text.to_owned())),
        }
    }
}

/// Advice for a path that can never name a file.
fn wrong_in_path(path: &str) -> Option<&'static str> {
    let is_encoded = |at: usize| {
        let digits = path.as_bytes().get(at + 1..at + 3);
        digits.is_some_and(|it| it.iter().all(u8::is_ascii_hexdigit))
    };
    if path.contains("//") {
        return Some("write one slash instead of two");
    }
    if path.split('/').any(|it| matches!(it, "." | "..")) {
        return Some("write the path without `.` and `..`");
    }
    if path.contains(['?', '#']) {
        return Some("a file has no query: write only the path");
    }
    if path.match_indices('%').any(|(at, _)| is_encoded(at)) {
        return Some("write the character itself instead of %XX");
    }
    let has_control = path.contains(char::is_control);
    has_control.then_some("it must not contain control characters")
}

/// Name of a file, without the folder that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileName(pub String);

impl FromText for FileName {
    const FORM: &'static str = "the name of a file, such as `\"index.html\"`";
    const PATTERN: Option<&'static str> = Some("^[^/]+$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = Fault::new(format!("`{text}` is not a valid file name"));
        if text.contains('/') {
            let name = text.rsplit('/').next().unwrap_or(text);
            let is_rooted = text.strip_prefix('/') == Some(name);
            return Err(if is_rooted && !name.is_empty() {
                fault.help(format!("did you mean `\"{name}\"`?"))
            } else {
                fault.help(
                    "write a name without a folder: it is looked up in each folder; for one file \
                    for all folders, use `try`",
                )
            });
        }
        if matches!(text, "" | "." | "..") || text.contains(char::is_control) {
            return Err(fault.help("write it as in \"index.html\""));
        }
        Ok(Self(text.to_owned()))
    }
}

/// The ending of a file's name, without dot and in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending(pub String);

impl FromText for Ending {
    const FORM: &'static str = "a file extension, such as `\"webp\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = Fault::new(format!("`{text}` is not a valid file extension"));
        let ending = text.rsplit('.').next().unwrap_or(text).to_lowercase();
        if ending.is_empty() || ending.contains(['/', '*']) || ending.contains(char::is_whitespace)
        {
            return Err(fault.help("write only the part after the last dot, as in \"webp\""));
        }
        if ending == text {
            Ok(Self(ending))
        } else {
            Err(fault.help(format!(
                "write it in lower case and without the dot: `{ending}`"
            )))
        }
    }
}

/// A media type, with or without parameters (RFC 9110 §8.3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaType(pub String);

impl FromText for MediaType {
    const FORM: &'static str = "a media type, such as `\"image/webp\"`";
    const PATTERN: Option<&'static str> = Some("^[^/*]+/[^/*]+$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let FieldValue(text) = FieldValue::from_text(text)?;
        let essence = text.split(';').next().unwrap_or(&text).trim_end();
        let is_type = |(main, sub): (&str, &str)| is_token(main) && is_token(sub);
        if essence.split_once('/').is_some_and(is_type) && !essence.contains('*') {
            Ok(Self(text))
        } else {
            Err(Fault::new(format!("`{text}` is not a valid media type"))
                .help("write it as in \"image/webp\" or \"text/html; charset=utf-8\""))
        }
    }
}

/// The beginning of media types, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypePrefix(pub String);

impl FromText for TypePrefix {
    const FORM: &'static str = "the beginning of media types, such as `\"text/\"`";
    const PATTERN: Option<&'static str> = Some("^[^/*;]+/[^/*;]*$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = Fault::new(format!(
            "`{text}` is not a valid media type or prefix of one"
        ));
        if let Some(front) = text.strip_suffix('*')
            && Self::from_text(front).is_ok()
        {
            return Err(fault.help(format!("did you mean `\"{front}\"`?")));
        }
        let is_prefix =
            |(main, sub): (&str, &str)| is_token(main) && (sub.is_empty() || is_token(sub));
        if text.split_once('/').is_some_and(is_prefix) && !text.contains('*') {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err(fault.help("write it as in \"text/\" or \"application/json\""))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks each text: it gives a value, or help that contains the expected text.
    #[track_caller]
    fn assert_read<T: FromText>(value: fn(T) -> String, cases: &[(&str, Result<&str, &str>)]) {
        for (text, expected) in cases {
            match (T::from_text(text).map(value), expected) {
                (Ok(read), Ok(expected)) => assert_eq!(read, *expected, "{text:?}"),
                (Err(fault), Err(expected)) => {
                    let said = format!("{}\n{}", fault.what, fault.help.unwrap_or_default());
                    assert!(said.contains(expected), "{text:?}: {said}");
                }
                (read, _) => panic!("{text:?}: {read:?}"),
            }
        }
    }

    #[test]
    fn folders() {
        assert_read::<FolderPath>(
            |it| it.0.display().to_string(),
            &[
                ("/srv/img", Ok("/srv/img")),
                ("../site", Ok("../site")),
                ("", Err("`\".\"` is the folder")),
                ("file:///srv", Err("`\"/srv\"`")),
                ("http://a/b", Err("use `upstream`")),
                ("~/site", Err("write the full path")),
                ("/a\0", Err("control")),
            ],
        );
    }

    #[test]
    fn paths() {
        assert_read::<Front>(
            |it| it.0,
            &[
                ("/img", Ok("/img")),
                ("/img/", Ok("/img")),
                ("/", Ok("")),
                ("/größe/a b", Ok("/größe/a b")),
                ("img", Err("\"/img\"")),
                ("", Err("begins with `/`")),
                ("/img/*", Err("`\"/img\"`")),
                ("/*", Err("as in \"/img\"")),
                ("//", Err("one slash")),
                ("/a/../b", Err("without `.` and `..`")),
                ("/a?b", Err("no query")),
                ("/a%20b", Err("the character itself")),
                ("/100%", Ok("/100%")),
            ],
        );
        assert_read::<InnerPath>(
            |it| it.0,
            &[
                ("/404.html", Ok("/404.html")),
                ("404.html", Err("\"/404.html\"")),
                ("/errors/", Err("of a file")),
                ("/../404.html", Err("without `.` and `..`")),
                ("/a\n", Err("control")),
            ],
        );
    }

    #[test]
    fn candidates() {
        assert_read::<Candidate>(
            |it| it.0,
            &[
                ("$path", Ok("$path")),
                ("$path.html", Ok("$path.html")),
                ("$path/index.html", Ok("$path/index.html")),
                ("/static$path", Ok("/static$path")),
                ("/index.html", Ok("/index.html")),
                ("/", Ok("/")),
                ("$uri", Err("did you mean \"$path\"?")),
                ("$uri.html", Err("did you mean \"$path.html\"?")),
                ("$path$args", Err("`$path`, the path of the request")),
                ("{path}", Err("`$path`, the path of the request")),
                ("=404", Err("the answer is 404")),
                ("@app", Err("`upstream = \"app\"`")),
                ("index.html", Err("\"/index.html\"")),
                ("/$path", Err("leave out the slash")),
                ("$path/", Err("\"$path\" also finds a folder")),
                ("$path/../x", Err("without `.` and `..`")),
                ("/index.html?a", Err("no query")),
                ("", Err("begins with")),
            ],
        );
    }

    #[test]
    fn names() {
        assert_read::<FileName>(
            |it| it.0,
            &[
                ("index.html", Ok("index.html")),
                ("/index.html", Err("`\"index.html\"`")),
                ("a/index.html", Err("use `try`")),
                ("/", Err("use `try`")),
                ("..", Err("as in")),
                ("", Err("as in")),
            ],
        );
        assert_read::<Ending>(
            |it| it.0,
            &[
                ("webp", Ok("webp")),
                (".webp", Err("`webp`")),
                ("JPG", Err("`jpg`")),
                ("tar.gz", Err("`gz`")),
                ("*.png", Err("`png`")),
                ("a/b", Err("the last dot")),
                ("", Err("the last dot")),
            ],
        );
    }

    #[test]
    fn types() {
        assert_read::<MediaType>(
            |it| it.0,
            &[
                ("image/webp", Ok("image/webp")),
                ("text/html; charset=utf-8", Ok("text/html; charset=utf-8")),
                ("webp", Err("as in")),
                ("text/*", Err("as in")),
                ("a b/c", Err("as in")),
                ("text/", Err("as in")),
                ("text/ä", Err("printable ASCII")),
            ],
        );
        assert_read::<TypePrefix>(
            |it| it.0,
            &[
                ("text/", Ok("text/")),
                ("Application/JSON", Ok("application/json")),
                ("text/*", Err("`\"text/\"`")),
                ("text", Err("as in")),
                ("*/*", Err("as in")),
                ("text/html; charset=utf-8", Err("as in")),
            ],
        );
    }
}
