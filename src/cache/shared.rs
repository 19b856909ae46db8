//! A tier of the HTTP cache that several machines share, at a Redis or Valkey server.
//!
//! Shared by all workers; one thread of its own talks to the server. A lookup waits for a short
//! time at most, and nothing else waits. After several failures in a row the server is not asked
//! for a while. An answer of the server is a hit only if this version wrote it, for the very key,
//! with a valid checksum. All else is a miss.
//!
//! Purges go through a log at the server ([`evenkeel_cache::ledger`]). A response has the place
//! in the log up to which it is known to be alive. Each lookup also reads the end of the log, so
//! that no purge of the server is overlooked. A machine that was cut off applies the missed
//! purges before it asks for anything again. If the log no longer has them, everything stored on
//! the machine is purged.
//!
//! Ages go by the server's clock: the machines' clocks may differ.

mod figures;
mod link;
mod outcome;
mod server;
mod value;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_cache::ledger::{Ledger, Order, Position};
use evenkeel_cache::purge::{Purge, Strength};
use evenkeel_cache::{Key, Object, Request, Secret, vary};
use tokio::sync::{Notify, mpsc, oneshot};

use figures::Counters;
use link::LookupResult;
use server::Failure;
use value::{Hash, Names, Selected};

use crate::shared_server::Server;

pub use figures::SharedFigures;
pub use outcome::Outcome;

/// Most lookups that wait.
const MAX_WAITING: usize = 1024;
/// Most responses that wait to be stored, whatever their length.
const MAX_STORES: usize = 4096;
/// A response with less time left is not stored.
const SHORTEST_TIME: Duration = Duration::from_secs(1);

/// How a server is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The address of the server.
    pub server: Server,
    /// The prefix of names at the server. Machines that share have the same.
    pub prefix: String,
    /// Longest time of a lookup.
    pub timeout: Duration,
    /// Longest response that is stored, head and body, in bytes.
    pub longest_bytes: usize,
    /// Longest time that a response is kept.
    pub longest_time: Duration,
    /// Bytes of responses that may wait to be stored.
    pub queue_bytes: usize,
}

impl Settings {
    /// The settings of this server, all others by default.
    pub fn new(server: Server) -> Self {
        Settings {
            server,
            prefix: "evenkeel".to_owned(),
            timeout: Duration::from_millis(50),
            longest_bytes: 1 << 20,
            longest_time: Duration::from_hours(72),
            queue_bytes: 16 << 20,
        }
    }
}

/// The stores of this machine, in memory and on disk.
pub trait Stores: Send + Sync + 'static {
    /// Purges it. May block.
    fn purge(&self, what: Purge<'_>, strength: Strength);

    /// The count of purges, for an object that is asked for now.
    fn purge_count(&self) -> u64;

    /// The place in the log of purges up to which an earlier process has applied it to these
    /// stores. `None` if it is not known. May block.
    fn position(&self) -> Option<Position>;

    /// Notes that the log was applied up to here. May block.
    fn note_position(&self, position: Position);
}

impl Stores for evenkeel_cache::Memory {
    fn purge(&self, what: Purge<'_>, strength: Strength) {
        self.purge(what, strength);
    }

    fn purge_count(&self) -> u64 {
        self.purge_count()
    }

    /// Nothing stays in memory.
    fn position(&self) -> Option<Position> {
        None
    }

    fn note_position(&self, _: Position) {}
}

/// The shared tier. Its thread ends when the tier is dropped.
#[derive(Debug)]
pub struct Shared {
    tier: Arc<Tier>,
    asks: mpsc::Sender<Ask>,
    stores: mpsc::Sender<Store>,
}

/// State that workers and the tier's thread share.
struct Tier {
    settings: Settings,
    /// The secret of this machine's stores: tags are hashed with it.
    secret: Secret,
    names: Names,
    stores: Box<dyn Stores>,
    ledger: Mutex<Ledger>,
    /// A purge waits to be sent, or has come back.
    purges_moved: Notify,
    /// Entries of the log were applied.
    log_moved: Notify,
    is_up: AtomicBool,
    failure: Mutex<Option<Failure>>,
    waiting: AtomicUsize,
    store_queue_bytes: AtomicUsize,
    counters: Counters,
}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tier")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// A request to the thread.
#[derive(Debug)]
enum Ask {
    /// A value.
    Look {
        key: Hash,
        selected: Option<Selected>,
        until: tokio::time::Instant,
        answer: oneshot::Sender<LookupResult>,
    },
    /// To remove the responses of a key.
    Remove(Removal),
}

