//! A large configuration: its memory, and a lookup of its last host.

use std::net::TcpListener;

use evenkeel_testkit::many_hosts::{host, tables};
use evenkeel_testkit::{Origin, OriginOptions, Proxy};

use crate::setup::{get, program, test};

const HOSTS: usize = 10_000;

/// Resident memory that the process may take, in bytes.
const MAX_MEMORY: u64 = 100_000_000;

#[test]
fn ten_thousand_hosts_fit_in_little_memory() {
    test(|| {
        let everywhere = TcpListener::bind(("0.0.0.0", 0)).unwrap();
        let origin = Origin::start(OriginOptions::default(), everywhere).unwrap();
        let port = origin.socket_addr().unwrap().port();
        let config = format!(
            "[server]\nworkers = 1\n[[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n{}",
            tables(HOSTS, port)
        );
        let proxy = Proxy::start(program(), &config).unwrap();
        let mut client = proxy.client();
        let last = host(HOSTS - 1);
        for (host, status) in [
            (last.clone(), 200),
            (format!("{}:80", last.replace("host", "HOST")), 200),
            ("other.example.com".to_owned(), 404),
        ] {
            let request = get("/ping").replace("test.example", &host);
            let response = client.ask(request).unwrap();
            assert_eq!(response.status, status, "{host}");
        }
        let memory = proxy.rss_bytes().unwrap();
        assert!(memory <= MAX_MEMORY, "{memory} bytes");
    });
}
