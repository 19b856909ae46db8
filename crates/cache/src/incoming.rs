//! One fetch for many clients: an incoming response and its followers.
//!
//! The first request for a key begins a fetch ([`Fetch`]) and follows it; other requests follow
//! too ([`Follower`]). All get the head and the body as they arrive. Nothing here blocks: a
//! follower that has to wait leaves a waker.
//!
//! ```text
//!  fetch:   asked ──arrive──▶ arriving ──finish──▶ whole, stored
//!             │ ├──pass─────▶ passing ───finish──▶ whole: only the first had it
//!             │ └──release──▶ each on its own, or with what was renewed
//!             └────dropped──▶ failed ◀──dropped── arriving, passing
//! ```
//!
//! A response that is stored stays in memory as a whole. A response too long for memory goes to
//! a [`Spool`], if there is one: followers read its beginning from there. Of a response that is
//! passed through, or too long for any store, only a window is kept: the fetch waits for the
//! slowest follower.
//!
//! Invariant: a fetch that is dropped, for whatever reason, ends as failed and leaves the
//! table. No key stays reserved by a fetch that no longer runs.

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::freshness::{GeneratedAt, Lifetime};
use crate::key::Key;
use crate::memory::Memory;
use crate::object::{Body, CHUNK_BYTES, FilePart, LongBody, Object, StoredHead};
use crate::purge::Fate;
use crate::storing::{NotStored, Received};

/// Fetches in progress, by key.
#[derive(Debug)]
pub struct Fetches {
    store: Arc<Memory>,
    tables: Box<[Mutex<Table>]>,
}

/// By the hash of the key.
type Table = HashMap<u128, Arc<Incoming>>;

/// Parts of the table, each behind a lock.
const TABLES: usize = 64;

/// The role of a request that asked to share a fetch.
#[derive(Debug)]
pub enum Joined {
    /// The first request for the key: it fetches.
    Lead(Fetch),
    /// Another request fetches: follow it.
    Follow(Follower),
    /// Too many requests follow already, or the fetch has just ended: fetch without sharing.
    Alone,
}

/// A response's head that has arrived and may be stored.
#[derive(Debug)]
pub struct Arrival {
    /// The part of the head that is stored.
    pub head: StoredHead,
    /// How long the response is fresh.
    pub lifetime: Lifetime,
    /// When the head was received.
    pub received: Received,
    /// Length of the body in bytes, if it was announced.
    pub announced_len: Option<u64>,
}

impl Arrival {
    /// When the stored response was generated.
    pub fn born(&self) -> GeneratedAt {
        GeneratedAt::before(self.received.arrived, self.lifetime.initial_age)
    }
}

/// Why a follower gets no response from a fetch.
#[derive(Debug, Clone)]
pub enum Released {
    /// The response must not be shared: each request fetches its own, without waiting.
    NotStored(NotStored),
    /// The endpoint has confirmed a stored response. This object, renewed, answers every
    /// request that waited for it.
    Renewed {
        /// The response; without its body if that lies in a file.
        object: Object,
        /// The body, if it lies in a file.
        body: Option<FilePart>,
    },
    /// Another tier had a response, which is now in the store.
    Found,
    /// The endpoint's answer does not decide about the stored response: each request asks
    /// again, without conditions.
    Unconfirmed,
    /// The fetch failed, for a reason numbered by its owner; `None` if it was dropped.
    Failed(Option<u16>),
}

/// A file that takes an incoming body which is too long for memory.
pub trait Spool: Debug + Send + Sync {
    /// Queues the next bytes for writing. Does not block.
    fn push(&self, bytes: Arc<[u8]>);

    /// The file, once it has bytes, with their number.
    fn written(&self) -> Option<(Arc<File>, u64)>;

    /// Whether it still accepts bytes.
    fn is_open(&self) -> bool;

    /// Stops writing, for instance because the body is too long.
    fn give_up(&self);

