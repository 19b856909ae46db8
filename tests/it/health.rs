//! Probes: what passes, what fails, and what is done about it.

use std::collections::HashSet;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, RawOrigin, RawStream};

use crate::setup::{Site, assert_serves, origin, site, test};

/// Lines of an upstream that is probed often.
fn probed(keys: &str) -> String {
    format!("health = {{ interval = \"100ms\", fall = 2, {keys} }}")
}

fn site_with(upstream: &str, endpoints: &[String]) -> Proxy {
    Site {
        upstream,
        ..Site::default()
    }
    .start(endpoints)
}

#[track_caller]
fn assert_said(proxy: &Proxy, line: &str) {
    until(&format!("{line:?} in the event log"), || {
        proxy.stderr().contains(line)
    });
}

fn address(origin: &OriginHandle) -> String {
    origin.address.to_string()
}

/// Answers each request on a connection of its own.
fn answering(answer: impl Fn(usize) -> String + Send + Sync + 'static) -> RawOrigin {
    RawOrigin::start(move |number, mut stream| {
        if stream.read_head().is_ok() {
            let _ = stream.send(answer(number));
        }
    })
    .unwrap()
}

#[test]
fn an_endpoint_that_refuses_is_down_until_it_is_back() {
    test(|| {
        let (one, other) = (origin(), origin());
        let endpoints = [address(&one), address(&other)];
        let proxy = site_with(&probed("path = \"/ping\""), &endpoints);
        let line = |rest: &str| format!("upstream app: endpoint {} {rest}", endpoints[0]);
        one.refuse();
        assert_said(
            &proxy,
            &line("is down after 2 failed probes: connection refused (1 of 2 left)"),
        );
        let mut client = proxy.client();
        (0..10).for_each(|_| assert_serves(&mut client));
        // Of 10 requests none was tried where it is down.
        assert!(!proxy.stderr().contains("can't be reached"));
        one.serve();
        assert_said(&proxy, &line("is up after 2 probes, "));
        assert_said(&proxy, " ms (2 of 2)");
    });
}

#[test]
fn a_down_endpoint_gets_no_requests() {
    test(|| {
        let well = Arc::new(AtomicBool::new(false));
        let requests = Arc::new(AtomicUsize::new(0));
        let sick = {
            let (well, requests) = (well.clone(), requests.clone());
            RawOrigin::start(move |_, mut stream| {
                let Ok(head) = stream.read_head() else {
                    return;
                };
                let status = match (head.contains("/healthz"), well.load(Ordering::SeqCst)) {
                    (true, false) => "503 Not Well",
                    (true, true) => "200 OK",
                    (false, _) => {
                        requests.fetch_add(1, Ordering::SeqCst);
                        "200 OK"
                    }
                };
                let _ = stream.send(format!(
                    "HTTP/1.1 {status}\r\nContent-Length: 4\r\nConnection: close\r\n\r\npong"
                ));
            })
            .unwrap()
        };
        let good = origin();
        let mut health = probed("path = \"/healthz\", expect = [200, 404]");
        health.push_str("\nbalance = \"round-robin\"");
        let proxy = site_with(&health, &[sick.address.to_string(), address(&good)]);
        assert_said(
            &proxy,
            "is down after 2 failed probes: status 503 (1 of 2 left)",
        );
        let before = requests.load(Ordering::SeqCst);
        let mut client = proxy.client();
        (0..20).for_each(|_| assert_serves(&mut client));
        assert_eq!(requests.load(Ordering::SeqCst), before);
        well.store(true, Ordering::SeqCst);
        assert_said(&proxy, "is up after 2 probes");
        until("it gets requests again", || {
            assert_serves(&mut client);
            requests.load(Ordering::SeqCst) > before
        });
    });
}

