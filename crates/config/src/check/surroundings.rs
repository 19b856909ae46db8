//! The checks that look at the machine: what is fine in the file and not here.

use std::path::PathBuf;

use super::super::diagnostics::Report;
use super::super::log_value::LogPath;
use super::super::machine::Obstacle;
use super::super::setting::Field;
use super::super::tree::SourcePlace;
use super::super::written::{self, AccessLog, File, OwnAccessLog};
use evenkeel_net::Address;

/// Warns of addresses and folders that this process could not use.
pub(crate) fn check(file: &File, report: &mut Report) {
    for (address, place) in addresses(file) {
        warn(Obstacle::of(address), place, report);
    }
    for (path, place) in logs(file) {
        warn(Obstacle::of_file(path), place, report);
    }
}

fn warn(obstacle: Option<Obstacle>, place: &SourcePlace, report: &mut Report) {
    if let Some(obstacle) = obstacle {
        report
            .warning(place, obstacle.to_string())
            .help(obstacle.advice());
    }
}

/// The addresses that the process listens at.
fn addresses(file: &File) -> impl Iterator<Item = (&Address, &SourcePlace)> {
    let listeners = file.listener.value.iter().flatten().map(|it| &it.bind);
    let status = file.status.value.iter().filter_map(|it| match it {
        written::Status::Off => None,
        written::Status::On(it) => Some(&it.bind),
    });
    let binds = listeners.chain(status);
    let binds = binds.filter_map(|it| Some((&it.value.as_ref()?.0, &it.place)));
    let control = file.server.value.iter().map(|it| &it.control);
    binds.chain(control.filter_map(|it| Some((&it.value.as_ref()?.0, &it.place))))
}

/// The files that requests are logged to.
fn logs(file: &File) -> impl Iterator<Item = (&PathBuf, &SourcePlace)> {
    let global = file.access_log.value.iter().filter_map(|it| match it {
        AccessLog::On(table) => Some(&table.path),
        AccessLog::Off => None,
    });
    let listeners = file
        .listener
        .value
        .iter()
        .flatten()
        .map(|it| &it.access_log);
    let routes = file.route.value.iter().flatten().map(|it| &it.access_log);
    let own = listeners.chain(routes).filter_map(own_path);
    let paths = global.chain(own).filter(|it| it.written);
    let paths = paths.filter_map(|it| Some((&it.value.as_ref()?.0, &it.place)));
    // That is standard output.
    paths.filter(|(path, _)| path.as_os_str() != "-")
}

fn own_path(log: &Field<OwnAccessLog>) -> Option<&Field<LogPath>> {
    match log.value.as_ref()? {
        OwnAccessLog::On(table) => Some(&table.path),
        OwnAccessLog::Off => None,
    }
}
