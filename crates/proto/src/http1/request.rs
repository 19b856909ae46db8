//! A request's head: its lines, and the rules that they have to keep.

use super::authority;
use super::diagnose::{self, Finding};
use super::fields::{self, Framing, FramingError};
use super::grammar::{self, Stop};
use super::{MAX_FIELDS, Parsed};
use crate::error::RequestError;
use crate::field::{FieldKind, list_items};
use crate::head::{Credentials, Method, RequestHead, Version};
use crate::span::Span;
use crate::wire::BodyFraming;

/// Reads a request's head from the start of `buf` into `head`.
///
/// Limits on length are the caller's: it knows how much it buffered.
///
/// # Errors
/// The first rule of RFC 9112 or RFC 9110 §7.2 that the head breaks. The connection must then be
/// closed: the next message can't be told apart.
pub fn parse_request(buf: &[u8], head: &mut RequestHead) -> Result<Parsed, RequestError> {
    match read_lines(buf, head) {
        Ok(()) => {}
        Err(Stop::Short) => return Ok(Parsed::Partial),
        Err(Stop::Odd | Stop::TooManyFields) => return refusal(buf),
    }
    read_head(buf, head)?;
    Ok(Parsed::Complete)
}

/// Reads the meaning of a head's lines, once method, target, version and fields are known.
pub(crate) fn read_head(buf: &[u8], head: &mut RequestHead) -> Result<(), RequestError> {
    read_fields(buf, head)?;
    read_target(buf, head)
}

/// `method SP target SP version` and the fields (RFC 9112 §3), behind one
/// empty line at most (§2.2).
fn read_lines(buf: &[u8], head: &mut RequestHead) -> Result<(), Stop> {
    head.wire.start = match buf.first() {
        Some(b'\r') => grammar::line_end(buf, 0)?,
        _ => 0,
    };
    head.method_span = Span::new(head.wire.start, grammar::token_end(buf, head.wire.start));
    let target_start = grammar::word_end(buf, head.method_span, b' ')?;
    head.target = Span::new(target_start, grammar::target_end(buf, target_start));
    let version_start = grammar::word_end(buf, head.target, b' ')?;
    let (version, end) = grammar::version(buf, version_start)?;
    let fields_start = grammar::line_end(buf, end)?;
    head.version = version;
    head.method = Method::from_token(head.method_span.of(buf));
    head.wire.end = grammar::field_lines(buf, fields_start, &mut head.fields, MAX_FIELDS)?;
    Ok(())
}

/// Why `buf` is refused; `Partial` while that depends on bytes to come.
fn refusal(buf: &[u8]) -> Result<Parsed, RequestError> {
    match diagnose::first_fault(buf) {
        Finding::Broken(error) => Err(error),
        Finding::Undecided => Ok(Parsed::Partial),
    }
}

/// Everything that fields decide: framing, persistence, expectation, host.
fn read_fields(buf: &[u8], head: &mut RequestHead) -> Result<(), RequestError> {
    let mut host = None;
    let mut has_connection = false;
    let mut has_framing = false;
    let mut upgrade = UpgradeOffer::Nothing;
    let mut expects_continue = false;
    head.credentials = Credentials::OfRequest;
    head.has_cdn_loop = false;
    for field in &head.fields {
        match field.kind {
            FieldKind::Host if host.is_some() => return Err(RequestError::HostRepeated),
            FieldKind::Host => host = Some(field.value),
            FieldKind::Connection => has_connection = true,
            FieldKind::ContentLength | FieldKind::TransferEncoding => has_framing = true,
            FieldKind::Upgrade => upgrade = upgrade.and(buf, field.value),
            // Of several the one that holds for longest counts.
            FieldKind::Authorization if head.credentials == Credentials::OfRequest => {
                head.credentials = Credentials::of(field.value.of(buf));
            }
            FieldKind::CdnLoop => head.has_cdn_loop = true,
            FieldKind::Expect => {
                let value = field.value.of(buf);
                if !value.is_empty() {
                    if !value.eq_ignore_ascii_case(b"100-continue") {
                        return Err(RequestError::Expectation);
                    }
                    expects_continue = head.version == Version::Http11;
                }
            }
            _ => {}
        }
    }
    head.host = host.unwrap_or_default();
    if host.is_none() && head.version == Version::Http11 {
        return Err(RequestError::HostMissing);
    }
    if !head.host.is_empty() && authority::read(head.host.of(buf)).is_none() {
        return Err(RequestError::HostInvalid);
    }
    head.wire.keep_alive = head.version == Version::Http11;
    head.wire.upgrade = None;
    if has_connection {
        let options =
            fields::connection_options(buf, &mut head.fields).ok_or(RequestError::TooManyFields)?;
        head.wire.keep_alive = !options.close && (head.wire.keep_alive || options.keep_alive);
        if let (true, Version::Http11, UpgradeOffer::For(protocol)) =
            (options.upgrade, head.version, upgrade)
        {
            head.wire.upgrade = Some(protocol);
        }
    }
    head.wire.framing = if has_framing {
        request_framing(buf, head)?
    } else {
        BodyFraming::None
    };
    // Without a body, the client waits for nothing (RFC 9110 §10.1.1).
    head.wire.expect_continue = expects_continue && head.wire.framing != BodyFraming::None;
    Ok(())
}

