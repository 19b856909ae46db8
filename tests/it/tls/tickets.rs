//! Sessions that are resumed over reloads, upgrades and several machines.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_testkit::Proxy;
use evenkeel_testkit::deadline::{holds_within, until, within};
use evenkeel_testkit::tls::Issued;
use evenkeel_tls::SealingKey;
use evenkeel_tls::sealed::Purpose;
use rustls::{ClientConfig, HandshakeKind};

use super::clients::{asking, with_clients};
use super::{Issuing, TLS12, TLS13, checked, connect, counted};
use crate::reload::{SITE, reload};
use crate::setup::{Site, figures, origin, test};
use crate::upgrade::{Successors, is_running};
use evenkeel_testkit::servers::Server;

/// Connects, sends a request, and says whether the session was resumed.
#[track_caller]
fn visit(proxy: &Proxy, config: &Arc<ClientConfig>) -> HandshakeKind {
    let mut client = connect(proxy, "a.test", config).unwrap();
    assert_eq!(client.get("/ping").unwrap().status, 200);
    client.tls().unwrap().handshake_kind().unwrap()
}

/// A client of each version, with a session.
fn clients_with_sessions(
    proxy: &Proxy,
    issuing: &Issuing,
    shown: Option<&Issued>,
) -> [Arc<ClientConfig>; 2] {
    [TLS13, TLS12].map(|versions| {
        let config = issuing.authority.trusting_with(versions, shown).unwrap();
        assert_eq!(visit(proxy, &config), HandshakeKind::Full);
        config
    })
}

/// A site that can be reloaded and upgraded.
fn operated(listener: &str) -> Site<'_> {
    Site { listener, ..SITE }
}

#[test]
fn a_session_is_resumed_after_a_reload_with_other_settings() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        issuing.issue("b", &["a.test", "b.test"]);
        let origin = origin();
        let endpoints = [origin.address.to_string()];
        let proxy = operated(&issuing.listener(&["a"], "")).start(&endpoints);
        let clients = clients_with_sessions(&proxy, &issuing, None);
        for (stem, more) in [
            ("a", ", unknown_name = 'refuse', hsts = true"),
            ("b", ""),
            ("a", ", groups = ['P-256', 'X25519']"),
        ] {
            let listener = issuing.listener(&[stem], more);
            reload(&proxy, &operated(&listener).config(&endpoints));
            for client in &clients {
                assert_eq!(visit(&proxy, client), HandshakeKind::Resumed, "{more}");
            }
        }
        // The preset without TLS 1.2 leaves the session of TLS 1.3.
        let listener = issuing.listener(&["a"], ", preset = 'modern'");
        reload(&proxy, &operated(&listener).config(&endpoints));
        assert_eq!(visit(&proxy, &clients[0]), HandshakeKind::Resumed);
        assert!(connect(&proxy, "a.test", &clients[1]).is_err());
    });
}

#[test]
fn a_session_is_not_resumed_once_clients_are_trusted_otherwise() {
    test(|| {
        let (issuing, clients) = with_clients();
        let shown = clients.issue(&["client.test"]).unwrap();
        let other = super::Authority::new().unwrap();
        fs::write(issuing.path("both.pem"), clients.pem() + &other.pem()).unwrap();
        let origin = origin();
        let endpoints = [origin.address.to_string()];
        let required = asking(&issuing, "");
        let proxy = operated(&required).start(&endpoints);
        let clients = clients_with_sessions(&proxy, &issuing, Some(&shown));
        let both = required.replace("clients.pem", "both.pem");
        let optional = asking(&issuing, ", mode = 'optional'");
        for (listener, kind) in [
            (asking(&issuing, ", forward = true"), HandshakeKind::Resumed),
            (both, HandshakeKind::Full),
            (optional, HandshakeKind::Full),
            (issuing.listener(&["a"], ""), HandshakeKind::Full),
        ] {
            reload(&proxy, &operated(&listener).config(&endpoints));
            for client in &clients {
                assert_eq!(visit(&proxy, client), kind, "{listener}");
                assert_eq!(visit(&proxy, client), HandshakeKind::Resumed);
            }
        }
    });
}

