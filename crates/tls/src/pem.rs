//! The sections of PEM files.

use std::path::Path;

use rustls_pki_types::pem::{PemObject, SectionKind};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::error::{Error, Fault};

/// The sections of a file, by their kinds.
#[derive(Default)]
pub(crate) struct Sections {
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    /// The first private key.
    pub(crate) key: Option<Zeroizing<PrivateKeyDer<'static>>>,
    pub(crate) crls: Vec<CertificateRevocationListDer<'static>>,
}

/// Parses a PEM file. Sections of other kinds are passed over, as is text around them.
///
/// # Errors
/// A section is broken, or holds a private key that is encrypted.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Sections, Error> {
    let mut found = Sections::default();
    // Editors of Windows put a byte order mark there.
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(text) {
        // The library's error may show what stands in the file.
        let (kind, der) = section.map_err(|_| {
            let fault = if has_encrypted_key(text) {
                Fault::EncryptedKey
            } else {
                Fault::BrokenPem
            };
            Error::new(path, fault)
        })?;
        match kind {
            SectionKind::Certificate => found.certificates.push(der.into()),
            SectionKind::Crl => found.crls.push(der.into()),
            _ => {
                let key = PrivateKeyDer::from_pem(kind, der);
                found.key = found.key.or(key.map(Zeroizing::new));
            }
        }
    }
    let is_empty = found.certificates.is_empty() && found.key.is_none() && found.crls.is_empty();
    if found.key.is_none() && has_encrypted_key(text) {
        return Err(Error::new(path, Fault::EncryptedKey));
    }
    // A sequence with a length of two bytes, as every certificate and every key is.
    if is_empty && matches!(text, [0x30, 0x81..=0x83, ..]) {
        return Err(Error::new(path, Fault::Der));
    }
    Ok(found)
}

/// Whether a key is encrypted, by PKCS #8 or as OpenSSL did before.
fn has_encrypted_key(text: &[u8]) -> bool {
    text.split(|it| *it == b'\n').any(|line| {
        line.starts_with(b"-----BEGIN ENCRYPTED PRIVATE KEY")
            || (line.starts_with(b"Proc-Type:") && line.windows(9).any(|it| it == b"ENCRYPTED"))
    })
}
