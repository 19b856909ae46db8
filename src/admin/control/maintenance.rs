//! The command that refuses requests while an operator works.

use super::Caller;
use super::answer::{Answer, Format, with_names};
use crate::maintenance::{Maintenance, MaintenanceTarget, UnknownName};

/// Switches maintenance of a route or an upstream, or lists those under maintenance.
pub(super) fn run(caller: &Caller<'_>, words: &[&str], format: Format) -> Answer {
    let maintenance = &caller.admin.sources().maintenance;
    match *words {
        [] => list(maintenance, format),
        ["on", place] => switch(caller, maintenance, place, true, format),
        ["off", place] => switch(caller, maintenance, place, false, format),
        _ => Err("maintenance needs on or off, and the name of a route or an upstream".to_owned()),
    }
}

fn list(maintenance: &Maintenance, format: Format) -> Answer {
    format.show(&maintenance.under(), |under| {
        let routes = under.routes.iter().map(|it| format!("route {it}\n"));
        let upstreams = under.upstreams.iter().map(|it| format!("upstream {it}\n"));
        let all: String = routes.chain(upstreams).collect();
        if all.is_empty() {
            "no route or upstream is under maintenance\n".to_owned()
        } else {
            all
        }
    })
}

fn switch(
    caller: &Caller<'_>,
    maintenance: &Maintenance,
    place: &str,
    is_on: bool,
    format: Format,
) -> Answer {
    let (of, name) = meant(caller, maintenance, place)?;
    let is_changed = maintenance.switch(of, name, is_on);
    let is_changed = is_changed.map_err(|UnknownName| unknown(caller, of, name))?;
    let state = match (is_on, is_changed) {
        (true, true) => "is now under maintenance, until you switch it off or the program ends",
        (true, false) => "is already under maintenance",
        (false, true) => "is no longer under maintenance",
        (false, false) => "is not under maintenance",
    };
    if is_changed {
        let operator = caller.operator;
        let word = if is_on { "on" } else { "off" };
        tracing::warn!("{of} {name}: maintenance {word}, switched {operator}");
    }
    let done = format!("{of} {name} {state}");
    format.show(&serde_json::json!({ "done": done }), |_| {
        format!("{done}\n")
    })
}

/// The named route or upstream: `NAME`, `route/NAME` or `upstream/NAME`.
fn meant<'a>(
    caller: &Caller<'_>,
    maintenance: &Maintenance,
    place: &'a str,
) -> Result<(MaintenanceTarget, &'a str), String> {
    let is_route = maintenance.has(MaintenanceTarget::Route, place);
    let is_upstream = maintenance.has(MaintenanceTarget::Upstream, place);
    match (is_route, is_upstream) {
        (true, true) => Err(format!(
            "there is a route and an upstream named `{place}`: write route/{place} or upstream/{place}"
        )),
        (true, false) => Ok((MaintenanceTarget::Route, place)),
        (false, true) => Ok((MaintenanceTarget::Upstream, place)),
        (false, false) => match place.split_once('/') {
            Some(("route", name)) => Ok((MaintenanceTarget::Route, name)),
            Some(("upstream", name)) => Ok((MaintenanceTarget::Upstream, name)),
            _ => Err(unknown_place(caller, place)),
        },
    }
}

fn unknown(caller: &Caller<'_>, of: MaintenanceTarget, name: &str) -> String {
    let config = &caller.admin.sources().config;
    let error = format!("there is no {of} named `{}`", name.escape_debug());
    match of {
        MaintenanceTarget::Route => with_names(&error, config.routes.iter().map(|it| &*it.name)),
        MaintenanceTarget::Upstream => {
            with_names(&error, config.upstreams.iter().map(|it| &*it.name))
        }
    }
}

fn unknown_place(caller: &Caller<'_>, place: &str) -> String {
    let config = &caller.admin.sources().config;
    let routes = config.routes.iter().map(|it| &*it.name);
    let upstreams = config.upstreams.iter().map(|it| &*it.name);
    let shown = place.escape_debug();
    let error = format!("there is no route or upstream named `{shown}`");
    with_names(&error, routes.chain(upstreams))
}
