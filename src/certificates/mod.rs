//! The TLS of listeners as it is at the moment: their certificates, read again whenever
//! their files change.
//!
//! Workers take the configuration of a handshake from [`ServedTls`]; the control thread
//! replaces what is in it. A certificate that can't be read leaves the last good one in
//! use.

mod watch;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_tls::{
    Certificates, ClientAuth, Lifetimes, Policy, Served, ServerSettings, TicketKeys, Trouble,
    reading, server_config,
};
use rustls::ServerConfig;

use crate::config::{self, Config, ListenerTls};
use crate::watching::WatchedPaths;
pub use watch::CertificateWatch;

/// The TLS of a listener, shared by all workers.
#[derive(Debug)]
pub struct ServedTls {
    listener: String,
    settings: ListenerTls,
    served: Arc<Served>,
    config: Arc<ServerConfig>,
    /// What could not be read, as of the last time.
    troubles: Mutex<Vec<Trouble>>,
}

impl ServedTls {
    /// Reads the certificates of a listener. Blocks.
    ///
    /// # Errors
    /// There is no certificate, or the settings do not go together.
    fn start(listener: &config::Listener, settings: &ListenerTls) -> io::Result<Self> {
        let name = &listener.name;
        let failed = |why: String| io::Error::other(format!("listener {name}: {why}"));
        let (certificates, troubles) = reading::read(&settings.certificates, None);
        if certificates.is_empty() {
            let why = troubles
                .first()
                .map_or("there is no certificate", |it| &it.text);
            return Err(failed(why.to_owned()));
        }
        troubles.iter().for_each(|it| say(name, it));
        let served = Arc::new(Served::new(Arc::new(certificates), settings.unknown_name));
        let tickets = TicketKeys::generate(Lifetimes::default());
        let tickets = tickets.map_err(|error| failed(error.to_string()))?;
        let config = server_config(ServerSettings {
            policy: Policy::preset(settings.preset),
            certificates: served.clone(),
            alpn: match listener.protocol {
                config::ClientProtocol::Http => vec![b"http/1.1".to_vec()],
                config::ClientProtocol::Tcp => Vec::new(),
            },
            client_auth: ClientAuth::None,
            tickets: Some(Arc::new(tickets)),
            key_log: None,
        });
        let config = config.map_err(|error| failed(error.to_string()))?;
        Ok(ServedTls {
            listener: name.clone(),
            settings: settings.clone(),
            served,
            config,
            troubles: Mutex::new(troubles),
        })
    }

    /// How a handshake begins now.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// The certificates that are served now.
    pub fn certificates(&self) -> Arc<Certificates> {
        self.served.current()
    }

    /// What could not be read, as of the last time.
    pub fn troubles(&self) -> MutexGuard<'_, Vec<Trouble>> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads again what has changed, and serves it. Blocks.
    fn read_again(&self) {
        let before = self.served.current();
        let (now, troubles) = reading::read(&self.settings.certificates, Some(&before));
        let name = &self.listener;
        let new = |it: &&Arc<_>| !before.all().iter().any(|old| Arc::ptr_eq(old, it));
        let changed = now.all().iter().filter(new).count();
        let gone = (before.all().len() + changed).saturating_sub(now.all().len());
        let mut told = self.troubles();
        for trouble in troubles.iter().filter(|it| !told.contains(it)) {
            say(name, trouble);
        }
        *told = troubles;
        drop(told);
        if now.is_empty() {
            tracing::error!(
                listener = name,
                "listener {name}: no certificate is left in its files: those of before stay in use"
            );
            return;
        }
        if changed > 0 || gone > 0 {
            let total = now.all().len();
            self.served.replace(Arc::new(now));
            tracing::info!(
                listener = name,
                "listener {name}: certificates were read again: {changed} new, {gone} gone, {total} in all"
            );
        }
    }

    /// Where its files are.
    fn watched(&self) -> WatchedPaths {
        let watched = reading::watched(&self.settings.certificates);
        WatchedPaths {
            files: watched.files,
            folders: watched.folders,
        }
    }
}

/// Says what can't be read of a listener's certificates.
fn say(listener: &str, trouble: &Trouble) {
    let text = &trouble.text;
    let kept = if trouble.is_kept {
        "; the certificate of before stays in use"
    } else {
        ""
    };
    tracing::warn!(listener, "listener {listener}: certificate: {text}{kept}");
}

/// The TLS of each listener of a configuration. A listener whose settings are those that
/// it had `before` goes on with what it has.
///
/// # Errors
/// A listener has no certificate.
pub fn served_tls(
    config: &Config,
    before: &[Option<Arc<ServedTls>>],
) -> io::Result<Vec<Option<Arc<ServedTls>>>> {
    let listeners = config.listeners.iter();
    let of = |listener: &config::Listener| {
        let Some(settings) = &listener.tls else {
            return Ok(None);
        };
        let mut known = before.iter().flatten();
        let is_same =
            |it: &&Arc<ServedTls>| it.listener == listener.name && it.settings == *settings;
        match known.find(is_same) {
            Some(known) => Ok(Some(known.clone())),
            None => ServedTls::start(listener, settings).map(|it| Some(Arc::new(it))),
        }
    };
    listeners.map(of).collect()
}
