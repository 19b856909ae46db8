use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::SystemTime;

use evenkeel_cache::key::KeyRules;
use evenkeel_cache::object::{Body, StoredHead};
use evenkeel_cache::{Lifetime, Response};
use evenkeel_proto::http1::{parse_request, parse_response};
use evenkeel_proto::{Method, RequestHead, ResponseHead, Scheme};
use evenkeel_testkit::TempDir;

use super::*;
use crate::net::clock;

mod crash;
mod faults;
mod spool;

/// Longest that a test waits for anything.
const DEADLINE: Duration = Duration::from_secs(60);

/// The smallest store.
const SMALL: u64 = 16 << 20;

/// A request that owns its head and its bytes.
struct Asked {
    head: RequestHead,
    bytes: Vec<u8>,
}

impl Asked {
    fn of(path: &str, fields: &str) -> Self {
        let bytes = format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes();
        let mut head = RequestHead::default();
        parse_request(&bytes, &mut head).unwrap();
        Asked { head, bytes }
    }

    fn view(&self) -> Request<'_> {
        Request {
            head: &self.head,
            bytes: &self.bytes,
            scheme: Scheme::Http,
        }
    }

    fn key(&self, secret: &Secret) -> Key {
        KeyRules::default().key(secret, &self.view())
    }
}

fn clocks() -> Clocks {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Clocks {
        now: clock::now(),
        unix: unix.unwrap(),
    }
}

fn try_open(folder: &Path, capacity_bytes: u64) -> Result<DiskStore, CannotOpen> {
    let reads = Bounds {
        in_flight: 4,
        waiting: 1000,
        wait: Duration::MAX,
    };
    let settings = Settings {
        folder: folder.into(),
        capacity_bytes,
        reads,
    };
    DiskStore::open(&settings, clocks())
}

fn open(folder: &Path, capacity_bytes: u64) -> DiskStore {
    try_open(folder, capacity_bytes).unwrap()
}

/// A store that has its folder, and has loaded its index.
fn open_idle(folder: &Path) -> DiskStore {
    let store = open(folder, SMALL);
    assert!(store.wait_until_idle(DEADLINE));
    store
}

fn close(store: DiskStore) {
    store.hand_over();
    assert!(store.wait_until_closed(DEADLINE));
}

/// The head of a response to a request, with these fields.
fn head(store: &DiskStore, asked: &Asked, fields: &str) -> StoredHead {
    let bytes = format!("HTTP/1.1 200 OK\r\n{fields}\r\n").into_bytes();
    let mut head = ResponseHead::default();
    parse_response(&bytes, Method::Get, &mut head).unwrap();
    let response = Response {
        head: &head,
        bytes: &bytes,
    };
    StoredHead::of(&store.secret(), &asked.view(), &response, 0).unwrap()
}

fn lifetime() -> Lifetime {
    Lifetime {
        fresh: 1000,
        ..Lifetime::default()
    }
}

/// The response to a request, with these fields.
fn object(store: &DiskStore, asked: &Asked, fields: &str, body: &[u8]) -> Object {
    let head = head(store, asked, fields);
    let seen = store.purges().count();
    let key = asked.key(&store.secret());
    let body = Body::of(body);
    Object::new(&key, &head, &body, &lifetime(), clock::now(), seen).unwrap()
}

