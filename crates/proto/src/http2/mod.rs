//! HTTP/2 (RFC 9113) without I/O: frames, heads, streams and their rules.

mod budget;
pub mod connection;
pub mod frame;
pub mod request;
pub mod response;
mod stream;

pub use connection::{Connection, Event, Fatal, Request, Settings};
pub use frame::{ErrorCode, FrameHead, FrameKind};
pub use stream::{Direction, Priority, StreamId};
