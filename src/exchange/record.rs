//! What an exchange has come to so far, and its line and counts at the end.

use std::time::{Duration, Instant};

use evenkeel_proto::RequestHead;

use super::{Client, Context};
use crate::observe::access_log::{Record, Times};
use crate::observe::counters::status_class;
use crate::observe::end::End;

/// An exchange's figures while it goes on.
#[derive(Debug)]
pub struct Progress {
    /// When the head's first byte was there.
    pub started: Instant,
    /// Index of the route, if one matched.
    pub route: Option<usize>,
    /// Index of the upstream, if the route goes to one.
    pub upstream: Option<usize>,
    /// Index of the endpoint of the last attempt.
    pub endpoint: Option<usize>,
    /// Status sent to the client; 0 if none was.
    pub status: u16,
    /// Bytes received from the client.
    pub bytes_in: u64,
    /// Bytes sent to the client.
    pub bytes_out: u64,
    /// Bytes of those that are no head.
    pub body_bytes_out: u64,
    /// Attempts made.
    pub attempts: u32,
    /// How long each phase took.
    pub times: Times,
}

impl Progress {
    /// An exchange whose head began at `started` and was complete after
    /// `took`.
    pub fn new(started: Instant, took: Duration, head_len: usize) -> Self {
        Progress {
            started,
            route: None,
            upstream: None,
            endpoint: None,
            status: 0,
            bytes_in: head_len as u64,
            bytes_out: 0,
            body_bytes_out: 0,
            attempts: 0,
            times: Times {
                head: took,
                ..Times::default()
            },
        }
    }

    /// Counts the exchange and writes its line. `buf` holds the request's head,
    /// or what came instead of one.
    pub fn conclude(
        mut self,
        context: &Context,
        client: &Client,
        buf: &[u8],
        head: Option<&RequestHead>,
        end: End,
    ) {
        let now = Instant::now();
        self.times.total = now.duration_since(self.started);
        self.count(context, client, end);
        let Some(log) = context.log_of_listener[client.listener] else {
            return;
        };
        let config = &context.config;
        let listener = context.listener(client);
        let Some(settings) = &listener.access_log else {
            return;
        };
        let upstream = self.upstream.map(|index| &config.upstreams[index]);
        let record = Record {
            client: client.address_text.as_bytes(),
            listener: &listener.name,
            route: self.route.map(|index| config.routes[index].name.as_str()),
            upstream: upstream.map(|upstream| upstream.name.as_str()),
            endpoint: upstream
                .zip(self.endpoint)
                .map(|(upstream, index)| upstream.endpoints[index].name.as_str()),
            buf,
            head,
            status: self.status,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            body_bytes_out: self.body_bytes_out,
            attempts: self.attempts,
            end,
            times: self.times,
        };
        let dropped = &context.counters.log_lines_dropped;
        context
            .access_log
            .write(log, settings.format, &record, now, dropped);
    }

    fn count(&self, context: &Context, client: &Client, end: End) {
        let counters = context.listener_counters(client);
        counters.requests.add(1);
        counters.bytes_in.add(self.bytes_in);
        counters.bytes_out.add(self.bytes_out);
        counters.status[status_class(self.status)].add(1);
        counters.ends[end.index()].add(1);
        if let Some(upstream) = self.upstream {
            let counters = &context.counters.upstreams[upstream];
            counters.requests.add(1);
            counters.ends[end.index()].add(1);
        }
    }
}
