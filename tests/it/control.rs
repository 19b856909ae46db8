//! The control socket and `evenkeel ctl`: an operator's views and commands, and the limits of a
//! client of the socket.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::process::run;
use evenkeel_testkit::{OriginHandle, Proxy, TempDir};
use serde_json::Value;

use crate::in_flight::{limited, occupy};
use crate::setup::{Site, get, origin, program, test};
use crate::top::Terminal;
use evenkeel_testkit::process::python;

/// An origin and the program before it, with a control socket.
fn site(upstream: &str) -> (OriginHandle, Proxy) {
    let origin = origin();
    let proxy = site_of(upstream, &[origin.address.to_string()]);
    (origin, proxy)
}

pub fn site_of(upstream: &str, endpoints: &[String]) -> Proxy {
    let site = Site {
        server: "control = \"$DIR/control.sock\"",
        upstream,
        ..Site::default()
    };
    site.start(endpoints)
}

fn connect(proxy: &Proxy) -> UnixStream {
    let stream = UnixStream::connect(proxy.path("control.sock")).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

/// The answer of the socket to these bytes, until it closes.
fn answer_to(proxy: &Proxy, bytes: &[u8]) -> String {
    let mut stream = connect(proxy);
    stream.write_all(bytes).unwrap();
    read_all(&mut stream)
}

fn read_all(stream: &mut UnixStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The answer of the socket to a command.
pub fn ask(proxy: &Proxy, command: &str) -> String {
    answer_to(proxy, format!("{command}\n").as_bytes())
}

pub fn json(proxy: &Proxy, command: &str) -> Value {
    let answer = ask(proxy, &format!("json {command}"));
    assert_eq!(answer.lines().count(), 1, "{answer:?}");
    serde_json::from_str(&answer).unwrap()
}

/// `evenkeel ctl` with the socket of this program.
pub fn ctl(proxy: &Proxy, args: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.arg("ctl").arg("--socket");
    command.arg(proxy.path("control.sock")).args(args);
    run(command, Duration::from_secs(20)).unwrap()
}

pub fn texts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

pub fn state_of(proxy: &Proxy, endpoint: usize) -> String {
    let upstreams = json(proxy, "show upstreams");
    let endpoint = &upstreams[0]["endpoints"][endpoint];
    endpoint["state"].as_str().unwrap().to_owned()
}

#[test]
fn only_user_and_group_may_connect_and_the_socket_goes_with_the_program() {
    test(|| {
        let (_origin, mut proxy) = site("");
        let path = proxy.path("control.sock");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660, "{mode:o}");
        proxy.terminate();
        assert!(proxy.wait(Duration::from_secs(10)).unwrap().success());
        assert!(!path.exists());
    });
}

#[test]
fn sessions_show_who_does_what() {
    test(|| {
        let origin = origin();
        let endpoint = origin.address.to_string();
        let proxy = site_of("", &[limited(&endpoint, 1)]);
        let mut idle = proxy.client();
        assert_eq!(idle.get("/ping").unwrap().status, 200);
        let mut first = occupy(&proxy, "/slow/3000?q='x'");
        until("it is in flight", || origin.stats().in_flight == 1);
        let _second = occupy(&proxy, "/queued");
        let mut half = proxy.client();
        half.send("GET / HT").unwrap();
        let mut sessions = Value::Null;
        until("all are there", || {
            sessions = json(&proxy, "show sessions");
            let phases: Vec<_> = sessions["sessions"].as_array().unwrap().iter().collect();
            let mut phases: Vec<_> = phases
                .iter()
                .map(|it| it["exchange"]["phase"].as_str())
                .collect();
            phases.sort_unstable();
            phases == [None, Some("head"), Some("queue"), Some("wait")]
        });
        assert_eq!(sessions["open"], 4);
        assert_eq!(sessions["left_out"], 0);
        let of_phase = |phase: &str| {
            let all = sessions["sessions"].as_array().unwrap();
            let found = all.iter().find(|it| it["exchange"]["phase"] == phase);
            found.unwrap().clone()
        };
        let wait = of_phase("wait");
        assert_eq!(wait["listener"], "web");
        assert_eq!(wait["requests"], 1);
        let client = wait["client"].as_str().unwrap();
        assert!(
            client.starts_with("127.0.0.1:") && !client.ends_with(":0"),
            "{client}"
        );
        let exchange = &wait["exchange"];
        assert_eq!(exchange["upstream"], "app");
        assert_eq!(exchange["endpoint"], endpoint.as_str());
        assert_eq!(exchange["attempts"], 1);
        let request = exchange["request"].as_str().unwrap();
        assert!(request.starts_with("GET /slow/3000?"), "{request}");
        assert!(exchange["bytes_in"].as_u64().unwrap() > 20);
        let queued = of_phase("queue");
        assert_eq!(queued["exchange"]["endpoint"], Value::Null);
        // The same as text; exchanges in progress come first.
        let text = ask(&proxy, "show sessions 3");
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("LISTENER"), "{text}");
        assert!(
            lines[1].contains("wait") && lines[1].contains("GET /slow"),
            "{text}"
        );
        assert!(text.contains("4 open, 1 of them not shown"), "{text}");
        assert!(!text.contains("idle"), "{text}");
        let queue = json(&proxy, "show queue");
        assert_eq!(queue[0]["waiting"], 1);
        assert_eq!(queue[0]["by"][0]["priority"], 0);
        assert!(ask(&proxy, "show queue").contains("1/1000"));
        assert_eq!(first.read_response("GET").unwrap().status, 200);
        until("the queue is empty", || {
            json(&proxy, "show queue")[0]["waiting"] == 0
        });
    });
}

