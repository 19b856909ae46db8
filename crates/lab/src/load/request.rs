//! The requests that the generator chooses from, and how long each kind took.

use std::io;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::Options;
use super::summary::{PageLatency, Percentile, percentiles};

const LATENCY_MAX_NS: u64 = 120_000_000_000;

/// What is asked for, with its share of the requests.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Page {
    path: String,
    /// The length that the answer's body must have.
    body_len: u64,
    weight: u32,
}

/// A request as it is sent.
struct Request {
    page: Page,
    bytes: Vec<u8>,
    /// The sum of the weights up to and with this one.
    weight_until: u32,
    latency_ns: Histogram<u64>,
}

/// All kinds of requests of a load.
pub struct Requests {
    all: Vec<Request>,
}

/// How long the requests of all kinds together took.
#[derive(Debug)]
pub struct Latency {
    /// How many there were.
    pub answered: u64,
    /// In microseconds.
    pub mean_us: f64,
    /// From the median outwards.
    pub percentiles: Vec<Percentile>,
}

impl Requests {
    /// Makes the requests that `--sizes` or `--pages` ask for.
    ///
    /// # Errors
    /// Either makes no sense.
    pub fn of(options: &Options) -> io::Result<Self> {
        let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
        let pages = match &options.pages {
            Some(text) => parse(text, page).map_err(|part| {
                invalid(format!(
                    "--pages: {part:?} is not PATH=LENGTH or PATH=LENGTH:WEIGHT"
                ))
            }),
            None => parse(&options.sizes, size)
                .map_err(|part| invalid(format!("--sizes: {part:?} is not SIZE or SIZE:WEIGHT"))),
        }?;
        let connection = match options.no_keepalive {
            true => "Connection: close\r\n",
            false => "",
        };
        let mut weight_until = 0;
        let mut all = Vec::new();
        for page in pages {
            weight_until += page.weight;
            all.push(Request {
                bytes: format!(
                    "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: lab\r\nAccept: */*\r\n{connection}\r\n",
                    page.path, options.to
                )
                .into_bytes(),
                page,
                weight_until,
                latency_ns: histogram()?,
            });
        }
        Ok(Self { all })
    }

    /// Draws one by the weights.
    pub fn choose(&self, random: &mut fastrand::Rng) -> usize {
        if self.all.len() == 1 {
            return 0;
        }
        let total = self.all.last().map_or(1, |last| last.weight_until);
        let draw = random.u32(0..total);
        self.all
            .partition_point(|request| request.weight_until <= draw)
    }

    /// A request as it is sent.
    #[must_use]
    pub fn bytes(&self, request: usize) -> &[u8] {
        &self.all[request].bytes
    }

    /// The length that the answer's body must have.
    #[must_use]
    pub fn body_len(&self, request: usize) -> u64 {
        self.all[request].page.body_len
    }

    /// Keeps how long a request took.
    pub fn record(&mut self, request: usize, latency: Duration) {
        let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(LATENCY_MAX_NS);
        self.all[request].latency_ns.saturating_record(latency_ns);
    }

    /// All kinds together.
    #[must_use]
    pub fn latency(&self) -> Latency {
        let mut sum = self.all[0].latency_ns.clone();
        for request in &self.all[1..] {
            // They all have the same bounds, so that adding cannot fail.
            let _ = sum.add(&request.latency_ns);
        }
        Latency {
            answered: sum.len(),
            mean_us: sum.mean() / 1e3,
            percentiles: percentiles(&sum),
        }
    }

    /// Each kind by itself, where there are several.
    #[must_use]
    pub fn pages(&self) -> Vec<PageLatency> {
        if self.all.len() == 1 {
            return Vec::new();
        }
        let page = |request: &Request| PageLatency {
            path: request.page.path.clone(),
            answered: request.latency_ns.len(),
            mean_us: request.latency_ns.mean() / 1e3,
            percentiles: percentiles(&request.latency_ns),
        };
        self.all.iter().map(page).collect()
    }
}

fn histogram() -> io::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3)
        .map_err(|error| io::Error::other(format!("latency histogram: {error}")))
}

/// Reads the parts between commas; the error is the one that makes no sense.
fn parse(text: &str, part: impl Fn(&str) -> Option<Page>) -> Result<Vec<Page>, String> {
    text.split(',')
        .map(|text| part(text).ok_or_else(|| text.to_owned()))
        .collect()
}

fn size(text: &str) -> Option<Page> {
    let (size, weight) = text.split_once(':').unwrap_or((text, "1"));
    let body_len: u64 = size.parse().ok()?;
    Some(Page {
        path: format!("/{body_len}"),
        body_len,
        weight: weight.parse().ok()?,
    })
}

fn page(text: &str) -> Option<Page> {
    let (path, rest) = text.split_once('=')?;
    let (body_len, weight) = rest.split_once(':').unwrap_or((rest, "1"));
    path.starts_with('/').then_some(())?;
    Some(Page {
        path: path.to_owned(),
        body_len: body_len.parse().ok()?,
        weight: weight.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(path: &str, body_len: u64, weight: u32) -> Page {
        Page {
            path: path.to_owned(),
            body_len,
            weight,
        }
    }

    #[test]
    fn reads_sizes_and_pages() {
        assert_eq!(
            parse("44:70,1024", size),
            Ok(vec![wanted("/44", 44, 70), wanted("/1024", 1024, 1)])
        );
        assert_eq!(
            parse("/slow/5=4:95,/ping=4", page),
            Ok(vec![wanted("/slow/5", 4, 95), wanted("/ping", 4, 1)])
        );
        assert_eq!(parse("44,many", size), Err("many".to_owned()));
        for text in ["ping=4", "/ping", "/ping=4:"] {
            assert_eq!(parse(text, page), Err(text.to_owned()));
        }
    }
}
