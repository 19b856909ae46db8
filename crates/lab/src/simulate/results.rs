//! The results of a scenario's runs.

use super::measure::Figures;

/// One run.
#[derive(Debug)]
pub struct Row {
    /// The balancer's name.
    pub balancer: &'static str,
    /// The settings besides the balancer.
    pub variant: &'static str,
    /// The results.
    pub figures: Figures,
}

/// The runs of one case.
#[derive(Debug)]
pub struct CaseResult {
    /// The case's name.
    pub name: &'static str,
    /// Its title.
    pub title: String,
    /// Variants in order, each with every balancer.
    pub rows: Vec<Row>,
}

/// The runs of one scenario.
#[derive(Debug)]
pub struct ScenarioResult {
    /// In order.
    pub cases: Vec<CaseResult>,
}

impl CaseResult {
    /// The variants in order.
    #[must_use]
    pub fn variants(&self) -> Vec<&'static str> {
        let mut variants: Vec<_> = self.rows.iter().map(|row| row.variant).collect();
        variants.dedup();
        variants
    }
}

impl ScenarioResult {
    /// One run's figures, if it was run.
    #[must_use]
    pub fn figures(&self, case: &str, balancer: &str, variant: &str) -> Option<&Figures> {
        let case = self.cases.iter().find(|it| it.name == case)?;
        let is_it = |row: &&Row| row.balancer == balancer && row.variant == variant;
        case.rows.iter().find(is_it).map(|row| &row.figures)
    }
}
