//! Commands to the server: each with its answer, and the mistakes in it.
//!
//! Knows Redis' words and none of the tier's decisions. Sets no time limit: callers do.

use std::fmt;
use std::time::Duration;

use evenkeel_cache::ledger::{Author, Entry, Event, Kind, Order, Position};
use evenkeel_cache::purge::Strength;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, ErrorKind, RedisError, Value, cmd};

use super::outcome::Outcome;
use super::value::{NAMES_START, Names, REMOVED_VALUE};
use crate::shared_server::{ConnectFault, Server, in_words};

/// Purges that the log keeps, about. A machine that missed more purges everything that it has.
const LOG_LENGTH: u32 = 10_000;
/// Entries of the log that are read at once.
pub(super) const PAGE: usize = 512;
/// How long a removal keeps away responses that were asked for before it.
const REMOVED_TIME: Duration = Duration::from_secs(30);

/// Begins the log where there is none: `epoch`.
const BEGIN: &str = "\
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('XADD', KEYS[1], '1-0', 'e', ARGV[1], 'k', 'begun')
end";

/// Appends a purge and gives its number, 0 where there is no log: most entries, then
/// fields and values.
const PURGE: &str = "\
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if not last then return 0 end
local number = tonumber(string.match(last[1], '^%d+')) + 1
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], string.format('%.0f-0', number),
  last[2][1], last[2][2], unpack(ARGV, 2))
return number";

