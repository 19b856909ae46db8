//! Limits of routes on the rate of requests by client or another key.

use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, Response};

use crate::reload::reload;
use crate::setup::{ask_status, assert_logged, assert_refused, figures, origin, program, test};
use crate::words;

/// A configuration with these routes before an origin at this address.
fn config(routes: &str, origin: &OriginHandle) -> String {
    format!(
        "[server]\nworkers = 2\ncontrol = \"$DIR/control.sock\"\n\n\
         [access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\n\n[status]\nbind = \"127.0.0.1:0\"\n\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\ntrusted_proxies = [\"127.0.0.1\"]\n\n\
         {routes}\n\n[upstream.app]\nendpoints = [\"{}\"]\n",
        origin.address
    )
}

fn start(routes: &str) -> (OriginHandle, Proxy) {
    let origin = origin();
    let proxy = Proxy::start(program(), &config(routes, &origin)).unwrap();
    (origin, proxy)
}

/// Makes a request over a new connection, with these lines in the head.
fn ask(proxy: &Proxy, path: &str, lines: &str) -> Response {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{lines}\r\n");
    proxy.client().ask(&request).unwrap()
}

fn status(proxy: &Proxy, path: &str, lines: &str) -> u16 {
    ask(proxy, path, lines).status
}

/// The sample of a metric of the route `app`.
fn counted(proxy: &Proxy, metric: &str) -> String {
    let text = ask_status(proxy, "/metrics", "").text();
    let begin = format!("evenkeel_route_limit_{metric}{{route=\"app\"}} ");
    let mut lines = text.lines();
    let found = lines.find_map(|it| it.strip_prefix(&begin));
    found.unwrap_or_else(|| panic!("no {begin}")).to_owned()
}

const PER_CLIENT: &str = r#"
[[route]]
name = "app"
upstream = "app"
limit = { key = "client", rate = "2/h" }
"#;

#[test]
fn a_client_has_a_burst_and_is_refused_then() {
    const ROUTE: &str = r#"
[[route]]
name = "app"
upstream = "app"
limit = { rate = "2/h", burst = 3 }
"#;
    test(|| {
        let (_origin, proxy) = start(ROUTE);
        let mut client = proxy.client();
        for _ in 0..3 {
            let response = client.get("/ping").unwrap();
            assert_eq!(response.status, 200, "{response:?}");
            assert_eq!(response.field("ratelimit"), None, "{response:?}");
        }
        // Every worker knows.
        for _ in 0..8 {
            let response = ask(&proxy, "/ping", "");
            assert_refused(&response, words::RATE_LIMITED);
            let after: u32 = response.field("retry-after").unwrap().parse().unwrap();
            assert!((1_790..=1_800).contains(&after), "{after}");
            let policy = response.field("ratelimit-policy");
            assert_eq!(policy, Some("\"default\";q=3;w=5400"));
            let left = format!("\"default\";r=0;t={after}");
            assert_eq!(response.field("ratelimit"), Some(&*left));
        }
        // The connection goes on.
        assert_eq!(client.get("/ping").unwrap().status, 429);
        assert_eq!(client.get("/ping").unwrap().status, 429);
        assert_logged(&proxy, words::RATE_LIMITED);
        assert_eq!(counted(&proxy, "allowed_total"), "3");
        assert_eq!(counted(&proxy, "refused_total"), "10");
        assert_eq!(counted(&proxy, "keys"), "1");
        until("the event log says it", || {
            let said = "route app: it gets more requests than its limit allows";
            proxy.stderr().contains(said)
        });
    });
}

#[test]
fn clients_are_told_apart_as_trusted_proxies_name_them() {
    test(|| {
        let (_origin, proxy) = start(PER_CLIENT);
        let from =
            |client: &str| status(&proxy, "/ping", &format!("X-Forwarded-For: {client}\r\n"));
        for (client, expected) in [
            ("192.0.2.1", 200),
            ("192.0.2.1", 429),
            ("::ffff:192.0.2.1", 429),
            ("192.0.2.2:4711", 200),
            ("192.0.2.2", 429),
            ("2001:db8::1", 200),
            // The same network of 64 bits.
            ("[2001:db8::2]:80", 429),
            ("2001:db8:0:1::1", 200),
            // The address before a trusted proxy counts, not the one that the client claims.
            ("203.0.113.9, 192.0.2.1", 429),
        ] {
            assert_eq!(from(client), expected, "{client}");
        }
    });
}

#[test]
fn any_text_is_a_key_and_an_empty_one_is_not_limited() {
    const ROUTES: &str = r#"
[[route]]
match = { path = "/all" }
answer = {}
limit = { key = "{route}", rate = "1/h" }
[[route]]
answer = {}
limit = [{ key = "{header:X-Api-Key}", rate = "1/h", status = 503 }, { key = "{cookie:user}/{query:q}", rate = "1/h" }]
"#;
    test(|| {
        let (_origin, proxy) = start(ROUTES);
        for (path, lines, expected) in [
            ("/all", "", 200),
            ("/all", "X-Forwarded-For: 192.0.2.1\r\n", 429),
            ("/?q=1", "", 200),
            ("/?q=1", "", 429),
            ("/?q=2", "X-Api-Key: a\r\n", 200),
            ("/?q=3", "X-Api-Key: a\r\n", 503),
            // The first limit refused it, so that the second never saw it.
            ("/?q=3", "X-Api-Key: b\r\n", 200),
            ("/?q=3", "Cookie: user=kim\r\nX-Api-Key:  \r\n", 200),
        ] {
            assert_eq!(status(&proxy, path, lines), expected, "{path} {lines}");
        }
    });
}

