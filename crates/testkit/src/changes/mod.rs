//! The real program under load while it changes, and whether anything was lost.
//!
//! * [`reloads`]: its configuration, again and again.
//! * [`upgrades`]: the program itself.
//! * [`lists`]: lists of endpoints, by file, by name and by hand.
//! * [`large`]: a configuration of thousands of hosts.
//!
//! Each suite starts counting origins and the program before them ([`site`]). It runs clients
//! ([`load`]) that note every failure ([`ledger`]), and returns a [`Report`].
//! `tests/it/changes.rs` runs a small part of each, `evenkeel-lab changes` the whole.

pub mod clients;
pub mod counters;
pub mod large;
pub mod ledger;
pub mod lists;
pub mod load;
pub mod origin;
pub mod reloads;
pub mod site;
pub mod upgrades;

use std::fmt;

/// The limit of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// This, or less.
    AtMost(f64),
    /// This, or more.
    AtLeast(f64),
}

/// A figure of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The name of the figure.
    pub what: String,
    /// It.
    pub value: f64,
    /// `None` where it is only told.
    pub limit: Option<Limit>,
}

impl Finding {
    /// Whether it is as it must be.
    pub fn passes(&self) -> bool {
        match self.limit {
            None => true,
            Some(Limit::AtMost(most)) => self.value <= most,
            Some(Limit::AtLeast(least)) => self.value >= least,
        }
    }
}

/// The findings of a suite.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// The suite.
    pub title: String,
    /// Its figures.
    pub findings: Vec<Finding>,
    /// The first failures, in words.
    pub failures: Vec<String>,
}

impl Report {
    /// One without a figure yet.
    pub fn of(title: impl Into<String>) -> Self {
        Report {
            title: title.into(),
            ..Report::default()
        }
    }

    /// Adds a figure that is only told.
    pub fn tell(&mut self, what: impl Into<String>, value: impl Into<Figure>) {
        self.add(what, value, None);
    }

    /// Adds a figure that must be within a limit.
    pub fn require(&mut self, what: impl Into<String>, value: impl Into<Figure>, limit: Limit) {
        self.add(what, value, Some(limit));
    }

    /// Adds a count that must be 0.
    pub fn require_none(&mut self, what: impl Into<String>, value: impl Into<Figure>) {
        self.require(what, value, Limit::AtMost(0.0));
    }

    fn add(&mut self, what: impl Into<String>, value: impl Into<Figure>, limit: Option<Limit>) {
        self.findings.push(Finding {
            what: what.into(),
            value: value.into().0,
            limit,
        });
    }

    /// Whether every figure is as it must be.
    pub fn passes(&self) -> bool {
        self.findings.iter().all(Finding::passes)
    }
}

/// A number of a report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure(f64);

impl From<f64> for Figure {
    fn from(value: f64) -> Self {
        Figure(value)
    }
}

impl From<u64> for Figure {
    fn from(value: u64) -> Self {
        Figure(value as f64)
    }
}

impl From<u32> for Figure {
    fn from(value: u32) -> Self {
        Figure(f64::from(value))
    }
}

impl From<usize> for Figure {
    fn from(value: usize) -> Self {
        Figure(value as f64)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}", self.title)?;
        for finding in &self.findings {
            let value = match finding.value {
                value if value.fract() == 0.0 => format!("{value:.0}"),
                value => format!("{value:.3}"),
            };
            let limit = match finding.limit {
                None => String::new(),
                Some(Limit::AtMost(most)) => format!("at most {most}"),
                Some(Limit::AtLeast(least)) => format!("at least {least}"),
            };
            let verdict = if finding.passes() { "" } else { "  FAILS" };
            writeln!(out, "  {:<62}{value:>12}  {limit}{verdict}", finding.what)?;
        }
        for failure in &self.failures {
            writeln!(out, "    {failure}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_beyond_its_limit_fails() {
        let mut report = Report::of("it");
        report.tell("requests", 7_u64);
        report.require("memory", 1.05, Limit::AtMost(1.1));
        report.require("served", 3_u64, Limit::AtLeast(3.0));
        assert!(report.passes());
        report.require_none("failed", 1_u64);
        assert!(!report.passes());
        let shown = report.to_string();
        assert_eq!(shown.matches("FAILS").count(), 1, "{shown}");
    }
}
