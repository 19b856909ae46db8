//! Counts by the word of a reason: why something was refused, or failed.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Serialize, Serializer};

use crate::saved::Saved;

/// How often something was refused or failed, by the word of its reason. Any thread may
/// count.
#[derive(Debug)]
pub struct ReasonCounts {
    words: &'static [&'static str],
    /// Of each word.
    counts: Box<[AtomicU64]>,
}

impl ReasonCounts {
    /// None yet, of reasons with these words.
    pub fn new(words: &'static [&'static str]) -> Self {
        ReasonCounts {
            words,
            counts: words.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Counts one more.
    pub fn note(&self, word: &'static str) {
        let at = self.words.iter().position(|it| *it == word);
        debug_assert!(at.is_some(), "no reason has the word {word}");
        if let Some(at) = at {
            self.counts[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The counts so far.
    pub fn read(&self) -> Reasons {
        let counts = self.counts.iter().map(|it| it.load(Ordering::Relaxed));
        Reasons(self.words.iter().copied().zip(counts).collect())
    }

    /// The counts so far, for the process that continues them.
    pub fn save(&self) -> Saved {
        let counts = self.read();
        Saved::named(
            counts
                .iter()
                .map(|(word, count)| (word, Saved::number(count))),
        )
    }

    /// Adds the counts of another process that exceed `before`.
    pub fn add(&self, saved: &Saved, before: &Saved) {
        for (word, count) in self.words.iter().zip(&self.counts) {
            let more = saved.of(word).value();
            let more = more.saturating_sub(before.of(word).value());
            count.fetch_add(more, Ordering::Relaxed);
        }
    }
}

/// How often it was so, by the word of the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reasons(Vec<(&'static str, u64)>);

impl Reasons {
    /// Every word with its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().copied()
    }

    /// Every word with its count, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut u64)> {
        self.0.iter_mut().map(|(word, count)| (*word, count))
    }

    /// Only the reasons that occurred.
    #[must_use]
    pub fn occurred(mut self) -> Self {
        self.0.retain(|(_, count)| *count > 0);
        self
    }

    /// Of one word.
    pub fn count(&self, word: &str) -> u64 {
        let found = self.iter().find(|(it, _)| *it == word);
        found.map_or(0, |(_, count)| count)
    }

    /// For whatever reason.
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum()
    }
}

impl Serialize for Reasons {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_goes_on_counting() {
        let [before, after] = [(); 2].map(|()| ReasonCounts::new(&["full", "late"]));
        before.note("late");
        after.note("full");
        let first = before.save();
        after.add(&first, &Saved::Nothing);
        before.note("late");
        after.add(&before.save(), &first);
        assert_eq!(after.read(), Reasons(vec![("full", 1), ("late", 2)]));
        assert_eq!(after.read().total(), 3);
    }
}
