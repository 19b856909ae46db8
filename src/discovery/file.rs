//! Files of endpoints: their content, and when they change.
//!
//! A JSON array of our own, `[{"address": "10.0.0.9:8080", "weight": 2}, …]`, or Envoy's
//! `ClusterLoadAssignment` as JSON. Programs replace such a file as a whole, by a rename: the
//! folder is watched, not the file.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::Failure;
use crate::config::{Endpoint, MAX_WEIGHT, read_regular_file};
use crate::watching::{FileWatch, Pace, WatchedFolders, WatchedPaths};

/// Largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 8 * 1024 * 1024;
/// Most endpoints in one.
const MOST_ENDPOINTS: usize = 20_000;
/// When a change counts.
const PACE: Pace = Pace {
    quiet: Duration::from_millis(50),
    poll: Duration::from_secs(10),
};

fn failure(word: &'static str, text: impl Into<String>) -> Failure {
    Failure {
        word,
        text: text.into(),
    }
}

/// Reads the endpoints of a file. Blocks.
pub(super) fn read(path: &Path) -> Result<Vec<Endpoint>, Failure> {
    let bytes = read_regular_file(path, MAX_FILE_BYTES).map_err(|error| {
        let word = match error.kind() {
            io::ErrorKind::FileTooLarge => "file-too-large",
            _ => "file-unreadable",
        };
        failure(word, error.to_string())
    })?;
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Result<Vec<Endpoint>, Failure> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| failure("file-malformed", format!("it is not valid JSON: {error}")))?;
    let endpoints = match &value {
        Value::Array(items) => own(items),
        Value::Object(object) if object.contains_key("version") => {
            let version = &object["version"];
            return Err(failure(
                "file-version",
                format!("version {version} is unknown: write an array"),
            ));
        }
        Value::Object(object) if object.contains_key("endpoints") => envoy(&value),
        _ => Err("it is neither an array of endpoints nor a ClusterLoadAssignment".to_owned()),
    };
    let endpoints = endpoints.map_err(|text| failure("file-malformed", text))?;
    if endpoints.len() > MOST_ENDPOINTS {
        let text = format!(
            "it has {} endpoints, but at most {MOST_ENDPOINTS} are allowed",
            endpoints.len()
        );
        return Err(failure("file-too-large", text));
    }
    let mut names = HashSet::new();
    match endpoints.iter().find(|it| !names.insert(&it.name)) {
        Some(twice) => Err(failure(
            "file-malformed",
            format!("it lists `{}` twice", twice.name),
        )),
        None => Ok(endpoints),
    }
}

/// The endpoints of an array of our own.
pub(super) fn own(items: &[Value]) -> Result<Vec<Endpoint>, String> {
    let endpoints = items.iter().enumerate().map(|(at, item)| {
        let within = |text: String| format!("item {at}: {text}");
        match item {
            Value::String(address) => Endpoint::at(address),
            Value::Object(object) => own_table(object),
            _ => Err("neither an address nor a table".to_owned()),
        }
        .map_err(within)
    });
    endpoints.collect()
}

fn own_table(object: &Map<String, Value>) -> Result<Endpoint, String> {
    let address = object.get("address").and_then(Value::as_str);
    let mut made = Endpoint::at(address.ok_or("`address` is missing")?)?;
    for (key, value) in object {
        let number = |most: u64| {
            let number = value.as_u64().filter(|&it| it <= most);
            number.ok_or_else(|| format!("`{key}` is {value}, not a number from 0 to {most}"))
        };
        match key.as_str() {
            "address" => {}
            "weight" => made.weight = number(u64::from(MAX_WEIGHT))? as u32,
            "tier" => made.tier = number(u64::from(u16::MAX))? as u16,
            "backup" => match value {
                Value::Bool(true) if !object.contains_key("tier") => made.tier = 1,
                Value::Bool(_) => {}
                _ => return Err(format!("`backup` is {value}, not true or false")),
            },
            "max_in_flight" => match number(u64::from(u32::MAX))? as u32 {
                0 => return Err("`max_in_flight` is 0".to_owned()),
                limit => made.max_in_flight = Some(limit),
            },
            _ => {
                return Err(format!(
                    "unknown key `{key}`: keys are address, weight, tier, backup and max_in_flight"
                ));
            }
        }
    }
    Ok(made)
}

