//! Caches from an operator's view, and purges by hand.

use evenkeel_testkit::TempDir;

use super::*;
use crate::control::{ask, ctl, json, texts};
use crate::setup::ask_status;

/// A program with two routes: one with its own cache, and one that ignores a parameter.
fn site(endpoint: &Endpoint) -> Proxy {
    site_with(endpoint, "")
}

/// The same with these keys for the status page.
fn site_with(endpoint: &Endpoint, status: &str) -> Proxy {
    let config = format!(
        "[server]\nworkers = 2\ncontrol = '$DIR/control.sock'\n\
         [status]\nbind = '127.0.0.1:0'\n{status}\
         [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n\
         [cache.images]\nmemory = '2MiB'\n\
         [[route]]\nname = 'pages'\nmatch = {{ path = '/pages/*' }}\nupstream = 'app'\n\
         cache = {{ key = {{ query = {{ ignore = 'utm_*' }} }} }}\n\
         [[route]]\nname = 'images'\nmatch = {{ path = '/images/*' }}\nupstream = 'app'\n\
         cache = {{ store = 'images' }}\n\
         [[route]]\nname = 'rest'\nupstream = 'app'\n\
         [upstream.app]\nendpoints = ['{}']\n",
        endpoint.origin.address
    );
    Proxy::start(program(), &config).unwrap()
}

fn get(proxy: &Proxy, path: &str) {
    let mut client = proxy.client();
    let request = format!("GET {path} HTTP/1.1\r\nHost: Example.com\r\n\r\n");
    assert_eq!(client.ask(request).unwrap().status, 200, "{path}");
}

/// The answers of a route by cache result: hits, stale, revalidated, misses, bypasses.
fn counts(route: &serde_json::Value) -> [u64; 5] {
    let names = ["hits", "stale", "revalidated", "misses", "bypasses"];
    names.map(|name| route["cache"][name].as_u64().unwrap_or_default())
}

/// Waits until as many answers are counted: a worker counts a request after its answer.
fn count_answers(proxy: &Proxy, answers: u64) {
    until("all answers are counted", || {
        let shown = json(proxy, "show cache");
        let routes = shown["routes"].as_array().unwrap();
        routes.iter().flat_map(counts).sum::<u64>() == answers
    });
}

/// An endpoint whose answers are fresh for a minute, and have a tag by their path.
fn tagged() -> Endpoint {
    Endpoint::answering(|head| {
        let path = head.split(' ').nth(1).unwrap();
        let tag = path.split(['/', '?']).nth(2).unwrap_or_default();
        response(200, &format!("{FRESH}Cache-Tag: {tag}\r\n"), "hello")
    })
}

#[test]
fn what_caches_do_is_counted_and_shown() {
    test(|| {
        let endpoint = tagged();
        let proxy = site(&endpoint);
        for path in ["/pages/a", "/pages/a", "/images/a", "/pages/a", "/other"] {
            get(&proxy, path);
        }
        count_answers(&proxy, 4);
        let shown = json(&proxy, "show cache");
        let [pages, images] = [0, 1].map(|at| &shown["routes"][at]);
        assert_eq!(
            (&pages["route"], &images["route"]),
            (&"pages".into(), &"images".into())
        );
        assert_eq!(counts(pages), [2, 0, 0, 1, 0]);
        assert_eq!(counts(images), [0, 0, 0, 1, 0]);
        assert_eq!(images["cache"]["name"], "images");
        let saved = pages["cache"]["saved_bytes"].as_u64().unwrap();
        assert_eq!(saved, 10, "two bodies");
        let (age_ms, served) = (&pages["cache"]["age_ms"], Duration::from_secs(20));
        assert!(
            age_ms.as_u64().unwrap() < served.as_millis() as u64,
            "{age_ms}"
        );
        let names: Vec<_> = [0, 1].map(|at| shown["caches"][at]["name"].clone()).into();
        assert_eq!(names, ["default", "images"]);
        for (at, limit) in [(0, 64 << 20), (1, 2 << 20)] {
            let cache = &shown["caches"][at];
            assert_eq!(cache["responses"], 1, "{cache}");
            assert!(cache["bytes"].as_u64().unwrap() > 0, "{cache}");
            assert_eq!(cache["fetches"], 0, "{cache}");
            if at == 1 {
                assert_eq!(cache["limit_bytes"], limit, "{cache}");
            }
        }
        let text = ask(&proxy, "show cache");
        assert!(
            text.contains("RESPONSES") && text.contains("images") && text.contains("66.7%"),
            "{text}"
        );
        let (code, by_ctl, _) = texts(&ctl(&proxy, &["show", "cache"]));
        assert_eq!((code, by_ctl.trim_end()), (Some(0), text.trim_end()));
        let metrics = ask_status(&proxy, "/metrics", "").text();
        for line in [
            "evenkeel_route_cache_hits_total{route=\"pages\"} 2",
            "evenkeel_route_cache_misses_total{route=\"images\"} 1",
            "evenkeel_cache_responses{cache=\"default\"} 1",
            "evenkeel_cache_purges_total{cache=\"images\"} 0",
            "evenkeel_cache_followers{cache=\"images\"} 0",
        ] {
            assert!(metrics.lines().any(|it| it == line), "{line}");
        }
        assert!(!metrics.contains("route_cache_hits_total{route=\"rest\"}"));
        assert!(!metrics.contains("evenkeel_cache_disk_responses{"));
        assert!(!metrics.contains("evenkeel_cache_shared_up{"));
        assert!(!text.contains("DISK OF") && !text.contains("SHARED BY"));
        let figures = figures(&proxy);
        assert!(figures["routes"][2]["cache"].is_null(), "{figures}");
    });
}

