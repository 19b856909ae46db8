//! Whether a stored response may be served, and how (RFC 9111 §4.2, RFC 5861).

use std::time::Duration;

use evenkeel_policy::Instant;

use crate::control::{RequestDirectives, Seconds};
use crate::rules::{ClientDirectives, Rules};

/// For how long a response is fresh, and what holds when it no longer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lifetime {
    /// The age up to which it is fresh (RFC 9111 §4.2.1).
    pub fresh: Seconds,
    /// How old it was when it arrived (`corrected_initial_age`, §4.2.3).
    pub initial_age: Duration,
    /// How long it is served stale while it is validated.
    pub while_revalidate: Seconds,
    /// How long it is served stale where the endpoints fail.
    pub if_error: Seconds,
    /// Whether it is validated before each use: `no-cache`.
    pub always_validate: bool,
    /// Whether no client may ask for it stale (§4.2.4).
    pub forbid_stale: bool,
}

impl Lifetime {
    /// Whether it is ever served without validation.
    pub fn may_be_served(&self) -> bool {
        let longest = self.while_revalidate.max(self.if_error);
        let until = u64::from(self.fresh) + u64::from(longest);
        !self.always_validate && Duration::from_secs(until) > self.initial_age
    }
}

/// When a stored response was generated. Its age grows by itself.
///
/// Invariant: it refers to a clock that never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GeneratedAt {
    /// Nanoseconds on the clock of [`Instant`]; negative if it is older than the clock.
    nanos: i64,
}

impl GeneratedAt {
    /// The time of generation of a response that is `age` old at `now`.
    pub fn before(now: Instant, age: Duration) -> Self {
        let now = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
        let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
        GeneratedAt {
            nanos: now.saturating_sub(age),
        }
    }

    /// Its `current_age` (RFC 9111 §4.2.3).
    pub fn age(self, now: Instant) -> Duration {
        let now = i128::from(now.as_nanos());
        let nanos = now - i128::from(self.nanos);
        Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }
}

/// How a stored response may be used now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usable {
    /// The response is fresh: serve it.
    Fresh,
    /// The response is stale, and the client accepts that: serve it.
    Accepted,
    /// The response is stale: serve it, and validate it meanwhile.
    WhileRevalidating,
    /// Validate it before it is served.
    AfterValidation {
        /// The action if validation fails.
        on_error: OnError,
    },
}

/// The use of a stored response when the endpoints fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// Serve it.
    Serve,
    /// Serve it not: the client gets the error.
    Refuse,
}

/// The state of a stored response at a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// For how long it is fresh.
    pub lifetime: Lifetime,
    /// Its age now.
    pub age: Duration,
    /// Whether a soft purge has made it stale.
    pub is_purged: bool,
}

impl Rules {
    /// How a stored response may be used for a request with these directives.
    pub fn usable(&self, stored: &Stored, asked: &RequestDirectives) -> Usable {
        let ignored = RequestDirectives::default();
        let asked = match self.client_directives {
            ClientDirectives::Honoured => asked,
            ClientDirectives::Ignored => &ignored,
        };
        let Stored { lifetime, age, .. } = *stored;
        let secs = |seconds: Seconds| Duration::from_secs(seconds.into());
        let fresh = secs(lifetime.fresh);
        // RFC 9111 §4.2: fresh while the lifetime is the greater of the two.
        let is_fresh = fresh > age && !stored.is_purged;
        let staleness = age.saturating_sub(fresh);
        let left = fresh.saturating_sub(age);
        let is_old = asked.max_age.is_some_and(|max_age| age > secs(max_age));
        let is_soon_stale = asked.min_fresh.is_some_and(|wanted| left < secs(wanted));
        let must_validate = lifetime.always_validate || asked.no_cache || is_old;
        if !must_validate && !is_soon_stale {
            if is_fresh {
                return Usable::Fresh;
            }
            let is_accepted = asked.max_stale.is_some_and(|most| staleness <= secs(most));
            if is_accepted && !lifetime.forbid_stale && !stored.is_purged {
                return Usable::Accepted;
            }
            if staleness < secs(lifetime.while_revalidate) {
                return Usable::WhileRevalidating;
            }
        }
        Usable::AfterValidation {
            on_error: on_error(stored, asked, staleness),
        }
    }
}

