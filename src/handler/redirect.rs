//! Redirects.

use evenkeel_proto::{RequestHead, Scheme};

use super::{Handler, Plan, RedirectStep, RequestFacts, respond};
use crate::config::{
    Config, Location, LocationPart, LocationVariable, Redirect, without_passwords,
};
use crate::exchange::answer::Answer;
use crate::exchange::{Exchange, Outcome, box_cold};

impl Handler for Redirect {
    fn handle<'a>(
        &'a self,
        _route: usize,
        exchange: &mut Exchange<'a>,
    ) -> impl Future<Output = Outcome> {
        box_cold(answer(exchange, self))
    }

    fn plan<'a>(&'a self, request: &RequestFacts<'a>) -> Plan<'a> {
        let location = without_passwords(&self.location.to_string());
        let location = Location::new(&location);
        Plan::Redirect(RedirectStep {
            status: self.status,
            location: expand(&location, request.scheme, request.bytes, request.head),
        })
    }

    fn label(&self, _config: &Config) -> String {
        format!("redirect {}", self.status)
    }
}

/// Sends the client to a location.
pub(super) async fn answer(exchange: &mut Exchange<'_>, redirect: &Redirect) -> Outcome {
    let scheme = exchange.client.scheme();
    let location = expand(&redirect.location, scheme, exchange.bytes, exchange.head);
    let answer = Answer {
        status: redirect.status,
        location: Some(&location),
        ..Answer::EMPTY
    };
    respond(exchange, &answer).await
}

/// The value of `Location` for a request.
fn expand(location: &Location, scheme: Scheme, bytes: &[u8], head: &RequestHead) -> String {
    let mut out = String::with_capacity(128);
    // The parser lets only ASCII through in targets and hosts.
    let text = |bytes| String::from_utf8_lossy(bytes);
    for part in location.parts() {
        match part {
            LocationPart::Text(text) => out.push_str(text),
            LocationPart::Variable(LocationVariable::Scheme) => out.push_str(scheme.as_str()),
            LocationPart::Variable(LocationVariable::Host) => {
                out.push_str(&text(head.host_name(bytes)))
            }
            LocationPart::Variable(LocationVariable::Path) => {
                let path = text(head.path(bytes));
                if out.is_empty() {
                    // At the start of a target two slashes lead to another host, and
                    // a backslash is a slash to browsers.
                    out.push('/');
                    out.push_str(path.trim_start_matches(['/', '\\']));
                } else {
                    out.push_str(&path);
                }
            }
            LocationPart::Variable(LocationVariable::Query) => {
                if !head.query.is_empty() {
                    out.push('?');
                    out.push_str(&text(head.query.of(bytes)));
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_proto::http1::{Parsed, parse_request};

    #[test]
    fn expands_redirects() {
        let request = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: a.example:80\r\n\r\n");
        for (template, target, location) in [
            (
                "https://$host$path$query",
                "/a/b?c=d",
                "https://a.example/a/b?c=d",
            ),
            ("https://$host$path$query", "/a", "https://a.example/a"),
            ("$scheme://$host/", "/a", "https://a.example/"),
            ("$path", "/a", "/a"),
            ("$path", "//evil.example/", "/evil.example/"),
            ("$path", "/\\evil.example/", "/evil.example/"),
            ("/x$path", "//b", "/x//b"),
            ("/$hostname/$/$uri", "/", "/$hostname/$/$uri"),
            ("/fixed", "/a?b", "/fixed"),
        ] {
            let request = request(target);
            let mut head = RequestHead::default();
            let parsed = parse_request(request.as_bytes(), &mut head);
            assert_eq!(parsed, Ok(Parsed::Complete));
            assert_eq!(
                expand(
                    &Location::new(template),
                    Scheme::Https,
                    request.as_bytes(),
                    &head
                ),
                location,
                "{template}"
            );
        }
    }
}
