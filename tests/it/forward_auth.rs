//! Routes with `auth.forward`: another server says who may come in.

use std::process::Command;
use std::sync::{Arc, Mutex};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawClient, RawOrigin, Response};

use crate::setup::{assert_logged, assert_refused, figures, nobody, program, test};
use crate::words;

/// An endpoint, and the heads that it got.
struct Endpoint {
    origin: RawOrigin,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Endpoint {
    /// One that answers as the head says.
    fn start(answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        let heads = Arc::new(Mutex::new(Vec::new()));
        let seen = heads.clone();
        let origin = RawOrigin::start(move |_, mut stream| {
            while let Ok(head) = stream.read_head() {
                seen.lock().unwrap().push(head.clone());
                if let Some(len) = field(&head, "content-length") {
                    stream.read_len(len.parse().unwrap()).unwrap();
                }
                match answer(&head) {
                    Some(answer) => {
                        let is_last = answer.contains("Connection: close\r\n");
                        stream.send(answer).unwrap();
                        if is_last {
                            return;
                        }
                    }
                    // It stays silent until it is left.
                    None => drop(stream.read_head()),
                }
            }
        });
        Endpoint {
            origin: origin.unwrap(),
            heads,
        }
    }

    /// The server that says who may come in: by the cookie.
    fn verifier() -> Self {
        Endpoint::start(|head| {
            let ok = |lines: &str| format!("HTTP/1.1 200 OK\r\n{lines}Content-Length: 2\r\n\r\nok");
            let cookie = field(head, "cookie").unwrap_or_default();
            Some(match cookie.as_str() {
                "s=kim" => ok(
                    "Remote-User: kim\r\nRemote-Groups: a\r\nRemote-Groups: b\r\nX-Other: 1\r\n",
                ),
                "s=jo" => ok("Remote-User: jo\r\n"),
                "s=bare" => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
                "s=cut" => {
                    "HTTP/1.1 401 No\r\nContent-Length: 9\r\nConnection: close\r\n\r\nabc".to_owned()
                }
                "s=long" => {
                    let body = "x".repeat(1_100_000);
                    format!("HTTP/1.1 401 No\r\nContent-Length: 1100000\r\n\r\n{body}")
                }
                "s=big" => ok(&format!("Remote-User: {}\r\n", "x".repeat(20_000))),
                "s=broken" => "nonsense\r\n\r\n".to_owned(),
                "s=error" => "HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops".to_owned(),
                "s=slow" => return None,
                "s=no" => {
                    "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nX-Why: no\r\n\r\nno".to_owned()
                }
                _ => "HTTP/1.1 302 Found\r\nLocation: https://auth.test/\r\nSet-Cookie: a=b\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nlog in\r\n0\r\n\r\n".to_owned(),
            })
        })
    }

    /// The application, with this field in its answers.
    fn app(line: &'static str) -> Self {
        Endpoint::start(move |_| {
            Some(format!(
                "HTTP/1.1 200 OK\r\n{line}Content-Length: 3\r\n\r\napp"
            ))
        })
    }

    fn last(&self) -> String {
        self.heads
            .lock()
            .unwrap()
            .last()
            .cloned()
            .unwrap_or_default()
    }

    fn count(&self) -> usize {
        self.heads.lock().unwrap().len()
    }
}

/// The value of the only field of this name.
fn field(head: &str, name: &str) -> Option<String> {
    let mut values = fields(head, name).into_iter();
    let value = values.next();
    assert_eq!(values.next(), None, "{name} in {head}");
    value
}

fn fields(head: &str, name: &str) -> Vec<String> {
    let lines = head.lines().filter_map(|it| it.split_once(": "));
    let named = lines.filter(|(it, _)| it.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value.to_owned()).collect()
}

/// A program with further keys of its listener and its route, before an application.
fn start(listener: &str, route: &str, verifier: &str, app: &Endpoint) -> Proxy {
    let text = format!(
        "[server]\nworkers = 1\n\n[access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\n\n\
         [status]\nbind = \"127.0.0.1:0\"\n\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n{listener}\n\n\
         [[route]]\nname = \"app\"\nupstream = \"app\"\n{route}\n\n\
         [upstream.app]\nendpoints = [\"{}\"]\n\n\
         [upstream.verifier]\nendpoints = [\"{verifier}\"]\nqueue = {{ hold = false }}\nforward = []\n",
        app.origin.address
    );
    Proxy::start(program(), &text).unwrap()
}

const AUTH: &str = "auth = { forward = \"verifier\", path = \"/verify?x=1\", copy = [\"Remote-User\", \"Remote-Groups\"], timeout = \"1s\" }\n";

fn ask(client: &mut RawClient, target: &str, lines: &str) -> Response {
    let request = format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n{lines}\r\n");
    client.ask(request).unwrap()
}

#[test]
fn a_request_goes_on_with_fields_of_the_answer() {
    test(|| {
        let (verifier, app) = (Endpoint::verifier(), Endpoint::app(""));
        let route = format!(
            "{AUTH}request_headers.set = {{ X-Who = \"{{user}}/{{header:Remote-User}}\" }}\n"
        );
        // A trusted proxy, whose word on the client goes on.
        let listener = "trusted_proxies = [\"127.0.0.1\"]";
        let address = verifier.origin.address.to_string();
        let proxy = start(listener, &route, &address, &app);
        let mut client = proxy.client();
        let forged = "Remote-User: root\r\nRemote_User: root\r\nremote-groups: wheel\r\nREMOTE_GROUPS: wheel\r\n\
                      X-Forwarded-Uri: /open\r\nX_Forwarded_Method: GET\r\nX-Original-URL: http://b.test/\r\n";
        let request = format!(
            "POST /a/b?c=d HTTP/1.1\r\nHost: a.test\r\nCookie: s=kim\r\nX-Forwarded-For: 192.0.2.7\r\n{forged}\
             If-None-Match: \"a\"\r\nContent-Type: text/x\r\nContent-Length: 3\r\n\r\nabc"
        );
        for _ in 0..2 {
            let response = client.ask(&request).unwrap();
            assert_eq!((response.status, response.text()), (200, "app".into()));
        }
        let asked = verifier.last();
        assert!(asked.starts_with("GET /verify?x=1 HTTP/1.1\r\n"), "{asked}");
        for (name, value) in [
            ("Host", "a.test"),
            ("Cookie", "s=kim"),
            ("X-Forwarded-For", "192.0.2.7, 127.0.0.1"),
            ("X-Forwarded-Host", "a.test"),
            ("X-Forwarded-Proto", "http"),
            ("X-Forwarded-Method", "POST"),
            ("X-Forwarded-Uri", "/a/b?c=d"),
            ("X-Original-Method", "POST"),
            ("X-Original-URI", "/a/b?c=d"),
            ("X-Original-URL", "http://a.test/a/b?c=d"),
        ] {
            assert_eq!(field(&asked, name).as_deref(), Some(value), "{name}");
        }
        for name in [
            "content-length",
            "content-type",
            "if-none-match",
            "x_forwarded_method",
        ] {
            assert_eq!(field(&asked, name), None, "{name} in {asked}");
        }
        let got = app.last();
        assert_eq!(fields(&got, "remote-user"), ["kim"]);
        assert_eq!(fields(&got, "remote-groups"), ["a", "b"]);
        assert_eq!(fields(&got, "x-who"), ["kim/kim"]);
        assert!(!got.contains("root") && !got.contains("wheel"), "{got}");
        assert!(!got.to_lowercase().contains("x-other"), "{got}");
        assert_eq!(field(&got, "content-length").as_deref(), Some("3"));
        assert_eq!(field(&got, "cookie").as_deref(), Some("s=kim"));
        until("the user is logged", || {
            proxy.access_log_json().iter().any(|it| it["user"] == "kim")
        });
        // If the answer lacks the field, the client's own is still removed.
        let response = ask(&mut client, "/", &format!("Cookie: s=bare\r\n{forged}"));
        assert_eq!(response.status, 200);
        let got = app.last().to_lowercase();
        for name in ["remote", "root", "wheel"] {
            assert!(!got.contains(name), "{got}");
        }
        assert_eq!(fields(&got, "x-who"), ["/"]);
        // The questions are requests of their upstream.
        let upstreams = figures(&proxy)["upstreams"].clone();
        let upstreams = upstreams.as_array().unwrap();
        let asked = upstreams
            .iter()
            .find(|it| it["name"] == "verifier")
            .unwrap();
        assert_eq!(asked["requests"], 3, "{asked}");
    });
}

#[test]
fn any_other_answer_is_the_clients() {
    test(|| {
        let (verifier, app) = (Endpoint::verifier(), Endpoint::app(""));
        let proxy = start("", AUTH, &verifier.origin.address.to_string(), &app);
        let mut client = proxy.client();
        let response = ask(&mut client, "/", "");
        assert_eq!((response.status, response.text()), (302, "log in".into()));
        assert_eq!(response.field("location"), Some("https://auth.test/"));
        assert_eq!(response.field("set-cookie"), Some("a=b"));
        assert_eq!(response.field("content-length"), Some("6"));
        assert_eq!(response.field("transfer-encoding"), None);
        let response = ask(&mut client, "/", "Cookie: s=no\r\nRemote-User: kim\r\n");
        assert_eq!((response.status, response.text()), (403, "no".into()));
        assert_eq!(response.field("x-why"), Some("no"));
        client
            .send("HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n")
            .unwrap();
        assert_eq!(client.read_response("HEAD").unwrap().status, 302);
        let post =
            "POST / HTTP/1.1\r\nHost: a.test\r\nCookie: s=no\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(client.ask(post).unwrap().status, 403);
        assert_eq!(ask(&mut client, "/", "Cookie: s=kim\r\n").status, 200);
        assert_eq!(app.count(), 1);
        assert_logged(&proxy, words::UNAUTHORIZED);
    });
}

#[test]
fn nobody_gets_in_because_the_other_server_fails() {
    test(|| {
        let (verifier, app) = (Endpoint::verifier(), Endpoint::app(""));
        let proxy = start("", AUTH, &verifier.origin.address.to_string(), &app);
        for (cookie, reason, detail) in [
            ("cut", words::AUTH_FAILED, "upstream-cut"),
            ("long", words::AUTH_FAILED, "too long"),
            ("big", words::AUTH_FAILED, "too long"),
            ("broken", words::AUTH_FAILED, "upstream-status-line"),
            ("slow", words::AUTH_TIMEOUT, "in time"),
        ] {
            let mut client = proxy.client();
            let response = ask(&mut client, "/", &format!("Cookie: s={cookie}\r\n"));
            assert_refused(&response, reason);
            assert!(response.text().contains(detail), "{}", response.text());
            assert_logged(&proxy, reason);
        }
        let response = ask(&mut proxy.client(), "/", "Cookie: s=error\r\n");
        assert_eq!((response.status, response.text()), (500, "oops".into()));
        assert_eq!(app.count(), 0);
        let proxy = start("", AUTH, &nobody(), &app);
        let response = ask(&mut proxy.client(), "/", "Cookie: s=kim\r\n");
        assert_refused(&response, words::AUTH_FAILED);
        assert!(response.text().contains("connect-failed"), "{response:?}");
        assert_eq!(app.count(), 0);
    });
}

#[test]
fn a_client_that_leaves_frees_the_slot() {
    test(|| {
        let (verifier, app) = (Endpoint::verifier(), Endpoint::app(""));
        let auth = AUTH.replace("1s", "60s");
        let proxy = start("", &auth, &verifier.origin.address.to_string(), &app);
        let mut client = proxy.client();
        client
            .send("GET / HTTP/1.1\r\nHost: a.test\r\nCookie: s=slow\r\n\r\n")
            .unwrap();
        let in_flight = || {
            let upstreams = figures(&proxy)["upstreams"].clone();
            let upstreams = upstreams.as_array().unwrap().clone();
            let found = upstreams.iter().find(|it| it["name"] == "verifier");
            found.unwrap()["endpoints"][0]["in_flight"]
                .as_u64()
                .unwrap()
        };
        until("it is asked", || in_flight() == 1);
        drop(client);
        until("it is free", || in_flight() == 0);
        until("it is logged", || {
            let lines = proxy.access_log_json();
            lines.iter().any(|it| it["end"] == "client-gone")
        });
    });
}

#[test]
fn what_is_asked_about_is_what_is_forwarded() {
    test(|| {
        let (verifier, app) = (Endpoint::verifier(), Endpoint::app(""));
        let proxy = start("", AUTH, &verifier.origin.address.to_string(), &app);
        let mut client = proxy.client();
        for target in [
            "/",
            "/?",
            "//a/./b",
            "/x/..;/admin",
            "/%2e%2e/admin",
            "/a%2fb?c=/../d",
            "/\\a",
            "/%61dmin",
        ] {
            let response = ask(&mut client, target, "Cookie: s=kim\r\n");
            assert_eq!(response.status, 200, "{target}");
            let got = app.last();
            let got = got.split(' ').nth(1).unwrap();
            let asked = field(&verifier.last(), "x-forwarded-uri");
            assert_eq!(asked.as_deref(), Some(got), "{target}");
            assert_eq!(got, target);
        }
        let response = ask(&mut client, "http://a.test?b", "Cookie: s=kim\r\n");
        assert_eq!(response.status, 200);
        let asked = field(&verifier.last(), "x-forwarded-uri");
        assert_eq!(asked.as_deref(), Some("/?b"));
    });
}

#[test]
fn what_is_stored_is_for_those_who_may_have_it() {
    test(|| {
        let verifier = Endpoint::verifier();
        let address = verifier.origin.address.to_string();
        let route = format!("{AUTH}cache = true\n");
        let (kim, jo) = ("Cookie: s=kim\r\n", "Cookie: s=jo\r\n");
        for (line, fetched) in [
            ("Cache-Control: public, max-age=60\r\n", 1),
            // It does not say that it is for all.
            ("Cache-Control: max-age=60\r\n", 3),
            // It depends on a field that the client does not send.
            (
                "Cache-Control: public, max-age=60\r\nVary: Remote-User\r\n",
                3,
            ),
        ] {
            let app = Endpoint::app(line);
            let proxy = start("", &route, &address, &app);
            let mut client = proxy.client();
            assert_eq!(ask(&mut client, "/", kim).status, 200);
            assert_eq!(field(&app.last(), "remote-user").as_deref(), Some("kim"));
            assert_eq!(ask(&mut client, "/", jo).status, 200);
            assert_eq!(ask(&mut client, "/", kim).status, 200);
            assert_eq!(app.count(), fetched, "{line}");
            // Stored or not, it is not for everybody.
            assert_eq!(ask(&mut client, "/", "").status, 302);
            let forged = "Remote-User: kim\r\nCookie: s=no\r\n";
            assert_eq!(ask(&mut client, "/", forged).status, 403);
            assert_eq!(app.count(), fetched, "{line}");
        }
    });
}

#[test]
fn a_tunnel_is_opened_for_those_who_may_come_in() {
    test(|| {
        let verifier = Endpoint::verifier();
        let app = Endpoint::start(|_| {
            Some("HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nhi".to_owned())
        });
        let proxy = start("", AUTH, &verifier.origin.address.to_string(), &app);
        let mut client = proxy.client();
        let upgrade = "Connection: upgrade\r\nUpgrade: x\r\n";
        assert_eq!(ask(&mut client, "/", upgrade).status, 302);
        assert_eq!(app.count(), 0);
        let request = format!("GET / HTTP/1.1\r\nHost: a.test\r\nCookie: s=kim\r\n{upgrade}\r\n");
        client.send(request).unwrap();
        let head = client.read_head().unwrap();
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        assert_eq!(client.read_len(2).unwrap(), b"hi");
        let asked = verifier.last().to_lowercase();
        assert!(!asked.contains("upgrade"), "{asked}");
        assert_eq!(fields(&app.last(), "remote-user"), ["kim"]);
    });
}

#[test]
fn explain_says_who_is_asked() {
    test(|| {
        let (verifier, app) = (Endpoint::verifier(), Endpoint::app(""));
        let proxy = start("", AUTH, &verifier.origin.address.to_string(), &app);
        let mut explain = Command::new(program());
        explain.arg("explain").arg("--config");
        explain.arg(proxy.path("evenkeel.toml"));
        explain.args(["-H", "Remote-User: root"]);
        let output = explain.args(["GET", &proxy.url("/a")]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        for expected in [
            "auth: upstream verifier would be asked with GET /verify?x=1;",
            "with its Remote-User, Remote-Groups",
            "Remote-User: (of the answer)",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(!text.contains("root"), "{text}");
        assert_eq!(verifier.count(), 0);
    });
}
