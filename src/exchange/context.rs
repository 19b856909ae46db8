//! The context of an exchange: its worker, and the generation that it began with.
//!
//! Owned by one worker. A [`Worker`] lives as long as its thread; a [`Generation`]
//! as long as it is the newest, or an exchange that began with it goes on.

mod listener;
mod pages;

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use evenkeel_proto::{LoopId, RequestHead, ResponseHead};

use super::TimedOut;
use super::encoder::Encoders;
use super::identity::{self, IdSource};
use super::known_room::Room;
use super::stalled::StalledStreams;
use crate::cache::Cache;
use crate::certificates::{Acme, ServedTls};
use crate::config::{self, Config};
use crate::files::{Disks, Files};
use crate::limits::RouteLimits;
use crate::maintenance::Maintenance;
use crate::metrics::BufferMemory;
use crate::metrics::end::Failure;
use crate::net::timer::{TICK, Timer, Wheel};
use crate::observe::access_log::{AccessLog, Logs};
use crate::observe::counters::{Counters, ListenerCounters, WorkerCounters};
use crate::observe::failures::Failures;
use crate::observe::otlp::SpanSender;
use crate::observe::outlets::Outlets;
use crate::observe::sessions::{Routed, RoutedNames, Sessions};
use crate::passwords::Passwords;
use crate::upstream::{PinnedConnections, SharedUpstream, Upstream, UpstreamSides};

pub(crate) use listener::{CountedConnection, OfClient};
pub use listener::{ListenerSide, ListenerSides, SharedListener};
use pages::FetchedPages;
pub use pages::{FetchPage, FetchedPage, WantedPage};

/// State that a worker keeps for life.
#[derive(Debug)]
pub struct Worker {
    /// The generation that new exchanges begin with.
    pub generation: CurrentGeneration,
    /// Its sides of the upstreams of all its generations.
    pub upstreams: UpstreamSides,
    /// Its sides of the listeners of all its generations.
    pub listeners: ListenerSides,
    /// Timeouts.
    pub wheel: Wheel,
    /// Counters of nothing smaller than the worker, which is their only writer.
    pub counters: Arc<WorkerCounters>,
    /// Lines of access logs on their way to the writer.
    pub access_log: AccessLog,
    /// Memory in which bodies are held for slow clients, over all workers.
    pub buffer_memory: Arc<BufferMemory>,
    /// Where request ids and traces come from.
    pub ids: IdSource,
    /// What the process calls itself to endpoints.
    pub loop_id: LoopId,
    /// Whether the worker is finishing what it has.
    pub is_draining: Cell<bool>,
    /// Whether idle connections may bring one more request although it is.
    pub is_lingering: Cell<bool>,
    /// Whether tunnels end, although exchanges go on.
    pub ends_tunnels: Cell<bool>,
    /// Connections of clients that are open here.
    pub open_count: Cell<usize>,
    /// Heads of requests to be filled again.
    pub heads: Heads,
    /// What a connection of TCP has in the place of a head.
    pub no_head: RequestHead,
    /// Where heads are written before they are sent; never held over a wait.
    pub scratch: RefCell<Vec<u8>>,
    /// Where a head is kept while it is edited; never held over a wait.
    pub unedited: RefCell<Vec<u8>>,
    /// Where a response's head is read into; never held over a wait.
    pub response_head: RefCell<ResponseHead>,
    /// The worker's open connections.
    pub sessions: Sessions,
    /// The last exchanges that failed.
    pub failures: Failures,
    /// Streams whose clients take nothing.
    pub stalled: Rc<StalledStreams>,
    /// What is known of room for connections.
    pub room: Room,
    /// Connections to endpoints that belong to one client each.
    pub pinned: PinnedConnections,
    /// Encoders of responses to be used again.
    pub encoders: Encoders,
    /// What fetches error pages.
    fetch_page: FetchPage,
}

