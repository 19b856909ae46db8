use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Wake;

use super::*;
use crate::message::tests::{get, response};
use crate::object::tests::{NOW, SECRET, key_of};
use crate::purge::{Purge, Strength};

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn fetches() -> Arc<Fetches> {
    Fetches::new(Arc::new(Memory::new(8 << 20, SECRET)))
}

fn lead(fetches: &Arc<Fetches>) -> Fetch {
    match fetches.join(&key_of("/"), 1000) {
        Joined::Lead(fetch) => fetch,
        other => panic!("{other:?}"),
    }
}

/// Appends all at once.
fn append(fetch: &mut Fetch, bytes: &[u8]) {
    let appended = fetch.poll_append(bytes, u64::MAX, Waker::noop());
    assert_eq!(appended, Poll::Ready(bytes.len()));
}

fn follow(fetches: &Arc<Fetches>) -> Follower {
    match fetches.join(&key_of("/"), 1000) {
        Joined::Follow(follower) => follower,
        other => panic!("{other:?}"),
    }
}

pub fn arrival(fields: &str, announced_len: Option<u64>) -> Arrival {
    let response = response(200, fields);
    let head = StoredHead::of(&SECRET, &get("Foo: 1").view(), &response.view(), 0);
    Arrival {
        head: head.unwrap(),
        lifetime: Lifetime {
            fresh: 60,
            ..Lifetime::default()
        },
        received: Received {
            asked: NOW,
            arrived: NOW,
            unix_s: 0,
        },
        announced_len,
    }
}

fn is_stored(fetches: &Fetches) -> bool {
    let asked = get("Foo: 1");
    fetches.store.find(&key_of("/"), &asked.view()).is_some()
}

#[test]
fn many_get_what_one_fetches_as_it_comes() {
    let fetches = fetches();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut fetch = lead(&fetches);
    let mut followers: Vec<Follower> = (0..999).map(|_| follow(&fetches)).collect();
    assert_eq!((fetches.count(), fetch.followers()), (1, 999));
    for follower in &followers {
        assert!(follower.poll_head(&waker).is_pending());
    }
    fetch.arrive(arrival("Vary: Foo", None));
    assert_eq!(woken.0.load(SeqCst), 1);
    // One who comes late gets all of it too.
    followers.push(follow(&fetches));
    let parts: [&[u8]; 4] = [b"a", b"bc", &[b'd'; 3 * CHUNK_BYTES], b"e"];
    let mut bodies = vec![Vec::new(); followers.len()];
    for part in parts {
        append(&mut fetch, part);
        for (at, follower) in followers.iter_mut().enumerate().step_by(300) {
            let Poll::Ready(Ok(arrival)) = follower.poll_head(&waker) else {
                panic!("the head is there");
            };
            assert!(arrival.head.answers(&get("Foo: 1").view()));
            assert!(!arrival.head.answers(&get("Foo: 2").view()));
            while let Poll::Ready(read) = follower.poll_read(&mut bodies[at], 50_000, &waker) {
                assert!(matches!(read, Read::Bytes(1..=50_000)), "{read:?}");
            }
        }
    }
    assert!(fetches.store.figures().bytes >= 3 * CHUNK_BYTES as u64);
    let before = woken.0.load(SeqCst);
    let mut object = None;
    let finished = fetch.finish(|stored| object = Some(stored.clone()));
    assert_eq!(finished, Ok(()));
    let object = object.unwrap();
    assert!(woken.0.load(SeqCst) > before);
    let whole = parts.concat();
    for (follower, body) in followers.iter_mut().zip(&mut bodies) {
        let mut read = || follower.poll_read(body, usize::MAX, &waker);
        while let Poll::Ready(Read::Bytes(_)) = read() {}
        assert_eq!(read(), Poll::Ready(Read::End));
        assert!(*body == whole);
    }
    assert_eq!(object.body_len(), whole.len() as u64);
    assert!(is_stored(&fetches));
    assert_eq!(fetches.count(), 0);
    assert_eq!(fetches.store.figures().bytes, object.cost() as u64);
}

