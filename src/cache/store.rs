//! A cache as the workers share it: its tiers, the fetches under way, and short-lived facts on
//! keys.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use evenkeel_cache::incoming::{Fetch, Fetches};
use evenkeel_cache::invalidate::outdated;
use evenkeel_cache::ledger::{Order, Position};
use evenkeel_cache::purge::{Purge, Strength};
use evenkeel_cache::recent::{Until, Uses};
use evenkeel_cache::record::Clocks;
use evenkeel_cache::storing::NotStored;
use evenkeel_cache::{Key, Memory, Object, Request, Response, Rules, Secret};
use evenkeel_metrics::{OpenCount, Saved};
use evenkeel_policy::Instant;
use evenkeel_policy::admission::Bounds;
use tokio::sync::oneshot;

use super::CacheFigures;
use super::disk::{self, DiskStore, Found};
use super::shared::{self, Shared, Stores};
use crate::config::{self, Config};
use crate::net::clock;
use crate::shared_server::Server;

/// How long requests for a key go to an endpoint on their own after an answer that could not be
/// stored.
const UNCACHEABLE_FOR: Duration = Duration::from_secs(60);

/// How long a stale response is served without asking again after a failure.
const PAUSE: Duration = Duration::from_secs(2);

/// The time within which a key has to be asked for `min_uses` times.
const USES_WITHIN: Duration = Duration::from_secs(60);

/// Bounds of reads from the disk of a cache: beyond them a stored response counts as a miss.
const DISK_READS: Bounds = Bounds {
    in_flight: 16,
    waiting: 256,
    wait: Duration::from_millis(500),
};

/// A cache, shared by all workers.
#[derive(Debug)]
pub struct Cache {
    settings: config::CacheStore,
    /// Stored responses.
    pub memory: Arc<Memory>,
    /// Responses that still arrive.
    pub fetches: Arc<Fetches>,
    local: Arc<Local>,
    shared: Option<Shared>,
    /// Keys whose answers are not stored.
    uncacheable: Until,
    /// Keys whose answers are not stored for requests with credentials or cookies.
    uncacheable_for_known: Until,
    /// Keys whose last fetch reached no endpoint.
    failed: Until,
    /// How often keys were asked for of late.
    pub uses: Uses,
    /// Requests that follow a fetch.
    followers: OpenCount,
    counted_before: Mutex<CountedBefore>,
}

/// Earlier counts under the name of a cache.
#[derive(Debug, Default)]
struct CountedBefore {
    /// By the process before an upgrade.
    process: Saved,
    /// By this process, before a reload changed the settings of the cache.
    replaced: Saved,
}

/// The tiers of a cache in this process.
#[derive(Debug)]
struct Local {
    memory: Arc<Memory>,
    disk: Option<DiskStore>,
    /// Purges of this process. The count of `memory` continues that of the disk.
    purges: AtomicU64,
}

/// A request that follows a fetch, counted until this is dropped.
#[derive(Debug)]
pub struct Follows<'a>(&'a OpenCount);

impl Drop for Follows<'_> {
    fn drop(&mut self) {
        self.0.remove();
    }
}

impl Stores for Arc<Local> {
    fn purge(&self, what: Purge<'_>, strength: Strength) {
        self.purges.fetch_add(1, Relaxed);
        let Some(disk) = &self.disk else {
            return self.memory.purge(what, strength);
        };
        // Memory and disk have the same purges.
        if let Err(error) = disk.purge(what, strength) {
            tracing::error!(
                "cache: a purge is not saved, and holds only until the process ends: {error}"
            );
        }
    }

    fn purge_count(&self) -> u64 {
        self.memory.purge_count()
    }

    fn position(&self) -> Option<Position> {
        self.disk.as_ref()?.shared_position()
    }

    fn note_position(&self, position: Position) {
        if let Some(disk) = &self.disk {
            disk.note_shared_position(position);
        }
    }
}

