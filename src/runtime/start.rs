//! The start of the process: sockets, what workers share, and the workers.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot, watch};

use super::file_watch::RereadFiles;
use super::handover::{CountsBefore, Inheritance};
use super::health;
use super::heartbeat::{Beating, Heartbeat};
use super::listeners::Listeners;
use super::worker::{Order, Parts, WorkerThread};
use crate::admin;
use crate::cache::{Cache, caches};
use crate::certificates::{CertificateWatch, ServedTls, Tickets, UpstreamTls, served_tls};
use crate::config::{Config, Listener, WatchedNetworks, WatchedUsers};
use crate::discovery::Discovery;
use crate::exchange::context::GenerationPlan;
use crate::files::Disks;
use crate::lifecycle::{Phase, Starting, ThreadEnded, ThreadEnds, WhileRunning};
use crate::limits::{RouteLimits, route_limits};
use crate::maintenance::Maintenance;
use crate::metrics::BufferMemory;
use crate::metrics::quantity::counted;
use crate::net::Address;
use crate::net::clock;
use crate::net::descriptors;
use crate::net::given::SocketCopies;
use crate::net::listen::{BoundListener, SocketFile};
use crate::net::poller::Poller;
use crate::observe::access_log::Layout;
use crate::observe::access_log::writer::{self, LogWriter};
use crate::observe::counters::Counters;
use crate::observe::figures::{CurrentSources, Sources, Started};
use crate::observe::inquiry::{self, Inquiry, Questions};
use crate::observe::otlp::Exporters;
use crate::observe::outlets::Outlets;
use crate::observe::paths::paths_lost;
use crate::observe::probes::Probes;
use crate::passwords::Passwords;
use crate::upstream::{SharedUpstream, prepare_own_key, shared_upstreams};

/// The running process, as the control thread owns it.
#[derive(Debug)]
pub(super) struct Process {
    pub phase: watch::Sender<Phase>,
    /// Hears of each worker that ends.
    pub ended: mpsc::UnboundedReceiver<ThreadEnded>,
    pub workers: Vec<JoinHandle<io::Result<()>>>,
    pub heartbeats: Vec<Arc<Heartbeat>>,
    /// `None` once it is being finished.
    pub writing: Option<Writing>,
    /// Of the newest configuration.
    pub current: CurrentSources,
    /// Of the newest configuration, in its order.
    pub upstreams: Vec<Arc<SharedUpstream>>,
    pub discovery: Arc<Discovery>,
    pub listeners: Listeners,
    /// To each worker.
    pub orders: Vec<mpsc::UnboundedSender<Order>>,
    /// Orders of operators.
    pub asked: mpsc::UnboundedReceiver<admin::Order>,
    /// The endpoints that are watched.
    pub watched: watch::Sender<Arc<health::Watched>>,
    /// The certificates that are read again whenever their files change.
    pub certificates: CertificateWatch,
    /// The files of networks, watched.
    pub networks: RereadFiles<WatchedNetworks>,
    /// The files of users, watched.
    pub users: RereadFiles<WatchedUsers>,
    /// Of the status page.
    pub status_file: Option<SocketFile>,
    pub control_file: Option<SocketFile>,
    /// The same while the process drains.
    pub moved_control_file: Option<SocketFile>,
    pub status_address: Option<Address>,
    /// Of the status page, for a process that takes over.
    pub status_copies: Option<SocketCopies>,
    /// The counts of the process before, where that one may still count.
    pub counts_before: Option<CountsBefore>,
}

/// Threads that still write when the workers have ended.
#[derive(Debug)]
pub(super) struct Writing {
    /// Send spans, where they are sent.
    pub exporters: Exporters,
    pub log_writer: LogWriter,
}

/// Tasks of the control thread beside the workers.
#[derive(Debug)]
pub(super) struct Duties {
    /// The thread's event loop.
    pub poller: Poller,
    pub admin: admin::Service,
    pub discovery: Arc<Discovery>,
    /// Ends once the counters include the counts of the process before: shown figures never fall.
    pub first_counts: Option<oneshot::Receiver<()>>,
    pub watched: watch::Receiver<Arc<health::Watched>>,
    pub current: CurrentSources,
}

