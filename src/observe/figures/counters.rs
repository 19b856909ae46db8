//! The counters of each worker. Readers add the workers up.
//!
//! The tables beside this file describe each cell.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_metrics::{Cell, Counter, Detail, Saved};
use evenkeel_policy::endpoint::{EndpointId, EndpointState};
use evenkeel_policy::members::Members;

pub use super::OwnCounters;
pub use super::endpoint::EndpointCounters;
use super::exchanges::PhaseFigures;
pub use super::exchanges::{ExchangeCounters, Phases};
pub use super::listener::ListenerCounters;
pub use super::route::{
    CompressionCounters, FileCounters, LimitCounters, MirrorCounters, RouteCaching, RouteCounters,
};
pub use super::upstream::UpstreamCounters;
use crate::config::Config;
pub use crate::observe::generation::GenerationCounters;

/// Counters of one worker; the indices are those of one configuration.
///
/// Parts that stay in another configuration share their counters with it: see
/// [`following`](Counters::following).
#[derive(Debug)]
pub struct Counters {
    /// Counters that no configuration changes.
    pub worker: Arc<WorkerCounters>,
    /// Counters of the configuration itself.
    pub generation: Arc<GenerationCounters>,
    /// Per listener.
    pub listeners: Vec<Arc<ListenerCounters>>,
    /// Per route.
    pub routes: Vec<Arc<RouteCounters>>,
    /// Per route: files, where it serves any.
    pub files: Vec<Option<Arc<FileCounters>>>,
    /// Per route: cache, where it has one.
    pub caching: Vec<Option<Arc<RouteCaching>>>,
    /// Per route: limits, where it has any.
    pub limits: Vec<Option<Arc<LimitCounters>>>,
    /// Per route: compression, where it is on.
    pub compression: Vec<Option<Arc<CompressionCounters>>>,
    /// Per route: copies of its requests, where it has a mirror.
    pub mirrors: Vec<Option<Arc<MirrorCounters>>>,
    /// Per upstream.
    pub upstreams: Vec<Arc<UpstreamCounters>>,
    /// Per upstream: endpoints.
    pub endpoints: Vec<Arc<CountersByEndpoint>>,
}

/// The counters of a worker that do not depend on the configuration.
#[derive(Debug)]
pub struct WorkerCounters {
    /// Counters of the worker as a whole.
    pub own: OwnCounters,
    /// Spans for which the exporter had no room.
    pub spans_dropped: Counter,
}

/// One worker's counters for the endpoints of an upstream that it has used.
///
/// Invariant: the upstream's figures never decrease, whichever endpoints leave.
#[derive(Debug, Default)]
pub struct CountersByEndpoint(Mutex<Counted>);

/// The endpoints that were used, and the remaining counts of those that left.
#[derive(Debug, Default)]
struct Counted {
    by_id: Vec<Option<CountedEndpoint>>,
    /// Counts of endpoints whose ids were reused.
    left: LeftCounters,
}

/// The counts of an endpoint that stay in the upstream's figures when it leaves.
#[derive(Debug, Default)]
struct LeftCounters {
    phases: Phases,
    displaced: Counter,
}

/// The saved name for the counts of endpoints that left. No endpoint has this name.
const LEFT: &str = "";

impl LeftCounters {
    fn save(&self) -> Saved {
        Saved::named([
            ("phases", self.phases.save()),
            ("displaced", self.displaced.save()),
        ])
    }

    fn raise(&self, saved: &Saved) {
        self.phases.raise(saved.of("phases"));
        self.displaced.raise(saved.of("displaced"));
    }

    /// The part of an endpoint's counts that stays when it leaves.
    fn part_of(endpoint: &Saved) -> Saved {
        let names = ["phases", "displaced"];
        Saved::named(names.map(|name| (name, endpoint.of(name).clone())))
    }
}

/// An endpoint, for its counters.
#[derive(Debug)]
struct CountedEndpoint {
    /// Identifies the endpoint, as ids are reused.
    name: Box<str>,
    counters: Arc<EndpointCounters>,
}

impl CountersByEndpoint {
    /// The counters of this endpoint, for their writer; at zero where it was never used.
    pub fn begin(&self, endpoint: &EndpointState) -> Arc<EndpointCounters> {
        let index = endpoint.id().index();
        let mut counted = self.counted();
        let Counted { by_id, left } = &mut *counted;
        if by_id.len() <= index {
            by_id.resize_with(index + 1, || None);
        }
        // The other endpoint has left and has nothing in flight: its id was reused.
        if let Some(other) = by_id[index].take_if(|it| *it.name != *endpoint.name()) {
            left.phases.take_over(&other.counters.phases);
            left.displaced.add(other.counters.displaced.value());
        }
        let counted = by_id[index].get_or_insert_with(|| CountedEndpoint {
            name: endpoint.name().into(),
            counters: Arc::default(),
        });
        counted.counters.clone()
    }

