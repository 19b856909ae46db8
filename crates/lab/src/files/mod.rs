//! `evenkeel-lab files`: many small files to serve, as an image server has.
//!
//! A count and a seed determine the contents, so that the load knows every path and length
//! without looking at the disk.

pub(crate) mod data_set;

use std::io;
use std::path::PathBuf;

pub use data_set::{DataSet, DataSetEntry, Parameters};

/// Options of `evenkeel-lab files`.
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

/// Options of `evenkeel-lab files make`.
#[derive(Debug, clap::Args)]
struct Make {
    /// The folder to write it to.
    #[arg(long, default_value = "bench-out/files")]
    root: PathBuf,
    /// How many files.
    #[arg(long, default_value_t = 200_000)]
    count: u32,
    /// Seed of the files' lengths and contents.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the command.
///
/// # Errors
/// The errors of the disk.
pub fn run(options: &Options) -> io::Result<()> {
    let Command::Make(make) = &options.command;
    let set = DataSet::make(&make.root, Parameters::new(make.count, make.seed))?;
    println!("{}", set.line());
    Ok(())
}
