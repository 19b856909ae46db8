//! Machines without a shared folder, which keep certificates together by a server.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_acme::shared::SharedCertificate;
use evenkeel_acme::{ChallengeKind, Issuer, Settings, State};
use evenkeel_testkit::deadline::{holds_within, until, within};
use evenkeel_testkit::tls::Authority;
use evenkeel_testkit::{Pebble, TempDir};

use crate::front::{Front, Then};
use crate::server::Memory;
use crate::support::{Ahead, Answers, Kept, LIMIT, files, issuer, settings};

const NAME: &str = "a.example.com";

/// A server, and the issuer that all machines ask.
struct Cluster {
    server: Arc<Memory>,
    answers: Answers,
    pebble: Pebble,
    front: Front,
}

/// A machine with its own folder.
struct Machine {
    kept: Kept,
    dir: TempDir,
}

impl Cluster {
    fn new() -> Self {
        let answers = Answers::new();
        let pebble = answers.pebble();
        Self {
            server: Memory::new(),
            front: Front::new(&pebble),
            answers,
            pebble,
        }
    }

    fn settings(&self, dir: &TempDir, issuer: Issuer) -> Settings {
        Settings {
            issuers: vec![issuer],
            shared: Some(self.server.clone()),
            ..settings(dir.path(), &self.pebble, &[ChallengeKind::Http01])
        }
    }

    /// Starts a machine that keeps a certificate for these names, and answers challenges.
    fn machine(&self, names: &[&str]) -> Machine {
        self.machine_in(TempDir::new().unwrap(), names)
    }

    fn machine_in(&self, dir: TempDir, names: &[&str]) -> Machine {
        let settings = self.settings(&dir, self.front.issuer(&self.pebble));
        let kept = Kept::idle(settings, names, Ahead::new());
        self.answers.ask(&kept.manager);
        Machine {
            kept: kept.keep(),
            dir,
        }
    }
}

impl Machine {
    /// Waits for a state, while the clock runs faster.
    #[track_caller]
    fn until(&self, what: &str, mut is_so: impl FnMut(&Kept) -> bool) {
        let found = holds_within(LIMIT, || {
            self.kept.clock.advance(Duration::from_millis(300));
            is_so(&self.kept)
        });
        assert!(found, "{what}: {:?}", self.kept.manager.status());
    }

    #[track_caller]
    fn until_valid(&self) -> [u8; 32] {
        self.until("a certificate", |it| it.status(NAME).state == State::Valid);
        self.kept.certificate(NAME).facts().fingerprint
    }
}

#[test]
fn machines_have_one_account_and_one_certificate() {
    within(LIMIT, || {
        let cluster = Cluster::new();
        let machines = [0, 1].map(|_| cluster.machine(&[NAME]));
        let [one, other] = machines.each_ref().map(Machine::until_valid);
        assert_eq!(one, other);
        assert_eq!(cluster.server.held(NAME).unwrap().fingerprint, one);
        assert_eq!((cluster.pebble.orders(), cluster.pebble.accounts()), (1, 1));
        // A renewal here comes there, and the other way round.
        for (here, there) in [(0, 1), (1, 0)] {
            let before = machines[there].until_valid();
            machines[here].kept.manager.renew(NAME).unwrap();
            machines[there].until("the renewed one", |it| {
                it.certificate(NAME).facts().fingerprint != before
            });
            let expiry = |it: &Machine| it.kept.status(NAME).not_after;
            machines[there].until("its status", |_| {
                expiry(&machines[there]) == expiry(&machines[here])
            });
        }
        assert_eq!((cluster.pebble.orders(), cluster.pebble.accounts()), (3, 1));
        for kind in ["orders/", "challenges/", "failures/"] {
            assert_eq!(cluster.server.records(kind), [""; 0]);
        }
    });
}

