//! `kill -9` under load, again and again: stored responses must survive, unchanged.
//!
//! The store is filled with pages first. In each turn clients ask for stored and for new
//! pages, and the process is killed at a random moment. The next process is asked for pages
//! that were written long before. Each page is asked for once in a process: a hit comes
//! from the disk.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::client::{PageClient, Source};
use super::origin::PageOrigin;
use super::pages::{Lengths, Pages};
use crate::changes::{Limit, Report};
use crate::deadline::STEP;
use crate::proxy::Proxy;
use crate::temp::TempDir;

/// Longest time from a start to the first hit.
const FIRST_HIT_MAX_MS: f64 = 1000.0;
/// Longest load before a kill.
const LOAD_MAX: Duration = Duration::from_millis(1500);
/// Longest load before a kill that comes right after a start.
const EARLY_LOAD_MAX: Duration = Duration::from_millis(60);
/// Pages that a client asks for in one go.
const BATCH: u64 = 64;
/// How often pages are asked for that were not stored yet: the store may be busy.
const FILLS_MAX: usize = 20;
/// Failures that are kept in words.
const FAILURES_KEPT: usize = 20;

/// How much there is of it.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Pages that are stored first.
    pub pages: u64,
    /// How often the process is killed.
    pub kills: u64,
    /// Size of the store on the disk, in MiB.
    pub disk_mib: u64,
    /// Size of the store in memory, in MiB.
    pub memory_mib: u64,
    /// Clients under load.
    pub clients: u64,
    /// Stored pages that are asked for after each start.
    pub checked: u64,
    /// Whether the time to the first hit is held to its limit: it means nothing where
    /// other programs want the cores.
    pub is_timed: bool,
}

impl Plan {
    /// 1,000,000 pages, 100 kills.
    pub const WHOLE: Plan = Plan {
        pages: 1_000_000,
        kills: 100,
        disk_mib: 3 << 10,
        memory_mib: 32,
        clients: 16,
        checked: 5_000,
        is_timed: true,
    };
    /// A part of that.
    pub const PART: Plan = Plan {
        pages: 2_000,
        kills: 4,
        disk_mib: 64,
        memory_mib: 16,
        clients: 4,
        checked: 500,
        is_timed: false,
    };
}

/// Fills the store, and kills its process as often as the plan says. The store is a folder
/// below `parent`.
///
/// # Errors
/// Something can't be started.
pub fn run(program: &Path, parent: &Path, plan: &Plan) -> io::Result<Report> {
    let mut report = Report::of(format!(
        "{} pages in a cache on a disk, killed {} times under load",
        plan.pages, plan.kills
    ));
    let seed = fastrand::u32(..);
    report.tell("seed", seed);
    let mut random = fastrand::Rng::with_seed(seed.into());
    let dir = TempDir::new_in(parent)?;
    let pages = Pages::new(Lengths::Mixed, "Cache-Control: max-age=86400\r\n");
    let origin = PageOrigin::start(pages.clone())?;
    let site = CrashSite {
        program,
        plan,
        pages,
        origin,
        store: dir.join("store"),
        new_pages: AtomicU64::new(plan.pages),
        seen: Seen::default(),
    };
    let mut proxy = site.start()?;
    let began = Instant::now();
    site.fill(proxy.socket_addr("web"))?;
    report.tell("s to fill it", began.elapsed().as_secs_f64());
    report.tell("MB after that", site.store_bytes()? as f64 / 1e6);
    let mut turns = Turns::default();
    for kill in 0..plan.kills {
        // One process in three is killed while it still reads its disk's index.
        let (load_max, checked) = match kill % 3 {
            0 => (EARLY_LOAD_MAX, plan.checked),
            1 => (LOAD_MAX, plan.checked),
            _ => (LOAD_MAX, 0),
        };
        let turn = Turn {
            load: load_max.mul_f64(random.f64().powi(2)),
            checked,
            seed: random.u64(..),
        };
        proxy = site.turn(proxy, &turn, &mut turns)?;
    }
    turns.report(&mut report, plan);
    let (found, asked) = site.ask_all(proxy.socket_addr("web"), 0..plan.pages);
    report.tell(
        "share of the first pages that is stored at the end",
        found as f64 / asked as f64,
    );
    site.seen.report(&mut report);
    Ok(report)
}

/// A load, a kill and a start.
struct Turn {
    load: Duration,
    /// Stored pages that are asked for after the start.
    checked: u64,
    seed: u64,
}

