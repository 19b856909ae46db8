//! HAProxy's commands, with its words: backend for upstream, server for endpoint, frontend for
//! listener. Output and error texts are also HAProxy's.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_policy::endpoint::{Admin as AdminState, EndpointState};

use super::Caller;
use crate::admin::Admin;
use crate::admin::csv::{self, RowId, RowKind};
use crate::admin::operate::{Operation, operate};
use crate::net::Address;
use crate::observe::figures::{AdminWord, EndpointStatus, Figures, Sources};

/// HAProxy's largest weight.
const MAX_WEIGHT: u32 = 256;

/// The answer to a command; `None` if HAProxy has no such command, or it has no meaning here. A
/// change has an empty answer.
pub(super) fn run(caller: &Caller<'_>, words: &[&str]) -> Option<String> {
    let admin = caller.admin;
    let sources = &admin.sources();
    let make = |place: &str, wanted| change(caller, place, Operation::Admin(wanted));
    Some(match *words {
        ["show", "info"] => info(sources),
        ["show", "stat"] => stat(admin, |_| true),
        ["show", "stat", proxy, kinds, sid] => part_of_stat(admin, proxy, kinds, sid),
        ["show", "backend"] => backends(sources),
        ["show", "servers", "state"] => servers_state(admin, None),
        ["show", "servers", "state", backend] => servers_state(admin, Some(backend)),
        ["set", "server", place, "state", state] => match state {
            "ready" => make(place, AdminState::Ready),
            "drain" => make(place, AdminState::Drain),
            "maint" => make(place, AdminState::Stop),
            _ => "'set server <srv> state' expects 'ready', 'drain' and 'maint'.\n".to_owned(),
        },
        ["set", "server", place, "weight", weight] | ["set", "weight", place, weight] => {
            set_weight(caller, place, weight)
        }
        ["set", "server", ..] => "usage: set server <backend>/<server> state ready|drain|maint, \
             set server <backend>/<server> weight <weight>[%], \
             or set server <backend>/<server> addr <ip> [port <port>]\n"
            .to_owned(),
        ["get", "weight", place] => get_weight(admin, place),
        ["enable", "server", place] => make(place, AdminState::Ready),
        ["disable", "server", place] => make(place, AdminState::Stop),
        _ => return None,
    })
}

/// A resolved endpoint.
struct EndpointPlace<'a> {
    upstream: &'a str,
    endpoint: Arc<EndpointState>,
    /// Its weight in the list.
    initial_weight: u32,
}

fn find<'a>(
    admin: &Admin,
    sources: &'a Sources,
    place: &str,
) -> Result<EndpointPlace<'a>, &'static str> {
    let (upstream, endpoint) = place.split_once('/').ok_or("Require 'backend/server'.\n")?;
    let mut upstreams = sources.config.upstreams.iter().enumerate();
    let (index, upstream) = upstreams
        .find(|(_, it)| it.name == upstream)
        .ok_or("No such backend.\n")?;
    let members = sources.dispatchers[index].members();
    let endpoint = members.named(endpoint).ok_or("No such server.\n")?;
    let listed = admin.discovery.endpoint(&upstream.name, endpoint.name());
    Ok(EndpointPlace {
        upstream: &upstream.name,
        endpoint: endpoint.clone(),
        initial_weight: listed.map_or(endpoint.weight(), |it| it.weight),
    })
}

fn change(caller: &Caller<'_>, place: &str, operation: Operation) -> String {
    let sources = &caller.admin.sources();
    let EndpointPlace {
        upstream, endpoint, ..
    } = match find(caller.admin, sources, place) {
        Ok(place) => place,
        Err(error) => return error.to_owned(),
    };
    match operate(
        sources,
        upstream,
        endpoint.name(),
        operation,
        caller.operator,
    ) {
        Ok(_) => String::new(),
        Err(error) => format!("{error}\n"),
    }
}

/// A weight, or a percentage of the one in the list.
fn set_weight(caller: &Caller<'_>, place: &str, weight: &str) -> String {
    let sources = &caller.admin.sources();
    let found = match find(caller.admin, sources, place) {
        Ok(found) => found,
        Err(error) => return error.to_owned(),
    };
    let (digits, is_part) = match weight.strip_suffix('%') {
        Some(digits) => (digits, true),
        None => (weight, false),
    };
    let Ok(number) = digits.parse::<u32>() else {
        return "Require <weight> or <weight%>.\n".to_owned();
    };
    let weight = match is_part {
        true if number > 100 => {
            return "Relative weight can only be between 0 and 100% inclusive.\n".to_owned();
        }
        true => {
            let initial = u64::from(found.initial_weight);
            // Rounded up, so that only 0 % gives 0.
            (initial * u64::from(number)).div_ceil(100) as u32
        }
        false if number > MAX_WEIGHT => {
            return "Absolute weight can only be between 0 and 256 inclusive.\n".to_owned();
        }
        false => number,
    };
    change(caller, place, Operation::Weight(weight))
}

fn get_weight(admin: &Admin, place: &str) -> String {
    match find(admin, &admin.sources(), place) {
        Err(error) => error.to_owned(),
        Ok(place) => format!(
            "{} (initial {})\n",
            place.endpoint.weight(),
            place.initial_weight
        ),
    }
}

fn backends(sources: &Sources) -> String {
    let names = sources.config.upstreams.iter().map(|it| it.name.as_str());
    let lines: Vec<_> = std::iter::once("# name").chain(names).collect();
    lines.join("\n") + "\n"
}

