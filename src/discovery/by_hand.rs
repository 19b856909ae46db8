//! Changes of operators to lists: each change is checked, saved if that is wanted, and then made.
//!
//! Changes are made one after the other, on the control thread: no reload replaces a list while
//! one is made. Only the state file is written beside it.
//!
//! Invariant: the changes in the state file hold whenever the configuration has their list, at a
//! start as with a reload.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::changes::{self, Changes, Saved};
use super::{
    Discovery, EndpointChange, FILES_LOOK, Failure, Keep, ListChange, State, not_read_yet,
};
use crate::config::{Config, Endpoint};
use crate::net::clock;
use crate::observe::figures::AdminWord;
use crate::upstream::change::log_change;

/// The word of a change that is not saved because the process drains: that of reloads.
const DRAINING: &str = "draining";

/// The state file as last read or written.
#[derive(Debug, Default)]
pub(super) struct SavedFile {
    pub path: PathBuf,
    pub changes: Saved,
    /// It could not be read: it is set aside before another one is written.
    pub is_damaged: bool,
}

impl SavedFile {
    /// The content of the file once all changes of an endpoint hold.
    fn with(&self, upstream: &str, endpoint: &str, now: &Changes) -> Saved {
        let mut changes = self.changes.clone();
        let of = changes.entry(upstream.to_owned()).or_default();
        if of.listed != now.listed {
            *of = Changes::of(now.listed.clone());
        }
        of.take_over(endpoint, now);
        changes.retain(|_, it| !it.is_empty());
        changes
    }
}

