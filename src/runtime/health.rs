//! The health thread: one for the process, whatever the number of workers.
//!
//! It probes endpoints, tries whether those are back that could not be
//! connected to, and lets time pass for every upstream. What it learns goes to
//! the dispatchers, which all workers share; every change is a line of the
//! event log.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_policy::dispatch::Dispatcher;
use evenkeel_policy::health::Change;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::Starting;
use crate::config::{Config, Endpoint, Probe, Upstream};
use crate::net::clock;
use crate::net::connect::{connect_when_there_is_room, is_unreachable, reason};
use crate::net::poller::Poller;
use crate::net::timer::TICK;
use crate::observe::probes::{ProbeEnd, Probes};
use crate::observe::quantity::counted;
use crate::upstream::change::log_change;
use crate::upstream::probe::{Awaited, Passed, ProbeFailure, probe};

/// Probes and tries at once.
const MOST_AT_ONCE: usize = 256;
/// Part of the interval by which a probe comes earlier or later.
const JITTER: f64 = 0.1;
/// Time from a failed connection to the first try, and between later ones.
const FIRST_TRY: Duration = Duration::from_millis(100);
const LONGEST_TRY: Duration = Duration::from_secs(1);

/// The health thread, until it is stopped or dropped.
#[derive(Debug)]
pub(super) struct HealthThread {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<io::Result<()>>,
}

/// Starts the health thread; `while_running` is dropped when it ends.
pub(super) fn start(
    config: Arc<Config>,
    dispatchers: Vec<Arc<Dispatcher>>,
    probes: Arc<Probes>,
    starting: Starting,
    while_running: impl Send + 'static,
) -> io::Result<HealthThread> {
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::Builder::new().name("health".to_owned());
    let thread = thread.spawn(move || {
        let _while_running = while_running;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build_local(tokio::runtime::LocalOptions::default())?;
        let health = Rc::new(Health {
            config,
            dispatchers,
            probes,
            permits: Semaphore::new(MOST_AT_ONCE),
        });
        let poller = Poller::of_this_thread()?;
        runtime.block_on(async {
            starting.finish().await;
            tokio::select! {
                () = health.watch() => Ok(()),
                failed = poller.serve() => failed,
                // An error means that whoever could stop it is gone.
                _ = stopped => Ok(()),
            }
        })
    })?;
    Ok(HealthThread { stop, thread })
}

impl HealthThread {
    /// Ends it, and waits until it has.
    pub(super) fn stop(self) {
        // Nobody listens where it has ended already.
        let _ = self.stop.send(());
        match self.thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!("the health thread failed: {error}"),
            Err(_) => tracing::error!("the health thread panicked"),
        }
    }
}

/// What the tasks of the thread share.
struct Health {
    config: Arc<Config>,
    dispatchers: Vec<Arc<Dispatcher>>,
    probes: Arc<Probes>,
    permits: Semaphore,
}

impl Health {
    /// Starts a task for each endpoint with a probe, then ticks for ever.
    async fn watch(self: &Rc<Self>) {
        let mut watched = Vec::new();
        for (index, upstream) in self.config.upstreams.iter().enumerate() {
            for endpoint in 0..upstream.endpoints.len() {
                let watch = self.endpoint(index, endpoint);
                if upstream.probe.is_some() {
                    tokio::task::spawn_local(watch.clone().probe_for_ever());
                }
                watched.push((watch, None::<tokio::task::JoinHandle<()>>));
            }
        }
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = clock::now();
            self.dispatchers.iter().for_each(|it| it.tick(now));
            for (watch, trying) in &mut watched {
                let is_trying = trying.as_ref().is_some_and(|task| !task.is_finished());
                if watch.wants_connection() && !is_trying {
                    *trying = Some(tokio::task::spawn_local(watch.clone().try_until_reached()));
                }
            }
        }
    }

    fn endpoint(self: &Rc<Self>, upstream: usize, endpoint: usize) -> Watch {
        Watch {
            health: self.clone(),
            upstream,
            endpoint,
        }
    }
}

/// One endpoint, watched.
#[derive(Clone)]
struct Watch {
    health: Rc<Health>,
    upstream: usize,
    endpoint: usize,
}

