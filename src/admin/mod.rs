//! What an operator sees and does: the status page with all its forms, the
//! metrics, and the control socket.
//!
//! One thread of its own, so that nothing here delays a request. It reads the
//! figures that the workers write (`observe::figures`), and changes endpoints
//! by the dispatchers that the workers share.

mod control;
pub mod csv;
mod haproxy;
mod http;
pub mod metrics;
mod monitor;
mod operate;
mod page;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::config::machine::{self, Obstacle};
use crate::lifecycle::{Phase, Starting};
use crate::net::Address;
use crate::net::listen::Accepting;
use crate::net::listen::{self, AcceptTurns, BoundListener, Listener, Peer, SocketFile};
use crate::net::poller::Poller;
use crate::observe::figures::Sources;
use crate::observe::limits::{self, LimitWatch};
use crate::scheduling::step_back;
use monitor::Monitor;

pub use control::MAX_ROWS;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 128;

/// How long accepting pauses where it fails, for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What all of it works with.
#[derive(Debug)]
struct Admin {
    sources: Sources,
    phase: watch::Receiver<Phase>,
    monitor: Monitor,
}

/// The sockets, bound before the thread is started.
#[derive(Debug)]
pub struct Sockets {
    status: Option<BoundListener>,
    control: Option<BoundListener>,
}

/// The files of the sockets that are Unix sockets.
#[derive(Debug)]
pub struct SocketFiles {
    /// Of the status page.
    pub status: Option<SocketFile>,
    /// Of the control socket.
    pub control: Option<SocketFile>,
}

/// The thread, until it is stopped or dropped.
#[derive(Debug)]
pub struct AdminThread {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<io::Result<()>>,
    /// Where the status page is, if there is one.
    pub status_address: Option<Address>,
}

/// Binds the sockets that the configuration names.
///
/// # Errors
/// As [`listen::bind`], with the socket in the error's text.
pub fn bind(config: &crate::config::Config) -> io::Result<(Sockets, SocketFiles)> {
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
    };
    let accepting = Accepting {
        backlog: BACKLOG,
        is_deferred: false,
    };
    if let Some(settings) = &config.status {
        let bound = listen::bind(&settings.bind, accepting, 1);
        let mut bound = bound.map_err(|error| named("status page", &settings.bind, error))?;
        sockets.status = bound.listeners.pop();
        files.status = bound.file;
    }
    if let Some(address @ Address::Unix(path)) = &config.server.control {
        let bound = listen::bind_private(path, BACKLOG);
        let bound = bound.map_err(|error| named("control socket", address, error))?;
        sockets.control = Some(bound.0);
        files.control = Some(bound.1);
    }
    Ok((sockets, files))
}

/// Starts the thread; `while_running` is dropped when it ends.
///
/// # Errors
/// The thread can't be started.
pub(crate) fn start(
    sources: Sources,
    sockets: Sockets,
    phase: watch::Receiver<Phase>,
    starting: Starting,
    while_running: impl Send + 'static,
) -> io::Result<AdminThread> {
    let status_address = sockets.status.as_ref().map(|it| it.address.clone());
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::Builder::new().name("admin".to_owned());
    let thread = thread.spawn(move || {
        let _while_running = while_running;
        // A scrape of many endpoints delays no request.
        step_back();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build_local(tokio::runtime::LocalOptions::default())?;
        let admin = Rc::new(Admin {
            monitor: Monitor::new(&sources),
            sources,
            phase,
        });
        let poller = Poller::of_this_thread()?;
        let status = sockets.status.map(Listener::register).transpose()?;
        let control = sockets.control.map(Listener::register).transpose()?;
        runtime.block_on(async {
            starting.finish().await;
            tokio::task::spawn_local(watch_limits(admin.clone()));
            if status.is_some() || control.is_some() {
                let admin = admin.clone();
                tokio::task::spawn_local(async move {
                    admin.monitor.watch(&admin.sources, &admin.phase).await;
                });
            }
            if let Some(listener) = status {
                tokio::task::spawn_local(http::serve(admin.clone(), listener));
            }
            if let Some(listener) = control {
                tokio::task::spawn_local(control::serve(admin.clone(), listener));
            }
            tokio::select! {
                failed = poller.serve() => failed,
                // An error means that whoever could stop it is gone.
                _ = stopped => Ok(()),
            }
        })
    })?;
    Ok(AdminThread {
        stop,
        thread,
        status_address,
    })
}

impl AdminThread {
    /// Ends it, and waits until it has.
    pub fn stop(self) {
        // Nobody listens where it has ended already.
        let _ = self.stop.send(());
        match self.thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!("the admin thread failed: {error}"),
            Err(_) => tracing::error!("the admin thread panicked"),
        }
    }
}

/// Says in the event log where a limit is reached, once a second at most.
async fn watch_limits(admin: Rc<Admin>) {
    let mut watch = LimitWatch::new(&admin.sources.config);
    let mut looks = tokio::time::interval(limits::LOOK_INTERVAL);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        watch.look(&admin.sources, Instant::now());
    }
}

/// A listener of which every connection is accepted, however long it takes.
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

    /// The next connection's socket. Once `draining` ends, `None` if the kernel has
    /// none ready.
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
                return None;
            }
        }
    }

    /// The next connection's socket. That none can be had is said once.
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
                        tracing::warn!("{what}: accepting pauses: {error}");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl Admin {
    fn is_draining(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Drain { .. })
    }

    /// Waits until the process drains.
    async fn draining(&self) {
        let mut phase = self.phase.clone();
        let drains = phase.wait_for(|phase| matches!(phase, Phase::Drain { .. }));
        // An error means that nobody is left who could say so.
        let _ = drains.await;
    }
}

/// One of so many things that may be there at once, for as long as it lives.
struct Place(Rc<Cell<usize>>);

impl Place {
    /// Counts one more, unless there are `most` of them.
    fn take(count: &Rc<Cell<usize>>, most: usize) -> Option<Self> {
        if count.get() >= most {
            return None;
        }
        count.set(count.get() + 1);
        Some(Place(count.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream};

    use super::*;

    const CLIENTS: usize = 40;

    /// Runs this with a listener on loopback, on an event loop of its own.
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
