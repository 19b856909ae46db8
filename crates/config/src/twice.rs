//! A key or a table that is written twice: where it stands the first time.

use std::ops::Range;

use super::tree::{Node, Value, line_start, offset};

/// A thing that is written twice.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Twice {
    /// `[name]` or `[[name]]`, which is to say all of its keys.
    Table {
        name: String,
    },
    Key {
        name: String,
    },
}

/// The thing that the parser found a second time at `second`.
pub(super) fn what(text: &str, second: &Range<usize>) -> Twice {
    match header(text, second.start) {
        Some(name) => Twice::Table {
            name: keys(name).join("."),
        },
        None => Twice::Key {
            name: bare(&text[second.clone()]),
        },
    }
}

/// The end of the table whose header is around `at`: the next header.
pub(super) fn table_end(text: &str, at: usize) -> usize {
    let mut below = lines(&text[at..]).skip(1);
    let next = below.find(|(_, line)| is_header(line));
    next.map_or(text.len(), |(start, _)| at + start)
}

/// The first place of the key at `second`. `root` is the tree that was read of `text`.
pub(super) fn first(root: &Node, text: &str, second: &Range<usize>) -> Option<Range<usize>> {
    if let Some(table) = inline_table(root, text, second.start) {
        let found = &table.entry(&bare(&text[second.clone()]))?.key_place.range;
        return (found.start < second.start).then(|| found.clone());
    }
    let line_start = line_start(text, second.start);
    let (start, wanted) = match header(text, second.start) {
        Some(name) => (0, keys(name)),
        None => {
            let above = lines(&text[..line_start]).filter(|(_, line)| is_header(line));
            let table = above.map(|(at, line)| at + line.len()).last();
            (table.unwrap_or(0), keys(&text[line_start..second.end]))
        }
    };
    // The keys of the header above a line, where tables are looked for.
    let mut above = Vec::new();
    let mut found = None;
    for (at, line) in lines(&text[start..line_start]) {
        let (path, own) = match header(line, 0) {
            Some(name) => {
                above = keys(name);
                // A further item of a list begins its own tables.
                if line.trim_start().starts_with("[[") && wanted.starts_with(&above) {
                    found = None;
                }
                (above.clone(), name)
            }
            None => match line.split_once('=') {
                Some((own, _)) => ([above.clone(), keys(own)].concat(), own),
                None => continue,
            },
        };
        if path == wanted && found.is_none() {
            let last = own.rsplit('.').next()?.trim();
            let start = start + at + offset(line, last);
            found = Some(start..start + last.len());
        }
    }
    found
}

/// The document with multi-line texts blanked out, since they hold no keys or headers. Every
/// byte keeps its offset.
pub(super) fn without_long_texts(text: &str) -> String {
    let mut left = text.as_bytes().to_vec();
    let mut at = 0;
    while let Some(&byte) = text.as_bytes().get(at) {
        let rest = &text[at..];
        let len = match byte {
            b'#' => {
                at += rest.find('\n').unwrap_or(rest.len());
                continue;
            }
            b'"' | b'\'' => text_len(rest, char::from(byte)),
            _ => {
                at += rest.chars().next().map_or(1, char::len_utf8);
                continue;
            }
        };
        let token = &mut left[at..at + len];
        if token.contains(&b'\n') {
            let inner = token.iter_mut().filter(|it| **it != b'\n');
            inner.for_each(|it| *it = b' ');
        }
        at += len;
    }
    String::from_utf8_lossy(&left).into_owned()
}

/// The length of the text in quotes that `rest` begins with.
fn text_len(rest: &str, quote: char) -> usize {
    let long = [quote; 3].iter().collect::<String>();
    let is_long = rest.starts_with(&long);
    let end = if is_long { long.as_str() } else { &long[..1] };
    let mut at = end.len();
    while let Some(next) = rest[at..].chars().next() {
        if rest[at..].starts_with(end) {
            return at + end.len();
        }
        match next {
            // It ends with its line, closed or not.
            '\n' if !is_long => return at,
            '\\' if quote == '"' => {
                at += 1 + rest[at + 1..].chars().next().map_or(0, char::len_utf8);
            }
            _ => at += next.len_utf8(),
        }
    }
    rest.len()
}

