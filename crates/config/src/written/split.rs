//! Splits: several upstreams, each of which gets a part of the requests.

use evenkeel_policy::split::Share;

use super::RequestKey;
use crate::setting::{Bounded, Placed, options};
use crate::value::Text;
use crate::{MAX_WEIGHT, Proxying};

options! {
    /// An upstream that gets a part of the requests.
    pub struct SplitTable as "a part of a split" {
        /// The name of the upstream.
        upstream: Placed<Text> = Required,
        /// The upstream's part, in proportion to the weights of the others. With 0 it gets no
        /// new clients, and keeps the clients that have its `sticky` cookie.
        weight: Bounded<u32, 0, { MAX_WEIGHT as i64 }> = Default("1"),
    }
}

/// Several upstreams, each of which gets a part of the requests.
#[derive(Debug, Clone)]
pub struct Split {
    /// The upstreams; at least one has a weight.
    pub parts: Box<[SplitPart]>,
    /// The key of the requests that stay together.
    pub by: RequestKey,
}

/// An upstream that gets a part of the requests.
#[derive(Debug, Clone, Copy)]
pub struct SplitPart {
    /// How requests are forwarded to it.
    pub proxying: Proxying,
    /// Its part of the requests.
    pub share: Share,
}
