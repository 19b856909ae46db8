//! The places of all records: 12 bytes a record, in many small tables.
//!
//! Each table has its own lock, which is held for one lookup or one change. A table is small,
//! so that it grows in well under a millisecond. Workers look up and remove; one thread adds
//! and reclaims. An entry has 32 bits of the hash, besides the bits that choose the table: the
//! reader of the record compares its key.
//!
//! A response with `Vary` is stored under the hash of its key and its selector. A second entry,
//! under the key's hash, has the numbers of the sets of names in `Vary` that responses of this
//! key use. A lookup tries each of these sets, without a read from the disk.
//!
//! Removing a key leaves a floor: earlier records of the key are no longer found.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

use crate::disk::names::{NameSets, SetId};
use crate::disk::{Hashes, Position, Size, UNIT};
use crate::key::{Key, Secret};
use crate::message::Request;

/// Bytes of a store for each table, about.
const BYTES_A_TABLE: u64 = 1 << 20;

/// Most sets of names of one key. Of more the oldest goes: its responses are not found.
const MAX_KEY_SETS: usize = 4;

/// Place of a record on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its hashes.
    pub hashes: Hashes,
    /// Position of its frame.
    pub position: Position,
    /// How much to read.
    pub size: Size,
    /// Whether its whole record was compared with its sums since the start.
    pub is_verified: bool,
}

/// A record that may answer a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its place.
    pub place: Place,
    /// The selector that it must have.
    pub selector: Vec<u8>,
}

/// Records that may answer a request, the newest first. Nearly always the first one does.
pub type Candidates = arrayvec::ArrayVec<Candidate, { MAX_KEY_SETS + 1 }>;

/// The index of a store.
#[derive(Debug)]
pub struct Index {
    tables: Box<[Mutex<Table>]>,
    names: NameSets,
    /// The newest segment: entries have 16 bits of the number of theirs.
    newest: AtomicU32,
    /// Whether records may be found that are not there yet.
    is_loading: AtomicBool,
    records: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashTable<Entry>,
    /// Positions before which keys have no record, by the hash of the key.
    floors: HashMap<u64, Position>,
}

/// A part of the hash and a value: `[hash, low, high]`.
#[derive(Debug, Clone, Copy)]
struct Entry([u32; 3]);

/// The value of an entry.
///
/// | bits | of a record | of a key with `Vary` |
/// |---|---|---|
/// | 0..16 | segment | newest segment with a record |
/// | 16..44 | place in units | 16..48: sets of names, the newest first |
/// | 44..52 | size | |
/// | 52, 53 | asked for, verified | |
/// | 63 | 0 | 1 |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Value(u64);

const ASKED: u64 = 1 << 52;
const VERIFIED: u64 = 1 << 53;
const VARIES: u64 = 1 << 63;

impl Value {
    fn record(position: Position, size: Size, is_verified: bool) -> Self {
        let verified = if is_verified { VERIFIED } else { 0 };
        let units = (position.offset / UNIT) & ((1 << 28) - 1);
        Value(u64::from(position.segment as u16) | units << 16 | u64::from(size.0) << 44 | verified)
    }

    fn varies(self) -> bool {
        self.0 & VARIES != 0
    }

    fn segment_part(self) -> u16 {
        self.0 as u16
    }

    fn place(self, hashes: Hashes, newest: u32) -> Place {
        Place {
            hashes,
            position: Position {
                segment: segment_of(self.segment_part(), newest),
                offset: (self.0 >> 16 & ((1 << 28) - 1)) * UNIT,
            },
            size: Size((self.0 >> 44) as u8),
            is_verified: self.0 & VERIFIED != 0,
        }
    }

    fn sets(self) -> impl Iterator<Item = SetId> {
        let sets = (self.0 >> 16) as u32;
        sets.to_le_bytes().into_iter().filter_map(SetId::new)
    }

    /// With a set first, and a record in this segment.
    fn with_set(self, set: SetId, segment: u32) -> Self {
        let others = self.sets().filter(|it| *it != set);
        let mut sets = [0; MAX_KEY_SETS];
        let all = std::iter::once(set).chain(others);
        for (place, set) in sets.iter_mut().zip(all) {
            *place = set.get();
        }
        Value(VARIES | u64::from(u32::from_le_bytes(sets)) << 16 | u64::from(segment as u16))
    }
}

