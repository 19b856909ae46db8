//! A new configuration while the program runs: its changes, unchanged parts, and refusals.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Output};

use evenkeel_testkit::deadline::{STEP, until};
use evenkeel_testkit::{OriginHandle, Proxy, RawClient, TempDir};
use rustix::process::Signal;

use crate::control::{ask, texts};
use crate::setup::{Site, ask_status, assert_serves, figures, get, nobody, origin, program, test};
use crate::status::order;
use crate::tunnels::UPGRADE;

/// With a control socket and a status page.
pub const SITE: Site<'_> = Site {
    bind: "127.0.0.1:0",
    listener: "",
    upstream: "",
    server: "control = \"$DIR/control.sock\"\n[status]\nbind = \"127.0.0.1:0\"",
};

pub fn site() -> (OriginHandle, Proxy) {
    let origin = origin();
    let proxy = SITE.start(&[origin.address.to_string()]);
    (origin, proxy)
}

/// Puts another configuration in the file's place.
pub fn write(proxy: &Proxy, config: &str) {
    let dir = proxy.dir().display().to_string();
    let config = config.replace("$DIR", &dir);
    std::fs::write(proxy.path("evenkeel.toml"), config).unwrap();
}

fn evenkeel_reload(proxy: &Proxy) -> Output {
    Command::new(program())
        .args(["reload", "--config"])
        .arg(proxy.path("evenkeel.toml"))
        .output()
        .unwrap()
}

/// Reloads it; the configuration must be valid.
#[track_caller]
pub fn reload(proxy: &Proxy, config: &str) -> String {
    write(proxy, config);
    let answer = ask(proxy, "reload");
    assert!(answer.starts_with("reloaded: "), "{answer}");
    answer
}

/// The address of a listener that came with a reload.
pub fn listening(proxy: &Proxy, name: &str) -> SocketAddr {
    let said = format!("listener {name}: listening on ");
    until("it listens", || proxy.stderr().contains(&said));
    let stderr = proxy.stderr();
    let (_, rest) = stderr.rsplit_once(&said).unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

const HELLO: &str = "[[route]]\nmatch = { path = \"/hello\" }\nanswer = { body = \"hello\" }\n";

/// The configuration with another route first.
pub fn with_hello(config: &str) -> String {
    config.replacen("[[route]]", &format!("{HELLO}[[route]]"), 1)
}

#[test]
fn a_connection_stays_and_gets_the_new_routes() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let mut client = proxy.client();
        assert_eq!(client.ask(get("/hello")).unwrap().status, 404);
        let requests = || figures(&proxy)["listeners"][0]["requests"].as_u64();
        until("it is counted", || requests() == Some(1));
        let answer = reload(&proxy, &with_hello(&config));
        assert!(answer.contains("generation 1"), "{answer}");
        assert_eq!(client.ask(get("/hello")).unwrap().text(), "hello");
        assert_serves(&mut client);
        until("counters go on", || requests() == Some(3));
        let figures = figures(&proxy);
        assert_eq!(figures["generation"], 1);
        assert_eq!(figures["reloads"], 1);
        assert_eq!(figures["listeners"][0]["open"], 1);
        assert_eq!(origin.stats().connections, 1);
    });
}

#[test]
fn hup_and_the_command_reload() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let mut client = proxy.client();
        write(&proxy, &with_hello(&config));
        proxy.signal(Signal::HUP);
        until("it is in force", || {
            client.ask(get("/hello")).unwrap().status == 200
        });
        write(&proxy, &config);
        let done = evenkeel_reload(&proxy);
        assert!(done.status.success(), "{done:?}");
        let said = String::from_utf8(done.stdout).unwrap();
        assert!(said.starts_with("reloaded: configuration "), "{said}");
        assert_eq!(client.ask(get("/hello")).unwrap().status, 404);
    });
}

