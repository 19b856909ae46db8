//! The checks that look at the machine: values that are valid but do not work here.

use std::net::ToSocketAddrs;
use std::path::PathBuf;

use super::super::diagnostics::Report;
use super::super::log_value::LogPath;
use super::super::machine::Obstacle;
use super::super::setting::{Field, Placed};
use super::super::tree::SourcePlace;
use super::super::value::Destination;
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

/// Warns of an obstacle, if there is one.
pub(crate) fn warn(obstacle: Option<Obstacle>, place: &SourcePlace, report: &mut Report) {
    if let Some(obstacle) = obstacle {
        report
            .warning(place, obstacle.to_string())
            .help(obstacle.advice());
    }
}

/// Warns of names of endpoints that have no address now. Other name servers than the
/// system's are not asked.
pub(crate) fn look_up_names(file: &File, report: &mut Report) {
    let server = file.server.value.as_ref();
    if server.is_none_or(|it| it.resolvers.written) {
        return;
    }
    let upstreams = file.upstream.value.iter().flat_map(|map| &map.0);
    let upstreams = upstreams.filter_map(|it| it.value.as_ref());
    for endpoint in upstreams.flat_map(|it| it.endpoints.value.iter().flatten()) {
        let Some(Placed { value, place }) = &endpoint.value.0.address.value else {
            continue;
        };
        let Destination::Host { name, port } = &value.destination else {
            continue;
        };
        let found = (name.as_str(), *port).to_socket_addrs();
        let error = match found.map(|mut it| it.next()) {
            Ok(Some(_)) => continue,
            Ok(None) => "it has no address".to_owned(),
            Err(error) => error.to_string(),
        };
        report
            .warning(place, format!("look up `{name}`: {error}"))
            .help(
                "the running process looks it up again and again; until then it is not an endpoint",
            );
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
    // `-` is standard output.
    paths.filter(|(path, _)| path.as_os_str() != "-")
}

fn own_path(log: &Field<OwnAccessLog>) -> Option<&Field<LogPath>> {
    match log.value.as_ref()? {
        OwnAccessLog::On(table) => Some(&table.path),
        OwnAccessLog::Off => None,
    }
}
