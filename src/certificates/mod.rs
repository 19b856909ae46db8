//! The present TLS of listeners, and to endpoints. Files are read again whenever they change.
//!
//! Workers take the configuration of a handshake from [`ServedTls`] or [`EndpointTls`]; the
//! control thread replaces its content. A file that can't be read leaves its last content in use.

mod acme;
mod expiry;
mod figures;
mod of_files;
mod tickets;
mod upstream;
mod watch;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use evenkeel_tls::{
    Authorities, Certificates, ClientAuth, KeyLogFile, Served, ServerSettings, Source, TicketKeys,
    Trouble, reading, server_config,
};
use rustls::pki_types::UnixTime;
use rustls::{KeyLog, ServerConfig};

use crate::config::{self, ClientAuthMode, ClientProtocol, Config, ListenerTls};
use crate::watching::WatchedPaths;
pub use acme::{Acme, AcmeServerFigures};
pub use evenkeel_acme::finish_clean_ups;
use expiry::Warned;
pub use figures::{CertificateCounts, CertificateFigures, CertificateTrouble, OrderedFigures};
use of_files::FileBacked;
pub use tickets::{Followed as FollowedTickets, TicketFigures, Tickets};
pub use upstream::{Alpn, EndpointTls, UpstreamTls, has_chosen_http2};
pub use watch::CertificateWatch;

/// The TLS of a listener, shared by all workers.
#[derive(Debug)]
pub struct ServedTls {
    listener: String,
    /// The protocols that its clients may speak.
    alpn: &'static [&'static str],
    settings: ListenerTls,
    /// The account that certificates are ordered by; `None` where they all come from files.
    acme: Option<Arc<Acme>>,
    served: Arc<Served>,
    /// The process's: tickets are bound to the client-auth policy that `config` has.
    tickets: Arc<TicketKeys>,
    config: RwLock<Arc<ServerConfig>>,
    /// Tells whether the authorities of clients are still those in `config`.
    clients: Mutex<[u8; 32]>,
    /// Files that could not be used at the last reading.
    troubles: Mutex<Vec<Trouble>>,
    /// The certificates whose end was warned of.
    warned: Mutex<Warned>,
}

impl ServedTls {
    /// Reads the certificates of a listener. Blocks.
    ///
    /// # Errors
    /// No certificate exists, or the settings contradict each other.
    fn start(
        listener: &config::Listener,
        settings: &ListenerTls,
        tickets: &Arc<TicketKeys>,
        acme: Option<&Arc<Acme>>,
    ) -> io::Result<Self> {
        let name = &listener.name;
        let failed = |why: String| io::Error::other(format!("listener {name}: {why}"));
        let has_names = settings.is_on_demand || !settings.ordered.is_empty();
        let acme = acme.filter(|_| has_names).cloned();
        let sources = sources(settings, acme.as_deref());
        let (certificates, troubles) = reading::read(&sources, None);
        if certificates.is_empty() && acme.is_none() {
            let why = troubles
                .first()
                .map_or("there is no certificate", |it| &it.text);
            return Err(failed(why.to_owned()));
        }
        troubles.iter().for_each(|it| say(name, it));
        let placeholder = acme.as_ref().and_then(|it| it.placeholder(settings));
        let served = Served::new(Arc::new(certificates), settings.unknown_name);
        let served = Arc::new(served.with_placeholder(placeholder));
        let client_auth = client_auth(settings).map_err(|error| failed(error.to_string()))?;
        let clients = client_auth.context();
        let config = configure(alpn(listener), settings, &served, tickets, client_auth);
        let config = config.map_err(failed)?;
        Ok(ServedTls {
            listener: name.clone(),
            alpn: alpn(listener),
            settings: settings.clone(),
            acme,
            served,
            tickets: tickets.clone(),
            config: RwLock::new(config),
            clients: Mutex::new(clients),
            troubles: Mutex::new(troubles),
            warned: Mutex::default(),
        })
    }

    /// The present configuration of a handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        let config = self.config.read();
        config.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether endpoints get the certificates of clients.
    pub fn forwards_certificates(&self) -> bool {
        self.settings.client.as_ref().is_some_and(|it| it.forward)
    }

    /// The account that certificates are ordered by; `None` where they all come from files.
    pub fn acme(&self) -> Option<&Arc<Acme>> {
        self.acme.as_ref()
    }

    /// Whether no certificate is valid for a name that a client asks for, but one may be ordered
    /// on demand.
    pub fn may_demand(&self, server_name: &str) -> bool {
        self.settings.is_on_demand && !self.has_certificate(server_name)
    }

