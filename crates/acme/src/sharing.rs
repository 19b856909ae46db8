//! Synchronisation of certificates between a storage and the shared server.
//!
//! The folder has a copy of each followed certificate. Every round asks the server once for the
//! names that have changed, and compares only those.
//!
//! ```text
//!              server has a newer one          server has an older one, or none
//!   folder ◀───────────────────────── compared ─────────────────────────────▶ server
//! ```
//!
//! Invariant: a certificate is replaced only by a newer one, here and at the server.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream;

use crate::certificate::{self, StoredCertificate};
use crate::changes::Known;
use crate::error::Failure;
use crate::issuer::blocking;
use crate::name::Name;
use crate::shared::{NewCertificate, SharedCertificate};
use crate::storage::{self, Staged, Storage};

/// Time between two rounds.
pub(crate) const EVERY: Duration = Duration::from_secs(10);

/// Certificates that are compared at once.
const AT_ONCE: usize = 8;

/// How often another machine may be faster.
const TRIES: u32 = 5;

impl Storage {
    /// Takes newer certificates from the server, and stores those that it lacks. Returns the
    /// names with a new certificate here. `followed` returns the followed names: all, or those
    /// among some.
    ///
    /// # Errors
    /// The server cannot be used, or the folder. The next round continues.
    ///
    /// # Cancellation
    /// Safe: the next round compares the remaining names.
    pub(crate) async fn share(
        &self,
        followed: impl Fn(Option<BTreeSet<String>>) -> BTreeSet<String>,
        now: SystemTime,
    ) -> Result<Vec<String>, Failure> {
        let Some(sharing) = self.sharing.clone() else {
            return Ok(Vec::new());
        };
        let changed = {
            let sharing = Arc::clone(&sharing);
            blocking(move || sharing.changed()).await?
        };
        let names = sharing.to_compare(changed, followed);
        let compare = |(name, known): (String, Known)| {
            let (storage, text) = (self.clone(), name.clone());
            async move {
                let compared = blocking(move || match Name::parse(&text) {
                    Some(name) => storage.compare_known(&name, known, now),
                    None => Ok(false),
                });
                (name, compared.await)
            }
        };
        let mut compared = stream::iter(names).map(compare).buffer_unordered(AT_ONCE);
        let (mut arrived, mut failed) = (Vec::new(), None);
        while let Some((name, compared)) = compared.next().await {
            match compared {
                Ok(is_other) => {
                    sharing.note_compared(&name);
                    arrived.extend(is_other.then_some(name));
                }
                Err(failure) => failed = Some(failure),
            }
        }
        match failed {
            // The names that failed are compared in the next round.
            Some(failure) if arrived.is_empty() => Err(failure),
            _ => Ok(arrived),
        }
    }

    fn compare_known(&self, name: &Name, known: Known, now: SystemTime) -> io::Result<bool> {
        let fingerprint =
            || held(&self.certificate(&name.to_string()), name).map(|it| it.fingerprint);
        let is_same = match known {
            Known::Nothing => false,
            Known::Absent => fingerprint().is_none(),
            Known::Is(theirs) => fingerprint() == Some(theirs),
        };
        if is_same {
            Ok(false)
        } else {
            self.compare(name, now)
        }
    }

    /// Takes the certificate of the server, if it is newer than the one here, or stores the
    /// one here, if that is newer. Says whether there is another one here. Blocks.
    ///
    /// # Errors
    /// The server cannot be used, or the folder.
    pub(crate) fn compare(&self, name: &Name, now: SystemTime) -> io::Result<bool> {
        let Some(sharing) = &self.sharing else {
            return Ok(false);
        };
        let (key, place) = (name.to_string(), self.certificate(&name.to_string()));
        for _ in 0..TRIES {
            let found = sharing.server.certificate(&key)?;
            let theirs = match &found {
                Some(found) => usable(found, &place, name, now)?,
                None => None,
            };
            let installing = self.installing();
            let mine = held(&place, name);
            let theirs = match theirs {
                Some((staged, theirs)) if mine.as_ref().is_none_or(|it| gives_way(it, &theirs)) => {
                    staged.install()?;
                    tracing::info!(%name, "acme: certificate of {name}: received from another \
                        machine");
                    return Ok(true);
                }
                theirs => theirs.map(|it| it.1),
            };
            drop(installing);
            let Some(mine) = mine else {
                return Ok(false);
            };
            let is_newer = theirs.is_none_or(|it| order(&it) < order(&mine));
            let Ok(lasts) = mine.not_after.duration_since(now) else {
                return Ok(false);
            };
            if !is_newer {
                return Ok(false);
            }
            let Some(pem) = storage::read(&place, certificate::MAX_CERTIFICATE)? else {
                return Ok(false);
            };
            let new = NewCertificate {
                fingerprint: mine.fingerprint,
                pem: &pem,
                lasts,
            };
            let replaces = found.map(|it| it.fingerprint);
            if sharing.server.put_certificate(&key, &new, replaces)? {
                return Ok(false);
            }
        }
        Err(io::Error::other(format!(
            "other machines keep replacing the certificate of {name}"
        )))
    }

    /// The same where it may fail: the next round tries again then.
    pub(crate) fn compare_or_later(&self, name: &Name, now: SystemTime) {
        if let (Err(_), Some(sharing)) = (self.compare(name, now), &self.sharing) {
            sharing.compare_later([name.to_string()]);
        }
    }
}

/// The certificate of the folder. A file that is broken counts as none.
fn held(place: &Path, name: &Name) -> Option<StoredCertificate> {
    StoredCertificate::read(place, name).ok().flatten()
}

/// The certificate of the server, in a file beside its place; `None` where it cannot be
/// served.
fn usable(
    found: &SharedCertificate,
    place: &Path,
    name: &Name,
    now: SystemTime,
) -> io::Result<Option<(Staged, StoredCertificate)>> {
    let Some(pem) = &found.pem else {
        return Ok(None);
    };
    let staged = Staged::write(place, pem)?;
    if let Err(failure) = certificate::check(staged.path(), name, now) {
        let text = failure.text;
        tracing::warn!(%name, "acme: certificate of {name} at the server: {text}");
        return Ok(None);
    }
    let theirs = held(staged.path(), name);
    Ok(theirs.map(|it| (staged, it)))
}

fn order(held: &StoredCertificate) -> (SystemTime, SystemTime) {
    (held.not_before, held.not_after)
}

/// Whether the certificate here is replaced by that of the server. Of two from the same
/// second, the server's stays.
fn gives_way(mine: &StoredCertificate, theirs: &StoredCertificate) -> bool {
    let is_older = order(mine) <= order(theirs);
    is_older && mine.fingerprint != theirs.fingerprint
}
