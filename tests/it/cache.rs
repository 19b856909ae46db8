//! Caches of routes, over real sockets.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawClient, RawOrigin, RawStream};

use crate::setup::{figures, program, test};

mod crash;
mod failures;
mod keys;
mod long;
mod operating;
mod sharing;
mod tiers;

/// An endpoint that follows its script, and records its requests.
struct Endpoint {
    origin: RawOrigin,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Endpoint {
    /// `answer` gets each head, and the connection to answer on; it says whether that goes
    /// on.
    fn scripted(answer: impl Fn(&str, &mut RawStream) -> bool + Send + Sync + 'static) -> Self {
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let asked = heads.clone();
        let origin = RawOrigin::start(move |_, mut stream| {
            while let Ok(head) = stream.read_head() {
                asked.lock().unwrap().push(head.clone());
                if !answer(&head, &mut stream) {
                    return;
                }
            }
        });
        Endpoint {
            origin: origin.unwrap(),
            heads,
        }
    }

    /// Answers each request with the result of `answer` for its head.
    fn answering(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self::scripted(move |head, stream| stream.send(answer(head)).is_ok())
    }

    fn asked(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    fn count(&self) -> usize {
        self.heads.lock().unwrap().len()
    }

    /// The program before it, with these keys in the table of the route's cache.
    fn behind(&self, cache: &str) -> Proxy {
        self.behind_upstream(cache, "")
    }

    /// The same, with these keys of the upstream.
    fn behind_upstream(&self, cache: &str, upstream: &str) -> Proxy {
        let endpoint = format!("'{}'", self.origin.address);
        behind(&endpoint, cache, upstream)
    }
}

/// The program before these endpoints.
fn behind(endpoints: &str, cache: &str, upstream: &str) -> Proxy {
    let config = format!(
        "[server]\nworkers = 1\ncontrol = '$DIR/control.sock'\n[status]\nbind = '127.0.0.1:0'\n\
         [access_log]\npath = '$DIR/access.log'\nformat = 'json'\n\
         [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n\
         [[route]]\nupstream = 'app'\ncache = {{ {cache} }}\n\
         [upstream.app]\nendpoints = [{endpoints}]\n{upstream}\n"
    );
    Proxy::start(program(), &config).unwrap()
}

/// A response with these fields and this body.
fn response(status: u16, fields: &str, body: &str) -> String {
    let len = body.len();
    format!("HTTP/1.1 {status} Word\r\nContent-Length: {len}\r\n{fields}\r\n{body}")
}

/// The cache results in the access log, line by line.
fn results(proxy: &Proxy, count: usize) -> Vec<String> {
    until("the lines are written", || {
        proxy.access_log_json().len() >= count
    });
    let lines = proxy.access_log_json();
    let word = |line: &serde_json::Value| line["cache"].as_str().unwrap_or("-").to_owned();
    lines.iter().map(word).collect()
}

/// The `Host` field of the first request to an endpoint.
fn host(endpoint: &Endpoint) -> String {
    let head = endpoint.asked()[0].clone();
    let line = head.lines().find(|line| line.starts_with("Host: "));
    line.unwrap().to_owned()
}

/// Opens this many connections with the same request.
fn ask_all(proxy: &Proxy, count: usize, request: &str) -> Vec<RawClient> {
    let clients = (0..count).map(|_| {
        let mut client = proxy.client();
        client.send(request).unwrap();
        client
    });
    clients.collect()
}

const GET: &str = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";

/// An endpoint that answers once it is let. It keeps the connection after whole responses.
fn held(answer: impl Into<String>) -> (Endpoint, Arc<AtomicBool>) {
    let answer = answer.into();
    let is_let = Arc::new(AtomicBool::new(false));
    let is_open = is_let.clone();
    let endpoint = Endpoint::scripted(move |_, stream| {
        until("it is let", || is_open.load(SeqCst));
        stream.send(&answer).is_ok() && answer.starts_with("HTTP/")
    });
    (endpoint, is_let)
}

const FRESH: &str = "Cache-Control: max-age=60\r\n";

#[test]
fn answers_from_what_is_stored() {
    test(|| {
        let endpoint = Endpoint::answering(|_| {
            response(
                200,
                "Cache-Control: max-age=60\r\nETag: \"a\"\r\nX-Own: 1\r\n",
                "hello",
            )
        });
        let proxy = endpoint.behind("");
        let mut client = proxy.client();
        let first = client.get("/a").unwrap();
        assert_eq!((first.status, first.text()), (200, "hello".to_owned()));
        assert_eq!(first.field("age"), None);
        assert_eq!(
            first.field("cache-status"),
            Some("Evenkeel; fwd=uri-miss; fwd-status=200; stored")
        );
        let second = client.get("/a").unwrap();
        assert_eq!((second.status, second.text()), (200, "hello".to_owned()));
        assert_eq!(second.field("age"), Some("0"));
        assert_eq!(second.field("x-own"), Some("1"));
        assert!(second.field("date").is_some());
        let status = second.field("cache-status").unwrap();
        assert!(status.starts_with("Evenkeel; hit; ttl="), "{status}");
        let host = host(&endpoint);
        client
            .send(format!("HEAD /a HTTP/1.1\r\n{host}\r\n\r\n"))
            .unwrap();
        let head = client.read_response("HEAD").unwrap();
        assert_eq!(
            (head.status, head.field("content-length")),
            (200, Some("5"))
        );
        assert_eq!(endpoint.count(), 1);
        assert_eq!(results(&proxy, 3), ["miss", "hit", "hit"]);
        let line = &proxy.access_log_json()[0];
        assert_eq!(line["upstream"], "app");
        assert!(line["endpoint"].is_string() && line["first_byte_us"].is_number());
        let upstream = &figures(&proxy)["upstreams"][0];
        assert_eq!(upstream["requests"], 1, "{upstream}");
    });
}

#[test]
fn answers_conditions_and_ranges_itself() {
    test(|| {
        let endpoint = Endpoint::answering(|_| {
            response(200, &format!("{FRESH}ETag: \"a\"\r\n"), "0123456789")
        });
        let proxy = endpoint.behind("");
        let mut client = proxy.client();
        // The first request has a range; the whole response is fetched for it.
        for (field, status, body, range) in [
            ("Range: bytes=2-4", 206, "234", Some("bytes 2-4/10")),
            ("If-None-Match: \"a\"", 304, "", None),
            ("If-None-Match: \"b\"", 200, "0123456789", None),
            ("Range: bytes=20-", 416, "", Some("bytes */10")),
            ("Range: bytes=-3", 206, "789", Some("bytes 7-9/10")),
        ] {
            let request = format!("GET /a HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
            let response = client.ask(request).unwrap();
            assert_eq!(
                (response.status, &*response.text()),
                (status, body),
                "{field}"
            );
            assert_eq!(response.field("content-range"), range, "{field}");
        }
        let request = "GET /a HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1, 4-5\r\n\r\n";
        let parts = client.ask(request).unwrap();
        assert_eq!(parts.status, 206);
        let text = parts.text();
        assert!(text.contains("bytes 0-1/10\r\n\r\n01\r\n"), "{text}");
        assert!(text.contains("bytes 4-5/10\r\n\r\n45\r\n"), "{text}");
        let asked = endpoint.asked();
        assert_eq!(asked.len(), 1);
        assert!(!asked[0].to_lowercase().contains("range"), "{}", asked[0]);
    });
}

#[test]
fn validates_what_is_stale() {
    test(|| {
        let endpoint = Endpoint::answering(|head| {
            if head.to_lowercase().contains("if-none-match: \"a\"") {
                let fields = "Cache-Control: max-age=0\r\nETag: \"a\"\r\nX-New: 1\r\n";
                return format!("HTTP/1.1 304 Not Modified\r\n{fields}\r\n");
            }
            response(200, "Cache-Control: max-age=0\r\nETag: \"a\"\r\n", "hello")
        });
        let proxy = endpoint.behind("");
        let mut client = proxy.client();
        let mut lens = Vec::new();
        for number in 0..5 {
            let answer = client.get("/a").unwrap();
            assert_eq!((answer.status, answer.text()), (200, "hello".to_owned()));
            assert_eq!(answer.field("x-new").is_some(), number > 0);
            assert_eq!(answer.field("etag"), Some("\"a\""));
            lens.push(answer.fields.len());
        }
        // A renewed head does not grow.
        assert!(lens[1..].iter().all(|len| *len == lens[1]), "{lens:?}");
        assert_eq!(endpoint.count(), 5);
        let expected = [
            "miss",
            "revalidated",
            "revalidated",
            "revalidated",
            "revalidated",
        ];
        assert_eq!(results(&proxy, 5), expected);
    });
}

#[test]
fn a_client_without_conditions_gets_no_304() {
    test(|| {
        // Each 304 is for another response than the stored one.
        let endpoint = Endpoint::answering(|head| {
            let is_conditional = head.contains("If-None-Match") || head.contains("If-Modified");
            if is_conditional {
                return "HTTP/1.1 304 Word\r\nETag: \"b\"\r\n\r\n".to_owned();
            }
            response(200, "Cache-Control: no-cache\r\nETag: \"a\"\r\n", "hello")
        });
        let proxy = endpoint.behind("");
        for _ in 0..3 {
            let answer = proxy.client().ask(GET).unwrap();
            assert_eq!((answer.status, answer.text()), (200, "hello".to_owned()));
        }
    });
}

#[test]
fn what_was_fetched_for_a_request_answers_it() {
    test(|| {
        // Another one each time, which others may not have without asking.
        let count = AtomicUsize::new(0);
        let endpoint = Endpoint::answering(move |_| {
            let number = count.fetch_add(1, SeqCst);
            let fields = format!("Cache-Control: no-cache\r\nETag: \"{number}\"\r\n");
            response(200, &fields, "0123456789")
        });
        let proxy = endpoint.behind("");
        let mut client = proxy.client();
        for (at, (field, status)) in [
            ("If-None-Match: \"x\"", 200),
            ("Range: bytes=2-4", 206),
            ("If-None-Match: \"2\"", 304),
        ]
        .into_iter()
        .enumerate()
        {
            let request = format!("GET /a HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
            assert_eq!(client.ask(request).unwrap().status, status, "{field}");
            assert_eq!(endpoint.count(), at + 1, "{field}");
        }
    });
}

#[test]
fn serves_stale_while_it_validates() {
    test(|| {
        let version = Arc::new(Mutex::new(1));
        let now = version.clone();
        let endpoint = Endpoint::answering(move |_| {
            let fields = "Cache-Control: max-age=0, stale-while-revalidate=60\r\n";
            response(200, fields, &format!("v{}", now.lock().unwrap()))
        });
        let proxy = endpoint.behind("");
        let mut client = proxy.client();
        assert_eq!(client.get("/a").unwrap().text(), "v1");
        *version.lock().unwrap() = 2;
        let stale = client.get("/a").unwrap();
        assert_eq!(stale.text(), "v1");
        until("it is fetched anew", || {
            client.get("/a").unwrap().text() == "v2"
        });
        assert_eq!(results(&proxy, 2)[1], "stale");
    });
}

#[test]
fn only_what_is_stored_is_answered_if_that_is_wanted() {
    test(|| {
        let endpoint = Endpoint::answering(|_| response(200, FRESH, "hello"));
        let proxy = endpoint.behind("");
        let mut client = proxy.client();
        let only = "GET /a HTTP/1.1\r\nHost: a\r\nCache-Control: only-if-cached\r\n\r\n";
        let refused = client.ask(only).unwrap();
        assert_eq!(refused.status, 504);
        assert!(refused.text().contains("not-cached"), "{}", refused.text());
        assert_eq!(endpoint.count(), 0);
        assert_eq!(
            client
                .ask("GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
                .unwrap()
                .status,
            200
        );
        assert_eq!(client.ask(only).unwrap().text(), "hello");
    });
}

#[test]
fn an_unsafe_request_drops_what_it_changes() {
    test(|| {
        let endpoint = Endpoint::scripted(|head, stream| {
            if head.starts_with("POST") {
                let _ = stream.read_len(1);
                return stream.send(response(204, "", "")).is_ok();
            }
            stream.send(response(200, FRESH, "hello")).is_ok()
        });
        let proxy = endpoint.behind("");
        let mut client = proxy.client();
        for _ in 0..2 {
            assert_eq!(client.get("/a").unwrap().text(), "hello");
        }
        let host = host(&endpoint);
        let post = format!("POST /a HTTP/1.1\r\n{host}\r\nContent-Length: 1\r\n\r\nx");
        assert_eq!(client.ask(post).unwrap().status, 204);
        assert_eq!(client.get("/a").unwrap().text(), "hello");
        assert_eq!(endpoint.count(), 3);
        assert_eq!(results(&proxy, 4), ["miss", "hit", "bypass", "miss"]);
    });
}

#[test]
fn purges_for_those_who_may() {
    test(|| {
        let endpoint =
            Endpoint::answering(|_| response(200, &format!("{FRESH}Cache-Tag: t1, t2\r\n"), "x"));
        let ask = |client: &mut RawClient, request: &str| {
            let request = format!("{request}\r\n");
            client.ask(request).unwrap()
        };
        let refusing = endpoint.behind("purge = { from = ['10.0.0.0/8'] }");
        let purge = "PURGE /a HTTP/1.1\r\nHost: a\r\n";
        assert_eq!(ask(&mut refusing.client(), purge).status, 403);
        let proxy = endpoint.behind("purge = { from = ['127.0.0.1'] }");
        let mut client = proxy.client();
        let get = "GET /a HTTP/1.1\r\nHost: a\r\n";
        for (purge, gone) in [
            (purge, "purged url http://a/a\n"),
            (
                "PURGE /* HTTP/1.1\r\nHost: a\r\n",
                "purged prefix http://a/\n",
            ),
            (
                "PURGE / HTTP/1.1\r\nHost: a\r\nCache-Tag: T2\r\n",
                "purged tag T2\n",
            ),
        ] {
            ask(&mut client, get);
            let before = endpoint.count();
            ask(&mut client, get);
            assert_eq!(endpoint.count(), before, "it is stored");
            assert_eq!(ask(&mut client, purge).text(), gone);
            ask(&mut client, get);
            assert_eq!(endpoint.count(), before + 1, "{purge}");
        }
        // Without the setting it is a method like any other.
        let plain = endpoint.behind("");
        let before = endpoint.count();
        assert_eq!(ask(&mut plain.client(), purge).status, 200);
        assert_eq!(endpoint.count(), before + 1);
    });
}

#[test]
fn what_is_stored_stays_over_a_reload() {
    test(|| {
        let endpoint = Endpoint::answering(|_| response(200, FRESH, "hello"));
        let proxy = endpoint.behind("");
        let mut client = proxy.client();
        assert_eq!(client.get("/a").unwrap().status, 200);
        let path = proxy.path("evenkeel.toml");
        let config = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{config}\n[log]\nlevel = 'debug'\n")).unwrap();
        proxy.signal(rustix::process::Signal::HUP);
        until("it is loaded", || figures(&proxy)["generation"] == 1);
        assert_eq!(client.get("/a").unwrap().text(), "hello");
        assert_eq!(endpoint.count(), 1);
    });
}

/// The output of `explain --live` for a GET with this field, if it is not empty.
fn explained(proxy: &Proxy, url: &str, field: &str) -> String {
    let mut command = std::process::Command::new(program());
    command.args(["explain", "--live", "--config"]);
    command.arg(proxy.path("evenkeel.toml"));
    command.args(["GET", url]);
    if !field.is_empty() {
        command.args(["--header", field]);
    }
    let output = command.output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn says_what_the_cache_does_with_a_request() {
    test(|| {
        let endpoint = Endpoint::answering(|head| {
            let is_mine = head.starts_with("GET /mine");
            response(
                200,
                if is_mine {
                    "Cache-Control: no-store\r\n"
                } else {
                    FRESH
                },
                "hello",
            )
        });
        let proxy = endpoint.behind("bypass = { header = { X-Debug = '*' } }");
        let mut client = proxy.client();
        let explained = |url: &str, field: &str| explained(&proxy, url, field);
        let shown = explained("http://a/x", "");
        assert!(
            shown.contains("cache default: miss: nothing is stored"),
            "{shown}"
        );
        assert!(shown.contains("  key: http://a/x\n"), "{shown}");
        for path in ["/x", "/mine"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.ask(request).unwrap().status, 200);
        }
        let shown = explained("http://a/x", "");
        assert!(shown.contains("cache default: hit: "), "{shown}");
        let shown = explained("http://a/mine", "");
        assert!(
            shown.contains("not stored: the answer says no-store"),
            "{shown}"
        );
        let shown = explained("http://a/x", "X-Debug: 1");
        assert!(
            shown.contains("cache default: bypass (rule): the route's `bypass`"),
            "{shown}"
        );
    });
}
