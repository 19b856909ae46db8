//! HTTP/1.0 and HTTP/1.1 (RFC 9112): parsing in place, framing, writing.
//!
//! Requests are read strictly wherever leniency would let two parsers disagree:
//! no bare LF, no folding, no repeated or ambiguous length. Responses of servers
//! that have one reading all the same are taken, and restated by the grammar.

mod authority;
pub mod body;
pub mod chunked;
mod diagnose;
pub mod edit;
mod fields;
mod grammar;
mod reason;
pub mod recode;
mod request;
mod response;
mod restate;
mod trailer;
pub mod write;

pub use authority::is_authority;
pub use body::{Advance, BodyDecoder};
pub use chunked::{ChunkedDecoder, Piece};
pub use grammar::is_token;
pub(crate) use grammar::{is_field_text, is_target};
pub use reason::reason_phrase;
pub use request::parse_request;
pub(crate) use request::read_head;
pub use response::parse_response;
pub(crate) use response::read_head as read_response_head;
pub use restate::{ODD_HEAD_GROWTH_MAX, parse_odd_response};
pub(crate) use trailer::is_forbidden as is_forbidden_trailer;

/// Most fields in a request's head or a trailer section.
pub const MAX_FIELDS: usize = 128;

/// Most fields in a response's head.
pub const MAX_RESPONSE_FIELDS: usize = 256;

/// The result of a parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// The head is whole; it was filled in.
    Complete,
    /// More bytes are needed.
    Partial,
}
