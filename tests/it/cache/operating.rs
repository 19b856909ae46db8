//! Caches as an operator sees them, and what is purged by hand.

use super::*;
use crate::control::{ask, ctl, json, texts};
use crate::setup::ask_status;

/// A program with a route that has a cache of its own, and one that ignores a parameter.
fn site(endpoint: &Endpoint) -> Proxy {
    let config = format!(
        "[server]\nworkers = 2\ncontrol = '$DIR/control.sock'\n\
         [status]\nbind = '127.0.0.1:0'\n\
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
        // A worker counts a request after its answer.
        until("all are counted", || {
            json(&proxy, "show cache")["routes"][0]["cache"]["hits"] == 2
        });
        let shown = json(&proxy, "show cache");
        let [pages, images] = [0, 1].map(|at| &shown["routes"][at]);
        assert_eq!(
            (&pages["route"], &images["route"]),
            (&"pages".into(), &"images".into())
        );
        let counts = |of: &serde_json::Value| {
            let names = ["hits", "stale", "revalidated", "misses", "bypasses"];
            names.map(|name| of["cache"][name].as_u64().unwrap())
        };
        assert_eq!(counts(pages), [2, 0, 0, 1, 0]);
        assert_eq!(counts(images), [0, 0, 0, 1, 0]);
        assert_eq!(images["cache"]["name"], "images");
        let saved = pages["cache"]["saved_bytes"].as_u64().unwrap();
        assert!((100..2000).contains(&saved), "{saved}");
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
            text.contains("RESPONSES") && text.contains("images"),
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
        ] {
            assert!(metrics.lines().any(|it| it == line), "{line}");
        }
        assert!(!metrics.contains("route_cache_hits_total{route=\"rest\"}"));
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
        // It is stale: the endpoint is asked again.
        let before = endpoint.count();
        get(&proxy, "/images/a");
        until("the endpoint is asked", || endpoint.count() == before + 1);
        for (command, expected) in [
            ("purge", "error: purge takes"),
            ("purge url /a", "error: `/a` is no URL with a host"),
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
