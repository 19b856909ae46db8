//! `evenkeel demo` and `evenkeel origin`: what a person sees first.

use std::process::{Command, Stdio};

use evenkeel_testkit::deadline::{STEP, until};
use evenkeel_testkit::process::Running;
use evenkeel_testkit::{RawClient, TempDir};

use crate::setup::{program, test};

fn start(arguments: &[&str]) -> Running {
    let mut command = Command::new(program());
    command.args(arguments).stderr(Stdio::null());
    Running::start(command).unwrap()
}

/// Reads until a line that `find` finds something in.
#[track_caller]
fn until_line<T>(running: &mut Running, find: impl Fn(&str) -> Option<T>) -> T {
    loop {
        if let Some(found) = find(&running.line().unwrap()) {
            return found;
        }
    }
}

/// The address in `It listens on http://ADDRESS. Try …`.
fn address(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("listens on http://")?;
    Some(rest.split_once(". ")?.0.to_owned())
}

#[track_caller]
fn assert_ends_well(mut running: Running) {
    running.terminate();
    assert!(running.wait(STEP).expect("it ends").success());
}

#[test]
fn demo_answers_what_it_says_to_try() {
    test(|| {
        let mut demo = start(&["demo"]);
        let mut client = RawClient::connect(until_line(&mut demo, address)).unwrap();
        for (path, status) in [
            ("/ping", 200),
            ("/custom-payload?size=1000000", 200),
            ("/headers", 200),
            ("/hello", 200),
            ("/old/page?a=1", 302),
            ("/nowhere", 404),
        ] {
            assert_eq!(client.get(path).unwrap().status, status, "{path}");
        }
        let echo = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nthere";
        assert_eq!(client.ask(echo).unwrap().text(), "there");
        let two = "GET /ping HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n";
        assert_eq!(client.ask(two).unwrap().status, 400);
        until_line(&mut demo, |line| {
            line.contains("content-length-repeated").then_some(())
        });
        assert_ends_well(demo);
    });
}

#[test]
fn demo_shows_how_load_is_shared_out() {
    test(|| {
        let mut demo = start(&["demo", "--load"]);
        let mut client = RawClient::connect(until_line(&mut demo, address)).unwrap();
        assert_eq!(client.get("/ping").unwrap().text(), "pong");
        until_line(&mut demo, |line| line.starts_with("endpoint").then_some(()));
        for name in ["fast", "brisk", "steady", "slow", "all"] {
            let line = demo.line().unwrap();
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[0], name, "{line}");
            let figures: Vec<f64> = words.iter().filter_map(|word| word.parse().ok()).collect();
            assert_eq!(figures.len(), 4, "{line}");
            assert!(figures[0] > 0.0, "no answers: {line}");
        }
        let line = demo.line().unwrap();
        assert!(line.ends_with(" 0 failures"), "{line}");
        assert_ends_well(demo);
    });
}

#[test]
fn origin_serves_where_it_is_told() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let path = dir.join("origin.sock");
        let listen = format!("unix:{}", path.display());
        let _origin = start(&["origin", "--name", "here", "--listen", &listen]);
        let mut client = None;
        until("the origin listens", || {
            client = RawClient::connect_unix(&path).ok();
            client.is_some()
        });
        let response = client.unwrap().get("/ping").unwrap();
        assert_eq!(
            (response.status, response.field("server")),
            (200, Some("here"))
        );
    });
}
