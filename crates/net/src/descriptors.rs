//! Limits that keep some file descriptors free for more important users.
//!
//! Shared by all threads. The kernel gives each new descriptor the lowest free number, so the
//! number tells how many descriptors are open at least, without a count. Each taker has its own
//! limit, below the process's. A number at or above the limit is not for that taker.
//!
//! Invariant: clients hold no number at or above their limit, except the one connection that
//! each accepting task is about to decide on. Endpoints and files hold none at or above theirs,
//! and neither does the status page. Above the last limit are only the connections of the
//! control socket and the process's own needs.
//!
//! ```text
//! 0 … clients' limit … endpoints' and files' limit … status page's limit … `ulimit -n`
//! ```

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, getrlimit};

/// The user of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Taker {
    /// A client's connection.
    Client,
    /// A connection to an endpoint, a file that is served, or a pipe between two
    /// connections.
    Exchange,
    /// A connection to the status page.
    Status,
}

/// Most descriptors that are kept for operators.
const OPERATORS: u32 = 16;
/// The part of those that the status page may use, in quarters.
const STATUS_QUARTERS: u32 = 3;
/// Most descriptors that are kept for endpoints and files by default.
const EXCHANGES: u32 = 1024;
/// By default each reserve is at most this part of the descriptors that are free at the start.
const PART: u32 = 4;

/// By [`Taker`].
static LIMITS: [AtomicU32; 3] = [const { AtomicU32::new(u32::MAX) }; 3];

/// The limits of takers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    client: u32,
    exchange: u32,
    status: u32,
}

impl Limits {
    /// Of a process that may have `most` descriptors and has `open`. `reserved`
    /// are kept from clients in all, by default as many as the constants say.
    fn new(most: u32, open: u32, reserved: Option<u32>) -> Self {
        let free = most.saturating_sub(open);
        let operators = (free / PART).min(OPERATORS);
        let exchanges = (free / PART).min(EXCHANGES);
        // One client at least can be served.
        let reserved = reserved.unwrap_or(operators + exchanges);
        let reserved = reserved.min(free.saturating_sub(1));
        let operators = operators.min(reserved);
        Limits {
            client: most - reserved,
            exchange: most - operators,
            status: most - (operators - operators * STATUS_QUARTERS / 4),
        }
    }
}

/// Sets the limits of takers, once all that is needed for good is open. `reserved`
/// descriptors are kept from clients; `None` keeps the default.
pub fn reserve(reserved: Option<u32>) {
    let most = getrlimit(Resource::Nofile).current;
    let most = most.map_or(u32::MAX, |it| u32::try_from(it).unwrap_or(u32::MAX));
    // The lowest free number: all below it are taken.
    let lowest_free = fcntl_dupfd_cloexec(std::io::stderr(), 0).map(|it| it.as_raw_fd() as u32);
    let Limits {
        client,
        exchange,
        status,
    } = Limits::new(most, lowest_free.unwrap_or(0), reserved);
    for (limit, value) in LIMITS.iter().zip([client, exchange, status]) {
        limit.store(value, Ordering::Relaxed);
    }
}

/// Whether a descriptor's number is reserved for others than its taker.
pub fn is_reserved(descriptor: impl AsFd, taker: Taker) -> bool {
    let number = descriptor.as_fd().as_raw_fd() as u32;
    number >= LIMITS[taker as usize].load(Ordering::Relaxed)
}

/// A descriptor that its taker may have.
///
/// # Errors
/// `EMFILE`, as if the process's limit were that of the taker. The descriptor is
/// closed.
pub fn within_limit<T: AsFd>(descriptor: T, taker: Taker) -> Result<T, Errno> {
    if is_reserved(&descriptor, taker) {
        Err(Errno::MFILE)
    } else {
        Ok(descriptor)
    }
}

/// Moves a descriptor to the lowest free number, if that is lower. To be called before an event
/// loop knows it.
pub fn lowered(descriptor: OwnedFd) -> OwnedFd {
    match fcntl_dupfd_cloexec(&descriptor, 0) {
        Ok(lower) if lower.as_raw_fd() < descriptor.as_raw_fd() => lower,
        _ => descriptor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserves_are_a_part_of_what_is_free() {
        let cases = [
            // Many: the reserves have their full size.
            ((1_048_576, 30, None), (1_047_536, 1_048_560, 1_048_572)),
            // With few, each reserve is a quarter of the free ones.
            ((120, 30, None), (82, 104, 116)),
            ((40, 24, None), (32, 36, 39)),
            // None is left: the limits are the process's.
            ((30, 30, None), (30, 30, 30)),
            // As configured.
            ((120, 30, Some(0)), (120, 120, 120)),
            ((120, 30, Some(4)), (116, 116, 119)),
            ((1024, 24, Some(500)), (524, 1008, 1020)),
            ((120, 30, Some(500)), (31, 104, 116)),
        ];
        for ((most, open, reserved), (client, exchange, status)) in cases {
            let expected = Limits {
                client,
                exchange,
                status,
            };
            let limits = Limits::new(most, open, reserved);
            assert_eq!(limits, expected, "{most} {open} {reserved:?}");
        }
    }

    #[test]
    fn a_descriptor_moves_to_a_lower_number() {
        let low = fcntl_dupfd_cloexec(std::io::stderr(), 0).expect("a descriptor");
        let high = fcntl_dupfd_cloexec(std::io::stderr(), 0).expect("a descriptor");
        let (low_number, high_number) = (low.as_raw_fd(), high.as_raw_fd());
        drop(low);
        // Other tests may have taken the number meanwhile.
        let lowered = lowered(high).as_raw_fd();
        assert!(lowered <= high_number, "{low_number}: {lowered}");
    }
}
