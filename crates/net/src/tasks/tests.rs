use std::future::poll_fn;
use std::task::Waker;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;

use super::*;
use crate::timer_fd::TimerFd;

/// Runs `test` as the main task of a set.
fn with_tasks(test: impl Future<Output = ()> + 'static) {
    let tasks = Tasks::of_this_thread().expect("a set of tasks");
    if cfg!(miri) {
        // Miri has no timers of the kernel.
        tasks.run_until(test).expect("the event loop runs");
        return;
    }
    let limited = tasks.run_until(async {
        let limit = TimerFd::new().expect("a timer");
        let time = Duration::from_secs(10);
        limit.set(time, Duration::ZERO).expect("it is set");
        tokio::select! {
            () = test => {}
            () = limit.expired() => panic!("it takes too long"),
        }
    });
    limited.expect("the event loop runs");
}

#[test]
fn an_id_holds_every_index_whole() {
    let id = Id::new(u16::MAX, 0, Id::INDEX);
    assert_eq!(
        (id.index(), id.generation(), id.set()),
        (Id::INDEX, 0, 0xffff)
    );
    let beyond = std::panic::catch_unwind(|| Id::new(0, 0, Id::INDEX + 1));
    assert!(beyond.is_err());
}

#[test]
fn a_loop_that_never_waits_gives_others_their_turn() {
    with_tasks(async {
        let is_over = Rc::new(Cell::new(false));
        let seen = is_over.clone();
        let mut operations = 0;
        let endless = poll_fn(move |cx| {
            let mut in_this_poll = 0;
            while !seen.get() {
                if poll_operation(cx).is_pending() {
                    assert_eq!(in_this_poll, OPERATIONS);
                    return Poll::Pending;
                }
                in_this_poll += 1;
                operations += 1;
            }
            Poll::Ready(operations)
        });
        spawn(async move {
            for _ in 0..10 {
                yield_now().await;
            }
            is_over.set(true);
        });
        let operations = endless.await;
        assert!((OPERATIONS..=20 * OPERATIONS).contains(&operations));
    });
}

#[test]
fn a_task_of_no_set_goes_on_after_its_turn() {
    let (wakes, waker) = evenkeel_testkit::wakes::Wakes::of_new_waker();
    let cx = &Context::from_waker(&waker);
    let made = (0..3 * OPERATIONS).filter(|_| poll_operation(cx).is_ready());
    assert!(made.count() > 2 * OPERATIONS as usize);
    assert_eq!(wakes.count(), 2);
}

/// Spawns tasks that send their number each time they are polled, and are ready at the third
/// poll. Returns the receiver and their wakers.
fn speakers(count: usize) -> (mpsc::UnboundedReceiver<usize>, Rc<RefCell<Vec<Waker>>>) {
    let (said, heard) = mpsc::unbounded_channel();
    let wakers = Rc::<RefCell<Vec<Waker>>>::default();
    for number in 0..count {
        let (said, wakers) = (said.clone(), wakers.clone());
        let mut polls = 0;
        spawn(poll_fn(move |cx| {
            said.send(number).expect("somebody listens");
            polls += 1;
            if polls == 1 {
                wakers.borrow_mut().push(cx.waker().clone());
            }
            match polls {
                3 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        }));
    }
    (heard, wakers)
}

/// Begins many tasks, more than have a turn between two looks, which are ready
/// again whenever they were polled.
fn spawn_restless() {
    const { assert!(PRIORITISE_ABOVE > POLLS_PER_TURN) };
    for _ in 0..PRIORITISE_ABOVE {
        spawn(poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
    }
}

async fn next(heard: &mut mpsc::UnboundedReceiver<usize>, count: usize) -> Vec<usize> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(heard.recv().await.expect("it is said"));
    }
    yield_now().await;
    assert!(heard.try_recv().is_err(), "no more than {all:?}");
    all
}

#[test]
fn polls_in_the_order_of_wakes_and_once_for_several() {
    with_tasks(async {
        let (mut heard, wakers) = speakers(3);
        assert_eq!(next(&mut heard, 3).await, [0, 1, 2]);
        for task in [2, 0, 2, 0] {
            wakers.borrow()[task].wake_by_ref();
        }
        assert_eq!(next(&mut heard, 2).await, [2, 0]);
    });
}

/// Spawns two tasks; the first one calls `at_first` at its first poll. Returns the order in
/// which they are polled each time both are woken, the first task first, between two turns.
async fn orders<const COUNT: usize>(at_first: fn()) -> [[usize; 2]; COUNT] {
    let (said, mut heard) = mpsc::unbounded_channel();
    let wakers = Rc::<RefCell<Vec<Waker>>>::default();
    for number in 0..2 {
        let (said, wakers) = (said.clone(), wakers.clone());
        spawn(poll_fn(move |cx| {
            said.send(number).expect("somebody listens");
            if wakers.borrow().len() == number {
                wakers.borrow_mut().push(cx.waker().clone());
                if number == 0 {
                    at_first();
                }
            }
            Poll::Pending
        }));
    }
    next(&mut heard, 2).await;
    let mut orders = [[0; 2]; COUNT];
    for order in &mut orders {
        let both = wakers.borrow().clone();
        let thread = std::thread::spawn(move || both.into_iter().for_each(Waker::wake));
        thread.join().expect("it wakes");
        order.copy_from_slice(&next(&mut heard, 2).await);
    }
    orders
}

