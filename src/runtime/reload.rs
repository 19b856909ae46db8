//! Reloads: another configuration for the running process.
//!
//! A thread beside the control thread loads and checks the whole configuration. Every step that
//! can fail comes before the first change, so that a configuration is in force as a whole or not
//! at all.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::changes::with_costs;
use super::health::{NewUpstream, require_healthy};
use super::heartbeat::LOOK_INTERVAL;
use super::start::{Process, announce_listener, plans, tls_of};
use super::worker::{Follow, Order};
use crate::admin::{NewEndpoints, Outcome, ReloadOptions};
use crate::cache::{caches, go_on_counting};
use crate::certificates::{FollowedTickets, served_tls};
use crate::config::Config;
use crate::discovery::Discovery;
use crate::files::Disks;
use crate::limits::route_limits;
use crate::maintenance::Maintenance;
use crate::metrics::quantity::counted;
use crate::net::given::InheritedSockets;
use crate::net::listen::{Accepting, BoundListener};
use crate::net::{Address, clock, memory};
use crate::observe::access_log::Layout;
use crate::observe::access_log::writer::{self, LogSender};
use crate::observe::counters::Staying;
use crate::observe::figures::{Sources, Started};
use crate::observe::inquiry::Inquiry;
use crate::observe::log_level;
use crate::observe::otlp::SpanSender;
use crate::observe::outlets::Outlets;
use crate::observe::reloads::Reloads;
use crate::upstream::{SharedUpstream, prepare_own_key, shared_upstreams};
use crate::watching::WatchedPaths;

/// A configuration that was loaded and has no mistakes.
#[derive(Debug)]
pub struct Reloaded {
    /// The configuration.
    pub config: Config,
    /// Warnings about it, for the asker; may be empty.
    pub warnings: String,
    /// The files and folders it was read from.
    pub read: WatchedPaths,
}

/// The kind of reason that a reload is refused for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The configuration has mistakes, or can't be read.
    Mistakes,
    /// No file is there to be loaded.
    NoFile,
    /// A listener can't be bound, a log can't be opened, or the like.
    Failed,
    /// Loading takes too long.
    Timeout,
    /// New upstreams have no endpoint that is well.
    Unhealthy,
    /// The process drains.
    Draining,
    /// An upgrade is under way.
    Upgrading,
}

impl Refusal {
    /// The word for it, in the event log and in the counter: one of
    /// [`REFUSED`](crate::observe::reloads::REFUSED).
    pub fn word(self) -> &'static str {
        match self {
            Refusal::Mistakes => "mistakes",
            Refusal::NoFile => "no-file",
            Refusal::Failed => "failed",
            Refusal::Timeout => "timeout",
            Refusal::Unhealthy => "unhealthy",
            Refusal::Draining => "draining",
            Refusal::Upgrading => "upgrading",
        }
    }
}

/// Why a configuration can't be used.
#[derive(Debug)]
pub struct Rejected {
    /// The kind of reason.
    pub reason: Refusal,
    /// In a few words, for the event log.
    pub summary: String,
    /// Everything that is wrong, for the asker.
    pub diagnostics: String,
    /// The files and folders it was read from.
    pub read: Box<WatchedPaths>,
}

impl Rejected {
    /// Something failed; `why` is the whole text.
    pub(super) fn because(why: impl ToString) -> Self {
        Rejected::at(Refusal::Failed, why)
    }

    /// For this reason; `why` is the whole text.
    pub(super) fn at(reason: Refusal, why: impl ToString) -> Self {
        Rejected {
            reason,
            summary: why.to_string(),
            diagnostics: String::new(),
            read: Box::default(),
        }
    }

    fn nothing_to_load() -> Self {
        Rejected::at(Refusal::NoFile, "there is no file to load")
    }

    fn too_slow(longest: Duration) -> Self {
        let why = format!(
            "loading takes longer than {longest:?}: a file or a folder of the configuration can't \
             be read in time"
        );
        Rejected::at(Refusal::Timeout, why)
    }

    fn loading_failed(error: JoinError) -> Self {
        Rejected::because(format!("loading failed: {error}"))
    }

