//! Explanations as text for people.

use std::time::Duration;

use super::{
    AccessStep, ActionStep, AnswerStep, CacheStep, ConditionStep, EndpointStep, Explanation,
    FilesStep, LearnedStep, NowStep, ReadingStep, RedirectStep, Refused, RelayedStep, RouteStep,
    SourceStep, UpstreamStep, WorkerStep,
};
use crate::config::Colour;
use crate::metrics::quantity::counted;

/// Lines of text, with colours where the terminal has any.
struct Page {
    out: String,
    colour: Colour,
    /// The subject of the explanation.
    subject: &'static str,
}

/// Most endpoints that left and are shown.
const MOST_ABSENT: usize = 8;

/// The meaning of a piece of text, for its colour.
#[derive(Clone, Copy)]
enum Tone {
    Good,
    Bad,
    Strong,
    Faint,
}

/// The explanation as lines of text.
pub fn render(explanation: &Explanation, colour: Colour) -> String {
    let mut page = Page {
        out: String::new(),
        colour,
        subject: if explanation.is_connection {
            "the connection"
        } else {
            "the request"
        },
    };
    let title = page.paint(Tone::Strong, &explanation.request);
    let of = if explanation.live {
        "the running process"
    } else {
        "the configuration"
    };
    page.line(&format!("{title} from {}, by {of}", explanation.client));
    page.line("");
    let listener = &explanation.listener;
    let name = page.paint(Tone::Strong, &listener.name);
    page.line(&format!(
        "listener {name} ({}): {}",
        listener.bind, listener.why
    ));
    if let Some(RelayedStep { client, scheme }) = &explanation.relayed {
        page.line(&format!(
            "  {} is trusted: the client is {client}, by {scheme}",
            explanation.client
        ));
    }
    if !explanation.not_believed.is_empty() {
        let claims = explanation.not_believed.join(", ");
        let why = match explanation.relayed {
            Some(_) => "no header names it".to_owned(),
            None => format!("{} is not a trusted proxy here", explanation.client),
        };
        page.line(&format!("  ignored: {claims}, because {why}"));
    }
    if explanation.draining {
        let draining = page.paint(Tone::Bad, "draining");
        page.line(&format!(
            "  {draining}: open connections are served, new ones are refused"
        ));
    }
    for route in &explanation.routes {
        page.route(route);
    }
    for name in &explanation.not_reached {
        let line = page.paint(Tone::Faint, &format!("route {name}: not reached"));
        page.line(&line);
    }
    page.readings(&explanation.readings);
    if let Some(access) = &explanation.access {
        page.access(access);
    }
    for limit in &explanation.limits {
        page.line(&format!("limit: {limit}"));
    }
    for bound in &explanation.bandwidth {
        page.line(&format!("bandwidth: {}", printable(bound)));
    }
    if let Some(auth) = &explanation.auth {
        page.line(&format!("auth: {}", printable(auth)));
    }
    if let Some(cache) = &explanation.cache {
        page.cache(cache);
    }
    if let Some(compression) = &explanation.compression {
        page.line(&format!("compression: {compression}"));
    }
    for error_page in &explanation.error_pages {
        page.line(&format!("error page for {error_page}"));
    }
    if let Some(mirror) = &explanation.mirror {
        page.line(&format!("mirror: {mirror}"));
    }
    match &explanation.action {
        None => {}
        Some(ActionStep::Answer(AnswerStep {
            status,
            content_type,
            body_bytes,
            file,
            headers,
        })) => {
            let from = match file {
                Some(path) => format!(" from {path}"),
                None => String::new(),
            };
            page.line(&format!(
                "answer: {status}, {body_bytes} bytes of {content_type}{from}"
            ));
            for (name, value) in headers {
                page.line(&format!("  {name}: {value}"));
            }
        }
        Some(ActionStep::Redirect(RedirectStep { status, location })) => {
            page.line(&format!("redirect: {status} to {location}"));
            if explanation.is_redirected_to_https {
                page.line("  by `redirect_to_https` of the listener, before any route");
            }
        }
        // Its line or its path alone has decided.
        Some(ActionStep::Files(_)) if explanation.refused.is_some() => {}
        Some(ActionStep::Files(step)) => page.files(step),
        Some(ActionStep::Upstream(step)) => page.upstream(step),
    }
    if !explanation.response_edits.is_empty() {
        page.line("the response is changed:");
    }
    for edit in &explanation.response_edits {
        page.line(&format!("  {edit}"));
    }
    if let Some(refused) = &explanation.refused {
        page.refused("refused", refused);
    }
    page.out
}

