//! The program that sets records.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Command;

use super::Record;
use crate::clock::Clock;

/// How long the program may run.
const DEADLINE: Duration = Duration::from_secs(120);

/// The most that is told of its standard error, in bytes.
const MAX_TOLD: usize = 1000;

/// The program that sets records.
pub(crate) struct Hook {
    program: PathBuf,
    clock: Arc<dyn Clock>,
}

impl Hook {
    pub(crate) fn new(program: PathBuf, clock: Arc<dyn Clock>) -> Self {
        Self { program, clock }
    }

    /// Runs it, and waits until it has ended. Dropping this kills it.
    ///
    /// # Errors
    /// It cannot be started, takes too long, or ends with another exit status than 0.
    pub(crate) async fn run(&self, what: &str, record: &Record) -> Result<(), String> {
        let program = self.program.display();
        let child = Command::new(&self.program)
            .args([what, &record.name, &record.value])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let child = child.map_err(|it| format!("{program} cannot be started: {it}"))?;
        let ended = tokio::select! {
            ended = child.wait_with_output() => ended,
            () = self.clock.sleep(DEADLINE) => {
                let seconds = DEADLINE.as_secs();
                return Err(format!("{program} {what} was killed: it ran for {seconds} s"));
            }
        };
        let ended = ended.map_err(|it| format!("{program} {what}: {it}"))?;
        if ended.status.success() {
            return Ok(());
        }
        let told = &ended.stderr[..ended.stderr.len().min(MAX_TOLD)];
        let told = String::from_utf8_lossy(told);
        let told = told.trim().replace(char::is_control, " ");
        Err(format!(
            "{program} {what} failed ({}): {told}",
            ended.status
        ))
    }
}
