//! Session tickets of clients, and the keys that seal them.
//!
//! All workers and all listeners of a process share one [`TicketKeys`]. A new key seals tickets
//! after each [`Lifetimes::rotation`]; the key before it opens its tickets until the last one
//! has expired. Keys from files, if there are any, seal instead. A ticket is bound to a
//! context, the client-auth policy of its listener: in another context it does not open.
//!
//! A ticket is `name (16) ‖ nonce (12) ‖ sealed ‖ tag (16)`. The time of issue and the session
//! are sealed by AES-256-GCM-SIV (RFC 8452). Nonces are random: this cipher tolerates a
//! repeated nonce, which plain GCM does not. The context is authenticated beside it.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hmac, rand};
use rustls::server::ProducesTickets;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use zeroize::Zeroizing;

use crate::error::{Error, Fault};
use crate::file;

const NAME_LEN: usize = 16;
const SECRET_LEN: usize = 32;
const TAG_LEN: usize = 16;
/// The time of issue, in seconds since 1970.
const ISSUED_LEN: usize = 8;
/// A key in an export: its name, its secret and when it was made.
const EXPORTED_LEN: usize = NAME_LEN + SECRET_LEN + 8;
/// The first byte of an export.
const EXPORT_VERSION: u8 = 1;
/// More keys are not kept: each import brings some.
const MAX_KEYS: usize = 256;

/// How long keys and tickets are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// A key seals tickets so long. 12 hours by default.
    pub rotation: Duration,
    /// A ticket resumes sessions so long. 12 hours by default; 7 days at most, by RFC 8446,
    /// section 4.6.1.
    pub ticket: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            rotation: Duration::from_secs(12 * 3600),
            ticket: Duration::from_secs(12 * 3600),
        }
    }
}

/// The keys that tickets are sealed and opened with.
pub struct TicketKeys {
    ring: RwLock<Ring>,
    time: Arc<dyn TimeProvider>,
    /// Tickets whose key was not there.
    unknown: AtomicU64,
}

struct Ring {
    /// The first key seals; all of them open. Keys from files come first, then keys made here,
    /// the newest first.
    keys: Vec<Arc<Key>>,
    lifetimes: Lifetimes,
    /// Number of scheduled rotations so far.
    rotations: u64,
}

/// A key that was made here, for other machines.
#[derive(Clone)]
pub struct OwnKey {
    /// Its name, which is in each ticket. The name is no secret.
    pub name: [u8; NAME_LEN],
    /// How long it opens tickets still.
    pub left: Duration,
    /// The key, for [`TicketKeys::import`]. Safety: it is secret.
    pub exported: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for OwnKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnKey").finish_non_exhaustive()
    }
}

/// Counts of keys and tickets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TicketCounts {
    /// Keys that open tickets.
    pub keys: u64,
    /// Number of scheduled rotations so far.
    pub rotations: u64,
    /// Tickets whose key was not there.
    pub unknown: u64,
}

/// The origin of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Made here, and replaced by time.
    Own,
    /// Made by another process. It opens tickets and seals none.
    Other,
    /// Read from a file. It stays.
    File,
}

struct Key {
    name: [u8; NAME_LEN],
    secret: Zeroizing<[u8; SECRET_LEN]>,
    /// Seconds since 1970.
    made: u64,
    origin: Origin,
    aead: LessSafeKey,
}

impl Key {
    fn new(
        name: [u8; NAME_LEN],
        secret: Zeroizing<[u8; SECRET_LEN]>,
        made: u64,
        origin: Origin,
    ) -> Option<Arc<Self>> {
        let aead = LessSafeKey::new(UnboundKey::new(&AES_256_GCM_SIV, &*secret).ok()?);
        Some(Arc::new(Self {
            name,
            secret,
            made,
            origin,
            aead,
        }))
    }

    /// A new key; `None` if the system provides no random bytes.
    fn generate(now: u64) -> Option<Arc<Self>> {
        let mut name = [0; NAME_LEN];
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        rand::fill(&mut name).ok()?;
        rand::fill(&mut *secret).ok()?;
        Self::new(name, secret, now, Origin::Own)
    }

    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.secret == other.secret
    }
}

