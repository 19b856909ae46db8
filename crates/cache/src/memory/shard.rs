//! One part of the store: a table of objects, and the queues that choose the next eviction.
//!
//! The algorithm is S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction",
//! SOSP '23).
//!
//! ```text
//!   new ──▶ small ──asked for twice──▶ main ──▶ gone
//!             │                        ▲  └─asked for─┘
//!             └─▶ gone, remembered ────┘ asked for again
//! ```
//!
//! An object asked for only once leaves the small queue, a tenth of the store, without
//! displacing anything from the main one. While the store fills up for the first time, objects
//! that do not fit in the small queue go to the main one.

use hashbrown::HashTable;

use super::MAX_VARIANTS;
use super::ghost::Ghost;
use crate::key::Key;
use crate::message::Request;
use crate::object::Object;
use crate::vary;

/// Most objects that move within the queues for one that goes.
const MAX_MOVED: usize = 64;

/// How often an object has to be asked for to get to the main queue.
const WARM: u8 = 2;

#[derive(Debug)]
pub(super) struct Shard {
    /// Indices of slots, by the hash of the key.
    table: HashTable<u32>,
    slots: Vec<Slot>,
    /// The first of the empty slots, which are a chain.
    vacant: u32,
    small: Queue,
    main: Queue,
    /// Bytes that the small queue may have before objects leave it.
    small_bytes: usize,
    ghost: Ghost,
}

/// A place for an object. Empty places are chained by `next`.
#[derive(Debug)]
struct Slot {
    object: Option<Object>,
    hash: u32,
    /// Towards the newest.
    prev: u32,
    /// Towards the oldest.
    next: u32,
    is_main: bool,
}

/// A chain of slots, from the newest to the oldest.
#[derive(Debug)]
struct Queue {
    newest: u32,
    oldest: u32,
    bytes: usize,
    count: usize,
}

const NONE: u32 = u32::MAX;

impl Queue {
    const EMPTY: Queue = Queue {
        newest: NONE,
        oldest: NONE,
        bytes: 0,
        count: 0,
    };
}

/// The content of a place.
#[derive(Debug)]
pub(super) enum Place {
    /// An object.
    Taken(Object),
    /// None.
    Empty,
    /// The place is beyond the last one.
    End,
}

