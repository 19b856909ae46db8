//! Reports limits that are reached in the event log: a line when an episode begins and one when
//! it ends, however many requests it affects.
//!
//! Owns which counters are watched, and the text. Counts nothing itself: it reads the workers'
//! counters.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::counters::{Counters, ExchangeCounters};
use super::figures::Sources;
use crate::config::Config;
use crate::metrics::Lazy;
use crate::metrics::end::{End, Failure};

/// Time between two looks.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// An episode ends after this time without new counts.
const QUIET_TIME: Duration = Duration::from_secs(5);

/// Watches all limits.
#[derive(Debug)]
pub struct LimitWatch {
    /// The configuration of the watched limits.
    config: Arc<Config>,
    watched: Vec<(Limit, Episode)>,
}

/// A limit, identified by the counter of its refusals.
#[derive(Debug, Clone, Copy)]
enum Limit {
    /// Connections of a listener, by index.
    Connections { listener: usize },
    /// Descriptors for connections of a listener.
    Descriptors { listener: usize },
    /// A listener's connections without a request, displaced by others.
    Clients { listener: usize },
    /// Idle connections to an upstream's endpoints, displaced by others.
    IdleConnections { upstream: usize },
    /// Requests for which an upstream has no slot.
    Upstream { upstream: usize, failure: Failure },
    /// Requests for a route's files that can't be opened or read now.
    Files { route: usize, failure: Failure },
    /// Requests that a route's limits refuse.
    Requests { route: usize },
    /// Requests that the limits would refuse or delay without `dry_run`.
    DryRun { route: usize },
    /// Copies of a route's requests.
    Mirror { route: usize },
    /// Responses to copies of a route's requests.
    MirrorFailed { route: usize },
    /// Retries of an upstream.
    Retries { upstream: usize },
    /// Memory for the bodies of an upstream's slow clients.
    Buffers { upstream: usize },
    /// Error pages of upstreams.
    ErrorPages,
    /// Lines of access logs.
    LogLines,
    /// Spans for the collector.
    Spans,
}

/// The start of a process's counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountsBegin {
    /// At zero, with the process.
    Here,
    /// At the counts of the process before.
    Before,
}

/// The state of a limit: reached or not.
#[derive(Debug, Default)]
struct Episode {
    /// The count at the last look.
    count: u64,
    /// The present episode.
    current: Option<Current>,
}

#[derive(Debug, Clone, Copy)]
struct Current {
    began: Instant,
    /// The count before the episode.
    before: u64,
    last_growth: Instant,
}

/// The words for a limit.
struct Words {
    /// The limited object, with its name.
    of: String,
    is: &'static str,
    was: &'static str,
    counted: &'static str,
}

/// The result of a look at a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EpisodeChange {
    None,
    Began { count: u64 },
    Ended { count: u64, lasted: Duration },
}

impl EpisodeChange {
    fn say(self, limit: Limit, config: &Config) {
        match self {
            EpisodeChange::None => {}
            EpisodeChange::Began { count } => limit.say_began(config, count),
            EpisodeChange::Ended { count, lasted } => limit.say_ended(config, count, lasted),
        }
    }
}

impl Episode {
    /// Ends all episodes, as no more will be counted.
    fn end(&self, now: Instant) -> EpisodeChange {
        match self.current {
            None => EpisodeChange::None,
            Some(Current { began, before, .. }) => EpisodeChange::Ended {
                count: self.count.saturating_sub(before),
                lasted: now.duration_since(began),
            },
        }
    }

    fn look(&mut self, count: u64, now: Instant) -> EpisodeChange {
        let before = std::mem::replace(&mut self.count, count);
        let grew = count > before;
        match &mut self.current {
            None if grew => {
                self.current = Some(Current {
                    began: now,
                    before,
                    last_growth: now,
                });
                EpisodeChange::Began {
                    count: count - before,
                }
            }
            None => EpisodeChange::None,
            Some(current) if grew => {
                current.last_growth = now;
                EpisodeChange::None
            }
            Some(current) if now.duration_since(current.last_growth) >= QUIET_TIME => {
                let Current {
                    began,
                    before,
                    last_growth,
                } = *current;
                self.current = None;
                EpisodeChange::Ended {
                    count: count.saturating_sub(before),
                    // Each look covers the time since the one before.
                    lasted: last_growth.duration_since(began) + LOOK_INTERVAL,
                }
            }
            Some(_) => EpisodeChange::None,
        }
    }
}