#[test]
fn a_configuration_with_mistakes_is_refused_with_all_of_them() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let mut client = proxy.client();
        let wrong = config
            .replace("workers = 1", "workers = -1")
            .replace("[upstream.app]", "[upstream.app]\nretrys = 1");
        for wrong in [&*wrong, "[[listener", ""] {
            write(&proxy, wrong);
            let answer = ask(&proxy, "reload");
            assert!(answer.starts_with("error: "), "{answer}");
            assert_serves(&mut client);
        }
        write(&proxy, &wrong);
        let answer = ask(&proxy, "reload");
        for part in ["2 mistakes", "workers", "`retrys`", "evenkeel.toml:"] {
            assert!(answer.contains(part), "{part}: {answer}");
        }
        let refused = evenkeel_reload(&proxy);
        assert_eq!(refused.status.code(), Some(1));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains("`retrys`"), "{said}");
        proxy.signal(Signal::HUP);
        let line = "reload refused: 2 mistakes in the configuration";
        until("it is said", || proxy.stderr().matches(line).count() == 4);
        std::fs::remove_file(proxy.path("evenkeel.toml")).unwrap();
        let answer = ask(&proxy, "reload");
        assert!(answer.starts_with("error: "), "{answer}");
        std::fs::create_dir(proxy.path("evenkeel.toml")).unwrap();
        let answer = ask(&proxy, "reload");
        assert!(answer.starts_with("error: "), "{answer}");
        assert_serves(&mut client);
        let figures = figures(&proxy);
        assert_eq!(figures["reloads"], 0);
        assert_eq!(figures["reloads_refused"], 8);
        assert_eq!(figures["reloads_refused_by_reason"]["mistakes"], 6);
        assert_eq!(figures["reloads_refused_by_reason"]["no-file"], 2);
    });
}

#[test]
fn what_is_waited_for_is_refused() {
    test(|| {
        let (origin, mut proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let mut client = proxy.client();
        let pipe = proxy.path("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let reload_by = |text: &str| {
            write(&proxy, text);
            ask(&proxy, "reload")
        };
        let answer = reload_by(&format!("include = [\"pipe\"]\n{config}"));
        assert!(answer.contains("pipe: it is not a file"), "{answer}");
        std::fs::remove_file(proxy.path("evenkeel.toml")).unwrap();
        std::fs::rename(&pipe, proxy.path("evenkeel.toml")).unwrap();
        let answer = ask(&proxy, "reload");
        assert!(
            answer.contains("evenkeel.toml: it is not a file"),
            "{answer}"
        );
        let answer = ask(&proxy, "diff");
        assert!(
            answer.contains("evenkeel.toml: it is not a file"),
            "{answer}"
        );
        assert_serves(&mut client);
        let figures = figures(&proxy);
        assert_eq!(figures["reloads_refused_by_reason"]["mistakes"], 2);
        std::fs::remove_file(proxy.path("evenkeel.toml")).unwrap();
        let answer = reload_by(&with_hello(&config));
        assert!(answer.starts_with("reloaded: "), "{answer}");
        drop(client);
        proxy.signal(Signal::TERM);
        let ended = proxy.wait(std::time::Duration::from_secs(10));
        assert!(ended.unwrap().success());
    });
}

pub const OTHER: &str = "[[listener]]\nname = \"other\"\nbind = \"127.0.0.1:0\"\n";

#[test]
fn listeners_come_and_go() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let both = format!("{config}{OTHER}");
        reload(&proxy, &both);
        let other = listening(&proxy, "other");
        let connect = || RawClient::connect(other).unwrap();
        let [mut idle, mut busy, mut tunnel] = [(); 3].map(|()| connect());
        assert_serves(&mut idle);
        busy.send(get("/slow/1500")).unwrap();
        assert_eq!(tunnel.ask(UPGRADE).unwrap().status, 101);
        until("both are in flight", || origin.stats().in_flight == 2);
        let mut stays = proxy.client();
        assert_serves(&mut stays);
        reload(&proxy, &config);
        until("nobody listens there", || {
            RawClient::connect(other).is_err()
        });
        assert!(idle.is_closed());
        tunnel.send("hello").unwrap();
        assert_eq!(tunnel.read_len(5).unwrap(), b"hello");
        let response = busy.read_response("GET").unwrap();
        assert_eq!(response.text(), "pong");
        assert_eq!(response.field("connection"), Some("close"));
        assert!(busy.is_closed());
        assert_serves(&mut stays);
        let names = || {
            let figures = figures(&proxy);
            let listeners = figures["listeners"].as_array().unwrap().iter();
            let names = listeners.map(|it| it["name"].as_str().unwrap().to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(), ["web"]);
        let sessions = ask(&proxy, "show sessions");
        assert!(sessions.contains("other"), "{sessions}");
        // It comes back at another place, and with its connections.
        reload(&proxy, &format!("{OTHER}{config}"));
        until("it says where", || {
            let line = "listener other: listening on ";
            proxy.stderr().matches(line).count() == 2
        });
        assert_eq!(names(), ["other", "web"]);
        assert_serves(&mut stays);
        let other = listening(&proxy, "other");
        assert_serves(&mut RawClient::connect(other).unwrap());
        tunnel.finish_sending().unwrap();
        assert!(tunnel.is_closed());
    });
}

