//! Changes of operators to the lists of endpoints, and the state file that keeps them.
//!
//! A change is made against a list as the configuration has it (`listed`), and holds while that
//! list is written so. If the list is written otherwise, the configuration wins and the change is
//! lost; the event log says so.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use evenkeel_policy::endpoint::Admin;
use serde::{Deserialize, Serialize};

use super::Failure;
use crate::config::{Endpoint, read_regular_file};

/// Version of the state file that is written, and the only one that is read.
const VERSION: u64 = 1;
/// Largest state file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 8 * 1024 * 1024;

/// The settings that an operator gives an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointChange {
    /// Its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Its share of the traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Most exchanges in flight; 0 is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
    /// Its tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<u16>,
    /// Whether it takes part; `ready` is not noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<AdminChange>,
    /// The operator; not in the state file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
}

/// Whether an endpoint takes part, as the operator wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdminChange {
    /// It takes part.
    Ready,
    /// It finishes its exchanges, and gets nothing new.
    Drain,
    /// Out of service.
    Stop,
}

impl From<Admin> for AdminChange {
    fn from(admin: Admin) -> Self {
        match admin {
            Admin::Ready => AdminChange::Ready,
            Admin::Drain => AdminChange::Drain,
            Admin::Stop => AdminChange::Stop,
        }
    }
}

impl From<AdminChange> for Admin {
    fn from(admin: AdminChange) -> Self {
        match admin {
            AdminChange::Ready => Admin::Ready,
            AdminChange::Drain => Admin::Drain,
            AdminChange::Stop => Admin::Stop,
        }
    }
}

impl EndpointChange {
    /// Makes the changes of an endpoint.
    ///
    /// # Errors
    /// The address is malformed.
    pub(super) fn apply(&self, endpoint: &mut Endpoint) -> Result<(), String> {
        if let Some(address) = &self.address {
            endpoint.address = Endpoint::at(address)?.address;
        }
        if let Some(weight) = self.weight {
            endpoint.weight = weight;
        }
        if let Some(limit) = self.max_in_flight {
            endpoint.max_in_flight = (limit > 0).then_some(limit);
        }
        if let Some(tier) = self.tier {
            endpoint.tier = tier;
        }
        Ok(())
    }

    /// The endpoint of this name, with these settings alone.
    ///
    /// # Errors
    /// The address is malformed.
    pub(super) fn endpoint(&self, name: &str) -> Result<Endpoint, String> {
        let address = self.address.as_deref().unwrap_or(name);
        let mut endpoint = Endpoint::at(address)?;
        endpoint.name = name.to_owned();
        self.apply(&mut endpoint)?;
        Ok(endpoint)
    }

    /// Takes over the settings of the newer change.
    fn merge(&mut self, newer: &EndpointChange) {
        let EndpointChange {
            address,
            weight,
            max_in_flight,
            tier,
            admin,
            by,
        } = newer.clone();
        self.address = address.or(self.address.take());
        self.weight = weight.or(self.weight);
        self.max_in_flight = max_in_flight.or(self.max_in_flight);
        self.tier = tier.or(self.tier);
        let admin = admin.or(self.admin);
        self.admin = admin.filter(|it| *it != AdminChange::Ready);
        self.by = by;
    }
}

/// A change of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListChange {
    /// It joins.
    Add(EndpointChange),
    /// It leaves, and finishes its exchanges.
    Remove,
    /// It stays, with another weight or the like.
    Set(EndpointChange),
}

/// How long a change of a list holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// As long as the process runs.
    Running,
    /// Beyond it: it is saved in the state file.
    Saved,
}

/// The changes of operators to one list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Changes {
    /// The list that the changes were made to.
    pub listed: String,
    #[serde(default)]
    pub added: BTreeMap<String, EndpointChange>,
    #[serde(default)]
    pub removed: BTreeSet<String>,
    /// The operator that removed each; not in the state file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub removed_by: BTreeMap<String, String>,
    #[serde(default)]
    pub set: BTreeMap<String, EndpointChange>,
}

impl Changes {
    pub fn of(listed: String) -> Self {
        Changes {
            listed,
            ..Changes::default()
        }
    }

    /// Notes a change of an endpoint, and the operator. `listed` is the endpoint as the sources
    /// list it, if they do.
    pub fn note(
        &mut self,
        endpoint: &str,
        change: &ListChange,
        listed: Option<&Endpoint>,
        by: &str,
    ) {
        match change {
            ListChange::Add(given) => {
                self.removed.remove(endpoint);
                self.removed_by.remove(endpoint);
                if listed.is_some() {
                    // It was removed, and is there again as the list has it, except for this
                    // change.
                    self.set(endpoint, given);
                } else {
                    self.added.insert(endpoint.to_owned(), given.clone());
                }
            }
            ListChange::Remove => {
                self.set.remove(endpoint);
                self.added.remove(endpoint);
                if listed.is_some() {
                    self.removed.insert(endpoint.to_owned());
                    self.removed_by.insert(endpoint.to_owned(), by.to_owned());
                }
            }
            ListChange::Set(given) => match self.added.get_mut(endpoint) {
                Some(added) => added.merge(given),
                None => self.set(endpoint, given),
            },
        }
    }

