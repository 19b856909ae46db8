//! `evenkeel-lab bench`: Evenkeel, the relay, nginx and HAProxy in one run.
//!
//! Proxies run on one core with one worker each, load and origins on another; in
//! the runs with `ab` all of them on both.
//!
//! The figure that counts is the proxy's CPU time per request, as a ratio within one run. It
//! carries over from one machine to the next; requests per second do not.

mod ab;
mod canvas;
mod case;
pub(crate) mod crowd;
mod distance;
pub(crate) mod install;
pub(crate) mod kernel_threads;
pub(crate) mod machine;
mod markdown;
pub(crate) mod network;
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

/// Options of `evenkeel-lab bench`.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    common: CommonOptions,
    /// Proxies to compare.
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

/// Options of every comparison.
#[derive(Debug, clap::Args)]
pub(crate) struct CommonOptions {
    /// Only cases whose names begin so, with commas between them.
    #[arg(long = "case", value_delimiter = ',')]
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
    /// Folder of the figures.
    #[arg(long, default_value = "bench-out")]
    pub out: PathBuf,
}

impl CommonOptions {
    /// The default rounds and seconds, or those for a quick run.
    pub fn effort(&self, usual: (usize, f64), quick: (usize, f64)) -> Effort {
        let (rounds, seconds) = if self.quick { quick } else { usual };
        Effort {
            rounds: self.rounds.unwrap_or(rounds),
            seconds,
        }
    }

    /// The cases of `all` to run.
    ///
    /// # Errors
    /// A given name is not the beginning of any case's name; the message lists all names.
    pub fn chosen<C>(&self, mut all: Vec<C>, name_of: impl Fn(&C) -> &str) -> io::Result<Vec<C>> {
        let names = &self.cases;
        let is_known = |name: &&String| all.iter().any(|case| name_of(case).starts_with(&**name));
        if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
            let known: Vec<_> = all.iter().map(name_of).collect();
            return Err(io::Error::other(format!(
                "no case begins with `{unknown}`; there are {}",
                known.join(", ")
            )));
        }
        all.retain(|case| {
            let case = name_of(case);
            names.is_empty() || names.iter().any(|name| case.starts_with(name))
        });
        Ok(all)
    }

    /// The folders and cores of the servers.
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
    let cases = options.common.chosen(all(), |case| &case.name)?;
    install::ensure(&install::FOR_PROXIES)?;
    network::settle()?;
    let site = options.common.site()?;
    let machine = Machine::look(&["nginx", "haproxy"]);
    println!("{}", machine.line());
    let mut reports = Vec::new();
    for case in &cases {
        let report = run_case(options, &site, case)?;
        print!("{}", report.table());
        reports.push(report);
        write(&options.common.out, &machine, &reports)?;
    }
    Ok(reports.iter().all(CaseReport::passes))
}

/// Writes the results. Called after every case, so that an interrupted run leaves its results.
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
    let site = &site.with_protocol(case.protocol);
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
        Plan::Idle {
            connections,
            bytes_max,
        } => {
            report.rows = crowd::idle(site, &options.proxies, *connections)?;
            crowd::compare_idle(&mut report, *connections, *bytes_max);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        common: CommonOptions,
    }

    fn chosen(arguments: &[&str]) -> io::Result<Vec<&'static str>> {
        let arguments = [&["bench"], arguments].concat();
        let command: Command = clap::Parser::parse_from(arguments);
        let all = vec!["1k-16", "1k-64", "10k-16", "soak"];
        command.common.chosen(all, |case| case)
    }

    #[test]
    fn cases_are_chosen_by_how_their_names_begin() {
        assert_eq!(chosen(&[]).unwrap().len(), 4);
        let some = chosen(&["--case", "1k-,soak"]).unwrap();
        assert_eq!(some, ["1k-16", "1k-64", "soak"]);
        let same = chosen(&["--case", "soak", "--case", "1k-"]).unwrap();
        assert_eq!(same, some);
    }

    #[test]
    fn a_name_that_is_no_case_is_a_mistake() {
        let mistake = chosen(&["--case", "soak,1m-16"]).unwrap_err();
        assert_eq!(
            mistake.to_string(),
            "no case begins with `1m-16`; there are 1k-16, 1k-64, 10k-16, soak"
        );
    }
}
