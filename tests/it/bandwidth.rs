//! Responses that keep to the bandwidth of their route.

use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, RawClient, TempDir};

use crate::explain::live;
use crate::in_flight::limited;
use crate::reload::reload;
use crate::setup::{ask_status, origin, pattern, program, test};

/// A configuration with these routes before an origin at this address.
fn config(routes: &str, upstream: &str, origin: &OriginHandle) -> String {
    format!(
        "[server]\nworkers = 2\ncontrol = \"$DIR/control.sock\"\n\n\
         [access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\n\n[status]\nbind = \"127.0.0.1:0\"\n\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\ntimeouts = {{ body = \"1s\" }}\n\n\
         {routes}\n\n[upstream.app]\nendpoints = [{}]\n{upstream}\n",
        limited(&origin.address.to_string(), 4)
    )
}

fn start(routes: &str, upstream: &str) -> (OriginHandle, Proxy) {
    let origin = origin();
    let config = config(routes, upstream, &origin);
    let proxy = Proxy::start(program(), &config).unwrap();
    (origin, proxy)
}

fn route(bandwidth: &str) -> String {
    format!("[[route]]\nname = \"app\"\nupstream = \"app\"\nbandwidth = {bandwidth}\n")
}

fn asking(proxy: &Proxy, path: &str, lines: &str) -> RawClient {
    let mut client = proxy.client();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{lines}\r\n");
    client.send(request.as_bytes()).unwrap();
    client
}

/// Reads a body of this many bytes, in the origin's pattern; returns how long it took.
fn timed(client: &mut RawClient, len: usize) -> Duration {
    let begun = Instant::now();
    let response = client.read_response("GET").unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(response.body.len(), len);
    assert!(response.body == pattern(len as u64), "other bytes");
    begun.elapsed()
}

/// The rate at which a body came that was sent with a burst before it.
fn rate(len: usize, burst: usize, took: Duration) -> f64 {
    (len - burst) as f64 / took.as_secs_f64()
}

#[track_caller]
fn assert_close(found: f64, expected: f64) {
    let ratio = found / expected;
    assert!(
        (0.9..=1.1).contains(&ratio),
        "{found} where it should be {expected}"
    );
}

#[test]
fn a_response_comes_at_its_rate_and_gives_its_slot_back() {
    test(|| {
        // A rate below the least one of clients, and waits longer than their timeouts: the
        // client is not to blame.
        let upstream = "buffer = { response = \"1MiB\", min_rate = \"1MiB\" }";
        let (origin, proxy) = start(&route("\"100KB/s\""), upstream);
        let mut client = asking(&proxy, "/325000", "");
        until("the endpoint has sent all", || {
            origin.stats().in_flight == 0
        });
        let took = timed(&mut client, 325_000);
        assert_close(rate(325_000, 25_000, took), 100_000.0);
        // Another response has its own rate, on the same connection too.
        client
            .send(b"GET /15000 HTTP/1.1\r\nHost: a.test\r\n\r\n")
            .unwrap();
        assert!(timed(&mut client, 15_000) < Duration::from_secs(1));
        until("both are logged", || proxy.access_log_json().len() == 2);
        let log = proxy.access_log_json();
        let paced = log[0]["paced_ms"].as_u64().unwrap();
        assert!((2_500..=3_400).contains(&paced), "{log:?}");
        assert_eq!(log[0]["end"], "complete");
        assert!(log[1].get("paced_ms").is_none(), "{log:?}");
        let metrics = ask_status(&proxy, "/metrics", "").text();
        let counted = "evenkeel_route_paced_total{route=\"app\"} 1\n";
        assert!(metrics.contains(counted), "{metrics}");
    });
}

#[test]
fn responses_that_are_longer_than_the_buffer_or_chunked_are_paced_too() {
    test(|| {
        let upstream = "buffer = { response = \"16KiB\" }";
        let (_origin, proxy) = start(&route("\"100KB/s\""), upstream);
        for path in ["/225000", "/chunked/225000"] {
            let mut client = asking(&proxy, path, "");
            let took = timed(&mut client, 225_000);
            assert_close(rate(225_000, 25_000, took), 100_000.0);
        }
    });
}

#[test]
fn a_wait_that_is_longer_than_the_timeout_of_clients_is_no_fault_of_theirs() {
    test(|| {
        // Twelve responses of one key: each waits for 1.2 s between two pieces.
        let bound = "{ rate = \"10KB/s\", burst = \"1B\", key = \"{route}\" }";
        let (_origin, proxy) = start(&route(bound), "");
        let mut clients: Vec<_> = (0..12).map(|_| asking(&proxy, "/5000", "")).collect();
        for client in &mut clients {
            timed(client, 5_000);
        }
        until("all are logged", || proxy.access_log_json().len() == 12);
        for line in proxy.access_log_json() {
            assert_eq!(line["end"], "complete", "{line}");
        }
    });
}

#[test]
fn the_least_rate_of_clients_is_not_judged_while_they_are_held_back() {
    test(|| {
        // Longer than the window in which clients are judged, and with its slot.
        let upstream = "buffer = { response = \"16KiB\", min_rate = \"1MiB\" }";
        let (_origin, proxy) = start(&route("\"10KB/s\""), upstream);
        let mut client = asking(&proxy, "/125000", "");
        client.set_step(Duration::from_secs(25));
        let took = timed(&mut client, 125_000);
        assert_close(rate(125_000, 2_500, took), 10_000.0);
    });
}

