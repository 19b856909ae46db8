//! Invalidation by unsafe requests (RFC 9111 §4.4).

use evenkeel_policy::route::path::without_dot_segments;
use evenkeel_proto::{Method, Scheme};

use crate::key::{Key, Secret};
use crate::message::{Request, Response};
use crate::rules::Rules;

/// The keys that a request and its response invalidate: the URL of the request, and those of
/// `Location` and `Content-Location` at the same origin. Empty if the method is safe or the
/// request failed.
pub fn outdated(
    secret: &Secret,
    rules: &Rules,
    request: &Request<'_>,
    response: &Response<'_>,
) -> Vec<Key> {
    let is_safe = matches!(
        request.head.method,
        Method::Get | Method::Head | Method::Options | Method::Trace | Method::Connect
    );
    if is_safe || !(200..400).contains(&response.head.status) {
        return Vec::new();
    }
    let host = request.head.host.of(request.bytes);
    let key_of = |target: &[u8]| rules.key.key_of_url(secret, request.scheme, host, target);
    let mut path_and_query = request.head.path(request.bytes).to_vec();
    let query = request.head.query.of(request.bytes);
    if !query.is_empty() {
        path_and_query.push(b'?');
        path_and_query.extend_from_slice(query);
    }
    let mut keys = vec![key_of(&path_and_query)];
    for name in ["location", "content-location"] {
        let values = response.values(name);
        let targets = values.filter_map(|value| resolve(request, host, &path_and_query, value));
        keys.extend(targets.map(|target| key_of(&target)));
    }
    keys
}

/// Path and query of a reference, seen from the request's URL; `None` at another origin
/// (RFC 3986 §5.2).
fn resolve(request: &Request<'_>, host: &[u8], base: &[u8], reference: &[u8]) -> Option<Vec<u8>> {
    let end = memchr::memchr(b'#', reference).unwrap_or(reference.len());
    let reference = &reference[..end];
    let base_end = memchr::memchr(b'?', base).unwrap_or(base.len());
    let base_path = &base[..base_end];
    let segment_end = |text: &[u8]| {
        let ends = |&byte: &u8| matches!(byte, b'/' | b'?');
        text.iter().position(ends).unwrap_or(text.len())
    };
    let authority = match scheme_end(reference) {
        Some(at) if !is_scheme(&reference[..at], request.scheme) => return None,
        Some(at) => Some(reference[at + 1..].strip_prefix(b"//")?),
        None => reference.strip_prefix(b"//"),
    };
    let target = match authority {
        Some(rest) => {
            let (other, target) = rest.split_at(segment_end(rest));
            if !is_same_host(other, host, request.scheme) {
                return None;
            }
            target.to_vec()
        }
        None => match reference.first() {
            None => base.to_vec(),
            Some(b'/') => reference.to_vec(),
            Some(b'?') => [base_path, reference].concat(),
            Some(_) => {
                let folder = memchr::memrchr(b'/', base_path).map_or(0, |at| at + 1);
                [&base_path[..folder], reference].concat()
            }
        },
    };
    let path_end = memchr::memchr(b'?', &target).unwrap_or(target.len());
    let mut resolved = without_dot_segments(&target[..path_end]);
    resolved.extend_from_slice(&target[path_end..]);
    Some(resolved)
}

/// The index at which the scheme of a reference ends, if it has one.
fn scheme_end(reference: &[u8]) -> Option<usize> {
    let at = reference.iter().position(|byte| b":/?".contains(byte))?;
    (reference[at] == b':').then_some(at)
}

fn is_scheme(text: &[u8], scheme: Scheme) -> bool {
    text.eq_ignore_ascii_case(scheme.as_str().as_bytes())
}

/// Whether two authorities are the same origin.
fn is_same_host(one: &[u8], other: &[u8], scheme: Scheme) -> bool {
    let default: &[u8] = match scheme {
        Scheme::Http => b":80",
        Scheme::Https => b":443",
    };
    let plain = |host| -> &[u8] { <[u8]>::strip_suffix(host, default).unwrap_or(host) };
    plain(one).eq_ignore_ascii_case(plain(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::message::tests::{request, response};
    use crate::object::tests::SECRET;

    fn urls(line: &str, status: u16, fields: &str) -> Vec<String> {
        let sent = request(line, "");
        let response = response(status, fields);
        let keys = outdated(&SECRET, &Rules::default(), &sent.view(), &response.view());
        let url = |key: &Key| {
            let url = String::from_utf8(key.url().to_vec()).unwrap();
            url.strip_prefix("http://example.com").unwrap().to_owned()
        };
        keys.iter().map(url).collect()
    }

    #[test]
    fn what_changes_something_makes_its_url_out_of_date() {
        for method in ["POST", "PUT", "DELETE", "M-SEARCH", "PATCH"] {
            let line = format!("{method} /a?b");
            for status in [200, 204, 303] {
                assert_eq!(urls(&line, status, ""), ["/a?b"], "{method} {status}");
            }
            for status in [400, 404, 500, 503] {
                assert_eq!(urls(&line, status, ""), [""; 0], "{method} {status}");
            }
        }
        for method in ["GET", "HEAD", "OPTIONS"] {
            assert_eq!(urls(&format!("{method} /a"), 200, ""), [""; 0], "{method}");
        }
    }

    #[test]
    fn follows_references_to_the_same_origin() {
        for (reference, resolved) in [
            ("http://example.com/x", Some("/x")),
            ("HTTP://EXAMPLE.com:80/x?y#z", Some("/x?y")),
            ("http://example.com", Some("/")),
            ("http://example.com?q", Some("/?q")),
            ("//example.com/x", Some("/x")),
            ("/x", Some("/x")),
            ("x", Some("/a/x")),
            ("../x/./y", Some("/x/y")),
            ("x?u=http://other/", Some("/a/x?u=http://other/")),
            ("?c", Some("/a/b?c")),
            ("#f", Some("/a/b?q")),
            ("", Some("/a/b?q")),
            ("https://example.com/x", None),
            ("http://example.com:8080/x", None),
            ("http://other/x", None),
            ("//other/x", None),
            ("http://example.com@other/x", None),
            ("mailto:a@example.com", None),
            ("http:x", None),
        ] {
            for name in ["Location", "Content-Location"] {
                let found = urls("POST /a/b?q", 201, &format!("{name}: {reference}"));
                let expected: Vec<&str> = ["/a/b?q"].into_iter().chain(resolved).collect();
                assert_eq!(found, expected, "{reference}");
            }
        }
    }
}