fn insert(store: &DiskStore, path: &str, fields: (&str, &str), body: &[u8]) {
    let asked = Asked::of(path, fields.0);
    let object = object(store, &asked, fields.1, body);
    let key = asked.key(&store.secret());
    while let Err(reason) = store.insert(&key, object.clone()) {
        assert_eq!(reason, NotWritten::QueueFull);
        assert!(store.wait_until_idle(DEADLINE));
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

fn fetch(store: &DiskStore, path: &str, fields: &str) -> Option<Found> {
    let asked = Asked::of(path, fields);
    let key = asked.key(&store.secret());
    let candidates = store.look_up(&key, &asked.view());
    block_on(store.fetch(&key, candidates, clock::now()))
}

fn whole_body(found: &Found) -> Vec<u8> {
    let Some(part) = &found.body else {
        let blocks = evenkeel_cache::record::blocks(&found.object);
        return blocks.collect::<Vec<_>>().concat();
    };
    let mut body = vec![0; part.len as usize];
    part.file.read_exact_at(&mut body, part.offset).unwrap();
    body
}

/// The body that is found.
fn body(store: &DiskStore, path: &str, fields: &str) -> Option<Vec<u8>> {
    fetch(store, path, fields).map(|found| whole_body(&found))
}

/// Bytes that depend on a number.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}

fn remove(store: &DiskStore, path: &str) {
    store.remove(&Asked::of(path, "").key(&store.secret()));
}

/// Lengths of all files.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()))
        .sum()
}

/// The files that a process leaves if it is killed now.
fn image(folder: &Path) -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

const LENS: [usize; 9] = [0, 1, 100, 4000, 65_519, 65_521, 900_000, 1 << 20, 1_700_000];

fn insert_all(store: &DiskStore) {
    for (seed, len) in LENS.into_iter().enumerate() {
        insert(
            store,
            &format!("/{len}"),
            ("", "A: 1\r\n"),
            &bytes(seed as u64, len),
        );
    }
    for language in ["de", "en"] {
        let asked = format!("Accept-Language: {language}\r\n");
        let fields = (asked.as_str(), "Vary: Accept-Language\r\n");
        insert(store, "/vary", fields, language.as_bytes());
    }
    assert!(store.wait_until_idle(DEADLINE));
}

fn check_all(store: &DiskStore) {
    for (seed, len) in LENS.into_iter().enumerate() {
        // The first time from the disk, then from memory.
        for _ in 0..2 {
            let found = fetch(store, &format!("/{len}"), "").unwrap();
            assert!(whole_body(&found) == bytes(seed as u64, len), "{len}");
            assert_eq!(found.body.is_some(), len >= 1 << 20, "{len}");
            assert_eq!(found.object.value("a"), Some(&b"1"[..]));
            assert!(found.object.age(clock::now()) < DEADLINE);
        }
    }
    for language in ["de", "en"] {
        let found = body(store, "/vary", &format!("Accept-Language: {language}\r\n"));
        assert_eq!(found.unwrap(), language.as_bytes());
    }
    assert_eq!(body(store, "/vary", ""), None);
    assert_eq!(body(store, "/other", ""), None);
    let figures = store.figures();
    assert_eq!(figures.objects, LENS.len() as u64 + 2);
    assert_eq!(figures.hits, 2 * LENS.len() as u64 + 2);
    assert_eq!((figures.misses, figures.damaged), (2, 0));
}

#[test]
fn objects_come_back_at_once_and_after_any_end() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a/store");
    let store = open(&path, SMALL);
    insert_all(&store);
    check_all(&store);
    assert_eq!(store.figures().bytes, folder_bytes(&path) - 32 - 24);
    let killed = image(&path);
    close(store);
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o700
    );
    for entry in fs::read_dir(&path).unwrap() {
        let mode = entry.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    for folder in [&path, killed.path()] {
        // The second time a segment is sealed in any case.
        for _ in 0..2 {
            let store = open_idle(folder);
            check_all(&store);
            close(store);
        }
    }
}

#[test]
fn what_was_removed_stays_away() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path(), SMALL);
    insert_all(&store);
    remove(&store, "/100");
    remove(&store, "/vary");
    remove(&store, "/never");
    // It waits to be written, or is just being written, when it is removed.
    let long = bytes(1, 1_700_000);
    for turn in 0..20 {
        insert(&store, "/soon", ("", ""), &long);
        while turn % 2 == 0 && store.figures().queue > 0 {
            std::hint::spin_loop();
        }
        remove(&store, "/soon");
        assert!(store.wait_until_idle(DEADLINE));
        assert!(fetch(&store, "/soon", "").is_none(), "{turn}");
    }
    insert_all(&store);
    remove(&store, "/100");
    remove(&store, "/vary");
    insert(&store, "/1", ("", ""), b"newer");
    assert_eq!(body(&store, "/100", ""), None);
    assert!(store.wait_until_idle(DEADLINE));
    let check = |store: &DiskStore| {
        for (path, fields) in [
            ("/100", ""),
            ("/soon", ""),
            ("/vary", "Accept-Language: de\r\n"),
        ] {
            assert_eq!(body(store, path, fields), None, "{path}");
        }
        assert_eq!(body(store, "/1", "").unwrap(), b"newer");
        assert_eq!(body(store, "/4000", "").unwrap(), bytes(3, 4000));
    };
    check(&store);
    let killed = image(folder.path());
    close(store);
    for folder in [folder.path(), killed.path()] {
        let store = open_idle(folder);
        check(&store);
        // One of the others comes back: the removed ones do not come with it.
        let fields = ("Accept-Language: fr\r\n", "Vary: Accept-Language\r\n");
        insert(&store, "/vary", fields, b"fr");
        assert!(store.wait_until_idle(DEADLINE));
        assert_eq!(body(&store, "/vary", fields.0).unwrap(), b"fr");
        check(&store);
    }
}

