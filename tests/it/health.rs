//! Probes: which answers pass or fail, and the effects.

use std::collections::HashSet;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, RawOrigin, RawStream};
use socket2::{Domain, Socket, Type};

use crate::in_flight::{limited, occupy};
use crate::setup::{
    Site, assert_refused, assert_serves, figures, get, nobody, origin, program, site, test,
};
use crate::words;

/// Lines of an upstream that is probed often.
fn probed(keys: &str) -> String {
    format!("health = {{ interval = \"100ms\", fall = 2, {keys} }}")
}

pub fn site_with(upstream: &str, endpoints: &[String]) -> Proxy {
    Site {
        upstream,
        server: "[status]\nbind = \"127.0.0.1:0\"",
        ..Site::default()
    }
    .start(endpoints)
}

/// The endpoints' states, in words.
pub fn states(proxy: &Proxy) -> Vec<String> {
    let figures = figures(proxy);
    let endpoints = figures["upstreams"][0]["endpoints"].as_array().unwrap();
    let states = endpoints.iter().map(|it| it["state"].as_str().unwrap());
    states.map(str::to_owned).collect()
}

#[track_caller]
pub fn assert_said(proxy: &Proxy, line: &str) {
    until(&format!("{line:?} in the event log"), || {
        proxy.stderr().contains(line)
    });
}

fn address(origin: &OriginHandle) -> String {
    origin.address.to_string()
}

/// Answers each request on a separate connection.
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
        // Both were probed.
        let mut client = proxy.client();
        until("both take part", || {
            assert_serves(&mut client);
            one.stats().requests > 0 && other.stats().requests > 0
        });
        until("both are up", || states(&proxy) == ["up", "up"]);
        one.refuse();
        assert_said(
            &proxy,
            &line("is down after 2 failed probes: connection refused (1 of 2 left)"),
        );
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
            "is down after 1 failed probe: status 503 (1 of 2 left)",
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
            1 => "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_owned(),
            _ => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
        };
        // Slow enough that no probe is late on a busy machine.
        let health = probed("path = \"/\"").replace("100ms", "250ms");
        let origin = answering(answer);
        let proxy = site_with(&health, &[origin.address.to_string()]);
        until("a number of probes", || origin.connections() > 6);
        assert!(!proxy.stderr().contains("is down"), "{}", proxy.stderr());

        let dead = answering(|number| {
            if number < 4 || number % 2 == 0 {
                "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_owned()
            } else {
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned()
            }
        });
        let proxy = site_with(&health, &[dead.address.to_string()]);
        assert_said(
            &proxy,
            "is down after 1 failed probe: status 500 (0 of 1 left)",
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
            let line = format!("endpoint {address} is down after 1 failed probe: {failure}");
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
            "is down after 1 failed probe: no answer within 40ms (0 of 1 left)",
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
        let refusing = nobody();
        let endpoints = [origin.address.to_string(), refusing.clone()];
        let proxy = site_with(&probed(""), &endpoints);
        let line = format!(
            "endpoint {refusing} is down after 1 failed probe: connection refused (1 of 2 left)"
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
        let _proxy = Proxy::start(program(), &config).unwrap();
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
        // The first ones come at once.
        (0..COUNT).for_each(|_| drop(listener.accept().unwrap()));
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

/// An endpoint that answers health checks with this text, and counts other requests.
fn with_health(health: &'static str) -> (RawOrigin, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    let origin = RawOrigin::start(move |_, mut stream| {
        while let Ok(head) = stream.read_head() {
            let status = if head.contains("/healthz") {
                health
            } else {
                counted.fetch_add(1, Ordering::SeqCst);
                "200 OK"
            };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 4\r\n\r\npong");
            if stream.send(answer).is_err() {
                return;
            }
        }
    });
    (origin.unwrap(), requests)
}

