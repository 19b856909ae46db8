//! Files that are not in the page cache: requests per second, beside what
//! `fio` reads from the same disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Setting;
use super::server::{Room, Servers, filling_len, refill};
use crate::bench::process::{PROXY_CORE, pinned_in};
use crate::bench::proxy::Kind;
use crate::bench::report::{CaseReport, Limit, Round, Verdict};
use crate::bench::rounds::{load, measured};

/// Evenkeel's requests per second, over those of the peers and over the reads
/// per second of `fio`.
const PER_SECOND_MIN: [(Kind, Option<f64>); 4] = [
    (Kind::Nginx, Some(1.2)),
    (Kind::NginxThreads, Some(1.0)),
    (Kind::Lighttpd, None),
    (Kind::Fio, Some(0.9)),
];

/// Random files over so many connections, from a disk as it is or from one that
/// can be read from so many times a second.
///
/// # Errors
/// Something can't be started.
pub fn run(
    setting: &Setting,
    connections: usize,
    room: Room,
    report: &mut CaseReport,
) -> io::Result<()> {
    let servers = Servers::start(setting, &setting.kinds, room)?;
    let mut arguments = setting.asking(connections, 0.0);
    arguments.push(format!("--seconds={}", setting.effort.seconds));
    report.rows = servers.stage.rounds(setting.effort.rounds, |server| {
        if server.kind == Kind::Fio {
            return fio(setting, servers.groups(Kind::Fio));
        }
        refill(setting, server)?;
        measured(server, |address| load(address, &arguments))
    })?;
    for (peer, limit) in PER_SECOND_MIN {
        let ratio = report.ratio(Kind::Evenkeel, peer, |round| Some(round.per_second));
        if let Some(value) = ratio {
            report.verdicts.push(Verdict {
                what: format!("requests/s {} / {peer}", Kind::Evenkeel),
                value,
                limit: limit.map(Limit::AtLeast),
            });
        }
    }
    report.require_none_failed();
    Ok(())
}

/// Reads at random through the page cache: four processes on the servers'
/// core, each with one read at a time of 4, 8, 12 or 16 KB, from one file that
/// is as long as all files together.
///
/// One file, because of hundreds of thousands `fio` keeps more in memory than
/// the group has; it opens nothing, so that it is faster than whoever does.
fn fio(setting: &Setting, groups: &[PathBuf]) -> io::Result<Round> {
    let file = lay_out(setting)?;
    let run = |arguments: &[String]| {
        let mut command = pinned_in(groups, PROXY_CORE, Path::new("fio"))?;
        read(command.args(arguments), &file)
    };
    // Out of the page cache first, then as much as the servers get; what is
    // measured is drawn anew.
    run(&[format!("--io_size={}", filling_len(setting) / JOBS)])?;
    let seconds = setting.effort.seconds;
    let output = run(&[
        "--invalidate=0".into(),
        "--time_based".into(),
        format!("--runtime={seconds}"),
        "--randseed=2".into(),
    ])?;
    let figures: serde_json::Value = serde_json::from_slice(&output)?;
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

/// Processes of `fio`.
const JOBS: u64 = 4;

fn read(command: &mut Command, file: &Path) -> io::Result<Vec<u8>> {
    command
        .arg("--name=cold")
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--numjobs={JOBS}"))
        .args(["--rw=randread", "--bsrange=4k-16k", "--norandommap"])
        .args(["--ioengine=psync", "--direct=0", "--group_reporting"])
        .arg("--output-format=json");
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let message = format!("fio ended with {}: {}", output.status, said.trim());
        return Err(io::Error::other(message));
    }
    Ok(output.stdout)
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
    let status = command.arg(format!("--size={len}")).output()?.status;
    match status.success() {
        true => Ok(file),
        false => Err(io::Error::other(format!("fio ended with {status}"))),
    }
}
