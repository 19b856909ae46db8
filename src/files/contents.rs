//! Contents of files that are asked for often, as many as fit.
//!
//! The page cache has them too, but the kernel may drop them at any time: under a flood of files
//! that are read once, in a small control group, or because a host reclaims memory. A request for
//! such a file then waits behind the flood.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use super::FileBytes;

/// A whole file, in memory of the process.
#[derive(Debug)]
pub(super) struct Contents {
    bytes: FileBytes,
    /// Tick of the last use.
    used: Cell<u64>,
}

impl Contents {
    /// The bytes, for an answer in the tick `now`.
    pub fn take(&self, now: u64) -> FileBytes {
        self.used.set(now);
        self.bytes.clone()
    }
}

/// Contents give way to others after this many ticks without use: ten seconds.
const IDLE_TICKS: u64 = 100;
/// Entries that are examined for eviction for each new entry.
const LOOKS: usize = 8;

/// Overhead of an entry in bytes: counts, links and a place.
const ENTRY_LEN: usize = 128;

/// One worker's contents of files.
///
/// Eviction is a clock (Corbató, A Paging Experiment with the Multics System, 1968): recently
/// used entries get another turn. Holders have a weak reference, which ends with the entry.
#[derive(Debug)]
pub(super) struct KeptContents {
    /// The next entry to examine is first.
    kept: VecDeque<Rc<Contents>>,
    /// Total length, in bytes.
    len: usize,
    most: usize,
}

impl KeptContents {
    /// An empty cache for at most this many bytes.
    pub fn new(most: usize) -> Self {
        KeptContents {
            kept: VecDeque::new(),
            len: 0,
            most,
        }
    }

    /// Makes room for this many more bytes, by eviction if needed. Returns whether there is room.
    /// Entries whose file was closed always go, as no request can find them. `now` in ticks.
    pub fn make_room(&mut self, len: usize, now: u64) -> bool {
        let fits = |kept: usize| kept + ENTRY_LEN + len <= self.most;
        for _ in 0..LOOKS {
            let Some(first) = self.kept.pop_front() else {
                break;
            };
            let is_idle = now >= first.used.get() + IDLE_TICKS;
            let is_known = Rc::weak_count(&first) > 0;
            if is_known && (fits(self.len) || !is_idle) {
                self.kept.push_back(first);
            } else {
                self.len -= ENTRY_LEN + first.bytes.len();
            }
        }
        fits(self.len)
    }

    /// Keeps these bytes, for which there is room. `now` in ticks.
    pub fn keep(&mut self, bytes: FileBytes, now: u64) -> Weak<Contents> {
        self.len += ENTRY_LEN + bytes.len();
        let contents = Rc::new(Contents {
            bytes,
            used: Cell::new(now),
        });
        let known = Rc::downgrade(&contents);
        self.kept.push_back(contents);
        known
    }

    /// Drops all entries.
    pub fn clear(&mut self) {
        self.kept.clear();
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps so many bytes, if there is room.
    fn keep(kept: &mut KeptContents, len: usize, now: u64) -> Option<Weak<Contents>> {
        kept.make_room(len, now)
            .then(|| kept.keep(FileBytes::room(len), now))
    }

    fn is_there(contents: &Option<Weak<Contents>>) -> bool {
        contents.as_ref().is_some_and(|it| it.strong_count() > 0)
    }

    #[test]
    fn what_is_in_use_stays_and_what_is_not_gives_way() {
        let mut kept = KeptContents::new(3 * (ENTRY_LEN + 100));
        let files: Vec<_> = (0..3).map(|_| keep(&mut kept, 100, 0)).collect();
        assert!(files.iter().all(is_there));
        assert!(keep(&mut kept, 0, IDLE_TICKS - 1).is_none(), "all in use");
        let first = files[0].as_ref().and_then(Weak::upgrade).expect("kept");
        assert_eq!(first.take(IDLE_TICKS).len(), 100);
        drop(first);
        let other = keep(&mut kept, 150, IDLE_TICKS);
        assert!(is_there(&other));
        let are_there: Vec<bool> = files.iter().map(is_there).collect();
        assert_eq!(are_there, [true, false, false]);
        assert_eq!(kept.len, 2 * ENTRY_LEN + 250);
    }

    #[test]
    fn what_nobody_can_be_given_any_more_goes_while_there_is_room() {
        const OPEN: usize = 50;
        let mut kept = KeptContents::new(1 << 20);
        let mut open: Vec<_> = (0..OPEN).map(|_| keep(&mut kept, 100, 0)).collect();
        for turn in 0..10 * OPEN {
            // Closed and opened again.
            open[turn % OPEN] = None;
            open[turn % OPEN] = keep(&mut kept, 100, 0);
        }
        assert!(open.iter().all(is_there));
        let count = kept.kept.len();
        assert!(count <= OPEN + LOOKS, "{count} of {OPEN}");
        assert_eq!(kept.len, count * (ENTRY_LEN + 100));
    }

    #[test]
    fn what_is_longer_than_all_of_it_finds_no_room() {
        let mut kept = KeptContents::new(ENTRY_LEN + 300);
        let small = keep(&mut kept, 100, 0);
        assert!(keep(&mut kept, 301, 0).is_none());
        assert!(is_there(&small));
        kept.clear();
        assert!(!is_there(&small));
        assert!(keep(&mut kept, 300, 0).is_some());
    }

    #[test]
    fn few_are_looked_at_for_one_more() {
        let mut kept = KeptContents::new(100 * ENTRY_LEN);
        let files: Vec<_> = (0..100).map(|_| keep(&mut kept, 0, 0)).collect();
        assert!(files.iter().all(is_there));
        // The entries at the front are in use.
        for contents in kept.kept.iter().take(LOOKS) {
            contents.take(IDLE_TICKS);
        }
        assert!(keep(&mut kept, 0, IDLE_TICKS).is_none());
        assert!(keep(&mut kept, 0, IDLE_TICKS).is_some());
        assert_eq!((kept.kept.len(), kept.len), (100, 100 * ENTRY_LEN));
    }
}
