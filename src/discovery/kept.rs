//! The part of discovery that a process leaves to the next: the last answers of sources, and the
//! changes of operators to lists.
//!
//! A source that can't be asked at that moment keeps its last list there too. Parts that are not
//! understood are left out: they are asked again.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::changes::{self, Changes};
use super::names::{Answer, Question, Target};
use super::{Discovery, MAX_TTL, SourceState, State, file};
use crate::config::{Endpoint, Family};
use crate::observe::calendar::unix_time;

/// The last answers of sources.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SourcesSnapshot {
    names: Vec<Value>,
    files: BTreeMap<PathBuf, Value>,
}

/// The changes of operators to the lists of all upstreams, by name.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangesSnapshot {
    /// The state file that these changes include.
    state_file: Option<PathBuf>,
    /// Includes lists without changes.
    upstreams: BTreeMap<String, Changes>,
}

/// The answer to a question.
#[derive(Debug, Serialize, Deserialize)]
struct NameSnapshot {
    /// The host or the service.
    #[serde(flatten)]
    asked: AskedKept,
    family: Option<FamilySnapshot>,
    targets: Vec<TargetKept>,
    ttl_ms: u64,
    read_unix_ms: u64,
    /// Time to the next look.
    due_in_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum AskedKept {
    Host(String),
    Service(String),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FamilySnapshot {
    Ipv4,
    Ipv6,
    Both,
}

#[derive(Debug, Serialize, Deserialize)]
struct TargetKept {
    address: IpAddr,
    #[serde(default)]
    port: u16,
    #[serde(default)]
    priority: u16,
    #[serde(default)]
    weight: u16,
    #[serde(default)]
    host: Option<String>,
}

impl NameSnapshot {
    /// `None` where nothing is to be kept: the address of this machine is found at once.
    fn of(question: &Question, said: &SourceState<Answer>) -> Option<Self> {
        let (asked, family) = match question {
            Question::Host { host, family } => (AskedKept::Host(host.clone()), family),
            Question::Service { service, family } => (AskedKept::Service(service.clone()), family),
            Question::Local { .. } => return None,
        };
        let (answer, read) = said.last.as_ref()?;
        let due = said.due.unwrap_or_else(Instant::now);
        let targets = answer.targets.iter().map(|target| TargetKept {
            address: target.address,
            port: target.port,
            priority: target.priority,
            weight: target.weight,
            host: target.host.clone(),
        });
        Some(NameSnapshot {
            asked,
            family: family.map(|family| match family {
                Family::Ipv4 => FamilySnapshot::Ipv4,
                Family::Ipv6 => FamilySnapshot::Ipv6,
                Family::Both => FamilySnapshot::Both,
            }),
            targets: targets.collect(),
            ttl_ms: answer.ttl.as_millis() as u64,
            read_unix_ms: unix_time(*read).as_millis() as u64,
            due_in_ms: due.saturating_duration_since(Instant::now()).as_millis() as u64,
        })
    }

    fn said(self) -> (Question, SourceState<Answer>) {
        let family = self.family.map(|family| match family {
            FamilySnapshot::Ipv4 => Family::Ipv4,
            FamilySnapshot::Ipv6 => Family::Ipv6,
            FamilySnapshot::Both => Family::Both,
        });
        let question = match self.asked {
            AskedKept::Host(host) => Question::Host { host, family },
            AskedKept::Service(service) => Question::Service { service, family },
        };
        let targets = self.targets.into_iter().map(|target| Target {
            priority: target.priority,
            address: target.address,
            port: target.port,
            weight: target.weight,
            host: target.host,
        });
        let answer = Answer {
            targets: targets.collect(),
            ttl: Duration::from_millis(self.ttl_ms).min(MAX_TTL),
            absent: Vec::new(),
        };
        let due = Duration::from_millis(self.due_in_ms).min(MAX_TTL);
        let said = SourceState {
            last: Some((answer, wall(self.read_unix_ms))),
            due: Some(Instant::now() + due),
            ..SourceState::default()
        };
        (question, said)
    }
}

fn wall(unix_ms: u64) -> SystemTime {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms));
    at.unwrap_or(UNIX_EPOCH)
}

