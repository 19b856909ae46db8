//! The last minute and hour of one listener, route, upstream or endpoint: numbers for plots, and
//! distributions for percentiles.

use std::collections::VecDeque;

use serde::Serialize;

use crate::metrics::histogram::Distribution;

/// Points of a plot: seconds of a minute, minutes of an hour.
pub(super) const POINTS: usize = 60;

/// Parts of a window; it moves by a part at a time.
const PARTS: usize = 6;
/// Looks in a part of the window of a minute, and of an hour. There is one look a second.
const PART_OF_MINUTE: u32 = (POINTS / PARTS) as u32;
const PART_OF_HOUR: u32 = PART_OF_MINUTE * POINTS as u32;

/// A distribution over a recent time. It has six parts, the last of which is still growing. When
/// a seventh starts, the oldest is dropped. So it covers five to six sixths of its time, and all
/// of it at the end of a part.
#[derive(Debug)]
pub(super) struct Window {
    looks_per_part: u32,
    looks: u32,
    current: Distribution,
    past: VecDeque<Distribution>,
    all: Distribution,
}

impl Window {
    /// A window of a minute.
    pub(super) fn minute() -> Self {
        Window::of(PART_OF_MINUTE)
    }

    fn of(looks_per_part: u32) -> Self {
        Window {
            looks_per_part,
            looks: 0,
            current: Distribution::default(),
            past: VecDeque::new(),
            all: Distribution::default(),
        }
    }

    /// Adds the values since the last look.
    pub(super) fn add(&mut self, news: &Distribution) {
        if self.looks == self.looks_per_part {
            self.begin_part();
        }
        self.current.merge(news);
        self.all.merge(news);
        self.looks += 1;
    }

    fn begin_part(&mut self) {
        self.looks = 0;
        self.past.push_back(std::mem::take(&mut self.current));
        if self.past.len() == PARTS
            && let Some(oldest) = self.past.pop_front()
            && oldest.count() > 0
        {
            self.all = self.all.since(&oldest);
        }
    }

    /// A quantile of the values, rounded.
    pub(super) fn quantile(&self, part: f64) -> u32 {
        self.all.quantile(part).round() as u32
    }
}

/// A point: a second, or a minute.
#[derive(Debug, Clone, Copy, Default)]
struct Point {
    requests: u32,
    errors: u32,
    p50_us: u32,
    p99_us: u32,
}

/// Points in the form of the page, the oldest first.
#[derive(Debug, Serialize)]
pub(super) struct Plot {
    #[serde(flatten)]
    counts: Counts,
    p50: Vec<u32>,
    p99: Vec<u32>,
}

/// The same without durations.
#[derive(Debug, Serialize)]
pub(super) struct Counts {
    requests: Vec<u32>,
    errors: Vec<u32>,
}

/// The points of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::admin) enum HistorySpan {
    /// Sixty seconds.
    Minute,
    /// Sixty minutes.
    Hour,
}

/// Counts so far.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) total_us: Distribution,
}

/// The past of one counted object.
///
/// Most of thousands of routes and endpoints are quiet: they keep only a number.
#[derive(Debug)]
pub(super) enum Series {
    /// Nothing was counted so far.
    Quiet {
        /// Seconds of quiet.
        seconds: usize,
    },
    /// There are counts.
    Active(Box<ActiveSeries>),
}

/// The past of an object with counts.
#[derive(Debug)]
pub(super) struct ActiveSeries {
    before: Counted,
    minute: VecDeque<Point>,
    hour: VecDeque<Point>,
    minute_window: Window,
    hour_window: Window,
    /// Requests and errors in the points of the last minute.
    in_minute: (u64, u64),
    /// Seconds since the last point of the hour.
    seconds: usize,
    most_requests: u32,
}

impl Counted {
    fn is_nothing(&self) -> bool {
        self.requests == 0 && self.errors == 0 && self.total_us.count() == 0
    }
}

impl Series {
    pub(super) fn new() -> Self {
        Series::Quiet { seconds: 0 }
    }

    /// Starts with inherited counts, which are in no second of this past.
    pub(super) fn begin(&mut self, counted: Counted) {
        if !counted.is_nothing() {
            let mut active = ActiveSeries::after(0);
            active.before = counted;
            *self = Series::Active(Box::new(active));
        }
    }

    /// Notes the counts so far, a second after the last time.
    pub(super) fn note(&mut self, now: Counted) {
        match self {
            Series::Quiet { seconds } if now.is_nothing() => *seconds += 1,
            Series::Quiet { seconds } => {
                let mut active = ActiveSeries::after(*seconds);
                active.note(now);
                *self = Series::Active(Box::new(active));
            }
            Series::Active(active) => active.note(now),
        }
    }

    fn active(&self) -> Option<&ActiveSeries> {
        match self {
            Series::Quiet { .. } => None,
            Series::Active(active) => Some(active),
        }
    }

