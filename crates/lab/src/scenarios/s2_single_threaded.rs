//! S2, three mongrels: three origins that serve one request at a time.
//!
//! The run of 100,000 requests takes eleven minutes; in it the peers run a
//! tenth of that. A look is of 5 ms pages instead.
//!
//! The clients begin one after the other, a third of a service time apart. If they began at
//! once, the three origins would finish together ever after. With pages of a fixed length,
//! every tenth client would then wait for three or for four pages, never for anything in
//! between, with any balancer: p95 / p50 of 1.33.

use std::io;

use super::entrant::{Entrant, Settings, slug};
use super::finding::{Finding, Report};
use super::origins::Shape;
use super::trial::{Plan, Trial, latency_ms, over_median, throughput};
use super::{Effort, Setting, words};
use crate::bench::plot::{self, COLOURS, Line, Max, PlotSpan};
use crate::bench::report::{Limit, Round};

const ADAPTIVE: &str = "adaptive, limit 1";
const SHORTEST: &str = "shortest-queue, no limit";
const RANDOM: &str = "random, no limit";
const ONE_ORIGIN: &str = "one origin";
const PEERS: [&str; 4] = [
    "HAProxy maxconn 1",
    "nginx fair",
    "nginx least_conn",
    "nginx round-robin",
];
const ORIGINS: usize = 3;
const ROUNDS_OF_MANY: usize = 10;

/// Runs the scenario.
///
/// # Errors
/// An origin or the load can't be started, or a plot can't be written.
pub fn run(setting: &Setting) -> io::Result<Report> {
    let three = three_clients(setting.effort).run(&setting.site)?;
    let ten = ten_clients(setting.effort, "fixed:20ms").run(&setting.site)?;
    // Nothing is required of these: a look does without.
    let varied = match setting.effort {
        Effort::Quick => None,
        Effort::Full => Some(ten_clients(setting.effort, "exp:20ms").run(&setting.site)?),
    };
    let many = many_requests(setting.effort).run(&setting.site)?;
    let mut findings = findings_of_three(&three);
    for (percent, word, limit) in [(100.0, "max", 1.6), (95.0, "p95", 1.15)] {
        let what = format!("{word} / p50, 10 clients, 20 ms");
        let limit = Some(Limit::AtMost(limit));
        findings.push(Finding::new(what, limit, &ten, ADAPTIVE, &PEERS, |at| {
            // The longest of all rounds counts, and not that of a usual one.
            if percent >= 100.0 {
                ten.worst(at, over_median(percent))
            } else {
                ten.median(at, over_median(percent))
            }
        }));
    }
    let count = count_of_many(setting.effort) * ROUNDS_OF_MANY as u64;
    let page_ms = page_of_many_ms(setting.effort);
    let what = format!("longest / service time, {count} requests");
    let limit = Some(Limit::AtMost(10.0));
    findings.push(Finding::new(what, limit, &many, ADAPTIVE, &PEERS, |at| {
        let longest_ms = many.worst(at, latency_ms(100.0))?;
        Some(longest_ms / page_ms)
    }));
    if let Some(varied) = &varied {
        for percent in [95.0, 99.0] {
            let what = format!("p{percent} ms, 10 clients, exponential 20 ms");
            findings.push(Finding::new(what, None, varied, ADAPTIVE, &PEERS, |at| {
                varied.median(at, latency_ms(percent))
            }));
        }
    }
    let mut trials = vec![three, ten];
    trials.extend(varied);
    trials.push(many);
    for trial in &trials[1..] {
        draw(trial, setting)?;
    }
    Ok(Report {
        name: "S2",
        title: "three mongrels",
        trials,
        findings,
    })
}

fn three_clients(effort: Effort) -> Plan {
    let seconds = effort.of(1.5, 4.0);
    let rounds = effort.of(1, 3);
    let mut entrants = entrants();
    entrants.insert(1, Entrant::evenkeel(RANDOM, Settings::balance("random")));
    entrants.push(Entrant::one_origin(words(&format!(
        "--connections=1 --seconds={seconds}"
    ))));
    Plan {
        title: "fixed 20 ms pages, 3 clients".into(),
        origins: origins("fixed:20ms"),
        entrants,
        warm_up: words("--connections=3 --seconds=0.5"),
        load: words(&format!("--connections=3 --seconds={seconds}")),
        page: None,
        rounds,
        peer_rounds: rounds,
    }
}

fn ten_clients(effort: Effort, service: &str) -> Plan {
    let rounds = effort.of(1, 3);
    let seconds = effort.of(2.0, 4.0);
    let mut entrants = entrants();
    entrants.insert(
        1,
        Entrant::evenkeel(SHORTEST, Settings::balance("shortest-queue")),
    );
    let kind = if service.starts_with("exp") {
        "exponential"
    } else {
        "fixed"
    };
    Plan {
        title: format!("{kind} 20 ms pages, 10 clients"),
        origins: origins(service),
        entrants,
        warm_up: words("--connections=10 --seconds=0.5"),
        load: ten(20.0, &format!("--seconds={seconds}")),
        page: None,
        rounds,
        peer_rounds: rounds,
    }
}

