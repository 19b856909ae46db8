//! The fields of answers with a file, made once for as long as it is open.

use evenkeel_policy::route::path;
use evenkeel_proto::coding::Coding;
use evenkeel_proto::representation::Validators;

use super::compress::is_compressible;
use crate::config;
use crate::files::{Fields, OpenFile};
use crate::observe::calendar::Moment;

/// What a client may compare with what it has.
pub(super) fn validators<'a>(file: &OpenFile, fields: &'a Fields) -> Validators<'a> {
    Validators {
        entity_tag: fields.entity_tag(),
        modified: file.id.modified_ns() / 1_000_000_000,
    }
}

/// Makes them for a file that is compressed in this way. `path` is that of the file in its folder, without the coding's ending.
pub(super) fn make(
    settings: &config::Files,
    path: &[u8],
    file: &OpenFile,
    coding: Option<Coding>,
) -> Fields {
    let (modified_ns, len) = (file.id.modified_ns(), file.id.len);
    let mut text = Vec::with_capacity(ROOM);
    let content_type = content_type(settings, path);
    if is_negotiated(settings, &content_type, len) {
        text.extend_from_slice(b"Vary: Accept-Encoding\r\n");
    }
    let vary_end = text.len();
    text.extend_from_slice(b"ETag: ");
    let tag_start = text.len();
    text.push(b'"');
    push_hexadecimal(&mut text, modified_ns);
    text.push(b'-');
    push_hexadecimal(&mut text, len);
    if let Some(coding) = coding {
        text.push(b'-');
        text.extend_from_slice(coding.name().as_bytes());
    }
    text.push(b'"');
    let entity_tag = tag_start..text.len();
    text.extend_from_slice(b"\r\nLast-Modified: ");
    text.extend_from_slice(&Moment::from_unix(modified_ns / 1_000_000_000).http_date());
    text.extend_from_slice(b"\r\n");
    if let Some(value) = cache_control(settings, path) {
        push_field(&mut text, "Cache-Control: ", value);
    }
    let shared_end = text.len();
    push_field(&mut text, "Content-Type: ", &content_type);
    text.extend_from_slice(b"Accept-Ranges: bytes\r\n");
    if let Some(coding) = coding {
        push_field(&mut text, "Content-Encoding: ", coding.name());
    }
    let content_end = text.len();
    push_field(
        &mut text,
        "Content-Length: ",
        itoa::Buffer::new().format(len),
    );
    Fields {
        text: text.into(),
        vary_end,
        entity_tag,
        shared_end,
        content_end,
    }
}

/// Room for the fields of most files, in bytes.
const ROOM: usize = 256;

fn push_field(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn push_hexadecimal(out: &mut Vec<u8>, number: u64) {
    let digit_count = (u64::BITS - number.leading_zeros()).div_ceil(4).max(1);
    let digits = (0..digit_count).rev();
    out.extend(digits.map(|at| b"0123456789abcdef"[(number >> (4 * at)) as usize & 15]));
}

/// Whether what is sent depends on `Accept-Encoding`.
fn is_negotiated(settings: &config::Files, content_type: &str, len: u64) -> bool {
    let is_compressible = |it| is_compressible(it, content_type, len);
    !settings.precompressed.is_empty() || settings.compression.as_ref().is_some_and(is_compressible)
}

fn cache_control<'a>(settings: &'a config::Files, path: &[u8]) -> Option<&'a str> {
    if settings.cache_control.is_empty() {
        return None;
    }
    let mut patterns = settings.cache_control.iter();
    let path = path::encode(&[b"/", path].concat());
    let found = patterns.find(|(pattern, _)| pattern.matches(&path));
    found.map(|(_, value)| value.as_str())
}

/// Types that the library has otherwise: by another name than that which is
/// registered with IANA, or of another thing that ends like it.
fn registered(ending: &str) -> Option<&'static str> {
    Some(match ending {
        "js" | "mjs" => "text/javascript",
        "m3u8" => "application/vnd.apple.mpegurl",
        "otf" => "font/otf",
        "rpm" => "application/x-rpm",
        "ts" => "video/mp2t",
        "woff" => "font/woff",
        "zst" => "application/zstd",
        _ => return None,
    })
}

/// The type of a file by the ending of its name: the configured one, or that
/// which is registered for it.
fn content_type<'a>(settings: &'a config::Files, path: &[u8]) -> std::borrow::Cow<'a, str> {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let ending = match name.iter().rposition(|&byte| byte == b'.') {
        Some(dot) => String::from_utf8_lossy(&name[dot + 1..]).to_ascii_lowercase(),
        None => return settings.default_type.as_str().into(),
    };
    if let Some((_, content_type)) = settings.types.iter().find(|(it, _)| *it == ending) {
        return content_type.as_str().into();
    }
    let known = registered(&ending).or_else(|| mime_guess::from_ext(&ending).first_raw());
    let Some(content_type) = known else {
        return settings.default_type.as_str().into();
    };
    // Browsers take text without a character set for that of a language; XML says
    // it itself, which it could not against this field (RFC 7303 §3).
    let is_text = content_type.starts_with("text/") && content_type != "text/xml";
    match is_text {
        true => format!("{content_type}; charset=utf-8").into(),
        false => content_type.into(),
    }
}