    /// The text for the asker.
    fn told(&self) -> String {
        match &*self.diagnostics {
            "" => self.summary.clone(),
            diagnostics => format!("{}\n{diagnostics}", self.summary),
        }
    }
}

/// Loads the configuration again, from where the first one came. May block.
pub type Load = Arc<dyn Fn() -> Result<Reloaded, Rejected> + Send + Sync>;

/// A configuration that was in force, to be put in force again.
#[derive(Debug, Clone)]
pub(super) struct PreviousConfig {
    config: Arc<Config>,
    /// The number of its generation.
    pub generation: u32,
    /// The addresses of its listeners as configured: port 0 is any.
    binds: Vec<Address>,
}

impl PreviousConfig {
    /// The configuration that is in force.
    pub fn now(process: &Process) -> Self {
        let sources = process.sources();
        PreviousConfig {
            config: sources.config.clone(),
            generation: sources.generation,
            binds: process.listeners.wanted(),
        }
    }

    /// Its hash as it is shown.
    pub fn hash(&self) -> String {
        self.config.hash_text()
    }

    /// Loads it instead of the present files.
    pub fn load(self) -> Load {
        Arc::new(move || {
            let mut config = Config::clone(&self.config);
            for (listener, bind) in config.listeners.iter_mut().zip(&self.binds) {
                listener.bind.clone_from(bind);
            }
            Ok(Reloaded {
                config,
                warnings: String::new(),
                read: WatchedPaths::default(),
            })
        })
    }
}

/// The source of configurations.
#[derive(Default)]
pub struct ConfigSource {
    /// `None` where a reload has nothing to read.
    pub load: Option<Load>,
    /// The files of the first configuration, if changes to them are to cause a reload.
    pub watched: Option<WatchedPaths>,
}

/// The content of the configuration's files at one reading.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ConfigContent {
    Config { hash: u64 },
    Mistakes(String),
}

/// One reading of the files: their content, and their paths.
#[derive(Debug)]
pub(super) struct Read {
    pub said: ConfigContent,
    pub paths: WatchedPaths,
}

impl Read {
    fn of(loaded: &Result<Reloaded, Rejected>) -> Self {
        let (said, paths) = match loaded {
            Ok(Reloaded { config, read, .. }) => {
                (ConfigContent::Config { hash: config.hash }, read)
            }
            Err(rejected) => (ConfigContent::Mistakes(rejected.told()), &*rejected.read),
        };
        Read {
            said,
            paths: paths.clone(),
        }
    }
}

/// A configuration that was loaded, with what takes time to be had.
pub(super) struct Prepared {
    config: Config,
    warnings: String,
    kept: Vec<String>,
    opened: writer::Opened,
    disks: Disks,
    /// Beside the configuration in force. One is loaded at a time: that stays until then.
    staying: Staying,
}

impl Prepared {
    /// Prepares a loaded configuration that is to come after `before`. May block.
    fn new(loaded: Reloaded, before: &Sources) -> Loaded {
        let (disks, before) = (&before.disks, &before.config);
        let Reloaded {
            mut config,
            warnings,
            ..
        } = loaded;
        let kept = config.keep_fixed(before).into_iter();
        let kept = kept.map(|key| {
            format!("{key} is not changed: only a restart or an upgrade of the program changes it")
        });
        let kept = kept.collect();
        let destinations = config.access_logs.destinations.iter();
        let missing = destinations.filter(|it| !before.access_logs.destinations.contains(it));
        let opened = writer::open(&missing.cloned().collect::<Vec<_>>());
        let disks = disks.following(&config);
        Ok(Prepared {
            staying: Staying::of(before, &config),
            config,
            warnings,
            kept,
            opened: opened.map_err(Rejected::because)?,
            disks: disks.map_err(Rejected::because)?,
        })
    }
}

