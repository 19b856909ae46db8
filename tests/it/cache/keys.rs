//! Requests that share an answer, and responses that are not stored.

use super::*;

/// Asks with these fields, for the path `/a` unless they begin with a request line.
fn ask(client: &mut RawClient, fields: &str) -> String {
    let request = format!("GET /a HTTP/1.1\r\n{fields}\r\n");
    client.ask(request).unwrap().text()
}

/// An endpoint that answers with the number of the request.
fn counting(fields: &'static str) -> Endpoint {
    let count = Mutex::new(0);
    Endpoint::answering(move |_| {
        let mut count = count.lock().unwrap();
        *count += 1;
        response(200, fields, &count.to_string())
    })
}

#[test]
fn what_a_client_can_vary_is_no_ones_elses_answer() {
    test(|| {
        let endpoint = counting(FRESH);
        let proxy = endpoint.behind("");
        let mut client = proxy.client();
        assert_eq!(ask(&mut client, "Host: a\r\n"), "1");
        assert_eq!(
            ask(
                &mut client,
                "Host: A\r\nX-Forwarded-Host: evil\r\nCookie: a=b\r\n"
            ),
            "1"
        );
        assert_eq!(ask(&mut client, "Host: b\r\n"), "2");
        assert_eq!(ask(&mut client, "Host: a:8080\r\n"), "3");
        let mut targets = |target: &str| {
            let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            client.ask(request).unwrap().text()
        };
        let numbers: Vec<_> = ["/a?x", "/%61", "/A", "/a/", "/a?x=1", "/a"]
            .map(&mut targets)
            .into();
        assert_eq!(numbers, ["4", "5", "6", "7", "8", "1"]);
        // A body is part of no key.
        let body = "GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";
        let before = endpoint.count();
        let _ = client.send(body);
        until("it goes to the endpoint", || endpoint.count() > before);
    });
}

#[test]
fn a_response_is_stored_for_what_it_varies_by() {
    test(|| {
        let endpoint = counting("Cache-Control: max-age=60\r\nVary: X-Kind\r\n");
        let proxy = endpoint.behind("");
        let mut client = proxy.client();
        let mut of = |kind: &str| ask(&mut client, &format!("Host: a\r\n{kind}"));
        assert_eq!(of("X-Kind: 1\r\n"), "1");
        assert_eq!(of("X-Kind: 2\r\n"), "2");
        assert_eq!(of(""), "3");
        assert_eq!(of("X-Kind: 1\r\n"), "1");
        assert_eq!(of("X-Kind: 2\r\n"), "2");
        assert_eq!(of(""), "3");
        // Ten thousand variants do not displace what else is stored.
        for kind in 0..10_000 {
            of(&format!("X-Kind: k{kind}\r\n"));
        }
        let memory = proxy.rss_bytes().unwrap();
        assert!(memory < 200 << 20, "{memory}");
    });
}

#[test]
fn what_is_for_one_client_is_not_stored() {
    test(|| {
        for (fields, request) in [
            ("Cache-Control: max-age=60\r\nSet-Cookie: a=b\r\n", ""),
            (
                "Cache-Control: max-age=60\r\n",
                "Authorization: Basic YTpi\r\n",
            ),
            ("Cache-Control: private, max-age=60\r\n", ""),
            ("Cache-Control: max-age=60\r\nVary: *\r\n", ""),
            ("", ""),
            ("", "Cookie: a=b\r\n"),
        ] {
            let endpoint = counting(fields);
            let proxy = endpoint.behind("");
            let mut client = proxy.client();
            let asked = format!("Host: a\r\n{request}");
            let answers = [1, 2, 3].map(|_| ask(&mut client, &asked));
            assert_eq!(answers, ["1", "2", "3"], "{fields} {request}");
        }
    });
}

#[test]
fn an_empty_object_and_a_negative_answer_are_stored_for_their_time() {
    test(|| {
        let endpoint = Endpoint::answering(|head| match head {
            it if it.starts_with("GET /empty") => response(200, FRESH, ""),
            _ => response(404, "", "gone"),
        });
        let proxy = endpoint.behind("ttl = { 404 = '1s' }");
        let mut client = proxy.client();
        for _ in 0..2 {
            let empty = client.get("/empty").unwrap();
            assert_eq!((empty.status, empty.text()), (200, String::new()));
            assert_eq!(client.get("/no").unwrap().status, 404);
        }
        assert_eq!(endpoint.count(), 2);
        until("its time is over", || {
            assert_eq!(client.get("/no").unwrap().status, 404);
            endpoint.count() == 3
        });
    });
}

#[test]
fn an_empty_query_is_asked_for_as_it_was_sent() {
    test(|| {
        let endpoint = counting(FRESH);
        let proxy = endpoint.behind("");
        for path in ["/a?", "/a", "/a?", "/a"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
            proxy.client().ask(request).unwrap();
        }
        let asked = endpoint.asked();
        let lines: Vec<_> = asked.iter().filter_map(|it| it.lines().next()).collect();
        assert_eq!(lines, ["GET /a? HTTP/1.1", "GET /a HTTP/1.1"]);
    });
}

#[test]
fn a_rule_counts_where_nothing_can_be_stored_too() {
    test(|| {
        let endpoint = counting("Cache-Control: no-store\r\n");
        let proxy = endpoint.behind("bypass = { header = { X-Debug = '*' } }");
        let mut client = proxy.client();
        for fields in ["", "X-Debug: 1\r\n", ""] {
            ask(&mut client, &format!("Host: a\r\n{fields}"));
        }
        assert_eq!(results(&proxy, 3), ["miss", "bypass", "miss"]);
    });
}

#[test]
fn goes_past_the_cache_where_a_rule_says_so() {
    test(|| {
        let endpoint = counting(FRESH);
        let proxy = endpoint.behind("bypass = { header = { X-Debug = '*' } }, min_uses = 2");
        let mut client = proxy.client();
        let mut of = |fields: &str| ask(&mut client, &format!("Host: a\r\n{fields}"));
        // Stored from the second one on.
        let numbers = ["", "", "", "X-Debug: 1\r\n", ""].map(&mut of);
        assert_eq!(numbers, ["1", "2", "2", "3", "2"]);
        assert_eq!(results(&proxy, 5), ["miss", "miss", "hit", "bypass", "hit"]);
    });
}
