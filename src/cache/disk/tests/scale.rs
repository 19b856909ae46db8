//! Ten million objects: run by `make cache-scale`.

use std::time::Instant as StdInstant;

use super::*;

const OBJECTS: u64 = 10_000_000;

fn asked(number: u64) -> Asked {
    Asked::of(&format!("/objects/{number}"), "")
}

fn fill(store: &DiskStore, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let asked = asked(number);
        let key = asked.key(&store.secret());
        let new = object(store, &asked, "", &number.to_le_bytes());
        while store.insert(&key, new.clone()) == Err(NotWritten::QueueFull) {
            assert!(store.wait_until_idle(DEADLINE));
        }
    }
    assert!(store.wait_until_idle(DEADLINE));
}

/// Nanoseconds of a lookup in the index, among the first `count` objects.
fn lookup_ns(store: &DiskStore, count: u64) -> f64 {
    const TURNS: usize = 100_000;
    let asked: Vec<_> = (0..TURNS)
        .map(|_| {
            let asked = asked(fastrand::u64(..count));
            (asked.key(&store.secret()), asked)
        })
        .collect();
    let start = StdInstant::now();
    for (key, asked) in &asked {
        assert!(!store.look_up(key, &asked.view()).is_empty());
    }
    start.elapsed().as_nanos() as f64 / TURNS as f64
}

#[test]
#[ignore = "takes 4 GB of disk and some minutes"]
fn ten_million_objects() {
    let folder = TempDir::new().unwrap();
    let size = 6 << 30;
    let store = open(folder.path(), size);
    fill(&store, 0..10);
    let few_ns = lookup_ns(&store, 10);
    fill(&store, 10..100_000);
    let time = |numbers: std::ops::Range<u64>| {
        let count = (numbers.end - numbers.start) as f64;
        let start = StdInstant::now();
        fill(&store, numbers);
        start.elapsed().as_nanos() as f64 / count
    };
    let first_ns = time(100_000..200_000);
    fill(&store, 200_000..OBJECTS - 100_000);
    let last_ns = time(OBJECTS - 100_000..OBJECTS);
    let many_ns = lookup_ns(&store, OBJECTS);
    let figures = store.figures();
    let each = figures.index_bytes as f64 / figures.objects as f64;
    println!(
        "objects {}, files {} MB",
        figures.objects,
        figures.bytes >> 20
    );
    println!("index: {each:.1} bytes an object");
    println!("look up: {few_ns:.0} ns among 10, {many_ns:.0} ns among all");
    println!("insert: {first_ns:.0} ns after 100,000, {last_ns:.0} ns at the end");
    assert!(each < 64.0);
    assert!(figures.objects > OBJECTS * 99 / 100);
    close(store);
    let start = StdInstant::now();
    let store = open(folder.path(), size);
    println!("open: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    // The newest are there first.
    while fetch(&store, &format!("/objects/{}", OBJECTS - 1), "").is_none() {
        assert!(start.elapsed() < DEADLINE);
    }
    println!(
        "newest found: {:.1} ms",
        start.elapsed().as_secs_f64() * 1e3
    );
    assert!(store.wait_until_idle(DEADLINE));
    println!("all loaded: {:.1} s", start.elapsed().as_secs_f64());
    for _ in 0..1000 {
        let number = fastrand::u64(..OBJECTS);
        let found = body(&store, &format!("/objects/{number}"), "");
        if let Some(found) = found {
            assert_eq!(found, number.to_le_bytes());
        }
    }
}
