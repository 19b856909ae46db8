//! Sends responses of a cache: stored ones, and ones that still arrive.

mod coded;

use evenkeel_cache::Object;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_cache::incoming::{Arrival, Follower, Read};
use evenkeel_cache::object::{FilePart, push_line};
use evenkeel_cache::report::{CacheStatus, Forward, Unanswered, push_age, ttl};
use evenkeel_cache::validate::{Reply, is_in_not_modified, reply};
use evenkeel_policy::Instant;
use evenkeel_proto::http1::reason_phrase;
use evenkeel_proto::http1::write::{self, Persistence};
use evenkeel_proto::{ByteRange, Method};

use super::super::multipart::Multipart;
use super::view;
use crate::cache::disk::Found;
use crate::config::Caching;
use crate::exchange::answer::{self, UnsentFile, end_head, put, put_file};
use crate::exchange::compression::{Decision, recoded};
use crate::exchange::{Exchange, Gone, Next, Outcome};
use crate::files::is_in_page_cache;
use crate::metrics::CacheResult;
use crate::metrics::end::{End, Failure};
use crate::net::stream::Follow;
use coded::Outgoing;

/// Bodies up to this length, in bytes, are copied behind their heads, which saves a system call.
const COPIED_LEN: usize = 32 * 1024;

/// Most bytes of a file that are sent before other connections have a turn.
const SLICE_LEN: u64 = 1024 * 1024;

/// Longest wait for a piece of a body after its head.
const DISK_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes that are read at once from an arriving response.
const READ_LEN: usize = 64 * 1024;

/// Name of this cache in `Cache-Status`.
const CACHE_NAME: &str = "Evenkeel";

/// The origin of an answer, for `Cache-Status` and the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct CacheOutcome {
    result: CacheResult,
    /// Why the answer is not a hit.
    reason: Option<Unanswered>,
    status: CacheStatus<'static>,
}

impl CacheOutcome {
    /// The response was stored and fresh.
    pub fn hit(object: &Object, now: Instant) -> Self {
        CacheOutcome {
            result: CacheResult::Hit,
            reason: None,
            status: CacheStatus {
                ttl: Some(ttl(&object.stored(now))),
                ..CacheStatus::default()
            },
        }
    }

    /// The response was fetched for this request, and is stored.
    pub fn fetched(object: &Object, now: Instant, why: Forward, is_first: bool) -> Self {
        CacheOutcome {
            result: if is_first {
                CacheResult::Miss
            } else {
                CacheResult::Hit
            },
            reason: is_first.then_some(Unanswered::Forward(why)),
            status: CacheStatus {
                forward: Some(why),
                forward_status: Some(object.status()),
                ttl: Some(ttl(&object.stored(now))),
                stored: true,
                collapsed: !is_first,
                ..CacheStatus::default()
            },
        }
    }

    /// The response was stored and stale.
    pub fn stale(object: &Object, now: Instant) -> Self {
        CacheOutcome {
            result: CacheResult::Stale,
            ..Self::hit(object, now)
        }
    }

    /// The response was stored, and an endpoint has confirmed it.
    pub fn renewed(object: &Object, now: Instant, why: Forward, is_first: bool) -> Self {
        CacheOutcome {
            result: CacheResult::Revalidated,
            reason: None,
            status: CacheStatus {
                forward: Some(why),
                forward_status: Some(304),
                ttl: Some(ttl(&object.stored(now))),
                collapsed: !is_first,
                ..CacheStatus::default()
            },
        }
    }

    /// The response is arriving.
    pub fn arriving(follower: &Follower, arrival: &Arrival, why: Forward, is_first: bool) -> Self {
        let passing = follower.passing();
        let reason = passing.map_or(Unanswered::Forward(why), Unanswered::NotStored);
        CacheOutcome {
            result: if is_first {
                CacheResult::Miss
            } else {
                CacheResult::Hit
            },
            reason: is_first.then_some(reason),
            status: CacheStatus {
                forward: Some(why),
                forward_status: Some(arrival.head.status),
                ttl: None,
                stored: passing.is_none(),
                collapsed: !is_first,
                detail: passing.map(|it| it.word()),
            },
        }
    }

