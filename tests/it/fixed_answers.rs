//! Answers of the configuration: bodies of files, further fields.

use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::process::run;
use evenkeel_testkit::{Proxy, TempDir};

use crate::setup::{get, program, test};

/// The length of the page that is too long to be copied behind its head.
const LONG: usize = 300_000;

#[test]
fn a_page_for_maintenance_comes_from_a_file() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let page = "<h1>back soon</h1>";
        std::fs::write(dir.join("sorry.html"), page).unwrap();
        std::fs::write(dir.join("long.txt"), vec![b'x'; LONG]).unwrap();
        let folder = dir.path().display();
        let config = format!(
            "[[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\
             [[route]]\nmatch = {{ path = \"/long\" }}\n\
             answer = {{ file = \"{folder}/long.txt\", content_type = \"text/x-long\" }}\n\
             [[route]]\nmatch = {{ path = \"/none\" }}\n\
             answer = {{ status = 204, headers = {{ X-Page = \"none\" }} }}\n\
             [[route]]\nanswer = {{ status = 503, file = \"{folder}/sorry.html\", \
             headers = {{ Retry-After = \"120\", Cache-Control = \"no-store\" }} }}\n"
        );
        let proxy = Proxy::start(program(), &config).unwrap();
        // The file is read once, at the start.
        std::fs::remove_file(dir.join("sorry.html")).unwrap();
        let mut client = proxy.client();
        let response = client.get("/any/path").unwrap();
        assert_eq!((response.status, response.text()), (503, page.to_owned()));
        for (name, value) in [
            ("retry-after", "120"),
            ("cache-control", "no-store"),
            ("content-type", "text/html; charset=utf-8"),
            ("content-length", "18"),
        ] {
            assert_eq!(response.field(name), Some(value), "{response:?}");
        }
        let head = get("/").replace("GET", "HEAD");
        client.send(head).unwrap();
        let response = client.read_response("HEAD").unwrap();
        assert_eq!((response.status, response.text()), (503, String::new()));
        assert_eq!(response.field("content-length"), Some("18"));
        // A request's body is taken, and the connection goes on.
        let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(client.ask(post).unwrap().status, 503);
        let response = client.get("/long").unwrap();
        assert_eq!(response.body.len(), LONG);
        assert_eq!(response.field("content-type"), Some("text/x-long"));
        let response = client.get("/none").unwrap();
        assert_eq!((response.status, response.body.len()), (204, 0));
        assert_eq!(response.field("x-page"), Some("none"));
        assert_eq!(response.field("content-type"), None);
    });
}

#[test]
fn explain_says_what_is_answered() {
    test(|| {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.join("sorry.html"), "sorry").unwrap();
        let config = dir.join("evenkeel.toml");
        // The file is in the folder of the configuration.
        let text = "[[listener]]\nbind = \":8080\"\n[[route]]\n\
                    answer = { status = 503, file = \"sorry.html\", headers = { Retry-After = \"120\" } }\n";
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(program());
        command.args(["explain", "--config"]).arg(&config);
        command
            .args(["GET", "http://a.example:8080/"])
            .current_dir("/");
        let output = run(command, Duration::from_secs(20)).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let file = dir.join("sorry.html");
        let answer = format!(
            "answer: 503, 5 bytes of text/html; charset=utf-8 from {}\n  Retry-After: 120\n",
            file.display()
        );
        assert!(text.contains(&answer), "{text}");
    });
}
