//! The cases about many connections and long times: memory of idle
//! connections, nine thousand at once, and the soak.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use super::process::{Memory, Process};
use super::proxy::{Kind, Proxy, Site};
use super::report::{CaseReport, Limit, Round, Row, Verdict};
use super::rounds::{LoadProcess, Stage, load, measured};
use crate::load::Summary;
use crate::socket::Waiting;

/// Memory is read so long after the last request.
const SETTLE: Duration = Duration::from_secs(3);
/// Milliseconds that the mean may lie above that without a proxy.
const MANY_OVER_DIRECT_MS_MAX: f64 = 2.0;
/// How much more memory than after a tenth of the soak.
const SOAK_GROWTH_MAX: f64 = 1.05;
/// Mostly small, as web traffic is.
const SOAK_SIZES: &str = "44:30,1024:35,4096:20,10240:10,32768:3,102400:2";
/// Requests that a connection of the soak carries on average.
const SOAK_CHURN: u32 = 100;

/// Measures memory with and without idle connections.
///
/// # Errors
/// Something can't be started.
pub fn idle(site: &Site, kinds: &[Kind], connections: usize) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for kind in without_direct(kinds) {
        let stage = Stage::set(site, &[kind], 1, Waiting::Asleep)?;
        let proxy = &stage.proxies[0];
        // One-time allocations at the first requests are not per connection.
        let warm_up = ["--count=2000".into(), "--connections=64".into()];
        load(proxy.address, &warm_up)?;
        sleep(SETTLE);
        let before = memory(proxy);
        let (summary, holder) = hold(proxy, connections)?;
        sleep(SETTLE);
        let with = memory(proxy);
        drop(holder);
        let round = measured(proxy, |_| Ok(summary))?;
        rows.push(Row {
            proxy: kind,
            rounds: vec![round],
            memory: Some([before, with]),
        });
    }
    for row in &mut rows {
        // The proxy was idle while it was read: there is no CPU time to show.
        row.rounds.iter_mut().for_each(|round| round.cpu_us = None);
    }
    Ok(rows)
}

fn hold(proxy: &Proxy, connections: usize) -> io::Result<(Summary, LoadProcess)> {
    let arguments = [format!("--connections={connections}"), "--hold=60".into()];
    let mut holder = LoadProcess::start(proxy.address, &arguments)?;
    Ok((holder.summary()?, holder))
}

/// Bytes per idle connection of each proxy, and the requirement.
pub fn compare_idle(report: &mut CaseReport, connections: usize, bytes_max: Option<f64>) {
    let mut verdicts = Vec::new();
    for row in &report.rows {
        let Some([before, with]) = row.memory else {
            continue;
        };
        let mut push = |word: &str, before: u64, with: u64, limit: Option<f64>| {
            verdicts.push(Verdict {
                what: format!("{word} bytes/connection, {}", row.proxy),
                value: (with as f64 - before as f64) / connections as f64,
                limit: limit.map(Limit::AtMost),
            });
        };
        let limit = bytes_max.filter(|_| row.proxy == Kind::Evenkeel);
        push("PSS", before.pss, with.pss, limit);
        push("RSS", before.rss, with.rss, None);
        push("dirty", before.private_dirty, with.private_dirty, None);
    }
    report.verdicts.extend(verdicts);
    report.require_none_failed();
}

/// Loads many connections with little to do each.
///
/// # Errors
/// Something can't be started.
pub fn many(
    site: &Site,
    kinds: &[Kind],
    connections: usize,
    rate: f64,
    seconds: f64,
) -> io::Result<Vec<Row>> {
    let arguments = [
        format!("--connections={connections}"),
        format!("--rate={rate}"),
        format!("--seconds={seconds}"),
        "--settle=2".into(),
    ];
    let mut rows = Vec::new();
    for kind in kinds {
        let stage = Stage::set(site, &[*kind], 1, Waiting::Asleep)?;
        rows.extend(stage.rounds(1, |proxy| {
            measured(proxy, |address| load(address, &arguments))
        })?);
    }
    Ok(rows)
}

