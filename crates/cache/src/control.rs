//! Directives for caches: `Cache-Control` of both sides (RFC 9111 §5.2), and
//! `CDN-Cache-Control` (RFC 9213).
//!
//! A directive that restricts a cache counts however it is written; one that permits counts
//! only if it is well-formed. Of several values of one directive the smallest counts. `Pragma`
//! is ignored (RFC 9111 §5.4).

use sfv::{BareItem, Dictionary, ListEntry, Parser};

use crate::message::{Request, Response};

/// A number of seconds as messages state it. Above what fits, it is the greatest
/// (RFC 9111 §1.2.2).
pub type Seconds = u32;

/// The directives of a response for caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Directives {
    /// `max-age`; 0 where its value is no number (RFC 9111 §4.2.1).
    pub max_age: Option<Seconds>,
    /// `s-maxage`; 0 where its value is no number.
    pub s_maxage: Option<Seconds>,
    /// `stale-while-revalidate` (RFC 5861 §3).
    pub stale_while_revalidate: Option<Seconds>,
    /// `stale-if-error` (RFC 5861 §4).
    pub stale_if_error: Option<Seconds>,
    /// `no-store`.
    pub no_store: bool,
    /// `no-cache`, with fields named or without.
    ///
    /// Deviation: fields that are named could be left out instead (RFC 9111
    /// §5.2.2.4).
    pub no_cache: bool,
    /// `private`, with fields named or without.
    ///
    /// Deviation: fields that are named could be left out instead (RFC 9111
    /// §5.2.2.7).
    pub private: bool,
    /// `public`.
    pub public: bool,
    /// `must-revalidate`.
    pub must_revalidate: bool,
    /// `proxy-revalidate`.
    pub proxy_revalidate: bool,
    /// `must-understand`.
    pub must_understand: bool,
    /// Whether they come from `CDN-Cache-Control`: then `Expires` is ignored too
    /// (RFC 9213 §2.2).
    pub is_targeted: bool,
}

impl Directives {
    /// Reads a response's `CDN-Cache-Control`, or else its `Cache-Control`.
    pub fn of(response: &Response<'_>) -> Self {
        let mut targeted = response.values("cdn-cache-control").peekable();
        if targeted.peek().is_some()
            && let Some(directives) = Self::targeted(targeted)
        {
            return directives;
        }
        let mut directives = Self::default();
        for line in response.values("cache-control") {
            for (name, argument) in (Items { rest: line }) {
                directives.add(name, argument);
            }
        }
        directives
    }

    /// Whether a stale response may be served only after validation (RFC 9111
    /// §4.2.4). `s-maxage` implies it (§5.2.2.10).
    pub fn forbid_stale(&self) -> bool {
        let is_revalidated = self.must_revalidate || self.proxy_revalidate;
        is_revalidated || self.no_cache || self.s_maxage.is_some()
    }

    /// Whether the response may answer others than the user who sent credentials
    /// (RFC 9111 §3.5).
    pub fn permit_authorized(&self) -> bool {
        self.must_revalidate || self.public || self.s_maxage.is_some()
    }

    fn add(&mut self, name: &[u8], argument: Argument<'_>) {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        // An unreadable lifetime counts as zero (RFC 9111 §4.2.1); so does an unreadable time
        // for stale responses.
        let smallest = |before: &mut Option<Seconds>| {
            let seconds = argument.seconds().unwrap_or(0);
            *before = Some(before.map_or(seconds, |before| before.min(seconds)));
        };
        match name.len() {
            6 if is("public") => self.public = true,
            7 if is("max-age") => smallest(&mut self.max_age),
            7 if is("private") => self.private = true,
            8 if is("no-store") => self.no_store = true,
            8 if is("no-cache") => self.no_cache = true,
            8 if is("s-maxage") => smallest(&mut self.s_maxage),
            14 if is("stale-if-error") => smallest(&mut self.stale_if_error),
            15 if is("must-revalidate") => self.must_revalidate = true,
            15 if is("must-understand") => self.must_understand = true,
            16 if is("proxy-revalidate") => self.proxy_revalidate = true,
            22 if is("stale-while-revalidate") => smallest(&mut self.stale_while_revalidate),
            _ => {}
        }
    }

