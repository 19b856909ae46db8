//! More requests for cold files than the disk can take. Hot files must not suffer, and no
//! effect may remain two seconds later.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use super::Setting;
use super::beside::{MARGIN, P99_RATIO_MAX, hot, measured_again, p99, row, undisturbed};
use super::flood::Flood;
use super::server::{Filled, own_memory};
use crate::bench::proxy::{Kind, Proxy};
use crate::bench::report::{CaseReport, Limit, Round, Verdict, median};
use crate::bench::rounds::load;
use crate::load::Summary;

/// Offered load, relative to the server's capacity.
const OFFERED: f64 = 2.0;
/// Connections that the cold requests come over.
const CONNECTIONS: usize = 1_024;
/// Seed of the first flood.
const FIRST_SEED: u64 = 8;
/// Number of connections for the measurement of the server's capacity.
const CAPACITY_CONNECTIONS: usize = 64;
/// The server's own memory at the end of the last flood, over that at the
/// beginning of the first.
const MEMORY_RATIO_MAX: f64 = 1.05;
/// Time after the flood until everything must be as before.
const RECOVERY: Duration = Duration::from_secs(2);

/// The results of one server.
struct Course {
    /// Cold files per second without anything else.
    capacity: f64,
    floods: Vec<Flooded>,
    /// How often one was measured again, for the host had taken of the cores.
    again: usize,
}

/// One of the floods.
struct Flooded {
    /// The hot ones before it, with it, and after it.
    hot: [Round; 3],
    cold: Summary,
    /// Cold requests answered neither 200 nor 503, in all attempts to measure it.
    wrong: u64,
    /// The server's own memory at its beginning and its end, in bytes.
    memory: [u64; 2],
}

/// Floods one server after the other.
///
/// # Errors
/// Something can't be started.
pub fn run(setting: &Setting, report: &mut CaseReport) -> io::Result<()> {
    for kind in setting.servers() {
        let server = Filled::start(setting, kind)?;
        let course = flooded(setting, &server.proxy)?;
        compare(report, kind, &course);
        report.verdicts.push(measured_again(kind, course.again));
        let rounds = course.floods.into_iter().map(|it| {
            let [_, with, _] = it.hot;
            with
        });
        report.rows.push(row(kind, rounds.collect()));
    }
    report.require_none_failed();
    Ok(())
}

fn flooded(setting: &Setting, server: &Proxy) -> io::Result<Course> {
    let seconds = setting.effort.seconds;
    let mut asking = setting.asking(CAPACITY_CONNECTIONS, 0.0);
    asking.push(format!("--seconds={seconds}"));
    let capacity = load(server.address, &asking)?.per_second;
    let mut flooding = setting.asking(CONNECTIONS, 0.0);
    flooding.push(format!("--rate={}", capacity * OFFERED));
    flooding.push(format!("--seconds={}", seconds + 2.0 * MARGIN));
    flooding.push("--refusable".into());
    // Everything with a bound, such as connections and kept files, grows to its bound.
    Flood::start(server.address, &flooding)?.finish()?;
    sleep(RECOVERY);
    // The first requests for the hot ones read them from the disk.
    hot(setting, server)?;
    let mut again = 0;
    let mut seed = FIRST_SEED;
    let mut floods = Vec::new();
    for _ in 0..setting.effort.rounds {
        let mut failed = 0;
        let mut wrong = 0;
        let mut flood = undisturbed(setting, &mut again, || {
            // Other files than before.
            let arguments = [&flooding[..], &[format!("--seed={seed}")]].concat();
            seed += 1;
            let (flood, stolen) = flood_once(setting, server, &arguments)?;
            // Failures of repeated measurements count too.
            failed += flood.hot[1].failed;
            wrong += flood.wrong;
            Ok((flood, stolen))
        })?;
        flood.hot[1].failed = failed;
        flood.wrong = wrong;
        floods.push(flood);
    }
    Ok(Course {
        capacity,
        floods,
        again,
    })
}

/// One flood, with the CPU time that the host stole in the worst of its rounds.
fn flood_once(
    setting: &Setting,
    server: &Proxy,
    flooding: &[String],
) -> io::Result<(Flooded, Duration)> {
    let (before, stolen_before) = hot(setting, server)?;
    let flood = Flood::start(server.address, flooding)?;
    sleep(Duration::from_secs_f64(MARGIN));
    let memory_before = own_memory(server);
    let (with, stolen_with) = hot(setting, server)?;
    let memory = [memory_before, own_memory(server)];
    let cold = flood.finish()?;
    sleep(RECOVERY);
    let (after, stolen_after) = hot(setting, server)?;
    let flooded = Flooded {
        hot: [before, with, after],
        // Requests without a free connection never reached the server.
        wrong: cold.errors.total() - cold.errors.unanswered,
        cold,
        memory,
    };
    let stolen = stolen_before.max(stolen_with).max(stolen_after);
    Ok((flooded, stolen))
}

fn compare(report: &mut CaseReport, kind: Kind, course: &Course) {
    let floods = &course.floods;
    let median_of = |figure: fn(&Flooded) -> f64| median(floods.iter().map(figure).collect());
    let mut push = |what: &str, value: f64, limit: Option<Limit>| {
        report.verdicts.push(Verdict {
            what: format!("{what}, {kind}"),
            value,
            limit: limit.filter(|_| kind == Kind::Evenkeel),
        });
    };
    let ratio_max = Some(Limit::AtMost(P99_RATIO_MAX));
    let with_ratio = |it: &Flooded| p99(&it.hot[1]) / p99(&it.hot[0]);
    let after_ratio = |it: &Flooded| p99(&it.hot[2]) / p99(&it.hot[0]);
    push("p99 with / before", median_of(with_ratio), ratio_max);
    push("p99 after / before", median_of(after_ratio), ratio_max);
    push("cold/s before", course.capacity, None);
    push("cold/s with", median_of(|it| it.cold.per_second), None);
    if kind != Kind::Evenkeel {
        return;
    }
    let refused = |it: &Flooded| {
        let answers = (it.cold.answered + it.cold.refused).max(1);
        it.cold.refused as f64 / answers as f64 * 100.0
    };
    push("503 of cold, %", median_of(refused), None);
    let none = Some(Limit::AtMost(0.0));
    let wrong: u64 = floods.iter().map(|it| it.wrong).sum();
    push("cold neither 200 nor 503", wrong as f64, none);
    let begin = floods.first().map_or(0, |it| it.memory[0]);
    let end = floods.last().map_or(0, |it| it.memory[1]);
    let memory_max = Some(Limit::AtMost(MEMORY_RATIO_MAX));
    push(
        "memory end / begin",
        end as f64 / begin.max(1) as f64,
        memory_max,
    );
}
