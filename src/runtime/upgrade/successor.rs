//! The old process's side: it starts a program, and hands over to it once that is ready.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle, spawn_local};

use crate::discovery::Discovery;
use crate::net::given::SERVICE_MANAGER_VARIABLES;
use crate::net::handover::Channel;
use crate::observe::figures::{CurrentSources, Sources};
use crate::observe::inquiry::{Question, ask};
use crate::observe::upgrades::CountsReport;
use crate::runtime::handover::message::{Answer, CHANNEL_VARIABLE, Offer, Word};
use crate::runtime::handover::{CountingPredecessor, Known};
use crate::runtime::service::WATCHDOG_PID_VARIABLE;
use crate::upstream::SharedUpstream;

/// Time between two messages with counts.
const COUNTS_INTERVAL: Duration = Duration::from_secs(1);
/// How long a program that is ready may take until it serves.
const SERVING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a successor may take until it counts from the counts it got.
const COUNTED_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a program that gave up has until it has ended.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Why the old process goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::runtime) enum Failed {
    /// The program can't be started.
    NotStarted { why: String },
    /// It ended before it served.
    Ended { how: String },
    /// It said why it can't take over.
    Refused { why: String },
    /// It was not ready, or did not serve, in time.
    Timeout { step: Step, after: Duration },
    /// The old process is to stop.
    Stopping,
    /// A thread of the old process that sees to the upgrade panicked.
    Panicked,
}

/// How far a program is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) enum Step {
    Ready,
    Serving,
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Step::Ready => "ready",
            Step::Serving => "serving",
        })
    }
}

impl Failed {
    /// The word for it, in the event log and in the counter.
    pub fn word(&self) -> &'static str {
        match self {
            Failed::NotStarted { .. } => "not-started",
            Failed::Ended { .. } => "ended",
            Failed::Refused { .. } => "refused",
            Failed::Timeout { .. } => "timeout",
            Failed::Stopping => "stopping",
            Failed::Panicked => "panicked",
        }
    }
}

impl From<JoinError> for Failed {
    fn from(error: JoinError) -> Self {
        if error.is_panic() {
            Failed::Panicked
        } else {
            // It was cancelled, with everything else.
            Failed::Stopping
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::NotStarted { why } => write!(out, "the program can't be started: {why}"),
            Failed::Ended { how } => write!(out, "the program ended before it served: {how}"),
            Failed::Refused { why } => write!(out, "the program refused to take over: {why}"),
            Failed::Timeout { step, after } => {
                write!(out, "the program was not {step} within {after:?}")
            }
            Failed::Stopping => out.write_str("the process is stopping"),
            Failed::Panicked => {
                out.write_str("a thread of this process panicked, which is a bug: please report it")
            }
        }
    }
}

/// Everything that a program is started with.
#[derive(Debug)]
pub(in crate::runtime) struct Plan {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    /// The offer, without the discovered endpoints.
    pub offer: Offer,
    pub discovery: Arc<Discovery>,
    pub descriptors: Vec<OwnedFd>,
    /// How long it may take to get ready.
    pub timeout: Duration,
}

/// A program that is being started.
#[derive(Debug)]
pub(in crate::runtime) struct Starting {
    child: SharedChild,
    heard: JoinHandle<Result<StartProgress, Failed>>,
}

/// How far a program has come.
#[derive(Debug)]
pub(in crate::runtime) enum StartProgress {
    /// It waits for the word to serve.
    Ready(Successor),
    /// It accepts connections.
    Serving(Successor),
}

/// Tells a process that is ready to take over what it has to know.
#[derive(Debug)]
pub(in crate::runtime) struct StateSender {
    pub sources: Arc<Sources>,
    pub upstreams: Vec<Arc<SharedUpstream>>,
    pub discovery: Arc<Discovery>,
}

impl StateSender {
    /// Tells it the present state. Work of milliseconds is done on a thread beside.
    async fn tell(self, successor: Successor) -> Result<StartProgress, Failed> {
        let asked = ask(&self.sources.inquiries, Question::Learned).await;
        let told = tokio::task::spawn_blocking(move || {
            let StateSender {
                sources,
                upstreams,
                discovery,
            } = self;
            let known = Known::of(&sources, &upstreams, &discovery, asked.answers);
            successor.tell(known).map(StartProgress::Ready)
        });
        told.await?
    }
}

