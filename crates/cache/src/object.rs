//! A stored response: one allocation for its data, its key, its head and a short body. Long
//! bodies are in chunks.
//!
//! Objects are shared between workers and immutable, except for two atomics: how often they
//! were asked for, and up to which purge they are known to have survived.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_proto::{Field, FieldKind, date};
use triomphe::ThinArc;

use crate::freshness::{GeneratedAt, Lifetime, Stored};
use crate::key::{Key, Secret};
use crate::message::{Request, Response};
use crate::vary;

/// Length of each chunk of a long body but the last, in bytes. With its counters a chunk fills
/// an allocator's size class.
pub const CHUNK_BYTES: usize = 64 * 1024 - 16;

/// Most tags of an object; a response with more is not stored.
pub const MAX_TAGS: usize = 128;

/// A stored response. A clone is the same object, which stays complete as long as anyone holds
/// it, even after the store has dropped it.
#[derive(Debug, Clone)]
pub struct Object(ThinArc<Meta, u8>);

#[derive(Debug)]
struct Meta {
    /// The body, if it is longer than a chunk.
    long: Option<Arc<LongBody>>,
    born: GeneratedAt,
    /// Count of purges up to which it is known to have survived.
    seen: AtomicU64,
    fresh: u32,
    while_revalidate: u32,
    if_error: u32,
    lines_len: u32,
    key_len: u16,
    url_len: u16,
    selector_len: u16,
    status: u16,
    tag_count: u8,
    reason_len: u8,
    always_validate: bool,
    forbid_stale: bool,
    is_purged: AtomicBool,
    /// How often it was asked for lately, up to [`MAX_HEAT`].
    heat: AtomicU8,
}

/// The counter of requests for an object stops here (S3-FIFO: two bits).
pub const MAX_HEAT: u8 = 3;

/// A body in chunks of [`CHUNK_BYTES`]; the last one may be shorter.
#[derive(Debug)]
pub struct LongBody {
    chunks: Box<[Arc<[u8]>]>,
    len: u64,
}

impl LongBody {
    /// Builds a body from chunks. All have [`CHUNK_BYTES`] but the last, which has at least one
    /// byte.
    pub fn new(chunks: Vec<Arc<[u8]>>) -> Self {
        debug_assert!(
            chunks
                .iter()
                .rev()
                .skip(1)
                .all(|it| it.len() == CHUNK_BYTES)
        );
        let len = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        LongBody {
            chunks: chunks.into(),
            len,
        }
    }
}

/// A body that lies in a file.
#[derive(Debug, Clone)]
pub struct FilePart {
    /// The file, which stays readable as long as this value exists.
    pub file: Arc<File>,
    /// Offset of the body in the file, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// The body of a new object.
#[derive(Debug, Clone)]
pub enum Body<'a> {
    /// Up to [`CHUNK_BYTES`]; stored beside the head.
    Short(&'a [u8]),
    /// A longer body.
    Long(Arc<LongBody>),
}

impl<'a> Body<'a> {
    /// A body from contiguous bytes.
    pub fn of(bytes: &'a [u8]) -> Self {
        if bytes.len() <= CHUNK_BYTES {
            return Body::Short(bytes);
        }
        let chunks = bytes.chunks(CHUNK_BYTES).map(Arc::from).collect();
        Body::Long(Arc::new(LongBody::new(chunks)))
    }
}

/// The stored part of a response's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredHead {
    /// The status code.
    pub status: u16,
    /// The reason phrase.
    reason: Box<[u8]>,
    /// Field lines, each with its end.
    pub(crate) lines: Vec<u8>,
    /// The selecting fields of the request ([`vary`]).
    selector: Vec<u8>,
    tags: Vec<u64>,
}

