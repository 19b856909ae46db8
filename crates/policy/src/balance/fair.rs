//! `fair`: upstream_fair, the module for nginx by G. Nosek.
//!
//! An idle endpoint in turn. If none is idle, the least busy by a score:
//! exchanges in flight, and how long ago the endpoint was chosen. For
//! application servers that take one request at a time, or as many as their
//! weight.
//!
//! A weight is read in three ways, see [`WeightMode`]. A weight that counts
//! exchanges is the configured one, whatever slow start makes of it. Failures
//! are recent until a success follows: the original forgets after
//! `fail_timeout`.
//!
//! The original multiplies the weight by the rest of `max_fails`, so that
//! failing endpoints look busier. Evenkeel has no such number: the score is
//! multiplied by one plus the errors in a row.
//!
//! The last choice of an endpoint is known per worker, exchanges in flight over
//! all workers.

use super::cursor::Cursor;
use super::{Promises, Ranking, Split, View};
use crate::endpoint::EndpointState;
use crate::members::Moved;

/// Bits of the score that say how long ago an endpoint was chosen.
const TURN_BITS: u32 = 20;
const TURN_MASK: u64 = (1 << TURN_BITS) - 1;

/// The options of upstream_fair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FairOptions {
    /// Look for an idle endpoint from the first one on, not from the last
    /// chosen. With [`WeightMode::Idle`] it packs: an endpoint in use that has
    /// room goes before idle ones.
    pub no_rr: bool,
    /// The meaning of a weight.
    pub weight_mode: WeightMode,
}

impl FairOptions {
    /// Every combination, the default first.
    pub const ALL: [FairOptions; 6] = [
        FairOptions::new(false, WeightMode::Default),
        FairOptions::new(true, WeightMode::Default),
        FairOptions::new(false, WeightMode::Idle),
        FairOptions::new(true, WeightMode::Idle),
        FairOptions::new(false, WeightMode::Peak),
        FairOptions::new(true, WeightMode::Peak),
    ];

    const fn new(no_rr: bool, weight_mode: WeightMode) -> Self {
        FairOptions { no_rr, weight_mode }
    }
}

/// The meaning of a weight to `fair`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightMode {
    /// Share of the traffic when none is idle.
    #[default]
    Default,
    /// Exchanges below which an endpoint counts as idle.
    Idle,
    /// Most exchanges in flight: above that an exchange is refused at once.
    Peak,
}

/// Per-worker state.
#[derive(Debug, Clone)]
pub struct Fair {
    options: FairOptions,
    cursor: Cursor,
    picks: u64,
    /// For each endpoint the number of the pick that last chose it.
    chosen: Vec<u64>,
}

impl Fair {
    /// Workers begin at different endpoints.
    pub fn new(seed: u64, options: FairOptions) -> Self {
        Fair {
            options,
            cursor: Cursor::new(seed),
            picks: 0,
            chosen: Vec::new(),
        }
    }

    /// The idle pass and the busy pass in one. `scale` gives the factor and the
    /// divisor of the score. The factor is infinity if the endpoint may not be
    /// picked.
    fn search(
        &self,
        view: &View<'_>,
        is_idle: impl Fn(u32, &EndpointState) -> bool,
        scale: impl Fn(&EndpointState) -> (f64, f64),
    ) -> Option<usize> {
        let FairOptions { no_rr, weight_mode } = self.options;
        let start = if no_rr {
            0
        } else {
            self.cursor.next(view.len())
        };
        let packs = no_rr && weight_mode == WeightMode::Idle;
        let mut unused = None;
        let mut least = f64::INFINITY;
        let mut busy = None;
        for (first, part) in view.parts_from(start) {
            for (index, state) in (first..).zip(part) {
                if !view.admits(state) {
                    continue;
                }
                let load = state.load();
                if is_idle(load, state) && state.errors_in_row() == 0 {
                    if !packs || load > 0 {
                        return Some(index);
                    }
                    unused = unused.or(Some(index));
                }
                let (factor, divisor) = scale(state);
                let score = self.score(index, load) * factor;
                // A product costs less than a quotient, and few get further.
                if score < least * divisor {
                    least = score / divisor;
                    busy = Some(index);
                }
            }
        }
        unused.or(busy)
    }

