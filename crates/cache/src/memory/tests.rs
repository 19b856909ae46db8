use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::message::tests::get;
use crate::object::tests::{SECRET, key_of, object};

fn store(capacity_bytes: usize) -> Memory {
    Memory::new(capacity_bytes, SECRET)
}

/// Checks that all parts of a store agree.
fn check(store: &Memory) {
    let bytes: usize = store.shards.iter().map(|shard| lock(shard).check()).sum();
    let objects: usize = store.shards.iter().map(|shard| lock(shard).len()).sum();
    assert_eq!(store.objects.load(Relaxed), objects);
    assert_eq!(store.stored_bytes.load(Relaxed), bytes);
    assert_eq!(store.reserved_bytes.load(Relaxed), 0);
}

/// Stores an object of this path and these bytes.
fn put(store: &Memory, path: &str, body: &[u8]) -> bool {
    let new = object(path, "", "", body, store.purge_count());
    store.insert(&key_of(path), new)
}

fn found(store: &Memory, path: &str) -> Option<Vec<u8>> {
    let found = store.find(&key_of(path), &get("").view())?;
    Some(found.body_at(0).to_vec())
}

#[test]
fn what_is_still_being_sent_counts() {
    let store = Memory::new(8 << 20, SECRET);
    let long = vec![0; 900_000];
    let mut sent = Vec::new();
    for number in 0..50 {
        let path = format!("/{number}");
        let object = object(&path, "", "", &long, 0);
        sent.push(object.clone());
        store.insert(&key_of(&path), object);
    }
    // Evicted objects still count.
    assert!(store.figures().bytes >= 50 * 900_000);
    assert!(store.figures().objects < 10);
    // So no further bytes may be reserved.
    assert!(!store.reserve(1));
    sent.clear();
    store.sweep(1);
    assert!(store.figures().bytes <= 8 << 20);
    assert!(store.reserve(1));
}

#[test]
fn finds_what_was_stored_last() {
    let store = store(1 << 20);
    assert_eq!(found(&store, "/a"), None);
    assert!(put(&store, "/a", b"1") && put(&store, "/b", b"") && put(&store, "/a", b"2"));
    assert_eq!(found(&store, "/a"), Some(b"2".to_vec()));
    assert_eq!(found(&store, "/b"), Some(Vec::new()));
    assert_eq!(store.figures().objects, 2);
    check(&store);
    assert_eq!(
        (store.remove(&key_of("/a")), store.remove(&key_of("/a"))),
        (1, 0)
    );
    assert_eq!(found(&store, "/a"), None);
    check(&store);
}

/// RFC 9111 §4.1.
#[test]
fn answers_with_the_variant_that_was_selected() {
    let store = store(1 << 20);
    let key = key_of("/");
    let add = |asked: &str, fields: &str, body: &[u8]| {
        assert!(store.insert(&key, object("/", asked, fields, body, 0)));
    };
    let ask = |asked: &str| {
        let sent = get(asked);
        let found = store.find(&key, &sent.view())?;
        Some(found.body_at(0).to_vec())
    };
    add("Foo: 1", "Vary: Foo", b"one");
    add("Foo: 2", "Vary: Foo", b"two");
    assert_eq!(ask("Foo: 1"), Some(b"one".to_vec()));
    assert_eq!(ask("Foo: 2"), Some(b"two".to_vec()));
    assert_eq!(ask("Foo: 3"), None);
    assert_eq!(ask(""), None);
    add("", "Vary: Foo", b"none");
    assert_eq!(ask(""), Some(b"none".to_vec()));
    add("Foo: 1", "Vary: Foo", b"one again");
    assert_eq!(ask("Foo: 1"), Some(b"one again".to_vec()));
    assert_eq!(store.variants(&key).len(), 3);
    // Ten thousand of them do not fill the store.
    for at in 0..10_000 {
        add(&format!("Foo: x{at}"), "Vary: Foo", b"x");
    }
    assert_eq!(store.variants(&key).len(), MAX_VARIANTS);
    assert_eq!(store.figures().objects, MAX_VARIANTS as u64);
    check(&store);
}

