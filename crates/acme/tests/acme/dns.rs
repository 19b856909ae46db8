//! Certificates by DNS-01: updates that BIND takes, and a program.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_acme::{
    ChallengeKind, DnsSettings, Settings, State, TsigAlgorithm, UpdateSettings, finish_clean_ups,
};
use evenkeel_testkit::deadline::{STEP, until, within};
use evenkeel_testkit::process::free_port;
use evenkeel_testkit::{Bind, Pebble, PebbleSetup, TempDir, TsigKey};
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{RData, RecordType};

use crate::support::{Ahead, Kept, LIMIT, files, issuer};

const KEYS: [TsigKey; 3] = [
    TsigKey {
        name: "acme-256",
        algorithm: "hmac-sha256",
        secret: "c2VjcmV0IG9mIDMyIGJ5dGVzLCBvciBzbyBpdCBpcyE=",
    },
    TsigKey {
        name: "acme-384",
        algorithm: "hmac-sha384",
        secret: "c2VjcmV0IG9mIDQ4IGJ5dGVzLCBvciBzbyBpdCBpcyE=",
    },
    TsigKey {
        name: "acme-512",
        algorithm: "hmac-sha512",
        secret: "c2VjcmV0IG9mIDY0IGJ5dGVzLCBvciBzbyBpdCBpcyE=",
    },
];

const ALIAS: &str = "_acme-challenge.delegated CNAME delegated.acme.example.net.\n\
                     _acme-challenge.loop CNAME _acme-challenge.loop";

/// BIND with two zones, and Pebble that asks it.
fn servers() -> (Bind, Pebble) {
    let zones = [("example.com", ALIAS), ("acme.example.net", "")];
    let bind = Bind::start(&zones, &KEYS).unwrap();
    let pebble = Pebble::start_with(&PebbleSetup {
        http_port: free_port().unwrap(),
        tls_port: free_port().unwrap(),
        dns_port: Some(bind.port),
        ..PebbleSetup::default()
    });
    (bind, pebble.unwrap())
}

fn update(bind: &Bind) -> UpdateSettings {
    UpdateSettings {
        server: SocketAddr::from(([127, 0, 0, 1], bind.port)),
        zone: None,
        key_name: KEYS[0].name.to_owned(),
        algorithm: TsigAlgorithm::HmacSha256,
        secret: KEYS[0].secret.to_owned(),
    }
}

fn settings(storage: &Path, pebble: &Pebble, dns: DnsSettings) -> Settings {
    Settings {
        storage: storage.to_owned(),
        issuers: vec![issuer(pebble)],
        challenges: vec![ChallengeKind::Http01, ChallengeKind::Dns01],
        dns: Some(dns),
        on_demand: None,
        shared: None,
    }
}

fn start(storage: &Path, pebble: &Pebble, dns: DnsSettings, names: &[&str]) -> Kept {
    let mut settings = settings(storage, pebble, dns);
    settings.challenges = vec![ChallengeKind::Dns01];
    Kept::idle(settings, names, Ahead::new()).keep()
}

/// The values of the TXT records of a name.
fn texts(port: u16, name: &str) -> Vec<String> {
    let mut message = Message::query();
    message.add_query(Query::query(name.parse().unwrap(), RecordType::TXT));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(STEP)).unwrap();
    let server = ("127.0.0.1", port);
    socket.send_to(&message.to_vec().unwrap(), server).unwrap();
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).unwrap();
    let answer = Message::from_vec(&buffer[..length]).unwrap();
    let texts = answer.answers.iter().filter_map(|it| match &it.data {
        RData::TXT(text) => Some(String::from_utf8(text.txt_data.concat()).unwrap()),
        _ => None,
    });
    texts.collect()
}

