//! Leases: of several processes on one storage, one orders a certificate.
//!
//! A lease is a file with its holder and a count that the holder raises. Another process takes
//! it over once it has seen the same count for [`LASTS`], by its own clock: clocks of machines
//! disagree. A holder on the same machine whose process is gone is replaced at once.
//!
//! ```text
//!   free ── take ──▶ held ── renew, every LASTS / 3 ──▶ held
//!    ▲                │ drop, or the count stands still for LASTS
//!    └────────────────┘
//! ```
//!
//! Machines that share a server hold their leases there. It ends a lease that is not renewed.
//!
//! Invariant: a lease file changes only under the lock of the storage (`flock`).

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::name::file_stem;
use crate::shared::Shared;
use crate::storage::{self, Storage};

/// How long a lease lasts after it was renewed.
pub(crate) const LASTS: Duration = Duration::from_secs(30);

/// How often the lock of the storage is tried, and the pause in between. Its holders keep it
/// for a few reads and writes.
const LOCK_TRIES: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The leases that this process holds, by the number of their holder. A file with another lease
/// of this process was left behind: the storage could not be written when it was released.
static HELD: Mutex<BTreeSet<(u64, String)>> = Mutex::new(BTreeSet::new());

/// The leases of one process on a storage.
pub(crate) struct Leases {
    folder: PathBuf,
    lock: PathBuf,
    clock: Arc<dyn Clock>,
    holder: Holder,
    /// The server that keeps the leases, instead of the folder.
    server: Option<Arc<dyn Shared>>,
    /// The leases of others as first seen, with the time.
    seen: Mutex<HashMap<String, (Content, SystemTime)>>,
}

/// A lease that is held until this is dropped.
pub(crate) struct Lease {
    leases: Arc<Leases>,
    key: String,
    /// Names it at a server, where an earlier one of this process may be held still; empty
    /// in a folder.
    token: String,
    /// When it was last renewed; `None` once another has taken it over.
    renewed: Mutex<Option<SystemTime>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Content {
    holder: Holder,
    count: u64,
}

/// The holder of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    /// The start of the machine.
    boot: String,
    /// The namespace that `process` is meant in.
    namespace: String,
    process: u32,
    /// When the process started, in ticks since the start of the machine.
    started: u64,
    /// Tells the holders in a process apart.
    number: u64,
}

impl Leases {
    pub(crate) fn new(storage: &Storage, clock: Arc<dyn Clock>) -> Self {
        Self {
            folder: storage.leases(),
            lock: storage.lock(),
            clock,
            holder: Holder::this(),
            server: storage.server().cloned(),
            seen: Mutex::default(),
        }
    }

    /// Takes a lease; `None` where another holds it. Blocks.
    ///
    /// # Errors
    /// The storage cannot be written.
    pub(crate) fn take(self: &Arc<Self>, key: &str) -> io::Result<Option<Lease>> {
        let now = self.clock.now();
        let lease = |token| Lease {
            leases: self.clone(),
            key: key.to_owned(),
            token,
            renewed: Mutex::new(Some(now)),
        };
        if let Some(server) = &self.server {
            let token = self.holder.token();
            let is_taken = server.take(key, &token, LASTS)?;
            return Ok(is_taken.then(|| lease(token)));
        }
        let _locked = self.locked()?;
        if let Some(content) = self.content(key)?
            && !self.has_run_out(key, &content)
        {
            return Ok(None);
        }
        self.write(key, 0)?;
        held().insert((self.holder.number, key.to_owned()));
        self.seen().remove(key);
        Ok(Some(lease(String::new())))
    }

    /// Whether a lease has not changed for [`LASTS`], or its holder is gone.
    fn has_run_out(&self, key: &str, content: &Content) -> bool {
        if content.holder.is_gone(&self.holder, key) {
            return true;
        }
        let now = self.clock.now();
        let mut seen = self.seen();
        match seen.get(key) {
            Some((before, since)) if before == content => {
                now.duration_since(*since).is_ok_and(|it| it >= LASTS)
            }
            _ => {
                seen.insert(key.to_owned(), (content.clone(), now));
                false
            }
        }
    }

