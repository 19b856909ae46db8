//! The TLS of listeners: where the certificates are, and whether they can be served.

use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_net::Address;
use evenkeel_tls::{Authorities, Source, reading};

use crate::Redirect;
use crate::diagnostics::Report;
use crate::location::Location;
use crate::setting::{Field, OneOrMore, Placed};
use crate::surroundings::{NameLookup, Surroundings};
use crate::tree::SourcePlace;
use crate::written::{
    CertificateTable, ClientCertificates, ClientCertificatesTable, File, ListenerTls,
    ListenerTlsParts,
};

/// A certificate that ends within this time is warned of, in seconds: a week.
const ENDS_SOON_S: u64 = 7 * 24 * 60 * 60;

/// Builds the TLS of each listener, in order.
pub(super) fn listeners(
    file: &File,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Vec<Option<ListenerTls>>> {
    let mut all = Vec::new();
    for listener in file.listener.value.iter().flatten() {
        let Some(table) = &listener.tls.value else {
            // What is wrong with one that is written is said already.
            all.push((!listener.tls.written).then_some(None));
            continue;
        };
        let Some(written) = &table.certificates.value else {
            all.push(None);
            continue;
        };
        if written.0.is_empty() {
            report
                .mistake(&table.certificates.place, "there is no certificate")
                .help("write where one is: [{ chain = \"site.pem\", key = \"site.key\" }]");
        }
        let sources = written.0.iter().map(|it| source(it, surroundings, report));
        let sources: Vec<_> = sources.collect();
        let sources: Option<Vec<_>> = sources.into_iter().collect();
        let client = match &table.client.value {
            None if table.client.written => None,
            None => Some(None),
            Some(client) => clients(client, surroundings, report).map(Some),
        };
        all.push(sources.zip(client).and_then(|(certificates, client)| {
            let tls = table.resolve_with(ListenerTlsParts {
                certificates,
                client,
                strict_transport: table.strict_transport()?,
                ciphers: chosen(&table.ciphers, |it| it.0)?,
                groups: chosen(&table.groups, |it| it.0)?,
            })?;
            if let Err(error) = tls.policy() {
                let place = if table.groups.written && !table.ciphers.written {
                    &table.groups.place
                } else {
                    &table.ciphers.place
                };
                report.mistake(place, error.to_string());
            }
            Some(Some(tls))
        }));
    }
    all.into_iter().collect()
}

/// The items of a list that may be left out.
fn chosen<T, U>(list: &Field<OneOrMore<Placed<T>>>, item: impl Fn(&T) -> U) -> Option<Vec<U>> {
    match &list.value {
        Some(OneOrMore(items)) => Some(items.iter().map(|it| item(&it.value)).collect()),
        None => (!list.written).then(Vec::new),
    }
}

fn clients(
    table: &ClientCertificatesTable,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<ClientCertificates> {
    let clients = table.resolved(surroundings.folder, report)?;
    if surroundings.lookup != NameLookup::Skip
        && let Err(error) = Authorities::read(&clients.ca, &clients.crl)
    {
        report.mistake(&table.place, error.to_string());
        return None;
    }
    Some(clients)
}

/// The port of HTTPS (RFC 9110 §4.2.2).
const HTTPS: u16 = 443;

/// Where clients of HTTPS connect: the well-known port, unless the listeners with TLS have
/// another one.
pub(super) fn https_port(file: &File) -> u16 {
    let listeners = file.listener.value.iter().flatten();
    let listeners = listeners.filter(|it| it.tls.written);
    let ports = listeners.filter_map(|it| match it.bind.value.as_ref()?.0 {
        Address::Tcp(address) => Some(address.port()),
        Address::Unix(_) => None,
    });
    // 0 is for any port that is free.
    let ports: Vec<_> = ports.filter(|it| *it != 0).collect();
    match ports.first() {
        Some(first) if !ports.contains(&HTTPS) => *first,
        _ => HTTPS,
    }
}

/// The redirect of a request to the same URL by HTTPS.
pub(super) fn redirect(port: u16) -> Redirect {
    /// The method stays (RFC 9110 §15.4.9).
    const PERMANENT: u16 = 308;
    let location = match port {
        HTTPS => "https://$host$path$query".to_owned(),
        other => format!("https://$host:{other}$path$query"),
    };
    Redirect {
        status: PERMANENT,
        location: Location::new(&location),
    }
}

fn source(
    table: &CertificateTable,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Source> {
    let source = table.source(surroundings.folder, report)?;
    // A folder with very many is read by the process that serves them, once.
    let is_read = match (surroundings.lookup, &source) {
        (NameLookup::Skip, _) | (NameLookup::Later, Source::Folder(_)) => false,
        (NameLookup::System, _) | (NameLookup::Later, Source::Pair { .. }) => true,
    };
    if is_read {
        look(&source, &table.place, report);
    }
    Some(source)
}

/// Reports what can't be served of a source, and what ends soon.
fn look(source: &Source, place: &SourcePlace, report: &mut Report) {
    let (certificates, troubles) = reading::read(std::slice::from_ref(source), None);
    for trouble in &troubles {
        match source {
            Source::Pair { .. } => report.mistake(place, &*trouble.text),
            Source::Folder(_) => report.warning(place, &*trouble.text),
        };
    }
    if certificates.is_empty() && matches!(source, Source::Folder(_)) {
        report.mistake(place, "there is no certificate in this folder");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |it| it.as_secs());
    for certificate in certificates.all() {
        let left = certificate.not_after().as_secs().saturating_sub(now);
        let path = certificate.path().display();
        if left == 0 {
            report.warning(place, format!("the certificate in {path} has expired"));
        } else if left < ENDS_SOON_S {
            let hours = left / 3600;
            report.warning(
                place,
                format!("the certificate in {path} expires in {hours} hours"),
            );
        }
    }
}
