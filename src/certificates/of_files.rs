//! The TLS of a listener or an upstream, as the watch over its files sees it.

use std::fmt;

use crate::watching::WatchedPaths;

/// TLS whose files may change.
pub(super) trait FileBacked: fmt::Debug + Send + Sync {
    /// Reads changed files again, uses them, and warns of certificates that end. Blocks.
    fn look(&self);

    /// Its files and folders.
    fn watched(&self) -> WatchedPaths;
}
