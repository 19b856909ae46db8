//! Answers that the proxy makes itself.

use std::borrow::Cow;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use evenkeel_policy::Instant;
use evenkeel_policy::endpoint::EndpointState;
use evenkeel_proto::http1::write::{self, Persistence};
use evenkeel_proto::http1::{BodyDecoder, reason_phrase};
use evenkeel_proto::{BodyFraming, Method, RequestHead};

use super::context::FetchedPage;
use super::drain::{is_within_bounds, rest_of_body};
use super::edits::edit_response;
use super::error_page;
use super::identity::ROOM;
use super::pump::Unread;
use super::{Exchange, Next, Outcome, RestOfBody, Sender, Worker, WriteFailure, box_cold};
use crate::config::{ErrorPage, Upstream};
use crate::metrics::end::{End, Failure};
use crate::net::clock;
use crate::net::stream::Follow;
use crate::observe::figures::EndpointStatus;

/// An answer of our own.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// Status code.
    pub status: u16,
    /// Value of `Content-Type`.
    pub content_type: &'a str,
    /// Value of `Location`, for redirects.
    pub location: Option<&'a str>,
    /// Value of `Allow`, for a method that is not allowed.
    pub allow: Option<&'a str>,
    /// Value of `Retry-After`, in seconds.
    pub retry_after_s: Option<u32>,
    /// Further fields, as names and values. None of them is written elsewhere.
    pub headers: &'a [(String, String)],
    /// The body.
    pub body: &'a [u8],
}

impl Answer<'_> {
    /// An answer with only a status.
    pub const EMPTY: Self = Answer {
        status: 200,
        content_type: TEXT,
        location: None,
        allow: None,
        retry_after_s: None,
        headers: &[],
        body: b"",
    };
}

/// Bodies up to this length, in bytes, are copied behind their heads.
const COPIED_LEN: usize = 16 * 1024;

/// Sends `answer`, and counts the bytes.
///
/// # Errors
/// The client has closed, or has read nothing until the timer fired.
pub async fn send(
    exchange: &mut Exchange<'_>,
    answer: &Answer<'_>,
    persistence: Persistence,
) -> Result<(), Failure> {
    let mut bytes = Vec::with_capacity(256 + answer.body.len().min(COPIED_LEN));
    write_head(&mut bytes, exchange.context, answer);
    end_head(&mut bytes, exchange, persistence);
    let head_len = bytes.len();
    let body = match answer.status {
        204 | 304 => &[],
        _ if exchange.head.method == Method::Head => &[],
        _ => answer.body,
    };
    // A long body belongs to the configuration. It is not copied, as a slow client would hold the
    // copy.
    let (joined, rest) = match body.len() {
        ..=COPIED_LEN => (body, &[][..]),
        _ => (&[][..], body),
    };
    bytes.extend_from_slice(joined);
    exchange.progress.figures.status = answer.status;
    let follow = exchange.follow(persistence);
    let follows_first = match rest {
        [] => follow,
        _ => Follow::More,
    };
    put(exchange, &bytes, head_len, follows_first).await?;
    if rest.is_empty() {
        return Ok(());
    }
    put(exchange, rest, 0, follow).await
}

/// Sends a part of our own answer, and counts the bytes. The first `head_len` bytes belong to its
/// head.
///
/// # Errors
/// The client has closed, or has read nothing for its `timeouts.body`.
pub(crate) fn put(
    exchange: &mut Exchange<'_>,
    bytes: &[u8],
    head_len: usize,
    follow: Follow,
) -> impl Future<Output = Result<(), Failure>> {
    put_or(exchange, bytes, head_len, follow)
}

/// The same for callers with another error type. Mapping the error would hold the future twice.
pub(crate) fn put_or<E: From<Failure>>(
    exchange: &mut Exchange<'_>,
    bytes: &[u8],
    head_len: usize,
    follow: Follow,
) -> impl Future<Output = Result<(), E>> {
    async move {
        let timeout = exchange.listener().timeouts.body;
        let writing = exchange.write_all(bytes, head_len, follow, Some(timeout));
        let (sent, written) = writing.await;
        let figures = &mut exchange.progress.figures;
        figures.bytes_out += sent as u64;
        figures.body_bytes_out += sent.saturating_sub(head_len) as u64;
        written.map_err(|why| exchange.write_failed(why).into())
    }
}

