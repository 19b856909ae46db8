//! Changes of endpoints as lines of the event log.

use evenkeel_policy::endpoint::Admin;
use evenkeel_policy::health::{Change, ChangeKind};

/// Writes a change to the event log: as an error where no endpoint is left.
pub(crate) fn log_change(upstream: &str, endpoint: &str, change: &Change, detail: Option<&str>) {
    let line = change_line(upstream, endpoint, change, detail);
    let Change {
        up, count, waiting, ..
    } = *change;
    let state = change_word(change.kind);
    macro_rules! log {
        ($level:ident) => {
            tracing::$level!(upstream, endpoint, state, up, count, waiting, "{line}")
        };
    }
    match (is_loss(change), up) {
        (true, 0) => log!(error),
        (true, _) => log!(warn),
        (false, _) => log!(info),
    }
}

/// The new state of the endpoint, in a word.
fn change_word(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Up | ChangeKind::Reachable | ChangeKind::Readmitted => "up",
        ChangeKind::Down => "down",
        ChangeKind::Unreachable => "unreachable",
        ChangeKind::Ejected { .. } => "ejected",
        ChangeKind::Admin(Admin::Ready) => "ready",
        ChangeKind::Admin(Admin::Drain) => "draining",
        ChangeKind::Admin(Admin::Stop) => "stopped",
    }
}

/// A change in words.
///
/// `detail` is the cause: `3 failed probes: status 503` for an endpoint that is
/// down, `2 probes, 12 ms` for one that is up, the error for one that can't be
/// reached. For an operator's wish it is who the operator was.
pub(crate) fn change_line(
    upstream: &str,
    endpoint: &str,
    change: &Change,
    detail: Option<&str>,
) -> String {
    let after = |what: &str, otherwise: &str| match detail {
        Some(detail) => format!("is {what} after {detail}"),
        None => format!("is {what}: {otherwise}"),
    };
    let by = |what: &str| format!("{what} {}", detail.unwrap_or("by the operator"));
    let what = match change.kind {
        ChangeKind::Up => after("up", "its probes pass"),
        ChangeKind::Down => after("down", "its probes fail"),
        ChangeKind::Reachable => "is reachable again".into(),
        ChangeKind::Unreachable => match detail {
            Some(detail) => format!("can't be reached: {detail}"),
            None => "can't be reached".into(),
        },
        ChangeKind::Ejected {
            errors: 1,
            duration,
        } => format!("is out for {duration:?} after an error"),
        ChangeKind::Ejected { errors, duration } => {
            format!("is out for {duration:?} after {errors} errors in a row")
        }
        ChangeKind::Readmitted => "is back: its trial exchange succeeded".into(),
        ChangeKind::Admin(Admin::Ready) => by("is made ready"),
        ChangeKind::Admin(Admin::Drain) => by("is drained"),
        ChangeKind::Admin(Admin::Stop) => by("is stopped"),
    };
    let Change {
        up, count, waiting, ..
    } = change;
    let left = if is_loss(change) { " left" } else { "" };
    let waiting = match waiting {
        0 => String::new(),
        waiting => format!(", {waiting} waiting"),
    };
    format!("upstream {upstream}: endpoint {endpoint} {what} ({up} of {count}{left}{waiting})")
}

/// Whether the endpoint gets nothing new from now on.
fn is_loss(change: &Change) -> bool {
    match change.kind {
        ChangeKind::Down | ChangeKind::Unreachable | ChangeKind::Ejected { .. } => true,
        ChangeKind::Admin(admin) => admin != Admin::Ready,
        ChangeKind::Up | ChangeKind::Reachable | ChangeKind::Readmitted => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines() {
        let ejected = |errors, seconds| ChangeKind::Ejected {
            errors,
            duration: Duration::from_secs(seconds),
        };
        for (kind, detail, up, waiting, expected) in [
            (
                ChangeKind::Down,
                Some("3 failed probes: connection refused"),
                2,
                14,
                "is down after 3 failed probes: connection refused (2 of 3 left, 14 waiting)",
            ),
            (
                ChangeKind::Down,
                None,
                0,
                0,
                "is down: its probes fail (0 of 3 left)",
            ),
            (
                ChangeKind::Up,
                Some("2 probes, 12 ms"),
                3,
                0,
                "is up after 2 probes, 12 ms (3 of 3)",
            ),
            (
                ejected(5, 2),
                None,
                2,
                0,
                "is out for 2s after 5 errors in a row (2 of 3 left)",
            ),
            (
                ejected(1, 16),
                None,
                2,
                0,
                "is out for 16s after an error (2 of 3 left)",
            ),
            (
                ChangeKind::Readmitted,
                None,
                3,
                0,
                "is back: its trial exchange succeeded (3 of 3)",
            ),
            (
                ChangeKind::Unreachable,
                Some("connection refused"),
                2,
                1,
                "can't be reached: connection refused (2 of 3 left, 1 waiting)",
            ),
            (
                ChangeKind::Reachable,
                None,
                3,
                1,
                "is reachable again (3 of 3, 1 waiting)",
            ),
            (
                ChangeKind::Admin(Admin::Drain),
                None,
                2,
                0,
                "is drained by the operator (2 of 3 left)",
            ),
            (
                ChangeKind::Admin(Admin::Ready),
                Some("by the operator, over the control socket as uid 0"),
                3,
                0,
                "is made ready by the operator, over the control socket as uid 0 (3 of 3)",
            ),
        ] {
            let change = Change {
                kind,
                up,
                count: 3,
                waiting,
            };
            let line = change_line("app", "10.0.0.1:8080", &change, detail);
            assert_eq!(
                line,
                format!("upstream app: endpoint 10.0.0.1:8080 {expected}")
            );
        }
    }
}
