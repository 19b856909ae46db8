//! Field lines: what their names mean, and values that are lists or numbers.

use crate::span::Span;

/// Longest body that is announced, in bytes: what fits a signed integer.
pub const MAX_BODY_BYTES: u64 = i64::MAX as u64;

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
    /// `Proxy-Connection`, `TE`, `Proxy-Authenticate` and the like, and every field named by
    /// `Connection`: for one hop only.
    ///
    /// Also fields that must reach no endpoint. A CGI program would take `Proxy` for its own
    /// setting. `X_Forwarded_For` and other names pass for fields that a proxy sets.
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
    /// `X-Forwarded-For`, `-Proto`, `-Host`, `-Port`, and `Forwarded`: a proxy's report on the
    /// client.
    Forwarded,
    /// `X-Real-IP`, `X-Forwarded-Prefix`, `True-Client-IP` and the like: only a proxy may send
    /// such claims on the client or its request.
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

    /// Whether a field of this kind is not copied into a request that is made from another one.
    /// That holds for fields of the connection, of the body's framing, `Host` and `Expect`.
    pub fn is_of_one_message(self) -> bool {
        matches!(
            self,
            FieldKind::Connection
                | FieldKind::HopByHop
                | FieldKind::KeepAlive
                | FieldKind::Upgrade
                | FieldKind::TransferEncoding
                | FieldKind::ContentLength
                | FieldKind::Host
                | FieldKind::Expect
        )
    }
}

/// The key that tells a name from others, without regard to case: its length, its first and its
/// last eight bytes. For up to 16 bytes that is the whole name.
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

/// The kind of a name that is not in the table of known names.
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
    const NAMES: [&str; 32] = [
        "cf-connecting-ipv6",
        // RFC 9440.
        "client-cert",
        "client-cert-chain",
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
        "x-mirrored",
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

/// Whether `name` passes for another field at an endpoint that turns names into variables.
///
/// The other field frames the message, or is one that the proxy sets: `Content_Length`,
/// `X_Forwarded_For`.
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

/// Whether an endpoint that turns field names into variables (`HTTP_…`, as CGI does) reads `name`
/// as `known`. Such names differ only in case, and in characters that are neither letters nor
/// digits.
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
    /// The meaning of the name here.
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
    /// Invariant: every look-up in a request by a name from an operator calls this, such as a
    /// rule, a key or a log. So no other spelling gets round a rule.
    pub fn is_read_as(&self, name: &[u8], buf: &[u8]) -> bool {
        is_read_as(self.name.of(buf), name)
    }
}

/// Items of a comma-separated list, without white space and empty ones.
pub(crate) fn list_items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|item| !item.is_empty())
}

/// A number of nothing but digits that fits a signed integer: a length must not wrap round for
/// any reader.
pub(crate) fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 {
        return None;
    }
    let number = value.iter().try_fold(0u64, |sum, &byte| {
        byte.is_ascii_digit()
            .then(|| sum * 10 + u64::from(byte - b'0'))
    })?;
    (number <= MAX_BODY_BYTES).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    #[cfg_attr(miri, ignore = "an interpreter takes minutes for so much")]
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
}
