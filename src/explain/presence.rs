//! Why an endpoint is in its upstream's list, or not: the sources of endpoints.

use std::time::SystemTime;

use super::{AbsentStep, AskedEndpointStep, SourceStep, UpstreamStep};
use crate::config::{self, EndpointSource};
use crate::observe::discovered::{AbsentEndpoint, Discovered, SourceFigures};

/// The configured sources.
pub(super) fn written(upstream: &config::Upstream) -> Vec<SourceStep> {
    let step = |kind: &str, source: String| SourceStep {
        source,
        kind: kind.to_owned(),
        endpoints: None,
        age_ms: None,
        ttl_s: None,
        failing: None,
    };
    let sources = upstream.sources.iter().filter_map(|it| match it {
        EndpointSource::Fixed(_) => None,
        EndpointSource::Name(_) => Some(step("name", it.text().to_owned())),
        EndpointSource::Service(_) => Some(step("service", it.text().to_owned())),
    });
    let file = upstream.endpoints_file.as_ref();
    let file = file.map(|it| step("file", it.display().to_string()));
    sources.chain(file).collect()
}

/// Adds what the running process knows: the state of sources, endpoints that left, and the
/// endpoint that the command names, if there is one.
pub(super) fn add(step: &mut UpstreamStep, discovered: &Discovered, asked: Option<&str>) {
    let now = SystemTime::now();
    let sources = discovered.sources(&step.name).into_iter();
    step.sources = sources.map(|it| source_step(it, now)).collect();
    let absent = discovered.absent(&step.name);
    let asked = asked.map(|name| asked_step(step, discovered, &absent, name));
    let absent = absent.into_iter().map(|it| AbsentStep {
        age_ms: age_ms(it.since, now),
        name: it.endpoint,
        why: it.why,
    });
    step.absent = absent.collect();
    step.asked = asked;
}

fn age_ms(since: SystemTime, now: SystemTime) -> u64 {
    let age = now.duration_since(since).unwrap_or_default();
    age.as_millis() as u64
}

fn source_step(figures: SourceFigures, now: SystemTime) -> SourceStep {
    let figures = figures.aged(now);
    let failing = figures.failing.map(|word| {
        let text = figures.error.unwrap_or_default();
        format!("{word}: {text}")
    });
    SourceStep {
        source: figures.source,
        kind: figures.kind.to_owned(),
        endpoints: Some(figures.endpoints),
        age_ms: figures.age_ms,
        ttl_s: figures.ttl_s,
        failing,
    }
}

fn asked_step(
    step: &UpstreamStep,
    discovered: &Discovered,
    absent: &[AbsentEndpoint],
    name: &str,
) -> AskedEndpointStep {
    let is_there = step.endpoints.iter().any(|it| it.name == name);
    let reason = discovered.reason(&step.name, name);
    let left = absent.iter().find(|it| it.endpoint == name);
    let source = step.sources.iter().find(|it| it.source == name);
    let why = match (is_there, left, source) {
        (true, ..) => reason.unwrap_or_else(|| "it is in the list".to_owned()),
        (false, Some(left), _) => left.why.clone(),
        (false, None, Some(source)) => match &source.failing {
            Some(failing) => format!("it is a {}, which can't be read: {failing}", source.kind),
            None => format!(
                "it is a {}: its endpoints have names of their own",
                source.kind
            ),
        },
        (false, None, None) => nobody_gives(&step.sources),
    };
    AskedEndpointStep {
        name: name.to_owned(),
        is_there,
        why,
    }
}

/// Why an endpoint that never was in the list is not there.
fn nobody_gives(sources: &[SourceStep]) -> String {
    let mut text = "it is not written in the configuration".to_owned();
    for SourceStep {
        source,
        kind,
        failing,
        ..
    } in sources
    {
        text += &match (kind.as_str(), failing) {
            ("operator", _) => "; the operator did not add it".to_owned(),
            (_, Some(failing)) => format!("; {kind} {source} can't be read: {failing}"),
            (_, None) => format!("; {kind} {source} does not give it"),
        };
    }
    text
}
