//! The message model that every protocol fills and everything else reads.
//!
//! A head never owns its text: it holds [`Span`]s into the one buffer that the
//! bytes arrived in, so an HTTP/1 to HTTP/1 exchange is a copy of ranges, with
//! order and case of the fields kept. Heads are reused: their field list keeps
//! its capacity from one message to the next.

use crate::http1::fields::{decimal, list_items};
use crate::http1::{BodyFraming, RequestWire, ResponseWire};

/// A range of bytes in the buffer that a head was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The span from `start` to `end`.
    pub fn new(start: usize, end: usize) -> Self {
        Span {
            start: start as u32,
            end: end as u32,
        }
    }

    /// The bytes that the span stands for; empty if it lies outside of `buf`.
    pub fn of(self, buf: &[u8]) -> &[u8] {
        buf.get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }

    /// Number of bytes.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Whether it holds no byte.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// HTTP version of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
}

impl Version {
    /// The version as the request line, the access log and `Via` write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
        }
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

/// Fields whose names mean something to a proxy; the rest is `Other`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldKind {
    /// Carried along without being looked at.
    #[default]
    Other,
    /// `Host`.
    Host,
    /// `Content-Length`.
    ContentLength,
    /// `Transfer-Encoding`.
    TransferEncoding,
    /// `Connection`.
    Connection,
    /// `Proxy-Connection`, `TE`, `Proxy-Authenticate` and the like, and every
    /// field named by `Connection`: for one hop only. Also
    /// what must reach no endpoint: `Proxy` (a CGI program would take it for
    /// its own setting) and `X_Forwarded_For` and other names that pass for
    /// those that a proxy sets.
    HopByHop,
    /// `Upgrade`.
    Upgrade,
    /// `Expect`.
    Expect,
    /// `Max-Forwards`.
    MaxForwards,
    /// `Date`.
    Date,
    /// `Authorization`.
    Authorization,
    /// `Keep-Alive`: for one hop only.
    KeepAlive,
    /// `X-Forwarded-For`, `-Proto`, `-Host`, `-Port`, and `Forwarded`: what a
    /// proxy says of the client.
    Forwarded,
    /// `X-Real-IP`, `X-Forwarded-Prefix`, `True-Client-IP` and the like: what only
    /// a proxy may say of the client or of what it asked for.
    ProxyClaim,
    /// `Via`.
    Via,
    /// `CDN-Loop`.
    CdnLoop,
    /// `Referer`.
    Referer,
    /// `User-Agent`.
    UserAgent,
    /// `X-Request-ID`.
    RequestId,
    /// `traceparent`.
    TraceParent,
    /// `tracestate`.
    TraceState,
}

impl FieldKind {
    /// Recognises a field name, without regard to case.
    pub fn from_name(name: &[u8]) -> Self {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        match NameKey::of(name) {
            names::HOST => FieldKind::Host,
            names::CONTENT_LENGTH => FieldKind::ContentLength,
            names::TRANSFER_ENCODING if is("transfer-encoding") => FieldKind::TransferEncoding,
            names::CONNECTION => FieldKind::Connection,
            names::UPGRADE => FieldKind::Upgrade,
            names::EXPECT => FieldKind::Expect,
            names::MAX_FORWARDS => FieldKind::MaxForwards,
            names::DATE => FieldKind::Date,
            names::AUTHORIZATION => FieldKind::Authorization,
            names::KEEP_ALIVE => FieldKind::KeepAlive,
            names::VIA => FieldKind::Via,
            names::CDN_LOOP => FieldKind::CdnLoop,
            names::REFERER => FieldKind::Referer,
            names::USER_AGENT => FieldKind::UserAgent,
            names::X_REQUEST_ID => FieldKind::RequestId,
            names::TRACEPARENT => FieldKind::TraceParent,
            names::TRACESTATE => FieldKind::TraceState,
            names::FORWARDED
            | names::X_FORWARDED_FOR
            | names::X_FORWARDED_HOST
            | names::X_FORWARDED_PORT => FieldKind::Forwarded,
            names::X_FORWARDED_PROTO if is("x-forwarded-proto") => FieldKind::Forwarded,
            names::TE | names::PROXY | names::HTTP2_SETTINGS | names::PROXY_CONNECTION => {
                FieldKind::HopByHop
            }
            names::PROXY_AUTHENTICATE if is("proxy-authenticate") => FieldKind::HopByHop,
            names::PROXY_AUTHORIZATION if is("proxy-authorization") => FieldKind::HopByHop,
            _ => kind_of_unknown(name),
        }
    }
}

