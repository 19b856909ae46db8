//! Counters over upgrades: no scrape sees less than the one before, whatever is counted.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_testkit::deadline::{STEP, holds_within, until, within};
use evenkeel_testkit::{Proxy, RawClient, RawOrigin, TempDir};

use crate::control::ask;
use crate::setup::{Site, ask_status, figures, get, nobody, origin, program};
use crate::upgrade::{Successors, is_running};
use evenkeel_testkit::servers::Server;

const TOKEN: &str = "a-token-for-the-tests";

/// Families that this traffic does not count in, each with the reason.
const NOT_COUNTED: &[(&str, &str)] = &[
    (
        "evenkeel_reloads_reverted_total",
        "no reload is for a trial",
    ),
    ("evenkeel_error_pages_missed_total", "no error has a page"),
    ("evenkeel_log_lines_dropped_total", "the writer has room"),
    ("evenkeel_spans_sent_total", "the collector takes none"),
    (
        "evenkeel_listener_paths_lost_total",
        "no listener is at a path",
    ),
    ("evenkeel_worker_stalls_total", "no worker hangs"),
    ("evenkeel_ticket_key_rotations_total", "no key is so old"),
    ("evenkeel_tickets_unknown_total", "no listener has TLS"),
    ("evenkeel_ticket_keys_learned_total", "no keys are shared"),
    ("evenkeel_ticket_server_downs_total", "no keys are shared"),
    ("evenkeel_answer_memory_refused_total", "there is memory"),
    (
        "evenkeel_listener_connections_no_descriptor_total",
        "there are descriptors",
    ),
    (
        "evenkeel_listener_connections_displaced_total",
        "there are descriptors",
    ),
    (
        "evenkeel_listener_accept_pauses_total",
        "there are descriptors",
    ),
    ("evenkeel_listener_drains_cut_total", "every body ends"),
    (
        "evenkeel_listener_http2_connections_total",
        "no listener has HTTP/2",
    ),
    (
        "evenkeel_listener_http2_broken_total",
        "no listener has HTTP/2",
    ),
    (
        "evenkeel_listener_http2_displaced_total",
        "no listener has HTTP/2",
    ),
    (
        "evenkeel_route_grpc_responses_total",
        "no endpoint speaks HTTP/2",
    ),
    (
        "evenkeel_listener_tls_handshakes_total",
        "no listener has TLS",
    ),
    ("evenkeel_listener_tls_resumed_total", "no listener has TLS"),
    ("evenkeel_listener_tls_failed_total", "no listener has TLS"),
    ("evenkeel_route_files_refused_total", "the disk keeps up"),
    ("evenkeel_route_limit_delayed_total", "no limit is in force"),
    ("evenkeel_route_limit_refused_total", "no limit is in force"),
    (
        "evenkeel_route_compression_skipped_total",
        "no queue is long",
    ),
    (
        "evenkeel_route_mirror_failed_total",
        "every copy is answered",
    ),
    (
        "evenkeel_route_mirror_busy_total",
        "few copies are in flight",
    ),
    ("evenkeel_route_mirror_too_long_total", "no body is long"),
    (
        "evenkeel_route_mirror_no_memory_total",
        "there is memory for buffers",
    ),
    ("evenkeel_route_mirror_cut_total", "every body ends"),
    (
        "evenkeel_route_cache_stale_total",
        "what is stored stays fresh",
    ),
    (
        "evenkeel_route_cache_revalidated_total",
        "what is stored stays fresh",
    ),
    (
        "evenkeel_route_cache_bypasses_total",
        "no request goes past the cache",
    ),
    ("evenkeel_route_paced_total", "no route has a bandwidth"),
    ("evenkeel_cache_evicted_total", "there is memory"),
    ("evenkeel_cache_disk_hits_total", "memory has it"),
    ("evenkeel_cache_disk_evicted_total", "the disk has room"),
    ("evenkeel_cache_disk_kept_total", "the disk has room"),
    ("evenkeel_cache_disk_damaged_total", "the disk is well"),
    ("evenkeel_cache_disk_failed_reads_total", "the disk is well"),
    ("evenkeel_cache_disk_not_written_total", "the disk is well"),
    ("evenkeel_cache_shared_downs_total", "the server is well"),
    (
        "evenkeel_cache_shared_received_bytes_total",
        "no other machine stores anything",
    ),
    ("evenkeel_cache_shared_removals_total", "nothing is removed"),
    (
        "evenkeel_cache_shared_purges_received_total",
        "others purge nothing",
    ),
    (
        "evenkeel_cache_shared_purged_unknown_total",
        "no purge is missed",
    ),
    ("evenkeel_disk_shared_total", "nobody asks for the same"),
    ("evenkeel_disk_direct_total", "the page cache is tried"),
    ("evenkeel_disk_refused_total", "the disk keeps up"),
    (
        "evenkeel_upstream_buffers_refused_total",
        "there is memory for buffers",
    ),
    (
        "evenkeel_upstream_retries_refused_total",
        "the budget allows them",
    ),
    (
        "evenkeel_endpoint_stale_total",
        "idle connections stay open",
    ),
    (
        "evenkeel_endpoint_displaced_total",
        "idle connections stay in bounds",
    ),
];

