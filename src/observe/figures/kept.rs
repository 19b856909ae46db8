//! Hands the counts of one process over to the next.
//!
//! Counts go by the names of the counted objects. The next process keeps them beside the counters
//! of its workers, like one more worker that only the process before raises.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use evenkeel_metrics::{Cell, Saved};
use evenkeel_policy::endpoint::{EndpointState, Outages};

use super::super::process;
use super::Sources;
use super::counters::Counters;
use crate::config::Config;

impl Counters {
    /// All counts of this worker so far, by the names of this configuration, which has its
    /// indices.
    fn save(&self, config: &Config) -> Saved {
        let listeners = config.listeners.iter().zip(&self.listeners);
        let routes = || config.routes.iter();
        let upstreams = || config.upstreams.iter();
        let files = routes().zip(&self.files);
        let files = files.filter_map(|(route, files)| Some((&*route.name, files.as_ref()?.save())));
        let caching = routes().zip(&self.caching);
        let caching =
            caching.filter_map(|(route, it)| Some((&*route.name, it.as_ref()?.counters.save())));
        let limits = routes().zip(&self.limits);
        let limits = limits.filter_map(|(route, it)| Some((&*route.name, it.as_ref()?.save())));
        let compression = routes().zip(&self.compression);
        let compression =
            compression.filter_map(|(route, it)| Some((&*route.name, it.as_ref()?.save())));
        let mirrors = routes().zip(&self.mirrors);
        let mirrors = mirrors.filter_map(|(route, it)| Some((&*route.name, it.as_ref()?.save())));
        Saved::named([
            ("own", self.worker.own.save()),
            ("spans_dropped", self.worker.spans_dropped.save()),
            (
                "listeners",
                Saved::named(listeners.map(|(listener, it)| (&*listener.name, it.save()))),
            ),
            (
                "routes",
                Saved::named(
                    routes()
                        .zip(&self.routes)
                        .map(|(route, it)| (&*route.name, it.save())),
                ),
            ),
            ("files", Saved::named(files)),
            ("caching", Saved::named(caching)),
            ("limits", Saved::named(limits)),
            ("compression", Saved::named(compression)),
            ("mirrors", Saved::named(mirrors)),
            (
                "upstreams",
                Saved::named(
                    upstreams()
                        .zip(&self.upstreams)
                        .map(|(upstream, it)| (&*upstream.name, it.save())),
                ),
            ),
            (
                "endpoints",
                Saved::named(
                    upstreams()
                        .zip(&self.endpoints)
                        .map(|(upstream, it)| (&*upstream.name, it.save())),
                ),
            ),
        ])
    }
}

impl Sources {
    /// The counters of the process before: they follow those of the workers.
    fn inherited(&self) -> Option<&Arc<Counters>> {
        self.counters.get(self.config.server.workers)
    }

    /// Sources with only the counts of the process before; `None` where there was none.
    pub(crate) fn of_process_before(&self) -> Option<Sources> {
        let counters = vec![self.inherited()?.clone()];
        Some(Sources {
            counters,
            ..self.clone()
        })
    }

    /// All counts so far.
    pub(crate) fn save(&self) -> Saved {
        let mut sum = Saved::Nothing;
        for counters in &self.counters {
            sum.add(counters.save(&self.config));
        }
        sum.add(self.save_given());
        sum
    }

    /// The counts that no worker keeps.
    fn save_given(&self) -> Saved {
        let tickets = self.tickets.figures();
        let process = [
            ("ticket_key_rotations", tickets.rotations),
            ("tickets_unknown", tickets.unknown),
            ("ticket_keys_learned", tickets.learned),
            ("ticket_server_downs", tickets.server_downs),
            (
                "log_lines_lost",
                self.log_lines_lost.load(Ordering::Relaxed),
            ),
            ("spans_sent", self.spans.sent.load(Ordering::Relaxed)),
            ("spans_lost", self.spans.lost.load(Ordering::Relaxed)),
            (
                "status_tokens_refused",
                self.status_tokens_refused.load(Ordering::Relaxed),
            ),
            ("worker_stalls", self.worker_stalls.so_far()),
            ("reloads", self.reloads.done()),
            ("reloads_reverted", self.reloads.reverted()),
            ("answer_memory_refused", self.disks.answer_memory.refused()),
        ];
        let of_endpoints = |of: &dyn Fn(usize, &EndpointState) -> Saved| {
            let upstreams = self.config.upstreams.iter().enumerate();
            Saved::named(upstreams.map(|(index, upstream)| {
                let members = self.dispatchers[index].members();
                let endpoints = members.endpoints().iter();
                let endpoints = endpoints.map(|it| (it.name(), of(index, it)));
                (&*upstream.name, Saved::named(endpoints))
            }))
        };
        let upstreams = self.config.upstreams.iter().map(|it| {
            let failures = self.discovered.source_failures(&it.name);
            (&*it.name, failures.save())
        });
        let disks = self.disks.all().iter();
        let disks = disks.map(|it| (&*it.name, it.save()));
        let caches = self.caches.iter();
        let caches = caches.map(|it| (it.name(), it.save()));
        Saved::named([
            ("upgrades", self.upgrades.save(process::cpu_us())),
            ("reloads_refused", self.reloads.refused().save()),
            ("listener_paths_lost", self.paths_lost.save()),
            ("source_failures", Saved::named(upstreams)),
            (
                "state_file_failures",
                self.discovered.state_failures().save(),
            ),
            ("disks", Saved::named(disks)),
            ("caches", Saved::named(caches)),
            (
                "process",
                Saved::named(process.map(|(name, count)| (name, Saved::number(count)))),
            ),
            (
                "probe_failures",
                of_endpoints(&|upstream, it| {
                    Saved::number(self.probes.of(upstream, it.id()).failures)
                }),
            ),
            (
                "outages",
                of_endpoints(&|_, it| {
                    let Outages {
                        ejections,
                        downs,
                        unreachables,
                    } = it.outages();
                    Saved::numbers([ejections, downs, unreachables].map(u64::from).into())
                }),
            ),
        ])
    }

