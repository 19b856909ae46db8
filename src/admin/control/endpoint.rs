//! `endpoint add`, `remove` and `set`: changes of an upstream's list.

use super::Caller;
use super::answer::{Answer, Format};
use crate::admin::operate::{left_empty, nobody_left};
use crate::config::MAX_WEIGHT;
use crate::discovery::{EndpointChange, Keep, ListChange};
use crate::net::Address;

/// The words of a command after the place.
#[derive(Debug, PartialEq, Eq)]
struct Words {
    change: EndpointChange,
    keep: Keep,
}

/// Changes the list of the place.
pub(super) async fn run(caller: &Caller<'_>, verb: &str, words: &[&str], format: Format) -> Answer {
    let [place, options @ ..] = words else {
        return Err(format!("endpoint {verb} needs UPSTREAM/ENDPOINT"));
    };
    let Words { mut change, keep } = parse(options)?;
    change.by = caller.operator.to_string();
    let said = EndpointChange {
        by: change.by.clone(),
        ..EndpointChange::default()
    };
    let is_bare = change == said;
    let change = match verb {
        "add" => ListChange::Add(change),
        "set" if is_bare => {
            return Err("endpoint set needs weight, max_in_flight, tier or address".to_owned());
        }
        "set" => ListChange::Set(change),
        "remove" if !is_bare => return Err("endpoint remove takes only the option save".to_owned()),
        "remove" => ListChange::Remove,
        _ => {
            return Err(format!(
                "unknown command `endpoint {}`",
                verb.escape_debug()
            ));
        }
    };
    let done = apply(caller, place, &change, keep).await?;
    let upstream = place.split_once('/').map(|it| it.0);
    let upstream = upstream.filter(|_| change == ListChange::Remove);
    let upstream = upstream.as_slice();
    let empty = left_empty(&caller.admin.sources(), upstream);
    let warnings: Vec<_> = empty.iter().map(|it| nobody_left(it)).collect();
    let mut answer = serde_json::json!({ "done": [done] });
    if !warnings.is_empty() {
        answer["warnings"] = serde_json::json!(warnings);
    }
    format.show(&answer, |_| {
        let warnings = warnings.iter().map(|it| format!("warning: {it}\n"));
        format!("{done}\n{}", warnings.collect::<String>())
    })
}

/// Changes the endpoint of `UPSTREAM/ENDPOINT`.
async fn apply(
    caller: &Caller<'_>,
    place: &str,
    change: &ListChange,
    keep: Keep,
) -> Result<String, String> {
    let (upstream, endpoint) = parts(place)?;
    let by = caller.operator.to_string();
    let discovery = &caller.admin.discovery;
    discovery
        .change(upstream, endpoint, change, keep, &by)
        .await
}

/// The upstream and the endpoint of a place.
fn parts(place: &str) -> Result<(&str, &str), String> {
    let parts = place.split_once('/').filter(|it| !it.1.is_empty());
    parts.ok_or_else(|| {
        let place = place.escape_debug();
        format!("`{place}` is not UPSTREAM/ENDPOINT: a slash is missing")
    })
}

fn parse(words: &[&str]) -> Result<Words, String> {
    let mut change = EndpointChange::default();
    let mut keep = Keep::Running;
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        let mut number = |most: u32| {
            let given = words.next().copied().unwrap_or_default();
            let number = given.parse().ok().filter(|&it| it <= most);
            number.ok_or_else(|| {
                let given = given.escape_debug();
                format!("`{word} {given}`: write a whole number from 0 to {most}")
            })
        };
        match word {
            "save" => keep = Keep::Saved,
            "backup" => change.tier = Some(1),
            "weight" => change.weight = Some(number(MAX_WEIGHT)?),
            "tier" => change.tier = Some(number(u32::from(u16::MAX))? as u16),
            "max_in_flight" | "maxconn" => change.max_in_flight = Some(number(u32::MAX)?),
            "address" => match words.next() {
                Some(&address) => change.address = Some(address.to_owned()),
                None => return Err("address needs an address".to_owned()),
            },
            _ => {
                let word = word.escape_debug();
                return Err(format!(
                    "unknown option `{word}`: options are weight, max_in_flight, tier, backup, \
                     address and save"
                ));
            }
        }
    }
    Ok(Words { change, keep })
}

