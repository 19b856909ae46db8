//! What a request is called: its id, and its place in a trace.
//!
//! Worked out once for each exchange of a listener that wants one; the texts
//! are made where they are written.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use evenkeel_proto::http1::write::{Marks, TraceMark};
use evenkeel_proto::identity::{TraceParent, Uuid, is_request_id};
use evenkeel_proto::{FieldKind, LoopId, RequestHead, Span};
use fastrand::Rng;

use crate::config::{self, Adopt};

/// What a request is called.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    request_id: RequestId,
    /// Whether the client is told the id.
    responds: bool,
    /// Its place in a trace, where it has one.
    pub trace: Option<Trace>,
}

#[derive(Debug, Clone, Copy)]
enum RequestId {
    /// It has none, or one that is not looked at.
    None,
    /// The client's.
    Sent(Span),
    /// One that was made here.
    Made(Uuid),
}

/// A request's place in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    /// What the endpoint gets: the span in it is ours where spans are sent.
    pub sent: TraceParent,
    /// The client's span, where it is the client's trace.
    pub client_span: Option<u64>,
    /// Whether a span of this exchange is sent to the collector.
    pub is_recorded: bool,
}

/// What this process calls itself in `CDN-Loop`.
pub fn loop_id() -> LoopId {
    static ID: LazyLock<LoopId> = LazyLock::new(|| LoopId::new(random()));
    *ID
}

/// From the system's randomness.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// Where ids come from: unlike those of other workers and processes, but no
/// secret. Two sequences of 64 bits that know nothing of each other, so that
/// ids don't begin to repeat after the 2^32 that one of them would be good for.
#[derive(Debug)]
pub struct IdSource(RefCell<[Rng; 2]>);

impl Default for IdSource {
    fn default() -> Self {
        let rng = || Rng::with_seed(random());
        IdSource(RefCell::new([rng(), rng()]))
    }
}

impl IdSource {
    fn next(&self) -> u128 {
        let [high, low] = &mut *self.0.borrow_mut();
        u128::from(high.u64(..)) << 64 | u128::from(low.u64(..))
    }

    /// Never 0, which is no id.
    fn span_id(&self) -> u64 {
        let [high, low] = &mut *self.0.borrow_mut();
        (high.u64(..) ^ low.u64(..)).max(1)
    }

    fn is_sampled(&self, ppm: u32) -> bool {
        self.0.borrow_mut()[0].u32(..1_000_000) < ppm
    }
}

impl Identity {
    /// That of a request that is not called anything.
    pub const NONE: Self = Identity {
        request_id: RequestId::None,
        responds: false,
        trace: None,
    };

    /// What the request is called on a listener with these settings;
    /// `records` says whether spans are sent anywhere.
    // Out of the way of listeners that want none.
    #[inline(never)]
    pub fn of(
        settings: &config::Identity,
        ids: &IdSource,
        unix_ms: impl FnOnce() -> u64,
        records: bool,
        bytes: &[u8],
        head: &RequestHead,
    ) -> Self {
        let request_id = match settings.request_id {
            Adopt::Off => RequestId::None,
            Adopt::Keep => match sole(head, FieldKind::RequestId) {
                Some(id) if is_request_id(id.of(bytes)) => RequestId::Sent(id),
                _ => RequestId::Made(Uuid::at(unix_ms(), ids.next())),
            },
            Adopt::New => RequestId::Made(Uuid::at(unix_ms(), ids.next())),
        };
        let trace = match settings.trace {
            Adopt::Off => None,
            Adopt::Keep => {
                let client = sole(head, FieldKind::TraceParent);
                let client = client.and_then(|span| TraceParent::parse(span.of(bytes)));
                Some(match client {
                    Some(client) => Trace::continued(client, ids, records),
                    None => Trace::begun(settings.sample_ppm, ids, records),
                })
            }
            Adopt::New => Some(Trace::begun(settings.sample_ppm, ids, records)),
        };
        Identity {
            request_id,
            responds: settings.respond,
            trace,
        }
    }

