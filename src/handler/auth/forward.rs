//! Forward auth: another server decides on each request first, as in nginx's `auth_request` and
//! Traefik's `ForwardAuth`.
//!
//! ```text
//! request ─▶ GET to the upstream of `auth` ─▶ 2xx: goes on, with fields of that answer
//!                                          ├▶ another answer: is the client's
//!                                          └▶ none: 502 or 504, never the route
//! ```
//!
//! The question is an exchange of its own. It uses the upstream's balancer, queue, slots,
//! connections, TLS and health, and counts in its figures.

use std::pin::Pin;
use std::rc::Rc;

use evenkeel_cache::object::push_line;
use evenkeel_cache::validate::is_withheld;
use evenkeel_proto::http1::write::status_digits;
use evenkeel_proto::http1::{Parsed, parse_request};
use evenkeel_proto::{Field, FieldKind, Method, RequestHead};

use crate::config::ForwardAuth;
use crate::exchange::answer::{self, end_head, put};
use crate::exchange::{
    ClientSide, Exchange, Gone, KeptHead, KeptResponse, Next, Outcome, Progress, SetField,
    Subrequest, box_cold,
};
use crate::handler::{proxy, refuse};
use crate::metrics::end::{End, Failure};
use crate::net::clock;
use crate::observe::sessions::Track;

/// Longest body of an answer that is forwarded to the client, in bytes.
const MAX_BODY: usize = 1 << 20;
/// Most bytes of copied fields.
const MAX_COPIED: usize = 16 * 1024;

/// See [`pending_check`](super::pending_check).
pub(super) fn pending_check<'e>(
    exchange: &'e mut Exchange<'_>,
    auth: &'e ForwardAuth,
) -> Pin<Box<dyn Future<Output = Option<Outcome>> + 'e>> {
    box_cold(decide(exchange, auth))
}

async fn decide(exchange: &mut Exchange<'_>, auth: &ForwardAuth) -> Option<Outcome> {
    let Some(question) = Question::of(exchange, auth) else {
        let end = Failure::AuthFailed.into();
        return Some(failed(exchange, end, "the request is too long").await);
    };
    exchange.set_timeout(auth.timeout);
    let asked = ask(exchange, auth, question);
    let failure = match exchange.while_client_stays(asked).await {
        Ok(Ok(KeptResponse { head, .. })) if matches!(head.status, 200..300) => {
            return go_on(exchange, auth, &head).await;
        }
        Ok(Ok(response)) => return Some(pass_on(exchange, &response).await),
        Ok(Err(end)) => return Some(unanswered(exchange, end).await),
        Err(Gone::Client) => Failure::ClientGone,
        Err(Gone::TimedOut) => exchange.context.cut_off().unwrap_or(Failure::AuthTimeout),
    };
    Some(refuse(exchange, failure).await)
}

/// The question to the upstream.
struct Question {
    head: Box<RequestHead>,
    bytes: Vec<u8>,
    /// Fields that describe the client's request.
    told: Rc<[SetField]>,
}

impl Question {
    /// A GET with the client's fields, except those of the body, of conditions and of the
    /// connection. `None` if it is too long.
    fn of(exchange: &Exchange<'_>, auth: &ForwardAuth) -> Option<Self> {
        let (head, from) = (exchange.head, exchange.bytes);
        let mut bytes = Vec::with_capacity(head.wire.end + 64);
        for part in [b"GET ", auth.path.as_bytes(), b" HTTP/1.1\r\n"] {
            bytes.extend_from_slice(part);
        }
        push_line(&mut bytes, b"Host", head.host.of(from));
        for field in &head.fields {
            if is_shown(field, from) {
                push_line(&mut bytes, field.name.of(from), field.value.of(from));
            }
        }
        bytes.extend_from_slice(b"\r\n");
        let mut parsed = exchange.context.heads.take();
        let is_whole = parse_request(&bytes, &mut parsed) == Ok(Parsed::Complete);
        is_whole.then(|| Question {
            head: parsed,
            bytes,
            told: told(exchange),
        })
    }
}

/// Whether the upstream gets a field of the request.
fn is_shown(field: &Field, bytes: &[u8]) -> bool {
    let name = field.name.of(bytes);
    let is_of_message = field.kind.is_of_one_message() || field.kind == FieldKind::MaxForwards;
    let begins = |with: &[u8]| {
        let start = name.get(..with.len());
        start.is_some_and(|it| it.eq_ignore_ascii_case(with))
    };
    !is_of_message && !is_withheld(name) && !begins(b"content-") && !begins(b"if-")
}

/// Describes the client's request in the fields that auth servers expect: those of Traefik and
/// Caddy, and those of nginx. They replace the client's own.
fn told(exchange: &Exchange<'_>) -> Rc<[SetField]> {
    let (head, bytes) = (exchange.head, exchange.bytes);
    let method = head.method_span.of(bytes);
    let target = match head.path_and_query.of(bytes) {
        target if target.starts_with(b"/") => target.to_vec(),
        // The absolute form may come without a path.
        target => [head.path(bytes), target].concat(),
    };
    let scheme = exchange.client.scheme().as_str().as_bytes();
    let url = [scheme, b"://", head.host.of(bytes), &target].concat();
    [
        ("X-Forwarded-Method", method.to_vec()),
        ("X-Forwarded-Uri", target.clone()),
        ("X-Original-Method", method.to_vec()),
        ("X-Original-URI", target),
        ("X-Original-URL", url),
    ]
    .map(|(name, value)| SetField {
        name: name.into(),
        values: vec![value],
    })
    .into()
}

