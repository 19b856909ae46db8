//! Answers that are the same for every request.

use super::respond;
use crate::config::FixedAnswer;
use crate::exchange::answer::Answer;
use crate::exchange::{Exchange, Outcome};

/// Sends the answer.
pub(super) async fn answer(exchange: &mut Exchange<'_>, fixed: &FixedAnswer) -> Outcome {
    let answer = Answer {
        status: fixed.status,
        content_type: &fixed.content_type,
        headers: &fixed.headers,
        body: &fixed.body,
        ..Answer::EMPTY
    };
    respond(exchange, &answer).await
}
