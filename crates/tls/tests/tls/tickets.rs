//! Keys of tickets, by a clock that the test moves.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_testkit::TempDir;
use evenkeel_tls::{FileKeys, Lifetimes, TicketKeys};
use rustls::time_provider::TimeProvider;
use rustls_pki_types::UnixTime;

const HOUR: u64 = 3600;
const HERE: [u8; 32] = [1; 32];

#[derive(Debug)]
struct Clock(AtomicU64);

impl Clock {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(1_700_000_000)))
    }

    fn pass(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = Duration::from_secs(self.0.load(Ordering::Relaxed));
        Some(UnixTime::since_unix_epoch(seconds))
    }
}

fn keys(clock: &Arc<Clock>) -> Arc<TicketKeys> {
    Arc::new(TicketKeys::generate_at(Lifetimes::default(), clock.clone()).unwrap())
}

#[test]
fn a_ticket_opens_for_its_lifetime_over_a_rotation() {
    let clock = Clock::new();
    let tickets = keys(&clock).bound_to(HERE);
    assert!(tickets.enabled());
    assert_eq!(u64::from(tickets.lifetime()), 12 * HOUR);
    clock.pass(11 * HOUR);
    let ticket = tickets.encrypt(b"session").unwrap();
    // Another key seals from here on.
    clock.pass(HOUR);
    let next = tickets.encrypt(b"session").unwrap();
    assert_ne!(ticket[..16], next[..16]);
    assert_ne!(ticket[16..28], next[16..28]);
    clock.pass(10 * HOUR);
    assert_eq!(tickets.decrypt(&ticket).as_deref(), Some(&b"session"[..]));
    clock.pass(HOUR - 1);
    assert_eq!(tickets.decrypt(&ticket).as_deref(), Some(&b"session"[..]));
    // Its lifetime is over, though its key would last an hour more.
    clock.pass(1);
    assert_eq!(tickets.decrypt(&ticket), None);
    assert_eq!(tickets.decrypt(&next).as_deref(), Some(&b"session"[..]));
}

#[test]
fn keys_are_dropped_when_their_tickets_have_run_out() {
    let clock = Clock::new();
    let keys = keys(&clock);
    let len = |keys: &TicketKeys| (keys.export().len() - 1) / 56;
    assert_eq!(len(&keys), 1);
    clock.pass(12 * HOUR);
    keys.rotate();
    assert_eq!(len(&keys), 2);
    clock.pass(12 * HOUR);
    keys.rotate();
    assert_eq!(len(&keys), 2);
    clock.pass(1000 * HOUR);
    keys.rotate();
    assert_eq!(len(&keys), 1);
}

#[test]
fn a_clock_that_was_far_ahead_leaves_no_key_for_years() {
    let clock = Clock::new();
    clock.pass(10 * 365 * 24 * HOUR);
    let keys = keys(&clock);
    let tickets = keys.bound_to(HERE);
    let ticket = tickets.encrypt(b"session").unwrap();
    clock.0.fetch_sub(10 * 365 * 24 * HOUR, Ordering::Relaxed);
    assert_eq!(tickets.decrypt(&ticket), None);
    assert_ne!(tickets.encrypt(b"session").unwrap()[..16], ticket[..16]);
    assert_eq!((keys.export().len() - 1) / 56, 1);
}

#[test]
fn a_ticket_of_another_context_or_with_a_changed_byte_does_not_open() {
    let clock = Clock::new();
    let keys = keys(&clock);
    let tickets = keys.bound_to(HERE);
    let ticket = tickets.encrypt(b"session").unwrap();
    assert!(tickets.decrypt(&ticket).is_some());
    assert_eq!(keys.bound_to([2; 32]).decrypt(&ticket), None);
    for at in 0..ticket.len() {
        let mut changed = ticket.clone();
        changed[at] ^= 1;
        assert_eq!(tickets.decrypt(&changed), None, "{at}");
        assert_eq!(tickets.decrypt(&ticket[..at]), None, "{at}");
    }
    assert_eq!(tickets.decrypt(&[&ticket[..], &[0]].concat()), None);
    let other = TicketKeys::generate_at(Lifetimes::default(), clock).unwrap();
    assert_eq!(Arc::new(other).bound_to(HERE).decrypt(&ticket), None);
}

