//! Endpoints at Unix sockets whose backlog is full, or that may not be used.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawOrigin, TempDir};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::control::{ask, site_of};
use crate::in_flight::occupy;
use crate::setup::{assert_serves, origin, test};

/// A socket that lets one more wait than `backlog` to be accepted.
fn listen(path: &Path, backlog: i32) -> UnixListener {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    socket.bind(&SockAddr::unix(path).unwrap()).unwrap();
    socket.listen(backlog).unwrap();
    std::os::fd::OwnedFd::from(socket).into()
}

/// Connections that are never accepted, until the backlog is full.
fn fill(path: &Path) -> Vec<Socket> {
    let mut waiting = Vec::new();
    loop {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        match socket.connect(&SockAddr::unix(path).unwrap()) {
            Ok(()) => waiting.push(socket),
            Err(_) => return waiting,
        }
    }
}

/// An endpoint that accepts no connection: its backlog stays full.
struct Hung {
    name: String,
    _listener: UnixListener,
    _waiting: Vec<Socket>,
    _folder: TempDir,
}

impl Hung {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.join("hung.sock");
        Hung {
            name: format!("unix:{}", path.display()),
            _listener: listen(&path, 0),
            _waiting: fill(&path),
            _folder: folder,
        }
    }
}

/// Serves the requests of one connection.
fn serve(stream: UnixStream) {
    use std::io::{BufRead, BufReader, Write};
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|len| len > 0) {
        if line.trim().is_empty() {
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\npong";
            let _ = writer.write_all(answer);
            return;
        }
        line.clear();
    }
}

fn attempts_at(proxy: &Proxy, endpoint: &str) -> Option<String> {
    let shown = ask(proxy, "show upstreams");
    let line = shown.lines().find(|line| line.contains(endpoint))?;
    line.split_whitespace().nth(1).map(str::to_owned)
}

#[test]
fn a_full_backlog_is_waited_for_in_order() {
    test(|| {
        let folder = TempDir::new().unwrap();
        let path = folder.join("app.sock");
        let listener = listen(&path, 0);
        let waiting = fill(&path);
        let proxy = site_of("", &[format!("unix:{}", path.display())]);
        let mut clients: Vec<_> = (0..10).map(|_| occupy(&proxy, "/")).collect();
        until("one asks, and the others wait", || {
            ask(&proxy, "show queue").contains("9")
        });
        drop(waiting);
        std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
        for client in &mut clients {
            assert_eq!(client.read_response("GET").unwrap().text(), "pong");
        }
        for line in proxy.access_log_json() {
            assert_eq!(line["end"], "complete");
        }
    });
}

#[test]
fn others_are_asked_first_and_a_hung_one_is_found_unreachable() {
    test(|| {
        let endpoint = Hung::new();
        let other = origin();
        let hung = endpoint.name.clone();
        let upstream = "balance = \"first\"\ntimeouts = { connect = \"200ms\" }";
        let proxy = site_of(upstream, &[hung.clone(), other.address.to_string()]);
        let mut client = proxy.client();
        // A POST whose bytes were sent somewhere could not go elsewhere.
        let post = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";
        until("it is found unreachable", || {
            assert_eq!(client.ask(post).unwrap().status, 200);
            proxy
                .stderr()
                .contains("can't be reached: its backlog is full")
        });
        assert_eq!(attempts_at(&proxy, &hung).as_deref(), Some("unreachable"));
        let metrics = ask(&proxy, "show upstreams");
        assert!(!metrics.contains("retries refused"), "{metrics}");
    });
}

#[test]
fn a_backlog_that_stays_full_ends_with_the_time_to_connect() {
    test(|| {
        let endpoint = Hung::new();
        let upstream = "timeouts = { connect = \"400ms\" }\nqueue = { timeout = \"3s\" }";
        let proxy = site_of(upstream, std::slice::from_ref(&endpoint.name));
        let begun = Instant::now();
        let mut clients: Vec<_> = (0..3).map(|_| occupy(&proxy, "/")).collect();
        until("it is found unreachable", || {
            proxy.stderr().contains("can't be reached")
        });
        // Three times the timeout to connect, whichever request makes the attempt.
        assert!(begun.elapsed() >= Duration::from_millis(1_200));
        for client in &mut clients {
            client.set_step(Duration::from_secs(10));
            assert_eq!(client.read_response("GET").unwrap().status, 503);
        }
    });
}

#[test]
fn two_full_backlogs_send_nobody_to_and_fro() {
    test(|| {
        let folder = TempDir::new().unwrap();
        let paths = ["one.sock", "two.sock"].map(|name| folder.join(name));
        let listeners = paths.each_ref().map(|path| listen(path, 0));
        let waiting = paths.each_ref().map(|path| fill(path));
        let endpoints = paths
            .each_ref()
            .map(|path| format!("unix:{}", path.display()));
        let proxy = site_of("timeouts = { connect = \"20s\" }", &endpoints);
        let mut clients: Vec<_> = (0..10).map(|_| occupy(&proxy, "/")).collect();
        until("one asks at each, and the others wait", || {
            ask(&proxy, "show queue").contains('8')
        });
        drop(waiting);
        for listener in listeners {
            std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
        }
        for client in &mut clients {
            assert_eq!(client.read_response("GET").unwrap().text(), "pong");
        }
        until("all are logged", || proxy.access_log_json().len() == 10);
        for line in proxy.access_log_json() {
            let attempts = line["attempts"].as_u64().unwrap();
            assert!(attempts <= 4, "{line}");
        }
    });
}

#[test]
fn a_full_backlog_beside_an_endpoint_that_cut_the_exchange_is_no_busy_loop() {
    test(|| {
        let endpoint = Hung::new();
        let cutting = RawOrigin::start(|_, mut stream| {
            let _ = stream.read_head();
        })
        .unwrap();
        let hung = endpoint.name.clone();
        let upstream = "balance = \"first\"\nguard = false\nqueue = { timeout = \"2s\" }";
        let proxy = site_of(upstream, &[hung, cutting.address.to_string()]);
        let response = proxy.client().get("/").unwrap();
        assert!(response.status >= 500, "{response:?}");
        until("it is logged", || proxy.access_log_json().len() == 1);
        let attempts = &proxy.access_log_json()[0]["attempts"];
        assert!(attempts.as_u64().unwrap() < 10, "{attempts} attempts");
        assert!(proxy.cpu_time().unwrap() < Duration::from_secs(1));
    });
}

#[test]
fn a_socket_that_may_not_be_used_is_unreachable() {
    test(|| {
        let other = origin();
        let folder = TempDir::new().unwrap();
        // Not a socket, so that connecting is refused, with the same word even for root.
        let path = folder.join("file");
        std::fs::write(&path, b"").unwrap();
        let refused = format!("unix:{}", path.display());
        let endpoints = [refused.clone(), other.address.to_string()];
        let proxy = site_of("balance = \"first\"", &endpoints);
        let mut client = proxy.client();
        until("it is found unreachable", || {
            assert_serves(&mut client);
            proxy.stderr().contains("can't be reached")
        });
    });
}
