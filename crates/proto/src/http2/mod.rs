//! HTTP/2 (RFC 9113) without I/O: frames, heads, streams and their rules.

mod budget;
pub mod connection;
mod fields;
pub mod frame;
pub mod request;
pub mod response;
mod stream;

pub use connection::server::{Connection, Event, Request};
pub use connection::{Core, Fatal, Role, Settings, client, server};
pub use frame::{ErrorCode, FrameHead, FrameKind};
pub use stream::{Direction, Priority, StreamId};
