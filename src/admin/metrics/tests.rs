mod decoded;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_metrics::family::{Kind, Value};
use evenkeel_policy::endpoint::EndpointSettings;
use evenkeel_policy::members::Members;
use evenkeel_testkit::TempDir;
use evenkeel_testkit::deadline::until;

use super::pieces::Output;
use super::*;
use crate::admin::csv;
use crate::admin::monitor::SeenOfAll;
use crate::cache::{CacheFigures, caches};
use crate::certificates::AcmeServerFigures;
use crate::config::{NameLookup, load_text};
use crate::files::Disks;
use crate::limits::{RouteLimits, route_limits};
use crate::maintenance::Maintenance;
use crate::metrics::BufferMemory;
use crate::observe::counters::{Counters, Phases};
use crate::observe::figures::{Sources, Started};
use crate::observe::paths::paths_lost;
use crate::observe::probes::Probes;
use crate::shared_server::SharedServerFigures;
use crate::upstream::SharedUpstream;

/// The counts of two workers, for a configuration in which everything occurs, with this many
/// endpoints.
fn sources(endpoints: usize) -> Sources {
    let endpoints: Vec<_> = (0..endpoints)
        .map(|index| {
            let address = format!("10.1.{}.{}:8080", index / 250, index % 250);
            format!("{{ address = \"{address}\", max_in_flight = 8 }}")
        })
        .collect();
    let text = format!(
        "[[listener]]\nname = 'web'\nbind = ':0'\nlimits.connections = 100\n\
         [[route]]\nupstream = 'app'\nlane = 'slow'\ncache = true\nlimit.rate = '10/s'\ncompress = true\nmirror = 'app'\n\
         [[route]]\nname = 'img'\nfiles = '/nowhere'\n\
         [upstream.app]\nendpoints = [{}]\nlanes.slow = 2\n",
        endpoints.join(",")
    );
    let config = match load_text("test.toml", &text, NameLookup::Skip) {
        Ok(loaded) => Arc::new(loaded.config),
        Err(report) => panic!("{}", report.render(crate::config::Colour::Off)),
    };
    let upstreams = config.upstreams.iter();
    let dispatchers = upstreams.map(|it| SharedUpstream::new(it).dispatcher().clone());
    let dispatchers: Vec<_> = dispatchers.collect();
    let members = dispatchers[0].members();
    let tickets = crate::certificates::Tickets::start(&config.tickets).unwrap();
    let sources = Sources {
        tls: crate::certificates::served_tls(&config, &[], &tickets).unwrap(),
        tickets,
        caches: caches(&config, &[]).unwrap(),
        limits: route_limits(&config, &RouteLimits::default()),
        maintenance: Maintenance::of(&config, &Maintenance::default()),
        passwords: Arc::new(crate::passwords::Passwords::new().unwrap()),
        discovered: Arc::default(),
        generation: 0,
        loaded: Started::now(),
        reloads: Arc::default(),
        upgrades: Arc::default(),
        probes: Arc::new(Probes::new(&config)),
        status_tokens_refused: Arc::default(),
        worker_stalls: Arc::default(),
        paths_lost: Arc::new(paths_lost()),
        is_draining: Arc::default(),
        dispatchers,
        counters: (0..2)
            .map(|worker| {
                let counters = Arc::new(Counters::new(&config));
                fill(&counters, &members, worker);
                counters
            })
            .collect(),
        disks: Arc::new(Disks::start(&config).expect("threads start")),
        buffer_memory: Arc::new(BufferMemory::new(config.server.buffer_memory)),
        config,
        log_lines_lost: Arc::default(),
        spans: Arc::default(),
        started: Started::now(),
        inquiries: Vec::new(),
    };
    sources.reloads.begin(sources.loaded_config());
    sources
}

fn seen(sources: &Sources) -> SeenOfAll {
    SeenOfAll::new(&sources.read(), sources.started.instant)
}

