//! The kinds of value that the options of caches take.

use std::time::Duration;

use evenkeel_cache::rules::ClientDirectives;
use evenkeel_cache::storing::is_never_stored;
use evenkeel_net::Address;
use evenkeel_policy::route::Glob;
use evenkeel_policy::route::pattern::Star;

use super::diagnostics::Report;
use super::quantity::DurationValue;
use super::secret::REDIS_URL;
use super::setting::{Fault, FromText, Setting, resolve_to};
use super::shape::{Choice, Shape};
use super::tree::Node;
use super::value::{SocketPath, choice, port_help, too_long};
use super::{Password, SharedPlace, SharedStore, Trust};

resolve_to!(WholeSeconds => Duration, CachedStatus => u16, ParameterPattern => Glob);

choice!(ClientDirectives {
    "honour" => ClientDirectives::Honoured, "a client may demand a fresh response, and may accept \
        a stale one";
    "ignore" => ClientDirectives::Ignored, "requests cannot bypass the cache, so clients cannot \
        cause load on the endpoints; only `only-if-cached` is respected";
});

/// A duration in whole seconds, in which caches count (RFC 9111 §1.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WholeSeconds(pub Duration);

impl FromText for WholeSeconds {
    const FORM: &'static str =
        "a duration in whole seconds, such as `\"10s\"`, `\"1h\"` or `\"1m30s\"`";
    const PATTERN: Option<&'static str> = DurationValue::PATTERN;

    fn from_text(text: &str) -> Result<Self, Fault> {
        let DurationValue(duration) = DurationValue::from_text(text)?;
        if duration.subsec_nanos() != 0 {
            return Err(
                Fault::new(format!("`{text}` is not a whole number of seconds"))
                    .help("a cache counts in seconds: write \"0s\", \"1s\" or more"),
            );
        }
        Ok(Self(duration))
    }
}

/// The status of responses that a cache may store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedStatus(pub u16);

impl FromText for CachedStatus {
    const FORM: &'static str = "a status, such as `404`";
    const PATTERN: Option<&'static str> = Some("^[2-5][0-9][0-9]$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let status = text.parse().ok().filter(|it| (200..=599).contains(it));
        let Some(status) = status else {
            let fault = Fault::new(format!("`{text}` is not a valid status"));
            return Err(match text {
                "any" | "default" | "*" => {
                    fault.help("write each status, as in { 200 = \"1m\", 404 = \"10s\" }")
                }
                _ => fault.help("statuses are 200 to 599, each with its own duration"),
            });
        };
        if is_never_stored(status) {
            return Err(Fault::new(format!(
                "responses with status {status} are never stored: each belongs to one request"
            )));
        }
        Ok(Self(status))
    }
}

/// The name of a parameter of the query, with wildcards.
#[derive(Debug, Clone)]
pub struct ParameterPattern(pub Glob);

impl FromText for ParameterPattern {
    const FORM: &'static str = "the name of a query parameter, such as `\"page\"` or `\"utm_*\"`";
    const PATTERN: Option<&'static str> = Some("^[^=&]+$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = || Fault::new(format!("`{text}` is not a valid name of a query parameter"));
        if text.is_empty() || text.contains(['=', '&']) {
            return Err(fault().help("write the name alone, as in \"page\" or \"utm_*\""));
        }
        let glob = Glob::new(text.as_bytes(), Star::Anything);
        glob.map(Self).map_err(|_| fault().help(too_long()))
    }
}

/// The address of a Redis or Valkey server, with the login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisUrl(pub SharedStore);

/// The port that is registered for Redis.
const REDIS_PORT: u16 = 6379;