#[test]
fn certificates_come_by_updates_of_each_algorithm() {
    within(LIMIT, || {
        let (bind, pebble) = servers();
        let algorithms = [
            TsigAlgorithm::HmacSha256,
            TsigAlgorithm::HmacSha384,
            TsigAlgorithm::HmacSha512,
        ];
        for (key, algorithm) in KEYS.into_iter().zip(algorithms) {
            let dir = TempDir::new().unwrap();
            let dns = DnsSettings::Update(UpdateSettings {
                key_name: key.name.to_owned(),
                algorithm,
                secret: key.secret.to_owned(),
                ..update(&bind)
            });
            let kept = start(dir.path(), &pebble, dns, &["a.example.com"]);
            let facts = kept.until_valid("a.example.com").facts();
            assert_eq!(facts.dns_names, ["a.example.com"]);
            let left = texts(bind.port, "_acme-challenge.a.example.com.");
            assert_eq!(left, [""; 0], "the record was removed");
        }
        assert_eq!(pebble.orders(), 3);
    });
}

/// A wildcard name needs DNS-01, even if another challenge is preferred. Its record has the
/// same name as that of the domain.
#[test]
fn a_wildcard_and_its_domain_get_certificates_together() {
    within(LIMIT, || {
        let (bind, pebble) = servers();
        let dir = TempDir::new().unwrap();
        let dns = DnsSettings::Update(UpdateSettings {
            zone: Some("example.com".to_owned()),
            ..update(&bind)
        });
        let names = ["*.example.com", "example.com"];
        let kept = start(dir.path(), &pebble, dns.clone(), &names);
        for name in names {
            assert_eq!(kept.until_valid(name).facts().dns_names, [name]);
        }
        let certificates = files(&dir, "certificates");
        assert_eq!(certificates, ["_.example.com.pem", "example.com.pem"]);
        assert_eq!(texts(bind.port, "_acme-challenge.example.com."), [""; 0]);
        drop(kept);
        let settings = settings(dir.path(), &pebble, dns);
        let kept = Kept::idle(settings, &["*.b.example.com"], Ahead::new()).keep();
        kept.until_valid("*.b.example.com");
    });
}

#[test]
fn a_record_that_is_an_alias_is_set_where_it_points() {
    within(LIMIT, || {
        let (bind, pebble) = servers();
        let dir = TempDir::new().unwrap();
        let dns = DnsSettings::Update(update(&bind));
        let names = ["delegated.example.com", "loop.example.com"];
        let kept = start(dir.path(), &pebble, dns, &names);
        kept.until_valid("delegated.example.com");
        let text = kept.until_failed("loop.example.com", 1);
        assert!(text.contains("has more than 8 aliases"), "{text}");
    });
}

#[test]
fn updates_that_are_refused_say_why() {
    within(LIMIT, || {
        let (bind, pebble) = servers();
        let down = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
        let of = update(&bind);
        for (dns, name, why) in [
            (
                UpdateSettings {
                    secret: KEYS[1].secret.to_owned(),
                    ..of.clone()
                },
                "a.example.com",
                "BadSig",
            ),
            (
                UpdateSettings {
                    key_name: "nobody".to_owned(),
                    ..of.clone()
                },
                "a.example.com",
                "BadKey",
            ),
            (
                UpdateSettings {
                    zone: Some("acme.example.net".to_owned()),
                    ..of.clone()
                },
                "a.example.com",
                "is not in the zone acme.example.net.",
            ),
            (
                UpdateSettings {
                    zone: Some("com".to_owned()),
                    ..of.clone()
                },
                "a.example.com",
                "refused the update",
            ),
            (
                UpdateSettings {
                    server: down,
                    ..of.clone()
                },
                "a.example.com",
                "Connection refused",
            ),
        ] {
            let dir = TempDir::new().unwrap();
            let kept = start(dir.path(), &pebble, DnsSettings::Update(dns), &[name]);
            let text = kept.until_failed(name, 1);
            assert!(text.contains(why), "{text}");
            assert!(
                text.contains("the DNS server") || text.contains("zone"),
                "{text}"
            );
        }
        // A clock that is wrong.
        let dir = TempDir::new().unwrap();
        let settings = settings(dir.path(), &pebble, DnsSettings::Update(of));
        let clock = Ahead::new();
        clock.advance(Duration::from_secs(3600));
        let kept = Kept::idle(settings, &["*.example.com"], clock).keep();
        let text = kept.until_failed("*.example.com", 1);
        assert!(text.contains("BadTime"), "{text}");
    });
}

