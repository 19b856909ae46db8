//! The status listener over HTTP: its pages, the right to change something, and bad clients.

use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::{holds_within, until};
use evenkeel_testkit::{OriginHandle, Proxy, RawClient, Response, TempDir};
use serde_json::{Value, json};

use crate::setup::{Site, ask_status, figures, origin, test};

const TOKEN: &str = "a-token-for-the-tests";

/// The configuration of a status page with a token.
fn with_token() -> (TempDir, String) {
    let dir = TempDir::new().unwrap();
    let path = dir.join("token");
    std::fs::write(&path, format!("{TOKEN}\n")).unwrap();
    let server = format!("[status]\nbind = \"127.0.0.1:0\"\ntoken_file = {path:?}");
    (dir, server)
}

/// Two origins, the program before them, and a status page with a token.
fn site() -> ([OriginHandle; 2], Proxy) {
    let origins = [origin(), origin()];
    // Read at the start, and not needed after.
    let (_dir, server) = with_token();
    let site = Site {
        server: &server,
        upstream: "balance = \"round-robin\"",
        ..Site::default()
    };
    let proxy = site.start(&origins.each_ref().map(|it| it.address.to_string()));
    (origins, proxy)
}

fn status_client(proxy: &Proxy) -> RawClient {
    RawClient::connect(proxy.status_address()).unwrap()
}

/// Asks with a method, a path and further fields.
fn ask(proxy: &Proxy, method: &str, path: &str, fields: &str) -> Response {
    let address = proxy.status_address();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n{fields}\r\n");
    status_client(proxy).ask(request).unwrap()
}

fn look(proxy: &Proxy, path: &str) -> Response {
    ask(proxy, "GET", path, "")
}

/// Sends an order with these fields beside the body's.
pub fn order(proxy: &Proxy, fields: &str, body: &str) -> Response {
    let address = proxy.status_address();
    let len = body.len();
    let request = format!(
        "POST /endpoints HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len}\r\n{fields}\r\n{body}"
    );
    status_client(proxy).ask(request).unwrap()
}

/// Sends an order as the page would.
fn order_well(proxy: &Proxy, order: &Value) -> Response {
    let fields = format!("Content-Type: application/json\r\nAuthorization: Bearer {TOKEN}\r\n");
    self::order(proxy, &fields, &order.to_string())
}

/// Metrics are generated while they are sent. Without chunks, only a length shows whether they
/// are complete.
#[test]
fn all_metrics_come_however_they_are_asked_for() {
    test(|| {
        let (_origins, proxy) = site();
        let ask = |method: &str, version: &str| {
            let mut client = status_client(&proxy);
            let request = format!("{method} /metrics HTTP/{version}\r\nHost: localhost\r\n\r\n");
            client.send(request).unwrap();
            client.read_response(method).unwrap()
        };
        let last = "evenkeel_endpoint_response_size_bytes_count{";
        let chunked = ask("GET", "1.1");
        assert_eq!(chunked.field("transfer-encoding"), Some("chunked"));
        assert!(chunked.text().contains(last));
        let counted = ask("GET", "1.0");
        let len = counted.field("content-length").unwrap().parse();
        assert_eq!(len, Ok(counted.body.len()));
        assert!(counted.text().contains(last));
        assert_eq!(ask("HEAD", "1.1").body, b"");
    });
}

