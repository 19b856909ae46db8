//! Random number and time of a request; they stay the same for the whole exchange.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::time::SystemTime;

/// The random number and the time of an exchange. Each is taken when a route first asks for it,
/// so that other exchanges pay nothing.
///
/// Small, as every exchange in flight has one.
#[derive(Debug, Clone, Default)]
pub struct Moment {
    draw: Cell<Option<NonZeroU32>>,
    /// Seconds since 1970, up to the year 2106.
    unix_seconds: Cell<Option<NonZeroU32>>,
}

impl Moment {
    /// A random number.
    pub fn draw(&self) -> u64 {
        first(&self.draw, || fastrand::u32(..))
    }

    /// The time, in seconds since 1970.
    pub fn unix_seconds(&self) -> i64 {
        let seconds = first(&self.unix_seconds, || {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            since.map_or(0, |it| u32::try_from(it.as_secs()).unwrap_or(u32::MAX))
        });
        seconds as i64
    }
}

fn first(known: &Cell<Option<NonZeroU32>>, take: fn() -> u32) -> u64 {
    let value = known.get().unwrap_or_else(|| {
        let value = NonZeroU32::new(take()).unwrap_or(NonZeroU32::MIN);
        known.set(Some(value));
        value
    });
    value.get().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_same_whenever_it_is_asked() {
        let (one, other) = (Moment::default(), Moment::default());
        assert_eq!(one.draw(), one.draw());
        assert_eq!(one.draw(), one.clone().draw());
        let others: Vec<_> = (0..4).map(|_| Moment::default().draw()).collect();
        assert!(others.iter().any(|it| *it != one.draw()), "{others:?}");
        assert_eq!(
            one.unix_seconds(),
            other.unix_seconds().min(one.unix_seconds())
        );
        assert!(one.unix_seconds() > 1_700_000_000);
    }
}
