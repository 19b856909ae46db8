//! The properties of an origin: its address, service times, concurrency and faults.
//!
//! One struct is both the library's options and the command line's. Rates are shares of the
//! requests between 0 and 1, drawn from the seeded generator.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::duration::parse_duration;
use crate::service_time::ServiceTime;

/// How an origin behaves.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct OriginOptions {
    /// Address to listen on: `IP:PORT`, `HOST:PORT` or `unix:PATH`
    #[arg(long, default_value = "127.0.0.1:8081", value_name = "ADDR")]
    pub listen: ListenAddress,

    /// Protocol to speak
    #[arg(long, value_enum, default_value_t = Speaks::Http)]
    pub speaks: Speaks,

    /// Name that `/origin/stats` and the `Server` field of answers give
    #[arg(long, default_value = "origin")]
    pub name: String,

    /// Service time: `fixed:20ms`, `exp:20ms`, `lognormal:MEDIAN,SIGMA`, or a
    /// mix such as `95%fixed:5ms,5%fixed:500ms`; none when left out
    #[arg(long, value_name = "TIME")]
    pub service: Option<ServiceTime>,

    /// Requests served at once; the others wait in order of arrival.
    /// 0 for no limit; 1 is a single-threaded server
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub threads: usize,

    /// Speed relative to an ordinary origin: service times are divided by it
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", value_parser = positive)]
    pub capacity: f64,

    /// How many times slower it is just after a start (or a return from
    /// `--refuse`), falling to 1 over `--cold-for`
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", value_parser = positive)]
    pub cold_factor: f64,

    /// How long it takes to get warm
    #[arg(long, default_value = "0s", value_name = "DURATION", value_parser = parse_duration)]
    pub cold_for: Duration,

    /// Share of requests answered 500
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = rate)]
    pub fail_rate: f64,

    /// How long an answer of `--fail-rate` takes, in place of the service time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub fail_fast: Option<Duration>,

    /// Faults begin only this long after the start
    #[arg(long, default_value = "0s", value_name = "DURATION", value_parser = parse_duration)]
    pub fail_after: Duration,

    /// Share of requests answered with a TCP reset
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = rate)]
    pub reset_rate: f64,

    /// Share of answers that end half-way through the body
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = rate)]
    pub cut_rate: f64,

    /// Share of requests answered with bytes that are not HTTP
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = rate)]
    pub garbage_rate: f64,

    /// Share of requests that are never answered
    #[arg(long, default_value_t = 0.0, value_name = "P", value_parser = rate)]
    pub stall_rate: f64,

    /// When to be down, counted from the start, such as `5s..10s`: connections
    /// are refused, open ones closed. May be given several times, in order
    #[arg(long, value_name = "FROM..TO")]
    pub refuse: Vec<Window>,

    /// Seed of everything drawn at random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Default for OriginOptions {
    fn default() -> Self {
        OriginOptions {
            listen: ListenAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 8081))),
            speaks: Speaks::Http,
            name: "origin".to_owned(),
            service: None,
            threads: 0,
            capacity: 1.0,
            cold_factor: 1.0,
            cold_for: Duration::ZERO,
            fail_rate: 0.0,
            fail_fast: None,
            fail_after: Duration::ZERO,
            reset_rate: 0.0,
            cut_rate: 0.0,
            garbage_rate: 0.0,
            stall_rate: 0.0,
            refuse: Vec::new(),
            seed: 1,
        }
    }
}

/// The protocol of an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Speaks {
    /// HTTP/1.1 and 1.0.
    Http,
    /// Lines of text, each sent back behind the name; no faults but `--refuse`.
    Lines,
}

/// The address that an origin listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// IPv4 or IPv6 address with its port.
    Tcp(SocketAddr),
    /// Path of a Unix stream socket.
    Unix(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(ListenAddress::Unix(PathBuf::from(path)));
        }
        if let Ok(address) = text.parse() {
            return Ok(ListenAddress::Tcp(address));
        }
        let mut found = text
            .to_socket_addrs()
            .map_err(|error| format!("address {text:?}: {error}"))?;
        found
            .next()
            .map(ListenAddress::Tcp)
            .ok_or_else(|| format!("address {text:?}: unknown host"))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => address.fmt(f),
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A span of time counted from the start of the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// When it begins.
    pub from: Duration,
    /// When it is over.
    pub to: Duration,
}

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text
            .split_once("..")
            .ok_or_else(|| format!("window {text:?}: expected FROM..TO, such as 5s..10s"))?;
        let window = Window {
            from: parse_duration(from)?,
            to: parse_duration(to)?,
        };
        if window.from >= window.to {
            return Err(format!("window {text:?}: it ends before it begins"));
        }
        Ok(window)
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.0..=1.0).contains(&rate) => Ok(rate),
        _ => Err("expected a share between 0 and 1".to_owned()),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor > 0.0 && factor.is_finite() => Ok(factor),
        _ => Err("expected a number above 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: OriginOptions,
    }

    #[test]
    fn the_command_line_without_options_gives_the_defaults() {
        let line = <Line as clap::Parser>::parse_from(["origin"]);
        assert_eq!(line.options, OriginOptions::default());
    }

    #[test]
    fn windows_and_addresses() {
        let window: Window = "5s..10s".parse().unwrap();
        assert_eq!(window.to, Duration::from_secs(10));
        assert!("10s..5s".parse::<Window>().is_err());
        for text in ["127.0.0.1:80", "[::1]:80", "unix:a/b.sock"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
    }
}
