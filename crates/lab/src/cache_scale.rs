//! `evenkeel-lab cache-scale`: the cost of a hit, an insert and an object, by the number of
//! objects in a cache.
//!
//! Two processes run: one with few pages, and one with more and more. Rounds alternate between
//! them, so that other work of the machine affects both. CPU time is that of the whole process,
//! as the scheduler counts it.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use evenkeel_testkit::caching::client::{PageClient, Source};
use evenkeel_testkit::caching::origin::PageOrigin;
use evenkeel_testkit::caching::pages::{HOST, Lengths, Pages, path};
use evenkeel_testkit::changes::{Limit, Report};

use crate::bench::process::{LOAD_CORE, Process, stay_on};
use crate::bench::proxy::{Kind, Proxy, Site};

/// Most CPU time of a hit and of an insert, over that with few pages.
const RATIO_MAX: f64 = 1.15;
/// Most memory of a process for a page on its disk, in bytes.
const DISK_BYTES_MAX: f64 = 64.0;
/// Most memory for a page in memory, beyond its key, head and body, in bytes.
const MEMORY_BYTES_MAX: f64 = 128.0;
/// Memory above a disk, for some 500 pages: the least that there may be.
const LITTLE_MEMORY: &str = "1MiB";
/// Pages that are asked for time and again.
const HOT_PAGES: u64 = 1_000;
/// Rounds at each number of pages.
const ROUNDS: usize = 21;
/// Requests of a round for pages that are stored, and for pages that are not.
const HITS: usize = 12_000;
const INSERTS: u64 = 5_000;
/// Connections that ask for stored pages.
const CONNECTIONS: usize = 32;
/// Connections that fill a cache.
const FILLING: usize = 4;
/// One in this many pages may share its place in the index of a disk with another. Only the one
/// stored last is then found.
const SHARING: u64 = 500_000;
/// How often pages are asked for that were not stored: the disk may be busy.
const FILLS_MAX: usize = 20;

/// Options of `evenkeel-lab cache-scale`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The program to measure.
    #[arg(long, default_value = "target/optimised/evenkeel")]
    evenkeel: PathBuf,
    /// The folder for configurations and stores.
    #[arg(long, default_value = "target/cache-scale")]
    out: PathBuf,
    /// Most pages on a disk: 2,100 bytes each; 0 leaves it out.
    #[arg(long, default_value_t = 10_000_000)]
    on_disk: u64,
    /// Most pages in memory: 800 bytes each; 0 leaves it out.
    #[arg(long, default_value_t = 1_000_000)]
    in_memory: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Store {
    Disk,
    Memory,
}

/// Measures both stores, prints the findings, and returns whether all limits hold.
///
/// # Errors
/// A program can't be started, or does not answer.
pub fn run(options: &Options) -> io::Result<bool> {
    stay_on(&[LOAD_CORE])?;
    let mut passes = true;
    for (store, most) in [
        (Store::Disk, options.on_disk),
        (Store::Memory, options.in_memory),
    ] {
        if most < store.few() {
            continue;
        }
        let report = measure(options, store, most)?;
        println!("{report}");
        passes &= report.passes();
    }
    Ok(passes)
}

fn measure(options: &Options, store: Store, most: u64) -> io::Result<Report> {
    let mut report = Report::of(match store {
        Store::Disk => format!("up to {most} pages on a disk"),
        Store::Memory => format!("up to {most} pages in memory"),
    });
    let now = httpdate::fmt_http_date(SystemTime::now());
    let fields = format!("Date: {now}\r\nCache-Control: max-age=86400\r\n");
    let pages = Pages::new(Lengths::Same(store.body_len()), &fields);
    let origin = PageOrigin::start(pages.clone())?;
    let site = Site::new(&options.out, &options.evenkeel)?;
    let start = |name: &str| {
        let name = format!("{store:?}-{name}").to_lowercase();
        Caching::start(&site, &name, store, most, &pages, &origin)
    };
    let mut few = start("few")?;
    let mut many = start("many")?;
    let least = store.few();
    few.fill(least)?;
    many.fill(least)?;
    // Both have opened their connections and files.
    for caching in [&few, &many] {
        caching.hits(least)?;
    }
    let before = many.rss_bytes();
    let mut counts = vec![least, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, most];
    counts.retain(|count| (least..=most).contains(count));
    counts.sort_unstable();
    counts.dedup();
    for count in counts {
        many.fill(count)?;
        let title = format!("{count} pages");
        let [ratio, us] = compare(&few, &many, |it| it.hits(least), |it| it.hits(count))?;
        report.tell(format!("{title}: us of a hit"), us);
        let what = format!("{title}: a hit, over one of {least} pages");
        report.require(what, ratio, Limit::AtMost(RATIO_MAX));
        if count >= 100_000 {
            let bytes = many.rss_bytes().saturating_sub(before) as f64 / (count - least) as f64;
            let (beside, limit) = match store {
                Store::Disk => (bytes, DISK_BYTES_MAX),
                Store::Memory => (
                    bytes - page_bytes(&pages, count / 2) as f64,
                    MEMORY_BYTES_MAX,
                ),
            };
            let what = format!("{title}: bytes of memory for a page, beside it");
            // A table that has just grown has much room.
            if count == most {
                report.require(what, beside, Limit::AtMost(limit));
            } else {
                report.tell(what, beside);
            }
            let [ratio, us] = compare(&few, &many, |it| it.hits(least), |it| it.any_hits(count))?;
            report.tell(format!("{title}: us of a hit among all of them"), us);
            report.tell(
                format!("{title}: the same, over one of {least} pages"),
                ratio,
            );
        }
    }
    let [ratio, us] = compare_inserts(&mut few, &mut many)?;
    report.tell(format!("{most} pages: us of an insert"), us);
    let what = format!("{most} pages: an insert, over one into a store that is nearly empty");
    report.require(what, ratio, Limit::AtMost(RATIO_MAX));
    let missed = few.missed + many.missed;
    let what = "pages that were stored and not found";
    report.require(what, missed, Limit::AtMost(2.0));
    Ok(report)
}

