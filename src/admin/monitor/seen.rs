//! Findings of the looks once a second for each object, beside the counts.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::history::Series;
use super::rate;
use crate::observe::figures::Figures;

/// Maxima since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(in crate::admin) struct Most {
    /// Requests within a second.
    pub(in crate::admin) requests: u32,
    /// Exchanges in flight; for a listener, connections.
    pub(in crate::admin) in_flight: u32,
    /// Exchanges in the queue.
    pub(in crate::admin) waiting: u32,
}

impl Most {
    fn note(&mut self, requests: u32, in_flight: u64, waiting: u64) {
        let count = |it: u64| u32::try_from(it).unwrap_or(u32::MAX);
        self.requests = self.requests.max(requests);
        self.in_flight = self.in_flight.max(count(in_flight));
        self.waiting = self.waiting.max(count(waiting));
    }
}

/// The load.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::admin) struct Traffic {
    /// The maxima.
    pub(in crate::admin) most: Most,
    /// Requests within the last second.
    pub(in crate::admin) last_second: u32,
}

impl Traffic {
    /// Notes a look, `seconds` after the last one. Returns the maxima so far.
    pub(super) fn note(
        &mut self,
        series: &Series,
        seconds: f64,
        in_flight: u64,
        waiting: u64,
    ) -> Most {
        let (requests, _) = series.last_second();
        self.last_second = rate(u64::from(requests), seconds).round() as u32;
        self.most.note(series.most_requests(), in_flight, waiting);
        self.most
    }
}

/// The present time up or down, and the total downtime.
#[derive(Debug, Clone, Copy)]
pub(in crate::admin) struct Uptime {
    /// Whether it was up at the last look.
    is_up: bool,
    since: Instant,
    /// Downtime before the present state.
    down: Duration,
    /// Number of times that it went down.
    pub(in crate::admin) downs: u32,
}

impl Uptime {
    fn new(started: Instant) -> Self {
        Uptime {
            is_up: true,
            since: started,
            down: Duration::ZERO,
            downs: 0,
        }
    }

    /// Notes whether it is up.
    pub(super) fn note(&mut self, is_up: bool, now: Instant) {
        if is_up == self.is_up {
            return;
        }
        self.down = self.downtime(now);
        self.downs += u32::from(!is_up);
        self.is_up = is_up;
        self.since = now;
    }

    /// Time in the present state, up or down.
    pub(in crate::admin) fn unchanged(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Total downtime.
    pub(in crate::admin) fn downtime(&self, now: Instant) -> Duration {
        if self.is_up {
            self.down
        } else {
            self.down + self.unchanged(now)
        }
    }
}

/// The findings for an upstream or an endpoint.
#[derive(Debug, Clone, Copy)]
pub(in crate::admin) struct Seen {
    pub(in crate::admin) traffic: Traffic,
    pub(in crate::admin) uptime: Uptime,
}

impl Seen {
    /// The findings for an object that was up since `began`, without load.
    pub(super) fn new(began: Instant) -> Self {
        Seen {
            traffic: Traffic::default(),
            uptime: Uptime::new(began),
        }
    }
}

/// The findings for everything, with the indices of the figures.
#[derive(Debug, Clone)]
pub(in crate::admin) struct SeenOfAll {
    pub(in crate::admin) listeners: Vec<Traffic>,
    pub(in crate::admin) upstreams: Vec<Seen>,
    pub(in crate::admin) endpoints: Vec<Vec<Seen>>,
}

impl SeenOfAll {
    /// No findings yet, for the objects of these figures.
    pub(in crate::admin) fn new(figures: &Figures, started: Instant) -> Self {
        let nothing = Seen::new(started);
        let upstreams = figures.upstreams.iter();
        SeenOfAll {
            listeners: vec![Traffic::default(); figures.listeners.len()],
            upstreams: vec![nothing; figures.upstreams.len()],
            endpoints: upstreams
                .map(|it| vec![nothing; it.endpoints.len()])
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_and_down() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let seconds = |uptime: &Uptime, at| {
            let times = [uptime.unchanged(after(at)), uptime.downtime(after(at))];
            times.map(|it| it.as_secs())
        };
        let mut uptime = Uptime::new(start);
        assert_eq!(seconds(&uptime, 5), [5, 0]);
        uptime.note(false, after(10));
        assert_eq!(seconds(&uptime, 13), [3, 3]);
        uptime.note(false, after(14));
        uptime.note(true, after(15));
        assert_eq!(seconds(&uptime, 22), [7, 5]);
        uptime.note(false, after(30));
        assert_eq!(seconds(&uptime, 32), [2, 7]);
        assert_eq!(uptime.downs, 2);
    }
}
