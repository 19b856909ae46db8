//! The access log: one line for each exchange, written by its worker into a
//! buffer of its own and handed to the writer thread in large pieces.
//!
//! A [`Record`] is what a line tells; each format has a file of its own here.

mod clock;
mod combined;
mod escape;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod httplog;
mod json;
mod line;
mod names;
mod record;
mod template;
mod termination;

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use super::calendar::Moment;
use super::counters::Counter;
use super::writer::{HAND_OVER_LEN, Lines, LogSender};
use crate::config::access_log::Selection;
use crate::config::{self, AccessLogFormat, Config};
use clock::Clock;
use line::{Line, Room};

pub use names::{Name, Names};
pub use record::{AddressText, Live, Phase, Reason, Record, Times};

/// One worker's side of the access logs.
#[derive(Debug)]
pub struct AccessLog {
    sender: LogSender,
    /// Lines for each destination.
    pending: RefCell<Vec<Lines>>,
    room: RefCell<Room>,
    /// Of each log, where the sample stands.
    samples: Box<[Cell<u32>]>,
    names: Names,
    clock: Clock,
}

impl AccessLog {
    /// The logs of this configuration, whose destinations the writer opened.
    pub fn new(sender: LogSender, config: &Config) -> Self {
        let logs = &config.access_logs;
        let pending = logs.destinations.iter().map(|_| Lines::default());
        AccessLog {
            sender,
            pending: RefCell::new(pending.collect()),
            room: RefCell::default(),
            samples: logs.logs.iter().map(|_| Cell::default()).collect(),
            names: Names::new(config),
            clock: Clock::new(),
        }
    }

    /// The names that records tell.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Whether an exchange gets a line: where a condition holds, or it belongs
    /// to the sample. `log` is an index in the configuration.
    pub fn selects(
        &self,
        log: usize,
        selection: &Selection,
        is_error: bool,
        total: Duration,
    ) -> bool {
        (selection.errors && is_error)
            || selection.slower_than.is_some_and(|limit| total > limit)
            || is_drawn(&self.samples[log], selection.sample)
    }

    /// Writes the line of an exchange that ended at `now`.
    pub fn write(
        &self,
        log: &config::AccessLog,
        record: &Record<'_>,
        now: Instant,
        dropped: &Counter,
    ) {
        let mut pending = self.pending.borrow_mut();
        let lines = &mut pending[log.destination];
        let mut room = self.room.borrow_mut();
        let line = Line::new(&mut room, &mut lines.bytes);
        write_line(line, &log.format, record, &self.clock, now);
        lines.count += 1;
        if lines.bytes.len() >= HAND_OVER_LEN {
            self.hand_over(log.destination, lines, dropped);
        }
    }

    /// Follows a clock that was set, and time that passed in suspension.
    pub fn synchronise_clock(&self) {
        self.clock.synchronise();
    }

    /// Hands over what is there, so that a quiet worker's lines appear.
    pub fn flush(&self, dropped: &Counter) {
        for (destination, lines) in self.pending.borrow_mut().iter_mut().enumerate() {
            if lines.count > 0 {
                self.hand_over(destination, lines, dropped);
            }
        }
    }

    /// A moment in microseconds since 1970, without a clock call.
    pub fn unix_us(&self, moment: Instant) -> u64 {
        self.clock.unix_us(moment)
    }

    /// `Date` of now, for answers made here.
    pub fn http_date(&self, now: Instant) -> String {
        Moment::from_unix(self.clock.unix_us(now) / 1_000_000).http_date()
    }

    fn hand_over(&self, destination: usize, lines: &mut Lines, dropped: &Counter) {
        let full = std::mem::take(lines);
        *lines = self
            .sender
            .send(destination, full)
            .unwrap_or_else(|mut unsent| {
                dropped.add(unsent.count);
                unsent.bytes.clear();
                Lines {
                    bytes: unsent.bytes,
                    count: 0,
                }
            });
    }
}

fn write_line(
    mut line: Line<'_>,
    format: &AccessLogFormat,
    record: &Record<'_>,
    clock: &Clock,
    now: Instant,
) {
    let unix_us = clock.unix_us(now);
    match format {
        AccessLogFormat::Json => json::write(&mut line, record, clock, unix_us),
        AccessLogFormat::Combined => combined::write(&mut line, record, clock, unix_us),
        AccessLogFormat::Httplog => httplog::write(&mut line, record, clock, unix_us),
        AccessLogFormat::Template(template) => {
            template::write(&mut line, template, record, clock, unix_us);
        }
    }
    line.end();
}

/// Whether the next exchange belongs to a sample of this part.
///
/// A Weyl sequence by the golden ratio: the sample is as evenly spread as can
/// be without following a rhythm that requests may have.
fn is_drawn(state: &Cell<u32>, part: f64) -> bool {
    const STEP: u32 = 0x9E37_79B9;
    if part >= 1.0 {
        return true;
    }
    let next = state.get().wrapping_add(STEP);
    state.set(next);
    f64::from(next) < part * (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_as_large_as_asked_for() {
        for (part, expected) in [
            (0.0, 0),
            (0.01, 100),
            (0.25, 2_500),
            (0.5, 5_000),
            (1.0, 10_000),
        ] {
            let state = Cell::default();
            let drawn = (0..10_000).filter(|_| is_drawn(&state, part)).count();
            assert!(drawn.abs_diff(expected) <= 3, "{part}: {drawn}");
        }
    }

    #[test]
    fn a_sample_does_not_follow_a_rhythm() {
        for period in [2, 3, 4, 5, 10] {
            let state = Cell::default();
            let drawn = (0..10_000).filter(|index| is_drawn(&state, 0.1) && index % period == 0);
            let (drawn, expected) = (drawn.count(), 1_000 / period);
            assert!(drawn.abs_diff(expected) <= 10, "{period}: {drawn}");
        }
    }
}
