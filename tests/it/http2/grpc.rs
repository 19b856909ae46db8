//! Calls of gRPC: their status, their time, and what gRPC-Web makes of them.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use evenkeel_testkit::deadline::until;
use evenkeel_testkit::http2::{
    Ends, ErrorCode, H2Request, H2Response, block, flags, frame, headers, kind, setting,
};
use evenkeel_testkit::{H2Client, H2Server, Proxy, RawOrigin, RawStream};

use crate::setup::{Site, ask_status, figures, test};

const GRPC: (&str, &str) = ("content-type", "application/grpc+proto");

/// A message of gRPC.
fn message(text: &str) -> Vec<u8> {
    let mut message = vec![0];
    message.extend((text.len() as u32).to_be_bytes());
    message.extend(text.as_bytes());
    message
}

/// An endpoint that answers each call so.
fn answering(
    answer: impl Fn(&mut H2Server, H2Request) -> io::Result<()> + Send + Sync + 'static,
) -> RawOrigin {
    let accepted = move |_, raw: RawStream| -> io::Result<()> {
        let mut server = H2Server::accept(raw, &[])?;
        loop {
            let request = server.request()?;
            answer(&mut server, request)?;
        }
    };
    RawOrigin::start(move |number, raw| {
        // It ends as the program closes.
        let _ = accepted(number, raw);
    })
    .unwrap()
}

/// Answers with the status that the path names, behind a message or alone.
fn by_path(server: &mut H2Server, request: &H2Request) -> io::Result<()> {
    let path = request.path().trim_start_matches('/').to_owned();
    let (way, status) = path.split_once('/').unwrap_or(("unary", "0"));
    let status = [("grpc-status", status), ("grpc-message", "so%20it%20is")];
    if way == "alone" {
        let head = [&[(":status", "200"), GRPC][..], &status].concat();
        return server.headers(request.stream, &head, Ends::Now);
    }
    server.headers(request.stream, &[(":status", "200"), GRPC], Ends::Later)?;
    server.data(request.stream, &request.body, Ends::Later)?;
    server.headers(request.stream, &status, Ends::Now)
}

fn proxy(endpoints: &[&RawOrigin], upstream: &str) -> Proxy {
    let site = Site {
        listener: "h2c = true",
        upstream: &format!("protocol = \"h2\"\n{upstream}"),
        server: "[status]\nbind = \"127.0.0.1:0\"",
        ..Site::default()
    };
    let endpoints: Vec<_> = endpoints.iter().map(|it| it.address.to_string()).collect();
    site.start(&endpoints)
}

fn connect(proxy: &Proxy) -> H2Client {
    H2Client::connect(proxy.socket_addr("web")).unwrap()
}

/// Makes a call with a message, and these fields besides.
fn call(client: &mut H2Client, stream: u32, path: &str, more: &[(&str, &str)]) -> H2Response {
    let own = client.head("POST", path);
    let fields = [&own[..], &[GRPC, ("te", "trailers")], more].concat();
    let head = headers(stream, &block(&fields), Ends::Later);
    let content = frame(kind::DATA, flags::END_STREAM, stream, &message("hello"));
    // In one write: a request that is still incoming is not tried again.
    client.raw().send([head, content].concat()).unwrap();
    client.response(stream).unwrap()
}

fn log_of(proxy: &Proxy) -> String {
    proxy.access_log().join("\n")
}

/// The value of a field in the trailers, or in the head of a response that has nothing else.
fn told<'a>(response: &'a H2Response, name: &str) -> Option<&'a str> {
    let trailers = response.trailers.iter();
    let mut all = trailers.chain(&response.fields);
    all.find(|it| it.0 == name).map(|it| &*it.1)
}

