//! Health of endpoints: a duty of the control thread, one for the process whatever
//! the number of workers.
//!
//! It probes endpoints, tries whether those are back that could not be
//! connected to, and lets time pass for every upstream. What it learns goes to
//! the dispatchers, which all workers share; every change is a line of the
//! event log.
//!
//! A probe or a try of an endpoint with a limit takes one of its slots, as an
//! exchange does: see [`Watch::admit`].

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_policy::dispatch::Dispatcher;
use evenkeel_policy::endpoint::{EndpointState, Flag, Reservation};
use evenkeel_policy::health::Change;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::permits::Permits;
use crate::config::{Config, Endpoint, Probe, Upstream};
use crate::metrics::quantity::counted;
use crate::net::clock;
use crate::net::connect::{connect_when_there_is_room, is_unreachable, reason};
use crate::net::lacks_descriptor;
use crate::net::timer::TICK;
use crate::observe::counters::Counters;
use crate::observe::inquiry::{Inquiry, make_room};
use crate::observe::probes::{ProbeEnd, Probes};
use crate::upstream::change::log_change;
use crate::upstream::probe::{Awaited, Passed, ProbeFailure, probe, probed_address};
use crate::upstream::{BACKLOG_FULL, SharedPools};

/// Probes at once of one upstream; of all together twice as many. As many tries
/// beside them.
const MOST_AT_ONCE: usize = 256;
/// Time between two looks whether a busy endpoint has a slot for a probe.
const SLOT_STEP: Duration = Duration::from_millis(10);
/// Part of the interval by which a probe comes earlier or later.
const JITTER: f64 = 0.1;
/// Time from a failed connection to the first try, and between later ones.
const FIRST_TRY: Duration = Duration::from_millis(100);
const LONGEST_TRY: Duration = Duration::from_secs(1);

/// What is watched, and where it is noted what was seen.
#[derive(Debug)]
pub(super) struct Watched {
    pub config: Arc<Config>,
    /// Per upstream.
    pub dispatchers: Vec<Arc<Dispatcher>>,
    /// Per upstream.
    pub pools: Vec<SharedPools>,
    /// Per worker.
    pub counters: Vec<Arc<Counters>>,
    /// Per worker.
    pub inquiries: Vec<Inquiry>,
    pub probes: Arc<Probes>,
}

/// Watches for ever, in local tasks beside this one.
pub(super) async fn watch(watched: Watched) {
    let upstreams = watched.config.upstreams.len();
    let health = Rc::new(Health {
        watched,
        probe_permits: Permits::new(MOST_AT_ONCE, upstreams),
        try_permits: Permits::new(MOST_AT_ONCE, upstreams),
    });
    health.watch().await;
}

/// What the tasks share.
struct Health {
    watched: Watched,
    probe_permits: Permits,
    try_permits: Permits,
}

impl Health {
    /// Starts a task for each endpoint with a probe, then ticks for ever.
    async fn watch(self: &Rc<Self>) {
        let mut watched = Vec::new();
        for (index, upstream) in self.watched.config.upstreams.iter().enumerate() {
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
            let dispatchers = &self.watched.dispatchers;
            dispatchers.iter().for_each(|it| it.tick(now));
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
            state: self.watched.dispatchers[upstream].members().endpoints()[endpoint].clone(),
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
    state: Arc<EndpointState>,
}

/// How a probe or a try comes to the endpoint.
enum Admission<'a> {
    /// It has no limit there.
    Unlimited,
    /// With a slot, which is given back when this is dropped.
    Slot { _slot: Slot<'a> },
    /// All slots were busy for too long: on one connection beyond the limit.
    Beyond,
    /// All slots were busy for too long, but an exchange was answered meanwhile.
    Answered,
}

/// One of the endpoint's slots; given back when dropped.
struct Slot<'a> {
    watch: &'a Watch,
    reservation: Reservation,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let dispatcher = self.watch.dispatcher();
        dispatcher.release(self.watch.state(), self.reservation, None, clock::now);
    }
}

/// A slot kept from exchanges until this is dropped: a busy endpoint would never
/// have one else.
struct SetAside<'a>(&'a Watch);

impl<'a> SetAside<'a> {
    fn new(watch: &'a Watch) -> Self {
        watch.state().set_aside();
        SetAside(watch)
    }
}

impl Drop for SetAside<'_> {
    fn drop(&mut self) {
        self.0.state().put_back();
        self.0.dispatcher().serve(clock::now());
    }
}

/// What a look at an endpoint showed.
enum Seen {
    /// A probe did.
    Probe(Result<Passed, ProbeFailure>),
    /// It had no slot for a probe, but answered an exchange.
    Exchange,
}