#[test]
fn a_session_is_resumed_after_upgrades() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let origin = origin();
        let endpoints = [origin.address.to_string()];
        let mut proxy = operated(&issuing.listener(&["a"], "")).start(&endpoints);
        let clients = clients_with_sessions(&proxy, &issuing, None);
        let session = issuing.path("session.pem");
        assert!(s_client(&proxy, &["-sess_out", &session]).contains("\nNew, TLSv1.3"));
        // This connection gets its tickets from the first process.
        let late = issuing.client(TLS13);
        let mut open = connect(&proxy, "a.test", &late).unwrap();
        {
            let successors = Successors(&proxy);
            successors.upgrade();
            assert_eq!(open.get("/ping").unwrap().status, 200);
            for client in clients.iter().chain([&late]) {
                assert_eq!(visit(&proxy, client), HandshakeKind::Resumed);
            }
            assert_eq!(counted(&proxy, "tls_resumed"), 3);
            until("the first one has ended", || !is_running(proxy.pid()));
            // Its key reaches the third process through the second.
            successors.upgrade();
            let said = s_client(&proxy, &["-sess_in", &session]);
            assert!(said.contains("\nReused, TLSv1.3"), "{said}");
        }
        assert!(!proxy.stderr().contains("TLS sessions cannot be resumed"));
        proxy.wait(evenkeel_testkit::deadline::STEP);
    });
}

/// The output of a request by `openssl s_client`, with its session.
fn s_client(proxy: &Proxy, arguments: &[&str]) -> String {
    let dir = evenkeel_testkit::TempDir::new().unwrap();
    let request = dir.join("request");
    let text = "GET /ping HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
    fs::write(&request, text).unwrap();
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", proxy.address("web"), "-ign_eof"]);
    command.args(["-servername", "a.test"]).args(arguments);
    command.stdin(fs::File::open(request).unwrap());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("pong"), "{text}");
    text
}

#[test]
fn another_protocol_agrees_on_another_application() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let origin = origin();
        let endpoints = [origin.address.to_string()];
        let listener = issuing.listener(&["a"], "");
        let proxy = operated(&listener).start(&endpoints);
        let mut config = ClientConfig::clone(&issuing.client(TLS13));
        config.alpn_protocols = vec![b"other".to_vec()];
        let config = Arc::new(config);
        assert!(connect(&proxy, "a.test", &config).is_err());
        let of_tcp = format!("{listener}\nprotocol = 'tcp'");
        reload(&proxy, &operated(&of_tcp).config(&endpoints));
        assert!(connect(&proxy, "a.test", &config).is_ok());
        reload(&proxy, &operated(&listener).config(&endpoints));
        assert!(connect(&proxy, "a.test", &config).is_err());
    });
}

/// A site with this table of tickets.
fn with_tickets(issuing: &Issuing, tickets: &str, endpoints: &[String]) -> Proxy {
    let site = Site {
        listener: &issuing.listener(&["a"], ""),
        server: &format!("{}\n[tickets]\n{tickets}", SITE.server),
        ..Site::default()
    };
    site.start(endpoints)
}

