//! Messages between the two processes of an upgrade, as JSON.
//!
//! ```text
//!   old                                          new
//!    │ Offer, with all listening sockets          │
//!    │───────────────────────────────────────────▶│ starts, as far as to accept
//!    │                          Ready, or Refused │
//!    │◀───────────────────────────────────────────│
//!    │ Known                                      │
//!    │───────────────────────────────────────────▶│
//!    │ Serve                                      │
//!    │───────────────────────────────────────────▶│ accepts
//!    │                                    Serving │
//!    │◀───────────────────────────────────────────│
//!    │ drains                                     │
//!    │ Counts, each second and at the end         │
//!    │───────────────────────────────────────────▶│ goes on counting from there
//!    │                                    Counted │
//!    │◀───────────────────────────────────────────│
//!    │ Before, with a channel, if the process     │
//!    │ before the old one still finishes          │
//!    │───────────────────────────────────────────▶│ hears that one's Counts
//! ```

use std::io;

use evenkeel_metrics::Saved;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::state::Known;
use crate::discovery::SourcesSnapshot;
use crate::net::Address;
use crate::net::handover::Channel;
use crate::net::listen::FileIdentity;

/// Version of the messages. A program that knows another one refuses the offer, and the
/// old process goes on.
pub(in crate::runtime) const VERSION: u32 = 2;

/// Names the descriptor of the channel to the new process.
pub(in crate::runtime) const CHANNEL_VARIABLE: &str = "EVENKEEL_HANDOVER";

/// The version alone. Nothing more is read of an offer of another version.
#[derive(Debug, Deserialize)]
pub(in crate::runtime) struct Versioned {
    pub version: u32,
}

/// The offer of the old process. With it come the descriptors of all sockets, in their order.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::runtime) struct Offer {
    pub version: u32,
    /// Version of the old program.
    pub program: String,
    pub sockets: Vec<OfferedSockets>,
    /// Path of the control socket.
    pub control: Option<String>,
    /// The answers of the sources of endpoints.
    #[serde(default)]
    pub discovered: SourcesSnapshot,
}

/// The sockets of one address.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::runtime) struct OfferedSockets {
    pub role: Role,
    /// The listener's name.
    pub name: String,
    /// The address as configured.
    pub wanted: String,
    /// How many descriptors they are.
    pub count: usize,
    /// Of a Unix socket.
    pub file: Option<FileIdentity>,
}

/// The purpose of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::runtime) enum Role {
    Listener,
    StatusPage,
}

/// From the new process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::runtime) enum Answer {
    /// It has all that it needs to serve.
    Ready,
    /// It accepts connections.
    Serving,
    /// It can't take over, for this reason.
    Refused(String),
    /// Its counts start from those of the old process.
    Counted,
}

/// From the old process, to one that is ready.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::runtime) enum Word {
    /// The present state of upstreams and endpoints. It comes before `Serve`.
    Known(Box<Known>),
    /// To accept connections. The old process does so too until it hears `Serving`.
    Serve,
    /// The counts so far.
    Counts(Saved),
    /// The old process ends, but the one before it has not ended yet. The channel to that one
    /// comes with this message, and brings its counts.
    Before {
        /// The counts of that process that the last `Counts` include.
        counted: Saved,
    },
}

/// The address that a text of an offer stands for.
pub(in crate::runtime) fn address(text: &str) -> Option<Address> {
    match text.strip_prefix("unix:") {
        Some(path) => Some(Address::Unix(path.into())),
        None => text.parse().ok().map(Address::Tcp),
    }
}

/// Reads a message.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(io::Error::other)
}

/// Says something to the old process.
pub(super) fn say(channel: &Channel, answer: &Answer) -> io::Result<()> {
    channel.send(&serde_json::to_vec(answer)?, &[])
}
