//! The part of a head that only HTTP/1 has.
//!
//! These are the head's place in the buffer, the end of the body, and the fate
//! of the connection.

use crate::span::Span;

/// How the end of a body is known (RFC 9112 §6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BodyFraming {
    /// The message has no body.
    #[default]
    None,
    /// So many bytes.
    Length {
        /// Value of `Content-Length`.
        bytes: u64,
    },
    /// The chunked transfer coding.
    Chunked,
    /// Everything until the connection closes (responses only).
    UntilClose,
}

/// How HTTP/1 carries a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestWire {
    /// The start of the head in the buffer (after a stray empty line).
    pub start: usize,
    /// The start of the body in the buffer.
    pub end: usize,
    /// How the body ends.
    pub framing: BodyFraming,
    /// Whether the client wants the connection kept (RFC 9112 §9.3).
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub expect_continue: bool,
    /// Whether the host comes from the target (absolute form, RFC 9112 §3.2.2).
    pub host_in_target: bool,
    /// The protocol asked for, where `Connection` names `upgrade`.
    pub upgrade: Option<Span>,
}

/// How HTTP/1 carries a response.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResponseWire {
    /// The start of the head in the buffer.
    pub start: usize,
    /// The start of the body in the buffer.
    pub end: usize,
    /// How the body ends.
    pub framing: BodyFraming,
    /// Whether the connection can carry another exchange afterwards.
    pub keep_alive: bool,
}