impl StoredHead {
    /// The stored part of a response to this request. `None` if it answers no other request, or
    /// has too many names in `Vary` or too many tags.
    ///
    /// Fields of the connection are left out (RFC 9111 §3.1), and so are lengths and `Age`,
    /// which each answer gets anew. A missing `Date` is added (RFC 9110 §6.6.1); `unix_s` are
    /// the seconds since 1970 at which the head came.
    pub fn of(
        secret: &Secret,
        request: &Request<'_>,
        response: &Response<'_>,
        unix_s: u64,
    ) -> Option<Self> {
        let mut selector = Vec::new();
        vary::push_selector(&mut selector, response, request)?;
        let mut lines = Vec::with_capacity(512);
        let mut has_date = false;
        for field in &response.head.fields {
            if is_stored(field, response.bytes) {
                has_date |= field.kind == FieldKind::Date;
                push_line(
                    &mut lines,
                    field.name.of(response.bytes),
                    field.value.of(response.bytes),
                );
            }
        }
        if !has_date {
            let at = std::time::UNIX_EPOCH + Duration::from_secs(unix_s.min(LAST_SECOND));
            push_line(&mut lines, b"Date", httpdate::fmt_http_date(at).as_bytes());
        }
        Some(StoredHead {
            status: response.head.status,
            reason: reason_of(response),
            lines,
            selector,
            tags: tags(
                secret,
                response.values(SURROGATE_KEY),
                response.values(CACHE_TAG),
            )?,
        })
    }

    /// The head of an object from a record ([`crate::record`]); `None` if it has too many tags.
    pub(crate) fn read(
        secret: &Secret,
        status: u16,
        reason: &[u8],
        stored_lines: &[u8],
        selector: &[u8],
    ) -> Option<Self> {
        let values = |name: &'static str| {
            let named =
                lines(stored_lines).filter(move |it| it.name.eq_ignore_ascii_case(name.as_bytes()));
            named.map(|line| line.value)
        };
        Some(StoredHead {
            status,
            reason: reason.into(),
            lines: stored_lines.to_vec(),
            selector: selector.to_vec(),
            tags: tags(secret, values(SURROGATE_KEY), values(CACHE_TAG))?,
        })
    }

    /// The head of a response that is not stored, for a client: all fields except those of the
    /// connection and the length.
    pub fn passing(response: &Response<'_>) -> Self {
        let mut lines = Vec::with_capacity(512);
        for field in &response.head.fields {
            let (name, value) = (
                field.name.of(response.bytes),
                field.value.of(response.bytes),
            );
            if is_stored(field, response.bytes) || name.eq_ignore_ascii_case(b"age") {
                push_line(&mut lines, name, value);
            }
        }
        StoredHead {
            status: response.head.status,
            reason: reason_of(response),
            lines,
            selector: Vec::new(),
            tags: Vec::new(),
        }
    }

    /// The reason phrase.
    pub fn reason(&self) -> &[u8] {
        &self.reason
    }

    /// Field lines, each with its end.
    pub fn lines(&self) -> &[u8] {
        &self.lines
    }

    /// Names and values of the field lines.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        lines(&self.lines).map(|line| (line.name, line.value))
    }

    /// Whether the response answers another request too (RFC 9111 §4.1).
    pub fn answers(&self, request: &Request<'_>) -> bool {
        vary::selects(&self.selector, request)
    }
}

/// Fields that hold tags.
const SURROGATE_KEY: &str = "surrogate-key";
const CACHE_TAG: &str = "cache-tag";

/// The stored part of the reason phrase.
fn reason_of(response: &Response<'_>) -> Box<[u8]> {
    let reason = response.head.reason.of(response.bytes);
    reason[..reason.len().min(usize::from(u8::MAX))].into()
}

/// Seconds from 1970 to the end of the year 9999, the last one that a date can express.
const LAST_SECOND: u64 = 253_402_300_799;