fn is_released(follower: &Follower, reason: NotStored) -> bool {
    matches!(
        follower.poll_head(Waker::noop()),
        Poll::Ready(Err(Released::NotStored(found))) if found == reason
    )
}

#[test]
fn what_is_passed_is_for_the_first_one() {
    let fetches = fetches();
    let mut fetch = lead(&fetches);
    let mut first = fetch.follow();
    let other = follow(&fetches);
    fetch.pass(arrival("", None), NotStored::NoStore);
    assert!(is_released(&other, NotStored::NoStore));
    assert!(matches!(first.poll_head(Waker::noop()), Poll::Ready(Ok(_))));
    assert_eq!(first.passing(), Some(NotStored::NoStore));
    // No request waits for it.
    drop(lead(&fetches));
    drop(other);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let body: Vec<u8> = (0..10 * CHUNK_BYTES).map(|at| at as u8).collect();
    let (mut sent, mut read) = (0, Vec::new());
    while sent < body.len() {
        while let Poll::Ready(len) = fetch.poll_append(&body[sent..], u64::MAX, &waker) {
            sent += len;
            if sent == body.len() {
                break;
            }
        }
        assert!(sent - read.len() <= PASSING_WINDOW);
        let before = woken.0.load(SeqCst);
        let _ = first.poll_read(&mut read, 100_000, Waker::noop());
        assert!(sent == body.len() || woken.0.load(SeqCst) > before);
    }
    assert_eq!(fetches.store.figures().bytes, 0);
    let finished = fetch.finish(|_| {}).err();
    assert_eq!(finished, Some(NotStored::NoStore));
    while let Poll::Ready(Read::Bytes(_)) = first.poll_read(&mut read, 100_000, Waker::noop()) {}
    assert!(read == body);
    let end = first.poll_read(&mut read, 1, Waker::noop());
    assert_eq!(end, Poll::Ready(Read::End));
}

#[test]
fn a_fetch_is_abandoned_by_the_last_one() {
    let fetches = fetches();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut fetch = lead(&fetches);
    assert!(fetch.poll_abandoned(&waker).is_ready());
    let followers = [fetch.follow(), follow(&fetches)];
    assert!(fetch.poll_abandoned(&waker).is_pending());
    drop(followers);
    assert!(woken.0.load(SeqCst) > 0);
    assert!(fetch.poll_abandoned(&waker).is_ready());
}

#[test]
fn what_is_not_shared_releases_all_at_once() {
    let fetches = fetches();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let followers: Vec<Follower> = {
        let fetch = lead(&fetches);
        let followers: Vec<Follower> = (0..3).map(|_| follow(&fetches)).collect();
        for follower in &followers {
            assert!(follower.poll_head(&waker).is_pending());
        }
        fetch.release(Released::NotStored(NotStored::NoStore));
        followers
    };
    assert_eq!(woken.0.load(SeqCst), 1);
    for follower in &followers {
        assert!(is_released(follower, NotStored::NoStore));
    }
    // The next request leads, and does not join the ended fetch.
    lead(&fetches).release(Released::Unconfirmed);
}

#[test]
fn a_fetch_that_is_dropped_has_failed() {
    let fetches = fetches();
    let mut fetch = lead(&fetches);
    let mut follower = follow(&fetches);
    fetch.arrive(arrival("", Some(5)));
    append(&mut fetch, b"abc");
    // A worker that panics drops its fetches.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _fetch = fetch;
        panic!("a test");
    }));
    let mut body = Vec::new();
    let mut read = || follower.poll_read(&mut body, 100, Waker::noop());
    assert_eq!(read(), Poll::Ready(Read::Bytes(3)));
    assert_eq!(read(), Poll::Ready(Read::Failed));
    assert!(!is_stored(&fetches));
    assert_eq!((fetches.count(), fetches.store.figures().bytes), (0, 0));
    drop(lead(&fetches));
}