    /// Adds the increase of the counts that no worker keeps, since the report `before`.
    fn add_given(&self, saved: &Saved, before: &Saved) {
        let (process, process_before) = (saved.of("process"), before.of("process"));
        let more = |name| {
            let count = process.of(name).value();
            count.saturating_sub(process_before.of(name).value())
        };
        for (name, count) in [
            ("log_lines_lost", &*self.log_lines_lost),
            ("spans_sent", &self.spans.sent),
            ("spans_lost", &self.spans.lost),
            ("status_tokens_refused", &*self.status_tokens_refused),
        ] {
            count.fetch_add(more(name), Ordering::Relaxed);
        }
        self.worker_stalls.add(more("worker_stalls"));
        self.tickets.add(
            more("ticket_key_rotations"),
            more("tickets_unknown"),
            more("ticket_keys_learned"),
            more("ticket_server_downs"),
        );
        self.reloads.add(more("reloads"), more("reloads_reverted"));
        let of = |name| (saved.of(name), before.of(name));
        let (now, told) = of("reloads_refused");
        self.reloads.refused().add(now, told);
        let (now, told) = of("listener_paths_lost");
        self.paths_lost.add(now, told);
        let (now, told) = of("state_file_failures");
        self.discovered.state_failures().add(now, told);
        let answer_memory = &self.disks.answer_memory;
        answer_memory.add_refused(more("answer_memory_refused"));
        self.upgrades
            .add(saved.of("upgrades"), before.of("upgrades"));
        let (now, told) = of("source_failures");
        for upstream in &self.config.upstreams {
            let failures = self.discovered.source_failures(&upstream.name);
            failures.add(now.of(&upstream.name), told.of(&upstream.name));
        }
        for disk in self.disks.all() {
            disk.raise(saved.of("disks").of(&disk.name));
        }
        for cache in &self.caches {
            cache.raise(saved.of("caches").of(cache.name()));
        }
        for (index, upstream) in self.config.upstreams.iter().enumerate() {
            let failures = saved.of("probe_failures").of(&upstream.name);
            let failures_before = before.of("probe_failures").of(&upstream.name);
            let outages = saved.of("outages").of(&upstream.name);
            for endpoint in self.dispatchers[index].members().endpoints() {
                let name = endpoint.name();
                let more = failures.of(name).value();
                let more = more.saturating_sub(failures_before.of(name).value());
                let probes = self.probes.of_upstream(index);
                probes.add_failures(endpoint.id(), more);
                if let [ejections, downs, unreachables] = outages.of(name).values() {
                    endpoint.raise_outages(Outages {
                        ejections: *ejections as u32,
                        downs: *downs as u32,
                        unreachables: *unreachables as u32,
                    });
                }
            }
        }
    }

    /// Continues from the counts of the process before: takes these in place of the earlier
    /// report `before`. To be called by one thread.
    pub(crate) fn inherit(&self, saved: &Saved, before: &Saved) {
        self.add_given(saved, before);
        self.raise(saved);
    }

    /// Raises the counters of the process before to at least these counts.
    fn raise(&self, saved: &Saved) {
        let Some(counters) = self.inherited() else {
            return;
        };
        counters.worker.own.raise(saved.of("own"));
        counters
            .worker
            .spans_dropped
            .raise(saved.of("spans_dropped"));
        let config = &*self.config;
        let listeners = saved.of("listeners");
        for (listener, cells) in config.listeners.iter().zip(&counters.listeners) {
            cells.raise(listeners.of(&listener.name));
        }
        let (routes, files) = (saved.of("routes"), saved.of("files"));
        let (caching, limits) = (saved.of("caching"), saved.of("limits"));
        let (compression, mirrors) = (saved.of("compression"), saved.of("mirrors"));
        for (index, route) in config.routes.iter().enumerate() {
            counters.routes[index].raise(routes.of(&route.name));
            if let Some(cells) = &counters.files[index] {
                cells.raise(files.of(&route.name));
            }
            if let Some(cells) = &counters.caching[index] {
                cells.counters.raise(caching.of(&route.name));
            }
            if let Some(cells) = &counters.limits[index] {
                cells.raise(limits.of(&route.name));
            }
            if let Some(cells) = &counters.compression[index] {
                cells.raise(compression.of(&route.name));
            }
            if let Some(cells) = &counters.mirrors[index] {
                cells.raise(mirrors.of(&route.name));
            }
        }
        let (upstreams, endpoints) = (saved.of("upstreams"), saved.of("endpoints"));
        for (index, upstream) in config.upstreams.iter().enumerate() {
            counters.upstreams[index].raise(upstreams.of(&upstream.name));
            let members = self.dispatchers[index].members();
            counters.endpoints[index].raise(endpoints.of(&upstream.name), &members);
        }
    }
}
