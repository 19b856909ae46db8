//! The distance between the cores of proxy and load.
//!
//! A cache line takes 50 ns from one core to another and back if both share a cache, and 300 ns
//! if they do not. The distance changes the cost that all proxies share: the kernel's work on
//! packets that the other core has just touched. An exchange of 44 B took a bare relay 9.4 or
//! 13.3 us. The host of a virtual machine moves its cores from one place to another every few
//! seconds or minutes.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::process::{LOAD_CORE, PROXY_CORE, stay_on};

/// Above this time the cores share no cache.
pub const FAR: Duration = Duration::from_nanos(150);
/// How long it is waited in all, in one case, for cores to come near, and
/// measured in vain.
const PATIENCE: Duration = Duration::from_secs(90);
/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(500);

/// Batches of round trips. The shortest counts: during the others, something else ran on one of
/// the cores.
const BATCHES: usize = 30;
const ROUND_TRIPS: u32 = 200;
/// Ends the exchange of numbers. Counting never reaches it.
const END: u32 = u32::MAX;

/// Waits for the cores to be near each other.
#[derive(Debug)]
pub struct Nearness {
    patience: Duration,
    /// How far apart they were when that was last looked at.
    distance: Duration,
    /// When it was waited for last.
    begun: Instant,
}

impl Nearness {
    /// A fresh watch with its full patience.
    ///
    /// # Errors
    /// The machine has no two cores.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            patience: PATIENCE,
            distance: round_trip()?,
            begun: Instant::now(),
        })
    }

    /// Waits until the cores are near, as long as patience lasts. Returns their distance then.
    ///
    /// # Errors
    /// The machine has no two cores.
    pub fn wait(&mut self) -> io::Result<Duration> {
        while self.distance > FAR && !self.patience.is_zero() {
            thread::sleep(INTERVAL);
            self.patience = self.patience.saturating_sub(INTERVAL);
            self.distance = round_trip()?;
        }
        self.begun = Instant::now();
        Ok(self.distance)
    }

    /// Whether the measurement since then is usable.
    ///
    /// It is if the cores have stayed near, were already apart, or no patience is left to wait
    /// for better ones.
    ///
    /// # Errors
    /// The machine has no two cores.
    pub fn lasted(&mut self) -> io::Result<bool> {
        let before = std::mem::replace(&mut self.distance, round_trip()?);
        if before > FAR || self.distance <= FAR || self.patience.is_zero() {
            return Ok(true);
        }
        self.patience = self.patience.saturating_sub(self.begun.elapsed());
        Ok(false)
    }
}

/// The shortest time of a cache line from the proxy's core to the load's and back.
///
/// # Errors
/// The machine has no two cores.
fn round_trip() -> io::Result<Duration> {
    let number = AtomicU32::new(0);
    let (is_there, there) = channel();
    thread::scope(|scope| {
        let answering = scope.spawn(|| answer(&number, is_there));
        let asked = match there.recv() {
            Ok(()) => joined(scope.spawn(|| ask(&number))),
            Err(_) => Ok(Duration::ZERO),
        };
        number.store(END, Ordering::Release);
        joined(answering).and(asked)
    })
}

/// Adds one to each odd number until the end, after it has said `is_there`.
fn answer(number: &AtomicU32, is_there: Sender<()>) -> io::Result<()> {
    stay_on(&[LOAD_CORE])?;
    // A receiver that is gone sets the end.
    let _ = is_there.send(());
    loop {
        match number.load(Ordering::Acquire) {
            END => return Ok(()),
            asked if asked % 2 == 1 => number.store(asked + 1, Ordering::Release),
            _ => {}
        }
    }
}

/// Makes numbers odd, and says how long it takes until they are even.
fn ask(number: &AtomicU32) -> io::Result<Duration> {
    stay_on(&[PROXY_CORE])?;
    let batches = (0..BATCHES).map(|_| {
        let begun = Instant::now();
        for _ in 0..ROUND_TRIPS {
            let asked = number.load(Ordering::Relaxed) + 1;
            number.store(asked, Ordering::Release);
            while number.load(Ordering::Acquire) == asked {}
        }
        begun.elapsed() / ROUND_TRIPS
    });
    Ok(batches.min().unwrap_or_default())
}

fn joined<T>(thread: ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    let ended = thread.join();
    ended.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_between_two_cores_takes_some_nanoseconds() {
        let Ok(distance) = round_trip() else {
            assert_eq!(thread::available_parallelism().map_or(1, usize::from), 1);
            return;
        };
        let plausible = Duration::from_nanos(5)..Duration::from_micros(20);
        assert!(plausible.contains(&distance), "{distance:?}");
    }

    #[test]
    fn who_is_out_of_patience_does_not_wait() {
        let begun = Instant::now();
        if let Ok(mut nearness) = Nearness::new() {
            nearness.patience = Duration::ZERO;
            assert!(nearness.wait().is_ok());
            assert!(nearness.lasted().is_ok_and(|it| it));
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