impl Prepared {
    /// The same, unless an upstream has endpoints that were not there before, and none of
    /// them is well.
    async fn if_healthy(self, before: Vec<Arc<SharedUpstream>>, inquiries: &[Inquiry]) -> Loaded {
        let new = tokio::task::spawn_blocking(move || {
            let new = NewUpstream::all(&self.config, &before);
            (self, new)
        });
        let (prepared, new) = new.await.map_err(Rejected::loading_failed)?;
        match require_healthy(new, inquiries).await {
            Ok(()) => Ok(prepared),
            Err(found) => Err(Rejected {
                reason: Refusal::Unhealthy,
                summary: found.summary(),
                diagnostics: found.details(),
                read: Box::default(),
            }),
        }
    }
}

/// The outcome of loading.
pub(super) type Loaded = Result<Prepared, Rejected>;

/// The origin of a reload.
#[derive(Debug)]
pub(super) enum ReloadTrigger {
    /// An operator, who waits for the outcome.
    Operator(oneshot::Sender<Outcome>),
    /// HUP.
    Signal,
    /// The watch over the files: they may have changed.
    Watch,
}

impl ReloadTrigger {
    /// Says why the configuration stays as it is.
    pub fn refuse(self, reloads: &Reloads, rejected: &Rejected) {
        let reason = rejected.reason.word();
        reloads.note_refused(reason);
        let why = &rejected.summary;
        tracing::error!(
            reason,
            "reload refused: {why} ({reason}); the old configuration stays in force"
        );
        if let ReloadTrigger::Operator(reply) = self {
            // The operator may have given up meanwhile.
            let _ = reply.send(Err(rejected.told()));
        }
    }

    fn tell(self, told: &str) {
        if let ReloadTrigger::Operator(reply) = self {
            let _ = reply.send(Ok(told.to_owned()));
        }
    }
}

/// The configuration that is to come into force.
#[derive(Debug)]
pub(super) enum ReloadTarget {
    /// The present content of the files.
    File(ReloadOptions),
    /// A configuration that was in force before.
    PreviousConfig(PreviousConfig),
}

/// A configuration that was loaded.
pub(super) struct Job {
    pub wanted: ReloadTarget,
    /// The askers it was loaded for.
    pub askers: Vec<ReloadTrigger>,
    /// `None` where no file was read.
    pub read: Option<Read>,
    pub loaded: Loaded,
}

/// A configuration that is being loaded.
struct Loading {
    wanted: ReloadTarget,
    askers: Vec<ReloadTrigger>,
    task: JoinHandle<(Option<Read>, Loaded)>,
}

/// Longest time for each step of loading: a disk may not answer. Askers wait longer.
const LOAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Most threads that load. A thread that waits for a disk can't be ended.
const MOST_LOADING: usize = 4;

/// The threads on which configurations are loaded.
#[derive(Debug, Clone)]
struct LoadThreads {
    permits: Arc<Semaphore>,
    /// Longest time for each step.
    longest: Duration,
}

impl LoadThreads {
    fn new(longest: Duration) -> Self {
        LoadThreads {
            permits: Arc::new(Semaphore::new(MOST_LOADING)),
            longest,
        }
    }

    /// Runs `work` on one of the threads. A thread that takes too long is left to itself.
    async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Rejected> {
        let working = async {
            // The semaphore is never closed.
            let permit = self.permits.acquire_owned().await;
            let done = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                work()
            });
            done.await.map_err(Rejected::loading_failed)
        };
        let done = timeout(self.longest, working).await;
        done.unwrap_or_else(|_| Err(Rejected::too_slow(self.longest)))
    }
}

/// Loads configurations, one at a time.
pub(super) struct Reloading {
    threads: LoadThreads,
    /// `None` where a reload has nothing to read.
    load: Option<Load>,
    loading: Option<Loading>,
    /// Reloads that come after the present one: the files may have changed again.
    later: VecDeque<(ReloadOptions, Vec<ReloadTrigger>)>,
}

impl Reloading {
    /// Nothing is being loaded yet.
    pub fn new(load: Option<Load>) -> Self {
        Reloading {
            threads: LoadThreads::new(LOAD_TIMEOUT),
            load,
            loading: None,
            later: VecDeque::new(),
        }
    }

