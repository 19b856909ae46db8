//! ACME: the issuers, and the names to order certificates for.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use evenkeel_acme::key_file::NoKey;
use evenkeel_acme::{DnsSettings, ExternalAccount as AccountKey};
use evenkeel_policy::route::{Condition, HostPattern, Rule};
use evenkeel_tls::Authorities;
use rustix::fs::Access;

use super::{report_unreadable, shared_store, warn_of_readers};
use crate::acme_value::{DirectoryUrl, is_host_name};
use crate::check::surroundings::warn;
use crate::diagnostics::Report;
use crate::machine::{Obstacle, user};
use crate::setting::{Field, Placed};
use crate::surroundings::{NameLookup, Surroundings, absolute, read_file};
use crate::tree::SourcePlace;
use crate::value::{FilePath, Text};
use crate::written::{
    Acme, AcmeParts, AcmeTable, DnsTable, ExternalAccount, ExternalAccountTable, File, Issuer,
    ListenerAcmeTable, ListenerTable, OnDemand, OnDemandTable,
};
use crate::{Challenge, ClientProtocol, DnsUpdates};

/// The orders of a listener, if it has any.
fn of_listener(listener: &ListenerTable) -> Option<&ListenerAcmeTable> {
    listener.tls.value.as_ref()?.acme.value.as_ref()?.table()
}

