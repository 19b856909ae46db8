//! A certificate with its chain and its private key, read from files.
//!
//! Reading parses the certificate, and compares its public key with the one in the file of the
//! private key. The private key is loaded at the first handshake that needs it, so that a
//! folder of 100,000 certificates is read in seconds. Until then its bytes stay in a buffer
//! that is zeroed when it is dropped: 138 bytes for ECDSA P-256, 1.2 KB for RSA 2048.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use zeroize::Zeroizing;

use crate::error::{Error, Fault};
use crate::facts::{self, Facts};
use crate::file::{self, MAX_CERTIFICATE, Stamp};
use crate::key::{self, Belongs, KeyKind};
use crate::pem;
use crate::staple::Staple;

/// The largest OCSP response, in bytes. Each handshake sends it.
const MAX_OCSP: u64 = 64 << 10;

/// The files of one certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Files {
    /// The certificate with its chain, and possibly the key.
    pub(crate) chain: PathBuf,
    /// Candidates for the file of the key, in order; unused if `chain` has the key.
    pub(crate) keys: Vec<PathBuf>,
    /// The OCSP response.
    pub(crate) ocsp: Option<PathBuf>,
}

impl Files {
    fn paths(&self) -> impl Iterator<Item = &Path> {
        let chain = std::iter::once(&self.chain);
        chain.chain(&self.keys).chain(&self.ocsp).map(|it| &**it)
    }

    /// The stamps of the files; `None` for one that is not there.
    fn stamps(&self) -> Vec<Option<Stamp>> {
        self.paths().map(|it| Stamp::of(it).ok()).collect()
    }
}

/// A certificate with its chain and its private key.
pub struct Certificate {
    files: Files,
    /// Of [`Files::paths`], from before they were read.
    stamps: Vec<Option<Stamp>>,
    leaf: CertificateDer<'static>,
    /// The rest of the chain, which certificates of one issuer share.
    issuers: Issuers,
    staple: Option<Staple>,
    key: Zeroizing<PrivateKeyDer<'static>>,
    /// The place of its file among [`Files::paths`].
    key_at: usize,
    kind: KeyKind,
    not_before: UnixTime,
    not_after: UnixTime,
    /// `None` where the private key turned out to be broken.
    certified: OnceLock<Option<Arc<CertifiedKey>>>,
    /// The same with the OCSP response.
    stapled: OnceLock<Arc<CertifiedKey>>,
}

