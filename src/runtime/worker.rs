//! One worker: a thread with an event loop, its own sockets, pools and
//! counters.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_policy::dispatch::Asking;
use tokio::sync::watch;

use super::heartbeat::Heartbeat;
use crate::client;
use crate::config::Config;
use crate::exchange::context::{Generation, SharedListener, Worker, WorkerParts};
use crate::exchange::{Room, room};
use crate::files::{Disks, Files};
use crate::lifecycle::{Phase, Starting};
use crate::metrics::BufferMemory;
use crate::net::clock;
use crate::net::listen::{BoundListener, Listener};
use crate::net::tasks::{self, Tasks};
use crate::net::timer::TICK;
use crate::net::timer_fd::TimerFd;
use crate::observe::access_log::AccessLog;
use crate::observe::counters::Counters;
use crate::observe::inquiry::{Inquiry, Question, Questions, WorkerOutlook};
use crate::observe::outlets::Outlets;
use crate::scheduling::ask_for_short_slices;
use crate::upstream::{SharedUpstream, UpstreamSides};

/// What the workers share, and nothing else.
#[derive(Debug)]
pub(super) struct Shared {
    /// Upstreams, with slots and connections that belong to all workers.
    pub upstreams: Vec<Arc<SharedUpstream>>,
    /// In the order of the configuration.
    pub listeners: Vec<Arc<SharedListener>>,
    /// The disks that files are served from.
    pub disks: Arc<Disks>,
    /// The memory in which bodies are held for slow clients.
    pub buffer_memory: Arc<BufferMemory>,
}

/// What the thread of a worker is started with.
#[derive(Debug)]
pub(super) struct WorkerThread {
    pub index: usize,
    pub config: Arc<Config>,
    pub shared: Arc<Shared>,
    pub sockets: Vec<BoundListener>,
    pub counters: Arc<Counters>,
    pub outlets: Outlets,
    pub starting: Starting,
    pub phase: watch::Receiver<Phase>,
    pub questions: Questions,
    /// Shows the control thread that the worker comes round.
    pub heartbeat: Arc<Heartbeat>,
    /// Where each worker is asked.
    pub inquiries: Vec<Inquiry>,
}

/// Ticks between two looks at the clock and the idle pools: a second.
const SWEEP_TICKS: u64 = 10;
/// Longest time for exchanges to end after the deadline of a drain.
const CUT_TIME: Duration = Duration::from_millis(500);
/// Time between two looks whether they have.
const CUT_STEP: Duration = Duration::from_millis(10);

impl WorkerThread {
    /// Serves until told to drain and drained, or the deadline has passed.
    pub fn run(self) -> io::Result<()> {
        ask_for_short_slices();
        Tasks::of_this_thread()?.run_until(self.serve())?
    }

    async fn serve(mut self) -> io::Result<()> {
        let worker = Rc::new(self.worker());
        let sockets = self.sockets.drain(..);
        let listeners = sockets.map(Listener::register);
        let listeners = listeners.collect::<io::Result<Vec<_>>>()?;
        let timer = TimerFd::new()?;
        self.starting.finish().await;
        // Each task that accepts holds another.
        let accepting = Rc::new(());
        let sides = worker.follow(worker.generation.get(), &self.shared.listeners);
        for (side, listener) in sides.into_iter().zip(listeners) {
            let (worker, is_accepting) = (worker.clone(), accepting.clone());
            tasks::spawn(async move {
                let _is_accepting = is_accepting;
                client::accept(worker, listener, side).await;
            });
        }
        let started = Instant::now();
        timer.set(TICK, TICK)?;
        let mut deadline = None;
        let mut is_supervised = true;
        let is_idle = || worker.open_count.get() == 0 && Rc::strong_count(&accepting) == 1;
        while !is_over(deadline, is_idle()) {
            tokio::select! {
                () = timer.expired() => {
                    self.heartbeat.beat();
                    tick(&worker, started);
                }
                changed = self.phase.changed(), if is_supervised => {
                    is_supervised = changed.is_ok();
                    deadline = match *self.phase.borrow_and_update() {
                        Phase::Drain { deadline } => Some(deadline),
                        // Nothing can stop us later.
                        _ if !is_supervised => Some(Instant::now()),
                        Phase::Start | Phase::Serve => continue,
                    };
                    worker.drain();
                }
                Some(question) = self.questions.recv() => answer(&worker, self.index, question),
            }
        }
        let open = worker.open_count.get();
        if open > 0 {
            tracing::warn!(
                "worker {}: {open} connections cut at the deadline",
                self.index
            );
            timer.set(CUT_STEP, CUT_STEP)?;
            cut(&worker, &timer, &self.heartbeat).await;
        }
        // Those that the last exchanges have left.
        worker.upstreams.close_idle();
        worker
            .access_log
            .flush(&worker.counters.own.log_lines_dropped);
        Ok(())
    }