    /// Loads the configuration on a thread beside this one.
    ///
    /// While another load is under way, this one waits for its end. Waiting askers who want the
    /// same share one load.
    pub fn begin(&mut self, asker: ReloadTrigger, options: ReloadOptions, process: &Process) {
        if self.loading.is_none() {
            return self.start(ReloadTarget::File(options), vec![asker], process);
        }
        match self.later.back_mut() {
            Some((of, askers)) if *of == options => askers.push(asker),
            _ => self.later.push_back((options, vec![asker])),
        }
    }

    /// Loads a configuration that was in force before. To be called while none is being
    /// loaded.
    pub fn go_back(&mut self, kept: PreviousConfig, process: &Process) {
        self.start(ReloadTarget::PreviousConfig(kept), Vec::new(), process);
    }

    fn start(&mut self, wanted: ReloadTarget, askers: Vec<ReloadTrigger>, process: &Process) {
        let load = match &wanted {
            ReloadTarget::File(_) => self.load.clone(),
            ReloadTarget::PreviousConfig(kept) => Some(kept.clone().load()),
        };
        let before = process.sources();
        let required = match &wanted {
            ReloadTarget::File(options) => options.new_endpoints,
            ReloadTarget::PreviousConfig(_) => NewEndpoints::Any,
        };
        let (discovery, upstreams) = (process.discovery.clone(), process.upstreams.clone());
        // A comparison may have left something.
        discovery.forget_prepared();
        let inquiries = before.inquiries.clone();
        let is_of_file = matches!(wanted, ReloadTarget::File(_));
        let threads = self.threads.clone();
        let task = tokio::task::spawn_local(async move {
            let loading = threads.clone().run(move || {
                let loaded = load.map_or_else(
                    || Err(Rejected::nothing_to_load()),
                    |load| memory::large_work(|| load()),
                );
                let read = is_of_file.then(|| Read::of(&loaded));
                (read, loaded)
            });
            let (read, loaded) = match loading.await {
                Ok((read, Ok(loaded))) => (read, loaded),
                Ok((read, Err(rejected))) => return (read, Err(rejected)),
                Err(rejected) => return (None, Err(rejected)),
            };
            let preparing = threads.run(move || Prepared::new(loaded, &before));
            let mut prepared = match preparing.await.flatten() {
                Ok(prepared) => prepared,
                Err(rejected) => return (read, Err(rejected)),
            };
            discovery.prepare(&mut prepared.config).await;
            let prepared = match required {
                NewEndpoints::Any => Ok(prepared),
                NewEndpoints::Healthy => prepared.if_healthy(upstreams, &inquiries).await,
            };
            (read, prepared)
        });
        self.loading = Some(Loading {
            wanted,
            askers,
            task,
        });
    }

    /// Loads the configuration on a thread beside this one, and says what it would change.
    /// Nothing comes into force.
    pub fn compare(
        &self,
        sources: Arc<Sources>,
        discovery: Arc<Discovery>,
        reply: oneshot::Sender<Outcome>,
    ) {
        let (load, threads) = (self.load.clone(), self.threads.clone());
        tokio::task::spawn_local(async move {
            let outcome = changes_of(load, threads, sources, &discovery).await;
            // The operator may have given up meanwhile.
            let _ = reply.send(outcome.map_err(|it| it.told()));
        });
    }

    /// Whether a configuration is being loaded.
    pub fn is_busy(&self) -> bool {
        self.loading.is_some()
    }

    /// The next configuration that is loaded, with its askers.
    ///
    /// # Cancellation
    /// Nothing is lost by dropping the future.
    pub async fn loaded(&mut self) -> Job {
        let Some(loading) = &mut self.loading else {
            return std::future::pending().await;
        };
        let ended = (&mut loading.task).await;
        let (read, loaded) = match ended {
            Ok(ended) => ended,
            Err(error) => (None, Err(Rejected::loading_failed(error))),
        };
        match self.loading.take() {
            Some(Loading { wanted, askers, .. }) => Job {
                wanted,
                askers,
                read,
                loaded,
            },
            // It was there above.
            None => std::future::pending().await,
        }
    }

