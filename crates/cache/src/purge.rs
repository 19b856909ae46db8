//! Purges in constant time: a purge leaves a mark, and an object is compared with newer marks
//! when it is next asked for.
//!
//! Purges are counted. An object carries the count up to which it is known to have survived. At
//! first that is the count when it was requested, so that a response from before a purge is not
//! stored after it. Marks are dropped once a sweep has looked at all objects. When there are
//! too many, the oldest become coarser: they purge more, never less.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::key::{Key, Secret};
use crate::object::{Object, tag_hash};

/// The objects that a purge selects.
#[derive(Debug, Clone, Copy)]
pub enum Purge<'a> {
    /// Every object.
    Everything,
    /// Objects with this URL, whatever else is in their keys.
    Url(&'a [u8]),
    /// Objects whose URL begins with this prefix.
    Prefix(&'a [u8]),
    /// Objects with this tag.
    Tag(&'a [u8]),
}

/// A purge as it is remembered, with hashes of long texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Every object.
    Everything,
    /// The hash of a URL.
    Url(u128),
    /// The beginning of a URL.
    Prefix(Box<[u8]>),
    /// The hash of a tag.
    Tag(u64),
    /// Every object with a tag: there were too many tags to remember each.
    AnyTag,
}

impl Target {
    fn of(secret: &Secret, what: Purge<'_>) -> Self {
        match what {
            Purge::Everything => Target::Everything,
            Purge::Url(url) => Target::Url(secret.hash(url)),
            Purge::Prefix(prefix) => Target::Prefix(prefix.into()),
            Purge::Tag(tag) => Target::Tag(tag_hash(secret, tag)),
        }
    }
}

/// A purge as an entry of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// The count of purges, including this one.
    pub count: u64,
    /// Whether the objects are dropped or become stale.
    pub strength: Strength,
    /// The objects that it selects.
    pub target: Target,
}

/// Whether purged objects are dropped or become stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strength {
    /// The object is dropped.
    Hard,
    /// The object becomes stale: served while it is validated, or if validation fails, where
    /// that is allowed.
    Soft,
}

/// The effect of purges on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The object survived.
    Alive,
    /// The object must be dropped.
    Gone,
}

/// Most marks of URLs, and of tags.
const MAX_MARKS: usize = 1 << 16;
/// Most marks of prefixes. An object is compared with each.
const MAX_PREFIXES: usize = 64;

/// The marks of one store.
#[derive(Debug)]
pub struct Purges {
    /// Number of purges so far.
    count: AtomicU64,
    /// Objects requested before this count are not stored any more: marks for them may have
    /// been dropped.
    forgotten: AtomicU64,
    /// Marks newer than this are kept for objects on a disk.
    held: AtomicU64,
    marks: RwLock<Marks>,
}

#[derive(Debug, Default)]
struct Marks {
    /// The count of the last hard purge of a tag.
    newest_tag: u64,
    everything: Mark,
    /// Marks by the hash of the URL.
    urls: HashMap<u128, Mark>,
    prefixes: Vec<(Box<[u8]>, Mark)>,
    tags: HashMap<u64, Mark>,
    /// The mark for every object with a tag.
    any_tag: Mark,
}

/// The counts of the newest purges of a target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Mark {
    hard: u64,
    soft: u64,
}

impl Mark {
    fn set(&mut self, strength: Strength, count: u64) {
        match strength {
            Strength::Hard => self.hard = self.hard.max(count),
            Strength::Soft => self.soft = self.soft.max(count),
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
            held: AtomicU64::new(u64::MAX),
            marks: RwLock::default(),
        }
    }
}

impl Purges {
    /// Number of purges so far. An object requested now is created with it.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Whether an object requested at this count can still be compared with all marks for it.
    pub fn knows(&self, seen: u64) -> bool {
        seen >= self.forgotten.load(Ordering::Acquire)
    }

