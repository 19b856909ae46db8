//! What another configuration would change in the running process, and what that costs.

use std::fmt::Write;

use crate::config::{Change, ChangeKind, Config, Subject, diff};
use crate::discovery::OperatorChange;
use crate::metrics::quantity::counted;
use crate::observe::figures::{EndpointFigures, Figures, UpstreamFigures};

/// A line for each change to the configuration `now`, with its cost by the figures of
/// this moment; then one for each list that operators have changed. May take long where
/// there are thousands of routes.
pub(super) fn with_costs(
    before: &Config,
    now: &Config,
    figures: &Figures,
    by_operators: &[OperatorChange],
) -> String {
    let changes = diff(before, now);
    let mut text = String::new();
    if changes.is_empty() {
        text += "nothing changes\n";
    }
    for change in changes {
        let cost = cost(&change, figures);
        let cost = cost.map(|it| format!(" ({it})")).unwrap_or_default();
        // A text takes all that is written to it.
        let _ = writeln!(text, "{change}{cost}");
    }
    for change in by_operators {
        let _ = writeln!(text, "{change}");
    }
    text
}

/// What happens to what is open; `None` where it stays as it is.
fn cost(change: &Change, figures: &Figures) -> Option<String> {
    let is_removed = change.kind == ChangeKind::Removed;
    match &change.of {
        Subject::Listener(name) if is_removed || is_bind(&change.kind) => {
            let listener = figures.listeners.iter().find(|it| it.name == *name)?;
            Some(match listener.open {
                0 => "no connection is open".to_owned(),
                open => format!(
                    "{}: each is closed after what it has in flight",
                    counted(open, "open connection")
                ),
            })
        }
        Subject::Upstream(name) if is_removed => {
            let upstream = upstream(figures, name)?;
            let in_flight: u32 = upstream.endpoints.iter().map(|it| it.in_flight).sum();
            let idle: u64 = upstream.endpoints.iter().map(|it| it.idle).sum();
            Some(format!(
                "{} in flight and {} waiting go on; {} closed",
                in_flight,
                upstream.waiting,
                counted(idle, "idle connection")
            ))
        }
        Subject::Endpoint {
            upstream: name,
            endpoint,
        } => {
            let known = upstream(figures, name)?.endpoints.iter();
            let known = known.clone().find(|it| it.name == *endpoint);
            match (&change.kind, known) {
                (ChangeKind::Removed, Some(known)) => Some(leaving(known)),
                (ChangeKind::Added, None) => Some("its connections are new".to_owned()),
                _ => None,
            }
        }
        Subject::Process | Subject::Route(_) | Subject::Listener(_) | Subject::Upstream(_) => None,
    }
}

fn leaving(endpoint: &EndpointFigures) -> String {
    format!(
        "{} in flight go on; {} closed",
        endpoint.in_flight,
        counted(endpoint.idle, "idle connection")
    )
}

fn is_bind(kind: &ChangeKind) -> bool {
    matches!(kind, ChangeKind::Setting { key, .. } if key == "bind")
}

fn upstream<'a>(figures: &'a Figures, name: &str) -> Option<&'a UpstreamFigures> {
    figures.upstreams.iter().find(|it| it.name == name)
}
