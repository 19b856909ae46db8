//! When a certificate is renewed, and when a failed order is tried again. No I/O, no clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use crate::certificate::StoredCertificate;

/// Lifetimes up to this are renewed after half of them.
const SHORT: Duration = Duration::from_secs(10 * 86_400);

/// The pause after the first failure.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// The longest pause between failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(6 * 3600);

/// How often the suggestion of an issuer is asked for, whatever it says itself.
const ASK_AT_LEAST: Duration = Duration::from_secs(86_400);
const ASK_AT_MOST: Duration = Duration::from_secs(60);

/// The orders that may be placed in [`WINDOW`].
const ORDERS: usize = 10;
const WINDOW: Duration = Duration::from_secs(10);

/// The time to renew a certificate without the issuer's advice.
///
/// It is after two thirds of its lifetime, or half of a short one. Up to a fiftieth of the
/// lifetime is subtracted, by the certificate's fingerprint, so that certificates of one day
/// are not renewed together.
pub(crate) fn by_fraction(held: &StoredCertificate) -> SystemTime {
    let lifetime = held.lifetime();
    let after = if lifetime <= SHORT {
        lifetime / 2
    } else {
        lifetime / 3 * 2
    };
    let earlier = lifetime.mul_f64(share(&held.fingerprint) / 50.0);
    held.not_before + after.saturating_sub(earlier)
}

/// The time in the window that an issuer suggests (RFC 9773, section 4.2): the same one each
/// time, and another one for another certificate. It leaves a twelfth of the lifetime, whatever
/// the issuer says.
pub(crate) fn in_window(
    held: &StoredCertificate,
    (start, end): (SystemTime, SystemTime),
) -> SystemTime {
    let window = end.duration_since(start).unwrap_or_default();
    let at = start + window.mul_f64(share(&held.fingerprint));
    at.min(held.not_before + held.lifetime() / 12 * 11)
}

/// When the issuer is asked again for its suggestion.
pub(crate) fn ask_again(retry_after: Duration) -> Duration {
    retry_after.clamp(ASK_AT_MOST, ASK_AT_LEAST)
}

/// How long an issuer is left alone that wants so. While a certificate is valid, that is at most
/// a quarter of the time until its end: further attempts have the rest.
pub(crate) fn leave_alone(
    wanted: Duration,
    held: Option<&StoredCertificate>,
    now: SystemTime,
) -> Duration {
    let left = held.and_then(|it| it.not_after.duration_since(now).ok());
    left.map_or(wanted, |left| wanted.min(left / 4))
}

/// The pause after this many failures in a row: a minute, doubling, up to six hours.
///
/// `random`, from 0 to 1, makes it up to a tenth longer or shorter.
pub(crate) fn pause(failures: u32, random: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let pause = (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE);
    pause.mul_f64(0.9 + random * 0.2)
}

/// The pause after a certificate was obtained, whatever says that it is due again: a wrong
/// clock, or an issuer, would have certificates ordered without end.
pub(crate) fn pause_after_success(held: &StoredCertificate) -> Duration {
    (held.lifetime() / 20).min(LONGEST_PAUSE)
}

/// A number from 0 to 1 that is the same for a certificate each time.
fn share(fingerprint: &[u8; 32]) -> f64 {
    let [a, b, ..] = *fingerprint;
    f64::from(u16::from_be_bytes([a, b])) / f64::from(u16::MAX)
}

/// Limits orders to [`ORDERS`] in any [`WINDOW`].
#[derive(Debug, Default)]
pub(crate) struct OrderLimit {
    placed: VecDeque<Instant>,
}

