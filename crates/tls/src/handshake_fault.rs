//! Why a handshake with an endpoint failed, in words for logs.

use std::borrow::Cow;
use std::fmt;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
use rustls_pki_types::{ServerName, UnixTime};
use x509_parser::time::ASN1Time;

use crate::client::PinMismatch;

/// Names of a certificate that are listed one by one.
const MOST_NAMES: usize = 8;

/// Why a handshake with an endpoint failed. Displayed in lower case, with the endpoint as
/// `it`: `it does not speak TLS`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandshakeFault {
    /// The certificate of the endpoint was not accepted.
    Certificate(String),
    /// Anything else.
    Other(String),
}

impl HandshakeFault {
    /// The same in general.
    #[must_use]
    pub fn summary(&self) -> &'static str {
        match self {
            Self::Certificate(_) => "its certificate is not accepted",
            Self::Other(_) => "the TLS handshake fails",
        }
    }
}

impl fmt::Display for HandshakeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(text) | Self::Other(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for HandshakeFault {}

impl From<&Error> for HandshakeFault {
    fn from(error: &Error) -> Self {
        match error {
            Error::InvalidCertificate(fault) => Self::Certificate(certificate(fault)),
            Error::NoCertificatesPresented => Self::Certificate("it sends no certificate".into()),
            Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
                Self::Other("it does not speak TLS".into())
            }
            Error::AlertReceived(alert) => Self::Other(refusal(*alert)),
            Error::PeerIncompatible(why) => Self::Other(format!(
                "it has no version, cipher suite or group of TLS in common with this side: {why:?}"
            )),
            other => Self::Other(format!("the TLS handshake failed: {other}")),
        }
    }
}

/// Whether an error after a handshake means that the endpoint refuses the client. In TLS 1.3 an
/// endpoint checks the client certificate after the handshake has ended for the client.
#[must_use]
pub fn is_handshake_refusal(error: &Error) -> bool {
    use AlertDescription as Alert;
    let Error::AlertReceived(alert) = error else {
        return false;
    };
    matches!(
        alert,
        Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::HandshakeFailure
    )
}

/// The words of rustls for a connection that ended without close_notify. A link to its manual
/// follows them.
const CUT: &str = "peer closed connection without sending TLS close_notify";

/// The text of an error without the words of rustls for a connection that was cut, and without
/// the link in them.
#[must_use]
pub fn without_links(text: &str) -> Cow<'_, str> {
    let Some((before, rest)) = text.split_once(CUT) else {
        return Cow::Borrowed(text);
    };
    let rest = match rest.strip_prefix(": https://") {
        // The link goes on to the next space or bracket.
        Some(link) => {
            let end = link.find(|it: char| it.is_whitespace() || "();,".contains(it));
            &link[end.unwrap_or(link.len())..]
        }
        None => rest,
    };
    format!("{before}the connection was cut{}", without_links(rest)).into()
}

/// The fault of a certificate, in words.
fn certificate(fault: &CertificateError) -> String {
    match fault {
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let expected = match expected {
                ServerName::DnsName(name) => name.as_ref().to_owned(),
                ServerName::IpAddress(address) => std::net::IpAddr::from(*address).to_string(),
                other => format!("{other:?}"),
            };
            format!(
                "its certificate is for {}, not for {expected}",
                names(presented)
            )
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("its certificate expired on {}", date(*not_after))
        }
        CertificateError::Expired => "its certificate has expired".into(),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("its certificate is not valid before {}", date(*not_before))
        }
        CertificateError::NotValidYet => "its certificate is not valid yet".into(),
        CertificateError::UnknownIssuer => {
            "its certificate is not issued by a trusted authority".into()
        }
        CertificateError::BadSignature => {
            "a signature is wrong: its certificate may be issued by another authority of the \
             same name"
                .into()
        }
        CertificateError::Revoked => "its certificate is revoked".into(),
        CertificateError::Other(other) => match other.0.downcast_ref::<PinMismatch>() {
            Some(mismatch) => mismatch.to_string(),
            None => format!("its certificate is not accepted: {fault}"),
        },
        other => format!("its certificate is not accepted: {other}"),
    }
}

/// Names, for a sentence.
fn names(all: &[String]) -> String {
    match all {
        [] => "no name".into(),
        all if all.len() > MOST_NAMES => {
            let more = all.len() - MOST_NAMES;
            format!("{} and {more} more", all[..MOST_NAMES].join(", "))
        }
        all => all.join(", "),
    }
}

