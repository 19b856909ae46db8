//! The tier's thread: connections to the server, and when it is not asked.
//!
//! ```text
//!          connected, purges applied, an answer in time
//!   DOWN ───────────────────────────────────────────────▶ UP
//!    ▲ ▲                                                   │
//!    │ └─ a try fails: a longer pause ─ DOWN               │
//!    └─────────────────────────────────────────────────────┘
//!       no connection, or failures in a row, or another log
//! ```
//!
//! One try at a time. While the server is down, every lookup is a miss at once.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant as StdInstant};

use evenkeel_cache::ledger::{Entry, Gap, Order, Position};
use evenkeel_cache::purge::{Fate, Strength};
use evenkeel_cache::{Object, record, vary};
use evenkeel_policy::Instant;
use evenkeel_proto::identity::hex;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout, timeout_at};

use super::outcome::Outcome;
use super::server::{self, Connection, Failure};
use super::value::{self, NONCE_LEN, Value, VaryNames};
use super::{Ask, Store, Tier, lock, time_left};
use crate::net::clock;
use crate::shared_server::Pauses;

/// Time for the server to take connections, with the password.
const CONNECT_TIME: Duration = Duration::from_secs(3);
/// Time for an answer that no client waits for.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Interval of signs of life from the server.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// After so many failed lookups in a row, the server is not asked.
const MOST_FAILURES: u32 = 5;
/// After so many slow stores in a row, likewise.
const MOST_SLOW_STORES: u32 = 3;
/// Responses that are sent to the server at once.
const STORES_AT_ONCE: usize = 16;
/// Bytes that a value may have beside head and body: key, selector and sums.
const BESIDE_BYTES: usize = 192 * 1024;
/// The result of a lookup.
#[derive(Debug)]
pub(super) enum LookupResult {
    Object(Object),
    /// Responses are selected by these names.
    Names(VaryNames),
    Missing(Outcome),
}

/// Starts the thread. It ends when no handle to it is left.
pub(super) fn start(
    tier: Arc<Tier>,
    asks: mpsc::Receiver<Ask>,
    stores: mpsc::Receiver<Store>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .thread_name("cache-purges")
        .max_blocking_threads(2)
        .build()?;
    let link = Link { tier, asks, stores };
    let thread = std::thread::Builder::new().name("shared-cache".to_owned());
    thread.spawn(move || {
        runtime.block_on(link.run());
        // A look-up of a name may block for long.
        runtime.shutdown_background();
    })?;
    Ok(())
}

/// The thread's side of the tier.
struct Link {
    tier: Arc<Tier>,
    asks: mpsc::Receiver<Ask>,
    stores: mpsc::Receiver<Store>,
}

/// No handle to the thread is left.
struct Ended;

impl Link {
    async fn run(mut self) {
        let Err(Ended) = self.stay_connected().await;
    }

    async fn stay_connected(&mut self) -> Result<std::convert::Infallible, Ended> {
        let mut pauses = Pauses::default();
        let mut down_since = StdInstant::now();
        loop {
            let tier = self.tier.clone();
            let begin = Session::begin(tier);
            let failure = match self.refusing(begin).await? {
                Ok(begun) => {
                    let up_since = StdInstant::now();
                    let after = up_since.duration_since(down_since);
                    self.tier.note_up(begun.log, after);
                    let failure = begun.run(&mut self.asks, &mut self.stores).await?;
                    down_since = StdInstant::now();
                    pauses.note_up(down_since.duration_since(up_since));
                    failure
                }
                Err(failure) => failure,
            };
            let pause = pauses.next();
            self.tier.note_down(failure, pause);
            self.refusing(sleep(pause)).await?;
        }
    }

    /// Waits, and refuses all requests meanwhile.
    async fn refusing<T>(&mut self, wait: impl Future<Output = T>) -> Result<T, Ended> {
        let mut wait = std::pin::pin!(wait);
        loop {
            tokio::select! {
                done = &mut wait => return Ok(done),
                ask = self.asks.recv() => match ask.ok_or(Ended)? {
                    Ask::Look { answer, .. } => {
                        // The asker may be gone.
                        let _ = answer.send(LookupResult::Missing(Outcome::Down));
                    }
                    // A dropped removal becomes a purge.
                    Ask::Remove(removal) => drop(removal),
                },
                Some(_) = self.stores.recv() => {
                    self.tier.counters.stores.note(Outcome::Down.word());
                }
            }
        }
    }
}

