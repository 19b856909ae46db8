//! The list of an upstream, put together from the answers of its sources.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;

use super::changes::Changes;
use super::names::{Answer, Question, Target, is_local};
use super::{Known, State};
use crate::config::{Endpoint, EndpointSource, NameSource, ResolveTo, ServiceSource};
use crate::net::Address;
use crate::observe::discovered::SourceFigures;

/// The endpoints of an upstream, and their sources.
#[derive(Debug, Default)]
pub(super) struct List {
    /// In the order of the configuration. Each name is there once.
    pub endpoints: Vec<Endpoint>,
    /// By the name of an endpoint, why it is there.
    pub reasons: HashMap<String, String>,
    /// Everything but the addresses that are written.
    pub sources: Vec<SourceFigures>,
}

impl State {
    /// The list of an upstream with these sources and these changes of operators.
    pub(super) fn assemble(
        &self,
        sources: &[EndpointSource],
        file: Option<&Path>,
        changes: Option<&Changes>,
    ) -> List {
        let mut list = List::default();
        let mut names = HashSet::new();
        let mut add = |endpoints: Vec<Endpoint>, reason: &str, list: &mut List| {
            let new = endpoints
                .into_iter()
                .filter(|it| names.insert(it.name.clone()));
            for endpoint in new {
                list.reasons
                    .insert(endpoint.name.clone(), reason.to_owned());
                list.endpoints.push(endpoint);
            }
        };
        for source in sources {
            let kind = match source {
                EndpointSource::Fixed(endpoint) => {
                    add(
                        vec![endpoint.clone()],
                        "written in the configuration",
                        &mut list,
                    );
                    continue;
                }
                EndpointSource::Name(_) => "name",
                EndpointSource::Service(_) => "service",
            };
            let said = Question::of(source).and_then(|it| self.answers.get(&it));
            let answer = said.and_then(|it| it.last.as_ref()).map(|it| &it.0);
            let endpoints = answer.map_or(Vec::new(), |it| endpoints_of(source, it));
            let ttl = answer.map(|it| it.ttl.as_secs());
            let mut figures = match said {
                Some(said) => said.figures(source.text(), kind, endpoints.len()),
                None => super::SourceState::<Answer>::default().figures(source.text(), kind, 0),
            };
            figures.ttl_s = ttl;
            list.sources.push(figures);
            let text = source.text();
            let reason = format!("{kind} {text}, TTL {} s", ttl.unwrap_or_default());
            add(endpoints, &reason, &mut list);
        }
        if let Some(path) = file {
            let said = self.files.get(path);
            let read = said.and_then(|it| it.last.as_ref());
            let endpoints = read.map_or(Vec::new(), |it| it.0.clone());
            let shown = path.display().to_string();
            if let Some(said) = said {
                let figures = said.figures(&shown, "file", endpoints.len());
                list.sources.push(figures);
            }
            add(endpoints, &format!("file {shown}"), &mut list);
        }
        if let Some(changes) = changes {
            let added = changes.apply(&mut list.endpoints);
            for (endpoint, change) in &changes.set {
                if let Some(reason) = list.reasons.get_mut(endpoint) {
                    *reason += &format!("; changed {}", change.by);
                }
            }
            for endpoint in &changes.removed {
                list.reasons.remove(endpoint);
            }
            for (endpoint, by) in added {
                list.reasons.insert(endpoint, format!("added {by}"));
            }
            list.sources.push(SourceFigures {
                source: changes.summary(),
                kind: "operator",
                endpoints: changes.added.len(),
                ..SourceFigures::default()
            });
        }
        list
    }

    /// The endpoint that the sources of an upstream list under a name, without the changes of
    /// operators.
    pub(super) fn listed(&self, known: &Known, name: &str) -> Option<Endpoint> {
        let is_it = |it: &Endpoint| it.name == name;
        let of_source = |source: &EndpointSource| {
            let Some(question) = Question::of(source) else {
                return source.fixed().filter(|it| is_it(it)).cloned();
            };
            let answer = &self.answers.get(&question)?.last.as_ref()?.0;
            endpoints_of(source, answer).into_iter().find(is_it)
        };
        let of_file = || {
            let said = self.files.get(known.file.as_ref()?)?;
            let list = &said.last.as_ref()?.0;
            list.iter().find(|it| is_it(it)).cloned()
        };
        known.sources.iter().find_map(of_source).or_else(of_file)
    }
}

/// The endpoints that a source stands for by this answer.
fn endpoints_of(source: &EndpointSource, answer: &Answer) -> Vec<Endpoint> {
    match source {
        EndpointSource::Fixed(endpoint) => vec![endpoint.clone()],
        EndpointSource::Name(name) => of_name(name, answer),
        EndpointSource::Service(service) => of_service(service, answer),
    }
}

fn of_name(name: &NameSource, answer: &Answer) -> Vec<Endpoint> {
    let at = |target: &Target| SocketAddr::new(target.address, name.port);
    let is_one = name.resolve == ResolveTo::One || is_local(&name.host);
    let targets = answer.targets.iter();
    if is_one {
        let first = targets.take(1).map(|target| Endpoint {
            address: Address::Tcp(at(target)),
            ..name.pattern.clone()
        });
        return first.collect();
    }
    let each = targets.map(|target| named_by_address(at(target), &name.pattern));
    each.collect()
}

fn of_service(service: &ServiceSource, answer: &Answer) -> Vec<Endpoint> {
    let mut priorities: Vec<_> = answer.targets.iter().map(|it| it.priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    let has = |is: fn(&Target) -> bool| answer.targets.iter().any(is);
    let is_mixed = has(|it| it.weight == 0) && has(|it| it.weight > 0);
    // Targets are in the order of their addresses.
    let mut hosts = HashSet::new();
    let mut is_first = |it: &Target| hosts.insert(it.host.clone());
    let targets = answer.targets.iter();
    let targets = targets.filter(|it| service.resolve == ResolveTo::Each || is_first(it));
    let endpoints = targets.map(|target| {
        let address = SocketAddr::new(target.address, target.port);
        let endpoint = named_by_address(address, &service.pattern);
        let later = priorities
            .binary_search(&target.priority)
            .unwrap_or_default();
        Endpoint {
            // RFC 2782: a weight of 0 is a small chance where others have more.
            weight: match target.weight {
                0 => 1,
                weight if is_mixed => u32::from(weight) * 10,
                weight => u32::from(weight),
            },
            tier: endpoint.tier.saturating_add(later as u16),
            host: target.host.clone().unwrap_or_default(),
            ..endpoint
        }
    });
    endpoints.collect()
}

fn named_by_address(address: SocketAddr, pattern: &Endpoint) -> Endpoint {
    Endpoint {
        name: address.to_string(),
        address: Address::Tcp(address),
        ..pattern.clone()
    }
}
