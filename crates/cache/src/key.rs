//! Keys: which requests have the same answer (RFC 9111 §2).
//!
//! A key begins with the URL as the endpoint sees it, `http://host/path?query`, so that every
//! part of the URL counts. Parts of the request that a route adds follow, each behind a NUL,
//! which no head contains.

use std::fmt;
use std::hash::Hasher;

use evenkeel_policy::route::Glob;
use evenkeel_proto::Scheme;
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::message::Request;
use crate::vary::push_value;

/// A random number of the process. Without it, nobody can make keys that collide.
#[derive(Clone, Copy)]
pub struct Secret(pub [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// SipHash-1-3 of some bytes, 128 bits long (Aumasson and Bernstein, 2012).
    pub fn hash(&self, bytes: &[u8]) -> u128 {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish128().as_u128()
    }
}

/// The parts of the query that belong to the key.
#[derive(Debug, Clone, Default)]
pub struct QueryRules {
    /// Only parameters of these names count; if empty, all count.
    pub only: Vec<Glob>,
    /// No parameters of these names.
    pub ignore: Vec<Glob>,
    /// Whether their order does not matter. Parameters of one name keep theirs.
    pub is_sorted: bool,
}

/// The parts of a route's keys beside scheme, host and path.
#[derive(Debug, Clone, Default)]
pub struct KeyRules {
    /// The parts of the query.
    pub query: QueryRules,
    /// Fields of the request, by name in lower case.
    pub headers: Vec<String>,
    /// Cookies, by name.
    pub cookies: Vec<String>,
}

/// The key under which an answer is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Of all of its bytes.
    pub hash: u128,
    /// Of the URL alone.
    pub url_hash: u128,
    /// The URL, and what follows it.
    pub bytes: Box<[u8]>,
    /// Length of the URL.
    pub url_len: usize,
}

impl Key {
    /// The URL at the beginning of the key.
    pub fn url(&self) -> &[u8] {
        &self.bytes[..self.url_len]
    }
}

impl KeyRules {
    /// The key of a request.
    pub fn key(&self, secret: &Secret, request: &Request<'_>) -> Key {
        let (head, bytes) = (request.head, request.bytes);
        let mut key = Vec::with_capacity(128);
        let host = head.host.of(bytes);
        push_origin(&mut key, request.scheme, host);
        let query = head.has_query().then(|| head.query.of(bytes));
        self.push_path(&mut key, head.path(bytes), query);
        let url_len = key.len();
        for name in &self.headers {
            key.push(PART);
            push_value(&mut key, name.as_bytes(), request);
        }
        for name in &self.cookies {
            key.push(PART);
            push_cookies(&mut key, name.as_bytes(), request);
        }
        Key::new(secret, key, url_len)
    }

    /// The key of a URL, for requests without the further parts of the route's keys. Purges and
    /// invalidations by unsafe requests use it.
    pub fn key_of_url(
        &self,
        secret: &Secret,
        scheme: Scheme,
        host: &[u8],
        path_and_query: &[u8],
    ) -> Key {
        let mut key = Vec::with_capacity(128);
        push_origin(&mut key, scheme, host);
        let at = memchr::memchr(b'?', path_and_query);
        let (path, query) = match at {
            Some(at) => (&path_and_query[..at], Some(&path_and_query[at + 1..])),
            None => (path_and_query, None),
        };
        let path = if path.is_empty() { b"/" } else { path };
        self.push_path(&mut key, path, query);
        let url_len = key.len();
        Key::new(secret, key, url_len)
    }

    /// Whether keys have parts that no URL shows.
    pub fn has_parts(&self) -> bool {
        !self.headers.is_empty() || !self.cookies.is_empty()
    }

    fn push_path(&self, key: &mut Vec<u8>, path: &[u8], query: Option<&[u8]>) {
        key.extend_from_slice(path);
        let Some(query) = query else { return };
        let rules = &self.query;
        if rules.only.is_empty() && rules.ignore.is_empty() && !rules.is_sorted {
            key.push(b'?');
            key.extend_from_slice(query);
            return;
        }
        let parameters = query.split(|&byte| byte == b'&');
        let mut kept: Vec<&[u8]> = parameters
            .filter(|parameter| !parameter.is_empty() && rules.keep(parameter))
            .collect();
        if rules.is_sorted {
            kept.sort_by_key(|parameter| name_of(parameter));
        }
        for (index, parameter) in kept.into_iter().enumerate() {
            key.push(if index == 0 { b'?' } else { b'&' });
            key.extend_from_slice(parameter);
        }
    }
}

