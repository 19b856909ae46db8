//! One fetch for many: a response that still arrives, and who waits for it.
//!
//! The first request for a key leads ([`Fetch`]); others follow ([`Follower`]) and get
//! the head and the body as they come. Who waits leaves a waker; nothing here waits.
//!
//! ```text
//!  fetch:     asked ──head──▶ arriving ──finish──▶ whole ──▶ stored
//!               │ └─release─▶ each on its own         ▲
//!               └─dropped───▶ failed ◀──dropped── arriving
//! ```
//!
//! Invariant: a fetch that is dropped, for whatever reason, ends as failed and leaves
//! the table. No key stays taken by a fetch that nobody makes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::freshness::Lifetime;
use crate::key::Key;
use crate::memory::Memory;
use crate::object::{Body, CHUNK_BYTES, LongBody, Object, StoredHead};
use crate::storing::{NotStored, Received};

/// Fetches under way, by key.
#[derive(Debug)]
pub struct Fetches {
    store: Arc<Memory>,
    tables: Box<[Mutex<Table>]>,
}

/// By the hash of the key.
type Table = HashMap<u128, Arc<Incoming>>;

/// Parts of the table, each behind a lock.
const TABLES: usize = 64;

/// What became of a request that asked to share a fetch.
#[derive(Debug)]
pub enum Joined {
    /// It is the first: it fetches.
    Lead(Fetch),
    /// Another fetches: wait for it.
    Follow(Follower),
    /// So many follow already, or it has ended just now: fetch without sharing.
    Alone,
}

/// A response's head that has arrived and may be stored.
#[derive(Debug)]
pub struct Arrival {
    /// What is stored of it.
    pub head: StoredHead,
    /// For how long it is fresh.
    pub lifetime: Lifetime,
    /// When it came.
    pub received: Received,
    /// Length of the body in bytes, if it was announced.
    pub announced_len: Option<u64>,
}

/// Why nothing comes of following.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The response is not for sharing: each fetches its own, without waiting.
    NotStored(NotStored),
    /// The store has something new.
    LookAgain,
    /// The fetch failed, or was given up.
    Failed,
}

/// What a follower reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// So many bytes were appended; at least one.
    Bytes(usize),
    /// The body is whole, and all of it was read.
    End,
    /// It was cut off: what was read is not all.
    Failed,
}

#[derive(Debug)]
struct Incoming {
    key: Key,
    /// Count of purges when it was asked for.
    seen: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    arrival: Option<Arc<Arrival>>,
    /// All of [`CHUNK_BYTES`].
    chunks: Vec<Arc<[u8]>>,
    /// What comes after them, shorter than one.
    tail: Vec<u8>,
    end: Option<End>,
    followers: usize,
    waiting: Vec<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Released(Released),
}

impl State {
    fn len(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK_BYTES as u64 + self.tail.len() as u64
    }

    fn wait(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|it| it.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }
}

impl Incoming {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No state is changed in two steps of which one alone would be wrong.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes who waits for that once the lock is free.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
        result
    }
}

impl Fetches {
    /// None yet, for this store.
    pub fn new(store: Arc<Memory>) -> Arc<Self> {
        Arc::new(Fetches {
            store,
            tables: (0..TABLES).map(|_| Mutex::default()).collect(),
        })
    }

    /// Leads the fetch of this key, or follows the one under way, of which `most` do at
    /// most.
    pub fn join(self: &Arc<Self>, key: &Key, most: usize) -> Joined {
        let mut table = self.table(key);
        if let Some(incoming) = table.get(&key.hash) {
            let incoming = incoming.clone();
            let mut state = incoming.lock();
            if state.end.is_some() || state.followers >= most || incoming.key != *key {
                return Joined::Alone;
            }
            state.followers += 1;
            drop(state);
            return Joined::Follow(Follower {
                incoming,
                position: 0,
            });
        }
        let incoming = Arc::new(Incoming {
            key: key.clone(),
            seen: self.store.purge_count(),
            state: Mutex::default(),
        });
        table.insert(key.hash, incoming.clone());
        Joined::Lead(Fetch {
            fetches: self.clone(),
            incoming,
            reserved_bytes: 0,
            is_listed: true,
        })
    }

    /// Leads the fetch of this key unless another one is under way: one validation
    /// behind the clients' backs is enough.
    pub fn lead(self: &Arc<Self>, key: &Key) -> Option<Fetch> {
        match self.join(key, 0) {
            Joined::Lead(fetch) => Some(fetch),
            Joined::Follow(_) | Joined::Alone => None,
        }
    }

    /// Fetches under way.
    pub fn count(&self) -> usize {
        let tables = self.tables.iter();
        let lens = tables.map(|table| table.lock().unwrap_or_else(PoisonError::into_inner).len());
        lens.sum()
    }

    fn table(&self, key: &Key) -> MutexGuard<'_, Table> {
        let table = &self.tables[key.hash as usize % TABLES];
        table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one who fetches. Dropping it ends the fetch as failed.
#[derive(Debug)]
pub struct Fetch {
    fetches: Arc<Fetches>,
    incoming: Arc<Incoming>,
    /// What the body takes of the store already.
    reserved_bytes: usize,
    is_listed: bool,
}

impl Fetch {
    /// The key that is fetched.
    pub fn key(&self) -> &Key {
        &self.incoming.key
    }

    /// How many follow. Where there are none and the own client has gone, the fetch may
    /// be given up.
    pub fn followers(&self) -> usize {
        self.incoming.lock().followers
    }

