//! An upgrade: another process takes over, and no client notices.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_testkit::deadline::{STEP, holds_within, until, within};
use evenkeel_testkit::{OriginHandle, Proxy, ProxySetup, RawClient};
use rustix::process::{Pid, Signal};

use crate::service_manager::Manager;
use crate::setup::{Site, ask_status, assert_serves, figures, get, origin, program, test};
use crate::tunnels::UPGRADE;

/// The process that has taken over last; killed when dropped. To be dropped before the
/// first one.
pub struct Successors<'a>(pub &'a Proxy);

impl Successors<'_> {
    /// Of all that have taken over, in order.
    pub fn pids(&self) -> Vec<u32> {
        let said = self.0.stderr();
        let lines = said.lines();
        let pids = lines.filter_map(|it| {
            it.split_once("upgrade: process ")?
                .1
                .split_once(" has taken over")
        });
        pids.map(|(pid, _)| pid.parse().unwrap()).collect()
    }

    /// Replaces the working process, by USR2 to it.
    pub fn upgrade(&self) -> u32 {
        let before = self.pids();
        let at_work = before.last().copied().unwrap_or(self.0.pid());
        signal(at_work, Signal::USR2);
        until("another process has taken over", || {
            self.pids().len() > before.len()
        });
        self.pids().pop().unwrap()
    }
}

impl Drop for Successors<'_> {
    fn drop(&mut self) {
        self.pids()
            .into_iter()
            .for_each(|it| signal(it, Signal::KILL));
    }
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).unwrap();
    // It may have ended.
    let _ = rustix::process::kill_process(pid, signal);
}

/// Whether a process with this id runs.
pub fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|it| !it.contains(") Z "))
}

const ADMIN: &str = "control = \"$DIR/control.sock\"\n[status]\nbind = \"127.0.0.1:0\"";

/// A site with a status page and a control socket.
fn operated() -> (OriginHandle, Proxy) {
    Site {
        server: ADMIN,
        ..Site::default()
    }
    .with_origin()
}

