//! More cold files asked for than the disk can take: hot ones are not to
//! suffer, and nothing is to be left of it two seconds later.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use super::Setting;
use super::beside::{MARGIN, P99_RATIO_MAX, hot, measured_again, p99, row, undisturbed};
use super::flood::Flood;
use super::server::{Filled, own_memory};
use crate::bench::proxy::{Kind, Proxy};
use crate::bench::report::{CaseReport, Limit, Round, Verdict};
use crate::bench::rounds::load;
use crate::load::Summary;

/// What is offered, over what the server can do.
const OFFERED: f64 = 2.0;
/// Connections that the cold requests come over.
const CONNECTIONS: usize = 1_024;
/// What the first flood is drawn from.
const FIRST_SEED: u64 = 8;
/// Connections over which it is measured what the server can do.
const CAPACITY_CONNECTIONS: usize = 64;
/// The server's own memory at the end of the flood, over that at its beginning.
const MEMORY_RATIO_MAX: f64 = 1.05;
/// So long after the flood, all is as it was before.
const RECOVERY: Duration = Duration::from_secs(2);

/// What one server made of it.
struct Course {
    /// Cold files per second without anything else.
    capacity: f64,
    /// The hot ones before the flood, with it, and after it.
    hot: [Round; 3],
    cold: Summary,
    /// Cold requests answered neither 200 nor 503, in all floods.
    wrong: u64,
    /// The server's own memory at the flood's beginning and its end, in bytes.
    memory: [u64; 2],
    /// How often it was measured again, for the host had taken of the cores.
    again: usize,
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
        report.rows.push(row(kind, vec![course.hot[1].clone()]));
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
    // What is bounded, connections and files that are kept, grows to its bound.
    Flood::start(server.address, &flooding)?.finish()?;
    sleep(RECOVERY);
    // The first requests for the hot ones read them from the disk.
    hot(setting, server)?;
    let mut again = 0;
    let before = undisturbed(&mut again, || hot(setting, server))?;

    let mut seed = FIRST_SEED;
    let mut failed = 0;
    let mut wrong = 0;
    let (mut with, cold, memory, after) = undisturbed(&mut again, || {
        // Not what was asked for before.
        let arguments = [&flooding[..], &[format!("--seed={seed}")]].concat();
        seed += 1;
        let flood = Flood::start(server.address, &arguments)?;
        sleep(Duration::from_secs_f64(MARGIN));
        let memory_before = own_memory(server);
        let (with, stolen_with) = hot(setting, server)?;
        let memory = [memory_before, own_memory(server)];
        let cold = flood.finish()?;
        sleep(RECOVERY);
        let (after, stolen_after) = hot(setting, server)?;
        // Also of what is measured again.
        failed += with.failed;
        // What found no connection free never reached the server.
        wrong += cold.errors.total() - cold.errors.unanswered;
        Ok(((with, cold, memory, after), stolen_with + stolen_after))
    })?;
    with.failed = failed;
    Ok(Course {
        capacity,
        hot: [before, with, after],
        cold,
        wrong,
        memory,
        again,
    })
}

fn compare(report: &mut CaseReport, kind: Kind, course: &Course) {
    let [before, with, after] = course.hot.each_ref().map(p99);
    let cold = &course.cold;
    let mut push = |what: &str, value: f64, limit: Option<Limit>| {
        report.verdicts.push(Verdict {
            what: format!("{what}, {kind}"),
            value,
            limit: limit.filter(|_| kind == Kind::Evenkeel),
        });
    };
    let ratio_max = Some(Limit::AtMost(P99_RATIO_MAX));
    push("p99 with / before", with / before, ratio_max);
    push("p99 after / before", after / before, ratio_max);
    push("cold/s before", course.capacity, None);
    push("cold/s with", cold.per_second, None);
    if kind != Kind::Evenkeel {
        return;
    }
    let answers = (cold.answered + cold.refused).max(1) as f64;
    push(
        "503 of cold, %",
        cold.refused as f64 / answers * 100.0,
        None,
    );
    let none = Some(Limit::AtMost(0.0));
    push("cold neither 200 nor 503", course.wrong as f64, none);
    let [begin, end] = course.memory.map(|len| len as f64);
    let memory_max = Some(Limit::AtMost(MEMORY_RATIO_MAX));
    push("memory end / begin", end / begin.max(1.0), memory_max);
}