#[test]
fn what_comes_too_early_can_wait() {
    const ROUTES: &str = r#"
[[route]]
name = "app"
match = { path = "/ping" }
upstream = "app"
limit = { rate = "2/s", burst = 1, delay = "1m" }
[[route]]
upstream = "app"
limit = { rate = "1/h", burst = 1, delay = "2h" }
"#;
    test(|| {
        let (_origin, proxy) = start(ROUTES);
        let begun = Instant::now();
        let mut client = proxy.client();
        for _ in 0..4 {
            assert_eq!(client.get("/ping").unwrap().status, 200);
        }
        // Three of them waited for 500 ms each.
        assert!(begun.elapsed() >= Duration::from_millis(1450), "{begun:?}");
        assert_eq!(counted(&proxy, "allowed_total"), "1");
        assert_eq!(counted(&proxy, "delayed_total"), "3");
        // A client that leaves frees what waits for it.
        assert_eq!(status(&proxy, "/headers", ""), 200);
        let mut leaving = proxy.client();
        leaving
            .send(b"GET /headers HTTP/1.1\r\nHost: a.test\r\n\r\n")
            .unwrap();
        drop(leaving);
        until("it is gone", || {
            let log = proxy.access_log_json();
            log.iter().any(|it| it["end"] == "client-gone")
        });
    });
}

#[test]
fn a_dry_run_counts_and_lets_pass() {
    const ROUTE: &str = r#"
[[route]]
name = "app"
upstream = "app"
limit = { rate = "1/h", burst = 2, dry_run = true }
"#;
    test(|| {
        let (_origin, proxy) = start(ROUTE);
        for _ in 0..5 {
            assert_eq!(status(&proxy, "/ping", ""), 200);
        }
        assert_eq!(counted(&proxy, "dry_run_total"), "3");
        assert_eq!(counted(&proxy, "refused_total"), "0");
        until("the event log says it", || {
            let said = "route app: it gets more requests than its limit would allow";
            proxy.stderr().contains(said)
        });
    });
}

#[test]
fn answers_that_pass_can_say_what_is_left() {
    const ROUTES: &str = r#"
[[route]]
match = { path = "/fixed" }
answer = {}
limit = { rate = "3/h", burst = 3, headers = true }
[[route]]
upstream = "app"
limit = [{ rate = "3/h", burst = 3, headers = true }, { key = "{route}", rate = "60/m", burst = 9, headers = true }]
response_headers = { set = { X-Edited = "yes" } }
"#;
    test(|| {
        let (_origin, proxy) = start(ROUTES);
        for (path, policy, left) in [
            ("/fixed", "\"default\";q=3;w=3600", "\"default\";r=2;t=1200"),
            (
                "/ping",
                "\"default\";q=3;w=3600, \"default-2\";q=9;w=9",
                "\"default\";r=2;t=1200, \"default-2\";r=8;t=1",
            ),
        ] {
            let response = ask(&proxy, path, "");
            assert_eq!(response.status, 200, "{response:?}");
            assert_eq!(response.field("ratelimit-policy"), Some(policy));
            assert_eq!(response.field("ratelimit"), Some(left));
            let edited = (path == "/ping").then_some("yes");
            assert_eq!(response.field("x-edited"), edited);
        }
        for _ in 0..2 {
            assert_eq!(status(&proxy, "/fixed", ""), 200);
        }
        let refused = ask(&proxy, "/fixed", "");
        assert_refused(&refused, words::RATE_LIMITED);
        let fields = refused.fields.iter();
        let named = fields.filter(|(name, _)| name.eq_ignore_ascii_case("ratelimit"));
        assert_eq!(named.count(), 1, "{refused:?}");
    });
}

