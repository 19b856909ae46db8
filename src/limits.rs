//! The limits of routes on how often a key may come, and what each key has used of them.
//!
//! Shared by all workers. The decision is made in `evenkeel_policy::limit`; requests ask by
//! way of `exchange::limits`.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_policy::Instant;
use evenkeel_policy::limit::{Allowance, LimitTable};

use crate::config::{Config, Limit};

/// A limit of a route.
#[derive(Debug)]
pub struct RouteLimit {
    /// Name of the route.
    route: String,
    /// Its settings.
    pub settings: Limit,
    /// What each key has used.
    pub table: LimitTable,
}

/// The limits of a configuration: by route, then in the order in which they are asked.
pub type RouteLimits = Arc<[Vec<Arc<RouteLimit>>]>;

impl RouteLimit {
    fn new(route: &str, settings: &Limit) -> Self {
        let allowance = Allowance {
            interval: settings.rate.interval(),
            burst: settings.burst,
            delay: settings.delay,
        };
        RouteLimit {
            route: route.to_owned(),
            settings: settings.clone(),
            table: LimitTable::new(allowance, settings.entries as usize),
        }
    }
}

/// The limits of a configuration. One that was there `before` under the same name of a
/// route, with the same settings, goes on with what its keys have used.
pub fn route_limits(config: &Config, before: &[Vec<Arc<RouteLimit>>]) -> RouteLimits {
    let before = before.iter().filter(|it| !it.is_empty());
    let before: HashMap<&str, _> = before.map(|it| (&*it[0].route, it)).collect();
    let limits_of = |route: &crate::config::Route| {
        let mut staying: Vec<_> = before
            .get(&*route.name)
            .into_iter()
            .copied()
            .flatten()
            .collect();
        let limits = route.limits.iter().map(|settings| {
            // Two that are the same stay two.
            let same = staying.iter().position(|it| it.settings == *settings);
            match same {
                Some(at) => staying.swap_remove(at).clone(),
                None => Arc::new(RouteLimit::new(&route.name, settings)),
            }
        });
        limits.collect()
    };
    config.routes.iter().map(limits_of).collect()
}

/// Keys of these limits that have not got their whole burst.
pub fn active_keys(limits: &[Arc<RouteLimit>], now: Instant) -> u64 {
    limits.iter().map(|it| it.table.active(now) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{NameLookup, load_text};

    fn config(routes: &[(&str, &str)]) -> Config {
        let mut text = "[[listener]]\nbind = ':0'\n".to_owned();
        for (name, limits) in routes {
            text += &format!(
                "[[route]]\nname = '{name}'\nmatch.path = '/{name}'\nlimit = [{limits}]\nanswer = {{}}\n"
            );
        }
        load_text("test.toml", &text, NameLookup::Skip)
            .unwrap()
            .config
    }

    #[test]
    fn what_has_not_changed_goes_on() {
        let (ten, five) = ("{ rate = '10/s' }", "{ rate = '5/s' }");
        let before = route_limits(&config(&[("a", ten), ("b", ten)]), &[]);
        let both = format!("{five}, {ten}, {ten}");
        let after = config(&[("c", ten), ("b", five), ("a", &both)]);
        let after = route_limits(&after, &before);
        let is_old = |it: &Arc<RouteLimit>| {
            let mut old = before.iter().flatten();
            old.any(|old| Arc::ptr_eq(old, it))
        };
        let kept: Vec<Vec<bool>> = after
            .iter()
            .map(|it| it.iter().map(is_old).collect())
            .collect();
        assert_eq!(kept, [vec![false], vec![false], vec![false, true, false]]);
    }
}
