//! Both ends of a connection, in memory.

use std::io::{Read, Write};
use std::sync::Arc;

use evenkeel_testkit::TempDir;
use evenkeel_tls::reading::read;
use evenkeel_tls::resolver::refusal;
use evenkeel_tls::{
    Certificates, ClientAuth, Policy, Served, ServerSettings, Source, UnknownName, Version,
};
use rustls::client::WebPkiServerVerifier;
use rustls::{
    ClientConfig, ClientConnection, Error, RootCertStore, ServerConfig, ServerConnection,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::issuing::{Authority, Issued};

/// A listener's side: an authority, and the certificates that it has issued.
pub struct Site {
    pub temp: TempDir,
    pub authority: Authority,
}

impl Site {
    pub fn new() -> Self {
        Self {
            temp: TempDir::new().unwrap(),
            authority: Authority::new("Server CA"),
        }
    }

    pub fn certificates(&self) -> Arc<Certificates> {
        let (certificates, troubles) = read(&[Source::Folder(self.temp.path().to_owned())], None);
        assert_eq!(troubles, []);
        Arc::new(certificates)
    }

    pub fn settings(&self, unknown_name: UnknownName) -> ServerSettings {
        ServerSettings {
            policy: Policy::default(),
            certificates: Arc::new(Served::new(self.certificates(), unknown_name)),
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            client_auth: ClientAuth::None,
            early_data: false,
            tickets: None,
            key_log: None,
        }
    }

    pub fn client(&self, policy: &Policy, identity: Option<&Issued>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.authority.pem().as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(policy.provider());
        let versions: Vec<_> = policy
            .versions()
            .iter()
            .map(|it| match it {
                Version::Tls12 => &rustls::version::TLS12,
                Version::Tls13 => &rustls::version::TLS13,
            })
            .collect();
        let verifier =
            WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone()).build();
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .unwrap()
            .with_webpki_verifier(verifier.unwrap());
        match identity {
            None => builder.with_no_client_auth(),
            Some(it) => {
                let chain = CertificateDer::pem_slice_iter(it.chain.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(it.key.as_bytes()).unwrap();
                builder
                    .with_client_auth_cert(chain.map(|it| it.unwrap()).collect(), key)
                    .unwrap()
            }
        }
    }
}

/// Both ends after a handshake and a byte each way, or the errors of client and server.
pub type Ends = (ClientConnection, ServerConnection);

pub fn connect(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
    name: &str,
) -> Result<Ends, Box<(Error, Error)>> {
    let name = name.to_owned().try_into().unwrap();
    let mut client = ClientConnection::new(client.clone(), name).unwrap();
    let mut server = ServerConnection::new(server.clone()).unwrap();
    client.writer().write_all(b"?").unwrap();
    server.writer().write_all(b"!").unwrap();
    let mut failed = None;
    for _ in 0..10 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        while !bytes.is_empty() && failed.is_none() {
            let read = server.read_tls(&mut &bytes[..]).unwrap();
            bytes.drain(..read);
            failed = server.process_new_packets().err();
        }
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        if let Some(record) = failed.as_ref().and_then(refusal) {
            bytes = record.to_vec();
        }
        while !bytes.is_empty() {
            let read = client.read_tls(&mut &bytes[..]).unwrap();
            bytes.drain(..read);
            if let Err(error) = client.process_new_packets() {
                // The server may not know yet: its side of the story is the client's alert.
                return Err((error, failed.unwrap_or(Error::HandshakeNotComplete)).into());
            }
        }
    }
    if let Some(error) = failed {
        panic!("the server failed alone: {error}");
    }
    let mut byte = [0];
    client.reader().read_exact(&mut byte).unwrap();
    server.reader().read_exact(&mut byte).unwrap();
    Ok((client, server))
}

/// The common names of the leaf that the client has seen, by its DNS name.
pub fn seen(client: &ClientConnection) -> Vec<String> {
    let leaf = &client.peer_certificates().unwrap()[0];
    evenkeel_tls::Facts::of(leaf).unwrap().dns_names
}