/// Runs `evenkeel VERB` for this process.
fn evenkeel(proxy: &Proxy, verb: &[&str]) -> Output {
    let mut command = Command::new(program());
    command
        .args(verb)
        .arg("--socket")
        .arg(proxy.path("control.sock"));
    evenkeel_testkit::process::run(command, STEP).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn another_process_takes_over_and_the_old_one_finishes() {
    test(|| {
        let (origin, mut proxy) = operated();
        let mut idle = proxy.client();
        assert_serves(&mut idle);
        let mut busy = proxy.client();
        busy.send(get("/slow/1500")).unwrap();
        until("the request is in flight", || origin.stats().in_flight == 1);
        let first = proxy.pid();
        let next;
        {
            let successors = Successors(&proxy);
            next = successors.upgrade();
            assert_ne!(next, first);
            assert_serves(&mut proxy.client());
            assert_eq!(figures(&proxy)["pid"], next);
            // The old process still has this connection.
            let response = idle.ask(get("/ping")).unwrap();
            assert_eq!(response.text(), "pong");
            assert_eq!(response.field("connection"), Some("close"));
            let response = busy.read_response("GET").unwrap();
            assert_eq!(response.text(), "pong");
            assert_eq!(response.field("connection"), Some("close"));
            until("the old one has ended", || !is_running(first));
            assert_serves(&mut proxy.client());
            let shown = evenkeel(&proxy, &["ctl", "show", "info"]);
            assert!(
                text(&shown.stdout).contains(&format!("Pid: {next}")),
                "{shown:?}"
            );
        }
        assert!(proxy.wait(STEP).expect("it has ended").success());
    });
}

#[test]
fn a_drained_endpoint_and_the_counters_go_on() {
    test(|| {
        let (origin, proxy) = operated();
        for _ in 0..20 {
            assert_serves(&mut proxy.client());
        }
        let place = format!("app/{}", origin.address);
        let drained = evenkeel(&proxy, &["ctl", "drain", &place]);
        assert!(drained.status.success(), "{drained:?}");
        let closed = evenkeel(&proxy, &["ctl", "maintenance", "on", "upstream/app"]);
        assert!(closed.status.success(), "{closed:?}");
        let before = figures(&proxy);
        let successors = Successors(&proxy);
        successors.upgrade();
        let requests = |figures: &serde_json::Value| {
            ["listeners", "routes", "upstreams"]
                .map(|it| figures[it][0]["requests"].as_u64().unwrap())
        };
        let endpoint = |figures: &serde_json::Value, key: &str| {
            figures["upstreams"][0]["endpoints"][0][key].clone()
        };
        let after = figures(&proxy);
        assert_eq!(requests(&after), requests(&before));
        for key in [
            "attempts", "connects", "status", "total_us", "state", "admin",
        ] {
            assert_eq!(endpoint(&after, key), endpoint(&before, key), "{key}");
        }
        assert_eq!(endpoint(&after, "admin"), "drain");
        assert_eq!(after["upstreams"][0]["maintenance"], true);
        // None of these requests is in the seconds on the status page.
        let plots = || -> serde_json::Value {
            serde_json::from_slice(&ask_status(&proxy, "/plots.json", "").body).unwrap()
        };
        let seconds = |of: &serde_json::Value| of["requests"].as_array().unwrap().clone();
        until("it has looked", || !seconds(&plots()["all"]).is_empty());
        let plots = plots();
        let kinds = ["listeners", "routes", "upstreams", "endpoints"].map(|it| &plots[it][0]);
        for of in [&plots["all"]].into_iter().chain(kinds) {
            assert!(seconds(of).iter().all(|it| *it == 0), "{plots}");
        }
    });
}

#[test]
fn an_endpoint_is_not_left_down_where_nothing_probes_it_any_more() {
    test(|| {
        let origin = origin();
        let site = |health| Site {
            server: ADMIN,
            upstream: health,
            ..Site::default()
        };
        let endpoints = [origin.address.to_string()];
        let probed = site("health = { path = \"/status/500\", interval = \"100ms\", fall = 1 }");
        let proxy = probed.start(&endpoints);
        let state = || figures(&proxy)["upstreams"][0]["endpoints"][0]["state"].clone();
        until("it is down", || state() == "down");
        let config = site("").config(&endpoints);
        let config = config.replace("$DIR", &proxy.dir().display().to_string());
        std::fs::write(proxy.path("evenkeel.toml"), config).unwrap();
        let successors = Successors(&proxy);
        successors.upgrade();
        assert_eq!(state(), "up");
        assert_serves(&mut proxy.client());
    });
}

#[test]
fn a_connection_whose_answer_was_under_way_may_bring_one_more_request() {
    test(|| {
        let (_origin, proxy) = operated();
        let mut client = proxy.client();
        client.send(get("/drip/20/100")).unwrap();
        let head = client.read_head().unwrap();
        assert!(!head.to_ascii_lowercase().contains("close"), "{head}");
        let successors = Successors(&proxy);
        successors.upgrade();
        client.read_len(20).unwrap();
        let answer = client.ask(get("/ping")).unwrap();
        assert_eq!(answer.text(), "pong");
        assert_eq!(answer.field("connection"), Some("close"));
    });
}

#[test]
fn a_scraper_that_keeps_its_connection_is_sent_to_the_new_process() {
    test(|| {
        let (_origin, proxy) = operated();
        let address = proxy.status_address();
        let look = format!("GET /status.json HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let pid = |client: &mut RawClient| {
            let answer = client.ask(&look).unwrap();
            let figures: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            figures["pid"].as_u64()
        };
        let mut kept = RawClient::connect(address).unwrap();
        assert_eq!(pid(&mut kept), Some(u64::from(proxy.pid())));
        // It keeps the old process.
        let mut tunnel = proxy.client();
        assert_eq!(tunnel.ask(UPGRADE).unwrap().status, 101);
        let successors = Successors(&proxy);
        let next = successors.upgrade();
        assert!(kept.is_closed());
        let mut again = RawClient::connect(address).unwrap();
        assert_eq!(pid(&mut again), Some(u64::from(next)));
        drop(tunnel);
    });
}

/// Each sample of a counter, by its name and labels.
fn counters(proxy: &Proxy) -> Vec<(String, f64)> {
    let metrics = ask_status(proxy, "/metrics", "").text();
    let lines = metrics.lines().filter(|it| !it.starts_with('#'));
    let samples = lines.filter_map(|it| it.rsplit_once(' '));
    let is_counter = |name: &str| {
        let name = name.split('{').next().unwrap_or_default();
        // The counters of a process start with each process.
        !name.starts_with("process_")
            && ["_total", "_count", "_sum", "_bucket"]
                .iter()
                .any(|it| name.ends_with(it))
    };
    let samples = samples.filter(|(name, _)| is_counter(name));
    samples
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

#[test]
fn upgrades_under_load_lose_no_request_and_no_count() {
    within(Duration::from_secs(60), || {
        let (_origin, proxy) = operated();
        let successors = Successors(&proxy);
        let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for index in 0..6 {
                let (proxy, is_over, done) = (&proxy, &is_over, &done);
                scope.spawn(move || {
                    let mut client = proxy.client();
                    while !is_over.load(Ordering::Relaxed) {
                        let response = client.ask(get("/ping")).unwrap();
                        assert_eq!(response.status, 200);
                        done.fetch_add(1, Ordering::Relaxed);
                        if index % 2 == 0 || response.field("connection") == Some("close") {
                            client = proxy.client();
                        }
                    }
                });
            }
            let mut before = counters(&proxy);
            for _ in 0..5 {
                let so_far = done.load(Ordering::Relaxed);
                successors.upgrade();
                let after = counters(&proxy);
                for (name, value) in &before {
                    let now = after.iter().find(|it| it.0 == *name);
                    let now = now.unwrap_or_else(|| panic!("{name} is gone")).1;
                    assert!(now >= *value, "{name}: {now} after {value}");
                }
                before = after;
                until("the next one serves", || {
                    done.load(Ordering::Relaxed) > so_far + 50
                });
            }
            is_over.store(true, Ordering::Relaxed);
        });
        until("only the last one is left", || {
            let mut pids = successors.pids();
            pids.pop();
            pids.push(proxy.pid());
            !pids.into_iter().any(is_running)
        });
        let requests = &figures(&proxy)["listeners"][0]["requests"];
        assert_eq!(requests.as_u64(), Some(done.load(Ordering::Relaxed)));
    });
}