#[test]
fn a_listener_keeps_its_connections_with_another_name_and_other_options() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let mut client = proxy.client();
        assert_serves(&mut client);
        let renamed = config.replace("name = \"web\"", "name = \"shop\"\nbacklog = 7");
        reload(
            &proxy,
            &renamed.replace("[[route]]", "limits = { connections = 1 }\n[[route]]"),
        );
        assert_serves(&mut client);
        let figures = figures(&proxy);
        let shop = &figures["listeners"][0];
        assert_eq!(shop["name"], "shop");
        assert_eq!(shop["open"], 1);
        assert_eq!(shop["connections_limit"], 1);
        until("it is logged", || proxy.access_log().len() == 2);
        let logged = proxy.access_log_json();
        let names: Vec<_> = logged.iter().map(|it| &it["listener"]).collect();
        assert_eq!(names, ["web", "shop"]);
    });
}

#[test]
fn a_listener_that_cannot_be_bound_changes_nothing() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let free: SocketAddr = nobody().parse().unwrap();
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = OTHER.replace("127.0.0.1:0", &holder.local_addr().unwrap().to_string());
        write(&proxy, &with_hello(&format!("{config}{other}")));
        let answer = ask(&proxy, "reload");
        assert!(answer.contains("listener other: bind"), "{answer}");
        let mut client = proxy.client();
        assert_eq!(client.ask(get("/hello")).unwrap().status, 404);
        // That port is free again.
        let other = OTHER.replace("127.0.0.1:0", &free.to_string());
        reload(&proxy, &format!("{config}{other}"));
        assert_serves(&mut RawClient::connect(free).unwrap());
    });
}

#[test]
fn a_port_that_another_process_has_taken_since_is_not_shared() {
    test(|| {
        let (origin, proxy) = site();
        let endpoints = [origin.address.to_string()];
        let config = SITE.config(&endpoints);
        reload(&proxy, &format!("{config}{OTHER}"));
        let at = listening(&proxy, "other").to_string();
        let bound = OTHER.replace("127.0.0.1:0", &at);
        // A connection of the listener that goes.
        let mut client = RawClient::connect(&*at).unwrap();
        assert_eq!(client.ask(UPGRADE).unwrap().status, 101);
        reload(&proxy, &config);
        let site = Site {
            bind: &at,
            ..Site::default()
        };
        let mut another = None;
        until("another process has the port", || {
            let started = Proxy::start(program(), &site.config(&endpoints));
            another = started.ok();
            another.is_some()
        });
        write(&proxy, &format!("{config}{bound}"));
        let answer = ask(&proxy, "reload");
        assert!(answer.contains("listener other: bind"), "{answer}");
        drop(another);
        let answer = ask(&proxy, "reload");
        assert!(answer.starts_with("reloaded: "), "{answer}");
        assert_serves(&mut RawClient::connect(&*at).unwrap());
    });
}

