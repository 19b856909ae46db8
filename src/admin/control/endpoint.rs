//! `endpoint add`, `remove` and `set`: changes of an upstream's list.

use super::Caller;
use super::answer::{Answer, Format};
use super::command::{left_empty, nobody_left};
use crate::config::MAX_WEIGHT;
use crate::discovery::{EndpointChange, Keep, ListChange};

/// What a command says beyond the place.
#[derive(Debug, PartialEq, Eq)]
struct Words {
    change: EndpointChange,
    keep: Keep,
}

/// Changes the list that the place is in.
pub(super) fn run(caller: &Caller<'_>, verb: &str, words: &[&str], format: Format) -> Answer {
    let [place, options @ ..] = words else {
        return Err(format!("endpoint {verb} takes UPSTREAM/ENDPOINT"));
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
            return Err("endpoint set takes weight, max_in_flight, tier or address".to_owned());
        }
        "set" => ListChange::Set(change),
        "remove" if !is_bare => return Err("endpoint remove takes no option but save".to_owned()),
        "remove" => ListChange::Remove,
        _ => {
            return Err(format!(
                "unknown command `endpoint {}`",
                verb.escape_debug()
            ));
        }
    };
    let done = apply(caller, place, &change, keep)?;
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

/// Makes a change of the endpoint that `UPSTREAM/ENDPOINT` stands for.
pub(super) fn apply(
    caller: &Caller<'_>,
    place: &str,
    change: &ListChange,
    keep: Keep,
) -> Result<String, String> {
    let Some((upstream, endpoint)) = place.split_once('/').filter(|it| !it.1.is_empty()) else {
        let place = place.escape_debug();
        return Err(format!(
            "`{place}` is no UPSTREAM/ENDPOINT: a slash is missing"
        ));
    };
    let by = caller.operator.to_string();
    let discovery = &caller.admin.discovery;
    discovery.change(upstream, endpoint, change, keep, &by)
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
                None => return Err("address takes an address".to_owned()),
            },
            _ => {
                let word = word.escape_debug();
                return Err(format!(
                    "unknown option `{word}`: there are weight, max_in_flight, tier, backup, \
                     address and save"
                ));
            }
        }
    }
    Ok(Words { change, keep })
}

/// HAProxy's `add server`, `del server` and `set server … addr`; `None` where it is none
/// of them.
pub(super) fn haproxy(caller: &Caller<'_>, words: &[&str]) -> Option<String> {
    let made = |place: &str, change: EndpointChange, add: fn(EndpointChange) -> ListChange| {
        let by = caller.operator.to_string();
        apply(
            caller,
            place,
            &add(EndpointChange { by, ..change }),
            Keep::Running,
        )
    };
    let (done, said) = match *words {
        ["add", "server", place, ref options @ ..] => {
            let (address, options) = match options {
                [address, options @ ..] if address.contains(':') => (Some(*address), options),
                options => (None, options),
            };
            let change = parse(options).map(|it| EndpointChange {
                address: address.map(str::to_owned),
                ..it.change
            });
            let done = change.and_then(|it| made(place, it, ListChange::Add));
            (done, "New server registered.\n")
        }
        ["add", "server", ..] => return Some("'server' expects <backend>/<server>.\n".to_owned()),
        ["del", "server", place] => {
            let done = apply(caller, place, &ListChange::Remove, Keep::Running);
            (done, "Server deleted.\n")
        }
        ["set", "server", place, "addr", ip, "port", port] => {
            let change = address_change(ip, port);
            (made(place, change, ListChange::Set), "")
        }
        ["set", "server", place, "addr", ip] => {
            // The port stays: it is that of the name, where the name has one.
            let port = place.rsplit_once(':').map_or("", |it| it.1);
            (made(place, address_change(ip, port), ListChange::Set), "")
        }
        _ => return None,
    };
    Some(match done {
        Ok(_) => said.to_owned(),
        Err(error) => format!("{error}\n"),
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
            (&["address"], "takes an address"),
            (&["frob"], "unknown option `frob`"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(says), "{words:?}: {error}");
        }
    }
}
