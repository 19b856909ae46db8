//! The edits of requests and responses by a route.

use std::process::Command;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, RawOrigin, Response, TempDir};

use serde_json::Value;

use crate::setup::{assert_refused, origin, program, test};
use crate::words;

/// A program with these routes before an ordinary origin.
fn start(routes: &str) -> (OriginHandle, Proxy) {
    let origin = origin();
    let proxy = start_before(&origin.address, routes);
    (origin, proxy)
}

/// The same before the origin of this address.
fn start_before(origin: &dyn std::fmt::Display, routes: &str) -> Proxy {
    let text = format!(
        "[server]\nworkers = 1\n\n[access_log]\npath = \"$DIR/access.log\"\n\
         template = \"{{target}} {{end}}\"\n\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\nrequest_id = \"new\"\n\n{routes}\n\n\
         [upstream.app]\nendpoints = [\"{}\"]\n",
        origin
    );
    Proxy::start(program(), &text).unwrap()
}

/// The lines of the head that the origin received, from the text of its response.
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
            // An end of line in a value is dropped.
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
        // A request without the value has no such field.
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
        // The log has the original request.
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
fn an_endpoint_does_not_undo_what_a_route_sets() {
    const ROUTE: &str = r#"
[[route]]
upstream = "app"
sticky = "node"
response_headers = { set = { X-Frame-Options = "DENY" }, remove = ["X-Inner"] }
"#;
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            let long = "b".repeat(3000);
            while stream.read_head().is_ok() {
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nConnection: X-Frame-Options, Set-Cookie, X-Own\r\n\
                     X-Frame-Options: ALLOW\r\nX-Own: a\r\nX-Inner: {long}\r\n\
                     Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Inner: a\r\n\
                     x-frame-options: ALLOW\r\nX-Sum: 1\r\n\r\n"
                );
                if stream.send(answer).is_err() {
                    return;
                }
            }
        })
        .unwrap();
        let proxy = start_before(&origin.address, ROUTE);
        let mut client = proxy.client();
        for _ in 0..3 {
            let response = client.get("/").unwrap();
            assert_eq!(response.field("x-frame-options"), Some("DENY"));
            assert_eq!(response.field("x-own"), None);
            assert_eq!(response.field("x-inner"), None);
            let cookie = response.field("set-cookie").unwrap();
            assert!(cookie.starts_with("node="), "{cookie}");
            assert_eq!((response.text(), &*response.trailers), ("hi".into(), ""));
        }
    });
}

#[test]
fn trailers_do_not_stand_in_for_fields_that_are_set() {
    test(|| {
        let origin = RawOrigin::start(|_, mut stream| {
            let head = stream.read_head().unwrap();
            let mut request = head.into_bytes();
            let is_whole = |request: &[u8]| {
                let text = String::from_utf8_lossy(request);
                text.contains("\r\n0\r\n") && text.ends_with("\r\n\r\n")
            };
            while !is_whole(&request) {
                request.extend(stream.read_len(1).unwrap());
            }
            let len = request.len();
            // Said, as a request is not sent again that meets a closed connection.
            let head =
                format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n");
            let _ = stream.send([head.as_bytes(), &request].concat());
        })
        .unwrap();
        for (edits, has_trailers) in [
            ("request_headers = { set = { X-User = \"kim\" } }", false),
            ("request_headers = { add = { X-More = \"1\" } }", true),
        ] {
            let route = format!("[[route]]\nupstream = \"app\"\n{edits}\n");
            let proxy = start_before(&origin.address, &route);
            let mut client = proxy.client();
            let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
            client.send(format!("{head}2\r\nhi\r\n")).unwrap();
            client
                .send("0\r\nX-User: root\r\nX-Sum: 1\r\n\r\n")
                .unwrap();
            let response = client.read_response("POST").unwrap();
            let text = response.text();
            assert_eq!(text.contains("X-User: root"), has_trailers, "{text}");
            let all_at_once = format!("{head}2\r\nhi\r\n0\r\nX-User: root\r\nX-Sum: 1\r\n\r\n");
            let text = proxy.client().ask(all_at_once).unwrap().text();
            assert_eq!(text.contains("X-User: root"), has_trailers, "{text}");
        }
    });
}

#[test]
fn a_request_goes_on_with_a_host() {
    const ROUTE: &str = r#"
[[route]]
upstream = "app"
request_headers = { set = { Host = "{header:x-host}" } }
"#;
    test(|| {
        let (_origin, proxy) = start(ROUTE);
        for (sent, expected) in [
            ("b.test:81", "b.test:81"),
            ("", "a.test"),
            ("a b", "a.test"),
            ("a,b", "a.test"),
            ("a/b", "a.test"),
            ("b:x", "a.test"),
        ] {
            let request =
                format!("GET /headers HTTP/1.1\r\nHost: a.test\r\nX-Host: {sent}\r\n\r\n");
            let response = proxy.client().ask(request).unwrap();
            assert_eq!(values(&lines(&response), "host"), [expected], "{sent}");
        }
    });
}

