//! One machine's view of the purges that several machines share, without I/O.
//!
//! A server keeps the purges of all machines in one log, numbered without gaps. A response in
//! the shared store carries a [`Position`] in that log: it is known to have survived all purges
//! up to there. The position is its machine's when the response was requested. A machine
//! compares it with later purges.
//!
//! ```text
//!         a machine purges   its stores have had it   the log has it
//!  stores here ──────┬──────────────────┬───────────────────┬───────────▶
//!  marks here  ──────┴─────── pending: for all objects ─────┴─ by number ▶
//! ```
//!
//! A purge enters the log only after the machine's own stores have applied it. Otherwise a
//! response requested before the purge would count as newer than it.
//!
//! Invariant: a ledger knows every purge from [`Position`] `base` on, in order. A gap, or
//! another log under the same name, is an error: the purges in between are unknown.

use std::collections::VecDeque;

use crate::key::Secret;
use crate::object::Object;
use crate::purge::{Fate, Purge, Purges, Strength};

/// Most purges that wait for the log. Beyond it they become one purge of everything.
pub const MAX_PENDING: usize = 4096;
/// Most bytes of a URL, a prefix or a tag in the log. A longer one becomes a broader purge.
pub const MAX_TEXT_BYTES: usize = 16 * 1024;
/// Most pairs of log number and local purge count to keep.
const MAX_COUNTS: usize = 4096;

/// A place in a log of purges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Identifies the log: a random number from its creation.
    pub epoch: u64,
    /// The number of its last purge.
    pub number: u64,
}

/// A purge on its way between machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// What the purge selects by.
    pub kind: Kind,
    /// The URL, the prefix or the tag.
    pub text: Box<[u8]>,
    /// Whether the objects are dropped or become stale.
    pub strength: Strength,
}

/// What a purge selects objects by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Every object.
    Everything,
    /// One URL.
    Url,
    /// The beginning of a URL.
    Prefix,
    /// One tag.
    Tag,
}

impl Kind {
    /// All kinds, with their words in the log.
    pub const WORDS: [(Kind, &str); 4] = [
        (Kind::Everything, "everything"),
        (Kind::Url, "url"),
        (Kind::Prefix, "prefix"),
        (Kind::Tag, "tag"),
    ];

    /// Its word in the log.
    pub fn word(self) -> &'static str {
        Kind::WORDS[self as usize].1
    }
}

impl Order {
    /// A purge of everything.
    pub fn everything(strength: Strength) -> Self {
        Order {
            kind: Kind::Everything,
            text: Box::default(),
            strength,
        }
    }

    /// A local purge, for the other machines. It becomes broader if its text is too long.
    pub fn new(what: Purge<'_>, strength: Strength) -> Self {
        let (kind, text) = match what {
            Purge::Everything => return Order::everything(strength),
            Purge::Url(url) if url.len() > MAX_TEXT_BYTES => (Kind::Prefix, url),
            Purge::Url(url) => (Kind::Url, url),
            Purge::Prefix(prefix) => (Kind::Prefix, prefix),
            Purge::Tag(tag) if tag.len() > MAX_TEXT_BYTES => return Order::everything(strength),
            Purge::Tag(tag) => (Kind::Tag, tag),
        };
        Order {
            kind,
            text: text[..text.len().min(MAX_TEXT_BYTES)].into(),
            strength,
        }
    }

    /// The purge for a local store.
    pub fn purge(&self) -> Purge<'_> {
        match self.kind {
            Kind::Everything => Purge::Everything,
            Kind::Url => Purge::Url(&self.text),
            Kind::Prefix => Purge::Prefix(&self.text),
            Kind::Tag => Purge::Tag(&self.text),
        }
    }
}

/// The origin of a purge in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Author {
    /// A random number of the machine's process.
    pub machine: u64,
    /// The number of the purge among that process's own.
    pub serial: u64,
}

/// The content of a log entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The log was created: earlier purges are unknown.
    Begun,
    /// A machine purged something.
    Purged {
        /// The machine, and its number for the purge.
        by: Author,
        /// The purge.
        order: Order,
    },
}

/// An entry of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The entry's place in the log.
    pub position: Position,
    /// The entry's content.
    pub event: Event,
}

/// The entry is not the next one of the log that the ledger follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap;

/// A machine's knowledge of the log, and its own purges that are not in the log yet.
#[derive(Debug)]
pub struct Ledger {
    machine: u64,
    /// The newest applied entry; `None` before the first.
    position: Option<Position>,
    /// The number before the first purge in `purges`.
    base: u64,
    /// The purges of the log. The count of a purge is its number less `base`.
    purges: Purges,
    /// Pairs of a log number and the purge count of the local stores after it.
    counts: VecDeque<(u64, u64)>,
    pending: VecDeque<Pending>,
    /// The pending purges, for objects of any number.
    pending_purges: Purges,
    /// Number of this machine's last purge.
    serial: u64,
}

/// A purge of this machine that is not in the log yet.
#[derive(Debug)]
struct Pending {
    serial: u64,
    order: Order,
    /// How many times the local stores still have to apply it.
    open: u32,
}