    /// Registers a waker for the next bytes written, or for the end of writing.
    fn wait(&self, waker: &Waker);
}

/// The outcome of a follower's read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// This many bytes were appended; at least one.
    Bytes(usize),
    /// The next bytes lie in the file of the spool ([`Follower::file`]).
    Spooled {
        /// Offset of the bytes in the file.
        from: u64,
        /// Number of bytes; at least one.
        len: u64,
    },
    /// The body is complete, and all of it was read.
    End,
    /// The body was cut off, so the bytes read are not all of it.
    Failed,
}

#[derive(Debug)]
struct Incoming {
    key: Key,
    /// Count of purges when the fetch began.
    seen: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    arrival: Option<Arc<Arrival>>,
    /// Why only the first follower gets the response.
    passing: Option<NotStored>,
    /// Whether something has invalidated the key since the fetch began.
    is_outdated: bool,
    /// How many bytes to keep for followers; `None` for all.
    window: Option<usize>,
    /// The file for a body that is too long for memory.
    spool: Option<Arc<dyn Spool>>,
    /// The stored object. Its memory counts as long as somebody follows.
    stored: Option<Object>,
    /// Whether the whole body has arrived, while the spool is not stored yet.
    is_whole: bool,
    /// Number of chunks at the beginning that were dropped.
    dropped: usize,
    /// Kept chunks, each of [`CHUNK_BYTES`].
    chunks: VecDeque<Arc<[u8]>>,
    /// The bytes after the chunks; fewer than a chunk.
    tail: Vec<u8>,
    end: Option<End>,
    /// How far each follower has read. The first one is the request that began the fetch.
    positions: Vec<Option<u64>>,
    /// Number of followers that are still there.
    followers: usize,
    waiting: Vec<Waker>,
}

#[derive(Debug, Clone)]
enum End {
    Whole,
    Released(Released),
}

impl State {
    /// Length of all bytes that have arrived.
    fn len(&self) -> u64 {
        let chunks = self.dropped + self.chunks.len();
        chunks as u64 * CHUNK_BYTES as u64 + self.tail.len() as u64
    }

    /// Bytes that are kept.
    fn kept_bytes(&self) -> usize {
        self.chunks.len() * CHUNK_BYTES + self.tail.len()
    }

    /// The spool, while it takes the body.
    fn open_spool(&self) -> Option<&Arc<dyn Spool>> {
        self.spool.as_ref().filter(|spool| spool.is_open())
    }

    /// Whether the response is being stored, as far as that is known.
    fn is_storing(&self) -> bool {
        self.window.is_none() || self.open_spool().is_some()
    }

    /// Drops the chunks that all have read, or can read from the spool. Returns how many more
    /// bytes may be appended.
    fn room(&mut self, window: usize) -> usize {
        let slowest = self.positions.iter().flatten().min();
        let slowest = slowest.copied().unwrap_or(u64::MAX);
        let spooled = self.spool.as_ref().and_then(|spool| spool.written());
        let spooled = spooled.map_or(0, |(_, len)| len);
        let read = match self.open_spool() {
            // Bytes that the spool has not written yet are kept for it.
            Some(_) => spooled,
            None => slowest.max(spooled),
        };
        let read = read / CHUNK_BYTES as u64;
        while (self.dropped as u64) < read && self.chunks.pop_front().is_some() {
            self.dropped += 1;
        }
        window.saturating_sub(self.kept_bytes())
    }

