//! Redirects.

use super::{Handler, Plan, RedirectStep, RequestFacts, respond};
use crate::config::{Config, Location, Redirect, without_passwords};
use crate::exchange::answer::Answer;
use crate::exchange::variables::{Values, expand_location};
use crate::exchange::{Exchange, Outcome, box_cold};

impl Handler for Redirect {
    fn handle<'a>(
        &'a self,
        _route: usize,
        exchange: &mut Exchange<'a>,
    ) -> impl Future<Output = Outcome> {
        box_cold(answer(exchange, self))
    }

    fn plan<'a>(&'a self, _request: &RequestFacts<'a>) -> Plan<'a> {
        Plan::RedirectTo(self)
    }

    fn label(&self, _config: &Config) -> String {
        format!("redirect {}", self.status)
    }
}

/// Redirects the client.
pub(super) async fn answer(exchange: &mut Exchange<'_>, redirect: &Redirect) -> Outcome {
    let location = expand_location(&redirect.location, &Values::of(exchange));
    let answer = Answer {
        status: redirect.status,
        location: Some(&location),
        ..Answer::EMPTY
    };
    respond(exchange, &answer).await
}

/// The redirect of a request, for `explain`.
pub(crate) fn step(redirect: &Redirect, values: &Values<'_>) -> RedirectStep {
    let location = without_passwords(&redirect.location.to_string());
    RedirectStep {
        status: redirect.status,
        location: expand_location(&Location::new(&location), values),
    }
}