/// Reads Envoy's `envoy.config.endpoint.v3.ClusterLoadAssignment`. An unknown key is a mistake,
/// because its meaning would be lost.
fn envoy(assignment: &Value) -> Result<Vec<Endpoint>, String> {
    let keys = ["cluster_name", "endpoints", "named_endpoints", "policy"];
    only(assignment, "the assignment", &keys)?;
    let mut made = Vec::new();
    for locality in list(assignment, "endpoints", "endpoints")? {
        let keys = [
            "locality",
            "metadata",
            "lb_endpoints",
            "load_balancing_weight",
            "priority",
            "proximity",
        ];
        only(locality, "an item of `endpoints`", &keys)?;
        let tier = envoy_number(either(locality, "priority", "priority"), u16::MAX.into());
        let tier = tier.map_err(|it| format!("`priority` {it}"))?.unwrap_or(0);
        for entry in list(locality, "lb_endpoints", "lbEndpoints")? {
            let keys = [
                "endpoint",
                "health_status",
                "metadata",
                "load_balancing_weight",
            ];
            only(entry, "an item of `lb_endpoints`", &keys)?;
            let health = either(entry, "health_status", "healthStatus");
            // protojson takes the numbers of an enum as well.
            let out = [("UNHEALTHY", 2), ("DRAINING", 3), ("TIMEOUT", 4)];
            let is =
                |(word, number): (&str, u64)| health.is_some_and(|it| *it == word || *it == number);
            if out.into_iter().any(is) {
                continue;
            }
            let address = entry.pointer("/endpoint/address");
            let address = address.ok_or("an endpoint without `address`")?;
            let mut one = Endpoint::at(&envoy_address(address)?)?;
            let weight = either(entry, "load_balancing_weight", "loadBalancingWeight");
            let weight = envoy_number(weight, MAX_WEIGHT);
            let weight = weight.map_err(|it| format!("`load_balancing_weight` {it}"))?;
            one.weight = weight.unwrap_or(one.weight);
            one.tier = tier as u16;
            made.push(one);
        }
    }
    Ok(made)
}

/// Whether it is a table with these keys and no others, which protojson may have in
/// camel case.
fn only(value: &Value, what: &str, keys: &[&str]) -> Result<(), String> {
    let object = value.as_object();
    let object = object.ok_or_else(|| format!("{what} is {value}, not an object"))?;
    let in_snake_case = |key: &String| {
        let mut text = String::new();
        for letter in key.chars() {
            if letter.is_ascii_uppercase() {
                text.push('_');
            }
            text.push(letter.to_ascii_lowercase());
        }
        text
    };
    let is_known = |key: &&String| keys.contains(&&*in_snake_case(key));
    match object.keys().find(|it| !is_known(it)) {
        Some(key) => Err(format!("{what} has an unknown key `{key}`")),
        None => Ok(()),
    }
}

/// The array under a name; protojson leaves out one that is empty.
fn list<'a>(value: &'a Value, snake: &str, camel: &str) -> Result<&'a [Value], String> {
    match either(value, snake, camel) {
        None => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(other) => Err(format!("`{snake}` is {other}, not an array")),
    }
}

/// A number, which protojson may have as text where it is wrapped.
fn envoy_number(value: Option<&Value>, most: u32) -> Result<Option<u32>, String> {
    let Some(value) = value else { return Ok(None) };
    let text = value.as_str().and_then(|it| it.parse().ok());
    let number = value.as_u64().or(text).and_then(|it| it.try_into().ok());
    match number.filter(|it| *it <= most) {
        Some(number) => Ok(Some(number)),
        None => Err(format!("is {value}, not a number from 0 to {most}")),
    }
}

fn envoy_address(address: &Value) -> Result<String, String> {
    if let Some(pipe) = address.pointer("/pipe/path").and_then(Value::as_str) {
        return Ok(format!("unix:{pipe}"));
    }
    let socket = either(address, "socket_address", "socketAddress");
    let socket = socket.ok_or("an endpoint without `socket_address`")?;
    let host = socket.get("address").and_then(Value::as_str);
    let port = either(socket, "port_value", "portValue").and_then(Value::as_u64);
    match (host, port) {
        (Some(host), Some(port)) if host.contains(':') => Ok(format!("[{host}]:{port}")),
        (Some(host), Some(port)) => Ok(format!("{host}:{port}")),
        _ => Err("a `socket_address` without `address` and `port_value`".to_owned()),
    }
}

/// A member under its name in snake case, or as protojson writes it.
fn either<'a>(value: &'a Value, snake: &str, camel: &str) -> Option<&'a Value> {
    value.get(snake).or_else(|| value.get(camel))
}

