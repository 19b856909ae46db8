//! Routes: conditions on requests, and the actions that answer them.

use super::forms::short_for;
use super::upstream::content_type_default;
use super::{
    AuthTable, BufferSwitch, CachingTable, Errors, FilesTable, LimitTable, Match, OwnAccessLog,
    RequestHeaders, RequestKeyText, ResponseCompressionTable, ResponseHeaders, RouteCache,
    RouteCompression, RouteTimeoutsTable, ShortBandwidth, ShortErrorPage, ShortMirror, ShortSticky,
    SplitTable, Switch, WrittenEdits,
};
use crate::CodedRequests;
use crate::file_value::{FolderPath, Front};
use crate::reserved::AnswerField;
use crate::setting::{Bounded, Boxed, Field, Map, OneOrMore, Placed, options};
use crate::tree::{Node, SourcePlace};
use crate::value::{ClientItem, FieldValue, FilePath, Name, Text};
use crate::variable::TargetText;
use std::path::PathBuf;

/// The table of actions. A row has the help, the key of a route, its type as written, and the
/// variant of `Action` with its type. The macro `$then` gets all rows.
macro_rules! actions {
    ($then:ident) => {
        $then! {
            /// Forwards to the upstream of this name.
            upstream: Placed<Text> => Upstream(Proxying);
            /// Forwards to one of several upstreams, in proportion to their weights. A client
            /// stays at the upstream that it got first.
            split: Vec<Placed<SplitTable>> => Split(Box<Split>);
            /// Answers with a fixed response, without an upstream.
            answer: Boxed<Answer> => Answer(Box<FixedAnswer>);
            /// Redirects to another URL: the URL, or a table.
            redirect: Redirect => Redirect(Box<Redirect>);
            /// Answers with files of a folder: its path, or a table.
            files: ShortFiles => Files(Box<Files>);
        }
    };
}
pub(in super::super) use actions;

