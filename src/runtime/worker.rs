//! One worker: a thread with an event loop, its own sockets, pools and
//! counters.

use std::convert::Infallible;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_policy::dispatch::SlotRequest;
use tokio::sync::{mpsc, oneshot, watch};

use super::handover::LearnedByUpstream;
use super::heartbeat::Heartbeat;
use crate::client;
use crate::exchange::context::{GenerationPlan, ListenerSide, Worker, WorkerParts};
use crate::exchange::{Room, fetch_page, room};
use crate::lifecycle::{DrainMode, Phase, Starting};
use crate::metrics::BufferMemory;
use crate::net::clock;
use crate::net::listen::{Accepting, BoundListener, Listener};
use crate::net::tasks::{self, Tasks};
use crate::net::timer::TICK;
use crate::net::timer_fd::TimerFd;
use crate::observe::access_log::AccessLog;
use crate::observe::inquiry::{Inquiry, Question, Questions, WorkerOutlook};
use crate::observe::sessions::ListenerId;
use crate::scheduling::ask_for_short_slices;

/// An order of the control thread to a worker.
#[derive(Debug)]
pub(super) enum Order {
    /// To go on with another generation.
    Follow(Box<Follow>),
    /// To go on from what the workers of the process before have learned.
    Learn(Arc<LearnedByUpstream>),
}

/// Another generation for a worker.
#[derive(Debug)]
pub(super) struct Follow {
    /// The generation.
    pub plan: GenerationPlan,
    /// For each listener in order: its socket where it is new, and how the kernel
    /// takes connections in.
    pub sockets: Vec<(Option<BoundListener>, Accepting)>,
    /// Is dropped once exchanges begin with it.
    pub is_done: oneshot::Sender<Infallible>,
}

/// A listening socket of this worker, while connections are accepted there.
struct OpenSocket {
    listener: ListenerId,
    socket: Weak<Listener>,
}

/// Everything that the thread of a worker starts with.
#[derive(Debug)]
pub(super) struct WorkerThread {
    pub index: usize,
    pub parts: Parts,
    /// Of each listener of its first generation.
    pub sockets: Vec<BoundListener>,
    pub starting: Starting,
    pub phase: watch::Receiver<Phase>,
    pub questions: Questions,
    pub orders: mpsc::UnboundedReceiver<Order>,
    /// Shows the control thread that the worker comes round.
    pub heartbeat: Arc<Heartbeat>,
}

/// The parts of a worker, on its thread.
#[derive(Debug)]
pub(super) struct Parts {
    /// Its first generation.
    pub plan: GenerationPlan,
    /// The memory in which bodies are held for slow clients, of all workers.
    pub buffer_memory: Arc<BufferMemory>,
    /// The channel of questions to each worker.
    pub inquiries: Vec<Inquiry>,
}

impl Parts {
    fn on_its_thread(self, index: usize) -> WorkerParts {
        WorkerParts {
            access_log: AccessLog::new(),
            plan: self.plan,
            buffer_memory: self.buffer_memory,
            room: Room::new(index, self.inquiries),
            fetch_page,
        }
    }
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

    async fn serve(self) -> io::Result<()> {
        let WorkerThread {
            index,
            parts,
            sockets,
            starting,
            mut phase,
            mut questions,
            mut orders,
            heartbeat,
        } = self;
        let worker = Rc::new(Worker::new(parts.on_its_thread(index)));
        let timer = TimerFd::new()?;
        if !starting.finish().await {
            // Connections are another process's.
            return Ok(());
        }
        // Not all have listened before. It takes no descriptor.
        let listeners = sockets.into_iter().map(Listener::register);
        let listeners = listeners.collect::<io::Result<Vec<_>>>()?;
        // Each task that accepts holds another.
        let accepting = Rc::new(());
        let mut open = Vec::new();
        for (side, listener) in worker.listeners.all().into_iter().zip(listeners) {
            open.push(accept(&worker, &accepting, side, listener));
        }
        let started = Instant::now();
        timer.set(TICK, TICK)?;
        let mut deadline = None;
        let mut manner = DrainMode::Ending;
        let mut is_supervised = true;
        let is_idle = || {
            let is_accepting = Rc::strong_count(&accepting) > 1;
            worker.open_count.get() == 0 && !is_accepting && worker.upstreams.copies() == 0
        };
        while !is_over(deadline, is_idle()) {
            tokio::select! {
                () = timer.expired() => {
                    heartbeat.beat();
                    tick(&worker, started);
                    lose_patience(&worker, manner, Instant::now());
                }
                changed = phase.changed(), if is_supervised => {
                    is_supervised = changed.is_ok();
                    deadline = match *phase.borrow_and_update() {
                        Phase::Drain { deadline, manner: how } => {
                            manner = how;
                            Some(deadline)
                        }
                        // Nothing can stop us later.
                        _ if !is_supervised => Some(Instant::now()),
                        Phase::Start | Phase::Serve => continue,
                    };
                    let lingers = matches!(manner, DrainMode::HandedOver { .. });
                    worker.is_lingering.set(lingers);
                    worker.drain();
                }
                Some(question) = questions.recv() => answer(&worker, index, question),
                Some(order) = orders.recv() => match order {
                    Order::Follow(order) => follow(&worker, &accepting, &mut open, *order),
                    Order::Learn(learned) => learned.teach(index, &worker.upstreams),
                },
            }
        }
        let (open, copies) = (worker.open_count.get(), worker.upstreams.copies());
        if open > 0 {
            tracing::warn!("worker {index}: {open} connections cut at the deadline");
        }
        if copies > 0 {
            tracing::warn!("worker {index}: {copies} copies of requests cut at the deadline");
        }
        if open > 0 || copies > 0 {
            timer.set(CUT_STEP, CUT_STEP)?;
            cut(&worker, &timer, &heartbeat).await;
        }
        // The last exchanges have left idle connections.
        worker.upstreams.close_idle();
        worker
            .access_log
            .flush(&worker.counters.own.log_lines_dropped);
        Ok(())
    }
}

