//! `show sessions`: open connections and their exchanges.

use std::time::Duration;

use serde::Serialize;

use super::super::answer::{Answer, Format};
use super::super::table::Table;
use super::{NOTHING, or_nothing, silence};
use crate::metrics::histogram::micros;
use crate::metrics::quantity::{bytes, span, time};
use crate::observe::figures::Sources;
use crate::observe::inquiry::{Answers, Question, ask};
use crate::observe::sessions::{Session, SessionList};

/// Open connections, and the number of those left out.
#[derive(Debug, Serialize)]
struct SessionsView<'a> {
    open: usize,
    left_out: usize,
    workers_silent: usize,
    sessions: Vec<SessionView<'a>>,
}

#[derive(Debug, Serialize)]
struct SessionView<'a> {
    listener: &'a str,
    client: String,
    age_ms: u64,
    requests: u32,
    exchange: Option<ExchangeView<'a>>,
}

#[derive(Debug, Serialize)]
struct ExchangeView<'a> {
    phase: &'static str,
    elapsed_ms: f64,
    request: String,
    route: Option<&'a str>,
    upstream: Option<&'a str>,
    endpoint: Option<&'a str>,
    attempts: u32,
    bytes_in: u64,
    bytes_out: u64,
}

/// Asks every worker for its foremost sessions.
pub(in super::super) async fn ask_sessions(
    sources: &Sources,
    count: usize,
) -> Answers<SessionList> {
    ask(&sources.inquiries, |reply| Question::Sessions(count, reply)).await
}

pub(in super::super) fn sessions(
    asked: Answers<SessionList>,
    count: usize,
    format: Format,
) -> Answer {
    let mut list = SessionList::default();
    for answer in asked.answers {
        list.merge(answer);
    }
    list.keep_foremost(count);
    let view = SessionsView {
        open: list.open,
        left_out: list.open - list.rows.len(),
        workers_silent: asked.silent,
        sessions: list.rows.iter().map(session_view).collect(),
    };
    format.show(&view, sessions_text)
}

fn session_view(session: &Session) -> SessionView<'_> {
    let client = match session.address {
        Some(address) => std::net::SocketAddr::new(address, session.port).to_string(),
        None => "unix".to_owned(),
    };
    let exchange = session.exchange.as_ref().map(|exchange| {
        let names = exchange.names.as_ref();
        ExchangeView {
            phase: exchange.phase.word(),
            elapsed_ms: micros(exchange.elapsed) as f64 / 1e3,
            request: exchange.line.escape_ascii().to_string(),
            route: names.map(|it| it.route.as_str()),
            upstream: names.and_then(|it| it.upstream.as_deref()),
            endpoint: names.and_then(|it| it.endpoint.as_deref()),
            attempts: exchange.attempts,
            bytes_in: exchange.bytes_in,
            bytes_out: exchange.bytes_out,
        }
    });
    SessionView {
        listener: session.listener_name.as_deref().unwrap_or_default(),
        client,
        age_ms: session.age.as_millis() as u64,
        requests: session.requests,
        exchange,
    }
}

fn sessions_text(view: &SessionsView<'_>) -> String {
    let mut table = Table::new(&[
        "LISTENER",
        "CLIENT",
        ">AGE",
        ">REQUESTS",
        "PHASE",
        ">FOR",
        "ROUTE",
        "ENDPOINT",
        ">TRIES",
        ">IN",
        ">OUT",
        "REQUEST",
    ]);
    for session in &view.sessions {
        let start = [
            session.listener.to_owned(),
            session.client.clone(),
            span(Duration::from_millis(session.age_ms)),
            session.requests.to_string(),
        ];
        let exchange = match &session.exchange {
            Some(exchange) => exchange_view_cells(exchange),
            None => ["idle", "", "", "", "", "", "", ""].map(str::to_owned),
        };
        table.row(start.into_iter().chain(exchange));
    }
    let mut text = if view.sessions.is_empty() {
        String::new()
    } else {
        table.text(0)
    };
    text += &match view.left_out {
        0 => format!("{} open\n", view.open),
        more => format!("{} open, {more} of them not shown\n", view.open),
    };
    text + &silence(view.workers_silent)
}

fn exchange_view_cells(exchange: &ExchangeView<'_>) -> [String; 8] {
    let endpoint = exchange.upstream.map(|upstream| match exchange.endpoint {
        Some(endpoint) => format!("{upstream}/{endpoint}"),
        None => format!("{upstream}/{NOTHING}"),
    });
    [
        exchange.phase.to_owned(),
        time(exchange.elapsed_ms * 1e3),
        exchange.route.unwrap_or(NOTHING).to_owned(),
        or_nothing(endpoint),
        exchange.attempts.to_string(),
        bytes(exchange.bytes_in as f64),
        bytes(exchange.bytes_out as f64),
        exchange.request.clone(),
    ]
}
