//! Connections of HTTP/2 that exchanges share, of either side.
//!
//! Each has a task of its own, its driver, which alone reads and writes the socket. An exchange
//! has a stream: it reads and writes the protocol's state in memory, and wakes the driver when
//! that has news. So many streams that write in one turn of the event loop leave in one send.

mod body;

use std::cell::{Cell, RefCell};
use std::io;
use std::task::{Context, Poll, Waker};

use evenkeel_proto::http2::{Core, Direction, Role, StreamId};

pub use self::body::{BodyReading, BodyWriting};
use crate::net::stream::{Follow, Stream};

/// Bytes that wait to be sent on a connection before its streams wait.
const UNSENT_MAX: usize = 64 * 1024;

/// State that the streams of a connection share with its driver.
#[derive(Debug)]
pub struct SharedConnection<R: Role> {
    /// The protocol. Never borrowed over a call of other code.
    pub protocol: RefCell<Core<R>>,
    /// Tasks of the streams that wait, by their numbers.
    waiting: RefCell<Vec<(StreamId, Waker)>>,
    driver: RefCell<Option<Waker>>,
    /// Whether nothing more comes from the peer, nor goes to it.
    is_broken: Cell<bool>,
    /// A buffer for a block of fields before it is sent.
    pub block: RefCell<Vec<u8>>,
}

impl<R: Role> SharedConnection<R> {
    /// A connection that has just begun.
    pub fn new(protocol: Core<R>) -> Self {
        SharedConnection {
            protocol: RefCell::new(protocol),
            waiting: RefCell::default(),
            driver: RefCell::default(),
            is_broken: Cell::new(false),
            block: RefCell::default(),
        }
    }

    /// The present task is the driver.
    pub fn register_driver(&self, cx: &Context<'_>) {
        let driver = &mut *self.driver.borrow_mut();
        match driver {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => *driver = Some(cx.waker().clone()),
        }
    }

    /// Wakes the driver: a stream has something to send, or has ended.
    pub fn wake_driver(&self) {
        if let Some(driver) = &*self.driver.borrow() {
            driver.wake_by_ref();
        }
    }

    /// Wakes the task of a stream that has news.
    pub fn wake(&self, id: StreamId) {
        let waiting = self.waiting.borrow();
        if let Ok(at) = waiting.binary_search_by_key(&id, |it| it.0) {
            waiting[at].1.wake_by_ref();
        }
    }

    /// Wakes streams that wait to send, in their order of service, as many as find room. Whether
    /// more of them may find room.
    pub fn wake_writers(&self) -> bool {
        /// Streams that have a turn at once: each sends up to a frame or more.
        const AT_ONCE: usize = 4;
        for _ in 0..AT_ONCE {
            let mut protocol = self.protocol.borrow_mut();
            if protocol.unsent().len() >= UNSENT_MAX {
                return false;
            }
            let Some(id) = protocol.next_writable() else {
                return false;
            };
            drop(protocol);
            self.wake(id);
        }
        true
    }

    /// Nothing more comes from the peer, nor goes to it. Whether that is news.
    pub fn breaks(&self) -> bool {
        if self.is_broken.replace(true) {
            return false;
        }
        for (_, waker) in &*self.waiting.borrow() {
            waker.wake_by_ref();
        }
        true
    }

    /// Whether it [broke](Self::breaks).
    pub fn is_broken(&self) -> bool {
        self.is_broken.get()
    }

    /// The present task waits for news of a stream.
    pub fn wait<T>(&self, id: StreamId, cx: &Context<'_>) -> Poll<T> {
        let mut waiting = self.waiting.borrow_mut();
        match waiting.binary_search_by_key(&id, |it| it.0) {
            Ok(at) if waiting[at].1.will_wake(cx.waker()) => {}
            Ok(at) => waiting[at].1 = cx.waker().clone(),
            Err(at) => waiting.insert(at, (id, cx.waker().clone())),
        }
        Poll::Pending
    }

    /// Forgets the waiting task of a stream.
    pub fn forget(&self, id: StreamId) {
        let mut waiting = self.waiting.borrow_mut();
        if let Ok(at) = waiting.binary_search_by_key(&id, |it| it.0) {
            waiting.remove(at);
        }
    }

    /// How the message ends that comes on a stream; `None` where it was cut off.
    pub fn incoming(&self, id: StreamId) -> Option<Direction> {
        let mut protocol = self.protocol.borrow_mut();
        let direction = protocol.incoming(id)?.0;
        match direction {
            Direction::Reset(_) => None,
            // Bytes that came before the end may still be read.
            Direction::Open if self.is_broken() && protocol.readable_len(id) == 0 => None,
            _ => Some(direction),
        }
    }

    /// Waits until a stream takes bytes.
    pub fn poll_write_ready(&self, id: StreamId, cx: &Context<'_>) -> Poll<()> {
        let mut protocol = self.protocol.borrow_mut();
        let room = room_of(&protocol);
        let can_send = protocol.can_send(id, room);
        drop(protocol);
        if can_send || self.is_broken() {
            Poll::Ready(())
        } else {
            self.wait(id, cx)
        }
    }

    /// Sends unsent bytes; whether some were sent.
    ///
    /// # Errors
    /// The peer takes nothing any more. Unsent bytes are forgotten.
    pub fn flush(&self, cx: &Context<'_>, stream: &mut Stream) -> io::Result<bool> {
        let mut has_written = false;
        let protocol = &mut *self.protocol.borrow_mut();
        while !protocol.unsent().is_empty() {
            let error = match stream.poll_write(cx, protocol.unsent(), Follow::Anything) {
                Poll::Ready(Ok(len)) if len > 0 => {
                    protocol.sent(len);
                    has_written = true;
                    continue;
                }
                Poll::Ready(Ok(_)) => io::ErrorKind::WriteZero.into(),
                Poll::Ready(Err(error)) => error,
                Poll::Pending => break,
            };
            forget_unsent(protocol);
            return Err(error);
        }
        Ok(has_written)
    }

    /// Gives back memory that it does not need while idle.
    pub fn shrink(&self) {
        self.protocol.borrow_mut().shrink();
        self.waiting.borrow_mut().shrink_to_fit();
        self.block.take();
    }
}

/// Bytes that may be added to the unsent ones.
pub fn room_of<R: Role>(protocol: &Core<R>) -> usize {
    UNSENT_MAX.saturating_sub(protocol.unsent().len())
}

/// Forgets unsent bytes: the peer takes them no more.
pub fn forget_unsent<R: Role>(protocol: &mut Core<R>) {
    let len = protocol.unsent().len();
    protocol.sent(len);
}
