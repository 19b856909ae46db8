//! `evenkeel-lab policies`: balancers, queues and guards on real sockets.
//!
//! Each scenario starts shaped origins, Evenkeel with its own configuration, and the peers. It
//! loads them in interleaved rounds, and compares ratios within the run with the requirements.
//! Proxies run on one core, load and origins on another; the origins sleep where real ones
//! work.

mod entrant;
mod finding;
mod origins;
mod s1_unequal_pair;
mod s2_single_threaded;
mod s3_slow_pages;
mod s4_throughput;
mod s5_deploy;
mod s6_fails_fast;
mod stall;
mod trial;

use std::io;
use std::path::PathBuf;

use crate::bench::machine::Machine;
use crate::bench::proxy::Site;

use finding::Report;

/// Options of `evenkeel-lab policies`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only these scenarios, S1 to S6; may be given more than once.
    #[arg(long = "scenario", value_parser = parse_name)]
    scenarios: Vec<&'static str>,
    /// Fewer and shorter rounds.
    #[arg(long)]
    quick: bool,
    /// The program to measure.
    #[arg(long, default_value = "target/release/evenkeel")]
    evenkeel: PathBuf,
    /// Folder of the figures.
    #[arg(long, default_value = "bench-out")]
    out: PathBuf,
}

/// How long a scenario may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// A look.
    Quick,
    /// The length for published figures.
    Full,
}

impl Effort {
    fn of<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// The common inputs of the scenarios.
struct Setting {
    site: Site,
    effort: Effort,
    out: PathBuf,
}

type Scenario = fn(&Setting) -> io::Result<Report>;

const SCENARIOS: [(&str, Scenario); 6] = [
    ("S1", s1_unequal_pair::run),
    ("S2", s2_single_threaded::run),
    ("S3", s3_slow_pages::run),
    ("S4", s4_throughput::run),
    ("S5", s5_deploy::run),
    ("S6", s6_fails_fast::run),
];

/// Runs the scenarios and returns whether everything required holds.
///
/// # Errors
/// An origin or a load can't be started, or a file can't be written.
pub fn run(options: &Options) -> io::Result<bool> {
    let setting = Setting {
        site: Site::new(&options.out, &options.evenkeel)?,
        effort: if options.quick {
            Effort::Quick
        } else {
            Effort::Full
        },
        out: options.out.clone(),
    };
    let machine = Machine::look(&["nginx", "haproxy"]);
    println!("{}", machine.line());
    let mut reports = Vec::new();
    for (name, scenario) in SCENARIOS {
        if !options.scenarios.is_empty() && !options.scenarios.contains(&name) {
            continue;
        }
        let report = scenario(&setting)
            .map_err(|error| io::Error::new(error.kind(), format!("scenario {name}: {error}")))?;
        print!("{}", report.table());
        reports.push(report);
        // Written after each scenario, so that an interrupted run leaves its results.
        let figures = serde_json::json!({ "machine": machine, "scenarios": reports });
        let path = options.out.join("policies.json");
        std::fs::write(path, serde_json::to_string(&figures)?)?;
    }
    Ok(reports.iter().all(Report::passes))
}

fn parse_name(text: &str) -> Result<&'static str, String> {
    let mut names = SCENARIOS.iter().map(|(name, _)| *name);
    names
        .find(|name| name.eq_ignore_ascii_case(text))
        .ok_or_else(|| "expected S1 to S6".to_owned())
}

/// Arguments of a load, from words.
fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_are_found_by_name() {
        assert_eq!(parse_name("s2"), Ok("S2"));
        assert!(parse_name("S7").is_err());
    }
}
