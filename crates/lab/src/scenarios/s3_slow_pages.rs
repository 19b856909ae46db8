//! S3, fast and slow pages: ten origins that serve one request at a time;
//! 95 % of the pages take 5 ms and 5 % half a second.
//!
//! The load draws the pages and the arrivals, so that every entrant gets the
//! same ones at the same instants.

use std::io;

use super::entrant::{Entrant, Settings};
use super::finding::{Finding, Report};
use super::origins::Shape;
use super::trial::{Plan, latency_ms};
use super::{Effort, Setting, words};
use crate::bench::report::Limit;

const ADAPTIVE: &str = "adaptive, limit 1";
const LANES: &str = "adaptive, limit 1, lanes";
const RANDOM: &str = "random";
const TWO_CHOICES: &str = "two-choices";
const SHORTEST: &str = "shortest-queue";
const HAPROXY: &str = "HAProxy maxconn 1";

const ORIGINS: usize = 10;
const FAST_PAGE: &str = "/slow/5";
const SLOW_PAGE: &str = "/slow/500";
/// Path, length of the body, weight.
const PAGES: &str = "/slow/5=4:95,/slow/500=4:5";
const MEAN_SERVICE_S: f64 = 0.95 * 0.005 + 0.05 * 0.5;
/// Slots of the lane. At a load of 90 %, slow pages keep 7.6 of the ten slots busy: the lane
/// needs more than that. The rest must be enough for the 1.4 of the fast pages.
const LANE_SLOTS: u32 = 8;

/// Runs the scenario.
///
/// # Errors
/// An origin or the load can't be started.
pub fn run(setting: &Setting) -> io::Result<Report> {
    let usual = usual(setting.effort).run(&setting.site)?;
    let lanes = lanes(setting.effort).run(&setting.site)?;
    let mut findings = Vec::new();
    for (under, limit) in [(RANDOM, 0.3), (TWO_CHOICES, 0.6)] {
        let what = format!("p99 / {under}, 70 %");
        let limit = Some(Limit::AtMost(limit));
        findings.push(Finding::new(
            what,
            limit,
            &usual,
            ADAPTIVE,
            &[HAPROXY],
            |at| usual.ratio(at, under, latency_ms(99.0)),
        ));
    }
    let what = format!("fast pages' p99 / {SHORTEST}, 90 %");
    let limit = Some(Limit::AtMost(0.1));
    findings.push(Finding::new(what, limit, &lanes, LANES, &[HAPROXY], |at| {
        lanes.ratio(at, SHORTEST, latency_ms(99.0))
    }));
    Ok(Report {
        name: "S3",
        title: "fast and slow pages",
        trials: vec![usual, lanes],
        findings,
    })
}

fn usual(effort: Effort) -> Plan {
    let rounds = effort.of(1, 2);
    Plan {
        title: "10 origins, 5 % of the pages slow, open loop at 70 %: all pages".into(),
        entrants: vec![
            Entrant::evenkeel(ADAPTIVE, limited()),
            Entrant::evenkeel(TWO_CHOICES, Settings::balance("two-choices")),
            Entrant::evenkeel(RANDOM, Settings::balance("random")),
            Entrant::haproxy_maxconn_1(),
        ],
        load: load(0.7, effort.of(2.0, 8.0), effort.of(7.0, 25.0)),
        rounds,
        peer_rounds: rounds,
        ..plan()
    }
}

fn lanes(effort: Effort) -> Plan {
    let rounds = effort.of(1, 2);
    Plan {
        title: "the same at 90 %: fast pages only".into(),
        entrants: vec![
            Entrant::evenkeel(LANES, limited().slow_lane(SLOW_PAGE, LANE_SLOTS)),
            Entrant::evenkeel(SHORTEST, Settings::balance("shortest-queue")),
            Entrant::haproxy_maxconn_1(),
        ],
        load: load(0.9, effort.of(1.0, 5.0), effort.of(5.0, 20.0)),
        page: Some(FAST_PAGE),
        rounds,
        peer_rounds: rounds,
        ..plan()
    }
}

fn plan() -> Plan {
    Plan {
        title: String::new(),
        origins: vec![Shape::of(&["--threads=1"]); ORIGINS],
        entrants: Vec::new(),
        warm_up: words(&format!(
            "--connections=10 --seconds=0.5 --pages={FAST_PAGE}=4"
        )),
        load: Vec::new(),
        page: None,
        rounds: 1,
        peer_rounds: 1,
    }
}

fn limited() -> Settings {
    Settings::balance("adaptive").max_in_flight(1)
}

/// Queues behind slow pages build up over seconds: the warm-up lets them.
fn load(share: f64, warm_up: f64, seconds: f64) -> Vec<String> {
    let rate = share * ORIGINS as f64 / MEAN_SERVICE_S;
    words(&format!(
        "--connections=2000 --rate={rate} --poisson --seconds={seconds} --warm-up={warm_up} --pages={PAGES}"
    ))
}