#[test]
fn a_transfer_shows_its_bytes_while_it_goes_on() {
    test(|| {
        let (_origin, proxy) = site("");
        let mut client = proxy.client();
        client
            .send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n")
            .unwrap();
        client.send(vec![b'x'; 50_000]).unwrap();
        until("half of it is counted", || {
            let exchange = json(&proxy, "show sessions")["sessions"][0]["exchange"].clone();
            exchange["bytes_in"]
                .as_u64()
                .is_some_and(|bytes| (50_000..51_000).contains(&bytes))
        });
        client.send(vec![b'x'; 50_000]).unwrap();
        assert_eq!(client.read_response("POST").unwrap().body.len(), 100_000);
        until("it is idle", || {
            let sessions = json(&proxy, "show sessions");
            sessions["sessions"][0]["exchange"] == Value::Null
        });
    });
}

#[test]
fn an_operator_drains_stops_and_reweights() {
    test(|| {
        let origins = [origin(), origin()];
        let names = origins.each_ref().map(|it| it.address.to_string());
        let proxy = site_of("balance = \"round-robin\"", &names);
        let served = || origins.each_ref().map(|it| it.stats().requests);
        let mut client = proxy.client();
        let mut send = |count: usize| {
            for _ in 0..count {
                assert_eq!(client.get("/ping").unwrap().status, 200);
            }
        };
        let drained = ask(&proxy, &format!("drain app/{}", names[0]));
        let expected = format!(
            "endpoint app/{} is drained: it gets no new requests\n\n",
            names[0]
        );
        assert_eq!(drained, expected);
        assert_eq!(state_of(&proxy, 0), "draining");
        send(10);
        assert_eq!(served(), [0, 10]);
        // Both, in one line with the way back.
        let stopped = ask(&proxy, "stop app/*");
        let warning = "\nwarning: no endpoint of `app` takes requests now\n\n";
        assert!(stopped.ends_with(warning), "{stopped}");
        assert_eq!(state_of(&proxy, 0), "stopped");
        assert_eq!(state_of(&proxy, 1), "stopped");
        let ready = json(&proxy, "ready app/*");
        assert_eq!(ready["done"].as_array().unwrap().len(), 2);
        ask(&proxy, &format!("weight app/{} 3", names[0]));
        assert_eq!(
            json(&proxy, "show upstreams app")["endpoints"][0]["weight"],
            3
        );
        let before = served();
        send(40);
        let after = served();
        assert_eq!([after[0] - before[0], after[1] - before[1]], [30, 10]);
        let uid = rustix::process::getuid().as_raw();
        let by = format!("is drained by the operator, over the control socket as uid {uid} (");
        assert!(proxy.stderr().contains(&by), "{}", proxy.stderr());
    });
}

