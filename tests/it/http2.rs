//! HTTP/2 with clients, with the public suite, third-party clients and attacks; and with
//! endpoints.
//!
//! `make test` runs a telling part of the suite and fewer connections of each attack;
//! `make test-http2` runs all of it.

mod attacks;
mod bad_peer;
mod clients;
mod conformance;
mod endpoints;
mod features;
mod flow;
mod grpc;
mod interop;
mod suites;

use evenkeel_testkit::{H2Client, OriginHandle, Proxy};

use crate::setup::{Site, origin};
use crate::tls::{Issuing, TLS13};

/// Whether all of the suites is asked for, or a telling part.
fn is_whole() -> bool {
    std::env::var("EVENKEEL_TEST_HTTP2").is_ok_and(|it| it == "whole")
}

/// The program with HTTP/2 in plain text at `web` and over TLS at `tls`, before an ordinary
/// origin.
struct Both {
    issuing: Issuing,
    origin: OriginHandle,
    proxy: Proxy,
}

impl Both {
    fn new() -> Self {
        Both::with("")
    }

    /// The same with more tables of configuration.
    fn with(more: &str) -> Self {
        let issuing = Issuing::new();
        // Clients that ask by address send no name.
        issuing.issue("a", &["a.test", "127.0.0.1"]);
        let tls = issuing.listener(&["a"], "");
        let origin = origin();
        let server = format!("[[listener]]\nname = \"tls\"\nbind = \"127.0.0.1:0\"\n{tls}\n{more}");
        let site = Site {
            listener: "h2c = true",
            server: &server,
            ..Site::default()
        };
        let proxy = site.start(&[origin.address.to_string()]);
        Both {
            issuing,
            origin,
            proxy,
        }
    }

    /// The URL of a path, for clients with prior knowledge.
    fn plain(&self, path: &str) -> String {
        self.proxy.url(path)
    }

    /// The URL of a path over TLS, by address.
    fn tls(&self, path: &str) -> String {
        format!("https://{}{path}", self.proxy.address("tls"))
    }

    /// The URLs of a path.
    fn urls(&self, path: &str) -> [String; 2] {
        [self.plain(path), self.tls(path)]
    }

    fn client(&self) -> H2Client {
        H2Client::connect(self.proxy.socket_addr("web")).unwrap()
    }

    fn tls_client(&self) -> H2Client {
        let config = self.issuing.client(TLS13);
        H2Client::connect_tls(self.proxy.address("tls"), "a.test", &config).unwrap()
    }
}
