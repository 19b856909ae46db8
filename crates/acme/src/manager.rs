//! The names, and when each of them is ordered.
//!
//! ```text
//!              due                     lease taken            certificate in place
//!   waiting ─────────▶ looked at ─────────────▶ ordering ─────────────────────────▶ waiting
//!      ▲                  │ not due after all      │ failed: a longer pause
//!      └──────────────────┴────────────────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, watch};

use crate::attempt::{AskedFor, Attempts, NameCheck, Outcome, Task};
use crate::certificate::{StoredCertificate, date};
use crate::challenges::Challenges;
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, FailureKind};
use crate::name::Name;
use crate::on_demand::{Demands, Permission};
use crate::schedule;
use crate::settings::Settings;
use crate::sharing;
use crate::status::{LastError, NotFollowed, State, Status};
use crate::storage::{self, Failures, time};

/// Names that are looked at or ordered at once.
const AT_ONCE: usize = 8;

/// The longest sleep. The time of day may jump, and a machine may sleep.
const LONGEST_SLEEP: Duration = Duration::from_secs(300);

/// The pause until a lease of another process is looked at again.
const AFTER_BUSY: Duration = Duration::from_secs(10);

/// The pause of a name for which the server that machines share is needed and cannot be used.
/// The name is looked at as soon as the server can be used again.
const WITHOUT_SERVER: Duration = Duration::from_secs(300);

/// The pause after a start, where the last attempt failed before it.
const AFTER_RESTART: Duration = Duration::from_secs(60);

/// Why a text is never ordered.
const NO_NAME: &str = "it is not a host name, a wildcard name or an address";

/// How often files that were left behind are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(86_400);

/// Keeps certificates for names: orders them, and renews them in time.
///
/// Nothing happens until [`keep`](Self::keep) runs. All other methods may be called from any
/// thread, and none of them blocks.
pub struct Manager {
    attempts: Attempts,
    clock: Arc<dyn Clock>,
    names: Mutex<Names>,
    changed: Notify,
    demands: Option<Demands>,
}

/// What a client can expect if it asks for a name without a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Its certificate is ordered, or it is asked whether it may be.
    Pending,
    /// No certificate, for now.
    Refused,
}

/// The names that are followed.
#[derive(Debug, Default)]
struct Names {
    entries: BTreeMap<String, Entry>,
    /// When each name is looked at. Invariant: an entry is here at its `next`, unless it is
    /// running or its text is no name.
    agenda: BTreeSet<(SystemTime, String)>,
    /// A name waits for the server that machines share.
    waits_for_server: bool,
}

/// The state of a name.
#[derive(Debug)]
struct Entry {
    /// `None` where the text is no name that a certificate can have.
    name: Option<Name>,
    held: Option<StoredCertificate>,
    /// When it is looked at again.
    next: SystemTime,
    /// When it is ordered, as far as that is known.
    order_at: Option<SystemTime>,
    /// The end of the pause after a failure or a success. Only an operator orders before it.
    paused_until: Option<SystemTime>,
    /// The time in the window that the issuer suggests, and when it is asked again.
    suggested: Option<SystemTime>,
    ask_issuer_at: SystemTime,
    /// An operator wants it ordered now.
    asked_for: Option<AskedFor>,
    is_running: bool,
    is_ordering: bool,
    /// Another process ordered it at the last look.
    is_busy: bool,
    /// It was looked at since the start.
    is_known: bool,
    /// Failures in a row, also of other processes.
    failures: Option<Failures>,
    /// Challenges that were not passed, in a row.
    passed_over: usize,
    /// Why the server that machines share cannot be used, where it is needed.
    no_server: Option<LastError>,
}

impl Manager {
    /// Opens the storage, and reads the authorities of issuers. Blocks.
    ///
    /// # Errors
    /// The settings cannot be used, or the storage cannot be opened.
    pub fn new(settings: Settings) -> Result<Self, Error> {
        Self::with_clock(settings, Arc::new(SystemClock))
    }