/// How a machine found the log of purges.
#[derive(Debug, Clone, Copy)]
enum Log {
    /// For the first time.
    First,
    /// It goes on from its last place, with so many purges of others.
    Continued { missed: usize },
    /// Purges may be missing.
    Broken,
}

impl Tier {
    fn note_up(&self, log: Log, after: Duration) {
        *lock(&self.failure) = None;
        self.is_up.store(true, Relaxed);
        self.counters.ups.add(1);
        let server = &self.settings.server;
        let after = after.as_millis();
        let said = match log {
            Log::First => String::new(),
            Log::Continued { missed: 0 } => format!(" after {after} ms"),
            Log::Continued { missed } => {
                format!(" after {after} ms; purges in the meantime: {missed}")
            }
            Log::Broken => format!(
                " after {after} ms; it no longer knows the purges of the meantime, so everything \
                 stored here is purged"
            ),
        };
        tracing::info!(%server, "shared cache {server} is UP{said}");
    }

    fn note_down(&self, failure: Failure, pause: Duration) {
        let was_up = self.is_up.swap(false, Relaxed);
        let server = &self.settings.server;
        let before = lock(&self.failure).replace(failure.clone());
        // A try that fails as the one before did is no news.
        if was_up || before.is_none_or(|it| it.outcome != failure.outcome) {
            let word = failure.outcome.word();
            self.counters.downs.note(word);
            let pause = pause.as_millis();
            tracing::warn!(
                %server,
                failure = word,
                "shared cache {server} is DOWN: {failure}; the next try is in {pause} ms"
            );
        }
    }

    /// Purges the stores of this machine. `position` is that of the log then.
    async fn purge_stores(
        self: &Arc<Self>,
        orders: Vec<Order>,
        position: Position,
    ) -> Result<(), Failure> {
        let tier = self.clone();
        let purge = move || {
            for order in &orders {
                tier.stores.purge(order.purge(), order.strength);
            }
            tier.stores.note_position(position);
            tier.stores.purge_count()
        };
        // The purge goes on even if nobody waits for it any more.
        let count = spawn_blocking(purge).await;
        let mut ledger = self.ledger();
        match count {
            Ok(count) => ledger.note_count(position.number, count),
            Err(error) => {
                ledger.forget();
                return Err(Failure::new(Outcome::Log, error.to_string()));
            }
        }
        Ok(())
    }

    /// Waits until the log was applied up to here: another connection has read it.
    async fn caught_up(&self, last: Position) {
        loop {
            let moved = self.log_moved.notified();
            let position = self.ledger().position();
            if position.is_some_and(|it| it.number >= last.number) {
                return;
            }
            moved.await;
        }
    }

    /// Applies entries of the log; gives the purges that the stores here have not had.
    fn apply(&self, entries: Vec<Entry>) -> Result<Vec<Order>, Failure> {
        let mut ledger = self.ledger();
        let mut orders = Vec::new();
        for entry in entries {
            match ledger.apply(&self.secret, entry) {
                Ok(order) => orders.extend(order),
                Err(Gap) => {
                    ledger.forget();
                    return Err(log_failure("has a gap"));
                }
            }
        }
        self.counters.purges_received.add(orders.len() as u64);
        Ok(orders)
    }
}

fn log_failure(what: &str) -> Failure {
    Failure::new(Outcome::Log, format!("the log of purges {what}"))
}

/// Waits for an answer, but not for ever.
async fn within<T>(
    time: Duration,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match timeout(time, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(slow(time)),
    }
}

fn slow(time: Duration) -> Failure {
    let millis = time.as_millis();
    Failure::new(Outcome::Slow, format!("no answer within {millis} ms"))
}

/// The time while the server is up.
struct Session {
    tier: Arc<Tier>,
    lookups: Connection,
    /// Long values keep no lookup waiting.
    stores: Connection,
    /// Waits for purges.
    log: Connection,
    /// The server's clock, and when it was read. The server was no earlier than that.
    clock: Mutex<(Duration, Instant)>,
    failures: AtomicU32,
    slow_stores: AtomicU32,
    /// Why responses are refused.
    refused: Mutex<Option<Outcome>>,
    over: mpsc::Sender<Failure>,
}

