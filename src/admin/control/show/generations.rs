//! `show generations`: the configurations that are in use.

use std::time::Duration;

use super::super::answer::{Answer, Format};
use super::super::table::Table;
use crate::metrics::quantity::span;
use crate::observe::figures::{GenerationFigures, LoadedConfig, Sources};

pub(in super::super) fn generations(sources: &Sources, format: Format) -> Answer {
    let figures = sources.reloads.alive();
    let figures: Vec<_> = figures.iter().map(LoadedConfig::read).collect();
    format.show(&figures, |figures| generations_text(figures))
}

fn generations_text(figures: &[GenerationFigures]) -> String {
    let mut table = Table::new(&[
        "GENERATION",
        "CONFIGURATION",
        ">AGE",
        ">EXCHANGES",
        ">TUNNELS",
    ]);
    for it in figures {
        table.row([
            it.generation.to_string(),
            it.config.clone(),
            span(Duration::from_millis(it.age_ms)),
            it.exchanges.to_string(),
            it.tunnels.to_string(),
        ]);
    }
    table.text(0)
}
