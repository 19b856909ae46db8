//! The store in memory, shared by all workers: bounded by bytes, and resistant to
//! scans.
//!
//! Objects are spread over shards by the hash of their key. A shard is a table and the queues
//! of S3-FIFO (`shard`) behind one lock. The lock is held for a lookup, or while one object is
//! inserted or removed. The bound is the store's, not the shard's, so that an object may be
//! longer than a shard's part. Evictions come from shards with at least the mean number of
//! objects.
//!
//! Invariant: no call does more than a bounded number of steps. Purged and evicted objects are
//! dropped one by one, with each object stored next or by [`Memory::sweep`].

mod ghost;
mod shard;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::key::{Key, Secret};
use crate::message::Request;
use crate::object::{CHUNK_BYTES, Object};
use crate::purge::{Fate, Purge, Purges, Strength};
use shard::Shard;

/// Most objects of one key, with different selecting fields ([`crate::vary`]). Beyond it the
/// oldest is dropped.
pub const MAX_VARIANTS: usize = 32;

/// Most objects that are evicted for one that comes.
const MAX_EVICTED: usize = 1024;

/// Bytes of the store for each of its shards, about. In smaller ones long objects take all
/// of a small queue: with shards of 1 MiB one request in a hundred more misses
/// (`make hit-ratios`).
const BYTES_A_SHARD: usize = 16 << 20;

/// A store in memory.
#[derive(Debug)]
pub struct Memory {
    secret: Secret,
    shards: Box<[Mutex<Shard>]>,
    capacity_bytes: usize,
    objects: AtomicUsize,
    /// Of objects that are stored.
    stored_bytes: AtomicUsize,
    /// Of bodies that still arrive.
    reserved_bytes: AtomicUsize,
    /// Long objects that have left their shards, and are being sent still: their memory
    /// counts until that is over.
    held: Mutex<Vec<Object>>,
    /// Of these.
    held_bytes: AtomicUsize,
    /// The shard that is looked at next for an object that goes.
    hand: AtomicUsize,
    evicted: AtomicU64,
    purges: Arc<Purges>,
    sweep: Mutex<Sweep>,
}

/// How far a sweep has come.
#[derive(Debug, Default)]
struct Sweep {
    shard: usize,
    slot: usize,
    /// Count of purges when it began.
    began: u64,
}

/// The contents of a store in figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Number of objects, including purged ones that nobody has asked for since.
    pub objects: u64,
    /// Bytes that they take in memory.
    pub bytes: u64,
    /// Bytes that they may take.
    pub capacity_bytes: u64,
    /// Objects that went to make room, so far.
    pub evicted: u64,
}

impl Memory {
    /// An empty store of this capacity. `secret` is random: with it, anyone could make keys
    /// that collide.
    pub fn new(capacity_bytes: usize, secret: Secret) -> Self {
        Memory::with_purges(capacity_bytes, secret, Arc::default())
    }

    /// An empty store beside one on a disk, whose secret and purges it shares.
    pub fn with_purges(capacity_bytes: usize, secret: Secret, purges: Arc<Purges>) -> Self {
        let shards = (capacity_bytes / BYTES_A_SHARD).next_power_of_two();
        let shards = shards.clamp(16, 512);
        let small_bytes = capacity_bytes / shards / 10;
        Memory {
            secret,
            shards: (0..shards)
                .map(|_| Mutex::new(Shard::new(small_bytes)))
                .collect(),
            capacity_bytes,
            objects: AtomicUsize::new(0),
            stored_bytes: AtomicUsize::new(0),
            reserved_bytes: AtomicUsize::new(0),
            held: Mutex::default(),
            held_bytes: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            purges,
            sweep: Mutex::default(),
        }
    }

    /// The purges of this store.
    pub fn purges(&self) -> &Purges {
        &self.purges
    }

    /// The secret for hashes of keys.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The count of purges, which an object is made with that is asked for now.
    pub fn purge_count(&self) -> u64 {
        self.purges.count()
    }

    /// Bytes of the longest object that is stored: an eighth of the store.
    pub fn longest_bytes(&self) -> usize {
        self.capacity_bytes / 8
    }

    /// The newest object that answers a request, however old it is.
    pub fn find(&self, key: &Key, request: &Request<'_>) -> Option<Object> {
        // Each turn drops one that was purged.
        for _ in 0..=MAX_VARIANTS {
            let found = self.shard(key).find(key, request)?;
            match self.purges.judge(&self.secret, &found) {
                Fate::Alive => {
                    found.warm();
                    return Some(found);
                }
                Fate::Gone => self.drop_one(key, &found),
            }
        }
        None
    }

    /// All objects of a key, the newest first, for a validation (RFC 9111 §4.3.1).
    pub fn variants(&self, key: &Key) -> Vec<Object> {
        let mut found = self.shard(key).variants(key);
        found.retain(|it| self.purges.judge(&self.secret, it) == Fate::Alive);
        found.sort_by_key(|it| std::cmp::Reverse(it.born()));
        found
    }

    /// Stores an object; it replaces one with the same selecting fields.
    ///
    /// Returns whether it was stored: not if it was purged since it was requested, or if it is
    /// too long.
    pub fn insert(&self, key: &Key, object: Object) -> bool {
        let cost = object.cost();
        let is_known = self.purges.knows(object.seen());
        if !is_known
            || cost > self.longest_bytes()
            || self.purges.judge(&self.secret, &object) == Fate::Gone
        {
            return false;
        }
        self.stored_bytes.fetch_add(cost, Relaxed);
        self.objects.fetch_add(1, Relaxed);
        let gone = self.shard(key).insert(key, object);
        self.give_back(gone);
        self.make_room(self.shard_of(key));
        true
    }

