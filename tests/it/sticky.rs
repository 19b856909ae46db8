//! Stickiness: a client stays at the endpoint of its cookie.

use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::{Origin, OriginHandle, OriginOptions, Proxy, RawClient, Response, TempDir};

use crate::control::ask;
use crate::setup::{program, test};

/// Three origins, each with its number as its name.
fn origins() -> Vec<OriginHandle> {
    let numbered = (0..3).map(|number| OriginOptions {
        name: number.to_string(),
        ..OriginOptions::default()
    });
    numbered.map(|it| Origin::local(it).unwrap()).collect()
}

/// A program before these with a sticky route.
fn start(origins: &[OriginHandle], sticky: &str, server: &str) -> Proxy {
    let endpoints: Vec<_> = origins.iter().map(|it| it.address.to_string()).collect();
    let text = format!(
        "[server]\nworkers = 1\ncontrol = \"$DIR/control.sock\"\n{server}\n\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\ntrusted_proxies = [\"127.0.0.1\"]\n\n\
         [[route]]\nsticky = {sticky}\nupstream = \"app\"\n\n\
         [upstream.app]\nbalance = \"round-robin\"\nendpoints = {endpoints:?}\n"
    );
    Proxy::start(program(), &text).unwrap()
}

/// A client as a browser is one.
struct Browser {
    client: RawClient,
    cookie: Option<String>,
}

impl Browser {
    fn new(proxy: &Proxy) -> Self {
        Browser {
            client: proxy.client(),
            cookie: None,
        }
    }

    fn get(&mut self) -> Response {
        let cookie = self.cookie.as_ref();
        let cookie = cookie.map_or(String::new(), |it| format!("Cookie: a=b; node={it}; c\r\n"));
        let request = format!("GET /10 HTTP/1.1\r\nHost: a\r\n{cookie}\r\n");
        let response = self.client.ask(request).unwrap();
        assert_eq!(response.status, 200, "{response:?}");
        if let Some(set) = response.field("set-cookie") {
            let value = set.strip_prefix("node=").expect(set).split(';').next();
            self.cookie = value.map(str::to_owned);
        }
        response
    }

    /// The number of the origin that answers, and whether there is a new cookie.
    fn ask(&mut self) -> (String, bool) {
        let response = self.get();
        let number = response.field("server").unwrap().to_owned();
        (number, response.field("set-cookie").is_some())
    }

    /// Asks ten times, and says which origin has answered all of them with no new cookie.
    #[track_caller]
    fn stays(&mut self) -> String {
        let (first, _) = self.ask();
        for _ in 0..10 {
            assert_eq!(self.ask(), (first.clone(), false));
        }
        first
    }
}

/// A key file in a new folder.
fn key(byte: u8) -> (TempDir, String) {
    let dir = TempDir::new().unwrap();
    let path = dir.join("sticky.key");
    std::fs::write(&path, [byte; 32]).unwrap();
    let path = path.display().to_string();
    (dir, path)
}

#[test]
fn a_client_stays_where_its_first_request_went() {
    test(|| {
        let origins = origins();
        let proxy = start(&origins, "\"node\"", "");
        let mut browser = Browser::new(&proxy);
        let response = browser.get();
        let cookie = response.field("set-cookie").unwrap();
        let (value, rest) = cookie.split_once(';').unwrap();
        assert_eq!(rest, " Path=/; HttpOnly; SameSite=Lax");
        assert_eq!(value.len(), "node=".len() + 22, "{value}");
        assert_eq!(Some(browser.stays().as_str()), response.field("server"));
        // Others are balanced.
        let firsts: std::collections::HashSet<_> =
            (0..3).map(|_| Browser::new(&proxy).ask().0).collect();
        assert_eq!(firsts.len(), 3);
        let mut client = proxy.client();
        let by_https =
            client.ask("GET /10 HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: https\r\n\r\n");
        let cookie = by_https.unwrap().field("set-cookie").unwrap().to_owned();
        assert!(cookie.ends_with("; SameSite=Lax; Secure"), "{cookie}");
    });
}

#[test]
fn a_cookie_that_is_not_ours_is_replaced() {
    test(|| {
        let origins = origins();
        let proxy = start(&origins, "{ cookie = \"node\", max_age = \"1h\" }", "");
        let mut honest = Browser::new(&proxy);
        let home = honest.stays();
        let value = honest.cookie.unwrap();
        for forged in [
            "",
            "x",
            "0",
            &value[1..],
            &value[..21],
            &format!("{value}A"),
            &"A".repeat(22),
            &"A".repeat(4000),
            &origins[0].address.to_string(),
        ] {
            let mut browser = Browser::new(&proxy);
            browser.cookie = Some(forged.to_owned());
            let response = browser.get();
            let set = response.field("set-cookie");
            assert!(
                set.is_some_and(|it| it.contains("; Max-Age=3600;")),
                "{forged}: {set:?}"
            );
            browser.stays();
        }
        // Another client with the same cookie goes to the same endpoint.
        let mut other = Browser::new(&proxy);
        other.cookie = Some(value);
        assert_eq!(other.ask(), (home.clone(), false));
        // A cookie of the same name from elsewhere does not hide it.
        other.cookie = other.cookie.map(|it| format!("elsewhere; node={it}"));
        assert_eq!(other.ask(), (home, false));
    });
}

