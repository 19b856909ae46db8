//! The requests that the generator chooses from, and how long each kind took.

use std::io;
use std::ops::Range;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::Options;
use super::summary::{PageLatency, Percentile, percentiles};
use crate::files::{DataSet, DataSetEntry};

const LATENCY_MAX_NS: u64 = 120_000_000_000;
/// Sum of the weights of cold and hot files.
const SHARE_UNIT: f64 = 10_000.0;
/// As the summary calls all files of a data set but the hot ones.
const COLD: &str = "cold";
/// As the summary calls those.
pub const HOT: &str = "hot";

/// A page to request, with its share of the requests.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Page {
    path: String,
    /// The length that the answer's body must have.
    body_len: u64,
    weight: u32,
}

/// A request in the bytes to send.
struct LoadRequest {
    bytes: Box<[u8]>,
    /// The length that the answer's body must have.
    body_len: u64,
    /// Index in `Requests::kinds`.
    kind: usize,
}

/// Requests that are counted together: those for one page, or for equally likely files.
struct RequestKind {
    name: String,
    /// Its requests in `Requests::all`.
    range: Range<usize>,
    /// The sum of the weights up to and with this one.
    weight_until: u32,
    latency_ns: Histogram<u64>,
    refused: u64,
}

/// All requests of a load.
pub struct Requests {
    all: Vec<LoadRequest>,
    kinds: Vec<RequestKind>,
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
    /// Makes the requests that `--sizes`, `--pages` or `--files` ask for.
    ///
    /// # Errors
    /// They make no sense, or there is no such data set.
    pub fn of(options: &Options) -> io::Result<Self> {
        let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
        let mut requests = Self {
            all: Vec::new(),
            kinds: Vec::new(),
        };
        if let Some(root) = &options.files {
            let set = DataSet::open(root)?;
            if !(0.0..=1.0).contains(&options.hot) {
                return Err(invalid(format!("--hot: {} is no share", options.hot)));
            }
            let hot = (options.hot * SHARE_UNIT).round() as u32;
            let cold = SHARE_UNIT as u32 - hot;
            requests.add(options, COLD, set.entries(), cold)?;
            requests.add(options, HOT, set.hot_entries(), hot)?;
            return requests.checked();
        }
        let pages = match &options.pages {
            Some(text) => parse(text, page).map_err(|part| {
                invalid(format!(
                    "--pages: {part:?} is not PATH=LENGTH or PATH=LENGTH:WEIGHT"
                ))
            }),
            None => parse(&options.sizes, size)
                .map_err(|part| invalid(format!("--sizes: {part:?} is not SIZE or SIZE:WEIGHT"))),
        }?;
        for page in pages {
            let entry = DataSetEntry {
                path: page.path.clone(),
                len: page.body_len,
            };
            requests.add(options, &page.path, std::iter::once(entry), page.weight)?;
        }
        requests.checked()
    }