#[test]
fn stores_only_what_is_whole() {
    let fetches = fetches();
    for (announced, sent, is_whole) in [
        (Some(3), &b"abc"[..], true),
        (Some(0), b"", true),
        (None, b"", true),
        (Some(4), b"abc", false),
        (Some(2), b"abc", false),
    ] {
        let mut fetch = lead(&fetches);
        let mut follower = follow(&fetches);
        fetch.arrive(arrival("", announced));
        append(&mut fetch, sent);
        let finished = fetch.finish(|_| {});
        assert_eq!(finished.is_ok(), is_whole, "{announced:?}");
        assert_eq!(is_stored(&fetches), is_whole, "{announced:?}");
        let mut body = Vec::new();
        let _ = follower.poll_read(&mut body, 100, Waker::noop());
        let end = if is_whole { Read::End } else { Read::Failed };
        assert_eq!(
            follower.poll_read(&mut body, 100, Waker::noop()),
            Poll::Ready(end)
        );
        fetches.store.remove(&key_of("/"));
    }
    let fetch = lead(&fetches);
    assert_eq!(
        fetch.finish(|_| {}).err(),
        Some(NotStored::Incomplete),
        "no head"
    );
}

#[test]
fn what_is_too_long_goes_to_who_follows() {
    let fetches = fetches();
    let mut fetch = lead(&fetches);
    let mut followers = [fetch.follow(), follow(&fetches)];
    fetch.arrive(arrival("", None));
    let body: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 999) as u8).collect();
    let mut bodies = [Vec::new(), Vec::new()];
    let mut sent = 0;
    while sent < body.len() {
        let part = &body[sent..body.len().min(sent + 300_000)];
        let appended = fetch.poll_append(part, u64::MAX, Waker::noop());
        if let Poll::Ready(len) = appended {
            sent += len;
            continue;
        }
        // The slower follower decides, and no request joins them.
        assert!(matches!(fetches.join(&key_of("/"), 9), Joined::Lead(_)));
        let longest = fetches.store.longest_bytes();
        assert!(sent - bodies[1].len() <= longest + CHUNK_BYTES);
        let [fast, slow] = &mut followers;
        while fast
            .poll_read(&mut bodies[0], usize::MAX, Waker::noop())
            .is_ready()
        {}
        let _ = slow.poll_read(&mut bodies[1], 100_000, Waker::noop());
    }
    assert_eq!(fetch.finish(|_| {}).err(), Some(NotStored::TooLarge));
    for (follower, read) in followers.iter_mut().zip(&mut bodies) {
        while let Poll::Ready(Read::Bytes(_)) = follower.poll_read(read, usize::MAX, Waker::noop())
        {
        }
        assert!(*read == body);
    }
    assert_eq!(fetches.store.figures().bytes, 0);
}

/// A spool that writes only on request.
#[derive(Debug)]
struct SlowSpool {
    file: Arc<File>,
    state: Mutex<SlowState>,
}

#[derive(Debug, Default)]
struct SlowState {
    waiting: Vec<Arc<[u8]>>,
    written: Vec<u8>,
    is_closed: bool,
    wakers: Vec<Waker>,
}

impl SlowSpool {
    fn new() -> Arc<Self> {
        Arc::new(SlowSpool {
            file: Arc::new(File::open("/dev/null").unwrap()),
            state: Mutex::default(),
        })
    }

    fn write(&self, chunks: usize) {
        let mut state = self.state.lock().unwrap();
        let chunks = chunks.min(state.waiting.len());
        for chunk in state.waiting.drain(..chunks).collect::<Vec<_>>() {
            state.written.extend_from_slice(&chunk);
        }
        state.wakers.drain(..).for_each(Waker::wake);
    }
}