    fn push(&self, out: &mut Vec<u8>, exchange: &Exchange<'_>) {
        if caching(exchange).is_some_and(|it| it.reports_status) {
            out.extend_from_slice(b"Cache-Status: ");
            self.status.push(out, CACHE_NAME);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// The route's cache settings.
fn caching<'a>(exchange: &Exchange<'a>) -> Option<&'a Caching> {
    exchange.route()?.cache.as_deref()
}

/// Answers with a stored response, or with the parts of it that the request asks for.
pub(super) async fn stored(
    exchange: &mut Exchange<'_>,
    found: &Found,
    told: &CacheOutcome,
) -> Outcome {
    let Found { object, body, .. } = found;
    let request = view(exchange);
    let age = object.age(exchange.progress.arrived());
    let figures = &mut exchange.progress.figures;
    figures.cache = Some(told.result);
    figures.cache_age_ms = u32::try_from(age.as_millis()).unwrap_or(u32::MAX);
    let body_len = body.as_ref().map_or(object.body_len(), |it| it.len);
    let reply = reply(object, body_len, &request);
    let (status, sent_len) = match &reply {
        Reply::Whole => (object.status(), body_len),
        Reply::NotModified => (304, 0),
        Reply::Parts(_) => (206, body_len),
        Reply::Unsatisfiable => (416, 0),
    };
    let decision = coded::decide(exchange, status, object.fields(), Some(sent_len));
    let sending = Sending {
        object,
        body: body.as_ref(),
        body_len,
        age,
        told,
        persistence: coded::persistence(exchange, decision),
        decision,
    };
    let persistence = sending.persistence;
    let sent = match reply {
        Reply::Whole if let Some(coding) = decision.coding() => {
            sending.coded(exchange, coding).await
        }
        Reply::Whole => sending.whole(exchange).await,
        Reply::NotModified => sending.not_modified(exchange).await,
        Reply::Parts(parts) => sending.parts(exchange, &parts).await,
        Reply::Unsatisfiable => sending.unsatisfiable(exchange).await,
    };
    match sent {
        Ok(()) => answer::outcome(exchange, End::Complete, persistence),
        Err(failure) => {
            let next = coded::next_of_failed(exchange, decision);
            Outcome::after_head(exchange, failure.into(), next)
        }
    }
}

struct Sending<'a> {
    object: &'a Object,
    /// The body, where it is in a file.
    body: Option<&'a FilePart>,
    body_len: u64,
    age: Duration,
    told: &'a CacheOutcome,
    persistence: Persistence,
    /// Whether the body gets a content coding on its way.
    decision: Decision,
}