/// Everything that counts. `$SITE` is a folder of files.
fn config(well: &str, ill: &str, redis: &str) -> String {
    let (nobody, collector) = (nobody(), nobody());
    format!(
        r#"
access_log = {{ path = "/dev/full" }}

[server]
workers = 2
control = "$DIR/control.sock"
state_file = "$SITE/state.json"

[status]
bind = "127.0.0.1:0"
token_file = "$SITE/token"

[otlp]
url = "http://{collector}"

[[listener]]
name = "web"
bind = "127.0.0.1:0"
trace = "new"

[[listener]]
name = "small"
bind = "127.0.0.1:0"
limits.connections = 2

[[route]]
name = "files"
match = {{ path = "/files/*" }}
files = {{ root = "$SITE/files", strip = "/files" }}

[[route]]
name = "fixed"
match = {{ path = "/fixed" }}
answer = {{ body = "fixed" }}
limit = {{ rate = "1/h", dry_run = true }}

[[route]]
name = "narrow"
match = {{ host = "narrow.example" }}
upstream = "narrow"
compress = {{ min = 1 }}
mirror = "stored"

[[route]]
name = "cached"
match = {{ host = "cached.example" }}
upstream = "stored"
cache = {{ store = "main", ttl = {{ 200 = "1m" }} }}

[cache.main]
disk = {{ path = "$SITE/cache", size = "64MiB" }}
shared = "{redis}"

[[route]]
name = "dead"
match = {{ path = "/dead" }}
upstream = "dead"

[[route]]
name = "rest"
upstream = "app"

[upstream.app]
balance = "round-robin"
endpoints = ["{well}", "{ill}", "{nobody}"]

[upstream.narrow]
endpoints = [{{ address = "{well}", max_in_flight = 1 }}]

[upstream.dead]
endpoints = ["{nobody}"]
health = {{ path = "/", interval = "100ms" }}
queue = {{ hold = false }}
endpoints_file = "$SITE/nowhere.json"

[upstream.stored]
endpoints = ["{well}"]
"#
    )
}

/// An origin that fails.
fn ill() -> RawOrigin {
    let origin = RawOrigin::start(move |_, mut stream| {
        while stream.read_head().is_ok() {
            let answer = "HTTP/1.1 500 Ill\r\nContent-Length: 3\r\n\r\nill";
            if stream.send(answer).is_err() {
                return;
            }
        }
    });
    origin.unwrap()
}

/// Samples of counters and distributions, by name and labels, and the names of their
/// families.
struct Scrape {
    samples: BTreeMap<String, f64>,
    families: Vec<String>,
}

impl Scrape {
    fn of(proxy: &Proxy) -> Self {
        let text = ask_status(proxy, "/metrics", "").text();
        let kinds = text.lines().filter_map(|it| it.strip_prefix("# TYPE "));
        let kinds: BTreeMap<_, _> = kinds.filter_map(|it| it.split_once(' ')).collect();
        let counts = |family: &str| matches!(kinds.get(family), Some(&("counter" | "histogram")));
        let lines = text.lines().filter(|it| !it.starts_with('#'));
        let samples = lines.filter_map(|it| {
            let (series, value) = it.rsplit_once(' ')?;
            let name = series.split('{').next()?;
            let ends = ["_bucket", "_sum", "_count"].iter();
            let family = ends.filter_map(|end| name.strip_suffix(end));
            let is_counted = family.chain([name]).any(counts);
            is_counted.then(|| (series.to_owned(), value.parse().unwrap()))
        });
        Scrape {
            samples: samples.collect(),
            families: kinds
                .iter()
                .filter(|(_, kind)| matches!(**kind, "counter" | "histogram"))
                .map(|(name, _)| (*name).to_owned())
                .collect(),
        }
    }

