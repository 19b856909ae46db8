//! The checks of routes' limits by key, and of their bandwidths.

use crate::diagnostics::Report;
use crate::written::{File, LimitTable, RequestKey, ShortBandwidth};

/// Reports the options of limits that have no meaning beside each other.
pub(super) fn check(file: &File, report: &mut Report) {
    let routes = file.route.value.iter().flatten();
    let limits = routes.filter_map(|it| it.limit.value.as_ref());
    for limit in limits.flat_map(|it| &it.0) {
        check_user(limit, report);
        check_bound(limit, report);
        check_prefixes(limit, report);
    }
    let routes = file.route.value.iter().flatten();
    let bounds = routes.filter_map(|it| it.bandwidth.value.as_ref());
    for ShortBandwidth(bound) in bounds.flat_map(|it| &it.0) {
        if bound.entries.written && !bound.key.written {
            report
                .mistake(
                    &bound.entries.place,
                    "`entries` needs `key`: without it each response has its own bandwidth",
                )
                .help("add a key to share the bandwidth by, as in key = \"client\"");
        }
    }
}

/// Limits are asked before passwords: they bound how many can be tried.
fn check_user(limit: &LimitTable, report: &mut Report) {
    let key = limit.key.value.as_ref();
    if key.is_some_and(|it| matches!(&it.0, RequestKey::Text(text) if text.has_user())) {
        report
            .mistake(
                &limit.key.place,
                "`{user}` is not known when limits are checked",
            )
            .help("limit by \"client\", which also limits guessing of passwords");
    }
}

fn check_bound(limit: &LimitTable, report: &mut Report) {
    if !limit.concurrent.written {
        return;
    }
    for (key, is_written, place) in [
        ("rate", limit.rate.written, &limit.rate.place),
        ("burst", limit.burst.written, &limit.burst.place),
        ("delay", limit.delay.written, &limit.delay.place),
    ] {
        if is_written {
            let what = format!("`{key}` needs `rate`, but this limit has `concurrent`");
            report
                .mistake(place, what)
                .help("write two limits: limit = [{ rate = … }, { concurrent = … }]");
        }
    }
}

fn check_prefixes(limit: &LimitTable, report: &mut Report) {
    let key = limit.key.value.as_ref();
    if !key.is_some_and(|it| matches!(it.0, RequestKey::Text(_))) {
        return;
    }
    for (key, is_written, place) in [
        ("prefix_v4", limit.prefix_v4.written, &limit.prefix_v4.place),
        ("prefix_v6", limit.prefix_v6.written, &limit.prefix_v6.place),
    ] {
        if is_written {
            let what = format!("`{key}` needs key = \"client\", but this limit has another key");
            report.mistake(place, what).help("leave it out");
        }
    }
}
