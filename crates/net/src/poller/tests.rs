use std::io::Write;
use std::os::unix::net::UnixStream;

use evenkeel_testkit::Wakes;

use std::os::fd::AsFd;
use std::task::Context;

use super::*;

/// A socket that is watched, and its peer.
fn watched() -> (Source<UnixStream>, UnixStream) {
    let (own, peer) = UnixStream::pair().expect("a pair of sockets");
    let source = Source::new(own, Interest::ReadWrite);
    (source.expect("there is room"), peer)
}

fn poller() -> Poller {
    Poller::of_this_thread().expect("there are descriptors")
}

fn is_ready<T: AsFd>(source: &Source<T>) -> [bool; 2] {
    [Side::Read, Side::Write].map(|side| source.is_ready(side))
}

#[test]
fn knows_what_the_kernel_said_until_it_is_taken() {
    let mut poller = poller();
    let (source, mut peer) = watched();
    assert_eq!(is_ready(&source), [false, false], "nobody has looked");
    poller.look(true).expect("a look");
    assert_eq!(is_ready(&source), [false, true]);
    peer.write_all(b"a").expect("it is sent");
    poller.look(false).expect("a look");
    assert_eq!(is_ready(&source), [true, true]);
    source.note_drained(Side::Read);
    source.note_drained(Side::Write);
    poller.look(true).expect("a look");
    assert_eq!(is_ready(&source), [false, false], "each is said once");
    peer.write_all(b"b").expect("it is sent");
    poller.look(false).expect("a look");
    assert!(source.is_ready(Side::Read));
}

#[test]
fn an_end_outlasts_what_came_with_it() {
    let mut poller = poller();
    let (source, mut peer) = watched();
    peer.write_all(b"a").expect("it is sent");
    let end = peer.shutdown(std::net::Shutdown::Write);
    end.expect("it ends");
    poller.look(false).expect("a look");
    source.note_drained(Side::Read);
    assert!(source.is_ready(Side::Read));
    source.note_blocked(Side::Read);
    assert!(!source.is_ready(Side::Read));
}

#[test]
fn events_of_a_socket_that_went_are_nobody_s() {
    let mut poller = poller();
    let (source, mut peer) = watched();
    // The kernel still watches a descriptor with a copy.
    let _copy = source.get().try_clone().expect("a copy");
    drop(source);
    let (next, _its_peer) = watched();
    peer.write_all(b"a").expect("it is sent");
    poller.look(true).expect("a look");
    assert_eq!(next.slot.key, 0, "it has the place");
    assert_eq!(is_ready(&next), [false, true]);
}

#[test]
fn a_detached_one_stays_known_to_its_thread() {
    let mut poller = poller();
    let (source, mut peer) = watched();
    poller.look(true).expect("a look");
    let detached = source.detach();
    assert!(detached.is_of_this_thread() && !detached.is_known_ready());
    peer.write_all(b"a").expect("it is sent");
    poller.look(false).expect("a look");
    assert!(detached.is_known_ready());
    let source = detached.attach().expect("it stays where it is");
    assert_eq!(source.slot.key, 0);
    assert_eq!(is_ready(&source), [true, true]);
    drop(source.detach());
    assert!(poller.table.entries.borrow().is_empty());
}

#[test]
fn a_detached_one_goes_to_another_thread_and_leaves_nothing() {
    let mut poller = poller();
    let (source, mut peer) = watched();
    let (other, _its_peer) = watched();
    poller.look(true).expect("a look");
    let [moving, closing] = [source, other].map(Source::detach);
    let moved = std::thread::spawn(move || {
        let mut poller = self::poller();
        assert!(!moving.is_of_this_thread() && !moving.is_known_ready());
        let source = moving.attach().expect("there is room");
        assert!(source.is_ready(Side::Read), "until a look shows otherwise");
        source.note_blocked(Side::Read);
        peer.write_all(b"a").expect("it is sent");
        poller.look(false).expect("a look");
        assert_eq!(is_ready(&source), [true, true]);
        // Without a poller no task can be woken.
        drop(closing);
        let detached = source.detach();
        drop(poller);
        (detached, peer)
    });
    let (back, mut peer) = moved.join().expect("it succeeds");
    // This poller reports no events of moved descriptors, and both places are free.
    assert!(!poller.look(true).expect("a look") && poller.events.is_empty());
    let (next, _its_peer) = watched();
    assert_eq!(poller.table.entries.borrow().len(), 1);
    // The thread that it comes from has ended.
    let back = back.attach().expect("there is room");
    back.note_blocked(Side::Read);
    peer.write_all(b"b").expect("it is sent");
    poller.look(false).expect("a look");
    assert_eq!(is_ready(&back), [true, true]);
    assert_eq!(is_ready(&next), [false, true]);
}

#[test]
fn an_end_of_both_sides_is_told_from_that_of_one() {
    let mut poller = poller();
    let (source, mut peer) = watched();
    peer.write_all(b"a").expect("it is sent");
    let end = peer.shutdown(std::net::Shutdown::Write);
    end.expect("it ends");
    poller.look(false).expect("a look");
    let (wakes, waker) = Wakes::of_new_waker();
    let cx = Context::from_waker(&waker);
    assert!(source.poll_over(&cx).is_pending());
    drop(peer);
    poller.look(false).expect("a look");
    assert_eq!(wakes.count(), 1);
    assert!(source.poll_over(&cx).is_ready());
    assert!(source.is_ready(Side::Read), "what came before can be read");
}

#[test]
fn says_whether_there_may_be_more() {
    let mut poller = poller();
    let watched: Vec<_> = (0..BATCH).map(|_| watched()).collect();
    assert!(poller.look(true).expect("a look"));
    assert!(!poller.look(true).expect("a look"));
    let all = watched.iter().all(|(it, _)| it.is_ready(Side::Write));
    assert!(all);
}

#[test]
fn a_second_waiter_does_not_take_the_place_of_the_first() {
    let mut poller = poller();
    let (source, mut peer) = watched();
    let wakers = [Wakes::of_new_waker(), Wakes::of_new_waker()];
    let [(first, first_waker), (second, second_waker)] = wakers;
    let wait = |waker: &Waker, side| {
        let cx = Context::from_waker(waker);
        assert!(source.poll_ready(&cx, side).is_pending());
    };
    let is_refused = |waker: &Waker, side| {
        let wait = std::panic::AssertUnwindSafe(|| wait(waker, side));
        std::panic::catch_unwind(wait).is_err()
    };
    wait(&first_waker, Side::Read);
    wait(&second_waker, Side::Write);
    assert!(is_refused(&second_waker, Side::Read) && is_refused(&first_waker, Side::Write));
    source.forget_waiters();
    wait(&second_waker, Side::Read);
    assert!(is_refused(&first_waker, Side::Read));
    peer.write_all(b"a").expect("it is sent");
    poller.look(false).expect("a look");
    assert_eq!((first.count(), second.count()), (0, 1));
}

#[test]
fn wakes_who_waits_for_the_side() {
    let mut poller = poller();
    let (source, mut peer) = watched();
    poller.look(true).expect("a look");
    let (wakes, waker) = Wakes::of_new_waker();
    let cx = Context::from_waker(&waker);
    assert!(source.poll_ready(&cx, Side::Write).is_ready());
    for _ in 0..2 {
        assert!(source.poll_ready(&cx, Side::Read).is_pending());
    }
    peer.write_all(b"a").expect("it is sent");
    poller.look(false).expect("a look");
    assert_eq!(wakes.count(), 1);
    assert!(source.poll_ready(&cx, Side::Read).is_ready());
}
