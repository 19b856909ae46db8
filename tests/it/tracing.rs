//! Request ids and trace context: what endpoints, clients and the log get of
//! them; and the spans that a collector gets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, RawOrigin, Response};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::Value;

use crate::setup::{Site, figures, origin, test};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn start(listener: &str) -> (OriginHandle, Proxy) {
    Site {
        listener,
        ..Site::default()
    }
    .with_origin()
}

/// Sends a request with these fields to a page that shows the request of the endpoint.
fn send(proxy: &Proxy, path: &str, fields: &[&str]) -> Response {
    let fields: String = fields.iter().map(|it| format!("{it}\r\n")).collect();
    let mut client = proxy.client();
    let request = format!("GET {path} HTTP/1.1\r\nHost: test.example\r\n{fields}\r\n");
    client.send(request.as_bytes()).unwrap();
    client.read_response("GET").unwrap()
}

/// The values of a field that the endpoint got.
fn got(response: &Response, name: &str) -> Vec<String> {
    let text = response.text();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let values = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
    values.map(|(_, value)| value.trim().to_owned()).collect()
}

fn last_line(proxy: &Proxy, count: usize) -> Value {
    until("its line", || proxy.access_log_json().len() >= count);
    proxy.access_log_json()[count - 1].clone()
}

/// Whether it is a UUID of version 7.
fn is_uuid(id: &str) -> bool {
    let lens: Vec<_> = id.split('-').map(str::len).collect();
    let digits = id.bytes().filter(|it| *it != b'-');
    lens == [8, 4, 4, 4, 12]
        && digits.clone().count() == 32
        && digits
            .clone()
            .all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
        && id.as_bytes()[14] == b'7'
}

#[test]
fn off_is_no_business_of_ours() {
    test(|| {
        let (_origin, proxy) = start("");
        let fields = [
            "X-Request-ID: a b",
            "X-Request-ID: c",
            "traceparent: x",
            "tracestate: y",
        ];
        let response = send(&proxy, "/headers", &fields);
        assert_eq!(got(&response, "x-request-id"), ["a b", "c"]);
        assert_eq!(got(&response, "traceparent"), ["x"]);
        assert_eq!(got(&response, "tracestate"), ["y"]);
        assert_eq!(response.field("x-request-id"), None);
        let line = last_line(&proxy, 1);
        assert_eq!(
            (&line["request_id"], &line["trace_id"]),
            (&Value::Null, &Value::Null)
        );
    });
}

#[test]
fn keeps_a_well_formed_request_id_and_makes_one_otherwise() {
    test(|| {
        let (_origin, proxy) = start("request_id = \"keep\"");
        let long = format!("X-Request-ID: {}", "a".repeat(129));
        let cases = [
            (
                &["x-request-ID: Root=1-67891233-abcdef"][..],
                Some("Root=1-67891233-abcdef"),
            ),
            (&["X-Request-ID: a\", \"forged\": \"b"], None),
            (&["X-Request-ID: one", "X-Request-ID: two"], None),
            (&["X-Request-ID:"], None),
            (&["X-Request-ID: x", "Connection: x-request-id"], None),
            (&[&long], None),
            (&[], None),
        ];
        let mut seen = std::collections::HashSet::new();
        for (index, (fields, kept)) in cases.into_iter().enumerate() {
            let response = send(&proxy, "/headers", fields);
            assert_eq!(response.field("x-request-id"), None);
            let ids = got(&response, "x-request-id");
            assert_eq!(ids.len(), 1, "{fields:?}: {ids:?}");
            match kept {
                Some(kept) => assert_eq!(ids[0], kept),
                None => assert!(is_uuid(&ids[0]), "{fields:?}: {ids:?}"),
            }
            assert!(seen.insert(ids[0].clone()), "twice: {ids:?}");
            assert_eq!(last_line(&proxy, index + 1)["request_id"], ids[0].as_str());
        }
    });
}

#[test]
fn a_new_id_stands_in_the_place_of_the_client_s_and_is_told() {
    test(|| {
        let (_origin, proxy) = start("request_id = { mode = \"new\", respond = true }");
        let response = send(&proxy, "/headers", &["X-Request-ID: mine"]);
        let ids = got(&response, "x-request-id");
        assert!(ids.len() == 1 && is_uuid(&ids[0]), "{ids:?}");
        assert_eq!(response.field("x-request-id"), Some(ids[0].as_str()));
        assert_eq!(last_line(&proxy, 1)["request_id"], ids[0].as_str());
    });
}

#[test]
fn answers_of_our_own_name_the_request_too() {
    test(|| {
        let (_origin, proxy) = start("request_id = { respond = true }\nlimits = { body = \"1B\" }");
        let fields = ["X-Request-ID: mine", "Content-Length: 2"];
        let response = send(&proxy, "/", &fields);
        assert_eq!(response.status, 413);
        assert_eq!(response.field("x-request-id"), Some("mine"));
        assert_eq!(last_line(&proxy, 1)["request_id"], "mine");
    });
}

