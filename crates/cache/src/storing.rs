//! Whether a response may be stored (RFC 9111 §3), with a word for each refusal.

use std::fmt;

use evenkeel_policy::Instant;
use evenkeel_proto::http1::edit::{SameName, is_same};
use evenkeel_proto::{BodyFraming, FieldKind, Method, date};

use crate::control::{Directives, RequestDirectives, Seconds, delta_seconds};
use crate::freshness::Lifetime;
use crate::message::{Request, Response};
use crate::rules::{ClientDirectives, Rules, whole_seconds};

/// Why a response is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotStored {
    /// The request is no GET.
    Method,
    /// The request has a body, which the key does not show.
    RequestBody,
    /// The request asks an endpoint to take it for another method, which the key does
    /// not show.
    MethodOverride,
    /// The request has a condition that only an endpoint can evaluate (RFC 9111 §4.3.2):
    /// `If-Match` or `If-Unmodified-Since`.
    Condition,
    /// The request says `no-store`.
    RequestNoStore,
    /// The status is one of a part, of a condition or of a connection.
    Status,
    /// The response says `no-store`.
    NoStore,
    /// The response says `private`.
    Private,
    /// The response says `must-understand`, and its status is unknown.
    NotUnderstood,
    /// The request had credentials, and the response does not say that it is for all
    /// (RFC 9111 §3.5).
    Authorization,
    /// The response sets a cookie and does not say that it is for all.
    SetCookie,
    /// The response has no directives for caches, and the request had a cookie.
    Cookie,
    /// The response says `Vary: *`, or names a field that the route sets by the request.
    VaryStar,
    /// It would never be served: it is stale at once, and has nothing to be
    /// validated by.
    NeverFresh,
    /// The body is longer than the route or the store takes.
    TooLarge,
    /// Too much of the store is taken by responses that arrive.
    NoRoom,
    /// The key was invalidated during the fetch, by an unsafe request.
    Outdated,
    /// The body was cut off, or has not the length that was announced.
    Incomplete,
}

impl NotStored {
    /// All of them.
    pub const ALL: [Self; 18] = [
        NotStored::Method,
        NotStored::RequestBody,
        NotStored::MethodOverride,
        NotStored::Condition,
        NotStored::RequestNoStore,
        NotStored::Status,
        NotStored::NoStore,
        NotStored::Private,
        NotStored::NotUnderstood,
        NotStored::Authorization,
        NotStored::SetCookie,
        NotStored::Cookie,
        NotStored::VaryStar,
        NotStored::NeverFresh,
        NotStored::TooLarge,
        NotStored::NoRoom,
        NotStored::Outdated,
        NotStored::Incomplete,
    ];

    /// The word for logs, counters and `explain`.
    pub fn word(self) -> &'static str {
        self.words().0
    }

    /// Half a sentence for people.
    pub fn text(self) -> &'static str {
        self.words().1
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            NotStored::Method => ("method", "caches answer GET and HEAD"),
            NotStored::RequestBody => ("request-body", "the request has a body"),
            NotStored::MethodOverride => ("method-override", "a header asks for another method"),
            NotStored::Condition => ("condition", "its condition is for an endpoint to decide"),
            NotStored::RequestNoStore => ("request-no-store", "the request says no-store"),
            NotStored::Status => ("status", "answers of this status are never stored"),
            NotStored::NoStore => ("no-store", "the answer says no-store"),
            NotStored::Private => ("private", "the answer says private"),
            NotStored::NotUnderstood => (
                "must-understand",
                "the answer says must-understand, and its status is unknown",
            ),
            NotStored::Authorization => (
                "authorization",
                "the request has credentials, and the answer is not public",
            ),
            NotStored::SetCookie => ("set-cookie", "the answer sets a cookie"),
            NotStored::Cookie => (
                "cookie",
                "the request has a cookie, and the answer has no cache headers",
            ),
            NotStored::VaryStar => (
                "vary-star",
                "the answer has Vary: *, or it varies by too many headers or by one that the \
                 route sets",
            ),
            NotStored::NeverFresh => ("never-fresh", "the answer is stale at once"),
            NotStored::TooLarge => ("too-large", "the answer is too long for the cache"),
            NotStored::NoRoom => ("no-room", "incoming responses fill the memory of the cache"),
            NotStored::Outdated => ("outdated", "an unsafe request arrived in the meantime"),
            NotStored::Incomplete => ("incomplete", "the answer was cut off"),
        }
    }
}

impl fmt::Display for NotStored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// When a response was asked for and when its head came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// When the request was sent.
    pub asked: Instant,
    /// When the head was there.
    pub arrived: Instant,
    /// The same moment, in seconds since 1970.
    pub unix_s: u64,
}