#[test]
fn machines_with_one_key_file_resume_each_others_sessions() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let origin = origin();
        let endpoints = [origin.address.to_string()];
        let key = |name: &str, byte: u8| {
            let path = issuing.path(name);
            fs::write(&path, [byte; 80]).unwrap();
            path
        };
        let (old, new) = (key("old.key", 1), key("new.key", 2));
        let keys = format!("keys = ['{new}', '{old}']");
        let machines = [0, 1].map(|_| with_tickets(&issuing, &keys, &endpoints));
        let clients = clients_with_sessions(&machines[0], &issuing, None);
        for machine in [1, 0] {
            for client in &clients {
                assert_eq!(visit(&machines[machine], client), HandshakeKind::Resumed);
            }
        }
        // A machine with keys of its own can't open the ticket.
        let alone = with_tickets(&issuing, "", &endpoints);
        let [client, _] = clients_with_sessions(&machines[0], &issuing, None);
        assert_eq!(visit(&alone, &client), HandshakeKind::Full);

        // A key that was replaced goes on opening, in the place of the old one.
        let [client, _] = clients_with_sessions(&machines[0], &issuing, None);
        key("old.key", 2);
        key("new.key", 3);
        let said = |text: &'static str| {
            until(text, || {
                machines.iter().all(|it| it.stderr().contains(text))
            });
        };
        said("tickets: the keys were reloaded: 2 in all");
        assert_eq!(visit(&machines[1], &client), HandshakeKind::Resumed);
        // A broken file leaves them in use.
        fs::write(&new, "too short").unwrap();
        said("has 9 bytes, but a file of ticket keys has 48 or 80; the previous keys stay in use");
        assert_eq!(visit(&machines[0], &client), HandshakeKind::Resumed);
        // Without the old key its tickets are worth nothing.
        key("old.key", 5);
        key("new.key", 4);
        // No visit meanwhile: it might resume by the old key, and get a ticket of the new one.
        until("other keys are in use", || {
            let said = machines[0].stderr();
            said.matches("the keys were reloaded: 2 in all").count() == 2
        });
        assert_eq!(visit(&machines[0], &client), HandshakeKind::Full);
    });
}