/// The newest segment with these last 16 bits of its number.
fn segment_of(part: u16, newest: u32) -> u32 {
    newest.wrapping_sub((newest as u16).wrapping_sub(part).into())
}

impl Entry {
    fn new(hash: u64, value: Value) -> Self {
        Entry([hash as u32, value.0 as u32, (value.0 >> 32) as u32])
    }

    fn value(self) -> Value {
        Value(u64::from(self.0[1]) | u64::from(self.0[2]) << 32)
    }

    fn table_hash(hash: u32) -> u64 {
        // The table takes its highest and its lowest bits.
        u64::from(hash) | u64::from(hash) << 32
    }

    fn is_of(self, hash: u64, varies: bool) -> bool {
        self.0[0] == hash as u32 && self.value().varies() == varies
    }
}

impl Table {
    fn value(&self, hash: u64, varies: bool) -> Option<Value> {
        let found = self
            .entries
            .find(Entry::table_hash(hash as u32), |it| it.is_of(hash, varies));
        found.map(|entry| entry.value())
    }

    /// Sets a value; returns the value before.
    fn set(&mut self, hash: u64, value: Value) -> Option<Value> {
        let is_it = |it: &Entry| it.is_of(hash, value.varies());
        let table_hash = Entry::table_hash(hash as u32);
        let new = Entry::new(hash, value);
        match self.entries.find_mut(table_hash, is_it) {
            Some(entry) => {
                let old = entry.value();
                *entry = new;
                Some(old)
            }
            None => {
                let hasher = |it: &Entry| Entry::table_hash(it.0[0]);
                self.entries.insert_unique(table_hash, new, hasher);
                None
            }
        }
    }

    fn remove(&mut self, hash: u64, varies: bool, is_it: impl Fn(Value) -> bool) -> Option<Value> {
        let found = self
            .entries
            .find_entry(Entry::table_hash(hash as u32), |it| {
                it.is_of(hash, varies) && is_it(it.value())
            });
        Some(found.ok()?.remove().0.value())
    }

    fn floor(&self, key: u64) -> Position {
        self.floors.get(&key).copied().unwrap_or_default()
    }
}

/// The hashes of a response with this selector.
pub fn hashes(secret: &Secret, key: u128, selector: &[u8]) -> Hashes {
    let slot = if selector.is_empty() {
        key
    } else {
        secret.hash(&[&key.to_le_bytes(), selector].concat())
    };
    Hashes {
        key: key as u64,
        slot: slot as u64,
    }
}

impl Index {
    /// An empty one, for a store of this size.
    pub fn new(capacity_bytes: u64) -> Self {
        let tables = (capacity_bytes / BYTES_A_TABLE).clamp(64, 1 << 16);
        Index {
            tables: (0..tables.next_power_of_two())
                .map(|_| Mutex::default())
                .collect(),
            names: NameSets::default(),
            newest: AtomicU32::new(0),
            is_loading: AtomicBool::new(true),
            records: AtomicU64::new(0),
        }
    }

    fn table(&self, hash: u64) -> MutexGuard<'_, Table> {
        let at = (hash >> 32) as usize & (self.tables.len() - 1);
        // Within a table only an allocation can panic.
        self.tables[at]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// How many records it has.
    pub fn records(&self) -> u64 {
        self.records.load(Relaxed)
    }

    /// The sets of names in `Vary`.
    pub fn names(&self) -> &NameSets {
        &self.names
    }

    /// Records are added in this segment from now on.
    pub fn begin(&self, segment: u32) {
        self.newest.store(segment, Relaxed);
    }

