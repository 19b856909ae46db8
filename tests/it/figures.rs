//! Every view tells the same numbers: a random mix of requests goes through,
//! then the access log, the figures, the clients and the origins are compared.

use std::collections::BTreeMap;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, RawClient, RawOrigin};
use serde_json::Value;

use crate::setup::{ask_status, csv_rows, figures, get, nobody, origin, program, test};

/// Operations of one mix.
const OPERATIONS: usize = 250;
/// Clients that take turns.
const CLIENTS: usize = 4;

/// A proxy before two good origins and three kinds of bad ones.
struct Mix {
    origins: [OriginHandle; 2],
    _bad: [RawOrigin; 2],
    proxy: Proxy,
}

impl Mix {
    fn start() -> Self {
        let origins = [origin(), origin()];
        let cut =
            RawOrigin::answering("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort").unwrap();
        let garbage = RawOrigin::answering("this is not HTTP\r\n\r\n").unwrap();
        let dead = nobody();
        let config = format!(
            r#"
[server]
workers = 2
[access_log]
path = "$DIR/access.log"
format = "json"
[status]
bind = "127.0.0.1:0"
[[listener]]
name = "web"
bind = "127.0.0.1:0"
[[route]]
name = "hello"
match = {{ path = "/hello" }}
answer = {{ body = "hello\n" }}
[[route]]
name = "old"
match = {{ path = "/old" }}
redirect = "/hello"
[[route]]
name = "dead"
match = {{ path = "/dead" }}
upstream = "dead"
[[route]]
name = "cut"
match = {{ path = "/cut" }}
upstream = "cut"
[[route]]
name = "garbage"
match = {{ path = "/garbage" }}
upstream = "garbage"
[[route]]
name = "app"
match = {{ path = ["/ping", "/echo", "/custom-payload"] }}
upstream = "app"
[upstream.app]
balance = "random"
queue = {{ hold = false }}
endpoints = [{:?}, {:?}, "{dead}"]
[upstream.dead]
queue = {{ hold = false }}
endpoints = ["{dead}"]
[upstream.cut]
guard = false
endpoints = [{:?}]
[upstream.garbage]
guard = false
endpoints = [{:?}]
"#,
            origins[0].address.to_string(),
            origins[1].address.to_string(),
            cut.address.to_string(),
            garbage.address.to_string(),
        );
        let proxy = Proxy::start(program(), &config).unwrap();
        Mix {
            origins,
            _bad: [cut, garbage],
            proxy,
        }
    }
}

/// The counts of the clients.
#[derive(Debug, Default, PartialEq)]
struct Sums {
    requests: u64,
    bytes_in: u64,
    bytes_out: u64,
}

/// A client that reconnects when it has to.
struct Visitor<'a> {
    proxy: &'a Proxy,
    client: Option<RawClient>,
    sums: Sums,
}

impl Visitor<'_> {
    /// Sends bytes with several requests, reads the responses, and closes if the proxy does.
    fn ask(&mut self, bytes: impl AsRef<[u8]>, methods: &[&str]) {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => self.proxy.client(),
        };
        let before = (client.bytes_sent, client.bytes_received);
        client.send(bytes).unwrap();
        let mut is_open = true;
        for method in methods {
            let response = client.read_response(method);
            is_open = response.is_ok_and(|it| it.field("connection") != Some("close"));
        }
        self.sums.requests += methods.len() as u64;
        self.sums.bytes_in += client.bytes_sent - before.0;
        self.sums.bytes_out += client.bytes_received - before.1;
        self.client = is_open.then_some(client);
    }

    fn operate(&mut self, random: &mut fastrand::Rng) {
        let size = 1usize << random.u32(..18);
        let host = "Host: test.example\r\n";
        match random.u8(..14) {
            0..4 => self.ask(get(&format!("/custom-payload?size={size}")), &["GET"]),
            4 => {
                let head = format!("POST /echo HTTP/1.1\r\n{host}Content-Length: {size}\r\n\r\n");
                self.ask([head.into_bytes(), vec![b'x'; size]].concat(), &["POST"]);
            }
            5 => {
                let head =
                    format!("POST /echo HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n");
                let chunk = |len: usize| {
                    [
                        format!("{len:x}\r\n").into_bytes(),
                        vec![b'y'; len],
                        b"\r\n".to_vec(),
                    ]
                    .concat()
                };
                let body = [chunk(size), chunk(3), b"0\r\n\r\n".to_vec()].concat();
                self.ask([head.into_bytes(), body].concat(), &["POST"]);
            }
            6 => self.ask(format!("HEAD /ping HTTP/1.1\r\n{host}\r\n"), &["HEAD"]),
            7 => {
                // Pipelined behind a body: bytes read ahead belong to the next request.
                let head = format!("POST /echo HTTP/1.1\r\n{host}Content-Length: {size}\r\n\r\n");
                let next = get("/ping");
                let both = [head.into_bytes(), vec![b'z'; size], next.into_bytes()].concat();
                self.ask(both, &["POST", "GET"]);
            }
            8 => self.ask(get("/hello"), &["GET"]),
            9 => self.ask(get("/old"), &["GET"]),
            10 => self.ask(get("/nowhere"), &["GET"]),
            11 => self.ask("GET / HTTP/1.1\r\nHost : x\r\n\r\n", &["GET"]),
            12 => self.ask(get("/dead"), &["GET"]),
            _ => self.ask(get(random.choice(["/cut", "/garbage"]).unwrap()), &["GET"]),
        }
    }
}