/// The parts of a worker that it does not make itself.
#[derive(Debug)]
pub struct WorkerParts {
    /// The first generation.
    pub plan: GenerationPlan,
    /// See [`Worker::access_log`].
    pub access_log: AccessLog,
    /// See [`Worker::buffer_memory`].
    pub buffer_memory: Arc<BufferMemory>,
    /// See [`Worker::room`].
    pub room: Room,
    /// What fetches error pages.
    pub fetch_page: FetchPage,
}

/// What a worker makes a generation of: what all workers share of it, and what this
/// one counts.
#[derive(Debug, Clone)]
pub struct GenerationPlan {
    /// How often another configuration was loaded.
    pub number: u32,
    /// The configuration.
    pub config: Arc<Config>,
    /// Its listeners, in order.
    pub listeners: Vec<Arc<SharedListener>>,
    /// Its upstreams, in order.
    pub upstreams: Vec<Arc<SharedUpstream>>,
    /// Its caches, in order.
    pub caches: Vec<Arc<Cache>>,
    /// The limits of its routes.
    pub limits: RouteLimits,
    /// What of it is under maintenance.
    pub maintenance: Arc<Maintenance>,
    /// What verifies passwords.
    pub passwords: Arc<Passwords>,
    /// The TLS of its listeners, in order; `None` for plain text.
    pub tls: Vec<Option<Arc<ServedTls>>>,
    /// The disks that its files are on.
    pub disks: Arc<Disks>,
    /// Where log lines and spans go.
    pub outlets: Outlets,
    /// This worker's counters of it.
    pub counters: Arc<Counters>,
}

/// State that follows from one configuration. It is replaced as a whole when another
/// is loaded.
#[derive(Debug)]
pub struct Generation {
    /// Tells it from others of the worker.
    pub number: u32,
    /// The configuration.
    pub config: Arc<Config>,
    /// Its upstreams, in order.
    pub upstreams: Vec<Upstream>,
    /// Its caches, in order.
    pub caches: Vec<Arc<Cache>>,
    /// The limits of its routes.
    pub limits: RouteLimits,
    /// What of it is under maintenance.
    pub maintenance: Arc<Maintenance>,
    /// What verifies passwords.
    pub passwords: Arc<Passwords>,
    /// The TLS of its listeners, in order; `None` for plain text.
    pub tls: Vec<Option<Arc<ServedTls>>>,
    /// Of whom its certificates are ordered, if any are.
    pub acme: Option<Arc<Acme>>,
    /// The worker's counters of its routes and upstreams.
    pub counters: Arc<Counters>,
    /// Its access logs.
    pub logs: Logs,
    /// Where spans go, if they go anywhere.
    pub spans: Option<SpanSender>,
    /// The files that its routes serve.
    pub files: Rc<Files>,
    /// Its error pages that come from upstreams.
    fetched_pages: FetchedPages,
    /// Exchanges of it that are tunnels.
    tunnels: Cell<u64>,
    /// Whether its exchanges are to end at once.
    is_over: Cell<bool>,
}

/// A tunnel that is counted as long as it goes on.
#[derive(Debug)]
pub(super) struct CountedTunnel<'a>(&'a Cell<u64>);

impl Drop for CountedTunnel<'_> {
    fn drop(&mut self) {
        self.0.update(|it| it - 1);
    }
}

