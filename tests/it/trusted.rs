//! Behind another proxy: which statements about the client are trusted, their effects, and the
//! fields for endpoints.

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, RawClient, TempDir};
use serde_json::Value;

use crate::explain::{explain, json};
use crate::setup::{Site, get, test};

const TRUSTED: &str = "trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]";

fn site(listener: &str, upstream: &str) -> (OriginHandle, Proxy) {
    Site {
        listener,
        upstream,
        ..Site::default()
    }
    .with_origin()
}

/// The lines about the client that the origin gets, for a request with these.
fn told(client: &mut RawClient, fields: &str) -> Vec<String> {
    let request = format!("GET /headers HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n");
    let response = client.ask(request).unwrap();
    assert_eq!(response.status, 200);
    let text = response.text();
    let lines = text.lines().skip(2).map(str::to_owned);
    let is_of_client = |it: &String| !it.is_empty() && !it.starts_with("CDN-Loop");
    lines.filter(is_of_client).collect()
}

/// The clients that the access log has, in order.
fn logged_clients(proxy: &Proxy, count: usize) -> Vec<Value> {
    until("they are logged", || proxy.access_log().len() >= count);
    let lines = proxy.access_log_json();
    lines.iter().map(|it| it["client"].clone()).collect()
}

const CHAIN: &str = "X-Forwarded-For: 198.51.100.9, 192.0.2.1, 10.0.0.2\r\n\
                     X-Forwarded-Proto: https\r\nX-Forwarded-Host: www.example\r\n\
                     X-Forwarded-Port: 8443\r\nX-Forwarded-Prefix: /shop\r\n";

#[test]
fn a_trusted_proxy_is_believed_up_to_the_first_stranger() {
    test(|| {
        let (_origin, proxy) = site(TRUSTED, "");
        let mut client = proxy.client();
        assert_eq!(
            told(&mut client, CHAIN),
            [
                "X-Forwarded-Prefix: /shop",
                "X-Forwarded-For: 192.0.2.1, 10.0.0.2, 127.0.0.1",
                "X-Forwarded-Proto: https",
                "X-Forwarded-Host: www.example",
                "X-Forwarded-Port: 8443",
            ]
        );
        // The next request of the connection is of another client.
        let forwarded = "Forwarded: for=\"[2001:db8::1]:4711\";proto=https\r\n";
        assert_eq!(
            told(&mut client, forwarded),
            [
                "X-Forwarded-For: 2001:db8::1, 127.0.0.1",
                "X-Forwarded-Proto: https",
                "X-Forwarded-Host: a.example",
            ]
        );
        let own = [
            "X-Forwarded-For: 127.0.0.1",
            "X-Forwarded-Proto: http",
            "X-Forwarded-Host: a.example",
        ];
        assert_eq!(told(&mut client, ""), own);
        let rubbish = "X-Forwarded-For: <script>\r\nX-Forwarded-Proto: gopher\r\n";
        assert_eq!(told(&mut client, rubbish), own);
        // Bytes that are no request count for the connection's peer only.
        told(&mut client, "X-Forwarded-For: 192.0.2.1\r\n");
        client.send("GET /\r\n\r\n").unwrap();
        assert_eq!(client.read_response("GET").unwrap().status, 400);
        assert_eq!(
            logged_clients(&proxy, 6),
            [
                "192.0.2.1",
                "2001:db8::1",
                "127.0.0.1",
                "127.0.0.1",
                "192.0.2.1",
                "127.0.0.1"
            ]
        );
    });
}

#[test]
fn a_thousand_hops_are_bounded() {
    test(|| {
        let (_origin, proxy) = site(TRUSTED, "");
        let mut client = proxy.client();
        let hops = vec!["10.0.0.1"; 1_000].join(", ");
        let lines = told(
            &mut client,
            &format!("X-Forwarded-For: 192.0.2.1, {hops}\r\n"),
        );
        assert_eq!(lines[0].matches("10.0.0.1").count(), 32);
        assert_eq!(logged_clients(&proxy, 1), ["10.0.0.1"]);
    });
}

