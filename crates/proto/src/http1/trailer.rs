//! Which fields of a trailer section may be there (RFC 9110 §6.5.1).

use super::MAX_FIELDS;
use super::grammar;
use crate::field::{Field, FieldKind};
use crate::span::Span;

/// Removes forbidden fields from a whole trailer section; gives the length of
/// the rest at its front.
#[cold]
pub(super) fn restate_trailer(section: &mut [u8]) -> usize {
    let mut fields = Vec::new();
    if grammar::field_lines(section, 0, &mut fields, MAX_FIELDS) != Ok(section.len()) {
        debug_assert!(false, "it was taken as a whole section");
        return section.len();
    }
    let last_line = section.len() - b"\r\n".len();
    let starts = fields.iter().map(|field| field.name.start as usize);
    let ends = starts.skip(1).chain([last_line]);
    let lines: Vec<Span> = std::iter::zip(&fields, ends)
        .filter(|(field, _)| !is_forbidden(field, section))
        .map(|(field, end)| Span::new(field.name.start as usize, end))
        .chain([Span::new(last_line, section.len())])
        .collect();
    let mut kept = 0;
    for line in lines {
        section.copy_within(line.start as usize..line.end as usize, kept);
        kept += line.len();
    }
    kept
}

/// Whether a field may not be a trailer (RFC 9110 §6.5.1).
///
/// Forbidden are fields that frame, route, authenticate or say how to read the
/// content, and fields that name a client, a user or another method or target.
/// An endpoint may merge trailers into the head, where CGI and its like read
/// every byte but letters and digits as `_`.
pub(crate) fn is_forbidden(field: &Field, buf: &[u8]) -> bool {
    const FORBIDDEN: [&str; 21] = [
        "age",
        "cache-control",
        "content-encoding",
        "content-range",
        "content-type",
        "cookie",
        "expires",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-range",
        "if-unmodified-since",
        "location",
        "pragma",
        "range",
        "retry-after",
        "set-cookie",
        "trailer",
        "vary",
        "www-authenticate",
        "x-method-override",
    ];
    /// Fields about a client, and fields that override a request.
    const STARTS: [&str; 9] = [
        "remote-",
        "ssl-client",
        "x-auth-",
        "x-client-",
        "x-http-method",
        "x-original-",
        "x-remote-",
        "x-rewrite-",
        "x-webauth-",
    ];
    let hyphenated = |byte: &u8| {
        if byte.is_ascii_alphanumeric() {
            byte.to_ascii_lowercase()
        } else {
            b'-'
        }
    };
    let name: Vec<u8> = field.name.of(buf).iter().map(hyphenated).collect();
    let is_head_field = !matches!(
        FieldKind::from_name(&name),
        FieldKind::Other | FieldKind::UserAgent | FieldKind::Referer
    );
    is_head_field
        || FORBIDDEN.iter().any(|known| known.as_bytes() == name)
        || STARTS
            .iter()
            .any(|start| name.starts_with(start.as_bytes()))
}
