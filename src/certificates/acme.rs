//! Certificates that are ordered by ACME: the settings in force, and the answers to
//! challenges.

mod records;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use evenkeel_acme::{
    ACME_TLS_ALPN, ChallengeKind, Challenges, Demand, DnsSettings, Error, ExternalAccount, Issuer,
    Manager, NotFollowed, OnDemand, Settings, Shared, Status, placeholder,
};
use evenkeel_tls::{Authorities, Placeholder, handshake_config};
use rustls::ServerConfig;
use rustls::sign::CertifiedKey;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::{ServedTls, in_lower_case};
use crate::config::machine::{self, Obstacle};
use crate::config::{self, Challenge, DnsUpdates, ListenerTls, UntilIssued, read_regular_file};
use records::Records;

pub use records::AcmeServerFigures;

/// Answers that are read from the storage at the same time; of more challenges it counts as
/// not known.
const READS_MAX: usize = 16;

/// The longest file of a key, in bytes.
const MAX_KEY_FILE: u64 = 1 << 20;

/// Orders certificates, for all listeners of a configuration that have any.
pub struct Acme {
    settings: config::Acme,
    contents: Contents,
    manager: Manager,
    challenges: Arc<Challenges>,
    /// At the server that machines share; `None` for none.
    records: Option<Records>,
    /// Shown where there is no certificate yet.
    placeholder: Option<Arc<CertifiedKey>>,
    /// Of the control thread, once certificates are ordered.
    runtime: OnceLock<Handle>,
    reads: AtomicUsize,
}

/// The contents of the files in the settings.
#[derive(PartialEq)]
struct Contents {
    /// The authorities of each issuer; `None` for the system's.
    authorities: Vec<Option<Authorities>>,
    /// With the keys of external accounts.
    issuers: Vec<Issuer>,
    /// With the key of the name server.
    dns: Option<DnsSettings>,
}

impl Acme {
    /// Goes on with the storage of `before`, or opens it. Blocks.
    ///
    /// # Errors
    /// A file can't be read, or the storage can't be used.
    pub(super) fn keep_or_start(
        settings: &config::Acme,
        before: &[Option<Arc<ServedTls>>],
    ) -> io::Result<Arc<Self>> {
        let of_manager = manager_settings(settings)?;
        let contents = Contents::read(&of_manager)?;
        let before = before.iter().flatten().find_map(|it| it.acme());
        let is_same = |it: &&Arc<Acme>| it.settings == *settings && it.contents == contents;
        if let Some(known) = before.filter(is_same) {
            return Ok(known.clone());
        }
        let records = settings.shared.as_ref().map(Records::new).transpose()?;
        let manager = Manager::new(Settings {
            shared: records
                .clone()
                .map(|it| -> Arc<dyn Shared> { Arc::new(it) }),
            ..of_manager
        });
        let manager = manager.map_err(|error| match error {
            Error::Storage { path, error } => {
                let what = format!("acme: storage {}", path.display());
                machine::explained(&what, &error, Obstacle::of_folder(&path))
            }
            error => io::Error::other(format!("acme: {error}")),
        })?;
        if let Some(before) = before {
            manager.take_over_demands(&before.manager);
        }
        let placeholder = match settings.until_issued {
            UntilIssued::Refuse => None,
            UntilIssued::SelfSigned => Some(placeholder().map_err(io::Error::other)?),
        };
        Ok(Arc::new(Acme {
            settings: settings.clone(),
            contents,
            challenges: manager.challenges(),
            manager,
            records,
            placeholder,
            runtime: OnceLock::new(),
            reads: AtomicUsize::new(0),
        }))
    }

    /// Orders and renews certificates for these names, until the future is dropped. To be
    /// run on the control thread.
    pub(super) async fn keep(&self) {
        // The same thread as before, if any.
        let _ = self.runtime.set(Handle::current());
        self.manager.keep().await;
    }

