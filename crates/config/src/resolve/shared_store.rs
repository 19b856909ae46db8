//! A server that several processes share: who vouches for it, and what encrypts the secrets
//! that are stored there.

use evenkeel_tls::{Authorities, SealingKey};

use super::{report_key, warn_of_readers};

use crate::diagnostics::Report;
use crate::setting::{Field, Placed};
use crate::surroundings::{NameLookup, Surroundings, absolute};
use crate::value::FilePath;
use crate::written::{Shared, paths};
use crate::{EncryptedStore, SharedStore, Trust};

/// Builds the store; `Some(None)` for none. Reports files that can't be used.
pub(super) fn resolve(
    written: &Field<Shared>,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Option<SharedStore>> {
    let Some(Shared(table)) = &written.value else {
        return (!written.written).then_some(None);
    };
    let mut store = table.url.value.as_ref()?.0.clone();
    let is_looked_at = surroundings.lookup != NameLookup::Skip;
    if table.ca.written {
        if store.tls.is_none() {
            report
                .mistake(
                    &table.ca.place,
                    "`ca` verifies the certificate of the server, but its URL has no TLS",
                )
                .related(&table.url.place, "the URL")
                .help("write the URL with `rediss://`, or leave `ca` out");
        }
        let ca = paths(&table.ca, surroundings.folder, report)?;
        if is_looked_at && let Err(error) = Authorities::read(&ca, &[]) {
            report.mistake(&table.ca.place, error.to_string());
        }
        let crl = Vec::new();
        store.tls = Some(Trust::Files { ca, crl });
    } else if store.tls.is_some()
        && is_looked_at
        && let Err(error) = Authorities::system_once()
    {
        report
            .mistake(&written.place, error.to_string())
            .help("name the file of an authority: shared = { url = \"URL\", ca = \"FILE\" }");
    }
    Some(Some(store))
}

/// Builds a store of secrets, with the file of the key that encrypts them; `Some(None)` for
/// none. Reports a server without a key. `secrets` begins a sentence, such as `keys are`.
pub(super) fn encrypted(
    shared: &Field<Shared>,
    encrypt_with: &Field<Placed<FilePath>>,
    secrets: &str,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Option<EncryptedStore>> {
    let server = resolve(shared, surroundings, report)?;
    let key = match &encrypt_with.value {
        None if encrypt_with.written => return None,
        None => None,
        Some(Placed { value, place }) => {
            let path = absolute(&value.0, place, surroundings.folder, report)?;
            if surroundings.lookup != NameLookup::Skip {
                warn_of_readers(&path, place, "the key of the cluster", report);
                if let Err(error) = SealingKey::read(&path) {
                    report_key(&path, place, &error, 32, report);
                }
            }
            Some(path)
        }
    };
    match (server, key) {
        (None, None) => Some(None),
        (Some(server), Some(encrypt_with)) => Some(Some(EncryptedStore {
            server,
            encrypt_with,
        })),
        (Some(_), None) => {
            let what =
                format!("{secrets} stored at a server only in encrypted form, but there is no key");
            report.mistake(&shared.place, what).help(
                "create one, copy it to each machine, and name it: `(umask 077; openssl rand 32 > \
                 cluster.key)` and encrypt_with = \"cluster.key\"",
            );
            None
        }
        (None, Some(_)) => {
            report
                .warning(
                    &encrypt_with.place,
                    "`encrypt_with` has no effect without `shared`",
                )
                .help("name the server with `shared`, or leave this out");
            Some(None)
        }
    }
}
