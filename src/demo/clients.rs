//! The demo's clients: a task each, one request at a time and a pause after it.
//! So the load is bounded however long the answers take. They share a thread of
//! their own.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_origin::ServiceTime;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, SERVER};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Number of clients: the most that is ever in flight.
pub const CLIENTS: u64 = 24;
/// Mean length of a pause, which is exponentially distributed.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest time for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Pages that clients ask a cache for.
pub const PAGES: u32 = 100;

/// The name in place of an origin's for an answer of a cache.
pub const CACHE: &str = "cache";

/// Lines that a client of TCP sends over each of its connections.
const LINES: usize = 4;

/// The requests of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientTraffic {
    /// They ask for /ping over a connection that they keep.
    Ping,
    /// The same, for one of [`PAGES`] pages, the first ones more often.
    Pages,
    /// They open a connection, send lines and await each answer, and close.
    Lines,
}

/// The outcome of a request, or of a connection of lines.
#[derive(Debug, Clone, Copy)]
pub enum Outcome {
    /// An origin's answer.
    Answered {
        /// Index of the origin, which its answer names.
        origin: usize,
        /// From sending the request, or from opening the connection, to the
        /// answer's last byte.
        latency: Duration,
    },
    /// Any other answer, or none.
    Failed,
}

/// Running clients; dropping this stops them.
#[derive(Debug)]
pub struct Clients {
    /// Dropped to stop them.
    running: Option<oneshot::Sender<()>>,
    outcomes: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
}

impl Clients {
    /// Starts them. `origins` are the names that answers may carry.
    ///
    /// # Errors
    /// Their thread or its runtime can't be made.
    pub fn start(
        to: SocketAddr,
        asking: ClientTraffic,
        origins: &[&'static str],
    ) -> io::Result<Self> {
        let (sender, outcomes) = channel();
        let (running, stopped) = oneshot::channel();
        let origins = origins.to_vec();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new().name("clients".to_owned());
        let thread = thread.spawn(move || {
            runtime.block_on(async {
                let mut tasks = JoinSet::new();
                for seed in 0..CLIENTS {
                    let client = Client {
                        to,
                        asking,
                        origins: origins.clone(),
                        connection: None,
                    };
                    tasks.spawn(client.run(seed, sender.clone()));
                }
                // The sender is dropped, which is the signal.
                let _ = stopped.await;
            });
        })?;
        Ok(Clients {
            running: Some(running),
            outcomes,
            thread: Some(thread),
        })
    }

    /// The outcomes since the last look.
    pub fn outcomes(&self) -> impl Iterator<Item = Outcome> + '_ {
        self.outcomes.try_iter()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.running = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has reported it, and is over as well.
            let _ = thread.join();
        }
    }
}

/// The number of a page; of two, the one with half the number is asked for twice as often
/// (Zipf's law).
fn page(random: &mut fastrand::Rng) -> u32 {
    let last = f64::from(PAGES);
    last.powf(random.f64()) as u32
}

struct Client {
    to: SocketAddr,
    asking: ClientTraffic,
    origins: Vec<&'static str>,
    connection: Option<SendRequest<Empty<Bytes>>>,
}

impl Client {
    async fn run(mut self, seed: u64, outcomes: Sender<Outcome>) {
        let mut random = fastrand::Rng::with_seed(seed);
        let pause = ServiceTime::Exponential { mean: PAUSE };
        loop {
            let asked = tokio::time::timeout(TIMEOUT, async {
                match self.asking {
                    ClientTraffic::Ping => self.ask("/ping").await,
                    ClientTraffic::Pages => {
                        self.ask(&format!("/ping?page={}", page(&mut random))).await
                    }
                    ClientTraffic::Lines => self.send_lines().await,
                }
            });
            let outcome = asked.await.ok().flatten().unwrap_or(Outcome::Failed);
            if outcomes.send(outcome).is_err() {
                return;
            }
            tokio::time::sleep(pause.draw(&mut random)).await;
        }
    }

    /// Sends one request; `None` where no origin answered it. A connection
    /// that failed is not used again.
    async fn ask(&mut self, target: &str) -> Option<Outcome> {
        let begun = Instant::now();
        let mut connection = match self.connection.take() {
            Some(connection) if !connection.is_closed() => connection,
            _ => self.connect().await.ok()?,
        };
        let request = Request::get(target).header(HOST, self.to.to_string());
        let request = request.body(Empty::new()).ok()?;
        let (head, body) = connection.send_request(request).await.ok()?.into_parts();
        body.collect().await.ok()?;
        let latency = begun.elapsed();
        self.connection = Some(connection);
        let is_stored = || {
            let status = head.headers.get("cache-status")?.to_str().ok()?;
            (status.contains("; hit") || status.contains("; collapsed")).then_some(())
        };
        let server = head.headers.get(SERVER)?.as_bytes();
        let server = is_stored().map_or(server, |()| CACHE.as_bytes());
        let mut origins = self.origins.iter();
        let origin = origins.position(|name| name.as_bytes() == server)?;
        (head.status == StatusCode::OK).then_some(Outcome::Answered { origin, latency })
    }

    /// Sends lines over a connection; `None` where one was not answered. The
    /// latency is that of the first.
    async fn send_lines(&self) -> Option<Outcome> {
        let begun = Instant::now();
        let mut stream = BufReader::new(TcpStream::connect(self.to).await.ok()?);
        let mut first = None;
        for _ in 0..LINES {
            stream.write_all(b"hello\n").await.ok()?;
            let mut answer = String::new();
            stream.read_line(&mut answer).await.ok()?;
            let (name, _) = answer.split_once(',')?;
            let origin = self.origins.iter().position(|it| *it == name)?;
            let latency = begun.elapsed();
            first.get_or_insert(Outcome::Answered { origin, latency });
        }
        first
    }

    async fn connect(&self) -> io::Result<SendRequest<Empty<Bytes>>> {
        let stream = TcpStream::connect(self.to).await?;
        stream.set_nodelay(true)?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(io::Error::other)?;
        // The connection's task ends with its sender, which sees failures.
        tokio::spawn(connection);
        Ok(sender)
    }
}