#[test]
fn what_is_wrong_is_said_and_changes_nothing() {
    test(|| {
        let (origin, proxy) = site("");
        let name = origin.address.to_string();
        for (command, text) in [
            ("drain", "drain needs UPSTREAM/ENDPOINT"),
            ("drain app", "did you mean `app/*`?"),
            ("drain appp", "a slash is missing"),
            (
                &format!("drain {name}"),
                &format!("did you mean `app/{name}`?"),
            ),
            ("drain ap/x", "there is no upstream `ap`; there is `app`"),
            ("drain app/x", "upstream `app` has no endpoint `x`"),
            ("drain app/* app/x", "upstream `app` has no endpoint `x`"),
            ("weight app/* -1", "`-1` is not a valid weight"),
            ("weight app/* 1000001", "`1000001` is not a valid weight"),
            (
                "weight app/*",
                "weight needs UPSTREAM/ENDPOINT and a number",
            ),
            (
                "set log-level loud",
                "`loud` is not a level: write error, warn",
            ),
            ("show sessions 0", "`0` is not a valid number of rows"),
            ("show upstreams x", "there is no upstream `x`"),
            ("rates 61", "`61` is not a valid time"),
            ("rates nan", "`nan` is not a valid time"),
            ("rates -1", "`-1` is not a valid time"),
            (
                "rates 0.05",
                "`0.05` is not a valid time: write 0.1 to 60 seconds",
            ),
            ("drian app/*", "commands are show, rates, drain, ready"),
            ("show frobs", "`show` needs upstreams, listeners"),
            (
                "reboot\x1b[2J",
                "unknown command `reboot\\u{1b}[2J`: try `help`",
            ),
        ] {
            let answer = ask(&proxy, command);
            assert!(
                answer.starts_with("error: ") && answer.contains(text),
                "{command}: {answer}"
            );
            let error = json(&proxy, command)["error"].clone();
            assert!(error.as_str().unwrap().contains(text), "{command}: {error}");
        }
        assert!(answer_to(&proxy, b"\xff\xfe\x00\n").starts_with("error: unknown command"));
        assert_eq!(state_of(&proxy, 0), "up");
        assert!(
            ask(&proxy, "").contains("show upstreams"),
            "a line of nothing gets the help"
        );
        assert!(ask(&proxy, "show upstreams").contains(&name));
    });
}

