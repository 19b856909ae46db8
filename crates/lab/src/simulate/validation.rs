//! The simulation against formulas of queueing theory, and against itself.

use std::time::Duration;

use evenkeel_policy::balance::Balance;
use evenkeel_policy::queue::QueueSettings;

use super::measure::Figures;
use super::origin::{Condition, Scheduling, Shape};
use super::proxy::{Balancers, Policy};
use super::setting::{Fault, Outage, Setting};
use super::simulation::simulate;
use super::watch::Guarding;
use super::workload::{Arrivals, ServiceTime, Workload};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
const EXPONENTIAL: ServiceTime = ServiceTime::Exponential { mean: S };

fn policy(balance: Balance, max_in_flight: Option<u32>) -> Policy {
    Policy {
        balance,
        max_in_flight,
        slow_lane: None,
        guarding: Guarding::Off,
        queue: QueueSettings {
            max: 1_000_000,
            ..QueueSettings::default()
        },
    }
}

/// An open loop that keeps `count` origins of one thread busy for `load` of
/// the time.
fn open(count: u32, load: f64, service_time: ServiceTime, scheduling: Scheduling) -> Setting {
    let origin = Shape {
        threads: 1,
        speed: 1.0,
        scheduling,
    };
    let per_second = load * f64::from(count) / service_time.mean().as_secs_f64();
    Setting {
        origins: vec![origin; count as usize],
        faults: Vec::new(),
        workload: Workload {
            arrivals: Arrivals::Open { per_second },
            service_time,
            requests: 420_000,
            warm_up: 20_000,
        },
        balancers: Balancers::Workers(1),
        retries: 2,
        queue_timeout: 10_000 * S,
    }
}

#[track_caller]
fn assert_within(what: &str, simulated: f64, due: f64, tolerance: f64) {
    let off = (simulated / due - 1.0).abs();
    assert!(off <= tolerance, "{what}: {simulated}, not {due}");
}

#[track_caller]
fn assert_conserved(setting: &Setting, figures: &Figures) {
    assert_eq!(figures.ended, setting.workload.requests);
    let measured = setting.workload.requests - setting.workload.warm_up;
    assert_eq!(figures.measured, measured);
    assert_eq!(figures.left_over, 0, "somebody holds a slot or a place");
    assert_eq!(figures.over_limit, 0, "above max_in_flight");
}

#[test]
fn one_thread_is_an_mm1_queue() {
    for load in [0.5, 0.7] {
        let setting = open(1, load, EXPONENTIAL, Scheduling::InOrder);
        let figures = simulate(&setting, &policy(Balance::RoundRobin, None), 1);
        let due = 1000.0 / (1.0 - load);
        assert_within("mean response", figures.latency.mean_ms, due, 0.05);
        // Exponential, so every percentile is known.
        let latency = figures.latency;
        for (percent, share, at) in [
            ("p50", 0.5, latency.p50_ms),
            ("p95", 0.95, latency.p95_ms),
            ("p99", 0.99, latency.p99_ms),
        ] {
            assert_within(percent, at, -due * f64::ln(1.0 - share), 0.08);
        }
        assert_within("throughput", figures.per_second, load, 0.05);
        assert_conserved(&setting, &figures);
    }
}

#[test]
fn one_thread_is_an_mg1_queue_by_pollaczek_and_khinchine() {
    let service_time = ServiceTime::Mix {
        fast: 5 * MS,
        slow: 500 * MS,
        slow_share: 0.05,
    };
    let load = 0.6;
    let setting = open(1, load, service_time, Scheduling::InOrder);
    let figures = simulate(&setting, &policy(Balance::RoundRobin, None), 2);
    let (mean, square) = (29.75, 0.95 * 25.0 + 0.05 * 250_000.0);
    let due = mean + load / mean * square / (2.0 * (1.0 - load));
    assert_within("mean response", figures.latency.mean_ms, due, 0.05);
}

#[test]
fn sharing_depends_on_the_mean_alone() {
    let times = [
        ServiceTime::Fixed(S),
        EXPONENTIAL,
        ServiceTime::LogNormal {
            mean: S,
            sigma: 1.0,
        },
        ServiceTime::Mix {
            fast: 5 * MS,
            slow: 500 * MS,
            slow_share: 0.05,
        },
    ];
    for service_time in times {
        let load = 0.7;
        let setting = open(1, load, service_time, Scheduling::Shared);
        let figures = simulate(&setting, &policy(Balance::RoundRobin, None), 3);
        let due = service_time.mean().as_secs_f64() * 1e3 / (1.0 - load);
        assert_within("mean response", figures.latency.mean_ms, due, 0.05);
        assert_conserved(&setting, &figures);
    }
}

