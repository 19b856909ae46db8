//! Access logs: what lines say, where they go, and which requests get one.

use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, ProxySetup, RawClient, TempDir};
use rustix::process::Signal;

use crate::setup::{assert_serves, figures, get, origin, program, test};
use crate::top::Terminal;

/// An upstream `app` behind a listener `web`, with this global access log.
fn start(log: &str, listener: &str, routes: &str) -> (evenkeel_testkit::OriginHandle, Proxy) {
    let origin = origin();
    let config = format!(
        "access_log = {log}\n[server]\nworkers = 1\n[status]\nbind = '127.0.0.1:0'\n\
         [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n{listener}\n{routes}\n\
         [[route]]\nname = 'all'\nupstream = 'app'\n\
         [upstream.app]\nendpoints = ['{}']\n",
        origin.address
    );
    let proxy = Proxy::start(program(), &config).unwrap();
    (origin, proxy)
}

fn lines_of(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Waits until the file has that many lines.
fn until_lines(path: &Path, count: usize) -> Vec<String> {
    until(&format!("{count} lines"), || lines_of(path).len() >= count);
    let lines = lines_of(path);
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines
}

/// A figure of the status page.
fn figure(proxy: &Proxy, name: &str) -> u64 {
    figures(proxy)[name].as_u64().unwrap()
}

#[test]
fn httplog_has_the_fields_of_haproxy() {
    test(|| {
        let (origin, proxy) = start("{ path = '$DIR/access.log', format = 'httplog' }", "", "");
        let mut client = proxy.client();
        assert_serves(&mut client);
        let line = until_lines(&proxy.path("access.log"), 1).remove(0);
        let (fields, request) = line.split_once(" \"").unwrap();
        assert_eq!(request, "GET /ping HTTP/1.1\"");
        let fields: Vec<&str> = fields.split(' ').collect();
        assert!(fields[0].starts_with("127.0.0.1:"), "{line}");
        assert!(fields[1].starts_with('[') && fields[1].ends_with(']'));
        assert_eq!(fields[1].len(), "[21/Nov/2026:09:05:01.123]".len());
        assert_eq!(fields[2], "web");
        assert_eq!(fields[3], format!("app/{}", origin.address));
        let times: Vec<u64> = fields[4].split('/').map(|it| it.parse().unwrap()).collect();
        assert_eq!(times.len(), 5);
        assert_eq!(fields[5], "200");
        assert!(fields[6].parse::<u64>().unwrap() > 4);
        assert_eq!(fields[7..], ["-", "-", "----", "1/1/0/0/0", "0/0"]);
    });
}

#[test]
fn httplog_shows_where_a_request_stood_in_the_queue() {
    test(|| {
        let origin = origin();
        let config = format!(
            "access_log = {{ path = '$DIR/access.log', format = 'httplog' }}\n[server]\nworkers = 1\n\
             [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n[[route]]\nupstream = 'app'\n\
             [upstream.app]\nendpoints = [{{ address = '{}', max_in_flight = 1 }}]\n",
            origin.address
        );
        let proxy = Proxy::start(program(), &config).unwrap();
        let mut first = proxy.client();
        first.send(get("/slow/500")).unwrap();
        until("the first is in flight", || origin.stats().in_flight == 1);
        let mut others: Vec<_> = (0..2).map(|_| proxy.client()).collect();
        for other in &mut others {
            other.send(get("/slow/50")).unwrap();
        }
        for client in std::iter::once(&mut first).chain(&mut others) {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        let lines = until_lines(&proxy.path("access.log"), 3);
        let queues: Vec<_> = lines
            .iter()
            .map(|line| line.split(' ').nth(11).unwrap())
            .collect();
        assert_eq!(queues, ["0/0", "0/1", "0/2"], "{lines:#?}");
        let waits: Vec<u64> = lines
            .iter()
            .map(|line| {
                let times = line.split(' ').nth(4).unwrap();
                times.split('/').nth(1).unwrap().parse().unwrap()
            })
            .collect();
        assert!(
            waits[0] == 0 && waits[1] > 100 && waits[2] > waits[1],
            "{waits:?}"
        );
        // Another exchange was in flight when the first ended, one waited.
        assert!(lines[0].contains(" 3/3/2/1/0 "), "{}", lines[0]);
    });
}

#[test]
fn json_times_every_phase_and_gives_the_reason() {
    test(|| {
        let (_origin, proxy) = start("{ path = '$DIR/access.log', format = 'json' }", "", "");
        let mut client = proxy.client();
        client.send(get("/drip/3/100")).unwrap();
        client.read_response("GET").unwrap();
        until("a line", || proxy.access_log_json().len() == 1);
        let line = proxy.access_log_json().remove(0);
        let number = |key: &str| {
            line[key]
                .as_u64()
                .unwrap_or_else(|| panic!("{key}: {line}"))
        };
        for key in [
            "head_us",
            "connect_us",
            "first_byte_us",
            "transfer_us",
            "total_us",
        ] {
            number(key);
        }
        assert!(number("transfer_us") >= 150_000, "{line}");
        let sum = number("connect_us") + number("first_byte_us") + number("transfer_us");
        assert!(sum <= number("total_us"), "{line}");
        assert_eq!(line["reason"], "picked");
        assert!(number("client_port") > 0);
        assert_eq!(line["end"], "complete");
    });
}

#[test]
fn a_template_shows_its_fields() {
    test(|| {
        let log = "{ path = '$DIR/access.log', template = '{{{client_ip}}} {method} {path} {query} {status} {reason} {end} {termination} {header:X-Who}|{referer}' }";
        let (_origin, proxy) = start(log, "", "");
        let mut client = proxy.client();
        client
            .ask("GET /ping?a=1 HTTP/1.1\r\nHost: a\r\nx-who: \"me\"\té\r\n\r\n")
            .unwrap();
        let lines = until_lines(&proxy.path("access.log"), 1);
        assert_eq!(
            lines[0],
            "{127.0.0.1} GET /ping a=1 200 picked complete ---- \\x22me\\x22\\x09\\xC3\\xA9|-"
        );
    });
}

#[test]
fn no_request_can_forge_a_line() {
    test(|| {
        let nasty = "GET /a\"b\\c%0a{}|#?x=\"} HTTP/1.1\r\nHost: a\r\nUser-Agent: x\" 200 1\\\t\u{1b}[31m\u{ff}\r\n\
                     Referer: \",\"status\":200,\"x\":\"\r\nCookie: a=\"b\"\r\nX-Who: }{|\r\n\r\n";
        for format in [
            "format = 'json'",
            "format = 'combined'",
            "format = 'httplog'",
            "template = '{request} {referer} {user_agent} {header:Cookie} {header:X-Who}'",
        ] {
            let log = format!("{{ path = '$DIR/access.log', {format} }}");
            let (_origin, proxy) = start(&log, "", "");
            // With the escape it is refused, and without it served; either
            // way there is one line.
            for request in [nasty.to_owned(), nasty.replace('\u{1b}', "")] {
                let mut client = proxy.client();
                client.send(&request).unwrap();
                client.read_response("GET").unwrap();
            }
            let mut client = proxy.client();
            client.send("G\u{7}\"}\n\r\nT / HTTP/1.1\r\n\r\n").unwrap();
            client.read_response("GET").unwrap();
            for line in until_lines(&proxy.path("access.log"), 3) {
                assert!(
                    line.bytes().all(|byte| (0x20..0x7f).contains(&byte)),
                    "{line:?}"
                );
                if format.contains("json") {
                    serde_json::from_str::<serde_json::Value>(&line).unwrap();
                }
                if format.contains("combined") {
                    assert_eq!(line.matches('"').count(), 6, "{line}");
                }
                if format.contains("httplog") {
                    assert_eq!(line.matches('"').count(), 2, "{line}");
                }
            }
        }
    });
}

#[test]
fn routes_have_logs_of_their_own() {
    test(|| {
        let routes = "[[route]]\nname = 'quiet'\nmatch = { path = '/quiet' }\nanswer = {}\naccess_log = false\n\
             [[route]]\nname = 'own'\nmatch = { path = '/own' }\nanswer = {}\n\
             access_log = { path = '$DIR/own.log', template = '{route} {path}' }";
        let (_origin, proxy) = start(
            "{ path = '$DIR/access.log', template = '{listener} {path}' }",
            "",
            routes,
        );
        let mut client = proxy.client();
        for path in ["/quiet", "/own", "/ping", "/quiet", "/own", "/ping"] {
            client.get(path).unwrap();
        }
        assert_eq!(until_lines(&proxy.path("access.log"), 2), ["web /ping"; 2]);
        assert_eq!(until_lines(&proxy.path("own.log"), 2), ["own /own"; 2]);
    });
}

#[test]
fn a_sample_is_logged_and_every_error() {
    test(|| {
        let log =
            "{ path = '$DIR/access.log', template = '{status}', only = 'errors', sample = 0.1 }";
        let (_origin, proxy) = start(log, "", "");
        let mut client = proxy.client();
        for _ in 0..10 {
            for _ in 0..10 {
                assert_serves(&mut client);
            }
            assert_eq!(client.get("/status/503").unwrap().status, 503);
        }
        // Wait for the line of the last request.
        let path = proxy.path("access.log");
        let count = |status: &str| lines_of(&path).iter().filter(|it| *it == status).count();
        until("every error is logged", || count("503") == 10);
        assert!((8..=12).contains(&count("200")), "{}", count("200"));
    });
}

#[test]
fn only_what_is_slow_is_logged() {
    test(|| {
        let log = "{ path = '$DIR/access.log', template = '{path}', slower_than = '100ms' }";
        let (_origin, proxy) = start(log, "", "");
        let mut client = proxy.client();
        for path in ["/ping", "/slow/200", "/ping", "/status/503", "/slow/150"] {
            client.get(path).unwrap();
        }
        let lines = until_lines(&proxy.path("access.log"), 2);
        assert_eq!(lines, ["/slow/200", "/slow/150"]);
    });
}

#[test]
fn usr1_opens_files_anew() {
    test(|| {
        let (_origin, proxy) = start("{ path = '$DIR/access.log' }", "", "");
        let (log, old) = (proxy.path("access.log"), proxy.path("access.log.1"));
        let mut client = proxy.client();
        assert_serves(&mut client);
        until_lines(&log, 1);
        std::fs::rename(&log, &old).unwrap();
        proxy.signal(Signal::USR1);
        until("it is opened anew", || log.exists());
        until("it says so", || {
            proxy.stderr().contains("access.log: reopened")
        });
        assert_serves(&mut client);
        until_lines(&log, 1);
        until_lines(&old, 1);
    });
}

#[test]
fn a_file_that_cannot_be_opened_anew_goes_on() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let (folder, away) = (dir.join("logs"), dir.join("away"));
        std::fs::create_dir(&folder).unwrap();
        let log = format!("{{ path = '{}/access.log' }}", folder.display());
        let (_origin, proxy) = start(&log, "", "");
        let mut client = proxy.client();
        std::fs::rename(&folder, &away).unwrap();
        proxy.signal(Signal::USR1);
        until("it says so", || {
            proxy.stderr().contains("can't be reopened")
        });
        assert_serves(&mut client);
        until_lines(&away.join("access.log"), 1);
        assert_eq!(figure(&proxy, "log_lines_lost"), 0);
    });
}

