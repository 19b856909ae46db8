//! The facts of a certificate: names, validity, issuer, fingerprint.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use aws_lc_rs::digest;
use rustls_pki_types::UnixTime;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{ASN1Time, FromDer, ParsedExtension, X509Certificate};

use crate::key::KeyKind;

/// The facts of a certificate: a server's, or one that a client has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// DNS names of the subject alternative name, in lower case, without a dot at the end.
    /// A certificate without that extension has its common name here.
    pub dns_names: Vec<String>,
    /// IP addresses of the subject alternative name.
    pub ip_addresses: Vec<IpAddr>,
    /// URIs of the subject alternative name, such as SPIFFE's.
    pub uris: Vec<String>,
    /// Mail addresses of the subject alternative name.
    pub emails: Vec<String>,
    /// The subject, such as `C=SE, O=Example, CN=example.com`. Control characters are
    /// escaped.
    pub subject: String,
    /// The issuer, likewise.
    pub issuer: String,
    /// The serial number, in hexadecimal.
    pub serial: String,
    /// The first second at which it is valid.
    pub not_before: UnixTime,
    /// The last second at which it is valid.
    pub not_after: UnixTime,
    /// SHA-256 of the whole certificate.
    pub fingerprint: [u8; 32],
    /// The kind of its key.
    pub key: KeyKind,
}

impl Facts {
    /// Parses a certificate in DER; `None` if the bytes are not one.
    #[must_use]
    pub fn of(der: &[u8]) -> Option<Self> {
        let certificate = parse(der)?;
        let mut facts = Self {
            dns_names: dns_names(&certificate),
            ip_addresses: Vec::new(),
            uris: Vec::new(),
            emails: Vec::new(),
            subject: escaped(certificate.subject().to_string()),
            issuer: escaped(certificate.issuer().to_string()),
            serial: data_encoding::HEXLOWER.encode(certificate.raw_serial()),
            not_before: unix_time(certificate.validity().not_before),
            not_after: unix_time(certificate.validity().not_after),
            fingerprint: sha256(&[der]),
            key: KeyKind::of(certificate.public_key()),
        };
        for name in alternative_names(&certificate).unwrap_or_default() {
            match name {
                GeneralName::IPAddress(bytes) => facts.ip_addresses.extend(ip_address(bytes)),
                GeneralName::URI(uri) => facts.uris.push(escaped((*uri).to_owned())),
                GeneralName::RFC822Name(name) => facts.emails.push(escaped((*name).to_owned())),
                _ => {}
            }
        }
        Some(facts)
    }
}

/// A certificate, parsed in place; `None` if the bytes are not one, or continue after it.
pub(crate) fn parse(der: &[u8]) -> Option<X509Certificate<'_>> {
    let (rest, certificate) = X509Certificate::from_der(der).ok()?;
    rest.is_empty().then_some(certificate)
}

/// The names that a certificate is served for, in the form of [`Facts::dns_names`].
pub(crate) fn dns_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let mut names = Vec::new();
    match alternative_names(certificate) {
        Some(alternative) => {
            for name in alternative {
                if let GeneralName::DNSName(name) = name {
                    names.extend(dns_name(name));
                }
            }
        }
        None => {
            let common = certificate.subject().iter_common_name();
            let common = common.filter_map(|it| it.as_str().ok());
            names.extend(common.filter_map(dns_name));
        }
    }
    names
}

/// A DNS name in lower case, without a dot at the end; `None` if the text is not one.
fn dns_name(name: &str) -> Option<String> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_known = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'.' | b'_' | b'*');
    let is_name = !name.is_empty() && name.len() <= 253 && name.bytes().all(is_known);
    let is_address = name.parse::<IpAddr>().is_ok();
    (is_name && !is_address).then(|| name.to_ascii_lowercase())
}

/// The subject alternative name; `None` without one.
fn alternative_names<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a [GeneralName<'a>]> {
    let mut extensions = certificate.iter_extensions();
    extensions.find_map(|it| match it.parsed_extension() {
        ParsedExtension::SubjectAlternativeName(names) => Some(&*names.general_names),
        _ => None,
    })
}

fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|it| Ipv4Addr::from(it).into());
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(|it| Ipv6Addr::from(it).into()))
        .ok()
}

/// Names come from the subscriber of the certificate, and are written to logs.
fn escaped(text: String) -> String {
    if text.chars().any(char::is_control) {
        let escape = |it: char| {
            if it.is_control() {
                it.escape_default().to_string()
            } else {
                it.to_string()
            }
        };
        text.chars().map(escape).collect()
    } else {
        text
    }
}

/// A time before 1970 is the start of 1970.
pub(crate) fn unix_time(time: ASN1Time) -> UnixTime {
    let seconds = u64::try_from(time.timestamp()).unwrap_or(0);
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// SHA-256 over several pieces.
pub(crate) fn sha256(pieces: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    pieces.iter().for_each(|it| context.update(it));
    let mut sum = [0; 32];
    sum.copy_from_slice(context.finish().as_ref());
    sum
}
