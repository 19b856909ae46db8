//! Attacks by HTTP/2. Each has a bound, checked by its answers and the program's memory.
//!
//! * here: the target of a test, and the measurement of its memory.
//! * [`floods`]: frames without content.
//! * [`heads`]: blocks of fields that are long, many, or held.
//! * [`resets`]: streams that are opened and cut off, and more of them than can be served.
//! * [`stalls`]: clients that take or send nothing.

mod floods;
mod heads;
mod resets;
mod stalls;

use std::io;

use evenkeel_testkit::http2::{ErrorCode, is_end};
use evenkeel_testkit::{H2Client, OriginHandle, Proxy, RawClient};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::is_whole;
use crate::setup::{Site, assert_serves};

/// Memory that each connection may hold, whatever it sends.
const FLOOR: u64 = 64 << 10;

/// Growth of memory without any attack: allocators, logs, figures.
const NOISE: u64 = 1 << 20;

/// A program under attack, and its memory before.
struct Target {
    origin: OriginHandle,
    proxy: Proxy,
    before: u64,
}

impl Target {
    fn new() -> Self {
        Target::with(&Site::default())
    }

    fn with(site: &Site) -> Self {
        let listener = format!("h2c = true\n{}", site.listener);
        let site = Site {
            listener: &listener,
            ..*site
        };
        let (origin, proxy) = site.with_origin();
        Target::before(origin, proxy)
    }

    /// A program before this origin.
    fn before(origin: OriginHandle, proxy: Proxy) -> Self {
        let mut target = Target {
            origin,
            proxy,
            before: 0,
        };
        target.warm_up();
        target
    }

    /// Has memory allocated that ordinary work needs, and notes how much that is.
    fn warm_up(&mut self) {
        for _ in 0..3 {
            let mut client = self.client();
            for n in 0..50 {
                client.get(2 * n + 1, "/medium-payload").unwrap();
            }
            for n in 0..50 {
                assert_eq!(client.response(2 * n + 1).unwrap().status, 200);
            }
        }
        self.assert_serves();
        self.before = self.proxy.rss_bytes().unwrap();
    }

    fn client(&self) -> H2Client {
        H2Client::connect(self.proxy.socket_addr("web")).unwrap()
    }

    fn client_with(&self, settings: &[(u16, u32)]) -> H2Client {
        H2Client::connect_with(self.proxy.socket_addr("web"), settings).unwrap()
    }

    /// Others are served, by HTTP/1 and by HTTP/2.
    #[track_caller]
    fn assert_serves(&self) {
        let mut client = RawClient::connect(self.proxy.socket_addr("web")).unwrap();
        assert_serves(&mut client);
        assert_eq!(self.client().ask(1, "/ping").unwrap().text(), "pong");
    }

    /// Checks the memory held for connections that have sent this many bytes: 64 KiB each, and
    /// four times the bytes sent.
    #[track_caller]
    fn assert_holds_little(&self, connections: u64, sent: u64) {
        let held = self.held();
        let most = connections * FLOOR + 4 * sent + NOISE;
        assert!(
            held <= most,
            "{held} bytes are held for {sent} bytes of {connections} connections: \
             {} for each, {:.1} for each byte",
            held / connections,
            held as f64 / sent as f64,
        );
    }

    /// Memory beyond what ordinary work needs, in bytes.
    fn held(&self) -> u64 {
        let now = self.proxy.rss_bytes().unwrap();
        now.saturating_sub(self.before)
    }
}

/// Connections that an attack on memory opens. A program that is started afterwards may
/// have that many files open.
fn connections() -> u64 {
    if !is_whole() {
        return 100;
    }
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    1_000
}

/// Whether a client could send, or the program has closed the connection on it.
fn is_sent(sent: io::Result<()>) -> bool {
    match sent {
        Ok(()) => true,
        Err(error) if is_end(&error) => false,
        Err(error) => panic!("{error}"),
    }
}

/// The program says that the client makes too much work, and closes.
#[track_caller]
fn assert_calmed(client: &mut H2Client, what: &str) {
    let end = client.end();
    let end = end.unwrap_or_else(|error| panic!("{what}: not closed: {error}"));
    let code = end.map(|it| it.code);
    assert_eq!(code, Some(ErrorCode::EnhanceYourCalm), "{what}");
}