#[test]
fn endpoints_that_stay_keep_their_connections() {
    test(|| {
        let (first, second) = (origin(), origin());
        let [one, two] = [&first, &second].map(|it| it.address.to_string());
        let site = Site {
            upstream: "balance = \"round-robin\"",
            ..SITE
        };
        let proxy = site.start(std::slice::from_ref(&one));
        let mut client = proxy.client();
        for turn in 0..10 {
            let mut endpoints = vec![one.clone()];
            if turn % 2 == 0 {
                endpoints.insert(0, two.clone());
            }
            reload(&proxy, &site.config(&endpoints));
            assert_serves(&mut client);
            assert_serves(&mut client);
        }
        assert_eq!(first.stats().connections, 1);
        assert!(second.stats().requests >= 5, "{:?}", second.stats());
        // An upstream without a route goes, and the old generations with it.
        until("one generation is left", || {
            let shown = ask(&proxy, "show generations");
            shown.trim_end().lines().count() == 2
        });
    });
}

#[test]
fn many_reloads_at_once_are_done() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let mut client = proxy.client();
        write(&proxy, &with_hello(&config));
        let answers = std::thread::scope(|scope| {
            let asked = [(); 8].map(|()| scope.spawn(|| ask(&proxy, "reload")));
            asked.map(|it| it.join().unwrap())
        });
        for answer in answers {
            assert!(answer.starts_with("reloaded: "), "{answer}");
        }
        assert_eq!(client.ask(get("/hello")).unwrap().text(), "hello");
    });
}

#[test]
fn a_reload_while_the_process_drains_is_refused() {
    test(|| {
        let (origin, mut proxy) = site();
        let mut busy = proxy.client();
        busy.send(get("/slow/1500")).unwrap();
        until("it is in flight", || origin.stats().in_flight == 1);
        proxy.terminate();
        until("it drains", || proxy.stderr().contains("TERM: "));
        proxy.signal(Signal::HUP);
        until("it is refused", || {
            let refused = "reload refused: the process is draining";
            proxy.stderr().contains(refused)
        });
        assert_eq!(busy.read_response("GET").unwrap().text(), "pong");
        assert!(proxy.wait(STEP).expect("it ends").success());
    });
}

/// A later configuration is dropped as soon as nothing uses it.
#[test]
fn a_tunnel_keeps_its_own_configuration_and_no_other() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let mut tunnel = proxy.client();
        assert_eq!(tunnel.ask(UPGRADE).unwrap().status, 101);
        for turn in 0..5 {
            reload(
                &proxy,
                &config.replace("[[route]]", &format!("backlog = {}\n[[route]]", 100 + turn)),
            );
        }
        until("two configurations are left", || {
            let generations = &figures(&proxy)["generations"];
            let numbers = generations.as_array().unwrap().iter();
            let numbers: Vec<_> = numbers.map(|it| it["generation"].as_u64()).collect();
            numbers == [Some(5), Some(0)]
        });
        tunnel.send("hello").unwrap();
        assert_eq!(tunnel.read_len(5).unwrap(), b"hello");
    });
}