#[test]
fn an_object_in_use_stays_whole() {
    let store = store(1 << 20);
    put(&store, "/a", b"old");
    let used = store.find(&key_of("/a"), &get("").view()).unwrap();
    put(&store, "/a", b"new");
    store.purge(Purge::Everything, Strength::Hard);
    assert_eq!(found(&store, "/a"), None);
    assert_eq!(used.body_at(0), b"old");
    // A newer object in its place is not dropped with it.
    put(&store, "/a", b"newest");
    store.drop_one(&key_of("/a"), &used);
    assert_eq!(found(&store, "/a"), Some(b"newest".to_vec()));
}

#[test]
fn is_bounded_by_bytes() {
    let store = store(1 << 20);
    for at in 0..20_000 {
        let len = at * 37 % 3000;
        assert!(put(&store, &format!("/{at}"), &vec![0; len]));
        assert!(store.figures().bytes <= 1 << 20);
    }
    check(&store);
    assert!(store.figures().bytes > 1 << 19);
    let longest = vec![0; store.longest_bytes()];
    assert!(!put(&store, "/long", &longest), "too long");
    assert!(put(&store, "/long", &longest[..110_000]));
    assert_eq!(
        found(&store, "/long").map(|it| it.len()),
        Some(crate::object::CHUNK_BYTES)
    );
    check(&store);
}

#[test]
fn a_scan_displaces_nothing_that_is_asked_for() {
    let store = store(1 << 20);
    let body = [0; 500];
    let hot: Vec<String> = (0..200).map(|at| format!("/hot/{at}")).collect();
    for path in &hot {
        put(&store, path, &body);
        found(&store, path);
        found(&store, path);
    }
    let mut lost = 0;
    for at in 0..20_000 {
        put(&store, &format!("/scan/{at}"), &body);
        if at % 100 == 0 {
            lost += hot
                .iter()
                .filter(|path| found(&store, path).is_none())
                .count();
        }
    }
    assert_eq!(lost, 0);
    check(&store);
}

#[test]
fn of_a_loop_longer_than_the_store_a_part_is_found() {
    let store = store(1 << 20);
    let body = [0; 500];
    let mut count = 0;
    for _ in 0..4 {
        for at in 0..4000 {
            let path = format!("/{at}");
            match found(&store, &path) {
                Some(_) => count += 1,
                None => assert!(put(&store, &path, &body)),
            }
        }
    }
    // If new objects never began in the main queue, only 1.4 times as many as fit were found.
    let fit = store.figures().objects;
    assert!((1000..2000).contains(&fit), "{fit}");
    // Three rounds in which most of what fits could be found.
    assert!(count > fit * 19 / 10, "{count} of {fit} in each round");
    check(&store);
}

#[test]
fn what_is_renewed_is_as_warm_as_before() {
    let store = store(1 << 20);
    put(&store, "/a", b"1");
    found(&store, "/a");
    found(&store, "/a");
    put(&store, "/a", b"2");
    for at in 0..3000 {
        put(&store, &format!("/scan/{at}"), &[0; 500]);
    }
    assert_eq!(found(&store, "/a"), Some(b"2".to_vec()));
}

#[test]
fn what_comes_back_soon_stays() {
    let store = store(1 << 20);
    let body = [0; 500];
    put(&store, "/again", &body);
    for at in 0..2000 {
        put(&store, &format!("/a/{at}"), &body);
    }
    assert_eq!(found(&store, "/again"), None, "it has left the small queue");
    put(&store, "/again", &body);
    let key = key_of("/again");
    let shard = store.shard(&key);
    let index = shard.of_key(&key).next().unwrap().0;
    assert!(shard.is_main(index));
}

