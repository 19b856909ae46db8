//! Room for another connection: descriptors kept in reserve, and the order in
//! which others are closed where descriptors or a listener's connections run out.

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, ProxySetup, RawClient};
use rustix::process::Signal;

use crate::in_flight::occupy;
use crate::setup::{
    Site, ask_status, assert_logged, assert_refused, assert_serves, figures, get, origin, test,
};
use crate::words;

const STATUS: &str = "[status]\nbind = \"127.0.0.1:0\"";
/// Most descriptors of the process: room for some dozens of connections.
const FEW: u32 = 120;

/// A site with these further keys of its listener, whose clients are accepted at
/// once, and with this part of the server's configuration before the status page.
fn site(listener: &str, server: &str) -> (OriginHandle, Proxy) {
    start(listener, server, &ProxySetup::default())
}

/// The same with few descriptors.
fn poor_site(server: &str) -> (OriginHandle, Proxy) {
    let setup = ProxySetup {
        open_files: Some(FEW),
        ..ProxySetup::default()
    };
    start("timeouts.head = \"60s\"", server, &setup)
}

fn start(listener: &str, server: &str, setup: &ProxySetup) -> (OriginHandle, Proxy) {
    let origin = origin();
    let proxy = Site {
        listener: &format!("defer_accept = false\n{listener}"),
        server: &format!("{server}\n{STATUS}"),
        ..Site::default()
    }
    .start_with(&[origin.address.to_string()], setup);
    (origin, proxy)
}

/// A figure of the only listener.
fn of_listener(proxy: &Proxy, name: &str) -> u64 {
    figures(proxy)["listeners"][0][name].as_u64().unwrap()
}

/// How many idle connections to the only endpoint were closed for others.
fn displaced_to_endpoint(proxy: &Proxy) -> u64 {
    let figures = figures(proxy);
    let endpoint = &figures["upstreams"][0]["endpoints"][0];
    endpoint["displaced"].as_u64().unwrap()
}

/// A client that has connected and was accepted.
fn silent(proxy: &Proxy) -> RawClient {
    let before = of_listener(proxy, "connections");
    let client = proxy.client();
    until("it is accepted", || {
        of_listener(proxy, "connections") > before
    });
    client
}

/// A client that was served and waits.
fn idle(proxy: &Proxy) -> RawClient {
    let mut client = proxy.client();
    assert_serves(&mut client);
    client
}

#[test]
fn silent_clients_leave_descriptors_for_operators_endpoints_and_new_clients() {
    test(|| {
        let (_origin, proxy) = poor_site("control = \"$DIR/control.sock\"");
        let mut crowd: Vec<RawClient> = (0..200).map(|_| proxy.client()).collect();
        until("all were accepted", || {
            of_listener(&proxy, "connections") == 200
        });
        assert!(proxy.open_files().unwrap() < FEW as usize);
        // The operator, by both ways.
        ask_status(&proxy, "/metrics", "");
        let control = RawClient::connect_unix(proxy.path("control.sock"));
        let mut control = control.unwrap();
        control.send("show upstreams\n").unwrap();
        let answer = control.read_to_end().unwrap();
        assert!(answer.starts_with(b"upstream app"), "{answer:?}");
        // New clients, at endpoints too.
        let mut new: Vec<RawClient> = (0..5).map(|_| idle(&proxy)).collect();
        new.iter_mut().for_each(assert_serves);
        // The oldest of the silent ones had to leave, and not the newest.
        assert!(crowd[0].is_closed());
        assert_serves(crowd.last_mut().unwrap());
        assert!(of_listener(&proxy, "connections_displaced") >= 80);
        assert_eq!(of_listener(&proxy, "connections_no_descriptor"), 0);
        until("it is said", || {
            let said = proxy.stderr();
            said.contains("listener web: idle client connections are closed to make room")
        });
    });
}

