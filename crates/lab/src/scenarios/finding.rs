//! Requirements, measurements, and their output.

use std::fmt::Write as _;

use serde::Serialize;

use super::trial::{Series, Trial};
use crate::bench::report::{Limit, Round, Verdict, number};

/// A figure of Evenkeel, with its limit and the peers' figures.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// The name of the figure.
    pub what: String,
    /// `None` where nothing is required.
    pub limit: Option<Limit>,
    /// `None` if a needed entrant did not run.
    pub value: Option<f64>,
    /// Requests that failed during the measurement. With failures, a figure of the others says
    /// little.
    pub failed: u64,
    /// The same figure of others.
    pub beside: Vec<Beside>,
}

/// A peer's figure.
#[derive(Debug, Clone, Serialize)]
pub struct Beside {
    /// Whose it is.
    pub label: &'static str,
    /// The figure.
    pub value: f64,
}

/// The result of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// The figure keeps its limit, and nothing failed.
    Pass,
    /// The figure misses its limit, or requests failed.
    Fail,
    /// It was not measured.
    NotRun,
    /// Nothing is required.
    Shown,
}

impl Finding {
    /// A figure of `label` from `figure`, with the same figure of the others.
    pub fn new(
        what: impl Into<String>,
        limit: Option<Limit>,
        trial: &Trial,
        label: &str,
        others: &[&'static str],
        figure: impl Fn(&str) -> Option<f64>,
    ) -> Self {
        let beside = others.iter().filter_map(|&label| {
            let value = figure(label)?;
            Some(Beside { label, value })
        });
        Self {
            what: what.into(),
            limit,
            value: figure(label),
            failed: trial.failed(label),
            beside: beside.collect(),
        }
    }

    /// One about the failures themselves, which spoil no other figure.
    #[must_use]
    pub fn about_failures(mut self) -> Self {
        self.failed = 0;
        self
    }

    /// The result.
    #[must_use]
    pub fn mark(&self) -> Mark {
        let Some(value) = self.value else {
            return match self.limit {
                Some(_) => Mark::NotRun,
                None => Mark::Shown,
            };
        };
        match self.verdict(value).passes() {
            Some(true) if self.failed == 0 => Mark::Pass,
            Some(_) => Mark::Fail,
            None => Mark::Shown,
        }
    }

    fn verdict(&self, value: f64) -> Verdict {
        Verdict {
            what: self.what.clone(),
            value,
            limit: self.limit,
        }
    }

    fn line(&self) -> String {
        let (limit, _) = self.verdict(0.0).words();
        let value = self.value.map_or_else(|| "-".into(), number);
        let mark = match self.mark() {
            Mark::Pass => "PASS",
            Mark::Fail => "FAIL",
            Mark::NotRun => "NOT RUN",
            Mark::Shown => "",
        };
        let mut text = format!("{:<48}{limit:<16}{value:>9}  {mark:<8}", self.what);
        if self.failed > 0 {
            let _ = write!(text, "({} failed) ", self.failed);
        }
        let beside: Vec<String> = self
            .beside
            .iter()
            .map(|at| format!("{} {}", at.label, number(at.value)))
            .collect();
        text.push_str(&beside.join("; "));
        text.trim_end().to_owned()
    }
}

/// The results of a scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// As `--scenario` takes it.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The measurements.
    pub trials: Vec<Trial>,
    /// The requirements with their results.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether everything required was measured and is so.
    #[must_use]
    pub fn passes(&self) -> bool {
        let mut marks = self.findings.iter().map(Finding::mark);
        !marks.any(|mark| matches!(mark, Mark::Fail | Mark::NotRun))
    }

    /// The tables: figures, then findings.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!("\n{} {}\n", self.name, self.title);
        for trial in &self.trials {
            text.push_str(&figures(trial));
        }
        let head = format!("  {:<48}{:<16}{:>9}", "", "required", "measured");
        let _ = writeln!(text, "{head}  {:<8}beside", "");
        for finding in &self.findings {
            let _ = writeln!(text, "  {}", finding.line());
        }
        text
    }
}

/// The table of a trial: medians over the rounds, the longest of all, and the
/// machine's own longest stall.
fn figures(trial: &Trial) -> String {
    let mut text = format!(
        "\n  {}\n    {:<28}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}{:>8}{:>8}\n",
        trial.title,
        "",
        "req/s",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "max ms",
        "stall ms",
        "failed",
        "CPU us"
    );
    for series in &trial.series {
        if let Some(reason) = &series.refused {
            let _ = writeln!(text, "    {:<28}did not run: {reason}", series.label);
            continue;
        }
        let _ = writeln!(text, "    {}", row(trial, series));
    }
    text
}

fn row(trial: &Trial, series: &Series) -> String {
    let cell = |figure: Option<f64>| figure.map_or_else(|| "-".into(), number);
    let latency = |percent: f64| {
        let ms = |round: &Round| round.latency_us(percent).map(|us| us / 1e3);
        if percent >= 100.0 {
            cell(trial.worst(series.label, ms))
        } else {
            cell(trial.median(series.label, ms))
        }
    };
    format!(
        "{:<28}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}{:>8}{:>8}",
        series.label,
        cell(trial.median(series.label, |round| Some(round.per_second))),
        latency(50.0),
        latency(95.0),
        latency(99.0),
        latency(100.0),
        number(series.stall_ms),
        trial.failed(series.label),
        cell(trial.median(series.label, |round| round.cpu_us)),
    )
}

#[cfg(test)]
mod tests {
    use super::super::trial::tests::{round, trial};
    use super::super::trial::{latency_ms, throughput};
    use super::*;

    fn finding(limit: Option<Limit>, label: &'static str) -> Finding {
        let trial = trial(&[
            ("good", vec![round(10.0, 1.0, 2.0, 0)]),
            ("bad", vec![round(10.0, 1.0, 2.0, 3)]),
            ("absent", Vec::new()),
        ]);
        Finding::new("x", limit, &trial, label, &["bad", "absent"], |label| {
            trial.median(label, throughput)
        })
    }

    #[test]
    fn what_is_not_measured_or_fails_does_not_pass() {
        let low = Some(Limit::AtLeast(5.0));
        let high = Some(Limit::AtLeast(50.0));
        assert_eq!(finding(low, "good").mark(), Mark::Pass);
        assert_eq!(finding(high, "good").mark(), Mark::Fail);
        assert_eq!(finding(low, "bad").mark(), Mark::Fail);
        assert_eq!(finding(low, "bad").about_failures().mark(), Mark::Pass);
        assert_eq!(finding(low, "absent").mark(), Mark::NotRun);
        assert_eq!(finding(None, "absent").mark(), Mark::Shown);
    }

    #[test]
    fn peers_that_did_not_run_are_left_out() {
        let line = finding(Some(Limit::AtMost(5.0)), "good").line();
        assert!(line.contains("at most 5.00"), "{line}");
        assert!(line.ends_with("FAIL    bad 10.0"), "{line}");
    }

    #[test]
    fn the_table_says_why_something_did_not_run() {
        let trial = trial(&[("absent", Vec::new())]);
        assert!(trial.median("absent", latency_ms(50.0)).is_none());
        assert!(figures(&trial).contains("did not run: unknown key"));
    }
}