/// A list as its file could have it.
fn listed(endpoints: &[Endpoint]) -> Value {
    let item = |it: &Endpoint| {
        let mut item = json!({ "address": it.name, "weight": it.weight, "tier": it.tier });
        if let Some(limit) = it.max_in_flight {
            item["max_in_flight"] = limit.into();
        }
        item
    };
    endpoints.iter().map(item).collect()
}

impl SourcesSnapshot {
    fn of(state: &State) -> Self {
        let names = state.answers.iter();
        let names = names.filter_map(|(question, said)| NameSnapshot::of(question, said));
        let files = state.files.iter().filter_map(|(path, said)| {
            let (endpoints, read) = said.last.as_ref()?;
            let read = unix_time(*read).as_millis() as u64;
            let kept = json!({ "endpoints": listed(endpoints), "read_unix_ms": read });
            Some((path.clone(), kept))
        });
        SourcesSnapshot {
            names: names.map(|it| json!(it)).collect(),
            files: files.collect(),
        }
    }
}

impl Discovery {
    /// The last answers of all sources.
    pub fn keep_sources(&self) -> SourcesSnapshot {
        SourcesSnapshot::of(&self.state())
    }

    /// Goes on from the answers that sources gave to the process before. To be called before
    /// [`prepare`](Self::prepare).
    pub fn restore_sources(&self, kept: &SourcesSnapshot) {
        let mut state = self.state();
        for name in &kept.names {
            if let Ok(name) = NameSnapshot::deserialize(name) {
                let (question, said) = name.said();
                if said
                    .last
                    .as_ref()
                    .is_some_and(|it| !it.0.targets.is_empty())
                {
                    state.answers.insert(question, said);
                }
            }
        }
        for (path, file) in &kept.files {
            let Some(Ok(endpoints)) = file["endpoints"].as_array().map(|it| file::own(it)) else {
                continue;
            };
            let read = wall(file["read_unix_ms"].as_u64().unwrap_or_default());
            let said = SourceState {
                last: Some((endpoints, read)),
                ..SourceState::default()
            };
            state.files.insert(path.clone(), said);
        }
    }

    /// The changes of operators to lists.
    pub fn keep_changes(&self) -> ChangesSnapshot {
        let state = self.state();
        let upstreams = state.upstreams.iter().map(|(name, known)| {
            let changes = state.changes.get(name).cloned();
            let changes = changes.unwrap_or_else(|| Changes::of(known.listed.clone()));
            (name.clone(), changes)
        });
        ChangesSnapshot {
            upstreams: upstreams.collect(),
            state_file: state.saved.as_ref().map(|it| it.path.clone()),
        }
    }

    /// Has the changes of the process before hold, where a list is written as it was there. They
    /// include that process's view of the state file, which it has changed since. May block.
    pub fn restore_changes(&self, kept: ChangesSnapshot) {
        let mut state = self.state();
        let file = state.saved.as_mut();
        let file = file.filter(|it| Some(&it.path) == kept.state_file.as_ref());
        let is_same_file = file.is_some();
        if let Some(file) = file.filter(|it| !it.is_damaged)
            && let Ok(newest) = changes::read(&file.path)
        {
            file.changes = newest;
        }
        for (upstream, changes) in kept.upstreams {
            let Some(known) = state.upstreams.get(&upstream) else {
                continue;
            };
            if known.listed != changes.listed {
                if !changes.is_empty() {
                    changes.log_lost(&upstream, state.saved_of(&upstream), &known.list);
                }
            } else if !changes.is_empty() {
                state.changes.insert(upstream.clone(), changes);
                self.publish(&mut state, &upstream);
            } else if is_same_file && state.changes.remove(&upstream).is_some() {
                self.publish(&mut state, &upstream);
            }
        }
    }
}