impl Discovery {
    /// Reads the state file of a configuration that is being prepared, unless it is in use
    /// already. A file that can't be read changes nothing.
    pub(super) async fn read_state(&self, path: &Path) {
        if self
            .state()
            .saved
            .as_ref()
            .is_some_and(|it| it.path == path)
        {
            return;
        }
        let owned = path.to_owned();
        let reading = spawn_blocking(move || changes::read(&owned));
        let read = match timeout(FILES_LOOK, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(_)) => return,
            Err(_) => Err(Failure {
                word: "state-unreadable",
                text: not_read_yet(),
            }),
        };
        let mut file = SavedFile {
            path: path.to_owned(),
            ..SavedFile::default()
        };
        match read {
            Ok(changes) => file.changes = changes,
            Err(Failure { word, text }) => {
                file.is_damaged = true;
                self.shown.state_failures().note(word);
                let shown = path.display();
                tracing::error!(
                    failure = word,
                    "state file {shown}: {word}: {text}; the endpoints of the configuration are \
                     used, and the next `save` renames the file to {shown}.bad"
                );
            }
        }
        self.state().saved_next.insert(path.to_owned(), file);
    }

    /// The endpoint as the running list has it: at its address, with its given weight and limit.
    pub fn endpoint(&self, upstream: &str, endpoint: &str) -> Option<Endpoint> {
        let state = self.state();
        let mut list = state.upstreams.get(upstream)?.list.iter();
        list.find(|it| it.name == endpoint).cloned()
    }

    /// The difference between the state file and this change of an endpoint, which is not saved,
    /// and the consequence: in a sentence.
    pub fn saved_otherwise(
        &self,
        upstream: &str,
        endpoint: &str,
        change: &EndpointChange,
    ) -> Option<String> {
        let state = self.state();
        let known = state.upstreams.get(upstream)?;
        let saved = state.saved_of(upstream)?;
        let saved = saved
            .of_endpoint(endpoint)
            .filter(|_| saved.listed == known.listed)?;
        let admin = saved
            .admin
            .filter(|it| change.admin.is_some_and(|now| now != *it));
        let weight = saved
            .weight
            .filter(|it| change.weight.is_some_and(|now| now != *it));
        let saved = match (admin, weight) {
            (Some(admin), _) => format!("`{}`", AdminWord(admin.into()).word()),
            (None, Some(weight)) => format!("weight {weight}"),
            (None, None) => return None,
        };
        Some(format!(
            "endpoint {upstream}/{endpoint}: the state file still has {saved}, which the next \
             start uses; `--save` changes it there as well"
        ))
    }

    /// All endpoints of the running list.
    pub fn endpoints(&self, upstream: &str) -> Vec<Endpoint> {
        let state = self.state();
        let known = state.upstreams.get(upstream);
        known.map_or(Vec::new(), |it| it.list.clone())
    }

    /// Changes the list of an upstream, for `by`. Gives a sentence on the new state of the
    /// endpoint. To be called on the thread where configurations come into force.
    ///
    /// # Errors
    /// The reason why nothing was changed.
    ///
    /// # Cancellation
    /// The state file may then have a change that is not made.
    pub async fn change(
        &self,
        upstream: &str,
        endpoint: &str,
        change: &ListChange,
        keep: Keep,
        by: &str,
    ) -> Result<String, String> {
        let _turn = self.changing.lock().await;
        let wanted = self.state().changed(upstream, endpoint, change, by)?;
        if keep == Keep::Saved {
            self.save(upstream, endpoint, &wanted).await?;
        }
        let mut state = self.state();
        let what = match change {
            ListChange::Add(_) => "added",
            ListChange::Remove => "removed, and finishes its exchanges",
            ListChange::Set(_) => "set",
        };
        let then = match keep {
            Keep::Running => "until the program ends",
            Keep::Saved => "saved for the next start",
        };
        tracing::info!(
            upstream,
            endpoint,
            "upstream {upstream}: endpoint {endpoint} is {what}, {by}; {then}"
        );
        if let ListChange::Remove = change {
            let why = format!("removed {by}");
            self.shown
                .note_absent(upstream, [(endpoint.to_owned(), why)]);
        }
        state.changes.insert(upstream.to_owned(), wanted);
        state.changes.retain(|_, it| !it.is_empty());
        self.publish(&mut state, upstream);
        state.settle(upstream, endpoint, change, by);
        Ok(format!("endpoint {upstream}/{endpoint} is {what}; {then}"))
    }

    /// Writes the wanted change of an endpoint to the state file.
    ///
    /// # Errors
    /// The running list has to stay as it is.
    async fn save(&self, upstream: &str, endpoint: &str, wanted: &Changes) -> Result<(), String> {
        let (path, changes, is_damaged, is_draining) = {
            let state = self.state();
            let file = state.saved.as_ref();
            let file = file.ok_or("to save changes, set `server.state_file`")?;
            let changes = file.with(upstream, endpoint, wanted);
            (
                file.path.clone(),
                changes,
                file.is_damaged,
                state.is_draining,
            )
        };
        let shown = path.display().to_string();
        let refused = |word, why: &str| {
            self.shown.state_failures().note(word);
            tracing::error!(
                failure = word,
                "state file {shown}: {word}: {why}; nothing was changed"
            );
        };
        if is_draining {
            refused(DRAINING, "the process is draining");
            return Err("nothing was changed: the process is draining".to_owned());
        }
        let to = path.clone();
        let written = spawn_blocking(move || {
            if is_damaged {
                changes::set_aside(&to);
            }
            changes::write(&to, &changes).map(|()| changes)
        });
        let written = written
            .await
            .unwrap_or_else(|it| Err(io::Error::other(it)))
            .map_err(|error| {
                refused("state-unwritable", &error.to_string());
                format!("nothing was changed: write {shown}: {error}")
            })?;
        let mut state = self.state();
        if let Some(file) = state.saved.as_mut().filter(|it| it.path == path) {
            file.changes = written;
            file.is_damaged = false;
        }
        // A configuration may have come into force meanwhile.
        let is_listed = |it: &super::Known| it.listed == wanted.listed;
        if state.upstreams.get(upstream).is_some_and(is_listed) {
            Ok(())
        } else {
            Err(format!(
                "the list of upstream `{upstream}` was replaced in the meantime, and is not \
                 changed: {shown} has the change for the previous list"
            ))
        }
    }
}

impl State {
    /// The state file at this path, if that has been read.
    fn file_at(&self, path: Option<&Path>) -> Option<&SavedFile> {
        let files = self.saved.iter().chain(self.saved_next.values());
        files.into_iter().find(|it| Some(&*it.path) == path)
    }

    /// The changes of operators to a list that is written so, while this state file is in use.
    pub(super) fn changes_under(
        &self,
        upstream: &str,
        listed: &str,
        state_file: Option<&Path>,
    ) -> Option<&Changes> {
        let stays = (self.upstreams.get(upstream)).is_some_and(|it| it.listed == listed);
        let running = self.changes.get(upstream).filter(|_| stays);
        let is_same_file = self.saved.as_ref().map(|it| &*it.path) == state_file;
        if running.is_some() || (stays && is_same_file) {
            return running;
        }
        let saved = self.file_at(state_file)?.changes.get(upstream)?;
        (saved.listed == listed).then_some(saved)
    }

