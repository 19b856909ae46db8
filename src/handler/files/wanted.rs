//! The files that may answer a request, by its method and path alone. No file is looked for yet.

use std::borrow::Cow;

use evenkeel_proto::error::PathError;
use evenkeel_proto::{Method, RequestHead, file_path};

use crate::config::{self, Candidate, Proxying};
use crate::metrics::end::Failure;

/// The target of a request within a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WantedFile<'a> {
    /// The file at this path, without its leading slash and the stripped prefix. `None` where no
    /// file can have the path, but a fallback candidate may answer.
    Path(Option<Cow<'a, [u8]>>),
    /// Nothing: the path is not beneath the stripped prefix.
    Nothing,
    /// The folder itself, by a path that lacks the slash at its end.
    ToFolder,
    /// A request that files do not serve.
    Refused(Failure),
}

impl<'a> WantedFile<'a> {
    /// The target of the request with this head; `bytes` begin with the head.
    pub fn by(head: &RequestHead, bytes: &'a [u8], settings: &config::Files) -> Self {
        if !matches!(head.method, Method::Get | Method::Head) {
            return WantedFile::Refused(Failure::NoMethod);
        }
        let asked = head.path(bytes);
        let path = match file_path::decode(asked) {
            Ok(path) => path,
            Err(PathError::NameTooLong | PathError::TooLong) => return WantedFile::Path(None),
            Err(PathError::EncodedSlash) if settings.stands_for_others() => {
                return WantedFile::Path(None);
            }
            Err(_) => return WantedFile::Refused(Failure::BadPath),
        };
        match stripped(path, &settings.strip) {
            Some(rest) if is_folder_of_strip(asked, &rest, settings) => WantedFile::ToFolder,
            Some(rest) => WantedFile::Path(Some(rest)),
            None => WantedFile::Nothing,
        }
    }
}

/// The file to try for one of a route's candidates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Try<'a> {
    /// The file at this path, without a leading slash.
    Path(Cow<'a, [u8]>),
    /// No file: a name in the path is hidden.
    Hidden(Cow<'a, [u8]>),
    /// No file: the candidate contains the request's path, which no file can have.
    NoFile,
}

impl<'a> Try<'a> {
    /// The file to try for a candidate and the wanted path.
    pub fn of(
        candidate: &'a Candidate,
        wanted: Option<&Cow<'a, [u8]>>,
        settings: &config::Files,
    ) -> Self {
        match substituted(candidate, wanted) {
            None => Try::NoFile,
            Some(path) if !settings.shows_hidden && file_path::is_hidden(&path) => {
                Try::Hidden(path)
            }
            Some(path) => Try::Path(path),
        }
    }
}

/// The upstream that answers in place of files: where there is no file, or files do not serve the
/// method.
pub(crate) fn fallback(failure: Failure, settings: &config::Files) -> Option<Proxying> {
    let is_for_it = matches!(failure, Failure::NoFile | Failure::NoMethod);
    settings.fallback.filter(|_| is_for_it)
}

/// The rest of a path after the stripped prefix.
fn stripped<'a>(path: Cow<'a, [u8]>, strip: &str) -> Option<Cow<'a, [u8]>> {
    let Some(strip) = strip.strip_prefix('/') else {
        return Some(path);
    };
    let rest = match path.strip_prefix(strip.as_bytes())? {
        b"" => b"",
        rest => rest.strip_prefix(b"/")?,
    };
    let start = path.len() - rest.len();
    Some(match path {
        Cow::Borrowed(path) => Cow::Borrowed(&path[start..]),
        Cow::Owned(path) => Cow::Owned(path[start..].to_vec()),
    })
}

/// Whether the path is exactly the stripped prefix: the folder itself, without the slash at its
/// end.
fn is_folder_of_strip(asked: &[u8], rest: &[u8], settings: &config::Files) -> bool {
    rest.is_empty()
        && !settings.strip.is_empty()
        && matches!(asked, [.., last] if !b"/.".contains(last))
}

/// A path to try, without its leading slash. `None` where the candidate contains the request's
/// path, which no file can have.
fn substituted<'a>(
    candidate: &'a Candidate,
    path: Option<&Cow<'a, [u8]>>,
) -> Option<Cow<'a, [u8]>> {
    if let Some(fixed) = candidate.fixed() {
        return Some(Cow::Borrowed(fixed.as_bytes()));
    }
    Some(match candidate.around()? {
        ("", "") => path?.clone(),
        (before, after) => Cow::Owned([before.as_bytes(), path?, after.as_bytes()].concat()),
    })
}

/// Location of the redirect for a folder: the same path with a slash at its end.
pub(crate) fn folder_location(head: &RequestHead, bytes: &[u8]) -> String {
    // Two slashes at the start of a target would lead to another host. Browsers take a backslash
    // for a slash.
    let path = String::from_utf8_lossy(head.path(bytes)).replace('\\', "%5C");
    let mut location = format!("/{}/", path.trim_start_matches('/'));
    if !head.query.is_empty() {
        location.push('?');
        location.push_str(&String::from_utf8_lossy(head.query.of(bytes)));
    }
    location
}
