//! The shared state of an endpoint: its load, limit and flags.
//!
//! Workers share it: atomics on a cache line of their own. Nothing else is
//! shared on the fast path.

mod reservation;

use std::time::Duration;

use crate::Instant;
use crate::sync::{AtomicU16, AtomicU32, AtomicU64, Ordering};
pub use reservation::{Reservation, Trial, Tried};

/// The identity of an endpoint within its upstream, wherever it stands in the list.
///
/// Invariant: an id names one endpoint as long as anything is in flight or pooled
/// there. Ids are small numbers, so that tables may go by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(u32);

impl EndpointId {
    /// The id with this number.
    pub const fn new(number: u32) -> Self {
        EndpointId(number)
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Its place in a table by id.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The settings that one endpoint begins with.
#[derive(Debug, Clone)]
pub struct EndpointSettings<'a> {
    /// Its name: the same name has the same keys.
    pub name: &'a str,
    /// Hash of the settings that its connections depend on, such as its
    /// address. Another hash makes another endpoint, whatever its name.
    pub fingerprint: u64,
    /// Share of the traffic relative to the other endpoints.
    pub weight: u32,
    /// Most exchanges in flight; `None` is no limit.
    pub max_in_flight: Option<u32>,
    /// Its tier: it gets exchanges only while no lower tier has an eligible
    /// endpoint.
    pub tier: u16,
}

/// The operator's wish for an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Admin {
    /// Takes part.
    #[default]
    Ready,
    /// Finishes its exchanges, gets nothing new.
    Drain,
    /// Out of service.
    Stop,
}

/// Why an endpoint gets nothing new, or little: bits that add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Flag {
    /// Its probes fail.
    Down = 1,
    /// The operator drains it.
    Drain = 2,
    /// The operator stopped it.
    Stop = 4,
    /// Errors in a row have put it out for a while.
    Ejected = 8,
    /// Its ejection has ended: one exchange at a time shows whether it is well.
    Trial = 16,
    /// Connections to it fail.
    Unreachable = 32,
    /// Its backlog is full, and one exchange waits for room there.
    Backlog = 64,
    /// No probe has said yet whether it is well.
    Unprobed = 128,
    /// It has left its upstream, and finishes its exchanges.
    Removed = 256,
}

/// Flags that say what is known: an endpoint with one of them gets nothing new.
const KNOWN_OUT: u16 = Flag::Down as u16
    | Flag::Drain as u16
    | Flag::Stop as u16
    | Flag::Unreachable as u16
    | Flag::Unprobed as u16
    | Flag::Removed as u16;
/// Flags of the guard. It guesses: they are void where nothing else is eligible.
const GUESSED_OUT: u16 = Flag::Ejected as u16 | Flag::Trial as u16;
/// Flags with which an endpoint gets nothing new.
const OUT: u16 = KNOWN_OUT | GUESSED_OUT;
/// Flags of endpoints that nobody wants to take part: they do not go away by
/// themselves.
const UNWANTED: u16 = Flag::Drain as u16 | Flag::Stop as u16 | Flag::Removed as u16;

/// How long an exchange has an endpoint's trial for itself.
const TRIAL_TIME: Duration = Duration::from_secs(1);

/// An effective weight of one.
pub const WEIGHT_ONE: u32 = 256;

/// A full backlog is forgotten after so many times the time to connect without
/// a look.
const UNWATCHED: u32 = 4;

