//! Issuers that are down, slow or wrong, and crashes in between.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_acme::{ChallengeKind, ExternalAccount, Issuer, Manager, Settings, State};
use evenkeel_testkit::deadline::{holds_within, until, within};
use evenkeel_testkit::process::free_port;
use evenkeel_testkit::tls::Authority;
use evenkeel_testkit::{MemoryDisk, Pebble, PebbleSetup, TempDir};

use crate::front::{Front, Then};
use crate::support::{Ahead, Answers, Kept, LIMIT, files, issuer};

const NAME: &str = "a.example.com";
const MINUTE: Duration = Duration::from_secs(60);

type Change = fn(String) -> String;

fn settings(storage: &Path, issuers: Vec<Issuer>) -> Settings {
    Settings {
        storage: storage.to_owned(),
        issuers,
        challenges: vec![ChallengeKind::Http01],
        dns: None,
        on_demand: None,
        shared: None,
    }
}

fn start(storage: &Path, answers: &Answers, issuers: Vec<Issuer>) -> Kept {
    let kept = Kept::idle(settings(storage, issuers), &[NAME], Ahead::new());
    answers.ask(&kept.manager);
    kept.keep()
}

/// A folder, what answers challenges, Pebble and a front before it.
fn with_front() -> (TempDir, Answers, Pebble, Front) {
    let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
    let pebble = answers.pebble();
    let front = Front::new(&pebble);
    (dir, answers, pebble, front)
}

/// How long it is until the next attempt.
fn pause(kept: &Kept) -> Duration {
    let next = kept.status(NAME).next_attempt.unwrap();
    next.duration_since(evenkeel_acme::Clock::now(&*kept.clock))
        .unwrap()
}

#[test]
fn bad_nonces_are_no_reason_for_another_order() {
    within(LIMIT, || {
        let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
        let pebble = Pebble::start_with(&PebbleSetup {
            environment: vec![("PEBBLE_WFE_NONCEREJECT".to_owned(), "40".to_owned())],
            ..answers.setup()
        });
        let pebble = pebble.unwrap();
        let kept = start(dir.path(), &answers, vec![issuer(&pebble)]);
        // Three bad ones in a row make an attempt fail. The next one goes on.
        until("a certificate", || {
            if kept.status(NAME).state == State::Failed {
                kept.clock.advance(MINUTE * 600);
            }
            kept.status(NAME).state == State::Valid
        });
        assert!(pebble.count("badNonce") + pebble.count("nonce") > 0);
        assert_eq!(pebble.orders(), 1);
    });
}

#[test]
fn an_issuer_that_is_down_is_tried_again_later_and_later() {
    within(LIMIT, || {
        let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
        let pebble = answers.pebble();
        let down = Issuer {
            directory: format!("https://127.0.0.1:{}/dir", free_port().unwrap()),
            ..issuer(&pebble)
        };
        let kept = start(dir.path(), &answers, vec![down]);
        let mut exact = MINUTE;
        for failures in 1..=4 {
            let text = kept.until_failed(NAME, failures);
            assert!(text.contains("Connection refused"), "{text}");
            let pause = pause(&kept);
            assert!(
                pause < exact.mul_f64(1.11) && pause > exact.mul_f64(0.85),
                "{pause:?}"
            );
            kept.clock.advance(exact.mul_f64(1.11));
            exact *= 2;
        }
        // After a restart the count of failures continues, without a long wait.
        drop(kept);
        let kept = start(dir.path(), &answers, vec![issuer(&pebble)]);
        until("failures are known", || kept.status(NAME).failures >= 4);
        kept.clock.advance(MINUTE * 60);
        kept.until_valid(NAME);
        assert_eq!(kept.status(NAME).failures, 0);
    });
}