#[test]
fn calls_end_with_their_status() {
    test(|| {
        let endpoint = answering(|server, request| by_path(server, &request));
        let proxy = proxy(&[&endpoint], "");
        let mut client = connect(&proxy);
        for (stream, path, status) in [
            (1, "/unary/0", "0"),
            (3, "/unary/5", "5"),
            (5, "/alone/14", "14"),
            (7, "/alone/99", "99"),
        ] {
            let response = call(&mut client, stream, path, &[]);
            assert_eq!(response.status, 200, "{path}");
            assert_eq!(told(&response, "grpc-status"), Some(status), "{path}");
            assert_eq!(told(&response, "grpc-message"), Some("so%20it%20is"));
            let body = if path.starts_with("/unary") {
                message("hello")
            } else {
                Vec::new()
            };
            assert_eq!(response.body, body, "{path}");
        }
        until("they are logged", || {
            let log = log_of(&proxy);
            let has = |status| log.contains(&format!("\"grpc_status\":{status},"));
            [0, 5, 14, 99].into_iter().all(has)
        });
        let route = &figures(&proxy)["routes"][0];
        assert_eq!(
            route["grpc"],
            serde_json::json!({ "OK": 1, "NOT_FOUND": 1, "UNAVAILABLE": 1, "unknown": 1 })
        );
        assert_eq!(route["errors"], 1, "{route}");
        let metrics = ask_status(&proxy, "/metrics", "").text();
        let line = "evenkeel_route_grpc_responses_total{route=\"route-1\",status=\"NOT_FOUND\"} 1";
        assert!(metrics.contains(line), "{metrics}");
    });
}

/// Clients of gRPC get refusals as a status, not as a page.
#[test]
fn refusals_are_statuses() {
    test(|| {
        let endpoint = answering(|server, request| by_path(server, &request));
        let proxy = proxy(&[&endpoint], "");
        let nobody = crate::setup::nobody();
        let site = Site {
            listener: "h2c = true",
            upstream: "protocol = \"h2\"\nqueue = { hold = false }\nretries = 0",
            ..Site::default()
        };
        let refusing = site.start(&[nobody]);
        let mut client = connect(&refusing);
        let response = call(&mut client, 1, "/a.B/C", &[]);
        assert_eq!(response.status, 200);
        assert_eq!(response.field("grpc-status"), Some("14"), "{response:?}");
        assert_eq!(response.field("content-type"), Some("application/grpc"));
        let why = response.field("grpc-message").unwrap_or_default();
        assert!(why.starts_with("connect-failed:"), "{why}");
        assert!(response.body.is_empty() && response.trailers.is_empty());
        // Others get a page as ever.
        client.get(3, "/a.B/C").unwrap();
        assert_eq!(client.response(3).unwrap().status, 502);
        let well = call(&mut connect(&proxy), 1, "/unary/0", &[]);
        assert_eq!(told(&well, "grpc-status"), Some("0"));
    });
}

#[test]
fn the_time_that_a_client_allows_is_its_deadline() {
    test(|| {
        let (sender, timeouts) = mpsc::channel();
        let sender = Mutex::new(sender);
        let endpoint = answering(move |_, request| {
            let timeout = request.field("grpc-timeout").map(str::to_owned);
            sender.lock().unwrap().send(timeout).unwrap();
            // It never answers.
            Ok(())
        });
        let proxy = proxy(&[&endpoint], "");
        let begun = Instant::now();
        let response = call(&mut connect(&proxy), 1, "/a", &[("grpc-timeout", "300m")]);
        assert_eq!(response.field("grpc-status"), Some("4"), "{response:?}");
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(300), "{took:?}");
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!(timeouts.recv().unwrap().as_deref(), Some("300m"));
    });
}

/// A client of gRPC takes `INTERNAL_ERROR` for a fault of the server, and `CANCEL` behind its
/// deadline for that.
#[test]
fn a_call_that_has_begun_is_cancelled_at_its_deadline() {
    test(|| {
        let endpoint = answering(|server, request| {
            // Its message never comes.
            server.headers(request.stream, &[(":status", "200"), GRPC], Ends::Later)
        });
        let proxy = proxy(&[&endpoint], "");
        let response = call(&mut connect(&proxy), 1, "/a", &[("grpc-timeout", "300m")]);
        assert_eq!(response.status, 200, "{response:?}");
        assert_eq!(response.reset, Some(ErrorCode::Cancel), "{response:?}");
    });
}

/// Go's server announces a length of 0 for a response without messages, and sends trailers.
#[test]
fn trailers_follow_a_length_of_0() {
    test(|| {
        let endpoint = answering(|server, request| {
            let head = [
                (":status", "200"),
                GRPC,
                ("content-length", "0"),
                // The status of the trailers counts.
                ("grpc-status", "8"),
            ];
            server.headers(request.stream, &head, Ends::Later)?;
            server.headers(request.stream, &[("grpc-status", "9")], Ends::Now)
        });
        let proxy = proxy(&[&endpoint], "");
        let response = call(&mut connect(&proxy), 1, "/a", &[]);
        let trailers = [("grpc-status".to_owned(), "9".to_owned())];
        assert_eq!(response.trailers, trailers, "{response:?}");
        until("it is logged", || {
            log_of(&proxy).contains("\"grpc_status\":9,")
        });
    });
}

