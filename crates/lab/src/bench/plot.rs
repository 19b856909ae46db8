//! The plots: latency by percentile, and CPU time per request.
//!
//! Written as SVG by hand and rendered to PNG with the machine's own fonts.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use resvg::{tiny_skia, usvg};

use super::proxy::Kind;
use super::report::{CaseReport, Row, number};

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 600.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 96.0;
const BOTTOM: f64 = 76.0;
/// PNG pixels per unit of the SVG.
const SCALE: f32 = 2.0;
/// Where the percentiles end.
const PERCENT_MAX: f64 = 99.99;
const FONT: &str = "DejaVu Sans, Liberation Sans, Arial, sans-serif";
const INK: &str = "#1f2933";
const FAINT: &str = "#52606d";
const GRID: &str = "#e4e7eb";

fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Direct => "#9aa5b1",
        Kind::Relay => "#616e7c",
        Kind::Evenkeel => "#0b6bcb",
        Kind::Nginx => "#2f9e5b",
        Kind::Haproxy => "#d9730d",
    }
}

/// A line or a set of bars, and what the legend calls it.
pub(crate) struct Series<'a> {
    pub label: &'a str,
    pub colour: &'a str,
    /// Pairs of percentile and microseconds, or one value for each group.
    pub points: Vec<(f64, f64)>,
}

/// Where text begins, ends or has its middle.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing that is not written yet.
pub(crate) struct Canvas {
    svg: String,
}

impl Canvas {
    fn new(title: &str, subtitle: &str) -> Self {
        let mut canvas = Self {
            svg: format!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="{FONT}">
<rect width="100%" height="100%" fill="white"/>
"#
            ),
        };
        canvas.text(LEFT, 36.0, Anchor::Start, 20.0, INK, title);
        canvas.text(LEFT, 58.0, Anchor::Start, 13.0, FAINT, subtitle);
        canvas
    }

    fn text(&mut self, x: f64, y: f64, anchor: Anchor, size: f64, fill: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            self.svg,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}" fill="{fill}">{text}</text>"#
        );
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str) {
        let _ = writeln!(
            self.svg,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="{stroke}" stroke-width="1"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        let _ = writeln!(
            self.svg,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="2" fill="{fill}"/>"#
        );
    }

    fn path(&mut self, points: &[(f64, f64)], stroke: &str) {
        let points: String = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1} "))
            .collect();
        let _ = writeln!(
            self.svg,
            r#"<polyline points="{points}" fill="none" stroke="{stroke}" stroke-width="2.5" stroke-linejoin="round"/>"#
        );
    }

    fn bar(&mut self, x: f64, width: f64, (top, bottom): (f64, f64), us: f64, fill: &str) {
        self.rect(x + 1.0, top, width - 2.0, bottom - top, fill);
        let (size, room) = (if width < 26.0 { 9.5 } else { 11.0 }, width >= 23.0);
        let label = if us < 100.0 && room {
            number(us)
        } else {
            format!("{us:.0}")
        };
        let middle = x + width / 2.0;
        self.text(middle, top - 4.0, Anchor::Middle, size, INK, &label);
    }

    /// Two lines: what is asked for, and over how many connections.
    fn group_label(&mut self, x: f64, title: &str) {
        let (size, rest) = title.split_once(", ").unwrap_or((title, ""));
        let rest = rest.replace("connections", "conn.");
        let y = HEIGHT - BOTTOM;
        self.text(x, y + 22.0, Anchor::Middle, 12.0, INK, size);
        self.text(x, y + 40.0, Anchor::Middle, 11.0, FAINT, &rest);
    }

    /// One line of entries, or two where one is too short.
    fn legend(&mut self, series: &[Series<'_>]) {
        let (mut x, mut y) = (LEFT, 72.0);
        for Series { label, colour, .. } in series {
            let width = (label.chars().count() as f64 * 8.0 + 36.0).max(110.0);
            if x + width > WIDTH {
                (x, y) = (LEFT, y + 18.0);
            }
            self.rect(x, y, 12.0, 12.0, colour);
            self.text(x + 18.0, y + 11.0, Anchor::Start, 13.0, INK, label);
            x += width;
        }
    }

    /// Writes the SVG.
    pub(crate) fn write_svg(&mut self, folder: &Path, name: &str) -> io::Result<()> {
        self.svg.push_str("</svg>\n");
        fs::write(folder.join(format!("{name}.svg")), &self.svg)
    }

    fn write(mut self, folder: &Path, name: &str) -> io::Result<()> {
        self.write_svg(folder, name)?;
        let mut options = usvg::Options::default();
        options.fontdb_mut().load_system_fonts();
        let tree = usvg::Tree::from_str(&self.svg, &options).map_err(io::Error::other)?;
        let size = tree.size().to_int_size();
        let scale = |side: u32| (side as f32 * SCALE) as u32;
        let mut image = tiny_skia::Pixmap::new(scale(size.width()), scale(size.height()))
            .ok_or_else(|| io::Error::other("image of no size"))?;
        let transform = tiny_skia::Transform::from_scale(SCALE, SCALE);
        resvg::render(&tree, transform, &mut image.as_mut());
        image
            .save_png(folder.join(format!("{name}.png")))
            .map_err(io::Error::other)
    }
}

