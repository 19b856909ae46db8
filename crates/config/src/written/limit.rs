//! Limits of a route on the rate of requests, or on requests in flight.

use std::time::Duration;

use super::RequestKeyText;
use crate::quantity::DurationValue;
use crate::setting::{Bounded, Fault, FromText, Resolve, options, resolve_to, sibling};
use crate::tree::Node;

options! {
    /// A limit on the requests of one key: how often they may come, or how many may be in
    /// flight.
    pub struct LimitTable as "a limit"
    for #[derive(Debug, Clone, PartialEq, Eq)] Limit
    with LimitParts {
        /// The quantity that is limited, and the limit.
        bound: LimitBound,
    } {
        /// The requests to count together. `client` means one client's address; a
        /// text with variables, such as `{header:X-Api-Key}`, makes the key. A request whose
        /// text comes out empty is not limited.
        key: RequestKeyText = Default("'client'"),
        /// How many requests in how much time, such as `10/s`, `600/m` or `5000/h`.
        rate: RateText = RequiredWithout("concurrent") => by_hand,
        /// How many requests may come at once after a pause.
        burst: Bounded<u32, 1, 1_000_000_000> = Depends(burst_default, "the requests of one \
            second, at least 1") => by_hand,
        /// In place of `rate`: how many requests may be in flight at once.
        concurrent: Bounded<u32, 1, 1_000_000> = Optional("no limit") => by_hand,
        /// How long a request above the rate may wait, in the order of arrival, before it is
        /// refused; in steps of 100 ms.
        delay: DurationValue = Default("'0s'"),
        /// Whether requests beyond the limit only count, and still pass.
        dry_run: bool = Default("false"),
        /// Status of a refusal.
        status: Bounded<u16, 400, 599> = Default("429"),
        /// Whether answers to requests that pass say how much of the limit is left, in
        /// `RateLimit`.
        headers: bool = Default("false"),
        /// With `client`: the leading bits of an IPv4 address that count.
        prefix_v4: Bounded<u8, 1, 32> = Default("32"),
        /// With `client`: the leading bits of an IPv6 address that count. A client with one
        /// address usually has its whole 64-bit network.
        prefix_v6: Bounded<u8, 1, 128> = Default("64"),
        /// Keys to remember, of 16 bytes each. When there are more, the keys that have used the
        /// least are forgotten. With `concurrent`, requests of further keys pass.
        entries: Bounded<u32, 8, 10_000_000> = Default("100000"),
    }
}

/// The bound of a limit: a rate, or requests in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitBound {
    /// How often requests come.
    Rate {
        /// How many requests in how much time.
        rate: Rate,
        /// How many requests at once after a pause; at least one.
        burst: u32,
    },
    /// How many requests may be in flight at once; at least one.
    InFlight(u32),
}

/// The limit in a few words, such as `10/s by client`.
impl std::fmt::Display for Limit {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.bound {
            LimitBound::Rate { rate, .. } => write!(out, "{rate} by {}", self.key)?,
            LimitBound::InFlight(most) => write!(out, "{most} in flight by {}", self.key)?,
        }
        if self.dry_run {
            out.write_str(", a dry run")?;
        }
        Ok(())
    }
}

impl Resolve for LimitTable {
    type Resolved = Limit;

    fn resolve(&self) -> Option<Limit> {
        let bound = match &self.concurrent.value {
            Some(most) => LimitBound::InFlight(most.resolve()?),
            None => LimitBound::Rate {
                rate: self.rate.value.as_ref()?.resolve()?,
                burst: self.burst.value.as_ref()?.resolve()?,
            },
        };
        self.resolve_with(LimitParts { bound })
    }
}

fn burst_default(limit: &Node) -> Option<String> {
    let RateText(rate) = sibling::<RateText>(limit, "rate")?;
    Some(rate.of_second().to_string())
}

/// How many requests in how much time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Number of requests; at least one.
    pub count: u32,
    /// The time in which they may come.
    pub per: Duration,
}

impl Rate {
    /// Time between two requests at this rate.
    pub fn interval(self) -> Duration {
        self.per / self.count
    }

    /// Requests in a second, rounded down, but at least one.
    fn of_second(self) -> u32 {
        (u64::from(self.count) / self.per.as_secs().max(1)).max(1) as u32
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = UNITS.iter().find(|(_, it)| *it == self.per.as_secs());
        write!(out, "{}/{}", self.count, unit.map_or("s", |(unit, _)| unit))
    }
}

/// The units of time that a rate can have, in seconds.
const UNITS: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];

/// The highest rate, in requests a second.
const MOST_PER_SECOND: u64 = 1_000_000;

/// A rate as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateText(pub Rate);

impl FromText for RateText {
    const FORM: &'static str = "a rate, such as `\"10/s\"`, `\"600/m\"` or `\"5000/h\"`";
    const PATTERN: Option<&'static str> = Some(r"^[0-9]+ */ *(s|m|h|d)$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = |help| Fault::new(format!("`{text}` is not a valid rate")).help(help);
        let form = "write a number, `/` and a unit (s, m, h or d), as in \"10/s\" or \"600/m\"";
        let Some((count, unit)) = text.split_once('/') else {
            return Err(match text.trim().parse::<u32>() {
                Ok(count) => fault(&*format!(
                    "add a unit of time: \"{count}/s\" or \"{count}/m\""
                )),
                Err(_) => fault(form),
            });
        };
        let unit = UNITS.iter().find(|(it, _)| *it == unit.trim());
        let (Some((_, seconds)), Ok(count)) = (unit, count.trim().parse::<u32>()) else {
            return Err(fault(form));
        };
        if count == 0 {
            return Err(Fault::new("a rate of 0 would refuse everything")
                .help("to refuse all requests of a route: answer = { status = 403 }"));
        }
        if u64::from(count) > MOST_PER_SECOND * seconds {
            return Err(
                Fault::new(format!("`{text}` is above the highest possible rate"))
                    .help(format!("the most is {MOST_PER_SECOND}/s")),
            );
        }
        let per = Duration::from_secs(*seconds);
        Ok(Self(Rate { count, per }))
    }
}

resolve_to!(RateText => Rate);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (text, expected) in [
            ("10/s", Some((Duration::from_millis(100), 10))),
            ("600/m", Some((Duration::from_millis(100), 10))),
            ("5000 / h", Some((Duration::from_millis(720), 1))),
            ("1/d", Some((Duration::from_secs(86_400), 1))),
            ("1000000/s", Some((Duration::from_micros(1), 1_000_000))),
            ("1000001/s", None),
            ("4294967295/m", None),
            ("0/s", None),
            ("10", None),
            ("10/", None),
            ("/s", None),
            ("-1/s", None),
            ("10/sec", None),
            ("1.5/s", None),
        ] {
            let read = RateText::from_text(text).ok();
            let read = read.map(|RateText(it)| (it.interval(), it.of_second()));
            assert_eq!(read, expected, "{text:?}");
        }
        for text in ["10/s", "600/m", "5000/h", "1/d"] {
            assert_eq!(RateText::from_text(text).unwrap().0.to_string(), text);
        }
    }
}
