//! Paths of Unix listeners that lead to them no more. The control thread counts, readers
//! ask.

use crate::metrics::ReasonCounts;

/// None yet.
pub fn paths_lost() -> ReasonCounts {
    ReasonCounts::new(&["path-taken", "path-removed"])
}