/// Watches the file from now on.
pub(super) async fn watch(folders: &Arc<WatchedFolders>, path: &Path) -> FileWatch {
    let paths = WatchedPaths {
        files: vec![path.to_owned()],
        ..WatchedPaths::default()
    };
    FileWatch::begin(folders, paths, PACE).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<(String, u32, u16)> {
        let endpoints = parse(text.as_bytes()).unwrap();
        let each = endpoints
            .into_iter()
            .map(|it| (it.name, it.weight, it.tier));
        each.collect()
    }

    #[test]
    fn arrays_of_addresses_and_tables() {
        let text = r#"["10.0.0.1:80", {"address": "unix:/run/app.sock"},
            {"address": "[::1]:81", "weight": 3, "tier": 2, "max_in_flight": 4},
            {"address": "10.0.0.2:80", "backup": true}]"#;
        let expected = [
            ("10.0.0.1:80", 1, 0),
            ("unix:/run/app.sock", 1, 0),
            ("[::1]:81", 3, 2),
            ("10.0.0.2:80", 1, 1),
        ];
        assert_eq!(
            names(text),
            expected.map(|(it, weight, tier)| (it.to_owned(), weight, tier))
        );
        assert_eq!(parse(text.as_bytes()).unwrap()[2].max_in_flight, Some(4));
        assert!(names("[]").is_empty());
    }

    #[test]
    fn envoys_assignments() {
        let text = r#"{"clusterName": "app", "endpoints": [
            {"lbEndpoints": [
                {"endpoint": {"address": {"socketAddress": {"address": "10.0.0.1", "portValue": 80}}},
                 "loadBalancingWeight": 5},
                {"endpoint": {"address": {"socketAddress": {"address": "10.0.0.9", "portValue": 80}}},
                 "healthStatus": "DRAINING"},
                {"endpoint": {"address": {"socketAddress": {"address": "10.0.0.8", "portValue": 80}}},
                 "health_status": 2}]},
            {"priority": 1, "lb_endpoints": [
                {"endpoint": {"address": {"socket_address": {"address": "::1", "port_value": 81}}}},
                {"endpoint": {"address": {"pipe": {"path": "/run/a.sock"}}}}]}]}"#;
        let expected = [
            ("10.0.0.1:80", 5, 0),
            ("[::1]:81", 1, 1),
            ("unix:/run/a.sock", 1, 1),
        ];
        assert_eq!(
            names(text),
            expected.map(|(it, weight, tier)| (it.to_owned(), weight, tier))
        );
    }

    #[test]
    fn what_is_wrong_with_a_file_has_a_word() {
        for (text, word, says) in [
            ("", "file-malformed", "it is not valid JSON"),
            ("[\"10.0.0.1:80\"", "file-malformed", "it is not valid JSON"),
            ("{\"version\": 7}", "file-version", "version 7"),
            ("{}", "file-malformed", "neither an array"),
            ("7", "file-malformed", "neither an array"),
            ("[7]", "file-malformed", "item 0: neither"),
            ("[\"10.0.0.1\"]", "file-malformed", "item 0: "),
            ("[\"app.internal:80\"]", "file-malformed", "app.internal:80"),
            (
                "[{\"weight\": 1}]",
                "file-malformed",
                "`address` is missing",
            ),
            (
                "[{\"address\": \"10.0.0.1:80\", \"wieght\": 1}]",
                "file-malformed",
                "`wieght`",
            ),
            (
                "[{\"address\": \"10.0.0.1:80\", \"weight\": -1}]",
                "file-malformed",
                "`weight`",
            ),
            (
                "[\"10.0.0.1:80\", \"10.0.0.1:80\"]",
                "file-malformed",
                "twice",
            ),
            (
                "{\"endpoints\": [{\"lbEndpoints\": [{}]}]}",
                "file-malformed",
                "without `address`",
            ),
            (
                "{\"endpoints\": [{\"lbEndpoints\": [{\"endpoint\": {\"address\": {}}}]}]}",
                "file-malformed",
                "socket_address",
            ),
            (
                "{\"version\": 2, \"endpoints\": [{\"address\": \"10.0.0.1:80\"}]}",
                "file-version",
                "version 2",
            ),
            ("{\"endpoints\": {}}", "file-malformed", "not an array"),
            ("{\"endpoints\": [7]}", "file-malformed", "not an object"),
            (
                "{\"endpoints\": [{\"address\": \"10.0.0.1:80\"}]}",
                "file-malformed",
                "unknown key `address`",
            ),
            (
                "{\"endpoints\": [{\"lb_endpoint\": []}]}",
                "file-malformed",
                "unknown key `lb_endpoint`",
            ),
            (
                "{\"endpoints\": [{\"lbEndpoints\": {}}]}",
                "file-malformed",
                "not an array",
            ),
            (
                "{\"endpoints\": [{\"priority\": \"first\", \"lbEndpoints\": []}]}",
                "file-malformed",
                "`priority`",
            ),
        ] {
            let failure = parse(text.as_bytes()).unwrap_err();
            assert_eq!(failure.word, word, "{text}: {failure:?}");
            assert!(failure.text.contains(says), "{text}: {failure:?}");
        }
    }
}
