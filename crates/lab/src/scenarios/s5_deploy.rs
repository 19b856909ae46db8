//! S5, a deploy: all origins go down for five seconds and come back cold, then
//! one after the other is restarted, under an open loop at 60 %.
//!
//! The processes of the origins really end and start again, so that connections break and are
//! refused as in a deployment.

use std::io;
use std::thread::{self, sleep};
use std::time::Duration;

use super::entrant::{Entrant, Settings};
use super::finding::{Finding, Report};
use super::origins::{Origins, Shape};
use super::trial::{Series, Trial, latency_ms};
use super::{Effort, Setting, words};
use crate::bench::proxy::Site;
use crate::bench::report::Limit;
use crate::bench::rounds::{load, measured};

const HOLDS: &str = "adaptive, hold, limit 2";
const FREE: &str = "random, no hold, no limit";

const ORIGINS: usize = 4;
const THREADS: u32 = 2;
const SERVICE_S: f64 = 0.02;
const LOAD: f64 = 0.6;
const OUTAGE_S: f64 = 5.0;
/// Before the outage.
const LEAD: Duration = Duration::from_secs(1);
/// Time from the end of an origin to its next start in a rolling restart.
const RESTART: Duration = Duration::from_millis(500);
/// Between one restart and the next.
const PAUSE: Duration = Duration::from_millis(1000);

/// The events at the origins while the load runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Events {
    /// All down at once, and up again after the outage.
    Outage,
    /// One after the other.
    Rolling,
}

/// Runs the scenario.
///
/// # Errors
/// An origin or the load can't be started.
pub fn run(setting: &Setting) -> io::Result<Report> {
    let rounds = setting.effort.of(1, 2);
    let outage = trial(setting, Events::Outage, rounds)?;
    let rolling = trial(setting, Events::Rolling, rounds)?;
    let none = Some(Limit::AtMost(0.0));
    let failures = |what: &str, trial: &Trial| {
        Finding::new(what, none, trial, HOLDS, &[FREE], |at| {
            trial.series(at).map(|_| trial.failed(at) as f64)
        })
        .about_failures()
    };
    let limit = Some(Limit::AtMost(longest_wait_s()));
    let what = "longest wait in seconds, all origins down";
    let longest = Finding::new(what, limit, &outage, HOLDS, &[FREE], |at| {
        Some(outage.worst(at, latency_ms(100.0))? / 1e3)
    });
    let findings = vec![
        failures("failed, all origins down for 5 s", &outage),
        longest,
        failures("failed, rolling restart", &rolling),
    ];
    Ok(Report {
        name: "S5",
        title: "a deploy",
        trials: vec![outage, rolling],
        findings,
    })
}

/// The outage, and one and a half times what its backlog takes to drain while
/// new requests keep coming.
fn longest_wait_s() -> f64 {
    let drain_s = OUTAGE_S * LOAD / (1.0 - LOAD);
    OUTAGE_S + 1.5 * drain_s
}

fn trial(setting: &Setting, events: Events, rounds: usize) -> io::Result<Trial> {
    let title = match events {
        Events::Outage => {
            "4 origins with 2 threads, 20 ms pages, 60 %: all down for 5 s, back cold"
        }
        Events::Rolling => "the same: restarted one after the other",
    };
    let mut trial = Trial {
        title: title.into(),
        series: Vec::new(),
    };
    for entrant in entrants(setting.effort) {
        let mut series = Series::of(entrant.label, None);
        for _ in 0..rounds {
            series.refused = one(&setting.site, &entrant, events, &mut series)?;
        }
        trial.series.push(series);
    }
    Ok(trial)
}

/// The queue has room for the backlog of an outage, and its timeout is longer than the outage.
/// Entrants without such a queue show that the test detects the difference.
fn entrants(effort: Effort) -> Vec<Entrant> {
    let holds = Settings::balance("adaptive")
        .max_in_flight(THREADS)
        .with("queue = { max = 10000, timeout = \"60s\", hold = true }")
        .with("health = { path = \"/ping\", interval = \"500ms\" }")
        .with("retries = 2");
    let mut entrants = vec![Entrant::evenkeel(HOLDS, holds)];
    if effort == Effort::Full {
        entrants.push(Entrant::evenkeel(FREE, Settings::balance("random")));
    }
    entrants
}

fn shapes() -> Vec<Shape> {
    let service = format!("--service=fixed:{}ms", SERVICE_S * 1e3);
    let threads = format!("--threads={THREADS}");
    let shape = Shape::of(&[&service, &threads, "--cold-factor=3", "--cold-for=2s"]);
    vec![shape; ORIGINS]
}

/// A round has its own origins and proxy, so that nothing learned in one outage helps in the
/// next. Returns why the entrant did not run, if so.
fn one(
    site: &Site,
    entrant: &Entrant,
    events: Events,
    series: &mut Series,
) -> io::Result<Option<String>> {
    let mut origins = Origins::start(site, &shapes())?;
    let proxy = match entrant.start(site, &origins.addresses) {
        Ok(proxy) => proxy,
        Err(error) => return Ok(Some(error.to_string())),
    };
    // The origins get warm, and Evenkeel acquainted with them.
    load(proxy.address, &words("--connections=8 --seconds=2.5"))?;
    let arguments = arguments(events);
    series.add(|| {
        thread::scope(|scope| {
            let loading = scope.spawn(|| measured(&proxy, |address| load(address, &arguments)));
            // Origins end with the thread that starts them: it is this one.
            let told = act(events, &mut origins);
            let round = loading
                .join()
                .map_err(|_| io::Error::other("the thread of the load panicked"))?;
            told.and(round)
        })
    })?;
    Ok(None)
}

fn act(events: Events, origins: &mut Origins) -> io::Result<()> {
    sleep(LEAD);
    match events {
        Events::Outage => {
            for at in 0..origins.len() {
                origins.end(at);
            }
            sleep(Duration::from_secs_f64(OUTAGE_S));
            for at in 0..origins.len() {
                origins.start_one(at)?;
            }
        }
        Events::Rolling => {
            for at in 0..origins.len() {
                origins.end(at);
                sleep(RESTART);
                origins.start_one(at)?;
                sleep(PAUSE);
            }
        }
    }
    Ok(())
}

/// As long as the backlog takes to drain, and the cold origins to get warm.
/// Connections for all that wait at once.
fn arguments(events: Events) -> Vec<String> {
    let capacity = ORIGINS as f64 * f64::from(THREADS) / SERVICE_S;
    let rate = capacity * LOAD;
    let seconds = match events {
        Events::Outage => 10.0,
        Events::Rolling => 7.0,
    };
    words(&format!(
        "--connections=4000 --rate={rate} --poisson --seconds={seconds}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_follows_from_the_load() {
        // At 60 %, the backlog of 5 s takes 7.5 s to drain.
        assert!((longest_wait_s() - 16.25).abs() < 1e-9);
    }
}
