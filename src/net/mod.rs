//! Sockets, buffers and time: what a worker waits on. Knows no HTTP.

pub mod buffer;
pub mod connect;
pub mod listen;
pub mod prefetch;
pub mod stream;
pub mod tasks;
pub mod timer;
pub mod timer_fd;

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the event loop of the current thread say when something can be read.
///
/// # Errors
/// The event loop can't take it.
pub fn readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: a descriptor is the same as long as it is owned.
    let registered = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
    Ok(registered?)
}

/// Whether an error says that there is no descriptor left, for this process or
/// for all.
pub fn is_out_of_descriptors(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE)
}