    /// Loads nothing any more. Gives the askers who still wait.
    pub fn give_up(&mut self) -> impl Iterator<Item = ReloadTrigger> {
        let loading = self.loading.take();
        let loading = loading.inspect(|it| it.task.abort());
        let later = std::mem::take(&mut self.later);
        let later = later.into_iter().flat_map(|(_, askers)| askers);
        loading.into_iter().flat_map(|it| it.askers).chain(later)
    }

    /// Starts the next reload that was asked for meanwhile.
    pub fn go_on(&mut self, process: &Process) {
        if let Some((options, askers)) = self.later.pop_front() {
            self.start(ReloadTarget::File(options), askers, process);
        }
    }
}

/// Loads the configuration on a thread aside, and says what it would change.
async fn changes_of(
    load: Option<Load>,
    threads: LoadThreads,
    sources: Arc<Sources>,
    discovery: &Arc<Discovery>,
) -> Result<String, Rejected> {
    let load = load.ok_or_else(Rejected::nothing_to_load)?;
    let loading = threads.run(move || memory::large_work(|| load()));
    let mut now = loading.await.flatten()?.config;
    // The comparison needs the list of endpoints that the configuration would begin with.
    discovery.prepare(&mut now).await;
    let by_operators = discovery.operator_changes(&now);
    let comparing = tokio::task::spawn_blocking(move || {
        with_costs(&sources.config, &now, &sources.read(), &by_operators)
    });
    comparing.await.map_err(Rejected::loading_failed)
}

/// Time until the first look whether a replaced configuration is still used. The pause doubles
/// each time, up to [`LOOK_INTERVAL`].
const FIRST_LOOK: Duration = Duration::from_millis(10);

/// Longest time for which a worker may be about to follow.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(5);

/// A configuration that has come into force.
pub(super) struct InForce {
    /// Warnings about it.
    warnings: String,
    /// Settings that stay as they were, each with what to do about it.
    kept: Vec<String>,
    /// The same, of paths that other programs have. `socket_paths` writes them to the event log.
    lost_paths: Vec<String>,
    /// Of each worker: ends once the worker's exchanges begin with it.
    followed: Vec<oneshot::Receiver<Infallible>>,
    /// The sources of the configuration before, to be dropped aside.
    before: Arc<Sources>,
}

impl InForce {
    /// Announces the configuration once every worker follows it, with the consequences. Drops the
    /// configuration before when nothing uses it any more.
    pub async fn announce(
        self,
        now: Arc<Sources>,
        askers: Vec<ReloadTrigger>,
        then: Option<String>,
    ) {
        let deadline = Instant::now() + FOLLOW_TIMEOUT;
        let mut late = 0;
        for followed in self.followed {
            // It ends with an error: nothing is ever sent.
            late += usize::from(timeout_at(deadline, followed).await.is_err());
        }
        let hash = now.config.hash_text();
        let number = now.generation;
        tracing::info!(
            config = hash,
            "reloaded: configuration {hash} is in force, generation {number}"
        );
        let mut told = format!("reloaded: configuration {hash} is in force, generation {number}");
        if let Some(then) = then {
            tracing::info!("reload: {then}");
            told.push('\n');
            told.push_str(&then);
        }
        for kept in &self.kept {
            tracing::warn!("reload: {kept}");
        }
        for warning in self.kept.iter().chain(&self.lost_paths) {
            told.push_str("\nwarning: ");
            told.push_str(warning);
        }
        if late > 0 {
            let late = counted(late as u64, "worker");
            tracing::warn!("reload: {late} still using the old configuration");
            let _ = write!(told, "\nwarning: {late} still using the old configuration");
        }
        if !self.warnings.is_empty() {
            let _ = write!(told, "\n{}", self.warnings);
        }
        askers.into_iter().for_each(|it| it.tell(&told));
        // The next reload waits until these sources are unused. A reference kept here would make
        // two reloads wait for each other.
        drop(now);
        drop_aside(self.before).await;
    }
}

/// Drops the sources of a configuration once nothing uses them. A thread beside this one drops
/// them: thousands of routes take milliseconds.
async fn drop_aside(sources: Arc<Sources>) {
    let mut pause = FIRST_LOOK;
    // `sources` holds the other reference.
    while Arc::strong_count(&sources) > 1 || Arc::strong_count(&sources.config) > 1 {
        sleep(pause).await;
        pause = (pause * 2).min(LOOK_INTERVAL);
    }
    sources.reloads.end(sources.generation);
    let dropped = tokio::task::spawn_blocking(move || memory::large_work(move || drop(sources)));
    // It can't have been cancelled, and a drop does not panic.
    let _ = dropped.await;
}