/// Bytes of a page's key, head and body.
fn page_bytes(pages: &Pages, number: u64) -> usize {
    let mut response = Vec::new();
    pages.push_response(number, &mut response);
    response.len() + format!("http://{HOST}{}", path(number)).len()
}

/// Medians over rounds of CPU time with many pages over that with few, and of the former in
/// microseconds.
fn compare(
    few: &Caching<'_>,
    many: &Caching<'_>,
    of_few: impl Fn(&Caching<'_>) -> io::Result<Duration>,
    of_many: impl Fn(&Caching<'_>) -> io::Result<Duration>,
) -> io::Result<[f64; 2]> {
    let mut rounds = Vec::new();
    // Once for the page cache and for what else is cold.
    of_many(many)?;
    for _ in 0..ROUNDS {
        rounds.push((of_few(few)?, of_many(many)?));
    }
    Ok(medians(&rounds, HITS as f64))
}

/// The same for inserts, which use each page once.
fn compare_inserts(few: &mut Caching<'_>, many: &mut Caching<'_>) -> io::Result<[f64; 2]> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push((few.inserts()?, many.inserts()?));
    }
    Ok(medians(&rounds, INSERTS as f64))
}

fn medians(rounds: &[(Duration, Duration)], each: f64) -> [f64; 2] {
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let of = rounds.iter();
    let ratios = of
        .clone()
        .map(|(few, many)| many.as_secs_f64() / few.as_secs_f64());
    let us = of.map(|(_, many)| many.as_secs_f64() * 1e6 / each);
    [median(ratios.collect()), median(us.collect())]
}

/// A program with a cache.
struct Caching<'a> {
    store: Store,
    pages: &'a Pages,
    origin: &'a PageOrigin,
    address: SocketAddr,
    process: Process,
    /// Pages from 0 on that are stored.
    count: u64,
    missed: usize,
}

impl<'a> Caching<'a> {
    fn start(
        site: &Site,
        name: &str,
        store: Store,
        most: u64,
        pages: &'a Pages,
        origin: &'a PageOrigin,
    ) -> io::Result<Self> {
        let folder = site.folder.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let Proxy {
            address, process, ..
        } = site.start_configured(Kind::Evenkeel, name, |address, folder| {
            config(address, origin.address, "", &store.settings(most, folder))
        })?;
        Ok(Caching {
            store,
            pages,
            origin,
            address,
            process: process.ok_or_else(|| io::Error::other("there is no process"))?,
            count: 0,
            missed: 0,
        })
    }

    fn rss_bytes(&self) -> u64 {
        self.process.memory().rss
    }

    /// Stores pages until there are this many.
    fn fill(&mut self, count: u64) -> io::Result<()> {
        let mut missing: Vec<u64> = (self.count..count).collect();
        for _ in 0..FILLS_MAX {
            missing = self.ask_in_parts(&missing)?;
            if missing.len() as u64 <= count / SHARING {
                self.count = count;
                return Ok(());
            }
        }
        Err(io::Error::other("the store does not take all pages"))
    }

