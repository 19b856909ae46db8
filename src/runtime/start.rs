//! The start of the process: sockets, what workers share, and the workers.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, watch};

use super::health;
use super::heartbeat::{Beating, Heartbeat};
use super::worker::{Shared, WorkerThread};
use crate::admin;
use crate::config::Config;
use crate::config::machine::{self, Obstacle};
use crate::discovery::Discovery;
use crate::exchange::context::SharedListener;
use crate::files::Disks;
use crate::lifecycle::{Phase, Starting, ThreadEnded, ThreadEnds, WhileRunning};
use crate::metrics::BufferMemory;
use crate::metrics::quantity::counted;
use crate::net::Address;
use crate::net::clock;
use crate::net::descriptors;
use crate::net::listen::{self, BoundListener, SocketFile};
use crate::net::poller::Poller;
use crate::observe::access_log::Layout;
use crate::observe::access_log::writer::{self, LogSender, LogWriter};
use crate::observe::counters::Counters;
use crate::observe::figures::{Sources, Started};
use crate::observe::inquiry::{self, Inquiry, Questions};
use crate::observe::otlp::Exporters;
use crate::observe::outlets::Outlets;
use crate::observe::probes::Probes;
use crate::observe::sessions::ListenerId;
use crate::upstream::shared_upstreams;

/// The running process, as the control thread owns it.
#[derive(Debug)]
pub(super) struct Process {
    pub phase: watch::Sender<Phase>,
    /// Hears of each worker that ends.
    pub ended: mpsc::UnboundedReceiver<ThreadEnded>,
    pub workers: Vec<JoinHandle<io::Result<()>>>,
    pub heartbeats: Vec<Arc<Heartbeat>>,
    pub log_sender: LogSender,
    /// `None` once it is being finished.
    pub writing: Option<Writing>,
    pub sources: Sources,
    /// Of listeners and of the status page.
    pub socket_files: Vec<SocketFile>,
    pub control_file: Option<SocketFile>,
    /// The same while the process drains.
    pub moved_control_file: Option<SocketFile>,
    pub status_address: Option<Address>,
    /// Where each listener listens, with the ports that the kernel chose.
    pub addresses: Vec<Address>,
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
    pub watched: health::Watched,
}

/// Sockets and shared state, made before any worker runs.
struct Opened {
    config: Arc<Config>,
    shared: Arc<Shared>,
    sockets: Vec<Vec<BoundListener>>,
    socket_files: Vec<SocketFile>,
    addresses: Vec<Address>,
    admin_sockets: admin::Sockets,
    control_file: Option<SocketFile>,
}