/// A session that begins.
struct NewSession {
    session: Arc<Session>,
    is_over: mpsc::Receiver<Failure>,
    log: Log,
}

impl Session {
    /// Connects, applies the purges that this machine has not seen, and looks whether
    /// the server answers in time.
    async fn begin(tier: Arc<Tier>) -> Result<NewSession, Failure> {
        tier.counters.probes.add(1);
        let server = &tier.settings.server;
        let connections = async {
            Ok([
                Connection::open(server).await?,
                Connection::open(server).await?,
                Connection::open(server).await?,
            ])
        };
        let [lookups, stores, log] = within(CONNECT_TIME, connections).await?;
        let begin = log.begin_log(&tier.names, fastrand::u64(..));
        within(ANSWER_TIME, begin).await?;
        let how = catch_up(&tier, &log).await?;
        let time = within(ANSWER_TIME, log.time()).await?;
        let clock = Mutex::new((time, clock::now()));
        let name = tier.names.key(&value::hash(b""));
        let look = lookups.look(&tier.names, &name, 0);
        within(tier.settings.timeout, look).await?;
        let (over, is_over) = mpsc::channel(1);
        let session = Session {
            tier,
            lookups,
            stores,
            log,
            clock,
            failures: AtomicU32::new(0),
            slow_stores: AtomicU32::new(0),
            refused: Mutex::default(),
            over,
        };
        Ok(NewSession {
            session: Arc::new(session),
            is_over,
            log: how,
        })
    }
}

impl NewSession {
    /// Serves until something fails.
    async fn run(
        mut self,
        asks: &mut mpsc::Receiver<Ask>,
        stores: &mut mpsc::Receiver<Store>,
    ) -> Result<Failure, Ended> {
        let session = &self.session;
        let mut following = std::pin::pin!(session.follow_log());
        let mut sending = std::pin::pin!(session.send_purges());
        let mut asked = JoinSet::new();
        let mut stored = JoinSet::new();
        loop {
            tokio::select! {
                failure = &mut following => return Ok(failure),
                failure = &mut sending => return Ok(failure),
                Some(failure) = self.is_over.recv() => return Ok(failure),
                ask = asks.recv() => {
                    asked.spawn(session.clone().answer(ask.ok_or(Ended)?));
                }
                Some(store) = stores.recv(), if stored.len() < STORES_AT_ONCE => {
                    stored.spawn(session.clone().store(store));
                }
                Some(_) = asked.join_next(), if !asked.is_empty() => {}
                Some(_) = stored.join_next(), if !stored.is_empty() => {}
            }
        }
    }
}

impl Session {
    fn end(&self, failure: Failure) {
        // The first one is enough.
        let _ = self.over.try_send(failure);
    }

    async fn answer(self: Arc<Self>, ask: Ask) {
        let names = &self.tier.names;
        match ask {
            Ask::Look {
                key,
                selected,
                until,
                answer,
            } => {
                if answer.is_closed() {
                    return;
                }
                let name = match &selected {
                    None => names.key(&key),
                    Some(selected) => names.selected(&key, selected),
                };
                let looked = self.look(&name, until).await;
                let looked = looked.unwrap_or_else(LookupResult::Missing);
                let _ = answer.send(looked);
            }
            Ask::Remove(removal) => {
                let name = names.key(&removal.key);
                match within(ANSWER_TIME, self.lookups.remove(&name)).await {
                    Ok(()) => removal.done(),
                    Err(failure) => self.note_failure(failure),
                }
            }
        }
    }

