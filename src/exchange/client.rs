//! The client of an exchange: whom its request is from, and by which listener it came.

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
    /// The name of the server that it asked for (SNI); empty where it named none.
    pub server_name: Box<str>,
    /// Identities in its certificate, each with its kind in front, such as `dns:a.test`.
    pub identities: Vec<Box<[u8]>>,
    /// The value of `Client-Cert`, where endpoints get that.
    pub certificate_field: Option<Box<[u8]>>,
    /// The request in hand came before the end of the handshake: it may be a copy that
    /// somebody else has sent (0-RTT).
    pub is_early: bool,
    /// The tick of the wheel by which the handshake is to be over.
    pub handshake_deadline: u64,
}

impl TlsClient {
    /// The name of the server that a client asked for (SNI): in a handshake here, or in one
    /// that goes on to the endpoint. Empty where it named none.
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
    /// Who connected.
    pub peer: Remote,
    /// The scheme that the connection itself stands for.
    scheme: Scheme,
    /// Whether a PROXY header left open who the client is: what its requests say
    /// of the client is a stranger's word, whatever address the proxy has.
    is_unnamed: bool,
    /// The address that it connected to, where a PROXY header told it.
    told_destination: Option<Box<SocketAddr>>,
    /// Facts from its TLS handshake.
    tls: Option<Rc<TlsClient>>,
    /// The client of the request in hand, where a trusted proxy sent that.
    relayed: Option<Box<RelayedClient>>,
    /// The listener that accepted it.
    pub listener: Rc<ListenerSide>,
    /// Its entry among the worker's open connections.
    pub session: SessionKey,
    /// Counts its connection, where its listener has a limit on those of a client.
    pub(crate) counted: Option<Box<CountedConnection>>,
}

impl Client {
    /// Whoever connected to a listener.
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

    /// Takes the peer of the socket for a proxy, and the client for the one that its
    /// PROXY header tells of.
    ///
    /// Invariant: whoever asks for the client's address gets the same one: the
    /// connection's entry has it too.
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

    /// Its connection is encrypted from here on.
    pub fn is_encrypted(&mut self, tls: TlsClient) {
        self.scheme = Scheme::Https;
        self.tls = Some(Rc::new(tls));
    }

    /// Notes whether the request in hand came before the end of the handshake.
    pub fn is_early(&mut self, is_early: bool) {
        if let Some(tls) = &mut self.tls
            && tls.is_early != is_early
        {
            // Only its connection has it, whose requests come one after the other.
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

    /// The same client, for a request that does not have its connection to itself: one that
    /// a cache makes for it and for others, or that came with others.
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

    /// The address that it connected to, where a PROXY header told it.
    pub fn told_destination(&self) -> Option<SocketAddr> {
        self.told_destination.as_deref().copied()
    }

    /// Takes over whom a request is from, where a trusted proxy sends it.
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

    /// What comes next is no request, and so from whoever connected.
    pub fn asks_nothing(&mut self) {
        self.relayed = None;
    }

    /// Who the request in hand is from.
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

    /// What a trusted proxy said of the client, for endpoints.
    pub fn relayed(&self) -> Option<write::Relayed<'_>> {
        self.relayed.as_ref().map(|it| it.relayed())
    }
}

impl Context {
    /// What a request is called that came at `started`, where that is wanted.
    pub fn identify(&self, started: Instant, bytes: &[u8], head: &RequestHead) -> Option<Identity> {
        let settings = &self.listener().identity;
        settings.is_on().then(|| {
            let unix_ms = || self.access_log.unix_us(started) / 1_000;
            let records = self.generation().spans.is_some();
            Identity::of(settings, &self.ids, unix_ms, records, bytes, head)
        })
    }
}
