//! Caches: the stores of responses, and a route's rules for its cache.

use evenkeel_cache::Rules;
use evenkeel_cache::rules::ClientDirectives;
use evenkeel_policy::route::Rule;

use super::forms::{Switch, as_table};
use super::names::DEFAULT_STORE;
use super::{Bypass, File, Shared};
use crate::cache_value::{CachedStatus, ParameterPattern, WholeSeconds};
use crate::diagnostics::Report;
use crate::file_value::FolderPath;
use crate::quantity::{DurationValue, Length, Size};
use crate::reserved::HeaderName;
use crate::setting::{Bounded, Map, OneOrMore, Placed, Setting, options, wrong_type};
use crate::shape::Shape;
use crate::tree::{Node, Value};
use crate::value::{FieldName, Peer, Text};
use crate::{CacheDisk, Peers, SharedStore};

options! {
    /// A store of responses. Routes that name it share its room; each route has its own rules.
    pub struct CacheTable as "a cache"
    for #[derive(Debug, Clone, PartialEq, Eq)] CacheStore with CacheStoreParts {
        /// The name that routes, logs and counters use.
        name: String,
        /// The files behind the memory; `None` for memory alone.
        disk: Option<CacheDisk>,
        /// The server through which several processes share it; `None` for none.
        shared: Option<SharedStore>,
    } {
        /// Most memory that the cache uses. The longest response kept in memory is an eighth of
        /// that.
        memory as memory_bytes: Size<usize> = Default("'64MiB'"),
        /// Files for the responses that memory has no room for.
        disk: CacheDiskTable = Optional("memory only") => by_hand,
        /// A Redis or Valkey server through which several processes share their responses: its
        /// URL, or a table.
        shared: Shared = Optional("no shared server") => by_hand,
    }
}

options! {
    /// The files behind the memory of a cache.
    pub struct CacheDiskTable as "the disk of a cache" {
        /// The folder: an absolute path, or one from the folder of the configuration file. Each
        /// cache needs a folder of its own.
        path: Placed<FolderPath> = Required,
        /// Most room that the files may take on the disk.
        size: Size = Required,
    }
}

options! {
    /// The settings of a route's cache.
    pub struct CachingTable as "the cache of a route"
    for #[derive(Debug, Clone)] Caching with CachingParts {
        /// Index in `Config::caches`.
        store: usize,
        /// The rules by which responses are stored and served.
        rules: Rules,
        /// A request that meets one of these goes past the cache.
        bypass: Vec<Rule>,
        /// Peers that may purge a response by a request; `None` for no peers.
        purge_from: Option<Peers>,
    } {
        /// The name of the cache to store responses in.
        store: Placed<Text> = Optional("`\"default\"`, which has 64 MiB of memory unless `[cache.default]` says otherwise") => by_hand,
        /// The parts of the key under which a response is stored.
        key: CacheKeyTable = Default("{}") => by_hand,
        /// How long a response is fresh, by status, unless the response itself says. An
        /// example: `{ 200 = "1m", 404 = "10s" }`.
        ttl: Map<CachedStatus, WholeSeconds> = Default("{}") => by_hand,
        /// Whether a response without a lifetime is fresh for a tenth of the time since its
        /// `Last-Modified`.
        heuristic: bool = Default("false") => by_hand,
        /// How long a stale response may be served while a fresh one is fetched, unless the
        /// response itself says.
        stale_while_revalidate: WholeSeconds = Default("'0s'") => by_hand,
        /// How long a stale response may be served while the endpoints fail, unless the
        /// response itself says.
        stale_if_error: WholeSeconds = Default("'0s'") => by_hand,
        /// Requests for a response before the response is stored.
        min_uses: Bounded<u32, 1, 1000> = Default("1"),
        /// Requests that bypass the cache: those that match every key of the table. Of a list
        /// of tables, one match is enough.
        bypass: OneOrMore<Bypass> = Optional("none") => by_hand,
        /// Whether to store a response with `Set-Cookie` that says neither `public` nor
        /// `s-maxage`. Every client then gets the same cookie.
        store_cookies: bool = Default("false") => by_hand,
        /// The effect of `Cache-Control` and `Pragma` in requests.
        client_directives: ClientDirectives = Default("'honour'") => by_hand,
        /// The longest body to store; 0 for the limit of the cache.
        max_object: Length = Default("0") => by_hand,
        /// Most requests that wait for one response while it is fetched. Further requests go to
        /// an endpoint.
        waiters: Bounded<usize, 0, 1_000_000> = Default("10000"),
        /// Longest wait for a response that another request fetches. After it, the request goes
        /// to an endpoint.
        wait: DurationValue = Default("'10s'"),
        /// Whether a fetch is finished and stored after all its clients have left.
        finish: bool = Default("true"),
        /// Peers that may purge a response, with a request of the method PURGE.
        purge: PurgeTable = Optional("nobody") => by_hand,
        /// Whether responses carry a `Cache-Status` field, which says what the cache did.
        cache_status as reports_status: bool = Default("true"),
    }
}

options! {
    /// The parts of the cache key beside scheme, host and path. Requests with the same key get
    /// the same response.
    pub struct CacheKeyTable as "the key of a cache" {
        /// The query parameters that are part of the key.
        query: CacheQueryTable = Default("{}"),
        /// The request header fields that are part of the key.
        headers: Vec<HeaderName> = Default("[]"),
        /// The cookies that are part of the key.
        cookies: Vec<FieldName> = Default("[]"),
    }
}

options! {
    /// The query parameters that are part of a cache key.
    pub struct CacheQueryTable as "the query of a cache's key" {
        /// The parameters that count, and no others; `*` stands for any characters.
        only: OneOrMore<ParameterPattern> = Optional("all"),
        /// The parameters that do not count, such as `utm_*`.
        ignore: OneOrMore<ParameterPattern> = Optional("none is ignored"),
        /// Whether the order of parameters is ignored. Parameters of the same name keep their
        /// order.
        sort: bool = Default("false"),
    }
}

options! {
    /// The peers that may purge a response by a request.
    pub struct PurgeTable as "the purge of a cache" {
        /// The addresses or networks of these peers; `"unix"` is every peer on a Unix socket.
        /// Header fields that name another client are ignored here.
        from: OneOrMore<Placed<Peer>> = Required,
    }
}

/// The cache of a route: the name of a cache, a table, `true` for the default cache, or `false`
/// for none.
#[derive(Debug)]
pub struct RouteCache(pub Switch<CachingTable>);

impl Setting for RouteCache {
    fn read(node: &Node, report: &mut Report) -> Option<Self> {
        let table = as_table("store", node);
        let read = match (&table, &node.value) {
            (Some(table), _) => Switch::read(table, report),
            (None, Value::Boolean(_)) => Switch::read(node, report),
            (None, _) => return wrong_type(node, report),
        };
        read.map(Self)
    }

    fn shape() -> Shape {
        Shape::AnyOf(vec![Text::shape(), CachingTable::shape(), Shape::Boolean])
    }
}

impl CacheTable {
    /// The default cache, for routes that use it without a written `[cache.default]`.
    pub(crate) fn unwritten(file: &File) -> Option<Self> {
        let nothing = Node {
            place: file.place.clone(),
            value: Value::Table(Vec::new()),
        };
        CacheTable::read(&nothing, &mut Report::default())
    }
}

impl CachingTable {
    /// The name of the store.
    pub(crate) fn store_name(&self) -> &str {
        let named = self.store.value.as_ref();
        named.map_or(DEFAULT_STORE, |it| &it.value.0)
    }
}
