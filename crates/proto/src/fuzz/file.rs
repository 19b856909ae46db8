//! A request for a file: its path, its conditions, and the ranges it asks for.

use crate::RequestHead;
use crate::coding::Coding;
use crate::file_path::{self, MAX_NAME_LEN, MAX_PATH_LEN};
use crate::http1::{Parsed, parse_request};
use crate::representation::{ByteRange, Conditions, MAX_RANGES, Ranges, Validators};

/// Any bytes as a request for a file.
pub fn file_request(data: &[u8]) {
    let mut head = RequestHead::default();
    if parse_request(data, &mut head) != Ok(Parsed::Complete) {
        return;
    }
    if let Ok(path) = file_path::decode(head.path(data)) {
        check_file_path(&path);
    }
    let conditions = Conditions::of(&head, data);
    let validators = Validators {
        entity_tag: b"\"v1\"",
        modified: Some(784_111_777),
    };
    conditions.precondition(data, &validators);
    for len in [0, 1, 100, u64::MAX] {
        if let Ranges::Some(ranges) = conditions.ranges(data, &validators, len) {
            check_ranges(&ranges, len);
        }
    }
    for offered in [&[][..], &[Coding::Gzip], &[Coding::Brotli, Coding::Gzip]] {
        let coding = conditions.coding(data, offered);
        assert!(coding.is_none_or(|coding| offered.contains(&coding)));
    }
}

/// A path that stays beneath its root, and means nothing else the second time.
fn check_file_path(path: &[u8]) {
    assert!(path.len() <= MAX_PATH_LEN && !path.contains(&0));
    let folders = path.strip_suffix(b"/").unwrap_or(path);
    if !folders.is_empty() {
        for name in folders.split(|&byte| byte == b'/') {
            assert!(
                !matches!(name, b"" | b"." | b".."),
                "{}",
                path.escape_ascii()
            );
            assert!(name.len() <= MAX_NAME_LEN);
        }
    }
    if !path.contains(&b'%') {
        let again = [b"/", path].concat();
        assert_eq!(file_path::decode(&again).as_deref(), Ok(path));
    }
}

/// Parts of so many bytes, in order, with gaps between them.
fn check_ranges(ranges: &[ByteRange], len: u64) {
    assert!((1..=MAX_RANGES).contains(&ranges.len()));
    for range in ranges {
        assert!(range.first <= range.last && range.last < len, "{range:?}");
    }
    for pair in ranges.windows(2) {
        assert!(pair[0].last + 1 < pair[1].first, "{pair:?}");
    }
}
