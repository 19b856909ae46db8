//! Files that are no TOML: of another program, of another encoding, or no text.

use std::ops::Range;

use super::tree::offset;

/// Why the bytes of a file are no text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoText {
    /// A line, counted from 1, with a byte that no text has.
    Binary { line: usize },
    /// Every character takes two bytes.
    Utf16,
    /// A byte that is not part of a character, with its place.
    Byte { byte: u8, at: usize },
}

/// The fault in the encoding of a file, if there is one.
pub(super) fn encoding(bytes: &[u8]) -> Option<NoText> {
    if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
        return Some(NoText::Utf16);
    }
    if let Some(at) = bytes.iter().position(|it| *it == 0) {
        let line = 1 + bytes[..at].iter().filter(|it| **it == b'\n').count();
        return Some(NoText::Binary { line });
    }
    let error = std::str::from_utf8(bytes).err()?;
    let at = error.valid_up_to();
    Some(NoText::Byte {
        byte: bytes[at],
        at,
    })
}

/// Advice for a byte that is no UTF-8.
pub(super) fn byte_help(byte: u8) -> String {
    let save = "save the file as UTF-8";
    match byte {
        // In Latin-1 every byte is the character of its number.
        0xA0.. => format!("in Latin-1 it is `{}`: {save}", char::from(byte)),
        _ => save.to_owned(),
    }
}

/// Whether a line shows what language its file is in.
type Shows<'a> = &'a dyn Fn(&str) -> bool;

