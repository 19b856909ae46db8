//! Purges by an operator, from any source: drops stored responses, or makes them stale.

use evenkeel_cache::key::KeyRules;
use evenkeel_cache::purge::{Purge, Strength};
use evenkeel_proto::Scheme;

use super::operate::{Operator, Unknown};
use crate::cache::Cache;
use crate::observe::figures::Sources;

/// An operator's order to purge.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PurgeOrder<'a> {
    pub what: PurgeScope<'a>,
    pub strength: Strength,
    /// All caches, if there are none.
    pub cache: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PurgeScope<'a> {
    Everything,
    Url(Url<'a>),
    Prefix(Url<'a>),
    Tag(&'a str),
}

/// A URL in the parts of which keys consist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Url<'a> {
    text: &'a str,
    scheme: Scheme,
    host: &'a str,
    path_and_query: &'a str,
}

const TAKES: &str = "purge needs `url URL`, `prefix URL`, `tag TAG` or `everything`; `soft` and \
    `cache NAME` may follow";

impl<'a> PurgeOrder<'a> {
    /// Reads it from the words of a command.
    ///
    /// # Errors
    /// The words are not an order, or a URL has no host.
    pub fn parse(words: &[&'a str]) -> Result<Self, String> {
        let (what, mut options) = match *words {
            ["everything", ref options @ ..] => (PurgeScope::Everything, options),
            ["url", url, ref options @ ..] => (PurgeScope::Url(Url::parse(url)?), options),
            ["prefix", url, ref options @ ..] => (PurgeScope::Prefix(Url::parse(url)?), options),
            ["tag", tag, ref options @ ..] => (PurgeScope::Tag(tag), options),
            _ => return Err(TAKES.to_owned()),
        };
        let mut parsed = PurgeOrder {
            what,
            strength: Strength::Hard,
            cache: None,
        };
        loop {
            options = match *options {
                [] => return Ok(parsed),
                ["soft", ref rest @ ..] => {
                    parsed.strength = Strength::Soft;
                    rest
                }
                ["cache", name, ref rest @ ..] => {
                    parsed.cache = Some(name);
                    rest
                }
                _ => return Err(TAKES.to_owned()),
            };
        }
    }
}

impl<'a> Url<'a> {
    /// Reads `http://HOST[:PORT][/PATH][?QUERY]`, or the same with `https://`. Cuts a fragment
    /// off, as no request has one.
    ///
    /// # Errors
    /// The text is not such a URL, or has a user.
    pub fn parse(text: &'a str) -> Result<Self, String> {
        let schemes = [("http://", Scheme::Http), ("https://", Scheme::Https)];
        let found = schemes.iter().find_map(|(start, scheme)| {
            let (before, rest) = text.split_at_checked(start.len())?;
            before
                .eq_ignore_ascii_case(start)
                .then_some((rest, *scheme))
        });
        let no_url = || format!("`{}` is not a URL with a host", text.escape_debug());
        let (rest, scheme) = found.ok_or_else(no_url)?;
        let rest = rest.split('#').next().unwrap_or(rest);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, path_and_query) = rest.split_at(end);
        if host.is_empty() {
            return Err(no_url());
        }
        if host.contains('@') {
            return Err(format!(
                "`{}` contains a user: leave it out",
                text.escape_debug()
            ));
        }
        Ok(Url {
            text,
            scheme,
            host,
            path_and_query,
        })
    }

    /// The URL in the form of a route's keys.
    fn key(&self, rules: &KeyRules, cache: &Cache) -> Box<[u8]> {
        let (host, path) = (self.host.as_bytes(), self.path_and_query.as_bytes());
        rules
            .key_of_url(cache.memory.secret(), self.scheme, host, path)
            .bytes
    }
}

impl std::fmt::Display for PurgeScope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PurgeScope::Everything => f.write_str("everything"),
            PurgeScope::Url(url) => write!(f, "url {}", url.text.escape_debug()),
            PurgeScope::Prefix(url) => write!(f, "prefix {}", url.text.escape_debug()),
            PurgeScope::Tag(tag) => write!(f, "tag {}", tag.escape_debug()),
        }
    }
}

