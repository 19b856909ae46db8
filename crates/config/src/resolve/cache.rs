//! Caches, and what routes want of them.

use std::sync::Arc;

use evenkeel_cache::Rules;
use evenkeel_cache::key::{KeyRules, QueryRules};
use evenkeel_policy::route::Rule;

use super::edits::{hyphened, names_that_vary};
use super::{peers, shared_store};
use crate::diagnostics::Report;
use crate::setting::{OneOrMore, Resolve};
use crate::surroundings::{Surroundings, absolute};
use crate::written::{self, CacheStoreParts, CacheTable, CachingParts, CachingTable, File, Names};
use crate::{CacheDisk, CacheStore, Caching, Edits};

/// Builds the caches in the order of their names.
pub(super) fn stores(
    file: &File,
    names: &Names<'_>,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<Vec<CacheStore>> {
    let built: Vec<_> = names
        .caches
        .iter()
        .map(|&name| {
            let mut written = file.cache.value.as_ref()?.0.iter();
            match written.find(|it| it.name == name) {
                Some(it) => store(name, it.value.as_ref()?, surroundings, report),
                None => store(name, &CacheTable::unwritten(file)?, surroundings, report),
            }
        })
        .collect();
    built.into_iter().collect()
}

fn store(
    name: &str,
    table: &CacheTable,
    surroundings: Surroundings<'_>,
    report: &mut Report,
) -> Option<CacheStore> {
    let shared = shared_store::resolve(&table.shared, surroundings, report);
    let disk = match &table.disk.value {
        None => None,
        Some(disk) => {
            let path = disk.path.value.as_ref()?;
            Some(CacheDisk {
                path: absolute(&path.value.0, &path.place, surroundings.folder, report)?,
                size_bytes: disk.size.value?.0,
            })
        }
    };
    table.resolve_with(CacheStoreParts {
        name: name.to_owned(),
        disk,
        shared: shared?,
    })
}

/// The route's rules for its cache: `None` after a mistake, `Some(None)` without a cache.
pub(super) fn caching(
    route: &written::Route,
    edits: Option<&Edits>,
    names: &Names<'_>,
) -> Option<Option<Arc<Caching>>> {
    let (Some(table), Some(name)) = (route.caching(), route.cache_name()) else {
        return Some(None);
    };
    let bypass = table.bypass.value.iter().flat_map(|it| &it.0);
    let caching = table.resolve_with(CachingParts {
        store: names.cache(name)?,
        rules: rules(route, table, edits)?,
        bypass: bypass
            .map(|it| it.conditions(names).map(Rule::new))
            .collect::<Option<_>>()?,
        purge_from: match &table.purge.value {
            None => None,
            Some(purge) => {
                let OneOrMore(from) = purge.from.value.as_ref()?;
                Some(peers(from.iter().map(|it| it.value)))
            }
        },
    })?;
    Some(Some(Arc::new(caching)))
}

fn rules(route: &written::Route, table: &CachingTable, edits: Option<&Edits>) -> Option<Rules> {
    let mut edited = edits.map_or_else(Vec::new, names_that_vary);
    edited.extend(route.copied_fields().map(hyphened));
    let key = table.key.value.as_ref()?;
    let query = key.query.value.as_ref()?;
    let patterns = |written: &Option<OneOrMore<_>>| match written {
        None => Some(Vec::new()),
        Some(patterns) => patterns.resolve(),
    };
    let headers = key.headers.value.as_ref()?.iter();
    let cookies = key.cookies.value.as_ref()?.iter();
    Some(Rules {
        key: KeyRules {
            query: QueryRules {
                only: patterns(&query.only.value)?,
                ignore: patterns(&query.ignore.value)?,
                is_sorted: query.sort.value?,
            },
            headers: headers.map(|it| it.0.to_ascii_lowercase()).collect(),
            cookies: cookies.map(|it| it.0.clone()).collect(),
        },
        ttl: table.ttl.value.as_ref()?.resolve()?,
        heuristic: table.heuristic.value?,
        stale_while_revalidate: table.stale_while_revalidate.value?.0,
        stale_if_error: table.stale_if_error.value?.0,
        stores_cookies: table.store_cookies.value?,
        client_directives: table.client_directives.value?,
        max_body_bytes: table.max_object.value?.0,
        edited,
        is_authorized: route.auth.written,
    })
}