#[test]
fn every_path_answers_as_it_should() {
    test(|| {
        let (_origins, proxy) = site();
        for (path, content_type, part) in [
            ("/", "text/html; charset=utf-8", "<title>Evenkeel</title>"),
            ("/status.json", "application/json", "\"uptime_ms\":"),
            (
                "/metrics",
                "text/plain; version=0.0.4; charset=utf-8",
                "\nevenkeel_workers ",
            ),
            ("/;csv", "text/plain; charset=utf-8", "# pxname,"),
            ("/healthz", "text/plain; charset=utf-8", "ok\n"),
            ("/ready", "text/plain; charset=utf-8", "ready\n"),
            ("/plots.json", "application/json", "\"endpoints\":["),
            (
                "/plots.json?span=hour",
                "application/json",
                "\"upstreams\":[",
            ),
            (
                "/endpoint.json?index=1",
                "application/json",
                "\"upstream\":\"app\"",
            ),
        ] {
            let response = look(&proxy, path);
            assert_eq!(response.status, 200, "{path}");
            assert_eq!(response.field("content-type"), Some(content_type), "{path}");
            assert_eq!(response.field("x-content-type-options"), Some("nosniff"));
            assert_eq!(response.field("referrer-policy"), Some("no-referrer"));
            assert_eq!(response.field("access-control-allow-origin"), None);
            let policy = response.field("content-security-policy").unwrap();
            assert!(policy.contains("default-src 'none'"), "{policy}");
            assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
            assert!(!policy.contains("unsafe"), "{policy}");
            assert!(
                response.text().contains(part),
                "{path}: {}",
                response.text()
            );

            let head = ask(&proxy, "HEAD", path, "");
            assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
            assert_eq!(head.field("content-type"), Some(content_type), "{path}");
        }
        let head = ask(&proxy, "HEAD", "/events", "");
        assert_eq!(head.field("content-type"), Some("text/event-stream"));

        let missing = look(&proxy, "/nowhere");
        assert_eq!(missing.status, 404);
        for path in ["/status.json", "/healthz", "/ready", "/endpoints"] {
            assert!(missing.text().contains(path), "{}", missing.text());
        }
        for (method, path, allow) in [
            ("POST", "/", "GET, HEAD"),
            ("DELETE", "/status.json", "GET, HEAD"),
            ("GET", "/endpoints", "POST"),
        ] {
            let response = ask(&proxy, method, path, "Content-Length: 0\r\n");
            assert_eq!(response.status, 405, "{method} {path}");
            assert_eq!(response.field("allow"), Some(allow));
        }
        for path in [
            "/endpoint.json",
            "/endpoint.json?index=2",
            "/endpoint.json?index=-1",
        ] {
            assert_eq!(look(&proxy, path).status, 404, "{path}");
        }
        assert_eq!(look(&proxy, "/plots.json?span=year").status, 400);
    });
}

#[test]
fn each_page_has_a_nonce_of_its_own() {
    test(|| {
        let (_origins, proxy) = site();
        let nonce = || {
            let response = look(&proxy, "/");
            let policy = response.field("content-security-policy").unwrap();
            let (_, rest) = policy.split_once("script-src 'nonce-").unwrap();
            let nonce = rest.split('\'').next().unwrap().to_owned();
            assert_eq!(nonce.len(), 32);
            assert!(
                response
                    .text()
                    .contains(&format!("<script nonce=\"{nonce}\">"))
            );
            nonce
        };
        assert_ne!(nonce(), nonce());
    });
}

#[test]
fn a_name_that_only_resolves_to_here_is_refused() {
    test(|| {
        let (_origins, proxy) = site();
        for (host, status) in [
            ("Host: localhost\r\n", 200),
            ("Host: 127.0.0.1:8404\r\n", 200),
            ("Host: [::1]:8404\r\n", 200),
            ("Host: evil.example\r\n", 421),
            ("Host: localhost.evil.example:8404\r\n", 421),
            ("Host: localhost\r\nHost: evil.example\r\n", 421),
        ] {
            let request = format!("GET /status.json HTTP/1.1\r\n{host}\r\n");
            let response = status_client(&proxy).ask(request).unwrap();
            assert_eq!(response.status, status, "{host}");
        }
        // A program that names nothing is no browser.
        let mut client = status_client(&proxy);
        let response = client.ask("GET /healthz HTTP/1.0\r\n\r\n").unwrap();
        assert_eq!(response.status, 200);
    });
}