#[test]
fn the_path_of_another_program_stays_its_own() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let path = proxy.path("other.sock");
        let other = OTHER.replace("127.0.0.1:0", &format!("unix:{}", path.display()));
        let both = format!("{config}{other}");
        let holder = UnixListener::bind(&path).unwrap();
        let mut busy = proxy.client();
        busy.send(get("/slow/700")).unwrap();
        until("it is in flight", || origin.stats().in_flight == 1);
        write(&proxy, &both);
        let answer = ask(&proxy, "reload");
        assert!(answer.contains("listener other: bind unix:"), "{answer}");
        let line = "reload refused: listener other: bind unix:";
        until("it is said", || proxy.stderr().contains(line));
        assert_eq!(figures(&proxy)["reloads_refused"], 1);
        assert_eq!(busy.read_response("GET").unwrap().text(), "pong");
        UnixStream::connect(&path).unwrap();
        holder.accept().unwrap();
        // The path is free, and then another program takes it from this one.
        drop(holder);
        reload(&proxy, &both);
        let mut client = RawClient::connect_unix(&path).unwrap();
        assert_serves(&mut client);
        std::fs::remove_file(&path).unwrap();
        let holder = UnixListener::bind(&path).unwrap();
        let answer = reload(&proxy, &with_hello(&both));
        let taken = format!(
            "listener other: another program has taken unix:{}",
            path.display()
        );
        assert!(answer.contains(&format!("warning: {taken}")), "{answer}");
        let line = "listener other: path-taken: ";
        until("it is said", || proxy.stderr().contains(line));
        let said = proxy.stderr().matches(&*path.display().to_string()).count();
        reload(&proxy, &with_hello(&both));
        let again = proxy.stderr().matches(&*path.display().to_string()).count();
        assert_eq!(again, said, "{}", proxy.stderr());
        assert_eq!(client.ask(get("/hello")).unwrap().text(), "hello");
        // It leaves, and the file is not its own to remove.
        reload(&proxy, &config);
        assert!(client.is_closed());
        UnixStream::connect(&path).unwrap();
        holder.accept().unwrap();
    });
}

#[test]
fn what_goes_on_with_an_older_configuration_is_shown_and_ends_in_time() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let mut tunnel = proxy.client();
        assert_eq!(tunnel.ask(UPGRADE).unwrap().status, 101);
        let timeout = "generation_timeout = \"3s\"\ncontrol =";
        reload(&proxy, &config.replace("control =", timeout));
        until("it is held by a tunnel", || {
            let generations = &figures(&proxy)["generations"];
            let of_it = |it: &str| generations[1][it].as_u64();
            ["generation", "exchanges", "tunnels"].map(of_it) == [Some(0), Some(1), Some(1)]
        });
        let shown = ask(&proxy, "show generations");
        let lines: Vec<_> = shown.trim_end().lines().collect();
        assert!(
            lines.len() == 3 && lines[2].ends_with(" 1        1"),
            "{shown}"
        );
        let metrics = ask_status(&proxy, "/metrics", "").text();
        let held = "evenkeel_generation_exchanges{generation=\"0\",";
        assert!(metrics.contains(held), "{metrics}");
        assert!(ask(&proxy, "show sessions").contains("tunnel"));
        until("it is over", || tunnel.is_closed());
        until("it is forgotten", || {
            figures(&proxy)["generations"].as_array().unwrap().len() == 1
        });
        let line = &proxy.access_log_json()[0];
        assert_eq!(line["end"], "generation-timeout");
    });
}

#[test]
fn memory_and_the_token_of_the_status_page_change() {
    test(|| {
        let origin = origin();
        let dir = TempDir::new().unwrap();
        let server = |token: &str| {
            let path = dir.join(token);
            std::fs::write(&path, token).unwrap();
            format!(
                "control = \"$DIR/control.sock\"\n[status]\nbind = \"127.0.0.1:0\"\n\
                 token_file = {path:?}"
            )
        };
        let before = server("0123456789abcdef");
        let site = Site {
            server: &before,
            ..SITE
        };
        let endpoints = [origin.address.to_string()];
        let proxy = site.start(&endpoints);
        let after = server("fedcba9876543210");
        let limits = "buffer_memory = 65536\nanswer_memory = \"1MiB\"\ncontrol =";
        let after = after.replace("control =", limits);
        let site = Site {
            server: &after,
            ..SITE
        };
        let answer = reload(&proxy, &site.config(&endpoints));
        assert!(!answer.contains("is not changed"), "{answer}");
        let figures = figures(&proxy);
        assert_eq!(figures["buffer_limit_bytes"], 65536);
        assert_eq!(figures["answer_memory"]["limit"], 1024 * 1024);
        for (token, status) in [("0123456789abcdef", 401), ("fedcba9876543210", 200)] {
            let fields = format!("Authorization: Bearer {token}\r\n");
            let fields = format!("Content-Type: application/json\r\n{fields}");
            let drain = format!(
                "{{\"upstream\":\"app\",\"endpoint\":\"{}\",\"admin\":\"drain\"}}",
                endpoints[0]
            );
            assert_eq!(order(&proxy, &fields, &drain).status, status, "{token}");
        }
    });
}

