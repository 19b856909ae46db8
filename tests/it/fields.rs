//! Header fields: which are kept, removed or added.

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{RawClient, RawOrigin, TempDir};

use crate::setup::{Site, assert_logged, assert_refused, site, test};
use crate::words;

/// The lines of the head that the origin received for a request.
fn received(request: &str) -> Vec<String> {
    let (_origin, proxy) = site();
    let response = proxy.client().ask(request).unwrap();
    assert_eq!(response.status, 200, "{response:?}");
    response.text().lines().map(str::to_owned).collect()
}

/// The value of a field among the lines of a head, by name without case.
fn value<'a>(lines: &'a [String], name: &str) -> Option<&'a str> {
    let mut named = lines.iter().filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then_some(value.trim())
    });
    named.next()
}

#[test]
fn order_case_and_values_are_kept() {
    test(|| {
        let lines = received(
            "GET /headers?a=b&c=%20d HTTP/1.1\r\nX-First: 1\r\nhost: Site.Example:8080\r\n\
             x-SECOND:2\r\nAccept: a/b, c/d;q=0.5\r\nX-First: 3\r\nX-Empty:\r\nCookie: a=b; c=d\r\n\r\n",
        );
        assert_eq!(lines[0], "GET /headers?a=b&c=%20d HTTP/1.1");
        let names: Vec<&str> = lines[1..]
            .iter()
            .filter_map(|line| line.split(':').next())
            .filter(|name| name.starts_with("X-First") || *name == "x-SECOND" || *name == "Accept")
            .collect();
        assert_eq!(names, ["X-First", "x-SECOND", "Accept", "X-First"]);
        assert_eq!(value(&lines, "host"), Some("Site.Example:8080"));
        assert_eq!(value(&lines, "x-empty"), Some(""));
        assert_eq!(value(&lines, "cookie"), Some("a=b; c=d"));
        assert_eq!(value(&lines, "accept"), Some("a/b, c/d;q=0.5"));
    });
}

#[test]
fn hop_by_hop_fields_stay_on_their_hop() {
    test(|| {
        let lines = received(
            "GET /headers HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Private , x-other\r\n\
             Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\n\
             X-Private: secret\r\nX-Other: secret\r\nX-Kept: yes\r\n\r\n",
        );
        for gone in [
            "keep-alive",
            "proxy-connection",
            "x-private",
            "x-other",
            "upgrade",
        ] {
            assert_eq!(value(&lines, gone), None, "{gone} in {lines:?}");
        }
        assert_eq!(value(&lines, "x-kept"), Some("yes"));
        let connection = value(&lines, "connection")
            .unwrap_or_default()
            .to_lowercase();
        assert!(!connection.contains("x-private"), "{connection:?}");
    });
}

#[test]
fn the_connection_field_cannot_remove_what_the_request_needs() {
    test(|| {
        let lines = received(
            "GET /headers HTTP/1.1\r\nHost: needed.example\r\nConnection: close, host\r\n\r\n",
        );
        assert_eq!(value(&lines, "host"), Some("needed.example"));
    });
}

#[test]
fn forwarding_fields_are_added() {
    test(|| {
        let lines = received("GET /headers HTTP/1.1\r\nHost: site.example\r\n\r\n");
        assert_eq!(value(&lines, "x-forwarded-for"), Some("127.0.0.1"));
        assert_eq!(value(&lines, "x-forwarded-proto"), Some("http"));
        assert_eq!(value(&lines, "x-forwarded-host"), Some("site.example"));
        assert_eq!(value(&lines, "forwarded"), None);
        assert_eq!(value(&lines, "x-real-ip"), None);
        assert_eq!(value(&lines, "host"), Some("site.example"));
    });
}

/// All values of a field that the origin received, as one list.
fn values(lines: &[String], name: &str) -> String {
    let named = lines.iter().filter_map(|line| line.split_once(':'));
    let named = named.filter(|(key, _)| key.eq_ignore_ascii_case(name));
    let values: Vec<_> = named.map(|(_, value)| value.trim()).collect();
    values.join(", ")
}