/// Keys from files of nginx's form, which several machines share.
///
/// A file has 48 or 80 random bytes; the first 16 are the key's name. The key of the first file
/// seals, and the others only open. To change the key, put a new file first, and remove the
/// last one after a ticket's lifetime.
///
/// Keys come from nginx' files, but tickets have their own form: nginx does not open them.
#[derive(Clone)]
pub struct FileKeys(Vec<Arc<Key>>);

impl FileKeys {
    /// Reads them. No file at all is fine.
    ///
    /// # Errors
    /// A file can't be used.
    pub fn read(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut keys = Vec::new();
        for path in paths {
            let (bytes, _) = file::read(path, 1 << 20)?;
            let found = bytes.len() as u64;
            let wrong = || Error::new(path, Fault::TicketKeyLength { found });
            if !matches!(found, 48 | 80) {
                return Err(wrong());
            }
            let (name, seed) = bytes.split_first_chunk::<NAME_LEN>().ok_or_else(wrong)?;
            let label = b"evenkeel session tickets, AES-256-GCM-SIV";
            let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, seed), label);
            let mut secret = Zeroizing::new([0; SECRET_LEN]);
            secret.copy_from_slice(derived.as_ref());
            keys.push(Key::new(*name, secret, 0, Origin::File).ok_or_else(wrong)?);
        }
        Ok(Self(keys))
    }

    /// The number of keys.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl PartialEq for FileKeys {
    /// Whether they are the same keys in the same order.
    fn eq(&self, other: &Self) -> bool {
        let mut pairs = self.0.iter().zip(&other.0);
        self.0.len() == other.0.len() && pairs.all(|(one, other)| one.is_same(other))
    }
}

impl Eq for FileKeys {}

impl fmt::Debug for FileKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileKeys({})", self.0.len())
    }
}