/// Sockets and shared state, made before any worker runs.
struct Opened {
    config: Arc<Config>,
    listeners: Listeners,
    upstreams: Vec<Arc<SharedUpstream>>,
    caches: Vec<Arc<Cache>>,
    tls: Vec<Option<Arc<ServedTls>>>,
    tickets: Arc<Tickets>,
    disks: Arc<Disks>,
    passwords: Arc<Passwords>,
    buffer_memory: Arc<BufferMemory>,
    /// Of each worker.
    sockets: Vec<Vec<BoundListener>>,
    status_file: Option<SocketFile>,
    admin_sockets: admin::Sockets,
    control_file: Option<SocketFile>,
    status_copies: Option<SocketCopies>,
}

impl Opened {
    fn new(mut config: Config, inheritance: &mut Inheritance) -> io::Result<Self> {
        let control = inheritance.control_of_another();
        let given = &mut inheritance.sockets;
        let mut listeners = Listeners::default();
        let new = listeners.bind(&mut config, given)?;
        let workers = config.server.workers;
        let sockets = listeners.follow(new, &mut config, workers).into_iter();
        let (admin_sockets, admin_files) = admin::bind(&config, given, control.as_ref())?;
        inheritance.close_rest();
        let tickets = Tickets::start(&config.tickets)?;
        prepare_own_key(&config)?;
        Ok(Opened {
            sockets: sockets
                .map(|it| it.into_iter().flatten().collect())
                .collect(),
            listeners,
            upstreams: shared_upstreams(&config, &[], clock::now()),
            caches: caches(&config, &[])?,
            tls: served_tls(&config, &[], &tickets)?,
            tickets,
            disks: Arc::new(Disks::start(&config)?),
            passwords: Arc::new(Passwords::new()?),
            buffer_memory: Arc::new(BufferMemory::new(config.server.buffer_memory)),
            config: Arc::new(config),
            status_file: admin_files.status,
            admin_sockets,
            control_file: admin_files.control,
            status_copies: admin_files.status_copies,
        })
    }

    /// Has sockets that were given take connections in as the configuration says.
    fn prepare_sockets(&self) {
        self.listeners.prepare(&self.config.listeners);
        if let (Some(status), Some(copies)) = (&self.config.status, &self.status_copies)
            && let Err(error) = copies.prepare(&status.bind, admin::ACCEPTING)
        {
            tracing::warn!("status page: its socket is not changed: {error}");
        }
    }

    /// Takes over the files of sockets from the process before. They are that one's as
    /// long as this start may fail.
    fn take_over_files(&mut self) {
        self.listeners.take_over_files();
        self.status_file.iter_mut().for_each(SocketFile::take_over);
    }
}

/// Counters, logs and questions: the ways in which workers are observed.
struct Observation {
    /// Of each worker.
    counters: Vec<Arc<Counters>>,
    /// A way to ask each worker.
    inquiries: Vec<Inquiry>,
    heartbeats: Vec<Arc<Heartbeat>>,
    outlets: Outlets,
    log_writer: LogWriter,
    exporters: Exporters,
}

impl Observation {
    /// Beside it, of each worker where it hears of questions.
    fn start(opened: &Opened) -> io::Result<(Self, Vec<Questions>)> {
        let config = &*opened.config;
        let members = opened.upstreams.iter();
        let members: Vec<_> = members.map(|it| it.dispatcher().members()).collect();
        let workers = config.server.workers;
        let (lines, log_writer) = writer::start(&config.access_logs.destinations)?;
        let mut exporters = Exporters::default();
        let next_exporter = exporters.prepare(config.otlp.as_ref())?;
        let spans = exporters.follow(next_exporter);
        let (inquiries, questions) = (0..workers).map(|_| inquiry::channel()).unzip();
        let observation = Observation {
            counters: (0..workers)
                .map(|_| Arc::new(Counters::new(config)))
                .collect(),
            inquiries,
            heartbeats: (0..workers).map(|_| Arc::<Heartbeat>::default()).collect(),
            outlets: Outlets {
                layout: Arc::new(Layout::new(config, &members)),
                lines,
                spans,
            },
            log_writer,
            exporters,
        };
        Ok((observation, questions))
    }
}

impl Process {
    /// Binds every listener and starts the workers.
    ///
    /// A process that takes over from another one waits for its word to serve. The duties are the
    /// calling thread's. To be called within a runtime.
    ///
    /// # Errors
    /// A listener can't be bound, a log can't be opened, or a thread can't be started. The
    /// process before has been told so, and goes on.
    pub fn start(
        config: Config,
        discovery: Arc<Discovery>,
        mut inheritance: Inheritance,
    ) -> io::Result<(Self, Duties)> {
        let started = Self::begin(config, &discovery, &mut inheritance);
        started.inspect_err(|error| inheritance.refuse(error))
    }

