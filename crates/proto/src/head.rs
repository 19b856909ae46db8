//! The message model that every protocol fills and everything else reads.
//!
//! A head never owns its text: it holds [`Span`]s into the one buffer that the bytes arrived in.
//! So an HTTP/1 to HTTP/1 exchange copies ranges, and keeps order and case of the fields. Heads
//! are reused: their field list keeps its capacity from one message to the next.

use crate::field::{Field, FieldKind, decimal, list_items};
use crate::span::Span;
use crate::wire::{BodyFraming, RequestWire, ResponseWire};

/// HTTP version of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
    /// HTTP/2.
    Http2,
}

impl Version {
    /// The version as the request line, the access log and `Via` write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
        }
    }

    /// Whether a body without a length comes in chunks (RFC 9112 §7.1). Otherwise the end of the
    /// connection, or of the stream, ends it.
    pub fn knows_chunks(self) -> bool {
        self == Version::Http11
    }
}

/// Request methods that something decides on; the rest is `Other`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// GET.
    #[default]
    Get,
    /// HEAD: the response has no body, whatever its fields say.
    Head,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// DELETE.
    Delete,
    /// OPTIONS.
    Options,
    /// TRACE.
    Trace,
    /// CONNECT: asks for a tunnel.
    Connect,
    /// Any other token.
    Other,
}

impl Method {
    /// Recognises a method token (case matters, RFC 9110 §9.1).
    pub fn from_token(token: &[u8]) -> Self {
        match token {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"OPTIONS" => Method::Options,
            b"TRACE" => Method::Trace,
            b"CONNECT" => Method::Connect,
            _ => Method::Other,
        }
    }

    /// Whether it asks for nothing but an answer (RFC 9110 §9.2.1).
    pub fn is_safe(self) -> bool {
        matches!(
            self,
            Method::Get | Method::Head | Method::Options | Method::Trace
        )
    }

    /// Whether doing it twice is the same as doing it once (RFC 9110 §9.2.2).
    pub fn is_idempotent(self) -> bool {
        !matches!(self, Method::Post | Method::Connect | Method::Other)
    }
}

/// The scheme of the URL that a client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `http`.
    Http,
    /// `https`.
    Https,
}

impl Scheme {
    /// As it stands in a URL.
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

/// The scope of a request's credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Credentials {
    /// This request alone, if it has any.
    #[default]
    OfRequest,
    /// The connection of the request, and all later requests on it: NTLM and Negotiate (RFC
    /// 4559).
    OfConnection,
}

impl Credentials {
    /// Recognises the scheme of an `Authorization` by its beginning, without
    /// regard to case.
    pub(crate) fn of(authorization: &[u8]) -> Self {
        let scheme = authorization.get(..4).unwrap_or_default();
        let is_of_connection = [b"ntlm", b"nego"]
            .iter()
            .any(|it| scheme.eq_ignore_ascii_case(*it));
        if is_of_connection {
            Credentials::OfConnection
        } else {
            Credentials::OfRequest
        }
    }
}

/// A request's head: what routes, logs and edits see, whichever protocol it came by.
#[derive(Debug, Default)]
pub struct RequestHead {
    /// Method, recognised.
    pub method: Method,
    /// Method, as sent.
    pub method_span: Span,
    /// Target, as sent.
    pub target: Span,
    /// Path and query, as sent; `*` for `OPTIONS *`.
    pub path_and_query: Span,
    /// Path without query, as sent: empty where the absolute form has none. Code that needs a
    /// path calls [`path`](Self::path).
    pub path_span: Span,
    /// Query without `?`.
    pub query: Span,
    /// Authority of the target where it has one, else the value of `Host`.
    pub host: Span,
    /// Version of the client.
    pub version: Version,
    /// Field lines in the order sent.
    pub fields: Vec<Field>,
    /// The scope of the request's credentials.
    pub credentials: Credentials,
    /// Whether `CDN-Loop` is among the fields.
    pub has_cdn_loop: bool,
    /// How HTTP/1 carries it.
    pub wire: RequestWire,
}