    fn set(&mut self, endpoint: &str, given: &EndpointChange) {
        let of = self.set.entry(endpoint.to_owned()).or_default();
        of.merge(given);
        self.set.retain(|_, it| *it != bare(it));
    }

    /// Takes over the changes that the other one has of an endpoint.
    pub fn take_over(&mut self, endpoint: &str, other: &Changes) {
        let take = |from: &BTreeMap<String, EndpointChange>,
                    to: &mut BTreeMap<String, EndpointChange>| {
            to.remove(endpoint);
            let change = from.get(endpoint).cloned();
            to.extend(change.map(|it| (endpoint.to_owned(), it)));
        };
        take(&other.added, &mut self.added);
        take(&other.set, &mut self.set);
        self.removed.remove(endpoint);
        self.removed.extend(other.removed.get(endpoint).cloned());
        self.removed_by.remove(endpoint);
        let by = other.removed_by.get(endpoint).cloned();
        let by = by.map(|by| (endpoint.to_owned(), by));
        self.removed_by.extend(by);
    }

    /// The same without the names of operators.
    pub fn unsigned(&self) -> Self {
        let mut changes = self.clone();
        let changed = changes.added.values_mut().chain(changes.set.values_mut());
        changed.for_each(|it| it.by.clear());
        changes.removed_by.clear();
        changes
    }

    /// Applies the changes to the endpoints of a list. Gives the added ones, each with its
    /// operator.
    pub fn apply(&self, endpoints: &mut Vec<Endpoint>) -> Vec<(String, String)> {
        endpoints
            .retain(|it| !self.removed.contains(&it.name) && !self.added.contains_key(&it.name));
        for endpoint in endpoints.iter_mut() {
            if let Some(change) = self.set.get(&endpoint.name) {
                // Addresses were checked when they came.
                let _ = change.apply(endpoint);
            }
        }
        let mut added = Vec::new();
        for (name, change) in &self.added {
            if let Ok(endpoint) = change.endpoint(name) {
                endpoints.push(endpoint);
                added.push((name.clone(), change.by.clone()));
            }
        }
        added
    }

    /// The settings that the changes give an endpoint, unless it is removed.
    pub fn of_endpoint(&self, endpoint: &str) -> Option<&EndpointChange> {
        self.added.get(endpoint).or_else(|| self.set.get(endpoint))
    }