/// What tells a name from others, without regard to case: its length, its first
/// and its last eight bytes. Up to 16 bytes that is all of it.
#[derive(PartialEq, Eq)]
struct NameKey {
    len: usize,
    first: u64,
    last: u64,
}

impl NameKey {
    const fn of(name: &[u8]) -> Self {
        let (first, last) = if let (Some(first), Some(last)) =
            (name.first_chunk::<8>(), name.last_chunk::<8>())
        {
            (u64::from_le_bytes(*first), u64::from_le_bytes(*last))
        } else if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>())
        {
            (
                u32::from_le_bytes(*first) as u64,
                u32::from_le_bytes(*last) as u64,
            )
        } else {
            let first = match *name {
                [a, b, c] => [a, b, c, 0],
                [a, b] => [a, b, 0, 0],
                [a] => [a, 0, 0, 0],
                _ => [0; 4],
            };
            (u32::from_le_bytes(first) as u64, 0)
        };
        NameKey {
            len: name.len(),
            first: lower(first),
            last: lower(last),
        }
    }
}

/// Eight bytes with letters in lower case. Of the others `@` and `[` to `_` are
/// changed as well, into such as are in no known name.
const fn lower(eight: u64) -> u64 {
    eight | (eight & 0x4040_4040_4040_4040) >> 1
}

/// The keys of the names that are known.
mod names {
    use super::NameKey;

    macro_rules! keys {
        ($($key:ident = $name:literal;)*) => {
            $(pub const $key: NameKey = NameKey::of($name);)*
        };
    }

    keys! {
        AUTHORIZATION = b"authorization";
        CDN_LOOP = b"cdn-loop";
        CONNECTION = b"connection";
        CONTENT_LENGTH = b"content-length";
        DATE = b"date";
        EXPECT = b"expect";
        FORWARDED = b"forwarded";
        HOST = b"host";
        HTTP2_SETTINGS = b"http2-settings";
        KEEP_ALIVE = b"keep-alive";
        MAX_FORWARDS = b"max-forwards";
        PROXY = b"proxy";
        PROXY_AUTHENTICATE = b"proxy-authenticate";
        PROXY_AUTHORIZATION = b"proxy-authorization";
        PROXY_CONNECTION = b"proxy-connection";
        REFERER = b"referer";
        TE = b"te";
        TRACEPARENT = b"traceparent";
        TRACESTATE = b"tracestate";
        TRANSFER_ENCODING = b"transfer-encoding";
        UPGRADE = b"upgrade";
        USER_AGENT = b"user-agent";
        VIA = b"via";
        X_FORWARDED_FOR = b"x-forwarded-for";
        X_FORWARDED_HOST = b"x-forwarded-host";
        X_FORWARDED_PORT = b"x-forwarded-port";
        X_FORWARDED_PROTO = b"x-forwarded-proto";
        X_REQUEST_ID = b"x-request-id";
    }
}

/// A name that is not among those that are known.
fn kind_of_unknown(name: &[u8]) -> FieldKind {
    // Most names are told apart by their first letter and their length or end.
    let is_looked_at = match (name.first(), name.last()) {
        (Some(first), Some(last)) => {
            match (first.to_ascii_lowercase(), last.to_ascii_lowercase()) {
                (b'x', _) => true,
                (b'c' | b'f' | b'h' | b'p' | b'r' | b't' | b'w', last) => {
                    matches!(last, b'6' | b'g' | b'h' | b'o' | b'p' | b'r' | b's' | b't')
                        || (name.len() == 12 && last == b'l')
                }
                _ => false,
            }
        }
        _ => false,
    };
    if !is_looked_at {
        FieldKind::Other
    } else if passes_for_another(name) {
        FieldKind::HopByHop
    } else if is_proxy_claim(name) {
        // No proxy writes another character than a hyphen.
        let is_plain = |it: &u8| it.is_ascii_alphanumeric() || *it == b'-';
        if name.iter().all(is_plain) {
            FieldKind::ProxyClaim
        } else {
            FieldKind::HopByHop
        }
    } else {
        FieldKind::Other
    }
}