/// A process that is to take over. Dropped, it is ended.
///
/// Invariant: it ends before its channel is closed. It would take that for the end of
/// this process, and serve.
#[derive(Debug)]
pub(in crate::runtime) struct Successor {
    // Fields are dropped in this order.
    child: EndedOnDrop,
    channel: Channel,
    /// Its process id.
    pub pid: u32,
}

#[derive(Debug, Clone, Default)]
struct SharedChild(Arc<Mutex<State>>);

#[derive(Debug)]
struct EndedOnDrop(SharedChild);

impl Drop for EndedOnDrop {
    fn drop(&mut self) {
        self.0.stop(Duration::ZERO);
    }
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Waiting,
    Running(Child),
    /// Nobody ends it any more.
    Released,
    Stopped,
}

impl SharedChild {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the program, unless it is not to be.
    fn start(&self, mut command: Command) -> Result<u32, Failed> {
        let mut state = self.lock();
        if let State::Stopped = *state {
            return Err(Failed::Stopping);
        }
        match command.spawn() {
            Ok(child) => {
                let pid = child.id();
                *state = State::Running(child);
                Ok(pid)
            }
            Err(error) => Err(Failed::NotStarted {
                why: format!("{}: {error}", Path::new(command.get_program()).display()),
            }),
        }
    }

    /// Has it go on by itself.
    fn release(&self) {
        let before = std::mem::replace(&mut *self.lock(), State::Released);
        let State::Running(mut child) = before else {
            return;
        };
        // It may end before this process, where a third one takes over from it.
        let thread = thread::Builder::new().name("upgrade".to_owned());
        let waiting = thread.spawn(move || {
            // How it ended is its own affair.
            let _ = child.wait();
        });
        if let Err(error) = waiting {
            tracing::warn!("upgrade: the end of the new process will not be noticed: {error}");
        }
    }

    /// Ends it; how it ended, where it did by itself within this time.
    fn stop(&self, patience: Duration) -> Option<String> {
        let mut state = self.lock();
        if let State::Released = *state {
            return None;
        }
        let State::Running(mut child) = std::mem::replace(&mut *state, State::Stopped) else {
            return None;
        };
        drop(state);
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(status.to_string());
            }
            thread::sleep(Duration::from_millis(10));
        }
        // The call removes the file as well.
        let _ = child.kill();
        let _ = child.wait();
        None
    }
}

impl Starting {
    /// Starts the program on a thread of its own, and tells it the present state once it is
    /// ready. To be called in a local set.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn begin(plan: Plan, teller: StateSender) -> io::Result<Self> {
        let (tell, started) = oneshot::channel();
        let child = SharedChild::default();
        let of_thread = child.clone();
        thread::Builder::new()
            .name("upgrade".to_owned())
            .spawn(move || {
                let mut plan = plan;
                plan.offer.discovered = plan.discovery.keep_sources();
                let started = start(&plan, &of_thread);
                // The process may have ended meanwhile.
                let _ = tell.send(started);
            })?;
        let heard = spawn_local(async move {
            // Nobody tells where the thread panicked.
            let started = started.await.unwrap_or(Err(Failed::Panicked));
            teller.tell(started?).await
        });
        Ok(Starting { child, heard })
    }

    /// How far it has come.
    ///
    /// # Cancellation
    /// Nothing is lost by dropping the future.
    pub async fn heard(&mut self) -> Result<StartProgress, Failed> {
        (&mut self.heard).await?
    }

    /// Has the program serve, on a thread beside; [`heard`](Self::heard) tells whether it
    /// does.
    pub fn have_serve(&mut self, successor: Successor) {
        let serve = || successor.serve().map(StartProgress::Serving);
        self.heard = tokio::task::spawn_blocking(serve);
    }

    /// Ends the program: the process is to stop.
    pub fn give_up(&self) {
        self.child.stop(Duration::ZERO);
    }
}

