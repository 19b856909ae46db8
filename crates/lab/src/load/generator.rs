//! The generator's loop: when each connection sends, and which results are counted.
//!
//! A connection that could take a request waits in `ready`, first in, first out. `Pace` says
//! whether a request may leave now and when it fell due. Requests due during the warm-up are
//! sent like all others, but their latencies are dropped.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use rustix::event::epoll::{Event, EventFlags};
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::Options;
use super::connection::{Connection, Failure, Outcome, Phase};
use super::pace::Pace;
use super::request::Requests;
use super::summary::{Errors, Summary};
use crate::socket::{BUFFER_LEN, Poller, Waiting, connect_to, stamp_arrivals};

const TIMER: u64 = u64::MAX;
const EVENTS_PER_WAIT: usize = 512;
/// Connections are opened in groups of this size, with `OPENING_PAUSE` between.
const OPENING_GROUP: usize = 64;
const OPENING_PAUSE: Duration = Duration::from_millis(2);
/// The load ends when nothing has moved for so long.
const STALL_MAX: Duration = Duration::from_secs(10);
/// How often the end and a stall are looked for.
const TICK: Duration = Duration::from_millis(50);
/// Most requests in flight at once in a load that leaves idle connections. The memory of many
/// concurrent requests must not count there.
const HOLD_IN_FLIGHT_MAX: u64 = 16;
/// Failures that end the load.
const ERRORS_MAX: u64 = 100_000;

/// The load generator.
pub struct Generator {
    options: Options,
    poller: Poller,
    timer: OwnedFd,
    requests: Requests,
    connections: Vec<Connection>,
    ready: VecDeque<usize>,
    pace: Pace,
    in_flight: u64,
    /// Requests due before this are the warm-up.
    counts_from: Instant,
    errors: Errors,
    opened: u64,
    last_progress: Instant,
    /// When the timer goes off, if it is set.
    wakes: Option<Instant>,
    random: fastrand::Rng,
}

impl Generator {
    /// Makes a generator that has opened nothing yet.
    ///
    /// # Errors
    /// Options that make no sense, and the kernel's.
    pub fn new(options: &Options) -> io::Result<Self> {
        let now = Instant::now();
        let waiting = if options.awake {
            Waiting::Awake
        } else {
            Waiting::Asleep
        };
        let poller = Poller::new(waiting)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        poller.add(&timer, TIMER, EventFlags::IN)?;
        let count = match options.hold {
            Some(_) => options.connections as u64,
            None => options.count.unwrap_or(u64::MAX),
        };
        Ok(Self {
            options: options.clone(),
            poller,
            timer,
            requests: Requests::of(options)?,
            connections: (0..options.connections)
                .map(|_| Connection::closed(now, options.refusable, options.kernel_times))
                .collect(),
            ready: (0..options.connections).collect(),
            pace: Pace::new(options.arrivals(), count),
            in_flight: 0,
            counts_from: now,
            errors: Errors::default(),
            opened: 0,
            last_progress: now,
            wakes: None,
            // The same requests in the same order for every proxy.
            random: fastrand::Rng::with_seed(options.seed),
        })
    }