impl OrderLimit {
    /// Counts an order that is placed now, or says how long to wait first.
    pub(crate) fn place(&mut self, now: Instant) -> Result<(), Duration> {
        if self.placed.len() == ORDERS
            && let Some(&oldest) = self.placed.front()
        {
            let free_at = oldest + WINDOW;
            if free_at > now {
                return Err(free_at - now);
            }
            self.placed.pop_front();
        }
        self.placed.push_back(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    const START: SystemTime = SystemTime::UNIX_EPOCH;

    fn held(lifetime: Duration, first_byte: u8) -> StoredCertificate {
        StoredCertificate {
            not_before: START,
            not_after: START + lifetime,
            fingerprint: [first_byte; 32],
            directory: None,
            id: None,
        }
    }

    #[test]
    fn certificates_are_renewed_after_two_thirds_or_half() {
        for (days, after) in [
            (90, 60.0),
            (45, 30.0),
            (11, 22.0 / 3.0),
            (10, 5.0),
            (6, 3.0),
        ] {
            let lifetime = DAY * days;
            let at = |byte| by_fraction(&held(lifetime, byte));
            let exact = START + DAY.mul_f64(after);
            let difference = |a: SystemTime, b: SystemTime| a.duration_since(b).unwrap();
            assert!(difference(exact, at(0)) < Duration::from_secs(1), "{days}");
            let earliest = difference(exact, at(255));
            assert!(earliest <= lifetime / 49, "{days}: {earliest:?}");
            assert!(earliest >= lifetime / 51, "{days}: {earliest:?}");
            assert!(at(255) < at(100) && at(100) < at(0));
        }
        let pause = |lifetime| pause_after_success(&held(lifetime, 0));
        assert_eq!(pause(DAY * 90), LONGEST_PAUSE);
        assert_eq!(pause(DAY), DAY / 20);
        // A lifetime of nothing.
        assert_eq!(by_fraction(&held(Duration::ZERO, 9)), START);
    }

    #[test]
    fn renewals_stay_in_the_window() {
        let window = (START + DAY, START + DAY * 3);
        let at = |byte| in_window(&held(DAY * 90, byte), window);
        assert_eq!((at(0), at(255)), window);
        assert!(at(100) > window.0 && at(100) < window.1);
        // A window that ends before it starts.
        assert_eq!(
            in_window(&held(DAY * 90, 255), (window.1, window.0)),
            window.1
        );
        // One that leaves no time.
        let late = (START + DAY * 12, START + DAY * 13);
        assert_eq!(in_window(&held(DAY * 12, 0), late), START + DAY * 11);
        assert_eq!(ask_again(Duration::ZERO), Duration::from_secs(60));
        assert_eq!(ask_again(DAY * 30), DAY);
        assert_eq!(ask_again(DAY / 4), DAY / 4);
    }

    #[test]
    fn an_issuer_is_left_alone_while_there_is_time() {
        let held = held(DAY * 6, 0);
        let at = |day| leave_alone(DAY * 7, Some(&held), START + DAY * day);
        assert_eq!(at(2), DAY);
        assert_eq!(at(5), DAY / 4);
        // An expired certificate leaves nothing to lose.
        assert_eq!(at(7), DAY * 7);
        assert_eq!(leave_alone(DAY, None, START), DAY);
        assert_eq!(leave_alone(DAY / 24, Some(&held), START), DAY / 24);
    }

    #[test]
    fn pauses_double_from_a_minute_to_six_hours() {
        let minutes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 360, 360];
        for (failures, minutes) in (1..).zip(minutes) {
            let exact = Duration::from_secs(minutes * 60);
            let differs = |random: f64, factor: f64| {
                let found = pause(failures, random).as_secs_f64();
                (found / exact.as_secs_f64() - factor).abs() > 1e-6
            };
            assert!(
                !differs(0.0, 0.9) && !differs(0.5, 1.0) && !differs(1.0, 1.1),
                "{failures}"
            );
        }
        assert_eq!(pause(u32::MAX, 0.5), LONGEST_PAUSE);
        assert_eq!(pause(0, 0.5), FIRST_PAUSE);
    }

    #[test]
    fn orders_are_limited_in_any_window() {
        let start = Instant::now();
        let mut limit = OrderLimit::default();
        let mut placed = Vec::new();
        let mut now = start;
        while placed.len() < 55 {
            match limit.place(now) {
                Ok(()) => {
                    placed.push(now);
                    now += Duration::from_millis(300);
                }
                Err(wait) => {
                    assert!(wait <= WINDOW);
                    now += wait;
                }
            }
        }
        for window in placed.windows(ORDERS + 1) {
            assert!(window[ORDERS] - window[0] >= WINDOW);
        }
        // No more was waited than needed.
        assert_eq!(placed[50] - placed[0], WINDOW * 5);
    }
}
