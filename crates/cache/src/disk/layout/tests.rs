use proptest::prelude::*;

use super::*;

const SECRET: Secret = Secret([9; 16]);

fn position(segment: u32, offset: u64) -> Position {
    Position { segment, offset }
}

fn frame(kind: Kind, len: u32) -> Frame {
    Frame {
        kind,
        hashes: Hashes { key: 1, slot: 2 },
        position: position(7, 8 << 20),
        len,
    }
}

fn entry(at: u64, names: &[u8]) -> Entry<'_> {
    Entry {
        hashes: Hashes {
            key: at,
            slot: at + 1,
        },
        kind: if at.is_multiple_of(3) {
            Kind::Removal
        } else {
            Kind::Record
        },
        position: position(5, at * UNIT),
        size: Size(at as u8),
        names,
    }
}

/// Checks that a thing is read back and that each bit of it counts.
fn check<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    expected: &T,
    read: impl Fn(&[u8]) -> Result<T, Damage>,
) {
    assert_eq!(read(bytes).as_ref(), Ok(expected));
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&bytes).is_err(), "{expected:?} bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(read(&bytes[..len]).is_err(), "{expected:?} {len} bytes");
    }
}

#[test]
fn heads_and_frames_come_back() {
    let bytes = store_head(&SECRET);
    assert_eq!(bytes.len(), STORE_HEAD_BYTES);
    check(&bytes, &SECRET.0, |bytes| Ok(read_store_head(bytes)?.0));
    let mut newer = bytes;
    newer[4] = 2;
    let found = read_store_head(&newer).map(|secret| secret.0);
    assert_eq!(found, Err(Damage::Version));

    let head = SegmentHead {
        segment: 3,
        purges: 4,
    };
    assert_eq!(head.bytes().len(), SEGMENT_HEAD_BYTES);
    check(&head.bytes(), &head, SegmentHead::read);

    for frame in [frame(Kind::Record, 77), frame(Kind::Removal, 0)] {
        let mut bytes = Vec::new();
        frame.push(&mut bytes);
        assert_eq!(bytes.len(), FRAME_BYTES);
        check(&bytes, &frame, |bytes| Frame::read(bytes, frame.position));
        for elsewhere in [position(7, 8), position(8, 8 << 20)] {
            assert_eq!(Frame::read(&bytes, elsewhere), Err(Damage::Magic));
        }
        assert_eq!(frame.whole_len() % UNIT, 0);
        assert!(frame.whole_len() >= (FRAME_BYTES as u64) + u64::from(frame.len));
    }
}

#[test]
fn a_summary_says_what_was_added_the_newest_first() {
    let sets: [&[u8]; 3] = [b"", b"accept-encoding\n", b"a\nb\n"];
    let mut summary = Summary::default();
    assert!(summary.is_empty());
    for at in 0..100 {
        summary.add(&entry(at, sets[at as usize % 3]));
    }
    let bytes = summary.bytes(position(5, 4096));
    assert_eq!(bytes.len() as u64, summary.len());
    let (summary, end) = bytes.split_at(bytes.len() - FOOTER_BYTES);
    let footer = Footer::read(end, 5).unwrap();
    check(end, &footer, |bytes| Footer::read(bytes, 5));
    assert_eq!(footer.position, position(5, 4096));
    assert_eq!(Footer::read(end, 6), Err(Damage::Magic));
    let found = |bytes: &[u8]| -> Result<Vec<u64>, Damage> {
        let found = footer.entries(bytes)?;
        let at = found.map(|found| {
            let at = found.hashes.key;
            assert_eq!(found, entry(at, sets[at as usize % 3]));
            at
        });
        Ok(at.collect())
    };
    check(summary, &(0..100).rev().collect(), found);
    let empty = Summary::default().bytes(position(1, 32));
    let footer = Footer::read(&empty, 1).unwrap();
    assert_eq!(footer.entries(b"").unwrap().count(), 0);
}

proptest! {
    /// With right sums, so that more than the sums is tested.
    #[test]
    fn any_bytes_are_read_without_panic(
        mut summary in proptest::collection::vec(any::<u8>(), 0..200),
        (sets_len, entries) in (0_u32..60, 0_u32..6),
    ) {
        let footer = Footer { position: position(1, 2), sets_len, entries, sum: sum(&summary) };
        if let Ok(found) = footer.entries(&summary) {
            prop_assert!(found.count() <= entries as usize);
        }
        summary.resize(footer.summary_len() as usize, 0);
        let footer = Footer { sum: sum(&summary), ..footer };
        if let Ok(found) = footer.entries(&summary) {
            prop_assert_eq!(found.count(), entries as usize);
        }
        let _ = (read_store_head(&summary), SegmentHead::read(&summary));
        let _ = (Frame::read(&summary, position(1, 2)), Footer::read(&summary, 1));
    }
}