/// A program that sets the records of Pebble's own name server.
fn hook(dir: &TempDir, lines: &str) -> PathBuf {
    let path = dir.join("hook");
    fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

#[test]
fn certificates_come_by_a_program() {
    within(LIMIT, || {
        let pebble = Pebble::start(free_port().unwrap(), free_port().unwrap()).unwrap();
        let (dir, storage) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let log = dir.join("log");
        let names_port = pebble.names_port().unwrap();
        let program = hook(
            &dir,
            &format!(
                "set -e\necho \"$1 $2 $3\" >>{}\ncase $1 in present) what=set-txt ;; cleanup) \
                 what=clear-txt ;; esac\nexec curl --silent --fail --data \
                 \"{{\\\"host\\\": \\\"$2.\\\", \\\"value\\\": \\\"$3\\\"}}\" \
                 http://127.0.0.1:{names_port}/$what",
                log.display()
            ),
        );
        let dns = DnsSettings::Hook { program };
        let kept = start(storage.path(), &pebble, dns, &["*.example.com"]);
        kept.until_valid("*.example.com");
        let log = fs::read_to_string(log).unwrap();
        let lines: Vec<Vec<_>> = log.lines().map(|it| it.split(' ').collect()).collect();
        assert_eq!(lines.len(), 2, "{log}");
        assert_eq!((lines[0][0], lines[1][0]), ("present", "cleanup"));
        for line in &lines {
            assert_eq!(line[1], "_acme-challenge.example.com");
            assert_eq!(line[2].len(), 43, "SHA-256 in base64url");
        }
    });
}

/// A program that notes its calls, sets no record, and waits for a file at `present`.
fn waiting_hook(dir: &TempDir, names_port: u16) -> PathBuf {
    let (log, go) = (dir.join("log"), dir.join("go"));
    let set = format!(
        "curl --silent --fail --data \"{{\\\"host\\\": \\\"$2.\\\", \\\"value\\\": \\\"$3\\\"}}\" \
         http://127.0.0.1:{names_port}/set-txt"
    );
    let lines = format!(
        "echo \"$1 $3\" >>{}\n[ $1 = cleanup ] && exit\n\
         while [ ! -e {} ]; do sleep 0.05; done\n{set}",
        log.display(),
        go.display()
    );
    hook(dir, &lines)
}

fn calls(dir: &TempDir) -> Vec<(String, String)> {
    let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
    let calls = log.lines().filter_map(|it| it.split_once(' '));
    let calls = calls.map(|(what, value)| (what.to_owned(), value.to_owned()));
    calls.collect()
}

/// An order whose program waits, with Pebble, the folder of the program and the storage.
fn with_waiting_hook() -> (Pebble, TempDir, TempDir, Kept) {
    let pebble = Pebble::start(free_port().unwrap(), free_port().unwrap()).unwrap();
    let (dir, storage) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let program = waiting_hook(&dir, pebble.names_port().unwrap());
    let dns = DnsSettings::Hook { program };
    let kept = start(storage.path(), &pebble, dns, &["a.example.com"]);
    until("the program runs", || calls(&dir).len() == 1);
    (pebble, dir, storage, kept)
}

#[test]
fn an_order_that_is_given_up_removes_its_record_before_it_is_anybodys() {
    within(LIMIT, || {
        let (_pebble, dir, storage, kept) = with_waiting_hook();
        drop(kept);
        finish_clean_ups();
        let calls = calls(&dir);
        assert_eq!(calls.len(), 2, "{calls:?}");
        assert_eq!((&*calls[0].0, &*calls[1].0), ("present", "cleanup"));
        assert_eq!(calls[0].1, calls[1].1, "the record that was set");
        assert_eq!(files(&storage, "leases"), [""; 0]);
    });
}

/// It goes on with the same order, and wants the same record.
#[test]
fn a_record_stays_where_another_process_has_the_lease_by_now() {
    within(LIMIT, || {
        let (_pebble, dir, storage, kept) = with_waiting_hook();
        let lease = storage.path().join("leases/a.example.com.json");
        let text = fs::read_to_string(&lease).unwrap();
        let mut taken: serde_json::Value = serde_json::from_str(&text).unwrap();
        taken["holder"]["boot"] = "another machine".into();
        fs::write(&lease, taken.to_string()).unwrap();
        kept.clock.advance(Duration::from_secs(10));
        until("the order is given up", || {
            kept.status("a.example.com").state != State::Ordering
        });
        finish_clean_ups();
        let calls = calls(&dir);
        assert_eq!(calls.len(), 1, "{calls:?}");
        assert_eq!(fs::read_to_string(&lease).unwrap(), taken.to_string());
    });
}

#[test]
fn an_order_that_runs_is_the_one_that_an_operator_asks_for() {
    within(LIMIT, || {
        let (pebble, dir, _storage, kept) = with_waiting_hook();
        let status = kept.status("a.example.com");
        assert_eq!((status.state, status.next_attempt), (State::Ordering, None));
        kept.manager.renew("a.example.com").unwrap();
        fs::write(dir.join("go"), "").unwrap();
        kept.until_valid("a.example.com");
        // A second order would come before this one.
        let names = ["a.example.com", "b.example.com"].map(str::to_owned);
        kept.manager.follow(names.to_vec());
        kept.until_valid("b.example.com");
        kept.until_valid("a.example.com");
        assert_eq!(pebble.orders(), 2);
    });
}

#[test]
fn the_failure_of_a_program_comes_before_that_of_its_cleanup() {
    within(LIMIT, || {
        let pebble = Pebble::start(free_port().unwrap(), free_port().unwrap()).unwrap();
        let (dir, storage) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let program = hook(&dir, "echo \"no $1\" >&2\nexit 3");
        let dns = DnsSettings::Hook { program };
        let kept = start(storage.path(), &pebble, dns, &["a.example.com"]);
        let text = kept.until_failed("a.example.com", 1);
        let expected = "no present; the record _acme-challenge.a.example.com was not removed: ";
        assert!(
            text.contains(expected) && text.ends_with("no cleanup"),
            "{text}"
        );
        let events = kept.events();
        let tells = events.lines().filter(|it| it.contains("no cleanup"));
        assert_eq!(tells.count(), 1, "{events}");
    });
}

#[test]
fn a_program_that_fails_is_quoted() {
    within(LIMIT, || {
        let pebble = Pebble::start(free_port().unwrap(), free_port().unwrap()).unwrap();
        let dir = TempDir::new().unwrap();
        let failing = hook(&dir, "echo 'no such zone' >&2\nexit 3");
        let gone = dir.join("gone");
        for (program, why) in [
            (failing, "present failed (exit status: 3): no such zone"),
            (gone, "cannot be started: No such file or directory"),
        ] {
            let storage = TempDir::new().unwrap();
            let dns = DnsSettings::Hook { program };
            let kept = start(storage.path(), &pebble, dns, &["a.example.com"]);
            let text = kept.until_failed("a.example.com", 1);
            assert!(text.contains(why), "{text}");
        }
    });
}

#[test]
fn a_program_that_hangs_is_killed() {
    within(LIMIT, || {
        let pebble = Pebble::start(free_port().unwrap(), free_port().unwrap()).unwrap();
        let (dir, storage) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let process = dir.join("process");
        let write = format!("[ $1 = cleanup ] && exit\necho $$ >{}", process.display());
        let program = hook(&dir, &format!("{write}\nexec sleep 1000"));
        let dns = DnsSettings::Hook { program };
        let kept = start(storage.path(), &pebble, dns, &["a.example.com"]);
        let id = || {
            fs::read_to_string(&process)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        until("the program runs", || !id().is_empty());
        assert_eq!(kept.status("a.example.com").state, State::Ordering);
        kept.clock.advance(Duration::from_secs(121));
        let text = kept.until_failed("a.example.com", 1);
        assert!(
            text.contains("present was killed: it ran for 120 s"),
            "{text}"
        );
        let is_gone = || !Path::new("/proc").join(id()).exists();
        until("the program is gone", is_gone);
    });
}
