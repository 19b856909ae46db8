//! What is known of endpoints, by the names of upstreams and endpoints.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::endpoint::{Admin, Outages};
use evenkeel_policy::health::EndpointKept;
use serde::{Deserialize, Serialize};

use crate::net::clock;
use crate::observe::figures::AdminWord;
use crate::upstream::SharedUpstream;

/// Endpoints by upstream and name.
pub(in crate::runtime) type Upstreams = BTreeMap<String, BTreeMap<String, Endpoint>>;

/// An endpoint. What is not there holds as for a new one.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::runtime) struct Endpoint {
    /// Another address is another endpoint, whatever its name.
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    admin: Option<String>,
    /// Where it is not the one configured.
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
}

/// What is known of all endpoints.
pub(in crate::runtime) fn save(upstreams: &[Arc<SharedUpstream>]) -> Upstreams {
    let now = clock::now();
    let of_upstream = |upstream: &Arc<SharedUpstream>| {
        let members = upstream.members().into_iter();
        let endpoints = members.map(|endpoint| {
            let kept = upstream.dispatcher().keep(&endpoint.state, now);
            let weight = endpoint.state.weight();
            let saved = Endpoint {
                address: endpoint.settings.address.to_string(),
                admin: (kept.admin != Admin::Ready)
                    .then(|| AdminWord(kept.admin).word().to_owned()),
                weight: (weight != endpoint.settings.weight).then_some(weight),
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
            };
            (endpoint.state.name().to_owned(), saved)
        });
        (upstream.name().to_owned(), endpoints.collect())
    };
    upstreams.iter().map(of_upstream).collect()
}

/// Has all of it hold for the endpoints that are there again.
pub(in crate::runtime) fn restore(saved: &Upstreams, upstreams: &[Arc<SharedUpstream>]) {
    let now = clock::now();
    for upstream in upstreams {
        let Some(endpoints) = saved.get(upstream.name()) else {
            continue;
        };
        for endpoint in upstream.members() {
            let state = &endpoint.state;
            let Some(saved) = endpoints.get(state.name()) else {
                continue;
            };
            if saved.address != endpoint.settings.address.to_string() {
                continue;
            }
            let kept = EndpointKept {
                admin: match saved.admin.as_deref() {
                    Some("drain") => Admin::Drain,
                    Some("stop") => Admin::Stop,
                    _ => Admin::Ready,
                },
                is_down: saved.is_down,
                is_unprobed: saved.is_unprobed,
                is_unreachable: saved.is_unreachable,
                probes_passed: saved.probes_passed,
                probes_failed: saved.probes_failed,
                ejected_for: saved.ejected_for_ms.map(Duration::from_millis),
                ejections_in_row: saved.ejections_in_row,
                returned_ago: saved.returned_ago_ms.map(Duration::from_millis),
                outages: Outages {
                    ejections: saved.ejections,
                    downs: saved.downs,
                    unreachables: saved.unreachables,
                },
            };
            upstream.dispatcher().restore(state, &kept, now);
            if let Some(weight) = saved.weight {
                upstream.dispatcher().set_weight(state, weight, now);
            }
        }
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}
