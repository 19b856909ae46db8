//! The scenarios and their requirements.
//!
//! Requirements here for `shortest-queue`, and for settings without a guard, apply on real
//! sockets to `adaptive`, the default. They are not repeated: see [`crate::scenarios`].
//! Scenarios that need sockets (the cost of tiny pages, the cost of a pick) are not here.

mod capacity;
mod faults;
mod pages;
mod scale;

use std::time::Duration;

use super::measure::Figures;
use super::origin::{Scheduling, Shape};
use super::policies::Variant;
use super::proxy::Balancers;
use super::results::ScenarioResult;
use super::setting::Setting;
use super::workload::Workload;
use crate::bench::report::Limit;

/// A question, and the runs that answer it.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// As `--scenario` takes it.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The runs.
    pub cases: fn() -> Vec<Case>,
    /// Its requirements.
    pub claims: fn() -> Vec<Claim>,
}

/// One setting, in which every balancer runs in every variant.
#[derive(Debug, Clone)]
pub struct Case {
    /// Short.
    pub name: &'static str,
    /// As the table shows it.
    pub title: String,
    /// Everything but the policy.
    pub setting: Setting,
    /// The settings besides the balancer.
    pub variants: Vec<Variant>,
}

/// A figure that is required.
pub struct Claim {
    /// The name of the figure.
    pub what: String,
    /// The limit of the figure.
    pub limit: Limit,
    /// The figure.
    pub value: Value,
}

/// A figure made of those of some runs, where these were made.
pub type Value = Box<dyn Fn(&ScenarioResult) -> Option<f64>>;

/// All scenarios, in the order in which they run.
pub const ALL: &[Scenario] = &[
    capacity::S1,
    capacity::S2,
    pages::S3,
    faults::S5,
    faults::S6,
    scale::SCALE,
];

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
/// Service time of a page, unless a scenario says otherwise.
const PAGE: Duration = Duration::from_millis(20);

fn claim(
    what: impl Into<String>,
    limit: Limit,
    value: impl Fn(&ScenarioResult) -> Option<f64> + 'static,
) -> Claim {
    Claim {
        what: what.into(),
        limit,
        value: Box::new(value),
    }
}

/// A balancer in a variant.
type Entrant = (&'static str, Variant);

/// How a figure of one entrant in this case relates to that of another.
fn ratio(
    case: &'static str,
    over: Entrant,
    under: Entrant,
    figure: impl Fn(&Figures) -> f64 + 'static,
) -> impl Fn(&ScenarioResult) -> Option<f64> + 'static {
    move |result| {
        let of = |(balancer, variant): Entrant| result.figures(case, balancer, variant.label);
        Some(figure(of(over)?) / figure(of(under)?))
    }
}

fn per_second(figures: &Figures) -> f64 {
    figures.per_second
}

fn p99_ms(figures: &Figures) -> f64 {
    figures.latency.p99_ms
}

fn threads(threads: u32, speed: f64) -> Shape {
    Shape {
        threads,
        speed,
        scheduling: Scheduling::InOrder,
    }
}

fn setting(origins: Vec<Shape>, workload: Workload) -> Setting {
    Setting {
        origins,
        faults: Vec::new(),
        workload,
        balancers: Balancers::Workers(2),
        retries: 2,
        queue_timeout: 60 * S,
    }
}

/// Arrivals a second that keep the origins busy for `load` of the time.
fn rate(origins: &[Shape], load: f64, mean: Duration) -> f64 {
    let capacity: f64 = origins
        .iter()
        .map(|origin| f64::from(origin.threads) * origin.speed)
        .sum();
    load * capacity / mean.as_secs_f64()
}
