//! The most frequent texts of late, in bounded memory.
//!
//! The algorithm is Space-Saving (Metwally, Agrawal and El Abbadi, "Efficient Computation of
//! Frequent and Top-k Elements in Data Streams", 2005).
//!
//! Time is cut into periods. Counts are of the present period and the one before it; older
//! ones are forgotten.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Texts that are kept of a period. Each one that makes up more than this part of all is
/// among them.
pub const PLACES: usize = 48;

/// A reason: its word, and half a sentence.
pub type Reason = [&'static str; 2];

/// Counts texts, each with a reason. One worker adds, and anybody reads.
#[derive(Debug, Default)]
pub struct Frequent {
    periods: Mutex<Periods>,
    /// Hashing with a random seed, so that nobody can make texts that collide.
    hashing: RandomState,
}

#[derive(Debug, Default)]
struct Periods {
    /// The number of the present one.
    period: u64,
    present: Period,
    before: Period,
}

/// The texts of one period.
#[derive(Debug, Default)]
struct Period {
    /// The hash of each place; kept apart, because all of them are searched each time.
    hashes: Vec<u64>,
    places: Vec<Place>,
    total: u64,
}

#[derive(Debug)]
struct Place {
    count: u64,
    /// How many of them may have been other texts, whose place this one took.
    doubtful: u64,
    reason: Reason,
    text: Vec<u8>,
}

/// A text that occurred often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occurred {
    /// How often, at least.
    pub count: u64,
    /// The reason that came with it last.
    pub reason: Reason,
}

/// Texts of late, over all workers.
#[derive(Debug, Default)]
pub struct MostFrequent {
    texts: HashMap<Vec<u8>, Occurred>,
    /// Number of all texts.
    pub total: u64,
}

impl Frequent {
    /// Counts a text, in the period with this number; numbers never decrease.
    pub fn note(&self, period: u64, text: &[u8], reason: Reason) {
        let hash = self.hashing.hash_one(text);
        let mut periods = self.lock();
        periods.go_to(period);
        periods.present.note(hash, text, reason);
    }

    /// Adds what occurred in the period with this number and in the one before it.
    pub fn add_to(&self, sum: &mut MostFrequent, period: u64) {
        let mut periods = self.lock();
        periods.go_to(period);
        for period in [&periods.before, &periods.present] {
            sum.total += period.total;
            for place in &period.places {
                sum.add(place);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Periods> {
        self.periods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Periods {
    fn go_to(&mut self, period: u64) {
        if period <= self.period {
            // A reader's clock may be ahead of the worker's.
            return;
        }
        if period - self.period == 1 {
            std::mem::swap(&mut self.present, &mut self.before);
        } else {
            self.before.clear();
        }
        self.present.clear();
        self.period = period;
    }
}

impl Period {
    fn clear(&mut self) {
        self.hashes.clear();
        self.places.clear();
        self.total = 0;
    }

    fn note(&mut self, hash: u64, text: &[u8], reason: Reason) {
        self.total += 1;
        if let Some(at) = self.hashes.iter().position(|it| *it == hash) {
            let place = &mut self.places[at];
            place.count += 1;
            place.reason = reason;
            return;
        }
        if self.places.len() < PLACES {
            self.hashes.push(hash);
            self.places.push(Place {
                count: 1,
                doubtful: 0,
                reason,
                text: text.to_vec(),
            });
            return;
        }
        let places = self.places.iter_mut().enumerate();
        if let Some((at, least)) = places.min_by_key(|(_, it)| it.count) {
            self.hashes[at] = hash;
            least.doubtful = least.count;
            least.count += 1;
            least.reason = reason;
            least.text.clear();
            least.text.extend_from_slice(text);
        }
    }
}

impl MostFrequent {
    fn add(&mut self, place: &Place) {
        let count = place.count - place.doubtful;
        let reason = place.reason;
        let occurred =
            (self.texts.entry(place.text.clone())).or_insert(Occurred { count: 0, reason });
        occurred.count += count;
        occurred.reason = reason;
    }

    /// The texts that occurred most often, `most` at most, the most frequent first.
    pub fn first(self, most: usize) -> Vec<(Vec<u8>, Occurred)> {
        let mut texts: Vec<_> = self.texts.into_iter().collect();
        texts.sort_by(|(text, it), (other_text, other)| {
            other.count.cmp(&it.count).then(text.cmp(other_text))
        });
        texts.truncate(most);
        texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(of: &[&Frequent], period: u64, most: usize) -> (u64, Vec<(String, u64)>) {
        let mut sum = MostFrequent::default();
        of.iter().for_each(|it| it.add_to(&mut sum, period));
        let total = sum.total;
        let texts = sum.first(most).into_iter();
        let texts = texts.map(|(text, it)| (String::from_utf8(text).unwrap(), it.count));
        (total, texts.collect())
    }

    fn texts(of: &[(&str, u64)]) -> Vec<(String, u64)> {
        of.iter()
            .map(|(text, it)| ((*text).to_owned(), *it))
            .collect()
    }

    #[test]
    fn what_is_frequent_is_found_among_much_that_is_rare() {
        let frequent = Frequent::default();
        for number in 0..10_000 {
            if number % 10 == 0 {
                frequent.note(7, b"often", ["no-store", ""]);
            }
            if number % 20 == 0 {
                frequent.note(7, b"less", ["private", ""]);
            }
            frequent.note(7, format!("once {number}").as_bytes(), ["uri-miss", ""]);
        }
        let (total, found) = first(&[&frequent], 7, 3);
        assert_eq!(total, 11_500);
        let [(often, count), (less, count_of_less), (_, rare)] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!((&**often, &**less), ("often", "less"));
        // A count never exceeds the true one.
        assert!((900..=1000).contains(count), "{found:?}");
        assert!((400..=500).contains(count_of_less), "{found:?}");
        assert_eq!(*rare, 1, "{found:?}");
    }

    #[test]
    fn what_is_long_ago_is_forgotten() {
        let frequent = Frequent::default();
        frequent.note(3, b"a", ["x", ""]);
        frequent.note(3, b"a", ["x", ""]);
        frequent.note(4, b"b", ["x", ""]);
        frequent.note(4, b"a", ["x", ""]);
        assert_eq!(first(&[&frequent], 4, 9), (4, texts(&[("a", 3), ("b", 1)])));
        // A late worker counts in the period that is.
        frequent.note(3, b"b", ["x", ""]);
        assert_eq!(first(&[&frequent], 5, 9), (3, texts(&[("b", 2), ("a", 1)])));
        assert_eq!(first(&[&frequent], 6, 9), (0, vec![]));
        frequent.note(6, b"c", ["x", ""]);
        assert_eq!(first(&[&frequent], 8, 9), (0, vec![]));
    }

    #[test]
    fn workers_are_added_up() {
        let workers = [Frequent::default(), Frequent::default()];
        for (worker, text) in [(0, "a"), (1, "a"), (1, "b"), (0, "c"), (1, "b"), (1, "a")] {
            workers[worker].note(1, text.as_bytes(), ["x", ""]);
        }
        let (total, found) = first(&[&workers[0], &workers[1]], 1, 2);
        assert_eq!((total, found), (6, texts(&[("a", 3), ("b", 2)])));
    }
}
