//! Chooses the certificate of a handshake, from a set that can be replaced meanwhile.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error, SignatureScheme};
use rustls_pki_types::UnixTime;

use crate::certificate::Certificate;
use crate::store::Certificates;

/// The answer to a client that names no server, or one without a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum UnknownName {
    /// The first certificate.
    #[default]
    Default,
    /// The alert `unrecognized_name`: see [`refusal`].
    Refuse,
}

/// The certificates that are served, shared by all connections.
///
/// A handshake holds a read lock while it looks up its certificate, for less than a
/// microsecond. Handshakes in progress finish with the certificate that they got.
#[derive(Debug)]
pub struct Served {
    certificates: RwLock<Arc<Certificates>>,
    unknown_name: UnknownName,
    /// For a client that gets none of the certificates.
    placeholder: Option<Placeholder>,
}

/// Shown in the place of certificates that are still to come.
pub struct Placeholder {
    /// The certificate.
    pub certificate: Arc<CertifiedKey>,
    /// Whether a certificate is still to come for a name that a client sends.
    pub is_for: Box<dyn Fn(&str) -> bool + Send + Sync>,
}

impl fmt::Debug for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placeholder").finish_non_exhaustive()
    }
}

impl Served {
    /// Serves this set.
    #[must_use]
    pub fn new(certificates: Arc<Certificates>, unknown_name: UnknownName) -> Self {
        let certificates = RwLock::new(certificates);
        Self {
            certificates,
            unknown_name,
            placeholder: None,
        }
    }

    /// The same, with a placeholder for clients that get no certificate of the set. With
    /// [`UnknownName::Refuse`] only clients that send one of the placeholder's names get it.
    #[must_use]
    pub fn with_placeholder(self, placeholder: Option<Placeholder>) -> Self {
        Self {
            placeholder,
            ..self
        }
    }

    /// Serves another set from now on.
    pub fn replace(&self, certificates: Arc<Certificates>) {
        let mut served = self
            .certificates
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *served, certificates);
        drop(served);
        // A large set takes milliseconds to drop: not while handshakes wait.
        drop(before);
    }

    /// The set that is served now.
    #[must_use]
    pub fn current(&self) -> Arc<Certificates> {
        self.set().clone()
    }

    fn set(&self) -> RwLockReadGuard<'_, Arc<Certificates>> {
        self.certificates
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The certificate for a client that sends this name, or none, and has these schemes.
    #[must_use]
    pub fn choose(
        &self,
        server_name: Option<&str>,
        schemes: &[SignatureScheme],
    ) -> Option<Arc<Certificate>> {
        let set = self.set();
        let now = UnixTime::now();
        let is_usable = |it| schemes.contains(&it);
        let named = server_name.and_then(|it| set.find(it, now, is_usable));
        let chosen = match self.unknown_name {
            UnknownName::Default => named.or_else(|| set.first(now, is_usable)),
            UnknownName::Refuse => named,
        };
        chosen.cloned()
    }

    fn placeholder(&self, server_name: Option<&str>) -> Option<&Arc<CertifiedKey>> {
        let placeholder = self.placeholder.as_ref()?;
        let is_shown = match self.unknown_name {
            UnknownName::Default => true,
            UnknownName::Refuse => server_name.is_some_and(&placeholder.is_for),
        };
        is_shown.then_some(&placeholder.certificate)
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let chosen = self.choose(hello.server_name(), hello.signature_schemes());
        let chosen = chosen.and_then(|it| it.certified_key(UnixTime::now()));
        chosen.or_else(|| self.placeholder(hello.server_name()).cloned())
    }
}

/// A client's certificate: the first one.
impl ResolvesClientCert for Served {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let now = UnixTime::now();
        let first = self.set().first(now, |it| schemes.contains(&it)).cloned();
        first?.certified_key(now)
    }

    fn has_certs(&self) -> bool {
        !self.set().is_empty()
    }
}

/// The record that a client gets after this error; `None` where rustls' own is right.
///
/// rustls sends the alert `access_denied` where there is no certificate for a name. RFC 6066,
/// section 3 asks for `unrecognized_name`. Send this record instead of all that rustls has
/// to send. The certificate is chosen before keys are agreed on, so the alert is in plain.
#[must_use]
pub fn refusal(error: &Error) -> Option<[u8; 7]> {
    /// A record of TLS 1.2 with an alert (21) of two bytes: fatal (2), and
    /// `unrecognized_name` (112).
    const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];
    match error {
        Error::General(text) if text == "no server certificate chain resolved" => {
            Some(UNRECOGNIZED_NAME)
        }
        _ => None,
    }
}