#[test]
fn the_first_probe_decides_and_nothing_comes_before_it() {
    test(|| {
        let (sick, sick_requests) = with_health("503 Starting");
        let (well, well_requests) = with_health("200 OK");
        let endpoints = [&sick, &well].map(|it| it.address.to_string());
        let health = "health = { path = \"/healthz\", interval = \"60s\", rise = 5, fall = 5";
        let keys = "\nbalance = \"round-robin\"\nguard = false";
        let proxy = site_with(&format!("{health} }}{keys}"), &endpoints);
        let mut client = proxy.client();
        (0..20).for_each(|_| assert_serves(&mut client));
        assert_eq!(sick_requests.load(Ordering::SeqCst), 0);
        assert_eq!(well_requests.load(Ordering::SeqCst), 20);
        assert_said(
            &proxy,
            "is down after 1 failed probe: status 503 (1 of 2 left",
        );
        assert_eq!(states(&proxy), ["down", "up"]);
        // On request they take part until probes have failed.
        let initial = format!("{health}, initial = \"up\" }}{keys}");
        let proxy = site_with(&initial, &endpoints);
        let mut client = proxy.client();
        (0..20).for_each(|_| assert_serves(&mut client));
        assert_eq!(sick_requests.load(Ordering::SeqCst), 10);
        assert!(!proxy.stderr().contains("is down"), "{}", proxy.stderr());
    });
}

#[test]
fn who_comes_before_the_first_probe_waits_for_it() {
    test(|| {
        let answers = Arc::new(Mutex::new(()));
        let later = answers.lock().unwrap();
        let may_answer = answers.clone();
        let origin = RawOrigin::start(move |_, mut stream| {
            while stream.read_head().is_ok() {
                let _may_answer = may_answer.lock().unwrap();
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong";
                if stream.send(answer).is_err() {
                    return;
                }
            }
        })
        .unwrap();
        let endpoints = [origin.address.to_string()];
        let health = "health = { path = \"/\", interval = \"60s\", timeout = \"20s\" }";
        let hasty = format!("{health}\nqueue = {{ hold = false }}");
        let proxy = site_with(&hasty, &endpoints);
        until("a probe", || origin.connections() == 1);
        let response = proxy.client().get("/").unwrap();
        assert_refused(&response, words::NO_ENDPOINT);
        let proxy = site_with(health, &endpoints);
        until("a probe", || origin.connections() == 2);
        assert_eq!(states(&proxy), ["unprobed"]);
        let mut waiting = occupy(&proxy, "/");
        until("it waits", || {
            figures(&proxy)["upstreams"][0]["waiting"] == 1
        });
        assert_eq!(origin.connections(), 2);
        drop(later);
        assert_eq!(waiting.read_response("GET").unwrap().text(), "pong");
        assert_eq!(states(&proxy), ["up"]);
    });
}

/// A port on every loopback address where connects hang.
fn hanging() -> (Socket, Vec<Socket>, u16) {
    let stream_socket = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let listener = stream_socket();
    let any = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    listener.bind(&any.into()).unwrap();
    listener.listen(0).unwrap();
    let port = listener.local_addr().unwrap().as_socket().unwrap().port();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    // They fill its backlog.
    let filling = (0..3).map(|_| {
        let socket = stream_socket();
        socket.set_nonblocking(true).unwrap();
        let _ = socket.connect(&address.into());
        socket
    });
    let filling = filling.collect();
    (listener, filling, port)
}

#[test]
fn connects_that_hang_hold_up_no_other_upstream() {
    test(|| {
        let (_listener, _filling, port) = hanging();
        let hung = (0..600).map(|it| format!("\"127.1.{}.{}:{port}\"", it / 200, it % 200 + 1));
        let hung = hung.collect::<Vec<_>>().join(", ");
        let origin = origin();
        let config = Site {
            upstream: "health = { interval = \"60s\" }",
            ..Site::default()
        }
        .config(&[address(&origin)]);
        // All of them are probed before the other one.
        let config = format!(
            "[upstream.a-hung]\nendpoints = [{hung}]\n\
             health = {{ interval = \"60s\", timeout = \"60s\" }}\n\
             [[route]]\nmatch = {{ path = \"/hung\" }}\nupstream = \"a-hung\"\n{config}"
        );
        let proxy = Proxy::start(program(), &config).unwrap();
        assert_serves(&mut proxy.client());
    });
}

