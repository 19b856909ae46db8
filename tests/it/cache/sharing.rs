//! One fetch for many clients.

use super::*;

#[test]
fn a_thousand_clients_are_one_request() {
    test(|| {
        let (endpoint, is_let) = held(response(200, FRESH, "hello"));
        let proxy = endpoint.behind("");
        let mut clients = ask_all(&proxy, 1000, GET);
        until("all are there", || {
            let cache = &figures(&proxy)["caches"][0];
            (&cache["followers"], &cache["fetches"]) == (&1000.into(), &1.into())
        });
        is_let.store(true, SeqCst);
        for client in &mut clients {
            let answer = client.read_response("GET").unwrap();
            assert_eq!((answer.status, answer.text()), (200, "hello".to_owned()));
        }
        assert_eq!(endpoint.count(), 1);
        until("nobody waits", || {
            figures(&proxy)["caches"][0]["followers"] == 0
        });
    });
}

#[test]
fn what_is_not_for_sharing_waits_for_nobody() {
    test(|| {
        let (endpoint, is_let) = held(response(200, "Cache-Control: no-store\r\n", "mine"));
        let proxy = endpoint.behind("");
        let mut clients = ask_all(&proxy, 10, GET);
        until("one is asked", || endpoint.count() == 1);
        is_let.store(true, SeqCst);
        for client in &mut clients {
            assert_eq!(client.read_response("GET").unwrap().text(), "mine");
        }
        // Each request got its own answer; the first one that of the fetch that it began.
        assert_eq!(endpoint.count(), 10);
        // From now on no request waits for another.
        is_let.store(false, SeqCst);
        let mut clients = ask_all(&proxy, 3, GET);
        until("all are asked for", || endpoint.count() == 13);
        is_let.store(true, SeqCst);
        for client in &mut clients {
            assert_eq!(client.read_response("GET").unwrap().text(), "mine");
        }
    });
}

#[test]
fn a_fetch_outlives_the_client_that_began_it() {
    test(|| {
        let (endpoint, is_let) = held(response(200, FRESH, "hello"));
        let proxy = endpoint.behind("");
        let mut first = ask_all(&proxy, 1, GET);
        until("it is asked", || endpoint.count() == 1);
        let mut others = ask_all(&proxy, 3, GET);
        first.remove(0).reset();
        until("it has left", || {
            figures(&proxy)["listeners"][0]["open"].as_u64() == Some(3)
        });
        is_let.store(true, SeqCst);
        for client in &mut others {
            assert_eq!(client.read_response("GET").unwrap().text(), "hello");
        }
        assert_eq!(endpoint.count(), 1);
    });
}

#[test]
fn a_fetch_is_finished_or_given_up_when_all_have_left() {
    test(|| {
        for (finish, count) in [("true", 1), ("false", 2)] {
            let (endpoint, is_let) = held(response(200, FRESH, "hello"));
            let proxy = endpoint.behind(&format!("finish = {finish}"));
            let mut clients = ask_all(&proxy, 2, GET);
            until("it is asked", || endpoint.count() == 1);
            clients.drain(..).for_each(RawStream::reset);
            until("they have left", || {
                figures(&proxy)["listeners"][0]["open"].as_u64() == Some(0)
            });
            let under_way = u64::from(finish == "true");
            until("it is given up, or goes on", || {
                figures(&proxy)["caches"][0]["fetches"].as_u64() == Some(under_way)
            });
            is_let.store(true, SeqCst);
            if finish == "true" {
                // Its answer is stored before anybody asks again.
                until("it is stored", || {
                    let only =
                        "GET /a HTTP/1.1\r\nHost: a\r\nCache-Control: only-if-cached\r\n\r\n";
                    proxy.client().ask(only).unwrap().status == 200
                });
            }
            assert_eq!(proxy.client().ask(GET).unwrap().text(), "hello");
            assert_eq!(endpoint.count(), count, "finish = {finish}");
        }
    });
}

#[test]
fn a_body_goes_to_all_as_it_arrives() {
    test(|| {
        let step = Arc::new(Mutex::new(0));
        let now = step.clone();
        let wait = move |number: i32| {
            until("the next step", || *now.lock().unwrap() >= number);
        };
        let endpoint = Endpoint::scripted(move |_, stream| {
            let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{FRESH}\r\n");
            stream.send(head).unwrap();
            for number in 1..=3 {
                wait(number);
                stream.send(format!("2\r\np{number}\r\n")).unwrap();
            }
            stream.send("0\r\n\r\n").is_ok()
        });
        let proxy = endpoint.behind("");
        let mut clients = ask_all(&proxy, 2, GET);
        until("it is asked", || endpoint.count() == 1);
        clients.extend(ask_all(&proxy, 1, GET));
        for client in &mut clients {
            let head = client.read_head().unwrap();
            assert!(head.contains("chunked"), "{head}");
        }
        for number in 1..=3 {
            *step.lock().unwrap() = number;
            for client in &mut clients {
                let part = format!("2\r\np{number}\r\n");
                assert_eq!(client.read_len(part.len()).unwrap(), part.as_bytes());
            }
        }
        for client in &mut clients {
            assert_eq!(client.read_len(5).unwrap(), b"0\r\n\r\n");
        }
        // The stored body has a length; HTTP/1.0 knows no chunks.
        let stored = proxy.client().ask(GET).unwrap();
        assert_eq!(stored.field("content-length"), Some("6"));
        let mut old = proxy.client();
        old.send("GET /a HTTP/1.0\r\nHost: a\r\n\r\n").unwrap();
        assert_eq!(old.read_response("GET").unwrap().text(), "p1p2p3");
        assert_eq!(endpoint.count(), 1);
    });
}

#[test]
fn what_is_cut_off_is_whole_to_nobody() {
    test(|| {
        let endpoint = Endpoint::scripted(|_, stream| {
            let _ = stream.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n{FRESH}\r\nhalf"
            ));
            false
        });
        let proxy = endpoint.behind("");
        for count in 1..=2 {
            let mut client = proxy.client();
            client.send(GET).unwrap();
            client.read_head().unwrap();
            let body = client.read_to_end().unwrap_or_default();
            assert!(body.len() < 10, "{body:?}");
            until("it is asked again", || endpoint.count() == count);
        }
    });
}

#[test]
fn a_body_without_a_known_length_may_be_longer_than_the_store_takes() {
    test(|| {
        const PART: &str = "0123456789abcdef";
        let endpoint = Endpoint::scripted(|_, stream| {
            let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{FRESH}\r\n");
            stream.send(head).unwrap();
            let part = PART.repeat(4096);
            for _ in 0..320 {
                let chunk = format!("{:x}\r\n{part}\r\n", part.len());
                if stream.send(chunk).is_err() {
                    return false;
                }
            }
            stream.send("0\r\n\r\n").is_ok()
        });
        let proxy = endpoint.behind("");
        let mut clients = ask_all(&proxy, 2, GET);
        let whole = 320 * 4096 * PART.len();
        let readers: Vec<_> = (clients.drain(..))
            .map(|mut client| std::thread::spawn(move || client.read_response("GET").unwrap()))
            .collect();
        for reader in readers {
            let body = reader.join().unwrap().body;
            assert_eq!(body.len(), whole);
            assert!(body.chunks(PART.len()).all(|part| part == PART.as_bytes()));
        }
    });
}
