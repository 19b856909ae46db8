//! Splits: each upstream gets its part of the clients, and a client stays.

use std::collections::BTreeMap;
use std::process::Command;

use evenkeel_testkit::{Origin, OriginHandle, OriginOptions, Proxy, Response};

use crate::reload::reload;
use crate::setup::{ask_status, program, test};

/// Origins that call themselves so.
fn origins<const N: usize>(names: [&str; N]) -> [OriginHandle; N] {
    names.map(|name| {
        Origin::local(OriginOptions {
            name: name.to_owned(),
            ..OriginOptions::default()
        })
        .unwrap()
    })
}

fn config(route: &str, old: &OriginHandle, new: &OriginHandle) -> String {
    format!(
        "[server]\nworkers = 2\ncontrol = \"$DIR/control.sock\"\n\n[status]\nbind = \"127.0.0.1:0\"\n\n\
         [access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\n\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\ntrusted_proxies = [\"127.0.0.1\"]\n\n\
         [[route]]\nname = \"shop\"\n{route}\n\n\
         [upstream.old]\nendpoints = [\"{}\"]\n\n[upstream.new]\nendpoints = [\"{}\"]\n",
        old.address, new.address
    )
}

fn ask(proxy: &Proxy, lines: &str) -> Response {
    let request = format!("GET /10 HTTP/1.1\r\nHost: a.test\r\n{lines}\r\n");
    proxy.client().ask(&request).unwrap()
}

fn by(response: &Response) -> String {
    assert_eq!(response.status, 200, "{response:?}");
    response.field("server").unwrap().to_owned()
}

/// Which origin answers each of a thousand clients.
fn parts(proxy: &Proxy) -> BTreeMap<String, String> {
    let mut client = proxy.client();
    let clients = (0..1_000).map(|it| format!("192.0.{}.{}", it / 250, it % 250));
    let asked = clients.map(|it| {
        let request = format!("GET /10 HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: {it}\r\n\r\n");
        let response = client.ask(&request).unwrap();
        (it, by(&response))
    });
    asked.collect()
}

fn count(parts: &BTreeMap<String, String>, name: &str) -> usize {
    parts.values().filter(|it| *it == name).count()
}

#[test]
fn clients_are_split_by_weight_and_stay() {
    const ROUTE: &str =
        "split = [{ upstream = \"old\", weight = 80 }, { upstream = \"new\", weight = 20 }]";
    test(|| {
        let [old, new] = origins(["old", "new"]);
        let proxy = Proxy::start(program(), &config(ROUTE, &old, &new)).unwrap();
        let first = parts(&proxy);
        // Six standard deviations.
        assert!((124..276).contains(&count(&first, "new")), "{first:?}");
        assert_eq!(parts(&proxy), first);
        // With a larger part for the new one, no client goes back to the old one.
        let more = ROUTE.replace("80", "50").replace("20", "50");
        reload(&proxy, &config(&more, &old, &new));
        let then = parts(&proxy);
        assert!((405..595).contains(&count(&then, "new")), "{then:?}");
        for (client, name) in &first {
            assert!(name == "old" || then[client] == "new", "{client}");
        }
        let all = ask_status(&proxy, "/metrics", "").text();
        for name in ["old", "new"] {
            let begin = format!("evenkeel_upstream_requests_total{{upstream=\"{name}\"");
            assert!(all.contains(&begin), "{all}");
        }
    });
}

#[test]
fn what_stays_together_can_be_said() {
    const ROUTE: &str = "split = [{ upstream = \"old\" }, { upstream = \"new\" }]\n\
                         split_by = \"{cookie:user}\"";
    test(|| {
        let [old, new] = origins(["old", "new"]);
        let proxy = Proxy::start(program(), &config(ROUTE, &old, &new)).unwrap();
        let of = |user: usize, client: usize| {
            let lines =
                format!("X-Forwarded-For: 192.0.2.{client}\r\nCookie: a=b; user={user}\r\n");
            by(&ask(&proxy, &lines))
        };
        let users: Vec<_> = (0..40).map(|user| of(user, 1)).collect();
        let moved: Vec<_> = (0..40).map(|user| of(user, 2)).collect();
        assert_eq!(users, moved);
        assert!(users.contains(&"old".to_owned()) && users.contains(&"new".to_owned()));
        // Without the cookie the client's address is the key.
        let of = |client: usize| {
            by(&ask(
                &proxy,
                &format!("X-Forwarded-For: 192.0.2.{client}\r\n"),
            ))
        };
        let clients: Vec<_> = (0..40).map(of).collect();
        assert!(clients.contains(&"old".to_owned()) && clients.contains(&"new".to_owned()));
    });
}

#[test]
fn a_cookie_keeps_a_client_whatever_the_weights() {
    const ROUTE: &str =
        "split = [{ upstream = \"old\" }, { upstream = \"new\", weight = 0 }]\nsticky = \"node\"";
    test(|| {
        let [old, new] = origins(["old", "new"]);
        let canary = ROUTE.replace(
            "[{ upstream = \"old\" }",
            "[{ upstream = \"old\", weight = 0 }",
        );
        let canary = canary.replace("\"new\", weight = 0", "\"new\"");
        let proxy = Proxy::start(program(), &config(&canary, &old, &new)).unwrap();
        let first = ask(&proxy, "");
        assert_eq!(by(&first), "new");
        let cookie = first
            .field("set-cookie")
            .unwrap()
            .split(';')
            .next()
            .unwrap()
            .to_owned();
        reload(&proxy, &config(ROUTE, &old, &new));
        let lines = format!("Cookie: {cookie}\r\n");
        for _ in 0..5 {
            let response = ask(&proxy, &lines);
            assert_eq!(by(&response), "new");
            assert_eq!(response.field("set-cookie"), None, "{response:?}");
            assert_eq!(by(&ask(&proxy, "")), "old");
        }
        let explained = Command::new(program())
            .args(["explain", "--config"])
            .arg(proxy.path("evenkeel.toml"))
            .args(["--live", "-H", &format!("Cookie: {cookie}"), "GET"])
            .arg(proxy.url("/10"))
            .output()
            .unwrap();
        let text = String::from_utf8(explained.stdout).unwrap();
        assert!(
            text.contains("split old 1, new 0 of 1: the client's sticky cookie names new"),
            "{text}"
        );
    });
}