impl Generation {
    /// The worker's `sides` of upstreams that it has already are taken over, and what it
    /// keeps of files in the generation `before`.
    fn new(plan: &GenerationPlan, sides: &UpstreamSides, before: Option<&Generation>) -> Self {
        let mut seeds = fastrand::Rng::new();
        let GenerationPlan {
            config,
            counters,
            outlets,
            ..
        } = plan;
        let dispatchers = plan.upstreams.iter().map(|it| it.dispatcher().clone());
        let logs = Logs::new(
            outlets.layout.clone(),
            outlets.lines.clone(),
            dispatchers.collect(),
        );
        let upstreams = plan.upstreams.iter().zip(&counters.endpoints).enumerate();
        let upstreams = upstreams.map(|(index, (shared, counters))| {
            let settings = &config.upstreams[index];
            let side = sides.of(shared, settings, counters, seeds.u64(..));
            Upstream::new(config.clone(), index, side)
        });
        Generation {
            number: plan.number,
            upstreams: upstreams.collect(),
            caches: plan.caches.clone(),
            limits: plan.limits.clone(),
            maintenance: plan.maintenance.clone(),
            passwords: plan.passwords.clone(),
            acme: (plan.tls.iter().flatten()).find_map(|it| it.acme().cloned()),
            tls: plan.tls.clone(),
            files: Rc::new(match before {
                Some(before) => before.files.following(config, plan.disks.clone()),
                None => Files::new(config, plan.disks.clone()),
            }),
            config: config.clone(),
            counters: counters.clone(),
            logs,
            spans: outlets.spans.clone(),
            fetched_pages: FetchedPages::default(),
            tunnels: Cell::default(),
            is_over: Cell::default(),
        }
    }

    /// Counts a tunnel for as long as that is kept.
    pub(super) fn count_tunnel(&self) -> CountedTunnel<'_> {
        self.tunnels.update(|it| it + 1);
        CountedTunnel(&self.tunnels)
    }
}

/// A worker's newest generation, and those before it that go on.
#[derive(Debug)]
pub struct CurrentGeneration {
    newest: RefCell<Rc<Generation>>,
    /// Those that were replaced, while an exchange has them.
    replaced: RefCell<Vec<Replaced>>,
}

#[derive(Debug)]
struct Replaced {
    generation: Weak<Generation>,
    /// Tick of the worker's wheel at which another one came.
    at: u64,
}

impl CurrentGeneration {
    fn new(generation: Rc<Generation>) -> Self {
        CurrentGeneration {
            newest: RefCell::new(generation),
            replaced: RefCell::default(),
        }
    }

    /// Each that lives, the newest first.
    fn all(&self) -> Vec<Rc<Generation>> {
        let replaced = self.replaced.borrow();
        let replaced = replaced.iter().rev();
        let replaced = replaced.filter_map(|it| it.generation.upgrade());
        std::iter::once(self.get()).chain(replaced).collect()
    }

    /// The one with this number, if it is the newest or an exchange has it.
    fn numbered(&self, number: u32) -> Option<Rc<Generation>> {
        self.all().into_iter().find(|it| it.number == number)
    }

    /// The newest one, to be kept for as long as an exchange takes.
    ///
    /// Invariant: idle connections keep none. A generation that was replaced goes
    /// with its last exchange.
    pub fn get(&self) -> Rc<Generation> {
        self.newest.borrow().clone()
    }

    fn replace(&self, generation: Rc<Generation>, now: u64) {
        let old = self.newest.replace(generation);
        let mut replaced = self.replaced.borrow_mut();
        replaced.retain(|it| it.generation.strong_count() > 0);
        replaced.push(Replaced {
            generation: Rc::downgrade(&old),
            at: now,
        });
        drop(replaced);
        // It is dropped once nothing is borrowed.
        drop(old);
    }

    /// Has the exchanges of those end that were replaced by this tick; whether there are
    /// any.
    fn end_replaced(&self, until: u64) -> bool {
        let replaced = self.replaced.borrow();
        let over = replaced.iter().filter(|it| it.at <= until);
        let over = over.filter_map(|it| it.generation.upgrade());
        over.filter(|it| !it.is_over.replace(true)).count() > 0
    }
}

/// Heads of requests to be filled again.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "taken and given back by moving a pointer")]
pub struct Heads(RefCell<Vec<Box<RequestHead>>>);

/// Heads kept for reuse.
const HEADS_KEPT: usize = 512;

