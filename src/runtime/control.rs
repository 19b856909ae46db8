//! The control thread: it changes the running process, and talks to the outside about it.
//!
//! One for the process. It starts the workers and drains them, hears signals, and watches whether
//! workers come round (`heartbeat`). It probes endpoints and lets time pass for them (`health`).
//! It looks for endpoints ([`discovery`]). It serves the status page and the control socket
//! ([`admin`]). Other threads put a [`Message`] into its mailbox. Workers never wait for the
//! control thread.
//!
//! [`admin`]: crate::admin
//! [`discovery`]: crate::discovery

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::confirmation::Confirmation;
use super::ending::{NO_DEADLINE, join_workers, summarise};
use super::handover::Inheritance;
use super::heartbeat::{LOOK_INTERVAL, Watch};
use super::reload::{
    ConfigContent, ConfigSource, Job, PreviousConfig, Read, Refusal, Rejected, ReloadTarget,
    ReloadTrigger, Reloading,
};
use super::service::ServiceManager;
use super::signals::{DrainLimit, SignalAction, Signals};
use super::socket_paths::PathWatch;
use super::source_watch::SourceWatch;
use super::start::{Duties, Process, Writing};
use super::upgrade::{Failed, StartProgress, Upgrading};
use super::{Running, awaited, health};
use crate::admin::{Order, Outcome, ReloadOptions};
use crate::certificates::finish_clean_ups;
use crate::config::Config;
use crate::discovery::Discovery;
use crate::lifecycle::ThreadEnded;
use crate::metrics::quantity::counted;
use crate::net::Address;
use crate::observe::figures::CurrentSources;
use crate::observe::limits::CountsBegin;
use crate::scheduling::step_back;

/// Signals that follow the first one so soon are the same wish.
///
/// Some programs, such as `timeout`, signal a process and then its group.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// How long the status page and the control socket wait for what the process before an
/// upgrade has counted.
const COUNTS_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the end of the process waits for work on threads beside this one.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);

/// An order to the control thread.
#[derive(Debug)]
pub(super) enum Message {
    /// To drain for at most this long, then to stop.
    Drain { timeout: Duration },
}

/// The thread, and its mailbox. Dropped, it stops at once.
#[derive(Debug)]
pub(super) struct ControlThread {
    mailbox: mpsc::UnboundedSender<Message>,
    thread: JoinHandle<io::Result<()>>,
}