    /// Whether the endpoint is to take part; `None` without such a change.
    pub fn admin(&self, endpoint: &str) -> Option<Admin> {
        self.of_endpoint(endpoint)?.admin.map(Admin::from)
    }

    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.set.is_empty()
    }

    /// Why an endpoint is gone, if an operator has removed it.
    pub fn why_removed(&self, endpoint: &str) -> Option<String> {
        let by = self.removed_by.get(endpoint).map(String::as_str);
        let is_removed = self.removed.contains(endpoint);
        is_removed.then(|| format!("removed {}", by.unwrap_or("by the operator")))
    }

    /// Endpoints of a list that were drained or stopped.
    pub fn out_of_service<'a>(&self, list: &'a [Endpoint]) -> Vec<&'a str> {
        let is_out =
            |it: &&Endpoint| matches!(self.admin(&it.name), Some(Admin::Drain | Admin::Stop));
        list.iter().filter(is_out).map(|it| &*it.name).collect()
    }

    /// The same without the changes of whether these endpoints take part.
    pub fn without_admin(&self, endpoints: &[&str]) -> Self {
        let mut changes = self.clone();
        for &endpoint in endpoints {
            let changed = changes.added.get_mut(endpoint);
            if let Some(of) = changed.or(changes.set.get_mut(endpoint)) {
                of.admin = None;
            }
        }
        changes.set.retain(|_, it| *it != bare(it));
        changes
    }

    /// Whether the other one has the same change of an endpoint. Both are
    /// [unsigned](Self::unsigned).
    pub fn agrees(&self, other: &Changes, endpoint: &str) -> bool {
        self.added.get(endpoint) == other.added.get(endpoint)
            && self.set.get(endpoint) == other.set.get(endpoint)
            && self.removed.contains(endpoint) == other.removed.contains(endpoint)
    }

    /// Whether an endpoint has no change.
    pub fn is_silent_of(&self, endpoint: &str) -> bool {
        self.agrees(&Changes::default(), endpoint)
    }

    /// The changes of these endpoints.
    pub fn only(&self, is_meant: impl Fn(&str) -> bool) -> Self {
        let mut changes = self.clone();
        changes.added.retain(|name, _| is_meant(name));
        changes.removed.retain(|name| is_meant(name));
        changes.set.retain(|name, _| is_meant(name));
        changes
    }

    /// Logs that the configuration has won with this list.
    ///
    /// The line says whether the state file keeps some changes for a return of the old list.
    /// `list` is empty where no change was in force.
    pub fn log_lost(&self, upstream: &str, saved: Option<&Changes>, list: &[Endpoint]) {
        let out = self.out_of_service(list);
        let lost = self.without_admin(&out).summary();
        let stay = match &*out {
            [] => String::new(),
            out => format!("; {STAY_OUT}: {}", out.join(", ")),
        };
        let lost = match &*lost {
            "" if !stay.is_empty() => String::new(),
            lost => format!("; the changes are lost: {lost}"),
        };
        let saved = saved.filter(|it| it.listed == self.listed);
        let then = match saved {
            None => String::new(),
            Some(it) if it.unsigned() == self.unsigned() => {
                "; they are saved, and apply again with the previous list".to_owned()
            }
            Some(it) => {
                let saved = it.summary();
                format!("; saved changes apply again with the previous list: {saved}")
            }
        };
        tracing::warn!(
            upstream,
            "upstream {upstream}: the configuration lists other endpoints than the ones the \
             operator changed{lost}{stay}{then}"
        );
    }

    /// The changes, in a few words.
    pub fn summary(&self) -> String {
        let names = |verb: &str, names: Vec<&String>| {
            let names: Vec<_> = names.into_iter().map(String::as_str).collect();
            (!names.is_empty()).then(|| format!("{verb} {}", names.join(", ")))
        };
        let is_set = |(_, it): &(&String, &EndpointChange)| {
            let of_list = EndpointChange {
                admin: None,
                ..(*it).clone()
            };
            of_list != bare(it)
        };
        let having = |admin: AdminChange| {
            let changed = self.added.iter().chain(&self.set);
            let having = changed.filter(|(_, it)| it.admin == Some(admin));
            having.map(|it| it.0).collect()
        };
        let parts = [
            names("added", self.added.keys().collect()),
            names("removed", self.removed.iter().collect()),
            names(
                "set",
                self.set.iter().filter(is_set).map(|it| it.0).collect(),
            ),
            names("drained", having(AdminChange::Drain)),
            names("stopped", having(AdminChange::Stop)),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        parts.join("; ")
    }
}

/// The remark on endpoints whose drain outlives the list that it was saved for.
pub(super) const STAY_OUT: &str =
    "still drained or stopped, until an operator makes them ready or the program ends";

/// A change without settings.
fn bare(of: &EndpointChange) -> EndpointChange {
    EndpointChange {
        by: of.by.clone(),
        ..EndpointChange::default()
    }
}

/// The content of the state file, by upstream.
pub(super) type Saved = BTreeMap<String, Changes>;

#[derive(Serialize, Deserialize)]
struct StateFile {
    version: u64,
    upstreams: Saved,
}

/// Reads the state file; a missing one is empty. Blocks.
pub(super) fn read(path: &Path) -> Result<Saved, Failure> {
    let failure = |word, text: String| Failure { word, text };
    let unreadable = |error: std::io::Error| failure("state-unreadable", error.to_string());
    let malformed = |text: String| failure("state-malformed", text);
    let bytes = match read_regular_file(path, MAX_FILE_BYTES) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Saved::new()),
        read => read.map_err(unreadable)?,
    };
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|it| malformed(it.to_string()))?;
    if value["version"] != VERSION {
        let text = format!(
            "its version is {}, but this program needs {VERSION}",
            value["version"]
        );
        return Err(failure("state-version", text));
    }
    let file: StateFile = serde_json::from_value(value).map_err(|it| malformed(it.to_string()))?;
    let mut saved = file.upstreams;
    let by = format!("the state file {}", path.display());
    for changes in saved.values_mut() {
        changes.removed_by = changes
            .removed
            .iter()
            .map(|name| (name.clone(), by.clone()))
            .collect();
        for (name, change) in &mut changes.added {
            change.by.clone_from(&by);
            change.endpoint(name).map_err(malformed)?;
        }
        for change in changes.set.values_mut() {
            change.by.clone_from(&by);
            if let Some(address) = &change.address {
                Endpoint::at(address).map_err(malformed)?;
            }
        }
    }
    Ok(saved)
}

