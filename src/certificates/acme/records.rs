//! Records of ACME that machines without a shared folder share through a server of Redis or
//! Valkey.
//!
//! Keys of the server, where `MARK` tells the key of the cluster apart from others:
//!
//! | key | value |
//! |---|---|
//! | `evenkeel:acme:1:key` | the `MARK` that is in use; it runs out with the last machine |
//! | `evenkeel:acme:1:waiting` | the `MARK` of a machine that waits, for its key is another one |
//! | `evenkeel:acme:1:MARK:RECORD` | the record, sealed; a certificate begins with its fingerprint |
//! | `evenkeel:acme:1:MARK:leases/NAME` | the holder of a lease |
//! | `evenkeel:acme:1:MARK:changed` | a sorted set: `NAME FINGERPRINT` by revision, and the epoch at 0 |
//!
//! Invariant: a machine sends no other command before it has seen that the mark is its own, and
//! each mark has records of its own. So a machine with another key overwrites nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use evenkeel_acme::Shared;
use evenkeel_acme::shared::{
    Changes, Fingerprint, NewCertificate, Point, SharedCertificate, Unusable,
};
use evenkeel_tls::SealingKey;
use evenkeel_tls::sealed::Purpose;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError, Value, cmd};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::config::EncryptedStore;
use crate::shared_server::{
    ANSWER_TIME, CONNECT_TIME, Fault, Pauses, Server, ServerHealth, SharedServerFigures, within,
};

/// Begins each key, with the version of the records.
const START: &str = "evenkeel:acme:1";
/// How long a mark lasts: machines with another key wait so long after the last one.
const MARK_LASTS: Duration = Duration::from_secs(60);
/// How often a machine renews the mark, and reads the file of its key again. Less than the time
/// between two rounds, so that each round does both.
const MARK_EVERY: Duration = Duration::from_secs(8);
/// How long the names of changed certificates are kept after the last change.
const CHANGED_LASTS: Duration = Duration::from_secs(400 * 86_400);
/// The longest value that is read, in bytes.
const MAX_VALUE: usize = (1 << 20) + 4096;
/// The most names that are asked for at once.
const MOST_NAMES: usize = 1000;
/// The most records of another type that are watched.
const MOST_MISPLACED: usize = 16;
/// The record of the names of changed certificates.
const CHANGED_RECORD: &str = "changed";
/// Begins the member of the sorted set that is its epoch. No name has a blank.
const EPOCH: &str = "epoch ";