fn fill(counters: &Counters, members: &Members, worker: u64) {
    let phases = |phases: &Phases, index: u64| {
        for value in 0..200 {
            // From 64 microseconds to a quarter of a second.
            let time = (64 << (value % 12)) * (8 + value % 7) / 8 + index % 9 + worker;
            phases.queue_us.record(time);
            phases.connect_us.record(time / 3);
            phases.first_byte_us.record(time + 700);
            phases.total_us.record(time + 1_000);
            phases.response_bytes.record(time * 20);
        }
    };
    counters.worker.own.loop_lag_us.record(900);
    phases(&counters.listeners[0].exchanges.phases, 0);
    counters.listeners[0].exchanges.ends[0].add(9);
    let route = counters.routes[0].exchanges.get_or_init();
    phases(&route.phases, 0);
    route.ends[0].add(9);
    counters.upstreams[0].exchanges.get_or_init().ends[0].add(9);
    for (index, endpoint) in members.endpoints().iter().enumerate() {
        let endpoint = counters.endpoints[0].begin(endpoint);
        endpoint.attempts.add(123_456 + index as u64);
        endpoint.status[2].add(123_000);
        endpoint.bytes_in.add(1 << 40);
        endpoint.bytes_out.add(1 << 33);
        phases(&endpoint.phases, index as u64);
    }
}

/// Endpoints leave, and others have their ids then.
#[test]
fn what_an_upstream_counted_never_decreases() {
    let sources = sources(3);
    let dispatcher = &sources.dispatchers[0];
    let counted = || {
        let upstream = sources.read().upstreams.swap_remove(0);
        let displaced = sources
            .counters
            .iter()
            .map(|it| it.endpoints[0].displaced());
        let phases = upstream.exchanges.phases;
        (phases.total_us, phases.connect_us, displaced.sum::<u64>())
    };
    let replace = |names: &[&str]| {
        let settings = names.iter().map(|&name| EndpointSettings {
            name,
            fingerprint: 0,
            weight: 1,
            max_in_flight: None,
            tier: 0,
        });
        dispatcher.replace_members(settings, crate::net::clock::now());
        for counters in &sources.counters {
            for endpoint in dispatcher.members().endpoints() {
                counters.endpoints[0].begin(endpoint);
            }
        }
    };
    let first = dispatcher.members().endpoints()[0].clone();
    let id = first.id();
    let of_first = sources.counters[0].endpoints[0].get(&first).unwrap();
    of_first.displaced.add(5);
    drop(first);
    let before = counted();
    assert!(before.0.count() > 0);
    for names in [&["a"][..], &["a", "b", "c", "d"], &["d"], &[]] {
        replace(names);
        assert_eq!(counted(), before, "{names:?}");
        if names.len() == 4 {
            let members = dispatcher.members();
            let reused = members.get(id).expect("another has its id");
            assert_ne!(reused.name(), "10.1.0.0:8080");
        }
    }
}

/// All that one scrape sends.
fn body(figures: Figures, names: Names, format: Format) -> Vec<u8> {
    pieces(figures, names, format).collect::<Vec<_>>().concat()
}

fn text(figures: Figures, names: Names) -> String {
    String::from_utf8(body(figures, names, Format::Text)).unwrap()
}