#[test]
fn explain_says_whose_the_cookie_is() {
    test(|| {
        let origins = origins();
        let proxy = start(&origins, "\"node\"", "");
        let mut browser = Browser::new(&proxy);
        let home: usize = browser.stays().parse().unwrap();
        let explain = |cookie: &str, live: &[&str]| {
            let mut explain = Command::new(program());
            explain.args(["explain", "--config"]);
            explain.arg(proxy.path("evenkeel.toml")).args(live);
            if !cookie.is_empty() {
                explain.args(["-H", &format!("Cookie: node={cookie}")]);
            }
            let output = explain.args(["GET", &proxy.url("/10")]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let text = explain(browser.cookie.as_ref().unwrap(), &["--live"]);
        let address = &origins[home].address;
        let expected = format!("sticky cookie node: it names {address}");
        assert!(text.contains(&expected), "{text}");
        assert!(text.contains("sticky"), "{text}");
        for (cookie, live, said) in [
            ("", &["--live"][..], "not in the request"),
            ("x", &["--live"], "it names no endpoint"),
            ("x", &[], "use --live"),
        ] {
            let text = explain(cookie, live);
            assert!(text.contains("sticky cookie node: "), "{text}");
            assert!(text.contains(said), "{text}");
        }
    });
}

#[test]
fn two_upstreams_have_cookies_of_their_own() {
    let dir = TempDir::new().unwrap();
    let file = dir.join("evenkeel.toml");
    let route = |path: &str, upstream: &str| {
        format!(
            "[[route]]\nmatch = {{ path = \"{path}\" }}\nsticky = \"node\"\nupstream = \"{upstream}\"\n"
        )
    };
    let text = format!(
        "[server]\nstate_file = \"state.json\"\n[[listener]]\nbind = \":0\"\n{}{}[upstream.a]\n\
         endpoints = [\"10.0.0.1:80\"]\n[upstream.b]\nendpoints = [\"10.0.0.2:80\"]\n",
        route("/a", "a"),
        route("/b", "b")
    );
    std::fs::write(&file, text).unwrap();
    let mut check = Command::new(program());
    let output = check
        .args(["check", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("two upstreams share the cookie"), "{told}");
}

#[test]
fn a_drained_endpoint_keeps_its_sessions_until_it_is_stopped() {
    test(|| {
        let origins = origins();
        let proxy = start(&origins, "\"node\"", "");
        let mut browser = Browser::new(&proxy);
        let home = browser.stays();
        let at = home.parse::<usize>().unwrap();
        let name = format!("app/{}", origins[at].address);
        ask(&proxy, &format!("drain {name}"));
        assert_eq!(browser.stays(), home);
        for _ in 0..4 {
            assert_ne!(
                Browser::new(&proxy).ask().0,
                home,
                "it gets no new requests"
            );
        }
        ask(&proxy, &format!("stop {name}"));
        let (next, is_new) = browser.ask();
        assert!(next != home && is_new, "{next}");
        assert_eq!(browser.stays(), next);
        ask(&proxy, &format!("ready {name}"));
        assert_eq!(browser.stays(), next);
    });
}

#[test]
fn the_clients_of_a_dead_endpoint_are_balanced_anew_once() {
    test(|| {
        let mut origins = origins();
        let proxy = start(&origins, "\"node\"", "");
        let mut browser = Browser::new(&proxy);
        let home = browser.stays();
        origins.remove(home.parse().unwrap()).shutdown();
        let (next, is_new) = browser.ask();
        assert!(next != home && is_new, "{next}");
        assert_eq!(browser.stays(), next);
    });
}

#[test]
fn machines_with_the_same_key_read_each_others_cookies() {
    test(|| {
        let origins = origins();
        let (_old_dir, old) = key(1);
        let (_new_dir, new) = key(2);
        let of = |keys: &[&str]| format!("{{ cookie = \"node\", keys = {keys:?} }}");
        let first = start(&origins, &of(&[&old]), "");
        let second = start(&origins, &of(&[&old]), "");
        let mut browser = Browser::new(&first);
        let home = browser.stays();
        browser.client = second.client();
        assert_eq!(browser.stays(), home);
        // A new key signs, and cookies of the old one count.
        let rotated = start(&origins, &of(&[&new, &old]), "");
        browser.client = rotated.client();
        assert_eq!(browser.ask(), (home.clone(), true));
        assert_eq!(browser.stays(), home);
        let without = start(&origins, &of(&[&new]), "");
        browser.client = without.client();
        assert_eq!(browser.stays(), home);
        // With another key the cookie is invalid.
        let (_other_dir, other) = key(3);
        let stranger = start(&origins, &of(&[&other]), "");
        browser.client = stranger.client();
        assert!(browser.ask().1);
    });
}

#[test]
fn sessions_outlive_a_reload_and_a_restart() {
    test(|| {
        let origins = origins();
        let dir = TempDir::new().unwrap();
        let state = format!("state_file = {:?}", dir.join("state.json"));
        let mut proxy = start(&origins, "\"node\"", &state);
        let mut browser = Browser::new(&proxy);
        let home = browser.stays();
        ask(&proxy, "reload");
        assert_eq!(browser.stays(), home);
        proxy.terminate();
        assert!(proxy.wait(Duration::from_secs(10)).unwrap().success());
        let proxy = start(&origins, "\"node\"", &state);
        browser.client = proxy.client();
        assert_eq!(browser.stays(), home);
    });
}
