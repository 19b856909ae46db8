use super::*;
use crate::http1::{Parsed, parse_request};

const TAG: &[u8] = b"\"v1\"";
/// Sun, 06 Nov 1994 08:49:37 GMT.
const MODIFIED: u64 = 784_111_777;
const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";
const VALIDATORS: Validators<'_> = Validators {
    entity_tag: TAG,
    modified: Some(MODIFIED),
};

/// A request with these lines.
fn request(lines: &str) -> (Conditions, Vec<u8>) {
    let lines = lines.replace('\n', "\r\n");
    let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n").into_bytes();
    let mut head = RequestHead::default();
    assert_eq!(parse_request(&bytes, &mut head), Ok(Parsed::Complete));
    (Conditions::of(&head, &bytes), bytes)
}

fn precondition(lines: &str) -> Precondition {
    let (conditions, bytes) = request(lines);
    assert!(!conditions.is_plain(), "{lines}");
    conditions.precondition(&bytes, &VALIDATORS)
}

fn ranges(lines: &str) -> Ranges {
    let (conditions, bytes) = request(lines);
    conditions.ranges(&bytes, &VALIDATORS, 100)
}

#[test]
fn what_asks_for_nothing_is_plain() {
    for lines in [
        "Accept: */*",
        "Accept-Encoding: gzip",
        "X-Range: bytes=0-1\nRanges: x\nIf-None-Matched: *",
        // Named by Connection, they are for one hop only.
        "Connection: range, if-match\nRange: bytes=0-1\nIf-Match: \"x\"",
    ] {
        let (conditions, bytes) = request(lines);
        assert!(conditions.is_plain(), "{lines}");
        let precondition = conditions.precondition(&bytes, &VALIDATORS);
        assert_eq!(precondition, Precondition::Met, "{lines}");
        let ranges = conditions.ranges(&bytes, &VALIDATORS, 100);
        assert_eq!(ranges, Ranges::Whole, "{lines}");
    }
    for lines in [
        "Range: bytes=0-1",
        "IF-RANGE: x",
        "if-match: \"a\"",
        "If-None-Match:",
        "If-Modified-Since: x\nIf-Modified-Since: y",
        "If-Unmodified-Since: x",
    ] {
        assert!(!request(lines).0.is_plain(), "{lines}");
    }
}

#[test]
fn entity_tags_as_conditions() {
    use Precondition::*;
    for (lines, expected) in [
        ("If-Match: \"v1\"", Met),
        ("If-Match: \"v0\", \"v1\"", Met),
        ("If-Match: *", Met),
        ("If-Match: \"v0\"", Failed),
        ("If-Match: W/\"v1\"", Failed),
        ("If-Match: v1", Failed),
        ("If-Match: \"v1\", v2", Failed),
        ("If-Match: \"v1\", *", Failed),
        ("If-Match:", Failed),
        ("If-Match: \"v0\"\nIf-Match: \"v1\"", Met),
        ("If-Match: *\nIf-Match: *", Failed),
        ("If-None-Match: \"v1\"", NotModified),
        ("If-None-Match: W/\"v1\"", NotModified),
        ("If-None-Match: \"v0\", W/\"v1\"", NotModified),
        ("If-None-Match: *", NotModified),
        ("If-None-Match: \"v0\"", Met),
        ("If-None-Match: v1", Met),
        ("If-None-Match: \"v1\", v2", Met),
        ("If-None-Match: \"v1\", *", Met),
        ("If-None-Match: \"v1", Met),
        ("If-None-Match:", Met),
        ("If-None-Match: \"v0\"\nIf-None-Match: \"v1\"", NotModified),
        ("If-None-Match: \"v1\"\nIf-None-Match: v2", Met),
        ("If-None-Match: *\nIf-None-Match: \"v1\"", Met),
    ] {
        assert_eq!(precondition(lines), expected, "{lines}");
    }
}

