//! Endpoints of the demo that go down now and then.

use evenkeel_origin::OriginHandle;

/// Seconds from one outage to the next.
pub(super) const PERIOD_SECONDS: u64 = 12;
/// Seconds that an outage takes.
pub(super) const DOWN_SECONDS: u64 = 4;

/// Endpoints that go down together and come back.
#[derive(Debug)]
pub(super) struct Outage<'a> {
    origins: &'a [OriginHandle],
    /// Their name, with its verbs.
    texts: &'static Texts,
    second: u64,
}

/// The texts of an outage.
#[derive(Debug)]
pub(super) struct Texts {
    /// "it is up, and goes down in".
    pub up: &'static str,
    /// "it is down, and comes back in".
    pub down: &'static str,
}

impl<'a> Outage<'a> {
    /// All are up.
    pub fn new(origins: &'a [OriginHandle], texts: &'static Texts) -> Self {
        Outage {
            origins,
            texts,
            second: 0,
        }
    }

    /// Ends a second, and gives the text for the next.
    pub fn second(&mut self) -> String {
        const UP_SECONDS: u64 = PERIOD_SECONDS - DOWN_SECONDS;
        self.second += 1;
        let at = self.second % PERIOD_SECONDS;
        match at {
            0 => self.origins.iter().for_each(OriginHandle::serve),
            UP_SECONDS => self.origins.iter().for_each(OriginHandle::refuse),
            _ => {}
        }
        if at < UP_SECONDS {
            format!("{} {} s", self.texts.up, UP_SECONDS - at)
        } else {
            format!("{} {} s", self.texts.down, PERIOD_SECONDS - at)
        }
    }
}