/// Replaces the state file as a whole. Blocks until it is on the disk.
pub(super) fn write(path: &Path, saved: &Saved) -> std::io::Result<()> {
    let upstreams = saved.iter();
    let upstreams = upstreams.map(|(name, it)| (name.clone(), it.unsigned()));
    let file = StateFile {
        version: VERSION,
        upstreams: upstreams.collect(),
    };
    let text = serde_json::to_string_pretty(&file).map_err(std::io::Error::other)?;
    let new = with_end(path, "new");
    let written = std::fs::File::create(&new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()
    });
    written
        .and_then(|()| std::fs::rename(&new, path))
        .inspect_err(|_| {
            // Nothing reads it.
            let _ = std::fs::remove_file(&new);
        })
}

/// Sets a file aside that could not be read, so that nothing in it is lost.
pub(super) fn set_aside(path: &Path) {
    // If this fails, writing a new file fails too.
    let _ = std::fs::rename(path, with_end(path, "bad"));
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weighed(weight: u32) -> EndpointChange {
        EndpointChange {
            weight: Some(weight),
            ..EndpointChange::default()
        }
    }

    const LISTED: [&str; 2] = ["10.0.0.1:80", "10.0.0.2:80"];

    /// As the list has it.
    fn endpoint(name: &str) -> Option<Endpoint> {
        let is_listed = LISTED.contains(&name);
        is_listed.then(|| Endpoint {
            max_in_flight: Some(100),
            ..Endpoint::at(name).unwrap()
        })
    }

    fn note(changes: &mut Changes, name: &str, change: ListChange) {
        changes.note(name, &change, endpoint(name).as_ref(), "by me");
    }

    fn applied(changes: &Changes) -> Vec<(String, u32)> {
        let mut endpoints: Vec<_> = LISTED.iter().filter_map(|it| endpoint(it)).collect();
        changes.apply(&mut endpoints);
        endpoints
            .into_iter()
            .map(|it| (it.name, it.weight))
            .collect()
    }

    fn weights<const N: usize>(expected: [(&str, u32); N]) -> Vec<(String, u32)> {
        expected
            .map(|(it, weight)| (it.to_owned(), weight))
            .to_vec()
    }

    #[test]
    fn changes_add_up() {
        let mut changes = Changes::default();
        note(&mut changes, "10.0.0.3:80", ListChange::Add(weighed(3)));
        note(&mut changes, "10.0.0.1:80", ListChange::Remove);
        note(&mut changes, "10.0.0.2:80", ListChange::Set(weighed(2)));
        note(&mut changes, "10.0.0.3:80", ListChange::Set(weighed(4)));
        let expected = weights([("10.0.0.2:80", 2), ("10.0.0.3:80", 4)]);
        assert_eq!(applied(&changes), expected);
        assert_eq!(
            changes.summary(),
            "added 10.0.0.3:80; removed 10.0.0.1:80; set 10.0.0.2:80"
        );
        // The endpoint is listed again as it was written.
        let bare = || ListChange::Add(EndpointChange::default());
        note(&mut changes, "10.0.0.1:80", bare());
        note(&mut changes, "10.0.0.3:80", ListChange::Remove);
        let expected = weights([("10.0.0.1:80", 1), ("10.0.0.2:80", 2)]);
        assert_eq!(applied(&changes), expected);
        note(&mut changes, "10.0.0.2:80", ListChange::Remove);
        note(&mut changes, "10.0.0.2:80", bare());
        assert!(changes.is_empty());
        let admin = |admin| {
            let change = EndpointChange {
                admin: Some(admin),
                ..EndpointChange::default()
            };
            ListChange::Set(change)
        };
        note(&mut changes, "10.0.0.1:80", admin(AdminChange::Drain));
        assert_eq!(changes.admin("10.0.0.1:80"), Some(Admin::Drain));
        note(&mut changes, "10.0.0.1:80", admin(AdminChange::Ready));
        assert!(changes.is_empty());
    }

    #[test]
    fn what_comes_back_can_be_removed_again() {
        let mut changes = Changes::default();
        for _ in 0..2 {
            note(&mut changes, "10.0.0.1:80", ListChange::Remove);
            assert_eq!(applied(&changes), weights([("10.0.0.2:80", 1)]));
            note(&mut changes, "10.0.0.1:80", ListChange::Add(weighed(5)));
            let expected = weights([("10.0.0.1:80", 5), ("10.0.0.2:80", 1)]);
            assert_eq!(applied(&changes), expected);
        }
        let mut endpoints: Vec<_> = LISTED.iter().filter_map(|it| endpoint(it)).collect();
        changes.apply(&mut endpoints);
        // The list holds for all other settings.
        assert_eq!(endpoints[0].max_in_flight, Some(100));
        // One that a source lists after it was added.
        let mut changes = Changes::default();
        changes.note("10.0.0.2:80", &ListChange::Add(weighed(3)), None, "by me");
        note(&mut changes, "10.0.0.2:80", ListChange::Remove);
        assert_eq!(applied(&changes), weights([("10.0.0.1:80", 1)]));
    }
}
