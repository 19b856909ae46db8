//! Figures of a cache.

use evenkeel_metrics::figures;

use super::disk::DiskStoreFigures;
use super::shared::SharedFigures;

figures! {
    /// Figures of a cache.
    figures CacheFigures;

    /// Its name.
    given name: String;
    /// Stored responses, including purged ones that were not requested since.
    given responses: u64 => gauge "responses";
    /// Memory that stored responses take.
    given bytes: u64 => gauge "bytes";
    /// Most memory that stored responses may take.
    given limit_bytes: u64 => gauge "limit_bytes";
    /// Responses that made room for others.
    given evicted: u64 => counter "evicted_total";
    /// Purges since the start.
    given purges: u64 => counter "purges_total";
    /// Responses that are fetched now.
    given fetches: usize => gauge "fetches";
    /// Requests that wait for a fetch, or get its response as it arrives.
    given followers: u32 => gauge "followers";
    /// Its tier on a disk, if it has one.
    given disk: Option<DiskStoreFigures>;
    /// Its tier at a server that machines share, if it has one.
    given shared: Option<SharedFigures>;
}

impl CacheFigures {
    /// All that is counted, each by a name of its own.
    pub(super) fn counts(&mut self) -> Vec<(String, &mut u64)> {
        let mut counts = vec![
            ("evicted".to_owned(), &mut self.evicted),
            ("purges".to_owned(), &mut self.purges),
        ];
        let disk = self.disk.iter_mut().flat_map(DiskStoreFigures::counts);
        counts.extend(disk.map(|(name, count)| (format!("disk/{name}"), count)));
        let shared = self.shared.iter_mut().flat_map(SharedFigures::counts);
        counts.extend(shared.map(|(names, count)| (format!("shared/{}", names.join("/")), count)));
        counts
    }
}
