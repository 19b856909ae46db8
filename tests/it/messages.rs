//! Messages and connections: persistence, pipelining, versions, answers
//! without a body, informational answers.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use evenkeel_testkit::RawOrigin;
use evenkeel_testkit::deadline::until;

use crate::setup::{Site, assert_serves, get, site, test};
use crate::words::EXPECTATION;

#[test]
fn a_connection_carries_many_requests_on_both_sides() {
    test(|| {
        let (origin, proxy) = site();
        let mut client = proxy.client();
        for _ in 0..50 {
            assert_serves(&mut client);
        }
        let stats = origin.stats();
        assert_eq!((stats.requests, stats.connections), (50, 1));
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        let paths = ["/3", "/slow/30", "/5", "/chunked/7", "/ping"];
        client.send(paths.map(get).concat()).unwrap();
        let bodies = paths.map(|_| client.read_response("GET").unwrap().text());
        assert_eq!(bodies, ["abc", "pong", "abcde", "abcdefg", "pong"]);
        assert_serves(&mut client);
    });
}

#[test]
fn clients_that_pipeline_without_pause_give_way_to_others() {
    test(|| {
        let site = Site {
            server: "[[route]]\nmatch = { path = '/own' }\nanswer = {}",
            ..Site::default()
        };
        let (_origin, proxy) = site.with_origin();
        let requests = get("/own").repeat(1_000);
        let floods = [(); 2].map(|()| TcpStream::connect(proxy.address("web")).unwrap());
        std::thread::scope(|scope| {
            for mut flood in &floods {
                let requests = requests.as_bytes();
                // Both end when the stream is shut down.
                scope.spawn(move || while flood.write_all(requests).is_ok() {});
                scope.spawn(move || std::io::copy(&mut flood, &mut std::io::sink()));
            }
            let served = || (0..500).for_each(|_| assert_serves(&mut proxy.client()));
            let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(served));
            for flood in &floods {
                flood.shutdown(Shutdown::Both).unwrap();
            }
            served.unwrap();
        });
    });
}

#[test]
fn pipelined_requests_with_bodies_keep_their_bounds() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        client
            .send(
                "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nGETPOST /echo HTTP/1.1\r\n\
                 Host: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nPOST\r\n0\r\n\r\n\
                 GET /ping HTTP/1.1\r\nHost: a\r\n\r\n",
            )
            .unwrap();
        assert_eq!(client.read_response("POST").unwrap().text(), "GET");
        assert_eq!(client.read_response("POST").unwrap().text(), "POST");
        assert_eq!(client.read_response("GET").unwrap().text(), "pong");
    });
}

#[test]
fn a_request_may_arrive_byte_by_byte() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        let request = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                       5\r\nhello\r\n0\r\nX-T: y\r\n\r\n";
        for byte in request.as_bytes() {
            client.send([*byte]).unwrap();
        }
        assert_eq!(client.read_response("POST").unwrap().text(), "hello");
        assert_serves(&mut client);
    });
}

#[test]
fn http_1_0_closes_unless_asked_to_stay() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        let response = client.ask("GET /ping HTTP/1.0\r\n\r\n").unwrap();
        assert_eq!(response.text(), "pong");
        assert!(client.is_closed());

        let mut client = proxy.client();
        for _ in 0..3 {
            let request = "GET /5 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
            let response = client.ask(request).unwrap();
            assert_eq!(response.text(), "abcde");
            assert_eq!(response.field("connection"), Some("keep-alive"));
        }
    });
}

#[test]
fn http_1_0_gets_no_chunks() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        let request = "GET /chunked/5 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
        let response = client.ask(request).unwrap();
        assert_eq!(response.field("transfer-encoding"), None);
        assert_eq!(response.text(), "abcde");
        if response.field("content-length").is_none() {
            assert!(client.is_closed());
        }
    });
}

#[test]
fn connection_close_is_honoured() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        let request = "GET /ping HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let response = client.ask(request).unwrap();
        assert_eq!(response.field("connection"), Some("close"));
        assert!(client.is_closed());
    });
}

#[test]
fn an_answer_that_ends_by_closing_arrives_whole() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        let response = client.get("/close/5").unwrap();
        assert_eq!(response.text(), "abcde");
        // A client of HTTP/1.1 gets it in chunks and can go on.
        if response.field("transfer-encoding").is_some() {
            assert_serves(&mut client);
        }
    });
}

#[test]
fn head_has_the_fields_of_get_and_no_body() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        let response = client.ask("HEAD /5 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert_eq!(
            (response.status, response.field("content-length")),
            (200, Some("5"))
        );
        let response = client
            .ask("HEAD /chunked/5 HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        assert_eq!(response.status, 200);
        assert_serves(&mut client);
    });
}

#[test]
fn answers_without_a_body() {
    test(|| {
        let (origin, proxy) = site();
        let mut client = proxy.client();
        for status in [204, 304] {
            let response = client.get(&format!("/status/{status}")).unwrap();
            assert_eq!((response.status, response.body.len()), (status, 0));
            assert_eq!(response.field("transfer-encoding"), None);
            assert_eq!(response.field("etag"), Some("\"1\""));
        }
        assert_serves(&mut client);
        assert_eq!(origin.stats().connections, 1);
    });
}

