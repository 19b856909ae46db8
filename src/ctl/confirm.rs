//! The question before a command that leaves an upstream without an endpoint.

use std::io::{IsTerminal, Write};

use serde_json::Value;

use super::socket::{self, Socket};
use crate::cli::{CtlVerb, EndpointVerb, ServerVerb, SetVerb};

/// Asks on a terminal whether to take the last endpoint of an upstream out of use.
/// Scripts are not asked: the process warns them in its answer.
///
/// # Errors
/// A sentence, where the answer is no.
pub fn ask(socket: &Socket, verb: &CtlVerb, json: bool) -> Result<(), String> {
    let endpoints = out_of_use(verb);
    if endpoints.is_empty() {
        return Ok(());
    }
    let is_script = !std::io::stdin().is_terminal()
        || !std::io::stdout().is_terminal()
        || !std::io::stderr().is_terminal();
    if is_script || json {
        return Ok(());
    }
    // The command itself reports a process that does not answer.
    let answer = socket.ask("json show upstreams", socket::TIMEOUT);
    let upstreams = answer.ok().and_then(|it| serde_json::from_str(&it).ok());
    let emptied = upstreams.map(|it| left_empty(&it, endpoints));
    let emptied = emptied.unwrap_or_default();
    if emptied.is_empty() {
        return Ok(());
    }
    let mut stderr = std::io::stderr();
    let asked = write!(
        stderr,
        "evenkeel: after that no endpoint of `{}` takes requests. Continue? [y/N] ",
        emptied.join("` and of `")
    );
    let mut answer = String::new();
    let read = asked.and_then(|()| std::io::stdin().read_line(&mut answer));
    let answer = answer.trim().to_ascii_lowercase();
    if read.is_ok() && matches!(answer.as_str(), "y" | "yes") {
        Ok(())
    } else {
        Err("nothing was changed".to_owned())
    }
}

/// The endpoints that a command takes out of use.
fn out_of_use(verb: &CtlVerb) -> &[String] {
    match verb {
        CtlVerb::Drain { endpoints, .. } | CtlVerb::Stop { endpoints, .. } => endpoints,
        CtlVerb::Weight {
            endpoint,
            weight: 0,
            ..
        } => std::slice::from_ref(endpoint),
        CtlVerb::Endpoint {
            what: EndpointVerb::Remove { place, .. },
        } => std::slice::from_ref(place),
        _ => &[],
    }
}

/// Warns where a command of HAProxy's, which answers nothing, has left an upstream
/// without an endpoint.
pub fn warn(socket: &Socket, verb: &CtlVerb) {
    let server = match verb {
        CtlVerb::Disable {
            what: ServerVerb::Server { server },
        }
        | CtlVerb::Set {
            what: SetVerb::Server { server, .. } | SetVerb::Weight { server, .. },
        } => server,
        _ => return,
    };
    let answer = socket.ask("json show upstreams", socket::TIMEOUT);
    let upstreams: Option<Value> = answer.ok().and_then(|it| serde_json::from_str(&it).ok());
    let name = server.split('/').next().unwrap_or_default();
    let upstreams = upstreams.as_ref().and_then(Value::as_array);
    let upstream = upstreams.and_then(|all| all.iter().find(|it| it["name"] == name));
    let endpoints = upstream.and_then(|it| it["endpoints"].as_array());
    if endpoints.is_some_and(|all| all.iter().all(|it| it["eligible"] != true)) {
        crate::note(&format!(
            "warning: no endpoint of `{name}` takes requests now"
        ));
    }
}

/// The upstreams that have endpoints which take requests now, and none any more
/// without these `endpoints`.
fn left_empty(upstreams: &Value, endpoints: &[String]) -> Vec<String> {
    let upstreams = upstreams.as_array().into_iter().flatten();
    let emptied = upstreams.filter_map(|upstream| {
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
    emptied.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_removed_is_out_of_use() {
        let place = "app/a".to_owned();
        let what = EndpointVerb::Remove { place, save: false };
        assert_eq!(out_of_use(&CtlVerb::Endpoint { what }), ["app/a"]);
        assert!(out_of_use(&CtlVerb::Confirm).is_empty());
    }

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
            (&["app/a"][..], &[][..]),
            (&["app/a", "app/b"], &["app"]),
            (&["app/*", "api/*"], &["app", "api"]),
            (&["api/a"], &["api"]),
            (&["api/b"], &[]),
            (&["old/a"], &[]),
            (&["app"], &[]),
        ] {
            let endpoints: Vec<_> = endpoints.iter().map(|it| (*it).to_owned()).collect();
            assert_eq!(
                left_empty(&upstreams, &endpoints),
                expected,
                "{endpoints:?}"
            );
        }
    }
}
