//! The least rate that a client must keep while a slot waits for it.

use std::time::Duration;

use evenkeel_proto::RequestHead;

use super::Context;
use super::side::ClientSide;
use crate::config::Buffer;
use crate::net::timer::Wheel;

/// The window over which a client's rate is judged.
const WINDOW: Duration = Duration::from_secs(10);

/// Judges whether a client keeps up the least rate while a slot waits for it.
///
/// ```text
///              wait                 wait, judge: not too slow
///   no window ------> window open -------------------------> the next window
///       ^                  |     \
///       +------------------+      judge: too slow -> the client is cut off
///              rest
/// ```
#[derive(Debug, Clone, Default)]
pub struct Pace {
    /// Fewest bytes in a window; 0 where there is no least rate.
    min_bytes: u64,
    /// Whether the client still waits for 100 (Continue), so that nothing is due from it.
    is_told_to_wait: bool,
    window: Option<Window>,
    /// Tick at which the awaited side has been silent for too long.
    silence: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    /// Tick at its end.
    end: u64,
    /// Bytes that had moved at its start.
    moved: u64,
}

/// The judgement on a wait whose timer has fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The wait continues.
    InTime,
    /// Nothing moved for too long.
    Silent,
    /// The client was too slow.
    Slow,
}

impl Pace {
    /// The pace that a buffer's settings require of clients.
    pub fn of(buffer: Option<Buffer>) -> Self {
        let min_rate = buffer.map_or(0, |it| it.min_rate);
        Pace {
            min_bytes: min_rate.saturating_mul(WINDOW.as_secs()),
            ..Pace::default()
        }
    }

    /// The pace for a request's body. A client with an expectation of 100 (Continue) waits for it
    /// first.
    pub fn of_request(buffer: Option<Buffer>, head: &RequestHead) -> Self {
        match head.wire.upgrade {
            // A tunnel may begin before the body ends.
            Some(_) => Pace::default(),
            None => Pace {
                is_told_to_wait: head.wire.expect_continue,
                ..Pace::of(buffer)
            },
        }
    }

    /// Notes that the client need not wait for 100 (Continue) any more.
    pub fn go_on(&mut self) {
        self.is_told_to_wait = false;
    }

    /// Starts a wait, with silence permitted until the tick `silence`. A wait for the client
    /// counts the bytes that `moved` from or to it so far. Returns the tick of the judgement.
    pub fn wait(&mut self, wheel: &Wheel, silence: u64, moved: Option<impl Fn() -> u64>) -> u64 {
        self.silence = Some(silence);
        match moved {
            Some(moved) if self.min_bytes > 0 && !self.is_told_to_wait => {
                self.window.get_or_insert_with(|| Window {
                    end: wheel.deadline(WINDOW),
                    moved: moved(),
                });
            }
            _ => self.window = None,
        }
        self.due()
    }

    /// The tick of the next judgement.
    pub fn due(&self) -> u64 {
        let window = self.window.map_or(u64::MAX, |window| window.end);
        self.silence.unwrap_or(u64::MAX).min(window)
    }

    /// Judges the wait, and starts the next window if it continues.
    pub fn judge(&mut self, context: &Context, moved: impl Fn() -> u64) -> Verdict {
        let wheel = &context.wheel;
        let now = wheel.now();
        if context.cut_off().is_some() || self.silence.is_some_and(|silence| silence <= now) {
            return Verdict::Silent;
        }
        let Some(window) = self.window.filter(|window| window.end <= now) else {
            return Verdict::InTime;
        };
        let moved = moved();
        // Bytes of earlier answers in the socket can make the difference wrap around.
        if moved.wrapping_sub(window.moved) < self.min_bytes {
            return Verdict::Slow;
        }
        self.window = Some(Window {
            end: wheel.deadline(WINDOW),
            moved,
        });
        Verdict::InTime
    }
}

/// Bytes that a client has acknowledged of those `written`. The kernel accepts megabytes on its
/// behalf, and then nothing until they are gone.
pub(super) fn taken(client: &ClientSide<'_>, written: u64) -> u64 {
    written.wrapping_sub(client.unacknowledged_len())
}