    /// The same with another clock.
    ///
    /// # Errors
    /// As of [`Manager::new`].
    pub fn with_clock(mut settings: Settings, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let on_demand = settings.on_demand.take();
        let attempts = Attempts::new(settings, &clock)?;
        let demands = on_demand.map(|it| Demands::new(it, attempts.storage().clone(), &clock));
        Ok(Self {
            demands: demands.transpose()?,
            attempts,
            clock,
            names: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// The answers to challenges that are running.
    #[must_use]
    pub fn challenges(&self) -> Arc<Challenges> {
        self.attempts.challenges()
    }

    /// The file of the certificate of a name: one PEM file with the chain and the key.
    /// Renewals replace the whole file at once. `*.` is written as `_.`.
    #[must_use]
    pub fn certificate_path(storage: &Path, name: &str) -> PathBuf {
        storage::certificate_path(storage, name)
    }

    /// Keeps a certificate for each of these names from now on, and for no others. The files of
    /// other names stay. A name that another process has ordered is looked at again now.
    ///
    /// A text that is not a host name, a wildcard name or an address is never ordered. Its
    /// status says so.
    pub fn follow(&self, names: Vec<String>) {
        let now = self.clock.now();
        let mut followed = self.names();
        let mut before = std::mem::take(&mut followed.entries);
        // Issuers are not asked about very many certificates in the same second.
        let spread = Duration::from_secs(names.len() as u64);
        let mut further = Vec::new();
        for text in names {
            let name = Name::parse(&text);
            let key = name.as_ref().map_or(text, Name::to_string);
            let entry = before.remove(&key);
            let mut entry = entry.unwrap_or_else(|| {
                let ask_issuer_at = now + spread.mul_f64(fastrand::f64());
                further.push(key.clone());
                Entry::new(&key, name, now, ask_issuer_at)
            });
            if entry.is_busy {
                entry.next = now;
            }
            followed.entries.insert(key, entry);
        }
        followed.plan_all();
        drop(followed);
        if let Some(sharing) = &self.attempts.storage().sharing {
            sharing.compare_later(further);
        }
        self.changed.notify_one();
    }

    /// Takes over the state of a manager with other settings: an operator's orders, pauses
    /// after a certificate was obtained, and pauses that issuers have asked for.
    ///
    /// Call it once the names are followed. A failed order is tried again as after a restart.
    pub fn take_over(&self, before: &Self) {
        self.attempts.take_over(&before.attempts);
        let before = before.names();
        let mut names = self.names();
        for (key, entry) in &mut names.entries {
            let Some(before) = before.entries.get(key) else {
                continue;
            };
            entry.asked_for = entry.asked_for.or(before.asked_for);
            if before.failures.is_none() {
                entry.paused_until = entry.paused_until.max(before.paused_until);
            }
        }
    }

    /// Orders a certificate now, whatever the schedule says. If an order is already running,
    /// that order counts.
    ///
    /// # Errors
    /// The name is not followed.
    pub fn renew(&self, name: &str) -> Result<(), NotFollowed> {
        let key = Name::parse(name).ok_or(NotFollowed)?.to_string();
        let now = self.clock.now();
        let mut names = self.names();
        let entry = names.entries.get_mut(&key).ok_or(NotFollowed)?;
        if entry.is_ordering {
            return Ok(());
        }
        entry.asked_for = Some(if entry.is_busy {
            AskedFor::SinceLook
        } else {
            AskedFor::Now
        });
        names.look_at(key, now);
        drop(names);
        self.changed.notify_one();
        Ok(())
    }

    /// Notes that a client asks for a name without a certificate.
    ///
    /// An allowed name is among the [`demanded`](Self::demanded) ones from then on, which the
    /// program follows.
    pub fn demand(&self, server_name: &str) -> Demand {
        let standing = self.demands.as_ref().map(|it| it.want(server_name));
        match standing {
            None | Some(Permission::Refused) => Demand::Refused,
            Some(Permission::Undecided) => Demand::Pending,
            Some(Permission::Allowed) => {
                let key = Name::parse(server_name).map(|it| it.to_string());
                let names = self.names();
                let entry = key.and_then(|it| names.entries.get(&it));
                // One that has failed is tried again later.
                let has_failed = |it: &Entry| it.failures.is_some() || it.no_server.is_some();
                if entry.is_some_and(|it| has_failed(it) && !it.is_running) {
                    Demand::Refused
                } else {
                    Demand::Pending
                }
            }
        }
    }

    /// Goes on with the names that clients of `before` have asked for, as far as the settings
    /// may allow them.
    pub fn take_over_demands(&self, before: &Self) {
        if let (Some(demands), Some(before)) = (&self.demands, &before.demands) {
            demands.take_over(before);
        }
    }

    /// The names that clients have asked for and that are allowed, in order.
    #[must_use]
    pub fn demanded(&self) -> Vec<String> {
        self.demands
            .as_ref()
            .map_or_else(Vec::new, Demands::allowed)
    }

    /// Whether clients have asked for this name, and it is allowed.
    #[must_use]
    pub fn is_demanded(&self, name: &str) -> bool {
        let demands = self.demands.as_ref();
        demands.is_some_and(|it| it.is_allowed(name))
    }

    /// Told when other names are demanded than before; `None` where none ever is.
    #[must_use]
    pub fn demands(&self) -> Option<watch::Receiver<()>> {
        self.demands.as_ref().map(Demands::changes)
    }

    /// Told when a client may look again that waits for a certificate: when
    /// [`demand`](Self::demand) may say something else, or a certificate came. `None` where
    /// no name is ever demanded.
    #[must_use]
    pub fn progress(&self) -> Option<watch::Receiver<()>> {
        self.demands.as_ref().map(Demands::decisions)
    }

    /// Notes which of the demanded names have a certificate now.
    pub fn note_certificates(&self, has_certificate: impl Fn(&str) -> bool) {
        if let Some(demands) = &self.demands {
            demands.note_certificates(has_certificate);
        }
    }

    /// The state of each name, in the order of the names.
    #[must_use]
    pub fn status(&self) -> Vec<Status> {
        let now = self.clock.now();
        let names = self.names();
        let entries = names.entries.iter();
        let status = entries.map(|(name, entry)| entry.status(name, now));
        status.collect()
    }

    /// Orders and renews certificates, for ever. It needs a tokio runtime with I/O and time.
    ///
    /// # Cancellation
    /// Safe: dropping it stops running attempts, and releases its leases. The next call
    /// continues unfinished orders.
    pub async fn keep(&self) {
        tokio::join!(self.attend_due(), self.share());
    }

    /// Exchanges certificates with the server that machines share, for ever, if there is one.
    async fn share(&self) {
        let storage = self.attempts.storage();
        while storage.sharing.is_some() {
            let followed = |among| self.names().among(among);
            // The server says itself why it cannot be used.
            if let Ok(arrived) = storage.share(followed, self.clock.now()).await {
                self.names().wake(arrived, self.clock.now());
                self.changed.notify_one();
            }
            self.clock.sleep(sharing::EVERY).await;
        }
    }

    /// Looks at names when they are due, for ever.
    async fn attend_due(&self) {
        let mut demands = pin!(async {
            match &self.demands {
                Some(demands) => demands.keep().await,
                None => std::future::pending().await,
            }
        });
        let mut running = FuturesUnordered::new();
        let mut sweep_at = self.clock.now();
        loop {
            let now = self.clock.now();
            if now >= sweep_at {
                self.attempts.sweep(now).await;
                sweep_at = now + SWEEP_EVERY;
            }
            while running.len() < AT_ONCE
                && let Some(task) = self.names().take_due(now)
            {
                let looking = Looking {
                    manager: self,
                    task: Some(task),
                };
                running.push(looking.attend());
            }
            let next = self.names().next().filter(|_| running.len() < AT_ONCE);
            let sleep = next.map(|it| it.duration_since(now).unwrap_or_default());
            let sleep = sleep.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP);
            tokio::select! {
                Some(()) = running.next(), if !running.is_empty() => {}
                () = self.changed.notified() => {}
                () = self.clock.sleep(sleep) => {}
                () = &mut demands => {}
            }
        }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A look at a name. Dropping it puts the name back on the agenda.
struct Looking<'a> {
    manager: &'a Manager,
    /// `None` once it is done.
    task: Option<Task>,
}

impl Looking<'_> {
    /// Looks at the name, and orders its certificate where that is due.
    async fn attend(mut self) {
        let Some(task) = &self.task else {
            return;
        };
        let manager = self.manager;
        let key = task.name.to_string();
        let ordering = || {
            if let Some(entry) = manager.names().entries.get_mut(&key) {
                entry.is_ordering = true;
                // That is this order.
                entry.asked_for = None;
            }
        };
        let looked = manager.attempts.attend(task, ordering).await;
        let now = manager.clock.now();
        if let Some(task) = self.task.take() {
            let conclude = |entry: &mut Entry| entry.conclude(&key, &task, looked, now);
            manager.names().put_back(&key, conclude);
            if let Some(demands) = &manager.demands {
                demands.tell();
            }
        }
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            let again = |entry: &mut Entry| entry.asked_for = entry.asked_for.or(task.asked_for);
            self.manager.names().put_back(&task.name.to_string(), again);
            self.manager.changed.notify_one();
        }
    }
}

impl Names {
    /// Nothing runs for a name any more.
    fn put_back(&mut self, key: &str, conclude: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.is_running = false;
            entry.is_ordering = false;
            conclude(entry);
            self.waits_for_server |= entry.no_server.is_some();
            self.agenda.insert((entry.next, key.to_owned()));
        }
    }

