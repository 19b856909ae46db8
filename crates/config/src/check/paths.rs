//! The checks of the paths that routes ask for.

use evenkeel_policy::route::PathPattern;

use super::super::diagnostics::Report;
use super::super::setting::OneOrMore;
use super::super::value::{OrRegex, Path};
use super::super::written;

/// Reports a path that no request can have: another reading of it, which finds
/// another route, makes each such request ambiguous.
pub(super) fn check(route: &written::Route, report: &mut Report) {
    let Some(wanted) = &route.r#match.value else {
        return;
    };
    let Some(OneOrMore(paths)) = &wanted.path.value else {
        return;
    };
    let is_wanted = |reading: &Vec<u8>| paths.iter().any(|OrRegex(Path(it))| it.matches(reading));
    for OrRegex(Path(path)) in paths {
        let mut readings = path.other_readings().into_iter();
        let Some(reading) = readings.find(|it| !is_wanted(it)) else {
            continue;
        };
        let reading = String::from_utf8_lossy(&reading).into_owned();
        report
            .warning(
                &wanted.path.place,
                format!(
                    "`{path}` matches no request: some servers read it as `{reading}`, so such \
                     requests are refused as ambiguous"
                ),
            )
            .help("list both paths: the route then matches either reading");
    }
}

/// Warns of paths that match less than they do in nginx and Caddy, if no route takes the paths
/// below them.
pub(super) fn check_prefixes(routes: &[written::Route], report: &mut Report) {
    let all: Vec<String> = routes.iter().flat_map(patterns).map(shown).collect();
    for route in routes {
        let own: Vec<String> = patterns(route).map(shown).collect();
        for pattern in patterns(route) {
            let text = shown(pattern);
            let found = match &pattern.0 {
                PathPattern::Exact(_) if is_for_a_tree(route) => nginx_prefix(&text),
                PathPattern::Glob(_) => caddy_prefix(&text),
                _ => None,
            };
            let Some(stem) = found else { continue };
            let below = format!("{stem}/");
            let is_below = |it: &String| it.starts_with(&below) && *it != text;
            let is_listed = |it: &String| it == stem || it.strip_suffix("**") == Some(stem);
            if all.iter().any(is_below) || own.iter().any(is_listed) {
                continue;
            }
            let (title, help) = if text.ends_with('*') {
                (
                    format!("`{text}` matches nothing below `{stem}/`: `*` does not match `/`"),
                    format!("did you mean [\"{stem}\", \"{stem}/*\"]?"),
                )
            } else {
                (
                    format!("`{text}` matches only that path, and nothing below it"),
                    format!(
                        "write \"{stem}/*\" for all paths that begin with `{text}`, or \
                         [\"{stem}\", \"{text}\"] for the page alone"
                    ),
                )
            };
            if let Some(wanted) = &route.r#match.value {
                report.warning(&wanted.path.place, title).help(help);
            }
        }
    }
}

fn patterns(route: &written::Route) -> impl Iterator<Item = &Path> {
    let wanted = route.r#match.value.as_ref();
    let paths = wanted.and_then(|it| it.path.value.as_ref());
    paths.into_iter().flat_map(|it| &it.0).map(|it| &it.0)
}

fn shown(Path(pattern): &Path) -> String {
    pattern.to_string()
}

/// Whether the action of a route is one for many paths.
fn is_for_a_tree(route: &written::Route) -> bool {
    route.upstream.written || route.files.written
}

/// The path without the slash that ends a `location` of nginx.
fn nginx_prefix(text: &str) -> Option<&str> {
    text.strip_suffix('/').filter(|it| !it.is_empty())
}

/// The path without the star that ends a path of Caddy. Its last segment is a word:
/// `/user-*` and `/v*` are patterns over one segment.
fn caddy_prefix(text: &str) -> Option<&str> {
    let stem = text.strip_suffix('*')?;
    let (_, segment) = stem.rsplit_once('/')?;
    let is_word = segment.len() > 1 && segment.bytes().all(|it| it.is_ascii_alphabetic());
    (is_word && !stem.contains(['*', '\\'])).then_some(stem)
}