#[test]
fn few_requests_of_a_client_are_in_flight() {
    const ROUTES: &str = r#"
[[route]]
name = "app"
upstream = "app"
limit = [{ concurrent = 2, headers = true }, { key = "{query:q}", concurrent = 1, status = 503 }]
"#;
    test(|| {
        let (origin, proxy) = start(ROUTES);
        let waiting: Vec<_> = (0..2)
            .map(|q| {
                let mut client = proxy.client();
                let request = format!("GET /slow/60000?q={q} HTTP/1.1\r\nHost: a.test\r\n\r\n");
                client.send(request.as_bytes()).unwrap();
                client
            })
            .collect();
        until("both are in flight", || origin.stats().in_flight == 2);
        let refused = ask(&proxy, "/ping?q=2", "");
        assert_refused(&refused, words::RATE_LIMITED);
        assert_eq!(refused.field("retry-after"), Some("1"));
        let policy = "\"default\";q=2;qu=\"concurrent-requests\"";
        assert_eq!(refused.field("ratelimit-policy"), Some(policy));
        assert_eq!(refused.field("ratelimit"), Some("\"default\";r=0"));
        // Another client has its own slot. The slots of the other limit are taken.
        let other = "X-Forwarded-For: 192.0.2.1\r\n";
        assert_eq!(status(&proxy, "/ping", other), 200);
        assert_eq!(status(&proxy, "/ping?q=0", other), 503);
        until("one client and two texts are counted", || {
            counted(&proxy, "keys") == "3"
        });
        // Leaving is an end, and so is an answer.
        drop(waiting);
        until("nothing is in flight", || counted(&proxy, "keys") == "0");
        for _ in 0..4 {
            assert_eq!(status(&proxy, "/ping", ""), 200);
        }
    });
}

#[test]
fn a_client_has_few_connections() {
    test(|| {
        let origin = origin();
        let config = |lines: &str| {
            format!(
                "[status]\nbind = \"127.0.0.1:0\"\n\n[[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\
                 defer_accept = false\nlimits.connections_per_client = 2\n{lines}\n\
                 [[route]]\nupstream = \"app\"\n[upstream.app]\nendpoints = [\"{}\"]\n",
                origin.address
            )
        };
        let proxy = Proxy::start(program(), &config("")).unwrap();
        let mut first = proxy.client();
        assert_eq!(first.get("/ping").unwrap().status, 200);
        let mut second = proxy.client();
        assert_eq!(second.get("/ping").unwrap().status, 200);
        assert_refused(&proxy.client().get("/ping").unwrap(), words::CONNECTIONS);
        let refused = || figures(&proxy)["listeners"][0]["connections_refused"].clone();
        assert_eq!(refused(), 1);
        // Connections within the limit stay, and one that leaves makes room.
        assert_eq!(first.get("/ping").unwrap().status, 200);
        drop(second);
        until("there is room again", || {
            let response = proxy.client().get("/ping");
            response.is_ok_and(|it| it.status == 200)
        });
        let trusting = config("trusted_proxies = [\"127.0.0.1\"]");
        let proxy = Proxy::start(program(), &trusting).unwrap();
        let mut clients: Vec<_> = (0..4).map(|_| proxy.client()).collect();
        for client in &mut clients {
            assert_eq!(client.get("/ping").unwrap().status, 200);
        }
    });
}

#[test]
fn a_reload_keeps_what_was_used_of_a_limit_that_stays() {
    test(|| {
        let (origin, proxy) = start(PER_CLIENT);
        assert_eq!(status(&proxy, "/ping", ""), 200);
        assert_eq!(status(&proxy, "/ping", ""), 429);
        let other = "[[route]]\nmatch = { path = \"/new\" }\nanswer = {}\n";
        reload(&proxy, &config(&format!("{other}{PER_CLIENT}"), &origin));
        assert_eq!(status(&proxy, "/new", ""), 200);
        assert_eq!(status(&proxy, "/ping", ""), 429);
        assert_eq!(counted(&proxy, "refused_total"), "2");
        reload(&proxy, &config(&PER_CLIENT.replace("2/h", "3/h"), &origin));
        assert_eq!(status(&proxy, "/ping", ""), 200);
    });
}

#[test]
fn explain_says_by_what_a_request_is_counted() {
    const ROUTE: &str = r#"
[[route]]
upstream = "app"
limit = [{ concurrent = 7 }, { rate = "2/h", burst = 3, prefix_v4 = 8, delay = "1m" }, { key = "{query:q}", rate = "5/s", dry_run = true }, { key = "{cookie:c}", rate = "5/s" }]
"#;
    test(|| {
        let (_origin, proxy) = start(ROUTE);
        let mut explain = Command::new(program());
        explain.args(["explain", "--client", "192.0.2.1", "--config"]);
        explain.arg(proxy.path("evenkeel.toml"));
        let output = explain
            .args(["GET", &proxy.url("/ping?q=a")])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut live = Command::new(program());
        live.args(["explain", "--live", "--client", "192.0.2.1", "--config"]);
        live.arg(proxy.path("evenkeel.toml"));
        live.args(["GET", &proxy.url("/ping?q=a")]);
        for left in ["3 left", "2 left"] {
            let output = live.output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let expected = format!("3 at once, waits up to 60s; {left}");
            assert!(text.contains(&expected), "{expected}: {text}");
            assert!(text.contains("; 7 left"), "{text}");
            let client = "X-Forwarded-For: 192.0.2.1\r\n";
            assert_eq!(status(&proxy, "/ping?q=a", client), 200);
        }
        for expected in [
            "limit: 7 in flight by client: 192.0.2.1",
            "limit: 2/h by client: 192.0.0.0; 3 at once, waits up to 60s",
            "limit: 5/s by {query:q}: a; 5 at once, a dry run",
            "limit: 5/s by {cookie:c}, which is empty: not limited",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    });
}