#[test]
fn one_failure_is_not_enough_and_neither_is_one_success() {
    test(|| {
        // Fails every other time: two in a row never come.
        let answer = |number| match number % 2 {
            0 => "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_owned(),
            _ => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
        };
        // Slow enough that a busy machine makes none of them late.
        let health = probed("path = \"/\"").replace("100ms", "250ms");
        let origin = answering(answer);
        let proxy = site_with(&health, &[origin.address.to_string()]);
        until("a number of probes", || origin.connections() > 6);
        assert!(!proxy.stderr().contains("is down"), "{}", proxy.stderr());

        let dead = answering(|number| match number < 4 || number % 2 == 0 {
            true => "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_owned(),
            false => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
        });
        let proxy = site_with(&health, &[dead.address.to_string()]);
        assert_said(
            &proxy,
            "is down after 2 failed probes: status 500 (0 of 1 left)",
        );
        until("a number of probes", || dead.connections() > 8);
        assert!(!proxy.stderr().contains("is up"), "{}", proxy.stderr());
    });
}

#[test]
fn answers_that_are_none_fail_within_the_timeout() {
    test(|| {
        let garbage = answering(|_| "\x16\x03\x01 not HTTP\r\n\r\n".into());
        let endless = RawOrigin::start(|_, mut stream| {
            let _ = stream.read_head();
            let _ = stream.send("HTTP/1.1 200 OK\r\n");
            while stream.send(format!("X: {}\r\n", "x".repeat(4096))).is_ok() {}
        })
        .unwrap();
        let endless_body = RawOrigin::start(|_, mut stream| {
            let _ = stream.read_head();
            let _ = stream.send("HTTP/1.1 200 OK\r\n\r\n");
            while stream.send("nothing of interest ".repeat(200)).is_ok() {}
        })
        .unwrap();
        let silent = RawOrigin::start(|_, mut stream| {
            let _ = stream.read_to_end();
        })
        .unwrap();
        let closing = RawOrigin::start(|_, mut stream| drop(stream.read_head())).unwrap();
        let other = answering(|_| "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad".into());
        let cases = [
            (
                &garbage,
                "malformed answer: the endpoint's status line is malformed",
            ),
            (
                &endless,
                "malformed answer: the head of the endpoint's answer is too large",
            ),
            (&endless_body, "body does not contain \"ok\""),
            (&silent, "no answer within 40ms"),
            (&closing, "connection closed before the answer"),
            (&other, "body does not contain \"ok\""),
        ];
        let good = answering(|_| "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok\r\n".into());
        let mut endpoints: Vec<_> = cases.iter().map(|it| it.0.address.to_string()).collect();
        endpoints.push(good.address.to_string());
        // The machine may be busy: what answers at once has more time.
        let health = probed("path = \"/\", body = \"ok\", timeout = \"40ms\"")
            .replace("interval = \"100ms\"", "interval = \"200ms\"");
        let health_of_fast = health.replace("40ms", "200ms");
        let proxy = site_with(&health_of_fast, &endpoints);
        for (origin, failure) in cases.iter().filter(|it| !it.1.contains("within")) {
            let address = origin.address;
            let line = format!("endpoint {address} is down after 2 failed probes: {failure}");
            assert_said(&proxy, &line);
        }
        assert_said(&proxy, "no answer within 200ms");
        assert!(
            !proxy
                .stderr()
                .contains(&format!("endpoint {} ", good.address))
        );
        let proxy = site_with(&health, &endpoints[3..4]);
        assert_said(
            &proxy,
            "is down after 2 failed probes: no answer within 40ms (0 of 1 left)",
        );
    });
}

#[test]
fn a_probe_without_a_path_opens_a_connection() {
    test(|| {
        let first_bytes: Arc<Mutex<HashSet<Vec<u8>>>> = Arc::default();
        let seen = first_bytes.clone();
        let origin = RawOrigin::start(move |_, mut stream: RawStream| {
            let bytes = stream.read_to_end().unwrap_or_default();
            seen.lock().unwrap().insert(bytes);
        })
        .unwrap();
        let dead = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let refusing = dead.local_addr().unwrap().to_string();
        drop(dead);
        let endpoints = [origin.address.to_string(), refusing.clone()];
        let proxy = site_with(&probed(""), &endpoints);
        let line = format!(
            "endpoint {refusing} is down after 2 failed probes: connection refused (1 of 2 left)"
        );
        assert_said(&proxy, &line);
        until("some probes", || origin.connections() >= 3);
        assert!(!proxy.stderr().contains(&endpoints[0]));
        until("their end", || !first_bytes.lock().unwrap().is_empty());
        let seen = first_bytes.lock().unwrap();
        assert!(seen.iter().all(Vec::is_empty), "{seen:?}");
    });
}

