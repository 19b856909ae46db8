//! A test origin: an HTTP/1.1 and 1.0 server with a shape.
//!
//! It has service times, a number of requests that it serves at once, and faults, all seeded,
//! so that balancers, queues and failure handling can be measured against it. It runs on its
//! own thread with its own runtime.
//!
//! Pages: `/ping`, `/healthz`, `/medium-payload`, `/large-payload`,
//! `/custom-payload?size=N`, `/N`, `/chunked/N`, `/close`, `/close/N`,
//! `/drip/N/MS`, `/slow/MS`, `/status/NNN`, `/headers`, `/echo`, `/early`,
//! `/upgrade`, `/events`, `/events/COUNT/MS`, `/origin/stats`.

pub mod body;
mod connection;
mod duration;
mod lines;
mod options;
mod page;
mod request;
mod service;
mod service_time;
mod stats;
mod stream;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};

pub use duration::parse_duration;
pub use options::{ListenAddress, OriginOptions, Speaks, Window};
pub use page::payload_byte;
pub use service_time::ServiceTime;
pub use stats::OriginStats;

use connection::Connection;
use service::Service;
use stats::Counters;
use stream::Socket;

const BACKLOG: i32 = 4096;

/// Starts origins.
#[derive(Debug)]
pub struct Origin;

impl Origin {
    /// Starts an origin on a listener that is already bound.
    ///
    /// # Errors
    /// When its thread or its runtime cannot be made.
    pub fn start(
        options: OriginOptions,
        listener: impl Into<OriginListener>,
    ) -> io::Result<OriginHandle> {
        let listener = listener.into();
        let address = listener.address()?;
        let name = options.name.clone();
        let counters = Arc::new(Counters::default());
        let (orders, receiver) = watch::channel(Order::Serve);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = {
            let (counters, orders) = (Arc::clone(&counters), orders.clone());
            std::thread::Builder::new()
                .name(format!("origin {name}"))
                .spawn(move || {
                    let service = Service::new(&options);
                    let shared = Rc::new(Shared {
                        options,
                        counters,
                        service,
                        started: Instant::now(),
                    });
                    let tasks = LocalSet::new();
                    tasks.spawn_local(keep_windows(Rc::clone(&shared), orders));
                    tasks.block_on(&runtime, run(listener, shared, receiver))
                })?
        };
        Ok(OriginHandle {
            address,
            name,
            counters,
            orders,
            thread: Some(thread),
        })
    }

    /// Starts an origin where its options say.
    ///
    /// # Errors
    /// When it cannot listen there, or cannot start.
    pub fn listen(options: OriginOptions) -> io::Result<OriginHandle> {
        let listener = OriginListener::bind(&options.listen)?;
        Origin::start(options, listener)
    }

    /// Starts an origin on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When it cannot listen there, or cannot start.
    pub fn local(options: OriginOptions) -> io::Result<OriginHandle> {
        Origin::start(options, TcpListener::bind(("127.0.0.1", 0))?)
    }
}

/// A running origin; dropping it stops it.
#[derive(Debug)]
pub struct OriginHandle {
    /// The address that it listens on; displayed as a configuration file writes it.
    pub address: ListenAddress,
    name: String,
    counters: Arc<Counters>,
    orders: watch::Sender<Order>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl OriginHandle {
    /// The figures at this moment.
    pub fn stats(&self) -> OriginStats {
        self.counters.snapshot(&self.name)
    }

    /// The TCP address; `None` for a Unix socket.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self.address {
            ListenAddress::Tcp(address) => Some(address),
            ListenAddress::Unix(_) => None,
        }
    }

    /// Goes down: open connections are closed, new ones refused.
    pub fn refuse(&self) {
        self.orders.send_replace(Order::Refuse);
    }

    /// Comes back on the same address, cold.
    pub fn serve(&self) {
        self.orders.send_replace(Order::Serve);
    }

    /// Stops, closing every connection, and waits until it has.
    pub fn shutdown(self) {
        drop(self);
    }

    /// Runs until the origin ends by itself, which is when it cannot go on.
    ///
    /// # Errors
    /// Why it could not go on.
    pub fn wait(mut self) -> io::Result<()> {
        match self.thread.take() {
            Some(thread) => thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the origin's thread died"))),
            None => Ok(()),
        }
    }
}

impl Drop for OriginHandle {
    fn drop(&mut self) {
        self.orders.send_replace(Order::Stop);
        if let Some(thread) = self.thread.take() {
            // Nobody is left to report its failure to.
            let _ = thread.join();
        }
    }
}