/// Why a part of a file was not sent whole.
#[derive(Debug)]
pub(crate) enum UnsentFile {
    /// The file has become shorter.
    Short,
    /// The file can't be read.
    Unreadable(std::io::Error),
    /// The client has closed, or has read nothing for its `timeouts.body`.
    Client(Failure),
}

/// Sends a part of a file without a copy, and counts the bytes. For clients to which [files can
/// be sent](super::ClientSide::can_send_file).
///
/// # Errors
/// The part was not sent whole.
pub(crate) async fn put_file(
    exchange: &mut Exchange<'_>,
    file: BorrowedFd<'_>,
    offset: u64,
    len: u64,
) -> Result<(), UnsentFile> {
    let timeout = exchange.listener().timeouts.body;
    exchange.set_timeout(timeout);
    let mut sent = 0;
    let result = std::future::poll_fn(|cx| {
        while sent < len {
            let rest = (len - sent) as usize;
            let side = &mut exchange.side;
            match side.poll_send_file(cx, file, offset + sent, rest) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(UnsentFile::Short)),
                Poll::Ready(Ok(part)) => {
                    sent += part as u64;
                    exchange.set_timeout(timeout);
                }
                Poll::Ready(Err(error)) if !is_of_connection(&error) => {
                    return Poll::Ready(Err(UnsentFile::Unreadable(error)));
                }
                Poll::Ready(Err(_)) => {
                    let failure = exchange.write_failed(WriteFailure::Closed);
                    return Poll::Ready(Err(UnsentFile::Client(failure)));
                }
                Poll::Pending if exchange.has_timed_out() => {
                    let failure = exchange.write_failed(WriteFailure::TimedOut);
                    return Poll::Ready(Err(UnsentFile::Client(failure)));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    })
    .await;
    let figures = &mut exchange.progress.figures;
    figures.bytes_out += sent;
    figures.body_bytes_out += sent;
    result
}

/// Whether an error of sending a file comes from the client's connection.
fn is_of_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut,
    };
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | TimedOut
    )
}

fn write_head(out: &mut Vec<u8>, worker: &Worker, answer: &Answer<'_>) {
    begin_head(out, worker, answer.status, clock::now());
    let mut field = |name: &str, value: &[u8]| push_field(out, name, value);
    if let Some(allow) = answer.allow {
        field("Allow: ", allow.as_bytes());
    }
    if let Some(location) = answer.location {
        field("Location: ", location.as_bytes());
    }
    if let Some(seconds) = answer.retry_after_s {
        field(
            "Retry-After: ",
            itoa::Buffer::new().format(seconds).as_bytes(),
        );
    }
    for (name, value) in answer.headers {
        out.extend_from_slice(name.as_bytes());
        push_field(out, ": ", value.as_bytes());
    }
    let mut field = |name: &str, value: &[u8]| push_field(out, name, value);
    if !matches!(answer.status, 204 | 304) {
        field("Content-Type: ", answer.content_type.as_bytes());
        let len = answer.body.len();
        field(
            "Content-Length: ",
            itoa::Buffer::new().format(len).as_bytes(),
        );
    }
}

/// Writes the status line, and the first fields of all our own answers.
pub fn begin_head(out: &mut Vec<u8>, worker: &Worker, status: u16, now: Instant) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(&write::status_digits(status));
    push_field(out, " ", reason_phrase(status).as_bytes());
    let date = worker.access_log.http_date(now);
    push_field(out, "Server: evenkeel\r\nDate: ", &date);
}

/// Writes the last fields of all our own answers, and the empty line. Then makes the route's
/// edits. The head begins at the front of `out`.
pub fn end_head(out: &mut Vec<u8>, exchange: &Exchange<'_>, persistence: Persistence) {
    let mut room = ROOM;
    let identity = exchange.progress.identity;
    if let Some(id) = identity.response_id(exchange.bytes, &mut room) {
        write::request_id_field(out, id);
    }
    if let Some(value) = exchange.listener().strict_transport() {
        write::add_strict_transport(out, value);
    }
    write::connection_field(out, persistence);
    out.extend_from_slice(b"\r\n");
    if let Some(edits) = exchange.response_edits() {
        let head = std::mem::take(out);
        edit_response(out, &head, exchange, edits);
    }
    if exchange.tells_limits() {
        out.truncate(out.len() - b"\r\n".len());
        exchange.push_limit_fields(out);
        out.extend_from_slice(b"\r\n");
    }
}

