//! ACME: of whom certificates are ordered, and how it is shown that a name is ours.

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
    /// Certificates that are ordered by ACME (RFC 8555), for the listeners with `acme` in
    /// their `tls`.
    pub struct AcmeTable as "`acme`"
    for #[derive(Debug, Clone, PartialEq, Eq)] Acme with AcmeParts {
        /// The folder of the account, the certificates and their keys.
        storage: PathBuf,
        /// The server by which machines without a shared folder keep certificates together;
        /// `None` for none.
        shared: Option<EncryptedStore>,
        /// The address that issuers may write to.
        email: Option<String>,
        /// Of whom certificates are ordered: where one has failed, of the next one.
        issuers: Vec<Issuer>,
        /// How it may be shown that a name is ours, the preferred way first.
        challenges: Vec<Challenge>,
        /// The writer of the records of `dns-01`; `None` for none.
        dns: Option<DnsUpdates>,
        /// Names that clients may ask for; `None` for those of the listeners alone.
        on_demand: Option<OnDemand>,
    } {
        /// The URL of the issuer's directory.
        directory: Placed<DirectoryUrl> = Default("'https://acme-v02.api.letsencrypt.org/directory'") => by_hand,
        /// PEM files with the authorities that may vouch for the issuer's own server.
        ca: Placed<FilePath> = Optional("the authorities that the system trusts") => by_hand,
        /// The profile that is asked for, such as `shortlived`.
        profile: Text = Optional("the issuer's choice") => by_hand,
        /// The account that the issuer knows you by (external account binding).
        external_account: ExternalAccountTable = Optional("none") => by_hand,
        /// Further issuers: where an order has failed, the next one is asked.
        fallback: Vec<IssuerTable> = Default("[]") => by_hand,
        /// The folder of the account, the certificates and their keys. A missing
        /// folder is made, for this user alone. Several machines may share one: each
        /// certificate is ordered once, and any of them answers for it.
        storage: Placed<FolderPath> = Default("'/var/lib/evenkeel/acme'") => by_hand,
        /// A server of Redis or Valkey by which machines without a shared folder keep
        /// certificates together: its URL, or a table. `storage` is a copy then. All is
        /// stored there only encrypted, with `encrypt_with`.
        shared: Shared = Optional("shared with none") => by_hand,
        /// A file with the key of the cluster: at least 32 random bytes, the same on each
        /// machine. It encrypts what is stored at the server.
        encrypt_with: Placed<FilePath> = Optional("nothing is stored at a server") => by_hand,
        /// How it is shown that a name is ours, the preferred way first.
        challenges: OneOrMore<Placed<Challenge>> = Optional("`dns-01` with `dns`, else `http-01` and `tls-alpn-01`") => by_hand,
        /// The writer of the records of `dns-01`: a name server that takes updates, or a
        /// program. Certificates for `*.example.com` need it.
        dns: DnsTable = Optional("no `dns-01`") => by_hand,
        /// Names that nobody knows beforehand: a certificate is ordered when the first
        /// client asks for its name, and the client waits for it.
        on_demand: OnDemandTable = Optional("names of listeners alone") => by_hand,
        /// The answer to a client whose name has no certificate yet.
        until_issued: UntilIssued = Default("'refuse'"),
    }
}

options! {
    /// An issuer of certificates.
    pub struct IssuerTable as "an issuer" {
        /// The URL of its directory.
        directory: Placed<DirectoryUrl> = Required,
        /// PEM files with the authorities that may vouch for its own server.
        ca: Placed<FilePath> = Optional("the authorities that the system trusts"),
        /// The profile that is asked for.
        profile: Text = Optional("the issuer's choice"),
        /// The account that it knows you by (external account binding).
        external_account: ExternalAccountTable = Optional("none"),
    }
}

/// Of whom certificates are ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuer {
    /// The URL of its directory.
    pub directory: String,
    /// Authorities that may vouch for its server; `None` for those of the system.
    pub ca: Option<PathBuf>,
    /// The profile that is asked for.
    pub profile: Option<String>,
    /// The account that it knows the operator by.
    pub external_account: Option<ExternalAccount>,
}

options! {
    /// An account with an issuer that was made elsewhere.
    pub struct ExternalAccountTable as "an external account" {
        /// The id of its key.
        id: Text = Required,
        /// A file with its key in base64url, as the issuer gives it; no output shows it.
        key_file: Placed<FilePath> = Required,
    }
}

/// An account with an issuer that was made elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The id of its key.
    pub id: String,
    /// A file with its key.
    pub key_file: PathBuf,
}

options! {
    /// The writer of the records of `dns-01`.
    pub struct DnsTable as "`dns`" {
        /// The name server that takes updates (RFC 2136).
        server: ResolverAddress = Optional("`hook` in place of it"),
        /// A file with the key that updates are signed with (TSIG), as `tsig-keygen`
        /// writes it; no output shows it.
        key_file: Placed<FilePath> = Optional("`hook` in place of it"),
        /// A program: `PROGRAM present NAME VALUE` writes a TXT record, and `PROGRAM
        /// cleanup NAME VALUE` removes it. An exit status other than 0 is a failure.
        hook: Placed<FilePath> = Optional("`server` in place of it"),
    }
}

options! {
    /// Which names may have a certificate because a client asks for them. One of the two
    /// is needed.
    pub struct OnDemandTable as "`on_demand`" {
        /// These names. `*.example.com` stands for all names below `example.com`: anyone
        /// can have certificates ordered for any number of them.
        names: OneOrMore<Placed<CertificateName>> = Optional("none without a question"),
        /// A URL that is asked about any other name: `GET URL?domain=NAME`. The answer
        /// 200 allows it, 404 or another 4xx does not. Without an answer within 5 seconds,
        /// or with 429 or any other, the name is refused for a moment.
        ask: Placed<AskUrl> = Optional("other names are refused"),
    }
}

/// Which names may have a certificate because a client asks for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnDemand {
    /// These; `*.` before a domain stands for all names below it.
    pub names: Vec<String>,
    /// A URL that is asked about any other name.
    pub ask: Option<String>,
}

/// Certificates of a listener by ACME: `true`, an e-mail address, or a table.
#[derive(Debug)]
pub enum ListenerAcme {
    /// None.
    Off,
    /// These.
    On(Box<ListenerAcmeTable>),
}

options! {
    /// Certificates that a listener orders by ACME.
    pub struct ListenerAcmeTable as "the `acme` of a listener" {
        /// The address that an issuer may write to.
        email: Placed<AccountEmail> = Optional("none"),
        /// The names to order certificates for, one for each.
        names: OneOrMore<Placed<CertificateName>> = Optional("the hosts of the routes that clients of the listener can reach"),
    }
}

impl ListenerAcme {
    /// What is ordered, if anything is.
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
