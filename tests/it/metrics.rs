//! Metrics and CSV, as third-party programs read them, compared with the figures of
//! `/status.json`. A test fails if its program is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::process::{Peer, Running, run};
use evenkeel_testkit::{Origin, OriginHandle, OriginOptions, Proxy, RawClient, Response, TempDir};
use serde_json::Value;

use crate::setup::{Site, ask_status, csv_rows, get, nobody, origin, test};
use evenkeel_testkit::process::python;

/// A name that takes escaping in every format.
const ODD_ENDPOINT: &str = "unix:/nowhere/a\"b\\c,\u{fc}}.sock";

/// An origin, the proxy before it, and an endpoint that is not there.
fn site() -> (OriginHandle, Proxy) {
    let origin = origin();
    let endpoints = [
        format!("{{ address = '{}', max_in_flight = 8 }}", origin.address),
        format!("{{ address = '{ODD_ENDPOINT}', max_in_flight = 4, weight = 2 }}"),
    ];
    let site = Site {
        server: "\n[status]\nbind = \"127.0.0.1:0\"\n",
        listener: "limits.connections = 1000",
        upstream: "balance = \"round-robin\"",
        ..Site::default()
    };
    (origin, site.start(&endpoints))
}

/// Requests of many kinds, each on a new connection, and all counted.
fn some_traffic(proxy: &Proxy) {
    let requests = [
        get("/ping"),
        get("/3000"),
        get("/chunked/70000"),
        get("/close/5"),
        get("/status/404"),
        get("/status/503"),
        "POST /ping HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".into(),
        "GET /ping HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".into(),
        "GET /ping\r\n\r\n".into(),
    ];
    for request in requests.iter().cycle().take(4 * requests.len()) {
        let mut client = proxy.client();
        client.ask(request).unwrap();
    }
    let mut gone = proxy.client();
    gone.send("POST /ping HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhell")
        .unwrap();
    drop(gone);
    until("all is counted and idle", || {
        let status = status(proxy);
        let listener = &status["listeners"][0];
        listener["requests"] == 4 * requests.len() + 1
            && listener["open"] == 0
            && status["upstreams"][0]["in_flight"] == 0
    });
}

fn ask(proxy: &Proxy, path: &str, accept: &str) -> Response {
    ask_status(proxy, path, &format!("Accept: {accept}\r\n"))
}

fn body(proxy: &Proxy, path: &str) -> String {
    ask(proxy, path, "*/*").text()
}

fn status(proxy: &Proxy) -> Value {
    serde_json::from_str(&body(proxy, "/status.json")).unwrap()
}

/// Runs a program with a text as its input, and returns its output.
#[track_caller]
fn piped(mut command: Command, text: &[u8]) -> String {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.join("input"), text).unwrap();
    let input = std::fs::File::open(dir.join("input")).unwrap();
    let output = command.stdin(input).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}{complaints}");
    assert_eq!(complaints, "", "{command:?}");
    said
}

fn promtool(arguments: &[&str]) -> Command {
    let mut command = Command::new("promtool");
    command.args(arguments);
    command
}

/// The samples that Prometheus's library for Python reads from a text, by [`series`].
struct Samples(BTreeMap<String, f64>);

impl Samples {
    /// `parser` is a module of that library.
    #[track_caller]
    fn read(parser: &str, text: &[u8]) -> Self {
        const READER: &str = r#"
import importlib, json, sys
parser = importlib.import_module(sys.argv[1])
samples = {}
for family in parser.text_string_to_metric_families(sys.stdin.buffer.read().decode()):
    for sample in family.samples:
        labels = ["\n" + name + "=" + sample.labels[name] for name in sorted(sample.labels)]
        samples[sample.name + "".join(labels)] = sample.value
print(json.dumps(samples))
"#;
        let mut reader = python();
        reader.args(["-c", READER, parser]);
        Samples(serde_json::from_str(&piped(reader, text)).unwrap())
    }

    #[track_caller]
    fn assert(&self, name: &str, labels: &[(&str, &str)], expected: &Value) {
        let found = self.0.get(&series(name, labels)).copied();
        assert!(expected.is_number(), "{name}: {expected}");
        assert_eq!(found, expected.as_f64(), "{name} {labels:?}");
    }
}