/// A response's head: what logs and edits see, whichever protocol it came by.
#[derive(Debug, Default)]
pub struct ResponseHead {
    /// Status code.
    pub status: u16,
    /// Version of the endpoint.
    pub version: Version,
    /// Reason phrase.
    pub reason: Span,
    /// Field lines in the order sent.
    pub fields: Vec<Field>,
    /// How HTTP/1 carries it.
    pub wire: ResponseWire,
}

impl ResponseHead {
    /// Seconds after which the endpoint closes the connection if it is idle, if it says so.
    ///
    /// They are the first `timeout` of its `Keep-Alive` fields (RFC 2068 §19.7.1.1).
    pub fn keep_alive_timeout_s(&self, buf: &[u8]) -> Option<u64> {
        let fields = self.fields.iter();
        let fields = fields.filter(|field| field.kind == FieldKind::KeepAlive);
        let mut parameters = fields.flat_map(|field| list_items(field.value.of(buf)));
        let timeout = parameters.find_map(|parameter| {
            let equals = memchr::memchr(b'=', parameter)?;
            let (name, value) = (&parameter[..equals], &parameter[equals + 1..]);
            let is_timeout = name.trim_ascii().eq_ignore_ascii_case(b"timeout");
            is_timeout.then(|| value.trim_ascii())
        });
        decimal(timeout?)
    }
}

impl RequestHead {
    /// Length of the body in bytes; `None` where only its end tells.
    pub fn announced_len(&self) -> Option<u64> {
        match self.wire.framing {
            BodyFraming::None => Some(0),
            BodyFraming::Length { bytes } => Some(bytes),
            BodyFraming::Chunked | BodyFraming::UntilClose => None,
        }
    }

    /// How many more proxies may pass the request on: 0 makes this one answer it
    /// (RFC 9110 §7.6.2). `None` where nothing limits them.
    pub fn hops_left(&self, buf: &[u8]) -> Option<u64> {
        if !matches!(self.method, Method::Trace | Method::Options) {
            return None;
        }
        decimal(self.value_of(FieldKind::MaxForwards, buf)?)
    }

    /// Value of the first field of this kind.
    pub fn value_of<'a>(&self, kind: FieldKind, buf: &'a [u8]) -> Option<&'a [u8]> {
        let field = self.fields.iter().find(|field| field.kind == kind)?;
        Some(field.value.of(buf))
    }

    /// Path without query, for conditions, handlers and the endpoint.
    ///
    /// Invariant: begins with a slash, is `*` in an `OPTIONS` request, or is
    /// empty in a `CONNECT` request. The absolute form may come without a path
    /// (`http://host?query`).
    pub fn path<'a>(&self, buf: &'a [u8]) -> &'a [u8] {
        match self.path_span.of(buf) {
            [] => self.implied_path(),
            path => path,
        }
    }

    /// Whether there is a query, which may be empty: `/a?` is another URL than `/a`.
    pub fn has_query(&self) -> bool {
        self.query.start > self.path_span.end
    }

    #[cold]
    fn implied_path(&self) -> &'static [u8] {
        match self.method {
            Method::Connect => b"",
            // RFC 9112 §3.2.4: a URL without path and query asks about the server.
            Method::Options if self.path_and_query.is_empty() => b"*",
            // RFC 9110 §4.2.3.
            _ => b"/",
        }
    }

    /// Method and target as they were sent: `GET /path?query`.
    pub fn line<'a>(&self, buf: &'a [u8]) -> &'a [u8] {
        Span {
            start: self.method_span.start,
            end: self.target.end,
        }
        .of(buf)
    }

    /// The host without its port.
    pub fn host_name<'a>(&self, buf: &'a [u8]) -> &'a [u8] {
        without_port(self.host.of(buf))
    }
}

/// Strips `:port` from an authority, leaving a bracketed IPv6 address whole.
fn without_port(authority: &[u8]) -> &[u8] {
    match memchr::memrchr(b':', authority) {
        Some(colon) if !authority[colon..].contains(&b']') => &authority[..colon],
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_ports() {
        for (authority, host) in [
            ("example.com", "example.com"),
            ("example.com:80", "example.com"),
            ("[::1]", "[::1]"),
            ("[::1]:8080", "[::1]"),
            ("", ""),
        ] {
            assert_eq!(without_port(authority.as_bytes()), host.as_bytes());
        }
    }
}
