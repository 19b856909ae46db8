//! The tables of limits against a plain model, and with many threads at once.

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::in_flight::{Entering, InFlightTable};
use evenkeel_policy::limit::{Allowance, LimitTable, Verdict};
use proptest::prelude::*;

/// When a clock of these tests begins: far from zero, as that of a machine.
const START_NS: u64 = 1 << 40;

/// A key as tests see it: uses are taken from a bucket that fills at the rate.
#[derive(Clone, Copy)]
struct Bucket {
    /// Nanoseconds' worth of uses; below zero where some wait.
    level: i128,
    filled_at: u64,
}

impl Bucket {
    /// The wait of a use, if there is one.
    fn take(&mut self, allowance: Allowance, now: u64) -> Option<Duration> {
        let interval = allowance.interval.as_nanos() as i128;
        let most = interval * i128::from(allowance.burst);
        self.level = most.min(self.level + i128::from(now - self.filled_at));
        self.filled_at = now;
        let left = self.level - interval;
        let wait = Duration::from_nanos(u64::try_from(-left).unwrap_or(0));
        (wait <= allowance.delay).then(|| {
            self.level = left;
            wait
        })
    }
}

proptest! {
    #[test]
    fn is_a_bucket_that_fills_at_the_rate(
        interval_us in 1_u64..2_000,
        burst in 1_u32..6,
        delay_us in prop_oneof![Just(0), 1_u64..3_000],
        uses in proptest::collection::vec((0_u8..4, 0_u64..1_500), 1..200),
    ) {
        let allowance = Allowance {
            interval: Duration::from_micros(interval_us),
            burst,
            delay: Duration::from_micros(delay_us),
        };
        let table = LimitTable::new(allowance, 64);
        let full = Bucket {
            level: allowance.interval.as_nanos() as i128 * i128::from(burst),
            filled_at: START_NS,
        };
        let mut model: HashMap<u8, Bucket> = HashMap::new();
        let mut now = START_NS;
        for (key, pause_us) in uses {
            now += pause_us * 1_000;
            let expected = model.entry(key).or_insert(full).take(allowance, now);
            let verdict = table.take(&[key], Instant::from_nanos(now));
            let found = match verdict {
                Verdict::Allowed { .. } => Some(Duration::ZERO),
                Verdict::Delayed { wait, .. } => Some(wait),
                Verdict::Refused { .. } => None,
            };
            prop_assert_eq!(found, expected);
            if let Verdict::Refused { retry_after, .. } = verdict {
                // A moment before, a use would still be too early.
                let later = Instant::from_nanos(now) + retry_after;
                let is_allowed = |at| {
                    matches!(table.look(&[key], at), Verdict::Allowed { .. })
                };
                prop_assert!(is_allowed(later));
                prop_assert!(!is_allowed(later - Duration::from_nanos(1)));
            }
        }
    }
}

/// Threads with the same keys get what one thread would have got.
///
/// One use each may be added where they bring in a key in the same moment.
#[test]
fn threads_share_an_allowance() {
    const THREADS: u64 = 4;
    const KEYS: u64 = 64;
    const BURST: u32 = 50;
    let allowance = Allowance {
        interval: Duration::from_secs(1),
        burst: BURST,
        delay: Duration::ZERO,
    };
    for _ in 0..20 {
        let table = LimitTable::new(allowance, 4_096);
        let allowed: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        let start = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    for round in 0..2 * u64::from(BURST) {
                        // In time, nothing comes back.
                        let now = Instant::from_nanos(START_NS + round);
                        for (key, count) in (0..KEYS).zip(&allowed) {
                            if let Verdict::Allowed { .. } = table.take(&key.to_le_bytes(), now) {
                                count.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
        });
        for count in &allowed {
            let count = count.load(Ordering::Relaxed);
            let burst = u64::from(BURST);
            assert!((burst..=burst + THREADS).contains(&count), "{count}");
        }
    }
}

/// A small table that threads fight for: a key that is over its limit stays so.
#[test]
fn threads_that_flood_a_table_free_no_key() {
    const FLOODERS: u64 = 3;
    let allowance = Allowance {
        interval: Duration::from_secs(1),
        burst: 10,
        delay: Duration::ZERO,
    };
    let table = LimitTable::new(allowance, 64);
    let now = Instant::from_nanos(START_NS);
    let is_allowed = |key: &[u8]| matches!(table.take(key, now), Verdict::Allowed { .. });
    while is_allowed(b"known") {}
    std::thread::scope(|scope| {
        for flooder in 0..FLOODERS {
            scope.spawn(move || {
                for key in 0..100_000_u64 {
                    is_allowed(&(key * FLOODERS + flooder).to_le_bytes());
                }
            });
        }
        for _ in 0..100_000 {
            assert!(!is_allowed(b"known"));
        }
    });
    assert!(table.active(now) <= table.capacity());
}

/// Threads come and go with few keys in a small table. No key has more in flight than its limit
/// and one for each thread, and nothing is left in the end.
#[test]
fn threads_share_what_may_be_in_flight() {
    const THREADS: u64 = 4;
    const LIMIT: u32 = 2;
    const KEYS: u64 = 8;
    let table = InFlightTable::new(16);
    let counts: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let refused = AtomicU64::new(0);
    let come = |key: u64| match table.enter(&key.to_le_bytes(), LIMIT) {
        Entering::Counted(place) => {
            let before = counts[key as usize].fetch_add(1, Ordering::SeqCst);
            assert!(before < u64::from(LIMIT) + THREADS, "{before} before it");
            Some(place)
        }
        Entering::Refused => {
            refused.fetch_add(1, Ordering::Relaxed);
            None
        }
        Entering::NotCounted => None,
    };
    let go = |key: u64, place| {
        counts[key as usize].fetch_sub(1, Ordering::SeqCst);
        table.leave(place);
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (come, go) = (&come, &go);
            scope.spawn(move || {
                for round in 0..100_000 {
                    let key = (round + thread) % KEYS;
                    let two = [come(key), come(key)];
                    two.into_iter().flatten().for_each(|it| go(key, it));
                }
            });
        }
    });
    assert!(refused.load(Ordering::Relaxed) > 0);
    assert_eq!(table.active(), 0);
}
