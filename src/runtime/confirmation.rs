//! Whether the configuration in force is to stay.
//!
//! One that was loaded to be confirmed goes back by itself: the last configuration that
//! was to stay comes into force again. The control thread keeps that one as long as
//! something waits, and no longer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use super::reload::PreviousConfig;
use crate::observe::reloads::{Reloads, Unconfirmed};

/// Time from a failed try to go back to the next one.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Whether the configuration in force stays, or which one comes back.
#[derive(Debug)]
pub(super) struct Confirmation {
    state: State,
    /// The figures that show it.
    shown: Arc<Reloads>,
}

/// ```text
///             reload --confirm            the time is over
///   Settled ───────────────────▶ Waiting ─────────────────▶ Reverting
///      ▲                          │   ▲                       │   │
///      └──────────────────────────┘   └───────────────────────┘   │
///      ▲  confirm, a reload without it    it can't come back      │
///      └──────────────────────────────────────────────────────────┘
///                                                    it came back
/// ```
#[derive(Debug)]
enum State {
    /// The configuration in force stays.
    Settled,
    /// It goes back at this time.
    Waiting {
        kept: PreviousConfig,
        until: Instant,
    },
    /// The one of before is coming into force.
    Reverting,
}

impl Confirmation {
    /// The configuration in force stays.
    pub fn new(shown: Arc<Reloads>) -> Self {
        Confirmation {
            state: State::Settled,
            shown,
        }
    }

    /// A configuration has replaced `before`, and is to be confirmed within this time, if any.
    /// Gives a remark for the operator, if one is needed.
    pub fn begin(&mut self, within: Option<Duration>, before: PreviousConfig) -> Option<String> {
        let state = std::mem::replace(&mut self.state, State::Settled);
        let (kept, has_waited) = match state {
            State::Waiting { kept, .. } => (kept, true),
            State::Settled | State::Reverting => (before, false),
        };
        let Some(within) = within else {
            self.settle();
            return has_waited
                .then(|| "no configuration waits to be confirmed any more".to_owned());
        };
        let hash = kept.hash();
        self.wait(kept, within);
        Some(format!(
            "it waits to be confirmed: without `evenkeel confirm` within {within:?}, \
             configuration {hash} comes back"
        ))
    }

    /// The configuration in force is to stay. Gives the hash of the one that would have
    /// come back.
    ///
    /// # Errors
    /// Nothing waits, and why.
    pub fn confirm(&mut self) -> Result<String, &'static str> {
        match &self.state {
            State::Settled => Err("no configuration waits to be confirmed"),
            State::Reverting => Err("the time to confirm is over"),
            State::Waiting { kept, .. } => {
                let hash = kept.hash();
                self.settle();
                Ok(hash)
            }
        }
    }

    /// Waits until the time is over.
    ///
    /// # Cancellation
    /// Nothing is lost by dropping the future.
    pub async fn is_over(&self) {
        match &self.state {
            State::Waiting { until, .. } => sleep_until((*until).into()).await,
            State::Settled | State::Reverting => std::future::pending().await,
        }
    }

    /// The time is over: gives the configuration that comes back.
    pub fn revert(&mut self) -> Option<PreviousConfig> {
        match std::mem::replace(&mut self.state, State::Reverting) {
            State::Waiting { kept, .. } => Some(kept),
            state => {
                self.state = state;
                None
            }
        }
    }

    /// It could not come back. Gives the time to the next try.
    pub fn try_again(&mut self, kept: PreviousConfig) -> Duration {
        self.wait(kept, RETRY_PAUSE);
        RETRY_PAUSE
    }

    /// The configuration in force stays.
    pub fn settle(&mut self) {
        self.state = State::Settled;
        self.shown.await_confirmation(None);
    }

    /// Whether the configuration in force may go back.
    pub fn is_settled(&self) -> bool {
        matches!(self.state, State::Settled)
    }

    fn wait(&mut self, kept: PreviousConfig, within: Duration) {
        let until = Instant::now() + within;
        let unconfirmed = Unconfirmed {
            until,
            back_to: kept.hash(),
            back_to_generation: kept.generation,
        };
        self.state = State::Waiting { kept, until };
        self.shown.await_confirmation(Some(unconfirmed));
    }
}