/// The sum of one number over all lines.
fn sum(lines: &[Value], key: &str) -> u64 {
    lines.iter().filter_map(|line| line[key].as_u64()).sum()
}

/// How often each text occurs.
fn tally<'a>(texts: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for text in texts {
        *counts.entry(text.to_owned()).or_default() += 1;
    }
    counts
}

fn of_names(figures: &Value, list: &str, number: &str) -> BTreeMap<String, u64> {
    let rows = figures[list].as_array().unwrap().iter();
    rows.map(|row| {
        (
            row["name"].as_str().unwrap().to_owned(),
            row[number].as_u64().unwrap(),
        )
    })
    .filter(|(_, count)| *count > 0)
    .collect()
}

/// Whether a line is of a failed exchange.
fn is_error(line: &Value) -> bool {
    let by_endpoint = ["upstream-cut", "upstream-stalled", "upstream-body"];
    let end = line["end"].as_str().unwrap();
    line["status"].as_u64().unwrap() >= 500 || by_endpoint.contains(&end)
}

#[track_caller]
fn compare(mix: &Mix, sums: &Sums) {
    let proxy = &mix.proxy;
    until("every exchange is counted and logged", || {
        let figures = figures(&mix.proxy);
        figures["listeners"][0]["requests"] == sums.requests
            && proxy.access_log_json().len() as u64 == sums.requests
    });
    let figures = figures(&mix.proxy);
    let lines = proxy.access_log_json();
    let listener = &figures["listeners"][0];

    // Clients, log and listener.
    assert_eq!(listener["bytes_in"], sums.bytes_in, "as sent by clients");
    assert_eq!(listener["bytes_out"], sums.bytes_out, "as clients got them");
    assert_eq!(sum(&lines, "bytes_in"), sums.bytes_in, "in the log");
    assert_eq!(sum(&lines, "bytes_out"), sums.bytes_out, "in the log");
    let ends = tally(lines.iter().map(|line| line["end"].as_str().unwrap()));
    assert_eq!(listener["ends"], serde_json::json!(ends));
    let failed: Vec<_> = lines.iter().filter(|line| is_error(line)).collect();
    assert_eq!(listener["errors"], failed.len() as u64);
    assert_eq!(listener["total_us"]["count"], sums.requests);
    assert_eq!(listener["response_bytes"]["sum"], sums.bytes_out);
    assert_eq!(
        (&figures["log_lines_dropped"], &figures["log_lines_lost"]),
        (&0.into(), &0.into())
    );
    let classes = tally(
        lines
            .iter()
            .map(|line| match line["status"].as_u64().unwrap() / 100 {
                2 => "2xx",
                3 => "3xx",
                4 => "4xx",
                5 => "5xx",
                _ => "none",
            }),
    );
    for (class, count) in classes {
        assert_eq!(listener["status"][&class], count, "{class}");
    }

    // Log, routes and upstreams.
    for (key, list) in [("route", "routes"), ("upstream", "upstreams")] {
        let names = || lines.iter().filter_map(|line| line[key].as_str());
        assert_eq!(of_names(&figures, list, "requests"), tally(names()));
        let failed = failed.iter().filter_map(|line| line[key].as_str());
        assert_eq!(of_names(&figures, list, "errors"), tally(failed));
        for row in figures[list].as_array().unwrap() {
            let own: Vec<_> = lines
                .iter()
                .filter(|line| line[key] == row["name"])
                .cloned()
                .collect();
            for number in ["bytes_in", "bytes_out"] {
                assert_eq!(
                    row[number],
                    sum(&own, number),
                    "{number} of {}",
                    row["name"]
                );
            }
            assert_eq!(row["total_us"]["count"], row["requests"]);
        }
    }
    let again = |line: &Value| line["attempts"].as_u64().unwrap().saturating_sub(1);
    let upstreams = figures["upstreams"].as_array().unwrap();
    let retries: u64 = upstreams
        .iter()
        .map(|it| it["retries"].as_u64().unwrap())
        .sum();
    assert_eq!(retries, lines.iter().map(again).sum::<u64>());
    assert!(retries > 0, "the mix has retries");

    // Endpoints and origins.
    let app = upstreams.iter().find(|it| it["name"] == "app").unwrap();
    for (endpoint, origin) in app["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .zip(&mix.origins)
    {
        let stats = origin.stats();
        assert_eq!(endpoint["attempts"], stats.requests);
        assert_eq!(endpoint["bytes_out"], stats.bytes_received);
        assert_eq!(endpoint["bytes_in"], stats.bytes_sent);
        assert_eq!(endpoint["connects"], stats.connections);
        assert_eq!(endpoint["in_flight"], 0);
        assert_eq!(
            endpoint["idle"], stats.open_connections,
            "looked at once a second"
        );
    }
}

/// One number of the metrics; 0 for a series that is not there.
fn metric(text: &str, series: &str) -> u64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().unwrap())
}

