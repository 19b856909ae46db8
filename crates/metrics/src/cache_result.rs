//! The part of a cache in an exchange.

/// The part of a cache in an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheResult {
    /// It had a fresh response, or one that another client's fetch brought.
    Hit,
    /// It had a response that is stale.
    Stale,
    /// It had none.
    Miss,
    /// It had a response that an endpoint has confirmed.
    Revalidated,
    /// It was not asked.
    Bypass,
}

impl CacheResult {
    /// All of them.
    pub const ALL: [Self; 5] = [
        CacheResult::Hit,
        CacheResult::Stale,
        CacheResult::Miss,
        CacheResult::Revalidated,
        CacheResult::Bypass,
    ];

    /// The word for logs and counters.
    pub fn word(self) -> &'static str {
        match self {
            CacheResult::Hit => "hit",
            CacheResult::Stale => "stale",
            CacheResult::Miss => "miss",
            CacheResult::Revalidated => "revalidated",
            CacheResult::Bypass => "bypass",
        }
    }
}