impl Spool for SlowSpool {
    fn push(&self, bytes: Arc<[u8]>) {
        self.state.lock().unwrap().waiting.push(bytes);
    }

    fn written(&self) -> Option<(Arc<File>, u64)> {
        let written = self.state.lock().unwrap().written.len() as u64;
        (written > 0).then(|| (self.file.clone(), written))
    }

    fn is_open(&self) -> bool {
        !self.state.lock().unwrap().is_closed
    }

    fn give_up(&self) {
        self.state.lock().unwrap().is_closed = true;
    }

    fn wait(&self, waker: &Waker) {
        self.state.lock().unwrap().wakers.push(waker.clone());
    }
}

/// Reads all that there is to read now; whether that is the end.
fn read_all(follower: &mut Follower, spool: &SlowSpool, body: &mut Vec<u8>) -> bool {
    loop {
        match follower.poll_read(body, usize::MAX, Waker::noop()) {
            Poll::Ready(Read::Bytes(_)) => {}
            Poll::Ready(Read::Spooled { from, len }) => {
                assert!(follower.file().is_some());
                let state = spool.state.lock().unwrap();
                body.extend_from_slice(&state.written[from as usize..(from + len) as usize]);
            }
            Poll::Ready(Read::End) => return true,
            Poll::Ready(Read::Failed) => panic!("cut off after {}", body.len()),
            Poll::Pending => return false,
        }
    }
}

fn long_body() -> Vec<u8> {
    (0..10_000_000_u32).map(|at| (at / 999) as u8).collect()
}

#[test]
fn a_body_that_is_too_long_for_memory_goes_to_a_spool() {
    let fetches = fetches();
    let spool = SlowSpool::new();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut fetch = lead(&fetches);
    // One reads all the time, one only at the end, one comes late.
    let (mut fast, mut slow) = (fetch.follow(), follow(&fetches));
    let (mut read_fast, mut read_slow) = (Vec::new(), Vec::new());
    fetch.arrive(arrival("", None));
    let body = long_body();
    let mut sent = 0;
    let mut waits = 0;
    while sent < body.len() {
        let part = &body[sent..body.len().min(sent + 300_000)];
        if fetch.needs_spool(part.len() as u64) {
            assert!(sent > 500_000, "the beginning goes to memory");
            fetch.spool(spool.clone());
        }
        match fetch.poll_append(part, u64::MAX, &waker) {
            Poll::Ready(len) => sent += len,
            // The fetch waits for the spool, and for no follower.
            Poll::Pending => {
                waits += 1;
                let before = woken.0.load(SeqCst);
                spool.write(7);
                assert!(woken.0.load(SeqCst) > before);
            }
        }
        assert!(fetch.incoming.lock().kept_bytes() <= SPOOL_WINDOW + CHUNK_BYTES);
        read_all(&mut fast, &spool, &mut read_fast);
    }
    assert!(waits > 0 && fetch.is_storing());
    let spooled = fetch.finish_spooled().unwrap();
    assert_eq!(spooled.body_len, body.len() as u64);
    spool.write(usize::MAX);
    assert!(spool.state.lock().unwrap().written == body);
    // Until it is stored others still follow.
    let mut late = follow(&fetches);
    let mut read_late = Vec::new();
    assert!(late.poll_end(Waker::noop()).is_pending());
    assert!(read_all(&mut late, &spool, &mut read_late));
    assert_eq!(spooled.stored(), Ok(()));
    assert_eq!(late.poll_end(Waker::noop()), Poll::Ready(true));
    assert_eq!(fetches.count(), 0);
    assert!(read_all(&mut fast, &spool, &mut read_fast));
    assert!(read_all(&mut slow, &spool, &mut read_slow));
    assert!(read_fast == body && read_slow == body && read_late == body);
    assert_eq!(fetches.store.figures().bytes, 0);
}

