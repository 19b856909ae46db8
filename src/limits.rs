//! The limits of routes on how often a key may come, and the use that each key has made of them.
//!
//! Shared by all workers. `evenkeel_policy::limit` decides; requests ask through
//! `exchange::limits`.

mod bandwidth;

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::in_flight::{CountedAt, Entering, InFlightTable};
use evenkeel_policy::limit::{Allowance, LimitTable, Quota, Verdict};

use crate::config::{Config, Limit, LimitBound};

/// A limit of a route.
#[derive(Debug)]
pub struct RouteLimit {
    /// Name of the route.
    route: String,
    /// Its settings.
    pub settings: Limit,
    table: Table,
}

/// The uses of each key.
#[derive(Debug)]
enum Table {
    Rate(LimitTable),
    InFlight { most: u32, table: InFlightTable },
}

/// The verdict of a limit on a request.
#[derive(Debug, Clone, Copy)]
pub enum LimitVerdict {
    /// It passes.
    Passes,
    /// It passes, and counts as in flight until this place is given back by [`InFlight`].
    Counts(CountedAt),
    /// It passes after this time.
    Waits(Duration),
    /// The request is refused.
    Refused {
        /// The rest of its key's allowance.
        standing: Quota,
        /// Time after which it would pass; zero if it is unknown.
        retry_after: Duration,
    },
}

/// A request that counts as in flight. Dropping it is its end.
#[derive(Debug)]
pub struct InFlight {
    limit: Arc<RouteLimit>,
    place: CountedAt,
}

impl InFlight {
    /// A request that a limit has [counted](LimitVerdict::Counts).
    pub fn new(limit: &Arc<RouteLimit>, place: CountedAt) -> Self {
        InFlight {
            limit: limit.clone(),
            place,
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Table::InFlight { table, .. } = &self.limit.table {
            table.leave(self.place);
        }
    }
}

pub use bandwidth::{RouteBandwidth, Share};

/// The limits of a configuration: by route, then in the order in which they are asked.
#[derive(Debug, Clone, Default)]
pub struct RouteLimits {
    limits: Arc<[Vec<Arc<RouteLimit>>]>,
    /// How many bytes of responses are sent in a second, by route.
    bandwidth: Arc<[NamedBandwidths]>,
}

/// The bandwidths of a route.
#[derive(Debug)]
struct NamedBandwidths {
    /// Name of the route.
    route: String,
    bounds: Vec<Arc<RouteBandwidth>>,
}

impl RouteLimits {
    /// The bandwidths of the route with this index, all of which hold.
    pub fn bandwidth_of(&self, route: usize) -> &[Arc<RouteBandwidth>] {
        self.bandwidth.get(route).map_or(&[], |it| &it.bounds)
    }
}

impl Deref for RouteLimits {
    type Target = [Vec<Arc<RouteLimit>>];

    fn deref(&self) -> &Self::Target {
        &self.limits
    }
}

impl RouteLimit {
    fn new(route: &str, settings: &Limit) -> Self {
        let entries = settings.entries as usize;
        let table = match settings.bound {
            LimitBound::Rate { rate, burst } => {
                let allowance = Allowance {
                    interval: rate.interval(),
                    burst,
                    delay: settings.delay,
                };
                Table::Rate(LimitTable::new(allowance, entries))
            }
            LimitBound::InFlight(most) => Table::InFlight {
                most,
                table: InFlightTable::new(entries),
            },
        };
        RouteLimit {
            route: route.to_owned(),
            settings: settings.clone(),
            table,
        }
    }

    /// Asks whether a request of this key may come now, and counts it unless it is refused.
    pub fn ask(&self, key: &[u8], now: Instant) -> LimitVerdict {
        match &self.table {
            Table::Rate(table) => match table.take(key, now) {
                Verdict::Allowed { .. } => LimitVerdict::Passes,
                Verdict::Delayed { wait, .. } => LimitVerdict::Waits(wait),
                Verdict::Refused {
                    standing,
                    retry_after,
                } => LimitVerdict::Refused {
                    standing,
                    retry_after,
                },
            },
            Table::InFlight { most, table } => match table.enter(key, *most) {
                Entering::Counted(place) => LimitVerdict::Counts(place),
                Entering::NotCounted => LimitVerdict::Passes,
                Entering::Refused => LimitVerdict::Refused {
                    standing: Quota {
                        remaining: 0,
                        next: Duration::ZERO,
                    },
                    retry_after: Duration::ZERO,
                },
            },
        }
    }

    /// The rest of this key's allowance. `next` is zero for a limit on requests in flight.
    pub fn standing(&self, key: &[u8], now: Instant) -> Quota {
        match &self.table {
            Table::Rate(table) => table.standing(key, now),
            Table::InFlight { most, table } => Quota {
                remaining: most.saturating_sub(table.in_flight(key)),
                next: Duration::ZERO,
            },
        }
    }

