//! Says in the event log that certificates are about to end.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::PoisonError;

use evenkeel_tls::Certificate;
use rustls::pki_types::UnixTime;

use super::ServedTls;
use crate::metrics::quantity::span;

/// A warning comes when less than one part in this many of the lifetime is left. That is a
/// week for a certificate of 90 days, and half a day for one of 6 days.
const PART_LEFT: u64 = 12;
/// Most warnings of one look; the others are counted.
const SAID_MAX: usize = 10;

/// By file: the end of the certificate that was warned of, and whether it has come.
pub(super) type Warned = HashMap<PathBuf, (u64, bool)>;

/// For how long a certificate is valid still, in seconds, where that is short.
pub(super) fn soon(certificate: &Certificate, now: UnixTime) -> Option<u64> {
    let (start, end) = (certificate.not_before(), certificate.not_after());
    let lifetime = end.as_secs().saturating_sub(start.as_secs());
    let left = end.as_secs().saturating_sub(now.as_secs());
    (left <= lifetime / PART_LEFT).then_some(left)
}

impl ServedTls {
    /// Warns once of each certificate that ends soon, and once when it has ended.
    pub(super) fn warn_of_ends(&self) {
        let now = UnixTime::now();
        let name = &self.listener;
        let certificates = self.certificates();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now_ending = Warned::new();
        let (mut said, mut unsaid) = (0, 0);
        for certificate in certificates.all() {
            let Some(left) = soon(certificate, now) else {
                continue;
            };
            let path = certificate.path();
            let state = (certificate.not_after().as_secs(), left == 0);
            now_ending.insert(path.to_owned(), state);
            if warned.get(path) == Some(&state) {
                continue;
            }
            if said == SAID_MAX {
                unsaid += 1;
                continue;
            }
            said += 1;
            let path = path.display();
            if left == 0 {
                tracing::error!(
                    listener = name,
                    "listener {name}: the certificate in {path} has expired"
                );
            } else {
                let left = span(std::time::Duration::from_secs(left));
                tracing::warn!(
                    listener = name,
                    "listener {name}: the certificate in {path} expires in {left}"
                );
            }
        }
        if unsaid > 0 {
            tracing::warn!(
                listener = name,
                "listener {name}: {unsaid} more certificates expire soon or have expired: \
                 `evenkeel certificates` shows them"
            );
        }
        *warned = now_ending;
    }
}
