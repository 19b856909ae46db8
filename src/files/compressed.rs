//! Files that were compressed of late, the last used of them: to compress one
//! takes far longer than to answer with it.

use std::sync::Arc;

use evenkeel_proto::coding::Coding;
use lru::LruCache;

use super::FileId;

/// What came of compressing a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compressed {
    /// These bytes, fewer than the file has.
    Smaller(Arc<[u8]>),
    /// As many bytes as the file has, or more.
    NotSmaller,
}

/// One worker's compressed files, as many as fit.
#[derive(Debug)]
pub(super) struct CompressedFiles {
    kept: LruCache<(FileId, Coding), Compressed>,
    /// Of all that is kept, in bytes.
    len: usize,
    most: usize,
}

/// What it takes to keep a file that has no bytes: key, links and places.
const ENTRY_LEN: usize = 128;

impl CompressedFiles {
    /// None; at most so many bytes of them.
    pub fn new(most: usize) -> Self {
        CompressedFiles {
            kept: LruCache::unbounded(),
            len: 0,
            most,
        }
    }

    /// What came of compressing this file, where that is kept.
    pub fn get(&mut self, file: FileId, coding: Coding) -> Option<&Compressed> {
        self.kept.get(&(file, coding))
    }

    /// Keeps what came of compressing a file, in place of what was not used for
    /// longest.
    pub fn put(&mut self, file: FileId, coding: Coding, compressed: Compressed) {
        let len = entry_len(&compressed);
        if len > self.most {
            return;
        }
        self.len += len;
        if let Some(before) = self.kept.put((file, coding), compressed) {
            self.len -= entry_len(&before);
        }
        while self.len > self.most
            && let Some((_, oldest)) = self.kept.pop_lru()
        {
            self.len -= entry_len(&oldest);
        }
    }
}

fn entry_len(compressed: &Compressed) -> usize {
    match compressed {
        Compressed::Smaller(bytes) => ENTRY_LEN + bytes.len(),
        Compressed::NotSmaller => ENTRY_LEN,
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::TempDir;

    use super::*;

    /// So many files.
    fn files(count: usize) -> Vec<FileId> {
        let folder = TempDir::new().expect("a folder");
        let root = crate::files::open::Root::open(folder.path()).expect("the folder");
        let files = (0..count).map(|index| {
            let name = index.to_string();
            std::fs::write(folder.join(&name), &name).expect("a file");
            let opened = root.open_from_disk(name.as_bytes());
            opened.expect("the file").id
        });
        files.collect()
    }

    fn bytes(len: usize) -> Compressed {
        Compressed::Smaller(vec![0; len].into())
    }

    #[test]
    fn keeps_the_last_used_within_its_bound() {
        let files = files(4);
        let mut kept = CompressedFiles::new(3 * (ENTRY_LEN + 1000));
        for file in &files[..3] {
            kept.put(*file, Coding::Gzip, bytes(1000));
        }
        assert!(kept.get(files[0], Coding::Gzip).is_some());
        assert!(kept.get(files[0], Coding::Zstd).is_none(), "another coding");
        kept.put(files[3], Coding::Gzip, bytes(1000));
        let is_kept: Vec<bool> = files
            .iter()
            .map(|file| kept.get(*file, Coding::Gzip).is_some())
            .collect();
        assert_eq!(is_kept, [true, false, true, true]);
    }

    #[test]
    fn counts_what_is_replaced_and_what_is_too_large() {
        let files = files(2);
        let mut kept = CompressedFiles::new(2 * ENTRY_LEN + 1000);
        kept.put(files[0], Coding::Brotli, Compressed::NotSmaller);
        for _ in 0..10 {
            kept.put(files[1], Coding::Brotli, bytes(900));
        }
        kept.put(files[1], Coding::Gzip, bytes(100_000));
        assert!(kept.get(files[1], Coding::Gzip).is_none());
        let small = kept.get(files[0], Coding::Brotli);
        assert_eq!(small, Some(&Compressed::NotSmaller));
        assert_eq!(kept.len, 2 * ENTRY_LEN + 900);
    }
}
