//! Which file a path leads to, and which it never leads to.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::Command;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{ProxySetup, Response};

use super::{FileConfig, FileSite, ask};
use crate::setup::{assert_logged, assert_refused, origin, test};
use crate::words;

#[test]
fn a_folder_is_its_index_file() {
    test(|| {
        let site = FileSite::serving("index = [\"index.html\", \"index.txt\"]");
        site.write("index.txt", "root");
        site.write("both/index.txt", "second");
        site.write("both/index.html", "first");
        site.write("none/a", "a");
        std::fs::create_dir_all(site.folder.join("odd/index.html")).unwrap();
        for (path, status, text) in [
            ("/", 200, "root"),
            ("/?a=b", 200, "root"),
            ("/both/", 200, "first"),
            ("/both/.", 200, "first"),
            ("/both/x/..", 200, "first"),
            ("//both//", 200, "first"),
            ("/both/index.txt", 200, "second"),
            ("/none/", 404, ""),
            ("/odd/", 404, ""),
            ("/both/index.txt/", 404, ""),
            ("/both/index.txt/a", 404, ""),
        ] {
            let response = site.get(path);
            assert_eq!(response.status, status, "{path}: {response:?}");
            if status == 200 {
                assert_eq!(response.text(), text, "{path}");
            }
        }
        let html = site.get("/both/");
        assert_eq!(html.field("Content-Type"), Some("text/html; charset=utf-8"));
    });
}