#[test]
fn what_only_a_start_changes_is_named() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let answer = reload(&proxy, &config.replace("workers = 1", "workers = 3"));
        assert!(
            answer.contains(
                "warning: server.workers is not changed: only a restart or an upgrade of the \
                program"
            ),
            "{answer}"
        );
        assert_serves(&mut proxy.client());
    });
}

#[test]
fn access_logs_go_to_another_file() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let mut client = proxy.client();
        assert_serves(&mut client);
        let other = proxy.path("other.log");
        let lines = |path: &std::path::Path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().count()
        };
        // Lines that are not written yet go where the new configuration says.
        until("it is written", || lines(&proxy.path("access.log")) == 1);
        reload(&proxy, &config.replace("access.log", "other.log"));
        assert_serves(&mut client);
        until("it is written there", || lines(&other) == 1);
        assert_eq!(lines(&proxy.path("access.log")), 1);
        let nowhere = config.replace("access.log", "none/access.log");
        write(&proxy, &nowhere);
        let answer = ask(&proxy, "reload");
        assert!(answer.contains("none/access.log"), "{answer}");
        assert_serves(&mut client);
        until("it is written there still", || lines(&other) == 2);
    });
}

#[test]
fn files_of_another_folder() {
    test(|| {
        let (origin, proxy) = site();
        for name in ["a", "b"] {
            std::fs::create_dir(proxy.path(name)).unwrap();
            std::fs::write(proxy.path(name).join("x.txt"), name).unwrap();
        }
        let config = |routes: &str| {
            let site = SITE.config(&[origin.address.to_string()]);
            site.replacen("[[route]]", &format!("{routes}[[route]]"), 1)
        };
        let route = |name: &str| {
            format!(
                "[[route]]\nmatch = {{ path = \"/{name}/*\" }}\nfiles = {{ root = \"$DIR/{name}\", strip = \"/{name}\" }}\n"
            )
        };
        let mut client = proxy.client();
        let (a, b) = (route("a"), route("b"));
        for routes in [
            a.clone(),
            format!("{b}{a}"),
            format!("{a}{b}"),
            format!("{HELLO}{a}{b}"),
        ] {
            reload(&proxy, &config(&routes));
            for name in ["a", "b"] {
                let response = client.ask(get(&format!("/{name}/x.txt"))).unwrap();
                if routes.contains(&format!("/{name}/")) {
                    assert_eq!(response.text(), name, "{routes}");
                } else {
                    assert_ne!(response.status, 200, "{routes}");
                }
            }
        }
    });
}

#[test]
fn what_would_change_is_said_with_its_cost() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        assert_eq!(ask(&proxy, "diff").trim(), "nothing changes");
        reload(&proxy, &format!("{config}{OTHER}"));
        let other = listening(&proxy, "other");
        let mut client = RawClient::connect(other).unwrap();
        assert_serves(&mut client);
        let second = crate::setup::nobody();
        let changed = SITE.config(std::slice::from_ref(&second));
        write(&proxy, &changed.replace("workers = 1", "workers = 2"));
        until("the idle connection is counted", || {
            figures(&proxy)["upstreams"][0]["endpoints"][0]["idle"] == 1
        });
        let dry = Command::new(program())
            .args(["reload", "--dry-run", "--config"])
            .arg(proxy.path("evenkeel.toml"))
            .output()
            .unwrap();
        assert!(dry.status.success(), "{dry:?}");
        let said = String::from_utf8(dry.stdout).unwrap();
        let first = origin.address.to_string();
        for line in [
            "server.workers changes from 1 to 2; only a restart or an upgrade of the program \
             changes it",
            "listener other is removed (1 open connection: each is closed after its exchanges in \
             flight)",
            &format!(
                "upstream app: endpoint {first} is removed (0 in flight go on; 1 idle connection \
                 closed)"
            ),
            &format!("upstream app: endpoint {second} is added (it opens new connections)"),
        ] {
            assert!(said.contains(line), "{line}: {said}");
        }
        assert_eq!(said.lines().count(), 4, "{said}");
        // It had no effect.
        assert_serves(&mut client);
        assert_eq!(figures(&proxy)["generation"], 1);
        write(&proxy, "[[listener]");
        assert!(ask(&proxy, "diff").starts_with("error: "));
    });
}

