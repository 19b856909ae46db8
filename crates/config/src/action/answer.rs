//! Fixed answers.

use std::collections::HashMap;

use super::super::FixedAnswer;
use super::super::diagnostics::Report;
use super::super::reserved::AnswerField;
use super::super::setting::{Bounded, Boxed, Map};
use super::super::surroundings::read_body;
use super::super::tree::SourcePlace;
use super::super::value::FieldValue;
use super::super::written::{self, Answer, AnswerParts};
use super::{ActionContext, WrittenAction};

/// Statuses of answers without a body (RFC 9110 §6.4.1).
const WITHOUT_BODY: [u16; 2] = [204, 304];

impl WrittenAction for Boxed<Answer> {
    type Action = Box<FixedAnswer>;

    fn check(&self, _: &written::Route, report: &mut Report) {
        if self.body.written && self.file.written {
            report
                .mistake(&self.file.place, "an answer with both `body` and `file`")
                .related(&self.body.place, "the other one")
                .help("an answer has one body: write one of them");
        }
        check_body(self, report);
        if let Some(headers) = &self.headers.value {
            check_headers(headers, report);
        }
    }

    fn resolve(&self, around: ActionContext<'_>, report: &mut Report) -> Option<Box<FixedAnswer>> {
        let read = read_body(&self.file, around.surroundings.folder, report)?;
        let (file, body) = match read {
            Some((path, body)) => (Some(path), body),
            None => (None, self.body.value.as_ref()?.0.clone().into_bytes()),
        };
        self.resolve_with(AnswerParts { body, file }).map(Box::new)
    }
}

/// Reports a body for a status that has none.
fn check_body(answer: &Answer, report: &mut Report) {
    let status = answer.status.value.map(Bounded::get);
    let Some(status) = status.filter(|it| WITHOUT_BODY.contains(it)) else {
        return;
    };
    let is_empty = answer.body.value.as_ref().is_none_or(|it| it.0.is_empty());
    let place = match (answer.file.written, is_empty) {
        (true, _) => &answer.file.place,
        (false, false) => &answer.body.place,
        (false, true) => return,
    };
    report
        .warning(
            place,
            format!("an answer with status {status} cannot have a body"),
        )
        .related(&answer.status.place, "the status")
        .help("leave the body out, or write another status");
}

/// No field stands there twice.
fn check_headers(Map(headers): &Map<AnswerField, FieldValue>, report: &mut Report) {
    let mut first_places: HashMap<String, &SourcePlace> = HashMap::new();
    for field in headers {
        let Some(AnswerField(name)) = &field.key else {
            continue;
        };
        let name = name.to_ascii_lowercase();
        if let Some(first) = first_places.get(&name) {
            report
                .mistake(
                    &field.place,
                    format!("the header `{}` is set twice", field.name),
                )
                .related(first, "the first one")
                .help("header names are case-insensitive");
        } else {
            first_places.insert(name, &field.place);
        }
    }
}
