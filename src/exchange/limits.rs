//! Checks requests against the limits of their route: they pass, wait or are refused.
//!
//! A request that passes does not wait, and allocates nothing.

use std::fmt::Write;
use std::future::pending;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::limit::Quota;

use super::answer;
use super::request_key::{Keyed, with_key};
use super::variables::Values;
use super::{Exchange, Gone, Outcome, box_cold};
use crate::config::{LimitBound, Route};
use crate::limits::{InFlight, LimitVerdict, RouteLimit};
use crate::metrics::Counter;
use crate::metrics::end::{End, Failure};
use crate::net::clock;
use crate::observe::counters::LimitCounters;

/// The verdict of the route's limits on a request.
#[derive(Debug, Clone, Copy)]
enum RouteVerdict {
    /// Passes at once.
    Passes,
    /// Passes after this time.
    Waits(Duration),
    /// Refused.
    Refused {
        /// Index of the limit among those of the route.
        limit: usize,
        /// The remaining quota of its key.
        standing: Quota,
        /// Time until it would pass.
        retry_after: Duration,
    },
}

/// Checks a request against the limits of its route. Returns a future where the request does not
/// pass at once: it waits, or is refused with the returned outcome.
///
/// # Cancellation
/// Safe: a request that leaves has still used its turn.
pub(crate) fn pending_check<'e>(
    exchange: &'e mut Exchange<'_>,
    route: usize,
) -> Option<Pin<Box<dyn Future<Output = Option<Outcome>> + 'e>>> {
    if exchange.context.config().routes[route].limits.is_empty() {
        return None;
    }
    match judge(exchange, route) {
        RouteVerdict::Passes => None,
        judged => Some(box_cold(apply(exchange, judged))),
    }
}

/// Checks a request against the limits of its route, in order. The limits before a refusing one
/// have counted it.
fn judge(exchange: &mut Exchange<'_>, route: usize) -> RouteVerdict {
    let context = exchange.context;
    let limits = &context.generation().limits[route];
    let now = exchange.progress.arrived();
    let mut longest = Duration::ZERO;
    let mut is_over_dry_run = false;
    for (index, limit) in limits.iter().enumerate() {
        let room = &mut context.scratch.borrow_mut();
        let values = Values::of(exchange);
        let address = exchange.client.remote().address;
        let taken = with_key(Keyed::of(&limit.settings), &values, address, room, |key| {
            limit.ask(key, now)
        });
        match taken {
            None | Some(LimitVerdict::Passes) => {}
            Some(LimitVerdict::Counts(place)) => {
                exchange.rare().in_flight.push(InFlight::new(limit, place));
            }
            Some(_) if limit.settings.dry_run => is_over_dry_run = true,
            Some(LimitVerdict::Waits(wait)) => longest = longest.max(wait),
            Some(LimitVerdict::Refused {
                standing,
                retry_after,
            }) => {
                count(exchange, route, |it| &it.refused);
                return RouteVerdict::Refused {
                    limit: index,
                    standing,
                    retry_after,
                };
            }
        }
    }
    if is_over_dry_run {
        count(exchange, route, |it| &it.dry_run);
    }
    if longest > Duration::ZERO {
        count(exchange, route, |it| &it.delayed);
        RouteVerdict::Waits(longest)
    } else {
        count(exchange, route, |it| &it.allowed);
        RouteVerdict::Passes
    }
}

fn count(exchange: &Exchange<'_>, route: usize, counter: impl Fn(&LimitCounters) -> &Counter) {
    let counters = &exchange.context.generation().counters.limits;
    if let Some(counters) = &counters[route] {
        counter(counters).add(1);
    }
}

/// Has a request wait for its turn, or refuses it. `None` where it continues.
async fn apply(exchange: &mut Exchange<'_>, judged: RouteVerdict) -> Option<Outcome> {
    let end = match judged {
        RouteVerdict::Passes => return None,
        RouteVerdict::Waits(wait) => {
            exchange.set_timeout(wait);
            match exchange.while_client_stays(pending::<()>()).await {
                Err(Gone::Client) => Failure::ClientGone,
                _ => exchange.context.cut_off()?,
            }
        }
        RouteVerdict::Refused {
            limit,
            standing,
            retry_after,
        } => return Some(refuse(exchange, limit, standing, retry_after).await),
    };
    Some(answer::refuse(exchange, End::Failure(end), None).await)
}

