//! Files of networks: read once with the configuration, however many routes name them.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use evenkeel_policy::route::{NetworkFile, NetworkSet};

use crate::WatchedNetworks;
use crate::diagnostics::Report;
use crate::network_file::{ReadError, read};
use crate::setting::{Field, OneOrMore, Placed};
use crate::surroundings::{NameLookup, Surroundings};
use crate::value::{ClientItem, FilePath};
use crate::written::{File, Names};

/// Reads the files of networks that routes name, and adds them to `names`. Reports files that
/// can't be read.
pub(super) fn read_files(
    file: &File,
    names: &mut Names<'_>,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Vec<WatchedNetworks> {
    let mut seen: HashSet<&Path> = HashSet::new();
    let mut watched = Vec::new();
    for Placed { value, place } in written(file) {
        let FilePath(written) = value;
        if !seen.insert(written) {
            continue;
        }
        let path = surroundings.folder.join(written);
        let set = match read(&path) {
            Ok(set) => set,
            Err(ReadError::Unreadable(_)) if surroundings.lookup == NameLookup::Skip => {
                NetworkSet::default()
            }
            Err(error) => {
                let found = report.mistake(place, error.describe(&path));
                match error {
                    ReadError::Unreadable(error) if error.kind() == ErrorKind::NotFound => {
                        found.help(
                            "write one network or address a line; an empty file is an empty set",
                        );
                    }
                    ReadError::Unreadable(_) => {}
                    ReadError::Line(_) => {
                        found.help("write one network or address a line, as in 10.0.0.0/8; `#` begins a comment");
                    }
                }
                continue;
            }
        };
        let file = Arc::new(NetworkFile::new(written.display().to_string(), set));
        names.network_files.insert(written.clone(), file.clone());
        watched.push(WatchedNetworks { path, file });
    }
    watched
}

/// Every mention of a file of networks, including repeated ones.
fn written(file: &File) -> Vec<&Placed<FilePath>> {
    fn of(clients: &Field<OneOrMore<ClientItem>>) -> impl Iterator<Item = &Placed<FilePath>> {
        let items = clients.value.iter().flat_map(|it| &it.0);
        items.filter_map(file_of)
    }
    fn file_of(item: &ClientItem) -> Option<&Placed<FilePath>> {
        match item {
            ClientItem::File(path) => Some(path),
            ClientItem::In(_) => None,
        }
    }
    fn of_list(
        clients: &Field<OneOrMore<Placed<ClientItem>>>,
    ) -> impl Iterator<Item = &Placed<FilePath>> {
        let items = clients.value.iter().flat_map(|it| &it.0);
        items.filter_map(|it| file_of(&it.value))
    }
    let mut found: Vec<&Placed<FilePath>> = Vec::new();
    for route in file.route.value.iter().flatten() {
        let matches = route.r#match.value.iter().flat_map(|it| it.each());
        matches.for_each(|it| found.extend(of(&it.client)));
        found.extend([&route.allow, &route.deny].into_iter().flat_map(of_list));
        let bypass = route.caching().and_then(|it| it.bypass.value.as_ref());
        let bypass = bypass.into_iter().flat_map(|it| &it.0);
        bypass.for_each(|it| found.extend(of(&it.client)));
    }
    found
}
