//! The keys of tickets, for all listeners of a process.
//!
//! Invariant: there is one [`TicketKeys`] from the start of the process to its end. Listeners
//! that change over a reload go on with it.

mod shared;

use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_tls::{FileKeys, Lifetimes, TicketKeys};
use serde::Serialize;
use tokio::sync::watch;

use super::of_files::FileBacked;
use crate::config::{self, EncryptedStore};
use crate::shared_server::SharedServerFigures;
use crate::watching::WatchedPaths;
use shared::{Exchange, State};

/// The keys of tickets, with where they come from.
#[derive(Debug)]
pub struct Tickets {
    keys: Arc<TicketKeys>,
    followed: Mutex<Followed>,
    /// How keys are shared, if they are.
    shared: watch::Sender<Option<EncryptedStore>>,
    sharing: State,
}

/// Keys of tickets, for operators.
#[derive(Debug, Clone, Serialize)]
pub struct TicketFigures {
    /// Keys that open tickets.
    pub keys: u64,
    /// Times that another key was made, as it was time.
    pub rotations: u64,
    /// Tickets of clients whose key is not there.
    pub unknown: u64,
    /// Keys that came from other machines by the server.
    pub learned: u64,
    /// Times that the server was given up.
    pub server_downs: u64,
    /// The server by which machines share their keys; `None` for none.
    pub server: Option<SharedServerFigures>,
}

/// Settings, and the content of their files.
#[derive(Debug)]
pub struct Followed {
    settings: config::Tickets,
    files: FileKeys,
    /// Why a file can't be used that has changed.
    trouble: Option<String>,
}

impl Followed {
    /// Reads the files of a configuration. Blocks.
    ///
    /// # Errors
    /// A file can't be used.
    pub fn read(settings: &config::Tickets) -> io::Result<Self> {
        let failed = |error| io::Error::other(format!("tickets: {error}"));
        Ok(Followed {
            settings: settings.clone(),
            files: FileKeys::read(&settings.keys).map_err(failed)?,
            trouble: None,
        })
    }
}

impl Tickets {
    /// New keys, with the files' keys. Blocks.
    ///
    /// # Errors
    /// A file can't be used, or the system gives no random bytes.
    pub fn start(settings: &config::Tickets) -> io::Result<Arc<Self>> {
        let followed = Followed::read(settings)?;
        let keys = TicketKeys::generate(lifetimes(settings)).map_err(io::Error::other)?;
        keys.use_files(followed.files.clone());
        Ok(Arc::new(Tickets {
            keys: Arc::new(keys),
            shared: watch::Sender::new(settings.shared.clone()),
            sharing: State::default(),
            followed: Mutex::new(followed),
        }))
    }

    /// The keys.
    pub fn keys(&self) -> &Arc<TicketKeys> {
        &self.keys
    }

    /// Goes by other settings from now on. Keys that the process has made stay.
    pub fn follow(&self, next: Followed) {
        let mut followed = self.followed();
        self.keys.set_lifetimes(lifetimes(&next.settings));
        if followed.files != next.files {
            self.keys.use_files(next.files.clone());
        }
        self.shared.send_if_modified(|it| {
            let is_other = *it != next.settings.shared;
            it.clone_from(&next.settings.shared);
            is_other
        });
        *followed = next;
    }

    /// Exchanges keys with other machines for ever, where the configuration says so. To be
    /// run as a task of the control thread.
    pub fn share(self: &Arc<Self>) -> impl Future<Output = ()> + use<> {
        let tickets = self.clone();
        let mut settings = self.shared.subscribe();
        async move {
            loop {
                let now = settings.borrow_and_update().clone();
                let exchange = now.map(|it| Exchange::new(&tickets.keys, &tickets.sharing, &it));
                let exchanging = async {
                    match exchange {
                        Some(Ok(exchange)) => return exchange.keep().await,
                        Some(Err(error)) => tracing::error!("tickets: {error}"),
                        None => tickets.sharing.server.begin(None),
                    }
                    std::future::pending().await
                };
                tokio::select! {
                    () = exchanging => return,
                    changed = settings.changed() => if changed.is_err() {
                        return;
                    },
                }
            }
        }
    }

    /// How keys and tickets do.
    pub fn figures(&self) -> TicketFigures {
        let counts = self.keys.counts();
        TicketFigures {
            keys: counts.keys,
            rotations: counts.rotations,
            unknown: counts.unknown,
            learned: self.sharing.learned(),
            server_downs: self.sharing.server.downs(),
            server: self.sharing.server.figures(),
        }
    }

    /// Adds what the process before an upgrade has counted.
    pub fn add(&self, rotations: u64, unknown: u64, learned: u64, server_downs: u64) {
        self.keys.add(rotations, unknown);
        self.sharing.add(server_downs, learned);
    }

    /// Whether it has files, which may change.
    pub fn has_files(&self) -> bool {
        !self.followed().settings.keys.is_empty()
    }

    fn followed(&self) -> MutexGuard<'_, Followed> {
        let followed = self.followed.lock();
        followed.unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileBacked for Tickets {
    fn look(&self) {
        let settings = self.followed().settings.clone();
        let read = FileKeys::read(&settings.keys);
        let mut followed = self.followed();
        if followed.settings != settings {
            // A reload came first.
            return;
        }
        match read {
            Ok(files) => {
                followed.trouble = None;
                if followed.files != files {
                    let count = files.count();
                    self.keys.use_files(files.clone());
                    followed.files = files;
                    tracing::info!("tickets: the keys were reloaded: {count} in all");
                }
            }
            Err(error) => {
                let trouble = Some(error.to_string());
                if followed.trouble != trouble {
                    tracing::warn!("tickets: {error}; the previous keys stay in use");
                    followed.trouble = trouble;
                }
            }
        }
    }

    fn watched(&self) -> WatchedPaths {
        WatchedPaths {
            files: self.followed().settings.keys.clone(),
            ..WatchedPaths::default()
        }
    }
}

fn lifetimes(settings: &config::Tickets) -> Lifetimes {
    Lifetimes {
        rotation: settings.rotation,
        ticket: settings.lifetime,
    }
}
