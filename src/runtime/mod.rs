//! The process: starts the workers, waits for signals, stops them.
//!
//! The thread that calls [`run`] is the supervisor. Workers are threads with an
//! event loop each (`worker`), which the supervisor watches (`heartbeat`); one
//! more watches the endpoints (`health`).

mod audience;
mod health;
mod heartbeat;
mod permits;
mod worker;

pub use audience::Audience;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_policy::dispatch::Dispatcher;
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::disable_transparent_huge_pages;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::admin::{self, AdminThread};
use crate::config::Config;
use crate::config::machine::{self, Obstacle};
use crate::files::Disks;
use crate::lifecycle::{Phase, Starting, StopSignals, ThreadEnded, WhileRunning};
use crate::metrics::end::End;
use crate::metrics::quantity::counted;
use crate::metrics::{BufferMemory, OpenCount};
use crate::net::Address;
use crate::net::descriptors;
use crate::net::listen::{self, BoundListener, SocketFile};
use crate::observe::access_log::Layout;
use crate::observe::counters::Counters;
use crate::observe::figures::{Figures, Sources, Started};
use crate::observe::inquiry;
use crate::observe::otlp::{self, Exporter, SpanCounts};
use crate::observe::probes::Probes;
use crate::observe::writer::{self, LogSender, LogWriter};
use crate::upstream::{self, shared_pools};
use health::HealthThread;
use heartbeat::{Beating, Heartbeat, LOOK_INTERVAL, Watch};
use worker::{Shared, WorkerThread};

/// Longest wait for the access logs, and for spans, once the workers have ended.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);

/// A running set of workers.
#[derive(Debug)]
pub struct Running {
    phase: watch::Sender<Phase>,
    /// Hears of each worker that ends, and of the health thread.
    ended: mpsc::UnboundedReceiver<ThreadEnded>,
    workers: Vec<JoinHandle<io::Result<()>>>,
    health: HealthThread,
    admin: AdminThread,
    log_sender: LogSender,
    log_writer: LogWriter,
    /// Sends spans, where they are sent.
    exporter: Option<Exporter>,
    heartbeats: Vec<Arc<Heartbeat>>,
    config: Arc<Config>,
    shared: Arc<Shared>,
    sources: Sources,
    /// Of listeners and of the status page.
    socket_files: Vec<SocketFile>,
    control_file: Option<SocketFile>,
    /// Where each listener listens, with the ports that the kernel chose.
    pub addresses: Vec<Address>,
}

/// Raises the limit on open descriptors as far as the process may: it is often
/// 1,024, for the sake of programs that use select(2), where many more are
/// granted to who asks.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it there are as many as before.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Signals that follow the first one so soon are the same wish: some programs,
/// such as `timeout`, signal a process and then its group.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// Runs until TERM, INT or QUIT, then drains; the next of them that is not the same
/// wish cuts what is still open. USR1 opens the files of the access logs anew.
///
/// # Errors
/// A listener can't be bound, a log can't be opened, a thread can't be
/// started; or a thread ended without being told to.
pub fn run(config: Config) -> io::Result<()> {
    // The allocator asks for them, of which each thread fills little: with 64
    // connections that is 90 MB in place of 20, and page cache that files lack.
    // A kernel that has none refuses.
    let _ = disable_transparent_huge_pages(true);
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // Before anyone can connect: from then on a signal is to drain.
    let (mut stop, mut reopen, mut reload) = {
        let _in_runtime = runtime.enter();
        let reopen = signal(SignalKind::user_defined1())?;
        (StopSignals::new()?, reopen, ReloadSignals::new()?)
    };
    let mut running = start(config)?;
    let timeout = running.config.server.drain_timeout;
    let stalls = running.sources.worker_stalls.clone();
    let mut watch = Watch::new(&running.heartbeats, stalls);
    runtime.block_on(async {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let signal = loop {
            tokio::select! {
                signal = stop.next() => break Some(signal),
                _ = running.ended.recv() => break None,
                _ = looks.tick() => watch.look(Instant::now()),
                _ = reopen.recv() => running.log_sender.reopen(),
                () = reload.refuse_next() => {}
            }
        };
        match signal {
            Some(name) => tracing::info!(
                "{name}: accepting nothing more; exchanges in flight have {timeout:?}"
            ),
            None => tracing::error!("a thread ended by itself: stopping"),
        }
        let signalled = Instant::now();
        let (phase, log_sender) = (running.phase.clone(), running.log_sender.clone());
        let mut stopped = tokio::task::spawn_blocking(move || running.stop(timeout));
        let mut is_hurried = false;
        loop {
            tokio::select! {
                stopped = &mut stopped => {
                    stopped?;
                    break;
                }
                _ = looks.tick() => watch.look(Instant::now()),
                name = stop.next(), if !is_hurried => {
                    if signal.is_some() && signalled.elapsed() < SAME_SIGNAL {
                        tracing::info!("{name} again, at once: taken for the same");
                        continue;
                    }
                    is_hurried = true;
                    tracing::warn!("{name} again: what is open is cut");
                    phase.send_replace(Phase::Drain { deadline: Instant::now() });
                }
                _ = reopen.recv() => log_sender.reopen(),
                () = reload.refuse_next() => {}
            }
        }
        match signal {
            Some(_) => Ok(()),
            None => Err(io::Error::other("a thread ended by itself")),
        }
    })
}

