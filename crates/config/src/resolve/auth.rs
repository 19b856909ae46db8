//! Authentication of routes, and the files of users. Each file is read once with the
//! configuration, however many routes name it.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use evenkeel_passwords::{UserFile, Users};

use super::{report_unreadable, warn_of_readers};
use crate::diagnostics::Report;
use crate::setting::Placed;
use crate::surroundings::{NameLookup, Surroundings};
use crate::user_file::{ReadError, read};
use crate::value::FilePath;
use crate::written::{AuthTable, File, Names, Route};
use crate::{Auth, BasicAuth, ForwardAuth, Proxying, WatchedUsers};

/// The realm of a route without `realm` and `name`.
const REALM: &str = "evenkeel";

/// Reads the files of users that routes name, and adds them to `names`. Reports files that
/// can't be read.
pub(super) fn read_files(
    file: &File,
    names: &mut Names<'_>,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Vec<WatchedUsers> {
    let mut seen: HashSet<&Path> = HashSet::new();
    let mut watched = Vec::new();
    let routes = file.route.value.iter().flatten();
    let tables = routes.filter_map(|it| it.auth.value.as_ref());
    for Placed { value, place } in tables.filter_map(|it| it.basic.value.as_ref()) {
        let FilePath(written) = value;
        if !seen.insert(written) {
            continue;
        }
        let path = surroundings.folder.join(written);
        let users = match read(&path) {
            Ok(users) => {
                warn_of_readers(&path, place, "the hashes of passwords", report);
                if users.is_empty() {
                    let path = path.display();
                    report
                        .warning(
                            place,
                            format!("there is no user in {path}, so nobody can log in"),
                        )
                        .help(format!("add one: `htpasswd -B {path} USER`"));
                }
                users
            }
            Err(ReadError::Unreadable(_)) if surroundings.lookup == NameLookup::Skip => {
                Users::default()
            }
            Err(error) => {
                report_unusable(&path, place, &error, report);
                continue;
            }
        };
        let file = Arc::new(UserFile::new(written.display().to_string(), users));
        names.user_files.insert(written.clone(), file.clone());
        watched.push(WatchedUsers { path, file });
    }
    watched
}

fn report_unusable(
    path: &Path,
    place: &crate::tree::SourcePlace,
    error: &ReadError,
    report: &mut Report,
) {
    match error {
        ReadError::Unreadable(error) => {
            let found = report_unreadable(path, place, error, report);
            if error.kind() == ErrorKind::NotFound {
                found.help(format!("create it: `htpasswd -cB {} USER`", path.display()));
            }
        }
        ReadError::Line(line) => {
            report.mistake(place, error.describe(path)).help(line.help);
        }
    }
}

/// How clients of the route show who they are: `None` is a mistake, `Some(None)` not at all.
pub(super) fn auth(route: &Route, names: &Names<'_>) -> Option<Option<Box<Auth>>> {
    match &route.auth.value {
        None if route.auth.written => None,
        None => Some(None),
        Some(table) => {
            let auth = match &table.forward.value {
                Some(upstream) => forward(table, names.upstream(&upstream.value.0)?)?,
                None => basic(route, table, names)?,
            };
            Some(Some(Box::new(auth)))
        }
    }
}

fn forward(table: &AuthTable, upstream: usize) -> Option<Auth> {
    let copy = table.copy.value.as_ref()?.iter();
    Some(Auth::Forward(ForwardAuth {
        proxying: Proxying {
            upstream,
            lane: None,
            priority: 0,
        },
        path: table.path.value.as_ref()?.0.clone(),
        copy: copy.map(|it| it.value.0.clone()).collect(),
        user: table.user.value.as_ref()?.0.clone(),
        timeout: table.timeout.value.as_ref()?.0,
    }))
}

fn basic(route: &Route, table: &AuthTable, names: &Names<'_>) -> Option<Auth> {
    let path = &table.basic.value.as_ref()?.value.0;
    let name = route.name.value.as_ref().map(|it| it.0.as_str());
    let realm = match &table.realm.value {
        Some(realm) => &realm.0,
        None if table.realm.written => return None,
        None => name.unwrap_or(REALM),
    };
    let quoted = realm.replace('\\', "\\\\").replace('"', "\\\"");
    Some(Auth::Basic(BasicAuth {
        users: names.user_files.get(path)?.clone(),
        challenge: format!("Basic realm=\"{quoted}\", charset=\"UTF-8\""),
    }))
}
