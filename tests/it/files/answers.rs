//! Answers to requests for files: bytes, fields, compressed copies.

use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::process::run;

use super::{FileConfig, FileSite, MODIFIED, ask, bytes_of};
use crate::setup::{assert_logged, assert_refused, get, test};
use crate::words;

#[test]
fn a_file_comes_with_its_fields() {
    test(|| {
        let site = FileSite::with(&["a/hello.txt"]);
        let mut client = site.proxy.client();
        // From the third time on it is kept open.
        for _ in 0..4 {
            let response = client.get("/a/hello.txt?query=ignored").unwrap();
            assert_eq!(response.status, 200, "{response:?}");
            assert_eq!(response.text(), "a/hello.txt");
            for (name, value) in [
                ("Content-Type", "text/plain; charset=utf-8"),
                ("Content-Length", "11"),
                ("Last-Modified", MODIFIED),
                ("Accept-Ranges", "bytes"),
                ("Server", "evenkeel"),
            ] {
                assert_eq!(response.field(name), Some(value), "{response:?}");
            }
            let tag = response.field("ETag").unwrap();
            assert!(
                tag.starts_with('"') && tag.ends_with('"') && tag.len() > 2,
                "{tag}"
            );
            assert!(response.field("Date").is_some());
            for name in ["Cache-Control", "Vary", "Content-Encoding", "Connection"] {
                assert_eq!(response.field(name), None, "{response:?}");
            }
            let head = ask(&mut client, "HEAD", "/a/hello.txt", "");
            let without_date = |fields: &[(String, String)]| {
                let mut fields = fields.to_vec();
                fields.retain(|(name, _)| name != "Date");
                fields
            };
            assert_eq!(head.status, 200);
            assert_eq!(without_date(&head.fields), without_date(&response.fields));
        }
    });
}

#[test]
fn what_is_neither_get_nor_head_is_refused_with_what_is_allowed() {
    test(|| {
        let site = FileSite::with(&["a"]);
        let mut client = site.proxy.client();
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "X"] {
            for path in ["/a", "/absent"] {
                let response = ask(&mut client, method, path, "");
                assert_refused(&response, words::NO_METHOD);
                assert_eq!(response.field("Allow"), Some("GET, HEAD"), "{method}");
            }
        }
        assert_logged(&site.proxy, words::NO_METHOD);
        let upload = "PUT /b HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
        assert_refused(&client.ask(upload).unwrap(), words::NO_METHOD);
        let response = ask(&mut client, "GET", "/a", "");
        assert_eq!(response.status, 200, "its body was read");
        assert!(!site.folder.join("b").exists());
    });
}

#[test]
fn a_request_with_a_body_is_answered_and_its_connection_kept() {
    test(|| {
        let site = FileSite::with(&["a"]);
        let mut client = site.proxy.client();
        for (framing, body) in [
            ("Content-Length: 5", "hello"),
            ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"),
        ] {
            let response = ask(&mut client, "GET", "/a", &format!("{framing}\r\n"));
            assert_eq!((response.status, response.text()), (200, "a".to_owned()));
            assert_eq!(response.field("Connection"), None);
            client.send(body).unwrap();
        }
    });
}

#[test]
fn files_of_all_lengths_arrive_bit_for_bit() {
    const KIB: usize = 1024;
    test(|| {
        let site = FileConfig::default().start();
        let lens = [
            0,
            1,
            511,
            4 * KIB - 300,
            4 * KIB,
            16 * KIB,
            16 * KIB + 1,
            64 * KIB - 1,
            64 * KIB,
            64 * KIB + 1,
            256 * KIB,
            256 * KIB + 1,
            1000 * KIB,
        ];
        for len in lens {
            site.write(&format!("{len}.bin"), bytes_of(len));
        }
        let mut client = site.proxy.client();
        for round in 0..4 {
            for len in lens {
                let path = format!("/{len}.bin");
                let response = client.get(&path).unwrap();
                assert_eq!(response.status, 200);
                assert!(response.body == bytes_of(len), "{len}, round {round}");
                let head = ask(&mut client, "HEAD", &path, "");
                assert_eq!(head.field("Content-Length"), Some(&*len.to_string()));
            }
        }
        // All of them at once.
        let mut client = site.proxy.client();
        let paths = lens.map(|len| get(&format!("/{len}.bin")));
        client.send(paths.concat()).unwrap();
        for len in lens {
            let response = client.read_response("GET").unwrap();
            assert!(response.body == bytes_of(len), "{len}");
        }
    });
}

#[test]
fn old_clients_get_files_and_the_end_of_the_connection() {
    test(|| {
        let site = FileSite::with(&["a"]);
        let mut client = site.proxy.client();
        let response = client.ask("GET /a HTTP/1.0\r\n\r\n").unwrap();
        assert_eq!((response.status, response.text()), (200, "a".to_owned()));
        assert_eq!(response.field("Content-Length"), Some("1"));
        assert!(client.is_closed());
        let close = site.get_with("/a", "Connection: close\r\n");
        assert_eq!(close.field("Connection"), Some("close"));
    });
}

