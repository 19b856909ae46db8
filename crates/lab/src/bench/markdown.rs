//! The table for `docs/benchmarks.md`.

use std::fmt::Write as _;

use super::machine::Machine;
use super::proxy::Kind;
use super::report::{CaseReport, Row, number};

const KINDS: [Kind; 4] = [Kind::Relay, Kind::Evenkeel, Kind::Nginx, Kind::Haproxy];

/// Everything measured, as Markdown.
#[must_use]
pub fn render(machine: &Machine, reports: &[CaseReport]) -> String {
    let mut text = format!("{}.\n\n", machine.line());
    text.push_str(
        "CPU time of the proxy per request in microseconds; one worker on one core; \
         medians. Ratios are medians of ratios within a round.\n\n\
         | case | relay | Evenkeel | nginx | HAProxy | Evenkeel / relay | / nginx | / HAProxy |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for report in reports {
        if report.rows.iter().all(|row| row.cpu_us().is_none()) {
            continue;
        }
        let _ = write!(text, "| {} |", report.title);
        for kind in KINDS {
            let _ = write!(text, " {} |", cell(report.row(kind).and_then(Row::cpu_us)));
        }
        for peer in [Kind::Relay, Kind::Nginx, Kind::Haproxy] {
            let _ = write!(text, " {} |", cell(report.cpu_ratio(Kind::Evenkeel, peer)));
        }
        text.push('\n');
    }
    text.push_str(
        "\nRequests per second.\n\n\
         | case | direct | relay | Evenkeel | nginx | HAProxy | failed (Evenkeel) |\n\
         |---|---:|---:|---:|---:|---:|---:|\n",
    );
    for report in reports {
        let _ = write!(text, "| {} |", report.title);
        for kind in [&[Kind::Direct][..], &KINDS].concat() {
            let row = report.row(kind);
            let _ = write!(
                text,
                " {} |",
                cell(row.map(|row| row.median(|at| at.per_second)))
            );
        }
        let failed = report
            .row(Kind::Evenkeel)
            .map(|row| row.failed().to_string());
        let _ = writeln!(text, " {} |", failed.unwrap_or_else(|| "-".into()));
    }
    text.push_str("\n| case | figure | value | required | |\n|---|---|---:|---:|---|\n");
    for report in reports {
        for verdict in report.verdicts.iter().filter(|at| at.limit.is_some()) {
            let (limit, word) = verdict.words();
            let value = number(verdict.value);
            let _ = writeln!(
                text,
                "| {} | {} | {value} | {limit} | {word} |",
                report.title, verdict.what
            );
        }
    }
    text
}

fn cell(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".into(), number)
}
