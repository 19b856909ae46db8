//! Routes with `allow` and `deny`: which clients are served, by their addresses.

use std::fs;
use std::process::Command;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawClient, RawOrigin, Response, replace_file};

use crate::setup::{assert_logged, assert_refused, program, test};
use crate::words;

/// A configuration with these routes before an endpoint. The client is whom
/// `X-Forwarded-For` names.
fn config(routes: &str, endpoint: &str) -> String {
    format!(
        "[server]\nworkers = 1\n\n\
         [access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\n\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\ntrusted_proxies = [\"127.0.0.1\"]\n\n\
         [[listener]]\nname = \"local\"\nbind = \"unix:$DIR/web.sock\"\n\n\
         [[listener]]\nname = \"tcp\"\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n\n\
         {routes}\n\n[upstream.app]\nendpoints = [\"{endpoint}\"]\n"
    )
}

/// An origin that answers with the target that it was asked for.
fn origin() -> RawOrigin {
    RawOrigin::start(|_, mut stream| {
        while let Ok(head) = stream.read_head() {
            let target = head.split(' ').nth(1).unwrap();
            let len = target.len();
            let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{target}");
            stream.send(response).unwrap();
        }
    })
    .unwrap()
}

fn start(routes: &str) -> (RawOrigin, Proxy) {
    let origin = origin();
    let proxy = Proxy::start(program(), &config(routes, &origin.address.to_string())).unwrap();
    (origin, proxy)
}

/// Asks for a path as this client.
fn ask(client: &mut RawClient, from: &str, path: &str) -> Response {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: {from}\r\n\r\n");
    client.ask(request).unwrap()
}

const OFFICE: &str = r#"
[[route]]
name = "office"
match = { listener = ["web", "local"], path = "/office/*" }
upstream = "app"
allow = ["10.0.0.0/8", "2001:db8::/32", "127.0.0.1"]
deny = "10.9.0.0/16"
[[route]]
name = "not-them"
match = { path = "/open/*" }
answer = { body = "open" }
deny = ["192.0.2.0/24"]
"#;

#[test]
fn only_those_in_allow_and_not_in_deny_are_served() {
    test(|| {
        let (_origin, proxy) = start(OFFICE);
        let mut client = proxy.client();
        for (from, path, is_served) in [
            ("10.1.2.3", "/office/a", true),
            ("::ffff:10.1.2.3", "/office/a", true),
            ("[2001:db8::7]:80", "/office/a", true),
            ("192.0.2.1", "/office/a", false),
            ("2001:db9::7", "/office/a", false),
            ("10.9.0.1", "/office/a", false),
            ("192.0.2.1", "/open/a", false),
            ("192.0.3.1", "/open/a", true),
            // The address before a trusted proxy counts, not the one that the client claims.
            ("10.1.2.3, 192.0.3.1", "/office/a", false),
        ] {
            let response = ask(&mut client, from, path);
            if is_served {
                assert_eq!(response.status, 200, "{from} {path} {response:?}");
            } else {
                assert_refused(&response, words::DENIED);
            }
        }
        assert_logged(&proxy, words::DENIED);
        // The body of a request that is refused is read, and the connection goes on.
        let post = "POST /office/a HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 192.0.2.1\r\nContent-Length: 3\r\n\r\nabc";
        assert_refused(&client.ask(post).unwrap(), words::DENIED);
        assert_eq!(
            ask(&mut client, "10.1.2.3", "/office/b").text(),
            "/office/b"
        );
    });
}

#[test]
fn a_client_on_a_unix_socket_is_of_this_machine() {
    test(|| {
        let (_origin, proxy) = start(OFFICE);
        let mut client = RawClient::connect_unix(proxy.path("web.sock")).unwrap();
        assert_eq!(client.get("/office/a").unwrap().text(), "/office/a");
    });
}

