//! The guard: who is put out, who decides about a return, and when it is void.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawOrigin};

use crate::control::{ask, site_of};
use crate::in_flight::occupy;
use crate::setup::{assert_serves, origin, test};

/// An origin that answers 500 while it is ill, and `pong` otherwise; a path of
/// `/bug` is answered 500 always.
struct Patient {
    origin: RawOrigin,
    is_ill: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
}

impl Patient {
    fn new(is_ill: bool) -> Self {
        let is_ill = Arc::new(AtomicBool::new(is_ill));
        let answers = Arc::new(AtomicUsize::new(0));
        let (ill, count) = (is_ill.clone(), answers.clone());
        let origin = RawOrigin::start(move |_, mut stream| {
            while let Ok(head) = stream.read_head() {
                count.fetch_add(1, Ordering::SeqCst);
                let fails = ill.load(Ordering::SeqCst) || head.contains("/bug");
                let status = if fails { "500 Ill" } else { "200 OK" };
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 4\r\n\r\npong");
                if stream.send(answer).is_err() {
                    return;
                }
            }
        });
        Patient {
            origin: origin.unwrap(),
            is_ill,
            answers,
        }
    }

    fn address(&self) -> String {
        self.origin.address.to_string()
    }

    fn recovers(&self) {
        self.is_ill.store(false, Ordering::SeqCst);
    }
}

/// Asks until the event log says so.
fn ask_until(proxy: &Proxy, said: &str) {
    let mut client = proxy.client();
    until(said, || {
        client.get("/").unwrap();
        proxy.stderr().contains(said)
    });
}

#[test]
fn the_next_exchange_after_an_ejection_is_its_trial() {
    test(|| {
        for balance in ["least-connections", "adaptive", "round-robin"] {
            let (ill, well) = (Patient::new(true), origin());
            let upstream = format!("balance = \"{balance}\"");
            let proxy = site_of(&upstream, &[ill.address(), well.address.to_string()]);
            ask_until(&proxy, "is out for 1s");
            ill.recovers();
            let begun = Instant::now();
            ask_until(&proxy, "is back");
            // With phantom load it took 4 to 8 s.
            assert!(begun.elapsed() < Duration::from_secs(4), "{balance}");
            until("the trial is in the log", || {
                let lines = proxy.access_log_json();
                lines.iter().any(|line| line["reason"] == "trial")
            });
        }
    });
}

#[test]
fn a_long_exchange_does_not_hold_the_trial() {
    test(|| {
        let (ill, well) = (Patient::new(true), origin());
        let endpoints = [ill.address(), well.address.to_string()];
        let proxy = site_of("balance = \"round-robin\"", &endpoints);
        ask_until(&proxy, "is out for 1s");
        ill.recovers();
        // The upload of a slow client is the trial.
        let before = ill.answers.load(Ordering::SeqCst);
        let mut uploads = Vec::new();
        until("an upload has gone there", || {
            let mut upload = proxy.client();
            let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx";
            upload.send(head).unwrap();
            uploads.push(upload);
            ill.answers.load(Ordering::SeqCst) > before
        });
        ask_until(&proxy, "is back");
    });
}

#[test]
fn an_ejection_is_void_where_the_others_are_gone() {
    test(|| {
        let (ill, well) = (Patient::new(true), origin());
        let endpoints = [ill.address(), well.address.to_string()];
        let proxy = site_of("balance = \"round-robin\"", &endpoints);
        ask_until(&proxy, "is out for 2s");
        ill.recovers();
        ask(&proxy, &format!("drain app/{}", endpoints[1]));
        assert_serves(&mut proxy.client());
        until("that was its trial", || proxy.stderr().contains("is back"));
    });
}

#[test]
fn an_endpoint_that_fails_as_the_others_do_stays() {
    test(|| {
        let all: Vec<_> = (0..4).map(|_| Patient::new(false)).collect();
        let endpoints: Vec<_> = all.iter().map(Patient::address).collect();
        let proxy = site_of("", &endpoints);
        let mut clients: Vec<_> = (0..4).map(|_| occupy(&proxy, "/bug")).collect();
        // Which page is asked for has nothing to do with who asks when.
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..400 {
            for client in &mut clients {
                client.read_response("GET").unwrap();
                let path = if random.bool() { "/" } else { "/bug" };
                client.send(crate::setup::get(path)).unwrap();
            }
        }
        // By chance there may be one, in some runs of a hundred.
        let ejections = proxy.stderr().matches("is out for").count();
        assert!(ejections <= 1, "{}", proxy.stderr());
    });
}
