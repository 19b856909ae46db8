//! The plots: latency by percentile, and CPU time per request.

use std::io;
use std::path::Path;

use super::canvas::{Anchor, BOTTOM, Canvas, FAINT, GRID, HEIGHT, INK, LEFT, RIGHT, TOP, WIDTH};
use super::proxy::Kind;
use super::report::{CaseReport, Row};

/// The highest percentile of a benchmark's plot.
const PERCENT_MAX: f64 = 99.99;
/// Colours for lines that belong to no proxy of the benchmark.
pub const COLOURS: [&str; 7] = [
    "#0b6bcb", "#d9730d", "#2f9e5b", "#8250b5", "#c2334d", "#00858f", "#9aa5b1",
];

fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Direct => "#9aa5b1",
        Kind::Relay => "#616e7c",
        Kind::Evenkeel => "#0b6bcb",
        Kind::Nginx => "#2f9e5b",
        Kind::Haproxy => "#d9730d",
        // In no plot.
        Kind::Unobserved | Kind::Observed | Kind::NginxThreads | Kind::Lighttpd | Kind::Fio => {
            "#000000"
        }
    }
}

/// Draws a case's latency by percentile, one line for each proxy.
///
/// # Errors
/// The files can't be written.
pub fn latency(report: &CaseReport, folder: &Path) -> io::Result<()> {
    let lines: Vec<Line> = report
        .rows
        .iter()
        .map(|row| Line {
            label: row.proxy.label(),
            colour: colour(row.proxy),
            points: curve(row, PERCENT_MAX),
        })
        .collect();
    let subtitle = format!("{}; median of the rounds, lower is better", report.title);
    let titles = ["Latency by percentile", &subtitle];
    percentiles(
        "latency",
        titles,
        &lines,
        PlotSpan {
            nines: 4,
            max: Max::Cut,
        },
        folder,
    )
}

/// One line of a plot by percentile.
#[derive(Debug)]
pub struct Line<'a> {
    /// As the legend calls it.
    pub label: &'a str,
    /// As SVG takes it.
    pub colour: &'a str,
    /// Percentile and microseconds.
    pub points: Vec<(f64, f64)>,
}

/// The highest percentile of a plot.
#[derive(Debug, Clone, Copy)]
pub struct PlotSpan {
    /// The last on the logarithmic scale: 4 is 99.99 %.
    pub nines: i32,
    /// Whether the longest of all follows.
    pub max: Max,
}

/// Whether a plot shows the longest of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Max {
    /// At the right edge, as 100 %.
    Shown,
    /// It doesn't.
    Cut,
}

/// Draws lines of latency by percentile, under a title and a subtitle.
///
/// # Errors
/// The files can't be written.
pub fn percentiles(
    name: &str,
    [title, subtitle]: [&str; 2],
    lines: &[Line],
    span: PlotSpan,
    folder: &Path,
) -> io::Result<()> {
    let lines: Vec<&Line> = lines.iter().filter(|line| line.points.len() > 1).collect();
    if lines.is_empty() {
        return Ok(());
    }
    let mut canvas = Canvas::new(title, subtitle);
    let axes = Axes::of(&lines, span);
    axes.draw(&mut canvas);
    let legend: Vec<_> = lines.iter().map(|line| (line.label, line.colour)).collect();
    canvas.legend(&legend);
    for line in lines {
        let points: Vec<(f64, f64)> = line
            .points
            .iter()
            .map(|(percent, latency_us)| (axes.x(*percent), axes.y(*latency_us)))
            .collect();
        canvas.path(&points, line.colour);
    }
    canvas.write(folder, name)
}

/// Axes of percentiles and latency, both logarithmic. A percentile is placed by its distance to
/// 100.
struct Axes {
    /// The exponents of the least and the greatest latency shown.
    decades: (i32, i32),
    span: PlotSpan,
}

impl Axes {
    fn of(lines: &[&Line], span: PlotSpan) -> Self {
        let all = lines.iter().flat_map(|line| &line.points);
        let (low, high) = all.fold((f64::MAX, 0.0f64), |(low, high), (_, latency_us)| {
            (low.min(*latency_us), high.max(*latency_us))
        });
        let from = low.max(1.0).log10().floor() as i32;
        let until = high.max(10.0).log10().ceil() as i32;
        Self {
            decades: (from, until.max(from + 1)),
            span,
        }
    }

