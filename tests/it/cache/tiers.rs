//! The cache on a disk, over restarts.

use evenkeel_testkit::TempDir;
use evenkeel_testkit::tls::Authority;

use super::*;
use crate::control;
use crate::setup::ask_status;
use crate::upgrade::Successors;
use evenkeel_testkit::servers::Server;

/// The program before an endpoint, with the files of its cache in this folder.
pub(super) fn with_disk(endpoint: &Endpoint, folder: &TempDir) -> std::io::Result<Proxy> {
    with_disk_and(endpoint, folder, "finish = true")
}

/// The same, with this key of the route's cache.
pub(super) fn with_disk_and(
    endpoint: &Endpoint,
    folder: &TempDir,
    key: &str,
) -> std::io::Result<Proxy> {
    with_disk_of(endpoint, folder, "8MiB", key)
}

/// The same, with this much memory.
pub(super) fn with_disk_of(
    endpoint: &Endpoint,
    folder: &TempDir,
    memory: &str,
    key: &str,
) -> std::io::Result<Proxy> {
    let address = endpoint.origin.address;
    let path = folder.join("cache");
    let config = format!(
        "[server]\nworkers = 1\ncontrol = '$DIR/control.sock'\n[status]\nbind = '127.0.0.1:0'\n\
         [access_log]\npath = '$DIR/access.log'\nformat = 'json'\n\
         [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n\
         [cache.main]\nmemory = '{memory}'\ndisk = {{ path = '{}', size = '64MiB' }}\n\
         [[route]]\nupstream = 'app'\n\
         cache = {{ store = 'main', purge = {{ from = ['127.0.0.1'] }}, {key} }}\n\
         [upstream.app]\nendpoints = ['{address}']\n",
        path.display()
    );
    Proxy::start(program(), &config)
}

/// A body that is sent from its file.
fn long_body() -> String {
    (0..40_000).map(|number| format!("{number:09} ")).collect()
}

pub(super) fn ask(proxy: &Proxy, path: &str, fields: &str) -> evenkeel_testkit::Response {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    proxy.client().ask(request).unwrap()
}

/// Whether the metrics have this sample of the cache.
fn has_sample(proxy: &Proxy, sample: &str) -> bool {
    let metrics = ask_status(proxy, "/metrics", "").text();
    metrics
        .lines()
        .any(|line| line == format!("evenkeel_cache_{sample}"))
}

#[test]
fn what_is_on_the_disk_is_there_after_a_restart() {
    test(|| {
        let endpoint = Endpoint::answering(|head| match head {
            it if it.starts_with("GET /long") => response(200, FRESH, &long_body()),
            it if it.starts_with("GET /empty") => response(200, FRESH, ""),
            _ => response(200, FRESH, "hello"),
        });
        let folder = TempDir::new().unwrap();
        let paths = [
            ("/a", "hello".to_owned()),
            ("/empty", String::new()),
            ("/long", long_body()),
        ];
        let mut proxy = with_disk(&endpoint, &folder).unwrap();
        for (path, body) in &paths {
            assert_eq!(ask(&proxy, path, "").text(), *body);
        }
        ask(&proxy, "/purged", "");
        // A response that is purged before its turn is never written.
        let written = "disk_written_total{cache=\"main\"} 4";
        until(written, || has_sample(&proxy, written));
        let purge = "PURGE /purged HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(proxy.client().ask(purge).unwrap().status, 200);
        for sample in [
            "purges_total{cache=\"main\"} 1",
            "disk_state{cache=\"main\",state=\"working\"} 1",
            "disk_state{cache=\"main\",state=\"paused\"} 0",
            "disk_limit_bytes{cache=\"main\"} 67108864",
            "disk_misses_total{cache=\"main\"} 4",
            "disk_queue_length{cache=\"main\"} 0",
            "disk_not_written_total{cache=\"main\",reason=\"queue_full\"} 0",
        ] {
            until(sample, || has_sample(&proxy, sample));
        }
        proxy.terminate();
        assert!(proxy.wait(Duration::from_secs(20)).unwrap().success());
        let before = endpoint.count();
        let proxy = with_disk(&endpoint, &folder).unwrap();
        // The index is loaded in the background; meanwhile missing responses are fetched.
        until("the index is loaded", || {
            figures(&proxy)["caches"][0]["disk"]["loading"] == false
        });
        let shown = explained(&proxy, "http://a/a", "");
        let expected = "cache main: a response on the disk, which is not read here";
        assert!(shown.contains(expected), "{shown}");
        for (path, body) in &paths {
            let answer = ask(&proxy, path, "");
            assert!(answer.text() == *body, "{path}: {}", answer.head);
            assert!(answer.field("age").is_some());
        }
        let part = ask(&proxy, "/long", "Range: bytes=100000-100009\r\n");
        assert_eq!((part.status, part.text()), (206, "000010000 ".to_owned()));
        assert_eq!(endpoint.count(), before);
        ask(&proxy, "/purged", "");
        assert_eq!(
            endpoint.count(),
            before + 1,
            "what was purged does not come back"
        );
        // The count of purges begins with the program, whatever the disk remembers.
        assert!(has_sample(&proxy, "purges_total{cache=\"main\"} 0"));
        let disk = &figures(&proxy)["caches"][0]["disk"];
        assert_eq!(
            (&disk["phase"], &disk["loading"]),
            (&"working".into(), &false.into())
        );
        assert!(disk["hits"].as_u64() >= Some(3), "{disk}");
        assert!(disk["objects"].as_u64() >= Some(3), "{disk}");
        let text = control::ask(&proxy, "show cache");
        assert!(
            text.contains("DISK OF") && text.contains("working"),
            "{text}"
        );
    });
}

