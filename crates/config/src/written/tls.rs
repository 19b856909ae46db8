//! TLS: the certificates of a listener and what it agrees on with its clients, and how
//! connections to endpoints are secured.

use std::path::{Path, PathBuf};

use evenkeel_tls::{CipherSuite, Group, Pin, Preset, Source, UnknownName};

use super::acme::ListenerAcme;
use super::forms::Switch;
use crate::ClientAuthMode;
use crate::cache_value::WholeSeconds;
use crate::diagnostics::Report;
use crate::file_value::FolderPath;
use crate::setting::{Field, OneOrMore, Placed, options};
use crate::surroundings::absolute;
use crate::tls_value::{CipherName, GroupName};
use crate::value::{FilePath, ServerName};

options! {
    /// TLS with the clients of a listener.
    pub struct ListenerTlsTable as "the TLS of a listener"
    for #[derive(Debug, Clone, PartialEq, Eq)] ListenerTls with ListenerTlsParts {
        /// Sources of certificates, in the order written.
        certificates: Vec<Source>,
        /// Names that certificates are ordered for by ACME.
        ordered: Vec<String>,
        /// Clients may have certificates ordered for further names.
        is_on_demand: bool,
        /// The value of `Strict-Transport-Security`; `None` for none.
        strict_transport: Option<String>,
        /// Cipher suites in place of those of the preset; empty for those.
        ciphers: Vec<CipherSuite>,
        /// Groups in place of those of the preset; empty for those.
        groups: Vec<Group>,
        /// A file for the secrets of its connections; `None` for none.
        key_log: Option<PathBuf>,
        /// Certificates of clients; `None` where none is asked for.
        client: Option<ClientCertificates>,
    } {
        /// Certificates with their keys. A client gets the one for the name that it asks
        /// for (SNI): by the exact name, then by a wildcard. Of several for a name it
        /// gets an ECDSA one where it can, else an RSA one. Files that change are read
        /// again; one that is broken then leaves the last good certificate in use.
        certificates: OneOrMore<CertificateTable> = Optional("those of `acme`") => by_hand,
        /// Certificates that are ordered by ACME and renewed in time, from Let's Encrypt
        /// unless [`acme`](#acme) says otherwise: the e-mail address of the account,
        /// `true` for an account without one, or a table.
        acme: ListenerAcme = Default("false") => by_hand,
        /// Answer to a client that asks for a name without a certificate.
        unknown_name: UnknownName = Default("'default'"),
        /// Versions, cipher suites and groups, as Mozilla recommends them.
        preset: Preset = Default("'intermediate'"),
        /// Cipher suites in place of those of `preset`, the preferred one first, by IANA's
        /// names or OpenSSL's. A version of TLS that has none in the list keeps its own.
        ciphers: OneOrMore<Placed<CipherName>> = Optional("those of `preset`") => by_hand,
        /// Groups of the key exchange in place of those of `preset`, the preferred one
        /// first, such as `X25519MLKEM768` and `P-256`.
        groups: OneOrMore<Placed<GroupName>> = Optional("those of `preset`") => by_hand,
        /// Lets clients that come again send their first request before the handshake is
        /// over (0-RTT): a round trip less. Somebody who has recorded it can send a copy:
        /// GET, HEAD, OPTIONS and TRACE without a body are answered at once, with
        /// `Early-Data: 1` for endpoints, and others wait for the end of the handshake.
        /// Sessions are kept in memory then, each for one use, and not in tickets.
        early_data: bool = Default("false"),
        /// Certificates of clients (mutual TLS): who issues them.
        client: ClientCertificatesTable = Optional("none is asked for") => by_hand,
        /// A file that the secrets of all connections are appended to, in the form of
        /// `SSLKEYLOGFILE`. Whoever reads it can decrypt them: only to look for a fault.
        key_log: Placed<FilePath> = Optional("none") => by_hand,
        /// Has browsers come by HTTPS alone from their first visit on (HSTS,
        /// `Strict-Transport-Security`): a table, or `true` for one with its defaults.
        /// An endpoint's own field is passed on instead. Browsers keep
        /// to it for `max_age`: they do not come by plain HTTP again, even if the
        /// certificate is gone.
        hsts: Switch<HstsTable> = Default("false") => by_hand,
    }
}