/// Defines a route: its options, with a key for each action.
macro_rules! route {
    ($($(#[doc = $help:literal])* $key:ident: $type:ty => $variant:ident($resolved:ty);)*) => {
        options! {
            /// Conditions on requests, and the action that answers them.
            pub struct Route as "a route" {
                /// The name that logs use.
                name: Name = Optional("`route-N`, counted from 1"),
                /// The conditions on a request, which must all hold. Without any, the route
                /// matches every request.
                r#match: Match = Default("{}"),
                $(
                    $(#[doc = $help])*
                    $key: $type = Optional(""),
                )*
                /// With `split`: the requests that stay together. `client` means
                /// one client's address; a text with variables, such as `{cookie:user}`, makes
                /// the key. A request whose text comes out empty counts by the client's
                /// address.
                split_by: RequestKeyText = Default("'client'"),
                /// With `upstream` or `split`: another upstream, which gets a copy of each
                /// request: its name, or a table. Its responses are dropped, and no client
                /// waits for them. See [a copy for another
                /// upstream](routing.md#a-copy-for-another-upstream).
                mirror: ShortMirror = Optional("none"),
                /// Names of the `[edits.NAME]` to make before the route's own.
                edits: OneOrMore<Placed<Text>> = Optional("none"),
                /// A prefix to remove from the request's path before it is sent on: with
                /// `/api`, `/api/x` becomes `/x`. The path is then sent on in normal form.
                strip_prefix: Front = Optional("nothing"),
                /// The path to send on instead of the request's path, with variables, as in
                /// `/v2{path}`. With a `?` it replaces the query too. `{path}` is the path that
                /// `strip_prefix` leaves.
                rewrite: TargetText = Optional("the request's own"),
                /// Changes of a request's header fields.
                request_headers: Boxed<RequestHeaders> = Optional("none"),
                /// Changes of a response's header fields.
                response_headers: Boxed<ResponseHeaders> = Optional("none"),
                /// The clients to serve, by address or network, or by a file of them as in
                /// `match`. Others get 403 `denied`.
                allow: OneOrMore<Placed<ClientItem>> = Optional("everybody"),
                /// The clients not to serve, written as in `allow`. A client in both is not
                /// served.
                deny: OneOrMore<Placed<ClientItem>> = Optional("nobody"),
                /// How clients authenticate. Clients that do not get 401 `unauthorized`. See
                /// [who may use a route](authentication.md).
                auth: Boxed<AuthTable> = Optional("no authentication"),
                /// A cookie that keeps a client at the endpoint that answered it first.
                sticky: ShortSticky = Optional("each request is balanced"),
                /// How often requests may come, by client or another key: a table, or a list of
                /// tables. A request has to pass each limit of a list.
                limit: OneOrMore<LimitTable> = Optional("no limit"),
                /// Most bytes of responses in a second: a rate for each response, such as
                /// `2MiB/s`, a table, or a list of these. All limits of a list hold.
                bandwidth: OneOrMore<ShortBandwidth> = Optional("no bound"),
                /// Error pages, instead of the short text of an error. The key is a status,
                /// statuses (`502-504`, `5xx`) or a reason (`queue-timeout`); the value is a
                /// file or a table. The pages are for Evenkeel's own errors: errors from
                /// endpoints are passed on unchanged.
                errors: Map<Errors, ShortErrorPage> = Default("{}"),
                /// The lane of the upstream (see `lanes`) that these requests are limited to.
                lane: Text = Optional("all of the upstream's slots"),
                /// Order in the upstream's queue: a higher priority leaves it before a lower one.
                priority: Bounded<u8, 0, 9> = Depends(priority_default, "`0`"),
                /// Timeouts instead of those of the upstream, such as for a slow page or for
                /// WebSocket.
                timeouts: Boxed<RouteTimeoutsTable> = Optional("those of the upstream"),
                /// Buffers that keep slow clients from holding slots, instead of the
                /// upstream's `buffer`: a table, `true` for one with the defaults, or `false`.
                buffer: BufferSwitch = Optional("that of the upstream"),
                /// Whether responses of the upstream are stored: a table, the name of a
                /// `[cache.NAME]`, `true` for the default cache, or `false`.
                cache: RouteCache = Optional("`false`"),
                /// Whether responses of the upstream are compressed for clients that accept it:
                /// a table, `true` for one with its defaults, or `false`.
                compress: RouteCompression = Optional("`false`"),
                /// How to treat requests whose body has a `Content-Encoding`.
                coded_requests: CodedRequests = Default("'pass'"),
                /// The access log of this route: a table, `true` for one with the listener's
                /// settings or the defaults, `false` for no log.
                access_log: OwnAccessLog = Optional("as in the listener's `access_log`"),
            }
        }

        impl Route {
            /// The keys that name the action. A route has exactly one of them.
            pub(crate) fn actions(&self) -> Vec<ActionKey<'_>> {
                vec![$(
                    ActionKey {
                        key: stringify!($key),
                        is_written: self.$key.written,
                        place: &self.$key.place,
                    },
                )*]
            }
        }
    };
}
actions!(route);

/// A key of a route that names an action.
pub(crate) struct ActionKey<'a> {
    pub(crate) key: &'static str,
    pub(crate) is_written: bool,
    pub(crate) place: &'a SourcePlace,
}

options! {
    /// A fixed answer, such as a page that says that the site is under maintenance.
    pub struct Answer as "an answer"
    for #[derive(Debug, Clone)] FixedAnswer with AnswerParts {
        /// The body, as sent.
        body: Vec<u8>,
        /// The file that the body was read from.
        file: Option<PathBuf>,
    } {
        /// Status code.
        status: Bounded<u16, 200, 599> = Default("200"),
        /// The text of the body, as sent.
        body: Text = Depends(answer_body_default, "`\"\"`, unless `file` is written") => by_hand,
        /// The file with the body, at most 1 MiB: an absolute path, or one from the folder of
        /// the configuration file. The file is read when the configuration is loaded.
        file: FilePath = Optional("`body` says") => by_hand,
        /// Value of `Content-Type`.
        content_type: FieldValue = Depends(answer_type_default, "by the file's extension; \
            `\"text/plain; charset=utf-8\"` without `file`"),
        /// Further header fields: name to value, such as `Retry-After`.
        headers: Map<AnswerField, FieldValue> = Default("{}"),
    }
}

options! {
    /// A redirect.
    pub struct RedirectTable as "a redirect" {
        /// Value of `Location`. `$scheme`, `$host`, `$path` and `$query` in it stand for the
        /// request's scheme, its host without port, its path, and its query with a leading `?`
        /// if there is one. Variables in braces, such as `{query:page}` or `{capture:id}`, are
        /// percent-encoded for the place where they stand.
        to: Placed<FieldValue> = Required,
        /// 301, 302, 303, 307 or 308.
        status: Placed<Bounded<u16, 301, 308>> = Default("302"),
    }
}

