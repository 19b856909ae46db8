//! Validation: asking an endpoint whether a stored response is current, taking its
//! word, and answering the conditions of clients (RFC 9111 §4.3).

use evenkeel_policy::Instant;
use evenkeel_proto::http1::{Parsed, parse_response};
use evenkeel_proto::{
    ByteRange, Conditions, FieldKind, Method, Precondition, Ranges, ResponseHead, Validators, date,
};

use crate::key::{Key, Secret};
use crate::message::{Request, Response};
use crate::object::{Object, StoredHead, is_stored, lines, push_line};
use crate::rules::Rules;
use crate::storing::{NotStored, Received};

/// Whether a field of a client's request is left out of the cache's own request. The cache
/// answers this field itself.
pub fn is_withheld(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 4] = [
        b"if-none-match",
        b"if-modified-since",
        b"if-range",
        b"range",
    ];
    NAMES.iter().any(|it| name.eq_ignore_ascii_case(it))
}

/// Appends the fields that ask whether stored responses are current (RFC 9111 §4.3.1).
///
/// They are the tags of all variants, and the date of the variant that answers the request.
/// Returns whether any field was appended.
pub fn push_conditions(out: &mut Vec<u8>, answering: Option<&Object>, variants: &[Object]) -> bool {
    let start = out.len();
    let mut tags: Vec<&[u8]> = Vec::new();
    for tag in answering.into_iter().chain(variants).filter_map(tag_of) {
        if !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    if !tags.is_empty() {
        push_line(out, b"If-None-Match", &tags.join(&b", "[..]));
    }
    let modified = answering.filter(|it| it.modified().is_some());
    if let Some(modified) = modified.and_then(|it| it.value("last-modified")) {
        push_line(out, b"If-Modified-Since", modified);
    }
    out.len() > start
}

/// The entity tag of an object, if it is well-formed (RFC 9110 §8.8.3).
fn tag_of(object: &Object) -> Option<&[u8]> {
    let tag = object.value("etag")?;
    let opaque = opaque_of(tag);
    let inner = opaque.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let is_sound = |&byte: &u8| byte > b' ' && byte != b'"' && byte != 0x7f;
    inner.iter().all(is_sound).then_some(tag)
}

/// A tag without what says that it is weak.
fn opaque_of(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// The object that a 304 confirms, among those asked about, the newest first (RFC 9111 §4.3.4).
///
/// `None` if the 304 is for none of them: then the response is requested again without
/// conditions.
///
/// Deviation: a 304 without validators confirms the only object asked about, even if that
/// object has validators, since the 304 can mean no other one.
pub fn confirmed<'a>(asked: &'a [Object], response: &Response<'_>) -> Option<&'a Object> {
    if let Some(tag) = response.values("etag").next() {
        let is_weak = tag.starts_with(b"W/");
        return asked.iter().find(|object| {
            object.value("etag").is_some_and(|stored| {
                if is_weak {
                    opaque_of(stored) == opaque_of(tag)
                } else {
                    stored == tag
                }
            })
        });
    }
    if let Some(modified) = response.values("last-modified").next() {
        return asked
            .iter()
            .find(|object| object.value("last-modified") == Some(modified));
    }
    match asked {
        [only] => Some(only),
        _ => None,
    }
}

/// An object whose head was renewed.
#[derive(Debug, Clone)]
pub struct Renewed {
    /// The object: it answers the request that validated it in any case.
    pub object: Object,
    /// Whether it may be stored further.
    pub may_keep: Result<(), NotStored>,
}

/// The inputs of a renewal.
#[derive(Debug, Clone, Copy)]
pub struct Renewal<'a> {
    /// The route's.
    pub rules: &'a Rules,
    /// The store's.
    pub secret: &'a Secret,
    /// Of the request.
    pub key: &'a Key,
    /// The request that validated.
    pub request: &'a Request<'a>,
    /// The 304 to it, or the answer to a HEAD.
    pub response: &'a Response<'a>,
    /// When that came.
    pub received: &'a Received,
    /// The count of purges when it was asked for.
    pub seen: u64,
}

impl Renewal<'_> {
    /// The object with the response's fields in place of its own (RFC 9111 §3.2).
    ///
    /// `None` if both together have more fields than a head may have.
    pub fn apply(&self, object: &Object) -> Option<Renewed> {
        let text = self.merged(object);
        let mut head = ResponseHead::default();
        let parsed = parse_response(&text, Method::Get, &mut head);
        if parsed != Ok(Parsed::Complete) {
            return None;
        }
        head.status = object.status();
        let merged = Response {
            head: &head,
            bytes: &text,
        };
        let decided = self.rules.may_keep(self.request, &merged, self.received);
        let lifetime = decided.unwrap_or_default();
        let unix_s = self.received.unix_s;
        let stored = StoredHead::of(self.secret, self.request, &merged, unix_s);
        // A response with `Vary: *` is not stored, but it answers this request.
        let (stored, may_keep) = match stored {
            Some(stored) => (stored, decided.map(|_| ())),
            None => (object.head(), decided.and(Err(NotStored::VaryStar))),
        };
        let arrived: Instant = self.received.arrived;
        let body = object.body();
        let object = Object::new(self.key, &stored, &body, &lifetime, arrived, self.seen)?;
        Some(Renewed { object, may_keep })
    }

    /// A head with the fields of both.
    fn merged(&self, object: &Object) -> Vec<u8> {
        let (head, bytes) = (self.response.head, self.response.bytes);
        let fields = || {
            let fields = head.fields.iter();
            fields.filter(|field| is_stored(field, bytes) && !is_kept(field.name.of(bytes)))
        };
        let has_date = fields().any(|field| field.kind == FieldKind::Date);
        let mut text = Vec::with_capacity(object.lines().len() + 256);
        text.extend_from_slice(b"HTTP/1.1 200 ");
        text.extend_from_slice(object.reason());
        text.extend_from_slice(b"\r\n");
        for line in lines(object.lines()) {
            let is_replaced = fields().any(|field| field.is_named(line.name, bytes));
            // A 304 without a date is of the moment at which it came.
            let is_old_date = !has_date && line.name.eq_ignore_ascii_case(b"date");
            if !is_replaced && !is_old_date {
                text.extend_from_slice(line.whole);
            }
        }
        for field in fields() {
            push_line(&mut text, field.name.of(bytes), field.value.of(bytes));
        }
        for age in self.response.values("age") {
            push_line(&mut text, b"Age", age);
        }
        text.extend_from_slice(b"\r\n");
        text
    }
}

