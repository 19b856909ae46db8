//! A server before Pebble that passes requests on, or spoils them.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_acme::Issuer;
use evenkeel_testkit::tls::Authority;
use evenkeel_testkit::{Pebble, TempDir};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

use crate::support::issuer;

/// The fate of a request.
pub enum Then {
    /// Pebble answers.
    Pass,
    /// No answer.
    Hang,
    /// The front answers with this status line, these header lines, and this body.
    Answer(&'static str, &'static str, String),
    /// Pebble answers, and this is made of its body.
    Change(fn(String) -> String),
}

type Rule = Box<dyn FnMut(&str) -> Then + Send>;

/// A server before Pebble, with its own port. Its directory names itself.
pub struct Front {
    dir: TempDir,
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    rule: Mutex<Rule>,
    pebble: Mutex<(u16, Arc<ClientConfig>)>,
    /// The paths of all requests.
    asked: Mutex<Vec<String>>,
}

impl Front {
    /// One that passes everything on.
    pub fn new(pebble: &Pebble) -> Self {
        let dir = TempDir::new().unwrap();
        let authority = Authority::new().unwrap();
        fs::write(dir.join("front.pem"), authority.pem()).unwrap();
        let issued = authority.issue(&["127.0.0.1"]).unwrap();
        let config = issued.serving(rustls::ALL_VERSIONS, &[]).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            rule: Mutex::new(Box::new(|_| Then::Pass)),
            pebble: Mutex::new(way_to(pebble)),
            asked: Mutex::default(),
        });
        let of = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, of) = (config.clone(), of.clone());
                // A client that leaves does not matter here.
                std::thread::spawn(move || drop(serve(stream, config, &of)));
            }
        });
        Self { dir, port, shared }
    }

    /// Does this with requests from now on, by their paths.
    pub fn rule(&self, rule: impl FnMut(&str) -> Then + Send + 'static) {
        *self.shared.rule.lock().unwrap() = Box::new(rule);
    }

    /// Passes requests on to another one.
    pub fn switch_to(&self, pebble: &Pebble) {
        *self.shared.pebble.lock().unwrap() = way_to(pebble);
    }

    /// The issuer that clients see.
    pub fn issuer(&self, pebble: &Pebble) -> Issuer {
        Issuer {
            directory: format!("https://127.0.0.1:{}/dir", self.port),
            ca: Some(self.ca_path()),
            ..issuer(pebble)
        }
    }

    pub fn ca_path(&self) -> PathBuf {
        self.dir.join("front.pem")
    }

    /// The last path that was asked for and begins so.
    pub fn last(&self, path: &str) -> Option<String> {
        let asked = self.shared.asked.lock().unwrap();
        asked.iter().rfind(|it| it.starts_with(path)).cloned()
    }

    /// How often a path was asked for that begins so.
    pub fn count(&self, path: &str) -> usize {
        let asked = self.shared.asked.lock().unwrap();
        asked.iter().filter(|it| it.starts_with(path)).count()
    }
}

fn way_to(pebble: &Pebble) -> (u16, Arc<ClientConfig>) {
    let ca = fs::read(pebble.ca_path()).unwrap();
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(&ca).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (pebble.port(), Arc::new(config))
}

/// Answers one request.
fn serve(stream: TcpStream, config: Arc<ServerConfig>, shared: &Shared) -> io::Result<()> {
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let (head, body) = read_message(&mut stream)?;
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    shared.asked.lock().unwrap().push(path.clone());
    let then = (shared.rule.lock().unwrap())(&path);
    let (head, body) = match then {
        Then::Pass => pass(shared, &head, &body)?,
        Then::Change(change) => {
            let (head, body) = pass(shared, &head, &body)?;
            let body = String::from_utf8(body).map_err(io::Error::other)?;
            (head, change(body).into_bytes())
        }
        Then::Answer(status, headers, body) => {
            (format!("HTTP/1.1 {status}\r\n{headers}"), body.into_bytes())
        }
        Then::Hang => {
            // Wait until the client gives up.
            stream
                .sock
                .set_read_timeout(Some(Duration::from_secs(60)))?;
            return stream.read(&mut [0]).map(drop);
        }
    };
    let is_ours = |line: &&str| {
        let line = line.to_ascii_lowercase();
        !line.is_empty() && !line.starts_with("content-length:") && !line.starts_with("connection:")
    };
    let mut answer = String::new();
    for line in head.split("\r\n").filter(is_ours) {
        answer.push_str(line);
        answer.push_str("\r\n");
    }
    let length = body.len();
    answer.push_str(&format!(
        "Content-Length: {length}\r\nConnection: close\r\n\r\n"
    ));
    stream.write_all(answer.as_bytes())?;
    stream.write_all(&body)?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// Has Pebble answer: the head and the body of its response.
fn pass(shared: &Shared, head: &str, body: &[u8]) -> io::Result<(String, Vec<u8>)> {
    let (port, config) = shared.pebble.lock().unwrap().clone();
    let name = ServerName::try_from("127.0.0.1").map_err(io::Error::other)?;
    let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, TcpStream::connect(("127.0.0.1", port))?);
    // A response to HTTP/1.0 ends with the connection, without chunks.
    let head = head.replacen("HTTP/1.1", "HTTP/1.0", 1);
    stream.write_all(head.as_bytes())?;
    stream.write_all(b"\r\n\r\n")?;
    stream.write_all(body)?;
    let mut response = Vec::new();
    match stream.read_to_end(&mut response) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
        _ => {}
    }
    let end = response.windows(4).position(|it| it == b"\r\n\r\n");
    let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
    let body = response.split_off(end + 4);
    let head = String::from_utf8(response).map_err(io::Error::other)?;
    let head = head.trim_end().replacen("HTTP/1.0", "HTTP/1.1", 1);
    Ok((head, body))
}

/// The head of a request, without the empty line, and its body.
fn read_message(stream: &mut impl Read) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8(bytes[..end].to_vec()).map_err(io::Error::other)?;
            let lower = head.to_ascii_lowercase();
            let mut lines = lower.split("\r\n");
            let length = lines.find_map(|it| it.strip_prefix("content-length:"));
            let length = length.map_or(0, |it| it.trim().parse().unwrap());
            if bytes.len() >= end + 4 + length {
                return Ok((head, bytes[end + 4..].to_vec()));
            }
        }
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&buffer[..read]);
    }
}