/// A status may cause a retry at another endpoint.
#[test]
fn statuses_are_tried_again_elsewhere() {
    test(|| {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let full = answering(move |server, request| {
            count.fetch_add(1, Ordering::SeqCst);
            let head = [
                (":status", "200"),
                GRPC,
                ("grpc-status", "14"),
                ("grpc-message", "full"),
            ];
            server.headers(request.stream, &head, Ends::Now)
        });
        let well = answering(|server, request| by_path(server, &request));
        let settings = "balance = \"first\"\ngrpc_retry_on = [\"UNAVAILABLE\"]\nguard = false";
        let both = proxy(&[&full, &well], settings);
        let mut client = connect(&both);
        let response = call(&mut client, 1, "/unary/0", &[]);
        assert_eq!(told(&response, "grpc-status"), Some("0"), "{response:?}");
        assert_eq!(response.body, message("hello"));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        // Without another endpoint, the status is the answer.
        let alone = proxy(&[&full], settings);
        let response = call(&mut connect(&alone), 1, "/unary/0", &[]);
        assert_eq!(response.status, 200);
        assert_eq!(told(&response, "grpc-status"), Some("14"), "{response:?}");
        assert_eq!(told(&response, "grpc-message"), Some("full"));
        until("it is logged as answered", || {
            log_of(&alone).contains("\"end\":\"complete\"")
        });
        // A status that is not listed causes no retry.
        let unlisted = proxy(&[&full, &well], "balance = \"first\"\nguard = false");
        let response = call(&mut connect(&unlisted), 1, "/unary/0", &[]);
        assert_eq!(told(&response, "grpc-status"), Some("14"));
    });
}

/// Errors of gRPC count like errors of HTTP, although each response is a 200.
#[test]
fn an_endpoint_whose_calls_fail_is_left_out() {
    test(|| {
        let broken = answering(|server, request| {
            server.headers(request.stream, &[(":status", "200"), GRPC], Ends::Later)?;
            server.headers(request.stream, &[("grpc-status", "13")], Ends::Now)
        });
        let well = answering(|server, request| by_path(server, &request));
        let proxy = proxy(&[&broken, &well], "balance = \"random\"");
        let mut client = connect(&proxy);
        let mut streams = (1..).step_by(2);
        until("one is left out", || {
            let response = call(&mut client, streams.next().unwrap(), "/unary/0", &[]);
            assert_eq!(response.status, 200);
            let endpoints = figures(&proxy)["upstreams"][0]["endpoints"].clone();
            endpoints
                .as_array()
                .unwrap()
                .iter()
                .any(|it| it["state"] == "ejected")
        });
    });
}

#[test]
fn messages_go_both_ways_as_they_come() {
    test(|| {
        let accepted = |raw: RawStream| -> io::Result<()> {
            let mut server = H2Server::accept(raw, &[])?;
            let request = server.head()?;
            server.headers(request.stream, &[(":status", "200"), GRPC], Ends::Later)?;
            // Each message is answered at once.
            for number in 0..5 {
                let expected = message(&format!("m{number}"));
                let mut content = Vec::new();
                while content.len() < expected.len() {
                    let frame = server.next()?;
                    if frame.kind == evenkeel_testkit::http2::kind::DATA {
                        content.extend_from_slice(&frame.payload);
                    }
                }
                assert_eq!(content, expected);
                server.data(request.stream, content, Ends::Later)?;
            }
            server.headers(request.stream, &[("grpc-status", "0")], Ends::Now)
        };
        let endpoint = RawOrigin::start(move |_, raw| {
            let _ = accepted(raw);
        })
        .unwrap();
        let proxy = proxy(&[&endpoint], "");
        let mut client = connect(&proxy);
        client
            .request(1, "POST", "/a", &[GRPC], Ends::Later)
            .unwrap();
        for number in 0..5 {
            let sent = message(&format!("m{number}"));
            client.data(1, &sent, Ends::Later).unwrap();
            let so_far = |client: &H2Client| client.so_far(1).map_or(0, |it| it.body.len());
            client
                .until(|it| so_far(it) == sent.len() * (number + 1))
                .unwrap();
        }
        let response = client.response(1).unwrap();
        assert_eq!(told(&response, "grpc-status"), Some("0"));
    });
}