impl Opened {
    fn new(mut config: Config) -> io::Result<Self> {
        let (sockets, mut socket_files) = bind_listeners(&config)?;
        let addresses: Vec<Address> = sockets
            .first()
            .map(|first| first.iter().map(|bound| bound.address.clone()).collect())
            .unwrap_or_default();
        // Figures, and whoever asks the process, have the port that port 0 became.
        for (listener, address) in config.listeners.iter_mut().zip(&addresses) {
            listener.bind = address.clone();
        }
        let (admin_sockets, admin_files) = admin::bind(&config)?;
        socket_files.extend(admin_files.status);
        Ok(Opened {
            shared: shared_state(&config)?,
            config: Arc::new(config),
            sockets,
            socket_files,
            addresses,
            admin_sockets,
            control_file: admin_files.control,
        })
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
        let members = opened.shared.upstreams.iter();
        let members: Vec<_> = members.map(|it| it.dispatcher().members()).collect();
        let workers = config.server.workers;
        let (lines, log_writer) = writer::start(&config.access_logs.destinations)?;
        let mut exporters = Exporters::default();
        let spans = exporters.follow(config.otlp.as_ref())?;
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
    /// Binds every listener and starts the workers. The duties are the calling
    /// thread's. To be called within a runtime.
    ///
    /// # Errors
    /// A listener can't be bound, a log can't be opened, or a thread can't be
    /// started.
    pub fn start(config: Config, discovery: Arc<Discovery>) -> io::Result<(Self, Duties)> {
        let mut opened = Opened::new(config)?;
        discovery.configure(&opened.config, &opened.shared.upstreams);
        let (observation, questions) = Observation::start(&opened)?;
        let (phase, phase_receiver) = watch::channel(Phase::Start);
        let (starting, none_lacking) = Starting::together(phase_receiver.clone());
        let (ends, ended) = ThreadEnds::new();
        let mut workers = Vec::with_capacity(questions.len());
        for (index, questions) in questions.into_iter().enumerate() {
            let worker = WorkerThread {
                index,
                config: opened.config.clone(),
                shared: opened.shared.clone(),
                sockets: std::mem::take(&mut opened.sockets[index]),
                counters: observation.counters[index].clone(),
                outlets: observation.outlets.clone(),
                starting: starting.clone(),
                phase: phase_receiver.clone(),
                questions,
                heartbeat: observation.heartbeats[index].clone(),
                inquiries: observation.inquiries.clone(),
            };
            workers.push(spawn(worker, ends.of_one())?);
        }
        let status_address = opened.admin_sockets.status_address();
        let admin_sockets = std::mem::take(&mut opened.admin_sockets);
        let sources = sources(&opened, &observation, &discovery);
        let duties = Duties {
            poller: Poller::of_this_thread()?,
            watched: watched(&opened, &observation, &sources),
            discovery,
            admin: admin::Service::new(sources.clone(), admin_sockets, phase_receiver)?,
        };
        // Clients get no descriptor before all threads have theirs.
        drop(starting);
        none_lacking.wait();
        descriptors::reserve(opened.config.server.reserved_descriptors);
        phase.send_replace(Phase::Serve);
        let process = Process {
            phase,
            ended,
            workers,
            heartbeats: observation.heartbeats,
            log_sender: observation.outlets.lines,
            writing: Some(Writing {
                exporters: observation.exporters,
                log_writer: observation.log_writer,
            }),
            sources,
            socket_files: opened.socket_files,
            control_file: opened.control_file,
            moved_control_file: None,
            status_address,
            addresses: opened.addresses,
        };
        process.announce();
        Ok((process, duties))
    }

    fn announce(&self) {
        let version = env!("CARGO_PKG_VERSION");
        let config = &self.sources.config;
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
        for (listener, address) in config.listeners.iter().zip(&self.addresses) {
            let name = listener.name.as_str();
            let bind = address.to_string();
            tracing::info!(
                listener = name,
                bind,
                "listener {name}: listening on {bind}"
            );
        }
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

fn sources(opened: &Opened, observation: &Observation, discovery: &Discovery) -> Sources {
    let Opened { config, shared, .. } = opened;
    let dispatchers = shared.upstreams.iter().map(|it| it.dispatcher().clone());
    Sources {
        config: config.clone(),
        counters: observation.counters.clone(),
        dispatchers: dispatchers.collect(),
        log_lines_lost: observation.log_writer.lost(),
        spans: observation.exporters.counts(),
        probes: Arc::new(Probes::new(config)),
        discovered: discovery.shown().clone(),
        status_tokens_refused: Arc::default(),
        worker_stalls: Arc::default(),
        is_draining: Arc::default(),
        started: Started::now(),
        disks: shared.disks.clone(),
        buffer_memory: shared.buffer_memory.clone(),
        inquiries: observation.inquiries.clone(),
    }
}

fn watched(opened: &Opened, observation: &Observation, sources: &Sources) -> health::Watched {
    health::Watched {
        config: opened.config.clone(),
        upstreams: opened.shared.upstreams.clone(),
        counters: observation.counters.clone(),
        inquiries: observation.inquiries.clone(),
        probes: sources.probes.clone(),
    }
}

/// One socket per worker and listener, indexed in this order, and the files of
/// Unix sockets.
fn bind_listeners(config: &Config) -> io::Result<(Vec<Vec<BoundListener>>, Vec<SocketFile>)> {
    let workers = config.server.workers;
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
        upstreams: shared_upstreams(config, &[], clock::now()),
        listeners: (0..config.listeners.len() as ListenerId)
            .map(|id| Arc::new(SharedListener::new(id)))
            .collect(),
        disks: Arc::new(Disks::start(config)?),
        buffer_memory: Arc::new(BufferMemory::new(config.server.buffer_memory)),
    }))
}