impl Watch {
    fn upstream(&self) -> &Upstream {
        &self.health.config.upstreams[self.upstream]
    }

    fn config(&self) -> &Endpoint {
        &self.upstream().endpoints[self.endpoint]
    }

    fn dispatcher(&self) -> &Dispatcher {
        &self.health.dispatchers[self.upstream]
    }

    fn wants_connection(&self) -> bool {
        self.dispatcher().wants_connection(self.endpoint)
    }

    fn log(&self, change: Option<Change>, detail: Option<&str>) {
        if let Some(change) = change {
            log_change(&self.upstream().name, &self.config().name, &change, detail);
        }
    }

    /// The first probe comes anywhere within the interval, later ones an
    /// interval apart, more or less: those of many endpoints stay spread out.
    async fn probe_for_ever(self) {
        let Some(settings) = &self.upstream().probe else {
            return;
        };
        let mut due = Instant::now() + settings.interval.mul_f64(fastrand::f64());
        // Said once, until a probe could be made again.
        let mut is_lack_known = false;
        loop {
            sleep_until(due.into()).await;
            match self.probe_once(settings).await {
                Err(failure) if failure.is_local() => {
                    if !std::mem::replace(&mut is_lack_known, true) {
                        let (upstream, name) = (&self.upstream().name, &self.config().name);
                        tracing::error!(
                            "upstream {upstream}: endpoint {name} can't be probed: {failure}"
                        );
                    }
                }
                outcome => {
                    is_lack_known = false;
                    self.note(outcome);
                }
            }
            let pause = settings
                .interval
                .mul_f64(1.0 - JITTER + 2.0 * JITTER * fastrand::f64());
            // Where probes can't keep up, none is made up for.
            due = (due + pause).max(Instant::now());
        }
    }

    async fn probe_once(&self, settings: &Probe) -> Result<Passed, ProbeFailure> {
        // An error means that the semaphore is closed, which it never is.
        let _permit = self.health.permits.acquire().await;
        let endpoint = self.config();
        let begun = Instant::now();
        let outcome = probe(&endpoint.address, settings, &endpoint.name).await;
        let (took, answer) = match &outcome {
            Ok(passed) => (passed.elapsed, passed.to_string()),
            Err(failure) => (begun.elapsed(), failure.to_string()),
        };
        let (end, status) = end_of(&outcome);
        let probes = &self.health.probes;
        probes.note(self.upstream, self.endpoint, end, took, status, answer);
        outcome
    }

    fn note(&self, outcome: Result<Passed, ProbeFailure>) {
        let health = &self.upstream().health;
        let change = self
            .dispatcher()
            .probed(self.endpoint, outcome.is_ok(), clock::now());
        let detail = match outcome {
            Ok(passed) => format!(
                "{}, {}",
                counted(u64::from(health.rise), "probe"),
                shown(passed.elapsed)
            ),
            Err(failure) => {
                let (upstream, name) = (&self.upstream().name, &self.config().name);
                tracing::debug!("upstream {upstream}: endpoint {name}: probe failed: {failure}");
                format!(
                    "{}: {failure}",
                    counted(u64::from(health.fall), "failed probe")
                )
            }
        };
        self.log(change, Some(&detail));
    }

    /// Tries to connect, at first often, until that succeeds or somebody else
    /// has found that it does.
    async fn try_until_reached(self) {
        let mut pause = FIRST_TRY;
        loop {
            sleep(pause).await;
            if !self.wants_connection() {
                return;
            }
            let connected = {
                let _permit = self.health.permits.acquire().await;
                let limit = self.upstream().timeouts.connect;
                let connecting = connect_when_there_is_room(&self.config().address, || true);
                timeout(limit, connecting).await
            };
            if matches!(connected, Ok(Ok(_))) {
                let change = self.dispatcher().reached(self.endpoint, clock::now());
                return self.log(change, None);
            }
            let why = match connected {
                Ok(Err(error)) if is_unreachable(&error) => Some(reason(&error)),
                // For want of something here.
                Ok(_) => None,
                Err(_) => Some("it did not answer in time".to_owned()),
            };
            if why.is_some() {
                let now = clock::now();
                let change = self.dispatcher().note_unreachable(self.endpoint, now);
                self.log(change, why.as_deref());
            }
            pause = (pause * 2).min(LONGEST_TRY);
        }
    }
}