/// Which program or language a text without any line of TOML is of, and where that
/// shows.
pub(super) fn language(text: &str) -> Option<(&'static str, Range<usize>)> {
    if let Some(range) = markdown(text) {
        return Some(("Markdown", range));
    }
    if text.lines().any(is_toml) {
        return None;
    }
    let ends_in_semicolon = |line: &str| line.trim_end().ends_with(';') || line.contains("; ");
    let is_nginx = text.lines().any(ends_in_semicolon);
    let looks: [(&str, Shows<'_>); 6] = [
        ("JSON", &|line| {
            text.trim_start().starts_with(['{', '[']) && line.starts_with(['{', '['])
        }),
        ("an Apache configuration or XML", &|line| {
            line.starts_with('<')
        }),
        ("an nginx configuration", &|line| {
            is_nginx && line.ends_with(['{', ';'])
        }),
        ("an HAProxy configuration", &|line| {
            let section = line.split_whitespace().next().unwrap_or_default();
            ["global", "defaults", "frontend", "backend", "listen"].contains(&section)
                && line.split_whitespace().count() < 3
                && !line.ends_with([':', '{'])
        }),
        ("a Caddyfile", &|line| line.ends_with('{')),
        ("YAML", &|line| {
            let key = line.strip_prefix("- ").unwrap_or(line);
            let key = key
                .split_once(':')
                .filter(|(_, value)| value.is_empty() || value.starts_with(' '));
            line == "---" || key.is_some_and(|(key, _)| key.chars().all(is_of_key))
        }),
    ];
    looks.iter().find_map(|(name, shows)| {
        let line = text
            .lines()
            .map(str::trim)
            .find(|line| !line.is_empty() && !line.starts_with(['#', ';']) && shows(line))?;
        let start = offset(text, line);
        // Invariant: a report shows no more than this word, as the rest could be a secret.
        let first_word = line.split(|it: char| !is_of_key(it)).next();
        let first_letter = line.chars().next().map_or(0, char::len_utf8);
        let len = first_word.map_or(0, str::len).max(first_letter);
        Some((*name, start..start + len))
    })
}

/// The first block of code in a page of Markdown. Such a page begins with a title, and may have
/// lines of TOML in its blocks.
fn markdown(text: &str) -> Option<Range<usize>> {
    const FENCE: &str = "```";
    let mut lines = text.lines().map(str::trim_start);
    let first = lines.find(|it| !it.is_empty())?;
    let is_title = first.starts_with(['#', '<', '!']) || first.starts_with("[!");
    let mut fences = text.lines().filter(|it| it.starts_with(FENCE));
    let (fence, _) = (fences.next()?, fences.next()?);
    let start = offset(text, fence);
    is_title.then_some(start..start + FENCE.len())
}

fn is_of_key(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.')
}

/// Whether a line is the header of a table, or a key with a value.
fn is_toml(line: &str) -> bool {
    let line = line.trim();
    // As in `location = /x {`.
    if line.ends_with(['{', ';']) {
        return false;
    }
    match line.split_once('=') {
        Some((key, value)) => {
            let key = key.trim();
            let is_key = !key.is_empty() && key.chars().all(|it| is_of_key(it) || it == '"');
            // A path or a variable begins no value.
            is_key && !value.trim_start().starts_with(['/', '$', '~', '^', '@'])
        }
        None => {
            let is_of_header = |it: char| is_of_key(it) || matches!(it, '[' | ']');
            line.len() > 2
                && line.starts_with('[')
                && line.ends_with(']')
                && line.chars().all(is_of_header)
        }
    }
}

/// A character that looks like one of TOML's but is a different one, with the one of TOML. In a
/// text or a comment such characters are valid.
pub(super) fn lookalike(line: &str) -> Option<(usize, &'static str)> {
    let mut quote = None;
    for (at, letter) in line.char_indices() {
        match quote {
            Some(open) if letter == open => quote = None,
            Some(_) => {}
            None => match letter {
                '"' | '\'' => quote = Some(letter),
                '#' => return None,
                '“' | '”' | '„' | '‟' | '«' | '»' | '‘' | '’' | '‚' => {
                    return Some((at, "a typographic quote: write `\"`"));
                }
                '\u{a0}' | '\u{2007}' | '\u{202f}' | '\u{3000}' => {
                    return Some((at, "not an ordinary space: replace it with one"));
                }
                '\u{200b}' | '\u{200e}' | '\u{feff}' | '\u{2060}' => {
                    return Some((at, "an invisible character: leave it out"));
                }
                _ => {}
            },
        }
    }
    None
}

/// Whether a line was meant to give a key a value: `bind: ":80"`, `bind ":80";`.
pub(super) fn is_assignment(line: &str) -> bool {
    let line = line.trim().trim_end_matches([';', ',']);
    let Some((key, value)) = line.split_once(|it: char| it == ':' || it.is_whitespace()) else {
        return false;
    };
    let key = key.trim_matches('"');
    let value = value.trim_start_matches(':').trim();
    let has_key = !key.is_empty() && key.chars().all(is_of_key);
    has_key && !value.is_empty() && !value.contains(['=', '{'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings() {
        for (bytes, expected) in [
            (&b"bind = \":80\""[..], None),
            ("größe".as_bytes(), None),
            (b"\xFF\xFEb\0", Some(NoText::Utf16)),
            (b"\x7FELF\n\0", Some(NoText::Binary { line: 2 })),
            (b"# caf\xE9\n", Some(NoText::Byte { byte: 0xE9, at: 5 })),
            (b"\xC3", Some(NoText::Byte { byte: 0xC3, at: 0 })),
        ] {
            assert_eq!(encoding(bytes), expected, "{bytes:?}");
        }
        assert!(byte_help(0xE9).contains("`é`"));
    }

    #[test]
    fn languages() {
        let looks = |text: &str| language(text).map(|(name, at)| (name, text[at].to_owned()));
        for (text, name, shown) in [
            ("{ \"a\": 1 }", "JSON", "{"),
            ("<VirtualHost *:80>", "an Apache configuration or XML", "<"),
            (
                "# x\nhttp {\n  server { listen 80; }\n}",
                "an nginx configuration",
                "http",
            ),
            (
                "location / {\n  proxy_pass http://a;\n}",
                "an nginx configuration",
                "location",
            ),
            (
                "global\n  daemon\nfrontend a\n  bind *:80",
                "an HAProxy configuration",
                "global",
            ),
            (
                "example.com {\n  reverse_proxy a:80\n}",
                "a Caddyfile",
                "example.com",
            ),
            ("# x\nhttp:\n  routers:", "YAML", "http"),
            ("---\na: b", "YAML", "---"),
            (
                "server {\n  location = /x {\n    return 204;\n  }\n}",
                "an nginx configuration",
                "server",
            ),
            ("→ x {\n}", "a Caddyfile", "→"),
        ] {
            let (found, at) = looks(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((found, at.as_str()), (name, shown), "{text}");
        }
        for text in [
            "",
            "[server]\nworkers: 2",
            "bind = \":80\"\nname: web",
            "colour",
            "[[listener]]\nbind",
        ] {
            assert_eq!(language(text), None, "{text}");
        }
    }

    #[test]
    fn lines_that_are_nearly_toml() {
        for (line, expected) in [
            ("bind: \":80\"", true),
            ("  workers 4;", true),
            ("\"bind\": \":80\",", true),
            ("workers = ", false),
            ("bind", false),
            ("a b = 3", false),
        ] {
            assert_eq!(is_assignment(line), expected, "{line}");
        }
        assert_eq!(lookalike("a = “b”").map(|it| it.0), Some(4));
        assert_eq!(lookalike("a = \"b\""), None);
    }
}
