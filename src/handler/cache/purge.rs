//! The method PURGE: drops stored responses for clients that may purge.

use evenkeel_cache::ledger::Order;
use evenkeel_cache::object::split_tags;
use evenkeel_cache::purge::{Purge, Strength};

use super::{Cached, view};
use crate::exchange::answer::Answer;
use crate::exchange::{Exchange, Outcome};
use crate::handler::respond;

/// Whether a request is a PURGE.
pub(super) fn is_purge(exchange: &Exchange<'_>) -> bool {
    exchange.head.method_span.of(exchange.bytes) == b"PURGE"
}

/// Purges what the request names: the tags in `Surrogate-Key` or `Cache-Tag`, all URLs below a
/// path that ends in `*`, or else its URL. With `Soft-Purge: 1`, responses become stale and are
/// not dropped.
pub(super) async fn answer(cached: &Cached<'_>, exchange: &mut Exchange<'_>) -> Outcome {
    let request = view(exchange);
    let key = (cached.caching.rules.key).key(cached.cache.memory.secret(), &request);
    let is_soft = request.values(b"soft-purge").any(|value| value == b"1");
    let strength = if is_soft {
        Strength::Soft
    } else {
        Strength::Hard
    };
    let (words, items) = (
        request.values(b"surrogate-key"),
        request.values(b"cache-tag"),
    );
    let tags: Vec<&[u8]> = split_tags(words, items).collect();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let order = |what| Order::new(what, strength);
    let (orders, purged) = if !tags.is_empty() {
        let orders = tags.iter().map(|tag| order(Purge::Tag(tag)));
        (
            orders.collect(),
            format!("tag {}", text(&tags.join(&b", "[..]))),
        )
    } else if let Some(prefix) = key.url().strip_suffix(b"*") {
        let orders = vec![order(Purge::Prefix(prefix))];
        (orders, format!("prefix {}", text(prefix)))
    } else {
        let orders = vec![order(Purge::Url(key.url()))];
        (orders, format!("url {}", text(key.url())))
    };
    cached.cache.purge_aside(orders).await;
    let body = format!("purged {purged}\n");
    let answer = Answer {
        body: body.as_bytes(),
        ..Answer::EMPTY
    };
    respond(exchange, &answer).await
}

/// Refuses a client that may not purge.
pub(super) async fn refuse(exchange: &mut Exchange<'_>) -> Outcome {
    let answer = Answer {
        status: 403,
        body: b"403 Forbidden\n\npurge: this client may not purge\n",
        ..Answer::EMPTY
    };
    respond(exchange, &answer).await
}