#[test]
fn responses_of_a_key_share_its_rate_and_others_have_their_own() {
    test(|| {
        let bound = "{ rate = \"100KB/s\", key = \"{header:X-Key}\" }";
        let (_origin, proxy) = start(&route(bound), "");
        let begun = Instant::now();
        let mut both = [
            asking(&proxy, "/150000", "X-Key: a\r\n"),
            asking(&proxy, "/150000", "X-Key: a\r\n"),
        ];
        let mut other = asking(&proxy, "/225000", "X-Key: b\r\n");
        let mut free = asking(&proxy, "/2000000", "");
        assert!(timed(&mut free, 2_000_000) < Duration::from_millis(900));
        let explained = live(&proxy, &["GET", "http://a.test/x", "-H", "X-Key: a"]);
        let text = explained["bandwidth"][0].as_str().unwrap();
        assert!(text.contains("/s by {header:X-Key}: a"), "{text}");
        timed(&mut other, 225_000);
        assert_close(rate(225_000, 25_000, begun.elapsed()), 100_000.0);
        for client in &mut both {
            timed(client, 150_000);
        }
        // Both end at about the same time.
        assert_close(rate(300_000, 25_000, begun.elapsed()), 100_000.0);
    });
}

#[test]
fn many_short_responses_of_a_key_have_all_of_its_rate() {
    test(|| {
        let bound = "{ rate = \"100KB/s\", key = \"client\" }";
        let (_origin, proxy) = start(&route(bound), "");
        let mut clients: Vec<_> = (0..50).map(|_| proxy.client()).collect();
        let begun = Instant::now();
        for _ in 0..3 {
            for client in &mut clients {
                client
                    .send("GET /1000 HTTP/1.1\r\nHost: a\r\n\r\n")
                    .unwrap();
            }
            for client in &mut clients {
                assert_eq!(client.read_response("GET").unwrap().body.len(), 1000);
            }
        }
        // With their heads, less than 1200 bytes each; a quarter of a second's come at once.
        let took = begun.elapsed();
        assert!(took < Duration::from_millis(2_200), "{took:?}");
        assert!(took > Duration::from_millis(1_200), "{took:?}");
    });
}

#[test]
fn who_waits_comes_sooner_where_others_of_its_key_leave() {
    test(|| {
        let bound = "{ rate = \"10KB/s\", key = \"client\" }";
        let upstream = "buffer = { response = \"1MiB\" }";
        let (origin, proxy) = start(&route(bound), upstream);
        let before: Vec<_> = (0..60).map(|_| asking(&proxy, "/100000", "")).collect();
        until("all have their responses", || origin.stats().requests >= 60);
        let mut last = asking(&proxy, "/1000", "");
        until("it has its response too", || origin.stats().requests >= 61);
        drop(before);
        let took = timed(&mut last, 1000);
        assert!(took < Duration::from_secs(4), "{took:?}");
    });
}

#[test]
fn a_reload_changes_the_rate_of_the_responses_that_follow() {
    test(|| {
        let (origin, proxy) = start(&route("\"50KB/s\""), "");
        let mut before = asking(&proxy, "/162500", "");
        // The response has begun.
        before.read_head().unwrap();
        let begun = Instant::now();
        reload(&proxy, &config(&route("\"200KB/s\""), "", &origin));
        let mut after = asking(&proxy, "/450000", "");
        let took = timed(&mut after, 450_000);
        assert_close(rate(450_000, 50_000, took), 200_000.0);
        before.read_len(162_500).unwrap();
        let took = begun.elapsed();
        assert!(took > Duration::from_millis(2_600), "{took:?}");
        reload(
            &proxy,
            &config(
                "[[route]]\nname = \"app\"\nupstream = \"app\"\n",
                "",
                &origin,
            ),
        );
        let mut free = asking(&proxy, "/2000000", "");
        assert!(timed(&mut free, 2_000_000) < Duration::from_secs(1));
    });
}

#[test]
fn answers_without_a_body_do_not_wait() {
    test(|| {
        let (_origin, proxy) = start(&route("\"1KiB/s\""), "");
        let mut client = proxy.client();
        client
            .send(b"HEAD /2000000 HTTP/1.1\r\nHost: a.test\r\n\r\n")
            .unwrap();
        let begun = Instant::now();
        let response = client.read_response("HEAD").unwrap();
        assert_eq!(response.status, 200);
        client
            .send(b"GET /status/204 HTTP/1.1\r\nHost: a.test\r\n\r\n")
            .unwrap();
        assert_eq!(client.read_response("GET").unwrap().status, 204);
        assert!(begun.elapsed() < Duration::from_secs(1));
    });
}

#[test]
fn a_client_that_leaves_ends_its_response() {
    test(|| {
        let (_origin, proxy) = start(&route("\"10KB/s\""), "");
        let client = asking(&proxy, "/100000", "");
        drop(client);
        until("it is logged", || {
            let log = proxy.access_log_json();
            log.first().is_some_and(|it| it["end"] == "client-gone")
        });
    });
}

#[test]
fn files_and_stored_responses_are_paced() {
    test(|| {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.join("a.bin"), pattern(225_000)).unwrap();
        let routes = format!(
            "[[route]]\nname = \"files\"\nmatch = {{ path = \"/files/*\" }}\n\
             files = {{ root = {:?}, strip = \"/files\" }}\nbandwidth = \"100KB/s\"\n\
             [[route]]\nname = \"stored\"\nupstream = \"app\"\nbandwidth = \"100KB/s\"\n\
             cache = {{ ttl = {{ 200 = \"1m\" }} }}\n",
            folder.path()
        );
        let (_origin, proxy) = start(&routes, "");
        for path in ["/files/a.bin", "/225000", "/225000"] {
            let mut client = asking(&proxy, path, "");
            let took = timed(&mut client, 225_000);
            assert_close(rate(225_000, 25_000, took), 100_000.0);
        }
    });
}
