//! The last failed or refused exchanges of a worker, for `show errors`.
//!
//! Per worker, and written only after a failure.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::SystemTime;

use super::access_log::Times;
use crate::metrics::end::End;

/// Failures kept by each worker.
pub const KEPT: usize = 64;
/// Longest part of malformed input that is kept, in bytes.
const EVIDENCE_LEN: usize = 256;
/// Longest part of a request line that is kept, in bytes.
const LINE_LEN: usize = 256;

/// An exchange that failed or was refused. It has names and no indices, which may mean other
/// objects by the time that it is shown.
#[derive(Debug, Clone)]
pub struct FailedExchange {
    /// When it ended.
    pub at: SystemTime,
    /// The client's address.
    pub client: String,
    /// Name of the listener.
    pub listener: String,
    /// Name of the route, if one matched.
    pub route: Option<String>,
    /// Name of the upstream, if the route goes to one.
    pub upstream: Option<String>,
    /// Name of the last endpoint tried.
    pub endpoint: Option<String>,
    /// Method and target, where the head was valid.
    pub line: Option<Vec<u8>>,
    /// How it ended.
    pub end: End,
    /// Status sent; 0 if none was.
    pub status: u16,
    /// Attempts made.
    pub attempts: u32,
    /// How long each phase took.
    pub times: Times,
    /// The beginning of the malformed input: of the request, or of the endpoint's response.
    pub evidence: Vec<u8>,
}

/// The last failures.
#[derive(Debug, Default)]
pub struct Failures {
    kept: RefCell<VecDeque<FailedExchange>>,
    evidence: RefCell<Vec<u8>>,
}

impl Failures {
    /// Keeps the beginning of an endpoint's malformed response, for the exchange that fails with
    /// it.
    #[cold]
    pub fn note_evidence(&self, bytes: &[u8]) {
        *self.evidence.borrow_mut() = first(bytes, EVIDENCE_LEN);
    }

    /// Adds a failure, and drops the oldest if needed.
    #[cold]
    pub fn add(&self, mut failed: FailedExchange) {
        if let End::Response(_) = failed.end {
            failed.evidence = std::mem::take(&mut self.evidence.borrow_mut());
        }
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(failed);
    }

    /// All kept failures, the oldest first.
    pub fn list(&self) -> Vec<FailedExchange> {
        self.kept.borrow().iter().cloned().collect()
    }
}

/// The part of a refused head that is kept.
pub fn evidence(bytes: &[u8]) -> Vec<u8> {
    first(bytes, EVIDENCE_LEN)
}

/// The part of a request line that is kept.
pub fn request_line(line: &[u8]) -> Vec<u8> {
    first(line, LINE_LEN)
}

fn first(bytes: &[u8], len: usize) -> Vec<u8> {
    bytes[..bytes.len().min(len)].to_vec()
}