/// Takes the mark, or renews it; where another mark is in use, notes that a machine waits.
/// Gives the mark in use, the mark of a machine that waits, and why nothing can be stored.
/// Arguments: the mark, its milliseconds.
const MARK: &str = "\
local mark = redis.call('GET', KEYS[1])
if mark and mark ~= ARGV[1] then
  redis.pcall('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
  return {mark, ARGV[1], ''}
end
local waiting = redis.pcall('GET', KEYS[2])
if type(waiting) ~= 'string' or waiting == ARGV[1] then waiting = '' end
local stored = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if not stored.err then return {ARGV[1], waiting, ''} end
if mark then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return {ARGV[1], waiting, stored.err}";

/// Stores a certificate in the place of another. Gives 0 where there is a third one.
/// Arguments: fingerprint that is replaced, value, its milliseconds, name with fingerprint,
/// name with the fingerprint that is replaced, milliseconds of the set.
const STORE: &str = "\
local known = redis.call('GETRANGE', KEYS[1], 0, 31)
if #known == 32 and known ~= ARGV[1] then return 0 end
if #known < 32 and ARGV[1] ~= '' then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
local last = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or 0
redis.call('ZREM', KEYS[2], ARGV[5])
redis.call('ZADD', KEYS[2], tonumber(last) + 1, ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[6])
return 1";

/// Gives the epoch, then names and revisions after a revision, if that is one of the epoch.
/// Arguments: an epoch for a set without one, the known epoch, its revision, most names,
/// milliseconds of the set.
const CHANGED: &str = "\
local first = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
if not first or string.sub(first, 1, #'epoch ') ~= 'epoch ' then
  first = ARGV[1]
  redis.call('ZADD', KEYS[1], 0, first)
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
local after = '(0'
if first == ARGV[2] then after = '(' .. ARGV[3] end
local found = redis.call('ZRANGEBYSCORE', KEYS[1], after, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[4])
table.insert(found, 1, first)
return found";

/// Renews a lease of this holder. Arguments: the holder, milliseconds.
const RENEW: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

/// Releases a lease of this holder.
const RELEASE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end";

/// The records at a server.
#[derive(Debug, Clone)]
pub(super) struct Records(Arc<Inner>);

struct Inner {
    server: Server,
    key_file: PathBuf,
    standing: ServerHealth,
    /// Machines with different keys use the server.
    do_keys_differ: AtomicBool,
    link: Mutex<Link>,
    /// The control thread's runtime, once a command was sent. Other threads release leases, too.
    runtime: OnceLock<Handle>,
}

/// The connection, if there is one.
#[derive(Default)]
struct Link {
    session: Option<Session>,
    /// When the connection was made.
    since: Option<Instant>,
    /// When the mark was renewed.
    marked: Option<Instant>,
    pauses: Pauses,
    /// Why the server can't be used, and until when it is left alone.
    failure: Option<(Unusable, Instant)>,
    /// The last answer that was a refusal.
    refused: Option<Unusable>,
    /// Records of a type that this program does not write, until they are gone.
    misplaced: BTreeSet<String>,
}

/// The state of the records' server, for operators.
#[derive(Debug, Clone, Serialize)]
pub struct AcmeServerFigures {
    /// Whether it is used.
    #[serde(flatten)]
    pub standing: SharedServerFigures,
    /// Whether machines with different keys use it.
    pub keys_differ: bool,
}

/// The parts that a command needs.
#[derive(Clone)]
struct Session {
    connection: MultiplexedConnection,
    key: Arc<SealingKey>,
    mark: String,
}

impl Records {
    /// The records at the server of these settings.
    ///
    /// # Errors
    /// Its address can't be used.
    pub fn new(settings: &EncryptedStore) -> std::io::Result<Self> {
        let server = Server::of(&settings.server)?;
        let does = "certificates are stored there";
        let costs = "the present certificates are served, and no new ones are ordered";
        let standing = ServerHealth::new("acme", does, costs);
        standing.begin(Some(server.to_string()));
        Ok(Records(Arc::new(Inner {
            server,
            key_file: settings.encrypt_with.clone(),
            standing,
            do_keys_differ: AtomicBool::new(false),
            link: Mutex::default(),
            runtime: OnceLock::new(),
        })))
    }

    /// The state of the server.
    pub fn figures(&self) -> Option<AcmeServerFigures> {
        Some(AcmeServerFigures {
            standing: self.0.standing.figures()?,
            keys_differ: self.0.do_keys_differ.load(Relaxed),
        })
    }

    /// Asks the server for a record, and waits for the answer on this thread.
    fn ask<T, F>(
        &self,
        record: &str,
        work: impl FnOnce(Session) -> F + Send + 'static,
    ) -> Result<T, Unusable>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        let ended = |_| Unusable(format!("server {}: the process is ending", self.0.server));
        let runtime = Handle::try_current().map_err(|_| ended(mpsc::RecvError))?;
        // The same thread as before, if any.
        let _ = self.0.runtime.set(runtime.clone());
        let (tell, told) = mpsc::sync_channel(1);
        let (inner, record) = (self.0.clone(), record.to_owned());
        runtime.spawn(async move {
            // The asker waits.
            let _ = tell.send(inner.ask(&record, work).await);
        });
        told.recv().map_err(ended)?
    }

    /// Sends one command, for a record.
    fn command<T: FromRedisValue + Send + 'static>(
        &self,
        record: &str,
        command: impl FnOnce(&Session) -> Result<Cmd, Fault> + Send + 'static,
    ) -> Result<T, Unusable> {
        self.ask(record, |mut session| async move {
            let command = command(&session)?;
            Ok(command.query_async(&mut session.connection).await?)
        })
    }
}

