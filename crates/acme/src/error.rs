//! Why a [`Manager`](crate::Manager) cannot be made, and why an attempt failed.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_tls::trust::NoSystemAuthorities;

use crate::settings::ChallengeKind;
use crate::shared::Unusable;

/// Settings that cannot be used, or a storage that cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A folder of the storage cannot be made or looked into.
    Storage {
        /// The folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// No issuer is named.
    NoIssuer,
    /// No challenge can be answered.
    NoChallenge,
    /// DNS-01 is configured, but no way to set records.
    NoDns,
    /// The directory of an issuer is no URL that begins with `https://`.
    Directory {
        /// The directory as written in the settings.
        directory: String,
    },
    /// The URL that is asked about names is no URL of HTTP.
    Ask {
        /// The URL as written in the settings.
        url: String,
    },
    /// The HMAC key of an external account is no base64url.
    HmacKey {
        /// The directory of the issuer.
        directory: String,
    },
    /// A zone or the name of a key is no name of DNS.
    DnsName {
        /// The name.
        name: String,
    },
    /// The key for updates of DNS is no base64.
    TsigSecret,
    /// The authorities of an issuer cannot be read.
    Authorities(evenkeel_tls::Error),
    /// The system has no trusted authorities.
    SystemAuthorities(NoSystemAuthorities),
    /// No TLS connection to an issuer can be configured.
    Tls(rustls::Error),
}

impl Error {
    pub(crate) fn storage(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Storage { path, error }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Storage { path, error } => {
                write!(f, "storage of ACME: {}: {error}", path.display())
            }
            Self::NoIssuer => f.write_str("no issuer of certificates is configured"),
            Self::NoChallenge => f.write_str("no challenge of ACME can be answered"),
            Self::NoDns => f.write_str("dns-01 needs a way to set records"),
            Self::Directory { directory } => {
                write!(f, "{directory:?} is not a URL that begins with https://")
            }
            Self::Ask { url } => write!(f, "{url:?} is not a valid URL to ask about names"),
            Self::HmacKey { directory } => {
                write!(f, "the HMAC key for {directory} is not valid base64url")
            }
            Self::DnsName { name } => write!(f, "{name:?} is not a valid DNS name"),
            Self::TsigSecret => f.write_str("the key for DNS updates is not valid base64"),
            Self::Authorities(error) => error.fmt(f),
            Self::SystemAuthorities(error) => error.fmt(f),
            Self::Tls(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Storage { error, .. } => Some(error),
            Self::Authorities(error) => Some(error),
            Self::Tls(error) => Some(error),
            _ => None,
        }
    }
}

/// A failed attempt to get a certificate.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    /// The text for an operator.
    pub(crate) text: String,
    /// How long the server wants to be left alone.
    pub(crate) retry_after: Option<Duration>,
}

/// The part that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The storage, or something else on this machine: another issuer would not help.
    Local,
    /// The issuer, or the way to it. The order may go on later.
    Issuer,
    /// The issuer has forgotten the account.
    AccountGone,
    /// The issuer has refused the order, or its certificate cannot be used. A further attempt
    /// needs another order.
    Refused,
    /// A challenge was not passed. A further attempt needs another order.
    Challenge(ChallengeKind),
    /// Another process orders a certificate, or makes the account.
    Busy,
    /// The server that machines share cannot be used.
    Server,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
            retry_after: None,
        }
    }

    /// The storage cannot be read or written.
    pub(crate) fn storage(error: &io::Error) -> Self {
        let inner = error.get_ref().and_then(|it| it.downcast_ref());
        if let Some(Unusable(text)) = inner {
            return Self::new(FailureKind::Server, text.clone());
        }
        let text = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "is full",
            io::ErrorKind::ReadOnlyFilesystem => "is read-only",
            _ => "cannot be read or written",
        };
        let mut text = format!("the storage {text}: {error}");
        if error.kind() == io::ErrorKind::PermissionDenied {
            let user = rustix::process::getuid().as_raw();
            let advice = format!(
                ": user {user} should own it, with mode 700 for its folders and 600 for its files"
            );
            text.push_str(&advice);
        }
        Self::new(FailureKind::Local, text)
    }

    /// Whether the order that is pending is of no use any more.
    pub(crate) fn ends_order(&self) -> bool {
        matches!(
            self.kind,
            FailureKind::Refused | FailureKind::Challenge(_) | FailureKind::AccountGone
        )
    }
}

/// An error with its causes, without repeated texts, and without links.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let further = error.to_string();
        if !text.contains(&further) {
            text.push_str(": ");
            text.push_str(&further);
        }
        cause = error.source();
    }
    evenkeel_tls::handshake_fault::without_links(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storage_of_another_user_comes_with_advice() {
        let of = |kind: io::ErrorKind| Failure::storage(&kind.into()).text;
        let user = rustix::process::getuid().as_raw();
        assert_eq!(
            of(io::ErrorKind::PermissionDenied),
            format!(
                "the storage cannot be read or written: permission denied: user {user} should \
                 own it, with mode 700 for its folders and 600 for its files"
            )
        );
        assert!(!of(io::ErrorKind::StorageFull).contains("user"));
    }
}
