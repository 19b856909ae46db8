//! Mirrors: another upstream gets a copy of each request, and no client notices.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::{holds_within, until};
use evenkeel_testkit::{Proxy, RawOrigin, RawStream, Response};

use crate::reload::reload;
use crate::setup::{figures, get, nobody, pattern, program, test};

/// A request as an endpoint got it.
#[derive(Debug, Clone)]
struct Seen {
    head: String,
    body: Vec<u8>,
}

impl Seen {
    fn fields(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().filter_map(|it| it.split_once(": "));
        let named = lines.filter(|(it, _)| it.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value).collect()
    }
}

/// An endpoint that records its requests.
struct Endpoint {
    origin: RawOrigin,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Endpoint {
    /// One that answers each request with this.
    fn answering(answer: &'static str) -> Self {
        Self::start(move |_, stream| {
            stream.send(answer).unwrap();
            true
        })
    }

    /// One that does this with each request; `false` ends the connection.
    fn start(answer: impl Fn(&Seen, &mut RawStream) -> bool + Send + Sync + 'static) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = seen.clone();
        let origin = RawOrigin::start(move |_, mut stream| {
            while let Ok(seen) = read_request(&mut stream) {
                kept.lock().unwrap().push(seen.clone());
                if !answer(&seen, &mut stream) {
                    return;
                }
            }
        });
        Endpoint {
            origin: origin.unwrap(),
            seen,
        }
    }

    fn address(&self) -> String {
        self.origin.address.to_string()
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// The request of this place, once it has come.
    #[track_caller]
    fn nth(&self, index: usize) -> Seen {
        until("the request is there", || self.count() > index);
        self.seen()[index].clone()
    }
}

fn read_request(stream: &mut RawStream) -> std::io::Result<Seen> {
    let head = stream.read_head()?;
    let mut seen = Seen {
        head,
        body: Vec::new(),
    };
    if let [len] = seen.fields("content-length")[..] {
        seen.body = stream.read_len(len.parse().unwrap())?;
    }
    if seen.fields("transfer-encoding") == ["chunked"] {
        loop {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                line.extend(stream.read_len(1)?);
            }
            let size = str::from_utf8(&line).unwrap().trim();
            let size = usize::from_str_radix(size, 16).unwrap();
            let chunk = stream.read_len(size + 2)?;
            seen.body.extend_from_slice(&chunk[..size]);
            if size == 0 {
                break;
            }
        }
    }
    Ok(seen)
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\napp";
/// A response of the mirror, which no client may see.
const BAD: &str = "HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nmirror\r\n0\r\n\r\n";

fn config(route: &str, app: &str, mirror: &str, upstream: &str) -> String {
    format!(
        "[server]\nworkers = 1\ncontrol = \"$DIR/control.sock\"\n\n[status]\nbind = \"127.0.0.1:0\"\n\n\
         [access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\n\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\n\
         [[route]]\nname = \"shop\"\n{route}\n\n\
         [upstream.app]\nendpoints = [\"{app}\"]\n\n\
         [upstream.test]\nendpoints = [\"{mirror}\"]\n{upstream}\n"
    )
}

fn start(route: &str, app: &Endpoint, mirror: &Endpoint) -> Proxy {
    let text = config(route, &app.address(), &mirror.address(), "");
    Proxy::start(program(), &text).unwrap()
}

const ROUTE: &str = "upstream = \"app\"\nmirror = \"test\"";

fn ask(proxy: &Proxy, path: &str, lines: &str) -> Response {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{lines}\r\n");
    proxy.client().ask(&request).unwrap()
}

#[track_caller]
fn assert_app(response: &Response) {
    assert_eq!(
        (response.status, response.text().as_str()),
        (200, "app"),
        "{response:?}"
    );
}

/// A figure of copies.
fn mirrored(proxy: &Proxy, name: &str) -> u64 {
    let route = figures(proxy)["routes"][0].clone();
    let figure = &route["mirror"][name];
    figure.as_u64().unwrap_or_else(|| panic!("{name}: {route}"))
}

#[test]
fn a_copy_is_what_the_upstream_gets() {
    const EDITED: &str = "upstream = \"app\"\nmirror = \"test\"\nstrip_prefix = \"/shop\"\n\
                          request_headers = { set = { X-Tenant = \"{header:X-A}\" } }";
    test(|| {
        let (app, mirror) = (Endpoint::answering(OK), Endpoint::answering(BAD));
        let proxy = start(EDITED, &app, &mirror);
        let lines = "X-A: 1\r\nX-Mirrored: 7\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n";
        assert_app(&ask(&proxy, "/shop/x?y=1", lines));
        let (own, copy) = (app.nth(0), mirror.nth(0));
        // A client's own is no mark.
        assert_eq!(own.fields("x-mirrored").len(), 0);
        assert_eq!(copy.fields("x-mirrored"), ["1"]);
        assert!(copy.head.starts_with("GET /x?y=1 HTTP/1.1\r\n"), "{copy:?}");
        assert_eq!(copy.fields("x-tenant"), ["1"]);
        assert_eq!(copy.fields("x-hop").len(), 0);
        // Except for that mark, the heads are the same.
        let rest = |seen: &Seen| {
            let lines = seen.head.lines().filter(|it| !it.starts_with("X-Mirrored"));
            let mut lines: Vec<_> = lines.map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(rest(&own), rest(&copy));
        // One request for the route and its log, and one for each upstream.
        until("the copy is counted", || {
            figures(&proxy)["upstreams"][1]["requests"] == 1
        });
        let all = figures(&proxy);
        assert_eq!(all["routes"][0]["requests"], 1);
        assert_eq!(all["routes"][0]["errors"], 0);
        assert_eq!(all["upstreams"][1]["errors"], 1, "the mirror's 500");
        assert_eq!(mirrored(&proxy, "sent"), 1);
        assert_eq!(mirrored(&proxy, "failed"), 0);
        until("there is a line", || !proxy.access_log_json().is_empty());
        assert_eq!(proxy.access_log_json().len(), 1);
    });
}

#[test]
fn bodies_are_copied_byte_for_byte() {
    const LONG: &str = "upstream = \"app\"\nmirror = { upstream = \"test\", max_body = \"2MiB\" }";
    test(|| {
        let (app, mirror) = (Endpoint::answering(OK), Endpoint::answering(BAD));
        let proxy = start(LONG, &app, &mirror);
        let body = pattern(1 << 20);
        let mut client = proxy.client();
        let head = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.send(head).unwrap();
        for chunk in body.chunks(70_001) {
            let line = format!("{:x}\r\n", chunk.len());
            client
                .send([line.as_bytes(), chunk, b"\r\n"].concat())
                .unwrap();
        }
        // The next request is not part of the body.
        client.send(format!("0\r\n\r\n{}", get("/b"))).unwrap();
        assert_app(&client.read_response("POST").unwrap());
        assert_app(&client.read_response("GET").unwrap());
        let copies = [mirror.nth(0), mirror.nth(1)];
        let long = copies
            .iter()
            .find(|it| it.head.starts_with("POST /a "))
            .unwrap();
        assert_eq!(long.body.len(), body.len());
        assert!(long.body == body, "the copy has other bytes");
        assert!(copies.iter().any(|it| it.head.starts_with("GET /b ")));
        // A length that is known, with the first bytes in the head's packet.
        let (first, rest) = body.split_at(1_000);
        let head = format!(
            "PUT /c HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        client.send([head.as_bytes(), first].concat()).unwrap();
        until("it is in flight", || {
            figures(&proxy)["upstreams"][0]["in_flight"] == 1
        });
        client.send(rest).unwrap();
        assert_app(&client.read_response("PUT").unwrap());
        let copy = mirror.nth(2);
        assert!(copy.body == body, "the copy has other bytes");
        // One that comes with its head.
        let head = "POST /d HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        assert_app(&client.ask(head).unwrap());
        assert_eq!(mirror.nth(3).body, b"abc");
        // A copy waits for no 100 (Continue): its body is there.
        let head =
            "POST /e HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
        client.send(head).unwrap();
        client.send("abc").unwrap();
        assert_app(&client.read_response("POST").unwrap());
        let copy = mirror.nth(4);
        assert_eq!(
            (&copy.body[..], copy.fields("expect").len()),
            (&b"abc"[..], 0)
        );
        let memory = || figures(&proxy)["buffer_bytes"] == 0;
        until("the memory is free", memory);
        assert_eq!(mirrored(&proxy, "sent"), 5);
    });
}

#[test]
fn what_is_not_copied_is_counted() {
    const SHORT: &str = "upstream = \"app\"\nmirror = { upstream = \"test\", max_body = 10 }";
    test(|| {
        let (app, mirror) = (Endpoint::answering(OK), Endpoint::answering(BAD));
        let proxy = start(SHORT, &app, &mirror);
        let post = |lines: &str| {
            let request = format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}");
            proxy.client().ask(&request).unwrap()
        };
        assert_app(&post("Content-Length: 11\r\n\r\nhello world"));
        assert_app(&post(
            "Transfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n0\r\n\r\n",
        ));
        let mut slow = proxy.client();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        slow.send(head).unwrap();
        until("it is in flight", || {
            figures(&proxy)["upstreams"][0]["in_flight"] == 1
        });
        slow.send("1\r\na\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n")
            .unwrap();
        assert_app(&slow.read_response("POST").unwrap());
        until("they are counted", || mirrored(&proxy, "too_long") == 3);
        // A client that leaves in the middle of its body.
        let mut gone = proxy.client();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc";
        gone.send(head).unwrap();
        drop(gone);
        until("it is counted", || mirrored(&proxy, "cut") == 1);
        until("it is said", || {
            proxy.stderr().contains("not every request is copied")
        });
        assert_eq!((mirror.count(), mirrored(&proxy, "sent")), (0, 0));
    });
}

#[test]
fn a_mirror_that_hangs_or_is_down_slows_nobody() {
    const FEW: &str = "upstream = \"app\"\nmirror = { upstream = \"test\", max_in_flight = 2 }";
    test(|| {
        let app = Endpoint::answering(OK);
        // It takes each request, and stays silent until it is left.
        let hanging = Endpoint::start(|_, stream| {
            drop(stream.read_head());
            false
        });
        let text = config(
            FEW,
            &app.address(),
            &hanging.address(),
            "timeouts = { first_byte = \"500ms\" }",
        );
        let proxy = Proxy::start(program(), &text).unwrap();
        let mut client = proxy.client();
        let begun = Instant::now();
        for _ in 0..20 {
            assert_app(&client.get("/").unwrap());
        }
        let took = begun.elapsed();
        assert!(took < Duration::from_millis(450), "{took:?}");
        assert_eq!(mirrored(&proxy, "sent"), 2);
        assert_eq!(mirrored(&proxy, "busy"), 18);
        until("they have failed", || mirrored(&proxy, "failed") == 2);
        assert_eq!(figures(&proxy)["routes"][0]["errors"], 0);
        // Their places are free again.
        assert_app(&client.get("/").unwrap());
        until("another is sent", || mirrored(&proxy, "sent") == 3);
        // An upstream without a server, whose requests wait in its queue.
        reload(&proxy, &config(FEW, &app.address(), &nobody(), ""));
        let begun = Instant::now();
        for _ in 0..5 {
            assert_app(&client.get("/").unwrap());
        }
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert_eq!(hanging.count(), 3, "no copy is retried");
    });
}

#[test]
fn a_copy_is_not_retried() {
    test(|| {
        let app = Endpoint::answering(OK);
        let closing = Endpoint::start(|_, _| false);
        let other = Endpoint::start(|_, _| false);
        let endpoints = format!("{}\", \"{}", closing.address(), other.address());
        let text = config(ROUTE, &app.address(), &endpoints, "retries = 3");
        let proxy = Proxy::start(program(), &text).unwrap();
        assert_app(&ask(&proxy, "/", ""));
        until("it has failed", || mirrored(&proxy, "failed") == 1);
        assert_eq!(closing.count() + other.count(), 1);
        assert_eq!(figures(&proxy)["upstreams"][1]["retries"], 0);
    });
}

#[test]
fn some_requests_are_not_mirrored() {
    const CACHED: &str = "upstream = \"app\"\nmirror = \"test\"\ncache = true";
    const STORED: &str =
        "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 3\r\n\r\napp";
    test(|| {
        let (app, mirror) = (Endpoint::answering(STORED), Endpoint::answering(BAD));
        let proxy = start(CACHED, &app, &mirror);
        // A miss is copied, since it goes to the upstream; a hit is not.
        for _ in 0..3 {
            assert_app(&ask(&proxy, "/a", ""));
        }
        assert_eq!(app.count(), 1);
        assert!(mirror.nth(0).head.starts_with("GET /a "));
        // Past the cache.
        let post = "POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";
        assert_app(&proxy.client().ask(post).unwrap());
        assert!(mirror.nth(1).head.starts_with("POST /b "));
        // A tunnel has no copy.
        let upgrade = "GET /c HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
        assert_app(&proxy.client().ask(upgrade).unwrap());
        assert_app(&ask(&proxy, "/d", ""));
        assert!(mirror.nth(2).head.starts_with("GET /d "));
        assert_eq!(mirrored(&proxy, "sent"), 3);
    });
}

#[test]
fn a_share_of_the_requests() {
    const HALF: &str = "split = [{ upstream = \"app\" }]\n\
                        mirror = { upstream = \"test\", share = 0.5, max_in_flight = 1000 }";
    test(|| {
        let (app, mirror) = (Endpoint::answering(OK), Endpoint::answering(BAD));
        let proxy = start(HALF, &app, &mirror);
        let mut client = proxy.client();
        for _ in 0..400 {
            assert_app(&client.get("/").unwrap());
        }
        let sent = mirrored(&proxy, "sent");
        // Eight standard deviations.
        assert!((120..280).contains(&sent), "{sent}");
        until("they have come", || mirror.count() as u64 == sent);
        let explained = Command::new(program())
            .args(["explain", "--config"])
            .arg(proxy.path("evenkeel.toml"))
            .arg("GET")
            .arg(proxy.url("/"))
            .output()
            .unwrap();
        let text = String::from_utf8(explained.stdout).unwrap();
        let line =
            "mirror: a copy goes to upstream test with a chance of 50 %; its response is discarded";
        assert!(text.contains(line), "{text}");
    });
}

#[test]
fn a_reload_takes_the_mirror_away_and_copies_in_flight_go_on() {
    test(|| {
        let app = Endpoint::answering(OK);
        let may_answer = Arc::new(AtomicBool::new(false));
        let answers = may_answer.clone();
        let mirror = Endpoint::start(move |_, stream| {
            until("it may answer", || answers.load(Ordering::Relaxed));
            stream.send(BAD).unwrap();
            true
        });
        let proxy = start(ROUTE, &app, &mirror);
        assert_app(&ask(&proxy, "/a", ""));
        mirror.nth(0);
        let without = "upstream = \"app\"";
        reload(
            &proxy,
            &config(without, &app.address(), &mirror.address(), ""),
        );
        assert_app(&ask(&proxy, "/b", ""));
        may_answer.store(true, Ordering::Relaxed);
        until("the copy is counted", || {
            figures(&proxy)["upstreams"][1]["requests"] == 1
        });
        let all = figures(&proxy);
        assert_eq!(all["upstreams"][1]["ends"]["complete"], 1, "{all}");
        assert_eq!(mirror.count(), 1);
    });
}

#[test]
fn a_stop_waits_for_copies_as_long_as_they_may_take() {
    test(|| {
        let app = Endpoint::answering(OK);
        let may_answer = Arc::new(AtomicBool::new(false));
        let is_answered = Arc::new(AtomicBool::new(false));
        let (answers, answered) = (may_answer.clone(), is_answered.clone());
        let mirror = Endpoint::start(move |seen, stream| {
            if seen.head.starts_with("GET /hang ") {
                drop(stream.read_head());
                return false;
            }
            until("it may answer", || answers.load(Ordering::Relaxed));
            stream.send(BAD).unwrap();
            answered.store(true, Ordering::Relaxed);
            true
        });
        let mut proxy = start(ROUTE, &app, &mirror);
        assert_app(&ask(&proxy, "/", ""));
        mirror.nth(0);
        proxy.terminate();
        let ended = holds_within(Duration::from_millis(500), || proxy.has_ended());
        assert!(!ended, "a copy is in flight");
        may_answer.store(true, Ordering::Relaxed);
        assert!(proxy.wait(Duration::from_secs(5)).unwrap().success());
        assert!(is_answered.load(Ordering::Relaxed));
        // A copy that hangs ends by its timeout.
        let text = config(
            ROUTE,
            &app.address(),
            &mirror.address(),
            "timeouts = { first_byte = \"1s\" }",
        );
        let mut proxy = Proxy::start(program(), &text).unwrap();
        assert_app(&ask(&proxy, "/hang", ""));
        mirror.nth(1);
        let begun = Instant::now();
        proxy.terminate();
        assert!(proxy.wait(Duration::from_secs(10)).unwrap().success());
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(3), "{took:?}");
    });
}
