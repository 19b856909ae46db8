//! `evenkeel-lab cache-pauses`: the longest pause of a worker while its cache evicts, while
//! half of its responses expire at once, and while it is purged.
//!
//! One worker serves a cache with very many pages. A probe asks for one page every
//! millisecond, and takes the time of each answer. Other programs of the machine lengthen
//! that: the time in which the worker or the probe could run and had no CPU is taken off.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use evenkeel_testkit::caching::client::{PageClient, Source};
use evenkeel_testkit::caching::origin::PageOrigin;
use evenkeel_testkit::caching::pages::{HOST, Lengths, Pages};
use evenkeel_testkit::changes::{Limit, Report};
use evenkeel_testkit::deadline::{STEP, holds_within};

use crate::bench::process::{LOAD_CORE, Thread, output_of, stay_on};
use crate::bench::proxy::{Kind, Site};
use crate::cache_scale::config;

/// Longest pause.
const PAUSE_MAX_MS: f64 = 5.0;
/// Bytes of a body.
const BODY_LEN: usize = 600;
/// Memory of an object with such a body, or a little less.
const OBJECT_BYTES: u64 = 1024;
/// Memory above a disk.
const MEMORY_MIB: u64 = 64;
/// Time between two requests of the probe.
const PROBE_INTERVAL: Duration = Duration::from_millis(1);
/// How long it probes around an event, and when the event comes.
const PROBE_TIME: Duration = Duration::from_secs(5);
const EVENT_AFTER: Duration = Duration::from_secs(1);
/// Pages that are stored in a second while the probe runs, a batch at a time.
const INSERTS_A_SECOND: u64 = 10_000;
const BATCH: u64 = 50;
/// The page that the probe asks for.
const PROBED: u64 = 0;

/// Options of `evenkeel-lab cache-pauses`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The program to measure.
    #[arg(long, default_value = "target/optimised/evenkeel")]
    evenkeel: PathBuf,
    /// The folder for the configuration and the store.
    #[arg(long, default_value = "target/cache-pauses")]
    out: PathBuf,
    /// Pages in the cache.
    #[arg(long, default_value_t = 1_000_000)]
    pages: u64,
    /// Only these stores; may be given more than once.
    #[arg(long = "store", value_enum)]
    stores: Vec<Store>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Store {
    /// All pages are in memory.
    Memory,
    /// All pages are on a disk, and few in memory.
    Disk,
}

/// Measures each store, prints the findings, and returns whether no pause was too long.
///
/// # Errors
/// A program can't be started, or a load fails.
pub fn run(options: &Options) -> io::Result<bool> {
    let stores = match &*options.stores {
        [] => &[Store::Memory, Store::Disk],
        some => some,
    };
    stay_on(&[LOAD_CORE])?;
    let mut passes = true;
    for store in stores {
        let report = measure(options, *store)?;
        println!("{report}");
        passes &= report.passes();
    }
    Ok(passes)
}

fn measure(options: &Options, store: Store) -> io::Result<Report> {
    let mut report = Report::of(match store {
        Store::Memory => format!("{} pages in memory", options.pages),
        Store::Disk => format!("{} pages on a disk", options.pages),
    });
    // Filling the cache takes less.
    let expiry = SystemTime::now() + Duration::from_secs(30 + options.pages / 5_000);
    let expires = format!(
        "Expires: {}\r\nSurrogate-Key: odd\r\n",
        httpdate::fmt_http_date(expiry)
    );
    let lasts = "Cache-Control: max-age=86400\r\nSurrogate-Key: even\r\n";
    let pages = Pages::of_two_kinds(Lengths::Same(BODY_LEN), [lasts, &expires]);
    let origin = PageOrigin::start(pages.clone())?;
    let site = Site::new(&options.out, &options.evenkeel)?;
    let name = format!("{store:?}").to_lowercase();
    let folder = site.folder.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let proxy = site.start_configured(Kind::Evenkeel, &name, |address, folder| {
        let settings = store.settings(options.pages, folder);
        let control = format!("control = \"{}/control.sock\"\n", folder.display());
        config(address, origin.address, &control, &settings)
    })?;
    let mut worker = None;
    holds_within(STEP, || {
        let process = proxy.process.iter();
        worker = process.flat_map(|it| it.threads_named("worker-")).next();
        worker.is_some()
    });
    let worker = worker.ok_or_else(|| io::Error::other("there is no worker"))?;
    let mut measured = Measured {
        options,
        pages: &pages,
        address: proxy.address,
        worker,
        socket: folder.join("control.sock"),
        next: 0,
    };
    // Some pages with the probe, the others as fast as possible.
    let few = options.pages / 10;
    measured.probe(&mut report, "pages are stored, with room", |it| {
        it.insert_slowly()
    })?;
    measured.insert(few)?;
    measured.probe(&mut report, "nothing", |_| Ok(()))?;
    let rest = options.pages.saturating_sub(measured.next);
    measured.insert(rest)?;
    measured.probe(&mut report, "nothing, with all pages", |_| Ok(()))?;
    // Beyond the room, which is a little more.
    measured.insert(options.pages / 2)?;
    let what = "pages are stored, and others go";
    measured.probe(&mut report, what, |it| it.insert_slowly())?;
    let gone = measured.gone()?;
    report.require(format!("{what}: of 1,000"), gone, Limit::AtLeast(1.0));
    let until = expiry.duration_since(SystemTime::now()).unwrap_or_default();
    std::thread::sleep(until.saturating_sub(EVENT_AFTER));
    measured.probe(&mut report, "half of the pages expire", |_| Ok(()))?;
    for (what, words) in [
        (
            "a soft purge of a tag, of half the pages",
            &["tag", "odd", "--soft"][..],
        ),
        ("a purge of a tag, of half the pages", &["tag", "odd"]),
        ("a soft purge of a prefix", &["prefix", "URL", "--soft"]),
        ("a purge of a prefix", &["prefix", "URL"]),
        ("a soft purge of everything", &["everything", "--soft"]),
        ("a purge of everything", &["everything"]),
    ] {
        measured.probe(&mut report, what, |it| it.purge(words))?;
    }
    measured.probe(&mut report, "what was purged is swept", |_| Ok(()))?;
    measured.probe(&mut report, "pages are stored after a purge", |it| {
        it.insert_slowly()
    })?;
    measured.probe(&mut report, "nothing, at the end", |_| Ok(()))?;
    Ok(report)
}

