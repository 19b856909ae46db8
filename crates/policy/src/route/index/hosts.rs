//! Hosts, and suffixes of hosts, by hash.

use hashbrown::HashTable;

use crate::hash::mix;
use crate::route::HostPattern;

/// The buckets of exact hosts and of suffixes, compared without case.
///
/// The hash goes over a host from its end, byte by byte, so that one pass gives the
/// hash of each suffix as well. Only the configuration adds names: a client can make
/// up a host of the same hash as one of them, and that costs one comparison.
#[derive(Debug, Clone, Default)]
pub(super) struct HostTable {
    entries: HashTable<HostEntry>,
    /// The names of all entries, one behind the other.
    names: Vec<u8>,
    /// Length of the longest exact host.
    max_exact_len: usize,
    /// Length of the longest suffix.
    max_suffix_len: usize,
}

#[derive(Debug, Clone)]
struct HostEntry {
    kind: Kind,
    start: u32,
    len: u32,
    bucket: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Exact,
    Suffix,
}

/// Whether the table can hold a pattern: a suffix begins with a dot.
pub(super) fn has_key(pattern: &HostPattern) -> bool {
    match pattern {
        HostPattern::Exact(_) => true,
        HostPattern::Suffix(suffix) => suffix.first() == Some(&b'.'),
        HostPattern::Regex(_) => false,
    }
}

impl HostTable {
    /// The bucket of a pattern that [`has_key`]: `next` where it had none.
    pub fn insert(&mut self, pattern: &HostPattern, next: u32) -> u32 {
        let (kind, name, max_len) = match pattern {
            HostPattern::Exact(name) => (Kind::Exact, name, &mut self.max_exact_len),
            HostPattern::Suffix(name) => (Kind::Suffix, name, &mut self.max_suffix_len),
            // The caller asks `has_key` first. Bucket 0 has the rules for every host.
            HostPattern::Regex(_) => return 0,
        };
        *max_len = name.len().max(*max_len);
        let hash = hash(kind, name);
        if let Some(bucket) = self.bucket(kind, hash, name) {
            return bucket;
        }
        let entry = HostEntry {
            kind,
            start: self.names.len() as u32,
            len: name.len() as u32,
            bucket: next,
        };
        self.names.extend_from_slice(name);
        let names = &self.names;
        let hash_of = |it: &HostEntry| self::hash(it.kind, it.name(names));
        self.entries.insert_unique(hash, entry, hash_of);
        next
    }

    /// Gives back memory that no entry needs.
    pub fn shrink(&mut self) {
        self.names.shrink_to_fit();
        let names = &self.names;
        self.entries
            .shrink_to_fit(|it| hash(it.kind, it.name(names)));
    }

    /// Calls `found` with the bucket of each pattern that `host` matches.
    pub fn look_up(&self, host: &[u8], mut found: impl FnMut(u32)) {
        let host = host.strip_suffix(b".").unwrap_or(host);
        let max_len = self.max_exact_len.max(self.max_suffix_len);
        let mut state = BEGIN;
        for (at, &byte) in host.iter().enumerate().rev() {
            let len = host.len() - at;
            if len > max_len {
                return;
            }
            state = with_byte(state, byte);
            if byte == b'.' && at > 0 && len <= self.max_suffix_len {
                let hash = finish(state, Kind::Suffix);
                self.bucket(Kind::Suffix, hash, &host[at..]).map(&mut found);
            }
        }
        let hash = finish(state, Kind::Exact);
        self.bucket(Kind::Exact, hash, host).map(found);
    }

    fn bucket(&self, kind: Kind, hash: u64, name: &[u8]) -> Option<u32> {
        let is_it =
            |it: &HostEntry| it.kind == kind && it.name(&self.names).eq_ignore_ascii_case(name);
        self.entries.find(hash, is_it).map(|it| it.bucket)
    }
}

impl HostEntry {
    fn name<'a>(&self, names: &'a [u8]) -> &'a [u8] {
        &names[self.start as usize..][..self.len as usize]
    }
}

/// The state before the first byte, and its steps: FNV-1a, of 64 bits.
const BEGIN: u64 = 0xCBF2_9CE4_8422_2325;

fn with_byte(state: u64, byte: u8) -> u64 {
    (state ^ u64::from(byte.to_ascii_lowercase())).wrapping_mul(0x100_0000_01B3)
}

fn finish(state: u64, kind: Kind) -> u64 {
    mix(state ^ kind as u64)
}

fn hash(kind: Kind, name: &[u8]) -> u64 {
    let bytes = name.iter().rev();
    finish(
        bytes.fold(BEGIN, |state, &byte| with_byte(state, byte)),
        kind,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_hosts_and_every_suffix() {
        let patterns = [
            "a.test",
            "*.a.test",
            "*.test",
            "*.b.a.test",
            "[::1]",
            ".a",
            "*.a",
            "*..a",
            "B.Test",
        ];
        let patterns = patterns.map(|it| HostPattern::new(it).unwrap());
        let mut table = HostTable::default();
        for (bucket, pattern) in patterns.iter().enumerate() {
            assert_eq!(table.insert(pattern, bucket as u32), bucket as u32);
        }
        let again = HostPattern::new("*.A.test").unwrap();
        assert_eq!(table.insert(&again, 99), 1);
        table.shrink();
        for host in [
            "a.test",
            "A.TEST.",
            "x.a.test",
            "c.b.A.test",
            ".a.test",
            "test",
            ".test",
            "b.test",
            "[::1]",
            "",
            ".",
            "..",
            ".a",
            "..a",
            "x..a",
            "a",
            "xa.test",
            "a.test.x",
            "very.long.labels.in.front.of.b.a.test",
        ] {
            let host = host.as_bytes();
            let mut found = Vec::new();
            table.look_up(host, |bucket| found.push(bucket as usize));
            found.sort_unstable();
            let matching = patterns.iter().enumerate();
            let matching = matching.filter(|(_, it)| it.matches(host));
            let expected: Vec<_> = matching.map(|(bucket, _)| bucket).collect();
            assert_eq!(found, expected, "{}", String::from_utf8_lossy(host));
        }
    }
}
