//! The picture: a line about the process, the table, a line about the selected
//! row, and one about the keys.

mod names;

use std::collections::HashMap;
use std::time::Duration;

use evenkeel::observe::rates::{EndpointRates, Traffic, UpstreamRates};
use evenkeel_metrics::quantity::{bytes, rate, span, time};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::model::{Mode, Model, Row, Sort};
use crate::Colour;
use names::shortened;

/// Stands for what is not there.
const NOTHING: &str = "-";
/// Below this width, columns are as narrow as their figures allow.
const WIDE: usize = 72;
/// Most lines that a text below the table takes.
const MOST_LINES: usize = 3;

/// A column behind the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    State,
    Weight,
    InFlight,
    Queue,
    Requests,
    Errors,
    Median,
    P99,
    BytesIn,
    BytesOut,
}

/// How columns are laid out.
struct Layout {
    /// In the order of the screen, with what each takes.
    columns: &'static [(Column, &'static str, usize)],
    /// Those that are left out where there is no room, the first one first.
    left_out: &'static [Column],
    /// What the name's column has at least.
    min_name_width: usize,
}

const WIDE_LAYOUT: Layout = Layout {
    columns: &[
        (Column::State, "STATE", 11),
        (Column::Weight, "WEIGHT", 7),
        (Column::InFlight, "FLIGHT", 8),
        (Column::Queue, "QUEUE", 7),
        (Column::Requests, "REQ/S", 6),
        (Column::Errors, "ERR/S", 6),
        (Column::Median, "P50", 7),
        (Column::P99, "P99", 7),
        (Column::BytesIn, "IN/S", 8),
        (Column::BytesOut, "OUT/S", 8),
    ],
    left_out: &[
        Column::BytesIn,
        Column::Weight,
        Column::BytesOut,
        Column::Median,
    ],
    min_name_width: 20,
};

const NARROW_LAYOUT: Layout = Layout {
    columns: &[
        (Column::State, "STATE", 8),
        (Column::InFlight, "FLIGHT", 7),
        (Column::Queue, "QUEUE", 5),
        (Column::Requests, "REQ/S", 5),
        (Column::Errors, "ERR/S", 5),
        (Column::P99, "P99", 6),
    ],
    left_out: &[
        Column::Queue,
        Column::P99,
        Column::Errors,
        Column::InFlight,
        Column::Requests,
    ],
    // An address such as `10.0.0.1:8080`, behind a space.
    min_name_width: 14,
};

const KEYS: &str = "up/down  d drain  r ready  s stop  w weight  o order  / filter  ? help  q quit";
const SHORT_KEYS: &str = "d r s w  o order  / filter  ? help  q quit";

const HELP: [&str; 16] = [
    "up, down, j, k     select a row; PgUp, PgDn, Home, End",
    "d                  drain: finish what is in flight, nothing new",
    "r                  ready: send requests there again",
    "s                  stop: out of service",
    "w                  another weight",
    "                   on an upstream's row: all of its endpoints",
    "o, O               order by another column, the largest first",
    "/                  only rows with this text; Esc: all again",
    "q, Esc, Ctrl-C     quit",
    "",
    "FLIGHT  exchanges there now, of the most allowed",
    "QUEUE   exchanges that wait for an endpoint",
    "REQ/S   of an endpoint: attempts",
    "ERR/S   failures, and answers of 5xx",
    "P50     half of the exchanges took less, from the first byte",
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
    let table_height = area.height - 2 - below;
    frame.render_widget(
        Paragraph::new(summary(model, paint, area.width)),
        line(0, 1),
    );
    let titles = Paragraph::new(titles(&columns, model, usize::from(area.width)));
    frame.render_widget(titles.style(paint.title()), line(1, 1));
    let lines = table(model, paint, &columns, area.width, table_height);
    frame.render_widget(Paragraph::new(lines), line(2, table_height));
    frame.render_widget(detail, line(area.height - below, detail_height));
    let place = line(area.height - last_height, last_height);
    frame.render_widget(last.style(style), place);
    if model.mode == Mode::Help {
        help(frame, area);
    }
}

/// A text in lines of at most so many characters; the last of `most` lines is
/// cut where it is too long.
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

/// Colours, where they are wanted. What they say is said in words as well.
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