/// One endpoint: its identity, and the state that workers share.
///
/// The order of the fields puts all that every exchange reads on one cache
/// line.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct EndpointState {
    in_flight: AtomicU32,
    /// `u32::MAX` is no limit.
    max_in_flight: AtomicU32,
    /// Slots that are kept for probes.
    set_aside: AtomicU32,
    weight: AtomicU32,
    /// Phantom exchanges: they make a failing endpoint look busier.
    phantoms: AtomicU32,
    /// Of its weight, in 256ths: less than that while it starts slowly.
    ramp: AtomicU16,
    errors_in_row: AtomicU16,
    unreachable_in_row: AtomicU16,
    flags: AtomicU16,
    id: EndpointId,
    tier: AtomicU16,
    /// When the exchange began that is the trial now; 0 where there is none.
    trial: AtomicU64,
    /// Since when its backlog has let nobody in; 0 where it is not known to be
    /// full.
    backlog_full_since: AtomicU64,
    /// Well-mixed hash of the name, for balancers by key.
    identity: u64,
    /// How often a connection opened after one had failed.
    openings: AtomicU32,
    /// How often it was put out, by cause: see [`Outages`].
    ejections: AtomicU32,
    downs: AtomicU32,
    unreachables: AtomicU32,
    fingerprint: u64,
    name: Box<str>,
}

/// How often an endpoint was put out, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outages {
    /// For errors in a row.
    pub ejections: u32,
    /// Because its probes failed.
    pub downs: u32,
    /// Because connections to it failed.
    pub unreachables: u32,
}

impl EndpointState {
    /// An endpoint with nothing in flight, up and ready.
    pub fn new(id: EndpointId, settings: &EndpointSettings<'_>) -> Self {
        let limit = settings.max_in_flight.unwrap_or(u32::MAX);
        EndpointState {
            in_flight: AtomicU32::new(0),
            max_in_flight: AtomicU32::new(limit),
            set_aside: AtomicU32::new(0),
            weight: AtomicU32::new(settings.weight),
            phantoms: AtomicU32::new(0),
            ramp: AtomicU16::new(WEIGHT_ONE as u16),
            errors_in_row: AtomicU16::new(0),
            unreachable_in_row: AtomicU16::new(0),
            flags: AtomicU16::new(0),
            id,
            tier: AtomicU16::new(settings.tier),
            trial: AtomicU64::new(0),
            backlog_full_since: AtomicU64::new(0),
            openings: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            downs: AtomicU32::new(0),
            unreachables: AtomicU32::new(0),
            identity: crate::hash::hash(settings.name.as_bytes()),
            fingerprint: settings.fingerprint,
            name: settings.name.into(),
        }
    }

    /// Whether these are settings of this endpoint, and of no other of its name.
    pub(crate) fn is_meant_by(&self, settings: &EndpointSettings<'_>) -> bool {
        *self.name == *settings.name && self.fingerprint == settings.fingerprint
    }

    /// Begins again as a new endpoint: up, ready, and with these settings. Its
    /// exchanges in flight and its outages go on counting.
    pub(crate) fn renew(&self, settings: &EndpointSettings<'_>) {
        self.set_max_in_flight(settings.max_in_flight);
        self.set_weight(settings.weight);
        self.set_tier(settings.tier);
        self.set_phantoms(0);
        self.set_ramp(WEIGHT_ONE as u16);
        for count in [&self.errors_in_row, &self.unreachable_in_row, &self.flags] {
            count.store(0, Ordering::Relaxed);
        }
        self.trial.store(0, Ordering::Relaxed);
        self.backlog_full_since.store(0, Ordering::Relaxed);
    }

    /// Its identity within the upstream.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Well-mixed hash of its name.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Its tier: it gets exchanges only while no lower tier has an eligible
    /// endpoint.
    pub fn tier(&self) -> u16 {
        self.tier.load(Ordering::Relaxed)
    }

    /// Moves it to another tier: before members are made that have it.
    pub(crate) fn set_tier(&self, tier: u16) {
        self.tier.store(tier, Ordering::Relaxed);
    }

    /// How often it was put out.
    pub fn outages(&self) -> Outages {
        Outages {
            ejections: self.ejections.load(Ordering::Relaxed),
            downs: self.downs.load(Ordering::Relaxed),
            unreachables: self.unreachables.load(Ordering::Relaxed),
        }
    }

