//! Timeouts and buffers of routes, in the place of those of their upstream.

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Origin, OriginOptions, Proxy};

use crate::setup::{assert_refused, figures, program, test};
use crate::words;

/// Routes before an origin that takes 500 ms, by an upstream that waits for 200 ms.
const CONFIG: &str = r#"
[server]
workers = 1

[status]
bind = "127.0.0.1:0"

[[listener]]
name = "web"
bind = "127.0.0.1:0"

[[route]]
match = { path = "/11" }
upstream = "app"
timeouts = { first_byte = "5s" }

[[route]]
match = { path = "/12" }
upstream = "app"
timeouts = { first_byte = "5s", total = "300ms" }

[[route]]
match = { path = "/13" }
upstream = "app"
timeouts = { first_byte = "5s" }
buffer = false

[[route]]
upstream = "app"

[upstream.app]
retries = 0
timeouts = { first_byte = "200ms" }
endpoints = [{ address = "$ORIGIN", max_in_flight = 8 }]
"#;

fn start() -> (evenkeel_testkit::OriginHandle, Proxy) {
    let origin = Origin::local(OriginOptions {
        service: Some("fixed:500ms".parse().unwrap()),
        ..OriginOptions::default()
    })
    .unwrap();
    let text = CONFIG.replace("$ORIGIN", &origin.address.to_string());
    (origin, Proxy::start(program(), &text).unwrap())
}

#[test]
fn a_route_waits_as_long_as_it_says() {
    test(|| {
        let (_origin, proxy) = start();
        let get = |path: &str| proxy.client().get(path).unwrap();
        assert_eq!(get("/11").status, 200);
        assert_refused(&get("/12"), words::TOTAL_TIMEOUT);
        assert_refused(&get("/10"), words::FIRST_BYTE_TIMEOUT);
    });
}

#[test]
fn a_route_without_a_buffer_takes_its_slot_with_the_head() {
    test(|| {
        let (_origin, proxy) = start();
        let in_flight = || {
            figures(&proxy)["upstreams"][0]["in_flight"]
                .as_u64()
                .unwrap()
        };
        let half = |path: &str| {
            format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345")
        };
        let mut buffered = proxy.client();
        buffered.send(half("/11")).unwrap();
        let mut unbuffered = proxy.client();
        unbuffered.send(half("/13")).unwrap();
        until("one of them has a slot", || in_flight() == 1);
        unbuffered.send("67890").unwrap();
        assert_eq!(unbuffered.read_response("POST").unwrap().status, 200);
        assert_eq!(in_flight(), 0);
        buffered.send("67890").unwrap();
        assert_eq!(buffered.read_response("POST").unwrap().status, 200);
    });
}
