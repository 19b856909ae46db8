//! `evenkeel-lab pinned`: becomes another program on given cores, which ends together with its
//! parent.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::bench::process::stay_on;

/// Options of `evenkeel-lab pinned`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A core to stay on; may be given more than once.
    #[arg(long = "core", required = true)]
    cores: Vec<usize>,
    /// The folder of a control group to enter.
    #[arg(long)]
    group: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Pins this process and becomes the program; returns only if it can't.
///
/// # Errors
/// No such core, group or program.
pub fn run(options: &Options) -> io::Result<std::convert::Infallible> {
    if let Some(group) = &options.group {
        fs::write(group.join("cgroup.procs"), std::process::id().to_string())?;
    }
    stay_on(&options.cores)?;
    set_parent_process_death_signal(Some(Signal::TERM))?;
    let (program, arguments) = options
        .command
        .split_first()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Err(Command::new(program).args(arguments).exec())
}