    fn append(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = CHUNK_BYTES - self.tail.len();
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.tail.extend_from_slice(now);
            rest = later;
            if self.tail.len() == CHUNK_BYTES {
                let full: Arc<[u8]> = std::mem::take(&mut self.tail).into();
                if let Some(spool) = self.open_spool() {
                    spool.push(full.clone());
                }
                self.chunks.push_back(full);
            }
        }
    }

    /// Whether one follower has read everything while another has not.
    fn has_laggards(&self) -> bool {
        let len = self.len();
        let mut positions = self.positions.iter().flatten();
        self.followers > 1 && positions.any(|position| *position == len)
    }

    /// The arrival of a body that has ended; an error if the body is incomplete.
    fn whole(&self) -> Result<Arc<Arrival>, NotStored> {
        let arrival = self.arrival.clone().ok_or(NotStored::Incomplete)?;
        match arrival.announced_len {
            Some(announced) if announced != self.len() => Err(NotStored::Incomplete),
            _ => Ok(arrival),
        }
    }

    /// The whole body, if all of it is kept.
    fn body(&self) -> Body<'_> {
        if self.chunks.is_empty() {
            return Body::Short(&self.tail);
        }
        let mut chunks: Vec<_> = self.chunks.iter().cloned().collect();
        if !self.tail.is_empty() {
            chunks.push(self.tail.as_slice().into());
        }
        Body::Long(Arc::new(LongBody::new(chunks)))
    }

    /// Adds a follower that reads from the beginning; returns its index.
    fn enter(&mut self) -> usize {
        self.followers += 1;
        self.positions.push(Some(0));
        self.positions.len() - 1
    }

    fn wait(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|it| it.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }
}

impl Incoming {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No change takes two steps of which one alone would leave a wrong state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the key was purged since the fetch began.
    fn is_purged(&self, store: &Memory) -> bool {
        let (purges, secret) = (store.purges(), store.secret());
        if self.seen == purges.count() {
            return false;
        }
        if !purges.knows(self.seen) {
            return true;
        }
        let arrival = self.lock().arrival.clone();
        match arrival.and_then(|it| self.object(&Body::Short(&[]), &it)) {
            Some(object) => purges.judge(secret, &object) == Fate::Gone,
            None => purges.may_concern(secret, &self.key, self.seen),
        }
    }

    /// The object to store.
    fn object(&self, body: &Body<'_>, arrival: &Arrival) -> Option<Object> {
        Object::new(
            &self.key,
            &arrival.head,
            body,
            &arrival.lifetime,
            arrival.received.arrived,
            self.seen,
        )
    }

    /// Changes the state, and wakes the waiting tasks after the lock is released.
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
    /// An empty table, for this store.
    pub fn new(store: Arc<Memory>) -> Arc<Self> {
        Arc::new(Fetches {
            store,
            tables: (0..TABLES).map(|_| Mutex::default()).collect(),
        })
    }

    /// Leads the fetch of this key, or follows the one in progress if it has fewer than `most`
    /// followers.
    pub fn join(self: &Arc<Self>, key: &Key, most: usize) -> Joined {
        let mut table = self.table(key);
        // A fetch from before a purge must not serve requests from after it.
        if let Some(incoming) = table.get(&key.hash).filter(|it| it.is_purged(&self.store)) {
            incoming.lock().is_outdated = true;
            table.remove(&key.hash);
        }
        if let Some(incoming) = table.get(&key.hash) {
            let incoming = incoming.clone();
            let mut state = incoming.lock();
            let is_closed = state.end.is_some() || !state.is_storing();
            if is_closed || state.followers >= most || incoming.key != *key {
                return Joined::Alone;
            }
            let index = state.enter();
            drop(state);
            return Joined::Follow(Follower {
                incoming,
                index,
                position: 0,
            });
        }
        let incoming = Arc::new(Incoming {
            key: key.clone(),
            seen: self.store.purge_count(),
            state: Mutex::new(State {
                positions: vec![None],
                ..State::default()
            }),
        });
        table.insert(key.hash, incoming.clone());
        Joined::Lead(Fetch {
            fetches: self.clone(),
            incoming,
            reserved_bytes: 0,
            given_up: None,
            is_listed: true,
        })
    }

