use proptest::prelude::*;

use super::*;
use crate::object::tests::{NOW, SECRET, object};

const UNIX: Duration = Duration::from_secs(1_800_000_000);
const CLOCKS: Clocks = Clocks {
    now: NOW,
    unix: UNIX,
};

fn later(seconds: u64) -> Instant {
    NOW + Duration::from_secs(seconds)
}

/// The record of an object, as of `now`.
fn record(object: &Object, now: Instant) -> Vec<u8> {
    let mut out = Vec::new();
    push_head(&mut out, object, &CLOCKS, now).unwrap();
    for block in blocks(object) {
        out.extend_from_slice(block);
    }
    out
}

fn read(bytes: &[u8], now: Instant) -> Result<Object, Damage> {
    let head = Head::read(bytes)?;
    let body = &bytes[head.head_len()..];
    if !head.is_body(body) {
        return Err(Damage::Sum);
    }
    head.object(&Body::of(body), &SECRET, &CLOCKS, now, head.seen())
}

/// Corrects the checksum of a changed head.
fn seal(head: &mut [u8]) {
    let (summed, old) = head.split_last_chunk_mut::<SUM_BYTES>().unwrap();
    *old = sum(summed).to_le_bytes();
}

const FIELDS: &str = "A: 1\nSurrogate-Key: red blue\nCache-Tag: c d\nVary: X, Y\nDate: x";

#[test]
fn objects_of_all_lengths_come_back() {
    for len in [
        0,
        1,
        1000,
        BLOCK_BYTES - 1,
        BLOCK_BYTES,
        BLOCK_BYTES + 1,
        200_001,
    ] {
        let body: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
        let written = object("/a?b", "X: 1", FIELDS, &body, 5);
        written.set_seen(6, len == 1);
        let bytes = record(&written, later(10));
        assert_eq!(head_len(&bytes[..FIXED_BYTES]), Ok(bytes.len() - len));
        let found = read(&bytes, later(25)).unwrap();
        assert_eq!(found.key(), written.key());
        assert_eq!(found.url(), written.url());
        assert_eq!(found.selector(), written.selector());
        assert_eq!((found.status(), found.reason()), (200, written.reason()));
        assert_eq!(found.lines(), written.lines());
        assert_eq!(found.seen(), 6);
        assert!(found.tags().count() == 3 && found.tags().eq(written.tags()));
        assert_eq!(found.stored(later(25)), written.stored(later(25)), "{len}");
        assert_eq!(found.body_len(), len as u64);
        assert!(blocks(&found).eq(blocks(&written)), "{len}");
        let head = Head::read(&bytes).unwrap();
        assert_eq!(head.block_count(), len.div_ceil(BLOCK_BYTES));
        for (index, block) in blocks(&written).enumerate() {
            assert!(head.is_block(index, block));
            assert!(!head.is_block(index + 1, block));
            assert!(!head.is_block(index, &block[1..]));
        }
        assert!(!head.is_block(head.block_count(), b"") && !head.is_block(usize::MAX, b""));
    }
}

#[test]
fn a_record_is_renewed_without_its_body() {
    let mut bytes = record(&object("/a", "", FIELDS, b"body", 5), NOW);
    let head_len = head_len(&bytes).unwrap();
    for (seen, is_purged) in [(7, false), (8, true), (9, false)] {
        renew(&mut bytes[..head_len], seen, is_purged);
        let found = read(&bytes, NOW).unwrap();
        assert_eq!((found.seen(), found.body_at(0)), (seen, &b"body"[..]));
        assert_eq!(found.stored(NOW).is_purged, seen > 7);
    }
}

#[test]
fn all_of_the_lifetime_comes_back() {
    let plain = Lifetime {
        fresh: 1,
        initial_age: Duration::from_millis(1500),
        while_revalidate: 2,
        if_error: u32::MAX,
        always_validate: false,
        forbid_stale: false,
    };
    let base = object("/", "", "", b"", 0);
    let key = Key::new(&SECRET, base.key().to_vec(), base.url().len());
    for (always_validate, forbid_stale) in [(true, false), (false, true)] {
        let lifetime = Lifetime {
            always_validate,
            forbid_stale,
            ..plain
        };
        let written = Object::new(&key, &base.head(), &base.body(), &lifetime, NOW, 0).unwrap();
        let found = read(&record(&written, NOW), NOW).unwrap();
        assert_eq!(found.stored(later(3)), written.stored(later(3)));
        assert_eq!(found.age(NOW), lifetime.initial_age);
    }
}

/// Written at an age of 10 s.
#[test]
fn the_age_goes_by_the_wall_clock_and_never_below_what_it_was() {
    let bytes = record(&object("/", "", "", b"", 0), later(10));
    let head = Head::read(&bytes).unwrap();
    // The time since 1970, and the age.
    for (unix, age) in [
        (UNIX + Duration::from_secs(10), 10),
        (UNIX + Duration::from_secs(110), 110),
        // The wall clock went back by 100 s.
        (UNIX - Duration::from_secs(90), 110),
        (Duration::ZERO, 10 + UNIX.as_secs() + 10),
    ] {
        // Another process: its clock began somewhere else.
        let now = Instant::from_nanos(77);
        let clocks = Clocks { now, unix };
        let found = head.object(&Body::Short(b""), &SECRET, &clocks, now, 0);
        assert_eq!(
            found.unwrap().age(now),
            Duration::from_secs(age),
            "{unix:?}"
        );
    }
    let clocks = Clocks {
        now: NOW,
        unix: Duration::MAX,
    };
    assert!(head.age(&clocks, later(5)) > Duration::from_secs(1 << 33));
    assert_eq!(
        clocks.unix_nanos(Instant::from_nanos(0)),
        u64::MAX - NOW.as_nanos()
    );
}