#[test]
fn who_comes_last_does_so_as_often_as_was_said() {
    with_tasks(async {
        assert_eq!(orders(|| deprioritise(2)).await, [[1, 0], [1, 0], [0, 1]]);
    });
}

#[test]
fn among_many_who_begins_comes_once_after_who_goes_on() {
    with_tasks(async {
        assert_eq!(orders(begin_next).await, [[0, 1]]);
        for _ in 0..PRIORITISE_ABOVE {
            spawn(std::future::pending());
        }
        assert_eq!(orders(begin_next).await, [[1, 0], [0, 1]]);
    });
}

#[test]
fn who_begins_has_a_turn_where_others_never_rest() {
    with_tasks(async {
        spawn_restless();
        for _ in 0..10 {
            begin_next();
            yield_now().await;
        }
    });
}

#[test]
fn who_comes_last_has_a_turn_where_others_never_rest() {
    with_tasks(async {
        spawn_restless();
        for _ in 0..10 {
            deprioritise(1);
            yield_now().await;
        }
    });
}

#[test]
fn wakes_from_other_threads() {
    with_tasks(async {
        let (mut heard, wakers) = speakers(2);
        assert_eq!(next(&mut heard, 2).await, [0, 1]);
        let theirs = wakers.borrow().clone();
        let thread = std::thread::spawn(move || theirs.iter().rev().for_each(Waker::wake_by_ref));
        assert_eq!(next(&mut heard, 2).await, [1, 0]);
        thread.join().expect("it wakes");
    });
}

#[test]
fn a_waker_of_a_task_that_ended_wakes_none() {
    with_tasks(async {
        let (mut heard, wakers) = speakers(1);
        for _ in 0..2 {
            assert_eq!(next(&mut heard, 1).await, [0]);
            wakers.borrow()[0].wake_by_ref();
        }
        assert_eq!(next(&mut heard, 1).await, [0]);
        let old = wakers.borrow()[0].clone();
        // The new task gets the index of the ended one.
        let (mut heard, wakers) = speakers(1);
        assert_eq!(next(&mut heard, 1).await, [0]);
        let index = |waker: &Waker| Id(waker.data().addr()).index();
        assert_eq!(index(&old), index(&wakers.borrow()[0]));
        old.wake_by_ref();
        let thread = std::thread::spawn(move || old.wake());
        thread.join().expect("it wakes none");
        next(&mut heard, 0).await;
    });
}

#[test]
fn a_panic_ends_its_task_only() {
    with_tasks(async {
        let (reply, answer) = oneshot::channel();
        spawn(async { panic!("as the test wants it") });
        spawn(async { reply.send(7).expect("somebody listens") });
        assert_eq!(answer.await, Ok(7));
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timers of the kernel")]
fn tasks_that_never_rest_leave_room_for_others() {
    with_tasks(async {
        spawn_restless();
        // The poller takes the event, and this task is polled.
        let timer = TimerFd::new().expect("a timer");
        let time = Duration::from_millis(1);
        timer.set(time, Duration::ZERO).expect("it is set");
        timer.expired().await;
    });
}

#[test]
fn what_is_left_is_dropped_with_the_set() {
    let held = Rc::new(());
    let waker = Rc::<RefCell<Option<Waker>>>::default();
    let (theirs, its_waker) = (held.clone(), waker.clone());
    with_tasks(async {
        let (reply, answer) = oneshot::channel();
        let (held, waker) = (theirs, its_waker);
        let mut reply = Some(reply);
        spawn(poll_fn(move |cx| {
            let _still_there = &held;
            *waker.borrow_mut() = Some(cx.waker().clone());
            reply.take().map(|it| it.send(()));
            Poll::Pending
        }));
        answer.await.expect("it was polled");
    });
    assert_eq!(Rc::strong_count(&held), 1);
    waker.take().expect("it was polled").wake();
}

#[test]
fn hints_are_named_in_any_task() {
    let value = [0_u8; 1000];
    hint_prefetch(0, &value, 64);
    with_tasks(async move {
        let (reply, answer) = oneshot::channel();
        spawn(async move {
            for piece in 0..HINTS {
                hint_prefetch(piece, &value, usize::MAX);
            }
            yield_now().await;
            reply.send(value[0]).expect("somebody listens");
        });
        assert_eq!(answer.await, Ok(0));
    });
}
