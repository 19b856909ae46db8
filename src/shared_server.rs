//! A server of Redis or Valkey that several processes share: its address, and connections to it.
//!
//! Nothing here decides on commands, or when to send them. Its users are the tier of the cache
//! that machines share, the keys of tickets and the certificates by ACME.

mod standing;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_tls::handshake_fault::without_links;
use evenkeel_tls::{
    Authorities, ClientSettings, HandshakeFault, Policy, Preset, Verify, client_config,
};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisError,
};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::config::{SharedPlace, SharedStore, Trust};

pub use standing::SharedServerFigures;
pub(crate) use standing::{ANSWER_TIME, CONNECT_TIME, Fault, ServerHealth, within};

/// The first pause, and the longest. Each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Pauses start from the first again once the server was up for so long.
const WELL_TIME: Duration = Duration::from_secs(10);
/// Part of a pause that is left to chance: machines do not come back all at once.
const JITTER: f64 = 0.25;
/// Time for the TLS handshake: less than callers wait, so that they get its error.
const HANDSHAKE_TIME: Duration = Duration::from_secs(2);

/// The address of a server, with user and password.
#[derive(Clone, PartialEq, Eq)]
pub struct Server {
    url: String,
    /// The trusted authorities of its certificate; `None` for plain text.
    tls: Option<Trust>,
    /// Without user and password.
    shown: String,
}

impl Server {
    /// Of `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]` or
    /// `redis+unix://PATH[?db=DB&user=USER&pass=PASSWORD]`.
    ///
    /// # Errors
    /// The URL is malformed. The text does not show the password.
    pub fn new(url: &str) -> Result<Self, String> {
        let mut server = Server {
            url: url.to_owned(),
            tls: None,
            shown: String::new(),
        };
        let info = server.info().map_err(|error| error.to_string())?;
        let database = info.redis_settings().db();
        server.shown = format!("{}/{database}", info.addr());
        Ok(server)
    }

    /// The one that a configuration names.
    ///
    /// # Errors
    /// Its library takes no such address. The text does not show the password.
    pub fn of(store: &SharedStore) -> io::Result<Self> {
        let server = Server::new(&url(store)).map_err(io::Error::other)?;
        Ok(Server {
            tls: store.tls.clone(),
            ..server
        })
    }

    fn info(&self) -> redis::RedisResult<ConnectionInfo> {
        let info = (&*self.url).into_connection_info()?;
        let settings = info.redis_settings().clone();
        // The protocol whose answers are read here.
        let settings = settings.set_protocol(redis::ProtocolVersion::RESP2);
        // A command is not kept back until the one before it is answered.
        let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
        Ok(info.set_redis_settings(settings).set_tcp_settings(tcp))
    }

    /// Connects, and logs in. Bounds the time of a TLS handshake alone: callers bound the rest.
    /// To be called within a runtime of tokio.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, ConnectFault> {
        let info = self.info()?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let (Some(trust), ConnectionAddr::Tcp(host, port)) = (&self.tls, info.addr()) else {
            let client = redis::Client::open(info)?;
            let connection = client.get_multiplexed_async_connection_with_config(&config);
            return connection.await.map_err(ConnectFault::of_plain);
        };
        // Reading files may block.
        let trust = trust.clone();
        let read = tokio::task::spawn_blocking(move || tls(&trust)).await;
        let tls = read.unwrap_or_else(|error| Err(error.to_string()));
        let tls = tls.map_err(ConnectFault::Tls)?;
        let name = ServerName::try_from(host.clone());
        let name = name.map_err(|error| ConnectFault::Tls(error.to_string()))?;
        let stream = TcpStream::connect((&**host, *port)).await?;
        stream.set_nodelay(true)?;
        let encrypted = TlsConnector::from(tls).connect(name, stream);
        let encrypted = match timeout(HANDSHAKE_TIME, encrypted).await {
            Ok(encrypted) => encrypted.map_err(ConnectFault::of_handshake)?,
            Err(_) => {
                let seconds = HANDSHAKE_TIME.as_secs();
                let why = format!(
                    "it did not answer the TLS handshake within {seconds} s: {MAYBE_PLAIN}"
                );
                return Err(ConnectFault::Tls(why));
            }
        };
        let settings = info.redis_settings();
        let connected = MultiplexedConnection::new_with_config(settings, encrypted, config).await?;
        let (connection, driver) = connected;
        // It ends with the last clone of the connection.
        tokio::spawn(driver);
        Ok(connection)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({self})")
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum ConnectFault {
    /// Its certificate is not accepted, for this reason.
    Certificate(String),
    /// TLS failed for another reason.
    Tls(String),
    /// The connection without TLS was cut, or the answer is none of its protocol.
    Plain(RedisError),
    /// Anything else.
    Other(RedisError),
}

/// The likely reason where a server does not understand TLS.
const MAYBE_PLAIN: &str = "it may speak plain text: then the URL begins with `redis://`";

/// The likely reason where a server does not understand plain text.
const MAYBE_TLS: &str = "it may speak TLS: then the URL begins with `rediss://`";

impl ConnectFault {
    fn of_plain(error: RedisError) -> Self {
        // TLS answers plain text with an alert, or not at all.
        let is_cut = error.is_connection_dropped() && !error.is_connection_refusal();
        if is_cut || error.kind() == ErrorKind::Parse {
            ConnectFault::Plain(error)
        } else {
            ConnectFault::Other(error)
        }
    }

