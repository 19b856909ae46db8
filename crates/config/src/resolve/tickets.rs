//! Session tickets: the files of their keys.

use std::path::PathBuf;
use std::time::Duration;

use evenkeel_tls::FileKeys;

use super::{report_key, shared_store, warn_of_readers};
use crate::EncryptedStore;
use crate::diagnostics::Report;
use crate::surroundings::{NameLookup, Surroundings, absolute};
use crate::written::{File, Tickets, TicketsParts, TicketsTable};

/// The longest lifetime of a ticket (RFC 8446 §4.6.1).
const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// Builds the settings of tickets. Reports files that can't be used.
pub(super) fn resolve(
    file: &File,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Tickets> {
    let table = file.tickets.value.as_ref()?;
    if table.lifetime.value?.0 > LONGEST {
        report
            .mistake(
                &table.lifetime.place,
                "clients keep tickets for 7 days at most",
            )
            .help("write \"7d\" or less");
    }
    let keys = keys(table, surroundings, report);
    let shared = shared(table, surroundings, report);
    table.resolve_with(TicketsParts {
        keys: keys?,
        shared: shared?,
    })
}

/// How keys are shared: `Some(None)` is not at all.
fn shared(
    table: &TicketsTable,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Option<EncryptedStore>> {
    let (server, key) = (&table.shared, &table.encrypt_with);
    let shared = shared_store::encrypted(server, key, "keys of tickets are", surroundings, report)?;
    if shared.is_some() && table.keys.written {
        report
            .mistake(
                &table.shared.place,
                "keys are either in files or at a server",
            )
            .related(&table.keys.place, "the files")
            .help("leave `keys` out, or `shared`");
    }
    Some(shared)
}

/// The files of the keys, as absolute paths.
fn keys(
    table: &TicketsTable,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Vec<PathBuf>> {
    let Some(written) = &table.keys.value else {
        return (!table.keys.written).then(Vec::new);
    };
    if table.rotation.written {
        report
            .warning(
                &table.rotation.place,
                "keys from files change when their files change, not by time",
            )
            .related(&table.keys.place, "the files")
            .help("leave `rotation` out");
    }
    let is_looked_at = surroundings.lookup != NameLookup::Skip;
    let paths = written.0.iter().map(|it| {
        let path = absolute(&it.value.0, &it.place, surroundings.folder, report)?;
        if is_looked_at {
            warn_of_readers(&path, &it.place, "the key of tickets", report);
            if let Err(error) = FileKeys::read(std::slice::from_ref(&path)) {
                report_key(&path, &it.place, &error, 80, report);
            }
        }
        Some(path)
    });
    let paths: Vec<_> = paths.collect();
    paths.into_iter().collect()
}