impl ControlThread {
    /// Puts a message into the mailbox.
    pub fn ask(&self, message: Message) {
        // The error of a thread that has ended already is for `join`.
        let _ = self.mailbox.send(message);
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// A thread of the process ended by itself.
    pub fn join(self) -> io::Result<()> {
        let joined = self.thread.join();
        joined.unwrap_or_else(|_| Err(io::Error::other("the control thread panicked")))
    }
}

/// Starts the thread, which starts the process; `signals` takes them over there, or
/// leaves them alone. `None` where one came that ends the process before it serves.
///
/// # Errors
/// The process can't be started.
pub(super) fn start(
    config: Config,
    source: ConfigSource,
    inheritance: Inheritance,
    signals: fn() -> io::Result<Signals>,
) -> io::Result<Option<Running>> {
    let (mailbox, messages) = mpsc::unbounded_channel();
    let (started, is_started) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("control".to_owned());
    let thread = thread.spawn(move || {
        let runtime = runtime()?;
        let ended = run(
            &runtime,
            config,
            source,
            inheritance,
            signals,
            messages,
            started,
        );
        finish_clean_ups();
        // A thread that waits for a disk which does not answer keeps nobody.
        runtime.shutdown_timeout(THREADS_TIMEOUT);
        ended
    })?;
    let control = ControlThread { mailbox, thread };
    match is_started.recv() {
        Ok(known) => Ok(Some(Running {
            control,
            current: known.current,
            status_address: known.status_address,
            addresses: known.addresses,
        })),
        Err(_) => control.join().map(|()| None),
    }
}

/// The parts of a started process that the caller sees.
struct Known {
    current: CurrentSources,
    status_address: Option<Address>,
    addresses: Vec<Address>,
}

/// Starts the process, says so, and does everything until it has ended.
fn run(
    runtime: &Runtime,
    mut config: Config,
    source: ConfigSource,
    inheritance: Inheritance,
    signals: fn() -> io::Result<Signals>,
    messages: mpsc::UnboundedReceiver<Message>,
    started: std::sync::mpsc::Sender<Known>,
) -> io::Result<()> {
    let discovery = Arc::<Discovery>::default();
    if let Some(discovered) = inheritance.discovered() {
        discovery.restore_sources(discovered);
    }
    // Signals are taken before the slow steps: a signal that comes meanwhile is heard later.
    let mut signals = runtime.block_on(async { signals() })?;
    let stopped = runtime.block_on(async {
        tokio::select! {
            () = discovery.prepare(&mut config) => None,
            name = signals.stop() => Some(name),
        }
    });
    if let Some(name) = stopped {
        let why = format!("{name} ended the process before it served");
        tracing::info!("{why}");
        inheritance.refuse(&io::Error::other(why));
        return Ok(());
    }
    let in_runtime = runtime.enter();
    let (process, duties) = Process::start(config, discovery, inheritance)?;
    let known = Known {
        current: process.current.clone(),
        status_address: process.status_address.clone(),
        addresses: process.listeners.addresses(),
    };
    // The caller waits for it.
    let _ = started.send(known);
    let control = Control::new(process, source, signals, messages);
    drop(in_runtime);
    control.run(runtime, duties)
}

/// The runtime of the control thread. Work that may take milliseconds runs beside it,
/// on threads named `figures` that give way to the workers.
fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("figures")
        .on_thread_start(step_back)
        .build()
}

/// How far the process has come.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Serving,
    Draining {
        since: Instant,
        cause: Cause,
        /// Whether open connections were cut.
        is_cut: bool,
        patience: DrainLimit,
    },
}

/// Why the process drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// A signal.
    Signal,
    /// The caller wants it.
    Caller,
    /// A thread ended by itself, or a duty of this one.
    Ended,
    /// Another process has taken over.
    Upgrade,
}

/// An upgrade that is asked for.
#[derive(Debug, Default)]
struct WantedUpgrade {
    /// The file of the program; `None` is the one where this process's was.
    binary: Option<PathBuf>,
    /// `None` for a signal.
    asker: Option<oneshot::Sender<Outcome>>,
}

/// The state of the control thread.
struct Control {
    process: Process,
    signals: Signals,
    /// `None` once the caller is gone.
    messages: Option<mpsc::UnboundedReceiver<Message>>,
    reloading: Reloading,
    confirmation: Confirmation,
    /// `None` where the files are not watched.
    source_watch: Option<SourceWatch>,
    /// The last content of the files.
    said: ConfigContent,
    upgrading: Upgrading,
    /// Upgrades that wait until no configuration is being loaded.
    later_upgrades: Vec<WantedUpgrade>,
    stage: Stage,
    watch: Watch,
    service: ServiceManager,
    looks: Interval,
    paths: PathWatch,
    /// Workers that have not ended.
    workers_running: usize,
}

impl Control {
    /// To be called within a runtime.
    fn new(
        process: Process,
        source: ConfigSource,
        signals: Signals,
        messages: mpsc::UnboundedReceiver<Message>,
    ) -> Self {
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stalls = process.sources().worker_stalls.clone();
        let mut service = match &signals {
            Signals::Taken { .. } => ServiceManager::of_environment(),
            Signals::Left => ServiceManager::default(),
        };
        service.ready(&status_line(&process));
        Control {
            signals,
            messages: Some(messages),
            reloading: Reloading::new(source.load),
            source_watch: source.watched.map(SourceWatch::new),
            said: ConfigContent::Config {
                hash: process.sources().config.hash,
            },
            confirmation: Confirmation::new(process.sources().reloads.clone()),
            upgrading: Upgrading::new(),
            later_upgrades: Vec::new(),
            stage: Stage::Serving,
            service,
            watch: Watch::new(&process.heartbeats, stalls),
            looks,
            paths: PathWatch::default(),
            workers_running: process.workers.len(),
            process,
        }
    }

