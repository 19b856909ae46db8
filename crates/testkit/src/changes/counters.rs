//! Whether counters ever go backwards, as who scrapes them sees it.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::ledger::Ledger;
use crate::raw::RawClient;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(20);

/// The observed state of the counters.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Seen {
    /// Scrapes that were answered.
    pub scrapes: u64,
    /// Scrapes that were not.
    pub failed: u64,
    /// Samples that were less than before, or gone.
    pub backwards: u64,
    last: HashMap<String, f64>,
}

/// Whether a sample belongs to a counter that continues over processes.
fn is_counter(sample: &str) -> bool {
    let name = sample.split('{').next().unwrap_or_default();
    let ends = ["_total", "_count", "_sum", "_bucket"];
    !name.starts_with("process_") && ends.iter().any(|it| name.ends_with(it))
}

/// The counters of a scrape, by name and labels.
fn counters(text: &str) -> HashMap<String, f64> {
    let lines = text.lines().filter(|it| !it.starts_with('#'));
    let samples = lines.filter_map(|it| it.rsplit_once(' '));
    let counters = samples.filter(|(name, _)| is_counter(name));
    let counters =
        counters.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
    counters.collect()
}

/// All counters, in one scrape.
///
/// # Errors
/// There is no answer, or not the expected one.
pub fn scrape(address: SocketAddr) -> io::Result<HashMap<String, f64>> {
    let mut client = RawClient::connect(address)?;
    let response =
        client.ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    match response.status {
        200 => Ok(counters(&response.text())),
        status => Err(io::Error::other(format!("status {status}"))),
    }
}

impl Seen {
    /// Compares with the last scrape; returns the first counter that went backwards.
    fn compare(&mut self, now: HashMap<String, f64>) -> Option<String> {
        self.scrapes += 1;
        let mut first = None;
        for (name, before) in &self.last {
            let value = now.get(name);
            if value.is_none_or(|value| value < before) {
                self.backwards += 1;
                first.get_or_insert_with(|| format!("{name}: {value:?} after {before}"));
            }
        }
        self.last = now;
        first
    }

    /// The last value of a sample.
    pub fn last(&self, sample: &str) -> Option<f64> {
        self.last.get(sample).copied()
    }
}

/// Scrapes until the load is over.
pub fn watch(ledger: &Ledger, address: SocketAddr) -> Seen {
    let mut seen = Seen::default();
    while !ledger.is_over() {
        match scrape(address) {
            Ok(now) => {
                if let Some(backwards) = seen.compare(now) {
                    ledger.note(&format!("counter went backwards: {backwards}"));
                }
            }
            Err(error) => {
                seen.failed += 1;
                ledger.note(&format!("scrape: {error}"));
            }
        }
        std::thread::sleep(INTERVAL);
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_falls_or_goes_is_seen() {
        let text = |requests: u32| {
            format!(
                "# HELP x_total It.\nx_total{{a=\"b c\"}} {requests}\nx_bucket{{le=\"1\"}} 2\n\
                 open 7\nprocess_cpu_seconds_total 9\n"
            )
        };
        assert_eq!(counters(&text(1)).len(), 2);
        let mut seen = Seen::default();
        assert_eq!(seen.compare(counters(&text(5))), None);
        assert_eq!(seen.compare(counters(&text(5))), None);
        let backwards = seen.compare(counters(&text(4)));
        assert_eq!(backwards.unwrap(), "x_total{a=\"b c\"}: Some(4.0) after 5");
        assert!(seen.compare(HashMap::new()).is_some());
        assert_eq!((seen.scrapes, seen.backwards), (4, 3));
    }
}
