//! The configuration that tests share, and assertions on answers and logs.

use evenkeel_testkit::deadline::{until, within};
use evenkeel_testkit::process::repository;
use evenkeel_testkit::{
    Origin, OriginHandle, OriginOptions, Proxy, ProxySetup, RawClient, Response,
};
use socket2::{Domain, Socket, Type};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use crate::words::Reason;

/// The program under test: the one just built, unless the environment names
/// another, such as an optimised build.
pub fn program() -> String {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| {
        std::env::var("EVENKEEL_TEST_PROGRAM").unwrap_or_else(|_| program_just_built())
    });
    PROGRAM.clone()
}

/// The program that lies where cargo has put these tests. Cargo does not build it for them
/// alone, so that a change of the program does not have the tests built again.
fn program_just_built() -> String {
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("evenkeel");
    let built = fs::metadata(&program).and_then(|it| it.modified());
    let folders = ["src", "crates"].map(|it| repository().join(it));
    let (changed, source) = folders.iter().map(|it| last_changed(it)).max().unwrap();
    assert!(
        built.is_ok_and(|it| it >= changed),
        "{} is older than {}: run `make it` or `cargo test --workspace`",
        program.display(),
        source.display()
    );
    program.to_str().unwrap().to_owned()
}

/// The source of the program that was changed last, in this folder or below.
fn last_changed(folder: &Path) -> (SystemTime, PathBuf) {
    const NOT_IN_IT: [&str; 8] = [
        "tests",
        "tests.rs",
        "fuzz",
        "fuzz.rs",
        "simulation",
        "benches",
        "lab",
        "testkit",
    ];
    let entries = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    let in_it = entries.filter(|path| !NOT_IN_IT.iter().any(|it| path.ends_with(it)));
    let changes = in_it.filter_map(|path| {
        if path.is_dir() {
            return Some(last_changed(&path));
        }
        let is_source = path.extension().is_some_and(|it| it == "rs");
        is_source.then(|| (fs::metadata(&path).unwrap().modified().unwrap(), path))
    });
    changes
        .max()
        .unwrap_or((SystemTime::UNIX_EPOCH, folder.to_owned()))
}

/// The further lines of a site's configuration, in TOML.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    /// The listener's address.
    pub bind: &'a str,
    /// Further keys of the listener.
    pub listener: &'a str,
    /// Further keys of the upstream.
    pub upstream: &'a str,
    /// Further tables, such as `[server]` has.
    pub server: &'a str,
}

impl Default for Site<'_> {
    fn default() -> Self {
        Site {
            bind: "127.0.0.1:0",
            listener: "",
            upstream: "",
            server: "",
        }
    }
}

impl Site<'_> {
    /// The configuration, with these endpoints: addresses or inline tables.
    pub fn config(&self, endpoints: &[String]) -> String {
        let endpoints: Vec<String> = endpoints
            .iter()
            .map(|text| {
                if text.starts_with('{') {
                    text.clone()
                } else {
                    format!("{text:?}")
                }
            })
            .collect();
        format!(
            "[server]\nworkers = 1\n{}\n\n[access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\n\n\
             [[listener]]\nname = \"web\"\nbind = \"{}\"\n{}\n\n[[route]]\nupstream = \"app\"\n\n\
             [upstream.app]\nendpoints = [{}]\n{}\n",
            self.server,
            self.bind,
            self.listener,
            endpoints.join(", "),
            self.upstream
        )
    }

    /// Starts the program with these endpoints.
    pub fn start(&self, endpoints: &[String]) -> Proxy {
        Proxy::start(program(), &self.config(endpoints)).unwrap()
    }

    /// Starts the program in a given way.
    pub fn start_with(&self, endpoints: &[String], setup: &ProxySetup) -> Proxy {
        Proxy::start_with(program(), &self.config(endpoints), setup).unwrap()
    }

    /// Starts an ordinary origin and the program before it.
    pub fn with_origin(&self) -> (OriginHandle, Proxy) {
        let origin = origin();
        let proxy = self.start(&[origin.address.to_string()]);
        (origin, proxy)
    }
}

