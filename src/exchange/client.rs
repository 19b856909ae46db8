//! The client of an exchange, and the listener that it came through.

use std::net::SocketAddr;
use std::rc::Rc;

use evenkeel_policy::Instant;
use evenkeel_proto::client_hello::ClientHello;
use evenkeel_proto::http1::write;
use evenkeel_proto::proxy_protocol::Connection;
use evenkeel_proto::{RequestHead, Scheme};

use super::context::CountedConnection;
use super::context::ListenerSide;
use super::identity::Identity;
use super::remote::{RelayedClient, Remote};
use super::{Context, Worker};
use crate::observe::sessions::{NO_SESSION, SessionKey};

/// The facts about a client from its TLS handshake.
#[derive(Debug, Clone, Default)]
pub struct TlsClient {
    /// The server name that the client asked for (SNI); empty without one.
    pub server_name: Box<str>,
    /// Identities in its certificate, each with its kind, such as `dns:a.test`.
    pub identities: Vec<Box<[u8]>>,
    /// The value of `Client-Cert`, where endpoints get that field.
    pub certificate_field: Option<Box<[u8]>>,
    /// Whether the present request came before the end of the handshake (0-RTT). It may then be a
    /// replay.
    pub is_early: bool,
    /// The wheel's tick at which the handshake times out.
    pub handshake_deadline: u64,
}

impl TlsClient {
    /// The server name that a client asked for (SNI), in a handshake here or in one that is
    /// passed through to the endpoint. Empty without one.
    pub fn server_name<'a>(tls: Option<&'a Self>, hello: Option<&'a ClientHello>) -> &'a [u8] {
        match tls {
            Some(tls) => tls.server_name.as_bytes(),
            None => hello.map_or(&[], |it| &it.server_name),
        }
    }

    /// Identities in its certificate.
    pub fn identities(&self) -> impl Iterator<Item = &[u8]> {
        self.identities.iter().map(|it| &**it)
    }
}

/// The client of an exchange.
#[derive(Debug)]
pub struct Client {
    /// The peer of the connection.
    pub peer: Remote,
    /// The scheme of the connection itself.
    scheme: Scheme,
    /// Whether a PROXY header left the client open. Its requests then say nothing that can be
    /// trusted, whatever the proxy's address.
    is_unnamed: bool,
    /// The address that the client connected to, from a PROXY header.
    told_destination: Option<Box<SocketAddr>>,
    /// Facts from its TLS handshake.
    tls: Option<Rc<TlsClient>>,
    /// The client of the present request, if a trusted proxy sent it.
    relayed: Option<Box<RelayedClient>>,
    /// The listener that accepted it.
    pub listener: Rc<ListenerSide>,
    /// Key of its entry in the worker's open connections.
    pub session: SessionKey,
    /// Counts its connection, where the listener limits the connections of a client.
    pub(crate) counted: Option<Box<CountedConnection>>,
}

impl Client {
    /// The peer of a new connection to a listener.
    pub fn new(
        peer: Remote,
        scheme: Scheme,
        listener: Rc<ListenerSide>,
        session: SessionKey,
    ) -> Self {
        Client {
            peer,
            scheme,
            is_unnamed: false,
            told_destination: None,
            tls: None,
            relayed: None,
            listener,
            session,
            counted: None,
        }
    }

    /// Replaces the peer by the client of its PROXY header, as the socket's peer is a proxy.
    ///
    /// Invariant: all readers of the client's address get the same one; the connection's entry
    /// has it too.
    pub fn stands_for(&mut self, worker: &Worker, told: &Connection<'_>) {
        if told.extensions.ssl.is_some_and(|it| it.is_encrypted()) {
            self.scheme = Scheme::Https;
        }
        let Some((source, destination)) = told.addresses else {
            self.is_unnamed = true;
            return;
        };
        self.peer = source.into();
        self.told_destination = Some(Box::new(destination));
        let sessions = &worker.sessions;
        sessions.set_client(self.session, source.ip(), source.port());
    }

    /// Notes that its connection is encrypted from here on.
    pub fn is_encrypted(&mut self, tls: TlsClient) {
        self.scheme = Scheme::Https;
        self.tls = Some(Rc::new(tls));
    }

    /// Notes whether the present request came before the end of the handshake.
    pub fn is_early(&mut self, is_early: bool) {
        if let Some(tls) = &mut self.tls
            && tls.is_early != is_early
        {
            // Only this connection shares it, and its requests are sequential.
            Rc::make_mut(tls).is_early = is_early;
        }
    }

    /// Facts from its TLS handshake; `None` on a plain connection.
    pub fn tls(&self) -> Option<&TlsClient> {
        self.tls.as_deref()
    }

    /// See [`TlsClient::server_name`].
    pub fn server_name<'a>(&'a self, hello: Option<&'a ClientHello>) -> &'a [u8] {
        TlsClient::server_name(self.tls(), hello)
    }

    /// The same client, for a request without a connection of its own: a cache's fetch, or one of
    /// several concurrent requests.
    pub fn for_fetch(&self) -> Self {
        Client {
            peer: self.peer,
            scheme: self.scheme,
            is_unnamed: self.is_unnamed,
            told_destination: self.told_destination.clone(),
            tls: self.tls.clone(),
            relayed: self.relayed.clone(),
            listener: self.listener.clone(),
            session: NO_SESSION,
            counted: None,
        }
    }

    /// The address that the client connected to, from a PROXY header.
    pub fn told_destination(&self) -> Option<SocketAddr> {
        self.told_destination.as_deref().copied()
    }

    /// Reads the client of a request that a trusted proxy sent.
    pub fn asks(&mut self, context: &Context, bytes: &[u8], head: &RequestHead) {
        let trusted = &context.listener().trusted_proxies;
        if trusted.contains(self.peer.address) && !self.is_unnamed {
            let proxy = self.peer;
            let relayed = self.relayed.take();
            let mut relayed = relayed.unwrap_or_else(|| Box::new(RelayedClient::new(&proxy)));
            relayed.read(&proxy, trusted, bytes, head);
            self.relayed = Some(relayed);
        }
    }

    /// The next input is not a request, so its client is the peer.
    pub fn asks_nothing(&mut self) {
        self.relayed = None;
    }

    /// The client of the present request.
    pub fn remote(&self) -> &Remote {
        match &self.relayed {
            None => &self.peer,
            Some(relayed) => &relayed.remote,
        }
    }

    /// The scheme of the URL that the client asked for.
    pub fn scheme(&self) -> Scheme {
        let told = self.relayed.as_ref().and_then(|it| it.scheme());
        told.unwrap_or(self.scheme)
    }

    /// A trusted proxy's statement about the client, for endpoints.
    pub fn relayed(&self) -> Option<write::Relayed<'_>> {
        self.relayed.as_ref().map(|it| it.relayed())
    }
}

impl Context {
    /// The identity of a request that arrived at `started`, where the listener wants one.
    pub fn identify(&self, started: Instant, bytes: &[u8], head: &RequestHead) -> Option<Identity> {
        let settings = &self.listener().identity;
        settings.is_on().then(|| {
            let unix_ms = || self.access_log.unix_us(started) / 1_000;
            let records = self.generation().spans.is_some();
            Identity::of(settings, &self.ids, unix_ms, records, bytes, head)
        })
    }
}
