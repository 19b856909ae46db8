//! Open connections, as the status page shows them.

use std::cell::Cell;
use std::cmp::Reverse;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::endpoint::EndpointId;

use super::{ListenerId, NONE, SessionEntry, Stage, TURN, Track};

/// Some of the open connections.
#[derive(Debug, Clone, Default)]
pub struct SessionList {
    /// How many are open in all.
    pub open: usize,
    /// The connections in the list.
    pub rows: Vec<Session>,
}

impl SessionList {
    /// Keeps at most `max`: first those with an exchange, the longest first.
    pub fn keep_foremost(&mut self, max: usize) {
        self.rows.sort_by_key(|it| match &it.exchange {
            Some(exchange) => (0, Reverse(exchange.elapsed)),
            None => (1, Reverse(it.age)),
        });
        self.rows.truncate(max);
    }

    /// Looks up the names of listeners, routes, upstreams and endpoints. Other tasks run
    /// meanwhile.
    pub async fn look_up(
        &mut self,
        listener: impl Fn(ListenerId) -> Option<String>,
        names: impl Fn(&Routed) -> Option<RoutedNames>,
    ) {
        for rows in self.rows.chunks_mut(TURN) {
            for row in rows.iter_mut() {
                row.listener_name = listener(row.listener);
            }
            let exchanges = rows.iter_mut().filter_map(|it| it.exchange.as_mut());
            for exchange in exchanges {
                exchange.names = exchange.routed.as_ref().and_then(&names);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Adds the connections of another worker.
    pub fn merge(&mut self, other: SessionList) {
        self.open += other.open;
        self.rows.extend(other.rows);
    }
}

/// An open connection.
#[derive(Debug, Clone)]
pub struct Session {
    /// The listener.
    pub listener: ListenerId,
    /// Its name, once its worker has looked it up.
    pub listener_name: Option<String>,
    /// `None` over a Unix socket.
    pub address: Option<IpAddr>,
    /// The client's port.
    pub port: u16,
    /// For how long it has been open, to a tenth of a second.
    pub age: Duration,
    /// Requests so far.
    pub requests: u32,
    /// The exchange in progress.
    pub exchange: Option<OngoingExchange>,
}

/// An exchange in progress.
#[derive(Debug, Clone)]
pub struct OngoingExchange {
    /// Its stage.
    pub phase: Stage,
    /// Time since the first byte of its head.
    pub elapsed: Duration,
    /// Its route, if one matched.
    pub routed: Option<Routed>,
    /// The names of its route, once its worker has looked them up.
    pub names: Option<RoutedNames>,
    /// Attempts made.
    pub attempts: u32,
    /// Bytes received from the client.
    pub bytes_in: u64,
    /// Bytes sent to the client.
    pub bytes_out: u64,
    /// Method and target, or their beginning, as the client sent them.
    pub line: Vec<u8>,
}

/// The route of an exchange, in its worker.
#[derive(Debug, Clone, Copy)]
pub struct Routed {
    /// The number of the generation that the exchange began with.
    pub generation: u32,
    /// Index of the route in that generation.
    pub route: usize,
    /// Index of the upstream in that generation, once it goes to one.
    pub upstream: Option<usize>,
    /// The endpoint of that upstream.
    pub endpoint: Option<EndpointId>,
}

/// The names of a route, its upstream and the endpoint.
#[derive(Debug, Clone)]
pub struct RoutedNames {
    /// The route's.
    pub route: String,
    /// The upstream's, if the route goes to one.
    pub upstream: Option<String>,
    /// The endpoint's, if there was an attempt.
    pub endpoint: Option<String>,
}

impl Session {
    /// Adds a connection: once, or once for each of its exchanges.
    pub(super) fn push_all(
        rows: &mut Vec<Session>,
        entry: &SessionEntry,
        age: Duration,
        now: Instant,
    ) {
        let track = entry.track.as_deref();
        let streams = track.map(|it| it.streams.borrow());
        match streams.as_deref() {
            Some(streams) if !streams.is_empty() => {
                let of_stream = |it: &Rc<Track>| Session::new(entry, Some(it), age, now);
                rows.extend(streams.iter().map(of_stream));
            }
            _ => rows.push(Session::new(entry, track, age, now)),
        }
    }

    /// The connection with the exchange of `exchange`, if there is one.
    fn new(entry: &SessionEntry, exchange: Option<&Track>, age: Duration, now: Instant) -> Self {
        let track = entry.track.as_deref();
        Session {
            listener: entry.listener,
            listener_name: None,
            address: entry.address,
            port: entry.port,
            age,
            requests: entry
                .requests
                .wrapping_add(track.map_or(0, |it| it.requests.get())),
            exchange: exchange
                .filter(|it| it.phase.get() != Stage::Idle)
                .map(|it| OngoingExchange::new(it, now)),
        }
    }
}

impl OngoingExchange {
    pub(super) fn new(track: &Track, now: Instant) -> Self {
        let index = |cell: &Cell<u32>| match cell.get() {
            NONE => None,
            index => Some(index),
        };
        OngoingExchange {
            phase: track.phase.get(),
            elapsed: now.duration_since(track.started.get()),
            routed: index(&track.route).map(|route| Routed {
                generation: track.generation.get(),
                route: route as usize,
                upstream: index(&track.upstream).map(|it| it as usize),
                endpoint: index(&track.endpoint).map(EndpointId::new),
            }),
            names: None,
            attempts: track.attempts.get(),
            bytes_in: track.bytes_in.get(),
            bytes_out: track.bytes_out.get(),
            line: track.line.borrow()[..usize::from(track.line_len.get())].to_vec(),
        }
    }
}
