//! Sums over the cells of several workers, in the form of JSON.

use serde::ser::{Serialize, SerializeMap, Serializer};

use evenkeel_proto::grpc;

use crate::cells::{Counter, EndCounters, GRPC_STATUSES, Gauge, GrpcCounters, Lazy};
use crate::end::End;
use crate::histogram::{Distribution, Histogram};
use crate::saved::Saved;

/// How much is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Everything.
    Full,
    /// Without the distributions that a table shows only in `Full`. It costs a fifth when
    /// nothing waits.
    Brief,
}

/// A figure that workers count, each in cells of its own.
pub trait Cell {
    /// The sum over the cells of all workers.
    type Sum: Default;

    /// Adds the counts so far.
    fn add_to(&self, sum: &mut Self::Sum, detail: Detail);

    /// The counts so far, for the process that continues them. Gauges are left out.
    fn save(&self) -> Saved;

    /// Has at least these counts from now on; only the worker that owns the cells may.
    fn raise(&self, saved: &Saved);
}

fn raise(counter: &Counter, count: u64) {
    counter.add(count.saturating_sub(counter.value()));
}

fn raise_all(counters: &[Counter], saved: &Saved) {
    for (counter, count) in counters.iter().zip(saved.values()) {
        raise(counter, *count);
    }
}

impl Cell for Counter {
    type Sum = u64;

    fn add_to(&self, sum: &mut u64, _: Detail) {
        *sum += self.value();
    }

    fn save(&self) -> Saved {
        Saved::number(self.value())
    }

    fn raise(&self, saved: &Saved) {
        raise(self, saved.value());
    }
}

impl Cell for Gauge {
    type Sum = u64;

    fn add_to(&self, sum: &mut u64, _: Detail) {
        *sum += self.value();
    }

    fn save(&self) -> Saved {
        Saved::Nothing
    }

    fn raise(&self, _: &Saved) {}
}

impl Cell for [Counter; 6] {
    type Sum = StatusFigures;

    fn add_to(&self, sum: &mut StatusFigures, _: Detail) {
        for (sum, counter) in sum.0.iter_mut().zip(self) {
            *sum += counter.value();
        }
    }

    fn save(&self) -> Saved {
        Saved::numbers(self.iter().map(Counter::value).collect())
    }

    fn raise(&self, saved: &Saved) {
        raise_all(self, saved);
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

    fn save(&self) -> Saved {
        let ends = End::all().zip(self.iter());
        Saved::named(ends.map(|(end, count)| (end.word(), Saved::number(count.value()))))
    }

    fn raise(&self, saved: &Saved) {
        for (end, counter) in End::all().zip(self.iter()) {
            raise(counter, saved.of(end.word()).value());
        }
    }
}

impl Cell for GrpcCounters {
    type Sum = GrpcStatuses;

    fn add_to(&self, sum: &mut GrpcStatuses, _: Detail) {
        sum.0.resize(GRPC_STATUSES, 0);
        for (sum, counter) in sum.0.iter_mut().zip(self.iter()) {
            *sum += counter.value();
        }
    }

    fn save(&self) -> Saved {
        let counts = GrpcStatuses::names().zip(self.iter());
        Saved::named(counts.map(|(name, count)| (name, Saved::number(count.value()))))
    }

    fn raise(&self, saved: &Saved) {
        for (name, counter) in GrpcStatuses::names().zip(self.iter()) {
            raise(counter, saved.of(name).value());
        }
    }
}

impl Cell for Histogram {
    type Sum = Distribution;

    fn add_to(&self, sum: &mut Distribution, _: Detail) {
        sum.add(self);
    }

    fn save(&self) -> Saved {
        Histogram::save(self)
    }

    fn raise(&self, saved: &Saved) {
        Histogram::raise(self, saved);
    }
}

impl<T: Cell + Default> Cell for Lazy<T> {
    type Sum = T::Sum;

    fn add_to(&self, sum: &mut T::Sum, detail: Detail) {
        if let Some(cells) = self.get() {
            cells.add_to(sum, detail);
        }
    }

    fn save(&self) -> Saved {
        self.get().map_or(Saved::Nothing, Cell::save)
    }

    fn raise(&self, saved: &Saved) {
        if !saved.is_nothing() {
            self.get_or_init().raise(saved);
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

/// Calls of gRPC by their status; empty where there was none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrpcStatuses(Vec<u64>);

impl GrpcStatuses {
    fn names() -> impl Iterator<Item = &'static str> {
        (0..GRPC_STATUSES as u32).map(grpc::name)
    }

    /// Every status that occurred, with how often.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = Self::names().zip(&self.0);
        counts
            .map(|(name, count)| (name, *count))
            .filter(|it| it.1 > 0)
    }
}

impl Serialize for GrpcStatuses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl Serialize for Ends {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(end, count)| (end.word(), count)))
    }
}