/// RFC 5861 §4, and RFC 9111 §4.2.4 on who forbids it. A client that asked for a
/// response of some age gets none that is older.
fn on_error(stored: &Stored, asked: &RequestDirectives, staleness: Duration) -> OnError {
    let lifetime = &stored.lifetime;
    let secs = |seconds: Seconds| Duration::from_secs(seconds.into());
    let may = match asked.stale_if_error {
        Some(seconds) if !lifetime.forbid_stale => seconds.max(lifetime.if_error),
        _ => lifetime.if_error,
    };
    let is_refused = lifetime.always_validate
        || asked.no_cache
        || asked.min_fresh.is_some()
        || asked.max_age.is_some_and(|most| stored.age > secs(most));
    if staleness < secs(may) && !is_refused {
        OnError::Serve
    } else {
        OnError::Refuse
    }
}

/// Whether a status that an endpoint answers a validation with is a failure of the
/// endpoint (RFC 5861 §4, RFC 9111 §4.3.3).
pub fn is_failure(status: u16) -> bool {
    matches!(status, 500 | 502 | 503 | 504)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::tests::{get, response};
    use crate::storing::Received;

    const NOON: u64 = 784_111_777;
    const DATE: &str = "Date: Sun, 06 Nov 1994 08:49:37 GMT\n";

    /// How a response with these fields may be used after some seconds, for a request with this
    /// `Cache-Control`.
    fn after(rules: &Rules, fields: &str, seconds: u64, asked: &str) -> Usable {
        let arrived = Instant::from_nanos(5_000_000_000);
        let received = Received {
            asked: arrived,
            arrived,
            unix_s: NOON,
        };
        let response = response(200, &format!("{DATE}{fields}"));
        let lifetime = rules.renewed_lifetime(&response.view(), &received);
        let born = GeneratedAt::before(arrived, lifetime.initial_age);
        let stored = Stored {
            lifetime,
            age: born.age(arrived + Duration::from_secs(seconds)),
            is_purged: false,
        };
        let asked = match asked {
            "" => get(""),
            asked => get(&format!("Cache-Control: {asked}")),
        };
        rules.usable(&stored, &RequestDirectives::of(&asked.view()))
    }

    const VALIDATE: Usable = Usable::AfterValidation {
        on_error: OnError::Refuse,
    };
    const OR_STALE: Usable = Usable::AfterValidation {
        on_error: OnError::Serve,
    };

    #[test]
    fn is_fresh_up_to_its_lifetime() {
        let rules = Rules::default();
        for (fields, seconds, usable) in [
            ("Cache-Control: max-age=10", 0, Usable::Fresh),
            ("Cache-Control: max-age=10", 9, Usable::Fresh),
            ("Cache-Control: max-age=10", 10, VALIDATE),
            ("Cache-Control: max-age=10\nAge: 4", 5, Usable::Fresh),
            ("Cache-Control: max-age=10\nAge: 4", 6, VALIDATE),
            ("Cache-Control: max-age=0", 0, VALIDATE),
            ("Cache-Control: max-age=10, no-cache", 0, VALIDATE),
            ("Cache-Control: s-maxage=10, max-age=0", 9, Usable::Fresh),
            ("Cache-Control: s-maxage=0, max-age=10", 0, VALIDATE),
            (
                "Cache-Control: max-age=99999999999",
                4_000_000_000,
                Usable::Fresh,
            ),
        ] {
            assert_eq!(
                after(&rules, fields, seconds, ""),
                usable,
                "{fields} {seconds}"
            );
        }
    }

    /// RFC 9111 §5.2.1.
    #[test]
    fn requests_ask_for_what_is_fresher_or_staler() {
        let rules = Rules::default();
        for (fields, seconds, asked, usable) in [
            ("max-age=10", 5, "max-age=5", Usable::Fresh),
            ("max-age=10", 5, "max-age=4", VALIDATE),
            ("max-age=10", 5, "max-age=0", VALIDATE),
            ("max-age=10", 0, "max-age=0", Usable::Fresh),
            ("max-age=10", 5, "min-fresh=5", Usable::Fresh),
            ("max-age=10", 5, "min-fresh=6", VALIDATE),
            ("max-age=10", 5, "no-cache", VALIDATE),
            ("max-age=10", 15, "max-stale=5", Usable::Accepted),
            ("max-age=10", 16, "max-stale=5", VALIDATE),
            ("max-age=10", 9999, "max-stale", Usable::Accepted),
            ("max-age=10", 12, "max-stale=5, max-age=11", VALIDATE),
            // §4.2.4: who may be served nothing stale.
            ("max-age=10, must-revalidate", 15, "max-stale=5", VALIDATE),
            ("max-age=10, proxy-revalidate", 15, "max-stale=5", VALIDATE),
            ("s-maxage=10", 15, "max-stale=5", VALIDATE),
            ("max-age=10, no-cache", 5, "max-stale=5", VALIDATE),
        ] {
            let fields = format!("Cache-Control: {fields}");
            let found = after(&rules, &fields, seconds, asked);
            assert_eq!(found, usable, "{fields} {seconds} {asked}");
        }
        let rules = Rules {
            client_directives: ClientDirectives::Ignored,
            ..Rules::default()
        };
        for asked in ["no-cache", "max-age=0", "min-fresh=100"] {
            let found = after(&rules, "Cache-Control: max-age=10", 5, asked);
            assert_eq!(found, Usable::Fresh, "{asked}");
        }
        assert_eq!(
            after(&rules, "Cache-Control: max-age=1", 5, "max-stale"),
            VALIDATE
        );
    }

    /// RFC 5861, and RFC 9111 §4.2.4.
    #[test]
    fn is_served_stale_where_that_is_allowed() {
        let none = Rules::default();
        let rules = Rules {
            stale_while_revalidate: Duration::from_secs(5),
            stale_if_error: Duration::from_secs(20),
            ..Rules::default()
        };
        let swr = Usable::WhileRevalidating;
        for (rules, control, seconds, usable) in [
            (&none, "max-age=10, stale-while-revalidate=5", 14, swr),
            (&none, "max-age=10, stale-while-revalidate=5", 15, VALIDATE),
            (&none, "max-age=10, stale-if-error=5", 14, OR_STALE),
            (&none, "max-age=10, stale-if-error=5", 15, VALIDATE),
            (&rules, "max-age=10", 14, swr),
            (&rules, "max-age=10", 15, OR_STALE),
            (&rules, "max-age=10", 29, OR_STALE),
            (&rules, "max-age=10", 30, VALIDATE),
            (&rules, "max-age=10, stale-if-error=0", 16, VALIDATE),
            (
                &rules,
                "max-age=10, stale-if-error=0, stale-while-revalidate=0",
                11,
                VALIDATE,
            ),
            (&rules, "max-age=10, must-revalidate", 12, VALIDATE),
            (&rules, "max-age=10, proxy-revalidate", 12, VALIDATE),
            (&rules, "s-maxage=10", 12, VALIDATE),
            (&rules, "max-age=10, no-cache", 12, VALIDATE),
            (&rules, "s-maxage=10, stale-if-error=60", 12, VALIDATE),
        ] {
            let found = after(rules, &format!("Cache-Control: {control}"), seconds, "");
            assert_eq!(found, usable, "{control} {seconds}");
        }
        let asked =
            |control: &str, asked| after(&none, &format!("Cache-Control: {control}"), 15, asked);
        assert_eq!(asked("max-age=10", "stale-if-error=6"), OR_STALE);
        assert_eq!(asked("max-age=10", "stale-if-error=5"), VALIDATE);
        assert_eq!(asked("s-maxage=10", "stale-if-error=6"), VALIDATE);
        // A client that asks for a newer response gets no older one.
        let asked = |asked| after(&rules, "Cache-Control: max-age=10", 12, asked);
        assert_eq!(asked("no-cache"), VALIDATE);
        assert_eq!(asked("max-age=5"), VALIDATE);
    }

    #[test]
    fn a_soft_purge_makes_it_stale() {
        let rules = Rules::default();
        let lifetime = Lifetime {
            fresh: 100,
            ..Lifetime::default()
        };
        let mut stored = Stored {
            lifetime,
            age: Duration::from_secs(1),
            is_purged: true,
        };
        let usable = |stored: &Stored| rules.usable(stored, &RequestDirectives::default());
        assert_eq!(usable(&stored), VALIDATE);
        stored.lifetime.while_revalidate = 5;
        assert_eq!(usable(&stored), Usable::WhileRevalidating);
        stored.lifetime.while_revalidate = 0;
        stored.lifetime.if_error = 5;
        assert_eq!(usable(&stored), OR_STALE);
    }

    #[test]
    fn ages_reach_back_beyond_the_clock() {
        let now = Instant::from_nanos(3_000_000_000);
        let born = GeneratedAt::before(now, Duration::from_secs(3600));
        assert_eq!(born.age(now), Duration::from_secs(3600));
        assert_eq!(
            born.age(now + Duration::from_secs(1)),
            Duration::from_secs(3601)
        );
        let born = GeneratedAt::before(now, Duration::ZERO);
        assert_eq!(born.age(Instant::from_nanos(0)), Duration::ZERO);
        let oldest = GeneratedAt::before(now, Duration::MAX);
        assert!(oldest.age(now) > Duration::from_secs(9_000_000_000));
    }
}
