//! The question before a command that leaves an upstream without an endpoint.

use std::io::{IsTerminal, Write};

use serde_json::Value;

use super::socket::{self, Socket};
use crate::cli::CtlVerb;
use crate::{Failed, complain};

/// Asks on a terminal whether to take the last endpoint of an upstream out of use.
/// Scripts are not asked: the process warns them in its answer.
pub fn ask(socket: &Socket, verb: &CtlVerb) -> Result<(), Failed> {
    let endpoints = match verb {
        CtlVerb::Drain { endpoints } | CtlVerb::Stop { endpoints } => endpoints.as_slice(),
        CtlVerb::Weight {
            endpoint,
            weight: 0,
        } => std::slice::from_ref(endpoint),
        _ => return Ok(()),
    };
    let is_script = !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal();
    if is_script {
        return Ok(());
    }
    // The command itself says what is wrong where nobody answers.
    let answer = socket.ask("json show upstreams", socket::TIMEOUT);
    let upstreams = answer.ok().and_then(|it| serde_json::from_str(&it).ok());
    let Some(upstream) = upstreams.and_then(|it| left_empty(&it, endpoints)) else {
        return Ok(());
    };
    let mut stderr = std::io::stderr();
    let asked = write!(
        stderr,
        "evenkeel: no endpoint of `{upstream}` will take requests then. Go on? [y/N] "
    );
    let mut answer = String::new();
    let read = asked.and_then(|()| std::io::stdin().read_line(&mut answer));
    match read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        true => Ok(()),
        false => Err(complain("nothing was changed")),
    }
}

/// The first upstream that has endpoints which take requests now, and none any more
/// without these `endpoints`.
fn left_empty(upstreams: &Value, endpoints: &[String]) -> Option<String> {
    let upstreams = upstreams.as_array()?.iter();
    let mut emptied = upstreams.filter_map(|upstream| {
        let name = upstream["name"].as_str()?;
        let is_meant = |endpoint: &str| {
            let mut places = endpoints.iter().filter_map(|it| it.split_once('/'));
            places.any(|(upstream, it)| upstream == name && (it == "*" || it == endpoint))
        };
        let all = upstream["endpoints"].as_array()?.iter();
        let eligible = all.filter(|it| it["eligible"] == true);
        let mut meant = eligible.map(|it| it["name"].as_str().is_some_and(is_meant));
        let has_any = meant.clone().next().is_some();
        (has_any && meant.all(|it| it)).then(|| name.to_owned())
    });
    emptied.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_endpoint() {
        let endpoint =
            |name: &str, eligible: bool| serde_json::json!({ "name": name, "eligible": eligible });
        let upstreams = serde_json::json!([
            { "name": "app", "endpoints": [endpoint("a", true), endpoint("b", true)] },
            { "name": "api", "endpoints": [endpoint("a", true), endpoint("b", false)] },
            { "name": "old", "endpoints": [endpoint("a", false)] },
        ]);
        for (endpoints, expected) in [
            (&["app/a"][..], None),
            (&["app/a", "app/b"], Some("app")),
            (&["app/*"], Some("app")),
            (&["api/a"], Some("api")),
            (&["api/b"], None),
            (&["old/a"], None),
            (&["app"], None),
        ] {
            let endpoints: Vec<_> = endpoints.iter().map(|it| (*it).to_owned()).collect();
            assert_eq!(
                left_empty(&upstreams, &endpoints).as_deref(),
                expected,
                "{endpoints:?}"
            );
        }
    }
}