/// Figures of all turns.
#[derive(Debug, Default)]
struct Turns {
    first_hits: Vec<Duration>,
    /// Of the pages asked for after a start.
    found: u64,
    asked: u64,
    most_bytes: u64,
    most_rss: u64,
    /// Lines of the event log about damage.
    damaged: usize,
    /// Answers that say they are from the store, and for which the origin was asked.
    false_hits: u64,
}

impl Turns {
    fn report(mut self, report: &mut Report, plan: &Plan) {
        self.first_hits.sort_unstable();
        let millis = |at: usize| self.first_hits[at].as_secs_f64() * 1e3;
        let last = self.first_hits.len() - 1;
        report.tell("ms from a start to the first hit: median", millis(last / 2));
        let what = "ms from a start to the first hit: the most";
        if plan.is_timed {
            report.require(what, millis(last), Limit::AtMost(FIRST_HIT_MAX_MS));
        } else {
            report.tell(what, millis(last));
        }
        let share = self.found as f64 / self.asked as f64;
        report.tell(
            "share of the pages asked for after a start that was stored",
            share,
        );
        let limit = Limit::AtMost(plan.disk_mib as f64 * 1.048_576);
        report.require(
            "MB of the store, the most",
            self.most_bytes as f64 / 1e6,
            limit,
        );
        report.tell("MB of the process, the most", self.most_rss as f64 / 1e6);
        report.require_none("lines of the event log about damage", self.damaged);
        report.require_none("hits for which the origin was asked", self.false_hits);
    }
}

/// The observations of all clients.
#[derive(Debug, Default)]
struct Seen {
    from_store: AtomicU64,
    from_origin: AtomicU64,
    wrong: AtomicU64,
    silent: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Seen {
    fn note(&self, source: Source) {
        let count = match source {
            Source::Store => &self.from_store,
            Source::Origin => &self.from_origin,
        };
        count.fetch_add(1, Relaxed);
    }

    /// Notes a failure. A connection may end: its process was killed.
    fn fail(&self, error: &io::Error) {
        let count = match error.kind() {
            io::ErrorKind::InvalidData => &self.wrong,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => &self.silent,
            _ => return,
        };
        count.fetch_add(1, Relaxed);
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() < FAILURES_KEPT {
            failures.push(error.to_string());
        }
    }

    fn report(&self, report: &mut Report) {
        report.tell(
            "answers from the store, all bytes compared",
            self.from_store.load(Relaxed),
        );
        report.tell(
            "answers from the origin, all bytes compared",
            self.from_origin.load(Relaxed),
        );
        report.require_none("answers with a wrong byte", self.wrong.load(Relaxed));
        report.require_none(
            "requests without an answer in time",
            self.silent.load(Relaxed),
        );
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        report.failures.extend(failures.iter().cloned());
    }
}

struct CrashSite<'a> {
    program: &'a Path,
    plan: &'a Plan,
    pages: Pages,
    origin: PageOrigin,
    /// The folder of the store.
    store: PathBuf,
    /// Number of the next page that no client has asked for.
    new_pages: AtomicU64,
    seen: Seen,
}

