//! Files of many times the memory, in a row: memory must not creep.

use std::io;

use super::Setting;
use super::server::Filled;
use crate::bench::crowd::{compare_soak, measured_with_memory};
use crate::bench::proxy::Kind;
use crate::bench::report::{CaseReport, Row};

/// At once.
const CONNECTIONS: usize = 64;

/// Loads Evenkeel alone, or the first server there is.
///
/// # Errors
/// Something can't be started.
pub fn run(setting: &Setting, report: &mut CaseReport) -> io::Result<()> {
    let mut kinds = setting.servers();
    if kinds.contains(&Kind::Evenkeel) {
        kinds = vec![Kind::Evenkeel];
    }
    let Some(kind) = kinds.first() else {
        return Ok(());
    };
    let filled = Filled::start(setting, *kind)?;
    let server = &filled.proxy;
    let count = setting.long_len / setting.mean_len();
    let run = |count: u64, seed: u64| {
        let mut arguments = setting.asking(CONNECTIONS, 0.0);
        arguments.push(format!("--count={count}"));
        arguments.push("--seconds=36000".into());
        arguments.push(format!("--seed={seed}"));
        measured_with_memory(server, &arguments)
    };
    let (tenth, at_tenth) = run(count / 10, 1)?;
    let (rest, at_end) = run(count - count / 10, 2)?;
    report.rows.push(Row {
        proxy: server.kind,
        rounds: vec![tenth, rest],
        memory: Some([at_tenth, at_end]),
    });
    compare_soak(report);
    Ok(())
}
