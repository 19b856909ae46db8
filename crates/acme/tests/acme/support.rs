//! A manager that runs, what answers the challenges, and a clock that the test moves.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use evenkeel_acme::{
    ACME_TLS_ALPN, ChallengeKind, Challenges, Clock, Issuer, Manager, Settings, State, Status,
};
use evenkeel_testkit::deadline::{holds_within, until};
use evenkeel_testkit::{Pebble, PebbleSetup, TempDir};
use evenkeel_tls::{Certificate, Source, reading};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, ServerConnection};
use tokio::sync::{oneshot, watch};

/// The longest time of a test.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A certificate comes within this time.
const SOON: Duration = Duration::from_secs(30);

/// A clock that runs with that of the system, some time ahead of it.
#[derive(Debug)]
pub struct Ahead(watch::Sender<Duration>);

impl Ahead {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(Duration::ZERO)))
    }

    pub fn advance(&self, by: Duration) {
        self.0.send_modify(|it| *it += by);
    }
}

impl Clock for Ahead {
    fn now(&self) -> SystemTime {
        SystemTime::now() + *self.0.borrow()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut ahead = self.0.subscribe();
        let end = self.now() + duration;
        Box::pin(async move {
            loop {
                let now = SystemTime::now() + *ahead.borrow_and_update();
                let Ok(rest) = end.duration_since(now) else {
                    return;
                };
                if rest.is_zero() {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(rest) => {}
                    changed = ahead.changed() => changed.expect("the test holds the clock"),
                }
            }
        })
    }
}

/// Servers at two ports that answer challenges as a manager says.
pub struct Answers {
    pub http_port: u16,
    pub tls_port: u16,
    challenges: Arc<Mutex<Option<Arc<Challenges>>>>,
}

impl Answers {
    pub fn new() -> Self {
        let challenges = Arc::<Mutex<Option<Arc<Challenges>>>>::default();
        let http = TcpListener::bind("127.0.0.1:0").unwrap();
        let http_port = http.local_addr().unwrap().port();
        let of = challenges.clone();
        serve(http, move |stream| answer_http(&stream, &of));
        let tls = TcpListener::bind("127.0.0.1:0").unwrap();
        let tls_port = tls.local_addr().unwrap().port();
        let of = challenges.clone();
        serve(tls, move |stream| answer_tls(stream, &of));
        Self {
            http_port,
            tls_port,
            challenges,
        }
    }

    /// Answers as this manager says from now on.
    pub fn ask(&self, manager: &Manager) {
        *self.challenges.lock().unwrap() = Some(manager.challenges());
    }

    pub fn setup(&self) -> PebbleSetup {
        PebbleSetup {
            http_port: self.http_port,
            tls_port: self.tls_port,
            ..PebbleSetup::default()
        }
    }

    pub fn pebble(&self) -> Pebble {
        Pebble::start_with(&self.setup()).unwrap()
    }
}

type Asked = Mutex<Option<Arc<Challenges>>>;

/// Serves each connection on its own thread, as long as the test's process lives.
fn serve(listener: TcpListener, answer: impl Fn(TcpStream) + Send + Sync + 'static) {
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || answer(stream));
        }
    });
}

fn answer_http(stream: &TcpStream, of: &Asked) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    let _ = reader.read_line(&mut line);
    let path = line.split(' ').nth(1).unwrap_or_default();
    let token = path.strip_prefix("/.well-known/acme-challenge/");
    let challenges = of.lock().unwrap().clone().expect("a manager is asked");
    let answer = token.and_then(|token| {
        let answer = challenges.key_authorization(token);
        // The storage has the same answer.
        let stored = challenges.read_key_authorization(token);
        assert!(answer.is_none() || answer.as_deref() == stored.as_deref());
        stored
    });
    let (status, body) = match answer {
        Some(answer) => ("200 OK", answer),
        None => ("404 Not Found", String::new()),
    };
    let length = body.len();
    let mut stream = stream;
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
}

/// Shows the certificate of the challenge, from memory or from the storage.
#[derive(Debug)]
struct Shown(Arc<Challenges>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?;
        self.0.tls_alpn(name).or_else(|| self.0.read_tls_alpn(name))
    }
}

fn answer_tls(mut stream: TcpStream, of: &Asked) {
    let challenges = of.lock().unwrap().clone().expect("a manager is asked");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Shown(challenges)));
    config.alpn_protocols = vec![ACME_TLS_ALPN.to_vec()];
    let mut connection = ServerConnection::new(Arc::new(config)).unwrap();
    // The issuer closes the connection after the handshake.
    while connection.complete_io(&mut stream).is_ok_and(|it| it.0 > 0) {}
}