#[test]
fn formats_are_negotiated() {
    let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
    let prometheus = format!(
        "{protobuf},application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    );
    for (accept, expected) in [
        (None, Format::Text),
        (Some(""), Format::Text),
        (Some("*/*"), Format::Text),
        (Some("text/html,*/*;q=0.8"), Format::Text),
        (Some("image/png"), Format::Text),
        (Some("application/openmetrics-text"), Format::OpenMetrics),
        (
            Some("text/plain;q=0.5, application/openmetrics-text; version=1.0.0; q=0.75"),
            Format::OpenMetrics,
        ),
        (
            Some("application/openmetrics-text;q=0, text/plain"),
            Format::Text,
        ),
        (
            Some("application/openmetrics-text;q=no, text/plain"),
            Format::Text,
        ),
        (Some(protobuf), Format::Protobuf),
        (Some(&prometheus), Format::Protobuf),
        (
            Some("application/vnd.google.protobuf;encoding=text"),
            Format::Text,
        ),
    ] {
        assert_eq!(Format::accepted(accept), expected, "{accept:?}");
    }
    for (query, names) in [
        (None, Some(Names::Evenkeel)),
        (Some(""), Some(Names::Evenkeel)),
        (Some("haproxy"), Some(Names::Evenkeel)),
        (Some("names=evenkeel"), Some(Names::Evenkeel)),
        (Some("a=b&names=haproxy"), Some(Names::Haproxy)),
        (Some("names=nginx"), None),
    ] {
        assert_eq!(Names::of_query(query), names, "{query:?}");
    }
}

#[test]
fn a_histogram_in_text() {
    let figures = sources(1).read();
    let text = text(figures.clone(), Names::Evenkeel);
    let labels = "{upstream=\"app\",endpoint=\"10.1.0.0:8080\"";
    let all = &figures.upstreams[0].endpoints[0].phases.connect_us;
    for (bound, micros) in [("0.000128", 128.0), ("1.048576", 1_048_576.0)] {
        let count = all.count_below(micros);
        let line =
            format!("evenkeel_endpoint_connect_seconds_bucket{labels},le=\"{bound}\"}} {count}\n");
        assert!(text.contains(&line), "{line}");
    }
    let (count, sum) = (all.count(), all.sum() as f64 / 1e6);
    for line in [
        format!("evenkeel_endpoint_connect_seconds_bucket{labels},le=\"+Inf\"}} {count}\n"),
        format!("evenkeel_endpoint_connect_seconds_count{labels}}} {count}\n"),
        format!("evenkeel_endpoint_connect_seconds_sum{labels}}} {sum:.6}\n"),
        "# TYPE evenkeel_endpoint_connect_seconds histogram\n".to_owned(),
        "evenkeel_worker_loop_lag_seconds_sum 0.001800\n".to_owned(),
        "evenkeel_worker_loop_lag_seconds_bucket{le=\"0.001024\"} 2\n".to_owned(),
    ] {
        assert!(text.contains(&line), "{line}");
    }
}

/// Bounds are those of our buckets, and written as they are.
#[test]
fn bounds_are_written_as_they_are() {
    for (kind, unit) in [(Kind::Seconds, 1e-6), (Kind::Bytes, 1.0)] {
        for (exponent, written) in text::bounds(kind) {
            let exact = f64::from(*exponent).exp2() * unit;
            let written: f64 = written.parse().unwrap();
            assert!((written / exact - 1.0).abs() < 1e-12, "{exponent}");
        }
    }
}

#[test]
fn names_cannot_break_a_line() {
    let sources = sources(1);
    let mut figures = sources.read();
    figures.upstreams[0].endpoints[0].name = "a\"b\\c\nd\re=\u{fc},}".to_owned();
    let expected =
        "evenkeel_endpoint_up{upstream=\"app\",endpoint=\"a\\\"b\\\\c\\nd e=\u{fc},}\"} 1\n";
    let text = text(figures.clone(), Names::Evenkeel);
    assert!(text.contains(expected));
    assert!(!text.contains('\r'));
    let csv = String::from_utf8(csv::table(&figures, &seen(&sources))).unwrap();
    assert!(csv.contains("\napp,\"a\"\"b\\c?d?e=\u{fc},}\","), "{csv}");
    assert_eq!(
        csv.lines().count(),
        4,
        "a head, a listener, an endpoint, an upstream"
    );
}

/// The figures of a cache in memory, on a disk and at a server.
fn cache_of_all_tiers() -> CacheFigures {
    let dir = TempDir::new().unwrap();
    let text = format!(
        "[[listener]]\nbind = ':0'\n\
         [cache.main]\ndisk = {{ path = '{}', size = '64MiB' }}\nshared = 'redis://127.0.0.1:1'\n\
         [[route]]\nupstream = 'app'\ncache = 'main'\n\
         [upstream.app]\nendpoints = ['127.0.0.1:1']\n",
        dir.join("cache").display()
    );
    let loaded = load_text("test.toml", &text, NameLookup::Skip).unwrap();
    caches(&loaded.config, &[]).unwrap()[0].figures()
}

/// docs/metrics.md has a row for each family, in their order: `make docs` writes
/// them.
#[test]
fn every_metric_is_documented() {
    struct Recorder<'a> {
        rows: &'a RefCell<Vec<String>>,
        head: String,
        help: &'static str,
        output: Output,
    }
    impl Recorder<'_> {
        fn note(&mut self, labels: &Labels, more: Option<&str>) {
            let text = String::from_utf8(labels.text.clone()).unwrap();
            let names = text.split("\",").filter_map(|pair| pair.split_once('='));
            let mut names: Vec<_> = names.map(|(name, _)| format!("`{name}`")).collect();
            names.extend(more.map(|name| format!("`{name}`")));
            let row = format!("{} | {} | {} |", self.head, names.join(", "), self.help);
            let mut rows = self.rows.borrow_mut();
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
    }
    impl family::Writer for Recorder<'_> {
        fn family(&mut self, family: &family::Family) {
            let unit = match family.name {
                name if name.contains("seconds") => "seconds",
                name if name.contains("bytes") => "bytes",
                _ => "",
            };
            self.head = format!(
                "| `{}{}` | {} | {unit}",
                family.scope,
                family.name,
                family.kind.word()
            );
            self.help = family.help;
        }
        fn sample(
            &mut self,
            labels: &Labels,
            more: Option<(&'static str, &'static str)>,
            _: Value,
        ) {
            self.note(labels, more.map(|(name, _)| name));
        }
        fn distribution(&mut self, labels: &Labels, _: &crate::metrics::histogram::Distribution) {
            self.note(labels, None);
        }
        fn output(&mut self) -> &mut Output {
            &mut self.output
        }
    }
    let rows = Rc::new(RefCell::new(Vec::new()));
    let written = rows.clone();
    let pieces = Pieces::new(async move |output| {
        let mut recorder = Recorder {
            rows: &written,
            head: String::new(),
            help: "",
            output,
        };
        let mut figures = sources(1).read();
        figures.caches = vec![cache_of_all_tiers()];
        let server = SharedServerFigures {
            server: String::new(),
            up: true,
            failure: None,
        };
        figures.tickets.server = Some(server.clone());
        figures.acme_server = Some(AcmeServerFigures {
            standing: server,
            keys_differ: false,
        });
        let listener = &mut figures.listeners[0];
        listener.certificates = Some(1);
        listener.certificates_expired = Some(0);
        listener.certificates_ending = Some(0);
        listener.certificates_unreadable = Some(0);
        listener.certificates_missing = Some(0);
        listener.certificates_failed = Some(0);
        listener.certificate_expiry_unix_s = Some(1);
        catalogue::write(&figures, &mut recorder).await;
    });
    assert_eq!(pieces.count(), 0, "nothing but rows");
    let rows = rows.take();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    let page = std::fs::read_to_string(path).unwrap();
    let derived = with_rows(&page, &rows);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &derived).unwrap();
    }
    assert!(
        page == derived || std::env::var_os("BLESS").is_some(),
        "docs/metrics.md is not up to date: run `make docs`"
    );
}

