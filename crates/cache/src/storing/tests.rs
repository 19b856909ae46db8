use std::time::Duration;

use super::*;
use crate::message::tests::{get, raw_request, request, response};

/// Sun, 06 Nov 1994 08:49:37 GMT.
const NOW: u64 = 784_111_777;
const DATE: &str = "Date: Sun, 06 Nov 1994 08:49:37 GMT\n";

fn received() -> Received {
    Received {
        asked: Instant::from_nanos(0),
        arrived: Instant::from_nanos(0),
        unix_s: NOW,
    }
}

/// Whether a response to a GET with these fields may be stored.
fn store(rules: &Rules, asked: &str, status: u16, fields: &str) -> Result<Lifetime, NotStored> {
    let response = response(status, fields);
    rules.may_store(&get(asked).view(), &response.view(), &received())
}

/// Seconds for which it is fresh on arrival; 0 if it is stale.
fn left(rules: &Rules, status: u16, fields: &str) -> Result<u64, NotStored> {
    let lifetime = store(rules, "", status, fields)?;
    let fresh = Duration::from_secs(lifetime.fresh.into());
    Ok(fresh.saturating_sub(lifetime.initial_age).as_secs())
}

#[test]
fn refuses_with_a_reason() {
    use NotStored::*;
    let rules = Rules::default();
    for (asked, status, fields, reason) in [
        ("", 200, "Cache-Control: no-store", NoStore),
        ("", 200, "Cache-Control: max-age=10000, no-store", NoStore),
        ("", 200, "Cache-Control: private, max-age=3600", Private),
        (
            "",
            200,
            "Cache-Control: private=\"x\", max-age=3600",
            Private,
        ),
        (
            "",
            599,
            "Cache-Control: max-age=3600, must-understand",
            NotUnderstood,
        ),
        ("", 200, "Cache-Control: max-age=3600\nVary: *", VaryStar),
        (
            "",
            200,
            "Cache-Control: max-age=3600\nVary: a\nVary: , *",
            VaryStar,
        ),
        ("", 200, "Cache-Control: max-age=3600\nVary: *, a", VaryStar),
        (
            "",
            200,
            "Cache-Control: max-age=3600\nSet-Cookie: a=b",
            SetCookie,
        ),
        (
            "Cache-Control: no-store",
            200,
            "Cache-Control: max-age=3600",
            RequestNoStore,
        ),
        (
            "Authorization: x",
            200,
            "Cache-Control: max-age=3600",
            Authorization,
        ),
        (
            "Authorization: x",
            200,
            "Expires: Sun, 06 Nov 1994 09:49:37 GMT",
            Authorization,
        ),
        (
            "X-HTTP-Method-Override: PUT",
            200,
            "Cache-Control: max-age=3600",
            MethodOverride,
        ),
        (
            "X_Method_Override: PUT",
            200,
            "Cache-Control: max-age=3600",
            MethodOverride,
        ),
        ("If-Match: *", 200, "Cache-Control: max-age=3600", Condition),
        (
            "If_Unmodified-Since: x",
            200,
            "Cache-Control: max-age=3600",
            Condition,
        ),
        ("", 206, "Cache-Control: max-age=3600", Status),
        ("", 425, "Cache-Control: max-age=3600", Status),
        ("", 304, "Cache-Control: max-age=3600", Status),
        ("", 401, "Cache-Control: max-age=3600", Status),
        ("", 412, "Cache-Control: max-age=3600", Status),
        ("", 416, "Cache-Control: max-age=3600", Status),
        ("", 421, "Cache-Control: max-age=3600", Status),
        // Stale at once, and nothing to validate it by.
        ("", 200, "", NeverFresh),
        ("", 200, "Cache-Control: max-age=0", NeverFresh),
        ("", 200, "Cache-Control: max-age=10\nAge: 10", NeverFresh),
        ("", 200, "Cache-Control: no-cache", NeverFresh),
        ("", 200, "Expires: 0", NeverFresh),
        // Neither marked for caches nor understood by them.
        ("", 302, "ETag: \"a\"", NeverFresh),
        ("", 503, "ETag: \"a\"", NeverFresh),
        ("Cookie: a", 200, "ETag: \"a\"", Cookie),
        (
            "Cookie: a",
            200,
            "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT",
            Cookie,
        ),
    ] {
        let found = store(&rules, asked, status, fields);
        assert_eq!(found, Err(reason), "{asked} {status} {fields}");
    }
}

