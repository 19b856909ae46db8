//! The format `httplog` before third-party tools. The same exchanges through HAProxy give the
//! same termination states, and `halog` counts the exchanges correctly. A test fails if the
//! tool is missing.

use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::{STEP, until};
use evenkeel_testkit::process::{Peer, Running};
use evenkeel_testkit::raw::RawStream;
use evenkeel_testkit::{Proxy, RawClient, RawOrigin, TempDir};

use crate::setup::{figures, get, nobody, origin, program, test};

/// An endpoint whose behaviour the request's path selects.
fn moody_origin() -> RawOrigin {
    RawOrigin::start(|_, mut stream| {
        while let Ok(head) = stream.read_head() {
            let path = head.split(' ').nth(1).unwrap_or_default();
            let mood = path.rsplit('/').next().unwrap_or_default();
            if !answer(&mut stream, mood) {
                // Until the other side closes.
                let _ = stream.read_to_end();
                return;
            }
            if mood != "ok" {
                return;
            }
        }
    })
    .unwrap()
}

/// Answers; `false` where it holds the connection without a further byte.
fn answer(stream: &mut RawStream, mood: &str) -> bool {
    let whole = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let part = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome";
    let (text, goes_on) = match mood {
        "ok" => (whole, true),
        "garbage" => ("HTTP/1.1 2x0 what\r\n\r\n", true),
        "close" => ("", true),
        "cut" => (part, true),
        "stall" => (part, false),
        _ => ("", false),
    };
    let _ = stream.send(text);
    goes_on
}

/// A proxy with a log in HAProxy's format.
enum Subject {
    Ours(Box<Proxy>),
    Haproxy {
        _running: Running,
        dir: TempDir,
        log: UnixDatagram,
        lines: Vec<String>,
    },
}

impl Subject {
    fn ours(endpoint: &str, nobody: &str) -> Self {
        let upstream = |name: &str, endpoint: &str, more: &str| {
            format!(
                "[upstream.{name}]\nendpoints = [{endpoint}]\nretries = 0\n\
                 timeouts = {{ connect = '500ms', first_byte = '500ms', idle = '500ms' }}\n{more}\n"
            )
        };
        let mut config = "[server]\nworkers = 1\n\
             [access_log]\npath = '$DIR/access.log'\nformat = 'httplog'\n\
             [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n\
             timeouts = { head = '500ms', body = '500ms' }\n\
             [[route]]\nmatch = { path = '/redirect' }\nredirect = '/elsewhere'\n"
            .to_owned();
        for name in ["refusing", "empty", "queued"] {
            config +=
                &format!("[[route]]\nmatch = {{ path = '/{name}/*' }}\nupstream = '{name}'\n");
        }
        config += "[[route]]\nupstream = 'app'\n";
        let no_hold = "queue = { hold = false }";
        config += &upstream("app", &format!("'{endpoint}'"), no_hold);
        config += &upstream("refusing", &format!("'{nobody}'"), no_hold);
        config += &upstream("empty", "", no_hold);
        let one = format!("{{ address = '{endpoint}', max_in_flight = 1 }}");
        config += &upstream("queued", &one, "queue = { timeout = '400ms' }")
            .replace("first_byte = '500ms'", "first_byte = '20s'");
        Subject::Ours(Box::new(Proxy::start(program(), &config).unwrap()))
    }

    fn haproxy(endpoint: &str, nobody: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let at = dir.path().display();
        let log = UnixDatagram::bind(dir.join("log.sock")).unwrap();
        log.set_nonblocking(true).unwrap();
        let config = format!(
            "global\n  log {at}/log.sock local0\n\
             defaults\n  mode http\n  option httplog\n  option dontlognull\n  log global\n  retries 0\n  option abortonclose\n\
             \x20 timeout client 500ms\n  timeout http-request 500ms\n  timeout connect 500ms\n\
             \x20 timeout server 500ms\n  timeout queue 400ms\n\
             frontend web\n  bind unix@{at}/web.sock\n\
             \x20 http-request redirect location /elsewhere if {{ path /redirect }}\n\
             \x20 use_backend refusing if {{ path_beg /refusing/ }}\n\
             \x20 use_backend empty if {{ path_beg /empty/ }}\n\
             \x20 use_backend queued if {{ path_beg /queued/ }}\n\
             \x20 default_backend app\n\
             backend app\n  server one {endpoint}\n\
             backend refusing\n  server one {nobody}\n\
             backend empty\n\
             backend queued\n  timeout server 20s\n  server one {endpoint} maxconn 1\n"
        );
        let socket = dir.join("web.sock");
        let running = Running::start_peer(Peer::Haproxy, &dir, &config, &socket).unwrap();
        Subject::Haproxy {
            _running: running,
            dir,
            log,
            lines: Vec::new(),
        }
    }