impl Inner {
    async fn ask<T, F>(&self, record: &str, work: impl FnOnce(Session) -> F) -> Result<T, Unusable>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let session = self.session().await?;
        match within(ANSWER_TIME, work(session.clone())).await {
            Ok(answer) => Ok(answer),
            Err(fault) => {
                let mut link = self.link.lock().await;
                Err(match &fault {
                    Fault::Ask(error) if is_of_another_type(error) => {
                        // A script may have met a wrong type in the other record.
                        for record in [record, CHANGED_RECORD] {
                            if link.misplaced.len() < MOST_MISPLACED {
                                link.misplaced.insert(record.to_owned());
                            }
                        }
                        let found = self.look_at_misplaced(&mut link, &session).await;
                        self.why(&found.map_or(fault, Fault::Other))
                    }
                    Fault::Ask(error) if !error.is_unrecoverable_error() => {
                        self.note_refused(&mut link, &fault)
                    }
                    Fault::Random => self.why(&fault),
                    _ => self.note_down(&mut link, &fault),
                })
            }
        }
    }

    /// A connection to a server with the mark of our key.
    async fn session(&self) -> Result<Session, Unusable> {
        let mut link = self.link.lock().await;
        if let Some((why, until)) = &link.failure
            && Instant::now() < *until
        {
            return Err(why.clone());
        }
        let is_fresh = link.marked.is_some_and(|it| it.elapsed() < MARK_EVERY);
        if let (Some(session), true) = (&link.session, is_fresh) {
            return Ok(session.clone());
        }
        match self.begin(&mut link).await {
            Ok((session, None)) => {
                if self.look_at_misplaced(&mut link, &session).await.is_none() {
                    self.standing.note_up(&self.server);
                }
                Ok(session)
            }
            // Existing records can be read.
            Ok((session, Some(full))) => {
                self.standing.note_down(&self.server, &Fault::Other(full));
                Ok(session)
            }
            Err(fault) => Err(self.note_down(&mut link, &fault)),
        }
    }

    /// Connects if necessary, and renews the mark. Gives why nothing can be stored, too.
    async fn begin(&self, link: &mut Link) -> Result<(Session, Option<String>), Fault> {
        let path = self.key_file.clone();
        let read = tokio::task::spawn_blocking(move || SealingKey::read(&path)).await;
        let read = read.map_err(|error| Fault::Other(error.to_string()))?;
        let key = Arc::new(read.map_err(|error| Fault::Other(error.to_string()))?);
        let mut connection = match link.session.take() {
            Some(session) => session.connection,
            None => {
                link.since = Some(Instant::now());
                within(CONNECT_TIME, self.server.connect()).await?
            }
        };
        let mark = key.mark();
        let mark_key = format!("{START}:key");
        let mut command = cmd("EVAL");
        command.arg(MARK).arg(2).arg(&mark_key);
        command.arg(format!("{START}:waiting"));
        command.arg(&mark).arg(MARK_LASTS.as_millis() as u64);
        let asked = command.query_async::<(String, String, String)>(&mut connection);
        let asked = within(ANSWER_TIME, asked).await;
        let (in_use, waiting, full) = asked.map_err(|fault| match &fault {
            Fault::Ask(error) if is_of_another_type(error) => {
                Fault::Other(of_another_type(&mark_key))
            }
            _ => fault,
        })?;
        self.note_keys(!waiting.is_empty(), in_use == mark);
        // Behind it stands the name of the script.
        let full = full
            .split(" script: ")
            .next()
            .unwrap_or_default()
            .to_owned();
        if in_use != mark {
            let path = self.key_file.display();
            return Err(Fault::Other(format!(
                "other machines encrypt with another key than the one in {path}"
            )));
        }
        let session = Session {
            connection,
            key,
            mark,
        };
        link.session = Some(session.clone());
        link.marked = Some(Instant::now());
        link.failure = None;
        Ok((session, (!full.is_empty()).then_some(full)))
    }

    /// Notes whether machines with different keys use the server. A waiting machine logs it as
    /// long as it waits.
    fn note_keys(&self, differ: bool, is_ours_in_use: bool) {
        let did_differ = self.do_keys_differ.swap(differ, Relaxed);
        let (server, path) = (&self.server, self.key_file.display());
        if differ && !did_differ && is_ours_in_use {
            tracing::warn!(
                %server,
                "acme: server {server}: another machine has another key than the one in {path}, \
                 so it waits. It orders no certificates and takes none from this machine until \
                 all machines have the same key"
            );
        }
        if did_differ && !differ {
            tracing::info!(%server, "acme: server {server}: all machines have the same key");
        }
    }

    /// Looks again at records that were of another type, and gives one that still is.
    async fn look_at_misplaced(&self, link: &mut Link, session: &Session) -> Option<String> {
        for record in std::mem::take(&mut link.misplaced) {
            let touched = within(ANSWER_TIME, session.clone().touch(&record)).await;
            if let Err(Fault::Ask(error)) = touched
                && is_of_another_type(&error)
            {
                link.misplaced.insert(record);
            }
        }
        let why = of_another_type(&session.key_of(link.misplaced.first()?));
        self.standing.note_partly_up(&self.server, &why);
        Some(why)
    }

    /// Notes why the server can't be used, and leaves it alone for a while.
    fn note_down(&self, link: &mut Link, fault: &Fault) -> Unusable {
        self.standing.note_down(&self.server, fault);
        let why = self.why(fault);
        let up = link.since.take().filter(|_| link.marked.is_some());
        link.pauses
            .note_up(up.map(|it| it.elapsed()).unwrap_or_default());
        link.session = None;
        link.marked = None;
        link.failure = Some((why.clone(), Instant::now() + link.pauses.next()));
        why
    }

    /// Logs why a server that answers refuses a command, unless it was logged.
    fn note_refused(&self, link: &mut Link, fault: &Fault) -> Unusable {
        let why = self.why(fault);
        if link.refused.replace(why.clone()).as_ref() != Some(&why) {
            tracing::warn!(server = %self.server, "acme: {why}");
        }
        why
    }

    fn why(&self, fault: &Fault) -> Unusable {
        Unusable(format!("server {}: {fault}", self.server))
    }
}