    /// Goes on counting from what another process has counted.
    pub fn raise_outages(&self, outages: Outages) {
        let Outages {
            ejections,
            downs,
            unreachables,
        } = outages;
        self.ejections.fetch_max(ejections, Ordering::Relaxed);
        self.downs.fetch_max(downs, Ordering::Relaxed);
        self.unreachables.fetch_max(unreachables, Ordering::Relaxed);
    }

    /// Exchanges in flight over all workers.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// The load that balancers see: exchanges in flight and phantoms.
    pub fn load(&self) -> u32 {
        self.in_flight() + self.phantoms.load(Ordering::Relaxed)
    }

    /// Its configured share of the traffic relative to the other endpoints.
    pub fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    /// The share that it has now, in 256ths: its weight, less while it starts
    /// slowly.
    pub fn effective_weight(&self) -> u32 {
        self.weight()
            .saturating_mul(u32::from(self.ramp.load(Ordering::Relaxed)))
    }

    /// Changes its configured weight.
    pub(crate) fn set_weight(&self, weight: u32) {
        self.weight.store(weight, Ordering::Relaxed);
    }

    /// Changes its limit; exchanges in flight above a lower one go on.
    pub fn set_max_in_flight(&self, max_in_flight: Option<u32>) {
        self.max_in_flight
            .store(max_in_flight.unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Most exchanges in flight; `None` is no limit.
    pub fn max_in_flight(&self) -> Option<u32> {
        let limit = self.max_in_flight.load(Ordering::Relaxed);
        (limit != u32::MAX).then_some(limit)
    }

    /// Whether it may get new exchanges at all.
    pub fn is_eligible(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & OUT == 0 && self.weight() > 0
    }

    /// Whether nothing but a guess of the guard keeps exchanges away, if
    /// anything does.
    pub fn is_available(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & KNOWN_OUT == 0 && self.weight() > 0
    }

    /// Whether clients that were there before still get it: it is well, and at most
    /// drained.
    pub(crate) fn keeps_sessions(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & OUT & !(Flag::Drain as u16) == 0
    }

    /// Whether the guard has put it out: its exchanges are watched one at a time.
    pub(crate) fn is_guessed_out(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & GUESSED_OUT != 0
    }

    /// Whether nothing but its first probe keeps it from exchanges.
    pub(crate) fn is_only_unprobed(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & OUT == Flag::Unprobed as u16 && self.weight() > 0
    }

    /// Whether it is down, unreachable, ejected or not probed yet, whatever the
    /// operator wants.
    pub fn is_lost(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & OUT & !UNWANTED != 0
    }

    /// Whether it gets exchanges, or will by itself when it is well again.
    pub fn may_return(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & UNWANTED == 0 && self.weight() > 0
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: Flag) -> bool {
        self.flags.load(Ordering::Relaxed) & flag as u16 != 0
    }

    /// Sets or clears a flag, and says whether that changed it.
    pub(crate) fn set(&self, flag: Flag, on: bool) -> bool {
        let before = if on {
            self.flags.fetch_or(flag as u16, Ordering::Relaxed)
        } else {
            self.flags.fetch_and(!(flag as u16), Ordering::Relaxed)
        };
        let has_changed = (before & flag as u16 != 0) != on;
        if has_changed && on {
            self.count_outage(flag);
        }
        has_changed
    }

    fn count_outage(&self, flag: Flag) {
        let count = match flag {
            Flag::Ejected => &self.ejections,
            Flag::Down => &self.downs,
            Flag::Unreachable => &self.unreachables,
            Flag::Drain
            | Flag::Stop
            | Flag::Trial
            | Flag::Backlog
            | Flag::Unprobed
            | Flag::Removed => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Most exchanges in flight now. A slow start lowers the limit with the weight:
    /// otherwise waiters would fill a cold endpoint at once. Slots that are set
    /// aside for probes are taken off.
    fn limit(&self) -> u32 {
        let limit = self.max_in_flight.load(Ordering::Relaxed);
        if limit == u32::MAX {
            return limit;
        }
        let ramp = u32::from(self.ramp.load(Ordering::Relaxed));
        let ramped = match ramp {
            WEIGHT_ONE => limit,
            _ => {
                let ramped = (u64::from(limit) * u64::from(ramp)).div_ceil(u64::from(WEIGHT_ONE));
                (ramped as u32).max(limit.min(1))
            }
        };
        ramped.saturating_sub(self.set_aside.load(Ordering::Relaxed))
    }

    /// Whether it may get another exchange at this moment.
    pub fn has_room(&self) -> bool {
        // Sequentially consistent with `Dispatcher::waiting`: see there.
        self.in_flight.load(Ordering::SeqCst) < self.limit() && !self.has(Flag::Backlog)
    }

    /// Takes one slot below the limit, and below `cap`, unless there is none.
    pub(crate) fn try_reserve(&self, cap: u32) -> Option<Reservation> {
        if self.has(Flag::Backlog) {
            return None;
        }
        self.reserve_below(self.limit().min(cap))
    }

    fn reserve_below(&self, limit: u32) -> Option<Reservation> {
        // Sequentially consistent with `Dispatcher::waiting`: see there.
        self.in_flight
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
                (count < limit).then_some(count + 1)
            })
            .ok()?;
        Some(self.reservation())
    }

    /// A slot of this endpoint that is taken already.
    pub(crate) fn reservation(&self) -> Reservation {
        Reservation::at(self)
    }

    fn era(&self) -> u32 {
        self.ejections.load(Ordering::Relaxed)
    }

    /// Begins a trial, unless one began less than a second ago and has no
    /// outcome yet.
    pub(crate) fn begin_trial(&self, now: Instant) -> Option<Trial> {
        let running = self.trial.load(Ordering::Relaxed);
        if is_in_time(running, now) {
            return None;
        }
        let trial = Trial::begins(now);
        let (old, new) = (running, trial.as_nanos());
        self.trial
            .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
            .then_some(trial)
    }

    /// Whether an exchange has its trial for itself at this moment.
    pub(crate) fn is_tried_now(&self, now: Instant) -> bool {
        is_in_time(self.trial.load(Ordering::Relaxed), now)
    }

    /// Ends this trial, so that another may begin; one that has taken its place
    /// goes on.
    pub(crate) fn end_trial(&self, trial: Trial) {
        let (old, new) = (trial.as_nanos(), 0);
        // Another trial may have taken its place.
        let _ = self
            .trial
            .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Takes one slot below the limit for a probe, set aside or not, whatever
    /// the endpoint's state. No waiter could use a slot that is free.
    pub fn try_reserve_for_probe(&self) -> Option<Reservation> {
        self.reserve_below(self.max_in_flight.load(Ordering::Relaxed))
    }

    /// Keeps one slot from exchanges, for a probe that waits for one.
    pub fn set_aside(&self) {
        self.set_aside.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives a slot that was [set aside](Self::set_aside) back to exchanges.
    /// The caller serves waiters after that.
    pub fn put_back(&self) {
        let before = self.set_aside.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a slot was put back twice");
    }

    /// Whether a slot that is being given back may go to another exchange.
    pub(crate) fn may_hand_over(&self) -> bool {
        self.is_eligible() && !self.has(Flag::Backlog) && self.in_flight() <= self.limit()
    }

    /// Gives back a slot taken by [`try_reserve`](Self::try_reserve).
    pub(crate) fn release(&self) {
        let before = self.in_flight.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "a slot was given back twice");
    }

    /// Phantom exchanges.
    pub(crate) fn phantoms(&self) -> u32 {
        self.phantoms.load(Ordering::Relaxed)
    }

    pub(crate) fn set_phantoms(&self, count: u32) {
        self.phantoms.store(count, Ordering::Relaxed);
    }

    pub(crate) fn set_ramp(&self, ramp: u16) {
        self.ramp.store(ramp, Ordering::Relaxed);
    }

    /// Errors since the last success.
    pub fn errors_in_row(&self) -> u16 {
        self.errors_in_row.load(Ordering::Relaxed)
    }

    /// Connections in a row that could not be opened.
    pub(crate) fn unreachable_in_row(&self) -> u16 {
        self.unreachable_in_row.load(Ordering::Relaxed)
    }

    /// Goes on from what another process has counted.
    pub(crate) fn set_errors(&self, errors_in_row: u16, unreachable_in_row: u16) {
        self.errors_in_row.store(errors_in_row, Ordering::Relaxed);
        self.unreachable_in_row
            .store(unreachable_in_row, Ordering::Relaxed);
    }

    /// Counts an error, and gives how many there were in a row.
    pub(crate) fn count_error(&self) -> u16 {
        count_up(&self.errors_in_row)
    }

    /// Counts a connection that could not be opened.
    pub(crate) fn count_unreachable(&self) -> u16 {
        count_up(&self.unreachable_in_row)
    }

    pub(crate) fn count_success(&self) {
        // Stores only where there is something to forget.
        if self.errors_in_row() > 0 {
            self.errors_in_row.store(0, Ordering::Relaxed);
        }
        self.count_answer();
    }

    /// It answered, well or not: so it was reached.
    pub(crate) fn count_answer(&self) {
        if self.is_refusing() {
            self.unreachable_in_row.store(0, Ordering::Relaxed);
        }
    }

    /// How often a connection opened after one had failed.
    pub fn openings(&self) -> u32 {
        self.openings.load(Ordering::Relaxed)
    }

    /// Whether the last connection that was tried could not be opened.
    pub fn is_refusing(&self) -> bool {
        self.unreachable_in_row.load(Ordering::Relaxed) > 0
    }

    /// Whether this exchange is the one that waits for room in its backlog. The
    /// others wait in the queue meanwhile.
    pub fn claim_backlog(&self) -> bool {
        self.set(Flag::Backlog, true)
    }

    /// Whether its backlog was full when it was looked at last.
    pub(crate) fn is_backlog_full(&self) -> bool {
        self.backlog_full_since.load(Ordering::Relaxed) != 0
    }

    /// A connection was opened. Whether the last one could not be.
    pub(crate) fn count_opening(&self) -> bool {
        let is_news = self.is_refusing() || self.is_backlog_full();
        if is_news {
            self.unreachable_in_row.store(0, Ordering::Relaxed);
            self.backlog_full_since.store(0, Ordering::Relaxed);
            self.openings.fetch_add(1, Ordering::Relaxed);
        }
        is_news
    }

    /// Notes that the backlog is full. Whether it has let nobody in for
    /// `timeout`, which begins again then.
    pub(crate) fn note_full_backlog(&self, now: Instant, timeout: Duration) -> bool {
        let now_ns = now.as_nanos().max(1);
        let since = self.backlog_full_since.load(Ordering::Relaxed);
        let lasted = now.duration_since(Instant::from_nanos(since));
        if since != 0 && lasted < timeout {
            return false;
        }
        // Nobody has looked for long: that it was full all the while is unknown.
        let is_known = since != 0 && lasted < timeout * UNWATCHED;
        // Of several that see the end of the time, one counts it.
        let is_first = self
            .backlog_full_since
            .compare_exchange(since, now_ns, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        is_first && is_known
    }
}

/// Whether a trial that began at this time, 0 for none, is not over yet.
fn is_in_time(trial: u64, now: Instant) -> bool {
    trial != 0 && now.duration_since(Instant::from_nanos(trial)) < TRIAL_TIME
}

fn count_up(count: &AtomicU16) -> u16 {
    let next = |count: u16| Some(count.saturating_add(1));
    match count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
        Ok(before) | Err(before) => before.saturating_add(1),
    }
}