#[test]
fn nobody_is_trusted_without_being_told() {
    test(|| {
        for listener in ["", "trusted_proxies = [\"10.0.0.0/8\", \"unix\"]"] {
            let (_origin, proxy) = site(listener, "");
            let claims = "X_Real_IP: 6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\nTrue-Client-IP: 6.6.6.6\r\n\
                          X-Forwarded-Ssl: on\r\nX_Forwarded_Prefix: /evil\r\n\
                          Forwarded: for=6.6.6.6\r\nX-Requested-With: b\r\n";
            assert_eq!(
                told(&mut proxy.client(), &format!("{CHAIN}{claims}")),
                [
                    "X-Requested-With: b",
                    "X-Forwarded-For: 127.0.0.1",
                    "X-Forwarded-Proto: http",
                    "X-Forwarded-Host: a.example",
                ]
            );
            assert_eq!(logged_clients(&proxy, 1), ["127.0.0.1"]);
        }
    });
}

#[test]
fn an_upstream_says_which_fields_its_endpoints_get() {
    test(|| {
        for (forward, expected) in [
            ("[]", &["X-Real-IP: 6.6.6.6"][..]),
            (
                "[\"forwarded\", \"x-real-ip\"]",
                &[
                    "Forwarded: for=192.0.2.1;proto=https;host=\"www.example\", for=10.0.0.2, for=127.0.0.1",
                    "X-Real-IP: 192.0.2.1",
                ],
            ),
        ] {
            let (_origin, proxy) = site(TRUSTED, &format!("forward = {forward}"));
            let chain = CHAIN.replace("X-Forwarded-Prefix: /shop\r\n", "X-Real-IP: 6.6.6.6\r\n");
            let lines = told(&mut proxy.client(), &chain);
            assert_eq!(lines, expected);
        }
    });
}

#[test]
fn a_proxy_on_a_unix_socket_can_be_trusted_by_the_server() {
    test(|| {
        let (_origin, proxy) = Site {
            bind: "unix:$DIR/web.sock",
            server: "trusted_proxies = [\"unix\"]",
            ..Site::default()
        }
        .with_origin();
        let mut client = RawClient::connect_unix(proxy.path("web.sock")).unwrap();
        let lines = told(&mut client, "X-Forwarded-For: 6.6.6.6, 192.0.2.1\r\n");
        assert_eq!(lines[0], "X-Forwarded-For: 192.0.2.1");
        let lines = told(&mut client, "X-Forwarded-Proto: https\r\n");
        assert_eq!(lines[0], "X-Forwarded-Proto: https");
        assert_eq!(logged_clients(&proxy, 2), ["192.0.2.1", "unix"]);
    });
}

#[test]
fn the_address_of_a_proxy_header_can_be_trusted() {
    test(|| {
        let (_origin, proxy) = site(
            "proxy_protocol = { from = \"127.0.0.0/8\" }\ntrusted_proxies = [\"192.0.2.0/24\", \"127.0.0.1\"]",
            "",
        );
        for (proxy_line, expected) in [
            (
                "PROXY TCP4 192.0.2.7 10.0.0.1 4711 80\r\n",
                "X-Forwarded-For: 203.0.113.5, 192.0.2.7",
            ),
            // The sender of the fields is unknown.
            ("PROXY UNKNOWN\r\n", "X-Forwarded-For: 127.0.0.1"),
            (
                "PROXY TCP4 198.51.100.7 10.0.0.1 4711 80\r\n",
                "X-Forwarded-For: 198.51.100.7",
            ),
        ] {
            let mut client = proxy.client();
            client.send(proxy_line).unwrap();
            let lines = told(&mut client, "X-Forwarded-For: 203.0.113.5\r\n");
            assert_eq!(lines[0], expected);
        }
    });
}

/// Routes by trusted statements.
const ROUTES: &str = r#"
[server]
workers = 1

[[listener]]
name = "web"
bind = "127.0.0.1:0"
trusted_proxies = ["127.0.0.1"]

[[route]]
name = "office"
match = { client = "192.0.2.0/24" }
answer = { body = "office" }

[[route]]
name = "plain"
match = { scheme = "http" }
redirect = "https://$host$path"

[[route]]
name = "same"
match = { path = "/same" }
redirect = "$scheme://other.example/"

[[route]]
upstream = "app"

