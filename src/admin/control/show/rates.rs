//! `rates`: the traffic of the last seconds.

use std::time::Duration;

use super::super::table::Table;
use super::{of_limit, or_nothing};
use crate::metrics::quantity::{bytes, rate, span, time};
use crate::observe::rates::{Rates, Traffic, UpstreamRates};

const TITLES: [&str; 11] = [
    "NAME",
    "STATE",
    ">WEIGHT",
    ">IN FLIGHT",
    ">WAITING",
    ">REQ/S",
    ">ERR/S",
    ">P50",
    ">P99",
    ">IN/S",
    ">OUT/S",
];

/// One table with everything, as in `evenkeel top`.
pub(in super::super) fn rates(rates: &Rates) -> String {
    let mut table = Table::new(&TITLES);
    for listener in &rates.listeners {
        let start = [
            format!("listener {}", listener.name),
            format!("{} open", listener.open),
            String::new(),
            String::new(),
            String::new(),
        ];
        table.row(start.into_iter().chain(traffic_cells(&listener.traffic)));
    }
    for limit in &rates.limits {
        let mut cells = [const { String::new() }; TITLES.len()];
        cells[0] = format!("limits of {}", limit.route);
        cells[1] = format!("{} refused/s", rate(limit.refused_per_s));
        cells[5] = rate(limit.allowed_per_s + limit.delayed_per_s);
        table.row(cells);
    }
    for cache in &rates.caches {
        let mut cells = [const { String::new() }; TITLES.len()];
        cells[0] = format!("cache {}", cache.name);
        cells[1] = cache.hit_ratio().unwrap_or_default();
        cells[5] = rate(cache.requests_per_s);
        table.row(cells);
    }
    for upstream in &rates.upstreams {
        upstream_rows(upstream, &mut table);
    }
    format!(
        "evenkeel {}, process {}, up {}; the last {}\n{}",
        rates.version,
        rates.pid,
        span(Duration::from_millis(rates.uptime_ms)),
        span(Duration::from_millis(rates.window_ms)),
        table.text(0)
    )
}

/// An upstream, and its endpoints below it.
fn upstream_rows(upstream: &UpstreamRates, table: &mut Table) {
    let start = [
        format!("upstream {}", upstream.name),
        format!("{}/{} up", upstream.eligible, upstream.endpoints.len()),
        String::new(),
        upstream.in_flight.to_string(),
        of_limit(upstream.waiting, Some(upstream.queue_max)),
    ];
    table.row(start.into_iter().chain(traffic_cells(&upstream.traffic)));
    for endpoint in &upstream.endpoints {
        let start = [
            format!("  {}", endpoint.name),
            endpoint.state.clone(),
            endpoint.weight.to_string(),
            of_limit(endpoint.in_flight, endpoint.max_in_flight),
            String::new(),
        ];
        table.row(start.into_iter().chain(traffic_cells(&endpoint.traffic)));
    }
}

fn traffic_cells(traffic: &Traffic) -> [String; 6] {
    [
        rate(traffic.requests_per_s),
        rate(traffic.errors_per_s),
        or_nothing(traffic.p50_us.map(time)),
        or_nothing(traffic.p99_us.map(time)),
        bytes(traffic.bytes_in_per_s),
        bytes(traffic.bytes_out_per_s),
    ]
}
