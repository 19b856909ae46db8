//! `show errors`: the exchanges that failed recently.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::super::answer::{Answer, Format};
use super::silence;
use crate::metrics::histogram::micros;
use crate::metrics::quantity::time;
use crate::observe::calendar::{Moment, unix_time};
use crate::observe::failures::FailedExchange;
use crate::observe::figures::Sources;
use crate::observe::inquiry::{Question, ask};

/// A failed exchange.
#[derive(Debug, Serialize)]
struct FailureView<'a> {
    time: String,
    client: &'a str,
    listener: &'a str,
    route: Option<&'a str>,
    upstream: Option<&'a str>,
    endpoint: Option<&'a str>,
    request: Option<String>,
    end: &'static str,
    text: Cow<'static, str>,
    status: u16,
    attempts: u32,
    head_us: u64,
    queue_us: Option<u64>,
    connect_us: Option<u64>,
    first_byte_us: Option<u64>,
    total_us: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    received: String,
}

pub(in super::super) async fn errors(sources: &Sources, count: usize, format: Format) -> Answer {
    let asked = ask(&sources.inquiries, Question::Failures).await;
    let mut failures: Vec<_> = asked.answers.into_iter().flatten().collect();
    failures.sort_by_key(|it| std::cmp::Reverse(it.at));
    failures.truncate(count);
    let views: Vec<_> = failures.iter().map(failure_view).collect();
    let silent = asked.silent;
    format.show(&views, |views| errors_text(views) + &silence(silent))
}

fn failure_view(failed: &FailedExchange) -> FailureView<'_> {
    let phase = |time: Option<Duration>| time.map(micros);
    FailureView {
        time: moment(failed.at),
        client: &failed.client,
        listener: &failed.listener,
        route: failed.route.as_deref(),
        upstream: failed.upstream.as_deref(),
        endpoint: failed.endpoint.as_deref(),
        request: failed.line.as_ref().map(|it| it.escape_ascii().to_string()),
        end: failed.end.word(),
        text: match failed.end.text() {
            // The exchange itself went well; its status shows the failure.
            "" => "the endpoint answered with an error".into(),
            text => text.into(),
        },
        status: failed.status,
        attempts: failed.attempts,
        head_us: micros(failed.times.head),
        queue_us: phase(failed.times.queue),
        connect_us: phase(failed.times.connect),
        first_byte_us: phase(failed.times.first_byte),
        total_us: micros(failed.times.total),
        received: failed.evidence.escape_ascii().to_string(),
    }
}

/// `2026-11-21T09:05:01.250Z`.
fn moment(at: SystemTime) -> String {
    let unix = unix_time(at);
    let second = Moment::from_unix(unix.as_secs()).rfc3339();
    format!("{second}.{:03}Z", unix.subsec_millis())
}

fn errors_text(views: &[FailureView<'_>]) -> String {
    if views.is_empty() {
        return "no exchange failed or was refused\n".to_owned();
    }
    let mut text = String::new();
    for view in views {
        let status = match view.status {
            0 => "no answer".to_owned(),
            status => format!("status {status}"),
        };
        text += &format!(
            "{}  {}  {status}  {}: {}\n",
            view.time, view.client, view.end, view.text
        );
        let place = match (view.upstream, view.endpoint) {
            (Some(upstream), Some(endpoint)) => format!(", endpoint {upstream}/{endpoint}"),
            (Some(upstream), None) => format!(", upstream {upstream}, no endpoint"),
            (None, _) => String::new(),
        };
        let route = view.route.map(|route| format!(", route {route}"));
        text += &format!(
            "    listener {}{}{place}, attempts {}\n",
            view.listener,
            route.unwrap_or_default(),
            view.attempts
        );
        if let Some(request) = &view.request {
            text += &format!("    {request}\n");
        }
        let phases = [
            ("head", Some(view.head_us)),
            ("queue", view.queue_us),
            ("connect", view.connect_us),
            ("first byte", view.first_byte_us),
            ("total", Some(view.total_us)),
        ];
        let phases: Vec<_> = phases
            .iter()
            .filter_map(|(name, us)| Some(format!("{name} {}", time((*us)? as f64))))
            .collect();
        text += &format!("    {}\n", phases.join(", "));
        if !view.received.is_empty() {
            text += &format!("    received: \"{}\"\n", view.received);
        }
    }
    text
}