/// Draws a case's latency by percentile, one line for each proxy.
///
/// # Errors
/// The files can't be written.
pub fn latency(report: &CaseReport, folder: &Path) -> io::Result<()> {
    let series: Vec<Series<'_>> = report
        .rows
        .iter()
        .map(|row| Series {
            label: row.proxy.label(),
            colour: colour(row.proxy),
            points: curve(row),
        })
        .collect();
    let subtitle = format!("{}; median of the rounds, lower is better", report.title);
    match percentile_curves("Latency by percentile", &subtitle, series) {
        Some(canvas) => canvas.write(folder, "latency"),
        None => Ok(()),
    }
}

/// Draws latency by percentile, one line for each series that has one.
pub(crate) fn percentile_curves(
    title: &str,
    subtitle: &str,
    mut series: Vec<Series<'_>>,
) -> Option<Canvas> {
    for line in &mut series {
        line.points.retain(|(percent, _)| *percent <= PERCENT_MAX);
    }
    series.retain(|line| line.points.len() > 1);
    if series.is_empty() {
        return None;
    }
    let mut canvas = Canvas::new(title, subtitle);
    let axes = Axes::of(&series);
    axes.draw(&mut canvas);
    canvas.legend(&series);
    for line in &series {
        let points: Vec<(f64, f64)> = line
            .points
            .iter()
            .map(|(percent, latency_us)| (Axes::x(*percent), axes.y(*latency_us)))
            .collect();
        canvas.path(&points, line.colour);
    }
    Some(canvas)
}

/// Percentiles by what lies above them and latency, both logarithmic.
struct Axes {
    /// The exponents of the least and the greatest latency shown.
    decades: (i32, i32),
}

impl Axes {
    fn of(series: &[Series<'_>]) -> Self {
        let all = series.iter().flat_map(|line| &line.points);
        let (low, high) = all.fold((f64::MAX, 0.0f64), |(low, high), (_, latency_us)| {
            (low.min(*latency_us), high.max(*latency_us))
        });
        let from = low.max(1.0).log10().floor() as i32;
        let until = high.max(10.0).log10().ceil() as i32;
        Self {
            decades: (from, until.max(from + 1)),
        }
    }

    fn x(percent: f64) -> f64 {
        let log_of_rest = |percent: f64| -(1.0 - percent / 100.0).log10();
        let from = log_of_rest(50.0);
        let share = (log_of_rest(percent) - from) / (log_of_rest(PERCENT_MAX) - from);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, latency_us: f64) -> f64 {
        let (from, until) = (f64::from(self.decades.0), f64::from(self.decades.1));
        let share = (latency_us.max(1.0).log10() - from) / (until - from);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    fn draw(&self, canvas: &mut Canvas) {
        let bottom = HEIGHT - BOTTOM;
        for percent in [50.0, 90.0, 99.0, 99.9, 99.99] {
            let x = Self::x(percent);
            canvas.line((x, TOP), (x, bottom), GRID);
            let label = format!("{percent} %");
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
fn curve(row: &Row) -> Vec<(f64, f64)> {
    let Some(round) = row.rounds.first() else {
        return Vec::new();
    };
    round
        .percentiles
        .iter()
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
    let series: Vec<Series<'_>> = first
        .rows
        .iter()
        .filter(|row| row.cpu_us().is_some())
        .map(|row| Series {
            label: row.proxy.label(),
            colour: colour(row.proxy),
            points: (0u32..)
                .zip(&reports)
                .filter_map(|(at, report)| Some((at.into(), report.row(row.proxy)?.cpu_us()?)))
                .collect(),
        })
        .collect();
    let titles: Vec<&str> = reports.iter().map(|report| report.title.as_str()).collect();
    let subtitle = "microseconds of the proxy's CPU time per request, one worker on one core; median of the rounds, lower is better";
    bars(title, subtitle, "µs", &titles, &series).write(folder, name)
}

/// Draws groups of bars; a series' points are pairs of group and value.
pub(crate) fn bars(
    title: &str,
    subtitle: &str,
    unit: &str,
    groups: &[&str],
    series: &[Series<'_>],
) -> Canvas {
    let values = series.iter().flat_map(|bars| &bars.points);
    let high = values.map(|(_, value)| *value).fold(0.0, f64::max);
    let step = tick_step(high);
    let top = (high / step).ceil().max(1.0) * step;
    let y = |value: f64| HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM);
    let mut canvas = Canvas::new(title, subtitle);
    let mut tick = 0.0;
    while tick <= top + step / 2.0 {
        canvas.line((LEFT, y(tick)), (WIDTH - RIGHT, y(tick)), GRID);
        canvas.text(
            LEFT - 8.0,
            y(tick) + 4.5,
            Anchor::End,
            13.0,
            FAINT,
            &format!("{tick:.0} {unit}"),
        );
        tick += step;
    }
    canvas.legend(series);
    let group = (WIDTH - LEFT - RIGHT) / groups.len() as f64;
    let width = (group * 0.8 / series.len() as f64).min(56.0);
    for (at, title) in groups.iter().enumerate() {
        let middle = LEFT + group * (at as f64 + 0.5);
        let mut x = middle - width * series.len() as f64 / 2.0;
        for Series { colour, points, .. } in series {
            if let Some((_, value)) = points.iter().find(|(group, _)| *group as usize == at) {
                canvas.bar(x, width, (y(*value), y(0.0)), *value, colour);
            }
            x += width;
        }
        canvas.group_label(middle, title);
    }
    canvas
}

fn tick_step(high: f64) -> f64 {
    let rough = high.max(1.0) / 5.0;
    let decade = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let fits = steps.iter().find(|step| **step * decade >= rough);
    fits.unwrap_or(&10.0) * decade
}
