use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::message::tests::{get, response};
use crate::object::tests::{SECRET, key_of};
use crate::vary;

fn position(segment: u32, number: u64) -> Position {
    Position {
        segment,
        offset: number * UNIT,
    }
}

/// The selector of a response with this `Vary` for a request.
fn selector(vary: &str, asked: &str) -> Vec<u8> {
    let mut selector = Vec::new();
    let response = response(200, vary);
    vary::push_selector(&mut selector, &response.view(), &get(asked).view()).unwrap();
    selector
}

fn place(path: &str, selector: &[u8], position: Position) -> Place {
    Place {
        hashes: hashes(&SECRET, key_of(path).hash, selector),
        position,
        size: Size(9),
        is_verified: false,
    }
}

fn set(index: &Index, selector: &[u8]) -> Option<SetId> {
    match selector {
        b"" => None,
        _ => index.names().id_of(&vary::names(selector)),
    }
}

fn insert(index: &Index, path: &str, selector: &[u8], position: Position) {
    index.insert(&place(path, selector, position), set(index, selector));
}

fn load(index: &Index, path: &str, selector: &[u8], position: Position) {
    index.load(&place(path, selector, position), set(index, selector));
}

fn found(index: &Index, path: &str, asked: &str) -> Vec<Position> {
    let found = index.find(&SECRET, &key_of(path), &get(asked).view());
    let places = found.into_iter().map(|it| {
        assert!(vary::selects(&it.selector, &get(asked).view()));
        it.place.position
    });
    places.collect()
}

fn index() -> Index {
    let index = Index::new(0);
    index.begin(1);
    index
}

#[test]
fn finds_by_key_and_by_what_is_varied() {
    let index = index();
    index.end_loading();
    insert(&index, "/a", b"", position(1, 1));
    for (number, language) in [(2, "de"), (3, "en")] {
        let selector = selector("Vary: Foo", &format!("Foo: {language}"));
        insert(&index, "/a", &selector, position(1, number));
    }
    let both = selector("Vary: Foo, Bar", "Foo: de\nBar: x");
    insert(&index, "/a", &both, position(1, 4));
    for (asked, expected) in [
        ("", &[1][..]),
        ("Foo: fr", &[1]),
        ("Foo: de", &[2, 1]),
        ("Foo: en\nBar: x", &[3, 1]),
        ("Foo: de\nBar: x", &[4, 2, 1]),
    ] {
        let expected: Vec<_> = expected.iter().map(|it| position(1, *it)).collect();
        assert_eq!(found(&index, "/a", asked), expected, "{asked}");
    }
    assert_eq!(index.records(), 4);
    assert_eq!(found(&index, "/b", ""), []);
    // A newer one in place of an older one.
    insert(&index, "/a", b"", position(1, 5));
    assert_eq!(found(&index, "/a", ""), [position(1, 5)]);
    assert_eq!(index.records(), 4);
}

#[test]
fn a_key_has_a_few_sets_of_names() {
    let index = index();
    index.end_loading();
    let names = ["A", "B", "C", "D", "E"];
    let asked: Vec<_> = names.iter().map(|name| format!("{name}: 1")).collect();
    for (number, name) in names.iter().enumerate() {
        let selector = selector(&format!("Vary: {name}"), &asked[number]);
        insert(&index, "/a", &selector, position(1, number as u64));
    }
    let counts = asked.iter().map(|asked| found(&index, "/a", asked).len());
    assert_eq!(counts.collect::<Vec<_>>(), [0, 1, 1, 1, 1]);
}