/// Builds the issuers and the orders; `Some(None)` if no listener orders anything.
pub(super) fn acme(
    file: &File,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Option<Acme>> {
    let table = file.acme.value.as_ref()?;
    let listeners = file.listener.value.iter().flatten();
    let ordering: Vec<_> = listeners.clone().filter_map(of_listener).collect();
    if ordering.is_empty() {
        let is_mistaken = |it: &ListenerTable| {
            it.tls.written
                && it
                    .tls
                    .value
                    .as_ref()
                    .is_none_or(|it| it.acme.value.is_none())
        };
        if file.acme.written && !listeners.clone().any(is_mistaken) {
            report.warning(&table.place, "no listener uses ACME").help(
                "add `acme` to the `tls` of a listener: tls = { acme = \"admin@example.com\" }",
            );
        }
        return Some(None);
    }
    let mut emails = ordering.iter().filter_map(|it| it.email.value.as_ref());
    let email = emails.next();
    for other in emails.filter(|it| email.is_some_and(|first| first.value != it.value)) {
        report
            .mistake(
                &other.place,
                "a second e-mail address for ACME: all listeners share one account",
            )
            .related(&email?.place, "the first one");
    }
    let (server, key) = (&table.shared, &table.encrypt_with);
    let secrets = "certificates and their keys are";
    let shared = shared_store::encrypted(server, key, secrets, surroundings, report);
    let dns = match &table.dns.value {
        None if table.dns.written => return None,
        None => None,
        Some(dns) => Some(dns_updates(dns, surroundings, report)?),
    };
    let challenges = challenges(table, file, report)?;
    let first = (&table.directory, &table.ca, &table.profile);
    let mut issuers = vec![issuer(
        first,
        &table.external_account,
        surroundings,
        report,
    )?];
    for it in table.fallback.value.as_ref()? {
        let further = (&it.directory, &it.ca, &it.profile);
        issuers.push(issuer(further, &it.external_account, surroundings, report)?);
    }
    let on_demand = match &table.on_demand.value {
        None if table.on_demand.written => return None,
        None => None,
        Some(on_demand) => Some(names_on_demand(on_demand, report)?),
    };
    let storage = table.storage.value.as_ref()?;
    let storage = absolute(
        &storage.value.0,
        &storage.place,
        surroundings.folder,
        report,
    )?;
    if surroundings.lookup != NameLookup::Skip {
        let place = if table.storage.written {
            &table.storage.place
        } else {
            &ordering.first()?.place
        };
        match Obstacle::of_folder(&storage) {
            Some(obstacle @ Obstacle::NotFolder(_)) => {
                let advice = obstacle.advice();
                report.mistake(place, obstacle.to_string()).help(advice);
            }
            obstacle => warn(obstacle, place, report),
        }
    }
    let acme = table.resolve_with(AcmeParts {
        storage,
        shared: shared?,
        email: email.map(|it| it.value.0.clone()),
        issuers,
        challenges,
        dns,
        on_demand,
    });
    acme.map(Some)
}

/// Builds an issuer of its directory, its authorities, its profile and the account there.
fn issuer(
    (directory, ca, profile): (
        &Field<Placed<DirectoryUrl>>,
        &Field<Placed<FilePath>>,
        &Field<Text>,
    ),
    account: &Field<ExternalAccountTable>,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Issuer> {
    let authorities = path(ca.value.as_ref(), surroundings, report)?;
    if surroundings.lookup != NameLookup::Skip
        && let Some(path) = &authorities
        && let Err(error) = Authorities::read(std::slice::from_ref(path), &[])
    {
        report.mistake(&ca.place, error.to_string());
    }
    Some(Issuer {
        directory: directory.value.as_ref()?.value.0.clone(),
        ca: authorities,
        profile: profile.value.as_ref().map(|it| it.0.clone()),
        external_account: external_account_of(account.value.as_ref(), surroundings, report)?,
    })
}

/// A path from the folder of the configuration, if there is one.
fn path(
    written: Option<&Placed<FilePath>>,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Option<PathBuf>> {
    match written {
        None => Some(None),
        Some(it) => absolute(&it.value.0, &it.place, surroundings.folder, report).map(Some),
    }
}

/// The same of a file that is looked at, where this machine is asked.
fn looked_at(
    written: Option<&Placed<FilePath>>,
    surroundings: Surroundings<'_>,
    report: &mut Report,
    look: fn(&Path, &SourcePlace, &mut Report),
) -> Option<Option<PathBuf>> {
    let path = path(written, surroundings, report)?;
    if surroundings.lookup != NameLookup::Skip
        && let (Some(path), Some(Placed { place, .. })) = (&path, written)
    {
        look(path, place, report);
    }
    Some(path)
}

/// Reports a file without the key of a name server.
fn look_at_server_key(path: &Path, place: &SourcePlace, report: &mut Report) {
    let nowhere = SocketAddr::from(([0; 4], 0));
    let read = |text: &str| DnsSettings::with_key_file(nowhere, text).map(drop);
    look_at_key(path, place, read, report);
}

/// Reports a file without the key of an external account.
fn look_at_account_key(path: &Path, place: &SourcePlace, report: &mut Report) {
    let read = |text: &str| AccountKey::decode_key(text).map(drop);
    look_at_key(path, place, read, report);
}

/// Reports a file in which no key can be read.
fn look_at_key(
    path: &Path,
    place: &SourcePlace,
    read: impl Fn(&str) -> Result<(), NoKey>,
    report: &mut Report,
) {
    warn_of_readers(path, place, "the key", report);
    match read_file(path) {
        Err(error) => {
            report_unreadable(path, place, &error, report);
        }
        Ok(bytes) => {
            if let Err(why) = read(&String::from_utf8_lossy(&bytes)) {
                report.mistake(place, format!("{}: {why}", path.display()));
            }
        }
    }
}

/// Reports a program that cannot be run.
fn look_at_program(path: &Path, place: &SourcePlace, report: &mut Report) {
    let shown = path.display();
    let why = match std::fs::metadata(path) {
        Err(error) => error.to_string(),
        Ok(found) if !found.is_file() => "it is not a file".to_owned(),
        Ok(_) => match rustix::fs::access(path, Access::EXEC_OK) {
            Ok(()) => return,
            Err(error) => {
                report
                    .mistake(place, format!("{shown} cannot be run: {error}"))
                    .help(format!("let user {} run it: `chmod +x {shown}`", user()));
                return;
            }
        },
    };
    report.mistake(place, format!("{shown} cannot be run: {why}"));
}

fn external_account_of(
    written: Option<&ExternalAccountTable>,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Option<ExternalAccount>> {
    let Some(table) = written else {
        return Some(None);
    };
    Some(Some(ExternalAccount {
        id: table.id.value.as_ref()?.0.clone(),
        key_file: looked_at(
            table.key_file.value.as_ref(),
            surroundings,
            report,
            look_at_account_key,
        )??,
    }))
}

fn names_on_demand(table: &OnDemandTable, report: &mut Report) -> Option<OnDemand> {
    let names = table.names.value.iter().flat_map(|it| &it.0);
    let on_demand = OnDemand {
        names: names.map(|it| it.value.0.clone()).collect(),
        ask: table.ask.value.as_ref().map(|it| it.value.0.clone()),
    };
    if !table.names.written && !table.ask.written {
        report
            .mistake(
                &table.place,
                "`on_demand` needs `names` or `ask`: which names may have a certificate",
            )
            .help("write { names = \"*.example.com\" } or { ask = \"http://127.0.0.1:9000/allowed\" }");
        return None;
    }
    Some(on_demand)
}

fn dns_updates(
    table: &DnsTable,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<DnsUpdates> {
    let (key_file, hook) = (table.key_file.value.as_ref(), table.hook.value.as_ref());
    match (
        &table.server.value,
        looked_at(key_file, surroundings, report, look_at_server_key)?,
        looked_at(hook, surroundings, report, look_at_program)?,
    ) {
        (Some(server), Some(key_file), None) => Some(DnsUpdates::Server {
            address: server.0,
            key_file,
        }),
        (None, None, Some(hook)) => Some(DnsUpdates::Hook(hook)),
        _ => {
            let fields = [
                (table.server.written, table.server.value.is_some()),
                (table.key_file.written, key_file.is_some()),
                (table.hook.written, hook.is_some()),
            ];
            // A mistaken value is reported already.
            if fields.iter().any(|(written, is_read)| *written && !is_read) {
                return None;
            }
            if fields.iter().any(|(written, _)| *written) {
                report.mistake(&table.place, "`dns` is either a name server with its key, or a \
                    program")
            } else {
                report.mistake(&table.place, "`dns` needs `server` or `hook`: what writes the \
                    records")
            }
            .help("write { server = \"10.0.0.53\", key_file = \"acme.key\" } or { hook = \"PROGRAM\" }");
            None
        }
    }
}

/// The ways to show that a name is ours, the preferred one first. A listener that orders
/// certificates answers `tls-alpn-01` in any case.
fn challenges(table: &AcmeTable, file: &File, report: &mut Report) -> Option<Vec<Challenge>> {
    let mut listeners = file.listener.value.iter().flatten();
    let has_plain_http =
        listeners.any(|it| it.protocol.value == Some(ClientProtocol::Http) && !it.tls.written);
    if let Some(chosen) = &table.challenges.value {
        for it in &chosen.0 {
            if it.value == Challenge::Http01 && !has_plain_http {
                report
                    .mistake(
                        &it.place,
                        "no listener answers `http-01`, which arrives by plain HTTP",
                    )
                    .help("add one:\n[[listener]]\nbind = \":80\"\nredirect_to_https = true");
            }
            if it.value == Challenge::Dns01 && !table.dns.written {
                report
                    .mistake(
                        &it.place,
                        "`dns-01` needs `dns`: what writes its DNS records",
                    )
                    .help(
                        "add to `[acme]`: dns = { server = \"10.0.0.53\", key_file = \"acme.key\" \
                        } or dns = { hook = \"PROGRAM\" }",
                    );
            }
        }
        return Some(chosen.0.iter().map(|it| it.value).collect());
    }
    if table.challenges.written {
        return None;
    }
    Some(if table.dns.written {
        vec![Challenge::Dns01]
    } else if has_plain_http {
        vec![Challenge::Http01, Challenge::TlsAlpn01]
    } else {
        vec![Challenge::TlsAlpn01]
    })
}

/// Whether clients of a listener may ask for names that are not known beforehand.
pub(super) fn is_on_demand(listener: &ListenerTable, acme: Option<&Acme>) -> bool {
    of_listener(listener).is_some() && acme.is_some_and(|it| it.on_demand.is_some())
}

/// The names that a listener orders certificates for.
///
/// Without names of its own, these are the hosts of the rules that its clients may match.
pub(super) fn names(
    listener: &ListenerTable,
    index: usize,
    rules: &[Rule],
    acme: Option<&Acme>,
    report: &mut Report,
) -> Vec<String> {
    let (Some(table), Some(acme)) = (of_listener(listener), acme) else {
        return Vec::new();
    };
    let has_dns = acme.challenges.contains(&Challenge::Dns01);
    if let Some(written) = &table.names.value {
        for it in &written.0 {
            if it.value.0.starts_with("*.") && !has_dns {
                report
                    .mistake(&it.place, "a wildcard certificate needs `dns-01`")
                    .help("add `dns` to `[acme]`, which writes its DNS records");
            }
        }
        return written.0.iter().map(|it| it.value.0.clone()).collect();
    }
    let rules = rules.iter().filter(|it| it.may_meet(index));
    let conditions = rules.flat_map(Rule::wanted_conditions);
    let hosts = conditions.filter_map(|it| match it {
        Condition::Host(hosts) => Some(&hosts.0),
        // The name that a client of TLS asks for.
        Condition::Sni(names) => Some(&names.0),
        _ => None,
    });
    let hosts: BTreeSet<_> = hosts.flatten().map(written_host).collect();
    let (names, no_names): (Vec<_>, Vec<_>) = hosts
        .into_iter()
        .partition(|it| is_host_name(it.strip_prefix("*.").unwrap_or(it)));
    let (names, wildcards): (Vec<_>, Vec<_>) = names
        .into_iter()
        .partition(|it| has_dns || !it.starts_with("*."));
    let mut left_out = |name: &str, why: &str, help: &str| {
        let what = format!("no certificate is ordered for `{name}`: {why}");
        report.warning(&table.place, what).help(help);
    };
    for name in &wildcards {
        left_out(
            name,
            "a wildcard certificate needs `dns-01`",
            "add `dns` to `[acme]`, which writes its DNS records, or list the `names` of `acme`",
        );
    }
    for name in &no_names {
        left_out(
            name,
            "it is not a DNS name",
            "list the `names` of `acme`, or add a certificate of your own for it",
        );
    }
    let has_none = names.is_empty() && wildcards.is_empty() && no_names.is_empty();
    if has_none && acme.on_demand.is_none() {
        report
            .mistake(
                &table.place,
                "no route of this listener has a host, so it is not known for which names to \
                 order certificates",
            )
            .help(
                "add `match = { host = \"www.example.com\" }` to a route, or list the names here: \
                acme = { names = [\"www.example.com\"] }",
            );
    }
    names
}

/// Hosts of a rule as they are written.
fn written_host(host: &HostPattern) -> String {
    match host {
        HostPattern::Exact(name) => String::from_utf8_lossy(name).into_owned(),
        HostPattern::Suffix(end) => {
            let end = end.strip_prefix(b".").unwrap_or(end);
            format!("*.{}", String::from_utf8_lossy(end))
        }
        HostPattern::Regex(regex) => regex.to_string(),
    }
}