impl Session {
    fn key_of(&self, record: &str) -> String {
        format!("{START}:{}:{record}", self.mark)
    }

    fn changed(&self) -> String {
        self.key_of(CHANGED_RECORD)
    }

    /// Reads a little of a record, which fails where it is of another type.
    async fn touch(mut self, record: &str) -> Result<(), Fault> {
        let is_set = record == CHANGED_RECORD;
        let mut command = cmd(if is_set { "ZRANGE" } else { "GETRANGE" });
        command.arg(self.key_of(record)).arg(0).arg(0);
        let _: Value = command.query_async(&mut self.connection).await?;
        Ok(())
    }

    fn seal(&self, record: &str, value: &[u8]) -> Result<Vec<u8>, Fault> {
        let sealed = self.key.seal(Purpose::AcmeRecord, record.as_bytes(), value);
        sealed.ok_or(Fault::Random)
    }

    /// Opens a value; `None` where a program without the key has put it there.
    fn open(&self, record: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let opened = self
            .key
            .open(Purpose::AcmeRecord, record.as_bytes(), sealed);
        if opened.is_none() {
            tracing::warn!(
                "acme: the record {record} at the server is ignored: it was not encrypted with \
                 the key of the cluster"
            );
        }
        opened.map(|it| it.to_vec())
    }

