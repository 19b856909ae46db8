//! Files that are not in the page cache: requests per second, beside what
//! `fio` reads from the same disk.

use std::io;

use super::Setting;
use super::beside::row;
use super::fio;
use super::server::Filled;
use crate::bench::proxy::Kind;
use crate::bench::report::{CaseReport, Limit, Verdict};
use crate::bench::rounds::{load, measured};

/// Least ratio of Evenkeel's requests per second to those of each peer, and to the reads per
/// second of `fio`.
const PER_SECOND_MIN: [(Kind, Option<f64>); 4] = [
    (Kind::Nginx, Some(1.2)),
    (Kind::NginxThreads, Some(1.0)),
    (Kind::Lighttpd, None),
    (Kind::Fio, Some(0.9)),
];

/// Seed of the first round; later rounds use the following ones. No request is repeated, and
/// all servers get the same ones.
const FIRST_SEED: usize = 100;

/// Random files over this many connections, one server after the other.
///
/// # Errors
/// A process can't be started.
pub fn run(setting: &Setting, connections: usize, report: &mut CaseReport) -> io::Result<()> {
    let mut asking = setting.asking(connections, 0.0);
    asking.push(format!("--seconds={}", setting.effort.seconds));
    for kind in setting.servers() {
        let server = Filled::start(setting, kind)?;
        let measure = |round: usize| {
            let seed = format!("--seed={}", FIRST_SEED + round);
            let arguments = [&asking[..], &[seed]].concat();
            measured(&server.proxy, |address| load(address, &arguments))
        };
        let rounds: io::Result<_> = (0..setting.effort.rounds).map(measure).collect();
        report.rows.push(row(kind, rounds?));
    }
    if setting.kinds.contains(&Kind::Fio) {
        setting.slow_down(true)?;
        let measure = |_| fio::measured(setting);
        let rounds: io::Result<_> = (0..setting.effort.rounds).map(measure).collect();
        report.rows.push(row(Kind::Fio, rounds?));
    }
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