#[test]
fn removal_concerns_what_lies_before_it() {
    let index = index();
    index.end_loading();
    let de = selector("Vary: Foo", "Foo: de");
    let en = selector("Vary: Foo", "Foo: en");
    insert(&index, "/a", b"", position(1, 1));
    insert(&index, "/a", &de, position(1, 2));
    insert(&index, "/b", b"", position(1, 3));
    let key = key_of("/a").hash as u64;
    assert!(!index.remove(key_of("/c").hash as u64, position(1, 4)));
    assert!(index.remove(key, position(1, 4)));
    assert!(!index.remove(key, position(1, 4)));
    assert_eq!(found(&index, "/a", "Foo: de"), []);
    assert_eq!(found(&index, "/b", ""), [position(1, 3)]);
    // Without `Vary` nothing is left of a key.
    let plain = key_of("/b").hash as u64;
    assert!(index.remove(plain, position(1, 4)));
    assert!(!index.table(plain).floors.contains_key(&plain));
    // The set of names is back, and the removed one stays away.
    insert(&index, "/a", &en, position(1, 4));
    assert_eq!(found(&index, "/a", "Foo: en"), [position(1, 4)]);
    assert_eq!(found(&index, "/a", "Foo: de"), []);
    let old = place("/a", &de, position(1, 2));
    assert!(!index.has(old.hashes, old.position));
    let new = place("/a", &en, position(1, 4));
    assert!(index.has(new.hashes, new.position));
    assert!(!index.has(new.hashes, position(1, 5)));
}

/// Newest segments first, each from its end.
#[test]
fn older_segments_come_after_newer_ones() {
    let index = index();
    index.begin(4);
    let de = selector("Vary: Foo", "Foo: de");
    let en = selector("Vary: Foo", "Foo: en");
    // While segment 4 is written.
    insert(&index, "/new", b"", position(4, 1));
    let removed = key_of("/removed").hash as u64;
    assert!(index.remove(removed, position(4, 2)));
    // From segment 3.
    load(&index, "/gone", &en, position(3, 9));
    index.load_removal(key_of("/gone").hash as u64, position(3, 5));
    load(&index, "/twice", b"", position(3, 4));
    load(&index, "/twice", b"", position(3, 3));
    load(&index, "/new", b"", position(3, 2));
    load(&index, "/removed", b"", position(3, 1));
    load(&index, "/removed", &de, position(3, 1));
    // From segment 2.
    load(&index, "/gone", b"", position(2, 3));
    load(&index, "/gone", &de, position(2, 2));
    // Another set of names, behind the existing one.
    let bar = selector("Vary: Bar", "Bar: 1");
    load(&index, "/bar", &en, position(2, 5));
    load(&index, "/bar", &bar, position(2, 4));
    load(&index, "/twice", b"", position(2, 1));
    index.end_loading();
    for (path, asked, expected) in [
        ("/new", "", &[position(4, 1)][..]),
        ("/twice", "", &[position(3, 4)]),
        ("/removed", "Foo: de", &[]),
        ("/gone", "Foo: en", &[position(3, 9)]),
        ("/gone", "Foo: de", &[]),
        ("/bar", "Foo: en\nBar: 1", &[position(2, 5), position(2, 4)]),
    ] {
        assert_eq!(found(&index, path, asked), expected, "{path} {asked}");
    }
    assert_eq!(index.records(), 5);
    // The records of segment 3 that were asked for: all were, above.
    let asked: Vec<_> = index
        .asked_for(3)
        .iter()
        .map(|(offset, _)| *offset)
        .collect();
    assert_eq!(asked, [4 * UNIT, 9 * UNIT]);
    assert_eq!(index.reclaim(3), 2);
    assert_eq!(index.records(), 3);
    assert_eq!(found(&index, "/gone", "Foo: en"), []);
}

#[test]
fn a_record_that_is_damaged_is_dropped_alone() {
    let index = index();
    let old = place("/a", b"", position(1, 1));
    insert(&index, "/a", b"", position(1, 1));
    insert(&index, "/a", b"", position(1, 2));
    assert!(!index.drop_one(&old));
    assert_eq!(found(&index, "/a", ""), [position(1, 2)]);
    let new = index.find(&SECRET, &key_of("/a"), &get("").view())[0].place;
    assert!(!new.is_verified);
    index.verified(&old);
    index.verified(&new);
    let again = index.find(&SECRET, &key_of("/a"), &get("").view());
    assert!(again[0].place.is_verified && again[0].place.size == Size(9));
    assert!(index.drop_one(&new));
    assert_eq!((found(&index, "/a", "").len(), index.records()), (0, 0));
}