    fn of_handshake(error: io::Error) -> Self {
        let inner = error.get_ref().and_then(|it| it.downcast_ref());
        let is_cut = matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
        );
        let is_not_tls = |it: Option<&rustls::Error>| {
            let no_record = rustls::InvalidMessage::InvalidContentType;
            it.is_some_and(|it| *it == rustls::Error::InvalidMessage(no_record))
        };
        match inner.map(|it: &rustls::Error| HandshakeFault::from(it)) {
            Some(HandshakeFault::Certificate(why)) => ConnectFault::Certificate(why),
            Some(HandshakeFault::Other(why)) if is_not_tls(inner) => {
                ConnectFault::Tls(format!("{why}: {MAYBE_PLAIN}"))
            }
            Some(HandshakeFault::Other(why)) => ConnectFault::Tls(why),
            None if is_cut => {
                let why = "it closed the connection in the TLS handshake";
                ConnectFault::Tls(format!("{why}: {MAYBE_PLAIN}"))
            }
            None => ConnectFault::Other(error.into()),
        }
    }
}

impl From<RedisError> for ConnectFault {
    fn from(error: RedisError) -> Self {
        ConnectFault::Other(error)
    }
}

impl From<io::Error> for ConnectFault {
    fn from(error: io::Error) -> Self {
        ConnectFault::Other(error.into())
    }
}

impl fmt::Display for ConnectFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectFault::Certificate(why) | ConnectFault::Tls(why) => f.write_str(why),
            ConnectFault::Plain(error) => write!(f, "{}: {MAYBE_TLS}", in_words(error)),
            ConnectFault::Other(error) => f.write_str(&in_words(error)),
        }
    }
}

/// The text of an error, without links.
pub(crate) fn in_words(error: &RedisError) -> String {
    without_links(&error.to_string()).into_owned()
}

/// Pauses between tries to reach a server that is down.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    last: Option<Duration>,
}

impl Pauses {
    /// The server was up for so long.
    pub fn note_up(&mut self, time: Duration) {
        if time >= WELL_TIME {
            self.last = None;
        }
    }

    /// How long to wait before the next try.
    pub fn next(&mut self) -> Duration {
        let pause = self.last.map_or(FIRST_PAUSE, |it| it * 2);
        let pause = pause.min(LONGEST_PAUSE);
        self.last = Some(pause);
        pause.mul_f64(1.0 - JITTER + 2.0 * JITTER * fastrand::f64())
    }
}

/// The configuration of a handshake. Blocks.
///
/// # Errors
/// No authority is trusted.
fn tls(trust: &Trust) -> Result<Arc<ClientConfig>, String> {
    let verify = match trust {
        Trust::System => {
            let read = Authorities::system_once();
            Verify::By(read.map_err(|error| error.to_string())?)
        }
        Trust::Files { ca, crl } => {
            let read = Authorities::read(ca, crl);
            Verify::By(read.map_err(|error| error.to_string())?)
        }
        Trust::Unverified => Verify::Nothing,
    };
    let made = client_config(ClientSettings {
        policy: Policy::preset(Preset::Intermediate),
        verify,
        pins: Vec::new(),
        identity: None,
        alpn: Vec::new(),
        sessions: 0,
        key_log: None,
    });
    made.map_err(|error| error.to_string())
}

