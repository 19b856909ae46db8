//! The URLs of a route that its cache most often does not answer: host, path and names of
//! parameters.
//!
//! Values of parameters may be secrets, such as tokens, and everybody with access to the status
//! page sees these URLs. So each value is shown as `*`, and URLs that differ only in values count
//! as one.

use std::time::Duration;

use evenkeel_cache::report::Unanswered;
use evenkeel_metrics::frequent::{Frequent, MostFrequent};
use evenkeel_policy::Instant;
use serde::Serialize;

/// Counts cover the present period of this length, and the one before it.
pub const PERIOD: Duration = Duration::from_mins(5);

/// Longest URL that is kept, in bytes; longer ones are cut.
const URL_LEN: usize = 200;

/// Most URLs that are shown of a route.
const SHOWN: usize = 10;

/// URLs with a smaller share of a route's misses are not shown: one in this many.
const SMALLEST_PART: u64 = 100;

/// The misses of a route, on one worker.
#[derive(Debug, Default)]
pub struct Misses(Frequent);

/// The misses of a route, over all workers.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RecentMisses {
    /// Requests that the cache did not answer, in the last five to ten minutes.
    pub total: u64,
    /// The URLs with the most of them, the most frequent first. URLs with less than one percent
    /// are left out.
    pub urls: Vec<MissedUrl>,
}

/// A URL that a cache often does not answer.
#[derive(Debug, Clone, Serialize)]
pub struct MissedUrl {
    /// Host, path and the names of parameters, with `*` for each value.
    pub url: String,
    /// Least number of misses.
    pub count: u64,
    /// The reason for the last one: the word of the access log.
    pub reason: &'static str,
    /// The reason as half a sentence.
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

/// A URL in the form that is shown, in printable ASCII.
struct Url {
    bytes: [u8; URL_LEN],
    len: usize,
    is_cut: bool,
}

/// Marks a cut.
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
            // Without `=` the text may be a value.
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

    /// Appends a text if it fits, and otherwise the mark of a cut.
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
        // The end is also marked where it is within an escape.
        for len in 190..210 {
            let made = Url::of(b"", "\u{fc}".repeat(len).as_bytes(), b"q=1");
            assert!(made.text().len() <= URL_LEN && made.text().ends_with(CUT));
        }
    }
}
