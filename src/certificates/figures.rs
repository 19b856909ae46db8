//! Figures of certificates, for operators.

use std::path::PathBuf;
use std::time::SystemTime;

use evenkeel_acme::{State, Status};
use evenkeel_tls::Certificate;
use rustls::pki_types::UnixTime;
use serde::Serialize;

use super::ServedTls;

/// A certificate that a listener serves.
#[derive(Debug, Clone, Serialize)]
pub struct CertificateFigures {
    /// The listener.
    pub listener: String,
    /// The names that it is for: of hosts, then addresses.
    pub names: Vec<String>,
    /// Its issuer.
    pub issuer: String,
    /// The kind of its key, such as `ECDSA P-256`.
    pub key: String,
    /// Its file.
    pub path: PathBuf,
    /// From when on it is valid, in seconds since 1970.
    pub not_before_unix_s: u64,
    /// Until when it is valid, in seconds since 1970.
    pub not_after_unix_s: u64,
    /// For how long it is valid still, in seconds; 0 once it has expired.
    pub left_s: u64,
}

/// A file of a listener's certificates that can't be used.
#[derive(Debug, Clone, Serialize)]
pub struct CertificateTrouble {
    /// The listener.
    pub listener: String,
    /// The reason, with the path.
    pub text: String,
    /// Whether the certificate of before stays in use.
    pub is_kept: bool,
}

/// A name that a certificate is ordered for.
#[derive(Debug, Clone, Serialize)]
pub struct OrderedFigures {
    /// The name.
    pub name: String,
    /// `valid`, `ordering`, `failed` or `missing`.
    pub state: String,
    /// The directory of its issuer, where it has a certificate.
    pub issuer: Option<String>,
    /// When it is ordered next, in seconds since 1970; `None` for never.
    pub next_order_unix_s: Option<u64>,
    /// Orders that failed since the last one that did not.
    pub failures: u32,
    /// Why the last one failed.
    pub error: Option<String>,
    /// When, in seconds since 1970.
    pub failed_unix_s: Option<u64>,
}

/// How the certificates of a listener do, without their names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CertificateCounts {
    /// Certificates that it serves.
    pub served: u64,
    /// Expired certificates among them.
    pub expired: u64,
    /// Certificates of which less than a twelfth of their lifetime is left.
    pub ending: u64,
    /// When the next one expires, in seconds since 1970; `None` where all have.
    pub next_expiry_unix_s: Option<u64>,
    /// Files that can't be used.
    pub unreadable: u64,
    /// Names without a certificate yet, that one is ordered for; `None` where none is.
    pub missing: Option<u64>,
    /// Names whose last order failed; `None` where none is ordered.
    pub failed: Option<u64>,
}

impl From<Status> for OrderedFigures {
    fn from(status: Status) -> Self {
        let unix_s = |it: SystemTime| {
            let since = it.duration_since(SystemTime::UNIX_EPOCH);
            since.map_or(0, |it| it.as_secs())
        };
        OrderedFigures {
            name: status.name,
            state: status.state.to_string(),
            issuer: status.issuer,
            next_order_unix_s: status.next_attempt.map(unix_s),
            failures: status.failures,
            failed_unix_s: status.last_error.as_ref().map(|it| unix_s(it.at)),
            error: status.last_error.map(|it| it.text),
        }
    }
}

impl CertificateFigures {
    fn of(listener: &str, certificate: &Certificate, now: UnixTime) -> Self {
        let facts = certificate.facts();
        let addresses = facts.ip_addresses.iter().map(ToString::to_string);
        let end = facts.not_after.as_secs();
        CertificateFigures {
            listener: listener.to_owned(),
            names: facts.dns_names.into_iter().chain(addresses).collect(),
            issuer: facts.issuer,
            key: facts.key.to_string(),
            path: certificate.path().to_owned(),
            not_before_unix_s: facts.not_before.as_secs(),
            not_after_unix_s: end,
            left_s: end.saturating_sub(now.as_secs()),
        }
    }
}

impl ServedTls {
    /// Each certificate, in order. Parses all of them.
    pub fn figures(&self) -> Vec<CertificateFigures> {
        let now = UnixTime::now();
        let certificates = self.certificates();
        let all = certificates.all().iter();
        all.map(|it| CertificateFigures::of(&self.listener, it, now))
            .collect()
    }

    /// Files that could not be used at the last reading.
    pub fn troubles(&self) -> Vec<CertificateTrouble> {
        let troubles = self.known_troubles();
        let shown = troubles.iter().map(|it| CertificateTrouble {
            listener: self.listener.clone(),
            text: it.text.clone(),
            is_kept: it.is_kept,
        });
        shown.collect()
    }

    /// How its certificates do.
    pub fn counts(&self) -> CertificateCounts {
        let now = UnixTime::now();
        let certificates = self.certificates();
        let mut counts = CertificateCounts {
            served: certificates.all().len() as u64,
            unreadable: self.known_troubles().len() as u64,
            ..CertificateCounts::default()
        };
        for certificate in certificates.all() {
            let end = certificate.not_after();
            if end <= now {
                counts.expired += 1;
            } else {
                counts.ending += u64::from(certificate.ends_soon(now).is_some());
                let next = counts.next_expiry_unix_s.get_or_insert(u64::MAX);
                *next = (*next).min(end.as_secs());
            }
        }
        if let Some(acme) = &self.acme {
            let (status, ordered) = (acme.status(), self.ordered());
            let its = |it: &&Status| ordered.binary_search(&it.name).is_ok();
            let count =
                |is: fn(&Status) -> bool| status.iter().filter(its).filter(|it| is(it)).count();
            counts.missing = Some(count(|it| it.not_after.is_none()) as u64);
            counts.failed = Some(count(|it| it.state == State::Failed) as u64);
        }
        counts
    }
}