/// Holds the metrics and the CSV against the figures.
fn compare_views(mix: &Mix) {
    let all = figures(&mix.proxy);
    let metrics = ask_status(&mix.proxy, "/metrics", "").text();
    let of = |scope: &str, name: &str, what: &str| {
        metric(
            &metrics,
            &format!("evenkeel_{scope}_{what}{{{scope}=\"{name}\"}}"),
        )
    };
    for (scope, list) in [
        ("listener", "listeners"),
        ("route", "routes"),
        ("upstream", "upstreams"),
    ] {
        for row in all[list].as_array().unwrap() {
            let name = row["name"].as_str().unwrap();
            assert_eq!(of(scope, name, "request_bytes_total"), row["bytes_in"]);
            assert_eq!(of(scope, name, "response_bytes_total"), row["bytes_out"]);
            assert_eq!(of(scope, name, "errors_total"), row["errors"]);
            assert_eq!(of(scope, name, "duration_seconds_count"), row["requests"]);
            for (end, count) in row["ends"].as_object().unwrap() {
                let series =
                    format!("evenkeel_{scope}_ends_total{{{scope}=\"{name}\",end=\"{end}\"}}");
                assert_eq!(metric(&metrics, &series), *count, "{series}");
            }
        }
    }
    let csv = ask_status(&mix.proxy, "/;csv", "").text();
    let rows = csv_rows(&csv);
    let cell = |proxy: &str, server: &str, column: &str| -> u64 {
        let row = rows
            .iter()
            .find(|row| row["pxname"] == proxy && row["svname"] == server)
            .unwrap();
        // Unknown cells of a row are empty.
        row[column].parse().unwrap_or(0)
    };
    let web = &all["listeners"][0];
    assert_eq!(cell("web", "FRONTEND", "req_tot"), web["requests"]);
    assert_eq!(cell("web", "FRONTEND", "bin"), web["bytes_in"]);
    assert_eq!(cell("web", "FRONTEND", "bout"), web["bytes_out"]);
    assert_eq!(cell("web", "FRONTEND", "hrsp_5xx"), web["status"]["5xx"]);
    for upstream in all["upstreams"].as_array().unwrap() {
        let name = upstream["name"].as_str().unwrap();
        assert_eq!(of("upstream", name, "retries_total"), upstream["retries"]);
        assert_eq!(cell(name, "BACKEND", "req_tot"), upstream["requests"]);
        assert_eq!(
            cell(name, "BACKEND", "wredis") + cell(name, "BACKEND", "wretr"),
            upstream["retries"]
        );
        assert_eq!(cell(name, "BACKEND", "bin"), upstream["bytes_in"]);
        for endpoint in upstream["endpoints"].as_array().unwrap() {
            let server = endpoint["name"].as_str().unwrap();
            let series = format!(
                "evenkeel_endpoint_attempts_total{{upstream=\"{name}\",endpoint=\"{server}\"}}"
            );
            assert_eq!(metric(&metrics, &series), endpoint["attempts"], "{series}");
            assert_eq!(cell(name, server, "bin"), endpoint["bytes_out"]);
            assert_eq!(cell(name, server, "bout"), endpoint["bytes_in"]);
        }
    }
}

#[test]
fn all_views_agree_after_a_random_mix() {
    test(|| {
        let seed = fastrand::u64(..);
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mix = Mix::start();
        let mut visitors: Vec<_> = (0..CLIENTS)
            .map(|_| Visitor {
                proxy: &mix.proxy,
                client: None,
                sums: Sums::default(),
            })
            .collect();
        for _ in 0..OPERATIONS {
            let at = random.usize(..CLIENTS);
            visitors[at].operate(&mut random);
        }
        let total = visitors.iter().fold(Sums::default(), |sum, it| Sums {
            requests: sum.requests + it.sums.requests,
            bytes_in: sum.bytes_in + it.sums.bytes_in,
            bytes_out: sum.bytes_out + it.sums.bytes_out,
        });
        until("idle connections are counted", || {
            let figures = figures(&mix.proxy);
            let app = figures["upstreams"]
                .as_array()
                .unwrap()
                .iter()
                .find(|it| it["name"] == "app")
                .unwrap();
            let idle = app["endpoints"].as_array().unwrap().iter();
            idle.zip(&mix.origins)
                .all(|(it, origin)| it["idle"] == origin.stats().open_connections)
        });
        compare(&mix, &total);
        compare_views(&mix);
    });
}
