//! Which URLs of a route its cache does not answer most often: host, path and the names
//! of parameters.
//!
//! Values of parameters may be secrets, such as tokens, and everybody who may look at the
//! status page sees these URLs. A `*` stands for each value. So URLs that differ in
//! values alone are one.

use std::time::Duration;

use evenkeel_cache::report::Unanswered;
use evenkeel_metrics::frequent::{Frequent, MostFrequent};
use evenkeel_policy::Instant;
use serde::Serialize;

/// Counts are of the present period of this length and of the one before it.
pub const PERIOD: Duration = Duration::from_mins(5);

/// Longest URL that is kept, in bytes; the rest of a longer one is cut off.
const URL_LEN: usize = 200;

/// URLs that are shown of a route.
const SHOWN: usize = 10;

/// URLs that make up a smaller part of a route's misses are not shown: one in so many.
const SMALLEST_PART: u64 = 100;

/// The misses of a route, of one worker.
#[derive(Debug, Default)]
pub struct Misses(Frequent);

/// The misses of a route, of all workers.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RecentMisses {
    /// Requests that the cache did not answer, in the last five to ten minutes.
    pub total: u64,
    /// The URLs that most of them were for, the most frequent first; none that makes up less
    /// than one percent.
    pub urls: Vec<MissedUrl>,
}

/// A URL that a cache does not answer often.
#[derive(Debug, Clone, Serialize)]
pub struct MissedUrl {
    /// Host, path and the names of parameters, with `*` for each value.
    pub url: String,
    /// How often, at least.
    pub count: u64,
    /// Why, the last time: the word of the access log.
    pub reason: &'static str,
    /// The same, in half a sentence.
    pub why: &'static str,
}

impl Misses {
    /// Counts a request that the cache did not answer.
    pub fn note(&self, now: Instant, host: &[u8], path: &[u8], query: &[u8], why: Unanswered) {
        let url = Url::of(host, path, query);
        self.0.note(period(now), url.text(), why.words());
    }
}

impl RecentMisses {
    /// Adds these workers up.
    pub fn of<'a>(workers: impl Iterator<Item = &'a Misses>, now: Instant) -> Self {
        let mut sum = MostFrequent::default();
        workers.for_each(|it| it.0.add_to(&mut sum, period(now)));
        let total = sum.total;
        RecentMisses {
            total,
            urls: (sum.first(SHOWN).into_iter())
                .filter(|(_, it)| it.count * SMALLEST_PART >= total)
                .map(|(text, it)| {
                    let [reason, why] = it.reason;
                    MissedUrl {
                        // All of it is ASCII.
                        url: String::from_utf8_lossy(&text).into_owned(),
                        count: it.count,
                        reason,
                        why,
                    }
                })
                .collect(),
        }
    }
}

fn period(now: Instant) -> u64 {
    now.as_nanos() / PERIOD.as_nanos() as u64
}

/// A URL as it is shown, in printable ASCII.
struct Url {
    bytes: [u8; URL_LEN],
    len: usize,
    is_cut: bool,
}

/// Stands for what is cut off.
const CUT: &[u8] = b"...";

impl Url {
    fn of(host: &[u8], path: &[u8], query: &[u8]) -> Self {
        let mut url = Url {
            bytes: [0; URL_LEN],
            len: 0,
            is_cut: false,
        };
        host.iter().for_each(|it| url.push(it.to_ascii_lowercase()));
        path.iter().for_each(|it| url.push(*it));
        if !query.is_empty() {
            url.push_query(query);
        }
        url
    }

    fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Appends the names of parameters.
    fn push_query(&mut self, query: &[u8]) {
        let mut before = b'?';
        for pair in query.split(|&byte| byte == b'&') {
            self.push(before);
            before = b'&';
            // Without `=` it may be a value.
            if let Some(end) = pair.iter().position(|&byte| byte == b'=') {
                pair[..=end].iter().for_each(|it| self.push(*it));
            }
            self.push(b'*');
        }
    }

    fn push(&mut self, byte: u8) {
        match byte {
            b'!'..=b'~' => self.put(&[byte]),
            _ => self.put(format!("%{byte:02X}").as_bytes()),
        }
    }

    /// Appends a text if it fits, else the mark of a cut.
    fn put(&mut self, text: &[u8]) {
        if self.is_cut {
            return;
        }
        self.is_cut = self.len + text.len() > URL_LEN - CUT.len();
        let text = if self.is_cut { CUT } else { text };
        self.bytes[self.len..][..text.len()].copy_from_slice(text);
        self.len += text.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_parameters_are_not_kept() {
        let long = "a".repeat(300);
        let cut = format!("a/{}...", "a".repeat(195));
        for (host, path, query, url) in [
            ("Example.COM:80", "/a", "", "example.com:80/a"),
            ("a", "/a%20b", "q=secret&page=2", "a/a%20b?q=*&page=*"),
            ("a", "/", "secret", "a/?*"),
            ("a", "/", "a=b=c&&=d&e", "a/?a=*&*&=*&*"),
            ("a", "/\u{fc}\t", "", "a/%C3%BC%09"),
            ("a", &format!("/{long}"), "q=1", &cut),
        ] {
            let made = Url::of(host.as_bytes(), path.as_bytes(), query.as_bytes());
            assert_eq!(String::from_utf8_lossy(made.text()), *url);
        }
        // The end is marked as well where it lies in an escape.
        for len in 190..210 {
            let made = Url::of(b"", "\u{fc}".repeat(len).as_bytes(), b"q=1");
            assert!(made.text().len() <= URL_LEN && made.text().ends_with(CUT));
        }
    }
}