impl Heads {
    /// One that was used before, if there is one.
    pub fn take(&self) -> Box<RequestHead> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps one for reuse.
    pub fn keep(&self, head: Box<RequestHead>) {
        let mut heads = self.0.borrow_mut();
        if heads.len() < HEADS_KEPT {
            heads.push(head);
        }
    }
}

impl Worker {
    /// A worker without a connection, made of these parts.
    pub fn new(parts: WorkerParts) -> Self {
        let upstreams = UpstreamSides::default();
        let generation = Rc::new(Generation::new(&parts.plan, &upstreams, None));
        let listeners = ListenerSides::default();
        listeners.follow(&generation, &parts.plan.listeners);
        Worker {
            counters: parts.plan.counters.worker.clone(),
            generation: CurrentGeneration::new(generation),
            upstreams,
            listeners,
            wheel: Wheel::default(),
            access_log: parts.access_log,
            buffer_memory: parts.buffer_memory,
            ids: IdSource::default(),
            loop_id: identity::loop_id(),
            is_draining: Cell::new(false),
            is_lingering: Cell::new(false),
            ends_tunnels: Cell::new(false),
            open_count: Cell::new(0),
            heads: Heads::default(),
            no_head: RequestHead::default(),
            scratch: RefCell::default(),
            unedited: RefCell::default(),
            response_head: RefCell::new(ResponseHead::default()),
            sessions: Sessions::default(),
            failures: Failures::default(),
            stalled: Rc::default(),
            room: parts.room,
            pinned: PinnedConnections::default(),
            encoders: Encoders::default(),
            fetch_page: parts.fetch_page,
        }
    }

    /// Shows what goes on with each generation, and ends what goes on for too long with
    /// one that was replaced. To be called now and then.
    pub fn look_at_generations(&self) {
        let newest = self.generation.get();
        for generation in self.generation.all() {
            // This one, the newest one's places, and listeners.
            let newest = if Rc::ptr_eq(&generation, &newest) {
                2
            } else {
                0
            };
            let others = 1 + newest + self.listeners.count_of(&generation);
            let exchanges = Rc::strong_count(&generation).saturating_sub(others);
            let shown = &generation.counters.generation;
            shown.exchanges.set(exchanges as u64);
            shown.tunnels.set(generation.tunnels.get());
        }
        let Some(timeout) = newest.config.server.generation_timeout else {
            return;
        };
        let ticks = (timeout.as_millis() / TICK.as_millis()) as u64;
        let until = self.wheel.now().checked_sub(ticks);
        if until.is_some_and(|until| self.generation.end_replaced(until)) {
            self.wheel.wake_all();
        }
    }

    /// The names of an exchange's route, and of where it goes; `None` where the exchange
    /// has ended, and its generation with it.
    pub fn names_of(&self, routed: &Routed) -> Option<RoutedNames> {
        let generation = self.generation.numbered(routed.generation)?;
        let route = &generation.config.routes[routed.route];
        let upstream = routed.upstream.map(|it| &generation.upstreams[it]);
        let endpoint = upstream.zip(routed.endpoint);
        let endpoint = endpoint.and_then(|(upstream, id)| upstream.used(id));
        Some(RoutedNames {
            route: route.name.clone(),
            upstream: upstream.map(|it| it.config().name.clone()),
            endpoint: endpoint.map(|it| it.config().name.clone()),
        })
    }

    /// Has nothing accepted that comes from now on, and what is open finished. A
    /// worker without a client has no other occasion to close idle connections.
    pub fn drain(&self) {
        self.is_draining.set(true);
        self.listeners.close();
        self.upstreams.close_idle();
        self.wheel.wake_all();
    }

    /// Has exchanges begin with another generation from now on. Gives the worker's sides
    /// of its listeners, in the order of its configuration. A listener that is none of
    /// them takes nothing new. Exchanges in flight keep the generation that they began
    /// with.
    pub fn follow(&self, plan: &GenerationPlan) -> Vec<Rc<ListenerSide>> {
        let before = self.generation.get();
        let generation = Generation::new(plan, &self.upstreams, Some(&before));
        let generation = Rc::new(generation);
        drop(before);
        let (sides, must_look) = self.listeners.follow(&generation, &plan.listeners);
        self.generation.replace(generation, self.wheel.now());
        if self.is_draining.get() {
            self.listeners.close();
        }
        if must_look {
            self.wheel.wake_all();
        }
        sides
    }

