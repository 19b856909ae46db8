//! HAProxy's statistics as CSV: the fields of version 2.6, in its order.
//!
//! Source: section 9.1 of HAProxy's management guide. A listener is a row FRONTEND. An upstream
//! is one row for each endpoint, and a row BACKEND. Missing values are empty, as in HAProxy.
//! Rates, maxima, uptimes and downtimes come from looks once a second.

use std::time::Instant;

use super::haproxy::{
    active_weight, backend_state, check_status, client_aborts, connection_attempts, frontend_state,
    request_errors, response_errors, server_aborts, server_state, sum, throttle, went_down,
    whole_weight,
};
use super::monitor::{Seen, SeenOfAll, Traffic};
use crate::metrics::StatusFigures;
use crate::observe::figures::{
    EndpointFigures, ExchangeFigures, Figures, ListenerFigures, UpstreamFigures,
};

/// The fields, in HAProxy's order.
const FIELDS: [&str; 100] = [
    "pxname",
    "svname",
    "qcur",
    "qmax",
    "scur",
    "smax",
    "slim",
    "stot",
    "bin",
    "bout",
    "dreq",
    "dresp",
    "ereq",
    "econ",
    "eresp",
    "wretr",
    "wredis",
    "status",
    "weight",
    "act",
    "bck",
    "chkfail",
    "chkdown",
    "lastchg",
    "downtime",
    "qlimit",
    "pid",
    "iid",
    "sid",
    "throttle",
    "lbtot",
    "tracked",
    "type",
    "rate",
    "rate_lim",
    "rate_max",
    "check_status",
    "check_code",
    "check_duration",
    "hrsp_1xx",
    "hrsp_2xx",
    "hrsp_3xx",
    "hrsp_4xx",
    "hrsp_5xx",
    "hrsp_other",
    "hanafail",
    "req_rate",
    "req_rate_max",
    "req_tot",
    "cli_abrt",
    "srv_abrt",
    "comp_in",
    "comp_out",
    "comp_byp",
    "comp_rsp",
    "lastsess",
    "last_chk",
    "last_agt",
    "qtime",
    "ctime",
    "rtime",
    "ttime",
    "agent_status",
    "agent_code",
    "agent_duration",
    "check_desc",
    "agent_desc",
    "check_rise",
    "check_fall",
    "check_health",
    "agent_rise",
    "agent_fall",
    "agent_health",
    "addr",
    "cookie",
    "mode",
    "algo",
    "conn_rate",
    "conn_rate_max",
    "conn_tot",
    "intercepted",
    "dcon",
    "dses",
    "wrew",
    "connect",
    "reuse",
    "cache_lookups",
    "cache_hits",
    "srv_icur",
    "src_ilim",
    "qtime_max",
    "ctime_max",
    "rtime_max",
    "ttime_max",
    "eint",
    "idle_conn_cur",
    "safe_conn_cur",
    "used_conn_cur",
    "need_conn_est",
    "uweight",
];

/// The subject of a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowId<'a> {
    /// Number of the proxy: frontends first, then backends.
    pub iid: u64,
    /// Name of the proxy.
    pub proxy: &'a str,
    pub kind: RowKind,
    /// Number of the server in the proxy, from 1; 0 for other rows.
    pub sid: u64,
}

/// Kinds of rows, with HAProxy's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKind {
    Frontend = 1,
    Backend = 2,
    Server = 4,
}

/// The whole table, with its head.
pub(super) fn table(figures: &Figures, seen: &SeenOfAll) -> Vec<u8> {
    part(figures, seen, |_| true)
}