    /// Does everything until the process has ended.
    fn run(mut self, runtime: &Runtime, duties: Duties) -> io::Result<()> {
        let tasks = LocalSet::new();
        tasks.block_on(runtime, self.serve(duties));
        join_workers(std::mem::take(&mut self.process.workers));
        // Its path goes before it is closed, with the other duties.
        drop(self.process.moved_control_file.take());
        drop(tasks);
        runtime.block_on(self.finish())
    }

    /// Does its duties until every worker has ended: an exchange in a queue may be served until
    /// then.
    async fn serve(&mut self, duties: Duties) {
        let folders = self.process.discovery.folders();
        if let Some(watch) = &self.source_watch {
            tokio::task::spawn_local(watch.keep(folders.clone()));
        }
        let certificates = self.process.certificates.keep(folders.clone());
        tokio::task::spawn_local(certificates);
        tokio::task::spawn_local(self.process.networks.keep(folders.clone()));
        tokio::task::spawn_local(self.process.users.keep(folders.clone()));
        tokio::task::spawn_local(self.process.sources().tickets.share());
        tokio::task::spawn_local(self.process.certificates.order());
        let mut ended = pin!(duties.run());
        let mut is_able = true;
        while self.workers_running > 0 {
            tokio::select! {
                () = self.hear() => {}
                () = &mut ended, if is_able => {
                    is_able = false;
                    self.ended_by_itself();
                }
            }
        }
        // Idle workers end at once: the operator's answer is still to be sent.
        tokio::task::yield_now().await;
    }

    /// Waits until all is written, and logs what was done.
    async fn finish(mut self) -> io::Result<()> {
        let writing = self.process.writing.take();
        let mut written = tokio::task::spawn_blocking(|| writing.map_or(0, Writing::finish));
        let unwritten = loop {
            tokio::select! {
                unwritten = &mut written => break unwritten?,
                () = self.hear() => {}
            }
        };
        let sources = &self.process.sources();
        for cache in &sources.caches {
            cache.close();
            cache.wait_until_closed(CACHE_PATIENCE);
        }
        summarise(&sources.config, &sources.counters, unwritten);
        self.upgrading
            .tell_last_counts(self.process.counts_before.take());
        match self.stage {
            Stage::Draining {
                cause: Cause::Ended,
                ..
            } => Err(io::Error::other("a thread ended by itself")),
            Stage::Serving | Stage::Draining { .. } => Ok(()),
        }
    }

    /// Waits for something that is asked for, or happened, and sees to it.
    ///
    /// # Cancellation
    /// Nothing is lost by dropping the future.
    async fn hear(&mut self) {
        tokio::select! {
            message = next(&mut self.messages) => self.asked(message),
            Some(order) = self.process.asked.recv() => self.ordered(order),
            job = self.reloading.loaded() => self.loaded(job),
            // An upgrade that fails leaves it to this process.
            () = changed(&self.source_watch), if self.is_steady() => {
                self.reload(ReloadTrigger::Watch, ReloadOptions::default());
            }
            // A load under way may settle the question.
            () = self.confirmation.is_over(), if !self.reloading.is_busy() => self.revert(),
            heard = self.upgrading.heard() => self.upgraded(heard),
            Some(ThreadEnded) = self.process.ended.recv() => {
                self.workers_running -= 1;
                self.ended_by_itself();
            }
            wish = self.signals.next() => self.signalled(wish),
            _ = self.looks.tick() => {
                let now = Instant::now();
                // Without a handshake, nothing else makes new keys and drops the old ones.
                self.process.sources().tickets.keys().rotate();
                if let Some(writing) = &mut self.process.writing {
                    writing.log_writer.finish_left();
                }
                if matches!(self.stage, Stage::Serving) && !self.upgrading.is_under_way() {
                    self.paths.look(&self.process);
                }
                if self.watch.look(now) {
                    self.service.all_come_round(now);
                }
            }
        }
    }

