//! Connecting to an endpoint.

use std::future::poll_fn;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket};

use crate::address::Address;
use crate::descriptors::{Taker, within_limit};
use crate::stream::Stream;
use crate::stream_socket;
use crate::timer_fd::TimerFd;

/// Opens a connection.
///
/// # Errors
/// The error of the kernel: refused, unreachable, out of descriptors.
///
/// # Cancellation
/// Dropping the future closes the socket.
pub async fn connect(address: &Address) -> io::Result<Stream> {
    let (socket, address) = match address {
        Address::Tcp(address) => {
            let socket = endpoint_socket(Domain::for_address(*address))?;
            socket.set_tcp_nodelay(true)?;
            (socket, SockAddr::from(*address))
        }
        Address::Unix(path) => (endpoint_socket(Domain::UNIX)?, SockAddr::unix(path)?),
    };
    match socket.connect(&address) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INPROGRESS) => {}
        done => return done.and_then(|()| Stream::new(socket.into())),
    }
    let mut stream = Stream::new(socket.into())?;
    poll_fn(|cx| stream.poll_connected(cx)).await?;
    Ok(stream)
}

/// How often room in a full backlog is asked for.
const BACKLOG_PAUSE: Duration = Duration::from_millis(5);

/// Opens a connection, and retries while the backlog of a Unix socket is full, as long as
/// `may_ask_again` returns true. Over TCP the kernel retries by itself.
///
/// # Errors
/// The error of the kernel; "would block" if the backlog is full.
///
/// # Cancellation
/// Dropping the future closes the socket.
pub async fn connect_when_there_is_room(
    address: &Address,
    mut may_ask_again: impl FnMut() -> bool,
) -> io::Result<Stream> {
    let mut timer = None;
    loop {
        let full = match connect(address).await {
            Err(error) if is_backlog_full(&error) => error,
            connected => return connected,
        };
        if !may_ask_again() {
            return Err(full);
        }
        let timer = match &timer {
            Some(timer) => timer,
            None => {
                let new = TimerFd::new()?;
                new.set(BACKLOG_PAUSE, BACKLOG_PAUSE)?;
                timer.insert(new)
            }
        };
        timer.expired().await;
    }
}

/// Whether as many connections wait to be accepted as may.
pub fn is_backlog_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Whether a connection failed by the endpoint's doing, and not for want of
/// something here, such as descriptors or ports.
pub fn is_unreachable(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::TimedOut
            | Kind::NotFound
            | Kind::PermissionDenied
    )
}

/// A socket for a connection to an endpoint, unless the descriptors that are left
/// are kept for others.
fn endpoint_socket(domain: Domain) -> io::Result<Socket> {
    Ok(within_limit(stream_socket(domain)?, Taker::Exchange)?)
}

/// The system's words for an error, without its number and in lower case.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = words.chars();
    let first = chars.next().map(|it| it.to_ascii_lowercase());
    first.into_iter().chain(chars).collect()
}
