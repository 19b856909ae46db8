//! Probes in other protocols than HTTP, of real servers: up, down with the right words
//! when they are full, frozen or gone, and up again.

use std::sync::{Arc, Mutex};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawClient, RawOrigin};
use rustix::process::Signal;

use crate::health::{assert_said, site_with, states};
use crate::setup::{figures, nobody, test};
use evenkeel_testkit::servers::Server;

/// The program with one endpoint that is probed so. A probe has 300 ms.
fn probing(keys: &str, endpoint: &str) -> Proxy {
    probing_every("300ms", keys, endpoint)
}

/// The program with one endpoint that is probed this often. A probe has as long.
fn probing_every(interval: &str, keys: &str, endpoint: &str) -> Proxy {
    let health = format!("health = {{ interval = \"{interval}\", fall = 2, {keys} }}");
    site_with(&health, &[endpoint.to_owned()])
}

/// The result of the last probe.
fn last_answer(proxy: &Proxy) -> String {
    let figures = figures(proxy);
    let probe = &figures["upstreams"][0]["endpoints"][0]["last_probe"];
    probe["answer"].as_str().unwrap_or_default().to_owned()
}

#[track_caller]
fn assert_is(proxy: &Proxy, state: &str) {
    until(&format!("it is {state}"), || states(proxy) == [state]);
}

/// Waits until it is up, and its probes see this.
#[track_caller]
fn assert_up(proxy: &Proxy, answer: &str) {
    assert_is(proxy, "up");
    until(&format!("a probe sees {answer:?}"), || {
        last_answer(proxy).contains(answer)
    });
}

/// Stops the server and freezes it, each until it is noticed.
#[track_caller]
fn assert_follows(server: &mut Server, proxy: &Proxy, silent: &str) {
    server.signal(Signal::STOP);
    assert_is(proxy, "down");
    assert_said(proxy, &format!("is down after 2 failed probes: {silent}"));
    server.signal(Signal::CONT);
    assert_is(proxy, "up");
    server.stop();
    assert_is(proxy, "down");
    let gone = ["no such file or directory", "connection refused"];
    let said = gone.map(|it| format!("is down after 2 failed probes: {it}"));
    until("it says that nobody listens", || {
        said.iter().any(|it| proxy.stderr().contains(it))
    });
    server.start(&[]);
    assert_is(proxy, "up");
}