    /// The counters of this endpoint, for readers; `None` where it was never used.
    pub fn get(&self, endpoint: &EndpointState) -> Option<Arc<EndpointCounters>> {
        let counted = self.counted();
        let counted = counted.by_id.get(endpoint.id().index())?.as_ref()?;
        (*counted.name == *endpoint.name()).then(|| counted.counters.clone())
    }

    /// Idle connections that were closed to make room, over all endpoints so far.
    pub fn displaced(&self) -> u64 {
        let counted = self.counted();
        let of_endpoints = counted.by_id.iter().flatten();
        let of_endpoints = of_endpoints.map(|it| it.counters.displaced.value());
        counted.left.displaced.value() + of_endpoints.sum::<u64>()
    }

    /// All counts so far, by the names of endpoints.
    pub(super) fn save(&self) -> Saved {
        let counted = self.counted();
        let endpoints = counted.by_id.iter().flatten();
        let mut sum = Saved::named([(LEFT, counted.left.save())]);
        for endpoint in endpoints {
            // An endpoint may have had two ids.
            sum.add(Saved::named([(&*endpoint.name, endpoint.counters.save())]));
        }
        sum
    }

    /// Raises the counters to at least these counts. Counts of endpoints that are not members now
    /// go to the endpoints that left.
    pub(super) fn raise(&self, saved: &Saved, members: &Members) {
        let members = members.endpoints().iter().map(|it| (it.name(), it));
        let members: HashMap<&str, _> = members.collect();
        let mut left = saved.of(LEFT).clone();
        for (name, saved) in saved.iter().filter(|(name, _)| *name != LEFT) {
            if let Some(endpoint) = members.get(name) {
                self.begin(endpoint).raise(saved);
            } else {
                left.add(LeftCounters::part_of(saved));
            }
        }
        self.counted().left.raise(&left);
    }