/// Mean latency over that without a proxy, and failures.
pub fn compare_many(report: &mut CaseReport) {
    let Some(direct) = report.row(Kind::Direct) else {
        return report.require_none_failed();
    };
    let direct_us = direct.median(|round| round.mean_us);
    let mut verdicts = Vec::new();
    for row in &report.rows {
        if row.proxy == Kind::Direct {
            continue;
        }
        let over_us = row.median(|round| round.mean_us) - direct_us;
        let required = row.proxy == Kind::Evenkeel;
        verdicts.push(Verdict {
            what: format!("mean over direct, ms, {}", row.proxy),
            value: over_us / 1e3,
            limit: required.then_some(Limit::AtMost(MANY_OVER_DIRECT_MS_MAX)),
        });
    }
    report.verdicts.extend(verdicts);
    report.require_none_failed();
}

/// Loads Evenkeel alone, or the first proxy there is, for long.
///
/// # Errors
/// Something can't be started.
pub fn soak(site: &Site, kinds: &[Kind], count: u64) -> io::Result<Vec<Row>> {
    let mut kinds = without_direct(kinds);
    if kinds.contains(&Kind::Evenkeel) {
        kinds = vec![Kind::Evenkeel];
    }
    kinds.truncate(1);
    let stage = Stage::set(site, &kinds, 1, Waiting::Asleep)?;
    let Some(proxy) = stage.proxies.first() else {
        return Ok(Vec::new());
    };
    let run = |count: u64| {
        let arguments = [
            "--connections=64".into(),
            format!("--count={count}"),
            format!("--sizes={SOAK_SIZES}"),
            format!("--churn={SOAK_CHURN}"),
            "--seconds=3600".into(),
        ];
        measured_with_memory(proxy, &arguments)
    };
    let (tenth, at_tenth) = run(count / 10)?;
    let (rest, at_end) = run(count - count / 10)?;
    Ok(vec![Row {
        proxy: proxy.kind,
        rounds: vec![tenth, rest],
        memory: Some([at_tenth, at_end]),
    }])
}

/// Growth since a tenth of the way, and failures.
pub fn compare_soak(report: &mut CaseReport) {
    let mut verdicts = Vec::new();
    for row in &report.rows {
        let Some([tenth, end]) = row.memory else {
            continue;
        };
        verdicts.push(Verdict {
            what: format!("PSS end / tenth, {}", row.proxy),
            value: end.pss as f64 / tenth.pss.max(1) as f64,
            limit: Some(Limit::AtMost(SOAK_GROWTH_MAX)),
        });
        verdicts.push(Verdict {
            what: format!("PSS at the end, MB, {}", row.proxy),
            value: end.pss as f64 / 1e6,
            limit: None,
        });
        verdicts.push(Verdict {
            what: format!("failed, {}", row.proxy),
            value: row.failed() as f64,
            limit: Some(Limit::AtMost(0.0)),
        });
    }
    report.verdicts.extend(verdicts);
}

/// Loads a proxy. Returns the round, and the memory that the proxy held towards its end.
///
/// # Errors
/// As [`measured`].
pub fn measured_with_memory(proxy: &Proxy, arguments: &[String]) -> io::Result<(Round, Memory)> {
    let run = || measured(proxy, |address| load(address, arguments));
    let (round, memory) = match &proxy.process {
        Some(process) => process.memory_during(run),
        None => (run(), Memory::default()),
    };
    round.map(|round| (round, memory))
}

fn without_direct(kinds: &[Kind]) -> Vec<Kind> {
    let mut kinds = kinds.to_vec();
    kinds.retain(|kind| *kind != Kind::Direct);
    kinds
}

fn memory(proxy: &Proxy) -> Memory {
    proxy
        .process
        .as_ref()
        .map(Process::memory)
        .unwrap_or_default()
}
