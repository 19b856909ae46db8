//! Forwards one request to an upstream: attempts until one brings a response
//! or HTTP allows no further one.

use evenkeel_proto::http1::BodyDecoder;
use evenkeel_proto::http1::write::Transcode;
use evenkeel_proto::{BodyFraming, RequestHead};

use super::attempt::{self, Attempt, Retry};
use super::pump::{Pump, TAILROOM};
use super::{Client, Context, Next, Progress, answer, rare};
use crate::config::Proxying;
use crate::net::buffer::Buffer;
use crate::observe::end::{End, Failure};
use crate::upstream::{Refused, Slot, Upstream};

/// What an exchange came to.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// What becomes of the client's connection.
    pub next: Next,
    /// Bytes of the client's buffer that belong to this exchange.
    pub consumed: usize,
    /// Bytes read beyond the request's body, in a buffer of their own, where
    /// the body was longer than the client's buffer.
    pub leftover: Option<Buffer>,
}

/// A request as far as it was read before the first attempt.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub head: &'a RequestHead,
    /// Begins with the head.
    pub bytes: &'a [u8],
    /// Length of the head and of that part of the body which was read with it
    /// and is valid.
    pub valid_len: usize,
    /// Stands behind the valid bytes.
    pub decoder: BodyDecoder,
    /// Tick at which the exchange has taken too long in all.
    pub total_deadline: u64,
}

impl Request<'_> {
    /// Whether the body was read with the head.
    pub fn is_whole(&self) -> bool {
        self.decoder.is_done()
    }

    /// The rest of the request: what the endpoint did not take at once, and
    /// what is still to come.
    pub fn rest(&self, unsent: &[u8]) -> Pump {
        let undecoded = match self.is_whole() {
            true => &[][..],
            false => &self.bytes[self.valid_len..],
        };
        let len = unsent.len() + undecoded.len();
        let buffer = (len > 0).then(|| {
            let mut buffer = Buffer::with_capacity(len + 2 * TAILROOM);
            let fits = buffer.append(unsent) && buffer.append(undecoded);
            debug_assert!(fits, "the buffer was made for them");
            buffer
        });
        Pump::new(self.decoder.clone(), Transcode::Raw, buffer, unsent.len())
    }
}

impl Outcome {
    /// An exchange that leaves nothing behind in another buffer.
    pub fn new(end: End, next: Next, consumed: usize) -> Self {
        Outcome {
            end,
            next,
            consumed,
            leftover: None,
        }
    }
}

/// Forwards the request whose head stands at the front of `bytes`, and sends
/// the client a response: an endpoint's, or a refusal that says why.
///
/// # Cancellation
/// Dropping the future abandons the exchange and gives its slot back.
pub async fn forward(
    context: &Context,
    client: &mut Client,
    proxying: Proxying,
    bytes: &[u8],
    head: &RequestHead,
    progress: &mut Progress,
) -> Outcome {
    let upstream = &context.upstreams[proxying.upstream];
    progress.upstream = Some(upstream.index());
    let request = match read_with_head(context, client, upstream, bytes, head) {
        Ok(request) => request,
        Err(end) => return rare(refused(context, client, head, end, progress)).await,
    };
    progress.bytes_in += (request.valid_len - head.end) as u64;
    match try_endpoints(context, client, upstream, &request, progress).await {
        Ok(outcome) => outcome,
        Err(end) => rare(refused(context, client, head, end, progress)).await,
    }
}

/// Checks the part of the body that came with the head, so that nothing of a
/// request that is malformed from the start reaches an endpoint.
fn read_with_head<'a>(
    context: &Context,
    client: &Client,
    upstream: &Upstream,
    bytes: &'a [u8],
    head: &'a RequestHead,
) -> Result<Request<'a>, End> {
    let mut decoder = BodyDecoder::new(head.framing);
    let consumed = decoder.advance(&bytes[head.end..])?.consumed;
    let announced = match head.framing {
        BodyFraming::Length { bytes } => bytes,
        _ => decoder.announced_bytes().unwrap_or(0),
    };
    let limit = context.listener(client).limits.body_bytes;
    if limit.is_some_and(|limit| announced > limit) {
        return Err(Failure::BodyTooLarge.into());
    }
    let total = upstream.config().timeouts.total;
    Ok(Request {
        head,
        bytes,
        valid_len: head.end + consumed,
        decoder,
        total_deadline: total.map_or(u64::MAX, |total| context.wheel.deadline(total)),
    })
}

async fn refused(
    context: &Context,
    client: &mut Client,
    head: &RequestHead,
    end: End,
    progress: &mut Progress,
) -> Outcome {
    let next = answer::refuse(context, client, Some(head), end, progress).await;
    Outcome::new(end, next, head.end)
}

/// Goes from endpoint to endpoint until one answers.
///
/// # Errors
/// The end with which to refuse: no response has begun.
async fn try_endpoints(
    context: &Context,
    client: &mut Client,
    upstream: &Upstream,
    request: &Request<'_>,
    progress: &mut Progress,
) -> Result<Outcome, End> {
    let mut tried = Vec::new();
    let mut retries_left = upstream.config().retries;
    let mut last_failure = None;
    let mut fresh = Connection::AnyIdle;
    let mut kept = None;
    loop {
        let slot = match kept.take() {
            Some(slot) => slot,
            None => match upstream.acquire(&tried).await {
                Ok(slot) => slot,
                Err(refused) => return Err(last_failure.unwrap_or(refused.into())),
            },
        };
        count_attempt(context, &slot, progress);
        let (end, retry) =
            match attempt::attempt(context, client, &slot, request, fresh, progress).await {
                Attempt::Finished(outcome) => return Ok(outcome),
                Attempt::Failed { end, retry } => (end, retry),
            };
        if end.is_endpoint_fault() {
            attempt::endpoint_counters(context, &slot).failures.add(1);
        }
        match retry {
            Retry::Never => return Err(end),
            // A connection that had gone stale says nothing of the endpoint:
            // the exchange stays where it has a place.
            Retry::OnNewConnection => {
                fresh = Connection::New;
                kept = Some(slot);
            }
            Retry::Elsewhere if retries_left == 0 => return Err(end),
            Retry::Elsewhere => {
                retries_left -= 1;
                tried.push(slot.endpoint() as u32);
                fresh = Connection::AnyIdle;
            }
        }
        last_failure = Some(end);
    }
}

/// Which connection an attempt may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Connection {
    /// An idle one where there is one.
    AnyIdle,
    /// One that was never used.
    New,
}

fn count_attempt(context: &Context, slot: &Slot<'_>, progress: &mut Progress) {
    progress.endpoint = Some(slot.endpoint());
    progress.attempts += 1;
    attempt::endpoint_counters(context, slot).attempts.add(1);
    if progress.attempts > 1 {
        let upstream = slot.upstream().index();
        context.counters.upstreams[upstream].retries.add(1);
    }
}

impl From<Refused> for End {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Saturated => Failure::Saturated.into(),
            Refused::NoEndpoint => Failure::NoEndpoint.into(),
        }
    }
}