/// RFC 9111 §4.4, and what operators ask for.
#[test]
fn purges_what_is_there_and_what_was_asked_for_before() {
    let store = store(1 << 20);
    put(&store, "/a/1", b"1");
    put(&store, "/b/1", b"1");
    let asked_before = object("/a/2", "", "", b"", store.purge_count());
    let prefix = Purge::Prefix(b"http://example.com/a/");
    store.purge(prefix, Strength::Hard);
    assert_eq!(found(&store, "/a/1"), None);
    assert!(found(&store, "/b/1").is_some());
    assert!(!store.insert(&key_of("/a/2"), asked_before.clone()));
    assert!(put(&store, "/a/2", b"new"));
    assert_eq!(found(&store, "/a/2"), Some(b"new".to_vec()));
    // Once a sweep has been everywhere the mark goes, and with it who asked before.
    for _ in 0..3 {
        store.sweep(10_000);
    }
    let late = object("/c", "", "", b"", 0);
    assert!(!store.insert(&key_of("/c"), late));
    assert!(found(&store, "/a/2").is_some() && found(&store, "/b/1").is_some());
    check(&store);
}

#[test]
fn a_sweep_frees_what_was_purged() {
    let store = store(1 << 20);
    for at in 0..500 {
        put(&store, &format!("/{at}"), b"");
    }
    store.purge(Purge::Everything, Strength::Hard);
    assert_eq!(store.figures().objects, 500);
    put(&store, "/new", b"");
    let mut before = 501;
    for _ in 0..100 {
        store.sweep(10);
        let objects = store.figures().objects;
        assert!(before - objects <= 10, "a sweep is bounded");
        before = objects;
    }
    assert_eq!(store.figures().objects, 1);
    assert!(found(&store, "/new").is_some());
    check(&store);
}

#[test]
fn workers_share_a_store() {
    let store = store(200_000);
    std::thread::scope(|scope| {
        for worker in 0..4_usize {
            let store = &store;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(worker as u64);
                for _ in 0..5000 {
                    let path = format!("/{}", random.usize(..300));
                    match random.usize(..10) {
                        0..6 => {
                            if let Some(body) = found(store, &path) {
                                assert_eq!(body, path.as_bytes());
                            }
                        }
                        6..9 => {
                            put(store, &path, path.as_bytes());
                        }
                        _ if random.usize(..50) == 0 => {
                            store.purge(Purge::Everything, Strength::Hard);
                        }
                        _ => store.sweep(20),
                    }
                }
            });
        }
    });
    check(&store);
}

/// An operation of a test on a store.
#[derive(Debug, Clone)]
enum Act {
    Put { path: usize, len: usize },
    Find { path: usize },
    Remove { path: usize },
    PurgeAll,
    PurgePrefix { path: usize },
    Sweep,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let path = || 0..40_usize;
    let act = prop_oneof![
        8 => (path(), 0..5000_usize).prop_map(|(path, len)| Act::Put { path, len }),
        8 => path().prop_map(|path| Act::Find { path }),
        1 => path().prop_map(|path| Act::Remove { path }),
        1 => Just(Act::PurgeAll),
        1 => path().prop_map(|path| Act::PurgePrefix { path }),
        2 => Just(Act::Sweep),
    ];
    proptest::collection::vec(act, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A store is a map that forgets: a found object is the one stored last, and purged or
    /// removed objects are not found.
    #[test]
    fn is_a_map_that_forgets(acts in acts(), capacity in 60_000..400_000_usize) {
        let store = store(capacity);
        let mut model: HashMap<usize, usize> = HashMap::new();
        let name = |path: usize| format!("/{}/{path}", path % 4);
        for act in acts {
            match act {
                Act::Put { path, len } => {
                    if put(&store, &name(path), &vec![7; len]) {
                        model.insert(path, len);
                    }
                }
                Act::Find { path } => {
                    if let Some(body) = found(&store, &name(path)) {
                        prop_assert_eq!(Some(&body.len()), model.get(&path));
                    }
                }
                Act::Remove { path } => {
                    store.remove(&key_of(&name(path)));
                    model.remove(&path);
                }
                Act::PurgeAll => {
                    store.purge(Purge::Everything, Strength::Hard);
                    model.clear();
                }
                Act::PurgePrefix { path } => {
                    let prefix = format!("http://example.com/{}/", path % 4);
                    store.purge(Purge::Prefix(prefix.as_bytes()), Strength::Hard);
                    model.retain(|it, _| it % 4 != path % 4);
                }
                Act::Sweep => store.sweep(30),
            }
            prop_assert!(store.figures().bytes <= capacity as u64);
        }
        check(&store);
    }
}
