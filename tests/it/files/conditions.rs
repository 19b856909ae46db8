//! Conditional requests and ranges (RFC 9110 §13 and §14), over the wire.

use std::fs::File;
use std::time::{Duration, SystemTime};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::process::run;

use super::{FileConfig, FileSite, MODIFIED, ask};
use crate::setup::test;
use evenkeel_testkit::process::python;

const BEFORE: &str = "Sun, 09 Sep 2001 01:46:39 GMT";
const AFTER: &str = "Sun, 09 Sep 2001 01:46:41 GMT";

/// A file with the digits from 0 to 9, and the tag that it has.
fn digits() -> (FileSite, String) {
    let site = FileConfig::default().start();
    site.write("digits.txt", "0123456789");
    let tag = site.get("/digits.txt").field("ETag").unwrap().to_owned();
    (site, tag)
}

/// Writes a case's words as the fields that they stand for.
fn fields(template: &str, tag: &str) -> String {
    let text = template
        .replace("$tag", tag)
        .replace("$modified", MODIFIED)
        .replace("$before", BEFORE)
        .replace("$after", AFTER);
    text.split("; ")
        .map(|field| format!("{field}\r\n"))
        .collect()
}

#[test]
fn conditions_decide_on_the_status() {
    test(|| {
        let (site, tag) = digits();
        let mut client = site.proxy.client();
        for (template, status) in [
            ("If-None-Match: $tag", 304),
            ("If-None-Match: W/$tag", 304),
            ("If-None-Match: \"a\", $tag", 304),
            ("If-None-Match: *", 304),
            ("If-None-Match: \"another\"", 200),
            (
                "If-None-Match: \"another\"; If-Modified-Since: $modified",
                200,
            ),
            ("If-None-Match: $tag; If-Modified-Since: $before", 304),
            ("If-Modified-Since: $modified", 304),
            ("If-Modified-Since: $after", 304),
            ("If-Modified-Since: $before", 200),
            ("If-Modified-Since: yesterday", 200),
            ("If-Modified-Since: Sunday, 09-Sep-01 01:46:40 GMT", 304),
            ("If-Modified-Since: Sun Sep  9 01:46:40 2001", 304),
            ("If-Match: $tag", 200),
            ("If-Match: *", 200),
            ("If-Match: W/$tag", 412),
            ("If-Match: \"another\"", 412),
            ("If-Match: \"another\"; If-Unmodified-Since: $after", 412),
            ("If-Unmodified-Since: $modified", 200),
            ("If-Unmodified-Since: $before", 412),
            ("If-Match: $tag; If-None-Match: $tag", 304),
            ("If-Match: \"another\"; If-None-Match: $tag", 412),
            ("If-None-Match: $tag; Range: bytes=0-1", 304),
            ("If-Match: \"another\"; Range: bytes=0-1", 412),
        ] {
            for method in ["GET", "HEAD"] {
                let response = ask(&mut client, method, "/digits.txt", &fields(template, &tag));
                let case = format!("{method} {template}: {response:?}");
                assert_eq!(response.status, status, "{case}");
                assert_eq!(response.field("ETag"), Some(&*tag), "{case}");
                // A 412 carries only the file's version.
                let modified = (status != 412).then_some(MODIFIED);
                assert_eq!(response.field("Last-Modified"), modified, "{case}");
                let body = if (method, status) == ("GET", 200) {
                    "0123456789"
                } else {
                    ""
                };
                assert_eq!(response.text(), body, "{case}");
                if status == 304 {
                    assert_eq!(response.field("Content-Length"), None, "{case}");
                    assert_eq!(response.field("Content-Type"), None, "{case}");
                }
            }
        }
    });
}

#[test]
fn conditions_on_what_is_not_there_do_not_count() {
    test(|| {
        let (site, _) = digits();
        for fields in [
            "If-None-Match: *\r\n",
            "If-Match: *\r\n",
            "Range: bytes=0-1\r\n",
        ] {
            assert_eq!(site.get_with("/absent", fields).status, 404, "{fields}");
        }
    });
}