/// The URL of a server, as its library reads it.
fn url(server: &SharedStore) -> String {
    let encoded = |text: &str| -> String {
        let bytes = text.bytes();
        let bytes = bytes.map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        });
        bytes.collect()
    };
    let user = server.user.as_deref().map(encoded).unwrap_or_default();
    let password = server.password.as_ref().map(|it| encoded(&it.0));
    let database = server.database;
    match &server.place {
        SharedPlace::Tcp { host, port } => {
            let login = match password {
                Some(password) => format!("{user}:{password}@"),
                None => String::new(),
            };
            let host = if host.contains(':') {
                format!("[{host}]")
            } else {
                host.clone()
            };
            format!("redis://{login}{host}:{port}/{database}")
        }
        SharedPlace::Unix(path) => {
            let path = encoded(&path.display().to_string()).replace("%2F", "/");
            let login = match password {
                Some(password) => format!("&user={user}&pass={password}"),
                None => String::new(),
            };
            format!("redis+unix://{path}?db={database}{login}")
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn servers_are_shown_without_their_passwords() {
        for (url, shown) in [
            ("redis://localhost", "localhost:6379/0"),
            ("redis://me:secret@[::1]:7000/3", "::1:7000/3"),
            (
                "redis+unix:///run/redis.sock?db=2&pass=secret",
                "/run/redis.sock/2",
            ),
        ] {
            let server = Server::new(url).unwrap();
            assert_eq!(server.to_string(), shown);
            assert_eq!(format!("{server:?}"), format!("Server({shown})"));
        }
        for url in [
            "",
            "localhost:6379",
            "http://me:secret@localhost",
            "rediss://:secret@localhost",
            "redis://:secret@localhost/x",
            "redis://:secret@/1",
        ] {
            let said = Server::new(url).unwrap_err();
            assert!(!said.is_empty() && !said.contains("secret"), "{said}");
        }
    }

    /// The error for a server that answers a first request with these bytes, or keeps still.
    fn said_of(scheme: &str, answer: Option<&'static [u8]>) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let mut server = Server::new(&format!("redis://127.0.0.1:{port}")).unwrap();
            server.tls = (scheme == "rediss").then_some(Trust::Unverified);
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = [0; 16];
                let _ = stream.read(&mut asked).await;
                match answer {
                    Some(answer) => stream.write_all(answer).await.unwrap(),
                    None => std::future::pending().await,
                }
                drop(stream);
                std::future::pending::<()>().await;
            };
            let connected = timeout(HANDSHAKE_TIME * 5, server.connect());
            tokio::select! {
                connected = connected => match connected.unwrap() {
                    Ok(_) => String::new(),
                    Err(fault) => fault.to_string(),
                },
                () = serve => unreachable!("it serves for ever"),
            }
        })
    }

    #[test]
    fn a_url_with_the_wrong_scheme_is_guessed() {
        // An alert of TLS 1.2: protocol_version.
        let alert: &[u8] = &[21, 3, 3, 0, 2, 2, 70];
        for (scheme, answer, expected) in [
            ("rediss", None, MAYBE_PLAIN),
            ("rediss", Some(&b""[..]), MAYBE_PLAIN),
            ("rediss", Some(b"-ERR unknown command\r\n"), MAYBE_PLAIN),
            ("redis", Some(b""), MAYBE_TLS),
            ("redis", Some(alert), MAYBE_TLS),
        ] {
            let said = said_of(scheme, answer);
            assert!(said.ends_with(expected), "{scheme} {answer:?}: {said}");
        }
    }

    #[test]
    fn pauses_grow_and_begin_anew() {
        let mut pauses = Pauses::default();
        let is_about = |pauses: &mut Pauses, millis: u64| {
            let pause = pauses.next();
            let middle = Duration::from_millis(millis);
            let range = middle.mul_f64(1.0 - JITTER)..=middle.mul_f64(1.0 + JITTER);
            assert!(range.contains(&pause), "{pause:?} {millis}");
        };
        for millis in [100, 200, 400] {
            is_about(&mut pauses, millis);
        }
        pauses.note_up(WELL_TIME / 2);
        for millis in [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000] {
            is_about(&mut pauses, millis);
        }
        pauses.note_up(WELL_TIME);
        is_about(&mut pauses, 100);
    }
}