[upstream.app]
endpoints = ["$A", "$B", "$C"]
balance = "carp"
key = "client"
"#;

#[test]
fn routes_keys_and_explanations_go_by_what_is_believed() {
    test(|| {
        let origins = [(); 3].map(|()| crate::setup::origin());
        let mut config = ROUTES.to_owned();
        for (name, origin) in ["$A", "$B", "$C"].into_iter().zip(&origins) {
            config = config.replace(name, &origin.address.to_string());
        }
        let proxy = Proxy::start(crate::setup::program(), &config).unwrap();
        let mut client = proxy.client();
        let mut ask = |path: &str, fields: &str| {
            let request = get(path).replace("\r\n\r\n", &format!("\r\n{fields}\r\n"));
            client.ask(request).unwrap()
        };
        assert_eq!(ask("/", "X-Forwarded-For: 192.0.2.9\r\n").text(), "office");
        let https = "X-Forwarded-Proto: https\r\n";
        assert_eq!(
            ask("/a", "").field("location").unwrap().split("//").next(),
            Some("https:")
        );
        let same = ask("/same", https);
        assert_eq!(same.field("location"), Some("https://other.example/"));
        // Each client has one endpoint, and every endpoint has clients.
        for index in 0..40 {
            let fields = format!("{https}X-Forwarded-For: 203.0.113.{index}\r\n");
            let before: Vec<u64> = origins.iter().map(|it| it.stats().requests).collect();
            (0..3).for_each(|_| assert_eq!(ask("/ping", &fields).status, 200));
            let after = origins.iter().map(|it| it.stats().requests);
            let more: Vec<u64> = after
                .zip(before)
                .map(|(after, before)| after - before)
                .collect();
            assert_eq!(more.iter().filter(|it| **it == 3).count(), 1, "{more:?}");
        }
        assert!(origins.iter().all(|it| it.stats().requests > 0));
        let dir = TempDir::new().unwrap();
        let file = dir.join("evenkeel.toml");
        std::fs::write(&file, &config).unwrap();
        let fields = [
            "-H",
            "X-Forwarded-For: 203.0.113.7",
            "-H",
            "X-Forwarded-Proto: https",
        ];
        let explained = |more: &[&str]| {
            explain(
                &file,
                &[&["GET", "http://a.test/"], &fields[..], more].concat(),
            )
        };
        let found = json(&explained(&["--json"]));
        assert_eq!(found["relayed"]["client"], "203.0.113.7");
        assert_eq!(found["action"]["key"]["found"], "203.0.113.7");
        let head = found["action"]["head"].as_array().unwrap();
        assert!(
            head.contains(&"X-Forwarded-For: 203.0.113.7, 127.0.0.1".into()),
            "{head:?}"
        );
        let page = String::from_utf8(explained(&[]).stdout).unwrap();
        let line = "127.0.0.1 is trusted: the client is 203.0.113.7, by https";
        assert!(page.contains(line), "{page}");
        let found = json(&explained(&["--json", "--client", "198.51.100.1"]));
        assert_eq!(found["relayed"], Value::Null);
        let page = String::from_utf8(explained(&["--client", "198.51.100.1"]).stdout).unwrap();
        let line = "ignored: X-Forwarded-For, X-Forwarded-Proto, because 198.51.100.1 is not a \
            trusted proxy here";
        assert!(page.contains(line), "{page}");
        let page = explain(&file, &["GET", "https://a.test/"]).stdout;
        let page = String::from_utf8(page).unwrap();
        assert!(
            page.contains("ignored: https, because no header names it"),
            "{page}"
        );
        // Over a Unix socket there is no address to trust.
        let unix = config.replace("127.0.0.1:0", "unix:web.sock");
        std::fs::write(&file, &unix).unwrap();
        let found = json(&explained(&["--json"]));
        assert_eq!(
            (&found["client"], &found["relayed"]),
            (&"unix".into(), &Value::Null)
        );
        let trusting = unix.replace("[\"127.0.0.1\"]", "[\"unix\"]");
        std::fs::write(&file, trusting).unwrap();
        let found = json(&explained(&["--json"]));
        assert_eq!(found["relayed"]["client"], "203.0.113.7");
    });
}