/// A removal. A removal that does not reach the server becomes a purge.
#[derive(Debug)]
struct Removal {
    tier: Arc<Tier>,
    key: Hash,
    /// Empty once it is done.
    url: Box<[u8]>,
}

impl Removal {
    fn done(mut self) {
        self.tier.counters.removals.add(1);
        self.url = Box::default();
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        if !self.url.is_empty() {
            let url = Purge::Url(&self.url);
            // The stores here have removed it.
            let serial = self.tier.note_purge(Order::new(url, Strength::Hard));
            self.tier.note_purged(serial);
        }
    }
}

/// A response to be stored.
#[derive(Debug)]
struct Store {
    object: Object,
    /// Its bytes in the queue.
    queued: Queued,
}

/// A count that is taken back when this is dropped.
#[derive(Debug)]
struct Queued {
    tier: Arc<Tier>,
    bytes: usize,
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.tier.store_queue_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// A lookup that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Shared {
    /// Starts the thread. The machine's stores have the same `secret`.
    ///
    /// Purges of this machine must go through [`purge`](Self::purge), which purges its stores
    /// too. Other machines do not hear of a purge that goes another way.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(
        settings: Settings,
        secret: Secret,
        stores: Box<dyn Stores>,
    ) -> io::Result<Shared> {
        let tier = Arc::new(Tier {
            names: Names::new(&settings.prefix),
            secret,
            stores,
            ledger: Mutex::new(Ledger::new(fastrand::u64(..))),
            purges_moved: Notify::new(),
            log_moved: Notify::new(),
            is_up: AtomicBool::new(false),
            failure: Mutex::default(),
            waiting: AtomicUsize::new(0),
            store_queue_bytes: AtomicUsize::new(0),
            counters: Counters::default(),
            settings,
        });
        let (asks, asked) = mpsc::channel(MAX_WAITING);
        let (sender, stored) = mpsc::channel(MAX_STORES);
        link::start(tier.clone(), asked, stored)?;
        Ok(Shared {
            tier,
            asks,
            stores: sender,
        })
    }

    /// The response that answers a request, if it comes in time. Purges count for it as for the
    /// machine's own stores.
    ///
    /// # Cancellation
    /// Nothing is left behind.
    pub async fn get(&self, key: &Key, request: &Request<'_>) -> Option<Object> {
        let (found, outcome) = match self.find(key, request).await {
            Ok(found) => (Some(found), Outcome::Hit),
            Err(outcome) => (None, outcome),
        };
        self.tier.counters.lookups.note(outcome.word());
        found
    }

    async fn find(&self, key: &Key, request: &Request<'_>) -> Result<Object, Outcome> {
        if !self.tier.is_up.load(Relaxed) {
            return Err(Outcome::Down);
        }
        let _waiting = self.tier.begin_waiting().ok_or(Outcome::Full)?;
        let until = tokio::time::Instant::now() + self.tier.settings.timeout;
        let hash = value::hash(&key.bytes);
        let object = match self.look(hash, None, until).await {
            LookupResult::Object(object) => object,
            LookupResult::Missing(outcome) => return Err(outcome),
            LookupResult::Names(names) => {
                let selector = vary::selector_of(&names.names, request);
                let selected = Selected {
                    nonce: names.nonce,
                    selector: value::hash(&selector),
                };
                match self.look(hash, Some(selected), until).await {
                    LookupResult::Object(object) => object,
                    LookupResult::Names(_) => return Err(Outcome::Foreign),
                    LookupResult::Missing(outcome) => return Err(outcome),
                }
            }
        };
        if object.key() != &*key.bytes {
            return Err(Outcome::Foreign);
        }
        if !vary::selects(object.selector(), request) {
            return Err(Outcome::Absent);
        }
        Ok(object)
    }

    async fn look(
        &self,
        key: Hash,
        selected: Option<Selected>,
        until: tokio::time::Instant,
    ) -> LookupResult {
        let (answer, answered) = oneshot::channel();
        let ask = Ask::Look {
            key,
            selected,
            until,
            answer,
        };
        match self.asks.try_send(ask) {
            // The thread drops the sender when the connection ends.
            Ok(()) => answered
                .await
                .unwrap_or(LookupResult::Missing(Outcome::Down)),
            Err(_) => LookupResult::Missing(Outcome::Full),
        }
    }

    /// Stores a response for all machines, if there is room. Never waits.
    pub fn put(&self, object: &Object) {
        if let Err(outcome) = self.queue(object) {
            self.tier.counters.stores.note(outcome.word());
        }
    }

    fn queue(&self, object: &Object) -> Result<(), Outcome> {
        let tier = &self.tier;
        if !tier.is_up.load(Relaxed) {
            return Err(Outcome::Down);
        }
        if time_left(object) < SHORTEST_TIME {
            return Err(Outcome::Short);
        }
        let bytes = object.body_len() + object.lines().len() as u64;
        let bytes = usize::try_from(bytes).map_err(|_| Outcome::Long)?;
        if bytes > tier.settings.longest_bytes {
            return Err(Outcome::Long);
        }
        let queued = Queued {
            tier: tier.clone(),
            bytes,
        };
        let before = tier.store_queue_bytes.fetch_add(bytes, Relaxed);
        if before + bytes > tier.settings.queue_bytes {
            return Err(Outcome::Full);
        }
        let object = object.clone();
        let sent = self.stores.try_send(Store { object, queued });
        sent.map_err(|_| Outcome::Full)
    }

    /// Removes the responses of a key, for all machines. Never waits.
    ///
    /// While the server is down, this becomes a purge of the URL for later.
    pub fn remove(&self, key: &Key) {
        let removal = Removal {
            tier: self.tier.clone(),
            key: value::hash(&key.bytes),
            url: key.url().into(),
        };
        // Without room in the queue the removal is dropped, which purges.
        let _ = self.asks.try_send(Ask::Remove(removal));
    }

    /// Purges the stores of this machine, and then all other machines as soon as the server has
    /// it. May block as [`Stores::purge`] does.
    pub fn purge(&self, what: Purge<'_>, strength: Strength) {
        // First, or a lookup would find responses that the stores here no longer have.
        let serial = self.tier.note_purge(Order::new(what, strength));
        self.tier.stores.purge(what, strength);
        self.tier.note_purged(serial);
    }

    /// Reads the figures.
    pub fn figures(&self) -> SharedFigures {
        let tier = &self.tier;
        let counters = &tier.counters;
        SharedFigures {
            server: tier.settings.server.to_string(),
            up: tier.is_up.load(Relaxed),
            failure: lock(&tier.failure).as_ref().map(Failure::to_string),
            lookups: counters.lookups.read(),
            stores: counters.stores.read(),
            downs: counters.downs.read(),
            ups: counters.ups.value(),
            probes: counters.probes.value(),
            removals: counters.removals.value(),
            purges_sent: counters.purges_sent.value(),
            purges_received: counters.purges_received.value(),
            purged_unknown: counters.purged_unknown.value(),
            purges_waiting: tier.ledger().pending() as u64,
            waiting: tier.waiting.load(Relaxed) as u64,
            store_queue_bytes: tier.store_queue_bytes.load(Relaxed) as u64,
            received_bytes: counters.received_bytes.value(),
            sent_bytes: counters.sent_bytes.value(),
        }
    }
}

impl Tier {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    fn begin_waiting(&self) -> Option<Waiting<'_>> {
        let waiting = Waiting(&self.waiting);
        let before = self.waiting.fetch_add(1, Relaxed);
        (before < MAX_WAITING).then_some(waiting)
    }

    fn note_purge(&self, order: Order) -> u64 {
        self.ledger().purge(&self.secret, order)
    }

    /// The stores here have applied the purge: it may go to the log.
    fn note_purged(&self, serial: u64) {
        self.ledger().note_purged(serial);
        self.purges_moved.notify_one();
    }
}

/// For how long a response may be used in any way.
fn time_left(object: &Object) -> Duration {
    let stored = object.stored(crate::net::clock::now());
    let lifetime = &stored.lifetime;
    if lifetime.always_validate || stored.is_purged {
        return Duration::ZERO;
    }
    let stale = lifetime.while_revalidate.max(lifetime.if_error);
    let longest = u64::from(lifetime.fresh) + u64::from(stale);
    Duration::from_secs(longest).saturating_sub(stored.age)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