    /// Leads the fetch of this key unless another one is in progress: one background validation
    /// is enough.
    pub fn lead(self: &Arc<Self>, key: &Key) -> Option<Fetch> {
        match self.join(key, 0) {
            Joined::Lead(fetch) => Some(fetch),
            Joined::Follow(_) | Joined::Alone => None,
        }
    }

    /// The store that the fetches fill.
    pub fn store(&self) -> &Memory {
        &self.store
    }

    /// Notes that this key was invalidated. A fetch in progress is not stored, and later
    /// requests do not join it.
    pub fn outdate(&self, key: &Key) {
        let outdated = self.table(key).remove(&key.hash);
        if let Some(incoming) = outdated {
            incoming.lock().is_outdated = true;
        }
    }

    /// Number of fetches in progress.
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

/// The owner of a fetch. Dropping it ends the fetch as failed.
#[derive(Debug)]
pub struct Fetch {
    fetches: Arc<Fetches>,
    incoming: Arc<Incoming>,
    /// Memory of the store that is reserved for the body so far.
    reserved_bytes: usize,
    /// Why the response is not stored, if that became known while it arrived.
    given_up: Option<NotStored>,
    is_listed: bool,
}

impl Fetch {
    /// The key being fetched.
    pub fn key(&self) -> &Key {
        &self.incoming.key
    }

    /// Adds the request that began the fetch as the first follower. To be called at most once.
    pub fn follow(&mut self) -> Follower {
        let mut state = self.incoming.lock();
        debug_assert_eq!(state.positions[FIRST], None, "there is one first one");
        state.positions[FIRST] = Some(0);
        state.followers += 1;
        drop(state);
        Follower {
            incoming: self.incoming.clone(),
            index: FIRST,
            position: 0,
        }
    }

    /// Number of followers.
    pub fn followers(&self) -> usize {
        self.incoming.lock().followers
    }

    /// Whether the head has arrived.
    pub fn has_arrived(&self) -> bool {
        self.incoming.lock().arrival.is_some()
    }

    /// Whether the response is being stored, as far as that is known.
    pub fn is_storing(&self) -> bool {
        self.incoming.lock().is_storing()
    }

    /// Whether this many more bytes would exceed the limit of memory.
    pub fn needs_spool(&self, more: u64) -> bool {
        self.reserved_bytes as u64 + more > self.fetches.store.longest_bytes() as u64
            && self.incoming.lock().window.is_none()
    }

    /// Stops storing the response, for this reason. Present followers still get it; followers
    /// that wait for the whole body stop waiting.
    pub fn give_up_storing(&mut self, reason: NotStored) {
        if !self.is_listed {
            return;
        }
        self.leave();
        self.given_up = Some(reason);
        self.incoming.change(|state| {
            let window = state.kept_bytes().max(PASSING_WINDOW);
            state.window.get_or_insert(window);
        });
    }

    /// Why the response is not stored, if that became known while it arrived.
    pub fn given_up(&self) -> Option<NotStored> {
        self.given_up
    }

    /// Whether the body goes to a spool.
    pub fn is_spooling(&self) -> bool {
        self.incoming.lock().open_spool().is_some()
    }

    /// Sends the body to a spool, including the bytes that have already arrived.
    pub fn spool(&mut self, spool: Arc<dyn Spool>) {
        let wanted = SPOOL_WINDOW.min(self.fetches.store.longest_bytes());
        let more = wanted.saturating_sub(self.reserved_bytes);
        if self.fetches.store.reserve(more) {
            self.reserved_bytes += more;
        }
        let mut state = self.incoming.lock();
        for chunk in &state.chunks {
            spool.push(chunk.clone());
        }
        state.window = Some(self.reserved_bytes.max(PASSING_WINDOW));
        state.spool = Some(spool);
    }

    /// The count of purges when the fetch began.
    pub fn seen(&self) -> u64 {
        self.incoming.seen
    }