    /// 100 % lies infinitely far to the right: where it is shown, it takes the
    /// place of the edge.
    fn x(&self, percent: f64) -> f64 {
        /// Factors of ten between the last percentile and 100 %.
        const GAP: f64 = 0.4;
        let log_of_rest = |percent: f64| -(1.0 - percent / 100.0).log10();
        let from = log_of_rest(50.0);
        let last = f64::from(self.span.nines);
        let edge = match self.span.max {
            Max::Shown => last + GAP,
            Max::Cut => last,
        };
        let share = (log_of_rest(percent).min(edge) - from) / (edge - from);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, latency_us: f64) -> f64 {
        let (from, until) = (f64::from(self.decades.0), f64::from(self.decades.1));
        let share = (latency_us.max(1.0).log10() - from) / (until - from);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    fn draw(&self, canvas: &mut Canvas) {
        let bottom = HEIGHT - BOTTOM;
        let mut percents = vec![50.0];
        percents.extend((1..=self.span.nines).map(|nines| 100.0 - 10f64.powi(2 - nines)));
        if self.span.max == Max::Shown {
            percents.push(100.0);
        }
        for percent in percents {
            let x = self.x(percent);
            canvas.line((x, TOP), (x, bottom), GRID);
            // As short as it can be, and not what rounding leaves of it.
            let label = format!("{} %", (percent * 1e6).round() / 1e6);
            canvas.text(x, bottom + 22.0, Anchor::Middle, 13.0, FAINT, &label);
        }
        let highest = 10f64.powi(self.decades.1);
        for decade in self.decades.0..=self.decades.1 {
            let values = [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(decade));
            for value in values.into_iter().filter(|value| *value <= highest) {
                let y = self.y(value);
                canvas.line((LEFT, y), (WIDTH - RIGHT, y), GRID);
                let label = duration(value);
                canvas.text(LEFT - 8.0, y + 4.5, Anchor::End, 13.0, FAINT, &label);
            }
        }
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        let label = "share of requests answered within the time";
        canvas.text(middle, HEIGHT - 24.0, Anchor::Middle, 13.0, INK, label);
    }
}

/// A row's medians, as pairs of percentile and microseconds.
fn curve(row: &Row, percent_max: f64) -> Vec<(f64, f64)> {
    let Some(round) = row.rounds.first() else {
        return Vec::new();
    };
    round
        .percentiles
        .iter()
        .filter(|at| at.percent <= percent_max)
        .filter_map(|at| Some((at.percent, row.latency_us(at.percent)?)))
        .collect()
}

fn duration(us: f64) -> String {
    if us < 1e3 {
        format!("{us} µs")
    } else if us < 1e6 {
        format!("{} ms", us / 1e3)
    } else {
        format!("{} s", us / 1e6)
    }
}

/// Draws CPU time per request, cases as groups and proxies as bars.
///
/// # Errors
/// The files can't be written.
pub fn cpu(name: &str, title: &str, reports: &[&CaseReport], folder: &Path) -> io::Result<()> {
    let with_cpu = |report: &&&CaseReport| report.rows.iter().any(|row| row.cpu_us().is_some());
    let reports: Vec<&CaseReport> = reports.iter().filter(with_cpu).copied().collect();
    let Some(first) = reports.first() else {
        return Ok(());
    };
    let bars: Vec<Line<'_>> = first
        .rows
        .iter()
        .filter(|row| row.cpu_us().is_some())
        .map(|row| Line {
            label: row.proxy.label(),
            colour: colour(row.proxy),
            points: (0u32..)
                .zip(&reports)
                .filter_map(|(at, report)| Some((at.into(), report.row(row.proxy)?.cpu_us()?)))
                .collect(),
        })
        .collect();
    let groups: Vec<&str> = reports.iter().map(|report| report.title.as_str()).collect();
    let subtitle = "microseconds of the proxy's CPU time per request, one worker on one core; median of the rounds, lower is better";
    grouped_bars(name, [title, subtitle], "µs", &groups, &bars, folder)
}

/// Draws groups of bars, under a title and a subtitle; the points of a line
/// are pairs of group and value.
///
/// # Errors
/// The files can't be written.
pub fn grouped_bars(
    name: &str,
    [title, subtitle]: [&str; 2],
    unit: &str,
    groups: &[&str],
    lines: &[Line<'_>],
    folder: &Path,
) -> io::Result<()> {
    let values = lines.iter().flat_map(|line| &line.points);
    let high = values.map(|(_, value)| *value).fold(0.0, f64::max);
    let step = tick_step(high);
    let top = (high / step).ceil().max(1.0) * step;
    let y = |value: f64| HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM);
    let mut canvas = Canvas::new(title, subtitle);
    let mut tick = 0.0;
    while tick <= top + step / 2.0 {
        canvas.line((LEFT, y(tick)), (WIDTH - RIGHT, y(tick)), GRID);
        let label = format!("{tick:.0} {unit}");
        canvas.text(LEFT - 8.0, y(tick) + 4.5, Anchor::End, 13.0, FAINT, &label);
        tick += step;
    }
    let legend: Vec<_> = lines.iter().map(|line| (line.label, line.colour)).collect();
    canvas.legend(&legend);
    let group = (WIDTH - LEFT - RIGHT) / groups.len() as f64;
    let width = (group * 0.8 / lines.len() as f64).min(56.0);
    for (at, title) in groups.iter().enumerate() {
        let middle = LEFT + group * (at as f64 + 0.5);
        let mut x = middle - width * lines.len() as f64 / 2.0;
        for line in lines {
            if let Some((_, value)) = line.points.iter().find(|(group, _)| *group as usize == at) {
                canvas.bar(x, width, (y(*value), y(0.0)), *value, line.colour);
            }
            x += width;
        }
        canvas.group_label(middle, title);
    }
    canvas.write(folder, name)
}

fn tick_step(high: f64) -> f64 {
    let rough = high.max(1.0) / 5.0;
    let decade = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let fits = steps.iter().find(|step| **step * decade >= rough);
    fits.unwrap_or(&10.0) * decade
}
