//! Properties of what decides on files: paths, ranges, conditions.

use evenkeel_proto::file_path::{self, MAX_NAME_LEN, MAX_PATH_LEN};
use evenkeel_proto::http1::{Parsed, parse_request};
use evenkeel_proto::representation::MAX_RANGES;
use evenkeel_proto::{
    ByteRange, Coding, Conditions, PathError, Precondition, Ranges, RequestHead, Validators, date,
};
use proptest::prelude::*;

const VALIDATORS: Validators<'_> = Validators {
    entity_tag: b"\"v1\"",
    modified: Some(784_111_777),
};

/// Paths of what matters in them, often enough.
fn path() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => Just("/"),
        2 => Just("."),
        2 => Just(".."),
        1 => Just("%2e"),
        1 => Just("%2E"),
        1 => Just("%25"),
        1 => Just("2e"),
        4 => Just("a"),
        1 => Just("%61"),
        1 => Just("\\"),
    ];
    let rare = prop_oneof![
        20 => Just(""),
        1 => Just("%2f"),
        1 => Just("%00"),
        1 => Just("%"),
        1 => Just("\0"),
    ];
    let pieces = proptest::collection::vec(piece, 0..16);
    (pieces, rare, any::<prop::sample::Index>()).prop_map(|(mut pieces, rare, at)| {
        pieces.insert(at.index(pieces.len() + 1), rare);
        pieces.concat().into_bytes()
    })
}

/// A second decoder, written for clearness: decode, split, resolve.
fn naive_path(path: &[u8]) -> Result<Vec<u8>, PathError> {
    let segments: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
    let mut folders: Vec<Vec<u8>> = Vec::new();
    let mut ends_in_slash = false;
    for segment in segments {
        let name = naive_name(segment)?;
        ends_in_slash = matches!(name.as_slice(), b"" | b"." | b"..");
        match name.as_slice() {
            b"" | b"." => {}
            b".." => drop(folders.pop().ok_or(PathError::Climbs)?),
            _ => folders.push(name),
        }
    }
    let mut whole = folders.join(&b'/');
    if ends_in_slash && !whole.is_empty() {
        whole.push(b'/');
    }
    Ok(whole)
}

fn naive_name(segment: &[u8]) -> Result<Vec<u8>, PathError> {
    let mut name = Vec::new();
    let mut bytes = segment.iter();
    while let Some(&byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || {
                    let digit = bytes.next().ok_or(PathError::Percent)?;
                    char::from(*digit).to_digit(16).ok_or(PathError::Percent)
                };
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        };
        match byte {
            0 => return Err(PathError::Nul),
            b'/' => return Err(PathError::EncodedSlash),
            byte => name.push(byte),
        }
    }
    Ok(name)
}

/// A decoded path is safe to look for below a root.
fn check_path(decoded: &[u8]) -> Result<(), TestCaseError> {
    prop_assert!(!decoded.starts_with(b"/"));
    prop_assert!(!decoded.contains(&0));
    prop_assert!(decoded.len() <= MAX_PATH_LEN);
    let mut names: Vec<&[u8]> = decoded.split(|&byte| byte == b'/').collect();
    if names.last().is_some_and(|last| last.is_empty()) {
        names.pop();
    }
    for name in &names {
        prop_assert!(!matches!(*name, b"" | b"." | b".."), "{names:?}");
        prop_assert!(name.len() <= MAX_NAME_LEN);
    }
    let is_hidden = names.iter().any(|name| name.starts_with(b"."));
    prop_assert_eq!(file_path::is_hidden(decoded), is_hidden);
    Ok(())
}

/// Values of `Range`, most of them well-formed.
fn range_value() -> impl Strategy<Value = String> {
    let number = prop_oneof![8 => 0..40u64, 1 => any::<u64>()];
    let spec = (number.clone(), number, 0..20).prop_map(|(one, other, form)| match form {
        0 => format!("-{one}"),
        1 => format!("{one}-"),
        2 => format!("{one}-{other}"),
        _ => format!("{}-{}", one.min(other), one.max(other)),
    });
    let specs = proptest::collection::vec(spec, 0..20);
    specs.prop_map(|specs| format!("bytes={}", specs.join(",")))
}

