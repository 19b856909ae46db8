//! What the store costs and what it keeps: memory for each object, time for a lookup
//! and an insert by the number of objects, the longest pause, and the share of hits
//! beside LRU.
//!
//! `cargo bench -p evenkeel-cache`. The traces are made here; their shapes are those of
//! public ones: Zipf's law, the same with scans between, a loop longer than the store.

#![allow(clippy::unwrap_used, reason = "a measurement")]

use std::time::{Duration, Instant};

use evenkeel_cache::key::{Key, KeyRules, Secret};
use evenkeel_cache::object::{Body, StoredHead};
use evenkeel_cache::purge::{Purge, Strength};
use evenkeel_cache::{Lifetime, Memory, Object, Request, Response};
use evenkeel_policy::Instant as Moment;
use evenkeel_proto::http1::{parse_request, parse_response};
use evenkeel_proto::{Method, RequestHead, ResponseHead, Scheme};
use lru::LruCache;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SECRET: Secret = Secret([9; 16]);
const HEAD: &str = "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                    Content-Type: text/html\r\nCache-Control: max-age=3600\r\n\
                    ETag: \"46653f10-1194\"\r\n\r\n";

/// Makes keys and objects by number.
struct Maker {
    request: RequestHead,
    head: StoredHead,
}

const PLAIN: &str = "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n";

impl Maker {
    fn new() -> Self {
        let mut request = RequestHead::default();
        parse_request(PLAIN.as_bytes(), &mut request).unwrap();
        let mut response = ResponseHead::default();
        parse_response(HEAD.as_bytes(), Method::Get, &mut response).unwrap();
        let view = Response {
            head: &response,
            bytes: HEAD.as_bytes(),
        };
        let asked = Request {
            head: &request,
            bytes: PLAIN.as_bytes(),
            scheme: Scheme::Http,
        };
        let head = StoredHead::of(&SECRET, &asked, &view, 0).unwrap();
        Maker { request, head }
    }

    fn request(&self) -> Request<'_> {
        Request {
            head: &self.request,
            bytes: PLAIN.as_bytes(),
            scheme: Scheme::Http,
        }
    }

    fn key(&self, number: u64) -> Key {
        let target = format!("/objects/{number}");
        KeyRules::default().key_of_url(&SECRET, Scheme::Http, b"example.com", target.as_bytes())
    }

    fn object(&self, key: &Key, body: &[u8], seen: u64) -> Object {
        let lifetime = Lifetime {
            fresh: 3600,
            ..Lifetime::default()
        };
        let body = Body::of(body);
        Object::new(
            key,
            &self.head,
            &body,
            &lifetime,
            Moment::from_nanos(0),
            seen,
        )
        .unwrap()
    }
}

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

/// Share of hits of the store and of LRU with the same number of objects.
fn hits(maker: &Maker, trace: impl Iterator<Item = u64>) -> (f64, f64) {
    let body = [b'x'; 600];
    let cost = maker.object(&maker.key(1000), &body, 0).cost();
    let room = 10_000;
    let store = Memory::new(cost * room, SECRET);
    let mut lru: LruCache<u64, ()> = LruCache::new(room.try_into().unwrap());
    let (mut asked, mut found, mut lru_found) = (0.0, 0.0, 0.0);
    for number in trace {
        asked += 1.0;
        let key = maker.key(number);
        if store.find(&key, &maker.request()).is_some() {
            found += 1.0;
        } else {
            store.insert(&key, maker.object(&key, &body, 0));
        }
        if lru.get(&number).is_some() {
            lru_found += 1.0;
        } else {
            lru.put(number, ());
        }
    }
    (found / asked, lru_found / asked)
}

/// Numbers by Zipf's law with this exponent, of so many objects.
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

fn hit_ratios(maker: &Maker) {
    const ASKED: usize = 2_000_000;
    println!("trace (10,000 objects fit)             S3-FIFO   LRU");
    let show = |name: &str, (ours, lru): (f64, f64)| println!("{name:<38} {ours:.4}    {lru:.4}");
    for exponent in [0.6, 0.8, 1.0, 1.2] {
        let mut next = zipf(exponent, 200_000, 1);
        let trace = (0..ASKED).map(|_| next());
        show(
            &format!("Zipf {exponent}, 200,000 objects"),
            hits(maker, trace),
        );
    }
    let mut next = zipf(1.0, 200_000, 2);
    let mut scanned = 1_000_000;
    let trace = (0..ASKED).map(|at| match at % 50_000 {
        // A crawler asks for 20,000 objects that nobody else wants.
        0..20_000 => {
            scanned += 1;
            scanned
        }
        _ => next(),
    });
    show("Zipf 1.0 with scans of 20,000", hits(maker, trace));
    let mut next = zipf(0.8, 200_000, 3);
    let mut once = 1_000_000;
    let trace = (0..ASKED).map(|at| match at % 2 {
        0 => {
            once += 1;
            once
        }
        _ => next(),
    });
    show("Zipf 0.8, every other object once only", hits(maker, trace));
    let trace = (0..ASKED as u64).map(|at| at % 12_000);
    show("loop over 12,000 objects", hits(maker, trace));
    let mut next = zipf(0.9, 50_000, 4);
    let trace = (0..ASKED as u64).map(|at| next() + at / 100 * 7);
    show("Zipf 0.9, what is popular moves on", hits(maker, trace));
}

fn main() {
    let maker = Maker::new();
    hit_ratios(&maker);
    costs(&maker);
}
