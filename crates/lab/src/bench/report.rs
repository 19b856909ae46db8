//! The results of a case, and their output: table, JSON, Markdown.

use std::fmt::Write as _;

use serde::Serialize;

use super::process::Memory;
use super::proxy::Kind;
use crate::load::Percentile;

/// One run of one proxy.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Round {
    /// CPU time of the proxy per answered request, in microseconds.
    pub cpu_us: Option<f64>,
    /// Right answers per second.
    pub per_second: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Answers that were right.
    pub answered: u64,
    /// Requests that failed.
    pub failed: u64,
    /// From the median outwards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub percentiles: Vec<Percentile>,
    /// How far apart the cores of proxy and load were when it began, in
    /// nanoseconds, where that was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_distance_ns: Option<u64>,
}

impl Round {
    /// Latency at one of the percentiles kept, in microseconds.
    #[must_use]
    pub fn latency_us(&self, percent: f64) -> Option<f64> {
        let mut kept = self.percentiles.iter();
        kept.find(|at| (at.percent - percent).abs() < 1e-9)
            .map(|at| at.latency_us)
    }
}

/// One proxy's figures in one case.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Which proxy.
    pub proxy: Kind,
    /// In the order in which they ran.
    pub rounds: Vec<Round>,
    /// Before the load and with it, where the case measures memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<[Memory; 2]>,
}

impl Row {
    /// The median over the rounds of one figure.
    pub fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(figure).collect())
    }

    /// The median CPU time per request, in microseconds.
    #[must_use]
    pub fn cpu_us(&self) -> Option<f64> {
        let rounds: Vec<f64> = self.rounds.iter().filter_map(|at| at.cpu_us).collect();
        (!rounds.is_empty()).then(|| median(rounds))
    }

    /// The median latency at `percent`, in microseconds.
    #[must_use]
    pub fn latency_us(&self, percent: f64) -> Option<f64> {
        let rounds: Vec<f64> = self
            .rounds
            .iter()
            .filter_map(|round| round.latency_us(percent))
            .collect();
        (!rounds.is_empty()).then(|| median(rounds))
    }

    /// Failed requests over all rounds.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.rounds.iter().map(|round| round.failed).sum()
    }
}

/// A figure with its requirement.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// The name of the figure.
    pub what: String,
    /// The figure.
    pub value: f64,
    /// `None` where nothing is required.
    pub limit: Option<Limit>,
}

/// The limit of a figure.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Not more than this.
    AtMost(f64),
    /// Not less than this.
    AtLeast(f64),
}

impl Verdict {
    /// Whether the figure is as required; `None` where nothing is.
    #[must_use]
    pub fn passes(&self) -> Option<bool> {
        Some(match self.limit? {
            Limit::AtMost(limit) => self.value <= limit,
            Limit::AtLeast(limit) => self.value >= limit,
        })
    }

    /// The requirement in words, and whether it holds.
    #[must_use]
    pub fn words(&self) -> (String, &'static str) {
        let word = match self.passes() {
            Some(true) => "PASS",
            Some(false) => "FAIL",
            None => "",
        };
        let limit = match self.limit {
            Some(Limit::AtMost(limit)) => format!("at most {}", number(limit)),
            Some(Limit::AtLeast(limit)) => format!("at least {}", number(limit)),
            None => String::new(),
        };
        (limit, word)
    }

    fn text(&self) -> String {
        let (limit, word) = self.words();
        let text = format!(
            "{:<34}{:>10}   {limit:<16}{word}",
            self.what,
            number(self.value)
        );
        text.trim_end().to_owned()
    }
}

/// One case's figures.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// The case's name.
    pub name: String,
    /// Its title.
    pub title: String,
    /// One for each proxy.
    pub rows: Vec<Row>,
    /// The requirements, and comparisons without one.
    pub verdicts: Vec<Verdict>,
}

impl CaseReport {
    /// Whether everything required holds.
    #[must_use]
    pub fn passes(&self) -> bool {
        let mut verdicts = self.verdicts.iter();
        verdicts.all(|verdict| verdict.passes() != Some(false))
    }

    /// Adds the requirement that none of Evenkeel's requests failed.
    pub fn require_none_failed(&mut self) {
        if let Some(row) = self.row(Kind::Evenkeel) {
            let value = row.failed() as f64;
            self.verdicts.push(Verdict {
                what: format!("failed, {}", Kind::Evenkeel),
                value,
                limit: Some(Limit::AtMost(0.0)),
            });
        }
    }

    /// One proxy's row.
    #[must_use]
    pub fn row(&self, proxy: Kind) -> Option<&Row> {
        self.rows.iter().find(|row| row.proxy == proxy)
    }

    /// The median over the rounds of a ratio of CPU times per request.
    #[must_use]
    pub fn cpu_ratio(&self, over: Kind, under: Kind) -> Option<f64> {
        self.ratio(over, under, |round| round.cpu_us)
    }

    /// The median over the rounds of a ratio of two proxies' figures.
    pub fn ratio(
        &self,
        over: Kind,
        under: Kind,
        figure: impl Fn(&Round) -> Option<f64>,
    ) -> Option<f64> {
        let (over, under) = (self.row(over)?, self.row(under)?);
        let ratios: Vec<f64> = over
            .rounds
            .iter()
            .zip(&under.rounds)
            .filter_map(|(over, under)| Some(figure(over)? / figure(under)?))
            .collect();
        (!ratios.is_empty()).then(|| median(ratios))
    }

    /// The table of the case.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "\n{}   [{}]\n  {:<10}{:>12}{:>12}{:>11}{:>11}{:>11}{:>8}\n",
            self.title,
            self.name,
            "",
            "CPU us/req",
            "requests/s",
            "mean us",
            "p50 us",
            "p99 us",
            "failed"
        );
        let cell = |figure: Option<f64>| figure.map_or_else(|| "-".into(), number);
        for row in &self.rows {
            let _ = writeln!(
                text,
                "  {:<10}{:>12}{:>12}{:>11}{:>11}{:>11}{:>8}",
                row.proxy,
                cell(row.cpu_us()),
                number(row.median(|round| round.per_second)),
                number(row.median(|round| round.mean_us)),
                cell(row.latency_us(50.0)),
                cell(row.latency_us(99.0)),
                row.failed(),
            );
        }
        for verdict in &self.verdicts {
            let _ = writeln!(text, "    {}", verdict.text());
        }
        text
    }
}

/// The median; of an even count the mean of the two in the middle.
#[must_use]
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => 0.0,
        len if len % 2 == 1 => figures[middle],
        _ => f64::midpoint(figures[middle - 1], figures[middle]),
    }
}

/// A figure with its significant digits.
#[must_use]
pub fn number(value: f64) -> String {
    if value == 0.0 {
        "0".into()
    } else if value.abs() < 10.0 {
        format!("{value:.2}")
    } else if value.abs() < 1000.0 {
        format!("{value:.1}")
    } else {
        grouped(value.round() as i64)
    }
}

fn grouped(value: i64) -> String {
    let digits = value.abs().to_string();
    let mut text = String::new();
    if value < 0 {
        text.push('-');
    }
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