impl LimitWatch {
    /// A watch over all limits of the configuration. Counts of a process before are no news;
    /// counts of this process so far are.
    pub fn new(sources: &Sources, begin: CountsBegin) -> Self {
        let mut watch = LimitWatch::of(&sources.config);
        if begin == CountsBegin::Before {
            for (limit, episode) in &mut watch.watched {
                episode.count = limit.count(sources);
            }
        }
        watch
    }

    fn of(config: &Arc<Config>) -> Self {
        let limits = limits_of(config).into_iter();
        LimitWatch {
            watched: limits.map(|limit| (limit, Episode::default())).collect(),
            config: config.clone(),
        }
    }

    /// Looks at every limit, and reports news. The sources may be of another configuration than
    /// before.
    pub fn look(&mut self, sources: &Sources, now: Instant) {
        if !Arc::ptr_eq(&self.config, &sources.config) {
            self.follow(&sources.config, now);
        }
        for (limit, episode) in &mut self.watched {
            episode
                .look(limit.count(sources), now)
                .say(*limit, &self.config);
        }
    }

    /// Watches the limits of another configuration. A limit whose object keeps its name
    /// continues, as its counter does. The episode of an object that is gone ends.
    fn follow(&mut self, config: &Arc<Config>, now: Instant) {
        let before = std::mem::take(&mut self.watched).into_iter();
        let before = before.map(|(limit, it)| (limit.key(&self.config), (limit, it)));
        let mut before: HashMap<_, _> = before.collect();
        let limits = limits_of(config).into_iter();
        self.watched.extend(limits.map(|limit| {
            let known = before.remove(&limit.key(config));
            (limit, known.map(|(_, episode)| episode).unwrap_or_default())
        }));
        for (limit, episode) in before.into_values() {
            episode.end(now).say(limit, &self.config);
        }
        self.config = config.clone();
    }
}

/// All limits of a configuration.
fn limits_of(config: &Config) -> Vec<Limit> {
    let listeners = (0..config.listeners.len()).flat_map(|listener| {
        [
            Limit::Connections { listener },
            Limit::Descriptors { listener },
            Limit::Clients { listener },
        ]
    });
    let failures = [
        Failure::QueueFull,
        Failure::QueueTimeout,
        Failure::Saturated,
        Failure::Busy,
        Failure::NoEndpoint,
        Failure::NoSocket,
    ];
    let upstreams = (0..config.upstreams.len()).flat_map(|upstream| {
        let failures = failures.map(|failure| Limit::Upstream { upstream, failure });
        let others = [
            Limit::Retries { upstream },
            Limit::Buffers { upstream },
            Limit::IdleConnections { upstream },
        ];
        failures.into_iter().chain(others)
    });
    let routes = config.routes.iter().enumerate();
    let files = routes.filter(|(_, it)| it.action.files().is_some());
    let files = files.flat_map(|(route, _)| {
        let failures = [Failure::DiskBusy, Failure::NoDescriptor];
        failures.map(|failure| Limit::Files { route, failure })
    });
    let routes = config.routes.iter().enumerate();
    let limited = routes.filter(|(_, it)| !it.limits.is_empty());
    let limited =
        limited.flat_map(|(route, _)| [Limit::Requests { route }, Limit::DryRun { route }]);
    let routes = config.routes.iter().enumerate();
    let mirrored = routes.filter(|(_, it)| it.mirror.is_some());
    let mirrored =
        mirrored.flat_map(|(route, _)| [Limit::Mirror { route }, Limit::MirrorFailed { route }]);
    let limits = listeners.chain(files).chain(limited).chain(mirrored);
    let limits = limits.chain(upstreams);
    let limits = limits.chain([Limit::ErrorPages, Limit::LogLines, Limit::Spans]);
    limits.collect()
}

