//! Which authorities are trusted, and which certificates they have revoked.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls_pki_types::CertificateRevocationListDer;

use crate::error::{Error, Fault};
use crate::facts::sha256;
use crate::file::{self, MAX_BUNDLE};
use crate::pem;

/// Authorities, and the revocation lists of them.
#[derive(Clone)]
pub struct Authorities {
    roots: Arc<RootCertStore>,
    crls: Vec<CertificateRevocationListDer<'static>>,
    /// SHA-256 of each authority's certificate, sorted.
    certificates: Vec<[u8; 32]>,
    /// SHA-256 over all of it.
    digest: [u8; 32],
}

impl Authorities {
    /// Reads authorities and revocation lists from PEM files.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn read(authorities: &[PathBuf], crls: &[PathBuf]) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        let mut certificates = Vec::new();
        for path in authorities {
            let (bytes, _) = file::read(path, MAX_BUNDLE)?;
            let found = pem::parse(path, &bytes)?.certificates;
            if found.is_empty() {
                return Err(Error::new(path, Fault::NoCertificate));
            }
            for (at, certificate) in found.into_iter().enumerate() {
                certificates.push(sha256(&[&certificate]));
                let number = at + 1;
                let broken = |_| Error::new(path, Fault::BrokenCertificate { number });
                roots.add(certificate).map_err(broken)?;
            }
        }
        let roots = Arc::new(roots);
        let mut lists = Vec::new();
        let mut digests = Vec::new();
        for path in crls {
            let (bytes, _) = file::read(path, MAX_BUNDLE)?;
            let found = pem::parse(path, &bytes)?.crls;
            if found.is_empty() {
                return Err(Error::new(path, Fault::NoCrl));
            }
            digests.extend(found.iter().map(|it| sha256(&[it])));
            // The verifier alone parses them as connections will.
            let provider = Arc::new(default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider);
            if let Err(VerifierBuilderError::InvalidCrl(_)) =
                verifier.with_crls(found.iter().cloned()).build()
            {
                return Err(Error::new(path, Fault::BrokenCrl));
            }
            lists.extend(found);
        }
        Ok(Self::new(roots, certificates, lists, digests))
    }

    /// The authorities that the system trusts, from the file and the folder of its OpenSSL.
    /// The variables `SSL_CERT_FILE` and `SSL_CERT_DIR` name others. Certificates that cannot
    /// be parsed are passed over.
    ///
    /// Reading them takes some milliseconds: see [`system_once`](Self::system_once).
    ///
    /// # Errors
    /// None can be read.
    pub fn system() -> Result<Self, NoSystemAuthorities> {
        let found = rustls_native_certs::load_native_certs();
        let certificates = found.certs.iter().map(|it| sha256(&[it])).collect();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let errors = found.errors.iter().map(ToString::to_string);
            return Err(NoSystemAuthorities(errors.collect()));
        }
        Ok(Self::new(
            roots.into(),
            certificates,
            Vec::new(),
            Vec::new(),
        ))
    }

    /// The same, read once in the life of the process.
    ///
    /// # Errors
    /// None can be read; the next call tries again.
    pub fn system_once() -> Result<Self, NoSystemAuthorities> {
        static SYSTEM: OnceLock<Authorities> = OnceLock::new();
        if let Some(known) = SYSTEM.get() {
            return Ok(known.clone());
        }
        let read = Self::system()?;
        Ok(SYSTEM.get_or_init(|| read).clone())
    }

    /// Builds the authorities. The digest does not depend on the order or number of
    /// certificates and lists.
    fn new(
        roots: Arc<RootCertStore>,
        mut certificates: Vec<[u8; 32]>,
        crls: Vec<CertificateRevocationListDer<'static>>,
        mut of_crls: Vec<[u8; 32]>,
    ) -> Self {
        for digests in [&mut certificates, &mut of_crls] {
            digests.sort_unstable();
            digests.dedup();
        }
        let of_certificates = sha256(&[certificates.as_flattened()]);
        let of_crls = sha256(&[of_crls.as_flattened()]);
        Self {
            roots,
            crls,
            digest: sha256(&[&of_certificates, &of_crls]),
            certificates,
        }
    }

    /// Whether a certificate is itself one of the authorities.
    pub(crate) fn contain(&self, certificate: &[u8]) -> bool {
        let digest = sha256(&[certificate]);
        self.certificates.binary_search(&digest).is_ok()
    }

    /// The verifier of certificates of endpoints. Revocation lists count as for clients.
    ///
    /// # Errors
    /// No authority is trusted.
    pub(crate) fn server_verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<WebPkiServerVerifier>, VerifierBuilderError> {
        let (roots, provider) = (self.roots.clone(), provider.clone());
        WebPkiServerVerifier::builder_with_provider(roots, provider)
            .with_crls(self.crls.iter().cloned())
            .enforce_revocation_expiration()
            .build()
    }
}

impl PartialEq for Authorities {
    /// Whether they trust and revoke the same, in whatever order.
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Authorities {}

/// The system has no trusted authorities, with the reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoSystemAuthorities(Vec<String>);

impl fmt::Display for NoSystemAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the system has no readable trusted authorities")?;
        match &self.0[..] {
            [] => f.write_str(": its package `ca-certificates` may be missing"),
            errors => write!(f, ": {}", errors.join("; ")),
        }
    }
}

impl std::error::Error for NoSystemAuthorities {}

/// Whether clients show a certificate.
#[derive(Debug, Clone, Default)]
pub enum ClientAuth {
    /// None is asked for.
    #[default]
    None,
    /// One is asked for. A client may have none, but none that these authorities don't
    /// vouch for.
    Optional(Authorities),
    /// A client without one is refused.
    Required(Authorities),
}

impl ClientAuth {
    /// Distinguishes policies: a session of one is not resumed under another.
    ///
    /// Resumption does not verify a client's certificate again. Authorities and revocation
    /// lists therefore belong to the policy: changes of them affect resumed sessions too.
    #[must_use]
    pub fn context(&self) -> [u8; 32] {
        match self {
            Self::None => sha256(&[b"none"]),
            Self::Optional(it) => sha256(&[b"optional", &it.digest]),
            Self::Required(it) => sha256(&[b"required", &it.digest]),
        }
    }

    /// The verifier of client certificates.
    ///
    /// A chain with a revoked certificate is refused. With revocation lists every certificate
    /// of a chain needs one that is up to date, as with nginx and HAProxy.
    ///
    /// # Errors
    /// No authority is trusted.
    pub(crate) fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
        let (authorities, is_optional) = match self {
            Self::None => return Ok(WebPkiClientVerifier::no_client_auth()),
            Self::Optional(it) => (it, true),
            Self::Required(it) => (it, false),
        };
        let (roots, provider) = (authorities.roots.clone(), provider.clone());
        let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
            .with_crls(authorities.crls.iter().cloned())
            .enforce_revocation_expiration();
        if is_optional {
            verifier = verifier.allow_unauthenticated();
        }
        verifier.build()
    }
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorities")
            .field("roots", &self.roots.len())
            .field("crls", &self.crls.len())
            .finish_non_exhaustive()
    }
}
