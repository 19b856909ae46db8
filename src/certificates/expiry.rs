//! Says in the event log that certificates are about to end, or are not valid yet.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::PoisonError;

use evenkeel_tls::Certificate;
use rustls::pki_types::UnixTime;

use super::ServedTls;
use crate::metrics::quantity::span;

/// Most warnings of one look; the others are counted.
const SAID_MAX: usize = 10;

/// By file: the fault of the certificate that was warned of.
pub(super) type Warned = HashMap<PathBuf, Fault>;

/// Why a certificate is warned of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The certificate is not valid before this second of 1970.
    NotYet { begins: u64 },
    /// It ends soon.
    Ending { ends: u64 },
    /// It has expired.
    Expired { ended: u64 },
}

impl Fault {
    /// The fault of a certificate, with the seconds until it begins or ends.
    fn of(certificate: &Certificate, now: UnixTime) -> Option<(Self, u64)> {
        if let Some(wait) = certificate.begins_in(now) {
            let begins = certificate.not_before().as_secs();
            return Some((Fault::NotYet { begins }, wait));
        }
        let ends = certificate.not_after().as_secs();
        Some(match certificate.ends_soon(now)? {
            0 => (Fault::Expired { ended: ends }, 0),
            left => (Fault::Ending { ends }, left),
        })
    }
}

impl ServedTls {
    /// Warns once of each certificate that is not valid yet or ends soon, and once when it has
    /// ended.
    pub(super) fn warn_of_ends(&self) {
        let now = UnixTime::now();
        let name = &self.listener;
        let certificates = self.certificates();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now_ending = Warned::new();
        let (mut said, mut unsaid) = (0, 0);
        for certificate in certificates.all() {
            let Some((fault, time)) = Fault::of(certificate, now) else {
                continue;
            };
            let path = certificate.path();
            now_ending.insert(path.to_owned(), fault);
            if warned.get(path) == Some(&fault) {
                continue;
            }
            if said == SAID_MAX {
                unsaid += 1;
                continue;
            }
            said += 1;
            let path = path.display();
            let time = span(std::time::Duration::from_secs(time));
            match fault {
                Fault::NotYet { .. } => tracing::warn!(
                    listener = name,
                    "listener {name}: the certificate in {path} becomes valid only in {time}: \
                     check the clock of this machine"
                ),
                Fault::Ending { .. } => tracing::warn!(
                    listener = name,
                    "listener {name}: the certificate in {path} expires in {time}"
                ),
                Fault::Expired { .. } => tracing::error!(
                    listener = name,
                    "listener {name}: the certificate in {path} has expired"
                ),
            }
        }
        if unsaid > 0 {
            tracing::warn!(
                listener = name,
                "listener {name}: {unsaid} more certificates expire soon, have expired or are \
                 not valid yet: `evenkeel certificates` shows them"
            );
        }
        *warned = now_ending;
    }
}