    /// Keeps certificates for these names from now on, and for no others.
    pub(super) fn follow(&self, names: Vec<String>) {
        self.manager.follow(names);
    }

    /// Goes on where other settings were: what an operator asked for, and pauses.
    pub(super) fn take_over(&self, before: &Self) {
        self.manager.take_over(&before.manager);
    }

    /// The names that clients have asked for and that may have certificates, in order.
    pub(super) fn demanded(&self) -> Vec<String> {
        self.manager.demanded()
    }

    /// Told when other names are [`demanded`](Self::demanded); `None` where none ever is.
    pub(super) fn demands(&self) -> Option<watch::Receiver<()>> {
        self.manager.demands()
    }

    /// Notes for which of the demanded names there is a certificate now.
    pub(super) fn note_certificates(&self, has_certificate: impl Fn(&str) -> bool) {
        self.manager.note_certificates(has_certificate);
    }

    /// Waits until a name that a client asks for `has_certificate`, or will have none for now.
    ///
    /// # Cancellation
    /// The certificate is ordered all the same.
    pub(super) async fn wait_for(&self, server_name: &str, has_certificate: impl Fn() -> bool) {
        let Some(mut progress) = self.manager.progress() else {
            return;
        };
        while !has_certificate()
            && self.manager.demand(server_name) == Demand::Pending
            && progress.changed().await.is_ok()
        {}
    }

    /// The file of the certificate of a name.
    pub(super) fn certificate_path(&self, name: &str) -> PathBuf {
        Manager::certificate_path(&self.settings.storage, name)
    }

    /// Shown by a listener for the names that it orders, where there is no certificate yet.
    pub(super) fn placeholder(self: &Arc<Self>, settings: &ListenerTls) -> Option<Placeholder> {
        let certificate = self.placeholder.clone()?;
        let ordered = settings.ordered.iter().map(|it| in_lower_case(it));
        let ordered: HashSet<_> = ordered.collect();
        let demanding = settings.is_on_demand.then(|| self.clone());
        let is_for = move |name: &str| {
            let name = in_lower_case(name);
            let wildcard = name
                .split_once('.')
                .map(|(_, parent)| format!("*.{parent}"));
            ordered.contains(&name)
                || wildcard.is_some_and(|it| ordered.contains(&it))
                || (demanding.as_ref()).is_some_and(|it| it.manager.is_demanded(&name))
        };
        Some(Placeholder {
            certificate,
            is_for: Box::new(is_for),
        })
    }

    /// Orders a certificate now.
    ///
    /// # Errors
    /// No listener has certificates for this name by ACME.
    pub fn renew(&self, name: &str) -> Result<(), NotFollowed> {
        self.manager.renew(name)
    }

    /// How the server does that machines share; `None` for none.
    pub fn server(&self) -> Option<AcmeServerFigures> {
        self.records.as_ref()?.figures()
    }

    /// How each name does.
    pub fn status(&self) -> Vec<Status> {
        self.manager.status()
    }

    /// The answer to `GET /.well-known/acme-challenge/TOKEN`, of this machine's order or of
    /// another's on the same storage; `None` where nobody here has such a challenge.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub async fn key_authorization(&self, token: &str) -> Option<Arc<str>> {
        if let Some(known) = self.challenges.key_authorization(token) {
            return Some(known);
        }
        let (challenges, token) = (self.challenges.clone(), token.to_owned());
        let read = self.read(move || challenges.read_key_authorization(&token));
        read.await.map(Arc::from)
    }

    /// The configuration of a handshake that asks for proof of this name (RFC 8737).
    ///
    /// The order is this machine's, or another's on the same storage. `None` where no machine
    /// here was asked for proof.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub async fn proof(&self, server_name: &str) -> Option<Arc<ServerConfig>> {
        let certificate = match self.challenges.tls_alpn(server_name) {
            Some(known) => known,
            None => {
                let (challenges, name) = (self.challenges.clone(), server_name.to_owned());
                self.read(move || challenges.read_tls_alpn(&name)).await?
            }
        };
        let config = handshake_config(certificate, ACME_TLS_ALPN);
        config
            .inspect_err(|error| tracing::error!("acme: a challenge can't be answered: {error}"))
            .ok()
    }

    /// Reads beside the thread that asks, for the disk or the server may be slow.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let runtime = self.runtime.get()?;
        let _turn = Turn::take(&self.reads)?;
        runtime.spawn_blocking(read).await.ok()?
    }
}

