//! CPU time per request, in interleaved rounds over the proxies.
//!
//! All proxies run at once and are loaded one at a time, in another order each round. Drift of
//! the machine thus affects all alike, and so do the caches that the proxy before leaves
//! behind. Ratios are taken within a round, and their median is reported.
//!
//! Rounds of closed loops are short, and many: on a machine that is shared, one
//! second differs from the next by more than proxies do. Their connections stay
//! open from one to the next, so that no round pays for opening them.

use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::case::{ConnectionUse, Limits, LoadPlan};
use super::distance::{self, Nearness};
use super::process::{LOAD_CORE, Process, free_address, pinned};
use super::proxy::{Kind, Proxy, Site};
use super::report::{CaseReport, Limit, Round, Row, Verdict};
use crate::load::Summary;
use crate::socket::Waiting;

/// Origins, and the proxies before them.
#[derive(Debug)]
pub struct Stage {
    /// Kept only to end with the stage.
    _origins: Vec<Process>,
    /// In the order of the table.
    pub proxies: Vec<Proxy>,
}

impl Stage {
    /// Starts origins and proxies.
    ///
    /// # Errors
    /// One of them can't be started.
    pub fn set(
        site: &Site,
        kinds: &[Kind],
        origin_count: usize,
        waiting: Waiting,
    ) -> io::Result<Self> {
        let (origins, addresses) = start_origins(site.load_cores, origin_count, waiting)?;
        let proxies = kinds
            .iter()
            .map(|kind| site.start(*kind, &addresses))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            _origins: origins,
            proxies,
        })
    }

    /// Proxies before origins that others started and keep.
    pub fn of(proxies: Vec<Proxy>) -> Self {
        Self {
            _origins: Vec::new(),
            proxies,
        }
    }

    /// Loads every proxy in rounds, after a short load to warm it up.
    ///
    /// # Errors
    /// The load's.
    pub fn load(&self, plan: &LoadPlan, effort: Effort) -> io::Result<Vec<Row>> {
        if plan.rate.is_some() {
            for proxy in &self.proxies {
                load(proxy.address, &load_arguments(plan, effort.seconds / 4.0))?;
            }
            let arguments = load_arguments(plan, effort.seconds);
            return self.rounds(effort.rounds, |proxy| {
                measured(proxy, |address| load(address, &arguments))
            });
        }
        let count = (effort.total_seconds() / SLICE_SECONDS).ceil() as usize;
        self.slices(&load_arguments(plan, SLICE_SECONDS), count, Duration::ZERO)
    }

    /// Loads every proxy in `count` short rounds, each with its own connections
    /// that stay open, after one to warm it up; with `pause` before each. A round
    /// over all of them begins when the cores are near each other, and is measured
    /// again where they did not stay so.
    ///
    /// # Errors
    /// The load's.
    pub fn slices(
        &self,
        arguments: &[String],
        count: usize,
        pause: Duration,
    ) -> io::Result<Vec<Row>> {
        let mut loads = Vec::new();
        for proxy in &self.proxies {
            let mut load = LoadProcess::on_demand(proxy.address, arguments)?;
            load.run()?;
            loads.push(load);
        }
        let mut nearness = Nearness::new()?;
        let mut draws = Draws::of(self.proxies.len());
        let mut rows = self.empty_rows();
        while rows.iter().any(|row| row.rounds.len() < count) {
            let distance = nearness.wait()?;
            let mut figures = Vec::new();
            for &at in draws.next() {
                let proxy = &self.proxies[at];
                std::thread::sleep(pause);
                let load = loads.iter_mut().find(|load| load.to == proxy.address);
                let load = load.expect("each proxy has one");
                let mut round = measured(proxy, |_| load.run())?;
                let is_kept = |percent: f64| SLICE_PERCENTILES.contains(&percent);
                round.percentiles.retain(|it| is_kept(it.percent));
                round.core_distance_ns = Some(distance.as_nanos() as u64);
                figures.push((at, round));
            }
            if nearness.lasted()? {
                for (at, round) in figures {
                    rows[at].rounds.push(round);
                }
            }
        }
        Ok(rows)
    }

    /// Runs `measure` on every proxy `count` times, each time in a new random order. The orders
    /// are the same in every run.
    ///
    /// # Errors
    /// The first error of `measure`.
    pub fn rounds(
        &self,
        count: usize,
        mut measure: impl FnMut(&Proxy) -> io::Result<Round>,
    ) -> io::Result<Vec<Row>> {
        let mut draws = Draws::of(self.proxies.len());
        let mut rows = self.empty_rows();
        for _ in 0..count {
            for &at in draws.next() {
                rows[at].rounds.push(measure(&self.proxies[at])?);
            }
        }
        Ok(rows)
    }

    fn empty_rows(&self) -> Vec<Row> {
        let row = |proxy: &Proxy| Row {
            proxy: proxy.kind,
            rounds: Vec::new(),
            memory: None,
        };
        self.proxies.iter().map(row).collect()
    }
}