fn start(plan: &Plan, child: &SharedChild) -> Result<Successor, Failed> {
    let not_started = |error: io::Error| Failed::NotStarted {
        why: error.to_string(),
    };
    let (channel, theirs) = Channel::pair().map_err(not_started)?;
    let mut command = Command::new(&plan.program);
    command.args(&plan.arguments);
    command.env(CHANNEL_VARIABLE, number(&theirs));
    // The service manager is to take signs of life from the new process.
    command.env_remove(WATCHDOG_PID_VARIABLE);
    // Sockets of the service manager come from here too.
    for variable in SERVICE_MANAGER_VARIABLES {
        command.env_remove(variable);
    }
    let pid = child.start(command)?;
    drop(theirs);
    let successor = Successor {
        child: EndedOnDrop(child.clone()),
        channel,
        pid,
    };
    successor.get_ready(plan)?;
    Ok(successor)
}

fn number(descriptor: &OwnedFd) -> String {
    use std::os::fd::AsRawFd;
    descriptor.as_raw_fd().to_string()
}

impl Successor {
    /// Makes the offer, and waits until it is ready. Blocks.
    fn get_ready(&self, plan: &Plan) -> Result<(), Failed> {
        let (step, after) = (Step::Ready, plan.timeout);
        let failed = |error: io::Error| self.failed(&error, Failed::Timeout { step, after });
        self.channel.set_timeout(Some(after)).map_err(failed)?;
        let offer = serde_json::to_vec(&plan.offer).map_err(|error| failed(error.into()))?;
        let descriptors: Vec<_> = plan.descriptors.iter().map(AsFd::as_fd).collect();
        self.channel.send(&offer, &descriptors).map_err(failed)?;
        self.await_step(step, failed)
    }

    /// Tells it the present state. Blocks.
    ///
    /// # Errors
    /// It has ended meanwhile, or takes nothing.
    pub fn tell(self, known: Known) -> Result<Self, Failed> {
        let (step, after) = (Step::Serving, SERVING_TIMEOUT);
        let failed = |error: io::Error| self.failed(&error, Failed::Timeout { step, after });
        self.channel.set_timeout(Some(after)).map_err(failed)?;
        self.say(&Word::Known(Box::new(known))).map_err(failed)?;
        Ok(self)
    }

    /// Has it serve, and waits until it does. Blocks.
    ///
    /// # Errors
    /// It has ended meanwhile, or takes too long.
    pub fn serve(self) -> Result<Self, Failed> {
        let (step, after) = (Step::Serving, SERVING_TIMEOUT);
        let failed = |error: io::Error| self.failed(&error, Failed::Timeout { step, after });
        self.say(&Word::Serve).map_err(failed)?;
        self.await_step(step, failed)?;
        Ok(self)
    }

    /// Has it go on by itself: it serves.
    pub fn release(&self) {
        self.child.0.release();
    }

    fn say(&self, word: &Word) -> io::Result<()> {
        self.channel.send(&serde_json::to_vec(word)?, &[])
    }

    /// Waits until it says that it has come so far.
    fn await_step(&self, step: Step, failed: impl Fn(io::Error) -> Failed) -> Result<(), Failed> {
        let received = self.channel.receive().map_err(&failed)?;
        let (bytes, _) = received.ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))?;
        match (serde_json::from_slice(&bytes), step) {
            (Ok(Answer::Ready), Step::Ready) | (Ok(Answer::Serving), Step::Serving) => Ok(()),
            (Ok(Answer::Refused(why)), _) => {
                // It ends by itself.
                self.child.0.stop(END_TIMEOUT);
                Err(Failed::Refused { why })
            }
            (Ok(answer), _) => Err(Failed::Refused {
                why: format!("it answered {answer:?} but should be {step}"),
            }),
            (Err(error), _) => Err(Failed::Refused {
                why: format!("its answer is not understood: {error}"),
            }),
        }
    }

    /// Why it does not take over, where nothing can be said to it or heard of it.
    fn failed(&self, error: &io::Error, timeout: Failed) -> Failed {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => timeout,
            _ => {
                let how = self.child.0.stop(END_TIMEOUT);
                let how = how.unwrap_or_else(|| "it closed the connection".to_owned());
                Failed::Ended { how }
            }
        }
    }

    /// Keeps figures shown here from exceeding those that the successor knows. It gets the counts
    /// more often once that [begins](CountsSender::begin).
    pub fn counts_teller(self, current: CurrentSources) -> CountsSender {
        // If the kernel refuses, the timeout of messages holds.
        let _ = self.channel.set_receive_timeout(Some(COUNTED_TIMEOUT));
        let telling = Arc::new(CountsChannel {
            channel: Mutex::new(Some(self.channel)),
            current,
        });
        let tell = telling.clone();
        let upgrades = telling.current.get().upgrades.clone();
        upgrades.tell_by(CountsReport::new(move || tell.tell()));
        CountsSender {
            telling,
            is_over: Arc::default(),
            thread: None,
        }
    }
}