/// Number of exchanges with the end of this index.
fn count_at(exchanges: &Lazy<ExchangeCounters>, end: usize) -> u64 {
    exchanges.get().map_or(0, |it| it.ends[end].value())
}

impl Limit {
    fn count(self, sources: &Sources) -> u64 {
        let sum = |count: &dyn Fn(&Counters) -> u64| -> u64 {
            sources.counters.iter().map(|it| count(it)).sum()
        };
        match self {
            Limit::Connections { listener } => {
                sum(&|it| it.listeners[listener].connections_refused.value())
            }
            Limit::Descriptors { listener } => {
                sum(&|it| it.listeners[listener].connections_no_descriptor.value())
            }
            Limit::Clients { listener } => {
                sum(&|it| it.listeners[listener].connections_displaced.value())
            }
            Limit::IdleConnections { upstream } => sum(&|it| it.endpoints[upstream].displaced()),
            Limit::Upstream { upstream, failure } => {
                let end = End::Failure(failure).index();
                sum(&|it| count_at(&it.upstreams[upstream].exchanges, end))
            }
            Limit::Files { route, failure } => {
                let end = End::Failure(failure).index();
                sum(&|it| count_at(&it.routes[route].exchanges, end))
            }
            Limit::Requests { route } => {
                sum(&|it| it.limits[route].as_ref().map_or(0, |it| it.refused.value()))
            }
            Limit::DryRun { route } => {
                sum(&|it| it.limits[route].as_ref().map_or(0, |it| it.dry_run.value()))
            }
            // A client that leaves reaches no limit of ours.
            Limit::Mirror { route } => sum(&|it| {
                it.mirrors[route].as_ref().map_or(0, |it| {
                    it.busy.value() + it.too_long.value() + it.no_memory.value()
                })
            }),
            Limit::MirrorFailed { route } => {
                sum(&|it| it.mirrors[route].as_ref().map_or(0, |it| it.failed.value()))
            }
            Limit::Retries { upstream } => {
                sum(&|it| it.upstreams[upstream].retries_refused.value())
            }
            Limit::Buffers { upstream } => {
                sum(&|it| it.upstreams[upstream].buffers_refused.value())
            }
            Limit::ErrorPages => sum(&|it| it.worker.own.error_pages_missed.value()),
            Limit::LogLines => {
                let lost = sources.log_lines_lost.load(Ordering::Relaxed);
                lost + sum(&|it| it.worker.own.log_lines_dropped.value())
            }
            Limit::Spans => sources.spans_lost(),
        }
    }

    /// Identifies the limit in any configuration.
    fn key(self, config: &Config) -> (&'static str, String) {
        (self.word(), self.of(config))
    }

    /// The limited object, with its name.
    fn of(self, config: &Config) -> String {
        match self {
            Limit::Connections { listener }
            | Limit::Descriptors { listener }
            | Limit::Clients { listener } => {
                format!("listener {}", config.listeners[listener].name)
            }
            Limit::Upstream { upstream, .. }
            | Limit::Retries { upstream }
            | Limit::Buffers { upstream }
            | Limit::IdleConnections { upstream } => {
                format!("upstream {}", config.upstreams[upstream].name)
            }
            Limit::Files { route, .. }
            | Limit::Requests { route }
            | Limit::DryRun { route }
            | Limit::Mirror { route }
            | Limit::MirrorFailed { route } => {
                format!("route {}", config.routes[route].name)
            }
            Limit::ErrorPages => "error pages".into(),
            Limit::LogLines => "access log".into(),
            Limit::Spans => "spans".into(),
        }
    }