    /// `None` where the caller has dropped its handle.
    fn asked(&mut self, message: Option<Message>) {
        match message {
            Some(Message::Drain { timeout }) => {
                self.drain(Some(timeout), Cause::Caller, DrainLimit::Limited);
            }
            None => {
                self.messages = None;
                self.drain(Some(Duration::ZERO), Cause::Caller, DrainLimit::Limited);
            }
        }
    }

    fn ordered(&mut self, order: Order) {
        match order {
            Order::Reload(options, reply) => self.reload(ReloadTrigger::Operator(reply), options),
            Order::Confirm(reply) => {
                // The operator may have given up meanwhile.
                let _ = reply.send(self.confirm());
            }
            Order::Diff(reply) => {
                let discovery = self.process.discovery.clone();
                let sources = self.process.sources();
                self.reloading.compare(sources, discovery, reply);
            }
            Order::Upgrade(binary, reply) => self.upgrade(WantedUpgrade {
                binary,
                asker: Some(reply),
            }),
            Order::Stop(reply) => {
                // The operator may have given up meanwhile.
                let _ = reply.send(Ok(self.stop_for_operator()));
            }
            Order::StopNow(reply) => {
                self.stop_now("stop --now");
                let pid = std::process::id();
                let _ = reply.send(Ok(format!("process {pid} ends: open connections are cut")));
            }
        }
    }

    /// Has the configuration loaded, unless the process drains.
    fn reload(&mut self, asker: ReloadTrigger, options: ReloadOptions) {
        if matches!(self.stage, Stage::Draining { .. }) {
            asker.refuse(&self.process.sources().reloads, &drains());
        } else if self.upgrading.is_under_way() {
            let reloads = &self.process.sources().reloads;
            let rejected = Rejected::at(Refusal::Upgrading, "an upgrade is in progress");
            asker.refuse(reloads, &rejected);
        } else {
            // Whether there is anything new turns out then.
            if !matches!(asker, ReloadTrigger::Watch) {
                self.service.reloading();
            }
            self.reloading.begin(asker, options, &self.process);
        }
    }

    /// Puts a configuration in force that was loaded, unless it is wrong.
    fn loaded(&mut self, job: Job) {
        let Job {
            wanted,
            askers,
            read,
            loaded,
        } = job;
        let is_news = read.is_none_or(|it| self.note_read(it));
        if !is_news && askers.iter().all(|it| matches!(it, ReloadTrigger::Watch)) {
            return self.go_on_loading();
        }
        let reloads = self.process.sources().reloads.clone();
        let before = PreviousConfig::now(&self.process);
        let followed = match loaded {
            Ok(prepared) => {
                self.paths.look_now(&self.process);
                self.process.follow(prepared).map_err(Rejected::because)
            }
            Err(rejected) => Err(rejected),
        };
        if followed.is_err() {
            self.process.discovery.forget_prepared();
        }
        let sources = self.process.sources();
        match (followed, wanted) {
            (Ok(in_force), wanted) => {
                reloads.note_done();
                let then = match wanted {
                    ReloadTarget::File(options) => {
                        self.confirmation.begin(options.confirm_within, before)
                    }
                    ReloadTarget::PreviousConfig(_) => {
                        reloads.note_reverted();
                        self.confirmation.settle();
                        let (hash, now) = (before.hash(), sources.config.hash_text());
                        tracing::warn!(
                            "reload reverted: configuration {hash} was not confirmed in time; \
                             configuration {now} comes back"
                        );
                        None
                    }
                };
                tokio::task::spawn_local(in_force.announce(sources, askers, then));
            }
            (Err(rejected), ReloadTarget::File(_)) => {
                if let ConfigContent::Config { .. } = self.said {
                    // Without mistakes, the same text may come into force another time.
                    let hash = sources.config.hash;
                    self.said = ConfigContent::Config { hash };
                }
                for asker in askers {
                    asker.refuse(&reloads, &rejected);
                }
            }
            (Err(rejected), ReloadTarget::PreviousConfig(kept)) => {
                self.not_reverted(kept, &rejected)
            }
        }
        self.go_on_loading();
    }