#[test]
fn an_endpoint_is_drained_and_comes_back() {
    test(|| {
        let (origins, proxy) = site();
        let names = origins.each_ref().map(|it| it.address.to_string());
        let send = |count: usize| {
            for _ in 0..count {
                assert_eq!(proxy.client().get("/ping").unwrap().status, 200);
                // A client may have its response before the exchange has ended.
                until("nothing is in flight", || {
                    figures(&proxy)["upstreams"][0]["in_flight"] == 0
                });
            }
        };
        let seen = || origins.each_ref().map(|it| it.stats().requests);
        send(8);
        assert_eq!(seen(), [4, 4]);
        for (wanted, state, is_now) in [
            ("drain", "draining", "drained: it gets no new requests"),
            ("stop", "stopped", "stopped"),
        ] {
            let order = json!({"upstream": "app", "endpoint": names[0], "admin": wanted});
            let response = order_well(&proxy, &order);
            assert_eq!(response.status, 200, "{}", response.text());
            let done = format!("endpoint app/{} is {is_now}", names[0]);
            assert_eq!(response.text(), json!({ "done": done }).to_string());
            assert_eq!(
                figures(&proxy)["upstreams"][0]["endpoints"][0]["state"],
                state
            );
            send(4);
        }
        assert_eq!(seen(), [4, 12]);
        let order = json!({"upstream": "app", "endpoint": names[0], "admin": "ready"});
        assert_eq!(order_well(&proxy, &order).status, 200);
        send(8);
        assert_eq!(seen(), [8, 16]);
        let order = json!({"upstream": "app", "endpoint": names[0], "weight": 3});
        assert_eq!(order_well(&proxy, &order).status, 200);
        send(8);
        assert_eq!(seen(), [14, 18]);
        let weight = &figures(&proxy)["upstreams"][0]["endpoints"][0]["weight"];
        assert_eq!(weight, 3);
        // Without a weight it gets as little as one that is drained.
        let order = json!({"upstream": "app", "endpoint": names[0], "weight": 0});
        assert_eq!(order_well(&proxy, &order).status, 200);
        let endpoint = &figures(&proxy)["upstreams"][0]["endpoints"][0];
        assert_eq!(
            (&endpoint["state"], &endpoint["eligible"]),
            (&json!("up"), &json!(false))
        );
        let labels = format!("{{upstream=\"app\",endpoint=\"{}\"}}", names[0]);
        let metrics = look(&proxy, "/metrics").text();
        assert!(
            metrics.contains(&format!("evenkeel_endpoint_up{labels} 0\n")),
            "{metrics}"
        );
        let csv = look(&proxy, "/;csv").text();
        let server = format!("app,{},", names[0]);
        let server = csv.lines().find(|it| it.starts_with(&server));
        assert!(server.is_some_and(|it| it.contains(",DRAIN,")), "{csv}");
        let by = "now has weight 0, set by the operator, on the status page from 127.0.0.1";
        until("the event log says who", || proxy.stderr().contains(by));
        assert!(proxy.stderr().contains("INFO evenkeel "));
        assert_eq!(look(&proxy, "/metrics?names=nginx").status, 400);
    });
}

#[test]
fn orders_that_make_no_sense() {
    test(|| {
        let (origins, proxy) = site();
        let name = origins[0].address.to_string();
        for (order, status, part) in [
            (
                json!({"upstream": "app", "endpoint": "nowhere:1", "admin": "drain"}),
                404,
                "nowhere:1",
            ),
            (
                json!({"upstream": "nobody", "endpoint": name, "admin": "drain"}),
                404,
                "nobody",
            ),
            (json!({"upstream": "app", "endpoint": name}), 400, "either"),
            (
                json!({"upstream": "app", "endpoint": name, "admin": "drain", "weight": 1}),
                400,
                "either",
            ),
            (
                json!({"upstream": "app", "endpoint": name, "admin": "explode"}),
                400,
                "explode",
            ),
            (
                json!({"upstream": "app", "endpoint": name, "weight": -1}),
                400,
                "-1",
            ),
            (
                json!({"upstream": "app", "endpoint": name, "weight": 1_000_001}),
                400,
                "1000000",
            ),
            (
                json!({"upstream": "app", "endpoint": name, "wieght": 1}),
                400,
                "wieght",
            ),
            (json!([1, 2]), 400, "expected {\"upstream\": "),
        ] {
            let response = order_well(&proxy, &order);
            assert_eq!(response.status, status, "{order}");
            assert!(
                response.text().contains(part),
                "{order}: {}",
                response.text()
            );
        }
        let long = json!({"upstream": "a".repeat(5000), "endpoint": "", "weight": 1});
        assert_eq!(order_well(&proxy, &long).status, 413);
        let endpoints = figures(&proxy)["upstreams"][0]["endpoints"].clone();
        assert_eq!(endpoints[0]["admin"], "ready");
        assert_eq!(endpoints[0]["weight"], 1);
    });
}

