//! How a shared server does for one of its users, and why it can't be used.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{ErrorKind, RedisError};
use serde::Serialize;
use tokio::time::timeout;

use super::{ConnectFault, Server, in_words};

/// Time for the server to take a connection, with the password.
pub(crate) const CONNECT_TIME: Duration = Duration::from_secs(3);
/// Time for an answer.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(2);

/// How a server does.
#[derive(Debug)]
pub(crate) struct ServerHealth {
    /// What it is used for, as events begin.
    subject: &'static str,
    /// What is done while it is up.
    does: &'static str,
    /// What comes of its being down.
    costs: &'static str,
    is_up: AtomicBool,
    downs: AtomicU64,
    shown: Mutex<Shown>,
}

/// The server, and why it can't be used.
#[derive(Debug, Default)]
struct Shown {
    server: Option<String>,
    failure: Option<String>,
    /// It gave no answer at all.
    is_silent: bool,
}

/// How a shared server does, for operators.
#[derive(Debug, Clone, Serialize)]
pub struct SharedServerFigures {
    /// The server, without its password.
    pub server: String,
    /// Whether it is used.
    pub up: bool,
    /// Why it is not.
    pub failure: Option<String>,
}

impl ServerHealth {
    /// Of no server yet. The texts are for events.
    pub fn new(subject: &'static str, does: &'static str, costs: &'static str) -> Self {
        ServerHealth {
            subject,
            does,
            costs,
            is_up: AtomicBool::new(false),
            downs: AtomicU64::new(0),
            shown: Mutex::default(),
        }
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it does; `None` where there is no server.
    pub fn figures(&self) -> Option<SharedServerFigures> {
        let shown = self.shown();
        Some(SharedServerFigures {
            server: shown.server.clone()?,
            up: self.is_up.load(Relaxed),
            failure: shown.failure.clone(),
        })
    }

    /// Times that the server was given up.
    pub fn downs(&self) -> u64 {
        self.downs.load(Relaxed)
    }

    /// Adds times that the process before has counted.
    pub fn add_downs(&self, downs: u64) {
        self.downs.fetch_add(downs, Relaxed);
    }

    /// Another server, or none, is asked from now on.
    pub fn begin(&self, server: Option<String>) {
        self.is_up.store(false, Relaxed);
        *self.shown() = Shown {
            server,
            ..Shown::default()
        };
    }

    /// The server is used.
    pub fn note_up(&self, server: &Server) {
        if !self.is_up.swap(true, Relaxed) {
            self.shown().failure = None;
            let ServerHealth { subject, does, .. } = self;
            tracing::info!(%server, "{subject}: server {server} is UP: {does}");
        }
    }

    /// Says why the server can't be used, unless it was said.
    pub fn note_down(&self, server: &Server, fault: &Fault) {
        let ServerHealth { subject, costs, .. } = self;
        match self.news(fault) {
            Some(ReportedFault::Down) => {
                tracing::warn!(%server, "{subject}: server {server} is DOWN: {fault}; {costs}");
            }
            Some(ReportedFault::OtherFault) => {
                tracing::warn!(%server, "{subject}: server {server} is DOWN: {fault}");
            }
            None => {}
        }
    }

    /// Says why the server can't be used for a part of what is asked of it, unless it was said.
    pub fn note_partly_up(&self, server: &Server, why: &str) {
        if self.news(&Fault::Other(why.to_owned())).is_some() {
            let subject = self.subject;
            tracing::warn!(%server, "{subject}: server {server} does only a part: {why}");
        }
    }

    /// Notes a fault; `None` where it is no news.
    fn news(&self, fault: &Fault) -> Option<ReportedFault> {
        let was_up = self.is_up.swap(false, Relaxed);
        let mut shown = self.shown();
        let is_silent = fault.is_silence();
        let before = shown.failure.replace(fault.to_string());
        let was_silent = std::mem::replace(&mut shown.is_silent, is_silent);
        if was_up || before.is_none() {
            self.downs.fetch_add(1, Relaxed);
            Some(ReportedFault::Down)
        } else {
            let is_same = before == shown.failure || was_silent && is_silent;
            (!is_same).then_some(ReportedFault::OtherFault)
        }
    }
}

/// A fault that is told.
#[derive(Debug, PartialEq, Eq)]
enum ReportedFault {
    /// The server was up, or is asked for the first time.
    Down,
    /// It was down for another reason.
    OtherFault,
}

/// Why a server can't be used.
#[derive(Debug)]
pub(crate) enum Fault {
    Connect(ConnectFault),
    Ask(RedisError),
    Slow,
    /// Something else, in words.
    Other(String),
    Random,
}

impl Fault {
    /// Whether the server gave no answer at all. A server that goes away shows that in several
    /// ways, one after the other, which are one piece of news.
    fn is_silence(&self) -> bool {
        match self {
            Fault::Slow => true,
            Fault::Connect(ConnectFault::Other(error) | ConnectFault::Plain(error))
            | Fault::Ask(error) => error.kind() == ErrorKind::Io,
            _ => false,
        }
    }
}

impl From<ConnectFault> for Fault {
    fn from(fault: ConnectFault) -> Self {
        Fault::Connect(fault)
    }
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        Fault::Ask(error)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Connect(fault) => fault.fmt(f),
            Fault::Ask(error) => f.write_str(&in_words(error)),
            Fault::Slow => f.write_str("no answer in time"),
            Fault::Other(why) => f.write_str(why),
            Fault::Random => f.write_str("no random bytes from the system"),
        }
    }
}

/// Waits for an answer, but not for ever.
pub(crate) async fn within<T, E: Into<Fault>>(
    time: Duration,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, Fault> {
    match timeout(time, answer).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(Fault::Slow),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_goes_away_is_told_of_once() {
        let io = |kind: std::io::ErrorKind| Fault::Ask(std::io::Error::from(kind).into());
        let standing = ServerHealth::new("test", "it is used", "it is not");
        let cut = io(std::io::ErrorKind::UnexpectedEof);
        assert_eq!(standing.news(&cut), Some(ReportedFault::Down));
        assert_eq!(standing.news(&cut), None);
        let refused = io(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(standing.news(&refused), None);
        assert_eq!(standing.news(&Fault::Slow), None);
        let other = Fault::Other("there is no key".to_owned());
        assert_eq!(standing.news(&other), Some(ReportedFault::OtherFault));
        assert_eq!(standing.news(&other), None);
        assert_eq!(standing.news(&cut), Some(ReportedFault::OtherFault));
        assert_eq!(standing.downs(), 1);
    }
}