#[test]
fn a_probe_has_its_own_port_host_and_fields() {
    test(|| {
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = heads.clone();
        let status = RawOrigin::start(move |_, mut stream| {
            if let Ok(head) = stream.read_head() {
                seen.lock().unwrap().push(head);
            }
            let _ = stream.send("HTTP/1.1 204 No Content\r\n\r\n");
        })
        .unwrap();
        let app = origin();
        let keys = format!(
            "path = \"/status?brief\", method = \"HEAD\", host = \"app.example\", \
             headers = {{ X-Token = \"a b\" }}, port = {}",
            status.address.port()
        );
        let proxy = site_with(&probed(&keys), &[address(&app)]);
        until("a probe", || !heads.lock().unwrap().is_empty());
        let head = heads.lock().unwrap()[0].clone();
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            head,
            format!(
                "HEAD /status?brief HTTP/1.1\r\nHost: app.example\r\nConnection: close\r\n\
                 User-Agent: evenkeel-probe/{version}\r\nX-Token: a b\r\n\r\n"
            )
        );
        assert_eq!(app.stats().connections, 0);
        assert_serves(&mut proxy.client());
        drop(status);
        assert_said(&proxy, "is down after 2 failed probes: connection refused");
    });
}

#[test]
fn a_unix_socket_is_probed() {
    test(|| {
        let dir = evenkeel_testkit::TempDir::new().unwrap();
        let path = dir.join("app.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let accepting = std::thread::spawn(move || {
            for _ in 0..3 {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        });
        let endpoint = format!("unix:{}", path.display());
        let proxy = site_with(&probed("path = \"/\""), std::slice::from_ref(&endpoint));
        accepting.join().unwrap();
        assert_said(
            &proxy,
            &format!("endpoint {endpoint} is down after 2 failed probes: "),
        );
    });
}

#[test]
fn one_thread_probes_for_all_workers() {
    test(|| {
        let origin = origin();
        let config = Site {
            upstream: "health = { path = \"/ping\", interval = \"100ms\" }",
            ..Site::default()
        }
        .config(&[address(&origin)])
        .replace("workers = 1", "workers = 4");
        let _proxy = Proxy::start(crate::setup::program(), &config).unwrap();
        until("the first probe", || origin.stats().requests > 0);
        let begun = Instant::now();
        until("ten more", || origin.stats().requests > 10);
        // With one for each worker it would take a quarter of a second.
        let took = begun.elapsed();
        assert!(took > Duration::from_millis(850), "{took:?}");
    });
}

#[test]
fn probes_are_spread_over_their_interval() {
    const COUNT: usize = 40;
    test(|| {
        // Every loopback address leads to one socket.
        let listener = TcpListener::bind(("0.0.0.0", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let endpoints: Vec<_> = (1..=COUNT)
            .map(|it| format!("127.0.0.{it}:{port}"))
            .collect();
        let health = "health = { interval = \"500ms\" }";
        let _proxy = site_with(health, &endpoints);
        let accepted: Vec<_> = (0..COUNT)
            .map(|_| listener.accept().map(|_| Instant::now()).unwrap())
            .collect();
        let span = accepted[COUNT - 1] - accepted[0];
        assert!(span > Duration::from_millis(200), "{span:?}");
        let within = |from: &Instant| {
            let is_near = |it: &&Instant| {
                it.checked_duration_since(*from)
                    .is_some_and(|it| it < Duration::from_millis(100))
            };
            accepted.iter().filter(is_near).count()
        };
        let most = accepted.iter().map(within).max().unwrap();
        assert!(most < COUNT * 3 / 4, "{most} of {COUNT} within 100 ms");
    });
}

#[test]
fn without_a_probe_nothing_is_probed() {
    test(|| {
        let (origin, proxy) = site();
        assert_serves(&mut proxy.client());
        let begun = Instant::now();
        until("a moment has passed", || {
            begun.elapsed() > Duration::from_millis(300)
        });
        assert_eq!(origin.stats().connections, 1);
    });
}