    /// The sum of a family.
    fn total(&self, family: &str) -> f64 {
        let names = [family.to_owned(), format!("{family}_count")];
        let is_of = |series: &str| {
            let name = series.split('{').next().unwrap_or_default();
            names.iter().any(|it| it == name)
        };
        let samples = self.samples.iter().filter(|(series, _)| is_of(series));
        samples.map(|(_, value)| value).sum()
    }

    /// Families in which nothing was counted.
    fn empty(&self) -> Vec<&str> {
        let families = self.families.iter().map(String::as_str);
        families.filter(|it| self.total(it) == 0.0).collect()
    }

    #[track_caller]
    fn assert_goes_on(&self, before: &Scrape) {
        let mut less = String::new();
        for (series, value) in &before.samples {
            match self.samples.get(series) {
                Some(now) if now >= value => {}
                now => writeln!(less, "{series}: {now:?} after {value}").unwrap(),
            }
        }
        assert!(less.is_empty(), "{less}");
    }
}

/// Has everything counted at least once that can be.
fn traffic(proxy: &Proxy) {
    let mut client = proxy.client();
    for path in ["/files/a.txt", "/files/a.txt", "/files/none", "/fixed"] {
        client.ask(get(path)).unwrap();
    }
    for _ in 0..40 {
        proxy.client().ask(get("/ping")).unwrap();
    }
    for _ in 0..4 {
        assert!(proxy.client().ask(get("/dead")).unwrap().status >= 502);
    }
    let cached = "GET /ping HTTP/1.1\r\nHost: cached.example\r\n\r\n";
    for _ in 0..2 {
        client.ask(cached).unwrap();
    }
    for coding in ["gzip", "br", "zstd"] {
        let coded = format!(
            "GET /ping HTTP/1.1\r\nHost: narrow.example\r\nAccept-Encoding: {coding}\r\n\r\n"
        );
        client.ask(coded).unwrap();
    }
    ask(proxy, "purge tag none");
    drop(client);
    // One waits for the other.
    let slow = "GET /slow/200 HTTP/1.1\r\nHost: narrow.example\r\n\r\n";
    let [mut first, mut second] = [(); 2].map(|()| proxy.client());
    first.send(slow).unwrap();
    second.send(slow).unwrap();
    first.read_response("GET").unwrap();
    second.read_response("GET").unwrap();
    // A body that is read on after the answer.
    let body = "POST /fixed HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
    let mut client = proxy.client();
    client.ask(body).unwrap();
    client.send("hello").unwrap();
    drop((client, first, second));
    let small = proxy.address("small");
    let connect = || RawClient::connect(small).unwrap();
    let [mut first, mut second] = [(); 2].map(|()| connect());
    for client in [&mut first, &mut second] {
        client.send(slow.replace("200", "1000")).unwrap();
    }
    until("both are in flight", || {
        let narrow = &figures(proxy)["upstreams"][2];
        (&narrow["in_flight"], &narrow["waiting"]) == (&1.into(), &1.into())
    });
    let refused = connect().ask(get("/fixed"));
    assert!(!refused.is_ok_and(|it| it.status == 200));
    first.read_response("GET").unwrap();
    second.read_response("GET").unwrap();
    let mut stranger = RawClient::connect(proxy.status_address()).unwrap();
    let wrong = "POST /endpoints HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer no\r\n\
                 Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    assert_eq!(stranger.ask(wrong).unwrap().status, 401);
    // A reload that is done, one that is refused, one that goes back, and an upgrade that
    // fails.
    let path = proxy.path("evenkeel.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    assert!(ask(proxy, "reload").starts_with("reloaded: "));
    std::fs::write(&path, "[[listener").unwrap();
    assert!(ask(proxy, "reload").starts_with("error: "));
    std::fs::write(&path, config).unwrap();
    assert!(ask(proxy, "reload confirm 1s").starts_with("reloaded: "));
    until("it goes back", || {
        let shown = ask(proxy, "show generations");
        !shown.contains("waits for `evenkeel confirm`")
            && proxy.stderr().contains("reload reverted")
    });
    assert!(ask(proxy, "upgrade /nowhere").starts_with("error: "));
    until("what is stored has an age", || {
        let answer = proxy.client().ask(cached).unwrap();
        answer.field("age").is_some_and(|age| age != "0")
    });
}

#[test]
fn nothing_that_is_counted_goes_backwards() {
    within(Duration::from_secs(60), || {
        let (well, ill) = (origin(), ill());
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.join("token"), TOKEN).unwrap();
        std::fs::write(dir.join("state.json"), "{").unwrap();
        std::fs::create_dir(dir.join("files")).unwrap();
        std::fs::write(dir.join("files/a.txt"), "a").unwrap();
        let mut redis = Server::redis();
        redis.start(&[]);
        let (well, ill) = (&well.address.to_string(), &ill.address.to_string());
        let config = config(well, ill, &redis.endpoint());
        let config = config.replace("$SITE", &dir.path().display().to_string());
        let proxy = Proxy::start(program(), &config).unwrap();
        let successors = Successors(&proxy);
        let mut before: Option<Scrape> = None;
        for round in 0..3 {
            traffic(&proxy);
            let expected: Vec<_> = NOT_COUNTED.iter().map(|it| it.0).collect();
            let mut scrape = Scrape::of(&proxy);
            let is_missing = |it: &&str| !expected.contains(it) && (round > 0 || !is_upgrade(it));
            let is_counted = holds_within(STEP, || {
                scrape = Scrape::of(&proxy);
                !scrape.empty().iter().any(is_missing)
            });
            let missing: Vec<_> = scrape.empty().into_iter().filter(is_missing).collect();
            assert!(is_counted, "nothing is counted of {missing:?}");
            if let Some(before) = &before {
                scrape.assert_goes_on(before);
            }
            successors.upgrade();
            let after = Scrape::of(&proxy);
            after.assert_goes_on(&scrape);
            assert_eq!(after.total("evenkeel_upgrades_total"), f64::from(round + 1));
            before = Some(after);
        }
    });
}

