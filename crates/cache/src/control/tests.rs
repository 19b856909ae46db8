use super::*;
use crate::message::tests::{get, response};

fn of(fields: &str) -> Directives {
    Directives::of(&response(200, fields).view())
}

/// The directives of one `Cache-Control`.
fn control(value: &str) -> Directives {
    of(&format!("Cache-Control: {value}"))
}

#[test]
fn reads_numbers() {
    for (value, max_age) in [
        ("max-age=3600", Some(3600)),
        ("MaX-aGe=3600", Some(3600)),
        ("max-age=\"3600\"", Some(3600)),
        ("max-age=003600", Some(3600)),
        ("foobar, max-age=3600", Some(3600)),
        (",, max-age=3600 ,", Some(3600)),
        ("max-age=0", Some(0)),
        ("max-age=4294967295", Some(Seconds::MAX)),
        ("max-age=99999999999999999999999", Some(Seconds::MAX)),
        // RFC 9111 §4.2.1: what can't be read is over.
        ("max-age=-3600", Some(0)),
        ("max-age=+3600", Some(0)),
        ("max-age='3600'", Some(0)),
        ("max-age=3600.0", Some(0)),
        ("max-age=a3600", Some(0)),
        ("max-age=3600a", Some(0)),
        ("max-age =3600", Some(0)),
        ("max-age= 3600", Some(0)),
        ("max-age=\"3600\"1", Some(0)),
        ("max-age=", Some(0)),
        ("max-age", Some(0)),
        // The smallest of several.
        ("max-age=3600, max-age=1", Some(1)),
        ("max-age=1, max-age=3600", Some(1)),
        ("max-age=3600, max-age=x", Some(0)),
        ("x-max-age=3600", None),
        ("max-age-x=3600", None),
        ("", None),
    ] {
        assert_eq!(control(value).max_age, max_age, "{value}");
    }
}

#[test]
fn quotes_hide_what_is_in_them() {
    for (value, max_age, no_store) in [
        ("x=\"max-age=3600\", max-age=1", Some(1), false),
        ("max-age=1, x=\"max-age=0\"", Some(1), false),
        ("x=\"a, max-age=3600\", max-age=1", Some(1), false),
        ("x=\"no-store\"", None, false),
        ("x=\"a, no-store\"", None, false),
        ("x=\"a\\\", no-store\"", None, false),
        // A quote that is not closed hides nothing.
        ("x=\"a, no-store", None, true),
        ("x=\", no-store, max-age=5", Some(5), true),
        ("x=\"a\\\", no-store", None, true),
        ("x=\"", None, false),
        ("\"no-store", None, false),
    ] {
        let found = control(value);
        assert_eq!(
            (found.max_age, found.no_store),
            (max_age, no_store),
            "{value}"
        );
    }
}

#[test]
fn reads_flags_however_they_are_written() {
    let all = control(
        "No-StOrE, no-cache=\"set-cookie\", private=x, public, must-revalidate, \
         proxy-revalidate=1, must-understand, s-maxage=5, stale-while-revalidate=6, \
         stale-if-error=7",
    );
    assert_eq!(
        all,
        Directives {
            max_age: None,
            s_maxage: Some(5),
            stale_while_revalidate: Some(6),
            stale_if_error: Some(7),
            no_store: true,
            no_cache: true,
            private: true,
            public: true,
            must_revalidate: true,
            proxy_revalidate: true,
            must_understand: true,
            is_targeted: false,
        }
    );
    assert_eq!(
        control("no-stores, no_store, nostore"),
        Directives::default()
    );
    assert_eq!(of("Cache_Control: no-store"), Directives::default());
}

#[test]
fn several_lines_are_one_list() {
    let found =
        of("Cache-Control: max-age=3600\ncache-control: s-maxage=1, x=\"\nCache-Control: no-cache");
    assert_eq!((found.max_age, found.s_maxage), (Some(3600), Some(1)));
    assert!(found.no_cache);
}

#[test]
fn says_what_may_be_stale_and_what_is_for_all() {
    for (value, forbid_stale, permit_authorized) in [
        ("max-age=1", false, false),
        ("must-revalidate", true, true),
        ("proxy-revalidate", true, false),
        ("no-cache", true, false),
        ("s-maxage=1", true, true),
        ("public", false, true),
    ] {
        let found = control(value);
        assert_eq!(found.forbid_stale(), forbid_stale, "{value}");
        assert_eq!(found.permit_authorized(), permit_authorized, "{value}");
    }
}

/// RFC 9213 §2.1 and §2.2.
#[test]
fn a_targeted_field_wins_if_it_is_valid() {
    let with = |value: &str| {
        of(&format!(
            "Cache-Control: no-store, max-age=1\nCDN-Cache-Control: {value}"
        ))
    };
    for (value, max_age) in [
        ("max-age=600", Some(600)),
        ("max-age=600;x=1, foo=(a b), bar=1.5", Some(600)),
        ("max-age=1, max-age=600", Some(600)),
        ("max-age=999999999999999", Some(Seconds::MAX)),
        ("max-age=-5", Some(0)),
        ("max-age=600.0", None),
        ("max-age=\"600\"", None),
        ("max-age", None),
        ("foo", None),
    ] {
        let found = with(value);
        assert_eq!((found.max_age, found.no_store), (max_age, false), "{value}");
        assert!(found.is_targeted, "{value}");
    }
    for value in [
        "",
        " ",
        "MAX-AGE=600",
        "max-age=600,",
        "max-age=",
        "&",
        "max-age=600, x=\"",
    ] {
        let found = with(value);
        assert_eq!((found.max_age, found.no_store), (Some(1), true), "{value}");
        assert!(!found.is_targeted, "{value}");
    }
    let flags = with("no-store, private, no-cache=?0, public=1, must-revalidate=?1");
    assert!(flags.no_store && flags.private && flags.must_revalidate);
    assert!(!flags.no_cache && !flags.public);
    let lines = of("CDN-Cache-Control: max-age=5\nCDN-Cache-Control: no-cache");
    assert_eq!((lines.max_age, lines.no_cache), (Some(5), true));
}

#[test]
fn reads_what_requests_ask() {
    let asked =
        |value: &str| RequestDirectives::of(&get(&format!("Cache-Control: {value}")).view());
    assert_eq!(
        asked(
            "max-age=1, min-fresh=2, max-stale=3, stale-if-error=4, no-cache, no-store, only-if-cached"
        ),
        RequestDirectives {
            max_age: Some(1),
            min_fresh: Some(2),
            max_stale: Some(3),
            stale_if_error: Some(4),
            no_cache: true,
            no_store: true,
            only_if_cached: true,
        }
    );
    assert_eq!(asked("max-stale").max_stale, Some(Seconds::MAX));
    for value in [
        "max-age=x, min-fresh=-1, max-stale=1.0, stale-if-error",
        "",
        "max-age",
    ] {
        assert_eq!(asked(value), RequestDirectives::default(), "{value}");
    }
    // RFC 9111 §5.4.
    let pragma = RequestDirectives::of(&get("Pragma: no-cache").view());
    assert_eq!(pragma, RequestDirectives::default());
}
