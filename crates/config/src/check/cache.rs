//! The checks of caches, and of the routes that use them.

use std::path::PathBuf;

use super::everybody;
use crate::diagnostics::Report;
use crate::setting::{FromText, OneOrMore, Placed};
use crate::tree::SourcePlace;
use crate::value::{Name, Text};
use crate::written::{CacheTable, CachingTable, File, Names, Route};

/// The smallest store, in bytes: it holds an object of 128 KiB.
const MIN_STORE: u64 = 1 << 20;

/// The longest object in memory may take one part of this many.
const PARTS: u64 = 8;

/// Reports contradictions and doubts in the caches of `file`.
pub(super) fn check(file: &File, names: &Names<'_>, report: &mut Report) {
    let stores = file.cache.value.iter().flat_map(|map| &map.0);
    let mut disks: Vec<(PathBuf, &SourcePlace)> = Vec::new();
    for store in stores {
        let Some(table) = &store.value else { continue };
        let mut routes = file.route.value.iter().flatten();
        let uses = |route: &Route| route.cache_name() == Some(&store.name);
        if !routes.any(uses) && !report.is_syntax_broken() {
            report.warning(
                &store.place,
                format!("no route uses the cache `{}`", store.name),
            );
        }
        check_sizes(table, report);
        check_disk(table, &mut disks, report);
    }
    for route in file.route.value.iter().flatten() {
        if let Some(caching) = route.caching() {
            check_action(route, report);
            check_store(caching, names, report);
            check_max_object(caching, file, report);
            check_bypass(caching, report);
            check_purge(caching, report);
        }
    }
}

fn check_sizes(table: &CacheTable, report: &mut Report) {
    let disk = table.disk.value.as_ref();
    let sizes = [
        (
            table.memory.value.map(|it| it.0 as u64),
            &table.memory.place,
        ),
        (
            disk.and_then(|it| it.size.value).map(|it| it.0),
            disk.map_or(&table.place, |it| &it.size.place),
        ),
    ];
    for (bytes, place) in sizes {
        if bytes.is_some_and(|it| it < MIN_STORE) {
            report
                .mistake(place, "a cache needs at least 1 MiB")
                .help("write 1MiB or more, such as \"64MiB\"");
        }
    }
}

/// No two caches have one folder: each would drop the files of the other.
fn check_disk<'a>(
    table: &'a CacheTable,
    disks: &mut Vec<(PathBuf, &'a SourcePlace)>,
    report: &mut Report,
) {
    let disk = table.disk.value.as_ref();
    let Some(Placed { value, place }) = disk.and_then(|it| it.path.value.as_ref()) else {
        return;
    };
    // Without what makes no difference: slashes at the end, and `.`.
    let path: PathBuf = value.0.components().collect();
    match disks.iter().find(|(it, _)| *it == path) {
        Some((_, first)) => {
            report
                .mistake(place, "a second cache in the same folder")
                .related(first, "the first one")
                .help("give each cache a folder of its own");
        }
        None => disks.push((path, place)),
    }
}

/// Only responses of endpoints are stored.
fn check_action(route: &Route, report: &mut Report) {
    let mut others = route.actions().into_iter().filter(|it| it.is_written);
    if let Some(action) = others.find(|it| it.key != "upstream")
        && !route.upstream.written
    {
        let help = match action.key {
            "files" => "frequently requested files stay in memory without it: leave `cache` out",
            "split" => {
                "a response of one upstream would be served to clients of the others: leave \
                 `cache` out"
            }
            _ => "leave `cache` out",
        };
        report
            .mistake(
                &route.cache.place,
                format!(
                    "`cache` needs `upstream`, but this route has `{}`",
                    action.key
                ),
            )
            .related(action.place, "this answers the route's requests")
            .help(help);
    }
}

fn check_store(caching: &CachingTable, names: &Names<'_>, report: &mut Report) {
    let Some(Placed {
        value: Text(name),
        place,
    }) = &caching.store.value
    else {
        return;
    };
    if names.cache(name).is_some() || report.is_syntax_broken() {
        return;
    }
    let found = report.mistake(place, format!("there is no cache named `{name}`"));
    if Name::from_text(name).is_err() {
        found.help("write the name of a cache, as in cache = \"main\" for `[cache.main]`");
    } else if names.caches.is_empty() {
        found.help(format!("add it:\n[cache.{name}]\nmemory = \"64MiB\""));
    } else {
        found
            .help(format!("known caches: {}", names.caches.join(", ")))
            .propose(name, names.caches.iter().copied());
    }
}

/// Warns of a bound that the cache itself keeps below.
fn check_max_object(caching: &CachingTable, file: &File, report: &mut Report) {
    let Some(max) = caching
        .max_object
        .value
        .filter(|_| caching.max_object.written)
    else {
        return;
    };
    let name = caching.store_name();
    let mut stores = file.cache.value.iter().flat_map(|map| &map.0);
    let unwritten;
    let store = match stores.find(|it| it.name == name) {
        Some(store) => store.value.as_ref(),
        None => {
            unwritten = CacheTable::unwritten(file);
            unwritten.as_ref()
        }
    };
    // An unknown store is already reported.
    let Some(store) = store else { return };
    let Some(memory) = store.memory.value.map(|it| it.0 as u64) else {
        return;
    };
    if max.0 > memory / PARTS && !store.disk.written {
        let found = report.warning(
            &caching.max_object.place,
            format!(
                "the cache `{name}` cannot store responses of this length: one response may take \
                an eighth of its memory"
            ),
        );
        if store.memory.written {
            found.related(&store.memory.place, "its memory");
        }
        found.help(format!(
            "give the cache more `memory`, or write {} bytes here",
            memory / PARTS
        ));
    }
}

fn check_bypass(caching: &CachingTable, report: &mut Report) {
    for bypass in caching.bypass.value.iter().flat_map(|it| &it.0) {
        // A condition with a mistake may be meant to ask something.
        if bypass.takes_everything() && !report.has_mistakes() {
            report
                .mistake(&bypass.place, "every request bypasses the cache")
                .help("write a condition for the requests that bypass the cache, or cache = false");
        }
    }
}

/// Warns where every client may purge.
fn check_purge(caching: &CachingTable, report: &mut Report) {
    let purge = caching.purge.value.as_ref();
    let Some(OneOrMore(peers)) = purge.and_then(|it| it.from.value.as_ref()) else {
        return;
    };
    for (network, place) in everybody(peers) {
        report
            .warning(
                place,
                format!("`{network}` lets every client purge the cache"),
            )
            .help("write only the addresses or networks of your publishing system");
    }
}
