//! The ways in which servers read one path.
//!
//! The normal form (see [`super::path`]) settles what servers agree on. They
//! disagree on `%2F`, `\` and `%5C`, which some take for slashes, and on
//! `;parameters`, which some take off each segment. Some do several of these,
//! in either order, and some resolve dot segments in between:
//! `/x/..%2fadmin` is `/admin` to one server and a strange name to another.

use super::path::{decode_pair, decode_unreserved, remove_dot_segments};

/// Most texts that one path may become on its way to a reading.
///
/// Enough for two of the characters beside dot segments, and for all of them
/// without. The bound keeps the work linear in the length of the path, whatever
/// a client makes up.
const MAX_TEXTS: usize = 40;

/// Whether the normal form of a path settles how servers read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Oddity {
    /// Nothing: every server reads it alike.
    Nothing,
    /// A character that servers read in several ways.
    Ambiguous,
    /// An encoded NUL, at which some servers end the path.
    Nul,
}

/// Looks for what servers read in several ways. Without any of three
/// characters in `path` this is one scan.
#[inline]
pub(super) fn oddity(path: &[u8]) -> Oddity {
    match memchr::memchr3(b'%', b'\\', b';', path) {
        None => Oddity::Nothing,
        Some(at) => oddity_from(path, at),
    }
}

#[cold]
fn oddity_from(path: &[u8], start: usize) -> Oddity {
    let mut oddity = Oddity::Nothing;
    for (at, &byte) in path.iter().enumerate().skip(start) {
        let decoded = match byte {
            b'%' => decode_pair(&path[at + 1..]),
            _ => None,
        };
        match (byte, decoded) {
            (b'%', Some(0)) => return Oddity::Nul,
            (b'%', Some(b'/' | b'\\')) | (b'\\' | b';', _) => oddity = Oddity::Ambiguous,
            _ => {}
        }
    }
    oddity
}

/// A path with more readings than are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

/// The normal forms of every reading of a path that begins with a slash; the
/// first is that of the path as written.
///
/// A server reads a path by some of the [`STEPS`], in some order. Dot segments
/// are resolved last, and perhaps before that.
///
/// # Errors
/// The path becomes more than [`MAX_TEXTS`] texts on the way.
pub(super) fn readings(path: &[u8]) -> Result<Vec<Vec<u8>>, TooMany> {
    let mut texts = vec![decode_unreserved(path)];
    let mut at = 0;
    while let Some(text) = texts.get(at) {
        let steps: Vec<Vec<u8>> = STEPS.iter().filter_map(|step| step(text)).collect();
        for next in steps {
            if texts.contains(&next) {
                continue;
            }
            if texts.len() == MAX_TEXTS {
                return Err(TooMany);
            }
            texts.push(next);
        }
        at += 1;
    }
    let mut readings: Vec<Vec<u8>> = Vec::new();
    for reading in texts.iter().map(|text| remove_dot_segments(text)) {
        if !readings.contains(&reading) {
            readings.push(reading);
        }
    }
    Ok(readings)
}

type Step = fn(&[u8]) -> Option<Vec<u8>>;

/// The steps that a server may take, each over all of a path; `None` where a
/// step has nothing to do.
const STEPS: [Step; 5] = [
    |text| with_slashes(text, b"%2F"),
    |text| with_slashes(text, b"\\"),
    |text| with_slashes(text, b"%5C"),
    without_parameters,
    |text| Some(remove_dot_segments(text)),
];

/// With a slash for each `mark`.
fn with_slashes(text: &[u8], mark: &[u8]) -> Option<Vec<u8>> {
    let mut replaced = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(&byte) = rest.first() {
        match rest.strip_prefix(mark) {
            Some(behind) => {
                replaced.push(b'/');
                rest = behind;
            }
            None => {
                replaced.push(byte);
                rest = &rest[1..];
            }
        }
    }
    (replaced != text).then_some(replaced)
}

