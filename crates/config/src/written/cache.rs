//! Caches: the stores of responses, and what a route wants of one.

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
    /// A store of responses. Routes that name it share its room;
    /// each has rules of its own.
    pub struct CacheTable as "a cache"
    for #[derive(Debug, Clone, PartialEq, Eq)] CacheStore with CacheStoreParts {
        /// The name that routes, logs and counters use.
        name: String,
        /// The files behind the memory; `None` for memory alone.
        disk: Option<CacheDisk>,
        /// The server by which several processes share it; `None` for none.
        shared: Option<SharedStore>,
    } {
        /// Most memory that it takes. The longest response that is kept in memory has an
        /// eighth of that.
        memory as memory_bytes: Size<usize> = Default("'64MiB'"),
        /// Files for the responses that memory has no room for.
        disk: CacheDiskTable = Optional("memory alone") => by_hand,
        /// A server of Redis or Valkey by which several processes share their responses:
        /// its URL, or a table.
        shared: Shared = Optional("shared with none") => by_hand,
    }
}

options! {
    /// The files behind the memory of a cache.
    pub struct CacheDiskTable as "the disk of a cache" {
        /// The folder: an absolute path, or one from the folder of the configuration
        /// file. It is one cache's alone.
        path: Placed<FolderPath> = Required,
        /// Most room that the files take.
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
        /// Peers that may purge a response by a request; `None` for nobody.
        purge_from: Option<Peers>,
    } {
        /// The name of the cache that its responses are stored in.
        store: Placed<Text> = Optional("`\"default\"`, which has 64 MiB of memory unless `[cache.default]` says otherwise") => by_hand,
        /// The parts of the key under which a response is stored.
        key: CacheKeyTable = Default("{}") => by_hand,
        /// Time for which a response of a status is fresh, unless the response says
        /// another, as in `{ 200 = "1m", 404 = "10s" }`.
        ttl: Map<CachedStatus, WholeSeconds> = Default("{}") => by_hand,
        /// Whether a response that says nothing is fresh for a tenth of the time since
        /// its `Last-Modified`.
        heuristic: bool = Default("false") => by_hand,
        /// Time for which a stale response is served while a fresh one is fetched, unless
        /// the response says another.
        stale_while_revalidate: WholeSeconds = Default("'0s'") => by_hand,
        /// Time for which a stale response is served while the endpoints fail, unless the
        /// response says another.
        stale_if_error: WholeSeconds = Default("'0s'") => by_hand,
        /// Requests for a response before it is stored.
        min_uses: Bounded<u32, 1, 1000> = Default("1"),
        /// Requests that go past the cache: those that show all of this. Of a list, one
        /// item is enough.
        bypass: OneOrMore<Bypass> = Optional("none") => by_hand,
        /// Whether a response with `Set-Cookie` is stored that says neither `public` nor
        /// `s-maxage`. Every client then gets the same cookie.
        store_cookies: bool = Default("false") => by_hand,
        /// The effect of `Cache-Control` and `Pragma` in requests.
        client_directives: ClientDirectives = Default("'honour'") => by_hand,
        /// The longest body that is stored; 0 for the cache's own bound.
        max_object: Length = Default("0") => by_hand,
        /// Most requests that wait for one response which is being fetched. Further ones
        /// ask an endpoint of their own.
        waiters: Bounded<usize, 0, 1_000_000> = Default("10000"),
        /// Longest wait for a response that another request fetches. Then the request
        /// asks an endpoint of its own.
        wait: DurationValue = Default("'10s'"),
        /// Whether a fetch goes on, and is stored, whose clients have all left.
        finish: bool = Default("true"),
        /// Peers that may drop a response by a request with the method PURGE.
        purge: PurgeTable = Optional("nobody") => by_hand,
        /// Whether responses have a `Cache-Status` field, which says what the cache did.
        cache_status as reports_status: bool = Default("true"),
    }
}

options! {
    /// The parts of the key, beside scheme, host and path: requests with the same key
    /// have the same response.
    pub struct CacheKeyTable as "the key of a cache" {
        /// The parameters of the query that are part of it.
        query: CacheQueryTable = Default("{}"),
        /// Header fields of the request that are part of it.
        headers: Vec<HeaderName> = Default("[]"),
        /// Cookies that are part of it.
        cookies: Vec<FieldName> = Default("[]"),
    }
}

options! {
    /// The parameters of the query that are part of a key.
    pub struct CacheQueryTable as "the query of a cache's key" {
        /// Only these; `*` stands for anything.
        only: OneOrMore<ParameterPattern> = Optional("all"),
        /// Not these, such as `utm_*`.
        ignore: OneOrMore<ParameterPattern> = Optional("none is ignored"),
        /// Whether the order of parameters makes no difference. Parameters of one name
        /// keep theirs.
        sort: bool = Default("false"),
    }
}

options! {
    /// The peers that may drop a response by a request.
    pub struct PurgeTable as "the purge of a cache" {
        /// Their addresses or networks; `"unix"` is every peer on a Unix socket. Headers
        /// that name another client do not count.
        from: OneOrMore<Placed<Peer>> = Required,
    }
}

/// The cache of a route: the name of one, a table, `true` for the default one, or
/// `false` for none.
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
    /// The cache that routes use and nobody has written.
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
