//! Refusals, waits, retries and the choice of another endpoint.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::http2::{Ends, H2Response};
use evenkeel_testkit::{Origin, OriginOptions, RawOrigin, TempDir};

use super::values;
use super::{Endpoint, OK, Shape, ask, ask_both, assert_answered, connect, path_of, text_of};
use crate::in_flight::limited;
use crate::setup::{assert_logged, nobody, origin, pattern, test};
use crate::words::{self, Reason};

#[track_caller]
fn assert_refused(response: &H2Response, reason: Reason) {
    assert_eq!(response.status, reason.status, "{response:?}");
    assert!(response.is_whole, "{response:?}");
    let text = response.text().to_lowercase();
    assert!(text.contains(&reason.text.to_lowercase()), "{text}");
    super::assert_plain(response);
}

#[test]
fn a_client_that_comes_too_often() {
    test(|| {
        let endpoint = Endpoint::answering(|_| OK.into());
        let shape = Shape {
            route: "upstream = 'app'\nlimit = { rate = '2/h', burst = 3 }",
            ..Shape::default()
        };
        let proxy = shape.before(endpoint.address());
        let mut client = connect(&proxy);
        for n in 0..10 {
            client.get(2 * n + 1, "/").unwrap();
        }
        let responses = (0..10).map(|n| client.response(2 * n + 1).unwrap());
        let responses: Vec<_> = responses.collect();
        let (served, refused): (Vec<_>, Vec<_>) = responses.iter().partition(|it| it.status == 200);
        assert_eq!((served.len(), refused.len()), (3, 7));
        for response in refused {
            assert_refused(response, words::RATE_LIMITED);
            assert!(response.field("retry-after").is_some(), "{response:?}");
        }
        assert_logged(&proxy, words::RATE_LIMITED);
    });
}

#[test]
fn a_user_and_its_password() {
    // `kim:secret` in base64, and the password by bcrypt of the lowest cost.
    const KIM: &str = "Basic a2ltOnNlY3JldA==";
    const SECRET: &str = "$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";
    test(|| {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.join("users"), format!("kim:{SECRET}\n")).unwrap();
        let route = format!(
            "upstream = 'app'\nauth = {{ basic = '{}' }}\n\
             request_headers.set = {{ X-User = '{{user}}' }}",
            dir.join("users").display()
        );
        let endpoint =
            Endpoint::answering(|head| text_of(200, "", values(head, "x-user").join("")));
        let shape = Shape {
            route: &route,
            ..Shape::default()
        };
        let proxy = shape.before(endpoint.address());
        let mut client = connect(&proxy);
        let refused = client.ask(1, "/").unwrap();
        assert_refused(&refused, words::UNAUTHORIZED);
        assert!(refused.field("www-authenticate").is_some(), "{refused:?}");
        let wrong = ask(
            &mut client,
            3,
            "GET",
            "/",
            &[("authorization", "Basic a2ltOm90aGVy")],
        );
        assert_refused(&wrong, words::UNAUTHORIZED);
        let right = ask(&mut client, 5, "GET", "/", &[("authorization", KIM)]);
        assert_answered(&right, 200, "kim");
        assert_eq!(endpoint.count(), 1);
    });
}

#[test]
fn streams_wait_in_the_queue_in_their_order() {
    test(|| {
        let origin = origin();
        let proxy = Shape::default().start(&[limited(&origin.address.to_string(), 1)]);
        let mut client = connect(&proxy);
        for n in 0..6 {
            client.get(2 * n + 1, &format!("/slow/60?n={n}")).unwrap();
        }
        for n in 0..6 {
            assert_answered(&client.response(2 * n + 1).unwrap(), 200, "pong");
        }
        assert_eq!(origin.stats().max_in_flight, 1);
        until("all are logged", || proxy.access_log().len() == 6);
        let log = proxy.access_log_json();
        let order = log.iter().map(|it| it["target"].as_str().unwrap());
        let order: Vec<_> = order.collect();
        let expected: Vec<_> = (0..6).map(|n| format!("/slow/60?n={n}")).collect();
        assert_eq!(order, expected);
        assert!(log[5]["queue_us"].as_u64().unwrap() > 200_000, "{log:?}");
    });
}