#[test]
fn an_issuer_that_does_not_answer_has_a_deadline() {
    within(LIMIT, || {
        let (dir, answers, pebble, front) = with_front();
        front.rule(|path| match path {
            "/order-plz" => Then::Hang,
            _ => Then::Pass,
        });
        let kept = start(dir.path(), &answers, vec![front.issuer(&pebble)]);
        until("an order", || front.count("/order-plz") > 0);
        assert_eq!(kept.status(NAME).state, State::Ordering);
        kept.clock.advance(Duration::from_secs(31));
        let text = kept.until_failed(NAME, 1);
        assert!(text.ends_with("no whole response within 30 s"), "{text}");
    });
}

#[test]
fn an_issuer_that_is_broken_is_named() {
    within(LIMIT, || {
        let (dir, answers, pebble, front) = with_front();
        front.rule(|path| match path {
            "/order-plz" => {
                let page = "<html>oops</html>".to_owned();
                Then::Answer("500 Internal Server Error", "Content-Type: text/html", page)
            }
            _ => Then::Pass,
        });
        let kept = start(dir.path(), &answers, vec![front.issuer(&pebble)]);
        let text = kept.until_failed(NAME, 1);
        let directory = front.issuer(&pebble).directory;
        let expected = format!("{directory}: the server answered 500 Internal Server Error");
        assert_eq!(text, expected);
        let events = kept.events();
        let told = format!("not obtained, failed once: {expected}; the next try is at ");
        assert!(
            events.contains(&told) && events.contains("ERROR"),
            "{events}"
        );
        front.rule(|_| Then::Pass);
        kept.clock.advance(MINUTE * 2);
        kept.until_valid(NAME);
        assert_eq!(pebble.orders(), 1);
    });
}

#[test]
fn a_url_that_is_no_directory_says_what_was_got() {
    within(LIMIT, || {
        let advice = "check the URL of its directory";
        for (status, headers, body, expected) in [
            (
                "200 OK",
                "Content-Type: text/html",
                "<html>welcome</html>",
                "the server answered 200 OK with text/html instead of JSON: ",
            ),
            (
                "302 Found",
                "Location: https://example.com/login",
                "",
                "the server answered 302 Found to https://example.com/login: ",
            ),
            (
                "404 Not Found",
                "Content-Type: text/html",
                "<html>no</html>",
                "the server answered 404 Not Found: ",
            ),
            (
                "200 OK",
                "Content-Type: application/json",
                "{\"status\":\"ok\"}",
                "it does not answer like an ACME server (missing field",
            ),
        ] {
            let (dir, answers, pebble, front) = with_front();
            front.rule(move |_| Then::Answer(status, headers, body.to_owned()));
            let kept = start(dir.path(), &answers, vec![front.issuer(&pebble)]);
            let text = kept.until_failed(NAME, 1);
            assert!(text.contains(expected) && text.ends_with(advice), "{text}");
        }
    });
}

#[test]
fn a_manager_with_other_settings_goes_on_where_the_first_was() {
    within(LIMIT, || {
        let (dir, answers, pebble, front) = with_front();
        let kept = start(dir.path(), &answers, vec![front.issuer(&pebble)]);
        let first = kept.until_valid(NAME).facts();
        let before = kept.manager.clone();
        drop(kept);
        // An operator asks for it before the reload.
        before.renew(NAME).unwrap();
        let next = |issuers| {
            let next = Kept::idle(settings(dir.path(), issuers), &[NAME], Ahead::new());
            answers.ask(&next.manager);
            next
        };
        front.rule(|path| match path {
            "/order-plz" => {
                let problem = "{\"type\":\"urn:ietf:params:acme:error:rateLimited\"}";
                let headers = "Content-Type: application/problem+json\r\nRetry-After: 7200";
                Then::Answer("429 Too Many Requests", headers, problem.to_owned())
            }
            _ => Then::Pass,
        });
        let kept = next(vec![front.issuer(&pebble)]);
        kept.manager.take_over(&before);
        let kept = kept.keep();
        let text = kept.until_failed(NAME, 1);
        assert!(text.ends_with("rateLimited"), "{text}");
        let before = kept.manager.clone();
        drop(kept);
        front.rule(|_| Then::Pass);
        let kept = next(vec![front.issuer(&pebble)]);
        kept.manager.take_over(&before);
        kept.manager.renew(NAME).unwrap();
        let kept = kept.keep();
        let text = kept.until_failed(NAME, 2);
        assert_eq!(text, "all issuers refuse requests for now");
        drop(kept);
        let kept = next(vec![front.issuer(&pebble)]);
        kept.manager.renew(NAME).unwrap();
        let kept = kept.keep();
        until("another certificate", || {
            kept.certificate(NAME).facts() != first
        });
        kept.until_valid(NAME);
        assert_eq!(pebble.orders(), 2);
    });
}

