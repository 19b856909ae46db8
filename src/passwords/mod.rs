//! Passwords of users, verified beside the workers.
//!
//! A verification takes milliseconds to seconds of the processor, so that a few threads of
//! their own do it, one each at a time. The queue in front of them is bounded. A pair of
//! user and password that was right is remembered for a while, so that a client that has
//! logged in costs one look at a table. Shared by all workers, for the life of the process.
//!
//! Invariant: no password is kept beyond its verification. Only a tag of the pair and of its file
//! is remembered, by a key that only this process has. A file that changes forgets all its tags.

mod remembered;

use std::collections::VecDeque;
use std::io;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use evenkeel_passwords::Users;
use evenkeel_tls::MacKey;
use tokio::sync::oneshot;

use self::remembered::{Remembered, Tag};
use crate::net::clock;
use crate::scheduling::step_back;

/// Most verifications that wait.
const MAX_WAITING: usize = 64;
/// Most threads; fewer where there are fewer cores than twice as many.
const MAX_THREADS: usize = 4;

/// Verifies passwords. Its threads end when it is dropped.
#[derive(Debug)]
pub struct Passwords(Arc<Shared>);

/// A user, and the password that a client gives for it.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// The user.
    pub user: &'a str,
    /// The password that the client gives.
    pub password: &'a [u8],
}

/// Too many verifications wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy;

#[derive(Debug)]
struct Shared {
    key: MacKey,
    remembered: Remembered,
    state: Mutex<State>,
    /// Signals that there is work, or that it is closed.
    changed: Condvar,
    most_threads: usize,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Job>,
    /// How many threads there are: as many as were ever needed at once.
    threads: usize,
    /// How many of them wait for work.
    idle: usize,
    is_closed: bool,
}

struct Job {
    users: Arc<Users>,
    user: Box<str>,
    password: Box<[u8]>,
    tag: Tag,
    done: oneshot::Sender<bool>,
}

/// Tells neither the user nor the password.
impl std::fmt::Debug for Job {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Job")
    }
}

impl Passwords {
    /// One that has verified nothing yet. Threads are started when they are needed.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn new() -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Ok(Passwords(Arc::new(Shared {
            key: MacKey::generate()?,
            remembered: Remembered::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            most_threads: (cores / 2).clamp(1, MAX_THREADS),
        })))
    }

    /// Whether this pair was verified a while ago, and is remembered. Takes no lock.
    pub fn remembers(&self, users: &Users, pair: Pair<'_>) -> bool {
        let tag = self.0.tag(users, pair);
        self.0.remembered.has(tag, clock::now())
    }

    /// Has a thread verify a pair, after pairs that wait already. The answer is whether it is
    /// right; a failed verification gives none.
    ///
    /// A pair is not verified if nobody waits for its answer any more.
    ///
    /// # Errors
    /// Too many wait, or no thread can be started.
    pub fn verify(
        &self,
        users: Arc<Users>,
        pair: Pair<'_>,
    ) -> Result<oneshot::Receiver<bool>, Busy> {
        let (done, answer) = oneshot::channel();
        let tag = self.0.tag(&users, pair);
        let mut state = self.0.lock();
        if state.waiting.len() >= MAX_WAITING {
            state.waiting.retain(|it| !it.done.is_closed());
        }
        if state.waiting.len() >= MAX_WAITING {
            return Err(Busy);
        }
        if state.waiting.len() >= state.idle && state.threads < self.0.most_threads {
            match self.0.start_thread(state.threads) {
                Ok(()) => state.threads += 1,
                Err(_) if state.threads > 0 => {}
                Err(error) => {
                    tracing::error!("passwords: start a thread: {error}");
                    return Err(Busy);
                }
            }
        }
        state.waiting.push_back(Job {
            users,
            user: pair.user.into(),
            password: pair.password.into(),
            tag,
            done,
        });
        drop(state);
        self.0.changed.notify_one();
        Ok(answer)
    }
}

impl Drop for Passwords {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn tag(&self, users: &Users, pair: Pair<'_>) -> Tag {
        let texts = [users.digest(), pair.user.as_bytes(), pair.password];
        Tag::new(self.key.tag(&texts))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_thread(self: &Arc<Self>, index: usize) -> io::Result<()> {
        let shared = self.clone();
        let thread = std::thread::Builder::new().name(format!("passwords-{index}"));
        thread.spawn(move || {
            // Other requests do not wait for clients that log in.
            step_back();
            shared.work();
        })?;
        Ok(())
    }

    /// Verifies waiting pairs until it is closed.
    fn work(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let Some(job) = state.waiting.pop_front() else {
                state.idle += 1;
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            if !job.done.is_closed() {
                // The thread goes on even if the verification panics.
                let verified = catch_unwind(AssertUnwindSafe(|| self.verify(&job)));
                if let Ok(is_right) = verified {
                    // The asker may have left.
                    let _ = job.done.send(is_right);
                }
            }
            state = self.lock();
        }
    }

    fn verify(&self, job: &Job) -> bool {
        // A browser sends many requests at once: the first answer is for all of them.
        if self.remembered.has(job.tag, clock::now()) {
            return true;
        }
        let is_right = job.users.verify(&job.user, &job.password);
        if is_right {
            self.remembered.add(job.tag, clock::now());
        }
        is_right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `kim` with the password `secret`, by bcrypt of the lowest cost.
    const KIM: &str = "kim:$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";

    #[test]
    fn a_full_queue_refuses_and_who_left_makes_room() {
        let passwords = Passwords::new().unwrap();
        let users = Arc::new(Users::parse(KIM.as_bytes()).unwrap());
        let pair = Pair {
            user: "kim",
            password: b"wrong",
        };
        // Nobody takes anything out.
        passwords.0.lock().threads = MAX_THREADS;
        let waiting: Vec<_> = (0..MAX_WAITING)
            .map(|_| passwords.verify(users.clone(), pair).unwrap())
            .collect();
        assert_eq!(passwords.verify(users.clone(), pair).unwrap_err(), Busy);
        drop(waiting);
        assert!(passwords.verify(users, pair).is_ok());
    }

    #[test]
    fn another_file_forgets() {
        let passwords = Passwords::new().unwrap();
        let users = Users::parse(KIM.as_bytes()).unwrap();
        let pair = Pair {
            user: "kim",
            password: b"secret",
        };
        let tag = passwords.0.tag(&users, pair);
        passwords.0.remembered.add(tag, clock::now());
        assert!(passwords.remembers(&users, pair));
        let other = Pair {
            password: b"Secret",
            ..pair
        };
        assert!(!passwords.remembers(&users, other));
        let text = format!("# changed\n{KIM}");
        let changed = Users::parse(text.as_bytes()).unwrap();
        assert!(!passwords.remembers(&changed, pair));
    }
}