impl Watch {
    fn upstream(&self) -> &Upstream {
        &self.health.watched.config.upstreams[self.upstream]
    }

    fn config(&self) -> &Endpoint {
        &self.upstream().endpoints[self.endpoint]
    }

    fn dispatcher(&self) -> &Dispatcher {
        &self.health.watched.dispatchers[self.upstream]
    }

    fn state(&self) -> &EndpointState {
        &self.state
    }

    fn wants_connection(&self) -> bool {
        self.dispatcher().wants_connection(&self.state)
    }

    /// Exchanges that the endpoint answered well, of all workers.
    fn answered(&self) -> u64 {
        let workers = self.health.watched.counters.iter();
        let of_worker = |counters: &Arc<Counters>| -> u64 {
            let endpoint = &counters.endpoints[self.upstream][self.endpoint];
            let answers = endpoint.get().map(|it| &it.status[1..5]);
            answers.into_iter().flatten().map(|it| it.value()).sum()
        };
        workers.map(of_worker).sum()
    }

    /// Takes a slot where the endpoint has a limit, and has an idle connection
    /// closed where that stands in the way of a new one. Where all slots are busy,
    /// the next one that is given back is for it; it waits for `patience`.
    ///
    /// Invariant: connections to the endpoint are at most its limit, those of
    /// probes and tries included, but for one where no slot came free in that
    /// time.
    async fn admit(&self, patience: Duration) -> Admission<'_> {
        if self.health.watched.pools[self.upstream][self.endpoint].is_none() {
            return Admission::Unlimited;
        }
        if let Some(slot) = self.try_slot() {
            return Admission::Slot { _slot: slot };
        }
        let _set_aside = SetAside::new(self);
        let (answered, until) = (self.answered(), Instant::now() + patience);
        loop {
            sleep(SLOT_STEP).await;
            if let Some(slot) = self.try_slot() {
                return Admission::Slot { _slot: slot };
            }
            if Instant::now() >= until {
                return match self.answered() > answered {
                    true => Admission::Answered,
                    false => Admission::Beyond,
                };
            }
        }
    }

    fn try_slot(&self) -> Option<Slot<'_>> {
        let reservation = self.state.try_reserve_for_probe()?;
        let slot = Slot {
            watch: self,
            reservation,
        };
        if let Some(pool) = &self.health.watched.pools[self.upstream][self.endpoint] {
            drop(pool.make_room(self.state()));
        }
        Some(slot)
    }

    fn log(&self, change: Option<Change>, detail: Option<&str>) {
        if let Some(change) = change {
            log_change(&self.upstream().name, &self.config().name, &change, detail);
        }
    }

    /// The first probe comes at once, or anywhere within the interval where the
    /// endpoint takes part without one. Later ones come an interval apart, more or
    /// less: those of many endpoints are spread out, and stay so.
    async fn probe_for_ever(self) {
        let Some(settings) = &self.upstream().probe else {
            return;
        };
        let mut due = Instant::now();
        let mut spread = Some(settings.interval.mul_f64(fastrand::f64()));
        if !self.state().has(Flag::Unprobed) {
            due += spread.take().unwrap_or_default();
        }
        // Said once, until a probe could be made again.
        let mut is_lack_known = false;
        loop {
            sleep_until(due.into()).await;
            match self.look(settings).await {
                Seen::Probe(Err(failure)) if failure.is_local() => {
                    if !std::mem::replace(&mut is_lack_known, true) {
                        let (upstream, name) = (&self.upstream().name, &self.config().name);
                        tracing::error!(
                            "upstream {upstream}: endpoint {name} can't be probed: {failure}"
                        );
                    }
                }
                seen => {
                    is_lack_known = false;
                    self.note(seen);
                }
            }
            let jittered = || {
                let jitter = 1.0 - JITTER + 2.0 * JITTER * fastrand::f64();
                settings.interval.mul_f64(jitter)
            };
            let pause = match self.state().has(Flag::Unprobed) {
                // None could be made, and nothing goes there before one was.
                true => settings.interval.min(LONGEST_TRY),
                false => spread.take().unwrap_or_else(jittered),
            };
            // Where probes can't keep up, none is made up for.
            due = (due + pause).max(Instant::now());
        }
    }

    /// Probes the endpoint, unless all its slots are busy and its exchanges show
    /// that it is well.
    async fn look(&self, settings: &Probe) -> Seen {
        let _permit = self.health.probe_permits.acquire(self.upstream).await;
        let endpoint = self.config();
        let admission = match probed_address(&endpoint.address, settings) == endpoint.address {
            true => self.admit(settings.interval).await,
            // A port that takes no exchanges.
            false => Admission::Unlimited,
        };
        let probes = &self.health.watched.probes;
        if matches!(admission, Admission::Answered) {
            let answer = "no slot was free, but an exchange was answered".to_owned();
            let (end, took) = (ProbeEnd::Exchange, Duration::ZERO);
            probes.note(self.upstream, self.endpoint, end, took, None, answer);
            return Seen::Exchange;
        }
        let begun = Instant::now();
        let mut outcome = probe(&endpoint.address, settings, &endpoint.name).await;
        let is_lacking = outcome
            .as_ref()
            .is_err_and(ProbeFailure::is_out_of_descriptors);
        if is_lacking && make_room(&self.health.watched.inquiries).await {
            outcome = probe(&endpoint.address, settings, &endpoint.name).await;
        }
        let (took, answer) = match &outcome {
            Ok(passed) => (passed.elapsed, passed.to_string()),
            Err(failure) => (begun.elapsed(), failure.to_string()),
        };
        let (end, status) = end_of(&outcome);
        probes.note(self.upstream, self.endpoint, end, took, status, answer);
        Seen::Probe(outcome)
    }

    fn note(&self, seen: Seen) {
        let health = &self.upstream().health;
        let is_first = self.state().has(Flag::Unprobed);
        let passed = !matches!(seen, Seen::Probe(Err(_)));
        let change = self.dispatcher().probed(&self.state, passed, clock::now());
        let count = |in_row: u32, what| match is_first {
            true => counted(1, what),
            false => counted(u64::from(in_row), what),
        };
        let (upstream, name) = (&self.upstream().name, &self.config().name);
        let detail = match seen {
            Seen::Probe(Ok(passed)) => {
                if is_first {
                    tracing::debug!("upstream {upstream}: endpoint {name}: the first probe passed");
                }
                let took = shown(passed.elapsed);
                format!("{}, {took}", count(health.rise, "probe"))
            }
            Seen::Probe(Err(failure)) => {
                tracing::debug!("upstream {upstream}: endpoint {name}: probe failed: {failure}");
                format!("{}: {failure}", count(health.fall, "failed probe"))
            }
            Seen::Exchange => {
                let probes = count(health.rise, "probe");
                format!("{probes}, an exchange in place of the last")
            }
        };
        self.log(change, Some(&detail));
    }

    /// As exchanges note it: see [`Dispatcher::note_full_backlog`].
    fn note_full_backlog(&self, timeout: Duration) {
        let now = clock::now();
        let change = self
            .dispatcher()
            .note_full_backlog(&self.state, timeout, now);
        self.log(change, Some(BACKLOG_FULL));
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
            let limit = self.upstream().timeouts.connect;
            let connected = {
                let _permit = self.health.try_permits.acquire(self.upstream).await;
                // Exchanges there are in flight on older connections.
                let _admission = self.admit(LONGEST_TRY).await;
                let may_ask_again = || {
                    self.note_full_backlog(limit);
                    true
                };
                let connecting = connect_when_there_is_room(&self.config().address, may_ask_again);
                // The connection is closed before its slot is given back.
                timeout(limit, connecting).await.map(|it| it.map(drop))
            };
            if matches!(connected, Ok(Ok(()))) {
                let change = self.dispatcher().reached(&self.state, clock::now());
                return self.log(change, None);
            }
            let why = match connected {
                Ok(Err(error)) if is_unreachable(&error) => Some(reason(&error)),
                Ok(Err(error)) if lacks_descriptor(&error) => {
                    make_room(&self.health.watched.inquiries).await;
                    None
                }
                // For want of something here.
                Ok(_) => None,
                // A backlog that stays full has been counted.
                Err(_) if self.config().address.is_unix() => None,
                Err(_) => Some("it did not answer in time".to_owned()),
            };
            if why.is_some() {
                let now = clock::now();
                let change = self.dispatcher().note_unreachable(&self.state, now);
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

    use evenkeel_policy::balance::Balance;
    use evenkeel_policy::dispatch::{Acquired, Asking};
    use evenkeel_policy::endpoint::Flag;
    use evenkeel_policy::members::Chooser;
    use evenkeel_policy::observation::Observed;
    use evenkeel_testkit::deadline::until;
    use socket2::{Domain, Socket, Type};
    use tokio::sync::oneshot;

    use super::*;
    use crate::config::{NameLookup, load_text};
    use crate::net::poller::Poller;
    use crate::upstream::{dispatcher, shared_pools};

    #[test]
    fn elapsed_times() {
        for (us, expected) in [(400, "0.4 ms"), (9_940, "9.9 ms"), (12_340, "12 ms")] {
            assert_eq!(shown(Duration::from_micros(us)), expected);
        }
    }

    /// An endpoint, watched; `keys` are further ones of it.
    fn limited(keys: &str) -> Watch {
        let text = format!(
            "[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\n\
             [upstream.app]\nendpoints = [{{ address = '127.0.0.1:1'{keys} }}]"
        );
        let config = load_text("test.toml", &text, NameLookup::Skip).unwrap();
        let config = Arc::new(config.config);
        let app = &config.upstreams[0];
        let health = Health {
            watched: Watched {
                dispatchers: vec![Arc::new(dispatcher(app))],
                pools: vec![shared_pools(app)],
                counters: vec![Arc::new(Counters::new(&config))],
                inquiries: Vec::new(),
                probes: Arc::new(Probes::new(&config)),
                config,
            },
            probe_permits: Permits::new(1, 1),
            try_permits: Permits::new(1, 1),
        };
        Rc::new(health).endpoint(0, 0)
    }

    /// How a probe comes to the endpoint while `meanwhile` happens.
    fn admitted<'a>(watch: &'a Watch, meanwhile: impl FnOnce()) -> Admission<'a> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let admitted = watch.admit(Duration::from_millis(50));
            // The first is polled first.
            tokio::join!(biased; admitted, async { meanwhile() }).0
        })
    }

    #[test]
    fn a_probe_takes_a_slot_where_there_are_any() {
        let unlimited = limited("");
        let admission = admitted(&unlimited, || {});
        assert!(matches!(admission, Admission::Unlimited));
        let watch = limited(", max_in_flight = 1");
        let admission = admitted(&watch, || {});
        assert!(matches!(admission, Admission::Slot { .. }));
        assert_eq!(watch.state().in_flight(), 1);
        drop(admission);
        assert_eq!(watch.state().in_flight(), 0);
    }

    #[test]
    fn a_probe_that_waits_gets_the_next_slot() {
        let watch = limited(", max_in_flight = 1");
        let taken = watch.state().try_reserve_for_probe().expect("it is free");
        let admission = admitted(&watch, || {
            watch
                .dispatcher()
                .release(watch.state(), taken, None, clock::now);
            assert!(!watch.state().has_room(), "it is the probe's");
        });
        assert!(matches!(admission, Admission::Slot { .. }));
        drop(admission);
        assert!(watch.state().has_room());
    }

    #[test]
    fn a_probe_without_a_slot_goes_by_exchanges_or_beyond_the_limit() {
        let watch = limited(", max_in_flight = 1");
        let taken = watch.state().try_reserve_for_probe().expect("it is free");
        let counters = &watch.health.watched.counters[0];
        let status = &counters.endpoints[0][0].get_or_init().status;
        status[2].add(1);
        let admission = admitted(&watch, || status[5].add(1));
        assert!(matches!(admission, Admission::Beyond));
        let admission = admitted(&watch, || status[4].add(1));
        assert!(matches!(admission, Admission::Answered));
        watch
            .dispatcher()
            .release(watch.state(), taken, None, clock::now);
        assert!(watch.state().has_room());
    }

    /// Watches on a thread of its own until what this gives is dropped.
    fn watch_meanwhile(watched: Watched) -> oneshot::Sender<()> {
        let (stop, stopped) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let poller = Poller::of_this_thread().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    () = watch(watched) => {}
                    failed = poller.serve() => failed.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        stop
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
        let watched = Watched {
            dispatchers: vec![app.clone()],
            pools: vec![shared_pools(&config.upstreams[0])],
            counters: Vec::new(),
            inquiries: Vec::new(),
            probes,
            config,
        };
        let stop = watch_meanwhile(watched);
        let mut chooser = Chooser::new(&app, Balance::First, 0);
        let endpoint = chooser.members().endpoints()[0].clone();
        let is_unreachable = || endpoint.has(Flag::Unreachable);
        until("it counts as unreachable", || {
            let now = clock::now();
            let asking = Asking {
                tried: &[],
                key: 0,
                pinned_to: None,
                lane: None,
                priority: 0,
                arrived: now,
                now,
            };
            if let Acquired::Reserved { reservation, .. } =
                app.acquire(&mut chooser, &asking, Waker::noop())
            {
                let observed = Observed::Unreachable;
                app.report(&mut chooser, &endpoint, reservation, observed, now);
                app.release(&endpoint, reservation, None, || now);
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
        drop(stop);
    }
}
