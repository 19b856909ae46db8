//! Error pages, and maintenance, which is answered by one.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, RawOrigin, Response};

use crate::control::ask;
use crate::reload::reload;
use crate::setup::{ask_status, assert_logged, assert_refused, figures, origin, program, test};
use crate::words;

/// Three routes: to an origin, to and to the origin of before by another name.
fn config(errors: &str, origin: &OriginHandle) -> String {
    format!(
        "[server]\nworkers = 1\ncontrol = \"$DIR/control.sock\"\n\n[status]\nbind = \"127.0.0.1:0\"\n\n\
         [access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\n\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\n\
         [[route]]\nname = \"down\"\nmatch = {{ path = \"/down\" }}\nupstream = \"down\"\nerrors = {errors}\n\n\
         [[route]]\nname = \"files\"\nmatch = {{ path = \"/files/*\" }}\nfiles = \"$DIR\"\nerrors = {errors}\n\n\
         [[route]]\nname = \"limited\"\nmatch = {{ path = \"/limited\" }}\nlimit = {{ rate = \"1/h\" }}\nanswer = {{ body = \"passed\" }}\nerrors = {errors}\n\n\
         [[route]]\nname = \"app\"\nupstream = \"app\"\nerrors = {errors}\n\n\
         [upstream.app]\nendpoints = [\"{}\"]\n\n\
         [upstream.down]\nqueue = {{ hold = false }}\nendpoints = []\n",
        origin.address,
    )
}

fn get(proxy: &Proxy, path: &str) -> Response {
    proxy.client().get(path).unwrap()
}

#[test]
fn errors_have_the_page_that_is_for_the_fewest_of_them() {
    const ERRORS: &str = "{ 5xx = { body = \"any\" }, 502-504 = \"sorry.html\", \
                          no-endpoint = { body = \"{}\", content_type = \"application/json\", status = 500, \
                          headers = { X-Page = \"own\" } }, 404 = { body = \"no file\" }, \
                          rate-limited = { body = \"slow down\", headers = { Retry-After = \"7\" } } }";
    test(|| {
        let origin = origin();
        let without = ERRORS.replace("no-endpoint = {", "busy = {");
        let folder = evenkeel_testkit::TempDir::new().unwrap();
        let page = folder.join("sorry.html");
        std::fs::write(&page, "<p>sorry</p>").unwrap();
        let page = page.display().to_string();
        let text = |errors: &str| config(&errors.replace("sorry.html", &page), &origin);
        let proxy = Proxy::start(program(), &text(ERRORS)).unwrap();
        // A reason goes first.
        let response = get(&proxy, "/down");
        assert_eq!((response.status, &*response.text()), (500, "{}"));
        assert_eq!(response.field("content-type"), Some("application/json"));
        assert_eq!(response.field("x-page"), Some("own"));
        assert_logged(&proxy, words::NO_ENDPOINT);
        // A HEAD has the same head.
        let head = proxy
            .client()
            .ask("HEAD /down HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        assert_eq!(
            (head.status, head.field("content-length")),
            (500, Some("2"))
        );
        let response = get(&proxy, "/files/none");
        assert_eq!((response.status, &*response.text()), (404, "no file"));
        assert_eq!(get(&proxy, "/limited").text(), "passed");
        let response = get(&proxy, "/limited");
        assert_eq!((response.status, &*response.text()), (429, "slow down"));
        let named = |it: &&(String, String)| it.0.eq_ignore_ascii_case("retry-after");
        let after: Vec<_> = response.fields.iter().filter(named).collect();
        assert!(
            matches!(&after[..], [(_, value)] if value == "7"),
            "{after:?}"
        );
        assert!(response.field("ratelimit").is_some(), "{response:?}");
        // Then fewer statuses, and then more.
        reload(&proxy, &text(&without));
        let response = get(&proxy, "/down");
        assert_eq!((response.status, &*response.text()), (503, "<p>sorry</p>"));
        assert_eq!(
            response.field("content-type"),
            Some("text/html; charset=utf-8")
        );
        reload(
            &proxy,
            &text(&without.replace("502-504 = \"sorry.html\", ", "")),
        );
        assert_eq!(get(&proxy, "/down").text(), "any");
        // An endpoint's error is passed on unchanged.
        let response = get(&proxy, "/status/503");
        assert_eq!(response.status, 503);
        assert_ne!(response.text(), "any");
    });
}