/// The page with these rows: each in the table that has it, or else in that of
/// the row before.
fn with_rows(page: &str, rows: &[String]) -> String {
    let name = |row: &str| row.split('`').nth(1).unwrap_or_default().to_owned();
    let is_row = |line: &&str| line.starts_with("| `evenkeel_") || line.starts_with("| `process_");
    let lines: Vec<_> = page.lines().collect();
    // The start of each table, and the names in it.
    let starts = (1..lines.len()).filter(|&at| is_row(&lines[at]) && !is_row(&lines[at - 1]));
    let tables: Vec<_> = starts
        .map(|start| {
            let rows = lines[start..].iter().take_while(|line| is_row(line));
            (start, rows.map(|row| name(row)).collect::<Vec<_>>())
        })
        .collect();
    let mut table = 0;
    let mut filled = vec![Vec::new(); tables.len()];
    for row in rows {
        let found = tables
            .iter()
            .position(|(_, names)| names.contains(&name(row)));
        table = found.unwrap_or(table);
        filled[table].push(row.as_str());
    }
    let mut out = String::new();
    let mut filled = filled.into_iter();
    for (at, line) in lines.iter().enumerate() {
        if tables.iter().any(|(start, _)| *start == at) {
            let rows = filled.next().unwrap_or_default();
            rows.iter().for_each(|row| out += &format!("{row}\n"));
        }
        if !is_row(line) {
            out += &format!("{line}\n");
        }
    }
    out
}

