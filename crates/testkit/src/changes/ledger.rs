//! The outcomes of the requests of many clients.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::{Limit, Report};

/// Failures that are kept in words.
const FAILURES_KEPT: usize = 20;

/// The kind of a client's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Keeps its connection.
    KeepAlive,
    /// Opens a connection for each request: `ab` without `-k`.
    PerRequest,
    /// Sends messages over a WebSocket.
    WebSocket,
    /// Sends a body, a piece at a time.
    Upload,
    /// Waits in a queue, most of the time.
    Waiter,
    /// Uses a listener that comes and goes.
    Guest,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::KeepAlive,
        Kind::PerRequest,
        Kind::WebSocket,
        Kind::Upload,
        Kind::Waiter,
        Kind::Guest,
    ];

    /// As reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::KeepAlive => "keep-alive",
            Kind::PerRequest => "ab, a connection each",
            Kind::WebSocket => "WebSocket messages",
            Kind::Upload => "slow uploads",
            Kind::Waiter => "waiters in the queue",
            Kind::Guest => "at the listener that comes and goes",
        }
    }
}

/// Counts of one kind of clients.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests answered as they should be.
    pub answered: AtomicU64,
    /// Requests that were not, and connections that could not be opened.
    pub failed: AtomicU64,
    /// Connections that ended without notice.
    pub closed: AtomicU64,
    /// Connections that an answer said would be closed.
    pub announced: AtomicU64,
}

/// The notes of all clients.
#[derive(Debug)]
pub struct Ledger {
    is_over: AtomicBool,
    began: Instant,
    counts: [Counts; Kind::ALL.len()],
    failures: Mutex<Vec<String>>,
    /// WebSockets that gave the last message back on their first connection.
    pub alive: AtomicU64,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger {
            is_over: AtomicBool::new(false),
            began: Instant::now(),
            counts: Default::default(),
            failures: Mutex::default(),
            alive: AtomicU64::new(0),
        }
    }
}

impl Ledger {
    /// Whether clients are to end.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Makes every client end after its current request.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// The counts of a kind.
    pub fn of(&self, kind: Kind) -> &Counts {
        &self.counts[kind as usize]
    }

    /// Counts a request that was answered as it should be.
    pub fn answered(&self, kind: Kind) {
        self.of(kind).answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that an answer says will be closed.
    pub fn announced(&self, kind: Kind) {
        self.of(kind).announced.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection that ended without notice.
    pub fn closed(&self, kind: Kind) {
        self.of(kind).closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failure, and keeps the words.
    pub fn failed(&self, kind: Kind, why: &str) {
        self.failed_many(kind, 1, why);
    }

    /// Counts failures, and keeps the words for them.
    pub fn failed_many(&self, kind: Kind, count: u64, why: &str) {
        self.of(kind).failed.fetch_add(count, Ordering::Relaxed);
        self.note(&format!("{}: {why}", kind.name()));
    }

    /// Keeps words on what went wrong, with the time since the load began.
    pub fn note(&self, what: &str) {
        let at = self.began.elapsed().as_secs_f64();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() < FAILURES_KEPT {
            failures.push(format!("{at:.3} s: {what}"));
        }
    }

    /// Exchanges that clients of the listener `web` had answered, with this many
    /// WebSockets.
    pub fn exchanges(&self, web_sockets: usize) -> u64 {
        let kinds = Kind::ALL.iter();
        let kinds = kinds.filter(|it| !matches!(it, Kind::WebSocket | Kind::Guest));
        let answered = kinds.map(|it| self.of(*it).answered.load(Ordering::Relaxed));
        answered.sum::<u64>() + web_sockets as u64
    }

    /// Adds to a report what became of the requests; `web_sockets` is how many there
    /// were.
    pub fn report(&self, report: &mut Report, web_sockets: usize, closes: Closes) {
        let mut closed = 0;
        for kind in Kind::ALL {
            let counts = self.of(kind);
            let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
            let name = kind.name();
            if read(&counts.answered) + read(&counts.failed) == 0 {
                continue;
            }
            report.tell(format!("{name}: answered"), read(&counts.answered));
            report.require_none(format!("{name}: failed"), read(&counts.failed));
            if kind != Kind::Guest {
                closed += read(&counts.closed);
            }
            if kind == Kind::KeepAlive {
                let what = "keep-alive: connections closed after notice";
                match closes {
                    Closes::Announced => report.tell(what, read(&counts.announced)),
                    Closes::None => report.require_none(what, read(&counts.announced)),
                }
            }
        }
        report.require_none("connections closed without notice", closed);
        let alive = self.alive.load(Ordering::Relaxed);
        if web_sockets > 0 {
            let all = Limit::AtLeast(web_sockets as f64);
            report.require("WebSockets alive at the end", alive, all);
        }
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        report.failures.append(&mut failures);
    }
}

/// How connections of clients may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closes {
    /// Not at all.
    None,
    /// After an answer that announces it.
    Announced,
}