#[test]
fn workers_may_be_more_or_fewer() {
    test(|| {
        let (_origin, proxy) = operated();
        let successors = Successors(&proxy);
        let path = proxy.path("evenkeel.toml");
        for workers in [4, 2, 3] {
            let text = std::fs::read_to_string(&path).unwrap();
            let (before, after) = text.split_once("workers = ").unwrap();
            let rest = after.split_once('\n').unwrap().1;
            std::fs::write(&path, format!("{before}workers = {workers}\n{rest}")).unwrap();
            successors.upgrade();
            assert_eq!(figures(&proxy)["workers"], workers);
            for _ in 0..40 {
                assert_serves(&mut proxy.client());
            }
        }
    });
}

#[test]
fn addresses_may_change_at_the_same_ports() {
    test(|| {
        let (origin, proxy) = operated();
        let successors = Successors(&proxy);
        let (listener, status) = (proxy.address("web"), proxy.status_address().to_string());
        let widened = |it: &str| it.replace("127.0.0.1", "0.0.0.0");
        let admin = ADMIN.replace("127.0.0.1:0", &widened(&status));
        let site = Site {
            bind: &widened(listener),
            server: &admin,
            ..Site::default()
        };
        let config = site.config(&[origin.address.to_string()]);
        crate::reload::write(&proxy, &config);
        let next = successors.upgrade();
        assert_eq!(figures(&proxy)["pid"], next);
        let port = proxy.socket_addr("web").port();
        assert_serves(&mut RawClient::connect(("127.0.0.2", port)).unwrap());
    });
}

