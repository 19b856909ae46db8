//! Exchanges between two ends in memory, under a clock that the test moves.
//!
//! No socket, no thread, no wait. The client and the endpoint are the test's; between
//! them runs what serves a connection in a worker.

mod many_exchanges;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_testkit::Wakes;

use crate::client;
use crate::config::{NameLookup, load_text};
use crate::exchange::Room;
use crate::exchange::context::{Generation, Worker, WorkerParts};
use crate::files::{Disks, Files};
use crate::metrics::end::{End, Failure};
use crate::metrics::{BufferMemory, OpenCount};
use crate::net::clock;
use crate::net::listen::Peer;
use crate::net::stream::{Follow, Stream};
use crate::net::timer::TICK;
use crate::observe::access_log::writer;
use crate::observe::access_log::{AccessLog, Layout, Logs};
use crate::observe::counters::Counters;
use crate::upstream::{SharedUpstream, Upstream, Wanted};

const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4000);

const CONFIG: &str = "
[[listener]]
bind = ':0'
[listener.timeouts]
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

/// A connection of a client, and one to the endpoint, which is idle at first.
struct Simulation {
    worker: Rc<Worker>,
    client: Stream,
    endpoint: Stream,
    /// `None` once the connection of the client is closed.
    serving: Option<Pin<Box<dyn Future<Output = ()>>>>,
    time: Time,
}

impl Simulation {
    fn new() -> Self {
        let time = Time::begin();
        let worker = Rc::new(worker());
        let (client, of_client) = Stream::pair();
        let (endpoint, of_endpoint) = Stream::pair();
        keep_idle(&worker, of_endpoint);
        let serving = client::serve_stream(&worker, of_client, Peer::Tcp(CLIENT));
        Simulation {
            worker,
            client,
            endpoint,
            serving: Some(Box::pin(serving)),
            time,
        }
    }

    /// Polls the connection until it waits.
    fn run(&mut self) {
        let (wakes, waker) = Wakes::of_new_waker();
        let cx = &mut TaskContext::from_waker(&waker);
        while let Some(serving) = &mut self.serving {
            let before = wakes.count();
            if serving.as_mut().poll(cx).is_ready() {
                self.serving = None;
            } else if wakes.count() == before {
                return;
            }
        }
    }

    /// Moves time on, tick by tick.
    fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / TICK.as_millis() {
            self.time.tick(&self.worker);
            self.run();
        }
    }

    fn client_sends(&mut self, bytes: &str) {
        send(&mut self.client, bytes);
        self.run();
    }

    fn endpoint_sends(&mut self, bytes: &str) {
        send(&mut self.endpoint, bytes);
        self.run();
    }

    fn failures(&self) -> Vec<End> {
        failures(&self.worker)
    }

    fn exchanges(&self) -> u64 {
        exchanges(&self.worker)
    }
}

/// The ends of all exchanges that failed, the oldest first.
fn failures(worker: &Worker) -> Vec<End> {
    let failures = worker.failures.list();
    failures.iter().rev().map(|it| it.end).collect()
}

/// How many exchanges were counted.
fn exchanges(worker: &Worker) -> u64 {
    let counters = &worker.counters.listeners[0].exchanges;
    counters.requests.value()
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

fn worker() -> Worker {
    let config = Arc::new(
        load_text("test.toml", CONFIG, NameLookup::Skip)
            .unwrap()
            .config,
    );
    let layout = Arc::new(Layout::new(&config));
    let (log_sender, _) = writer::start(&[]).unwrap();
    let counters = Arc::new(Counters::new(&config));
    let upstream = |index: usize| {
        let shared = Arc::new(SharedUpstream::new(&config.upstreams[index]));
        Upstream::new(config.clone(), index, shared, counters.clone(), 1)
    };
    let generation = Generation {
        config: config.clone(),
        upstreams: (0..config.upstreams.len()).map(upstream).collect(),
        logs: Logs::new(layout.clone()),
    };
    let disks = Arc::new(Disks::start(&config).unwrap());
    Worker::new(WorkerParts {
        generation,
        counters: counters.clone(),
        access_log: AccessLog::new(log_sender, config.access_logs.destinations.len(), &layout),
        open_connections: config
            .listeners
            .iter()
            .map(|_| OpenCount::default())
            .collect(),
        buffer_memory: Arc::new(BufferMemory::new(config.server.buffer_memory)),
        spans: None,
        files: Files::new(&config, disks),
        room: Room::new(0, Vec::new()),
    })
}

/// Has the first exchange find an idle connection to the endpoint.
fn keep_idle(worker: &Worker, stream: Stream) {
    let generation = worker.generation.get();
    let now = clock::now();
    let wanted = Wanted {
        key: 0,
        pinned_to: None,
        lane: None,
        priority: 0,
        arrived: now,
    };
    let (_, waker) = Wakes::of_new_waker();
    let slot = generation.upstreams[0].acquire(&wanted, &[], now, &waker);
    slot.expect("the endpoint is free")
        .keep_idle(stream, None, worker.wheel.now());
}

const GET: &str = "GET /a HTTP/1.1\r\nHost: example.com\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn both_connections_carry_two_exchanges() {
    let mut simulation = Simulation::new();
    for exchange in 1..=2 {
        simulation.client_sends(GET);
        let (request, _) = received(&mut simulation.endpoint);
        assert!(request.starts_with("GET /a HTTP/1.1\r\n"), "{request}");
        simulation.endpoint_sends(OK);
        let (answer, is_over) = received(&mut simulation.client);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
        assert!(!is_over);
        assert_eq!(simulation.exchanges(), exchange);
        simulation.pass(Duration::from_secs(1));
    }
    assert_eq!(simulation.failures(), []);
    // Nobody needs them any more.
    simulation.pass(Duration::from_secs(6));
    assert!(simulation.serving.is_none());
    assert_eq!(received(&mut simulation.client), (String::new(), true));
}

