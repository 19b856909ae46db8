//! Families of metrics: their descriptions, and the values of an object in each. Output formats
//! are elsewhere.

use crate::histogram::Distribution;
use crate::reasons::Reasons;
use crate::sums::{Ends, GrpcStatuses, StatusFigures};

/// How a family's values change over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// They only grow.
    Counter,
    /// They rise and fall.
    Gauge,
    /// They are distributions of times.
    Seconds,
    /// They are distributions of sizes.
    Bytes,
}

impl Kind {
    /// The word of the formats.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Seconds | Kind::Bytes => "histogram",
        }
    }
}

/// The values of one object in a family.
#[derive(Debug, Clone)]
pub enum Reading<'a> {
    /// Nothing: there is no limit, or the kernel does not tell.
    Absent,
    /// A number.
    One(Value),
    /// How values are distributed.
    Distribution(&'a Distribution),
    /// By class of status; without a name a class is left out.
    Classes {
        /// The label that tells them apart.
        label: &'static str,
        /// Names of the classes.
        names: &'static [&'static str; 6],
        /// Counts of each.
        status: &'a StatusFigures,
    },
    /// By how exchanges ended: those words that occurred.
    Ends(&'a Ends),
    /// Counts by the status of gRPC calls, of the statuses that occurred.
    Grpc(&'a GrpcStatuses),
    /// By a word such as a reason: every word.
    Reasons {
        /// The label that tells them apart.
        label: &'static str,
        /// Counts of each.
        counts: &'a Reasons,
    },
    /// One value for each state: 1 for the current one, 0 for the others.
    State {
        /// Every state.
        all: &'static [&'static str],
        /// The current state.
        is: &'static str,
    },
    /// By state, how many there are.
    States(Vec<(&'static str, u64)>),
}

/// A number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// A number, shown unchanged.
    Whole(u64),
    /// Microseconds, shown in seconds.
    Micros(u64),
    /// Milliseconds, shown in seconds.
    Millis(u64),
    /// A number, shown unchanged.
    Real(f64),
}

impl Value {
    /// The number that is shown.
    pub fn as_f64(self) -> f64 {
        match self {
            Value::Whole(value) => value as f64,
            Value::Micros(value) => value as f64 / 1e6,
            Value::Millis(value) => value as f64 / 1e3,
            Value::Real(value) => value,
        }
    }
}

/// A family of the objects of type `T`, with what each of them shows.
pub struct Metric<T> {
    /// Its name, without the common prefix of the objects' families.
    pub name: &'static str,
    /// How its values change over time.
    pub kind: Kind,
    /// A sentence for people, without line breaks or backslashes.
    pub help: &'static str,
    /// The family that it comes after; `None` for the one before it.
    pub after: Option<&'static str>,
    /// Reads the values of an object.
    pub read: for<'a> fn(&'a T) -> Reading<'a>,
}

/// A row of a table of metrics.
pub const fn metric<T>(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    read: for<'a> fn(&'a T) -> Reading<'a>,
) -> Metric<T> {
    Metric {
        name,
        kind,
        help,
        after: None,
        read,
    }
}

/// The families in the order of output: the order of the table, but a family with `after`
/// follows the named one.
pub fn in_order<T>(metrics: &[Metric<T>]) -> Vec<&Metric<T>> {
    let (mut moved, mut order): (Vec<_>, Vec<_>) =
        metrics.iter().partition(|it| it.after.is_some());
    // One may come after another that is moved, too.
    while !moved.is_empty() {
        let left = moved.len();
        moved.retain(|metric: &&Metric<T>| {
            let before = order.iter().position(|it| Some(it.name) == metric.after);
            if let Some(before) = before {
                order.insert(before + 1, *metric);
            }
            before.is_none()
        });
        debug_assert!(
            moved.len() < left,
            "a family comes after one that is not there"
        );
        if moved.len() == left {
            order.append(&mut moved);
        }
    }
    order
}

/// A count, or a level that is a whole number.
pub fn whole(value: impl Into<u64>) -> Reading<'static> {
    Reading::One(Value::Whole(value.into()))
}

/// A number that may be unknown.
pub fn maybe(value: Option<impl Into<u64>>) -> Reading<'static> {
    value.map_or(Reading::Absent, whole)
}

/// A figure that a family can show directly.
pub trait Shown {
    /// The value to show.
    fn reading(&self) -> Reading<'_>;
}

macro_rules! shown_whole {
    ($($type:ty),*) => {$(
        impl Shown for $type {
            fn reading(&self) -> Reading<'_> {
                whole(*self)
            }
        }

        impl Shown for Option<$type> {
            fn reading(&self) -> Reading<'_> {
                maybe(*self)
            }
        }
    )*};
}

shown_whole!(u64, u32, u16, bool);

impl Shown for usize {
    fn reading(&self) -> Reading<'_> {
        whole(*self as u64)
    }
}

impl Shown for f64 {
    fn reading(&self) -> Reading<'_> {
        Reading::One(Value::Real(*self))
    }
}

impl Shown for Distribution {
    fn reading(&self) -> Reading<'_> {
        Reading::Distribution(self)
    }
}

impl Shown for Ends {
    fn reading(&self) -> Reading<'_> {
        Reading::Ends(self)
    }
}

impl Shown for GrpcStatuses {
    fn reading(&self) -> Reading<'_> {
        Reading::Grpc(self)
    }
}

impl Shown for StatusFigures {
    fn reading(&self) -> Reading<'_> {
        Reading::Classes {
            label: "class",
            names: &StatusFigures::CLASSES,
            status: self,
        }
    }
}

impl Shown for Reasons {
    fn reading(&self) -> Reading<'_> {
        Reading::Reasons {
            label: "reason",
            counts: self,
        }
    }
}
