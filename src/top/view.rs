//! The picture: a line about the process, the table, a line about the selected
//! row, and one about the keys.

use std::time::Duration;

use evenkeel::observe::quantity::{bytes, rate, span, time};
use evenkeel::observe::rates::{EndpointRates, Traffic, UpstreamRates};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::model::{Mode, Model, Row, Sort};
use crate::Colour;

/// Stands for what is not there.
const NOTHING: &str = "-";
/// What the name's column has at least.
const MIN_NAME_WIDTH: usize = 20;

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

/// In the order of the screen, with what each takes.
const COLUMNS: [(Column, &str, usize); 10] = [
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
];

/// Those that are left out first where there is no room.
const LEFT_OUT: [Column; 4] = [
    Column::BytesIn,
    Column::Weight,
    Column::BytesOut,
    Column::Median,
];

const KEYS: &str = "up/down  d drain  r ready  s stop  w weight  o order  / filter  ? help  q quit";

const HELP: [&str; 16] = [
    "up, down, j, k     select a row; PgUp, PgDn, Home, End",
    "d                  drain: finish what is in flight, nothing new",
    "r                  ready: send requests there again",
    "s                  stop: out of service",
    "w                  another weight",
    "                   on an upstream's row: all of its endpoints",
    "o, O               order by another column, the largest first",
    "/                  only rows with this text; Esc: all again",
    "q, Ctrl-C          quit",
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
    let table_height = area.height - 4;
    frame.render_widget(Paragraph::new(summary(model, paint)), line(0, 1));
    let columns = columns(usize::from(area.width));
    let titles = Paragraph::new(titles(&columns, model, usize::from(area.width)));
    frame.render_widget(titles.style(paint.title()), line(1, 1));
    let lines = table(model, paint, &columns, area.width, table_height);
    frame.render_widget(Paragraph::new(lines), line(2, table_height));
    frame.render_widget(Paragraph::new(detail(model)), line(area.height - 2, 1));
    let last = line(area.height - 1, 1);
    frame.render_widget(Paragraph::new(last_line(model, paint)), last);
    if model.mode == Mode::Help {
        help(frame, area);
    }
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

fn summary(model: &Model, paint: Paint) -> Line<'static> {
    let Some(rates) = &model.rates else {
        return Line::default();
    };
    let sum =
        |of: fn(&Traffic) -> f64| -> f64 { rates.listeners.iter().map(|it| of(&it.traffic)).sum() };
    let errors = sum(|it| it.errors_per_s);
    let open: u64 = rates.listeners.iter().map(|it| it.open).sum();
    let mut spans = vec![
        Span::styled(
            format!("evenkeel {}", rates.version),
            Style::new().add_modifier(Modifier::BOLD),
        ),
        Span::raw(format!(
            "  process {}  up {}  {} req/s  ",
            rates.pid,
            span(Duration::from_millis(rates.uptime_ms)),
            rate(sum(|it| it.requests_per_s)),
        )),
    ];
    let style = match errors > 0.0 {
        true => paint.alarm(),
        false => Style::new(),
    };
    spans.push(Span::styled(format!("{} err/s", rate(errors)), style));
    spans.push(Span::raw(format!("  {open} connections")));
    Line::from(spans)
}

