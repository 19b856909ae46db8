//! The ways in which servers read one path.
//!
//! Servers agree on what characters a path spells (see [`super::path`]). They
//! disagree on what to do with some of them. Some take `%2F`, `\` and `%5C` for
//! slashes, and some take `;parameters` off each segment. Some resolve dot
//! segments, and some merge slashes, in either order. Some take a host off a
//! path that begins with `//`. `%2E` may be no dot to them until they are done.
//! Some servers do several of these, in any order: `/x/..%2fadmin` is `/admin` to
//! one server and a strange name to another.

use std::borrow::Cow;

use super::path::{self, Spelling};

/// Most texts that one short path may become.
const MAX_TEXTS: usize = 40;

/// Fewest texts that are allowed to any path, however long.
const MIN_TEXTS: usize = 8;

/// Longest that the texts of one path may be together, beyond [`MIN_TEXTS`].
///
/// The bounds keep the work linear in the length of the path, whatever a client
/// makes up.
const MAX_BYTES: usize = 128 << 10;

/// Whether the normal form of a path settles how servers read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Oddity {
    /// Nothing: every server reads it alike.
    Nothing,
    /// Something that servers read in several ways.
    Ambiguous,
    /// An encoded NUL, at which some servers end the path.
    Nul,
}

/// Looks for what servers read in several ways.
#[cold]
pub(super) fn oddity(path: &[u8]) -> Oddity {
    let mut oddity = Oddity::Nothing;
    let mut rest = path;
    let mut segment = Segment::BeforeFirst;
    while let Some((byte, spelling)) = path::take(&mut rest) {
        match (byte, spelling) {
            (0, Spelling::Encoded) => return Oddity::Nul,
            (b'/', Spelling::Plain) => {
                if segment.is_dot_segment() || segment == Segment::Dots(0) {
                    oddity = Oddity::Ambiguous;
                }
                segment = Segment::Dots(0);
            }
            (b'/' | b'\\' | b';', _) => {
                oddity = Oddity::Ambiguous;
                segment = Segment::Name;
            }
            _ => segment = segment.followed_by(byte),
        }
    }
    if segment.is_dot_segment() {
        oddity = Oddity::Ambiguous;
    }
    oddity
}

/// Whether a path holds an encoded NUL.
#[inline]
pub(super) fn has_nul(path: &[u8]) -> bool {
    memchr::memchr(b'%', path).is_some() && oddity(path) == Oddity::Nul
}

/// The part of a segment that has been seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Segment {
    /// The path has not begun with a slash.
    BeforeFirst,
    /// So many dots, and nothing else.
    Dots(u8),
    /// Something else.
    Name,
}

impl Segment {
    fn followed_by(self, byte: u8) -> Self {
        match self {
            Self::Dots(count @ 0..=1) if byte == b'.' => Self::Dots(count + 1),
            _ => Self::Name,
        }
    }

    fn is_dot_segment(self) -> bool {
        matches!(self, Self::Dots(1 | 2))
    }
}

/// A path with more readings than are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

/// Every reading of a path; the first is its normal form.
///
/// A server reads a path by some of the [`STEPS`], in some order. Somewhere
/// among them it may take a host off the path's front, once.
///
/// # Errors
/// The path has more texts than the bounds above allow.
pub(super) fn readings(path: &[u8]) -> Result<Vec<Vec<u8>>, TooMany> {
    let written = path::decode(path);
    let mut readings = vec![path::normal_form(&written)];
    let mut texts = Texts::new(written);
    texts.take_steps()?;
    texts.take_hosts_off()?;
    texts.take_steps()?;
    for text in &texts.all {
        let reading = path::finish(text);
        if !readings.iter().any(|it| *it == *reading) {
            readings.push(reading.into_owned());
        }
    }
    Ok(readings)
}

/// The texts that servers make of one path.
struct Texts {
    all: Vec<Vec<u8>>,
    /// How many of them have gone through all steps.
    done: usize,
    max: usize,
}

impl Texts {
    fn new(written: Vec<u8>) -> Self {
        let max = MAX_BYTES / written.len().max(1);
        Self {
            all: vec![written],
            done: 0,
            max: max.clamp(MIN_TEXTS, MAX_TEXTS),
        }
    }

    fn add(&mut self, text: Vec<u8>) -> Result<(), TooMany> {
        if self.all.contains(&text) {
            return Ok(());
        }
        if self.all.len() == self.max {
            return Err(TooMany);
        }
        self.all.push(text);
        Ok(())
    }

    /// Adds the texts that the steps make of the texts, again and again.
    fn take_steps(&mut self) -> Result<(), TooMany> {
        while self.done < self.all.len() {
            for step in STEPS {
                if let Some(next) = step(&self.all[self.done]) {
                    self.add(next)?;
                }
            }
            self.done += 1;
        }
        Ok(())
    }

