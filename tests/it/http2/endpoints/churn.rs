//! Connections that come and go under requests. No request is lost, whatever its method.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel_testkit::deadline::{until, within};
use evenkeel_testkit::http2::ErrorCode;
use evenkeel_testkit::{H2Client, H2Server, Proxy};

use super::{Chain, over_h2, scripted};
use crate::reload::{SITE, reload};
use crate::setup::{Site, test};
use crate::upgrade::Successors;

const POST: &str = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";

/// Has clients post until `work` has ended: how many responses they got. Each must be right.
fn posting(proxy: &Proxy, work: impl FnOnce()) -> usize {
    let is_over = AtomicBool::new(false);
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = proxy.client();
                while !is_over.load(Ordering::SeqCst) {
                    let response = client.ask(POST).unwrap();
                    assert_eq!((response.status, &*response.text()), (200, "hello"));
                    count.fetch_add(1, Ordering::SeqCst);
                    if response.field("connection") == Some("close") {
                        client = proxy.client();
                    }
                }
            });
        }
        work();
        is_over.store(true, Ordering::SeqCst);
    });
    count.into_inner()
}

/// Echoes each request; after this many, the connection accepts no more.
fn echo_some(server: &mut H2Server, most: usize) -> io::Result<()> {
    let mut count = 0;
    loop {
        let request = server.request()?;
        let body = String::from_utf8_lossy(&request.body).into_owned();
        count += 1;
        if count > most {
            // It was told, and has come all the same.
            continue;
        }
        if count == most {
            server.go_away(request.stream, ErrorCode::NoError)?;
        }
        server.respond(request.stream, 200, &body)?;
    }
}

#[test]
fn an_endpoint_may_end_its_connections_at_any_time() {
    test(|| {
        let endpoint = scripted(&[], |number, server| echo_some(server, 1 + number % 5));
        let proxy = over_h2(endpoint.address, "retries = 0\n");
        let answered = posting(&proxy, || {
            until("many connections", || endpoint.connections() > 100);
        });
        assert!(answered > 100, "{answered}");
    });
}

/// In two steps, as servers do that are to end.
#[test]
fn an_endpoint_may_be_upgraded() {
    within(Duration::from_secs(90), || {
        let chain = Chain::new();
        let successors = Successors(&chain.behind);
        let answered = posting(&chain.proxy, || {
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(300));
                successors.upgrade();
            }
            std::thread::sleep(Duration::from_millis(1500));
        });
        assert!(answered > 100, "{answered}");
    });
}

#[test]
fn the_program_may_be_reloaded() {
    test(|| {
        let endpoint = scripted(&[], |_, server| echo_some(server, usize::MAX));
        let other = scripted(&[], |_, server| echo_some(server, usize::MAX));
        let config = |more: &str, endpoints: &[String]| {
            let upstream = format!("protocol = \"h2\"\nretries = 0\n{more}");
            Site {
                upstream: &upstream,
                ..SITE
            }
            .config(endpoints)
        };
        let [one, two] = [&endpoint, &other].map(|it| it.address.to_string());
        let both = [one.clone(), two.clone()];
        let proxy = Proxy::start(crate::setup::program(), &config("", &both)).unwrap();
        let answered = posting(&proxy, || {
            for round in 0..8 {
                let endpoints = match round % 3 {
                    0 => vec![one.clone()],
                    1 => vec![two.clone()],
                    _ => both.to_vec(),
                };
                let more = format!("pool = {{ idle_timeout = \"{}s\" }}\n", 10 + round);
                reload(&proxy, &config(&more, &endpoints));
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        assert!(answered > 100, "{answered}");
    });
}

/// A request that comes as its connection is closed has another.
#[test]
fn a_connection_may_be_closed_for_being_idle_at_any_time() {
    test(|| {
        let endpoint = scripted(&[], |_, server| echo_some(server, usize::MAX));
        let upstream = "retries = 0\npool = { idle_timeout = \"100ms\" }\n";
        let proxy = over_h2(endpoint.address, upstream);
        let mut client = proxy.client();
        for round in 0..60 {
            let response = client.ask(POST).unwrap();
            assert_eq!((response.status, &*response.text()), (200, "hello"));
            std::thread::sleep(Duration::from_millis(80 + round));
        }
        assert!(endpoint.connections() > 5);
    });
}

/// More exchanges at once than one connection may have.
#[test]
fn further_connections_are_opened_for_many_at_once() {
    test(|| {
        let chain = Chain::new();
        let mut clients: Vec<H2Client> = (0..4)
            .map(|_| H2Client::connect(chain.proxy.socket_addr("web")).unwrap())
            .collect();
        for client in &mut clients {
            for stream in 0..90 {
                client.get(2 * stream + 1, "/slow/500").unwrap();
            }
        }
        for client in &mut clients {
            for stream in 0..90 {
                let response = client.response(2 * stream + 1).unwrap();
                assert_eq!((response.status, &*response.text()), (200, "pong"));
            }
        }
        let connections = chain.connections();
        assert!((4..=6).contains(&connections), "{connections}");
    });
}

/// Each worker has its own connections.
#[test]
fn workers_share_no_connections() {
    test(|| {
        let endpoint = scripted(&[], |_, server| echo_some(server, usize::MAX));
        let config = format!(
            "[server]\nworkers = 3\n[status]\nbind = '127.0.0.1:0'\n\
             [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n\
             [[route]]\nupstream = 'app'\n\
             [upstream.app]\nprotocol = 'h2'\n\
             endpoints = [{{ address = '{}', max_in_flight = 4 }}]\n",
            endpoint.address
        );
        let proxy = Proxy::start(crate::setup::program(), &config).unwrap();
        for _ in 0..60 {
            let response = proxy.client().ask(POST).unwrap();
            assert_eq!((response.status, &*response.text()), (200, "hello"));
        }
        assert!(endpoint.connections() <= 3, "{}", endpoint.connections());
    });
}
