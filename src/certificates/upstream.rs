//! TLS to the endpoints of an upstream.
//!
//! Shared by all workers and the control thread. [`UpstreamTls`] has the settings of an upstream.
//! [`EndpointTls`] adds the name and the sessions of one endpoint.
//!
//! Invariant: an endpoint whose upstream has TLS gets no connection without it. Files that
//! can't be read are a reason for no connection.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use evenkeel_tls::{
    Authorities, Certificates, ClientSettings, HandshakeFault, Policy, Preset, Served, UnknownName,
    Verify, client_config, reading,
};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;

use super::of_files::FileBacked;
use super::paths_of;
use crate::config::{self, EndpointProtocol, Trust};
use crate::net::connect::reason;
use crate::net::stream::{Follow, HandshakeError, Stream};
use crate::watching::WatchedPaths;

/// TLS to the endpoints of an upstream, as its files are now.
#[derive(Debug)]
pub struct UpstreamTls {
    upstream: String,
    settings: config::UpstreamTls,
    made: RwLock<TlsState>,
}

/// The values that were made of the files.
#[derive(Debug)]
struct TlsState {
    authorities: Option<Authorities>,
    /// The certificate that is shown; empty where there is none.
    shown: Arc<Certificates>,
    /// The configuration of a handshake, or why there is none.
    config: Result<Arc<ClientConfig>, String>,
    /// Files that could not be read the last time, and why.
    troubles: Vec<String>,
}

impl UpstreamTls {
    /// The TLS of an upstream: that of `before`, where the settings are the same. Reads files,
    /// and blocks meanwhile. Files that can't be read are logged.
    pub fn following(
        config: &config::Upstream,
        before: Option<&Arc<UpstreamTls>>,
    ) -> Option<Arc<Self>> {
        let settings = config.tls.as_ref()?;
        if let Some(same) = before.filter(|it| it.settings == *settings) {
            return Some(same.clone());
        }
        let made = TlsState::read(settings, None);
        let tls = UpstreamTls {
            upstream: config.name.clone(),
            settings: settings.clone(),
            made: RwLock::new(made),
        };
        tls.made().troubles.iter().for_each(|it| tls.say(it));
        Some(Arc::new(tls))
    }

    /// The settings of the configuration.
    pub fn settings(&self) -> &config::UpstreamTls {
        &self.settings
    }

    fn made(&self) -> RwLockReadGuard<'_, TlsState> {
        self.made.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a file that can't be read.
    fn say(&self, trouble: &str) {
        let upstream = &self.upstream;
        match &self.made().config {
            Ok(_) => tracing::warn!(
                upstream,
                "upstream {upstream}: TLS: {trouble}; the previous files stay in use"
            ),
            Err(_) => tracing::error!(
                upstream,
                "upstream {upstream}: TLS: {trouble}; no connections to its endpoints are opened"
            ),
        }
    }
}

impl FileBacked for UpstreamTls {
    fn look(&self) {
        let (made, new, has_changed) = {
            let before = self.made();
            let made = TlsState::read(&self.settings, Some(&before));
            let troubles = made.troubles.iter();
            let new = troubles.filter(|it| !before.troubles.contains(it));
            let new: Vec<_> = new.cloned().collect();
            let has_changed = match (&made.config, &before.config) {
                (Ok(now), Ok(before)) => !Arc::ptr_eq(now, before),
                (now, _) => now.is_ok(),
            };
            (made, new, has_changed)
        };
        *self.made.write().unwrap_or_else(PoisonError::into_inner) = made;
        new.iter().for_each(|it| self.say(it));
        if has_changed {
            let upstream = &self.upstream;
            tracing::info!(
                upstream,
                "upstream {upstream}: TLS: its files were reloaded; new connections use them"
            );
        }
    }

    fn watched(&self) -> WatchedPaths {
        let mut watched = paths_of(self.settings.certificate.as_slice());
        if let Trust::Files { ca, crl } = &self.settings.trust {
            watched.files.extend(ca.iter().chain(crl).cloned());
        }
        watched
    }
}

