//! ACME: the issuers to order certificates from, and how to prove control of a name.

use std::path::PathBuf;

use super::Shared;
use super::forms::{as_table, either};
use crate::acme_value::{AccountEmail, AskUrl, CertificateName, DirectoryUrl};
use crate::diagnostics::Report;
use crate::file_value::FolderPath;
use crate::setting::{OneOrMore, Placed, Setting, options, wrong_type};
use crate::shape::Shape;
use crate::tree::{Node, Value};
use crate::value::{FilePath, ResolverAddress, Text};
use crate::{Challenge, DnsUpdates, EncryptedStore, UntilIssued};

options! {
    /// Certificates that Evenkeel orders by ACME (RFC 8555), for the listeners with `acme` in
    /// their `tls`.
    pub struct AcmeTable as "`acme`"
    for #[derive(Debug, Clone, PartialEq, Eq)] Acme with AcmeParts {
        /// The folder of the account, the certificates and their keys.
        storage: PathBuf,
        /// The server through which machines without a shared folder share certificates; `None`
        /// for none.
        shared: Option<EncryptedStore>,
        /// The e-mail address that issuers may write to.
        email: Option<String>,
        /// The issuers, in the order in which they are asked: the next one after a failed
        /// order.
        issuers: Vec<Issuer>,
        /// The types of challenge to prove control of a name with, the preferred one first.
        challenges: Vec<Challenge>,
        /// The writer of the records of `dns-01`; `None` for none.
        dns: Option<DnsUpdates>,
        /// The names that clients may ask for; `None` for only those of the listeners.
        on_demand: Option<OnDemand>,
    } {
        /// The URL of the issuer's directory.
        directory: Placed<DirectoryUrl> = Default("'https://acme-v02.api.letsencrypt.org/directory'") => by_hand,
        /// PEM files with the authorities to trust for the issuer's own server.
        ca: Placed<FilePath> = Optional("the authorities that the system trusts") => by_hand,
        /// The certificate profile to request, such as `shortlived`.
        profile: Text = Optional("the issuer's choice") => by_hand,
        /// The account that the issuer already has for you (external account binding).
        external_account: ExternalAccountTable = Optional("none") => by_hand,
        /// Further issuers. If an order fails, the next issuer is asked.
        fallback: Vec<IssuerTable> = Default("[]") => by_hand,
        /// The folder for the account, the certificates and their keys. A missing folder is
        /// created, readable by this user only. Several machines may share one folder: each
        /// certificate is ordered once, and any machine answers the challenges.
        storage: Placed<FolderPath> = Default("'/var/lib/evenkeel/acme'") => by_hand,
        /// A Redis or Valkey server through which machines without a shared folder share
        /// certificates: its URL, or a table. `storage` is then a local copy. Everything stored
        /// there is encrypted with the key of `encrypt_with`.
        shared: Shared = Optional("no shared server") => by_hand,
        /// A file with the key of the cluster: at least 32 random bytes, the same on each
        /// machine. It encrypts everything stored at the server.
        encrypt_with: Placed<FilePath> = Optional("nothing is stored at a server") => by_hand,
        /// The types of challenge to prove control of a name with, the preferred one first.
        challenges: OneOrMore<Placed<Challenge>> = Optional("`dns-01` with `dns`, else `http-01` and `tls-alpn-01`") => by_hand,
        /// The writer of the DNS records for `dns-01`: a name server that takes updates, or a
        /// program. Certificates for `*.example.com` need it.
        dns: DnsTable = Optional("no `dns-01`") => by_hand,
        /// Certificates for names that are not known beforehand. The first client that asks for
        /// a name starts the order, and waits for the certificate.
        on_demand: OnDemandTable = Optional("only names of listeners") => by_hand,
        /// The answer to a client whose name has no certificate yet.
        until_issued: UntilIssued = Default("'refuse'"),
    }
}

options! {
    /// An issuer of certificates.
    pub struct IssuerTable as "an issuer" {
        /// The URL of the issuer's directory.
        directory: Placed<DirectoryUrl> = Required,
        /// PEM files with the authorities to trust for the issuer's own server.
        ca: Placed<FilePath> = Optional("the authorities that the system trusts"),
        /// The certificate profile to request.
        profile: Text = Optional("the issuer's choice"),
        /// The account that the issuer already has for you (external account binding).
        external_account: ExternalAccountTable = Optional("none"),
    }
}

