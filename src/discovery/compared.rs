//! What operators have changed of lists, beside another configuration: what of it stays,
//! and what is lost.

use std::fmt;

use super::changes::{Changes, fingerprint};
use super::{Discovery, listed};
use crate::config::Config;

/// What operators have changed of the list of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorChange {
    upstream: String,
    /// What is changed, in a few words.
    what: String,
    fate: Fate,
}

/// What becomes of a change under another configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The list is written as it was.
    Stays { saved: Saved },
    /// The list is another one, and holds.
    Lost,
}

/// Whether the next start makes the change again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    All,
    NotAll,
}

impl fmt::Display for OperatorChange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OperatorChange { upstream, what, .. } = self;
        match self.fate {
            Fate::Lost => write!(
                out,
                "upstream {upstream}: what the operator changed is lost, for the file's list \
                 is another one: {what}"
            ),
            Fate::Stays { saved } => {
                let until = match saved {
                    Saved::All => "saved",
                    Saved::NotAll => "not saved: until the program ends",
                };
                write!(
                    out,
                    "upstream {upstream}: the running list is not the file's: {what} ({until})"
                )
            }
        }
    }
}

impl Discovery {
    /// What operators have changed of lists so far, and what becomes of it under this
    /// configuration.
    pub fn operator_changes(&self, now: &Config) -> Vec<OperatorChange> {
        let saved = self.saved();
        let state = self.state();
        let changed = state.upstreams.iter().filter_map(|(name, known)| {
            let changes = state.changes.get(name);
            let weights = known.shared.reweighted_summary();
            let parts = [changes.map(Changes::summary), weights.clone()];
            let parts: Vec<_> = parts.into_iter().flatten().collect();
            if parts.is_empty() {
                return None;
            }
            let then = now.upstreams.iter().find(|it| it.name == *name);
            let running = fingerprint(&known.sources, known.file.as_deref());
            let is_listed = then.is_some_and(|it| listed(it) == running);
            let is_saved = weights.is_none() && saved.changes.get(name) == changes;
            Some(OperatorChange {
                upstream: name.clone(),
                what: parts.join("; "),
                fate: match (is_listed, is_saved) {
                    (false, _) => Fate::Lost,
                    (true, true) => Fate::Stays { saved: Saved::All },
                    (true, false) => Fate::Stays {
                        saved: Saved::NotAll,
                    },
                },
            })
        });
        changed.collect()
    }
}