#[test]
fn an_operator_purges() {
    test(|| {
        let endpoint = tagged();
        let proxy = site(&endpoint);
        let paths = ["/pages/a?utm_x=1", "/pages/b", "/images/a"];
        for (args, gone) in [
            (&["url", "http://example.com/pages/a?utm_y=2"][..], &[0][..]),
            (&["url", "http://EXAMPLE.com:80/images/a"], &[2]),
            (&["prefix", "http://example.com/pages/"], &[0, 1]),
            (&["prefix", "http://example.com", "--cache", "images"], &[2]),
            (&["prefix", "https://example.com/"], &[]),
            (&["tag", "A"], &[0, 2]),
            (&["tag", "a", "--cache", "default"], &[0]),
            (&["everything"], &[0, 1, 2]),
        ] {
            paths.iter().for_each(|path| get(&proxy, path));
            let before = endpoint.count();
            let output = ctl(&proxy, &[&["purge"], args].concat());
            let (code, said, _) = texts(&output);
            assert_eq!(code, Some(0), "{args:?}: {said}");
            let what = format!("purged {}", args[0]);
            assert!(said.contains(&what), "{args:?}: {said}");
            for (at, path) in paths.iter().enumerate() {
                let before = endpoint.count();
                get(&proxy, path);
                let is_gone = endpoint.count() > before;
                assert_eq!(is_gone, gone.contains(&at), "{args:?} {path}");
            }
            assert_eq!(endpoint.count(), before + gone.len());
        }
        let said = json(&proxy, "purge everything soft cache images");
        assert_eq!(said["done"][0], "cache images: purged softly everything");
        // The response is stale, so the endpoint is asked again.
        let before = endpoint.count();
        get(&proxy, "/images/a");
        until("the endpoint is asked", || endpoint.count() == before + 1);
        for (command, expected) in [
            ("purge", "error: purge needs"),
            ("purge url /a", "error: `/a` is not a URL with a host"),
            ("purge everything cache x", "error: there is no cache `x`"),
        ] {
            let said = ask(&proxy, command);
            assert!(said.starts_with(expected), "{said}");
        }
        let (code, _, said) = texts(&ctl(&proxy, &["purge", "url", "a"]));
        assert_eq!(code, Some(1), "{said}");
        let plain = Endpoint::answering(|_| response(200, "", ""));
        let config = format!(
            "[server]\nworkers = 1\ncontrol = '$DIR/control.sock'\n\
             [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n\
             [[route]]\nupstream = 'app'\n[upstream.app]\nendpoints = ['{}']\n",
            plain.origin.address
        );
        let proxy = Proxy::start(program(), &config).unwrap();
        assert_eq!(ask(&proxy, "show cache"), "no route has a cache\n\n");
        assert_eq!(
            ask(&proxy, "purge everything"),
            "error: no route has a cache\n\n"
        );
    });
}

/// An endpoint that says how old its answers are already.
#[test]
fn ages_are_added_up() {
    test(|| {
        let endpoint =
            Endpoint::answering(|_| response(200, &format!("{FRESH}Age: 30\r\n"), "hello"));
        let proxy = endpoint.behind("");
        for _ in 0..4 {
            get(&proxy, "/a");
        }
        count_answers(&proxy, 4);
        let cache = &figures(&proxy)["routes"][0]["cache"];
        let age_ms = cache["age_ms"].as_u64().unwrap();
        assert!((90_000..96_000).contains(&age_ms), "three hits: {cache}");
        let text = ask(&proxy, "show cache");
        assert!(text.contains("75.0%") && text.contains(" 30s"), "{text}");
        let metrics = ask_status(&proxy, "/metrics", "").text();
        assert!(
            metrics.contains("evenkeel_route_cache_age_seconds_total{route=\"route-1\"} 9"),
            "{metrics}"
        );
    });
}

