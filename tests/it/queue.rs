//! Waiting for a slot: in order, within bounds, and while nothing is up.

use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, RawClient};
use serde_json::Value;

use crate::control::{ask, site_of};
use crate::in_flight::{limited, occupy};
use crate::setup::{
    Site, assert_logged, assert_refused, assert_serves, nobody, origin, origin_at, test,
};
use crate::words;

/// Gives a request the time to join the queue, which is not visible from outside.
fn let_it_join() {
    let begun = Instant::now();
    until("it has joined", || {
        begun.elapsed() >= Duration::from_millis(60)
    });
}

fn line_of(proxy: &Proxy, path: &str) -> Value {
    let mut found = None;
    until(&format!("a line of {path}"), || {
        found = proxy
            .access_log_json()
            .into_iter()
            .find(|line| line["target"] == path);
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn requests_wait_and_are_served_in_the_order_in_which_they_came() {
    test(|| {
        let origin = origin();
        let proxy = Site::default().start(&[limited(&origin.address.to_string(), 1)]);
        let mut clients: Vec<RawClient> = Vec::new();
        for index in 0..5 {
            clients.push(occupy(&proxy, &format!("/slow/150?n={index}")));
            let_it_join();
        }
        for client in &mut clients {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        assert_eq!(origin.stats().max_in_flight, 1);
        until("all are logged", || proxy.access_log_json().len() == 5);
        let order: Vec<_> = proxy
            .access_log_json()
            .iter()
            .map(|line| line["target"].as_str().unwrap().to_owned())
            .collect();
        let due: Vec<_> = (0..5).map(|index| format!("/slow/150?n={index}")).collect();
        assert_eq!(order, due);
        let waits = |index: usize| line_of(&proxy, &due[index])["queue_us"].as_u64();
        assert_eq!(waits(0), None, "the first did not wait");
        assert!(waits(1).unwrap() > 20_000);
        assert!(waits(4).unwrap() > waits(1).unwrap());
    });
}

#[test]
fn a_full_queue_refuses_at_once_and_a_long_wait_in_time() {
    test(|| {
        let origin = origin();
        let proxy = Site {
            upstream: "queue = { max = 1, timeout = \"300ms\", answer = { retry_after = \"7s\" } }",
            ..Site::default()
        }
        .start(&[limited(&origin.address.to_string(), 1)]);
        let mut busy = occupy(&proxy, "/slow/1500");
        until("one is in flight", || origin.stats().in_flight == 1);
        let mut waiting = occupy(&proxy, "/ping");
        let_it_join();
        let mut refused = proxy.client();
        let begun = Instant::now();
        let response = refused.get("/").unwrap();
        assert!(begun.elapsed() < Duration::from_millis(200));
        assert_refused(&response, words::QUEUE_FULL);
        assert_eq!(response.field("retry-after"), Some("7"));
        assert_logged(&proxy, words::QUEUE_FULL);
        assert_refused(&waiting.read_response("GET").unwrap(), words::QUEUE_TIMEOUT);
        assert_logged(&proxy, words::QUEUE_TIMEOUT);
        assert_eq!(busy.read_response("GET").unwrap().status, 200);
        // Both connections can go on.
        assert_serves(&mut waiting);
        assert_serves(&mut refused);
    });
}

#[test]
fn a_waiting_client_that_leaves_frees_its_place_at_once() {
    test(|| {
        let origin = origin();
        let proxy = Site {
            upstream: "queue = { max = 1 }",
            ..Site::default()
        }
        .start(&[limited(&origin.address.to_string(), 1)]);
        let mut busy = occupy(&proxy, "/slow/1500");
        until("one is in flight", || origin.stats().in_flight == 1);
        let leaving = occupy(&proxy, "/leaving");
        let_it_join();
        leaving.reset();
        assert_logged(&proxy, words::CLIENT_GONE);
        // There is a place again, and the waiting request gets the slot.
        let mut next = occupy(&proxy, "/ping");
        assert_eq!(next.read_response("GET").unwrap().text(), "pong");
        assert_eq!(busy.read_response("GET").unwrap().status, 200);
        assert_eq!(line_of(&proxy, "/leaving")["attempts"], 0);
    });
}

#[test]
fn the_configured_body_goes_to_who_gets_no_slot() {
    test(|| {
        let origin = origin();
        let folder = evenkeel_testkit::TempDir::new().unwrap();
        let image = folder.join("busy.gif");
        std::fs::write(&image, b"GIF89a\x01\x00\x01\x00").unwrap();
        let queue = format!(
            "queue = {{ max = 0, answer = {{ status = 429, file = {image:?}, content_type = \"image/gif\" }} }}"
        );
        let proxy = Site {
            upstream: &queue,
            ..Site::default()
        }
        .start(&[limited(&origin.address.to_string(), 1)]);
        let _busy = occupy(&proxy, "/slow/1500");
        until("one is in flight", || origin.stats().in_flight == 1);
        let response = proxy.client().get("/").unwrap();
        assert_eq!(response.status, 429);
        assert_eq!(response.field("content-type"), Some("image/gif"));
        assert_eq!(response.body, b"GIF89a\x01\x00\x01\x00");
        assert_logged(&proxy, words::SATURATED);
    });
}

#[test]
fn requests_are_held_while_nothing_is_up_and_released_through_the_limit() {
    test(|| {
        let address = nobody();
        let proxy = Site::default().start(&[limited(&address, 2)]);
        let mut clients: Vec<RawClient> = (0..12).map(|_| occupy(&proxy, "/slow/50")).collect();
        until("it is found unreachable", || {
            proxy.stderr().to_lowercase().contains("reach")
        });
        let origin = origin_at(&address);
        for client in &mut clients {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        assert_eq!(origin.stats().max_in_flight, 2);
        until("all are logged", || proxy.access_log_json().len() == 12);
        for line in proxy.access_log_json() {
            assert!(line["queue_us"].as_u64().is_some(), "{line}");
        }
    });
}

#[test]
fn a_hold_ends_with_the_queues_timeout_and_can_be_turned_off() {
    test(|| {
        for (queue, least, reason) in [
            ("queue = { timeout = \"400ms\" }", 350, words::NO_ENDPOINT),
            ("queue = { hold = false }", 0, words::CONNECT_FAILED),
        ] {
            let proxy = Site {
                upstream: queue,
                ..Site::default()
            }
            .start(&[nobody(), nobody()]);
            let begun = Instant::now();
            let response = proxy.client().get("/").unwrap();
            let took = begun.elapsed();
            assert_refused(&response, reason);
            assert!(took >= Duration::from_millis(least), "{queue}: {took:?}");
            assert!(
                took < Duration::from_millis(least + 1_000),
                "{queue}: {took:?}"
            );
        }
    });
}

#[test]
fn a_restart_loses_no_request() {
    test(|| {
        let address = nobody();
        let start = || origin_at(&address);
        let proxy = Site::default().start(&[limited(&address, 2)]);
        let mut statuses = Vec::new();
        for _ in 0..3 {
            let origin = start();
            let mut clients: Vec<RawClient> = (0..8).map(|_| occupy(&proxy, "/slow/30")).collect();
            until("some are in flight", || origin.stats().in_flight > 0);
            origin.shutdown();
            let origin = start();
            for client in &mut clients {
                statuses.push(client.read_response("GET").unwrap().status);
            }
            origin.shutdown();
        }
        assert_eq!(statuses, [200; 24]);
    });
}

#[test]
fn two_workers_share_one_queue() {
    test(|| {
        let origin = origin();
        let config = Site::default()
            .config(&[limited(&origin.address.to_string(), 1)])
            .replace("workers = 1", "workers = 2");
        let proxy = Proxy::start(crate::setup::program(), &config).unwrap();
        let mut clients: Vec<RawClient> = (0..40).map(|_| occupy(&proxy, "/slow/10")).collect();
        for client in &mut clients {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        assert_eq!(origin.stats().max_in_flight, 1);
    });
}

#[test]
fn a_client_that_closed_its_sending_side_is_served_from_the_queue() {
    test(|| {
        let origin = origin();
        let proxy = Site::default().start(&[limited(&origin.address.to_string(), 1)]);
        let _busy = occupy(&proxy, "/slow/500");
        until("one is in flight", || origin.stats().in_flight == 1);
        let mut half_closed = proxy.client();
        let request = "GET /ping HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        half_closed.send_last(request).unwrap();
        assert_eq!(half_closed.read_response("GET").unwrap().text(), "pong");
    });
}

/// The words of the refusals of these clients' requests, in the order of the
/// words.
fn refusals(clients: &mut [RawClient]) -> Vec<(u16, String)> {
    let mut answers: Vec<_> = clients
        .iter_mut()
        .map(|client| {
            let response = client.read_response("GET").unwrap();
            let text = response.text();
            let word = text.lines().last().unwrap_or_default();
            let word = word.split(':').next().unwrap_or_default();
            (response.status, word.to_owned())
        })
        .collect();
    answers.sort();
    answers
}

/// A site with an endpoint of this many slots, and the options of two routes: for `/slow/…` and
/// for all other requests.
fn with_routes(origin: &str, slots: u32, slow: &str, upstream: &str) -> Proxy {
    let config = Site {
        upstream,
        ..Site::default()
    }
    .config(&[limited(origin, slots)]);
    let routes = format!(
        "[[route]]\nmatch = {{ path = \"/slow/*\" }}\nupstream = \"app\"\n{slow}\n\n[[route]]"
    );
    Proxy::start(
        crate::setup::program(),
        &config.replace("[[route]]", &routes),
    )
    .unwrap()
}

#[test]
fn a_lane_that_is_full_leaves_room_in_the_queue() {
    test(|| {
        let origin = origin();
        let proxy = with_routes(
            &origin.address.to_string(),
            2,
            "lane = \"slow\"",
            "lanes = { slow = 1 }\nqueue = { max = 4 }",
        );
        let _busy = occupy(&proxy, "/slow/20000");
        until("it is in flight", || origin.stats().in_flight == 1);
        // Half of the slots, so half of the queue.
        let mut slow: Vec<_> = (0..6).map(|_| occupy(&proxy, "/slow/20000")).collect();
        until("the lane's share is taken", || {
            proxy.access_log_json().len() == 4
        });
        for line in proxy.access_log_json() {
            assert_eq!(line["end"], words::QUEUE_FULL.word);
        }
        let mut fast: Vec<_> = (0..3).map(|_| occupy(&proxy, "/ping")).collect();
        let served = refusals(&mut fast);
        assert!(
            served.iter().all(|(status, _)| *status == 200),
            "{served:?}"
        );
        slow.clear();
    });
}

#[test]
fn a_full_queue_takes_a_higher_priority_in_the_place_of_the_newest() {
    test(|| {
        let origin = origin();
        let proxy = with_routes(&origin.address.to_string(), 1, "", "queue = { max = 3 }");
        let urgent = "[[route]]\nmatch = { path = \"/echo\" }\nupstream = \"app\"\npriority = 9\n\n[[route]]";
        let config = std::fs::read_to_string(proxy.path("evenkeel.toml")).unwrap();
        let config = config.replacen("[[route]]", urgent, 1);
        let proxy = Proxy::start(crate::setup::program(), &config).unwrap();
        let _busy = occupy(&proxy, "/slow/800");
        until("it is in flight", || origin.stats().in_flight == 1);
        let mut low: Vec<_> = (0..3)
            .map(|_| {
                let client = occupy(&proxy, "/ping");
                let_it_join();
                client
            })
            .collect();
        let mut urgent: Vec<_> = (0..2).map(|_| occupy(&proxy, "/echo")).collect();
        assert!(
            refusals(&mut urgent).iter().all(|it| it.0 != 503),
            "it is served"
        );
        // The first of them kept its place.
        assert_eq!(low[0].read_response("GET").unwrap().status, 200);
        let full = (503, words::QUEUE_FULL.word.to_owned());
        assert_eq!(refusals(&mut low[1..]), [full.clone(), full]);
    });
}

#[test]
fn who_waits_is_judged_anew_when_the_operator_changes_something() {
    test(|| {
        let origins = [origin(), origin()];
        let endpoints = origins
            .each_ref()
            .map(|it| limited(&it.address.to_string(), 1));
        let proxy = site_of("balance = \"first\"", &endpoints);
        let names = origins.each_ref().map(|it| format!("app/{}", it.address));
        ask(&proxy, &format!("drain {}", names[1]));
        let _busy = occupy(&proxy, "/slow/20000");
        until("it is in flight", || origins[0].stats().in_flight == 1);
        let mut waiting = occupy(&proxy, "/ping");
        let_it_join();
        ask(&proxy, &format!("ready {}", names[1]));
        assert_eq!(waiting.read_response("GET").unwrap().text(), "pong");
        ask(&proxy, &format!("stop {}", names[1]));
        let mut waiting = occupy(&proxy, "/ping");
        let_it_join();
        let begun = Instant::now();
        ask(&proxy, &format!("stop {}", names[0]));
        let response = waiting.read_response("GET").unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "at once");
        assert_refused(&response, words::NO_ENDPOINT);
        assert!(response.text().contains(": 2 stopped"), "{response:?}");
    });
}

#[test]
fn who_was_refused_a_connection_goes_there_once_it_opens() {
    test(|| {
        let other = origin();
        let address = nobody();
        let proxy = Site {
            upstream: "balance = \"first\"",
            ..Site::default()
        }
        .start(&[limited(&address, 4), limited(&other.address.to_string(), 1)]);
        let _busy = occupy(&proxy, "/slow/20000");
        until("it is in flight", || other.stats().in_flight == 1);
        // The first endpoint does not listen, and the other one is busy for long.
        let mut waiting = [occupy(&proxy, "/ping"), occupy(&proxy, "/ping")];
        let_it_join();
        let begun = Instant::now();
        let _first = origin_at(&address);
        for client in &mut waiting {
            assert_eq!(client.read_response("GET").unwrap().text(), "pong");
        }
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "not by the queue's end"
        );
    });
}

#[test]
fn what_is_wrong_is_said_after_a_hold() {
    test(|| {
        let proxy = Site {
            upstream: "queue = { timeout = \"1s\" }",
            ..Site::default()
        }
        .start(&[nobody(), nobody()]);
        let response = proxy.client().get("/").unwrap();
        assert_refused(&response, words::NO_ENDPOINT);
        assert_logged(&proxy, words::NO_ENDPOINT);
        until("both are known to be unreachable", || {
            let text = proxy.client().get("/").unwrap().text();
            text.contains(": 2 unreachable")
        });
    });
}
