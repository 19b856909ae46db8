//! `evenkeel explain`: the outcome of a request, from the configuration and from the running
//! process. The process must act as explained.

use std::process::{Command, Output};

use evenkeel_policy::balance::Balance;
use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, TempDir};
use serde_json::Value;

use crate::setup::{Site, get, origin, program, test};

const CONFIG: &str = r#"
[server]
workers = 1
control = "$DIR/control.sock"

[access_log]
path = "$DIR/access.log"
format = "json"

[[listener]]
name = "web"
bind = "127.0.0.1:0"
limits = { head = "1KiB", target = "100B", body = "10B" }

[[listener]]
name = "inner"
bind = "127.0.0.1:0"

[[route]]
name = "images"
match = { host = ["img.example.com", "*.cdn.test"], path = "/img/*" }
answer = { body = "img" }

[[route]]
name = "admin"
match = { listener = "inner", path = "/admin/*", client = "127.0.0.0/8", header = { X-Token = "*abc" } }
upstream = "app"

[[route]]
name = "old"
match = { path = "/old/*" }
redirect = "https://$host$path$query"

[[route]]
name = "sticky"
match = { cookie = { sid = true } }
upstream = "sticky"

[[route]]
name = "app"
match = { host = "app.test" }
upstream = "app"
lane = "slow"

[upstream.app]
endpoints = [{ address = "$A", max_in_flight = 1, weight = 2 }, { address = "$B", max_in_flight = 1 }]
lanes = { slow = 1 }
queue = { max = 1, timeout = "20s", answer = { status = 529 } }

[upstream.sticky]
balance = "carp"
health = { interval = "60s" }
key = { cookie = "sid" }
endpoints = ["$A", "$B"]
"#;

/// The configuration alone, in a file.
struct File {
    dir: TempDir,
}

impl File {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let text = CONFIG
            .replace("$DIR", &dir.path().display().to_string())
            .replace("$A", "10.0.0.1:80")
            .replace("$B", "10.0.0.2:80");
        std::fs::write(dir.join("evenkeel.toml"), text).unwrap();
        File { dir }
    }

    fn explain(&self, args: &[&str]) -> Output {
        explain(&self.dir.join("evenkeel.toml"), args)
    }

    fn json(&self, args: &[&str]) -> Value {
        json(&self.explain(&[&["--json"], args].concat()))
    }
}

pub fn explain(config: &std::path::Path, args: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.arg("explain").arg("--config").arg(config);
    command.args(args).output().unwrap()
}

#[track_caller]
pub fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The name of the route that matches, if one does.
fn route(explanation: &Value) -> Option<&str> {
    let routes = explanation["routes"].as_array().unwrap();
    let matching = routes.iter().find(|it| it["matches"] == true)?;
    matching["name"].as_str()
}

/// The request that `explain` tells of, as `curl` sends it.
pub fn request(method: &str, url: &str, fields: &[&str]) -> String {
    let url = url.strip_prefix("http://").unwrap_or(url);
    let end = url.find(['/', '?']).unwrap_or(url.len());
    let (authority, rest) = url.split_at(end);
    let has_host = fields.iter().any(|it| it.starts_with("Host:"));
    let target = match (rest.starts_with('/'), has_host) {
        (true, _) => rest.to_owned(),
        (false, true) => format!("/{rest}"),
        (false, false) => format!("http://{authority}{rest}"),
    };
    let mut lines = vec![format!("{method} {target} HTTP/1.1")];
    if !has_host && !authority.is_empty() {
        lines.push(format!("Host: {authority}"));
    }
    lines.extend(fields.iter().map(|it| (*it).to_owned()));
    lines.join("\r\n") + "\r\n\r\n"
}

