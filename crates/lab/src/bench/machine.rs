//! The machine and the programs of a measurement.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use super::network;

/// The machine and the versions of the peers.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The processor's name and how many cores it shows.
    pub processor: String,
    /// The kernel's release.
    pub kernel: String,
    /// How TCP controls congestion.
    pub congestion: String,
    /// As each of the peers says with `-v`.
    pub peers: Vec<String>,
    /// Processes that wanted the CPU in the minute before the start.
    pub load_average: f64,
}

impl Machine {
    /// Looks at the machine, and asks `peers` for their versions.
    #[must_use]
    pub fn look(peers: &[&str]) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let mut names = cpuinfo
            .lines()
            .filter_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let name = names.next().map_or("unknown", |(_, name)| name);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            processor: format!("{name}, {cores} cores"),
            kernel: kernel.trim().into(),
            congestion: network::congestion().unwrap_or_else(|_| "unknown".into()),
            peers: peers.iter().map(|peer| version(peer)).collect(),
            load_average: load
                .split(' ')
                .next()
                .and_then(|average| average.parse().ok())
                .unwrap_or(0.0),
        }
    }

    /// One line for people, and a warning where others use the CPU.
    #[must_use]
    pub fn line(&self) -> String {
        let busy = if self.load_average > 0.3 {
            format!(
                "; others use it (load average {}), so latencies mean little",
                self.load_average
            )
        } else {
            String::new()
        };
        format!(
            "{}, Linux {}, TCP {}, {}{busy}",
            self.processor,
            self.kernel,
            self.congestion,
            self.peers.join(", ")
        )
    }
}

/// CPU time that the host of this virtual machine took from runnable cores, over all cores
/// (`steal`, proc_stat(5)). Its resolution is a clock tick, mostly 10 ms.
#[must_use]
pub fn stolen() -> Duration {
    const STEAL: usize = 8;
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let steal = stat.split_ascii_whitespace().nth(STEAL);
    let ticks: u64 = steal.and_then(|it| it.parse().ok()).unwrap_or(0);
    Duration::from_millis(ticks * 1_000 / rustix::param::clock_ticks_per_second())
}

/// The version that a program prints. nginx prints it on stderr, HAProxy with its date and
/// address behind it, and lighttpd with a description.
fn version(program: &str) -> String {
    let Ok(output) = Command::new(program).arg("-v").output() else {
        return format!("no {program}");
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().next().unwrap_or_default();
    let line = line.strip_prefix("nginx version: ").unwrap_or(line);
    let line = line.split(" 20").next().unwrap_or(line);
    line.split(" (").next().unwrap_or(line).into()
}
