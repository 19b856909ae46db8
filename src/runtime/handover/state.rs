//! The state of upstreams and endpoints, by their names, as one process tells another.
//!
//! The old process sends it as late as it can, when the new one is ready: learned values fade
//! within seconds. An endpoint without an entry is a new endpoint.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use evenkeel_policy::balance::Evidence;
use evenkeel_policy::chooser::ChooserSnapshot;
use evenkeel_policy::endpoint::{Admin, EndpointState, Outages};
use evenkeel_policy::health::EndpointSnapshot;
use evenkeel_tls::TicketKeys;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config;
use crate::discovery::{ChangesSnapshot, Discovery};
use crate::maintenance::UnderMaintenance;
use crate::net::clock;
use crate::observe::figures::{AdminWord, Sources};
use crate::observe::inquiry::LearnedSide;
use crate::observe::probes::LastProbe;
use crate::upstream::{SharedUpstream, UpstreamSides};

/// An upstream of a configuration, with its index.
type Configured<'a> = ((usize, &'a config::Upstream), &'a Arc<SharedUpstream>);

/// The state of all upstreams.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::runtime) struct Known {
    upstreams: BTreeMap<String, Upstream>,
    /// The changes of operators to the lists of endpoints.
    changes: ChangesSnapshot,
    /// Of each worker: what its balancers have learned, by upstream.
    learned: Vec<BTreeMap<String, Learned>>,
    /// The keys of tickets.
    ticket_keys: KeptTicketKeys,
    /// Routes and upstreams under maintenance.
    maintenance: UnderMaintenance,
}

/// Keys of tickets, in base64. Safety: they are secret, and stay between the two processes.
#[derive(Default, Serialize, Deserialize)]
#[serde(transparent)]
struct KeptTicketKeys(String);

impl KeptTicketKeys {
    fn of(keys: &TicketKeys) -> Self {
        KeptTicketKeys(BASE64_STANDARD.encode(keys.export()))
    }

    /// Opens tickets of these keys with `keys` from now on.
    fn restore(&self, keys: &TicketKeys) {
        // A process of an older version has none.
        if self.0.is_empty() {
            return;
        }
        let exported = BASE64_STANDARD.decode(&self.0);
        if !exported.is_ok_and(|it| keys.import(&it).is_ok()) {
            tracing::warn!(
                "upgrade: the ticket keys are not understood: TLS sessions cannot be resumed"
            );
        }
    }
}

impl fmt::Debug for KeptTicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptTicketKeys")
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Upstream {
    /// How its list is written.
    listed: String,
    /// Retries that its budget has left.
    retries: Option<f64>,
    /// By name.
    endpoints: BTreeMap<String, Endpoint>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Endpoint {
    /// Another address is another endpoint, whatever its name.
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    admin: Option<String>,
    /// The weight, if it was changed at run time.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
    is_down: bool,
    is_unprobed: bool,
    is_unreachable: bool,
    probes_passed: u32,
    probes_failed: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ejected_for_ms: Option<u64>,
    ejections_in_row: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    returned_ago_ms: Option<u64>,
    ejections: u32,
    downs: u32,
    unreachables: u32,
    errors_in_row: u16,
    unreachable_in_row: u16,
    /// Phantoms, and for how many milliseconds they stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    ghosts: Option<(u32, u64)>,
    /// Answers of the last seconds, this one first, and errors among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    answers: Vec<[u32; 2]>,
    /// In the form of `/status.json`.
    #[serde(skip_serializing_if = "Value::is_null")]
    last_probe: Value,
}

/// The learned values of a balancer.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Learned {
    /// The balancer: another one has another measure.
    balance: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean: Option<f64>,
    /// By name: the sum of what answers said, and how many answers that counts for.
    endpoints: BTreeMap<String, (f64, f64)>,
}

