//! A past that starts after an upgrade. The figures have the counts of the process before, but no
//! second of the plots has them.

use super::*;

impl Past {
    /// Starts with the counts of that process. To be called before the first look.
    pub(super) fn begin(&mut self, figures: Figures) {
        for (past, cache) in self.caches.iter_mut().zip(&figures.caches) {
            past.begin(&figures, cache);
        }
        let caching = self.caching.iter_mut().zip(cached_routes(&figures));
        caching.for_each(|(past, (_, it))| past.begin(it));
        let limits = self.limits.iter_mut().zip(limited_routes(&figures));
        limits.for_each(|(past, (_, it))| past.begin(it));
        let (counted, bytes, _) = sum_of(&figures);
        self.all.begin(counted);
        self.bytes = bytes;
        self.loop_lag.begin(figures.loop_lag_us);
        let lines_missing = figures.log_lines_dropped + figures.log_lines_lost;
        self.lines_missing.begin(lines_missing);
        self.tokens_refused.begin(figures.status_tokens_refused);
        let listeners = self.listeners.iter_mut().zip(figures.listeners);
        listeners.for_each(|(past, it)| past.begin(it));
        let routes = self.routes.iter_mut().zip(figures.routes);
        routes.for_each(|(past, it)| past.begin(it));
        let disks = self.disks.iter_mut().zip(figures.disks);
        disks.for_each(|(past, it)| past.begin(it));
        let upstreams = self.upstreams.iter_mut().zip(figures.upstreams);
        upstreams.for_each(|(past, it)| past.begin(it));
    }
}

impl GrowthRecord {
    /// Starts with inherited counts, of unknown times.
    pub(super) fn begin(&mut self, count: u64) {
        self.count = count;
    }
}

impl PastTimes {
    /// Starts with times that do not belong to this minute.
    fn begin(&mut self, before: Distribution) {
        self.before = before;
    }
}

impl PastDisk {
    fn begin(&mut self, figures: DiskFigures) {
        self.counts = (figures.reads, figures.refused);
        self.wait.begin(figures.wait_us);
        self.service.begin(figures.service_us);
    }
}

impl PastListener {
    fn begin(&mut self, figures: ListenerFigures) {
        let exchanges = figures.exchanges;
        self.bytes = (exchanges.bytes_in, exchanges.bytes_out);
        self.series.begin(counted(exchanges));
    }
}

impl PastRoute {
    fn begin(&mut self, figures: RouteFigures) {
        self.files = figures.files.map_or((0, 0), |it| (it.hot, it.cold));
        self.series.begin(counted(figures.exchanges));
    }
}

impl PastUpstream {
    fn begin(&mut self, mut figures: UpstreamFigures) {
        let waits = std::mem::take(&mut figures.exchanges.phases.queue_us);
        self.waits.begin(waits);
        self.series.begin(counted(figures.exchanges));
        for (past, endpoint) in self.endpoints.iter_mut().zip(figures.endpoints) {
            past.series.begin(attempted(&endpoint));
        }
    }
}