    fn client(&self) -> RawClient {
        match self {
            Subject::Ours(proxy) => proxy.client(),
            Subject::Haproxy { dir, .. } => RawClient::connect_unix(dir.join("web.sock")).unwrap(),
        }
    }

    /// The lines about requests so far, without what syslog puts before them.
    fn lines(&mut self) -> Vec<String> {
        match self {
            Subject::Ours(proxy) => proxy.access_log(),
            Subject::Haproxy { log, lines, .. } => {
                let mut buffer = [0; 4096];
                while let Ok(len) = log.recv(&mut buffer) {
                    let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
                    let line = text.trim_end().split_once("]: ").unwrap().1;
                    if line.contains('"') {
                        lines.push(line.to_owned());
                    }
                }
                lines.clone()
            }
        }
    }

    /// The line of the request that `ask` makes, and no other.
    fn line_of(&mut self, what: &str, ask: impl FnOnce(&Subject)) -> String {
        let before = self.lines();
        ask(self);
        let mut line = None;
        until(&format!("{what}: a line"), || {
            line = self.lines().get(before.len()).cloned();
            line.is_some()
        });
        line.unwrap()
    }
}

/// The fields of a line, with the request's as the last.
fn fields(line: &str) -> Vec<&str> {
    let (fields, request) = line.split_once('"').expect(line);
    fields
        .split_whitespace()
        .chain([request.trim_end_matches('"')])
        .collect()
}

fn ask_and_read(path: &str) -> impl Fn(&Subject) {
    move |subject| {
        let mut client = subject.client();
        client.send(get(path)).unwrap();
        // Some of them are cut off.
        let _ = client.read_response("GET");
    }
}

fn send_and_leave(request: String) -> impl Fn(&Subject) {
    move |subject| {
        let mut client = subject.client();
        client.send(&request).unwrap();
        pause();
    }
}

fn pause() {
    let begun = Instant::now();
    until("a moment has passed", || {
        begun.elapsed() > Duration::from_millis(200)
    });
}

/// With another request in the only slot of the endpoint.
fn behind_another(ask: impl Fn(&Subject)) -> impl Fn(&Subject) {
    move |subject| {
        let mut holder = subject.client();
        holder.send(get("/queued/hold")).unwrap();
        pause();
        ask(subject);
        // The line of the holder comes after that of the other one.
        pause();
    }
}

type Ask = Box<dyn Fn(&Subject)>;

#[test]
fn termination_states_are_those_of_haproxy() {
    test(|| {
        let origin = moody_origin();
        let endpoint = origin.address.to_string();
        let nobody = nobody();
        let mut subjects = [
            Subject::ours(&endpoint, &nobody),
            Subject::haproxy(&endpoint, &nobody),
        ];
        let cases: Vec<(&str, &str, Ask)> = vec![
            ("an answer", "----", Box::new(ask_and_read("/ok"))),
            ("a redirect", "LR--", Box::new(ask_and_read("/redirect"))),
            (
                "a bad request",
                "PR--",
                Box::new(|subject| {
                    let mut client = subject.client();
                    client.send("GARBAGE\r\n\r\n").unwrap();
                    let _ = client.read_response("GET");
                }),
            ),
            (
                "half a head",
                "CR--",
                Box::new(send_and_leave("GET / HT".into())),
            ),
            (
                "a head too late",
                "cR--",
                Box::new(|subject| {
                    let mut client = subject.client();
                    client.send("GET / HT").unwrap();
                    let _ = client.read_response("GET");
                }),
            ),
            (
                "no connection",
                "SC--",
                Box::new(ask_and_read("/refusing/ok")),
            ),
            ("no endpoint", "SC--", Box::new(ask_and_read("/empty/ok"))),
            ("no answer", "sH--", Box::new(ask_and_read("/hold"))),
            ("a close", "SH--", Box::new(ask_and_read("/close"))),
            ("garbage", "PH--", Box::new(ask_and_read("/garbage"))),
            ("an answer cut", "SD--", Box::new(ask_and_read("/cut"))),
            (
                "an answer that stops",
                "sD--",
                Box::new(ask_and_read("/stall")),
            ),
            (
                "a client that leaves early",
                "CH--",
                Box::new(send_and_leave(get("/hold"))),
            ),
            (
                "a client that leaves late",
                "CD--",
                Box::new(send_and_leave(get("/stall"))),
            ),
            (
                "too long in the queue",
                "sQ--",
                Box::new(behind_another(ask_and_read("/queued/ok"))),
            ),
            (
                "a client that leaves the queue",
                "CQ--",
                Box::new(behind_another(send_and_leave(get("/queued/ok")))),
            ),
        ];
        for (what, state, ask) in &cases {
            let lines = subjects.each_mut().map(|it| it.line_of(what, ask));
            eprintln!("{what}:\n  {}\n  {}", lines[0], lines[1]);
            let states = lines.each_ref().map(|line| fields(line)[9].to_owned());
            assert_eq!(states, [*state, *state], "{what}: {lines:#?}");
            let counts = lines.each_ref().map(|line| fields(line).len());
            assert_eq!(counts[0], counts[1], "{what}: {lines:#?}");
            // Which phases were reached.
            let reached = lines.each_ref().map(|line| {
                let times = fields(line)[4].split('/').map(|time| time != "-1");
                times.collect::<Vec<_>>()
            });
            assert_eq!(reached[0], reached[1], "{what}: {lines:#?}");
            // The place in the queue, be it the server's or the backend's.
            let places = lines.each_ref().map(|line| {
                let places = fields(line)[11].split('/');
                places.map(|it| it.parse::<u32>().unwrap()).sum::<u32>()
            });
            assert_eq!(places[0], places[1], "{what}: {lines:#?}");
        }
    });
}