/// A name and its labels, in order.
fn series(name: &str, labels: &[(&str, &str)]) -> String {
    let sorted: BTreeSet<_> = labels.iter().collect();
    let labels = sorted
        .iter()
        .map(|(label, value)| format!("\n{label}={value}"));
    name.to_owned() + &labels.collect::<String>()
}

#[test]
fn promtool_has_no_complaint() {
    test(|| {
        let (_origin, proxy) = site();
        for round in ["fresh", "used"] {
            for path in ["/metrics", "/metrics?names=haproxy"] {
                let response = ask(&proxy, path, "*/*");
                assert_eq!(
                    response.field("content-type"),
                    Some("text/plain; version=0.0.4; charset=utf-8")
                );
                let said = piped(promtool(&["check", "metrics"]), &response.body);
                assert_eq!(said, "", "{round}: {path}");
            }
            if round == "fresh" {
                some_traffic(&proxy);
            }
        }
    });
}

#[test]
fn promtool_takes_the_example_alerts() {
    test(|| {
        let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/alerts.yml");
        let output = run(
            promtool(&["check", "rules", rules]),
            Duration::from_secs(20),
        )
        .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("SUCCESS"),
            "{said}"
        );
        // Each metric that they name is there.
        let (_origin, proxy) = site();
        let metrics = body(&proxy, "/metrics");
        let rules = std::fs::read_to_string(rules).unwrap();
        let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: BTreeSet<_> = words
            .filter(|word| word.starts_with("evenkeel_") || word.starts_with("process_"))
            .map(|word| word.strip_suffix("_bucket").unwrap_or(word))
            .collect();
        assert!(names.len() > 15, "{names:?}");
        for name in names {
            assert!(metrics.contains(&format!("# TYPE {name} ")), "{name}");
        }
    });
}

/// A strict reader of OpenMetrics finds what `/status.json` says.
#[test]
fn openmetrics_agrees_with_the_json() {
    test(|| {
        let (_origin, proxy) = site();
        some_traffic(&proxy);
        let accept = "application/openmetrics-text; version=1.0.0";
        let response = ask(&proxy, "/metrics", accept);
        let content_type = response.field("content-type").unwrap();
        assert!(content_type.starts_with(accept), "{content_type}");
        let read = Samples::read("prometheus_client.openmetrics.parser", &response.body);
        let status = status(&proxy);
        let (listener, upstream) = (&status["listeners"][0], &status["upstreams"][0]);
        for (scope, figures) in [
            ("listener", listener),
            ("route", &status["routes"][0]),
            ("upstream", upstream),
        ] {
            assert_exchanges(&read, scope, figures);
        }
        assert!(
            listener["ends"]["host-repeated"].as_u64() > Some(0),
            "{listener}"
        );
        assert!(upstream["retries"].as_u64() > Some(0), "{upstream}");
        let labels = [("upstream", "app")];
        read.assert(
            "evenkeel_upstream_retries_total",
            &labels,
            &upstream["retries"],
        );
        let labels = [("listener", "web")];
        read.assert(
            "evenkeel_listener_connections_total",
            &labels,
            &listener["connections"],
        );
        for endpoint in upstream["endpoints"].as_array().unwrap() {
            let name = endpoint["name"].as_str().unwrap();
            let labels = [("upstream", "app"), ("endpoint", name)];
            for (metric, json) in [
                ("attempts_total", "attempts"),
                ("failures_total", "failures"),
                ("connects_total", "connects"),
                ("connect_failures_total", "connect_failures"),
                ("reuses_total", "reuses"),
                ("unreachables_total", "unreachables"),
                ("request_bytes_total", "bytes_out"),
                ("response_bytes_total", "bytes_in"),
                ("weight", "weight"),
            ] {
                read.assert(
                    &format!("evenkeel_endpoint_{metric}"),
                    &labels,
                    &endpoint[json],
                );
            }
            let state = endpoint["state"].as_str().unwrap();
            let labels = [labels[0], labels[1], ("state", state)];
            read.assert("evenkeel_endpoint_state", &labels, &1.into());
        }
        let odd = &upstream["endpoints"][1];
        assert_eq!(
            (&odd["name"], &odd["state"]),
            (&ODD_ENDPOINT.into(), &"unreachable".into())
        );
        assert_eq!(odd["unreachables"], 1);
    });
}

