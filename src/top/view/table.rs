//! The table: its columns, and a line for each upstream and endpoint.

use std::collections::HashMap;

use evenkeel::observe::rates::Traffic;
use evenkeel_metrics::quantity::{bytes, rate, time};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use super::names::shortened;
use super::{NOTHING, Paint, Side, WIDE, padded};
use crate::top::model::{Model, Row, Sort};

/// A column behind the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
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
    /// In the order of the screen, with title and width.
    columns: &'static [(Column, &'static str, usize)],
    /// Columns that are left out where there is no room, the first one first.
    left_out: &'static [Column],
    /// The least width of the name's column.
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

/// The columns for which there is room.
pub(super) fn columns(width: usize) -> Vec<(Column, &'static str, usize)> {
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

pub(super) fn titles(columns: &[(Column, &str, usize)], model: &Model, width: usize) -> String {
    let name_width = name_width(columns, width);
    let name = if name_width < "UPSTREAM, ENDPOINT".len() {
        "ENDPOINT"
    } else {
        "UPSTREAM, ENDPOINT"
    };
    let mut line = padded(name, name_width, Side::Left);
    for (column, title, width) in columns {
        // Without room, the mark of the order replaces the title's end.
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

fn side(column: Column) -> Side {
    match column {
        Column::State => Side::Left,
        _ => Side::Right,
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

pub(super) fn table(
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
            "no row contains this text: Esc shows all"
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

pub(super) fn traffic<'a>(row: &Row<'a>) -> &'a Traffic {
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