impl TlsState {
    /// Reads the files. A file that can't be read, or has not changed, keeps its value of
    /// `before`.
    fn read(settings: &config::UpstreamTls, before: Option<&TlsState>) -> Self {
        let mut troubles = Vec::new();
        let read = match &settings.trust {
            Trust::Unverified => Ok(None),
            Trust::System => Authorities::system_once()
                .map(Some)
                .map_err(|error| error.to_string()),
            Trust::Files { ca, crl } => Authorities::read(ca, crl)
                .map(Some)
                .map_err(|error| error.to_string()),
        };
        let authorities = read.unwrap_or_else(|why| {
            troubles.push(why);
            before.and_then(|it| it.authorities.clone())
        });
        let source = settings.certificate.as_slice();
        let shown_before = before.map(|it| &*it.shown);
        let (shown, of_shown) = reading::read(source, shown_before);
        troubles.extend(of_shown.into_iter().map(|it| it.text));
        if let Some(before) = before
            && before.config.is_ok()
            && authorities == before.authorities
            && is_same(&shown, &before.shown)
        {
            return TlsState {
                authorities,
                shown: before.shown.clone(),
                config: before.config.clone(),
                troubles,
            };
        }
        let shown = Arc::new(shown);
        let config = match (&settings.trust, &authorities) {
            _ if shown.is_empty() && settings.certificate.is_some() => {
                Err("there is no client certificate".to_owned())
            }
            (Trust::Unverified, _) => make(settings, Verify::Nothing, &shown),
            (_, Some(authorities)) => make(settings, Verify::By(authorities.clone()), &shown),
            (_, None) => Err("there is no authority to verify endpoints with".to_owned()),
        };
        if troubles.is_empty()
            && let Err(why) = &config
        {
            troubles.push(why.clone());
        }
        TlsState {
            authorities,
            shown,
            config,
            troubles,
        }
    }
}

/// Whether two sets have the same certificates.
fn is_same(one: &Certificates, other: &Certificates) -> bool {
    let pairs = one.all().iter().zip(other.all());
    one.all().len() == other.all().len() && pairs.into_iter().all(|(a, b)| Arc::ptr_eq(a, b))
}

fn make(
    settings: &config::UpstreamTls,
    verify: Verify,
    shown: &Arc<Certificates>,
) -> Result<Arc<ClientConfig>, String> {
    let served = || Arc::new(Served::new(shown.clone(), UnknownName::Default));
    let made = client_config(ClientSettings {
        policy: Policy::preset(Preset::Intermediate),
        verify,
        pins: settings.pins.clone(),
        identity: settings.certificate.as_ref().map(|_| served()),
        alpn: Vec::new(),
        // Each endpoint has its own.
        sessions: 0,
        key_log: None,
    });
    made.map_err(|error| error.to_string())
}

/// TLS to one endpoint: its name, and its sessions to resume.
#[derive(Debug)]
pub struct EndpointTls {
    upstream: Arc<UpstreamTls>,
    /// The name that logs use.
    endpoint: String,
    /// The name that its certificate must be for, or the text of a malformed name.
    name: Result<ServerName<'static>, String>,
    sessions: Mutex<Option<Sessions>>,
    /// How the last handshake failed; `None` where it did not.
    fault: Mutex<Option<HandshakeFault>>,
}

/// The configurations of handshakes with an endpoint. A session is resumed only by the protocol
/// that it began with.
#[derive(Debug)]
struct Sessions {
    made_of: Arc<ClientConfig>,
    /// For each of [`Alpn::ALL`].
    offers: [Arc<ClientConfig>; Alpn::ALL.len()],
}

/// The protocols that the endpoint may choose from (RFC 7301).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alpn {
    /// Nothing is offered: the connection does not carry HTTP.
    Nothing,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/2, or else HTTP/1.1.
    Either,
}

impl From<EndpointProtocol> for Alpn {
    /// The offer to an endpoint that speaks HTTP.
    fn from(protocol: EndpointProtocol) -> Self {
        match protocol {
            EndpointProtocol::Http1 => Alpn::Http1,
            EndpointProtocol::Http2 => Alpn::Http2,
            EndpointProtocol::Either => Alpn::Either,
        }
    }
}

impl Alpn {
    const ALL: [Alpn; 4] = [Alpn::Nothing, Alpn::Http1, Alpn::Http2, Alpn::Either];

    fn names(self) -> &'static [&'static [u8]] {
        match self {
            Alpn::Nothing => &[],
            Alpn::Http1 => &[b"http/1.1"],
            Alpn::Http2 => &[b"h2"],
            Alpn::Either => &[b"h2", b"http/1.1"],
        }
    }
}

impl Sessions {
    fn new(made_of: &Arc<ClientConfig>) -> Self {
        let offers = Alpn::ALL.map(|it| {
            let mut config = ClientConfig::clone(made_of);
            config.resumption = Resumption::in_memory_sessions(1);
            config.alpn_protocols = it.names().iter().map(|it| it.to_vec()).collect();
            Arc::new(config)
        });
        Sessions {
            made_of: made_of.clone(),
            offers,
        }
    }
}

