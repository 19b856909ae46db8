//! Files of a folder.

use evenkeel_testkit::{H2Client, Proxy, TempDir};

use super::{Shape, ask, ask_both, connect};
use crate::setup::{pattern, test};
use crate::tls::{Issuing, TLS13};

/// A folder with a file of 1 KB and one of 1 MB, and the program that serves it.
fn site(listener: &str, tables: &str) -> (TempDir, Proxy) {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.join("short.txt"), pattern(1_000)).unwrap();
    std::fs::write(folder.join("long.txt"), pattern(1_000_000)).unwrap();
    let route = format!("files = '{}'", folder.path().display());
    let shape = Shape {
        listener,
        route: &route,
        tables,
        ..Shape::default()
    };
    let proxy = shape.start(&[]);
    (folder, proxy)
}

#[test]
fn files_are_the_same_by_http1() {
    test(|| {
        let (_folder, proxy) = site("", "");
        let mut client = connect(&proxy);
        let first = client.ask(1, "/long.txt").unwrap();
        let tag = first.field("etag").unwrap().to_owned();
        let changed = first.field("last-modified").unwrap().to_owned();
        let cases = [
            ("GET", "/short.txt", vec![], 200),
            ("HEAD", "/short.txt", vec![], 200),
            ("GET", "/long.txt", vec![], 200),
            ("HEAD", "/long.txt", vec![], 200),
            (
                "GET",
                "/long.txt",
                vec![("range", "bytes=500000-599999")],
                206,
            ),
            ("GET", "/long.txt", vec![("range", "bytes=-1")], 206),
            ("GET", "/long.txt", vec![("range", "bytes=10-300000")], 206),
            ("GET", "/long.txt", vec![("range", "bytes=1000000-")], 416),
            ("GET", "/long.txt", vec![("if-none-match", &*tag)], 304),
            (
                "GET",
                "/long.txt",
                vec![("if-modified-since", &*changed)],
                304,
            ),
            ("GET", "/long.txt", vec![("if-match", "\"other\"")], 412),
            ("GET", "/none.txt", vec![], 404),
            ("POST", "/short.txt", vec![("content-length", "0")], 405),
        ];
        // A file that is asked for often is kept in memory.
        for round in 0..3 {
            for (index, (method, path, fields, status)) in cases.iter().enumerate() {
                let stream = 2 * (round * cases.len() + index) as u32 + 3;
                let response = ask_both(&proxy, &mut client, stream, method, path, fields);
                assert_eq!(response.status, *status, "{method} {path} {fields:?}");
            }
        }
    });
}

#[track_caller]
fn assert_files(client: &mut H2Client) {
    // Many at once, which take turns.
    for n in 0..20 {
        client.get(4 * n + 1, "/long.txt").unwrap();
        client.get(4 * n + 3, "/short.txt").unwrap();
    }
    for n in 0..20 {
        let (long, short) = (client.response(4 * n + 1), client.response(4 * n + 3));
        assert!(long.unwrap().body == pattern(1_000_000), "{n}");
        assert!(short.unwrap().body == pattern(1_000), "{n}");
    }
    let part = ask(
        client,
        101,
        "GET",
        "/long.txt",
        &[("range", "bytes=70000-199999")],
    );
    assert_eq!(part.status, 206);
    assert!(part.body == pattern(1_000_000)[70_000..200_000]);
    let head = ask(client, 103, "HEAD", "/long.txt", &[]);
    assert_eq!((head.status, head.body.len()), (200, 0));
    let tag = head.field("etag").unwrap();
    let same = ask(client, 105, "GET", "/long.txt", &[("if-none-match", tag)]);
    assert_eq!((same.status, same.body.len()), (304, 0));
}

#[test]
fn files_come_whole_in_plain_text_and_over_tls() {
    test(|| {
        let issuing = Issuing::new();
        issuing.issue("a", &["a.test"]);
        let tls = issuing.listener(&["a"], "");
        let tables = format!("[[listener]]\nname = 'tls'\nbind = '127.0.0.1:0'\n{tls}");
        let (_folder, proxy) = site("", &tables);
        assert_files(&mut connect(&proxy));
        let config = issuing.client(TLS13);
        assert_files(&mut H2Client::connect_tls(proxy.address("tls"), "a.test", &config).unwrap());
    });
}