#[test]
fn nothing_is_read_while_nothing_changes() {
    within(LIMIT, || {
        let cluster = Cluster::new();
        let names = [NAME, "b.example.com", "c.example.com"];
        let one = cluster.machine(&names);
        let are_valid = |it: &Kept| {
            names
                .iter()
                .all(|name| it.status(name).state == State::Valid)
        };
        one.until("certificates", are_valid);
        let rounds = |machine: &Machine, count| {
            let [_, before] = cluster.server.asked();
            machine.until("rounds", |_| cluster.server.asked()[1] >= before + count);
        };
        rounds(&one, 2);
        let [read, _] = cluster.server.asked();
        rounds(&one, 20);
        assert_eq!(cluster.server.asked()[0], read);
        // A machine that returns compares with the server's list of all certificates.
        let Machine { kept, dir } = one;
        drop(kept);
        let one = cluster.machine_in(dir, &names);
        one.until("certificates", are_valid);
        rounds(&one, 10);
        assert_eq!(cluster.server.asked()[0], read);
    });
}

/// A crash while the issuer handles a request of this path: another machine continues.
fn crash_at(path: &'static str) {
    within(LIMIT, move || {
        let cluster = Cluster::new();
        cluster.front.rule(move |asked| match asked {
            asked if asked.starts_with(path) => Then::Hang,
            _ => Then::Pass,
        });
        let one = cluster.machine(&[NAME]);
        until("the request", || cluster.front.count(path) > 0);
        // The crashed machine cleans nothing up.
        cluster.server.set_up(false);
        drop(one);
        cluster.server.set_up(true);
        cluster.front.rule(|_| Then::Pass);
        let other = cluster.machine(&[NAME]);
        let is_held = || other.kept.status(NAME).next_attempt.is_some();
        until("the lease is held", is_held);
        let waits = holds_within(Duration::from_secs(1), || cluster.pebble.orders() > 1);
        assert!(!waits, "the lease of the first one was not waited for");
        cluster.server.end_leases();
        other.until_valid();
        assert_eq!((cluster.pebble.orders(), cluster.pebble.accounts()), (1, 1));
        assert_eq!(cluster.server.records("orders/"), [""; 0]);
    });
}

#[test]
fn a_crash_before_the_challenge_leaves_the_order_to_another() {
    crash_at("/authZ/");
}

#[test]
fn a_crash_in_the_challenge_leaves_the_order_to_another() {
    crash_at("/chalZ/");
}

#[test]
fn a_crash_while_finalising_leaves_the_order_to_another() {
    crash_at("/finalize-order/");
}

#[test]
fn a_crash_before_the_download_leaves_the_order_to_another() {
    crash_at("/certZ/");
}

#[test]
fn another_machine_answers_by_the_server() {
    within(LIMIT, || {
        for kind in [ChallengeKind::Http01, ChallengeKind::TlsAlpn01] {
            let cluster = Cluster::new();
            let other = TempDir::new().unwrap();
            let settings = |dir| Settings {
                challenges: vec![kind],
                ..cluster.settings(dir, issuer(&cluster.pebble))
            };
            let other = Kept::idle(settings(&other), &[], Ahead::new());
            cluster.answers.ask(&other.manager);
            let dir = TempDir::new().unwrap();
            let one = Kept::idle(settings(&dir), &[NAME], Ahead::new()).keep();
            one.until_valid(NAME);
            assert_eq!(cluster.pebble.orders(), 1);
            assert_eq!(files(&dir, "challenges"), [""; 0]);
        }
    });
}

#[test]
fn without_the_server_nothing_is_ordered_and_it_goes_on_by_itself() {
    within(LIMIT, || {
        let cluster = Cluster::new();
        cluster.server.set_up(false);
        let one = cluster.machine(&[NAME]);
        let why = || one.kept.status(NAME).last_error.map(|it| it.text);
        one.until("the reason", |_| {
            why().is_some_and(|it| it == "the server of the test is down")
        });
        assert_eq!(one.kept.status(NAME).state, State::Failed);
        // It does not count as a failure of the name, which would cause a pause.
        assert_eq!(one.kept.status(NAME).failures, 0);
        one.kept.manager.renew(NAME).unwrap();
        assert_eq!((cluster.pebble.orders(), cluster.pebble.accounts()), (0, 0));
        cluster.server.set_up(true);
        let first = one.until_valid();
        assert_eq!(why(), None);
        // The local certificate stays.
        cluster.server.set_up(false);
        one.kept.manager.renew(NAME).unwrap();
        one.until("the reason", |_| why().is_some());
        assert_eq!(one.kept.certificate(NAME).facts().fingerprint, first);
        assert_eq!(cluster.pebble.orders(), 1);
        cluster.server.set_up(true);
        one.until("another one", |it| {
            it.certificate(NAME).facts().fingerprint != first
        });
        assert_eq!(cluster.pebble.orders(), 2);
    });
}