#[test]
fn what_is_on_the_disk_survives_a_kill() {
    test(|| {
        let endpoint = Endpoint::answering(|head| {
            let path = head.split(' ').nth(1).unwrap().to_owned();
            response(200, FRESH, &path.repeat(50))
        });
        let folder = TempDir::new().unwrap();
        let path = |number: usize| format!("/number/{number}");
        for round in 1..=5 {
            let mut proxy = with_disk(&endpoint, &folder).unwrap();
            for number in 0..200 * round {
                let path = path(number);
                assert_eq!(ask(&proxy, &path, "").text(), path.repeat(50));
            }
            proxy.signal(rustix::process::Signal::KILL);
            proxy.wait(Duration::from_secs(20));
        }
        let proxy = with_disk(&endpoint, &folder).unwrap();
        let is_found = |number: usize| {
            let answer = ask(&proxy, &path(number), "Cache-Control: only-if-cached\r\n");
            answer.status == 200
        };
        until("most is found", || {
            (0..800).filter(|it| is_found(*it)).count() > 700
        });
    });
}

#[test]
fn an_upgrade_hands_the_disk_over() {
    test(|| {
        let endpoint = Endpoint::answering(|head| match head {
            it if it.starts_with("GET /long") => response(200, FRESH, &long_body()),
            _ => response(200, FRESH, "hello"),
        });
        let folder = TempDir::new().unwrap();
        let proxy = with_disk(&endpoint, &folder).unwrap();
        let successors = Successors(&proxy);
        let mut paths = vec!["/long".to_owned()];
        ask(&proxy, "/long", "");
        ask(&proxy, "/purged", "");
        for round in 0..3 {
            let path = format!("/{round}");
            assert_eq!(ask(&proxy, &path, "").text(), "hello");
            paths.push(path);
            successors.upgrade();
            if round == 0 {
                // The purge counts even if the folder can't be handed over yet.
                let purge = "PURGE /purged HTTP/1.1\r\nHost: a\r\n\r\n";
                assert_eq!(proxy.client().ask(purge).unwrap().status, 200);
            }
            until("the new process has all of it", || {
                let has = |path: &String| {
                    ask(&proxy, path, "Cache-Control: only-if-cached\r\n").status == 200
                };
                paths.iter().all(has)
            });
            assert!(ask(&proxy, "/long", "").text() == long_body());
            let purged = ask(&proxy, "/purged", "Cache-Control: only-if-cached\r\n");
            assert_eq!(purged.status, 504, "{round}");
        }
        // `/long`, `/purged`, and one in each round.
        assert_eq!(endpoint.count(), 5);
    });
}

#[test]
fn a_folder_with_something_else_is_refused() {
    test(|| {
        let endpoint = Endpoint::answering(|_| response(200, FRESH, "hello"));
        let folder = TempDir::new().unwrap();
        std::fs::create_dir(folder.join("cache")).unwrap();
        std::fs::write(folder.join("cache").join("letter.txt"), "dear").unwrap();
        let error = with_disk(&endpoint, &folder).unwrap_err().to_string();
        assert!(error.contains("cache main: "), "{error}");
        assert!(folder.join("cache").join("letter.txt").exists());
    });
}

/// The program before an endpoint, with a cache that is shared by this value.
fn sharing(endpoint: &Endpoint, shared: &str) -> Proxy {
    let address = endpoint.origin.address;
    let config = format!(
        "[server]\nworkers = 1\ncontrol = '$DIR/control.sock'\n[status]\nbind = '127.0.0.1:0'\n\
         [access_log]\npath = '$DIR/access.log'\nformat = 'json'\n\
         [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n\
         [cache.main]\nshared = {shared}\n\
         [[route]]\nupstream = 'app'\n\
         cache = {{ store = 'main', purge = {{ from = ['127.0.0.1'] }} }}\n\
         [upstream.app]\nendpoints = ['{address}']\n"
    );
    Proxy::start(program(), &config).unwrap()
}

