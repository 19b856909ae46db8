//! S1 and S2: origins of different capacity, origins of one thread.

use super::{Case, Claim, PAGE, Scenario, claim, p99_ms, per_second, ratio, setting, threads};
use crate::bench::report::Limit::{AtLeast, AtMost};
use crate::simulate::measure::Figures;
use crate::simulate::policies::{PLAIN, Variant, limited};
use crate::simulate::workload::{Arrivals, ServiceTime, Workload};

/// The lighttpd benchmark.
pub const S1: Scenario = Scenario {
    name: "S1",
    title: "two origins of capacity 1 : 2.27, closed loop of 16",
    cases: s1_cases,
    claims: s1_claims,
};

/// Three mongrels.
pub const S2: Scenario = Scenario {
    name: "S2",
    title: "three origins of one thread, pages of 20 ms",
    cases: s2_cases,
    claims: s2_claims,
};

const MAX_2: Variant = limited("max 2", 2);
const MAX_1: Variant = limited("max 1", 1);

fn closed(clients: u32, service_time: ServiceTime) -> Workload {
    Workload {
        arrivals: Arrivals::Closed { clients },
        service_time,
        requests: 102_000,
        warm_up: 2_000,
    }
}

fn s1_cases() -> Vec<Case> {
    let origins = vec![threads(2, 1.0), threads(2, 2.27)];
    let load = closed(16, ServiceTime::Exponential { mean: PAGE });
    vec![Case {
        name: "c=16",
        title: format!("S1: {}", S1.title),
        setting: setting(origins, load),
        variants: vec![PLAIN, MAX_2],
    }]
}

fn s1_claims() -> Vec<Claim> {
    let over_unlimited = |figure: fn(&Figures) -> f64| {
        let (limited, unlimited) = (("shortest-queue", MAX_2), ("shortest-queue", PLAIN));
        ratio("c=16", limited, unlimited, figure)
    };
    vec![
        claim(
            "p99, shortest-queue max 2 / shortest-queue",
            AtMost(0.75),
            over_unlimited(p99_ms),
        ),
        claim(
            "throughput, shortest-queue max 2 / shortest-queue",
            AtLeast(0.97),
            over_unlimited(per_second),
        ),
    ]
}

fn s2_cases() -> Vec<Case> {
    let case = |name, clients, service_time, kind| Case {
        name,
        title: format!("S2: {}, {kind}, closed loop of {clients}", S2.title),
        setting: setting(vec![threads(1, 1.0); 3], closed(clients, service_time)),
        variants: vec![PLAIN, MAX_1],
    };
    // Nearly fixed. Without any of the jitter of real machines, three origins work in step, and
    // every response takes three or four pages.
    let fixed = ServiceTime::LogNormal {
        mean: PAGE,
        sigma: 0.02,
    };
    let exponential = ServiceTime::Exponential { mean: PAGE };
    vec![
        case("c=3", 3, fixed, "nearly fixed"),
        case("c=10", 10, fixed, "nearly fixed"),
        case("c=10 exponential", 10, exponential, "exponential"),
    ]
}

fn s2_claims() -> Vec<Claim> {
    let latency = |result: &super::ScenarioResult| {
        let figures = result.figures("c=10", "shortest-queue", MAX_1.label)?;
        Some(figures.latency)
    };
    vec![
        claim(
            "c=3: throughput, shortest-queue max 1 / three times one origin",
            AtLeast(0.95),
            |result| {
                let one = 1.0 / PAGE.as_secs_f64();
                let figures = result.figures("c=3", "shortest-queue", MAX_1.label)?;
                Some(figures.per_second / (3.0 * one))
            },
        ),
        claim(
            "c=3: throughput, shortest-queue max 1 / random without limit",
            AtLeast(1.3),
            ratio(
                "c=3",
                ("shortest-queue", MAX_1),
                ("random", PLAIN),
                per_second,
            ),
        ),
        claim(
            "c=10: max / p50, shortest-queue max 1",
            AtMost(1.6),
            move |result| latency(result).map(|it| it.max_ms / it.p50_ms),
        ),
        claim(
            "c=10: max / service time, shortest-queue max 1",
            AtMost(10.0),
            move |result| latency(result).map(|it| it.max_ms / (PAGE.as_secs_f64() * 1e3)),
        ),
        claim(
            "c=10: p95 / p50, shortest-queue max 1",
            AtMost(1.15),
            move |result| latency(result).map(|it| it.p95_ms / it.p50_ms),
        ),
    ]
}