/// Counted by the first upgrade only.
fn is_upgrade(family: &str) -> bool {
    family == "evenkeel_upgrades_total"
}

/// Longest time that `/late` waits.
const LATE: Duration = Duration::from_secs(50);

/// An origin that answers `/late` on command, and everything else at once.
fn late() -> (RawOrigin, Arc<AtomicBool>) {
    let may_answer = Arc::new(AtomicBool::new(false));
    let told = may_answer.clone();
    let origin = RawOrigin::start(move |_, mut stream| {
        while let Ok(head) = stream.read_head() {
            if head.starts_with("GET /late ") {
                holds_within(LATE, || told.load(Ordering::Relaxed));
            }
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npong";
            if stream.send(answer).is_err() {
                return;
            }
        }
    });
    (origin.unwrap(), may_answer)
}

#[test]
fn what_an_older_process_still_counts_reaches_the_newest() {
    within(Duration::from_secs(60), || {
        let (origin, may_answer) = late();
        let server = "control = \"$DIR/control.sock\"\n[status]\nbind = \"127.0.0.1:0\"";
        let site = Site {
            server,
            ..Site::default()
        };
        let proxy = site.start(&[origin.address.to_string()]);
        let ask = |count: u64| {
            for _ in 0..count {
                proxy.client().ask(get("/ping")).unwrap();
            }
        };
        let requests = || {
            let figures = figures(&proxy);
            let of = |kind: &str| figures[kind][0]["requests"].as_u64().unwrap();
            ["listeners", "routes", "upstreams"].map(of)
        };
        ask(1);
        let mut slow = proxy.client();
        slow.send(get("/late")).unwrap();
        until("it is in flight", || {
            figures(&proxy)["upstreams"][0]["in_flight"] == 1
        });
        let successors = Successors(&proxy);
        let mut asked = 1;
        for count in 2..5 {
            let left = successors.pids().last().copied();
            successors.upgrade();
            ask(count);
            asked += count;
            if let Some(left) = left {
                until("the process between has ended", || !is_running(left));
            }
            until("the newest has the sum", || requests() == [asked; 3]);
        }
        assert!(is_running(proxy.pid()));
        may_answer.store(true, Ordering::Relaxed);
        assert_eq!(slow.read_response("GET").unwrap().status, 200);
        until("the first process has ended", || !is_running(proxy.pid()));
        until("the newest has its count", || requests() == [asked + 1; 3]);
    });
}
