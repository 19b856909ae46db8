//! The page's data at one moment, in transit: a row of numbers for each object, so that a message
//! holds only the rows that have changed.

use std::fmt::Write;
use std::sync::Arc;

use serde::Serialize;

use crate::config::{Config, Limit};
use crate::files::Disks;
use crate::handler;
use crate::observe::events::Event;
use crate::observe::figures::{EndpointStatus, Figures};

/// Names of the columns of each kind of row, in order.
///
/// - Times are in microseconds; -1 stands for no limit.
/// - `requests` and `errors`, `hot` and `cold`, and `reads` cover the last second. For a cache,
///   `requests` asked it, and `errors` are those that it did not answer.
/// - `hits` to `bypasses`, `evicted` and the requests to tiers of a cache cover the last minute.
///   `saved` is bytes a second, and `age_ms` the mean.
/// - Counts of limits cover the last minute; `keys` is -1 until the first count.
/// - A column in `_ms` beside a count is the time of its last growth, since 1970; 0 if it never
///   grew.
#[derive(Debug, Serialize)]
pub(super) struct Columns {
    all: [&'static str; 23],
    listeners: [&'static str; 20],
    routes: [&'static str; 10],
    disks: [&'static str; 6],
    caches: [&'static str; 26],
    tiers: [&'static str; 4],
    caching: [&'static str; 7],
    limits: [&'static str; 5],
    upstreams: [&'static str; 16],
    endpoints: [&'static str; 15],
    probes: [&'static str; 4],
}

const COLUMNS: Columns = Columns {
    all: [
        "draining",
        "uptime_ms",
        "requests",
        "errors",
        "minute_requests",
        "minute_errors",
        "p50",
        "p99",
        "hour_p50",
        "hour_p99",
        "last_p50",
        "last_p99",
        "most_requests",
        "open",
        "in_flight",
        "waiting",
        "bytes_in",
        "bytes_out",
        "loop_lag_p99",
        "log_lines_missing",
        "log_lines_missing_ms",
        "tokens_refused",
        "tokens_refused_ms",
    ],
    listeners: [
        "requests",
        "errors",
        "minute_requests",
        "minute_errors",
        "p50",
        "p99",
        "hour_p50",
        "hour_p99",
        "most_requests",
        "open",
        "limit",
        "refused",
        "bytes_in",
        "bytes_out",
        "certificates_expired",
        "certificates_ending",
        "certificates_unreadable",
        "certificates_missing",
        "certificates_failed",
        "certificate_expiry_s",
    ],
    routes: [
        "requests",
        "errors",
        "minute_requests",
        "minute_errors",
        "p50",
        "p99",
        "hour_p50",
        "hour_p99",
        "hot",
        "cold",
    ],
    disks: [
        "reads",
        "refused",
        "in_flight",
        "waiting",
        "wait_p99",
        "read_p99",
    ],
    caches: [
        "requests",
        "errors",
        "hits",
        "stale",
        "revalidated",
        "misses",
        "bypasses",
        "saved",
        "age_ms",
        "responses",
        "bytes",
        "limit",
        "evicted",
        "purges",
        "fetches",
        "followers",
        "disk_responses",
        "disk_bytes",
        "disk_limit",
        "disk_queue",
        "disk_hits",
        "disk_lookups",
        "damaged",
        "damaged_ms",
        "shared_hits",
        "shared_lookups",
    ],
    tiers: ["disk", "shared", "server", "failure"],
    caching: [
        "hits",
        "stale",
        "revalidated",
        "misses",
        "bypasses",
        "saved",
        "age_ms",
    ],
    limits: ["allowed", "delayed", "refused", "dry_run", "keys"],
    upstreams: [
        "requests",
        "errors",
        "minute_requests",
        "minute_errors",
        "p50",
        "p99",
        "hour_p50",
        "hour_p99",
        "most_requests",
        "in_flight",
        "most_in_flight",
        "waiting",
        "most_waiting",
        "wait_p99",
        "eligible",
        "retries",
    ],
    endpoints: [
        "requests",
        "errors",
        "minute_requests",
        "minute_errors",
        "p50",
        "p99",
        "hour_p50",
        "hour_p99",
        "most_requests",
        "state",
        "weight",
        "effective_weight",
        "in_flight",
        "limit",
        "most_in_flight",
    ],
    probes: ["unix_ms", "passed", "took_us", "answer"],
};

/// The position of a state in the list of words for the column `state`.
pub(super) fn state_index(state: EndpointStatus) -> usize {
    let at = EndpointStatus::ALL.iter().position(|it| *it == state);
    at.unwrap_or(EndpointStatus::ALL.len())
}

/// The part that changes only with names, of the configuration and of endpoints.
#[derive(Debug, Serialize)]
struct Start<'a> {
    version: &'static str,
    pid: u32,
    workers: usize,
    started_unix_ms: u64,
    can_operate: bool,
    columns: Columns,
    states: [&'static str; EndpointStatus::ALL.len()],
    listeners: Vec<Names<'a>>,
    routes: Vec<RouteNames<'a>>,
    disks: Vec<DiskNames<'a>>,
    caches: Vec<&'a str>,
    caching: Vec<CachingNames<'a>>,
    limits: Vec<LimitNames<'a>>,
    upstreams: Vec<UpstreamNames<'a>>,
}

#[derive(Debug, Serialize)]
struct RouteNames<'a> {
    name: &'a str,
    /// Its target.
    to: String,
    /// Whether it serves files.
    files: bool,
}

/// A route with a cache.
#[derive(Debug, Serialize)]
struct CachingNames<'a> {
    name: &'a str,
    /// Index of its cache.
    cache: usize,
}

/// A route with limits.
#[derive(Debug, Serialize)]
struct LimitNames<'a> {
    name: &'a str,
    /// The bound of each limit, in a few words.
    bounds: String,
    /// Most keys that all limits together remember.
    entries: u64,
}

#[derive(Debug, Serialize)]
struct DiskNames<'a> {
    name: &'a str,
    max_in_flight: usize,
    queue_max: usize,
}

#[derive(Debug, Serialize)]
struct Names<'a> {
    name: &'a str,
    /// Its address.
    to: String,
}

#[derive(Debug, Serialize)]
struct UpstreamNames<'a> {
    name: &'a str,
    balance: &'static str,
    queue_max: usize,
    probed: bool,
    endpoints: Vec<&'a str>,
}

/// Names, in the order of these figures, and the meaning of the columns, as JSON.
pub(super) fn start_message(
    config: &Config,
    disks: &Disks,
    figures: &Figures,
    started_unix_ms: u64,
) -> String {
    let listener = |it: &'_ crate::config::Listener| it.bind.to_string();
    let start = Start {
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        workers: config.server.workers,
        started_unix_ms,
        can_operate: config.status.as_ref().is_some_and(|it| it.token.is_some()),
        columns: COLUMNS,
        states: EndpointStatus::ALL.map(EndpointStatus::word),
        listeners: (config.listeners.iter())
            .map(|it| Names {
                name: &it.name,
                to: listener(it),
            })
            .collect(),
        routes: (config.routes.iter())
            .map(|it| RouteNames {
                name: &it.name,
                to: handler::label(&it.action, config),
                files: it.action.files().is_some(),
            })
            .collect(),
        disks: (disks.all().iter())
            .map(|it| DiskNames {
                name: &it.name,
                max_in_flight: config.disk.in_flight,
                queue_max: config.disk.queue_max,
            })
            .collect(),
        caches: config.caches.iter().map(|it| &*it.name).collect(),
        caching: (config.routes.iter())
            .filter_map(|it| {
                Some(CachingNames {
                    name: &it.name,
                    cache: it.cache.as_ref()?.store,
                })
            })
            .collect(),
        limits: (config.routes.iter())
            .filter(|it| !it.limits.is_empty())
            .map(|it| LimitNames {
                name: &it.name,
                bounds: (it.limits.iter().map(Limit::to_string))
                    .collect::<Vec<_>>()
                    .join("; "),
                entries: it.limits.iter().map(|it| u64::from(it.entries)).sum(),
            })
            .collect(),
        upstreams: (config.upstreams.iter().zip(&figures.upstreams))
            .map(|(it, figures)| UpstreamNames {
                name: &it.name,
                balance: it.balance.word(),
                queue_max: it.queue.settings.max,
                probed: it.probe.is_some(),
                endpoints: figures.endpoints.iter().map(|it| &*it.name).collect(),
            })
            .collect(),
    };
    json(&start)
}

/// As JSON. This can't fail, as there is no map with unusual keys.
pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Everything at one moment, as JSON arrays: one for each row.
#[derive(Debug, Default)]
pub(in crate::admin) struct Look {
    /// Counted from 1.
    pub(in crate::admin) number: u64,
    pub(super) unix_ms: u64,
    pub(super) all: String,
    /// Configurations in use, as JSON.
    pub(super) generations: String,
    pub(super) listeners: Vec<String>,
    pub(super) routes: Vec<String>,
    pub(super) disks: Vec<String>,
    pub(super) caches: Vec<String>,
    /// The states of each cache's tiers.
    pub(super) tiers: Vec<String>,
    /// Rows of routes with a cache.
    pub(super) caching: Vec<String>,
    /// Rows of routes with limits.
    pub(super) limits: Vec<String>,
    pub(super) upstreams: Vec<String>,
    /// Rows of endpoints, one upstream after another.
    pub(super) endpoints: Vec<String>,
    pub(super) probes: Vec<String>,
    pub(super) events: Arc<Vec<Event>>,
    /// The description of the rows, as JSON: see [`start_message`].
    pub(in crate::admin) start: Arc<str>,
}

impl Look {
    /// The changes since an earlier look, as JSON; everything without an earlier one.
    pub(in crate::admin) fn message(&self, before: Option<&Look>) -> String {
        let mut text = format!(
            "{{\"number\":{},\"unix_ms\":{},\"all\":{}",
            self.number, self.unix_ms, self.all
        );
        if !self.generations.is_empty() {
            // Writing to a string can't fail.
            let _ = write!(text, ",\"generations\":{}", self.generations);
        }
        let none = Look::default();
        let before = before.unwrap_or(&none);
        for (name, rows, before) in [
            ("listeners", &self.listeners, &before.listeners),
            ("routes", &self.routes, &before.routes),
            ("disks", &self.disks, &before.disks),
            ("caches", &self.caches, &before.caches),
            ("tiers", &self.tiers, &before.tiers),
            ("caching", &self.caching, &before.caching),
            ("limits", &self.limits, &before.limits),
            ("upstreams", &self.upstreams, &before.upstreams),
            ("endpoints", &self.endpoints, &before.endpoints),
            ("probes", &self.probes, &before.probes),
        ] {
            push_changed(&mut text, name, rows, before);
        }
        let known = before.events.last().map_or(0, |event| event.seq);
        let news = self.events.iter().filter(|event| event.seq > known);
        let news: Vec<_> = news.collect();
        if !news.is_empty() {
            // Writing to a string can't fail.
            let _ = write!(text, ",\"events\":{}", json(&news));
        }
        text.push('}');
        text
    }
}

/// The changed rows: index, row, index, row …
fn push_changed(text: &mut String, name: &str, rows: &[String], before: &[String]) {
    let mut is_first = true;
    for (index, row) in rows.iter().enumerate() {
        if before.get(index) == Some(row) {
            continue;
        }
        let _ = if is_first {
            write!(text, ",\"{name}\":[{index},{row}")
        } else {
            write!(text, ",{index},{row}")
        };
        is_first = false;
    }
    if !is_first {
        text.push(']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(number: u64, endpoints: &[&str]) -> Look {
        Look {
            number,
            all: "[\"serve\"]".into(),
            endpoints: endpoints.iter().map(|row| (*row).to_owned()).collect(),
            ..Look::default()
        }
    }

    #[test]
    fn only_what_has_changed() {
        let first = look(1, &["[1]", "[2]", "[3]"]);
        let second = look(2, &["[1]", "[5]", "[6]"]);
        assert_eq!(
            first.message(None),
            r#"{"number":1,"unix_ms":0,"all":["serve"],"endpoints":[0,[1],1,[2],2,[3]]}"#
        );
        assert_eq!(
            second.message(Some(&first)),
            r#"{"number":2,"unix_ms":0,"all":["serve"],"endpoints":[1,[5],2,[6]]}"#
        );
        assert_eq!(
            second.message(Some(&second)),
            r#"{"number":2,"unix_ms":0,"all":["serve"]}"#
        );
    }

    #[test]
    fn every_state_has_a_word() {
        for (index, state) in EndpointStatus::ALL.into_iter().enumerate() {
            assert_eq!(state_index(state), index);
        }
    }
}