    /// Reads a value, as far as [`MAX_VALUE`]; empty where there is none.
    async fn read(&mut self, record: &str) -> Result<Vec<u8>, Fault> {
        let mut command = cmd("GETRANGE");
        command.arg(self.key_of(record)).arg(0).arg(MAX_VALUE);
        Ok(command.query_async(&mut self.connection).await?)
    }
}

impl Shared for Records {
    fn get(&self, record: &str) -> Result<Option<Vec<u8>>, Unusable> {
        let owned = record.to_owned();
        self.ask(record, |mut session| async move {
            let sealed = session.read(&owned).await?;
            let is_there = !sealed.is_empty();
            Ok(is_there.then(|| session.open(&owned, &sealed)).flatten())
        })
    }

    fn put(&self, record: &str, value: &[u8], lasts: Duration) -> Result<(), Unusable> {
        let (owned, value) = (record.to_owned(), value.to_vec());
        self.command(record, move |session| {
            let mut command = cmd("SET");
            command.arg(session.key_of(&owned));
            command.arg(session.seal(&owned, &value)?);
            command.arg("PX").arg(millis(lasts));
            Ok(command)
        })
    }

    fn remove(&self, record: &str) -> Result<(), Unusable> {
        let owned = record.to_owned();
        self.command(record, move |session| {
            let mut command = cmd("DEL");
            command.arg(session.key_of(&owned));
            Ok(command)
        })
    }

    fn certificate(&self, name: &str) -> Result<Option<SharedCertificate>, Unusable> {
        let record = certificate(name);
        self.ask(&record.clone(), |mut session| async move {
            let value = session.read(&record).await?;
            let split = value.split_first_chunk();
            Ok(split.map(|(fingerprint, sealed)| SharedCertificate {
                fingerprint: *fingerprint,
                pem: session.open(&record, sealed),
            }))
        })
    }

    fn put_certificate(
        &self,
        name: &str,
        new: &NewCertificate<'_>,
        replaces: Option<Fingerprint>,
    ) -> Result<bool, Unusable> {
        let (name, pem) = (name.to_owned(), new.pem.to_vec());
        let (fingerprint, lasts) = (new.fingerprint, new.lasts);
        let record = certificate(&name);
        self.command(&record.clone(), move |session| {
            let sealed = session.seal(&record, &pem)?;
            let mut command = cmd("EVAL");
            command.arg(STORE).arg(2);
            command.arg(session.key_of(&record)).arg(session.changed());
            command.arg(replaces.as_ref().map_or(&[][..], |it| it));
            command.arg([&fingerprint[..], &sealed].concat());
            command.arg(millis(lasts)).arg(member(&name, &fingerprint));
            let replaced = replaces.map(|it| member(&name, &it));
            command.arg(replaced.unwrap_or_default());
            command.arg(millis(CHANGED_LASTS));
            Ok(command)
        })
    }

    fn changes(&self, after: Option<&Point>) -> Result<Changes, Unusable> {
        let (epoch, revision) = match after {
            Some(Point { epoch, revision }) => (epoch.clone(), *revision),
            None => (String::new(), 0),
        };
        let known = epoch.clone();
        let answer: Vec<String> = self.command(CHANGED_RECORD, move |session| {
            let mut command = cmd("EVAL");
            command.arg(CHANGED).arg(1).arg(session.changed());
            command.arg(format!("{EPOCH}{:032x}", fastrand::u128(..)));
            command.arg(epoch).arg(revision).arg(MOST_NAMES);
            command.arg(millis(CHANGED_LASTS));
            Ok(command)
        })?;
        let Some((epoch, pairs)) = answer.split_first() else {
            let server = &self.0.server;
            return Err(Unusable(format!(
                "server {server}: an answer without an epoch"
            )));
        };
        let pairs = pairs.chunks_exact(2);
        let has_more = pairs.len() == MOST_NAMES;
        let mut until = Point {
            epoch: epoch.clone(),
            revision: if *epoch == known { revision } else { 0 },
        };
        let mut certificates = Vec::new();
        for pair in pairs {
            until.revision = pair[1].parse().unwrap_or(until.revision);
            certificates.extend(changed(&pair[0]));
        }
        Ok(Changes {
            until,
            certificates,
            has_more,
        })
    }