#[test]
fn stores_what_says_so() {
    let rules = Rules::default();
    for (asked, status, fields) in [
        ("", 200, "Cache-Control: max-age=3600"),
        ("", 200, "Cache-Control: s-maxage=3600"),
        ("", 200, "Cache-Control: max-age=1, s-maxage=3600"),
        ("", 200, "Expires: Sun, 06 Nov 1994 09:49:37 GMT"),
        ("", 299, "Cache-Control: max-age=3600"),
        ("", 302, "Cache-Control: max-age=3600"),
        ("", 500, "Cache-Control: max-age=3600"),
        ("", 599, "Cache-Control: max-age=3600"),
        // RFC 9111 §5.2.2.3.
        (
            "",
            200,
            "Cache-Control: max-age=3600, must-understand, no-store",
        ),
        // Stale, and worth validating.
        ("", 200, "ETag: \"a\""),
        ("", 404, "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT"),
        ("", 200, "Cache-Control: no-cache\nETag: \"a\""),
        ("", 302, "Cache-Control: public\nETag: \"a\""),
        // Stale, and good for while it is validated.
        (
            "",
            200,
            "Cache-Control: max-age=0, stale-while-revalidate=5",
        ),
        ("", 200, "Cache-Control: max-age=0, stale-if-error=5"),
        // RFC 9111 §3.5.
        (
            "Authorization: x",
            200,
            "Cache-Control: max-age=3600, public",
        ),
        (
            "Authorization: x",
            200,
            "Cache-Control: max-age=3600, must-revalidate",
        ),
        ("Authorization: x", 200, "Cache-Control: s-maxage=3600"),
        ("Cookie: a", 200, "Cache-Control: max-age=3600"),
        (
            "",
            200,
            "Cache-Control: public, max-age=3600\nSet-Cookie: a=b",
        ),
        ("", 200, "Cache-Control: s-maxage=3600\nSet-Cookie: a=b"),
        ("", 200, "CDN-Cache-Control: max-age=3600\nSet-Cookie: a=b"),
        (
            "",
            200,
            "CDN-Cache-Control: max-age=60\nCache-Control: no-store, private",
        ),
        ("Range: bytes=0-1", 200, "Cache-Control: max-age=3600"),
    ] {
        let found = store(&rules, asked, status, fields);
        assert!(found.is_ok(), "{asked} {status} {fields}: {found:?}");
    }
    let rules = Rules {
        stores_cookies: true,
        ..rules
    };
    let found = store(
        &rules,
        "",
        200,
        "Cache-Control: max-age=3600\nSet-Cookie: a=b",
    );
    assert!(found.is_ok());
}

#[test]
fn stores_only_answers_to_plain_gets() {
    let rules = Rules::default();
    let response = response(200, "Cache-Control: max-age=3600");
    let store = |sent: &crate::message::tests::Sent<evenkeel_proto::RequestHead>| {
        let found = rules.may_store(&sent.view(), &response.view(), &received());
        (rules.may_answer(&sent.view()).err(), found.err())
    };
    let none = (None, None);
    assert_eq!(store(&request("GET /", "")), none);
    // A stored response answers HEAD, and HEAD stores none.
    assert_eq!(
        store(&request("HEAD /", "")),
        (None, Some(NotStored::Method))
    );
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PURGE", "get"] {
        let both = (Some(NotStored::Method), Some(NotStored::Method));
        assert_eq!(
            store(&request(&format!("{method} /"), "")),
            both,
            "{method}"
        );
    }
    let both = (Some(NotStored::RequestBody), Some(NotStored::RequestBody));
    for fields in ["Content-Length: 2", "Transfer-Encoding: chunked"] {
        let sent = raw_request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n"));
        assert_eq!(store(&sent), both, "{fields}");
    }
    let sent = raw_request("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(store(&sent), none);
}

/// RFC 9111 §4.2.1, §4.2.3 and §5.3.
#[test]
fn finds_how_long_it_is_fresh() {
    let rules = Rules::default();
    let later = "Expires: Sun, 06 Nov 1994 09:49:37 GMT";
    for (fields, seconds) in [
        (format!("{DATE}{later}"), 3600),
        (format!("Date: foo\n{later}"), 3600),
        (later.to_owned(), 3600),
        // The age that is seen, not that of a slow or a fast clock.
        (
            format!("Date: Sun, 06 Nov 1994 08:49:27 GMT\n{later}\nAge: 3600"),
            10,
        ),
        (
            format!("Date: Sun, 06 Nov 1994 08:49:27 GMT\n{later}"),
            3600,
        ),
        (
            format!("Date: Sun, 06 Nov 1994 08:49:47 GMT\n{later}\nAge: 5"),
            3585,
        ),
        (format!("{DATE}Cache-Control: max-age=60\n{later}"), 60),
        (
            format!("{DATE}Cache-Control: max-age=60, s-maxage=30\n{later}"),
            30,
        ),
        (
            format!("{DATE}CDN-Cache-Control: max-age=5\nCache-Control: s-maxage=9\n{later}"),
            5,
        ),
        (format!("{DATE}Cache-Control: max-age=60\nExpires: 0"), 60),
        (
            "Date: Sun, 06 Nov 1994 08:48:37 GMT\nCache-Control: max-age=90".to_owned(),
            30,
        ),
        (format!("{DATE}Cache-Control: max-age=60\nAge: 10"), 50),
    ] {
        assert_eq!(left(&rules, 200, &fields), Ok(seconds), "{fields}");
    }
    for fields in [
        format!("{DATE}Expires: Sun, 06 Nov 1994 08:49:37 GMT"),
        format!("{DATE}{later}\n{later}"),
        format!("{DATE}Cache-Control: max-age=0\n{later}"),
        format!("{DATE}Cache-Control: x\nExpires: 0"),
        // A targeted field overrides the others (RFC 9213 §2.2).
        format!("{DATE}CDN-Cache-Control: x\nCache-Control: max-age=9\n{later}"),
    ] {
        let fields = format!("ETag: \"a\"\n{fields}");
        assert_eq!(left(&rules, 200, &fields), Ok(0), "{fields}");
    }
}

