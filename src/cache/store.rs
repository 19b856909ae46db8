//! A cache as the workers share it: the store in memory, the fetches that are under
//! way, and what is remembered of keys for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use evenkeel_cache::incoming::Fetches;
use evenkeel_cache::purge::{Purge, Strength};
use evenkeel_cache::recent::{Until, Uses};
use evenkeel_cache::storing::NotStored;
use evenkeel_cache::{Key, Memory, Secret};
use evenkeel_metrics::Saved;
use evenkeel_policy::Instant;

use super::CacheFigures;
use crate::config::{self, Config};

/// How long requests for a key go to an endpoint on their own once its answer could not
/// be stored.
const UNCACHEABLE_FOR: Duration = Duration::from_secs(60);

/// How long a stale response is served without asking again once that has failed.
const PAUSE: Duration = Duration::from_secs(2);

/// Within which time a key is asked for as often as `min_uses` says.
const USES_WITHIN: Duration = Duration::from_secs(60);

/// A cache, shared by all workers.
#[derive(Debug)]
pub struct Cache {
    name: String,
    memory_bytes: usize,
    /// Stored responses.
    pub memory: Arc<Memory>,
    /// Responses that still arrive.
    pub fetches: Arc<Fetches>,
    /// Keys whose answers are not stored.
    uncacheable: Until,
    /// Keys whose answers are not stored for requests with credentials or cookies.
    uncacheable_for_known: Until,
    /// Keys that no endpoint could be asked for.
    failed: Until,
    /// How often keys were asked for of late.
    pub uses: Uses,
    /// What the process before an upgrade has counted.
    evicted_before: AtomicU64,
    purges_before: AtomicU64,
}

impl Cache {
    fn new(settings: &config::CacheStore) -> Self {
        let places = (settings.memory_bytes / 1024).clamp(1 << 12, 1 << 20);
        let mut secret = [0; 16];
        secret.fill_with(|| fastrand::u8(..));
        let memory = Arc::new(Memory::new(settings.memory_bytes, Secret(secret)));
        Cache {
            name: settings.name.clone(),
            memory_bytes: settings.memory_bytes,
            fetches: Fetches::new(memory.clone()),
            memory,
            uncacheable: Until::new(places),
            uncacheable_for_known: Until::new(places),
            failed: Until::new(places),
            uses: Uses::new(places, USES_WITHIN),
            evicted_before: AtomicU64::new(0),
            purges_before: AtomicU64::new(0),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads its figures.
    pub fn figures(&self) -> CacheFigures {
        let memory = self.memory.figures();
        CacheFigures {
            name: self.name.clone(),
            responses: memory.objects,
            bytes: memory.bytes,
            limit_bytes: memory.capacity_bytes,
            evicted: memory.evicted + self.evicted_before.load(Relaxed),
            purges: self.memory.purge_count() + self.purges_before.load(Relaxed),
            fetches: self.fetches.count(),
        }
    }

    /// What was counted so far, for a process that goes on counting.
    pub(crate) fn save(&self) -> Saved {
        let figures = self.figures();
        Saved::numbers(vec![figures.evicted, figures.purges])
    }

    /// Has what the process before has counted come to at least this.
    pub(crate) fn raise(&self, saved: &Saved) {
        if let [evicted, purges] = saved.values() {
            self.evicted_before.fetch_max(*evicted, Relaxed);
            self.purges_before.fetch_max(*purges, Relaxed);
        }
    }

    /// Purges what is stored, and what is fetched now.
    pub fn purge(&self, what: Purge<'_>, strength: Strength) {
        self.memory.purge(what, strength);
    }

    /// Why the last answer to this key was not stored, if that was of late. `is_known` is
    /// for a request that says who asks, by credentials or a cookie.
    pub fn uncacheable(&self, key: &Key, is_known: bool, now: Instant) -> Option<NotStored> {
        let for_known = || {
            let table = is_known.then_some(&self.uncacheable_for_known)?;
            table.reason(key, now)
        };
        let reason = self.uncacheable.reason(key, now).or_else(for_known)?;
        NotStored::ALL.get(usize::from(reason)).copied()
    }

    /// An answer to this key was not stored: others do not wait for the next one.
    ///
    /// Invariant: one client does not keep others from the cache. Where the reason lies in
    /// what the request says, only requests that say such things are remembered.
    pub fn note_not_stored(&self, key: &Key, reason: NotStored, now: Instant) {
        let index = reason as u8;
        match reason {
            NotStored::NoStore
            | NotStored::Private
            | NotStored::NotUnderstood
            | NotStored::SetCookie
            | NotStored::VaryStar
            | NotStored::NeverFresh
            | NotStored::TooLarge => self.uncacheable.set(key, now, UNCACHEABLE_FOR, index),
            NotStored::Authorization | NotStored::Cookie => {
                let table = &self.uncacheable_for_known;
                table.set(key, now, UNCACHEABLE_FOR, index);
            }
            NotStored::Method
            | NotStored::RequestBody
            | NotStored::MethodOverride
            | NotStored::Condition
            | NotStored::RequestNoStore
            | NotStored::Status
            | NotStored::Outdated
            | NotStored::Incomplete => {}
        }
    }

    /// An answer to this key was stored.
    pub fn note_stored(&self, key: &Key) {
        self.uncacheable.clear(key);
        self.failed.clear(key);
    }

    /// Whether asking for this key failed a moment ago.
    pub fn has_failed(&self, key: &Key, now: Instant) -> bool {
        self.failed.holds(key, now)
    }

    /// Asking for this key failed: what is stale is served for a moment without asking.
    pub fn note_failed(&self, key: &Key, now: Instant) {
        self.failed.set(key, now, PAUSE, 0);
    }
}

/// The caches of a configuration, in its order. One that was there `before` stays, if its
/// name and its size do.
pub fn caches(config: &Config, before: &[Arc<Cache>]) -> Vec<Arc<Cache>> {
    let caches = config.caches.iter().map(|settings| {
        let is_same =
            |it: &&Arc<Cache>| it.name == settings.name && it.memory_bytes == settings.memory_bytes;
        match before.iter().find(is_same) {
            Some(staying) => staying.clone(),
            None => Arc::new(Cache::new(settings)),
        }
    });
    caches.collect()
}
