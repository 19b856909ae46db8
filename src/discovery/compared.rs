//! The changes of operators to lists, beside another configuration: changes that stay, and
//! changes that are lost.

use std::fmt;

use super::Discovery;
use super::changes::{Changes, STAY_OUT};
use crate::config::Config;

/// The changes of operators to the list of an upstream, and their fate under another
/// configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorChange {
    upstream: String,
    fate: Fate,
}

/// Each part in a few words; may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    /// The list is written as it was.
    Stays {
        saved: String,
        unsaved: String,
        /// Saved changes that do not hold now: they were undone.
        undone: String,
    },
    /// The list is another one, and holds.
    Lost {
        what: String,
        /// Endpoints that stay drained or stopped all the same.
        stay_out: String,
        saved: Saved,
    },
}

/// Whether the change holds again once the list is written as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    All,
    NotAll,
}

impl fmt::Display for OperatorChange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = match &self.fate {
            Fate::Lost {
                what,
                stay_out,
                saved,
            } => {
                let then = match saved {
                    Saved::All => " (saved: it applies again with the previous list)",
                    Saved::NotAll => "",
                };
                let lost = "the operator's changes are lost, because the file has another list";
                let lost = (!what.is_empty()).then(|| format!("{lost}: {what}{then}"));
                let stay = (!stay_out.is_empty()).then(|| format!("{STAY_OUT}: {stay_out}"));
                lost.into_iter().chain(stay).collect()
            }
            Fate::Stays {
                saved,
                unsaved,
                undone,
            } => {
                let with = |what: &String, then: &str| {
                    (!what.is_empty()).then(|| format!("{what} ({then})"))
                };
                let saved = with(saved, "saved");
                let unsaved = with(unsaved, "not saved: lost when the program ends");
                let running: Vec<_> = saved.into_iter().chain(unsaved).collect();
                let running = (!running.is_empty()).then(|| {
                    let what = running.join("; ");
                    format!("the running list differs from the file: {what}")
                });
                let undone = (!undone.is_empty())
                    .then(|| format!("undone until the program ends, but still saved: {undone}"));
                running.into_iter().chain(undone).collect()
            }
        };
        write!(out, "upstream {}: {}", self.upstream, parts.join("; "))
    }
}

/// The changes to a list that stays, beside its saved changes.
fn staying(changes: &Changes, saved: Option<&Changes>, weights: Option<String>) -> Fate {
    let none = Changes::default();
    let (changes, saved) = (changes.unsigned(), saved.unwrap_or(&none).unsigned());
    let is_saved = |name: &str| changes.agrees(&saved, name);
    let unsaved = changes.only(|it| !is_saved(it)).summary();
    let unsaved = [Some(unsaved).filter(|it| !it.is_empty()), weights];
    let unsaved: Vec<_> = unsaved.into_iter().flatten().collect();
    Fate::Stays {
        saved: changes.only(is_saved).summary(),
        unsaved: unsaved.join("; "),
        undone: saved.only(|it| changes.is_silent_of(it)).summary(),
    }
}

impl Discovery {
    /// The changes of operators to lists so far, and their fate under this configuration.
    pub fn operator_changes(&self, now: &Config) -> Vec<OperatorChange> {
        let state = self.state();
        let none = Changes::default();
        let changed = state.upstreams.iter().filter_map(|(name, known)| {
            let changes = state.changes.get(name).unwrap_or(&none);
            let weights = known.shared.reweighted_summary();
            let saved = state.saved_of(name);
            let saved = saved.filter(|it| it.listed == known.listed && !it.is_empty());
            if changes.is_empty() && weights.is_none() && saved.is_none() {
                return None;
            }
            let then = now.upstreams.iter().find(|it| it.name == *name);
            let fate = if then.is_some_and(|it| it.listed == known.listed) {
                staying(changes, saved, weights)
            } else {
                if changes.is_empty() && weights.is_none() {
                    return None;
                }
                let list = then.map_or(&[][..], |it| &it.endpoints);
                let out = changes.out_of_service(list);
                let is_saved =
                    weights.is_none() && saved.map(Changes::unsigned) == Some(changes.unsigned());
                let lost = changes.without_admin(&out).summary();
                let lost = [Some(lost).filter(|it| !it.is_empty()), weights];
                let lost: Vec<_> = lost.into_iter().flatten().collect();
                Fate::Lost {
                    what: lost.join("; "),
                    stay_out: out.join(", "),
                    saved: if is_saved { Saved::All } else { Saved::NotAll },
                }
            };
            Some(OperatorChange {
                upstream: name.clone(),
                fate,
            })
        });
        changed.collect()
    }
}