#[test]
fn a_304_may_name_the_length_of_what_it_does_not_carry() {
    test(|| {
        let answer = "HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n";
        let origin = RawOrigin::answering_each(answer).unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        for _ in 0..3 {
            let response = client.get("/").unwrap();
            assert_eq!(
                (response.status, response.field("content-length")),
                (304, Some("1000"))
            );
        }
        assert_eq!(origin.connections(), 1);
    });
}

#[test]
fn statuses_and_reasons_pass_unchanged() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        for status in [201, 206, 301, 302, 403, 404, 500, 503] {
            let response = client.get(&format!("/status/{status}")).unwrap();
            assert_eq!(response.status, status);
            assert_eq!(response.text(), format!("status {status}\n"));
        }
    });
}

#[test]
fn informational_answers_are_passed_on() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        for status in [102, 103] {
            let response = client.get(&format!("/status/{status}")).unwrap();
            assert_eq!(
                (response.interim.as_slice(), response.status),
                ([status].as_slice(), 200)
            );
        }
        assert_serves(&mut client);
    });
}

#[test]
fn http_1_0_gets_no_informational_answers() {
    test(|| {
        let (_origin, proxy) = site();
        let response = proxy
            .client()
            .ask("GET /status/103 HTTP/1.0\r\n\r\n")
            .unwrap();
        assert_eq!((response.interim.len(), response.status), (0, 200));
    });
}

#[test]
fn a_client_that_waits_for_100_continue_gets_it() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        client
            .send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
            .unwrap();
        assert!(client.read_head().unwrap().starts_with("HTTP/1.1 100 "));
        client.send("hello").unwrap();
        let response = client.read_response("POST").unwrap();
        assert_eq!(
            (response.interim.len(), response.text().as_str()),
            (0, "hello")
        );
        assert_serves(&mut client);
    });
}

#[test]
fn a_refusal_reaches_a_client_that_waits_for_100_continue() {
    test(|| {
        let origin = RawOrigin::answering(
            "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        )
        .unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        let request =
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        client.send(request).unwrap();
        let response = client.read_response("POST").unwrap();
        assert_eq!(response.status, 403, "{response:?}");
    });
}

#[test]
fn other_expectations_are_refused() {
    test(|| {
        let (_origin, proxy) = site();
        let request = "GET /ping HTTP/1.1\r\nHost: a\r\nExpect: the-unexpected\r\n\r\n";
        let response = proxy.client().ask(request).unwrap();
        crate::setup::assert_refused(&response, EXPECTATION);
    });
}

#[test]
fn an_idle_client_is_let_go_without_a_word() {
    test(|| {
        let listener = "timeouts = { idle = \"200ms\" }";
        let (_origin, proxy) = Site {
            listener,
            ..Site::default()
        }
        .with_origin();
        let mut client = proxy.client();
        assert_serves(&mut client);
        assert!(client.is_closed());
    });
}

#[test]
fn every_exchange_has_one_line_in_the_log() {
    test(|| {
        let (_origin, proxy) = site();
        let mut client = proxy.client();
        for path in ["/ping", "/5?x=y", "/nowhere"] {
            client.get(path).unwrap();
        }
        until("three lines", || proxy.access_log().len() == 3);
        let lines = proxy.access_log_json();
        for (line, expected) in lines.iter().zip(["/ping", "/5?x=y", "/nowhere"]) {
            assert!(line.to_string().contains(expected), "{line}");
        }
        let statuses: Vec<_> = lines.iter().map(|line| line["status"].as_u64()).collect();
        assert_eq!(statuses, [Some(200), Some(200), Some(404)]);
    });
}

#[test]
fn bytes_behind_the_last_request_do_not_cost_its_answer() {
    test(|| {
        let (origin, proxy) = site();
        for more in ["\r\n", "GET /ping HTTP/1.1\r\nHost: a\r\n\r\n"] {
            let mut client = proxy.client();
            let request = "GET /slow/300 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            client.send(request).unwrap();
            until("the request is in flight", || origin.stats().in_flight == 1);
            client.send(more).unwrap();
            assert_eq!(client.read_response("GET").unwrap().text(), "pong");
            assert!(client.is_closed());
        }
    });
}

#[test]
fn more_informational_answers_than_fit_a_buffer_are_passed_on() {
    test(|| {
        const COUNT: usize = 7_000;
        let mut answer = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n".repeat(COUNT);
        answer.push_str("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        let origin = RawOrigin::answering(answer).unwrap();
        let proxy = Site {
            upstream: "interim = { count = 7000, bytes = \"1MiB\" }",
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        let response = proxy.client().ask(get("/")).unwrap();
        assert_eq!((response.status, response.interim.len()), (200, COUNT));
    });
}

#[test]
fn empty_lines_are_no_request() {
    test(|| {
        for (timeouts, first) in [
            ("timeouts = { head = \"600ms\" }", ""),
            (
                "timeouts = { idle = \"600ms\" }",
                "GET /ping HTTP/1.1\r\nHost: a\r\n\r\n",
            ),
        ] {
            let site = Site {
                listener: timeouts,
                ..Site::default()
            };
            let (_origin, proxy) = site.with_origin();
            let mut client = proxy.client();
            if !first.is_empty() {
                assert_eq!(client.ask(first).unwrap().text(), "pong");
            }
            until("it is closed", || client.send("\r\n").is_err());
            // Nothing was asked, so nothing is answered.
            let answered = client.read_to_end().unwrap_or_default();
            assert_eq!(answered, b"", "{}", answered.escape_ascii());
        }
    });
}