#[test]
fn dates_as_conditions() {
    use Precondition::*;
    for (name, date, expected) in [
        ("If-Modified-Since", BEFORE, Met),
        ("If-Modified-Since", SAME, NotModified),
        ("If-Modified-Since", AFTER, NotModified),
        (
            "If-Modified-Since",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            NotModified,
        ),
        ("If-Modified-Since", "Sun Nov  6 08:49:37 1994", NotModified),
        ("If-Modified-Since", "yesterday", Met),
        ("If-Modified-Since", "", Met),
        ("If-Unmodified-Since", BEFORE, Failed),
        ("If-Unmodified-Since", SAME, Met),
        ("If-Unmodified-Since", AFTER, Met),
        ("If-Unmodified-Since", "yesterday", Met),
    ] {
        let line = format!("{name}: {date}");
        assert_eq!(precondition(&line), expected, "{line}");
    }
    // Several dates are none.
    for (name, date) in [("If-Modified-Since", SAME), ("If-Unmodified-Since", BEFORE)] {
        let twice = format!("{name}: {date}\n{name}: {date}");
        assert_eq!(precondition(&twice), Met, "{twice}");
        let list = format!("{name}: {date}, {date}");
        assert_eq!(precondition(&list), Met, "{list}");
    }
}

#[test]
fn conditions_are_looked_at_in_order() {
    use Precondition::*;
    for (lines, expected) in [
        // Entity tags make dates void.
        (
            format!("If-Match: \"v1\"\nIf-Unmodified-Since: {BEFORE}"),
            Met,
        ),
        (
            format!("If-Match: \"v0\"\nIf-Unmodified-Since: {AFTER}"),
            Failed,
        ),
        (
            format!("If-None-Match: \"v0\"\nIf-Modified-Since: {AFTER}"),
            Met,
        ),
        (format!("If-None-Match: x\nIf-Modified-Since: {AFTER}"), Met),
        (
            format!("If-None-Match: \"v1\"\nIf-Modified-Since: {BEFORE}"),
            NotModified,
        ),
        // A failed condition goes before one that is not modified.
        ("If-None-Match: \"v1\"\nIf-Match: \"v0\"".to_owned(), Failed),
        (
            "If-None-Match: \"v1\"\nIf-Match: \"v1\"".to_owned(),
            NotModified,
        ),
        (
            format!("If-Modified-Since: {SAME}\nIf-Unmodified-Since: {BEFORE}"),
            Failed,
        ),
        (
            format!("If-Modified-Since: {SAME}\nIf-Unmodified-Since: {SAME}"),
            NotModified,
        ),
        (
            format!("If-Match: *\nIf-Modified-Since: {SAME}"),
            NotModified,
        ),
        (
            format!("If-None-Match: \"v1\"\nIf-Unmodified-Since: {BEFORE}"),
            Failed,
        ),
    ] {
        assert_eq!(precondition(&lines), expected, "{lines}");
    }
}

#[test]
fn a_list_of_too_many_lines_matches_nothing() {
    let lines = |line: &str, count| vec![line; count].join("\n");
    let most = MAX_LINES;
    for (line, within) in [
        ("If-Match: \"v1\"", Precondition::Met),
        ("If-None-Match: \"v1\"", Precondition::NotModified),
    ] {
        assert_eq!(precondition(&lines(line, most)), within);
    }
    for count in [most + 1, most + 2, 100] {
        for (line, beyond) in [
            ("If-Match: \"v1\"", Precondition::Failed),
            ("If-None-Match: \"v1\"", Precondition::Met),
        ] {
            assert_eq!(precondition(&lines(line, count)), beyond, "{count}");
        }
        let (conditions, bytes) = request(&lines("Accept-Encoding: gzip", count));
        assert!(conditions.has_accept_encoding());
        assert_eq!(conditions.coding(&bytes, &[Coding::Gzip]), None);
    }
}

#[test]
fn weak_tags_and_none() {
    let (conditions, bytes) = request("If-Match: W/\"v1\", \"v1\"");
    let weak = Validators {
        entity_tag: b"W/\"v1\"",
        ..VALIDATORS
    };
    let none = Validators {
        entity_tag: b"",
        ..VALIDATORS
    };
    for validators in [weak, none] {
        let precondition = conditions.precondition(&bytes, &validators);
        assert_eq!(precondition, Precondition::Failed);
    }
    let (conditions, bytes) = request("If-None-Match: \"v1\"");
    let found = [weak, none].map(|validators| conditions.precondition(&bytes, &validators));
    assert_eq!(found, [Precondition::NotModified, Precondition::Met]);
    for if_range in ["W/\"v1\"", "\"v1\""] {
        let (conditions, bytes) = request(&format!("Range: bytes=0-0\nIf-Range: {if_range}"));
        for validators in [weak, none] {
            let ranges = conditions.ranges(&bytes, &validators, 100);
            assert_eq!(ranges, Ranges::Whole, "{if_range}");
        }
    }
}