    async fn look(
        &self,
        name: &[u8],
        until: tokio::time::Instant,
    ) -> Result<LookupResult, Outcome> {
        let tier = &self.tier;
        let most = tier.settings.longest_bytes + BESIDE_BYTES;
        let known = tier.ledger().position().ok_or(Outcome::Log)?;
        let asked = clock::now();
        let found = timeout_at(until, self.lookups.look(&tier.names, name, most)).await;
        let found = found.unwrap_or_else(|_| Err(slow(tier.settings.timeout)));
        let found = match found {
            Ok(found) => found,
            Err(failure) => {
                let outcome = failure.outcome;
                self.note_failure(failure);
                return Err(outcome);
            }
        };
        self.failures.store(0, Relaxed);
        tier.counters.received_bytes.add(found.bytes.len() as u64);
        let last = found.last.filter(|it| it.epoch == known.epoch);
        let Some(last) = last.filter(|it| it.number >= known.number) else {
            self.end(log_failure("is another one"));
            return Err(Outcome::Log);
        };
        if found.bytes.is_empty() {
            return Err(Outcome::Absent);
        }
        if found.bytes.len() > most {
            return Err(Outcome::Long);
        }
        let left = found.left.ok_or(Outcome::Foreign)?;
        let response = match value::decode(&found.bytes)? {
            Value::Removed => return Err(Outcome::Removed),
            Value::Names(names) => return Ok(LookupResult::Names(names)),
            Value::Response(response) => response,
        };
        let server = response.expiry.checked_sub(left).ok_or(Outcome::Damaged)?;
        let object = response.object(&tier.secret, server, asked)?;
        let caught_up = timeout_at(until, tier.caught_up(last));
        caught_up.await.map_err(|_| Outcome::Behind)?;
        match tier
            .ledger()
            .judge(&tier.secret, &object, response.position)
        {
            Fate::Alive => Ok(LookupResult::Object(object)),
            Fate::Gone => Err(Outcome::Purged),
        }
    }

    /// A lookup or a removal failed.
    fn note_failure(&self, mut failure: Failure) {
        match failure.outcome {
            // That is the value's fault.
            Outcome::Foreign => {}
            Outcome::Connection | Outcome::Protocol => self.end(failure),
            _ => {
                let count = self.failures.fetch_add(1, Relaxed) + 1;
                if count >= MOST_FAILURES {
                    failure.text += &format!(", {count} times in a row");
                    self.end(failure);
                }
            }
        }
    }

    async fn store(self: Arc<Self>, store: Store) {
        let outcome = match self.send(&store.object).await {
            Ok(outcome) | Err(Refusal::Here(outcome)) => outcome,
            Err(Refusal::Server(failure)) => {
                let outcome = failure.outcome;
                self.note_store_failure(failure);
                outcome
            }
        };
        if outcome == Outcome::Stored {
            self.slow_stores.store(0, Relaxed);
            if lock(&self.refused).take().is_some() {
                let server = &self.tier.settings.server;
                tracing::info!(%server, "shared cache {server} stores again");
            }
        }
        self.tier.counters.stores.note(outcome.word());
        drop(store.queued);
    }

    async fn send(&self, object: &Object) -> Result<Outcome, Refusal> {
        let tier = &self.tier;
        let position = tier.ledger().position_of(object);
        let position = position.ok_or(Refusal::Here(Outcome::Old))?;
        let longest = tier.settings.longest_time;
        let (time, read) = *lock(&self.clock);
        let now = clock::now();
        let clocks = record::Clocks {
            now: read,
            unix: time,
        };
        let expiry = time + now.duration_since(read) + time_left(object).min(longest);
        let value = value::encode(object, position, expiry, &clocks, now);
        let value = value.ok_or(Refusal::Here(Outcome::Long))?;
        let nonce: [u8; NONCE_LEN] = hex(fastrand::u128(..));
        let store = server::Store {
            value: &value,
            expiry,
            longest,
            names: &vary::names(object.selector()),
            nonce: &nonce,
            selector: &value::digits(&value::hash(object.selector())),
        };
        let name = tier.names.key(&value::hash(object.key()));
        let stored = within(ANSWER_TIME, self.stores.store(&name, &store)).await;
        let outcome = stored.map_err(Refusal::Server)?;
        if outcome == Outcome::Stored {
            tier.counters.sent_bytes.add(value.len() as u64);
        }
        Ok(outcome)
    }

    fn note_store_failure(&self, failure: Failure) {
        let outcome = failure.outcome;
        let count = match outcome {
            Outcome::Connection | Outcome::Protocol => MOST_SLOW_STORES,
            Outcome::Slow => self.slow_stores.fetch_add(1, Relaxed) + 1,
            _ => {
                if lock(&self.refused).replace(outcome) != Some(outcome) {
                    let server = &self.tier.settings.server;
                    let word = outcome.word();
                    tracing::warn!(%server, failure = word, "shared cache {server} stores nothing: {failure}");
                }
                return;
            }
        };
        if count >= MOST_SLOW_STORES {
            self.end(failure);
        }
    }

    /// Applies purges as they come.
    async fn follow_log(&self) -> Failure {
        loop {
            if let Err(failure) = self.follow_once().await {
                return failure;
            }
        }
    }

