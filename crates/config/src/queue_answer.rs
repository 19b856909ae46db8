//! Answers to requests that found no room: in an upstream's queue or a disk's.

use std::path::Path;
use std::time::Duration;

use super::QueueAnswer;
use super::diagnostics::Report;
use super::surroundings::read_body;
use super::written::{QueueAnswerParts, QueueAnswerTable};

/// Reports a content type without a file.
pub(super) fn check(answer: &QueueAnswerTable, report: &mut Report) {
    if answer.content_type.written && !answer.file.written {
        report
            .mistake(&answer.content_type.place, "`content_type` without `file`")
            .help("without a file the answer is a line of plain text");
    }
}

/// The answer that the program sends; `None` after a mistake was reported.
pub(super) fn resolve(
    it: &QueueAnswerTable,
    folder: &Path,
    report: &mut Report,
) -> Option<QueueAnswer> {
    let body = match (read_body(&it.file, folder, report)?, &it.content_type.value) {
        (Some((_, body)), Some(content_type)) => Some((content_type.0.clone(), body)),
        _ => None,
    };
    it.resolve_with(QueueAnswerParts {
        retry_after_s: whole_seconds(it.retry_after.value?.0),
        body,
    })
}

/// Seconds, rounded up, so that no client is asked back too early.
fn whole_seconds(duration: Duration) -> u32 {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}
