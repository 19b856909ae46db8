//! `show generations`: the configurations that are in use.

use std::fmt::Write;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::answer::{Answer, Format};
use super::super::table::Table;
use crate::metrics::quantity::span;
use crate::observe::figures::{GenerationFigures, Sources};

/// A configuration that is in use.
#[derive(Debug, Serialize)]
struct GenerationView {
    #[serde(flatten)]
    figures: GenerationFigures,
    /// Of the one in force, where it goes back by itself unless it is confirmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    unconfirmed: Option<UnconfirmedView>,
}

/// What becomes of a configuration that is not confirmed.
#[derive(Debug, Serialize)]
struct UnconfirmedView {
    /// Time until then.
    reverts_in_ms: u64,
    /// The configuration that comes back.
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
            // A text takes all that is written to it.
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
                "generation {} waits to be confirmed: configuration {} comes back in {time}",
                view.figures.generation, unconfirmed.reverts_to
            );
        }
    }
    text
}
