//! The carriers of a stream's bytes, and their capabilities.
//!
//! Nothing above `Stream` knows which transport it has. A further transport is a variant here.
//! It keeps these rules:
//!
//! - Bytes that it has read and not handed out make it ready to read. Its socket does not
//!   report them.
//! - Bytes accepted by a write are with the kernel. If only a part of a record was sent, the
//!   write is pending, and the next call brings the same bytes again.
//! - A write with [`Follow::Close`] sends the closing alert with the last bytes, and
//!   [`close_notify`](Plain::close_notify) sends it alone.
//! - It can splice and send files only if the kernel encrypts its records.

/// Methods of a transport whose bytes the kernel can't move: they are copied.
macro_rules! moved_here {
    () => {
        pub fn can_splice(&self) -> bool {
            false
        }

        pub fn can_send_file(&self) -> bool {
            false
        }

        pub fn poll_read_into(
            &self,
            _: &std::task::Context<'_>,
            _: &mut $crate::pipe::Pipe,
            _: u64,
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::task::Poll::Ready(Err(std::io::ErrorKind::Unsupported.into()))
        }

        pub fn poll_write_from(
            &self,
            _: &std::task::Context<'_>,
            _: &mut $crate::pipe::Pipe,
            _: $crate::transport::Follow,
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::task::Poll::Ready(Err(std::io::ErrorKind::Unsupported.into()))
        }

        pub fn poll_send_file(
            &self,
            _: &std::task::Context<'_>,
            _: std::os::fd::BorrowedFd<'_>,
            _: u64,
            _: usize,
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::task::Poll::Ready(Err(std::io::ErrorKind::Unsupported.into()))
        }
    };
}

mod carried;
#[cfg(feature = "simulation")]
pub(crate) mod memory;
mod plain;
mod tls;

pub(crate) use carried::Carried;
pub use carried::Carrying;
pub(crate) use plain::{DetachedPlain, Plain};
pub(crate) use tls::{DetachedTls, Tls};
pub use tls::{HandshakeError, Negotiated};

/// The data that follows a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Nothing that is known: they are sent at once.
    Anything,
    /// The stream is closed right away: the last of them travel with the
    /// closing segment, which saves one of two segments for a small answer.
    Close,
    /// More of the same answer, at once.
    More,
}

impl Follow {
    /// Whether the kernel may wait for what follows.
    pub(crate) fn is_more(self) -> bool {
        self != Follow::Anything
    }
}

/// The result of a look at a stream's next byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peeked {
    /// Bytes wait to be read.
    Data,
    /// The peer has closed its sending side.
    End,
    /// Nothing yet.
    Nothing,
    /// The connection is broken.
    Broken,
}

/// The carrier of a stream's bytes.
#[derive(Debug)]
pub(crate) enum Transport {
    /// A socket: TCP over IPv4 or IPv6, or a Unix socket.
    Plain(Plain),
    /// The same, encrypted. Boxed, so that plain connections are no larger for it.
    Tls(Box<Tls>),
    /// A stream on another component's carrier.
    Carried(Carried),
    /// The other end is in the same process.
    #[cfg(feature = "simulation")]
    Memory(memory::End),
}

/// A transport that no task waits for.
#[derive(Debug)]
pub(crate) enum DetachedTransport {
    Plain(DetachedPlain),
    Tls(Box<DetachedTls>),
    #[cfg(feature = "simulation")]
    Memory(memory::End),
}

/// Does the same with whatever carries the bytes.
macro_rules! with_transport {
    ($transport:expr, $it:ident => $done:expr) => {
        match $transport {
            Transport::Plain($it) => $done,
            Transport::Tls($it) => $done,
            Transport::Carried($it) => $done,
            #[cfg(feature = "simulation")]
            Transport::Memory($it) => $done,
        }
    };
}

/// The same of one that no task waits for.
macro_rules! with_detached {
    ($transport:expr, $it:ident => $done:expr) => {
        match $transport {
            DetachedTransport::Plain($it) => $done,
            DetachedTransport::Tls($it) => $done,
            #[cfg(feature = "simulation")]
            DetachedTransport::Memory($it) => $done,
        }
    };
}
pub(crate) use {with_detached, with_transport};