/// Writes `name`, `value` and the end of the line.
fn push_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// The persistence of the connection for our own answer, where no body was read.
pub(crate) fn persistence(exchange: &Exchange<'_>) -> Persistence {
    exchange.persistence(rest_of_body(exchange))
}

/// The outcome of an exchange with our own answer, where no body was read.
pub(crate) fn outcome(exchange: &Exchange<'_>, end: End, persistence: Persistence) -> Outcome {
    let head = exchange.head;
    let has_body = head.wire.framing != BodyFraming::None;
    let next = Next::after(persistence, rest_of_body(exchange));
    let is_drained = has_body && !matches!(next, Next::Linger { .. });
    Outcome {
        unread: is_drained.then(|| Box::new(BodyDecoder::new(head.wire.framing))),
        ..Outcome::after_head(exchange, end, next)
    }
}

/// The answer to a connection that is refused before its request is read.
pub fn refusal(worker: &Worker, end: End) -> Vec<u8> {
    let text = refusal_text(end.status(), end, "");
    let answer = Answer {
        status: end.status(),
        retry_after_s: Some(1),
        body: text.as_bytes(),
        ..Answer::EMPTY
    };
    let mut bytes = Vec::with_capacity(256 + text.len());
    write_head(&mut bytes, worker, &answer);
    write::connection_field(&mut bytes, Persistence::Close);
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(answer.body);
    bytes
}

/// The page of a refusal, without the fields of that refusal.
struct Page<'a> {
    status: u16,
    content_type: &'a str,
    headers: &'a [(String, String)],
    body: Cow<'a, [u8]>,
}

/// The route's page for an error, fetched where it comes from an upstream.
struct OwnPage<'a> {
    settings: &'a ErrorPage,
    fetched: Option<Rc<FetchedPage>>,
}

impl<'a> OwnPage<'a> {
    /// `None` where the route has no page, or its upstream gives none.
    async fn of(exchange: &Exchange<'a>, end: End, status: u16) -> Option<Self> {
        let settings = own_page(exchange, end, status)?;
        let fetched = match settings.source {
            None => None,
            Some(_) => Some(box_cold(error_page::fetched(exchange, settings)).await?),
        };
        Some(OwnPage { settings, fetched })
    }

    fn page(&self, status: u16) -> Page<'_> {
        let fetched = self.fetched.as_deref();
        let content_type = fetched.and_then(|it| it.content_type.as_deref());
        Page {
            status: self.settings.status.unwrap_or(status),
            content_type: content_type.unwrap_or(&self.settings.content_type),
            headers: &self.settings.headers,
            body: Cow::Borrowed(fetched.map_or(&self.settings.body, |it| &it.body)),
        }
    }
}

impl Page<'_> {
    /// The value of `Retry-After`, unless the page has its own.
    fn retry_after_s(&self, seconds: Option<u32>) -> Option<u32> {
        let mut names = self.headers.iter().map(|(name, _)| name);
        let has_own = names.any(|it| it.eq_ignore_ascii_case("retry-after"));
        seconds.filter(|_| !has_own)
    }
}

/// The route's page for an error, or a short text with the reason, which ends in `detail`.
fn page<'p>(own: Option<&'p OwnPage<'_>>, end: End, status: u16, detail: &str) -> Page<'p> {
    match own {
        Some(own) => own.page(status),
        None => Page {
            status,
            content_type: TEXT,
            headers: &[],
            body: Cow::Owned(refusal_text(status, end, detail).into_bytes()),
        },
    }
}

/// The route's page for an error, if it has one.
fn own_page<'a>(exchange: &Exchange<'a>, end: End, status: u16) -> Option<&'a ErrorPage> {
    let mut pages = exchange.route()?.error_pages.iter();
    pages.find(|it| it.errors.has(end.word(), status))
}

/// The text of a refusal.
fn refusal_text(status: u16, end: End, detail: &str) -> String {
    let phrase = reason_phrase(status);
    let why = reason_text(end, detail);
    format!("{status} {phrase}\n\n{why}\n")
}

/// The reason of a refusal: the log's word, and words for people.
fn reason_text(end: End, detail: &str) -> String {
    let (word, words) = (end.word(), end.text());
    format!("{word}: {words}{detail}")
}

/// The type of such texts.
const TEXT: &str = "text/plain; charset=utf-8";