#[test]
fn types_go_by_the_ending_and_can_be_set() {
    test(|| {
        let site = FileConfig {
            files: "types = { jxl = \"image/jxl\", txt = \"text/x-own\" }\n\
                    default_type = \"application/x-unknown\"\n",
            ..FileConfig::default()
        }
        .start();
        for (name, content_type) in [
            ("a.html", "text/html; charset=utf-8"),
            ("a.css", "text/css; charset=utf-8"),
            ("a.js", "text/javascript; charset=utf-8"),
            ("a.json", "application/json"),
            ("a.svg", "image/svg+xml"),
            ("a.png", "image/png"),
            ("a.JPG", "image/jpeg"),
            ("a.webp", "image/webp"),
            ("a.woff2", "font/woff2"),
            ("a.otf", "font/otf"),
            ("a.ts", "video/mp2t"),
            ("a.xml", "text/xml"),
            ("a.wasm", "application/wasm"),
            ("a.mp4", "video/mp4"),
            ("a.mjs", "text/javascript; charset=utf-8"),
            ("a.cjs", "text/javascript; charset=utf-8"),
            ("a.m4a", "audio/mp4"),
            ("a.m4s", "video/iso.segment"),
            ("a.wgsl", "text/wgsl; charset=utf-8"),
            ("a.avif", "image/avif"),
            ("a.webmanifest", "application/manifest+json"),
            ("a.js.map", "application/json"),
            ("favicon.ico", "image/vnd.microsoft.icon"),
            ("a.vcf", "text/vcard; charset=utf-8"),
            ("a.yaml", "application/yaml"),
            ("a.toml", "application/toml"),
            ("a.stl", "model/stl"),
            ("a.tar.gz", "application/gzip"),
            ("a.jxl", "image/jxl"),
            ("a.TXT", "text/x-own"),
            ("b.d/a", "application/x-unknown"),
            ("a.no-such-ending", "application/x-unknown"),
            ("png", "application/x-unknown"),
            ("a.", "application/x-unknown"),
        ] {
            site.write(name, "x");
            let response = site.get(&format!("/{name}"));
            assert_eq!(
                response.field("Content-Type"),
                Some(content_type),
                "{name}: {response:?}"
            );
        }
    });
}

#[test]
fn the_first_pattern_that_matches_says_how_long_a_file_is_kept() {
    test(|| {
        let site = FileConfig {
            files: "[route.files.cache_control]\n\
                    \"/assets/*.js\" = \"no-transform\"\n\
                    \"/assets/*\" = \"public, max-age=31536000, immutable\"\n\
                    \"**.html\" = \"no-cache\"\n",
            ..FileConfig::default()
        }
        .start();
        for (name, path, value) in [
            ("assets/a.js", "/assets/a.js", Some("no-transform")),
            (
                "assets/a.css",
                "/assets/a.css",
                Some("public, max-age=31536000, immutable"),
            ),
            ("b/c/index.html", "/b/c/", Some("no-cache")),
            ("b/a.js", "/b/a.js", None),
        ] {
            site.write(name, "x");
            let response = site.get(path);
            assert_eq!(response.field("Cache-Control"), value, "{path}");
            let tag = response.field("ETag").unwrap();
            let fields = format!("If-None-Match: {tag}\r\n");
            let response = site.get_with(path, &fields);
            assert_eq!(response.status, 304);
            assert_eq!(response.field("Cache-Control"), value, "{path}: 304");
        }
    });
}

#[test]
fn the_compressed_copy_is_sent_that_the_client_likes_best() {
    test(|| {
        let site = FileSite::serving("precompressed = [\"br\", \"gzip\"]");
        for name in ["a.css", "a.css.gz", "a.css.br", "b.css", "b.css.gz"] {
            site.write(name, name);
        }
        site.write("c.css", "c.css");
        for (path, accepted, sent, coding) in [
            ("/a.css", "", "a.css", None),
            ("/a.css", "gzip", "a.css.gz", Some("gzip")),
            ("/a.css", "br", "a.css.br", Some("br")),
            ("/a.css", "gzip, deflate, br, zstd", "a.css.br", Some("br")),
            ("/a.css", "gzip;q=1, br;q=0.9", "a.css.gz", Some("gzip")),
            ("/a.css", "gzip;q=0.5, br;q=0", "a.css.gz", Some("gzip")),
            ("/a.css", "identity, gzip;q=0.5", "a.css", None),
            ("/a.css", "*", "a.css.br", Some("br")),
            ("/a.css", "zstd", "a.css", None),
            ("/b.css", "br, gzip", "b.css.gz", Some("gzip")),
            ("/b.css", "br", "b.css", None),
            ("/c.css", "br, gzip", "c.css", None),
        ] {
            for round in 0..3 {
                let fields = match accepted {
                    "" => String::new(),
                    accepted => format!("Accept-Encoding: {accepted}\r\n"),
                };
                let response = site.get_with(path, &fields);
                let case = format!("{path} {accepted:?} round {round}: {response:?}");
                assert_eq!(response.text(), sent, "{case}");
                assert_eq!(response.field("Content-Encoding"), coding, "{case}");
                let content_type = response.field("Content-Type");
                assert_eq!(content_type, Some("text/css; charset=utf-8"), "{case}");
                assert_eq!(response.field("Vary"), Some("Accept-Encoding"), "{case}");
            }
        }
        // By its own name it is a file like others.
        let plain = site.get_with("/a.css.gz", "Accept-Encoding: gzip\r\n");
        assert_eq!(plain.text(), "a.css.gz");
        assert_eq!(plain.field("Content-Encoding"), None);
        assert_eq!(plain.field("Content-Type"), Some("application/gzip"));
    });
}

