//! Fields of answers with a file, built once while the file is open.

use std::ops::Range;
use std::time::SystemTime;

use evenkeel_policy::route::path;
use evenkeel_proto::coding::Coding;
use evenkeel_proto::representation::Validators;

use crate::config::{self, Compression};
use crate::files::{Fields, OpenFile};
use crate::observe::calendar::{Moment, unix_time};

/// The validators of a file, for a client's conditions.
pub(super) fn validators(fields: &Fields) -> Validators<'_> {
    Validators {
        entity_tag: fields.entity_tag(),
        modified: fields.modified,
    }
}

/// Builds the fields of a file with this coding. `path` is the file's path in its folder, without
/// the ending of the coding.
///
/// Invariant: `ETag` and `Last-Modified` change with the contents. Where the time of the last
/// change says nothing, the file has neither field.
pub(super) fn make(
    settings: &config::Files,
    path: &[u8],
    file: &OpenFile,
    coding: Option<Coding>,
) -> Fields {
    let (modified_ns, len) = (file.id.modified_ns(), file.id.len);
    let now_s = unix_time(SystemTime::now()).as_secs();
    let modified_s = modified_ns.map(|ns| ns / 1_000_000_000);
    // RFC 9110 §8.8.2.1: an answer is never older than its `Last-Modified`.
    let modified = modified_s.filter(|&modified| modified <= now_s);
    let mut text = Vec::with_capacity(ROOM);
    let content_type = content_type(settings, path);
    if is_negotiated(settings, &content_type, len) {
        text.extend_from_slice(b"Vary: Accept-Encoding\r\n");
    }
    let vary_end = text.len();
    let entity_tag = match modified_ns {
        Some(modified_ns) => push_entity_tag(&mut text, modified_ns, len, coding),
        None => vary_end..vary_end,
    };
    let tag_end = text.len();
    if let Some(modified) = modified {
        text.extend_from_slice(b"Last-Modified: ");
        text.extend_from_slice(&Moment::from_unix(modified).http_date());
        text.extend_from_slice(b"\r\n");
    }
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
        tag_end,
        shared_end,
        content_end,
        modified,
    }
}

/// Writes the line of `ETag`, and returns the range of its value.
fn push_entity_tag(
    text: &mut Vec<u8>,
    modified_ns: u64,
    len: u64,
    coding: Option<Coding>,
) -> Range<usize> {
    text.extend_from_slice(b"ETag: ");
    let start = text.len();
    text.push(b'"');
    push_hexadecimal(text, modified_ns);
    text.push(b'-');
    push_hexadecimal(text, len);
    if let Some(coding) = coding {
        text.push(b'-');
        text.extend_from_slice(coding.name().as_bytes());
    }
    text.push(b'"');
    let value = start..text.len();
    text.extend_from_slice(b"\r\n");
    value
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

/// Whether a file of this type and length is compressed.
pub(super) fn is_compressible(compression: &Compression, content_type: &str, len: u64) -> bool {
    (compression.min_bytes..=compression.max_bytes).contains(&len)
        && compression
            .types
            .iter()
            .any(|it| content_type.starts_with(it.as_str()))
}

/// Whether the answer depends on `Accept-Encoding`.
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

/// Types registered with IANA for common endings of web files, where the library differs: it has
/// another name, another kind of file with that ending, or no type.
fn registered(ending: &str) -> Option<&'static str> {
    Some(match ending {
        "3mf" => "model/3mf",
        "cab" => "application/vnd.ms-cab-compressed",
        "cer" => "application/pkix-cert",
        // Registered as `application/node`, which no browser takes for a script.
        "cjs" | "js" | "mjs" => "text/javascript",
        "ico" => "image/vnd.microsoft.icon",
        "ktx2" => "image/ktx2",
        "m2t" | "m2ts" | "mts" | "ts" => "video/mp2t",
        "m3u8" => "application/vnd.apple.mpegurl",
        "m4a" | "m4b" => "audio/mp4",
        "m4s" => "video/iso.segment",
        "map" => "application/json",
        "mtl" => "model/mtl",
        "mvt" => "application/vnd.mapbox-vector-tile",
        "obj" => "model/obj",
        "otf" => "font/otf",
        "psd" => "image/vnd.adobe.photoshop",
        "rar" => "application/vnd.rar",
        "rpm" => "application/x-rpm",
        "sql" => "application/sql",
        "step" | "stp" => "model/step",
        "stl" => "model/stl",
        "toml" => "application/toml",
        "ttml" => "application/ttml+xml",
        "usdz" => "model/vnd.usdz+zip",
        "vcf" => "text/vcard",
        "wgsl" => "text/wgsl",
        "woff" => "font/woff",
        "yaml" | "yml" => "application/yaml",
        "zst" => "application/zstd",
        _ => return None,
    })
}

/// The type of a file by the ending of its name: the configured or the registered one.
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
    // Browsers guess the charset of text by language where none is given. XML declares its own,
    // and this field would override it (RFC 7303 §3).
    let is_text = content_type.starts_with("text/") && content_type != "text/xml";
    if is_text {
        format!("{content_type}; charset=utf-8").into()
    } else {
        content_type.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_by_type_and_length() {
        let compression = Compression {
            codings: vec![Coding::Gzip],
            types: vec!["text/".to_owned(), "application/json".to_owned()],
            min_bytes: 100,
            max_bytes: 1000,
        };
        for (content_type, len, expected) in [
            ("text/css; charset=utf-8", 100, true),
            ("text/css; charset=utf-8", 99, false),
            ("application/json", 1000, true),
            ("application/json", 1001, false),
            ("image/jpeg", 500, false),
            ("application/x-text/", 500, false),
        ] {
            let found = is_compressible(&compression, content_type, len);
            assert_eq!(found, expected, "{content_type} {len}");
        }
    }
}