/// Refuses a request with a short answer, which has the reason as the log's word. `unread` is the
/// rest of the body, and the next request, if more was read than the client's buffer has.
///
/// Returns the end for the log: that of the refusal, whether or not the client stayed for it.
pub async fn refuse(exchange: &mut Exchange<'_>, end: End, unread: Option<Box<Unread>>) -> Outcome {
    let head = exchange.head_read();
    let consumed = head.map_or(exchange.bytes.len(), |head| head.wire.end);
    let is_unread = matches!(
        end,
        End::Failure(Failure::ClientGone | Failure::ClientStalled)
    );
    if is_unread || exchange.progress.figures.has_half_head {
        return Outcome::new(end, Next::Close, consumed);
    }
    let body = match (head, unread) {
        (Some(head), _) if !leaves_connection_usable(head, end) => Body::Lost,
        (Some(_), Some(unread)) => {
            if is_within_bounds(exchange, &unread.decoder) {
                Body::Partly(unread)
            } else {
                Body::Lost
            }
        }
        (Some(_), None) => Body::Untouched,
        (None, _) => Body::Lost,
    };
    let persistence = match &body {
        Body::Untouched => self::persistence(exchange),
        Body::Partly(_) => exchange.persistence(RestOfBody::Read),
        Body::Lost => Persistence::Close,
    };
    if send_refusal(exchange, end, persistence).await.is_err() {
        return Outcome::new(end, Next::Close, consumed);
    }
    match body {
        Body::Untouched => outcome(exchange, end, persistence),
        Body::Partly(unread) => {
            let next = Next::after(persistence, RestOfBody::Read);
            Outcome::new(end, next, exchange.bytes.len()).with_unread(*unread)
        }
        Body::Lost => {
            use Failure::{BodyTimeout, ClientSlow, HeadTimeout, ProxyHeaderTimeout};
            let sender = match end {
                End::Failure(HeadTimeout | ProxyHeaderTimeout | BodyTimeout | ClientSlow) => {
                    Sender::Late
                }
                _ => Sender::Answered,
            };
            Outcome::new(end, Next::Linger { sender }, consumed)
        }
    }
}

/// Refuses a request of which only the head was read, with these further fields. A text with the
/// reason ends in `detail`.
pub(crate) async fn refuse_with(
    exchange: &mut Exchange<'_>,
    end: End,
    status: u16,
    detail: &str,
    fields: &[(String, String)],
    retry_after_s: Option<u32>,
) -> Outcome {
    let persistence = self::persistence(exchange);
    let why = reason_text(end, detail);
    let of_call = exchange.answer_call(end, status, &why, persistence).await;
    let (sent, persistence) = match of_call {
        Some(sent) => (sent, persistence),
        None => {
            let own = OwnPage::of(exchange, end, status).await;
            let page = page(own.as_ref(), end, status, detail);
            let answer = Answer {
                status: page.status,
                content_type: page.content_type,
                retry_after_s: page.retry_after_s(retry_after_s),
                headers: &[page.headers, fields].concat(),
                body: &page.body,
                ..Answer::EMPTY
            };
            // The listener may have started to close meanwhile.
            let persistence = self::persistence(exchange);
            (send(exchange, &answer, persistence).await, persistence)
        }
    };
    match sent {
        Err(failure) => Outcome::after_head(exchange, failure.into(), Next::Cut),
        Ok(()) => outcome(exchange, end, persistence),
    }
}

