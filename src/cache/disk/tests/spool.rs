//! Bodies that are too long for memory.

use std::task::{Poll, Waker};

use evenkeel_cache::Memory;
use evenkeel_cache::incoming::{Arrival, Fetch, Fetches, Joined};
use evenkeel_cache::storing::Received;
use evenkeel_testkit::deadline::until;

use super::*;

/// Longer than a part of a small store.
const LEN: usize = 2_000_000;

/// A fetch whose head has arrived, and whose body goes to a spool of the store.
fn spooling(store: &DiskStore, path: &str, announced: Option<u64>) -> Result<Fetch, NotWritten> {
    let memory = Memory::with_purges(1 << 20, store.secret(), store.purges().clone());
    let asked = Asked::of(path, "");
    let key = asked.key(&store.secret());
    let Joined::Lead(mut fetch) = Fetches::new(Arc::new(memory)).join(&key, 9) else {
        panic!("nobody else fetches");
    };
    fetch.arrive(Arrival {
        head: head(store, &asked, ""),
        lifetime: lifetime(),
        received: Received {
            asked: clock::now(),
            arrived: clock::now(),
            unix_s: 0,
        },
        announced_len: announced,
    });
    fetch.spool(store.spool(announced)?);
    Ok(fetch)
}

/// Appends a body, as fast as the disk takes it.
fn append(fetch: &mut Fetch, body: &[u8]) {
    let mut sent = 0;
    while sent < body.len() {
        until("there is room", || {
            let appended = fetch.poll_append(&body[sent..], u64::MAX, Waker::noop());
            if let Poll::Ready(len) = appended {
                sent += len;
            }
            appended.is_ready()
        });
    }
}

fn not_written(store: &DiskStore, reason: NotWritten) -> u64 {
    store.figures().not_written.count(reason.word())
}

#[test]
fn a_body_goes_from_its_spool_to_a_segment() {
    let folder = TempDir::new().unwrap();
    let store = open_idle(folder.path());
    for (seed, (path, announced)) in [("/known", Some(LEN as u64)), ("/unknown", None)]
        .into_iter()
        .enumerate()
    {
        let long = bytes(seed as u64, LEN);
        let mut fetch = spooling(&store, path, announced).unwrap();
        append(&mut fetch, &long);
        assert!(body(&store, path, "").is_none());
        store.insert_spooled(fetch.finish_spooled().unwrap());
        until("it is stored", || body(&store, path, "").is_some());
        assert!(body(&store, path, "").unwrap() == long);
    }
    // A response that is removed on its way is not stored.
    let mut fetch = spooling(&store, "/removed", Some(10)).unwrap();
    append(&mut fetch, &bytes(2, 10));
    let spooled = fetch.finish_spooled().unwrap();
    let before = store.figures().written;
    store.insert_spooled(spooled);
    remove(&store, "/removed");
    insert(&store, "/after", ("", ""), b"");
    until("the next one is written", || {
        store.figures().written > before
    });
    assert!(store.wait_until_idle(DEADLINE));
    let killed = image(folder.path());
    close(store);
    for folder in [folder.path(), killed.path()] {
        let store = open_idle(folder);
        assert!(body(&store, "/known", "").unwrap() == bytes(0, LEN));
        assert!(body(&store, "/unknown", "").unwrap() == bytes(1, LEN));
    }
}

#[test]
fn spools_and_segments_keep_the_size() {
    let folder = TempDir::new().unwrap();
    let store = open_idle(folder.path());
    for at in 0..500_u64 {
        insert(&store, &format!("/{at}"), ("", ""), &bytes(at, 40_000));
    }
    assert!(store.wait_until_idle(DEADLINE));
    assert!(folder_bytes(folder.path()) > SMALL * 9 / 10);
    let counts = || {
        let reasons = [NotWritten::QueueFull, NotWritten::TooLong];
        reasons.map(|reason| not_written(&store, reason))
    };
    let [full, long] = counts();
    let first = spooling(&store, "/first", Some(LEN as u64)).unwrap();
    let second = spooling(&store, "/second", Some(LEN as u64)).unwrap();
    until("there is room for them", || {
        folder_bytes(folder.path()) + 2 * LEN as u64 <= SMALL
    });
    // A quarter is for them at most, and an eighth for each.
    let refused = spooling(&store, "/third", Some(LEN as u64)).err();
    assert_eq!(refused, Some(NotWritten::QueueFull));
    let refused = spooling(&store, "/long", Some(SMALL / 8)).err();
    assert_eq!(refused, Some(NotWritten::TooLong));
    assert_eq!(counts(), [full + 1, long + 1]);
    for at in 0..200_u64 {
        insert(&store, &format!("/{at}"), ("", ""), &bytes(at, 40_000));
    }
    assert!(store.wait_until_idle(DEADLINE));
    assert!(folder_bytes(folder.path()) + 2 * LEN as u64 <= SMALL + 4096);
    drop((first, second));
    until("their room is free", || {
        spooling(&store, "/third", Some(LEN as u64)).is_ok()
    });
    let [_, long] = counts();
    // One without a known length ends where there is no more room for it.
    let mut fetch = spooling(&store, "/unknown", None).unwrap();
    append(&mut fetch, &bytes(1, SMALL as usize / 4));
    assert!(!fetch.is_spooling());
    assert_eq!(counts()[1], long + 1);
}

#[test]
fn a_disk_that_fails_or_hangs_ends_a_spool() {
    let folder = TempDir::new().unwrap();
    let mut store = open_idle(folder.path());
    let mut fetch = spooling(&store, "/hangs", Some(LEN as u64)).unwrap();
    append(&mut fetch, &bytes(1, 100_000));
    let file = store.spools.files()[0].upgrade().unwrap();
    file.since(std::time::Instant::now() - Duration::from_secs(1));
    store.give_up_stuck();
    assert!(fetch.is_spooling());
    file.since(std::time::Instant::now() - Duration::from_secs(3));
    store.give_up_stuck();
    assert!(!fetch.is_spooling());
    assert_eq!(not_written(&store, NotWritten::QueueFull), 1);
    // Followers get the rest all the same.
    append(&mut fetch, &bytes(2, 100_000));
    store.folder = folder.path().join("gone");
    let mut fetch = spooling(&store, "/fails", Some(LEN as u64)).unwrap();
    append(&mut fetch, &bytes(1, 100_000));
    until("the store is paused", || {
        store.figures().phase == Phase::Paused
    });
    assert!(!fetch.is_spooling());
    assert_eq!(not_written(&store, NotWritten::Paused), 1);
}
