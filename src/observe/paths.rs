//! Paths of Unix listeners that no longer lead to them. The control thread counts them, and
//! readers ask.

use crate::metrics::ReasonCounts;

/// None yet.
pub fn paths_lost() -> ReasonCounts {
    ReasonCounts::new(&["path-taken", "path-removed"])
}
