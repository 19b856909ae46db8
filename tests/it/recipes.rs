//! The configurations of `docs/recipes.md` and of the README at work: each is
//! read from its page, and only addresses and folders are put in place.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::process::{repository, run};
use evenkeel_testkit::tls::Authority;
use evenkeel_testkit::{
    Origin, OriginHandle, OriginOptions, Proxy, ProxySetup, RawClient, Response, TempDir,
};
use serde_json::Value;

use crate::foreign_origins::start_nginx;
use crate::setup::{nobody, pattern, program, test};
use crate::snippets;

mod routes;

/// A configuration of a page, and the folder that its paths lie in.
struct Recipe {
    /// Page and line.
    place: String,
    text: String,
    folder: TempDir,
}

/// A recipe that runs.
struct Cooked {
    proxy: Proxy,
    folder: TempDir,
}

impl Recipe {
    /// The configuration under a heading of the recipes.
    fn of(heading: &str) -> Recipe {
        Recipe::of_page("docs/recipes.md", heading)
    }

    fn of_page(page: &str, heading: &str) -> Recipe {
        let page = repository().join(page);
        let snippets = snippets::of_page(&page);
        let snippet = snippets
            .iter()
            .find(|it| it.heading == heading && it.language == "toml")
            .unwrap_or_else(|| panic!("no configuration under {heading:?}"));
        let folder = TempDir::new().unwrap();
        let mut text = snippet.text.replace("\":8080\"", "\"127.0.0.1:0\"");
        text = text.replace("\":80\"", "\"127.0.0.1:0\"");
        text = text.replace("\":443\"", "\"127.0.0.1:0\"");
        text = text.replace("\"127.0.0.1:8404\"", "\"127.0.0.1:0\"");
        text = text.replace("status = true", "status = { bind = \"127.0.0.1:0\" }");
        for name in ["/srv", "/var/log/evenkeel", "/run/evenkeel", "/run/app"] {
            let own = folder.join(&name.replace('/', "-"));
            fs::create_dir(&own).unwrap();
            text = text.replace(&format!("\"{name}/"), &format!("\"{}/", own.display()));
            text = text.replace(
                &format!("unix:{name}/"),
                &format!("unix:{}/", own.display()),
            );
        }
        Recipe {
            place: snippet.place.clone(),
            text,
            folder,
        }
    }

    /// Replaces a text of the page.
    fn with(mut self, written: &str, instead: &str) -> Recipe {
        assert!(
            self.text.contains(written),
            "no {written} in:\n{}",
            self.text
        );
        self.text = self.text.replace(written, instead);
        self
    }

    /// Replaces the endpoints by origins, which get their names.
    fn with_origins<const N: usize>(self, written: [&str; N]) -> (Recipe, [OriginHandle; N]) {
        let origins = written.map(|name| {
            let options = OriginOptions {
                name: name.to_owned(),
                ..OriginOptions::default()
            };
            Origin::local(options).unwrap()
        });
        let put = |recipe: Recipe, (written, origin): (&str, &OriginHandle)| {
            recipe.with(written, &origin.address.to_string())
        };
        let recipe = written.into_iter().zip(&origins).fold(self, put);
        (recipe, origins)
    }

    /// Writes a file beside the configuration, or into one of its folders.
    fn with_file(self, name: &str, contents: &str) -> Recipe {
        let path = match name.strip_prefix("/srv/") {
            Some(name) => self.folder.join("-srv").join(name),
            None => self.folder.join(name),
        };
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        if name.starts_with('/') {
            self
        } else {
            self.with(&format!("\"{name}\""), &format!("\"{}\"", path.display()))
        }
    }

    fn start(self) -> Cooked {
        let setup = ProxySetup {
            args: vec!["--set".to_owned(), "server.workers=1".to_owned()],
            ..ProxySetup::default()
        };
        let proxy = Proxy::start_with(program(), &self.text, &setup);
        Cooked {
            proxy: proxy.unwrap_or_else(|error| panic!("{}: {error}\n{}", self.place, self.text)),
            folder: self.folder,
        }
    }
}

