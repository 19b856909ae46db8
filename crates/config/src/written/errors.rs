//! Error pages: what a client gets instead of the short text of an error.

use std::ops::RangeInclusive;
use std::time::Duration;

use evenkeel_metrics::end::End;

use super::forms::short_for;
use super::upstream::content_type_default;
use crate::Proxying;
use crate::diagnostics::nearest;
use crate::quantity::Timeout;
use crate::reserved::AnswerField;
use crate::setting::{Bounded, Boxed, Fault, FromText, Map, Placed, options};
use crate::tree::Node;
use crate::value::{FieldValue, FilePath, ProbePath, Text};

options! {
    /// A page for errors.
    pub struct ErrorPageTable as "an error page"
    for #[derive(Debug, Clone)] ErrorPage with ErrorPageParts {
        /// The errors that this page answers.
        errors: Errors,
        /// The body, as sent; empty if it comes from an upstream.
        body: Vec<u8>,
        /// The upstream that the page comes from, if it comes from one.
        source: Option<PageSource>,
    } {
        /// The file with the page, at most 1 MiB: an absolute path, or one from the folder of
        /// the configuration file. The file is read when the configuration is loaded.
        file: FilePath = Optional("unless `body` or `upstream` is written") => by_hand,
        /// The text of the page, instead of `file`.
        body: Text = Optional("unless `file` or `upstream` is written") => by_hand,
        /// The upstream to ask for the page, instead of `file`. Each worker asks at most once
        /// a second, however many errors there are. If the upstream sends no page, its last
        /// page is the answer, or else a short text.
        upstream: Placed<Text> = Optional("none") => by_hand,
        /// With `upstream`: the path to request, such as `/sorry.html`.
        path: ProbePath = Optional("has to be written with `upstream`") => by_hand,
        /// With `upstream`: how long an error waits for the page.
        timeout: Timeout = Depends(page_timeout_default, "`2s`, with `upstream`") => by_hand,
        /// Value of `Content-Type`. If the page comes from an upstream, the upstream's own
        /// value goes first.
        content_type: FieldValue = Depends(page_type_default, "by the file's extension; \
            `\"text/plain; charset=utf-8\"` without `file`"),
        /// Status code, instead of the error's.
        status: Bounded<u16, 200, 599> = Optional("that of the error"),
        /// Further header fields: name to value.
        headers: Map<AnswerField, FieldValue> = Default("{}"),
    }
}

fn page_type_default(page: &Node) -> Option<String> {
    content_type_default(page).or_else(|| Some("'text/plain; charset=utf-8'".into()))
}

fn page_timeout_default(page: &Node) -> Option<String> {
    page.entry("upstream").map(|_| "'2s'".into())
}

/// An upstream that serves an error page, and the path to request from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageSource {
    /// How the request for it goes to the upstream.
    pub proxying: Proxying,
    /// The path to request.
    pub path: String,
    /// How long an error waits for the page.
    pub timeout: Duration,
}

short_for!(
    /// A page for errors: a file, or a table.
    ShortErrorPage, Boxed<ErrorPageTable>, "file", FilePath
);

/// Some of the errors that Evenkeel answers with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Errors {
    /// The errors of one reason, by its word in the access log.
    Reason(&'static str),
    /// The errors with one of these statuses.
    Statuses(RangeInclusive<u16>),
}

impl Errors {
    /// Whether an error with this reason and status belongs to them.
    pub fn has(&self, reason: &str, status: u16) -> bool {
        match self {
            Errors::Reason(word) => *word == reason,
            Errors::Statuses(statuses) => statuses.contains(&status),
        }
    }

    /// How many errors they are. A page for fewer errors goes before a page for more.
    pub(crate) fn breadth(&self) -> u16 {
        match self {
            Errors::Reason(_) => 0,
            Errors::Statuses(statuses) => statuses.end() - statuses.start() + 1,
        }
    }
}

/// The statuses of errors.
const STATUSES: RangeInclusive<u16> = 400..=599;

impl FromText for Errors {
    const FORM: &'static str =
        "a status, statuses, or a reason, such as `503`, `502-504`, `5xx` or `queue-timeout`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        let words = || End::all().filter(|it| STATUSES.contains(&it.status()));
        if let Some(end) = words().find(|it| it.word() == text) {
            return Ok(Errors::Reason(end.word()));
        }
        let statuses = match text {
            "4xx" => Some(400..=499),
            "5xx" => Some(500..=599),
            _ => {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                let number = |text: &str| text.trim().parse::<u16>().ok();
                number(first)
                    .zip(number(last))
                    .map(|(first, last)| first..=last)
            }
        };
        match statuses {
            Some(it) if it.is_empty() => Err(Fault::new(format!("`{text}` ends before it begins"))
                .help(format!("write \"{}-{}\"", it.end(), it.start()))),
            Some(it) if STATUSES.contains(it.start()) && STATUSES.contains(it.end()) => {
                Ok(Errors::Statuses(it))
            }
            Some(_) => Err(Fault::new(format!("`{text}` is not an error"))
                .help("errors have the statuses 400 to 599")),
            None => {
                let words = words().map(End::word);
                let help = match nearest(text, words) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("write {}", Self::FORM),
                };
                Err(Fault::new(format!("`{text}` is not an error")).help(help))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_by_status_and_reason() {
        for (text, expected) in [
            ("503", Some(Errors::Statuses(503..=503))),
            ("502-504", Some(Errors::Statuses(502..=504))),
            ("5xx", Some(Errors::Statuses(500..=599))),
            ("queue-timeout", Some(Errors::Reason("queue-timeout"))),
            ("504-502", None),
            ("200", None),
            ("399-404", None),
            ("3xx", None),
            ("complete", None),
            ("", None),
        ] {
            assert_eq!(Errors::from_text(text).ok(), expected, "{text:?}");
        }
        assert!(Errors::Statuses(500..=599).has("busy", 502));
        assert!(!Errors::Statuses(500..=501).has("busy", 502));
        assert!(Errors::Reason("busy").has("busy", 418));
    }
}
