//! The checks of fixed answers.

use std::collections::HashMap;

use super::super::diagnostics::Report;
use super::super::reserved::AnswerField;
use super::super::setting::{Bounded, Map};
use super::super::tree::SourcePlace;
use super::super::value::FieldValue;
use super::super::written::{self, Answer};

/// Statuses of answers without a body (RFC 9110 §6.4.1).
const WITHOUT_BODY: [u16; 2] = [204, 304];

/// Reports what is wrong or doubtful about the answer of `route`.
pub(super) fn check(route: &written::Route, report: &mut Report) {
    let Some(answer) = &route.answer.value else {
        return;
    };
    if answer.body.written && answer.file.written {
        report
            .mistake(&answer.file.place, "an answer with both `body` and `file`")
            .related(&answer.body.place, "the other one")
            .help("an answer has one body: write one of them");
    }
    check_body(answer, report);
    if let Some(headers) = &answer.headers.value {
        check_headers(headers, report);
    }
}

/// A status that has no body is answered without one.
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
        .warning(place, format!("an answer with status {status} has no body"))
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
                .mistake(&field.place, format!("a second field `{}`", field.name))
                .related(first, "the first one")
                .help("names of fields are compared without case");
        } else {
            first_places.insert(name, &field.place);
        }
    }
}