impl QueryRules {
    /// Whether a parameter is part of the key.
    ///
    /// A parameter with a `;` always is. Some endpoints take the `;` for the end of a
    /// parameter: the rest would then be a parameter that the key does not show.
    fn keep(&self, parameter: &[u8]) -> bool {
        if parameter.contains(&b';') || memchr::memmem::find(parameter, b"%3B").is_some() {
            return true;
        }
        let is_in = |globs: &[Glob]| {
            let name = name_of(parameter);
            globs.iter().any(|glob| glob.matches(decoded(name)))
        };
        (self.only.is_empty() || is_in(&self.only)) && !is_in(&self.ignore)
    }
}

impl Key {
    /// A key from its bytes, with the length of its URL.
    pub(crate) fn new(secret: &Secret, bytes: Vec<u8>, url_len: usize) -> Self {
        let url_hash = secret.hash(&bytes[..url_len]);
        let hash = if bytes.len() == url_len {
            url_hash
        } else {
            secret.hash(&bytes)
        };
        Key {
            hash,
            url_hash,
            bytes: bytes.into(),
            url_len,
        }
    }
}

/// Stands before each part that follows the URL.
const PART: u8 = b'\0';

/// `scheme://host[:port]`, with the host in lower case, and without the scheme's default port.
fn push_origin(key: &mut Vec<u8>, scheme: Scheme, host: &[u8]) {
    key.extend_from_slice(scheme.as_str().as_bytes());
    key.extend_from_slice(b"://");
    let start = key.len();
    let default = match scheme {
        Scheme::Http => &b":80"[..],
        Scheme::Https => b":443",
    };
    let host = host.strip_suffix(default).unwrap_or(host);
    key.extend_from_slice(host.strip_suffix(b":").unwrap_or(host));
    key[start..].make_ascii_lowercase();
}

fn name_of(parameter: &[u8]) -> &[u8] {
    let end = memchr::memchr(b'=', parameter).unwrap_or(parameter.len());
    &parameter[..end]
}

/// The name of a parameter as endpoints read it.
fn decoded(name: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let (&byte, tail) = rest.split_first()?;
        rest = tail;
        let digits = tail
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let encoded = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (byte, encoded) {
            (b'+', _) => Some(b' '),
            (b'%', Some(decoded)) if !tail.starts_with(b"+") => {
                rest = &tail[2..];
                Some(decoded)
            }
            _ => Some(byte),
        }
    })
}