#[test]
fn a_compressed_copy_that_may_not_be_read_is_passed_over() {
    test(|| {
        let site = FileSite::serving("precompressed = [\"br\", \"gzip\"]");
        site.write("a.css", "a");
        symlink("/etc/passwd", site.folder.join("a.css.gz")).unwrap();
        let accepted = "Accept-Encoding: gzip, br\r\n";
        let response = site.get_with("/a.css", accepted);
        assert_eq!((response.status, response.text()), (200, "a".to_owned()));
        assert_eq!(response.field("Content-Encoding"), None);
        site.write("a.css.br", "b");
        let response = site.get_with("/a.css", accepted);
        assert_eq!(response.field("Content-Encoding"), Some("br"));
    });
}

#[test]
fn codings_of_a_file_have_tags_of_their_own() {
    test(|| {
        let site = FileSite::serving("precompressed = [\"gzip\"]");
        site.write("a.css", "long enough");
        site.write("a.css.gz", "short");
        let tag = |fields: &str| {
            let response = site.get_with("/a.css", fields);
            response.field("ETag").unwrap().to_owned()
        };
        let (plain, compressed) = (tag(""), tag("Accept-Encoding: gzip\r\n"));
        assert_ne!(plain, compressed);
        let with = |tag: &str| {
            let fields = format!("Accept-Encoding: gzip\r\nIf-None-Match: {tag}\r\n");
            site.get_with("/a.css", &fields)
        };
        assert_eq!(with(&compressed).status, 304);
        assert_eq!(with(&compressed).field("Vary"), Some("Accept-Encoding"));
        assert_eq!(with(&plain).status, 200);
    });
}

#[test]
fn a_slow_client_does_not_hold_up_a_fast_one() {
    const LEN: usize = 50 << 20;
    test(|| {
        let site = FileSite::with(&["small"]);
        let bytes = bytes_of(LEN);
        site.write("large.bin", &bytes);
        let mut slow = site.proxy.client();
        slow.send(get("/large.bin")).unwrap();
        assert!(slow.read_head().unwrap().contains("200"));
        let response = site.get("/large.bin");
        assert!(response.body == bytes, "it came, but not as it is");
        assert_eq!(site.get("/small").text(), "small");
        let rest = slow.read_len(LEN).unwrap();
        assert!(rest == bytes, "it came, but not as it is");
    });
}

#[test]
fn a_client_that_leaves_is_noticed() {
    test(|| {
        let site = FileConfig::default().start();
        site.write("large.bin", bytes_of(20 << 20));
        let mut client = site.proxy.client();
        client.send(get("/large.bin")).unwrap();
        client.read_head().unwrap();
        client.reset();
        assert_logged(&site.proxy, words::CLIENT_GONE);
        until("the file is closed", || {
            let pid = site.proxy.pid();
            let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
            let targets = files.filter_map(|it| std::fs::read_link(it.ok()?.path()).ok());
            !targets.into_iter().any(|it| it.ends_with("large.bin"))
        });
    });
}

#[test]
fn curl_resumes_a_download() {
    test(|| {
        let site = FileConfig::default().start();
        let bytes = bytes_of(300_000);
        site.write("a.bin", &bytes);
        let part = site.folder.join("part");
        std::fs::write(&part, &bytes[..100_000]).unwrap();
        let curl = || {
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--show-error", "--fail", "-C", "-", "-o"])
                .arg(&part)
                .arg(site.proxy.url("/a.bin"));
            run(curl, Duration::from_secs(10)).unwrap()
        };
        let output = curl();
        assert!(output.status.success(), "{output:?}");
        assert!(std::fs::read(&part).unwrap() == bytes);
        until("only the rest was sent", || {
            let lines = site.proxy.access_log_json();
            let sent = lines.first().and_then(|line| line["bytes_out"].as_u64());
            sent.is_some_and(|sent| sent < 201_000)
        });
        // Nothing is missing any more: 416 is no failure then.
        curl();
        assert!(std::fs::read(&part).unwrap() == bytes);
    });
}