/// Asks the upstream, as an exchange of its own. Returns its whole answer.
///
/// # Errors
/// The end of that exchange, if there is no answer.
fn ask<'a>(
    exchange: &Exchange<'a>,
    auth: &ForwardAuth,
    question: Question,
) -> impl Future<Output = Result<KeptResponse, End>> + use<'a> {
    let context = exchange.context;
    let client = exchange.client.for_fetch();
    let identity = exchange.progress.identity.of_copy(&question.head);
    let proxying = auth.proxying;
    async move {
        let timer = context.wheel.timer();
        timer.register_task().await;
        let progress = Progress::new(
            context,
            &client,
            clock::now(),
            Default::default(),
            question.head.wire.end,
            &identity,
            Track::unlisted(),
        );
        let mut side = Subrequest::new(MAX_BODY);
        let mut asking = Exchange::new(
            context,
            &client,
            ClientSide::Subrequest(&mut side),
            timer,
            &question.bytes,
            &question.head,
            progress,
        );
        asking.rare().set_fields = Some(question.told.clone());
        let outcome = proxy::forward(&mut asking, &proxying).await;
        asking.conclude_fetch(outcome.end);
        match (outcome.end, side.response()) {
            (End::Complete, Some(response)) => Ok(response),
            // The body was too long.
            (End::Complete | End::Failure(Failure::ClientGone), _) => {
                Err(Failure::AuthFailed.into())
            }
            (end, _) => Err(end),
        }
    }
}

/// Lets a request pass, with fields of the answer.
async fn go_on(
    exchange: &mut Exchange<'_>,
    auth: &ForwardAuth,
    head: &KeptHead,
) -> Option<Outcome> {
    let fields = auth.copy.iter().map(|name| SetField {
        name: name.as_str().into(),
        values: head.values(name).map(<[u8]>::to_vec).collect(),
    });
    let fields: Rc<[SetField]> = fields.collect();
    let values = fields.iter().flat_map(|it| &it.values);
    if values.map(Vec::len).sum::<usize>() > MAX_COPIED {
        let end = Failure::AuthFailed.into();
        return Some(failed(exchange, end, "the fields to copy are too long").await);
    }
    let user = head.values(&auth.user).next();
    let user = user.map(|it| {
        String::from_utf8_lossy(it)
            .chars()
            .filter(|it| !it.is_control())
            .collect()
    });
    let rare = exchange.rare();
    rare.user = user.map(String::into_boxed_str);
    rare.set_fields = (!fields.is_empty()).then_some(fields);
    None
}

/// Refuses a request without an answer from the upstream.
async fn unanswered(exchange: &mut Exchange<'_>, end: End) -> Outcome {
    use Failure::{AuthFailed, AuthTimeout, GenerationTimeout, Stopped};
    let failure = match end {
        End::Failure(failure @ (Stopped | GenerationTimeout)) => failure,
        _ if end.status() == 504 => AuthTimeout,
        _ => AuthFailed,
    };
    // The exchange's own word says more.
    let detail = match end {
        End::Failure(AuthFailed) => "its answer is too long",
        end => end.word(),
    };
    failed(exchange, failure.into(), detail).await
}

async fn failed(exchange: &mut Exchange<'_>, end: End, detail: &str) -> Outcome {
    let detail = format!(": {detail}");
    answer::refuse_with(exchange, end, end.status(), &detail, &[], None).await
}

/// Forwards the upstream's answer: a login page, or a redirect there.
async fn pass_on(exchange: &mut Exchange<'_>, response: &KeptResponse) -> Outcome {
    let KeptResponse { head, body } = response;
    let status = head.status;
    let end = End::Failure(match status {
        500.. => Failure::AuthFailed,
        _ => Failure::Unauthorized,
    });
    let persistence = answer::persistence(exchange);
    let mut bytes = Vec::with_capacity(256 + head.lines.len() + body.len());
    for part in [
        b"HTTP/1.1 ",
        &status_digits(status)[..],
        b" ",
        &head.reason,
        b"\r\n",
        &head.lines,
    ] {
        bytes.extend_from_slice(part);
    }
    let has_length = !matches!(status, 204 | 304);
    if has_length {
        push_line(
            &mut bytes,
            b"Content-Length",
            itoa::Buffer::new().format(body.len()).as_bytes(),
        );
    }
    end_head(&mut bytes, exchange, persistence);
    let head_len = bytes.len();
    if has_length && exchange.head.method != Method::Head {
        bytes.extend_from_slice(body);
    }
    exchange.progress.figures.status = status;
    let follow = exchange.follow(persistence);
    match put(exchange, &bytes, head_len, follow).await {
        Err(failure) => Outcome::after_head(exchange, failure.into(), Next::Cut),
        Ok(()) => answer::outcome(exchange, end, persistence),
    }
}
