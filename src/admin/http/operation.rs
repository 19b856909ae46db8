//! `POST /endpoints`: drains, stops or readies an endpoint, or changes its weight. `POST /purge`:
//! drops stored responses. Both need the token, and refuse requests from other sites' pages.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_cache::purge::Strength;
use evenkeel_policy::endpoint::Admin as AdminState;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use hyper::{Request, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::answer::{Answer, json, text};
use super::tokens::{LONGEST_WAIT, Tokens, Verdict};
use crate::admin::operate::{Operation, Operator, operate};
use crate::admin::purge::{PurgeOrder, PurgeScope, Url};
use crate::admin::{Admin, Requester};
use crate::config::MAX_WEIGHT;

/// Longest body, in bytes, and the longest wait for it.
const MAX_BODY_LEN: usize = 4096;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

const NO_TOKEN: &str = "changes are disabled: the configuration has no token\n(write one to a \
    file, and name the file in `token_file` of `[status]`)\n";

/// The form of an order, for people.
const FORM: &str = r#"{"upstream": "NAME", "endpoint": "NAME", "admin": "ready", "drain" or "stop"}, or "weight": N in place of "admin""#;

/// An order to change an endpoint.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    upstream: String,
    endpoint: String,
    admin: Option<Word>,
    weight: Option<u32>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Word {
    Ready,
    Drain,
    Stop,
}

impl Order {
    /// The requested operation, or a text with the reason why there is none.
    fn operation(&self) -> Result<Operation, String> {
        match (self.admin, self.weight) {
            (Some(Word::Ready), None) => Ok(Operation::Admin(AdminState::Ready)),
            (Some(Word::Drain), None) => Ok(Operation::Admin(AdminState::Drain)),
            (Some(Word::Stop), None) => Ok(Operation::Admin(AdminState::Stop)),
            (None, Some(weight)) if weight <= MAX_WEIGHT => Ok(Operation::Weight(weight)),
            (None, Some(_)) => Err(format!("a weight is 0 to {MAX_WEIGHT}\n")),
            _ => Err("write either `admin` or `weight`\n".to_owned()),
        }
    }
}

/// An order to purge, as a request's body has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PurgeForm {
    url: Option<String>,
    prefix: Option<String>,
    tag: Option<String>,
    #[serde(default)]
    everything: bool,
    #[serde(default)]
    soft: bool,
    /// All caches, if it is absent.
    cache: Option<String>,
}

/// The form of an order to purge, for people.
const PURGE_FORM: &str = r#"{"url": "URL"}, or "prefix": "URL", "tag": "TAG" or "everything": true instead of "url"; and "soft": true, "cache": "NAME""#;

impl PurgeForm {
    /// The order, or a text with the reason why it is none.
    fn order(&self) -> Result<PurgeOrder<'_>, String> {
        let what = match (&self.url, &self.prefix, &self.tag, self.everything) {
            (Some(url), None, None, false) => PurgeScope::Url(Url::parse(url)?),
            (None, Some(url), None, false) => PurgeScope::Prefix(Url::parse(url)?),
            (None, None, Some(tag), false) => PurgeScope::Tag(tag),
            (None, None, None, true) => PurgeScope::Everything,
            _ => {
                return Err(format!(
                    "write exactly one of url, prefix, tag and everything\nexpected {PURGE_FORM}"
                ));
            }
        };
        let strength = if self.soft {
            Strength::Soft
        } else {
            Strength::Hard
        };
        Ok(PurgeOrder {
            what,
            strength,
            cache: self.cache.as_deref(),
        })
    }
}

/// Changes an endpoint, or returns the reason why not.
pub(super) async fn change(
    admin: &Admin,
    tokens: &Tokens,
    from: Option<IpAddr>,
    request: Request<Incoming>,
) -> Answer {
    let order: Order = match asked(admin, tokens, from, request, FORM).await {
        Ok(order) => order,
        Err(refusal) => return *refusal,
    };
    let operation = match order.operation() {
        Ok(operation) => operation,
        Err(what) => return text(StatusCode::BAD_REQUEST, what),
    };
    let operator = Operator::Page { from };
    let sources = &admin.sources();
    match operate(
        sources,
        &order.upstream,
        &order.endpoint,
        operation,
        operator,
    ) {
        Ok(done) => json(serde_json::json!({ "done": done }).to_string()),
        Err(unknown) => text(StatusCode::NOT_FOUND, format!("{unknown}\n")),
    }
}

