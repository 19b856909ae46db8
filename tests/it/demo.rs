//! `evenkeel demo` and `evenkeel origin`: a user's first impression.

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
fn demo_encrypts_with_an_authority_of_its_own() {
    test(|| {
        let mut demo = start(&["demo", "--tls"]);
        let address = until_line(&mut demo, |line| {
            let (_, rest) = line.split_once("listens on https://")?;
            Some(rest.split_once(". ")?.0.to_owned())
        });
        // As the shell runs it: `curl -i --cacert FILE URL`.
        let curl = until_line(&mut demo, |line| {
            let (_, words) = line.split_once("curl -i --cacert ")?;
            Some(words.to_owned())
        });
        let (ca, url) = curl.split_once(' ').unwrap();
        let ask = |words: &[&str]| {
            let mut curl = Command::new("curl");
            let output = curl.args(["-s", "--max-time", "20"]).args(words).output();
            let output = output.unwrap();
            (
                output.status.code(),
                String::from_utf8(output.stdout).unwrap(),
            )
        };
        assert_eq!(ask(&["--cacert", ca, url]), (Some(0), "pong".to_owned()));
        let (_, fields) = ask(&["--cacert", ca, &format!("https://{address}/headers")]);
        assert!(fields.contains("https"), "{fields}");
        // 60: the certificate is not trusted.
        assert_eq!(ask(&[url]).0, Some(60));
        let (_, plain) = ask(&["-i", &format!("http://{address}/ping")]);
        assert!(plain.starts_with("HTTP/1.1 400 "), "{plain}");
        assert_ends_well(demo);
        assert!(!std::path::Path::new(ca).exists(), "{ca}");
    });
}

#[test]
fn demo_shows_a_cache_at_work() {
    test(|| {
        let mut demo = start(&["demo", "--load", "--cache"]);
        let mut client = RawClient::connect(until_line(&mut demo, address)).unwrap();
        assert_eq!(client.get("/ping?page=1").unwrap().text(), "pong");
        for is_up in [true, false] {
            let state = if is_up { "are up" } else { "are down" };
            until_line(&mut demo, |line| line.contains(state).then_some(()));
            let line = until_line(&mut demo, |line| {
                line.starts_with("cache").then(|| line.to_owned())
            });
            let rate: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
            assert!(rate > 50.0, "{line}");
            until_line(&mut demo, |line| {
                line.contains(", 0 failures").then_some(())
            });
        }
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
fn demo_of_tcp_shows_connections_and_an_endpoint_that_goes_down() {
    test(|| {
        let mut demo = start(&["demo", "--tcp"]);
        let addresses = until_line(&mut demo, |line| {
            let (_, rest) = line.split_once("It listens on ")?;
            let (both, _) = rest.split_once(". ")?;
            let (demo, shared) = both.split_once(" and ")?;
            Some([demo.to_owned(), shared.to_owned()])
        });
        for (address, said, operator) in [
            (&addresses[0], "operator\n", false),
            (&addresses[1], "operator\n", true),
            (&addresses[1], "hello\n", false),
        ] {
            let mut client = RawClient::connect(address).unwrap();
            client.send(said).unwrap();
            let mut answer = String::new();
            while !answer.ends_with('\n') {
                answer += &String::from_utf8(client.read_len(1).unwrap()).unwrap();
            }
            assert!(answer.ends_with(said), "{answer}");
            assert_eq!(answer.starts_with("operator: "), operator, "{answer}");
            // Only the other upstream tells who the client is.
            assert_eq!(answer.contains(", to 127.0.0.1:"), !operator, "{answer}");
        }
        until_line(&mut demo, |line| {
            line.contains("connections/s").then_some(())
        });
        for name in ["quick", "steady", "slow", "all"] {
            let line = demo.line().unwrap();
            assert!(line.starts_with(name), "{line}");
        }
        until_line(&mut demo, |line| {
            line.contains("quick is down").then_some(())
        });
        until_line(&mut demo, |line| line.contains("quick is up").then_some(()));
        // It takes connections again.
        until_line(&mut demo, |line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let rate = words.get(2)?.parse::<f64>().ok()?;
            (words[0] == "quick" && rate > 0.0).then_some(())
        });
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
