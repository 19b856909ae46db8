//! The operator's side: the status page in all its forms, the metrics, and the control socket.
//!
//! Tasks of the control thread. They read the figures that the workers write
//! (`observe::figures`), and change endpoints through the dispatchers that the workers share.
//!
//! Invariant: no task blocks the control thread for milliseconds, as it also probes endpoints.
//! All figures are read and written aside: see `Admin::aside`.

mod control;
pub mod csv;
mod haproxy;
mod http;
pub mod metrics;
mod monitor;
mod operate;
mod order;
mod page;
mod purge;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::config::machine::{self, Obstacle};
use crate::discovery::Discovery;
use crate::lifecycle::{DrainMode, Phase};
use crate::net::Address;
use crate::net::given::{InheritedSockets, SocketCopies};
use crate::net::listen::{self, AcceptTurns, Accepting, BoundListener, Listener, Peer, SocketFile};
use crate::observe::figures::{CurrentSources, Figures, Sources};
use crate::observe::limits::{self, CountsBegin, LimitWatch};
use monitor::{Monitor, SeenOfAll};
use order::Orders;

pub use control::MAX_ROWS;
pub use order::{NewEndpoints, ReloadOptions, confirm_time};
pub(crate) use order::{Order, Outcome};

/// Length of the accept queue.
const BACKLOG: u32 = 128;

/// The kernel's settings for accepting connections of the status page.
pub(crate) const ACCEPTING: Accepting = Accepting {
    backlog: BACKLOG,
    is_deferred: false,
};

/// Pause after a failed accept, for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The shared state of all parts.
#[derive(Debug)]
struct Admin {
    sources: CurrentSources,
    orders: Orders,
    discovery: Arc<Discovery>,
    phase: watch::Receiver<Phase>,
    monitor: Monitor,
    turns: Turns,
}

/// The party that work aside is for.
#[derive(Debug, Clone, Copy)]
enum Requester {
    /// The status page, in all its forms.
    Page,
    /// The control socket.
    Control,
    /// The looks at the figures that run by themselves.
    Watch,
}

/// For each asker a turn: one piece of its work runs at a time, in order of arrival.
///
/// Invariant: clients of the status page do not delay the control socket.
#[derive(Debug)]
struct Turns {
    page: Arc<Semaphore>,
    control: Arc<Semaphore>,
    watch: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        let one = || Arc::new(Semaphore::new(1));
        Turns {
            page: one(),
            control: one(),
            watch: one(),
        }
    }
}

/// The sockets, bound before the thread starts.
#[derive(Debug, Default)]
pub struct Sockets {
    status: Option<BoundListener>,
    control: Option<BoundListener>,
}

/// The files of Unix sockets among the sockets.
#[derive(Debug)]
pub struct SocketFiles {
    /// Of the status page.
    pub status: Option<SocketFile>,
    /// Of the control socket.
    pub control: Option<SocketFile>,
    /// Copies of the status page's socket.
    pub status_copies: Option<SocketCopies>,
}

impl Sockets {
    /// The address of the status page, if there is one.
    pub fn status_address(&self) -> Option<Address> {
        self.status.as_ref().map(|it| it.address.clone())
    }
}

/// The name of the status page among inherited sockets: no listener has it.
pub(crate) const STATUS_PAGE: &str = "";

/// Binds the sockets of the configuration, or takes the inherited ones. The control socket's path
/// may still belong to the process that this one replaces; then a second socket is bound beside
/// it.
///
/// # Errors
/// The same as for [`listen::bind`], with the socket in the error's text.
pub(crate) fn bind(
    config: &crate::config::Config,
    given: &mut InheritedSockets,
    control_of_another: Option<&Address>,
) -> io::Result<(Sockets, SocketFiles)> {
    let named = |what: &str, address: &Address, error: io::Error| {
        let what = format!("{what}: bind {address}");
        machine::explained(&what, &error, Obstacle::of(address))
    };
    let mut sockets = Sockets {
        status: None,
        control: None,
    };
    let mut files = SocketFiles {
        status: None,
        control: None,
        status_copies: None,
    };
    if let Some(settings) = &config.status {
        // The process before may have the port at another address.
        let is_beside = given
            .iter()
            .any(|it| it.address().shares_port(&settings.bind));
        let bound = given.bind(STATUS_PAGE, &settings.bind, ACCEPTING, 1, || {
            if is_beside {
                listen::bind_beside(&settings.bind, ACCEPTING, 1)
            } else {
                listen::bind(&settings.bind, ACCEPTING, 1)
            }
        });
        let mut bound = bound.map_err(|error| named("status page", &settings.bind, error))?;
        files.status_copies = Some(SocketCopies::of(&bound)?);
        sockets.status = bound.listeners.pop();
        files.status = bound.file;
    }
    if let Some(address @ Address::Unix(path)) = &config.server.control {
        let bound = if control_of_another == Some(address) {
            listen::aside(path).and_then(|path| listen::bind_private(&path, BACKLOG))
        } else {
            listen::bind_private(path, BACKLOG)
        };
        let bound = bound.map_err(|error| named("control socket", address, error))?;
        sockets.control = Some(bound.0);
        files.control = Some(bound.1);
    }
    Ok((sockets, files))
}

