//! A certificate by each challenge that needs no DNS, and the state after a restart.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use evenkeel_acme::{ChallengeKind, Manager, State};
use evenkeel_testkit::TempDir;
use evenkeel_testkit::deadline::{holds_within, until, within};

use crate::support::{Answers, Kept, LIMIT, files, settings};

const DAY: Duration = Duration::from_secs(86_400);

/// Gets a certificate by one challenge.
fn obtain(challenge: ChallengeKind, name: &'static str) {
    within(LIMIT, move || {
        let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
        let pebble = answers.pebble();
        let settings = settings(dir.path(), &pebble, &[challenge]);
        let kept = Kept::idle(settings, &[name], crate::support::Ahead::new());
        answers.ask(&kept.manager);
        assert_eq!(kept.status(name).state, State::Missing);
        let kept = kept.keep();
        let certificate = kept.until_valid(name);
        let facts = certificate.facts();
        match name.parse::<std::net::IpAddr>() {
            Ok(address) => assert_eq!(facts.ip_addresses, [address]),
            Err(_) => assert_eq!(facts.dns_names, [name]),
        }
        let status = kept.status(name);
        assert_eq!(status.issuer, Some(pebble.directory()));
        assert_eq!((status.failures, status.last_error), (0, None));
        let rest = status
            .not_after
            .unwrap()
            .duration_since(std::time::SystemTime::now());
        assert!(rest.unwrap() > DAY * 5);
        assert_eq!(pebble.orders(), 1);
        // Nothing is left of the order.
        for folder in ["challenges", "leases", "orders", "failures"] {
            assert_eq!(files(&dir, folder), [""; 0], "{folder}");
        }
        assert!(kept.manager.challenges().is_empty());
        let (directory, events) = (pebble.directory(), kept.events());
        for told in [
            format!("INFO evenkeel_acme::issuer: acme: an account was created at {directory}: "),
            format!("acme: certificate of {name}: ordered from {directory}"),
            format!("acme: certificate of {name}: obtained from {directory}, valid until 20"),
        ] {
            assert_eq!(events.matches(&told).count(), 1, "{told} in {events}");
        }
        let path = Manager::certificate_path(dir.path(), name);
        let mode = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    });
}

#[test]
fn a_certificate_comes_by_http() {
    obtain(ChallengeKind::Http01, "a.example.com");
}

#[test]
fn a_certificate_comes_by_tls_alpn() {
    obtain(ChallengeKind::TlsAlpn01, "a.example.com");
}

#[test]
fn an_address_gets_a_certificate_by_http() {
    obtain(ChallengeKind::Http01, "127.0.0.1");
}

#[test]
fn an_address_gets_a_certificate_by_tls_alpn() {
    obtain(ChallengeKind::TlsAlpn01, "127.0.0.1");
}

#[test]
fn several_names_get_certificates_of_one_account() {
    within(LIMIT, || {
        let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
        let pebble = answers.pebble();
        let settings = settings(dir.path(), &pebble, &[ChallengeKind::Http01]);
        let names = ["a.example.com", "b.example.com", "c.example.com"];
        let kept = Kept::idle(settings, &names, crate::support::Ahead::new());
        answers.ask(&kept.manager);
        let kept = kept.keep();
        for name in names {
            assert_eq!(kept.until_valid(name).facts().dns_names, [name]);
        }
        assert_eq!((pebble.orders(), pebble.accounts()), (3, 1));
        // One that is followed later.
        let followed = ["b.example.com", "d.example.com"].map(str::to_owned);
        kept.manager.follow(followed.to_vec());
        kept.until_valid("d.example.com");
        assert_eq!(pebble.orders(), 4);
        let names: Vec<_> = kept
            .manager
            .status()
            .into_iter()
            .map(|it| it.name)
            .collect();
        assert_eq!(names, followed);
        assert!(kept.manager.renew("a.example.com").is_err());
        assert!(dir.join("certificates/a.example.com.pem").exists());
    });
}

#[test]
fn a_restart_finds_account_and_certificate() {
    within(LIMIT, || {
        let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
        let pebble = answers.pebble();
        let settings = settings(dir.path(), &pebble, &[ChallengeKind::Http01]);
        let start = |names: &[&str]| {
            let kept = Kept::idle(settings.clone(), names, crate::support::Ahead::new());
            answers.ask(&kept.manager);
            kept.keep()
        };
        let kept = start(&["a.example.com"]);
        let before = kept.until_valid("a.example.com").facts();
        drop(kept);
        let kept = start(&["a.example.com", "b.example.com"]);
        kept.until_valid("b.example.com");
        assert_eq!(kept.until_valid("a.example.com").facts(), before);
        assert_eq!((pebble.orders(), pebble.accounts()), (2, 1));
        // The operator wants another one.
        kept.manager.renew("A.example.com").unwrap();
        let is_new = || kept.certificate("a.example.com").facts() != before;
        until("another certificate", is_new);
        assert_eq!((pebble.orders(), pebble.accounts()), (3, 1));
    });
}

#[test]
fn a_text_that_is_no_name_is_never_ordered() {
    within(LIMIT, || {
        let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
        let pebble = answers.pebble();
        let settings = settings(dir.path(), &pebble, &[ChallengeKind::Http01]);
        let kept = Kept::idle(
            settings,
            &["a b", "a.example.com"],
            crate::support::Ahead::new(),
        );
        answers.ask(&kept.manager);
        let kept = kept.keep();
        kept.until_valid("a.example.com");
        let status = kept.status("a b");
        assert_eq!((status.state, status.next_attempt), (State::Failed, None));
        assert!(kept.manager.renew("a b").is_err());
        assert_eq!(pebble.orders(), 1);
    });
}

#[test]
fn no_more_than_ten_orders_are_placed_in_ten_seconds() {
    within(LIMIT, || {
        let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
        let pebble = answers.pebble();
        let settings = settings(dir.path(), &pebble, &[ChallengeKind::Http01]);
        let names: Vec<_> = (0..12).map(|it| format!("n{it}.example.com")).collect();
        // The account is there.
        let kept = Kept::idle(settings, &[&names[0]], crate::support::Ahead::new());
        answers.ask(&kept.manager);
        let kept = kept.keep();
        kept.until_valid(&names[0]);
        let start = Instant::now();
        kept.manager.follow(names.clone());
        until("ten orders", || pebble.orders() == 10);
        let further = holds_within(LIMIT, || pebble.orders() == 12);
        // The first one was placed before the start.
        assert!(further && start.elapsed() > Duration::from_secs(7));
        for name in &names {
            kept.until_valid(name);
        }
        assert_eq!(pebble.orders(), 12);
    });
}