/// The part of a chain that comes after the first certificate.
pub(crate) type Issuers = Arc<[CertificateDer<'static>]>;

impl Certificate {
    /// Reads a certificate. `known` are the chains of issuers so far. A fault of the OCSP
    /// response is returned beside the certificate, which is served without it.
    ///
    /// # Errors
    /// A file cannot be used, or the private key is another certificate's. A certificate
    /// that has expired is no error.
    pub(crate) fn read(
        files: Files,
        known: &mut HashSet<Issuers>,
    ) -> Result<(Self, Option<Error>), Error> {
        let mut stamps = files.stamps();
        let (bytes, _) = file::read(&files.chain, MAX_CERTIFICATE)?;
        let mut found = pem::parse(&files.chain, &bytes)?;
        drop(bytes);
        let chain_fault = |fault| Error::new(&files.chain, fault);
        if found.certificates.is_empty() {
            return Err(chain_fault(Fault::NoCertificate));
        }
        let issuers = found.certificates.split_off(1);
        let leaf = found.certificates.swap_remove(0);
        let broken = |number| chain_fault(Fault::BrokenCertificate { number });
        let parsed = facts::parse(&leaf).ok_or_else(|| broken(1))?;
        let kind = KeyKind::of(parsed.public_key());
        if !kind.is_supported() {
            let kind = kind.to_string();
            return Err(chain_fault(Fault::UnsupportedKey { kind }));
        }
        let (key_path, key) = match found.key {
            Some(key) => (&files.chain, key),
            None => read_key(&files)?,
        };
        let key_at = files.paths().position(|it| it == key_path).unwrap_or(0);
        match key::belongs(&key, parsed.public_key()) {
            Belongs::Yes => {}
            Belongs::Broken => return Err(Error::new(key_path, Fault::BrokenKey)),
            Belongs::No => {
                let is_of = |it: &CertificateDer<'_>| {
                    let parsed = facts::parse(it);
                    parsed.is_some_and(|it| key::belongs(&key, it.public_key()) == Belongs::Yes)
                };
                let belongs_to = issuers.iter().position(is_of).map(|it| it + 2);
                let chain = files.chain.clone();
                let fault = Fault::KeyOfAnother { chain, belongs_to };
                return Err(Error::new(key_path, fault));
            }
        }
        let validity = parsed.validity();
        let not_before = facts::unix_time(validity.not_before);
        let not_after = facts::unix_time(validity.not_after);
        let issuers = match known.get(&*issuers) {
            Some(known) => known.clone(),
            None => {
                if let Some(at) = issuers.iter().position(|it| facts::parse(it).is_none()) {
                    return Err(broken(at + 2));
                }
                let issuers = Issuers::from(issuers);
                known.insert(issuers.clone());
                issuers
            }
        };
        let serial = parsed.raw_serial();
        let staple = files.ocsp.as_deref().map(|it| read_staple(it, serial));
        let (staple, fault) = match staple {
            Some(Ok(staple)) => (Some(staple), None),
            Some(Err(error)) => {
                // Without its stamp the certificate counts as changed, so the next reading tries again.
                stamps.pop();
                (None, Some(error))
            }
            None => (None, None),
        };
        let read = Self {
            stamps,
            leaf,
            issuers,
            staple,
            key,
            key_at,
            kind,
            not_before,
            not_after,
            certified: OnceLock::new(),
            stapled: OnceLock::new(),
            files,
        };
        Ok((read, fault))
    }

    /// Whether it comes from these files in their current state.
    pub(crate) fn is_of(&self, files: &Files) -> bool {
        self.files == *files && self.stamps == files.stamps()
    }

    pub(crate) fn issuers(&self) -> &Issuers {
        &self.issuers
    }

    /// The file of the certificate and its chain.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.files.chain
    }

    /// The file of its private key.
    #[must_use]
    pub fn key_path(&self) -> &Path {
        let path = self.files.paths().nth(self.key_at);
        path.unwrap_or(&self.files.chain)
    }

    /// The certificate in DER, without its chain.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        &self.leaf
    }

    /// The kind of its key.
    #[must_use]
    pub fn key_kind(&self) -> &KeyKind {
        &self.kind
    }

    /// The first second at which it is valid.
    #[must_use]
    pub fn not_before(&self) -> UnixTime {
        self.not_before
    }

    /// The last second at which it is valid.
    #[must_use]
    pub fn not_after(&self) -> UnixTime {
        self.not_after
    }

    /// Seconds until its end, if less than a twelfth of its lifetime is left; 0 once it has
    /// expired. A twelfth is a week of 90 days, or half a day of 6 days.
    #[must_use]
    pub fn ends_soon(&self, now: UnixTime) -> Option<u64> {
        const PARTS: u64 = 12;
        let (start, end) = (self.not_before().as_secs(), self.not_after().as_secs());
        let left = end.saturating_sub(now.as_secs());
        (left <= end.saturating_sub(start) / PARTS).then_some(left)
    }

    /// Seconds until it is valid; `None` where that time has come.
    #[must_use]
    pub fn begins_in(&self, now: UnixTime) -> Option<u64> {
        let wait = self.not_before.as_secs().checked_sub(now.as_secs())?;
        (wait > 0).then_some(wait)
    }

    /// Whether it is valid at this time.
    #[must_use]
    pub fn is_valid_at(&self, now: UnixTime) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }

    /// Whether an OCSP response is sent with it at this time.
    #[must_use]
    pub fn has_staple(&self, now: UnixTime) -> bool {
        self.staple.as_ref().is_some_and(|it| it.is_valid_at(now))
    }

    /// Whether its private key turned out to be broken when a handshake needed it.
    #[must_use]
    pub fn has_broken_key(&self) -> bool {
        matches!(self.certified.get(), Some(None))
    }

    /// Names, validity, issuer and fingerprint. Each call parses the certificate.
    ///
    /// # Panics
    /// Never: it was parsed when it was read.
    #[must_use]
    pub fn facts(&self) -> Facts {
        Facts::of(&self.leaf).expect("it was parsed when it was read")
    }

    /// The names that it is served for.
    pub(crate) fn dns_names(&self) -> Vec<String> {
        let parsed = facts::parse(&self.leaf).expect("it was parsed when it was read");
        facts::dns_names(&parsed)
    }

    /// Chain, key and OCSP response for rustls, for handshakes at this time.
    ///
    /// The key is loaded once, which takes 20 µs for ECDSA P-256 and 200 µs for RSA 2048;
    /// `None` where it turns out to be broken. An OCSP response that is out of date is left
    /// out: clients fail with it, and most do without.
    #[must_use]
    pub fn certified_key(&self, now: UnixTime) -> Option<Arc<CertifiedKey>> {
        let bare = self.certified.get_or_init(|| {
            let key = any_supported_type(&self.key).ok()?;
            let chain = std::iter::once(&self.leaf).chain(&*self.issuers);
            let certified = CertifiedKey::new(chain.cloned().collect(), key);
            certified.keys_match().ok()?;
            Some(Arc::new(certified))
        });
        let bare = bare.as_ref()?;
        match &self.staple {
            Some(staple) if staple.is_valid_at(now) => {
                let stapled = self.stapled.get_or_init(|| {
                    let mut stapled = CertifiedKey::clone(bare);
                    stapled.ocsp = Some(staple.response.to_vec());
                    Arc::new(stapled)
                });
                Some(stapled.clone())
            }
            _ => Some(bare.clone()),
        }
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("path", &self.files.chain)
            .field("kind", &self.kind)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// The key from a separate file.
fn read_key(files: &Files) -> Result<(&PathBuf, Zeroizing<PrivateKeyDer<'static>>), Error> {
    for path in &files.keys {
        let (bytes, _) = file::read(path, MAX_CERTIFICATE)?;
        if let Some(key) = pem::parse(path, &bytes)?.key {
            return Ok((path, key));
        }
    }
    let path = files.keys.first().unwrap_or(&files.chain);
    Err(Error::new(path, Fault::NoKey))
}

/// The OCSP response for the certificate of this serial number.
fn read_staple(path: &Path, serial: &[u8]) -> Result<Staple, Error> {
    let (bytes, _) = file::read(path, MAX_OCSP)?;
    Staple::parse(&bytes, serial).ok_or_else(|| Error::new(path, Fault::BrokenOcsp))
}