#[test]
fn purges_hold_from_the_moment_they_return() {
    let folder = TempDir::new().unwrap();
    let mut purged = Vec::new();
    for (what, gone) in [
        (Purge::Url(b"http://h/a/1"), &["/a/1"][..]),
        (Purge::Prefix(b"http://h/b/"), &["/b/1", "/b/2"]),
        (Purge::Tag(b"red"), &["/a/2", "/c"]),
        (Purge::Everything, &["/a/3", "/d"]),
    ] {
        let store = open_idle(folder.path());
        for path in ["/a/1", "/a/3", "/b/1", "/b/2", "/d"] {
            insert(&store, path, ("", ""), path.as_bytes());
        }
        for path in ["/a/2", "/c"] {
            insert(
                &store,
                path,
                ("", "Surrogate-Key: red\r\n"),
                path.as_bytes(),
            );
        }
        assert!(store.wait_until_idle(DEADLINE));
        // One that was asked for before, and is written after.
        let asked = Asked::of(gone[0], "");
        let fields = "Surrogate-Key: red\r\n";
        let late = object(&store, &asked, fields, b"late");
        store.purge(what, Strength::Hard).unwrap();
        purged.push(image(folder.path()));
        store.insert(&asked.key(&store.secret()), late).unwrap();
        assert!(store.wait_until_idle(DEADLINE));
        purged.push(image(folder.path()));
        let check = |store: &DiskStore| {
            for path in gone {
                assert_eq!(body(store, path, ""), None, "{what:?} {path}");
            }
        };
        check(&store);
        for image in purged.drain(..) {
            check(&open_idle(image.path()));
        }
        assert!(body(&store, "/d", "").is_none() == gone.contains(&"/d"));
        close(store);
        check(&open_idle(folder.path()));
    }
    // A soft purge makes stored responses stale.
    let store = open_idle(folder.path());
    insert(&store, "/soft", ("", ""), b"soft");
    assert!(store.wait_until_idle(DEADLINE));
    store.purge(Purge::Everything, Strength::Soft).unwrap();
    close(store);
    let store = open_idle(folder.path());
    let found = fetch(&store, "/soft", "").unwrap();
    assert!(found.object.stored(clock::now()).is_purged);
    // The count goes on.
    assert_eq!(store.purges().count(), 5);
}

#[test]
fn the_log_of_purges_stays_short() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path(), SMALL);
    let log_bytes = || fs::metadata(folder.path().join("purges")).unwrap().len();
    let long = "x".repeat(30_000);
    let mut longest = 0;
    for turn in 0..300 {
        let prefix = format!("http://h/{}{long}", turn % 5);
        store
            .purge(Purge::Prefix(prefix.as_bytes()), Strength::Hard)
            .unwrap();
        longest = longest.max(log_bytes());
    }
    assert!(
        (1 << 20..(1 << 20) + 40_000).contains(&longest),
        "{longest}"
    );
    close(store);
    let store = open_idle(folder.path());
    assert_eq!(store.purges().count(), 300);
    assert_eq!(store.purges().marked().len(), 5);
}

