//! The origin of the measurements: a minimal HTTP/1.1 server.
//!
//! It answers `/N` with N bytes, from responses made in advance. It reads requests without
//! bodies, pipelined or not, and keeps connections open as HTTP/1.1 and `Connection:
//! keep-alive` on HTTP/1.0 ask. It looks at nothing else, so it is fit only for the load
//! generator and the measured proxies.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use memchr::memmem;
use rustix::event::epoll::{Event, EventFlags};
use rustix::fd::OwnedFd;
use slab::Slab;

use crate::socket::{
    BUFFER_LEN, Poller, Transfer, Waiting, accept_from, listen_on, receive, transmit,
};

const LISTENER: u64 = u64::MAX;
const EVENTS_PER_WAIT: usize = 512;
/// A request's head may not be longer.
const HEAD_LEN_MAX: usize = 64 * 1024;
/// A body may not be longer.
const BODY_LEN_MAX: usize = 64 * 1024 * 1024;

/// Options of `evenkeel-lab origin`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The address to accept on.
    #[arg(long)]
    listen: SocketAddr,
    /// Never sleep, so that no sender pays for a wake-up.
    #[arg(long)]
    awake: bool,
}

impl Options {
    fn waiting(&self) -> Waiting {
        if self.awake {
            Waiting::Awake
        } else {
            Waiting::Asleep
        }
    }
}

/// The `Connection` field of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Persistence {
    /// HTTP/1.1 as usual: the field is left out.
    Implied,
    /// HTTP/1.0 that asked for it.
    KeepAlive,
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OriginRequest {
    body_len: usize,
    persistence: Persistence,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    /// The beginning of a request whose end has not come yet.
    partial: Vec<u8>,
    /// Answers not sent yet, and how much of the first one has been.
    unsent: Vec<Rc<[u8]>>,
    unsent_from: usize,
    closing: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Lives,
    Ends,
}

/// Answers until the process is ended.
///
/// # Errors
/// The kernel's, when it can't listen or poll.
pub fn run(options: &Options) -> io::Result<()> {
    let listener = listen_on(options.listen)?;
    let mut origin = Origin {
        poller: Poller::new(options.waiting())?,
        connections: Slab::new(),
        responses: HashMap::new(),
    };
    origin.poller.add(&listener, LISTENER, EventFlags::IN)?;
    let mut buffer = vec![0; BUFFER_LEN];
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS_PER_WAIT);
    loop {
        origin.poller.wait(&mut events)?;
        for event in &events {
            match event.data.u64() {
                LISTENER => origin.accept_all(&listener),
                token => origin.ready(token as usize, event.flags, &mut buffer),
            }
        }
    }
}

struct Origin {
    poller: Poller,
    connections: Slab<Connection>,
    responses: HashMap<(usize, Persistence), Rc<[u8]>>,
}

impl Origin {
    fn accept_all(&mut self, listener: &OwnedFd) {
        while let Some(socket) = accept_from(listener) {
            let entry = self.connections.vacant_entry();
            let watched = self.poller.add(&socket, entry.key() as u64, EventFlags::IN);
            if watched.is_ok() {
                entry.insert(Connection {
                    socket,
                    partial: Vec::new(),
                    unsent: Vec::new(),
                    unsent_from: 0,
                    closing: false,
                });
            }
        }
    }

    fn ready(&mut self, key: usize, flags: EventFlags, buffer: &mut [u8]) {
        if !self.connections.contains(key) {
            return;
        }
        let fate = if flags.contains(EventFlags::OUT) {
            self.resume(key)
        } else {
            self.serve(key, buffer)
        };
        if fate == Fate::Ends {
            self.connections.remove(key);
        }
    }

    fn serve(&mut self, key: usize, buffer: &mut [u8]) -> Fate {
        let connection = &mut self.connections[key];
        let len = match receive(&connection.socket, buffer) {
            Transfer::Moved(len) => len,
            Transfer::Wait => return Fate::Lives,
            Transfer::Closed => return Fate::Ends,
        };
        if connection.partial.is_empty() {
            return self.answer_all(key, &buffer[..len]);
        }
        let mut input = std::mem::take(&mut connection.partial);
        input.extend_from_slice(&buffer[..len]);
        self.answer_all(key, &input)
    }

