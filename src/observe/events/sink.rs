//! The thread that writes events, so that nobody waits for a terminal, a pipe or a disk.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use tracing::Subscriber;
use tracing_subscriber::layer::Context;

use super::journal::Journal;
use super::line::{self, EventContent, Look};
use crate::config::{Colour, EventFormat};

/// Events that may wait for the thread before they are dropped.
const EVENTS_WAITING: usize = 1024;
/// Longest wait for the last lines at the program's end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
enum Message {
    Event(Event),
    /// Changes the format and the target for all later events.
    Format(EventFormat),
    /// Confirms that all earlier events are written.
    End(SyncSender<()>),
}

/// An event, and its time.
#[derive(Debug)]
struct Event {
    unix_us: u64,
    level: tracing::Level,
    said: EventContent,
}

/// The target of events.
#[derive(Debug)]
struct Sink {
    /// The format of lines on standard error.
    look: Look,
    /// The journal, where events go there and not to standard error.
    journal: Option<Journal>,
    /// Whether the journal refused the last entry.
    is_away: bool,
}

/// Keeps the event log running. Dropped, it writes all remaining events.
#[derive(Debug)]
pub struct EventLog {
    messages: SyncSender<Message>,
}

impl EventLog {
    /// Changes format and target of later events. Does not wait.
    pub(super) fn format_setter(&self) -> impl Fn(EventFormat) -> Result<(), String> + use<> {
        let messages = self.messages.clone();
        move |format| {
            let sent = messages.try_send(Message::Format(format));
            sent.map_err(|_| "the event log's reader is behind, so its format stays".to_owned())
        }
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        let (written, is_written) = sync_channel(1);
        // A stuck reader delays the program by this time at most.
        let deadline = Instant::now() + END_TIMEOUT;
        let mut message = Message::End(written);
        while let Err(TrySendError::Full(unsent)) = self.messages.try_send(message) {
            if Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
            message = unsent;
        }
        let _ = is_written.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

/// Hands events to the thread.
pub(super) struct Layer {
    messages: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

/// Starts the thread.
pub(super) fn start(format: EventFormat, colour: Colour) -> (EventLog, Layer) {
    let (messages, receiver) = sync_channel(EVENTS_WAITING);
    let dropped = Arc::new(AtomicU64::new(0));
    let dropped_there = dropped.clone();
    let thread = std::thread::Builder::new().name("event-log".into());
    let thread = thread.spawn(move || write_all(format, colour, receiver, &dropped_there));
    if let Err(error) = thread {
        let said = format!("event log: no thread could be started, so nothing is written: {error}");
        Sink::new(EventFormat::Text, Colour::Off).say(said);
    }
    let log = EventLog {
        messages: messages.clone(),
    };
    (log, Layer { messages, dropped })
}

impl<S: Subscriber> tracing_subscriber::Layer<S> for Layer {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let event = Event {
            unix_us: line::unix_us(),
            level: *event.metadata().level(),
            said: EventContent::of(event),
        };
        if self.messages.try_send(Message::Event(event)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write_all(
    format: EventFormat,
    colour: Colour,
    messages: Receiver<Message>,
    dropped: &AtomicU64,
) {
    let mut sink = Sink::new(format, colour);
    for message in messages {
        let end = match message {
            Message::Event(event) => {
                sink.write(&event);
                None
            }
            Message::Format(format) => {
                sink = Sink::new(format, colour);
                None
            }
            Message::End(written) => Some(written),
        };
        let missing = dropped.swap(0, Ordering::Relaxed);
        if missing > 0 {
            sink.say(format!(
                "event log: {missing} lines were dropped: its reader is behind"
            ));
        }
        if let Some(written) = end {
            // The waiting thread may have given up.
            let _ = written.send(());
        }
    }
}

impl Sink {
    fn new(format: EventFormat, colour: Colour) -> Self {
        let look = match (format, colour) {
            (EventFormat::Json, _) => Look::Json,
            (_, Colour::On) => Look::ColouredText,
            (_, Colour::Off) => Look::Text,
        };
        let mut sink = Sink {
            look,
            journal: None,
            is_away: false,
        };
        if format == EventFormat::Journald {
            match Journal::open() {
                Ok(journal) => sink.journal = Some(journal),
                Err(error) => sink.say(format!(
                    "event log: the journal can't be reached, so events go to standard error: \
                     {error}"
                )),
            }
        }
        sink
    }

    fn write(&mut self, event: &Event) {
        let Some(journal) = &self.journal else {
            return self.write_line(event);
        };
        match journal.write(event.level, &event.said) {
            Ok(()) => self.is_away = false,
            Err(error) => {
                if !std::mem::replace(&mut self.is_away, true) {
                    self.say_line(format!(
                        "event log: the journal is gone, so events go to standard error: {error}"
                    ));
                }
                self.write_line(event);
            }
        }
    }

    /// Reports on the log itself.
    fn say(&mut self, message: String) {
        self.write(&Event::of_the_log(message));
    }

    fn say_line(&self, message: String) {
        self.write_line(&Event::of_the_log(message));
    }

    fn write_line(&self, event: &Event) {
        let line = line::line(self.look, event.unix_us, event.level, &event.said);
        // Standard error is closed, so there is nowhere to report it.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

impl Event {
    fn of_the_log(message: String) -> Self {
        Event {
            unix_us: line::unix_us(),
            level: tracing::Level::WARN,
            said: EventContent {
                message,
                ..EventContent::default()
            },
        }
    }
}
