//! S4, the upstream_fair benchmark: what looking at all six endpoints costs
//! when pages are tiny and five hundred clients ask as fast as they can.

use std::io;

use super::entrant::{Entrant, Settings};
use super::finding::{Finding, Report};
use super::origins::Shape;
use super::trial::{Plan, throughput};
use super::{Setting, words};
use crate::bench::report::Limit;

const FAIR: &str = "fair";
const ROUND_ROBIN: &str = "round-robin";
const SHORTEST: &str = "shortest-queue";
const NGINX_FAIR: &str = "nginx fair";
const NGINX_LEAST_CONN: &str = "nginx least_conn";
const NGINX_ROUND_ROBIN: &str = "nginx round-robin";

/// Runs the scenario.
///
/// # Errors
/// An origin or the load can't be started.
pub fn run(setting: &Setting) -> io::Result<Report> {
    let rounds = setting.effort.of(2, 5);
    let seconds = setting.effort.of(1.0, 2.0);
    let evenkeel = |label| Entrant::evenkeel(label, Settings::balance(label).one_worker());
    let plan = Plan {
        title: "6 origins, 44 B, 500 connections, one worker on one core".into(),
        origins: vec![Shape::Plain; 6],
        entrants: vec![
            evenkeel(FAIR),
            evenkeel(SHORTEST),
            evenkeel(ROUND_ROBIN),
            Entrant::nginx_fair(),
            Entrant::nginx_least_conn(),
            Entrant::nginx_round_robin(),
        ],
        warm_up: words("--connections=500 --sizes=44 --seconds=0.3"),
        load: words(&format!("--connections=500 --sizes=44 --seconds={seconds}")),
        page: None,
        rounds,
        peer_rounds: rounds,
    };
    let trial = plan.run(&setting.site)?;
    // Each against the round-robin of the same program.
    let under = |label: &str| {
        if label.starts_with("nginx") {
            NGINX_ROUND_ROBIN
        } else {
            ROUND_ROBIN
        }
    };
    let beside = [NGINX_FAIR, NGINX_LEAST_CONN, SHORTEST];
    let limit = Some(Limit::AtLeast(0.98));
    let what = "throughput fair / round-robin";
    let by_throughput = Finding::new(what, limit, &trial, FAIR, &beside, |at| {
        trial.ratio(at, under(at), throughput)
    });
    let what = "CPU per request fair / round-robin";
    let by_cpu = Finding::new(what, None, &trial, FAIR, &beside, |at| {
        trial.ratio(at, under(at), |round| round.cpu_us)
    });
    Ok(Report {
        name: "S4",
        title: "the upstream_fair benchmark",
        trials: vec![trial],
        findings: vec![by_throughput, by_cpu],
    })
}