#[test]
fn a_full_disk_slows_no_request_and_is_counted() {
    test(|| {
        let (_origin, mut proxy) = start("{ path = '/dev/full' }", "", "");
        let mut client = proxy.client();
        for _ in 0..50 {
            assert_serves(&mut client);
        }
        until("every line is counted as lost", || {
            figure(&proxy, "log_lines_lost") == 50
        });
        let is_said = || {
            proxy
                .stderr()
                .matches("lines are lost: No space left")
                .count()
        };
        until("it says so", || is_said() > 0);
        assert_eq!(is_said(), 1, "{}", proxy.stderr());
        proxy.terminate();
        assert!(
            proxy
                .wait(Duration::from_secs(5))
                .expect("it ends")
                .success()
        );
        assert!(
            proxy.stderr().contains("access log: 50 lines lost"),
            "{}",
            proxy.stderr()
        );
    });
}

#[test]
fn a_stuck_reader_slows_no_request_and_no_other_log() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let pipe = dir.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let routes = "[[route]]\nmatch = { path = '/own' }\nanswer = {}\naccess_log = { path = '$DIR/own.log' }";
        // No reader has it open, so a start that waits for a reader hangs.
        let log = format!("{{ path = '{}' }}", pipe.display());
        let (_origin, mut proxy) = start(&log, "", routes);
        let mut client = proxy.client();
        let target = format!("/ping?{}", "x".repeat(7_000));
        // More than the pipe and everything before it hold.
        let count = 4_000;
        for _ in 0..count {
            assert_eq!(client.get(&target).unwrap().text(), "pong");
        }
        client.get("/own").unwrap();
        until_lines(&proxy.path("own.log"), 1);
        until("lines are dropped", || {
            figure(&proxy, "log_lines_dropped") > 0
        });
        proxy.terminate();
        assert!(
            proxy
                .wait(Duration::from_secs(10))
                .expect("it ends")
                .success()
        );
        // Lines in the pipe do not count as lost, since a reader may still come.
        let said = proxy.stderr();
        let lost = said.rsplit_once(" lines lost").unwrap().0;
        let lost: u64 = lost.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(lost > count - 20 && lost <= count, "{lost} of {count}");
    });
}

