//! Folders that last as long as a test.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A new folder, removed with its contents on drop.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Makes a folder below the system's one for temporary files.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new() -> io::Result<Self> {
        TempDir::new_in(&std::env::temp_dir())
    }

    /// Makes a folder below `parent`.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new_in(parent: &Path) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Relaxed);
        let name = format!("evenkeel-test-{}-{count}", std::process::id());
        let path = parent.join(name);
        std::fs::create_dir_all(&path)?;
        Ok(TempDir { path })
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path inside it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Files that can't be removed are left to the system.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Replaces a file by one with this text, as editors do: readers see either the old or the new
/// file, never a mixture.
///
/// # Panics
/// When it cannot be written.
pub fn replace_file(path: &Path, text: &str) {
    let new = path.with_extension("new");
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(new, path));
    assert!(written.is_ok(), "{}: {written:?}", path.display());
}