/// The output of `halog` for a log without prefixes before its lines.
fn halog(log: &Path, args: &[&str]) -> Vec<String> {
    let mut command = Command::new("halog");
    let file = std::fs::File::open(log).unwrap();
    command.args(["-q", "-s", "-4"]).args(args);
    let output = command.stdin(Stdio::from(file)).output();
    let output = output.expect("halog, of the Debian package haproxy");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Counts by word, from lines such as `200 17`.
fn counts(lines: &[String]) -> BTreeMap<String, u64> {
    let pair = |line: &String| {
        let (word, count) = line.split_once(' ').unwrap();
        (word.to_owned(), count.parse().unwrap())
    };
    lines.iter().map(pair).collect()
}

/// A client's request, and its expected outcome.
struct Wish {
    path: &'static str,
    status: &'static str,
    state: &'static str,
    /// The upstream, if the exchange surely reaches one endpoint.
    upstream: Option<&'static str>,
}

const WISHES: [Wish; 8] = [
    Wish {
        path: "/ping",
        status: "200",
        state: "--",
        upstream: Some("app"),
    },
    Wish {
        path: "/1000?x=1",
        status: "200",
        state: "--",
        upstream: Some("app"),
    },
    Wish {
        path: "/status/404",
        status: "404",
        state: "--",
        upstream: Some("app"),
    },
    Wish {
        path: "/status/503",
        status: "503",
        state: "--",
        upstream: Some("app"),
    },
    Wish {
        path: "/nowhere",
        status: "404",
        state: "LR",
        upstream: None,
    },
    Wish {
        path: "/garbage",
        status: "502",
        state: "PH",
        upstream: Some("garbage"),
    },
    Wish {
        path: "/empty",
        status: "503",
        state: "SC",
        upstream: None,
    },
    Wish {
        path: "/slow/60000",
        status: "-1",
        state: "CH",
        upstream: None,
    },
];

#[test]
fn halog_counts_what_was_sent() {
    test(|| {
        let origin = origin();
        let (app, nobody) = (origin.address.to_string(), nobody());
        let garbled = RawOrigin::answering("what\r\n\r\n").unwrap();
        let garbage = garbled.address.to_string();
        let config = format!(
            "[server]\nworkers = 2\n[access_log]\npath = '$DIR/access.log'\nformat = 'httplog'\n\
             [status]\nbind = '127.0.0.1:0'\n\
             [[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n\
             [[route]]\nmatch = {{ path = ['/ping', '/1000', '/status/*', '/slow/*'] }}\nupstream = 'app'\n\
             [[route]]\nmatch = {{ path = '/garbage' }}\nupstream = 'garbage'\n\
             [[route]]\nmatch = {{ path = '/empty' }}\nupstream = 'empty'\n\
             [[route]]\nmatch = {{ path = '/retried' }}\nupstream = 'retried'\n\
             [upstream.app]\nendpoints = ['{app}']\nguard = false\n\
             [upstream.garbage]\nendpoints = ['{garbage}']\nguard = false\n\
             [upstream.empty]\nendpoints = []\nqueue = {{ hold = false }}\n\
             [upstream.retried]\nendpoints = ['{nobody}', '{app}']\nbalance = 'first'\nretries = 1\n"
        );
        let mut proxy = Proxy::start(program(), &config).unwrap();
        let mut random = fastrand::Rng::with_seed(7);
        let mut status = BTreeMap::<String, u64>::new();
        let mut states = BTreeMap::<String, u64>::new();
        let mut servers = BTreeMap::<String, u64>::new();
        let mut paths = BTreeMap::<String, u64>::new();
        let mut note = |path: &str, code: &str, state: &str, server: String| {
            *status.entry(code.to_owned()).or_default() += 1;
            *states.entry(state.to_owned()).or_default() += 1;
            *servers.entry(server).or_default() += 1;
            let path = path.split('?').next().unwrap_or_default();
            *paths.entry(path.to_owned()).or_default() += 1;
        };
        let server = |wish: &Wish| match (wish.upstream, wish.path) {
            (Some("app"), _) | (_, "/slow/60000") => format!("app/{app}"),
            (Some(upstream), _) => format!("{upstream}/{garbage}"),
            (None, "/empty") => "empty/<NOSRV>".to_owned(),
            (None, _) => "web/<NOSRV>".to_owned(),
        };
        let mut client = proxy.client();
        let in_flight = || origin.stats().in_flight;
        for _ in 0..300 {
            let wish = match random.usize(..30) {
                0 => &WISHES[7],
                _ => &WISHES[random.usize(..7)],
            };
            if wish.status == "-1" {
                let mut leaver = proxy.client();
                leaver.send(get(wish.path)).unwrap();
                until("the request is in flight", || in_flight() == 1);
                // A client that leaves at once may only have closed its sending side.
                pause();
                drop(leaver);
                until("it was given up", || in_flight() == 0);
            } else {
                let response = client.get(wish.path).unwrap();
                assert_eq!(response.status.to_string(), wish.status, "{}", wish.path);
            }
            note(wish.path, wish.status, wish.state, server(wish));
        }
        // The first endpoint refuses, and the next one answers.
        let retried = client.get("/retried").unwrap();
        assert_eq!(retried.status, 404);
        note("/retried", "404", "--", format!("retried/{app}"));
        let mut bad = proxy.client();
        bad.send("GARBAGE\r\n\r\n").unwrap();
        assert_eq!(bad.read_response("GET").unwrap().status, 400);
        note("<BADREQ>", "400", "PR", "web/<NOSRV>".into());
        let total: u64 = status.values().sum();
        until("every request is logged", || {
            proxy.access_log().len() as u64 == total
        });

        let log = proxy.path("access.log");
        assert_eq!(halog(&log, &["-H", "-c"]), [total.to_string()]);
        assert_eq!(counts(&halog(&log, &["-st"])), status);
        assert_eq!(counts(&halog(&log, &["-tc"])), states);
        let by_server: BTreeMap<String, u64> = halog(&log, &["-srv"])[1..]
            .iter()
            .map(|line| {
                let fields: Vec<&str> = line.split(' ').collect();
                (fields[0].to_owned(), fields[7].parse().unwrap())
            })
            .collect();
        assert_eq!(by_server, servers);
        let by_path: BTreeMap<String, u64> = halog(&log, &["-u"])[1..]
            .iter()
            .map(|line| {
                let fields: Vec<&str> = line.split(' ').collect();
                (
                    fields[8].trim_matches('"').to_owned(),
                    fields[0].parse().unwrap(),
                )
            })
            .collect();
        assert_eq!(by_path, paths);
        let lines = proxy.access_log();
        let retried = lines
            .iter()
            .find(|line| line.contains("/retried "))
            .unwrap();
        assert!(fields(retried)[10].ends_with("/+1"), "{retried}");

        // The counters say the same as the log.
        let figures = figures(&proxy);
        let listener = &figures["listeners"][0];
        assert_eq!(listener["requests"], total);
        for class in ["2xx", "4xx", "5xx"] {
            let of_class = status.iter().filter(|(code, _)| code[..1] == class[..1]);
            let count: u64 = of_class.map(|(_, count)| count).sum();
            assert_eq!(listener["status"][class], count, "{class}");
        }
        let errors = halog(&log, &["-e", "-c"])[0].parse::<u64>().unwrap();
        // For halog, who left without an answer is an error as well.
        assert_eq!(listener["errors"], errors - status["-1"]);
        let bytes = lines
            .iter()
            .map(|line| fields(line)[6].parse::<u64>().unwrap());
        assert_eq!(listener["bytes_out"], bytes.sum::<u64>());
        assert_eq!(figures["log_lines_dropped"], 0);
        assert_eq!(figures["log_lines_lost"], 0);

        // The prefix of a syslog daemon is what halog expects by default.
        let prefixed: String = lines
            .iter()
            .map(|line| format!("Nov 21 17:12:58 host evenkeel[7]: {line}\n"))
            .collect();
        std::fs::write(&log, prefixed).unwrap();
        let file = std::fs::File::open(&log).unwrap();
        let output = Command::new("halog")
            .args(["-H", "-c"])
            .stdin(file)
            .output();
        let output = String::from_utf8(output.unwrap().stdout).unwrap();
        assert_eq!(output.trim(), total.to_string());
        proxy.terminate();
        assert!(proxy.wait(STEP).expect("it ends").success());
    });
}