/// Ends what a worker of a replaced process need not keep for ever: idle connections, tunnels.
fn lose_patience(worker: &Worker, manner: DrainMode, now: Instant) {
    let DrainMode::HandedOver {
        idle_until,
        tunnels_until,
    } = manner
    else {
        return;
    };
    if now >= idle_until && worker.is_lingering.replace(false) {
        worker.wheel.wake_all();
    }
    if now >= tunnels_until && !worker.ends_tunnels.replace(true) {
        worker.wheel.wake_all();
    }
}

/// Accepts connections on this socket, until its listener takes nothing new. The accepting task
/// holds `accepting`.
fn accept(
    worker: &Rc<Worker>,
    accepting: &Rc<()>,
    side: Rc<ListenerSide>,
    socket: Listener,
) -> OpenSocket {
    let (worker, is_accepting) = (worker.clone(), accepting.clone());
    let socket = Rc::new(socket);
    let open = OpenSocket {
        listener: side.id(),
        socket: Rc::downgrade(&socket),
    };
    tasks::spawn(async move {
        let _is_accepting = is_accepting;
        client::accept(worker, socket, side).await;
    });
    open
}

/// Goes on with another generation: takes its new sockets, and sets how the kernel accepts.
fn follow(worker: &Rc<Worker>, accepting: &Rc<()>, open: &mut Vec<OpenSocket>, order: Follow) {
    open.retain(|it| it.socket.strong_count() > 0);
    let sides = worker.follow(&order.plan);
    for (side, (new, options)) in sides.into_iter().zip(order.sockets) {
        let (id, name) = (side.id(), side.setting(|it| it.name.clone()));
        let followed = match new {
            Some(_) if worker.is_draining.get() => Ok(()),
            Some(bound) => Listener::register(bound)
                .map(|socket| open.push(accept(worker, accepting, side, socket))),
            None => {
                let socket = open.iter().find(|it| it.listener == id);
                let socket = socket.and_then(|it| it.socket.upgrade());
                socket.map_or(Ok(()), |it| it.accept_as(options))
            }
        };
        if let Err(error) = followed {
            tracing::error!(listener = name, "listener {name}: {error}");
        }
    }
    drop(order.is_done);
}

/// Answers a question that only this worker can answer.
fn answer(worker: &Rc<Worker>, index: usize, question: Question) {
    // The asker may have given up meanwhile.
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
        Question::Learned(reply) => {
            let sides = worker.upstreams.all();
            let _ = reply.send(sides.iter().map(|it| it.learned()).collect());
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
            let asking = SlotRequest {
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

/// Ends every exchange as cut off by the stop. Each gets a moment to say so: to its client where
/// no answer has begun, and to the log.
async fn cut(worker: &Worker, steps: &TimerFd, heartbeat: &Heartbeat) {
    let until = Instant::now() + CUT_TIME;
    worker.wheel.stop();
    let is_idle = || worker.open_count.get() == 0 && worker.upstreams.copies() == 0;
    while !is_over(Some(until), is_idle()) {
        steps.expired().await;
        heartbeat.beat();
        worker.wheel.stop();
    }
}

/// Whether a draining worker may end.
fn is_over(deadline: Option<Instant>, is_idle: bool) -> bool {
    deadline.is_some_and(|deadline| is_idle || Instant::now() >= deadline)
}

/// Moves the wheel on, and hands log lines over. Once a second it sets the clock and sweeps idle
/// connections.
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
        worker.look_at_generations();
        let files = worker.generation.get().files.clone();
        files.check_folders(now);
        let open_files = files.open_count();
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
                counters.http2.set(endpoint.http2().open_count() as u64);
            });
        }
    }
}