/// Whether a field is stored (RFC 9111 §3.1).
pub(crate) fn is_stored(field: &Field, bytes: &[u8]) -> bool {
    let is = |known: &str| field.is_named(known.as_bytes(), bytes);
    match field.kind {
        FieldKind::Connection
        | FieldKind::HopByHop
        | FieldKind::KeepAlive
        | FieldKind::Upgrade
        | FieldKind::TransferEncoding
        | FieldKind::ContentLength => false,
        _ => match field.name.len() {
            3 => !is("age"),
            7 => !is("trailer"),
            25 => !is("proxy-authentication-info"),
            _ => true,
        },
    }
}

/// Appends a field line.
pub fn push_line(lines: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    lines.extend_from_slice(name);
    lines.extend_from_slice(b": ");
    lines.extend_from_slice(value);
    lines.extend_from_slice(b"\r\n");
}

/// The tags of a response: words in `Surrogate-Key`, items in `Cache-Tag`. `None` if there are
/// too many.
fn tags<'a>(
    secret: &Secret,
    words: impl Iterator<Item = &'a [u8]>,
    items: impl Iterator<Item = &'a [u8]>,
) -> Option<Vec<u64>> {
    let mut tags = Vec::new();
    for tag in split_tags(words, items) {
        if tags.len() == MAX_TAGS {
            return None;
        }
        tags.push(tag_hash(secret, tag));
    }
    tags.sort_unstable();
    tags.dedup();
    Some(tags)
}

/// The tags in lines of fields: words in `Surrogate-Key`, items in `Cache-Tag`.
pub fn split_tags<'a>(
    words: impl Iterator<Item = &'a [u8]>,
    items: impl Iterator<Item = &'a [u8]>,
) -> impl Iterator<Item = &'a [u8]> {
    let words = words.flat_map(|line| line.split(|byte| b" \t".contains(byte)));
    let items = items.flat_map(|line| line.split(|&byte| byte == b','));
    let tags = words.chain(items).map(<[u8]>::trim_ascii);
    tags.filter(|tag| !tag.is_empty())
}

/// The hash of a tag, ignoring case.
pub(crate) fn tag_hash(secret: &Secret, tag: &[u8]) -> u64 {
    secret.hash(&tag.to_ascii_lowercase()) as u64
}

impl Object {
    /// A complete response. `arrived` is when its head came, `seen` the count of purges when it
    /// was requested.
    ///
    /// `None` if its key is too long.
    pub fn new(
        key: &Key,
        head: &StoredHead,
        body: &Body<'_>,
        lifetime: &Lifetime,
        arrived: Instant,
        seen: u64,
    ) -> Option<Self> {
        let (short, long) = match body {
            Body::Short(bytes) => (*bytes, None),
            Body::Long(long) => (&[][..], Some(long.clone())),
        };
        let tags: Vec<u8> = head.tags.iter().flat_map(|tag| tag.to_le_bytes()).collect();
        let meta = Meta {
            long,
            born: GeneratedAt::before(arrived, lifetime.initial_age),
            seen: AtomicU64::new(seen),
            fresh: lifetime.fresh,
            while_revalidate: lifetime.while_revalidate,
            if_error: lifetime.if_error,
            lines_len: u32::try_from(head.lines.len()).ok()?,
            key_len: u16::try_from(key.bytes.len()).ok()?,
            url_len: u16::try_from(key.url_len).ok()?,
            selector_len: u16::try_from(head.selector.len()).ok()?,
            status: head.status,
            tag_count: u8::try_from(head.tags.len()).ok()?,
            reason_len: u8::try_from(head.reason.len()).ok()?,
            always_validate: lifetime.always_validate,
            forbid_stale: lifetime.forbid_stale,
            is_purged: AtomicBool::new(false),
            heat: AtomicU8::new(0),
        };
        let parts = [
            &key.bytes,
            &head.selector[..],
            &tags,
            &head.reason,
            &head.lines,
            short,
        ];
        Some(Object(ThinArc::from_header_and_slice(
            meta,
            &parts.concat(),
        )))
    }

