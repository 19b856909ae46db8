//! What was purged, in constant time: a purge leaves a mark, and an object is compared
//! with the marks that are newer when it is asked for next.
//!
//! Purges are counted. An object has the count as of which it is known to be alive: at
//! first that of the moment at which it was asked for, so that a response from before
//! a purge is not stored after it. Marks go once a sweep has looked at all objects.
//! Where there are too many, the oldest become coarser: they purge more, never less.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::key::Secret;
use crate::object::{Object, tag_hash};

/// What is purged.
#[derive(Debug, Clone, Copy)]
pub enum Purge<'a> {
    /// All of it.
    Everything,
    /// What has this URL, whatever else its key has.
    Url(&'a [u8]),
    /// What has a URL that begins so.
    Prefix(&'a [u8]),
    /// What has this tag.
    Tag(&'a [u8]),
}

/// What becomes of what is purged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strength {
    /// It is gone.
    Hard,
    /// It is stale: served while it is validated, or where that fails, if at all.
    Soft,
}

/// What purges have made of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is there.
    Alive,
    /// It is to be dropped.
    Gone,
}

/// Most marks of URLs, and of tags.
const MAX_MARKS: usize = 1 << 16;
/// Most marks of prefixes: each is compared with.
const MAX_PREFIXES: usize = 64;

/// The marks of one store.
#[derive(Debug)]
pub struct Purges {
    /// How many there were.
    count: AtomicU64,
    /// Objects that were asked for before this count are not stored any more: marks
    /// that concern them may have gone.
    forgotten: AtomicU64,
    marks: RwLock<Marks>,
}

#[derive(Debug, Default)]
struct Marks {
    everything: Mark,
    /// By the hash of the URL.
    urls: HashMap<u128, Mark>,
    prefixes: Vec<(Box<[u8]>, Mark)>,
    tags: HashMap<u64, Mark>,
    /// For every object with a tag.
    any_tag: Mark,
}

/// The counts of the newest purges of a thing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Mark {
    hard: u64,
    soft: u64,
}

impl Mark {
    fn set(&mut self, strength: Strength, count: u64) {
        match strength {
            Strength::Hard => self.hard = count,
            Strength::Soft => self.soft = count,
        }
    }

    fn merge(&mut self, other: Mark) {
        self.hard = self.hard.max(other.hard);
        self.soft = self.soft.max(other.soft);
    }

    fn newest(self) -> u64 {
        self.hard.max(self.soft)
    }
}

impl Default for Purges {
    fn default() -> Self {
        Purges {
            count: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            marks: RwLock::default(),
        }
    }
}

impl Purges {
    /// How many there were: what an object is made with that is asked for now.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Whether an object that was asked for at this count can still be compared with
    /// all marks that concern it.
    pub fn knows(&self, seen: u64) -> bool {
        seen >= self.forgotten.load(Ordering::Acquire)
    }

    /// Leaves a mark. Objects that are looked at from now on heed it.
    pub fn purge(&self, secret: &Secret, what: Purge<'_>, strength: Strength) {
        let mut marks = self.marks.write().unwrap_or_else(PoisonError::into_inner);
        let count = self.count.load(Ordering::Relaxed) + 1;
        match what {
            Purge::Everything => marks.everything.set(strength, count),
            Purge::Url(url) => {
                let url = secret.hash(url);
                marks.urls.entry(url).or_default().set(strength, count);
            }
            Purge::Prefix(prefix) => marks.add_prefix(prefix, strength, count),
            Purge::Tag(tag) => {
                let tag = tag_hash(secret, tag);
                marks.tags.entry(tag).or_default().set(strength, count);
            }
        }
        marks.bound();
        self.count.store(count, Ordering::Release);
    }

    /// What has become of an object; makes it stale where a soft purge did.
    ///
    /// Costs one comparison where nothing was purged since it was looked at last.
    pub fn judge(&self, secret: &Secret, object: &Object) -> Fate {
        let seen = object.seen();
        if seen >= self.count() {
            return Fate::Alive;
        }
        let marks = self.marks.read().unwrap_or_else(PoisonError::into_inner);
        // No purge comes in between: it would need the lock.
        let count = self.count();
        let mark = marks.of(secret, object, seen);
        if mark.hard > seen {
            return Fate::Gone;
        }
        object.set_seen(count, mark.soft > seen);
        Fate::Alive
    }

    /// Drops the marks up to `count`: all objects that were there then have been
    /// looked at since.
    pub fn forget(&self, count: u64) {
        let mut marks = self.marks.write().unwrap_or_else(PoisonError::into_inner);
        marks.urls.retain(|_, mark| mark.newest() > count);
        marks.tags.retain(|_, mark| mark.newest() > count);
        marks.prefixes.retain(|(_, mark)| mark.newest() > count);
        self.forgotten.fetch_max(count, Ordering::Release);
    }
}

impl Marks {
    /// The newest marks that concern an object, among them all that are newer than
    /// `seen`.
    fn of(&self, secret: &Secret, object: &Object, seen: u64) -> Mark {
        let mut found = self.everything;
        let mut tags = object.tags().peekable();
        if tags.peek().is_some() {
            found.merge(self.any_tag);
        }
        for tag in tags {
            found.merge(self.tags.get(&tag).copied().unwrap_or_default());
        }
        if !self.urls.is_empty() {
            let url = secret.hash(object.url());
            found.merge(self.urls.get(&url).copied().unwrap_or_default());
        }
        for (prefix, mark) in &self.prefixes {
            if mark.newest() > seen && object.url().starts_with(prefix) {
                found.merge(*mark);
            }
        }
        found
    }