#[test]
fn a_server_that_goes_away_costs_no_second_order() {
    within(LIMIT, || {
        // Away when the order is placed, and when the certificate has come.
        for path in ["/order-plz", "/certZ/"] {
            let cluster = Cluster::new();
            let server = cluster.server.clone();
            cluster.front.rule(move |asked| {
                if asked.starts_with(path) {
                    server.set_up(false);
                }
                Then::Pass
            });
            let one = cluster.machine(&[NAME]);
            until("the request", || cluster.front.count(path) > 0);
            if path == "/certZ/" {
                // The certificate is in use all the same.
                one.until_valid();
                assert_eq!(cluster.server.held(NAME), None);
            } else {
                let failed = |it: &Kept| it.status(NAME).last_error.is_some();
                one.until("it fails", failed);
            }
            cluster.front.rule(|_| Then::Pass);
            cluster.server.set_up(true);
            // The leases could not be released.
            cluster.server.end_leases();
            let first = one.until_valid();
            let is_stored = |_: &Kept| cluster.server.held(NAME).is_some();
            one.until("the server has it", is_stored);
            assert_eq!(cluster.machine(&[NAME]).until_valid(), first);
            assert_eq!((cluster.pebble.orders(), cluster.pebble.accounts()), (1, 1));
        }
    });
}

#[test]
fn a_server_that_has_lost_all_gets_it_again() {
    within(LIMIT, || {
        let cluster = Cluster::new();
        let one = cluster.machine(&[NAME]);
        let first = one.until_valid();
        let is_stored = || cluster.server.held(NAME).is_some();
        one.until("it is stored", |_| is_stored());
        cluster.server.flush();
        assert!(!is_stored());
        one.until("it is stored again", |_| is_stored());
        assert_eq!(cluster.machine(&[NAME]).until_valid(), first);
        // The account comes back too, once it is needed.
        one.kept.manager.renew(NAME).unwrap();
        one.until("another one", |it| {
            it.certificate(NAME).facts().fingerprint != first
        });
        assert_eq!((cluster.pebble.orders(), cluster.pebble.accounts()), (2, 1));
    });
}

#[test]
fn a_certificate_gives_way_only_to_a_newer_one_that_fits() {
    within(LIMIT, || {
        let cluster = Cluster::new();
        let one = cluster.machine(&[NAME]);
        let first = one.until_valid();
        let is_ours = |_: &Kept| {
            cluster
                .server
                .held(NAME)
                .is_some_and(|it| it.fingerprint == first)
        };
        one.until("it is stored", is_ours);
        let authority = Authority::new().unwrap();
        let old = authority.issue_with(&[NAME], |it| {
            it.not_before = rcgen::date_time_ymd(2020, 1, 1)
        });
        let old = old.unwrap();
        let other = authority.issue(&["b.example.com"]).unwrap();
        let mismatched = old.chain.clone() + &other.key;
        for pem in [
            None,
            Some("no PEM".to_owned()),
            Some(old.chain + &old.key),
            Some(other.chain + &other.key),
            Some(mismatched),
        ] {
            let found = SharedCertificate {
                fingerprint: [7; 32],
                pem: pem.map(String::into_bytes),
            };
            cluster.server.place(NAME, found.clone());
            one.until("it is replaced", is_ours);
            assert_eq!(one.kept.certificate(NAME).facts().fingerprint, first);
        }
        assert_eq!(files(&one.dir, "certificates"), [format!("{NAME}.pem")]);
        assert_eq!(cluster.pebble.orders(), 1);
    });
}