    fn meta(&self) -> &Meta {
        &self.0.header.header
    }

    /// The `len` bytes from `start`.
    fn part(&self, start: usize, len: usize) -> &[u8] {
        &self.0.slice[start..start + len]
    }

    /// The key under which it is stored.
    pub fn key(&self) -> &[u8] {
        self.part(0, self.meta().key_len.into())
    }

    /// The URL at the beginning of its key.
    pub fn url(&self) -> &[u8] {
        self.part(0, self.meta().url_len.into())
    }

    /// The selecting fields of its request ([`vary`]).
    pub fn selector(&self) -> &[u8] {
        self.part(self.meta().key_len.into(), self.meta().selector_len.into())
    }

    fn tags_start(&self) -> usize {
        usize::from(self.meta().key_len) + usize::from(self.meta().selector_len)
    }

    /// Whether it answers a request (RFC 9111 §4.1).
    pub fn answers(&self, request: &Request<'_>) -> bool {
        vary::selects(self.selector(), request)
    }

    /// The hashes of its tags.
    pub(crate) fn tags(&self) -> impl Iterator<Item = u64> {
        let bytes = self.part(self.tags_start(), usize::from(self.meta().tag_count) * 8);
        let (tags, _) = bytes.as_chunks::<8>();
        tags.iter().map(|tag| u64::from_le_bytes(*tag))
    }

    fn reason_start(&self) -> usize {
        self.tags_start() + usize::from(self.meta().tag_count) * 8
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.meta().status
    }

    /// The reason phrase.
    pub fn reason(&self) -> &[u8] {
        self.part(self.reason_start(), self.meta().reason_len.into())
    }

    fn lines_start(&self) -> usize {
        self.reason_start() + usize::from(self.meta().reason_len)
    }

    /// Field lines, each with its end: the complete head of an answer except its length and
    /// `Age`.
    pub fn lines(&self) -> &[u8] {
        self.part(self.lines_start(), self.meta().lines_len as usize)
    }

