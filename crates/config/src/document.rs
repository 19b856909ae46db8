//! A TOML document, read into the tree; its syntax errors in words that help.

use super::diagnostics::Report;
use super::form;
use super::not_toml;
use super::tree::{self, Node, SourcePlace, Value, line_start};
use super::twice::{self, Twice};

use toml::de::DeTable;

/// Reads a whole document; syntax errors go to `report`, and what could be
/// read around them is returned.
pub(super) fn read_document(source: usize, report: &mut Report) -> Node {
    let text = report.source_text(source).to_owned();
    let (table, errors) = DeTable::parse_recoverable(&text);
    let at = |range| SourcePlace { source, range };
    let root = Node {
        place: at(0..0),
        value: tree::table_value(table.into_inner(), &at),
    };
    let look = (!errors.is_empty()).then(|| not_toml::language(&text));
    if let Some((language, range)) = look.flatten() {
        report.no_toml(&at(range), language);
        return Node {
            place: at(0..0),
            value: Value::Table(Vec::new()),
        };
    }
    // Up to where the keys belong to a table that is written twice.
    let mut twice_end = 0;
    let mut lines = None;
    // A known mistake says more of its line than all that the parser says.
    let mut explained = Vec::new();
    let errors: Vec<_> = errors.into_iter().collect();
    let line_of =
        |error: &toml::de::Error| line_start(&text, error.span().map_or(0, |it| it.start));
    // A text that is not closed takes the bracket behind it along.
    let unclosed = errors.iter().filter(|it| is_unclosed_text(it.message()));
    let unclosed: Vec<_> = unclosed.map(line_of).collect();
    let follows = |error: &toml::de::Error| {
        error.message().starts_with("unclosed") && unclosed.contains(&line_of(error))
    };
    for error in errors.iter().filter(|it| !follows(it)) {
        let range = error.span().unwrap_or(0..0);
        if error.message() != DUPLICATE {
            let line = line_start(&text, range.start);
            let is_new = !explained.contains(&line);
            if is_new
                && report_syntax(&text, at(range), error.message(), report) == MessageSource::Known
            {
                explained.push(line);
            }
        } else if range.start >= twice_end {
            let text = lines.get_or_insert_with(|| twice::without_long_texts(&text));
            let first = twice::first(&root, text, &range).map(at);
            let what = twice::what(text, &range);
            if matches!(what, Twice::Table { .. }) {
                twice_end = twice::table_end(text, range.start);
            }
            report.twice(at(range), first, &what);
        }
    }
    root
}

/// How the parser calls a text without a quote at its end.
const UNCLOSED_TEXT: [&str; 2] = [
    "invalid basic string, expected `\"`",
    "invalid literal string",
];

fn is_unclosed_text(said: &str) -> bool {
    UNCLOSED_TEXT.iter().any(|it| said.starts_with(it))
}

/// How the parser calls a key that is written twice.
const DUPLICATE: &str = "duplicate key";

/// Whether our own words or the parser's describe a mistake in a line.
#[derive(Debug, PartialEq, Eq)]
enum MessageSource {
    /// The line is a known mistake.
    Known,
    /// The parser's words alone.
    Parser,
}

/// Reports a syntax error. For a known mistake the message says more than the parser's.
fn report_syntax(text: &str, place: SourcePlace, said: &str, report: &mut Report) -> MessageSource {
    let start = line_start(text, place.range.start);
    let line = text[start..].lines().next().unwrap_or_default();
    if let Some((offset, what)) = not_toml::lookalike(line) {
        let letter = text[start + offset..].chars().next().unwrap_or_default();
        let range = start + offset..start + offset + letter.len_utf8();
        let shown = letter.escape_debug();
        let place = SourcePlace { range, ..place };
        report.syntax_mistake(place, &format!("`{shown}` is {what}"));
        return MessageSource::Known;
    }
    let value = text.get(place.range.clone()).and_then(form::boolean);
    let is_semicolon = text[place.range.start.min(text.len())..].starts_with(';');
    let found = report.syntax_mistake(place, said);
    if let Some(value) = value {
        found.help(format!("write `{value}`"));
        return MessageSource::Known;
    }
    if is_semicolon {
        found.help("TOML has no `;` at the end of a line: leave it out");
        return MessageSource::Known;
    }
    if is_unclosed_text(said) {
        found.help("close the text on the same line, with the quote that it began with");
        return MessageSource::Parser;
    }
    if !not_toml::is_assignment(line) {
        return MessageSource::Parser;
    }
    found.help("write `=` between a key and its value");
    MessageSource::Known
}
