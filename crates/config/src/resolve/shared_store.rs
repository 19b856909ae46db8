//! A server that several processes share, and who vouches for it.

use evenkeel_tls::Authorities;

use crate::diagnostics::Report;
use crate::setting::Field;
use crate::surroundings::{NameLookup, Surroundings};
use crate::written::{Shared, paths};
use crate::{SharedStore, Trust};

/// Builds it: `Some(None)` is none. Reports files that can't be used.
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
                .mistake(&table.ca.place, "without TLS nobody vouches for the server")
                .related(&table.url.place, "its URL")
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