impl Page {
    fn access(&mut self, access: &AccessStep) {
        let (tone, word) = if access.is_allowed {
            (Tone::Good, "allowed")
        } else {
            (Tone::Bad, "denied")
        };
        let word = self.paint(tone, word);
        self.line(&format!("access: {word}, because {}", access.why));
        for (key, list) in [("allow", &access.allow), ("deny", &access.deny)] {
            if let Some(list) = list {
                self.line(&format!("  {key}: {}", printable(&list.join(", "))));
            }
        }
    }

    fn paint(&self, tone: Tone, text: &str) -> String {
        let text = printable(text);
        let code = match tone {
            Tone::Good => 32,
            Tone::Bad => 31,
            Tone::Strong => 1,
            Tone::Faint => 2,
        };
        match self.colour {
            Colour::On => format!("\x1b[{code}m{text}\x1b[0m"),
            Colour::Off => text,
        }
    }

    /// Adds a line. Parts from the request are painted, or [`printable`].
    fn line(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }

    fn route(&mut self, route: &RouteStep) {
        let verdict = if route.matches {
            self.paint(Tone::Good, "matches")
        } else {
            self.paint(Tone::Bad, "does not match")
        };
        let name = self.paint(Tone::Strong, &route.name);
        if route.conditions.is_empty() {
            return self.line(&format!("route {name}: {verdict}: it has no conditions"));
        }
        self.line(&format!("route {name}: {verdict}"));
        for condition in &route.conditions {
            self.condition("  ", condition);
        }
    }

    fn condition(&mut self, indent: &str, condition: &ConditionStep) {
        let ConditionStep {
            subject,
            wanted,
            found,
            holds,
            alternatives,
        } = condition;
        let sign = if *holds {
            self.paint(Tone::Good, "+")
        } else {
            self.paint(Tone::Bad, "-")
        };
        if !alternatives.is_empty() {
            let words = match subject.as_str() {
                "not" => "not: none of these may hold",
                _ => "any: one of these must hold",
            };
            let words = self.paint(Tone::Strong, words);
            self.line(&format!("{indent}{sign} {words}"));
            for (at, all) in alternatives.iter().enumerate() {
                let separator = if at == 0 { "all of" } else { "or all of" };
                self.line(&format!("{indent}    {separator}"));
                let deeper = format!("{indent}      ");
                all.iter().for_each(|it| self.condition(&deeper, it));
            }
            return;
        }
        let asks = self.paint(Tone::Strong, &format!("{subject} {}", wanted.join(" or ")));
        let has = if found.is_empty() {
            "none".into()
        } else {
            self.paint(Tone::Strong, &found.join(" and "))
        };
        let subject = self.subject;
        self.line(&format!("{indent}{sign} {asks}: {subject} has {has}"));
    }

    fn readings(&mut self, readings: &[ReadingStep]) {
        if readings.is_empty() {
            return;
        }
        self.line("servers may read the path in different ways:");
        for ReadingStep { path, route } in readings {
            let path = self.paint(Tone::Strong, path);
            self.line(&match route {
                Some(route) => format!("  {path}: route {}", self.paint(Tone::Strong, route)),
                None => format!("  {path}: no route"),
            });
        }
    }

    fn files(&mut self, step: &FilesStep) {
        let root = self.paint(Tone::Strong, &step.root);
        self.line(&format!("files of {root}: the first of these that exists"));
        for candidate_step in &step.candidates {
            let candidate = &candidate_step.candidate;
            self.line(&match candidate_step.path.as_deref().map(printable) {
                Some(path) if candidate_step.is_hidden => {
                    format!("  - {candidate}: /{path} is hidden, so it is skipped")
                }
                Some(path) => format!("  + {candidate}: /{path}"),
                None => format!("  - {candidate}: no file can have this path"),
            });
        }
        if step.candidates.is_empty() {
            self.line("  - none: this request names no file");
        }
        if !step.strip.is_empty() {
            self.line(&format!("  $path is the request's without {}", step.strip));
        }
        let for_folder = match (step.index.join(", "), step.is_listed) {
            (index, false) if index.is_empty() => None,
            (index, true) if index.is_empty() => Some("a list of it".to_owned()),
            (index, false) => Some(index),
            (index, true) => Some(format!("{index}, else a list of it")),
        };
        if let Some(answer) = for_folder {
            self.line(&format!("  for a folder: {answer}"));
        }
        const OTHERWISE: &str = "if none of them exists:";
        match (&step.upstream, &step.not_found) {
            (Some(upstream), _) => {
                self.line(OTHERWISE);
                self.upstream(upstream);
            }
            (None, Some(path)) => self.line(&format!("{OTHERWISE} 404 with {path}")),
            (None, None) => self.line(&format!("{OTHERWISE} 404")),
        }
    }

