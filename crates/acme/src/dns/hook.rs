//! The program that sets records.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use tokio::process::Command;

use super::Record;
use crate::clock::Clock;

/// How long the program may run.
const DEADLINE: Duration = Duration::from_secs(120);

/// Most bytes of its standard error to report.
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
        let failed = |error: io::Error| format!("{program} cannot be started: {error}");
        // A pipe would have to be read meanwhile, and its children may hold it open.
        let told = memfd_create("stderr", MemfdFlags::CLOEXEC).map_err(|it| failed(it.into()))?;
        let told = File::from(told);
        let deadline = self.clock.sleep(DEADLINE);
        let child = Command::new(&self.program)
            .args([what, &record.name, &record.value])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(told.try_clone().map_err(failed)?)
            .kill_on_drop(true)
            .spawn();
        let mut child = child.map_err(failed)?;
        let ended = tokio::select! {
            ended = child.wait() => ended,
            () = deadline => {
                let seconds = DEADLINE.as_secs();
                return Err(format!("{program} {what} was killed: it ran for {seconds} s"));
            }
        };
        let status = ended.map_err(|it| format!("{program} {what}: {it}"))?;
        if status.success() {
            return Ok(());
        }
        let mut text = [0; MAX_TOLD];
        let length = told.read_at(&mut text, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..length]);
        let text = text.trim().replace(char::is_control, " ");
        Err(format!("{program} {what} failed ({status}): {text}"))
    }
}
