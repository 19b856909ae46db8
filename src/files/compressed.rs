//! Recently compressed files. Compressing a file takes far longer than answering with it.

use std::sync::Arc;

use evenkeel_proto::coding::Coding;
use lru::LruCache;

use super::FileId;
use super::held::{AnswerMemory, HeldBytes};

/// The result of compressing a file.
#[derive(Debug, Clone)]
pub enum Compressed {
    /// These bytes, fewer than the file has.
    Smaller(Arc<HeldBytes>),
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
    /// Counts the memory of compressed files.
    memory: Arc<AnswerMemory>,
}

/// Overhead of an entry in bytes: key, links and places.
const ENTRY_LEN: usize = 128;

impl CompressedFiles {
    /// An empty cache for at most this many bytes.
    pub fn new(most: usize, memory: Arc<AnswerMemory>) -> Self {
        CompressedFiles {
            kept: LruCache::unbounded(),
            len: 0,
            most,
            memory,
        }
    }

    /// The result for this file, if it is kept.
    pub fn get(&mut self, file: FileId, coding: Coding) -> Option<&Compressed> {
        self.kept.get(&(file, coding))
    }

    /// Keeps a result, and evicts the least recently used ones.
    pub fn put(&mut self, file: FileId, coding: Coding, compressed: Compressed) {
        let len = entry_len(&compressed);
        if len > self.most {
            return;
        }
        self.len += len;
        self.memory.add_cached(compressed.len());
        if let Some(before) = self.kept.put((file, coding), compressed) {
            self.forget(&before);
        }
        while self.len > self.most
            && let Some((_, oldest)) = self.kept.pop_lru()
        {
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, compressed: &Compressed) {
        self.len -= entry_len(compressed);
        self.memory.remove_cached(compressed.len());
    }
}

impl Compressed {
    /// Bytes that were made.
    fn len(&self) -> usize {
        match self {
            Compressed::Smaller(bytes) => bytes.len(),
            Compressed::NotSmaller => 0,
        }
    }
}

fn entry_len(compressed: &Compressed) -> usize {
    ENTRY_LEN + compressed.len()
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::TempDir;

    use super::*;

    /// So many files.
    fn files(count: usize) -> Vec<FileId> {
        let folder = TempDir::new().expect("a folder");
        let root = crate::files::root::Root::open(folder.path()).expect("the folder");
        let files = (0..count).map(|index| {
            let name = index.to_string();
            std::fs::write(folder.join(&name), &name).expect("a file");
            let opened = root.open_from_disk(name.as_bytes());
            opened.expect("the file").id
        });
        files.collect()
    }

    fn memory() -> Arc<AnswerMemory> {
        Arc::new(AnswerMemory::new(0))
    }

    fn bytes(len: usize, memory: &Arc<AnswerMemory>) -> Compressed {
        Compressed::Smaller(Arc::new(HeldBytes::new(vec![0; len], memory)))
    }

    #[test]
    fn keeps_the_last_used_within_its_bound() {
        let files = files(4);
        let memory = memory();
        let mut kept = CompressedFiles::new(3 * (ENTRY_LEN + 1000), memory.clone());
        for file in &files[..3] {
            kept.put(*file, Coding::Gzip, bytes(1000, &memory));
        }
        assert!(kept.get(files[0], Coding::Gzip).is_some());
        assert!(kept.get(files[0], Coding::Zstd).is_none(), "another coding");
        kept.put(files[3], Coding::Gzip, bytes(1000, &memory));
        let is_kept: Vec<bool> = files
            .iter()
            .map(|file| kept.get(*file, Coding::Gzip).is_some())
            .collect();
        assert_eq!(is_kept, [true, false, true, true]);
        assert_eq!(memory.held(), 0, "all that is left is kept");
    }

    #[test]
    fn counts_what_is_replaced_and_what_is_too_large() {
        let files = files(2);
        let memory = memory();
        let mut kept = CompressedFiles::new(2 * ENTRY_LEN + 1000, memory.clone());
        kept.put(files[0], Coding::Brotli, Compressed::NotSmaller);
        for _ in 0..10 {
            kept.put(files[1], Coding::Brotli, bytes(900, &memory));
        }
        kept.put(files[1], Coding::Gzip, bytes(100_000, &memory));
        assert!(kept.get(files[1], Coding::Gzip).is_none());
        let small = kept.get(files[0], Coding::Brotli);
        assert!(matches!(small, Some(Compressed::NotSmaller)));
        assert_eq!(kept.len, 2 * ENTRY_LEN + 900);
    }
}
