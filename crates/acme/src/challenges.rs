//! The answers to challenges that are running, for any thread and any machine.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use aws_lc_rs::digest::{SHA256, digest};
use rcgen::{Certificate, CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::crypto::aws_lc_rs::sign::any_ecdsa_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;

use crate::name::Name;
use crate::shared::Shared;
use crate::storage::{self, LEFT_BEHIND, Storage};

/// The protocol (ALPN) that a TLS-ALPN-01 handshake offers, and no other beside it.
pub const ACME_TLS_ALPN: &[u8] = b"acme-tls/1";

/// The longest answer that is read from the storage, in bytes.
const MAX_ANSWER: u64 = 1024;

/// The answers to challenges that are running.
///
/// The answers of this process are in memory. The answers of other machines are in the storage
/// that they share with this one.
#[derive(Debug)]
pub struct Challenges {
    place: Place,
    /// The answers in memory.
    count: AtomicUsize,
    answers: RwLock<Answers>,
}

/// The place where other machines find this machine's answers.
#[derive(Debug)]
enum Place {
    Folder(PathBuf),
    Server(Arc<dyn Shared>),
}

#[derive(Debug, Default)]
struct Answers {
    /// Key authorizations by token.
    http: HashMap<String, Arc<str>>,
    /// Certificates by server name.
    tls_alpn: HashMap<String, Arc<CertifiedKey>>,
}

/// An answer that is given from memory until this is dropped, and from the storage until it is
/// withdrawn. An order that is dropped goes on elsewhere: after a reload, in the process that
/// takes over, or on another machine. The issuer may ask for its answer meanwhile.
#[derive(Debug)]
pub(crate) struct Presented {
    challenges: Arc<Challenges>,
    key: Key,
}

#[derive(Debug)]
enum Key {
    Http { token: String },
    TlsAlpn { server_name: String },
}

impl Challenges {
    /// Challenges whose answers are kept in this storage too.
    pub(crate) fn new(storage: &Storage) -> Self {
        Self {
            place: match storage.server() {
                Some(server) => Place::Server(Arc::clone(server)),
                None => Place::Folder(storage.challenges()),
            },
            count: AtomicUsize::new(0),
            answers: RwLock::default(),
        }
    }

    /// The key authorization that answers an HTTP-01 challenge of this process.
    ///
    /// The key authorization is the body of the response to `GET /.well-known/acme-challenge/TOKEN` (RFC 8555,
    /// section 8.3).
    #[must_use]
    pub fn key_authorization(&self, token: &str) -> Option<Arc<str>> {
        if self.is_empty() {
            return None;
        }
        self.read().http.get(token).cloned()
    }

    /// The key authorization that answers an HTTP-01 challenge of any machine on the storage.
    ///
    /// Blocks: it reads a file, or asks the server that machines share.
    #[must_use]
    pub fn read_key_authorization(&self, token: &str) -> Option<String> {
        if is_token(token) {
            self.read_answer(token)
        } else {
            None
        }
    }

    /// The certificate that answers a TLS-ALPN-01 challenge of this process (RFC 8737).
    ///
    /// The certificate is for a client that offers [`ACME_TLS_ALPN`] and asks for `server_name`.
    #[must_use]
    pub fn tls_alpn(&self, server_name: &str) -> Option<Arc<CertifiedKey>> {
        if self.is_empty() {
            return None;
        }
        let server_name = server_name.to_ascii_lowercase();
        self.read().tls_alpn.get(&server_name).cloned()
    }

    /// The certificate that answers a TLS-ALPN-01 challenge of any machine on the storage.
    ///
    /// Blocks: it reads a file, or asks the server that machines share.
    #[must_use]
    pub fn read_tls_alpn(&self, server_name: &str) -> Option<Arc<CertifiedKey>> {
        let Some(Name::Host(server_name)) = Name::parse(server_name) else {
            return None;
        };
        let answer = self.read_answer(&alpn_file(&server_name))?;
        let (name, key_authorization) = answer.split_once(' ')?;
        certificate(&Name::parse(name)?, key_authorization).ok()
    }

    /// Whether no challenge of this process is running. It reads one atomic.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Answers an HTTP-01 challenge from now on. Blocks.
    ///
    /// # Errors
    /// The storage cannot be written, or the issuer's token is malformed.
    pub(crate) fn present_http(
        self: &Arc<Self>,
        token: &str,
        key_authorization: &str,
    ) -> io::Result<Presented> {
        // The token becomes the name of a file.
        if !is_token(token) {
            return Err(io::Error::other(
                "the token of the challenge is not valid base64url",
            ));
        }
        let key = Key::Http {
            token: token.to_owned(),
        };
        self.place.put(&key.file(), key_authorization)?;
        let mut answers = self.write();
        answers
            .http
            .insert(token.to_owned(), key_authorization.into());
        self.count_again(&answers);
        drop(answers);
        Ok(Presented {
            challenges: self.clone(),
            key,
        })
    }

    /// Answers a TLS-ALPN-01 challenge from now on. Blocks.
    ///
    /// # Errors
    /// The storage cannot be written.
    pub(crate) fn present_tls_alpn(
        self: &Arc<Self>,
        name: &Name,
        key_authorization: &str,
    ) -> io::Result<Presented> {
        let server_name = name.alpn_server_name();
        let certificate = certificate(name, key_authorization).map_err(io::Error::other)?;
        let key = Key::TlsAlpn {
            server_name: server_name.clone(),
        };
        let answer = format!("{name} {key_authorization}");
        self.place.put(&key.file(), &answer)?;
        let mut answers = self.write();
        answers.tls_alpn.insert(server_name, certificate);
        self.count_again(&answers);
        drop(answers);
        Ok(Presented {
            challenges: self.clone(),
            key,
        })
    }

    fn count_again(&self, answers: &Answers) {
        let count = answers.http.len() + answers.tls_alpn.len();
        self.count.store(count, Relaxed);
    }

    fn read_answer(&self, file: &str) -> Option<String> {
        String::from_utf8(self.place.get(file).ok()??).ok()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Answers> {
        self.answers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Answers> {
        self.answers.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn get(&self, file: &str) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Folder(folder) => storage::read(&folder.join(file), MAX_ANSWER),
            Self::Server(server) => Ok(server.get(&record(file))?),
        }
    }

    fn put(&self, file: &str, answer: &str) -> io::Result<()> {
        match self {
            Self::Folder(folder) => storage::replace(&folder.join(file), answer.as_bytes()),
            Self::Server(server) => {
                Ok(server.put(&record(file), answer.as_bytes(), LEFT_BEHIND)?)
            }
        }
    }

    fn remove(&self, file: &str) -> io::Result<()> {
        match self {
            Self::Folder(folder) => storage::remove(&folder.join(file)),
            Self::Server(server) => Ok(server.remove(&record(file))?),
        }
    }
}

/// The record of an answer at a server.
fn record(file: &str) -> String {
    format!("challenges/{file}")
}

impl Drop for Presented {
    fn drop(&mut self) {
        let mut answers = self.challenges.write();
        match &self.key {
            Key::Http { token } => drop(answers.http.remove(token)),
            Key::TlsAlpn { server_name } => drop(answers.tls_alpn.remove(server_name)),
        }
        self.challenges.count_again(&answers);
    }
}

impl Presented {
    /// Answers no longer, here and on other machines. Blocks.
    pub(crate) fn withdraw(self) {
        // An answer that stays is removed by age.
        let _ = self.challenges.place.remove(&self.key.file());
    }
}

impl Key {
    fn file(&self) -> String {
        match self {
            Self::Http { token } => token.clone(),
            Self::TlsAlpn { server_name } => alpn_file(server_name),
        }
    }
}

/// Whether it is base64url of a length that issuers use (RFC 8555, section 8.3).
fn is_token(text: &str) -> bool {
    let is_known = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_');
    (1..=128).contains(&text.len()) && text.bytes().all(is_known)
}

/// The name of a file for TLS-ALPN-01. It can't be a token's, since no token has a dot.
fn alpn_file(server_name: &str) -> String {
    format!("{server_name}.alpn")
}

/// The certificate for a TLS-ALPN-01 handshake (RFC 8737, section 3).
fn certificate(name: &Name, key_authorization: &str) -> Result<Arc<CertifiedKey>, rcgen::Error> {
    let mut params = CertificateParams::new([name.to_string()])?;
    params.distinguished_name = DistinguishedName::new();
    let digest = digest(&SHA256, key_authorization.as_bytes());
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    certified_key(&certificate, &key)
}

/// A self-signed certificate with its key, as rustls takes it.
pub(crate) fn certified_key(
    certificate: &Certificate,
    key: &KeyPair,
) -> Result<Arc<CertifiedKey>, rcgen::Error> {
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let key = any_ecdsa_type(&key).map_err(|_| rcgen::Error::CouldNotParseKeyPair)?;
    let chain = vec![certificate.der().clone()];
    Ok(Arc::new(CertifiedKey::new(chain, key)))
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::TempDir;

    use super::*;

    fn two_machines() -> (TempDir, Arc<Challenges>, Challenges) {
        let dir = TempDir::new().unwrap();
        let storage = Storage::open(dir.path()).unwrap();
        let new = || Challenges::new(&storage);
        (dir, Arc::new(new()), new())
    }

    #[test]
    fn every_machine_answers_while_a_challenge_runs() {
        let (_dir, one, other) = two_machines();
        let presented = one.present_http("token-1_A", "token.thumb").unwrap();
        assert_eq!(
            one.key_authorization("token-1_A").as_deref(),
            Some("token.thumb")
        );
        assert_eq!(one.key_authorization("token"), None);
        assert!(other.is_empty() && other.key_authorization("token-1_A").is_none());
        let read = other.read_key_authorization("token-1_A");
        assert_eq!(read.as_deref(), Some("token.thumb"));
        // An order that is dropped may go on elsewhere.
        drop(presented);
        assert!(one.is_empty());
        assert_eq!(one.key_authorization("token-1_A"), None);
        assert_eq!(other.read_key_authorization("token-1_A"), read);
        let presented = one.present_http("token-1_A", "token.thumb").unwrap();
        presented.withdraw();
        assert!(one.is_empty());
        assert_eq!(other.read_key_authorization("token-1_A"), None);
    }

    #[test]
    fn handshakes_get_a_certificate_with_the_digest() {
        let (_dir, one, other) = two_machines();
        let name = Name::parse("a.example.com").unwrap();
        let presented = one.present_tls_alpn(&name, "token.thumb").unwrap();
        let sum = digest(&SHA256, b"token.thumb");
        for certificate in [
            one.tls_alpn("A.example.com").unwrap(),
            other.read_tls_alpn("A.example.com.").unwrap(),
        ] {
            let der = &*certificate.cert[0];
            // acmeIdentifier (RFC 8737, section 6.1), critical, and the digest in it.
            let oid = [
                0x06, 8, 0x2b, 6, 1, 5, 5, 7, 1, 0x1f, 1, 1, 0xff, 4, 0x22, 4, 0x20,
            ];
            let extension = [&oid[..], sum.as_ref()].concat();
            assert!(der.windows(extension.len()).any(|it| it == extension));
        }
        assert!(one.tls_alpn("b.example.com").is_none());
        assert!(other.read_tls_alpn("b.example.com").is_none());
        presented.withdraw();
        assert!(one.tls_alpn("a.example.com").is_none());
        assert!(other.read_tls_alpn("a.example.com").is_none());
    }

    #[test]
    fn no_other_files_are_read_or_written() {
        let (dir, one, _) = two_machines();
        std::fs::write(dir.join("secret"), "secret").unwrap();
        std::fs::write(dir.join("challenges/a.b"), "secret").unwrap();
        for token in ["../secret", "a.b", "", ".", "a/b", "a\0", &"a".repeat(129)] {
            assert_eq!(one.read_key_authorization(token), None, "{token:?}");
            assert!(one.present_http(token, "x").is_err(), "{token:?}");
        }
        for name in ["../secret", "a.b/../x", "", "*.example.com", "192.0.2.1"] {
            assert!(one.read_tls_alpn(name).is_none(), "{name:?}");
        }
        assert!(one.is_empty());
    }
}