/// An issuer to order certificates from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuer {
    /// The URL of the issuer's directory.
    pub directory: String,
    /// Authorities to trust for its server; `None` for those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate profile to request.
    pub profile: Option<String>,
    /// The account that the issuer already has for the operator.
    pub external_account: Option<ExternalAccount>,
}

options! {
    /// An account that was created elsewhere, with an issuer.
    pub struct ExternalAccountTable as "an external account" {
        /// The id of the account's key.
        id: Text = Required,
        /// A file with the account's key in base64url, as the issuer gives it. No output shows
        /// it.
        key_file: Placed<FilePath> = Required,
    }
}

/// An account that was created elsewhere, with an issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The id of the account's key.
    pub id: String,
    /// The file with the account's key.
    pub key_file: PathBuf,
}

options! {
    /// The writer of the DNS records for `dns-01`.
    pub struct DnsTable as "`dns`" {
        /// The name server that takes updates (RFC 2136).
        server: ResolverAddress = Optional("`hook` instead"),
        /// A file with the key that signs updates (TSIG), as `tsig-keygen` writes it. No output
        /// shows it.
        key_file: Placed<FilePath> = Optional("`hook` instead"),
        /// A program: `PROGRAM present NAME VALUE` writes a TXT record, and `PROGRAM
        /// cleanup NAME VALUE` removes it. An exit status other than 0 is a failure.
        hook: Placed<FilePath> = Optional("`server` instead"),
    }
}

options! {
    /// The names for which a client may start an order. At least one of the two keys is needed.
    pub struct OnDemandTable as "`on_demand`" {
        /// Names for which certificates may be ordered. `*.example.com` stands for all names
        /// below `example.com`: anyone can then start orders for any number of names.
        names: OneOrMore<Placed<CertificateName>> = Optional("none without asking"),
        /// A URL to ask about any other name: `GET URL?domain=NAME`. The status 200 allows the
        /// name; 404 or another 4xx refuses it. After 429, another status, or 5 seconds without
        /// an answer, the name is refused for a moment.
        ask: Placed<AskUrl> = Optional("other names are refused"),
    }
}

/// The names for which a client may start an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnDemand {
    /// Names for which certificates may be ordered; `*.` before a domain stands for all names
    /// below it.
    pub names: Vec<String>,
    /// A URL to ask about any other name.
    pub ask: Option<String>,
}

/// Certificates of a listener by ACME: `true`, an e-mail address, or a table.
#[derive(Debug)]
pub enum ListenerAcme {
    /// No certificates by ACME.
    Off,
    /// Certificates by ACME, with these settings.
    On(Box<ListenerAcmeTable>),
}

options! {
    /// Certificates that a listener orders by ACME.
    pub struct ListenerAcmeTable as "the `acme` of a listener" {
        /// The e-mail address that an issuer may write to.
        email: Placed<AccountEmail> = Optional("none"),
        /// The names to order certificates for, one certificate for each.
        names: OneOrMore<Placed<CertificateName>> = Optional("the hosts of the routes that clients of the listener can reach"),
    }
}

impl ListenerAcme {
    /// Settings of the orders; `None` without ACME.
    pub(crate) fn table(&self) -> Option<&ListenerAcmeTable> {
        match self {
            Self::Off => None,
            Self::On(table) => Some(table),
        }
    }
}

impl Setting for ListenerAcme {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let on = |node: &Node, report: &mut Report| {
            Setting::read(node, report).map(|table| Self::On(Box::new(table)))
        };
        match (&node.value, as_table("email", node)) {
            (Value::Boolean(false), _) => Some(Self::Off),
            (Value::Boolean(true), _) => on(&super::forms::empty_table(node), report),
            (_, Some(table)) => on(&table, report),
            (_, None) => wrong_type(node, report),
        }
    }

    fn shape() -> Shape {
        match either::<AccountEmail, ListenerAcmeTable>() {
            Shape::AnyOf(mut shapes) => {
                shapes.push(Shape::Boolean);
                Shape::AnyOf(shapes)
            }
            shape => shape,
        }
    }
}
