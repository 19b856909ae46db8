//! The state of each name, as an operator sees it.

use std::fmt;
use std::time::SystemTime;

/// The state of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The name.
    pub name: String,
    /// The state now.
    pub state: State,
    /// The directory of the issuer of the certificate, where it is known.
    pub issuer: Option<String>,
    /// The last second at which the certificate is valid; `None` if there is none yet.
    pub not_after: Option<SystemTime>,
    /// When the certificate is next ordered; `None` while it is ordered, and for a name that
    /// is never ordered, because it is no name of a host.
    pub next_attempt: Option<SystemTime>,
    /// The last failure since the last success.
    pub last_error: Option<LastError>,
    /// The number of failures in a row.
    pub failures: u32,
}

/// A failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastError {
    /// When it failed.
    pub at: SystemTime,
    /// The reason, with the issuer's message.
    pub text: String,
}

/// The state of a name in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No certificate yet, and no order has failed.
    Missing,
    /// A certificate, and no order has failed since.
    Valid,
    /// A certificate is being ordered.
    Ordering,
    /// The last order failed. An older certificate may be in use all the same.
    Failed,
}

impl State {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Valid => "valid",
            Self::Ordering => "ordering",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name is not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotFollowed;

impl fmt::Display for NotFollowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no certificate is kept for this name")
    }
}

impl std::error::Error for NotFollowed {}
