//! Connections to endpoints that belong to one client: NTLM and Negotiate
//! authenticate the connection, not the request.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawClient, RawOrigin, RawStream};

use crate::in_flight::{limited, occupy};
use crate::setup::{Site, figures, get, origin, program, test};

const STATUS: &str = "[status]\nbind = \"127.0.0.1:0\"";
const TYPE1: &str = "Authorization: NTLM TYPE1\r\n";
const TYPE3: &str = "Authorization: NTLM TYPE3\r\n";

/// An endpoint that authenticates connections, as IIS does. It closes a connection
/// on which `/close` is asked for.
struct Endpoint {
    origin: RawOrigin,
    open: Arc<AtomicUsize>,
}

impl Endpoint {
    fn new() -> Self {
        let open = Arc::new(AtomicUsize::new(0));
        let origin = {
            let open = open.clone();
            RawOrigin::start(move |number, stream| {
                open.fetch_add(1, Ordering::SeqCst);
                serve(number, stream);
                open.fetch_sub(1, Ordering::SeqCst);
            })
        };
        Endpoint {
            origin: origin.unwrap(),
            open,
        }
    }

    fn address(&self) -> String {
        self.origin.address.to_string()
    }

    fn open_connections(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

fn serve(number: usize, mut stream: RawStream) {
    let mut is_authenticated = false;
    while let Ok(head) = stream.read_head() {
        let answer = if head.contains("TYPE1") {
            "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: NTLM CHALLENGE\r\nContent-Length: 0\r\n\r\n".into()
        } else if is_authenticated || head.contains("TYPE3") {
            is_authenticated = true;
            let body = format!("welcome on {number}");
            format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
        } else {
            "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n"
                .into()
        };
        if stream.send(answer).is_err() || head.starts_with("GET /close ") {
            return;
        }
    }
}

/// Asks with these further fields: the status, and the body.
#[track_caller]
fn ask(client: &mut RawClient, fields: &str) -> (u16, String) {
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let response = client.ask(request).unwrap();
    (response.status, response.text())
}

/// A client that has authenticated its connection, and the answer that it gets from then on.
#[track_caller]
fn signed_in(proxy: &Proxy) -> (RawClient, String) {
    let mut client = proxy.client();
    assert_eq!(ask(&mut client, TYPE1).0, 401);
    let (status, text) = ask(&mut client, TYPE3);
    assert_eq!(status, 200);
    (client, text)
}

/// A figure of the only endpoint.
fn of_endpoint(proxy: &Proxy, name: &str) -> u64 {
    let figures = figures(proxy);
    figures["upstreams"][0]["endpoints"][0][name]
        .as_u64()
        .unwrap()
}

/// The two kinds of pools for idle connections: one for each worker, or one for all.
fn endpoint_entries(address: &str) -> [String; 2] {
    [address.to_owned(), limited(address, 8)]
}

#[test]
fn an_authenticated_connection_serves_its_client_alone() {
    test(|| {
        let endpoint = Endpoint::new();
        for entry in endpoint_entries(&endpoint.address()) {
            let proxy = Site {
                server: STATUS,
                ..Site::default()
            }
            .start(&[entry]);
            let mut other = proxy.client();
            // The connection that is authenticated was anybody's before.
            assert_eq!(ask(&mut other, "").0, 401);
            let (mut client, welcome) = signed_in(&proxy);
            for _ in 0..3 {
                assert_eq!(ask(&mut other, "").0, 401);
                assert_eq!(ask(&mut client, ""), (200, welcome.clone()));
            }
            until("it is shown", || of_endpoint(&proxy, "pinned") == 1);
            until("it is logged", || {
                let lines = proxy.access_log_json();
                lines.iter().filter(|it| it["reason"] == "pinned").count() == 4
            });
            // It goes with its client.
            drop(client);
            until("it is closed", || {
                of_endpoint(&proxy, "pinned") == 0 && endpoint.open_connections() == 1
            });
            assert_eq!(ask(&mut other, "").0, 401);
        }
    });
}

#[test]
fn a_client_stays_at_the_endpoint_of_its_connection() {
    test(|| {
        let endpoints = [Endpoint::new(), Endpoint::new(), Endpoint::new()];
        let proxy = Site {
            upstream: "balance = \"round-robin\"",
            ..Site::default()
        }
        .start(&endpoints.each_ref().map(Endpoint::address));
        let (mut client, welcome) = signed_in(&proxy);
        let mut others: Vec<_> = (0..4).map(|_| proxy.client()).collect();
        for _ in 0..4 {
            for other in &mut others {
                assert_eq!(ask(other, "").0, 401);
            }
            assert_eq!(ask(&mut client, ""), (200, welcome.clone()));
        }
    });
}

#[test]
fn authentication_begins_anew_where_the_connection_is_gone() {
    test(|| {
        let endpoint = Endpoint::new();
        for entry in endpoint_entries(&endpoint.address()) {
            let proxy = Site::default().start(&[entry]);
            let (mut client, welcome) = signed_in(&proxy);
            let closing = client.get("/close").unwrap();
            assert_eq!((closing.status, closing.text()), (200, welcome.clone()));
            until("it is closed", || endpoint.open_connections() == 0);
            assert_eq!(ask(&mut client, "").0, 401);
            assert_eq!(ask(&mut client, TYPE1).0, 401);
            let (status, text) = ask(&mut client, TYPE3);
            assert_eq!(status, 200);
            assert_ne!(text, welcome);
            assert_eq!(ask(&mut client, ""), (200, text));
        }
    });
}

#[test]
fn a_client_whose_endpoint_is_out_goes_elsewhere() {
    test(|| {
        let (endpoint, plain) = (Endpoint::new(), origin());
        let proxy = Site {
            server: "control = \"$DIR/control.sock\"",
            upstream: "balance = \"first\"",
            ..Site::default()
        }
        .start(&[endpoint.address(), plain.address.to_string()]);
        let (mut client, _) = signed_in(&proxy);
        let mut control = RawClient::connect_unix(proxy.path("control.sock")).unwrap();
        let order = format!("drain app/{}\n", endpoint.address());
        control.send(order).unwrap();
        control.read_to_end().unwrap();
        assert_eq!(client.get("/ping").unwrap().text(), "pong");
        until("its connection is closed", || {
            endpoint.open_connections() == 0
        });
    });
}

#[test]
fn the_connection_idle_for_longest_gives_way_to_a_request_with_its_client() {
    test(|| {
        let endpoint = Endpoint::new();
        let config = Site {
            server: STATUS,
            ..Site::default()
        }
        .config(&[limited(&endpoint.address(), 2)]);
        // Clients of one worker displace those of another.
        for workers in ["workers = 1", "workers = 3"] {
            let config = config.replace("workers = 1", workers);
            let proxy = Proxy::start(program(), &config).unwrap();
            let (mut first, _) = signed_in(&proxy);
            let (mut second, welcome) = signed_in(&proxy);
            let mut other = proxy.client();
            assert_eq!(ask(&mut other, "").0, 401);
            assert!(first.is_closed());
            // From now on there is an idle connection for everybody.
            assert_eq!(ask(&mut other, "").0, 401);
            assert_eq!(ask(&mut second, ""), (200, welcome));
            until("nothing else is open", || endpoint.open_connections() == 2);
            assert_eq!(of_endpoint(&proxy, "displaced"), 1);
            let listener = &figures(&proxy)["listeners"][0];
            assert_eq!(listener["connections_displaced"], 1);
        }
    });
}

#[test]
fn a_pinned_connection_gives_way_where_it_holds_the_only_slot() {
    test(|| {
        let origin = origin();
        let proxy = Site::default().start(&[limited(&origin.address.to_string(), 1)]);
        let mut client = proxy.client();
        let request = get("/slow/1").replacen("\r\n\r\n", &format!("\r\n{TYPE1}\r\n"), 1);
        client.send(request).unwrap();
        assert_eq!(client.read_response("GET").unwrap().status, 200);
        let mut busy: Vec<_> = (0..3).map(|_| occupy(&proxy, "/slow/100")).collect();
        for busy in &mut busy {
            assert_eq!(busy.read_response("GET").unwrap().status, 200);
        }
        assert!(client.is_closed());
        assert_eq!(origin.stats().max_in_flight, 1);
    });
}

/// An endpoint that answers with its name; to `/held` only on command.
struct Gated {
    // Dropped first: ends who waits for it.
    gate: Sender<()>,
    origin: RawOrigin,
    held: Arc<AtomicUsize>,
}

impl Gated {
    fn new(name: &'static str) -> Self {
        let (gate, opened) = channel();
        let opened = Mutex::new(opened);
        let held = Arc::new(AtomicUsize::new(0));
        let origin = {
            let held = held.clone();
            RawOrigin::start(move |_, mut stream| {
                while let Ok(head) = stream.read_head() {
                    if head.starts_with("GET /held?") {
                        held.fetch_add(1, Ordering::SeqCst);
                        if opened.lock().unwrap().recv().is_err() {
                            return;
                        }
                    }
                    let len = name.len();
                    let response =
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{name}");
                    if stream.send(response).is_err() {
                        return;
                    }
                }
            })
        };
        Gated {
            gate,
            origin: origin.unwrap(),
            held,
        }
    }

    fn entry(&self) -> String {
        limited(&self.origin.address.to_string(), 1)
    }

    fn holds_one(&self) -> bool {
        self.held.load(Ordering::SeqCst) == 1
    }

    fn open(&self) {
        self.held.fetch_sub(1, Ordering::SeqCst);
        self.gate.send(()).unwrap();
    }
}

#[test]
fn a_pinned_client_waits_for_a_slot_of_its_own_endpoint() {
    test(|| {
        let (own, other) = (Gated::new("own"), Gated::new("other"));
        let proxy = Site {
            server: STATUS,
            upstream: "balance = \"carp\"\nkey = { query = \"k\", wait = \"1m\" }",
            ..Site::default()
        }
        .start(&[own.entry(), other.entry()]);
        let waiting = || figures(&proxy)["upstreams"][0]["waiting"].clone();
        // Keys that lead to each.
        let mut client = proxy.client();
        let key_of = |client: &mut RawClient, name: &str| {
            let leads_there = |key: &u32| client.get(&format!("/?k={key}")).unwrap().text() == name;
            (0..1000).find(leads_there).unwrap()
        };
        let own_key = key_of(&mut client, "own");
        let other_key = key_of(&mut client, "other");
        let (to_own, to_other) = (format!("/held?k={own_key}"), format!("/held?k={other_key}"));
        // Its second request is there before its connection can be displaced.
        let signing_in = get(&to_own).replacen("\r\n\r\n", &format!("\r\n{TYPE1}\r\n"), 1);
        let free = format!("/?k={other_key}");
        client.send(signing_in + &get(&free)).unwrap();
        until("it is at its endpoint", || own.holds_one());
        let mut at_other = occupy(&proxy, &to_other);
        until("the other one is full", || other.holds_one());
        let mut next = occupy(&proxy, &to_own);
        until("one waits", || waiting() == 1);
        own.open();
        assert_eq!(client.read_response("GET").unwrap().text(), "own");
        until("its slot goes to the next", || own.holds_one());
        until("the client waits", || waiting() == 1);
        // A slot of the other endpoint is for anybody else.
        other.open();
        assert_eq!(at_other.read_response("GET").unwrap().text(), "other");
        assert_eq!(proxy.client().get(&free).unwrap().text(), "other");
        assert_eq!(waiting(), 1);
        own.open();
        assert_eq!(next.read_response("GET").unwrap().text(), "own");
        assert_eq!(client.read_response("GET").unwrap().text(), "own");
    });
}