    /// Starts the next reload that was asked for meanwhile.
    fn go_on_loading(&mut self) {
        self.reloading.go_on(&self.process);
        if !self.reloading.is_busy() {
            self.service.ready(&status_line(&self.process));
            let later = std::mem::take(&mut self.later_upgrades);
            later.into_iter().for_each(|it| self.upgrade(it));
        }
    }

    /// Notes the content of the files. Whether it differs from the last content and from the
    /// configuration in force.
    fn note_read(&mut self, Read { said, paths }: Read) -> bool {
        if let Some(watch) = &self.source_watch {
            match said {
                ConfigContent::Config { .. } => watch.follow(paths),
                ConfigContent::Mistakes(_) => watch.follow_mistaken(paths),
            }
        }
        // After mistakes, the files may hold the configuration in force again.
        let in_force = ConfigContent::Config {
            hash: self.process.sources().config.hash,
        };
        let is_news = said != self.said && said != in_force;
        self.said = said;
        if !is_news {
            tracing::debug!("the configuration files did not change");
        }
        is_news
    }

    /// Whether the process serves, and nobody is about to take over.
    fn is_steady(&self) -> bool {
        matches!(self.stage, Stage::Serving) && !self.upgrading.is_under_way()
    }

    /// Has the configuration in force stay.
    fn confirm(&mut self) -> Outcome {
        let sources = self.process.sources();
        let (hash, number) = (sources.config.hash_text(), sources.generation);
        let in_force = format!("configuration {hash} is in force, generation {number}");
        match self.confirmation.confirm() {
            Ok(before) => {
                let told =
                    format!("confirmed: configuration {hash} stays in force, generation {number}");
                tracing::info!("reload {told}; configuration {before} does not come back");
                Ok(told)
            }
            Err(why) => Err(format!("{why}: {in_force}")),
        }
    }

    /// Has the last configuration come back that was to stay.
    fn revert(&mut self) {
        if let Some(kept) = self.confirmation.revert() {
            self.service.reloading();
            self.reloading.go_back(kept, &self.process);
        }
    }

    /// The one that was to come back can't come into force now.
    fn not_reverted(&mut self, kept: PreviousConfig, rejected: &Rejected) {
        let sources = self.process.sources();
        let reason = rejected.reason.word();
        sources.reloads.note_refused(reason);
        let (hash, now) = (kept.hash(), sources.config.hash_text());
        let why = &rejected.summary;
        let pause = self.confirmation.try_again(kept);
        tracing::error!(
            reason,
            "reload refused: {why} ({reason}); configuration {hash} can't come back, so {now} \
             stays in force; the next try is in {pause:?}"
        );
    }

    /// A worker or a duty has ended, which only a drain makes right.
    fn ended_by_itself(&mut self) {
        if matches!(self.stage, Stage::Serving) {
            tracing::error!("a thread ended by itself: stopping");
            self.drain(
                Some(self.drain_timeout()),
                Cause::Ended,
                DrainLimit::Limited,
            );
        }
    }

    fn signalled(&mut self, wish: SignalAction) {
        let (name, patience) = match wish {
            SignalAction::Reopen => {
                let writing = self.process.writing.iter();
                return writing.for_each(|it| it.log_writer.reopen());
            }
            SignalAction::Reload => {
                return self.reload(ReloadTrigger::Signal, ReloadOptions::default());
            }
            SignalAction::Upgrade => return self.upgrade(WantedUpgrade::default()),
            SignalAction::Stop(name, patience) => (name, patience),
        };
        self.stop(name, patience);
    }