impl Known {
    /// Reads the present state. Takes milliseconds where there are thousands of endpoints.
    pub fn of(
        sources: &Sources,
        upstreams: &[Arc<SharedUpstream>],
        discovery: &Discovery,
        learned: Vec<Vec<LearnedSide>>,
    ) -> Self {
        let indices = sources.config.upstreams.iter().enumerate();
        let of_upstream = |((index, config), shared): Configured<'_>| {
            let known = Upstream {
                listed: config.listed.clone(),
                retries: Some(shared.dispatcher().retries.left(clock::now())),
                endpoints: endpoints(sources, index, shared),
            };
            (shared.name().to_owned(), known)
        };
        Known {
            upstreams: indices.zip(upstreams).map(of_upstream).collect(),
            changes: discovery.keep_changes(),
            learned: learned.into_iter().map(learned_by_upstream).collect(),
            ticket_keys: KeptTicketKeys::of(sources.tickets.keys()),
            maintenance: sources.maintenance.under(),
        }
    }

    /// Restores the state of endpoints that exist again. Gives the part that is for the workers.
    /// May block.
    pub fn restore(
        self,
        sources: &Sources,
        upstreams: &[Arc<SharedUpstream>],
        discovery: &Discovery,
    ) -> LearnedByUpstream {
        self.ticket_keys.restore(sources.tickets.keys());
        sources.maintenance.restore(&self.maintenance);
        discovery.restore_changes(self.changes);
        let configured = sources.config.upstreams.iter().enumerate();
        for ((index, config), shared) in configured.zip(upstreams) {
            if let Some(known) = self.upstreams.get(shared.name()) {
                let is_listed = known.listed == config.listed;
                known.restore(sources, index, shared, is_listed);
            }
        }
        LearnedByUpstream(self.learned)
    }
}

fn endpoints(
    sources: &Sources,
    index: usize,
    upstream: &SharedUpstream,
) -> BTreeMap<String, Endpoint> {
    let now = clock::now();
    let reweighted = upstream.reweighted().into_iter();
    let reweighted: HashMap<_, _> = reweighted.map(|it| (it.id(), it.weight())).collect();
    let members = upstream.members().into_iter();
    let endpoints = members.map(|endpoint| {
        let state = &endpoint.state;
        let kept = upstream.dispatcher().keep(state, now);
        let mut answers = kept.answers.to_vec();
        let used = answers.iter().rposition(|it| *it != [0, 0]);
        answers.truncate(used.map_or(0, |last| last + 1));
        let last_probe = sources.probes.of(index, state.id()).last;
        let saved = Endpoint {
            address: endpoint.settings.address.to_string(),
            admin: (kept.admin != Admin::Ready).then(|| AdminWord(kept.admin).word().to_owned()),
            weight: reweighted.get(&state.id()).copied(),
            is_down: kept.is_down,
            is_unprobed: kept.is_unprobed,
            is_unreachable: kept.is_unreachable,
            probes_passed: kept.probes_passed,
            probes_failed: kept.probes_failed,
            ejected_for_ms: kept.ejected_for.map(millis),
            ejections_in_row: kept.ejections_in_row,
            returned_ago_ms: kept.returned_ago.map(millis),
            ejections: kept.outages.ejections,
            downs: kept.outages.downs,
            unreachables: kept.outages.unreachables,
            errors_in_row: kept.errors_in_row,
            unreachable_in_row: kept.unreachable_in_row,
            ghosts: kept.phantoms.map(|(count, left)| (count, millis(left))),
            answers,
            last_probe: last_probe.map_or(Value::Null, |it| serde_json::json!(it)),
        };
        (state.name().to_owned(), saved)
    });
    endpoints.collect()
}