    /// Ready when nobody follows. Ask it if the fetch serves only its followers.
    pub fn poll_abandoned(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.incoming.lock();
        if state.followers == 0 {
            return Poll::Ready(());
        }
        state.wait(waker);
        Poll::Pending
    }

    /// The head has arrived and may be stored: followers get it.
    pub fn arrive(&mut self, arrival: Arrival) {
        let arrival = Arc::new(arrival);
        self.incoming.change(|state| state.arrival = Some(arrival));
    }

    /// The head has arrived, and the response must not be shared. Only the first follower gets
    /// it; the others fetch on their own, at once.
    pub fn pass(&mut self, arrival: Arrival, reason: NotStored) {
        let arrival = Arc::new(arrival);
        self.leave();
        self.incoming.change(|state| {
            state.arrival = Some(arrival);
            state.passing = Some(reason);
            state.window = Some(PASSING_WINDOW);
        });
    }

    /// Ends the fetch without a response for its followers.
    pub fn release(mut self, released: Released) {
        self.end(released);
    }

    /// Appends the beginning of `bytes` to the body; returns how many bytes it took. Pending
    /// while the spool or the followers are too far behind.
    ///
    /// A body longer than the store or the spool takes, or longer than `most` bytes, is not
    /// stored: its followers get the rest of it, and nobody joins them.
    pub fn poll_append(&mut self, bytes: &[u8], most: u64, waker: &Waker) -> Poll<usize> {
        let mut state = self.incoming.lock();
        let longest = self.fetches.store.longest_bytes();
        let whole = state.len() + bytes.len() as u64;
        let fits = whole <= most && self.reserved_bytes + bytes.len() <= longest;
        if state.window.is_none() && fits {
            drop(state);
            if self.fetches.store.reserve(bytes.len()) {
                self.reserved_bytes += bytes.len();
                self.incoming.change(|state| state.append(bytes));
                return Poll::Ready(bytes.len());
            }
            self.give_up_storing(NotStored::NoRoom);
            state = self.incoming.lock();
        }
        if whole > most
            && let Some(spool) = &state.spool
        {
            spool.give_up();
        }
        let is_storing = state.open_spool().is_some();
        if !is_storing {
            // The lock of the table comes first.
            drop(state);
            self.give_up_storing(NotStored::TooLarge);
            state = self.incoming.lock();
        }
        let window = state.window.unwrap_or(PASSING_WINDOW);
        let mut room = state.room(window);
        if room == 0 {
            state.wait(waker);
            if let Some(spool) = state.open_spool() {
                spool.wait(waker);
                // The spool may have written more before it had the waker.
                room = state.room(window);
            }
        }
        if room == 0 && state.open_spool().is_none() && state.has_laggards() {
            // Slow followers hold up the others only if memory is full.
            if self.fetches.store.reserve(LAG_BYTES) {
                self.reserved_bytes += LAG_BYTES;
                state.window = Some(window + LAG_BYTES);
                room = LAG_BYTES;
            }
        }
        if room == 0 {
            return Poll::Pending;
        }
        let len = room.min(bytes.len());
        drop(state);
        self.incoming.change(|state| state.append(&bytes[..len]));
        Poll::Ready(len)
    }

    /// Ends a body that is complete: stores it, and hands it to the followers. `keep` can store
    /// it elsewhere too.
    ///
    /// # Errors
    ///
    /// Why it is not stored. Followers still have it, unless it was cut off. After
    /// [`NotStored::Outdated`] it may already be stored, and must be removed.
    pub fn finish(mut self, keep: impl FnOnce(&Object)) -> Result<(), NotStored> {
        let object = {
            let state = self.incoming.lock();
            let arrival = state.whole()?;
            match (state.passing, state.window) {
                (Some(reason), _) => Err(reason),
                _ if state.is_outdated => Err(NotStored::Outdated),
                (None, Some(_)) => Err(self.given_up.unwrap_or(NotStored::TooLarge)),
                (None, None) => {
                    let object = self.incoming.object(&state.body(), &arrival);
                    object.ok_or(NotStored::TooLarge)
                }
            }
        };
        self.release_room();
        // The object must be in the store before the fetch leaves the table.
        let stored = object.and_then(|object| {
            let key = &self.incoming.key;
            let store = &self.fetches.store;
            if store.insert(key, object.clone()) {
                keep(&object);
                self.incoming.lock().stored = Some(object);
                Ok(())
            } else if object.cost() > store.longest_bytes() {
                Err(NotStored::TooLarge)
            } else {
                // The key was purged meanwhile.
                Err(NotStored::Outdated)
            }
        });
        self.settle()?;
        stored
    }