    /// Asks for pages over several connections; returns those that were not stored.
    fn ask_in_parts(&self, numbers: &[u64]) -> io::Result<Vec<u64>> {
        let part = numbers.len().div_ceil(FILLING).max(1);
        std::thread::scope(|scope| {
            let parts = numbers.chunks(part);
            let parts: Vec<_> = parts.map(|it| scope.spawn(|| self.ask(it))).collect();
            let mut missing = Vec::new();
            for part in parts {
                let asked = part.join();
                let asked = asked.unwrap_or_else(|_| Err(io::Error::other("a client panicked")))?;
                missing.extend(asked);
            }
            Ok(missing)
        })
    }

    /// Asks for pages; returns those that were not stored.
    fn ask(&self, numbers: &[u64]) -> io::Result<Vec<u64>> {
        let mut client = PageClient::connect(self.pages, self.address)?;
        let mut missing = Vec::new();
        client.ask_all(numbers, |number, source| {
            if source == Source::Origin {
                missing.push(number);
            }
        })?;
        Ok(missing)
    }

    /// CPU time of hits: always the same of the first `count` pages, in turn.
    fn hits(&self, count: u64) -> io::Result<Duration> {
        let first = self.store.first_hot();
        let pages = HOT_PAGES.min(count);
        let step = (count - first) / pages;
        let numbers = (0..HITS as u64).map(|at| first + at % pages * step);
        self.cpu_of_hits(numbers)
    }

    /// CPU time of hits among the first `count` pages.
    fn any_hits(&self, count: u64) -> io::Result<Duration> {
        let numbers = std::iter::repeat_with(|| fastrand::u64(..count));
        self.cpu_of_hits(numbers.take(HITS))
    }

    fn cpu_of_hits(&self, numbers: impl Iterator<Item = u64>) -> io::Result<Duration> {
        let numbers: Vec<u64> = numbers.collect();
        let asked = self.origin.asked();
        let clients = (0..CONNECTIONS).map(|_| PageClient::connect(self.pages, self.address));
        let mut clients = clients.collect::<io::Result<Vec<_>>>()?;
        let mut stored = 0;
        let before = self.process.cpu_time();
        PageClient::ask_over(&mut clients, &numbers, |_, source| {
            stored += u64::from(source == Source::Store);
        })?;
        let took = self.process.cpu_time().saturating_sub(before);
        let missed = HITS as u64 - stored;
        // A few of many share their places in the index.
        if missed > 2 || self.origin.asked() > asked + missed {
            let message = format!("{missed} of {HITS} pages are not stored");
            return Err(io::Error::other(message));
        }
        Ok(took)
    }

    /// CPU time of inserts, until they are on the disk.
    fn inserts(&mut self) -> io::Result<Duration> {
        let numbers: Vec<u64> = (self.count..self.count + INSERTS).collect();
        self.count += INSERTS;
        let before = self.process.cpu_time();
        self.ask(&numbers)?;
        // Wait until the writer has emptied its queue.
        let mut after = self.process.cpu_time();
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let now = self.process.cpu_time();
            if now - after < Duration::from_millis(1) {
                break;
            }
            after = now;
        }
        self.missed += self.ask(&numbers)?.len();
        Ok(after.saturating_sub(before))
    }
}

impl Store {
    /// Length of a body in bytes. On a disk it is so large that the smallest memory holds few
    /// bodies.
    fn body_len(self) -> usize {
        match self {
            Store::Disk => 1_700,
            Store::Memory => 300,
        }
    }

    /// The pages to begin with.
    fn few(self) -> u64 {
        match self {
            Store::Disk => 1_600,
            Store::Memory => 10,
        }
    }

    /// The 1,000 pages that are requested again and again. For a disk, these are twice as many
    /// as the memory above holds or remembers, and not the first pages, which stay in memory.
    /// Requested in turn, each comes from the disk.
    fn first_hot(self) -> u64 {
        match self {
            Store::Disk => 600,
            Store::Memory => 0,
        }
    }

    fn settings(self, most: u64, folder: &Path) -> String {
        match self {
            Store::Disk => {
                let mib = ((most * 2_300) >> 20) + 256;
                let folder = folder.display();
                format!(
                    "memory = \"{LITTLE_MEMORY}\"\n\
                     disk = {{ path = \"{folder}/store\", size = \"{mib}MiB\" }}\n"
                )
            }
            Store::Memory => format!("memory = \"{}MiB\"\n", ((most * 1_600) >> 20) + 256),
        }
    }
}

/// One worker with a cache. `server` and `cache` are further lines of these tables.
pub fn config(address: SocketAddr, origin: SocketAddr, server: &str, cache: &str) -> String {
    format!(
        "[server]\nworkers = 1\n{server}\
         [[listener]]\nbind = \"{address}\"\n\
         [[route]]\nupstream = \"app\"\ncache = \"main\"\n\
         [upstream.app]\nendpoints = [\"{origin}\"]\n[cache.main]\n{cache}"
    )
}
