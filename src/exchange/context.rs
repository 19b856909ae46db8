//! The context of an exchange: its worker, and the generation that it began with.
//!
//! Owned by one worker. A [`Worker`] lives as long as its thread. A [`Generation`] lives as long
//! as it is the newest one or an exchange uses it.

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

pub(crate) use listener::{ClientQuota, CountedConnection};
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
    /// Counters of the worker as a whole. The worker is their only writer.
    pub counters: Arc<WorkerCounters>,
    /// Lines of access logs that are not handed over yet.
    pub access_log: AccessLog,
    /// Memory for the bodies of slow clients, shared by all workers.
    pub buffer_memory: Arc<BufferMemory>,
    /// Source of request ids and traces.
    pub ids: IdSource,
    /// The name of this process in `CDN-Loop`.
    pub loop_id: LoopId,
    /// Whether the worker drains.
    pub is_draining: Cell<bool>,
    /// Whether idle connections may bring one more request during a drain.
    pub is_lingering: Cell<bool>,
    /// Whether tunnels end, although exchanges continue.
    pub ends_tunnels: Cell<bool>,
    /// Number of open client connections.
    pub open_count: Cell<usize>,
    /// Request heads for reuse.
    pub heads: Heads,
    /// The empty head of a TCP connection.
    pub no_head: RequestHead,
    /// Scratch buffer for heads to send. Invariant: never borrowed across an await.
    pub scratch: RefCell<Vec<u8>>,
    /// Copy of a head during its edits. Invariant: never borrowed across an await.
    pub unedited: RefCell<Vec<u8>>,
    /// The parsed head of a response. Invariant: never borrowed across an await.
    pub response_head: RefCell<ResponseHead>,
    /// The worker's open connections.
    pub sessions: Sessions,
    /// The last failed exchanges.
    pub failures: Failures,
    /// Streams whose clients read nothing.
    pub stalled: Rc<StalledStreams>,
    /// Knowledge about room for connections.
    pub room: Room,
    /// Connections to endpoints that belong to one client each.
    pub pinned: PinnedConnections,
    /// Encoders of responses, for reuse.
    pub encoders: Encoders,
    /// Fetches error pages.
    fetch_page: FetchPage,
}

/// The parts of a worker that its creator supplies.
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
    /// Fetches error pages.
    pub fetch_page: FetchPage,
}

/// The parts of a generation for one worker: those that all workers share, and the worker's
/// counters.
#[derive(Debug, Clone)]
pub struct GenerationPlan {
    /// Number of configurations loaded before.
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
    /// The routes and upstreams under maintenance.
    pub maintenance: Arc<Maintenance>,
    /// Verifies passwords.
    pub passwords: Arc<Passwords>,
    /// The TLS of its listeners, in order; `None` for plain text.
    pub tls: Vec<Option<Arc<ServedTls>>>,
    /// The disks that its files are on.
    pub disks: Arc<Disks>,
    /// Receives log lines and spans.
    pub outlets: Outlets,
    /// This worker's counters.
    pub counters: Arc<Counters>,
}

/// The state of one configuration. A reload replaces it as a whole.
#[derive(Debug)]
pub struct Generation {
    /// Identifies the generation on its worker.
    pub number: u32,
    /// The configuration.
    pub config: Arc<Config>,
    /// Its upstreams, in order.
    pub upstreams: Vec<Upstream>,
    /// Its caches, in order.
    pub caches: Vec<Arc<Cache>>,
    /// The limits of its routes.
    pub limits: RouteLimits,
    /// The routes and upstreams under maintenance.
    pub maintenance: Arc<Maintenance>,
    /// Verifies passwords.
    pub passwords: Arc<Passwords>,
    /// The TLS of its listeners, in order; `None` for plain text.
    pub tls: Vec<Option<Arc<ServedTls>>>,
    /// Orders its certificates, if any are ordered.
    pub acme: Option<Arc<Acme>>,
    /// The worker's counters of its routes and upstreams.
    pub counters: Arc<Counters>,
    /// Its access logs.
    pub logs: Logs,
    /// Receives spans, if there is a collector.
    pub spans: Option<SpanSender>,
    /// The files that its routes serve.
    pub files: Rc<Files>,
    /// Error pages from upstreams.
    fetched_pages: FetchedPages,
    /// Number of its exchanges that are tunnels.
    tunnels: Cell<u64>,
    /// Whether its exchanges have to end at once.
    is_over: Cell<bool>,
}

/// Counts a tunnel until dropped.
#[derive(Debug)]
pub(super) struct CountedTunnel<'a>(&'a Cell<u64>);

impl Drop for CountedTunnel<'_> {
    fn drop(&mut self) {
        self.0.update(|it| it - 1);
    }
}

impl Generation {
    /// A generation that takes over the worker's `sides` of known upstreams, and the cached files
    /// of the generation `before`.
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

