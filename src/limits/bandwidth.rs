//! The bandwidths of routes: bytes of responses in a second, and the bookings of each key.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::bandwidth::{BandwidthTable, Booked, ByteRate};

use crate::config::Bandwidth;

/// A bandwidth of a route.
#[derive(Debug)]
pub struct RouteBandwidth {
    /// Its settings.
    pub settings: Bandwidth,
    /// Its rate.
    rate: ByteRate,
    /// The bookings of each key; `None` where each response has the rate to itself.
    table: Option<BandwidthTable>,
}

impl RouteBandwidth {
    /// A bandwidth without bookings.
    pub fn new(settings: &Bandwidth) -> Self {
        let rate = ByteRate {
            per_second: settings.bytes_per_second,
            burst: settings.burst_bytes,
        };
        let entries = settings.entries as usize;
        let is_shared = settings.key.is_some();
        RouteBandwidth {
            settings: settings.clone(),
            rate,
            table: is_shared.then(|| BandwidthTable::new(rate, entries)),
        }
    }

    /// How long a response of this key would wait for its first bytes now.
    pub fn wait(&self, key: &[u8], now: Instant) -> Duration {
        let table = self.table.as_ref();
        table.map_or(Duration::ZERO, |it| it.wait(key, now))
    }

    /// Keys with bytes that were sent lately.
    pub fn active(&self, now: Instant) -> usize {
        self.table.as_ref().map_or(0, |it| it.active(now))
    }
}

/// One response's part in a bandwidth.
#[derive(Debug)]
pub struct Share {
    of: Arc<RouteBandwidth>,
    /// The key that it shares the rate with, where it does.
    key: Box<[u8]>,
    /// Its bookings, where it has the rate to itself.
    own: Booked,
    /// The moment from which its last booking may be sent.
    ready: Instant,
    /// All bookings of its key at that moment.
    until: u64,
}

impl Share {
    /// The part of a response with this key. The key is empty where the response has the rate to
    /// itself.
    pub fn new(of: &Arc<RouteBandwidth>, key: &[u8]) -> Self {
        Share {
            of: of.clone(),
            key: key.into(),
            own: Booked::default(),
            ready: Instant::from_nanos(0),
            until: 0,
        }
    }

    /// Most bytes that are to be booked at once.
    pub fn quantum(&self) -> usize {
        self.of.rate.quantum()
    }

    /// Books bytes: [`ready`](Self::ready) is the moment from which on they may be sent.
    pub fn book(&mut self, bytes: usize, now: Instant) {
        let bytes = bytes as u64;
        self.ready = match &self.of.table {
            Some(table) => {
                let ready = table.book(&self.key, bytes, now);
                self.until = table.until(&self.key);
                ready
            }
            None => self.own.book(self.of.rate, bytes, now),
        };
    }

    /// The moment from which its last booking may be sent. It comes nearer when others that had
    /// booked before have left.
    pub fn ready(&mut self) -> Instant {
        if let Some(table) = &self.of.table {
            let until = table.until(&self.key);
            if until < self.until {
                self.until = until;
                self.ready = self.ready.min(table.ready(until));
            }
        }
        self.ready
    }

    /// Gives back booked bytes that are not sent.
    pub fn give_back(&self, bytes: usize, now: Instant) {
        if let Some(table) = &self.of.table {
            table.give_back(&self.key, bytes as u64, now);
        }
    }
}
