//! Words of other programs: nginx, HAProxy, Caddy, Traefik and Envoy.
//!
//! One table gives the equivalents of their keys here, or says that Evenkeel has none; another
//! table does so for values. Only diagnostics use them.
//!
//! Invariant: each table and key that is proposed exists. A test compares them with
//! the definitions of the options.

/// The meaning here of a key of another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// This key of the table at this path.
    Key {
        table: &'static str,
        key: &'static str,
    },
    /// The table at this path.
    Table(&'static str),
    /// Not supported: a subject with its verb, and what to do meanwhile.
    Missing(&'static str, &'static str),
    /// This advice.
    Advice(&'static str),
    /// This, in the table at this path alone.
    In(&'static str, &'static Meaning),
}

use Meaning::{Advice, In, Missing, Table};

const fn key(table: &'static str, key: &'static str) -> Meaning {
    Meaning::Key { table, key }
}

const NOTHING: &str = "";

/// Keys by their words, in lower case. `-` and `_` in them do not count.
const KEYS: &[(&str, Meaning)] = &[
    (
        "proxy_ssl_trusted_certificate ca_file ca_certificate trust_pool root_cas",
        key("upstream.NAME.tls", "ca"),
    ),
    (
        "proxy_ssl_verify tls_insecure_skip_verify insecure_skip_verify",
        key("upstream.NAME.tls", "verify"),
    ),
    (
        "proxy_ssl_name tls_server_name verifyhost",
        key("upstream.NAME.tls", "name"),
    ),
    ("transport_socket proxy_ssl", key("upstream.NAME", "tls")),
    (
        "ssl_session_ticket_key session_ticket_keys tls_ticket_keys",
        key("tickets", "keys"),
    ),
    ("ssl_session_timeout", key("tickets", "lifetime")),
    ("ssl_session_tickets session_tickets", Table("tickets")),
    (
        "proxy_set_header header_up request_header request_headers http_request reqadd reqrep \
         custom_request_headers request_headers_to_add",
        key("route", "request_headers"),
    ),
    (
        "add_header add_headers proxy_hide_header hide_header header_down response_header \
         response_headers http_response rspadd rsprep custom_response_headers more_set_headers \
         response_headers_to_add cors",
        key("route", "response_headers"),
    ),
    (
        "headers header set_header set_headers remove_header remove_headers",
        In(
            "route",
            &Advice(
                "write `request_headers` for what an endpoint gets, `response_headers` for what the client gets",
            ),
        ),
    ),
    (
        "rate_limit rate_limits rate_limiting ratelimit limit_req limit_req_zone throttle \
         stick_table limit_conn limit_conn_zone in_flight_req",
        key("route", "limit"),
    ),
    (
        "limit_rate limit_rate_after bwlim bwlim_out bandwidth_limit throttle_rate \
         proxy_limit_rate download_rate max_rate",
        key("route", "bandwidth"),
    ),
    (
        "includes import imports include_files include_dir conf_d",
        key("", "include"),
    ),
    (
        "compress compression gzip brotli zstd encode compressor compression_algo algo_res",
        key("route", "compress"),
    ),
    (
        "gzip_types brotli_types zstd_types compression_type includedcontenttypes",
        key("route.compress", "types"),
    ),
    (
        "content_type mime_types",
        In("route.compress", &key("route.compress", "types")),
    ),
    (
        "gzip_min_length brotli_min_length zstd_min_length minimum_length min_length \
         min_content_length minresponsebodybytes compression_minsize_res",
        key("route.compress", "min"),
    ),
    (
        "encodings encoding algorithms algo",
        In("route.compress", &key("route.compress", "codings")),
    ),
    (
        "level compression_level",
        In(
            "route.compress",
            &Advice(
                "write `gzip_level`, `br_level` or `zstd_level`: each coding has its own scale",
            ),
        ),
    ),
    ("gzip_comp_level", key("route.compress", "gzip_level")),
    (
        "brotli_comp_level brotli_level",
        key("route.compress", "br_level"),
    ),
    ("zstd_comp_level", key("route.compress", "zstd_level")),
    (
        "sticky sticky_cookie sticky_session sticky_sessions stickiness session_affinity affinity \
         stick appsession persist persistence stick_on",
        key("route", "sticky"),
    ),
    (
        "cookie",
        In(
            "upstream.NAME",
            &Advice(
                "write `sticky = \"NAME\"` in the route: a cookie that keeps clients at an endpoint",
            ),
        ),
    ),
    (
        "auth authentication basic_auth auth_basic htpasswd userlist auth_type http_auth",
        key("route", "auth"),
    ),
    (
        "auth_basic_user_file auth_user_file users users_file user_file",
        key("route.auth", "basic"),
    ),
    (
        "auth_request forward_auth ext_authz auth_url address authz",
        In(
            "route",
            &Advice(
                "write `auth = { forward = \"NAME\", path = \"/…\" }`, and the server as `[upstream.NAME]`",
            ),
        ),
    ),
    (
        "auth_response_headers copy_headers auth_request_set authorization_response",
        key("route.auth", "copy"),
    ),
    (
        "digest_auth jwt auth_jwt oidc oauth oauth2",
        Missing(
            "authentication with tokens or digests is",
            "let another server check them: `auth = { forward = \"NAME\" }`",
        ),
    ),
    (
        "error_page error_pages errorfile errorfiles error_file handle_errors \
         local_reply_config",
        key("route", "errors"),
    ),
    (
        "proxy_intercept_errors intercept_errors",
        Missing(
            "replacing the error pages of endpoints is",
            "`errors` of a route sets pages for errors that Evenkeel itself answers",
        ),
    ),
    (
        "strip_prefix strip_path_prefix strip_path handle_path",
        key("route", "strip_prefix"),
    ),
    ("strip", In("route", &key("route", "strip_prefix"))),
    (
        "rewrite prefix_rewrite regex_rewrite replace_path replace_path_regex add_prefix set_path",
        key("route", "rewrite"),
    ),
    (
        "sub_filter proxy_redirect",
        Missing(
            "changing the body or the redirects of a response is",
            NOTHING,
        ),
    ),
    (
        "tcp udp stream mode http3 h3 quic",
        Missing(
            "any HTTP version but HTTP/1 and HTTP/2 is",
            "`protocol = \"tcp\"` of a listener carries any protocol over TCP",
        ),
    ),
    (
        "h2 http_2 enable_http2 http2_protocol_options",
        key("listener", "http2"),
    ),
    (
        "h2c_prior_knowledge allow_h2c prior_knowledge",
        key("listener", "h2c"),
    ),
    (
        "fastcgi fastcgi_pass php_fastcgi uwsgi_pass scgi_pass",
        Missing(
            "FastCGI and similar protocols are",
            "endpoints speak HTTP: use the HTTP server of your application",
        ),
    ),
    (
        "discovery service_discovery consul docker kubernetes etcd server_template providers \
         dynamic_a lb_endpoints",
        Missing(
            "this way to discover endpoints is",
            "use a host name, SRV records of a service (`srv`), or a file with endpoints \
             (`endpoints_file`)",
        ),
    ),
    (
        "mirroring shadow request_mirror_policies request_mirror mirror_request",
        key("route", "mirror"),
    ),
    // Tables.
    (
        "frontend frontends listen entry_point entry_points",
        Table("listener"),
    ),
    (
        "location locations routers virtual_host virtual_hosts vhost site sites handle rule rules",
        Table("route"),
    ),
    (
        "backend backends cluster clusters services upstream_servers",
        Table("upstream.NAME"),
    ),
    (
        "stats stats_page dashboard metrics monitoring monitor stub_status prometheus admin api ping",
        Table("status"),
    ),
    ("global http main process events", Table("server")),
    ("error_log event_log logging logger", Table("log")),
    ("tracing opentelemetry otel zipkin jaeger", Table("otlp")),
    ("httplog log_format", key("access_log", "format")),
    // Caches.
    (
        "caching proxy_cache http_cache cache_use cache_store",
        key("route", "cache"),
    ),
    (
        "caches proxy_cache_path cache_path cache_dir",
        Table("cache.NAME"),
    ),
    (
        "total_max_size size max_size capacity max_bytes",
        In("cache.NAME", &key("cache.NAME", "memory")),
    ),
    (
        "redis valkey",
        In("cache.NAME", &key("cache.NAME", "shared")),
    ),
    (
        "proxy_cache_valid max_age negative_ttl default_ttl",
        key("route.cache", "ttl"),
    ),
    ("proxy_cache_key cache_key", key("route.cache", "key")),
    (
        "proxy_cache_bypass proxy_no_cache skip",
        key("route.cache", "bypass"),
    ),
    ("proxy_cache_min_uses", key("route.cache", "min_uses")),
    (
        "proxy_cache_use_stale keep stale",
        key("route.cache", "stale_if_error"),
    ),
    (
        "proxy_cache_background_update proxy_cache_revalidate",
        key("route.cache", "stale_while_revalidate"),
    ),
    (
        "grace",
        In("route.cache", &key("route.cache", "stale_while_revalidate")),
    ),
    (
        "proxy_cache_lock_timeout lock_timeout",
        key("route.cache", "wait"),
    ),
    (
        "max_object_size max_file_size",
        key("route.cache", "max_object"),
    ),
    ("proxy_cache_purge allow_purge", key("route.cache", "purge")),
    (
        "path host method scheme listener",
        In(
            "route.cache.bypass",
            &Advice("give those requests a route of their own, with cache = false"),
        ),
    ),
    (
        "scheme host path uri url",
        In(
            "route.cache.key",
            &Advice("scheme, host and path are part of every key: leave it out"),
        ),
    ),
    // Keys of the process.
    (
        "worker_processes nbthread nbproc threads cores concurrency gomaxprocs",
        key("server", "workers"),
    ),
    (
        "grace grace_period shutdown_timeout graceful_timeout worker_shutdown_timeout \
         hard_stop_after grace_timeout",
        key("server", "drain_timeout"),
    ),
    (
        "stats_socket admin_socket control_socket socket",
        key("server", "control"),
    ),
    ("log_level", key("log", "level")),
    (
        "worker_connections ulimit_n worker_rlimit_nofile",
        Advice(
            "`ulimit -n` bounds connections, and `limits = { connections = N }` those of a listener",
        ),
    ),
    (
        "user group daemon chroot pid pidfile master_process",
        Advice("set this in the service manager: leave it out"),
    ),
    (
        "defaults",
        Advice(
            "there are no defaults for several tables: each `[[listener]]`, `[[route]]` and `[upstream.NAME]` has its own keys",
        ),
    ),
    // Keys of listeners.
    ("tls ssl https", key("listener", "tls")),
    (
        "certificate certificates cert certs cert_file certfile crt crt_list ssl_certificate \
         ssl_certificate_key",
        key("listener.tls", "certificates"),
    ),
    (
        "letsencrypt auto_https certificates_resolvers cert_resolver certresolver",
        key("listener.tls", "acme"),
    ),
    ("ca_server acme_ca", key("acme", "directory")),
    (
        "hsts strict_transport_security",
        key("listener.tls", "hsts"),
    ),
    (
        "https_redirect redirect_https force_https ssl_redirect",
        key("listener", "redirect_to_https"),
    ),
    (
        "listen port address addr listen_addr",
        key("listener", "bind"),
    ),
    (
        "set_real_ip_from real_ip_header real_ip_recursive trusted_ips trust_proxy trusted_proxy \
         forwarded_headers use_remote_address xff_num_trusted_hops client_ip_headers",
        key("listener", "trusted_proxies"),
    ),
    (
        "proto alpn backend_protocol upstream_http2 http2_upstream grpc grpc_pass http_version \
         proxy_http_version http_protocol_options",
        key("upstream.NAME", "protocol"),
    ),
    (
        "send_proxy send_proxy_v2 proxy_protocol_upstream",
        key("upstream.NAME", "proxy_protocol"),
    ),
    (
        "accept_proxy proxy_proto proxyprotocol",
        key("listener", "proxy_protocol"),
    ),
    (
        "maxconn max_conn max_connections",
        key("listener.limits", "connections"),
    ),
    (
        "client_max_body_size max_body_size request_body_max max_request_body_bytes",
        key("listener.limits", "body"),
    ),
    (
        "large_client_header_buffers client_header_buffer_size max_header_size max_header_bytes",
        key("listener.limits", "head"),
    ),
    (
        "keepalive_timeout timeout_http_keep_alive idle_timeout http_keep_alive keep_alive \
         keepalive client",
        key("listener.timeouts", "idle"),
    ),
    (
        "client_header_timeout timeout_http_request read_header_timeout http_request header \
         headers request",
        key("listener.timeouts", "head"),
    ),
    (
        "client_body_timeout send_timeout timeout_client read_timeout write_timeout client read",
        key("listener.timeouts", "body"),
    ),
    (
        "reuseport tcp_nodelay sendfile tcp_nopush",
        Advice("this is always on: leave it out"),
    ),
    // Keys of routes.
    (
        "proxy_pass reverse_proxy backend default_backend use_backend service cluster proxy \
         forward_to proxy_to target pool",
        key("route", "upstream"),
    ),
    (
        "return respond response static_response direct_response",
        key("route", "answer"),
    ),
    (
        "redir redirect_to redirect_scheme redirect_regex http_redirect",
        key("route", "redirect"),
    ),
    (
        "file_server static static_files try_files alias document_root root",
        key("route", "files"),
    ),
    (
        "rule rules acl when if condition conditions matcher matchers",
        key("route", "match"),
    ),
    (
        "server_name server_names domain domains vhost sni hostname authority",
        key("route.match", "host"),
    ),
    (
        "uri url location prefix path_prefix path_beg path_reg path_regexp path_end",
        key("route.match", "path"),
    ),
    (
        "src source source_ip remote_ip remote_addr client_ip ip from",
        key("route.match", "client"),
    ),
    ("hdr header_regexp", key("route.match", "header")),
    (
        "args arg param params url_param query_string",
        key("route.match", "query"),
    ),
    (
        "allow allowed allow_from ip_allow_list ip_white_list whitelist allowlist source_range \
         whitelist_source_range",
        key("route", "allow"),
    ),
    (
        "deny denied deny_from block ip_deny_list blacklist denylist blocklist",
        key("route", "deny"),
    ),
    (
        "websocket websockets upgrade ws",
        Advice("upgraded connections, such as WebSocket, need no setting: leave it out"),
    ),
    (
        "default fallback default_server catch_all",
        Advice("write a route without `match` as the last one: it takes all other requests"),
    ),
    (
        "traffic_split split_clients weighted weighted_clusters canary",
        key("route", "split"),
    ),
    ("try_files", key("route.files", "try")),
    (
        "autoindex browse dir_listing",
        key("route.files", "listing"),
    ),
    (
        "permanent",
        In("route.redirect", &Advice("write `status = 308`")),
    ),
    (
        "retry_after",
        In(
            "route.answer",
            &Advice("write it as a header: headers = { Retry-After = \"120\" }"),
        ),
    ),
    // Keys of upstreams.
    (
        "health_uri health_path httpchk option_httpchk",
        In(
            "upstream.NAME",
            &Advice("write health = { path = \"/healthz\" }"),
        ),
    ),
    (
        "max_in_flight",
        In(
            "upstream.NAME",
            &Advice(
                "each endpoint has its own: endpoints = [{ address = \"10.0.0.1:8080\", max_in_flight = 100 }]",
            ),
        ),
    ),
    (
        "server servers host hosts target targets node nodes member members address addresses \
         urls load_balancer origins backends",
        key("upstream.NAME", "endpoints"),
    ),
    (
        "algorithm lb lb_policy lb_method load_balancing policy strategy method lb_algorithm",
        key("upstream.NAME", "balance"),
    ),
    (
        "hash hash_key hash_on hash_policy lb_hash hash_type",
        key("upstream.NAME", "key"),
    ),
    (
        "check health_check health_checks healthcheck httpchk health_uri health_path probe probes \
         option_httpchk active_health",
        key("upstream.NAME", "health"),
    ),
    (
        "keepalive keep_alive max_idle_conns max_idle_conns_per_host http_reuse connection_pool",
        key("upstream.NAME", "pool"),
    ),
    (
        "retry max_retries num_retries retry_policy proxy_next_upstream \
         proxy_next_upstream_tries redispatch lb_retries",
        key("upstream.NAME", "retries"),
    ),
    (
        "max_fails fail_timeout circuit_breaker circuit_breakers outlier_detection passive_health \
         observe",
        key("upstream.NAME", "guard"),
    ),
    (
        "maxqueue max_queue max_pending_requests timeout_queue",
        key("upstream.NAME", "queue"),
    ),
    (
        "fair_queue fair_queueing fairness queue_by per_client_queue flow_distinguisher",
        key("upstream.NAME.queue", "fair_by"),
    ),
    (
        "forwardfor option_forwardfor x_forwarded_for xff forwarded",
        key("upstream.NAME", "forward"),
    ),
    (
        "proxy_connect_timeout timeout_connect connect_timeout dial_timeout",
        key("upstream.NAME.timeouts", "connect"),
    ),
    (
        "proxy_read_timeout timeout_server read_timeout response_header_timeout response_timeout \
         server read response response_header",
        key("upstream.NAME.timeouts", "first_byte"),
    ),
    (
        "timeout_tunnel proxy_timeout",
        key("upstream.NAME.timeouts", "idle"),
    ),
    ("proxy_buffering buffering", key("upstream.NAME", "buffer")),
    // Keys of endpoints.
    (
        "port",
        In(
            "upstream.NAME.endpoints",
            &Advice("the port is part of `address`, as in \"10.0.0.1:8080\""),
        ),
    ),
    (
        "host url uri server addr target name",
        key("upstream.NAME.endpoints", "address"),
    ),
    (
        "maxconn max_conns max_connections max_requests max_concurrency max_parallel",
        key("upstream.NAME.endpoints", "max_in_flight"),
    ),
    (
        "resolver dns nameserver name_servers dns_servers",
        key("server", "resolvers"),
    ),
    (
        "dns_lookup_family ip_family resolve_prefer",
        key("upstream.NAME.endpoints", "family"),
    ),
    (
        "backup failover fallback_servers",
        key("upstream.NAME.endpoints", "backup"),
    ),
    ("slowstart", key("upstream.NAME", "slow_start")),
    (
        "down disabled maintenance",
        Advice("`evenkeel ctl stop UPSTREAM/ENDPOINT` takes an endpoint out of service"),
    ),
    // Keys of probes.
    ("uri url", key("upstream.NAME.health", "path")),
    (
        "check_type probe_type",
        key("upstream.NAME.health", "protocol"),
    ),
    ("send_string send_text", key("upstream.NAME.health", "send")),
    ("send_binary", key("upstream.NAME.health", "send_hex")),
    ("expect_string", key("upstream.NAME.health", "receive")),
    ("expect_binary", key("upstream.NAME.health", "receive_hex")),
    ("username login", key("upstream.NAME.health", "user")),
    (
        "inter check_interval",
        key("upstream.NAME.health", "interval"),
    ),
    (
        "healthy_threshold passes",
        key("upstream.NAME.health", "rise"),
    ),
    (
        "unhealthy_threshold fails",
        key("upstream.NAME.health", "fall"),
    ),
    (
        "expect_status expected_status expected_statuses status codes",
        key("upstream.NAME.health", "expect"),
    ),
    // Keys of the status page.
    (
        "token secret password",
        In(
            "status",
            &Advice("write the token into a file that others can't read: token_file = \"FILE\""),
        ),
    ),
    // Keys of access logs.
    ("file filename", key("access_log", "path")),
];

/// Values by their words, with the equivalent here and further advice.
const VALUES: &[(&str, &str, &str)] = &[
    // Balancers.
    (
        "leastconn least_conn least_connection least_request least_requests lc wlc",
        "least-connections",
        "",
    ),
    (
        "roundrobin rr wrr static_rr weighted_round_robin weighted",
        "round-robin",
        "",
    ),
    (
        "ip_hash source source_hash client_ip_hash src ip client_ip",
        "consistent-hash",
        " with key = \"client\"",
    ),
    (
        "hash uri uri_hash url_hash url ring_hash maglev hrw rendezvous ketama",
        "consistent-hash",
        " with a `key`",
    ),
    (
        "hdr header header_hash",
        "consistent-hash",
        " with key = { header = \"NAME\" }",
    ),
    ("cookie sticky", "carp", " with key = \"client\""),
    (
        "cookie_hash",
        "consistent-hash",
        " with key = { cookie = \"NAME\" }",
    ),
    (
        "url_param query query_hash",
        "consistent-hash",
        " with key = { query = \"NAME\" }",
    ),
    ("p2c power_of_two random_choose two", "two-choices", ""),
    ("least_time leasttime ewma least_latency", "peak-ewma", ""),
    ("sqf shortest", "shortest-queue", ""),
    // Keys of balancers.
    (
        "ip source src client_ip remote_addr $remote_addr $binary_remote_addr address",
        "client",
        "",
    ),
    ("url path request_uri $request_uri $uri", "uri", ""),
    // Levels.
    ("warning", "warn", ""),
    ("notice information", "info", ""),
    (
        "err crit critical alert emerg emergency fatal panic",
        "error",
        "",
    ),
    ("verbose", "debug", ""),
    // Layouts.
    ("common clf ncsa main apache nginx", "combined", ""),
    ("haproxy http_log tcplog", "httplog", ""),
    ("jsonl ndjson", "json", ""),
    ("plain console logfmt human pretty", "text", ""),
    ("journal systemd", "journald", ""),
    // Protocols of probes.
    ("postgresql pgsql pg pgsql_check", "postgres", ""),
    ("mariadb mysql_check percona", "mysql", ""),
    ("valkey keydb redis_check", "redis", ""),
    ("esmtp mail lmtp smtpchk", "smtp", ""),
    ("ssl https ssl_hello_chk", "tls", ""),
    ("connect tcp_check none", "tcp", ""),
    ("http1 httpchk http/1.1", "http", ""),
    // Disciplines.
    ("lifo", "adaptive-lifo", ""),
];

/// A word without case, and without what separates its parts.
fn bare(word: &str) -> String {
    let letters = word.chars().filter(|it| !matches!(it, '_' | '-' | ' '));
    letters.flat_map(char::to_lowercase).collect()
}

fn has(words: &str, bare_word: &str) -> bool {
    words.split_whitespace().any(|it| bare(it) == bare_word)
}

/// The meanings here of a key of another program in the table at this path, the
/// likeliest first.
pub(super) fn meanings(word: &str, current: &str) -> impl Iterator<Item = Meaning> {
    let word = bare(word);
    let found = KEYS.iter().filter(move |(words, _)| has(words, &word));
    found.filter_map(move |(_, meaning)| match meaning {
        In(table, meaning) => (*table == current).then_some(**meaning),
        meaning => Some(*meaning),
    })
}

/// The advice on a key in the table at this path that is for this table alone.
pub(super) fn advice_in(word: &str, current: &str) -> Option<&'static str> {
    let word = bare(word);
    let mut found = KEYS.iter().filter(|(words, _)| has(words, &word));
    found.find_map(|(_, meaning)| match meaning {
        In(table, Advice(advice)) if *table == current => Some(*advice),
        _ => None,
    })
}