#[test]
fn mistakes_with_ticket_keys_are_said_at_their_place() {
    use std::os::unix::fs::PermissionsExt;
    test(|| {
        let dir = evenkeel_testkit::TempDir::new().unwrap();
        fs::write(dir.join("short.key"), "short").unwrap();
        fs::write(dir.join("open.key"), [7; 80]).unwrap();
        let mode = fs::Permissions::from_mode(0o644);
        fs::set_permissions(dir.join("open.key"), mode).unwrap();
        for (tickets, is_good, expected) in [
            (
                "keys = 'open.key'",
                true,
                "every user of this machine can read the key of tickets",
            ),
            ("keys = 'short.key'", false, "has 5 bytes"),
            ("keys = 'missing.key'", false, "openssl rand 80"),
            ("keys = []", false, "the list is empty"),
            (
                "shared = 'redis://me:secret@localhost'",
                false,
                "only in encrypted form, but there is no key",
            ),
            (
                "shared = 'redis://localhost'\nencrypt_with = 'short.key'",
                false,
                "has 5 bytes, but a key needs at least 32",
            ),
            (
                "shared = 'redis://localhost'\nencrypt_with = 'open.key'\nkeys = 'open.key'",
                false,
                "in files or at a server",
            ),
            (
                "encrypt_with = 'open.key'",
                true,
                "`encrypt_with` has no effect without `shared`",
            ),
            ("lifetime = '8d'", false, "for 7 days at most"),
            ("keys = 'open.key'\nrotation = '1h'", true, "not by time"),
        ] {
            let config = SITE.config(&["127.0.0.1:9".to_owned()]);
            let (said_good, text) = checked(&dir, &format!("{config}\n[tickets]\n{tickets}\n"));
            assert_eq!(said_good, is_good, "{tickets}\n{text}");
            assert!(text.contains(expected), "{tickets}\n{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    });
}

#[test]
fn keys_are_replaced_by_time_though_nobody_comes() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let times = "rotation = '1s'\nlifetime = '1s'";
        let proxy = with_tickets(&issuing, times, &["127.0.0.1:9".to_owned()]);
        let figure = |name: &str| figures(&proxy)["tickets"][name].as_u64().unwrap();
        until("some keys were made", || figure("rotations") >= 3);
        assert!(figure("keys") <= 3, "{}", figures(&proxy)["tickets"]);
        assert_eq!(counted(&proxy, "tls_handshakes"), 0);
    });
}

/// Machines ask the server every 10 s, and within a second if there is a reason.
const SOONER_THAN_BY_TIME: Duration = Duration::from_secs(6);

/// The table of machines that share their keys at this server.
fn sharing(issuing: &Issuing, redis: &Server, cluster: &str) -> String {
    let (server, key) = (redis.endpoint(), issuing.path(cluster));
    format!("shared = '{server}'\nencrypt_with = '{key}'")
}

fn sharing_figure(proxy: &Proxy, name: &str) -> serde_json::Value {
    figures(proxy)["tickets"]["server"][name].clone()
}

#[test]
fn machines_with_one_server_resume_each_others_sessions() {
    within(Duration::from_secs(60), || {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        fs::write(issuing.path("cluster.key"), [7; 32]).unwrap();
        fs::write(issuing.path("other.key"), [8; 32]).unwrap();
        let origin = origin();
        let endpoints = [origin.address.to_string()];
        let mut redis = Server::redis();
        redis.start(&[]);
        let start = |cluster: &str| {
            let proxy = with_tickets(&issuing, &sharing(&issuing, &redis, cluster), &endpoints);
            until("it is up", || sharing_figure(&proxy, "up") == true);
            proxy
        };
        let machines = [start("cluster.key"), start("cluster.key")];
        // The second machine has the first one's key from the start.
        let clients = clients_with_sessions(&machines[0], &issuing, None);
        for client in &clients {
            assert_eq!(visit(&machines[1], client), HandshakeKind::Resumed);
        }
        // The first one asks once a ticket comes whose key it does not have.
        let [client, _] = clients_with_sessions(&machines[1], &issuing, None);
        visit(&machines[0], &client);
        let has_learned = || figures(&machines[0])["tickets"]["learned"] == 1;
        assert!(holds_within(SOONER_THAN_BY_TIME, has_learned));
        let [client, _] = clients_with_sessions(&machines[1], &issuing, None);
        assert_eq!(visit(&machines[0], &client), HandshakeKind::Resumed);
        // Another cluster's machine can't use what lies there.
        let stranger = start("other.key");
        assert_eq!(visit(&stranger, &client), HandshakeKind::Full);
        assert_eq!(figures(&stranger)["tickets"]["learned"], 0);

        let client = redis::Client::open(format!("redis+unix://{}", redis.socket().display()));
        let mut connection = client.unwrap().get_connection().unwrap();
        let mut members = redis::cmd("ZRANGE");
        members.arg("evenkeel:tickets:1").arg(0).arg(-1);
        let members: Vec<Vec<u8>> = members.query(&mut connection).unwrap();
        assert_eq!(members.len(), 3);
        let cluster = SealingKey::read(issuing.folder.join("cluster.key").as_ref()).unwrap();
        let opened = members.iter().filter_map(|it| {
            let (name, sealed) = it.split_first_chunk::<16>().unwrap();
            cluster.open(Purpose::TicketKey, name, sealed)
        });
        let opened: Vec<_> = opened.collect();
        assert_eq!(opened.len(), 2);
        for exported in &opened {
            // Behind the version and the name.
            let secret = &exported[17..49];
            let has_secret = |it: &Vec<u8>| it.windows(32).any(|it| it == secret);
            assert!(!members.iter().any(has_secret));
        }
        let mut ttl = redis::cmd("PTTL");
        let ttl: i64 = ttl
            .arg("evenkeel:tickets:1")
            .query(&mut connection)
            .unwrap();
        assert!((1..=24 * 3_600_000 + 1).contains(&ttl), "{ttl}");

        // Without the server, handshakes go on, and so do resumptions of known keys.
        redis.stop();
        let [client, _] = clients_with_sessions(&machines[0], &issuing, None);
        assert_eq!(visit(&machines[1], &client), HandshakeKind::Resumed);
        assert_eq!(visit(&stranger, &client), HandshakeKind::Full);
        until("it is noticed", || sharing_figure(&stranger, "up") == false);
        assert!(sharing_figure(&stranger, "failure").is_string());
        redis.start(&[]);
        until("it is found again", || {
            sharing_figure(&stranger, "up") == true
        });
        let said = stranger.stderr();
        assert_eq!(
            said.matches("TLS sessions of other machines cannot be resumed")
                .count(),
            1,
            "{said}"
        );
        assert_eq!(figures(&stranger)["tickets"]["server_downs"], 1);
    });
}