#[test]
fn a_range_is_answered_with_that_part() {
    test(|| {
        let (site, tag) = digits();
        let mut client = site.proxy.client();
        for (template, content_range, body) in [
            ("Range: bytes=0-0", "bytes 0-0/10", "0"),
            ("Range: bytes=2-4", "bytes 2-4/10", "234"),
            ("Range: bytes=7-", "bytes 7-9/10", "789"),
            ("Range: bytes=7-99", "bytes 7-9/10", "789"),
            ("Range: bytes=-3", "bytes 7-9/10", "789"),
            ("Range: bytes=-99", "bytes 0-9/10", "0123456789"),
            ("Range: BYTES=0-1", "bytes 0-1/10", "01"),
            ("Range: bytes=0-1,2-3", "bytes 0-3/10", "0123"),
            ("Range: bytes=0-1,50-60", "bytes 0-1/10", "01"),
            ("If-Range: $tag; Range: bytes=0-1", "bytes 0-1/10", "01"),
            (
                "If-Range: $modified; Range: bytes=0-1",
                "bytes 0-1/10",
                "01",
            ),
            ("If-Match: $tag; Range: bytes=0-1", "bytes 0-1/10", "01"),
            (
                "If-None-Match: \"a\"; Range: bytes=0-1",
                "bytes 0-1/10",
                "01",
            ),
        ] {
            let response = ask(&mut client, "GET", "/digits.txt", &fields(template, &tag));
            let case = format!("{template}: {response:?}");
            assert_eq!(response.status, 206, "{case}");
            assert_eq!(
                response.field("Content-Range"),
                Some(content_range),
                "{case}"
            );
            assert_eq!(response.text(), body, "{case}");
            assert_eq!(response.field("ETag"), Some(&*tag), "{case}");
            let content_type = response.field("Content-Type");
            assert_eq!(content_type, Some("text/plain; charset=utf-8"), "{case}");
        }
    });
}

#[test]
fn what_is_no_range_or_of_another_version_gets_the_whole() {
    test(|| {
        let (site, tag) = digits();
        let mut client = site.proxy.client();
        let many = (0..20)
            .map(|at| format!("{}-{}", at, at))
            .collect::<Vec<_>>();
        let many = format!("Range: bytes={}", many.join(","));
        for template in [
            "Range: lines=0-1",
            "Range: bytes=5-2",
            "Range: bytes=a-b",
            "Range: bytes=",
            "Range: 0-1",
            "Range: bytes=0-1; Range: bytes=2-3",
            "If-Range: \"another\"; Range: bytes=0-1",
            "If-Range: W/$tag; Range: bytes=0-1",
            "If-Range: $before; Range: bytes=0-1",
            "If-Range: $after; Range: bytes=0-1",
            "If-Range: $tag",
            &many,
        ] {
            let response = ask(&mut client, "GET", "/digits.txt", &fields(template, &tag));
            assert_eq!(response.status, 200, "{template}: {response:?}");
            assert_eq!(response.text(), "0123456789", "{template}");
        }
        let head = ask(&mut client, "HEAD", "/digits.txt", "Range: bytes=0-1\r\n");
        assert_eq!(head.status, 200, "a range is for GET alone");
        assert_eq!(head.field("Content-Length"), Some("10"));
    });
}

#[test]
fn a_range_that_is_not_there_is_refused_with_the_length() {
    test(|| {
        let (site, _) = digits();
        for range in [
            "bytes=10-",
            "bytes=10-20,30-40",
            "bytes=-0",
            "bytes=99999999999999999999-",
        ] {
            let mut client = site.proxy.client();
            let fields = format!("Range: {range}\r\n");
            let response = ask(&mut client, "GET", "/digits.txt", &fields);
            assert_eq!(response.status, 416, "{range}: {response:?}");
            assert_eq!(response.field("Content-Range"), Some("bytes */10"));
            assert_eq!(response.field("Content-Length"), Some("0"));
            assert_eq!(client.get("/digits.txt").unwrap().status, 200);
        }
    });
}