#[test]
fn a_retry_has_the_same_id() {
    test(|| {
        let good = origin();
        let (heads, sent) = std::sync::mpsc::channel();
        let bad = RawOrigin::start(move |_, mut stream| {
            let _ = heads.send(stream.read_head().unwrap_or_default());
        })
        .unwrap();
        let site = Site {
            listener: "request_id = \"new\"\ntrace = \"new\"",
            upstream: "balance = \"first\"",
            ..Site::default()
        };
        let proxy = site.start(&[bad.address.to_string(), good.address.to_string()]);
        let mut client = proxy.client();
        client
            .send(b"GET /headers HTTP/1.1\r\nHost: test.example\r\n\r\n")
            .unwrap();
        let head = sent.recv().unwrap();
        let response = client.read_response("GET").unwrap();
        for name in ["x-request-id", "traceparent"] {
            let value = got(&response, name).remove(0);
            assert!(head.contains(&value), "{name} {value} in {head}");
        }
        assert_eq!(last_line(&proxy, 1)["attempts"], 2);
    });
}

#[test]
fn traces_go_on_where_they_are_valid_and_begin_otherwise() {
    test(|| {
        let (_origin, proxy) = start("trace = { mode = \"keep\", sample = 0 }");
        let parent = format!("traceparent: {PARENT}");
        let later = format!("traceparent: cc-{}-x", &PARENT[3..]);
        let upper = format!("traceparent: {}", PARENT.to_uppercase());
        let states = ["tracestate: a=1", "tracestate: b=2"];
        let response = send(&proxy, "/headers", &[&parent, states[0], states[1]]);
        assert_eq!(got(&response, "traceparent"), [PARENT]);
        assert_eq!(got(&response, "tracestate"), ["a=1", "b=2"]);
        assert_eq!(last_line(&proxy, 1)["trace_id"], TRACE);
        // A field of a later version is passed on unchanged, unless a part of it changes.
        let response = send(&proxy, "/headers", &[&later, states[0]]);
        assert_eq!(
            got(&response, "traceparent"),
            [&later["traceparent: ".len()..]]
        );
        let long = format!("{parent}-00");
        let twice = [&*parent, &*parent];
        for fields in [&[&*upper][..], &[&long], &twice, &["traceparent: 00"], &[]] {
            let response = send(&proxy, "/headers", &[fields, &states].concat());
            let parents = got(&response, "traceparent");
            assert_eq!(parents.len(), 1, "{fields:?}");
            assert!(parents[0].ends_with("-02"), "{parents:?}");
            assert!(!parents[0].contains(TRACE) && parents[0].len() == 55);
            let none: [&str; 0] = [];
            assert_eq!(got(&response, "tracestate"), none, "{fields:?}");
        }
    });
}

#[test]
fn a_trace_may_always_begin_here() {
    test(|| {
        let (_origin, proxy) = start("trace = \"new\"");
        let parent = format!("traceparent: {PARENT}");
        let response = send(&proxy, "/headers", &[&parent, "tracestate: a=1"]);
        let parents = got(&response, "traceparent");
        // All traces that begin here are sampled by default.
        assert!(
            parents[0].ends_with("-03") && !parents[0].contains(TRACE),
            "{parents:?}"
        );
        let none: [&str; 0] = [];
        assert_eq!(got(&response, "tracestate"), none);
        assert_eq!(last_line(&proxy, 1)["trace_id"], &parents[0][3..35]);
    });
}

/// A collector that answers every request with a status, and keeps the spans, decoded by a
/// library.
struct Collector {
    origin: RawOrigin,
    spans: Arc<Mutex<Vec<Span>>>,
}

impl Collector {
    fn start(status: u16) -> Self {
        let spans = Arc::new(Mutex::new(Vec::new()));
        let kept = spans.clone();
        let origin = RawOrigin::start(move |_, mut stream| {
            let head = stream.read_head().unwrap();
            assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
            let head = head.to_lowercase();
            assert!(
                head.contains("content-type: application/json\r\n"),
                "{head}"
            );
            assert!(head.contains("x-token: secret\r\n"), "{head}");
            let (_, len) = head.split_once("content-length: ").unwrap();
            let len = len.lines().next().unwrap().parse().unwrap();
            let body = stream.read_len(len).unwrap();
            let request: ExportTraceServiceRequest = serde_json::from_slice(&body).unwrap();
            for resource in request.resource_spans {
                let service = &resource.resource.unwrap().attributes[0];
                assert_eq!(service.key, "service.name");
                for scope in resource.scope_spans {
                    kept.lock().unwrap().extend(scope.spans);
                }
            }
            let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\n{{}}");
            let _ = stream.send(answer);
        });
        Collector {
            origin: origin.unwrap(),
            spans,
        }
    }

    fn site(&self, trace: &str) -> (OriginHandle, Proxy) {
        let otlp = format!(
            "[otlp]\nurl = \"http://{}\"\nheaders = {{ X-Token = \"secret\" }}\n[status]\nbind = \"127.0.0.1:0\"",
            self.origin.address
        );
        let site = Site {
            listener: trace,
            server: &otlp,
            ..Site::default()
        };
        site.with_origin()
    }

