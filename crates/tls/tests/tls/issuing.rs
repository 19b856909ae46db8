//! An authority that issues certificates, and files of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_testkit::TempDir;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    RevokedCertParams, SignatureAlgorithm, date_time_ymd,
};

/// A certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate as PEM, with its key.
#[derive(Clone)]
pub struct Issued {
    pub chain: String,
    pub key: String,
    pub serial: u64,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { issuer }
    }

    /// The authority's own certificate.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for these names, of a usual key.
    pub fn issue(&self, names: &[&str]) -> Issued {
        self.issue_with(names, &PKCS_ECDSA_P256_SHA256, |_| {})
    }

    pub fn issue_with(
        &self,
        names: &[&str],
        algorithm: &'static SignatureAlgorithm,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        let names: Vec<String> = names.iter().map(|it| (*it).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        let serial = next_serial();
        params.serial_number = Some(serial.into());
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        change(&mut params);
        let key = KeyPair::generate_for(algorithm).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Issued {
            chain: certificate.pem() + &self.issuer.pem(),
            key: key.serialize_pem(),
            serial,
        }
    }

    /// An OCSP response for a day, by OpenSSL: `V` for a good certificate, `R` for a revoked
    /// one.
    pub fn respond(&self, issued: &Issued, status: char) -> Vec<u8> {
        let temp = TempDir::new().unwrap();
        write(temp.path(), "ca.pem", &self.pem());
        write(temp.path(), "ca.key", &self.issuer.key().serialize_pem());
        write(temp.path(), "leaf.pem", &issued.chain);
        let revoked = if status == 'R' { "240101000000Z" } else { "" };
        let serial = format!("{:04X}", issued.serial);
        let line = format!("{status}\t490101000000Z\t{revoked}\t{serial}\tunknown\t/CN=a\n");
        write(temp.path(), "index.txt", &line);
        for arguments in [
            "-no_nonce -issuer ca.pem -cert leaf.pem -reqout request",
            "-index index.txt -CA ca.pem -rsigner ca.pem -rkey ca.key -ndays 1 \
             -reqin request -respout response",
        ] {
            let output = Command::new("openssl")
                .arg("ocsp")
                .args(arguments.split_whitespace())
                .current_dir(temp.path())
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
        }
        fs::read(temp.join("response")).unwrap()
    }

    /// A list of revoked certificates.
    pub fn revoke(&self, serials: &[u64]) -> String {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2099, 1, 1),
            crl_number: 1u64.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

fn next_serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Issued {
    /// Chain and key in one text.
    pub fn bundle(&self) -> String {
        format!("{}{}", self.chain, self.key)
    }

    /// Writes `NAME.pem` into a folder.
    pub fn write_bundle(&self, folder: &Path, name: &str) -> PathBuf {
        write(folder, &format!("{name}.pem"), &self.bundle())
    }
}

pub fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}