impl Store {
    /// The settings of a cache for this many pages and a few more.
    fn settings(self, pages: u64, folder: &Path) -> String {
        let mib = (pages * OBJECT_BYTES) >> 20;
        match self {
            Store::Memory => format!("memory = \"{mib}MiB\"\n"),
            Store::Disk => format!(
                "memory = \"{MEMORY_MIB}MiB\"\ndisk = {{ path = \"{}/store\", size = \"{mib}MiB\" }}\n",
                folder.display()
            ),
        }
    }
}

/// An answer to the probe.
struct Answer {
    took: Duration,
    /// Time in which the worker or the probe waited for a CPU that others had.
    waited_for_cpu: Duration,
}

/// A program with its pages.
struct Measured<'a> {
    options: &'a Options,
    pages: &'a Pages,
    address: SocketAddr,
    worker: Thread,
    socket: PathBuf,
    /// Number of the next page that is not stored yet.
    next: u64,
}

impl<'a> Measured<'a> {
    /// Probes while something happens, and adds the longest pause to the report.
    fn probe(
        &mut self,
        report: &mut Report,
        what: &str,
        event: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut client = self.connect()?;
        // Wait until it is stored and fresh.
        while client.ask(PROBED)? != Source::Store {}
        let worker = self.worker;
        let answers = std::thread::scope(|scope| {
            let probe = scope.spawn(move || -> io::Result<_> {
                let mut answers = Vec::new();
                let threads = [worker, Thread::current()];
                let began = Instant::now();
                while began.elapsed() < PROBE_TIME {
                    std::thread::sleep(PROBE_INTERVAL);
                    let before = threads.map(Thread::waited_for_cpu);
                    let asked = Instant::now();
                    client.ask(PROBED)?;
                    let took = asked.elapsed();
                    let after = threads.map(Thread::waited_for_cpu);
                    let waits = before.into_iter().zip(after);
                    let waits = waits.map(|(before, after)| after.saturating_sub(before));
                    answers.push(Answer {
                        took,
                        waited_for_cpu: waits.sum(),
                    });
                }
                Ok(answers)
            });
            std::thread::sleep(EVENT_AFTER);
            event(self)?;
            probe
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the probe panicked")))
        })?;
        let most = |of: fn(&Answer) -> Duration| {
            let most = answers.iter().map(of).max().unwrap_or_default();
            most.as_secs_f64() * 1e3
        };
        report.tell(format!("{what}: ms"), most(|it| it.took));
        let without = most(|it| it.took.saturating_sub(it.waited_for_cpu));
        let limit = Limit::AtMost(PAUSE_MAX_MS);
        report.require(format!("{what}: without waits for a CPU"), without, limit);
        Ok(())
    }

    fn connect(&self) -> io::Result<PageClient<'a>> {
        PageClient::connect(self.pages, self.address)
    }

    /// Stores this many further pages, as fast as possible.
    fn insert(&mut self, count: u64) -> io::Result<()> {
        let mut client = self.connect()?;
        let numbers: Vec<u64> = (self.next..self.next + count).collect();
        self.next += count;
        client.ask_all(&numbers, |_, _| {})
    }

    /// How many are not stored any more, of a thousand pages that do not expire.
    fn gone(&self) -> io::Result<u64> {
        let step = self.next / 1_000 / 2 * 2;
        let numbers: Vec<u64> = (0..1_000).map(|at| at * step).collect();
        let mut gone = 0;
        let mut client = self.connect()?;
        client.ask_all(&numbers, |_, source| {
            gone += u64::from(source == Source::Origin)
        })?;
        Ok(gone)
    }

    /// Has further pages stored at a steady rate, for as long as the probe goes on.
    fn insert_slowly(&mut self) -> io::Result<()> {
        let began = Instant::now();
        let mut due = began;
        while began.elapsed() < PROBE_TIME - 2 * EVENT_AFTER {
            self.insert(BATCH)?;
            due += Duration::from_secs(BATCH) / INSERTS_A_SECOND as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// Purges with these words; `URL` stands for that of the folder of all pages.
    fn purge(&self, words: &[&str]) -> io::Result<()> {
        let url = format!("http://{HOST}/pages/");
        let mut command = Command::new(&self.options.evenkeel);
        command
            .args(["ctl", "--socket"])
            .arg(&self.socket)
            .arg("purge");
        command.args(words.iter().map(|it| if *it == "URL" { &url } else { *it }));
        output_of(&mut command).map(drop)
    }
}
