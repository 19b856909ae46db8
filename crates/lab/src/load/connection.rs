//! One connection of the generator and the exchange on it.
//!
//! ```text
//! Closed ──open──▶ Idle ──request──▶ Sending ──▶ Head ──▶ Body ──▶ Idle
//!                                                           └────▶ Draining ──▶ Closed
//! ```

use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::fd::OwnedFd;

use super::answer::{Parsed, parse};
use crate::socket::{Transfer, receive, receive_stamped, transmit};

/// Why an exchange failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The connection could not be opened.
    Connect,
    /// The status was not 200.
    Status,
    /// The body's length was not the one asked for.
    Length,
    /// The connection ended before the answer did.
    Closed,
    /// The bytes received were not HTTP/1.
    Malformed,
}

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No socket is open.
    Closed,
    /// Nothing is asked.
    Idle,
    /// A part of the request has been sent.
    Sending {
        /// In bytes.
        sent: usize,
    },
    /// The request is out, and the head has not come whole.
    Head,
    /// A part of the body is still to come.
    Body {
        /// In bytes.
        remaining: u64,
    },
    /// The answer is complete and the server is to close.
    Draining,
}

/// The outcome of an event on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to act on.
    Pending,
    /// The answer is complete; the connection may be used again.
    Answered,
    /// The answer is complete; the connection has yet to end.
    AnsweredLast,
    /// The connection has ended, and that was to be expected.
    Ended,
    /// The exchange failed.
    Failed(Failure),
}

/// A connection of the generator.
#[derive(Debug)]
pub struct Connection {
    /// `None` in `Phase::Closed`.
    pub socket: Option<OwnedFd>,
    /// Its phase.
    pub phase: Phase,
    /// Which of the generator's requests is asked.
    pub request: usize,
    /// The length of the body that the answer must have.
    pub body_len: u64,
    /// When the request fell due.
    pub due: Instant,
    /// When its latency begins.
    pub began: Instant,
    /// Since when it can take a request, or could.
    pub ready: Instant,
    /// How long the kernel had the bytes before the last receive, if it reports that.
    pub lay_waiting: Option<Duration>,
    /// Answers yet to come before the connection is closed for churn.
    pub lifetime: u32,
    /// Whether the answer was a 503, and that is no failure.
    pub is_refused: bool,
    is_refusable: bool,
    is_stamped: bool,
    head: Vec<u8>,
    last: bool,
}

impl Connection {
    /// A connection that is not open; on one that is refusable, a 503 is no
    /// failure, and of one that is stamped the kernel notes when bytes arrive.
    #[must_use]
    pub fn closed(now: Instant, is_refusable: bool, is_stamped: bool) -> Self {
        Self {
            socket: None,
            phase: Phase::Closed,
            request: 0,
            body_len: 0,
            due: now,
            began: now,
            ready: now,
            lay_waiting: None,
            lifetime: u32::MAX,
            is_refused: false,
            is_refusable,
            is_stamped,
            head: Vec::new(),
            last: false,
        }
    }

    /// Drops the socket.
    pub fn close(&mut self) {
        self.socket = None;
        self.phase = Phase::Closed;
        self.head.clear();
    }

    /// Sends the rest of the request. `Pending` in `Phase::Sending` means that the socket must
    /// be watched for writability.
    pub fn send(&mut self, request: &[u8]) -> Outcome {
        let Phase::Sending { sent } = self.phase else {
            return Outcome::Pending;
        };
        let Some(socket) = &self.socket else {
            return Outcome::Failed(Failure::Connect);
        };
        match transmit(socket, &request[sent..]) {
            Transfer::Moved(len) if sent + len == request.len() => self.phase = Phase::Head,
            Transfer::Moved(len) => self.phase = Phase::Sending { sent: sent + len },
            Transfer::Wait => {}
            Transfer::Closed if sent == 0 => return Outcome::Failed(Failure::Connect),
            Transfer::Closed => return Outcome::Failed(Failure::Closed),
        }
        Outcome::Pending
    }

    /// Receives once and follows the answer.
    pub fn receive(&mut self, flags: EventFlags, buffer: &mut [u8]) -> Outcome {
        let Some(socket) = &self.socket else {
            return Outcome::Pending;
        };
        let transfer = if self.is_stamped {
            let (transfer, lay_waiting) = receive_stamped(socket, buffer);
            self.lay_waiting = lay_waiting;
            transfer
        } else {
            receive(socket, buffer)
        };
        let len = match transfer {
            Transfer::Moved(len) => len,
            Transfer::Wait => return Outcome::Pending,
            Transfer::Closed => return self.ended(),
        };
        let outcome = match self.phase {
            Phase::Head | Phase::Sending { .. } => self.read_head(&buffer[..len]),
            Phase::Body { remaining } => self.read_body(remaining, len as u64),
            Phase::Idle | Phase::Draining | Phase::Closed => Outcome::Failed(Failure::Length),
        };
        if outcome == Outcome::AnsweredLast && flags.contains(EventFlags::RDHUP) {
            // The end has come with the last bytes: one receive less.
            self.close();
        }
        outcome
    }

    fn ended(&self) -> Outcome {
        match self.phase {
            Phase::Idle | Phase::Draining | Phase::Closed => Outcome::Ended,
            Phase::Sending { sent: 0 } => Outcome::Failed(Failure::Connect),
            Phase::Sending { .. } | Phase::Head | Phase::Body { .. } => {
                Outcome::Failed(Failure::Closed)
            }
        }
    }

    fn read_head(&mut self, input: &[u8]) -> Outcome {
        if !self.head.is_empty() {
            self.head.extend_from_slice(input);
            let whole = std::mem::take(&mut self.head);
            return self.read_whole_head(&whole);
        }
        self.read_whole_head(input)
    }

    fn read_whole_head(&mut self, input: &[u8]) -> Outcome {
        let head = match parse(input) {
            Parsed::Complete(head) => head,
            Parsed::Invalid => return Outcome::Failed(Failure::Malformed),
            Parsed::Partial => {
                self.head.extend_from_slice(input);
                return Outcome::Pending;
            }
        };
        self.is_refused = self.is_refusable && head.status == 503;
        if let (true, Some(body_len)) = (self.is_refused, head.body_len) {
            self.body_len = body_len;
        } else if head.status != 200 {
            return Outcome::Failed(Failure::Status);
        }
        if head.body_len != Some(self.body_len) {
            return Outcome::Failed(Failure::Length);
        }
        self.last = head.close;
        self.read_body(self.body_len, (input.len() - head.len) as u64)
    }

    fn read_body(&mut self, remaining: u64, len: u64) -> Outcome {
        if len > remaining {
            return Outcome::Failed(Failure::Length);
        }
        if len < remaining {
            self.phase = Phase::Body {
                remaining: remaining - len,
            };
            return Outcome::Pending;
        }
        if self.last {
            self.phase = Phase::Draining;
            return Outcome::AnsweredLast;
        }
        self.phase = Phase::Idle;
        Outcome::Answered
    }
}
