//! Checks the token of requests that change something. Each wrong token delays the next request
//! with a token, right or wrong. So timing reveals nothing, and guessing is slow. One request
//! from each address waits at a time. Others from that address are refused unchecked, so that
//! many guesses do not block other addresses. Refusals are counted. Requests without a token are
//! not delayed.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The delay after one wrong token; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(100);
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// Wrong tokens are forgotten after this time without another one.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// Interval of checks for that.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The verdict on a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The right token.
    Right,
    /// A wrong token.
    Wrong,
    /// Not checked: another request from that address already waits.
    TooMany,
}

/// The wrong tokens so far.
#[derive(Debug)]
pub(super) struct Tokens {
    refused: Arc<AtomicU64>,
    wrong_in_row: Cell<u32>,
    last_wrong: Cell<Option<Instant>>,
    /// Wrong tokens since the last line in the event log.
    in_episode: Cell<u64>,
    /// The addresses of waiting requests: at most one for each open connection.
    waiting: RefCell<Vec<Option<IpAddr>>>,
}

/// A waiting request, by address; `None` for this machine.
struct Waiting<'a> {
    all: &'a RefCell<Vec<Option<IpAddr>>>,
    from: Option<IpAddr>,
}

impl<'a> Waiting<'a> {
    /// `None` if a request from that address already waits.
    fn new(all: &'a RefCell<Vec<Option<IpAddr>>>, from: Option<IpAddr>) -> Option<Self> {
        if all.borrow().contains(&from) {
            return None;
        }
        all.borrow_mut().push(from);
        Some(Waiting { all, from })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.all.borrow_mut().retain(|it| *it != self.from);
    }
}

impl Tokens {
    /// `refused` counts the refusals.
    pub(super) fn new(refused: Arc<AtomicU64>) -> Self {
        Tokens {
            refused,
            wrong_in_row: Cell::new(0),
            last_wrong: Cell::new(None),
            in_episode: Cell::new(0),
            waiting: RefCell::default(),
        }
    }

    /// Checks the token `given` from an address, after a delay if wrong ones came before. Logs
    /// the first wrong one.
    ///
    /// # Cancellation
    /// Dropped during the delay, it has checked nothing.
    pub(super) async fn check(
        &self,
        expected: &str,
        from: Option<IpAddr>,
        given: &[u8],
    ) -> Verdict {
        if let Some(wait) = self.wait() {
            let Some(_waiting) = Waiting::new(&self.waiting, from) else {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Verdict::TooMany;
            };
            tokio::time::sleep(wait).await;
        }
        if is_same(expected.as_bytes(), given) {
            self.wrong_in_row.set(0);
            return Verdict::Right;
        }
        self.wrong_in_row
            .set(self.wrong_in_row.get().saturating_add(1));
        self.last_wrong.set(Some(Instant::now()));
        self.refused.fetch_add(1, Ordering::Relaxed);
        if self.in_episode.replace(self.in_episode.get() + 1) == 0 {
            let from = from.map_or("this machine".to_owned(), |it| it.to_string());
            tracing::warn!(
                "status page: wrong token from {from}: further wrong tokens are only counted"
            );
        }
        Verdict::Wrong
    }

    /// Runs forever. Logs the number of wrong tokens once no more arrive.
    pub(super) async fn watch(&self) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let last = self.last_wrong.get();
            if last.is_some_and(|it| it.elapsed() >= FORGOTTEN_AFTER) {
                let count = self.in_episode.take();
                if count > 1 {
                    tracing::warn!("status page: {count} wrong tokens in all; none arrived lately");
                }
            }
        }
    }

    fn wait(&self) -> Option<Duration> {
        if self.last_wrong.get()?.elapsed() >= FORGOTTEN_AFTER {
            self.wrong_in_row.set(0);
        }
        wait_after(self.wrong_in_row.get())
    }
}

/// The delay after this many wrong tokens in a row.
fn wait_after(wrong: u32) -> Option<Duration> {
    let doublings = wrong.checked_sub(1)?;
    let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
    Some(FIRST_WAIT.saturating_mul(factor).min(LONGEST_WAIT))
}

/// Compares in constant time, wherever the first difference is.
fn is_same(expected: &[u8], given: &[u8]) -> bool {
    let mut differing = u8::from(expected.len() != given.len());
    for (index, byte) in expected.iter().enumerate() {
        let other = given.get(index).copied().unwrap_or(!byte);
        differing |= black_box(byte ^ other);
    }
    black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> (Tokens, Arc<AtomicU64>) {
        let refused = Arc::<AtomicU64>::default();
        (Tokens::new(refused.clone()), refused)
    }

    #[test]
    fn same_and_different() {
        for (given, expected) in [
            ("0123456789abcdef", true),
            ("0123456789abcdeF", false),
            ("1123456789abcdef", false),
            ("0123456789abcde", false),
            ("0123456789abcdef0", false),
            ("", false),
        ] {
            assert_eq!(
                is_same(b"0123456789abcdef", given.as_bytes()),
                expected,
                "{given}"
            );
        }
    }

    #[test]
    fn each_wrong_one_makes_the_next_wait_longer() {
        let waits = [0, 1, 2, 3, 6, 7, 40, u32::MAX].map(wait_after);
        let ms = waits.map(|wait| wait.map(|it| it.as_millis()));
        let expected = [100, 200, 400, 3_000, 3_000, 3_000, 3_000].map(Some);
        assert_eq!((ms[0], &ms[1..]), (None, &expected[..]));
    }

    #[tokio::test]
    async fn one_of_each_address_waits() {
        const EXPECTED: &str = "0123456789abcdef";
        const RIGHT: &[u8] = EXPECTED.as_bytes();
        let address = |last: u8| Some(IpAddr::from([192, 0, 2, last]));
        let (tokens, refused) = tokens();
        let check = |from, given| tokens.check(EXPECTED, from, given);
        assert_eq!(check(address(1), b"wrong").await, Verdict::Wrong);
        let mut waiting: Vec<_> = (0..100)
            .map(|last| Box::pin(check(address(last), b"wrong")))
            .collect();
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        for one in &mut waiting {
            assert!(one.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!(check(address(7), RIGHT).await, Verdict::TooMany);
        // After the delay for the one wrong token.
        assert_eq!(check(address(200), RIGHT).await, Verdict::Right);
        assert_eq!(check(None, RIGHT).await, Verdict::Right);
        drop(waiting);
        assert_eq!(check(address(7), RIGHT).await, Verdict::Right);
        // The wrong token, and the one that was not checked.
        assert_eq!(refused.load(Ordering::Relaxed), 2);
    }
}
