//! Which files a request may be answered with: from its method and path alone,
//! before any is looked for.

use std::borrow::Cow;

use evenkeel_proto::error::PathError;
use evenkeel_proto::{Method, RequestHead, file_path};

use crate::config::{self, Candidate, Proxying};
use crate::metrics::end::Failure;

/// What a request wants of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WantedFile<'a> {
    /// What stands for this path, without its leading slash and what is
    /// stripped; `None` where that can be no file's, but another may stand for
    /// it.
    Path(Option<Cow<'a, [u8]>>),
    /// What is not beneath what is stripped: no file.
    Nothing,
    /// The folder itself, which is asked for with a slash at its end.
    ToFolder,
    /// What files are not for.
    Refused(Failure),
}

impl<'a> WantedFile<'a> {
    /// What the request with this head wants; `bytes` begin with the head.
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

/// What is looked for on behalf of one of a route's candidates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Try<'a> {
    /// The file with this path, which has no leading slash.
    Path(Cow<'a, [u8]>),
    /// None: the path has a hidden name, and such are not shown.
    Hidden(Cow<'a, [u8]>),
    /// None: it is made of the request's path, and that can be no file's.
    NoFile,
}

impl<'a> Try<'a> {
    /// What is tried for a candidate and the path that is wanted.
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

/// Who answers in place of files after a failure: the route's upstream, where
/// there is no file or files are not for the method.
pub(crate) fn fallback(failure: Failure, settings: &config::Files) -> Option<Proxying> {
    let is_for_it = matches!(failure, Failure::NoFile | Failure::NoMethod);
    settings.fallback.filter(|_| is_for_it)
}

/// What is left of a path behind what is stripped of it.
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

/// Whether a request is for what is stripped and no more: the folder itself,
/// without the slash at its end.
fn is_folder_of_strip(asked: &[u8], rest: &[u8], settings: &config::Files) -> bool {
    rest.is_empty()
        && !settings.strip.is_empty()
        && matches!(asked, [.., last] if !b"/.".contains(last))
}

/// A path to try, without its leading slash; `None` where it is made of that of
/// the request, and that can be no file's.
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

/// Where a request for a folder is sent: the same path with a slash at its end.
pub(crate) fn folder_location(head: &RequestHead, bytes: &[u8]) -> String {
    // At the start of a target two slashes lead to another host.
    // Browsers take a backslash for a slash.
    let path = String::from_utf8_lossy(head.path(bytes)).replace('\\', "%5C");
    let mut location = format!("/{}/", path.trim_start_matches('/'));
    if !head.query.is_empty() {
        location.push('?');
        location.push_str(&String::from_utf8_lossy(head.query.of(bytes)));
    }
    location
}
