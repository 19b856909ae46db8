//! The control socket. Each line has commands and gets an answer, and then the connection is
//! closed. This is HAProxy's protocol, so that its tools work here.
//!
//! A line may have several commands, separated by `;`. After `prompt` the connection stays open
//! for further lines. The time for a command and for reading its answer is limited, and so is the
//! number of clients. So no client can block the control thread.

mod answer;
mod command;
mod endpoint;
mod haproxy;
mod maintenance;
mod show;
mod table;

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::operate::Operator;
use super::{Acceptor, Admin, ConnectionPlace};
use crate::net::listen::Listener;

pub use command::MAX_ROWS;

/// Longest line of commands, in bytes.
const MAX_LINE_LEN: usize = 16 * 1024;
/// Most connections at a time, and most that are being refused.
const MAX_CONNECTIONS: usize = 32;
/// Longest wait for the first command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time between two commands after `prompt`.
const PROMPT_TIMEOUT: Duration = Duration::from_secs(600);
/// Interval of checks whether a waiting client has left.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Longest time for the client to read an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a too long line that are read and dropped.
const MAX_DISCARDED_LEN: u64 = 1024 * 1024;
/// Longest time for reading them.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Accepts commands forever.
pub(super) async fn serve(admin: Arc<Admin>, listener: Listener) {
    let open = Rc::new(Cell::new(0));
    let refused = Rc::new(Cell::new(0));
    let mut acceptor = Acceptor::new("control socket", listener);
    loop {
        let (socket, _) = acceptor.accept().await;
        let connection = match UnixStream::from_std(socket.into()) {
            Ok(stream) => Connection::new(stream),
            Err(error) => {
                tracing::warn!("control socket: a connection was closed: {error}");
                continue;
            }
        };
        let Some(place) = ConnectionPlace::take(&open, MAX_CONNECTIONS) else {
            // If even these are too many, further ones are just closed.
            if let Some(place) = ConnectionPlace::take(&refused, MAX_CONNECTIONS) {
                tokio::task::spawn_local(async move {
                    let _place = place;
                    // A client that does not read the refusal does not need it.
                    let _ = connection.refuse().await;
                });
            }
            continue;
        };
        let admin = admin.clone();
        tokio::task::spawn_local(async move {
            let _place = place;
            // A client that leaves early needs no answer.
            let _ = connection.serve(&admin).await;
        });
    }
}

/// The sender of a command, and the state that it acts on.
struct Caller<'a> {
    admin: &'a Admin,
    operator: Operator,
}

struct Connection {
    read: BufReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
}

/// A client's input.
enum Line {
    Commands(String),
    TooLong,
    /// The end of the input.
    End,
}

/// Whether the connection stays open after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    OneLine,
    Prompt,
}

impl Connection {
    fn new(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        Connection {
            read: BufReader::new(read),
            write,
        }
    }

    async fn refuse(mut self) -> io::Result<()> {
        let text =
            format!("error: too many control connections: {MAX_CONNECTIONS} are already open\n\n");
        self.write(&text).await?;
        self.discard().await
    }

    async fn serve(mut self, admin: &Arc<Admin>) -> io::Result<()> {
        let peer = self.read.get_ref().as_ref().peer_cred();
        let operator = Operator::Control {
            uid: peer.ok().map(|it| it.uid()),
        };
        let mut mode = Mode::OneLine;
        loop {
            let limit = match mode {
                Mode::OneLine => COMMAND_TIMEOUT,
                Mode::Prompt => PROMPT_TIMEOUT,
            };
            let Ok(line) = timeout(limit, self.line()).await else {
                let text = format!("error: no command arrived within {} s\n\n", limit.as_secs());
                return self.write(&text).await;
            };
            let line = match line? {
                Line::End => return Ok(()),
                Line::TooLong => {
                    let text =
                        format!("error: the command line is longer than {MAX_LINE_LEN} bytes\n\n");
                    self.write(&text).await?;
                    return self.discard().await;
                }
                Line::Commands(line) => line,
            };
            for words in command::split(&line) {
                match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                    ["prompt"] => mode = Mode::Prompt,
                    ["quit" | "exit"] => return Ok(()),
                    ref words => {
                        let answer = tokio::select! {
                            answer = command::run(admin, operator, words) => answer,
                            () = self.left() => return Ok(()),
                        };
                        self.write(&answer).await?;
                    }
                }
            }
            match mode {
                Mode::OneLine => return self.write.shutdown().await,
                Mode::Prompt => self.write("> ").await?,
            }
        }
    }

    /// Waits until the client has closed its connection. A half-close does not count, as such a
    /// client may still wait for the answer.
    async fn left(&self) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            match self.write.ready(Interest::WRITABLE).await {
                Ok(ready) if !ready.is_write_closed() => {}
                _ => return,
            }
        }
    }

    /// The next line. The last one needs no newline.
    async fn line(&mut self) -> io::Result<Line> {
        let mut line = Vec::new();
        let most = MAX_LINE_LEN as u64 + 1;
        (&mut self.read)
            .take(most)
            .read_until(b'\n', &mut line)
            .await?;
        Ok(match line.last() {
            None => Line::End,
            Some(b'\n') => Line::Commands(String::from_utf8_lossy(&line).into_owned()),
            Some(_) if line.len() > MAX_LINE_LEN => Line::TooLong,
            Some(_) => Line::Commands(String::from_utf8_lossy(&line).into_owned()),
        })
    }

    async fn write(&mut self, text: &str) -> io::Result<()> {
        match timeout(ANSWER_TIMEOUT, self.write.write_all(text.as_bytes())).await {
            Ok(written) => written,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Reads the rest of the input, so that the close does not destroy the answer.
    async fn discard(mut self) -> io::Result<()> {
        self.write.shutdown().await?;
        let mut rest = (&mut self.read).take(MAX_DISCARDED_LEN);
        let mut sink = tokio::io::sink();
        let discarded = tokio::io::copy(&mut rest, &mut sink);
        // Later input is not awaited.
        let _ = timeout(DISCARD_TIMEOUT, discarded).await;
        Ok(())
    }
}
