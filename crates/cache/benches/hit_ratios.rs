//! Miss ratios of the store beside LRU, on traces with the shapes of public ones.
//!
//! `make hit-ratios` makes this program write its traces and results to a folder, where
//! `scripts/hit-ratios` runs the policies of libCacheSim over the same traces. To run it alone:
//! `cargo bench -p evenkeel-cache --bench hit_ratios`.
//!
//! The size of an object in a trace is its cost in the store, so that every policy has the same
//! bytes to fit.

#![allow(clippy::unwrap_used, reason = "a measurement")]

mod maker;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use evenkeel_cache::Memory;
use lru::LruCache;
use maker::{Maker, SECRET};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Requests of each trace.
const ASKED: u64 = 4_000_000;
/// Objects that popularity is spread over.
const OBJECTS: usize = 400_000;
/// Objects that are asked for once have numbers from here.
const ONCE: u64 = 1 << 40;
/// Bytes of a body: half of them have fewer.
const MEDIAN_LEN: f64 = 2_000.0;
/// Standard deviation of the logarithm of a body's length.
const SIGMA: f64 = 1.5;
const MAX_LEN: usize = 256 << 10;
/// Cache sizes, as parts of the bytes of all objects of a trace.
const PARTS: [f64; 2] = [0.01, 0.1];

/// The lengths of a trace's bodies.
#[derive(Clone, Copy)]
enum Lengths {
    /// All of 600 bytes.
    One,
    /// Drawn log-normal.
    LogNormal,
}

impl Lengths {
    /// The length of an object's body, always the same for the same number.
    fn of(self, number: u64) -> usize {
        match self {
            Lengths::One => 600,
            Lengths::LogNormal => {
                let mut random = fastrand::Rng::with_seed(number);
                // Box and Muller: a normal number of two even ones.
                let (one, two) = (1.0 - random.f64(), random.f64());
                let normal = (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * two).cos();
                let len = MEDIAN_LEN * (SIGMA * normal).exp();
                (len as usize).min(MAX_LEN)
            }
        }
    }
}

struct Trace {
    name: &'static str,
    lengths: Lengths,
    numbers: Vec<u64>,
}

/// Numbers by Zipf's law with this exponent.
fn zipf(exponent: f64, objects: usize, seed: u64) -> impl FnMut() -> u64 {
    let mut sums = Vec::with_capacity(objects);
    let mut sum = 0.0;
    for rank in 1..=objects {
        sum += (rank as f64).powf(-exponent);
        sums.push(sum);
    }
    let mut random = fastrand::Rng::with_seed(seed);
    move || {
        let at = random.f64() * sum;
        sums.partition_point(|&it| it < at) as u64
    }
}