    /// Waits until there is a certificate for a name that a client asks for, or until none can be
    /// had for now.
    ///
    /// # Cancellation
    /// The certificate is ordered all the same.
    pub async fn demand(&self, server_name: &str) {
        if let Some(acme) = &self.acme {
            let has_certificate = || self.has_certificate(server_name);
            acme.wait_for(server_name, has_certificate).await;
        }
    }

    fn has_certificate(&self, name: &str) -> bool {
        let (certificates, now) = (self.certificates(), UnixTime::now());
        let name = in_lower_case(name);
        certificates.of_name(&name).any(|it| it.is_valid_at(now))
    }

    /// The names to order certificates for, in order: names without a valid certificate of
    /// another source.
    fn ordered(&self) -> Vec<String> {
        let Some(acme) = &self.acme else {
            return Vec::new();
        };
        let (certificates, now) = (self.certificates(), UnixTime::now());
        let is_lacking = |name: &&String| {
            let path = acme.certificate_path(name);
            let mut others = certificates.of_name(name).filter(|it| it.path() != path);
            !others.any(|it| it.is_valid_at(now))
        };
        let demanded = demanded(&self.settings, acme);
        let all = self.settings.ordered.iter().chain(&demanded);
        let mut names: Vec<_> = all.filter(is_lacking).cloned().collect();
        names.sort();
        names.dedup();
        names
    }

    /// The certificates that are served now.
    pub fn certificates(&self) -> Arc<Certificates> {
        self.served.current()
    }

    fn known_troubles(&self) -> MutexGuard<'_, Vec<Trouble>> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileBacked for ServedTls {
    fn look(&self) {
        self.read_again();
        self.warn_of_ends();
    }

    fn watched(&self) -> WatchedPaths {
        let mut watched = paths_of(&sources(&self.settings, self.acme.as_deref()));
        let clients = self.settings.client.iter();
        let clients = clients.flat_map(|it| it.ca.iter().chain(&it.crl)).cloned();
        watched.files.extend(clients);
        watched
    }
}

impl ServedTls {
    /// Reads changed files again, and serves their content. Blocks.
    fn read_again(&self) {
        let before = self.served.current();
        let sources = sources(&self.settings, self.acme.as_deref());
        let (now, mut troubles) = reading::read(&sources, Some(&before));
        troubles.extend(self.read_authorities_again());
        let name = &self.listener;
        let new = |it: &&Arc<_>| !before.all().iter().any(|old| Arc::ptr_eq(old, it));
        let changed = now.all().iter().filter(new).count();
        let gone = (before.all().len() + changed).saturating_sub(now.all().len());
        let mut told = self.known_troubles();
        for trouble in troubles.iter().filter(|it| !told.contains(it)) {
            say(name, trouble);
        }
        *told = troubles;
        drop(told);
        if now.is_empty() && self.acme.is_none() {
            tracing::error!(
                listener = name,
                "listener {name}: its files have no certificate any more: the previous \
                 certificates stay in use"
            );
            return;
        }
        if changed > 0 || gone > 0 {
            let total = now.all().len();
            self.served.replace(Arc::new(now));
            tracing::info!(
                listener = name,
                "listener {name}: certificates were reloaded: {changed} new, {gone} removed, \
                 {total} in all"
            );
        }
        if let Some(acme) = self.acme.as_ref().filter(|_| self.settings.is_on_demand) {
            acme.note_certificates(|it| self.has_certificate(it));
        }
    }

    /// Reads the authorities of clients again. Sessions that began under others are not resumed.
    /// Gives the file that can't be read.
    fn read_authorities_again(&self) -> Option<Trouble> {
        let clients = self.settings.client.as_ref()?;
        let name = &self.listener;
        let trouble = |text: String| Trouble {
            path: clients.ca.first().cloned().unwrap_or_default(),
            text,
            is_kept: true,
        };
        let client_auth = match client_auth(&self.settings) {
            Ok(client_auth) => client_auth,
            Err(error) => return Some(trouble(error.to_string())),
        };
        let mut known = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let now = client_auth.context();
        if *known == now {
            return None;
        }
        let (settings, tickets) = (&self.settings, &self.tickets);
        let config = configure(self.alpn, settings, &self.served, tickets, client_auth);
        let config = match config {
            Ok(config) => config,
            Err(text) => return Some(trouble(text)),
        };
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        *known = now;
        tracing::info!(
            listener = name,
            "listener {name}: the authorities for client certificates were reloaded"
        );
        None
    }
}