    fn plan_all(&mut self) {
        let waits = |it: &&Entry| it.name.is_some() && !it.is_running;
        let waiting = self.entries.iter().filter(|(_, it)| waits(it));
        self.agenda = waiting.map(|(key, it)| (it.next, key.clone())).collect();
    }

    /// Names that certificates are kept for: all, or those among some.
    fn among(&self, some: Option<BTreeSet<String>>) -> BTreeSet<String> {
        let is_name = |entry: &Entry| entry.name.is_some();
        match some {
            Some(mut some) => {
                some.retain(|it| self.entries.get(it).is_some_and(is_name));
                some
            }
            None => {
                let all = self.entries.iter().filter(|it| is_name(it.1));
                all.map(|it| it.0.clone()).collect()
            }
        }
    }

    /// Schedules a look at a name for now.
    fn look_at(&mut self, key: String, now: SystemTime) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let before = std::mem::replace(&mut entry.next, now);
        // A running attempt has no entry in the agenda, and gets one when it is done.
        if self.agenda.remove(&(before, key.clone())) {
            self.agenda.insert((now, key));
        }
    }

    /// Schedules a look at names whose certificates came from the shared server, and at names
    /// that wait for that server.
    fn wake(&mut self, mut arrived: Vec<String>, now: SystemTime) {
        if std::mem::take(&mut self.waits_for_server) {
            let waiting = self.entries.iter().filter(|(_, it)| it.no_server.is_some());
            arrived.extend(waiting.map(|it| it.0.clone()));
        }
        for key in arrived {
            self.look_at(key, now);
        }
    }

    /// When the next name is looked at.
    fn next(&self) -> Option<SystemTime> {
        self.agenda.first().map(|it| it.0)
    }

    /// The name that has been due for the longest.
    fn take_due(&mut self, now: SystemTime) -> Option<Task> {
        if self.next()? > now {
            return None;
        }
        let (_, key) = self.agenda.pop_first()?;
        let entry = self.entries.get_mut(&key)?;
        entry.is_running = true;
        Some(Task {
            name: entry.name.clone()?,
            asked_for: entry.asked_for.take(),
            asks_issuer: entry.ask_issuer_at <= now,
            suggested: entry.suggested,
            passed_over: entry.passed_over,
            paused_until: entry.paused_until,
            failures: entry.failures.clone(),
            known: entry.is_known.then(|| entry.held.clone()),
        })
    }
}