    /// Time in which a key has its whole burst again; `None` for a limit on requests in
    /// flight.
    pub fn window(&self) -> Option<Duration> {
        match &self.table {
            Table::Rate(table) => Some(table.allowance().window()),
            Table::InFlight { .. } => None,
        }
    }

    /// Keys that have used a part of their allowance.
    fn active(&self, now: Instant) -> usize {
        match &self.table {
            Table::Rate(table) => table.active(now),
            Table::InFlight { table, .. } => table.active(),
        }
    }
}

/// The limits of a configuration. A limit that was there `before` under the same route name, with
/// the same settings, keeps the uses of its keys.
pub fn route_limits(config: &Config, before: &RouteLimits) -> RouteLimits {
    RouteLimits {
        limits: limits(config, before),
        bandwidth: bandwidths(config, &before.bandwidth),
    }
}

/// The bandwidths of a configuration, by route; see [`route_limits`].
fn bandwidths(config: &Config, before: &[NamedBandwidths]) -> Arc<[NamedBandwidths]> {
    let before = before.iter().filter(|it| !it.bounds.is_empty());
    let before: HashMap<&str, _> = before.map(|it| (&*it.route, &it.bounds)).collect();
    let of_route = |route: &crate::config::Route| {
        let mut staying: Vec<_> = before
            .get(&*route.name)
            .map_or_else(Vec::new, |it| it.iter().collect());
        let bounds = route.bandwidth.iter().map(|settings| {
            let same = staying.iter().position(|it| it.settings == *settings);
            match same {
                Some(at) => staying.swap_remove(at).clone(),
                None => Arc::new(RouteBandwidth::new(settings)),
            }
        });
        NamedBandwidths {
            bounds: bounds.collect(),
            route: route.name.clone(),
        }
    };
    config.routes.iter().map(of_route).collect()
}

fn limits(config: &Config, before: &[Vec<Arc<RouteLimit>>]) -> Arc<[Vec<Arc<RouteLimit>>]> {
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
            // Two equal ones stay two.
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

/// Keys of these limits that have used a part of their allowance.
pub fn active_keys(limits: &[Arc<RouteLimit>], now: Instant) -> u64 {
    limits.iter().map(|it| it.active(now) as u64).sum()
}

/// Bits of an IPv4 address that tell a client from others, unless a limit says otherwise.
pub const PREFIX_V4: u8 = 32;
/// The same of an IPv6 address.
pub const PREFIX_V6: u8 = 64;

/// Calls `use_key` with the network of an address.
pub fn with_network<T>(
    address: IpAddr,
    prefix_v4: u8,
    prefix_v6: u8,
    use_key: impl FnOnce(&[u8]) -> T,
) -> T {
    match network(address, prefix_v4, prefix_v6) {
        IpAddr::V4(it) => use_key(&it.octets()),
        IpAddr::V6(it) => use_key(&it.octets()),
    }
}

/// The network of an address by prefixes. An IPv4 address that is mapped into IPv6 is the
/// IPv4 address.
fn network(address: IpAddr, prefix_v4: u8, prefix_v6: u8) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(it) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix_v4)).unwrap_or(0);
            IpAddr::V4((u32::from(it) & mask).into())
        }
        IpAddr::V6(it) => {
            let mask = u128::MAX
                .checked_shl(128 - u32::from(prefix_v6))
                .unwrap_or(0);
            IpAddr::V6((u128::from(it) & mask).into())
        }
    }
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
    fn addresses_of_a_network_are_one_key() {
        for (address, prefix_v4, prefix_v6, expected) in [
            ("192.0.2.77", 32, 64, "192.0.2.77"),
            ("192.0.2.77", 24, 64, "192.0.2.0"),
            ("::ffff:192.0.2.77", 32, 64, "192.0.2.77"),
            ("2001:db8:1:2:3:4:5:6", 32, 64, "2001:db8:1:2::"),
            ("2001:db8:1:2:3:4:5:6", 32, 128, "2001:db8:1:2:3:4:5:6"),
            ("2001:db8:1:2:3:4:5:6", 32, 1, "::"),
        ] {
            let found = network(address.parse().unwrap(), prefix_v4, prefix_v6);
            assert_eq!(found, expected.parse::<IpAddr>().unwrap(), "{address}");
        }
    }

    #[test]
    fn what_has_not_changed_goes_on() {
        let (ten, five) = ("{ rate = '10/s' }", "{ rate = '5/s' }");
        let before = route_limits(&config(&[("a", ten), ("b", ten)]), &RouteLimits::default());
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