/// HUP, taken over from its default.
#[derive(Debug)]
struct ReloadSignals {
    hangup: Signal,
    /// Whether one has been answered: to say it once is enough.
    is_answered: bool,
}

impl ReloadSignals {
    /// Takes it over at once. To be called within a runtime.
    fn new() -> io::Result<Self> {
        Ok(ReloadSignals {
            hangup: signal(SignalKind::hangup())?,
            is_answered: false,
        })
    }

    /// Waits for the next one, and says of the first that it changes nothing.
    ///
    /// # Cancellation
    /// No signal is lost by dropping the future.
    async fn refuse_next(&mut self) {
        self.hangup.recv().await;
        if !std::mem::replace(&mut self.is_answered, true) {
            tracing::warn!(
                "HUP: the configuration stays as it is; this version reads it only at the start, \
                 and reloading comes with a later one"
            );
        }
    }
}

/// Binds every listener and starts the workers and the health thread.
///
/// # Errors
/// As for [`run`].
pub fn start(mut config: Config) -> io::Result<Running> {
    let worker_count = config.server.workers;
    let (mut sockets, socket_files) = bind_listeners(&config, worker_count)?;
    let addresses: Vec<Address> = sockets
        .first()
        .map(|first| first.iter().map(|bound| bound.address.clone()).collect())
        .unwrap_or_default();
    // Figures, and whoever asks the process, have the port that port 0 became.
    for (listener, address) in config.listeners.iter_mut().zip(&addresses) {
        listener.bind = address.clone();
    }
    let config = Arc::new(config);
    let (admin_sockets, admin_files) = admin::bind(&config)?;
    let (log_sender, log_writer) = writer::start(&config.access_logs.destinations)?;
    let log_layout = Arc::new(Layout::new(&config));
    let shared = shared_state(&config)?;
    let counters: Vec<_> = (0..worker_count)
        .map(|_| Arc::new(Counters::new(&config)))
        .collect();
    let spans = Arc::<SpanCounts>::default();
    let exporter = config.otlp.clone();
    let exporter = exporter.map(|settings| otlp::start(settings, spans.clone()));
    let (span_sender, exporter) = exporter.transpose()?.unzip();
    let (phase, phase_receiver) = watch::channel(Phase::Start);
    let (starting, none_lacking) = Starting::together(phase_receiver.clone());
    let (while_running, ended) = WhileRunning::new();
    let heartbeats: Vec<_> = (0..worker_count)
        .map(|_| Arc::<Heartbeat>::default())
        .collect();
    let mut workers = Vec::with_capacity(worker_count);
    let (inquiries, questions): (Vec<_>, Vec<_>) =
        (0..worker_count).map(|_| inquiry::channel()).unzip();
    for ((index, counters), questions) in counters.iter().enumerate().zip(questions) {
        let worker = WorkerThread {
            index,
            config: config.clone(),
            shared: shared.clone(),
            sockets: std::mem::take(&mut sockets[index]),
            counters: counters.clone(),
            log_sender: log_sender.clone(),
            log_layout: log_layout.clone(),
            spans: span_sender.clone(),
            starting: starting.clone(),
            phase: phase_receiver.clone(),
            questions,
            heartbeat: heartbeats[index].clone(),
            inquiries: inquiries.clone(),
        };
        let thread = std::thread::Builder::new().name(format!("worker-{index}"));
        let while_running = while_running.clone();
        let beating = Beating(worker.heartbeat.clone());
        workers.push(thread.spawn(move || {
            let _while_running = while_running;
            let _beating = beating;
            worker.run()
        })?);
    }
    let probes = Arc::new(Probes::new(&config));
    let watched = health::Watched {
        config: config.clone(),
        dispatchers: shared.dispatchers.clone(),
        pools: shared.pools.clone(),
        counters: counters.clone(),
        inquiries: inquiries.clone(),
        probes: probes.clone(),
    };
    let health = health::start(watched, starting.clone(), while_running.clone())?;
    let sources = Sources {
        config: config.clone(),
        counters,
        dispatchers: shared.dispatchers.clone(),
        log_lines_lost: log_writer.lost(),
        spans,
        probes,
        status_tokens_refused: Arc::default(),
        worker_stalls: Arc::default(),
        is_draining: Arc::default(),
        started: Started::now(),
        disks: shared.disks.clone(),
        buffer_memory: shared.buffer_memory.clone(),
        inquiries,
    };
    let admin = admin::start(
        sources.clone(),
        admin_sockets,
        phase_receiver,
        starting,
        while_running,
    )?;
    none_lacking.wait();
    descriptors::reserve(config.server.reserved_descriptors);
    phase.send_replace(Phase::Serve);
    let running = Running {
        phase,
        ended,
        workers,
        health,
        admin,
        log_sender,
        log_writer,
        exporter,
        heartbeats,
        config,
        shared,
        sources,
        socket_files: socket_files.into_iter().chain(admin_files.status).collect(),
        control_file: admin_files.control,
        addresses,
    };
    running.announce();
    Ok(running)
}

