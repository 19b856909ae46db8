//! Which endpoint gets a request: shares by weight, and keys that stay.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, RawClient};

use crate::setup::{Site, get, origin, test};

/// The endpoints in the access log, once it has this many lines.
fn endpoints(proxy: &Proxy, lines: usize) -> Vec<String> {
    until("every request is logged", || {
        proxy.access_log().len() == lines
    });
    let lines = proxy.access_log_json();
    let endpoints = lines.iter().map(|line| line["endpoint"].as_str());
    endpoints.map(|it| it.unwrap().to_owned()).collect()
}

fn site(origins: &[OriginHandle], upstream: &str) -> Proxy {
    let addresses = origins.iter().map(|it| it.address.to_string());
    let endpoints: Vec<_> = addresses.collect();
    let site = Site {
        upstream,
        ..Site::default()
    };
    site.start(&endpoints)
}

/// Nothing is in flight whenever a balancer is asked.
#[test]
fn weights_hold_for_requests_one_after_the_other() {
    test(|| {
        let origins = [origin(), origin()];
        let [heavy, light] = [0, 1].map(|index| origins[index].address.to_string());
        for balance in [
            "adaptive",
            "least-connections",
            "shortest-queue",
            "round-robin",
            "two-choices",
        ] {
            let site = Site {
                upstream: &format!("balance = {balance:?}"),
                ..Site::default()
            };
            let heavy_one = format!("{{ address = {heavy:?}, weight = 3 }}");
            let proxy = site.start(&[heavy_one, light.clone()]);
            let mut client = proxy.client();
            for _ in 0..200 {
                assert_eq!(client.get("/ping").unwrap().status, 200);
            }
            let endpoints = endpoints(&proxy, 200);
            let count = endpoints.iter().filter(|it| **it == heavy).count();
            // Without weights they would be 100. Times that `adaptive` learns are a
            // busy machine's.
            assert!((110..190).contains(&count), "{balance}: {count} of 200");
        }
    });
}

/// A browser sends six requests of one session at once.
#[test]
fn parallel_requests_of_a_session_stay_together() {
    test(|| {
        for (balance, most) in [("carp", 1), ("consistent-hash", 2)] {
            let origins = [origin(), origin(), origin(), origin()];
            let upstream = format!("balance = {balance:?}\nkey = {{ cookie = \"sid\" }}");
            let proxy = site(&origins, &upstream);
            for user in 0..8 {
                let ask = |_| {
                    let mut client = proxy.client();
                    let head = get("/slow/100").replacen("\r\n\r\n", "\r\n", 1);
                    let request = format!("{head}Cookie: sid=user{user}\r\n\r\n");
                    client.send(request).unwrap();
                    client
                };
                let clients: Vec<_> = (0..6).map(ask).collect();
                for mut client in clients {
                    assert_eq!(client.read_response("GET").unwrap().status, 200);
                }
                let endpoints = endpoints(&proxy, 6 * (user + 1));
                let reached: BTreeSet<_> = endpoints[6 * user..].iter().collect();
                assert!(reached.len() <= most, "{balance}: {reached:?}");
            }
        }
    });
}

/// A listener of both families hands out IPv4 addresses that are mapped into
/// IPv6.
#[test]
fn an_ipv4_client_is_the_same_client_at_a_listener_of_both_families() {
    test(|| {
        let origin = evenkeel_testkit::Origin::start(
            evenkeel_testkit::OriginOptions::default(),
            evenkeel_testkit::OriginListener::bind(&"0.0.0.0:0".parse().unwrap()).unwrap(),
        )
        .unwrap();
        let port = origin.socket_addr().unwrap().port();
        // By chance it would be the same one in one case of 64.
        let endpoints: Vec<_> = (1..=64).map(|it| format!("127.0.0.{it}:{port}")).collect();
        let proxy = Site {
            server: "[[listener]]\nname = \"both\"\nbind = \"[::]:0\"\n\n\
                     [[route]]\nmatch = { path = \"/mapped\", client = \"::ffff:127.0.0.0/104\" }\n\
                     answer = { body = \"known\" }\n",
            upstream: "balance = \"carp\"\nkey = \"client\"",
            ..Site::default()
        }
        .start(&endpoints);
        let both = format!("127.0.0.1:{}", proxy.socket_addr("both").port());
        let mut clients = BTreeMap::new();
        for address in [proxy.address("web"), &both] {
            let mut client = RawClient::connect(address).unwrap();
            let text = client.get("/headers").unwrap().text().to_lowercase();
            assert!(text.contains("x-forwarded-for: 127.0.0.1"), "{text}");
            assert_eq!(client.get("/mapped").unwrap().text(), "known");
            clients.insert(address.to_owned(), client);
        }
        until("all are logged", || proxy.access_log().len() == 4);
        let lines = proxy.access_log_json();
        let asked: Vec<_> = lines
            .iter()
            .filter(|it| it["target"] == "/headers")
            .collect();
        assert_eq!(asked[0]["endpoint"], asked[1]["endpoint"]);
        assert!(lines.iter().all(|line| line["client"] == "127.0.0.1"));
        let explain = |client: &str| {
            let mut command = std::process::Command::new(crate::setup::program());
            command
                .arg("explain")
                .arg("--config")
                .arg(proxy.path("evenkeel.toml"));
            command.args([
                "--client",
                client,
                "--listener",
                "web",
                "GET",
                "http://a/headers",
            ]);
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        let said = explain("::ffff:127.0.0.1");
        assert_eq!(said, explain("127.0.0.1"));
        let endpoint = asked[0]["endpoint"].as_str().unwrap();
        assert!(
            said.contains(&format!("> endpoint {endpoint} ")),
            "{endpoint}: {said}"
        );
    });
}
