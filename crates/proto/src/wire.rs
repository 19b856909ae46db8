//! The part of a head that only HTTP/1 knows: where it lies, how the body ends, and
//! what becomes of the connection.

use crate::span::Span;

/// How the end of a body is known (RFC 9112 §6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BodyFraming {
    /// There is no body.
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
    /// Where the head begins in the buffer (after a stray empty line).
    pub start: usize,
    /// Where the body begins in the buffer.
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
    /// Where the head begins in the buffer.
    pub start: usize,
    /// Where the body begins in the buffer.
    pub end: usize,
    /// How the body ends.
    pub framing: BodyFraming,
    /// Whether the connection can carry another exchange afterwards.
    pub keep_alive: bool,
}
