//! The changes that another configuration would make to the running process, and their costs.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use crate::config::{Change, ChangeKind, Config, Subject, diff};
use crate::discovery::OperatorChange;
use crate::metrics::quantity::counted;
use crate::observe::figures::{EndpointFigures, Figures, UpstreamFigures};

/// How many endpoints a line names.
const NAMED: usize = 3;

/// A line for each change to the configuration `now`, with its cost by the present figures. Then
/// a line for each list that operators have changed.
///
/// `now` has the endpoints that it would begin with. May take long where there are thousands of
/// routes.
pub(super) fn with_costs(
    before: &Config,
    now: &Config,
    figures: &Figures,
    by_operators: &[OperatorChange],
) -> String {
    let changes = diff(before, now);
    let lists = Lists::new(now, figures);
    let mut text = String::new();
    if changes.is_empty() {
        text += "nothing changes\n";
    }
    for change in &changes {
        let cost = cost(change, figures, &lists);
        let cost = cost.map(|it| format!(" ({it})")).unwrap_or_default();
        // A text takes all that is written to it.
        let _ = writeln!(text, "{change}{cost}");
    }
    lists.say_unnamed(&changes, &mut text);
    for change in by_operators {
        let _ = writeln!(text, "{change}");
    }
    text
}

/// The endpoints of an upstream now, and whether each would have a limit then; `None`
/// where it would not be there.
type Fates<'a> = HashMap<&'a str, (&'a EndpointFigures, Option<HasLimit>)>;

#[derive(Clone, Copy, PartialEq, Eq)]
struct HasLimit(bool);

/// The lists of endpoints of upstreams that stay.
struct Lists<'a>(Vec<(&'a str, Fates<'a>)>);

impl<'a> Lists<'a> {
    fn new(now: &Config, figures: &'a Figures) -> Self {
        let then = now.upstreams.iter().map(|it| (&*it.name, it));
        let then: HashMap<_, _> = then.collect();
        let staying = figures.upstreams.iter().filter_map(|upstream| {
            let then = then.get(&*upstream.name)?.endpoints.iter();
            let then = then.map(|it| (&*it.name, HasLimit(it.max_in_flight.is_some())));
            let then: HashMap<_, _> = then.collect();
            let fates = upstream.endpoints.iter().map(|it| {
                let name = it.name.as_str();
                (name, (it, then.get(name).copied()))
            });
            Some((upstream.name.as_str(), fates.collect()))
        });
        Lists(staying.collect())
    }

    fn get(&self, upstream: &str) -> Option<&Fates<'a>> {
        let found = self.0.iter().find(|(name, _)| *name == upstream);
        found.map(|(_, fates)| fates)
    }

    /// Adds lines for endpoints that are not written themselves: a name, a service or a
    /// file stood for them.
    fn say_unnamed(&self, changes: &[Change], text: &mut String) {
        let named = changes.iter().filter_map(|it| match &it.of {
            Subject::Endpoint { upstream, endpoint } => Some((&**upstream, &**endpoint)),
            _ => None,
        });
        let named: HashSet<(&str, &str)> = named.collect();
        for (upstream, fates) in &self.0 {
            let fates = fates.iter();
            let mut fates: Vec<_> = fates
                .filter(|(name, _)| !named.contains(&(*upstream, **name)))
                .map(|(_, fate)| *fate)
                .collect();
            fates.sort_unstable_by(|a, b| a.0.name.cmp(&b.0.name));
            let leaving = fates.iter().filter(|(_, then)| then.is_none());
            let leaving: Vec<_> = leaving.map(|it| it.0).collect();
            if !leaving.is_empty() {
                let (endpoints, cost) = (listed(&leaving), leaving_cost(&leaving));
                let _ = writeln!(text, "upstream {upstream}: {endpoints} removed ({cost})");
            }
            let anew = fates.iter().filter(|(it, then)| is_anew(it, *then));
            let anew: Vec<_> = anew.map(|it| it.0).collect();
            if !anew.is_empty() {
                let endpoints = listed(&anew);
                let cost = idle_cost(&anew).map(|it| format!(" ({it})"));
                let cost = cost.unwrap_or_default();
                let _ = writeln!(
                    text,
                    "upstream {upstream}: max_in_flight is added or removed: {endpoints} \
                     affected{cost}"
                );
            }
        }
    }
}

/// Whether an endpoint that stays begins with new connections. Connections to an endpoint with a
/// limit belong to all workers, others to one worker each.
fn is_anew(now: &EndpointFigures, then: Option<HasLimit>) -> bool {
    then.is_some_and(|it| it.0 != now.max_in_flight.is_some())
}

/// How many there are, and some of their names.
fn listed(endpoints: &[&EndpointFigures]) -> String {
    let names: Vec<_> = endpoints.iter().take(NAMED).map(|it| &*it.name).collect();
    let more = match endpoints.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let is = if endpoints.len() == 1 { "is" } else { "are" };
    let count = counted(endpoints.len() as u64, "endpoint");
    format!("{count} ({}{more}) {is}", names.join(", "))
}

/// The effect on open connections and stored responses; `None` where they stay as they are.
fn cost(change: &Change, figures: &Figures, lists: &Lists<'_>) -> Option<String> {
    let is_removed = change.kind == ChangeKind::Removed;
    match &change.of {
        Subject::Listener(name) if is_removed || is_of(&change.kind, "bind") => {
            let listener = figures.listeners.iter().find(|it| it.name == *name)?;
            Some(match listener.open {
                0 => "no connection is open".to_owned(),
                open => format!(
                    "{}: each is closed after its exchanges in flight",
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
            let known = lists.get(name)?.get(&**endpoint);
            match (&change.kind, known) {
                (ChangeKind::Removed, Some((known, None))) => Some(leaving_cost(&[known])),
                (ChangeKind::Setting { key, .. }, Some((known, then)))
                    if key == "max_in_flight" && is_anew(known, *then) =>
                {
                    idle_cost(&[known])
                }
                (ChangeKind::Added, None) => Some("it opens new connections".to_owned()),
                _ => None,
            }
        }
        // As `cache::caches` has it.
        Subject::Cache(_) if is_removed => Some("its stored responses are dropped".to_owned()),
        Subject::Cache(_) if is_of(&change.kind, "memory") => Some("it starts empty".to_owned()),
        Subject::Process
        | Subject::Route(_)
        | Subject::Listener(_)
        | Subject::Upstream(_)
        | Subject::Cache(_) => None,
    }
}

fn leaving_cost(endpoints: &[&EndpointFigures]) -> String {
    let in_flight: u32 = endpoints.iter().map(|it| it.in_flight).sum();
    let idle: u64 = endpoints.iter().map(|it| it.idle).sum();
    format!(
        "{in_flight} in flight go on; {} closed",
        counted(idle, "idle connection")
    )
}

/// `None` where no connection is idle.
fn idle_cost(endpoints: &[&EndpointFigures]) -> Option<String> {
    let idle: u64 = endpoints.iter().map(|it| it.idle).sum();
    (idle > 0).then(|| format!("{} closed", counted(idle, "idle connection")))
}

/// Whether it is the option with this key that changes.
fn is_of(kind: &ChangeKind, option: &str) -> bool {
    matches!(kind, ChangeKind::Setting { key, .. } if key == option)
}

fn upstream<'a>(figures: &'a Figures, name: &str) -> Option<&'a UpstreamFigures> {
    figures.upstreams.iter().find(|it| it.name == name)
}