/// The numbers of segments may go beyond what an entry has of them.
#[test]
fn numbers_of_segments_go_around() {
    let index = index();
    for segment in [65_534_u32, 65_537, 65_538, u32::MAX] {
        index.begin(segment);
        insert(&index, "/a", b"", position(segment - 1, 3));
        assert_eq!(found(&index, "/a", ""), [position(segment - 1, 3)]);
        insert(
            &index,
            "/a",
            b"",
            position(segment, u64::from(u32::MAX >> 4)),
        );
        let expected = position(segment, u64::from(u32::MAX >> 4));
        assert_eq!(found(&index, "/a", ""), [expected]);
        assert_eq!(index.reclaim(segment), 1);
    }
    assert_eq!(index.records(), 0);
}

#[derive(Debug, Clone)]
enum Act {
    Put { path: usize, variant: usize },
    Remove { path: usize },
    Seal,
    Reclaim,
    Restart,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        12 => (0..8_usize, 0..3_usize).prop_map(|(path, variant)| Act::Put { path, variant }),
        3 => (0..8_usize).prop_map(|path| Act::Remove { path }),
        2 => Just(Act::Seal),
        1 => Just(Act::Reclaim),
        1 => Just(Act::Restart),
    ];
    proptest::collection::vec(act, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The index agrees with a log of all writes and removals, after restarts too.
    #[test]
    fn says_what_the_log_says(acts in acts()) {
        let mut index = index();
        index.end_loading();
        // Path, variant or a removal, position.
        let mut log: Vec<(usize, Option<usize>, Position)> = Vec::new();
        let (mut segment, mut oldest, mut number) = (1, 1, 4);
        let path = |path: usize| format!("/{path}");
        let asked = |variant: usize| format!("Foo: {variant}");
        let selector = |variant: usize| match variant {
            0 => Vec::new(),
            _ => self::selector("Vary: Foo", &asked(variant)),
        };
        for act in acts {
            number += 1;
            let at = position(segment, number);
            match act {
                Act::Put { path: to, variant } => {
                    insert(&index, &path(to), &selector(variant), at);
                    log.push((to, Some(variant), at));
                }
                Act::Remove { path: of } => {
                    if index.remove(key_of(&path(of)).hash as u64, at) {
                        log.push((of, None, at));
                    }
                }
                Act::Seal => {
                    segment += 1;
                    index.begin(segment);
                }
                Act::Reclaim if oldest < segment => {
                    index.reclaim(oldest);
                    log.retain(|(.., at)| at.segment > oldest);
                    oldest += 1;
                }
                Act::Reclaim => {}
                Act::Restart => {
                    index = Index::new(0);
                    index.begin(segment);
                    for (of, variant, at) in log.iter().rev() {
                        match variant {
                            Some(variant) => load(&index, &path(*of), &selector(*variant), *at),
                            None => index.load_removal(key_of(&path(*of)).hash as u64, *at),
                        }
                    }
                    index.end_loading();
                }
            }
            let mut model: HashMap<(usize, usize), Position> = HashMap::new();
            for (of, variant, at) in &log {
                match variant {
                    Some(variant) => drop(model.insert((*of, *variant), *at)),
                    None => model.retain(|(path, _), _| path != of),
                }
            }
            for of in 0..8 {
                for variant in 1..3 {
                    let places = [(of, 0), (of, variant)];
                    let mut expected: Vec<_> =
                        places.iter().filter_map(|it| model.get(it).copied()).collect();
                    expected.sort_by(|one, other| other.cmp(one));
                    prop_assert_eq!(found(&index, &path(of), &asked(variant)), expected);
                }
            }
        }
    }
}

#[test]
fn takes_about_twenty_bytes_a_record() {
    const RECORDS: u64 = 200_000;
    let index = Index::new(RECORDS * 1500);
    index.begin(1);
    let hash = |at: u64| SECRET.hash(&at.to_le_bytes()) as u64;
    for at in 0..RECORDS {
        let hashes = Hashes {
            key: hash(at),
            slot: hash(at),
        };
        let place = Place {
            hashes,
            position: position(1, at),
            size: Size(20),
            is_verified: true,
        };
        index.insert(&place, None);
        assert!(index.has(hashes, place.position));
    }
    // Some replace others that have the same hash in their table.
    assert!(index.records() > RECORDS * 999 / 1000);
    let each = index.bytes() as u64 / RECORDS;
    assert!((13..32).contains(&each), "{each}");
    index.reclaim(1);
    assert!(index.bytes() < 200_000, "{}", index.bytes());
}
