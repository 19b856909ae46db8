//! What is observed of an attempt at an endpoint: the one way by which balancers
//! and the guard learn.
//!
//! An attempt is observed once where its response begins or it fails, and once
//! more where the response ends.

use std::time::Duration;

use crate::Instant;

/// What was observed of an attempt at an endpoint, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// Position of the endpoint among the members.
    pub endpoint: usize,
    /// The present.
    pub now: Instant,
    /// What was observed.
    pub observed: Observed,
}

/// What was observed of an attempt.
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

/// What the beginning of a response says, or that there was none.
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