#[test]
fn maintenance_refuses_new_requests_until_it_is_switched_off() {
    const ERRORS: &str =
        "{ maintenance = { body = \"back at noon\", headers = { Retry-After = \"600\" } } }";
    test(|| {
        let origin = origin();
        let text = config(ERRORS, &origin);
        let proxy = Proxy::start(program(), &text).unwrap();
        let gauge = |of: &str| {
            let all = ask_status(&proxy, "/metrics", "").text();
            let begin = format!("evenkeel_{of}_maintenance{{{of}=\"app\"}} ");
            let mut lines = all.lines();
            let line = lines.find_map(|it| it.strip_prefix(&begin));
            line.unwrap_or_else(|| panic!("no {begin}")).to_owned()
        };
        assert_eq!(
            ask(&proxy, "maintenance").trim_end(),
            "no route or upstream is under maintenance"
        );
        let both = ask(&proxy, "maintenance on app");
        assert!(both.contains("write route/app or upstream/app"), "{both}");
        let said = ask(&proxy, "maintenance on route/app");
        assert!(
            said.contains("route app is now under maintenance"),
            "{said}"
        );
        for _ in 0..2 {
            let response = get(&proxy, "/10");
            assert_eq!((response.status, &*response.text()), (503, "back at noon"));
            assert_eq!(response.field("retry-after"), Some("600"));
            assert_eq!(gauge("route"), "1");
            assert_eq!(ask(&proxy, "maintenance").trim_end(), "route app");
            // Others go on.
            assert_ne!(get(&proxy, "/limited").status, 503);
            // The page is kept over a reload.
            reload(&proxy, &format!("{text}# again\n"));
        }
        let explained = Command::new(program())
            .args(["explain", "--config"])
            .arg(proxy.path("evenkeel.toml"))
            .args(["--live", "GET"])
            .arg(proxy.url("/10"))
            .output()
            .unwrap();
        let explained = String::from_utf8(explained.stdout).unwrap();
        assert!(explained.contains("maintenance"), "{explained}");
        let said = ask(&proxy, "maintenance off route/app");
        assert!(
            said.contains("route app is no longer under maintenance"),
            "{said}"
        );
        assert_eq!(get(&proxy, "/10").status, 200);
        assert_eq!(gauge("route"), "0");
        // Of an upstream.
        let said = ask(&proxy, "maintenance on down");
        assert!(
            said.contains("route down") || said.contains("write route/down"),
            "{said}"
        );
        ask(&proxy, "maintenance on upstream/app");
        assert_eq!(gauge("upstream"), "1");
        assert_eq!(get(&proxy, "/10").text(), "back at noon");
        ask(&proxy, "maintenance off upstream/app");
        assert_eq!(get(&proxy, "/10").status, 200);
        let unknown = ask(&proxy, "maintenance on nothing");
        assert!(
            unknown.contains("there is no route or upstream named `nothing`"),
            "{unknown}"
        );
        reload(&proxy, &config("{}", &origin));
        ask(&proxy, "maintenance on route/app");
        assert_refused(&get(&proxy, "/10"), words::MAINTENANCE);
    });
}

/// A server of error pages: it answers its Nth request with `page N`, as long as it is well.
struct Pages {
    origin: RawOrigin,
    count: Arc<AtomicUsize>,
    is_well: Arc<AtomicBool>,
}

impl Pages {
    fn start() -> Self {
        let (count, is_well) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(true)),
        );
        let (counted, well) = (count.clone(), is_well.clone());
        let origin = RawOrigin::start(move |_, mut stream| {
            while let Ok(head) = stream.read_head() {
                let count = counted.fetch_add(1, Ordering::Relaxed) + 1;
                let answer = match head.split_whitespace().nth(1).unwrap() {
                    "/sorry.html" if well.load(Ordering::Relaxed) => {
                        let body = format!("page {count}");
                        format!(
                            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Own: 1\r\nContent-Length: {}\r\n\r\n{body}",
                            body.len()
                        )
                    }
                    "/long.html" => {
                        let body = "x".repeat((1 << 20) + 1);
                        format!(
                            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                            body.len()
                        )
                    }
                    "/coded.html" => {
                        let coded = "Content-Encoding: gzip\r\nContent-Length: 4";
                        format!("HTTP/1.1 200 OK\r\n{coded}\r\n\r\nabcd")
                    }
                    "/part.html" => "HTTP/1.1 206 Part\r\nContent-Length: 4\r\n\r\nabcd".to_owned(),
                    "/empty.html" => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
                    "/first.html" if count == 1 => {
                        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst".to_owned()
                    }
                    "/slow.html" | "/first.html" => {
                        drop(stream.read_head());
                        return;
                    }
                    _ => "HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops".to_owned(),
                };
                if stream.send(answer).is_err() {
                    return;
                }
            }
        });
        Pages {
            origin: origin.unwrap(),
            count,
            is_well,
        }
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

fn with_pages(errors: &str, origin: &OriginHandle, pages: &Pages) -> Proxy {
    let text = config(errors, origin);
    let upstream = format!(
        "[upstream.pages]\nendpoints = [\"{}\"]\n",
        pages.origin.address
    );
    Proxy::start(program(), &(text + &upstream)).unwrap()
}

