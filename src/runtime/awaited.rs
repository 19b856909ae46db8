//! The connections that a drain waits for, in the event log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::metrics::quantity::{counted, span};
use crate::observe::figures::Sources;
use crate::observe::inquiry::{Question, ask};
use crate::observe::sessions::{Session, SessionList};

/// Time from the start of a drain to the first report of what it waits for.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two lines: each pause is twice the one before.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Connections that a line names, the longest of all.
const MOST_SHOWN: usize = 5;

/// Logs from time to time which connections are open, until there are none.
///
/// # Cancellation
/// Nothing is lost by dropping the future.
pub(super) async fn tell(sources: Arc<Sources>) {
    let mut pause = FIRST_PAUSE;
    loop {
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        let sessions = |reply| Question::Sessions(MOST_SHOWN, reply);
        let asked = ask(&sources.inquiries, sessions).await;
        let mut list = SessionList::default();
        asked.answers.into_iter().for_each(|it| list.merge(it));
        list.keep_foremost(MOST_SHOWN);
        if list.open > 0 {
            let shown: Vec<_> = list.rows.iter().map(words).collect();
            tracing::info!(
                open = list.open,
                "draining: {} still open; the longest: {}",
                counted(list.open as u64, "connection"),
                shown.join("; ")
            );
        } else if asked.silent == 0 {
            return;
        }
    }
}

/// A connection in a few words.
fn words(session: &Session) -> String {
    let client = match session.address {
        Some(address) => SocketAddr::new(address, session.port).to_string(),
        None => "a Unix socket".to_owned(),
    };
    let listener = session.listener_name.as_deref().unwrap_or_default();
    let Some(exchange) = &session.exchange else {
        return format!("{client} at {listener}, idle, {} old", span(session.age));
    };
    let names = exchange.names.as_ref();
    let upstream = names.and_then(|it| it.upstream.as_deref());
    let endpoint = names.and_then(|it| it.endpoint.as_deref());
    let place = match (upstream, endpoint) {
        (Some(upstream), Some(endpoint)) => format!(" to {upstream}/{endpoint}"),
        (Some(upstream), None) => format!(" to {upstream}"),
        (None, _) => String::new(),
    };
    let (phase, elapsed) = (exchange.phase.word(), span(exchange.elapsed));
    format!("{client} at {listener}, {phase}{place} for {elapsed}")
}