impl CrashSite<'_> {
    fn start(&self) -> io::Result<Proxy> {
        let config = format!(
            "[server]\nworkers = 2\n\
             [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\
             [[route]]\nupstream = \"app\"\ncache = \"main\"\n\
             [upstream.app]\nendpoints = [\"{}\"]\n\
             [cache.main]\nmemory = \"{}MiB\"\ndisk = {{ path = \"{}\", size = \"{}MiB\" }}\n",
            self.origin.address,
            self.plan.memory_mib,
            self.store.display(),
            self.plan.disk_mib,
        );
        Proxy::start(self.program, &config)
    }

    /// Stores all first pages.
    fn fill(&self, address: SocketAddr) -> io::Result<()> {
        for _ in 0..FILLS_MAX {
            let (found, asked) = self.ask_all(address, 0..self.plan.pages);
            if found == asked {
                return Ok(());
            }
        }
        Err(io::Error::other("the store does not take all pages"))
    }

    /// Asks for these pages; how many were stored, and how many answered.
    fn ask_all(&self, address: SocketAddr, numbers: Range<u64>) -> (u64, u64) {
        let next = AtomicU64::new(numbers.start);
        let found = AtomicU64::new(0);
        let asked = AtomicU64::new(0);
        let work = || -> io::Result<()> {
            let mut client = PageClient::connect(&self.pages, address)?;
            loop {
                let from = next.fetch_add(BATCH, Relaxed);
                if from >= numbers.end {
                    return Ok(());
                }
                let batch: Vec<u64> = (from..numbers.end.min(from + BATCH)).collect();
                client.ask_all(&batch, |_, source| {
                    self.seen.note(source);
                    asked.fetch_add(1, Relaxed);
                    found.fetch_add(u64::from(source == Source::Store), Relaxed);
                })?;
            }
        };
        self.in_clients(|_| work());
        (found.into_inner(), asked.into_inner())
    }

    /// Runs all clients at once.
    fn in_clients(&self, work: impl Fn(u64) -> io::Result<()> + Sync) {
        std::thread::scope(|scope| {
            for at in 0..self.plan.clients {
                let work = &work;
                scope.spawn(move || {
                    if let Err(error) = work(at) {
                        self.seen.fail(&error);
                    }
                });
            }
        });
    }

    /// Loads a process for so long, kills it, starts another and asks that one.
    fn turn(&self, proxy: Proxy, turn: &Turn, turns: &mut Turns) -> io::Result<Proxy> {
        turns.most_rss = turns.most_rss.max(proxy.rss_bytes()?);
        turns.damaged += damage(&proxy);
        self.kill_under_load(proxy, turn);
        turns.most_bytes = turns.most_bytes.max(self.store_bytes()?);
        if !self.origin.is_left_alone() {
            return Err(io::Error::other(
                "a process that was killed still asks the origin",
            ));
        }
        let began = Instant::now();
        let proxy = self.start()?;
        let address = proxy.socket_addr("web");
        let mut asked = Asked::new(self.plan.pages, turn.seed);
        let mut client = PageClient::connect(&self.pages, address)?;
        let deadline = began + STEP;
        loop {
            let source = client
                .ask(asked.next())
                .inspect_err(|it| self.seen.fail(it))?;
            self.seen.note(source);
            if source == Source::Store {
                break;
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!(
                    "no hit within {STEP:?} of a start"
                )));
            }
        }
        turns.first_hits.push(began.elapsed());
        let before = self.origin.asked();
        let numbers: Vec<u64> = (0..turn.checked).map(|_| asked.next()).collect();
        let mut from_origin = 0;
        let checked = client.ask_all(&numbers, |_, source| {
            self.seen.note(source);
            turns.asked += 1;
            match source {
                Source::Store => turns.found += 1,
                Source::Origin => from_origin += 1,
            }
        });
        checked.inspect_err(|it| self.seen.fail(it))?;
        turns.false_hits += (self.origin.asked() - before).saturating_sub(from_origin);
        turns.most_bytes = turns.most_bytes.max(self.store_bytes()?);
        Ok(proxy)
    }

    /// Loads a process with stored and new pages, and kills it amid that.
    fn kill_under_load(&self, proxy: Proxy, turn: &Turn) {
        let address = proxy.socket_addr("web");
        let is_over = AtomicBool::new(false);
        let work = |at: u64| -> io::Result<()> {
            let mut random = fastrand::Rng::with_seed(turn.seed ^ at);
            let mut client = PageClient::connect(&self.pages, address)?;
            while !is_over.load(Relaxed) {
                let number = || {
                    if random.bool() {
                        random.u64(..self.plan.pages)
                    } else {
                        self.new_pages.fetch_add(1, Relaxed)
                    }
                };
                let batch: Vec<u64> = std::iter::repeat_with(number).take(16).collect();
                client.ask_all(&batch, |_, source| self.seen.note(source))?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(turn.load);
                // Dropping it kills the process without a warning.
                drop(proxy);
                is_over.store(true, Relaxed);
            });
            self.in_clients(work);
        });
    }

    /// Bytes of all files of the store.
    fn store_bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for file in fs::read_dir(&self.store)? {
            // The process may remove one just then.
            bytes += file?.metadata().map_or(0, |it| it.len());
        }
        Ok(bytes)
    }
}

/// Lines that the process wrote about damage.
fn damage(proxy: &Proxy) -> usize {
    let said = proxy.stderr();
    said.lines().filter(|line| line.contains("damaged")).count()
}

/// Stored pages, each one once, in an order that only looks random.
struct Asked {
    pages: u64,
    at: u64,
    step: u64,
}

impl Asked {
    fn new(pages: u64, seed: u64) -> Self {
        // A prime meets all of them.
        const STEP: u64 = 982_451_653;
        Asked {
            pages,
            at: seed % pages,
            step: STEP % pages,
        }
    }

    fn next(&mut self) -> u64 {
        self.at = (self.at + self.step) % self.pages;
        self.at
    }
}
