//! Hot files beside requests for cold ones: the effect of the disk on requests that do not need
//! it.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use super::Setting;
use super::flood::Flood;
use super::server::Filled;
use crate::bench::machine::stolen;
use crate::bench::proxy::{Kind, Proxy};
use crate::bench::report::{CaseReport, Limit, Round, Row, Verdict, median};
use crate::bench::rounds::{load, measured};

/// Requests per second for hot files.
const HOT_RATE: f64 = 2_000.0;
/// Connections that ask for hot files, and as many for cold ones.
const CONNECTIONS: usize = 64;
/// Seed of the first flood.
const FIRST_SEED: usize = 100;
/// The 99th percentile of the hot ones with cold ones beside, over that without.
pub const P99_RATIO_MAX: f64 = 1.5;
/// The part of a round that the host may take: a quarter of the hundredth of all
/// requests that the 99th percentile leaves out.
const STOLEN_MAX: f64 = 0.0025;
/// Most repetitions of a round, while the host steals more CPU time than this.
const AGAIN_MAX: usize = 10;
/// Seconds from the flood's beginning to the measured load's, and between
/// their ends.
pub const MARGIN: f64 = 1.0;

/// Connections of the crowd.
const CROWD_CONNECTIONS: usize = 8_000;
/// Requests per second over all of them.
const CROWD_RATE: f64 = 3_000.0;
/// The share of the crowd's requests that ask for hot files.
const CROWD_HOT: f64 = 0.9;
/// The crowd's load lasts this many times the seconds of a round.
const CROWD_ROUNDS: f64 = 5.0;
/// Milliseconds of the crowd's hot ones, on the mean.
const CROWD_MEAN_MS_MAX: f64 = 2.0;

/// Hot files without and with cold ones beside, one server after the other;
/// what failed is that of both.
///
/// # Errors
/// Something can't be started.
pub fn beside(setting: &Setting, report: &mut CaseReport) -> io::Result<()> {
    let seconds = setting.effort.seconds;
    let mut flooding = setting.asking(CONNECTIONS, 0.0);
    flooding.push(format!("--seconds={}", seconds + 2.0 * MARGIN));
    flooding.push("--refusable".into());
    let flooding = |before: usize| {
        // Other files than those that the round before has left in memory.
        let seed = format!("--seed={}", FIRST_SEED + before);
        [&flooding[..], &[seed]].concat()
    };
    for kind in setting.servers() {
        let filled = Filled::start(setting, kind)?;
        let server = &filled.proxy;
        // The first requests for the hot ones read them from the disk.
        hot(setting, server)?;
        let mut rounds = Vec::new();
        let mut ratios = Vec::new();
        let mut cold = Vec::new();
        let mut again = 0;
        for _ in 0..setting.effort.rounds {
            // Failures of repeated measurements count too.
            let mut failed = 0;
            let alone = undisturbed(setting, &mut again, || {
                let (alone, stolen) = hot(setting, server)?;
                failed += alone.failed;
                Ok((alone, stolen))
            })?;
            let mut beside = undisturbed(setting, &mut again, || {
                let flood = Flood::start(server.address, &flooding(cold.len()))?;
                sleep(Duration::from_secs_f64(MARGIN));
                let (beside, stolen) = hot(setting, server)?;
                let flooded = flood.finish()?;
                failed += beside.failed + flooded.errors.total();
                cold.push(flooded.per_second);
                Ok((beside, stolen))
            })?;
            beside.failed = failed;
            ratios.push(p99(&beside) / p99(&alone));
            rounds.push(beside);
        }
        report.rows.push(row(kind, rounds));
        let required = kind == Kind::Evenkeel;
        report.verdicts.push(Verdict {
            what: format!("p99 beside / alone, {kind}"),
            value: median(ratios),
            limit: required.then_some(Limit::AtMost(P99_RATIO_MAX)),
        });
        report.verdicts.push(Verdict {
            what: format!("cold files/s meanwhile, {kind}"),
            value: median(cold),
            limit: None,
        });
        report.verdicts.push(measured_again(kind, again));
    }
    report.require_none_failed();
    Ok(())
}

/// Loads a server with hot files at an even pace. Returns also the CPU time stolen by the host.
///
/// The CPU time covers everything that the server does meanwhile, so it is not shown. Latencies
/// are the server's own: beside a flood from the same core the load is late.
///
/// # Errors
/// The errors of the load.
pub fn hot(setting: &Setting, server: &Proxy) -> io::Result<(Round, Duration)> {
    let mut arguments = setting.asking(CONNECTIONS, 1.0);
    arguments.push(format!("--rate={HOT_RATE}"));
    arguments.push("--kernel-times".into());
    arguments.push(format!("--seconds={}", setting.effort.seconds));
    let stolen_before = stolen();
    let round = measured(server, |address| load(address, &arguments))?;
    let round = Round {
        cpu_us: None,
        ..round
    };
    Ok((round, stolen().saturating_sub(stolen_before)))
}

/// Repeats `attempt` until the host has stolen almost no CPU time in a round.
///
/// If the host takes a core for a hundredth of a round, a hundredth of all requests wait for
/// that, and the 99th percentile measures the host. The last attempt counts in any case. Adds
/// the number of repetitions to `again`.
///
/// # Errors
/// The errors of `attempt`.
pub fn undisturbed<T>(
    setting: &Setting,
    again: &mut usize,
    mut attempt: impl FnMut() -> io::Result<(T, Duration)>,
) -> io::Result<T> {
    let bearable = Duration::from_secs_f64(setting.effort.seconds * STOLEN_MAX);
    for _ in 0..AGAIN_MAX {
        let (measured, stolen) = attempt()?;
        if stolen <= bearable {
            return Ok(measured);
        }
        *again += 1;
    }
    Ok(attempt()?.0)
}

/// How often a round was measured again.
pub fn measured_again(kind: Kind, times: usize) -> Verdict {
    Verdict {
        what: format!("measured again, the host being busy, {kind}"),
        value: times as f64,
        limit: None,
    }
}

/// The 99th percentile, in microseconds.
pub fn p99(round: &Round) -> f64 {
    round.latency_us(99.0).unwrap_or(f64::INFINITY)
}

/// The row of a case that measures no memory.
pub fn row(proxy: Kind, rounds: Vec<Round>) -> Row {
    Row {
        proxy,
        rounds,
        memory: None,
    }
}

/// Thousands of connections with few requests each; the latencies are those of hot files.
///
/// # Errors
/// A process can't be started.
pub fn crowd(setting: &Setting, report: &mut CaseReport) -> io::Result<()> {
    let seconds = setting.effort.seconds * CROWD_ROUNDS;
    let mut arguments = setting.asking(CROWD_CONNECTIONS, CROWD_HOT);
    arguments.push(format!("--rate={CROWD_RATE}"));
    arguments.push(format!("--seconds={seconds}"));
    arguments.push("--settle=2".into());
    for kind in setting.servers() {
        let server = Filled::start(setting, kind)?;
        let round = measured(&server.proxy, |address| {
            load(address, &arguments).map(|summary| summary.of_page("hot"))
        })?;
        let required = kind == Kind::Evenkeel;
        report.verdicts.push(Verdict {
            what: format!("mean of the hot ones, ms, {kind}"),
            value: round.mean_us / 1e3,
            limit: required.then_some(Limit::AtMost(CROWD_MEAN_MS_MAX)),
        });
        report.rows.push(row(kind, vec![round]));
    }
    report.require_none_failed();
    Ok(())
}
