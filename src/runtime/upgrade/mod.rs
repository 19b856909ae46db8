//! Another program in the place of this one, without a connection lost.
//!
//! The old process starts the new one and gives it copies of all listening sockets:
//! `successor`. The new one starts with them as far as to accept, and says so. On the old
//! one's word it accepts, and says that too; then the old one drains. `upgrading` is the
//! control thread's view. The new process's side is `handover`.
//!
//! Invariant: the old process goes on with everything until the new one serves. No
//! listening socket is closed by both, so that no connection in its queue is lost.

mod successor;
mod upgrading;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::handover::message::{Offer, OfferedSockets, Role, VERSION};
use super::listeners::Lent;
use crate::admin::STATUS_PAGE;
use crate::config::Config;
use crate::discovery::{Discovery, SourcesSnapshot};
use crate::net::listen::SocketFile;
use successor::Plan;

pub(super) use successor::{Failed, StartProgress};
pub(super) use upgrading::Upgrading;

/// How the program that follows is started: as this one was, unless another file is
/// named.
#[derive(Debug, Clone)]
pub(super) struct Invocation {
    /// The name by which this program was called: a new version may have taken the
    /// file's place.
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

impl Invocation {
    /// The program of this process. To be called at its start.
    pub fn of_this_process() -> Self {
        let mut words = std::env::args_os();
        let program = PathBuf::from(words.next().unwrap_or_default());
        let is_path = program.components().nth(1).is_some();
        Invocation {
            // A name alone is looked for in `PATH` again.
            program: match std::path::absolute(&program) {
                Ok(absolute) if is_path => absolute,
                _ => program,
            },
            arguments: words.collect(),
        }
    }

    /// Everything that the program that takes over is started with.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn plan(
        &self,
        binary: Option<PathBuf>,
        lent: &[Lent<'_>],
        config: &Config,
        discovery: &Arc<Discovery>,
        timeout: Duration,
    ) -> std::io::Result<Plan> {
        let mut descriptors = Vec::new();
        let mut sockets = Vec::with_capacity(lent.len());
        for lent in lent {
            for copy in lent.copies.iter() {
                descriptors.push(copy.try_clone_to_owned()?);
            }
            sockets.push(OfferedSockets {
                role: match lent.name {
                    STATUS_PAGE => Role::StatusPage,
                    _ => Role::Listener,
                },
                name: lent.name.to_owned(),
                wanted: lent.wanted.to_string(),
                count: lent.copies.count(),
                file: lent.file.map(SocketFile::identity),
            });
        }
        let control = config.server.control.as_ref();
        Ok(Plan {
            program: binary.unwrap_or_else(|| self.program.clone()),
            arguments: self.arguments.clone(),
            offer: Offer {
                version: VERSION,
                program: env!("CARGO_PKG_VERSION").to_owned(),
                sockets,
                control: control.map(ToString::to_string),
                discovered: SourcesSnapshot::default(),
            },
            discovery: discovery.clone(),
            descriptors,
            timeout,
        })
    }
}
