//! The certificate to show until one is issued.

use std::sync::Arc;

use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::sign::CertifiedKey;

use crate::challenges::certified_key;

/// A new self-signed certificate, which no authority vouches for.
///
/// # Errors
/// The system gives no random bytes.
pub fn placeholder() -> Result<Arc<CertifiedKey>, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    let text = "No certificate has been issued yet";
    params.distinguished_name.push(DnType::CommonName, text);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    certified_key(&certificate, &key)
}
