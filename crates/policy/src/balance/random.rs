//! `random`: a live endpoint at random, by weight.
//!
//! lighttpd's mod_proxy_core called this round-robin. For comparisons, and
//! where many proxies without knowledge of each other share the endpoints.

use super::draw::Draw;
use super::{Promises, Ranking, Split, View};

/// Per-worker state.
#[derive(Debug, Clone)]
pub struct Random {
    draw: Draw,
}

impl Random {
    /// A generator of its own for each worker.
    pub fn new(seed: u64) -> Self {
        Random {
            draw: Draw::new(seed),
        }
    }
}

impl Ranking for Random {
    /// Draws among the eligible endpoints, each by its weight.
    fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        self.draw.one(view)
    }

    fn promises(&self) -> Promises {
        Promises {
            in_flight: Split::Otherwise,
            idle: Split::ByWeight,
        }
    }
}
