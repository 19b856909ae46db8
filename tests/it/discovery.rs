//! Endpoints that come and go while the program runs, and those that are used last.

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Origin, OriginHandle, OriginOptions, Proxy};

use crate::control::{ask, json, site_of};
use crate::setup::{nobody, test};

/// An origin that says this name.
fn named(name: &str) -> OriginHandle {
    let options = OriginOptions {
        name: name.to_owned(),
        ..OriginOptions::default()
    };
    Origin::local(options).unwrap()
}

/// The name of the origin that answers.
fn who(proxy: &Proxy) -> String {
    let response = proxy.client().get("/origin/stats").unwrap();
    assert_eq!(response.status, 200, "{response:?}");
    let stats: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    stats["name"].as_str().unwrap().to_owned()
}

fn table(origin: &OriginHandle, keys: &str) -> String {
    format!("{{ address = \"{}\", {keys} }}", origin.address)
}

#[test]
fn a_backup_serves_while_nothing_else_can() {
    test(|| {
        let [first, second, third] = ["first", "second", "third"].map(named);
        let endpoints = [
            table(&third, "tier = 2"),
            table(&second, "backup = true"),
            first.address.to_string(),
        ];
        let proxy = site_of("", &endpoints);
        let tiers: Vec<_> = (0..3)
            .map(|at| json(&proxy, "show upstreams")[0]["endpoints"][at]["tier"].clone())
            .collect();
        assert_eq!(tiers, [2, 1, 0]);
        assert_eq!(who(&proxy), "first");
        ask(&proxy, &format!("stop app/{}", first.address));
        assert_eq!(who(&proxy), "second");
        ask(&proxy, &format!("drain app/{}", second.address));
        assert_eq!(who(&proxy), "third");
        ask(&proxy, &format!("ready app/{}", first.address));
        assert_eq!(who(&proxy), "first");
    });
}

/// The exchange that finds the first tier dead is served, too.
#[test]
fn a_retry_goes_to_the_next_tier() {
    test(|| {
        let backup = named("backup");
        let proxy = site_of("", &[nobody(), table(&backup, "backup = true")]);
        assert_eq!(who(&proxy), "backup");
        // Three connections that fail in a row make it unreachable.
        until("the first is out", || {
            assert_eq!(who(&proxy), "backup");
            json(&proxy, "show upstreams")[0]["endpoints"][0]["eligible"] == false
        });
    });
}