#[test]
fn an_issuer_that_wants_to_be_left_alone_is() {
    within(LIMIT, || {
        let (dir, answers, pebble, front) = with_front();
        front.rule(|path| match path {
            "/order-plz" => {
                let problem = "{\"type\":\"urn:ietf:params:acme:error:rateLimited\",\
                               \"detail\":\"too many certificates\"}";
                let headers = "Content-Type: application/problem+json\r\nRetry-After: 7200";
                Then::Answer("429 Too Many Requests", headers, problem.to_owned())
            }
            _ => Then::Pass,
        });
        let kept = start(dir.path(), &answers, vec![front.issuer(&pebble)]);
        let text = kept.until_failed(NAME, 1);
        assert!(
            text.ends_with("rateLimited: too many certificates"),
            "{text}"
        );
        let pause = pause(&kept);
        assert!(pause > MINUTE * 119 && pause <= MINUTE * 120, "{pause:?}");
        front.rule(|_| Then::Pass);
        kept.clock.advance(MINUTE * 121);
        kept.until_valid(NAME);
    });
}

#[test]
fn the_next_issuer_is_asked_after_the_first_has_failed() {
    within(LIMIT, || {
        let (dir, answers, pebble, front) = with_front();
        front.rule(|_| Then::Answer("503 Service Unavailable", "", String::new()));
        let issuers = vec![front.issuer(&pebble), issuer(&pebble)];
        let kept = start(dir.path(), &answers, issuers);
        kept.until_valid(NAME);
        assert!(front.count("/dir") > 0);
        assert_eq!(kept.status(NAME).issuer, Some(pebble.directory()));
        assert_eq!(files(&dir, "accounts").len(), 1);
    });
}

#[test]
fn a_chain_that_does_not_fit_never_comes_into_use() {
    fn of_another(_: String) -> String {
        let authority = Authority::new().unwrap();
        authority.issue(&[NAME]).unwrap().chain
    }
    fn of_another_issuer(body: String) -> String {
        let leaf = body.split_inclusive("-----END CERTIFICATE-----\n").next();
        leaf.unwrap().to_owned() + &Authority::new().unwrap().pem()
    }
    fn cut_off(mut body: String) -> String {
        body.truncate(body.len() / 3);
        body
    }
    within(LIMIT, || {
        let (dir, answers, pebble, front) = with_front();
        let kept = start(dir.path(), &answers, vec![front.issuer(&pebble)]);
        let good = kept.until_valid(NAME).facts();
        let spoilt: [(Change, &str); 3] = [
            (of_another, "does not belong to"),
            (of_another_issuer, "its chain is wrong"),
            (cut_off, "the issued certificate cannot be used"),
        ];
        for (failures, (change, why)) in (1..).zip(spoilt) {
            front.rule(move |path| match path {
                path if path.starts_with("/certZ/") => Then::Change(change),
                _ => Then::Pass,
            });
            kept.manager.renew(NAME).unwrap();
            let text = kept.until_failed(NAME, failures);
            assert!(text.contains(why), "{text}");
            assert_eq!(kept.certificate(NAME).facts(), good);
        }
        assert_eq!(pebble.orders(), 4);
        assert_eq!(files(&dir, "certificates").len(), 1);
    });
}

