//! The plots of a scenario.

use std::io;
use std::path::Path;

use super::measure::Figures;
use super::policies;
use super::results::{Row, ScenarioResult};
use crate::bench::plot::{Line, Max, PlotSpan, grouped_bars, percentiles};

/// Draws latency by percentile for every case and variant, and throughput,
/// p99 and errors of all of them as bars.
///
/// # Errors
/// The files can't be written.
pub fn draw(name: &str, result: &ScenarioResult, folder: &Path) -> io::Result<()> {
    for case in &result.cases {
        for variant in case.variants() {
            let rows = case.rows.iter().filter(|row| row.variant == variant);
            let lines: Vec<_> = rows.map(curve).collect();
            let subtitle = format!("{}; {variant}; simulated, lower is better", case.title);
            let file = format!("{name}-{}-{}", word(case.name), word(variant));
            let title = format!("{name}: latency by percentile");
            let span = PlotSpan {
                nines: 4,
                max: Max::Shown,
            };
            percentiles(&file, [&title, &subtitle], &lines, span, folder)?;
        }
    }
    let p99 = |figures: &Figures| figures.latency.p99_ms;
    let per_second = |figures: &Figures| figures.per_second;
    let errors = |figures: &Figures| figures.error_share() * 100.0;
    draw_bars(name, "p99", "ms", result, folder, p99)?;
    draw_bars(name, "answers", "/s", result, folder, per_second)?;
    draw_bars(name, "errors", "%", result, folder, errors)
}

fn curve(row: &Row) -> Line<'_> {
    let points = row.figures.percentiles.iter();
    Line {
        label: row.balancer,
        colour: policies::colour(row.balancer),
        points: points.map(|at| (at.percent, at.latency_us)).collect(),
    }
}

fn draw_bars(
    name: &str,
    what: &str,
    unit: &str,
    result: &ScenarioResult,
    folder: &Path,
    value: impl Fn(&Figures) -> f64,
) -> io::Result<()> {
    let mut groups = Vec::new();
    let mut lines: Vec<Line<'_>> = Vec::new();
    for case in &result.cases {
        for variant in case.variants() {
            for row in case.rows.iter().filter(|row| row.variant == variant) {
                let point = (groups.len() as f64, value(&row.figures));
                match lines.iter_mut().find(|it| it.label == row.balancer) {
                    Some(line) => line.points.push(point),
                    None => lines.push(Line {
                        points: vec![point],
                        ..curve(row)
                    }),
                }
            }
            groups.push(format!("{}, {variant}", case.name));
        }
    }
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let title = format!("{name}: {what}");
    let subtitle = "every case and variant; simulated";
    let file = format!("{name}-{what}");
    grouped_bars(&file, [&title, subtitle], unit, &groups, &lines, folder)
}

/// As a part of a file's name.
fn word(text: &str) -> String {
    let dash = |char: char| if char.is_alphanumeric() { char } else { '-' };
    text.chars().map(dash).collect()
}