/// The values of a cookie, each behind a `=`; none for a cookie that is absent.
fn push_cookies(key: &mut Vec<u8>, name: &[u8], request: &Request<'_>) {
    for line in request.values(b"cookie") {
        for pair in line.split(|&byte| byte == b';') {
            let pair = pair.trim_ascii();
            let is_named = name_of(pair).trim_ascii() == name;
            if is_named && !pair.is_empty() {
                key.push(b'=');
                key.extend_from_slice(pair.get(name_of(pair).len() + 1..).unwrap_or_default());
                // Two values are not one with the separator in it.
                key.push(b';');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::tests::{Sent, raw_request, request};
    use evenkeel_policy::route::pattern::Star;
    use evenkeel_proto::RequestHead;

    const SECRET: Secret = Secret([7; 16]);

    fn key(rules: &KeyRules, sent: &Sent<RequestHead>) -> String {
        let key = rules.key(&SECRET, &sent.view());
        assert_eq!(key.hash, SECRET.hash(&key.bytes));
        assert_eq!(key.url_hash, SECRET.hash(key.url()));
        String::from_utf8(key.bytes.into()).unwrap()
    }

    fn globs(names: &[&str]) -> Vec<Glob> {
        let glob = |name: &&str| Glob::new(name.as_bytes(), Star::Anything).unwrap();
        names.iter().map(glob).collect()
    }

    fn at(host: &str, target: &str) -> Sent<RequestHead> {
        raw_request(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    }

    #[test]
    fn has_scheme_host_path_and_query() {
        let rules = KeyRules::default();
        for (host, target, expected) in [
            ("example.com", "/a?b=c", "http://example.com/a?b=c"),
            ("EXAMPLE.com:80", "/a", "http://example.com/a"),
            ("example.com:", "/", "http://example.com/"),
            ("example.com:8080", "/", "http://example.com:8080/"),
            ("example.com:443", "/", "http://example.com:443/"),
            // Another host to the endpoint.
            ("example.com.", "/", "http://example.com./"),
            // Every spelling of a path is another path to the endpoint.
            ("a", "/%61", "http://a/%61"),
            ("a", "/b%2Fc", "http://a/b%2Fc"),
            ("a", "//b", "http://a//b"),
            ("a", "/A", "http://a/A"),
            ("a", "/?", "http://a/?"),
            ("a", "/?b=1&a=2", "http://a/?b=1&a=2"),
            ("a", "http://b.c?d", "http://b.c/?d"),
        ] {
            assert_eq!(key(&rules, &at(host, target)), expected, "{host} {target}");
        }
        let sent = at("a", "/");
        let secure = Request {
            scheme: Scheme::Https,
            ..sent.view()
        };
        let found = rules.key(&SECRET, &secure);
        assert_eq!(&*found.bytes, b"https://a/");
        assert_ne!(found.hash, rules.key(&SECRET, &sent.view()).hash);
        assert_ne!(found.hash, rules.key(&Secret([8; 16]), &secure).hash);
    }

    #[test]
    fn chooses_parameters() {
        let rules = |only: &[&str], ignore: &[&str], is_sorted| KeyRules {
            query: QueryRules {
                only: globs(only),
                ignore: globs(ignore),
                is_sorted,
            },
            ..KeyRules::default()
        };
        let utm = || rules(&[], &["utm_*"], false);
        for (rules, query, expected) in [
            (utm(), "a=1&utm_x=2&b", "?a=1&b"),
            (utm(), "utm_x=2", ""),
            (utm(), "utm_x&utm_y=", ""),
            (utm(), "UTM_x=2", "?UTM_x=2"),
            (utm(), "%75tm_x=2&a=1", "?a=1"),
            (utm(), "b=2&a=1", "?b=2&a=1"),
            // A parameter that may hide another one is part of the key.
            (utm(), "utm_x=1;callback=evil", "?utm_x=1;callback=evil"),
            (utm(), "utm_x=1%3Bcallback=evil", "?utm_x=1%3Bcallback=evil"),
            (
                rules(&["id", "page"], &[], false),
                "x=1&page=2&id=3",
                "?page=2&id=3",
            ),
            (rules(&["i*"], &["ix"], false), "ix=1&iy=2&z=3", "?iy=2"),
            (
                rules(&[], &[], true),
                "b=2&a=1&b=1&&a=0",
                "?a=1&a=0&b=2&b=1",
            ),
            (
                rules(&["a b"], &[], false),
                "a+b=1&a%20b=2&c",
                "?a+b=1&a%20b=2",
            ),
        ] {
            let found = key(&rules, &at("h", &format!("/?{query}")));
            assert_eq!(found, format!("http://h/{expected}"), "{query}");
        }
    }

    #[test]
    fn adds_fields_and_cookies() {
        let rules = KeyRules {
            headers: vec!["accept-language".into(), "x-user".into()],
            cookies: vec!["id".into()],
            ..KeyRules::default()
        };
        assert!(rules.has_parts() && !KeyRules::default().has_parts());
        let of = |fields| key(&rules, &request("GET /", fields));
        let plain = of("");
        for (fields, is_same) in [
            ("Other: 1", true),
            ("Cookie: other=1", true),
            ("Accept-Language: de", false),
            ("X-User: 1", false),
            ("X_User: 1", false),
            ("X-User:", false),
            ("Cookie: id=1", false),
            ("Cookie: id=", false),
            ("Cookie: id", false),
            ("Cookie: other=1; id=2", false),
        ] {
            assert_eq!(of(fields) == plain, is_same, "{fields}");
        }
        assert_eq!(of("Accept-Language: de, EN"), of("accept-language: DE,en"));
        assert_ne!(of("Accept-Language: 1"), of("X-User: 1"));
        assert_ne!(of("Cookie: id=1; id=2"), of("Cookie: id=2; id=1"));
        assert_ne!(of("Cookie: id=1;id=2"), of("Cookie: id=1"));
        let sent = request("GET /a?b", "X-User: 1");
        let with_parts = rules.key(&SECRET, &sent.view());
        let url = rules.key_of_url(&SECRET, Scheme::Http, b"Example.com:80", b"/a?b");
        assert_eq!(with_parts.url_hash, url.hash);
        assert_eq!(with_parts.url(), &*url.bytes);
        let root = rules.key_of_url(&SECRET, Scheme::Https, b"a:443", b"");
        assert_eq!(&*root.bytes, b"https://a/");
    }
}
