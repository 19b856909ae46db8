//! The last events, for whoever looks at the status page.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::Context;

/// Events that are kept.
const KEPT: usize = 200;

/// Something that happened, in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Event {
    /// Counted from 1.
    pub seq: u64,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// `error`, `warn` or `info`.
    pub level: &'static str,
    /// The sentence.
    pub text: String,
}

/// The last 200 events of level `info` and above.
#[derive(Debug)]
pub struct Recent {
    events: Mutex<(u64, VecDeque<Event>)>,
}

static RECENT: Recent = Recent {
    events: Mutex::new((0, VecDeque::new())),
};

/// The last events of this process.
pub fn recent() -> &'static Recent {
    &RECENT
}

impl Recent {
    /// The events after `seq` that are still kept, the oldest first; after 0
    /// all of them.
    pub fn since(&self, seq: u64) -> Vec<Event> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let after = events.1.iter().filter(|event| event.seq > seq);
        after.cloned().collect()
    }

    fn push(&self, level: &'static str, text: String) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let (last_seq, kept) = &mut *events;
        *last_seq += 1;
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(Event {
            seq: *last_seq,
            unix_ms: since.unwrap_or_default().as_millis() as u64,
            level,
            text,
        });
    }
}

/// Keeps events as they are said.
#[derive(Debug)]
pub struct Layer;

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string does not fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}

impl<S: Subscriber> tracing_subscriber::Layer<S> for Layer {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => "error",
            tracing::Level::WARN => "warn",
            tracing::Level::INFO => "info",
            _ => return,
        };
        let mut message = Message(String::new());
        event.record(&mut message);
        RECENT.push(level, message.0);
    }
}