/// Stores a response: value, expiry, longest time in milliseconds. A response with names in
/// `Vary` adds their value without nonce, a new nonce, and the selector's hash. Gives 1, or 0
/// where responses were removed a moment ago, or -1 where it is late.
const STORE: &str = "\
local time = redis.call('TIME')
local left = tonumber(ARGV[2]) - (tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local longest = tonumber(ARGV[3])
if left <= 0 or left > longest then return -1 end
local start, names = ARGV[4], ARGV[5]
local old = redis.call('GETRANGE', KEYS[1], 0, #start + 16 + #names)
if old == ARGV[8] then return 0 end
if names == '' then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', left)
  return 1
end
local nonce = ARGV[6]
if #old == #start + 16 + #names and string.sub(old, 1, #start) == start
    and string.sub(old, #start + 17) == names then
  nonce = string.sub(old, #start + 1, #start + 16)
  redis.call('PEXPIRE', KEYS[1], longest)
else
  redis.call('SET', KEYS[1], start .. nonce .. names, 'PX', longest)
end
redis.call('SET', KEYS[1] .. ':' .. nonce .. ':' .. ARGV[7], ARGV[1], 'PX', left)
return 1";

/// A command without a proper answer.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub outcome: Outcome,
    /// In words, for the event log.
    pub text: String,
}

impl Failure {
    pub fn new(outcome: Outcome, text: impl Into<String>) -> Self {
        Failure {
            outcome,
            text: text.into(),
        }
    }

    /// An answer that no such server gives.
    fn protocol(answer: &Value) -> Self {
        // The answer may be long, and of any server.
        let shown: String = format!("{answer:?}").chars().take(80).collect();
        Failure::new(Outcome::Protocol, format!("unexpected answer {shown}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.outcome.word(), self.text)
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        let text = in_words(&error);
        let outcome = match error.kind() {
            ErrorKind::Io => Outcome::Connection,
            ErrorKind::Parse => Outcome::Protocol,
            ErrorKind::AuthenticationFailed => Outcome::Password,
            _ => by_code(error.code().unwrap_or_default()),
        };
        Failure { outcome, text }
    }
}

impl From<ConnectFault> for Failure {
    fn from(fault: ConnectFault) -> Self {
        let text = fault.to_string();
        match fault {
            ConnectFault::Certificate(why) => Failure::new(Outcome::Certificate, why),
            ConnectFault::Tls(why) => Failure::new(Outcome::Tls, why),
            ConnectFault::Plain(error) => Failure {
                text,
                ..error.into()
            },
            ConnectFault::Other(error) => error.into(),
        }
    }
}

/// By the first word of an error.
fn by_code(code: &str) -> Outcome {
    match code {
        "LOADING" => Outcome::Loading,
        "NOAUTH" | "WRONGPASS" => Outcome::Password,
        "NOPERM" => Outcome::Forbidden,
        "READONLY" | "MISCONF" => Outcome::ReadOnly,
        "OOM" => Outcome::Memory,
        "WRONGTYPE" => Outcome::Foreign,
        _ => Outcome::Refused,
    }
}

/// An answer, unless it is an error.
fn checked(value: Value) -> Result<Value, Failure> {
    match value {
        Value::ServerError(error) => Err(Failure::new(
            by_code(error.code()),
            format!("{}: {}", error.code(), error.details().unwrap_or_default()),
        )),
        value => Ok(value),
    }
}

/// The result of a lookup.
#[derive(Debug)]
pub(super) struct Found {
    /// The time that the value has left; `None` where it has no end.
    pub left: Option<Duration>,
    /// Its bytes, not more than were asked for; empty where there is none.
    pub bytes: Vec<u8>,
    /// The newest purge in the log, read after the value.
    pub last: Option<Position>,
}

/// The result of a wait for the log.
#[derive(Debug)]
pub(super) struct Watched {
    pub entries: Vec<Entry>,
    /// The newest entry of the log.
    pub last: Option<Position>,
    /// The server's clock.
    pub time: Duration,
}

/// A response to be stored.
#[derive(Debug)]
pub(super) struct Store<'a> {
    pub value: &'a [u8],
    /// When it expires, by the server's clock.
    pub expiry: Duration,
    /// The longest time that any value is kept.
    pub longest: Duration,
    /// The names in its `Vary`; empty for none.
    pub names: &'a [u8],
    /// For names that are not there yet.
    pub nonce: &'a [u8],
    /// The hash of the selector, in hexadecimal.
    pub selector: &'a [u8],
}

/// A connection to the server. A clone is the same one.
#[derive(Debug, Clone)]
pub(super) struct Connection(MultiplexedConnection);

impl Connection {
    /// Connects, with the password.
    pub async fn open(server: &Server) -> Result<Self, Failure> {
        Ok(Connection(server.connect().await?))
    }

    async fn ask(&self, command: &Cmd) -> Result<Value, Failure> {
        checked(self.0.clone().req_packed_command(command).await?)
    }

    /// Sends several commands at once. Each answer may be an error of its own.
    async fn ask_all<const N: usize>(&self, commands: [Cmd; N]) -> Result<[Value; N], Failure> {
        let mut pipe = redis::pipe();
        for command in commands {
            pipe.add_command(command);
        }
        let mut connection = self.0.clone();
        let answers = connection.req_packed_commands(&pipe, 0, N).await?;
        let answers: Result<[Value; N], _> = answers.try_into();
        answers.map_err(|answers| Failure::protocol(&Value::Array(answers)))
    }

    /// Begins the log of purges, where there is none.
    pub async fn begin_log(&self, names: &Names, epoch: u64) -> Result<(), Failure> {
        let mut command = eval(BEGIN, &names.purges());
        command.arg(format!("{epoch:x}"));
        self.ask(&command).await.map(drop)
    }

    /// A page of the log from a number on, or from its beginning.
    pub async fn log(&self, names: &Names, from: Option<u64>) -> Result<Vec<Entry>, Failure> {
        let from = from.map_or_else(|| "-".to_owned(), |it| format!("{it}-0"));
        let mut command = cmd("XRANGE");
        command.arg(names.purges()).arg(from).arg("+");
        command.arg("COUNT").arg(PAGE);
        entries(self.ask(&command).await?)
    }

    /// Waits until the log has an entry after a number, or for so long.
    pub async fn watch_log(
        &self,
        names: &Names,
        after: u64,
        time: Duration,
    ) -> Result<Watched, Failure> {
        let mut command = cmd("XREAD");
        command.arg("BLOCK").arg(time.as_millis() as u64);
        command.arg("COUNT").arg(PAGE).arg("STREAMS");
        command.arg(names.purges()).arg(format!("{after}-0"));
        let commands = [command, last(names), cmd("TIME")];
        let [found, last, time] = self.ask_all(commands).await?;
        let entries = match checked(found)? {
            Value::Nil => Vec::new(),
            // One stream: its name, and its entries.
            Value::Array(mut streams) => match streams.pop() {
                Some(Value::Array(mut stream)) if stream.len() == 2 => {
                    entries(stream.pop().unwrap_or_default())?
                }
                other => return Err(Failure::protocol(&other.unwrap_or_default())),
            },
            other => return Err(Failure::protocol(&other)),
        };
        Ok(Watched {
            entries,
            last: position(last)?,
            time: server_time(&checked(time)?)?,
        })
    }

    /// The server's clock.
    pub async fn time(&self) -> Result<Duration, Failure> {
        server_time(&self.ask(&cmd("TIME")).await?)
    }

    /// Appends a purge to the log; `None` if there is no log.
    pub async fn purge(
        &self,
        names: &Names,
        by: Author,
        order: &Order,
    ) -> Result<Option<u64>, Failure> {
        let strength = match order.strength {
            Strength::Hard => "hard",
            Strength::Soft => "soft",
        };
        let mut command = eval(PURGE, &names.purges());
        command.arg(LOG_LENGTH);
        command.arg("k").arg(order.kind.word());
        command.arg("s").arg(strength);
        command.arg("t").arg(&order.text[..]);
        command.arg("m").arg(format!("{:x}", by.machine));
        command.arg("i").arg(by.serial);
        match self.ask(&command).await? {
            Value::Int(0) => Ok(None),
            Value::Int(number) => Ok(u64::try_from(number).ok()),
            other => Err(Failure::protocol(&other)),
        }
    }

    /// The value of a name, up to so many bytes and one more.
    pub async fn look(&self, names: &Names, name: &[u8], most: usize) -> Result<Found, Failure> {
        let mut left = cmd("PTTL");
        left.arg(name);
        // Bounded: another program may have put any value there.
        let mut value = cmd("GETRANGE");
        value.arg(name).arg(0).arg(most);
        // In this order, a purge is seen even if the value was stored before it. A value that was
        // replaced meanwhile seems older than it is.
        let commands = [left, value, last(names)];
        let [left, value, last] = self.ask_all(commands).await?;
        let left = match checked(left)? {
            Value::Int(left) => u64::try_from(left).ok().map(Duration::from_millis),
            other => return Err(Failure::protocol(&other)),
        };
        let bytes = match checked(value)? {
            Value::BulkString(bytes) => bytes,
            other => return Err(Failure::protocol(&other)),
        };
        let last = position(last)?;
        Ok(Found { left, bytes, last })
    }

    /// Stores a response.
    pub async fn store(&self, name: &[u8], it: &Store<'_>) -> Result<Outcome, Failure> {
        let mut command = eval(STORE, name);
        command.arg(it.value);
        command.arg(it.expiry.as_millis() as u64);
        command.arg(it.longest.as_millis() as u64);
        command.arg(&NAMES_START[..]).arg(it.names);
        command.arg(it.nonce).arg(it.selector);
        command.arg(&REMOVED_VALUE[..]);
        match self.ask(&command).await? {
            Value::Int(1) => Ok(Outcome::Stored),
            Value::Int(0) => Ok(Outcome::Removed),
            Value::Int(-1) => Ok(Outcome::Late),
            other => Err(Failure::protocol(&other)),
        }
    }

    /// Removes the responses of a name. For a moment, keeps away responses that were asked for
    /// before.
    pub async fn remove(&self, name: &[u8]) -> Result<(), Failure> {
        let mut command = cmd("SET");
        command.arg(name).arg(&REMOVED_VALUE[..]);
        command.arg("PX").arg(REMOVED_TIME.as_millis() as u64);
        self.ask(&command).await.map(drop)
    }
}

/// A script for one key. Its arguments follow.
fn eval(script: &str, key: &[u8]) -> Cmd {
    let mut command = cmd("EVAL");
    command.arg(script).arg(1).arg(key);
    command
}

/// The newest entry of the log.
fn last(names: &Names) -> Cmd {
    let mut command = cmd("XREVRANGE");
    command.arg(names.purges()).arg("+").arg("-");
    command.arg("COUNT").arg(1);
    command
}

/// The position of the newest entry.
fn position(last: Value) -> Result<Option<Position>, Failure> {
    let mut entries = entries(checked(last)?)?;
    Ok(entries.pop().map(|it| it.position))
}

fn server_time(answer: &Value) -> Result<Duration, Failure> {
    let number = |it: &Value| match it {
        Value::BulkString(digits) => number(digits, 10),
        _ => None,
    };
    if let Value::Array(parts) = answer
        && let [seconds, micros] = &parts[..]
        && let (Some(seconds), Some(micros)) = (number(seconds), number(micros))
    {
        return Ok(Duration::from_secs(seconds) + Duration::from_micros(micros));
    }
    Err(Failure::protocol(answer))
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

fn entries(answer: Value) -> Result<Vec<Entry>, Failure> {
    let Value::Array(found) = answer else {
        return Err(Failure::protocol(&answer));
    };
    let entry = |it: &Value| entry(it).ok_or_else(|| Failure::protocol(it));
    found.iter().map(entry).collect()
}

/// `NUMBER-0`, with `e` EPOCH `k` KIND, and the other fields of a purge.
fn entry(answer: &Value) -> Option<Entry> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let [Value::BulkString(id), Value::Array(fields)] = &parts[..] else {
        return None;
    };
    let (pairs, _) = fields.as_chunks::<2>();
    let field = |wanted: &[u8]| {
        pairs.iter().find_map(|pair| match pair {
            [Value::BulkString(name), Value::BulkString(value)] if name == wanted => {
                Some(value.as_slice())
            }
            _ => None,
        })
    };
    let position = Position {
        epoch: number(field(b"e")?, 16)?,
        number: number(id.strip_suffix(b"-0")?, 10)?,
    };
    let word = field(b"k")?;
    if word == b"begun" {
        return Some(Entry {
            position,
            event: Event::Begun,
        });
    }
    let mut kinds = Kind::WORDS.iter();
    let kind = kinds.find(|(_, it)| it.as_bytes() == word);
    let order = match kind {
        Some((kind, _)) => Order {
            kind: *kind,
            text: field(b"t")?.into(),
            strength: match field(b"s")? {
                b"soft" => Strength::Soft,
                _ => Strength::Hard,
            },
        },
        // An entry of unknown kind purges no more than this.
        None => Order::everything(Strength::Hard),
    };
    let by = Author {
        machine: number(field(b"m")?, 16)?,
        serial: number(field(b"i")?, 10)?,
    };
    Some(Entry {
        position,
        event: Event::Purged { by, order },
    })
}
