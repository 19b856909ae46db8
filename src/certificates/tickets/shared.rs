//! Keys of tickets that machines share by a server of Redis or Valkey.
//!
//! Each machine stores its own keys, sealed with the key of the cluster, and opens tickets
//! with the keys of the others. It asks the server at intervals, and soon after a ticket came
//! whose key it does not have. A server that is gone costs only resumptions.
//!
//! The server has one sorted set, `evenkeel:tickets:1`. A member is `name (16) ‖ sealed`, and
//! its score is when the key runs out, in milliseconds by the server's clock.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_tls::sealed::Purpose;
use evenkeel_tls::{SealingKey, TicketKeys};
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, cmd};
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use crate::config::SharedTickets;
use crate::shared_server::{ConnectFault, Pauses, Server, in_words};

/// Names the set at the server, with the version of its members.
const SET: &str = "evenkeel:tickets:1";
/// Time between two questions.
const INTERVAL: Duration = Duration::from_secs(10);
/// How soon the server is asked after a ticket came whose key is not there, and after a
/// new key was made.
const SOON: Duration = Duration::from_secs(1);
/// Time for the server to take a connection, with the password.
const CONNECT_TIME: Duration = Duration::from_secs(3);
/// Time for an answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Most keys that are read.
const MOST_KEYS: usize = 200;
/// Longest member: others may have put anything there.
const LONGEST_MEMBER: usize = 256;
/// Bytes of a key's name.
const NAME_LEN: usize = 16;

/// Stores keys, and reads the keys of all machines. Arguments: most members, most bytes of a
/// member, then for each own key its milliseconds left and its member.
const EXCHANGE: &str = "\
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
for i = 3, #ARGV, 2 do
  redis.call('ZADD', KEYS[1], now + tonumber(ARGV[i]), ARGV[i + 1])
end
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if last then redis.call('PEXPIREAT', KEYS[1], math.floor(tonumber(last)) + 1) end
local found = {}
for _, member in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, tonumber(ARGV[1]) - 1)) do
  if #member <= tonumber(ARGV[2]) then found[#found + 1] = member end
end
return found";

/// How sharing does.
#[derive(Debug, Default)]
pub(super) struct State {
    is_up: AtomicBool,
    downs: AtomicU64,
    learned: AtomicU64,
    /// The server, and why it can't be used.
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    server: Option<String>,
    failure: Option<String>,
    /// It gave no answer at all.
    is_silent: bool,
}

/// How keys of tickets are shared, for operators.
#[derive(Debug, Clone, Serialize)]
pub struct SharedTicketFigures {
    /// The server, without its password.
    pub server: String,
    /// Whether keys are exchanged with it.
    pub up: bool,
    /// Why they are not.
    pub failure: Option<String>,
}

impl State {
    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How sharing does; `None` where nothing is shared.
    pub fn figures(&self) -> Option<SharedTicketFigures> {
        let shown = self.shown();
        Some(SharedTicketFigures {
            server: shown.server.clone()?,
            up: self.is_up.load(Relaxed),
            failure: shown.failure.clone(),
        })
    }

    /// Times that the server was given up.
    pub fn downs(&self) -> u64 {
        self.downs.load(Relaxed)
    }

    /// Keys that came from others.
    pub fn learned(&self) -> u64 {
        self.learned.load(Relaxed)
    }

    /// Adds what the process before has counted.
    pub fn add(&self, downs: u64, learned: u64) {
        self.downs.fetch_add(downs, Relaxed);
        self.learned.fetch_add(learned, Relaxed);
    }

    /// Another server, or none, is asked from now on.
    pub fn begin(&self, server: Option<String>) {
        self.is_up.store(false, Relaxed);
        *self.shown() = Shown {
            server,
            ..Shown::default()
        };
    }

    fn note_up(&self, server: &Server) {
        if !self.is_up.swap(true, Relaxed) {
            self.shown().failure = None;
            tracing::info!(%server, "tickets: server {server} is UP: keys are exchanged with it");
        }
    }

    /// Says why keys are not exchanged, unless it was said.
    fn note_down(&self, server: &Server, fault: &Fault) {
        match self.news(fault) {
            Some(News::Down) => tracing::warn!(
                %server,
                "tickets: server {server} is DOWN: {fault}; sessions of other machines begin anew"
            ),
            Some(News::OtherFault) => {
                tracing::warn!(%server, "tickets: server {server} is DOWN: {fault}");
            }
            None => {}
        }
    }

    /// Notes a fault; `None` where it is no news.
    fn news(&self, fault: &Fault) -> Option<News> {
        let was_up = self.is_up.swap(false, Relaxed);
        let mut shown = self.shown();
        let is_silent = fault.is_silence();
        let before = shown.failure.replace(fault.to_string());
        let was_silent = std::mem::replace(&mut shown.is_silent, is_silent);
        if was_up || before.is_none() {
            self.downs.fetch_add(1, Relaxed);
            Some(News::Down)
        } else {
            let is_same = before == shown.failure || was_silent && is_silent;
            (!is_same).then_some(News::OtherFault)
        }
    }
}

/// A fault that is told.
#[derive(Debug, PartialEq, Eq)]
enum News {
    /// The server was up, or is asked for the first time.
    Down,
    /// It was down for another reason.
    OtherFault,
}

