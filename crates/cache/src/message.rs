//! A request and a response as the cache reads them: a head with its bytes.

use evenkeel_proto::field::Field;
use evenkeel_proto::{FieldKind, RequestHead, ResponseHead, Scheme};

/// A request's head, with the bytes that its spans lie in.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The head.
    pub head: &'a RequestHead,
    /// The buffer that the head's spans refer to.
    pub bytes: &'a [u8],
    /// The scheme that the client asked by.
    pub scheme: Scheme,
}

/// A response's head, with the bytes that its spans lie in.
#[derive(Debug, Clone, Copy)]
pub struct Response<'a> {
    /// The head.
    pub head: &'a ResponseHead,
    /// The buffer that the head's spans refer to.
    pub bytes: &'a [u8],
}

impl<'a> Request<'a> {
    /// Values of every field that an endpoint may take for one of this name, in
    /// order: `X_User` counts as `X-User`.
    pub fn values(&self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        let is_named = move |field: &&Field| field.is_read_as(name, bytes);
        let fields = self.head.fields.iter().filter(is_named);
        fields.map(move |field| field.value.of(bytes))
    }

    /// Whether there is a field that an endpoint may take for one of this name.
    pub fn has(&self, name: &'a [u8]) -> bool {
        self.values(name).next().is_some()
    }

    /// Whether the request has an `Authorization`.
    pub fn is_authorized(&self) -> bool {
        let is_authorization = |field: &Field| field.kind == FieldKind::Authorization;
        self.head.fields.iter().any(is_authorization)
    }
}

impl<'a> Response<'a> {
    /// Values of the fields of this name, in order.
    pub fn values(&self, name: &'a str) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        let is_named = move |field: &&Field| field.is_named(name.as_bytes(), bytes);
        let fields = self.head.fields.iter().filter(is_named);
        fields.map(move |field| field.value.of(bytes))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use evenkeel_proto::Method;
    use evenkeel_proto::http1::{Parsed, parse_request, parse_response};

    /// A message as a test writes it: it owns its head and its bytes.
    #[derive(Debug)]
    pub struct Sent<H> {
        head: H,
        bytes: Vec<u8>,
    }

    /// The request with this line and these fields, one a line.
    pub fn request(line: &str, fields: &str) -> Sent<RequestHead> {
        let mut text = format!("{line} HTTP/1.1\r\nHost: example.com\r\n");
        for field in fields.lines() {
            text += &format!("{field}\r\n");
        }
        raw_request(&format!("{text}\r\n"))
    }

    /// A request in the text form of HTTP/1.
    pub fn raw_request(text: &str) -> Sent<RequestHead> {
        let mut head = RequestHead::default();
        let parsed = parse_request(text.as_bytes(), &mut head);
        assert_eq!(parsed, Ok(Parsed::Complete), "{text}");
        let bytes = text.into();
        Sent { head, bytes }
    }

    /// A GET for `/`.
    pub fn get(fields: &str) -> Sent<RequestHead> {
        request("GET /", fields)
    }

    /// The response with this status and these fields, one a line.
    pub fn response(status: u16, fields: &str) -> Sent<ResponseHead> {
        let mut text = format!("HTTP/1.1 {status} Reason\r\n");
        for field in fields.lines() {
            text += &format!("{field}\r\n");
        }
        text += "\r\n";
        let mut head = ResponseHead::default();
        let parsed = parse_response(text.as_bytes(), Method::Get, &mut head);
        assert_eq!(parsed, Ok(Parsed::Complete), "{text}");
        let bytes = text.into();
        Sent { head, bytes }
    }

    impl Sent<RequestHead> {
        pub fn view(&self) -> Request<'_> {
            Request {
                head: &self.head,
                bytes: &self.bytes,
                scheme: Scheme::Http,
            }
        }
    }

    impl Sent<ResponseHead> {
        pub fn view(&self) -> Response<'_> {
            Response {
                head: &self.head,
                bytes: &self.bytes,
            }
        }
    }

    #[test]
    fn finds_fields() {
        let sent = get("X_User: a\nx-user: b\nAuthorization: c");
        let values: Vec<_> = sent.view().values(b"x-user").collect();
        assert_eq!(values, [b"a", b"b"]);
        assert!(sent.view().is_authorized() && sent.view().has(b"X-USER"));
        assert!(!get("").view().is_authorized());
        let sent = response(200, "Age: 1\nX_Age: 3\nage: 2");
        let values: Vec<_> = sent.view().values("AGE").collect();
        assert_eq!(values, [b"1", b"2"]);
    }
}
