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
        reload: ReloadSignals,
    },
    /// The caller's: none is heard of.
    Left,
}

/// The wish behind a signal.
#[derive(Debug)]
pub(super) enum Wish {
    /// To stop: the name of the signal.
    Stop(&'static str, Patience),
    /// To open the files of the access logs anew.
    Reopen,
}

/// How long exchanges in flight are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
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
            reload: ReloadSignals::new()?,
        })
    }

    /// The wish behind the next signal.
    ///
    /// # Cancellation
    /// No signal is lost by dropping the future.
    pub async fn next(&mut self) -> Wish {
        match self {
            Signals::Taken {
                stop,
                reopen,
                reload,
            } => loop {
                tokio::select! {
                    name = stop.next() => {
                        let patience = match name {
                            "QUIT" => Patience::Unlimited,
                            _ => Patience::Limited,
                        };
                        return Wish::Stop(name, patience);
                    }
                    _ = reopen.recv() => return Wish::Reopen,
                    () = reload.refuse_next() => {}
                }
            },
            Signals::Left => std::future::pending().await,
        }
    }
}

/// HUP, taken over from its default.
#[derive(Debug)]
pub(super) struct ReloadSignals {
    hangup: Signal,
    /// Whether one has been answered: to say it once is enough.
    is_answered: bool,
}

impl ReloadSignals {
    /// Takes it over at once. To be called within a runtime.
    fn new() -> io::Result<Self> {
        Ok(ReloadSignals {
            hangup: signal(SignalKind::hangup())?,
            is_answered: false,
        })
    }

    /// Waits for the next one, and says of the first that it changes nothing.
    ///
    /// # Cancellation
    /// No signal is lost by dropping the future.
    async fn refuse_next(&mut self) {
        self.hangup.recv().await;
        if !std::mem::replace(&mut self.is_answered, true) {
            tracing::warn!(
                "HUP: the configuration stays as it is; this version reads it only at the start, \
                 and reloading comes with a later one"
            );
        }
    }
}
