use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::*;

fn queue(in_flight: usize, waiting: usize, wait: Duration) -> IoQueue<usize, usize> {
    IoQueue::start(
        "test",
        Bounds {
            in_flight,
            waiting,
            wait,
        },
    )
    .expect("threads start")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(future)
}

#[test]
fn one_piece_of_work_serves_all_who_ask_for_it() {
    let queue = queue(1, 10, Duration::MAX);
    let done = Arc::new(AtomicUsize::new(0));
    let (open, gate) = mpsc::channel::<()>();
    let results = block_on(async {
        let blocked = queue.run(
            0,
            WhenFull::Refuse,
            Work::blocking(move || gate.recv().map_or(1, |()| 0)),
        );
        let mut blocked = std::pin::pin!(blocked);
        assert!(futures_pending(&mut blocked).await);
        while queue.load().waiting > 0 {
            tokio::task::yield_now().await;
        }
        let asked: Vec<_> = (0..20)
            .map(|_| {
                let done = done.clone();
                queue.shared.submit(
                    7,
                    WhenFull::Refuse,
                    Work::blocking(move || done.fetch_add(1, Ordering::Relaxed) + 70),
                )
            })
            .collect();
        while queue.load().in_flight == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(queue.load().waiting, 1, "the others wait for the same");
        open.send(()).expect("the work waits for it");
        assert_eq!(blocked.await, Ok(0));
        let mut results = Vec::new();
        for receiver in asked {
            results.push(receiver.expect("room").await.expect("a result"));
        }
        results
    });
    assert_eq!(results, [70; 20]);
    assert_eq!(done.load(Ordering::Relaxed), 1);
    assert_eq!(queue.counters().shared.value(), 19);
}

#[test]
fn beyond_its_length_work_is_refused_and_then_taken_again() {
    let queue = queue(1, 2, Duration::MAX);
    let (open, gate) = mpsc::channel::<()>();
    block_on(async {
        let mut first = std::pin::pin!(queue.run(
            0,
            WhenFull::Refuse,
            Work::blocking(move || gate.recv().map_or(1, |()| 0))
        ));
        assert!(futures_pending(&mut first).await);
        while queue.load().waiting > 0 {
            tokio::task::yield_now().await;
        }
        let waiting: Vec<_> = (1..3)
            .map(|key| {
                queue
                    .shared
                    .submit(key, WhenFull::Refuse, Work::blocking(move || key))
            })
            .collect();
        assert_eq!(
            queue.run(3, WhenFull::Refuse, Work::blocking(|| 3)).await,
            Err(Refused)
        );
        assert_eq!(queue.counters().refused.value(), 1);
        open.send(()).expect("the work waits for it");
        for (receiver, key) in waiting.into_iter().zip(1..) {
            assert_eq!(receiver.expect("room").await, Ok(key));
        }
        assert_eq!(
            queue.run(4, WhenFull::Refuse, Work::blocking(|| 4)).await,
            Ok(4)
        );
    });
}

#[test]
fn who_has_gone_makes_room_once_they_are_many() {
    let queue = queue(1, 80, Duration::MAX);
    let (open, gate) = mpsc::channel::<()>();
    let blocked = queue.shared.submit(
        0,
        WhenFull::Refuse,
        Work::blocking(move || gate.recv().map_or(1, |()| 0)),
    );
    block_on(async {
        let run = |key| Box::pin(queue.run(key, WhenFull::Refuse, Work::blocking(move || key)));
        let mut waiting: Vec<_> = (1..=80).map(run).collect();
        for one in &mut waiting {
            assert!(futures_pending(&mut one.as_mut()).await);
        }
        waiting.truncate(71);
        assert_eq!(run(81).await, Err(Refused));
        assert_eq!(queue.load().waiting, 80);
        waiting.truncate(70);
        let mut admitted = run(82);
        assert!(futures_pending(&mut admitted.as_mut()).await);
        assert_eq!(queue.load().waiting, 71);
        open.send(()).expect("the work waits for it");
        assert_eq!(blocked.expect("room").await, Ok(0));
        assert_eq!(admitted.await, Ok(82));
    });
}

#[test]
fn work_that_panics_leaves_nobody_waiting() {
    let queue = queue(1, 10, Duration::MAX);
    block_on(async {
        let failed = queue.run(
            1,
            WhenFull::Refuse,
            Work::blocking(|| panic!("as the test wants it")),
        );
        assert_eq!(failed.await, Err(Refused));
        assert_eq!(
            queue.run(1, WhenFull::Refuse, Work::blocking(|| 2)).await,
            Ok(2)
        );
        assert_eq!(queue.load().waiting, 0);
    });
}