/// The columns for which there is room.
fn columns(width: usize) -> Vec<(Column, &'static str, usize)> {
    let layout = if width >= WIDE {
        &WIDE_LAYOUT
    } else {
        &NARROW_LAYOUT
    };
    let mut columns = layout.columns.to_vec();
    for column in layout.left_out {
        if name_width(&columns, width) < layout.min_name_width {
            columns.retain(|it| it.0 != *column);
        }
    }
    columns
}

fn name_width(columns: &[(Column, &str, usize)], width: usize) -> usize {
    let taken: usize = columns.iter().map(|it| it.2 + 1).sum();
    width.saturating_sub(taken)
}

fn sorted(sort: Sort) -> Option<Column> {
    match sort {
        Sort::Configuration => None,
        Sort::InFlight => Some(Column::InFlight),
        Sort::Requests => Some(Column::Requests),
        Sort::Errors => Some(Column::Errors),
        Sort::Median => Some(Column::Median),
        Sort::P99 => Some(Column::P99),
    }
}

fn titles(columns: &[(Column, &str, usize)], model: &Model, width: usize) -> String {
    let name_width = name_width(columns, width);
    let name = if name_width < "UPSTREAM, ENDPOINT".len() {
        "ENDPOINT"
    } else {
        "UPSTREAM, ENDPOINT"
    };
    let mut line = padded(name, name_width, Side::Left);
    for (column, title, width) in columns {
        // What marks the order takes the end's place where there is no room.
        let title = if sorted(model.sort) == Some(*column) {
            format!("*{title}").chars().take(*width).collect()
        } else {
            (*title).to_owned()
        };
        line.push(' ');
        line += &padded(&title, *width, side(*column));
    }
    line
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

fn side(column: Column) -> Side {
    match column {
        Column::State => Side::Left,
        _ => Side::Right,
    }
}

/// Exactly so wide; `~` stands for what is left out of the end.
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

/// A figure that is never cut: in thousands where it has too many digits.
fn fitted(figure: f64, width: usize) -> String {
    let text = rate(figure);
    if text.len() > width {
        format!("{:.0}k", figure / 1e3)
    } else {
        text
    }
}

fn table(
    model: &mut Model,
    paint: Paint,
    columns: &[(Column, &str, usize)],
    width: u16,
    height: u16,
) -> Vec<Line<'static>> {
    let height = usize::from(height);
    let rows = model.rows();
    let selected = model.selected(&rows);
    // The selected row stays in sight.
    let lowest = (selected + 1).saturating_sub(height);
    let highest = selected.min(rows.len().saturating_sub(height));
    let offset = model.offset.clamp(lowest, highest.max(lowest));
    let mut names = Names::new(model, columns, usize::from(width));
    let mut lines: Vec<_> = rows
        .iter()
        .enumerate()
        .skip(offset)
        .take(height)
        .map(|(index, row)| {
            let name = names.of(row);
            let line = row_line(row, &name, paint, columns);
            if index == selected {
                line.style(Style::new().add_modifier(Modifier::REVERSED))
            } else {
                line
            }
        })
        .collect();
    if rows.is_empty() {
        lines.push(Line::raw(if model.filter.is_empty() {
            "no upstream is configured"
        } else {
            "no row has this text: Esc shows all again"
        }));
    }
    model.offset = offset;
    lines
}

/// The names of rows as they are shown.
struct Names<'a> {
    width: usize,
    /// Before the names of endpoints.
    indent: &'static str,
    upstreams: HashMap<&'a str, String>,
    /// Of each upstream that is in sight.
    endpoints: HashMap<&'a str, HashMap<&'a str, String>>,
}

impl<'a> Names<'a> {
    fn new(model: &'a Model, columns: &[(Column, &str, usize)], width: usize) -> Self {
        let indent = if width >= WIDE { "  " } else { " " };
        let width = name_width(columns, width);
        let upstreams = model.rates.iter().flat_map(|it| &it.upstreams);
        let upstreams: Vec<_> = upstreams.map(|it| it.name.as_str()).collect();
        Names {
            width,
            indent,
            upstreams: shortened(&upstreams, width),
            endpoints: HashMap::new(),
        }
    }

