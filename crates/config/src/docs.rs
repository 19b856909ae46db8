//! The reference page of the configuration.

use std::fmt::Write;

use super::print;
use super::setting::Setting;
use super::shape::{KeyShape, Presence, Shape, TableShape};
use super::written::File;

/// The reference page, in Markdown.
pub fn reference() -> String {
    let mut page = include_str!("introduction.md").to_owned();
    if let Shape::Table(file) = File::shape() {
        for key in &file.keys {
            section(&mut page, key);
        }
    }
    page
}

/// The section of a key of the first level, and one for each table below it.
fn section(page: &mut String, key: &KeyShape) {
    let (heading, shape) = match &key.shape {
        Shape::List(item) if table_in(item).is_some() => (format!("[[{}]]", key.key), &**item),
        Shape::List(item) => (key.key.to_owned(), &**item),
        Shape::Map(item) => (format!("[{}.NAME]", key.key), &**item),
        shape => (format!("[{}]", key.key), shape),
    };
    // Writing to a string cannot fail.
    let _ = write!(page, "\n## `{heading}`\n\n{}", key.help);
    if let Presence::Optional(words) = key.presence {
        let _ = write!(page, " Default: {words}.");
    }
    page.push('\n');
    let Some(table) = table_in(shape) else { return };
    keys(page, table);
    tables_below(page, key.key, table);
}

fn tables_below(page: &mut String, path: &str, table: &TableShape) {
    for key in &table.keys {
        let shape = match &key.shape {
            Shape::List(item) => item,
            shape => shape,
        };
        if let Some(inner) = table_in(shape) {
            let path = format!("{path}.{}", key.key);
            let _ = write!(page, "\n### `{path}`\n\n{}\n", inner.about);
            keys(page, inner);
            tables_below(page, &path, inner);
        }
    }
}

fn table_in(shape: &Shape) -> Option<&TableShape> {
    match shape {
        Shape::Table(table) => Some(table),
        Shape::AnyOf(shapes) => {
            let mut tables = shapes.iter().filter_map(table_in);
            tables.find(|it| !it.is_form())
        }
        _ => None,
    }
}

fn keys(page: &mut String, table: &TableShape) {
    page.push_str("\n| key | value | default | what it does |\n|---|---|---|---|\n");
    for key in &table.keys {
        let default = match key.presence {
            Presence::Required => "required".to_owned(),
            Presence::RequiredWithout(other) => format!("required without `{other}`"),
            Presence::Default("{}" | "[]") => String::new(),
            Presence::Default(text) => format!("`{}`", print::default_text(text)),
            Presence::Optional(words) | Presence::Depends(_, words) => words.to_owned(),
        };
        let mut help = key.help.clone();
        for choice in choices(&key.shape) {
            let _ = write!(help, "<br>`\"{}\"`: {}", choice.word, choice.help);
        }
        let (value, help) = (cell(&key.shape.brief()), cell(&help));
        let _ = writeln!(
            page,
            "| `{}` | {value} | {} | {help} |",
            key.key,
            cell(&default)
        );
    }
}

fn choices(shape: &Shape) -> &[super::shape::Choice] {
    match shape {
        Shape::Choice(choices) => choices,
        Shape::AnyOf(shapes) => shapes
            .iter()
            .map(choices)
            .find(|it| !it.is_empty())
            .unwrap_or(&[]),
        _ => &[],
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