/// Takes a message (RFC 5424) apart: its priority, the name of the program,
/// and the line.
fn message(text: &str) -> (&str, &str, &str) {
    let (priority, rest) = text.split_once(">1 ").expect(text);
    let fields: Vec<&str> = rest.splitn(7, ' ').collect();
    let [time, _host, app, pid, "-", "-", line] = fields[..] else {
        panic!("{text}");
    };
    assert!(
        time.len() == "2026-11-21T09:05:01.123456Z".len() && time.ends_with('Z'),
        "{text}"
    );
    assert!(pid.parse::<u32>().is_ok(), "{text}");
    (priority.trim_start_matches('<'), app, line)
}

#[test]
fn syslog_over_udp_gets_each_line_as_a_message() {
    test(|| {
        let daemon = UdpSocket::bind("127.0.0.1:0").unwrap();
        daemon
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let log = format!(
            "{{ syslog = 'udp://localhost:{}', template = '{{path}} {{status}}' }}",
            daemon.local_addr().unwrap().port()
        );
        let (_origin, proxy) = start(&log, "", "");
        let mut client = proxy.client();
        let mut buffer = [0; 4096];
        for path in ["/ping", "/status/204"] {
            client.get(path).unwrap();
        }
        for expected in ["/ping 200", "/status/204 204"] {
            let len = daemon.recv(&mut buffer).unwrap();
            let text = String::from_utf8_lossy(&buffer[..len]);
            assert_eq!(message(&text), ("134", "evenkeel", expected));
        }
    });
}

