//! The runs with `ab`, as toy-load-balancer measured itself: without separate cores.
//!
//! With a core of their own, `ab` and the origins would fill it. Requests per second would then
//! show their capacity with every proxy, while the proxy's core idles for up to two fifths of
//! the time.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use super::case::{AbPlan, ConnectionUse};
use super::process::pinned;
use super::proxy::{Kind, Site};
use super::report::{CaseReport, Limit, Row, Verdict};
use super::rounds::{Stage, measured};
use crate::load::{Errors, Summary};
use crate::socket::Waiting;

/// Requests of the run before the first round.
const WARM_UP_COUNT: u64 = 200;
/// Requests of the long runs of toy-load-balancer. Only these have a requirement on requests
/// per second.
const LONG_COUNT: u64 = 50_000;

/// Runs `ab` in rounds.
///
/// # Errors
/// Something can't be started.
pub fn run(site: &Site, kinds: &[Kind], plan: &AbPlan, rounds: usize) -> io::Result<Vec<Row>> {
    let kinds: Vec<Kind> = kinds
        .iter()
        .copied()
        .filter(|kind| plan.origins == 1 || !kind.has_one_origin())
        .collect();
    let site = site.clone().with_shared_cores();
    let stage = Stage::set(&site, &kinds, plan.origins, Waiting::Asleep)?;
    let warm_up = AbPlan {
        count: WARM_UP_COUNT,
        ..plan.clone()
    };
    for proxy in &stage.proxies {
        ab(&site, proxy.address, &warm_up)?;
    }
    stage.rounds(rounds, |proxy| {
        measured(proxy, |address| ab(&site, address, plan))
    })
}

/// Compares requests per second, and asks that none failed.
pub fn compare(report: &mut CaseReport, plan: &AbPlan) {
    let required = plan.count >= LONG_COUNT;
    for peer in [Kind::Nginx, Kind::Haproxy] {
        let ratio = report.ratio(Kind::Evenkeel, peer, |round| Some(round.per_second));
        if let Some(value) = ratio {
            report.verdicts.push(Verdict {
                what: format!("requests/s {} / {peer}", Kind::Evenkeel),
                value,
                limit: required.then_some(Limit::AtLeast(1.0)),
            });
        }
    }
    report.require_none_failed();
}

fn ab(site: &Site, address: SocketAddr, plan: &AbPlan) -> io::Result<Summary> {
    let mut command = pinned(site.load_cores, Path::new("ab"))?;
    if plan.connection_use == ConnectionUse::Kept {
        command.arg("-k");
    }
    let output = command
        .args(["-q", "-s", "30", "-n", &plan.count.to_string()])
        .args(["-c", &plan.connections.to_string()])
        .arg(format!("http://{address}/{}", plan.size))
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let complete = figure(&text, "Complete requests:").unwrap_or(0.0) as u64;
    let failed = figure(&text, "Failed requests:").unwrap_or(0.0) as u64
        + figure(&text, "Non-2xx responses:").unwrap_or(0.0) as u64;
    let failed = failed + plan.count.saturating_sub(complete);
    Ok(Summary {
        answered: plan.count.saturating_sub(failed),
        errors: Errors {
            closed: failed,
            ..Errors::default()
        },
        seconds: figure(&text, "Time taken for tests:").unwrap_or(0.0),
        per_second: figure(&text, "Requests per second:").unwrap_or(0.0),
        // The first of two lines of this name is the mean of one request.
        mean_us: figure(&text, "Time per request:").unwrap_or(0.0) * 1e3,
        ..Summary::default()
    })
}

fn figure(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_ab_says() {
        let text = "Complete requests:      500\nFailed requests:        3\n\
                    Requests per second:    12345.67 [#/sec] (mean)\n";
        assert_eq!(figure(text, "Failed requests:"), Some(3.0));
        assert_eq!(figure(text, "Requests per second:"), Some(12345.67));
        assert_eq!(figure(text, "Non-2xx responses:"), None);
    }
}
