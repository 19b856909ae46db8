//! Figures of a configuration that is in use.

use std::sync::Arc;
use std::time::Instant;

use evenkeel_metrics::family::{Reading, Value};
use evenkeel_metrics::{Detail, figures};

figures! {
    /// Figures of a configuration that is in use.
    figures GenerationFigures;
    /// A worker's counters for a configuration, updated once a second.
    cells GenerationCounters;
    /// Further facts of a configuration.
    given GenerationGiven;

    /// Number of configurations that came into force before it.
    given generation: u32;
    /// Its hash.
    given config: String;
    /// Whether it is kept as the way back until the one in force is confirmed.
    given kept_until_confirmed: bool;
    /// Time since it came into force, in milliseconds.
    given age_ms: u64;
    /// Time since it came into force.
    family gauge "age_seconds", |it| Reading::One(Value::Millis(it.age_ms));
    /// Exchanges that began with it and are still open.
    gauge exchanges => "exchanges";
    /// Tunnels among these exchanges.
    gauge tunnels => "tunnels";
}

/// A configuration that came into force and is still in use.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The number of its generation.
    pub generation: u32,
    /// Its hash, as it is shown.
    pub hash: String,
    /// When it came into force.
    pub since: Instant,
    /// The counters of each worker.
    pub counters: Vec<Arc<GenerationCounters>>,
}

impl LoadedConfig {
    /// Its figures. The caller sets whether it is kept as the way back.
    pub fn read(&self) -> GenerationFigures {
        let given = GenerationGiven {
            generation: self.generation,
            config: self.hash.clone(),
            kept_until_confirmed: false,
            age_ms: self.since.elapsed().as_millis() as u64,
        };
        given.with(self.counters.iter().map(|it| &**it), Detail::Full)
    }
}
