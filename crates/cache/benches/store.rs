//! Costs of the store: memory for each object, time for a lookup and an insert by the
//! number of objects, and the longest pause.
//!
//! `cargo bench -p evenkeel-cache --bench store`

#![allow(clippy::unwrap_used, reason = "a measurement")]

mod maker;

use std::time::{Duration, Instant};

use evenkeel_cache::Memory;
use evenkeel_cache::key::Key;
use evenkeel_cache::purge::{Purge, Strength};
use maker::{Maker, SECRET};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = status.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Memory for each object beside its bytes, and time by the number of objects.
fn costs(maker: &Maker) {
    println!("objects    bytes beside  find ns  insert ns  longest insert us");
    let body = [b'x'; 600];
    for count in [1_000, 10_000, 100_000, 1_000_000] {
        let before = resident_bytes();
        let store = Memory::new(8 << 30, SECRET);
        let own: usize = {
            let key = maker.key(1_000_000);
            key.bytes.len() + maker.object(&key, &body, 0).lines().len() + body.len()
        };
        let mut longest = Duration::ZERO;
        let mut total = Duration::ZERO;
        for number in 0..count {
            let key = maker.key(number);
            let object = maker.object(&key, &body, 0);
            let start = Instant::now();
            store.insert(&key, object);
            let took = start.elapsed();
            total += took;
            longest = longest.max(took);
        }
        let beside = (resident_bytes() - before) as i64 / count as i64 - own as i64;
        // Always the same thousand objects, spread over the store.
        let step = count / 1000;
        let keys: Vec<Key> = (0..1000).map(|at| maker.key(at * step)).collect();
        let start = Instant::now();
        for _ in 0..200 {
            for key in &keys {
                assert!(store.find(key, &maker.request()).is_some());
            }
        }
        println!(
            "{count:>9}  {beside:>11}  {:>7}  {:>9}  {:>17}",
            start.elapsed().as_nanos() / 200_000,
            total.as_nanos() / u128::from(count),
            longest.as_micros(),
        );
        if count == 1_000_000 {
            pauses(maker, &store);
        }
    }
}

/// The longest step while everything is purged and swept.
fn pauses(maker: &Maker, store: &Memory) {
    let mut longest = [Duration::ZERO; 3];
    let mut time = |at: usize, act: &mut dyn FnMut()| {
        let start = Instant::now();
        act();
        longest[at] = longest[at].max(start.elapsed());
    };
    time(0, &mut || store.purge(Purge::Everything, Strength::Hard));
    while store.figures().objects > 0 {
        time(1, &mut || store.sweep(1000));
    }
    for number in 0..100_000 {
        let key = maker.key(number);
        let object = maker.object(&key, b"", store.purge_count());
        time(2, &mut || assert!(store.insert(&key, object.clone())));
    }
    println!(
        "purge of 1,000,000: {:?}; longest sweep of 1,000 places: {:?}; insert after it: {:?}",
        longest[0], longest[1], longest[2]
    );
}

fn main() {
    costs(&Maker::new());
}