#[test]
fn two_requests_at_once_are_answered_in_order() {
    let mut simulation = Simulation::new();
    simulation.client_sends(&GET.repeat(2));
    let (request, _) = received(&mut simulation.endpoint);
    assert_eq!(request.matches("GET /a").count(), 1, "one after the other");
    simulation.endpoint_sends(OK);
    let (request, _) = received(&mut simulation.endpoint);
    assert_eq!(request.matches("GET /a").count(), 1);
    simulation.endpoint_sends(&OK.replace("ok", "no"));
    let (answers, _) = received(&mut simulation.client);
    assert!(answers.find("ok") < answers.find("\r\n\r\nno"), "{answers}");
    assert_eq!(simulation.exchanges(), 2);
}

#[test]
fn an_endpoint_that_says_nothing_is_given_up_in_time() {
    let mut simulation = Simulation::new();
    simulation.client_sends(GET);
    simulation.pass(Duration::from_millis(1_900));
    assert_eq!(received(&mut simulation.client), (String::new(), false));
    // A timeout is up to two ticks late.
    simulation.pass(Duration::from_millis(300));
    let (answer, is_over) = received(&mut simulation.client);
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("first-byte-timeout"), "{answer}");
    assert!(!is_over, "the client may go on");
    assert_eq!(
        simulation.failures(),
        [End::Failure(Failure::FirstByteTimeout)]
    );
    let (_, is_closed) = received(&mut simulation.endpoint);
    assert!(is_closed, "an answer may still come on it");
}

#[test]
fn a_part_of_an_answer_does_not_pass_for_the_whole() {
    let mut simulation = Simulation::new();
    simulation.client_sends(GET);
    simulation.endpoint_sends("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart");
    let (begun, is_over) = received(&mut simulation.client);
    assert!(begun.ends_with("\r\n\r\npart"), "{begun}");
    assert!(!is_over);
    let (other, _) = Stream::pair();
    drop(std::mem::replace(&mut simulation.endpoint, other));
    simulation.run();
    assert_eq!(received(&mut simulation.client), (String::new(), true));
    assert_eq!(simulation.failures(), [End::Failure(Failure::UpstreamCut)]);
    assert!(simulation.serving.is_none());
}

#[test]
fn a_client_that_leaves_takes_its_request_along() {
    let mut simulation = Simulation::new();
    simulation.client_sends(GET);
    assert!(received(&mut simulation.endpoint).0.starts_with("GET /a"));
    let (other, _) = Stream::pair();
    drop(std::mem::replace(&mut simulation.client, other));
    simulation.run();
    assert!(simulation.serving.is_none());
    assert_eq!(simulation.exchanges(), 1);
    let (_, is_closed) = received(&mut simulation.endpoint);
    assert!(is_closed, "its answer is nobody's");
}

/// Longest state of a connection that has an exchange, in bytes. With hundreds in
/// flight, each line of it is a cache miss.
const SERVED_LEN_MAX: usize = 2_432;

#[test]
fn an_exchange_in_flight_stays_small() {
    let worker = Rc::new(worker());
    let (_, stream) = Stream::pair();
    let len = client::served_len(&worker, stream, Peer::Tcp(CLIENT));
    println!("{len} bytes");
    assert!(len <= SERVED_LEN_MAX, "{len} bytes");
}
