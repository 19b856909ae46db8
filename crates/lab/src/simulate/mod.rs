//! `evenkeel-lab simulate`: the proxy's policy under virtual time.
//!
//! The dispatcher and the balancers are those of the proxy; clients, origins and time are
//! simulated. A run depends on its seed only.
//! In the order clients, proxy, origins: [`workload`], [`proxy`], [`origin`]. [`simulation`]
//! joins them, [`measure`] counts, [`scenarios`] defines the runs and their requirements.

pub mod clock;
mod draw;
pub mod measure;
pub mod origin;
pub mod policies;
pub mod proxy;
pub mod report;
mod request;
pub mod results;
pub mod scenarios;
pub mod setting;
pub mod simulation;
#[cfg(test)]
mod validation;
pub mod watch;
pub mod workload;

use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use evenkeel_policy::balance::Balance;
use measure::Figures;
use results::{CaseResult, Row, ScenarioResult};
use scenarios::{Case, Scenario};

/// Options of `evenkeel-lab simulate`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only this scenario; may be given more than once.
    #[arg(long = "scenario", value_parser = scenario)]
    scenarios: Vec<Scenario>,
    /// Only these balancers.
    #[arg(long = "balance", value_delimiter = ',')]
    balancers: Vec<String>,
    /// Seed; the same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder of the plots.
    #[arg(long, default_value = "simulate-out")]
    out: PathBuf,
}

fn scenario(name: &str) -> Result<Scenario, String> {
    let found = scenarios::ALL.iter().find(|it| it.name == name);
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = scenarios::ALL.iter().map(|it| it.name).collect();
        format!("there are {}", names.join(", "))
    })
}

/// Runs the scenarios, and returns whether all their requirements hold.
///
/// # Errors
/// The plots can't be written.
pub fn run(options: &Options) -> io::Result<bool> {
    std::fs::create_dir_all(&options.out)?;
    let scenarios = match options.scenarios.as_slice() {
        [] => scenarios::ALL,
        some => some,
    };
    let wants = |balance: &Balance| {
        options.balancers.is_empty() || options.balancers.iter().any(|it| it == balance.word())
    };
    let balancers: Vec<Balance> = Balance::ALL.iter().copied().filter(wants).collect();
    println!("seed {}", options.seed);
    let mut all_hold = true;
    for scenario in scenarios {
        let result = run_scenario(scenario, &balancers, options.seed);
        for case in &result.cases {
            print!("{}", case.table());
        }
        if result.cases.len() > 3 {
            print!("{}", result.grid());
        }
        let (text, verdicts) = result.verdicts(scenario);
        print!("{text}");
        all_hold &= verdicts.iter().all(|it| it.passes() != Some(false));
        draw::draw(scenario.name, &result, &options.out)?;
    }
    Ok(all_hold)
}

/// Runs every balancer in every variant of every case, on all processors.
fn run_scenario(scenario: &Scenario, balancers: &[Balance], seed: u64) -> ScenarioResult {
    let cases = (scenario.cases)();
    let mut runs = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        for variant in &case.variants {
            runs.extend(balancers.iter().map(|&balance| (at, variant, balance)));
        }
    }
    let figures: Vec<OnceLock<Figures>> = runs.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed))
                    && let Some((case, variant, balance)) = runs.get(at)
                {
                    let setting = &cases[*case].setting;
                    figures[at]
                        .get_or_init(|| simulation::simulate(setting, &variant.of(*balance), seed));
                }
            });
        }
    });
    let without_rows = |case: &Case| CaseResult {
        name: case.name,
        title: case.title.clone(),
        rows: Vec::new(),
    };
    let mut results: Vec<CaseResult> = cases.iter().map(without_rows).collect();
    for ((at, variant, balance), figures) in runs.iter().zip(figures) {
        let row = figures.into_inner().map(|figures| Row {
            balancer: balance.word(),
            variant: variant.label,
            figures,
        });
        results[*at].rows.extend(row);
    }
    ScenarioResult { cases: results }
}
