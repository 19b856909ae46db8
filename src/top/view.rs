//! The picture: a line about the process, the table, a line about the selected
//! row, and one about the keys.

mod names;
mod table;

use std::time::Duration;

use evenkeel::observe::rates::{EndpointRates, Traffic, UpstreamRates};
use evenkeel_metrics::quantity::{bytes, counted, rate, span, time};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::model::{Mode, Model, Row};
use crate::Colour;
use table::{Column, columns, table, titles, traffic};

/// Stands for a missing value.
const NOTHING: &str = "-";
/// Below this width, columns are as narrow as their figures allow.
const WIDE: usize = 72;
/// Most lines that a text below the table takes.
const MOST_LINES: usize = 3;

const KEYS: &str = "up/down  d drain  r ready  s stop  w weight  o order  / filter  ? help  q quit";
const SHORT_KEYS: &str = "d r s w  o order  / filter  ? help  q quit";

const HELP: [&str; 16] = [
    "up, down, j, k     select a row; PgUp, PgDn, Home, End",
    "d                  drain: finish requests in flight, get no new ones",
    "r                  ready: send requests there again",
    "s                  stop: out of service",
    "w                  change the weight",
    "                   on the row of an upstream: all of its endpoints",
    "o, O               sort by another column, the largest first",
    "/                  show only rows with this text; Esc: show all",
    "q, Esc, Ctrl-C     quit",
    "",
    "FLIGHT  exchanges in flight, and the limit",
    "QUEUE   exchanges that wait for an endpoint",
    "REQ/S   of an endpoint: attempts",
    "ERR/S   failures, and answers of 5xx",
    "P50     median time of exchanges, from the first byte",
    "        of the request to the end of the response",
];

/// Draws all of it.
pub fn draw(frame: &mut Frame, model: &mut Model) {
    let area = frame.area();
    if area.height < 5 || area.width < 30 {
        frame.render_widget(Paragraph::new("too small"), area);
        return;
    }
    let paint = Paint(model.colour);
    let line = |y: u16, height: u16| Rect::new(area.x, area.y + y, area.width, height);
    let columns = columns(usize::from(area.width));
    // Texts below the table leave it a row at least.
    let most_lines = MOST_LINES.min((usize::from(area.height) - 3) / 2);
    let paragraph = |text: &str| {
        let lines = wrapped(text, usize::from(area.width), most_lines);
        let height = lines.len() as u16;
        let lines: Vec<_> = lines.into_iter().map(Line::raw).collect();
        (Paragraph::new(lines), height)
    };
    let (text, style) = last_line(model, paint, area.width);
    let (last, last_height) = paragraph(&text);
    let (detail, detail_height) = paragraph(&detail(model, &columns));
    let below = last_height + detail_height;
    let lines = [older_configurations(model), limits(model), caches(model)];
    let lines = lines.into_iter().flatten();
    // The table has a row at least.
    let most = usize::from(area.height.saturating_sub(below + 3));
    let lines: Vec<_> = lines.take(most).collect();
    let above = 2 + lines.len() as u16;
    let table_height = area.height - above - below;
    frame.render_widget(
        Paragraph::new(summary(model, paint, area.width)),
        line(0, 1),
    );
    for (text, y) in lines.into_iter().zip(1..) {
        let text = padded(&text, usize::from(area.width), Side::Left);
        frame.render_widget(Paragraph::new(text), line(y, 1));
    }
    let titles = Paragraph::new(titles(&columns, model, usize::from(area.width)));
    frame.render_widget(titles.style(paint.title()), line(above - 1, 1));
    let lines = table(model, paint, &columns, area.width, table_height);
    frame.render_widget(Paragraph::new(lines), line(above, table_height));
    frame.render_widget(detail, line(area.height - below, detail_height));
    let place = line(area.height - last_height, last_height);
    frame.render_widget(last.style(style), place);
    if model.mode == Mode::Help {
        help(frame, area);
    }
}

/// A text in lines of at most so many characters. The last of `most` lines is cut where it is too
/// long.
fn wrapped(text: &str, width: usize, most: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = text.trim();
    while lines.len() + 1 < most
        && let Some((end, _)) = rest.char_indices().nth(width)
    {
        let within = rest.char_indices().take(width + 1);
        let spaces = within.filter(|(_, letter)| *letter == ' ');
        let (line, others) = rest.split_at(spaces.last().map_or(end, |(at, _)| at));
        lines.push(line.to_owned());
        rest = others.trim_start();
    }
    lines.push(padded(rest, width, Side::Left));
    lines
}

