//! Idle connections of one worker to one endpoint, last in first out.
//!
//! The most recently used connection is the least likely to have been closed
//! and the most likely to be in the processor's cache.

use super::Reused;
use crate::config;
use crate::net::stream::Stream;
use crate::net::timer::TICK;

/// Idle connections to one endpoint.
#[derive(Debug)]
pub(super) struct IdlePool {
    idle: Vec<Idle>,
    max: usize,
    timeout_ticks: u64,
}

#[derive(Debug)]
struct Idle {
    stream: Stream,
    since: u64,
}

impl IdlePool {
    pub(super) fn new(config: &config::Pool) -> Self {
        IdlePool {
            idle: Vec::new(),
            max: config.max_idle,
            timeout_ticks: (config.idle_timeout.as_millis() / TICK.as_millis()) as u64,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.idle.len()
    }

    pub(super) fn take(&mut self) -> Reused {
        let mut stale = 0;
        while let Some(Idle { stream, .. }) = self.idle.pop() {
            if !stream.is_stale() {
                return Reused {
                    stream: Some(stream),
                    stale,
                };
            }
            stale += 1;
        }
        Reused {
            stream: None,
            stale,
        }
    }

    pub(super) fn put(&mut self, stream: Stream, now: u64) {
        if self.idle.len() < self.max {
            self.idle.push(Idle { stream, since: now });
        }
    }

    pub(super) fn sweep(&mut self, now: u64) {
        let timeout_ticks = self.timeout_ticks;
        self.idle.retain(|idle| {
            !idle.stream.is_stale() && now.saturating_sub(idle.since) < timeout_ticks
        });
    }
}