/// Whether a field of a stored head is kept: it says how to read the body, or identifies the
/// body (RFC 9111 §3.2).
fn is_kept(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 5] = [
        b"content-encoding",
        b"content-length",
        b"content-md5",
        b"content-range",
        b"etag",
    ];
    NAMES.iter().any(|it| name.eq_ignore_ascii_case(it))
}

/// The effect of a response to HEAD on a stored GET (RFC 9111 §4.3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadEffect {
    /// The response is for the same representation: the object is renewed.
    Renews,
    /// The response is for another representation: the object is stale.
    Outdates,
    /// The response does not concern the object.
    None,
}

/// The effect of a response to HEAD on an object.
pub fn head_effect(object: &Object, response: &Response<'_>) -> HeadEffect {
    if response.head.status != 200 || object.status() != 200 {
        return HeadEffect::None;
    }
    let is_same = |name| match response.values(name).next() {
        Some(value) => object.value(name) == Some(value),
        None => true,
    };
    let len = response.values("content-length").next();
    let stored_len = itoa::Buffer::new().format(object.body_len()).to_owned();
    let has_len = len.is_none_or(|len| len == stored_len.as_bytes());
    if is_same("etag") && is_same("last-modified") && has_len {
        HeadEffect::Renews
    } else {
        HeadEffect::Outdates
    }
}

