//! Queues that stand for longer than their target: `adaptive-lifo` and `codel`.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawClient, RawOrigin};
use serde_json::Value;

use crate::control::{ask, json, site_of};
use crate::explain::live;
use crate::in_flight::{limited, occupy};
use crate::setup::{assert_logged, assert_refused, test};
use crate::words;

/// An endpoint with one slot, which answers a request on command.
struct PacedOrigin {
    origin: RawOrigin,
    /// The targets of the requests that reached it, in their order.
    targets: Arc<Mutex<Vec<String>>>,
    answers: Sender<()>,
}

impl PacedOrigin {
    fn start() -> Self {
        const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let (answers, told) = channel();
        let told = Mutex::new(told);
        let targets: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = targets.clone();
        let origin = RawOrigin::start(move |_, mut stream| {
            while let Ok(head) = stream.read_head() {
                let target = head.split(' ').nth(1).unwrap().to_owned();
                noted.lock().unwrap().push(target);
                let is_told = told.lock().unwrap().recv().is_ok();
                if !is_told || stream.send(ANSWER).is_err() {
                    return;
                }
            }
        });
        PacedOrigin {
            origin: origin.unwrap(),
            targets,
            answers,
        }
    }

    fn targets(&self) -> Vec<String> {
        self.targets.lock().unwrap().clone()
    }

    /// Answers the request that is there, or the next one.
    fn answer(&self) {
        self.answers.send(()).unwrap();
    }
}

/// The program before such an endpoint, whose slot the request `/first` has.
struct Saturated {
    origin: PacedOrigin,
    proxy: Proxy,
    first: RawClient,
}

impl Saturated {
    fn start(discipline: &str) -> Self {
        let origin = PacedOrigin::start();
        let queue = format!("queue = {{ timeout = \"1m\", {discipline} }}");
        let proxy = site_of(&queue, &[limited(&origin.origin.address.to_string(), 1)]);
        let first = occupy(&proxy, "/first");
        until("the slot is taken", || origin.targets() == ["/first"]);
        Saturated {
            origin,
            proxy,
            first,
        }
    }

    fn queue(&self) -> Value {
        json(&self.proxy, "show queue")[0].clone()
    }

    /// Sends a request and waits until it is in the queue.
    fn join(&self, path: &str) -> RawClient {
        let before = self.queue()["waiting"].as_u64().unwrap();
        let client = occupy(&self.proxy, path);
        until("it has joined", || self.queue()["waiting"] == before + 1);
        client
    }

    /// Waits until a request has waited for longer than this, in milliseconds.
    fn until_waited_for(&self, least_ms: u64) {
        until("somebody has waited", || {
            self.queue()["longest_wait_ms"].as_u64().unwrap() > least_ms
        });
    }

    /// Answers all requests; returns the order in which they came to the endpoint.
    fn serve(mut self, waiting: Vec<RawClient>) -> Vec<String> {
        for _ in 0..=waiting.len() {
            self.origin.answer();
        }
        for mut client in waiting {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        assert_eq!(self.first.read_response("GET").unwrap().status, 200);
        self.origin.targets()
    }
}

#[test]
fn until_the_queue_stands_the_first_is_served_first() {
    test(|| {
        // Longer than the test takes.
        for discipline in [
            "discipline = 'adaptive-lifo', target = '50s'",
            "discipline = 'codel', target = '50s'",
        ] {
            let site = Saturated::start(discipline);
            let waiting = vec![site.join("/1"), site.join("/2"), site.join("/3")];
            let order = site.serve(waiting);
            assert_eq!(order, ["/first", "/1", "/2", "/3"], "{discipline}");
        }
    });
}

#[test]
fn adaptive_lifo_serves_the_newest_first_once_the_queue_stands() {
    test(|| {
        let site = Saturated::start("discipline = 'adaptive-lifo', target = '100ms'");
        let mut waiting = vec![site.join("/1"), site.join("/2")];
        site.until_waited_for(100);
        // A new request goes before those that have waited for long, and none is refused.
        waiting.push(site.join("/3"));
        assert_eq!(site.serve(waiting), ["/first", "/3", "/2", "/1"]);
    });
}

#[test]
fn codel_refuses_at_once_who_has_waited_for_longer_than_the_target() {
    test(|| {
        let site = Saturated::start("discipline = 'codel', target = '2s'");
        let begun = Instant::now();
        let mut old = [site.join("/old?1"), site.join("/old?2")];
        site.until_waited_for(1_000);
        let young = site.join("/young");
        for client in &mut old {
            let response = client.read_response("GET").unwrap();
            assert_refused(&response, words::QUEUE_TIMEOUT);
        }
        assert!(begun.elapsed() >= Duration::from_secs(2), "not before");
        assert_logged(&site.proxy, words::QUEUE_TIMEOUT);
        // A request that has not waited for so long stays, and is served.
        assert_eq!(site.serve(vec![young]), ["/first", "/young"]);
    });
}

#[test]
fn keys_that_share_a_queue_are_served_in_turn() {
    test(|| {
        let site = Saturated::start("fair_by = '{query:key}'");
        let paths = [
            "/1?key=hog",
            "/2?key=hog",
            "/3?key=hog",
            "/4?key=a",
            "/5?key=b",
            "/6?key=b",
        ];
        let waiting: Vec<_> = paths.iter().map(|path| site.join(path)).collect();
        let queue = site.queue();
        assert_eq!(
            queue["fair"],
            serde_json::json!({ "by": "{query:key}", "lines": 3, "longest_line": 3 })
        );
        let text = ask(&site.proxy, "show queue");
        assert!(text.contains("3 lines, at most 3 in one"), "{text}");
        let order = site.serve(waiting);
        let [h1, h2, h3, a, b1, b2] = paths;
        assert_eq!(order, ["/first", h1, a, b1, h2, b2, h3]);
    });
}

#[test]
fn in_a_full_queue_the_newest_of_the_key_with_most_gives_way() {
    test(|| {
        let site = Saturated::start("fair_by = '{query:key}', max = 3");
        let mut hog: Vec<_> = ["/1?key=hog", "/2?key=hog", "/3?key=hog"]
            .iter()
            .map(|path| site.join(path))
            .collect();
        // A fourth of the same key is refused itself.
        let response = site.proxy.client().get("/4?key=hog").unwrap();
        assert_refused(&response, words::QUEUE_FULL);
        let other = occupy(&site.proxy, "/5?key=a");
        let response = hog.pop().unwrap().read_response("GET").unwrap();
        assert_refused(&response, words::QUEUE_FULL);
        assert_logged(&site.proxy, words::QUEUE_FULL);
        until("the other has its place", || site.queue()["waiting"] == 3);
        hog.push(other);
        let order = site.serve(hog);
        assert_eq!(order, ["/first", "/1?key=hog", "/5?key=a", "/2?key=hog"]);
    });
}

#[test]
fn a_client_has_one_line_whatever_it_asks_for() {
    test(|| {
        let site = Saturated::start("fair_by = 'client'");
        let waiting = vec![site.join("/1"), site.join("/2")];
        assert_eq!(site.queue()["fair"]["lines"], 1);
        let explained = live(&site.proxy, &["GET", "http://x.test/2"]);
        assert_eq!(
            explained["action"]["queue"]["fair_by"],
            serde_json::json!({ "by": "client", "key": "127.0.0.1", "lines": 1, "longest": 2 })
        );
        assert_eq!(site.serve(waiting), ["/first", "/1", "/2"]);
    });
}
