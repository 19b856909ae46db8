//! `Vary`: which further requests a stored response answers (RFC 9111 §4.1).

use std::collections::BTreeSet;

use evenkeel_proto::Field;

use crate::message::{Request, Response};

/// Most names in `Vary`; a response with more is not stored.
pub const MAX_NAMES: usize = 32;

/// Most bytes of the values that a stored response was selected by.
pub const MAX_SELECTOR_BYTES: usize = 8 * 1024;

/// Appends the selector of a response: the names in its `Vary`, and the request's values of
/// these fields. Nothing for a response without `Vary`.
///
/// `None` if the response answers no other request (`*`), or has too many names or values.
pub fn push_selector(
    out: &mut Vec<u8>,
    response: &Response<'_>,
    request: &Request<'_>,
) -> Option<()> {
    let mut names = BTreeSet::new();
    for line in response.values("vary") {
        for name in line.split(|&byte| byte == b',') {
            let name = name.trim_ascii().to_ascii_lowercase();
            match name.as_slice() {
                b"" => {}
                b"*" => return None,
                _ if names.len() == MAX_NAMES => return None,
                _ => {
                    names.insert(name);
                }
            }
        }
    }
    let start = out.len();
    for name in &names {
        push_part(out, name, request);
    }
    (out.len() - start <= MAX_SELECTOR_BYTES).then_some(())
}

/// Appends a name and the request's value of this field.
fn push_part(out: &mut Vec<u8>, name: &[u8], request: &Request<'_>) {
    out.extend_from_slice(name);
    out.push(NAME_END);
    push_value(out, name, request);
    out.push(VALUE_END);
}

/// The names in a selector, each with its end: responses with the same `Vary` have the
/// same.
pub fn names(selector: &[u8]) -> Vec<u8> {
    let mut names = Vec::new();
    let mut rest = selector;
    while let Some(name_end) = memchr::memchr(NAME_END, rest) {
        names.extend_from_slice(&rest[..=name_end]);
        rest = match memchr::memchr(VALUE_END, &rest[name_end..]) {
            Some(value_end) => &rest[name_end + value_end + 1..],
            None => &[],
        };
    }
    names
}

/// The selector that a response with these [`names`] has for a request.
pub fn selector_of(names: &[u8], request: &Request<'_>) -> Vec<u8> {
    let mut selector = Vec::new();
    let names = names.split(|&byte| byte == NAME_END);
    for name in names.filter(|name| !name.is_empty()) {
        push_part(&mut selector, name, request);
    }
    selector
}

/// Whether a request has the same values in all fields of a selector as the first request.
pub fn selects(selector: &[u8], request: &Request<'_>) -> bool {
    let mut rest = selector;
    let mut value = Vec::new();
    while let Some(name_end) = memchr::memchr(NAME_END, rest) {
        let name = &rest[..name_end];
        value.clear();
        push_value(&mut value, name, request);
        value.push(VALUE_END);
        match rest[name_end + 1..].strip_prefix(value.as_slice()) {
            Some(after) => rest = after,
            None => return false,
        }
    }
    rest.is_empty()
}

// No byte of a head is one of these.
const NAME_END: u8 = b'\n';
const VALUE_END: u8 = b'\0';
/// The value of a field that is absent; one that is empty is empty.
const ABSENT: u8 = b'\r';
/// Before a field whose name an endpoint may take for another.
const ALIKE: u8 = b'\r';

/// Appends a request's value of a field in comparable form: lines joined, and no white space
/// around commas. Languages, codings and character sets are compared without case.
///
/// A field whose name some endpoints take for this one (`X_A` for `X-A`) counts too. It is
/// marked as such, because other endpoints take it for a different field.
pub(crate) fn push_value(out: &mut Vec<u8>, name: &[u8], request: &Request<'_>) {
    let start = out.len();
    let fields = || request.head.fields.iter();
    let mut is_absent = true;
    for field in fields().filter(|field| field.is_named(name, request.bytes)) {
        if !is_absent {
            out.push(b',');
        }
        is_absent = false;
        push_joined(out, field.value.of(request.bytes));
    }
    if is_absent {
        out.push(ABSENT);
    }
    let is_alike = |field: &&Field| {
        field.is_read_as(name, request.bytes) && !field.is_named(name, request.bytes)
    };
    for field in fields().filter(is_alike) {
        out.push(ALIKE);
        let alike = field.name.of(request.bytes);
        out.extend(alike.iter().map(u8::to_ascii_lowercase));
        out.push(b':');
        push_joined(out, field.value.of(request.bytes));
    }
    const WITHOUT_CASE: [&[u8]; 3] = [b"accept-language", b"accept-encoding", b"accept-charset"];
    if WITHOUT_CASE.contains(&name) {
        out[start..].make_ascii_lowercase();
    }
}

