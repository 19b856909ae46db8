//! Memory of answers that were made here and that clients have not received yet: listings of
//! folders, compressed files, and slices read from the disk.
//!
//! Shared by all workers and by the threads of the disks.
//!
//! Invariant: bytes held outside the workers' caches are at most `server.answer_memory`, apart
//! from concurrent additions. Beyond this bound, listings are refused and files are sent
//! uncompressed. Beyond half of it, slices are short.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Missing;
use super::folder_id::FolderId;

/// Total held memory, and its bound.
#[derive(Debug)]
pub struct AnswerMemory {
    held: AtomicU64,
    /// The part of `held` in caches, which have their own bounds.
    cached: AtomicU64,
    /// Answers that were refused for want of this memory.
    refused: AtomicU64,
    most: AtomicU64,
}

impl AnswerMemory {
    /// An empty count, for at most this many bytes.
    pub(super) fn new(most: u64) -> Self {
        AnswerMemory {
            held: AtomicU64::new(0),
            cached: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            most: AtomicU64::new(most),
        }
    }

    /// Sets the bound, in bytes.
    pub(super) fn set_most(&self, most: u64) {
        self.most.store(most, Ordering::Relaxed);
    }

    fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// Bytes held for clients now.
    pub fn held(&self) -> u64 {
        let held = self.held.load(Ordering::Relaxed);
        held.saturating_sub(self.cached.load(Ordering::Relaxed))
    }

    /// Number of answers that were refused for want of this memory.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Adds the count of the process before an upgrade.
    pub(crate) fn add_refused(&self, count: u64) {
        self.refused.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts a slice of this many bytes, if it fits into half of the memory. The other half is
    /// for answers that can't be made in short slices.
    pub fn hold_slice(self: &Arc<Self>, len: u64) -> Option<Holding> {
        let is_half_left = self.held().saturating_add(len) <= self.most() / 2;
        is_half_left.then(|| self.hold(len as usize))
    }

    /// Whether there is room for this many more bytes.
    pub(super) fn has_room(&self, len: u64) -> bool {
        self.held().saturating_add(len) <= self.most()
    }

    /// The same; counts a refusal if there is none.
    pub(super) fn has_room_or_refuses(&self, len: u64) -> bool {
        let has_room = self.has_room(len);
        if !has_room {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Counts this many bytes until the result is dropped.
    pub fn hold(self: &Arc<Self>, len: usize) -> Holding {
        self.held.fetch_add(len as u64, Ordering::Relaxed);
        Holding {
            memory: self.clone(),
            len,
        }
    }

    /// Notes that a cache keeps this many more of the held bytes.
    pub(super) fn add_cached(&self, len: usize) {
        self.cached.fetch_add(len as u64, Ordering::Relaxed);
    }

    /// Notes that a cache keeps this many bytes less.
    pub(super) fn remove_cached(&self, len: usize) {
        self.cached.fetch_sub(len as u64, Ordering::Relaxed);
    }
}

/// Counts bytes until dropped.
#[derive(Debug)]
pub struct Holding {
    memory: Arc<AnswerMemory>,
    len: usize,
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.memory
            .held
            .fetch_sub(self.len as u64, Ordering::Relaxed);
    }
}

/// Bytes that count while somebody holds them.
#[derive(Debug)]
pub struct HeldBytes {
    bytes: Box<[u8]>,
    _holding: Holding,
}

impl HeldBytes {
    /// Starts to count these bytes.
    pub(super) fn new(bytes: Vec<u8>, memory: &Arc<AnswerMemory>) -> Self {
        HeldBytes {
            _holding: memory.hold(bytes.len()),
            bytes: bytes.into(),
        }
    }
}

impl Deref for HeldBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A listing of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The nonce of its style.
    pub nonce: Box<str>,
    /// The document.
    pub html: Vec<u8>,
}

/// A listing that is being sent to clients.
#[derive(Debug)]
pub struct HeldPage {
    /// The nonce of its style.
    pub nonce: Box<str>,
    /// The document.
    pub html: HeldBytes,
}

/// The folder of the listing, the path beneath it, and the path that clients see.
pub(super) type PageKey = (FolderId, Box<[u8]>, Box<[u8]>);

/// The listings that are being sent. Equal ones are in memory once.
///
/// A folder is still read for each request: a listing is shared only if nothing has changed.
#[derive(Debug, Default)]
pub(super) struct HeldPages(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    by_key: HashMap<PageKey, Weak<HeldPage>>,
    /// Number of entries at which unused ones are removed.
    sweep_at: usize,
}

/// Least number of entries for a removal.
const SWEPT_MIN: usize = 64;

impl HeldPages {
    /// Returns the listing that clients are getting already, if `write` makes the same one again;
    /// otherwise a new one. `write` takes a nonce, or makes one.
    ///
    /// # Errors
    /// There is no room for a new listing, or `write` failed.
    pub fn share(
        &self,
        key: PageKey,
        memory: &Arc<AnswerMemory>,
        write: impl Fn(Option<&str>) -> Result<Page, Missing>,
    ) -> Result<Arc<HeldPage>, Missing> {
        if let Some(held) = self.find(&key) {
            let again = write(Some(&held.nonce))?;
            if again.html == *held.html {
                return Ok(held);
            }
        }
        let Page { nonce, mut html } = write(None)?;
        html.shrink_to_fit();
        if !memory.has_room_or_refuses(html.len() as u64) {
            return Err(Missing::NoMemory);
        }
        let html = HeldBytes::new(html, memory);
        let page = Arc::new(HeldPage { nonce, html });
        self.keep(key, &page);
        Ok(page)
    }

