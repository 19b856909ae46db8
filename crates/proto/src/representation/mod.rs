//! The wishes of a request for a representation.
//!
//! It may differ from the client's copy (RFC 9110 §13), consist of parts (§14),
//! or be compressed (§12.5.3).
//!
//! Decides on the fields of a request and on the caller's knowledge of the
//! representation. Nothing is kept between requests.

mod accepted;
mod codable;
mod entity_tag;
mod ranges;

use accepted::Weights;
pub use codable::Codable;
use entity_tag::Comparison;
pub use ranges::{ByteRange, MAX_RANGES, Ranges};

use crate::coding::Coding;
use crate::date;
use crate::field::FieldKind;
use crate::head::RequestHead;
use crate::span::Span;

/// The fields of a request that choose and condition a representation, as
/// spans. Their methods get the bytes that the head was read from.
#[derive(Debug, Clone, Copy, Default)]
pub struct Conditions {
    if_match: Lines,
    if_none_match: Lines,
    if_modified_since: Line,
    if_unmodified_since: Line,
    if_range: Line,
    range: Line,
    accept_encoding: Lines,
}

/// The validators that tell a representation from earlier ones at its place
/// (RFC 9110 §8.8).
#[derive(Debug, Clone, Copy)]
pub struct Validators<'a> {
    /// Value of `ETag`, with its quotes; empty for none.
    pub entity_tag: &'a [u8],
    /// Value of `Last-Modified`, in seconds since 1970; `None` for none.
    pub modified: Option<u64>,
}

/// The result of a request's conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// The request is answered as if it had none.
    Met,
    /// The client has this representation: 304.
    NotModified,
    /// The client expects another one: 412.
    Failed,
}

impl Conditions {
    /// Finds the fields of a request.
    pub fn of(head: &RequestHead, bytes: &[u8]) -> Conditions {
        let mut conditions = Conditions::default();
        for field in &head.fields {
            if field.kind != FieldKind::Other {
                continue;
            }
            let is = |known: &str| field.is_named(known.as_bytes(), bytes);
            // Most names are told apart by their length.
            match field.name.len() {
                5 if is("range") => conditions.range.add(field.value),
                8 if is("if-match") => conditions.if_match.add(field.value),
                8 if is("if-range") => conditions.if_range.add(field.value),
                13 if is("if-none-match") => conditions.if_none_match.add(field.value),
                15 if is("accept-encoding") => conditions.accept_encoding.add(field.value),
                17 if is("if-modified-since") => conditions.if_modified_since.add(field.value),
                19 if is("if-unmodified-since") => conditions.if_unmodified_since.add(field.value),
                _ => {}
            }
        }
        conditions
    }

    /// Whether the request has none of the fields but `Accept-Encoding`.
    pub fn is_plain(&self) -> bool {
        let lists = [&self.if_match, &self.if_none_match];
        let lines = [
            &self.if_modified_since,
            &self.if_unmodified_since,
            &self.if_range,
            &self.range,
        ];
        !lists.into_iter().any(Lines::is_sent) && !lines.into_iter().any(Line::is_sent)
    }

    /// Whether the request has an `Accept-Encoding`, be it empty.
    pub fn has_accept_encoding(&self) -> bool {
        self.accept_encoding.is_sent()
    }

    /// The result of the conditions, for GET and HEAD of a representation that
    /// exists (RFC 9110 §13.2.2).
    ///
    /// A malformed list matches nothing: `If-Match` fails, `If-None-Match` is
    /// met. A value that is no date, or one of several, is no condition. Nor is
    /// a date, for a representation without one (§13.1.3, §13.1.4).
    pub fn precondition(&self, bytes: &[u8], validators: &Validators<'_>) -> Precondition {
        let is_after = |date| validators.modified.is_some_and(|modified| modified > date);
        let is_until = |date| validators.modified.is_some_and(|modified| modified <= date);
        let is_named = |list: &Lines, comparison| list.names(bytes, validators, comparison);
        if self.if_match.is_sent() {
            if !is_named(&self.if_match, Comparison::Strong) {
                return Precondition::Failed;
            }
        } else if let Some(date) = self.if_unmodified_since.date(bytes)
            && is_after(date)
        {
            return Precondition::Failed;
        }
        if self.if_none_match.is_sent() {
            if is_named(&self.if_none_match, Comparison::Weak) {
                return Precondition::NotModified;
            }
        } else if let Some(date) = self.if_modified_since.date(bytes)
            && is_until(date)
        {
            return Precondition::NotModified;
        }
        Precondition::Met
    }

