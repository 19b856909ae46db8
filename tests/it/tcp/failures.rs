//! Endpoints that are killed, frozen, restarted or only half there, under connections
//! that keep coming.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, ProxySetup, RawClient, RawOrigin};
use rustix::process::Signal;

use super::{before, config, echo, saying};
use crate::control::ask;
use crate::health::states;
use crate::setup::{figures, program, test};
use evenkeel_testkit::servers::Server;

/// Clients that each open one connection after the other, ask, and close it.
struct Load {
    is_over: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    /// When those began that got no answer.
    failed: Arc<Mutex<Vec<Instant>>>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(proxy: &Proxy, clients: usize) -> Self {
        let mut load = Load {
            is_over: Arc::default(),
            served: Arc::default(),
            failed: Arc::default(),
            clients: Vec::new(),
        };
        let address = proxy.socket_addr("web");
        for _ in 0..clients {
            let (is_over, served) = (load.is_over.clone(), load.served.clone());
            let failed = load.failed.clone();
            load.clients.push(std::thread::spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let begun = Instant::now();
                    if ping(RawClient::connect(address)) {
                        served.fetch_add(1, Ordering::SeqCst);
                    } else {
                        failed.lock().unwrap().push(begun);
                    }
                }
            }));
        }
        load
    }

    /// Waits until this many more clients were served.
    #[track_caller]
    fn await_more(&self, count: usize) {
        let before = self.served.load(Ordering::SeqCst);
        until("more clients are served", || {
            self.served.load(Ordering::SeqCst) >= before + count
        });
    }

    /// Ends it, and returns the moments at which the unanswered clients began.
    fn end(mut self) -> Vec<Instant> {
        self.is_over.store(true, Ordering::SeqCst);
        for client in self.clients.drain(..) {
            client.join().unwrap();
        }
        std::mem::take(&mut self.failed.lock().unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

/// Whether a server of Redis answers by this connection.
fn ping(client: std::io::Result<RawClient>) -> bool {
    let answer = client.and_then(|mut client| {
        client.send("PING\r\n")?;
        client.read_len("+PONG\r\n".len())
    });
    answer.is_ok_and(|it| it == b"+PONG\r\n")
}

/// Servers that run, and the program before them; `limit` is what each of them takes.
fn redis_servers<const N: usize>(limit: &str, upstream: &str) -> ([Server; N], Proxy) {
    let servers = std::array::from_fn(|_| {
        let mut server = Server::redis();
        server.start(&[]);
        server
    });
    let endpoint = |it: &Server| format!("{{ address = \"{}\"{limit} }}", it.endpoint());
    let endpoints: Vec<_> = servers.iter().map(endpoint).collect();
    let proxy = before(&endpoints, upstream);
    (servers, proxy)
}

fn in_flight(proxy: &Proxy, endpoint: usize) -> u64 {
    let figures = figures(proxy);
    let endpoint = &figures["upstreams"][0]["endpoints"][endpoint];
    endpoint["in_flight"].as_u64().unwrap()
}

/// Waits until this many lines are logged, and checks that all have this end.
#[track_caller]
fn assert_all_end(proxy: &Proxy, count: usize, end: &str) {
    until("all are logged", || proxy.access_log().len() >= count);
    for line in proxy.access_log_json() {
        assert_eq!(line["end"], end, "{line}");
    }
}

#[test]
fn no_new_connection_is_refused_when_an_endpoint_is_killed() {
    test(|| {
        let (mut servers, proxy) = redis_servers::<3>("", "");
        let load = Load::start(&proxy, 4);
        load.await_more(200);
        let [killed, ..] = &mut servers;
        killed.signal(Signal::KILL);
        killed.stop();
        let gone = Instant::now();
        load.await_more(500);
        killed.start(&[]);
        load.await_more(500);
        let failed = load.end();
        let later = failed.iter().filter(|it| **it > gone).count();
        assert_eq!(later, 0, "of clients that came when it was gone");
        assert!(failed.len() <= 4, "{} were in flight", failed.len());
    });
}

#[test]
fn a_rolling_restart_refuses_nobody() {
    test(|| {
        let health = "queue = { max = 100, timeout = \"20s\" }\n\
                      health = { interval = \"100ms\", protocol = \"redis\" }";
        let (mut servers, proxy) = redis_servers::<3>(", max_in_flight = 1", health);
        let load = Load::start(&proxy, 6);
        load.await_more(50);
        for (index, server) in servers.iter_mut().enumerate() {
            let name = format!("app/{}", server.endpoint());
            let answer = ask(&proxy, &format!("drain {name}"));
            assert!(answer.contains("it gets no new requests"), "{answer}");
            until("it is empty", || in_flight(&proxy, index) == 0);
            server.stop();
            // It takes its time to start.
            load.await_more(100);
            server.start(&[]);
            until("it is seen again", || states(&proxy)[index] != "down");
            ask(&proxy, &format!("ready {name}"));
            until("all are up", || states(&proxy) == ["up"; 3]);
        }
        load.await_more(50);
        let failed = load.end();
        assert_eq!(failed.len(), 0);
        let figures = figures(&proxy);
        let queued = &figures["upstreams"][0]["queued"];
        assert!(queued.as_u64() > Some(0), "{queued}");
    });
}

#[test]
fn a_frozen_endpoint_holds_few_and_is_left() {
    test(|| {
        for balance in ["least-connections", "adaptive"] {
            let upstream = format!("balance = \"{balance}\"\ntimeouts = {{ tcp_idle = \"3s\" }}");
            let (servers, proxy) = redis_servers::<2>("", &upstream);
            servers[0].signal(Signal::STOP);
            // The kernel takes its connections, and nothing comes of them.
            let clients: Vec<_> = (0..100)
                .map(|_| {
                    let mut client = proxy.client();
                    client.set_step(Duration::from_millis(150));
                    client.send("PING\r\n").unwrap();
                    let is_served = client.read_len(7).is_ok();
                    // Keep the clients without an answer.
                    (is_served, (!is_served).then_some(client))
                })
                .collect();
            let stuck = clients.iter().filter(|(is_served, _)| !is_served).count();
            assert!(stuck <= 3, "{balance}: {stuck} of 100 were stuck");
            assert_eq!(in_flight(&proxy, 0), stuck as u64);
            until("they are not waited for any longer", || {
                in_flight(&proxy, 0) == 0
            });
            let idle = |it: &serde_json::Value| it["end"] == "tunnel-idle";
            let logged = || proxy.access_log_json().iter().filter(|it| idle(it)).count();
            until("they are logged", || logged() == stuck);
            servers[0].signal(Signal::CONT);
            assert!((0..10).all(|_| ping(RawClient::connect(proxy.socket_addr("web")))));
        }
    });
}

#[test]
fn a_client_that_gave_up_says_nothing_good_of_an_endpoint() {
    test(|| {
        // It closes every second connection at once, and is silent on the others.
        let broken = RawOrigin::start(|number, mut stream| {
            if number % 2 == 0 {
                let _ = stream.read_to_end();
            }
        });
        let (broken, well) = (broken.unwrap(), echo());
        let endpoints = [&broken, &well].map(|it| it.address.to_string());
        let proxy = before(&endpoints, "balance = \"round-robin\"");
        until("it is ejected", || {
            let mut client = proxy.client();
            client.set_step(Duration::from_millis(100));
            let _ = client.send("a");
            let _ = client.read_len(1);
            client.reset();
            states(&proxy) == ["ejected", "up"]
        });
    });
}

#[test]
fn probes_put_a_frozen_endpoint_out_and_back() {
    test(|| {
        let health = "health = { interval = \"100ms\", fall = 2, protocol = \"redis\" }";
        let (servers, proxy) = redis_servers::<2>("", health);
        servers[0].signal(Signal::STOP);
        until("it is down", || states(&proxy) == ["down", "up"]);
        assert!((0..50).all(|_| ping(RawClient::connect(proxy.socket_addr("web")))));
        servers[0].signal(Signal::CONT);
        until("it is up", || states(&proxy) == ["up", "up"]);
    });
}

#[test]
fn a_side_that_never_closes_is_not_waited_for_for_ever() {
    test(|| {
        // It reads to the client's end, and closes only on command.
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Mutex::new(held);
        let origin = RawOrigin::start(move |number, mut stream| {
            let _ = stream.send("hi");
            if number == 0 {
                let _ = stream.read_to_end();
            } else {
                let _ = stream.finish_sending();
            }
            let _ = held.lock().unwrap().recv();
        });
        let origin = origin.unwrap();
        let timeouts = "timeouts = { tcp_idle = \"300ms\" }";
        let proxy = before(&[origin.address.to_string()], timeouts);
        let mut closing = proxy.client();
        assert_eq!(closing.read_len(2).unwrap(), b"hi");
        closing.finish_sending().unwrap();
        assert!(closing.is_closed());
        let mut staying = proxy.client();
        assert_eq!(staying.read_to_end().unwrap(), b"hi");
        until("its slot is free", || in_flight(&proxy, 0) == 0);
        assert_all_end(&proxy, 2, "tunnel-idle");
        drop(staying);
        drop(release);
    });
}

#[test]
fn a_waiter_that_leaves_while_it_is_granted_a_slot_loses_none() {
    test(|| {
        let origin = saying("hi");
        let endpoint = format!("{{ address = \"{}\", max_in_flight = 1 }}", origin.address);
        let proxy = before(&[endpoint], "queue = { max = 10, timeout = \"20s\" }");
        for round in 0..300 {
            let mut first = proxy.client();
            assert_eq!(first.read_len(2).unwrap(), b"hi", "round {round}");
            let waiting: Vec<_> = (0..3).map(|_| proxy.client()).collect();
            let leaving = std::thread::spawn(move || {
                waiting.into_iter().for_each(RawClient::reset);
            });
            if round % 2 == 0 {
                first.reset();
            } else {
                drop(first);
            }
            leaving.join().unwrap();
        }
        let mut last = proxy.client();
        assert_eq!(last.read_len(2).unwrap(), b"hi");
        assert_eq!(in_flight(&proxy, 0), 1);
        drop(last);
        until("nothing is in flight", || in_flight(&proxy, 0) == 0);
        assert_eq!(figures(&proxy)["upstreams"][0]["waiting"], 0);
    });
}

#[test]
fn the_first_tier_is_used_again_once_it_is_back() {
    test(|| {
        let mut servers = [0, 1].map(|_| Server::redis());
        servers.iter_mut().for_each(|it| it.start(&[]));
        let at = |tier: usize| {
            format!(
                "{{ address = \"{}\", tier = {tier} }}",
                servers[tier].endpoint()
            )
        };
        let health = "health = { interval = \"100ms\", fall = 2, protocol = \"redis\" }";
        let proxy = before(&[at(0), at(1)], health);
        let asks = |proxy: &Proxy, server: &Server| {
            let before = proxy.access_log().len();
            let pings = (0..10).map(|_| ping(RawClient::connect(proxy.socket_addr("web"))));
            let served = pings.filter(|it| *it).count();
            until("all are logged", || proxy.access_log().len() == before + 10);
            for line in &proxy.access_log_json()[before..] {
                assert_eq!(line["end"], "tunnel", "{line}");
                assert_eq!(line["endpoint"], server.endpoint(), "{line}");
            }
            assert_eq!(served, 10);
        };
        // One that no probe has seen yet is no endpoint to go to.
        until("both were probed", || {
            let figures = figures(&proxy);
            let endpoints = &figures["upstreams"][0]["endpoints"];
            (0..2).all(|it| endpoints[it]["last_probe"]["answer"].is_string())
        });
        asks(&proxy, &servers[0]);
        servers[0].stop();
        // At once, and when it is known.
        asks(&proxy, &servers[1]);
        until("it is down", || states(&proxy) == ["down", "up"]);
        asks(&proxy, &servers[1]);
        servers[0].start(&[]);
        until("it is up", || states(&proxy) == ["up", "up"]);
        asks(&proxy, &servers[0]);
    });
}

#[test]
fn out_of_descriptors_connections_are_closed_and_counted_until_there_are_some() {
    test(|| {
        let origin = echo();
        let route = format!(
            "[[route]]\nupstream = \"app\"\n[upstream.app]\nendpoints = [\"{}\"]",
            origin.address
        );
        let setup = ProxySetup {
            open_files: Some(80),
            ..ProxySetup::default()
        };
        let proxy = Proxy::start_with(program(), &config("json", "", &route), &setup).unwrap();
        let echoes = |client: &mut RawClient| {
            client.send("a").is_ok() && client.read_len(1).is_ok_and(|it| it == b"a")
        };
        let mut crowd: Vec<_> = (0..100).map(|_| proxy.client()).collect();
        let served = crowd
            .iter_mut()
            .filter_map(|it| echoes(it).then_some(()))
            .count();
        // Two descriptors each.
        assert!((10..40).contains(&served), "{served} of 100 are served");
        until("the others are logged or counted", || {
            let figures = figures(&proxy);
            let listener = &figures["listeners"][0];
            let refused = listener["connections_no_descriptor"].as_u64().unwrap();
            let ended = listener["ends"]["no-socket"].as_u64().unwrap_or(0);
            refused + ended == 100 - served as u64
        });
        until("it is said", || proxy.stderr().contains("descriptor"));
        // Connections that are open go on, and others are taken once there is room.
        let still = crowd
            .iter_mut()
            .filter_map(|it| echoes(it).then_some(()))
            .count();
        assert_eq!(still, served);
        drop(crowd);
        until("it accepts again", || echoes(&mut proxy.client()));
    });
}
