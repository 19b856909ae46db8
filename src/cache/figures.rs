//! Figures of a cache.

use evenkeel_metrics::figures;

figures! {
    /// Figures of a cache.
    figures CacheFigures;

    /// Its name.
    given name: String;
    /// Responses that are stored, purged ones among them that nobody has asked for since.
    given responses: u64 => gauge "responses";
    /// Memory that stored responses take.
    given bytes: u64 => gauge "bytes";
    /// Most memory that stored responses may take.
    given limit_bytes: u64 => gauge "limit_bytes";
    /// Responses that made room for others.
    given evicted: u64 => counter "evicted_total";
    /// Purges, by whatever way they came.
    given purges: u64 => counter "purges_total";
    /// Responses that are fetched now.
    given fetches: usize => gauge "fetches";
}