/// Whether a name is one that only proxies may set, in any spelling that an endpoint
/// takes for it.
fn is_proxy_claim(name: &[u8]) -> bool {
    const NAMES: [&str; 29] = [
        "cf-connecting-ipv6",
        "front-end-https",
        "https",
        "wl-proxy-ssl",
        "x-appengine-user-ip",
        "x-arr-ssl",
        "x-azure-clientip",
        "x-azure-socketip",
        "x-envoy-external-address",
        "x-envoy-internal",
        "x-forwarded",
        "x-host",
        "x-http-host-override",
        "x-https",
        "x-original-for",
        "x-original-host",
        "x-original-method",
        "x-original-path",
        "x-original-proto",
        "x-original-uri",
        "x-original-url",
        "x-originating-ip",
        "x-proxyuser-ip",
        "x-real-port",
        "x-real-scheme",
        "x-rewrite-uri",
        "x-rewrite-url",
        "x-scheme",
        "x-url-scheme",
    ];
    const STARTS: [&str; 2] = ["x-forwarded-", "x-original-forwarded-"];
    const ENDS: [&str; 10] = [
        "client-ip",
        "connecting-ip",
        "connection-ip",
        "forwarded-for",
        "forwarded-host",
        "forwarded-proto",
        "real-ip",
        "remote-addr",
        "remote-ip",
        "remote-user",
    ];
    let is = |sent: &[u8], known: &&str| is_read_as(sent, known.as_bytes());
    let starts = |it: &&str| name.get(..it.len()).is_some_and(|start| is(start, it));
    let ends = |it: &&str| {
        let start = name.len().checked_sub(it.len());
        start.is_some_and(|start| is(&name[start..], it))
    };
    NAMES.iter().any(|it| is(name, it)) || STARTS.iter().any(starts) || ENDS.iter().any(ends)
}

/// Whether an endpoint that turns field names into variables would take `name`
/// for one that frames or that the proxy sets: `Content_Length`, `X_Forwarded_For`.
fn passes_for_another(name: &[u8]) -> bool {
    const GUARDED: [&str; 7] = [
        "content-length",
        "x-request-id",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-proto",
        "transfer-encoding",
    ];
    GUARDED
        .into_iter()
        .any(|known| is_read_as(name, known.as_bytes()))
}

/// Whether an endpoint that turns field names into variables (`HTTP_…`, as CGI
/// does) reads `name` as `known`: they differ in nothing but case and in which
/// character stands where neither has a letter or a digit.
fn is_read_as(name: &[u8], known: &[u8]) -> bool {
    let is_same = |(known, sent): (&u8, &u8)| {
        if known.is_ascii_alphanumeric() {
            known.eq_ignore_ascii_case(sent)
        } else {
            !sent.is_ascii_alphanumeric()
        }
    };
    known.len() == name.len() && std::iter::zip(known, name).all(is_same)
}

/// One field line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Field {
    /// The name, as sent.
    pub name: Span,
    /// The value without surrounding white space.
    pub value: Span,
    /// What the name means here.
    pub kind: FieldKind,
}

impl Field {
    /// Whether it has this name, in whatever case.
    pub fn is_named(&self, name: &[u8], buf: &[u8]) -> bool {
        self.name.of(buf).eq_ignore_ascii_case(name)
    }

    /// Whether an endpoint may take it for a field of this name: `X_User` for
    /// `X-User`.
    ///
    /// Invariant: whatever an operator looks for in a request by name, such as a
    /// rule, a key or a log, asks this. So no other spelling gets round a rule.
    pub fn is_read_as(&self, name: &[u8], buf: &[u8]) -> bool {
        is_read_as(self.name.of(buf), name)
    }
}

