//! What cells of several workers come to together, as JSON shows it.

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::cells::{Counter, EndCounters, Gauge, Lazy};
use crate::end::End;
use crate::histogram::{Distribution, Histogram};

/// How much is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Everything.
    Full,
    /// Without the distributions that a table gives to `Full` alone. It costs a
    /// fifth where nothing waits.
    Brief,
}

/// Something that workers count, each in cells of its own.
pub trait Cell {
    /// What the cells of all workers come to.
    type Sum: Default;

    /// Adds what was counted so far.
    fn add_to(&self, sum: &mut Self::Sum, detail: Detail);
}

impl Cell for Counter {
    type Sum = u64;

    fn add_to(&self, sum: &mut u64, _: Detail) {
        *sum += self.value();
    }
}

impl Cell for Gauge {
    type Sum = u64;

    fn add_to(&self, sum: &mut u64, _: Detail) {
        *sum += self.value();
    }
}

impl Cell for [Counter; 6] {
    type Sum = StatusFigures;

    fn add_to(&self, sum: &mut StatusFigures, _: Detail) {
        for (sum, counter) in sum.0.iter_mut().zip(self) {
            *sum += counter.value();
        }
    }
}

impl Cell for EndCounters {
    type Sum = Ends;

    fn add_to(&self, sum: &mut Ends, _: Detail) {
        sum.0.resize(End::COUNT, 0);
        for (sum, counter) in sum.0.iter_mut().zip(self.iter()) {
            *sum += counter.value();
        }
    }
}

impl Cell for Histogram {
    type Sum = Distribution;

    fn add_to(&self, sum: &mut Distribution, _: Detail) {
        sum.add(self);
    }
}

impl<T: Cell + Default> Cell for Lazy<T> {
    type Sum = T::Sum;

    fn add_to(&self, sum: &mut T::Sum, detail: Detail) {
        if let Some(cells) = self.get() {
            cells.add_to(sum, detail);
        }
    }
}

/// The sum of cells.
pub fn sum<'a, C: Cell + 'a>(cells: impl IntoIterator<Item = &'a C>) -> C::Sum {
    let mut sum = C::Sum::default();
    for cell in cells {
        cell.add_to(&mut sum, Detail::Full);
    }
    sum
}

/// Responses by class; those without a status are exchanges without an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatusFigures(pub [u64; 6]);

impl StatusFigures {
    /// The names of the classes, in order.
    pub const CLASSES: [&'static str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];
    /// The same, without the class of no status.
    pub const ANSWERED: [&'static str; 6] = ["", "1xx", "2xx", "3xx", "4xx", "5xx"];
}

impl Serialize for StatusFigures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (class, count) in Self::CLASSES.iter().zip(self.0) {
            map.serialize_entry(class, &count)?;
        }
        map.end()
    }
}

/// Number of exchanges by how they ended, in the order of [`End::index`];
/// empty where none ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ends(Vec<u64>);

impl Ends {
    /// Number of exchanges whose end is one of some.
    pub fn sum(&self, is_one: impl Fn(End) -> bool) -> u64 {
        let counted = self.iter().filter(|(end, _)| is_one(*end));
        counted.map(|(_, count)| count).sum()
    }

    /// Number of exchanges that ended like this.
    pub fn count(&self, end: End) -> u64 {
        self.0.get(end.index()).copied().unwrap_or(0)
    }

    /// Every end that occurred, with how often.
    pub fn iter(&self) -> impl Iterator<Item = (End, u64)> {
        End::all()
            .zip(&self.0)
            .map(|(end, count)| (end, *count))
            .filter(|(_, count)| *count > 0)
    }
}

impl Serialize for Ends {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(end, count)| (end.word(), count)))
    }
}
