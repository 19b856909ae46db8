//! An answer's report of the cache: `Age` (RFC 9111 §5.1) and `Cache-Status` (RFC 9211).

use std::time::Duration;

use crate::freshness::Stored;
use crate::storing::NotStored;

/// Why a request went to an endpoint (RFC 9211 §2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forward {
    /// The route does not cache such requests.
    Bypass,
    /// The method is not one that a cache answers.
    Method,
    /// Nothing is stored for the URL.
    UriMiss,
    /// The stored variants of the URL have other selecting fields.
    VaryMiss,
    /// The request asks for validation.
    Request,
    /// The stored response is stale.
    Stale,
}

impl Forward {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Forward::Bypass => "bypass",
            Forward::Method => "method",
            Forward::UriMiss => "uri-miss",
            Forward::VaryMiss => "vary-miss",
            Forward::Request => "request",
            Forward::Stale => "stale",
        }
    }
}

/// Why a cache does not answer a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// The request asks for another protocol.
    Upgrade,
    /// Its credentials are those of its connection.
    ConnectionCredentials,
    /// The route says that such requests go past the cache.
    Rule,
    /// The response is not stored, or the request is not for a cache.
    NotStored(NotStored),
    /// No stored response answers the request.
    Forward(Forward),
    /// It was not asked for often enough.
    MinUses,
    /// The fetch of another client was none for it.
    NotShared,
    /// The fetch of another client took too long.
    Wait,
    /// The fetch of another client failed.
    FetchFailed,
    /// The client wants a stored response or none.
    NotCached,
}

impl Unanswered {
    /// The word for logs.
    pub fn word(self) -> &'static str {
        self.words()[0]
    }

    /// Half a sentence for people.
    pub fn text(self) -> &'static str {
        self.words()[1]
    }

    /// Both.
    pub fn words(self) -> [&'static str; 2] {
        match self {
            Unanswered::Upgrade => ["upgrade", "the request asks for another protocol"],
            Unanswered::ConnectionCredentials => [
                "connection-credentials",
                "its credentials belong to its connection",
            ],
            Unanswered::Rule => ["rule", "the route's `bypass` says so"],
            Unanswered::NotStored(reason) => [reason.word(), reason.text()],
            Unanswered::Forward(forward) => {
                let text = match forward {
                    Forward::Bypass => "the request bypasses the cache",
                    Forward::Method => "only answers to GET are stored",
                    Forward::UriMiss => "nothing was stored for the URL",
                    Forward::VaryMiss => "other variants were stored",
                    Forward::Request => "the client asked for validation",
                    Forward::Stale => {
                        "the stored response was stale, and the endpoint sent a new one"
                    }
                };
                [forward.word(), text]
            }
            Unanswered::MinUses => ["min-uses", "not requested often enough to be stored"],
            Unanswered::NotShared => [
                "not-shared",
                "another client's fetch brought no response for it",
            ],
            Unanswered::Wait => ["wait", "another client's fetch took too long"],
            Unanswered::FetchFailed => ["fetch-failed", "another client's fetch failed"],
            Unanswered::NotCached => ["not-cached", "the client accepts only a stored response"],
        }
    }
}

/// The contents of a `Cache-Status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStatus<'a> {
    /// Why the request went to an endpoint; `None` for a hit.
    pub forward: Option<Forward>,
    /// The status that the endpoint answered with.
    pub forward_status: Option<u16>,
    /// Seconds for which the answer is fresh still, below zero for one that is stale.
    pub ttl: Option<i64>,
    /// Whether the answer was stored.
    pub stored: bool,
    /// Whether the request waited for that of another client.
    pub collapsed: bool,
    /// A word of our own: why something was not stored.
    pub detail: Option<&'a str>,
}

impl CacheStatus<'_> {
    /// Appends the value of the field; `name` is a token that stands for this cache.
    pub fn push(&self, out: &mut Vec<u8>, name: &str) {
        let mut text = |text: &str| out.extend_from_slice(text.as_bytes());
        let mut number = itoa::Buffer::new();
        text(name);
        match self.forward {
            None => text("; hit"),
            Some(forward) => {
                text("; fwd=");
                text(forward.word());
            }
        }
        if let Some(status) = self.forward_status {
            text("; fwd-status=");
            text(number.format(status));
        }
        if let Some(ttl) = self.ttl {
            text("; ttl=");
            text(number.format(ttl));
        }
        if self.stored {
            text("; stored");
        }
        if self.collapsed {
            text("; collapsed");
        }
        if let Some(detail) = self.detail {
            text("; detail=");
            text(detail);
        }
    }
}

/// Appends an `Age`, which every answer from the store has.
pub fn push_age(out: &mut Vec<u8>, age: Duration) {
    out.extend_from_slice(b"Age: ");
    out.extend_from_slice(itoa::Buffer::new().format(age.as_secs()).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Seconds for which a stored response is fresh still, below zero for one that is stale.
pub fn ttl(stored: &Stored) -> i64 {
    let age = i64::try_from(stored.age.as_secs()).unwrap_or(i64::MAX);
    let fresh = if stored.is_purged {
        i64::from(stored.lifetime.fresh).min(age)
    } else {
        i64::from(stored.lifetime.fresh)
    };
    fresh - age
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::freshness::Lifetime;

    #[test]
    fn writes_what_happened() {
        let status = |status: CacheStatus<'_>| {
            let mut out = Vec::new();
            status.push(&mut out, "evenkeel");
            String::from_utf8(out).unwrap()
        };
        let hit = CacheStatus {
            ttl: Some(-3),
            ..CacheStatus::default()
        };
        assert_eq!(status(hit), "evenkeel; hit; ttl=-3");
        let miss = CacheStatus {
            forward: Some(Forward::UriMiss),
            forward_status: Some(200),
            ttl: Some(60),
            stored: true,
            collapsed: true,
            detail: Some("no-store"),
        };
        assert_eq!(
            status(miss),
            "evenkeel; fwd=uri-miss; fwd-status=200; ttl=60; stored; collapsed; detail=no-store"
        );
        let list: sfv::List = sfv::Parser::new(&status(miss)).parse().unwrap();
        assert_eq!(list.len(), 1);
    }

    #[test]
    fn writes_ages_and_what_is_left() {
        let mut out = Vec::new();
        push_age(&mut out, Duration::from_millis(2999));
        assert_eq!(out, b"Age: 2\r\n");
        let mut stored = Stored {
            lifetime: Lifetime {
                fresh: 10,
                ..Lifetime::default()
            },
            age: Duration::from_millis(4900),
            is_purged: false,
        };
        assert_eq!(ttl(&stored), 6);
        stored.is_purged = true;
        assert_eq!(ttl(&stored), 0);
        stored.age = Duration::from_secs(12);
        assert_eq!(ttl(&stored), -2);
    }
}