/// Orders in which the proxies of a stage are measured.
struct Draws {
    random: fastrand::Rng,
    order: Vec<usize>,
}

impl Draws {
    fn of(count: usize) -> Self {
        Self {
            random: fastrand::Rng::with_seed(0),
            order: (0..count).collect(),
        }
    }

    fn next(&mut self) -> &[usize] {
        self.random.shuffle(&mut self.order);
        &self.order
    }
}

/// Length of a round of a closed loop.
const SLICE_SECONDS: f64 = 0.25;
/// The percentiles to keep of each latency histogram.
const SLICE_PERCENTILES: [f64; 4] = [50.0, 90.0, 99.0, 100.0];

/// A load generator that runs besides, and whose summaries are read as they come.
#[derive(Debug)]
pub struct LoadProcess {
    to: SocketAddr,
    demands: ChildStdin,
    summaries: BufReader<ChildStdout>,
    process: Process,
}

impl LoadProcess {
    /// Starts a load.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(to: SocketAddr, arguments: &[String]) -> io::Result<Self> {
        let mut command = load_command(to, arguments)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command)?;
        let (demands, summaries) = process
            .take_pipes()
            .ok_or_else(|| io::Error::other("load has no pipes"))?;
        Ok(Self {
            to,
            demands,
            summaries: BufReader::new(summaries),
            process,
        })
    }

    /// A load that keeps its connections between one round and the next.
    fn on_demand(to: SocketAddr, arguments: &[String]) -> io::Result<Self> {
        let arguments = [arguments, &["--on-demand".into()]].concat();
        Self::start(to, &arguments)
    }

    /// Makes it yield to every other load on its core.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn yield_to_others(&self) -> io::Result<()> {
        self.process.yield_to_others()
    }

    /// Runs a load on demand once.
    fn run(&mut self) -> io::Result<Summary> {
        self.demands.write_all(b"\n")?;
        self.summary()
    }

    /// Waits for its next summary.
    ///
    /// # Errors
    /// It said nothing.
    pub fn summary(&mut self) -> io::Result<Summary> {
        let mut line = String::new();
        self.summaries.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }
}

/// Starts origins on `cores` and waits until they accept.
///
/// # Errors
/// One of them can't be started.
pub fn start_origins(
    cores: &[usize],
    count: usize,
    waiting: Waiting,
) -> io::Result<(Vec<Process>, Vec<SocketAddr>)> {
    let mut origins = Vec::new();
    let mut addresses = Vec::new();
    for _ in 0..count {
        let address = free_address()?;
        let mut arguments = vec!["origin".into(), format!("--listen={address}")];
        if waiting == Waiting::Awake {
            arguments.push("--awake".into());
        }
        let mut origin = Process::start_lab(cores, &arguments)?;
        origin.wait_for(address)?;
        origins.push(origin);
        addresses.push(address);
    }
    Ok((origins, addresses))
}

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Rounds for each case.
    pub rounds: usize,
    /// Seconds for each load.
    pub seconds: f64,
}

impl Effort {
    /// Seconds of all rounds together.
    #[must_use]
    pub fn total_seconds(self) -> f64 {
        self.seconds * self.rounds as f64
    }