/// Messages never show the text, which may have a password anywhere.
impl FromText for RedisUrl {
    const FORM: &'static str = REDIS_URL;
    const PATTERN: Option<&'static str> = Some("^(rediss?://|unix:/).+");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let fault = || Fault::new("this is not a valid URL of a Redis server");
        let is_unix = text.starts_with("unix:") || text.starts_with('/');
        if is_unix {
            let SocketPath(Address::Unix(path)) = SocketPath::from_text(text)? else {
                return Err(fault());
            };
            return Ok(Self(SharedStore {
                place: SharedPlace::Unix(path),
                user: None,
                password: None,
                database: 0,
                tls: None,
            }));
        }
        let (rest, tls) = match text.strip_prefix("rediss://") {
            Some(rest) => (Some(rest), Some(Trust::System)),
            None => (text.strip_prefix("redis://"), None),
        };
        let Some(rest) = rest else {
            return Err(fault().help(
                "write it as in \"redis://10.0.0.5:6379\", \"rediss://redis.internal:6380\" for \
                 TLS, or \"unix:/run/redis/redis.sock\"",
            ));
        };
        if !rest.bytes().all(|it| it.is_ascii_graphic()) {
            return Err(fault().help("write no spaces, and %XX for characters outside ASCII"));
        }
        let (login, place) = match rest.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, rest),
        };
        let (authority, database) = place.split_once('/').unwrap_or((place, ""));
        let database = match database {
            "" => 0,
            number => number.parse().map_err(|_| {
                fault().help(
                    "only the number of a database may follow the port, as in \
                    \"redis://10.0.0.5:6379/0\"",
                )
            })?,
        };
        let (user, password) = match login.map(|it| it.split_once(':')) {
            None => (Some(String::new()), Some(String::new())),
            Some(Some((user, password))) if !password.is_empty() => {
                (decoded(user), decoded(password))
            }
            Some(_) => {
                return Err(fault().help(
                    "write user and password as USER:PASSWORD@, or a password alone as :PASSWORD@",
                ));
            }
        };
        let (Some(user), Some(password)) = (user, password) else {
            return Err(fault().help(
                "in a user or a password `%` must be followed by two hex digits: write %25 for \
                    `%` itself",
            ));
        };
        Ok(Self(SharedStore {
            place: place_of(authority).map_err(|help| fault().help(help))?,
            user: Some(user).filter(|it| !it.is_empty()),
            password: Some(password).filter(|it| !it.is_empty()).map(Password),
            database,
            tls,
        }))
    }
}

/// Host and port.
///
/// # Errors
/// Advice on what to write instead.
fn place_of(authority: &str) -> Result<SharedPlace, String> {
    let after_host = authority.rfind(']').map_or(0, |it| it + 1);
    let (host, port) = match authority[after_host..].split_once(':') {
        Some((host, port)) => (&authority[..after_host + host.len()], Some(port)),
        None => (authority, None),
    };
    let host = host
        .strip_prefix('[')
        .and_then(|it| it.strip_suffix(']'))
        .unwrap_or(host);
    let is_of_host = |it: u8| it.is_ascii_alphanumeric() || b"-._:".contains(&it);
    if host.is_empty() || !host.bytes().all(is_of_host) {
        return Err("write a host and a port, as in \"redis://10.0.0.5:6379\"".to_owned());
    }
    let port = match port {
        None => REDIS_PORT,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(port_help(port, 1)),
        },
    };
    Ok(SharedPlace::Tcp {
        host: host.to_owned(),
        port,
    })
}

/// Text with `%XX` read; `None` where it can't be.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend(parts.next()?.bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend(part[2..].bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_servers() {
        let tcp = |host: &str, port| SharedPlace::Tcp {
            host: host.to_owned(),
            port,
        };
        for (text, expected) in [
            (
                "redis://10.0.0.5",
                Some((tcp("10.0.0.5", 6379), None, None, 0)),
            ),
            (
                "redis://cache.internal:7000/3",
                Some((tcp("cache.internal", 7000), None, None, 3)),
            ),
            (
                "rediss://:pass@cache.internal:7000/3",
                Some((tcp("cache.internal", 7000), None, Some("pass"), 3)),
            ),
            (
                "redis://[::1]:7000/",
                Some((tcp("::1", 7000), None, None, 0)),
            ),
            ("redis://[::1]", Some((tcp("::1", 6379), None, None, 0))),
            (
                "redis://:p%40ss@h",
                Some((tcp("h", 6379), None, Some("p@ss"), 0)),
            ),
            // A password that is not percent-encoded, with characters that would end a host.
            (
                "redis://me:a/b@c#d:e@h:1/2",
                Some((tcp("h", 1), Some("me"), Some("a/b@c#d:e"), 2)),
            ),
            (
                "unix:/run/r.sock",
                Some((SharedPlace::Unix("/run/r.sock".into()), None, None, 0)),
            ),
            (
                "/run/r.sock",
                Some((SharedPlace::Unix("/run/r.sock".into()), None, None, 0)),
            ),
            ("valkeys://h", None),
            ("http://h", None),
            ("10.0.0.5:6379", None),
            ("redis://", None),
            ("redis://:6379", None),
            ("redis://h:0", None),
            ("redis://h:x", None),
            ("redis://h/x", None),
            ("redis://me@h", None),
            ("redis://me:@h", None),
            ("redis://@h", None),
            ("redis://me:%zz@h", None),
            ("redis://me:p%4@h", None),
            ("redis://a b", None),
        ] {
            let read = RedisUrl::from_text(text).ok().map(|RedisUrl(it)| it);
            let expected = expected.map(|(place, user, password, database)| SharedStore {
                place,
                user: user.map(str::to_owned),
                password: password.map(|it| Password(it.to_owned())),
                database,
                tls: text.starts_with("rediss:").then_some(Trust::System),
            });
            assert_eq!(read, expected, "{text}");
        }
    }
}
