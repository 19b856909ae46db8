//! The settings of [`Manager`](crate::Manager): issuers, challenges, and where files are kept.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::shared::Shared;

/// Issuers, the challenges that can be answered, and the folder of the storage.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder of accounts, orders and certificates. A missing one is made with mode
    /// 0700. Several processes, also of several machines, may share it.
    pub storage: PathBuf,
    /// Issuers in the order in which they are tried. The next one is asked after the one
    /// before has failed.
    pub issuers: Vec<Issuer>,
    /// The challenges that can be answered, in the order of preference.
    pub challenges: Vec<ChallengeKind>,
    /// How the records of DNS-01 are set. Needed where `challenges` has
    /// [`ChallengeKind::Dns01`].
    pub dns: Option<DnsSettings>,
    /// Names that clients may ask for, beside the followed ones.
    pub on_demand: Option<OnDemand>,
    /// The server through which machines without a shared folder share certificates. The folder
    /// is then a copy.
    pub shared: Option<Arc<dyn Shared>>,
}

/// Which names may have a certificate because a client asks for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnDemand {
    /// These, in lower case. `*.example.com` stands for all names below it.
    pub names: Vec<String>,
    /// The URL to ask about any other name: `GET URL?domain=NAME`. A 2xx allows the name, a 4xx
    /// other than 429 refuses it, and any other status is no answer.
    pub ask: Option<String>,
}

/// An issuer of certificates that speaks ACME (RFC 8555).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuer {
    /// The URL of its directory. It begins with `https://`.
    pub directory: String,
    /// A PEM file of the authorities that vouch for the server of the directory. Without it,
    /// the authorities of the system do.
    pub ca: Option<PathBuf>,
    /// The mail address that the issuer may write to.
    pub email: Option<String>,
    /// The profile of certificates that is asked for.
    pub profile: Option<String>,
    /// The account at the issuer that the ACME account is bound to.
    pub external_account: Option<ExternalAccount>,
}

/// An external account binding (RFC 8555, section 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The key identifier that the issuer has given out.
    pub key_id: String,
    /// The HMAC key that the issuer has given out, in base64url.
    pub hmac_key: String,
}

/// A way to prove control over a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChallengeKind {
    /// A file over plain HTTP at port 80 (RFC 8555, section 8.3).
    Http01,
    /// A certificate in a TLS handshake at port 443 (RFC 8737).
    TlsAlpn01,
    /// A TXT record (RFC 8555, section 8.4). The only one for wildcard names.
    Dns01,
}

/// How the records of DNS-01 are set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsSettings {
    /// By dynamic updates (RFC 2136) that are signed (RFC 8945), over TCP.
    Update(UpdateSettings),
    /// By a program.
    ///
    /// The program runs as `PROGRAM present NAME VALUE` and later as `PROGRAM cleanup NAME VALUE`.
    /// `NAME` is the name of the TXT record, such as `_acme-challenge.example.com`, and
    /// `VALUE` its value. Its environment is that of this process, and its standard input is
    /// empty. `present` exits with 0 once the authoritative servers answer with the record.
    /// Another exit status, or none within two minutes, makes the order fail with what the
    /// program wrote to standard error.
    Hook {
        /// The program.
        program: PathBuf,
    },
}

/// A server of DNS that takes signed updates.
#[derive(Clone, PartialEq, Eq)]
pub struct UpdateSettings {
    /// The primary server of the zone.
    pub server: SocketAddr,
    /// The zone. The server is asked for it where this is `None`.
    pub zone: Option<String>,
    /// The name of the key.
    pub key_name: String,
    /// The algorithm of the key.
    pub algorithm: TsigAlgorithm,
    /// The key, in base64.
    pub secret: String,
}

/// An algorithm of TSIG (RFC 8945, section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TsigAlgorithm {
    /// `hmac-sha256`.
    HmacSha256,
    /// `hmac-sha384`.
    HmacSha384,
    /// `hmac-sha512`.
    HmacSha512,
}

impl ChallengeKind {
    /// The name of the challenge in ACME, such as `http-01`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http01 => "http-01",
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Dns01 => "dns-01",
        }
    }
}

impl fmt::Display for ChallengeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// The keys are left out of both: settings end in logs.

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalAccount")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for UpdateSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdateSettings")
            .field("server", &self.server)
            .field("zone", &self.zone)
            .field("key_name", &self.key_name)
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}