/// One socket per worker and listener, indexed in this order, and the files of
/// Unix sockets.
fn bind_listeners(
    config: &Config,
    workers: usize,
) -> io::Result<(Vec<Vec<BoundListener>>, Vec<SocketFile>)> {
    let mut by_worker: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
    let mut files = Vec::new();
    for listener in &config.listeners {
        let bind = &listener.bind;
        let bound = listen::bind(bind, listener.accepting, workers).map_err(|error| {
            let what = format!("listener {}: bind {bind}", listener.name);
            machine::explained(&what, &error, Obstacle::of(bind))
        })?;
        for (sockets, socket) in by_worker.iter_mut().zip(bound.listeners) {
            sockets.push(socket);
        }
        files.extend(bound.file);
    }
    Ok((by_worker, files))
}

fn shared_state(config: &Config) -> io::Result<Arc<Shared>> {
    Ok(Arc::new(Shared {
        dispatchers: config
            .upstreams
            .iter()
            .map(|upstream| Arc::new(upstream::dispatcher(upstream)))
            .collect(),
        pools: config.upstreams.iter().map(shared_pools).collect(),
        open_per_listener: config
            .listeners
            .iter()
            .map(|_| OpenCount::default())
            .collect(),
        disks: Arc::new(Disks::start(config)?),
        buffer_memory: Arc::new(BufferMemory::new(config.server.buffer_memory)),
    }))
}

