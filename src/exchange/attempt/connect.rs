//! Attempts for TCP: only a connection to the endpoint.

use super::open::open;
use super::{Attempt, Attempting, UpstreamConnection};
use crate::exchange::Exchange;
use crate::exchange::request::RequestBody;
use crate::exchange::watch::ClientWatch;
use crate::net::stream::Stream;
use crate::upstream::Slot;

/// Attempts that open a connection for the client alone.
pub(in crate::exchange) struct Connections;

impl Attempting for Connections {
    type Done = Stream;

    async fn attempt(
        exchange: &mut Exchange<'_>,
        slot: &Slot<'_>,
        request: &RequestBody<'_>,
        _connection: UpstreamConnection,
        watch: &mut ClientWatch,
    ) -> Attempt<Stream> {
        // Idle HTTP connections use up a part of the limit.
        slot.counters().displaced.add(slot.make_room());
        match open(exchange, slot, request, watch).await {
            Ok(opened) => Attempt::Finished(opened.stream),
            Err(failure) => Attempt::not_opened(failure),
        }
    }
}