#[test]
fn redis() {
    test(|| {
        let mut server = Server::redis();
        server.start(&[]);
        let endpoint = server.endpoint();
        let proxy = probing("protocol = \"redis\"", &endpoint);
        assert_up(&proxy, "+PONG");
        assert_follows(&mut server, &proxy, "no answer to PING within 300ms");

        let bytes = probing(r#"send = "PING\r\n", receive = "+PONG""#, &endpoint);
        assert_up(&bytes, "\"+PONG\" came");
        let hex = probing(
            "send_hex = \"50494e47 0d0a\", receive_hex = \"2b50\"",
            &endpoint,
        );
        assert_up(&hex, "\"+P\" came");
        let other = probing(r#"send = "PONG\r\n", receive = "+PING""#, &endpoint);
        let why = "no \"+PING\" within 300ms, only \"-ERR unknown command 'PONG'";
        assert_said(&other, &format!("is down after 1 failed probe: {why}"));
        server.stop();

        server.start(&["--requirepass", "secret"]);
        assert_up(&proxy, "-NOAUTH Authentication required.");
        server.stop();
        server.start(&[
            "--replicaof",
            "127.0.0.1 1",
            "--replica-serve-stale-data",
            "no",
        ]);
        assert_said(
            &proxy,
            "is down after 2 failed probes: refused: MASTERDOWN Link with MASTER is down",
        );
        assert_eq!(states(&proxy), ["down"]);
    });
}

/// The login of a PostgreSQL client as superuser.
const POSTGRES_LOGIN: &[u8] = b"\0\0\0\x17\0\x03\0\0user\0postgres\0\0";

#[test]
fn postgres() {
    test(|| {
        let mut server = Server::postgres();
        let endpoint = server.endpoint();
        // A standby that no primary feeds starts for ever.
        let standby = server.file("data/standby.signal");
        std::fs::write(&standby, "").unwrap();
        server.start(&["-c", "hot_standby=off"]);
        // The server starts a process for each probe: a busy machine takes its time.
        let probing = |keys: &str| probing_every("1s", keys, &endpoint);
        let proxy = probing("protocol = \"postgres\"");
        assert_said(
            &proxy,
            "is down after 1 failed probe: refused: the database system is ",
        );
        until("its code", || last_answer(&proxy).contains(" (57P03)"));
        server.stop();
        std::fs::remove_file(&standby).unwrap();
        server.start(&[]);
        let refused = "role \"evenkeel\" does not exist (28000)";
        assert_up(&proxy, refused);

        let known = probing("protocol = \"postgres\", user = \"postgres\"");
        assert_up(&known, "session opened");
        // No probe leaves a trace but its login.
        let log = server.log();
        for word in [
            "reset by peer",
            "Broken pipe",
            "incomplete startup",
            "unexpected EOF",
        ] {
            assert!(!log.contains(word), "{log}");
        }
        drop(known);
        let sessions: Vec<_> = (0..4)
            .map(|_| {
                let mut client = RawClient::connect_unix(server.socket()).unwrap();
                client.send(POSTGRES_LOGIN).unwrap();
                client
            })
            .collect();
        let full = "refused: sorry, too many clients already (53300)";
        assert_said(&proxy, &format!("is down after 2 failed probes: {full}"));
        drop(sessions);
        assert_up(&proxy, refused);
        assert_follows(&mut server, &proxy, "no answer to the login within 1s");
    });
}

#[test]
fn mariadb() {
    test(|| {
        let mut server = Server::mariadb();
        server.start(&[]);
        let endpoint = server.endpoint();
        let proxy = probing("protocol = \"mysql\"", &endpoint);
        assert_up(&proxy, "; Access denied for user 'evenkeel'@'localhost'");
        let known = probing("protocol = \"mysql\", user = \"known\"", &endpoint);
        assert_up(&known, "-MariaDB");
        assert!(!last_answer(&known).contains("denied"));
        until("some probes of each", || {
            server
                .log()
                .matches("Access denied for user 'evenkeel'")
                .count()
                > 4
        });
        // The test itself has come and gone, as it waited for the server.
        let log = server.log();
        assert_eq!(log.matches("Aborted connection").count(), 1, "{log}");
        drop(known);

        let connect = || RawClient::connect_unix(server.socket()).unwrap();
        let connections: Vec<_> = (0..11).map(|_| connect()).collect();
        let full = "refused: Too many connections (1040)";
        assert_said(&proxy, &format!("is down after 2 failed probes: {full}"));
        drop(connections);
        assert_is(&proxy, "up");
        assert_follows(&mut server, &proxy, "no greeting within 300ms");
    });
}

#[test]
fn tls() {
    test(|| {
        let mut server = Server::openssl();
        server.start(&[]);
        let endpoint = server.endpoint();
        let proxy = probing("protocol = \"tls\", host = \"db.example\"", &endpoint);
        assert_up(&proxy, "ServerHello of TLS 1.3");
        assert_follows(&mut server, &proxy, "no ServerHello within 300ms");
        assert_up(
            &probing("protocol = \"tls\"", &endpoint),
            "ServerHello of TLS 1.3",
        );
        let other = probing("protocol = \"tls\", host = \"other.example\"", &endpoint);
        let why = "refused: alert unrecognized_name";
        assert_said(&other, &format!("is down after 1 failed probe: {why}"));
        server.stop();
        server.start(&["-tls1_2"]);
        assert_up(&proxy, "ServerHello of TLS 1.2");
    });
}

/// A mail server of a few lines.
struct MailServer {
    origin: RawOrigin,
    /// Its greeting, and its answer to `EHLO`.
    says: Arc<Mutex<[&'static str; 2]>>,
    /// The last bytes that it received.
    heard: Arc<Mutex<Vec<u8>>>,
}

impl MailServer {
    fn start() -> Self {
        let greeting = "220-mx.example ESMTP\r\n220 no spam\r\n";
        let says = Arc::new(Mutex::new([greeting, "250-mx\r\n250 SIZE 1000\r\n"]));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (lines, last) = (says.clone(), heard.clone());
        let origin = RawOrigin::start(move |_, mut stream| {
            let [greeting, hello] = *lines.lock().unwrap();
            let ehlo = "EHLO localhost\r\n";
            if stream.send(greeting).is_err() || stream.read_len(ehlo.len()).is_err() {
                return;
            }
            let _ = stream.send(hello);
            if let Ok(quit) = stream.read_len("QUIT\r\n".len()) {
                *last.lock().unwrap() = quit;
                let _ = stream.send("221 bye\r\n");
            }
        });
        MailServer {
            origin: origin.unwrap(),
            says,
            heard,
        }
    }
}

#[test]
fn smtp() {
    test(|| {
        let server = MailServer::start();
        let proxy = probing("protocol = \"smtp\"", &server.origin.address.to_string());
        assert_up(&proxy, "220-mx.example ESMTP");
        until("it says good-bye", || {
            *server.heard.lock().unwrap() == b"QUIT\r\n"
        });
        for (says, why) in [
            (["421 too busy\r\n", ""], "refused: 421 too busy"),
            (["220 mx\r\n", "502 what?\r\n"], "refused: 502 what?"),
            (
                ["+OK POP3\r\n", ""],
                "expected a greeting of SMTP, got \"+OK POP3\\r\\n\"",
            ),
            (
                ["220 mx\r\n", "250-mx\r\n"],
                "no answer to EHLO within 300ms, only \"250-mx\\r\\n\"",
            ),
        ] {
            *server.says.lock().unwrap() = says;
            assert_said(&proxy, &format!("is down after 2 failed probes: {why}"));
            *server.says.lock().unwrap() = ["220 mx\r\n", "250 mx\r\n"];
            assert_up(&proxy, "220 mx");
        }
    });
}

/// Each probe names another protocol at its port, and a port without a server.
#[test]
fn another_protocol_is_told_in_words() {
    test(|| {
        let ssh = RawOrigin::start(|_, mut stream| {
            let _ = stream.send("SSH-2.0-OpenSSH_9.2\r\n");
            let _ = stream.read_to_end();
        })
        .unwrap();
        let closing = RawOrigin::start(|_, _| {}).unwrap();
        let [ssh, closing] = [&ssh, &closing].map(|it| it.address.to_string());
        let got = "got \"SSH-2.0-OpenSSH_9.2\\r\\n\"";
        for (keys, expected, awaited) in [
            (
                "protocol = 'postgres'",
                "expected an answer of PostgreSQL",
                "the answer to the login",
            ),
            (
                "protocol = 'mysql'",
                "expected a packet of MySQL",
                "the greeting",
            ),
            ("protocol = 'redis'", "expected +PONG", "the answer to PING"),
            (
                "protocol = 'smtp'",
                "expected a greeting of SMTP",
                "the greeting",
            ),
            (
                "protocol = 'tls'",
                "expected a ServerHello",
                "the ServerHello",
            ),
        ] {
            let proxy = probing(keys, &ssh);
            let line = format!("is down after 1 failed probe: {expected}, {got}");
            assert_said(&proxy, &line);
            let proxy = probing(keys, &closing);
            // If it is closed before the request arrives, the connection is reset.
            let closed = format!("connection closed before {awaited}");
            until(&closed, || {
                let said = proxy.stderr();
                said.contains(&closed) || said.contains("connection reset by peer")
            });
        }
        let bytes = probing("send = 'hello', receive = 'hello'", &ssh);
        let line = "no \"hello\" within 300ms, only \"SSH-2.0-OpenSSH_9.2\\r\\n\"";
        assert_said(&bytes, line);
        let proxy = probing("protocol = 'tcp'", &nobody());
        assert_said(&proxy, "is down after 1 failed probe: connection refused");
        assert_up(&probing("protocol = 'tcp'", &ssh), "connection opened");
        assert_up(&probing("receive = 'SSH-2.0'", &ssh), "\"SSH-2.0\" came");
    });
}
