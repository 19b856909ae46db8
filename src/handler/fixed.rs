//! Answers that are the same for every request.

use super::{AnswerStep, Handler, Plan, RequestFacts, respond};
use crate::config::{Config, FixedAnswer};
use crate::exchange::answer::Answer;
use crate::exchange::{Exchange, Outcome, box_cold};

impl Handler for FixedAnswer {
    fn handle<'a>(
        &'a self,
        _route: usize,
        exchange: &mut Exchange<'a>,
    ) -> impl Future<Output = Outcome> {
        box_cold(answer(exchange, self))
    }

    fn plan<'a>(&'a self, _request: &RequestFacts<'a>) -> Plan<'a> {
        Plan::Answer(AnswerStep {
            status: self.status,
            content_type: self.content_type.clone(),
            body_bytes: self.body.len(),
            file: (self.file.as_ref()).map(|path| path.display().to_string()),
            headers: self.headers.clone(),
        })
    }

    fn label(&self, _config: &Config) -> String {
        format!("answer {}", self.status)
    }
}

async fn answer(exchange: &mut Exchange<'_>, fixed: &FixedAnswer) -> Outcome {
    let answer = Answer {
        status: fixed.status,
        content_type: &fixed.content_type,
        headers: &fixed.headers,
        body: &fixed.body,
        ..Answer::EMPTY
    };
    respond(exchange, &answer).await
}