    /// Reads a targeted field; `None` where it is empty or no dictionary (RFC 9213
    /// §2.1). A member whose value has not the type of its directive is ignored.
    #[cold]
    fn targeted<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let lines: Vec<_> = lines.collect();
        let joined = lines.join(&b", "[..]);
        let members: Dictionary = Parser::new(&joined).parse().ok()?;
        let mut directives = Directives {
            is_targeted: true,
            ..Self::default()
        };
        for (name, value) in &members {
            let name = name.as_str();
            let is_number = name.ends_with("age") || name.starts_with("stale-");
            let ListEntry::Item(item) = value else {
                continue;
            };
            match item.bare_item {
                BareItem::Integer(number) if is_number => {
                    let text = i64::from(number).to_string();
                    directives.add(name.as_bytes(), Argument::Text(text.as_bytes()));
                }
                BareItem::Boolean(true) if !is_number => {
                    directives.add(name.as_bytes(), Argument::None);
                }
                _ => {}
            }
        }
        (!members.is_empty()).then_some(directives)
    }
}

/// The directives of a request for caches (RFC 9111 §5.2.1). A directive with an unreadable
/// value is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestDirectives {
    /// `max-age`: no older response.
    pub max_age: Option<Seconds>,
    /// `min-fresh`: fresh for so long still.
    pub min_fresh: Option<Seconds>,
    /// `max-stale`: how long a response may be stale; the maximum if it has no value.
    pub max_stale: Option<Seconds>,
    /// `stale-if-error`: stale for so long where the origin fails (RFC 5861 §4).
    pub stale_if_error: Option<Seconds>,
    /// `no-cache`.
    pub no_cache: bool,
    /// `no-store`.
    pub no_store: bool,
    /// `only-if-cached`.
    pub only_if_cached: bool,
}

impl RequestDirectives {
    /// Reads the `Cache-Control` of a request.
    pub fn of(request: &Request<'_>) -> Self {
        let mut directives = Self::default();
        for line in request.values(b"cache-control") {
            for (name, argument) in (Items { rest: line }) {
                directives.add(name, argument);
            }
        }
        directives
    }

    fn add(&mut self, name: &[u8], argument: Argument<'_>) {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let set = |directive: &mut Option<Seconds>| {
            if let Some(seconds) = argument.seconds() {
                *directive = Some(seconds);
            }
        };
        match name.len() {
            7 if is("max-age") => set(&mut self.max_age),
            8 if is("no-cache") => self.no_cache = true,
            8 if is("no-store") => self.no_store = true,
            9 if is("min-fresh") => set(&mut self.min_fresh),
            9 if is("max-stale") => match argument {
                Argument::None => self.max_stale = Some(Seconds::MAX),
                _ => set(&mut self.max_stale),
            },
            14 if is("only-if-cached") => self.only_if_cached = true,
            14 if is("stale-if-error") => set(&mut self.stale_if_error),
            _ => {}
        }
    }
}

/// Reads delta-seconds (RFC 9111 §1.2.2): digits, and nothing else.
pub fn delta_seconds(digits: &[u8]) -> Option<Seconds> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| {
        digits.iter().fold(0, |sum: Seconds, digit| {
            let digit = Seconds::from(digit - b'0');
            sum.saturating_mul(10).saturating_add(digit)
        })
    })
}

/// The text behind the name of a directive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Argument<'a> {
    None,
    /// Without the quotes around it.
    Text(&'a [u8]),
    /// White space around `=`, or something behind the closing quote.
    Malformed,
}

impl Argument<'_> {
    fn seconds(self) -> Option<Seconds> {
        match self {
            Argument::Text(text) => delta_seconds(text),
            Argument::None | Argument::Malformed => None,
        }
    }
}

/// The directives of one line, with their arguments.
struct Items<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Items<'a> {
    type Item = (&'a [u8], Argument<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let item = self.take()?.trim_ascii();
            if item.is_empty() {
                continue;
            }
            let Some(at) = memchr::memchr(b'=', item) else {
                return Some((item, Argument::None));
            };
            let (name, value) = (&item[..at], &item[at + 1..]);
            let is_tight = !name.ends_with(b" ") && !value.starts_with(b" ");
            let argument = match value {
                _ if !is_tight => Argument::Malformed,
                [b'"', text @ .., b'"'] if !text.contains(&b'"') => Argument::Text(text),
                [b'"', ..] => Argument::Malformed,
                value => Argument::Text(value),
            };
            return Some((name.trim_ascii(), argument));
        }
    }
}

impl<'a> Items<'a> {
    /// The text up to the next comma outside quotes. A quote without its end is no quote, so
    /// that it hides no directive.
    fn take(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let mut at = 0;
        while let Some(&byte) = self.rest.get(at) {
            match byte {
                b',' => break,
                b'"' => at = string_end(self.rest, at).unwrap_or(at + 1),
                _ => at += 1,
            }
        }
        let item = &self.rest[..at];
        self.rest = self.rest.get(at + 1..).unwrap_or_default();
        Some(item)
    }
}

/// The index after the quoted string that begins at `start`.
fn string_end(line: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        match line.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests;
