//! The demo of TLS: an authority of its own, and a certificate that it has issued.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

/// The files of the certificate, in a folder that goes with this.
pub(super) struct Files {
    folder: PathBuf,
}

impl Files {
    /// Makes an authority, and a certificate for this machine.
    pub(super) fn new() -> io::Result<Self> {
        let name = format!("evenkeel-demo-{:016x}", fastrand::u64(..));
        let files = Files {
            folder: std::env::temp_dir().join(name),
        };
        DirBuilder::new().mode(0o700).create(&files.folder)?;
        let (authority, chain, key) = issue().map_err(io::Error::other)?;
        for (name, pem) in [(CA, authority), (CHAIN, chain), (KEY, key)] {
            let mut options = OpenOptions::new();
            let mut file =
                (options.write(true).create_new(true).mode(0o600)).open(files.folder.join(name))?;
            file.write_all(pem.as_bytes())?;
        }
        Ok(files)
    }

    /// The line of the listener.
    pub(super) fn setting(&self) -> String {
        let folder = self.folder.display();
        format!(
            "tls = {{ certificates = [{{ chain = \"{folder}/{CHAIN}\", key = \"{folder}/{KEY}\" }}] }}\n"
        )
    }

    /// Prints commands to try.
    pub(super) fn introduce(&self, out: &mut impl Write, address: SocketAddr) -> io::Result<()> {
        let ca = self.folder.join(CA);
        let ca = ca.display();
        let tries = [
            (
                "A response from one of the origins, encrypted up to the load balancer:",
                format!("curl -i --cacert {ca} https://{address}/ping"),
            ),
            (
                "The request as the origin got it: X-Forwarded-Proto says https:",
                format!("curl --cacert {ca} https://{address}/headers"),
            ),
            (
                "The version of TLS, the ciphers and the certificate:",
                format!("openssl s_client -brief -CAfile {ca} -connect {address} </dev/null"),
            ),
            (
                "The same without the authority; curl refuses the certificate:",
                format!("curl https://{address}/ping"),
            ),
            (
                "Plain HTTP, which is answered 400:",
                format!("curl -i http://{address}/ping"),
            ),
        ];
        for (what, command) in tries {
            writeln!(out, "  {what}\n    {command}")?;
        }
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Nobody needs them any more.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

const CA: &str = "ca.pem";
const CHAIN: &str = "site.pem";
const KEY: &str = "site.key";

/// The certificate of an authority, one that it has issued, and the key of that, as PEM.
fn issue() -> Result<(String, String, String), rcgen::Error> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let name = "Authority of a demo of Evenkeel";
    params.distinguished_name.push(DnType::CommonName, name);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let names = ["127.0.0.1", "localhost"].map(str::to_owned);
    let mut params = CertificateParams::new(names)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params
        .distinguished_name
        .push(DnType::CommonName, "localhost");
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &authority)?;
    Ok((authority.pem(), certificate.pem(), key.serialize_pem()))
}
