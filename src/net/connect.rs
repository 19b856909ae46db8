//! Connecting to an endpoint.

use std::future::poll_fn;
use std::io;

use rustix::io::Errno;
use socket2::{Domain, SockAddr};

use super::stream::Stream;
use super::stream_socket;
use crate::config::Address;

/// Opens a connection.
///
/// # Errors
/// Whatever the kernel says: refused, unreachable, out of descriptors.
///
/// # Cancellation
/// Dropping the future closes the socket.
pub async fn connect(address: &Address) -> io::Result<Stream> {
    let (socket, address) = match address {
        Address::Tcp(address) => {
            let socket = stream_socket(Domain::for_address(*address))?;
            socket.set_tcp_nodelay(true)?;
            (socket, SockAddr::from(*address))
        }
        Address::Unix(path) => (stream_socket(Domain::UNIX)?, SockAddr::unix(path)?),
    };
    match socket.connect(&address) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INPROGRESS) => {}
        done => return done.and_then(|()| Stream::new(socket.into())),
    }
    let stream = Stream::new(socket.into())?;
    poll_fn(|cx| stream.poll_write_ready(cx)).await;
    rustix::net::sockopt::socket_error(&stream)??;
    Ok(stream)
}

/// The system's words for an error, without its number and in lower case.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = words.chars();
    let first = chars.next().map(|it| it.to_ascii_lowercase());
    first.into_iter().chain(chars).collect()
}
