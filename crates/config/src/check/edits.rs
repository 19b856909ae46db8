//! The checks of edits of requests and responses.

use crate::diagnostics::Report;
use crate::setting::{Field, FromText, Map, Named, Placed};
use crate::tree::SourcePlace;
use crate::value::{Name, Text};
use crate::variable::{FieldText, TargetText};
use crate::written::{File, RequestHeaders, Route, WrittenEdits};

/// Reports contradictions and doubts in the edits of `file`.
pub(super) fn check(file: &File, report: &mut Report) {
    let tables = file.edits.value.iter().flat_map(|map| &map.0);
    let names: Vec<&str> = tables.clone().map(|it| it.name.as_str()).collect();
    for table in tables {
        let mut routes = file.route.value.iter().flatten();
        let uses = |route: &Route| used(route).any(|it| it.value.0 == table.name);
        if !routes.any(uses) && !report.is_syntax_broken() {
            report.warning(
                &table.place,
                format!("no route uses the edits `{}`", table.name),
            );
        }
        if let Some(table) = &table.value {
            check_fields(&WrittenEdits::of_table(table), report);
        }
    }
    for route in file.route.value.iter().flatten() {
        check_names(route, &names, report);
        check_action(route, report);
        check_cache(route, file, report);
        check_fields(&route.own_edits(), report);
    }
}

/// Reports edits of fields that can't be meant.
fn check_fields(written: &WrittenEdits<'_>, report: &mut Report) {
    if let Some(headers) = &written.request.value {
        check_variables(headers, report);
        for (maps, verb) in [(&headers.add, "added"), (&headers.append, "appended to")] {
            for field in named(maps, "Host") {
                report
                    .mistake(&field.place, format!("`Host` can't be {verb}"))
                    .help("a request has exactly one: write it in `set`");
            }
        }
        let removed = headers.remove.value.iter().flatten();
        if removed
            .into_iter()
            .any(|it| it.0.eq_ignore_ascii_case("host"))
        {
            report
                .mistake(&headers.remove.place, "`Host` can't be removed")
                .help("a request has exactly one: to change it, write it in `set`");
        }
        for map in [&headers.set, &headers.add, &headers.append] {
            check_doubles(map, report);
        }
    }
    if let Some(headers) = &written.response.value {
        for field in named(&headers.append, "Set-Cookie") {
            report
                .mistake(
                    &field.place,
                    "several cookies can't share one `Set-Cookie` header",
                )
                .help("write it in `add`");
        }
        for map in [&headers.set, &headers.add, &headers.append] {
            check_doubles(map, report);
        }
    }
}

/// The fields of this name.
fn named<'a, K: FromText>(
    map: &'a Field<Map<K, FieldText>>,
    name: &'a str,
) -> impl Iterator<Item = &'a Named<K, FieldText>> {
    let fields = map.value.iter().flat_map(|it| &it.0);
    fields.filter(move |it| it.name.eq_ignore_ascii_case(name))
}

/// Reports a field with two values, since it is unclear which one is meant.
fn check_doubles<K: FromText>(map: &Field<Map<K, FieldText>>, report: &mut Report) {
    let fields: Vec<_> = map.value.iter().flat_map(|it| &it.0).collect();
    for (at, field) in fields.iter().enumerate() {
        let earlier = fields[..at].iter();
        let mut same = earlier.filter(|it| it.name.eq_ignore_ascii_case(&field.name));
        if let Some(first) = same.next() {
            report
                .mistake(&field.place, format!("`{}` is changed twice", field.name))
                .related(&first.place, "the first is here");
        }
    }
}

fn used(route: &Route) -> impl Iterator<Item = &Placed<Text>> {
    route.edits.value.iter().flat_map(|it| &it.0)
}

fn check_names(route: &Route, names: &[&str], report: &mut Report) {
    if report.is_syntax_broken() {
        return;
    }
    for Placed {
        value: Text(name),
        place,
    } in used(route)
    {
        if names.contains(&name.as_str()) {
            continue;
        }
        let found = report.mistake(place, format!("there are no edits named `{name}`"));
        if Name::from_text(name).is_err() {
            found.help("write the name of edits, as in edits = \"api\" for `[edits.api]`");
        } else if names.is_empty() {
            found.help(format!(
                "add them:\n[edits.{name}]\nrequest_headers = {{ set = {{ X-User = \"…\" }} }}"
            ));
        } else {
            found.help(format!("known edits: {}", names.join(", ")));
            found.propose(name, names.iter().copied());
        }
    }
}

/// Reports edits of requests that never go to an endpoint.
fn check_action(route: &Route, report: &mut Report) {
    // An action that can't be read may be meant to have an upstream.
    let is_known = route.actions().iter().any(|it| it.is_written) && !report.is_syntax_broken();
    if route.goes_on() || !is_known {
        return;
    }
    let written = route.own_edits();
    let fields: [(&str, bool, &SourcePlace); 3] = [
        (
            "strip_prefix",
            written.strip_prefix.written,
            &written.strip_prefix.place,
        ),
        ("rewrite", written.rewrite.written, &written.rewrite.place),
        (
            "request_headers",
            written.request.written,
            &written.request.place,
        ),
    ];
    for (key, _, place) in fields.into_iter().filter(|(_, written, _)| *written) {
        let help = if key == "strip_prefix" && route.files.written {
            "for files, write `strip`: files = { root = \"…\", strip = \"/…\" }"
        } else {
            "it changes the request to an endpoint, but this route has no upstream"
        };
        report
            .mistake(place, format!("`{key}` without `upstream`"))
            .help(help);
    }
}

/// A stored response answers all who ask for its URL: what an endpoint is asked must not
/// depend on anything else.
fn check_cache(route: &Route, file: &File, report: &mut Report) {
    if route.caching().is_none() {
        return;
    }
    let tables = file.edits.value.iter().flat_map(|map| &map.0);
    let named = tables.filter(|table| used(route).any(|it| it.value.0 == table.name));
    let named = named.filter_map(|it| it.value.as_ref());
    let all = named.map(WrittenEdits::of_table).chain([route.own_edits()]);
    for written in all {
        if let Some(TargetText(target)) = &written.rewrite.value
            && let Some(part) = target.beyond_url()
        {
            report
                .mistake(
                    &written.rewrite.place,
                    format!("{part} is not part of the URL, which is the cache key"),
                )
                .related(
                    &route.cache.place,
                    "the cache would serve one client's response to others",
                )
                .help("leave `cache` out, or write one route for each value");
        }
        let fields = written.request.value.iter().flat_map(|it| it.values());
        for field in fields {
            let decides = ["authorization", "cookie", "host"];
            let is_known = decides
                .iter()
                .any(|it| it.eq_ignore_ascii_case(&field.name));
            let varies = field.value.as_ref().is_some_and(|it| !it.0.is_constant());
            if is_known && varies {
                report
                    .mistake(
                        &field.place,
                        format!("`{}` differs for each client", field.name),
                    )
                    .related(
                        &route.cache.place,
                        "the cache would serve one client's response to others",
                    )
                    .help("leave `cache` out");
            }
        }
    }
}

/// A request is sent before there is a response.
fn check_variables(headers: &RequestHeaders, report: &mut Report) {
    for field in headers.values() {
        let Some(FieldText(text)) = &field.value else {
            continue;
        };
        if let Some(variable) = text.needs_response() {
            let word = variable.word();
            report
                .mistake(
                    &field.place,
                    format!("`{{{word}}}` is not known until there is a response"),
                )
                .help("use it in `response_headers`");
        }
    }
}
