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
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use evenkeel_tls::sealed::Purpose;
use evenkeel_tls::{SealingKey, TicketKeys};
use redis::aio::MultiplexedConnection;
use redis::cmd;
use tokio::time::{Instant, sleep};

use crate::config::EncryptedStore;
use crate::shared_server::{
    ANSWER_TIME, CONNECT_TIME, Fault, Pauses, Server, ServerHealth, within,
};

/// Names the set at the server, with the version of its members.
const SET: &str = "evenkeel:tickets:1";
/// Time between two questions.
const INTERVAL: Duration = Duration::from_secs(10);
/// How soon the server is asked after a ticket with an unknown key, or after a new key was made.
const SOON: Duration = Duration::from_secs(1);
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
#[derive(Debug)]
pub(super) struct State {
    pub server: ServerHealth,
    learned: AtomicU64,
}

impl Default for State {
    fn default() -> Self {
        let does = "ticket keys are shared through it";
        let costs = "TLS sessions of other machines cannot be resumed";
        State {
            server: ServerHealth::new("tickets", does, costs),
            learned: AtomicU64::new(0),
        }
    }
}

impl State {
    /// Keys that came from others.
    pub fn learned(&self) -> u64 {
        self.learned.load(Relaxed)
    }

    /// Adds what the process before has counted.
    pub fn add(&self, downs: u64, learned: u64) {
        self.server.add_downs(downs);
        self.learned.fetch_add(learned, Relaxed);
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
        settings: &EncryptedStore,
    ) -> std::io::Result<Self> {
        let server = Server::of(&settings.server)?;
        state.server.begin(Some(server.to_string()));
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
            self.state.server.note_down(&self.server, &fault);
            sleep(pauses.next()).await;
        }
    }

    async fn while_connected(&mut self) -> Result<std::convert::Infallible, Fault> {
        let mut connection = within(CONNECT_TIME, self.server.connect()).await?;
        loop {
            self.read_key().await?;
            let unknown = self.keys.counts().unknown;
            self.exchange(&mut connection).await?;
            self.state.server.note_up(&self.server);
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
        let read = read.map_err(|error| Fault::Other(error.to_string()))?;
        let key = read.map_err(|error| Fault::Other(error.to_string()))?;
        if self.key.as_ref() != Some(&key) {
            self.sealed.clear();
            self.key = Some(key);
        }
        Ok(())
    }

    /// Stores the keys of this machine, and takes the others' keys.
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
