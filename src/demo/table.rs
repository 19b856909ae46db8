//! The demo's table: what each endpoint did in the last second, and how long
//! its answers took over the last ten.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::clients::{CLIENTS, Outcome};

/// Seconds over which latency is shown: a second of the slowest endpoint has
/// too few answers for a percentile.
const LATENCY_SECONDS: usize = 10;
/// Latencies above this are shown alike, in microseconds.
const MAX_US: u64 = 60_000_000;

/// Latencies in microseconds, per endpoint.
type Latencies = Vec<Histogram<u64>>;

/// The figures and how they are drawn.
#[derive(Debug)]
pub struct Table {
    names: Vec<String>,
    /// Heading of the rates.
    rate: &'static str,
    /// The line below the figures, if there is one.
    note: String,
    began: Instant,
    answers: u64,
    failures: u64,
    /// The seconds shown, the one that is going on in front.
    seconds: VecDeque<Latencies>,
    second_began: Instant,
    /// Sums over the looks of this second, per endpoint.
    in_flight: Vec<u64>,
    looks: u64,
    /// Lines to go back over; `None` where nothing is redrawn.
    redraws: Option<usize>,
}

impl Table {
    /// An empty table with a row for each of `names`; `rate` heads the rates.
    ///
    /// # Errors
    /// No memory.
    pub fn new(names: Vec<String>, rate: &'static str) -> io::Result<Self> {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_terminal = io::stdout().is_terminal() && !is_dumb;
        let mut table = Table {
            began: Instant::now(),
            answers: 0,
            failures: 0,
            seconds: VecDeque::new(),
            second_began: Instant::now(),
            in_flight: vec![0; names.len()],
            looks: 0,
            redraws: is_terminal.then_some(0),
            names,
            rate,
            note: String::new(),
        };
        table.begin_second()?;
        Ok(table)
    }

    fn begin_second(&mut self) -> io::Result<()> {
        let latencies = self
            .names
            .iter()
            .map(|_| empty())
            .collect::<Result<_, _>>()?;
        self.seconds.push_front(latencies);
        self.seconds.truncate(LATENCY_SECONDS);
        self.second_began = Instant::now();
        self.in_flight.fill(0);
        self.looks = 0;
        Ok(())
    }

    /// Shows a line below the figures.
    pub fn set_note(&mut self, note: String) {
        self.note = note;
    }

    /// Notes the present exchanges in flight at each endpoint.
    pub fn look(&mut self, in_flight: impl Iterator<Item = u32>) {
        for (sum, now) in self.in_flight.iter_mut().zip(in_flight) {
            *sum += u64::from(now);
        }
        self.looks += 1;
    }

    /// Counts the outcome of a request.
    pub fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Answered { origin, latency } => {
                self.answers += 1;
                let us = u64::try_from(latency.as_micros()).unwrap_or(MAX_US);
                self.seconds[0][origin].saturating_record(us);
            }
            Outcome::Failed => self.failures += 1,
        }
    }

    /// Draws the second that is over, and begins the next.
    ///
    /// On a terminal it replaces the last second, elsewhere it follows it.
    ///
    /// # Errors
    /// `out` is closed.
    pub fn draw(&mut self, out: &mut impl Write) -> io::Result<()> {
        let text = self.text()?;
        if let Some(lines) = &mut self.redraws {
            if *lines > 0 {
                // Up so many lines, then erase to the end of the screen.
                write!(out, "\x1b[{lines}F\x1b[J")?;
            }
            *lines = text.lines().count();
        }
        out.write_all(text.as_bytes())?;
        if self.redraws.is_none() {
            writeln!(out)?;
        }
        out.flush()?;
        self.begin_second()
    }

    fn text(&self) -> io::Result<String> {
        let elapsed = self.second_began.elapsed();
        let mut text = format!(
            "{:26}{:>24}{:>26}\n{:<26}{:>14}{:>10}{:>13}{:>13}\n",
            "", "last second", "last 10 seconds", "endpoint", self.rate, "in flight", "mean", "p99",
        );
        let mut all = (empty()?, 0, 0);
        for (index, name) in self.names.iter().enumerate() {
            let mut latencies = empty()?;
            for second in &self.seconds {
                latencies += &second[index];
            }
            let answers = self.seconds[0][index].len();
            let in_flight = self.in_flight[index];
            text += &self.row(name, answers, in_flight, &latencies, elapsed);
            all.0 += &latencies;
            all.1 += answers;
            all.2 += in_flight;
        }
        text += &self.row("all", all.1, all.2, &all.0, elapsed);
        text += &format!(
            "{CLIENTS} clients, {} s: {} answers, {} failures\n",
            self.began.elapsed().as_secs(),
            self.answers,
            self.failures
        );
        if !self.note.is_empty() {
            text += &format!("{}\n", self.note);
        }
        Ok(text)
    }

    fn row(
        &self,
        name: &str,
        answers: u64,
        in_flight: u64,
        latencies: &Histogram<u64>,
        elapsed: Duration,
    ) -> String {
        let per_second = answers as f64 / elapsed.as_secs_f64();
        let in_flight = in_flight as f64 / self.looks.max(1) as f64;
        let (mean, p99) = if latencies.is_empty() {
            ("-".to_owned(), "-".to_owned())
        } else {
            (
                milliseconds(latencies.mean()),
                milliseconds(latencies.value_at_quantile(0.99) as f64),
            )
        };
        format!("{name:<26}{per_second:>14.0}{in_flight:>10.1}{mean:>13}{p99:>13}\n")
    }
}

fn empty() -> io::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, MAX_US, 3).map_err(io::Error::other)
}

fn milliseconds(us: f64) -> String {
    format!("{:.1} ms", us / 1e3)
}