/// A body of gRPC-Web: its messages, and the lines of its trailers.
fn web_parts(mut body: &[u8]) -> (Vec<u8>, String) {
    let (mut messages, mut trailers) = (Vec::new(), String::new());
    while let Some((head, rest)) = body.split_at_checked(5) {
        let len = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
        let (part, behind) = rest.split_at(len);
        if head[0] & 0x80 != 0 {
            trailers = String::from_utf8(part.to_vec()).unwrap();
        } else {
            messages.extend([head, part].concat());
        }
        body = behind;
    }
    (messages, trailers)
}

/// A request of gRPC-Web by HTTP/1.1.
fn web_request(kind: &str) -> String {
    format!(
        "POST /a HTTP/1.1\r\nHost: a\r\nContent-Type: application/{kind}\r\n\
         Content-Length: 0\r\n\r\n"
    )
}

/// A page is not a response of gRPC: it has no messages, and no trailers at its end.
#[test]
fn pages_go_to_browsers_as_they_are() {
    test(|| {
        let endpoint = answering(|server, request| {
            let head = [(":status", "503"), ("content-type", "text/html")];
            server.headers(request.stream, &head, Ends::Later)?;
            server.data(request.stream, "a page", Ends::Now)
        });
        let proxy = proxy(&[&endpoint], "guard = false");
        let mut client = proxy.client();
        for kind in ["grpc-web", "grpc-web-text"] {
            let response = client.ask(web_request(kind)).unwrap();
            assert_eq!(response.status, 503, "{kind}");
            assert_eq!(response.field("content-type"), Some("text/html"));
            assert_eq!(response.text(), "a page", "{kind}");
        }
    });
}

/// They stand in the body, and clients that look for them behind it find none.
#[test]
fn browsers_are_promised_no_trailers() {
    test(|| {
        let endpoint = answering(|server, request| {
            let head = [(":status", "200"), GRPC, ("trailer", "grpc-status")];
            server.headers(request.stream, &head, Ends::Later)?;
            server.headers(request.stream, &[("grpc-status", "0")], Ends::Now)
        });
        let proxy = proxy(&[&endpoint], "");
        let response = proxy.client().ask(web_request("grpc-web")).unwrap();
        assert_eq!(response.field("trailer"), None, "{response:?}");
        let (_, trailers) = web_parts(&response.body);
        assert_eq!(trailers, "grpc-status: 0\r\n");
    });
}

/// Content that does not fit the windows at once follows later, including its last part.
#[test]
fn text_of_browsers_goes_through_small_windows() {
    test(|| {
        let (sender, seen) = mpsc::channel();
        let sender = Mutex::new(sender);
        let endpoint = RawOrigin::start(move |_, raw| {
            let accepted = || -> io::Result<()> {
                let mut server = H2Server::accept(raw, &[(setting::INITIAL_WINDOW_SIZE, 1000)])?;
                let mut body = Vec::new();
                loop {
                    let frame = server.next()?;
                    let (kind, stream) = (frame.kind, frame.stream);
                    let ends = frame.has(flags::END_STREAM);
                    if kind != kind::DATA {
                        continue;
                    }
                    body.extend_from_slice(&frame.payload);
                    let more = (frame.payload.len() as u32).to_be_bytes();
                    if ends {
                        let _ = sender.lock().unwrap().send(std::mem::take(&mut body));
                        let head = [(":status", "200"), GRPC, ("grpc-status", "0")];
                        server.headers(stream, &head, Ends::Now)?;
                    } else if more != [0; 4] {
                        server.frame(kind::WINDOW_UPDATE, 0, stream, more)?;
                        server.frame(kind::WINDOW_UPDATE, 0, 0, more)?;
                    }
                }
            };
            let _ = accepted();
        })
        .unwrap();
        let proxy = proxy(&[&endpoint], "");
        for len in [10, 995, 1000, 5000, 70_000] {
            let body = message(&"x".repeat(len));
            let sent = BASE64_STANDARD.encode(&body);
            let request = format!(
                "POST /a HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc-web-text\r\n\
                 Content-Length: {}\r\n\r\n{sent}",
                sent.len()
            );
            let response = proxy.client().ask(request).unwrap();
            assert_eq!(
                response.field("grpc-status"),
                Some("0"),
                "{len}: {response:?}"
            );
            assert!(seen.recv().unwrap() == body, "{len}");
        }
    });
}

