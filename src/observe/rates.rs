//! Rates between two readings of the figures, for `evenkeel top`. The names are those of the
//! control socket's `json rates`.

use std::cell::LazyCell;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::figures::{
    CachingFigures, EndpointFigures, ExchangeFigures, Figures, GenerationFigures, ListenerFigures,
    RouteFigures, UpstreamFigures,
};
use crate::cache::CacheFigures;
use crate::metrics::histogram::Distribution;

/// Rates at one moment, over the time before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// When it began to serve, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// For how long it has.
    pub uptime_ms: u64,
    /// The time that the rates cover.
    pub window_ms: u64,
    /// Configurations that are in use, the newest first.
    pub generations: Vec<GenerationRates>,
    /// In the order of the configuration.
    pub listeners: Vec<ListenerRates>,
    /// In the order of the configuration.
    pub routes: Vec<RouteRates>,
    /// Of the routes that have limits, in the order of the configuration.
    #[serde(default)]
    pub limits: Vec<LimitRates>,
    /// In order of their names.
    #[serde(default)]
    pub caches: Vec<CacheRates>,
    /// In order of their names.
    pub upstreams: Vec<UpstreamRates>,
}

/// Rates of exchanges.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Exchanges a second.
    pub requests_per_s: f64,
    /// Failed ones a second.
    pub errors_per_s: f64,
    /// Bytes a second from clients; of an endpoint, to it.
    pub bytes_in_per_s: f64,
    /// Bytes a second to clients; of an endpoint, from it.
    pub bytes_out_per_s: f64,
    /// Median duration in microseconds; `null` without exchanges.
    pub p50_us: Option<f64>,
    /// 99th percentile of the duration.
    pub p99_us: Option<f64>,
}

/// A configuration that is in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationRates {
    /// Number of configurations that came into force before it.
    pub generation: u32,
    /// Its hash.
    pub config: String,
    /// Whether it is kept as the way back until the one in force is confirmed.
    #[serde(default)]
    pub kept_until_confirmed: bool,
    /// Time since it came into force.
    pub age_ms: u64,
    /// Exchanges that began with it and are still open.
    pub exchanges: u64,
    /// The tunnels among them.
    pub tunnels: u64,
}

impl From<&GenerationFigures> for GenerationRates {
    fn from(figures: &GenerationFigures) -> Self {
        GenerationRates {
            generation: figures.generation,
            config: figures.config.clone(),
            kept_until_confirmed: figures.kept_until_confirmed,
            age_ms: figures.age_ms,
            exchanges: figures.exchanges,
            tunnels: figures.tunnels,
        }
    }
}

/// A listener.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ListenerRates {
    /// Its name.
    pub name: String,
    /// Its address.
    pub bind: String,
    /// Connections open now.
    pub open: u64,
    /// Its exchanges.
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RouteRates {
    /// Its name.
    pub name: String,
    /// Its exchanges.
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// The limits of a route.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitRates {
    /// Name of the route.
    pub route: String,
    /// Requests a second that passed at once.
    pub allowed_per_s: f64,
    /// Requests a second that waited for their turn.
    pub delayed_per_s: f64,
    /// Requests a second that were refused.
    pub refused_per_s: f64,
    /// Requests a second that only `dry_run` let pass.
    pub dry_run_per_s: f64,
    /// Keys that have used a part of their limit.
    pub keys: u64,
}

/// A cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheRates {
    /// Its name.
    pub name: String,
    /// Requests to the cache in a second.
    pub requests_per_s: f64,
    /// Requests a second that it answered without an endpoint.
    pub hits_per_s: f64,
    /// Bytes of bodies that no endpoint sent, a second.
    pub saved_bytes_per_s: f64,
    /// Responses in memory.
    pub responses: u64,
    /// Memory that they take.
    pub bytes: u64,
    /// Most memory that they may take.
    pub limit_bytes: u64,
}

