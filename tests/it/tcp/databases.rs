//! Databases behind a listener of TCP, with the clients that belong to them.

use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::Proxy;
use evenkeel_testkit::deadline::until;
use evenkeel_testkit::process::run;

use super::before;
use crate::health::states;
use crate::setup::{figures, test};
use evenkeel_testkit::servers::Server;

/// The program before a server with this limit of connections, with probes of this protocol.
fn in_front_of(server: &Server, max_in_flight: u32, protocol: &str) -> Proxy {
    let (address, interval) = (server.endpoint(), "300ms");
    let endpoint = format!("{{ address = \"{address}\", max_in_flight = {max_in_flight} }}");
    let health = format!("health = {{ interval = \"{interval}\", protocol = \"{protocol}\" }}");
    let proxy = before(&[endpoint], &health);
    until("a probe succeeded", || {
        let figures = figures(&proxy);
        let probe = &figures["upstreams"][0]["endpoints"][0]["last_probe"];
        probe["answer"].is_string() && states(&proxy) == ["up"]
    });
    proxy
}

/// Runs a client with the listener's host and port behind these options.
#[track_caller]
fn client(proxy: &Proxy, program: &str, [host, port]: [&str; 2], args: &[&str]) -> String {
    let mut command = Command::new(program);
    let address = proxy.socket_addr("web");
    command.env("PGDATABASE", "postgres").args(args);
    command.args([host, &address.ip().to_string()]);
    command.args([port, &address.port().to_string()]);
    let output = run(command, Duration::from_secs(25)).unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn postgres() {
    test(|| {
        let mut server = Server::postgres();
        server.start(&[]);
        // It takes four sessions, one of them for probes.
        let proxy = in_front_of(&server, 2, "postgres");
        let psql = |sql: &str| {
            let args = ["--no-psqlrc", "-tA", "-U", "postgres", "-c", sql];
            client(&proxy, "psql", ["-h", "-p"], &args)
        };
        assert_eq!(
            psql("SELECT sum(n) FROM generate_series(1, 1000) n"),
            "500500\n"
        );
        let long = psql("SELECT repeat('x', 999) FROM generate_series(1, 5000)");
        assert_eq!(long.len(), 5_000_000);
        // Eight clients at a time, with a session for each transaction: they queue.
        let script = server.file("one.sql");
        std::fs::write(&script, "SELECT 1;\n").unwrap();
        let script = script.display().to_string();
        let args = [
            "-n", "-C", "-c", "8", "-j", "8", "-t", "10", "-U", "postgres", "-f", &script,
        ];
        let report = client(&proxy, "pgbench", ["-h", "-p"], &args);
        let all = "number of transactions actually processed: 80/80";
        assert!(report.contains(all), "{report}");
        let figures = figures(&proxy);
        let upstream = &figures["upstreams"][0];
        assert!(upstream["queued"].as_u64() > Some(0), "{upstream}");
        assert_eq!(upstream["endpoints"][0]["failures"], 0, "{upstream}");
        assert!(
            !server.log().contains("too many clients"),
            "{}",
            server.log()
        );
        // Another process of it is found by its probes, and served to the same clients.
        server.stop();
        until("it is down", || states(&proxy) == ["down"]);
        server.start(&[]);
        until("it is up", || states(&proxy) == ["up"]);
        assert_eq!(psql("SELECT 1"), "1\n");
    });
}

#[test]
fn redis() {
    test(|| {
        let mut server = Server::redis();
        server.start(&[]);
        let proxy = in_front_of(&server, 100, "redis");
        let options = ["-h", "-p"];
        let cli = |args: &[&str]| {
            // `redis-cli` takes options first.
            let address = proxy.socket_addr("web");
            let (host, port) = (address.ip().to_string(), address.port().to_string());
            let mut command = Command::new("redis-cli");
            command.args(["-h", &host, "-p", &port]).args(args);
            let output = run(command, Duration::from_secs(10)).unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(cli(&["SET", "greeting", "hello"]), "OK\n");
        assert_eq!(cli(&["GET", "greeting"]), "hello\n");
        // Answers to a burst come in order.
        const BURST: usize = 20_000;
        let mut burst = proxy.client();
        burst.send("INCR n\r\n".repeat(BURST)).unwrap();
        let expected: String = (1..=BURST).map(|it| format!(":{it}\r\n")).collect();
        let answers = burst.read_len(expected.len()).unwrap();
        assert!(answers == expected.as_bytes());
        let args = ["-q", "-t", "set,get", "-n", "20000", "-c", "20", "-P", "50"];
        let report = client(&proxy, "redis-benchmark", options, &args);
        assert_eq!(report.matches("requests per second").count(), 2, "{report}");
        drop(burst);
        let figures = figures(&proxy);
        assert_eq!(figures["upstreams"][0]["endpoints"][0]["failures"], 0);
    });
}

#[test]
fn mariadb() {
    test(|| {
        let mut server = Server::mariadb();
        server.start(&[]);
        let proxy = in_front_of(&server, 5, "mysql");
        let ask = |sql: &str| {
            let args = ["--no-defaults", "--batch", "-N", "-u", "known", "-e", sql];
            client(&proxy, "mariadb", ["-h", "-P"], &args)
        };
        assert_eq!(ask("SELECT 6 * 7"), "42\n");
        assert_eq!(ask("SELECT REPEAT('x', 3000000)").len(), 3_000_001);
        until("both are logged", || proxy.access_log().len() == 2);
        for line in proxy.access_log_json() {
            assert_eq!(line["end"], "tunnel", "{line}");
        }
    });
}
