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

/// Where text begins, ends or has its middle.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

struct Canvas {
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

    fn legend(&mut self, kinds: &[Kind]) {
        let mut x = LEFT;
        for kind in kinds {
            self.rect(x, 72.0, 12.0, 12.0, colour(*kind));
            self.text(x + 18.0, 83.0, Anchor::Start, 13.0, INK, kind.label());
            x += 110.0;
        }
    }

    fn write(mut self, folder: &Path, name: &str) -> io::Result<()> {
        self.svg.push_str("</svg>\n");
        fs::write(folder.join(format!("{name}.svg")), &self.svg)?;
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
    let rows: Vec<(Kind, Vec<(f64, f64)>)> = report
        .rows
        .iter()
        .map(|row| (row.proxy, curve(row, PERCENT_MAX)))
        .filter(|(_, points)| points.len() > 1)
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let subtitle = format!("{}; median of the rounds, lower is better", report.title);
    let mut canvas = Canvas::new("Latency by percentile", &subtitle);
    let axes = Axes::of(&rows);
    axes.draw(&mut canvas);
    let kinds: Vec<Kind> = rows.iter().map(|(kind, _)| *kind).collect();
    canvas.legend(&kinds);
    for (kind, points) in &rows {
        let points: Vec<(f64, f64)> = points
            .iter()
            .map(|(percent, latency_us)| (Axes::x(*percent), axes.y(*latency_us)))
            .collect();
        canvas.path(&points, colour(*kind));
    }
    canvas.write(folder, "latency")
}

/// Percentiles by what lies above them and latency, both logarithmic.
struct Axes {
    /// The exponents of the least and the greatest latency shown.
    decades: (i32, i32),
}

impl Axes {
    fn of(rows: &[(Kind, Vec<(f64, f64)>)]) -> Self {
        let all = rows.iter().flat_map(|(_, points)| points);
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
    let kinds: Vec<Kind> = first
        .rows
        .iter()
        .filter(|row| row.cpu_us().is_some())
        .map(|row| row.proxy)
        .collect();
    let figures = reports.iter().flat_map(|report| &report.rows);
    let high = figures.filter_map(Row::cpu_us).fold(0.0, f64::max);
    let step = tick_step(high);
    let top = (high / step).ceil() * step;
    let y = |us: f64| HEIGHT - BOTTOM - us / top * (HEIGHT - TOP - BOTTOM);
    let mut canvas = Canvas::new(
        title,
        "microseconds of the proxy's CPU time per request, one worker on one core; median of the rounds, lower is better",
    );
    let mut tick = 0.0;
    while tick <= top + step / 2.0 {
        canvas.line((LEFT, y(tick)), (WIDTH - RIGHT, y(tick)), GRID);
        canvas.text(
            LEFT - 8.0,
            y(tick) + 4.5,
            Anchor::End,
            13.0,
            FAINT,
            &format!("{tick:.0} µs"),
        );
        tick += step;
    }
    canvas.legend(&kinds);
    let group = (WIDTH - LEFT - RIGHT) / reports.len() as f64;
    let bar = (group * 0.8 / kinds.len() as f64).min(56.0);
    for (at, report) in reports.iter().enumerate() {
        let middle = LEFT + group * (at as f64 + 0.5);
        let mut x = middle - bar * kinds.len() as f64 / 2.0;
        for kind in &kinds {
            if let Some(us) = report.row(*kind).and_then(Row::cpu_us) {
                canvas.bar(x, bar, (y(us), y(0.0)), us, colour(*kind));
            }
            x += bar;
        }
        canvas.group_label(middle, &report.title);
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
