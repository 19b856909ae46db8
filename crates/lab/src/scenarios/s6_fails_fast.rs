//! S6, a server that fails fast: one origin of ten answers 500 within a
//! millisecond, which to a balancer looks like the best of all.

use std::io;

use super::entrant::{Entrant, Settings};
use super::finding::{Finding, Report};
use super::origins::Shape;
use super::trial::{Plan, Trial};
use super::{Setting, words};
use crate::bench::report::Limit;

const ADAPTIVE: &str = "adaptive";
const SHORTEST: &str = "shortest-queue";
const UNGUARDED: &str = "least-connections, no guard";

const GOOD: usize = 9;
const THREADS: f64 = 4.0;
const SERVICE_S: f64 = 0.02;

/// Runs the scenario.
///
/// # Errors
/// An origin or the load can't be started.
pub fn run(setting: &Setting) -> io::Result<Report> {
    let rounds = setting.effort.of(1, 2);
    let seconds = setting.effort.of(3.5, 10.0);
    let rate = 0.6 * GOOD as f64 * THREADS / SERVICE_S;
    let service = format!("--service=fixed:{}ms", SERVICE_S * 1e3);
    let threads = format!("--threads={THREADS}");
    let mut origins = vec![Shape::of(&[&service, &threads]); GOOD];
    origins.push(Shape::of(&[
        &service,
        &threads,
        "--fail-rate=1",
        "--fail-fast=1ms",
    ]));
    let plan = Plan {
        title: "10 origins with 4 threads, 20 ms pages, 60 %: one answers 500 in 1 ms".into(),
        origins,
        entrants: vec![
            Entrant::evenkeel(ADAPTIVE, Settings::balance("adaptive")),
            Entrant::evenkeel(SHORTEST, Settings::balance("shortest-queue")),
            Entrant::evenkeel(
                UNGUARDED,
                Settings::balance("least-connections").with("guard = false"),
            ),
        ],
        // The guard has nothing to learn from a warm-up of nothing.
        warm_up: words("--connections=1 --count=1"),
        load: words(&format!(
            "--connections=500 --rate={rate} --poisson --seconds={seconds}"
        )),
        page: None,
        rounds,
        peer_rounds: rounds,
    };
    let trial = plan.run(&setting.site)?;
    let rows = [
        (ADAPTIVE, Limit::AtMost(0.5)),
        (SHORTEST, Limit::AtMost(0.5)),
        (UNGUARDED, Limit::AtLeast(25.0)),
    ];
    let findings = rows.map(|(label, limit)| {
        let what = format!("failed %, {label}");
        Finding::new(what, Some(limit), &trial, label, &[], |at| {
            failed_percent(&trial, at)
        })
        .about_failures()
    });
    Ok(Report {
        name: "S6",
        title: "a server that fails fast",
        trials: vec![trial],
        findings: findings.into(),
    })
}

fn failed_percent(trial: &Trial, label: &str) -> Option<f64> {
    trial.series(label)?;
    let asked = trial.asked(label).max(1);
    Some(100.0 * trial.failed(label) as f64 / asked as f64)
}

#[cfg(test)]
mod tests {
    use super::super::trial::tests::{round, trial};
    use super::*;

    #[test]
    fn failures_are_a_share_of_all_that_was_asked() {
        let rounds = vec![round(1.0, 1.0, 1.0, 100), round(1.0, 1.0, 1.0, 0)];
        let trial = trial(&[("a", rounds), ("b", Vec::new())]);
        let percent = failed_percent(&trial, "a");
        assert!(percent.is_some_and(|percent| (percent - 100.0 / 3.0).abs() < 1e-9));
        assert_eq!(failed_percent(&trial, "b"), None);
    }
}