    fn begin(
        config: Config,
        discovery: &Arc<Discovery>,
        inheritance: &mut Inheritance,
    ) -> io::Result<(Self, Duties)> {
        let mut opened = Opened::new(config, inheritance)?;
        discovery.configure(&opened.config, &opened.upstreams);
        let (observation, questions) = Observation::start(&opened)?;
        let (phase, phase_receiver) = watch::channel(Phase::Start);
        let (starting, none_lacking) = Starting::together(phase_receiver.clone());
        let (ends, ended) = ThreadEnds::new();
        let mut workers = Vec::with_capacity(questions.len());
        let mut sources = sources(&opened, &observation, discovery);
        if inheritance.predecessor.is_some() {
            let counters = Arc::new(Counters::new(&opened.config));
            sources.counters.push(counters);
        }
        let outlets = &observation.outlets;
        let plans = plans(&sources, &opened.listeners, &opened.upstreams, outlets);
        let mut orders = Vec::with_capacity(questions.len());
        for (index, (questions, plan)) in questions.into_iter().zip(plans).enumerate() {
            let (order, ordered) = mpsc::unbounded_channel();
            orders.push(order);
            let worker = WorkerThread {
                index,
                parts: Parts {
                    plan,
                    buffer_memory: opened.buffer_memory.clone(),
                    inquiries: observation.inquiries.clone(),
                },
                sockets: std::mem::take(&mut opened.sockets[index]),
                starting: starting.clone(),
                phase: phase_receiver.clone(),
                questions,
                orders: ordered,
                heartbeat: observation.heartbeats[index].clone(),
            };
            workers.push(spawn(worker, ends.of_one())?);
        }
        let status_address = opened.admin_sockets.status_address();
        let admin_sockets = std::mem::take(&mut opened.admin_sockets);
        sources.reloads.begin(sources.loaded_config());
        let watched = watched(&sources, &opened.upstreams);
        let (watched, followed) = watch::channel(Arc::new(watched));
        let current = CurrentSources::new(sources);
        let (admin_orders, asked) = mpsc::unbounded_channel();
        let mut duties = Duties {
            poller: Poller::of_this_thread()?,
            watched: followed,
            discovery: discovery.clone(),
            first_counts: None,
            current: current.clone(),
            admin: admin::Service::new(
                current.clone(),
                discovery.clone(),
                admin_sockets,
                admin_orders,
                phase_receiver,
            )?,
        };
        // Clients get no descriptor before all threads have theirs.
        drop(starting);
        none_lacking.wait();
        descriptors::reserve(opened.config.server.reserved_descriptors);
        if let Some(predecessor) = &inheritance.predecessor {
            let known = predecessor.ready()?;
            let learned = known.restore(&current.get(), &opened.upstreams, discovery);
            let learned = Arc::new(learned);
            for orders in &orders {
                // A worker that has ended learns nothing.
                let _ = orders.send(Order::Learn(learned.clone()));
            }
        }
        // From here on connections may wait for a worker.
        opened.listeners.listen(&opened.config.listeners)?;
        take_control_path(&mut opened);
        phase.send_replace(Phase::Serve);
        // This start fails no more.
        opened.prepare_sockets();
        opened.take_over_files();
        let mut counts_before = None;
        if let Some(predecessor) = inheritance.predecessor.take() {
            predecessor.serving();
            let (tell, first_counts) = oneshot::channel();
            counts_before = predecessor.follow_counts(current.clone(), tell);
            duties.first_counts = Some(first_counts);
        }
        let process = Process {
            phase,
            ended,
            workers,
            heartbeats: observation.heartbeats,
            writing: Some(Writing {
                exporters: observation.exporters,
                log_writer: observation.log_writer,
            }),
            current,
            networks: RereadFiles::new(opened.config.network_files.clone()),
            users: RereadFiles::new(opened.config.user_files.clone()),
            certificates: CertificateWatch::new(
                &opened.tls,
                tls_of(&opened.upstreams),
                &opened.tickets,
            ),
            upstreams: opened.upstreams,
            discovery: discovery.clone(),
            listeners: opened.listeners,
            orders,
            asked,
            watched,
            status_file: opened.status_file,
            control_file: opened.control_file,
            moved_control_file: None,
            status_address,
            status_copies: opened.status_copies,
            counts_before,
        };
        process.announce();
        Ok((process, duties))
    }

    /// The present sources of figures.
    pub fn sources(&self) -> Arc<Sources> {
        self.current.get()
    }

    /// The endpoints to watch from now on.
    pub fn watched_now(&self) -> health::Watched {
        watched(&self.sources(), &self.upstreams)
    }