/// The metrics of a listener, a route or an upstream equal those of its JSON.
#[track_caller]
fn assert_exchanges(read: &Samples, scope: &str, figures: &Value) {
    let labels = [(scope, figures["name"].as_str().unwrap())];
    let more = |label, value| [labels[0], (label, value)];
    let name = |what: &str| format!("evenkeel_{scope}_{what}");
    for (metric, json) in [
        ("requests_total", "requests"),
        ("errors_total", "errors"),
        ("request_bytes_total", "bytes_in"),
        ("response_bytes_total", "bytes_out"),
    ] {
        read.assert(&name(metric), &labels, &figures[json]);
    }
    for (class, count) in figures["status"].as_object().unwrap() {
        read.assert(&name("responses_total"), &more("class", class), count);
    }
    for (end, count) in figures["ends"].as_object().unwrap() {
        read.assert(&name("ends_total"), &more("end", end), count);
    }
    for (phase, json, unit) in [
        ("queue_seconds", "queue_us", 1e6),
        ("connect_seconds", "connect_us", 1e6),
        ("first_byte_seconds", "first_byte_us", 1e6),
        ("duration_seconds", "total_us", 1e6),
        ("response_size_bytes", "response_bytes", 1.0),
    ] {
        let (count, sum) = (
            &figures[json]["count"],
            figures[json]["sum"].as_f64().unwrap(),
        );
        read.assert(&name(&format!("{phase}_count")), &labels, count);
        read.assert(
            &name(&format!("{phase}_bucket")),
            &more("le", "+Inf"),
            count,
        );
        read.assert(
            &name(&format!("{phase}_sum")),
            &labels,
            &(sum / unit).into(),
        );
    }
}

#[test]
fn the_scraper_chooses_the_format() {
    test(|| {
        let (_origin, proxy) = site();
        let accept = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                      encoding=delimited,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1";
        let response = ask(&proxy, "/metrics", accept);
        let content_type = response.field("content-type").unwrap();
        assert!(
            content_type.starts_with("application/vnd.google.protobuf; proto="),
            "{content_type}"
        );
        // A message with its length, whose first field is the family's name.
        assert_eq!(response.body[1..28], *b"\n\x19process_cpu_seconds_total");
        let text = body(&proxy, "/metrics");
        assert!(text.contains("\nevenkeel_listener_connections_limit{listener=\"web\"} 1000\n"));
        assert!(text.contains(&format!(
            "\nevenkeel_build_info{{version=\"{}\"}} 1\n",
            env!("CARGO_PKG_VERSION")
        )));
    });
}

