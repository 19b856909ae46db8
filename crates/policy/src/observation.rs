//! Observations of attempts at endpoints: balancers and the guard learn from
//! nothing else.
//!
//! An attempt is observed once where its response begins or it fails, and once
//! more where the response ends.

use std::time::Duration;

use crate::Instant;

/// An observation of an attempt at an endpoint, and when it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// Position of the endpoint among the members.
    pub endpoint: usize,
    /// The present.
    pub now: Instant,
    /// The observed event.
    pub observed: Observed,
}

/// The observed event of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    /// The head of the response came.
    Head(Answer),
    /// It broke or timed out after a connection was there.
    Failed,
    /// No connection to the endpoint could be opened.
    Unreachable,
    /// The response came to its end.
    End {
        /// Length of the response, head included.
        bytes: u64,
        /// From the request's last byte to the response's last.
        took: Duration,
    },
}

/// The beginning of a response, or its absence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// From the request's last byte to the response's first; `None` where it
    /// says nothing, as with tunnels and event streams.
    pub first_byte: Option<Duration>,
    /// Whether it failed: a 5xx, a timeout, a broken connection.
    pub is_error: bool,
}

impl Observed {
    /// How the attempt went; `None` where that was observed before.
    pub fn answer(self) -> Option<Answer> {
        match self {
            Observed::Head(answer) => Some(answer),
            Observed::Failed | Observed::Unreachable => Some(Answer {
                first_byte: None,
                is_error: true,
            }),
            Observed::End { .. } => None,
        }
    }
}
