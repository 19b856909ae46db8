//! Kinds of keys, and whether a private key belongs to a certificate.

use std::fmt;

use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls_pki_types::PrivateKeyDer;
use x509_parser::asn1_rs::{Any, FromDer, Oid, oid};
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::der::{find, next, sequence, sequence_of};

/// The kind of a certificate's key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// ECDSA on the curve P-256.
    EcdsaP256,
    /// ECDSA on the curve P-384.
    EcdsaP384,
    /// ECDSA on the curve P-521.
    EcdsaP521,
    /// Ed25519.
    Ed25519,
    /// RSA.
    Rsa {
        /// The length of the modulus.
        bits: usize,
    },
    /// A kind that no connection is served with.
    Other {
        /// Its object identifier, with that of the curve where it has one.
        oid: String,
    },
}

impl KeyKind {
    pub(crate) fn of(public: &SubjectPublicKeyInfo<'_>) -> Self {
        let algorithm = &public.algorithm;
        if algorithm.algorithm == RSA {
            let bits = rsa_modulus(&public.subject_public_key.data).map(bits_of);
            return Self::Rsa {
                bits: bits.unwrap_or(0),
            };
        }
        if algorithm.algorithm == ED25519 {
            return Self::Ed25519;
        }
        let parameters = algorithm.parameters.as_ref();
        let curve = parameters.and_then(|it| it.as_oid().ok());
        match curve {
            Some(curve) if algorithm.algorithm == EC => match curve {
                curve if curve == P256 => Self::EcdsaP256,
                curve if curve == P384 => Self::EcdsaP384,
                curve if curve == P521 => Self::EcdsaP521,
                curve => Self::Other {
                    oid: format!("ECDSA on the curve {curve}"),
                },
            },
            _ => Self::Other {
                oid: format!("of the algorithm {}", algorithm.algorithm),
            },
        }
    }

    /// Whether connections can be served with such a key.
    pub(crate) fn is_supported(&self) -> bool {
        match self {
            Self::Rsa { bits } => (2048..=8192).contains(bits),
            Self::Other { .. } => false,
            _ => true,
        }
    }

    /// The schemes that such a key signs handshakes with.
    #[must_use]
    pub fn schemes(&self) -> &'static [SignatureScheme] {
        match self {
            Self::EcdsaP256 => &[SignatureScheme::ECDSA_NISTP256_SHA256],
            Self::EcdsaP384 => &[SignatureScheme::ECDSA_NISTP384_SHA384],
            Self::EcdsaP521 => &[SignatureScheme::ECDSA_NISTP521_SHA512],
            Self::Ed25519 => &[SignatureScheme::ED25519],
            Self::Rsa { .. } => &[
                SignatureScheme::RSA_PSS_SHA512,
                SignatureScheme::RSA_PSS_SHA384,
                SignatureScheme::RSA_PSS_SHA256,
                SignatureScheme::RSA_PKCS1_SHA512,
                SignatureScheme::RSA_PKCS1_SHA384,
                SignatureScheme::RSA_PKCS1_SHA256,
            ],
            Self::Other { .. } => &[],
        }
    }

    /// How much a kind is preferred where several fit: signing costs the least with the
    /// highest.
    pub(crate) fn preference(&self) -> u8 {
        match self {
            Self::EcdsaP256 => 5,
            Self::EcdsaP384 => 4,
            Self::EcdsaP521 => 3,
            Self::Ed25519 => 2,
            Self::Rsa { .. } => 1,
            Self::Other { .. } => 0,
        }
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EcdsaP256 => f.write_str("ECDSA P-256"),
            Self::EcdsaP384 => f.write_str("ECDSA P-384"),
            Self::EcdsaP521 => f.write_str("ECDSA P-521"),
            Self::Ed25519 => f.write_str("Ed25519"),
            Self::Rsa { bits } => write!(f, "RSA {bits}"),
            Self::Other { oid } => f.write_str(oid),
        }
    }
}