    /// Drains, or is less patient with a drain that goes on. `name` is the cause.
    fn stop(&mut self, name: &str, wanted: DrainLimit) {
        let timeout = self.drain_timeout();
        match &mut self.stage {
            Stage::Serving => {
                if wanted == DrainLimit::Unlimited {
                    tracing::info!(
                        "{name}: accepting no more connections; exchanges in flight have no \
                         deadline"
                    );
                    self.drain(None, Cause::Signal, wanted);
                } else {
                    tracing::info!(
                        "{name}: accepting no more connections; exchanges in flight have \
                         {timeout:?}"
                    );
                    self.drain(Some(timeout), Cause::Signal, wanted);
                }
            }
            Stage::Draining { is_cut: true, .. } => {}
            Stage::Draining {
                since,
                cause: Cause::Signal,
                patience,
                ..
            } if since.elapsed() < SAME_SIGNAL && *patience == wanted => {
                tracing::info!("{name} again, at once: ignored as a repetition");
            }
            Stage::Draining { .. } if wanted == DrainLimit::Unlimited => {
                tracing::info!("{name}: the process is already draining");
            }
            Stage::Draining {
                since, patience, ..
            } if *patience == DrainLimit::Unlimited => {
                (*since, *patience) = (Instant::now(), DrainLimit::Limited);
                tracing::info!("{name}: exchanges in flight now have {timeout:?}");
                self.process.drain_until(*since + timeout);
            }
            Stage::Draining { .. } => self.stop_now(name),
        }
    }

    /// Cuts open connections. `name` is the cause.
    fn stop_now(&mut self, name: &str) {
        match &mut self.stage {
            Stage::Serving => {
                tracing::warn!("{name}: open connections are cut");
                self.drain(Some(Duration::ZERO), Cause::Signal, DrainLimit::Limited);
            }
            Stage::Draining { is_cut, .. } => {
                *is_cut = true;
                tracing::warn!("{name} again: open connections are cut");
                self.process.drain_until(Instant::now());
            }
        }
    }

    /// Drains, and says to the operator what that means.
    fn stop_for_operator(&mut self) -> String {
        let pid = std::process::id();
        match self.stage {
            Stage::Serving => {
                let timeout = self.drain_timeout();
                self.stop("stop", DrainLimit::Limited);
                format!(
                    "process {pid} accepts no more connections; exchanges in flight have \
                    {timeout:?}"
                )
            }
            Stage::Draining { .. } => format!("process {pid} is already draining"),
        }
    }

    /// Has another process take over. While a configuration is being loaded, that waits
    /// until it is in force: its sockets are handed over as well.
    fn upgrade(&mut self, wanted: WantedUpgrade) {
        let is_serving = matches!(self.stage, Stage::Serving);
        if is_serving && self.reloading.is_busy() {
            self.later_upgrades.push(wanted);
            return;
        }
        let allowed = if !is_serving {
            Err(Failed::Stopping)
        } else if self.confirmation.is_settled() {
            Ok(())
        } else {
            let why = "the configuration in force waits to be confirmed, and the new process \
                would keep it: run `evenkeel confirm` first";
            Err(Failed::NotStarted {
                why: why.to_owned(),
            })
        };
        let WantedUpgrade { binary, asker } = wanted;
        self.upgrading.begin(&self.process, allowed, binary, asker);
    }

    /// A program is ready to take over, or serves; or it fails.
    fn upgraded(&mut self, heard: Result<StartProgress, Failed>) {
        let upgrading = &mut self.upgrading;
        if !upgrading.follow(&mut self.process, heard, &mut self.service) {
            return;
        }
        self.stage = Stage::Draining {
            since: Instant::now(),
            cause: Cause::Upgrade,
            is_cut: false,
            patience: DrainLimit::Unlimited,
        };
    }

