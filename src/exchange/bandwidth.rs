//! The bandwidth of a route: the rate of a response, and its key.
//!
//! A [`Throttle`] holds the response back. All ways of writing to the client go through it.

use std::net::IpAddr;
use std::sync::Arc;

use super::Exchange;
use super::request_key::{Keyed, key_text, with_key};
use super::side::ClientSide;
use super::throttle::Throttle;
use super::variables::Values;
use crate::config::Bandwidth;
use crate::limits::{RouteBandwidth, Share};
use crate::metrics::quantity::bytes;
use crate::net::clock;

impl Exchange<'_> {
    /// Applies the bandwidth of the route to the response, if there is one.
    pub(crate) fn keep_to_bandwidth(&mut self, route: usize) {
        if !self.context.config().routes[route].bandwidth.is_empty() {
            self.throttle(route);
        }
    }

    #[cold]
    fn throttle(&mut self, route: usize) {
        let context = self.context;
        let bounds = context.generation().limits.bandwidth_of(route);
        let shares: Vec<_> = bounds.iter().filter_map(|it| self.share_of(it)).collect();
        if shares.is_empty() {
            return;
        }
        let throttle = || Throttle::new(context.worker(), shares);
        match &mut self.side {
            ClientSide::Http1(http1) => http1.set_throttle(throttle()),
            ClientSide::Http2(stream) => stream.set_throttle(throttle()),
            ClientSide::Store(_) | ClientSide::Subrequest(_) => {}
        }
    }

    /// The exchange's share of a bandwidth; `None` if it is not counted there.
    fn share_of(&self, of: &Arc<RouteBandwidth>) -> Option<Share> {
        let Some(by) = &of.settings.key else {
            return Some(Share::new(of, b""));
        };
        let values = Values::of(self);
        let address = self.client.remote().address;
        let room = &mut self.context.scratch.borrow_mut();
        with_key(Keyed::by_network(by), &values, address, room, |key| {
            Share::new(of, key)
        })
    }

    /// Whether the response waits for the route's bandwidth, and not for its client. If so,
    /// restarts the timer.
    #[cold]
    pub(super) fn is_held_back(&self) -> bool {
        let is_over = self.total_deadline <= self.context.wheel.now();
        if is_over || self.context.cut_off().is_some() || !self.side.is_throttled() {
            return false;
        }
        self.set_bounded_timeout(self.listener().timeouts.body);
        true
    }
}

/// A bandwidth for a request, in a few words; with its key's present wait, where that is known.
pub(crate) fn bandwidth_text(
    of: &Bandwidth,
    running: Option<&RouteBandwidth>,
    values: &Values<'_>,
    address: Option<IpAddr>,
) -> String {
    let rate = format!("{}/s", bytes(of.bytes_per_second as f64));
    let Some(by) = &of.key else {
        return format!("{rate} for each response");
    };
    let key = key_text(Keyed::by_network(by), values, address);
    if key.is_empty() {
        return format!("{rate} by {by}, which is empty: not bounded");
    }
    let wait = running.and_then(|it| {
        with_key(
            Keyed::by_network(by),
            values,
            address,
            &mut Vec::new(),
            |key| it.wait(key, clock::now()),
        )
    });
    let mut text = format!("{rate} by {by}: {key}");
    if let Some(wait) = wait.filter(|it| !it.is_zero()) {
        text += &format!("; the next bytes go in {} ms", wait.as_millis());
    }
    text
}