#[test]
fn other_sites_change_nothing() {
    test(|| {
        let (origins, proxy) = site();
        let body = json!({
            "upstream": "app", "endpoint": origins[0].address.to_string(), "admin": "stop"
        });
        let right = format!("Authorization: Bearer {TOKEN}\r\n");
        let json = format!("{right}Content-Type: application/json\r\n");
        let address = proxy.status_address();
        for (fields, status) in [
            (right.clone(), 415),
            (format!("{right}Content-Type: text/plain\r\n"), 415),
            (
                format!("{right}Content-Type: application/x-www-form-urlencoded\r\n"),
                415,
            ),
            (format!("{json}Origin: http://evil.example\r\n"), 403),
            (format!("{json}Origin: null\r\n"), 403),
            (format!("{json}Sec-Fetch-Site: cross-site\r\n"), 403),
            (format!("{json}Sec-Fetch-Site: same-site\r\n"), 403),
            ("Content-Type: application/json\r\n".to_owned(), 401),
            (
                format!("Content-Type: application/json\r\nAuthorization: Basic {TOKEN}\r\n"),
                401,
            ),
        ] {
            let response = order(&proxy, &fields, &body.to_string());
            assert_eq!(response.status, status, "{fields}");
        }
        assert_eq!(
            figures(&proxy)["upstreams"][0]["endpoints"][0]["admin"],
            "ready"
        );
        // A browser sends a preflight for a page of another site: it gets no permission.
        let fields = "Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n";
        let response = ask(&proxy, "OPTIONS", "/endpoints", fields);
        assert_eq!(response.status, 405);
        assert_eq!(response.field("access-control-allow-origin"), None);
        // The page's own request.
        let own = format!("{json}Origin: http://{address}\r\nSec-Fetch-Site: same-origin\r\n");
        assert_eq!(order(&proxy, &own, &body.to_string()).status, 200);
    });
}

#[test]
fn wrong_tokens_are_counted_and_slowed() {
    test(|| {
        let (origins, proxy) = site();
        let body = json!({
            "upstream": "app", "endpoint": origins[0].address.to_string(), "admin": "stop"
        })
        .to_string();
        let wrong =
            "Content-Type: application/json\r\nAuthorization: Bearer a-token-for-the-testS\r\n";
        let begun = Instant::now();
        for _ in 0..4 {
            let response = order(&proxy, wrong, &body);
            assert_eq!(response.status, 401);
            assert_eq!(response.field("www-authenticate"), Some("Bearer"));
        }
        // 100, 200 and 400 ms before the second, third and fourth.
        assert!(begun.elapsed() >= Duration::from_millis(700));
        let all = figures(&proxy);
        assert_eq!(all["status_tokens_refused"], 4);
        assert_eq!(all["upstreams"][0]["endpoints"][0]["admin"], "ready");
        until("the first one is logged", || {
            proxy.stderr().contains("wrong token from 127.0.0.1")
        });

        // Many at once delay no other request, and only a few are kept.
        let mut trying: Vec<_> = (0..20).map(|_| status_client(&proxy)).collect();
        let len = body.len();
        let request = format!(
            "POST /endpoints HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len}\r\n{wrong}\r\n{body}"
        );
        trying.iter_mut().for_each(|it| it.send(&request).unwrap());
        let begun = Instant::now();
        assert_eq!(look(&proxy, "/healthz").status, 200);
        assert!(
            begun.elapsed() < Duration::from_millis(700),
            "others wait too"
        );
        let statuses: Vec<_> = trying
            .iter_mut()
            .map(|it| {
                let answer = it.read_response("POST").unwrap();
                let is_told = answer.field("Retry-After") == Some("3");
                assert_eq!(is_told, answer.status == 429);
                answer.status
            })
            .collect();
        let too_many = statuses.iter().filter(|status| **status == 429).count();
        assert_eq!(figures(&proxy)["status_tokens_refused"], 4 + statuses.len());
        assert!(too_many >= 15, "{statuses:?}");
        assert!(
            statuses.iter().all(|it| [401, 429].contains(it)),
            "{statuses:?}"
        );
        // The right one works after its wait.
        let order = json!({
            "upstream": "app", "endpoint": origins[0].address.to_string(), "admin": "drain"
        });
        assert_eq!(order_well(&proxy, &order).status, 200);
        assert_eq!(proxy.stderr().matches("wrong token from").count(), 1);
        let refused = figures(&proxy)["status_tokens_refused"].clone();
        let metrics = ask_status(&proxy, "/metrics", "").text();
        let line = format!("evenkeel_status_tokens_refused_total {refused}\n");
        assert!(metrics.contains(&line), "{line}");
    });
}

#[test]
fn without_a_token_nothing_can_be_changed() {
    test(|| {
        let origin = origin();
        let site = Site {
            server: "[status]\nbind = \"127.0.0.1:0\"",
            ..Site::default()
        };
        let proxy = site.start(&[origin.address.to_string()]);
        let order = json!({
            "upstream": "app", "endpoint": origin.address.to_string(), "admin": "stop"
        });
        let response = order_well(&proxy, &order);
        assert_eq!(response.status, 403);
        assert!(
            response.text().contains("token_file"),
            "{}",
            response.text()
        );
    });
}