impl Entry {
    /// Processes the outcome of a look at the name.
    fn conclude(&mut self, key: &str, task: &Task, looked: NameCheck, now: SystemTime) {
        if let Some(held) = looked.held {
            // Another process may have ordered it.
            if self.is_known && self.held != held {
                self.suggested = None;
                self.ask_issuer_at = now;
                if held.is_some() {
                    self.failures = None;
                }
            }
            self.held = held;
        }
        if let Some((suggested, again)) = looked.suggestion {
            self.suggested = suggested;
            self.ask_issuer_at = now + schedule::ask_again(again);
        }
        self.is_busy = matches!(looked.outcome, Outcome::Busy);
        self.no_server = None;
        match looked.outcome {
            Outcome::NoServer { text } => {
                self.keep_asking(task);
                self.next = now + WITHOUT_SERVER;
                self.no_server = Some(LastError { at: now, text });
            }
            Outcome::NotDue { at } => self.wait_for(at, now),
            Outcome::Obtained => {
                self.failures = None;
                self.passed_over = 0;
                let held = self.held.as_ref();
                let paused_until = now + held.map_or(AFTER_BUSY, schedule::pause_after_success);
                let by_fraction = held.map_or(paused_until, schedule::by_fraction);
                let at = self.suggested.unwrap_or(by_fraction);
                self.paused_until = Some(paused_until);
                self.wait_for(at.max(paused_until), now);
                self.tell_obtained(key);
            }
            Outcome::Busy => {
                self.keep_asking(task);
                self.next = now + AFTER_BUSY;
            }
            Outcome::FailedBefore(failures) => {
                let mut next = time(failures.next);
                if !self.is_known {
                    // An operator may have mended the cause, and started the program again.
                    next = next.min(time(failures.at) + AFTER_RESTART);
                }
                self.failures = Some(failures);
                self.paused_until = Some(next);
                self.wait_for(next, now);
            }
            Outcome::Failed { failures, kind } => {
                if matches!(kind, FailureKind::Challenge(_)) {
                    self.passed_over += 1;
                }
                self.tell_failed(key, &failures, now);
                let next = time(failures.next);
                self.failures = Some(failures);
                self.paused_until = Some(next);
                self.wait_for(next, now);
            }
        }
        self.is_known = true;
    }

