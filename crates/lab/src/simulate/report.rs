//! Tables of figures, with their requirements.

use std::fmt::Write as _;

use super::results::{CaseResult, ScenarioResult};
use super::scenarios::{Claim, Scenario};
use crate::bench::report::{Verdict, number};

impl CaseResult {
    /// The table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "\n{}   [{}]\n  {:<18}{:<22}{:>11}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}{:>9}{:>10}{:>10}\n",
            self.title,
            self.name,
            "",
            "",
            "answers/s",
            "mean ms",
            "p50 ms",
            "p95 ms",
            "p99 ms",
            "p99.9 ms",
            "max ms",
            "errors",
            "wait mean",
            "wait max",
        );
        for row in &self.rows {
            let figures = &row.figures;
            let _ = writeln!(
                text,
                "  {:<18}{:<22}{:>11}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}{:>8.2}%{:>10}{:>10}",
                row.balancer,
                row.variant,
                number(figures.per_second),
                number(figures.latency.mean_ms),
                number(figures.latency.p50_ms),
                number(figures.latency.p95_ms),
                number(figures.latency.p99_ms),
                number(figures.latency.p999_ms),
                number(figures.latency.max_ms),
                figures.error_share() * 100.0,
                number(figures.wait.mean_ms),
                number(figures.wait.max_ms),
            );
        }
        text
    }
}

impl ScenarioResult {
    /// Required figures beside the simulated ones.
    #[must_use]
    pub fn verdicts(&self, scenario: &Scenario) -> (String, Vec<Verdict>) {
        let mut text = String::new();
        let mut verdicts = Vec::new();
        for Claim { what, limit, value } in (scenario.claims)() {
            let Some(value) = value(self) else {
                let _ = writeln!(text, "    {what:<64}{:>10}   not run", "-");
                continue;
            };
            let verdict = Verdict {
                what,
                value,
                limit: Some(limit),
            };
            let (limit, word) = verdict.words();
            let value = number(value);
            let _ = writeln!(
                text,
                "    {:<64}{value:>10}   {limit:<16}{word}",
                verdict.what
            );
            verdicts.push(verdict);
        }
        (text, verdicts)
    }

    /// The p99 of every case in one table: a line for each, a column for each
    /// balancer.
    #[must_use]
    pub fn grid(&self) -> String {
        let Some(first) = self.cases.first() else {
            return String::new();
        };
        let mut text = String::from("\np99 in ms\n");
        let _ = write!(text, "  {:<40}", "");
        for row in &first.rows {
            let _ = write!(text, "{:>20}", row.balancer);
        }
        for case in &self.cases {
            let _ = write!(text, "\n  {:<40}", case.title);
            for row in &case.rows {
                let _ = write!(text, "{:>20}", number(row.figures.latency.p99_ms));
            }
        }
        text.push('\n');
        text
    }
}