    fn generation(&self, sides: &UpstreamSides) -> Generation {
        Generation::new(
            0,
            self.config.clone(),
            &self.shared.upstreams,
            sides,
            self.counters.clone(),
            &self.outlets,
            fastrand::u64(..),
        )
    }

    fn worker(&self) -> Worker {
        let upstreams = UpstreamSides::default();
        Worker::new(WorkerParts {
            generation: self.generation(&upstreams),
            upstreams,
            access_log: AccessLog::new(),
            buffer_memory: self.shared.buffer_memory.clone(),
            files: Files::new(&self.config, self.shared.disks.clone()),
            room: Room::new(self.index, self.inquiries.clone()),
        })
    }
}

/// Answers who wants to see what only this worker knows.
fn answer(worker: &Rc<Worker>, index: usize, question: Question) {
    // Who asked may have given up meanwhile.
    match question {
        Question::Sessions(max, reply) => {
            let worker = worker.clone();
            tasks::spawn(async move {
                let list = worker.sessions.list(max, worker.wheel.now(), TICK);
                let mut list = list.await;
                let listener = |id| worker.listeners.name(id);
                list.look_up(listener, |it| worker.names_of(it)).await;
                let _ = reply.send(list);
            });
        }
        Question::Failures(reply) => {
            let _ = reply.send(worker.failures.list());
        }
        Question::Spare(need, reply) => {
            let _ = reply.send(room::spare(worker, need));
        }
        Question::GiveUp(need, reply) => {
            let worker = worker.clone();
            tasks::spawn(async move {
                let _ = reply.send(room::give_up(&worker, need).await);
            });
        }
        Question::Outlook(dispatcher, asking, reply) => {
            let Some(upstream) = worker.upstreams.get(&dispatcher) else {
                return;
            };
            let now = clock::now();
            let asking = Asking {
                arrived: now,
                now,
                ..asking
            };
            let (outlook, learned) = upstream.outlook(&asking);
            let _ = reply.send(WorkerOutlook {
                worker: index,
                outlook,
                learned,
            });
        }
    }
}

/// Ends every exchange as one that the stop cut off, and gives them a moment
/// to say so: to the client where no answer has begun, and to the log.
async fn cut(worker: &Worker, steps: &TimerFd, heartbeat: &Heartbeat) {
    let until = Instant::now() + CUT_TIME;
    worker.wheel.stop();
    while !is_over(Some(until), worker.open_count.get() == 0) {
        steps.expired().await;
        heartbeat.beat();
        worker.wheel.stop();
    }
}

/// Whether a draining worker may end.
fn is_over(deadline: Option<Instant>, is_idle: bool) -> bool {
    deadline.is_some_and(|deadline| is_idle || Instant::now() >= deadline)
}

/// Moves the wheel on, hands log lines over, and once a second sets the clock
/// and closes idle connections that nobody needs.
fn tick(worker: &Worker, started: Instant) {
    let late = worker.wheel.advance(started.elapsed());
    worker.counters.own.loop_lag_us.record_time(late);
    worker
        .access_log
        .flush(&worker.counters.own.log_lines_dropped);
    worker.access_log.http_date(clock::now());
    let now = worker.wheel.now();
    if now.is_multiple_of(SWEEP_TICKS) {
        worker.access_log.synchronise_clock();
        worker.files.check_folders(now);
        let open_files = worker.files.open_count();
        worker.counters.own.open_files.set(open_files as u64);
        worker.pinned.sweep(now);
        worker.listeners.forget_gone();
        worker.upstreams.forget_gone();
        for upstream in worker.upstreams.all() {
            if worker.is_draining.get() {
                // Their places are a successor's.
                upstream.close_idle()
            } else {
                upstream.sweep(now)
            }
            // An endpoint that was never used has no connections.
            upstream.for_each_endpoint(|endpoint| {
                let counters = endpoint.counters();
                counters.idle.set(endpoint.idle_count() as u64);
                counters.pinned.set(endpoint.pinned_count() as u64);
            });
        }
    }
}
