//! `evenkeel-lab changes`: whether anything is lost while the program changes.
//!
//! The suites are those of [`evenkeel_testkit::changes`]. `make test` runs a part of them.

use std::io;
use std::path::{Path, PathBuf};

use evenkeel_testkit::changes::{Report, large, lists, reloads, upgrades};

/// Options of `evenkeel-lab changes`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only these suites; may be given more than once.
    #[arg(long = "suite", value_enum)]
    suites: Vec<Suite>,
    /// The program to change.
    #[arg(long, default_value = "target/optimised/evenkeel")]
    evenkeel: PathBuf,
    /// Only a part of each: some seconds.
    #[arg(long)]
    quick: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    /// 200 reloads in a minute.
    Reloads,
    /// 50 upgrades.
    Upgrades,
    /// 1,000 changes of lists of endpoints.
    Lists,
    /// 100 reloads of 10,000 hosts.
    ManyHosts,
}

impl Suite {
    const ALL: [Suite; 4] = [
        Suite::Reloads,
        Suite::Upgrades,
        Suite::Lists,
        Suite::ManyHosts,
    ];

    fn run(self, program: &Path, is_quick: bool) -> io::Result<Report> {
        macro_rules! run {
            ($suite:ident) => {{
                let plan = if is_quick {
                    $suite::Plan::PART
                } else {
                    $suite::Plan::WHOLE
                };
                $suite::run(program, &plan)
            }};
        }
        match self {
            Suite::Reloads => run!(reloads),
            Suite::Upgrades => run!(upgrades),
            Suite::Lists => run!(lists),
            Suite::ManyHosts => run!(large),
        }
    }
}

/// Runs the suites, prints their findings, and returns whether all limits hold.
///
/// # Errors
/// A process can't be started.
pub fn run(options: &Options) -> io::Result<bool> {
    let suites = match &*options.suites {
        [] => &Suite::ALL,
        some => some,
    };
    let mut passes = true;
    for suite in suites {
        let report = suite.run(&options.evenkeel, options.quick)?;
        println!("{report}");
        passes &= report.passes();
    }
    Ok(passes)
}