options! {
    /// The certificates that clients show.
    pub struct ClientCertificatesTable as "the certificates of clients"
    for #[derive(Debug, Clone, PartialEq, Eq)] ClientCertificates with ClientCertificatesParts {
        /// Files with the certificates of those who issue them.
        ca: Vec<PathBuf>,
        /// Files with lists of revoked ones.
        crl: Vec<PathBuf>,
    } {
        /// PEM files with the certificates of the authorities that issue them. They are
        /// read again when they change.
        ca: OneOrMore<Placed<FilePath>> = Required => by_hand,
        /// PEM files with the certificates that the authorities have revoked (CRLs). Each
        /// authority needs one that is current: without it none of its certificates is
        /// taken. They are read again when they change.
        crl: OneOrMore<Placed<FilePath>> = Optional("none is revoked") => by_hand,
        /// Whether a client without a certificate is refused.
        mode: ClientAuthMode = Default("'required'"),
        /// Whether endpoints get the certificate, as `Client-Cert` (RFC 9440).
        forward: bool = Default("false"),
    }
}

options! {
    /// The policy that browsers follow (RFC 6797).
    pub struct HstsTable as "the HSTS of a listener" {
        /// For how long.
        max_age: WholeSeconds = Default("'365d'"),
        /// Whether the hosts below this one come by HTTPS too.
        subdomains: bool = Default("false"),
        /// Whether the makers of browsers may list the host. They take it off the list
        /// only after months.
        preload: bool = Default("false"),
    }
}

impl HstsTable {
    /// The value of the field.
    fn value(&self) -> Option<String> {
        let mut value = format!("max-age={}", self.max_age.value?.0.as_secs());
        if self.subdomains.value? {
            value.push_str("; includeSubDomains");
        }
        if self.preload.value? {
            value.push_str("; preload");
        }
        Some(value)
    }
}

impl ClientCertificatesTable {
    /// The same with paths from `folder`.
    pub(crate) fn resolved(
        &self,
        folder: &Path,
        report: &mut Report,
    ) -> Option<ClientCertificates> {
        let (ca, crl) = (
            paths(&self.ca, folder, report)?,
            paths(&self.crl, folder, report)?,
        );
        self.resolve_with(ClientCertificatesParts { ca, crl })
    }
}

/// The files of a list, with paths from `folder`.
pub(crate) fn paths(
    list: &Field<OneOrMore<Placed<FilePath>>>,
    folder: &Path,
    report: &mut Report,
) -> Option<Vec<PathBuf>> {
    let list = list.value.as_ref().map_or(&[][..], |it| &it.0);
    let paths = list
        .iter()
        .map(|it| absolute(&it.value.0, &it.place, folder, report));
    let paths: Vec<_> = paths.collect();
    paths.into_iter().collect()
}

impl ListenerTlsTable {
    /// Value of `Strict-Transport-Security`; `Some(None)` for no field.
    pub(crate) fn strict_transport(&self) -> Option<Option<String>> {
        match self.hsts.value.as_ref()? {
            Switch::Off => Some(None),
            Switch::On(table) => table.value().map(Some),
        }
    }
}

options! {
    /// A certificate, or a folder of certificates.
    pub struct CertificateTable as "a certificate" {
        /// A PEM file with the certificate first, then its issuers.
        chain: Placed<FilePath> = Optional("`folder` in place of it"),
        /// A PEM file with its key; no output shows it.
        key: Placed<FilePath> = Optional("in the file of `chain`"),
        /// A folder of certificates: `NAME.pem` with chain and key, `NAME.crt` with
        /// `NAME.key`, and folders with `fullchain.pem` and `privkey.pem`.
        folder: Placed<FolderPath> = Optional("`chain` in place of it"),
    }
}

