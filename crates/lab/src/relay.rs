//! The bare relay: the floor that a proxy's cost is compared with.
//!
//! One thread with level-triggered epoll, and one upstream connection for each client
//! connection. Bytes are copied unchanged: one receive and one send for each readiness. The
//! relay knows no HTTP, logs nothing and counts nothing, so its cost is the kernel's.

use std::io;
use std::net::SocketAddr;

use rustix::event::epoll::{Event, EventFlags};
use rustix::fd::OwnedFd;
use slab::Slab;

use crate::socket::{
    BUFFER_LEN, Poller, Transfer, Waiting, accept_from, connect_to, listen_on, receive, transmit,
};

const LISTENER: u64 = u64::MAX;
const EVENTS_PER_WAIT: usize = 512;

/// Options of `evenkeel-lab relay`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The address to accept on.
    #[arg(long)]
    listen: SocketAddr,
    /// The address to connect to.
    #[arg(long)]
    to: SocketAddr,
}

/// One end of a pair, with the bytes that it has not taken yet.
#[derive(Debug)]
struct Side {
    socket: OwnedFd,
    pending: Vec<u8>,
    /// Set when the other side has ended and only `pending` is left to send.
    last: bool,
}

impl Side {
    fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            pending: Vec::new(),
            last: false,
        }
    }
}

/// A client connection and its upstream connection, in this order.
type Pair = [Side; 2];

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Lives,
    Ends,
}

/// Relays until the process is ended.
///
/// # Errors
/// The kernel's, when it can't listen or poll.
pub fn run(options: &Options) -> io::Result<()> {
    let listener = listen_on(options.listen)?;
    let poller = Poller::new(Waiting::Asleep)?;
    poller.add(&listener, LISTENER, EventFlags::IN)?;
    let mut relay = Relay {
        poller,
        to: options.to,
        pairs: Slab::new(),
        buffer: vec![0; BUFFER_LEN],
    };
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS_PER_WAIT);
    loop {
        relay.poller.wait(&mut events)?;
        for event in &events {
            match event.data.u64() {
                LISTENER => relay.accept_all(&listener),
                token => relay.ready(token, event.flags),
            }
        }
    }
}

struct Relay {
    poller: Poller,
    to: SocketAddr,
    pairs: Slab<Pair>,
    buffer: Vec<u8>,
}

impl Relay {
    fn accept_all(&mut self, listener: &OwnedFd) {
        while let Some(client) = accept_from(listener) {
            let Ok(upstream) = connect_to(self.to) else {
                continue;
            };
            let entry = self.pairs.vacant_entry();
            let token = (entry.key() as u64) << 1;
            let watched = self
                .poller
                .add(&client, token, EventFlags::IN)
                .and_then(|()| self.poller.add(&upstream, token | 1, EventFlags::IN));
            if watched.is_ok() {
                entry.insert([Side::new(client), Side::new(upstream)]);
            }
        }
    }

    /// A token is the pair's key, and in its lowest bit which side is ready.
    ///
    /// An event may be older than the pair with its key. Then the socket reports "not ready",
    /// and nothing happens.
    fn ready(&mut self, token: u64, flags: EventFlags) {
        let key = (token >> 1) as usize;
        let Some(pair) = self.pairs.get_mut(key) else {
            return;
        };
        let [client, upstream] = pair;
        let (near, far) = if token & 1 == 0 {
            (client, upstream)
        } else {
            (upstream, client)
        };
        let link = Link {
            poller: &self.poller,
            near_token: token,
        };
        let mut fate = Fate::Lives;
        if flags.contains(EventFlags::OUT) {
            fate = link.flush(near, far);
        }
        if fate == Fate::Lives && !flags.difference(EventFlags::OUT).is_empty() {
            fate = link.copy(near, far, &mut self.buffer);
        }
        if fate == Fate::Ends {
            // Closing the sockets takes them out of epoll.
            self.pairs.remove(key);
        }
    }
}

/// Both sides of a link, seen from the side that is ready.
struct Link<'a> {
    poller: &'a Poller,
    near_token: u64,
}

impl Link<'_> {
    fn copy(&self, near: &mut Side, far: &mut Side, buffer: &mut [u8]) -> Fate {
        if !far.pending.is_empty() {
            // The far side is blocked. Only an error can be reported here.
            return Fate::Ends;
        }
        let len = match receive(&near.socket, buffer) {
            Transfer::Moved(len) => len,
            Transfer::Wait => return Fate::Lives,
            Transfer::Closed if near.pending.is_empty() => return Fate::Ends,
            Transfer::Closed => {
                near.last = true;
                return self.watch(near, far);
            }
        };
        let sent = match transmit(&far.socket, &buffer[..len]) {
            Transfer::Moved(sent) => sent,
            Transfer::Wait => 0,
            Transfer::Closed => return Fate::Ends,
        };
        if sent == len {
            return Fate::Lives;
        }
        far.pending.extend_from_slice(&buffer[sent..len]);
        self.watch(near, far)
    }

    fn flush(&self, near: &mut Side, far: &Side) -> Fate {
        match transmit(&near.socket, &near.pending) {
            Transfer::Moved(sent) if sent == near.pending.len() => {
                near.pending.clear();
                if near.last {
                    return Fate::Ends;
                }
                self.watch(near, far)
            }
            Transfer::Moved(sent) => {
                near.pending.drain(..sent);
                Fate::Lives
            }
            Transfer::Wait => Fate::Lives,
            Transfer::Closed => Fate::Ends,
        }
    }

    /// A side is read only while the other has nothing left to send.
    fn watch(&self, near: &Side, far: &Side) -> Fate {
        let near_watched = self
            .poller
            .modify(&near.socket, self.near_token, interest(near, far));
        let far_watched = self
            .poller
            .modify(&far.socket, self.near_token ^ 1, interest(far, near));
        if near_watched.and(far_watched).is_ok() {
            Fate::Lives
        } else {
            Fate::Ends
        }
    }
}

fn interest(side: &Side, other: &Side) -> EventFlags {
    let mut flags = EventFlags::empty();
    if other.pending.is_empty() && !side.last {
        flags |= EventFlags::IN;
    }
    if !side.pending.is_empty() {
        flags |= EventFlags::OUT;
    }
    flags
}
