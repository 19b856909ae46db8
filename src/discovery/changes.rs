//! What operators change of the lists of endpoints, and the state file that keeps it.
//!
//! A change is made against a list as the configuration has it ([`fingerprint`]). It
//! holds while that list is written so; where the list is another one, the configuration
//! wins and the change is lost, which the event log says.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use evenkeel_policy::endpoint::Admin;
use serde::{Deserialize, Serialize};

use super::Failure;
use crate::config::{Endpoint, EndpointSource};

/// Version of the state file that is written, and the only one that is read.
const VERSION: u64 = 1;
/// Largest state file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 8 * 1024 * 1024;

/// What an operator gives an endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointChange {
    /// Where it is.
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
    /// Whether it takes part; that it does is not noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<AdminChange>,
    /// Who did it; the state file does not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
}

/// Whether an endpoint takes part, as the operator wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdminChange {
    /// It does.
    Ready,
    /// It finishes what it has, and gets nothing new.
    Drain,
    /// It is out of service.
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
    /// The address is none.
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

    /// The endpoint of this name, with nothing but this said of it.
    ///
    /// # Errors
    /// The address is none.
    pub(super) fn endpoint(&self, name: &str) -> Result<Endpoint, String> {
        let address = self.address.as_deref().unwrap_or(name);
        let mut endpoint = Endpoint::at(address)?;
        endpoint.name = name.to_owned();
        self.apply(&mut endpoint)?;
        Ok(endpoint)
    }

    /// Takes over what the newer change says.
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
    /// It leaves, and finishes what it has.
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

/// What operators have changed of one list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Changes {
    /// The list that it was changed of.
    pub listed: String,
    #[serde(default)]
    pub added: BTreeMap<String, EndpointChange>,
    #[serde(default)]
    pub removed: BTreeSet<String>,
    /// Who removed each; the state file does not say.
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

    /// Notes a change of an endpoint, by whom.
    pub fn note(&mut self, endpoint: &str, change: &ListChange, by: &str) {
        match change {
            ListChange::Add(given) => {
                // One that was removed before is there again, as the list has it.
                self.removed_by.remove(endpoint);
                if !self.removed.remove(endpoint) || *given != bare(given) {
                    self.added.insert(endpoint.to_owned(), given.clone());
                }
            }
            ListChange::Remove => {
                self.set.remove(endpoint);
                if self.added.remove(endpoint).is_none() {
                    self.removed.insert(endpoint.to_owned());
                    self.removed_by.insert(endpoint.to_owned(), by.to_owned());
                }
            }
            ListChange::Set(given) => {
                let of = match self.added.get_mut(endpoint) {
                    Some(added) => added,
                    None => self.set.entry(endpoint.to_owned()).or_default(),
                };
                of.merge(given);
                self.set.retain(|_, it| *it != bare(it));
            }
        }
    }

    /// Brings the endpoints of a list in line. Gives those that are added, each with
    /// who did it.
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

    /// Whether the endpoint is to take part; `None` where nothing is said of that.
    pub fn admin(&self, endpoint: &str) -> Option<Admin> {
        let change = self.added.get(endpoint).or_else(|| self.set.get(endpoint));
        change?.admin.map(Admin::from)
    }

    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.set.is_empty()
    }

    /// Why an endpoint is not there, where that is since it was removed.
    pub fn why_removed(&self, endpoint: &str) -> Option<String> {
        let by = self.removed_by.get(endpoint).map(String::as_str);
        let is_removed = self.removed.contains(endpoint);
        is_removed.then(|| format!("removed {}", by.unwrap_or("by the operator")))
    }

    /// Says that the configuration has won.
    pub fn log_lost(&self, upstream: &str) {
        let lost = self.summary();
        tracing::warn!(
            upstream,
            "upstream {upstream}: the configuration lists other endpoints than those that the \
             operator changed; the changes are lost: {lost}"
        );
    }

    /// What is changed, in a few words.
    pub fn summary(&self) -> String {
        let names = |verb: &str, names: Vec<&String>| {
            let names: Vec<_> = names.into_iter().map(String::as_str).collect();
            (!names.is_empty()).then(|| format!("{verb} {}", names.join(", ")))
        };
        let parts = [
            names("added", self.added.keys().collect()),
            names("removed", self.removed.iter().collect()),
            names("set", self.set.keys().collect()),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        parts.join("; ")
    }
}

/// A change that says nothing.
fn bare(of: &EndpointChange) -> EndpointChange {
    EndpointChange {
        by: of.by.clone(),
        ..EndpointChange::default()
    }
}

