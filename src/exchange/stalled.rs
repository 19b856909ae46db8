//! Streams of HTTP/2 whose clients take nothing, and which of them gives way.
//!
//! Such a stream holds a buffer, and what its endpoint has sent behind that. Over HTTP/1
//! connections are limited, and with them such responses. Over HTTP/2 one connection has a
//! hundred of them. So they have a limit of their own: beyond it the stream ends that has been
//! held up the longest.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Waker};

use crate::net::timer::TICK;

/// Streams of a worker that may be held up. Each holds 16 KiB, and up to 128 KiB that an
/// endpoint has sent by HTTP/2.
const MAX: usize = 4096;

/// Ticks that a client may take nothing, whatever is short: a second. A client on its way
/// through a tunnel comes back, and one that is slow takes something within a round trip.
const PATIENCE: u64 = 1_000 / TICK.as_millis() as u64;

/// The streams of a worker that are held up.
#[derive(Debug, Default)]
pub struct StalledStreams {
    /// By the tick of their last progress, and then in the order in which they came.
    entries: RefCell<BTreeMap<(u64, u64), Rc<Stall>>>,
    count: Cell<u64>,
}

#[derive(Debug)]
struct Stall {
    gives_way: Cell<bool>,
    /// The task that waits.
    waker: RefCell<Waker>,
}

/// A stream is held up, until this is dropped.
#[derive(Debug)]
pub struct StalledStream {
    streams: Rc<StalledStreams>,
    key: (u64, u64),
    stall: Rc<Stall>,
}

impl StalledStreams {
    /// The stream of the present task can send nothing from now on, which is the worker's
    /// tick `now`. The one that has been held up for the longest is woken, to give way, if
    /// there are too many.
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
    /// The present task goes on waiting.
    pub fn register(&self, cx: &Context<'_>) {
        self.stall.waker.borrow_mut().clone_from(cx.waker());
    }

    /// Whether it is to end, so that there is room for others.
    pub fn gives_way(&self) -> bool {
        self.stall.gives_way.get()
    }
}

impl Drop for StalledStream {
    fn drop(&mut self) {
        self.streams.entries.borrow_mut().remove(&self.key);
    }
}