impl CertificateTable {
    /// Its source, with paths from `folder`. Reports keys that exclude each other.
    pub(crate) fn source(&self, folder: &Path, report: &mut Report) -> Option<Source> {
        let mut path = |it: &Path, place| absolute(it, place, folder, report);
        match (&self.chain.value, &self.key.value, &self.folder.value) {
            (Some(chain), key, None) => {
                let key = key.as_ref().unwrap_or(chain);
                Some(Source::Pair {
                    chain: path(&chain.value.0, &chain.place)?,
                    key: path(&key.value.0, &key.place)?,
                })
            }
            (None, None, Some(from)) => Some(Source::Folder(path(&from.value.0, &from.place)?)),
            (chain, key, Some(from)) => {
                let other = chain.as_ref().or(key.as_ref());
                let found = report.mistake(&from.place, "a certificate is a file or in a folder");
                if let Some(other) = other {
                    found.related(&other.place, "the file");
                }
                found.help(
                    "write two: [{ chain = \"FILE\", key = \"FILE\" }, { folder = \"FOLDER\" }]",
                );
                None
            }
            (None, _, None) => {
                report
                    .mistake(&self.place, "this says of no certificate where it is")
                    .help(
                        "write `chain = \"FILE\"` with `key = \"FILE\"`, or `folder = \"FOLDER\"`",
                    );
                None
            }
        }
    }
}

options! {
    /// TLS to the endpoints of an upstream.
    pub struct UpstreamTlsTable as "the TLS of an upstream" {
        /// PEM files with the authorities that may vouch for the certificates of
        /// endpoints. An endpoint may also show a certificate that stands here itself. They
        /// are read again when they change.
        ca: OneOrMore<Placed<FilePath>> = Optional("the authorities that the system trusts"),
        /// PEM files with the certificates that the authorities of `ca` have revoked
        /// (CRLs). Each authority needs one that is current: without it none of its
        /// certificates is accepted. They are read again when they change.
        crl: OneOrMore<Placed<FilePath>> = Optional("none is revoked"),
        /// The name or the IP address that certificates must be for. A name is sent to
        /// the endpoint (SNI).
        name: ServerName = Optional("the host of each endpoint"),
        /// The certificate that is shown to endpoints that ask for one. Files that change
        /// are read again; a broken one leaves the last good certificate in use.
        certificate: ClientCertificateTable = Optional("none"),
        /// The public keys that endpoints may have, each as `sha256/` and the SHA-256 of
        /// the SubjectPublicKeyInfo in base64. One of them is enough. They count beside
        /// `ca` and `name`, and also with `verify = false`.
        pins: Vec<Placed<Pin>> = Default("[]"),
        /// Whether certificates are verified. With `false` whoever is between here and an
        /// endpoint can read and change everything.
        verify: Placed<bool> = Default("true"),
    }
}

options! {
    /// A certificate that is shown to endpoints.
    pub struct ClientCertificateTable as "a certificate" {
        /// A PEM file with the certificate, and behind it those that it was issued by.
        chain: Placed<FilePath> = Required,
        /// A PEM file with its key; no output shows it.
        key: Placed<FilePath> = Optional("in the file of `chain`"),
    }
}

impl UpstreamTlsTable {
    /// The files of `ca` and of `crl`, with paths from `folder`.
    pub(crate) fn authorities(
        &self,
        folder: &Path,
        report: &mut Report,
    ) -> Option<(Vec<PathBuf>, Vec<PathBuf>)> {
        Some((
            paths(&self.ca, folder, report)?,
            paths(&self.crl, folder, report)?,
        ))
    }
}
