//! The demo's clients: a thread each, one request at a time and a pause after
//! it, so that the load is bounded whatever the answers take.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_testkit::RawClient;
use evenkeel_testkit::origin::ServiceTime;

/// Number of clients: the most that is ever in flight.
pub const CLIENTS: u64 = 24;
/// Mean length of a pause, which is exponentially distributed.
const PAUSE: Duration = Duration::from_millis(20);

/// What came of a request.
#[derive(Debug, Clone, Copy)]
pub enum Outcome {
    /// An origin's answer.
    Answered {
        /// Index of the origin, which its answer names.
        origin: usize,
        /// From sending the request to the answer's last byte.
        latency: Duration,
    },
    /// Any other answer, or none.
    Failed,
}

/// Running clients; dropping this stops them.
#[derive(Debug)]
pub struct Clients {
    is_over: Arc<AtomicBool>,
    outcomes: Receiver<Outcome>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Starts them. `origins` are the names that answers may carry.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn start(to: SocketAddr, origins: &[&'static str]) -> io::Result<Self> {
        let (sender, outcomes) = channel();
        let mut clients = Clients {
            is_over: Arc::default(),
            outcomes,
            threads: Vec::new(),
        };
        for number in 0..CLIENTS {
            let client = Client {
                to,
                origins: origins.to_vec(),
                connection: None,
            };
            let (is_over, sender) = (clients.is_over.clone(), sender.clone());
            let thread = std::thread::Builder::new().name(format!("client-{number}"));
            clients
                .threads
                .push(thread.spawn(move || client.run(number, &is_over, &sender))?);
        }
        Ok(clients)
    }

    /// What has come since the last look.
    pub fn outcomes(&self) -> impl Iterator<Item = Outcome> + '_ {
        self.outcomes.try_iter()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked has said so, and is over as well.
            let _ = thread.join();
        }
    }
}

struct Client {
    to: SocketAddr,
    origins: Vec<&'static str>,
    connection: Option<RawClient>,
}

impl Client {
    fn run(mut self, seed: u64, is_over: &AtomicBool, outcomes: &Sender<Outcome>) {
        let mut random = fastrand::Rng::with_seed(seed);
        let pause = ServiceTime::Exponential { mean: PAUSE };
        while !is_over.load(Ordering::Relaxed) {
            let outcome = self.ask();
            if outcomes.send(outcome).is_err() {
                return;
            }
            std::thread::sleep(pause.draw(&mut random));
        }
    }

    /// Sends one request; a connection that failed is not used again.
    fn ask(&mut self) -> Outcome {
        let begun = Instant::now();
        let Some(mut connection) = self
            .connection
            .take()
            .or_else(|| RawClient::connect(self.to).ok())
        else {
            return Outcome::Failed;
        };
        let Ok(response) = connection.get("/ping") else {
            return Outcome::Failed;
        };
        let latency = begun.elapsed();
        if response.field("connection") != Some("close") {
            self.connection = Some(connection);
        }
        let server = response.field("server");
        let origin = self.origins.iter().position(|name| Some(*name) == server);
        match origin {
            Some(origin) if response.status == 200 => Outcome::Answered { origin, latency },
            _ => Outcome::Failed,
        }
    }
}