    fn content(&self, key: &str) -> io::Result<Option<Content>> {
        storage::read_record(&self.file(key))
    }

    fn write(&self, key: &str, count: u64) -> io::Result<()> {
        let holder = self.holder.clone();
        storage::write_record(&self.file(key), &Content { holder, count })
    }

    fn file(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{}.json", file_stem(key)))
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<String, (Content, SystemTime)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the leases, until the returned file is dropped.
    fn locked(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&self.lock).map_err(storage::at(&self.lock))?;
        for _ in 0..LOCK_TRIES {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
                Err(error) => return Err(error.into()),
            }
        }
        let message = format!("another process holds the lock of {}", self.lock.display());
        Err(io::Error::new(ErrorKind::TimedOut, message))
    }
}

impl Lease {
    /// Renews it; false where another has taken it over. Blocks.
    ///
    /// # Errors
    /// The storage cannot be written.
    pub(crate) fn renew(&self) -> io::Result<bool> {
        let now = self.leases.clock.now();
        let is_held = self.renew_in_place()?;
        *self.renewed() = is_held.then_some(now);
        Ok(is_held)
    }

    /// Whether the lease is surely ours for this time, without asking the server.
    pub(crate) fn is_held_for(&self, time: Duration) -> bool {
        let now = self.leases.clock.now();
        let age = (*self.renewed()).and_then(|it| now.duration_since(it).ok());
        age.is_some_and(|it| it + time <= LASTS)
    }

    fn renewed(&self) -> MutexGuard<'_, Option<SystemTime>> {
        self.renewed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew_in_place(&self) -> io::Result<bool> {
        if let Some(server) = &self.leases.server {
            return Ok(server.renew(&self.key, &self.token, LASTS)?);
        }
        let _locked = self.leases.locked()?;
        match self.leases.content(&self.key)? {
            Some(content) if content.holder == self.leases.holder => {
                self.leases.write(&self.key, content.count + 1)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(server) = &self.leases.server {
            server.release(&self.key, &self.token);
            return;
        }
        let locked = self.leases.locked();
        // A lease that cannot be released is left behind.
        if locked.is_ok()
            && let Ok(Some(content)) = self.leases.content(&self.key)
            && content.holder == self.leases.holder
        {
            let _ = fs::remove_file(self.leases.file(&self.key));
        }
        held().remove(&(self.leases.holder.number, std::mem::take(&mut self.key)));
    }
}

fn held() -> MutexGuard<'static, BTreeSet<(u64, String)>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Holder {
    /// A holder in this process.
    fn this() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let process = std::process::id();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self {
            boot: boot.trim().to_owned(),
            namespace: namespace.display().to_string(),
            process,
            started: started(process).unwrap_or(0),
            number: NUMBER.fetch_add(1, Relaxed),
        }
    }

    /// Names a further lease of this holder at a server.
    fn token(&self) -> String {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Relaxed);
        let Self {
            boot,
            process,
            started,
            ..
        } = self;
        // Machines that were copied while they ran have the same boot.
        let random = fastrand::u64(..);
        format!("{boot} {process} {started} {count} {random:016x}")
    }

    /// Whether the holder is known to be gone, on this machine and in this namespace. Its
    /// process is gone, or it is this process, which has left the file behind.
    fn is_gone(&self, this: &Self, key: &str) -> bool {
        let can_be_known = !this.boot.is_empty()
            && !this.namespace.is_empty()
            && this.boot == self.boot
            && this.namespace == self.namespace;
        if !can_be_known {
            return false;
        }
        if (self.process, self.started) == (this.process, this.started) {
            return !held().contains(&(self.number, key.to_owned()));
        }
        started(self.process) != Some(self.started)
    }
}