#[test]
fn the_next_process_opens_the_tickets_of_the_one_before() {
    let clock = Clock::new();
    let before = keys(&clock);
    let ticket = before.bound_to(HERE).encrypt(b"session").unwrap();
    clock.pass(6 * HOUR);
    let after = keys(&clock);
    assert_eq!(after.import(&before.export()), Ok(1));
    assert_eq!(after.import(&before.export()), Ok(0));
    let tickets = after.bound_to(HERE);
    assert!(tickets.decrypt(&ticket).is_some());
    // Its own key seals, and the other one runs out by its own age.
    assert_ne!(tickets.encrypt(b"session").unwrap()[..16], ticket[..16]);
    clock.pass(18 * HOUR);
    after.rotate();
    assert!(!after.export().windows(16).any(|it| it == &ticket[..16]));
    for broken in [&b""[..], &[2], &[1, 0], &before.export()[..56]] {
        assert!(after.import(broken).is_err(), "{broken:?}");
    }
    assert!(!format!("{before:?} {tickets:?}").contains("secret"));
}

#[test]
fn keys_come_from_files_and_the_first_seals() {
    let temp = TempDir::new().unwrap();
    let file = |name: &str, bytes: Vec<u8>| {
        let path = temp.join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let (one, two) = (file("one", vec![1; 80]), file("two", (0..48).collect()));
    let clock = Clock::new();
    let read = |paths: &[_]| {
        let keys = keys(&clock);
        keys.use_files(FileKeys::read(paths).unwrap());
        keys
    };
    let tickets = read(&[one.clone(), two.clone()]).bound_to(HERE);
    let ticket = tickets.encrypt(b"session").unwrap();
    assert_eq!(ticket[..16], [1; 16]);
    let elsewhere = read(&[two.clone(), one.clone()]).bound_to(HERE);
    assert!(elsewhere.decrypt(&ticket).is_some());
    assert!(
        tickets
            .decrypt(&elsewhere.encrypt(b"session").unwrap())
            .is_some()
    );
    assert!(
        read(std::slice::from_ref(&two))
            .bound_to(HERE)
            .decrypt(&ticket)
            .is_none()
    );
    let short = file("short", vec![7; 47]);
    let error = FileKeys::read(&[one.clone(), short]).unwrap_err();
    let text = "short: has 47 bytes, but a file of ticket keys has 48 or 80";
    assert!(error.to_string().ends_with(text), "{error}");
    let same = FileKeys::read(&[one.clone(), two.clone()]).unwrap();
    assert_eq!(same, FileKeys::read(&[one.clone(), two.clone()]).unwrap());
    assert_ne!(same, FileKeys::read(&[two, one]).unwrap());
}

#[test]
fn keys_from_files_come_and_go_in_a_running_process() {
    let temp = TempDir::new().unwrap();
    let path = temp.join("one");
    fs::write(&path, [1; 48]).unwrap();
    let clock = Clock::new();
    let keys = keys(&clock);
    let tickets = keys.bound_to(HERE);
    let made_here = tickets.encrypt(b"session").unwrap();
    keys.use_files(FileKeys::read(&[path]).unwrap());
    let of_file = tickets.encrypt(b"session").unwrap();
    assert_eq!(of_file[..16], [1; 16]);
    assert!(tickets.decrypt(&made_here).is_some());
    // A key from a file is not rotated, and is not exported: the next process reads it itself.
    clock.pass(11 * HOUR);
    assert!(!keys.export().windows(16).any(|it| it == [1; 16]));
    clock.pass(1000 * HOUR);
    assert_eq!(tickets.encrypt(b"session").unwrap()[..16], [1; 16]);
    assert_eq!(keys.export().len(), 1);
    keys.use_files(FileKeys::read(&[]).unwrap());
    assert!(tickets.decrypt(&of_file).is_none());
    let made_here = tickets.encrypt(b"session").unwrap();
    assert_ne!(made_here[..16], [1; 16]);
    keys.set_lifetimes(Lifetimes {
        rotation: Duration::from_secs(10),
        ticket: Duration::from_secs(10),
    });
    assert_eq!(tickets.lifetime(), 10);
    clock.pass(10);
    assert!(tickets.decrypt(&made_here).is_none());
}
