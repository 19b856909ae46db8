//! What operators have changed of lists, beside another configuration: what of it stays,
//! and what is lost.

use std::fmt;

use super::Discovery;
use super::changes::Changes;
use crate::config::Config;

/// What operators have changed of the list of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorChange {
    upstream: String,
    /// What is changed, in a few words.
    what: String,
    fate: Fate,
    saved: Saved,
}

/// What becomes of a change under another configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The list is written as it was.
    Stays,
    /// The list is another one, and holds.
    Lost,
}

/// Whether the change holds again once the list is written as it was.
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
            )?,
            Fate::Stays => write!(
                out,
                "upstream {upstream}: the running list is not the file's: {what}"
            )?,
        }
        out.write_str(match (self.fate, self.saved) {
            (Fate::Lost, Saved::All) => " (saved: it holds again with the list of before)",
            (Fate::Lost, Saved::NotAll) => "",
            (Fate::Stays, Saved::All) => " (saved)",
            (Fate::Stays, Saved::NotAll) => " (not saved: until the program ends)",
        })
    }
}

impl Discovery {
    /// What operators have changed of lists so far, and what becomes of it under this
    /// configuration.
    pub fn operator_changes(&self, now: &Config) -> Vec<OperatorChange> {
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
            let is_listed = then.is_some_and(|it| it.listed == known.listed);
            let saved = state.saved_of(name).map(Changes::unsigned);
            let is_saved = weights.is_none() && saved == changes.map(Changes::unsigned);
            Some(OperatorChange {
                upstream: name.clone(),
                what: parts.join("; "),
                fate: if is_listed { Fate::Stays } else { Fate::Lost },
                saved: if is_saved { Saved::All } else { Saved::NotAll },
            })
        });
        changed.collect()
    }
}