#[test]
fn no_date_counts_where_there_is_none() {
    let undated = Validators {
        modified: None,
        ..VALIDATORS
    };
    for lines in [
        format!("If-Modified-Since: {AFTER}"),
        format!("If-Unmodified-Since: {BEFORE}"),
    ] {
        let (conditions, bytes) = request(&lines);
        let found = conditions.precondition(&bytes, &undated);
        assert_eq!(found, Precondition::Met, "{lines}");
    }
    for if_range in [SAME, "yesterday"] {
        let (conditions, bytes) = request(&format!("Range: bytes=0-0\nIf-Range: {if_range}"));
        let found = conditions.ranges(&bytes, &undated, 100);
        assert_eq!(found, Ranges::Whole, "{if_range}");
    }
}

#[test]
fn ranges_hold_for_the_representation_that_is_named() {
    let part = Ranges::Some(vec![ByteRange { first: 0, last: 9 }]);
    assert_eq!(ranges("Range: bytes=0-9"), part);
    assert_eq!(ranges("Range: bytes=100-"), Ranges::Unsatisfiable);
    for (if_range, is_current) in [
        ("\"v1\"", true),
        (SAME, true),
        ("Sunday, 06-Nov-94 08:49:37 GMT", true),
        ("W/\"v1\"", false),
        ("\"v0\"", false),
        ("\"v0\", \"v1\"", false),
        ("*", false),
        ("v1", false),
        ("", false),
        (BEFORE, false),
        (AFTER, false),
    ] {
        let expected = if is_current {
            part.clone()
        } else {
            Ranges::Whole
        };
        let lines = format!("If-Range: {if_range}\nRange: bytes=0-9");
        assert_eq!(ranges(&lines), expected, "{if_range}");
    }
    for lines in [
        "Range: bytes=0-9\nRange: bytes=0-9",
        "Range: bytes=0-9\nIf-Range: \"v1\"\nIf-Range: \"v1\"",
        "Range: bytes=100-\nIf-Range: \"v0\"",
        "Range: lines=0-9",
        "If-Range: \"v1\"",
    ] {
        assert_eq!(ranges(lines), Ranges::Whole, "{lines}");
    }
}

#[test]
fn codings_over_several_lines() {
    use Coding::*;
    for (lines, chosen) in [
        ("Accept: */*", None),
        ("Accept-Encoding:", None),
        ("Accept-Encoding: br, gzip", Some(Brotli)),
        ("Accept-Encoding: gzip\naccept-encoding: br", Some(Brotli)),
        (
            "Accept-Encoding: gzip\nAccept-Encoding: br;q=0.5",
            Some(Gzip),
        ),
        ("Accept-Encoding: *\nAccept-Encoding: br;q=0", Some(Gzip)),
    ] {
        let (conditions, bytes) = request(lines);
        assert_eq!(
            conditions.coding(&bytes, &[Brotli, Gzip]),
            chosen,
            "{lines}"
        );
        let is_sent = lines.starts_with("Accept-Encoding");
        assert_eq!(conditions.has_accept_encoding(), is_sent, "{lines}");
    }
}

#[test]
fn weak_forms_of_strong_tags() {
    for (line, tag, found) in [
        ("If-None-Match: W/\"v1\"", "\"v1\"", true),
        ("If-None-Match: \"v0\", W/\"v1\"", "\"v1\"", true),
        ("If-None-Match: \"v1\"", "\"v1\"", false),
        ("If-None-Match: W/\"v11\"", "\"v1\"", false),
        ("If-None-Match: W/\"v1\"", "W/\"v1\"", false),
        ("If-None-Match: *", "\"v1\"", false),
        ("If-Match: W/\"v1\"", "\"v1\"", false),
        ("If-None-Match: W/\"v1\"", "", false),
    ] {
        let (conditions, bytes) = request(line);
        let has = conditions.has_weak_form(&bytes, tag.as_bytes());
        assert_eq!(has, found, "{line} {tag}");
    }
}
