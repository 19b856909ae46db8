//! `evenkeel-lab many-hosts`: the cost of a large configuration.
//!
//! The configuration is that of [`evenkeel_testkit::many_hosts`]. The same program runs with
//! one host and with all of them. The last host is requested in rounds that alternate between
//! the two. The CPU time of each process is read before and after.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use evenkeel_testkit::many_hosts::{host, tables};

use crate::bench::process::{Process, free_address};
use crate::bench::proxy::{Kind, Proxy, Site};
use crate::bench::rounds::{load, measured};

/// Options of `evenkeel-lab many-hosts`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The program to measure.
    #[arg(long, default_value = "target/optimised/evenkeel")]
    evenkeel: PathBuf,
    /// The folder for configurations.
    #[arg(long, default_value = "target/many-hosts")]
    out: PathBuf,
    /// Hosts of the large configuration.
    #[arg(long, default_value_t = 10_000)]
    hosts: usize,
    /// Rounds, each with one load on either configuration.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Requests of a load.
    #[arg(long, default_value_t = 20_000)]
    requests: usize,
    /// Connections of a load.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Only print the large configuration.
    #[arg(long)]
    print: bool,
}

/// Measures both configurations and prints the figures.
///
/// # Errors
/// A program can't be started, or a load fails.
pub fn run(options: &Options) -> io::Result<()> {
    if options.print {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
        print!("{}", config(address, 9000, options.hosts));
        return Ok(());
    }
    let site = Site::new(&options.out, &options.evenkeel)?;
    let origin = free_address()?;
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, origin.port()));
    let listen = ["origin", "--listen", &everywhere.to_string()];
    let mut process = Process::start_lab(site.load_cores, &listen)?;
    process.wait_for(origin)?;
    let one = Measured::start(&site, origin.port(), 1)?;
    let many = Measured::start(&site, origin.port(), options.hosts)?;
    for measured in [&one, &many] {
        measured.load(options)?;
    }
    let mut ratios = Vec::new();
    for _ in 0..options.rounds {
        let one = one.load(options)?;
        ratios.push(many.load(options)? / one);
    }
    ratios.sort_by(f64::total_cmp);
    for measured in [&one, &many] {
        println!("{measured}");
    }
    let median = ratios[ratios.len() / 2];
    println!("CPU of a request to the last host, over that with one host: {median:.3}");
    Ok(())
}

/// A program that runs on a configuration of this many hosts.
struct Measured {
    hosts: usize,
    proxy: Proxy,
    started_in: Duration,
}

impl Measured {
    fn start(site: &Site, port: u16, hosts: usize) -> io::Result<Self> {
        let name = format!("{hosts}-hosts");
        let began = Instant::now();
        let write = |address, _: &_| config(address, port, hosts);
        let proxy = site.start_configured(Kind::Evenkeel, &name, write)?;
        Ok(Self {
            hosts,
            proxy,
            started_in: began.elapsed(),
        })
    }

    /// CPU time of a request to the last host, in microseconds.
    fn load(&self, options: &Options) -> io::Result<f64> {
        let arguments = [
            format!("--host={}", host(self.hosts - 1)),
            format!("--count={}", options.requests),
            format!("--connections={}", options.connections),
        ];
        let round = measured(&self.proxy, |to| load(to, &arguments))?;
        if round.failed > 0 {
            let message = format!("{} of {} requests failed", round.failed, options.requests);
            return Err(io::Error::other(message));
        }
        Ok(round.cpu_us.unwrap_or_default())
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let memory = self.proxy.process.as_ref().map(Process::memory);
        let mb = memory.unwrap_or_default().rss as f64 / 1e6;
        let (hosts, start) = (self.hosts, self.started_in.as_secs_f64());
        write!(out, "{hosts:>6} hosts: {mb:.1} MB, start {start:.2} s")
    }
}

/// A configuration with `hosts` hosts, whose endpoints are all on this machine.
fn config(address: SocketAddr, port: u16, hosts: usize) -> String {
    let tables = tables(hosts, port);
    format!("[server]\nworkers = 1\n\n[[listener]]\nbind = \"{address}\"\n\n{tables}")
}
