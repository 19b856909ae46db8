//! The process: its threads, from the start to the end.
//!
//! The caller of [`run`] waits. The control thread (`control`) starts the workers, which are
//! threads with an event loop each (`worker`). It watches them (`heartbeat`) and the endpoints
//! (`health`), and stops them.

mod audience;
mod awaited;
mod changes;
mod confirmation;
mod control;
mod ending;
mod file_watch;
mod handover;
mod health;
mod heartbeat;
mod listeners;
mod permits;
mod reload;
mod service;
mod signals;
mod socket_paths;
mod source_watch;
mod start;
mod upgrade;
mod worker;

pub use audience::Audience;
pub use reload::{ConfigSource, Load, Refusal, Rejected, Reloaded};

use std::io;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::dispatch::Dispatcher;
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::disable_transparent_huge_pages;

use crate::config::Config;
use crate::net::Address;
use crate::observe::counters::Counters;
use crate::observe::figures::{CurrentSources, Figures};
use control::{ControlThread, Message};
use handover::Inheritance;
use signals::Signals;

/// A running process, or a running part of one: workers and their control thread.
/// Dropped, it stops at once.
#[derive(Debug)]
pub struct Running {
    control: ControlThread,
    current: CurrentSources,
    status_address: Option<Address>,
    /// The address of each listener, with the ports that the kernel chose.
    pub addresses: Vec<Address>,
}

/// Raises the limit on open descriptors as far as the process may.
///
/// The soft limit is often 1,024, for programs that use select(2). The hard limit is much higher.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it there are as many as before.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Runs until TERM, INT or QUIT, then drains, after QUIT without a deadline.
///
/// A later TERM or INT that is not the same wish cuts open connections. USR1 opens the files of
/// the access logs again. HUP, and an operator, have the configuration loaded again from
/// `source`.
///
/// During the wait for the first answers of name servers, TERM, INT and QUIT end the start at
/// once. USR1 and HUP count once it is over.
///
/// # Errors
/// A listener can't be bound, a log can't be opened, a thread can't be
/// started; or a thread ended without being told to.
pub fn run(config: Config, source: ConfigSource) -> io::Result<()> {
    // The allocator asks for huge pages, and each thread fills only a little of them. With 64
    // connections that is 90 MB instead of 20, at the cost of the page cache. A kernel without
    // huge pages refuses.
    let _ = disable_transparent_huge_pages(true);
    raise_descriptor_limit();
    let inheritance = Inheritance::of_environment()?;
    match control::start(config, source, inheritance, Signals::take)? {
        Some(running) => running.control.join(),
        None => Ok(()),
    }
}

/// Binds every listener and starts the workers and the control thread. Signals are
/// the caller's.
///
/// # Errors
/// As for [`run`].
pub fn start(config: Config) -> io::Result<Running> {
    let started = control::start(
        config,
        ConfigSource::default(),
        Inheritance::default(),
        || Ok(Signals::Left),
    )?;
    started.ok_or_else(|| io::Error::other("nothing was started"))
}

impl Running {
    /// Counters of each worker.
    pub fn counters(&self) -> Vec<Arc<Counters>> {
        self.current.get().counters.clone()
    }

    /// All figures at this moment.
    pub fn figures(&self) -> Figures {
        self.current.get().read()
    }

    /// The address of the status page, if there is one.
    pub fn status_address(&self) -> Option<&Address> {
        self.status_address.as_ref()
    }

    /// The endpoints of each upstream, as all workers share them: exchanges in flight, and
    /// eligible endpoints.
    pub fn dispatchers(&self) -> Vec<Arc<Dispatcher>> {
        self.current.get().dispatchers.clone()
    }

    /// Drains for at most `timeout`, then stops, and logs what was done.
    pub fn stop(self, timeout: Duration) {
        self.control.ask(Message::Drain { timeout });
        if let Err(error) = self.control.join() {
            tracing::error!("{error}");
        }
    }
}