/// The buckets of a native histogram of schema 3: upper bound and count of each. The bucket of
/// zero is first.
fn native_buckets(histogram: &decoded::Histogram) -> Vec<(f64, u64)> {
    assert_eq!(histogram.schema, 3);
    let mut buckets = vec![(histogram.zero_threshold, histogram.zero_count)];
    let (mut index, mut count) = (0, 0);
    let mut deltas = histogram.positive_delta.iter();
    for span in &histogram.positive_span {
        index += span.offset;
        for _ in 0..span.length {
            count += deltas.next().unwrap();
            buckets.push(((f64::from(index) / 8.0).exp2(), count as u64));
            index += 1;
        }
    }
    assert_eq!(deltas.next(), None);
    buckets
}

#[test]
fn protobuf_is_read_by_a_decoder() {
    let mut figures = sources(2).read();
    figures.upstreams[0].endpoints[1].name = "quote\"d\n\u{fc}".to_owned();
    let families = decoded::families(&body(figures.clone(), Names::Evenkeel, Format::Protobuf));
    let of = |name: &str| families.iter().find(|it| it.name == name).unwrap();
    let attempts = of("evenkeel_endpoint_attempts_total");
    assert_eq!((attempts.kind, attempts.metric.len()), (0, 2));
    let label = |name: &str, value: &str| decoded::Label {
        name: name.into(),
        value: value.into(),
    };
    let expected = [
        label("upstream", "app"),
        label("endpoint", "quote\"d\n\u{fc}"),
    ];
    assert_eq!(attempts.metric[1].label, expected);
    let value = attempts.metric[1].counter.as_ref().unwrap().value;
    assert_eq!(value, figures.upstreams[0].endpoints[1].attempts as f64);
    let state = of("evenkeel_endpoint_state");
    assert_eq!((state.kind, state.metric.len()), (1, 18));
    assert_eq!(state.metric[8].label[2], label("state", "up"));
    assert_eq!(state.metric[8].gauge.as_ref().unwrap().value, 1.0);

    for (name, all, unit) in [
        (
            "duration_seconds",
            &figures.upstreams[0].endpoints[0].phases.total_us,
            1e-6,
        ),
        (
            "connect_seconds",
            &figures.upstreams[0].endpoints[0].phases.connect_us,
            1e-6,
        ),
        (
            "response_size_bytes",
            &figures.upstreams[0].endpoints[0].phases.response_bytes,
            1.0,
        ),
    ] {
        let family = of(&format!("evenkeel_endpoint_{name}"));
        assert_eq!(family.kind, 4);
        let histogram = family.metric[0].histogram.as_ref().unwrap();
        assert_eq!(histogram.sample_count, all.count());
        assert!((histogram.sample_sum / (all.sum() as f64 * unit) - 1.0).abs() < 1e-9);
        let last = histogram.bucket.last().unwrap();
        assert_eq!(
            last.cumulative_count,
            all.count_below(last.upper_bound / unit)
        );
        let buckets = native_buckets(histogram);
        let count: u64 = buckets.iter().map(|(_, count)| count).sum();
        assert_eq!(count, all.count());
        // Each of our buckets is there, at most 4 % above where it is.
        let bounds = (1..=all.buckets().len()).map(crate::metrics::histogram::lower_bound);
        let ours = bounds.zip(all.buckets()).filter(|(_, count)| **count > 0);
        let theirs = buckets.iter().filter(|(_, count)| *count > 0);
        let pairs: Vec<_> = ours.zip(theirs).collect();
        assert!(pairs.len() > 30);
        for ((bound, count), (upper, native)) in pairs {
            assert_eq!(count, native, "{name}: {bound}");
            let shift = upper / (bound * unit);
            assert!((0.999..1.041).contains(&shift), "{name}: {bound}: {shift}");
        }
    }
    // Nothing was counted, and it is a native histogram all the same.
    let queue = &of("evenkeel_upstream_queue_seconds").metric[0];
    assert_eq!(queue.histogram.as_ref().unwrap().schema, 3);
}

