//! `show queue`: exchanges that wait for an endpoint.

use std::time::Duration;

use serde::Serialize;

use super::super::answer::{Answer, Format};
use super::super::table::Table;
use super::{NOTHING, of_limit, or_nothing};
use crate::metrics::quantity::span;
use crate::net::clock;
use crate::observe::figures::Sources;

/// The queue of an upstream.
#[derive(Debug, Serialize)]
struct QueueView<'a> {
    upstream: &'a str,
    waiting: usize,
    max: usize,
    timeout_ms: u64,
    longest_wait_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    fair: Option<FairView>,
    by: Vec<WaitingView<'a>>,
}

/// A queue that keys share.
#[derive(Debug, Serialize)]
struct FairView {
    by: String,
    lines: usize,
    longest_line: usize,
}

#[derive(Debug, Serialize)]
struct WaitingView<'a> {
    lane: Option<&'a str>,
    priority: u8,
    waiting: usize,
    longest_wait_ms: u64,
}

pub(in super::super) fn queue(sources: &Sources, format: Format) -> Answer {
    let now = clock::now();
    let upstreams = sources.config.upstreams.iter();
    let views: Vec<_> = upstreams
        .zip(&sources.dispatchers)
        .map(|(upstream, dispatcher)| {
            let groups = dispatcher.waiting_groups(now);
            let longest = groups.iter().map(|it| it.longest).max();
            QueueView {
                upstream: &upstream.name,
                waiting: groups.iter().map(|it| it.waiting).sum(),
                max: upstream.queue.settings.max,
                timeout_ms: upstream.queue.timeout.as_millis() as u64,
                longest_wait_ms: longest.unwrap_or_default().as_millis() as u64,
                fair: upstream.queue.fair_by.as_ref().map(|by| {
                    let lines = dispatcher.waiting_lines();
                    FairView {
                        by: by.to_string(),
                        lines: lines.map_or(0, |it| it.lines),
                        longest_line: lines.map_or(0, |it| it.longest),
                    }
                }),
                by: groups
                    .iter()
                    .map(|group| WaitingView {
                        lane: group.lane.map(|lane| dispatcher.lane_name(lane)),
                        priority: group.priority,
                        waiting: group.waiting,
                        longest_wait_ms: group.longest.as_millis() as u64,
                    })
                    .collect(),
            }
        })
        .collect();
    format.show(&views, |views| queue_text(views))
}

fn queue_text(views: &[QueueView<'_>]) -> String {
    let wait = |waiting: usize, ms: u64| {
        or_nothing((waiting > 0).then(|| span(Duration::from_millis(ms))))
    };
    let mut table = Table::new(&[
        "UPSTREAM",
        "LANE",
        ">PRIORITY",
        ">WAITING",
        ">LONGEST WAIT",
        ">LIMIT",
    ]);
    for view in views {
        table.row([
            view.upstream.to_owned(),
            "(all)".to_owned(),
            NOTHING.to_owned(),
            of_limit(view.waiting, Some(view.max)),
            wait(view.waiting, view.longest_wait_ms),
            span(Duration::from_millis(view.timeout_ms)),
        ]);
        if let Some(FairView {
            by,
            lines,
            longest_line,
        }) = &view.fair
        {
            let text = format!("(by {by}: {lines} lines, at most {longest_line} in one)");
            table.row([
                String::new(),
                text,
                NOTHING.to_owned(),
                String::new(),
                String::new(),
                String::new(),
            ]);
        }
        // A line with all waiters shows nothing new.
        for group in view.by.iter().filter(|_| view.by.len() > 1) {
            table.row([
                String::new(),
                group.lane.unwrap_or(NOTHING).to_owned(),
                group.priority.to_string(),
                group.waiting.to_string(),
                wait(group.waiting, group.longest_wait_ms),
                String::new(),
            ]);
        }
    }
    table.text(0)
}