#[test]
fn a_cache_keeps_what_it_has_unless_its_size_changes() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let with = |memory: &str, wait: &str| {
            let cache = format!(
                "[[route]]\ncache = {{ store = 'main', ttl = {{ 200 = '1h' }}, wait = '{wait}' }}\n"
            );
            let config = config.replacen("[[route]]\n", &cache, 1);
            format!("{config}\n[cache.main]\nmemory = '{memory}'\n")
        };
        let mut client = proxy.client();
        let mut is_hit = || {
            let response = client.get("/ping").unwrap();
            let status = response.field("cache-status").unwrap();
            status.starts_with("Evenkeel; hit")
        };
        reload(&proxy, &with("2MiB", "1s"));
        assert_eq!([is_hit(), is_hit()], [false, true]);
        reload(&proxy, &with("2MiB", "2s"));
        assert!(is_hit());
        write(&proxy, &with("3MiB", "2s"));
        let said = ask(&proxy, "diff");
        let line = "cache main: memory changes from \"2MiB\" to \"3MiB\" (it starts empty)";
        assert_eq!(said.trim(), line);
        reload(&proxy, &with("3MiB", "2s"));
        assert_eq!([is_hit(), is_hit()], [false, true]);
        write(&proxy, &config);
        let said = ask(&proxy, "diff");
        let line = "cache main is removed (its stored responses are dropped)";
        assert!(said.contains(line), "{said}");
    });
}

#[test]
fn the_last_endpoint_that_is_removed_is_warned_of() {
    test(|| {
        let (origin, proxy) = site();
        let address = origin.address.to_string();
        let said = ask(&proxy, &format!("endpoint remove app/{address}"));
        let warning = "warning: no endpoint of `app` takes requests now";
        assert!(said.contains(warning), "{said}");
        assert_eq!(proxy.client().ask(get("/")).unwrap().status, 503);
    });
}

/// A program that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_reload_looks_for_the_file_of_the_start() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let file = dir.join("evenkeel.toml");
        let config = "[[listener]]\nbind = \"127.0.0.1:0\"\n[[route]]\nanswer = {}\n";
        std::fs::write(&file, config).unwrap();
        let log = dir.join("log");
        let running = Command::new(program())
            .args(["run", "--set", "log.level=info"])
            .env_remove("EVENKEEL_CONFIG")
            .current_dir(dir.path())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn();
        let running = Running(running.unwrap());
        let says = |what: &str| std::fs::read_to_string(&log).unwrap().contains(what);
        until("it listens", || says("listening on"));
        std::fs::remove_file(&file).unwrap();
        let pid = rustix::process::Pid::from_child(&running.0);
        rustix::process::kill_process(pid, Signal::HUP).unwrap();
        until("it is refused", || {
            says("the file evenkeel.toml does not exist")
        });
    });
}

#[test]
fn what_was_kept_is_still_to_come() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let answer = reload(&proxy, &config.replace("workers = 1", "workers = 2"));
        assert!(answer.contains("server.workers is not changed"), "{answer}");
        let line = "server.workers changes from 1 to 2; only a restart or an upgrade of the \
                    program changes it";
        assert_eq!(ask(&proxy, "diff").trim(), line);
        write(&proxy, &config);
        assert_eq!(ask(&proxy, "diff").trim(), "nothing changes");
    });
}