/// The name that a client sends as certificates have it: without a dot at the end.
fn in_lower_case(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// The places of a listener's certificates.
fn sources(settings: &ListenerTls, acme: Option<&Acme>) -> Vec<Source> {
    let mut sources = settings.certificates.clone();
    if let Some(acme) = acme {
        let demanded = demanded(settings, acme);
        let names = settings.ordered.iter().chain(&demanded);
        let paths = names.map(|it| acme.certificate_path(it));
        sources.extend(paths.map(Source::Expected));
    }
    sources
}

/// Names that clients of a listener have asked for and that may have certificates.
fn demanded(settings: &ListenerTls, acme: &Acme) -> Vec<String> {
    if settings.is_on_demand {
        acme.demanded()
    } else {
        Vec::new()
    }
}

/// Files and folders of these sources.
fn paths_of(sources: &[Source]) -> WatchedPaths {
    let watched = reading::watched(sources);
    WatchedPaths {
        files: watched.files,
        folders: Vec::new(),
        whole: watched.folders,
    }
}

/// Whether clients show certificates, and who issues them.
fn client_auth(settings: &ListenerTls) -> Result<ClientAuth, evenkeel_tls::Error> {
    let Some(clients) = &settings.client else {
        return Ok(ClientAuth::None);
    };
    let authorities = Authorities::read(&clients.ca, &clients.crl)?;
    Ok(match clients.mode {
        ClientAuthMode::Required => ClientAuth::Required(authorities),
        ClientAuthMode::Optional => ClientAuth::Optional(authorities),
    })
}

/// The protocols that a listener's clients may speak, the first that both know (RFC 7301).
fn alpn(listener: &config::Listener) -> &'static [&'static str] {
    match listener.protocol {
        ClientProtocol::Http if listener.http2 => &["h2", "http/1.1"],
        ClientProtocol::Http => &["http/1.1"],
        ClientProtocol::Tcp => &[],
    }
}

/// The configuration of handshakes with these settings.
///
/// # Errors
/// Why the settings contradict each other.
fn configure(
    alpn: &[&str],
    settings: &ListenerTls,
    served: &Arc<Served>,
    tickets: &Arc<TicketKeys>,
    client_auth: ClientAuth,
) -> Result<Arc<ServerConfig>, String> {
    let key_log = settings.key_log.as_ref().map(|path| {
        let log = KeyLogFile::open(path, |error| tracing::warn!("key log: {error}"));
        log.map(Arc::new)
            .map_err(|error| format!("{}: {error}", path.display()))
    });
    let key_log = key_log.transpose()?;
    let settings = ServerSettings {
        policy: settings.policy().map_err(|error| error.to_string())?,
        certificates: served.clone(),
        alpn: alpn.iter().map(|it| it.as_bytes().to_vec()).collect(),
        client_auth,
        tickets: Some(tickets.clone()),
        early_data: settings.early_data,
        key_log: key_log.map(|it| -> Arc<dyn KeyLog> { it }),
    };
    server_config(settings).map_err(|error| error.to_string())
}

/// Logs a file of a listener's certificates that can't be read.
fn say(listener: &str, trouble: &Trouble) {
    let text = &trouble.text;
    let kept = if trouble.is_kept {
        "; the previous certificate stays in use"
    } else {
        ""
    };
    tracing::warn!(listener, "listener {listener}: certificate: {text}{kept}");
}

/// The TLS of each listener of a configuration. A listener with the same settings as `before`
/// keeps its TLS.
///
/// # Errors
/// A listener has no certificate.
pub fn served_tls(
    config: &Config,
    before: &[Option<Arc<ServedTls>>],
    tickets: &Tickets,
) -> io::Result<Vec<Option<Arc<ServedTls>>>> {
    let acme = config.acme.as_ref();
    let acme = acme.map(|it| Acme::keep_or_start(it, before)).transpose()?;
    let listeners = config.listeners.iter();
    let of = |listener: &config::Listener| {
        let Some(settings) = &listener.tls else {
            return Ok(None);
        };
        let mut known = before.iter().flatten();
        let is_same = |it: &&Arc<ServedTls>| {
            let is_its = |its| acme.as_ref().is_some_and(|acme| Arc::ptr_eq(acme, its));
            it.listener == listener.name
                && it.alpn == alpn(listener)
                && it.settings == *settings
                && it.acme.as_ref().is_none_or(is_its)
        };
        match known.find(is_same) {
            Some(known) => Ok(Some(known.clone())),
            None => {
                let started = ServedTls::start(listener, settings, tickets.keys(), acme.as_ref());
                started.map(|it| Some(Arc::new(it)))
            }
        }
    };
    listeners.map(of).collect()
}
