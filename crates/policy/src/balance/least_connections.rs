//! `least-connections`: least exchanges in flight by weight, idle ones first.
//!
//! HAProxy's leastconn: an idle endpoint goes before any that is not,
//! whatever their weights; among the others the least (n + 1) / weight wins.
//! Ties go round. For exchanges of very different length, with weights that
//! say what each endpoint can carry.

use super::View;
use super::cursor::Cursor;

/// Per-worker state.
#[derive(Debug, Clone)]
pub struct LeastConnections {
    cursor: Cursor,
}

impl LeastConnections {
    /// Workers begin at different endpoints.
    pub fn new(seed: u64) -> Self {
        LeastConnections {
            cursor: Cursor::new(seed),
        }
    }

    /// An idle endpoint, else the one that one exchange more would burden
    /// least, searching from the one after the last picked.
    pub fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        let start = self.cursor.next(view.len());
        let index = view.least_from(start, |_, state| match state.load() {
            0 => 0.0,
            load => (f64::from(load) + 1.0) / f64::from(View::weight_of(state)),
        })?;
        self.cursor.set(index);
        Some(index)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::Site;
    use super::*;

    #[test]
    fn idle_ones_first_in_turn_and_then_by_weight() {
        let mut site = Site::new(&[8, 1, 2]);
        let mut balancer = LeastConnections::new(0);
        site.load(&[1, 0, 0]);
        // (1 + 1) / 8 is less than 1 / 1, but the others are idle.
        let picks: Vec<_> = (0..4).filter_map(|_| balancer.pick(&site.view())).collect();
        assert_eq!(picks, [1, 2, 1, 2]);
        site.load(&[6, 1, 1]);
        assert_eq!(balancer.pick(&site.view()), Some(0), "7/8 < 2/2 < 2/1");
        site.load(&[9, 1, 1]);
        assert_eq!(balancer.pick(&site.view()), Some(2), "2/2 < 10/8 < 2/1");
        // 8/8 and 2/2: the one after the last goes first.
        site.load(&[7, 1, 1]);
        assert_eq!(balancer.pick(&site.view()), Some(0));
        assert_eq!(balancer.pick(&site.view()), Some(2));
    }
}