/// Sends the refusal of a request: the configured answer, or a page with the reason.
async fn send_refusal(
    exchange: &mut Exchange<'_>,
    end: End,
    persistence: Persistence,
) -> Result<(), Failure> {
    let context = exchange.context;
    let upstream_index = exchange.progress.upstream();
    let upstream = upstream_index.map(|index| &context.config().upstreams[index]);
    let queue_answer = match end {
        End::Failure(Failure::DiskBusy | Failure::AnswerMemory) => exchange
            .progress
            .files(context)
            .map(|(_, files)| &files.overload),
        _ => upstream.map(|upstream| &upstream.queue.answer),
    };
    // The configured answer for requests without a slot.
    let overload = queue_answer.filter(|_| is_overload(end));
    let status = match overload {
        Some(answer) => answer.status,
        None => refusal_status(end, upstream),
    };
    let why = reason_text(end, "");
    if let Some(sent) = exchange.answer_call(end, status, &why, persistence).await {
        return sent;
    }
    let of_queue = overload.and_then(|answer| answer.body.as_ref());
    let own = OwnPage::of(exchange, end, status).await;
    let of_queue = of_queue.filter(|_| own.is_none());
    let page = match of_queue {
        Some((content_type, body)) => Page {
            status,
            content_type,
            headers: &[],
            body: Cow::Borrowed(body),
        },
        None => {
            let detail = match (end, upstream_index) {
                (End::Failure(Failure::NoEndpoint), Some(index)) => {
                    outage(context.upstream(index).members().endpoints())
                }
                _ => String::new(),
            };
            page(own.as_ref(), end, status, &detail)
        }
    };
    let is_for_now = status == 503 || overload.is_some();
    let mut headers = page.headers.to_vec();
    if end == End::Failure(Failure::CodedRequest) {
        // The coding that the client may send instead (RFC 9110 §12.5.3).
        headers.push(("Accept-Encoding".to_owned(), "identity".to_owned()));
    }
    let answer = Answer {
        status: page.status,
        content_type: page.content_type,
        allow: (status == 405).then_some("GET, HEAD"),
        retry_after_s: page
            .retry_after_s(is_for_now.then(|| queue_answer.map_or(1, |it| it.retry_after_s))),
        headers: &headers,
        body: &page.body,
        ..Answer::EMPTY
    };
    send(exchange, &answer, persistence).await
}

/// Forwards the status of a gRPC call that an endpoint has refused and that could not be retried.
/// The whole request was read.
pub(super) async fn pass_status(exchange: &mut Exchange<'_>) -> Outcome {
    let persistence = exchange.persistence(RestOfBody::Read);
    let end = match exchange.answer_refused_call(persistence).await {
        Some(Err(failure)) => failure.into(),
        Some(Ok(())) | None => End::Complete,
    };
    let next = match end {
        End::Complete => Next::after(persistence, RestOfBody::Read),
        _ => Next::Cut,
    };
    Outcome::new(end, next, exchange.bytes.len())
}

/// The body of a request that is refused.
enum Body {
    /// No more was read than came with the head.
    Untouched,
    /// More was read.
    Partly(Box<Unread>),
    /// Its end is unknown, or will not come.
    Lost,
}

/// The states of endpoints, as the end of a sentence: ": 2 down, 1 draining". Their addresses
/// stay private.
fn outage(states: &[Arc<EndpointState>]) -> String {
    let word_of = |state: &EndpointState| match EndpointStatus::of(state) {
        EndpointStatus::Up | EndpointStatus::Starting if state.is_refusing() => {
            "refusing connections"
        }
        state => state.word(),
    };
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for state in states {
        let word = word_of(state);
        match counts.iter_mut().find(|(of, _)| *of == word) {
            Some((_, count)) => *count += 1,
            None => counts.push((word, 1)),
        }
    }
    let counts: Vec<_> = counts
        .iter()
        .map(|(word, count)| format!("{count} {word}"))
        .collect();
    if counts.is_empty() {
        String::new()
    } else {
        format!(": {}", counts.join(", "))
    }
}

/// The status of a refusal: the configured one, where the request got no slot.
pub fn refusal_status(end: End, upstream: Option<&Upstream>) -> u16 {
    match upstream {
        Some(upstream) if end == End::Failure(Failure::Busy) => upstream.busy_status,
        Some(upstream) if is_overload(end) => upstream.queue.answer.status,
        _ => end.status(),
    }
}

/// Whether the request got no slot.
fn is_overload(end: End) -> bool {
    let End::Failure(failure) = end else {
        return false;
    };
    matches!(
        failure,
        Failure::Saturated
            | Failure::QueueFull
            | Failure::QueueTimeout
            | Failure::NoEndpoint
            | Failure::DiskBusy
            | Failure::AnswerMemory
    )
}

/// Whether another request can follow a refused one, once its body is read.
fn leaves_connection_usable(head: &RequestHead, end: End) -> bool {
    let is_well_formed = match end {
        End::Response(_) => true,
        // The body did not come, or the program or the generation ends.
        End::Failure(failure) => !matches!(
            failure,
            Failure::BodyTimeout
                | Failure::ClientSlow
                | Failure::Stopped
                | Failure::GenerationTimeout
        ),
        _ => false,
    };
    is_well_formed && head.method != Method::Connect
}