/// Without what stands behind a `;` in each segment (RFC 3986 §3.3).
fn without_parameters(text: &[u8]) -> Option<Vec<u8>> {
    let _is_there = memchr::memchr(b';', text)?;
    let mut is_kept = true;
    let keeps = |byte: &u8| {
        match byte {
            b'/' => is_kept = true,
            b';' => is_kept = false,
            _ => {}
        }
        is_kept
    };
    Some(text.iter().copied().filter(keeps).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(path: &str) -> Vec<String> {
        let readings = readings(path.as_bytes()).expect(path);
        let texts = readings.into_iter().map(String::from_utf8);
        texts.map(|it| it.expect("ASCII")).collect()
    }

    #[test]
    fn what_is_odd() {
        for (path, expected) in [
            ("/a/b.c", Oddity::Nothing),
            ("*", Oddity::Nothing),
            ("", Oddity::Nothing),
            ("/caf%C3%A9/%2e%2e/%", Oddity::Nothing),
            ("/%252f%255c%2500%253b", Oddity::Nothing),
            ("/%2", Oddity::Nothing),
            ("/a%2fb", Oddity::Ambiguous),
            ("/a%2Fb", Oddity::Ambiguous),
            ("/a%5cb", Oddity::Ambiguous),
            ("/a%5Cb", Oddity::Ambiguous),
            ("/a\\b", Oddity::Ambiguous),
            ("/a;b", Oddity::Ambiguous),
            ("/%20;", Oddity::Ambiguous),
            ("/a%00", Oddity::Nul),
            ("/a;b%2f%00", Oddity::Nul),
        ] {
            assert_eq!(oddity(path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn every_reading() {
        for (path, expected) in [
            ("/a/b", &["/a/b"][..]),
            ("/%61/%252f", &["/a/%252f"]),
            ("/admin%2fx", &["/admin%2Fx", "/admin/x"]),
            ("/x/..%2Fadmin/x", &["/x/..%2Fadmin/x", "/admin/x"]),
            ("/.%2fadmin", &["/.%2Fadmin", "/admin"]),
            ("/%2e%2e%2fa", &["/..%2Fa", "/a"]),
            ("/x\\..\\a", &["/x\\..\\a", "/a"]),
            ("/x%5c..%5Ca", &["/x%5C..%5Ca", "/a"]),
            ("/x/..;/a", &["/x/..;/a", "/a"]),
            ("/a;b=c/d;e", &["/a;b=c/d;e", "/a/d"]),
            ("/;a", &["/;a", "/"]),
            // A server without Windows' slashes, one with them, and a browser.
            (
                "/a%5cb%2f..%2fc",
                &["/a%5Cb%2F..%2Fc", "/c", "/a/b%2F..%2Fc", "/a/c"],
            ),
            // The parameter ends at the next slash, whoever takes it for one.
            ("/a;b%2fc", &["/a;b%2Fc", "/a;b/c", "/a", "/a/c"]),
            // Dot segments are resolved before and after the slashes are.
            ("/a%2fb/../c%2f..%2fd", &["/c%2F..%2Fd", "/a/d", "/d"]),
        ] {
            assert_eq!(shown(path), expected, "{path}");
        }
    }

    #[test]
    fn nobody_honest_has_too_many() {
        for path in [
            "/a%2fb\\c%5cd",
            "/a%2fb\\c%5cd;e",
            "/a;b%2fc;d\\e;f%5cg",
            "//a;b%2fc%5cd;e%2ff",
            "/a/../b%2f..;c%2f../d;e",
            "/a/../b%2f..\\c%2f..\\d",
        ] {
            assert!(readings(path.as_bytes()).is_ok(), "{path}");
        }
        let many = "/a%2f../b\\..\\c%5c../d;e%2f..\\f;..%5cg";
        assert_eq!(readings(many.as_bytes()), Err(TooMany));
    }

    #[test]
    fn thousands_of_them_are_as_few_readings_as_one() {
        let many = |text: &str| format!("/{}", text.repeat(1000));
        assert_eq!(shown(&many(";")).len(), 2);
        assert_eq!(shown(&many("%2f")).len(), 2);
        assert_eq!(shown(&many("..%2f")).len(), 2);
        assert_eq!(shown(&many("a%2f..%2f")).len(), 2);
        assert!(shown(&many("a;b%2f")).len() <= 5);
    }

    /// The reading of a server that takes these steps.
    fn read_by(path: &[u8], steps: &[usize]) -> Vec<u8> {
        let mut text = decode_unreserved(path);
        for &step in steps {
            text = STEPS[step](&text).unwrap_or(text);
        }
        remove_dot_segments(&text)
    }

    proptest! {
        /// No server reads a path in a way that is not among its readings.
        #[test]
        fn no_reading_is_left_out(
            path in "/(a|b|/|\\.\\.|\\.|;|%2f|%5C|\\\\|%2e|%252f){0,12}",
            steps in proptest::collection::vec(0..STEPS.len(), 0..8),
        ) {
            if let Ok(readings) = readings(path.as_bytes()) {
                prop_assert!(readings.contains(&read_by(path.as_bytes(), &steps)));
                prop_assert_eq!(&readings[0], &*super::super::path::normalise(path.as_bytes()));
                if oddity(path.as_bytes()) == Oddity::Nothing {
                    prop_assert_eq!(readings.len(), 1);
                }
            }
        }
    }
}