impl Running {
    fn announce(&self) {
        let version = env!("CARGO_PKG_VERSION");
        let config = self.config.hash_text();
        let workers = counted(self.config.server.workers as u64, "worker");
        tracing::info!(
            version,
            config,
            "evenkeel {version}: {workers}, configuration {config}"
        );
        if let Some(address) = &self.admin.status_address {
            tracing::info!("status page: listening on {address}");
        }
        if let Some(address) = &self.config.server.control {
            tracing::info!("control socket: listening on {address}");
        }
        for (listener, address) in self.config.listeners.iter().zip(&self.addresses) {
            let name = listener.name.as_str();
            let bind = address.to_string();
            tracing::info!(
                listener = name,
                bind,
                "listener {name}: listening on {bind}"
            );
        }
    }

    /// Counters of each worker.
    pub fn counters(&self) -> &[Arc<Counters>] {
        &self.sources.counters
    }

    /// All figures at this moment.
    pub fn figures(&self) -> Figures {
        self.sources.read()
    }

    /// Where the status page is, if there is one.
    pub fn status_address(&self) -> Option<&Address> {
        self.admin.status_address.as_ref()
    }

    /// The endpoints of each upstream, as all workers share them: what is in
    /// flight where, and what is eligible.
    pub fn dispatchers(&self) -> &[Arc<Dispatcher>] {
        &self.shared.dispatchers
    }

    /// Drains for at most `timeout`, then stops, and says what was done.
    ///
    /// Invariant: every address is free for a successor as soon as draining begins.
    /// Files of Unix sockets go first, then workers and the status page close their
    /// listening sockets.
    pub fn stop(mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        self.sources.is_draining.store(true, Ordering::Relaxed);
        self.socket_files.clear();
        let control_file = self.control_file.take().and_then(move_aside);
        self.phase.send_replace(Phase::Drain { deadline });
        for worker in self.workers {
            match worker.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!("a worker failed: {error}"),
                Err(_) => tracing::error!("a worker panicked"),
            }
        }
        // Until then who waits in a queue may still be served.
        self.health.stop();
        drop(control_file);
        self.admin.stop();
        if let Some(exporter) = self.exporter {
            exporter.finish(LOG_TIMEOUT);
        }
        let unwritten = self.log_writer.finish(LOG_TIMEOUT);
        summarise(&self.config, &self.sources.counters, unwritten);
    }
}

/// Frees the path of the control socket, over which the drain can be watched still.
fn move_aside(file: SocketFile) -> Option<SocketFile> {
    match file.move_aside() {
        Ok(Some(file)) => {
            let path = file.path().display();
            tracing::info!("control socket: at {path} while this process drains");
            Some(file)
        }
        Ok(None) => None,
        Err(error) => {
            tracing::warn!("control socket: closed, for it can't be moved: {error}");
            None
        }
    }
}

/// Says in the event log what every listener and upstream has done.
fn summarise(config: &Config, counters: &[Arc<Counters>], unwritten: u64) {
    for (index, listener) in config.listeners.iter().enumerate() {
        let sum = |count: &dyn Fn(&Counters) -> u64| -> u64 {
            counters.iter().map(|counters| count(counters)).sum()
        };
        let requests = sum(&|c| c.listeners[index].exchanges.requests.value());
        let connections = sum(&|c| c.listeners[index].connections.value());
        let ends: Vec<_> = End::all()
            .map(|end| {
                let count = sum(&|c| c.listeners[index].exchanges.ends[end.index()].value());
                (end.word(), count)
            })
            .filter(|(_, count)| *count > 0)
            .map(|(word, count)| format!("{word} {count}"))
            .collect();
        tracing::info!(
            "listener {}: {}, {}{}",
            listener.name,
            counted(connections, "connection"),
            counted(requests, "request"),
            match ends.join(", ") {
                ends if ends.is_empty() => ends,
                ends => format!(" ({ends})"),
            }
        );
    }
    let dropped: u64 = counters
        .iter()
        .map(|c| c.own.log_lines_dropped.value())
        .sum();
    if dropped + unwritten > 0 {
        let lost = counted(dropped + unwritten, "line");
        tracing::warn!("access log: {lost} lost");
    }
    tracing::info!("stopped");
}