    /// Names and values of the field lines.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        lines(self.lines()).map(|line| (line.name, line.value))
    }

    /// Value of the first field of this name.
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        let mut fields = self.fields();
        let found = fields.find(|(it, _)| it.eq_ignore_ascii_case(name.as_bytes()));
        Some(found?.1)
    }

    /// The value of `Last-Modified`, in seconds since 1970.
    pub fn modified(&self) -> Option<u64> {
        date::parse(self.value("last-modified")?)
    }

    /// Length of the body in bytes.
    pub fn body_len(&self) -> u64 {
        match &self.meta().long {
            Some(long) => long.len,
            None => self.short().len() as u64,
        }
    }

    fn short(&self) -> &[u8] {
        &self.0.slice[self.lines_start() + self.meta().lines_len as usize..]
    }

    /// The contiguous part of the body at `position`; empty at the end and beyond.
    pub fn body_at(&self, position: u64) -> &[u8] {
        let Ok(position) = usize::try_from(position) else {
            return &[];
        };
        let Some(long) = &self.meta().long else {
            return self.short().get(position..).unwrap_or_default();
        };
        let chunk = long.chunks.get(position / CHUNK_BYTES);
        let rest = chunk.and_then(|chunk| chunk.get(position % CHUNK_BYTES..));
        rest.unwrap_or_default()
    }

    /// The same body, for an object with another head.
    pub(crate) fn body(&self) -> Body<'_> {
        match &self.meta().long {
            Some(long) => Body::Long(long.clone()),
            None => Body::Short(self.short()),
        }
    }

    /// The stored part of its head.
    pub(crate) fn head(&self) -> StoredHead {
        StoredHead {
            status: self.status(),
            reason: self.reason().into(),
            lines: self.lines().to_vec(),
            selector: self.selector().to_vec(),
            tags: self.tags().collect(),
        }
    }

    /// Its state of freshness.
    pub fn stored(&self, now: Instant) -> Stored {
        let meta = self.meta();
        Stored {
            lifetime: Lifetime {
                fresh: meta.fresh,
                initial_age: Duration::ZERO,
                while_revalidate: meta.while_revalidate,
                if_error: meta.if_error,
                always_validate: meta.always_validate,
                forbid_stale: meta.forbid_stale,
            },
            age: meta.born.age(now),
            is_purged: meta.is_purged.load(Relaxed),
        }
    }

    /// Its age.
    pub fn age(&self, now: Instant) -> Duration {
        self.meta().born.age(now)
    }

    /// Whether anyone else holds it.
    pub(crate) fn is_held(&self) -> bool {
        ThinArc::strong_count(&self.0) > 1
    }

    /// When the response was generated.
    pub fn born(&self) -> GeneratedAt {
        self.meta().born
    }

    /// The count of purges up to which it is known to have survived.
    pub fn seen(&self) -> u64 {
        self.meta().seen.load(Relaxed)
    }

    /// Notes that it has survived up to this count of purges; stale if one of them was soft.
    pub(crate) fn set_seen(&self, count: u64, is_purged: bool) {
        if is_purged {
            self.meta().is_purged.store(true, Relaxed);
        }
        self.meta().seen.store(count, Relaxed);
    }

    pub(crate) fn heat(&self) -> u8 {
        self.meta().heat.load(Relaxed)
    }

    pub(crate) fn set_heat(&self, heat: u8) {
        self.meta().heat.store(heat, Relaxed);
    }

    /// Counts a request for it. Two at once may count as one.
    pub(crate) fn warm(&self) {
        let heat = self.heat();
        if heat < MAX_HEAT {
            self.set_heat(heat + 1);
        }
    }

    /// Bytes that it takes in memory, including the store's own data about it.
    pub fn cost(&self) -> usize {
        let fixed = size_of::<Meta>() + 2 * size_of::<usize>();
        let long = self.meta().long.as_ref().map_or(0, |long| {
            let chunks = long.chunks.iter();
            let bytes = chunks.map(|chunk| allocated(chunk.len() + 16) + size_of::<Arc<[u8]>>());
            bytes.sum::<usize>() + size_of::<LongBody>() + 16
        });
        allocated(fixed + self.0.slice.len()) + long + STORE_BYTES
    }
}

/// Bytes that the store itself keeps for an object: its slot, its entry in the table, and its
/// history entry after eviction.
const STORE_BYTES: usize = 48;

/// The size of an allocation for this many bytes. Allocators have eight size classes between
/// two powers of two.
fn allocated(bytes: usize) -> usize {
    let step = (bytes.next_power_of_two() / 16).max(16);
    bytes.next_multiple_of(step)
}

/// A field line of a stored head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
    /// The whole line, with its end.
    pub whole: &'a [u8],
}

