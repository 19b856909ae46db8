//! Files of a folder, and the disks that they are read from.

use std::path::PathBuf;

use super::super::diagnostics::Report;
use super::super::file_value::FolderPath;
use super::super::setting::{Placed, Resolve};
use super::super::written::{self, DiskParts, FilesParts, FilesTable};
use super::super::{Disk, Files, Proxying};
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
    it.resolve_with(FilesParts {
        root: root?,
        strip: it.strip.value.as_ref().map_or("", |it| &it.0).to_owned(),
        fallback,
        compression: match &it.compress.value {
            None => None,
            Some(written) => written.resolve()?,
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
        let what = if path.exists() {
            format!("{} is no folder", path.display())
        } else {
            format!("there is no folder {} now", path.display())
        };
        report
            .warning(&it.place, what)
            .help("until there is one, requests for its files are answered 500");
    }
    Some(path)
}

pub(super) fn disk(it: &written::DiskTable) -> Option<Disk> {
    let queue = it.queue.value.as_ref()?;
    it.resolve_with(DiskParts {
        queue_max: queue.max.value?.get(),
        queue_timeout: queue.timeout.value?.0,
    })
}
