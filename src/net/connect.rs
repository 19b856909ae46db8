//! Connecting to an endpoint.

use std::io;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, UnixStream};

use super::stream::Stream;
use crate::config::Address;

/// Opens a connection.
///
/// # Errors
/// Whatever the kernel says: refused, unreachable, out of descriptors.
///
/// # Cancellation
/// Dropping the future closes the socket.
pub async fn connect(address: &Address) -> io::Result<Stream> {
    match address {
        Address::Tcp(address) => {
            let socket = Socket::new(
                Domain::for_address(*address),
                Type::STREAM.nonblocking().cloexec(),
                Some(Protocol::TCP),
            )?;
            socket.set_tcp_nodelay(true)?;
            let socket = TcpSocket::from_std_stream(socket.into());
            let stream: TcpStream = socket.connect(*address).await?;
            Ok(Stream::Tcp(stream))
        }
        Address::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
    }
}

/// The system's words for an error, without its number and in lower case.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = words.chars();
    let first = chars.next().map(|it| it.to_ascii_lowercase());
    first.into_iter().chain(chars).collect()
}