#[test]
fn says_which_route_and_why() {
    test(|| {
        let file = File::new();
        let admin = [
            "GET",
            "http://x.test/admin/a",
            "-H",
            "X-Token: 1abc",
            "--listener",
            "inner",
        ];
        for (args, expected) in [
            (
                &["GET", "http://IMG.example.com/img/a.png"][..],
                Some("images"),
            ),
            (&["GET", "http://img.example.com/a.png"], None),
            (&["GET", "http://a.cdn.test/x/../img//a"], Some("images")),
            (&admin, Some("admin")),
            (&[&admin[..], &["--client", "192.0.2.1"]].concat(), None),
            (&["GET", "http://x.test/old/a?b"], Some("old")),
            (
                &["GET", "http://x.test/", "-H", "Cookie: sid=1"],
                Some("sticky"),
            ),
            (&["GET", "http://app.test:8080/"], Some("app")),
        ] {
            let explanation = file.json(args);
            assert_eq!(route(&explanation), expected, "{args:?}: {explanation}");
            let refused = &explanation["refused"]["word"];
            assert_eq!(refused == "no-route", expected.is_none(), "{explanation}");
        }
        let last = ["OPTIONS", "http://app.test/", "-H", "Max-Forwards: 0"];
        assert_eq!(file.json(&last)["action"]["status"], 204);
        let explanation = file.json(&["GET", "http://x.test/old/a?b"]);
        let redirect = &explanation["action"];
        assert_eq!(redirect["location"], "https://x.test/old/a?b");
        let tried = &explanation["routes"][1]["conditions"];
        let listener = serde_json::json!({
            "subject": "listener", "wanted": ["inner"], "found": ["web"], "holds": false,
        });
        assert_eq!(tried[0], listener);
        assert_eq!(
            explanation["not_reached"],
            serde_json::json!(["sticky", "app"])
        );
    });
}

#[test]
fn refuses_what_the_process_refuses_in_its_words() {
    test(|| {
        let (a, b) = (origin(), origin());
        let proxy = start(&a.address.to_string(), &b.address.to_string());
        let file = File::new();
        let long = format!("http://app.test/{}", "a".repeat(100));
        let wide = format!("X: {}", "a".repeat(1000));
        for args in [
            &["GET", "/"][..],
            &["G T", "http://app.test/"],
            &["GET", "http://app.test/", "-H", "A B: c"],
            &["GET", "http://app.test/", "-H", "Host: a", "-H", "Host: b"],
            &["GET", "http://app.test/a b"],
            &["POST", "http://app.test/", "-H", "Transfer-Encoding: gzip"],
            &["POST", "http://app.test/", "-H", "Content-Length: 11"],
            &["CONNECT", "app.test:443", "-H", "Host: app.test:443"],
            &["GET", &long],
            &["GET", "http://app.test/", "-H", &wide],
            &["GET", "http://nobody.test/"],
        ] {
            let explanation = file.json(args);
            let refused = &explanation["refused"];
            let (word, status) = (refused["word"].as_str().unwrap(), &refused["status"]);
            // The process gets the very bytes that were explained.
            let fields: Vec<_> = args[2..].iter().filter(|it| **it != "-H").collect();
            let fields: Vec<_> = fields.into_iter().copied().collect();
            let mut client = proxy.client();
            client.send(request(args[0], args[1], &fields)).unwrap();
            let response = client.read_response("GET").unwrap();
            assert_eq!(*status, response.status, "{args:?}: {explanation}");
            let text = response.text();
            assert!(
                text.contains(&format!("{word}: ")),
                "{args:?} {word}: {text}"
            );
        }
    });
}

#[test]
fn a_wrong_call_is_told_apart_from_a_failure() {
    test(|| {
        let file = File::new();
        for (args, code, said) in [
            (&["GET"][..], 2, "<URL>"),
            (&["GET", "ftp://a/"], 2, "`ftp` is not an HTTP scheme"),
            (&["GET", "http://a:b/"], 2, "`b` is not a valid port"),
            (
                &["GET", "http://a/", "-H", "x"],
                2,
                "`x` is not a valid header",
            ),
            (&["--client", "me", "GET", "http://a/"], 2, "--client"),
            (
                &["--listener", "nope", "GET", "http://a/"],
                2,
                "there is no listener \"nope\"; known listeners: web, inner",
            ),
            (
                &["--live", "GET", "http://a/"],
                1,
                "control.sock: no such socket; is the program running?",
            ),
        ] {
            let output = file.explain(args);
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
            assert!(text.contains(said), "{args:?}: {text}");
        }
    });
}

