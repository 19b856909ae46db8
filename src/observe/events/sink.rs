//! The thread that writes events, so that nobody who has something to say
//! waits for a terminal, a pipe or a disk.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing::Subscriber;
use tracing_subscriber::layer::Context;

use super::line::{self, Look, Said};

/// Lines that may wait for the thread before they are dropped.
const LINES_WAITING: usize = 1024;
/// Longest wait for lines to be written at the program's end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

enum Message {
    Line(String),
    /// Everything before this was written: say so.
    End(SyncSender<()>),
}

/// Keeps the event log going; what was said is written when it is dropped.
#[derive(Debug)]
pub struct EventLog {
    messages: SyncSender<Message>,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Message::Line(_) => "a line",
            Message::End(_) => "the end",
        })
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        let (written, is_written) = sync_channel(1);
        // A reader that is stuck keeps the program from nothing.
        if self.messages.try_send(Message::End(written)).is_ok() {
            let _ = is_written.recv_timeout(END_TIMEOUT);
        }
    }
}

/// Hands events to the thread as lines.
pub(super) struct Layer {
    look: Look,
    messages: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

/// Starts the thread. Where that is impossible, events are written by whoever
/// has something to say.
pub(super) fn start(look: Look) -> (EventLog, Layer) {
    let (messages, receiver) = sync_channel(LINES_WAITING);
    let dropped = Arc::new(AtomicU64::new(0));
    let dropped_there = dropped.clone();
    // Without the thread the channel is closed, which `on_event` notices.
    let _ = std::thread::Builder::new()
        .name("event-log".into())
        .spawn(move || write_all(look, &receiver, &dropped_there));
    let log = EventLog {
        messages: messages.clone(),
    };
    let layer = Layer {
        look,
        messages,
        dropped,
    };
    (log, layer)
}

impl<S: Subscriber> tracing_subscriber::Layer<S> for Layer {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        use std::sync::mpsc::TrySendError;
        let level = *event.metadata().level();
        let line = line::line(self.look, line::unix_us(), level, &Said::of(event));
        match self.messages.try_send(Message::Line(line)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
            Err(TrySendError::Disconnected(Message::Line(line))) => write(&line),
            Err(TrySendError::Disconnected(Message::End(_))) => {}
        }
    }
}

fn write_all(look: Look, messages: &Receiver<Message>, dropped: &AtomicU64) {
    for message in messages {
        match message {
            Message::Line(line) => write(&line),
            Message::End(written) => {
                // Who waited for it may have given up.
                let _ = written.send(());
            }
        }
        let missing = dropped.swap(0, Ordering::Relaxed);
        if missing > 0 {
            let said = Said {
                message: format!("event log: {missing} lines were dropped: its reader is behind"),
                ..Said::default()
            };
            let level = tracing::Level::WARN;
            write(&line::line(look, line::unix_us(), level, &said));
        }
    }
}

fn write(line: &str) {
    // Nowhere is left to report that standard error is closed.
    let _ = io::stderr().write_all(line.as_bytes());
}