/// Lines with their ends, and where each begins.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.split_inclusive('\n');
    lines.map(move |line| (offset(text, line), line))
}

/// The innermost table in braces around a byte.
fn inline_table<'a>(node: &'a Node, text: &str, at: usize) -> Option<&'a Node> {
    let inner = match &node.value {
        Value::Table(entries) => entries
            .iter()
            .find_map(|it| inline_table(&it.node, text, at)),
        Value::List(items) => items.iter().find_map(|it| inline_table(it, text, at)),
        _ => return None,
    };
    let range = &node.place.range;
    let is_around = range.contains(&at) && text[range.clone()].starts_with('{');
    inner.or(is_around.then_some(node))
}

/// The keys of the header that a byte is in.
fn header(text: &str, at: usize) -> Option<&str> {
    let line = text[line_start(text, at)..].lines().next()?;
    let inner = line.trim_start().trim_start_matches('[');
    is_header(line).then(|| inner.split(']').next().unwrap_or_default())
}

/// Whether a line has nothing but the name of a table, and maybe a comment.
fn is_header(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default().trim();
    let is_of_name = |it: char| it.is_alphanumeric() || " []_-.\"'".contains(it);
    line.starts_with('[') && line.ends_with(']') && line.chars().all(is_of_name)
}

/// The keys of a path with dots, without their quotes.
fn keys(path: &str) -> Vec<String> {
    let keys = path.split('.').map(bare);
    keys.filter(|it| !it.is_empty()).collect()
}

fn bare(key: &str) -> String {
    key.trim().trim_matches(['"', '\'']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostics::Origin;
    use crate::diagnostics::Report;
    use crate::document::read_document;

    #[test]
    fn the_first_of_two() {
        for text in [
            "«a» = 1\n»a« = 2",
            "[s]\nb = 1\n«a» = 1\n\"x\" = 1\n»'a'« = 2",
            "[s]\nt = { «a» = 1, b = 2, »a« = 3 }",
            "[s]\nt = [\n { a = 1 },\n { «a» = 1, »a« = 3 },\n]",
            "[s]\nb.«a» = 1\nb.»a« = 2",
            "[[s]]\na = 1\n[[s]]\n«a» = 1\n»a« = 2\n[[s]]\na = 1",
            "[«s»]\na = 1\n[t]\na = 1\n[»s«] # c\nb = 2",
            "[s.«t»]\na = 1\n[u.t]\na = 1\n[s . \"»t«\"]\na = 2",
            "[[s]]\n[s.t]\na = 1\n[[s]]\n[s.«t»]\na = 1\n[s.»t«]\na = 2",
            "«s» = { a = 1 }\n[»s«]\nb = 2",
            "[s]\nb = \"\"\"\na = 1\n\"\"\"\n«a» = 1\n»a« = 2",
            "[s]\n«a» = 1\nb = '''\n[t] # \na = 1\n'''\n»a« = 2",
            "«a» = 1\nb = \"\\\"\" # \"\"\"\n»a« = 2",
        ] {
            let plain = |text: &str| text.replace(['«', '»'], "");
            let at = |mark: &str| plain(&text[..text.find(mark).unwrap()]).len();
            let text_alone = plain(text);
            let mut report = Report::default();
            let source = report.add_source(Origin::File("test".into()), text_alone.as_str());
            let root = read_document(source, &mut report);
            let second = second_of(text);
            let found = first(&root, &without_long_texts(&text_alone), &second);
            assert_eq!(found.map(|it| it.start), Some(at("«")), "{text}");
            assert!(report.to_string().contains("the first time"), "{report}");
        }
    }

    /// The range between the marks `»` and `«`, without marks.
    fn second_of(text: &str) -> Range<usize> {
        let after_first = text.find('»').unwrap() + '»'.len_utf8();
        let open = after_first + text[after_first..].find('»').unwrap();
        let close = open + text[open..].find('«').unwrap();
        let plain = |text: &str| text.replace(['«', '»'], "").len();
        plain(&text[..open])..plain(&text[..close])
    }
}
