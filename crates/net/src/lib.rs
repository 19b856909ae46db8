//! Sockets, buffers and time: everything that a worker waits on. Knows no HTTP.
//!
//! Nothing above it names a socket: a connection is a [`stream::Stream`], an accepted one a
//! [`listen::Incoming`].

mod address;
pub mod buffer;
pub mod clock;
pub mod connect;
pub mod descriptors;
pub mod given;
pub mod handover;
pub mod listen;
pub mod memory;
pub mod pipe;
pub mod poller;
pub mod prefetch;
pub mod stream;
pub mod tasks;
pub mod timer;
pub mod timer_fd;
mod transport;

use std::io;

pub use address::Address;
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};

/// A stream socket that does not block: TCP for internet domains.
fn stream_socket(domain: Domain) -> io::Result<Socket> {
    Socket::new(domain, Type::STREAM.nonblocking().cloexec(), None)
}

/// Whether an error says that there is no descriptor left, for this process or
/// for all.
pub fn is_out_of_descriptors(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE)
}

/// The same, of an error of the standard library.
pub fn lacks_descriptor(error: &std::io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(is_out_of_descriptors)
}