/// Why keys are not exchanged.
#[derive(Debug)]
enum Fault {
    Connect(ConnectFault),
    Ask(RedisError),
    Slow,
    Key(String),
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
            Fault::Key(why) => f.write_str(why),
            Fault::Random => f.write_str("the system gives no random bytes"),
        }
    }
}

/// An exchange of keys with a server.
pub(super) struct Exchange<'a> {
    pub keys: &'a TicketKeys,
    pub state: &'a State,
    server: Server,
    key_file: PathBuf,
    /// The key of the cluster, once it is read.
    key: Option<SealingKey>,
    /// Own keys that were sealed, by their names: the same key is the same member.
    sealed: HashMap<[u8; NAME_LEN], Vec<u8>>,
}

impl<'a> Exchange<'a> {
    /// With the server of these settings.
    ///
    /// # Errors
    /// Its address can't be used.
    pub fn new(
        keys: &'a TicketKeys,
        state: &'a State,
        settings: &SharedTickets,
    ) -> std::io::Result<Self> {
        let server = Server::of(&settings.server)?;
        state.begin(Some(server.to_string()));
        Ok(Exchange {
            keys,
            state,
            server,
            key_file: settings.encrypt_with.clone(),
            key: None,
            sealed: HashMap::new(),
        })
    }

    /// Exchanges keys for ever.
    pub async fn keep(mut self) {
        let mut pauses = Pauses::default();
        loop {
            let began = Instant::now();
            let Err(fault) = self.while_connected().await;
            pauses.note_up(began.elapsed());
            self.state.note_down(&self.server, &fault);
            sleep(pauses.next()).await;
        }
    }

    async fn while_connected(&mut self) -> Result<std::convert::Infallible, Fault> {
        let mut connection = within(CONNECT_TIME, self.server.connect()).await?;
        loop {
            self.read_key().await?;
            let unknown = self.keys.counts().unknown;
            self.exchange(&mut connection).await?;
            self.state.note_up(&self.server);
            self.wait(unknown).await;
        }
    }

    /// Waits until it is time to ask again.
    async fn wait(&self, unknown: u64) {
        let mut interval = pin!(sleep(INTERVAL));
        let rotations = self.keys.counts().rotations;
        loop {
            tokio::select! {
                () = &mut interval => return,
                () = sleep(SOON) => {
                    let counts = self.keys.counts();
                    if counts.unknown != unknown || counts.rotations != rotations {
                        return;
                    }
                }
            }
        }
    }

    /// Reads the key of the cluster again: it may be another one.
    async fn read_key(&mut self) -> Result<(), Fault> {
        let path = self.key_file.clone();
        let read = tokio::task::spawn_blocking(move || SealingKey::read(&path)).await;
        let read = read.map_err(|error| Fault::Key(error.to_string()))?;
        let key = read.map_err(|error| Fault::Key(error.to_string()))?;
        if self.key.as_ref() != Some(&key) {
            self.sealed.clear();
            self.key = Some(key);
        }
        Ok(())
    }

    /// Stores the keys of this machine, and takes those of the others.
    async fn exchange(&mut self, connection: &mut MultiplexedConnection) -> Result<(), Fault> {
        let Some(key) = &self.key else {
            return Ok(());
        };
        let own = self.keys.own();
        let mut command = cmd("EVAL");
        command.arg(EXCHANGE).arg(1).arg(SET);
        command.arg(MOST_KEYS).arg(LONGEST_MEMBER);
        self.sealed
            .retain(|name, _| own.iter().any(|it| it.name == *name));
        for it in &own {
            let member = match self.sealed.entry(it.name) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let sealed = key.seal(Purpose::TicketKey, &it.name, &it.exported);
                    new.insert([&it.name[..], &sealed.ok_or(Fault::Random)?].concat())
                }
            };
            command.arg(it.left.as_millis() as u64).arg(&*member);
        }
        let asked = command.query_async::<Vec<Vec<u8>>>(connection);
        let members = within(ANSWER_TIME, asked).await?;
        let mut learned = 0;
        for member in members {
            let Some((name, sealed)) = member.split_first_chunk::<NAME_LEN>() else {
                continue;
            };
            // Another cluster's, or forged.
            let Some(exported) = key.open(Purpose::TicketKey, name, sealed) else {
                continue;
            };
            // One of another version is none.
            learned += self.keys.import(&exported).unwrap_or_default();
        }
        self.state.learned.fetch_add(learned as u64, Relaxed);
        Ok(())
    }
}

/// Waits for an answer, but not for ever.
async fn within<T, E: Into<Fault>>(
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
        let state = State::default();
        let cut = io(std::io::ErrorKind::UnexpectedEof);
        assert_eq!(state.news(&cut), Some(News::Down));
        assert_eq!(state.news(&cut), None);
        assert_eq!(state.news(&io(std::io::ErrorKind::ConnectionRefused)), None);
        assert_eq!(state.news(&Fault::Slow), None);
        let other = Fault::Key("there is no key".to_owned());
        assert_eq!(state.news(&other), Some(News::OtherFault));
        assert_eq!(state.news(&other), None);
        assert_eq!(state.news(&cut), Some(News::OtherFault));
        assert_eq!(state.downs(), 1);
    }
}