/// RFC 9111 §5.1: an unknown age counts as too great.
#[test]
fn an_age_that_cannot_be_read_is_too_old() {
    let rules = Rules::default();
    for age in [
        "abc",
        "-7200",
        "7200.0",
        "0,0",
        "0, 0",
        "0;a=1",
        "0\nAge: 0",
        "",
    ] {
        let fields = format!("ETag: \"a\"\nCache-Control: max-age=3600\nAge: {age}");
        assert_eq!(left(&rules, 200, &fields), Ok(0), "{age}");
    }
    let fields = "Cache-Control: max-age=3600\nAge: 99999999999999999999\nETag: \"a\"";
    assert_eq!(left(&rules, 200, fields), Ok(0));
}

#[test]
fn the_time_that_the_answer_took_counts() {
    let rules = Rules::default();
    let response = response(200, &format!("{DATE}Cache-Control: max-age=10\nAge: 2"));
    let received = Received {
        asked: Instant::from_nanos(1_000_000_000),
        arrived: Instant::from_nanos(4_500_000_000),
        unix_s: NOW,
    };
    let lifetime = rules.may_store(&get("").view(), &response.view(), &received);
    assert_eq!(lifetime.unwrap().initial_age, Duration::from_millis(5500));
}

/// RFC 9111 §4.2.2.
#[test]
fn guesses_only_if_told() {
    let day_before = format!("{DATE}Last-Modified: Sat, 05 Nov 1994 08:49:37 GMT");
    let told = Rules {
        heuristic: true,
        ..Rules::default()
    };
    for status in [200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501] {
        assert_eq!(left(&told, status, &day_before), Ok(8640), "{status}");
        assert_eq!(
            left(&Rules::default(), status, &day_before),
            Ok(0),
            "{status}"
        );
    }
    for status in [201, 202, 302, 403, 500, 502, 503, 504, 599] {
        let found = left(&told, status, &day_before);
        assert_eq!(found, Err(NotStored::NeverFresh), "{status}");
        let public = format!("{day_before}\nCache-Control: public");
        assert_eq!(left(&told, status, &public), Ok(8640), "{status}");
    }
    let found = store(&told, "Cookie: a=b", 200, &day_before);
    assert_eq!(found, Err(NotStored::Cookie));
    let to_come = format!("{DATE}Last-Modified: Mon, 07 Nov 1994 08:49:37 GMT");
    assert_eq!(left(&told, 200, &to_come), Ok(0));
}

#[test]
fn a_ttl_counts_where_the_response_says_nothing() {
    let rules = Rules {
        ttl: vec![
            (200, Duration::from_secs(60)),
            (404, Duration::from_secs(10)),
        ],
        stale_while_revalidate: Duration::from_secs(30),
        stale_if_error: Duration::from_secs(30),
        ..Rules::default()
    };
    assert_eq!(left(&rules, 200, ""), Ok(60));
    assert_eq!(left(&rules, 404, ""), Ok(10));
    assert_eq!(left(&rules, 404, "Cache-Control: max-age=5"), Ok(5));
    assert_eq!(left(&rules, 500, ""), Err(NotStored::NeverFresh));
    assert_eq!(
        left(&rules, 404, "Cache-Control: no-store"),
        Err(NotStored::NoStore)
    );
    assert_eq!(
        left(&rules, 200, "Set-Cookie: a=b"),
        Err(NotStored::SetCookie)
    );
    // A failure is not served after its lifetime, unless its own directives allow it.
    let lifetime = |status, fields| store(&rules, "", status, fields).unwrap();
    let stale = |lifetime: Lifetime| (lifetime.while_revalidate, lifetime.if_error);
    assert_eq!(stale(lifetime(200, "")), (30, 30));
    assert_eq!(stale(lifetime(404, "")), (0, 0));
    let said = "Cache-Control: max-age=5, stale-while-revalidate=7";
    assert_eq!(stale(lifetime(404, said)), (7, 0));
}

#[test]
fn a_body_may_be_too_long() {
    let rules = Rules {
        max_body_bytes: 10,
        ..Rules::default()
    };
    let fields = |len| format!("Cache-Control: max-age=5\nContent-Length: {len}");
    assert_eq!(left(&rules, 200, &fields(10)), Ok(5));
    assert_eq!(left(&rules, 200, &fields(11)), Err(NotStored::TooLarge));
    assert!(rules.admits(10) && !rules.admits(11));
    assert!(Rules::default().admits(u64::MAX));
}
