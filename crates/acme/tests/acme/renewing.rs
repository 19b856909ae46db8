//! When certificates are renewed.

use std::fs;
use std::time::{Duration, SystemTime};

use evenkeel_acme::{ChallengeKind, Issuer, Manager, Settings};
use evenkeel_testkit::deadline::{until, within};
use evenkeel_testkit::{Pebble, TempDir};
use serde_json::json;

use crate::front::{Front, Then};
use crate::support::{Ahead, Answers, Kept, LIMIT, issuer};

const DAY: Duration = Duration::from_secs(86_400);
const NAME: &str = "a.example.com";

fn start(dir: &TempDir, answers: &Answers, issuer: Issuer) -> Kept {
    let settings = Settings {
        storage: dir.path().to_owned(),
        issuers: vec![issuer],
        challenges: vec![ChallengeKind::Http01],
        dns: None,
        on_demand: None,
        shared: None,
    };
    let kept = Kept::idle(settings, &[NAME], Ahead::new());
    answers.ask(&kept.manager);
    let kept = kept.keep();
    kept.until_valid(NAME);
    kept
}

/// An issuer whose directory lacks renewal information.
fn without_suggestions(pebble: &Pebble, profile: &str) -> (Front, Issuer) {
    let front = Front::new(pebble);
    front.rule(|path| match path {
        "/dir" => Then::Change(|body| body.replace("\"renewalInfo\"", "\"x\"")),
        _ => Then::Pass,
    });
    let issuer = Issuer {
        profile: Some(profile.to_owned()),
        ..front.issuer(pebble)
    };
    (front, issuer)
}

/// Renewed by a fraction of the lifetime: not after `early`, but after `late`.
fn by_fraction(profile: &'static str, lifetime: Duration, early: Duration, late: Duration) {
    within(LIMIT, move || {
        let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
        let pebble = answers.pebble();
        let (_front, issuer) = without_suggestions(&pebble, profile);
        let kept = start(&dir, &answers, issuer);
        let first = kept.certificate(NAME).facts();
        let found = first.not_after.as_secs() - first.not_before.as_secs();
        assert!(found.abs_diff(lifetime.as_secs()) < 10, "{found}");
        let next = kept.until_scheduled(NAME);
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(first.not_before.as_secs());
        let after = next.duration_since(start).unwrap();
        assert!(after > early && after <= late, "{after:?}");
        kept.clock.advance(early);
        // The name is looked at, and put off.
        kept.manager
            .follow(vec![NAME.to_owned(), "b.example.com".to_owned()]);
        kept.until_valid("b.example.com");
        assert_eq!(pebble.orders(), 2);
        kept.clock.advance(late - early);
        until("it is renewed", || kept.certificate(NAME).facts() != first);
        kept.until_scheduled(NAME);
        // By this clock the new certificate is as old as the first one. No third one
        // is ordered all the same.
        kept.until_valid("b.example.com");
        assert!(pebble.orders() <= 4);
    });
}

#[test]
fn ninety_days_are_renewed_after_sixty() {
    let lifetime = DAY * 90;
    by_fraction("default", lifetime, DAY * 58, DAY * 60 + DAY / 24);
}

#[test]
fn six_days_are_renewed_after_three() {
    by_fraction("short", DAY * 6, DAY * 2 + DAY / 2, DAY * 3 + DAY / 24);
}

#[test]
fn the_issuer_says_when_a_certificate_is_renewed() {
    within(LIMIT, || {
        let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
        let pebble = answers.pebble();
        let issuer = Issuer {
            profile: Some("default".to_owned()),
            ..issuer(&pebble)
        };
        let kept = start(&dir, &answers, issuer);
        let first = kept.certificate(NAME).facts();
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(first.not_before.as_secs());
        // Pebble suggests two days around two thirds.
        let (early, late) = (start + DAY * 59, start + DAY * 61);
        until("the suggestion is known", || {
            kept.status(NAME)
                .next_attempt
                .is_some_and(|it| it > early && it < late)
        });
        let next = kept.status(NAME).next_attempt.unwrap();
        let next = next.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let next = jiff::Timestamp::from_second(next.as_secs() as i64).unwrap();
        let told = format!("it is renewed about {next}");
        assert!(kept.events().contains(&told), "{told}: {}", kept.events());
        // The issuer is about to revoke it.
        let pem = fs::read_to_string(Manager::certificate_path(dir.path(), NAME)).unwrap();
        let pem = &pem[pem.find("-----BEGIN CERT").unwrap()..];
        let end = pem.find("-----END CERTIFICATE-----\n").unwrap();
        let suggestion = json!({ "suggestedWindow": {
            "start": "2020-01-01T00:00:00Z",
            "end": "2020-01-02T00:00:00Z",
        } });
        let certificate = &pem[..end + "-----END CERTIFICATE-----\n".len()];
        pebble.suggest_renewal(certificate, &suggestion).unwrap();
        assert_eq!(pebble.orders(), 1);
        // Pebble says to ask again after six hours.
        kept.clock.advance(DAY / 4 + DAY / 24);
        until("it is renewed", || kept.certificate(NAME).facts() != first);
        assert_eq!(pebble.count("is a replacement of"), 1);
        assert_eq!(pebble.orders(), 2);
    });
}