/// Drops stored responses or makes them stale, or returns the reason why not.
pub(super) async fn purge(
    admin: &Arc<Admin>,
    tokens: &Tokens,
    from: Option<IpAddr>,
    request: Request<Incoming>,
) -> Answer {
    let form: PurgeForm = match asked(admin, tokens, from, request, PURGE_FORM).await {
        Ok(form) => form,
        Err(refusal) => return *refusal,
    };
    let purge = move |admin: &Admin| match form.order() {
        Err(what) => text(StatusCode::BAD_REQUEST, format!("{what}\n")),
        Ok(order) => match order.carry_out(&admin.sources(), Operator::Page { from }) {
            Ok(done) => json(serde_json::json!({ "done": done }).to_string()),
            Err(unknown) => text(StatusCode::NOT_FOUND, format!("{unknown}\n")),
        },
    };
    // A purge may wait for a disk.
    admin.aside(Requester::Page, purge).await
}

/// Reads the order of a request with the token, which is not from another site's page.
///
/// # Errors
/// The answer with the reason why nothing is done.
async fn asked<T: DeserializeOwned>(
    admin: &Admin,
    tokens: &Tokens,
    from: Option<IpAddr>,
    request: Request<Incoming>,
    form: &str,
) -> Result<T, Box<Answer>> {
    let config = admin.sources().config.clone();
    let settings = config.status.as_ref();
    let Some(expected) = settings.and_then(|it| it.token.as_deref()) else {
        return Err(Box::new(text(StatusCode::FORBIDDEN, NO_TOKEN)));
    };
    if let Some(refusal) = refusal_of_others(request.headers()) {
        return Err(Box::new(refusal));
    }
    let Some(given) = bearer(request.headers()) else {
        let what = "a token is required, as `Authorization: Bearer …`\n";
        return Err(Box::new(unauthorised(what)));
    };
    match tokens.check(expected, from, given).await {
        Verdict::Right => {}
        Verdict::Wrong => return Err(Box::new(unauthorised("wrong token\n"))),
        Verdict::TooMany => {
            let what = "too many wrong tokens: try again in a few seconds\n";
            let mut answer = text(StatusCode::TOO_MANY_REQUESTS, what);
            let wait = HeaderValue::from(LONGEST_WAIT.as_secs());
            answer.headers_mut().insert(RETRY_AFTER, wait);
            return Err(Box::new(answer));
        }
    }
    let read = read_form(request.into_body(), form).await;
    read.map_err(|(status, what)| Box::new(text(status, what)))
}

/// Reads the form in a request's body.
///
/// # Errors
/// The status and text of the answer, where the form can't be read or understood.
async fn read_form<T: DeserializeOwned>(
    body: Incoming,
    form: &str,
) -> Result<T, (StatusCode, String)> {
    let body = Limited::new(body, MAX_BODY_LEN).collect();
    let body = match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => {
            let what = format!("the body can't be read: {error}\n");
            return Err((StatusCode::PAYLOAD_TOO_LARGE, what));
        }
        Err(_) => {
            let what = "the body did not arrive in time\n";
            return Err((StatusCode::REQUEST_TIMEOUT, what.to_owned()));
        }
    };
    serde_json::from_slice(&body).map_err(|error| {
        let what = format!("{error}\nexpected {form}\n");
        (StatusCode::BAD_REQUEST, what)
    })
}

/// The answer if another site's page may have sent this. For a body of this type, a browser asks
/// first whether such a page may send it, and we never permit that.
fn refusal_of_others(fields: &HeaderMap) -> Option<Answer> {
    let value = |name: &HeaderName| fields.get(name).and_then(|it| it.to_str().ok());
    let content_type = value(&CONTENT_TYPE).unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        let what = "the body must have the type application/json\n";
        return Some(text(StatusCode::UNSUPPORTED_MEDIA_TYPE, what));
    }
    let elsewhere = Some(text(
        StatusCode::FORBIDDEN,
        "pages of other sites cannot make changes here\n",
    ));
    let site = fields.get(HeaderName::from_static("sec-fetch-site"));
    if site.is_some_and(|it| it != "same-origin" && it != "none") {
        return elsewhere;
    }
    if fields.contains_key(ORIGIN) {
        let origin = value(&ORIGIN).unwrap_or_default();
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        match (authority, value(&HOST)) {
            (Some(authority), Some(host)) if authority.eq_ignore_ascii_case(host) => {}
            _ => return elsewhere,
        }
    }
    None
}

fn bearer(fields: &HeaderMap) -> Option<&[u8]> {
    let value = fields.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

fn unauthorised(what: &str) -> Answer {
    let mut answer = text(StatusCode::UNAUTHORIZED, what);
    let bearer = HeaderValue::from_static("Bearer");
    answer.headers_mut().insert(WWW_AUTHENTICATE, bearer);
    answer
}
