//! An authority that issues certificates for tests, and clients that trust it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use rcgen::date_time_ymd;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, RevokedCertParams,
};
use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, SupportedProtocolVersion};

/// An authority with its own key.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key, as PEM.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate.
    pub chain: String,
    /// Its key.
    pub key: String,
}

/// The versions of TLS that a client speaks.
pub type Versions = &'static [&'static SupportedProtocolVersion];

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn new() -> io::Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "Test Authority");
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let issuer = CertifiedIssuer::self_signed(params, key).map_err(io::Error::other)?;
        Ok(Authority(issuer))
    }

    /// Its own certificate, as PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these names and addresses, with an ECDSA key.
    ///
    /// # Errors
    /// When a name is invalid.
    pub fn issue(&self, names: &[&str]) -> io::Result<Issued> {
        self.issue_with(names, |_| {})
    }

    /// The same, changed before it is signed.
    ///
    /// # Errors
    /// When a name is invalid.
    pub fn issue_with(
        &self,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> io::Result<Issued> {
        let names: Vec<String> = names.iter().map(|&it| it.to_owned()).collect();
        let mut params = CertificateParams::new(names).map_err(io::Error::other)?;
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        change(&mut params);
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.signed_by(&key, &self.0).map_err(io::Error::other)?;
        Ok(Issued {
            chain: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Configuration of a client that trusts only this authority.
    ///
    /// # Errors
    /// When the versions are not supported.
    pub fn trusting(&self, versions: Versions) -> io::Result<Arc<ClientConfig>> {
        self.trusting_with(versions, None)
    }

    /// The same for a client that shows a certificate.
    ///
    /// # Errors
    /// When the versions are not supported, or the certificate can't be used.
    pub fn trusting_with(
        &self,
        versions: Versions,
        shown: Option<&Issued>,
    ) -> io::Result<Arc<ClientConfig>> {
        let config = trusting(self.0.der().clone(), versions)?;
        let config = match shown {
            None => config.with_no_client_auth(),
            Some(shown) => {
                let chain = CertificateDer::from_pem_slice(shown.chain.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(shown.key.as_bytes());
                let chain = vec![chain.map_err(io::Error::other)?];
                let key = key.map_err(io::Error::other)?;
                let config = config.with_client_auth_cert(chain, key);
                config.map_err(io::Error::other)?
            }
        };
        Ok(Arc::new(config))
    }

    /// A list of revoked certificates by their serial numbers, as PEM.
    ///
    /// # Errors
    /// When it can't be signed.
    pub fn revoking(&self, serials: &[u64]) -> io::Result<String> {
        let revoked = serials.iter().map(|&serial| RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: rcgen::date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2020, 1, 1),
            next_update: rcgen::date_time_ymd(4000, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.0).map_err(io::Error::other)?;
        list.pem().map_err(io::Error::other)
    }
}

/// Configuration of a client that trusts only the authority with this certificate, as PEM.
///
/// # Errors
/// When the certificate can't be parsed, or the versions are not supported.
pub fn trusting_pem(authority: &str, versions: Versions) -> io::Result<Arc<ClientConfig>> {
    let authority = CertificateDer::from_pem_slice(authority.as_bytes());
    let config = trusting(authority.map_err(io::Error::other)?, versions)?;
    Ok(Arc::new(config.with_no_client_auth()))
}

fn trusting(
    authority: CertificateDer<'static>,
    versions: Versions,
) -> io::Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let mut roots = RootCertStore::empty();
    roots.add(authority).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_protocol_versions(versions);
    Ok(config
        .map_err(io::Error::other)?
        .with_root_certificates(roots))
}

impl Issued {
    /// The configuration of a server with this certificate and these protocols (ALPN).
    ///
    /// # Errors
    /// When the certificate can't be used.
    pub fn serving(&self, versions: Versions, alpn: &[&str]) -> io::Result<Arc<ServerConfig>> {
        let chain = CertificateDer::pem_slice_iter(self.chain.as_bytes());
        let chain = chain.collect::<Result<_, _>>().map_err(io::Error::other)?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(chain, key.map_err(io::Error::other)?)
            .map_err(io::Error::other)?;
        config.alpn_protocols = alpn.iter().map(|it| it.as_bytes().to_vec()).collect();
        Ok(Arc::new(config))
    }

    /// Writes `STEM.crt` and `STEM.key` into a folder.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn write(&self, folder: &Path, stem: &str) -> io::Result<(PathBuf, PathBuf)> {
        let (chain, key) = (
            folder.join(format!("{stem}.crt")),
            folder.join(format!("{stem}.key")),
        );
        fs::write(&chain, &self.chain)?;
        fs::write(&key, &self.key)?;
        // A key that all may read is warned of.
        fs::set_permissions(&key, Permissions::from_mode(0o600))?;
        Ok((chain, key))
    }
}
