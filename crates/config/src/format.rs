//! `evenkeel fmt`: the layout of a configuration file.
//!
//! Works on the tokens of the file, so comments, the order of keys and the way that a value
//! is written stay. Only white space changes, and a list over several lines gets a comma
//! after its last item. The rules:
//!
//! - one blank line before each table, and never two in a row
//! - no indentation, but four spaces for each list around an item
//! - `key = value`, `[1, 2]`, `{ a = 1, b = 2 }`
//! - a list that was written over several lines has one item a line, as has an array that
//!   makes its line longer than 100 columns
//! - a comment behind a value stays in its column where the value leaves room

use std::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};
use toml_parser::Source;
use toml_parser::lexer::{Token, TokenKind};

use super::diagnostics::Report;
use super::source_files::{self, MAX_FILE_BYTES};

/// Columns from which on an array is written over several lines.
const WIDTH: usize = 100;
/// Spaces in front of an item, for each list around it.
const INDENT: usize = 4;

/// Lays out a file; `name` stands in messages.
///
/// Formatting its own result again changes nothing. Lines end with `\n` alone, and a mark of
/// the byte order goes.
///
/// # Errors
///
/// Every syntax error, a comment between a key and its value, and a result that is too long.
/// Unknown keys and wrong values are none.
pub fn format(name: &Path, bytes: &[u8]) -> Result<String, Report> {
    let mut report = Report::default();
    source_files::read_bytes(name, bytes.to_owned(), &mut report);
    report.settle();
    let text = match std::str::from_utf8(bytes) {
        Ok(text) if !report.has_mistakes() => text,
        _ => return Err(report),
    };
    let bare = text.strip_prefix('\u{feff}').unwrap_or(text);
    let formatted = layout(bare);
    // TOML 1.1 allows comments in places from which nothing can move them.
    if !says_the_same(bare, &formatted) {
        report.mistake_without_place(format!(
            "{}: a comment stands between a key and its value; move it, and format again",
            name.display()
        ));
        return Err(report);
    }
    if formatted.len() as u64 > MAX_FILE_BYTES {
        report.mistake_without_place(format!(
            "{} would be longer than {} MiB, the most that a configuration file may have",
            name.display(),
            MAX_FILE_BYTES >> 20
        ));
        return Err(report);
    }
    Ok(formatted)
}

fn layout(text: &str) -> String {
    let mut reader = Reader {
        text,
        tokens: Source::new(text).lex().into_vec(),
        next: 0,
    };
    let mut lines = Lines::default();
    while reader.kind() != TokenKind::Eof {
        lines.push(&reader.line());
    }
    lines.text
}

/// Whether both have the same keys and values, and as many comments.
fn says_the_same(before: &str, after: &str) -> bool {
    let comments = |text| {
        let tokens = Source::new(text).lex();
        tokens.filter(|it| it.kind() == TokenKind::Comment).count()
    };
    match (DeTable::parse(before), DeTable::parse(after)) {
        (Ok(before_table), Ok(after_table)) => {
            comments(before) == comments(after)
                && is_same_table(before_table.get_ref(), after_table.get_ref())
        }
        _ => false,
    }
}

fn is_same_table(one: &DeTable<'_>, other: &DeTable<'_>) -> bool {
    one.len() == other.len()
        && one
            .iter()
            .zip(other.iter())
            .all(|((key, value), (other_key, other_value))| {
                key.get_ref() == other_key.get_ref()
                    && is_same_value(value.get_ref(), other_value.get_ref())
            })
}

fn is_same_value(one: &DeValue<'_>, other: &DeValue<'_>) -> bool {
    match (one, other) {
        (DeValue::Table(one), DeValue::Table(other)) => is_same_table(one, other),
        (DeValue::Array(one), DeValue::Array(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .zip(other.iter())
                    .all(|(one, other)| is_same_value(one.get_ref(), other.get_ref()))
        }
        // Without places: a number is its digits.
        (one, other) => format!("{one:?}") == format!("{other:?}"),
    }
}

/// What stands between two line breaks outside every list.
struct Line<'a> {
    is_header: bool,
    parts: Vec<Part<'a>>,
    comment: Option<Comment<'a>>,
}

enum Part<'a> {
    /// A key, a text, a number, or one of the marks between them.
    Word(&'a str),
    /// ` = `
    Equals,
    List(List<'a>),
}

/// An array or an inline table.
struct List<'a> {
    is_table: bool,
    /// Whether it was written over several lines.
    is_spread: bool,
    rows: Vec<Row<'a>>,
}

enum Row<'a> {
    Blank,
    Comment(&'a str),
    Item {
        parts: Vec<Part<'a>>,
        comment: Option<Comment<'a>>,
    },
}