    /// The same, for a copy of the request that has this head. Its exchange has no span of
    /// its own.
    pub fn of_copy(&self, head: &RequestHead) -> Self {
        let request_id = match self.request_id {
            RequestId::Sent(_) => match sole(head, FieldKind::RequestId) {
                Some(id) => RequestId::Sent(id),
                None => RequestId::None,
            },
            made => made,
        };
        Identity {
            request_id,
            trace: self.trace.map(|trace| Trace {
                is_recorded: false,
                ..trace
            }),
            ..*self
        }
    }

    /// Whether a span of the exchange is sent to the collector.
    pub fn is_recorded(&self) -> bool {
        self.trace.is_some_and(|trace| trace.is_recorded)
    }

    /// Its id, where it has one: of `bytes`, which are those of the request, or
    /// made in `room`.
    pub fn request_id<'a>(&self, bytes: &'a [u8], room: &'a mut Room) -> Option<&'a [u8]> {
        match self.request_id {
            RequestId::None => None,
            RequestId::Sent(span) => Some(span.of(bytes)),
            RequestId::Made(_) => self.made_id(room),
        }
    }

    /// As [`request_id`](Self::request_id), for a response: where the client
    /// is told.
    pub fn response_id<'a>(&self, bytes: &'a [u8], room: &'a mut Room) -> Option<&'a [u8]> {
        if self.responds {
            self.request_id(bytes, room)
        } else {
            None
        }
    }

    /// What the endpoint gets in place of what the client sent.
    pub fn marks<'a>(&self, room: &'a mut Room) -> Marks<'a> {
        Marks {
            // The client's goes on as it came.
            request_id: self.made_id(room),
            trace: self.trace.and_then(Trace::mark),
        }
    }

    fn made_id<'a>(&self, room: &'a mut Room) -> Option<&'a [u8]> {
        let RequestId::Made(id) = self.request_id else {
            return None;
        };
        *room = id.text();
        Some(room)
    }
}

/// Where the text of an id is made.
pub type Room = [u8; Uuid::LEN];
/// One with nothing in it yet.
pub const ROOM: Room = [0; Uuid::LEN];

impl Trace {
    fn continued(client: TraceParent, ids: &IdSource, records: bool) -> Self {
        let is_recorded = records && client.is_sampled();
        Trace {
            sent: if is_recorded {
                TraceParent {
                    parent_id: ids.span_id(),
                    ..client
                }
            } else {
                client
            },
            client_span: Some(client.parent_id),
            is_recorded,
        }
    }

    fn begun(sample_ppm: u32, ids: &IdSource, records: bool) -> Self {
        let is_sampled = ids.is_sampled(sample_ppm);
        let sampled = if is_sampled { TraceParent::SAMPLED } else { 0 };
        Trace {
            sent: TraceParent {
                trace_id: ids.next().max(1),
                parent_id: ids.span_id(),
                flags: TraceParent::RANDOM | sampled,
            },
            client_span: None,
            is_recorded: records && is_sampled,
        }
    }

    /// A client's trace in which no span is added goes on as it came.
    fn mark(self) -> Option<TraceMark> {
        let continues = self.client_span.is_some();
        (!continues || self.is_recorded).then_some(TraceMark {
            parent: self.sent,
            continues,
        })
    }
}

/// The value of a field that is there exactly once.
fn sole(head: &RequestHead, kind: FieldKind) -> Option<Span> {
    let mut fields = head.fields.iter().filter(|field| field.kind == kind);
    match (fields.next(), fields.next()) {
        (Some(field), None) => Some(field.value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ() {
        let (one, other) = (IdSource::default(), IdSource::default());
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            assert!(seen.insert(one.next()) && seen.insert(other.next()));
            assert_ne!(one.span_id(), 0);
        }
    }

    #[test]
    fn samples_the_part_that_was_asked_for() {
        let ids = IdSource::default();
        let share = |ppm| (0..100_000).filter(|_| ids.is_sampled(ppm)).count();
        assert_eq!((share(0), share(1_000_000)), (0, 100_000));
        // Twenty times the standard deviation to both sides.
        assert!((8_000..12_000).contains(&share(100_000)));
    }
}