    /// Adds the phases of exchanges whose last endpoint is not a member now.
    pub(super) fn add_phases_of_left(
        &self,
        members: &Members,
        sum: &mut PhaseFigures,
        detail: Detail,
    ) {
        let counted = self.counted();
        let is_member = |index: usize, it: &CountedEndpoint| {
            let member = members.get(EndpointId::new(index as u32));
            member.is_some_and(|member| member.name() == &*it.name)
        };
        for (index, endpoint) in counted.by_id.iter().enumerate() {
            if let Some(endpoint) = endpoint
                && !is_member(index, endpoint)
            {
                endpoint.counters.phases.add_to(sum, detail);
            }
        }
        counted.left.phases.add_to(sum, detail);
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The class of a status: its first digit, or 0 for an invalid status.
pub fn status_class(status: u16) -> usize {
    match status {
        100..=599 => usize::from(status / 100),
        _ => 0,
    }
}

impl Counters {
    /// Counters at zero for everything in `config`.
    pub fn new(config: &Config) -> Self {
        Counters {
            worker: Arc::new(WorkerCounters {
                own: OwnCounters::default(),
                spans_dropped: Counter::default(),
            }),
            generation: Arc::default(),
            listeners: zero(config.listeners.len()),
            routes: zero(config.routes.len()),
            files: config
                .routes
                .iter()
                .map(|it| it.action.files().map(|_| Arc::default()))
                .collect(),
            caching: (config.routes.iter())
                .map(|it| it.cache.as_ref().map(|_| Arc::default()))
                .collect(),
            limits: (config.routes.iter())
                .map(|it| (!it.limits.is_empty()).then(Arc::default))
                .collect(),
            compression: (config.routes.iter())
                .map(|it| it.compression.as_ref().map(|_| Arc::default()))
                .collect(),
            mirrors: (config.routes.iter())
                .map(|it| it.mirror.as_ref().map(|_| Arc::default()))
                .collect(),
            upstreams: zero(config.upstreams.len()),
            endpoints: zero(config.upstreams.len()),
        }
    }

    /// The counters of the same worker under another configuration: parts that stay go on
    /// counting.
    ///
    /// Invariant: `self` belongs to the configuration that `staying` compares with.
    pub fn following(&self, staying: &Staying) -> Self {
        let Staying {
            listeners,
            routes,
            upstreams,
        } = staying;
        let files = routes.iter().map(|route| {
            let kept = route.before.and_then(|at| self.files[at].clone());
            route.has_files.then(|| kept.unwrap_or_default())
        });
        let caching = routes.iter().map(|route| {
            let kept = route.before.and_then(|at| self.caching[at].clone());
            route.has_cache.then(|| kept.unwrap_or_default())
        });
        let limits = routes.iter().map(|route| {
            let kept = route.before.and_then(|at| self.limits[at].clone());
            route.has_limits.then(|| kept.unwrap_or_default())
        });
        let compression = routes.iter().map(|route| {
            let kept = route.before.and_then(|at| self.compression[at].clone());
            route.has_compression.then(|| kept.unwrap_or_default())
        });
        let mirrors = routes.iter().map(|route| {
            let kept = route.before.and_then(|at| self.mirrors[at].clone());
            route.has_mirror.then(|| kept.unwrap_or_default())
        });
        Counters {
            worker: self.worker.clone(),
            generation: Arc::default(),
            listeners: kept_or_zero(&self.listeners, listeners.iter().copied()),
            files: files.collect(),
            caching: caching.collect(),
            limits: limits.collect(),
            compression: compression.collect(),
            mirrors: mirrors.collect(),
            routes: kept_or_zero(&self.routes, routes.iter().map(|it| it.before)),
            upstreams: kept_or_zero(&self.upstreams, upstreams.iter().copied()),
            endpoints: kept_or_zero(&self.endpoints, upstreams.iter().copied()),
        }
    }
}

/// The positions of listeners, routes and upstreams in the configuration before, by name, if they
/// were there. The same for each worker.
#[derive(Debug)]
pub struct Staying {
    listeners: Vec<Option<usize>>,
    routes: Vec<StayingRoute>,
    upstreams: Vec<Option<usize>>,
}

#[derive(Debug)]
struct StayingRoute {
    before: Option<usize>,
    /// Whether it serves files now.
    has_files: bool,
    /// Whether it has a cache now.
    has_cache: bool,
    /// Whether it has limits now.
    has_limits: bool,
    /// Whether its responses may be compressed now.
    has_compression: bool,
    /// Whether its requests are copied now.
    has_mirror: bool,
}

impl Staying {
    /// Compares a configuration with the one before. Takes milliseconds with thousands of routes.
    pub fn of(before: &Config, config: &Config) -> Self {
        let listeners = by_name(before.listeners.iter().map(|it| &*it.name));
        let routes = by_name(before.routes.iter().map(|it| &*it.name));
        let upstreams = by_name(before.upstreams.iter().map(|it| &*it.name));
        let at = |of: &HashMap<&str, usize>, name: &str| of.get(name).copied();
        Staying {
            listeners: (config.listeners.iter())
                .map(|it| at(&listeners, &it.name))
                .collect(),
            routes: (config.routes.iter())
                .map(|it| StayingRoute {
                    before: at(&routes, &it.name),
                    has_files: it.action.files().is_some(),
                    has_cache: it.cache.is_some(),
                    has_limits: !it.limits.is_empty(),
                    has_compression: it.compression.is_some(),
                    has_mirror: it.mirror.is_some(),
                })
                .collect(),
            upstreams: (config.upstreams.iter())
                .map(|it| at(&upstreams, &it.name))
                .collect(),
        }
    }
}

/// The position of each name.
fn by_name<'a>(names: impl Iterator<Item = &'a str>) -> HashMap<&'a str, usize> {
    names.zip(0..).collect()
}

/// The counters at these positions before, at zero where there is none.
fn kept_or_zero<T: Default>(
    before: &[Arc<T>],
    places: impl Iterator<Item = Option<usize>>,
) -> Vec<Arc<T>> {
    places
        .map(|at| at.map_or_else(Arc::default, |at| before[at].clone()))
        .collect()
}

fn zero<T: Default>(count: usize) -> Vec<T> {
    (0..count).map(|_| T::default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{NameLookup, load_text};

    fn config(routes: &[&str]) -> Config {
        let mut text = "[[listener]]\nbind = ':0'\n".to_owned();
        for name in routes {
            text += &format!(
                "[[route]]\nname = '{name}'\nmatch = {{ path = '/{name}' }}\nanswer = {{}}\n"
            );
        }
        load_text("test.toml", &text, NameLookup::Skip)
            .unwrap()
            .config
    }

    #[test]
    fn what_keeps_its_name_goes_on_in_each_worker() {
        let (before, after) = (config(&["a", "b"]), config(&["b", "c", "a"]));
        let staying = Staying::of(&before, &after);
        for counters in [(); 2].map(|()| Counters::new(&before)) {
            let following = counters.following(&staying);
            let is_same = |now: usize, then: usize| {
                Arc::ptr_eq(&following.routes[now], &counters.routes[then])
            };
            assert!(is_same(0, 1) && is_same(2, 0));
            assert_eq!((following.routes.len(), following.files.len()), (3, 3));
            assert!(Arc::ptr_eq(&following.listeners[0], &counters.listeners[0]));
        }
    }
}