    fn score(&self, index: usize, load: u32) -> f64 {
        let turns = (self.picks - self.chosen[index]).min(TURN_MASK);
        // At most 52 bits; unsigned numbers take longer to convert.
        (u64::from(load) << TURN_BITS | (!turns & TURN_MASK)) as i64 as f64
    }
}

impl Ranking for Fair {
    /// An idle endpoint, else the one with the least score. With
    /// [`WeightMode::Peak`] also `None` if all endpoints are at their caps.
    fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        self.chosen.resize(view.len(), 0);
        // Each mode has a search of its own, so that the mode is not asked for
        // at every endpoint.
        let index = match self.options.weight_mode {
            WeightMode::Default => self.search(
                view,
                |load, _| load == 0,
                |state| {
                    let errors = f64::from(state.errors_in_row());
                    (1.0 + errors, f64::from(View::weight_of(state)))
                },
            ),
            WeightMode::Idle => {
                self.search(view, |load, state| load < state.weight(), |_| (1.0, 1.0))
            }
            WeightMode::Peak => self.search(
                view,
                |load, _| load == 0,
                // Phantoms make it look busier, but take no place from it.
                |state| {
                    if state.in_flight() < state.weight() {
                        (1.0, 1.0)
                    } else {
                        (f64::INFINITY, 1.0)
                    }
                },
            ),
        }?;
        self.picks += 1;
        self.chosen[index] = self.picks;
        self.cursor.set(index);
        Some(index)
    }

    /// Most exchanges in flight that an endpoint may have. Workers that chose
    /// it at the same time must not exceed it together.
    fn cap(&self, view: &View<'_>, index: usize) -> u32 {
        match self.options.weight_mode {
            WeightMode::Peak => view.configured_weight(index),
            WeightMode::Default | WeightMode::Idle => u32::MAX,
        }
    }

    /// Whether an exchange is refused when all endpoints are at their caps.
    fn refuses_when_busy(&self) -> bool {
        self.options.weight_mode == WeightMode::Peak
    }

    fn follow(&mut self, moved: &Moved) {
        self.cursor.follow(moved);
        moved.carry(&mut self.chosen, || 0);
    }

    fn promises(&self) -> Promises {
        Promises {
            in_flight: match self.options.weight_mode {
                WeightMode::Default => Split::ByWeight,
                WeightMode::Idle | WeightMode::Peak => Split::Otherwise,
            },
            idle: Split::Otherwise,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::tests::Site;
    use super::super::{Balance, Balancer};
    use super::*;

    fn fair(no_rr: bool, weight_mode: WeightMode) -> Fair {
        Fair::new(0, FairOptions { no_rr, weight_mode })
    }

    fn picks(balancer: &mut Fair, site: &Site, count: usize) -> Vec<usize> {
        let pick = |_| balancer.pick(&site.view());
        (0..count).filter_map(pick).collect()
    }

    #[test]
    fn idle_ones_in_turn() {
        let mut site = Site::new(&[1, 5, 1, 1]);
        for mode in [WeightMode::Default, WeightMode::Peak] {
            let mut balancer = fair(false, mode);
            site.load(&[0, 0, 0, 0]);
            balancer.cursor.set(3);
            assert_eq!(picks(&mut balancer, &site, 5), [0, 1, 2, 3, 0]);
            site.load(&[0, 1, 0, 0]);
            assert_eq!(picks(&mut balancer, &site, 4), [2, 3, 0, 2]);
        }
    }

    #[test]
    fn without_turns_the_first_idle_one() {
        let mut site = Site::new(&[1; 4]);
        let mut balancer = fair(true, WeightMode::Default);
        assert_eq!(picks(&mut balancer, &site, 3), [0, 0, 0]);
        site.load(&[1, 1, 0, 0]);
        assert_eq!(picks(&mut balancer, &site, 3), [2, 2, 2]);
    }

    #[test]
    fn one_that_failed_is_not_taken_for_idle() {
        let mut site = Site::new(&[1; 3]);
        site.state(0).count_error();
        let mut balancer = fair(true, WeightMode::Default);
        assert_eq!(picks(&mut balancer, &site, 2), [1, 1]);
        site.state(0).count_success();
        assert_eq!(picks(&mut balancer, &site, 2), [0, 0]);
        // It looks busier: (2 + 1) * (1 + 3) is as 11 in flight.
        (0..3).for_each(|_| _ = site.state(0).count_error());
        site.load(&[2, 10, 10]);
        assert_eq!(picks(&mut balancer, &site, 2), [2, 1]);
        site.load(&[2, 12, 12]);
        assert_eq!(picks(&mut balancer, &site, 2), [0, 0]);
    }

    #[test]
    fn the_least_busy_by_weight_and_the_longest_not_chosen() {
        let mut site = Site::new(&[1, 1, 4]);
        site.load(&[2, 2, 13]);
        let mut balancer = fair(false, WeightMode::Default);
        balancer.cursor.set(2);
        assert_eq!(picks(&mut balancer, &site, 4), [0, 1, 0, 1]);
        site.load(&[3, 3, 13]);
        assert_eq!(picks(&mut balancer, &site, 2), [2, 2]);
    }

    #[test]
    fn below_its_weight_it_counts_as_idle() {
        let mut site = Site::new(&[2, 1, 3]);
        site.load(&[1, 1, 2]);
        let mut balancer = fair(false, WeightMode::Idle);
        balancer.cursor.set(2);
        assert_eq!(picks(&mut balancer, &site, 3), [0, 2, 0]);
        // None is below it: the least in flight, whatever the weight.
        site.load(&[5, 4, 6]);
        assert_eq!(picks(&mut balancer, &site, 2), [1, 1]);
    }

    #[test]
    fn slow_start_does_not_change_the_exchanges_that_a_weight_counts() {
        let mut site = Site::new(&[2, 2]);
        site.state(0).set_ramp(1);
        site.load(&[1, 2]);
        assert_eq!(fair(false, WeightMode::Idle).pick(&site.view()), Some(0));
        assert_eq!(fair(false, WeightMode::Peak).pick(&site.view()), Some(0));
    }

    #[test]
    fn packs_what_is_in_use() {
        let mut site = Site::new(&[2; 4]);
        let options = FairOptions::new(true, WeightMode::Idle);
        let mut balancer = Balancer::new(Balance::Fair(options), 0);
        let mut picks = Vec::new();
        for _ in 0..6 {
            picks.push(site.reserve(&mut balancer).expect("there is room"));
        }
        assert_eq!(picks, [0, 0, 1, 1, 2, 2]);
        // The one in use goes before the idle ones in front of it.
        site.load(&[0, 0, 1, 0]);
        assert_eq!(site.reserve(&mut balancer), Some(2));
        site.load(&[0, 0, 2, 0]);
        assert_eq!(site.reserve(&mut balancer), Some(0));
    }

    #[test]
    fn at_the_peak_there_is_none() {
        let mut site = Site::new(&[2, 1]);
        let mut balancer = fair(false, WeightMode::Peak);
        site.load(&[1, 1]);
        assert_eq!(picks(&mut balancer, &site, 2), [0, 0]);
        site.load(&[2, 1]);
        assert_eq!(balancer.pick(&site.view()), None);
        // A phantom takes no place.
        site.load(&[1, 1]);
        site.state(0).set_phantoms(5);
        assert_eq!(balancer.pick(&site.view()), Some(0));
        assert!(balancer.refuses_when_busy());
        assert!(!fair(true, WeightMode::Idle).refuses_when_busy());
    }

    /// Workers that see the same free place take it once.
    #[test]
    fn many_workers_never_exceed_the_peak() {
        let site = Site::new(&[1, 2, 3]);
        let options = FairOptions {
            no_rr: true,
            weight_mode: WeightMode::Peak,
        };
        let taken = [const { AtomicU32::new(0) }; 3];
        let exceeded = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for seed in 0..8 {
                let (site, taken, exceeded) = (&site, &taken, &exceeded);
                scope.spawn(move || {
                    let mut balancer = Balancer::new(Balance::Fair(options), seed);
                    for _ in 0..20_000 {
                        let Some(index) = site.reserve(&mut balancer) else {
                            continue;
                        };
                        let others = taken[index].fetch_add(1, Ordering::SeqCst);
                        if others as usize > index {
                            exceeded.fetch_add(1, Ordering::SeqCst);
                        }
                        std::thread::yield_now();
                        taken[index].fetch_sub(1, Ordering::SeqCst);
                        site.release(index);
                    }
                });
            }
        });
        assert_eq!(exceeded.into_inner(), 0);
    }
}