#[test]
fn a_wrong_clock_is_named_and_costs_no_order() {
    within(LIMIT, || {
        let (dir, answers, pebble, front) = with_front();
        let clock = Ahead::new();
        clock.advance(MINUTE * 60 * 24 * 365);
        let issuers = vec![front.issuer(&pebble)];
        let kept = Kept::idle(settings(dir.path(), issuers), &[NAME], clock);
        answers.ask(&kept.manager);
        let kept = kept.keep();
        let text = kept.until_failed(NAME, 1);
        assert!(text.contains("check the clock of this machine"), "{text}");
        kept.clock.advance(MINUTE * 2);
        kept.until_failed(NAME, 2);
        drop(kept);
        // The clock is set.
        let kept = start(dir.path(), &answers, vec![front.issuer(&pebble)]);
        kept.manager.renew(NAME).unwrap();
        kept.until_valid(NAME);
        assert_eq!(pebble.orders(), 1);
    });
}

/// A crash while the issuer handles a request of this path: no second certificate is ordered.
fn crash_at(path: &'static str) {
    within(LIMIT, move || {
        let (dir, answers, pebble, front) = with_front();
        front.rule(move |asked| match asked {
            asked if asked.starts_with(path) => Then::Hang,
            _ => Then::Pass,
        });
        let first = start(dir.path(), &answers, vec![front.issuer(&pebble)]);
        until("the request", || front.count(path) > 0);
        // The crashed process cleans nothing up in the copy.
        let copy = TempDir::new().unwrap();
        copy_folder(dir.path(), copy.path());
        drop(first);
        front.rule(|_| Then::Pass);
        let kept = start(copy.path(), &answers, vec![front.issuer(&pebble)]);
        // The first lease names this process as its holder, but this process does not hold it.
        kept.until_valid(NAME);
        assert_eq!((pebble.orders(), pebble.accounts()), (1, 1));
        assert_eq!(files(&copy, "orders"), [""; 0]);
    });
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir_all(&to).unwrap();
            copy_folder(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), &to).unwrap();
        }
    }
}

#[test]
fn a_crash_before_the_challenge_orders_no_second_certificate() {
    crash_at("/authZ/");
}

#[test]
fn a_crash_in_the_challenge_orders_no_second_certificate() {
    crash_at("/chalZ/");
}

#[test]
fn a_crash_while_finalising_orders_no_second_certificate() {
    crash_at("/finalize-order/");
}

#[test]
fn a_crash_before_the_download_orders_no_second_certificate() {
    crash_at("/certZ/");
}

#[test]
fn two_processes_on_one_storage_order_once() {
    within(LIMIT, || {
        let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
        let pebble = answers.pebble();
        let one = start(dir.path(), &answers, vec![issuer(&pebble)]);
        let other = start(dir.path(), &answers, vec![issuer(&pebble)]);
        let mut both = [&one, &other].map(|kept| {
            holds_within(LIMIT, || {
                other.clock.advance(Duration::from_millis(100));
                one.clock.advance(Duration::from_millis(100));
                kept.status(NAME).state == State::Valid
            })
        });
        assert_eq!(both, [true; 2]);
        both.sort_unstable();
        assert_eq!(
            one.certificate(NAME).facts(),
            other.certificate(NAME).facts()
        );
        assert_eq!((pebble.orders(), pebble.accounts()), (1, 1));
    });
}