/// The field lines of a stored head.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = memchr::memchr(b'\n', rest)? + 1;
        let (whole, after) = rest.split_at(end);
        rest = after;
        let colon = memchr::memchr(b':', whole)?;
        Some(Line {
            name: &whole[..colon],
            value: whole[colon + 1..].trim_ascii(),
            whole,
        })
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::key::KeyRules;
    use crate::message::tests::{get, request, response};

    pub const SECRET: Secret = Secret([3; 16]);
    pub const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

    pub fn key_of(path: &str) -> Key {
        let sent = request(&format!("GET {path}"), "");
        KeyRules::default().key(&SECRET, &sent.view())
    }

    /// An object that is fresh for a minute.
    pub fn object(path: &str, asked: &str, fields: &str, body: &[u8], seen: u64) -> Object {
        let response = response(200, fields);
        let head = StoredHead::of(&SECRET, &get(asked).view(), &response.view(), 0);
        let lifetime = Lifetime {
            fresh: 60,
            ..Lifetime::default()
        };
        let body = Body::of(body);
        Object::new(&key_of(path), &head.unwrap(), &body, &lifetime, NOW, seen).unwrap()
    }

    fn whole_body(object: &Object) -> Vec<u8> {
        let mut body = Vec::new();
        while let piece @ [_, ..] = object.body_at(body.len() as u64) {
            body.extend_from_slice(piece);
        }
        body
    }

    /// RFC 9111 §3.1.
    #[test]
    fn stores_what_is_not_of_the_connection() {
        let fields = "A: 1\nConnection: B, close\nB: 2\nKeep-Alive: x\nTE: x\nUpgrade: x\n\
                      Proxy-Authenticate: x\nProxy-Authentication-Info: x\n\
                      Proxy-Authorization: x\nProxy-Connection: x\nTrailer: x\n\
                      Content-Length: 3\nAge: 5\nDate: x\nSet-Cookie: c\nSet-Cookie: d\nC:";
        let object = object("/a", "", fields, b"abc", 0);
        let lines = "A: 1\r\nDate: x\r\nSet-Cookie: c\r\nSet-Cookie: d\r\nC: \r\n";
        assert_eq!(
            object.lines().escape_ascii().to_string(),
            lines.escape_default().to_string()
        );
        assert_eq!(object.key(), b"http://example.com/a");
        assert_eq!((object.status(), object.reason()), (200, &b"Reason"[..]));
        assert_eq!(object.value("set-cookie"), Some(&b"c"[..]));
        assert_eq!(object.value("x"), None);
        assert_eq!(object.fields().count(), 5);
        let object = self::object("/a", "", "A: 1", b"", 0);
        assert_eq!(
            object.value("date"),
            Some(&b"Thu, 01 Jan 1970 00:00:00 GMT"[..])
        );
    }

    #[test]
    fn bodies_of_all_lengths_are_whole() {
        for len in [
            0,
            1,
            1000,
            CHUNK_BYTES,
            CHUNK_BYTES + 1,
            3 * CHUNK_BYTES,
            200_001,
        ] {
            let body: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let object = object("/a", "", "", &body, 0);
            assert_eq!(object.body_len(), len as u64);
            assert!(whole_body(&object) == body, "{len}");
            for beyond in [len as u64, u64::MAX] {
                assert_eq!(object.body_at(beyond), b"", "{len}");
            }
            let least = object.lines().len() + len;
            assert!(
                (least..least * 9 / 8 + 500).contains(&object.cost()),
                "{len}"
            );
        }
    }

    #[test]
    fn has_its_tags() {
        let tags = |fields| {
            let mut tags: Vec<_> = object("/", "", fields, b"", 0).tags().collect();
            tags.sort_unstable();
            tags
        };
        let mut expected = ["a", "b", "c d"].map(|tag| tag_hash(&SECRET, tag.as_bytes()));
        expected.sort_unstable();
        assert_eq!(tags("Surrogate-Key: a  B a\nCache-Tag: , c d,A,"), expected);
        assert_eq!(tags("Surrogate-Key:\nCache-Tag: ,"), []);
        let many = |count| {
            let words: Vec<_> = (0..count).map(|at| at.to_string()).collect();
            let response = response(200, &format!("Surrogate-Key: {}", words.join(" ")));
            StoredHead::of(&SECRET, &get("").view(), &response.view(), 0).is_some()
        };
        assert!(many(MAX_TAGS) && !many(MAX_TAGS + 1));
    }

    #[test]
    fn an_object_costs_little_beside_its_bytes() {
        assert_eq!(size_of::<Meta>(), 56);
        assert_eq!(size_of::<Option<Object>>(), 8);
        // Rounding up to a size class comes on top, and depends on the length.
        assert!(size_of::<Meta>() + 2 * size_of::<usize>() + STORE_BYTES <= 128);
    }
}