#[test]
fn a_stream_that_waits_is_refused_in_time_or_leaves() {
    test(|| {
        let origin = origin();
        let shape = Shape {
            upstream: "queue = { max = 1, timeout = '300ms' }",
            ..Shape::default()
        };
        let proxy = shape.start(&[limited(&origin.address.to_string(), 1)]);
        let mut client = connect(&proxy);
        client.get(1, "/slow/1000").unwrap();
        until("it is in flight", || origin.stats().in_flight == 1);
        client.get(3, "/waits").unwrap();
        client.ping().unwrap();
        client.get(5, "/full").unwrap();
        assert_refused(&client.response(5).unwrap(), words::QUEUE_FULL);
        assert_refused(&client.response(3).unwrap(), words::QUEUE_TIMEOUT);
        // One that leaves makes room in the queue.
        client.get(7, "/leaves").unwrap();
        client.ping().unwrap();
        client
            .reset(7, evenkeel_testkit::http2::ErrorCode::Cancel)
            .unwrap();
        client.ping().unwrap();
        assert_logged(&proxy, words::CLIENT_GONE);
        assert_answered(&client.response(1).unwrap(), 200, "pong");
        assert_answered(&client.ask(9, "/ping").unwrap(), 200, "pong");
        // The origin got no request of the clients that had left.
        assert_eq!(origin.stats().requests, 2);
    });
}

#[test]
fn another_endpoint_is_tried() {
    test(|| {
        let bad = RawOrigin::answering("").unwrap();
        let good = Endpoint::scripted(|head, stream| {
            let body = match values(head, "content-length")[..] {
                [len] => stream.read_len(len.parse().unwrap())?,
                _ => b"ok".to_vec(),
            };
            stream.send(text_of(200, "", body))
        });
        let shape = Shape {
            upstream: "balance = 'round-robin'",
            ..Shape::default()
        };
        let endpoints = [nobody(), bad.address.to_string(), good.address()];
        let proxy = shape.start(&endpoints.map(|it| format!("'{it}'")));
        let mut client = connect(&proxy);
        for n in 0..12 {
            client.get(2 * n + 1, "/").unwrap();
        }
        for n in 0..12 {
            assert_answered(&client.response(2 * n + 1).unwrap(), 200, "ok");
        }
        until("all are logged", || proxy.access_log().len() == 12);
        let log = proxy.access_log_json();
        let tried = log.iter().any(|it| it["attempts"].as_u64() > Some(1));
        assert!(tried, "{log:?}");
        // A body goes to another one where no connection was made.
        let endpoints = [nobody(), good.address()];
        let proxy = shape.start(&endpoints.map(|it| format!("'{it}'")));
        let mut client = connect(&proxy);
        for n in 0..6 {
            let own = [("content-length", "5")];
            let stream = 2 * n + 1;
            client
                .request(stream, "POST", "/", &own, Ends::Later)
                .unwrap();
            client.data(stream, "hello", Ends::Now).unwrap();
            assert_answered(&client.response(stream).unwrap(), 200, "hello");
        }
    });
}

#[test]
fn error_pages_are_the_same_by_http1() {
    test(|| {
        let endpoint = Endpoint::answering(|_| OK.into());
        let errors = "errors = { 5xx = { body = 'any' }, no-endpoint = { body = '{}', \
                      content_type = 'application/json', status = 500, headers = { X-Page = 'own' } }, \
                      404 = { body = 'no file' } }";
        let tables = format!(
            "[[route]]\nmatch = {{ path = '/files/*' }}\nfiles = '$DIR'\n{errors}\n\
             [[route]]\nupstream = 'app'\n\
             [upstream.down]\nqueue = {{ hold = false }}\nendpoints = []\n"
        );
        let route = format!("match = {{ path = '/down' }}\nupstream = 'down'\n{errors}");
        let shape = Shape {
            route: &route,
            tables: &tables,
            ..Shape::default()
        };
        let proxy = shape.before(endpoint.address());
        let mut client = connect(&proxy);
        let page = ask_both(&proxy, &mut client, 1, "GET", "/down", &[]);
        assert_answered(&page, 500, "{}");
        assert_eq!(page.field("x-page"), Some("own"));
        let head = ask_both(&proxy, &mut client, 3, "HEAD", "/down", &[]);
        assert_eq!(
            (head.status, head.field("content-length")),
            (500, Some("2"))
        );
        let page = ask_both(&proxy, &mut client, 5, "GET", "/files/none", &[]);
        assert_answered(&page, 404, "no file");
        // A body that no endpoint reads.
        client
            .request(7, "POST", "/down", &[], Ends::Later)
            .unwrap();
        client.data(7, vec![b'x'; 30_000], Ends::Later).unwrap();
        client
            .until(|it| it.so_far(7).is_some_and(|it| it.is_whole))
            .unwrap();
        assert_eq!(client.so_far(7).unwrap().text(), "{}");
        assert_answered(&client.ask(9, "/").unwrap(), 200, "ok");
    });
}