impl Cooked {
    fn client(&self) -> RawClient {
        // In a log as JSON a quote stands behind it.
        let address = self.proxy.address("listener-1").split('"').next();
        RawClient::connect(address.unwrap()).unwrap()
    }

    /// The answer at a path, with further fields in the request.
    fn ask(&self, path: &str, fields: &str) -> Response {
        self.ask_host("www.example.com", path, fields)
    }

    fn ask_host(&self, host: &str, path: &str, fields: &str) -> Response {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        self.client().ask(request).unwrap()
    }

    /// The names of the origins that answer this many requests.
    fn servers(&self, count: usize, fields: &str) -> Vec<String> {
        let server = |_| server(&self.ask("/ping", fields)).to_owned();
        (0..count).map(server).collect()
    }

    /// Waits until this many servers have answered. The fastest one may answer many requests in
    /// a row.
    fn await_servers(&self, count: usize) {
        let mut seen = BTreeSet::new();
        until("all have answered", || {
            seen.extend(self.servers(10, ""));
            seen.len() >= count
        });
    }

    fn ctl(&self, args: &[&str]) -> String {
        let socket = self.folder.join("-run-evenkeel").join("control.sock");
        let mut command = Command::new(program());
        command.arg("ctl").arg("--socket").arg(socket).args(args);
        let output = run(command, Duration::from_secs(20)).unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// The name of the origin that answered.
fn server(response: &Response) -> &str {
    assert_eq!(response.status, 200, "{response:?}");
    response.field("server").unwrap()
}

fn distinct(names: Vec<String>) -> BTreeSet<String> {
    names.into_iter().collect()
}

#[test]
fn the_readme_works_when_pasted() {
    test(|| {
        let recipe = Recipe::of_page("README.md", "A first configuration");
        let (recipe, _origins) = recipe.with_origins(["127.0.0.1:8081", "127.0.0.1:8082"]);
        let site = recipe.start();
        site.await_servers(2);
        let mut page = RawClient::connect(site.proxy.status_address()).unwrap();
        let response = page.ask("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(response.unwrap().text().contains("<html"));
    });
}

#[test]
fn one_application() {
    test(|| {
        let (recipe, _origin) = Recipe::of("One application").with_origins(["127.0.0.1:3000"]);
        let text = recipe.start().ask("/headers", "").text();
        assert!(text.contains("Host: www.example.com"), "{text}");
        assert!(text.contains("X-Forwarded-For: 127.0.0.1"), "{text}");
    });
}

#[test]
fn several_servers_and_one_that_is_down() {
    test(|| {
        let names = ["10.0.0.1:8080", "10.0.0.2:8080"];
        let recipe = Recipe::of("Several servers").with("10.0.0.3:8080", &nobody());
        let (recipe, _origins) = recipe.with_origins(names);
        let site = recipe.start();
        site.await_servers(2);
    });
}

#[test]
fn a_static_site() {
    test(|| {
        let site = Recipe::of("A static site")
            .with_file("/srv/www/index.html", "home")
            .with_file("/srv/www/404.html", "nothing here")
            .with_file("/srv/www/blog/index.html", "blog")
            .with_file("/srv/www/assets/a.js", "a()")
            .with_file("/srv/www/.git", "secret")
            .start();
        assert_eq!(site.ask("/", "").text(), "home");
        assert_eq!(site.ask("/blog/", "").text(), "blog");
        assert!((300..400).contains(&site.ask("/blog", "").status));
        let asset = site.ask("/assets/a.js", "");
        assert!(asset.field("cache-control").unwrap().contains("immutable"));
        for path in ["/nowhere", "/.git"] {
            let missing = site.ask(path, "");
            assert_eq!(
                (missing.status, missing.text()),
                (404, "nothing here".to_owned())
            );
        }
    });
}

#[test]
fn a_single_page_application() {
    test(|| {
        let (recipe, _api) =
            Recipe::of("A single-page application").with_origins(["10.0.0.1:8080"]);
        let site = recipe
            .with("/api/*", "/echo/*")
            .with_file("/srv/app/index.html", "the page")
            .with_file("/srv/app/app.js", "app()")
            .start();
        assert_eq!(site.ask("/app.js", "").text(), "app()");
        assert_eq!(site.ask("/orders/17", "").text(), "the page");
        assert_eq!(
            site.ask("/echo/x", "").field("server"),
            Some("10.0.0.1:8080")
        );
    });
}

#[test]
fn several_sites() {
    test(|| {
        let names = ["10.0.0.1:8080", "10.0.0.2:8080"];
        let (recipe, _origins) = Recipe::of("Several sites").with_origins(names);
        let site = recipe.start();
        for (host, expected) in [
            ("www.example.com", Some(names[0])),
            ("EXAMPLE.com:80", Some(names[0])),
            ("a.shop.example.com", Some(names[1])),
            ("shop.example.com", None),
            ("example.org", None),
        ] {
            let response = site.ask_host(host, "/ping", "");
            let found = (response.status == 200).then(|| server(&response));
            assert_eq!(found, expected, "{host}: {response:?}");
        }
    });
}

#[test]
fn one_path_elsewhere() {
    test(|| {
        let names = ["10.0.0.2:9200", "10.0.0.1:8080"];
        let (recipe, _origins) = Recipe::of("One path elsewhere").with_origins(names);
        let site = recipe.start();
        for (path, expected) in [
            ("/search", names[0]),
            ("/search/", names[0]),
            ("/search/x?q=1", names[0]),
            ("/searches", names[1]),
            ("/", names[1]),
        ] {
            assert_eq!(site.ask(path, "").field("server"), Some(expected), "{path}");
        }
    });
}

#[test]
fn redirects() {
    test(|| {
        let (recipe, _origin) =
            Recipe::of("The bare domain to www").with_origins(["10.0.0.1:8080"]);
        let bare = recipe.start();
        let response = bare.ask_host("example.com", "/a?b=1", "");
        let target = response.field("location").unwrap();
        assert_eq!(
            (response.status, target),
            (308, "https://www.example.com/a?b=1")
        );
        assert_eq!(bare.ask("/ping", "").status, 200);

        let challenge = "/srv/acme/.well-known/acme-challenge/token";
        let issued = Authority::new()
            .unwrap()
            .issue(&["www.example.com"])
            .unwrap();
        let live = TempDir::new().unwrap();
        fs::create_dir(live.join("www.example.com")).unwrap();
        let write = |name: &str, text: &str| fs::write(live.join(name), text).unwrap();
        write("www.example.com/fullchain.pem", &issued.chain);
        write("www.example.com/privkey.pem", &issued.key);
        let storage = TempDir::new().unwrap();
        let acme = format!(
            "[acme]\ndirectory = \"https://{}/dir\"\nstorage = \"{}\"\n\n[upstream.app]",
            nobody(),
            storage.path().display()
        );
        let plain = Recipe::of("HTTPS, and HTTP to HTTPS")
            .with("[upstream.app]", &acme)
            .start();
        let response = plain.ask("/a?b=1", "");
        assert_eq!(response.status, 308);
        let plain = Recipe::of("HTTPS with the certificates of certbot")
            .with_file(challenge, "key")
            .with("/etc/letsencrypt/live", &live.path().display().to_string())
            .start();
        let response = plain.ask("/a?b=1", "");
        let target = response.field("location").unwrap();
        assert_eq!(
            (response.status, target),
            (308, "https://www.example.com/a?b=1")
        );
        let response = plain.ask("/.well-known/acme-challenge/token", "");
        assert_eq!(response.text(), "key");
    });
}

#[test]
fn only_some_networks() {
    test(|| {
        for (network, expected) in [("192.0.2.0/24", 403), ("127.0.0.0/8", 404)] {
            let (recipe, _origin) =
                Recipe::of("Only some networks").with_origins(["10.0.0.1:8080"]);
            let site = recipe.with("192.0.2.0/24", network).start();
            for path in ["/admin", "/admin/users", "/%61dmin"] {
                assert_eq!(site.ask(path, "").status, expected, "{network}: {path}");
            }
            assert_eq!(site.ask("/x/../admin", "").status, 400);
            assert_eq!(site.ask("/ping", "").status, 200);
        }
    });
}

#[test]
fn downloads_with_a_list() {
    test(|| {
        let site = Recipe::of("Downloads with a list")
            .with_file("/srv/download/a.zip", "0123456789")
            .start();
        assert!(site.ask("/download/", "").text().contains("a.zip"));
        let part = site.ask("/download/a.zip", "Range: bytes=6-\r\n");
        assert_eq!((part.status, part.text()), (206, "6789".to_owned()));
    });
}

#[test]
fn one_request_at_a_time() {
    test(|| {
        let names = ["10.0.0.1:8080", "10.0.0.2:8080"];
        let (recipe, origins) = Recipe::of("One request at a time").with_origins(names);
        let site = recipe.start();
        let mut clients: Vec<RawClient> = (0..8).map(|_| site.client()).collect();
        for client in &mut clients {
            client
                .send("GET /slow/50 HTTP/1.1\r\nHost: a\r\n\r\n")
                .unwrap();
        }
        for client in &mut clients {
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        for origin in &origins {
            assert_eq!(origin.stats().max_in_flight, 1);
        }
    });
}

#[test]
fn a_short_queue_with_an_answer_of_your_own() {
    test(|| {
        let heading = "A short queue with an answer of your own";
        let (recipe, origins) = Recipe::of(heading).with_origins(["10.0.0.1:8080"]);
        let site = recipe
            .with("max_in_flight = 8", "max_in_flight = 1")
            .with("max = 200", "max = 0")
            .with_file("sorry.html", "<h1>Busy</h1>")
            .start();
        let mut first = site.client();
        first
            .send("GET /slow/10000 HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        until("it is there", || origins[0].stats().in_flight == 1);
        let refused = site.ask("/ping", "");
        assert_eq!(
            (refused.status, refused.text()),
            (503, "<h1>Busy</h1>".to_owned())
        );
        assert_eq!(refused.field("retry-after"), Some("10"));
        assert_eq!(
            refused.field("content-type"),
            Some("text/html; charset=utf-8")
        );
    });
}

#[test]
fn slow_pages_apart() {
    test(|| {
        let names = ["10.0.0.1:8080", "10.0.0.2:8080"];
        let (recipe, origins) = Recipe::of("Slow pages apart").with_origins(names);
        let site = recipe.with("/reports/*", "/slow/*").start();
        let mut clients: Vec<RawClient> = (0..6).map(|_| site.client()).collect();
        for client in &mut clients {
            client
                .send("GET /slow/10000 HTTP/1.1\r\nHost: a\r\n\r\n")
                .unwrap();
        }
        let in_flight = || origins.iter().map(|it| it.stats().in_flight).sum::<u64>();
        until("four are there", || in_flight() == 4);
        assert_eq!(site.ask("/ping", "").status, 200);
        // The origin counts the ping until it has seen that its answer is sent.
        until("four are still there", || in_flight() == 4);
    });
}

#[test]
fn sessions_on_one_server() {
    test(|| {
        let names = ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8080"];
        let (recipe, _origins) = Recipe::of("Sessions on one server").with_origins(names);
        let state = recipe.folder.join("state.json").display().to_string();
        let site = recipe.with("/var/lib/evenkeel/state.json", &state).start();
        let first = site.ask("/ping", "");
        let cookie = first.field("set-cookie").unwrap();
        let (cookie, _) = cookie.split_once(';').unwrap();
        let same = distinct(site.servers(20, &format!("Cookie: {cookie}\r\n")));
        assert_eq!(same, BTreeSet::from([server(&first).to_owned()]));
        site.await_servers(2);
    });
}

#[test]
fn one_url_one_cache() {
    test(|| {
        let names = ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8080"];
        let (recipe, _origins) = Recipe::of("One URL, one cache").with_origins(names);
        let site = recipe.start();
        let of = |number: u32| {
            let ask = |_| server(&site.ask(&format!("/ping?n={number}"), "")).to_owned();
            let found: BTreeSet<String> = (0..3).map(ask).collect();
            assert_eq!(found.len(), 1, "{number}");
            found.into_iter().next().unwrap()
        };
        assert_eq!((0..30).map(of).collect::<BTreeSet<_>>().len(), 3);
    });
}

#[test]
fn a_cache_in_front() {
    test(|| {
        let (recipe, _origin) = Recipe::of("A cache in front").with_origins(["10.0.0.1:8080"]);
        let site = recipe.start();
        let cache_status = |fields: &str| {
            let response = site.ask("/ping", fields);
            assert_eq!((response.status, response.text().as_str()), (200, "pong"));
            let found = response.field("cache-status").unwrap_or("none");
            found.to_owned()
        };
        let first = cache_status("");
        assert!(first.ends_with("stored"), "{first}");
        let known = cache_status("Cookie: session=1\r\n");
        assert_eq!(known, "none");
        for _ in 0..2 {
            let again = cache_status("");
            assert!(again.starts_with("Evenkeel; hit; ttl="), "{again}");
        }
    });
}

#[test]
fn compressed_pages() {
    test(|| {
        let (recipe, _origin) = Recipe::of("Compressed pages").with_origins(["10.0.0.1:8080"]);
        let site = recipe.start();
        let coding = |path: &str| {
            let response = site.ask(path, "Accept-Encoding: gzip, br\r\n");
            assert_eq!(response.status, 200, "{response:?}");
            let is_asked = response.text().to_lowercase().contains("accept-encoding");
            assert!(!is_asked, "{response:?}");
            response.field("content-encoding").map(str::to_owned)
        };
        assert_eq!(coding("/headers"), None, "it is short");
        let long = "a".repeat(3000);
        assert_eq!(coding(&format!("/headers?{long}")).as_deref(), Some("br"));
    });
}

#[test]
fn large_uploads() {
    test(|| {
        let (recipe, _origin) = Recipe::of("Large uploads").with_origins(["10.0.0.1:8080"]);
        let site = recipe.start();
        let post = |len: u64| {
            format!("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n").into_bytes()
        };
        let body = pattern(1_000_000);
        let response = site.client().ask([post(1_000_000), body.clone()].concat());
        assert!(response.unwrap().body == body);
        let refused = site.client().ask(post((5 << 30) + 1)).unwrap();
        assert_eq!(refused.status, 413);
    });
}

#[test]
fn websocket() {
    test(|| {
        let (recipe, _origin) = Recipe::of("WebSocket").with_origins(["10.0.0.1:8080"]);
        let site = recipe.with("/ws", "/upgrade").start();
        let mut client = site.client();
        let upgrade = "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\
                       Upgrade: websocket\r\n\r\n";
        assert_eq!(client.ask(upgrade).unwrap().status, 101);
        client.send("hello").unwrap();
        assert_eq!(client.read_len(5).unwrap(), b"hello");
    });
}

#[test]
fn events() {
    test(|| {
        let heading = "Events and long polling";
        let (recipe, _origin) = Recipe::of(heading).with_origins(["10.0.0.1:8080"]);
        let site = recipe.start();
        let mut client = site.client();
        // The response is endless, so its bytes must arrive before an end.
        client
            .send("GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        let head = client.read_head().unwrap();
        assert!(head.contains("text/event-stream"), "{head}");
        assert!(!client.read_len(8).unwrap().is_empty());
    });
}

#[test]
fn slow_start_and_health_checks() {
    test(|| {
        for heading in ["Slow start", "Health checks"] {
            let recipe = Recipe::of(heading).with("10.0.0.2:8080", &nobody());
            let (recipe, _origin) = recipe.with_origins(["10.0.0.1:8080"]);
            let site = recipe.start();
            assert_eq!(distinct(site.servers(10, "")).len(), 1, "{heading}");
            until("the other is down", || {
                site.proxy.stderr().contains("is down after")
            });
        }
    });
}

#[test]
fn take_a_server_out() {
    test(|| {
        let names = ["10.0.0.1:8080", "10.0.0.2:8080"];
        let (recipe, origins) = Recipe::of("Take a server out").with_origins(names);
        let site = recipe.start();
        site.await_servers(2);
        let first = format!("app/{}", origins[0].address);
        site.ctl(&["drain", &first]);
        assert_eq!(distinct(site.servers(10, "")), [names[1].to_owned()].into());
        assert!(site.ctl(&["show", "upstreams", "app"]).contains("draining"));
        site.ctl(&["ready", &first]);
        site.await_servers(2);
    });
}

#[test]
fn restart_every_server() {
    test(|| {
        let names = ["10.0.0.1:8080", "10.0.0.2:8080"];
        let probed_often = "path = \"/healthz\", interval = \"100ms\"";
        let recipe = Recipe::of("Restart every server").with("path = \"/healthz\"", probed_often);
        let (recipe, origins) = recipe.with_origins(names);
        let site = recipe.start();
        for origin in &origins {
            origin.refuse();
        }
        until("both are out", || {
            let said = site.proxy.stderr();
            said.contains("(0 of 2 left")
        });
        let mut waiting = site.client();
        waiting
            .send("GET /ping HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        for origin in &origins {
            origin.serve();
        }
        assert_eq!(waiting.read_response("GET").unwrap().status, 200);
    });
}

#[test]
fn a_release_for_some() {
    test(|| {
        let names = ["10.0.0.9:8080", "10.0.0.1:8080", "10.0.0.2:8080"];
        let (recipe, _origins) = Recipe::of("A release for some").with_origins(names);
        let site = recipe.start();
        for fields in ["Cookie: a=b; release=canary\r\n", "X-Release: canary\r\n"] {
            let found = distinct(site.servers(5, fields));
            assert_eq!(found, [names[0].to_owned()].into(), "{fields}");
        }
        assert!(!site.servers(10, "").contains(&names[0].to_owned()));
    });
}

#[test]
fn a_release_by_weight() {
    test(|| {
        let names = ["10.0.0.1:8080", "10.0.0.9:8080"];
        let (recipe, origins) = Recipe::of("A release by weight").with_origins(names);
        let site = recipe.start();
        let share = || {
            let servers = site.servers(40, "");
            servers.iter().filter(|it| *it == names[1]).count()
        };
        assert_eq!(share(), 2);
        site.ctl(&["weight", &format!("app/{}", origins[1].address), "19"]);
        assert!((18..=22).contains(&share()));
    });
}

#[test]
fn a_copy_of_the_traffic_for_a_test() {
    test(|| {
        let names = ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.9:8080"];
        let recipe = Recipe::of("A copy of the traffic for a test");
        let (recipe, origins) = recipe.with_origins(names);
        let site = recipe.start();
        let mut client = site.client();
        let mut answered = BTreeSet::new();
        until("some of them are copied", || {
            let response = client.get("/ping").unwrap();
            answered.insert(server(&response).to_owned());
            origins[2].stats().requests > 2
        });
        assert!(!answered.contains(names[2]), "{answered:?}");
    });
}

#[test]
fn unix_sockets() {
    test(|| {
        let recipe = Recipe::of("Unix sockets");
        let folder = recipe.folder.path().to_owned();
        let origins = ["1", "2"].map(|name| {
            let path = folder.join("-run-app").join(format!("{name}.sock"));
            let options = OriginOptions {
                listen: format!("unix:{}", path.display()).parse().unwrap(),
                name: name.to_owned(),
                ..OriginOptions::default()
            };
            Origin::listen(options).unwrap()
        });
        let _site = recipe.start();
        let web = folder.join("-run-evenkeel").join("web.sock");
        let found: BTreeSet<String> = (0..10)
            .map(|_| {
                let mut client = RawClient::connect_unix(&web).unwrap();
                server(&client.get("/ping").unwrap()).to_owned()
            })
            .collect();
        assert_eq!(found.len(), 2);
        drop(origins);
    });
}

#[test]
fn logs_as_json() {
    test(|| {
        let (recipe, _origin) = Recipe::of("Logs as JSON").with_origins(["10.0.0.1:8080"]);
        let site = recipe.start();
        assert_eq!(site.ask("/ping", "").text(), "pong\n");
        assert_eq!(site.ask("/healthz", "").status, 200);
        let log = site.folder.join("-var-log-evenkeel").join("access.log");
        let lines = || fs::read_to_string(&log).unwrap_or_default();
        until("a line is there", || lines().ends_with('\n'));
        let line: Value = serde_json::from_str(&lines()).unwrap();
        assert_eq!(line["target"], "/healthz");
        let first: Value =
            serde_json::from_str(site.proxy.stderr().lines().next().unwrap()).unwrap();
        assert_eq!(first["level"], "info");
    });
}

#[test]
fn a_status_page_with_a_token_and_metrics() {
    test(|| {
        let token = "6f1d0c5b9a3e4f7788aa0b1c2d3e4f50";
        let names = ["10.0.0.1:8080", "10.0.0.2:8080"];
        let (recipe, origins) = Recipe::of("A status page with a token").with_origins(names);
        let site = recipe.with_file("status-token", token).start();
        let mut page = RawClient::connect(site.proxy.status_address()).unwrap();
        let order = format!(
            "{{\"upstream\": \"app\", \"endpoint\": \"{}\", \"admin\": \"drain\"}}",
            origins[0].address
        );
        let answer = page.ask(format!(
            "POST /endpoints HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{order}",
            order.len()
        ));
        assert_eq!(answer.unwrap().status, 200);
        assert_eq!(distinct(site.servers(5, "")), [names[1].to_owned()].into());

        let (recipe, _origin) = Recipe::of("Prometheus").with_origins(["10.0.0.1:8080"]);
        let site = recipe.start();
        site.ask("/ping", "");
        let mut metrics = RawClient::connect(site.proxy.status_address()).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
        until("the request is counted", || {
            let text = metrics.ask(request).unwrap().text();
            text.contains("evenkeel_upstream_requests_total{upstream=\"app\"} 1")
        });
    });
}

/// The page is reached by a route once it listens on a Unix socket, and
/// endpoints can be changed from there.
#[test]
fn the_status_page_behind_a_route() {
    test(|| {
        let recipe = Recipe::of_page("docs/status-page.md", "Who may look");
        let site = recipe.with("name = \"web\"\n", "").start();
        let get = |host: &str, path: &str| site.ask_host(host, path, "");
        assert!(get("status.example.com", "/").text().contains("<html"));
        assert_eq!(get("status.example.com", "/status.json").status, 200);
        assert_eq!(get("www.example.com", "/").status, 404);
    });
}

#[test]
fn request_ids() {
    test(|| {
        let (recipe, _origin) =
            Recipe::of("Request ids and traces").with_origins(["10.0.0.1:8080"]);
        let response = recipe.start().ask("/headers", "X-Request-ID: theirs\r\n");
        let id = response.field("x-request-id").unwrap();
        assert_ne!(id, "theirs");
        let text = response.text();
        assert!(text.contains(&format!("X-Request-ID: {id}")), "{text}");
        assert!(text.to_lowercase().contains("traceparent: 00-"), "{text}");
    });
}

#[test]
fn behind_another_proxy() {
    test(|| {
        let fields = "X-Forwarded-For: 198.51.100.7\r\nX-Forwarded-Proto: https\r\n\
                      X-Real-IP: 203.0.113.9\r\n";
        for (trusted, status) in [("127.0.0.0/8", 200), ("10.0.0.0/8", 308)] {
            let recipe = Recipe::of("Behind another proxy").with("\"127.0.0.1\", \"::1\", ", "");
            let recipe = recipe.with("10.0.0.0/8", trusted);
            let (recipe, _origin) = recipe.with_origins(["10.0.1.1:8080"]);
            let site = recipe.start();
            let response = site.ask("/headers", fields);
            assert_eq!(response.status, status, "{trusted}: {response:?}");
            if status == 200 {
                let text = response.text();
                for field in [
                    "X-Forwarded-For: 198.51.100.7",
                    "X-Forwarded-Proto: https",
                    "X-Real-IP: 198.51.100.7",
                ] {
                    assert!(text.contains(field), "{field}: {text}");
                }
            }
        }
    });
}

/// The lines of nginx on the page let no word of a client through.
#[test]
fn behind_nginx_with_its_lines_a_client_can_claim_nothing() {
    test(|| {
        let recipe = Recipe::of("Behind another proxy");
        let (recipe, _origin) = recipe.with_origins(["10.0.1.1:8080"]);
        // Clients of plain HTTP are served too.
        let site = recipe.with("scheme = \"http\"", "path = \"/none\"").start();
        let page = repository().join("docs/recipes.md");
        let snippets = snippets::of_page(&page).into_iter();
        let lines = snippets
            .map(|it| it.text)
            .find(|it| it.starts_with("# nginx"));
        let address = site.proxy.address("listener-1").to_owned();
        let lines = lines.unwrap();
        let location = format!("location / {{ {lines}\nproxy_pass http://{address}; }}");
        let _nginx = start_nginx(&site.folder, "", &location);
        let socket = site.folder.join("nginx.sock");
        let names = [
            "X-Forwarded-For",
            "X-Forwarded-Proto",
            "X-Forwarded-Host",
            "X-Forwarded-Port",
            "X-Forwarded-Prefix",
            "Forwarded",
            "X-Real-IP",
            "True-Client-IP",
            "X-Original-URL",
            "X-Rewrite-URL",
            "X_Forwarded_Host",
        ];
        let fields: String = names.iter().map(|it| format!("{it}: evil\r\n")).collect();
        let request = format!("GET /headers HTTP/1.1\r\nHost: www.example\r\n{fields}\r\n");
        let mut client = RawClient::connect_unix(&socket).unwrap();
        let text = client.ask(request).unwrap().text();
        assert!(text.contains("X-Forwarded-Host: www.example"), "{text}");
        assert!(!text.contains("evil"), "{text}");
    });
}

#[test]
fn a_maintenance_page() {
    test(|| {
        for (office, status) in [("192.0.2.0/24", 503), ("127.0.0.0/8", 200)] {
            let recipe = Recipe::of("A maintenance page").with("192.0.2.0/24", office);
            let (recipe, _origin) = recipe.with_origins(["10.0.0.1:8080"]);
            let site = recipe.with_file("sorry.html", "<h1>Back soon</h1>").start();
            let response = site.ask("/ping", "");
            assert_eq!(response.status, status, "{response:?}");
            if status == 503 {
                assert_eq!(response.text(), "<h1>Back soon</h1>");
                assert_eq!(response.field("retry-after"), Some("120"));
            }
        }
    });
}