    /// Rounds of `ab`: where nothing is pinned one run differs from the next by a
    /// fifth, for as long as it lasts.
    #[must_use]
    pub fn rounds_of_ab(self) -> usize {
        self.rounds * 2
    }
}

/// Runs a load in rounds.
///
/// # Errors
/// Something can't be started.
pub fn run(site: &Site, kinds: &[Kind], plan: &LoadPlan, effort: Effort) -> io::Result<Vec<Row>> {
    let stage = Stage::set(site, kinds, 1, plan.waiting())?;
    stage.load(plan, effort)
}

fn load_arguments(plan: &LoadPlan, seconds: f64) -> Vec<String> {
    let mut arguments = vec![
        format!("--connections={}", plan.connections),
        format!("--sizes={}", plan.size),
        format!("--seconds={seconds}"),
    ];
    if plan.connection_use == ConnectionUse::OneRequest {
        arguments.push("--no-keepalive".into());
    }
    if let Some(rate) = plan.rate {
        arguments.push(format!("--rate={rate}"));
    }
    if plan.waiting() == Waiting::Awake {
        arguments.push("--awake".into());
    }
    arguments
}

/// Measures a proxy's CPU time over a load.
///
/// # Errors
/// The errors of the load.
pub fn measured(
    proxy: &Proxy,
    load: impl FnOnce(SocketAddr) -> io::Result<Summary>,
) -> io::Result<Round> {
    let before = proxy.process.as_ref().map(Process::cpu_time);
    let summary = load(proxy.address)?;
    let after = proxy.process.as_ref().map(Process::cpu_time);
    let cpu_us = before.zip(after).map(|(before, after)| {
        after.saturating_sub(before).as_secs_f64() * 1e6 / summary.answered.max(1) as f64
    });
    Ok(Round {
        cpu_us,
        per_second: summary.per_second,
        mean_us: summary.mean_us,
        answered: summary.answered,
        failed: summary.errors.total(),
        percentiles: summary.percentiles,
        core_distance_ns: None,
    })
}

/// Runs the load generator on its core and reads its summary.
///
/// # Errors
/// It can't be started, or failed.
pub fn load(address: SocketAddr, arguments: &[String]) -> io::Result<Summary> {
    let output = load_command(address, arguments)?
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!(
            "load ended with {}",
            output.status
        )));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The load generator on its core.
///
/// # Errors
/// This program's own path can't be found.
fn load_command(address: SocketAddr, arguments: &[String]) -> io::Result<Command> {
    let mut command = pinned(&[LOAD_CORE], &std::env::current_exe()?)?;
    command
        .arg("load")
        .arg(format!("--to={address}"))
        .args(arguments);
    Ok(command)
}

/// Says how many rounds there were, and in how many of them the cores were far
/// apart, if in any.
pub fn tell_distance(report: &mut CaseReport) {
    let Some(row) = report.rows.first() else {
        return;
    };
    let far = distance::FAR.as_nanos() as u64;
    let is_far = |round: &&Round| round.core_distance_ns.is_some_and(|it| it > far);
    let count = row.rounds.iter().filter(is_far).count();
    if count > 0 {
        report.verdicts.push(Verdict {
            what: format!("cores far apart, of {} rounds", row.rounds.len()),
            value: count as f64,
            limit: None,
        });
    }
}

/// Compares CPU times per request.
pub fn compare_cpu(report: &mut CaseReport, limits: Limits) {
    tell_distance(report);
    let pairs = [
        (Kind::Evenkeel, Kind::Relay, limits.relay),
        (Kind::Evenkeel, Kind::Nginx, limits.nginx),
        (Kind::Evenkeel, Kind::Haproxy, limits.haproxy),
        (Kind::Nginx, Kind::Relay, None),
        (Kind::Haproxy, Kind::Relay, None),
    ];
    for (over, under, limit) in pairs {
        if let Some(value) = report.cpu_ratio(over, under) {
            report.verdicts.push(Verdict {
                what: format!("CPU {over} / {under}"),
                value,
                limit: limit.map(Limit::AtMost),
            });
        }
    }
}
