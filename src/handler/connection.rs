//! Handles TCP connections: each goes to the upstream of the first matching route.

use std::net::{IpAddr, Ipv4Addr};

use evenkeel_policy::route::{Access, BalanceKey, Facts};
use evenkeel_proto::client_hello::ClientHello;

use super::access_of;
use crate::config::{Action, Config, Proxying};
use crate::exchange::tcp::{self, First};
use crate::exchange::{Exchange, Moment, TlsClient};
use crate::metrics::end::{End, Failure};

/// Carries the client's bytes to an endpoint and back, until both have closed. `first` are the
/// bytes read so far, where routes ask about them.
///
/// # Cancellation
/// Dropping the future closes the endpoint's connection.
pub async fn handle_connection(exchange: &mut Exchange<'_>, first: Option<Box<First>>) -> End {
    match choose(exchange, first.as_deref()) {
        Ok((proxying, key)) => tcp::carry(exchange, &proxying, key, first).await,
        Err(failure) => failure.into(),
    }
}

/// Finds the connection's route: its upstream, and the key for balancers by key.
///
/// # Errors
/// See [`find_route`](ConnectionFacts::find_route); also if the route does not serve the client.
fn choose(exchange: &mut Exchange<'_>, first: Option<&First>) -> Result<(Proxying, u64), Failure> {
    let context = exchange.context;
    let facts = ConnectionFacts::new(exchange, first);
    let found = facts.find_route(context.config());
    let key = BalanceKey::Client.hash(&facts);
    let (route, proxying) = found?;
    exchange.progress.figures.route = Some(route as u32);
    let generation = context.generation().number;
    exchange.progress.track.set_route(generation, route);
    let client = exchange.client.remote().address;
    if access_of(&context.config().routes[route], client) != Access::Allowed {
        return Err(Failure::Denied);
    }
    Ok((proxying, key))
}

/// A TCP connection, as the route table asks about it: it has no parts of a request.
pub(crate) struct ConnectionFacts<'a> {
    /// Index of the listener.
    pub listener: usize,
    /// The client's TLS facts, where TLS was ended here.
    pub tls: Option<&'a TlsClient>,
    /// Address of the client; `None` over a Unix socket.
    pub client: Option<IpAddr>,
    /// The client's first bytes, as far as routes ask about them.
    pub first: &'a [u8],
    pub hello: Option<&'a ClientHello>,
    /// Facts for routing that are not in the connection.
    pub moment: Moment,
}

impl ConnectionFacts<'_> {
    /// The route of the connection, and its upstream.
    ///
    /// # Errors
    /// No route matches, or the first match answers HTTP requests.
    pub fn find_route(&self, config: &Config) -> Result<(usize, Proxying), Failure> {
        let route = config.route_table.find(self);
        let route = route.map_err(|_| Failure::NoRoute)?;
        match config.routes[route].action {
            Action::Upstream(proxying) => Ok((route, proxying)),
            _ => Err(Failure::NoRoute),
        }
    }
}

impl<'a> ConnectionFacts<'a> {
    fn new(exchange: &Exchange<'a>, first: Option<&'a First>) -> Self {
        ConnectionFacts {
            listener: exchange.context.listener_index(),
            client: exchange.client.remote().address,
            first: first.map_or(&[], |it| it.bytes.filled()),
            hello: first.and_then(|it| it.hello.as_ref()),
            tls: exchange.client.tls(),
            moment: exchange.moment.clone(),
        }
    }
}

impl Facts for ConnectionFacts<'_> {
    fn listener(&self) -> usize {
        self.listener
    }

    fn method(&self) -> &[u8] {
        b""
    }

    fn host(&self) -> &[u8] {
        b""
    }

    fn path(&self) -> &[u8] {
        b""
    }

    fn query(&self) -> &[u8] {
        b""
    }

    fn client(&self) -> IpAddr {
        // A process of this machine, on a Unix socket.
        self.client.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    fn scheme(&self) -> &'static str {
        "tcp"
    }

    fn fields<'a>(&'a self, _name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        std::iter::empty()
    }

    fn draw(&self) -> u64 {
        self.moment.draw()
    }

    fn unix_seconds(&self) -> i64 {
        self.moment.unix_seconds()
    }

    fn sni(&self) -> &[u8] {
        TlsClient::server_name(self.tls, self.hello)
    }

    fn alpn(&self) -> impl Iterator<Item = &[u8]> {
        self.hello.into_iter().flat_map(ClientHello::protocols)
    }

    fn client_identities(&self) -> impl Iterator<Item = &[u8]> {
        self.tls.into_iter().flat_map(TlsClient::identities)
    }

    fn first_bytes(&self) -> &[u8] {
        self.first
    }
}
