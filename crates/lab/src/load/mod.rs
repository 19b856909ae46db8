//! The load generator: one thread, epoll, latencies in a histogram.
//!
//! Closed loop: every connection sends its next request when the answer to the last has come.
//! Open loop: requests fall due at a given rate, evenly or as a Poisson process, whatever the
//! answers do. Latency then counts from the instant a request fell due, so a stalled server
//! can't hide behind a generator that waits for it. If the generator itself is late, because
//! other processes have its core, `--kernel-times` leaves that out.
//!
//! Every answer's status and the exact length of its body are checked.

mod answer;
mod connection;
mod generator;
mod pace;
mod request;
pub(crate) mod summary;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use summary::{Errors, PageLatency, Percentile, Summary};

use generator::Generator;
use pace::Arrivals;

/// Options of `evenkeel-lab load`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The address to load.
    #[arg(long)]
    pub to: SocketAddr,
    /// Value of `Host`, if it is not that address.
    #[arg(long)]
    pub host: Option<String>,
    /// Connections open at once.
    #[arg(long, default_value_t = 64)]
    pub connections: usize,
    /// Stop after this many requests.
    #[arg(long)]
    pub count: Option<u64>,
    /// Stop after this many seconds.
    #[arg(long, default_value_t = 600.0)]
    pub seconds: f64,
    /// Open loop: requests per second. Without it, closed loop.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Open loop: let the gaps vary as those of many independent clients do.
    #[arg(long, requires = "rate")]
    pub poisson: bool,
    /// Closed loop: begin with this many seconds between the first requests.
    #[arg(long, default_value_t = 0.0, conflicts_with = "rate")]
    pub stagger: f64,
    /// Leave what falls due in the first seconds out of the latencies.
    #[arg(long, default_value_t = 0.0)]
    pub warm_up: f64,
    /// Body sizes and their weights: `1024` or `44:70,1024:20,10240:10`.
    #[arg(long, default_value = "1024")]
    pub sizes: String,
    /// Pages, the lengths of their bodies and their weights, in place of sizes:
    /// `/slow/5=4:95,/slow/500=4:5`.
    #[arg(long)]
    pub pages: Option<String>,
    /// Folder of a data set. Its files are requested at random, instead of pages of given
    /// sizes.
    #[arg(long, conflicts_with = "pages")]
    pub files: Option<PathBuf>,
    /// The share of the requests that ask for the data set's hot files.
    #[arg(long, default_value_t = 0.0, requires = "files")]
    pub hot: f64,
    /// Seed of the choice among several requests.
    #[arg(long, default_value_t = 7)]
    pub seed: u64,
    /// Count a 503 apart, and not as a failure.
    #[arg(long)]
    pub refusable: bool,
    /// Ask for one connection per request.
    #[arg(long)]
    pub no_keepalive: bool,
    /// Close a connection after about this many requests and open another.
    #[arg(long)]
    pub churn: Option<u32>,
    /// Send one request on each connection. After the summary is printed, hold the connections
    /// open for this many seconds.
    #[arg(long)]
    pub hold: Option<f64>,
    /// Load once for each line that comes on standard input, over the same
    /// connections, and print a summary of each.
    #[arg(long, conflicts_with_all = ["hold", "count"])]
    pub on_demand: bool,
    /// Wait this many seconds between opening the connections and the first request.
    #[arg(long, default_value_t = 0.0)]
    pub settle: f64,
    /// Never sleep, so that no sender pays for a wake-up.
    #[arg(long)]
    pub awake: bool,
    /// Count latencies from the time when a request is sent to the time when the kernel has its
    /// answer. A request that had to wait for a connection counts from when it fell due.
    #[arg(long)]
    pub kernel_times: bool,
}

impl Options {
    fn arrivals(&self) -> Arrivals {
        match self.rate {
            None => {
                let step = Duration::from_secs_f64(self.stagger);
                let first = self.connections as u64;
                Arrivals::Closed { step, first }
            }
            Some(rate) => {
                let mean = Duration::from_secs_f64(1.0 / rate);
                if self.poisson {
                    Arrivals::Random { mean }
                } else {
                    Arrivals::Even { interval: mean }
                }
            }
        }
    }
}

/// Loads, prints the summary as one line of JSON, and holds if told to; or does
/// so on demand.
///
/// # Errors
/// Options that make no sense, and the kernel's.
pub fn run(options: &Options) -> io::Result<()> {
    let mut generator = Generator::new(options)?;
    if options.on_demand {
        for line in io::stdin().lines() {
            line?;
            println!("{}", serde_json::to_string(&generator.run()?)?);
        }
        return Ok(());
    }
    let summary = generator.run()?;
    println!("{}", serde_json::to_string(&summary)?);
    if let Some(seconds) = options.hold {
        std::thread::sleep(Duration::from_secs_f64(seconds));
    }
    Ok(())
}
