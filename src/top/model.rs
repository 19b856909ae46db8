//! The state of the picture: the last figures, and the user's choices of view.

use std::time::{Duration, Instant};

use evenkeel::observe::rates::{EndpointRates, Rates, Traffic, UpstreamRates};

use crate::Colour;

/// How long a message stays.
const MESSAGE_TIME: Duration = Duration::from_secs(6);

/// The order of rows; the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// As in the configuration.
    Configuration,
    InFlight,
    Requests,
    Errors,
    Median,
    P99,
}

impl Sort {
    const ALL: [Sort; 6] = [
        Sort::Configuration,
        Sort::InFlight,
        Sort::Requests,
        Sort::Errors,
        Sort::Median,
        Sort::P99,
    ];

    /// So many further on.
    pub fn step(self, by: isize) -> Self {
        let index = Self::ALL.iter().position(|it| *it == self).unwrap_or(0);
        let count = Self::ALL.len() as isize;
        Self::ALL[(index as isize + by).rem_euclid(count) as usize]
    }

    fn key(self, in_flight: f64, traffic: &Traffic) -> f64 {
        match self {
            Sort::Configuration => 0.0,
            Sort::InFlight => in_flight,
            Sort::Requests => traffic.requests_per_s,
            Sort::Errors => traffic.errors_per_s,
            Sort::Median => traffic.p50_us.unwrap_or(-1.0),
            Sort::P99 => traffic.p99_us.unwrap_or(-1.0),
        }
    }
}

/// The object of a change: an endpoint, or all of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub upstream: String,
    /// `None` is the upstream's own row.
    pub endpoint: Option<String>,
}

impl Target {
    /// As commands have it.
    pub fn place(&self) -> String {
        format!(
            "{}/{}",
            self.upstream,
            self.endpoint.as_deref().unwrap_or("*")
        )
    }

    /// As a person reads it.
    pub fn words(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => format!("endpoint {}/{endpoint}", self.upstream),
            None => format!("all endpoints of upstream {}", self.upstream),
        }
    }
}

/// The present meaning of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    Table,
    Filter,
    /// A change waits for a yes.
    Confirm {
        verb: &'static str,
        target: Target,
    },
    /// A weight is being written.
    Weight {
        target: Target,
        digits: String,
    },
    Help,
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub enum Row<'a> {
    Upstream(&'a UpstreamRates),
    Endpoint(&'a UpstreamRates, &'a EndpointRates),
}

impl Row<'_> {
    /// The object of its changes.
    pub fn target(&self) -> Target {
        match self {
            Row::Upstream(upstream) => Target {
                upstream: upstream.name.clone(),
                endpoint: None,
            },
            Row::Endpoint(upstream, endpoint) => Target {
                upstream: upstream.name.clone(),
                endpoint: Some(endpoint.name.clone()),
            },
        }
    }

    fn is(&self, target: &Target) -> bool {
        match self {
            Row::Upstream(upstream) => {
                target.endpoint.is_none() && upstream.name == target.upstream
            }
            Row::Endpoint(upstream, endpoint) => {
                target.endpoint.as_ref() == Some(&endpoint.name) && upstream.name == target.upstream
            }
        }
    }
}

/// All of it.
#[derive(Debug)]
pub struct Model {
    pub colour: Colour,
    pub rates: Option<Box<Rates>>,
    /// Why there are no news, if there are none.
    pub lost: Option<String>,
    pub sort: Sort,
    pub filter: String,
    pub mode: Mode,
    selected: Option<Target>,
    /// Index of the first row shown.
    pub offset: usize,
    message: Option<(String, Instant)>,
}

impl Model {
    /// Nothing is known yet.
    pub fn new(colour: Colour) -> Self {
        Model {
            colour,
            rates: None,
            lost: None,
            sort: Sort::Configuration,
            filter: String::new(),
            mode: Mode::Table,
            selected: None,
            offset: 0,
            message: None,
        }
    }

    /// Takes new rates, or why there are none.
    pub fn news(&mut self, news: Result<Box<Rates>, String>) {
        match news {
            Err(error) => self.lost = Some(error),
            Ok(rates) => {
                let was_lost = self.lost.take().is_some();
                let before = self.rates.as_ref().map(|it| (it.pid, it.started_unix_ms));
                let is_new = before.is_some_and(|it| it != (rates.pid, rates.started_unix_ms));
                if is_new {
                    self.say(format!(
                        "the program was restarted, as process {}",
                        rates.pid
                    ));
                } else if was_lost {
                    self.say("connected again".to_owned());
                }
                self.rates = Some(rates);
            }
        }
    }

    /// Shows a message for a while.
    pub fn say(&mut self, text: String) {
        self.message = Some((text, Instant::now()));
    }

    /// The present message.
    pub fn message(&self) -> Option<&str> {
        self.message.as_ref().map(|(text, _)| text.as_str())
    }

    /// Takes a message away whose time is over, and says whether it did.
    pub fn forget(&mut self, now: Instant) -> bool {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= MESSAGE_TIME;
        let message = self.message.take_if(|(_, since)| is_over(*since));
        message.is_some()
    }

    /// The rows that the filter leaves, in order.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let Some(rates) = &self.rates else {
            return Vec::new();
        };
        let text = self.filter.to_lowercase();
        let has_text = |it: &str| it.to_lowercase().contains(&text);
        let mut rows = Vec::new();
        let mut upstreams: Vec<_> = rates.upstreams.iter().collect();
        by_key(&mut upstreams, |it| {
            self.sort.key(it.in_flight as f64, &it.traffic)
        });
        for upstream in upstreams {
            let is_meant = has_text(&upstream.name);
            let mut endpoints: Vec<_> = upstream
                .endpoints
                .iter()
                .filter(|it| is_meant || has_text(&it.name) || has_text(&it.state))
                .collect();
            if endpoints.is_empty() && !is_meant {
                continue;
            }
            by_key(&mut endpoints, |it| {
                self.sort.key(f64::from(it.in_flight), &it.traffic)
            });
            rows.push(Row::Upstream(upstream));
            rows.extend(endpoints.iter().map(|it| Row::Endpoint(upstream, it)));
        }
        rows
    }

    /// Index of the selected row: the first where the one selected is gone.
    pub fn selected(&self, rows: &[Row<'_>]) -> usize {
        let target = self.selected.as_ref();
        let found = target.and_then(|target| rows.iter().position(|row| row.is(target)));
        found.unwrap_or(0)
    }

    /// The object of the selected row.
    pub fn target(&self) -> Option<Target> {
        let rows = self.rows();
        rows.get(self.selected(&rows)).map(Row::target)
    }

    /// Goes so many rows down, or up.
    pub fn go(&mut self, by: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let index = self.selected(&rows).saturating_add_signed(by).min(last);
        self.selected = rows.get(index).map(Row::target);
    }
}

/// The largest first; a stable order, so that equals stay where they are.
fn by_key<T>(rows: &mut [&T], key: impl Fn(&T) -> f64) {
    rows.sort_by(|one, other| key(other).total_cmp(&key(one)));
}
