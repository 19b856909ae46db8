//! Files that are compressed when they are asked for, and lists of folders.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use evenkeel_testkit::deadline::{STEP, until};
use evenkeel_testkit::{Proxy, RawClient, Response};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketType, socket};

use crate::setup::{ask_status, assert_logged, assert_refused, figures, program, test};
use crate::words;

/// The program with a folder of these files, and further keys of the route.
fn site(files: &[(&str, &[u8])], keys: &str) -> (Proxy, PathBuf) {
    let config = format!(
        "[server]\nworkers = 1\n[access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\n\
         [status]\nbind = \"127.0.0.1:0\"\n\
         [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\
         [[route]]\nfiles = {{ root = \"$DIR/root\", {keys} }}\n"
    );
    let proxy = Proxy::start(program(), &config).unwrap();
    let root = proxy.path("root");
    std::fs::create_dir_all(&root).unwrap();
    for (name, content) in files {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    (proxy, root)
}

fn ask(client: &mut RawClient, method: &str, path: &str, fields: &str) -> Response {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: test.example\r\n{fields}\r\n");
    client.send(request).unwrap();
    client.read_response(method).unwrap()
}

fn text(len: usize) -> Vec<u8> {
    let words = "many small files, each of them asked for often;\n".bytes();
    words.cycle().take(len).collect()
}

fn noise(len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(11);
    (0..len).map(|_| random.u8(..)).collect()
}

/// The body without its coding.
fn expanded(response: &Response) -> Vec<u8> {
    let mut out = Vec::new();
    let body = response.body.as_slice();
    let read = match response.field("content-encoding") {
        Some("gzip") => flate2::read::GzDecoder::new(body).read_to_end(&mut out),
        Some("br") => brotli::Decompressor::new(body, 4096).read_to_end(&mut out),
        Some("zstd") => zstd::stream::read::Decoder::new(body)
            .unwrap()
            .read_to_end(&mut out),
        coding => panic!("coding {coding:?} of {response:?}"),
    };
    read.unwrap();
    out
}

#[test]
fn to_compress_takes_nothing_of_the_disk() {
    test(|| {
        let (proxy, root) = site(&[], "compress = true");
        let mut client = proxy.client();
        assert_eq!(ask(&mut client, "GET", "/absent", "").status, 404);
        let reads = || {
            let metrics = ask_status(&proxy, "/metrics", "").text();
            let mut lines = metrics.lines();
            let line = lines.find(|line| line.starts_with("evenkeel_disk_reads_total{"));
            line.unwrap().rsplit_once(' ').unwrap().1.to_owned()
        };
        let before = reads();
        for number in 0..5 {
            std::fs::write(root.join(format!("{number}.css")), text(100_000)).unwrap();
            let path = format!("/{number}.css");
            let response = ask(&mut client, "GET", &path, "Accept-Encoding: br\r\n");
            assert_eq!(expanded(&response), text(100_000));
        }
        assert_eq!(reads(), before);
    });
}

#[test]
fn files_are_compressed_as_the_client_likes_it() {
    test(|| {
        let long = text(700_000);
        let (proxy, _) = site(&[("a.css", &long)], "compress = true");
        let mut client = proxy.client();
        let plain = ask(&mut client, "GET", "/a.css", "");
        assert_eq!(plain.field("content-encoding"), None);
        assert_eq!(plain.field("vary"), Some("Accept-Encoding"));
        assert_eq!(plain.body, long);
        let mut tags = vec![plain.field("etag").unwrap().to_owned()];
        for (accepted, coding) in [
            ("gzip", "gzip"),
            ("br", "br"),
            ("gzip, deflate, br, zstd", "zstd"),
            ("gzip;q=1, br;q=0.5", "gzip"),
        ] {
            let fields = format!("Accept-Encoding: {accepted}\r\n");
            for _ in 0..2 {
                let response = ask(&mut client, "GET", "/a.css", &fields);
                assert_eq!(response.status, 200, "{accepted}");
                assert_eq!(response.field("content-encoding"), Some(coding));
                assert_eq!(response.field("vary"), Some("Accept-Encoding"));
                assert_eq!(response.field("accept-ranges"), None);
                assert_eq!(
                    response.field("content-type"),
                    Some("text/css; charset=utf-8")
                );
                let len = response.body.len().to_string();
                assert_eq!(response.field("content-length"), Some(len.as_str()));
                assert!(response.body.len() < long.len() / 20, "{accepted}");
                assert_eq!(expanded(&response), long, "{accepted}");
                tags.push(response.field("etag").unwrap().to_owned());
            }
        }
        tags.sort();
        tags.dedup();
        assert_eq!(tags.len(), 4, "one for each coding: {tags:?}");
        for refused in ["identity", "gzip;q=0", "deflate"] {
            let fields = format!("Accept-Encoding: {refused}\r\n");
            let response = ask(&mut client, "GET", "/a.css", &fields);
            assert_eq!(response.field("content-encoding"), None, "{refused}");
        }
    });
}

#[test]
fn what_gains_nothing_is_sent_as_it_is() {
    test(|| {
        let (proxy, _) = site(
            &[
                ("noise.txt", &noise(5_000)),
                ("short.txt", &text(500)),
                ("long.txt", &text(20_000)),
                ("photo.jpg", &text(5_000)),
            ],
            "compress = { max = \"10KiB\" }",
        );
        let mut client = proxy.client();
        let accept = "Accept-Encoding: gzip, br, zstd\r\n";
        for (path, vary) in [
            ("/noise.txt", Some("Accept-Encoding")),
            ("/noise.txt", Some("Accept-Encoding")),
            ("/short.txt", None),
            ("/long.txt", None),
            ("/photo.jpg", None),
        ] {
            let response = ask(&mut client, "GET", path, accept);
            assert_eq!(response.status, 200, "{path}");
            assert_eq!(response.field("content-encoding"), None, "{path}");
            assert_eq!(response.field("vary"), vary, "{path}");
            assert_eq!(response.field("accept-ranges"), Some("bytes"), "{path}");
        }
    });
}

#[test]
fn conditions_are_those_of_the_compressed_file() {
    test(|| {
        let (proxy, root) = site(&[("a.json", &text(9_000))], "compress = true");
        let mut client = proxy.client();
        let accept = "Accept-Encoding: gzip\r\n";
        let plain = ask(&mut client, "GET", "/a.json", "");
        let get = ask(&mut client, "GET", "/a.json", accept);
        let head = ask(&mut client, "HEAD", "/a.json", accept);
        let without_date = |response: &Response| {
            let fields = response.fields.iter();
            let fields = fields.filter(|(name, _)| name != "Date" && name != "X-Request-ID");
            fields.cloned().collect::<Vec<_>>()
        };
        assert_eq!(without_date(&get), without_date(&head));
        assert!(head.body.is_empty());
        let (tag, plain_tag) = (get.field("etag").unwrap(), plain.field("etag").unwrap());
        for (condition, status) in [
            (format!("If-None-Match: {tag}"), 304),
            (format!("If-None-Match: {plain_tag}"), 200),
            (format!("If-Match: {tag}"), 200),
            (format!("If-Match: {plain_tag}"), 412),
            ("Range: bytes=0-9".to_owned(), 200),
            (format!("Range: bytes=0-9\r\nIf-Range: {tag}"), 200),
        ] {
            let fields = format!("{accept}{condition}\r\n");
            let response = ask(&mut client, "GET", "/a.json", &fields);
            assert_eq!(response.status, status, "{condition}");
            if status != 412 {
                assert_eq!(response.field("etag"), Some(tag), "{condition}");
                assert_eq!(response.field("vary"), Some("Accept-Encoding"));
            }
        }
        // A changed file is compressed again.
        let changed = text(20_000);
        std::fs::write(root.join("a.json"), &changed).unwrap();
        evenkeel_testkit::deadline::until("the new file", || {
            let response = ask(&mut client, "GET", "/a.json", accept);
            response.status == 200 && expanded(&response) == changed
        });
    });
}

#[test]
fn compressed_copies_beside_the_files_come_first() {
    test(|| {
        let content = text(9_000);
        let (proxy, _) = site(
            &[("a.css", &content), ("a.css.gz", b"a copy")],
            "compress = true, precompressed = [\"gzip\"]",
        );
        let mut client = proxy.client();
        let response = ask(
            &mut client,
            "GET",
            "/a.css",
            "Accept-Encoding: gzip, br\r\n",
        );
        assert_eq!(response.field("content-encoding"), Some("gzip"));
        assert_eq!(response.body, b"a copy");
        let response = ask(&mut client, "GET", "/a.css", "Accept-Encoding: br\r\n");
        assert_eq!(expanded(&response), content);
    });
}

/// A folder with names that need care.
fn folder() -> (Proxy, PathBuf) {
    let files: [(&str, &[u8]); 6] = [
        ("album/b & <i>.txt", b"one"),
        ("album/javascript:alert(1)", b"two"),
        ("album/100% \"sure\"?#.txt", b"three"),
        ("album/.hidden", b"four"),
        ("album/2007/may/photo.jpg", b"five"),
        ("with-index/index.html", b"the index"),
    ];
    let (proxy, root) = site(&files, "strip = \"/pub\", listing = true");
    std::os::unix::fs::symlink("/etc/hostname", root.join("album/out")).unwrap();
    std::os::unix::fs::symlink("../with-index", root.join("album/within")).unwrap();
    (proxy, root)
}

/// The targets of the links to entries, in the order of the page.
fn entries(page: &str) -> Vec<String> {
    let links = page.split("<td><a href=\"").skip(1);
    let links = links.filter_map(|after| after.split_once('"'));
    links.map(|(link, _)| link.to_owned()).collect()
}

#[test]
fn folders_are_listed_and_every_link_leads_to_its_file() {
    test(|| {
        let (proxy, root) = folder();
        let odd = std::ffi::OsStr::from_bytes(b"\xff.txt");
        std::fs::write(root.join("album").join(odd), "six").unwrap();
        let mut client = proxy.client();
        let page = ask(&mut client, "GET", "/pub/album/", "");
        assert_eq!(page.status, 200, "{page:?}");
        let html = page.text();
        let links = entries(&html);
        assert_eq!(
            links,
            [
                "2007/",
                "within/",
                "100%25%20%22sure%22%3F%23.txt",
                "b%20%26%20%3Ci%3E.txt",
                "javascript%3Aalert%281%29",
                "%FF.txt",
            ],
            "{html}"
        );
        for (link, body) in links.iter().skip(2).zip(["three", "one", "two", "six"]) {
            let response = ask(&mut client, "GET", &format!("/pub/album/{link}"), "");
            assert_eq!((response.status, response.text().as_str()), (200, body));
        }
        let within = ask(&mut client, "GET", "/pub/album/within/", "");
        assert_eq!(within.text(), "the index");
        for absent in [".hidden", "out", "<i>"] {
            assert!(
                !html.contains(&format!("<bdi>{absent}")),
                "{absent} in {html}"
            );
        }
        let deep = ask(&mut client, "GET", "/pub/album/2007/may/", "").text();
        for link in ["/pub/", "/pub/album/", "/pub/album/2007/"] {
            assert!(deep.contains(&format!("<a href=\"{link}\">")), "{link}");
        }
    });
}

#[test]
fn a_listing_has_the_fields_of_a_page_without_scripts() {
    test(|| {
        let (proxy, _) = folder();
        let mut client = proxy.client();
        let get = ask(&mut client, "GET", "/pub/album/", "");
        let head = ask(&mut client, "HEAD", "/pub/album/", "");
        for response in [&get, &head] {
            assert_eq!(response.status, 200);
            let field = |name| response.field(name).unwrap_or_default();
            assert_eq!(field("content-type"), "text/html; charset=utf-8");
            assert_eq!(field("cache-control"), "no-cache");
            assert_eq!(field("x-content-type-options"), "nosniff");
            assert_eq!(field("content-length"), get.body.len().to_string());
            assert!(field("content-security-policy").starts_with("default-src 'none'; style-src"));
        }
        assert!(head.body.is_empty());
        let policy = get.field("content-security-policy").unwrap();
        let (_, nonce) = policy.split_once("'nonce-").unwrap();
        let (nonce, _) = nonce.split_once('\'').unwrap();
        assert!(get.text().contains(&format!("<style nonce=\"{nonce}\">")));
    });
}

#[test]
fn folders_are_listed_only_under_their_own_path() {
    test(|| {
        let (proxy, _) = folder();
        let mut client = proxy.client();
        for (path, status, location) in [
            ("/pub", 301, Some("/pub/")),
            ("/pub/album", 301, Some("/pub/album/")),
            ("/pub/", 200, None),
            ("/pub/absent/", 404, None),
            ("/pub/album/out/", 403, None),
            ("/pub/album/.hidden/", 404, None),
        ] {
            let response = ask(&mut client, "GET", path, "");
            assert_eq!(response.status, status, "{path}: {response:?}");
            assert_eq!(response.field("location"), location, "{path}");
        }
        let (proxy, _) = site(&[("album/a", b"a")], "index = []");
        let response = ask(&mut proxy.client(), "GET", "/album/", "");
        assert_eq!(response.status, 404, "nobody asked for a list");
    });
}

/// A client that takes the beginning of an answer, and no more of it.
struct Unread {
    stream: TcpStream,
}

impl Unread {
    fn ask(proxy: &Proxy, path: &str) -> Self {
        let address = proxy.socket_addr("web");
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        // Otherwise the kernel buffers megabytes instead.
        set_socket_recv_buffer_size(&socket, 4_096).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        let mut stream = TcpStream::from(socket);
        let request = format!("GET {path} HTTP/1.1\r\nHost: test.example\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream.set_read_timeout(Some(STEP)).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        Unread { stream }
    }
}

/// Clients that do not read their listings take the memory of one page, and none of the memory
/// for others.
#[test]
fn listings_that_nobody_reads_share_one_page_within_a_bound() {
    test(|| {
        let config = "[server]\nworkers = 1\nanswer_memory = \"8MiB\"\n\
             [access_log]\npath = \"$DIR/access.log\"\nformat = \"json\"\n\
             [status]\nbind = \"127.0.0.1:0\"\n\
             [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\
             [[route]]\nfiles = { root = \"$DIR/root\", listing = true }\n";
        let proxy = Proxy::start(program(), config).unwrap();
        for folder in ["a", "b"] {
            let folder = proxy.path("root").join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            for index in 0..9_000 {
                std::fs::write(folder.join(format!("{}{index}", "x".repeat(200))), "").unwrap();
            }
        }
        let memory = |key: &str| figures(&proxy)["answer_memory"][key].as_u64().unwrap();
        let first = Unread::ask(&proxy, "/a/");
        let page_len = memory("held");
        // More than the kernel takes of it.
        assert!(page_len > 5 << 20, "{page_len}");
        let more: Vec<_> = (0..20).map(|_| Unread::ask(&proxy, "/a/")).collect();
        assert_eq!((memory("held"), memory("refused")), (page_len, 0));
        let refused = proxy.client().get("/b/").unwrap();
        assert_refused(&refused, words::ANSWER_MEMORY);
        assert!(refused.field("retry-after").is_some(), "{refused:?}");
        assert_logged(&proxy, words::ANSWER_MEMORY);
        assert_eq!((memory("held"), memory("refused")), (page_len, 1));
        // A changed folder makes another page.
        std::fs::write(proxy.path("root").join("a/new"), "").unwrap();
        assert_refused(&proxy.client().get("/a/").unwrap(), words::ANSWER_MEMORY);
        for client in std::iter::once(first).chain(more) {
            client.stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
        until("nothing is held", || memory("held") == 0);
        let listing = proxy.client().get("/a/").unwrap();
        assert!(listing.status == 200 && listing.text().contains("<bdi>new</bdi>"));
    });
}

#[test]
fn without_room_a_file_is_sent_as_it_is() {
    test(|| {
        let config = "[server]\nworkers = 1\nanswer_memory = \"1KiB\"\n\
             [status]\nbind = \"127.0.0.1:0\"\n\
             [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\
             [[route]]\nfiles = { root = \"$DIR/root\", compress = true }\n";
        let proxy = Proxy::start(program(), config).unwrap();
        let root = proxy.path("root");
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("a.css"), text(9_000)).unwrap();
        let mut client = proxy.client();
        let response = ask(&mut client, "GET", "/a.css", "Accept-Encoding: gzip\r\n");
        assert_eq!(response.field("content-encoding"), None);
        assert_eq!(response.body, text(9_000));
        assert_eq!(figures(&proxy)["answer_memory"]["refused"], 1);
    });
}

/// A long body is the configuration's, and not copied for each client.
#[test]
fn a_long_fixed_answer_is_whole() {
    test(|| {
        let body = "0123456789".repeat(10_000);
        let config = format!(
            "[server]\nworkers = 1\n[[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\
             [[route]]\nanswer = {{ body = {body:?} }}\n"
        );
        let proxy = Proxy::start(program(), &config).unwrap();
        let mut client = proxy.client();
        for _ in 0..2 {
            let response = ask(&mut client, "GET", "/", "");
            assert_eq!((response.status, response.text()), (200, body.clone()));
            let head = ask(&mut client, "HEAD", "/", "");
            assert_eq!(head.field("content-length"), Some("100000"));
            assert!(head.body.is_empty());
        }
    });
}