    fn checked(self) -> io::Result<Self> {
        if self.kinds.is_empty() {
            let message = "there is nothing to ask for";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(self)
    }

    /// Adds a kind, unless its weight is zero or it is empty.
    fn add(
        &mut self,
        options: &Options,
        name: &str,
        entries: impl Iterator<Item = DataSetEntry>,
        weight: u32,
    ) -> io::Result<()> {
        let mut entries = entries.peekable();
        if weight == 0 || entries.peek().is_none() {
            return Ok(());
        }
        let connection = if options.no_keepalive {
            "Connection: close\r\n"
        } else {
            ""
        };
        let first = self.all.len();
        let kind = self.kinds.len();
        let address = options.to.to_string();
        let host = options.host.as_ref().unwrap_or(&address);
        self.all.extend(entries.map(|entry| {
            LoadRequest {
            bytes: format!(
                "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: lab\r\nAccept: */*\r\n{connection}\r\n",
                entry.path, host
            )
            .into_bytes()
            .into(),
            body_len: entry.len,
            kind,
        }
        }));
        self.kinds.push(RequestKind {
            name: name.to_owned(),
            range: first..self.all.len(),
            weight_until: self.total_weight() + weight,
            latency_ns: histogram()?,
            refused: 0,
        });
        Ok(())
    }

    fn total_weight(&self) -> u32 {
        self.kinds.last().map_or(0, |last| last.weight_until)
    }

    /// Draws a kind by the weights, and one of its requests.
    pub fn choose(&self, random: &mut fastrand::Rng) -> usize {
        let kind = match self.kinds.len() {
            1 => 0,
            _ => {
                let draw = random.u32(0..self.total_weight());
                self.kinds.partition_point(|kind| kind.weight_until <= draw)
            }
        };
        let range = self.kinds[kind].range.clone();
        match range.len() {
            1 => range.start,
            _ => random.usize(range),
        }
    }

    /// The bytes of a request.
    #[must_use]
    pub fn bytes(&self, request: usize) -> &[u8] {
        &self.all[request].bytes
    }

    /// The length that the answer's body must have.
    #[must_use]
    pub fn body_len(&self, request: usize) -> u64 {
        self.all[request].body_len
    }

    /// Keeps how long a request took.
    pub fn record(&mut self, request: usize, latency: Duration) {
        let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(LATENCY_MAX_NS);
        let kind = &mut self.kinds[self.all[request].kind];
        kind.latency_ns.saturating_record(latency_ns);
    }

    /// Counts an answer of 503.
    pub fn refuse(&mut self, request: usize) {
        self.kinds[self.all[request].kind].refused += 1;
    }

    /// Forgets how long requests took, and the answers of 503.
    pub fn forget(&mut self) {
        for kind in &mut self.kinds {
            kind.latency_ns.reset();
            kind.refused = 0;
        }
    }

    /// All answers of 503.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.refused).sum()
    }

    /// All kinds together.
    #[must_use]
    pub fn latency(&self) -> Latency {
        let mut sum = self.kinds[0].latency_ns.clone();
        for kind in &self.kinds[1..] {
            // They all have the same bounds, so that adding cannot fail.
            let _ = sum.add(&kind.latency_ns);
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
        if self.kinds.len() == 1 {
            return Vec::new();
        }
        let page = |kind: &RequestKind| PageLatency {
            path: kind.name.clone(),
            answered: kind.latency_ns.len(),
            refused: kind.refused,
            mean_us: kind.latency_ns.mean() / 1e3,
            percentiles: percentiles(&kind.latency_ns),
        };
        self.kinds.iter().map(page).collect()
    }
}

fn histogram() -> io::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3)
        .map_err(|error| io::Error::other(format!("latency histogram: {error}")))
}

/// Parses the parts between commas. The error is the first part that can't be parsed.
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

    fn options(arguments: &[&str]) -> Options {
        #[derive(clap::Parser)]
        struct Load {
            #[command(flatten)]
            options: Options,
        }
        let given = ["load", "--to=127.0.0.1:1"].iter().chain(arguments);
        <Load as clap::Parser>::parse_from(given).options
    }

    #[test]
    fn asks_for_cold_and_hot_files_by_their_shares() -> io::Result<()> {
        let root = std::env::temp_dir().join(format!("evenkeel-lab-load-{}", std::process::id()));
        let set = DataSet::make(&root, crate::files::Parameters::new(30, 5))?;
        let place = format!("--files={}", root.display());
        let requests = Requests::of(&options(&[&place, "--hot=0.25"]))?;
        let mut random = fastrand::Rng::with_seed(1);
        let drawn: Vec<usize> = (0..10_000).map(|_| requests.choose(&mut random)).collect();
        let hot = drawn.iter().filter(|at| **at >= 30).count();
        assert!((2_300..2_700).contains(&hot), "{hot}");
        assert!((0..230).all(|at| drawn.contains(&at)));
        let last = set.entries().last().expect("there are thirty");
        assert_eq!(requests.body_len(29), last.len);
        let line = format!("GET {} HTTP/1.1\r\n", last.path);
        assert!(requests.bytes(29).starts_with(line.as_bytes()));
        let only_hot = Requests::of(&options(&[&place, "--hot=1"]))?;
        assert_eq!(only_hot.kinds.len(), 1);
        assert!(Requests::of(&options(&[&place, "--hot=1.5"])).is_err());
        std::fs::remove_dir_all(&root)
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