    fn cache(&mut self, step: &CacheStep) {
        let store = self.paint(Tone::Strong, &step.store);
        match (&step.bypass, &step.finding) {
            (Some(word), Some(text)) => {
                self.line(&format!("cache {store}: bypass ({word}): {text}"));
                return;
            }
            (_, Some(finding)) => self.line(&format!("cache {store}: {finding}")),
            (_, None) => self.line(&format!(
                "cache {store}: only the running process knows its responses: use --live"
            )),
        }
        self.line(&format!("  key: {}", step.key.join(" · ")));
    }

    fn upstream(&mut self, step: &UpstreamStep) {
        let name = self.paint(Tone::Strong, &step.name);
        if let Some(split) = &step.split {
            self.line(split);
        }
        self.line(&format!(
            "upstream {name}, balanced by {}: {}",
            step.balance, step.ranking
        ));
        if let Some(key) = &step.key {
            let found = match &key.found {
                Some(found) => self.paint(Tone::Strong, found),
                None if key.of == "path and query" => "the request's own".into(),
                None => "none, so the path and query are used".into(),
            };
            self.line(&format!("  key: {}: {found} (hash {})", key.of, key.hash));
        }
        if let Some(sticky) = &step.sticky {
            let endpoint = sticky.endpoint.as_ref();
            let endpoint = endpoint.map(|it| format!(" {}", self.paint(Tone::Strong, it)));
            self.line(&format!(
                "  sticky cookie {}: {}{}",
                sticky.cookie,
                sticky.found,
                endpoint.unwrap_or_default()
            ));
        }
        for source in &step.sources {
            self.source(source);
        }
        if step.endpoints.is_empty() {
            let is_later = step.now.is_none() && !step.sources.is_empty();
            self.line(if is_later {
                "  only the running process knows its endpoints: use --live"
            } else {
                "  it has no endpoint"
            });
        }
        let width = step.endpoints.iter().map(|it| it.name.chars().count());
        let width = width.max().unwrap_or(0);
        for endpoint in &step.endpoints {
            self.endpoint(endpoint, width, step);
        }
        for absent in step.absent.iter().take(MOST_ABSENT) {
            let line = format!(
                "  no endpoint {}: {}, {} ago",
                absent.name,
                absent.why,
                age(absent.age_ms)
            );
            let line = self.paint(Tone::Faint, &line);
            self.line(&line);
        }
        if let Some(asked) = &step.asked {
            let name = self.paint(Tone::Strong, &asked.name);
            let is_there = if asked.is_there {
                self.paint(Tone::Good, "is there")
            } else {
                self.paint(Tone::Bad, "is not there")
            };
            self.line(&format!(
                "  endpoint {name} {is_there}: {}",
                printable(&asked.why)
            ));
        }
        if let (Some(_), None) = (&step.endpoint, &step.now) {
            self.line("  > the choice while all are up and have room");
        }
        if let Some(lane) = &step.lane {
            let in_flight = in_flight(lane.in_flight, Some(lane.max_in_flight), step);
            self.line(&format!("  lane {}: {in_flight}", lane.name));
        }
        let queue = &step.queue;
        let held = if queue.hold {
            "also while no endpoint is up"
        } else {
            "not while no endpoint is up"
        };
        let waiting = match step.now {
            Some(_) => format!("{} of {} wait", queue.waiting, queue.max),
            None => format!("at most {} wait", queue.max),
        };
        match queue.max {
            0 => self.line("  no queue: without a free slot the request is refused"),
            _ => self.line(&format!(
                "  queue: {waiting}, each for {} at most, {held}; priority {}",
                time(queue.timeout_ms),
                step.priority
            )),
        }
        if let Some(fair) = &queue.fair_by {
            let waiting = match step.now {
                Some(_) if fair.lines > 0 => format!(
                    "; keys that wait: {}, the longest line: {}",
                    fair.lines, fair.longest
                ),
                _ => String::new(),
            };
            self.line(&format!(
                "  the queue serves keys in turn, by {}: {}{waiting}",
                printable(&fair.by),
                printable(&fair.key)
            ));
        }
        let timeouts = &step.timeouts;
        let total = match timeouts.total_ms {
            Some(total) => format!(", {} in all", time(total)),
            None => String::new(),
        };
        let first_byte = match timeouts.first_byte_ms {
            Some(first_byte) => format!(", first byte {}", time(first_byte)),
            None => String::new(),
        };
        self.line(&format!(
            "  timeouts: connect {}{first_byte}, silence {}{total}; at most {} retries",
            time(timeouts.connect_ms),
            time(timeouts.idle_ms),
            step.retries
        ));
        if !step.head.is_empty() {
            self.line("the endpoint gets:");
        }
        for line in &step.head {
            let line = self.paint(Tone::Faint, line);
            self.line(&format!("  {line}"));
        }
        match &step.now {
            None => {}
            Some(NowStep::Served) => {
                let now = self.paint(Tone::Good, "served at once");
                let places = places(&step.workers, step.silent_workers);
                self.line(&format!("now: {now}{places}"));
            }
            Some(NowStep::Waits { behind }) => {
                let now = self.paint(Tone::Bad, "waits in the queue");
                self.line(&format!("now: {now}, with {behind} before it"));
            }
            Some(NowStep::Refused(refused)) => self.refused("now: refused", refused),
        }
    }

