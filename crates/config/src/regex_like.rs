//! Patterns in the syntax of other programs: regular expressions and placeholders. As text they
//! would match only themselves; here a regular expression is a table with `regex`.

/// How a pattern of other programs is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Foreign {
    /// `^/api/.*$`
    Regex,
    /// `/users/{id}` or `/users/:id`
    Placeholder,
}

/// Parts of a regular expression that no path or host has for itself.
const SIGNS: [&str; 12] = [
    "/.*", "/.+", "(.", "\\.", "\\d", "\\w", "\\/", "(?", "[^", "[a-z", "[A-Z", "[0-9",
];

/// How `text` is written, if a pattern over paths or hosts is not.
pub(super) fn kind(text: &str) -> Option<Foreign> {
    // Files whose names begin with a dot.
    if text == "/.*" {
        return None;
    }
    let is_anchored = text.starts_with(['^', '~']) || text.len() > 1 && text.ends_with('$');
    let has_choice = text.contains('(') && text.contains('|') && text.contains(')');
    // `**` is part of our own patterns: a text with it is not a regular expression.
    let has_sign = !text.contains("**") && SIGNS.iter().any(|it| text.contains(it));
    if is_anchored || has_choice || has_sign {
        return Some(Foreign::Regex);
    }
    let is_placeholder = |segment: &str| {
        segment.starts_with('{') && segment.ends_with('}')
            || segment.len() > 1
                && segment.starts_with(':')
                && segment[1..]
                    .bytes()
                    .all(|it| it.is_ascii_alphanumeric() || it == b'_')
    };
    let has_placeholder = text.split('/').any(is_placeholder);
    has_placeholder.then_some(Foreign::Placeholder)
}

/// A regular expression in the form of this configuration.
pub(super) fn as_table(text: &str) -> String {
    // nginx writes the case in front.
    let (expression, case) = match text.trim_start_matches("~").split_once('*') {
        Some(("", rest)) if text.starts_with("~*") => (rest, "(?i)"),
        _ => (text.trim_start_matches('~'), ""),
    };
    let expression = format!("{case}{}", expression.trim_start());
    // A text in single quotes has no escapes.
    let quote = if expression.contains('\'') { '"' } else { '\'' };
    let expression = match quote {
        '"' => expression.replace('\\', "\\\\").replace('"', "\\\""),
        _ => expression,
    };
    format!("{{ regex = {quote}{expression}{quote} }}")
}

/// The patterns over paths that mean the same; none where they are not plain to
/// see.
pub(super) fn as_paths(text: &str) -> Vec<String> {
    let text = text.trim_start_matches(['~', '*', ' ']);
    let text = text.trim_start_matches("(?i)");
    let (text, end) = match text.strip_suffix('$') {
        Some(text) => (text, End::Anchored),
        None => (text, End::Anywhere),
    };
    let (text, start) = match text.strip_prefix('^') {
        Some(text) => (text, Start::Anchored),
        None if text.starts_with('/') => (text, Start::Slash),
        None => (text, Start::Anywhere),
    };
    let paths: Vec<_> = choices(text)
        .iter()
        .map(|it| as_path(it, start, end))
        .collect();
    paths.into_iter().collect::<Option<_>>().unwrap_or_default()
}

/// The beginning of a regular expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Anchored,
    /// With a slash: probably meant to be anchored.
    Slash,
    Anywhere,
}

/// The end of a regular expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Anchored,
    Anywhere,
}

