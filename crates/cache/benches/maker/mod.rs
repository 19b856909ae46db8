//! Makes the keys and objects of a measurement.

use evenkeel_cache::key::{Key, KeyRules, Secret};
use evenkeel_cache::object::{Body, StoredHead};
use evenkeel_cache::{Lifetime, Object, Request, Response};
use evenkeel_policy::Instant as Moment;
use evenkeel_proto::http1::{parse_request, parse_response};
use evenkeel_proto::{Method, RequestHead, ResponseHead, Scheme};

/// The secret for hashes of keys.
pub const SECRET: Secret = Secret([9; 16]);
const HEAD: &str = "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                    Content-Type: text/html\r\nCache-Control: max-age=3600\r\n\
                    ETag: \"46653f10-1194\"\r\n\r\n";

/// Makes keys and objects by number.
pub struct Maker {
    request: RequestHead,
    head: StoredHead,
}

const PLAIN: &str = "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n";

impl Maker {
    pub fn new() -> Self {
        let mut request = RequestHead::default();
        parse_request(PLAIN.as_bytes(), &mut request).unwrap();
        let mut response = ResponseHead::default();
        parse_response(HEAD.as_bytes(), Method::Get, &mut response).unwrap();
        let view = Response {
            head: &response,
            bytes: HEAD.as_bytes(),
        };
        let asked = Request {
            head: &request,
            bytes: PLAIN.as_bytes(),
            scheme: Scheme::Http,
        };
        let head = StoredHead::of(&SECRET, &asked, &view, 0).unwrap();
        Maker { request, head }
    }

    pub fn request(&self) -> Request<'_> {
        Request {
            head: &self.request,
            bytes: PLAIN.as_bytes(),
            scheme: Scheme::Http,
        }
    }

    pub fn key(&self, number: u64) -> Key {
        let target = format!("/objects/{number}");
        KeyRules::default().key_of_url(&SECRET, Scheme::Http, b"example.com", target.as_bytes())
    }

    pub fn object(&self, key: &Key, body: &[u8], seen: u64) -> Object {
        let lifetime = Lifetime {
            fresh: 3600,
            ..Lifetime::default()
        };
        let body = Body::of(body);
        Object::new(
            key,
            &self.head,
            &body,
            &lifetime,
            Moment::from_nanos(0),
            seen,
        )
        .unwrap()
    }
}