fn missed(proxy: &Proxy) -> u64 {
    figures(proxy)["error_pages_missed"].as_u64().unwrap()
}

#[test]
fn a_page_of_an_upstream_is_fetched_once_for_many_errors() {
    const ERRORS: &str = "{ 502-504 = { upstream = \"pages\", path = \"/sorry.html\", headers = { X-Page = \"own\" } } }";
    test(|| {
        let (origin, pages) = (origin(), Pages::start());
        let proxy = with_pages(ERRORS, &origin, &pages);
        let began = Instant::now();
        let asking: Vec<_> = (0..20)
            .map(|_| {
                let mut client = proxy.client();
                std::thread::spawn(move || client.get("/down").unwrap())
            })
            .collect();
        for response in asking.into_iter().map(|it| it.join().unwrap()) {
            assert_eq!((response.status, &*response.text()), (503, "page 1"));
            assert_eq!(response.field("content-type"), Some("text/html"));
            assert_eq!(response.field("x-page"), Some("own"));
            assert_eq!(response.field("x-own"), None);
            assert_eq!(response.field("retry-after"), Some("1"));
        }
        if began.elapsed() < Duration::from_millis(900) {
            assert_eq!(pages.count(), 1);
        }
        // A HEAD has the same head.
        let head = proxy
            .client()
            .ask("HEAD /down HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        assert_eq!(
            (head.status, head.field("content-length")),
            (503, Some("6"))
        );
        // Another page comes within a second, and the last one stays while none does.
        until("it is another page", || {
            get(&proxy, "/down").text() != "page 1"
        });
        let last = get(&proxy, "/down").text();
        pages.is_well.store(false, Ordering::Relaxed);
        let before = pages.count();
        until("it is asked for again", || {
            assert!(get(&proxy, "/down").text().starts_with("page "));
            pages.count() > before + 1
        });
        assert!(get(&proxy, "/down").text() >= last);
        assert_eq!(missed(&proxy), 0);
        // The access log has a line for each error, and none for a page.
        let lines = proxy.access_log_json();
        assert!(lines.iter().all(|it| it["upstream"] == "down"), "{lines:?}");
        let explained = Command::new(program())
            .args(["explain", "--config"])
            .arg(proxy.path("evenkeel.toml"))
            .arg("GET")
            .arg(proxy.url("/down"))
            .output()
            .unwrap();
        let text = String::from_utf8(explained.stdout).unwrap();
        let line = "error page for 502 to 504: GET /sorry.html of upstream pages";
        assert!(text.contains(line), "{text}");
    });
}

#[test]
fn nobody_waits_for_a_page_where_one_has_come() {
    const ERRORS: &str =
        "{ 503 = { upstream = \"pages\", path = \"/first.html\", timeout = \"5s\" } }";
    test(|| {
        let (origin, pages) = (origin(), Pages::start());
        let proxy = with_pages(ERRORS, &origin, &pages);
        let began = Instant::now();
        until("it is asked for again", || {
            assert_eq!(get(&proxy, "/down").text(), "first");
            pages.count() == 2
        });
        assert_eq!(get(&proxy, "/down").text(), "first");
        assert!(began.elapsed() < Duration::from_secs(4));
    });
}

#[test]
fn a_page_that_does_not_come_is_a_short_text() {
    const ERRORS: &str =
        "{ 503 = { upstream = \"pages\", path = \"/PAGE.html\", timeout = \"300ms\" } }";
    test(|| {
        let (origin, pages) = (origin(), Pages::start());
        for page in ["none", "long", "slow", "coded", "part", "empty"] {
            let proxy = with_pages(&ERRORS.replace("PAGE", page), &origin, &pages);
            let began = Instant::now();
            let mut client = proxy.client();
            let response = client.get("/down").unwrap();
            let took = began.elapsed();
            assert_refused(&response, words::NO_ENDPOINT);
            assert!(took < Duration::from_secs(1), "{page}: {took:?}");
            // The next error does not wait for it.
            let began = Instant::now();
            assert_refused(&client.get("/down").unwrap(), words::NO_ENDPOINT);
            assert!(began.elapsed() < Duration::from_millis(250), "{page}");
            assert_eq!(missed(&proxy), 2);
            until("it is said", || {
                proxy
                    .stderr()
                    .contains("error pages: no upstream can serve")
            });
            assert_eq!(client.get("/ping").unwrap().text(), "pong");
        }
        // The upstream of pages is down too: its own error has no page.
        let text = config(&ERRORS.replace("PAGE", "sorry"), &origin);
        let down = "[upstream.pages]\nendpoints = []\nqueue = { hold = false }\n";
        let proxy = Proxy::start(program(), &(text + down)).unwrap();
        assert_refused(&get(&proxy, "/down"), words::NO_ENDPOINT);
        assert_eq!(missed(&proxy), 1);
    });
}