/// Counts on their way to the successor.
#[derive(Debug)]
struct CountsChannel {
    /// `None` once the successor has ended.
    channel: Mutex<Option<Channel>>,
    current: CurrentSources,
}

impl CountsChannel {
    /// Tells it, and waits for a moment until it counts from there.
    fn tell(&self) {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = &*channel else {
            return;
        };
        let counts = Word::Counts(self.current.get().save());
        let told = serde_json::to_vec(&counts).map_err(io::Error::from);
        let told = told.and_then(|bytes| open.send(&bytes, &[]));
        let counted = told.and_then(|()| open.receive());
        let is_open = match counted {
            Ok(answer) => answer.is_some(),
            // The successor takes its time.
            Err(error) => matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ),
        };
        if !is_open {
            *channel = None;
        }
    }

    /// Hands it the channel of the process before this one. Nothing is told after that.
    fn leave(&self, CountingPredecessor { channel, counted }: CountingPredecessor) {
        let mut open = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(successor) = open.take() else {
            return;
        };
        let word = serde_json::to_vec(&Word::Before { counted }).map_err(io::Error::from);
        let told = word.and_then(|bytes| successor.send(&bytes, &[channel.as_fd()]));
        if let Err(error) = told {
            tracing::warn!("upgrade: the counters of the old process no longer arrive: {error}");
        }
    }

    fn is_open(&self) -> bool {
        let channel = self.channel.lock();
        channel.unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// Tells the successor the counts.
#[derive(Debug)]
pub(in crate::runtime) struct CountsSender {
    telling: Arc<CountsChannel>,
    is_over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl CountsSender {
    /// Tells it each second from now on. It serves its status page once it knows the
    /// first counts: this process is to take no further request by then.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn begin(&mut self) -> io::Result<()> {
        let (telling, is_over) = (self.telling.clone(), self.is_over.clone());
        let thread = thread::Builder::new().name("upgrade".to_owned());
        self.thread = Some(thread.spawn(move || {
            loop {
                // Counts that are added after this load are told as well.
                let is_last = is_over.load(Ordering::Acquire);
                telling.tell();
                if is_last || !telling.is_open() {
                    return;
                }
                thread::park_timeout(COUNTS_INTERVAL);
            }
        })?);
        Ok(())
    }

    /// Tells it once more, and leaves it the process before this one, if that still
    /// counts. Blocks for a moment.
    pub fn finish(self, before: Option<CountingPredecessor>) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread {
            thread.thread().unpark();
            // It panicked: there is nobody to tell.
            let _ = thread.join();
        }
        if let Some(before) = before {
            self.telling.leave(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::upgrades::FAILED;

    #[test]
    fn every_reason_is_counted() {
        let why = String::new;
        let all = [
            Failed::NotStarted { why: why() },
            Failed::Ended { how: why() },
            Failed::Refused { why: why() },
            Failed::Timeout {
                step: Step::Ready,
                after: Duration::ZERO,
            },
            Failed::Stopping,
            Failed::Panicked,
        ];
        assert_eq!(all.map(|it| it.word()), FAILED);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_panic_is_said_to_be_one() {
        let heard = tokio::task::spawn_blocking(|| panic!("on purpose"));
        let mut starting = Starting {
            child: SharedChild::default(),
            heard,
        };
        assert_eq!(starting.heard().await.unwrap_err(), Failed::Panicked);
    }
}