    /// Records that may answer a request, the newest first. The newest counts as asked
    /// for.
    pub fn find(&self, secret: &Secret, key: &Key, request: &Request<'_>) -> Candidates {
        let mut found = Candidates::new();
        let hash = key.hash as u64;
        let (varying, floor) = {
            let table = self.table(hash);
            let newest = self.newest.load(Relaxed);
            let plain = Hashes {
                key: hash,
                slot: hash,
            };
            found.extend(table.value(hash, false).map(|it| Candidate {
                place: it.place(plain, newest),
                selector: Vec::new(),
            }));
            let varying = table.value(hash, true);
            (varying, varying.map(|_| table.floor(hash)))
        };
        for set in varying.into_iter().flat_map(Value::sets) {
            let Some(names) = self.names.names(set) else {
                continue;
            };
            let selector = crate::vary::selector_of(&names, request);
            let hashes = hashes(secret, key.hash, &selector);
            let table = self.table(hashes.slot);
            let newest = self.newest.load(Relaxed);
            let value = table.value(hashes.slot, false);
            let place = value.map(|it| it.place(hashes, newest));
            let place = place.filter(|it| Some(it.position) >= floor);
            found.extend(place.map(|place| Candidate { place, selector }));
        }
        found.sort_unstable_by_key(|it| std::cmp::Reverse(it.place.position));
        if let Some(first) = found.first() {
            self.mark(&first.place, ASKED);
        }
        found
    }

    /// Remembers that a record was compared with its sums.
    pub fn verified(&self, place: &Place) {
        self.mark(place, VERIFIED);
    }

    fn mark(&self, place: &Place, bit: u64) {
        let mut table = self.table(place.hashes.slot);
        if let Some(value) = table.value(place.hashes.slot, false)
            && is_at(value, place.position)
            && value.0 & bit == 0
        {
            table.set(place.hashes.slot, Value(value.0 | bit));
        }
    }

    /// Adds a record that was just written, in place of an older one. Not called for
    /// removed keys: see [`remove`](Self::remove).
    pub fn insert(&self, place: &Place, set: Option<SetId>) {
        let Place {
            hashes,
            position,
            size,
            is_verified,
        } = *place;
        if let Some(set) = set {
            let mut table = self.table(hashes.key);
            let value = table.value(hashes.key, true).unwrap_or(Value(VARIES));
            table.set(hashes.key, value.with_set(set, position.segment));
        }
        let mut table = self.table(hashes.slot);
        let value = Value::record(position, size, is_verified);
        if table.set(hashes.slot, value).is_none() {
            self.records.fetch_add(1, Relaxed);
        }
    }

    /// Adds a record of an older segment, unless there is a newer one, or its key was
    /// removed since. Segments come in the order of their age, the newest first, and
    /// their records too.
    pub fn load(&self, place: &Place, set: Option<SetId>) {
        let Place {
            hashes, position, ..
        } = *place;
        if hashes.key == hashes.slot {
            // Under one lock: a worker may remove the key at this moment.
            let mut table = self.table(hashes.key);
            if position >= table.floor(hashes.key) {
                self.add(&mut table, place);
            }
            return;
        }
        {
            let mut table = self.table(hashes.key);
            if position < table.floor(hashes.key) {
                return;
            }
            if let Some(set) = set {
                let value = match table.value(hashes.key, true) {
                    // The sets of newer records stay in front.
                    Some(value) if value.sets().any(|it| it == set) => value,
                    Some(value) => value.with_last_set(set),
                    None => Value(VARIES).with_set(set, position.segment),
                };
                table.set(hashes.key, value);
            }
        }
        // If a worker removes the key between the two locks, a lookup heeds the floor.
        self.add(&mut self.table(hashes.slot), place);
    }

    /// Adds an older record, if there is no newer one.
    fn add(&self, table: &mut Table, place: &Place) {
        let slot = place.hashes.slot;
        if table.value(slot, false).is_none() {
            table.set(slot, Value::record(place.position, place.size, false));
            self.records.fetch_add(1, Relaxed);
        }
    }

    /// A removal was found at this position: older records of the key are not loaded.
    pub fn load_removal(&self, key: u64, position: Position) {
        let mut table = self.table(key);
        let floor = table.floor(key).max(position);
        table.floors.insert(key, floor);
    }

    /// All segments are loaded.
    pub fn end_loading(&self) {
        self.is_loading.store(false, Relaxed);
        for table in &self.tables {
            let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
            let Table { entries, floors } = &mut *table;
            // Floors count where records are found by more than the key's hash.
            floors.retain(|key, _| {
                let hash = Entry::table_hash(*key as u32);
                entries.find(hash, |it| it.is_of(*key, true)).is_some()
            });
            floors.shrink_to_fit();
        }
    }