impl Process {
    /// Puts another configuration in force.
    ///
    /// # Errors
    /// A listener can't be bound, a thread can't be started, or the folder of a cache can't
    /// be used; all is as before.
    pub fn follow(&mut self, prepared: Prepared) -> io::Result<InForce> {
        let before = self.sources();
        let Prepared {
            mut config,
            warnings,
            kept,
            opened,
            disks,
            staying,
        } = prepared;
        let new_sockets = self
            .listeners
            .bind(&mut config, &mut InheritedSockets::default())?;
        let caches = caches(&config, &before.caches)?;
        let tls = served_tls(&config, &before.tls, &before.tickets)?;
        let tickets = FollowedTickets::read(&config.tickets)?;
        prepare_own_key(&config)?;
        let writing = self.writing.as_mut();
        let writing = writing.ok_or_else(|| io::Error::other("the process is stopping"))?;
        let next_exporter = writing.exporters.prepare(config.otlp.as_ref())?;
        let lines = &config.access_logs.destinations;
        let lines = writing.log_writer.follow(lines, opened)?;
        // Nothing fails from here on.
        before.tickets.follow(tickets);
        let spans = writing.exporters.follow(next_exporter);
        if let Err(error) = log_level::follow(&before.config.log, &config.log) {
            tracing::warn!("reload: the event log is not changed: {error}");
        }
        let workers = config.server.workers;
        let options: Vec<_> = config.listeners.iter().map(|it| it.accepting).collect();
        let sockets = self.listeners.follow(new_sockets, &mut config, workers);
        let lost_paths = self.listeners.lost_paths().collect();
        self.upstreams = shared_upstreams(&config, &self.upstreams, clock::now());
        self.discovery.configure(&config, &self.upstreams);
        let counters = before.counters.iter();
        let counters = counters.map(|it| Arc::new(it.following(&staying)));
        let counters: Vec<_> = counters.collect();
        let config = Arc::new(config);
        let sources = Arc::new(Sources {
            generation: before.generation + 1,
            loaded: Started::now(),
            counters,
            dispatchers: (self.upstreams.iter())
                .map(|it| it.dispatcher().clone())
                .collect(),
            caches,
            limits: route_limits(&config, &before.limits),
            maintenance: Maintenance::of(&config, &before.maintenance),
            tls,
            probes: Arc::new(before.probes.following(&before.config, &config)),
            disks: Arc::new(disks),
            config,
            ..Sources::clone(&before)
        });
        sources.disks.keep_within(&sources.config);
        let memory = sources.config.server.buffer_memory;
        sources.buffer_memory.set_limit(memory);
        let followed = self.order(&sources, lines, spans, sockets, &options);
        announce(&before.config, &sources.config);
        sources.reloads.begin(sources.loaded_config());
        go_on_counting(&sources.caches, &before.caches);
        self.networks.follow(sources.config.network_files.clone());
        self.users.follow(sources.config.user_files.clone());
        self.certificates
            .follow(&sources.tls, tls_of(&self.upstreams), &sources.tickets);
        self.current.replace(sources);
        self.watched.send_replace(Arc::new(self.watched_now()));
        Ok(InForce {
            warnings,
            kept,
            lost_paths,
            followed,
            before,
        })
    }