#[test]
fn a_spool_that_fails_leaves_a_window() {
    let fetches = fetches();
    let spool = SlowSpool::new();
    let mut fetch = lead(&fetches);
    let (mut fast, mut slow) = (fetch.follow(), follow(&fetches));
    let (mut read_fast, mut read_slow) = (Vec::new(), Vec::new());
    fetch.arrive(arrival("", None));
    fetch.spool(spool.clone());
    let body = long_body();
    let mut sent = 0;
    while sent < body.len() {
        let part = &body[sent..body.len().min(sent + 300_000)];
        match fetch.poll_append(part, u64::MAX, Waker::noop()) {
            Poll::Ready(len) => sent += len,
            Poll::Pending if spool.is_open() => {
                spool.write(usize::MAX);
                if sent > 6_000_000 {
                    spool.give_up();
                }
            }
            Poll::Pending => {
                assert!(matches!(fetches.join(&key_of("/"), 9), Joined::Lead(_)));
                read_all(&mut slow, &spool, &mut read_slow);
            }
        }
        read_all(&mut fast, &spool, &mut read_fast);
    }
    assert!(!fetch.is_storing());
    assert_eq!(fetch.finish(|_| {}).err(), Some(NotStored::TooLarge));
    assert!(read_all(&mut fast, &spool, &mut read_fast));
    assert!(read_all(&mut slow, &spool, &mut read_slow));
    assert!(read_fast == body && read_slow == body);
}

#[test]
fn what_arrives_takes_half_of_the_store_at_most() {
    let fetches = fetches();
    let half = 4 << 20;
    let mut arriving = Vec::new();
    let mut stored = 0;
    for number in 0..100 {
        let Joined::Lead(mut fetch) = fetches.join(&key_of(&format!("/{number}")), 9) else {
            panic!("nobody else fetches");
        };
        let follower = fetch.follow();
        fetch.arrive(arrival("", None));
        for _ in 0..9 {
            let appended = fetch.poll_append(&[0; 100_000], u64::MAX, Waker::noop());
            assert!(appended.is_ready() || !fetch.is_storing());
        }
        stored += usize::from(fetch.is_storing());
        let kept: usize = fetch.incoming.lock().kept_bytes();
        assert!(kept <= fetch.reserved_bytes.max(PASSING_WINDOW));
        arriving.push((fetch, follower));
        assert!(fetches.store.figures().bytes <= half);
    }
    assert_eq!(stored, half as usize / 900_000);
    // A response without room is not stored, and the reason is given.
    let (mut fetch, mut follower) = arriving.pop().unwrap();
    let mut body = Vec::new();
    while follower
        .poll_read(&mut body, usize::MAX, Waker::noop())
        .is_ready()
    {}
    append(&mut fetch, b"end");
    assert_eq!(fetch.finish(|_| {}), Err(NotStored::NoRoom));
    drop(arriving);
    assert_eq!(fetches.store.figures().bytes, 0);
}

#[test]
fn what_is_still_followed_counts() {
    let fetches = fetches();
    let mut fetch = lead(&fetches);
    let follower = fetch.follow();
    fetch.arrive(arrival("", None));
    append(&mut fetch, &[0; 900_000]);
    assert_eq!(fetch.finish(|_| {}), Ok(()));
    fetches.store.remove(&key_of("/"));
    assert!(fetches.store.figures().bytes >= 900_000);
    drop(follower);
    fetches.store.sweep(1);
    assert_eq!(fetches.store.figures().bytes, 0);
}

#[test]
fn a_purge_meanwhile_counts() {
    let fetches = fetches();
    let mut fetch = lead(&fetches);
    fetches.store.purge(Purge::Everything, Strength::Hard);
    fetch.arrive(arrival("", None));
    assert_eq!(fetch.finish(|_| {}).err(), Some(NotStored::Outdated));
    assert!(!is_stored(&fetches));
}

