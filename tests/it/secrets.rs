//! Secrets of the configuration: a running process shows none of them.

use std::process::{Command, Output};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawOrigin};

use crate::control::ask;
use crate::setup::{ask_status, program, test};

const CONFIG: &str = r#"
[server]
workers = 1
control = "$DIR/control.sock"

[log]
level = "debug"

[status]
bind = "127.0.0.1:0"

[otlp]
url = "http://$A"
headers = { X-Token = "s3cret-1" }

[[listener]]
name = "web"
bind = "127.0.0.1:0"

[[route]]
name = "old"
match = { path = "/old/*", header = { Referer = "http://user:s3cret-2@a.test/" } }
redirect = "https://user:s3cret-3@example.com$path"

[[route]]
name = "app"
upstream = "app"
cache = "main"

[cache.main]
shared = { url = "redis://me:s3cret-5@$A" }

[upstream.app]
health = { path = "/", headers = { X-Token = "s3cret-4" }, interval = "100ms" }
endpoints = ["$A"]
"#;

#[track_caller]
fn without_secret(shown: &str, word: &str) {
    assert!(shown.contains(word), "{shown}");
    assert!(!shown.contains("s3cret"), "{shown}");
}

#[track_caller]
fn shown_by(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_running_process_shows_no_secret() {
    test(|| {
        // Probes fail, and the failure is reported.
        let origin = RawOrigin::answering("HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n").unwrap();
        let text = CONFIG.replace("$A", &origin.address.to_string());
        let proxy = Proxy::start(program(), &text).unwrap();
        until("the endpoint is down", || proxy.stderr().contains("down"));
        let request =
            "GET /old/x HTTP/1.1\r\nHost: a\r\nReferer: http://user:s3cret-2@a.test/\r\n\r\n";
        assert_eq!(proxy.client().ask(request).unwrap().status, 302);
        for (path, word) in [
            ("/", "<html"),
            ("/status.json", "\"app\""),
            ("/metrics", "upstream=\"app\""),
            ("/;csv", "app"),
            ("/plots.json", "{"),
            ("/endpoint.json?index=0", "{"),
        ] {
            without_secret(&ask_status(&proxy, path, "").text(), word);
        }
        for (command, word) in [
            ("show upstreams", "app"),
            ("show upstreams app", "app"),
            ("show listeners", "web"),
            ("show routes", "old"),
            ("show errors", ""),
            ("show sessions", ""),
            ("show info", "Name"),
            ("show stat", "app"),
            ("show servers state", "app"),
        ] {
            without_secret(&ask(&proxy, command), word);
        }
        until("the shared server fails", || {
            proxy.stderr().contains(" is DOWN: ")
        });
        without_secret(&ask(&proxy, "show cache"), "SHARED BY");
        without_secret(&proxy.stderr(), "web");
        let mut print = Command::new(program());
        print.args(["check", "--print", "--config"]);
        let print = print.arg(proxy.path("evenkeel.toml")).output().unwrap();
        without_secret(&shown_by(&print), "redis://me:***@");
    });
}

#[test]
fn explain_shows_no_secret() {
    test(|| {
        let origin = RawOrigin::answering("").unwrap();
        let text = CONFIG.replace("$A", &origin.address.to_string());
        let proxy = Proxy::start(program(), &text).unwrap();
        let config = proxy.path("evenkeel.toml");
        for from in [&[][..], &["--live"]] {
            for form in [&[][..], &["--json"]] {
                let explain = |request: &[&str]| {
                    let mut command = Command::new(program());
                    command.arg("explain").arg("--config").arg(&config);
                    command.args(from).args(form).args(request);
                    shown_by(&command.output().unwrap())
                };
                // Values of a request are shown unchanged.
                let referer = "Referer: http://user:s3cret-2@a.test/";
                let redirected = explain(&["GET", "http://a.test/old/x", "-H", referer]);
                let location = "https://user:***@example.com/old/x";
                assert!(redirected.contains(location), "{redirected}");
                assert!(!redirected.contains("s3cret-3"), "{redirected}");
                let other = explain(&["GET", "http://a.test/old/x"]);
                without_secret(&other, "http://user:***@a.test/");
            }
        }
    });
}