impl CacheRates {
    /// The share of the requests that it answered, such as `93.4% hits`; `None` without any.
    pub fn hit_ratio(&self) -> Option<String> {
        let part = 100.0 * self.hits_per_s / self.requests_per_s;
        (self.requests_per_s > 0.0).then(|| format!("{part:.1}% hits"))
    }
}

/// An upstream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UpstreamRates {
    /// Its name.
    pub name: String,
    /// Its balancer.
    pub balance: String,
    /// Exchanges at its endpoints now.
    pub in_flight: u64,
    /// Exchanges in its queue now.
    pub waiting: u64,
    /// Most exchanges that its queue takes.
    pub queue_max: u64,
    /// Endpoints that take exchanges now.
    pub eligible: usize,
    /// Its exchanges.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// In the order of the configuration.
    pub endpoints: Vec<EndpointRates>,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndpointRates {
    /// Its name.
    pub name: String,
    /// Whether it gets new exchanges, or why not.
    pub state: String,
    /// The state that the operator wants.
    pub admin: String,
    /// Its weight.
    pub weight: u32,
    /// Exchanges in flight.
    pub in_flight: u32,
    /// Most exchanges in flight; `null` for no limit.
    pub max_in_flight: Option<u32>,
    /// Connections in idle pools.
    pub idle: u64,
    /// Attempts here, with failures and 5xx responses, and durations of exchanges whose last
    /// attempt was here.
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// The time between two readings.
#[derive(Clone, Copy)]
struct Window {
    seconds: f64,
}

impl Rates {
    /// The rates between two readings of one process.
    pub fn between(before: &Figures, now: &Figures) -> Self {
        let window_ms = now.uptime_ms.saturating_sub(before.uptime_ms).max(1);
        let window = Window {
            seconds: window_ms as f64 / 1e3,
        };
        Rates {
            version: now.version.to_owned(),
            pid: now.pid,
            started_unix_ms: now.started_unix_ms,
            uptime_ms: now.uptime_ms,
            window_ms,
            generations: now.generations.iter().map(Into::into).collect(),
            listeners: pairs(&before.listeners, &now.listeners, |it| &it.name)
                .map(|(before, now)| window.listener(before, now))
                .collect(),
            routes: pairs(&before.routes, &now.routes, |it| &it.name)
                .map(|(before, now)| window.route(before, now))
                .collect(),
            limits: pairs(&before.routes, &now.routes, |it| &it.name)
                .filter_map(|(before, now)| window.limits(before, now))
                .collect(),
            caches: (now.caches.iter())
                .map(|it| window.cache(before, now, it))
                .collect(),
            upstreams: pairs(&before.upstreams, &now.upstreams, |it| &it.name)
                .map(|(before, now)| window.upstream(before, now))
                .collect(),
        }
    }
}

/// Pairs each present object with its former figures. A new object is paired with itself.
fn pairs<'a, T>(
    before: &'a [T],
    now: &'a [T],
    name: impl Fn(&T) -> &String + Copy + 'a,
) -> impl Iterator<Item = (&'a T, &'a T)> {
    let by_name = LazyCell::new(move || {
        let named = before.iter().map(|it| (name(it), it));
        named.collect::<HashMap<_, _>>()
    });
    now.iter().enumerate().map(move |(at, now)| {
        let near = before.get(at).filter(|it| name(it) == name(now));
        let before = near.or_else(|| by_name.get(name(now)).copied());
        (before.unwrap_or(now), now)
    })
}

impl Window {
    fn per_second(self, before: u64, now: u64) -> f64 {
        let rate = now.saturating_sub(before) as f64 / self.seconds;
        (rate * 100.0).round() / 100.0
    }

    fn traffic(self, before: &ExchangeFigures, now: &ExchangeFigures) -> Traffic {
        let (p50_us, p99_us) = quantiles(&before.phases.total_us, &now.phases.total_us);
        Traffic {
            requests_per_s: self.per_second(before.requests, now.requests),
            errors_per_s: self.per_second(before.errors, now.errors),
            bytes_in_per_s: self.per_second(before.bytes_in, now.bytes_in),
            bytes_out_per_s: self.per_second(before.bytes_out, now.bytes_out),
            p50_us,
            p99_us,
        }
    }

