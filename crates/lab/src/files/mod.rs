//! `evenkeel-lab files`: many small files to serve, as an image server has.
//!
//! What is in them follows from a count and a seed, so that the load knows
//! every path and length without looking at the disk.

pub(crate) mod data_set;

use std::io;
use std::path::PathBuf;

pub use data_set::{DataSet, DataSetEntry, Parameters};

/// What `evenkeel-lab files` is told.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Write a data set, unless it is there already.
    Make(Make),
}

/// What `evenkeel-lab files make` is told.
#[derive(Debug, clap::Args)]
struct Make {
    /// The folder to write it to.
    #[arg(long, default_value = "bench-out/files")]
    root: PathBuf,
    /// How many files.
    #[arg(long, default_value_t = 200_000)]
    count: u32,
    /// What their lengths and contents are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Does what it is told to.
///
/// # Errors
/// The disk's.
pub fn run(options: &Options) -> io::Result<()> {
    let Command::Make(make) = &options.command;
    let set = DataSet::make(&make.root, Parameters::new(make.count, make.seed))?;
    println!("{}", set.line());
    Ok(())
}