impl Upstream {
    /// Weights are those of the list if the list is written otherwise than before.
    fn restore(&self, sources: &Sources, index: usize, shared: &SharedUpstream, is_listed: bool) {
        let now = clock::now();
        let dispatcher = shared.dispatcher();
        let members = shared.members();
        let members = members.iter().filter_map(|endpoint| {
            let saved = self.endpoints.get(endpoint.state.name())?;
            let is_same = saved.address == endpoint.settings.address.to_string();
            is_same.then_some((&*endpoint.state, saved))
        });
        let members: Vec<(&EndpointState, &Endpoint)> = members.collect();
        let kept = members.iter().map(|(state, saved)| {
            let kept = saved.kept();
            // Without probes, nothing could bring an endpoint back.
            let kept = if shared.is_probed() {
                kept
            } else {
                kept.without_probes()
            };
            (*state, kept)
        });
        dispatcher.restore(kept, now);
        for (state, saved) in members {
            if let Some(weight) = saved.weight.filter(|_| is_listed) {
                dispatcher.set_weight(state, weight, now);
            }
            // A form that this version does not know counts as none.
            let last_probe = LastProbe::deserialize(&saved.last_probe).ok();
            let probes = sources.probes.of_upstream(index);
            probes.inherit(state.id(), last_probe);
        }
        if let Some(retries) = self.retries {
            dispatcher.retries.restore(retries, now);
        }
    }
}

impl Endpoint {
    fn kept(&self) -> EndpointSnapshot {
        let mut answers = EndpointSnapshot::default().answers;
        let known = answers.iter_mut().zip(&self.answers);
        known.for_each(|(it, known)| *it = *known);
        let time = Duration::from_millis;
        EndpointSnapshot {
            admin: match self.admin.as_deref() {
                Some("drain") => Admin::Drain,
                Some("stop") => Admin::Stop,
                _ => Admin::Ready,
            },
            is_down: self.is_down,
            is_unprobed: self.is_unprobed,
            is_unreachable: self.is_unreachable,
            probes_passed: self.probes_passed,
            probes_failed: self.probes_failed,
            ejected_for: self.ejected_for_ms.map(time),
            ejections_in_row: self.ejections_in_row,
            returned_ago: self.returned_ago_ms.map(time),
            outages: Outages {
                ejections: self.ejections,
                downs: self.downs,
                unreachables: self.unreachables,
            },
            errors_in_row: self.errors_in_row,
            unreachable_in_row: self.unreachable_in_row,
            phantoms: self.ghosts.map(|(count, left)| (count, time(left))),
            answers,
        }
    }
}

/// The learned values of a worker. Upstreams without any are left out.
fn learned_by_upstream(sides: Vec<LearnedSide>) -> BTreeMap<String, Learned> {
    let now = clock::now();
    let sides = sides.into_iter().filter_map(|side| {
        let ChooserSnapshot { mean, endpoints } = side.chooser.keep(now)?;
        let endpoints = endpoints.into_iter();
        let endpoints = endpoints.map(|(name, it)| (name, (it.sum, it.answers)));
        let learned = Learned {
            balance: side.balance.word().to_owned(),
            mean,
            endpoints: endpoints.collect(),
        };
        Some((side.upstream, learned))
    });
    sides.collect()
}

/// The learned values of the workers of the process before.
#[derive(Debug)]
pub(in crate::runtime) struct LearnedByUpstream(Vec<BTreeMap<String, Learned>>);

impl LearnedByUpstream {
    /// Has a worker go on from the values of a worker of the process before. If there are more
    /// workers now, several start from the same values.
    pub fn teach(&self, worker: usize, sides: &UpstreamSides) {
        let Some(of) = worker.checked_rem(self.0.len()) else {
            return;
        };
        let now = clock::now();
        for side in sides.all() {
            let learned = self.0[of].get(side.name());
            let learned = learned.filter(|it| it.balance == side.balance().word());
            if let Some(learned) = learned {
                let endpoints = learned.endpoints.iter();
                let evidence = |&(sum, answers): &(f64, f64)| Evidence { sum, answers };
                let endpoints = endpoints.map(|(name, it)| (name.clone(), evidence(it)));
                let kept = ChooserSnapshot {
                    mean: learned.mean,
                    endpoints: endpoints.collect(),
                };
                side.learn(&kept, now);
            }
        }
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}