#[test]
fn machines_share_what_they_store_and_purge() {
    test(|| {
        let mut redis = Server::redis();
        redis.start(&[]);
        let endpoint = Endpoint::answering(|_| response(200, FRESH, "hello"));
        let shared = format!("'{}'", redis.endpoint());
        let machines = [0, 1].map(|_| sharing(&endpoint, &shared));
        let path = until_shared(&endpoint, &machines);
        let purge = format!("PURGE {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(machines[0].client().ask(purge).unwrap().status, 200);
        let before = endpoint.count();
        until("the other has purged it too", || {
            ask(&machines[1], &path, "");
            endpoint.count() > before
        });
        let line = |it: &Proxy, sample: &str| has_sample(it, &format!("shared_{sample}"));
        for (machine, sample) in [
            (0, "up{cache=\"main\"} 1"),
            (0, "purges_sent_total{cache=\"main\"} 1"),
            (0, "purges_waiting{cache=\"main\"} 0"),
            (1, "purges_received_total{cache=\"main\"} 1"),
            (1, "lookups_total{cache=\"main\",outcome=\"hit\"} 1"),
        ] {
            until(sample, || line(&machines[machine], sample));
        }
        let shared = &figures(&machines[0])["caches"][0]["shared"];
        assert!(shared["sent_bytes"].as_u64() > Some(0), "{shared}");
        let text = control::ask(&machines[0], "show cache");
        assert!(
            text.contains("SHARED BY") && text.contains("  up\n"),
            "{text}"
        );
        // A server that is gone costs only hits.
        redis.stop();
        let began = std::time::Instant::now();
        for number in 0..20 {
            let answer = ask(&machines[0], &format!("/gone/{number}"), "");
            assert_eq!(answer.text(), "hello");
        }
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{:?}",
            began.elapsed()
        );
        until("it is given up", || {
            line(&machines[0], "up{cache=\"main\"} 0")
        });
        let shared = &figures(&machines[0])["caches"][0]["shared"];
        assert!(shared["failure"].is_string(), "{shared}");
        let text = control::ask(&machines[0], "show cache");
        assert!(text.contains("  down: "), "{text}");
    });
}

/// Asks for pages until one machine has a page that the other has stored; returns that page.
fn until_shared(endpoint: &Endpoint, machines: &[Proxy; 2]) -> String {
    let shared = |it: &Proxy| figures(it)["caches"][0]["shared"].clone();
    // The server is found in the background.
    until("both have the server", || {
        machines.iter().all(|it| shared(it)["up"] == true)
    });
    let mut number = 0;
    until("one has what the other has stored", || {
        number += 1;
        let path = format!("/{number}");
        let sent = || shared(&machines[0])["sent_bytes"].as_u64().unwrap();
        let sent_before = sent();
        ask(&machines[0], &path, "");
        until("it is stored", || sent() > sent_before);
        let before = endpoint.count();
        assert_eq!(ask(&machines[1], &path, "").text(), "hello");
        endpoint.count() == before
    });
    format!("/{number}")
}

#[test]
fn machines_share_over_tls_with_a_password() {
    test(|| {
        let authority = Authority::new().unwrap();
        let dir = TempDir::new().unwrap();
        let ca = dir.join("ca.pem");
        std::fs::write(&ca, authority.pem()).unwrap();
        let ca = ca.display();
        let mut redis = Server::redis();
        let issued = authority.issue(&["localhost"]).unwrap();
        let port = redis.start_tls(&issued, &["--requirepass", "open/sesame"]);
        let endpoint = Endpoint::answering(|_| response(200, FRESH, "hello"));
        let at = |url: &str, more: &str| {
            sharing(
                &endpoint,
                &format!("{{ url = 'rediss://{url}:{port}/1'{more} }}"),
            )
        };
        let trusting = format!(", ca = '{ca}'");
        let machines = [0, 1].map(|_| at(":open/sesame@localhost", &trusting));
        until_shared(&endpoint, &machines);
        assert!(machines[0].stderr().contains(" is UP"));

        let strangers = Authority::new().unwrap();
        let other = dir.join("other.pem");
        std::fs::write(&other, strangers.pem()).unwrap();
        let other = format!(", ca = '{}'", other.display());
        for (url, more, expected) in [
            (":open/sesame@localhost", &*other, " is DOWN: certificate: "),
            (
                ":open/sesame@127.0.0.1",
                &trusting,
                " is DOWN: certificate: its certificate is for localhost, not for 127.0.0.1",
            ),
            (":wrong@localhost", &trusting, " is DOWN: password: "),
        ] {
            let proxy = at(url, more);
            until(expected, || proxy.stderr().contains(expected));
            assert!(!proxy.stderr().contains("sesame"), "{}", proxy.stderr());
            let said = figures(&proxy).to_string();
            assert!(!said.contains("sesame"), "{said}");
            assert_eq!(ask(&proxy, "/", "").text(), "hello");
        }
        // One that speaks no TLS.
        let plain = RawOrigin::start(|_, mut stream| {
            stream.send("-ERR unknown command\r\n").unwrap();
        });
        let plain = plain.unwrap();
        let port = plain.address.port();
        let shared = format!("{{ url = 'rediss://localhost:{port}'{trusting} }}");
        let proxy = sharing(&endpoint, &shared);
        let expected = " is DOWN: tls: it does not speak TLS";
        until(expected, || proxy.stderr().contains(expected));
    });
}
