//! Error pages, and maintenance, which is answered by one.

use std::process::Command;

use evenkeel_testkit::{OriginHandle, Proxy, Response};

use crate::control::ask;
use crate::reload::reload;
use crate::setup::{ask_status, assert_logged, assert_refused, origin, program, test};
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
        // What an endpoint answers is its own.
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
            "nothing is under maintenance"
        );
        let both = ask(&proxy, "maintenance on app");
        assert!(both.contains("write route/app or upstream/app"), "{both}");
        let said = ask(&proxy, "maintenance on route/app");
        assert!(
            said.contains("route app is under maintenance now"),
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
            // It is kept over a reload.
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
            said.contains("route app is under maintenance no more"),
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