#[test]
fn every_byte_counts() {
    let written = object("/a", "X: 1", FIELDS, b"body", 0);
    let bytes = record(&written, NOW);
    assert!(read(&bytes, NOW).is_ok());
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            assert!(read(&bytes, NOW).is_err(), "bit {bit} of {at}");
        }
        assert!(read(&bytes[..at], NOW).is_err(), "{at} bytes");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(read(&longer, NOW).is_err());
    let mut other = bytes;
    other[4] = 2;
    assert_eq!(read(&other, NOW).unwrap_err(), Damage::Version);
}

/// A checksum is no protection: anyone who can write to a shared server can compute it.
#[test]
fn what_was_forged_is_no_other_answer() {
    let written = object("/a", "", "A: 12345678", b"", 0);
    let mut head = record(&written, NOW);
    let at = memchr::memmem::find(&head, b"12345678").unwrap();
    for (text, is_fine) in [
        (&b"abcdefgh"[..], true),
        (b"abc\r\nB:h", true),
        (b"abc\r\nBCh", false),
        (b"abc\r\n:Bh", false),
        (b"abcd\nB:h", false),
        (b"abcd\rB:h", false),
        (b"abcd\0B:h", false),
        (b"ab\r\n\r\nB:", false),
    ] {
        head[at..at + 8].copy_from_slice(text);
        seal(&mut head);
        let found = read(&head, NOW);
        let expected = if is_fine { None } else { Some(Damage::Fields) };
        assert_eq!(found.err(), expected, "{}", text.escape_ascii());
    }
    let mut long = record(&written, NOW);
    // The length of the field lines says less than there is.
    long[56] -= 1;
    seal(&mut long);
    assert!(read(&long, NOW).is_err());
    let tags = vec!["t"; 200].join("");
    let many: Vec<_> = (0..=object::MAX_TAGS).map(|at| at.to_string()).collect();
    let filler = format!("Surrogate-Kez: {}\nA: {tags}", many.join(" "));
    let mut head = record(&object("/a", "", &filler, b"", 0), NOW);
    assert!(read(&head, NOW).is_ok());
    let at = memchr::memmem::find(&head, b"Kez").unwrap();
    head[at + 2] = b'y';
    seal(&mut head);
    assert_eq!(read(&head, NOW).unwrap_err(), Damage::Fields);
}

#[test]
fn a_head_that_would_be_too_long_is_not_one() {
    let mut start = record(&object("/", "", "", b"", 0), NOW);
    for body in [u64::MAX, u64::MAX / 2, 1 << 40] {
        start[8..16].copy_from_slice(&body.to_le_bytes());
        assert_eq!(head_len(&start), Err(Damage::Lengths));
    }
    start[8..16].copy_from_slice(&(1_u64 << 36).to_le_bytes());
    assert!(head_len(&start).unwrap() > 8 << 20);
    assert_eq!(Head::read(&start).unwrap_err(), Damage::Short);
}

/// Reads whatever a head lets read.
fn read_all(bytes: &[u8]) {
    let _ = head_len(bytes);
    let Ok(head) = Head::read(bytes) else { return };
    assert!(head.head_len() <= bytes.len() && head.key().starts_with(head.url()));
    assert_eq!(head_len(bytes), Ok(head.head_len()));
    let body = &bytes[head.head_len()..];
    let body = &body[..body
        .len()
        .min(usize::try_from(head.body_len()).unwrap_or(usize::MAX))];
    head.is_body(body);
    head.is_block(0, body);
    let Ok(found) = head.object(&Body::of(body), &SECRET, &CLOCKS, NOW, 0) else {
        return;
    };
    assert_eq!(found.lines(), head.lines());
    let mut again = Vec::new();
    push_head(&mut again, &found, &CLOCKS, NOW).unwrap();
    assert_eq!(Head::read(&again).unwrap().key(), head.key());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        read_all(&bytes);
        let mut begun = [&MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat();
        read_all(&begun);
        if begun.len() >= SUM_BYTES {
            seal(&mut begun);
            read_all(&begun);
        }
    }

    /// With its right sum, so that more than the sum is tested.
    #[test]
    fn a_changed_head_is_read_without_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        len in 0_usize..100,
    ) {
        let mut bytes = record(&object("/a", "X: 1", FIELDS, &vec![7; len], 0), NOW);
        for (at, byte) in changes {
            let at = at.index(bytes.len() - len - SUM_BYTES);
            bytes[at] = byte;
        }
        if let Ok(head_len) = head_len(&bytes)
            && head_len <= bytes.len()
        {
            seal(&mut bytes[..head_len]);
        }
        read_all(&bytes);
    }
}