/// Refuses a request that came too early.
async fn refuse(
    exchange: &mut Exchange<'_>,
    limit: usize,
    standing: Quota,
    retry_after: Duration,
) -> Outcome {
    let end = End::Failure(Failure::RateLimited);
    let route = exchange.progress.figures.route.unwrap_or_default() as usize;
    let refusing = exchange.context.generation().limits[route][limit].clone();
    let mut headers = Vec::new();
    // Otherwise the common code writes these fields.
    if !refusing.settings.headers {
        headers.push(("RateLimit-Policy".to_owned(), policy(limit, &refusing)));
        headers.push((
            "RateLimit".to_owned(),
            service_limit(limit, &refusing, standing),
        ));
    }
    let retry_after_s = u32::try_from(whole_seconds(retry_after)).unwrap_or(u32::MAX);
    let status = refusing.settings.status;
    answer::refuse_with(exchange, end, status, "", &headers, Some(retry_after_s)).await
}

impl Exchange<'_> {
    /// Whether responses have the remaining quotas of the route's limits.
    pub(super) fn tells_limits(&self) -> bool {
        let has_some = |it: &Route| it.limits.iter().any(|it| it.headers);
        self.route().is_some_and(has_some) && !self.side.is_store()
    }

    /// Appends the lines with the remaining quotas of the route's limits.
    pub(super) fn push_limit_fields(&self, out: &mut Vec<u8>) {
        if !self.tells_limits() {
            return;
        }
        let route = self.progress.figures.route.unwrap_or_default();
        let limits = &self.context.generation().limits[route as usize];
        let now = clock::now();
        let (mut policies, mut standings) = (String::new(), String::new());
        for (index, limit) in limits.iter().enumerate() {
            let address = self.client.remote().address;
            let standing = standing_of(limit, &Values::of(self), address, now);
            if let (true, Some(standing)) = (limit.settings.headers, standing) {
                for (list, item) in [
                    (&mut policies, policy(index, limit)),
                    (&mut standings, service_limit(index, limit, standing)),
                ] {
                    if !list.is_empty() {
                        list.push_str(", ");
                    }
                    list.push_str(&item);
                }
            }
        }
        if !policies.is_empty() {
            let lines = format!("RateLimit-Policy: {policies}\r\nRateLimit: {standings}\r\n");
            out.extend_from_slice(lines.as_bytes());
        }
    }
}

/// A limit's item in `RateLimit-Policy`: its quota, and the seconds in which that refills
/// (draft-ietf-httpapi-ratelimit-headers-11).
fn policy(index: usize, limit: &RouteLimit) -> String {
    let name = policy_name(index);
    match limit.settings.bound {
        LimitBound::Rate { burst, .. } => {
            let window = whole_seconds(limit.window().unwrap_or_default());
            format!("{name};q={burst};w={window}")
        }
        LimitBound::InFlight(most) => format!("{name};q={most};qu=\"concurrent-requests\""),
    }
}

/// A limit's item in `RateLimit`: the remaining quota, and the seconds until the next refill.
/// They end no later than `Retry-After`, as §6 of the draft requires.
fn service_limit(index: usize, limit: &RouteLimit, standing: Quota) -> String {
    let Quota { remaining, next } = standing;
    let mut item = format!("{};r={remaining}", policy_name(index));
    if let LimitBound::Rate { .. } = limit.settings.bound {
        let _ = write!(item, ";t={}", whole_seconds(next));
    }
    item
}

fn policy_name(index: usize) -> String {
    let mut name = String::from("\"default");
    if index > 0 {
        let _ = write!(name, "-{}", index + 1);
    }
    name.push('"');
    name
}

/// Rounded up; at least one.
fn whole_seconds(duration: Duration) -> u64 {
    (duration.as_secs() + u64::from(duration.subsec_nanos() > 0)).max(1)
}

/// The remaining quota of a request's key; `None` where the key is empty.
pub(crate) fn standing_of(
    limit: &RouteLimit,
    values: &Values<'_>,
    address: Option<IpAddr>,
    now: Instant,
) -> Option<Quota> {
    let standing = |key: &[u8]| limit.standing(key, now);
    let keyed = Keyed::of(&limit.settings);
    with_key(keyed, values, address, &mut Vec::new(), standing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up() {
        for (ms, expected) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2)] {
            assert_eq!(whole_seconds(Duration::from_millis(ms)), expected, "{ms}");
        }
        assert_eq!(policy_name(0), "\"default\"");
        assert_eq!(policy_name(1), "\"default-2\"");
    }
}