    async fn follow_once(&self) -> Result<(), Failure> {
        let tier = &self.tier;
        let known = tier.ledger().position();
        let known = known.ok_or_else(|| log_failure("is not known"))?;
        let watch = self.log.watch_log(&tier.names, known.number, HEARTBEAT);
        let watched = within(HEARTBEAT + ANSWER_TIME, watch).await?;
        *lock(&self.clock) = (watched.time, clock::now());
        let is_it = |it: &Position| it.epoch == known.epoch && it.number >= known.number;
        if !watched.last.as_ref().is_some_and(is_it) {
            return Err(log_failure("is another one"));
        }
        let Some(newest) = watched.entries.last().map(|it| it.position) else {
            return Ok(());
        };
        let orders = tier.apply(watched.entries)?;
        tier.log_moved.notify_waiters();
        tier.purges_moved.notify_one();
        tier.purge_stores(orders, newest).await
    }

    /// Tells the log of this machine's purges, one after another.
    async fn send_purges(&self) -> Failure {
        let tier = &self.tier;
        let mut sent = None;
        let mut is_refused = false;
        loop {
            let next = {
                let ledger = tier.ledger();
                let next = ledger.next_pending();
                next.map(|(by, order)| (by, order.clone()))
            };
            // One that was sent is pending until the log brings it back.
            let Some((by, order)) = next.filter(|(by, _)| sent != Some(by.serial)) else {
                tier.purges_moved.notified().await;
                continue;
            };
            let purge = self.lookups.purge(&tier.names, by, &order);
            match within(ANSWER_TIME, purge).await {
                Ok(Some(_)) => {
                    sent = Some(by.serial);
                    tier.counters.purges_sent.add(1);
                    is_refused = false;
                }
                Ok(None) => return log_failure("is gone"),
                Err(failure) => match failure.outcome {
                    Outcome::Connection | Outcome::Protocol | Outcome::Slow => return failure,
                    _ => {
                        if !std::mem::replace(&mut is_refused, true) {
                            let server = &tier.settings.server;
                            tracing::warn!(
                                %server,
                                failure = failure.outcome.word(),
                                "shared cache {server} takes no purges: {failure}; they wait"
                            );
                        }
                        sleep(HEARTBEAT).await;
                    }
                },
            }
        }
    }
}

/// Why a response was not stored.
enum Refusal {
    /// By this machine.
    Here(Outcome),
    /// By the server.
    Server(Failure),
}

/// Applies what the log has and this machine has not seen.
async fn catch_up(tier: &Arc<Tier>, connection: &Connection) -> Result<Log, Failure> {
    let page = async |from| within(ANSWER_TIME, connection.log(&tier.names, from)).await;
    let known = tier.ledger().position();
    let mut entries = page(known.map(|it| it.number)).await?;
    let continues = known.is_some() && entries.first().map(|it| it.position) == known;
    if !continues {
        entries = page(None).await?;
    }
    while let Some(newest) = entries.last().map(|it| it.position.number) {
        let more = page(Some(newest + 1)).await?;
        if more.is_empty() {
            break;
        }
        entries.extend(more);
    }
    // From here on nothing is lost: applied purges are made even if nobody waits for them.
    let newest = entries.last().ok_or_else(|| log_failure("is empty"))?;
    let newest = newest.position;
    // Stored responses may be from an earlier process, which has applied a part of the log.
    let applied = match known.filter(|_| continues) {
        Some(known) => Some(known),
        None => {
            tier.ledger().restart(&entries[0]);
            let stores = tier.clone();
            let saved = spawn_blocking(move || stores.stores.position()).await;
            saved.unwrap_or_default()
        }
    };
    let applied = entries.iter().position(|it| Some(it.position) == applied);
    let missing = entries.split_off(applied.map_or(0, |at| at + 1));
    if !continues {
        tier.apply(entries)?;
    }
    let mut orders = tier.apply(missing)?;
    let missed = orders.len();
    if applied.is_none() {
        orders = vec![Order::everything(Strength::Hard)];
    }
    tier.purge_stores(orders, newest).await?;
    let is_first = tier.counters.ups.value() == 0;
    Ok(match applied {
        Some(_) => Log::Continued { missed },
        None if is_first => Log::First,
        None => {
            tier.counters.purged_unknown.add(1);
            Log::Broken
        }
    })
}