    /// Ends a body that is complete and in a spool, for all followers. The object has no body.
    ///
    /// # Errors
    ///
    /// Why it is not stored.
    pub fn finish_spooled(self) -> Result<Spooled, NotStored> {
        let (object, spool, body_len) = {
            let mut state = self.incoming.lock();
            let arrival = state.whole()?;
            let spool = state.open_spool().cloned().ok_or(NotStored::TooLarge)?;
            if state.is_outdated {
                return Err(NotStored::Outdated);
            }
            if !state.tail.is_empty() {
                spool.push(state.tail.as_slice().into());
            }
            let object = self.incoming.object(&Body::Short(&[]), &arrival);
            state.is_whole = true;
            (object.ok_or(NotStored::TooLarge)?, spool, state.len())
        };
        self.incoming.change(|_| ());
        Ok(Spooled {
            object,
            spool,
            body_len,
            fetch: self,
        })
    }

    /// Ends the fetch after its response has arrived and, where possible, been stored.
    ///
    /// # Errors
    /// The key was invalidated meanwhile.
    fn settle(mut self) -> Result<(), NotStored> {
        // From here on, an invalidation finds the stored object.
        self.leave();
        let is_outdated = self.incoming.change(|state| {
            state.end = Some(End::Whole);
            state.is_outdated
        });
        if is_outdated {
            return Err(NotStored::Outdated);
        }
        Ok(())
    }

    fn end(&mut self, released: Released) {
        self.leave();
        self.incoming.change(|state| {
            state.end.get_or_insert(End::Released(released));
        });
        self.release_room();
    }

    /// Removes the fetch from the table, so that another one may lead.
    fn leave(&mut self) {
        if std::mem::take(&mut self.is_listed) {
            let mut table = self.fetches.table(&self.incoming.key);
            let hash = self.incoming.key.hash;
            // Another fetch may have taken its place.
            if table
                .get(&hash)
                .is_some_and(|it| Arc::ptr_eq(it, &self.incoming))
            {
                table.remove(&hash);
            }
        }
    }

    fn release_room(&mut self) {
        let bytes = std::mem::take(&mut self.reserved_bytes);
        self.fetches.store.release(bytes);
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.end(Released::Failed(None));
        let spool = self.incoming.lock().open_spool().cloned();
        if let Some(spool) = spool {
            spool.give_up();
        }
    }
}

/// A complete response whose body lies in a spool and is yet to be stored. Until it is, new
/// requests follow it. Dropping it discards the response.
#[derive(Debug)]
pub struct Spooled {
    /// The response, without its body.
    pub object: Object,
    /// The spool of the body. It has the whole body once it has written everything it was
    /// given.
    pub spool: Arc<dyn Spool>,
    /// Length of the body in bytes.
    pub body_len: u64,
    fetch: Fetch,
}

impl Spooled {
    /// The key of the response.
    pub fn key(&self) -> &Key {
        self.fetch.key()
    }