    fn take(&self, lease: &str, holder: &str, lasts: Duration) -> Result<bool, Unusable> {
        let (lease, holder) = (lease_record(lease), holder.to_owned());
        let taken: Option<String> = self.command(&lease.clone(), move |session| {
            let mut command = cmd("SET");
            command.arg(session.key_of(&lease)).arg(holder);
            command.arg("NX").arg("PX").arg(millis(lasts));
            Ok(command)
        })?;
        Ok(taken.is_some())
    }

    fn renew(&self, lease: &str, holder: &str, lasts: Duration) -> Result<bool, Unusable> {
        let (lease, holder) = (lease_record(lease), holder.to_owned());
        self.command(&lease.clone(), move |session| {
            let mut command = cmd("EVAL");
            command.arg(RENEW).arg(1).arg(session.key_of(&lease));
            command.arg(holder).arg(millis(lasts));
            Ok(command)
        })
    }

    fn release(&self, lease: &str, holder: &str) {
        let (lease, holder) = (lease_record(lease), holder.to_owned());
        let inner = self.0.clone();
        let release = async move {
            let key = lease.clone();
            let release = |mut session: Session| async move {
                let mut command = cmd("EVAL");
                command.arg(RELEASE).arg(1).arg(session.key_of(&key));
                command.arg(holder);
                Ok(command.query_async::<()>(&mut session.connection).await?)
            };
            // Otherwise the lease runs out.
            let _ = inner.ask(&lease, release).await;
        };
        if let Some(runtime) = self.0.runtime.get() {
            runtime.spawn(release);
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records")
            .field("server", &self.server)
            .field("key_file", &self.key_file)
            .finish_non_exhaustive()
    }
}

/// Whether a command met a value of another type than it is for.
fn is_of_another_type(error: &RedisError) -> bool {
    // Before Redis 7 the error of a script has it in its text alone.
    error.to_string().contains("WRONGTYPE")
}

/// The advice on such a value.
fn of_another_type(key: &str) -> String {
    format!(
        "another program has stored a value of another type at the key {key}: remove it with DEL, \
         and it is stored again"
    )
}

fn certificate(name: &str) -> String {
    format!("certificates/{name}")
}

fn lease_record(lease: &str) -> String {
    format!("leases/{lease}")
}

/// A time that the server takes: at least a millisecond.
fn millis(time: Duration) -> u64 {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    millis.clamp(1, 1 << 48)
}

/// A name with the fingerprint of its certificate, as a member of the sorted set.
fn member(name: &str, fingerprint: &Fingerprint) -> String {
    let digits = fingerprint.iter().map(|it| format!("{it:02x}"));
    format!("{name} {}", digits.collect::<String>())
}

/// The reverse; `None` for a malformed member.
fn changed(member: &str) -> Option<(String, Fingerprint)> {
    let (name, digits) = member.split_once(' ')?;
    let mut fingerprint = [0; 32];
    if digits.len() != 2 * fingerprint.len() {
        return None;
    }
    for (index, byte) in fingerprint.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some((name.to_owned(), fingerprint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_as_they_are_written() {
        let fingerprint: Fingerprint = std::array::from_fn(|it| it as u8 * 8);
        let text = member("*.example.com", &fingerprint);
        let read = changed(&text).expect("a member");
        assert_eq!(read, ("*.example.com".to_owned(), fingerprint));
        let other = text.replace("00", "é");
        for wrong in ["", "a", "a ", "a 00", &other, &text[..text.len() - 1]] {
            assert_eq!(changed(wrong), None, "{wrong}");
        }
    }
}