#[test]
fn text_is_plain_where_it_is_no_terminal() {
    test(|| {
        let file = File::new();
        let output = file.explain(&["GET", "http://app.test/\u{1b}[2J", "-H", "Cookie: sid=a"]);
        let refused = String::from_utf8(output.stdout).unwrap();
        assert!(!refused.contains('\u{1b}'), "{refused}");
        let output = file.explain(&["GET", "http://app.test/", "-H", "Cookie: sid=a"]);
        let text = String::from_utf8(output.stdout).unwrap();
        for line in [
            "GET http://app.test/ from 127.0.0.1, by the configuration",
            "route images: does not match",
            "  - host img.example.com or *.cdn.test: the request has app.test",
            "route sticky: matches",
            "  + cookie sid any value: the request has a",
            "route app: not reached",
            "upstream sticky, balanced by carp: the same key to the same endpoint",
            "the endpoint gets:",
            "  GET / HTTP/1.1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line:?} in:\n{text}");
        }
        assert!(
            text.lines()
                .any(|it| it.starts_with("  key: cookie sid: a (hash "))
        );
        assert_eq!(
            text.lines()
                .filter(|it| it.starts_with("> endpoint"))
                .count(),
            1
        );
    });
}

#[test]
fn says_which_files_and_who_answers_where_there_are_none() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let config = dir.join("evenkeel.toml");
        let text = r#"
[[listener]]
bind = "127.0.0.1:0"

[[route]]
match = { path = ["/img", "/img/*"] }
files = { root = "/srv/img", strip = "/img", try = ["$path", "$path.png"], upstream = "app" }
priority = 7

[[route]]
files = "site"

[upstream.app]
endpoints = ["10.0.0.1:80"]
"#;
        std::fs::write(&config, text).unwrap();
        let explained = |url| json(&explain(&config, &["--json", "GET", url]));
        let action = &explained("http://a.test/img/a")["action"];
        assert_eq!(action["action"], "files");
        assert_eq!(action["root"], "/srv/img");
        assert_eq!(action["strip"], "/img");
        assert_eq!(action["candidates"][1]["candidate"], "$path.png");
        assert_eq!(action["candidates"][1]["path"], "a.png");
        assert_eq!(action["upstream"]["name"], "app");
        assert_eq!(action["upstream"]["priority"], 7);
        let action = &explained("http://a.test/")["action"];
        assert_eq!(action["root"], dir.join("site").display().to_string());
        assert!(action["upstream"].is_null());
        let shown = |url| {
            let output = explain(&config, &["GET", url]).stdout;
            String::from_utf8(output).unwrap()
        };
        let text = shown("http://a.test/img/a");
        let expected = "files of /srv/img: the first of these that exists\n  + $path: /a\n  + \
            $path.png: /a.png\n  $path is the request's without /img\n  for a folder: \
            index.html\nif none of them exists:\nupstream app, balanced by";
        assert!(text.contains(expected), "{text}");
        let text = shown("http://a.test/");
        let last = text.lines().last();
        assert_eq!(last, Some("if none of them exists: 404"), "{text}");
        for (url, line) in [
            (
                "http://a.test/img/.git/config",
                "  - $path.png: /.git/config.png is hidden, so it is skipped",
            ),
            ("http://a.test/img", "redirect: 301 to /img/"),
            ("http://a.test/%1b%0aok", "  + $path: /\u{fffd}\u{fffd}ok"),
            (
                "http://a.test/a%00",
                "refused with 400 bad-path: the path contains a NUL or an encoded slash, or leads \
                 out of the folder",
            ),
        ] {
            let text = shown(url);
            assert!(text.lines().any(|it| it == line), "{text}");
        }
        let post = |url| {
            let output = explain(&config, &["POST", url]).stdout;
            String::from_utf8(output).unwrap()
        };
        assert!(
            post("http://a.test/")
                .ends_with("refused with 405 no-method: files allow only GET and HEAD\n")
        );
        assert!(post("http://a.test/img/a").contains("upstream app, balanced by"));
    });
}