    /// Notes that it is stored, and can be found.
    ///
    /// # Errors
    /// The key was invalidated meanwhile: the stored response must be removed.
    pub fn stored(self) -> Result<(), NotStored> {
        self.fetch.settle()
    }
}

/// Index of the first follower.
const FIRST: usize = 0;

/// Bytes kept of a response that is not stored.
const PASSING_WINDOW: usize = 2 * CHUNK_BYTES;

/// Bytes by which the window grows for slow followers.
const LAG_BYTES: usize = 4 * CHUNK_BYTES;

/// Bytes that may wait to be written to a spool, if memory has room for them.
const SPOOL_WINDOW: usize = 64 * CHUNK_BYTES;

/// Most bytes of a spool that a follower reads at once.
const SPOOLED_BYTES: u64 = 1 << 20;

/// A request that gets the response of another request's fetch.
#[derive(Debug)]
pub struct Follower {
    incoming: Arc<Incoming>,
    index: usize,
    position: u64,
}

impl Follower {
    /// Why the response is not stored, if only the first follower gets it.
    pub fn passing(&self) -> Option<NotStored> {
        self.incoming.lock().passing
    }

    /// The head, once it has arrived. Whether it answers the follower's own request, the caller
    /// asks [`StoredHead::answers`].
    ///
    /// # Errors
    ///
    /// Why there is no head.
    pub fn poll_head(&self, waker: &Waker) -> Poll<Result<Arc<Arrival>, Released>> {
        let mut state = self.incoming.lock();
        if let Some(End::Released(released)) = &state.end {
            return Poll::Ready(Err(released.clone()));
        }
        if let Some(reason) = state.passing.filter(|_| self.index != FIRST) {
            return Poll::Ready(Err(Released::NotStored(reason)));
        }
        if let Some(arrival) = &state.arrival {
            return Poll::Ready(Ok(arrival.clone()));
        }
        state.wait(waker);
        Poll::Pending
    }

    /// The file for [`Read::Spooled`].
    pub fn file(&self) -> Option<Arc<File>> {
        let state = self.incoming.lock();
        let (file, _) = state.spool.as_ref()?.written()?;
        Some(file)
    }

    /// Whether the whole response has arrived and is stored, once that is known.
    pub fn poll_end(&self, waker: &Waker) -> Poll<bool> {
        let mut state = self.incoming.lock();
        match &state.end {
            Some(end) => Poll::Ready(matches!(end, End::Whole)),
            None if !state.is_storing() => Poll::Ready(false),
            None => {
                state.wait(waker);
                Poll::Pending
            }
        }
    }

    /// Appends the bytes of the body since the last call, at most `most`.
    pub fn poll_read(&mut self, out: &mut Vec<u8>, most: usize, waker: &Waker) -> Poll<Read> {
        let mut state = self.incoming.lock();
        let len = state.len();
        let from = self.position;
        let kept_from = state.dropped as u64 * CHUNK_BYTES as u64;
        if from < kept_from {
            let len = (kept_from - from).min(SPOOLED_BYTES);
            self.position += len;
            state.positions[self.index] = Some(self.position);
            return Poll::Ready(Read::Spooled { from, len });
        }
        if from < len {
            let index = (self.position / CHUNK_BYTES as u64) as usize - state.dropped;
            let start = (self.position % CHUNK_BYTES as u64) as usize;
            let piece = match state.chunks.get(index) {
                Some(chunk) => &chunk[start..],
                None => &state.tail[start..],
            };
            let piece = &piece[..piece.len().min(most)];
            out.extend_from_slice(piece);
            let len = piece.len();
            self.position += len as u64;
            state.positions[self.index] = Some(self.position);
            let is_awaited = state.window.is_some();
            drop(state);
            if is_awaited {
                self.incoming.change(|_| ());
            }
            return Poll::Ready(Read::Bytes(len));
        }
        match state.end {
            _ if state.is_whole => Poll::Ready(Read::End),
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
        // The fetch may wait for its last follower to leave, or for its slowest.
        self.incoming.change(|state| {
            state.followers -= 1;
            state.positions[self.index] = None;
        });
    }
}

#[cfg(test)]
pub(crate) mod tests;