/// The settings for one issuer, and these challenges.
pub fn settings(storage: &Path, pebble: &Pebble, challenges: &[ChallengeKind]) -> Settings {
    Settings {
        storage: storage.to_owned(),
        issuers: vec![issuer(pebble)],
        challenges: challenges.to_owned(),
        dns: None,
        on_demand: None,
        shared: None,
    }
}

pub fn issuer(pebble: &Pebble) -> Issuer {
    Issuer {
        directory: pebble.directory(),
        ca: Some(pebble.ca_path()),
        email: Some("admin@example.com".to_owned()),
        profile: None,
        external_account: None,
    }
}

/// A manager that keeps certificates until it is dropped.
pub struct Kept {
    pub manager: Arc<Manager>,
    pub clock: Arc<Ahead>,
    storage: PathBuf,
    events: Events,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Kept {
    /// One that does not run yet.
    pub fn idle(settings: Settings, names: &[&str], clock: Arc<Ahead>) -> Self {
        let storage = settings.storage.clone();
        let manager = Manager::with_clock(settings, clock.clone()).unwrap();
        manager.follow(names.iter().map(|&it| it.to_owned()).collect());
        Self {
            manager: Arc::new(manager),
            clock,
            storage,
            events: Events::default(),
            stop: None,
            thread: None,
        }
    }

    pub fn keep(mut self) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (manager, events) = (self.manager.clone(), self.events.clone());
        self.stop = Some(stop);
        self.thread = Some(std::thread::spawn(move || {
            let subscriber = tracing_subscriber::fmt().with_ansi(false).without_time();
            let subscriber = subscriber.with_writer(move || events.clone()).finish();
            let _subscribed = tracing::subscriber::set_default(subscriber);
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = manager.keep() => {}
                    _ = stopped => {}
                }
            });
        }));
        self
    }

    /// The same manager, on a further thread.
    pub fn keep_twice(&self) -> Self {
        let twin = Self {
            manager: self.manager.clone(),
            clock: self.clock.clone(),
            storage: self.storage.clone(),
            events: Events::default(),
            stop: None,
            thread: None,
        };
        twin.keep()
    }

    pub fn status(&self, name: &str) -> Status {
        let status = self.manager.status();
        let status = status.into_iter().find(|it| it.name == name);
        status.expect("the name is followed")
    }

    /// Waits until a certificate is there, and nothing runs.
    #[track_caller]
    pub fn until_valid(&self, name: &str) -> Arc<Certificate> {
        let is_valid = || self.status(name).state == State::Valid;
        let found = holds_within(SOON, is_valid);
        assert!(found, "no certificate of {name}: {:?}", self.status(name));
        self.certificate(name)
    }

    /// Waits until an order has failed this often, and returns why.
    #[track_caller]
    pub fn until_failed(&self, name: &str, failures: u32) -> String {
        let has_failed = || {
            let status = self.status(name);
            status.failures == failures && status.state == State::Failed
        };
        let found = holds_within(SOON, has_failed);
        assert!(found, "{name} did not fail: {:?}", self.status(name));
        self.status(name).last_error.unwrap().text
    }

    /// Waits until the schedule is known: the next attempt is later than now.
    #[track_caller]
    pub fn until_scheduled(&self, name: &str) -> SystemTime {
        let next = || self.status(name).next_attempt;
        until("an attempt is scheduled", || {
            next().is_some_and(|it| it > self.clock.now())
        });
        next().unwrap()
    }

    /// The events so far, a line each.
    pub fn events(&self) -> String {
        String::from_utf8(self.events.0.lock().unwrap().clone()).unwrap()
    }

    #[track_caller]
    pub fn certificate(&self, name: &str) -> Arc<Certificate> {
        certificate_at(&Manager::certificate_path(&self.storage, name))
    }
}

/// The lines of events.
#[derive(Debug, Clone, Default)]
struct Events(Arc<Mutex<Vec<u8>>>);

impl Write for Events {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

/// The certificate with its key in a file.
#[track_caller]
pub fn certificate_at(path: &Path) -> Arc<Certificate> {
    let source = Source::Pair {
        chain: path.to_owned(),
        key: path.to_owned(),
    };
    let (certificates, troubles) = reading::read(&[source], None);
    assert_eq!(troubles, []);
    certificates.all()[0].clone()
}

/// The files of a folder in the storage.
pub fn files(dir: &TempDir, folder: &str) -> Vec<String> {
    let entries = fs::read_dir(dir.join(folder)).unwrap();
    let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}