    /// All spans, once there are this many.
    fn spans(&self, count: usize) -> Vec<Span> {
        until("the spans", || self.spans.lock().unwrap().len() >= count);
        let spans = self.spans.lock().unwrap();
        assert_eq!(spans.len(), count);
        spans.clone()
    }
}

fn attributes(span: &Span) -> HashMap<&str, String> {
    let text = |value: &Any| match value {
        Any::StringValue(text) => text.clone(),
        Any::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let pairs = span.attributes.iter();
    pairs
        .map(|it| {
            let value = it.value.as_ref().unwrap().value.as_ref().unwrap();
            (it.key.as_str(), text(value))
        })
        .collect()
}

#[test]
fn a_span_of_each_sampled_exchange_reaches_the_collector() {
    test(|| {
        let collector = Collector::start(200);
        let (_origin, proxy) = collector.site("trace = \"keep\"\nrequest_id = \"keep\"");
        let parent = format!("traceparent: {PARENT}");
        let unsampled = parent.replace("-01", "-00");
        let fields = [&*parent, "X-Request-ID: id-1"];
        let got_parent = got(&send(&proxy, "/headers?secret=1", &fields), "traceparent").remove(0);
        let response = send(&proxy, "/headers", &[&unsampled]);
        assert_eq!(
            got(&response, "traceparent"),
            [&unsampled["traceparent: ".len()..]]
        );
        assert_eq!(send(&proxy, "/status/500", &[]).status, 500);
        let spans = collector.spans(2);
        let [first, second] = &spans[..] else {
            panic!()
        };
        assert_eq!(hex(&first.trace_id), TRACE);
        assert_eq!(hex(&first.parent_span_id), "00f067aa0ba902b7");
        // The parent at the endpoint is this very span.
        assert_eq!(got_parent, format!("00-{TRACE}-{}-01", hex(&first.span_id)));
        assert_eq!((first.name.as_str(), first.kind), ("GET route-1", 2));
        assert!(first.end_time_unix_nano > first.start_time_unix_nano);
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let age = now.as_secs() - first.start_time_unix_nano / 1_000_000_000;
        assert!(age < 60, "{age}");
        let of_first = attributes(first);
        for (key, value) in [
            ("http.request.method", "GET"),
            ("url.path", "/headers"),
            ("url.scheme", "http"),
            ("server.address", "test.example"),
            ("network.protocol.version", "1.1"),
            ("http.response.status_code", "200"),
            ("client.address", "127.0.0.1"),
            ("evenkeel.listener", "web"),
            ("evenkeel.upstream", "app"),
            ("evenkeel.attempts", "1"),
            ("evenkeel.end", "complete"),
            ("evenkeel.request_id", "id-1"),
        ] {
            assert_eq!(of_first.get(key).map(String::as_str), Some(value), "{key}");
        }
        assert!(!format!("{first:?}").contains("secret"));
        assert_eq!(first.status, None);
        assert!(second.parent_span_id.is_empty());
        assert_eq!(second.status.as_ref().unwrap().code, 2);
        assert_eq!(attributes(second)["error.type"], "500");
        until("they are counted", || figures(&proxy)["spans_sent"] == 2);
        assert_eq!(figures(&proxy)["spans_lost"], 0);
    });
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn only_the_part_that_was_asked_for_is_sampled() {
    test(|| {
        let collector = Collector::start(200);
        let (_origin, proxy) = collector.site("trace = { mode = \"new\", sample = 0 }");
        let mut client = proxy.client();
        for _ in 0..50 {
            assert_eq!(client.get("/ping").unwrap().status, 200);
        }
        drop(proxy);
        assert!(collector.spans.lock().unwrap().is_empty());
    });
}

#[test]
fn what_is_left_is_sent_at_the_end() {
    test(|| {
        let collector = Collector::start(200);
        let (_origin, mut proxy) = collector.site("trace = \"new\"");
        for _ in 0..3 {
            assert_eq!(proxy.client().get("/ping").unwrap().status, 200);
        }
        proxy.terminate();
        let status = proxy.wait(std::time::Duration::from_secs(5)).unwrap();
        assert!(status.success(), "{}", proxy.stderr());
        assert_eq!(collector.spans.lock().unwrap().len(), 3);
    });
}

#[test]
fn a_collector_that_is_away_is_said_once_and_delays_nobody() {
    test(|| {
        let collector = Collector::start(503);
        let (_origin, proxy) = collector.site("trace = \"new\"");
        let mut client = proxy.client();
        for count in 1..=3 {
            assert_eq!(client.get("/ping").unwrap().status, 200);
            until("it is lost", || figures(&proxy)["spans_lost"] == count);
        }
        let is_loss =
            |it: &str| it.contains("span lost so far") || it.contains("spans lost so far");
        until("that is said", || is_loss(&proxy.stderr()));
        let said = proxy.stderr();
        let lines = |text: &str| said.lines().filter(|it| it.contains(text)).count();
        assert_eq!(lines("it answered 503"), 1, "{said}");
        assert_eq!(said.lines().filter(|it| is_loss(it)).count(), 1, "{said}");
        assert_eq!(figures(&proxy)["spans_sent"], 0);
    });
}
