//! The last probe of each endpoint: the health thread writes it, whoever looks
//! at the figures reads it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::config::Config;
use crate::observe::calendar::unix_time;

/// Longest answer that is kept, in bytes.
const MAX_ANSWER_LEN: usize = 200;

/// What came of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LastProbe {
    /// When it was done, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Whether it passed.
    pub passed: bool,
    /// What it took, in microseconds.
    pub took_us: u64,
    /// What came back, such as `status 503` or `connection refused`.
    pub answer: String,
}

/// The last probe of every endpoint of every upstream.
#[derive(Debug)]
pub struct Probes(Vec<Vec<Mutex<Option<LastProbe>>>>);

impl Probes {
    /// None yet, for everything in `config`.
    pub fn new(config: &Config) -> Self {
        let upstreams = config.upstreams.iter();
        Probes(
            upstreams
                .map(|upstream| {
                    upstream
                        .endpoints
                        .iter()
                        .map(|_| Mutex::default())
                        .collect()
                })
                .collect(),
        )
    }

    /// Notes a probe that is just done.
    pub fn note(
        &self,
        upstream: usize,
        endpoint: usize,
        passed: bool,
        took: Duration,
        mut answer: String,
    ) {
        answer.truncate(answer.floor_char_boundary(MAX_ANSWER_LEN));
        let probe = LastProbe {
            unix_ms: unix_time(SystemTime::now()).as_millis() as u64,
            passed,
            took_us: took.as_micros() as u64,
            answer,
        };
        *self.place(upstream, endpoint) = Some(probe);
    }

    /// The last one; `None` before the first.
    pub fn last(&self, upstream: usize, endpoint: usize) -> Option<LastProbe> {
        self.place(upstream, endpoint).clone()
    }

    fn place(
        &self,
        upstream: usize,
        endpoint: usize,
    ) -> std::sync::MutexGuard<'_, Option<LastProbe>> {
        let place = &self.0[upstream][endpoint];
        place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
