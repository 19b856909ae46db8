//! HTTP/2 (RFC 9113) without I/O: frames, heads and their rules.

pub mod frame;
pub mod request;

pub use frame::{ErrorCode, FrameHead, FrameKind};