    /// Leaves a mark. Every later look at an object heeds it.
    pub fn purge(&self, secret: &Secret, what: Purge<'_>, strength: Strength) {
        let mut marks = self.marks.write().unwrap_or_else(PoisonError::into_inner);
        let count = self.count.load(Ordering::Relaxed) + 1;
        marks.set(Target::of(secret, what), strength, count);
        self.count.store(count, Ordering::Release);
    }

    /// The next purge, for a log that is written before [`apply`](Self::apply). There must be
    /// no other purge in between.
    pub fn next(&self, secret: &Secret, what: Purge<'_>, strength: Strength) -> Marked {
        Marked {
            count: self.count() + 1,
            strength,
            target: Target::of(secret, what),
        }
    }

    /// Leaves the mark of a purge from a log.
    pub fn apply(&self, marked: Marked) {
        let mut marks = self.marks.write().unwrap_or_else(PoisonError::into_inner);
        marks.set(marked.target, marked.strength, marked.count);
        self.count.fetch_max(marked.count, Ordering::Release);
    }

    /// Raises the count to at least this. Marks of earlier purges may be lost.
    pub fn count_from(&self, count: u64) {
        self.count.fetch_max(count, Ordering::AcqRel);
    }

    /// All marks, the oldest first.
    pub fn marked(&self) -> Vec<Marked> {
        let marks = self.marks.read().unwrap_or_else(PoisonError::into_inner);
        let mut all = vec![
            (Target::Everything, marks.everything),
            (Target::AnyTag, marks.any_tag),
        ];
        all.extend(
            marks
                .urls
                .iter()
                .map(|(url, mark)| (Target::Url(*url), *mark)),
        );
        all.extend(
            marks
                .tags
                .iter()
                .map(|(tag, mark)| (Target::Tag(*tag), *mark)),
        );
        let prefixes = marks.prefixes.iter();
        all.extend(prefixes.map(|(prefix, mark)| (Target::Prefix(prefix.clone()), *mark)));
        let each = all.into_iter().flat_map(|(target, mark)| {
            let by = [(Strength::Hard, mark.hard), (Strength::Soft, mark.soft)];
            by.map(|(strength, count)| Marked {
                count,
                strength,
                target: target.clone(),
            })
        });
        let mut all: Vec<Marked> = each.filter(|marked| marked.count > 0).collect();
        all.sort_by_key(|marked| marked.count);
        all
    }

    /// Keeps marks newer than `count`, which objects on a disk may need.
    pub fn hold(&self, count: u64) {
        self.held.store(count, Ordering::Release);
    }

    /// The fate of an object. Makes it stale if a soft purge selected it.
    ///
    /// Costs one comparison if there was no purge since the last look.
    pub fn judge(&self, secret: &Secret, object: &Object) -> Fate {
        let seen = object.seen();
        if seen >= self.count() {
            return Fate::Alive;
        }
        let marks = self.marks.read().unwrap_or_else(PoisonError::into_inner);
        // Another purge would need the lock.
        let count = self.count();
        let mark = marks.of(secret, object, seen);
        if mark.hard > seen {
            return Fate::Gone;
        }
        object.set_seen(count, mark.soft > seen);
        Fate::Alive
    }

    /// Whether a hard purge since this count may select a response that has not come yet. Its
    /// tags are not known.
    pub fn may_concern(&self, secret: &Secret, key: &Key, seen: u64) -> bool {
        if seen >= self.count() {
            return false;
        }
        let marks = self.marks.read().unwrap_or_else(PoisonError::into_inner);
        let of_url = marks.of_url(secret, key.url(), seen);
        marks.everything.hard.max(marks.newest_tag).max(of_url.hard) > seen
    }

    /// Drops the marks up to `count`, after a sweep has looked at all objects of that time.
    /// Marks that are [held](Self::hold) stay.
    pub fn forget(&self, count: u64) {
        let count = count.min(self.held.load(Ordering::Acquire));
        let mut marks = self.marks.write().unwrap_or_else(PoisonError::into_inner);
        marks.urls.retain(|_, mark| mark.newest() > count);
        marks.tags.retain(|_, mark| mark.newest() > count);
        marks.prefixes.retain(|(_, mark)| mark.newest() > count);
        self.forgotten.fetch_max(count, Ordering::Release);
    }
}

