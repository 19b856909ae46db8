//! The groups of regular expressions that stand in a route's expressions.

use evenkeel_policy::route::{RegexPattern, Rule};

use crate::Location;
use crate::diagnostics::Report;
use crate::tree::SourcePlace;
use crate::variable::Expression;
use crate::written::{File, RequestKey, RequestKeyText, Route, WrittenEdits};

/// The regular expressions of the route's paths, where a group of one stands in something
/// of the route: `None` is a mistake.
pub(super) fn path_regexes(
    route: &Route,
    file: &File,
    rule: impl FnOnce() -> Option<Rule>,
    report: &mut Report,
) -> Option<Box<[RegexPattern]>> {
    let groups = groups(route, file);
    if groups.is_empty() {
        return Some(Box::default());
    }
    let rule = rule()?;
    let regexes: Box<[_]> = rule.path_regexes().into_iter().cloned().collect();
    let mut are_known = true;
    for (name, place) in groups {
        if regexes.iter().any(|it| has_group(it, &name)) {
            continue;
        }
        are_known = false;
        let group = match name.parse::<usize>() {
            Ok(_) => "([^/]+)".to_owned(),
            Err(_) => format!("(?<{name}>[^/]+)"),
        };
        report
            .mistake(
                place,
                format!("no regular expression of this route's path has a group `{name}`"),
            )
            .help(format!(
                "add one, as in: match = {{ path = {{ regex = \"^/u/{group}\" }} }}"
            ));
    }
    are_known.then_some(regexes)
}

/// The groups that stand in texts of a route, with where they are asked for.
fn groups<'a>(route: &'a Route, file: &'a File) -> Vec<(String, &'a SourcePlace)> {
    let mut found = Vec::new();
    if let Some(to) = route
        .redirect
        .value
        .as_ref()
        .and_then(|it| it.0.to.value.as_ref())
    {
        let location = Location::new(&to.value.0);
        found.extend(location.captures().map(|name| (name.to_owned(), &to.place)));
    }
    let mut add = |text: &Expression, place: &'a SourcePlace| {
        found.extend(text.captures().map(|name| (name.to_owned(), place)));
    };
    let names = route.edits.value.iter().flat_map(|it| &it.0);
    let tables = names.filter_map(|name| {
        let mut tables = file.edits.value.iter().flat_map(|map| &map.0);
        let table = tables.find(|it| it.name == name.value.0)?;
        Some((
            WrittenEdits::of_table(table.value.as_ref()?),
            Some(&name.place),
        ))
    });
    for (edits, name) in tables.chain([(route.own_edits(), None)]) {
        if let Some(rewrite) = &edits.rewrite.value {
            add(&rewrite.0, name.unwrap_or(&edits.rewrite.place));
        }
        let request = edits.request.value.iter().flat_map(|it| it.values());
        let request = request.map(|it| (&it.value, &it.place));
        let response = edits.response.value.iter().flat_map(|it| it.values());
        let response = response.map(|it| (&it.value, &it.place));
        for (value, place) in request.chain(response) {
            if let Some(text) = value {
                add(&text.0, name.unwrap_or(place));
            }
        }
    }
    let limits = route.limit.value.iter().flat_map(|it| &it.0);
    let bounds = route.bandwidth.value.iter().flat_map(|it| &it.0);
    let keys = limits.map(|it| &it.key).chain(bounds.map(|it| &it.0.key));
    for key in keys.chain([&route.split_by]) {
        if let Some(RequestKeyText(RequestKey::Text(text))) = &key.value {
            add(text, &key.place);
        }
    }
    found
}

/// Whether an expression has a group of this name or number.
fn has_group(regex: &RegexPattern, name: &str) -> bool {
    match name.parse::<usize>() {
        Ok(number) => number < regex.group_names().count(),
        Err(_) => regex.group_names().any(|it| it == Some(name)),
    }
}
