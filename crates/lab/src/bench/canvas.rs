//! The canvas of the plots: SVG written by hand, rendered to PNG with the machine's fonts.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use resvg::{tiny_skia, usvg};

use super::report::number;

/// Units of the whole drawing.
pub const WIDTH: f64 = 1200.0;
pub const HEIGHT: f64 = 600.0;
/// Room beside the axes.
pub const LEFT: f64 = 84.0;
pub const RIGHT: f64 = 40.0;
pub const TOP: f64 = 96.0;
pub const BOTTOM: f64 = 76.0;
/// Of text, of lesser text, and of lines of the grid.
pub const INK: &str = "#1f2933";
pub const FAINT: &str = "#52606d";
pub const GRID: &str = "#e4e7eb";

/// PNG pixels per unit of the SVG.
const SCALE: f32 = 2.0;
const FONT: &str = "DejaVu Sans, Liberation Sans, Arial, sans-serif";

/// The point of a text that is at its coordinates.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing under way.
pub struct Canvas {
    svg: String,
}

impl Canvas {
    /// A canvas with only a title and a subtitle.
    pub fn new(title: &str, subtitle: &str) -> Self {
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

    /// Text whose baseline is at `y`.
    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, size: f64, fill: &str, text: &str) {
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

    /// A thin straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str) {
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

    /// A thick line through points.
    pub fn path(&mut self, points: &[(f64, f64)], stroke: &str) {
        let points: String = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1} "))
            .collect();
        let _ = writeln!(
            self.svg,
            r#"<polyline points="{points}" fill="none" stroke="{stroke}" stroke-width="2.5" stroke-linejoin="round"/>"#
        );
    }

    /// A bar with its figure above it.
    pub fn bar(&mut self, x: f64, width: f64, (top, bottom): (f64, f64), us: f64, fill: &str) {
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

    /// Two lines: the page, and the number of connections.
    pub fn group_label(&mut self, x: f64, title: &str) {
        let (size, rest) = title.split_once(", ").unwrap_or((title, ""));
        let rest = rest.replace("connections", "conn.");
        let y = HEIGHT - BOTTOM;
        self.text(x, y + 22.0, Anchor::Middle, 12.0, INK, size);
        self.text(x, y + 40.0, Anchor::Middle, 11.0, FAINT, &rest);
    }

    /// Labels with their colours, beside each other.
    pub fn legend(&mut self, entries: &[(&str, &str)]) {
        let width = |label: &str| (label.chars().count() as f64 * 8.0 + 36.0).max(110.0);
        let all: f64 = entries.iter().map(|(label, _)| width(label)).sum();
        // One line of entries, or two where one is too short.
        let is_one_line = LEFT + all <= WIDTH;
        let (mut x, mut y) = (LEFT, if is_one_line { 72.0 } else { 64.0 });
        for (label, colour) in entries {
            if x + width(label) > WIDTH {
                (x, y) = (LEFT, y + 16.0);
            }
            self.rect(x, y, 12.0, 12.0, colour);
            self.text(x + 18.0, y + 11.0, Anchor::Start, 13.0, INK, label);
            x += width(label);
        }
    }

    /// Writes NAME.svg and NAME.png.
    ///
    /// # Errors
    /// The files can't be written.
    pub fn write(mut self, folder: &Path, name: &str) -> io::Result<()> {
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