/// The first one hangs with its lease while an operator asks the other one.
#[test]
fn a_certificate_that_another_process_orders_is_ordered_once_and_seen_at_once() {
    within(LIMIT, || {
        let (dir, answers, pebble, front) = with_front();
        front.rule(|path| match path {
            path if path.starts_with("/finalize-order/") => Then::Hang,
            _ => Then::Pass,
        });
        let one = start(dir.path(), &answers, vec![front.issuer(&pebble)]);
        until("the request", || front.count("/finalize-order/") > 0);
        let other = Kept::idle(
            settings(dir.path(), vec![front.issuer(&pebble)]),
            &[NAME],
            Ahead::new(),
        );
        let other = other.keep();
        other.until_scheduled(NAME);
        other.manager.renew(NAME).unwrap();
        front.rule(|_| Then::Pass);
        // The request is given up, and the order goes on.
        one.clock.advance(Duration::from_secs(31));
        one.until_failed(NAME, 1);
        one.clock.advance(MINUTE * 2);
        one.until_valid(NAME);
        // As after its file was seen to change. By itself the other looks every 10 s.
        other.manager.follow(vec![NAME.to_owned()]);
        let is_valid = || other.status(NAME).state == State::Valid;
        assert!(holds_within(Duration::from_secs(5), is_valid));
        assert_eq!(pebble.orders(), 1);
    });
}

/// The second process last looked before the first one had ordered the certificate again.
#[test]
fn an_operator_who_asks_after_another_process_has_renewed_gets_another_one() {
    within(LIMIT, || {
        let (dir, answers, pebble, front) = with_front();
        let one = start(dir.path(), &answers, vec![front.issuer(&pebble)]);
        one.until_valid(NAME);
        let settings = settings(dir.path(), vec![front.issuer(&pebble)]);
        let other = Kept::idle(settings, &[NAME], Ahead::new()).keep();
        let first = other.until_valid(NAME).facts();
        other.until_scheduled(NAME);
        one.manager.renew(NAME).unwrap();
        until("a second one", || one.certificate(NAME).facts() != first);
        let second = one.until_valid(NAME).facts();
        answers.ask(&other.manager);
        other.manager.renew(NAME).unwrap();
        until("a third one", || other.certificate(NAME).facts() != second);
        assert_eq!(pebble.orders(), 3);
    });
}

#[test]
fn an_account_that_was_forgotten_is_made_anew() {
    within(LIMIT, || {
        let (dir, answers, pebble, front) = with_front();
        let kept = start(dir.path(), &answers, vec![front.issuer(&pebble)]);
        let first = kept.until_valid(NAME).facts();
        let other = answers.pebble();
        front.switch_to(&other);
        kept.manager.renew(NAME).unwrap();
        until("another certificate", || {
            kept.certificate(NAME).facts() != first
        });
        kept.until_valid(NAME);
        assert_eq!((other.orders(), other.accounts()), (1, 1));
    });
}

#[test]
fn a_challenge_that_is_not_passed_says_why_and_another_kind_is_tried() {
    within(LIMIT, || {
        let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
        let pebble = Pebble::start(free_port().unwrap(), answers.tls_port).unwrap();
        let settings = Settings {
            challenges: vec![ChallengeKind::Http01, ChallengeKind::TlsAlpn01],
            ..settings(dir.path(), vec![issuer(&pebble)])
        };
        let kept = Kept::idle(settings, &[NAME], Ahead::new());
        answers.ask(&kept.manager);
        let kept = kept.keep();
        let text = kept.until_failed(NAME, 1);
        assert!(text.contains("http-01: connection: "), "{text}");
        kept.clock.advance(MINUTE * 2);
        kept.until_valid(NAME);
        assert_eq!(pebble.orders(), 2);
    });
}