fn count_of_many(effort: Effort) -> u64 {
    effort.of(300, 10_000)
}

/// Of the run in which no request may take ten times as long.
fn page_of_many_ms(effort: Effort) -> f64 {
    effort.of(5.0, 20.0)
}

fn many_requests(effort: Effort) -> Plan {
    let count = count_of_many(effort);
    let page_ms = page_of_many_ms(effort);
    Plan {
        title: format!("fixed {page_ms} ms pages, 10 clients, many requests"),
        origins: origins(&format!("fixed:{page_ms}ms")),
        entrants: entrants(),
        warm_up: words("--connections=10 --seconds=0.3"),
        load: ten(page_ms, &format!("--count={count} --seconds=120")),
        page: None,
        rounds: ROUNDS_OF_MANY,
        peer_rounds: 1,
    }
}

/// Ten clients that begin so that the origins finish in turn.
fn ten(service_ms: f64, rest: &str) -> Vec<String> {
    let stagger = service_ms / 1e3 / ORIGINS as f64;
    words(&format!("--connections=10 --stagger={stagger} {rest}"))
}

fn entrants() -> Vec<Entrant> {
    vec![
        Entrant::evenkeel(ADAPTIVE, Settings::balance("adaptive").max_in_flight(1)),
        Entrant::haproxy_maxconn_1(),
        Entrant::nginx_fair(),
        Entrant::nginx_least_conn(),
        Entrant::nginx_round_robin(),
    ]
}

fn origins(service: &str) -> Vec<Shape> {
    let service = format!("--service={service}");
    vec![Shape::of(&[&service, "--threads=1"]); ORIGINS]
}

fn findings_of_three(trial: &Trial) -> Vec<Finding> {
    let limit = Some(Limit::AtLeast(0.95));
    let what = "throughput / 3 x one origin, 3 clients";
    let one = Finding::new(what, limit, trial, ADAPTIVE, &PEERS, |at| {
        let ratio = trial.ratio(at, ONE_ORIGIN, throughput)?;
        Some(ratio / ORIGINS as f64)
    });
    let limit = Some(Limit::AtLeast(1.3));
    let what = "throughput / random, 3 clients";
    let random = Finding::new(what, limit, trial, ADAPTIVE, &PEERS, |at| {
        trial.ratio(at, RANDOM, throughput)
    });
    vec![one, random]
}

/// Response time by percentile as far as the longest. Of several rounds it
/// shows the worst at each percentile: a median would hide a blip.
fn draw(trial: &Trial, setting: &Setting) -> io::Result<()> {
    let asked: Vec<u64> = trial
        .series
        .iter()
        .map(|at| trial.asked(at.label))
        .collect();
    let most = asked.iter().copied().max().unwrap_or(0);
    let lines: Vec<Line> = trial
        .series
        .iter()
        .zip(COLOURS)
        .map(|(series, colour)| Line {
            label: series.label,
            colour,
            points: worst_by_percentile(&series.rounds),
        })
        .collect();
    let subtitle = format!("{}; the worst of the rounds, uncut", trial.title);
    let name = format!("policies-s2-{}", slug(&trial.title));
    let titles = ["Response time by percentile", &subtitle];
    plot::percentiles(&name, titles, &lines, span(most), &setting.out)
}

/// As many nines as this many requests can resolve, then the maximum.
fn span(requests: u64) -> PlotSpan {
    let nines = (requests.max(1) as f64).log10().floor() as i32;
    PlotSpan {
        nines: nines.clamp(2, 5),
        max: Max::Shown,
    }
}

fn worst_by_percentile(rounds: &[Round]) -> Vec<(f64, f64)> {
    let Some(first) = rounds.first() else {
        return Vec::new();
    };
    let worst = |percent: f64| {
        let figures = rounds.iter().filter_map(|round| round.latency_us(percent));
        figures.max_by(f64::total_cmp)
    };
    let percents = first.percentiles.iter().map(|at| at.percent);
    percents
        .filter_map(|percent| Some((percent, worst(percent)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::trial::tests::round;
    use super::*;

    #[test]
    fn a_blip_in_one_round_shows() {
        let rounds = [
            round(1.0, 10.0, 12.0, 0),
            round(1.0, 11.0, 900.0, 0),
            round(1.0, 10.0, 12.0, 0),
        ];
        assert_eq!(
            worst_by_percentile(&rounds),
            [(50.0, 11_000.0), (100.0, 900_000.0)]
        );
    }

    #[test]
    fn the_scale_ends_where_the_requests_do() {
        assert_eq!(span(600).nines, 2);
        assert_eq!(span(100_000).nines, 5);
        assert_eq!(span(0).nines, 2);
    }
}
