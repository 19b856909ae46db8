//! `show upstreams`: upstreams and their endpoints.

use super::super::answer::{Answer, Format, with_names};
use super::super::table::Table;
use super::{of_limit, quantile};
use crate::admin::operate::Unknown;
use crate::metrics::quantity::bytes;
use crate::observe::figures::{EndpointFigures, Figures, UpstreamFigures};

pub(in super::super) fn upstreams(figures: &Figures, format: Format) -> Answer {
    format.show(&figures.upstreams, |upstreams| {
        let texts: Vec<_> = upstreams.iter().map(upstream_text).collect();
        if texts.is_empty() {
            "no upstream is configured\n".to_owned()
        } else {
            texts.join("\n")
        }
    })
}

pub(in super::super) fn upstream(figures: &Figures, name: &str, format: Format) -> Answer {
    let found = figures.upstreams.iter().find(|it| it.name == name);
    let Some(found) = found else {
        let error = Unknown::Upstream(name.escape_debug().to_string());
        return Err(with_names(
            &error,
            figures.upstreams.iter().map(|it| &*it.name),
        ));
    };
    format.show(found, upstream_text)
}

fn upstream_text(upstream: &UpstreamFigures) -> String {
    let UpstreamFigures {
        name,
        balance,
        in_flight,
        waiting,
        queue_max,
        eligible,
        retries,
        exchanges,
        ..
    } = upstream;
    let mut text = format!(
        "upstream {name}: balance {balance}, {eligible} of {} endpoints take requests, \
         {in_flight} in flight, {waiting} of {queue_max} waiting\n\
         requests {}, errors {}, retries {retries}, queued {}; p50 {}, p99 {}\n",
        upstream.endpoints.len(),
        exchanges.requests,
        exchanges.errors,
        upstream.queued,
        quantile(&exchanges.phases.total_us, 0.5),
        quantile(&exchanges.phases.total_us, 0.99),
    );
    for lane in &upstream.lanes {
        text += &format!(
            "lane {}: {}/{} in flight\n",
            lane.name, lane.in_flight, lane.max_in_flight
        );
    }
    let mut table = Table::new(&[
        "ENDPOINT",
        "STATE",
        ">WEIGHT",
        ">IN FLIGHT",
        ">IDLE",
        ">ATTEMPTS",
        ">FAILURES",
        ">5XX",
        ">RECEIVED",
        ">FIRST BYTE P50",
        ">P99",
    ]);
    for endpoint in &upstream.endpoints {
        table.row(endpoint_row(endpoint));
    }
    text + &table.text(2)
}

fn endpoint_row(endpoint: &EndpointFigures) -> [String; 11] {
    let weight = if endpoint.effective_weight < f64::from(endpoint.weight) {
        format!("{:.2}/{}", endpoint.effective_weight, endpoint.weight)
    } else {
        endpoint.weight.to_string()
    };
    [
        endpoint.name.clone(),
        endpoint.state.word().to_owned(),
        weight,
        of_limit(endpoint.in_flight, endpoint.max_in_flight),
        endpoint.idle.to_string(),
        endpoint.attempts.to_string(),
        endpoint.failures.to_string(),
        endpoint.status.0[5].to_string(),
        bytes(endpoint.bytes_in as f64),
        quantile(&endpoint.phases.first_byte_us, 0.5),
        quantile(&endpoint.phases.first_byte_us, 0.99),
    ]
}
