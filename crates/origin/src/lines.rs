//! A connection of lines: the origin sends each one back, behind its name.
//!
//! A first line that is a header of the PROXY protocol, version 1, is not sent
//! back: answers name the client that it tells of.

use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::Shared;
use crate::stream::{OriginStream, Socket};

/// Longest line; a longer one is answered in parts.
const LINE_LEN_MAX: u64 = 64 << 10;

/// Answers lines until either side closes.
pub(super) async fn run(socket: Socket, shared: Rc<Shared>) {
    let _open = shared.counters.connection_opens();
    let stream = OriginStream::new(socket, Rc::clone(&shared));
    // A sender that breaks the connection is gone.
    let _ = answer_all(stream, &shared).await;
}

async fn answer_all(stream: OriginStream, shared: &Shared) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut name = shared.options.name.clone();
    let mut is_first = true;
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = (&mut stream).take(LINE_LEN_MAX);
        if limited.read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        if std::mem::take(&mut is_first) && line.starts_with(b"PROXY ") {
            name.extend(told_client(&line).map(|client| format!(", to {client}")));
            continue;
        }
        shared.counters.requests.fetch_add(1, Relaxed);
        let slot = shared.service.slot().await;
        shared.service.spend(shared.service.time(None)).await;
        drop(slot);
        stream.write_all(format!("{name}: ").as_bytes()).await?;
        stream.write_all(&line).await?;
    }
}

/// `IP:PORT` of the client in `PROXY TCP4 SOURCE DESTINATION PORT PORT`.
fn told_client(header: &[u8]) -> Option<String> {
    let mut words = std::str::from_utf8(header).ok()?.split_whitespace().skip(2);
    let (ip, port) = (words.next()?, words.nth(1)?);
    Some(format!("{ip}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::told_client;

    #[test]
    fn reads_whom_a_header_tells_of() {
        let header = b"PROXY TCP4 192.0.2.7 10.0.0.1 59144 5432\r\n";
        assert_eq!(told_client(header).as_deref(), Some("192.0.2.7:59144"));
        assert_eq!(told_client(b"PROXY UNKNOWN\r\n"), None);
    }
}
