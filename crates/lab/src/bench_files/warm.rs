//! Files that are in the page cache: CPU time per request, in interleaved
//! rounds.

use std::io;
use std::time::Duration;

use super::Setting;
use super::server::start_all;
use crate::bench::proxy::Kind;
use crate::bench::report::{CaseReport, Limit, Verdict};
use crate::bench::rounds::tell_distance;
use crate::files::DataSet;

/// Evenkeel's CPU time for a random file, over that of either peer.
const MEMORY_CPU_MAX: f64 = 0.85;
/// Evenkeel's CPU time for a file of 44 bytes, over nginx's.
const HOT_CPU_MAX: f64 = 0.80;

/// Length of a round. Within it lighttpd opens some 4,500 files.
const SLICE_SECONDS: f64 = 0.08;
/// Before each.
const PAUSE: Duration = Duration::from_millis(300);
/// Rounds for each second of the effort.
const SLICES_PER_SECOND: f64 = 5.0;

/// Random files over this many connections, as fast as possible.
///
/// # Errors
/// A process can't be started.
pub fn memory(setting: &Setting, connections: usize, report: &mut CaseReport) -> io::Result<()> {
    setting.set.read_all()?;
    measure(setting, &setting.asking(connections, 0.0), report)?;
    compare(report, Kind::Nginx, Some(MEMORY_CPU_MAX));
    compare(report, Kind::NginxThreads, None);
    compare(report, Kind::Lighttpd, Some(MEMORY_CPU_MAX));
    report.require_none_failed();
    Ok(())
}

/// One file over this many connections.
///
/// # Errors
/// A process can't be started.
pub fn hot_file(setting: &Setting, connections: usize, report: &mut CaseReport) -> io::Result<()> {
    let (path, len) = (DataSet::HOT_FILE, DataSet::HOT_FILE_LEN);
    let asking = [
        format!("--pages={path}={len}"),
        format!("--connections={connections}"),
    ];
    measure(setting, &asking, report)?;
    compare(report, Kind::Nginx, Some(HOT_CPU_MAX));
    compare(report, Kind::NginxThreads, None);
    compare(report, Kind::Lighttpd, None);
    report.require_none_failed();
    Ok(())
}

/// Short rounds with a pause before each: lighttpd keeps each file open for up to three
/// seconds, and fails without a free descriptor.
fn measure(setting: &Setting, asking: &[String], report: &mut CaseReport) -> io::Result<()> {
    let stage = start_all(setting)?;
    let awake = ["--awake".into(), format!("--seconds={SLICE_SECONDS}")];
    let count = (setting.effort.total_seconds() * SLICES_PER_SECOND).ceil() as usize;
    report.rows = stage.slices(&[asking, &awake].concat(), count, PAUSE)?;
    tell_distance(report);
    Ok(())
}

/// No limit applies if the peer has failures: its answers then cost it more, and its failures
/// less.
fn compare(report: &mut CaseReport, peer: Kind, limit: Option<f64>) {
    let Some(row) = report.row(peer) else {
        return;
    };
    let (word, limit) = match row.failed() {
        0 => ("", limit),
        _ => (", failing", None),
    };
    if let Some(value) = report.cpu_ratio(Kind::Evenkeel, peer) {
        report.verdicts.push(Verdict {
            what: format!("CPU {} / {peer}{word}", Kind::Evenkeel),
            value,
            limit: limit.map(Limit::AtMost),
        });
    }
}