/// What the credentials of a request hold for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Credentials {
    /// This request alone, if it has any.
    #[default]
    OfRequest,
    /// The connection that the request goes by, and whatever follows there:
    /// NTLM and Negotiate (RFC 4559).
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
    /// Path without query, as sent: empty where the absolute form has none. What
    /// asks for a path asks [`path`](Self::path).
    pub path_span: Span,
    /// Query without `?`.
    pub query: Span,
    /// Authority of the target where it has one, else the value of `Host`.
    pub host: Span,
    /// Version of the client.
    pub version: Version,
    /// Field lines in the order sent.
    pub fields: Vec<Field>,
    /// What the request's credentials hold for.
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
    /// Seconds after which the endpoint closes the connection if it is idle, where
    /// it says so: the first `timeout` of its `Keep-Alive` fields (RFC 2068
    /// §19.7.1.1).
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

    /// Path without query, for everything that asks for a path and for the
    /// endpoint.
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

    #[test]
    fn knows_fields_without_case() {
        assert_eq!(FieldKind::from_name(b"hOST"), FieldKind::Host);
        assert_eq!(
            FieldKind::from_name(b"TRANSFER-encoding"),
            FieldKind::TransferEncoding
        );
        assert_eq!(FieldKind::from_name(b"Hosts"), FieldKind::Other);
        assert_eq!(FieldKind::from_name(b"Proxy"), FieldKind::HopByHop);
    }

    #[test]
    fn endpoints_read_several_names_as_one() {
        for (name, other, expected) in [
            ("X-User", "x-user", true),
            ("X-User", "X_User", true),
            ("X_User", "X-User", true),
            ("X-User", "X.uSER", true),
            ("X-User", "X~User", true),
            ("X-User", "XUser", false),
            ("X-User", "X--User", false),
            ("X-User", "X-Use-", false),
            ("X-Us-r", "X-User", false),
            ("X-User1", "X-User2", false),
            ("", "", true),
        ] {
            let field = Field {
                name: Span::new(0, other.len()),
                ..Field::default()
            };
            let is_read = field.is_read_as(name.as_bytes(), other.as_bytes());
            assert_eq!(is_read, expected, "{name} {other}");
        }
    }

    #[test]
    fn no_other_name_is_taken_for_one_that_is_known() {
        const KNOWN: [&str; 28] = [
            "te",
            "via",
            "date",
            "host",
            "proxy",
            "expect",
            "referer",
            "upgrade",
            "cdn-loop",
            "forwarded",
            "connection",
            "keep-alive",
            "user-agent",
            "tracestate",
            "traceparent",
            "x-request-id",
            "authorization",
            "content-length",
            "http2-settings",
            "max-forwards",
            "x-forwarded-for",
            "proxy-connection",
            "x-forwarded-host",
            "x-forwarded-port",
            "transfer-encoding",
            "x-forwarded-proto",
            "proxy-authenticate",
            "proxy-authorization",
        ];
        for known in KNOWN {
            let kind = FieldKind::from_name(known.as_bytes());
            assert_ne!(kind, FieldKind::Other, "{known}");
            for at in 0..known.len() {
                for byte in 0..=u8::MAX {
                    let mut name = known.as_bytes().to_vec();
                    name[at] = byte;
                    let found = FieldKind::from_name(&name);
                    if name.eq_ignore_ascii_case(known.as_bytes()) {
                        assert_eq!(found, kind, "{}", name.escape_ascii());
                    } else if !byte.is_ascii_alphanumeric() {
                        let is_apart = matches!(
                            found,
                            FieldKind::Other | FieldKind::HopByHop | FieldKind::ProxyClaim
                        );
                        assert!(is_apart, "{}", name.escape_ascii());
                    }
                }
            }
        }
    }

    #[test]
    fn knows_names_that_pass_for_others() {
        for (name, kind) in [
            ("Content_Length", FieldKind::HopByHop),
            ("Transfer_encoding", FieldKind::HopByHop),
            ("X_Forwarded-For", FieldKind::HopByHop),
            ("X.Forwarded.Proto", FieldKind::HopByHop),
            ("Accept_Encoding", FieldKind::Other),
            ("Content-Lengths", FieldKind::Other),
        ] {
            assert_eq!(FieldKind::from_name(name.as_bytes()), kind, "{name}");
        }
    }

    #[test]
    fn a_span_outside_is_empty() {
        let span = Span { start: 3, end: 2 };
        assert_eq!(
            (span.len(), span.is_empty(), span.of(b"abcd")),
            (0, true, &b""[..])
        );
        assert_eq!(Span::new(2, 9).of(b"abcd"), b"");
    }
}