/// The status page and the control socket, registered with this thread's event loop.
#[derive(Debug)]
pub(crate) struct Service {
    admin: Arc<Admin>,
    status: Option<Listener>,
    control: Option<Listener>,
}

impl Service {
    /// Registers the sockets. Accepts nothing yet.
    ///
    /// # Errors
    /// The process has no free descriptor.
    pub fn new(
        sources: CurrentSources,
        discovery: Arc<Discovery>,
        sockets: Sockets,
        orders: Orders,
        phase: watch::Receiver<Phase>,
    ) -> io::Result<Self> {
        Ok(Service {
            admin: Arc::new(Admin {
                monitor: Monitor::new(&sources.get()),
                sources,
                orders,
                discovery,
                phase,
                turns: Turns::default(),
            }),
            status: sockets.status.map(Listener::register).transpose()?,
            control: sockets.control.map(Listener::register).transpose()?,
        })
    }

    /// Serves forever, in local tasks beside this one. `begin` says whether counts are inherited.
    pub async fn run(self, begin: CountsBegin) {
        let Service {
            admin,
            status,
            control,
        } = self;
        if status.is_some() || control.is_some() {
            tokio::task::spawn_local(admin.clone().watch_figures());
        }
        if let Some(listener) = status {
            tokio::task::spawn_local(http::serve(admin.clone(), listener));
        }
        if let Some(listener) = control {
            tokio::task::spawn_local(control::serve(admin.clone(), listener));
        }
        admin.watch_limits(begin).await;
    }
}

/// A listener that accepts all connections, after any delay.
struct Acceptor {
    what: &'static str,
    listener: Listener,
    is_failing: bool,
    turns: AcceptTurns,
}

impl Acceptor {
    fn new(what: &'static str, listener: Listener) -> Self {
        Acceptor {
            what,
            listener,
            is_failing: false,
            turns: AcceptTurns::default(),
        }
    }

    /// The next connection's socket.
    async fn accept(&mut self) -> (OwnedFd, Peer) {
        self.turns.give().await;
        self.next().await
    }

    /// The next connection's socket. Once `draining` ends, `None` if the kernel has none ready.
    async fn accept_until<F: Future<Output = ()>>(
        &mut self,
        draining: impl Fn() -> F,
    ) -> Option<(OwnedFd, Peer)> {
        self.turns.give().await;
        loop {
            tokio::select! {
                biased;
                accepted = self.next() => return Some(accepted),
                () = draining() => {}
            }
            if !self.turns.look_again().await {
                // Other tasks have run since the event loop last looked.
                let accepted = self.listener.accept_now()?.ok()?;
                let peer = accepted.peer;
                return Some((accepted.into_socket(), peer));
            }
        }
    }