    fn drain_timeout(&self) -> Duration {
        self.process.sources().config.server.drain_timeout
    }

    /// `None` is no deadline.
    fn drain(&mut self, timeout: Option<Duration>, cause: Cause, patience: DrainLimit) {
        let since = Instant::now();
        self.upgrading.give_up(&mut self.process, &mut self.service);
        if !self.confirmation.is_settled() {
            tracing::info!(
                "reload: no configuration waits to be confirmed any more: the process is draining"
            );
            self.confirmation.settle();
        }
        self.process.drain(since + timeout.unwrap_or(NO_DEADLINE));
        tokio::task::spawn_local(awaited::tell(self.process.sources()));
        self.service.stopping(&match timeout {
            Some(timeout) => format!("draining for at most {timeout:?}"),
            None => "draining without a deadline".to_owned(),
        });
        self.stage = Stage::Draining {
            since,
            cause,
            is_cut: false,
            patience,
        };
        let reloads = self.process.sources().reloads.clone();
        for asker in self.reloading.give_up() {
            asker.refuse(&reloads, &drains());
        }
        let later = std::mem::take(&mut self.later_upgrades);
        later.into_iter().for_each(|it| self.upgrade(it));
    }
}

/// Why nothing is loaded any more.
fn drains() -> Rejected {
    Rejected::at(Refusal::Draining, "the process is draining")
}

/// The line that the service manager shows of a serving process.
fn status_line(process: &Process) -> String {
    let config = &process.sources().config;
    format!(
        "serving on {} with {}, configuration {}",
        counted(config.listeners.len() as u64, "listener"),
        counted(config.server.workers as u64, "worker"),
        config.hash_text()
    )
}

/// How long the end of the process waits for what caches have yet to write.
const CACHE_PATIENCE: Duration = Duration::from_secs(5);

/// Places of a cache that are looked at in a turn, and how long it is to the next.
const SWEPT_PLACES: usize = 200;
const SWEEP_INTERVAL: Duration = Duration::from_millis(50);

impl Duties {
    /// Does them for ever, in local tasks; gives up where one of them fails.
    async fn run(self) {
        let Duties {
            poller,
            admin,
            discovery,
            watched,
            first_counts,
            current,
        } = self;
        // Tasks of their own: each has its turn, however much another has to do.
        let health = tokio::task::spawn_local(health::watch(watched));
        let admin = tokio::task::spawn_local(async move {
            let begin = match first_counts {
                None => CountsBegin::Here,
                Some(first) => {
                    // Without them it is served all the same.
                    let _ = tokio::time::timeout(COUNTS_TIMEOUT, first).await;
                    CountsBegin::Before
                }
            };
            admin.run(begin).await;
        });
        let discovery = tokio::task::spawn_local(discovery.keep());
        tokio::task::spawn_local(sweep(current));
        let failed = tokio::select! {
            failed = poller.serve() => failed.err(),
            ended = health => ended.err().map(io::Error::other),
            ended = admin => ended.err().map(io::Error::other),
            ended = discovery => ended.err().map(io::Error::other),
        };
        if let Some(error) = failed {
            tracing::error!("the control thread failed: {error}");
        }
    }
}

/// Frees what purges have left in caches, bit by bit.
async fn sweep(current: CurrentSources) {
    let mut ticks = interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for cache in &current.get().caches {
            cache.memory.sweep(SWEPT_PLACES);
            if let Some(disk) = cache.disk() {
                disk.give_up_stuck();
            }
        }
    }
}

/// Waits until the files of the configuration may say something else.
async fn changed(watch: &Option<SourceWatch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

/// The next message; `None` once nobody can send another.
async fn next(messages: &mut Option<mpsc::UnboundedReceiver<Message>>) -> Option<Message> {
    match messages {
        Some(messages) => messages.recv().await,
        None => std::future::pending().await,
    }
}