impl Rules {
    /// Whether a stored response may answer the request, and whether its response may be
    /// stored, as far as the request tells.
    ///
    /// # Errors
    ///
    /// The reason against it. [`NotStored::Method`] is no reason for HEAD: a stored response
    /// answers it, but its own response is not stored.
    pub fn may_answer(&self, request: &Request<'_>) -> Result<(), NotStored> {
        const OVERRIDES: [&[u8]; 3] = [
            b"x-http-method-override",
            b"x-http-method",
            b"x-method-override",
        ];
        if !matches!(request.head.method, Method::Get | Method::Head) {
            return Err(NotStored::Method);
        }
        if request.head.wire.framing != BodyFraming::None {
            return Err(NotStored::RequestBody);
        }
        if OVERRIDES.iter().any(|name| request.has(name)) {
            return Err(NotStored::MethodOverride);
        }
        if request.has(b"if-match") || request.has(b"if-unmodified-since") {
            return Err(NotStored::Condition);
        }
        Ok(())
    }

    /// Whether a response may be stored, and for how long it is fresh.
    ///
    /// # Errors
    ///
    /// Why it may not be stored.
    pub fn may_store(
        &self,
        request: &Request<'_>,
        response: &Response<'_>,
        received: &Received,
    ) -> Result<Lifetime, NotStored> {
        self.may_answer(request)?;
        if request.head.method != Method::Get {
            return Err(NotStored::Method);
        }
        self.may_keep(request, response, received)
    }

    /// Whether a response whose body is there may be stored: as
    /// [`may_store`](Self::may_store), whatever the request is.
    pub(crate) fn may_keep(
        &self,
        request: &Request<'_>,
        response: &Response<'_>,
        received: &Received,
    ) -> Result<Lifetime, NotStored> {
        if self.client_directives == ClientDirectives::Honoured
            && RequestDirectives::of(request).no_store
        {
            return Err(NotStored::RequestNoStore);
        }
        let facts = Facts::of(response);
        facts.is_permitted(self, request)?;
        if self.varies_by_edited(response) {
            return Err(NotStored::VaryStar);
        }
        let lifetime = facts.lifetime(self, received);
        let is_said = facts.is_explicit() || self.ttl_of(facts.status).is_some();
        if !is_said && request.has(b"cookie") {
            return Err(NotStored::Cookie);
        }
        let is_useful = lifetime.may_be_served() || facts.has_validator;
        if !is_useful || !(is_said || is_heuristic(facts.status)) {
            return Err(NotStored::NeverFresh);
        }
        if let BodyFraming::Length { bytes } = response.head.wire.framing
            && !self.admits(bytes)
        {
            return Err(NotStored::TooLarge);
        }
        Ok(lifetime)
    }

    /// Whether the response depends on a field whose value no other request shows.
    fn varies_by_edited(&self, response: &Response<'_>) -> bool {
        let is_edited = |name: &[u8]| {
            let mut edited = self.edited.iter();
            let name = name.trim_ascii();
            edited.any(|it| is_same(it.as_bytes(), name, SameName::AsVariable))
        };
        !self.edited.is_empty()
            && response
                .values("vary")
                .any(|line| line.split(|&byte| byte == b',').any(is_edited))
    }

    /// The lifetime of a stored response whose head was renewed (RFC 9111 §4.3.4).
    pub fn renewed_lifetime(&self, response: &Response<'_>, received: &Received) -> Lifetime {
        Facts::of(response).lifetime(self, received)
    }
}

/// The facts in a response's head that decide about storing.
struct Facts {
    status: u16,
    directives: Directives,
    expires: Stated<u64>,
    date: Option<u64>,
    age: Stated<Seconds>,
    modified: Option<u64>,
    has_validator: bool,
    sets_cookie: bool,
    varies_by_all: bool,
}

/// A field that is to stand once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stated<T> {
    #[default]
    Absent,
    Once(T),
    /// The field is unreadable, or is there several times.
    Invalid,
}

impl<T: PartialEq> Stated<T> {
    fn add(&mut self, value: Option<T>) {
        *self = match (&*self, value) {
            (Stated::Absent, Some(value)) => Stated::Once(value),
            _ => Stated::Invalid,
        };
    }
}

impl Facts {
    fn of(response: &Response<'_>) -> Self {
        let bytes = response.bytes;
        let mut facts = Facts {
            status: response.head.status,
            directives: Directives::of(response),
            expires: Stated::Absent,
            date: None,
            age: Stated::Absent,
            modified: None,
            has_validator: false,
            sets_cookie: false,
            varies_by_all: false,
        };
        for field in &response.head.fields {
            let value = field.value.of(bytes);
            let is = |known: &str| field.is_named(known.as_bytes(), bytes);
            match field.name.len() {
                _ if field.kind == FieldKind::Date => facts.date = date::parse(value),
                3 if is("age") => facts.age.add(delta_seconds(value)),
                4 if is("etag") => facts.has_validator |= !value.is_empty(),
                4 if is("vary") => {
                    let mut names = value.split(|&byte| byte == b',');
                    facts.varies_by_all |= names.any(|name| name.trim_ascii() == b"*");
                }
                7 if is("expires") => facts.expires.add(date::parse(value)),
                10 | 11 if is("set-cookie") || is("set-cookie2") => facts.sets_cookie = true,
                13 if is("last-modified") => {
                    facts.modified = date::parse(value);
                    facts.has_validator |= facts.modified.is_some();
                }
                _ => {}
            }
        }
        facts
    }

