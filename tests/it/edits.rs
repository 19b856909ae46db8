//! What a route changes of requests and responses.

use std::process::Command;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, Response, TempDir};

use serde_json::Value;

use crate::setup::{assert_refused, origin, program, test};
use crate::words;

/// A program with these routes before an ordinary origin.
fn start(routes: &str) -> (OriginHandle, Proxy) {
    let origin = origin();
    let text = format!(
        "[server]\nworkers = 1\n\n[access_log]\npath = \"$DIR/access.log\"\n\
         template = \"{{target}} {{end}}\"\n\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\nrequest_id = \"new\"\n\n{routes}\n\n\
         [upstream.app]\nendpoints = [\"{}\"]\n",
        origin.address
    );
    let proxy = Proxy::start(program(), &text).unwrap();
    (origin, proxy)
}

/// The lines of the head that the origin received, in place of the body's text.
fn lines(response: &Response) -> Vec<String> {
    assert_eq!(response.status, 200, "{response:?}");
    response.text().lines().map(str::to_owned).collect()
}

/// The values of a field among the lines of a head.
fn values<'a>(lines: &'a [String], name: &str) -> Vec<&'a str> {
    let pairs = lines.iter().filter_map(|line| line.split_once(": "));
    let named = pairs.filter(|(key, _)| key.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value).collect()
}

/// The line that an endpoint would get for a path, as `explain` says.
fn explained(proxy: &Proxy, path: &str) -> String {
    let mut explain = Command::new(program());
    explain.args(["explain", "--json", "--config"]);
    explain.arg(proxy.path("evenkeel.toml"));
    let output = explain.args(["GET", &proxy.url(path)]).output().unwrap();
    let explained: Value = serde_json::from_slice(&output.stdout).unwrap();
    explained["action"]["head"][0].as_str().unwrap().to_owned()
}

#[test]
fn fields_of_requests_are_changed() {
    const ROUTE: &str = r#"
[[route]]
name = "api"
upstream = "app"
request_headers = { remove = ["X-Debug-*", "Via"], append = { X-Chain = "b" }, add = { X-More = "2" }, set = { Host = "app.internal", X-User = "{cookie:user}", X-Client = "{client_ip}:{route}/{listener}", X-Who = "{header:user-agent} {{{query:q}}}", X-Forwarded-Proto = "https", X-Id = "{request_id}" } }
"#;
    test(|| {
        let (_origin, proxy) = start(ROUTE);
        let response = proxy.client().ask(
            "GET /headers?q=a%0d%0aX-Evil:%201 HTTP/1.1\r\nHost: a.test\r\nX-Debug-Level: 9\r\n\
             x_user: admin\r\nX-User: root\r\nX-Chain: a\r\nX-More: 1\r\nUser-Agent: t/1\r\n\
             Cookie: user=\"kim\"\r\nX-Forwarded-For: 9.9.9.9\r\n\r\n",
        );
        let lines = lines(&response.unwrap());
        for (name, expected) in [
            ("host", &["app.internal"][..]),
            ("x-user", &["kim"]),
            ("x_user", &[]),
            ("x-debug-level", &[]),
            ("x-chain", &["a, b"]),
            ("x-more", &["1", "2"]),
            ("x-client", &["127.0.0.1:api/web"]),
            // What ends a line does not get into one.
            ("x-who", &["t/1 {aX-Evil: 1}"]),
            ("x-evil", &[]),
            ("x-forwarded-proto", &["https"]),
            ("x-forwarded-for", &["127.0.0.1"]),
            ("x-forwarded-host", &["a.test"]),
        ] {
            assert_eq!(values(&lines, name), expected, "{name}: {lines:#?}");
        }
        assert_eq!(values(&lines, "x-id"), values(&lines, "x-request-id"));
        // The path goes on as it came.
        let response = proxy.client().get("/x/../%68eaders?a").unwrap();
        assert_eq!(response.status, 404, "{response:?}");
        let line = explained(&proxy, "/x/../%68eaders?a");
        assert_eq!(line, "GET /x/../%68eaders?a HTTP/1.1");
        // A client that says nothing of the kind has no such field.
        let response = proxy.client().get("/headers").unwrap();
        let lines = self::lines(&response);
        assert!(values(&lines, "x-user").is_empty(), "{lines:#?}");
        assert_eq!(values(&lines, "x-chain"), ["b"]);
    });
}

#[test]
fn the_path_that_is_sent_on_is_another() {
    const ROUTES: &str = r#"
[[route]]
match = { path = ["/api", "/api/*"] }
upstream = "app"
strip_prefix = "/api/"
[[route]]
match = { path = "/old/*" }
upstream = "app"
rewrite = "/headers?from={path}"
[[route]]
match = { path = "/keep/*" }
upstream = "app"
rewrite = "/headers"
[[route]]
match = { path = "/v1/*" }
upstream = "app"
strip_prefix = "/v1"
rewrite = "/v2{path}?by={query:user}&{query}"
[[route]]
match = { path = "/user" }
upstream = "app"
rewrite = "/u/{query:name}/x"
[[route]]
upstream = "app"
strip_prefix = "/opt"
"#;
    test(|| {
        let (_origin, proxy) = start(ROUTES);
        let mut client = proxy.client();
        for (asked, sent) in [
            ("/api/headers", "/headers"),
            ("/api/headers?a=b&c", "/headers?a=b&c"),
            ("/api/headers?", "/headers?"),
            ("/%61pi/./headers", "/headers"),
            ("/old/x?q", "/headers?from=/old/x"),
            ("/keep/x?q", "/headers?q"),
            ("/v1/x?user=a+b%26", "/v2/x?by=a%20b%26&user=a+b%26"),
            ("/opt/headers", "/headers"),
            ("/headers", "/headers"),
            ("/options/headers", "/options/headers"),
        ] {
            let response = client.get(asked).unwrap();
            let line = format!("GET {sent} HTTP/1.1");
            if sent.starts_with("/headers") {
                assert_eq!(lines(&response)[0], line, "{asked}");
            }
            assert_eq!(explained(&proxy, asked), line);
        }
        for asked in [
            "/api/..%2f..%2fadmin",
            "/api/x/..;/..;/..;/y",
            "/opt/..%2fheaders",
            "//opt/headers",
            "/user?name=..",
        ] {
            let response = client.get(asked).unwrap();
            assert_refused(&response, words::AMBIGUOUS_PATH);
        }
        // The log has what was asked for.
        until("it is logged", || {
            let log = proxy.access_log();
            log.iter().any(|it| it == "/api/headers?a=b&c complete")
        });
    });
}