#[test]
fn who_comes_after_a_purge_does_not_join_a_fetch_from_before_it() {
    for (what, is_concerned) in [
        (Purge::Everything, true),
        (Purge::Prefix(b"http://example.com/"), true),
        (Purge::Prefix(b"http://example.com/other"), false),
        (Purge::Tag(b"a"), true),
        (Purge::Tag(b"b"), false),
    ] {
        let fetches = fetches();
        let mut early = lead(&fetches);
        early.arrive(arrival("Cache-Tag: a", None));
        fetches.store.purge(what, Strength::Hard);
        let joined = fetches.join(&key_of("/"), 9);
        assert_eq!(matches!(joined, Joined::Lead(_)), is_concerned, "{what:?}");
        drop(joined);
        let finished = early.finish(|_| {});
        assert_eq!(finished.is_err(), is_concerned, "{what:?}");
    }
    // A response that has not come yet may have any tag.
    let fetches = fetches();
    let early = lead(&fetches);
    fetches.store.purge(Purge::Tag(b"b"), Strength::Hard);
    assert!(matches!(fetches.join(&key_of("/"), 9), Joined::Lead(_)));
    drop(early);
}

#[test]
fn who_waits_for_all_of_a_body_does_not_hold_it_up() {
    let fetches = fetches();
    let mut fetch = lead(&fetches);
    let (waiting, mut slow) = (fetch.follow(), follow(&fetches));
    let mut fast = follow(&fetches);
    fetch.arrive(arrival("", None));
    let body = long_body();
    let (mut sent, mut read) = (0, Vec::new());
    while fetch.is_storing() {
        assert!(waiting.poll_end(Waker::noop()).is_pending());
        let part = &body[sent..sent + 100_000];
        if let Poll::Ready(len) = fetch.poll_append(part, u64::MAX, Waker::noop()) {
            sent += len;
        }
    }
    assert_eq!(waiting.poll_end(Waker::noop()), Poll::Ready(false));
    drop(waiting);
    // A slow one does not either, as far as memory goes.
    while sent < 3_000_000 {
        while fast
            .poll_read(&mut read, usize::MAX, Waker::noop())
            .is_ready()
        {}
        let part = &body[sent..sent + 100_000];
        if let Poll::Ready(len) = fetch.poll_append(part, u64::MAX, Waker::noop()) {
            sent += len;
        }
    }
    while fast
        .poll_read(&mut read, usize::MAX, Waker::noop())
        .is_ready()
    {}
    assert!(read == body[..sent]);
    let kept = fetch.incoming.lock().kept_bytes();
    assert!(kept <= fetch.reserved_bytes && kept <= 4 << 20);
    read.clear();
    while slow
        .poll_read(&mut read, usize::MAX, Waker::noop())
        .is_ready()
    {}
    assert!(read == body[..sent]);
}

#[test]
fn followers_are_bounded_and_one_leads() {
    let fetches = fetches();
    let fetch = lead(&fetches);
    let follower = follow(&fetches);
    assert!(matches!(fetches.join(&key_of("/"), 1), Joined::Alone));
    assert!(fetches.lead(&key_of("/")).is_none());
    assert!(fetches.lead(&key_of("/other")).is_some());
    drop(follower);
    assert_eq!(fetch.followers(), 0);
    assert!(matches!(fetches.join(&key_of("/"), 1), Joined::Follow(_)));
}

#[test]
fn what_is_outdated_is_not_stored() {
    let fetches = fetches();
    let early = lead(&fetches);
    fetches.outdate(&key_of("/"));
    // Requests from now on begin a new fetch.
    let late = lead(&fetches);
    for (mut fetch, expected) in [(early, Some(NotStored::Outdated)), (late, None)] {
        fetch.arrive(arrival("", None));
        assert_eq!(fetch.finish(|_| {}).err(), expected);
    }
    assert_eq!(fetches.count(), 0);
}