    fn last_point(&self) -> Point {
        let last = self.active().and_then(|it| it.minute.back());
        last.copied().unwrap_or_default()
    }

    /// Requests and errors since the look before.
    pub(super) fn last_second(&self) -> (u32, u32) {
        let last = self.last_point();
        (last.requests, last.errors)
    }

    /// Median and 99th percentile of the durations since the look before.
    pub(super) fn last_times(&self) -> [u32; 2] {
        let last = self.last_point();
        [last.p50_us, last.p99_us]
    }

    /// Requests and errors in the last minute.
    pub(super) fn last_minute(&self) -> (u64, u64) {
        self.active().map_or((0, 0), |it| it.in_minute)
    }

    /// Median and 99th percentile of the durations in microseconds: in the last minute, then in
    /// the last hour.
    pub(super) fn times(&self) -> [u32; 4] {
        let Some(active) = self.active() else {
            return [0; 4];
        };
        let (minute, hour) = (&active.minute_window, &active.hour_window);
        [
            minute.quantile(0.5),
            minute.quantile(0.99),
            hour.quantile(0.5),
            hour.quantile(0.99),
        ]
    }

    /// Most requests within a second.
    pub(super) fn most_requests(&self) -> u32 {
        self.active().map_or(0, |it| it.most_requests)
    }

    pub(super) fn plot(&self, span: HistorySpan) -> Plot {
        Plot {
            counts: self.counts(span),
            p50: self.each(span, |it| it.p50_us),
            p99: self.each(span, |it| it.p99_us),
        }
    }

    pub(super) fn counts(&self, span: HistorySpan) -> Counts {
        Counts {
            requests: self.each(span, |it| it.requests),
            errors: self.each(span, |it| it.errors),
        }
    }

    fn each(&self, span: HistorySpan, value: fn(&Point) -> u32) -> Vec<u32> {
        let points = match (self, span) {
            (Series::Quiet { seconds }, span) => {
                let points = match span {
                    HistorySpan::Minute => *seconds,
                    HistorySpan::Hour => seconds / POINTS,
                };
                return vec![0; points.min(POINTS)];
            }
            (Series::Active(active), HistorySpan::Minute) => &active.minute,
            (Series::Active(active), HistorySpan::Hour) => &active.hour,
        };
        points.iter().map(value).collect()
    }
}

impl ActiveSeries {
    /// A series after this many seconds of quiet.
    fn after(seconds: usize) -> Self {
        let mut series = ActiveSeries {
            before: Counted::default(),
            minute: VecDeque::new(),
            hour: VecDeque::new(),
            minute_window: Window::minute(),
            hour_window: Window::of(PART_OF_HOUR),
            in_minute: (0, 0),
            seconds: 0,
            most_requests: 0,
        };
        // After an hour, a further second of quiet changes nothing.
        const HOUR: usize = POINTS * POINTS;
        let seconds = match seconds {
            0..=HOUR => seconds,
            more => HOUR + more % HOUR,
        };
        (0..seconds).for_each(|_| series.note(Counted::default()));
        series
    }

    fn note(&mut self, now: Counted) {
        let news = now.total_us.since(&self.before.total_us);
        let grown =
            |now: u64, before: u64| u32::try_from(now - before.min(now)).unwrap_or(u32::MAX);
        let point = Point {
            requests: grown(now.requests, self.before.requests),
            errors: grown(now.errors, self.before.errors),
            p50_us: news.quantile(0.5).round() as u32,
            p99_us: news.quantile(0.99).round() as u32,
        };
        self.minute_window.add(&news);
        self.hour_window.add(&news);
        self.before = now;
        self.most_requests = self.most_requests.max(point.requests);
        self.in_minute.0 += u64::from(point.requests);
        self.in_minute.1 += u64::from(point.errors);
        if let Some(gone) = push(&mut self.minute, point) {
            self.in_minute.0 -= u64::from(gone.requests);
            self.in_minute.1 -= u64::from(gone.errors);
        }
        self.seconds += 1;
        if self.seconds == POINTS {
            self.seconds = 0;
            let (requests, errors) = self.in_minute;
            let minute = Point {
                requests: u32::try_from(requests).unwrap_or(u32::MAX),
                errors: u32::try_from(errors).unwrap_or(u32::MAX),
                p50_us: self.minute_window.quantile(0.5),
                p99_us: self.minute_window.quantile(0.99),
            };
            push(&mut self.hour, minute);
        }
    }
}