    fn limits(self, before: &RouteFigures, now: &RouteFigures) -> Option<LimitRates> {
        let limits = now.limits.as_ref()?;
        let before = before.limits.as_ref().unwrap_or(limits);
        Some(LimitRates {
            route: now.name.clone(),
            allowed_per_s: self.per_second(before.allowed, limits.allowed),
            delayed_per_s: self.per_second(before.delayed, limits.delayed),
            refused_per_s: self.per_second(before.refused, limits.refused),
            dry_run_per_s: self.per_second(before.dry_run, limits.dry_run),
            keys: limits.keys,
        })
    }

    fn listener(self, before: &ListenerFigures, now: &ListenerFigures) -> ListenerRates {
        ListenerRates {
            name: now.name.clone(),
            bind: now.bind.clone(),
            open: now.open,
            traffic: self.traffic(&before.exchanges, &now.exchanges),
        }
    }

    fn route(self, before: &RouteFigures, now: &RouteFigures) -> RouteRates {
        RouteRates {
            name: now.name.clone(),
            traffic: self.traffic(&before.exchanges, &now.exchanges),
        }
    }

    fn cache(self, before: &Figures, now: &Figures, cache: &CacheFigures) -> CacheRates {
        let sum = |figures: &Figures, of: fn(&CachingFigures) -> u64| -> u64 {
            let caching = figures.routes.iter().filter_map(|it| it.cache.as_ref());
            let caching = caching.filter(|it| it.name == cache.name);
            caching.map(of).sum()
        };
        let rate = |of| self.per_second(sum(before, of), sum(now, of));
        CacheRates {
            name: cache.name.clone(),
            requests_per_s: rate(CachingFigures::asked),
            hits_per_s: rate(CachingFigures::answered),
            saved_bytes_per_s: rate(|it| it.saved_bytes),
            responses: cache.responses,
            bytes: cache.bytes,
            limit_bytes: cache.limit_bytes,
        }
    }

    fn upstream(self, before: &UpstreamFigures, now: &UpstreamFigures) -> UpstreamRates {
        UpstreamRates {
            name: now.name.clone(),
            balance: now.balance.to_owned(),
            in_flight: now.in_flight,
            waiting: now.waiting,
            queue_max: now.queue_max,
            eligible: now.eligible,
            traffic: self.traffic(&before.exchanges, &now.exchanges),
            endpoints: pairs(&before.endpoints, &now.endpoints, |it| &it.name)
                .map(|(before, now)| self.endpoint(before, now))
                .collect(),
        }
    }

    fn endpoint(self, before: &EndpointFigures, now: &EndpointFigures) -> EndpointRates {
        let errors = |it: &EndpointFigures| it.failures + it.status.0[5];
        let (p50_us, p99_us) = quantiles(&before.phases.total_us, &now.phases.total_us);
        EndpointRates {
            name: now.name.clone(),
            state: now.state.word().to_owned(),
            admin: now.admin.word().to_owned(),
            weight: now.weight,
            in_flight: now.in_flight,
            max_in_flight: now.max_in_flight,
            idle: now.idle,
            traffic: Traffic {
                requests_per_s: self.per_second(before.attempts, now.attempts),
                errors_per_s: self.per_second(errors(before), errors(now)),
                bytes_in_per_s: self.per_second(before.bytes_out, now.bytes_out),
                bytes_out_per_s: self.per_second(before.bytes_in, now.bytes_in),
                p50_us,
                p99_us,
            },
        }
    }
}

/// The median and the 99th percentile of the difference.
fn quantiles(before: &Distribution, now: &Distribution) -> (Option<f64>, Option<f64>) {
    let news = now.since(before);
    let quantile = |part| (news.count() > 0).then(|| news.quantile(part).round());
    (quantile(0.5), quantile(0.99))
}