    /// Whether nothing that the response says forbids to store it.
    fn is_permitted(&self, rules: &Rules, request: &Request<'_>) -> Result<(), NotStored> {
        let directives = &self.directives;
        if is_never_stored(self.status) {
            return Err(NotStored::Status);
        }
        // RFC 9111 §5.2.2.3: where the status is understood, `no-store` is for
        // caches that do not know `must-understand`.
        if directives.must_understand {
            if !is_understood(self.status) {
                return Err(NotStored::NotUnderstood);
            }
        } else if directives.no_store {
            return Err(NotStored::NoStore);
        }
        if directives.private {
            return Err(NotStored::Private);
        }
        let is_authorized = request.is_authorized() || rules.is_authorized;
        if is_authorized && !directives.permit_authorized() {
            return Err(NotStored::Authorization);
        }
        let is_for_all = directives.public || directives.s_maxage.is_some();
        if self.sets_cookie && !is_for_all && !directives.is_targeted && !rules.stores_cookies {
            return Err(NotStored::SetCookie);
        }
        if self.varies_by_all {
            return Err(NotStored::VaryStar);
        }
        Ok(())
    }

    /// Whether the response itself says that it may be stored (RFC 9111 §3).
    fn is_explicit(&self) -> bool {
        let directives = &self.directives;
        let has_lifetime = directives.max_age.is_some() || directives.s_maxage.is_some();
        has_lifetime || directives.public || directives.no_cache || self.said_expires()
    }

    /// Whether there is an `Expires` that counts.
    fn said_expires(&self) -> bool {
        self.expires != Stated::Absent && !self.directives.is_targeted
    }

    /// The lifetime (RFC 9111 §4.2.1), and the age as far as it is known (§4.2.3).
    fn lifetime(&self, rules: &Rules, received: &Received) -> Lifetime {
        let directives = &self.directives;
        let date = self.date.unwrap_or(received.unix_s);
        let apparent_age = seconds(received.unix_s.saturating_sub(date));
        let delay = received.arrived - received.asked;
        let stated = directives.s_maxage.or(directives.max_age);
        let mut fresh = if let Some(stated) = stated {
            stated
        } else if self.said_expires() {
            match self.expires {
                Stated::Once(expires) => seconds(expires.saturating_sub(date)),
                Stated::Absent | Stated::Invalid => 0,
            }
        } else {
            self.unstated_lifetime(rules, date)
        };
        let age = match self.age {
            Stated::Absent => 0,
            Stated::Once(age) => age,
            // Deviation: RFC 9111 §5.1 would ignore it, or take the first of several. But then
            // the response's age is unknown, so it counts as stale.
            Stated::Invalid => {
                fresh = 0;
                0
            }
        };
        // A failure is served no longer than it is fresh, unless its own directives allow it.
        let is_failure = self.status >= 400;
        let or_rule = |stated: Option<Seconds>, rule| match stated {
            Some(seconds) => seconds,
            None if is_failure => 0,
            None => whole_seconds(rule),
        };
        let is_stale_allowed = !directives.forbid_stale();
        let while_stale = |stated, rule| {
            if is_stale_allowed {
                or_rule(stated, rule)
            } else {
                0
            }
        };
        Lifetime {
            fresh,
            initial_age: std::time::Duration::from_secs(age.into())
                .saturating_add(delay)
                .max(std::time::Duration::from_secs(apparent_age.into())),
            while_revalidate: while_stale(
                directives.stale_while_revalidate,
                rules.stale_while_revalidate,
            ),
            if_error: while_stale(directives.stale_if_error, rules.stale_if_error),
            always_validate: directives.no_cache,
            forbid_stale: directives.forbid_stale(),
        }
    }

    /// How long a response is fresh that does not say so.
    fn unstated_lifetime(&self, rules: &Rules, date: u64) -> Seconds {
        if let Some(ttl) = rules.ttl_of(self.status) {
            return ttl;
        }
        let may_guess = rules.heuristic && (is_heuristic(self.status) || self.directives.public);
        match self.modified {
            Some(modified) if may_guess => seconds(date.saturating_sub(modified) / 10),
            _ => 0,
        }
    }
}

fn seconds(seconds: u64) -> Seconds {
    Seconds::try_from(seconds).unwrap_or(Seconds::MAX)
}

/// Whether responses of this status are stored without any directive (RFC 9110 §15.1), except
/// 206.
fn is_heuristic(status: u16) -> bool {
    matches!(
        status,
        200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501
    )
}

/// Whether responses of a status are never stored. Such a status depends on the request's
/// conditions, ranges, credentials or connection, which the key does not show.
pub fn is_never_stored(status: u16) -> bool {
    status < 200
        || matches!(
            status,
            206 | 304 | 401 | 407 | 408 | 412 | 416 | 417 | 421 | 425 | 426
        )
}

/// Whether the meaning of a status for caches is known here (RFC 9110 §15).
fn is_understood(status: u16) -> bool {
    matches!(status, 200..=205 | 300..=303 | 305 | 307 | 308 | 400..=406 | 409..=411)
        || matches!(status, 413..=415 | 422 | 451 | 500..=505)
}

#[cfg(test)]
mod tests;