#[test]
fn work_that_is_told_of_its_turn_ends_when_it_says_so() {
    let queue = queue(1, 10, Duration::MAX);
    let (tell, told) = mpsc::channel();
    let prompt = |tell: &mpsc::Sender<StartedWork<usize, usize>>| {
        let tell = tell.clone();
        Work::Prompt(Box::new(move |begun| {
            tell.send(begun).expect("the test listens");
            Ok(())
        }))
    };
    let first = queue.shared.submit(1, WhenFull::Refuse, prompt(&tell));
    let second = queue.shared.submit(2, WhenFull::Refuse, prompt(&tell));
    let third = queue
        .shared
        .submit(3, WhenFull::Refuse, Work::blocking(|| 30));
    let begun = told.try_recv().expect("a place is free");
    assert!(told.try_recv().is_err(), "there is one place");
    begun.finish(&10);
    // Without a result.
    drop(told.try_recv().expect("the place is free again"));
    block_on(async {
        assert_eq!(first.expect("room").await, Ok(10));
        assert!(second.expect("room").await.is_err());
        assert_eq!(third.expect("room").await, Ok(30));
    });
    assert_eq!(queue.load().in_flight, 0);
    assert_eq!(queue.counters().reads.value(), 3);
}

#[test]
fn what_can_not_be_begun_at_once_is_done_by_threads() {
    // As many as overflow a stack if each ends within the one before.
    const MANY: usize = 100_000;
    let queue = queue(2, MANY, Duration::MAX);
    let ask = |key: usize| {
        let by_thread = move |begun: StartedWork<usize, usize>| {
            let name = std::thread::current().name().map(str::to_owned);
            assert!(name.is_some_and(|it| it.starts_with("test-")));
            begun.finish(&(key * 10));
        };
        let work = Work::Prompt(Box::new(move |begun| Err((begun, Box::new(by_thread)))));
        let submitted = queue.shared.submit(key, WhenFull::Refuse, work);
        submitted.expect("there is room")
    };
    let results: Vec<_> = (1..=MANY).map(ask).collect();
    block_on(async {
        for (result, key) in results.into_iter().zip(1..) {
            assert_eq!(result.await, Ok(key * 10));
        }
    });
    assert_eq!((queue.load().waiting, queue.load().in_flight), (0, 0));
}

#[test]
fn threads_are_started_as_they_are_needed() {
    let queue = queue(3, 10, Duration::MAX);
    let (open, gate) = mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let held = |key: usize| {
        let gate = gate.clone();
        let work = move || gate.lock().expect("held").recv().map_or(0, |()| key);
        queue
            .shared
            .submit(key, WhenFull::Refuse, Work::blocking(work))
    };
    let first = [held(1)];
    assert_eq!(queue.shared.lock().threads, 1);
    let more = [held(2), held(3), held(4)];
    assert_eq!(queue.shared.lock().threads, 3, "as many as places");
    for _ in 0..4 {
        open.send(()).expect("the work waits for it");
    }
    block_on(async {
        for (receiver, key) in first.into_iter().chain(more).zip(1..) {
            assert_eq!(receiver.expect("room").await, Ok(key));
        }
    });
}

#[test]
fn what_nobody_waits_for_is_not_begun() {
    let queue = queue(1, 10, Duration::MAX);
    let (open, gate) = mpsc::channel::<()>();
    let begun = Arc::new(AtomicUsize::new(0));
    block_on(async {
        let mut first = std::pin::pin!(queue.run(
            0,
            WhenFull::Refuse,
            Work::blocking(move || gate.recv().map_or(1, |()| 0))
        ));
        assert!(futures_pending(&mut first).await);
        let counted = begun.clone();
        drop(queue.shared.submit(
            1,
            WhenFull::Refuse,
            Work::blocking(move || counted.fetch_add(1, Ordering::Relaxed)),
        ));
        open.send(()).expect("the work waits for it");
        assert_eq!(
            queue.run(2, WhenFull::Refuse, Work::blocking(|| 2)).await,
            Ok(2)
        );
    });
    assert_eq!(begun.load(Ordering::Relaxed), 0);
}

/// Polls once; whether there is nothing yet.
async fn futures_pending<T>(future: &mut std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

#[test]
fn other_bounds_hold_from_then_on() {
    let bounds = |in_flight| Bounds {
        in_flight,
        waiting: 10,
        wait: Duration::MAX,
    };
    let queue = queue(1, 10, Duration::MAX);
    let (open, gate) = mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let ask = |key| {
        let gate = gate.clone();
        let work = Work::blocking(move || {
            let gate = gate.lock().expect("nobody panics");
            gate.recv().map_or(0, |()| key)
        });
        queue
            .shared
            .submit(key, WhenFull::Refuse, work)
            .expect("there is room")
    };
    let load = |waiting, in_flight| Load { waiting, in_flight };
    let mut asked: Vec<_> = (1..=4).map(ask).collect();
    assert_eq!(queue.load(), load(3, 1));
    queue.set_bounds(bounds(3));
    assert_eq!(queue.load(), load(1, 3));
    // Work in flight beyond the bound ends normally.
    queue.set_bounds(bounds(1));
    assert_eq!(queue.load(), load(1, 3));
    let mut done = 0;
    while done < 4 {
        open.send(()).expect("work waits for it");
        let before = asked.len();
        while asked.len() == before {
            asked.retain_mut(|it| it.try_recv().is_err());
            std::thread::yield_now();
        }
        done += 1;
        let in_flight = [2, 1, 1, 0][done - 1];
        assert_eq!(queue.load(), load(usize::from(done < 3), in_flight));
    }
    assert_eq!(queue.shared.lock().busy_since.len(), 1);
}
