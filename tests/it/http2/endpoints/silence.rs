//! Endpoints that say nothing: whether they are there is asked by PING. Slow, as the program
//! waits that long.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use evenkeel_testkit::H2Server;
use evenkeel_testkit::deadline::within;
use evenkeel_testkit::http2::{flags, kind};

use super::{echo_paths, is_timeout, over_h2, scripted};
use crate::health::assert_said;
use crate::setup::get;

/// Reads the next frame without an answer to it: its kind and its flags.
fn read_silently(server: &mut H2Server) -> std::io::Result<(u8, u8)> {
    let head = server.raw().read_len(9)?;
    let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    server.raw().read_len(len as usize)?;
    Ok((head[3], head[4]))
}

#[test]
fn an_endpoint_that_answers_no_ping_is_given_up() {
    within(Duration::from_secs(60), || {
        let (sender, pinged) = mpsc::channel();
        let sender = Mutex::new(sender);
        let endpoint = scripted(&[], move |number, server| {
            if number > 0 {
                return echo_paths(server);
            }
            let first = server.request()?;
            server.respond(first.stream, 200, "first")?;
            server.request()?;
            server.raw().set_step(Duration::from_secs(40));
            loop {
                let (kind, own) = read_silently(server)?;
                if kind == kind::PING && own & flags::ACK == 0 {
                    let _ = sender.lock().unwrap().send(Instant::now());
                }
            }
        });
        let proxy = over_h2(endpoint.address, "");
        let mut client = proxy.client();
        client.set_step(Duration::from_secs(40));
        assert_eq!(client.get("/first").unwrap().text(), "first");
        let begun = Instant::now();
        let response = client.get("/silent").unwrap();
        assert_eq!(response.text(), "/silent");
        let took = begun.elapsed();
        let asked = pinged.recv().unwrap().duration_since(begun);
        assert!((9..13).contains(&asked.as_secs()), "a PING after {asked:?}");
        assert!(
            (14..20).contains(&took.as_secs()),
            "given up after {took:?}"
        );
        assert_eq!(endpoint.connections(), 2);
        let lost = "connection of HTTP/2 lost: it does not answer a PING";
        assert_said(&proxy, lost);
    });
}

/// Servers of gRPC treat frequent PINGs as an attack.
#[test]
fn an_endpoint_that_answers_is_not_asked_again() {
    within(Duration::from_secs(60), || {
        let pings = Arc::new(AtomicUsize::new(0));
        let count = pings.clone();
        let endpoint = scripted(&[], move |_, server| {
            let slow = server.request()?;
            let due = Instant::now() + Duration::from_secs(32);
            server.raw().set_step(Duration::from_millis(200));
            while Instant::now() < due {
                match server.raw().peek_first() {
                    Ok(_) => {}
                    Err(error) if is_timeout(&error) => continue,
                    Err(error) => return Err(error),
                }
                let frame = server.next()?;
                if frame.kind == kind::PING && !frame.has(flags::ACK) {
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }
            server.respond(slow.stream, 200, "late")?;
            echo_paths(server)
        });
        let proxy = over_h2(endpoint.address, "timeouts = { first_byte = \"60s\" }\n");
        let mut client = proxy.client();
        client.set_step(Duration::from_secs(45));
        client.send(get("/slow")).unwrap();
        assert_eq!(client.read_response("GET").unwrap().text(), "late");
        assert_eq!(pings.load(Ordering::SeqCst), 1);
        assert_eq!(endpoint.connections(), 1);
    });
}