/// When a process started: field 22 of `proc_pid_stat(5)`; `None` if it does not run.
fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is the name of the program, in parentheses. It may have any in it.
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::TempDir;

    use super::*;

    /// A clock that only the test moves.
    struct Set(Mutex<SystemTime>);

    impl Clock for Set {
        fn now(&self) -> SystemTime {
            *self.0.lock().unwrap()
        }

        fn sleep(&self, _: Duration) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
            unreachable!("leases do not wait")
        }
    }

    impl Set {
        fn advance(&self, by: Duration) {
            *self.0.lock().unwrap() += by;
        }
    }

    /// Two processes on one storage.
    fn two() -> (TempDir, Arc<Set>, Arc<Leases>, Arc<Leases>) {
        let dir = TempDir::new().unwrap();
        let storage = Storage::open(dir.path()).unwrap();
        let clock = Arc::new(Set(Mutex::new(SystemTime::now())));
        let new = || Arc::new(Leases::new(&storage, clock.clone()));
        let (a, b) = (new(), new());
        (dir, clock, a, b)
    }

    const A_LITTLE: Duration = Duration::from_secs(1);

    #[test]
    fn one_holds_a_lease() {
        let (_dir, _, a, b) = two();
        let lease = a.take("a.example").unwrap().expect("it is free");
        assert!(b.take("a.example").unwrap().is_none());
        assert!(a.take("a.example").unwrap().is_none(), "not twice either");
        assert!(b.take("b.example").unwrap().is_some(), "another name");
        drop(lease);
        assert!(b.take("a.example").unwrap().is_some());
    }

    #[test]
    fn a_lease_that_is_not_renewed_runs_out() {
        let (_dir, clock, a, b) = two();
        let lease = a.take("a.example").unwrap().expect("it is free");
        assert!(b.take("a.example").unwrap().is_none());
        clock.advance(LASTS - A_LITTLE);
        assert!(b.take("a.example").unwrap().is_none());
        assert!(lease.renew().unwrap());
        clock.advance(A_LITTLE);
        assert!(b.take("a.example").unwrap().is_none(), "it was renewed");
        assert!(lease.is_held_for(LASTS - A_LITTLE));
        assert!(!lease.is_held_for(LASTS));
        clock.advance(LASTS);
        assert!(!lease.is_held_for(Duration::ZERO));
        let taken = b.take("a.example").unwrap().expect("it has run out");
        assert!(!lease.renew().unwrap(), "it was taken over");
        assert!(!lease.is_held_for(Duration::ZERO) && taken.is_held_for(LASTS));
        drop(lease);
        assert!(taken.renew().unwrap(), "the loser released nothing");
    }

    #[test]
    fn the_lease_of_a_process_that_is_gone_is_taken_over_at_once() {
        let (dir, _, a, _) = two();
        let mut content = Content {
            holder: a.holder.clone(),
            count: 3,
        };
        // The holder has this process's id, but another start time.
        content.holder.started += 1;
        let file = dir.join("leases/a.example.json");
        let write = |content: &Content| storage::write_record(&file, content).unwrap();
        write(&content);
        let lease = a.take("a.example").unwrap();
        assert!(lease.is_some());
        drop(lease);
        // On another machine it may be running.
        content.holder.boot.push('x');
        write(&content);
        assert!(a.take("a.example").unwrap().is_none());
    }

    /// The storage could not be written when the lease was released.
    #[test]
    fn a_lease_that_this_process_has_left_behind_is_taken_at_once() {
        let (dir, _, a, b) = two();
        let file = dir.join("leases/a.example.json");
        let leave_behind = || {
            let lease = a.take("a.example").unwrap().expect("it is free");
            let content = fs::read(&file).unwrap();
            drop(lease);
            fs::write(&file, content).unwrap();
        };
        leave_behind();
        let lease = a.take("a.example").unwrap().expect("nobody holds it");
        assert!(b.take("a.example").unwrap().is_none());
        drop(lease);
        leave_behind();
        assert!(b.take("a.example").unwrap().is_some(), "after a reload");
    }

    #[test]
    fn threads_do_not_take_a_lease_together() {
        let (dir, clock, ..) = two();
        let storage = Storage::open(dir.path()).unwrap();
        let taken: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    let leases = Arc::new(Leases::new(&storage, clock.clone()));
                    scope.spawn(move || leases.take("a.example").unwrap())
                })
                .collect();
            let ends = threads.into_iter().map(|it| it.join().unwrap());
            ends.collect()
        });
        assert_eq!(taken.iter().flatten().count(), 1);
    }
}