impl Sending<'_> {
    async fn whole(&self, exchange: &mut Exchange<'_>) -> Result<(), Failure> {
        let len = self.body_len;
        let status = self.object.status();
        let mut bytes = self.head(exchange, status, |out| {
            out.extend_from_slice(self.object.lines());
            push_length(out, status, len);
        });
        let head_len = bytes.len();
        if exchange.head.method == Method::Head {
            return self.put_last(exchange, &bytes, head_len).await;
        }
        if len as usize <= COPIED_LEN && self.body.is_none() {
            bytes.extend_from_slice(self.object.body_at(0));
            return self.put_last(exchange, &bytes, head_len).await;
        }
        put(exchange, &bytes, head_len, Follow::More).await?;
        drop(bytes);
        self.part(exchange, 0, len, Follow::Anything).await
    }

    async fn not_modified(&self, exchange: &mut Exchange<'_>) -> Result<(), Failure> {
        let bytes = self.head(exchange, 304, |out| {
            let fields = self.object.fields();
            for (name, value) in fields.filter(|(name, _)| is_in_not_modified(name)) {
                push_line(out, name, value);
            }
        });
        self.put_last(exchange, &bytes, bytes.len()).await
    }

    async fn unsatisfiable(&self, exchange: &mut Exchange<'_>) -> Result<(), Failure> {
        let len = self.body_len;
        let bytes = self.head(exchange, 416, |out| {
            let fields = self.object.fields();
            for (name, value) in fields.filter(|(name, _)| is_in_not_modified(name)) {
                push_line(out, name, value);
            }
            let lines = format!("Content-Range: bytes */{len}\r\nContent-Length: 0\r\n");
            out.extend_from_slice(lines.as_bytes());
        });
        self.put_last(exchange, &bytes, bytes.len()).await
    }

    async fn parts(
        &self,
        exchange: &mut Exchange<'_>,
        ranges: &[ByteRange],
    ) -> Result<(), Failure> {
        let len = self.body_len;
        if let [range] = ranges {
            let ByteRange { first, last } = *range;
            let bytes = self.head(exchange, 206, |out| {
                out.extend_from_slice(self.object.lines());
                let lines = format!(
                    "Content-Range: bytes {first}-{last}/{len}\r\nContent-Length: {}\r\n",
                    range.len()
                );
                out.extend_from_slice(lines.as_bytes());
            });
            put(exchange, &bytes, bytes.len(), Follow::More).await?;
            let follow = exchange.follow(self.persistence);
            return self.part(exchange, first, range.len(), follow).await;
        }
        let content_type = self.object.value("content-type");
        let content_type = content_type.map(|it| [b"Content-Type: ", it].concat());
        let multipart = Multipart::new(ranges, &content_type.unwrap_or_default(), len);
        let bytes = self.head(exchange, 206, |out| {
            let is_type = |name: &[u8]| name.eq_ignore_ascii_case(b"content-type");
            let fields = self.object.fields();
            for (name, value) in fields.filter(|(name, _)| !is_type(name)) {
                push_line(out, name, value);
            }
            multipart.push_fields(out);
        });
        put(exchange, &bytes, bytes.len(), Follow::More).await?;
        for (before, range) in multipart.parts.iter().zip(ranges) {
            put(exchange, before, 0, Follow::More).await?;
            self.part(exchange, range.first, range.len(), Follow::More)
                .await?;
        }
        self.put_last(exchange, &multipart.end, 0).await
    }

    /// Sends a part of the body, followed by `follow`.
    async fn part(
        &self,
        exchange: &mut Exchange<'_>,
        first: u64,
        len: u64,
        follow: Follow,
    ) -> Result<(), Failure> {
        let (mut position, end) = (first, first + len);
        if let Some(body) = self.body {
            return file_part(exchange, body, first, len).await;
        }
        while position < end {
            let piece = self.object.body_at(position);
            let left = usize::try_from(end - position).unwrap_or(usize::MAX);
            let piece = &piece[..piece.len().min(left)];
            if piece.is_empty() {
                break;
            }
            position += piece.len() as u64;
            let then = if position < end { Follow::More } else { follow };
            put(exchange, piece, 0, then).await?;
        }
        Ok(())
    }

    async fn put_last(
        &self,
        exchange: &mut Exchange<'_>,
        bytes: &[u8],
        head_len: usize,
    ) -> Result<(), Failure> {
        let follow = exchange.follow(self.persistence);
        put(exchange, bytes, head_len, follow).await
    }

    /// A head with these lines in it.
    fn head(
        &self,
        exchange: &mut Exchange<'_>,
        status: u16,
        lines: impl FnOnce(&mut Vec<u8>),
    ) -> Vec<u8> {
        exchange.progress.figures.status = status;
        let copied = (self.body_len as usize).min(COPIED_LEN);
        let mut out = Vec::with_capacity(512 + self.object.lines().len() + copied);
        let reason = if status == self.object.status() {
            self.object.reason()
        } else {
            reason_phrase(status).as_bytes()
        };
        status_line(&mut out, status, reason);
        lines(&mut out);
        push_age(&mut out, self.age);
        self.told.push(&mut out, exchange);
        end_head(&mut out, exchange, self.persistence);
        match self.decision.recoding(exchange.head.version) {
            Some(recoding) => recoded(&out, recoding),
            None => out,
        }
    }
}