#[test]
fn the_access_log_says_why_nothing_was_stored() {
    test(|| {
        let endpoint = Endpoint::answering(|head| {
            let fields = match head.split(' ').nth(1).unwrap() {
                "/private" => "Cache-Control: private\r\n",
                "/languages" => "Cache-Control: max-age=60\r\nVary: Accept-Language\r\n",
                "/stale" => "Cache-Control: max-age=0\r\nETag: \"a\"\r\n",
                _ => FRESH,
            };
            response(200, fields, "hello")
        });
        let proxy = endpoint.behind("bypass = { header = { X-Test = true } }, min_uses = 2");
        let ask = |path: &str, fields: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            proxy.client().ask(request).unwrap();
        };
        let cases = [
            ("/a", "", "min-uses"),
            ("/a", "", "uri-miss"),
            ("/a", "", ""),
            ("/private", "", "min-uses"),
            ("/private", "", "private"),
            ("/private", "", "private"),
            ("/languages", "", "min-uses"),
            ("/languages", "", "uri-miss"),
            ("/languages", "Accept-Language: de\r\n", "vary-miss"),
            ("/stale", "", "min-uses"),
            ("/stale", "", "uri-miss"),
            ("/stale", "", "stale"),
            ("/a", "X-Test: 1\r\n", "rule"),
            ("/a", "Cache-Control: no-store\r\n", ""),
            ("/b", "Cache-Control: no-store\r\n", "request-no-store"),
            ("/c", "Cache-Control: only-if-cached\r\n", "not-cached"),
        ];
        let mut at = 0;
        for (path, fields, reason) in cases {
            let mut asked = || {
                ask(path, fields);
                at += 1;
                results(&proxy, at);
                proxy.access_log_json()[at - 1].clone()
            };
            let mut line = asked();
            // Uses are counted in a small table, where one URL may take another's place.
            if line["cache_reason"] == "min-uses" && reason != "min-uses" {
                line = asked();
            }
            let said = line["cache_reason"].as_str().unwrap_or_default();
            assert_eq!(said, reason, "{path}: {line}");
            assert_eq!(line["cache_age_s"].is_number(), reason.is_empty(), "{line}");
        }
    });
}

#[test]
fn counts_go_on_where_a_reload_changes_a_cache() {
    test(|| {
        let endpoint = tagged();
        let proxy = site(&endpoint);
        ask(&proxy, "purge everything; purge everything");
        let path = proxy.path("evenkeel.toml");
        let config = std::fs::read_to_string(&path).unwrap();
        let other = config.replace("memory = '2MiB'", "memory = '4MiB'");
        for (text, purges) in [(&other, 2), (&config, 3)] {
            std::fs::write(&path, text).unwrap();
            assert!(ask(&proxy, "reload").starts_with("reloaded: "));
            for cache in [0, 1] {
                let cache = &figures(&proxy)["caches"][cache];
                assert_eq!(cache["purges"], purges, "{cache}");
            }
            ask(&proxy, "purge everything");
        }
    });
}