    /// Whether `If-None-Match` has the weak form of this strong tag. A client
    /// has the weak form of a response that got a content coding on its way.
    pub fn has_weak_form(&self, bytes: &[u8], entity_tag: &[u8]) -> bool {
        let weak = [b"W/", entity_tag].concat();
        let has = |line: &[u8]| line.windows(weak.len()).any(|it| it == weak);
        let lines = self.if_none_match.values(bytes);
        entity_tag.starts_with(b"\"") && lines.is_some_and(|mut it| it.any(has))
    }

    /// The parts to answer a GET with, of a representation of `len` bytes.
    ///
    /// The whole representation, unless there is one `Range` that can be read.
    /// An `If-Range` (§13.1.5), if there is one, must name exactly this
    /// representation. It does so by a strong entity tag, or by the very date
    /// of its `Last-Modified`. [`Ranges`] has the limits on a client's wishes.
    ///
    /// Deviation: §8.8.2.2 lets a date count only if nothing changed twice in
    /// its second. That is the caller's to rule out.
    pub fn ranges(&self, bytes: &[u8], validators: &Validators<'_>, len: u64) -> Ranges {
        let Line::Once { value } = self.range else {
            return Ranges::Whole;
        };
        let is_current = match self.if_range {
            Line::Absent => true,
            Line::Once { value } => validators.are_exactly(value.of(bytes)),
            Line::Repeated => false,
        };
        if is_current {
            ranges::read(value.of(bytes), len)
        } else {
            Ranges::Whole
        }
    }

    /// The one of `offered`, in order of our preference, that the client gives
    /// the highest weight; `None` for the representation as it is.
    ///
    /// The representation as it is goes out in three cases. The client weighs
    /// `identity` higher than all that is offered, accepts nothing of it, or
    /// has no `Accept-Encoding`.
    pub fn coding(&self, bytes: &[u8], offered: &[Coding]) -> Option<Coding> {
        let mut weights = Weights::default();
        for line in self.accept_encoding.values(bytes)? {
            weights.add(line);
        }
        weights.best(offered)
    }
}

impl Validators<'_> {
    /// Whether the value of an `If-Range` names this representation.
    fn are_exactly(&self, value: &[u8]) -> bool {
        match value {
            [b'"', ..] | [b'W', b'/', ..] => {
                entity_tag::is_same(value, self.entity_tag, Comparison::Strong)
            }
            value => self.modified.is_some() && date::parse(value) == self.modified,
        }
    }
}

/// A field that must not stand more than once.
#[derive(Debug, Clone, Copy, Default)]
enum Line {
    #[default]
    Absent,
    Once {
        value: Span,
    },
    Repeated,
}

impl Line {
    fn add(&mut self, value: Span) {
        *self = match self {
            Line::Absent => Line::Once { value },
            Line::Once { .. } | Line::Repeated => Line::Repeated,
        };
    }

    fn is_sent(&self) -> bool {
        !matches!(self, Line::Absent)
    }

    fn date(&self, bytes: &[u8]) -> Option<u64> {
        match self {
            Line::Once { value } => date::parse(value.of(bytes)),
            Line::Absent | Line::Repeated => None,
        }
    }
}

/// Most lines that a list may be split over; one of more is malformed.
const MAX_LINES: usize = 4;

/// A field whose value is a list, which may be split over lines (§5.3).
#[derive(Debug, Clone, Copy, Default)]
struct Lines {
    /// The first ones.
    values: [Span; MAX_LINES],
    /// How many there are, or one more than are kept.
    count: u8,
}

impl Lines {
    fn add(&mut self, value: Span) {
        if let Some(kept) = self.values.get_mut(usize::from(self.count)) {
            *kept = value;
            self.count += 1;
        } else {
            self.count = MAX_LINES as u8 + 1;
        }
    }

    fn is_sent(&self) -> bool {
        self.count > 0
    }

    /// The value of each line; `None` if there are more than are kept.
    fn values<'a>(&self, bytes: &'a [u8]) -> Option<impl Iterator<Item = &'a [u8]>> {
        let values = self.values.get(..usize::from(self.count))?;
        Some(values.iter().map(|value| value.of(bytes)))
    }

    /// Whether this list of entity tags, or `*`, names a representation.
    fn names(&self, bytes: &[u8], validators: &Validators<'_>, comparison: Comparison) -> bool {
        if self.count == 1 && self.values[0].of(bytes) == b"*" {
            return true;
        }
        let Some(mut lines) = self.values(bytes) else {
            return false;
        };
        // All of them are read: one that is malformed spoils the list.
        let is_named = lines.try_fold(false, |is_named, line| {
            let is_here = entity_tag::list_names(line, validators.entity_tag, comparison)?;
            Some(is_named | is_here)
        });
        is_named == Some(true)
    }
}

#[cfg(test)]
mod tests;