impl Marks {
    fn set(&mut self, target: Target, strength: Strength, count: u64) {
        match target {
            Target::Everything => self.everything.set(strength, count),
            Target::AnyTag => {
                self.note_tag(strength, count);
                self.any_tag.set(strength, count);
            }
            Target::Url(url) => self.urls.entry(url).or_default().set(strength, count),
            Target::Prefix(prefix) => self.add_prefix(&prefix, strength, count),
            Target::Tag(tag) => {
                self.note_tag(strength, count);
                self.tags.entry(tag).or_default().set(strength, count);
            }
        }
        self.bound();
    }

    /// The newest marks for an object; includes all marks newer than `seen`.
    fn of(&self, secret: &Secret, object: &Object, seen: u64) -> Mark {
        let mut found = self.everything;
        let mut tags = object.tags().peekable();
        if tags.peek().is_some() {
            found.merge(self.any_tag);
        }
        for tag in tags {
            found.merge(self.tags.get(&tag).copied().unwrap_or_default());
        }
        found.merge(self.of_url(secret, object.url(), seen));
        found
    }

    /// The newest marks for a URL and its beginnings; includes all marks newer than `seen`.
    fn of_url(&self, secret: &Secret, url: &[u8], seen: u64) -> Mark {
        let mut found = Mark::default();
        if !self.urls.is_empty() {
            let url = secret.hash(url);
            found.merge(self.urls.get(&url).copied().unwrap_or_default());
        }
        for (prefix, mark) in &self.prefixes {
            if mark.newest() > seen && url.starts_with(prefix) {
                found.merge(*mark);
            }
        }
        found
    }

    fn note_tag(&mut self, strength: Strength, count: u64) {
        if strength == Strength::Hard {
            self.newest_tag = self.newest_tag.max(count);
        }
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

    /// Makes the oldest marks coarser if there are too many.
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

/// Drops the older half of the marks if there are too many; returns the newest dropped counts.
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
    fn marks_come_back_from_a_log() {
        let purges = Purges::default();
        for (what, strength) in [
            (Purge::Url(b"http://example.com/a"), Strength::Hard),
            (Purge::Prefix(b"http://example.com/b"), Strength::Soft),
            (Purge::Tag(b"c"), Strength::Soft),
            (Purge::Tag(b"c"), Strength::Hard),
            (Purge::Everything, Strength::Soft),
        ] {
            let next = purges.next(&SECRET, what, strength);
            purges.purge(&SECRET, what, strength);
            assert_eq!(purges.count(), next.count);
            assert_eq!(purges.marked().last(), Some(&next));
        }
        let again = Purges::default();
        let mut newest_first = purges.marked();
        newest_first.reverse();
        for marked in newest_first {
            again.apply(marked);
        }
        assert_eq!((again.count(), again.marked()), (5, purges.marked()));
        assert_eq!(again.marked().len(), 5);
        let tagged = object("/x", "", "Surrogate-Key: c", b"", 3);
        assert_eq!(again.judge(&SECRET, &tagged), Fate::Gone);
        again.apply(Marked {
            count: 9,
            strength: Strength::Hard,
            target: Target::AnyTag,
        });
        let tagged = object("/x", "", "Surrogate-Key: d", b"", 8);
        assert_eq!(again.judge(&SECRET, &tagged), Fate::Gone);
        // A disk has objects from the third purge on.
        again.hold(3);
        again.forget(9);
        let counts: Vec<_> = again.marked().iter().map(|it| it.count).collect();
        // Only a mark whose counts are all old is dropped.
        assert_eq!(counts, [3, 4, 5, 9]);
        assert!(again.knows(3) && !again.knows(2));
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
        // An object requested before the dropped mark can't be judged any more.
        assert!(!purges.knows(0) && purges.knows(count));
    }
}