#[test]
fn urls_that_a_cache_does_not_answer_are_counted() {
    test(|| {
        let endpoint = Endpoint::answering(|head| {
            let is_private = head.contains("/private");
            let fields = if is_private {
                "Cache-Control: private\r\n"
            } else {
                FRESH
            };
            response(200, fields, "hello")
        });
        let proxy = site(&endpoint);
        for number in 0..40 {
            get(
                &proxy,
                &format!("/pages/private?token=s3cret-{number}&page={number}"),
            );
        }
        for number in 0..100 {
            get(&proxy, &format!("/pages/{number}"));
            get(&proxy, "/pages/hot");
        }
        get(&proxy, "/images/a");
        let shown = json(&proxy, "show cache");
        let misses = &shown["routes"][0]["cache"]["recent_misses"];
        assert_eq!(misses["total"], 141, "{misses}");
        // Each other miss was for a URL of its own, and may have taken a few counts of the
        // first.
        let [first] = &misses["urls"].as_array().unwrap()[..] else {
            panic!("{misses}");
        };
        assert_eq!(first["url"], "example.com/pages/private?token=*&page=*");
        assert_eq!(first["reason"], "private");
        assert_eq!(first["why"], "the answer says private");
        let count = first["count"].as_u64().unwrap();
        assert!((30..=40).contains(&count), "{misses}");
        let text = ask(&proxy, "show cache");
        let line = text.lines().find(|it| it.contains("page=*")).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        let count = count.to_string();
        assert_eq!(
            (words[0], words[1], words[3]),
            ("pages", &*count, "private")
        );
        let page = ask_status(&proxy, "/misses.json", "").text();
        let all: serde_json::Value = serde_json::from_str(&page).unwrap();
        assert_eq!((&all[0][0], &all[0][1]), (&"pages".into(), misses));
        assert_eq!(all[1][1]["urls"][0]["url"], "example.com/images/a");
        assert_eq!(all.as_array().unwrap().len(), 2, "{page}");
        assert_eq!(
            figures(&proxy)["routes"][0]["cache"]["recent_misses"],
            *misses
        );
        for shown in [text, page] {
            assert!(!shown.contains("s3cret"), "{shown}");
        }
    });
}

const TOKEN: &str = "a-token-for-purges";

/// Orders a purge on the status page, with these fields.
fn order(proxy: &Proxy, fields: &str, body: &str) -> (u16, String) {
    let len = body.len();
    let request = format!(
        "POST /purge HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len}\r\n\
         Content-Type: application/json\r\n{fields}\r\n{body}"
    );
    let mut client = RawClient::connect(proxy.status_address()).unwrap();
    let answer = client.ask(request).unwrap();
    (answer.status, answer.text())
}

#[test]
fn an_operator_purges_on_the_status_page() {
    test(|| {
        let endpoint = tagged();
        // Read at the start, and not needed after.
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.join("token"), TOKEN).unwrap();
        let path = dir.join("token");
        let proxy = site_with(&endpoint, &format!("token_file = {path:?}\n"));
        let with_token = format!("Authorization: Bearer {TOKEN}\r\n");
        let wrong = "Authorization: Bearer another-token-than-that\r\n";
        let elsewhere = format!("{with_token}Origin: https://evil.example\r\n");
        let everything = r#"{"everything": true}"#;
        for (fields, body, expected) in [
            ("", everything, (401, "a token is required")),
            (wrong, everything, (401, "wrong token")),
            (&elsewhere, everything, (403, "pages of other sites")),
            (&with_token, "{}", (400, "write exactly one of url")),
            (
                &with_token,
                r#"{"url": "/a"}"#,
                (400, "`/a` is not a URL with a host"),
            ),
            (&with_token, r#"{"uri": "/a"}"#, (400, "expected {\"url\"")),
            (
                &with_token,
                r#"{"everything": true, "cache": "x"}"#,
                (404, "there is no cache `x`"),
            ),
        ] {
            let (status, said) = order(&proxy, fields, body);
            assert_eq!(status, expected.0, "{body}: {said}");
            assert!(said.contains(expected.1), "{body}: {said}");
        }
        let paths = ["/pages/a", "/pages/b", "/images/a"];
        for (body, done, gone) in [
            (
                r#"{"url": "http://example.com/pages/a", "cache": "default"}"#,
                "url http://example.com/pages/a",
                &[0][..],
            ),
            (
                r#"{"prefix": "http://example.com/pages/"}"#,
                "prefix http://example.com/pages/",
                &[0, 1],
            ),
            (r#"{"tag": "a"}"#, "tag a", &[0, 2]),
            (everything, "everything", &[0, 1, 2]),
            (
                r#"{"everything": true, "soft": true}"#,
                "softly everything",
                &[0, 1, 2],
            ),
        ] {
            paths.iter().for_each(|path| get(&proxy, path));
            let (status, said) = order(&proxy, &with_token, body);
            assert_eq!(status, 200, "{body}: {said}");
            assert!(
                said.contains(&format!("cache default: purged {done}")),
                "{said}"
            );
            for (at, path) in paths.iter().enumerate() {
                let before = endpoint.count();
                get(&proxy, path);
                let is_gone = endpoint.count() > before;
                assert_eq!(is_gone, gone.contains(&at), "{body} {path}");
            }
        }
        let event = "cache images: purged softly everything, by the operator, on the status page \
                     from 127.0.0.1";
        until("it is in the event log", || proxy.stderr().contains(event));
        let proxy = site(&endpoint);
        let (status, said) = order(&proxy, &with_token, everything);
        assert!(status == 403 && said.contains("no token"), "{said}");
    });
}