/// Whether a byte is asked for by some range of a well-formed value.
fn is_asked_for(value: &str, at: u64, len: u64) -> bool {
    let specs = value.trim_start_matches("bytes=").split(',');
    specs.into_iter().any(|spec| {
        let (first, last) = spec.split_once('-').expect("a range has a dash");
        match (first.parse::<u64>(), last.parse::<u64>()) {
            (Err(_), Ok(suffix)) => at >= len.saturating_sub(suffix),
            (Ok(first), Err(_)) => at >= first,
            (Ok(first), Ok(last)) => (first..=last).contains(&at),
            (Err(_), Err(_)) => false,
        }
    })
}

/// Whether a value of [`range_value`] asks for the whole.
fn is_ignored(value: &str, len: u64) -> bool {
    let specs: Vec<_> = value.trim_start_matches("bytes=").split(',').collect();
    let is_backward = |spec: &&str| match spec.split_once('-') {
        Some((first, last)) => {
            let (first, last) = (first.parse::<u64>(), last.parse::<u64>());
            matches!((first, last), (Ok(first), Ok(last)) if first > last)
        }
        None => true,
    };
    len == 0 || specs.len() > MAX_RANGES || specs.iter().any(is_backward)
}

/// Reads a GET with these lines.
fn conditions(lines: &str) -> Option<(Conditions, Vec<u8>)> {
    let bytes = format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n").into_bytes();
    let mut head = RequestHead::default();
    let parsed = parse_request(&bytes, &mut head);
    (parsed == Ok(Parsed::Complete)).then(|| (Conditions::of(&head, &bytes), bytes))
}

fn ranges(value: &str, len: u64) -> Option<Ranges> {
    let (conditions, bytes) = conditions(&format!("Range: {value}\r\n"))?;
    Some(conditions.ranges(&bytes, &VALIDATORS, len))
}