/// nginx and IIS answer a request with `Via` uncompressed.
#[test]
fn via_passes_as_it_is_unless_it_is_asked_for() {
    test(|| {
        let request = "GET /headers HTTP/1.0\r\nHost: a\r\nVia: 1.1 earlier\r\n\r\n";
        assert_eq!(values(&received(request), "via"), "1.1 earlier");
        let without = received("GET /headers HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(value(&without, "via"), None);
        let (_origin, proxy) = Site {
            upstream: "via = true",
            ..Site::default()
        }
        .with_origin();
        let text = proxy.client().ask(request).unwrap().text();
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        assert_eq!(values(&lines, "via"), "1.1 earlier, 1.0 evenkeel");
    });
}

#[test]
fn a_request_that_comes_back_is_refused() {
    test(|| {
        // A chain of two processes; the second one leads back to the first.
        let dir = TempDir::new().unwrap();
        let path = |name| format!("unix:{}", dir.join(name).display());
        let (first, second) = (path("first.sock"), path("second.sock"));
        let between = |bind: &str, endpoint: &str| {
            let site = Site {
                bind,
                ..Site::default()
            };
            site.start(&[endpoint.to_owned()])
        };
        let (one, other) = (between(&first, &second), between(&second, &first));
        let mut client = RawClient::connect_unix(dir.join("first.sock")).unwrap();
        let response = client.get("/").unwrap();
        assert_refused(&response, words::LOOP);
        // The process that got it back reports the loop; the other one got its answer.
        assert_logged(&one, words::LOOP);
        until("all are logged", || {
            (one.access_log().len(), other.access_log().len()) == (2, 1)
        });
        assert_eq!(other.access_log_json()[0]["status"], 508);
    });
}

#[test]
fn several_proxies_in_a_row_are_no_loop() {
    test(|| {
        let (_origin, inner) = site();
        let outer = Site::default().start(&[inner.address("web").to_owned()]);
        let request = "GET /headers HTTP/1.1\r\nHost: a\r\nCDN-Loop: a;v=1, b\r\n\
            cdn-loop: evenkeel-aaaaaaaaa\r\nConnection: cdn-loop\r\n\r\n";
        let response = outer.client().ask(request).unwrap();
        assert_eq!(response.status, 200, "{response:?}");
        let lines: Vec<_> = response.text().lines().map(str::to_owned).collect();
        let names = values(&lines, "cdn-loop");
        let names: Vec<_> = names.split(", ").collect();
        assert_eq!(names[..3], ["a;v=1", "b", "evenkeel-aaaaaaaaa"]);
        assert_eq!(names.len(), 5, "{names:?}");
        assert_ne!(names[3], names[4]);
    });
}

#[test]
fn forged_forwarding_fields_of_strangers_are_not_believed() {
    test(|| {
        let lines = received(
            "GET /headers HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 6.6.6.6\r\n\
             X-Forwarded-Proto: https\r\nForwarded: for=6.6.6.6\r\n\r\n",
        );
        let text = lines.join("\n");
        assert!(!text.contains("6.6.6.6"), "{text}");
        assert_eq!(value(&lines, "x-forwarded-proto"), Some("http"));
    });
}

#[test]
fn an_absolute_target_names_the_host() {
    test(|| {
        let lines =
            received("GET http://target.example/headers HTTP/1.1\r\nHost: target.example\r\n\r\n");
        assert_eq!(value(&lines, "host"), Some("target.example"));
        assert!(lines[0].contains("/headers"), "{:?}", lines[0]);
    });
}

#[test]
fn response_fields_keep_order_and_case_and_lose_their_hop() {
    test(|| {
        let origin = RawOrigin::answering(
            "HTTP/1.1 200 Quite Fine\r\nX-One: 1\r\nset-COOKIE: a=b\r\nX-Two: 2\r\nSet-Cookie: c=d\r\n\
             Connection: X-Private, close\r\nKeep-Alive: timeout=5\r\nX-Private: secret\r\n\
             Content-Length: 2\r\n\r\nok",
        )
        .unwrap();
        let proxy = Site::default().start(&[origin.address.to_string()]);
        let mut client = proxy.client();
        let response = client.get("/").unwrap();
        let names: Vec<&str> = response
            .fields
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| name.starts_with("X-") || name.eq_ignore_ascii_case("set-cookie"))
            .collect();
        assert_eq!(names, ["X-One", "set-COOKIE", "X-Two", "Set-Cookie"]);
        assert!(
            response.head.starts_with("HTTP/1.1 200 Quite Fine\r\n"),
            "{}",
            response.head
        );
        assert_eq!(response.field("keep-alive"), None);
        // The origin closes its connection; that is no business of the client.
        assert_ne!(response.field("connection"), Some("close"));
        assert_eq!(client.get("/").unwrap().status, 200);
    });
}

#[test]
fn bytes_above_ascii_pass_in_values() {
    test(|| {
        let (_origin, proxy) = site();
        let request = b"GET /headers HTTP/1.1\r\nHost: a\r\nX-Name: caf\xc3\xa9 \xe9\r\n\r\n";
        let response = proxy.client().ask(request).unwrap();
        let needle = b"caf\xc3\xa9 \xe9";
        assert!(
            response
                .body
                .windows(needle.len())
                .any(|bytes| bytes == needle)
        );
    });
}