impl TicketKeys {
    /// Keys that are made here and rotated by time.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn generate(lifetimes: Lifetimes) -> Result<Self, rustls::Error> {
        Self::generate_at(lifetimes, Arc::new(DefaultTimeProvider))
    }

    /// The same with another clock.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn generate_at(
        lifetimes: Lifetimes,
        time: Arc<dyn TimeProvider>,
    ) -> Result<Self, rustls::Error> {
        let key = Key::generate(seconds(&*time)).ok_or(rustls::Error::FailedToGetRandomBytes)?;
        let ring = Ring {
            keys: vec![key],
            lifetimes,
            rotations: 0,
        };
        Ok(Self {
            ring: RwLock::new(ring),
            time,
            unknown: AtomicU64::new(0),
        })
    }

    /// Uses other lifetimes from now on, for the keys and tickets that are there too.
    pub fn set_lifetimes(&self, lifetimes: Lifetimes) {
        self.ring_to_write().lifetimes = lifetimes;
    }

    /// Seals and opens tickets with the keys of these files, instead of the previous files'.
    ///
    /// Keys made here open their tickets until the last ticket has expired. They seal again if
    /// there are no files.
    pub fn use_files(&self, files: FileKeys) {
        let keys = &mut self.ring_to_write().keys;
        keys.retain(|it| it.origin != Origin::File);
        keys.splice(0..0, files.0);
        keys.truncate(MAX_KEYS);
    }

    /// Makes a new key where it is time, and drops those whose tickets have all run out.
    ///
    /// Each ticket does so too. Without any, old keys stay until this is called.
    pub fn rotate(&self) {
        drop(self.ring_at(seconds(&*self.time)));
    }

    /// The keys for the next process of the same machine, for [`TicketKeys::import`]. Keys
    /// from files are left out.
    ///
    /// Safety: the bytes are as secret as the keys.
    #[must_use]
    pub fn export(&self) -> Zeroizing<Vec<u8>> {
        let ring = self.ring_at(seconds(&*self.time));
        let keys = ring.keys.iter();
        exported(keys.filter(|it| it.origin != Origin::File))
    }

    /// The keys made here, for other machines, the sealing one first. None while keys from
    /// files seal.
    #[must_use]
    pub fn own(&self) -> Vec<OwnKey> {
        let now = seconds(&*self.time);
        let ring = self.ring_at(now);
        let time = ring.lifetimes.rotation + ring.lifetimes.ticket;
        let first = ring.keys.first().filter(|it| it.origin == Origin::Own);
        let keys = first.map_or(&[][..], |_| &ring.keys);
        let own = keys.iter().filter(|it| it.origin == Origin::Own);
        let own = own.map(|it| OwnKey {
            name: it.name,
            left: time.saturating_sub(age(it.made, now)),
            exported: exported([it].into_iter()),
        });
        own.collect()
    }

    /// Counts of keys and tickets. Makes no new key, though it may be time.
    #[must_use]
    pub fn counts(&self) -> TicketCounts {
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        TicketCounts {
            keys: ring.keys.len() as u64,
            rotations: ring.rotations,
            unknown: self.unknown.load(Relaxed),
        }
    }

    /// Adds the counts of the process before.
    pub fn add(&self, rotations: u64, unknown: u64) {
        self.ring_to_write().rotations += rotations;
        self.unknown.fetch_add(unknown, Relaxed);
    }

    /// Opens tickets with these keys too, until the last ticket has expired. This process still
    /// seals with its own key. Returns how many keys were new.
    ///
    /// # Errors
    /// The bytes are no export of this version.
    pub fn import(&self, exported: &[u8]) -> Result<usize, NoExport> {
        let keys = match exported.split_first() {
            Some((&EXPORT_VERSION, keys)) if keys.len() % EXPORTED_LEN == 0 => keys,
            _ => return Err(NoExport),
        };
        let mut imported = Vec::new();
        for key in keys.chunks_exact(EXPORTED_LEN) {
            let (name, rest) = key.split_first_chunk().ok_or(NoExport)?;
            let (secret, made) = rest.split_first_chunk().ok_or(NoExport)?;
            let made = made.try_into().map_err(|_| NoExport)?;
            let secret = Zeroizing::new(*secret);
            let key = Key::new(*name, secret, u64::from_be_bytes(made), Origin::Other);
            imported.push(key.ok_or(NoExport)?);
        }
        let now = seconds(&*self.time);
        let mut ring = self.ring_to_write();
        let before = ring.keys.len();
        for key in imported {
            let is_there = ring.keys.iter().any(|it| it.name == key.name);
            if !is_there && !ring.has_run_out(&key, now) && ring.keys.len() < MAX_KEYS {
                ring.keys.push(key);
            }
        }
        Ok(ring.keys.len() - before)
    }

    /// A ticketer for rustls that seals and opens tickets in this context.
    #[must_use]
    pub fn bound_to(self: &Arc<Self>, context: [u8; 32]) -> Arc<dyn ProducesTickets> {
        let keys = self.clone();
        Arc::new(Bound { keys, context })
    }

    fn ring_to_write(&self) -> RwLockWriteGuard<'_, Ring> {
        self.ring.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys at a time. The first is one that may still seal.
    fn ring_at(&self, now: u64) -> RwLockReadGuard<'_, Ring> {
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        if !ring.is_due(now) {
            return ring;
        }
        drop(ring);
        self.ring_to_write().rotate(now);
        self.ring.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn seal(&self, context: &[u8; 32], session: &[u8]) -> Option<Vec<u8>> {
        let now = seconds(&*self.time);
        let key = self.ring_at(now).keys.first()?.clone();
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut ticket =
            Vec::with_capacity(NAME_LEN + NONCE_LEN + ISSUED_LEN + session.len() + TAG_LEN);
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&nonce);
        let sealed_from = ticket.len();
        ticket.extend_from_slice(&now.to_be_bytes());
        ticket.extend_from_slice(session);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = &mut ticket[sealed_from..];
        let tag = key
            .aead
            .seal_in_place_separate_tag(nonce, Aad::from(context), sealed)
            .ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn open(&self, context: &[u8; 32], ticket: &[u8]) -> Option<Vec<u8>> {
        let now = seconds(&*self.time);
        let (name, rest) = ticket.split_first_chunk::<NAME_LEN>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let ring = self.ring_at(now);
        let lifetime = ring.lifetimes.ticket;
        let key = ring.keys.iter().find(|it| it.name == *name).cloned();
        drop(ring);
        let Some(key) = key else {
            self.unknown.fetch_add(1, Relaxed);
            return None;
        };
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let mut sealed = sealed.to_vec();
        let opened = key
            .aead
            .open_in_place(nonce, Aad::from(context), &mut sealed)
            .ok()?;
        let issued = u64::from_be_bytes(*opened.first_chunk::<ISSUED_LEN>()?);
        let len = opened.len();
        sealed.truncate(len);
        sealed.drain(..ISSUED_LEN);
        (age(issued, now) < lifetime).then_some(sealed)
    }
}