/// All that an endpoint says beside its last status gets to the client, and trailers behind no
/// content do.
#[test]
fn details_of_a_status_are_kept() {
    test(|| {
        let answer = |server: &mut H2Server, request: H2Request| match request.path() {
            "/nothing" => {
                let head = [(":status", "200"), GRPC, ("content-length", "0")];
                server.headers(request.stream, &head, Ends::Later)?;
                server.headers(request.stream, &[("grpc-status", "5")], Ends::Now)
            }
            _ => {
                let status = [("grpc-status", "14"), ("grpc-status-details-bin", "CAEQ")];
                let head = [&[(":status", "200"), GRPC][..], &status, &[("x-a", "b")]].concat();
                server.headers(request.stream, &head, Ends::Now)
            }
        };
        let (one, other) = (answering(answer), answering(answer));
        let settings = "grpc_retry_on = [\"UNAVAILABLE\"]\nretries = 1\nguard = false";
        let proxy = proxy(&[&one, &other], settings);
        let mut client = connect(&proxy);
        let refused = call(&mut client, 1, "/a", &[]);
        assert_eq!(told(&refused, "grpc-status"), Some("14"), "{refused:?}");
        assert_eq!(told(&refused, "grpc-status-details-bin"), Some("CAEQ"));
        assert_eq!(told(&refused, "x-a"), Some("b"));
        let empty = call(&mut client, 3, "/nothing", &[]);
        assert_eq!(told(&empty, "grpc-status"), Some("5"), "{empty:?}");
    });
}

#[test]
fn browsers_call_by_grpc_web() {
    test(|| {
        let (sender, seen) = mpsc::channel();
        let sender = Mutex::new(sender);
        let endpoint = answering(move |server, request| {
            by_path(server, &request)?;
            sender.lock().unwrap().send(request).unwrap();
            Ok(())
        });
        let proxy = proxy(&[&endpoint], "");
        let mut client = proxy.client();
        let body = message("hello");
        for (kind, text) in [("grpc-web+proto", false), ("grpc-web-text", true)] {
            let sent = if text {
                BASE64_STANDARD.encode(&body).into_bytes()
            } else {
                body.clone()
            };
            let mut request = format!(
                "POST /unary/3 HTTP/1.1\r\nHost: a\r\nContent-Type: application/{kind}\r\n\
                 X-Grpc-Web: 1\r\nContent-Length: {}\r\n\r\n",
                sent.len()
            )
            .into_bytes();
            request.extend(sent);
            let response = client.ask(request).unwrap();
            assert_eq!(response.status, 200, "{kind}");
            // The endpoint says which messages it has.
            let expected = if text {
                "application/grpc-web-text+proto"
            } else {
                "application/grpc-web+proto"
            };
            assert_eq!(response.field("content-type"), Some(expected));
            let got = if text {
                // Each part is encoded alone.
                let parts = response.body.chunks(4);
                parts
                    .flat_map(|it| BASE64_STANDARD.decode(it).unwrap())
                    .collect()
            } else {
                response.body.clone()
            };
            let (messages, trailers) = web_parts(&got);
            assert_eq!(messages, body, "{kind}");
            assert_eq!(trailers, "grpc-status: 3\r\ngrpc-message: so%20it%20is\r\n");
            let request = seen.recv().unwrap();
            assert_eq!(request.body, body, "{kind}");
            let own = request.field("content-type").unwrap();
            assert!(
                matches!(own, "application/grpc" | "application/grpc+proto"),
                "{own}"
            );
            assert_eq!(request.field("te"), Some("trailers"));
        }
        let odd = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc-web-text\r\n\
            Content-Length: 4\r\n\r\na*b=";
        let refused = client.ask(odd).unwrap();
        assert_eq!(refused.field("grpc-status"), Some("13"), "{refused:?}");
        assert_eq!(
            refused.field("content-type"),
            Some("application/grpc-web-text")
        );
        until("they are logged", || {
            log_of(&proxy).matches("\"grpc_status\":3,").count() == 2
        });
    });
}