/// HAProxy's `add server`, `del server` and `set server … addr`; `None` for other commands.
pub(super) async fn haproxy(caller: &Caller<'_>, words: &[&str]) -> Option<String> {
    let (place, change, said) = match *words {
        ["add", "server", place, ref options @ ..] => {
            let change = server(options).map(ListChange::Add);
            (place, change, "New server registered.\n")
        }
        ["add", "server", ..] => return Some("'server' expects <backend>/<server>.\n".to_owned()),
        ["del", "server", place] => (place, Ok(ListChange::Remove), "Server deleted.\n"),
        ["set", "server", place, "addr", ip, "port", port] => {
            (place, Ok(ListChange::Set(address_change(ip, port))), "")
        }
        ["set", "server", place, "addr", ip] => {
            let port = port_of(caller, place);
            let change = port.map(|port| ListChange::Set(address_change(ip, &port)));
            (place, change, "")
        }
        _ => return None,
    };
    let done = match change {
        Ok(mut change) => {
            if let ListChange::Add(given) | ListChange::Set(given) = &mut change {
                given.by = caller.operator.to_string();
            }
            apply(caller, place, &change, Keep::Running).await
        }
        Err(error) => Err(error),
    };
    Some(match done {
        Ok(_) => said.to_owned(),
        Err(error) => format!("{error}\n"),
    })
}

/// The present port of an endpoint.
fn port_of(caller: &Caller<'_>, place: &str) -> Result<String, String> {
    let (upstream, endpoint) = parts(place)?;
    let found = caller.admin.discovery.endpoint(upstream, endpoint);
    match found.map(|it| it.address) {
        Some(Address::Tcp(address)) => Ok(address.port().to_string()),
        Some(Address::Unix(_)) => Err(format!(
            "`{endpoint}` is a Unix socket: write the port as well"
        )),
        // The change itself reports a missing endpoint.
        None => Ok("0".to_owned()),
    }
}

/// The words after HAProxy's `add server B/S`: an address, and options. Options for checks are
/// ignored, as the upstream has the settings of probes.
fn server(words: &[&str]) -> Result<EndpointChange, String> {
    let (address, options) = match words {
        [address, options @ ..] if address.contains(':') => (Some(*address), options),
        options => (None, options),
    };
    let mut ours = Vec::new();
    let mut options = options.iter();
    while let Some(&option) = options.next() {
        match option {
            "check" | "no-check" | "enabled" => {}
            "inter" | "fastinter" | "downinter" | "rise" | "fall" | "id" => _ = options.next(),
            "backup" => ours.push(option),
            "weight" | "maxconn" | "max_in_flight" | "tier" | "address" => {
                ours.push(option);
                ours.extend(options.next());
            }
            "save" => {
                return Err("`add server` cannot save: use `endpoint add … save`".to_owned());
            }
            _ => {
                let option = option.escape_debug();
                return Err(format!(
                    "unknown option `{option}`: options are weight, maxconn, backup, and options \
                     of checks, which are ignored"
                ));
            }
        }
    }
    let change = parse(&ours)?.change;
    Ok(EndpointChange {
        address: address.map(str::to_owned).or(change.address.clone()),
        ..change
    })
}

fn address_change(ip: &str, port: &str) -> EndpointChange {
    let ip = ip.trim_start_matches('[').trim_end_matches(']');
    let address = if ip.contains(':') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    };
    EndpointChange {
        address: Some(address),
        ..EndpointChange::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_words() {
        let words = parse(&["weight", "3", "tier", "2", "max_in_flight", "9", "save"]).unwrap();
        let expected = EndpointChange {
            weight: Some(3),
            tier: Some(2),
            max_in_flight: Some(9),
            ..EndpointChange::default()
        };
        assert_eq!((words.change, words.keep), (expected, Keep::Saved));
        for (words, says) in [
            (&["weight"][..], "`weight `: write a whole number"),
            (&["weight", "-1"], "`weight -1`"),
            (&["tier", "65536"], "0 to 65535"),
            (&["address"], "needs an address"),
            (&["frob"], "unknown option `frob`"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(says), "{words:?}: {error}");
        }
    }

    #[test]
    fn options_of_servers_are_haproxys() {
        let words = "10.0.0.1:80 weight 3 check inter 2s rise 2 maxconn 9 backup enabled id 7";
        let words: Vec<_> = words.split(' ').collect();
        let expected = EndpointChange {
            address: Some("10.0.0.1:80".to_owned()),
            weight: Some(3),
            max_in_flight: Some(9),
            tier: Some(1),
            ..EndpointChange::default()
        };
        assert_eq!(server(&words), Ok(expected));
        for (words, says) in [
            (&["10.0.0.1:80", "save"][..], "use `endpoint add … save`"),
            (&["10.0.0.1:80", "ssl"], "unknown option `ssl`"),
            (&["check", "weight"], "`weight `: write a whole number"),
        ] {
            let error = server(words).unwrap_err();
            assert!(error.contains(says), "{words:?}: {error}");
        }
    }
}