    fn words(self, config: &Config, count: u64) -> Words {
        let of = self.of(config);
        let (is, was) = match self {
            Limit::Connections { .. } => (
                "its limit of connections is reached",
                "its limit of connections was reached",
            ),
            Limit::Descriptors { .. } => (
                "no descriptor is left for its connections",
                "no descriptor was left for its connections",
            ),
            Limit::Clients { .. } => (
                "idle client connections are closed to make room",
                "idle client connections were closed to make room",
            ),
            Limit::IdleConnections { .. } => (
                "idle connections to its endpoints are closed to make room",
                "idle connections to its endpoints were closed to make room",
            ),
            Limit::Upstream { failure, .. } => match failure {
                Failure::QueueFull => ("its queue is full", "its queue was full"),
                Failure::QueueTimeout => (
                    "requests wait in its queue for too long",
                    "requests waited in its queue for too long",
                ),
                Failure::Saturated => (
                    "every endpoint is at its limit",
                    "every endpoint was at its limit",
                ),
                Failure::Busy => ("every endpoint is busy", "every endpoint was busy"),
                Failure::NoEndpoint => ("no endpoint is available", "no endpoint was available"),
                _ => (
                    "no connection can be opened from here",
                    "no connection could be opened from here",
                ),
            },
            Limit::Files { failure, .. } => match failure {
                Failure::NoDescriptor => (
                    "no descriptor is left for its files",
                    "no descriptor was left for its files",
                ),
                _ => (
                    "its disk can't keep up with reads",
                    "its disk couldn't keep up with reads",
                ),
            },
            Limit::Requests { .. } => (
                "it gets more requests than its limit allows",
                "it got more requests than its limit allows",
            ),
            Limit::DryRun { .. } => (
                "it gets more requests than its limit would allow",
                "it got more requests than its limit would allow",
            ),
            Limit::Mirror { .. } => (
                "not every request is copied to its mirror",
                "not every request was copied to its mirror",
            ),
            Limit::MirrorFailed { .. } => (
                "its mirror does not answer copies of requests",
                "its mirror did not answer copies of requests",
            ),
            Limit::Retries { .. } => (
                "its budget of retries is used up",
                "its budget of retries was used up",
            ),
            Limit::Buffers { .. } => (
                "the memory for buffers is used up",
                "the memory for buffers was used up",
            ),
            Limit::ErrorPages => (
                "no upstream can serve the page of an error",
                "no upstream could serve the page of an error",
            ),
            Limit::LogLines => (
                "lines can't be written, or not fast enough",
                "lines couldn't be written, or not fast enough",
            ),
            Limit::Spans => (
                "the collector can't be reached or can't keep up",
                "the collector couldn't be reached or keep up",
            ),
        };
        let [one, several] = match self {
            Limit::Connections { .. } | Limit::Descriptors { .. } => {
                ["connection refused", "connections refused"]
            }
            Limit::Clients { .. } | Limit::IdleConnections { .. } => {
                ["connection closed", "connections closed"]
            }
            Limit::Upstream { .. } | Limit::Files { .. } | Limit::Requests { .. } => {
                ["request refused", "requests refused"]
            }
            Limit::DryRun { .. } => ["request passed", "requests passed"],
            Limit::Mirror { .. } => ["request not copied", "requests not copied"],
            Limit::MirrorFailed { .. } => ["copy failed", "copies failed"],
            Limit::Retries { .. } => ["retry not made", "retries not made"],
            Limit::Buffers { .. } => ["body streamed", "bodies streamed"],
            Limit::ErrorPages => ["error without it", "errors without it"],
            Limit::LogLines => ["line lost", "lines lost"],
            Limit::Spans => ["span lost", "spans lost"],
        };
        Words {
            of,
            is,
            was,
            counted: if count == 1 { one } else { several },
        }
    }

    fn say_began(self, config: &Config, count: u64) {
        let Words {
            of, is, counted, ..
        } = self.words(config, count);
        let limit = self.word();
        tracing::warn!(of, limit, count, "{of}: {is}: {count} {counted} so far");
    }

    fn say_ended(self, config: &Config, count: u64, lasted: Duration) {
        let Words {
            of, was, counted, ..
        } = self.words(config, count);
        let limit = self.word();
        let seconds = lasted.as_secs();
        tracing::info!(
            of,
            limit,
            count,
            seconds,
            "{of}: {was}: {count} {counted} within {seconds} s"
        );
    }

