//! `scale`: balancers that do not know of each other, and many endpoints.

use super::{Case, Claim, PAGE, Scenario, rate, setting, threads};
use crate::simulate::policies::PLAIN;
use crate::simulate::proxy::Balancers;
use crate::simulate::workload::{Arrivals, ServiceTime, Workload};

/// Balancers by endpoints.
pub const SCALE: Scenario = Scenario {
    name: "scale",
    title: "origins of one thread at 80 %, separate balancers",
    cases,
    claims: Vec::<Claim>::new,
};

const CELLS: [(&str, usize, usize); 9] = [
    ("1x100", 1, 100),
    ("10x100", 10, 100),
    ("100x100", 100, 100),
    ("1x1000", 1, 1_000),
    ("10x1000", 10, 1_000),
    ("100x1000", 100, 1_000),
    ("1x10000", 1, 10_000),
    ("10x10000", 10, 10_000),
    ("100x10000", 100, 10_000),
];

fn cases() -> Vec<Case> {
    let cell = |(name, balancers, endpoints): (&'static str, usize, usize)| {
        let origins = vec![threads(1, 1.0); endpoints];
        // A pick looks at every endpoint: fewer requests for each where there
        // are many. With three it is the beginning that is seen, before long
        // queues have had time to form.
        let per_endpoint = match endpoints {
            ..1_000 => 400,
            1_000..10_000 => 40,
            _ => 3,
        };
        let requests = per_endpoint * endpoints as u64;
        let load = Workload {
            arrivals: Arrivals::Open {
                per_second: rate(&origins, 0.8, PAGE),
            },
            service_time: ServiceTime::Exponential { mean: PAGE },
            requests,
            warm_up: requests / 3,
        };
        let mut setting = setting(origins, load);
        setting.balancers = Balancers::Proxies(balancers);
        Case {
            name,
            title: format!("scale: {balancers} balancers x {endpoints} endpoints, 80 %"),
            setting,
            variants: vec![PLAIN],
        }
    };
    CELLS.map(cell).into()
}
