//! The last events, for the status page.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tracing::Subscriber;
use tracing_subscriber::layer::Context;

use super::line::{self, EventContent};

/// Events that are kept.
const KEPT: usize = 200;

/// An event as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Event {
    /// Counted from 1.
    pub seq: u64,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// `error`, `warn` or `info`.
    pub level: &'static str,
    /// The sentence, without control characters.
    pub text: String,
}

/// The last 200 events of level `info` and above.
#[derive(Debug, Default)]
pub struct Recent {
    events: Mutex<Events>,
}

#[derive(Debug, Default)]
struct Events {
    last_seq: u64,
    kept: VecDeque<Event>,
}

static RECENT: Recent = Recent {
    events: Mutex::new(Events {
        last_seq: 0,
        kept: VecDeque::new(),
    }),
};

/// The last events of this process.
pub fn recent() -> &'static Recent {
    &RECENT
}

impl Recent {
    /// The kept events after `seq`, the oldest first; after 0, all of them.
    pub fn since(&self, seq: u64) -> Vec<Event> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let after = events.kept.iter().filter(|event| event.seq > seq);
        after.cloned().collect()
    }

    fn push(&self, unix_ms: u64, level: &'static str, text: String) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.last_seq += 1;
        let seq = events.last_seq;
        if events.kept.len() == KEPT {
            events.kept.pop_front();
        }
        events.kept.push_back(Event {
            seq,
            unix_ms,
            level,
            text,
        });
    }
}

/// Keeps each event.
pub(super) struct Layer;

impl<S: Subscriber> tracing_subscriber::Layer<S> for Layer {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let said = EventContent::of(event);
        let mut text = String::new();
        line::push_plain(&mut text, &said.message);
        let level = line::level_word(*event.metadata().level());
        RECENT.push(line::unix_us() / 1_000, level, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_ones() {
        let recent = Recent::default();
        assert!(recent.since(0).is_empty());
        for number in 1..=KEPT as u64 + 5 {
            recent.push(number, "info", format!("event {number}"));
        }
        let all = recent.since(0);
        assert_eq!(all.len(), KEPT);
        assert_eq!((all[0].seq, all[KEPT - 1].seq), (6, KEPT as u64 + 5));
        let last = recent.since(KEPT as u64 + 4);
        assert_eq!(last.len(), 1);
        assert_eq!(last[0].text, format!("event {}", KEPT + 5));
        assert!(recent.since(KEPT as u64 + 5).is_empty());
    }
}