impl Ring {
    /// Makes a new key where it is time, and drops those whose tickets have all run out.
    fn rotate(&mut self, now: u64) {
        let is_old = |it: &Arc<Key>| self.has_sealed_enough(it, now);
        // Without random bytes the old key goes on sealing.
        if self.keys.first().is_none_or(is_old)
            && let Some(key) = Key::generate(now)
        {
            self.keys.insert(0, key);
            self.rotations += 1;
            self.keys.truncate(MAX_KEYS);
        }
        let mut keys = std::mem::take(&mut self.keys);
        let first = keys.first().map(|it| it.name);
        keys.retain(|it| Some(it.name) == first || !self.has_run_out(it, now));
        self.keys = keys;
    }

    fn is_due(&self, now: u64) -> bool {
        let is_old = |it: &Arc<Key>| self.has_sealed_enough(it, now);
        self.keys.first().is_none_or(is_old)
            || self.keys.iter().skip(1).any(|it| self.has_run_out(it, now))
    }

    fn has_sealed_enough(&self, key: &Key, now: u64) -> bool {
        match key.origin {
            Origin::Own => age(key.made, now) >= self.lifetimes.rotation,
            Origin::Other => true,
            Origin::File => false,
        }
    }

    fn has_run_out(&self, key: &Key, now: u64) -> bool {
        let lifetime = self.lifetimes.rotation + self.lifetimes.ticket;
        key.origin != Origin::File && age(key.made, now) >= lifetime
    }
}

/// Keys as [`TicketKeys::import`] reads them.
fn exported<'a>(keys: impl Iterator<Item = &'a Arc<Key>>) -> Zeroizing<Vec<u8>> {
    let keys: Vec<_> = keys.collect();
    // No reallocation leaves a copy behind.
    let mut exported = Zeroizing::new(Vec::with_capacity(1 + keys.len() * EXPORTED_LEN));
    exported.push(EXPORT_VERSION);
    for key in keys {
        exported.extend_from_slice(&key.name);
        exported.extend_from_slice(&*key.secret);
        exported.extend_from_slice(&key.made.to_be_bytes());
    }
    exported
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKeys").finish_non_exhaustive()
    }
}

/// Bytes that [`TicketKeys::export`] has not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoExport;

impl fmt::Display for NoExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("these are not ticket keys of another process")
    }
}

impl std::error::Error for NoExport {}

#[derive(Debug)]
struct Bound {
    keys: Arc<TicketKeys>,
    context: [u8; 32],
}

impl ProducesTickets for Bound {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        let ring = self.keys.ring.read();
        let ring = ring.unwrap_or_else(PoisonError::into_inner);
        u32::try_from(ring.lifetimes.ticket.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.keys.seal(&self.context, plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.keys.open(&self.context, cipher)
    }
}

/// Seconds since 1970.
fn seconds(time: &dyn TimeProvider) -> u64 {
    time.current_time().map_or(0, |it| it.as_secs())
}

/// The distance of two times. A key from a clock that was far ahead is old, too: otherwise it
/// would be used until then.
fn age(since: u64, now: u64) -> Duration {
    Duration::from_secs(now.abs_diff(since))
}