impl EndpointTls {
    /// Of an endpoint of this upstream.
    pub fn new(upstream: &Arc<UpstreamTls>, endpoint: &config::Endpoint) -> Self {
        let name = match &upstream.settings.name {
            Some(name) => name,
            None => host_of(endpoint.authority()),
        };
        EndpointTls {
            upstream: upstream.clone(),
            endpoint: endpoint.name.clone(),
            name: ServerName::try_from(name.to_owned()).map_err(|_| name.to_owned()),
            sessions: Mutex::default(),
            fault: Mutex::default(),
        }
    }

    /// Whether it is of this upstream.
    pub fn is_of(&self, upstream: &Arc<UpstreamTls>) -> bool {
        Arc::ptr_eq(&self.upstream, upstream)
    }

    /// Encrypts a connection that was just opened. `header` goes out before that, as it is. A
    /// failure is logged, unless the last one was the same.
    ///
    /// # Errors
    /// Why there is no TLS on it.
    ///
    /// # Cancellation
    /// Dropping the future closes the connection.
    pub async fn encrypt(
        &self,
        stream: Stream,
        alpn: Alpn,
        header: &[u8],
    ) -> Result<Stream, HandshakeFault> {
        let encrypted = self.agree(stream, alpn, header).await;
        self.note(encrypted.as_ref().err());
        encrypted
    }

    /// Notes how a handshake has ended.
    fn note(&self, fault: Option<&HandshakeFault>) {
        let mut last = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref() == fault {
            return;
        }
        *last = fault.cloned();
        drop(last);
        if let Some(fault) = fault {
            let (upstream, endpoint) = (&self.upstream.upstream, &self.endpoint);
            tracing::warn!(
                upstream,
                endpoint,
                "upstream {upstream}: endpoint {endpoint}: no connection: {fault}"
            );
        }
    }

    async fn agree(
        &self,
        stream: Stream,
        alpn: Alpn,
        header: &[u8],
    ) -> Result<Stream, HandshakeFault> {
        let other = HandshakeFault::Other;
        let mut stream = stream;
        let config = self.config(alpn)?;
        let name = self.name.clone();
        let name = name.map_err(|it| other(format!("no certificate can have the name `{it}`")))?;
        let broken = |error: &io::Error| {
            let why = match error.kind() {
                io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
                _ => reason(error),
            };
            other(format!("the TLS handshake failed: {why}"))
        };
        let mut rest = header;
        while !rest.is_empty() {
            let written = poll_fn(|cx| stream.poll_write(cx, rest, Follow::More)).await;
            rest = &rest[written.map_err(|it| broken(&it))?..];
        }
        let begun = stream.connect_tls(config, name);
        let mut stream = begun.map_err(|error| broken(&error))?;
        match poll_fn(|cx| stream.poll_handshake(cx)).await {
            Ok(()) if alpn == Alpn::Http2 && !has_chosen_http2(&stream) => {
                Err(other("it does not choose HTTP/2 (ALPN)".to_owned()))
            }
            Ok(()) => Ok(stream),
            Err(HandshakeError::Failed(error)) => Err(HandshakeFault::from(&error)),
            Err(HandshakeError::Gone(error)) => Err(broken(&error)),
            Err(HandshakeError::NotTls) => Err(other("it does not speak TLS".to_owned())),
        }
    }

    /// The present configuration of a handshake. Sessions that began under earlier files are
    /// forgotten.
    fn config(&self, alpn: Alpn) -> Result<Arc<ClientConfig>, HandshakeFault> {
        let made = match &self.upstream.made().config {
            Ok(made) => made.clone(),
            Err(why) => return Err(HandshakeFault::Other(format!("TLS can't begin: {why}"))),
        };
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let known = sessions.take().filter(|it| Arc::ptr_eq(&it.made_of, &made));
        let sessions = sessions.insert(known.unwrap_or_else(|| Sessions::new(&made)));
        Ok(sessions.offers[alpn as usize].clone())
    }
}

/// Whether the peer has chosen HTTP/2 in the handshake.
pub fn has_chosen_http2(stream: &Stream) -> bool {
    let chosen = stream.negotiated().and_then(|it| it.protocol);
    chosen == Some(b"h2")
}

/// The host of an authority, without port and brackets.
fn host_of(authority: &str) -> &str {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|it| it.is_ascii_digit()) => host,
        _ => authority,
    };
    let inner = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    inner.unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for (authority, host) in [
            ("app.internal:8443", "app.internal"),
            ("app.internal", "app.internal"),
            ("10.0.0.1:8443", "10.0.0.1"),
            ("[::1]:8443", "::1"),
            ("localhost", "localhost"),
        ] {
            assert_eq!(host_of(authority), host);
        }
    }
}