/// Prometheus's exporter for HAProxy reads our CSV, and finds our figures.
#[test]
fn the_csv_is_read_by_an_exporter_for_haproxy() {
    test(|| {
        let (_origin, proxy) = site();
        some_traffic(&proxy);
        let mut exporter = Command::new("sh");
        exporter.args(["-c", "exec prometheus-haproxy-exporter \"$@\" 2>&1", "-"]);
        exporter.arg("--web.listen-address=127.0.0.1:0");
        exporter.arg(format!(
            "--haproxy.scrape-uri=http://{}/;csv",
            proxy.status_address()
        ));
        let mut exporter = Running::start(exporter).unwrap();
        let address = loop {
            let line = exporter.line().unwrap();
            if let Some((_, address)) = line.split_once("Listening on\" address=") {
                break address.to_owned();
            }
        };
        let mut client = RawClient::connect(address).unwrap();
        let text = client.get("/metrics").unwrap().body;
        let read = Samples::read("prometheus_client.parser", &text);
        read.assert("haproxy_up", &[], &1.into());
        read.assert("haproxy_exporter_csv_parse_failures_total", &[], &0.into());
        let status = status(&proxy);
        let (listener, upstream) = (&status["listeners"][0], &status["upstreams"][0]);
        let ends = &listener["ends"];
        let refused = ["host-repeated", "request-line"].map(|end| ends[end].as_u64().unwrap_or(0));
        let refused = refused.iter().sum::<u64>();
        assert!(refused > 0, "{ends}");
        for (metric, expected) in [
            ("http_requests_total", &listener["requests"]),
            ("sessions_total", &listener["connections"]),
            ("limit_sessions", &listener["connections_limit"]),
            ("bytes_in_total", &listener["bytes_in"]),
            ("bytes_out_total", &listener["bytes_out"]),
            ("request_errors_total", &refused.into()),
        ] {
            let name = format!("haproxy_frontend_{metric}");
            read.assert(&name, &[("frontend", "web")], expected);
        }
        for (metric, expected) in [
            ("sessions_total", &upstream["requests"]),
            ("bytes_in_total", &upstream["bytes_in"]),
            ("bytes_out_total", &upstream["bytes_out"]),
            ("retry_warnings_total", &upstream["retries"]),
            ("current_server", &upstream["eligible"]),
            ("up", &1.into()),
        ] {
            let name = format!("haproxy_backend_{metric}");
            read.assert(&name, &[("backend", "app")], expected);
        }
        for (side, name, figures) in [("frontend", "web", listener), ("backend", "app", upstream)] {
            for class in ["1xx", "2xx", "3xx", "4xx", "5xx"] {
                let metric = format!("haproxy_{side}_http_responses_total");
                let labels = [(side, name), ("code", class)];
                read.assert(&metric, &labels, &figures["status"][class]);
            }
        }
        for endpoint in upstream["endpoints"].as_array().unwrap() {
            let labels = [
                ("backend", "app"),
                ("server", endpoint["name"].as_str().unwrap()),
            ];
            for (metric, expected) in [
                ("sessions_total", &endpoint["attempts"]),
                ("connection_errors_total", &endpoint["connect_failures"]),
                ("bytes_in_total", &endpoint["bytes_out"]),
                ("bytes_out_total", &endpoint["bytes_in"]),
                ("weight", &endpoint["weight"]),
                ("up", &u8::from(endpoint["state"] == "up").into()),
            ] {
                read.assert(&format!("haproxy_server_{metric}"), &labels, expected);
            }
        }
    });
}

/// Each name of our alias set is one of HAProxy's, of the same type and with
/// the same labels; the fields of the CSV are HAProxy's first ones.
#[test]
fn names_and_fields_are_haproxys() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let socket = dir.join("stats.sock");
        let config = format!(
            "defaults\n mode http\n timeout client 5s\n timeout server 5s\n timeout connect 5s\n\
             frontend web\n bind unix@{socket}\n stats enable\n stats uri /\n\
             http-request use-service prometheus-exporter if {{ path /metrics }}\n\
             default_backend app\nbackend app\n server s1 127.0.0.1:1 maxconn 5\n",
            socket = socket.display()
        );
        let _haproxy = Running::start_peer(Peer::Haproxy, &dir, &config, &socket).unwrap();
        let theirs = from_unix(&socket, "/metrics");
        let (_origin, proxy) = site();
        let ours = body(&proxy, "/metrics?names=haproxy");
        let (theirs, ours) = (shapes(&theirs), shapes(&ours));
        assert!(ours.len() > 50, "{ours:?}");
        for (name, (kind, labels)) in &ours {
            let (their_kind, their_labels) = &theirs[name];
            assert_eq!(kind, their_kind, "{name}");
            // Without a sample there are no labels to see.
            if !labels.is_empty() {
                assert_eq!(labels, their_labels, "{name}");
            }
        }
        let head = |csv: &str| csv.lines().next().unwrap().to_owned();
        let theirs = head(&from_unix(&socket, "/;csv"));
        let ours = head(&body(&proxy, "/;csv"));
        for path in ["/status;csv", "/;csv;norefresh"] {
            assert_eq!(ours, head(&body(&proxy, path)), "{path}");
        }
        assert!(
            theirs.starts_with(ours.trim_end_matches(',')),
            "{ours}\n{theirs}"
        );
    });
}