/// In milliseconds: whole ones from 10 on.
fn shown(elapsed: Duration) -> String {
    let ms = elapsed.as_secs_f64() * 1000.0;
    format!("{ms:.*} ms", usize::from(ms < 10.0))
}

/// How a probe ended, and the status of the answer.
fn end_of(outcome: &Result<Passed, ProbeFailure>) -> (ProbeEnd, Option<u16>) {
    let failure = match outcome {
        Ok(Passed { status: None, .. }) => return (ProbeEnd::Connected, None),
        Ok(Passed { status, .. }) => return (ProbeEnd::Answered, *status),
        Err(failure) if failure.is_local() => return (ProbeEnd::Local, None),
        Err(failure) => failure,
    };
    match failure {
        ProbeFailure::Connect(_) => (ProbeEnd::ConnectFailed, None),
        ProbeFailure::Timeout { awaited, .. } => match awaited {
            Awaited::Connection => (ProbeEnd::ConnectTimeout, None),
            Awaited::Answer => (ProbeEnd::AnswerTimeout, None),
        },
        ProbeFailure::Broken(_)
        | ProbeFailure::Closed
        | ProbeFailure::Head(_)
        | ProbeFailure::Body(_) => (ProbeEnd::Malformed, None),
        ProbeFailure::Status(status) => (ProbeEnd::Status, Some(*status)),
        ProbeFailure::Content { .. } => (ProbeEnd::Content, None),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::task::Waker;

    use evenkeel_policy::balance::{Balance, Balancer};
    use evenkeel_policy::dispatch::{Acquired, Asking};
    use evenkeel_policy::endpoint::Flag;
    use evenkeel_policy::health::{Guard, Observed};
    use evenkeel_testkit::deadline::until;
    use socket2::{Domain, Socket, Type};

    use super::*;
    use crate::config::{NameLookup, load_text};
    use crate::upstream::dispatcher;

    #[test]
    fn elapsed_times() {
        for (us, expected) in [(400, "0.4 ms"), (9_940, "9.9 ms"), (12_340, "12 ms")] {
            assert_eq!(shown(Duration::from_micros(us)), expected);
        }
    }

    /// Without a probe: exchanges said that it can't be reached.
    #[test]
    fn an_unreachable_endpoint_is_tried_until_it_opens() {
        // Bound, so that nobody else gets the port, and refused until it listens.
        let port = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        port.bind(&any.into()).unwrap();
        let address = port.local_addr().unwrap().as_socket().unwrap();
        let text = format!(
            "[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\n\
             [upstream.app]\nendpoints = ['{address}']"
        );
        let config = Arc::new(
            load_text("test.toml", &text, NameLookup::Skip)
                .unwrap()
                .config,
        );
        let app = Arc::new(dispatcher(&config.upstreams[0]));
        let probes = Arc::new(Probes::new(&config));
        let starting = Starting {
            lacking: std::sync::mpsc::channel().0,
            phase: tokio::sync::watch::channel(crate::runtime::Phase::Serve).1,
        };
        let health = start(config, vec![app.clone()], probes, starting, ()).unwrap();
        let mut guard = Guard::default();
        let is_unreachable = || app.states()[0].has(Flag::Unreachable);
        until("it counts as unreachable", || {
            let mut balancer = Balancer::new(Balance::First, 0);
            let now = clock::now();
            let asking = Asking {
                tried: &[],
                key: 0,
                lane: None,
                priority: 0,
                arrived: now,
                now,
            };
            if let Acquired::Reserved { reservation, .. } =
                app.acquire(&mut balancer, &asking, Waker::noop())
            {
                app.report(&mut guard, reservation, Observed::Unreachable, now);
                app.release(reservation, None, || now);
            }
            is_unreachable()
        });
        // Nobody listens: it stays so over several tries.
        let noted = Instant::now();
        until("half a second has passed", || {
            assert!(is_unreachable());
            noted.elapsed() > Duration::from_millis(500)
        });
        port.listen(1).unwrap();
        until("it is reachable again", || !is_unreachable());
        health.stop();
    }
}