#[test]
fn an_account_is_bound_to_an_external_one() {
    within(LIMIT, || {
        let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
        let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
        let pebble = Pebble::start_with(&PebbleSetup {
            external_accounts: vec![("kid-1".to_owned(), key.to_owned())],
            ..answers.setup()
        });
        let pebble = pebble.unwrap();
        let kept = start(dir.path(), &answers, vec![issuer(&pebble)]);
        let text = kept.until_failed(NAME, 1);
        assert!(text.contains("externalAccountRequired"), "{text}");
        drop(kept);
        let bound = Issuer {
            external_account: Some(ExternalAccount {
                key_id: "kid-1".to_owned(),
                hmac_key: key.to_owned(),
            }),
            ..issuer(&pebble)
        };
        let kept = start(dir.path(), &answers, vec![bound]);
        kept.manager.renew(NAME).unwrap();
        kept.until_valid(NAME);
    });
}

#[test]
fn a_profile_that_is_unknown_is_refused() {
    within(LIMIT, || {
        let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
        let pebble = answers.pebble();
        let issuer = Issuer {
            profile: Some("huge".to_owned()),
            ..issuer(&pebble)
        };
        let kept = start(dir.path(), &answers, vec![issuer]);
        let text = kept.until_failed(NAME, 1);
        assert!(text.contains("huge"), "{text}");
        let missing = Manager::certificate_path(dir.path(), NAME);
        assert!(!missing.exists());
        assert_eq!(kept.status(NAME).not_after, None);
    });
}

#[test]
fn a_storage_that_is_full_keeps_the_certificate_and_costs_no_order() {
    within(LIMIT, || {
        let Some(disk) = MemoryDisk::new(256 << 10).unwrap() else {
            return;
        };
        let (_, answers, pebble, front) = with_front();
        let storage = disk.path().join("acme");
        let kept = start(&storage, &answers, vec![front.issuer(&pebble)]);
        let first = kept.until_valid(NAME).facts();
        disk.fill().unwrap();
        kept.manager.renew(NAME).unwrap();
        let text = kept.until_failed(NAME, 1);
        assert!(text.starts_with("the storage is full: "), "{text}");
        assert_eq!(kept.certificate(NAME).facts(), first);
        assert_eq!(pebble.orders(), 1);
        assert!(
            kept.events()
                .contains("not renewed, failed once: the storage is full")
        );
        disk.make_room().unwrap();
        // It gets full when the new certificate is there.
        let disk = Arc::new(disk);
        // The rule outlives a test that fails, and must not keep the disk mounted.
        let of_rule = Arc::downgrade(&disk);
        let mut is_full = false;
        front.rule(move |path| {
            if path.starts_with("/certZ/") && !is_full {
                of_rule.upgrade().unwrap().fill().unwrap();
                is_full = true;
            }
            Then::Pass
        });
        kept.clock.advance(MINUTE * 2);
        kept.manager.renew(NAME).unwrap();
        let text = kept.until_failed(NAME, 2);
        assert!(text.starts_with("the storage is full"), "{text}");
        assert_eq!(kept.certificate(NAME).facts(), first);
        disk.make_room().unwrap();
        kept.manager.renew(NAME).unwrap();
        until("the new certificate", || {
            kept.certificate(NAME).facts() != first
        });
        kept.until_valid(NAME);
        assert_eq!(pebble.orders(), 2);
    });
}

#[test]
fn a_storage_that_is_read_only_keeps_the_certificate_and_costs_no_order() {
    within(LIMIT, || {
        let Some(disk) = MemoryDisk::new(256 << 10).unwrap() else {
            return;
        };
        let (_, answers, pebble, front) = with_front();
        let storage = disk.path().join("acme");
        let issuers = vec![front.issuer(&pebble)];
        let kept = start(&storage, &answers, issuers.clone());
        let first = kept.until_valid(NAME).facts();
        drop(kept);
        disk.make_read_only().unwrap();
        let kept = start(&storage, &answers, issuers);
        assert_eq!(kept.until_valid(NAME).facts(), first);
        kept.manager.renew(NAME).unwrap();
        let text = kept.until_failed(NAME, 1);
        assert!(text.starts_with("the storage is read-only: "), "{text}");
        assert_eq!(kept.certificate(NAME).facts(), first);
        assert_eq!(pebble.orders(), 1);
        disk.make_writable().unwrap();
        kept.clock.advance(MINUTE * 2);
        kept.manager.renew(NAME).unwrap();
        until("the new certificate", || {
            kept.certificate(NAME).facts() != first
        });
    });
}