/// No piece is longer than what is enough for one and a sample of all buckets,
/// but for families that have their lengths before them.
#[test]
fn many_endpoints_are_many_pieces() {
    const MOST: usize = 16 * 1024;
    for format in [Format::Text, Format::OpenMetrics, Format::Protobuf] {
        let figures = sources(100).read();
        let lens: Vec<_> = pieces(figures, Names::Evenkeel, format)
            .map(|piece| piece.len())
            .collect();
        let all: usize = lens.iter().sum();
        assert!(all > 20 * MOST, "{format:?}: {all}");
        let most = lens.iter().copied().max().unwrap();
        match format {
            Format::Text | Format::OpenMetrics => assert!(most < MOST, "{format:?}: {most}"),
            Format::Protobuf => assert!(most < all / 4, "{format:?}: {most} of {all}"),
        }
    }
}

/// Processor time of a scrape with 1,000 endpoints, the least of 20 runs:
/// `cargo test --profile quick --lib -- --nocapture a_thousand`.
#[test]
#[cfg_attr(debug_assertions, ignore = "it measures an optimised build")]
fn a_thousand_endpoints() {
    use rustix::time::{ClockId, clock_gettime};
    let sources = sources(1_000);
    let least = |what: &str, work: &dyn Fn() -> usize| {
        let measure = |_| {
            let start = clock_gettime(ClockId::ThreadCPUTime);
            let len = work();
            let end = clock_gettime(ClockId::ThreadCPUTime);
            let took = (end.tv_sec - start.tv_sec) * 1_000_000_000 + end.tv_nsec - start.tv_nsec;
            (took, len)
        };
        let (took, len) = (0..20).map(measure).min().unwrap();
        println!("{what}: {:.1} ms, {len} bytes", took as f64 / 1e6);
        took
    };
    least("read alone", &|| sources.read().listeners.len());
    let scrape = |names: Names, format: Format| {
        let what = format!("{names:?}, {format:?}");
        let all_of_it = || {
            let pieces = pieces(sources.read(), names, format);
            pieces.map(|piece| piece.len()).sum()
        };
        // A shared machine has two thirds of its speed at times.
        until(&format!("{what} takes less than 20 ms"), || {
            (least(&what, &all_of_it) as f64 / 1e6) < 20.0
        });
    };
    for format in [Format::Text, Format::OpenMetrics, Format::Protobuf] {
        scrape(Names::Evenkeel, format);
    }
    scrape(Names::Haproxy, Format::Text);
    let seen = seen(&sources);
    least("CSV", &|| csv::table(&sources.read(), &seen).len());
}
