//! The certificate in a file of the storage, and the checks of a new one.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_tls::{Certificate, Error, Facts, Fault, Source, UnixTime, reading};
use instant_acme::CertificateIdentifier;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls_pki_types::CertificateDer;

use crate::error::{Failure, FailureKind};
use crate::name::Name;
use crate::storage::{self, seconds};

/// The line at the top of the file that names the directory of the issuer. Readers of PEM
/// pass over text before a section (RFC 7468, section 2).
const ISSUER: &str = "Issuer: ";

/// The most that is read of a certificate, in bytes.
pub(crate) const MAX_CERTIFICATE: u64 = 1 << 20;

/// A certificate in a file of the storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredCertificate {
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
    /// SHA-256 of the certificate.
    pub(crate) fingerprint: [u8; 32],
    /// The directory of the issuer; `None` for a file that was put there by others.
    pub(crate) directory: Option<String>,
    /// Its identifier at the issuer (RFC 9773, section 4.1); `None` if it lacks the issuer's
    /// key identifier.
    pub(crate) id: Option<CertificateIdentifier<'static>>,
}

impl StoredCertificate {
    /// Reads the certificate of a name; `None` where there is no file. Blocks.
    ///
    /// # Errors
    /// The file cannot be used, or is for another name, in words.
    pub(crate) fn read(path: &Path, name: &Name) -> Result<Option<Self>, String> {
        let Some(certificate) = read_certificate(path)? else {
            return Ok(None);
        };
        let facts = certificate.facts();
        if !is_for(&facts, name) {
            return Err(format!("{}: it is not for {name}", path.display()));
        }
        let bytes = storage::read(path, MAX_CERTIFICATE).ok().flatten();
        let bytes = bytes.unwrap_or_default();
        let first = bytes.split(|it| *it == b'\n').next().unwrap_or_default();
        let first = std::str::from_utf8(first).unwrap_or_default();
        let der = CertificateDer::from(certificate.der());
        let id = CertificateIdentifier::try_from(&der).ok();
        Ok(Some(Self {
            not_before: system_time(certificate.not_before()),
            not_after: system_time(certificate.not_after()),
            fingerprint: facts.fingerprint,
            directory: first.strip_prefix(ISSUER).map(str::to_owned),
            id: id.map(CertificateIdentifier::into_owned),
        }))
    }

    pub(crate) fn lifetime(&self) -> Duration {
        let lifetime = self.not_after.duration_since(self.not_before);
        lifetime.unwrap_or_default()
    }
}

/// The file of a certificate: its issuer, the chain and the key.
pub(crate) fn file(directory: &str, chain: &str, key: &str) -> String {
    let newline = if chain.ends_with('\n') { "" } else { "\n" };
    format!("{ISSUER}{directory}\n{chain}{newline}{key}")
}

/// Whether the file holds this private key. Blocks.
pub(crate) fn has_key(path: &Path, key: &str) -> bool {
    let bytes = storage::read(path, MAX_CERTIFICATE).ok().flatten();
    let text = bytes.and_then(|it| String::from_utf8(it).ok());
    text.is_some_and(|it| it.contains(key.trim()))
}

/// Checks a certificate that an issuer has sent, in a file with the key. Blocks.
///
/// The certificate is for this name and this key, and is valid now. One of the certificates
/// that come with it has signed it.
///
/// # Errors
/// The certificate cannot be served.
pub(crate) fn check(path: &Path, name: &Name, now: SystemTime) -> Result<(), Failure> {
    let refused = |text: String| {
        let text = format!("the issued certificate cannot be used: {text}");
        Failure::new(FailureKind::Refused, text)
    };
    let certificate = read_certificate(path).map_err(refused)?;
    let certificate = certificate.ok_or_else(|| refused("its file is gone".to_owned()))?;
    if !is_for(&certificate.facts(), name) {
        return Err(refused(format!("it is not for {name}")));
    }
    let unix_now = UnixTime::since_unix_epoch(Duration::from_secs(seconds(now)));
    if !certificate.is_valid_at(unix_now) {
        // The certificate may be good, and the order goes on once the clock is right.
        let (from, to) = (certificate.not_before(), certificate.not_after());
        let text = format!(
            "the issued certificate is valid from {} to {}, but now it is {}: check the clock of \
             this machine",
            date(system_time(from)),
            date(system_time(to)),
            date(now),
        );
        return Err(Failure::new(FailureKind::Issuer, text));
    }
    let key = certificate.certified_key(unix_now);
    let key = key.ok_or_else(|| refused("its private key is damaged".to_owned()))?;
    let (leaf, issuers) = key
        .cert
        .split_first()
        .ok_or_else(|| refused("it is empty".into()))?;
    // Of an issuer that signs with its root, the chain has nothing that could be checked.
    if issuers.is_empty() {
        return Ok(());
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(issuers.iter().cloned());
    let provider = Arc::new(default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let verifier = verifier.map_err(|it| refused(it.to_string()))?;
    let server_name = name.server_name();
    let verified = verifier.verify_server_cert(leaf, &[], &server_name, &[], unix_now);
    verified
        .map(drop)
        .map_err(|it| refused(format!("its chain is wrong: {it}")))
}

fn is_for(facts: &Facts, name: &Name) -> bool {
    match name {
        Name::Address(address) => facts.ip_addresses.contains(address),
        name => facts.dns_names.contains(&name.to_string()),
    }
}

/// A certificate with its key in one file; `None` where there is no file.
fn read_certificate(path: &Path) -> Result<Option<Arc<Certificate>>, String> {
    if matches!(path.try_exists(), Ok(false)) {
        return Ok(None);
    }
    let source = Source::Pair {
        chain: path.to_owned(),
        key: path.to_owned(),
    };
    let (certificates, troubles) = reading::read(&[source], None);
    match certificates.all().first() {
        Some(certificate) => Ok(Some(Arc::clone(certificate))),
        None => {
            let text = troubles.into_iter().next().map(|it| it.text);
            Err(text.unwrap_or_else(|| {
                let path = path.to_owned();
                let fault = Fault::NoCertificate;
                Error { path, fault }.to_string()
            }))
        }
    }
}

fn system_time(time: UnixTime) -> SystemTime {
    storage::time(time.as_secs())
}

/// A time in UTC, to the second.
pub(crate) fn date(time: SystemTime) -> String {
    let seconds = i64::try_from(seconds(time)).unwrap_or(i64::MAX);
    let date = jiff::Timestamp::from_second(seconds);
    date.unwrap_or(jiff::Timestamp::MAX).to_string()
}