impl Cache {
    fn new(settings: &config::CacheStore) -> io::Result<Self> {
        let places = (settings.memory_bytes / 1024).clamp(1 << 12, 1 << 20);
        let disk = (settings.disk.as_ref()).map(open_disk).transpose()?;
        let (secret, purges) = match &disk {
            Some(disk) => (disk.secret(), disk.purges().clone()),
            None => (random_secret(), Arc::default()),
        };
        let memory = Memory::with_purges(settings.memory_bytes, secret, purges);
        let memory = Arc::new(memory);
        let local = Arc::new(Local {
            memory: memory.clone(),
            disk,
            purges: AtomicU64::new(0),
        });
        let shared = match &settings.shared {
            Some(server) => {
                let mut settings_of = shared::Settings::new(Server::of(server)?);
                settings_of.prefix = format!("evenkeel:{}", settings.name);
                Some(Shared::start(settings_of, secret, Box::new(local.clone()))?)
            }
            None => None,
        };
        Ok(Cache {
            settings: settings.clone(),
            fetches: Fetches::new(memory.clone()),
            memory,
            local,
            shared,
            uncacheable: Until::new(places),
            uncacheable_for_known: Until::new(places),
            failed: Until::new(places),
            uses: Uses::new(places, USES_WITHIN),
            followers: OpenCount::default(),
            counted_before: Mutex::default(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Reads its figures.
    pub fn figures(&self) -> CacheFigures {
        let memory = self.memory.figures();
        let mut figures = CacheFigures {
            name: self.settings.name.clone(),
            responses: memory.objects,
            bytes: memory.bytes,
            limit_bytes: memory.capacity_bytes,
            evicted: memory.evicted,
            purges: self.local.purges.load(Relaxed),
            fetches: self.fetches.count(),
            followers: self.followers.value(),
            disk: self.disk().map(DiskStore::figures),
            shared: self.shared().map(Shared::figures),
        };
        let before = self.counted_before();
        for (name, count) in figures.counts() {
            *count += before.process.of(&name).value() + before.replaced.of(&name).value();
        }
        drop(before);
        figures
    }

    fn counted_before(&self) -> MutexGuard<'_, CountedBefore> {
        let before = self.counted_before.lock();
        before.unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts so far, for a process that continues them.
    pub(crate) fn save(&self) -> Saved {
        let mut figures = self.figures();
        let counts = figures.counts();
        Saved::named((counts.iter()).map(|(name, count)| (&**name, Saved::number(**count))))
    }

    /// Adds the counts of the process before.
    pub(crate) fn raise(&self, saved: &Saved) {
        self.counted_before().process = saved.clone();
    }

    /// Continues the counts of another cache, which this one replaces.
    fn go_on_from(&self, other: &Cache) {
        let process = other.counted_before().process.clone();
        *self.counted_before() = CountedBefore {
            replaced: other.save().since(&process),
            process,
        };
    }

    /// Counts a request that follows a fetch.
    pub fn follow(&self) -> Follows<'_> {
        self.followers.try_add(None);
        Follows(&self.followers)
    }

    /// Its disk store, if it has one.
    pub fn disk(&self) -> Option<&DiskStore> {
        self.local.disk.as_ref()
    }

    /// Gives up its files, for a process that waits for them or for the next one. Waiting objects
    /// are written first.
    pub fn close(&self) {
        if let Some(disk) = self.disk() {
            disk.hand_over();
        }
    }

    /// Waits until its files are given up. Blocks.
    pub fn wait_until_closed(&self, most: Duration) {
        if let Some(disk) = self.disk()
            && !disk.wait_until_closed(most)
        {
            let name = self.name();
            tracing::warn!("cache {name}: the last responses could not be written within {most:?}");
        }
    }

    /// The tier that it shares with other machines.
    pub fn shared(&self) -> Option<&Shared> {
        self.shared.as_ref()
    }

    /// The response on the disk that answers a request. A short one goes to memory too.
    ///
    /// # Cancellation
    /// A read that nobody waits for is not begun.
    pub async fn find_on_disk(
        &self,
        key: &Key,
        request: &Request<'_>,
        now: Instant,
    ) -> Option<Found> {
        let disk = self.disk()?;
        let candidates = disk.look_up(key, request);
        let found = disk.fetch(key, candidates, now).await?;
        if found.body.is_none() {
            self.memory.insert(key, found.object.clone());
        }
        Some(found)
    }

    /// The response of other machines that answers a request. It goes to memory too.
    ///
    /// # Cancellation
    /// Nothing is left behind.
    pub async fn find_shared(&self, key: &Key, request: &Request<'_>) -> Option<Object> {
        let object = self.shared.as_ref()?.get(key, request).await?;
        let is_stored = self.memory.insert(key, object.clone());
        is_stored.then_some(object)
    }

    /// Whether a body of this length may be stored.
    ///
    /// # Errors
    /// The body is too long, or too long for memory while the disk is not written.
    pub fn takes(&self, len: u64) -> Result<(), NotStored> {
        if len <= self.memory.longest_bytes() as u64 {
            return Ok(());
        }
        match self.disk() {
            Some(disk) if len > disk.longest_bytes() => Err(NotStored::TooLarge),
            Some(disk) if disk.is_written() => Ok(()),
            Some(_) => Err(NotStored::NoRoom),
            None => Err(NotStored::TooLarge),
        }
    }

    /// Sends the body of a fetch to the disk, if `more` further bytes make it too long for
    /// memory. `announced` is its length, if known.
    pub fn spool_if_needed(&self, fetch: &mut Fetch, more: u64, announced: Option<u64>) {
        if fetch.needs_spool(more)
            && let Some(disk) = self.disk()
        {
            match disk.spool(announced) {
                Ok(spool) => fetch.spool(spool),
                // The disk store has counted the failure.
                Err(_) => fetch.give_up_storing(NotStored::NoRoom),
            }
        }
    }

    /// A fetch has ended as it should: its response is stored.
    ///
    /// # Errors
    /// Why it is not stored.
    pub fn finish(&self, fetch: Fetch) -> Result<(), NotStored> {
        if let Some(disk) = self.disk()
            && fetch.is_spooling()
        {
            return fetch.finish_spooled().map(|it| disk.insert_spooled(it));
        }
        let key = fetch.key().clone();
        let mut is_kept = false;
        let finished = fetch.finish(|object| {
            is_kept = true;
            self.keep(&key, object);
        });
        if is_kept && finished == Err(NotStored::Outdated) {
            self.remove(&key);
        }
        finished
    }

    /// A response that was stored in memory goes to the other tiers too.
    pub fn keep(&self, key: &Key, object: &Object) {
        if let Some(disk) = self.disk() {
            // The disk store counts objects that it does not take.
            let _ = disk.insert(key, object.clone());
        }
        if let Some(shared) = &self.shared {
            shared.put(object);
        }
    }

    /// An endpoint has confirmed a response: `object` is its present state. `long` is where it
    /// was found, if its body lies in a file.
    pub fn renew(&self, key: &Key, object: &Object, long: Option<&Found>) {
        match (long, self.disk()) {
            (Some(found), Some(disk)) => disk.renew(found.position, object.clone()),
            _ => {
                let is_in_memory = self.memory.insert(key, object.clone());
                // A response that was purged meanwhile is kept nowhere.
                if is_in_memory || object.cost() > self.memory.longest_bytes() {
                    self.keep(key, object);
                }
            }
        }
    }

    /// Drops all responses of a key.
    pub fn remove(&self, key: &Key) {
        self.fetches.outdate(key);
        self.memory.remove(key);
        if let Some(disk) = self.disk() {
            disk.remove(key);
        }
        if let Some(shared) = &self.shared {
            shared.remove(key);
        }
    }

    /// Drops the responses that an unsafe request and its response make out of date.
    pub fn invalidate(
        self: &Arc<Self>,
        rules: &Rules,
        request: &Request<'_>,
        response: &Response<'_>,
    ) {
        let keys = outdated(self.memory.secret(), rules, request, response);
        if rules.key.has_parts() {
            let of_url = |key: &Key| Order::new(Purge::Url(key.url()), Strength::Hard);
            drop(self.purge_aside(keys.iter().map(of_url).collect()));
        } else {
            keys.iter().for_each(|key| self.remove(key));
        }
    }

    /// Purges stored responses, here and on other machines, and fetches under way. Blocks where
    /// there is a disk.
    pub fn purge(&self, what: Purge<'_>, strength: Strength) {
        match &self.shared {
            Some(shared) => shared.purge(what, strength),
            None => self.local.purge(what, strength),
        }
    }

    /// The same from a thread that must not block. Ready when the purge is done; the purge goes
    /// on even if nobody waits for it.
    pub fn purge_aside(self: &Arc<Self>, orders: Vec<Order>) -> impl Future<Output = ()> + use<> {
        let (done, is_done) = oneshot::channel();
        let cache = self.clone();
        let purge = move || {
            for order in &orders {
                cache.purge(order.purge(), order.strength);
            }
            // The caller may have stopped waiting.
            let _ = done.send(());
        };
        if self.disk().is_none() {
            purge();
        } else {
            let thread = std::thread::Builder::new().name("cache-purge".into());
            if let Err(error) = thread.spawn(purge) {
                tracing::error!(
                    "cache: a purge was lost, because no thread could be started: {error}"
                );
            }
        }
        async move {
            // An error means that it was reported.
            let _ = is_done.await;
        }
    }

    /// Why the last answer to this key was not stored, if that was lately. `is_known` is for a
    /// request that names its user, by credentials or a cookie.
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
    /// Invariant: one client does not keep others from the cache. A reason that lies in the
    /// request's credentials or cookies counts only for such requests.
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
            | NotStored::NoRoom
            | NotStored::Outdated
            | NotStored::Incomplete => {}
        }
    }

    /// An answer to this key was stored.
    pub fn note_stored(&self, key: &Key) {
        self.uncacheable.clear(key);
        self.failed.clear(key);
    }

    /// Whether a fetch for this key failed a moment ago.
    pub fn has_failed(&self, key: &Key, now: Instant) -> bool {
        self.failed.holds(key, now)
    }

    /// A fetch for this key failed: a stale response is served for a moment without asking.
    pub fn note_failed(&self, key: &Key, now: Instant) {
        self.failed.set(key, now, PAUSE, 0);
    }
}

fn random_secret() -> Secret {
    let mut secret = [0; 16];
    secret.fill_with(|| fastrand::u8(..));
    Secret(secret)
}

fn open_disk(settings: &config::CacheDisk) -> io::Result<DiskStore> {
    let clocks = Clocks {
        now: clock::now(),
        unix: (SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)).unwrap_or_default(),
    };
    let settings = disk::Settings {
        folder: settings.path.clone(),
        capacity_bytes: settings.size_bytes,
        reads: DISK_READS,
    };
    DiskStore::open(&settings, clocks).map_err(io::Error::other)
}

/// The caches of a configuration, in its order. A cache that was there `before` stays, if its
/// settings do.
///
/// # Errors
/// The folder of a cache has foreign files in it, or can't be used.
pub fn caches(config: &Config, before: &[Arc<Cache>]) -> io::Result<Vec<Arc<Cache>>> {
    let caches = config.caches.iter().map(|settings| {
        match before.iter().find(|it| it.settings == *settings) {
            Some(staying) => Ok(staying.clone()),
            None => {
                let made = Cache::new(settings);
                let name = &settings.name;
                made.map(Arc::new)
                    .map_err(|error| io::Error::other(format!("cache {name}: {error}")))
            }
        }
    });
    caches.collect()
}

/// Has caches continue the counts of caches of their names that were there `before`.
pub fn go_on_counting(caches: &[Arc<Cache>], before: &[Arc<Cache>]) {
    for cache in caches {
        let mut before = before.iter();
        if let Some(other) = before.find(|it| it.name() == cache.name())
            && !Arc::ptr_eq(cache, other)
        {
            cache.go_on_from(other);
        }
    }
}