struct Comment<'a> {
    text: &'a str,
    /// Characters from the first one of its line.
    column: usize,
}

struct Reader<'a> {
    text: &'a str,
    /// Invariant: ends with one of the kind `Eof`.
    tokens: Vec<Token>,
    next: usize,
}

impl<'a> Reader<'a> {
    fn kind(&self) -> TokenKind {
        self.tokens[self.next].kind()
    }

    fn range(&self) -> Range<usize> {
        let span = self.tokens[self.next].span();
        span.start()..span.end()
    }

    fn word(&self) -> &'a str {
        &self.text[self.range()]
    }

    fn take(&mut self) -> &'a str {
        let word = self.word();
        if self.kind() != TokenKind::Eof {
            self.next += 1;
        }
        word
    }

    fn skip(&mut self, kind: TokenKind) -> bool {
        let is_there = self.kind() == kind;
        if is_there {
            self.take();
        }
        is_there
    }

    fn line(&mut self) -> Line<'a> {
        self.skip(TokenKind::Whitespace);
        let is_header = self.kind() == TokenKind::LeftSquareBracket;
        let parts = if is_header {
            self.header()
        } else {
            self.parts()
        };
        let comment = self.comment();
        self.skip(TokenKind::Newline);
        Line {
            is_header,
            parts,
            comment,
        }
    }

    /// `[table]` or `[[table]]`.
    fn header(&mut self) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        while !matches!(
            self.kind(),
            TokenKind::Comment | TokenKind::Newline | TokenKind::Eof
        ) {
            if !self.skip(TokenKind::Whitespace) {
                parts.push(Part::Word(self.take()));
            }
        }
        parts
    }

    /// Keys and a value, or a value alone, up to what ends them.
    fn parts(&mut self) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        let mut is_behind_atom = false;
        loop {
            let space = self.skip(TokenKind::Whitespace);
            if self.is_break_in_pair(parts.last()) {
                self.take();
                continue;
            }
            let kind = self.kind();
            match kind {
                TokenKind::Comment
                | TokenKind::Newline
                | TokenKind::Comma
                | TokenKind::RightSquareBracket
                | TokenKind::RightCurlyBracket
                | TokenKind::Eof => return parts,
                TokenKind::Equals => {
                    self.take();
                    parts.push(Part::Equals);
                }
                TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket => {
                    parts.push(Part::List(self.list()));
                }
                _ => {
                    // A date and its time.
                    if space && is_behind_atom && kind == TokenKind::Atom {
                        parts.push(Part::Word(" "));
                    }
                    parts.push(Part::Word(self.take()));
                }
            }
            is_behind_atom = kind == TokenKind::Atom;
        }
    }

    /// Whether a line ends beside the `=` of a pair, which TOML 1.1 allows in inline tables.
    fn is_break_in_pair(&self, last: Option<&Part<'_>>) -> bool {
        if self.kind() != TokenKind::Newline {
            return false;
        }
        let mut rest = self.tokens[self.next..].iter().map(Token::kind);
        let is_space = |it: &TokenKind| matches!(it, TokenKind::Newline | TokenKind::Whitespace);
        let next = rest.find(|it| !is_space(it));
        matches!(last, Some(Part::Equals)) || (last.is_some() && next == Some(TokenKind::Equals))
    }

    fn list(&mut self) -> List<'a> {
        let mut list = List {
            is_table: self.kind() == TokenKind::LeftCurlyBracket,
            is_spread: false,
            rows: Vec::new(),
        };
        self.take();
        // Line breaks since the last row.
        let mut breaks = 0;
        loop {
            self.skip(TokenKind::Whitespace);
            match self.kind() {
                TokenKind::Newline => {
                    self.take();
                    breaks += 1;
                    list.is_spread = true;
                    continue;
                }
                TokenKind::Comma => {
                    self.take();
                    continue;
                }
                TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket => {
                    self.take();
                    return list;
                }
                TokenKind::Eof => return list,
                _ => {}
            }
            if breaks > 1 && !list.rows.is_empty() {
                list.rows.push(Row::Blank);
            }
            match (self.comment(), list.rows.last_mut()) {
                (None, _) => list.rows.push(Row::Item {
                    parts: self.parts(),
                    comment: None,
                }),
                // On the line of the item before.
                (found, Some(Row::Item { comment, .. })) if breaks == 0 => *comment = found,
                (Some(comment), _) => list.rows.push(Row::Comment(comment.text)),
            }
            breaks = 0;
        }
    }

    fn comment(&mut self) -> Option<Comment<'a>> {
        if self.kind() != TokenKind::Comment {
            return None;
        }
        let start = self.range().start;
        let line = self.text[..start].rsplit('\n').next().unwrap_or_default();
        let column = line.trim_start().chars().count();
        let text = self.take().trim_end_matches([' ', '\t', '\r']);
        Some(Comment { text, column })
    }
}