#[test]
fn a_client_stays_at_the_endpoint_of_its_cookie() {
    test(|| {
        let origins: Vec<_> = (0..3)
            .map(|it| OriginOptions {
                name: it.to_string(),
                ..OriginOptions::default()
            })
            .map(|it| Origin::local(it).unwrap())
            .collect();
        let endpoints: Vec<_> = origins
            .iter()
            .map(|it| format!("'{}'", it.address))
            .collect();
        let shape = Shape {
            route: "upstream = 'app'\nsticky = 'node'",
            upstream: "balance = 'round-robin'",
            ..Shape::default()
        };
        let proxy = shape.start(&endpoints);
        let mut client = connect(&proxy);
        let mut stream = 1;
        for _ in 0..3 {
            let first = client.ask(stream, "/10").unwrap();
            let set = first.field("set-cookie").unwrap();
            let cookie = set.split(';').next().unwrap();
            let server = first.field("server").unwrap();
            for n in 1..=5 {
                let crumbs = [("cookie", "a=b"), ("cookie", cookie), ("cookie", "c")];
                let response = ask(&mut client, stream + 2 * n, "GET", "/10", &crumbs);
                assert_eq!(response.field("server"), Some(server));
                assert_eq!(response.field("set-cookie"), None);
            }
            stream += 12;
        }
    });
}

#[test]
fn a_response_that_is_held_back_holds_no_other_up() {
    test(|| {
        let origin = origin();
        let shape = Shape {
            route: "match = { path = '/325000' }\nupstream = 'app'\nbandwidth = '100KB/s'",
            tables: "[[route]]\nupstream = 'app'",
            ..Shape::default()
        };
        let proxy = shape.before(&origin.address);
        let mut client = connect(&proxy);
        client.credit(0, 1 << 30).unwrap();
        let begun = Instant::now();
        client.get(1, "/325000").unwrap();
        client.credit(1, 1 << 30).unwrap();
        for n in 1..=50 {
            let response = client.ask(2 * n + 1, "/custom-payload?size=10000").unwrap();
            assert!(response.body == pattern(10_000));
        }
        let taken = begun.elapsed();
        assert!(taken < Duration::from_secs(1), "{taken:?}");
        let held = client.response(1).unwrap();
        assert!(held.body == pattern(325_000));
        let taken = begun.elapsed();
        let due = Duration::from_millis(2_700)..Duration::from_millis(3_600);
        assert!(due.contains(&taken), "{taken:?}");
        until("all are logged", || proxy.access_log().len() == 51);
        let log = proxy.access_log_json();
        let paced = log.iter().find(|it| it["stream"] == 1).unwrap();
        assert!(paced["paced_ms"].as_u64() > Some(2_000), "{paced}");
        assert_eq!(paced["end"], "complete");
    });
}

#[test]
fn a_body_is_mirrored() {
    test(|| {
        let read = |head: &str, stream: &mut evenkeel_testkit::RawStream| {
            let mut body = Vec::new();
            if let [len] = values(head, "content-length")[..] {
                return stream.read_len(len.parse().unwrap());
            }
            loop {
                let mut line = Vec::new();
                while !line.ends_with(b"\r\n") {
                    line.extend(stream.read_len(1)?);
                }
                let size = String::from_utf8_lossy(&line).into_owned();
                let size = usize::from_str_radix(size.trim(), 16).unwrap();
                let chunk = stream.read_len(size + 2)?;
                body.extend_from_slice(&chunk[..size]);
                if size == 0 {
                    return Ok(body);
                }
            }
        };
        let app = Endpoint::scripted(move |head, stream| {
            let body = read(head, stream)?;
            stream.send(text_of(200, "", body))
        });
        let copies = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let kept = copies.clone();
        let mirror = Endpoint::scripted(move |head, stream| {
            let body = read(head, stream)?;
            kept.lock().unwrap().push(body);
            stream.send("HTTP/1.1 500 Oops\r\nContent-Length: 6\r\n\r\nmirror")
        });
        let tables = format!("[upstream.test]\nendpoints = ['{}']", mirror.address());
        let shape = Shape {
            route: "upstream = 'app'\nmirror = { upstream = 'test', max_body = '1MiB' }",
            tables: &tables,
            ..Shape::default()
        };
        let proxy = shape.before(app.address());
        let mut client = connect(&proxy);
        let body = pattern(200_000);
        for (stream, fields) in [(1, &[][..]), (3, &[("content-length", "200000")])] {
            client
                .request(stream, "POST", "/a", fields, Ends::Later)
                .unwrap();
            client.upload(stream, &body, Ends::Now).unwrap();
            let response = client.response(stream).unwrap();
            assert_eq!((response.status, response.reset), (200, None));
            assert!(response.body == body);
        }
        until("both are copied", || copies.lock().unwrap().len() == 2);
        assert!(copies.lock().unwrap().iter().all(|it| *it == body));
        for head in &*mirror.heads.lock().unwrap() {
            assert!(head.starts_with("POST /a HTTP/1.1\r\n"), "{head}");
        }
    });
}