/// Name, lengths and numbers of a trace.
type Shape = (&'static str, Lengths, fn() -> Vec<u64>);

const TRACES: [Shape; 8] = [
    ("zipf-0.7", Lengths::LogNormal, || plain(0.7)),
    ("zipf-0.9", Lengths::LogNormal, || plain(0.9)),
    ("zipf-1.1", Lengths::LogNormal, || plain(1.1)),
    ("zipf-0.9-one-size", Lengths::One, || plain(0.9)),
    ("zipf-0.9-scans", Lengths::LogNormal, scanned),
    ("zipf-0.9-once-only", Lengths::LogNormal, once_only),
    ("loop", Lengths::LogNormal, looped),
    ("moving-popularity", Lengths::LogNormal, moving),
];

fn plain(exponent: f64) -> Vec<u64> {
    let mut next = zipf(exponent, OBJECTS, 1);
    (0..ASKED).map(|_| next()).collect()
}

/// A crawler asks again and again for 20,000 objects in a row that no other client wants.
fn scanned() -> Vec<u64> {
    let mut next = zipf(0.9, OBJECTS, 2);
    let is_scan = |at| at % 100_000 < 20_000;
    let number = |at| if is_scan(at) { ONCE + at } else { next() };
    (0..ASKED).map(number).collect()
}

/// Every other request is the only one for its object.
fn once_only() -> Vec<u64> {
    let mut next = zipf(0.9, OBJECTS, 3);
    let number = |at| if at % 2 == 0 { ONCE + at } else { next() };
    (0..ASKED).map(number).collect()
}

fn looped() -> Vec<u64> {
    (0..ASKED).map(|at| at % OBJECTS as u64).collect()
}

/// The most popular objects are others after a while: seven of a hundred requests.
fn moving() -> Vec<u64> {
    let mut next = zipf(0.9, OBJECTS / 4, 4);
    (0..ASKED).map(|at| next() + at / 100 * 7).collect()
}

/// Parts of requests and of bytes that were not found.
#[derive(Default)]
struct Missed {
    asked: f64,
    asked_bytes: f64,
    missed: f64,
    missed_bytes: f64,
}

impl Missed {
    fn add(&mut self, size: usize, is_found: bool) {
        self.asked += 1.0;
        self.asked_bytes += size as f64;
        if !is_found {
            self.missed += 1.0;
            self.missed_bytes += size as f64;
        }
    }

    fn ratios(&self) -> [f64; 2] {
        [
            self.missed / self.asked,
            self.missed_bytes / self.asked_bytes,
        ]
    }
}

/// A trace with the sizes of its objects.
struct Sized {
    trace: Trace,
    sizes: HashMap<u64, usize>,
}

impl Sized {
    fn new(maker: &Maker, trace: Trace) -> Self {
        let body = vec![b'x'; MAX_LEN];
        let mut sizes = HashMap::new();
        for &number in &trace.numbers {
            sizes.entry(number).or_insert_with(|| {
                let body = &body[..trace.lengths.of(number)];
                maker.object(&maker.key(number), body, 0).cost()
            });
        }
        Sized { trace, sizes }
    }

    fn total_bytes(&self) -> usize {
        self.sizes.values().sum()
    }

    /// The store's.
    fn ours(&self, maker: &Maker, capacity_bytes: usize) -> [f64; 2] {
        let body = vec![b'x'; MAX_LEN];
        let store = Memory::new(capacity_bytes, SECRET);
        let mut missed = Missed::default();
        for &number in &self.trace.numbers {
            let key = maker.key(number);
            let is_found = store.find(&key, &maker.request()).is_some();
            missed.add(self.sizes[&number], is_found);
            if !is_found {
                let body = &body[..self.trace.lengths.of(number)];
                store.insert(&key, maker.object(&key, body, 0));
            }
        }
        missed.ratios()
    }

    fn lru(&self, capacity_bytes: usize) -> [f64; 2] {
        let mut lru = LruCache::unbounded();
        let mut bytes = 0;
        let mut missed = Missed::default();
        for number in &self.trace.numbers {
            let size = self.sizes[number];
            let is_found = lru.get(number).is_some();
            missed.add(size, is_found);
            if is_found {
                continue;
            }
            lru.put(*number, ());
            bytes += size;
            while bytes > capacity_bytes {
                let (gone, ()) = lru.pop_lru().unwrap();
                bytes -= self.sizes[&gone];
            }
        }
        missed.ratios()
    }

    /// Writes the trace in libCacheSim's format `oracleGeneral`: time, number, size, and when
    /// the object is next asked for. None of the policies here uses that last column.
    fn write(&self, folder: &Path) {
        let path = folder.join(self.trace.name).with_added_extension("trace");
        let mut file = BufWriter::new(File::create(path).unwrap());
        for number in &self.trace.numbers {
            file.write_all(&0_u32.to_le_bytes()).unwrap();
            file.write_all(&number.to_le_bytes()).unwrap();
            let size = self.sizes[number] as u32;
            file.write_all(&size.to_le_bytes()).unwrap();
            file.write_all(&i64::MAX.to_le_bytes()).unwrap();
        }
        file.flush().unwrap();
    }
}

fn main() {
    let mut arguments = std::env::args().skip_while(|it| it != "--write").skip(1);
    let folder = arguments.next().map(PathBuf::from);
    if let Some(folder) = &folder {
        fs::create_dir_all(folder).unwrap();
    }
    let maker = Maker::new();
    let mut found = String::new();
    println!("trace                   cache of    misses: ours    LRU   bytes: ours    LRU");
    for (name, lengths, numbers) in TRACES {
        let trace = Trace {
            name,
            lengths,
            numbers: numbers(),
        };
        let sized = Sized::new(&maker, trace);
        if let Some(folder) = &folder {
            sized.write(folder);
        }
        for part in PARTS {
            let capacity = (sized.total_bytes() as f64 * part) as usize;
            let ours = sized.ours(&maker, capacity);
            let lru = sized.lru(capacity);
            println!(
                "{name:<22} {:>5} MB {:>2.0} %    {:>12.4} {:>6.4}  {:>12.4} {:>6.4}",
                capacity >> 20,
                part * 100.0,
                ours[0],
                lru[0],
                ours[1],
                lru[1],
            );
            found += &format!("{name}\t{part}\t{capacity}\t{}\t{}\n", ours[0], ours[1]);
        }
    }
    if let Some(folder) = &folder {
        fs::write(folder.join("ours.tsv"), found).unwrap();
    }
}