/// The first messages of the page's stream, which HTTP/1.0 leaves unframed.
fn messages(client: &mut RawClient, until_has: &str) -> String {
    client
        .send("GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let head = client.read_head().unwrap();
    assert!(head.starts_with("HTTP/1.0 200"), "{head}");
    let mut text = String::new();
    until(until_has, || {
        let bytes = client.read_len(1).unwrap();
        text.push_str(&String::from_utf8_lossy(&bytes));
        text.contains(until_has) && text.ends_with("\n\n")
    });
    text
}

#[test]
fn messages_hold_what_has_changed() {
    test(|| {
        let (_origins, proxy) = site();
        let mut client = status_client(&proxy);
        let text = messages(&mut client, "\"endpoints\":[0,[");
        assert!(text.contains("event: start\ndata: {\"version\""), "{text}");
        // Nothing goes on: no row of an endpoint is in the next message.
        let mut next = String::new();
        until("the next message", || {
            next.push_str(&String::from_utf8_lossy(&client.read_len(1).unwrap()));
            next.ends_with("\n\n")
        });
        let next: Value =
            serde_json::from_str(next.trim().strip_prefix("data: ").unwrap()).unwrap();
        assert!(next["number"].as_u64() > Some(1), "{next}");
        assert_eq!(next.get("endpoints"), None, "{next}");
    });
}

#[test]
fn viewers_are_bounded() {
    test(|| {
        let (_origins, proxy) = site();
        let viewer = || {
            let mut client = status_client(&proxy);
            client
                .send("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .unwrap();
            let head = client.read_head().unwrap();
            (head.starts_with("HTTP/1.1 200"), client)
        };
        let mut viewers: Vec<_> = (0..32).map(|_| viewer()).collect();
        assert!(viewers.iter().all(|(is_served, _)| *is_served));
        let refused = look(&proxy, "/events");
        assert_eq!(refused.status, 503);
        assert!(refused.text().contains("32"), "{}", refused.text());
        // One leaves: its place is free.
        viewers.pop();
        until("another one is served", || viewer().0);
    });
}

#[test]
fn slow_and_silent_clients_keep_no_place() {
    test(|| {
        let (_origins, proxy) = site();
        // Clients that do not read delay no others.
        let mut silent: Vec<_> = (0..24).map(|_| status_client(&proxy)).collect();
        for client in &mut silent {
            client
                .send("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .unwrap();
        }
        let mut drip = status_client(&proxy);
        drip.set_step(Duration::from_secs(20));
        drip.send("GET / HTTP/1.1\r\nHost: loc").unwrap();
        let begun = Instant::now();
        assert_eq!(look(&proxy, "/healthz").status, 200);
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert!(drip.is_closed(), "a head that does not come is waited for");
        assert!(begun.elapsed() > Duration::from_secs(8));

        // More than there is room for: idle connections are closed to make room.
        let many: Vec<_> = (0..300).map(|_| status_client(&proxy)).collect();
        assert_eq!(look(&proxy, "/healthz").status, 200);
        assert_eq!(look(&proxy, "/metrics").status, 200);
        until("the event log says it", || {
            proxy
                .stderr()
                .contains("status page: 256 connections are open")
        });
        drop(many);
        drop(silent);
        until("it answers again", || {
            let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
            status_client(&proxy)
                .ask(request)
                .is_ok_and(|it| it.status == 200)
        });
    });
}

#[test]
fn few_long_answers_are_sent_at_once() {
    test(|| {
        let site = Site {
            server: "[status]\nbind = \"127.0.0.1:0\"",
            ..Site::default()
        };
        let endpoints: Vec<_> = (1..=1000).map(|port| format!("127.0.0.1:{port}")).collect();
        let proxy = site.start(&endpoints);
        // Each client reads only the start.
        let mut slow: Vec<_> = (0..8).map(|_| status_client(&proxy)).collect();
        for client in &mut slow {
            client
                .send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .unwrap();
            assert!(client.read_head().unwrap().starts_with("HTTP/1.1 200"));
        }
        let refused = look(&proxy, "/status.json");
        assert_eq!(refused.status, 503);
        assert!(refused.text().contains("8 answers"), "{}", refused.text());
        assert_eq!(look(&proxy, "/healthz").status, 200);
        slow.pop();
        until("there is room again", || {
            look(&proxy, "/metrics").status == 200
        });
    });
}

#[test]
fn ready_ends_with_the_signal_and_open_connections_go_on() {
    test(|| {
        let (_origins, mut proxy) = site();
        let mut scraper = status_client(&proxy);
        let mut look = |path: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            scraper.ask(request).unwrap()
        };
        assert_eq!(look("/ready").status, 200);
        let mut viewer = status_client(&proxy);
        let text = messages(&mut viewer, "\"all\":[0,");
        assert!(text.contains("\"number\""), "{text}");
        // In progress for as long as its body is not whole.
        let mut client = proxy.client();
        client
            .send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n1")
            .unwrap();
        until("it is in flight", || {
            figures(&proxy)["upstreams"][0]["in_flight"] == 1
        });
        proxy.terminate();
        until("it is not ready any more", || look("/ready").status == 503);
        assert_eq!(look("/healthz").status, 200);
        let mut next = String::new();
        until("the page goes on, and says that it drains", || {
            next.push_str(&String::from_utf8_lossy(&viewer.read_len(1).unwrap()));
            next.contains("\"all\":[1,")
        });
        let all: Value = serde_json::from_slice(&look("/status.json").body).unwrap();
        assert_eq!(all["draining"], true);
        assert_eq!(all["listeners"][0]["accepting"], false);
        let csv = look("/;csv").text();
        let frontend = csv.lines().find(|it| it.starts_with("web,FRONTEND,"));
        assert!(frontend.is_some_and(|it| it.contains(",STOP,")), "{csv}");
        let metrics = look("/metrics?names=haproxy").text();
        let line = "haproxy_frontend_status{proxy=\"web\",state=\"DOWN\"} 1\n";
        assert!(metrics.contains(line), "{metrics}");
        // The address is a successor's.
        let address = proxy.status_address();
        until("no further connection is taken", || {
            RawClient::connect(address).is_err()
        });
        client.send("2").unwrap();
        assert_eq!(client.read_response("POST").unwrap().status, 200);
        assert!(
            proxy
                .wait(Duration::from_secs(10))
                .is_some_and(|it| it.success())
        );
    });
}

#[test]
fn a_listener_has_the_port_that_port_0_became() {
    test(|| {
        let (_origins, proxy) = site();
        let bind = figures(&proxy)["listeners"][0]["bind"].clone();
        assert_eq!(bind, proxy.address("web"));
    });
}

#[test]
fn the_last_probe_and_its_answer() {
    test(|| {
        let origin = origin();
        let gone = crate::setup::origin();
        gone.refuse();
        let site = Site {
            server: "[status]\nbind = \"127.0.0.1:0\"",
            upstream: "health = { path = \"/status/204\", interval = \"100ms\" }",
            ..Site::default()
        };
        let endpoints = [&origin, &gone].map(|it| it.address.to_string());
        let proxy = site.start(&endpoints);
        let probe = |endpoint: usize| {
            figures(&proxy)["upstreams"][0]["endpoints"][endpoint]["last_probe"].clone()
        };
        until("both were probed", || {
            probe(0).is_object() && probe(1).is_object()
        });
        let passed = probe(0);
        assert_eq!(passed["passed"], true);
        assert_eq!(passed["answer"], "status 204");
        assert!(passed["took_us"].as_u64().is_some_and(|it| it > 0));
        assert!(
            passed["unix_ms"]
                .as_u64()
                .is_some_and(|it| it > 1_700_000_000_000)
        );
        let failed = probe(1);
        assert_eq!(failed["passed"], false);
        assert_eq!(failed["answer"], "connection refused");
    });
}

#[test]
fn the_past_is_there_before_anybody_looks() {
    test(|| {
        let (_origins, proxy) = site();
        for _ in 0..5 {
            proxy.client().get("/ping").unwrap();
        }
        let sum = || -> u64 {
            let plots: Value = serde_json::from_slice(&look(&proxy, "/plots.json").body).unwrap();
            let points = plots["all"]["requests"].as_array().unwrap().clone();
            points.iter().filter_map(Value::as_u64).sum()
        };
        assert!(holds_within(Duration::from_secs(4), || sum() == 5));
        let detail = look(&proxy, "/endpoint.json?index=0");
        let detail: Value = serde_json::from_slice(&detail.body).unwrap();
        let attempts = detail["figures"]["attempts"].as_u64();
        assert!([Some(2), Some(3)].contains(&attempts), "{attempts:?}");
        assert_eq!(detail["upstream"], "app");
    });
}
