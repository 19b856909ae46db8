//! Rules hold: a path of a rule is not reached by another spelling, and `explain` agrees.

use std::process::Command;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, RawOrigin, TempDir};
use serde_json::Value;

use crate::explain::request;
use crate::setup::{assert_refused, figures, origin, program, test};
use crate::words;

/// A program with these routes before an ordinary origin.
fn start(routes: &str) -> (OriginHandle, Proxy) {
    let origin = origin();
    let text = config(routes, &origin.address.to_string());
    let proxy = Proxy::start(program(), &text).unwrap();
    (origin, proxy)
}

fn config(routes: &str, endpoint: &str) -> String {
    format!(
        "[server]\nworkers = 1\n\n[access_log]\npath = \"$DIR/access.log\"\n\
         template = \"{{path}} {{end}} {{header:X-User}}\"\n\n\
         [status]\nbind = \"127.0.0.1:0\"\n\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\n{routes}\n\n\
         [upstream.app]\nendpoints = [\"{endpoint}\"]\n"
    )
}

/// The output of `explain` for a request, from the configuration alone.
#[track_caller]
fn explain(routes: &str, args: &[&str]) -> Value {
    let dir = TempDir::new().unwrap();
    let file = dir.join("evenkeel.toml");
    let text = config(routes, "10.0.0.1:80").replace("$DIR", &dir.path().display().to_string());
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(program());
    command.args(["explain", "--json", "--config"]).arg(&file);
    let output = command.args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The name of the route that is explained to match, if one does.
fn route(explanation: &Value) -> Option<&str> {
    let routes = explanation["routes"].as_array().unwrap();
    let matching = routes.iter().find(|it| it["matches"] == true)?;
    matching["name"].as_str()
}

#[test]
fn a_url_without_a_path_has_the_root_as_its_path() {
    const ROUTES: &str = r#"
[[route]]
name = "root"
match = { host = ["root.test", "files.test"], path = "/" }
answer = { status = 403, body = "root" }
[[route]]
name = "below"
match = { host = "below.test", path = "/*" }
answer = { status = 403, body = "below" }
[[route]]
name = "moved"
match = { host = "moved.test" }
redirect = "https://new.test$path$query"
[[route]]
name = "app"
upstream = "app"
"#;
    test(|| {
        let (_origin, proxy) = start(ROUTES);
        let mut client = proxy.client();
        for (line, status, text) in [
            ("GET http://root.test", 403, "root"),
            ("GET http://root.test?secret=1", 403, "root"),
            ("GET http://root.test?", 403, "root"),
            ("GET http://root.test/", 403, "root"),
            ("GET http://below.test?secret=1", 403, "below"),
            ("POST http://below.test", 403, "below"),
            // RFC 9112 §3.2.4: this asks about the server, as `OPTIONS *` does.
            ("OPTIONS http://below.test?", 403, "below"),
            ("OPTIONS http://below.test", 404, "no such page"),
            ("OPTIONS *", 404, "no such page"),
        ] {
            let request = format!("{line} HTTP/1.1\r\nHost: below.test\r\n\r\n");
            let response = client.ask(&request).unwrap();
            assert_eq!(response.status, status, "{line}: {response:?}");
            assert!(response.text().contains(text), "{line}: {response:?}");
        }
        for (line, location) in [
            ("GET http://moved.test?a=b", "https://new.test/?a=b"),
            ("GET http://moved.test", "https://new.test/"),
        ] {
            let response = client.ask(format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n"));
            let response = response.unwrap();
            assert_eq!(response.field("location"), Some(location), "{line}");
        }
        until("the paths are logged", || {
            let log = proxy.access_log();
            let paths = log.iter().map(|line| line.split(' ').next().unwrap());
            paths.collect::<String>() == "///////**//"
        });
        for (args, expected) in [
            (["GET", "http://root.test?secret=1"], "root"),
            (["GET", "http://root.test"], "root"),
            (["GET", "below.test?secret=1"], "below"),
            (["OPTIONS", "http://below.test"], "app"),
        ] {
            let explanation = explain(ROUTES, &args);
            assert_eq!(
                route(&explanation),
                Some(expected),
                "{args:?}: {explanation}"
            );
            let response = client.ask(request(args[0], args[1], &[])).unwrap();
            let is_app = response.text().contains("no such page");
            assert_eq!(is_app, expected == "app", "{args:?}: {response:?}");
        }
    });
}

const PATHS: &str = r#"
[[route]]
name = "admin"
match = { path = ["/admin", "/admin/*"], header = { X-Key = false } }
answer = { status = 403, body = "admin" }
[[route]]
name = "reserved"
match = { path = ["/@a/*", "/a b/*", "/it's,(x)+$/*", "/b\\*", "/{id}[0]=1&2!", "/café", "/a%2Ab"] }
answer = { status = 403, body = "reserved" }
[[route]]
name = "posts"
match = { path = "/posts/*", method = "POST" }
answer = { status = 405, body = "posts" }
[[route]]
name = "scripts"
match = { path = ["**.php", "**.php;**"] }
answer = { status = 404, body = "scripts" }
[[route]]
name = "both"
match = { path = ["/both/a%2fb", "/both/a/b"] }
answer = { body = "both" }
[[route]]
name = "app"
answer = { body = "app" }
"#;

#[test]
fn a_path_takes_a_route_only_if_every_reading_of_it_does() {
    const AMBIGUOUS: Result<&str, words::Reason> = Err(words::AMBIGUOUS_PATH);
    test(|| {
        let (_origin, proxy) = start(PATHS);
        let mut client = proxy.client();
        let long = |text: &str| format!("/{}", text.repeat(1000));
        let mut refused = 0;
        for (target, fields, expected) in [
            ("/admin", &[][..], Ok("admin")),
            ("/%61dmin/./x", &[], Ok("admin")),
            ("/adm%69n/%78", &[], Ok("admin")),
            ("/admin/a%2fb", &[], Ok("admin")),
            ("/admin/a;b", &[], Ok("admin")),
            ("/admin%2fx", &[], AMBIGUOUS),
            ("/admin%2Fx", &[], AMBIGUOUS),
            ("/%2fadmin/x", &[], AMBIGUOUS),
            ("/.%2fadmin/x", &[], AMBIGUOUS),
            ("/x/..%2fadmin/x", &[], AMBIGUOUS),
            ("/x%2f..%2fadmin/x", &[], AMBIGUOUS),
            ("/x/%2e%2e%2fadmin/x", &[], AMBIGUOUS),
            ("/admin/..%2fx", &[], AMBIGUOUS),
            ("/x\\..\\admin/x", &[], AMBIGUOUS),
            ("/x/..%5cadmin/x", &[], AMBIGUOUS),
            ("/a%5Cb%2F..%2Fadmin/x", &[], AMBIGUOUS),
            ("/a%2fb\\..\\c%2f..%2fadmin/x", &[], AMBIGUOUS),
            ("/admin;x", &[], AMBIGUOUS),
            ("/admin;x/y", &[], AMBIGUOUS),
            ("/x/..;/admin/x", &[], AMBIGUOUS),
            ("/x/..;a=b%2fadmin/x", &[], AMBIGUOUS),
            ("/admin;x%2f..", &[], AMBIGUOUS),
            ("/admin%3bx", &[], AMBIGUOUS),
            ("/x/..%3B/admin/x", &[], AMBIGUOUS),
            // A rule on a character is one on its encoding, and the other way.
            ("/@a/x", &[], Ok("reserved")),
            ("/%40a/x", &[], Ok("reserved")),
            ("/a%20b/x", &[], Ok("reserved")),
            ("/it's,(x)+$/x", &[], Ok("reserved")),
            ("/it%27s%2C%28x%29%2b%24/x", &[], Ok("reserved")),
            ("/%7Bid%7d%5B0%5d%3d1%262%21", &[], Ok("reserved")),
            ("/caf%C3%A9", &[], Ok("reserved")),
            ("/caf%c3%a9", &[], Ok("reserved")),
            ("/a*b", &[], Ok("reserved")),
            ("/a%2ab", &[], Ok("reserved")),
            ("/axb", &[], Ok("app")),
            ("/a%2A", &[], Ok("app")),
            ("/b*", &[], Ok("reserved")),
            ("/b%2A", &[], Ok("reserved")),
            ("/bx", &[], Ok("app")),
            // Slashes are merged before dot segments are resolved, after, or
            // never.
            ("/admin//../x", &[], AMBIGUOUS),
            ("/admin/.//../x", &[], AMBIGUOUS),
            ("/x//../admin/x", &[], AMBIGUOUS),
            ("/admin//x", &[], Ok("admin")),
            // A server may take dot segments for names.
            ("/x/../admin/x", &[], AMBIGUOUS),
            ("/./admin/x", &[], AMBIGUOUS),
            ("/admin/x/../../pub", &[], AMBIGUOUS),
            ("/admin/..", &[], AMBIGUOUS),
            ("/admin/%2e%2e/x", &[], AMBIGUOUS),
            ("/./admin/%2E%2e/x", &[], AMBIGUOUS),
            ("/admin/a/../b", &[], Ok("admin")),
            ("/admin/.", &[], Ok("admin")),
            // A URL parser takes a host off.
            ("//admin/x", &[], AMBIGUOUS),
            ("//h/admin/x", &[], AMBIGUOUS),
            ("///h/admin/x", &[], AMBIGUOUS),
            ("/\\h/admin/x", &[], AMBIGUOUS),
            ("/\\/h/admin/x", &[], AMBIGUOUS),
            ("//h\\admin/x", &[], AMBIGUOUS),
            ("/%2fh/admin", &[], AMBIGUOUS),
            ("/x/..//h/admin/x", &[], AMBIGUOUS),
            ("//", &[], Ok("app")),
            ("//h/x", &[], Ok("app")),
            ("/a/./b", &[], Ok("app")),
            ("/a/../b//c", &[], Ok("app")),
            ("/http://a.test/b", &[], Ok("app")),
            ("/.well-known/x", &[], Ok("app")),
            // Every other condition of a rule counts too.
            ("/admin%2fx", &["X-Key: 1"], Ok("app")),
            ("/posts%2fx", &[], Ok("app")),
            ("/package/@scope%2fname", &[], Ok("app")),
            ("/api/projects/group%2Fproject/issues", &[], Ok("app")),
            ("/a;jsessionid=1/b;c", &[], Ok("app")),
            ("/x/..%2fy", &[], Ok("app")),
            ("/a\\b", &[], Ok("app")),
            // It would be protected if decoded twice, which no server does.
            ("/x/..%252fadmin/x", &[], Ok("app")),
            ("/a.php;x=y", &[], Ok("scripts")),
            ("/both/a%2Fb", &[], Ok("both")),
            (&long("a%2f"), &[], Ok("app")),
            (&long("a;"), &[], Ok("app")),
            (&long("%2f.."), &[], Ok("app")),
            (&long("a/..;/"), &[], Ok("app")),
            ("/a%00", &[], Err(words::BAD_PATH)),
            ("/admin%00/x", &[], Err(words::BAD_PATH)),
            ("/x?a=%00;%2f", &[], Ok("app")),
        ] {
            let url = format!("http://a.test{target}");
            let response = client.ask(request("GET", &url, fields)).unwrap();
            let fields = fields.iter().flat_map(|it| ["-H", *it]);
            let args: Vec<_> = ["GET", &url].into_iter().chain(fields).collect();
            let explanation = explain(PATHS, &args);
            match expected {
                Ok(name) => {
                    assert_eq!(response.text(), name, "{target}");
                    assert_eq!(route(&explanation), Some(name), "{target}: {explanation}");
                    assert_eq!(explanation["refused"], Value::Null, "{target}");
                }
                Err(reason) => {
                    refused += u64::from(reason.word == words::AMBIGUOUS_PATH.word);
                    assert_refused(&response, reason);
                    assert_eq!(explanation["refused"]["word"], reason.word, "{target}");
                }
            }
        }
        until("the word is logged", || {
            let log = proxy.access_log();
            log.iter().any(|line| line == "/admin;x ambiguous-path -")
        });
        let count = || figures(&proxy)["listeners"][0]["ends"]["ambiguous-path"].clone();
        until("they are counted", || count() == refused);
    });
}

#[test]
fn a_path_that_no_rule_looks_at_is_passed_on_as_it_is() {
    test(|| {
        // An origin that answers with the target it was asked for.
        let origin = RawOrigin::start(|_, mut stream| {
            while let Ok(head) = stream.read_head() {
                let target = head.split(' ').nth(1).unwrap();
                let len = target.len();
                let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{target}");
                stream.send(response).unwrap();
            }
        })
        .unwrap();
        let routes = "[[route]]\nupstream = \"app\"\n";
        let text = config(routes, &origin.address.to_string());
        let proxy = Proxy::start(program(), &text).unwrap();
        let mut client = proxy.client();
        for target in [
            "/x/..%2f..;a\\b%5c../c",
            "/a/../b//./c%7e",
            "/a%2fb",
            "/a\\..\\b",
            "/..;/c",
            "//h/./../c//..",
        ] {
            let response = client.get(target).unwrap();
            assert_eq!(response.text(), target);
        }
        assert_refused(&client.get("/a%00").unwrap(), words::BAD_PATH);
    });
}

#[test]
fn no_endpoint_sees_what_a_rule_refuses() {
    const ROUTES: &str = r#"
[[route]]
match = { path = ["/admin", "/admin/*", "/@a/*"] }
answer = { status = 403 }
[[route]]
upstream = "app"
"#;
    test(|| {
        let (origin, proxy) = start(ROUTES);
        let mut client = proxy.client();
        for (target, reason) in [
            ("/%40a/x", None),
            ("/admin/x", None),
            ("/admin//../x", Some(words::AMBIGUOUS_PATH)),
            ("//h/admin/x", Some(words::AMBIGUOUS_PATH)),
            ("/\\h/admin/x", Some(words::AMBIGUOUS_PATH)),
            ("/admin/..", Some(words::AMBIGUOUS_PATH)),
            ("/admin/%2e%2e/x", Some(words::AMBIGUOUS_PATH)),
            ("/./admin/%2e%2e/x", Some(words::AMBIGUOUS_PATH)),
            ("/x/..%3b/admin", Some(words::AMBIGUOUS_PATH)),
        ] {
            let response = client.get(target).unwrap();
            match reason {
                Some(reason) => assert_refused(&response, reason),
                None => assert_eq!(response.status, 403, "{target}"),
            }
        }
        assert_eq!(origin.stats().requests, 0);
        for target in ["/%40b/x", "/a//b", "//a", "/a/./b", "/a/../b"] {
            assert_eq!(client.get(target).unwrap().status, 404, "{target}");
        }
        assert_eq!(origin.stats().requests, 5);
    });
}

#[test]
fn every_reading_is_explained() {
    test(|| {
        let explanation = explain(PATHS, &["GET", "http://a.test/x/..%2fadmin"]);
        let readings = serde_json::json!([
            { "path": "/x/..%2Fadmin", "route": "app" },
            { "path": "/x/../admin", "route": "app" },
            { "path": "/admin", "route": "admin" },
        ]);
        assert_eq!(explanation["readings"], readings);
        assert_eq!(explanation["action"], Value::Null);
        let explanation = explain(PATHS, &["GET", "http://a.test//h/admin"]);
        let readings = serde_json::json!([
            { "path": "/h/admin", "route": "app" },
            { "path": "//h/admin", "route": "app" },
            { "path": "/admin", "route": "admin" },
        ]);
        assert_eq!(explanation["readings"], readings);
        let explanation = explain(PATHS, &["GET", "http://a.test/admin/%2e%2e/%40b"]);
        let readings = serde_json::json!([
            { "path": "/@b", "route": "app" },
            { "path": "/admin/../@b", "route": "admin" },
        ]);
        assert_eq!(explanation["readings"], readings);
        let explanation = explain(PATHS, &["GET", "http://a.test/a%20b.c/%7Bx%7D"]);
        assert_eq!(explanation["readings"], serde_json::json!([]));
        let routes = "[[route]]\nname = \"x\"\nmatch = { path = \"/x\" }\nanswer = {}\n";
        let explanation = explain(routes, &["GET", "http://a.test/x;a"]);
        assert_eq!(explanation["readings"][0]["route"], Value::Null);
        assert_eq!(explanation["readings"][1]["route"], "x");
    });
}

const NAMES: &str = r#"
[[route]]
name = "debug"
match = { header = { X-Debug = true } }
answer = { status = 403, body = "debug" }
[[route]]
name = "role"
match = { header = { X_Role = "admin" } }
answer = { status = 403, body = "role" }
[[route]]
name = "keyless"
match = { path = "/keyed", header = { X-Key = false } }
answer = { status = 401, body = "keyless" }
[[route]]
name = "delete"
match = { method = "DELETE" }
answer = { status = 403, body = "delete" }
[[route]]
name = "get"
match = { method = "GET", path = "/keyed" }
answer = { body = "get" }
[[route]]
name = "app"
answer = { body = "app" }
"#;

#[test]
fn names_that_endpoints_take_for_one_are_one_to_rules() {
    test(|| {
        let (_origin, proxy) = start(NAMES);
        let mut client = proxy.client();
        for (method, path, fields, name, status) in [
            ("GET", "/", &["X-Debug: 1"][..], "debug", 403),
            ("GET", "/", &["x_debug: 1"], "debug", 403),
            ("GET", "/", &["X.Debug:"], "debug", 403),
            ("GET", "/", &["XDebug: 1"], "app", 200),
            ("GET", "/", &["X-Role: user", "X_Role: admin"], "role", 403),
            ("GET", "/", &["X~role: admin"], "role", 403),
            ("GET", "/", &["X-Role: user"], "app", 200),
            ("GET", "/keyed", &[], "keyless", 401),
            ("GET", "/keyed", &["X_Key: 1"], "get", 200),
            ("DELETE", "/", &[], "delete", 403),
            ("delete", "/", &[], "delete", 403),
            ("DeLeTe", "/", &[], "delete", 403),
            ("DELETED", "/", &[], "app", 200),
            ("get", "/keyed", &["X-Key: 1"], "get", 200),
        ] {
            let url = format!("http://a.test{path}");
            let response = client.ask(request(method, &url, fields)).unwrap();
            assert_eq!(response.status, status, "{method} {path} {fields:?}");
            let fields = fields.iter().flat_map(|it| ["-H", *it]);
            let args: Vec<_> = [method, &url].into_iter().chain(fields).collect();
            let explanation = explain(NAMES, &args);
            assert_eq!(route(&explanation), Some(name), "{explanation}");
        }
    });
}

const KEYED: &str = r#"
[[route]]
upstream = "keyed"
[upstream.keyed]
balance = "carp"
key = { header = "X-User" }
endpoints = ["10.0.0.1:80", "10.0.0.2:80"]
"#;

#[test]
fn a_key_and_a_log_read_a_name_as_endpoints_do() {
    test(|| {
        let keys = ["X-User: anna", "X_User: anna", "x.user: anna"].map(|field| {
            let explanation = explain(KEYED, &["GET", "http://a.test/", "-H", field]);
            explanation["action"]["key"].clone()
        });
        assert_eq!(keys[0]["found"], "anna");
        assert!(keys.iter().all(|it| *it == keys[0]), "{keys:?}");
        let (_origin, proxy) = start("[[route]]\nanswer = {}\n");
        let request = "GET / HTTP/1.1\r\nHost: a\r\nX_User: anna\r\nX-User: bob\r\n\r\n";
        assert_eq!(proxy.client().ask(request).unwrap().status, 200);
        let is_logged = || proxy.access_log() == ["/ complete anna"];
        until("the name is logged", is_logged);
    });
}