    fn new(text: &str, name: Option<Name>, now: SystemTime, ask_issuer_at: SystemTime) -> Self {
        if name.is_none() {
            tracing::error!("acme: no certificate is ordered for {text:?}: {NO_NAME}");
        }
        Self {
            name,
            held: None,
            next: now,
            order_at: None,
            paused_until: None,
            suggested: None,
            ask_issuer_at,
            asked_for: None,
            is_running: false,
            is_ordering: false,
            is_busy: false,
            is_known: false,
            failures: None,
            passed_over: 0,
            no_server: None,
        }
    }

    /// Keeps an operator's request that could not be met at this look.
    fn keep_asking(&mut self, task: &Task) {
        let before = task.asked_for.map(|_| AskedFor::SinceLook);
        self.asked_for = self.asked_for.or(before);
    }

    /// Waits until an order is due, or the issuer is asked for its suggestion.
    fn wait_for(&mut self, order_at: SystemTime, now: SystemTime) {
        self.order_at = Some(order_at);
        let asks = self.held.as_ref().is_some_and(|it| it.id.is_some());
        let ask_at = self.ask_issuer_at.max(now);
        self.next = if asks { order_at.min(ask_at) } else { order_at };
        if self.asked_for.is_some() {
            self.next = now;
        }
    }

    fn status(&self, name: &str, now: SystemTime) -> Status {
        let last_error = match (&self.name, &self.failures) {
            _ if self.no_server.is_some() => self.no_server.clone(),
            (None, _) => Some(LastError {
                at: self.next,
                text: NO_NAME.to_owned(),
            }),
            (_, Some(failures)) => Some(LastError {
                at: time(failures.at),
                text: failures.text.clone(),
            }),
            (_, None) => None,
        };
        let state = if self.is_ordering {
            State::Ordering
        } else if last_error.is_some() {
            State::Failed
        } else if self.held.is_some() {
            State::Valid
        } else {
            State::Missing
        };
        let is_planned = self.name.is_some() && !self.is_ordering;
        let next_attempt = self.order_at.unwrap_or(self.next).max(now);
        Status {
            name: name.to_owned(),
            state,
            issuer: self.held.as_ref().and_then(|it| it.directory.clone()),
            not_after: self.held.as_ref().map(|it| it.not_after),
            next_attempt: is_planned.then_some(next_attempt),
            failures: self.failures.as_ref().map_or(0, |it| it.count),
            last_error,
        }
    }

    fn tell_obtained(&self, name: &str) {
        let Some(held) = &self.held else {
            return;
        };
        let issuer = held.directory.as_deref().unwrap_or("an unknown issuer");
        let (until, next) = (
            date(held.not_after),
            date(self.order_at.unwrap_or(self.next)),
        );
        tracing::info!(
            name,
            "acme: certificate of {name}: obtained from {issuer}, valid until {until}; it is \
             renewed about {next}"
        );
    }

    fn tell_failed(&self, name: &str, failures: &Failures, now: SystemTime) {
        let (count, text) = (failures.count, &failures.text);
        let next = date(time(failures.next));
        let times = match count {
            1 => "once".to_owned(),
            count => format!("{count} times in a row"),
        };
        // A twelfth of the lifetime: a week of 90 days.
        let is_urgent = |it: &StoredCertificate| it.not_after < now + it.lifetime() / 12;
        match &self.held {
            Some(held) if !is_urgent(held) => {
                let until = date(held.not_after);
                tracing::warn!(
                    name,
                    "acme: certificate of {name}: not renewed, failed {times}: {text}; the next \
                     try is at {next}, and the old one is valid until {until}"
                );
            }
            Some(held) => {
                let until = date(held.not_after);
                tracing::error!(
                    name,
                    "acme: certificate of {name}: not renewed, failed {times}: {text}; the next \
                     try is at {next}, and the old one expires at {until}"
                );
            }
            None => tracing::error!(
                name,
                "acme: certificate of {name}: not obtained, failed {times}: {text}; the next try \
                 is at {next}"
            ),
        }
    }
}