/// The columns for which there is room.
fn columns(width: usize) -> Vec<(Column, &'static str, usize)> {
    let mut columns = COLUMNS.to_vec();
    let taken =
        |columns: &[(Column, &str, usize)]| columns.iter().map(|it| it.2 + 1).sum::<usize>();
    for column in LEFT_OUT {
        if taken(&columns) + MIN_NAME_WIDTH > width {
            columns.retain(|it| it.0 != column);
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
    let mut line = padded("UPSTREAM, ENDPOINT", name_width(columns, width), Side::Left);
    for (column, title, width) in columns {
        let title = match sorted(model.sort) == Some(*column) {
            true => format!("*{title}"),
            false => (*title).to_owned(),
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

/// Exactly so wide; what is too long ends in `~`.
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
    let mut lines: Vec<_> = rows
        .iter()
        .enumerate()
        .skip(offset)
        .take(height)
        .map(|(index, row)| {
            let line = row_line(row, paint, columns, usize::from(width));
            match index == selected {
                true => line.style(Style::new().add_modifier(Modifier::REVERSED)),
                false => line,
            }
        })
        .collect();
    if rows.is_empty() {
        lines.push(Line::raw(match model.filter.is_empty() {
            true => "no upstream is configured",
            false => "no row has this text: Esc shows all again",
        }));
    }
    model.offset = offset;
    lines
}

fn row_line(
    row: &Row<'_>,
    paint: Paint,
    columns: &[(Column, &str, usize)],
    width: usize,
) -> Line<'static> {
    let (name, state, style) = match row {
        Row::Upstream(upstream) => (
            upstream.name.clone(),
            format!("{}/{} up", upstream.eligible, upstream.endpoints.len()),
            Style::new().add_modifier(Modifier::BOLD),
        ),
        Row::Endpoint(_, endpoint) => (
            format!("  {}", endpoint.name),
            endpoint.state.clone(),
            Style::new(),
        ),
    };
    let name = padded(&name, name_width(columns, width), Side::Left);
    let mut spans = vec![Span::styled(name, style)];
    for (column, _, width) in columns {
        let (text, style) = match column {
            Column::State => (state.clone(), state_style(row, paint)),
            Column::Errors if traffic(row).errors_per_s > 0.0 => {
                (cell(row, *column), paint.alarm())
            }
            column => (cell(row, *column), style),
        };
        spans.push(Span::raw(" "));
        spans.push(Span::styled(padded(&text, *width, side(*column)), style));
    }
    Line::from(spans)
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

fn cell(row: &Row<'_>, column: Column) -> String {
    let traffic = traffic(row);
    let quantile = |us: Option<f64>| us.map_or_else(|| NOTHING.to_owned(), time);
    match (column, row) {
        (Column::Requests, _) => rate(traffic.requests_per_s),
        (Column::Errors, _) => rate(traffic.errors_per_s),
        (Column::Median, _) => quantile(traffic.p50_us),
        (Column::P99, _) => quantile(traffic.p99_us),
        (Column::BytesIn, _) => bytes(traffic.bytes_in_per_s),
        (Column::BytesOut, _) => bytes(traffic.bytes_out_per_s),
        (Column::InFlight, Row::Upstream(it)) => it.in_flight.to_string(),
        (Column::InFlight, Row::Endpoint(_, it)) => match it.max_in_flight {
            Some(most) => format!("{}/{most}", it.in_flight),
            None => it.in_flight.to_string(),
        },
        (Column::Queue, Row::Upstream(it)) => it.waiting.to_string(),
        (Column::Weight, Row::Endpoint(_, it)) => it.weight.to_string(),
        (Column::State | Column::Queue | Column::Weight, _) => String::new(),
    }
}

/// What the table has no room for.
fn detail(model: &Model) -> String {
    let rows = model.rows();
    match rows.get(model.selected(&rows)) {
        None => String::new(),
        Some(Row::Upstream(upstream)) => upstream_detail(upstream),
        Some(Row::Endpoint(upstream, endpoint)) => endpoint_detail(upstream, endpoint),
    }
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
fn last_line(model: &Model, paint: Paint) -> Line<'static> {
    let strong = Style::new().add_modifier(Modifier::BOLD);
    match &model.mode {
        Mode::Filter => Line::styled(
            format!(
                "only rows with: {}_   Enter keeps it, Esc shows all",
                model.filter
            ),
            strong,
        ),
        Mode::Confirm { verb, target } => {
            let what = match *verb {
                "ready" => "make ready",
                verb => verb,
            };
            Line::styled(format!("{what} {}?  y/n", target.words()), strong)
        }
        Mode::Weight { target, digits } => Line::styled(
            format!(
                "weight of {}: {digits}_   Enter sets it, Esc does not",
                target.words()
            ),
            strong,
        ),
        Mode::Table | Mode::Help => match (&model.lost, model.message()) {
            (Some(error), _) => {
                Line::styled(format!("no news, trying again: {error}"), paint.alarm())
            }
            (None, Some(message)) => Line::styled(message.to_owned(), strong),
            (None, None) if !model.filter.is_empty() => Line::raw(format!(
                "only rows with `{}`: Esc shows all.  {KEYS}",
                model.filter
            )),
            (None, None) => Line::raw(KEYS),
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