/// Tells whether a list is written as it was.
pub(super) fn fingerprint(sources: &[EndpointSource], file: Option<&Path>) -> String {
    let mut text = String::new();
    for source in sources {
        let pattern = match source {
            EndpointSource::Fixed(endpoint) => endpoint,
            EndpointSource::Name(name) => &name.pattern,
            EndpointSource::Service(service) => &service.pattern,
        };
        let Endpoint {
            weight,
            max_in_flight,
            tier,
            ..
        } = pattern;
        let limit = max_in_flight.unwrap_or_default();
        text += &format!("{} {weight} {limit} {tier}\n", source.text());
    }
    if let Some(file) = file {
        text += &file.to_string_lossy();
    }
    format!("{:016x}", evenkeel_policy::hash::hash(text.as_bytes()))
}

/// What the state file has: by upstream.
pub(super) type Saved = BTreeMap<String, Changes>;

#[derive(Serialize, Deserialize)]
struct StateFile {
    version: u64,
    upstreams: Saved,
}

/// Reads the state file; one that is missing has nothing. Blocks.
pub(super) fn read(path: &Path) -> Result<Saved, Failure> {
    let failure = |word, text: String| Failure { word, text };
    let unreadable = |error: std::io::Error| failure("state-unreadable", error.to_string());
    let malformed = |text: String| failure("state-malformed", text);
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Saved::new()),
        found => found.map_err(unreadable)?,
    };
    if !found.is_file() || found.len() > MAX_FILE_BYTES {
        return Err(malformed("it is no state file".to_owned()));
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|it| malformed(it.to_string()))?;
    if value["version"] != VERSION {
        let text = format!("its version is {}, and not {VERSION}", value["version"]);
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
    let mut upstreams = saved.clone();
    for changes in upstreams.values_mut() {
        let changed = changes.added.values_mut().chain(changes.set.values_mut());
        changed.for_each(|it| it.by.clear());
        changes.removed_by.clear();
    }
    let file = StateFile {
        version: VERSION,
        upstreams,
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
    // Where that fails, so does writing a new one.
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

    fn applied(changes: &Changes) -> Vec<(String, u32)> {
        let mut endpoints: Vec<_> = ["10.0.0.1:80", "10.0.0.2:80"]
            .map(|it| Endpoint::at(it).unwrap())
            .into();
        changes.apply(&mut endpoints);
        endpoints
            .into_iter()
            .map(|it| (it.name, it.weight))
            .collect()
    }

    #[test]
    fn changes_add_up() {
        let mut changes = Changes::default();
        changes.note("10.0.0.3:80", &ListChange::Add(weighed(3)), "by me");
        changes.note("10.0.0.1:80", &ListChange::Remove, "by me");
        changes.note("10.0.0.2:80", &ListChange::Set(weighed(2)), "by me");
        changes.note("10.0.0.3:80", &ListChange::Set(weighed(4)), "by me");
        let expected = [("10.0.0.2:80", 2), ("10.0.0.3:80", 4)];
        assert_eq!(
            applied(&changes),
            expected.map(|(it, weight)| (it.to_owned(), weight))
        );
        assert_eq!(
            changes.summary(),
            "added 10.0.0.3:80; removed 10.0.0.1:80; set 10.0.0.2:80"
        );
        // It is there again as it was written.
        changes.note(
            "10.0.0.1:80",
            &ListChange::Add(EndpointChange::default()),
            "by me",
        );
        changes.note("10.0.0.3:80", &ListChange::Remove, "by me");
        let expected = [("10.0.0.1:80", 1), ("10.0.0.2:80", 2)];
        assert_eq!(
            applied(&changes),
            expected.map(|(it, weight)| (it.to_owned(), weight))
        );
        changes.note("10.0.0.2:80", &ListChange::Remove, "by me");
        changes.note(
            "10.0.0.2:80",
            &ListChange::Add(EndpointChange::default()),
            "by me",
        );
        assert!(changes.is_empty());
        let admin = |admin| {
            let change = EndpointChange {
                admin: Some(admin),
                ..EndpointChange::default()
            };
            ListChange::Set(change)
        };
        changes.note("10.0.0.1:80", &admin(AdminChange::Drain), "by me");
        assert_eq!(changes.admin("10.0.0.1:80"), Some(Admin::Drain));
        changes.note("10.0.0.1:80", &admin(AdminChange::Ready), "by me");
        assert!(changes.is_empty());
    }
}