/// One of [`READS_MAX`].
struct Turn<'a>(&'a AtomicUsize);

impl<'a> Turn<'a> {
    fn take(taken: &'a AtomicUsize) -> Option<Self> {
        let add = |it| (it < READS_MAX).then_some(it + 1);
        taken.fetch_update(Relaxed, Relaxed, add).ok()?;
        Some(Turn(taken))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl std::fmt::Debug for Acme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let settings = &self.settings;
        f.debug_struct("Acme")
            .field("settings", settings)
            .finish_non_exhaustive()
    }
}

impl Contents {
    /// # Errors
    /// The authorities of an issuer can't be read.
    fn read(settings: &Settings) -> io::Result<Self> {
        let authorities = settings.issuers.iter().map(|it| {
            let ca = it.ca.as_ref();
            let read = ca.map(|it| Authorities::read(std::slice::from_ref(it), &[]));
            read.transpose()
                .map_err(|error| io::Error::other(format!("acme: {error}")))
        });
        Ok(Contents {
            authorities: authorities.collect::<io::Result<_>>()?,
            issuers: settings.issuers.clone(),
            dns: settings.dns.clone(),
        })
    }
}

/// The settings as the manager takes them, without a server. Reads files with keys.
fn manager_settings(settings: &config::Acme) -> io::Result<Settings> {
    let issuers = settings.issuers.iter().map(|it| {
        let external_account = it.external_account.as_ref().map(|account| {
            Ok::<_, io::Error>(ExternalAccount {
                key_id: account.id.clone(),
                hmac_key: read_key(&account.key_file)?.trim().to_owned(),
            })
        });
        Ok(Issuer {
            directory: it.directory.clone(),
            ca: it.ca.clone(),
            email: settings.email.clone(),
            profile: it.profile.clone(),
            external_account: external_account.transpose()?,
        })
    });
    let challenges = settings.challenges.iter().map(|it| match it {
        Challenge::Http01 => ChallengeKind::Http01,
        Challenge::TlsAlpn01 => ChallengeKind::TlsAlpn01,
        Challenge::Dns01 => ChallengeKind::Dns01,
    });
    let dns = settings.dns.as_ref().map(|it| match it {
        DnsUpdates::Hook(program) => Ok(DnsSettings::Hook {
            program: program.clone(),
        }),
        DnsUpdates::Server { address, key_file } => {
            let updates = DnsSettings::with_key_file(*address, &read_key(key_file)?);
            updates.map_err(|why| io::Error::other(format!("acme: {}: {why}", key_file.display())))
        }
    });
    Ok(Settings {
        storage: settings.storage.clone(),
        issuers: issuers.collect::<io::Result<_>>()?,
        challenges: challenges.collect(),
        dns: dns.transpose()?,
        on_demand: settings.on_demand.as_ref().map(|it| OnDemand {
            names: it.names.clone(),
            ask: it.ask.clone(),
        }),
        shared: None,
    })
}

fn read_key(path: &Path) -> io::Result<String> {
    let failed = |error: io::Error| io::Error::other(format!("acme: {}: {error}", path.display()));
    let bytes = read_regular_file(path, MAX_KEY_FILE).map_err(failed)?;
    String::from_utf8(bytes).map_err(|error| failed(io::Error::other(error)))
}