/// Adds a point. Returns the point that it displaces, if any.
fn push(points: &mut VecDeque<Point>, point: Point) -> Option<Point> {
    let gone = match points.len() {
        POINTS => points.pop_front(),
        _ => None,
    };
    points.push_back(point);
    gone
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::histogram::Histogram;

    /// Notes seconds, with this many requests of this duration in each.
    struct Clock {
        series: Series,
        histogram: Histogram,
        requests: u64,
    }

    impl Clock {
        fn new() -> Self {
            Clock {
                series: Series::new(),
                histogram: Histogram::default(),
                requests: 0,
            }
        }

        fn seconds(&mut self, seconds: usize, requests: u64, took_us: u64) {
            for _ in 0..seconds {
                (0..requests).for_each(|_| self.histogram.record(took_us));
                self.requests += requests;
                let mut total_us = Distribution::default();
                total_us.add(&self.histogram);
                self.series.note(Counted {
                    requests: self.requests,
                    errors: self.requests / 10,
                    total_us,
                });
            }
        }
    }

    fn assert_near(found: u32, expected: f64) {
        let ratio = f64::from(found) / expected;
        assert!((0.9..1.1).contains(&ratio), "{found}, not {expected}");
    }

    #[test]
    fn a_minute_forgets_and_the_hour_keeps() {
        let mut clock = Clock::new();
        clock.seconds(30, 10, 1_000);
        assert_eq!(clock.series.last_second(), (10, 1));
        assert_eq!(clock.series.last_minute(), (300, 30));
        let [minute_p50, _, hour_p50, _] = clock.series.times();
        assert_near(minute_p50, 1_000.0);
        assert_near(hour_p50, 1_000.0);

        // Slower, and fewer: after a minute all other values are gone.
        clock.seconds(61, 1, 64_000);
        assert_eq!(clock.series.last_minute().0, 60);
        let [minute_p50, _, hour_p50, hour_p99] = clock.series.times();
        assert_near(minute_p50, 64_000.0);
        assert_near(hour_p50, 1_000.0);
        assert_near(hour_p99, 64_000.0);
        assert_eq!(clock.series.most_requests(), 10);

        let minute = clock.series.counts(HistorySpan::Minute);
        assert_eq!(minute.requests, vec![1; POINTS]);
        let hour = clock.series.counts(HistorySpan::Hour);
        assert_eq!(hour.requests, vec![330]);
    }

    #[test]
    fn an_hours_point_holds_all_of_its_minute() {
        let mut clock = Clock::new();
        for _ in 0..2 {
            clock.seconds(4, 0, 0);
            clock.seconds(1, 100, 64_000);
            clock.seconds(55, 0, 0);
        }
        let hour = clock.series.plot(HistorySpan::Hour);
        assert_eq!(hour.counts.requests, [100, 100]);
        for p99 in hour.p99 {
            assert_near(p99, 64_000.0);
        }
    }

    #[test]
    fn what_was_quiet_has_a_past_of_nothing() {
        for quiet in [0, 1, 59, 60, 3_599, 3_600, 3_601, 10_000] {
            let mut clock = Clock::new();
            clock.seconds(quiet, 0, 0);
            assert!(matches!(clock.series, Series::Quiet { .. }));
            let minute = clock.series.counts(HistorySpan::Minute).requests;
            assert_eq!(minute, vec![0; quiet.min(POINTS)]);
            let hour = clock.series.plot(HistorySpan::Hour).p99;
            assert_eq!(hour, vec![0; (quiet / 60).min(POINTS)]);

            clock.seconds(1, 10, 1_000);
            let minute = clock.series.counts(HistorySpan::Minute).requests;
            assert_eq!(minute.len(), (quiet + 1).min(POINTS));
            assert_eq!((minute.last(), minute.iter().sum::<u32>()), (Some(&10), 10));
            let hour = clock.series.counts(HistorySpan::Hour).requests;
            assert_eq!(hour.len(), ((quiet + 1) / 60).min(POINTS), "{quiet}");
        }
    }

    #[test]
    fn a_quiet_hour_forgets_too() {
        let mut clock = Clock::new();
        clock.seconds(10, 5, 2_000);
        clock.seconds(3_600, 0, 0);
        assert_eq!(clock.series.times(), [0; 4]);
        assert_eq!(clock.series.last_minute(), (0, 0));
        assert_eq!(
            clock.series.counts(HistorySpan::Hour).requests.len(),
            POINTS
        );
    }

    #[test]
    fn what_others_have_counted_is_no_past() {
        let mut clock = Clock::new();
        clock.seconds(3, 100, 64_000);
        let mut total_us = Distribution::default();
        total_us.add(&clock.histogram);
        clock.series = Series::new();
        clock.series.begin(Counted {
            requests: 300,
            errors: 30,
            total_us,
        });
        clock.seconds(2, 10, 1_000);
        assert_eq!(clock.series.last_minute(), (20, 2));
        assert_eq!(clock.series.most_requests(), 10);
        let minute = clock.series.counts(HistorySpan::Minute).requests;
        assert_eq!(minute, [10, 10]);
        assert_near(clock.series.times()[1], 1_000.0);
    }
}