    /// Counts a tunnel until the result is dropped.
    pub(super) fn count_tunnel(&self) -> CountedTunnel<'_> {
        self.tunnels.update(|it| it + 1);
        CountedTunnel(&self.tunnels)
    }
}

/// A worker's newest generation, and former ones that are still in use.
#[derive(Debug)]
pub struct CurrentGeneration {
    newest: RefCell<Rc<Generation>>,
    /// The former generations. Only exchanges keep them alive.
    replaced: RefCell<Vec<Replaced>>,
}

#[derive(Debug)]
struct Replaced {
    generation: Weak<Generation>,
    /// Tick of the worker's wheel when it was replaced.
    at: u64,
}

impl CurrentGeneration {
    fn new(generation: Rc<Generation>) -> Self {
        CurrentGeneration {
            newest: RefCell::new(generation),
            replaced: RefCell::default(),
        }
    }

    /// All generations in use, the newest first.
    fn all(&self) -> Vec<Rc<Generation>> {
        let replaced = self.replaced.borrow();
        let replaced = replaced.iter().rev();
        let replaced = replaced.filter_map(|it| it.generation.upgrade());
        std::iter::once(self.get()).chain(replaced).collect()
    }

    /// The generation with this number, if it is the newest or an exchange uses it.
    fn numbered(&self, number: u32) -> Option<Rc<Generation>> {
        self.all().into_iter().find(|it| it.number == number)
    }

    /// The newest generation. The caller keeps it for one exchange.
    ///
    /// Invariant: idle connections keep no generation. A former generation ends with its last
    /// exchange.
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
        // Dropped last: its drop may borrow `replaced`.
        drop(old);
    }

    /// Ends the exchanges of generations that were replaced up to this tick. Returns whether
    /// there were any new ones.
    fn end_replaced(&self, until: u64) -> bool {
        let replaced = self.replaced.borrow();
        let over = replaced.iter().filter(|it| it.at <= until);
        let over = over.filter_map(|it| it.generation.upgrade());
        over.filter(|it| !it.is_over.replace(true)).count() > 0
    }
}

/// Request heads for reuse.
#[derive(Debug, Default)]
#[expect(clippy::vec_box, reason = "taken and given back by moving a pointer")]
pub struct Heads(RefCell<Vec<Box<RequestHead>>>);

/// Most heads that are kept.
const HEADS_KEPT: usize = 512;

impl Heads {
    /// A used head, if there is one.
    pub fn take(&self) -> Box<RequestHead> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a head for reuse.
    pub fn keep(&self, head: Box<RequestHead>) {
        let mut heads = self.0.borrow_mut();
        if heads.len() < HEADS_KEPT {
            heads.push(head);
        }
    }
}

impl Worker {
    /// A worker without connections, made of these parts.
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

    /// Counts the exchanges of each generation. Ends those that stay too long with a former one.
    /// To be called regularly.
    pub fn look_at_generations(&self) {
        let newest = self.generation.get();
        for generation in self.generation.all() {
            // Other holders: this loop, two for the newest generation, and listeners.
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

    /// The names of an exchange's route, upstream and endpoint; `None` where the exchange has
    /// ended, and its generation with it.
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

    /// Starts to drain: accepts nothing new, and finishes the open exchanges. Closes idle
    /// connections to endpoints here, as a worker without clients has no other occasion for it.
    pub fn drain(&self) {
        self.is_draining.set(true);
        self.listeners.close();
        self.upstreams.close_idle();
        self.wheel.wake_all();
    }

    /// Switches new exchanges to another generation. Returns the worker's sides of its listeners,
    /// in the order of its configuration. All other listeners accept nothing new. Exchanges in
    /// flight keep their own generation.
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

    /// Why a timer fired: the program stops, the exchange has used up its total time, or else
    /// `failure`.
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
    /// Index of the client's listener in that generation's configuration.
    listener: usize,
}

impl Deref for Context {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.worker
    }
}

impl Context {
    /// For an exchange that starts now, of a client of this listener.
    pub fn new(worker: Rc<Worker>, side: &ListenerSide) -> Self {
        let (generation, listener) = side.generation();
        Context {
            worker,
            generation,
            listener,
        }
    }

    /// For the next exchange of the same listener, with the newest generation that has the
    /// listener.
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

    /// The worker, for users that outlive the exchange.
    pub fn worker(&self) -> Rc<Worker> {
        self.worker.clone()
    }

    /// The generation of the exchange.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Whether the timer has fired, or the exchange has to end at once.
    pub fn has_fired(&self, timer: &Timer) -> bool {
        self.wheel.has_fired(timer) || self.generation.is_over.get()
    }

    /// Waits for `future`, until the timer fires or the exchange has to end at once.
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

    /// Why the exchange has to end at once, if it has to.
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

    /// The configuration of the exchange.
    pub fn config(&self) -> &Config {
        &self.generation.config
    }

    /// The worker's side of the upstream with this index.
    pub fn upstream(&self, index: usize) -> &Upstream {
        &self.generation.upstreams[index]
    }
}
