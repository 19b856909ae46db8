//! Logs and figures of exchanges over HTTP/2.

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::http2::kind;
use serde_json::Value;

use super::{Endpoint, OK, Shape, connect};
use crate::control;
use crate::setup::{ask_status, figures, origin, test};

#[test]
fn lines_name_the_connection_and_the_stream() {
    test(|| {
        let endpoint = Endpoint::answering(|_| OK.into());
        let proxy = Shape::default().before(endpoint.address());
        let (mut first, mut second) = (connect(&proxy), connect(&proxy));
        assert_eq!(first.ask(1, "/a").unwrap().status, 200);
        assert_eq!(first.ask(3, "/b").unwrap().status, 200);
        assert_eq!(second.ask(1, "/c").unwrap().status, 200);
        assert_eq!(proxy.client().get("/d").unwrap().status, 200);
        until("all are logged", || proxy.access_log().len() == 4);
        let lines = proxy.access_log_json();
        let line = |target: &str| lines.iter().find(|it| it["target"] == target).unwrap();
        let [a, b, c, d] = ["/a", "/b", "/c", "/d"].map(line);
        for it in [a, b, c] {
            assert_eq!(it["version"], "HTTP/2.0", "{it}");
            assert_eq!(it["end"], "complete", "{it}");
            assert_eq!(it["method"], "GET", "{it}");
            assert_eq!(it["host"], "test.example", "{it}");
        }
        assert_eq!(
            (&a["stream"], &b["stream"], &c["stream"]),
            (&1.into(), &3.into(), &1.into())
        );
        assert!(a["connection"].is_u64(), "{a}");
        assert_eq!(a["connection"], b["connection"]);
        assert_ne!(a["connection"], c["connection"]);
        assert_eq!(d["version"], "HTTP/1.1");
        assert_eq!((d.get("stream"), d.get("connection")), (None, None));
    });
}

#[test]
fn a_template_has_the_connection_and_the_stream() {
    test(|| {
        let endpoint = Endpoint::answering(|_| OK.into());
        let config = Shape::default().config(&[format!("'{}'", endpoint.address())]);
        let template = "template = '{connection}.{stream} \"{request}\" {status} {header:x-a}'";
        let config = config.replace("format = 'json'", template);
        let proxy = evenkeel_testkit::Proxy::start(crate::setup::program(), &config).unwrap();
        let mut client = connect(&proxy);
        super::ask(&mut client, 1, "GET", "/a?b", &[("x-a", "c")]);
        super::ask(&mut client, 7, "HEAD", "/b", &[]);
        proxy.client().get("/c").unwrap();
        until("all are logged", || proxy.access_log().len() == 3);
        let lines = proxy.access_log();
        let number = lines[0].split('.').next().unwrap();
        assert!(number.parse::<u32>().is_ok(), "{lines:?}");
        let expected = [
            format!("{number}.1 \"GET /a?b HTTP/2.0\" 200 c"),
            format!("{number}.7 \"HEAD /b HTTP/2.0\" 200 -"),
            "-.- \"GET /c HTTP/1.1\" 200 -".to_owned(),
        ];
        assert_eq!(lines, expected);
    });
}

#[test]
fn the_list_of_connections_has_the_exchanges_of_each() {
    test(|| {
        let origin = origin();
        let proxy = Shape::default().before(&origin.address);
        let mut client = connect(&proxy);
        for (stream, path) in [
            (1, "/slow/1500?a"),
            (3, "/slow/1500?b"),
            (5, "/slow/1500?c"),
        ] {
            client.get(stream, path).unwrap();
        }
        until("they are in flight", || origin.stats().in_flight == 3);
        let shown = control::json(&proxy, "show sessions");
        let sessions = shown["sessions"].as_array().unwrap();
        let mut requests: Vec<_> = sessions
            .iter()
            .filter_map(|it| it["exchange"]["request"].as_str())
            .collect();
        requests.sort_unstable();
        assert_eq!(requests.len(), 3, "{shown}");
        for (request, path) in requests.iter().zip(["?a", "?b", "?c"]) {
            assert!(request.contains(path), "{shown}");
        }
        let clients: Vec<_> = sessions.iter().map(|it| &it["client"]).collect();
        assert!(clients.iter().all(|it| *it == clients[0]), "{shown}");
        for stream in [1, 3, 5] {
            assert_eq!(client.response(stream).unwrap().status, 200);
        }
        until("no exchange is left", || {
            let shown = control::json(&proxy, "show sessions");
            let sessions = shown["sessions"].as_array().unwrap();
            sessions.iter().all(|it| it["exchange"] == Value::Null)
        });
        drop(client);
        until("it has left", || {
            control::json(&proxy, "show sessions")["open"] == 0
        });
    });
}

#[test]
fn figures_count_connections_and_requests() {
    test(|| {
        let origin = origin();
        let proxy = Shape::default().before(&origin.address);
        let counted = |name: &str| figures(&proxy)["listeners"][0][name].as_u64().unwrap();
        let mut client = connect(&proxy);
        for stream in [1, 3, 5] {
            assert_eq!(client.ask(stream, "/ping").unwrap().status, 200);
        }
        assert_eq!(connect(&proxy).ask(1, "/ping").unwrap().status, 200);
        assert_eq!(proxy.client().get("/ping").unwrap().status, 200);
        assert_eq!(counted("http2_connections"), 2);
        assert_eq!(counted("http2_broken"), 0);
        assert_eq!(counted("connections"), 3);
        until("all are counted", || counted("requests") == 5);
        let route = figures(&proxy)["routes"][0]["requests"].as_u64();
        assert_eq!(route, Some(5));
        // DATA of no stream.
        client.frame(kind::DATA, 0, 0, b"abc").unwrap();
        client.end().unwrap();
        until("it is counted", || counted("http2_broken") == 1);
        let text = ask_status(&proxy, "/metrics", "").text();
        for line in [
            "evenkeel_listener_http2_connections_total{listener=\"web\"} 2\n",
            "evenkeel_listener_http2_broken_total{listener=\"web\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    });
}