/// Serves one connection at a time until its peer closes it, as a server with one
/// thread does.
fn with_one_thread() -> (RawOrigin, Arc<AtomicUsize>) {
    let probes = Arc::new(AtomicUsize::new(0));
    let (thread, counted) = (Mutex::new(()), probes.clone());
    let origin = RawOrigin::start(move |_, mut stream| {
        let _thread = thread.lock().unwrap();
        while let Ok(head) = stream.read_head() {
            counted.fetch_add(
                usize::from(head.contains("evenkeel-probe")),
                Ordering::SeqCst,
            );
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong";
            if stream.send(answer).is_err() {
                return;
            }
        }
    });
    (origin.unwrap(), probes)
}

#[test]
fn a_probe_takes_the_place_of_an_idle_connection() {
    test(|| {
        let (origin, probes) = with_one_thread();
        let health = "health = { path = \"/\", interval = \"200ms\", fall = 1 }";
        let proxy = site_with(health, &[limited(&origin.address.to_string(), 1)]);
        let mut client = proxy.client();
        until("a number of probes between requests", || {
            assert_serves(&mut client);
            probes.load(Ordering::SeqCst) > 5
        });
        // Its thread is held by an idle connection that is left alone.
        let before = probes.load(Ordering::SeqCst);
        until("a number of probes", || {
            probes.load(Ordering::SeqCst) > before + 3
        });
        assert!(!proxy.stderr().contains("is down"), "{}", proxy.stderr());
    });
}

#[test]
fn a_probe_waits_for_a_slot_and_gets_the_next() {
    test(|| {
        let origin = origin();
        let health = "health = { path = \"/status/204\", interval = \"1s\" }";
        let proxy = site_with(health, &[limited(&address(&origin), 1)]);
        let probes = || {
            let of_origin = origin.stats().requests;
            of_origin.saturating_sub(figure(&proxy, "attempts"))
        };
        // The slot is never free: one of them waits while the other is served.
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut client = proxy.client();
                    while !is_over.load(Ordering::SeqCst) {
                        let response = client.get("/slow/20").unwrap();
                        assert_eq!(response.status, 200);
                    }
                });
            }
            until("probes beside them", || probes() > 3);
            is_over.store(true, Ordering::SeqCst);
        });
        assert_eq!(origin.stats().max_in_flight, 1);
    });
}

#[test]
fn a_probe_goes_beyond_the_limit_after_an_interval() {
    test(|| {
        let origin = origin();
        let health = "health = { path = \"/status/204\", interval = \"400ms\" }";
        let proxy = site_with(health, &[limited(&address(&origin), 1)]);
        let mut busy = proxy.client();
        busy.send(get("/slow/5000")).unwrap();
        let attempted = || figure(&proxy, "attempts") == 1;
        until("the slot is taken", || {
            attempted() && origin.stats().in_flight == 1
        });
        let (begun, before) = (Instant::now(), origin.stats().requests);
        until("a probe", || origin.stats().requests > before);
        assert!(begun.elapsed() >= Duration::from_millis(300));
        assert_eq!(origin.stats().aborted, 0);
        assert_eq!(busy.read_response("GET").unwrap().text(), "pong");
    });
}

/// A figure of the endpoint.
fn figure(proxy: &Proxy, name: &str) -> u64 {
    let figures = figures(proxy);
    let endpoint = &figures["upstreams"][0]["endpoints"][0];
    endpoint[name].as_u64().unwrap()
}