fn start(a: &str, b: &str) -> Proxy {
    let config = CONFIG.replace("$A", a).replace("$B", b);
    Proxy::start(program(), &config).unwrap()
}

pub fn live(proxy: &Proxy, args: &[&str]) -> Value {
    let config = proxy.path("evenkeel.toml");
    json(&explain(&config, &[&["--json", "--live"], args].concat()))
}

#[test]
fn a_key_leads_where_it_was_said_to() {
    test(|| {
        let (a, b) = (origin(), origin());
        let proxy = start(&a.address.to_string(), &b.address.to_string());
        let mut seen = std::collections::HashSet::new();
        for user in 0..12 {
            let cookie = format!("Cookie: sid=user-{user}");
            let explanation = live(&proxy, &["GET", "http://x.test/", "-H", &cookie]);
            let endpoint = explanation["action"]["endpoint"]
                .as_str()
                .unwrap()
                .to_owned();
            assert_eq!(explanation["action"]["now"]["now"], "served");
            let mut client = proxy.client();
            let request = format!("GET /ping HTTP/1.1\r\nHost: x.test\r\n{cookie}\r\n\r\n");
            client.send(request.as_bytes()).unwrap();
            assert_eq!(client.read_response("GET").unwrap().status, 200);
            until("its line", || proxy.access_log_json().len() > user);
            assert_eq!(proxy.access_log_json()[user]["endpoint"], endpoint.as_str());
            seen.insert(endpoint);
        }
        assert_eq!(seen.len(), 2, "one endpoint got every key");
    });
}