#[test]
fn fields_of_all_responses_are_changed() {
    const ROUTES: &str = r#"
[edits.safe]
response_headers = { set = { X-Frame-Options = "DENY", X-Which = "named" }, remove = ["Server"] }
[[route]]
match = { path = "/answer" }
edits = "safe"
answer = { body = "hello" }
[[route]]
match = { path = "/moved" }
edits = ["safe"]
redirect = "/answer"
[[route]]
match = { path = "/down" }
edits = "safe"
upstream = "down"
[[route]]
match = { path = "/file.txt" }
edits = "safe"
files = "$DIR"
[[route]]
edits = "safe"
response_headers = { set = { X-Which = "own", X-Made = "{status} {upstream} {endpoint} {attempts}" }, append = { Vary = "Origin" } }
upstream = "app"
[upstream.down]
endpoints = ["127.0.0.1:1"]
queue = { hold = false }
"#;
    test(|| {
        let (origin, proxy) = start(ROUTES);
        std::fs::write(proxy.path("file.txt"), "file").unwrap();
        let mut client = proxy.client();
        for (path, status) in [
            ("/answer", 200),
            ("/moved", 302),
            ("/down", 502),
            ("/file.txt", 200),
            ("/1000", 200),
        ] {
            let response = client.get(path).unwrap();
            assert_eq!(response.status, status, "{path}: {response:?}");
            assert_eq!(response.field("x-frame-options"), Some("DENY"), "{path}");
            assert_eq!(response.field("server"), None, "{path}");
            let which = if path == "/1000" { "own" } else { "named" };
            assert_eq!(response.field("x-which"), Some(which), "{path}");
        }
        let response = client.get("/1000").unwrap();
        let made = format!("200 app {} 1", origin.address);
        assert_eq!(response.field("x-made"), Some(made.as_str()));
        assert_eq!(response.field("vary"), Some("Origin"));
        assert_eq!(response.body.len(), 1000);
    });
}

#[test]
fn a_cache_stores_responses_as_they_came() {
    const ROUTE: &str = r#"
[[route]]
upstream = "app"
cache = { ttl = { 200 = "1m" } }
request_headers = { set = { X-Client = "{header:x-name}" } }
response_headers = { set = { X-Asked = "{header:x-name}", X-Cache = "{cache}" } }
"#;
    test(|| {
        let (origin, proxy) = start(ROUTE);
        let mut client = proxy.client();
        for (name, cache) in [("a", "miss"), ("b", "hit")] {
            let request = format!("GET /10 HTTP/1.1\r\nHost: a\r\nX-Name: {name}\r\n\r\n");
            let response = client.ask(&request).unwrap();
            assert_eq!(response.field("x-asked"), Some(name), "{response:?}");
            assert_eq!(response.field("x-cache"), Some(cache), "{response:?}");
        }
        assert_eq!(origin.stats().requests, 1);
    });
}

#[test]
fn mistakes_are_told_with_what_to_write() {
    for (route, said) in [
        (
            "request_headers = { set = { Content-Length = \"1\" } }",
            "`content-length` can't be changed",
        ),
        (
            "request_headers = { set = { X = \"{status}\" } }",
            "is not known before there is a response",
        ),
        (
            "request_headers = { set = { X = \"{clientip}\" } }",
            "did you mean `{client_ip}`?",
        ),
        (
            "cache = true\nrewrite = \"/{cookie:lang}{path}\"",
            "`{cookie:lang}` is no part of the URL",
        ),
        (
            "cache = true\nrequest_headers = { set = { Authorization = \"{cookie:token}\" } }",
            "`Authorization` would be another one for each client",
        ),
        (
            "request_headers = { append = { Content_Length = \"0\" } }",
            "`content-length` can't be changed",
        ),
        ("edits = \"nobody\"", "there are no edits named `nobody`"),
        ("rewrite = \"x\"", "a path begins with `/`"),
        (
            "response_headers = { remove = [\"a b\"] }",
            "is no name of a field",
        ),
    ] {
        let dir = TempDir::new().unwrap();
        let file = dir.join("evenkeel.toml");
        let text = format!(
            "[[listener]]\nbind = \":0\"\n[[route]]\nupstream = \"a\"\n{route}\n[upstream.a]\nendpoints = [\"10.0.0.1:80\"]\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut check = Command::new(program());
        let output = check
            .args(["check", "--config"])
            .arg(&file)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && told.contains(said),
            "{route}: {told}"
        );
    }
}