#[test]
fn idle_connections_to_endpoints_give_way_before_clients() {
    test(|| {
        let (origin, proxy) = poor_site("");
        // As many connections to the endpoint as there is room for.
        let mut busy: Vec<RawClient> = (0..16).map(|_| occupy(&proxy, "/slow/300")).collect();
        for client in &mut busy {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        let pooled = origin.stats().open_connections;
        assert_eq!(pooled, 16);
        let mut clients = Vec::new();
        until("some gave way", || {
            clients.push(silent(&proxy));
            displaced_to_endpoint(&proxy) > 0
        });
        assert_eq!(of_listener(&proxy, "connections_displaced"), 0);
        until("the endpoint sees it", || {
            origin.stats().open_connections < pooled
        });
        busy.iter_mut().for_each(assert_serves);
        clients.iter_mut().for_each(assert_serves);
        until("it is said", || {
            let said = proxy.stderr();
            said.contains("upstream app: idle connections to its endpoints are closed to make room")
        });
    });
}

#[test]
fn a_new_client_is_served_where_idle_connections_hold_the_descriptors_kept_for_endpoints() {
    test(|| {
        const KEPT: u32 = 40;
        let (origin, proxy) = poor_site(&format!("reserved_descriptors = {KEPT}"));
        // Clients hold as many descriptors as they may. Connections to endpoints get reserved
        // ones, so closing an endpoint's connection would not help a client.
        let mut clients = Vec::new();
        while proxy.open_files().unwrap() < (FEW - KEPT) as usize {
            clients.push(silent(&proxy));
        }
        let mut busy = clients.split_off(clients.len() - 20);
        for client in &mut busy {
            client
                .send("GET /slow/300 HTTP/1.1\r\nHost: a\r\n\r\n")
                .unwrap();
        }
        for client in &mut busy {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        let pooled = origin.stats().open_connections;
        assert!(pooled >= 18, "{pooled}");
        let _new: Vec<RawClient> = (0..5).map(|_| idle(&proxy)).collect();
        busy.iter_mut().for_each(assert_serves);
        assert_eq!(of_listener(&proxy, "connections_no_descriptor"), 0);
    });
}

#[test]
fn a_client_that_nothing_can_be_closed_for_is_refused_for_want_of_descriptors() {
    test(|| {
        let (_origin, proxy) = poor_site("reserved_descriptors = 80");
        let mut busy = Vec::new();
        until("one is refused", || {
            busy.push(occupy(&proxy, "/slow/1000"));
            of_listener(&proxy, "connections_no_descriptor") > 0
        });
        let answers = busy.iter_mut().map(|it| it.read_response("GET").unwrap());
        let (served, refused): (Vec<_>, Vec<_>) = answers.partition(|it| it.status == 200);
        assert!(!served.is_empty());
        for refused in &refused {
            assert_refused(refused, words::NO_DESCRIPTOR);
            assert_eq!(refused.field("retry-after"), Some("1"));
        }
        until("it is said", || {
            let said = proxy.stderr();
            said.contains("listener web: no descriptor is left for its connections")
        });
        // Now that they are idle, they give way.
        idle(&proxy);
    });
}

#[test]
fn at_the_limit_silent_clients_give_way_first_and_then_those_idle_for_longest() {
    test(|| {
        let (_origin, proxy) = site("limits.connections = 3", "");
        let mut first_idle = idle(&proxy);
        let mut second_idle = idle(&proxy);
        let mut silent = silent(&proxy);
        let mut new = idle(&proxy);
        assert!(silent.is_closed());
        let mut newer = idle(&proxy);
        assert!(first_idle.is_closed());
        [&mut second_idle, &mut new, &mut newer]
            .into_iter()
            .for_each(assert_serves);
        assert_eq!(of_listener(&proxy, "connections_displaced"), 2);
        assert_eq!(of_listener(&proxy, "connections_refused"), 0);
    });
}

#[test]
fn a_client_in_the_middle_of_its_first_head_is_told_why_it_gives_way() {
    test(|| {
        let (_origin, proxy) = site("limits.connections = 1", "");
        let mut slow = proxy.client();
        slow.send("GET / HTTP/1.1\r\n").unwrap();
        until("it has begun", || of_listener(&proxy, "open") == 1);
        drop(idle(&proxy));
        assert_refused(&slow.read_response("GET").unwrap(), words::CONNECTIONS);
        assert!(slow.is_closed());
        assert_logged(&proxy, words::CONNECTIONS);
    });
}

#[test]
fn at_the_limit_a_client_is_refused_while_all_others_have_requests() {
    test(|| {
        let (origin, proxy) = site("limits.connections = 2", "");
        let mut busy = [occupy(&proxy, "/slow/500"), occupy(&proxy, "/slow/500")];
        until("two are in flight", || origin.stats().in_flight == 2);
        let refused = proxy.client().read_response("GET").unwrap();
        assert_refused(&refused, words::CONNECTIONS);
        assert_eq!(refused.field("connection"), Some("close"));
        assert_eq!(of_listener(&proxy, "connections_refused"), 1);
        until("it is said", || {
            let said = proxy.stderr();
            said.contains("listener web: its limit of connections is reached")
        });
        for client in &mut busy {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        assert_serves(&mut busy[0]);
    });
}

/// Starts with four workers.
fn of_four_workers(listener: &str) -> (OriginHandle, Proxy) {
    let origin = origin();
    let config = Site {
        listener: &format!("defer_accept = false\n{listener}"),
        server: STATUS,
        ..Site::default()
    }
    .config(&[origin.address.to_string()]);
    let config = config.replace("workers = 1", "workers = 4");
    let proxy = Proxy::start(crate::setup::program(), &config).unwrap();
    (origin, proxy)
}

#[test]
fn workers_close_idle_clients_of_each_other() {
    test(|| {
        let (_origin, proxy) = of_four_workers("limits.connections = 1");
        // The kernel spreads them over the workers.
        let mut before: Option<RawClient> = None;
        for _ in 0..20 {
            let new = idle(&proxy);
            if let Some(mut before) = before.replace(new) {
                assert!(before.is_closed());
            }
        }
        assert_eq!(of_listener(&proxy, "connections_displaced"), 19);
    });
}

#[test]
fn the_limit_holds_however_many_workers_accept_at_once() {
    test(|| {
        let (origin, proxy) = of_four_workers("limits.connections = 3");
        for _ in 0..10 {
            proxy.signal(Signal::STOP);
            let mut clients: Vec<RawClient> = (0..24).map(|_| occupy(&proxy, "/slow/50")).collect();
            proxy.signal(Signal::CONT);
            for client in &mut clients {
                if let Ok(response) = client.read_response("GET") {
                    assert!([200, 503].contains(&response.status), "{response:?}");
                }
            }
        }
        assert!(origin.stats().max_in_flight <= 3, "{:?}", origin.stats());
    });
}

#[test]
fn a_flood_of_connections_leaves_others_their_turn() {
    test(|| {
        let origin = origin();
        let site = Site {
            listener: "defer_accept = false",
            server: "[[route]]\nmatch = { path = '/own' }\nanswer = {}",
            ..Site::default()
        };
        let config = site.config(&[origin.address.to_string()]);
        let config = config.replace("format = \"json\"", "format = \"httplog\"");
        let proxy = Proxy::start(crate::setup::program(), &config).unwrap();
        let mut client = idle(&proxy);
        proxy.signal(Signal::STOP);
        let _flood: Vec<RawClient> = (0..500).map(|_| proxy.client()).collect();
        client.send(get("/own")).unwrap();
        proxy.signal(Signal::CONT);
        assert_eq!(client.read_response("GET").unwrap().status, 200);
        until("it is logged", || proxy.access_log().len() == 2);
        // The counts of connections, with a slash between.
        let line = proxy.access_log().pop().unwrap();
        let mut words = line.split_whitespace();
        let counts = words.find(|it| it.matches('/').count() == 4 && it.ends_with("/0/0/0"));
        let open = counts.and_then(|it| it.split('/').next()).unwrap();
        let open: u32 = open.parse().unwrap();
        assert!(open < 400, "{open} were accepted first: {line}");
    });
}