#[test]
fn every_balancer_says_where_it_will_send_a_request() {
    const REQUESTS: usize = 12;
    test(|| {
        let origins = [origin(), origin(), origin()];
        // Weights without near ties, which measured times could break.
        let endpoints = origins.iter().zip([1, 5, 3]).map(|(origin, weight)| {
            let address = &origin.address;
            format!("{{ address = \"{address}\", weight = {weight} }}")
        });
        let endpoints: Vec<_> = endpoints.collect();
        for balance in Balance::ALL.iter().map(|it| it.word()) {
            // One worker, so that it is the one whose balancer chooses.
            let site = Site {
                server: "control = \"$DIR/control.sock\"",
                upstream: &format!("balance = {balance:?}"),
                ..Site::default()
            };
            let proxy = site.start(&endpoints);
            let ask = || live(&proxy, &["GET", "http://x.test/ping"])["action"].clone();
            let mut client = proxy.client();
            let mut seen = std::collections::HashSet::new();
            let mut held = Vec::new();
            for count in 0..REQUESTS {
                let step = ask();
                assert_eq!(step["now"]["now"], "served");
                assert_eq!(step["silent_workers"], 0);
                assert_eq!(step["workers"].as_array().unwrap().len(), 1);
                let endpoint = step["workers"][0]["endpoint"].as_str().unwrap().to_owned();
                assert_eq!(ask()["workers"], step["workers"], "asking changed it");
                client
                    .send(b"GET /ping HTTP/1.1\r\nHost: x.test\r\n\r\n")
                    .unwrap();
                assert_eq!(client.read_response("GET").unwrap().status, 200);
                until("its line", || proxy.access_log_json().len() > count);
                let line = &proxy.access_log_json()[count];
                assert_eq!(line["endpoint"], endpoint.as_str(), "{balance}, {count}");
                seen.insert(endpoint);
                // Exchanges in flight make a difference as well.
                if count == REQUESTS / 2 {
                    let mut other = proxy.client();
                    let request = b"GET /slow/20000 HTTP/1.1\r\nHost: x.test\r\n\r\n";
                    other.send(request).unwrap();
                    held.push(other);
                    until("it is in flight", || {
                        let endpoints = ask()["endpoints"].clone();
                        let mut endpoints = endpoints.as_array().unwrap().iter();
                        endpoints.any(|it| it["in_flight"] == 1)
                    });
                }
            }
            let expected = match balance {
                "carp" | "first" => 1..2,
                // An exchange in flight may hold the endpoint of a key, which then has more
                // than its share.
                "consistent-hash" => 1..3,
                "random" | "two-choices" | "peak-ewma" | "adaptive" => 1..4,
                _ => 2..4,
            };
            assert!(expected.contains(&seen.len()), "{balance} chose {seen:?}");
            let endpoints = ask()["endpoints"].clone();
            let mut learned = endpoints.as_array().unwrap().iter();
            let kind = learned.find_map(|it| it["learned"].as_object()?.keys().next().cloned());
            let expected = match balance {
                "adaptive" => Some("slowness"),
                "peak-ewma" => Some("first_byte_us"),
                _ => None,
            };
            assert_eq!(kind.as_deref(), expected, "{balance}");
            let config = proxy.path("evenkeel.toml");
            let text = explain(&config, &["--live", "GET", "http://x.test/ping"]).stdout;
            let text = String::from_utf8(text).unwrap();
            let last = text.lines().last().unwrap();
            let endpoint = last.strip_prefix("now: served at once at ").unwrap();
            let marked = format!("> endpoint {endpoint} up");
            assert!(text.contains(&marked), "{text}");
        }
    });
}

#[test]
fn what_a_balancer_has_learned_fades_while_nothing_comes() {
    test(|| {
        let site = Site {
            server: "control = \"$DIR/control.sock\"",
            ..Site::default()
        };
        let (_origin, proxy) = site.with_origin();
        let mut client = proxy.client();
        for path in [["/ping"; 3], ["/slow/100"; 3]].concat() {
            assert_eq!(client.ask(get(path)).unwrap().status, 200);
        }
        let slowness = || {
            let step = live(&proxy, &["GET", "http://x.test/ping"])["action"].clone();
            let slowness = &step["endpoints"][0]["learned"]["slowness"][0];
            slowness.as_f64().unwrap()
        };
        let first = slowness();
        // It fades while it is asked for.
        assert!(first > 1.1, "{first}");
        until("it fades", || slowness() < 1.0 + (first - 1.0) / 2.0);
    });
}

