//! The configuration of rustls for connections to endpoints.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use data_encoding::BASE64;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, KeyLog, OtherError,
    SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::facts::{self, Facts, sha256};
use crate::policy::Policy;
use crate::resolver::Served;
use crate::trust::Authorities;

/// How connections to endpoints are secured.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// Versions, cipher suites and groups.
    pub policy: Policy,
    /// How the certificates of endpoints are verified.
    pub verify: Verify,
    /// The keys that an endpoint may have; if empty, any key. They are checked beside `verify`,
    /// even if that verifies nothing.
    pub pins: Vec<Pin>,
    /// The certificate that is shown to endpoints: the first one. It can be replaced while
    /// connections are made.
    pub identity: Option<Arc<Served>>,
    /// Protocols in the order of preference, such as `h2` and `http/1.1`.
    pub alpn: Vec<Vec<u8>>,
    /// The number of server names whose sessions are kept for resumption. Each takes a few
    /// KB. With 0 no session is resumed.
    pub sessions: usize,
    /// A log of the secrets of connections. Safety: its readers can decrypt all traffic.
    pub key_log: Option<Arc<dyn KeyLog>>,
}

/// How the certificates of endpoints are verified.
#[derive(Debug, Clone)]
pub enum Verify {
    /// These authorities vouch for the certificate, and the expected name stands in it.
    ///
    /// A certificate that is itself one of the authorities needs no other to vouch for it:
    /// endpoints often have a certificate that they have signed themselves.
    By(Authorities),
    /// No verification: any certificate is accepted, of any name and age. Safety: anyone on the
    /// path to the endpoint can read and change everything, unless there are pins.
    Nothing,
}

/// The configuration that all connections to an upstream share.
///
/// # Errors
/// Certificates are verified, but no authority is trusted.
pub fn client_config(settings: ClientSettings) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(settings.policy.provider());
    let verifier = Verifier::new(&settings.verify, settings.pins, &provider)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&settings.policy.protocol_versions())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match settings.identity {
        Some(identity) => builder.with_client_cert_resolver(identity),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = settings.alpn;
    config.resumption = match settings.sessions {
        0 => Resumption::disabled(),
        sessions => Resumption::in_memory_sessions(sessions),
    };
    if let Some(key_log) = settings.key_log {
        config.key_log = key_log;
    }
    Ok(Arc::new(config))
}

/// SHA-256 of a public key: of the SubjectPublicKeyInfo of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin([u8; 32]);

impl Pin {
    /// The pin of a certificate in DER; `None` if the bytes are not one.
    #[must_use]
    pub fn of(certificate: &[u8]) -> Option<Self> {
        let parsed = facts::parse(certificate)?;
        Some(Self(sha256(&[parsed.public_key().raw])))
    }
}

impl FromStr for Pin {
    type Err = NoPin;

    /// Reads `sha256/BASE64`, or `sha256//BASE64` as in curl's `--pinnedpubkey`.
    fn from_str(text: &str) -> Result<Self, NoPin> {
        let base64 = text.strip_prefix("sha256/").ok_or(NoPin)?;
        let base64 = base64
            .strip_prefix('/')
            .filter(|it| it.len() == 44)
            .unwrap_or(base64);
        let bytes = BASE64.decode(base64.as_bytes()).map_err(|_| NoPin)?;
        bytes.try_into().map(Self).map_err(|_| NoPin)
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256/{}", BASE64.encode(&self.0))
    }
}

/// Text that is no [`Pin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoPin;

impl fmt::Display for NoPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a pin is `sha256/` and the SHA-256 of a public key in base64: 44 characters, the \
             last of them `=`",
        )
    }
}

impl std::error::Error for NoPin {}

/// An endpoint whose key matches none of the pins.
///
/// The handshake fails with a [`CertificateError::Other`] that has this as its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinMismatch {
    /// The pin of the endpoint's key; `None` if its certificate can't be parsed.
    pub presented: Option<Pin>,
}

impl fmt::Display for PinMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.presented {
            Some(pin) => write!(f, "the endpoint's key is not pinned; its pin is {pin}"),
            None => f.write_str("the endpoint's certificate cannot be parsed"),
        }
    }
}

impl std::error::Error for PinMismatch {}

#[derive(Debug)]
struct Verifier {
    /// `None` where any certificate is accepted.
    by: Option<(Arc<WebPkiServerVerifier>, Authorities)>,
    pins: Vec<Pin>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn new(verify: &Verify, pins: Vec<Pin>, provider: &Arc<CryptoProvider>) -> Result<Self, Error> {
        let by = match verify {
            Verify::Nothing => None,
            Verify::By(authorities) => {
                let verifier = authorities.server_verifier(provider);
                let verifier = verifier.map_err(|it| Error::General(it.to_string()))?;
                Some((verifier, authorities.clone()))
            }
        };
        Ok(Self {
            by,
            pins,
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some((verifier, authorities)) = &self.by {
            let verified = if authorities.contain(leaf) {
                verify_alone(leaf, name, now)
            } else {
                let verified = verifier.verify_server_cert(leaf, issuers, name, ocsp, now);
                verified.map(|_| ())
            };
            verified.map_err(|error| with_names(error, leaf, name))?;
        }
        let presented = Pin::of(leaf);
        let is_pinned = self.pins.is_empty() || presented.is_some_and(|it| self.pins.contains(&it));
        if is_pinned {
            Ok(ServerCertVerified::assertion())
        } else {
            let mismatch = OtherError(Arc::new(PinMismatch { presented }));
            Err(CertificateError::Other(mismatch).into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, leaf, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The same error; an error about the name gets the names of the certificate.
fn with_names(error: Error, leaf: &CertificateDer<'_>, name: &ServerName<'_>) -> Error {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    let Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) = error else {
        return error;
    };
    let facts = Facts::of(leaf);
    let dns_names = facts.iter().flat_map(|it| it.dns_names.iter().cloned());
    let addresses = facts.iter().flat_map(|it| &it.ip_addresses);
    let presented = dns_names.chain(addresses.map(ToString::to_string));
    CertificateError::NotValidForNameContext {
        expected: name.to_owned(),
        presented: presented.collect(),
    }
    .into()
}

/// Verifies name and validity of a certificate that is itself trusted.
fn verify_alone(
    leaf: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<(), Error> {
    let parsed = facts::parse(leaf).ok_or(CertificateError::BadEncoding)?;
    let not_before = facts::unix_time(parsed.validity().not_before);
    let not_after = facts::unix_time(parsed.validity().not_after);
    if now < not_before {
        let time = now;
        return Err(CertificateError::NotValidYetContext { time, not_before }.into());
    }
    if now > not_after {
        let time = now;
        return Err(CertificateError::ExpiredContext { time, not_after }.into());
    }
    verify_server_name(&ParsedCertificate::try_from(leaf)?, name)
}
