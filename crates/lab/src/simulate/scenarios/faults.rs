//! S5 and S6: a deploy, and a server that fails fast.

use super::{Case, Claim, MS, PAGE, S, Scenario, ScenarioResult, claim, rate, setting, threads};
use crate::bench::report::Limit::{AtLeast, AtMost};
use crate::simulate::origin::Condition;
use crate::simulate::policies::{PLAIN, Variant, limited};
use crate::simulate::setting::{Fault, Outage, Setting};
use crate::simulate::watch::Guarding;
use crate::simulate::workload::{Arrivals, ServiceTime, Workload};

/// A deploy.
pub const S5: Scenario = Scenario {
    name: "S5",
    title: "ten origins of four threads at 60 %, restarted, back cold",
    cases: s5_cases,
    claims: s5_claims,
};

/// A server that fails fast.
pub const S6: Scenario = Scenario {
    name: "S6",
    title: "ten origins of four threads at 70 %, one answers 500 in 1 ms",
    cases: s6_cases,
    claims: s6_claims,
};

const ORIGINS: usize = 10;
const THREADS: u32 = 4;
const MAX: Variant = limited("max 4", THREADS);
const NO_HOLD: Variant = Variant {
    label: "max 4, no hold",
    hold: false,
    ..MAX
};
const GUARDED: Variant = Variant {
    label: "guarded",
    guarding: Guarding::On,
    ..PLAIN
};
/// All origins are away for so long.
const OUTAGE_S: u32 = 5;
const LOAD: f64 = 0.6;
/// After a return, at half speed for so long.
const COLD_S: u32 = 3;
const WARMTH: f64 = 0.5;

fn deploy(seconds: u64, outages: impl IntoIterator<Item = Outage>) -> Setting {
    let origins = vec![threads(THREADS, 1.0); ORIGINS];
    let per_second = rate(&origins, LOAD, PAGE);
    let load = Workload {
        arrivals: Arrivals::Open { per_second },
        service_time: ServiceTime::Exponential { mean: PAGE },
        requests: per_second as u64 * seconds,
        warm_up: 0,
    };
    let mut setting = setting(origins, load);
    setting.faults = outages.into_iter().flat_map(|it| it.faults()).collect();
    // The first to hear of an outage meet every origin that is down.
    setting.retries = 2 * ORIGINS as u32;
    setting
}

fn s5_cases() -> Vec<Case> {
    let outage = |origin, from: u32, until: u32| Outage {
        origin,
        from: from * S,
        until: until * S,
        cold: COLD_S * S,
        warmth: WARMTH,
    };
    let all = (0..ORIGINS).map(|origin| outage(origin, 10, 10 + OUTAGE_S));
    let rolling = (0..ORIGINS).map(|origin| {
        let from = 5 + 4 * origin as u32;
        outage(origin, from, from + 2)
    });
    vec![
        Case {
            name: "all",
            title: format!("S5: {}, all at once for {OUTAGE_S} s", S5.title),
            setting: deploy(60, all),
            variants: vec![PLAIN, MAX, NO_HOLD],
        },
        Case {
            name: "rolling",
            title: format!("S5: {}, one after the other for 2 s each", S5.title),
            setting: deploy(60, rolling),
            variants: vec![PLAIN, MAX],
        },
    ]
}

/// Time from the return until no request waits. The backlog is worked off by the spare
/// capacity, which is lower while origins are cold.
fn time_to_drain() -> f64 {
    let capacity = 1.0 / LOAD;
    let backlog = f64::from(OUTAGE_S) + f64::from(COLD_S) * (1.0 - WARMTH * capacity);
    f64::from(COLD_S) + backlog / (capacity - 1.0)
}

fn s5_claims() -> Vec<Claim> {
    const BALANCER: &str = "shortest-queue";
    let mut claims = Vec::new();
    for case in ["all", "rolling"] {
        let errors = move |result: &ScenarioResult| {
            let figures = result.figures(case, BALANCER, MAX.label)?;
            Some(figures.errors as f64)
        };
        let what = format!("{case}: errors, {BALANCER} max 4");
        claims.push(claim(what, AtMost(0.0), errors));
    }
    claims.push(claim(
        format!("all: longest response / (outage + 1.5 x drain), {BALANCER} max 4"),
        AtMost(1.0),
        |result| {
            let figures = result.figures("all", BALANCER, MAX.label)?;
            let bound = f64::from(OUTAGE_S) + 1.5 * time_to_drain();
            Some(figures.latency.max_ms / 1e3 / bound)
        },
    ));
    claims
}

fn s6_cases() -> Vec<Case> {
    let origins = vec![threads(THREADS, 1.0); ORIGINS];
    let load = Workload {
        arrivals: Arrivals::Open {
            per_second: rate(&origins, 0.7, PAGE),
        },
        service_time: ServiceTime::Exponential { mean: PAGE },
        requests: 220_000,
        warm_up: 20_000,
    };
    let mut setting = setting(origins, load);
    setting.faults = vec![Fault {
        origin: 3,
        at: S,
        condition: Condition::Failing { after: MS },
    }];
    vec![Case {
        name: "fails fast",
        title: format!("S6: {}", S6.title),
        setting,
        variants: vec![PLAIN, GUARDED],
    }]
}

fn s6_claims() -> Vec<Claim> {
    let share = |balancer: &'static str, variant: Variant| {
        move |result: &ScenarioResult| {
            let figures = result.figures("fails fast", balancer, variant.label)?;
            Some(figures.error_share() * 100.0)
        }
    };
    vec![
        claim(
            "errors in %, shortest-queue, guard off",
            AtLeast(25.0),
            share("shortest-queue", PLAIN),
        ),
        claim(
            "errors in %, least-connections, guarded",
            AtMost(0.5),
            share("least-connections", GUARDED),
        ),
    ]
}