    fn source(&mut self, source: &SourceStep) {
        let name = printable(&source.source);
        if source.kind == "operator" {
            return self.line(&format!("  changed by the operator: {name}"));
        }
        let mut line = format!("  endpoints of {} {name}", source.kind);
        if let Some(count) = source.endpoints {
            line += &format!(": {}", counted(count as u64, "endpoint"));
        }
        if let Some(millis) = source.age_ms {
            line += &format!(", read {} ago", age(millis));
        }
        if let Some(ttl) = source.ttl_s {
            line += &format!(", TTL {ttl} s");
        }
        if let Some(failing) = &source.failing {
            let failing = self.paint(Tone::Bad, failing);
            line += &format!("; it currently can't be read: {failing}");
        }
        self.line(&line);
    }

    fn endpoint(&mut self, endpoint: &EndpointStep, width: usize, step: &UpstreamStep) {
        let mut of_workers = step.workers.iter().filter_map(|it| it.endpoint.as_ref());
        let is_chosen = match of_workers.clone().next() {
            Some(_) => of_workers.any(|it| *it == endpoint.name),
            None => step.endpoint.as_ref() == Some(&endpoint.name),
        };
        let arrow = if is_chosen { ">" } else { " " };
        let tone = if is_chosen { Tone::Good } else { Tone::Strong };
        let name = self.paint(tone, &format!("{:width$}", endpoint.name));
        let mut line = format!("{arrow} endpoint {name} ");
        if step.now.is_some() {
            let tone = if endpoint.eligible {
                Tone::Good
            } else {
                Tone::Bad
            };
            line += &format!("{}, ", self.paint(tone, &endpoint.state));
        }
        line += &format!("weight {}", endpoint.weight);
        if endpoint.effective_weight < f64::from(endpoint.weight) {
            line += &format!(" ({:.2} now)", endpoint.effective_weight);
        }
        if endpoint.tier > 0 {
            line += &format!(", tier {}", endpoint.tier);
        }
        let in_flight = in_flight(endpoint.in_flight, endpoint.max_in_flight, step);
        let learned = endpoint.learned.map_or(String::new(), learned);
        let is_written = |it: &&String| it.starts_with("written ");
        let reason = endpoint.reason.as_ref().filter(|it| !is_written(it));
        let reason = reason.map_or(String::new(), |it| format!("; from {it}"));
        self.line(&format!("{line}, {in_flight}{learned}{reason}"));
    }

    fn refused(&mut self, what: &str, refused: &Refused) {
        let what = self.paint(Tone::Bad, what);
        self.line(&format!(
            "{what} with {} {}: {}",
            refused.status, refused.word, refused.text
        ));
    }
}