    /// Goes on with the state file of a configuration, and with the changes to its lists. Changes
    /// to other lists hold no more.
    pub(super) fn follow_changes(&mut self, config: &Config) {
        let state_file = config.state_file.as_deref();
        let mut changes = std::collections::BTreeMap::new();
        let mut lists = HashMap::new();
        for upstream in &config.upstreams {
            let (name, listed) = (&upstream.name, &upstream.listed);
            lists.insert(&**name, &**listed);
            let Some(found) = self.changes_under(name, listed, state_file) else {
                continue;
            };
            if self.changes.get(name) != Some(found) {
                let what = found.summary();
                tracing::info!(
                    upstream = name,
                    "upstream {name}: saved changes of the operator are applied: {what}"
                );
            }
            changes.insert(name.clone(), found.clone());
        }
        let is_lost = |upstream: &str, it: &Changes| lists.get(upstream) != Some(&&*it.listed);
        let before = std::mem::replace(&mut self.changes, changes);
        if self.saved.as_ref().map(|it| &*it.path) != state_file {
            let next = state_file.and_then(|it| self.saved_next.remove(it));
            let empty = |path: &Path| SavedFile {
                path: path.to_owned(),
                ..SavedFile::default()
            };
            self.saved = next.or_else(|| state_file.map(empty));
            let saved = self.saved.iter().flat_map(|it| &it.changes);
            for (upstream, changes) in saved.filter(|(name, it)| is_lost(name, it)) {
                if !before.contains_key(upstream) {
                    changes.log_lost(upstream, Some(changes), &[]);
                }
            }
        }
        self.saved_next.clear();
        for (upstream, changes) in before.iter().filter(|(name, it)| is_lost(name, it)) {
            let now = config.upstreams.iter().find(|it| it.name == *upstream);
            let list = now.map_or(&[][..], |it| &it.endpoints);
            changes.log_lost(upstream, self.saved_of(upstream), list);
        }
    }

    /// The changes to an upstream in the state file.
    pub(super) fn saved_of(&self, upstream: &str) -> Option<&Changes> {
        self.saved.as_ref()?.changes.get(upstream)
    }

    /// All changes to a list once an endpoint is changed, with their operators.
    ///
    /// # Errors
    /// The reason why the change makes no sense.
    fn changed(
        &self,
        upstream: &str,
        endpoint: &str,
        change: &ListChange,
        by: &str,
    ) -> Result<Changes, String> {
        let Some(known) = self.upstreams.get(upstream) else {
            let names: Vec<_> = self.upstreams.keys().map(String::as_str).collect();
            let upstream = upstream.escape_debug();
            let names = names.join(", ");
            return Err(format!(
                "there is no upstream `{upstream}`; known upstreams: {names}"
            ));
        };
        let member = known.list.iter().find(|it| it.name == endpoint);
        let listed = self.listed(known, endpoint);
        let shown = endpoint.escape_debug();
        match (change, member) {
            (ListChange::Add(_), Some(_)) => {
                return Err(format!(
                    "upstream `{upstream}` already has an endpoint `{shown}`"
                ));
            }
            (ListChange::Add(given), None) => match &listed {
                Some(listed) => given.apply(&mut listed.clone())?,
                None => drop(given.endpoint(endpoint)?),
            },
            (ListChange::Remove | ListChange::Set(_), None) => {
                return Err(format!("upstream `{upstream}` has no endpoint `{shown}`"));
            }
            (ListChange::Set(given), Some(member)) => given.apply(&mut member.clone())?,
            (ListChange::Remove, Some(_)) => {}
        }
        let running = self.changes.get(upstream).cloned();
        let mut changes = running.unwrap_or_else(|| Changes::of(known.listed.clone()));
        changes.note(endpoint, change, listed.as_ref(), by);
        Ok(changes)
    }

    /// Gives a member the settings of a change that may have been changed at run time beside the
    /// list.
    fn settle(&self, upstream: &str, endpoint: &str, change: &ListChange, by: &str) {
        let (ListChange::Add(given) | ListChange::Set(given)) = change else {
            return;
        };
        let Some(known) = self.upstreams.get(upstream) else {
            return;
        };
        let dispatcher = known.shared.dispatcher();
        let members = dispatcher.members();
        let Some(state) = members.named(endpoint) else {
            return;
        };
        let now = clock::now();
        if let Some(weight) = given.weight.filter(|it| *it != state.weight()) {
            dispatcher.set_weight(state, weight, now);
        }
        if let Some(admin) = given.admin
            && let Some(change) = dispatcher.set_admin(state, admin.into(), now)
        {
            log_change(upstream, endpoint, &change, Some(by));
        }
    }
}