    fn find(&self, key: &PageKey) -> Option<Arc<HeldPage>> {
        self.lock().by_key.get(key)?.upgrade()
    }

    fn keep(&self, key: PageKey, page: &Arc<HeldPage>) {
        let mut pages = self.lock();
        pages.by_key.insert(key, Arc::downgrade(page));
        if pages.by_key.len() >= pages.sweep_at.max(SWEPT_MIN) {
            pages.by_key.retain(|_, page| page.strong_count() > 0);
            pages.sweep_at = pages.by_key.len() * 2;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str) -> PageKey {
        (
            FolderId::new(0),
            path.as_bytes().into(),
            path.as_bytes().into(),
        )
    }

    fn page<'a>(html: &'a str, fresh: &'a str) -> impl Fn(Option<&str>) -> Result<Page, Missing> {
        move |nonce| {
            let nonce = nonce.unwrap_or(fresh);
            Ok(Page {
                nonce: nonce.into(),
                html: format!("{nonce}{html}").into(),
            })
        }
    }

    #[test]
    fn the_same_page_is_held_once() {
        let memory = Arc::new(AnswerMemory::new(100));
        let pages = HeldPages::default();
        let first = pages.share(key("a"), &memory, page("text", "1")).unwrap();
        let again = pages.share(key("a"), &memory, page("text", "2")).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(memory.held(), 5);
        let other = pages.share(key("a"), &memory, page("more", "3")).unwrap();
        assert_eq!((&*other.nonce, &*other.html), ("3", &b"3more"[..]));
        assert_eq!(memory.held(), 10);
        drop((first, again, other));
        assert_eq!(memory.held(), 0);
        let anew = pages.share(key("a"), &memory, page("more", "4")).unwrap();
        assert_eq!(&*anew.nonce, "4");
    }

    #[test]
    fn there_is_room_for_so_much() {
        let memory = Arc::new(AnswerMemory::new(10));
        let pages = HeldPages::default();
        let first = pages.share(key("a"), &memory, page("12345", "1")).unwrap();
        let refused = pages.share(key("b"), &memory, page("12345", "1"));
        assert_eq!(refused.err(), Some(Missing::NoMemory));
        assert_eq!((memory.held(), memory.refused()), (6, 1));
        // A second client of the same listing takes no more memory.
        assert!(pages.share(key("a"), &memory, page("12345", "2")).is_ok());
        drop(first);
        assert!(pages.share(key("b"), &memory, page("12345", "1")).is_ok());
    }

    #[test]
    fn pages_that_nobody_has_are_forgotten() {
        let memory = Arc::new(AnswerMemory::new(1_000_000));
        let pages = HeldPages::default();
        for index in 0..10_000 {
            let shared = pages.share(key(&index.to_string()), &memory, page("x", "1"));
            assert!(shared.is_ok());
        }
        assert!(pages.lock().by_key.len() <= SWEPT_MIN);
    }

    #[test]
    fn what_a_cache_keeps_is_not_held_for_clients() {
        let memory = Arc::new(AnswerMemory::new(10));
        let bytes = HeldBytes::new(vec![0; 8], &memory);
        memory.add_cached(8);
        assert_eq!(memory.held(), 0);
        memory.remove_cached(8);
        assert!(!memory.has_room(3) && memory.has_room(2));
        drop(bytes);
        assert_eq!(memory.held(), 0);
    }
}