fn check_ranges(ranges: &[ByteRange], len: u64) -> Result<(), TestCaseError> {
    prop_assert!((1..=MAX_RANGES).contains(&ranges.len()));
    for range in ranges {
        prop_assert!(range.first <= range.last && range.last < len);
    }
    for pair in ranges.windows(2) {
        prop_assert!(pair[0].last + 1 < pair[1].first);
    }
    let total: u128 = ranges.iter().map(|range| u128::from(range.len())).sum();
    prop_assert!(total <= u128::from(len));
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_decode_to_a_safe_path(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        if let Ok(decoded) = file_path::decode(&bytes) {
            check_path(&decoded)?;
        }
    }

    #[test]
    fn paths_decode_as_they_do_for_a_naive_decoder(path in path()) {
        let (decoded, naive) = (file_path::decode(&path), naive_path(&path));
        prop_assert_eq!(decoded.as_deref(), naive.as_deref());
        if let Ok(decoded) = decoded {
            check_path(&decoded)?;
        }
    }

    #[test]
    fn what_was_encoded_decodes_to_itself(
        names in proptest::collection::vec("[^/\0.][^/\0]{0,20}", 1..5),
    ) {
        let path = names.join("/");
        let encoded: String = path
            .bytes()
            .map(|byte| match byte {
                b'/' => "/".to_owned(),
                byte => format!("%{byte:02x}"),
            })
            .collect();
        let decoded = file_path::decode(encoded.as_bytes());
        prop_assert_eq!(decoded.as_deref(), Ok(path.as_bytes()));
    }

    #[test]
    fn ranges_are_sound(value in range_value(), len in prop_oneof![8 => 0..60u64, 1 => any::<u64>()]) {
        let ranges = ranges(&value, len).expect("a sound head");
        if let Ranges::Some(ranges) = &ranges {
            check_ranges(ranges, len)?;
        }
        prop_assert_eq!(ranges == Ranges::Whole, is_ignored(&value, len));
        for at in 0..len.min(60) {
            match &ranges {
                Ranges::Whole => {}
                Ranges::Unsatisfiable => prop_assert!(!is_asked_for(&value, at, len)),
                Ranges::Some(ranges) => {
                    let is_sent = ranges.iter().any(|range| (range.first..=range.last).contains(&at));
                    prop_assert_eq!(is_sent, is_asked_for(&value, at, len), "{}", at);
                }
            }
        }
    }

    #[test]
    fn any_value_of_range_is_sound(value in "(bytes=)?[-0-9, =a\t]{0,40}", len in any::<u64>()) {
        if let Some(Ranges::Some(ranges)) = ranges(&value, len) {
            check_ranges(&ranges, len)?;
        }
    }

    #[test]
    fn a_tag_is_found_wherever_it_stands_in_a_list(
        tags in proptest::collection::vec("(W/)?\"[!#-~]{0,6}\"", 0..8),
        separators in proptest::collection::vec("( , ?|,|\t,,|\r\nIf-None-Match: )", 8),
        is_weak in any::<bool>(),
        at in any::<prop::sample::Index>(),
    ) {
        let separators = std::iter::once("").chain(separators.iter().map(String::as_str));
        let list = |tags: &[String]| -> String {
            separators.clone().zip(tags).map(|(separator, tag)| format!("{separator}{tag}")).collect()
        };
        let found = |tags: &[String]| {
            let (conditions, bytes) = conditions(&format!("If-None-Match: {}\r\n", list(tags)))?;
            let is_readable = list(tags).matches('\r').count() < 4;
            is_readable.then(|| conditions.precondition(&bytes, &VALIDATORS))
        };
        let is_among = tags.iter().any(|tag| tag.trim_start_matches("W/") == "\"v1\"");
        if let Some(found) = found(&tags) {
            prop_assert_eq!(found == Precondition::NotModified, is_among);
        }
        let mut tags = tags;
        let tag = if is_weak { "W/\"v1\"" } else { "\"v1\"" };
        tags.insert(at.index(tags.len() + 1), tag.to_owned());
        if let Some(found) = found(&tags) {
            prop_assert_eq!(found, Precondition::NotModified);
        }
    }

    #[test]
    fn no_coding_is_chosen_that_was_not_offered_and_named(
        value in "((gzip|GZIP|x-gzip|br|zstd|identity|\\*|x)( ?; ?[qQ]=[01](\\.[0-9]{0,3})?)?,){0,6}",
        offered in proptest::sample::subsequence(&Coding::ALL[..], 0..=3),
    ) {
        let (conditions, bytes) =
            conditions(&format!("Accept-Encoding: {value}\r\n")).expect("a sound head");
        if let Some(coding) = conditions.coding(&bytes, &offered) {
            prop_assert!(offered.contains(&coding));
            let value = value.to_ascii_lowercase();
            prop_assert!(value.contains(coding.name()) || value.contains('*'));
        }
    }

    #[test]
    fn any_values_decide_something(
        values in proptest::collection::vec("[ -~\t]{0,30}", 7),
        len in any::<u64>(),
    ) {
        let names = [
            "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since",
            "If-Range", "Range", "Accept-Encoding",
        ];
        let lines: String = std::iter::zip(names, &values)
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let (conditions, bytes) = conditions(&lines).expect("a sound head");
        conditions.precondition(&bytes, &VALIDATORS);
        conditions.ranges(&bytes, &VALIDATORS, len);
        conditions.coding(&bytes, &Coding::ALL);
        prop_assert!(!conditions.is_plain());
    }

    #[test]
    fn dates_read_as_they_are_written(seconds in 0..253_402_300_800u64) {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        let text = httpdate::fmt_http_date(time);
        prop_assert_eq!(date::parse(text.as_bytes()), Some(seconds));
    }

    #[test]
    fn any_bytes_are_a_date_or_none(
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
        text in "(Sun|Mon|Sunday|Wednesday)?,? ?[0-9 ]{0,2}[ -]?(Jan|Feb|Dec)?[ -]?[0-9]{0,4} [0-9]{2}:[0-9]{2}:[0-9]{2}( GMT)?",
    ) {
        date::parse(&bytes);
        date::parse(text.as_bytes());
    }
}
