//! The records of DNS-01: by dynamic updates, or by a program.

pub(crate) mod clean_up;
mod exchange;
mod hook;
mod update;

use std::sync::Arc;

use crate::clock::Clock;
use crate::error::{Error, Failure, FailureKind};
use crate::lease::Lease;
use crate::settings::{ChallengeKind, DnsSettings};

use hook::Hook;
use update::Updates;

/// The way in which records of DNS-01 are set.
pub(crate) enum Dns {
    Update(Box<Updates>),
    Hook(Hook),
}

/// A record that is set.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// Its name, as `_acme-challenge.example.com`.
    pub(crate) name: String,
    pub(crate) value: String,
}

impl Dns {
    /// # Errors
    /// A name or a key in the settings cannot be used.
    pub(crate) fn new(settings: DnsSettings, clock: &Arc<dyn Clock>) -> Result<Self, Error> {
        let clock = Arc::clone(clock);
        Ok(match settings {
            DnsSettings::Update(settings) => Self::Update(Box::new(Updates::new(settings, clock)?)),
            DnsSettings::Hook { program } => Self::Hook(Hook::new(program, clock)),
        })
    }

    /// Sets a record, and waits until it is there for all to see.
    pub(crate) async fn present(&self, record: &Record) -> Result<(), Failure> {
        let presented = match self {
            Self::Update(updates) => updates.present(record).await,
            Self::Hook(hook) => hook.run("present", record).await,
        };
        presented.map_err(|text| {
            let kind = FailureKind::Challenge(ChallengeKind::Dns01);
            Failure::new(kind, text)
        })
    }

    /// Removes a record, unless another process may hold the lease of its order by now. That
    /// process would continue the order, with the same record.
    ///
    /// # Errors
    /// The record may still be there. The text says why.
    pub(crate) async fn clean_up(&self, record: &Record, lease: &Lease) -> Result<(), String> {
        if !lease.is_held_for(clean_up::DEADLINE) {
            return Err("another process may continue its order".to_owned());
        }
        match self {
            Self::Update(updates) => updates.clean_up(record).await,
            Self::Hook(hook) => hook.run("cleanup", record).await,
        }
    }
}
