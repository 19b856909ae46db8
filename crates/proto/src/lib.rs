//! HTTP messages without I/O: bytes in, spans and decisions out.
//!
//! A head is one byte buffer plus [`Span`]s into it ([`head`]). HTTP/1 fills it by parsing in
//! place ([`http1`]), and [`wire`] is the part that only HTTP/1 has. [`probe`] has probes in
//! other protocols. Nothing here opens a socket, reads a clock or knows an async runtime, and no
//! input from the network can cause a panic.
#![forbid(unsafe_code)]

pub mod cdn_loop;
pub mod client_hello;
pub mod coding;
pub mod date;
pub mod error;
pub mod field;
pub mod file_path;
pub mod forwarded;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod grpc;
pub mod head;
pub mod hpack;
pub mod http1;
pub mod http2;
pub mod identity;
pub mod probe;
pub mod proxy_protocol;
pub mod representation;
pub mod span;
pub mod wire;

pub use cdn_loop::LoopId;
pub use coding::Coding;
pub use error::{BodyError, PathError, RequestError, ResponseError};
pub use field::{Field, FieldKind};
pub use head::{Credentials, Method, RequestHead, ResponseHead, Scheme, Version};
pub use representation::{ByteRange, Conditions, Precondition, Ranges, Validators};
pub use span::Span;
pub use wire::BodyFraming;
