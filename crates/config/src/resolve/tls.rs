//! TLS: where the certificates of listeners are and whether they can be served, and how
//! endpoints are verified.

use std::fs::Metadata;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;

use evenkeel_net::Address;
use evenkeel_tls::{Authorities, Certificate, Certificates, Source, UnixTime, reading};

use super::{others_may_read, warn_of_secret};
use crate::diagnostics::Report;
use crate::location::Location;
use crate::setting::{Field, OneOrMore, Placed};
use crate::surroundings::{NameLookup, Surroundings, absolute};
use crate::tree::SourcePlace;
use crate::value::{Destination, EndpointAddress, FilePath};
use crate::written::{
    CertificateTable, ClientCertificates, ClientCertificatesTable, File, ListenerTls,
    ListenerTlsParts, Switch, UpstreamTable, UpstreamTlsTable,
};
use crate::{ClientProtocol, Redirect, Trust, UpstreamTls};

/// Builds the TLS of each listener, in order.
pub(super) fn listeners(
    file: &File,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Vec<Option<ListenerTls>>> {
    let mut all = Vec::new();
    for listener in file.listener.value.iter().flatten() {
        let Some(table) = &listener.tls.value else {
            // A mistake in a written table is reported already.
            all.push((!listener.tls.written).then_some(None));
            continue;
        };
        let written = match &table.certificates.value {
            Some(written) => &written.0[..],
            None if table.certificates.written => {
                all.push(None);
                continue;
            }
            None => &[],
        };
        let acme = table.acme.value.as_ref();
        if written.is_empty() && acme.is_some_and(|it| it.table().is_none()) {
            report
                .mistake(&table.certificates.place, "there is no certificate")
                .help(
                    "name its files: certificates = [{ chain = \"site.pem\", key = \"site.key\" \
                    }], or order it by ACME: acme = \"admin@example.com\"",
                );
        }
        let sources = written.iter().map(|it| source(it, surroundings, report));
        let sources: Vec<_> = sources.collect();
        let sources: Option<Vec<_>> = sources.into_iter().collect();
        let client = match &table.client.value {
            None if table.client.written => None,
            None => Some(None),
            Some(client) => clients(client, surroundings, report).map(Some),
        };
        let key_log = match &table.key_log.value {
            None if table.key_log.written => None,
            None => Some(None),
            Some(path) => {
                report
                    .warning(
                        &path.place,
                        "anyone who can read this file can decrypt all connections",
                    )
                    .help("remove it when you have found the fault");
                let absolute = absolute(&path.value.0, &path.place, surroundings.folder, report);
                let found = absolute.as_ref().and_then(|it| std::fs::metadata(it).ok());
                let is_no_file = |it: Metadata| it.is_dir() || it.file_type().is_fifo();
                if surroundings.lookup != NameLookup::Skip && found.is_some_and(is_no_file) {
                    report.mistake(&path.place, "write a regular file, not a folder or a pipe");
                }
                absolute.map(Some)
            }
        };
        all.push(sources.zip(client).and_then(|(certificates, client)| {
            let tls = table.resolve_with(ListenerTlsParts {
                certificates,
                // Hosts of routes are known later.
                ordered: Vec::new(),
                is_on_demand: false,
                key_log: key_log?,
                client,
                strict_transport: table.strict_transport()?,
                ciphers: chosen(&table.ciphers, |it| it.0)?,
                groups: chosen(&table.groups, |it| it.0)?,
            })?;
            if tls.early_data && tls.client.is_some() {
                report
                    .mistake(
                        &table.early_data.place,
                        "early data arrives before the certificate of the client",
                    )
                    .help("leave out `early_data` or `client`");
            }
            if tls.early_data && listener.protocol.value == Some(ClientProtocol::Tcp) {
                report
                    .mistake(
                        &table.early_data.place,
                        "early data can be replayed, and over TCP Evenkeel cannot tell whether \
                         that is safe",
                    )
                    .help("leave it out, or set protocol = \"http\"");
            }
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

/// The port of HTTPS: the well-known one, unless the listeners with TLS have another one.
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

/// Builds the TLS to the endpoints of an upstream; `Some(None)` is plain text.
pub(super) fn upstream(
    it: &UpstreamTable,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Option<UpstreamTls>> {
    let table = match it.tls.value.as_ref()? {
        Switch::Off => return Some(None),
        Switch::On(table) => table,
    };
    if !table.name.written {
        check_sockets(it, report);
    }
    let trust = trust(table, &it.tls.place, surroundings, report);
    let certificate = match &table.certificate.value {
        None => Some(None),
        Some(shown) => {
            let chain = shown.chain.value.as_ref()?;
            let key = shown.key.value.as_ref().unwrap_or(chain);
            let mut path = |it: &Placed<FilePath>| {
                absolute(&it.value.0, &it.place, surroundings.folder, report)
            };
            let source = Source::Pair {
                chain: path(chain)?,
                key: path(key)?,
            };
            if surroundings.lookup != NameLookup::Skip {
                look(&source, &shown.place, report);
            }
            Some(Some(source))
        }
    };
    let pins = table.pins.value.as_ref()?.iter();
    Some(Some(UpstreamTls {
        trust: trust?,
        name: table.name.value.as_ref().map(|it| it.0.clone()),
        certificate: certificate?,
        pins: pins.map(|it| it.value).collect(),
    }))
}

/// Reports endpoints whose address is nothing that a certificate could be for.
fn check_sockets(it: &UpstreamTable, report: &mut Report) {
    for endpoint in it.endpoints.value.iter().flatten() {
        let address = endpoint.value.0.address.value.as_ref();
        let is_socket = |it: &&Placed<EndpointAddress>| matches!(&it.value.destination, Destination::Address(at) if at.is_unix());
        if let Some(socket) = address.filter(is_socket) {
            report
                .mistake(&socket.place, "no certificate can name a Unix socket")
                .related(&it.tls.place, "this TLS has no `name`")
                .help("write the name in the certificates: tls = { name = \"app.internal\" }");
        }
    }
}

/// How certificates of endpoints are verified. Reports files that can't be used.
fn trust(
    table: &UpstreamTlsTable,
    place: &SourcePlace,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Trust> {
    let is_looked_at = surroundings.lookup != NameLookup::Skip;
    let verify = table.verify.value.as_ref()?;
    let (ca, crl) = table.authorities(surroundings.folder, report)?;
    if !verify.value {
        if table.ca.written || table.crl.written {
            let place = if table.ca.written {
                &table.ca.place
            } else {
                &table.crl.place
            };
            report
                .mistake(place, "this has no effect, because `verify` is false")
                .related(&verify.place, "verification is off")
                .help("remove one of them");
        } else if table.pins.value.as_ref().is_some_and(Vec::is_empty) {
            report
                .warning(
                    &verify.place,
                    "certificates of endpoints are not verified: anyone on the network path can \
                     read and change all traffic",
                )
                .help(
                    "name the file of the authority, or of a self-signed certificate: ca = \
                     \"FILE\"",
                );
        }
        return Some(Trust::Unverified);
    }
    if !table.ca.written {
        if table.crl.written {
            report
                .mistake(&table.crl.place, "lists of revoked certificates need `ca`")
                .help("name the file of the authority that issued the list: ca = \"FILE\"");
        } else if is_looked_at && let Err(error) = Authorities::system_once() {
            report
                .mistake(place, error.to_string())
                .help("name the file of an authority: tls = { ca = \"FILE\" }");
        }
        return Some(Trust::System);
    }
    if is_looked_at && let Err(error) = Authorities::read(&ca, &crl) {
        report.mistake(&table.ca.place, error.to_string());
    }
    Some(Trust::Files { ca, crl })
}

fn source(
    table: &CertificateTable,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Source> {
    let source = table.source(surroundings.folder, report)?;
    // A folder with very many is read by the process that serves them, once.
    let is_read = match (surroundings.lookup, &source) {
        (NameLookup::Skip, _) | (NameLookup::Later, Source::Folder(_) | Source::Expected(_)) => {
            false
        }
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
            Source::Folder(_) | Source::Expected(_) => report.warning(place, &*trouble.text),
        };
    }
    if certificates.is_empty() && matches!(source, Source::Folder(_)) {
        report.mistake(place, "there is no certificate in this folder");
    }
    warn_of_key_readers(&certificates, place, report);
    let now = UnixTime::now();
    for certificate in certificates.all() {
        let path = certificate.path().display();
        if let Some(wait) = certificate.begins_in(now) {
            let hours = wait.div_ceil(3600);
            report
                .warning(
                    place,
                    format!(
                        "the certificate in {path} is not valid yet: it will be in {hours} hours"
                    ),
                )
                .help("clients refuse it until then; check the clock of this machine");
        }
        let Some(left) = certificate.ends_soon(now) else {
            continue;
        };
        if left == 0 {
            report.warning(place, format!("the certificate in {path} has expired"));
        } else {
            let hours = left / 3600;
            report.warning(
                place,
                format!("the certificate in {path} expires in {hours} hours"),
            );
        }
    }
}

/// Warns of private keys that other users may read: of a folder that has many, of the first.
fn warn_of_key_readers(certificates: &Certificates, place: &SourcePlace, report: &mut Report) {
    let is_public = |it: &&Arc<Certificate>| others_may_read(it.key_path());
    let mut public = certificates.all().iter().filter(is_public);
    let Some(first) = public.next() else {
        return;
    };
    let path = first.key_path().display();
    let keys = match public.count() {
        0 => format!("the private key in {path}"),
        more => format!("the private keys in {path} and {more} more files"),
    };
    warn_of_secret(&keys, first.key_path(), place, report);
}
