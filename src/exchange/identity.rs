//! The identity of a request: its id, and its place in a trace.
//!
//! Computed once for each exchange, if its listener wants one. The texts are made where they are
//! written.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use evenkeel_proto::http1::write::{Marks, TraceMark};
use evenkeel_proto::identity::{TraceParent, Uuid, is_request_id};
use evenkeel_proto::{FieldKind, LoopId, RequestHead, Span};
use fastrand::Rng;

use crate::config::{self, Adopt};

/// The identity of a request.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    request_id: RequestId,
    /// Whether the response has the id.
    responds: bool,
    /// Its place in a trace, where it has one.
    pub trace: Option<Trace>,
}

#[derive(Debug, Clone, Copy)]
enum RequestId {
    /// None, or one that is not read.
    None,
    /// The client's id.
    Sent(Span),
    /// An id that was made here.
    Made(Uuid),
}

/// A request's place in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    /// The trace for the endpoint. Its span is ours where spans are sent.
    pub sent: TraceParent,
    /// The client's span, if the trace is the client's.
    pub client_span: Option<u64>,
    /// Whether this exchange sends a span to the collector.
    pub is_recorded: bool,
}

/// The name of this process in `CDN-Loop`.
pub fn loop_id() -> LoopId {
    static ID: LazyLock<LoopId> = LazyLock::new(|| LoopId::new(random()));
    *ID
}

/// A number from the system's randomness.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// Source of ids that differ from those of other workers and processes, and need not be secret.
/// It has two independent sequences of 64 bits. A single one would begin to repeat after some
/// 2^32 ids.
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

    /// Never 0, which stands for no id.
    fn span_id(&self) -> u64 {
        let [high, low] = &mut *self.0.borrow_mut();
        (high.u64(..) ^ low.u64(..)).max(1)
    }

    fn is_sampled(&self, ppm: u32) -> bool {
        self.0.borrow_mut()[0].u32(..1_000_000) < ppm
    }
}

impl Identity {
    /// A request without identity.
    pub const NONE: Self = Identity {
        request_id: RequestId::None,
        responds: false,
        trace: None,
    };

    /// The identity of a request on a listener with these settings. `records` says whether spans
    /// are sent.
    // Not inlined, as listeners without identities do not need it.
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

    /// The identity of a copy of the request, with this head. The copy's exchange has no span of
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

    /// Whether the exchange sends a span to the collector.
    pub fn is_recorded(&self) -> bool {
        self.trace.is_some_and(|trace| trace.is_recorded)
    }

    /// The request's id, if it has one. The text is in `bytes`, which are the request's, or in
    /// `room`.
    pub fn request_id<'a>(&self, bytes: &'a [u8], room: &'a mut Room) -> Option<&'a [u8]> {
        match self.request_id {
            RequestId::None => None,
            RequestId::Sent(span) => Some(span.of(bytes)),
            RequestId::Made(_) => self.made_id(room),
        }
    }

    /// The request's id for the response, where the client gets it.
    pub fn response_id<'a>(&self, bytes: &'a [u8], room: &'a mut Room) -> Option<&'a [u8]> {
        if self.responds {
            self.request_id(bytes, room)
        } else {
            None
        }
    }

    /// The fields for the endpoint that replace the client's.
    pub fn marks<'a>(&self, room: &'a mut Room) -> Marks<'a> {
        Marks {
            // The client's id is forwarded unchanged.
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

/// Room for the text of an id.
pub type Room = [u8; Uuid::LEN];
/// Empty room.
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

    /// A client's trace is forwarded unchanged where we add no span.
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
        // Twenty standard deviations in both directions.
        assert!((8_000..12_000).contains(&share(100_000)));
    }
}
