//! Memory of what is made of files and held until clients have taken it:
//! listings of folders, compressed files, and slices read from the disk.
//!
//! Shared by all workers and by the threads of the disks.
//!
//! Invariant: what is held beyond the workers' caches is at most
//! `server.answer_memory`, give or take what is made at the same moment. Beyond
//! the bound a listing is refused and a file is sent uncompressed; beyond half
//! of it slices are short.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Missing;
use super::folder_id::FolderId;

/// Memory held in all, and its bound.
#[derive(Debug)]
pub struct AnswerMemory {
    held: AtomicU64,
    /// The part of `held` that caches keep within bounds of their own.
    cached: AtomicU64,
    /// Answers that were not made for want of room.
    refused: AtomicU64,
    most: AtomicU64,
}

impl AnswerMemory {
    /// Nothing is held; at most so many bytes.
    pub(super) fn new(most: u64) -> Self {
        AnswerMemory {
            held: AtomicU64::new(0),
            cached: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            most: AtomicU64::new(most),
        }
    }

    /// The most bytes that may be held from now on.
    pub(super) fn set_most(&self, most: u64) {
        self.most.store(most, Ordering::Relaxed);
    }

    fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// Bytes that are held for clients now.
    pub fn held(&self) -> u64 {
        let held = self.held.load(Ordering::Relaxed);
        held.saturating_sub(self.cached.load(Ordering::Relaxed))
    }

    /// How often something was not made for want of room.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Adds what the process before an upgrade has counted.
    pub(crate) fn add_refused(&self, count: u64) {
        self.refused.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts a slice of so many bytes where half of the room is still there: the
    /// other half is for what can't be made in short slices.
    pub fn hold_slice(self: &Arc<Self>, len: u64) -> Option<Holding> {
        let is_half_left = self.held().saturating_add(len) <= self.most() / 2;
        is_half_left.then(|| self.hold(len as usize))
    }

    /// Whether there is room for so many bytes more.
    pub(super) fn has_room(&self, len: u64) -> bool {
        self.held().saturating_add(len) <= self.most()
    }

    /// The same; counts it where there is none.
    pub(super) fn has_room_or_refuses(&self, len: u64) -> bool {
        let has_room = self.has_room(len);
        if !has_room {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Counts so many bytes until the result is dropped.
    pub fn hold(self: &Arc<Self>, len: usize) -> Holding {
        self.held.fetch_add(len as u64, Ordering::Relaxed);
        Holding {
            memory: self.clone(),
            len,
        }
    }

    /// A cache keeps so many bytes more of what is held.
    pub(super) fn add_cached(&self, len: usize) {
        self.cached.fetch_add(len as u64, Ordering::Relaxed);
    }

    /// A cache keeps so many bytes less.
    pub(super) fn remove_cached(&self, len: usize) {
        self.cached.fetch_sub(len as u64, Ordering::Relaxed);
    }
}

/// Bytes that count as long as this is there.
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

/// Bytes that were made, and count as long as somebody has them.
#[derive(Debug)]
pub struct HeldBytes {
    bytes: Box<[u8]>,
    _holding: Holding,
}

impl HeldBytes {
    /// Counts them from now on.
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

/// A page about a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The nonce of its style.
    pub nonce: Box<str>,
    /// It.
    pub html: Vec<u8>,
}

/// A page that is sent to clients.
#[derive(Debug)]
pub struct HeldPage {
    /// The nonce of its style.
    pub nonce: Box<str>,
    /// It.
    pub html: HeldBytes,
}

/// The folder of the page, the path beneath it, and the path that clients have for it.
pub(super) type PageKey = (FolderId, Box<[u8]>, Box<[u8]>);

/// The pages that clients are being sent, so that the same page is there once.
///
/// A folder is read for each request all the same: a page is shared only where
/// nothing has changed.
#[derive(Debug, Default)]
pub(super) struct HeldPages(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    by_key: HashMap<PageKey, Weak<HeldPage>>,
    /// Number of entries at which those that nobody has are left out.
    sweep_at: usize,
}

/// Fewer entries are never swept.
const SWEPT_MIN: usize = 64;

impl HeldPages {
    /// The page that clients have already, if `write` gives the same one again;
    /// else a new one. `write` takes the nonce, or makes one.
    ///
    /// # Errors
    /// A new page finds no room; or as `write` says.
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
        // A second client of the same page takes no more.
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