/// HAProxy and we probe the same servers: one that is well, and one for each
/// way of not being so.
#[test]
fn probes_end_in_haproxys_words() {
    test(|| {
        let faulty = |options| Origin::local(options).unwrap();
        let default = OriginOptions::default;
        let origins = [
            faulty(default()),
            faulty(OriginOptions {
                fail_rate: 1.0,
                ..default()
            }),
            faulty(OriginOptions {
                garbage_rate: 1.0,
                ..default()
            }),
            faulty(OriginOptions {
                stall_rate: 1.0,
                ..default()
            }),
        ];
        let mut addresses: Vec<_> = origins.iter().map(|it| it.address.to_string()).collect();
        addresses.push(nobody());
        let dir = TempDir::new().unwrap();
        let socket = dir.join("stats.sock");
        let servers = addresses.iter().enumerate();
        let servers = servers.map(|(index, it)| format!(" server s{index} {it} check\n"));
        let config = format!(
            "defaults\n mode http\n timeout client 5s\n timeout server 5s\n timeout connect 5s\n \
             timeout check 300ms\nfrontend web\n bind unix@{socket}\n stats enable\n stats uri /\n\
             default_backend app\nbackend app\n option httpchk GET /ping\n \
             default-server inter 200ms fall 1\n{servers}",
            socket = socket.display(),
            servers = servers.collect::<String>()
        );
        let _haproxy = Running::start_peer(Peer::Haproxy, &dir, &config, &socket).unwrap();
        let site = Site {
            server: "[status]\nbind = \"127.0.0.1:0\"",
            upstream: "health = { path = \"/ping\", interval = \"400ms\", timeout = \"300ms\", fall = 1 }",
            ..Site::default()
        };
        let proxy = site.start(&addresses);
        let checks = |csv: &str| -> Vec<[String; 3]> {
            let servers = csv_rows(csv).into_iter().filter(|row| row["type"] == "2");
            let checks = servers.map(|row| {
                // A star tells of a check that is under way.
                let ended = row["check_status"].trim_start_matches("* ");
                [&row["status"], ended, &row["check_code"]].map(str::to_owned)
            });
            checks.collect()
        };
        let expected = [
            ["UP", "L7OK", "200"],
            ["DOWN", "L7STS", "500"],
            ["DOWN", "L7RSP", ""],
            ["DOWN", "L7TOUT", ""],
            ["DOWN", "L4CON", ""],
        ];
        let ours = || body(&proxy, "/;csv");
        until("all are probed", || checks(&ours()) == expected);
        until("HAProxy says the same", || {
            checks(&from_unix(&socket, "/;csv")) == expected
        });
        assert_eq!(proxy.client().get("/ping").unwrap().status, 200);
        let number = |row: &BTreeMap<String, String>, name: &str| -> u64 {
            let value = row[name].parse();
            value.unwrap_or_else(|_| panic!("{name}: {:?}", row[name]))
        };
        until("a look has seen it all", || {
            let rows = csv_rows(&ours());
            let [frontend, well, .., dead, backend] = &rows[..] else {
                panic!("{} rows", rows.len());
            };
            assert_eq!(well["last_chk"], "status 200");
            assert_eq!(dead["last_chk"], "connection refused");
            let seen = [
                number(frontend, "req_rate_max"),
                number(well, "rate_max"),
                number(backend, "rate_max"),
                number(dead, "downtime"),
            ];
            let times = [well, backend].map(|row| number(row, "downtime"));
            seen.iter().all(|it| *it > 0) && times == [0, 0]
        });
    });
}

fn from_unix(socket: &Path, path: &str) -> String {
    let mut client = RawClient::connect_unix(socket).unwrap();
    client.get(path).unwrap().text()
}

/// The type of each metric and the names of its labels.
fn shapes(text: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut shapes = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            shapes.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            let labels = line.match_indices("=\"").map(|(end, _)| {
                let start = line[..end].rfind(['{', ',']).unwrap() + 1;
                line[start..end].to_owned()
            });
            shapes.get_mut(name).unwrap().1.extend(labels);
        }
    }
    shapes
}