/// Sends a part of a body that is in a file.
async fn file_part(
    exchange: &mut Exchange<'_>,
    body: &FilePart,
    first: u64,
    len: u64,
) -> Result<(), Failure> {
    let (mut position, end) = (first, first + len);
    while position < end {
        let len = SLICE_LEN.min(end - position);
        if exchange.side.can_send_file()
            && is_in_page_cache(&body.file, body.offset + position, len)
        {
            let offset = body.offset + position;
            let sent = put_file(exchange, body.file.as_fd(), offset, len).await;
            sent.map_err(|unsent| match unsent {
                UnsentFile::Client(failure) => failure,
                UnsentFile::Short | UnsentFile::Unreadable(_) => Failure::FileFailed,
            })?;
        } else {
            let read = read_part(exchange, body, position, len).await?;
            put(exchange, &read, 0, Follow::Anything).await?;
        }
        position += len;
        if position < end {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Reads a piece of a body from the disk.
async fn read_part(
    exchange: &mut Exchange<'_>,
    body: &FilePart,
    from: u64,
    len: u64,
) -> Result<Arc<[u8]>, Failure> {
    let cache = caching(exchange).map(|it| &exchange.context.generation().caches[it.store]);
    let disk = cache.and_then(|it| it.disk()).ok_or(Failure::FileFailed)?;
    exchange.set_timeout(DISK_TIMEOUT);
    match exchange
        .while_client_stays(disk.read_part(body, from, len as usize))
        .await
    {
        Ok(read) => read.ok_or(Failure::FileFailed),
        Err(Gone::Client) => Err(Failure::ClientGone),
        Err(Gone::TimedOut) => Err(exchange.context.cut_off().unwrap_or(Failure::DiskTimeout)),
    }
}

/// Answers with a response as it arrives.
pub(super) async fn arriving(
    exchange: &mut Exchange<'_>,
    mut follower: Follower,
    arrival: &Arrival,
    told: &CacheOutcome,
) -> Outcome {
    let figures = &mut exchange.progress.figures;
    figures.cache = Some(told.result);
    figures.unanswered = told.reason;
    let status = arrival.head.status;
    let fields = arrival.head.fields();
    let decision = coded::decide(exchange, status, fields, arrival.announced_len);
    let framing = match arrival.announced_len {
        Some(len) if decision.coding().is_none() => Framing::Length(len),
        _ if !exchange.head.version.knows_chunks() => Framing::UntilClose,
        _ => Framing::Chunks,
    };
    let persistence = match framing {
        Framing::UntilClose => Persistence::Close,
        _ => answer::persistence(exchange),
    };
    let mut bytes = Vec::with_capacity(1024 + arrival.head.lines().len());
    status_line(&mut bytes, status, arrival.head.reason());
    bytes.extend_from_slice(arrival.head.lines());
    if follower.passing().is_none() {
        let now = exchange.progress.arrived().max(arrival.received.arrived);
        let age = arrival.lifetime.initial_age + now.duration_since(arrival.received.arrived);
        if age.as_secs() > 0 {
            push_age(&mut bytes, age);
        }
    }
    match framing {
        Framing::Length(len) => push_length(&mut bytes, status, len),
        Framing::Chunks => bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        Framing::UntilClose => {}
    }
    told.push(&mut bytes, exchange);
    end_head(&mut bytes, exchange, persistence);
    if let Some(recoding) = decision.recoding(exchange.head.version) {
        bytes = recoded(&bytes, recoding);
    }
    exchange.progress.figures.status = status;
    let mut head_len = bytes.len();
    let failed_next = match framing {
        Framing::UntilClose => Next::Abort,
        _ => Next::Cut,
    };
    let fail = |exchange: &Exchange<'_>, failure: Failure| {
        Outcome::after_head(exchange, failure.into(), failed_next)
    };
    let mut outgoing = match Outgoing::new(exchange, decision, framing, arrival.announced_len) {
        Ok(outgoing) => outgoing,
        Err(failure) => return fail(exchange, failure),
    };
    let mut body = Vec::new();
    let mut has_paused = false;
    loop {
        exchange.set_timeout(Duration::MAX);
        let read = std::future::poll_fn(|cx| {
            body.clear();
            follower.poll_read(&mut body, READ_LEN, cx.waker())
        });
        let read = if head_len > 0 || outgoing.is_holding() {
            // Bytes that have arrived go out with the head.
            match read_now(&mut follower, &mut body) {
                Some(read) => Ok(read),
                // More may arrive while other tasks run, and a flush costs bytes.
                None if outgoing.is_holding() && !has_paused => {
                    has_paused = true;
                    tokio::task::yield_now().await;
                    continue;
                }
                None => {
                    has_paused = false;
                    let mut held = std::mem::take(&mut bytes);
                    let flushed = outgoing.flush(&mut held);
                    let sent = match flushed {
                        Ok(()) => put(exchange, &held, head_len, Follow::Anything).await,
                        Err(failure) => Err(failure),
                    };
                    if let Err(failure) = sent {
                        return fail(exchange, failure);
                    }
                    head_len = 0;
                    continue;
                }
            }
        } else {
            exchange.while_client_stays(read).await
        };
        let is_last = match read {
            Ok(Read::Bytes(_)) => {
                has_paused = false;
                if let Err(failure) = outgoing.push(&mut bytes, &body).await {
                    return fail(exchange, failure);
                }
                false
            }
            Ok(Read::Spooled { from, len }) => {
                let file = follower.file().ok_or(Failure::FileFailed);
                let sent = match file {
                    Err(failure) => Err(failure),
                    Ok(file) => {
                        let part = FilePart {
                            file,
                            offset: 0,
                            len: from + len,
                        };
                        let before = (&mut bytes, head_len);
                        outgoing.spooled(exchange, before, &part, from).await
                    }
                };
                if let Err(failure) = sent {
                    return fail(exchange, failure);
                }
                head_len = 0;
                continue;
            }
            Ok(Read::End) => {
                if let Err(failure) = outgoing.finish(&mut bytes) {
                    return fail(exchange, failure);
                }
                true
            }
            Ok(Read::Failed) => return fail(exchange, Failure::UpstreamCut),
            Err(Gone::Client) => return fail(exchange, Failure::ClientGone),
            Err(Gone::TimedOut) => {
                let failure = exchange.context.cut_off();
                return fail(exchange, failure.unwrap_or(Failure::UpstreamStalled));
            }
        };
        let follow = if is_last {
            exchange.follow(persistence)
        } else {
            Follow::Anything
        };
        if !bytes.is_empty()
            && let Err(failure) = put(exchange, &bytes, head_len, follow).await
        {
            return fail(exchange, failure);
        }
        bytes.clear();
        head_len = 0;
        if is_last {
            return answer::outcome(exchange, End::Complete, persistence);
        }
    }
}

/// Bytes that have arrived; `None` if there are none.
fn read_now(follower: &mut Follower, body: &mut Vec<u8>) -> Option<Read> {
    body.clear();
    match follower.poll_read(body, READ_LEN, std::task::Waker::noop()) {
        std::task::Poll::Ready(read) => Some(read),
        std::task::Poll::Pending => None,
    }
}

/// How a client knows the end of a body.
#[derive(Debug, Clone, Copy)]
enum Framing {
    Length(u64),
    Chunks,
    UntilClose,
}

impl Framing {
    /// Appends a part of the body.
    fn push(self, out: &mut Vec<u8>, body: &[u8]) {
        self.begin(out, body.len() as u64);
        out.extend_from_slice(body);
        self.end(out);
    }

    /// Appends the framing before a part of the body.
    fn begin(self, out: &mut Vec<u8>, len: u64) {
        if matches!(self, Framing::Chunks) {
            out.extend_from_slice(format!("{len:x}\r\n").as_bytes());
        }
    }

    /// Appends the framing after a part of the body.
    fn end(self, out: &mut Vec<u8>) {
        if matches!(self, Framing::Chunks) {
            out.extend_from_slice(b"\r\n");
        }
    }
}

fn status_line(out: &mut Vec<u8>, status: u16, reason: &[u8]) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(&write::status_digits(status));
    out.push(b' ');
    out.extend_from_slice(reason);
    out.extend_from_slice(b"\r\n");
}

/// Appends the length of a body. A 204 and a 304 have none (RFC 9110 §8.6).
fn push_length(out: &mut Vec<u8>, status: u16, len: u64) {
    if !matches!(status, 204 | 304) {
        out.extend_from_slice(b"Content-Length: ");
        out.extend_from_slice(itoa::Buffer::new().format(len).as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}