#[test]
fn costs_are_those_of_the_lists_that_are_made() {
    test(|| {
        let (origin, proxy) = site();
        let address = origin.address.to_string();
        let config = SITE.config(std::slice::from_ref(&address));
        let said = |config: &str| {
            write(&proxy, config);
            ask(&proxy, "diff").trim().to_owned()
        };
        assert_serves(&mut proxy.client());
        let is_idle = || figures(&proxy)["upstreams"][0]["endpoints"][0]["idle"] == 1;
        until("the idle connection is counted", is_idle);
        // A listener stays where it listens.
        assert_eq!(
            said(&config.replace("name = \"web\"", "name = \"shop\"")),
            "listener web is renamed to shop: counters belong to the name"
        );
        let written = format!("endpoints = [\"{address}\"]");
        let with = |list: &str| {
            let other = config.replace(&written, list);
            assert_ne!(other, config);
            other
        };
        let limited = format!("endpoints = [{{ address = \"{address}\", max_in_flight = 8 }}]");
        let lines = said(&with(&limited));
        let line = format!(
            "upstream app: endpoint {address}: max_in_flight is set to 8 (1 idle connection closed)"
        );
        assert!(lines.contains(&line), "{lines}");
        // Objects that come from a named file are reported as well.
        let file = proxy.path("endpoints.json");
        std::fs::write(&file, format!("[\"{address}\"]")).unwrap();
        let from_file = with(&format!("endpoints_file = {file:?}"));
        let moved = said(&from_file);
        assert!(!moved.contains("closed"), "{moved}");
        reload(&proxy, &from_file);
        let nobody = crate::setup::nobody();
        let lines = said(&with(&format!("endpoints = [\"{nobody}\"]")));
        let line = format!(
            "upstream app: 1 endpoint ({address}) is removed (0 in flight go on; 1 idle \
             connection closed)"
        );
        assert!(lines.contains(&line), "{lines}");
        let limited = format!("[{{ \"address\": \"{address}\", \"max_in_flight\": 8 }}]");
        let other = proxy.path("others.json");
        std::fs::write(&other, limited).unwrap();
        let lines = said(&with(&format!("endpoints_file = {other:?}")));
        let line = format!(
            "upstream app: max_in_flight is added or removed: 1 endpoint ({address}) is affected \
             (1 idle connection closed)"
        );
        assert!(lines.contains(&line), "{lines}");
    });
}

#[test]
fn a_file_with_mistakes_names_the_process_all_the_same() {
    test(|| {
        let (origin, proxy) = site();
        let config = SITE.config(&[origin.address.to_string()]);
        let evenkeel = |verb: &str, more: &[&str]| {
            let mut command = Command::new(program());
            command.arg(verb).arg("--config");
            command.arg(proxy.path("evenkeel.toml")).args(more);
            texts(&command.output().unwrap())
        };
        for (turn, wrong) in [
            config.replace("workers = 1", "workers = -1"),
            config.replace("[[route]]", "[[route]"),
            format!("{config}[upstream.app]\n"),
        ]
        .iter()
        .enumerate()
        {
            write(&proxy, wrong);
            let (code, _, said) = evenkeel("reload", &[]);
            assert_eq!(code, Some(1), "{said}");
            assert!(said.contains("in the configuration\n"), "{said}");
            assert!(said.contains("evenkeel.toml:"), "{said}");
            assert!(!said.contains("warning: "), "{said}");
            assert_eq!(figures(&proxy)["reloads_refused"], turn + 1);
            let (code, shown, said) = evenkeel("ctl", &["show", "generations"]);
            assert_eq!(code, Some(0), "{said}");
            assert!(shown.starts_with("GENERATION"), "{shown}");
            assert!(said.contains("`evenkeel check` shows them"), "{said}");
        }
        // Without a process they are shown here.
        let away = config.replace("control.sock", "away.sock");
        write(&proxy, &away.replace("workers = 1", "workers = -1"));
        let (code, _, said) = evenkeel("reload", &[]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("evenkeel.toml:"), "{said}");
        assert!(
            said.ends_with("evenkeel: 1 mistake in the configuration\n"),
            "{said}"
        );
    });
}
