//! `evenkeel-lab cache-crash`: whether a cache on a disk survives `kill -9` under load.
//!
//! The suite is [`evenkeel_testkit::caching::crash`]. `make test` runs a part of it.

use std::io;
use std::path::PathBuf;

use evenkeel_testkit::caching::crash::{self, Plan};

/// Options of `evenkeel-lab cache-crash`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The program to kill.
    #[arg(long, default_value = "target/optimised/evenkeel")]
    evenkeel: PathBuf,
    /// The store is a folder in this one; by default, in the one for temporary files.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Pages that are stored first.
    #[arg(long, default_value_t = Plan::WHOLE.pages)]
    pages: u64,
    /// How often the process is killed.
    #[arg(long, default_value_t = Plan::WHOLE.kills)]
    kills: u64,
    /// Size of the store on the disk, in MiB.
    #[arg(long, default_value_t = Plan::WHOLE.disk_mib)]
    disk_mib: u64,
}

/// Fills a store, kills its process, prints the findings, and returns whether all limits hold.
///
/// # Errors
/// A process can't be started.
pub fn run(options: &Options) -> io::Result<bool> {
    let plan = Plan {
        pages: options.pages,
        kills: options.kills,
        disk_mib: options.disk_mib,
        ..Plan::WHOLE
    };
    let folder = options.folder.clone().unwrap_or_else(std::env::temp_dir);
    let report = crash::run(&options.evenkeel, &folder, &plan)?;
    print!("{report}");
    Ok(report.passes())
}
