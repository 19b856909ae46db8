//! The load generator: one thread, epoll, latencies in a histogram.
//!
//! Closed loop: every connection sends its next request when the answer to the
//! last has come. Open loop: requests fall due at a fixed rate whatever the
//! answers do, and latency counts from the instant a request fell due, so a
//! stalled server can't hide behind a generator that waits for it.
//!
//! Every answer's status and the exact length of its body are checked.

mod answer;
mod connection;
mod generator;
pub(crate) mod summary;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

pub use summary::{Errors, Percentile, Summary};

use generator::Generator;

/// What `evenkeel-lab load` is told.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The address to load.
    #[arg(long)]
    pub to: SocketAddr,
    /// Connections open at once.
    #[arg(long, default_value_t = 64)]
    pub connections: usize,
    /// Stop after so many requests.
    #[arg(long)]
    pub count: Option<u64>,
    /// Stop after so many seconds.
    #[arg(long, default_value_t = 600.0)]
    pub seconds: f64,
    /// Open loop: requests per second. Without it, closed loop.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Body sizes and their weights: `1024` or `44:70,1024:20,10240:10`.
    #[arg(long, default_value = "1024")]
    pub sizes: String,
    /// Ask for one connection per request.
    #[arg(long)]
    pub no_keepalive: bool,
    /// Close a connection after about so many requests and open another.
    #[arg(long)]
    pub churn: Option<u32>,
    /// Send one request on each connection, then only hold the connections
    /// open for so many seconds after the summary is printed.
    #[arg(long)]
    pub hold: Option<f64>,
    /// Wait so many seconds between opening the connections and the first request.
    #[arg(long, default_value_t = 0.0)]
    pub settle: f64,
    /// Never sleep, so that nobody pays for waking it.
    #[arg(long)]
    pub awake: bool,
}

/// Loads, prints the summary as one line of JSON, and holds if told to.
///
/// # Errors
/// Options that make no sense, and the kernel's.
pub fn run(options: &Options) -> io::Result<()> {
    let mut generator = Generator::new(options)?;
    let summary = generator.run()?;
    println!("{}", serde_json::to_string(&summary)?);
    if let Some(seconds) = options.hold {
        std::thread::sleep(Duration::from_secs_f64(seconds));
    }
    Ok(())
}