/// The part of an object that a client gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// All of it.
    Whole,
    /// 304, without the body.
    NotModified,
    /// 206, with these parts.
    Parts(Vec<ByteRange>),
    /// 416.
    Unsatisfiable,
}

/// The part of an object that answers a request with its conditions and ranges (RFC 9111
/// §4.3.2, RFC 9110 §13 and §14). `body_len` is the length of its body, which may be stored
/// elsewhere.
pub fn reply(object: &Object, body_len: u64, request: &Request<'_>) -> Reply {
    // RFC 9110 §13.2.1, §14.2.
    if object.status() != 200 {
        return Reply::Whole;
    }
    let conditions = Conditions::of(request.head, request.bytes);
    if conditions.is_plain() {
        return Reply::Whole;
    }
    let entity_tag = object.value("etag").unwrap_or_default();
    let modified = object.modified();
    let date = || date::parse(object.value("date")?);
    let dated = Validators {
        entity_tag,
        modified: modified.or_else(date),
    };
    if conditions.precondition(request.bytes, &dated) == Precondition::NotModified {
        return Reply::NotModified;
    }
    if request.head.method != Method::Get {
        return Reply::Whole;
    }
    let validators = Validators {
        entity_tag,
        modified,
    };
    match conditions.ranges(request.bytes, &validators, body_len) {
        Ranges::Whole => Reply::Whole,
        Ranges::Unsatisfiable => Reply::Unsatisfiable,
        Ranges::Some(parts) => Reply::Parts(parts),
    }
}