/// The selected rows of the table, with its head.
pub(super) fn part(
    figures: &Figures,
    seen: &SeenOfAll,
    is_wanted: impl Fn(&RowId<'_>) -> bool,
) -> Vec<u8> {
    let now = Instant::now();
    let mut out = Vec::from(*b"# ");
    out.extend_from_slice(FIELDS.join(",").as_bytes());
    out.extend_from_slice(b",\n");
    let row = |iid, proxy, kind, sid| RowId {
        iid,
        proxy,
        kind,
        sid,
    };
    let listeners = figures.listeners.iter().zip(&seen.listeners);
    for ((listener, seen), iid) in listeners.zip(1..) {
        if is_wanted(&row(iid, &listener.name, RowKind::Frontend, 0)) {
            let mut row = frontend(listener, iid);
            row.traffic(seen, listener.open, ["req_rate", "req_rate_max"]);
            row.write(&mut out);
        }
    }
    let first_backend = 1 + figures.listeners.len() as u64;
    let upstreams = figures.upstreams.iter().zip(first_backend..);
    for (((upstream, iid), seen), of_endpoints) in
        upstreams.zip(&seen.upstreams).zip(&seen.endpoints)
    {
        let endpoints = upstream.endpoints.iter().zip(of_endpoints);
        for ((endpoint, seen), sid) in endpoints.zip(1..) {
            if !is_wanted(&row(iid, &upstream.name, RowKind::Server, sid)) {
                continue;
            }
            let mut row = server(endpoint);
            row.text("pxname", &upstream.name);
            row.text("svname", &endpoint.name);
            row.number("iid", iid);
            row.number("sid", sid);
            row.seen(seen, u64::from(endpoint.in_flight), now);
            row.write(&mut out);
        }
        if is_wanted(&row(iid, &upstream.name, RowKind::Backend, 0)) {
            let mut row = backend(upstream, iid);
            let most_waiting = u64::from(seen.traffic.most.waiting);
            row.number("qmax", most_waiting.max(upstream.waiting));
            row.number("chkdown", u64::from(seen.uptime.downs));
            row.seen(seen, upstream.in_flight, now);
            row.write(&mut out);
        }
    }
    out
}

fn frontend(listener: &ListenerFigures, iid: u64) -> Row {
    let mut row = Row::default();
    row.text("pxname", &listener.name);
    row.text("svname", "FRONTEND");
    row.text("status", frontend_state(listener));
    row.number("iid", iid);
    row.number("sid", 0);
    row.number("type", 0);
    row.number("scur", listener.open);
    row.maybe("slim", listener.connections_limit.map(u64::from));
    row.number("stot", listener.connections);
    row.number("conn_tot", listener.connections);
    row.number("ereq", request_errors(&listener.exchanges));
    row.exchanges(&listener.exchanges);
    row
}

fn server(endpoint: &EndpointFigures) -> Row {
    let mut row = Row::default();
    row.number("type", 2);
    row.text("status", server_state(endpoint));
    row.number("scur", u64::from(endpoint.in_flight));
    row.maybe("slim", endpoint.max_in_flight.map(u64::from));
    row.number("stot", endpoint.attempts);
    row.number("lbtot", endpoint.attempts);
    row.number("bin", endpoint.bytes_out);
    row.number("bout", endpoint.bytes_in);
    row.number("econ", endpoint.connect_failures);
    row.number("eresp", response_errors(endpoint));
    row.number("weight", whole_weight(endpoint.effective_weight));
    row.number("uweight", u64::from(endpoint.weight));
    row.maybe("throttle", throttle(endpoint));
    row.number("act", 1);
    row.number("bck", 0);
    row.number("chkdown", went_down(endpoint));
    if let Some(probe) = &endpoint.last_probe {
        row.text("check_status", check_status(probe.end));
        row.maybe("check_code", probe.status.map(u64::from));
        row.number("check_duration", probe.took_us / 1_000);
        row.text("last_chk", &probe.answer);
    }
    row.number("connect", connection_attempts(endpoint));
    row.number("reuse", endpoint.reuses);
    row.number("srv_icur", endpoint.idle);
    row.number("used_conn_cur", u64::from(endpoint.in_flight));
    row.responses(&endpoint.status);
    row
}

fn backend(upstream: &UpstreamFigures, iid: u64) -> Row {
    let mut row = Row::default();
    row.text("pxname", &upstream.name);
    row.text("svname", "BACKEND");
    row.text("status", backend_state(upstream));
    row.text("algo", upstream.balance);
    row.number("iid", iid);
    row.number("sid", 0);
    row.number("type", 1);
    row.number("qcur", upstream.waiting);
    row.number("scur", upstream.in_flight);
    row.number("stot", upstream.exchanges.requests);
    row.number("econ", sum(upstream, |it| it.connect_failures));
    row.number("eresp", sum(upstream, response_errors));
    row.number("wretr", upstream.retries);
    row.number("weight", whole_weight(active_weight(upstream)));
    row.number("act", upstream.eligible as u64);
    row.number("bck", 0);
    row.number("lbtot", sum(upstream, |it| it.attempts));
    row.number("connect", sum(upstream, connection_attempts));
    row.number("reuse", sum(upstream, |it| it.reuses));
    row.exchanges(&upstream.exchanges);
    row
}

/// A row in progress: the known fields, in any order.
#[derive(Debug, Default)]
struct Row {
    fields: Vec<(&'static str, String)>,
}

impl Row {
    fn text(&mut self, field: &'static str, value: &str) {
        self.fields.push((field, quoted(value)));
    }

    fn number(&mut self, field: &'static str, value: u64) {
        self.fields.push((field, value.to_string()));
    }

    fn maybe(&mut self, field: &'static str, value: Option<u64>) {
        if let Some(value) = value {
            self.number(field, value);
        }
    }

    fn seen(&mut self, seen: &Seen, in_flight: u64, now: Instant) {
        self.traffic(&seen.traffic, in_flight, ["rate", "rate_max"]);
        self.number("lastchg", seen.uptime.unchanged(now).as_secs());
        self.number("downtime", seen.uptime.downtime(now).as_secs());
    }

    /// The figures of the looks, with the exchanges in flight now, which may be newer. The names
    /// are those of the rate and its maximum.
    fn traffic(&mut self, traffic: &Traffic, in_flight: u64, [rate, most]: [&'static str; 2]) {
        self.number("smax", u64::from(traffic.most.in_flight).max(in_flight));
        self.number(rate, u64::from(traffic.last_second));
        self.number(most, u64::from(traffic.most.requests));
    }

    fn exchanges(&mut self, exchanges: &ExchangeFigures) {
        self.number("bin", exchanges.bytes_in);
        self.number("bout", exchanges.bytes_out);
        self.number("req_tot", exchanges.requests);
        self.number("cli_abrt", client_aborts(exchanges));
        self.number("srv_abrt", server_aborts(exchanges));
        self.responses(&exchanges.status);
    }

    fn responses(&mut self, status: &StatusFigures) {
        let names = [
            "hrsp_other",
            "hrsp_1xx",
            "hrsp_2xx",
            "hrsp_3xx",
            "hrsp_4xx",
            "hrsp_5xx",
        ];
        for (name, count) in names.into_iter().zip(status.0) {
            self.number(name, count);
        }
    }

    /// Writes the row, with the fields that all rows have.
    fn write(mut self, out: &mut Vec<u8>) {
        self.number("pid", 1);
        self.text("mode", "http");
        for field in FIELDS {
            let known = self.fields.iter().find(|(name, _)| *name == field);
            out.extend_from_slice(known.map_or("", |(_, value)| value).as_bytes());
            out.push(b',');
        }
        out.push(b'\n');
    }
}

/// A value that can't break its row: quoted if needed, and without control characters.
fn quoted(value: &str) -> String {
    let value = value.replace(char::is_control, "?");
    if value.contains([',', '"']) {
        format!("\"{}\"", value.replace('"', "\"\""))
    } else {
        value
    }
}
