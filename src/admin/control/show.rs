//! The answers of `show` and `rates`: tables, or the same as JSON. This file has the shared
//! parts.

mod cache;
mod certificates;
mod errors;
mod files;
mod generations;
mod queue;
mod rates;
mod sessions;
mod traffic;
mod upstreams;

use crate::metrics::histogram::Distribution;
use crate::metrics::quantity::time;
pub(super) use cache::cache;
pub(super) use certificates::certificates;
pub(super) use errors::errors;
pub(super) use files::files;
pub(super) use generations::generations;
pub(super) use queue::queue;
pub(super) use rates::rates;
pub(super) use sessions::{ask_sessions, sessions};
pub(super) use traffic::{listeners, routes};
pub(super) use upstreams::{upstream, upstreams};

/// Shown for missing values.
const NOTHING: &str = "-";

fn or_nothing(text: Option<String>) -> String {
    text.unwrap_or_else(|| NOTHING.to_owned())
}

/// `12/100`, or `12` without a limit.
fn of_limit(count: impl ToString, limit: Option<impl ToString>) -> String {
    match limit {
        Some(limit) => format!("{}/{}", count.to_string(), limit.to_string()),
        None => count.to_string(),
    }
}

fn quantile(distribution: &Distribution, part: f64) -> String {
    or_nothing((distribution.count() > 0).then(|| time(distribution.quantile(part))))
}

fn silence(workers: usize) -> String {
    match workers {
        0 => String::new(),
        1 => "1 worker did not answer in time: its figures are missing\n".to_owned(),
        count => format!("{count} workers did not answer in time: their figures are missing\n"),
    }
}