/// Colours, where they are wanted. Words say the same as the colours.
#[derive(Clone, Copy)]
struct Paint(Colour);

impl Paint {
    fn with(self, colour: Color) -> Style {
        match self.0 {
            Colour::On => Style::new().fg(colour),
            Colour::Off => Style::new(),
        }
    }

    fn title(self) -> Style {
        self.with(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    fn alarm(self) -> Style {
        self.with(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn state(self, word: &str) -> Style {
        match word {
            "up" => self.with(Color::Green),
            "starting" | "trial" | "unprobed" | "draining" => self.with(Color::Yellow),
            "stopped" => self.with(Color::DarkGray),
            _ => self.alarm(),
        }
    }
}

fn summary(model: &Model, paint: Paint, width: u16) -> Line<'static> {
    let Some(rates) = &model.rates else {
        return Line::default();
    };
    let sum =
        |of: fn(&Traffic) -> f64| -> f64 { rates.listeners.iter().map(|it| of(&it.traffic)).sum() };
    let errors = sum(|it| it.errors_per_s);
    let open: u64 = rates.listeners.iter().map(|it| it.open).sum();
    let is_wide = usize::from(width) >= WIDE;
    let mut name = "evenkeel".to_owned();
    let mut traffic = format!("  {} req/s  ", rate(sum(|it| it.requests_per_s)));
    if is_wide {
        name += &format!(" {}", rates.version);
        let up = span(Duration::from_millis(rates.uptime_ms));
        traffic = format!("  process {}  up {up}{traffic}", rates.pid);
    }
    let mut spans = vec![
        Span::styled(name, Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(traffic),
    ];
    let style = if errors > 0.0 {
        paint.alarm()
    } else {
        Style::new()
    };
    spans.push(Span::styled(format!("{} err/s", rate(errors)), style));
    spans.push(Span::raw(format!("  {open} connections")));
    Line::from(spans)
}

/// The line on replaced configurations that are still used; `None` without any.
fn older_configurations(model: &Model) -> Option<String> {
    let [newest, older @ ..] = &*model.rates.as_ref()?.generations else {
        return None;
    };
    let oldest = older.last()?;
    let exchanges: u64 = older.iter().map(|it| it.exchanges).sum();
    let tunnels: u64 = older.iter().map(|it| it.tunnels).sum();
    let tunnels = match tunnels {
        0 => String::new(),
        some => format!(", {} among them", counted(some, "tunnel")),
    };
    let kept = if older.iter().any(|it| it.kept_until_confirmed) {
        "; the previous one is kept until this one is confirmed"
    } else {
        ""
    };
    Some(format!(
        "generation {}; {} with {}, the oldest from {} ago{tunnels}{kept}",
        newest.generation,
        counted(exchanges, "exchange"),
        counted(older.len() as u64, "older configuration"),
        span(Duration::from_millis(oldest.age_ms)),
    ))
}

/// The line of the limits of routes that keep requests from passing at once; `None` where
/// none does.
fn limits(model: &Model) -> Option<String> {
    let limits = &model.rates.as_ref()?.limits;
    let busy = limits
        .iter()
        .filter(|it| it.refused_per_s + it.delayed_per_s + it.dry_run_per_s > 0.0);
    let each = busy.map(|it| {
        let mut text = format!(
            "limits of {}  {} passed/s  {} refused/s",
            it.route,
            rate(it.allowed_per_s),
            rate(it.refused_per_s),
        );
        for (per_s, word) in [(it.delayed_per_s, "delayed"), (it.dry_run_per_s, "dry run")] {
            if per_s > 0.0 {
                text += &format!("  {} {word}/s", rate(per_s));
            }
        }
        text
    });
    let each: Vec<_> = each.collect();
    (!each.is_empty()).then(|| each.join("; "))
}

/// The line of the caches; `None` where there is none.
fn caches(model: &Model) -> Option<String> {
    let caches = &model.rates.as_ref()?.caches;
    let each = caches.iter().map(|it| {
        format!(
            "cache {}  {}  {} req/s  saved {}/s  {} of {}",
            it.name,
            it.hit_ratio().as_deref().unwrap_or("- hits"),
            rate(it.requests_per_s),
            bytes(it.saved_bytes_per_s),
            bytes(it.bytes as f64),
            bytes(it.limit_bytes as f64),
        )
    });
    let each: Vec<_> = each.collect();
    (!each.is_empty()).then(|| each.join("; "))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// Exactly so wide; `~` stands for a cut end.
fn padded(text: &str, width: usize, side: Side) -> String {
    let count = text.chars().count();
    if count > width {
        let cut: String = text.chars().take(width.saturating_sub(1)).collect();
        return cut + "~";
    }
    match side {
        Side::Left => format!("{text:<width$}"),
        Side::Right => format!("{text:>width$}"),
    }
}

/// The facts that the table has no room for.
fn detail(model: &Model, columns: &[(Column, &str, usize)]) -> String {
    let rows = model.rows();
    let Some(row) = rows.get(model.selected(&rows)) else {
        return String::new();
    };
    let mut text = match row {
        Row::Upstream(upstream) => upstream_detail(upstream),
        Row::Endpoint(upstream, endpoint) => endpoint_detail(upstream, endpoint),
    };
    let traffic = traffic(row);
    let is_shown = |column: Column| columns.iter().any(|it| it.0 == column);
    if !is_shown(Column::Errors) {
        text += &format!(", {} err/s", rate(traffic.errors_per_s));
    }
    for (column, name, us) in [
        (Column::Median, "p50", traffic.p50_us),
        (Column::P99, "p99", traffic.p99_us),
    ] {
        if let (false, Some(us)) = (is_shown(column), us) {
            text += &format!(", {name} {}", time(us));
        }
    }
    text
}

fn bytes_both_ways(traffic: &Traffic) -> String {
    format!(
        "in {}/s, out {}/s",
        bytes(traffic.bytes_in_per_s),
        bytes(traffic.bytes_out_per_s)
    )
}

fn upstream_detail(upstream: &UpstreamRates) -> String {
    format!(
        "upstream {}: balance {}, {} of {} waiting, {}",
        upstream.name,
        upstream.balance,
        upstream.waiting,
        upstream.queue_max,
        bytes_both_ways(&upstream.traffic)
    )
}

fn endpoint_detail(upstream: &UpstreamRates, endpoint: &EndpointRates) -> String {
    format!(
        "{}/{}: weight {}, {} idle connections, {}",
        upstream.name,
        endpoint.name,
        endpoint.weight,
        endpoint.idle,
        bytes_both_ways(&endpoint.traffic)
    )
}

/// A question, a message, or what keys there are.
fn last_line(model: &Model, paint: Paint, width: u16) -> (String, Style) {
    let keys = if usize::from(width) >= KEYS.len() {
        KEYS
    } else {
        SHORT_KEYS
    };
    let strong = Style::new().add_modifier(Modifier::BOLD);
    match &model.mode {
        Mode::Filter => {
            let filter = &model.filter;
            let text = format!("only rows with: {filter}_   Enter keeps it, Esc shows all");
            (text, strong)
        }
        Mode::Confirm { verb, target } => {
            let what = match *verb {
                "ready" => "make ready",
                verb => verb,
            };
            (format!("{what} {}?  y/n", target.words()), strong)
        }
        Mode::Weight { target, digits } => {
            let target = target.words();
            let text = format!("weight of {target}: {digits}_   Enter sets it, Esc cancels");
            (text, strong)
        }
        Mode::Table | Mode::Help => match (&model.lost, model.message()) {
            (Some(error), _) => (format!("no answer, trying again: {error}"), paint.alarm()),
            (None, Some(message)) => (message.to_owned(), strong),
            (None, None) if !model.filter.is_empty() => {
                let filter = &model.filter;
                let text = format!("only rows with `{filter}`: Esc shows all.  {keys}");
                (text, Style::new())
            }
            (None, None) => (keys.to_owned(), Style::new()),
        },
    }
}

fn help(frame: &mut Frame, area: Rect) {
    let width = HELP.iter().map(|line| line.len()).max().unwrap_or(0) as u16 + 4;
    let height = HELP.len() as u16 + 2;
    let (width, height) = (width.min(area.width), height.min(area.height));
    let place = Rect::new(
        area.x + (area.width - width) / 2,
        area.y + (area.height - height) / 2,
        width,
        height,
    );
    let lines: Vec<_> = HELP
        .iter()
        .map(|line| Line::raw(format!(" {line}")))
        .collect();
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" keys and columns ");
    frame.render_widget(Paragraph::new(lines).block(block), place);
}

#[cfg(test)]
mod tests;