impl Shard {
    pub fn new(small_bytes: usize) -> Self {
        Shard {
            table: HashTable::new(),
            slots: Vec::new(),
            vacant: NONE,
            small: Queue::EMPTY,
            main: Queue::EMPTY,
            small_bytes,
            ghost: Ghost::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// The newest object of the key that answers the request.
    pub fn find(&self, key: &Key, request: &Request<'_>) -> Option<Object> {
        let objects = self.of_key(key).map(|(_, object)| object);
        let answering = objects.filter(|object| vary::selects(object.selector(), request));
        answering.max_by_key(|object| object.born()).cloned()
    }

    /// All objects of the key.
    pub fn variants(&self, key: &Key) -> Vec<Object> {
        self.of_key(key).map(|(_, object)| object.clone()).collect()
    }

    pub fn of_key(&self, key: &Key) -> impl Iterator<Item = (u32, &Object)> {
        let hash = slot_hash(key);
        self.table
            .iter_hash(spread(hash))
            .filter_map(move |&index| {
                let slot = &self.slots[index as usize];
                let object = slot.object.as_ref()?;
                let is_of_key = slot.hash == hash && object.key() == &*key.bytes;
                is_of_key.then_some((index, object))
            })
    }

    /// Stores an object; returns the object that it replaces.
    pub fn insert(&mut self, key: &Key, object: Object) -> Option<Object> {
        let mut variants = 0;
        let mut same = None;
        let mut oldest = None;
        for (index, stored) in self.of_key(key) {
            variants += 1;
            if stored.selector() == object.selector() {
                same = Some(index);
            }
            if oldest.is_none_or(|(born, _)| stored.born() < born) {
                oldest = Some((stored.born(), index));
            }
        }
        if let Some(index) = same {
            return Some(self.replace(index, object));
        }
        let gone = match oldest {
            Some((_, index)) if variants >= MAX_VARIANTS => Some(self.take(index)),
            _ => None,
        };
        let hash = slot_hash(key);
        let is_main = self.ghost.take(hash) || self.begins_main();
        let index = self.vacant_slot();
        let cost = object.cost();
        self.slots[index as usize] = Slot {
            object: Some(object),
            hash,
            prev: NONE,
            next: NONE,
            is_main,
        };
        self.link(index, is_main, cost);
        let slots = &self.slots;
        self.table.insert_unique(spread(hash), index, |&index| {
            spread(slots[index as usize].hash)
        });
        gone
    }

    /// Whether new objects go to the main queue: nothing was evicted yet, and the small queue
    /// has its part. Otherwise a store that fills up would be all in the small queue, and the
    /// first evictions would leave a tenth of it.
    fn begins_main(&self) -> bool {
        self.ghost.is_unused() && self.small.bytes >= self.small_bytes
    }

    /// Puts an object in the place of another, which is given back.
    fn replace(&mut self, index: u32, object: Object) -> Object {
        let slot = &mut self.slots[index as usize];
        let queue = if slot.is_main {
            &mut self.main
        } else {
            &mut self.small
        };
        let cost = object.cost();
        let before = slot.object.replace(object);
        let before = before.expect("a slot in the table has an object");
        if let Some(object) = &slot.object {
            object.set_heat(before.heat());
        }
        queue.bytes = queue.bytes + cost - before.cost();
        before
    }

    /// Takes an object out, if it is still this very one.
    pub fn remove_one(&mut self, key: &Key, object: &Object) -> Option<Object> {
        let mut objects = self.of_key(key);
        let (index, _) = objects.find(|(_, stored)| is_same(stored, object))?;
        drop(objects);
        Some(self.take(index))
    }

    /// Takes all objects of a key out.
    pub fn remove(&mut self, key: &Key) -> Vec<Object> {
        let found: Vec<u32> = self.of_key(key).map(|(index, _)| index).collect();
        found.into_iter().map(|index| self.take(index)).collect()
    }

    /// The content of a place.
    pub fn at(&self, place: usize) -> Place {
        match self.slots.get(place).map(|slot| &slot.object) {
            Some(Some(object)) => Place::Taken(object.clone()),
            Some(None) => Place::Empty,
            None => Place::End,
        }
    }

    /// Takes an object out of its place, if it is still there.
    pub fn remove_at(&mut self, place: usize, object: &Object) -> Option<Object> {
        let stored = self.slots.get(place)?.object.as_ref()?;
        is_same(stored, object).then(|| self.take(place as u32))
    }

    /// Takes the object out that goes next; `is_gone` says of one whether it was
    /// purged.
    pub fn evict(&mut self, is_gone: impl Fn(&Object) -> bool) -> Option<Object> {
        for moved in 0.. {
            let is_small_full = self.small.bytes >= self.small_bytes || self.main.count == 0;
            let from_small = self.small.count > 0 && is_small_full;
            let index = if from_small {
                self.small.oldest
            } else {
                self.main.oldest
            };
            let slot = self.slots.get(index as usize)?;
            let object = slot.object.as_ref()?;
            let heat = object.heat();
            let is_cold = if from_small { heat < WARM } else { heat == 0 };
            if is_cold || moved == MAX_MOVED || is_gone(object) {
                if from_small {
                    self.ghost.add(slot.hash, self.table.len());
                }
                return Some(self.take(index));
            }
            object.set_heat(if from_small { 0 } else { heat - 1 });
            let cost = object.cost();
            self.unlink(index, cost);
            self.link(index, true, cost);
        }
        None
    }

    /// Takes the object out of a slot that has one.
    fn take(&mut self, index: u32) -> Object {
        let slot = &mut self.slots[index as usize];
        let object = slot.object.take().expect("the slot has an object");
        let hash = slot.hash;
        self.unlink(index, object.cost());
        if let Ok(entry) = self.table.find_entry(spread(hash), |&it| it == index) {
            entry.remove();
        }
        self.slots[index as usize].next = self.vacant;
        self.vacant = index;
        object
    }

    /// A slot that is empty and in no chain.
    fn vacant_slot(&mut self) -> u32 {
        let index = self.vacant;
        if let Some(slot) = self.slots.get(index as usize) {
            self.vacant = slot.next;
            return index;
        }
        self.slots.push(Slot {
            object: None,
            hash: 0,
            prev: NONE,
            next: NONE,
            is_main: false,
        });
        self.slots.len() as u32 - 1
    }

    /// Makes a slot the newest of a queue.
    fn link(&mut self, index: u32, is_main: bool, cost: usize) {
        let queue = if is_main {
            &mut self.main
        } else {
            &mut self.small
        };
        let second = std::mem::replace(&mut queue.newest, index);
        if second == NONE {
            queue.oldest = index;
        } else {
            self.slots[second as usize].prev = index;
        }
        queue.bytes += cost;
        queue.count += 1;
        let slot = &mut self.slots[index as usize];
        (slot.prev, slot.next, slot.is_main) = (NONE, second, is_main);
    }

    /// Takes a slot out of its queue.
    fn unlink(&mut self, index: u32, cost: usize) {
        let Slot {
            prev,
            next,
            is_main,
            ..
        } = self.slots[index as usize];
        let queue = if is_main {
            &mut self.main
        } else {
            &mut self.small
        };
        if prev == NONE {
            queue.newest = next;
        } else {
            self.slots[prev as usize].next = next;
        }
        if next == NONE {
            queue.oldest = prev;
        } else {
            self.slots[next as usize].prev = prev;
        }
        queue.bytes -= cost;
        queue.count -= 1;
    }
}

/// Whether two are the same one, and not merely alike.
fn is_same(one: &Object, other: &Object) -> bool {
    std::ptr::eq(one.key().as_ptr(), other.key().as_ptr())
}

/// The part of a key's hash that its slot keeps. The other end chose the shard.
fn slot_hash(key: &Key) -> u32 {
    (key.hash >> 96) as u32
}

/// For the table, which looks at both ends of a number.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
impl Shard {
    /// Whether a slot is in the main queue.
    pub fn is_main(&self, index: u32) -> bool {
        self.slots[index as usize].is_main
    }

    /// Checks that table, slots and queues agree; returns the bytes of all objects.
    pub fn check(&self) -> usize {
        let mut total = 0;
        let mut count = 0;
        for (queue, is_main) in [(&self.small, false), (&self.main, true)] {
            let (mut bytes, mut items, mut at, mut prev) = (0, 0, queue.newest, NONE);
            while at != NONE {
                let slot = &self.slots[at as usize];
                assert_eq!((slot.prev, slot.is_main), (prev, is_main));
                let object = slot.object.as_ref().unwrap();
                let found = self.table.find(spread(slot.hash), |&it| it == at);
                assert!(found.is_some());
                bytes += object.cost();
                items += 1;
                (prev, at) = (at, slot.next);
            }
            assert_eq!(
                (queue.oldest, queue.bytes, queue.count),
                (prev, bytes, items)
            );
            total += bytes;
            count += items;
        }
        let mut vacant = 0;
        let mut at = self.vacant;
        while at != NONE {
            assert!(self.slots[at as usize].object.is_none());
            vacant += 1;
            at = self.slots[at as usize].next;
        }
        assert_eq!(self.table.len(), count);
        assert_eq!(self.slots.len(), count + vacant);
        total
    }
}