/// The lines that are written.
#[derive(Default)]
struct Lines {
    text: String,
    /// A blank line comes before the next one.
    is_apart: bool,
    /// The last line is a comment alone, which may belong to the table below it.
    is_below_comment: bool,
}

impl Lines {
    fn push(&mut self, line: &Line<'_>) {
        let is_first = self.text.is_empty();
        if line.parts.is_empty() && line.comment.is_none() {
            self.is_apart = !is_first;
            return;
        }
        if self.is_apart || (line.is_header && !is_first && !self.is_below_comment) {
            self.text.push('\n');
        }
        let written = line_of(&line.parts, line.comment.as_ref(), 0, "");
        self.text.push_str(&written);
        self.text.push('\n');
        self.is_apart = false;
        self.is_below_comment = line.parts.is_empty();
    }
}

/// A value with its comment, behind so many spaces, and `end` behind the value.
fn line_of(parts: &[Part<'_>], comment: Option<&Comment<'_>>, indent: usize, end: &str) -> String {
    let mut line = " ".repeat(indent);
    write_parts(parts, indent, &mut line);
    line.push_str(end);
    if let Some(comment) = comment {
        // Behind a list over several lines, the comment stands close.
        let width = line.chars().count() - indent;
        let gap = match comment.column.checked_sub(width) {
            _ if parts.is_empty() => 0,
            Some(gap @ 1..) if !line.contains('\n') => gap,
            _ => 1,
        };
        line.push_str(&" ".repeat(gap));
        line.push_str(comment.text);
    }
    line
}

fn write_parts(parts: &[Part<'_>], indent: usize, line: &mut String) {
    let room = WIDTH.saturating_sub(column(line));
    let is_long = width(parts, room).is_none();
    for part in parts {
        match part {
            Part::Word(word) => line.push_str(word),
            Part::Equals => line.push_str(" = "),
            Part::List(list) if is_long => write_list(list, indent, line),
            Part::List(list) => write_flat(list, line),
        }
    }
}

/// Characters in the last line, or `WIDTH` where there are more.
fn column(text: &str) -> usize {
    let last = text.chars().rev().take_while(|it| *it != '\n');
    last.take(WIDTH).count()
}

/// Columns on one line; `None` where there are more than `limit`, or a list within has
/// several lines. Looks at no more than `limit` columns.
fn width(parts: &[Part<'_>], limit: usize) -> Option<usize> {
    let mut sum = 0;
    for part in parts {
        sum += match part {
            Part::Word(word) => word.chars().take(limit + 1).count(),
            Part::Equals => 3,
            Part::List(list) => list.width(limit.checked_sub(sum)?)?,
        };
    }
    (sum <= limit).then_some(sum)
}

impl List<'_> {
    /// The same for a list.
    fn width(&self, limit: usize) -> Option<usize> {
        let mut sum: usize = self.brackets().iter().map(|it| it.len()).sum();
        for (index, row) in self.rows.iter().enumerate() {
            let Row::Item {
                parts,
                comment: None,
            } = row
            else {
                return None;
            };
            sum += if index > 0 { 2 } else { 0 };
            sum += width(parts, limit.checked_sub(sum)?)?;
        }
        (!self.is_spread && sum <= limit).then_some(sum)
    }

    fn brackets(&self) -> [&'static str; 2] {
        match (self.is_table, self.rows.is_empty()) {
            (true, true) => ["{", "}"],
            (true, false) => ["{ ", " }"],
            (false, _) => ["[", "]"],
        }
    }
}

fn write_flat(list: &List<'_>, line: &mut String) {
    let [open, close] = list.brackets();
    line.push_str(open);
    for (index, row) in list.rows.iter().enumerate() {
        if index > 0 {
            line.push_str(", ");
        }
        if let Row::Item { parts, .. } = row {
            for part in parts {
                match part {
                    Part::Word(word) => line.push_str(word),
                    Part::Equals => line.push_str(" = "),
                    Part::List(list) => write_flat(list, line),
                }
            }
        }
    }
    line.push_str(close);
}

/// Writes a list that is too long for its line, or was written over several.
fn write_list(list: &List<'_>, indent: usize, line: &mut String) {
    let [open, close] = list.brackets();
    if list.is_table && !list.is_spread {
        // TOML 1.0 has inline tables on one line; a list in one may have several.
        line.push_str(open);
        for (index, row) in list.rows.iter().enumerate() {
            if index > 0 {
                line.push_str(", ");
            }
            if let Row::Item { parts, .. } = row {
                write_parts(parts, indent, line);
            }
        }
        line.push_str(close);
        return;
    }
    line.push_str(open.trim_end());
    let inner = indent + INDENT;
    for row in &list.rows {
        line.push('\n');
        match row {
            Row::Blank => {}
            Row::Comment(text) => {
                line.push_str(&" ".repeat(inner));
                line.push_str(text);
            }
            Row::Item { parts, comment } => {
                line.push_str(&line_of(parts, comment.as_ref(), inner, ","));
            }
        }
    }
    line.push('\n');
    line.push_str(&" ".repeat(indent));
    line.push_str(close.trim_start());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostics::Colour;

    #[track_caller]
    fn formatted(text: &str) -> String {
        let once = format(Path::new("a.toml"), text.as_bytes());
        let once = once.unwrap_or_else(|report| panic!("{}", report.render(Colour::Off)));
        let twice = format(Path::new("a.toml"), once.as_bytes()).unwrap();
        assert_eq!(once, twice, "formatted twice");
        once
    }

    #[test]
    fn white_space() {
        let table = [
            ("", ""),
            ("\n\n\na=1\n\n\n\nb  =  2\n\n", "a = 1\n\nb = 2\n"),
            ("  a . \"b c\"=1", "a.\"b c\" = 1\n"),
            ("a=[1,2 , 3,]\r\n", "a = [1, 2, 3]\n"),
            ("a={b=1,c={}}", "a = { b = 1, c = {} }\n"),
            ("a=1.5 \nb = -3e5", "a = 1.5\nb = -3e5\n"),
            ("a = 1979-05-27 07:32:00", "a = 1979-05-27 07:32:00\n"),
            ("a='''\n  x\n'''\n", "a = '''\n  x\n'''\n"),
        ];
        for (before, after) in table {
            assert_eq!(formatted(before), after);
        }
    }

    #[test]
    fn tables_stand_apart() {
        let before = "[ a ]\nb=1\n[[ c . d ]]\n[e]\n# of f\n[f]\n\n\n# alone\n\n[g]";
        let after = "[a]\nb = 1\n\n[[c.d]]\n\n[e]\n# of f\n[f]\n\n# alone\n\n[g]\n";
        assert_eq!(formatted(before), after);
    }

    #[test]
    fn comments_stay_in_their_column() {
        let before = "a=1      # one\nbc =1#two\n   # three  \nlong = \"value\" # four\n";
        let after = "a = 1    # one\nbc = 1 # two\n# three\nlong = \"value\" # four\n";
        let after = after.replace("bc = 1 # two", "bc = 1 #two");
        assert_eq!(formatted(before), after);
    }

    #[test]
    fn lists_over_several_lines() {
        let before = "a = [ 1,\n  2, # two\n\n\n  # three\n  { b=[3\n] } ] # end\nc = [\n]\n";
        let after = "a = [\n    1,\n    2, # two\n\n    # three\n    { b = [\n        3,\n    ] },\n] # end\nc = [\n]\n";
        assert_eq!(formatted(before), after);
        let long: Vec<_> = (0..40).map(|it| it.to_string()).collect();
        let long = format!("a = [{}]", long.join(","));
        assert_eq!(formatted(&long).lines().count(), 42);
        let short = formatted("a = [\"10.0.0.1:8080\",\"10.0.0.2:8080\"]");
        assert_eq!(short.lines().count(), 1);
    }

    #[test]
    fn pairs_over_several_lines() {
        for before in ["a = { b\n= 1 }", "a = { b =\n\n  1 }"] {
            assert_eq!(formatted(before), "a = { b = 1 }\n");
        }
        // Nothing says where such a comment belongs.
        for before in ["a = { b = # c\n1 }", "a = { b # c\n= 1 }"] {
            let report = format(Path::new("a.toml"), before.as_bytes()).unwrap_err();
            let said = report.render(Colour::Off);
            assert!(said.contains("a.toml: a comment stands between"), "{said}");
        }
    }

    #[test]
    fn a_result_that_is_too_long_is_refused() {
        let text = format!("a = [{}]", "1,".repeat((MAX_FILE_BYTES / 4) as usize));
        let report = format(Path::new("a.toml"), text.as_bytes()).unwrap_err();
        assert!(report.render(Colour::Off).contains("16 MiB"));
    }

    #[test]
    fn mistakes_are_refused() {
        let report = format(Path::new("a.toml"), b"a = [1\nb = 2\n").unwrap_err();
        assert!(report.render(Colour::Off).contains("a.toml:"));
        format(Path::new("a.toml"), b"a = \xff\n").unwrap_err();
        format(Path::new("a.toml"), b"no_such_key = 1\n").unwrap();
    }
}