#[test]
fn a_syslog_daemon_that_is_away_is_noticed_and_found_again() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let path = dir.join("log");
        let log = format!(
            "{{ syslog = {{ to = '{}', facility = 'daemon', severity = 'notice', app_name = 'edge' }}, template = '{{path}}' }}",
            path.display()
        );
        let (_origin, proxy) = start(&log, "", "");
        let mut client = proxy.client();
        client.get("/1").unwrap();
        until("the line is lost", || figure(&proxy, "log_lines_lost") == 1);
        until("it says so once", || {
            proxy.stderr().matches("lines are lost: ").count() == 1
        });
        for round in 0..2 {
            let daemon = UnixDatagram::bind(&path).unwrap();
            daemon.set_nonblocking(true).unwrap();
            // Its queue is short, so lines are read at once.
            let mut buffer = [0; 4096];
            let mut text = String::new();
            let mut take = || {
                while let Ok(len) = daemon.recv(&mut buffer) {
                    text = String::from_utf8_lossy(&buffer[..len]).into_owned();
                }
                !text.is_empty()
            };
            until("a message comes", || {
                client.get("/2").unwrap();
                take()
            });
            until("it says so", || {
                take();
                proxy.stderr().matches("writing again").count() == round + 1
            });
            assert_eq!(message(&text), ("29", "edge", "/2"));
            // The next line finds no daemon.
            drop(daemon);
            std::fs::remove_file(&path).unwrap();
            let before = figure(&proxy, "log_lines_lost");
            client.get("/3").unwrap();
            until("the line is lost", || {
                figure(&proxy, "log_lines_lost") > before
            });
        }
    });
}

#[test]
fn a_syslog_daemon_that_is_stuck_slows_no_request() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let path = dir.join("log");
        // Its queue is full after a few messages.
        let _daemon = UnixDatagram::bind(&path).unwrap();
        let log = format!("{{ syslog = '{}' }}", path.display());
        let (_origin, proxy) = start(&log, "", "");
        let mut client = proxy.client();
        for _ in 0..500 {
            assert_serves(&mut client);
        }
        until("lines are lost", || figure(&proxy, "log_lines_lost") > 0);
    });
}

/// Two routes that answer here, with further keys of the file, the listener and the
/// second route.
fn answers(global: &str, listener: &str, quiet: &str) -> String {
    format!(
        "{global}\n[server]\nworkers = 1\n[[listener]]\nname = 'web'\n\
         bind = '127.0.0.1:0'\n{listener}\n\
         [[route]]\nmatch = {{ path = '/ping' }}\nanswer = {{ body = 'pong' }}\n\
         [[route]]\nanswer = {{ body = 'quiet' }}\n{quiet}\n"
    )
}

