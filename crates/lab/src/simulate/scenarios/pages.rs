//! S3: fast and slow pages.

use super::{Case, Claim, MS, Scenario, claim, p99_ms, rate, ratio, setting, threads};
use crate::bench::report::Limit::AtMost;
use crate::simulate::policies::{PLAIN, Variant, limited};
use crate::simulate::workload::{Arrivals, ServiceTime, Workload};

/// Fast and slow pages.
pub const S3: Scenario = Scenario {
    name: "S3",
    title: "ten origins of one thread, 95 % of 5 ms and 5 % of 500 ms",
    cases,
    claims,
};

const THREADS: u32 = 1;
const ORIGINS: usize = 10;
const MAX: Variant = limited("max 1", THREADS);
/// Slow pages are 84 % of the work: they need 7.6 of 10 slots at 90 % load.
const LANES: Variant = Variant {
    label: "max 1, slow lane 8",
    slow_lane: Some(8),
    ..MAX
};
const PAGES: ServiceTime = ServiceTime::Mix {
    fast: MS.saturating_mul(5),
    slow: MS.saturating_mul(500),
    slow_share: 0.05,
};

fn cases() -> Vec<Case> {
    let origins = vec![threads(THREADS, 1.0); ORIGINS];
    let case = |name, load, variants| Case {
        name,
        title: format!("S3: {}, {:.0} % load", S3.title, load * 100.0),
        setting: setting(
            origins.clone(),
            Workload {
                arrivals: Arrivals::Open {
                    per_second: rate(&origins, load, PAGES.mean()),
                },
                service_time: PAGES,
                requests: 320_000,
                warm_up: 20_000,
            },
        ),
        variants,
    };
    vec![
        case("70 %", 0.7, vec![PLAIN, MAX]),
        case("90 %", 0.9, vec![PLAIN, MAX, LANES]),
    ]
}

fn claims() -> Vec<Claim> {
    let over = |other| {
        let limited = ("shortest-queue", MAX);
        ratio("70 %", limited, (other, PLAIN), p99_ms)
    };
    vec![
        claim(
            "70 %: p99, shortest-queue max 1 / random without limit",
            AtMost(0.3),
            over("random"),
        ),
        claim(
            "70 %: p99, shortest-queue max 1 / two-choices without limit",
            AtMost(0.6),
            over("two-choices"),
        ),
        claim(
            "90 %: fast pages' p99, shortest-queue with lanes / shortest-queue",
            AtMost(0.1),
            ratio(
                "90 %",
                ("shortest-queue", LANES),
                ("shortest-queue", PLAIN),
                |it| it.fast_latency.p99_ms,
            ),
        ),
    ]
}