    /// Adds each text without the host that URL parsers see in front.
    fn take_hosts_off(&mut self) -> Result<(), TooMany> {
        for at in 0..self.all.len() {
            for next in without_host(&self.all[at]).into_iter().flatten() {
                self.add(next)?;
            }
        }
        Ok(())
    }
}

type Step = fn(&[u8]) -> Option<Vec<u8>>;

/// The steps that a server may take, each over all of a path; `None` where a
/// step has nothing to do.
const STEPS: [Step; 8] = [
    |text| path::with_replaced(text, b"%2F", b'/'),
    |text| path::with_replaced(text, b"\\", b'/'),
    |text| path::with_replaced(text, b"%5C", b'/'),
    |text| path::with_replaced(text, b"%3B", b';'),
    |text| path::with_replaced(text, b"%2E", b'.'),
    without_parameters,
    |text| match path::with_single_slashes(text) {
        Cow::Borrowed(_) => None,
        Cow::Owned(merged) => Some(merged),
    },
    |text| {
        let resolved = path::without_dot_segments(text);
        (resolved != text).then_some(resolved)
    },
];

/// Without the text behind a `;` in each segment (RFC 3986 §3.3).
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

/// The path of a reference that begins with `//` and a host.
///
/// RFC 3986 §4.2 allows an empty host. Browsers skip any further slashes in
/// front of the host.
fn without_host(text: &[u8]) -> Option<[Vec<u8>; 2]> {
    let strict = text.strip_prefix(b"//")?;
    let lenient = &strict[strict.iter().take_while(|&&byte| byte == b'/').count()..];
    Some(
        [strict, lenient].map(|rest| match memchr::memchr(b'/', rest) {
            Some(at) => rest[at..].to_vec(),
            None => b"/".to_vec(),
        }),
    )
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
            ("/", Oddity::Nothing),
            ("/a/", Oddity::Nothing),
            ("/caf%C3%A9/%40/%", Oddity::Nothing),
            ("/.well-known/..a/.../a..", Oddity::Nothing),
            ("/%252f%255c%2500%253b", Oddity::Nothing),
            ("/%2", Oddity::Nothing),
            ("/a%2fb", Oddity::Ambiguous),
            ("/a%2Fb", Oddity::Ambiguous),
            ("/a%5cb", Oddity::Ambiguous),
            ("/a%5Cb", Oddity::Ambiguous),
            ("/a\\b", Oddity::Ambiguous),
            ("/a;b", Oddity::Ambiguous),
            ("/a%3bb", Oddity::Ambiguous),
            ("/%20;", Oddity::Ambiguous),
            ("//", Oddity::Ambiguous),
            ("/a//b", Oddity::Ambiguous),
            ("/.", Oddity::Ambiguous),
            ("/a/..", Oddity::Ambiguous),
            ("/./a", Oddity::Ambiguous),
            ("/a/%2e%2E/b", Oddity::Ambiguous),
            ("/a/.%2e", Oddity::Ambiguous),
            ("/a%00", Oddity::Nul),
            ("/a;b%2f%00", Oddity::Nul),
        ] {
            assert_eq!(oddity(path.as_bytes()), expected, "{path}");
            assert_eq!(has_nul(path.as_bytes()), expected == Oddity::Nul, "{path}");
        }
    }

    #[test]
    fn every_reading() {
        for (path, expected) in [
            ("/a/b", &["/a/b"][..]),
            ("/%61/%252f", &["/a/%252f"]),
            ("/admin%2fx", &["/admin%2Fx", "/admin/x"]),
            ("/a/./b", &["/a/b", "/a/./b"]),
            ("/a/%2e%2e/b", &["/b", "/a/../b"]),
            ("/a//b", &["/a/b", "/a//b"]),
            ("/a%2eb/%2E%40", &["/a.b/.@"]),
            // A dot segment that is encoded may outlive one that is not.
            ("/./a/%2e%2e/b", &["/b", "/./a/../b", "/a/../b"]),
            // Slashes are merged before dot segments are resolved, after, or
            // never.
            (
                "/admin//../x",
                &["/x", "/admin//../x", "/admin/../x", "/admin/x"],
            ),
            // A host, for URL parsers.
            ("//h/admin", &["/h/admin", "//h/admin", "/admin"]),
            ("//h", &["/h", "//h", "/"]),
            ("///h/a", &["/h/a", "///h/a", "/a"]),
            ("/\\h/a", &["/\\h/a", "//h/a", "/h/a", "/a"]),
            ("/x/..%2Fadmin", &["/x/..%2Fadmin", "/x/../admin", "/admin"]),
            ("/.%2fadmin", &["/.%2Fadmin", "/./admin", "/admin"]),
            ("/x\\..\\a", &["/x\\..\\a", "/x/../a", "/a"]),
            ("/x%5c..%5Ca", &["/x\\..\\a", "/x/../a", "/a"]),
            ("/x/..;/a", &["/x/..;/a", "/x/../a", "/a"]),
            ("/x/..%3b/a", &["/x/..;/a", "/x/../a", "/a"]),
            ("/a;b=c/d;e", &["/a;b=c/d;e", "/a/d"]),
            ("/;a", &["/;a", "/"]),
            // For every server that sees a parameter, it ends at the next slash.
            ("/a;b%2fc", &["/a;b%2Fc", "/a;b/c", "/a", "/a/c"]),
        ] {
            assert_eq!(shown(path), expected, "{path}");
        }
        // Dot segments are resolved before and after the slashes are.
        let mixed = shown("/a%2fb/../c%2f..%2fd");
        for reading in ["/c%2F..%2Fd", "/a/d", "/d", "/c/../d"] {
            assert!(mixed.iter().any(|it| it == reading), "{reading}: {mixed:?}");
        }
    }

    #[test]
    fn nobody_honest_has_too_many() {
        for path in [
            "/a%2fb\\c%5cd",
            "/a%2fb\\c%5cd;e%3bf",
            "/a%2fb\\c%5cd;e",
            "/a;b%2fc;d\\e;f%5cg",
            "/a;b%2fc%3bd\\e",
            "//a;b%2fc%5cd",
            "/a/../b%2f..;c%2f../d;e",
            "/a/../b%2f..\\c",
            "/api/a%2Fb/c;d/e%5cf/../g",
            "/./a%2f../b;c%5cd",
            "//cdn;x/a%2fb\\c",
            "/http:%2F%2Fa.test%2F%2Fb/../c;d",
            "/a/%2e%2e/b%2f%2e;c/./d",
        ] {
            assert!(readings(path.as_bytes()).is_ok(), "{path}");
        }
        let many = "//a%2f../b\\..\\c%5c../d;e%2f..\\f;..%5cg%3b%2f/../";
        assert_eq!(readings(many.as_bytes()), Err(TooMany));
    }

    #[test]
    fn the_work_is_linear_in_the_length() {
        let mixed = "a;b%2f../c\\..%5c./d//";
        assert_eq!(readings(mixed.repeat(1000).as_bytes()), Err(TooMany));
        let long = format!("/{};b", "a/".repeat(1 << 20));
        assert_eq!(shown(&long).len(), 2);
    }

    #[test]
    fn thousands_of_them_are_as_few_readings_as_one() {
        let many = |text: &str| format!("/{}", text.repeat(1000));
        assert_eq!(shown(&many(";")).len(), 2);
        assert_eq!(shown(&many("a%2f")).len(), 2);
        assert!(shown(&many("/")).len() <= 4);
        assert_eq!(shown(&many("../")).len(), 2);
        assert!(shown(&many("..%2f")).len() <= 3);
        assert!(shown(&many("a%2f..%2f")).len() <= 3);
        assert!(shown(&many("a;b%2f")).len() <= 5);
    }

    /// The reading of a server that takes these steps; the number behind the
    /// last step takes the host off.
    fn read_by(path: &[u8], steps: &[usize]) -> Vec<u8> {
        let mut text = path::decode(path);
        let mut has_host = true;
        for &step in steps {
            text = match STEPS.get(step) {
                Some(step) => step(&text).unwrap_or(text),
                None if has_host => {
                    has_host = false;
                    without_host(&text).map_or(text, |[strict, _]| strict)
                }
                None => text,
            };
        }
        path::finish(&text).into_owned()
    }

    proptest! {
        /// No server reads a path in a way that is not among its readings.
        #[test]
        fn no_reading_is_left_out(
            path in "/(a|b|/|/|\\.\\.|\\.|;|%3b|%2f|%5C|\\\\|%2e|%252f){0,12}",
            steps in proptest::collection::vec(0..=STEPS.len(), 0..8),
        ) {
            if let Ok(readings) = readings(path.as_bytes()) {
                prop_assert!(readings.contains(&read_by(path.as_bytes(), &steps)));
                let normal = path::normalise(path.as_bytes());
                prop_assert_eq!(&readings[0], &*normal);
                // Else nobody looks for the others.
                let is_odd = oddity(path.as_bytes()) == Oddity::Ambiguous;
                prop_assert_eq!(readings.len() > 1, is_odd);
                prop_assert!(!is_odd || matches!(normal, Cow::Owned(_)));
            }
        }
    }
}