    fn word(self) -> &'static str {
        match self {
            Limit::Connections { .. } => Failure::Connections.word(),
            Limit::Descriptors { .. } => Failure::NoDescriptor.word(),
            Limit::Clients { .. } | Limit::IdleConnections { .. } => "displaced",
            Limit::Upstream { failure, .. } | Limit::Files { failure, .. } => failure.word(),
            Limit::Requests { .. } => Failure::RateLimited.word(),
            Limit::DryRun { .. } => "rate-limited-dry-run",
            Limit::Mirror { .. } => "mirror",
            Limit::MirrorFailed { .. } => "mirror-failed",
            Limit::Retries { .. } => "retries",
            Limit::Buffers { .. } => "buffer-memory",
            Limit::ErrorPages => "error-pages",
            Limit::LogLines => "log-lines",
            Limit::Spans => "spans",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NameLookup;

    #[test]
    fn an_episode_is_said_twice() {
        let epoch = Instant::now();
        let mut episode = Episode::default();
        let counts = [0, 0, 3, 3, 10, 10, 10, 10, 10, 10, 10, 11];
        let news: Vec<_> = counts
            .into_iter()
            .enumerate()
            .map(|(second, count)| {
                let now = epoch + Duration::from_secs(second as u64);
                episode.look(count, now)
            })
            .filter(|it| *it != EpisodeChange::None)
            .collect();
        let ended = EpisodeChange::Ended {
            count: 10,
            lasted: Duration::from_secs(3),
        };
        assert_eq!(
            news,
            [
                EpisodeChange::Began { count: 3 },
                ended,
                EpisodeChange::Began { count: 1 }
            ]
        );
    }

    #[test]
    fn a_count_that_goes_back_ends_an_episode_like_another() {
        let epoch = Instant::now();
        let mut episode = Episode::default();
        let mut look = |second, count| episode.look(count, epoch + Duration::from_secs(second));
        assert_eq!(look(0, 10), EpisodeChange::Began { count: 10 });
        assert!(matches!(
            look(10, 10),
            EpisodeChange::Ended { count: 10, .. }
        ));
        assert_eq!(look(20, 12), EpisodeChange::Began { count: 2 });
        let ended = EpisodeChange::Ended {
            count: 0,
            lasted: LOOK_INTERVAL,
        };
        assert_eq!(look(30, 1), ended);
    }

    #[test]
    fn what_keeps_its_name_is_not_said_anew() {
        let config = |names: [&str; 2]| {
            let [first, second] = names;
            let text = format!(
                "[[listener]]\nname = 'web'\nbind = ':0'\n[[route]]\nupstream = '{first}'\n\
                 [upstream.{first}]\n[upstream.{second}]"
            );
            let loaded = crate::config::load_text("test.toml", &text, NameLookup::Skip);
            Arc::new(loaded.unwrap().config)
        };
        let busy = |watch: &LimitWatch| {
            let counted = watch.watched.iter().filter(|(_, it)| it.count > 0);
            let keys = counted.map(|(limit, it)| (limit.key(&watch.config), it.current.is_some()));
            keys.collect::<Vec<_>>()
        };
        let mut watch = LimitWatch::of(&config(["b", "c"]));
        let now = Instant::now();
        for (limit, episode) in &mut watch.watched {
            if let Limit::Retries { .. } = limit {
                let news = episode.look(7, now);
                assert_eq!(news, EpisodeChange::Began { count: 7 });
            }
        }
        let retries = |of: &str| (("retries", format!("upstream {of}")), true);
        assert_eq!(busy(&watch), [retries("b"), retries("c")]);
        // Another one moved before it, and one is gone.
        watch.follow(&config(["a", "c"]), now);
        assert_eq!(busy(&watch), [retries("c")]);
        let known = watch
            .watched
            .iter()
            .filter(|(_, it)| it.end(now) != EpisodeChange::None);
        assert_eq!(known.count(), 1, "of the one that stays");
    }
}
