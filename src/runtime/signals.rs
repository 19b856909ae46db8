//! The signals that the process takes over from their default.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::lifecycle::StopSignals;

/// Whose the signals of the process are.
#[derive(Debug)]
pub(super) enum Signals {
    /// Ours.
    Taken {
        stop: StopSignals,
        /// USR1.
        reopen: Signal,
        /// HUP.
        reload: Signal,
        /// USR2.
        upgrade: Signal,
    },
    /// The caller's: none is heard of.
    Left,
}

/// The wish behind a signal.
#[derive(Debug)]
pub(super) enum SignalAction {
    /// To stop: the name of the signal.
    Stop(&'static str, DrainLimit),
    /// To open the files of the access logs again.
    Reopen,
    /// To load the configuration again.
    Reload,
    /// To have another process take over.
    Upgrade,
}

/// How long exchanges in flight are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DrainLimit {
    /// As long as `server.drain_timeout` says.
    Limited,
    /// Until they have ended.
    Unlimited,
}

impl Signals {
    /// Takes them over at once. To be called within a runtime.
    ///
    /// # Errors
    /// They can't be taken over.
    pub fn take() -> io::Result<Self> {
        Ok(Signals::Taken {
            stop: StopSignals::new()?,
            reopen: signal(SignalKind::user_defined1())?,
            reload: signal(SignalKind::hangup())?,
            upgrade: signal(SignalKind::user_defined2())?,
        })
    }

    /// The name of the next signal that is to stop the process; others wait.
    ///
    /// # Cancellation
    /// No signal is lost by dropping the future.
    pub async fn stop(&mut self) -> &'static str {
        match self {
            Signals::Taken { stop, .. } => stop.next().await,
            Signals::Left => std::future::pending().await,
        }
    }

    /// The wish behind the next signal.
    ///
    /// # Cancellation
    /// No signal is lost by dropping the future.
    pub async fn next(&mut self) -> SignalAction {
        match self {
            Signals::Taken {
                stop,
                reopen,
                reload,
                upgrade,
            } => tokio::select! {
                name = stop.next() => {
                    let patience = match name {
                        "QUIT" => DrainLimit::Unlimited,
                        _ => DrainLimit::Limited,
                    };
                    SignalAction::Stop(name, patience)
                }
                _ = reopen.recv() => SignalAction::Reopen,
                _ = reload.recv() => SignalAction::Reload,
                _ = upgrade.recv() => SignalAction::Upgrade,
            },
            Signals::Left => std::future::pending().await,
        }
    }
}