/// The standard output of a program that got requests for `/ping` and `/quiet` and ended, with
/// its event log about that.
fn written(config: &str, environment: &[(&str, &str)]) -> (Vec<String>, String) {
    let dir = TempDir::new().unwrap();
    let output = dir.join("stdout");
    let script = format!("exec \"$0\" \"$@\" >'{}'", output.display());
    let setup = ProxySetup {
        through: ["sh", "-c", &script].map(String::from).into(),
        env: environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        ..ProxySetup::default()
    };
    let mut proxy = Proxy::start_with(program(), config, &setup).unwrap();
    let mut client = proxy.client();
    assert_eq!(client.get("/ping").unwrap().text(), "pong");
    assert_eq!(client.get("/quiet").unwrap().text(), "quiet");
    drop(client);
    proxy.terminate();
    assert!(proxy.wait(Duration::from_secs(10)).unwrap().success());
    (lines_of(&output), proxy.stderr())
}

#[test]
fn in_a_container_requests_are_logged_by_default() {
    test(|| {
        let container = [("container", "podman")];
        let (lines, said) = written(&answers("", "", ""), &container);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("127.0.0.1 - - ["), "{lines:?}");
        assert!(
            lines[0].contains("\"GET /ping HTTP/1.1\" 200 4 "),
            "{lines:?}"
        );
        let expected = "access log: combined lines on standard output, as the environment has \
                        `container`; `access_log = false` turns them off";
        assert!(said.contains(expected), "{said}");
        // Silencing one route keeps the log of the others.
        let (lines, _) = written(&answers("", "", "access_log = false"), &container);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("/ping"), "{lines:?}");
        for (global, listener, quiet) in [
            ("access_log = false", "", ""),
            ("access_log = { path = '$DIR/a.log' }", "", ""),
            ("", "access_log = { path = '$DIR/a.log' }", ""),
            ("", "", "access_log = { path = '$DIR/a.log' }"),
        ] {
            let config = answers(global, listener, quiet);
            let (lines, said) = written(&config, &container);
            assert!(lines.is_empty(), "{config}\n{lines:?}");
            assert!(!said.contains("access log:"), "{said}");
        }
    });
}

#[test]
fn where_nobody_reads_standard_output_nothing_is_logged_by_default() {
    test(|| {
        for environment in [&[][..], &[("container", "")]] {
            let (lines, said) = written(&answers("", "", ""), environment);
            assert!(lines.is_empty(), "{lines:?}");
            assert!(!said.contains("access log:"), "{said}");
        }
        let (lines, _) = written(&answers("access_log = true", "", ""), &[]);
        assert_eq!(lines.len(), 2, "{lines:?}");
    });
}

/// The program in a terminal, and the address of its listener.
fn in_terminal(dir: &TempDir, config: &str) -> (Terminal, String) {
    let path = dir.join("evenkeel.toml");
    std::fs::write(&path, config).unwrap();
    let mut command = Command::new(program());
    command.args(["run", "--config"]).arg(path);
    command.env_remove("container");
    let terminal = Terminal::start(command, 50, 200);
    let before = "listener web: listening on ";
    terminal.await_text(before);
    let text = terminal.text();
    let (_, rest) = text.split_once(before).unwrap();
    let address = rest.split_whitespace().next().unwrap().to_owned();
    (terminal, address)
}

#[test]
fn in_a_terminal_requests_are_logged_by_default() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let (mut terminal, address) = in_terminal(&dir, &answers("", "", ""));
        terminal.await_text("access log: combined lines on standard output, as that is a terminal");
        let mut client = RawClient::connect(&address).unwrap();
        client.get("/ping").unwrap();
        terminal.await_text("\"GET /ping HTTP/1.1\" 200 4 ");
        terminal.signal(Signal::TERM);
        assert!(terminal.await_end().success());
        let (mut terminal, address) = in_terminal(&dir, &answers("access_log = false", "", ""));
        let mut client = RawClient::connect(&address).unwrap();
        client.get("/ping").unwrap();
        drop(client);
        terminal.signal(Signal::TERM);
        assert!(terminal.await_end().success());
        assert!(!terminal.text().contains("/ping"), "{}", terminal.text());
    });
}