    /// Removes the records of a key that lie before `position`, where the next one will be
    /// written. Says whether a removal has to be written, because there were records, or
    /// may be.
    pub fn remove(&self, key: u64, position: Position) -> bool {
        let mut table = self.table(key);
        let is_loading = self.is_loading();
        let plain = table.remove(key, false, |_| true);
        if plain.is_some() {
            self.records.fetch_sub(1, Relaxed);
        }
        let varying = table.remove(key, true, |_| true);
        if varying.is_some() || is_loading {
            table.floors.insert(key, position);
        }
        plain.is_some() || varying.is_some() || is_loading
    }

    /// Drops a record if it is still at its place; returns whether it was.
    pub fn drop_one(&self, place: &Place) -> bool {
        let slot = place.hashes.slot;
        let is_it = |value| is_at(value, place.position);
        let is_dropped = self.table(slot).remove(slot, false, is_it).is_some();
        if is_dropped {
            self.records.fetch_sub(1, Relaxed);
        }
        is_dropped
    }

    /// Whether records may be found that are not there yet.
    pub fn is_loading(&self) -> bool {
        self.is_loading.load(Relaxed)
    }

    /// Whether a record is found by its hashes: neither replaced nor removed.
    pub fn has(&self, hashes: Hashes, position: Position) -> bool {
        let is_varying = hashes.key != hashes.slot;
        if is_varying {
            let table = self.table(hashes.key);
            if table.value(hashes.key, true).is_none() || position < table.floor(hashes.key) {
                return false;
            }
        }
        let value = self.table(hashes.slot).value(hashes.slot, false);
        value.is_some_and(|value| is_at(value, position))
    }

    /// Offsets and sizes of the records in a segment that were asked for since they were
    /// written, in the order in which they lie.
    pub fn asked_for(&self, segment: u32) -> Vec<(u64, Size)> {
        let mut asked = Vec::new();
        let newest = self.newest.load(Relaxed);
        for table in &self.tables {
            let table = table.lock().unwrap_or_else(PoisonError::into_inner);
            for entry in &table.entries {
                let value = entry.value();
                let is_asked = value.0 & (ASKED | VARIES) == ASKED;
                if is_asked && value.segment_part() == segment as u16 {
                    let place = value.place(Hashes { key: 0, slot: 0 }, newest);
                    asked.push((place.position.offset, place.size));
                }
            }
        }
        asked.sort_unstable_by_key(|(offset, _)| *offset);
        asked
    }

    /// Drops all records of the oldest segment; says how many.
    pub fn reclaim(&self, segment: u32) -> u64 {
        let mut count = 0;
        for table in &self.tables {
            let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
            let Table { entries, floors } = &mut *table;
            entries.retain(|entry| {
                let is_gone = entry.value().segment_part() == segment as u16;
                count += u64::from(is_gone && !entry.value().varies());
                !is_gone
            });
            if entries.len() * 4 < entries.capacity() {
                entries.shrink_to(entries.len() * 2, |it| Entry::table_hash(it.0[0]));
            }
            floors.retain(|_, floor| floor.segment > segment);
        }
        self.records.fetch_sub(count, Relaxed);
        count
    }

    /// Bytes that it takes in memory.
    pub fn bytes(&self) -> usize {
        let tables = self.tables.iter().map(|table| {
            let table = table.lock().unwrap_or_else(PoisonError::into_inner);
            let floors = table.floors.capacity() * (size_of::<(u64, Position)>() + 1);
            size_of::<Mutex<Table>>() + table.entries.allocation_size() + floors
        });
        tables.sum()
    }
}

impl Value {
    /// With a set behind all others, if there is a place for it.
    fn with_last_set(self, set: SetId) -> Self {
        let count = self.sets().count();
        if count == MAX_KEY_SETS {
            return self;
        }
        Value(self.0 | u64::from(set.get()) << (16 + 8 * count))
    }
}

fn is_at(value: Value, position: Position) -> bool {
    let found = value.place(Hashes { key: 0, slot: 0 }, position.segment);
    found.position == position
}

#[cfg(test)]
mod tests;
