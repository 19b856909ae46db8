//! Files of a folder, and the disks that they are read from.

use std::path::PathBuf;

use evenkeel_policy::route::PathPattern;
use evenkeel_proto::coding::Coding;

use super::super::diagnostics::Report;
use super::super::file_value::FolderPath;
use super::super::setting::{OneOrMore, Placed};
use super::super::written::{self, CompressTable, FilesTable, Switch};
use super::super::{Candidate, Compression, Disk, Files, Proxying};
use super::upstream::queue_answer;
use super::{NameLookup, Surroundings};

/// `fallback` is where requests go that no file is found for.
pub(super) fn resolve(
    it: &FilesTable,
    fallback: Option<Proxying>,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Files> {
    // First, so that its mistakes are reported whatever else is missing.
    let overload = queue_answer(it.overload.value.as_ref()?, surroundings.folder, report);
    let root = root(it.root.value.as_ref()?, surroundings, report);
    let OneOrMore(candidates) = it.r#try.value.as_ref()?;
    let index = it.index.value.as_ref()?.iter();
    let types = it.types.value.as_ref()?.0.iter();
    let types = types.map(|it| Some((it.name.clone(), it.value.as_ref()?.0.clone())));
    let cache_control = it.cache_control.value.as_ref()?.0.iter();
    let cache_control = cache_control.map(|it| {
        let pattern = PathPattern::new(&it.name).ok()?;
        Some((pattern, it.value.as_ref()?.0.clone()))
    });
    Some(Files {
        root: root?,
        strip: it.strip.value.as_ref().map_or("", |it| &it.0).to_owned(),
        candidates: candidates.iter().map(|it| Candidate::new(&it.0)).collect(),
        index: index.map(|it| it.0.clone()).collect(),
        fallback,
        not_found: it.not_found.value.as_ref().map(|it| it.0.clone()),
        is_listed: it.listing.value?,
        shows_hidden: it.hidden.value?,
        types: types.collect::<Option<_>>()?,
        default_type: it.default_type.value.as_ref()?.0.clone(),
        cache_control: cache_control.collect::<Option<_>>()?,
        precompressed: codings(it.precompressed.value.as_ref()?),
        compression: match &it.compress.value {
            None | Some(Switch::Off) => None,
            Some(Switch::On(table)) => Some(compression(table)?),
        },
        overload: overload?,
    })
}

/// The folder as an absolute path, so that it stays the same one wherever the
/// process works.
fn root(
    it: &Placed<FolderPath>,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<PathBuf> {
    let path = surroundings.folder.join(&it.value.0);
    let path = match std::path::absolute(&path) {
        Ok(path) => path,
        Err(error) => {
            let what = format!("find the folder {}: {error}", path.display());
            report
                .mistake(&it.place, what)
                .help("write an absolute path");
            return None;
        }
    };
    // It may be there later, when something is mounted.
    if surroundings.lookup == NameLookup::System && !path.is_dir() {
        let what = match path.exists() {
            true => format!("{} is no folder", path.display()),
            false => format!("there is no folder {} now", path.display()),
        };
        report
            .warning(&it.place, what)
            .help("until there is one, requests for its files are answered 500");
    }
    Some(path)
}

fn compression(it: &CompressTable) -> Option<Compression> {
    let types = it.types.value.as_ref()?.iter();
    Some(Compression {
        codings: codings(it.codings.value.as_ref()?),
        types: types.map(|it| it.0.clone()).collect(),
        min_bytes: it.min.value?.0,
        max_bytes: it.max.value?.0,
    })
}

fn codings(written: &[Placed<Coding>]) -> Vec<Coding> {
    written.iter().map(|it| it.value).collect()
}

pub(super) fn disk(it: &written::Disk) -> Option<Disk> {
    let queue = it.queue.value.as_ref()?;
    Some(Disk {
        in_flight: it.in_flight.value?.get(),
        queue_max: queue.max.value?.get(),
        queue_timeout: queue.timeout.value?.0,
        open_files: it.open_files.value?.get(),
        check_interval: it.check_interval.value?.0,
    })
}
