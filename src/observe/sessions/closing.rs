//! The order in which connections are closed to make room.

use std::cmp::Reverse;

use super::ListenerId;
use crate::metrics::end::Failure;
use crate::net::descriptors::Taker;

/// An instant on a worker in one word: a tick, and a serial number within the tick. It wraps
/// around after four days.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp(u32);

impl Stamp {
    pub(super) const NUMBER_BITS: u32 = 10;
    pub(super) const NUMBER: u32 = (1 << Self::NUMBER_BITS) - 1;

    /// The first within a tick.
    pub(super) fn of(tick: u64) -> Self {
        Stamp((tick as u32) << Self::NUMBER_BITS)
    }

    /// The last within a tick.
    pub(super) fn last_of(tick: u64) -> Self {
        Stamp(Stamp::of(tick).0 | Self::NUMBER)
    }

    /// The next one after this one.
    pub(super) fn next(self, tick: u64) -> Self {
        let first = Stamp::of(tick);
        if self.0 & !Self::NUMBER != first.0 {
            first
        } else if self == Stamp::last_of(tick) {
            self
        } else {
            Stamp(self.0 + 1)
        }
    }

    /// Its age at the end of a tick.
    pub(super) fn age(self, tick: u64) -> Age {
        Age(Stamp::last_of(tick).0.wrapping_sub(self.0))
    }
}

/// How long a connection has been without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Age(u32);

impl Age {
    /// In ticks.
    pub fn ticks(self) -> u32 {
        self.0 >> Stamp::NUMBER_BITS
    }
}

/// A shortage that keeps another connection from opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Need {
    /// File descriptors of the process, for a taker that may not use the last ones.
    Descriptor(Taker),
    /// Connections that a listener may have at once.
    Connection {
        /// Its id.
        listener: ListenerId,
    },
}

impl Need {
    /// The failure of a need for which nothing could be closed.
    pub fn failure(self) -> Failure {
        match self {
            Need::Descriptor(_) => Failure::NoDescriptor,
            Need::Connection { .. } => Failure::Connections,
        }
    }
}

/// A client's connection that can be closed to make room, in the order of closing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Closable {
    /// Its client has not sent a whole request yet. The oldest comes first.
    Silent(Reverse<Age>),
    /// It waits for a further request. The longest idle comes first.
    Idle(Reverse<Age>),
}

impl Closable {
    /// The time in this state.
    pub fn age(self) -> Age {
        match self {
            Closable::Silent(Reverse(age)) | Closable::Idle(Reverse(age)) => age,
        }
    }
}