#[test]
fn live_says_what_would_happen_now() {
    test(|| {
        let (a, b) = (origin(), origin());
        let proxy = start(&a.address.to_string(), &b.address.to_string());
        let ask = |proxy: &Proxy| live(proxy, &["GET", "http://app.test/"])["action"].clone();
        assert_eq!(ask(&proxy)["now"]["now"], "served");
        let hang = |proxy: &Proxy| {
            let mut client = proxy.client();
            let request = "GET /slow/20000 HTTP/1.1\r\nHost: app.test\r\n\r\n";
            client.send(request.as_bytes()).unwrap();
            client
        };
        let _first = hang(&proxy);
        until("it waits for the lane", || {
            ask(&proxy)["now"]["now"] == "waits"
        });
        let step = ask(&proxy);
        assert_eq!(step["now"]["behind"], 0);
        assert_eq!(step["lane"]["in_flight"], 1);
        let loads = step["endpoints"].as_array().unwrap().iter();
        let loads: u64 = loads.map(|it| it["in_flight"].as_u64().unwrap()).sum();
        assert_eq!(loads, 1);
        let _second = hang(&proxy);
        until("the queue is full", || {
            ask(&proxy)["now"]["now"] == "refused"
        });
        let step = ask(&proxy);
        assert_eq!(step["queue"]["waiting"], 1);
        assert_eq!(step["now"]["word"], "queue-full");
        assert_eq!(step["now"]["status"], 529);
        // Just so it is.
        let mut client = proxy.client();
        let request = "GET / HTTP/1.1\r\nHost: app.test\r\n\r\n";
        client.send(request.as_bytes()).unwrap();
        assert_eq!(client.read_response("GET").unwrap().status, 529);
        let config = proxy.path("evenkeel.toml");
        let text = explain(&config, &["--live", "GET", "http://app.test/"]).stdout;
        let text = String::from_utf8(text).unwrap();
        let last = text.lines().last();
        let expected = "now: refused with 529 queue-full: too many requests wait for an endpoint";
        assert_eq!(last, Some(expected), "{text}");
        // A request that no route keeps to the lane has room.
        let admin = [
            "--listener",
            "inner",
            "GET",
            "http://x.test/admin/a",
            "-H",
            "X-Token: abc",
        ];
        let now = live(&proxy, &admin);
        assert_eq!(now["action"]["now"]["now"], "served");
        assert_eq!(now["draining"], false);
        proxy.terminate();
        let aside = proxy.path(&format!("control.sock.{}", proxy.pid()));
        until("it drains", || aside.exists());
        let socket = format!("server.control={aside:?}");
        let drained = ["--set", &socket, "--live", "GET", "http://app.test/"];
        let text = explain(&config, &drained).stdout;
        let text = String::from_utf8(text).unwrap();
        let expected = "  draining: open connections are served, new ones are refused\n";
        assert!(text.contains(expected), "{text}");
    });
}

#[test]
fn says_where_a_connection_of_tcp_goes() {
    test(|| {
        let site = Site {
            server: "control = \"$DIR/control.sock\"",
            listener: "[[listener]]\nname = \"tls\"\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n\
                       [[route]]\nname = \"named\"\nmatch = { listener = \"tls\", sni = \"*.a.test\" }\n\
                       upstream = \"app\"",
            upstream: "balance = \"carp\"\nproxy_protocol = \"v1\"",
            ..Site::default()
        };
        let proxy = site.start(&["127.0.0.1:9".into()]);
        let config = proxy.path("evenkeel.toml");
        let ask = |args: &[&str]| {
            let mut command = Command::new(program());
            command
                .args(["explain", "--config"])
                .arg(&config)
                .args(args);
            let Output { stdout, stderr, .. } = command.output().unwrap();
            String::from_utf8([stdout, stderr].concat()).unwrap()
        };
        for live in [&[][..], &["--live"]] {
            let connection = ["TCP", ":443", "--listener", "tls", "--sni", "x.a.test"];
            let text = ask(&[&connection[..], live].concat());
            for expected in [
                "TCP :443 from 127.0.0.1",
                "route named: matches",
                "sni *.a.test: the connection has x.a.test",
                "key: client: 127.0.0.1",
                "timeouts: connect 1s, silence 600s",
                "the endpoint gets:\n  a PROXY protocol header, version 1, then",
            ] {
                assert!(text.contains(expected), "{expected}\n{text}");
            }
        }
        let text = ask(&["TCP", ":443", "--listener", "tls", "--sni", "b.test"]);
        assert!(text.contains("route named: does not match"), "{text}");
        let text = ask(&["GET", "/", "--listener", "tls", "-H", "Host: a"]);
        assert!(
            text.contains("takes TCP connections, not requests"),
            "{text}"
        );
        let text = ask(&["TCP", ":80", "--listener", "web"]);
        assert!(text.contains("takes HTTP requests"), "{text}");
        let text = ask(&["GET", "http://a/", "--sni", "a"]);
        assert!(text.contains("write TCP as the method"), "{text}");
    });
}