/// Text without control characters, as it came from a command line or a configuration.
fn printable(text: &str) -> String {
    let printable = |it: char| if it.is_control() { '\u{fffd}' } else { it };
    text.chars().map(printable).collect()
}

/// The choices of the workers; `silent` of them did not answer.
fn places(workers: &[WorkerStep], silent: usize) -> String {
    let mut places: Vec<(&str, Vec<String>)> = Vec::new();
    let mut without = 0;
    for WorkerStep { worker, endpoint } in workers {
        let Some(endpoint) = endpoint else {
            without += 1;
            continue;
        };
        let number = worker.to_string();
        match places.iter_mut().find(|(name, _)| name == endpoint) {
            Some((_, workers)) => workers.push(number),
            None => places.push((endpoint, vec![number])),
        }
    }
    let mut text = match &places[..] {
        [] => String::new(),
        [(endpoint, _)] => format!(" at {}", printable(endpoint)),
        _ => {
            let place = |(endpoint, workers): &(&str, Vec<String>)| {
                let plural = if workers.len() == 1 { "" } else { "s" };
                let workers = workers.join(", ");
                format!(" at {} by worker{plural} {workers}", printable(endpoint))
            };
            places.iter().map(place).collect::<Vec<_>>().join(",")
        }
    };
    if without > 0 {
        text += &format!("; {} had no slot", counted(without, "worker"));
    }
    if silent > 0 {
        let silent = counted(silent as u64, "worker");
        text += &format!("; {silent} did not answer");
    }
    text
}

/// Measurements of the workers for an endpoint.
fn learned(learned: LearnedStep) -> String {
    let range = |least: String, most: String| {
        if least == most {
            most
        } else {
            format!("{least} to {most}")
        }
    };
    match learned {
        LearnedStep::Slowness([least, most]) => {
            let range = range(format!("{least:.2}"), format!("{most:.2}"));
            format!(", first byte after {range} times the mean")
        }
        LearnedStep::FirstByteUs([least, most]) => {
            let time = |micros: f64| format!("{:.1?}", Duration::from_secs_f64(micros / 1e6));
            format!(", first byte after {}", range(time(least), time(most)))
        }
    }
}

/// How long ago something was, to a tenth of a second.
fn age(millis: u64) -> String {
    let tenths = Duration::from_millis(millis / 100 * 100);
    match millis {
        0..10_000 => format!("{tenths:?}"),
        _ => format!("{:?}", Duration::from_secs(millis / 1000)),
    }
}

fn time(millis: u64) -> String {
    format!("{:?}", Duration::from_millis(millis))
}

/// Exchanges in flight where that is known, and their limit.
fn in_flight(count: u32, max: Option<u32>, step: &UpstreamStep) -> String {
    match (&step.now, max) {
        (Some(_), Some(max)) => format!("{count} of {max} in flight"),
        (Some(_), None) => format!("{count} in flight, no limit"),
        (None, Some(max)) => format!("at most {max} in flight"),
        (None, None) => "no limit in flight".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_workers() {
        let of = |endpoints: &[Option<&str>]| -> Vec<_> {
            let steps = endpoints.iter().enumerate();
            steps
                .map(|(worker, endpoint)| WorkerStep {
                    worker,
                    endpoint: endpoint.map(str::to_owned),
                })
                .collect()
        };
        let (a, b) = (Some("a"), Some("b"));
        assert_eq!(places(&of(&[]), 0), "");
        assert_eq!(places(&of(&[a, a]), 0), " at a");
        let text = " at b by worker 0, at a by workers 1, 3; 1 worker had no slot";
        assert_eq!(places(&of(&[b, a, None, a]), 0), text);
        assert_eq!(places(&of(&[a]), 1), " at a; 1 worker did not answer");
        assert_eq!(places(&[], 2), "; 2 workers did not answer");
    }

    #[test]
    fn what_was_learned() {
        let text = learned(LearnedStep::Slowness([0.912, 1.5]));
        assert_eq!(text, ", first byte after 0.91 to 1.50 times the mean");
        let text = learned(LearnedStep::Slowness([0.912, 0.913]));
        assert_eq!(text, ", first byte after 0.91 times the mean");
        let text = learned(LearnedStep::FirstByteUs([412.34, 5_120.0]));
        assert_eq!(text, ", first byte after 412.3µs to 5.1ms");
    }
}
