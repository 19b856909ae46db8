//! `show generations`: the configurations in use.

use std::fmt::Write;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::answer::{Answer, Format};
use super::super::table::Table;
use crate::metrics::quantity::span;
use crate::observe::figures::{GenerationFigures, Sources};

/// A configuration in use.
#[derive(Debug, Serialize)]
struct GenerationView {
    #[serde(flatten)]
    figures: GenerationFigures,
    /// The pending rollback of the configuration in force, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    unconfirmed: Option<UnconfirmedView>,
}

/// The rollback of an unconfirmed configuration.
#[derive(Debug, Serialize)]
struct UnconfirmedView {
    /// Time until the rollback.
    reverts_in_ms: u64,
    /// The configuration that would come back.
    reverts_to: String,
}

pub(in super::super) fn generations(sources: &Sources, format: Format) -> Answer {
    let mut unconfirmed = sources.reloads.unconfirmed().map(|it| {
        let time = it.until.saturating_duration_since(Instant::now());
        UnconfirmedView {
            reverts_in_ms: time.as_millis() as u64,
            reverts_to: it.back_to,
        }
    });
    let views = sources
        .reloads
        .alive()
        .into_iter()
        .map(|it| GenerationView {
            figures: it,
            // The newest comes first.
            unconfirmed: unconfirmed.take(),
        });
    let views: Vec<_> = views.collect();
    format.show(&views, |views| generations_text(views))
}

fn generations_text(views: &[GenerationView]) -> String {
    let mut table = Table::new(&[
        "GENERATION",
        "CONFIGURATION",
        ">AGE",
        ">EXCHANGES",
        ">TUNNELS",
    ]);
    for GenerationView { figures: it, .. } in views {
        table.row([
            it.generation.to_string(),
            it.config.clone(),
            span(Duration::from_millis(it.age_ms)),
            it.exchanges.to_string(),
            it.tunnels.to_string(),
        ]);
    }
    let mut text = table.text(0);
    for view in views {
        if view.figures.kept_until_confirmed {
            // Writing to a string can't fail.
            let _ = writeln!(
                text,
                "generation {} is kept until generation {} is confirmed",
                view.figures.generation, views[0].figures.generation
            );
        }
        if let Some(unconfirmed) = &view.unconfirmed {
            let time = span(Duration::from_millis(unconfirmed.reverts_in_ms));
            let _ = writeln!(
                text,
                "generation {} waits for `evenkeel confirm`: without it, configuration {} comes \
                 back in {time}",
                view.figures.generation, unconfirmed.reverts_to
            );
        }
    }
    text
}
