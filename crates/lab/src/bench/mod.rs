//! `evenkeel-lab bench`: Evenkeel, the relay, nginx and HAProxy in one run.
//!
//! Proxies run on one core with one worker each, load and origins on another; in
//! the runs with `ab` all of them on both.
//!
//! What counts is the CPU time of the proxy per request, as a ratio within one
//! run: it holds from one machine to the next where requests per second don't.

mod ab;
mod canvas;
mod case;
pub(crate) mod crowd;
pub(crate) mod install;
pub(crate) mod machine;
mod markdown;
mod observed;
pub(crate) mod plot;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod report;
pub(crate) mod rounds;

use std::io;
use std::path::{Path, PathBuf};

pub use case::{Case, Plan, all};
pub use observed::{Watch, watch};
pub use proxy::Kind;
pub use report::CaseReport;

use machine::Machine;
use proxy::Site;
use rounds::Effort;

/// What `evenkeel-lab bench` is told.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    common: CommonOptions,
    /// What to compare.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "direct,relay,evenkeel,nginx,haproxy"
    )]
    proxies: Vec<Kind>,
    /// Requests of the soak, and of the long run of `observed`.
    #[arg(long, default_value_t = 10_000_000)]
    soak_count: u64,
}

/// What every comparison is told.
#[derive(Debug, clap::Args)]
pub(crate) struct CommonOptions {
    /// Only cases whose names begin so; may be given more than once.
    #[arg(long = "case")]
    cases: Vec<String>,
    /// Rounds over the proxies in each case.
    #[arg(long)]
    rounds: Option<usize>,
    /// Fewer and shorter rounds.
    #[arg(long)]
    pub quick: bool,
    /// The program to measure.
    #[arg(long, default_value = "target/release/evenkeel")]
    evenkeel: PathBuf,
    /// Where the figures go.
    #[arg(long, default_value = "bench-out")]
    pub out: PathBuf,
}

impl CommonOptions {
    /// Rounds and seconds as they are by default, or if quick.
    pub fn effort(&self, usual: (usize, f64), quick: (usize, f64)) -> Effort {
        let (rounds, seconds) = if self.quick { quick } else { usual };
        Effort {
            rounds: self.rounds.unwrap_or(rounds),
            seconds,
        }
    }

    /// Whether a case of this name is to be run.
    pub fn wants(&self, case: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|name| case.starts_with(name))
    }

    /// Where the servers run.
    ///
    /// # Errors
    /// Its folder can't be made.
    pub fn site(&self) -> io::Result<Site> {
        Site::new(&self.out, &self.evenkeel)
    }
}

impl Options {
    fn effort(&self) -> Effort {
        self.common.effort((7, 2.0), (3, 0.5))
    }
}

/// Runs the cases and returns whether everything required holds.
///
/// # Errors
/// Something can't be started or written.
pub fn run(options: &Options) -> io::Result<bool> {
    install::ensure(&install::FOR_PROXIES)?;
    let site = options.common.site()?;
    let machine = Machine::look(&["nginx", "haproxy"]);
    println!("{}", machine.line());
    let mut reports = Vec::new();
    for case in all().iter().filter(|case| options.common.wants(&case.name)) {
        let report = run_case(options, &site, case)?;
        print!("{}", report.table());
        reports.push(report);
        write(&options.common.out, &machine, &reports)?;
    }
    Ok(reports.iter().all(CaseReport::passes))
}

/// After every case, so that a run that is broken off leaves what it has.
fn write(out: &Path, machine: &Machine, reports: &[CaseReport]) -> io::Result<()> {
    let figures = serde_json::json!({ "machine": machine, "cases": reports });
    std::fs::write(out.join("bench.json"), serde_json::to_string(&figures)?)?;
    std::fs::write(out.join("bench.md"), markdown::render(machine, reports))?;
    let named = |large: bool| -> Vec<&CaseReport> {
        reports
            .iter()
            .filter(|report| is_kept_load(&report.name))
            .filter(|report| report.name.starts_with("300k") == large)
            .collect()
    };
    plot::cpu(
        "cpu-small",
        "CPU time per request, small answers",
        &named(false),
        out,
    )?;
    plot::cpu(
        "cpu-large",
        "CPU time per request, 300 KB",
        &named(true),
        out,
    )?;
    if let Some(report) = reports.iter().find(|report| report.name == "latency") {
        plot::latency(report, out)?;
    }
    Ok(())
}

/// Whether a case belongs in the plots of CPU time: `1k-64` and its like.
fn is_kept_load(name: &str) -> bool {
    name.split_once('-')
        .is_some_and(|(_, connections)| connections.parse::<u32>().is_ok())
}

fn run_case(options: &Options, site: &Site, case: &Case) -> io::Result<CaseReport> {
    let mut report = CaseReport {
        name: case.name.clone(),
        title: case.title.clone(),
        rows: Vec::new(),
        verdicts: Vec::new(),
    };
    match &case.plan {
        Plan::Load(plan) => {
            report.rows = rounds::run(site, &options.proxies, plan, options.effort())?;
            rounds::compare_cpu(&mut report, case.limits);
        }
        Plan::Ab(plan) => {
            let rounds = options.effort().rounds_of_ab();
            report.rows = ab::run(site, &options.proxies, plan, rounds)?;
            rounds::compare_cpu(&mut report, case.limits);
            ab::compare(&mut report, plan);
        }
        Plan::Idle { connections } => {
            report.rows = crowd::idle(site, &options.proxies, *connections)?;
            crowd::compare_idle(&mut report, *connections);
        }
        Plan::Many {
            connections,
            rate,
            seconds,
        } => {
            report.rows = crowd::many(site, &options.proxies, *connections, *rate, *seconds)?;
            crowd::compare_many(&mut report);
        }
        Plan::Observed(plan) => {
            let count = options.soak_count;
            let (rows, lines) = observed::run(site, plan, options.effort(), count)?;
            report.rows = rows;
            observed::compare(&mut report, &lines);
        }
        Plan::Soak => {
            report.rows = crowd::soak(site, &options.proxies, options.soak_count)?;
            crowd::compare_soak(&mut report);
        }
    }
    Ok(report)
}
