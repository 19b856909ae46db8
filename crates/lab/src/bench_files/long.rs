//! Many times what there is memory for, in a row: memory must not creep.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use super::Setting;
use super::server::{Room, Servers, refill};
use crate::bench::crowd::compare_soak;
use crate::bench::process::{Memory, Process};
use crate::bench::proxy::Kind;
use crate::bench::report::{CaseReport, Row};
use crate::bench::rounds::{load, measured};

/// At once.
const CONNECTIONS: usize = 64;
/// Memory is read so long after the last request.
const SETTLE: Duration = Duration::from_secs(3);

/// Loads Evenkeel alone, or the first server there is.
///
/// # Errors
/// Something can't be started.
pub fn run(setting: &Setting, report: &mut CaseReport) -> io::Result<()> {
    let mut kinds = setting.servers();
    if kinds.contains(&Kind::Evenkeel) {
        kinds = vec![Kind::Evenkeel];
    }
    kinds.truncate(1);
    let servers = Servers::start(setting, &kinds, Room::Quarter)?;
    let Some(server) = servers.stage.proxies.first() else {
        return Ok(());
    };
    refill(setting, server)?;
    let count = setting.long_len / setting.mean_len();
    let run = |count: u64, seed: u64| -> io::Result<_> {
        let mut arguments = setting.asking(CONNECTIONS, 0.0);
        arguments.push(format!("--count={count}"));
        arguments.push("--seconds=36000".into());
        arguments.push(format!("--seed={seed}"));
        let round = measured(server, |address| load(address, &arguments))?;
        sleep(SETTLE);
        let memory = server.process.as_ref().map(Process::memory);
        Ok((round, memory.unwrap_or_default()))
    };
    let (tenth, at_tenth): (_, Memory) = run(count / 10, 1)?;
    let (rest, at_end) = run(count - count / 10, 2)?;
    report.rows.push(Row {
        proxy: server.kind,
        rounds: vec![tenth, rest],
        memory: Some([at_tenth, at_end]),
    });
    compare_soak(report);
    Ok(())
}