/// Whether a field of a stored head is in a 304 (RFC 9110 §15.4.5): what describes the
/// body is not.
pub fn is_in_not_modified(name: &[u8]) -> bool {
    const DESCRIPTIONS: [&[u8]; 5] = [
        b"content-encoding",
        b"content-language",
        b"content-md5",
        b"content-range",
        b"content-type",
    ];
    !DESCRIPTIONS.iter().any(|it| name.eq_ignore_ascii_case(it))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::freshness::Usable;
    use crate::message::tests::{get, request, response};
    use crate::object::tests::{NOW, SECRET, key_of, object};
    use std::time::Duration;

    const DATE: &str = "Date: Sun, 06 Nov 1994 08:49:37 GMT";
    const NOON: u64 = 784_111_777;

    fn stored(fields: &str) -> Object {
        object("/", "", fields, b"body", 0)
    }

    fn renew(object: &Object, asked: &str, fields: &str) -> Renewed {
        let asked = get(asked);
        let response = response(304, fields);
        let renewal = Renewal {
            rules: &Rules::default(),
            secret: &SECRET,
            key: &key_of("/"),
            request: &asked.view(),
            response: &response.view(),
            received: &Received {
                asked: NOW,
                arrived: NOW,
                unix_s: NOON,
            },
            seen: 7,
        };
        renewal.apply(object).unwrap()
    }

    fn text(object: &Object) -> String {
        String::from_utf8(object.lines().to_vec()).unwrap()
    }

    /// RFC 9111 §4.3.1.
    #[test]
    fn asks_by_all_tags_and_the_date_of_one() {
        let lm = "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT";
        let one = stored(&format!("ETag: \"1\"\n{lm}"));
        let two = stored("ETag: W/\"2\"");
        let ask = |answering: Option<&Object>, variants: &[Object]| {
            let mut out = Vec::new();
            let is_asked = push_conditions(&mut out, answering, variants);
            assert_eq!(is_asked, !out.is_empty());
            String::from_utf8(out).unwrap()
        };
        let since = "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        let all = [one.clone(), two.clone()];
        let both = "If-None-Match: \"1\", W/\"2\"\r\n";
        assert_eq!(ask(Some(&one), &all), format!("{both}{since}"));
        assert_eq!(ask(None, &all), both);
        assert_eq!(ask(Some(&stored(lm)), &[]), since);
        for fields in [
            "",
            "ETag: x",
            "ETag: \"a b\"",
            "ETag: \"",
            "Last-Modified: x",
            "ETag:",
        ] {
            assert_eq!(ask(Some(&stored(fields)), &[]), "", "{fields}");
        }
        for (name, is) in [
            ("Range", true),
            ("IF-none-match", true),
            ("If-Match", false),
        ] {
            assert_eq!(is_withheld(name.as_bytes()), is);
        }
    }

    /// RFC 9111 §4.3.4.
    #[test]
    fn a_304_confirms_what_it_names() {
        let lm = |day| format!("Last-Modified: Sun, 0{day} Nov 1994 08:49:37 GMT");
        let asked = [
            stored(&format!("ETag: \"1\"\n{}", lm(6))),
            stored("ETag: W/\"2\""),
            stored(&lm(5)),
        ];
        let of = |asked: &[Object], fields: &str| {
            let response = response(304, fields);
            let found = confirmed(asked, &response.view())?;
            asked.iter().position(|it| it.lines() == found.lines())
        };
        for (fields, index) in [
            ("ETag: \"1\"".to_owned(), Some(0)),
            ("ETag: W/\"1\"".to_owned(), Some(0)),
            ("ETag: W/\"2\"".to_owned(), Some(1)),
            // A strong tag means a strong one.
            ("ETag: \"2\"".to_owned(), None),
            // Another variant, whatever else it says.
            (format!("ETag: \"3\"\n{}", lm(5)), None),
            (lm(5), Some(2)),
            (lm(6), Some(0)),
            (lm(4), None),
            (String::new(), None),
        ] {
            assert_eq!(of(&asked, &fields), index, "{fields}");
        }
        assert_eq!(of(&asked[..1], ""), Some(0));
        assert_eq!(of(&asked[..1], "ETag: \"ghijkl\""), None);
    }

    /// RFC 9111 §3.2.
    #[test]
    fn a_304_replaces_fields_and_adds_none_twice() {
        let before = "Date: x\r\nA: 1\r\na: 2\r\nB: 3\r\nETag: \"1\"\r\nContent-Encoding: br\r\n\
                      Content-Range: q\r\nContent-MD5: m\r\nContent-Type: t\r\n";
        let mut object = stored(&before.replace("\r\n", "\n"));
        let sent = format!(
            "{DATE}\na: 4\nA: 5\nC: 6\nETag: W/\"1\"\nContent-Encoding: gzip\nContent-Length: 9\n\
             Content-Range: r\nContent-MD5: n\nContent-Type: u\nConnection: D\nD: 7\n\
             Cache-Control: max-age=5\nAge: 2"
        );
        let after = format!(
            "B: 3\r\nETag: \"1\"\r\nContent-Encoding: br\r\nContent-Range: q\r\nContent-MD5: m\r\n\
             {DATE}\r\na: 4\r\nA: 5\r\nC: 6\r\nContent-Type: u\r\nCache-Control: max-age=5\r\n"
        );
        for turn in 0..3 {
            let renewed = renew(&object, "", &sent);
            assert_eq!(renewed.may_keep, Ok(()));
            object = renewed.object;
            assert_eq!(text(&object), after, "turn {turn}");
        }
        assert_eq!((object.body_at(0), object.seen()), (&b"body"[..], 7));
        assert_eq!((object.status(), object.reason()), (200, &b"Reason"[..]));
        let usable = |seconds| {
            let stored = object.stored(NOW + Duration::from_secs(seconds));
            Rules::default().usable(&stored, &crate::RequestDirectives::default())
        };
        assert_eq!(usable(2), Usable::Fresh);
        assert_ne!(usable(3), Usable::Fresh);
    }

    #[test]
    fn a_304_may_end_the_storing() {
        let object = stored("ETag: \"1\"\nCache-Control: max-age=1");
        for (fields, reason) in [
            ("Cache-Control: no-store", NotStored::NoStore),
            ("Cache-Control: private", NotStored::Private),
            ("Vary: *", NotStored::VaryStar),
        ] {
            let renewed = renew(&object, "", fields);
            assert_eq!(renewed.may_keep, Err(reason), "{fields}");
            assert_eq!(renewed.object.body_at(0), b"body");
        }
    }

    #[test]
    fn a_304_renews_the_date_and_what_it_was_selected_by() {
        let object =
            stored("ETag: \"1\"\nDate: Sat, 05 Nov 1994 08:49:37 GMT\nCache-Control: max-age=9");
        let renewed = renew(&object, "Foo: 1", "Vary: Foo").object;
        assert!(text(&renewed).contains(DATE), "{}", text(&renewed));
        assert_eq!(renewed.age(NOW), Duration::ZERO);
        assert!(crate::vary::selects(
            renewed.selector(),
            &get("Foo: 1").view()
        ));
        assert!(!crate::vary::selects(
            renewed.selector(),
            &get("Foo: 2").view()
        ));
    }

    /// RFC 9111 §4.3.5.
    #[test]
    fn a_head_renews_only_what_is_the_same() {
        use HeadEffect::*;
        let object = stored("ETag: \"1\"\nLast-Modified: x");
        for (status, fields, effect) in [
            (
                200,
                "ETag: \"1\"\nLast-Modified: x\nContent-Length: 4",
                Renews,
            ),
            (200, "", Renews),
            (200, "ETag: \"2\"", Outdates),
            (200, "Last-Modified: y", Outdates),
            (200, "Content-Length: 5", Outdates),
            (404, "ETag: \"2\"", None),
            (503, "", None),
        ] {
            let response = response(status, fields);
            assert_eq!(head_effect(&object, &response.view()), effect, "{fields}");
        }
    }

    /// RFC 9111 §4.3.2.
    #[test]
    fn answers_conditions_and_ranges() {
        let object = stored("ETag: \"1\"\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT");
        let parts = |first, last| Reply::Parts(vec![ByteRange { first, last }]);
        let before = "If-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT";
        for (fields, expected) in [
            ("", Reply::Whole),
            ("If-None-Match: \"1\"", Reply::NotModified),
            ("If-None-Match: W/\"1\"", Reply::NotModified),
            ("If-None-Match: \"2\"", Reply::Whole),
            ("If-None-Match: \"2\", \"1\"", Reply::NotModified),
            (
                &format!("If-None-Match: \"1\"\n{before}"),
                Reply::NotModified,
            ),
            (
                "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT",
                Reply::NotModified,
            ),
            (before, Reply::Whole),
            ("Range: bytes=1-2", parts(1, 2)),
            ("Range: bytes=-1", parts(3, 3)),
            ("Range: bytes=4-", Reply::Unsatisfiable),
            ("Range: bytes=1-2\nIf-Range: \"1\"", parts(1, 2)),
            ("Range: bytes=1-2\nIf-Range: \"2\"", Reply::Whole),
            ("Range: bytes=1-2\nIf-None-Match: \"1\"", Reply::NotModified),
        ] {
            assert_eq!(
                reply(&object, object.body_len(), &get(fields).view()),
                expected,
                "{fields}"
            );
        }
        let head = request("HEAD /", "Range: bytes=1-2");
        assert_eq!(
            reply(&object, object.body_len(), &head.view()),
            Reply::Whole
        );
        // Without a Last-Modified the date counts, but not for ranges.
        let dated = stored(DATE);
        let since = "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(
            reply(&dated, dated.body_len(), &get(since).view()),
            Reply::NotModified
        );
        assert_eq!(
            reply(&dated, dated.body_len(), &get(before).view()),
            Reply::Whole
        );
        let range = "Range: bytes=1-2\nIf-Range: Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(
            reply(&dated, dated.body_len(), &get(range).view()),
            Reply::Whole
        );
        assert!(is_in_not_modified(b"Content-Location") && !is_in_not_modified(b"Content-Type"));
    }
}
