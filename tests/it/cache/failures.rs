//! Failing endpoints, and the use of stored responses meanwhile.

use super::*;

/// An endpoint that answers well until the flag makes it fail.
fn failing(fields: &'static str, failure: &'static str) -> (Endpoint, Arc<AtomicBool>) {
    let fails = Arc::new(AtomicBool::new(false));
    let has_failed = fails.clone();
    let endpoint = Endpoint::scripted(move |_, stream| {
        let answer = if has_failed.load(SeqCst) {
            failure.to_owned()
        } else {
            response(200, fields, "hello")
        };
        !answer.is_empty() && stream.send(answer).is_ok()
    });
    (endpoint, fails)
}

const STALE: &str = "Cache-Control: max-age=0, stale-if-error=60\r\n";

#[test]
fn serves_stale_where_endpoints_fail_and_asks_seldom() {
    test(|| {
        for failure in ["HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno", ""] {
            let (endpoint, fails) = failing(STALE, failure);
            let proxy = endpoint.behind("");
            let mut client = proxy.client();
            assert_eq!(client.get("/a").unwrap().text(), "hello");
            fails.store(true, SeqCst);
            let before = endpoint.count();
            for _ in 0..100 {
                let answer = client.get("/a").unwrap();
                assert_eq!((answer.status, answer.text()), (200, "hello".to_owned()));
            }
            let asked = endpoint.count() - before;
            assert!((1..=8).contains(&asked), "{failure:?}: asked {asked} times");
            assert!(results(&proxy, 101)[1..].iter().all(|it| it == "stale"));
            fails.store(false, SeqCst);
            until("it is asked again", || {
                client.get("/a").unwrap();
                results(&proxy, 102).last().is_some_and(|it| it == "miss")
            });
        }
    });
}

#[test]
fn serves_nothing_stale_where_that_is_forbidden() {
    test(|| {
        for fields in [
            "Cache-Control: max-age=0, stale-if-error=60, must-revalidate\r\n",
            "Cache-Control: s-maxage=0, stale-if-error=60\r\n",
            "Cache-Control: no-cache, stale-if-error=60\r\nETag: \"a\"\r\n",
            "Cache-Control: max-age=0\r\nETag: \"a\"\r\n",
        ] {
            let (endpoint, fails) =
                failing(fields, "HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno");
            let proxy = endpoint.behind("");
            let mut client = proxy.client();
            assert_eq!(client.get("/a").unwrap().text(), "hello");
            fails.store(true, SeqCst);
            assert_eq!(client.get("/a").unwrap().status, 503, "{fields}");
        }
    });
}

#[test]
fn a_route_may_allow_stale_answers_where_endpoints_are_down() {
    test(|| {
        let (endpoint, fails) = failing("Cache-Control: max-age=0\r\nETag: \"a\"\r\n", "");
        let proxy = endpoint.behind("stale_if_error = '1h'");
        let mut client = proxy.client();
        assert_eq!(client.get("/a").unwrap().text(), "hello");
        fails.store(true, SeqCst);
        let answer = client.get("/a").unwrap();
        assert_eq!((answer.status, answer.text()), (200, "hello".to_owned()));
        let refused = client.get("/b").unwrap();
        assert!(refused.status >= 500, "{refused:?}");
    });
}

#[test]
fn a_full_queue_serves_what_is_stale() {
    test(|| {
        let (endpoint, is_let) = held(response(200, STALE, "hello"));
        is_let.store(true, SeqCst);
        let address = endpoint.origin.address;
        let endpoints = format!("{{ address = '{address}', max_in_flight = 1 }}");
        let proxy = behind(&endpoints, "", "retries = 0");
        let mut client = proxy.client();
        assert_eq!(client.get("/a").unwrap().text(), "hello");
        is_let.store(false, SeqCst);
        let mut other = proxy.client();
        other.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        until("the endpoint is busy", || endpoint.count() == 2);
        // It does not wait in the queue.
        assert_eq!(client.get("/a").unwrap().text(), "hello");
        assert_eq!(endpoint.count(), 2);
        is_let.store(true, SeqCst);
        assert_eq!(other.read_response("GET").unwrap().text(), "hello");
    });
}

#[test]
fn who_waits_for_a_fetch_that_fails_fails_with_it() {
    test(|| {
        let (endpoint, is_let) = held("no HTTP\r\n\r\n");
        let proxy = endpoint.behind_upstream("", "retries = 0");
        let mut clients = ask_all(&proxy, 20, GET);
        until("all are there", || {
            figures(&proxy)["listeners"][0]["open"].as_u64() == Some(20)
        });
        is_let.store(true, SeqCst);
        for client in &mut clients {
            let answer = client.read_response("GET").unwrap();
            assert_eq!(answer.status, 502, "{answer:?}");
        }
        assert!(endpoint.count() <= 3, "{} requests", endpoint.count());
    });
}

#[test]
fn who_gets_no_slot_gets_the_answer_that_is_configured() {
    test(|| {
        let is_let = Arc::new(AtomicBool::new(false));
        let is_open = is_let.clone();
        let endpoint = Endpoint::scripted(move |_, stream| {
            until("it is let", || is_open.load(SeqCst));
            stream.send(response(200, FRESH, "hello")).is_ok()
        });
        let address = endpoint.origin.address;
        let endpoints = format!("{{ address = '{address}', max_in_flight = 1 }}");
        let proxy = behind(
            &endpoints,
            "",
            "queue = { max = 0, answer = { status = 529 } }",
        );
        let mut first = proxy.client();
        first.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        until("the endpoint is busy", || endpoint.count() == 1);
        assert_eq!(proxy.client().get("/a").unwrap().status, 529);
        is_let.store(true, SeqCst);
        assert_eq!(first.read_response("GET").unwrap().text(), "hello");
    });
}