/// Reads several ranges with Python's parser of e-mail, and compares them with
/// the file.
const MULTIPART: &str = r#"
import email.parser, email.policy, http.client, re, sys
connection = http.client.HTTPConnection(sys.argv[1], timeout=10)
connection.request("GET", "/a.txt")
whole = connection.getresponse().read()
for ranges in ["0-0,5-9", "-3,0-1", "0-99,1000-1999,70000-", "0-70000,300000-399999",
               "5-9,0-3,7-12,20-30", ",".join(f"{at}-{at}" for at in range(0, 32, 2))]:
    connection.request("GET", "/a.txt", headers={"Range": "bytes=" + ranges})
    response = connection.getresponse()
    body = response.read()
    assert response.status == 206, response.status
    assert response.getheader("Content-Range") is None
    head = b"Content-Type: " + response.getheader("Content-Type").encode() + b"\r\n\r\n"
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    assert message.get_content_type() == "multipart/byteranges" and not message.defects
    seen = set()
    for part in message.iter_parts():
        assert part.get_content_type() == "text/plain" and part.get_content_charset() == "utf-8"
        first, last, length = map(int, re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", part["Content-Range"]).groups())
        assert length == len(whole)
        assert part.get_payload(decode=True) == whole[first:last + 1], (ranges, first, last)
        seen.update(range(first, last + 1))
    wanted = set()
    for spec in ranges.split(","):
        first, last = spec.split("-")
        if not first:
            first, last = len(whole) - int(last), len(whole) - 1
        wanted.update(range(int(first), min(int(last or len(whole)), len(whole) - 1) + 1))
    assert seen == wanted, ranges
connection.request("GET", "/a.txt")
assert connection.getresponse().read() == whole
print("done")
"#;

#[test]
fn several_ranges_come_in_parts_that_python_reads() {
    test(|| {
        let site = FileConfig::default().start();
        let line = |number: u32| format!("{number:06} ");
        site.write("a.txt", (0..60_000).map(line).collect::<String>());
        let mut python = python();
        python.args(["-c", MULTIPART, site.proxy.address("web")]);
        let output = run(python, Duration::from_secs(20)).unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, b"done\n");
    });
}

#[test]
fn parts_of_a_long_file_are_the_right_ones() {
    test(|| {
        let site = FileConfig::default().start();
        let bytes = super::bytes_of(3 << 20);
        site.write("a.bin", &bytes);
        let mut client = site.proxy.client();
        for (first, last) in [
            (0, 0),
            (65_535, 65_536),
            (262_143, 262_145),
            (1, 1_000_000),
            (524_288, 3 * 1024 * 1024 - 1),
        ] {
            let range = format!("Range: bytes={first}-{last}\r\n");
            let response = ask(&mut client, "GET", "/a.bin", &range);
            assert_eq!(response.status, 206);
            assert!(response.body == bytes[first..=last], "{range}");
        }
    });
}

#[test]
fn every_range_of_an_empty_file_gets_all_of_it() {
    test(|| {
        let site = FileSite::serving("precompressed = [\"br\"]");
        for name in ["empty.txt", "other.txt.br"] {
            site.write(name, "");
        }
        site.write("other.txt", "x");
        let mut client = site.proxy.client();
        let tag = site.get("/empty.txt").field("ETag").unwrap().to_owned();
        for path in ["/empty.txt", "/other.txt"] {
            for template in [
                "Range: bytes=0-",
                "Range: bytes=0-0",
                "Range: bytes=0-1023",
                "Range: bytes=5-",
                "Range: bytes=-5",
                "Range: bytes=-0",
                "Range: bytes=0-1,5-6",
                "Range: bytes=0-; If-Range: $tag",
                "Range: bytes=0-; If-Range: $modified",
                "Range: bytes=0-; If-Range: \"another\"",
                "Range: bytes=0-; If-Match: *",
            ] {
                for method in ["GET", "HEAD"] {
                    let fields = fields(template, &tag) + "Accept-Encoding: br\r\n";
                    let response = ask(&mut client, method, path, &fields);
                    assert_eq!(response.status, 200, "{path} {template}: {response:?}");
                    assert_eq!(response.field("Content-Length"), Some("0"), "{template}");
                    assert_eq!(response.field("Content-Range"), None, "{template}");
                }
            }
        }
    });
}