    fn add_prefix(&mut self, prefix: &[u8], strength: Strength, count: u64) {
        match self.prefixes.iter_mut().find(|(it, _)| **it == *prefix) {
            Some((_, mark)) => mark.set(strength, count),
            None => {
                let mut mark = Mark::default();
                mark.set(strength, count);
                self.prefixes.push((prefix.into(), mark));
            }
        }
    }

    /// Makes the oldest marks coarser where there are too many.
    fn bound(&mut self) {
        if self.prefixes.len() > MAX_PREFIXES {
            self.prefixes.sort_by_key(|(_, mark)| mark.newest());
            let (oldest, mark) = self.prefixes.remove(0);
            let (next, kept) = &mut self.prefixes[0];
            let pairs = std::iter::zip(&oldest, &*next);
            let common = pairs.take_while(|(one, other)| one == other).count();
            *next = oldest[..common].into();
            kept.merge(mark);
        }
        let gone = drop_older_half(&mut self.tags);
        self.any_tag.merge(gone);
        let gone = drop_older_half(&mut self.urls);
        self.everything.merge(gone);
    }
}

/// Drops the older half of marks where there are too many; gives the newest of those.
fn drop_older_half<K: Eq + std::hash::Hash>(marks: &mut HashMap<K, Mark>) -> Mark {
    if marks.len() <= MAX_MARKS {
        return Mark::default();
    }
    let mut counts: Vec<u64> = marks.values().map(|mark| mark.newest()).collect();
    let (_, &mut median, _) = counts.select_nth_unstable(MAX_MARKS / 2);
    let mut gone = Mark::default();
    marks.retain(|_, mark| {
        let is_kept = mark.newest() > median;
        if !is_kept {
            gone.merge(*mark);
        }
        is_kept
    });
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::tests::{SECRET, object};

    #[test]
    fn finds_what_was_purged() {
        use Purge::{Everything, Prefix, Tag, Url};
        for (what, is_gone) in [
            (Everything, true),
            (Url(b"http://example.com/a/b?c"), true),
            (Url(b"http://example.com/a/b"), false),
            (Prefix(b"http://example.com/a/"), true),
            (Prefix(b"http://example.com/a/b?c"), true),
            (Prefix(b"http://example.com/b"), false),
            (Prefix(b""), true),
            (Tag(b"RED"), true),
            (Tag(b"re"), false),
        ] {
            let purges = Purges::default();
            let of = |seen| object("/a/b?c", "", "Surrogate-Key: red blue", b"", seen);
            let old = of(purges.count());
            assert_eq!(purges.judge(&SECRET, &old), Fate::Alive);
            purges.purge(&SECRET, what, Strength::Soft);
            assert_eq!(purges.judge(&SECRET, &old), Fate::Alive, "{what:?}");
            let is_purged = |it: &Object| it.stored(crate::object::tests::NOW).is_purged;
            assert_eq!(is_purged(&old), is_gone, "{what:?}");
            let asked_before = of(purges.count());
            purges.purge(&SECRET, what, Strength::Hard);
            let expected = if is_gone { Fate::Gone } else { Fate::Alive };
            assert_eq!(purges.judge(&SECRET, &old), expected, "{what:?}");
            assert_eq!(purges.judge(&SECRET, &asked_before), expected, "{what:?}");
            let new = of(purges.count());
            assert_eq!(purges.judge(&SECRET, &new), Fate::Alive, "{what:?}");
            assert!(!is_purged(&new));
        }
    }

    #[test]
    fn more_marks_than_are_kept_purge_more_and_never_less() {
        let purges = Purges::default();
        let first = object("/0/", "", "Surrogate-Key: t0", b"", 0);
        let other = object("/x", "", "Surrogate-Key: x", b"", 0);
        let bare = object("/x", "", "", b"", 0);
        for at in 0..=MAX_PREFIXES {
            let prefix = format!("http://example.com/{at}/");
            purges.purge(&SECRET, Purge::Prefix(prefix.as_bytes()), Strength::Hard);
        }
        assert_eq!(purges.judge(&SECRET, &first), Fate::Gone);
        assert_eq!(purges.marks.read().unwrap().prefixes.len(), MAX_PREFIXES);
        let purges = Purges::default();
        for at in 0..=MAX_MARKS {
            purges.purge(
                &SECRET,
                Purge::Tag(format!("t{at}").as_bytes()),
                Strength::Hard,
            );
        }
        assert_eq!(purges.judge(&SECRET, &first), Fate::Gone);
        assert_eq!(purges.judge(&SECRET, &other), Fate::Gone);
        assert_eq!(purges.judge(&SECRET, &bare), Fate::Alive);
        assert!(purges.marks.read().unwrap().tags.len() <= MAX_MARKS);
    }

    #[test]
    fn marks_go_when_all_were_looked_at() {
        let purges = Purges::default();
        purges.purge(&SECRET, Purge::Tag(b"a"), Strength::Hard);
        let count = purges.count();
        purges.purge(&SECRET, Purge::Url(b"b"), Strength::Hard);
        purges.forget(count);
        let marks = purges.marks.read().unwrap();
        assert_eq!((marks.tags.len(), marks.urls.len()), (0, 1));
        // Who asked before the mark comes too late.
        assert!(!purges.knows(0) && purges.knows(count));
    }
}