    /// Has the workers follow the configuration of these sources.
    fn order(
        &self,
        sources: &Sources,
        lines: LogSender,
        spans: Option<SpanSender>,
        sockets: Vec<Vec<Option<BoundListener>>>,
        options: &[Accepting],
    ) -> Vec<oneshot::Receiver<Infallible>> {
        let members = self.upstreams.iter().map(|it| it.dispatcher().members());
        let members: Vec<_> = members.collect();
        let outlets = Outlets {
            layout: Arc::new(Layout::new(&sources.config, &members)),
            lines,
            spans,
        };
        let plans = plans(sources, &self.listeners, &self.upstreams, &outlets);
        let mut followed = Vec::with_capacity(self.orders.len());
        for ((orders, plan), sockets) in self.orders.iter().zip(plans).zip(sockets) {
            let (is_done, done) = oneshot::channel();
            let order = Follow {
                plan,
                sockets: sockets.into_iter().zip(options.iter().copied()).collect(),
                is_done,
            };
            // A worker that has ended follows nothing.
            let _ = orders.send(Order::Follow(Box::new(order)));
            followed.push(done);
        }
        followed
    }
}

/// Says where listeners come and go.
fn announce(before: &Config, now: &Config) {
    let has = |config: &Config, bind: &Address| config.listeners.iter().any(|it| it.bind == *bind);
    for listener in &now.listeners {
        if !has(before, &listener.bind) {
            announce_listener(listener);
        }
    }
    for listener in &before.listeners {
        if !has(now, &listener.bind) {
            let (name, bind) = (&listener.name, listener.bind.to_string());
            tracing::info!(
                listener = name,
                bind,
                "listener {name}: accepting no more connections at {bind}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use evenkeel_testkit::TempDir;
    use evenkeel_testkit::deadline::until;

    use super::*;
    use crate::config::{NameLookup, load_text};
    use crate::observe::reloads::REFUSED;
    use crate::runtime::control;
    use crate::runtime::handover::Inheritance;
    use crate::runtime::signals::Signals;

    #[test]
    fn a_step_that_hangs_is_given_up_and_few_may() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().unwrap();
        let threads = LoadThreads::new(Duration::from_millis(50));
        let (release, is_released) = channel::<()>();
        let is_released = Arc::new(Mutex::new(is_released));
        let begun = Arc::<Mutex<usize>>::default();
        for _ in 0..MOST_LOADING + 2 {
            let (begun, is_released) = (begun.clone(), is_released.clone());
            let hung = runtime.block_on(threads.clone().run(move || {
                *begun.lock().unwrap() += 1;
                let _ = is_released.lock().unwrap().recv();
            }));
            assert_eq!(hung.unwrap_err().reason, Refusal::Timeout);
        }
        assert_eq!(*begun.lock().unwrap(), MOST_LOADING);
        drop(release);
        until("a thread is free", || {
            runtime.block_on(threads.clone().run(|| 7)).ok() == Some(7)
        });
    }

    #[test]
    fn a_process_ends_though_loading_hangs() {
        let dir = TempDir::new().unwrap();
        let socket = dir.path().join("control.sock");
        let text = format!(
            "[server]\nworkers = 1\ncontrol = '{}'\n[[listener]]\nbind = '127.0.0.1:0'\n\
             [[route]]\nanswer = {{ body = 'hello' }}\n",
            socket.display()
        );
        let loaded = load_text("test.toml", &text, NameLookup::Later).unwrap();
        let (begin, is_begun) = channel();
        let load: Load = Arc::new(move || {
            let _ = begin.send(());
            loop {
                std::thread::park();
            }
        });
        let source = ConfigSource {
            load: Some(load),
            watched: None,
        };
        let signals = || Ok(Signals::Left);
        let running = control::start(loaded.config, source, Inheritance::default(), signals);
        let running = running.unwrap().unwrap();
        let mut client = UnixStream::connect(&socket).unwrap();
        client.write_all(b"reload\n").unwrap();
        is_begun.recv().unwrap();
        let reloads = running.current.get().reloads.clone();
        running.stop(Duration::from_secs(1));
        let refused = reloads.refused().read();
        let refused: Vec<_> = refused.iter().filter(|it| it.1 > 0).collect();
        assert_eq!(refused, [("draining", 1)]);
    }

    #[test]
    fn every_reason_is_counted() {
        let all = [
            Refusal::Mistakes,
            Refusal::NoFile,
            Refusal::Failed,
            Refusal::Timeout,
            Refusal::Unhealthy,
            Refusal::Draining,
            Refusal::Upgrading,
        ];
        assert_eq!(all.map(Refusal::word), REFUSED);
    }
}