    fn answer_all(&mut self, key: usize, mut input: &[u8]) -> Fate {
        while let Some(end) = memmem::find(input, b"\r\n\r\n") {
            let (head, rest) = input.split_at(end + 4);
            input = rest;
            let Some(request) = parse(head) else {
                return Fate::Ends;
            };
            let response = self.response(request);
            let connection = &mut self.connections[key];
            let sent = if connection.unsent.is_empty() {
                match transmit(&connection.socket, &response) {
                    Transfer::Moved(sent) => sent,
                    Transfer::Wait => 0,
                    Transfer::Closed => return Fate::Ends,
                }
            } else {
                0
            };
            let closing = request.persistence == Persistence::Close;
            if sent < response.len() {
                if connection.unsent.is_empty() {
                    connection.unsent_from = sent;
                }
                connection.unsent.push(response);
                connection.closing = closing;
            } else if closing {
                return Fate::Ends;
            }
            if closing {
                break;
            }
        }
        let connection = &mut self.connections[key];
        connection.partial.extend_from_slice(input);
        if connection.partial.len() > HEAD_LEN_MAX {
            return Fate::Ends;
        }
        if connection.unsent.is_empty() {
            return Fate::Lives;
        }
        self.watch(key, EventFlags::OUT)
    }

    fn resume(&mut self, key: usize) -> Fate {
        let connection = &mut self.connections[key];
        while let Some(response) = connection.unsent.first() {
            match transmit(&connection.socket, &response[connection.unsent_from..]) {
                Transfer::Moved(sent) => connection.unsent_from += sent,
                Transfer::Wait => return Fate::Lives,
                Transfer::Closed => return Fate::Ends,
            }
            if connection.unsent_from < response.len() {
                return Fate::Lives;
            }
            connection.unsent.remove(0);
            connection.unsent_from = 0;
        }
        if connection.closing {
            return Fate::Ends;
        }
        self.watch(key, EventFlags::IN)
    }

    fn watch(&self, key: usize, interest: EventFlags) -> Fate {
        let socket = &self.connections[key].socket;
        match self.poller.modify(socket, key as u64, interest) {
            Ok(()) => Fate::Lives,
            Err(_) => Fate::Ends,
        }
    }

    fn response(&mut self, request: OriginRequest) -> Rc<[u8]> {
        let response = self
            .responses
            .entry((request.body_len, request.persistence))
            .or_insert_with(|| render(request));
        Rc::clone(response)
    }
}

fn render(request: OriginRequest) -> Rc<[u8]> {
    let connection = match request.persistence {
        Persistence::Implied => "",
        Persistence::KeepAlive => "Connection: keep-alive\r\n",
        Persistence::Close => "Connection: close\r\n",
    };
    let mut bytes = format!(
        "HTTP/1.1 200 OK\r\nServer: lab\r\nContent-Type: application/octet-stream\r\n\
         Content-Length: {}\r\n{connection}\r\n",
        request.body_len
    )
    .into_bytes();
    bytes.extend((0..request.body_len).map(|at| b'a' + (at % 26) as u8));
    bytes.into()
}

/// Reads `GET /N HTTP/1.x` and the `Connection` field.
fn parse(head: &[u8]) -> Option<OriginRequest> {
    let line_end = memchr::memchr(b'\n', head)?;
    let (line, fields) = head.split_at(line_end + 1);
    let path = line.strip_prefix(b"GET /")?;
    let digits = path.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let body_len: usize = std::str::from_utf8(&path[..digits]).ok()?.parse().ok()?;
    if body_len > BODY_LEN_MAX {
        return None;
    }
    let old = line.ends_with(b"HTTP/1.0\r\n");
    let field = connection_field(fields);
    let persistence = match field {
        Some(value) if value.eq_ignore_ascii_case(b"close") => Persistence::Close,
        Some(value) if old && value.eq_ignore_ascii_case(b"keep-alive") => Persistence::KeepAlive,
        _ if old => Persistence::Close,
        _ => Persistence::Implied,
    };
    Some(OriginRequest {
        body_len,
        persistence,
    })
}

fn connection_field(mut fields: &[u8]) -> Option<&[u8]> {
    const NAME: &[u8] = b"connection:";
    while let Some(end) = memchr::memchr(b'\n', fields) {
        let (line, rest) = fields.split_at(end + 1);
        if line.len() > NAME.len() && line[..NAME.len()].eq_ignore_ascii_case(NAME) {
            return Some(line[NAME.len()..].trim_ascii());
        }
        fields = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_requests() {
        type Case = (&'static [u8], Option<(usize, Persistence)>);
        let cases: [Case; 6] = [
            (
                b"GET /44 HTTP/1.1\r\nHost: a\r\n\r\n",
                Some((44, Persistence::Implied)),
            ),
            (
                b"GET /1024?x HTTP/1.1\r\nconnection:close\r\n\r\n",
                Some((1024, Persistence::Close)),
            ),
            (b"GET /0 HTTP/1.0\r\n\r\n", Some((0, Persistence::Close))),
            (
                b"GET /7 HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
                Some((7, Persistence::KeepAlive)),
            ),
            (b"POST /7 HTTP/1.1\r\n\r\n", None),
            (b"GET /x HTTP/1.1\r\n\r\n", None),
        ];
        for (head, expected) in cases {
            let expected = expected.map(|(body_len, persistence)| OriginRequest {
                body_len,
                persistence,
            });
            assert_eq!(parse(head), expected, "{}", head.escape_ascii());
        }
    }
}
