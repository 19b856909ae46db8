//! Exchanges between two ends in memory, under a clock that the test moves.
//!
//! No socket, no thread, no wait. The client and the endpoint are the test's; between
//! them runs what serves a connection in a worker.

mod generations;
mod http1;
mod many_exchanges;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::endpoint::Tried;
use evenkeel_testkit::Wakes;

use crate::client;
use crate::config::{Config, NameLookup, load_text};
use crate::exchange::context::{GenerationPlan, SharedListener, Worker, WorkerParts};
use crate::exchange::{Room, fetch_page};
use crate::files::Disks;
use crate::metrics::BufferMemory;
use crate::metrics::end::{End, Failure};
use crate::net::clock;
use crate::net::listen::Peer;
use crate::net::stream::{Follow, Stream};
use crate::net::timer::TICK;
use crate::observe::access_log::writer;
use crate::observe::access_log::{AccessLog, Layout};
use crate::observe::counters::Counters;
use crate::observe::outlets::Outlets;
use crate::observe::sessions::ListenerId;
use crate::upstream::{SharedUpstream, Slot, SlotCriteria, Upstream, shared_upstreams};

const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4000);

const CONFIG: &str = "
[[listener]]
bind = ':0'
[listener.timeouts]
head = '3s'
body = '3s'
idle = '5s'
[[route]]
upstream = 'app'
[upstream.app]
endpoints = ['127.0.0.1:1']
retries = 0
[upstream.app.timeouts]
first_byte = '2s'
idle = '3s'
";

/// The time of a test.
struct Time {
    began: Instant,
    elapsed: Duration,
}

impl Time {
    fn begin() -> Self {
        let began = Instant::from_nanos(1_000_000_000);
        clock::stand_at(began);
        Time {
            began,
            elapsed: Duration::ZERO,
        }
    }

    /// Moves on by a tick.
    fn tick(&mut self, worker: &Worker) {
        self.elapsed += TICK;
        clock::stand_at(self.began + self.elapsed);
        worker.wheel.advance(self.elapsed);
    }
}

impl Drop for Time {
    fn drop(&mut self) {
        clock::go_on();
    }
}

/// The ends of all exchanges that failed, the oldest first.
fn failures(worker: &Worker) -> Vec<End> {
    let failures = worker.failures.list();
    failures.iter().rev().map(|it| it.end).collect()
}

/// How many exchanges were counted.
fn exchanges(worker: &Worker) -> u64 {
    let generation = worker.generation.get();
    generation.counters.listeners[0].exchanges.requests.value()
}

fn send(stream: &mut Stream, bytes: &str) {
    let sent = stream.try_write(bytes.as_bytes(), Follow::Anything);
    assert_eq!(sent.and_then(Result::ok), Some(bytes.len()));
}

/// The bytes that have come, and whether the end has.
fn received(stream: &mut Stream) -> (String, bool) {
    let (_, waker) = Wakes::of_new_waker();
    let cx = &TaskContext::from_waker(&waker);
    let mut all = Vec::new();
    let mut room = [0; 4096];
    loop {
        let is_over = match stream.poll_read(cx, &mut room) {
            Poll::Ready(Ok(0) | Err(_)) => true,
            Poll::Ready(Ok(len)) => {
                all.extend_from_slice(&room[..len]);
                continue;
            }
            Poll::Pending => false,
        };
        return (String::from_utf8(all).unwrap(), is_over);
    }
}

fn load(config: &str) -> Arc<Config> {
    let loaded = load_text("test.toml", config, NameLookup::Skip);
    Arc::new(loaded.unwrap().config)
}

fn outlets(config: &Config, shared: &[Arc<SharedUpstream>]) -> Outlets {
    let members = shared.iter().map(|it| it.dispatcher().members());
    let layout = Layout::new(config, &members.collect::<Vec<_>>());
    let (lines, _) = writer::start(&[]).unwrap();
    Outlets {
        layout: Arc::new(layout),
        lines,
        spans: None,
    }
}

fn worker() -> Worker {
    let config = load(CONFIG);
    worker_of(&config, &shared_upstreams(&config, &[], clock::now()))
}

fn plan_of(config: &Arc<Config>, shared: &[Arc<SharedUpstream>]) -> GenerationPlan {
    let listeners = 0..config.listeners.len() as ListenerId;
    let listeners = listeners.map(|id| Arc::new(SharedListener::new(id)));
    GenerationPlan {
        number: 0,
        config: config.clone(),
        listeners: listeners.collect(),
        upstreams: shared.to_vec(),
        tls: {
            let tickets = crate::certificates::Tickets::start(&config.tickets).unwrap();
            crate::certificates::served_tls(config, &[], &tickets).unwrap()
        },
        caches: crate::cache::caches(config, &[]).unwrap(),
        limits: crate::limits::route_limits(config, &crate::limits::RouteLimits::default()),
        maintenance: crate::maintenance::Maintenance::of(config, &Default::default()),
        passwords: Arc::new(crate::passwords::Passwords::new().unwrap()),
        disks: Arc::new(Disks::start(config).unwrap()),
        outlets: outlets(config, shared),
        counters: Arc::new(Counters::new(config)),
    }
}

fn worker_of(config: &Arc<Config>, shared: &[Arc<SharedUpstream>]) -> Worker {
    Worker::new(WorkerParts {
        plan: plan_of(config, shared),
        access_log: AccessLog::new(),
        buffer_memory: Arc::new(BufferMemory::new(config.server.buffer_memory)),
        room: Room::new(0, Vec::new()),
        fetch_page,
    })
}

fn acquire<'a>(upstream: &'a Upstream, tried: &[Tried]) -> Slot<'a> {
    let now = clock::now();
    let wanted = SlotCriteria {
        key: 0,
        pinned_to: None,
        lane: None,
        priority: 0,
        arrived: now,
    };
    let slot = upstream.acquire(&wanted, tried, now, Waker::noop(), || 0);
    slot.expect("an endpoint is free")
}

/// Has the first exchange find an idle connection to the endpoint.
fn keep_idle(worker: &Worker, stream: Stream) {
    let generation = worker.generation.get();
    let slot = acquire(&generation.upstreams[0], &[]);
    slot.keep_idle(stream, None, worker.wheel.now());
}