#[test]
fn groups_of_a_path_are_variables() {
    const ROUTES: &str = r#"
[[route]]
match = { path = [{ regex = "^/u/(?<id>[^/]+)/(.*)$" }, { regex = "^/user-(?<id>[0-9]+)$" }] }
rewrite = "/by-id/{capture:id}{path}?rest={capture:2}"
request_headers = { set = { X-Id = "{capture:id}" } }
response_headers = { set = { X-User = "{capture:id}" } }
upstream = "app"

[[route]]
match = { path = { regex = "^/old/([a-z]+)/(headers)$" } }
strip_prefix = "/old"
rewrite = "/{capture:2}"
request_headers = { set = { X-Part = "{capture:1}" } }
upstream = "app"
"#;
    test(|| {
        let (_origin, proxy) = start(ROUTES);
        for (path, line) in [
            ("/u/kim/a", "GET /by-id/kim/u/kim/a?rest=a HTTP/1.1"),
            ("/u/%6bim/", "GET /by-id/kim/u/kim/?rest= HTTP/1.1"),
            ("/user-12?q", "GET /by-id/12/user-12?rest= HTTP/1.1"),
            (
                "/u/a%20b/c&d=e+f",
                "GET /by-id/a%20b/u/a%20b/c&d=e+f?rest=c%26d%3De%2Bf HTTP/1.1",
            ),
        ] {
            assert_eq!(explained(&proxy, path), line);
        }
        let mut client = proxy.client();
        let response = client.get("/u/kim/a").unwrap();
        assert_eq!(response.field("x-user"), Some("kim"));
        let response = client.get("/old/part/headers").unwrap();
        assert_eq!(values(&lines(&response), "x-part"), ["part"]);
        // The route stands for each reading of a path, and the group is another in each.
        let response = client.get("/u/a%2fb/c").unwrap();
        assert_refused(&response, words::AMBIGUOUS_PATH);
    });
}

#[test]
fn values_are_encoded_where_they_stand() {
    const ROUTE: &str = "[[route]]\nupstream = \"app\"\nrewrite = \"/a-{query:b}?c={query:b}\"\n";
    test(|| {
        let (_origin, proxy) = start(ROUTE);
        for (sent, sent_on) in [
            ("x", "/a-x?c=x"),
            ("C%26A=:%2B", "/a-C&A=:+?c=C%26A%3D%3A%2B"),
            ("a%20b", "/a-a%20b?c=a%20b"),
        ] {
            let line = explained(&proxy, &format!("/x?b={sent}"));
            assert_eq!(line, format!("GET {sent_on} HTTP/1.1"));
        }
        for sent in ["a%2Fb", "a%3Bb", "..%2F"] {
            let response = proxy.client().get(&format!("/x?b={sent}")).unwrap();
            assert_refused(&response, words::AMBIGUOUS_PATH);
        }
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
            "is not known until there is a response",
        ),
        (
            "request_headers = { set = { X = \"{clientip}\" } }",
            "did you mean `{client_ip}`?",
        ),
        (
            "cache = true\nrewrite = \"/{cookie:lang}{path}\"",
            "`{cookie:lang}` is not part of the URL",
        ),
        (
            "cache = true\nrequest_headers = { set = { Authorization = \"{cookie:token}\" } }",
            "`Authorization` differs for each client",
        ),
        (
            "request_headers = { append = { Content_Length = \"0\" } }",
            "`content-length` can't be changed",
        ),
        (
            "rewrite = \"/{capture:id}\"",
            "no regular expression of this route's path has a group `id`",
        ),
        (
            "match = { path = { regex = \"^/(a)\" } }\nlimit = { key = \"{capture:2}\", rate = \"1/s\" }",
            "has a group `2`",
        ),
        ("edits = \"nobody\"", "there are no edits named `nobody`"),
        ("rewrite = \"x\"", "a path begins with `/`"),
        ("rewrite = \"/x{target}\"", "the query after `?`"),
        ("rewrite = \"/a/../b\"", "leave out `//`"),
        ("rewrite = \"/a$path\"", "write it as {path}"),
        (
            "request_headers = { add = { host = \"a\" } }",
            "`Host` can't be added",
        ),
        (
            "request_headers = { append = { Host = \"a\" } }",
            "`Host` can't be appended to",
        ),
        (
            "request_headers = { remove = [\"host\"] }",
            "`Host` can't be removed",
        ),
        (
            "response_headers = { append = { set-cookie = \"a=b\" } }",
            "several cookies can't share one `Set-Cookie` header",
        ),
        (
            "response_headers = { set = { X-A = \"1\", x-a = \"2\" } }",
            "`x-a` is changed twice",
        ),
        (
            "response_headers = { set = { \"X-*\" = \"1\" } }",
            "`X-*` is not the name of one header",
        ),
        (
            "response_headers = { remove = [\"*-A\"] }",
            "`*-A` is not the name of one header",
        ),
        (
            "sticky = { cookie = \"node\", keys = [] }",
            "the list is empty",
        ),
        (
            "sticky = { cookie = \"node\", max_age = \"500ms\" }",
            "a browser counts in whole seconds",
        ),
        (
            "response_headers = { remove = [\"a b\"] }",
            "is not a valid header name",
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
