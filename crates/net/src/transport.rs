//! What carries a stream's bytes, and what that can do.
//!
//! Nothing above [`Stream`](crate::stream::Stream) knows which of these it has.
//! A further transport, such as TLS, is a variant here. It keeps these rules:
//!
//! - Bytes that it has read and not handed out make it ready to read. Its socket
//!   says nothing of them.
//! - Bytes that a write took are with the kernel. Where only a part of a record
//!   went, the write is pending, and the next call brings the same bytes again.
//! - A write with [`Follow::Close`](crate::stream::Follow::Close) sends its closing
//!   alert with the last bytes, and [`close_notify`](Plain::close_notify) sends it
//!   alone.
//! - It can splice and send files only where the kernel knows its records.

#[cfg(feature = "simulation")]
pub(crate) mod memory;
mod plain;

pub(crate) use plain::{DetachedPlain, Plain};

/// What carries a stream's bytes.
#[derive(Debug)]
pub(crate) enum Transport {
    /// A socket: TCP over IPv4 or IPv6, or a Unix socket.
    Plain(Plain),
    /// The other end is in the same process.
    #[cfg(feature = "simulation")]
    Memory(memory::End),
}

/// A transport that no task waits for.
#[derive(Debug)]
pub(crate) enum DetachedTransport {
    Plain(DetachedPlain),
    #[cfg(feature = "simulation")]
    Memory(memory::End),
}

/// Does the same with whatever carries the bytes.
macro_rules! with_transport {
    ($of:ident, $transport:expr, $it:ident => $done:expr) => {
        match $transport {
            $of::Plain($it) => $done,
            #[cfg(feature = "simulation")]
            $of::Memory($it) => $done,
        }
    };
}
pub(crate) use with_transport;
