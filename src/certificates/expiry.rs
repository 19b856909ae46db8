//! Says in the event log that certificates are about to end.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::PoisonError;

use rustls::pki_types::UnixTime;

use super::ServedTls;
use crate::metrics::quantity::span;

/// Most warnings of one look; the others are counted.
const SAID_MAX: usize = 10;

/// By file: the end of the certificate that was warned of, and whether it has come.
pub(super) type Warned = HashMap<PathBuf, (u64, bool)>;

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
            let Some(left) = certificate.ends_soon(now) else {
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