    fn announce(&self) {
        let version = env!("CARGO_PKG_VERSION");
        let config = &self.sources().config;
        let hash = config.hash_text();
        let workers = counted(config.server.workers as u64, "worker");
        tracing::info!(
            version,
            config = hash,
            "evenkeel {version}: {workers}, configuration {hash}"
        );
        if let Some(address) = &self.status_address {
            tracing::info!("status page: listening on {address}");
        }
        if let Some(address) = &config.server.control {
            tracing::info!("control socket: listening on {address}");
        }
        config.listeners.iter().for_each(announce_listener);
    }
}

/// Says where a listener listens.
pub(super) fn announce_listener(listener: &Listener) {
    let (name, bind) = (&listener.name, listener.bind.to_string());
    tracing::info!(
        listener = name,
        bind,
        "listener {name}: listening on {bind}"
    );
}

/// Moves the control socket to the path of the process before.
fn take_control_path(opened: &mut Opened) {
    let Some(Address::Unix(path)) = &opened.config.server.control else {
        return;
    };
    if let Some(file) = &mut opened.control_file
        && file.path() != path
        && let Err(error) = file.move_to(path)
    {
        let (at, path) = (file.path().display(), path.display());
        tracing::warn!("control socket: at {at}, because it can't be moved to {path}: {error}");
    }
}

/// Starts a worker's thread; `while_running` is dropped when it ends.
fn spawn(
    worker: WorkerThread,
    while_running: WhileRunning,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let thread = std::thread::Builder::new().name(format!("worker-{}", worker.index));
    let beating = Beating(worker.heartbeat.clone());
    thread.spawn(move || {
        let _while_running = while_running;
        let _beating = beating;
        worker.run()
    })
}

/// The TLS to the endpoints of each upstream that has one.
pub(super) fn tls_of(upstreams: &[Arc<SharedUpstream>]) -> impl Iterator<Item = Arc<UpstreamTls>> {
    upstreams.iter().filter_map(|it| it.tls())
}

fn sources(opened: &Opened, observation: &Observation, discovery: &Discovery) -> Sources {
    let Opened { config, .. } = opened;
    let dispatchers = opened.upstreams.iter().map(|it| it.dispatcher().clone());
    let started = Started::now();
    Sources {
        generation: 0,
        loaded: started,
        config: config.clone(),
        counters: observation.counters.clone(),
        dispatchers: dispatchers.collect(),
        caches: opened.caches.clone(),
        limits: route_limits(config, &RouteLimits::default()),
        maintenance: Maintenance::of(config, &Maintenance::default()),
        passwords: opened.passwords.clone(),
        tls: opened.tls.clone(),
        tickets: opened.tickets.clone(),
        log_lines_lost: observation.log_writer.lost(),
        spans: observation.exporters.counts(),
        probes: Arc::new(Probes::new(config)),
        discovered: discovery.shown().clone(),
        status_tokens_refused: Arc::default(),
        worker_stalls: Arc::default(),
        paths_lost: Arc::new(paths_lost()),
        reloads: Arc::default(),
        upgrades: Arc::default(),
        is_draining: Arc::default(),
        started,
        disks: opened.disks.clone(),
        buffer_memory: opened.buffer_memory.clone(),
        inquiries: observation.inquiries.clone(),
    }
}

fn watched(sources: &Sources, upstreams: &[Arc<SharedUpstream>]) -> health::Watched {
    health::Watched {
        config: sources.config.clone(),
        upstreams: upstreams.to_vec(),
        counters: sources.counters.clone(),
        inquiries: sources.inquiries.clone(),
        probes: sources.probes.clone(),
    }
}

/// The parts that each worker makes its generation of.
pub(super) fn plans(
    sources: &Sources,
    listeners: &Listeners,
    upstreams: &[Arc<SharedUpstream>],
    outlets: &Outlets,
) -> Vec<GenerationPlan> {
    let plan = |counters: &Arc<Counters>| GenerationPlan {
        number: sources.generation,
        config: sources.config.clone(),
        listeners: listeners.shared(),
        upstreams: upstreams.to_vec(),
        caches: sources.caches.clone(),
        limits: sources.limits.clone(),
        maintenance: sources.maintenance.clone(),
        passwords: sources.passwords.clone(),
        tls: sources.tls.clone(),
        disks: sources.disks.clone(),
        outlets: outlets.clone(),
        counters: counters.clone(),
    };
    sources.counters.iter().map(plan).collect()
}
