//! Sockets, buffers and time: what a worker waits on. Knows no HTTP.

pub mod buffer;
pub mod connect;
pub mod listen;
pub mod prefetch;
pub mod stream;
pub mod timer;