    /// Runs the load to its end. It can be run again: open connections are reused, and the
    /// counts start again.
    ///
    /// # Errors
    /// The errors of the kernel. A failed exchange is counted, and is no error.
    pub fn run(&mut self) -> io::Result<Summary> {
        self.errors = Errors::default();
        self.opened = 0;
        self.requests.forget();
        if !self.options.no_keepalive {
            self.open_all();
        }
        std::thread::sleep(Duration::from_secs_f64(self.options.settle));
        let began = Instant::now();
        self.pace
            .begin(began, Duration::from_secs_f64(self.options.seconds));
        self.counts_from = began + Duration::from_secs_f64(self.options.warm_up);
        self.last_progress = began;
        self.dispatch(began);
        let mut buffer = vec![0; BUFFER_LEN];
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_PER_WAIT);
        loop {
            let now = Instant::now();
            if self.is_over(now) {
                break;
            }
            self.set_timer(now)?;
            self.poller.wait(&mut events)?;
            for event in &events {
                match event.data.u64() {
                    TIMER => {
                        self.wakes = None;
                        self.dispatch(Instant::now());
                    }
                    token => self.event(token as usize, event.flags, &mut buffer),
                }
            }
        }
        Ok(self.summary())
    }

    fn open_all(&mut self) {
        for key in 0..self.connections.len() {
            if self.connections[key].phase != Phase::Closed {
                continue;
            }
            self.open(key);
            if key % OPENING_GROUP == OPENING_GROUP - 1 {
                std::thread::sleep(OPENING_PAUSE);
            }
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        let stalled = now.duration_since(self.last_progress) > STALL_MAX;
        let done = self.in_flight == 0 && self.pace.is_over(now);
        done || stalled || self.errors.total() > ERRORS_MAX
    }

    /// Wakes when the next request falls due, and now and then to look for the
    /// end. A timer that is set stays set.
    fn set_timer(&mut self, now: Instant) -> io::Result<()> {
        let wakes = match self.pace.due() {
            Some(due) if !self.ready.is_empty() => due.min(now + TICK),
            _ => now + TICK,
        };
        if self.wakes.is_some_and(|set| set <= wakes) {
            return Ok(());
        }
        self.wakes = Some(wakes);
        let wait = wakes.saturating_duration_since(now).as_nanos().max(1);
        let setting = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: 0,
                tv_nsec: wait as i64,
            },
        };
        // Setting the timer also resets its expiration.
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting)?;
        Ok(())
    }

    /// Sends requests for as long as one is due and a connection is ready.
    fn dispatch(&mut self, now: Instant) {
        // Not more than is ready now: one that fails at once is ready again.
        for _ in 0..self.ready.len() {
            if self.options.hold.is_some() && self.in_flight >= HOLD_IN_FLIGHT_MAX {
                return;
            }
            let Some(due) = self.pace.next(now) else {
                return;
            };
            let Some(key) = self.ready.pop_front() else {
                return;
            };
            self.pace.issue();
            self.in_flight += 1;
            let request = self.requests.choose(&mut self.random);
            let connection = &mut self.connections[key];
            connection.request = request;
            connection.body_len = self.requests.body_len(request);
            connection.due = due;
            // The connection was free in time, so the delay is the generator's own.
            let is_ours = self.options.kernel_times && connection.ready <= due;
            connection.began = if is_ours { Instant::now() } else { due };
            if connection.phase == Phase::Closed && !self.open(key) {
                self.fail(key, Failure::Connect);
                continue;
            }
            self.connections[key].phase = Phase::Sending { sent: 0 };
            self.send(key);
        }
    }

    fn open(&mut self, key: usize) -> bool {
        let Ok(socket) = connect_to(self.options.to) else {
            return false;
        };
        let interest = EventFlags::IN | EventFlags::RDHUP;
        if self.poller.add(&socket, key as u64, interest).is_err() {
            return false;
        }
        if self.options.kernel_times && stamp_arrivals(&socket).is_err() {
            return false;
        }
        self.opened += 1;
        let connection = &mut self.connections[key];
        connection.socket = Some(socket);
        connection.phase = Phase::Idle;
        connection.lifetime = match self.options.churn {
            // Spread out, so that the connections don't all end at once.
            Some(mean) => self.random.u32(1..=mean * 2),
            None => u32::MAX,
        };
        true
    }

    fn send(&mut self, key: usize) {
        let connection = &mut self.connections[key];
        let outcome = connection.send(self.requests.bytes(connection.request));
        if matches!(connection.phase, Phase::Sending { .. }) {
            self.watch(key, EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP);
        }
        if let Outcome::Failed(failure) = outcome {
            self.fail(key, failure);
        }
    }

    fn watch(&self, key: usize, interest: EventFlags) {
        if let Some(socket) = &self.connections[key].socket {
            // A socket that can't be watched shows up as a stall.
            let _ = self.poller.modify(socket, key as u64, interest);
        }
    }

    fn event(&mut self, key: usize, flags: EventFlags, buffer: &mut [u8]) {
        if flags.contains(EventFlags::OUT) {
            self.send(key);
            if self.connections[key].phase == Phase::Head {
                self.watch(key, EventFlags::IN | EventFlags::RDHUP);
            }
        }
        if flags.difference(EventFlags::OUT).is_empty() {
            return;
        }
        match self.connections[key].receive(flags, buffer) {
            Outcome::Pending => {}
            Outcome::Answered => self.answered(key),
            Outcome::AnsweredLast => self.answered_last(key),
            Outcome::Ended => self.ended(key),
            Outcome::Failed(failure) => self.fail(key, failure),
        }
    }

    fn record(&mut self, key: usize) -> Instant {
        let now = Instant::now();
        self.in_flight -= 1;
        self.last_progress = now;
        let connection = &mut self.connections[key];
        if connection.due < self.counts_from {
            return now;
        }
        if connection.is_refused {
            self.requests.refuse(connection.request);
        } else {
            let lay_waiting = connection.lay_waiting.take().unwrap_or_default();
            let latency = now.duration_since(connection.began);
            let latency = latency.saturating_sub(lay_waiting);
            self.requests.record(connection.request, latency);
        }
        now
    }

    fn answered(&mut self, key: usize) {
        let now = self.record(key);
        if self.options.hold.is_some() {
            return self.dispatch(now);
        }
        let connection = &mut self.connections[key];
        connection.lifetime -= 1;
        if connection.lifetime == 0 {
            connection.close();
        }
        self.make_ready(key, now);
        self.dispatch(now);
    }

    fn answered_last(&mut self, key: usize) {
        let now = self.record(key);
        if self.connections[key].phase == Phase::Closed {
            self.make_ready(key, now);
            self.dispatch(now);
        }
    }

    /// A connection may take the next request, open or not.
    fn make_ready(&mut self, key: usize, now: Instant) {
        self.connections[key].ready = now;
        self.ready.push_back(key);
    }

    /// The server closed a connection on which nothing was asked.
    fn ended(&mut self, key: usize) {
        let connection = &mut self.connections[key];
        // A connection in `Phase::Idle` waits in `ready` already.
        let waits = connection.phase == Phase::Idle;
        connection.close();
        if !waits {
            let now = Instant::now();
            self.make_ready(key, now);
            self.dispatch(now);
        }
    }

    /// Counts, and leaves the next attempt to the next turn of the loop.
    fn fail(&mut self, key: usize, failure: Failure) {
        let counted = match failure {
            Failure::Connect => &mut self.errors.connect,
            Failure::Status => &mut self.errors.status,
            Failure::Length => &mut self.errors.length,
            Failure::Closed => &mut self.errors.closed,
            Failure::Malformed => &mut self.errors.malformed,
        };
        *counted += 1;
        // Unexpected bytes can come on an idle connection too.
        let waits = self.connections[key].phase == Phase::Idle;
        self.connections[key].close();
        if !waits {
            self.in_flight = self.in_flight.saturating_sub(1);
            self.make_ready(key, Instant::now());
        }
    }

    fn summary(&mut self) -> Summary {
        // Due requests without a connection are unanswered too.
        self.errors.unanswered += self.in_flight + self.pace.drain();
        let latency = self.requests.latency();
        let seconds = self.last_progress.duration_since(self.counts_from);
        let seconds = seconds.as_secs_f64();
        Summary {
            answered: latency.answered,
            errors: self.errors,
            refused: self.requests.refused(),
            seconds,
            per_second: latency.answered as f64 / seconds.max(1e-9),
            opened: self.opened,
            mean_us: latency.mean_us,
            percentiles: latency.percentiles,
            pages: self.requests.pages(),
        }
    }
}
