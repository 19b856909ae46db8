//! A server through which machines without a shared folder share certificates.
//!
//! This crate knows no such server: the program implements [`Shared`] for one.

use std::fmt;
use std::io;
use std::time::Duration;

/// A server that keeps records for several machines.
///
/// The methods are called on threads that may block, and wait for an answer at most a few
/// seconds. Only [`release`](Self::release) may be called on any thread; it never blocks.
///
/// Values contain private keys. The implementation encrypts each value before it leaves the
/// machine, and authenticates it together with the name of its record. Otherwise anyone who can
/// write to the server could answer challenges.
pub trait Shared: Send + Sync + fmt::Debug {
    /// The value of a record; `None` if there is none, or if it was written without the key.
    ///
    /// # Errors
    /// The server cannot be used.
    fn get(&self, record: &str) -> Result<Option<Vec<u8>>, Unusable>;

    /// Stores a record for some time, replacing the one before.
    ///
    /// # Errors
    /// The server cannot be used.
    fn put(&self, record: &str, value: &[u8], lasts: Duration) -> Result<(), Unusable>;

    /// Removes a record, if it is there.
    ///
    /// # Errors
    /// The server cannot be used.
    fn remove(&self, record: &str) -> Result<(), Unusable>;

    /// The certificate of a name.
    ///
    /// # Errors
    /// The server cannot be used.
    fn certificate(&self, name: &str) -> Result<Option<SharedCertificate>, Unusable>;

    /// Stores the certificate of a name, unless the one at the server is another than
    /// `replaces`: false then.
    ///
    /// # Errors
    /// The server cannot be used.
    fn put_certificate(
        &self,
        name: &str,
        certificate: &NewCertificate<'_>,
        replaces: Option<Fingerprint>,
    ) -> Result<bool, Unusable>;

    /// The names whose certificates have changed at the server: after this point, or ever.
    ///
    /// # Errors
    /// The server cannot be used.
    fn changes(&self, after: Option<&Point>) -> Result<Changes, Unusable>;

    /// Takes a lease for some time; false where it is held. `holder` names the lease that is
    /// taken, and no other.
    ///
    /// # Errors
    /// The server cannot be used.
    fn take(&self, lease: &str, holder: &str, lasts: Duration) -> Result<bool, Unusable>;

    /// Renews a lease; false where this holder does not have it any more.
    ///
    /// # Errors
    /// The server cannot be used.
    fn renew(&self, lease: &str, holder: &str, lasts: Duration) -> Result<bool, Unusable>;

    /// Releases a lease soon, if this holder has it. A lease that cannot be released expires.
    fn release(&self, lease: &str, holder: &str);
}

/// SHA-256 of a certificate.
pub type Fingerprint = [u8; 32];

/// A certificate at the server.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedCertificate {
    /// Its fingerprint, as the server says.
    pub fingerprint: Fingerprint,
    /// The file with its chain and its key; `None` if it was written without the key.
    pub pem: Option<Vec<u8>>,
}

/// A certificate for the server.
pub struct NewCertificate<'a> {
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// The file with its chain and its key.
    pub pem: &'a [u8],
    /// How long it is kept at least.
    pub lasts: Duration,
}

/// A point in the history of the certificates at a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// Another one where the server has lost its records, or has records for another key.
    pub epoch: String,
    /// Raised with each change.
    pub revision: u64,
}

/// Certificates that have changed at the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// The point up to which the changes are known. If its epoch differs from the requested
    /// one, the changes are those since the beginning of that epoch.
    pub until: Point,
    /// Names and fingerprints, in the order of the changes. A name may occur twice.
    pub certificates: Vec<(String, Fingerprint)>,
    /// Whether there are more after this point.
    pub has_more: bool,
}

/// The server cannot be used. The text says which server, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable(pub String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

impl From<Unusable> for io::Error {
    fn from(error: Unusable) -> Self {
        Self::other(error)
    }
}

// The key is left out of both: values end in logs.

impl fmt::Debug for SharedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCertificate")
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for NewCertificate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewCertificate")
            .field("fingerprint", &self.fingerprint)
            .field("lasts", &self.lasts)
            .finish_non_exhaustive()
    }
}