/// A bound socket for an origin.
#[derive(Debug)]
pub enum OriginListener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix stream socket and the path at which it is.
    Unix {
        /// The socket.
        listener: UnixListener,
        /// Its path, removed and bound again when the origin goes down and
        /// comes back.
        path: PathBuf,
    },
}

impl OriginListener {
    /// Binds a socket; a Unix socket left over at the path is replaced.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn bind(address: &ListenAddress) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                socket2::SockRef::from(&listener).listen(BACKLOG)?;
                Ok(OriginListener::Tcp(listener))
            }
            ListenAddress::Unix(path) => {
                let listener = bind_unix(path)?;
                Ok(OriginListener::Unix {
                    listener,
                    path: path.clone(),
                })
            }
        }
    }

    fn address(&self) -> io::Result<ListenAddress> {
        match self {
            OriginListener::Tcp(listener) => Ok(ListenAddress::Tcp(listener.local_addr()?)),
            OriginListener::Unix { path, .. } => Ok(ListenAddress::Unix(path.clone())),
        }
    }

    fn accepting(&self) -> io::Result<Accepting> {
        match self {
            OriginListener::Tcp(listener) => {
                let listener = listener.try_clone()?;
                listener.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(listener).map(Accepting::Tcp)
            }
            OriginListener::Unix { listener, .. } => {
                let listener = listener.try_clone()?;
                listener.set_nonblocking(true)?;
                tokio::net::UnixListener::from_std(listener).map(Accepting::Unix)
            }
        }
    }

    /// Refuses connections from now on. A TCP socket that is bound but does not listen keeps
    /// the port reserved.
    fn refuse(&mut self) -> io::Result<()> {
        match self {
            OriginListener::Tcp(listener) => {
                let address = listener.local_addr()?;
                let domain = socket2::Domain::for_address(address);
                let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
                socket.set_reuse_address(true)?;
                // The old socket must be closed before the port is free.
                *listener = socket.into();
                socket2::SockRef::from(&*listener).bind(&address.into())
            }
            OriginListener::Unix { path, .. } => std::fs::remove_file(path),
        }
    }

    fn listen_again(&mut self) -> io::Result<()> {
        match self {
            OriginListener::Tcp(listener) => socket2::SockRef::from(&*listener).listen(BACKLOG),
            OriginListener::Unix { listener, path } => {
                *listener = bind_unix(path)?;
                Ok(())
            }
        }
    }
}

impl From<TcpListener> for OriginListener {
    fn from(listener: TcpListener) -> Self {
        OriginListener::Tcp(listener)
    }
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(path)
}

enum Accepting {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Accepting {
    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Accepting::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Socket::Tcp(stream))
            }
            Accepting::Unix(listener) => listener
                .accept()
                .await
                .map(|(stream, _)| Socket::Unix(stream)),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Serve,
    Refuse,
    Stop,
}

/// The state that the connections of an origin share.
struct Shared {
    options: OriginOptions,
    counters: Arc<Counters>,
    service: Service,
    started: Instant,
}

/// Sends the orders for the windows of `--refuse`.
async fn keep_windows(shared: Rc<Shared>, orders: watch::Sender<Order>) {
    for window in &shared.options.refuse {
        for (at, order) in [(window.from, Order::Refuse), (window.to, Order::Serve)] {
            tokio::time::sleep_until((shared.started + at).into()).await;
            orders.send_replace(order);
        }
    }
}

async fn run(
    mut listener: OriginListener,
    shared: Rc<Shared>,
    mut orders: watch::Receiver<Order>,
) -> io::Result<()> {
    let mut down = false;
    loop {
        let order = *orders.borrow_and_update();
        match order {
            Order::Stop => return Ok(()),
            Order::Refuse => {
                if !down {
                    listener.refuse()?;
                    down = true;
                }
                if orders.changed().await.is_err() {
                    return Ok(());
                }
            }
            Order::Serve => {
                if down {
                    listener.listen_again()?;
                    shared.service.cool_down();
                    down = false;
                }
                serve(listener.accepting()?, &shared, &mut orders).await;
            }
        }
    }
}

/// Serves connections until another order comes, then closes them all.
async fn serve(accepting: Accepting, shared: &Rc<Shared>, orders: &mut watch::Receiver<Order>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = accepting.accept() => match accepted {
                Ok(socket) => {
                    let shared = Rc::clone(shared);
                    match shared.options.speaks {
                        Speaks::Http => {
                            connections.spawn_local(Connection::new(socket, shared).run())
                        }
                        Speaks::Lines => connections.spawn_local(lines::run(socket, shared)),
                    };
                }
                // Out of descriptors, most likely: some are about to close.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
            _ = orders.changed() => break,
        }
    }
    drop(accepting);
    connections.shutdown().await;
}
