//! `show generations`: the configurations that are in use.

use std::time::Duration;

use serde::Serialize;

use super::super::answer::{Answer, Format};
use super::super::table::Table;
use super::silence;
use crate::metrics::quantity::span;
use crate::observe::figures::Sources;
use crate::observe::inquiry::{Question, ask};

/// A configuration that is in use.
#[derive(Debug, Serialize)]
struct GenerationView {
    generation: u32,
    config: String,
    age_ms: u64,
    /// Connections whose exchange began with it.
    connections: usize,
}

pub(in super::super) async fn generations(sources: &Sources, format: Format) -> Answer {
    let asked = ask(&sources.inquiries, Question::Generations).await;
    let held: Vec<_> = asked.answers.into_iter().flatten().collect();
    let views = sources.reloads.alive().into_iter().map(|it| {
        let of_it = held.iter().filter(|held| held.number == it.generation);
        GenerationView {
            generation: it.generation,
            config: it.hash,
            age_ms: it.since.elapsed().as_millis() as u64,
            connections: of_it.map(|held| held.connections).sum(),
        }
    });
    let views: Vec<_> = views.collect();
    let silent = asked.silent;
    format.show(&views, |views| generations_text(views) + &silence(silent))
}

fn generations_text(views: &[GenerationView]) -> String {
    let mut table = Table::new(&["GENERATION", "CONFIGURATION", ">AGE", ">CONNECTIONS"]);
    for view in views {
        table.row([
            view.generation.to_string(),
            view.config.clone(),
            span(Duration::from_millis(view.age_ms)),
            view.connections.to_string(),
        ]);
    }
    table.text(0)
}