impl PurgeOrder<'_> {
    /// Purges, and returns a sentence for each cache. Blocks if a cache has a disk.
    ///
    /// # Errors
    /// No cache has this name.
    pub fn carry_out(&self, sources: &Sources, by: Operator) -> Result<Vec<String>, Unknown> {
        let is_meant = |name: &str| self.cache.is_none_or(|it| it == name);
        let caches = sources.caches.iter().enumerate();
        let meant: Vec<_> = caches.filter(|(_, it)| is_meant(it.name())).collect();
        if meant.is_empty() {
            return Err(match self.cache {
                Some(name) => Unknown::Cache(name.escape_debug().to_string()),
                None => Unknown::AnyCache,
            });
        }
        let what = self.what;
        let how = match self.strength {
            Strength::Hard => "",
            Strength::Soft => "softly ",
        };
        let mut done = Vec::new();
        for (index, cache) in meant {
            self.purge(sources, index, cache);
            let name = cache.name();
            tracing::info!(cache = name, "cache {name}: purged {how}{what}, {by}");
            done.push(format!("cache {name}: purged {how}{what}"));
        }
        Ok(done)
    }

    /// Purges the cache with this index in the configuration.
    fn purge(&self, sources: &Sources, index: usize, cache: &Cache) {
        match self.what {
            PurgeScope::Everything => cache.purge(Purge::Everything, self.strength),
            PurgeScope::Tag(tag) => cache.purge(Purge::Tag(tag.as_bytes()), self.strength),
            PurgeScope::Prefix(url) => {
                let key = url.key(&KeyRules::default(), cache);
                cache.purge(Purge::Prefix(&key), self.strength);
            }
            // Routes may have different parameters in their keys.
            PurgeScope::Url(url) => {
                let routes = sources.config.routes.iter();
                let caching = routes.filter_map(|it| it.cache.as_ref());
                let caching = caching.filter(|it| it.store == index);
                let mut keys: Vec<_> = caching.map(|it| url.key(&it.rules.key, cache)).collect();
                keys.sort_unstable();
                keys.dedup();
                for key in keys {
                    cache.purge(Purge::Url(&key), self.strength);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_is_purged() {
        let words = |what, strength, cache| {
            Ok(PurgeOrder {
                what,
                strength,
                cache,
            })
        };
        let url = |text, scheme, host, path_and_query| Url {
            text,
            scheme,
            host,
            path_and_query,
        };
        use Strength::{Hard, Soft};
        for (said, expected) in [
            (
                &["everything"][..],
                words(PurgeScope::Everything, Hard, None),
            ),
            (
                &["tag", "a", "soft"],
                words(PurgeScope::Tag("a"), Soft, None),
            ),
            (
                &["tag", "a", "cache", "b", "soft"],
                words(PurgeScope::Tag("a"), Soft, Some("b")),
            ),
            (
                &["url", "http://h:1/p?q"],
                words(
                    PurgeScope::Url(url("http://h:1/p?q", Scheme::Http, "h:1", "/p?q")),
                    Hard,
                    None,
                ),
            ),
            (
                &["prefix", "https://h"],
                words(
                    PurgeScope::Prefix(url("https://h", Scheme::Https, "h", "")),
                    Hard,
                    None,
                ),
            ),
            (
                &["url", "HTTP://h/p#part"],
                words(
                    PurgeScope::Url(url("HTTP://h/p#part", Scheme::Http, "h", "/p")),
                    Hard,
                    None,
                ),
            ),
            (
                &["url", "http://user:word@h/p"],
                Err("`http://user:word@h/p` contains a user: leave it out".to_owned()),
            ),
            (
                &["url", "/p"],
                Err("`/p` is not a URL with a host".to_owned()),
            ),
            (
                &["url", "http:///p"],
                Err("`http:///p` is not a URL with a host".to_owned()),
            ),
            (&[], Err(TAKES.to_owned())),
            (&["tag"], Err(TAKES.to_owned())),
            (&["everything", "cache"], Err(TAKES.to_owned())),
            (&["everything", "hard"], Err(TAKES.to_owned())),
        ] {
            assert_eq!(PurgeOrder::parse(said), expected, "{said:?}");
        }
    }
}
