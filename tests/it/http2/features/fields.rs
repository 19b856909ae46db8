//! The fields of a request at endpoints.

use evenkeel_testkit::http2::Ends;

use super::{Endpoint, Shape, ask, connect, text_of, values};
use crate::setup::test;

/// The program before an endpoint that answers with the head that it got.
fn told_by(listener: &str, upstream: &str, fields: &[(&str, &str)]) -> (String, String) {
    let endpoint = Endpoint::answering(|head| text_of(200, "", head));
    let shape = Shape {
        listener,
        upstream,
        ..Shape::default()
    };
    let proxy = shape.before(endpoint.address());
    let response = ask(&mut connect(&proxy), 1, "GET", "/a?b=c%20d", fields);
    assert_eq!(response.status, 200, "{response:?}");
    let id = response.field("x-request-id").unwrap_or_default();
    (response.text(), id.to_owned())
}

fn told(listener: &str, upstream: &str, fields: &[(&str, &str)]) -> String {
    told_by(listener, upstream, fields).0
}

#[test]
fn the_head_is_one_of_http1() {
    test(|| {
        let fields = [
            ("x-first", "1"),
            ("x-first", "2"),
            ("x-empty", ""),
            ("accept", "a/b, c/d;q=0.5"),
            ("te", "trailers"),
        ];
        let head = told("", "", &fields);
        assert!(head.starts_with("GET /a?b=c%20d HTTP/1.1\r\n"), "{head}");
        assert_eq!(values(&head, "host"), ["test.example"], "{head}");
        assert_eq!(values(&head, "x-first"), ["1", "2"], "{head}");
        assert_eq!(values(&head, "accept"), ["a/b, c/d;q=0.5"], "{head}");
        assert_eq!(values(&head, "transfer-encoding"), [""; 0], "{head}");
        assert_eq!(values(&head, "content-length"), [""; 0], "{head}");
        assert!(!head.contains(":authority"), "{head}");
        assert!(!head.contains(":scheme"), "{head}");
    });
}

#[test]
fn cookies_are_joined() {
    test(|| {
        let fields = [
            ("cookie", "a=b"),
            ("x-a", "b"),
            ("cookie", "c=d; e=f"),
            ("cookie", "g"),
        ];
        let head = told("", "", &fields);
        assert_eq!(values(&head, "cookie"), ["a=b; c=d; e=f; g"], "{head}");
    });
}

#[test]
fn the_proxy_names_itself_where_that_is_asked_for() {
    test(|| {
        assert_eq!(values(&told("", "", &[]), "via"), [""; 0]);
        let head = told("", "via = true", &[("via", "1.1 other")]);
        assert_eq!(
            values(&head, "via").join(", "),
            "1.1 other, 2.0 evenkeel",
            "{head}"
        );
    });
}

#[test]
fn the_client_is_named() {
    test(|| {
        let claims = [
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-proto", "https"),
        ];
        let head = told("", "", &claims);
        assert_eq!(values(&head, "x-forwarded-for"), ["127.0.0.1"], "{head}");
        assert_eq!(values(&head, "x-forwarded-proto"), ["http"], "{head}");
        assert_eq!(
            values(&head, "x-forwarded-host"),
            ["test.example"],
            "{head}"
        );
        let trusted = "trusted_proxies = ['127.0.0.1']";
        let head = told(trusted, "", &claims);
        assert_eq!(
            values(&head, "x-forwarded-for"),
            ["192.0.2.1, 127.0.0.1"],
            "{head}"
        );
        assert_eq!(values(&head, "x-forwarded-proto"), ["https"], "{head}");
        let head = told(trusted, "forward = ['forwarded', 'x-real-ip']", &claims);
        assert_eq!(values(&head, "x-real-ip"), ["192.0.2.1"], "{head}");
        let forwarded = "for=192.0.2.1;proto=https;host=test.example, for=127.0.0.1";
        assert_eq!(
            values(&head, "forwarded").join(", ").replace('"', ""),
            forwarded,
            "{head}"
        );
    });
}

