//! Effects on a cache of responses that go past it. An unsafe request invalidates stored
//! responses (RFC 9111 §4.4). The response to a HEAD renews a stored response, or shows that it
//! is stale (§4.3.5).

use std::sync::Arc;

use evenkeel_cache::storing::Received;
use evenkeel_cache::validate::{HeadEffect, Renewal, head_effect};
use evenkeel_cache::{Key, Request, Response};
use evenkeel_policy::Instant;
use evenkeel_proto::ResponseHead;

use super::Exchange;
use crate::cache::Cache;
use crate::config::Caching;
use crate::net::clock;

/// Waits for the response to a request that may affect a cache.
#[derive(Debug)]
pub struct CacheEffect {
    cache: Arc<Cache>,
    caching: Arc<Caching>,
    /// The key of a HEAD.
    head_of: Option<Key>,
    asked: Instant,
}

impl CacheEffect {
    /// For a request that goes to an endpoint now. `head_of` is the key of a HEAD.
    pub fn new(cache: Arc<Cache>, caching: Arc<Caching>, head_of: Option<Key>) -> Self {
        CacheEffect {
            cache,
            caching,
            head_of,
            asked: clock::now(),
        }
    }

    /// Applies the head of the response, at the front of `bytes`.
    pub(super) fn apply(&self, exchange: &Exchange<'_>, bytes: &[u8], head: &ResponseHead) {
        let request = Request {
            head: exchange.head,
            bytes: exchange.bytes,
            scheme: exchange.client.scheme(),
        };
        let response = Response { head, bytes };
        match &self.head_of {
            None => self
                .cache
                .invalidate(&self.caching.rules, &request, &response),
            Some(key) => self.compare(key, exchange, &request, &response),
        }
    }

    fn compare(
        &self,
        key: &Key,
        exchange: &Exchange<'_>,
        request: &Request<'_>,
        response: &Response<'_>,
    ) {
        let memory = &self.cache.memory;
        let Some(object) = memory.find(key, request) else {
            return;
        };
        match head_effect(&object, response) {
            HeadEffect::None => {}
            HeadEffect::Outdates => self.cache.remove(key),
            HeadEffect::Renews => {
                let arrived = clock::now();
                let unix_us = exchange.context.access_log.unix_us(arrived);
                let renewal = Renewal {
                    rules: &self.caching.rules,
                    secret: memory.secret(),
                    key,
                    request,
                    response,
                    received: &Received {
                        asked: self.asked,
                        arrived,
                        unix_s: unix_us / 1_000_000,
                    },
                    seen: memory.purge_count(),
                };
                let renewed = renewal.apply(&object);
                if let Some(renewed) = renewed.filter(|it| it.may_keep.is_ok())
                    && memory.insert(key, renewed.object.clone())
                {
                    self.cache.keep(key, &renewed.object);
                }
            }
        }
    }
}
