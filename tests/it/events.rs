//! The event log: its formats, limits as episodes, and a reader that is stuck.

use std::process::{Child, Command, Stdio};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{RawClient, TempDir};
use serde_json::Value;

use crate::in_flight::{limited, occupy};
use crate::setup::{Site, assert_refused, get, origin, program, test};
use crate::words;

/// Starts the program in a folder, without waiting for it to say anything.
fn start(dir: &TempDir, config: &str, events: impl Into<Stdio>) -> Child {
    let config = config.replace("$DIR", &dir.path().display().to_string());
    let path = dir.join("evenkeel.toml");
    std::fs::write(&path, config).unwrap();
    let mut command = Command::new(program());
    command.args(["run", "--config"]).arg(&path);
    command.stderr(events).spawn().unwrap()
}

fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

#[test]
fn json_has_one_object_a_line_with_what_it_is_about() {
    test(|| {
        let origin = origin();
        let site = Site {
            server: "[log]\nformat = \"json\"\n[status]\nbind = \"127.0.0.1:0\"",
            upstream: "health = { interval = \"50ms\" }",
            ..Site::default()
        };
        let dir = TempDir::new().unwrap();
        let config = site.config(&[origin.address.to_string(), "127.0.0.1:1".into()]);
        let events = std::fs::File::create(dir.join("events")).unwrap();
        let mut child = start(&dir, &config, events);
        let said = || std::fs::read_to_string(dir.join("events")).unwrap();
        until("it is down", || said().contains("\"state\":\"down\""));
        terminate(&child);
        assert!(child.wait().unwrap().success());
        let events: Vec<Value> = said()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
            .collect();
        for event in &events {
            assert!(event["time"].as_str().unwrap().ends_with('Z'), "{event}");
            assert!(event["message"].is_string() && event["level"].is_string());
        }
        let down = events.iter().find(|it| it["state"] == "down").unwrap();
        assert_eq!(down["level"], "warn");
        assert_eq!(
            (&down["upstream"], &down["endpoint"]),
            (&"app".into(), &"127.0.0.1:1".into())
        );
        assert_eq!(
            (&down["up"], &down["count"], &down["waiting"]),
            (&1.into(), &2.into(), &0.into())
        );
        assert!(events.iter().any(|it| it["listener"] == "web"));
        assert_eq!(events.last().unwrap()["message"], "stopped");
    });
}

#[test]
fn the_level_leaves_out_what_is_less_severe() {
    test(|| {
        let origin = origin();
        let dir = TempDir::new().unwrap();
        let site = Site {
            server: "[log]\nlevel = \"warn\"",
            ..Site::default()
        };
        let config = site.config(&[origin.address.to_string()]);
        let child = start(&dir, &config, Stdio::piped());
        until("it has its log", || dir.join("access.log").exists());
        // Signals are taken over before anything is opened.
        terminate(&child);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    });
}

#[test]
fn without_a_journal_events_go_to_standard_error() {
    if std::path::Path::new("/run/systemd/journal/socket").exists() {
        // Here the lines reach the real journal. The unit test checks their content at a socket
        // of its own.
        return;
    }
    test(|| {
        let site = Site {
            server: "[log]\nformat = \"journald\"",
            ..Site::default()
        };
        let (_origin, proxy) = site.with_origin();
        let said = proxy.stderr();
        assert!(
            said.contains(
                "WARN event log: the journal can't be reached, so events go to standard error: "
            ),
            "{said}"
        );
        assert!(said.contains(" INFO listener web: listening on "), "{said}");
    });
}

#[test]
fn a_limit_is_said_where_an_episode_begins_and_ends() {
    test(|| {
        let origin = origin();
        let site = Site {
            server: "[[listener]]\nname = \"small\"\nbind = \"127.0.0.1:0\"\nlimits.connections = 1",
            upstream: "queue = { max = 0 }",
            ..Site::default()
        };
        let proxy = site.start(&[limited(&origin.address.to_string(), 2)]);
        let _occupied = occupy(&proxy, "/slow/20000");
        let small = || RawClient::connect(proxy.socket_addr("small")).unwrap();
        let mut only = small();
        only.send(get("/slow/20000")).unwrap();
        until("both slots are", || origin.stats().in_flight == 2);
        let mut client = proxy.client();
        for _ in 0..20 {
            assert_eq!(client.get("/ping").unwrap().status, 503);
        }
        let mut third = proxy.client();
        assert_eq!(third.get("/ping").unwrap().status, 503);
        for _ in 0..5 {
            let refused = small().get("/ping").unwrap();
            assert_refused(&refused, words::CONNECTIONS);
        }
        until("both are said", || {
            let said = proxy.stderr();
            said.contains("upstream app: every endpoint is at its limit: ")
                && said.contains("listener small: its limit of connections is reached: ")
        });
        until("both are over", || {
            let said = proxy.stderr();
            said.contains("upstream app: every endpoint was at its limit: 21 requests refused within ")
                && said.contains("listener small: its limit of connections was reached: 5 connections refused within ")
        });
        let said = proxy.stderr();
        assert_eq!(said.matches("at its limit").count(), 2, "{said}");
    });
}

#[test]
fn a_stuck_reader_keeps_nobody_waiting() {
    test(|| {
        let origin = origin();
        let dir = TempDir::new().unwrap();
        let site = Site {
            server: "[log]\nlevel = \"debug\"",
            upstream: "health = { interval = \"10ms\", timeout = \"10ms\" }",
            ..Site::default()
        };
        // Each probe fails each time: a few hundred lines a second, which are not read.
        let dead = (1..=32).map(|port| format!("127.0.0.1:{port}"));
        let endpoints: Vec<_> = dead.chain([origin.address.to_string()]).collect();
        let config = site.config(&endpoints);
        let socket = dir.join("web.sock");
        let bind = format!("unix:{}", socket.display());
        let mut child = start(&dir, &config.replace("127.0.0.1:0", &bind), Stdio::piped());
        until("it listens", || {
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
        let pipe = child.stderr.take().unwrap();
        until("the pipe is full", || {
            rustix::io::ioctl_fionread(&pipe).unwrap() >= 60_000
        });
        let mut client = evenkeel_testkit::RawClient::connect_unix(&socket).unwrap();
        for _ in 0..20 {
            let begun = std::time::Instant::now();
            assert_eq!(client.get("/ping").unwrap().status, 200);
            assert!(begun.elapsed() < std::time::Duration::from_secs(1));
        }
        terminate(&child);
        assert!(child.wait().unwrap().success());
        drop(pipe);
    });
}