fn priority_default(route: &Node) -> Option<String> {
    let files = route.entry("files").map(|it| &it.node);
    let mut tables = [Some(route), files].into_iter().flatten();
    let has_upstream = tables.any(|it| it.entry("upstream").is_some());
    (has_upstream || route.entry("split").is_some()).then(|| "0".into())
}

fn answer_body_default(answer: &Node) -> Option<String> {
    answer.entry("file").is_none().then(|| "''".into())
}

fn answer_type_default(answer: &Node) -> Option<String> {
    content_type_default(answer).or_else(|| Some("'text/plain; charset=utf-8'".into()))
}

short_for!(
    /// A redirect: its target, or a table.
    Redirect, Boxed<RedirectTable>, "to", FieldValue
);

short_for!(
    /// Files of a folder.
    ShortFiles, Boxed<FilesTable>, "root", FolderPath
);

impl Route {
    /// The route's name as written, or one made from its index.
    pub(crate) fn name_at(&self, index: usize) -> String {
        match &self.name.value {
            Some(name) => name.0.clone(),
            None => format!("route-{}", index + 1),
        }
    }

    /// The route's own edits of requests and responses.
    pub(crate) fn own_edits(&self) -> WrittenEdits<'_> {
        WrittenEdits {
            strip_prefix: &self.strip_prefix,
            rewrite: &self.rewrite,
            request: &self.request_headers,
            response: &self.response_headers,
        }
    }

    /// The fields that its requests get from the server of `auth.forward`.
    pub(crate) fn copied_fields(&self) -> impl Iterator<Item = &str> {
        let auth = self.auth.value.iter();
        let copied = auth.flat_map(|it| it.copy.value.iter().flatten());
        copied.map(|it| it.value.0.as_str())
    }

    /// The upstream that authenticates its clients, if one does.
    pub(crate) fn auth_upstream(&self) -> Option<&Placed<Text>> {
        self.auth.value.as_ref()?.forward.value.as_ref()
    }

    /// The upstream that gets copies of its requests, if one does.
    pub(crate) fn mirror_upstream(&self) -> Option<&Placed<Text>> {
        self.mirror.value.as_ref()?.0.upstream.value.as_ref()
    }

    /// The upstreams that its error pages come from.
    pub(crate) fn page_upstreams(&self) -> impl Iterator<Item = &Placed<Text>> {
        let pages = self.errors.value.iter().flat_map(|it| &it.0);
        let pages = pages.filter_map(|it| it.value.as_ref());
        pages.filter_map(|it| it.0.upstream.value.as_ref())
    }

    /// The settings of its cache, if it has one.
    pub(crate) fn caching(&self) -> Option<&CachingTable> {
        match &self.cache.value.as_ref()?.0 {
            Switch::On(caching) => Some(caching),
            Switch::Off => None,
        }
    }

    /// How its responses are compressed, if they are.
    pub(crate) fn compression(&self) -> Option<&ResponseCompressionTable> {
        match self.compress.value.as_ref()? {
            Switch::On(compression) => Some(compression),
            Switch::Off => None,
        }
    }

    /// The name of its cache.
    pub(crate) fn cache_name(&self) -> Option<&str> {
        self.caching().map(CachingTable::store_name)
    }

    /// The upstream for requests without a file.
    pub(crate) fn upstream_of_files(&self) -> Option<&Field<Placed<Text>>> {
        let ShortFiles(files) = self.files.value.as_ref()?;
        Some(&files.upstream)
    }

    /// The names of the upstreams that its requests may go to.
    pub(crate) fn upstreams(&self) -> impl Iterator<Item = &Placed<Text>> {
        let of_files = self.upstream_of_files();
        let fields = [Some(&self.upstream), of_files].into_iter().flatten();
        let parts = self.split.value.iter().flatten();
        let of_split = parts.filter_map(|it| it.value.upstream.value.as_ref());
        fields.filter_map(|it| it.value.as_ref()).chain(of_split)
    }

    /// Whether its requests may go to this upstream.
    pub(crate) fn may_use(&self, upstream: &str) -> bool {
        self.upstreams().any(|it| it.value.0 == upstream)
    }

    /// Whether its requests are meant for an upstream, even if its name can't be read.
    pub(crate) fn goes_on(&self) -> bool {
        let is_written = |it: &Field<Placed<Text>>| it.written;
        let of_files = self.upstream_of_files().is_some_and(is_written);
        self.upstream.written || self.split.written || of_files
    }
}
