//! One machine's view of the purges that several machines share, without I/O.
//!
//! A server keeps the purges of all machines in one log, numbered without gaps. A
//! response in the shared store has the [`Position`] in the log up to which it is known
//! to be alive: that of its machine when it was asked for. A machine compares it with
//! the purges that came later.
//!
//! ```text
//!         a machine purges   its stores have had it   the log has it
//!  stores here ──────┬──────────────────┬───────────────────┬───────────▶
//!  marks here  ──────┴─────── pending: for all objects ─────┴─ by number ▶
//! ```
//!
//! The log gets a purge only once the stores have had it: what was asked for before would
//! count as newer otherwise.
//!
//! Invariant: a ledger knows every purge from [`Position`] `base` on, in order. A gap, or
//! another log under the same name, is an error: what was purged meanwhile is unknown.

use std::collections::VecDeque;

use crate::key::Secret;
use crate::object::Object;
use crate::purge::{Fate, Purge, Purges, Strength};

/// Purges that wait for the log at most. Of more, all become one of everything.
pub const MAX_PENDING: usize = 4096;
/// Most bytes of a URL, a prefix or a tag in the log. What is longer purges more.
pub const MAX_TEXT_BYTES: usize = 16 * 1024;
/// Counts of local purges that are kept beside numbers of the log.
const MAX_COUNTS: usize = 4096;

/// A place in a log of purges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Which log: a random number from when it was begun.
    pub epoch: u64,
    /// The number of its last purge.
    pub number: u64,
}

/// A purge on its way between machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// What is purged.
    pub kind: Kind,
    /// The URL, the prefix or the tag.
    pub text: Box<[u8]>,
    /// What becomes of it.
    pub strength: Strength,
}

/// What a purge goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All there is.
    Everything,
    /// A URL.
    Url,
    /// How URLs begin.
    Prefix,
    /// A tag.
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

    /// What is purged here, for the other machines: the same, or more where it is too
    /// long.
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

    /// For a store.
    pub fn purge(&self) -> Purge<'_> {
        match self.kind {
            Kind::Everything => Purge::Everything,
            Kind::Url => Purge::Url(&self.text),
            Kind::Prefix => Purge::Prefix(&self.text),
            Kind::Tag => Purge::Tag(&self.text),
        }
    }
}

/// Who put a purge into the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Author {
    /// A random number of the machine's process.
    pub machine: u64,
    /// The count of its purges.
    pub serial: u64,
}

/// What a log has at a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It was begun: nothing is known of what was purged before.
    Begun,
    /// Somebody purged something.
    Purged {
        /// Who.
        by: Author,
        /// What.
        order: Order,
    },
}

/// An entry of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it is.
    pub position: Position,
    /// What happened.
    pub event: Event,
}

/// The entry is not the next one of the log that the ledger follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap;

/// What a machine knows of the log, and of its own purges that are not in it yet.
#[derive(Debug)]
pub struct Ledger {
    machine: u64,
    /// The newest entry that was applied; `None` before the first.
    position: Option<Position>,
    /// The number before the first purge in `purges`.
    base: u64,
    /// Those of the log: their count is the number less `base`.
    purges: Purges,
    /// By number: the count of purges of the stores here, once they have had it.
    counts: VecDeque<(u64, u64)>,
    pending: VecDeque<Pending>,
    /// Those that are pending, for objects of any number.
    pending_purges: Purges,
    /// Of this machine's last purge.
    serial: u64,
}

/// A purge of this machine that the log has not got yet.
#[derive(Debug)]
struct Pending {
    serial: u64,
    order: Order,
    /// How often the stores here are still to have it.
    open: u32,
}

impl Ledger {
    /// Of a machine that knows nothing of the log yet. `machine` is random.
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

    /// Notes a purge of this machine: until the log has it, it holds for all objects. The
    /// stores here are to have it next; [`note_purged`](Self::note_purged) is told then, with
    /// the number that this gives.
    #[must_use]
    pub fn purge(&mut self, secret: &Secret, order: Order) -> u64 {
        // The first may be on its way.
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

    /// The stores here have had the purge of this number.
    pub fn note_purged(&mut self, serial: u64) {
        // One that is not there any more became one of everything, with those after it.
        let later = self.pending.iter_mut().find(|it| it.serial >= serial);
        if let Some(pending) = later {
            pending.open = pending.open.saturating_sub(1);
        }
    }

    /// The first purge that the log has not got yet, if the stores here have had it.
    pub fn next_pending(&self) -> Option<(Author, &Order)> {
        let first = self.pending.front().filter(|it| it.open == 0)?;
        let by = Author {
            machine: self.machine,
            serial: first.serial,
        };
        Some((by, &first.order))
    }

    /// How many purges the log has not got yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Begins anew with the oldest entry that the log has. What was purged between is
    /// unknown: the caller purges the stores here of everything.
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

    /// Forgets where it is: the stores here may lack a purge. It has to begin anew.
    pub fn forget(&mut self) {
        self.position = None;
    }

    /// Applies the next entry; gives the purge that the stores here have not had.
    ///
    /// # Errors
    /// It is not the next one.
    pub fn apply(&mut self, secret: &Secret, entry: Entry) -> Result<Option<Order>, Gap> {
        let Some(known) = self.position else {
            return Err(Gap);
        };
        let is_next = entry.position.number == known.number + 1;
        if entry.position.epoch != known.epoch || !is_next {
            return Err(Gap);
        }
        let Event::Purged { by, order } = entry.event else {
            // A log is begun once.
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
        // Those before it were replaced by it, or have come.
        while (self.pending.front()).is_some_and(|it| it.serial <= by.serial) {
            self.pending.pop_front();
        }
        if self.pending.is_empty() {
            self.pending_purges = Purges::default();
        }
        Ok(None)
    }

    /// The stores here have had all purges up to `number`; `count` is theirs since.
    pub fn note_count(&mut self, number: u64, count: u64) {
        if self.counts.back().is_some_and(|&(last, _)| last == number) {
            return;
        }
        if self.counts.len() == MAX_COUNTS {
            self.counts.pop_front();
        }
        self.counts.push_back((number, count));
    }

    /// Up to where an object of this machine is known to be alive; `None` if it is
    /// older than what is known.
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

    /// What has become of an object that was alive at a position. One that is alive
    /// becomes as new as the stores here are.
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