/// A trusted proxy speaks for another client on each stream.
#[test]
fn each_stream_of_a_trusted_proxy_has_its_own_client() {
    test(|| {
        let endpoint = Endpoint::answering(|head| text_of(200, "", head));
        let shape = Shape {
            listener: "trusted_proxies = ['127.0.0.1']",
            route: "upstream = 'app'\nlimit = { key = 'client', rate = '1/h' }",
            ..Shape::default()
        };
        let proxy = shape.before(endpoint.address());
        let mut client = connect(&proxy);
        for n in 1..=5_u32 {
            let own = [("x-forwarded-for", &*format!("192.0.2.{n}"))];
            client
                .request(2 * n - 1, "GET", "/", &own, Ends::Now)
                .unwrap();
        }
        client
            .request(
                11,
                "GET",
                "/",
                &[("x-forwarded-for", "192.0.2.1")],
                Ends::Now,
            )
            .unwrap();
        for n in 1..=5_u32 {
            let response = client.response(2 * n - 1).unwrap();
            assert_eq!(response.status, 200);
            let expected = format!("192.0.2.{n}, 127.0.0.1");
            assert_eq!(values(&response.text(), "x-forwarded-for"), [expected]);
        }
        assert_eq!(client.response(11).unwrap().status, 429);
        evenkeel_testkit::deadline::until("all are logged", || proxy.access_log().len() == 6);
        let mut clients: Vec<_> = proxy
            .access_log_json()
            .iter()
            .map(|it| it["client"].as_str().unwrap().to_owned())
            .collect();
        clients.sort();
        let expected = [1, 1, 2, 3, 4, 5].map(|it| format!("192.0.2.{it}"));
        assert_eq!(clients, expected);
    });
}

#[test]
fn request_ids_are_made_or_kept() {
    test(|| {
        let own = [("x-request-id", "own-one")];
        let head = told("request_id = 'keep'", "", &own);
        assert_eq!(values(&head, "x-request-id"), ["own-one"], "{head}");
        for (word, fields) in [("keep", &[][..]), ("new", &own)] {
            let (head, answered) = told_by(&format!("request_id = '{word}'"), "", fields);
            let [id] = values(&head, "x-request-id")[..] else {
                panic!("{word}: {head}");
            };
            assert!(id.len() >= 16 && id != "own-one", "{word}: {head}");
            assert!(answered.is_empty() || answered == id, "{answered}: {head}");
        }
    });
}

#[test]
fn fields_are_edited() {
    test(|| {
        let endpoint = Endpoint::answering(|head| text_of(200, "X-Gone: 1\r\nX-Kept: 2\r\n", head));
        let shape = Shape {
            route: "upstream = 'app'\nstrip_prefix = '/shop'\n\
                    request_headers = { remove = ['x-debug'], set = { Host = 'app.internal', \
                    X-Who = '{client_ip} {cookie:user} {header:x-a}' } }\n\
                    response_headers = { remove = ['x-gone'], set = { X-Set = 'yes' } }",
            ..Shape::default()
        };
        let proxy = shape.before(endpoint.address());
        let fields = [
            ("x-debug", "1"),
            ("x-a", "b"),
            ("cookie", "a=b"),
            ("cookie", "user=kim"),
        ];
        let response = ask(&mut connect(&proxy), 1, "GET", "/shop/a", &fields);
        let head = response.text();
        assert!(head.starts_with("GET /a HTTP/1.1\r\n"), "{head}");
        assert_eq!(values(&head, "host"), ["app.internal"], "{head}");
        assert_eq!(values(&head, "x-who"), ["127.0.0.1 kim b"], "{head}");
        assert_eq!(values(&head, "x-debug"), [""; 0], "{head}");
        assert_eq!(response.field("x-gone"), None, "{response:?}");
        assert_eq!(response.field("x-kept"), Some("2"), "{response:?}");
        assert_eq!(response.field("x-set"), Some("yes"), "{response:?}");
    });
}

/// Routes are chosen by host, path and method of each stream.
#[test]
fn each_stream_has_its_own_route() {
    test(|| {
        let shape = Shape {
            route: "match = { host = 'b.test' }\nanswer = { body = 'b' }",
            tables: "[[route]]\nmatch = { path = '/post', method = 'POST' }\nanswer = { status = 202, body = 'posted' }\n\
                     [[route]]\nmatch = { path = '/old' }\nredirect = 'https://new.test{path}'\n\
                     [[route]]\nupstream = 'app'",
            ..Shape::default()
        };
        let endpoint = Endpoint::answering(|_| super::OK.into());
        let proxy = shape.before(endpoint.address());
        let mut client = connect(&proxy);
        let head = |host: &'static str, path: &'static str| {
            [
                (":method", "GET"),
                (":scheme", "http"),
                (":path", path),
                (":authority", host),
            ]
        };
        client.headers(1, &head("b.test", "/"), Ends::Now).unwrap();
        client
            .headers(3, &head("B.TEST:8080", "/"), Ends::Now)
            .unwrap();
        client.headers(5, &head("a.test", "/"), Ends::Now).unwrap();
        client.request(7, "POST", "/post", &[], Ends::Now).unwrap();
        client.get(9, "/old").unwrap();
        for (stream, status, text) in [
            (1, 200, "b"),
            (3, 200, "b"),
            (5, 200, "ok"),
            (7, 202, "posted"),
        ] {
            super::assert_answered(&client.response(stream).unwrap(), status, text);
        }
        let moved = client.response(9).unwrap();
        assert!((300..400).contains(&moved.status), "{moved:?}");
        assert_eq!(moved.field("location"), Some("https://new.test/old"));
    });
}
