//! The counts of cells, as one process hands them to the next.
//!
//! Figures are identified by name, so that a program with more or fewer figures can read the
//! counts of another.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Counts of one cell or of several.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Saved {
    /// Nothing was counted.
    #[default]
    Nothing,
    /// Of one counter.
    Number(u64),
    /// Of counters in a row.
    Numbers(Vec<u64>),
    /// Of cells with names.
    Named(BTreeMap<String, Saved>),
}

impl Saved {
    /// Cells with names, without empty ones.
    pub fn named<'a>(cells: impl IntoIterator<Item = (&'a str, Saved)>) -> Self {
        let cells = cells.into_iter().filter(|(_, it)| !it.is_nothing());
        let cells: BTreeMap<_, _> = cells.map(|(name, it)| (name.to_owned(), it)).collect();
        if cells.is_empty() {
            Saved::Nothing
        } else {
            Saved::Named(cells)
        }
    }

    /// A row of counters; [`Saved::Nothing`] if all are zero.
    pub fn numbers(counts: Vec<u64>) -> Self {
        if counts.iter().all(|it| *it == 0) {
            Saved::Nothing
        } else {
            Saved::Numbers(counts)
        }
    }

    /// A counter, unless it counted nothing.
    pub fn number(count: u64) -> Self {
        match count {
            0 => Saved::Nothing,
            _ => Saved::Number(count),
        }
    }

    /// Whether nothing was counted.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Saved::Nothing)
    }

    /// The counts under a name.
    pub fn of(&self, name: &str) -> &Saved {
        match self {
            Saved::Named(cells) => cells.get(name).unwrap_or(&Saved::Nothing),
            _ => &Saved::Nothing,
        }
    }

    /// Everything that stands under a name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Saved)> {
        let cells = match self {
            Saved::Named(cells) => Some(cells),
            _ => None,
        };
        let cells = cells.into_iter().flatten();
        cells.map(|(name, it)| (name.as_str(), it))
    }

    /// The number of a counter.
    pub fn value(&self) -> u64 {
        match self {
            Saved::Number(count) => *count,
            _ => 0,
        }
    }

    /// The numbers of counters in a row.
    pub fn values(&self) -> &[u64] {
        match self {
            Saved::Numbers(counts) => counts,
            _ => &[],
        }
    }

    /// Adds the counts of cells of the same kind.
    pub fn add(&mut self, other: Saved) {
        match (self, other) {
            (_, Saved::Nothing) => {}
            (Saved::Number(count), Saved::Number(more)) => *count += more,
            (Saved::Numbers(counts), Saved::Numbers(more)) => {
                counts.resize(counts.len().max(more.len()), 0);
                counts
                    .iter_mut()
                    .zip(more)
                    .for_each(|(it, more)| *it += more);
            }
            (Saved::Named(cells), Saved::Named(more)) => {
                for (name, more) in more {
                    cells.entry(name).or_default().add(more);
                }
            }
            (this, other) => {
                if this.is_nothing() {
                    *this = other;
                }
            }
        }
    }

    /// The counts added since these earlier counts of the same cells. A count that has become
    /// smaller adds nothing.
    #[must_use]
    pub fn since(&self, before: &Saved) -> Saved {
        match (self, before) {
            (Saved::Number(count), Saved::Number(before)) => {
                Saved::number(count.saturating_sub(*before))
            }
            (Saved::Numbers(counts), Saved::Numbers(before)) => {
                let before = before.iter().copied().chain(std::iter::repeat(0));
                let counts = counts.iter().zip(before);
                let since = counts.map(|(count, before)| count.saturating_sub(before));
                Saved::numbers(since.collect())
            }
            (Saved::Named(cells), before) => {
                let cells = cells.iter();
                Saved::named(cells.map(|(name, it)| (&**name, it.since(before.of(name)))))
            }
            (this, _) => this.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_since_is_what_adds_up_to_it() {
        let of = |a, numbers: &[u64], b| {
            Saved::named([
                ("a", Saved::number(a)),
                ("numbers", Saved::numbers(numbers.to_vec())),
                ("cells", Saved::named([("b", Saved::number(b))])),
            ])
        };
        let (before, now) = (of(3, &[1, 0], 0), of(5, &[1, 4, 2], 7));
        let since = now.since(&before);
        assert_eq!(since, of(2, &[0, 4, 2], 7));
        let mut sum = before.clone();
        sum.add(since);
        assert_eq!(sum, now);
        assert_eq!(now.since(&Saved::Nothing), now);
        assert!(now.since(&now).is_nothing() && before.since(&now).is_nothing());
    }
}