const RSA: Oid<'static> = oid!(1.2.840.113549.1.1.1);
const EC: Oid<'static> = oid!(1.2.840.10045.2.1);
const ED25519: Oid<'static> = oid!(1.3.101.112);
const P256: Oid<'static> = oid!(1.2.840.10045.3.1.7);
const P384: Oid<'static> = oid!(1.3.132.0.34);
const P521: Oid<'static> = oid!(1.3.132.0.35);

/// Whether a private key belongs to a certificate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Belongs {
    Yes,
    No,
    /// The key cannot be parsed.
    Broken,
}

/// Whether a private key belongs to a certificate's public key.
///
/// Most files of private keys hold the public key too: then bytes are compared, which takes
/// less than a microsecond. Otherwise the public key is computed.
pub(crate) fn belongs(key: &PrivateKeyDer<'_>, public: &SubjectPublicKeyInfo<'_>) -> Belongs {
    if is_stated_in(key, public) == Some(true) {
        return Belongs::Yes;
    }
    let Ok(key) = any_supported_type(key) else {
        return Belongs::Broken;
    };
    match key.public_key() {
        Some(computed) if computed.as_ref() == public.raw => Belongs::Yes,
        _ => Belongs::No,
    }
}

/// Whether the public key stands in the private key; `None` where none stands there.
fn is_stated_in(key: &PrivateKeyDer<'_>, public: &SubjectPublicKeyInfo<'_>) -> Option<bool> {
    let public = &*public.subject_public_key.data;
    match key {
        PrivateKeyDer::Pkcs1(key) => is_in_pkcs1(key.secret_pkcs1_der(), public),
        PrivateKeyDer::Sec1(key) => is_in_sec1(key.secret_sec1_der(), public),
        // RFC 5958: version, algorithm, private key, `[0]` attributes, `[1]` public key.
        PrivateKeyDer::Pkcs8(key) => {
            let mut fields = sequence(key.secret_pkcs8_der())?;
            next(&mut fields)?;
            let algorithm = sequence_of(&next(&mut fields)?)?;
            let (_, algorithm) = Oid::from_der(algorithm).ok()?;
            let private = next(&mut fields)?;
            if algorithm == RSA {
                is_in_pkcs1(private.data, public)
            } else if algorithm == EC {
                is_in_sec1(private.data, public)
            } else {
                let stated = find(fields, 1)?;
                Some(stated.data.split_first()?.1 == public)
            }
        }
        _ => None,
    }
}

/// RFC 8017, A.1.2: version, modulus, public exponent, and the secrets.
fn is_in_pkcs1(key: &[u8], public: &[u8]) -> Option<bool> {
    let mut private = sequence(key)?;
    next(&mut private)?;
    let mut public = sequence(public)?;
    for _ in 0..2 {
        if next(&mut private)?.data != next(&mut public)?.data {
            return Some(false);
        }
    }
    Some(true)
}

/// RFC 5915: version, private key, `[0]` curve, `[1]` public key as a bit string.
fn is_in_sec1(key: &[u8], public: &[u8]) -> Option<bool> {
    let mut fields = sequence(key)?;
    next(&mut fields)?;
    next(&mut fields)?;
    let stated = find(fields, 1)?;
    let (_, bits) = Any::from_der(stated.data).ok()?;
    Some(bits.data.split_first()?.1 == public)
}

/// The modulus of an RSA public key, without leading zeros.
fn rsa_modulus(public: &[u8]) -> Option<&[u8]> {
    let mut fields = sequence(public)?;
    let modulus = next(&mut fields)?.data;
    let zeros = modulus.iter().take_while(|it| **it == 0).count();
    Some(&modulus[zeros..])
}

fn bits_of(number: &[u8]) -> usize {
    let first = number.first().map_or(0, |it| it.leading_zeros() as usize);
    number.len() * 8 - first
}
