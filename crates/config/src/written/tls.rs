//! TLS: the certificates and versions of a listener, and TLS to endpoints.

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
        /// Names to order certificates for by ACME.
        ordered: Vec<String>,
        /// Whether clients may have certificates ordered for further names.
        is_on_demand: bool,
        /// The value of `Strict-Transport-Security`; `None` for none.
        strict_transport: Option<String>,
        /// Cipher suites instead of those of the preset; empty for the preset's.
        ciphers: Vec<CipherSuite>,
        /// Groups instead of those of the preset; empty for the preset's.
        groups: Vec<Group>,
        /// A file for the secrets of its connections; `None` for no file.
        key_log: Option<PathBuf>,
        /// Certificates of clients; `None` if none is asked for.
        client: Option<ClientCertificates>,
    } {
        /// Certificates with their keys. A client gets the certificate for the name that it
        /// asks for (SNI): by the exact name, then by a wildcard. If a name has several, the
        /// client gets an ECDSA certificate if it can use one, else an RSA one. Files that
        /// change are read again. If a file is broken, the last good certificate stays in use.
        certificates: OneOrMore<CertificateTable> = Optional("those of `acme`") => by_hand,
        /// Certificates that are ordered by ACME and renewed in time: the e-mail address of the
        /// account, `true` for an account without one, or a table. The issuer is Let's Encrypt
        /// unless [`acme`](#acme) names another.
        acme: ListenerAcme = Default("false") => by_hand,
        /// The answer to a client that asks for a name without a certificate.
        unknown_name: UnknownName = Default("'default'"),
        /// Versions, cipher suites and groups, as Mozilla recommends them.
        preset: Preset = Default("'intermediate'"),
        /// Cipher suites instead of those of `preset`, the preferred one first, by the names
        /// of IANA or OpenSSL. A version of TLS without a suite in the list keeps the suites of
        /// `preset`.
        ciphers: OneOrMore<Placed<CipherName>> = Optional("those of `preset`") => by_hand,
        /// Groups of the key exchange instead of those of `preset`, the preferred one first,
        /// such as `X25519MLKEM768` and `P-256`.
        groups: OneOrMore<Placed<GroupName>> = Optional("those of `preset`") => by_hand,
        /// Lets returning clients send their first request before the handshake ends (0-RTT),
        /// which saves a round trip. An attacker who has recorded the request can send it
        /// again. GET, HEAD, OPTIONS and TRACE without a body are therefore answered at once,
        /// with `Early-Data: 1` for endpoints; other requests wait for the end of the
        /// handshake. Sessions are then kept in memory, each for one use, and not in tickets.
        early_data: bool = Default("false"),
        /// Certificates of clients (mutual TLS): their issuers, and whether they are required.
        client: ClientCertificatesTable = Optional("none is asked for") => by_hand,
        /// A file to append the secrets of all connections to, in the format of
        /// `SSLKEYLOGFILE`. Anyone who can read the file can decrypt the connections: use it
        /// only to look for a fault.
        key_log: Placed<FilePath> = Optional("none") => by_hand,
        /// Makes browsers use HTTPS alone from their first visit on (HSTS,
        /// `Strict-Transport-Security`): a table, or `true` for one with its defaults. An
        /// endpoint's own field is passed on instead. Browsers follow the policy for `max_age`:
        /// until then they do not use plain HTTP, even if the certificate is gone.
        hsts: Switch<HstsTable> = Default("false") => by_hand,
    }
}

options! {
    /// The certificates that clients show.
    pub struct ClientCertificatesTable as "the certificates of clients"
    for #[derive(Debug, Clone, PartialEq, Eq)] ClientCertificates with ClientCertificatesParts {
        /// Files with the certificates of the issuing authorities.
        ca: Vec<PathBuf>,
        /// Files with lists of revoked certificates.
        crl: Vec<PathBuf>,
    } {
        /// PEM files with the certificates of the authorities that issue client certificates.
        /// The files are read again when they change.
        ca: OneOrMore<Placed<FilePath>> = Required => by_hand,
        /// PEM files with the certificates that the authorities have revoked (CRLs). Each
        /// authority needs a current list: without one, none of its certificates is accepted.
        /// The files are read again when they change.
        crl: OneOrMore<Placed<FilePath>> = Optional("none is revoked") => by_hand,
        /// Whether a client without a certificate is refused.
        mode: ClientAuthMode = Default("'required'"),
        /// Whether endpoints get the client's certificate, as `Client-Cert` (RFC 9440).
        forward: bool = Default("false"),
    }
}

options! {
    /// The policy that browsers follow (RFC 6797).
    pub struct HstsTable as "the HSTS of a listener" {
        /// How long browsers follow the policy.
        max_age: WholeSeconds = Default("'365d'"),
        /// Whether the hosts below this one come by HTTPS too.
        subdomains: bool = Default("false"),
        /// Whether browser vendors may put the host on their preload list. Removal from that
        /// list takes months.
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
    /// The same files with paths from `folder`.
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
        chain: Placed<FilePath> = Optional("`folder` instead"),
        /// A PEM file with the certificate's key. No output shows it.
        key: Placed<FilePath> = Optional("in the file of `chain`"),
        /// A folder of certificates: `NAME.pem` with chain and key, `NAME.crt` with
        /// `NAME.key`, and folders with `fullchain.pem` and `privkey.pem`.
        folder: Placed<FolderPath> = Optional("`chain` instead"),
    }
}

impl CertificateTable {
    /// The source of the certificate, with paths from `folder`. Reports keys that exclude each
    /// other.
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
                let found =
                    report.mistake(&from.place, "a certificate is either a file or in a folder");
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
                    .mistake(&self.place, "this entry names no certificate")
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
        /// PEM files with the authorities to trust for the certificates of endpoints. An
        /// endpoint may also show a certificate that is itself in these files. The files are
        /// read again when they change.
        ca: OneOrMore<Placed<FilePath>> = Optional("the authorities that the system trusts"),
        /// PEM files with the certificates that the authorities of `ca` have revoked (CRLs).
        /// Each authority needs a current list: without one, none of its certificates is
        /// accepted. The files are read again when they change.
        crl: OneOrMore<Placed<FilePath>> = Optional("none is revoked"),
        /// The name or the IP address that certificates must be for. A name is sent to the
        /// endpoint (SNI).
        name: ServerName = Optional("the host of each endpoint"),
        /// The certificate to show to endpoints that ask for one. Files that change are read
        /// again. If a file is broken, the last good certificate stays in use.
        certificate: ClientCertificateTable = Optional("none"),
        /// The public keys that endpoints may have, each as `sha256/` and the SHA-256 of the
        /// SubjectPublicKeyInfo in base64. One match is enough. Pins are checked beside `ca`
        /// and `name`, and also with `verify = false`.
        pins: Vec<Placed<Pin>> = Default("[]"),
        /// Whether the certificates of endpoints are verified. With `false`, anyone on the path
        /// to an endpoint can read and change everything.
        verify: Placed<bool> = Default("true"),
    }
}

options! {
    /// A certificate that is shown to endpoints.
    pub struct ClientCertificateTable as "a certificate" {
        /// A PEM file with the certificate, followed by its issuers.
        chain: Placed<FilePath> = Required,
        /// A PEM file with the certificate's key. No output shows it.
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