    /// Sets the client's timer to fire after `timeout`.
    pub fn set_timeout(&self, timer: &Timer, timeout: Duration) {
        self.wheel.set(timer, self.wheel.deadline(timeout));
    }

    /// Why a timer fired: the program stops, the exchange has taken too long in
    /// all, or else `failure`.
    pub(crate) fn timed_out(&self, total_deadline: u64, failure: Failure) -> Failure {
        if self.wheel.is_stopped() {
            Failure::Stopped
        } else if total_deadline <= self.wheel.now() {
            Failure::TotalTimeout
        } else {
            failure
        }
    }
}

/// The worker and the generation of an exchange. It derefs to the worker.
#[derive(Debug, Clone)]
pub struct Context {
    worker: Rc<Worker>,
    generation: Rc<Generation>,
    /// Where the client's listener stands in that generation's configuration.
    listener: usize,
}

impl Deref for Context {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.worker
    }
}

impl Context {
    /// For an exchange that begins now, of a client of this listener.
    pub fn new(worker: Rc<Worker>, side: &ListenerSide) -> Self {
        let (generation, listener) = side.generation();
        Context {
            worker,
            generation,
            listener,
        }
    }

    /// For the next exchange of the same listener: with the newest generation that has
    /// it.
    pub fn renew(&mut self, side: &ListenerSide) {
        if !side.is_of(&self.generation) {
            (self.generation, self.listener) = side.generation();
        }
    }

    /// Settings of the listener that accepted the client.
    pub fn listener(&self) -> &config::Listener {
        &self.generation.config.listeners[self.listener]
    }

    /// Index of the listener in the configuration that the exchange began with.
    pub fn listener_index(&self) -> usize {
        self.listener
    }

    /// This worker's counters of the listener.
    pub fn listener_counters(&self) -> &ListenerCounters {
        &self.generation.counters.listeners[self.listener]
    }

    /// Its worker, for what outlives it.
    pub fn worker(&self) -> Rc<Worker> {
        self.worker.clone()
    }

    /// The generation that the exchange began with.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Whether the timer has fired, or the exchange is to end at once.
    pub fn has_fired(&self, timer: &Timer) -> bool {
        self.wheel.has_fired(timer) || self.generation.is_over.get()
    }

    /// Waits for `future`, at most until the timer fires, or the exchange is to end at once.
    ///
    /// # Errors
    /// [`TimedOut`], with the future dropped.
    pub async fn until_deadline<T>(
        &self,
        timer: &Timer,
        future: impl Future<Output = T>,
    ) -> Result<T, TimedOut> {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending if self.has_fired(timer) => Poll::Ready(Err(TimedOut)),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Why the exchange is to end at once, where it is.
    pub fn cut_off(&self) -> Option<Failure> {
        if self.wheel.is_stopped() {
            Some(Failure::Stopped)
        } else if self.generation.is_over.get() {
            Some(Failure::GenerationTimeout)
        } else {
            None
        }
    }

    /// Why a timer fired: see [`Exchange::timed_out`](super::Exchange::timed_out).
    pub(super) fn timed_out(&self, total_deadline: u64, failure: Failure) -> Failure {
        let other = || self.worker.timed_out(total_deadline, failure);
        self.cut_off().unwrap_or_else(other)
    }

    /// The configuration that the exchange began with.
    pub fn config(&self) -> &Config {
        &self.generation.config
    }

    /// The worker's side of the upstream with this index.
    pub fn upstream(&self, index: usize) -> &Upstream {
        &self.generation.upstreams[index]
    }
}
