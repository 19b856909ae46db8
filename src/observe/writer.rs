//! The thread that writes access logs, so that no worker waits for a disk.
//!
//! Workers hand over whole buffers of lines through a bounded channel. When
//! the disk can't keep up the channel is full, and the worker drops the lines
//! and counts them; when a write fails, they are dropped and counted here.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Buffers that may wait for the writer before lines are dropped.
const BUFFERS_WAITING: usize = 128;

/// A buffer of whole lines for one of the logs.
struct Lines {
    log: usize,
    bytes: Vec<u8>,
}

/// Where workers hand their lines over.
#[derive(Clone, Debug)]
pub struct LogSender {
    lines: SyncSender<Lines>,
}

/// The writer's thread; ends when every sender is gone.
#[derive(Debug)]
pub struct LogWriter {
    thread: JoinHandle<()>,
    lost: Arc<AtomicU64>,
}

enum Sink {
    Stdout(io::Stdout),
    File(File),
}

struct Log {
    path: PathBuf,
    sink: Sink,
    is_failing: bool,
}

/// Opens every log and starts the thread; the index of a path is its log's.
///
/// # Errors
/// A file that can't be opened, named in the error's text.
pub fn start(paths: &[PathBuf]) -> io::Result<(LogSender, LogWriter)> {
    let logs = paths
        .iter()
        .map(|path| {
            let sink = open(path).map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("access log {}: {error}", path.display()),
                )
            })?;
            Ok(Log {
                path: path.clone(),
                sink,
                is_failing: false,
            })
        })
        .collect::<io::Result<Vec<_>>>()?;
    let (sender, receiver) = sync_channel(BUFFERS_WAITING);
    let lost = Arc::new(AtomicU64::new(0));
    let lost_here = lost.clone();
    let thread = std::thread::Builder::new()
        .name("access-log".into())
        .spawn(move || write_all(logs, receiver, &lost_here))?;
    Ok((LogSender { lines: sender }, LogWriter { thread, lost }))
}

fn open(path: &Path) -> io::Result<Sink> {
    if path == Path::new("-") {
        return Ok(Sink::Stdout(io::stdout()));
    }
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    Ok(Sink::File(file))
}

fn write_all(mut logs: Vec<Log>, receiver: Receiver<Lines>, lost: &AtomicU64) {
    for lines in receiver {
        let log = &mut logs[lines.log];
        let written = match &mut log.sink {
            Sink::Stdout(stdout) => stdout.write_all(&lines.bytes).and_then(|()| stdout.flush()),
            Sink::File(file) => file.write_all(&lines.bytes),
        };
        match written {
            Ok(()) if log.is_failing => {
                log.is_failing = false;
                tracing::info!("access log {}: writing again", log.path.display());
            }
            Ok(()) => {}
            Err(error) => {
                lost.fetch_add(line_count(&lines.bytes), Ordering::Relaxed);
                if !log.is_failing {
                    log.is_failing = true;
                    tracing::error!("access log {}: lines are lost: {error}", log.path.display());
                }
            }
        }
    }
}

/// Number of lines in a buffer of whole lines.
pub fn line_count(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

impl LogSender {
    /// Hands lines over without waiting.
    ///
    /// # Errors
    /// Gives them back when the writer is behind.
    pub fn send(&self, log: usize, bytes: Vec<u8>) -> Result<(), Vec<u8>> {
        self.lines
            .try_send(Lines { log, bytes })
            .map_err(|error| match error {
                TrySendError::Full(lines) | TrySendError::Disconnected(lines) => lines.bytes,
            })
    }
}

impl LogWriter {
    /// Lines that could not be written; goes on counting.
    pub fn lost(&self) -> Arc<AtomicU64> {
        self.lost.clone()
    }

    /// Waits until everything handed over is written, or `timeout` is over;
    /// every sender must be gone. Gives the number of lines that are known to
    /// be lost.
    pub fn finish(self, timeout: Duration) -> u64 {
        let deadline = Instant::now() + timeout;
        while !self.thread.is_finished() {
            if Instant::now() >= deadline {
                // A pipe that nobody reads must not keep the process.
                tracing::error!("access log: what waits to be written is lost");
                return self.lost.load(Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.thread.join().is_err() {
            tracing::error!("the access log's writer panicked");
        }
        self.lost.load(Ordering::Relaxed)
    }
}