/// The protocols that the `Upgrade` fields of a request ask for.
#[derive(Clone, Copy)]
enum UpgradeOffer {
    Nothing,
    For(Span),
    ForWhatIsIgnored,
}

impl UpgradeOffer {
    /// Deviation: an offer of HTTP or TLS is ignored, as RFC 9110 §7.8 allows. An endpoint that
    /// took `h2c` would get requests that no route has seen. Several fields are ignored too: the
    /// choice of one would be a guess.
    fn and(self, buf: &[u8], value: Span) -> Self {
        let is_ignored = |protocol: &[u8]| {
            ["h2", "http/", "tls/"].iter().any(|start| {
                protocol
                    .get(..start.len())
                    .is_some_and(|begin| begin.eq_ignore_ascii_case(start.as_bytes()))
            })
        };
        match self {
            UpgradeOffer::Nothing if value.is_empty() => UpgradeOffer::ForWhatIsIgnored,
            UpgradeOffer::Nothing if !list_items(value.of(buf)).any(is_ignored) => {
                UpgradeOffer::For(value)
            }
            _ => UpgradeOffer::ForWhatIsIgnored,
        }
    }
}

fn request_framing(buf: &[u8], head: &RequestHead) -> Result<BodyFraming, RequestError> {
    match fields::framing(buf, &head.fields) {
        Ok(Framing::Chunked) if head.version == Version::Http10 => {
            Err(RequestError::TransferCoding)
        }
        Ok(Framing::Chunked) => Ok(BodyFraming::Chunked),
        Ok(Framing::Length { bytes: 0 } | Framing::Unstated) => Ok(BodyFraming::None),
        Ok(Framing::Length { bytes }) => Ok(BodyFraming::Length { bytes }),
        Err(FramingError::Length) => Err(RequestError::ContentLength),
        Err(FramingError::Repeated) => Err(RequestError::ContentLengthRepeated),
        Err(FramingError::Both) => Err(RequestError::LengthAndCoding),
        Err(FramingError::Coding) => Err(RequestError::TransferCoding),
    }
}

/// Splits the target by its form (RFC 9112 §3.2).
fn read_target(buf: &[u8], head: &mut RequestHead) -> Result<(), RequestError> {
    let target = head.target.of(buf);
    let query_mark = query_mark(target)?;
    head.wire.host_in_target = false;
    head.path_and_query = head.target;
    if head.method == Method::Connect {
        // RFC 9110 §9.3.6: there is no default port.
        if authority::read(target)
            .and_then(|target| target.port)
            .is_none()
        {
            return Err(RequestError::Target);
        }
        head.host = head.target;
        head.wire.host_in_target = true;
        head.path_and_query = Span::default();
    } else if target.first() != Some(&b'/') && (target != b"*" || head.method != Method::Options) {
        read_absolute_form(buf, head)?;
    }
    let whole = head.path_and_query;
    let end = whole.end as usize;
    (head.path_span, head.query) = match query_mark {
        Some(mark) => {
            let mark = head.target.start as usize + mark;
            let path = Span::new(whole.start as usize, mark);
            (path, Span::new(mark + 1, end))
        }
        None => (whole, Span::new(end, end)),
    };
    Ok(())
}

/// The start of a target's query, if it has one.
fn query_mark(target: &[u8]) -> Result<Option<usize>, RequestError> {
    let Some(mark) = memchr::memchr2(b'?', b'#', target) else {
        return Ok(None);
    };
    // A fragment is for the client alone.
    match memchr::memchr(b'#', &target[mark..]) {
        Some(_) => Err(RequestError::Target),
        None => Ok(Some(mark)),
    }
}

/// `http://authority/path?query`: the authority overrules `Host`.
fn read_absolute_form(buf: &[u8], head: &mut RequestHead) -> Result<(), RequestError> {
    let target = head.target.of(buf);
    let scheme_len = [&b"http://"[..], b"https://"]
        .iter()
        .find(|scheme| {
            target
                .get(..scheme.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        })
        .map(|scheme| scheme.len())
        .ok_or(RequestError::Target)?;
    let rest = &target[scheme_len..];
    let authority_len = rest
        .iter()
        .position(|&byte| byte == b'/' || byte == b'?')
        .unwrap_or(rest.len());
    let authority = &rest[..authority_len];
    if authority::read(authority).is_none() {
        return Err(RequestError::Target);
    }
    let start = head.target.start as usize + scheme_len;
    head.host = Span::new(start, start + authority_len);
    head.wire.host_in_target = true;
    head.path_and_query = Span::new(start + authority_len, head.target.end as usize);
    Ok(())
}

#[cfg(test)]
mod tests;