    /// Drops an object if it is still at its place.
    pub fn drop_one(&self, key: &Key, object: &Object) {
        let gone = self.shard(key).remove_one(key, object);
        self.give_back(gone);
    }

    /// Drops all objects of a key; says how many.
    pub fn remove(&self, key: &Key) -> usize {
        let gone = self.shard(key).remove(key);
        let count = gone.len();
        for object in gone {
            self.give_back(Some(object));
        }
        count
    }

    /// Purges the stored objects and those being fetched, in constant time.
    pub fn purge(&self, what: Purge<'_>, strength: Strength) {
        self.purges.purge(&self.secret, what, strength);
    }

    /// Looks for purged objects at this many places, and drops them. Called now and then, it
    /// frees purged objects, the marks of purges, and evicted objects that have been sent.
    pub fn sweep(&self, places: usize) {
        self.release_held();
        let mut sweep = lock(&self.sweep);
        for _ in 0..places {
            let shard = &self.shards[sweep.shard];
            let seen = lock(shard).at(sweep.slot);
            match seen {
                shard::Place::End => {
                    sweep.shard += 1;
                    sweep.slot = 0;
                    if sweep.shard == self.shards.len() {
                        self.purges.forget(sweep.began);
                        *sweep = Sweep {
                            began: self.purges.count(),
                            ..Sweep::default()
                        };
                        return;
                    }
                }
                shard::Place::Empty => sweep.slot += 1,
                shard::Place::Taken(object) => {
                    if self.purges.judge(&self.secret, &object) == Fate::Gone {
                        let gone = lock(shard).remove_at(sweep.slot, &object);
                        self.give_back(gone);
                    }
                    sweep.slot += 1;
                }
            }
        }
    }

    /// The contents of the store in figures.
    pub fn figures(&self) -> Figures {
        Figures {
            objects: self.objects.load(Relaxed) as u64,
            bytes: self.used_bytes() as u64,
            capacity_bytes: self.capacity_bytes as u64,
            evicted: self.evicted.load(Relaxed),
        }
    }

    /// Reserves bytes that are used elsewhere on behalf of the store, and makes room for them.
    ///
    /// An example is a body that is still arriving. False if such bytes, together with evicted
    /// objects still being sent, take half of the store.
    #[must_use]
    pub(crate) fn reserve(&self, bytes: usize) -> bool {
        let most = (self.capacity_bytes / 2).saturating_sub(self.held_bytes.load(Relaxed));
        let add = |reserved: usize| Some(reserved + bytes).filter(|it| *it <= most);
        let is_reserved = self
            .reserved_bytes
            .fetch_update(Relaxed, Relaxed, add)
            .is_ok();
        if is_reserved {
            self.make_room(self.hand.fetch_add(1, Relaxed));
        }
        is_reserved
    }

    /// Releases bytes taken by [`reserve`](Self::reserve).
    pub(crate) fn release(&self, bytes: usize) {
        self.reserved_bytes.fetch_sub(bytes, Relaxed);
    }

    fn used_bytes(&self) -> usize {
        self.stored_bytes.load(Relaxed) + self.reserved_bytes.load(Relaxed)
    }

    fn shard_of(&self, key: &Key) -> usize {
        key.hash as usize & (self.shards.len() - 1)
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        lock(&self.shards[self.shard_of(key)])
    }

    /// An object has left its shard.
    fn give_back(&self, gone: Option<Object>) {
        let Some(object) = gone else {
            return;
        };
        self.objects.fetch_sub(1, Relaxed);
        if object.cost() >= CHUNK_BYTES && object.is_held() {
            self.held_bytes.fetch_add(object.cost(), Relaxed);
            lock(&self.held).push(object);
        } else {
            self.stored_bytes.fetch_sub(object.cost(), Relaxed);
        }
    }

    /// Reclaims the memory of evicted objects that are no longer being sent.
    fn release_held(&self) {
        lock(&self.held).retain(|object| {
            let is_held = object.is_held();
            if !is_held {
                self.held_bytes.fetch_sub(object.cost(), Relaxed);
                self.stored_bytes.fetch_sub(object.cost(), Relaxed);
            }
            is_held
        });
    }

    /// Evicts until the rest fits: one object from the shard that has just received one, then
    /// from the shards in turn.
    ///
    /// It evicts only from shards with at least the mean number of objects. Otherwise the
    /// shards would drift apart, and a shard that is nearly empty would lose its hottest
    /// objects. It does not go by bytes: a long object would displace everything else in its
    /// shard, and then itself.
    fn make_room(&self, first: usize) {
        let count = self.shards.len();
        let mut at = first & (count - 1);
        let mut passed = 0;
        for _ in 0..MAX_EVICTED {
            if self.used_bytes() <= self.capacity_bytes || passed > count {
                return;
            }
            let mean = self.objects.load(Relaxed) / count;
            let is_gone = |object: &Object| self.purges.judge(&self.secret, object) == Fate::Gone;
            let gone = {
                let mut shard = lock(&self.shards[at]);
                if shard.len() >= mean {
                    shard.evict(is_gone)
                } else {
                    None
                }
            };
            if gone.is_some() {
                self.evicted.fetch_add(1, Relaxed);
                passed = 0;
            } else {
                passed += 1;
            }
            at = self.hand.fetch_add(1, Relaxed) & (count - 1);
            self.give_back(gone);
        }
    }
}

/// Locks a mutex, even a poisoned one: its values are complete, because within a shard only an
/// allocation can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
