//! Fetches an error page from its upstream.
//!
//! A fetch is an exchange of its own. It uses the upstream's balancer, queue, slots and health,
//! and counts in its figures. Its response is for all clients, so its request has no client's
//! fields.

use std::pin::Pin;
use std::time::Duration;

use evenkeel_proto::Scheme;
use evenkeel_proto::http1::{Parsed, parse_request};

use super::context::{FetchedPage, WantedPage};
use super::identity::Identity;
use super::remote::Remote;
use super::subrequest::{KeptResponse, Subrequest};
use super::{Client, ClientSide, Exchange, Progress, forward};
use crate::metrics::end::End;
use crate::net::clock;
use crate::observe::sessions::{NO_SESSION, Track};

/// Longest page, in bytes.
const MAX_LEN: usize = 1 << 20;

/// See [`FetchPage`](super::context::FetchPage).
pub fn fetch_page(wanted: WantedPage) -> Pin<Box<dyn Future<Output = Option<FetchedPage>>>> {
    Box::pin(fetch(wanted))
}

async fn fetch(wanted: WantedPage) -> Option<FetchedPage> {
    let WantedPage {
        context,
        listener,
        source,
    } = wanted;
    let client = Client::new(Remote::new(None, 0), Scheme::Http, listener, NO_SESSION);
    // An endpoint gets its own host.
    let bytes = format!("GET {} HTTP/1.1\r\nHost:\r\n\r\n", source.path).into_bytes();
    let mut head = context.heads.take();
    if parse_request(&bytes, &mut head) != Ok(Parsed::Complete) {
        return None;
    }
    let timer = context.wheel.timer();
    timer.register_task().await;
    let progress = Progress::new(
        &context,
        &client,
        clock::now(),
        Duration::ZERO,
        head.wire.end,
        &Identity::NONE,
        Track::unlisted(),
    );
    let mut side = Subrequest::new(MAX_LEN);
    let mut exchange = Exchange::new(
        &context,
        &client,
        ClientSide::Subrequest(&mut side),
        timer,
        &bytes,
        &head,
        progress,
    );
    exchange.rare().total = Some(source.timeout);
    // A page has no key to balance by.
    let outcome = forward(&mut exchange, &source.proxying, 0).await;
    exchange.conclude_fetch(outcome.end);
    let KeptResponse { head, body } = side.response()?;
    // Not every client can decode a coding, and a partial response is not a page.
    let is_coded = head.values("Content-Encoding").any(|it| it != b"identity");
    let is_whole = outcome.end == End::Complete && head.status == 200;
    let content_type = head.values("Content-Type").next();
    let content_type = content_type.filter(|it| !it.is_empty());
    let content_type = content_type.map(|it| String::from_utf8_lossy(it).into_owned());
    let is_page = is_whole && !is_coded && !body.is_empty();
    is_page.then_some(FetchedPage { content_type, body })
}