#[test]
fn a_file_is_read_again_when_it_changes() {
    const ROUTE: &str = r#"
[[route]]
match = { listener = "web" }
upstream = "app"
deny = { file = "$DIR/blocked.txt" }
"#;
    test(|| {
        let origin = origin();
        let text = config(ROUTE, &origin.address.to_string());
        let dir = evenkeel_testkit::TempDir::new().unwrap();
        let blocked = dir.join("blocked.txt");
        fs::write(&blocked, "192.0.2.1\n").unwrap();
        let text = text.replace("$DIR/blocked.txt", blocked.to_str().unwrap());
        let proxy = Proxy::start(program(), &text).unwrap();
        let mut client = proxy.client();
        assert_refused(&ask(&mut client, "192.0.2.1", "/a"), words::DENIED);
        assert_eq!(ask(&mut client, "192.0.2.2", "/a").status, 200);
        replace_file(&blocked, "192.0.2.2\n");
        until("the file counts", || {
            ask(&mut client, "192.0.2.1", "/a").status == 200
        });
        assert_refused(&ask(&mut client, "192.0.2.2", "/a"), words::DENIED);
        replace_file(&blocked, "nonsense\n");
        until("the mistake is told", || {
            proxy.stderr().contains("nonsense")
        });
        assert_refused(&ask(&mut client, "192.0.2.2", "/a"), words::DENIED);
    });
}

/// A rule must see the path that the endpoint gets, however it is written.
#[test]
fn what_is_allowed_is_what_is_forwarded() {
    const ROUTES: &str = r#"
[[route]]
match = { listener = "web", path = ["/admin", "/admin/*"] }
upstream = "app"
allow = "10.0.0.0/8"
[[route]]
match = { listener = "web", path = "/pub/*" }
upstream = "app"
strip_prefix = "/pub"
[[route]]
match = { listener = "web" }
upstream = "app"
"#;
    test(|| {
        let (_origin, proxy) = start(ROUTES);
        let mut client = proxy.client();
        for path in [
            "/admin",
            "/admin/x",
            "//admin/x",
            "/admin//x",
            "/./admin/x",
            "/%61dmin/x",
            "/%2e/admin/x",
            "/x/../admin/x",
            "/x/%2e%2e/admin/x",
            "/%2e%2e/admin/x",
            "/x/..;/admin/x",
            "/x/..;a=b/admin/x",
            "/;a/admin/x",
            "/admin;a=b/x",
            "/admin%2fx",
            "/admin%2Fx",
            "/x/..%2fadmin/x",
            "/%2fadmin/x",
            "/\\admin/x",
            "/x\\..\\admin\\x",
            "/%5cadmin/x",
            "/pub/../admin/x",
            "/pub/..;/admin/x",
            "/pub/%2e%2e/admin/x",
            "/pub/..%2fadmin/x",
        ] {
            let response = ask(&mut client, "192.0.2.1", path);
            let text = response.text();
            let is_refused = match response.status {
                403 => text.contains("denied"),
                400 => text.contains("ambiguous-path"),
                // It went to an endpoint, but no server reads it as the protected path.
                200 => !text.contains("admin"),
                _ => false,
            };
            assert!(is_refused, "{path}: {response:?}");
        }
        // An allowed path is sent on as written, or in normal form.
        for path in ["/admin/x", "/%61dmin/x", "/admin/a%20b"] {
            let response = ask(&mut client, "10.1.2.3", path);
            assert_eq!((response.status, response.text()), (200, path.into()));
        }
    });
}

#[test]
fn connections_of_tcp_are_closed() {
    const ROUTE: &str = r#"
[[route]]
match = { listener = "tcp" }
upstream = "app"
deny = "127.0.0.0/8"
"#;
    test(|| {
        let (_origin, proxy) = start(ROUTE);
        let mut client = RawClient::connect(proxy.socket_addr("tcp")).unwrap();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").ok();
        assert!(client.is_closed());
        assert_logged(&proxy, words::DENIED);
    });
}

#[test]
fn explain_says_who_is_served() {
    test(|| {
        let (_origin, proxy) = start(OFFICE);
        for (client, expected) in [
            (
                "10.1.2.3",
                "access: allowed, because it is in `allow`, and not in `deny`\n  allow: \
                 10.0.0.0/8, 2001:db8::/32, 127.0.0.1\n  deny: 10.9.0.0/16\n",
            ),
            ("10.9.1.1", "access: denied, because it is in `deny`\n"),
            (
                "192.0.2.1",
                "access: denied, because it is not in `allow`\n",
            ),
            ("192.0.2.1", "403 denied"),
        ] {
            let mut explain = Command::new(program());
            explain.args(["explain", "--client", client, "--config"]);
            explain.arg(proxy.path("evenkeel.toml"));
            let output = explain
                .args(["GET", &proxy.url("/office/a")])
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.contains(expected), "{expected}: {text}");
        }
    });
}
