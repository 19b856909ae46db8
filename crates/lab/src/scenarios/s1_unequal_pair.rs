//! S1, the lighttpd benchmark: two origins, one 2.27 times as fast, and
//! sixteen clients that wait for their answers.
//!
//! The origins serve one request at a time, with exponential times. Such a server has as many
//! requests in flight, and so the same throughput, as one that shares its processor among them.

use std::io;

use super::entrant::{Entrant, Settings};
use super::finding::{Finding, Report};
use super::origins::Shape;
use super::trial::{Plan, latency_ms, throughput};
use super::{Setting, words};
use crate::bench::report::Limit;

const RANDOM: &str = "random";
const SHORTEST: &str = "shortest-queue";
const ADAPTIVE: &str = "adaptive";
const LIMITED: &str = "adaptive, limit 2";

/// Runs the scenario.
///
/// # Errors
/// An origin or the load can't be started.
pub fn run(setting: &Setting) -> io::Result<Report> {
    let service = "--service=exp:10ms";
    let seconds = setting.effort.of(1.5, 6.0);
    let rounds = setting.effort.of(2, 4);
    let plan = Plan {
        title: "origins of capacity 1 and 2.27, 10 ms pages, 16 clients".into(),
        origins: vec![
            Shape::of(&[service, "--threads=1"]),
            Shape::of(&[service, "--threads=1", "--capacity=2.27"]),
        ],
        entrants: vec![
            Entrant::evenkeel(RANDOM, Settings::balance("random")),
            Entrant::evenkeel(SHORTEST, Settings::balance("shortest-queue")),
            Entrant::evenkeel(ADAPTIVE, Settings::balance("adaptive")),
            Entrant::evenkeel(LIMITED, Settings::balance("adaptive").max_in_flight(2)),
        ],
        warm_up: words("--connections=16 --seconds=1"),
        load: words(&format!("--connections=16 --seconds={seconds}")),
        page: None,
        rounds,
        peer_rounds: rounds,
    };
    let trial = plan.run(&setting.site)?;
    let rows = [
        (SHORTEST, RANDOM, Limit::AtLeast(1.45)),
        (ADAPTIVE, RANDOM, Limit::AtLeast(1.45)),
        (LIMITED, SHORTEST, Limit::AtLeast(0.97)),
    ];
    let mut findings = Vec::new();
    for (label, under, limit) in rows {
        let what = format!("throughput {label} / {under}");
        findings.push(Finding::new(what, Some(limit), &trial, label, &[], |at| {
            trial.ratio(at, under, throughput)
        }));
    }
    for (label, limit) in [(ADAPTIVE, 1.0), (LIMITED, 0.75)] {
        let what = format!("p99 {label} / {SHORTEST}");
        let limit = Some(Limit::AtMost(limit));
        findings.push(Finding::new(what, limit, &trial, label, &[], |at| {
            trial.ratio(at, SHORTEST, latency_ms(99.0))
        }));
    }
    Ok(Report {
        name: "S1",
        title: "the lighttpd benchmark",
        trials: vec![trial],
        findings,
    })
}
