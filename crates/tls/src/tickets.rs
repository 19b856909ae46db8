//! Tickets by which clients resume sessions, and the keys that seal them.
//!
//! All workers and all listeners share one [`TicketKeys`]. A new key seals tickets after each
//! [`Lifetimes::rotation`]; the one before it opens them until the last has run out. A ticket
//! is bound to a context, the client-auth policy of its listener: elsewhere it does not open.
//!
//! A ticket is `name (16) ‖ nonce (12) ‖ sealed ‖ tag (16)`. Sealed by AES-256-GCM-SIV
//! (RFC 8452) are the time of issue and the session. Nonces are random: this cipher bears
//! that two are the same, which plain GCM does not. The context is authenticated beside it.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
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
const MAX_KEYS: usize = 64;

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
    /// The first key seals; all of them open.
    ring: RwLock<Vec<Arc<Key>>>,
    lifetimes: Lifetimes,
    time: Arc<dyn TimeProvider>,
}

/// The origin of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Made by a process, and replaced by time.
    Generated,
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

    /// A new one; `None` where the system gives no random bytes.
    fn generate(now: u64) -> Option<Arc<Self>> {
        let mut name = [0; NAME_LEN];
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        rand::fill(&mut name).ok()?;
        rand::fill(&mut *secret).ok()?;
        Self::new(name, secret, now, Origin::Generated)
    }
}

impl TicketKeys {
    /// Keys that are made here and replaced by time.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn generate(lifetimes: Lifetimes) -> Result<Self, rustls::Error> {
        Self::generate_at(lifetimes, Arc::new(DefaultTimeProvider))
    }

    /// The same by another clock.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn generate_at(
        lifetimes: Lifetimes,
        time: Arc<dyn TimeProvider>,
    ) -> Result<Self, rustls::Error> {
        let key = Key::generate(seconds(&*time)).ok_or(rustls::Error::FailedToGetRandomBytes)?;
        Ok(Self {
            ring: RwLock::new(vec![key]),
            lifetimes,
            time,
        })
    }

    /// Keys from files of nginx's form, which several machines share. A file has 48 or 80
    /// random bytes; the first 16 are the key's name. The key of the first file seals, and
    /// those of the others open. To change the key, put a new file first, and remove the
    /// last one after a ticket's lifetime.
    ///
    /// Keys are taken from such a file, but tickets have a form of our own: nginx does not
    /// open them. Without any file a key is made, and replaced by time.
    ///
    /// # Errors
    /// A file can't be used.
    pub fn from_files(paths: &[PathBuf], lifetimes: Lifetimes) -> Result<Self, Error> {
        let time = Arc::new(DefaultTimeProvider);
        let now = seconds(&*time);
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
            keys.push(Key::new(*name, secret, now, Origin::File).ok_or_else(wrong)?);
        }
        Ok(Self {
            ring: RwLock::new(keys),
            lifetimes,
            time,
        })
    }

    /// Makes a new key where it is time, and drops those whose tickets have all run out.
    ///
    /// Each ticket does so too. Without any, old keys stay until this is called.
    pub fn rotate(&self) {
        drop(self.ring_at(seconds(&*self.time)));
    }

    /// The keys for the next process of the same machine, for [`TicketKeys::import`]. Keys
    /// from files are left out. Safety: the bytes are as secret as the keys.
    #[must_use]
    pub fn export(&self) -> Zeroizing<Vec<u8>> {
        let ring = self.ring_at(seconds(&*self.time));
        let mut exported = Zeroizing::new(Vec::with_capacity(1 + ring.len() * EXPORTED_LEN));
        exported.push(EXPORT_VERSION);
        for key in ring.iter().filter(|it| it.origin == Origin::Generated) {
            exported.extend_from_slice(&key.name);
            exported.extend_from_slice(&*key.secret);
            exported.extend_from_slice(&key.made.to_be_bytes());
        }
        exported
    }

    /// Opens tickets with these keys too, until the last of them has run out. Tickets are
    /// sealed with a key of one's own as before.
    ///
    /// # Errors
    /// The bytes are no export of this version.
    pub fn import(&self, exported: &[u8]) -> Result<(), NoExport> {
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
            let key = Key::new(*name, secret, u64::from_be_bytes(made), Origin::Generated);
            imported.push(key.ok_or(NoExport)?);
        }
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        for key in imported {
            if !ring.iter().any(|it| it.name == key.name) {
                ring.push(key);
            }
        }
        ring.truncate(MAX_KEYS);
        Ok(())
    }

    /// A ticketer for rustls that seals and opens tickets in this context.
    #[must_use]
    pub fn bound_to(self: &Arc<Self>, context: [u8; 32]) -> Arc<dyn ProducesTickets> {
        let keys = self.clone();
        Arc::new(Bound { keys, context })
    }

    /// The keys at a time. The first is one that may still seal.
    fn ring_at(&self, now: u64) -> RwLockReadGuard<'_, Vec<Arc<Key>>> {
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        if !self.is_due(&ring, now) {
            return ring;
        }
        drop(ring);
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        if self.is_due(&ring, now) {
            let is_old = ring
                .first()
                .is_none_or(|it| self.has_sealed_enough(it, now));
            // Without random bytes the old key goes on sealing.
            if is_old && let Some(key) = Key::generate(now) {
                ring.insert(0, key);
                ring.truncate(MAX_KEYS);
            }
            let first = ring.first().map(|it| it.name);
            ring.retain(|it| Some(it.name) == first || !self.has_run_out(it, now));
        }
        drop(ring);
        self.ring.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_due(&self, ring: &[Arc<Key>], now: u64) -> bool {
        ring.first()
            .is_none_or(|it| self.has_sealed_enough(it, now))
            || ring.iter().skip(1).any(|it| self.has_run_out(it, now))
    }

    fn has_sealed_enough(&self, key: &Key, now: u64) -> bool {
        key.origin == Origin::Generated && age(key.made, now) >= self.lifetimes.rotation
    }

    fn has_run_out(&self, key: &Key, now: u64) -> bool {
        let lifetime = self.lifetimes.rotation + self.lifetimes.ticket;
        key.origin == Origin::Generated && age(key.made, now) >= lifetime
    }

    fn seal(&self, context: &[u8; 32], session: &[u8]) -> Option<Vec<u8>> {
        let now = seconds(&*self.time);
        let key = self.ring_at(now).first()?.clone();
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
        let key = self
            .ring_at(now)
            .iter()
            .find(|it| it.name == *name)?
            .clone();
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
        (age(issued, now) < self.lifetimes.ticket).then_some(sealed)
    }
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKeys")
            .field("lifetimes", &self.lifetimes)
            .finish_non_exhaustive()
    }
}

/// Bytes that [`TicketKeys::export`] has not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoExport;

impl fmt::Display for NoExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("these are no ticket keys of another process")
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
        u32::try_from(self.keys.lifetimes.ticket.as_secs()).unwrap_or(u32::MAX)
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
