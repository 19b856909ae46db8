//! One table for all figures of a kind of object.
//!
//! A row is a figure: its name in JSON, its family, and a sentence that is both its
//! documentation and the family's help. The rows define the cells that each worker writes, the
//! figures that readers see, their sums, JSON and the families.

/// Declares the figures of a kind of object, a row for each.
///
/// ```
/// evenkeel_metrics::figures! {
///     /// Figures of a door.
///     figures DoorFigures;
///     /// What is counted at a door.
///     cells DoorCounters;
///     /// What is known of a door otherwise.
///     given DoorGiven;
///
///     /// Its name.
///     given name: String;
///     /// Most people in the room; absent where there is no limit.
///     given limit: Option<u32> => gauge "room_limit";
///     /// People who came in.
///     counter entered => "entered_total";
///     /// How long the door stayed open.
///     seconds open_us => "open_seconds" if Full;
///     /// People who went out.
///     counter left => "left_total" after "entered_total";
/// }
///
/// let cells = [DoorCounters::default(), DoorCounters::default()];
/// cells.iter().for_each(|it| it.entered.add(3));
/// let given = DoorGiven { name: "front".into(), limit: None };
/// let figures = given.with(&cells, evenkeel_metrics::Detail::Full);
/// assert_eq!(figures.entered, 6);
/// assert_eq!(DoorFigures::METRICS[1].name, "entered_total");
/// ```
///
/// The rows have the order of JSON; `after` gives a family another place among the families. A
/// row is one of these:
///
/// - `counter`, `gauge`, `classes` (of status), `ends` (of exchanges), `seconds`, `bytes`:
///   counted by each worker in a cell; `if Full` leaves it out of
///   [`Detail::Brief`](crate::Detail::Brief).
/// - `given`: known from elsewhere, with a family or without.
/// - `nested`: the figures of another table, which appear in JSON beside its own. The other
///   table has the families.
/// - `family`: a family without a name in JSON.
///
/// A family shows either the figure itself ([`Shown`](crate::Shown)), or the value of an
/// expression: `=> gauge "up", |it| whole(it.is_up)`.
///
/// A table without `cells` has only given rows, and a table without `given` has none.
#[macro_export]
macro_rules! figures {
    // Heads: each selects the structs to emit.
    (
        $(#[doc = $about:literal])+ figures $figures:ident;
        $(#[doc = $about_cells:literal])+ cells $cells:ident;
        $(#[doc = $about_given:literal])+ given $given:ident;
        $($rows:tt)*
    ) => {
        $crate::figures! {
            @rows [$figures [$(#[doc = $about])+] both
                $cells [$(#[doc = $about_cells])+] $given [$(#[doc = $about_given])+]]
            [] [] [] [] $($rows)*
        }
    };
    (
        $(#[doc = $about:literal])+ figures $figures:ident;
        $(#[doc = $about_cells:literal])+ cells $cells:ident;
        $($rows:tt)*
    ) => {
        $crate::figures! {
            @rows [$figures [$(#[doc = $about])+] counted
                $cells [$(#[doc = $about_cells])+]]
            [] [] [] [] $($rows)*
        }
    };
    (
        $(#[doc = $about:literal])+ figures $figures:ident;
        $($rows:tt)*
    ) => {
        $crate::figures! {
            @rows [$figures [$(#[doc = $about])+] given]
            [] [] [] [] $($rows)*
        }
    };

    // A given figure that no family shows.
    (
        @rows $head:tt [$($field:tt)*] [$($given:tt)*] $cells:tt $metrics:tt
        $(#[doc = $help:literal])+ $(#[serde($serde:ident)])?
        given $name:ident: $type:ty;
        $($rows:tt)*
    ) => {
        $crate::figures! {
            @rows $head
            [$($field)* { $(#[doc = $help])+ $(#[serde($serde)])? $name: $type }]
            [$($given)* { $(#[doc = $help])+ $name: $type }]
            $cells $metrics
            $($rows)*
        }
    };
    // A given figure.
    (
        @rows $head:tt [$($field:tt)*] [$($given:tt)*] $cells:tt [$($metric:tt)*]
        $(#[doc = $help:literal])+
        given $name:ident: $type:ty
            => $kind:ident $family:literal $(after $after:literal)? $(, |$it:ident| $read:expr)?;
        $($rows:tt)*
    ) => {
        $crate::figures! {
            @rows $head
            [$($field)* { $(#[doc = $help])+ $name: $type }]
            [$($given)* { $(#[doc = $help])+ $name: $type }]
            $cells
            [$($metric)* { $kind $family [$($help),+] [$($after)?] $name [$(|$it| $read)?] }]
            $($rows)*
        }
    };
    // The figures of another table.
    (
        @rows $head:tt [$($field:tt)*] $given:tt [$($cell:tt)*] $metrics:tt
        $(#[doc = $help:literal])+ nested $name:ident: $type:ty;
        $($rows:tt)*
    ) => {
        $crate::figures! {
            @rows $head
            [$($field)* {
                $(#[doc = $help])+ #[serde(flatten)] $name: <$type as $crate::Cell>::Sum
            }]
            $given
            [$($cell)* { [$(#[doc = $help])+] $name: $type, [] }]
            $metrics
            $($rows)*
        }
    };
    // A family without a name in JSON.
    (
        @rows $head:tt $fields:tt $given:tt $cells:tt [$($metric:tt)*]
        $(#[doc = $help:literal])+
        family $kind:ident $family:literal $(after $after:literal)?, |$it:ident| $read:expr;
        $($rows:tt)*
    ) => {
        $crate::figures! {
            @rows $head $fields $given $cells
            [$($metric)* { $kind $family [$($help),+] [$($after)?] none [|$it| $read] }]
            $($rows)*
        }
    };
    // A figure that workers count.
    (
        @rows $head:tt [$($field:tt)*] $given:tt [$($cell:tt)*] [$($metric:tt)*]
        $(#[doc = $help:literal])+
        $kind:ident $name:ident
            => $family:literal $(after $after:literal)? $(if $detail:ident)? $(, |$it:ident| $read:expr)?;
        $($rows:tt)*
    ) => {
        $crate::figures! {
            @rows $head
            [$($field)* {
                $(#[doc = $help])+ $name: <$crate::figures!(@cell $kind) as $crate::Cell>::Sum
            }]
            $given
            [$($cell)* {
                [$(#[doc = $help])+] $name: $crate::figures!(@cell $kind), [$($detail)?]
            }]
            [$($metric)* { $kind $family [$($help),+] [$($after)?] $name [$(|$it| $read)?] }]
            $($rows)*
        }
    };

    // All rows are read.
    (
        @rows [$figures:ident $about:tt given] $fields:tt $given:tt [] $metrics:tt
    ) => {
        $crate::figures! { @figures $figures $about [] $fields $metrics }
    };
    (
        @rows [$figures:ident $about:tt counted $cells:ident $about_cells:tt]
        $fields:tt [] $cell:tt $metrics:tt
    ) => {
        $crate::figures! { @figures $figures $about [Default] $fields $metrics }
        $crate::figures! { @cells $figures $cells $about_cells $cell }

        impl $crate::Cell for $cells {
            type Sum = $figures;

            fn add_to(&self, sum: &mut $figures, detail: $crate::Detail) {
                sum.add(self, detail);
            }

            fn save(&self) -> $crate::Saved {
                self.save()
            }

            fn raise(&self, saved: &$crate::Saved) {
                self.raise(saved);
            }
        }
    };
    (
        @rows [$figures:ident $about:tt both
            $cells:ident $about_cells:tt $given:ident [$($about_given:tt)*]]
        $fields:tt
        [$({ $(#[doc = $help:literal])+ $name:ident: $type:ty })*]
        [$({ $doc:tt $cell:ident: $cell_type:ty, $detail:tt })*]
        $metrics:tt
    ) => {
        $crate::figures! { @figures $figures $about [] $fields $metrics }
        $crate::figures! {
            @cells $figures $cells $about_cells [$({ $doc $cell: $cell_type, $detail })*]
        }

        $($about_given)*
        #[derive(Debug, Clone)]
        pub struct $given {
            $($(#[doc = $help])+ pub $name: $type,)*
        }

        impl $given {
            /// The figures, with what these cells have counted.
            pub fn with<'a>(
                self,
                cells: impl IntoIterator<Item = &'a $cells>,
                detail: $crate::Detail,
            ) -> $figures {
                let mut figures = $figures {
                    $($name: self.$name,)*
                    $($cell: Default::default(),)*
                };
                cells.into_iter().for_each(|it| figures.add(it, detail));
                figures
            }
        }
    };

    (
        @figures $figures:ident [$($about:tt)*] [$($derived:ident)?]
        [$({ $(#[$meta:meta])+ $name:ident: $type:ty })*]
        [$({ $kind:ident $family:literal [$($help:literal),+] $after:tt $of:ident [$($read:tt)*] })*]
    ) => {
        $($about)*
        #[derive(Debug, Clone, $($derived,)? $crate::export::Serialize)]
        pub struct $figures {
            $($(#[$meta])+ pub $name: $type,)*
        }

        impl $figures {
            /// The families that show them.
            pub const METRICS: &'static [$crate::family::Metric<Self>] = &[
                $($crate::family::Metric {
                    name: $family,
                    kind: $crate::figures!(@kind $kind),
                    help: concat!($($help),+).trim_ascii(),
                    after: $crate::figures!(@after $after),
                    read: $crate::figures!(@read $figures $of $($read)*),
                },)*
            ];
        }
    };
    (
        @cells $figures:ident $cells:ident [$($about:tt)*]
        [$({ [$($doc:tt)*] $name:ident: $type:ty, [$($detail:ident)?] })*]
    ) => {
        $($about)*
        #[derive(Debug, Default)]
        pub struct $cells {
            $($($doc)* pub $name: $type,)*
        }

        impl $cells {
            /// The counts so far, by the names of the figures.
            pub fn save(&self) -> $crate::Saved {
                $crate::Saved::named([
                    $((stringify!($name), $crate::Cell::save(&self.$name)),)*
                ])
            }

            /// Has at least these counts from now on; only the worker that owns the
            /// cells may.
            pub fn raise(&self, saved: &$crate::Saved) {
                $($crate::Cell::raise(&self.$name, saved.of(stringify!($name)));)*
            }
        }

        impl $figures {
            /// Adds what these cells have counted.
            pub fn add(&mut self, cells: &$cells, detail: $crate::Detail) {
                $(
                    $(if detail == $crate::Detail::$detail)? {
                        $crate::Cell::add_to(&cells.$name, &mut self.$name, detail);
                    }
                )*
            }
        }
    };

    (@cell counter) => { $crate::Counter };
    (@cell gauge) => { $crate::Gauge };
    (@cell classes) => { [$crate::Counter; 6] };
    (@cell grpc) => { $crate::Lazy<$crate::GrpcCounters> };
    (@cell ends) => { $crate::EndCounters };
    (@cell seconds) => { $crate::histogram::Histogram };
    (@cell bytes) => { $crate::histogram::Histogram };

    (@kind counter) => { $crate::family::Kind::Counter };
    (@kind gauge) => { $crate::family::Kind::Gauge };
    (@kind classes) => { $crate::family::Kind::Counter };
    (@kind grpc) => { $crate::family::Kind::Counter };
    (@kind ends) => { $crate::family::Kind::Counter };
    (@kind seconds) => { $crate::family::Kind::Seconds };
    (@kind bytes) => { $crate::family::Kind::Bytes };

    (@after []) => { None };
    (@after [$after:literal]) => { Some($after) };

    (@read $figures:ident $of:ident) => {
        |it: &$figures| $crate::Shown::reading(&it.$of)
    };
    (@read $figures:ident $of:ident |$it:ident| $read:expr) => {
        |$it: &$figures| $read
    };
}

#[cfg(test)]
mod tests {
    use crate::family::{in_order, whole};
    use crate::{Cell, Detail, Lazy};

    figures! {
        /// Figures of a visit.
        figures VisitFigures;
        /// The counts of visits.
        cells VisitCounters;

        /// How long they took.
        seconds took_us => "took_seconds" if Full;
        /// People who came.
        counter people => "people_total";
    }

    figures! {
        /// Figures of a door.
        figures DoorFigures;
        /// The counts of a door.
        cells DoorCounters;
        /// Facts about a door from elsewhere.
        given DoorGiven;

        /// Its name.
        given name: String;
        /// Whether it is open.
        given open: bool => gauge "open" after "alarms_total";
        /// Knocks at it: what was
        /// heard.
        counter knocks => "knocks_total";
        /// Its visits.
        nested visits: Lazy<VisitCounters>;
        /// Letters of its name.
        family gauge "letters", |it| whole(it.name.len() as u64);
        /// Alarms.
        counter alarms => "alarms_total" after "knocks_total";
    }

    #[test]
    fn cells_add_up() {
        let cells = [DoorCounters::default(), DoorCounters::default()];
        for cells in &cells {
            cells.knocks.add(2);
        }
        let visits = cells[1].visits.get_or_init();
        visits.people.add(5);
        visits.took_us.record(80);
        let given = DoorGiven {
            name: "front".into(),
            open: true,
        };
        let figures = given.clone().with(&cells, Detail::Full);
        assert_eq!((figures.knocks, figures.visits.people), (4, 5));
        assert_eq!(figures.visits.took_us.count(), 1);
        let brief = given.with(&cells, Detail::Brief);
        assert_eq!((brief.knocks, brief.visits.people), (4, 5));
        assert_eq!(brief.visits.took_us.count(), 0);
    }

    #[test]
    fn counts_go_on_in_another_process() {
        let cells = DoorCounters::default();
        cells.knocks.add(2);
        assert!(cells.visits.save().is_nothing());
        cells.visits.get_or_init().took_us.record(80);
        let mut saved = cells.save();
        saved.add(cells.save());
        let next = DoorCounters::default();
        // Once more, as when a later state follows.
        for _ in 0..2 {
            next.raise(&saved);
            let figures = DoorGiven {
                name: "front".into(),
                open: true,
            }
            .with([&next], Detail::Full);
            assert_eq!(figures.knocks, 4);
            assert_eq!(figures.visits.took_us.count(), 2);
            assert_eq!(figures.visits.took_us.sum(), 160);
        }
    }

    #[test]
    fn families_have_an_order_of_their_own() {
        let order = in_order(DoorFigures::METRICS);
        let names: Vec<_> = order.iter().map(|it| it.name).collect();
        assert_eq!(names, ["knocks_total", "alarms_total", "open", "letters"]);
        assert_eq!(VisitFigures::METRICS.len(), 2);
        assert_eq!(order[0].help, "Knocks at it: what was heard.");
    }
}