    /// As wide as the column.
    fn of(&mut self, row: &Row<'a>) -> String {
        let name = match row {
            Row::Upstream(it) => self.upstreams.get(it.name.as_str()).cloned(),
            Row::Endpoint(upstream, it) => {
                let width = self.width.saturating_sub(self.indent.len());
                let texts = self.endpoints.entry(&upstream.name).or_insert_with(|| {
                    let endpoints = upstream.endpoints.iter();
                    let names: Vec<_> = endpoints.map(|it| it.name.as_str()).collect();
                    shortened(&names, width)
                });
                let text = texts.get(it.name.as_str());
                text.map(|text| format!("{}{text}", self.indent))
            }
        };
        padded(&name.unwrap_or_default(), self.width, Side::Left)
    }
}

fn row_line(
    row: &Row<'_>,
    name: &str,
    paint: Paint,
    columns: &[(Column, &str, usize)],
) -> Line<'static> {
    let style = match row {
        Row::Upstream(_) => Style::new().add_modifier(Modifier::BOLD),
        Row::Endpoint(..) => Style::new(),
    };
    let mut spans = vec![Span::styled(name.to_owned(), style)];
    for (column, _, width) in columns {
        let (text, style) = match column {
            Column::State => (state(row, *width), state_style(row, paint)),
            Column::Errors if traffic(row).errors_per_s > 0.0 => {
                (cell(row, *column, *width), paint.alarm())
            }
            column => (cell(row, *column, *width), style),
        };
        spans.push(Span::raw(" "));
        spans.push(Span::styled(padded(&text, *width, side(*column)), style));
    }
    Line::from(spans)
}

fn state(row: &Row<'_>, width: usize) -> String {
    match row {
        Row::Endpoint(_, endpoint) => endpoint.state.clone(),
        Row::Upstream(upstream) => {
            let part = format!("{}/{}", upstream.eligible, upstream.endpoints.len());
            if part.len() + 3 > width {
                part
            } else {
                part + " up"
            }
        }
    }
}

fn state_style(row: &Row<'_>, paint: Paint) -> Style {
    match row {
        Row::Endpoint(_, endpoint) => paint.state(&endpoint.state),
        Row::Upstream(upstream) if upstream.eligible == 0 => paint.alarm(),
        Row::Upstream(_) => Style::new().add_modifier(Modifier::BOLD),
    }
}

fn traffic<'a>(row: &Row<'a>) -> &'a Traffic {
    match row {
        Row::Upstream(upstream) => &upstream.traffic,
        Row::Endpoint(_, endpoint) => &endpoint.traffic,
    }
}

/// A figure in a column that is so wide.
fn cell(row: &Row<'_>, column: Column, width: usize) -> String {
    let traffic = traffic(row);
    let quantile = |us: Option<f64>| match us.map(time) {
        None => NOTHING.to_owned(),
        Some(text) if text.len() > width => text.replace(' ', ""),
        Some(text) => text,
    };
    match (column, row) {
        (Column::Requests, _) => fitted(traffic.requests_per_s, width),
        (Column::Errors, _) => fitted(traffic.errors_per_s, width),
        (Column::Median, _) => quantile(traffic.p50_us),
        (Column::P99, _) => quantile(traffic.p99_us),
        (Column::BytesIn, _) => bytes(traffic.bytes_in_per_s),
        (Column::BytesOut, _) => bytes(traffic.bytes_out_per_s),
        (Column::InFlight, Row::Upstream(it)) => it.in_flight.to_string(),
        (Column::InFlight, Row::Endpoint(_, it)) => match it.max_in_flight {
            Some(most) if digits(most) + 1 + digits(it.in_flight) <= width => {
                format!("{}/{most}", it.in_flight)
            }
            _ => it.in_flight.to_string(),
        },
        (Column::Queue, Row::Upstream(it)) => it.waiting.to_string(),
        (Column::Weight, Row::Endpoint(_, it)) => it.weight.to_string(),
        (Column::State | Column::Queue | Column::Weight, _) => String::new(),
    }
}

fn digits(number: u32) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

/// What the table has no room for.
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
            let text = format!("weight of {target}: {digits}_   Enter sets it, Esc does not");
            (text, strong)
        }
        Mode::Table | Mode::Help => match (&model.lost, model.message()) {
            (Some(error), _) => (format!("no news, trying again: {error}"), paint.alarm()),
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