#[test]
fn a_full_store_keeps_its_size_and_what_is_asked_for() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path(), SMALL);
    let hot: Vec<_> = (0..20).map(|at| format!("/hot/{at}")).collect();
    let long = ("/long", 1_300_000);
    for (at, path) in hot.iter().enumerate() {
        insert(&store, path, ("", ""), &bytes(at as u64, 3000));
    }
    let vary = ("Accept-Language: de\r\n", "Vary: Accept-Language\r\n");
    insert(&store, "/vary", vary, b"de");
    insert(&store, long.0, ("", ""), &bytes(99, long.1));
    insert(&store, "/soft", ("", "Surrogate-Key: soft\r\n"), b"soft");
    assert!(store.wait_until_idle(DEADLINE));
    store.purge(Purge::Tag(b"soft"), Strength::Soft).unwrap();
    for turn in 0..60_u64 {
        for at in 0..30 {
            let body = bytes(turn * 100 + at, 30_000);
            insert(&store, &format!("/cold/{turn}/{at}"), ("", ""), &body);
        }
        assert!(store.wait_until_idle(DEADLINE));
        assert!(folder_bytes(folder.path()) <= SMALL + 4096, "{turn}");
        for (at, path) in hot.iter().enumerate() {
            let found = body(&store, path, "");
            assert!(found.unwrap() == bytes(at as u64, 3000), "{turn} {path}");
        }
        assert_eq!(body(&store, "/vary", vary.0).unwrap(), b"de");
        assert_eq!(body(&store, "/soft", "").unwrap(), b"soft");
    }
    // The effect of a purge is known without the mark, which goes.
    store.purges().forget(1);
    assert_eq!(store.purges().marked(), []);
    let soft = fetch(&store, "/soft", "").unwrap();
    assert!(soft.object.stored(clock::now()).is_purged);
    let figures = store.figures();
    assert!(figures.bytes > SMALL * 9 / 10, "{figures:?}");
    assert!(figures.evicted > 1000 && figures.kept > 50, "{figures:?}");
    assert!(body(&store, "/cold/0/0", "").is_none());
    // One that is sent while its segment goes stays readable.
    insert(&store, long.0, ("", ""), &bytes(99, long.1));
    assert!(store.wait_until_idle(DEADLINE));
    let sent = fetch(&store, long.0, "").unwrap();
    for at in 0..700_u64 {
        insert(&store, &format!("/more/{at}"), ("", ""), &bytes(at, 60_000));
        if at % 100 == 0 {
            assert!(store.wait_until_idle(DEADLINE));
        }
    }
    assert!(store.wait_until_idle(DEADLINE));
    assert!(whole_body(&sent) == bytes(99, long.1));
    store.hand_over();
    assert!(store.wait_until_closed(DEADLINE));
    let count = store.figures().objects;
    let store = open_idle(folder.path());
    assert_eq!(store.figures().objects, count);
}

#[test]
fn a_folder_has_one_process_and_is_handed_over() {
    let folder = TempDir::new().unwrap();
    let first = open(folder.path(), SMALL);
    insert_all(&first);
    let second = open(folder.path(), SMALL);
    assert_eq!(second.figures().phase, Phase::Waiting);
    assert_eq!(second.secret().0, first.secret().0);
    assert!(fetch(&second, "/100", "").is_none());
    let asked = Asked::of("/new", "");
    let new = object(&second, &asked, "", b"");
    let refused = second.insert(&asked.key(&second.secret()), new);
    assert_eq!(refused, Err(NotWritten::NoFolder));
    // Removals and purges made meanwhile count too.
    remove(&second, "/4000");
    second
        .purge(Purge::Url(b"http://h/100"), Strength::Hard)
        .unwrap();
    // The memory above has looked at all that it has.
    second.purges().forget(second.purges().count());
    first.hand_over();
    assert!(first.wait_until_closed(DEADLINE));
    assert!(fetch(&first, "/1", "").is_none());
    assert!(second.wait_until_idle(DEADLINE));
    assert_eq!(second.figures().phase, Phase::Working);
    let check = |store: &DiskStore| {
        assert!(fetch(store, "/1", "").is_some());
        assert!(fetch(store, "/4000", "").is_none());
        assert!(fetch(store, "/100", "").is_none());
    };
    check(&second);
    let killed = image(folder.path());
    drop(second);
    check(&open_idle(killed.path()));
    // Dropped, a store gives up its folder as well.
    let third = open(folder.path(), SMALL);
    assert!(third.wait_until_idle(DEADLINE));
    let figures = third.figures();
    assert_eq!(figures.phase, Phase::Working);
    check(&third);
}