#[test]
fn a_folder_without_slash_is_redirected_to_it() {
    test(|| {
        let site = FileSite::with(&["a/index.html", "a/b/index.html", "evil.example/index.html"]);
        let mut client = site.proxy.client();
        for (path, location) in [
            ("/a", "/a/"),
            ("/a/b", "/a/b/"),
            ("/a?q=1&r=%20", "/a/?q=1&r=%20"),
            ("/a/%62", "/a/%62/"),
            ("//a", "/a/"),
            ("//evil.example", "/evil.example/"),
            ("///evil.example?x", "/evil.example/?x"),
            ("/a/../evil.example", "/a/../evil.example/"),
        ] {
            let response = client.get(path).unwrap();
            assert_eq!(response.status, 301, "{path}: {response:?}");
            assert_eq!(response.field("Location"), Some(location), "{path}");
        }
        let absolute = client.ask("GET http://evil.example/a HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(absolute.unwrap().field("Location"), Some("/a/"));
    });
}

#[test]
fn no_redirect_leads_to_another_host() {
    test(|| {
        let site = FileSite::with(&["evil.example/index.html"]);
        std::fs::create_dir_all(site.folder.join("\\evil.example")).unwrap();
        for path in [
            "/\\evil.example",
            "/%5Cevil.example",
            "/./\\evil.example",
            "/.//evil.example",
            "/a/..//evil.example",
            "/%2e/evil.example",
            "/%2e//evil.example",
        ] {
            let mut client = site.proxy.client();
            let response = client.get(path).unwrap();
            let Some(location) = response.field("Location") else {
                assert_ne!(response.status, 301, "{path}");
                continue;
            };
            // As browsers do, which take a backslash for a slash.
            let location = location.replace('\\', "/");
            let leads_away = location.starts_with("//") || !location.starts_with('/');
            assert!(!leads_away, "{path}: {location}");
        }
    });
}

#[test]
fn the_front_of_a_path_is_stripped_where_it_is_one() {
    test(|| {
        let site = FileSite::serving("strip = \"/img/x\"");
        site.write("a/b.txt", "b");
        site.write("index.html", "index");
        site.write("c/index.html", "c");
        for (path, status) in [
            ("/img/x/a/b.txt", 200),
            ("/img//x/./a/b.txt", 200),
            ("/img/x/", 200),
            ("/img/x", 301),
            ("/img/x/a", 404),
            ("/img/x/c", 301),
            ("/a/b.txt", 404),
            ("/img/xa/b.txt", 404),
            ("/img/", 404),
            ("/img/x/../x/a/b.txt", 200),
            ("/img/x/img/x/a/b.txt", 404),
        ] {
            assert_eq!(site.get(path).status, status, "{path}");
        }
        let redirected = site.get("/img/x?q");
        assert_eq!(redirected.field("Location"), Some("/img/x/?q"));
    });
}

#[test]
fn what_is_tried_is_tried_in_order() {
    test(|| {
        let site = FileSite::serving(
            "try = [\"$path\", \"$path.html\", \"/other$path\", \"/index.html\"]",
        );
        for name in [
            "index.html",
            "a",
            "a.html",
            "b.html",
            "other/b",
            "other/c",
            "d/e",
        ] {
            site.write(name, name);
        }
        for (path, text) in [
            ("/a", "a"),
            ("/b", "b.html"),
            ("/c", "other/c"),
            ("/d/e", "d/e"),
            ("/d/", "index.html"),
            ("/e/f/g", "index.html"),
            ("/", "index.html"),
        ] {
            let response = site.get(path);
            assert_eq!(response.status, 200, "{path}: {response:?}");
            assert_eq!(response.text(), text, "{path}");
        }
        let app = site.get("/no/such/page");
        assert_eq!(app.field("Content-Type"), Some("text/html; charset=utf-8"));
    });
}

#[test]
fn a_folder_that_is_tried_is_answered_with_its_index() {
    test(|| {
        let site = FileSite::serving("try = [\"$path\", \"/app\"]");
        site.write("app/index.html", "app");
        site.write("folder/a", "a");
        site.write("other/index.html", "other");
        let long = format!("/{}", "x".repeat(300));
        for path in [
            "/", "/x", "/x/", "/x/y", "/folder/", "/folder", "/a%2Fb", &long,
        ] {
            let response = site.get(path);
            assert_eq!(response.status, 200, "{path}: {response:?}");
            assert_eq!(response.text(), "app", "{path}");
        }
        let redirected = site.get("/other");
        assert_eq!(redirected.field("Location"), Some("/other/"));
        assert_refused(&site.get("/%2e%2e/x"), words::BAD_PATH);
    });
}

#[test]
fn what_is_no_answer_with_the_file_may_not_be_kept_as_one() {
    test(|| {
        let site = FileSite::serving(
            "not_found = \"/404.html\"\ncache_control = { \"**\" = \"max-age=60\" }",
        );
        site.write("a", "0123456789");
        site.write("404.html", "nothing here");
        for (path, field, status, kept) in [
            ("/a", "", 200, Some("max-age=60")),
            ("/a", "Range: bytes=1-2\r\n", 206, Some("max-age=60")),
            ("/a", "If-None-Match: *\r\n", 304, Some("max-age=60")),
            ("/a", "Range: bytes=10-\r\n", 416, None),
            ("/a", "If-Match: \"x\"\r\n", 412, None),
            ("/b", "", 404, None),
        ] {
            let response = ask(&mut site.proxy.client(), "GET", path, field);
            assert_eq!(response.status, status, "{field}: {response:?}");
            assert_eq!(response.field("Cache-Control"), kept, "{response:?}");
        }
    });
}

/// Files before the ordinary origin.
fn before_origin(origin: &str) -> FileSite {
    let tables = format!("[upstream.app]\nendpoints = [{origin:?}]\n");
    FileConfig {
        files: "upstream = \"app\"",
        tables: &tables,
        ..FileConfig::default()
    }
    .start()
}

#[test]
fn the_upstream_takes_what_no_file_is_found_for() {
    test(|| {
        let origin = origin();
        let site = before_origin(&origin.address.to_string());
        site.write("page", "file");
        site.write("folder/a", "a");
        let mut client = site.proxy.client();
        for (path, text) in [
            ("/page", "file"),
            ("/ping", "pong"),
            ("/3?q=1", "abc"),
            ("/page", "file"),
        ] {
            let response = client.get(path).unwrap();
            assert_eq!(
                (response.status, response.text()),
                (200, text.to_owned()),
                "{path}"
            );
        }
        // A malformed path is malformed for both.
        assert_eq!(client.get("/a%00b").unwrap().status, 400);
        let chunked = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                       5\r\nhello\r\n0\r\n\r\n";
        let echoed = client.ask(chunked).unwrap();
        assert_eq!((echoed.status, echoed.text()), (200, "hello".to_owned()));
    });
}

#[test]
fn a_page_of_ones_own_says_that_there_is_no_file() {
    test(|| {
        let site = FileSite::serving("not_found = \"/errors/404.html\"");
        let without = site.get("/absent");
        assert_refused(&without, words::NO_FILE);
        site.write("errors/404.html", "gone fishing");
        let mut client = site.proxy.client();
        for fields in ["", "Range: bytes=0-1\r\n", "If-None-Match: *\r\n"] {
            let response = ask(&mut client, "GET", "/absent", fields);
            assert_eq!(response.status, 404, "{fields}");
            assert_eq!(response.text(), "gone fishing");
            assert_eq!(
                response.field("Content-Type"),
                Some("text/html; charset=utf-8")
            );
        }
        assert_logged(&site.proxy, words::NO_FILE);
        let lines = site.proxy.access_log_json();
        assert!(
            lines.iter().all(|line| line["end"] == "no-file"),
            "{lines:?}"
        );
        let head = ask(&mut client, "HEAD", "/absent", "");
        assert_eq!(
            (head.status, head.field("Content-Length")),
            (404, Some("12"))
        );
        assert_eq!(client.get("/errors/404.html").unwrap().status, 200);
    });
}

#[test]
fn names_that_begin_with_a_dot_are_not_there() {
    const NAMES: [&str; 3] = [".env", ".git/config", "a/.b/c"];
    test(|| {
        let site = FileSite::with(&NAMES);
        let shown = FileSite::serving("hidden = true");
        for name in NAMES {
            shown.write(name, name);
            for path in [format!("/{name}"), format!("/{}", name.replace('.', "%2e"))] {
                assert_refused(&site.get(&path), words::NO_FILE);
                assert_eq!(shown.get(&path).text(), name);
            }
        }
    });
}

#[test]
fn what_is_well_known_is_there_but_for_what_is_hidden_in_it() {
    test(|| {
        let site = FileSite::with(&[
            ".well-known/security.txt",
            ".well-known/.git/config",
            "a/.well-known/b",
        ]);
        let known = site.get("/.well-known/security.txt");
        assert_eq!(
            (known.status, known.text()),
            (200, ".well-known/security.txt".into())
        );
        for path in [
            "/.well-known/.git/config",
            "/a/.well-known/b",
            "/.well-known",
        ] {
            assert_refused(&site.get(path), words::NO_FILE);
        }
    });
}

#[test]
fn no_spelling_of_a_path_leaves_the_folder() {
    test(|| {
        let site = FileSite::with(&["root/a", "secret"]);
        let inner = FileConfig::default();
        let text = inner.text(site.folder.join("root").to_str().unwrap());
        let proxy = evenkeel_testkit::Proxy::start(crate::setup::program(), &text).unwrap();
        for path in [
            "/../secret",
            "/a/../../secret",
            "/./../secret",
            "/%2e%2e/secret",
            "/%2E%2E/secret",
            "/.%2e/secret",
            "/a/%2e%2e/%2e%2e/secret",
            "//../secret",
            "/..",
            "/%2e%2e",
            "/..%2fsecret",
            "/..%2Fsecret",
            "/%2e%2e%2fsecret",
            "/a%2f..%2f..%2fsecret",
            "/a%00",
            "/%00",
            "/a%",
            "/a%2",
            "/a%zz",
        ] {
            assert_refused(&proxy.client().get(path).unwrap(), words::BAD_PATH);
        }
        // These are names, if odd ones.
        for path in [
            "/..%5csecret",
            "/..\\secret",
            "/%252e%252e/secret",
            "/..;/secret",
            "/..%c0%afsecret",
            "/%c0%ae%c0%ae/secret",
            "/...",
            "/a/..secret",
        ] {
            assert_refused(&proxy.client().get(path).unwrap(), words::NO_FILE);
        }
        assert_eq!(proxy.client().get("/b/../a").unwrap().text(), "root/a");
        assert_logged(&proxy, words::BAD_PATH);
    });
}

#[test]
fn odd_names_are_files_like_others() {
    test(|| {
        let site = FileConfig::default().start();
        let longest = "x".repeat(255);
        for (name, path) in [
            ("a b", "/a%20b"),
            ("a+b", "/a+b"),
            ("\u{e9}t\u{e9}.txt", "/%C3%A9t%C3%A9.txt"),
            ("100%", "/100%25"),
            ("q?", "/q%3F"),
            ("a\\b", "/a%5Cb"),
            ("line\nfeed", "/line%0Afeed"),
            ("a;b=c", "/a;b=c"),
            (&longest, &*format!("/{longest}")),
        ] {
            site.write(name, name);
            let response = site.get(path);
            assert_eq!(
                (response.status, response.text()),
                (200, name.to_owned()),
                "{path}"
            );
        }
        let name = "x".repeat(256);
        let folders = "d/".repeat(2_500);
        for path in [
            format!("/{name}"),
            format!("/a/{name}/b"),
            format!("/{folders}"),
        ] {
            let response = site.get(&path);
            let is_refused = matches!(response.status, 400 | 404 | 414);
            assert!(is_refused, "{}: {response:?}", path.len());
        }
    });
}

#[test]
fn links_are_followed_within_the_folder_and_never_out_of_it() {
    test(|| {
        let site = FileSite::with(&["a/real", "secret"]);
        let root = site.folder.join("root");
        let link = |target: &str, name: &str| symlink(target, root.join(name)).unwrap();
        site.write("root/a/real", "real");
        link("a/real", "within");
        link("./a/../a/real", "winding");
        link("a", "folder");
        link("../secret", "relative");
        link("/etc/passwd", "absolute");
        link("../root/a/real", "out-and-in");
        link("..", "parent");
        link("/proc/self/root", "proc");
        link("round-2", "round-1");
        link("round-1", "round-2");
        link("nowhere", "dangling");
        let text = FileConfig::default().text(root.to_str().unwrap());
        let proxy = evenkeel_testkit::Proxy::start(crate::setup::program(), &text).unwrap();
        for _ in 0..3 {
            for (path, status) in [
                ("/within", 200),
                ("/winding", 200),
                ("/folder/real", 200),
                ("/folder", 404),
                ("/relative", 403),
                ("/absolute", 403),
                ("/out-and-in", 403),
                ("/parent", 403),
                ("/parent/secret", 403),
                ("/proc/etc/passwd", 403),
                ("/round-1", 403),
                ("/dangling", 404),
            ] {
                let response = proxy.client().get(path).unwrap();
                assert_eq!(response.status, status, "{path}: {response:?}");
                match status {
                    200 => assert_eq!(response.text(), "real", "{path}"),
                    403 => assert_refused(&response, words::FILE_FORBIDDEN),
                    _ => {}
                }
            }
        }
        assert_logged(&proxy, words::FILE_FORBIDDEN);
        until("the reason is in the event log", || {
            proxy
                .stderr()
                .contains("/root/relative: a link leads out of the folder")
        });
    });
}

#[test]
fn what_is_no_file_is_not_opened() {
    test(|| {
        let site = FileSite::with(&["a"]);
        let path = site.folder.join("fifo");
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let _socket = UnixListener::bind(site.folder.join("socket")).unwrap();
        for _ in 0..3 {
            for path in ["/fifo", "/socket"] {
                assert_refused(&site.get(path), words::FILE_FORBIDDEN);
            }
        }
        // As root, the test can create a device there too.
        let zero = site.folder.join("zero");
        let made = Command::new("mknod")
            .arg(&zero)
            .args(["c", "1", "5"])
            .output();
        if made.unwrap().status.success() {
            assert_refused(&site.get("/zero"), words::FILE_FORBIDDEN);
        }
        assert_eq!(site.get("/a").status, 200);
    });
}

#[test]
fn what_may_not_be_read_is_refused() {
    test(|| {
        // Root may read everything, so the program runs without root's rights.
        let mut setup = ProxySetup::default();
        if rustix::process::getuid().is_root() {
            setup.through = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
                .map(str::to_owned)
                .to_vec();
        }
        let site = FileConfig::default().start_with(&setup);
        let mode = |path: &std::path::Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let file = site.write("file", "file");
        let folder = site.folder.join("folder");
        site.write("folder/a", "a");
        mode(&file, 0o000);
        mode(&folder, 0o600);
        let ask = |path: &str| -> Response { site.get(path) };
        for _ in 0..3 {
            assert_refused(&ask("/file"), words::FILE_FORBIDDEN);
            assert_refused(&ask("/folder/a"), words::FILE_FORBIDDEN);
        }
        // A folder that can't be listed may still have readable files.
        mode(&file, 0o400);
        mode(&folder, 0o100);
        assert_eq!(ask("/file").text(), "file");
        assert_eq!(ask("/folder/a").text(), "a");
        mode(&folder, 0o700);
    });
}
