//! The tables of fields that a short number stands for (RFC 7541 §2.3).

use std::collections::VecDeque;

/// The count of each field beyond its bytes (RFC 7541 §4.1).
const OVERHEAD: usize = 32;

/// The static table (RFC 7541, Appendix A): the field of number 1 comes first.
#[rustfmt::skip]
pub(super) const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// The dynamic table of one direction of a connection: the fields that were sent last.
///
/// Its bytes lie in one piece, the oldest first. Evicted bytes are taken off the front once they
/// are half of them. So a table of `max` bytes never takes more than twice that.
#[derive(Debug, Default)]
pub(super) struct Dynamic {
    bytes: Vec<u8>,
    /// The newest last.
    entries: VecDeque<Entry>,
    /// Bytes at the front whose fields were evicted.
    dead: usize,
    /// Size as RFC 7541 §4.1 counts it.
    size: usize,
    max: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    name_len: u16,
    value_len: u16,
    /// The start of the field in `bytes`.
    start: u32,
}

impl Entry {
    fn len(self) -> usize {
        usize::from(self.name_len) + usize::from(self.value_len)
    }
}

impl Dynamic {
    /// One of at most so many bytes, as RFC 7541 counts them: up to 65,535.
    pub fn new(max: u16) -> Self {
        Dynamic {
            max: usize::from(max),
            ..Dynamic::default()
        }
    }

    /// Bytes of memory that it holds.
    pub fn memory(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Changes its size; fields that no longer fit are evicted.
    pub fn resize(&mut self, max: u16) {
        self.max = usize::from(max);
        self.evict_down_to(self.max);
        if self.entries.is_empty() {
            *self = Dynamic::new(max);
        }
    }

    /// The field of this number, counted from 0 for the newest: name and value.
    pub fn field(&self, number: usize) -> Option<(&[u8], &[u8])> {
        let index = self.entries.len().checked_sub(number + 1)?;
        let entry = self.entries.get(index)?;
        let start = entry.start as usize;
        let bytes = self.bytes.get(start..start + entry.len())?;
        Some(bytes.split_at(usize::from(entry.name_len)))
    }

    /// Adds a field. One that is larger than the table empties it (RFC 7541 §4.4).
    pub fn insert(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + OVERHEAD;
        if size > self.max {
            self.evict_down_to(0);
            return;
        }
        self.evict_down_to(self.max - size);
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.entries.push_back(Entry {
            name_len: name.len() as u16,
            value_len: value.len() as u16,
            start,
        });
        self.size += size;
    }

    fn evict_down_to(&mut self, size: usize) {
        while self.size > size {
            let Some(oldest) = self.entries.pop_front() else {
                break;
            };
            self.size -= oldest.len() + OVERHEAD;
            self.dead += oldest.len();
        }
        if self.dead * 2 > self.bytes.len() {
            self.bytes.drain(..self.dead);
            for entry in &mut self.entries {
                entry.start -= self.dead as u32;
            }
            self.dead = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_first_and_the_oldest_goes() {
        let mut table = Dynamic::new(100);
        table.insert(b"a", b"1");
        table.insert(b"b", b"2");
        assert_eq!(table.field(0), Some((&b"b"[..], &b"2"[..])));
        assert_eq!(table.field(1), Some((&b"a"[..], &b"1"[..])));
        assert_eq!(table.field(2), None);
        table.insert(b"c", b"3");
        assert_eq!(table.field(1), Some((&b"b"[..], &b"2"[..])));
        assert_eq!(table.field(2), None);
        table.resize(40);
        assert_eq!(table.field(0), Some((&b"c"[..], &b"3"[..])));
        assert_eq!(table.field(1), None);
        table.insert(b"name", b"too long");
        assert_eq!(table.field(0), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut table = Dynamic::new(4096);
        for number in 0..100_000u32 {
            let value = "v".repeat((number % 500) as usize);
            table.insert(b"some-name", value.as_bytes());
            assert!(table.size <= 4096);
            assert!(table.bytes.len() <= 2 * 4096);
        }
        assert!(table.memory() <= 8 * 4096, "{}", table.memory());
        table.resize(0);
        assert_eq!(table.memory(), 0);
    }
}
