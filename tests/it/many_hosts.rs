//! A large configuration: what it costs in memory, and that its last host is found.

use evenkeel_testkit::{Proxy, RawOrigin};

use crate::setup::{get, program, test};

const HOSTS: usize = 10_000;
const UPSTREAMS: usize = 1_000;
const ENDPOINTS: usize = 10;

/// Resident memory that the process may take, in bytes. It holds 60 MB; the allocator
/// keeps up to 70 more for a while, that reading the configuration took.
const MAX_MEMORY: u64 = 150_000_000;

/// Two routes for each host; of the endpoints only those of the last upstream are
/// there.
fn config(origin: &str) -> String {
    let routes = (0..HOSTS).flat_map(|host| {
        [", path = \"/api/*\"", ""].map(|path| {
            let upstream = host % UPSTREAMS;
            format!(
                "[[route]]\nmatch = {{ host = \"host-{host}.example.com\"{path} }}\n\
                 upstream = \"app-{upstream}\"\n"
            )
        })
    });
    let upstreams = (0..UPSTREAMS).map(|upstream| {
        let endpoints = (0..ENDPOINTS).map(|endpoint| {
            if upstream + 1 == UPSTREAMS {
                return format!("\"{origin}\"");
            }
            let number = upstream * ENDPOINTS + endpoint;
            format!("\"127.1.{}.{}:9\"", number / 256, number % 256)
        });
        let mut endpoints: Vec<_> = endpoints.collect();
        endpoints.dedup();
        let endpoints = endpoints.join(", ");
        format!("[upstream.app-{upstream}]\nendpoints = [{endpoints}]\n")
    });
    let tables: Vec<_> = routes.chain(upstreams).collect();
    format!(
        "[server]\nworkers = 1\n[[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n{}",
        tables.concat()
    )
}

#[test]
fn ten_thousand_hosts_fit_in_little_memory() {
    test(|| {
        let origin =
            RawOrigin::answering_each("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        let proxy = Proxy::start(program(), &config(&origin.address.to_string())).unwrap();
        let mut client = proxy.client();
        let last = HOSTS - 1;
        for (host, status) in [
            (format!("host-{last}.example.com"), 200),
            (format!("HOST-{last}.example.com:80"), 200),
            ("other.example.com".to_owned(), 404),
        ] {
            let request = get("/").replace("test.example", &host);
            let response = client.ask(request).unwrap();
            assert_eq!(response.status, status, "{host}");
        }
        let memory = proxy.rss_bytes().unwrap();
        assert!(memory <= MAX_MEMORY, "{memory} bytes");
    });
}