/// An ordinary origin.
pub fn origin() -> OriginHandle {
    Origin::local(OriginOptions::default()).unwrap()
}

/// An origin at an address where another one may have been a moment ago. Processes that tests
/// start hold a copy of its listening socket between fork and exec.
pub fn origin_at(address: &str) -> OriginHandle {
    let mut origin = None;
    until("the address is free", || {
        let listen = address.parse().unwrap();
        let options = OriginOptions {
            listen,
            ..OriginOptions::default()
        };
        match Origin::listen(options) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            outcome => origin = Some(outcome.unwrap()),
        }
        origin.is_some()
    });
    origin.expect("it is there")
}

/// An address of 127.0.0.1 where no socket listens, until a test listens there. This process
/// keeps the port until it ends, so that no other test and no connection gets it in between.
pub fn nobody() -> String {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // As the standard library does for listeners: those two may share the port.
    socket.set_reuse_address(true).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    std::mem::forget(socket);
    address.to_string()
}

/// An ordinary origin and the program before it, with nothing special.
pub fn site() -> (OriginHandle, Proxy) {
    Site::default().with_origin()
}

/// Runs a test with the ordinary deadline.
pub fn test(body: impl FnOnce() + Send + 'static) {
    within(Duration::from_secs(30), body);
}

/// The answer at a path of the status page, with further fields in the request.
#[track_caller]
pub fn ask_status(proxy: &Proxy, path: &str, fields: &str) -> Response {
    let mut client = RawClient::connect(proxy.status_address()).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    let response = client.ask(request).unwrap();
    assert_eq!(response.status, 200, "{path}");
    response
}

/// All figures of `/status.json`.
#[track_caller]
pub fn figures(proxy: &Proxy) -> serde_json::Value {
    serde_json::from_slice(&ask_status(proxy, "/status.json", "").body).unwrap()
}

/// A GET request for a path.
pub fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: test.example\r\n\r\n")
}

/// The start of the body of an origin's pattern.
pub fn pattern(len: u64) -> Vec<u8> {
    (0..len)
        .map(evenkeel_testkit::origin::payload_byte)
        .collect()
}

/// Checks an answer's status and that its text names the reason.
#[track_caller]
pub fn assert_refused(response: &Response, reason: Reason) {
    assert_eq!(
        response.status, reason.status,
        "{}: {response:?}",
        reason.word
    );
    let text = response.text().to_lowercase();
    assert!(
        text.contains(&reason.text.to_lowercase()),
        "{}: {text:?}",
        reason.word
    );
}

/// Waits until a line of the access log has the reason's word as a value.
#[track_caller]
pub fn assert_logged(proxy: &Proxy, reason: Reason) {
    let has_word = |line: &serde_json::Value| {
        line.as_object()
            .is_some_and(|line| line.values().any(|value| value == reason.word))
    };
    until(&format!("{:?} in the access log", reason.word), || {
        proxy.access_log_json().iter().any(has_word)
    });
}

/// Checks that a request is refused in answer, log and by closing.
#[track_caller]
pub fn assert_refused_and_closed(proxy: &Proxy, request: &[u8], reason: Reason) {
    let mut client = proxy.client();
    client.send(request).unwrap();
    let response = client.read_response("GET").unwrap();
    assert_refused(&response, reason);
    assert_eq!(response.field("connection"), Some("close"), "{response:?}");
    assert!(
        client.is_closed(),
        "{}: the connection stays open",
        reason.word
    );
    assert_logged(proxy, reason);
}

/// Checks that the client can still be served.
#[track_caller]
pub fn assert_serves(client: &mut RawClient) {
    let response = client.get("/ping").unwrap();
    assert_eq!(
        (response.status, response.text().as_str()),
        (200, "pong"),
        "{response:?}"
    );
}

/// The rows of HAProxy's CSV: each value by its field's name.
pub fn csv_rows(csv: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = csv.trim_start_matches("# ").lines();
    let names: Vec<_> = lines.next().unwrap().split(',').collect();
    let lines = lines.filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let fields = names.iter().zip(line.split(','));
            fields
                .map(|(name, value)| ((*name).to_owned(), value.to_owned()))
                .collect()
        })
        .collect()
}