/// A crash after the certificate came into use, and before its order was forgotten.
#[test]
fn an_order_that_was_left_behind_is_not_gone_on_with() {
    within(LIMIT, || {
        let (dir, answers, pebble, front) = with_front();
        let kept = start(dir.path(), &answers, vec![front.issuer(&pebble)]);
        let first = kept.until_valid(NAME).facts();
        let path = Manager::certificate_path(dir.path(), NAME);
        let pem = fs::read_to_string(path).unwrap();
        let key = &pem[pem.find("-----BEGIN PRIVATE KEY").unwrap()..];
        let directory = front.issuer(&pebble).directory;
        let order = front.last("/my-order/").unwrap();
        let url = directory.replace("/dir", &order);
        let left = serde_json::json!({ "directory": directory, "url": url, "key": key });
        fs::write(dir.join("orders/a.example.com.json"), left.to_string()).unwrap();
        kept.manager.renew(NAME).unwrap();
        until("another certificate", || {
            kept.certificate(NAME).facts() != first
        });
        kept.until_valid(NAME);
        assert_eq!(pebble.orders(), 2);
        assert_eq!(files(&dir, "orders"), [""; 0]);
    });
}

#[test]
fn a_file_that_cannot_be_used_is_replaced() {
    within(LIMIT, || {
        let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
        let pebble = answers.pebble();
        fs::create_dir(dir.join("certificates")).unwrap();
        let path = Manager::certificate_path(dir.path(), NAME);
        let issued = Authority::new().unwrap().issue(&["b.example.com"]).unwrap();
        for (orders, content) in [(1, "no PEM".to_owned()), (2, issued.chain + &issued.key)] {
            fs::write(&path, content).unwrap();
            let kept = start(dir.path(), &answers, vec![issuer(&pebble)]);
            assert_eq!(kept.until_valid(NAME).facts().dns_names, [NAME]);
            assert_eq!(pebble.orders(), orders);
        }
    });
}

/// The challenge runs in one process, and another one answers from the storage.
#[test]
fn another_machine_answers() {
    within(LIMIT, || {
        for kind in [ChallengeKind::Http01, ChallengeKind::TlsAlpn01] {
            let (dir, answers) = (TempDir::new().unwrap(), Answers::new());
            let pebble = answers.pebble();
            let mut settings = settings(dir.path(), vec![issuer(&pebble)]);
            settings.challenges = vec![kind];
            let one = Kept::idle(settings.clone(), &[NAME], Ahead::new());
            let other = Kept::idle(settings, &[], Ahead::new());
            answers.ask(&other.manager);
            let one = one.keep();
            one.until_valid(NAME);
            assert_eq!(pebble.orders(), 1);
        }
    });
}

/// Both futures run while a configuration is replaced by another one.
#[test]
fn a_second_future_goes_on_where_the_first_was_dropped() {
    within(LIMIT, || {
        let (dir, answers, pebble, front) = with_front();
        front.rule(|path| match path {
            path if path.starts_with("/finalize-order/") => Then::Hang,
            _ => Then::Pass,
        });
        let first = Kept::idle(
            settings(dir.path(), vec![front.issuer(&pebble)]),
            &[NAME],
            Ahead::new(),
        );
        answers.ask(&first.manager);
        let second = first.keep_twice();
        let first = first.keep();
        until("the request", || front.count("/finalize-order/") > 0);
        front.rule(|_| Then::Pass);
        // The order is of one of them, and both are dropped in turn.
        drop(first);
        let third = second.keep_twice();
        drop(second);
        third.until_valid(NAME);
        assert_eq!(pebble.orders(), 1);
    });
}