/// Probability of having to wait, by Erlang's second formula.
fn erlang_c(servers: u32, load: f64) -> f64 {
    let offered = load * f64::from(servers);
    // Erlang's first formula, by its recursion.
    let blocked = (1..=servers).fold(1.0, |blocked, count| {
        offered * blocked / (f64::from(count) + offered * blocked)
    });
    blocked / (1.0 - load * (1.0 - blocked))
}

#[test]
fn the_proxys_queue_is_erlangs() {
    assert_within("the formula itself", erlang_c(1, 0.7), 0.7, 1e-9);
    assert_within("the formula itself", erlang_c(2, 0.5), 1.0 / 3.0, 1e-9);
    for (servers, load) in [(3, 0.7), (10, 0.8)] {
        let mut setting = open(servers, load, EXPONENTIAL, Scheduling::InOrder);
        // One run is off by 3 % now and then: the mean of four is tested.
        let runs: Vec<Figures> = (1..=4)
            .map(|seed| simulate(&setting, &policy(Balance::RoundRobin, Some(1)), seed))
            .collect();
        let mean = |figure: fn(&Figures) -> f64| runs.iter().map(figure).sum::<f64>() / 4.0;
        let waiting = erlang_c(servers, load);
        let mean_wait = waiting * 1e3 / (f64::from(servers) * (1.0 - load));
        let simulated = mean(|run| run.waiting_share);
        assert_within("share waiting", simulated, waiting, 0.05);
        let simulated = mean(|run| run.wait.mean_ms);
        assert_within("mean wait", simulated, mean_wait, 0.05);
        let simulated = mean(|run| run.latency.mean_ms);
        assert_within("mean response", simulated, 1e3 + mean_wait, 0.05);
        // The choice of an endpoint, and the number of workers, do not affect the wait.
        setting.balancers = Balancers::Workers(4);
        for balance in [Balance::Random, Balance::ShortestQueue] {
            let figures = simulate(&setting, &policy(balance, Some(1)), 1);
            assert_within(
                "mean wait",
                figures.wait.mean_ms,
                runs[0].wait.mean_ms,
                1e-6,
            );
            assert_conserved(&setting, &figures);
        }
    }
}

/// Everything at once: retries, a hold, errors, timeouts, shared time.
fn troubled(arrivals: Arrivals, balancers: Balancers, queue_timeout: Duration) -> Setting {
    let mut setting = open(4, 0.9, EXPONENTIAL, Scheduling::InOrder);
    setting.workload = Workload {
        arrivals,
        service_time: ServiceTime::Exponential { mean: 20 * MS },
        requests: 20_000,
        warm_up: 100,
    };
    setting.origins[1].scheduling = Scheduling::Shared;
    setting.balancers = balancers;
    setting.queue_timeout = queue_timeout;
    let outage = |origin, from: u32, until: u32| Outage {
        origin,
        from: from * S,
        until: until * S,
        cold: 2 * S,
        warmth: 0.5,
    };
    setting.faults = (0..4)
        .flat_map(|origin| outage(origin, 5, 7).faults())
        .chain(outage(1, 12, 15).faults())
        .chain([Fault {
            origin: 2,
            at: 20 * S,
            condition: Condition::Failing { after: MS },
        }])
        .collect();
    setting
}

#[test]
fn every_request_ends_once_and_nothing_is_left() {
    let mut errors = [0; 4];
    for balance in [Balance::Random, Balance::RoundRobin, Balance::ShortestQueue] {
        for arrivals in [
            Arrivals::Closed { clients: 30 },
            Arrivals::Open { per_second: 180.0 },
        ] {
            for balancers in [
                Balancers::Workers(1),
                Balancers::Workers(3),
                Balancers::Proxies(3),
            ] {
                for (max_in_flight, timeout) in [(None, S), (Some(1), S), (Some(2), 60 * S)] {
                    let setting = troubled(arrivals, balancers, timeout);
                    let mut policy = policy(balance, max_in_flight);
                    policy.queue.max = 60;
                    let figures = simulate(&setting, &policy, 5);
                    assert_conserved(&setting, &figures);
                    for (sum, count) in errors.iter_mut().zip(figures.errors_by_end) {
                        *sum += count;
                    }
                }
            }
        }
    }
    assert!(errors.iter().all(|count| *count > 0), "{errors:?}");
}

#[test]
fn a_seed_decides_everything() {
    let arrivals = Arrivals::Open { per_second: 180.0 };
    let setting = troubled(arrivals, Balancers::Workers(2), S);
    let policy = policy(Balance::Random, Some(2));
    let first = simulate(&setting, &policy, 6);
    assert_eq!(first, simulate(&setting, &policy, 6));
    assert_ne!(first, simulate(&setting, &policy, 7));
}