/// A moment, to the second.
fn date(moment: UnixTime) -> String {
    let seconds = i64::try_from(moment.as_secs()).unwrap_or(i64::MAX);
    match ASN1Time::from_timestamp(seconds) {
        Ok(time) => time.to_string(),
        Err(_) => format!("second {seconds} after 1970"),
    }
}

/// The endpoint's reason for refusing a handshake, in words.
fn refusal(alert: AlertDescription) -> String {
    let why = match alert {
        AlertDescription::CertificateRequired => "it requires a client certificate",
        AlertDescription::UnknownCA => "it does not trust the issuer of the client certificate",
        AlertDescription::CertificateExpired => "it says that the client certificate has expired",
        AlertDescription::ProtocolVersion => "it does not support TLS 1.2 or later",
        AlertDescription::UnrecognisedName => "it does not serve the requested name",
        AlertDescription::NoApplicationProtocol => {
            "it supports none of the offered protocols (ALPN)"
        }
        _ => return format!("it refuses the TLS handshake with the alert {alert:?}"),
    };
    format!("it refuses the TLS handshake: {why}")
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};
    use std::sync::Arc;
    use std::time::Duration;

    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    #[test]
    fn certificates_in_words() {
        let wrong_name = |presented: &[&str]| CertificateError::NotValidForNameContext {
            expected: "app.internal".try_into().unwrap(),
            presented: presented.iter().map(|&it| it.to_owned()).collect(),
        };
        for (error, expected) in [
            (
                wrong_name(&["a.test", "b.test"]),
                "its certificate is for a.test, b.test, not for app.internal",
            ),
            (
                wrong_name(&[]),
                "its certificate is for no name, not for app.internal",
            ),
            (
                wrong_name(&["n"; 10]),
                "its certificate is for n, n, n, n, n, n, n, n and 2 more, not for app.internal",
            ),
            (
                CertificateError::ExpiredContext {
                    time: at(200_000),
                    not_after: at(100_000),
                },
                "its certificate expired on Jan  2 03:46:40 1970 +00:00",
            ),
            (
                CertificateError::NotValidYetContext {
                    time: at(0),
                    not_before: at(7_300),
                },
                "its certificate is not valid before Jan  1 02:01:40 1970 +00:00",
            ),
            (CertificateError::Revoked, "its certificate is revoked"),
            (
                CertificateError::UnknownIssuer,
                "its certificate is not issued by a trusted authority",
            ),
        ] {
            let fault = HandshakeFault::from(&Error::InvalidCertificate(error));
            assert_eq!(fault, HandshakeFault::Certificate(expected.to_owned()));
        }
    }

    #[test]
    fn a_connection_that_was_cut_needs_no_link() {
        let link =
            "https://docs.rs/rustls/latest/rustls/manual/_03_howto/index.html#unexpected-eof";
        for (text, expected) in [
            (format!("{CUT}: {link}"), "the connection was cut"),
            (
                format!("error (IO: {CUT}: {link}); next: {CUT}: {link}"),
                "error (IO: the connection was cut); next: the connection was cut",
            ),
            ("connection refused".to_owned(), "connection refused"),
        ] {
            assert_eq!(without_links(&text), expected);
        }
        // They are the words that rustls has now.
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = "app.internal".try_into().unwrap();
        let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
        assert_eq!(connection.read_tls(&mut io::empty()).unwrap(), 0);
        let error = connection.reader().read(&mut [0]).unwrap_err().to_string();
        assert_eq!(without_links(&error), "the connection was cut", "{error}");
    }

    #[test]
    fn other_faults_are_no_fault_of_a_certificate() {
        for (error, expected) in [
            (
                Error::InvalidMessage(InvalidMessage::InvalidContentType),
                "it does not speak TLS",
            ),
            (
                Error::AlertReceived(AlertDescription::CertificateRequired),
                "it refuses the TLS handshake: it requires a client certificate",
            ),
            (
                Error::AlertReceived(AlertDescription::InternalError),
                "it refuses the TLS handshake with the alert InternalError",
            ),
        ] {
            let fault = HandshakeFault::from(&error);
            assert_eq!(fault, HandshakeFault::Other(expected.to_owned()));
        }
    }
}