impl Ledger {
    /// The ledger of a machine that does not know the log yet. `machine` is random.
    pub fn new(machine: u64) -> Self {
        Ledger {
            machine,
            position: None,
            base: 0,
            purges: Purges::default(),
            counts: VecDeque::new(),
            pending: VecDeque::new(),
            pending_purges: Purges::default(),
            serial: 0,
        }
    }

    /// The newest entry that was applied.
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// Notes a purge of this machine. Until the log has the purge, it holds for all objects.
    /// The caller then applies it to the local stores, and calls
    /// [`note_purged`](Self::note_purged) with the returned number.
    #[must_use]
    pub fn purge(&mut self, secret: &Secret, order: Order) -> u64 {
        // The first one may already be on its way to the log.
        let same = self.pending.iter_mut().skip(1).find(|it| it.order == order);
        if let Some(same) = same {
            same.open += 1;
            return same.serial;
        }
        let mut open = 1;
        let is_full = self.pending.len() >= MAX_PENDING;
        let order = if is_full {
            open += self.pending.drain(..).map(|it| it.open).sum::<u32>();
            Order::everything(Strength::Hard)
        } else {
            order
        };
        self.pending_purges
            .purge(secret, order.purge(), order.strength);
        self.serial += 1;
        self.pending.push_back(Pending {
            serial: self.serial,
            order,
            open,
        });
        self.serial
    }

    /// Notes that the local stores have applied the purge of this number.
    pub fn note_purged(&mut self, serial: u64) {
        // A missing one was merged, with those after it, into a purge of everything.
        let later = self.pending.iter_mut().find(|it| it.serial >= serial);
        if let Some(pending) = later {
            pending.open = pending.open.saturating_sub(1);
        }
    }

    /// The oldest purge that is not in the log yet, if the local stores have applied it.
    pub fn next_pending(&self) -> Option<(Author, &Order)> {
        let first = self.pending.front().filter(|it| it.open == 0)?;
        let by = Author {
            machine: self.machine,
            serial: first.serial,
        };
        Some((by, &first.order))
    }

    /// Number of purges that are not in the log yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Starts again with the oldest entry of the log. Purges in between are unknown, so the
    /// caller purges the local stores of everything.
    pub fn restart(&mut self, oldest: &Entry) {
        let number = oldest.position.number;
        self.base = match oldest.event {
            Event::Begun => number,
            Event::Purged { .. } => number.saturating_sub(1),
        };
        self.position = Some(Position {
            number: number.saturating_sub(1),
            ..oldest.position
        });
        self.purges = Purges::default();
        self.counts.clear();
    }

    /// Forgets the position, because the local stores may lack a purge. The caller has to
    /// restart.
    pub fn forget(&mut self) {
        self.position = None;
    }

    /// Applies the next entry. Returns its purge if the local stores have not applied it yet.
    ///
    /// # Errors
    /// The entry is not the next one.
    pub fn apply(&mut self, secret: &Secret, entry: Entry) -> Result<Option<Order>, Gap> {
        let Some(known) = self.position else {
            return Err(Gap);
        };
        let is_next = entry.position.number == known.number + 1;
        if entry.position.epoch != known.epoch || !is_next {
            return Err(Gap);
        }
        let Event::Purged { by, order } = entry.event else {
            // A log is created only once.
            if entry.position.number != self.base {
                return Err(Gap);
            }
            self.position = Some(entry.position);
            return Ok(None);
        };
        self.purges.purge(secret, order.purge(), order.strength);
        self.position = Some(entry.position);
        if by.machine != self.machine {
            return Ok(Some(order));
        }
        // Earlier purges of this machine are in the log, or were merged into this one.
        while (self.pending.front()).is_some_and(|it| it.serial <= by.serial) {
            self.pending.pop_front();
        }
        if self.pending.is_empty() {
            self.pending_purges = Purges::default();
        }
        Ok(None)
    }

    /// Notes that the local stores have applied all purges up to `number`; `count` is their
    /// purge count since.
    pub fn note_count(&mut self, number: u64, count: u64) {
        if self.counts.back().is_some_and(|&(last, _)| last == number) {
            return;
        }
        if self.counts.len() == MAX_COUNTS {
            self.counts.pop_front();
        }
        self.counts.push_back((number, count));
    }

    /// The position up to which an object of this machine is known to have survived; `None` if
    /// it is older than the known positions.
    pub fn position_of(&self, object: &Object) -> Option<Position> {
        let end = self
            .counts
            .partition_point(|&(_, count)| count <= object.seen());
        let (number, _) = self.counts.get(end.checked_sub(1)?)?;
        let epoch = self.position?.epoch;
        Some(Position {
            epoch,
            number: *number,
        })
    }

    /// The fate of an object that had survived up to a position. A surviving object gets the
    /// local stores' current count.
    pub fn judge(&self, secret: &Secret, object: &Object, position: Position) -> Fate {
        let Some((known, &(_, count))) = self.position.zip(self.counts.back()) else {
            return Fate::Gone;
        };
        if position.epoch != known.epoch || position.number < self.base {
            return Fate::Gone;
        }
        object.set_seen(position.number - self.base, false);
        if self.purges.judge(secret, object) == Fate::Gone {
            return Fate::Gone;
        }
        object.set_seen(0, false);
        if self.pending_purges.judge(secret, object) == Fate::Gone {
            return Fate::Gone;
        }
        object.set_seen(count, false);
        Fate::Alive
    }
}

#[cfg(test)]
mod tests;