#[test]
fn a_body_that_is_too_large() {
    test(|| {
        let endpoint = Endpoint::scripted(|head, stream| {
            if path_of(head) == "/ok" {
                return stream.send(OK);
            }
            let _ = stream.read_to_end();
            super::close()
        });
        let shape = Shape {
            listener: "limits = { body = 1000 }",
            ..Shape::default()
        };
        let proxy = shape.before(endpoint.address());
        let mut client = connect(&proxy);
        let cases = [(1, &[("content-length", "1001")][..]), (5, &[])];
        for (stream, fields) in cases {
            client
                .request(stream, "POST", "/a", fields, Ends::Later)
                .unwrap();
            client.data(stream, [b'x'; 1001], Ends::Later).unwrap();
            let is_whole =
                |it: &evenkeel_testkit::H2Client| it.so_far(stream).is_some_and(|it| it.is_whole);
            client.until(is_whole).unwrap();
            assert_refused(client.so_far(stream).unwrap(), words::BODY_TOO_LARGE);
            assert_answered(&client.ask(stream + 2, "/ok").unwrap(), 200, "ok");
        }
        assert_logged(&proxy, words::BODY_TOO_LARGE);
    });
}

#[test]
fn a_body_that_stops() {
    test(|| {
        let endpoint = Endpoint::scripted(|head, stream| {
            if path_of(head) == "/ok" {
                return stream.send(OK);
            }
            let _ = stream.read_to_end();
            super::close()
        });
        let shape = Shape {
            listener: "timeouts = { body = '300ms' }",
            ..Shape::default()
        };
        let proxy = shape.before(endpoint.address());
        let mut client = connect(&proxy);
        let long = vec![b'x'; 70_000];
        for (stream, fields, sent) in [
            (1, &[("content-length", "1000")][..], &b"abc"[..]),
            (5, &[], b"abc"),
            (9, &[("content-length", "100000")], &long[..60_000]),
        ] {
            client
                .request(stream, "POST", "/a", fields, Ends::Later)
                .unwrap();
            client.data(stream, sent, Ends::Later).unwrap();
            let is_whole =
                |it: &evenkeel_testkit::H2Client| it.so_far(stream).is_some_and(|it| it.is_whole);
            client.until(is_whole).unwrap();
            assert_refused(client.so_far(stream).unwrap(), words::BODY_TIMEOUT);
            assert_answered(&client.ask(stream + 2, "/ok").unwrap(), 200, "ok");
        }
        assert_logged(&proxy, words::BODY_TIMEOUT);
    });
}

#[test]
fn an_endpoint_that_does_not_answer_in_time() {
    test(|| {
        let origin = origin();
        let shape = Shape {
            upstream: "timeouts = { first_byte = '200ms' }\nretries = 0",
            ..Shape::default()
        };
        let proxy = shape.before(&origin.address);
        let mut client = connect(&proxy);
        client.get(1, "/slow/5000").unwrap();
        client.get(3, "/ping").unwrap();
        assert_answered(&client.response(3).unwrap(), 200, "pong");
        assert_refused(&client.response(1).unwrap(), words::FIRST_BYTE_TIMEOUT);
        assert_answered(&client.ask(5, "/ping").unwrap(), 200, "pong");
    });
}