#[test]
fn lines_and_connections_are_bounded() {
    test(|| {
        let (_origin, proxy) = site("");
        let too_long = answer_to(&proxy, &vec![b'a'; 300_000]);
        assert!(too_long.contains("longer than 16384 bytes"), "{too_long}");
        let silent: Vec<_> = (0..32).map(|_| connect(&proxy)).collect();
        let refused = ask(&proxy, "version");
        assert!(refused.contains("32 are already open"), "{refused}");
        drop(silent);
        until("there is room again", || {
            ask(&proxy, "version").starts_with("evenkeel ")
        });
        // A client that leaves before its answer keeps no place either.
        let waiting: Vec<_> = (0..32)
            .map(|_| {
                let mut stream = connect(&proxy);
                stream.write_all(b"rates 60\n").unwrap();
                stream
            })
            .collect();
        assert!(ask(&proxy, "version").contains("already open"));
        drop(waiting);
        until("there is room for some after them", || {
            let _some = [(); 4].map(|()| connect(&proxy));
            ask(&proxy, "version").starts_with("evenkeel ")
        });
        // A client that asks for much and reads nothing holds up no other client.
        let mut deaf = connect(&proxy);
        deaf.write_all("help;".repeat(2_000).as_bytes()).unwrap();
        deaf.write_all(b"\n").unwrap();
        let begun = Instant::now();
        assert!(ask(&proxy, "version").starts_with("evenkeel "));
        assert!(begun.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn a_client_that_says_nothing_is_told_so() {
    test(|| {
        let (_origin, proxy) = site("");
        let begun = Instant::now();
        let answer = read_all(&mut connect(&proxy));
        assert!(
            answer.contains("no command arrived within 10 s"),
            "{answer}"
        );
        assert!(begun.elapsed() >= Duration::from_secs(9));
    });
}

#[test]
fn several_commands_and_a_prompt() {
    test(|| {
        let (_origin, proxy) = site("");
        let both = ask(&proxy, "version; get weight app/x ;json show queue");
        let parts: Vec<_> = both.split("\n\n").collect();
        assert!(parts[0].starts_with("evenkeel "), "{both}");
        assert_eq!(parts[1], "No such server.");
        assert!(parts[2].starts_with("[{"), "{both}");
        // The last command needs no newline where nothing follows.
        let mut stream = connect(&proxy);
        stream.write_all(b"version").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(read_all(&mut stream).starts_with("evenkeel "));
        let mut stream = connect(&proxy);
        stream
            .write_all(b"prompt\nversion\nversion\nquit\n")
            .unwrap();
        let answers = read_all(&mut stream);
        assert_eq!(answers.matches("evenkeel ").count(), 2, "{answers}");
        assert!(answers.starts_with("> "), "{answers}");
    });
}

#[test]
fn errors_show_what_failed_and_what_was_not_understood() {
    test(|| {
        let (origin, proxy) = site("retries = 0\nqueue = { hold = false }");
        assert!(ask(&proxy, "show errors").starts_with("no exchange failed"));
        let mut client = proxy.client();
        client
            .send("GET / HTTP/1.1\r\nHo\x01st: a\r\n\r\n")
            .unwrap();
        assert_eq!(client.read_response("GET").unwrap().status, 400);
        origin.shutdown();
        assert_eq!(proxy.client().get("/gone").unwrap().status, 502);
        let mut errors = Value::Null;
        until("both are kept", || {
            errors = json(&proxy, "show errors");
            errors.as_array().unwrap().len() == 2
        });
        let [latest, first] = [&errors[0], &errors[1]];
        assert_eq!(latest["end"], "connect-failed");
        assert_eq!(latest["status"], 502);
        assert_eq!(latest["request"], "GET /gone");
        assert_eq!(latest["upstream"], "app");
        assert!(latest["total_us"].as_u64().is_some());
        assert_eq!(first["end"], "field-name");
        assert_eq!(first["request"], Value::Null);
        let received = first["received"].as_str().unwrap();
        assert_eq!(received, r"GET / HTTP/1.1\r\nHo\x01st: a\r\n\r\n");
        let text = ask(&proxy, "show errors");
        assert!(
            text.contains("field-name: a field name is malformed"),
            "{text}"
        );
        assert!(text.contains("connect-failed: no connection"), "{text}");
        assert_eq!(json(&proxy, "show errors 1").as_array().unwrap().len(), 1);
        for _ in 0..100 {
            proxy.client().ask(get("/\u{1}")).unwrap();
        }
        until("as many as are kept", || {
            json(&proxy, "show errors").as_array().unwrap().len() == 64
        });
    });
}

#[test]
fn rates_are_of_the_time_asked_for() {
    test(|| {
        let (_origin, proxy) = site("");
        let mut stream = connect(&proxy);
        stream.write_all(b"json rates 2\n").unwrap();
        // Commands run one after the other: at this answer the time has begun.
        ask(&proxy, "version");
        ask(&proxy, "version");
        let mut client = proxy.client();
        for _ in 0..50 {
            assert_eq!(client.get("/ping").unwrap().status, 200);
        }
        let rates: Value = serde_json::from_str(&read_all(&mut stream)).unwrap();
        assert!(
            (1_900..4_000).contains(&rates["window_ms"].as_u64().unwrap()),
            "{rates}"
        );
        let requests = |it: &Value| {
            let seconds = rates["window_ms"].as_f64().unwrap() / 1e3;
            (it["requests_per_s"].as_f64().unwrap() * seconds).round()
        };
        for of in [
            &rates["listeners"][0],
            &rates["routes"][0],
            &rates["upstreams"][0],
            &rates["upstreams"][0]["endpoints"][0],
        ] {
            assert_eq!(requests(of), 50.0, "{of}");
            assert!(of["p50_us"].as_f64().unwrap() <= of["p99_us"].as_f64().unwrap());
        }
        assert!(ask(&proxy, "rates 0.1").contains("upstream app"));
    });
}

#[test]
fn the_event_log_tells_as_much_as_is_asked_for() {
    test(|| {
        let (_origin, proxy) = site("");
        ask(&proxy, "drain app/*");
        until("it is logged", || {
            proxy.stderr().contains("drained by the operator")
        });
        ask(&proxy, "set log-level error");
        ask(&proxy, "ready app/*");
        ask(&proxy, "set log-level info");
        ask(&proxy, "stop app/*");
        until("it is logged", || {
            proxy.stderr().contains("stopped by the operator")
        });
        assert!(!proxy.stderr().contains("made ready by the operator"));
    });
}

#[test]
fn files_and_disks_are_shown() {
    test(|| {
        let (_origin, proxy) = site("");
        assert_eq!(ask(&proxy, "show files"), "no route serves files\n\n");
        let config = "[server]\nworkers = 1\ncontrol = \"$DIR/control.sock\"\n\
             [[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n\
             [[route]]\nname = \"images\"\nfiles = { root = \"$DIR\" }\n";
        let proxy = Proxy::start(program(), config).unwrap();
        let mut client = proxy.client();
        for _ in 0..3 {
            client.send(get("/evenkeel.toml")).unwrap();
            assert_eq!(client.read_response("GET").unwrap().status, 200);
        }
        let known = || {
            let shown = json(&proxy, "show files");
            let count = |word: &str| shown["routes"][0][word].as_u64().unwrap();
            assert_eq!(shown["routes"][0]["route"], "images");
            assert!(shown["disks"][0]["reads"].is_u64());
            (count("hot") + count("cold"), count("refused"))
        };
        until("they are counted", || known() == (3, 0));
        let (code, shown, _) = texts(&ctl(&proxy, &["show", "files"]));
        assert_eq!(code, Some(0));
        let root = proxy.path("").display().to_string();
        let root = root.trim_end_matches('/');
        for title in ["ROUTE ", "DISK "] {
            assert!(shown.lines().any(|it| it.starts_with(title)), "{shown}");
        }
        assert!(shown.contains(&format!("images  {root}")), "{shown}");
    });
}

/// Programs read an error where they read the answer.
#[test]
fn an_error_is_json_where_nobody_was_asked() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let bare = "[[listener]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n";
        let no_socket = write("no-socket.toml", bare);
        let mistaken = write("mistaken.toml", "listner = 1\n");
        let missing = dir.join("missing.toml").display().to_string();
        let nobody = dir.join("nobody.sock").display().to_string();
        for (option, value, expected) in [
            ("--config", &no_socket, "has no control socket"),
            ("--config", &mistaken, "mistakes in the configuration"),
            ("--config", &missing, "does not exist"),
            ("--socket", &nobody, "no such socket"),
        ] {
            let mut command = Command::new(program());
            command.args(["ctl", option, value, "--json", "show", "info"]);
            let (code, shown, said) = texts(&run(command, Duration::from_secs(10)).unwrap());
            assert_eq!(code, Some(1), "{shown}{said}");
            let answer: Value = serde_json::from_str(&shown).unwrap();
            let error = answer["error"].as_str().unwrap();
            assert!(error.contains(expected), "{error}");
            assert!(!said.contains(expected), "{said}");
        }
    });
}

#[test]
fn ctl_shows_and_changes() {
    test(|| {
        let (origin, proxy) = site("");
        let name = format!("app/{}", origin.address);
        let (code, shown, _) = texts(&ctl(&proxy, &["show", "upstreams"]));
        assert_eq!(code, Some(0));
        assert!(shown.contains("upstream app: balance adaptive"), "{shown}");
        assert!(!shown.ends_with("\n\n"), "{shown:?}");
        let (code, shown, _) = texts(&ctl(&proxy, &["drain", &name, "--json"]));
        assert_eq!(code, Some(0));
        let done: Value = serde_json::from_str(&shown).unwrap();
        assert!(done["done"][0].as_str().unwrap().contains("is drained"));
        assert_eq!(
            done["warnings"][0],
            "no endpoint of `app` takes requests now"
        );
        let (code, shown, said) = texts(&ctl(&proxy, &["stop", "app/*"]));
        assert_eq!(
            (code, shown, said.as_str()),
            (
                Some(0),
                format!("endpoint {name} is stopped\n"),
                "evenkeel: warning: no endpoint of `app` takes requests now\n"
            )
        );
        let (code, shown, said) = texts(&ctl(&proxy, &["ready", "app/nobody"]));
        assert_eq!((code, shown.as_str()), (Some(1), ""));
        assert!(
            said.starts_with("evenkeel: upstream `app` has no endpoint `nobody`"),
            "{said}"
        );
        let (code, shown, _) = texts(&ctl(&proxy, &["--json", "ready", "app/nobody"]));
        assert_eq!(code, Some(1));
        assert!(shown.starts_with("{\"error\":"), "{shown}");
        // As in HAProxy: a change prints nothing, a refusal does.
        let args = ["set", "server", &name, "state", "ready"];
        assert_eq!(
            texts(&ctl(&proxy, &args)),
            (Some(0), String::new(), String::new())
        );
        let args = ["set", "server", "app/x;y z", "weight", "50%"];
        let (code, _, said) = texts(&ctl(&proxy, &args));
        assert_eq!(
            (code, said.as_str()),
            (Some(1), "evenkeel: No such server.\n")
        );
        let (code, shown, _) = texts(&ctl(&proxy, &["get", "weight", &name]));
        assert_eq!((code, shown.as_str()), (Some(0), "1 (initial 1)\n"));
        let (code, shown, said) = texts(&ctl(&proxy, &["get", "weight", "app/nobody"]));
        assert_eq!(
            (code, shown.as_str(), said.as_str()),
            (Some(1), "", "evenkeel: No such server.\n")
        );
        let state = || {
            let (code, shown, _) = texts(&ctl(&proxy, &["show", "servers", "state", "app"]));
            let server: Vec<_> = shown.lines().nth(2).unwrap().split(' ').collect();
            // The state that the operator set, and the weight.
            (code, server[6].to_owned(), server[7].to_owned())
        };
        let known = |admin: &str, weight: &str| (Some(0), admin.to_owned(), weight.to_owned());
        assert_eq!(state(), known("0", "1"));
        for (args, expected) in [
            (&["disable", "server", &name][..], known("1", "1")),
            (&["enable", "server", &name], known("0", "1")),
            (&["set", "weight", &name, "7"], known("0", "7")),
        ] {
            let (code, shown, said) = texts(&ctl(&proxy, args));
            assert_eq!((code, shown.as_str()), (Some(0), ""), "{args:?}");
            let is_last = args[0] == "disable";
            assert_eq!(said.contains("no endpoint of `app`"), is_last, "{said}");
            assert_eq!(state(), expected, "{args:?}");
        }
        let (code, _, said) = texts(&ctl(&proxy, &["enable", "server", "app/nobody"]));
        assert_eq!(
            (code, said.as_str()),
            (Some(1), "evenkeel: No such server.\n")
        );
        let (code, shown, said) = texts(&ctl(&proxy, &["show", "servers", "state", "none"]));
        assert_eq!(
            (code, shown.as_str(), said.as_str()),
            (Some(1), "", "evenkeel: Can't find backend.\n")
        );
        assert_eq!(ctl(&proxy, &["frobnicate"]).status.code(), Some(2));
        assert_eq!(
            ctl(&proxy, &["weight", &name, "much"]).status.code(),
            Some(2)
        );
    });
}

#[test]
fn ctl_asks_on_a_terminal_before_the_last_endpoint_goes() {
    test(|| {
        let (_origin, proxy) = site("");
        let run = |args: &[&str]| {
            let mut command = Command::new(program());
            command.arg("ctl").arg("--socket");
            command.arg(proxy.path("control.sock")).args(args);
            Terminal::start(command, 24, 120)
        };
        let question = "after that no endpoint of `app` takes requests. Continue? [y/N]";
        for (answer, code, state) in [("n\n", Some(1), "up"), ("y\n", Some(0), "draining")] {
            let mut terminal = run(&["drain", "app/*"]);
            terminal.await_text(question);
            terminal.press(answer);
            assert_eq!(terminal.await_end().code(), code, "{answer}");
            assert_eq!(state_of(&proxy, 0), state);
        }
        // Nothing is asked where nothing is lost.
        for args in [&["stop", "app/*"][..], &["ready", "app/*"]] {
            assert_eq!(run(args).await_end().code(), Some(0), "{args:?}");
        }
        let mut terminal = run(&["weight", "app/*", "0"]);
        terminal.await_text(question);
        terminal.press("\n");
        assert_eq!(terminal.await_end().code(), Some(1));
        // A script that reads the answer is not asked, wherever it was started.
        let mut script = Command::new("sh");
        let line = format!(
            "out=$({} ctl --socket {} drain 'app/*') && echo drained",
            program(),
            proxy.path("control.sock").display()
        );
        script.args(["-c", &line]);
        let mut terminal = Terminal::start(script, 24, 120);
        terminal.await_text("warning: no endpoint of `app` takes requests now");
        assert_eq!(terminal.await_end().code(), Some(0));
        // The commands of HAProxy warn as well.
        let (code, _, said) = texts(&ctl(&proxy, &["ready", "app/*"]));
        assert_eq!((code, said.as_str()), (Some(0), ""));
        let upstreams = json(&proxy, "show upstreams");
        let name = upstreams[0]["endpoints"][0]["name"].as_str().unwrap();
        let server = format!("app/{name}");
        let (code, _, said) = texts(&ctl(&proxy, &["disable", "server", &server]));
        assert_eq!(code, Some(0));
        assert!(
            said.contains("warning: no endpoint of `app` takes requests now"),
            "{said}"
        );
    });
}

#[test]
fn ctl_finds_the_socket_by_the_configuration_and_says_what_is_missing() {
    test(|| {
        let (_origin, mut proxy) = site("");
        let config = proxy.path("evenkeel.toml").display().to_string();
        let by_config = |config: &str| {
            let mut command = Command::new(program());
            command.args(["ctl", "--config", config, "show", "queue"]);
            texts(&run(command, Duration::from_secs(20)).unwrap())
        };
        let (code, shown, said) = by_config(&config);
        assert_eq!((code, said.as_str()), (Some(0), ""), "{shown}");
        proxy.terminate();
        proxy.wait(Duration::from_secs(10)).unwrap();
        let (code, _, said) = by_config(&config);
        assert_eq!(code, Some(1));
        assert!(
            said.contains("no such socket; is the program running?"),
            "{said}"
        );
        // Left over by a process that was killed.
        drop(std::os::unix::net::UnixListener::bind(proxy.path("control.sock")).unwrap());
        let (code, _, said) = by_config(&config);
        assert_eq!(code, Some(1));
        assert!(said.contains("no process listens there"), "{said}");
        let without = std::fs::read_to_string(&config).unwrap();
        let without = without.lines().filter(|line| !line.starts_with("control"));
        std::fs::write(&config, without.collect::<Vec<_>>().join("\n")).unwrap();
        let (code, _, said) = by_config(&config);
        assert_eq!(code, Some(1));
        assert!(said.contains("has no control socket: add"), "{said}");
        assert!(
            said.contains("control = \"/run/evenkeel/control.sock\""),
            "{said}"
        );
    });
}

#[test]
fn a_library_for_haproxys_socket_works() {
    const SCRIPT: &str = r#"
import sys
from haproxyadmin import haproxy
from haproxyadmin import STATE_READY as haproxy_ready

name = sys.argv[2]
hap = haproxy.HAProxy(socket_file=sys.argv[1])
def say(command):
    [(process, lines)] = hap.command(command)
    print(repr(lines[0]))
print(hap.metric("Process_num"), hap.metric("CumReq"))
say("get weight app/" + name)
say("set server app/%s weight 50%%" % name)
say("get weight app/" + name)
say("set server app/nobody state drain")
say("set server nobody/x state drain")
say("set server app/%s state upside-down" % name)
say("disable server app/" + name)
[frontend], [backend] = hap.frontends(), hap.backends()
[server] = backend.servers()
print(frontend.name, backend.name, server.name == name)
print(frontend.requests, backend.requests, server.requests, backend.status, server.status)
print(server.setstate(haproxy_ready), server.status, server.setweight(7), server.weight)
"#;
    test(|| {
        let origin = origin();
        let endpoint = format!("{{ address = \"{}\", weight = 10 }}", origin.address);
        let proxy = site_of("", &[endpoint]);
        assert_eq!(proxy.client().get("/ping").unwrap().status, 200);
        until("it is counted", || {
            ask(&proxy, "show info").contains("CumReq: 1\n")
        });
        let name = origin.address.to_string();
        let mut command = python();
        command
            .args(["-c", SCRIPT])
            .arg(proxy.path("control.sock"))
            .arg(&name);
        let (code, shown, said) = texts(&run(command, Duration::from_secs(20)).unwrap());
        assert_eq!(code, Some(0), "{said}");
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(
            lines,
            [
                "1 1",
                "'10 (initial 10)'",
                "''",
                "'5 (initial 10)'",
                "'No such server.'",
                "'No such backend.'",
                "\"'set server <srv> state' expects 'ready', 'drain' and 'maint'.\"",
                "''",
                "web app True",
                "1 1 1 DOWN MAINT",
                "True UP True 7",
            ],
        );
        assert_eq!(state_of(&proxy, 0), "up");
        let state = ask(&proxy, "show servers state app");
        assert_eq!(state.lines().next(), Some("1"));
        let row = state.lines().nth(2).unwrap();
        assert!(
            row.starts_with(&format!("2 app 1 {name} 127.0.0.1 2 0 7 10 ")),
            "{row}"
        );
        assert_eq!(row.split(' ').count(), 25);
        assert_eq!(state.lines().nth(1).unwrap().split(' ').count(), 26);
        assert_eq!(ask(&proxy, "show backend"), "# name\napp\n\n");
    });
}