/// Puts a file in place of another, last changed at this time.
fn release(site: &FileSite, name: &str, bytes: &str, modified: SystemTime) {
    let new = site.write("new", bytes);
    let file = File::options().write(true).open(&new).unwrap();
    file.set_modified(modified).unwrap();
    std::fs::rename(new, site.folder.join(name)).unwrap();
}

#[test]
fn a_time_that_says_nothing_makes_no_validator() {
    test(|| {
        let site = FileConfig {
            files: "compress = { min = \"1B\" }\nprecompressed = [\"br\"]\nlisting = true",
            ..FileConfig::default()
        }
        .start();
        let after = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1_000);
        let last = |text: &str| text.repeat(100);
        for (name, time) in [("a", after(0)), ("b", after(1)), ("c", before)] {
            let (name, path) = (format!("{name}.js"), format!("/{name}.js"));
            release(&site, &name, &last("v1;"), time);
            release(&site, &format!("{name}.br"), "v1.br", time);
            for accepted in ["identity", "gzip", "br"] {
                let mut client = site.proxy.client();
                for (template, status) in [
                    ("X: y", 200),
                    ("If-None-Match: \"0-12c\"", 200),
                    ("If-None-Match: \"\"", 200),
                    ("If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT", 200),
                    ("If-Modified-Since: $modified", 200),
                    ("If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT", 200),
                    ("If-Match: \"0-12c\"", 412),
                    ("If-Match: *", 200),
                    (
                        "If-Range: Thu, 01 Jan 1970 00:00:01 GMT; Range: bytes=0-1",
                        200,
                    ),
                    ("If-Range: \"\"; Range: bytes=0-1", 200),
                    ("Range: bytes=5000-", 416),
                ] {
                    let fields = fields(template, "") + &format!("Accept-Encoding: {accepted}\r\n");
                    for method in ["GET", "HEAD"] {
                        let response = ask(&mut client, method, &path, &fields);
                        let case = format!("{accepted} {method} {template}: {response:?}");
                        // A file compressed here has no ranges, and neither has a HEAD.
                        let is_whole = status == 416 && (method == "HEAD" || accepted == "gzip");
                        let status = if is_whole { 200 } else { status };
                        assert_eq!(response.status, status, "{case}");
                        assert_eq!(response.field("Last-Modified"), None, "{case}");
                        assert_eq!(response.field("ETag"), None, "{case}");
                    }
                }
            }
            site.keep_open(&path);
            release(&site, &name, &last("v2;"), time);
            until("the release is served", || {
                site.get(&path).text() == last("v2;")
            });
        }
        let listing = site.get("/").text();
        assert!(listing.contains("a.js"), "{listing}");
        assert!(
            !listing.contains("1970") && !listing.contains("1969"),
            "{listing}"
        );
    });
}

#[test]
fn a_file_of_the_future_has_a_tag_and_no_date() {
    test(|| {
        let site = FileConfig::default().start();
        let soon = SystemTime::now() + Duration::from_secs(3_600);
        release(&site, "a.txt", "future", soon);
        let response = site.get("/a.txt");
        assert_eq!(response.field("Last-Modified"), None, "{response:?}");
        let tag = response.field("ETag").unwrap();
        let status = |fields: String| site.get_with("/a.txt", &fields).status;
        assert_eq!(status(format!("If-None-Match: {tag}\r\n")), 304);
        assert_eq!(status(format!("If-Modified-Since: {MODIFIED}\r\n")), 200);
        assert_eq!(status(format!("If-Unmodified-Since: {MODIFIED}\r\n")), 200);
    });
}
