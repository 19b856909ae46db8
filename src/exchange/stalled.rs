//! HTTP/2 streams whose clients read nothing, and which of them gives way.
//!
//! Such a stream holds a buffer, and the endpoint's bytes behind it. Over HTTP/1 the limit on
//! connections limits such responses too. Over HTTP/2 one connection can have a hundred. So they
//! have their own limit: beyond it, the stream that has stalled the longest ends.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Waker};

use crate::net::timer::TICK;

/// Most stalled streams of a worker. Each holds 16 KiB, and up to 128 KiB from an HTTP/2
/// endpoint.
const MAX: usize = 4096;

/// Ticks for which a client may always stall: a second. A client may lose its network for a
/// moment, and a slow one reads something within a round trip.
const PATIENCE: u64 = 1_000 / TICK.as_millis() as u64;

/// The stalled streams of a worker.
#[derive(Debug, Default)]
pub struct StalledStreams {
    /// By the tick of their last progress, and then in order of arrival.
    entries: RefCell<BTreeMap<(u64, u64), Rc<Stall>>>,
    count: Cell<u64>,
}

#[derive(Debug)]
struct Stall {
    gives_way: Cell<bool>,
    /// The waiting task.
    waker: RefCell<Waker>,
}

/// Counts a stream as stalled until dropped.
#[derive(Debug)]
pub struct StalledStream {
    streams: Rc<StalledStreams>,
    key: (u64, u64),
    stall: Rc<Stall>,
}

impl StalledStreams {
    /// Adds the stream of the present task, which is stalled from the worker's tick `now` on. If
    /// there are too many, wakes the stream that has stalled the longest, which gives way.
    pub fn add(self: &Rc<Self>, cx: &Context<'_>, now: u64) -> StalledStream {
        let count = self.count.get();
        self.count.set(count + 1);
        let key = (now, count);
        let stall = Rc::new(Stall {
            gives_way: Cell::new(false),
            waker: RefCell::new(cx.waker().clone()),
        });
        let mut entries = self.entries.borrow_mut();
        entries.insert(key, stall.clone());
        if entries.len() > MAX
            && let Some(oldest) = entries.first_entry()
            && oldest.key().0 + PATIENCE <= now
        {
            let oldest = oldest.remove();
            oldest.gives_way.set(true);
            oldest.waker.borrow().wake_by_ref();
        }
        StalledStream {
            streams: self.clone(),
            key,
            stall,
        }
    }
}

impl StalledStream {
    /// Registers the present task, which still waits.
    pub fn register(&self, cx: &Context<'_>) {
        self.stall.waker.borrow_mut().clone_from(cx.waker());
    }

    /// Whether it has to end, to make room for others.
    pub fn gives_way(&self) -> bool {
        self.stall.gives_way.get()
    }
}

impl Drop for StalledStream {
    fn drop(&mut self) {
        self.streams.entries.borrow_mut().remove(&self.key);
    }
}