/// Advice for a value of another program: one of `known` that means the same.
pub(super) fn value(word: &str, known: &[&str]) -> Option<String> {
    let word = bare(word);
    let mut found = VALUES.iter().filter(|(words, ..)| has(words, &word));
    let (_, value, with) = found.find(|(_, value, _)| known.contains(value))?;
    Some(format!("did you mean `{value}`{with}?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::Setting;
    use crate::unknown::tables;
    use crate::written::File;

    #[test]
    fn every_table_and_key_that_is_proposed_is_there() {
        let tables = tables(&File::shape());
        let table_at = |path: &str| {
            let found = tables.iter().find(|it| it.path == path);
            found.unwrap_or_else(|| panic!("no table {path}"))
        };
        for (words, meaning) in KEYS {
            match meaning {
                Table(path) => _ = table_at(path),
                Meaning::Key { table, key } => {
                    assert!(table_at(table).keys.contains(key), "{words}: {table}.{key}");
                }
                In(path, _) => _ = table_at(path),
                _ => {}
            }
        }
    }

    #[test]
    fn a_value_is_proposed_where_it_may_stand() {
        let balancers = ["round-robin", "least-connections", "consistent-hash"];
        for (word, known, proposed) in [
            ("leastconn", &balancers[..], Some("`least-connections`")),
            ("LEAST_CONN", &balancers, Some("`least-connections`")),
            ("roundrobin", &balancers, Some("`round-robin`")),
            (
                "ip_hash",
                &balancers,
                Some("`consistent-hash` with key = \"client\""),
            ),
            (
                "source",
                &balancers,
                Some("`consistent-hash` with key = \"client\""),
            ),
            ("source", &["client", "uri"], Some("`client`")),
            ("warning", &["warn", "info"], Some("`warn`")),
            ("warning", &balancers, None),
        ] {
            let proposed = proposed.map(|it| format!("did you mean {it}?"));
            assert_eq!(value(word, known), proposed, "{word}");
        }
    }
}