    /// The next connection's socket. Logs the first failure of a series.
    ///
    /// # Cancellation
    /// No connection is lost.
    async fn next(&mut self) -> (OwnedFd, Peer) {
        let what = self.what;
        loop {
            match poll_fn(|cx| self.listener.poll_accept(cx)).await {
                Ok(accepted) => {
                    let peer = accepted.peer;
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!("{what}: accepting again");
                    }
                    return (accepted.into_socket(), peer);
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.is_failing, true) {
                        tracing::warn!("{what}: accepting is paused: {error}");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl Turns {
    /// Runs work on a thread beside this one, which gives way to the workers.
    ///
    /// # Cancellation
    /// Work that has begun still runs to its end, and keeps its turn until then.
    async fn aside<T: Send + 'static>(
        &self,
        asker: Requester,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let turn = match asker {
            Requester::Page => &self.page,
            Requester::Control => &self.control,
            Requester::Watch => &self.watch,
        };
        let turn = turn.clone().acquire_owned().await;
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        match done.await {
            Ok(done) => done,
            // Never cancelled, as nobody else has its handle.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

impl Admin {
    /// The present sources of figures: see [`CurrentSources::get`].
    fn sources(&self) -> Arc<Sources> {
        self.sources.get()
    }

    /// The findings of the looks, for these figures.
    fn seen_of(&self, figures: &Figures) -> SeenOfAll {
        self.monitor
            .seen_of(figures, self.sources().started.instant)
    }

    /// Runs work of milliseconds on a thread beside this one: see [`Turns::aside`].
    async fn aside<T: Send + 'static>(
        self: &Arc<Self>,
        asker: Requester,
        work: impl FnOnce(&Admin) -> T + Send + 'static,
    ) -> T {
        let admin = self.clone();
        self.turns.aside(asker, move || work(&admin)).await
    }

    /// Reports reached limits in the event log, at most once a second.
    async fn watch_limits(self: Arc<Self>, begin: CountsBegin) {
        let mut watch = LimitWatch::new(&self.sources(), begin);
        let mut looks = interval(limits::LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let look = move |admin: &Admin| {
                watch.look(&admin.sources(), Instant::now());
                watch
            };
            watch = self.aside(Requester::Watch, look).await;
        }
    }

    /// Looks at the figures once a second, with or without viewers.
    async fn watch_figures(self: Arc<Self>) {
        let mut ticks = interval(monitor::EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let look = |admin: &Admin| {
                let phase = *admin.phase.borrow();
                admin.monitor.look(&admin.sources(), phase);
            };
            self.aside(Requester::Watch, look).await;
        }
    }

    fn is_draining(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Drain { .. })
    }

    /// Waits until another process has taken over.
    async fn handed_over(&self) {
        let is_handed_over = |phase: &Phase| {
            let Phase::Drain { manner, .. } = phase else {
                return false;
            };
            matches!(manner, DrainMode::HandedOver { .. })
        };
        let mut phase = self.phase.clone();
        if phase.wait_for(is_handed_over).await.is_err() {
            // Nobody is left to report it.
            std::future::pending().await
        }
    }

    /// Waits until the process drains.
    async fn draining(&self) {
        let mut phase = self.phase.clone();
        let drains = phase.wait_for(|phase| matches!(phase, Phase::Drain { .. }));
        // An error means that nobody is left to report it.
        let _ = drains.await;
    }
}

/// One of a limited number of places, held while it lives.
struct ConnectionPlace(Rc<Cell<usize>>);

impl ConnectionPlace {
    /// Takes a place, unless `most` are taken.
    fn take(count: &Rc<Cell<usize>>, most: usize) -> Option<Self> {
        if count.get() >= most {
            return None;
        }
        count.set(count.get() + 1);
        Some(ConnectionPlace(count.clone()))
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream};

    use super::*;
    use crate::net::poller::Poller;

    const CLIENTS: usize = 40;

    /// Runs this with a listener on loopback, on its own event loop.
    fn on_loopback(test: impl AsyncFnOnce(Acceptor, SocketAddr)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build_local(tokio::runtime::LocalOptions::default())
            .unwrap();
        let poller = Poller::of_this_thread().unwrap();
        let accepting = Accepting {
            backlog: BACKLOG,
            is_deferred: false,
        };
        let loopback = Address::Tcp(([127, 0, 0, 1], 0).into());
        let mut bound = listen::bind(&loopback, accepting, 1).unwrap();
        let bound = bound.listeners.pop().unwrap();
        let Address::Tcp(address) = bound.address else {
            unreachable!("it was bound to one");
        };
        let acceptor = Acceptor::new("test", Listener::register(bound).unwrap());
        runtime.block_on(async {
            tokio::select! {
                failed = poller.serve() => failed.unwrap(),
                () = test(acceptor, address) => {}
            }
        });
    }

    /// A long answer of the page blocks neither the thread nor the control socket.
    #[test]
    fn work_aside_keeps_nobody_else() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let turns = Turns::default();
        let (finish, may_finish) = std::sync::mpsc::channel();
        runtime.block_on(async {
            let long = turns.aside(Requester::Page, move || may_finish.recv());
            let others = async {
                assert_eq!(turns.aside(Requester::Control, || 1).await, 1);
                assert_eq!(turns.aside(Requester::Watch, || 2).await, 2);
                finish.send(()).unwrap();
            };
            let (long, ()) = tokio::join!(long, others);
            assert!(long.is_ok());
        });
    }

    /// Clients that wait to be accepted.
    fn connect(address: SocketAddr) -> [TcpStream; CLIENTS] {
        std::array::from_fn(|_| TcpStream::connect(address).unwrap())
    }

    #[test]
    fn a_drain_accepts_what_is_in_the_queue() {
        on_loopback(async |mut acceptor, address| {
            let _clients = connect(address);
            // The event loop has not seen them yet.
            for _ in 0..CLIENTS {
                let accepted = acceptor.accept_until(|| std::future::ready(())).await;
                assert!(accepted.is_some());
            }
            let accepted = acceptor.accept_until(|| std::future::ready(())).await;
            assert!(accepted.is_none());
        });
    }

    #[test]
    fn other_tasks_have_a_turn_while_connections_are_accepted() {
        on_loopback(async |mut acceptor, address| {
            let _clients = connect(address);
            let turns = Rc::new(Cell::new(0));
            let others = turns.clone();
            drop(acceptor.accept().await);
            tokio::task::spawn_local(async move {
                loop {
                    others.set(others.get() + 1);
                    tokio::task::yield_now().await;
                }
            });
            for _ in 1..CLIENTS {
                drop(acceptor.accept().await);
            }
            assert!(turns.get() >= 2, "{}", turns.get());
        });
    }
}
