//! Of a route, and of the files that it serves.

use evenkeel_metrics::{Detail, End, Failure, Lazy, figures};

use super::Sources;
use super::exchanges::ExchangeCounters;

figures! {
    /// Figures of a route.
    figures RouteFigures;
    /// Counters of a route.
    cells RouteCounters;
    /// What is known of a route otherwise.
    given RouteGiven;

    /// Its name.
    given name: String;
    /// Name of the upstream that it goes to, if it goes to one.
    given upstream: Option<String>;
    /// Its files, if it serves any.
    given files: Option<FileFigures>;
    /// Its exchanges.
    nested exchanges: Lazy<ExchangeCounters>;
}

figures! {
    /// Figures of a route's files.
    figures FileFigures;
    /// Counters of a route's files.
    cells FileCounters;
    /// What is known of a route's files otherwise.
    given FileGiven;

    /// The folder.
    given root: String;
    /// Answers with files for which all that was needed was in memory.
    counter hot => "hot_total";
    /// Answers with files for which a disk was asked.
    counter cold => "cold_total";
    /// Requests for files that the queue of the disk refused.
    given refused: u64 => counter "refused_total";
}

impl Sources {
    pub(super) fn route(&self, index: usize, detail: Detail) -> RouteFigures {
        let settings = &self.config.routes[index];
        let proxying = settings.action.proxying();
        let given = RouteGiven {
            name: settings.name.clone(),
            upstream: proxying.map(|it| self.config.upstreams[it.upstream].name.clone()),
            files: None,
        };
        let cells = self.counters.iter().map(|it| &*it.routes[index]);
        let mut route = given.with(cells, detail);
        if let Some(files) = settings.action.files() {
            let given = FileGiven {
                root: files.root.display().to_string(),
                refused: route.exchanges.ends.count(End::Failure(Failure::DiskBusy)),
            };
            let cells = self
                .counters
                .iter()
                .filter_map(|it| it.files[index].as_deref());
            route.files = Some(given.with(cells, detail));
        }
        route
    }
}