fn stat(admin: &Admin, is_wanted: impl Fn(&RowId<'_>) -> bool) -> String {
    let figures = admin.sources().read();
    let seen = admin.seen_of(&figures);
    let table = csv::part(&figures, &seen, is_wanted);
    String::from_utf8_lossy(&table).into_owned()
}

/// The rows of a proxy by name or number, of kinds by their sum, and of a server by number; -1 is
/// all.
fn part_of_stat(admin: &Admin, proxy: &str, kinds: &str, sid: &str) -> String {
    let (Ok(kinds), Ok(sid)) = (kinds.parse::<i64>(), sid.parse::<i64>()) else {
        return "Integer value expected.\n".to_owned();
    };
    let iid = proxy.parse::<i64>().ok();
    stat(admin, |row| {
        let is_proxy = match iid {
            Some(-1) => true,
            Some(iid) => iid as u64 == row.iid,
            None => proxy == row.proxy,
        };
        let is_kind = kinds & row.kind as i64 != 0;
        let is_server = sid == -1 || row.kind != RowKind::Server || sid as u64 == row.sid;
        is_proxy && is_kind && is_server
    })
}

/// The lines of HAProxy for which we have values. Tools recognise the socket by the name.
fn info(sources: &Sources) -> String {
    let figures = sources.read();
    let Figures {
        version,
        pid,
        workers,
        uptime_ms,
        listeners,
        ..
    } = &figures;
    let seconds = uptime_ms / 1000;
    let uptime = format!(
        "{}d {}h{:02}m{:02}s",
        seconds / 86_400,
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60
    );
    let sum = |count: fn(&crate::observe::figures::ListenerFigures) -> u64| {
        listeners.iter().map(count).sum::<u64>().to_string()
    };
    let lines = [
        ("Name", "HAProxy".to_owned()),
        ("Version", (*version).to_owned()),
        ("Description", format!("evenkeel {version}")),
        ("Nbthread", workers.to_string()),
        ("Nbproc", "1".to_owned()),
        ("Process_num", "1".to_owned()),
        ("Pid", pid.to_string()),
        ("Uptime", uptime),
        ("Uptime_sec", seconds.to_string()),
        ("CurrConns", sum(|it| it.open)),
        ("CumConns", sum(|it| it.connections)),
        ("CumReq", sum(|it| it.exchanges.requests)),
        ("TotalBytesOut", sum(|it| it.exchanges.bytes_out)),
        ("Listeners", listeners.len().to_string()),
        (
            "DroppedLogs",
            (figures.log_lines_dropped + figures.log_lines_lost).to_string(),
        ),
        ("Stopping", u8::from(figures.draining).to_string()),
    ];
    lines
        .iter()
        .map(|(name, value)| format!("{name}: {value}\n"))
        .collect()
}

/// The state file, version 1. Unknown values are 0 or `-`.
fn servers_state(admin: &Admin, backend: Option<&str>) -> String {
    const TITLES: &str = "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state \
        srv_admin_state srv_uweight srv_iweight srv_time_since_last_change srv_check_status \
        srv_check_result srv_check_health srv_check_state srv_agent_state bk_f_forced_id \
        srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr \
        srv_agent_addr srv_agent_port\n";
    let sources = &admin.sources();
    let upstreams = &sources.config.upstreams;
    if backend.is_some_and(|name| upstreams.iter().all(|it| it.name != name)) {
        return "Can't find backend.\n".to_owned();
    }
    let mut text = TITLES.to_owned();
    // The numbers of `show stat`: frontends first.
    let first = 1 + sources.config.listeners.len();
    for (index, upstream) in upstreams.iter().enumerate() {
        if backend.is_some_and(|name| name != upstream.name) {
            continue;
        }
        let members = sources.dispatchers[index].members();
        let listed = admin.discovery.endpoints(&upstream.name);
        let listed: HashMap<_, _> = listed.iter().map(|it| (&*it.name, it)).collect();
        for (place, state) in members.endpoints().iter().enumerate() {
            let listed = listed.get(state.name());
            let (address, port) = match listed.map(|it| &it.address) {
                Some(Address::Tcp(address)) => (address.ip().to_string(), address.port()),
                Some(Address::Unix(path)) => (path.display().to_string(), 0),
                // The endpoint is just leaving.
                None => ("-".to_owned(), 0),
            };
            let initial_weight = listed.map_or(state.weight(), |it| it.weight);
            // 0 is stopped, 1 starting, 2 running.
            let running = match EndpointStatus::of(state) {
                EndpointStatus::Up | EndpointStatus::Trial | EndpointStatus::Draining => 2,
                EndpointStatus::Starting => 1,
                EndpointStatus::Stopped
                | EndpointStatus::Down
                | EndpointStatus::Unprobed
                | EndpointStatus::Unreachable
                | EndpointStatus::Ejected => 0,
            };
            // Bits of SRV_ADMF: 1 is forced maintenance, 8 forced drain.
            let wanted = sources.dispatchers[index].admin(state);
            let admin = match AdminWord(wanted).0 {
                AdminState::Ready => 0,
                AdminState::Stop => 1,
                AdminState::Drain => 8,
            };
            text += &format!(
                "{} {} {} {} {address} {running} {admin} {} {} 0 0 0 0 0 0 0 0 - {port} - 0 0 - - 0\n",
                first + index,
                upstream.name,
                place + 1,
                state.name(),
                state.weight(),
                initial_weight,
            );
        }
    }
    text
}