    /// The head is there and may be stored: followers get it.
    pub fn arrive(&mut self, arrival: Arrival) {
        let arrival = Arc::new(arrival);
        self.incoming.change(|state| state.arrival = Some(arrival));
    }

    /// The response is not for sharing: followers fetch on their own, at once.
    pub fn release(mut self, reason: NotStored) {
        self.end(Released::NotStored(reason));
    }

    /// The store has something new, such as an object that a 304 renewed: followers look
    /// again.
    pub fn renew(mut self) {
        self.end(Released::LookAgain);
    }

    /// Appends a part of the body.
    ///
    /// # Errors
    ///
    /// The body is longer than the store takes: nothing was appended. Followers have
    /// what came before, and the rest they can't get: the fetch has failed to them.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), NotStored> {
        let longest = self.fetches.store.longest_bytes();
        let reserved = self.reserved_bytes + bytes.len();
        if reserved > longest {
            return Err(NotStored::TooLarge);
        }
        self.fetches.store.reserve(bytes.len());
        self.reserved_bytes = reserved;
        self.incoming.change(|state| {
            let mut rest = bytes;
            while !rest.is_empty() {
                let room = CHUNK_BYTES - state.tail.len();
                let (now, later) = rest.split_at(room.min(rest.len()));
                state.tail.extend_from_slice(now);
                rest = later;
                if state.tail.len() == CHUNK_BYTES {
                    let full = std::mem::take(&mut state.tail);
                    state.chunks.push(full.into());
                }
            }
        });
        Ok(())
    }

    /// The body has ended as it should: it is stored, and given to who follows.
    ///
    /// # Errors
    ///
    /// Why it is not stored; followers have it all the same, unless it was cut off.
    pub fn finish(mut self) -> Result<Object, NotStored> {
        let (arrival, object) = {
            let state = self.incoming.lock();
            let arrival = state.arrival.clone().ok_or(NotStored::Incomplete)?;
            let announced = arrival.announced_len;
            if announced.is_some_and(|announced| announced != state.len()) {
                return Err(NotStored::Incomplete);
            }
            let object = self.object(&state, &arrival);
            (arrival, object)
        };
        drop(arrival);
        // What is stored is found before the fetch leaves the table.
        let stored = object.filter(|object| {
            self.release_room();
            self.fetches
                .store
                .insert(&self.incoming.key, object.clone())
        });
        self.leave();
        self.incoming.change(|state| state.end = Some(End::Whole));
        stored.ok_or(NotStored::TooLarge)
    }

    fn object(&self, state: &State, arrival: &Arrival) -> Option<Object> {
        let body = if state.chunks.is_empty() {
            Body::Short(&state.tail)
        } else {
            let mut chunks = state.chunks.clone();
            if !state.tail.is_empty() {
                chunks.push(state.tail.as_slice().into());
            }
            Body::Long(Arc::new(LongBody::new(chunks)))
        };
        Object::new(
            &self.incoming.key,
            &arrival.head,
            &body,
            &arrival.lifetime,
            arrival.received.arrived,
            self.incoming.seen,
        )
    }

    fn end(&mut self, released: Released) {
        self.leave();
        self.incoming.change(|state| {
            state.end.get_or_insert(End::Released(released));
        });
        self.release_room();
    }

    /// Others may lead from now on.
    fn leave(&mut self) {
        if std::mem::take(&mut self.is_listed) {
            self.fetches
                .table(&self.incoming.key)
                .remove(&self.incoming.key.hash);
        }
    }

    fn release_room(&mut self) {
        let bytes = std::mem::take(&mut self.reserved_bytes);
        self.fetches.store.release(bytes);
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.end(Released::Failed);
    }
}

/// One who gets the response that another fetches.
#[derive(Debug)]
pub struct Follower {
    incoming: Arc<Incoming>,
    position: u64,
}

impl Follower {
    /// The head, once it is there. Whether it answers the follower's own request is for
    /// [`StoredHead::answers`] to say.
    ///
    /// # Errors
    ///
    /// Why none comes.
    pub fn poll_head(&self, waker: &Waker) -> Poll<Result<Arc<Arrival>, Released>> {
        let mut state = self.incoming.lock();
        if let Some(End::Released(released)) = state.end {
            return Poll::Ready(Err(released));
        }
        if let Some(arrival) = &state.arrival {
            return Poll::Ready(Ok(arrival.clone()));
        }
        state.wait(waker);
        Poll::Pending
    }

    /// Appends what has come of the body since the last call, `most` bytes at most.
    pub fn poll_read(&mut self, out: &mut Vec<u8>, most: usize, waker: &Waker) -> Poll<Read> {
        let mut state = self.incoming.lock();
        let len = state.len();
        if self.position < len {
            let index = (self.position / CHUNK_BYTES as u64) as usize;
            let start = (self.position % CHUNK_BYTES as u64) as usize;
            let piece = match state.chunks.get(index) {
                Some(chunk) => &chunk[start..],
                None => &state.tail[start..],
            };
            let piece = &piece[..piece.len().min(most)];
            out.extend_from_slice(piece);
            self.position += piece.len() as u64;
            return Poll::Ready(Read::Bytes(piece.len()));
        }
        match state.end {
            Some(End::Whole) => Poll::Ready(Read::End),
            Some(End::Released(_)) => Poll::Ready(Read::Failed),
            None => {
                state.wait(waker);
                Poll::Pending
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // The fetch may wait for the last one to leave.
        self.incoming.change(|state| state.followers -= 1);
    }
}

#[cfg(test)]
mod tests;