/// Without the white space around commas that no quotes enclose.
fn push_joined(out: &mut Vec<u8>, value: &[u8]) {
    if !value.contains(&b',') {
        out.extend_from_slice(value);
        return;
    }
    // Within quotes nothing is changed; what quotes a `"` there is not looked at: the
    // worst is that one request is taken for two.
    let mut is_quoted = false;
    for &byte in value {
        is_quoted ^= byte == b'"';
        let is_space = byte == b' ' || byte == b'\t';
        if byte == b',' && !is_quoted {
            while out.ends_with(b" ") || out.ends_with(b"\t") {
                out.pop();
            }
        }
        if is_space && !is_quoted && out.ends_with(b",") {
            continue;
        }
        out.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::tests::{get, response};

    /// Whether what answered a request with the first fields answers one with the
    /// second.
    fn answers(vary: &str, first: &str, second: &str) -> bool {
        let mut selector = Vec::new();
        let response = response(200, vary);
        let made = push_selector(&mut selector, &response.view(), &get(first).view());
        assert_eq!(made, Some(()), "{vary}");
        assert!(selects(&selector, &get(first).view()), "{vary} {first}");
        let is_answer = selects(&selector, &get(second).view());
        let other = selector_of(&names(&selector), &get(second).view());
        assert_eq!(other == selector, is_answer, "{vary} {first} {second}");
        is_answer
    }

    /// RFC 9111 §4.1.
    #[test]
    fn compares_the_fields_that_are_named() {
        for (vary, first, second, expected) in [
            ("", "Foo: 1", "Foo: 2", true),
            ("Vary: Foo", "Foo: 1", "Foo: 1", true),
            ("Vary: Foo", "Foo: 1", "Foo: 2", false),
            ("Vary: Foo", "Foo: 1", "foo: 1\nOther: 2", true),
            ("Vary: Foo", "", "Foo: 1", false),
            ("Vary: Foo", "Foo: 1", "", false),
            ("Vary: Foo", "", "", true),
            // Absent is not empty.
            ("Vary: Foo", "", "Foo:", false),
            ("Vary: Foo, Bar", "Foo: 1\nBar: 2", "Bar: 2\nFoo: 1", true),
            ("Vary: Foo, Bar", "Foo: 1\nBar: 2", "Foo: 2\nBar: 1", false),
            ("Vary: Foo\nVary: , bar", "Foo: 1\nBar: 2", "Foo: 1", false),
            ("Vary: Foo, Bar", "Foo: 12", "Foo: 1\nBar: 2", false),
            // A spelling that some endpoints take for the field, and others do not.
            ("Vary: X-User", "X-User: 1", "X_User: 1", false),
            ("Vary: X-User", "X_User: 1", "Foo: 1", false),
            ("Vary: X-User", "X_User: 1", "x_uSer: 1", true),
            ("Vary: X-User", "X-User: 1", "X-User: 1\nX_User: 2", false),
            // Lists in another spelling.
            ("Vary: Foo", "Foo: 1, 2", "Foo: 1\nFoo: 2", true),
            ("Vary: Foo", "Foo: 1,2", "Foo:  1 ,\t2 ", true),
            ("Vary: Foo", "Foo: \"1, 2\"", "Foo: \"1,2\"", false),
            ("Vary: Foo", "Foo: a", "Foo: A", false),
            (
                "Vary: Accept-Language",
                "Accept-Language: en, de",
                "Accept-Language: eN,De",
                true,
            ),
            (
                "Vary: Accept-Language",
                "Accept-Language: en, de",
                "Accept-Language: de, en",
                false,
            ),
            (
                "Vary: ACCEPT-encoding",
                "Accept-Encoding: gzip",
                "Accept-Encoding: GZIP",
                true,
            ),
        ] {
            let found = answers(vary, first, second);
            assert_eq!(found, expected, "{vary:?} {first:?} {second:?}");
        }
    }

    #[test]
    fn a_star_answers_no_other() {
        for vary in ["*", "*, *", ", *", "Foo, *", "*, Foo"] {
            let response = response(200, &format!("Vary: {vary}"));
            let made = push_selector(&mut Vec::new(), &response.view(), &get("").view());
            assert_eq!(made, None, "{vary}");
        }
    }

    #[test]
    fn bounds_what_is_kept() {
        let names = |count| {
            let names: Vec<_> = (0..count).map(|at| format!("n{at}")).collect();
            response(200, &format!("Vary: {}", names.join(",")))
        };
        let make = |response: &crate::message::tests::Sent<evenkeel_proto::ResponseHead>,
                    fields: &str| {
            push_selector(&mut Vec::new(), &response.view(), &get(fields).view())
        };
        assert_eq!(make(&names(MAX_NAMES), ""), Some(()));
        assert_eq!(make(&names(MAX_NAMES + 1), ""), None);
        let long = format!("n0: {}", "x".repeat(MAX_SELECTOR_BYTES));
        assert_eq!(make(&names(1), &long), None);
    }
}