fn as_path(text: &str, start: Start, end: End) -> Option<String> {
    let segments = text.split('/').map(|it| match kind(it) {
        Some(Foreign::Placeholder) => "*",
        _ => it,
    });
    let mut path = segments.collect::<Vec<_>>().join("/");
    for (regex, here) in [
        ("(.*)", "**"),
        ("(.+)", "**"),
        (".*", "**"),
        (".+", "**"),
        ("([^/]+)", "*"),
        ("([^/]*)", "*"),
        ("[^/]+", "*"),
        ("[^/]*", "*"),
        ("\\d+", "*"),
        ("(\\d+)", "*"),
        ("\\w+", "*"),
        ("[0-9]+", "*"),
        ("([0-9]+)", "*"),
        ("[a-z]+", "*"),
        ("[a-z0-9]+", "*"),
        ("[a-z0-9-]+", "*"),
        ("[a-zA-Z0-9]+", "*"),
        ("\\.", "."),
        ("\\/", "/"),
        ("\\-", "-"),
    ] {
        path = path.replace(regex, here);
    }
    if (start, end) == (Start::Anchored, End::Anywhere) && !path.ends_with('*') {
        path.push_str(if path.ends_with('/') { "*" } else { "**" });
    }
    if start == Start::Anywhere && !path.starts_with("**") {
        path.insert_str(0, "**");
    }
    if let Some(below) = path.strip_suffix("/**") {
        path = format!("{below}/*");
    }
    let is_plain = path.starts_with(['/', '*'])
        && !path.contains(['^', '$', '(', ')', '[', ']', '{', '}', '|', '+', '?', '\\']);
    is_plain.then_some(path)
}

/// The texts that one group of choices means: `a(b|c)` is `ab` and `ac`.
fn choices(text: &str) -> Vec<String> {
    let group = text.find('(').zip(text.find(')'));
    let Some((start, end)) = group.filter(|(start, end)| start < end) else {
        return vec![text.to_owned()];
    };
    let inner = text[start + 1..end].trim_start_matches("?:");
    if !inner.contains('|') || text[end + 1..].contains('(') {
        return vec![text.to_owned()];
    }
    let (before, after) = (&text[..start], &text[end + 1..]);
    let each = inner.split('|').map(|it| format!("{before}{it}{after}"));
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_they_are_written_here() {
        for (text, expected) in [
            ("^/api", "{ regex = '^/api' }"),
            ("~ ^/api", "{ regex = '^/api' }"),
            ("~* \\.(png|jpg)$", "{ regex = '(?i)\\.(png|jpg)$' }"),
            ("^/it's\\d", "{ regex = \"^/it's\\\\d\" }"),
        ] {
            assert_eq!(as_table(text), expected);
        }
    }

    #[test]
    fn patterns_of_other_programs() {
        use Foreign::{Placeholder, Regex};
        for (text, expected, paths) in [
            ("^/api/.*$", Some(Regex), &["/api/*"][..]),
            ("/api/.*", Some(Regex), &["/api/*"]),
            ("^/api/(.*)$", Some(Regex), &["/api/*"]),
            ("^/api", Some(Regex), &["/api**"]),
            ("^/api/", Some(Regex), &["/api/*"]),
            ("^/$", Some(Regex), &["/"]),
            ("/users/\\d+", Some(Regex), &["/users/*"]),
            ("~* \\.(png|jpg)$", Some(Regex), &["**.png", "**.jpg"]),
            ("/(a|b)/c$", Some(Regex), &["/a/c", "/b/c"]),
            ("/users/[0-9]+/x$", Some(Regex), &["/users/*/x"]),
            ("^/a(?=b)", Some(Regex), &[]),
            ("/users/{id}", Some(Placeholder), &["/users/*"]),
            ("/users/:id/posts", Some(Placeholder), &["/users/*/posts"]),
            ("/users/*", None, &[]),
            ("**/.*", None, &[]),
            ("/.*", None, &[]),
            ("**.png", None, &[]),
            ("/index.*", None, &[]),
            ("/a:b/v1:c", None, &[]),
            ("/price$5", None, &[]),
            ("/x(1)", None, &[]),
            ("/", None, &[]),
        ] {
            assert_eq!(kind(text), expected, "{text}");
            if expected.is_some() {
                assert_eq!(as_paths(text), paths, "{text}");
            }
        }
    }
}
