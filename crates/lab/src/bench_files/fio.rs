//! The pure read rate of a disk, by `fio`, as a measure for the servers.
//!
//! `fio` reads at random past the page cache. Four processes run on the servers' core, each
//! with one read at a time of 4, 8, 12 or 16 KB, from one file as long as all files together.
//! No files are opened.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Setting;
use crate::bench::process::{PROXY_CORE, output_of, pinned};
use crate::bench::report::Round;

/// Reads for the seconds of a round.
///
/// # Errors
/// It can't be started, or failed; the message says how.
pub fn measured(setting: &Setting) -> io::Result<Round> {
    let file = lay_out(setting)?;
    let mut command = pinned(&[PROXY_CORE], Path::new("fio"))?;
    command
        .arg("--name=cold")
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--runtime={}", setting.effort.seconds))
        .args(["--rw=randread", "--bsrange=4k-16k", "--norandommap"])
        .args(["--numjobs=4", "--ioengine=psync", "--direct=1"])
        .args(["--time_based", "--group_reporting"])
        .arg("--output-format=json");
    let figures: serde_json::Value = serde_json::from_slice(&output_of(&mut command)?)?;
    let number = |name: &str| {
        let figure = figures.pointer(&format!("/jobs/0/read/{name}"));
        figure
            .and_then(serde_json::Value::as_f64)
            .ok_or_else(|| io::Error::other(format!("fio says nothing of {name}")))
    };
    Ok(Round {
        per_second: number("iops")?,
        mean_us: number("lat_ns/mean")? / 1e3,
        answered: number("total_ios")? as u64,
        ..Round::default()
    })
}

/// Writes the file that `fio` reads, beside the data set, unless it is there.
fn lay_out(setting: &Setting) -> io::Result<PathBuf> {
    let file = setting.set.root().with_extension("fio");
    let len = setting.set.total_len();
    if fs::metadata(&file).is_ok_and(|it| it.len() == len) {
        return Ok(file);
    }
    let mut command = Command::new("fio");
    command.args(["--name=file", "--rw=write", "--bs=1m", "--end_fsync=1"]);
    command.arg(format!("--filename={}", file.display()));
    output_of(command.arg(format!("--size={len}")))?;
    Ok(file)
}