/// The first process drains for as long as its tunnel is open.
#[test]
fn a_process_between_two_others_leaves_nothing_behind() {
    test(|| {
        let (_origin, proxy) = operated();
        let mut tunnel = proxy.client();
        assert_eq!(tunnel.ask(UPGRADE).unwrap().status, 101);
        let successors = Successors(&proxy);
        let second = successors.upgrade();
        let third = successors.upgrade();
        until("nothing of the second is left", || {
            !std::path::Path::new(&format!("/proc/{second}")).exists()
        });
        assert!(is_running(proxy.pid()) && is_running(third));
        drop(tunnel);
    });
}

#[test]
fn the_path_of_a_unix_listener_stays() {
    test(|| {
        let origin = origin();
        let dir = evenkeel_testkit::TempDir::new().unwrap();
        let web = dir.join("web.sock");
        let bind = format!("unix:{}", web.display());
        let proxy = Site {
            bind: &bind,
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        let successors = Successors(&proxy);
        for _ in 0..2 {
            let next = successors.upgrade();
            assert_serves(&mut RawClient::connect_unix(&web).unwrap());
            until("the one before has ended", || {
                let pids = successors.pids();
                let before = pids.iter().rev().nth(1).copied().unwrap_or(proxy.pid());
                !is_running(before)
            });
            assert_serves(&mut RawClient::connect_unix(&web).unwrap());
            assert!(is_running(next));
        }
        let last = successors.pids().pop().unwrap();
        signal(last, Signal::TERM);
        until("the last one removes it", || !web.exists());
    });
}

#[test]
fn a_path_that_another_program_has_taken_stays_its_own() {
    test(|| {
        let origin = origin();
        let dir = evenkeel_testkit::TempDir::new().unwrap();
        let web = dir.join("web.sock");
        let bind = format!("unix:{}", web.display());
        let proxy = Site {
            bind: &bind,
            server: ADMIN,
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        let successors = Successors(&proxy);
        let mut busy = RawClient::connect_unix(&web).unwrap();
        busy.send(get("/slow/2000")).unwrap();
        until("the request is in flight", || origin.stats().in_flight == 1);
        std::fs::remove_file(&web).unwrap();
        let holder = UnixListener::bind(&web).unwrap();
        let mut next = 0;
        for turn in 1..=2 {
            next = successors.upgrade();
            // Each process finds it for itself.
            let answer = crate::control::ask(&proxy, "reload");
            assert!(
                answer.contains("warning: listener web: another program has taken"),
                "{answer}"
            );
            let said = || proxy.stderr().matches("listener web: path-taken: ").count();
            until("it is said", || said() >= turn);
        }
        assert_eq!(busy.read_response("GET").unwrap().text(), "pong");
        signal(next, Signal::TERM);
        until("it has ended", || !is_running(next));
        UnixStream::connect(&web).unwrap();
        holder.accept().unwrap();
    });
}

/// It has requests in flight, and a configuration that it keeps.
#[test]
fn the_old_process_refuses_a_reload() {
    test(|| {
        let (origin, proxy) = operated();
        let mut busy = proxy.client();
        busy.send(get("/slow/2000")).unwrap();
        until("the request is in flight", || origin.stats().in_flight == 1);
        let successors = Successors(&proxy);
        successors.upgrade();
        let aside = proxy.path(&format!("control.sock.{}", proxy.pid()));
        let mut command = Command::new(program());
        command.args(["reload", "--socket"]).arg(aside);
        let refused = evenkeel_testkit::process::run(command, STEP).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(
            text(&refused.stderr).contains("the process is draining"),
            "{refused:?}"
        );
        assert_eq!(busy.read_response("GET").unwrap().text(), "pong");
    });
}

/// A program of a few lines, in the folder of the process.
fn script(proxy: &Proxy, name: &str, lines: &str) -> PathBuf {
    let path = proxy.path(name);
    std::fs::write(&path, lines).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Reads the offer's version, and refuses it as a program would that knows another one.
const REFUSES: &str = r#"#!/usr/bin/env python3
import os, socket, struct
channel = socket.socket(fileno=int(os.environ["EVENKEEL_HANDOVER"]))
answer = b'{"refused":"it knows version 0 of the handover"}'
channel.sendall(struct.pack(">II", len(answer), 0) + answer)
"#;

#[test]
fn the_old_process_goes_on_where_the_new_one_fails() {
    test(|| {
        let server = format!("upgrade_timeout = \"3s\"\n{ADMIN}");
        let (_origin, proxy) = Site {
            server: &server,
            ..Site::default()
        }
        .with_origin();
        let mut client = proxy.client();
        assert_serves(&mut client);
        for (binary, word, said) in [
            (
                script(&proxy, "crashes", "#!/bin/sh\nexit 3\n"),
                "ended",
                "exit status: 3",
            ),
            (
                script(&proxy, "hangs", "#!/bin/sh\nexec sleep 600\n"),
                "timeout",
                "was not ready within 3s",
            ),
            (
                script(&proxy, "refuses", REFUSES),
                "refused",
                "it knows version 0 of the handover",
            ),
            (
                proxy.path("nowhere"),
                "not-started",
                "No such file or directory",
            ),
            (
                proxy.path("evenkeel.toml"),
                "not-started",
                "ermission denied",
            ),
        ] {
            let failures = figures(&proxy)["upgrades_failed"].as_u64().unwrap();
            let binary = binary.display().to_string();
            let done = evenkeel(&proxy, &["upgrade", "--binary", &binary]);
            assert_eq!(done.status.code(), Some(1), "{binary}: {done:?}");
            assert!(text(&done.stderr).contains(said), "{binary}: {done:?}");
            let logged = format!("upgrade failed ({word})");
            until("the event log says so", || {
                let log = proxy.stderr();
                log.contains(&logged) && log.contains(said)
            });
            let counted = figures(&proxy);
            assert_eq!(counted["upgrades_failed"], failures + 1);
            let by_reason = &counted["upgrades_failed_by_reason"];
            assert!(by_reason[word].as_u64() > Some(0), "{word}: {by_reason}");
            assert_serves(&mut client);
            assert_serves(&mut proxy.client());
        }
        // A configuration with a mistake is one that the new program does not start with.
        let path = proxy.path("evenkeel.toml");
        let config = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{config}\nbalance = 7\n")).unwrap();
        let done = evenkeel(&proxy, &["upgrade"]);
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        assert_serves(&mut client);
        // And with it all right, it takes over.
        std::fs::write(&path, config).unwrap();
        let successors = Successors(&proxy);
        let done = evenkeel(&proxy, &["upgrade"]);
        assert!(done.status.success(), "{done:?}");
        until("the event log says so", || !successors.pids().is_empty());
        let next = successors.pids().pop().unwrap();
        assert!(
            text(&done.stdout).contains(&format!("process {next} has taken over")),
            "{done:?}"
        );
        assert_eq!(
            client.ask(get("/ping")).unwrap().field("connection"),
            Some("close")
        );
    });
}

/// It says that it is ready, and takes the path of the control socket when it is to serve.
const READY: &str = r#"#!/usr/bin/env python3
import json, os, socket, struct, sys, time
channel = socket.socket(fileno=int(os.environ["EVENKEEL_HANDOVER"]))
stream = channel.makefile("rb")
def hear():
    length, count = struct.unpack(">II", stream.read(8))
    message = json.loads(stream.read(length))
    # Descriptors come in groups, each with a byte.
    stream.read(-(-count // 128))
    return message
hear()
channel.sendall(struct.pack(">II", 7, 0) + b'"ready"')
while hear() != "serve":
    pass
control = os.path.join(os.path.dirname(sys.argv[0]), "control.sock")
own = socket.socket(socket.AF_UNIX)
own.bind(control + ".own")
os.rename(control + ".own", control)
open(sys.argv[0] + ".pid", "w").write(f"{os.getpid()}\n")
"#;

/// The new process is ready, but accepts nothing.
#[test]
fn the_old_process_goes_on_until_the_new_one_serves() {
    test(|| {
        let (_origin, mut proxy) = operated();
        let control = proxy.path("control.sock");
        let aside = proxy.path(&format!("control.sock.{}", proxy.pid()));
        let begin = |name: &str, then: &str| {
            let binary = script(&proxy, name, &format!("{READY}{then}\n"));
            let pid_file = proxy.path(&format!("{name}.pid"));
            let mut command = Command::new(program());
            command.args(["upgrade", "--binary"]).arg(binary);
            command.arg("--socket").arg(&control);
            let asked =
                std::thread::spawn(move || evenkeel_testkit::process::run(command, STEP).unwrap());
            let mut pid = String::new();
            until("it is to serve", || {
                pid = std::fs::read_to_string(&pid_file).unwrap_or_default();
                pid.ends_with('\n')
            });
            (pid.trim().parse::<u32>().unwrap(), asked)
        };
        for (name, then, word, said) in [
            ("ends", "sys.exit(3)", "ended", "exit status: 3"),
            (
                "hangs",
                "time.sleep(600)",
                "timeout",
                "was not serving within 5s",
            ),
        ] {
            let (pid, asked) = begin(name, then);
            for _ in 0..10 {
                assert_serves(&mut proxy.client());
            }
            let done = asked.join().unwrap();
            assert_eq!(done.status.code(), Some(1), "{name}: {done:?}");
            assert!(text(&done.stderr).contains(said), "{name}: {done:?}");
            assert_eq!(figures(&proxy)["upgrades_failed_by_reason"][word], 1);
            assert!(!is_running(pid), "{name}");
            assert_serves(&mut proxy.client());
            let shown = evenkeel(&proxy, &["ctl", "show", "info"]);
            let expected = format!("Pid: {}", proxy.pid());
            assert!(text(&shown.stdout).contains(&expected), "{name}: {shown:?}");
            assert!(!aside.exists(), "{name}");
        }
        let (pid, asked) = begin("hangs-again", "time.sleep(600)");
        proxy.terminate();
        assert!(proxy.wait(STEP).expect("it ends").success());
        assert!(!is_running(pid));
        assert_eq!(asked.join().unwrap().status.code(), Some(1));
        assert!(!control.exists() && !aside.exists());
    });
}

/// It fails with the sockets in its hands: their files are still the old one's.
#[test]
fn the_paths_of_unix_sockets_stay_where_the_new_process_fails() {
    test(|| {
        let origin = origin();
        let dir = evenkeel_testkit::TempDir::new().unwrap();
        let (web, status) = (dir.join("web.sock"), dir.join("status.sock"));
        let bind = format!("unix:{}", web.display());
        let server = format!(
            "control = \"$DIR/control.sock\"\n[status]\nbind = \"unix:{}\"",
            status.display()
        );
        let proxy = Site {
            bind: &bind,
            server: &server,
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = other.local_addr().unwrap();
        let path = proxy.path("evenkeel.toml");
        let config = std::fs::read_to_string(&path).unwrap();
        let second = format!("{config}\n[[listener]]\nname = \"second\"\nbind = \"{taken}\"\n");
        let log = config.replace("/access.log", "/nowhere/access.log");
        for (changed, said) in [
            (second, "listener second: bind"),
            (log, "nowhere/access.log"),
        ] {
            std::fs::write(&path, changed).unwrap();
            let done = evenkeel(&proxy, &["upgrade"]);
            assert_eq!(done.status.code(), Some(1), "{said}: {done:?}");
            assert!(text(&done.stderr).contains(said), "{said}: {done:?}");
            assert_serves(&mut RawClient::connect_unix(&web).unwrap());
            UnixStream::connect(&status).unwrap();
        }
    });
}

#[test]
fn term_while_the_new_program_starts_ends_both() {
    test(|| {
        let (_origin, mut proxy) = operated();
        let hangs = script(
            &proxy,
            "hangs",
            "#!/bin/sh\necho $$ > \"$0.pid\"\nexec sleep 600\n",
        );
        let pid_file = proxy.path("hangs.pid");
        let socket = proxy.path("control.sock");
        let upgrade = std::thread::spawn(move || {
            let mut command = Command::new(program());
            command
                .arg("upgrade")
                .arg("--binary")
                .arg(hangs)
                .arg("--socket")
                .arg(socket);
            evenkeel_testkit::process::run(command, STEP).unwrap()
        });
        until("the new one runs", || {
            std::fs::read_to_string(&pid_file).is_ok_and(|it| it.ends_with('\n'))
        });
        let pid = std::fs::read_to_string(&pid_file)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let reload = evenkeel(&proxy, &["reload"]);
        let refused = figures(&proxy)["reloads_refused_by_reason"].clone();
        assert_eq!(refused["upgrading"], 1, "{refused}");
        assert_eq!(reload.status.code(), Some(1), "{reload:?}");
        assert!(
            text(&reload.stderr).contains("an upgrade is in progress"),
            "{reload:?}"
        );
        proxy.terminate();
        assert!(proxy.wait(STEP).expect("it ends").success());
        assert!(holds_within(STEP, || !is_running(pid)));
        let upgrade = upgrade.join().unwrap();
        assert_eq!(upgrade.status.code(), Some(1));
        let why = "upgrade failed (stopping): the process is stopping";
        assert!(text(&upgrade.stderr).contains(why), "{upgrade:?}");
        until("it is said", || proxy.stderr().contains(why));
        let said = proxy.stderr();
        assert_eq!(said.matches("upgrade failed").count(), 1, "{said}");
        assert!(!said.contains("this process goes on"), "{said}");
    });
}

#[test]
fn the_service_manager_hears_which_process_it_is_now() {
    test(|| {
        let (origin, manager) = (origin(), Manager::new());
        let setup = ProxySetup {
            env: manager.env(),
            ..ProxySetup::default()
        };
        let proxy = Site::default().start_with(&[origin.address.to_string()], &setup);
        assert!(manager.told().starts_with("READY=1"));
        let successors = Successors(&proxy);
        let next = successors.upgrade();
        assert_eq!(manager.told(), format!("MAINPID={next}"));
        // The old one says no more.
        assert!(manager.told().starts_with("READY=1"));
        signal(next, Signal::TERM);
        assert!(manager.told().starts_with("STOPPING=1"));
    });
}

#[test]
fn a_process_is_stopped_by_its_control_socket() {
    test(|| {
        let (origin, mut proxy) = operated();
        let mut busy = proxy.client();
        busy.send(get("/slow/60000")).unwrap();
        until("the request is in flight", || origin.stats().in_flight == 1);
        let done = evenkeel(&proxy, &["stop"]);
        assert!(done.status.success(), "{done:?}");
        assert!(
            text(&done.stdout).contains("exchanges in flight have 30s"),
            "{done:?}"
        );
        assert!(proxy.wait(Duration::from_millis(300)).is_none());
        // It drains: its socket has another path.
        let path = format!("control.sock.{}", proxy.pid());
        let mut command = Command::new(program());
        command
            .args(["stop", "--now", "--socket"])
            .arg(proxy.path(&path));
        let done = evenkeel_testkit::process::run(command, STEP).unwrap();
        assert!(done.status.success(), "{done:?}");
        assert!(proxy.wait(STEP).expect("it ends").success());
    });
}

/// The usual way: the file of the program is replaced first.
#[test]
fn a_program_whose_file_was_replaced_is_the_next_one() {
    test(|| {
        let (origin, dir) = (origin(), evenkeel_testkit::TempDir::new().unwrap());
        let installed = dir.join("evenkeel");
        std::fs::copy(program(), &installed).unwrap();
        let config = Site::default().config(&[origin.address.to_string()]);
        let proxy = Proxy::start(&installed, &config).unwrap();
        let next = dir.join("next");
        std::fs::copy(program(), &next).unwrap();
        std::fs::rename(&next, &installed).unwrap();
        let successors = Successors(&proxy);
        let pid = successors.upgrade();
        let running = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
        assert_eq!(running, installed);
        assert_serves(&mut proxy.client());
    });
}
