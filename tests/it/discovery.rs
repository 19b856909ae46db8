//! Endpoints that come and go while the program runs, and tiers.

use std::net::UdpSocket;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::process::run;
use evenkeel_testkit::{
    NameServer, Origin, OriginHandle, OriginOptions, Proxy, TempDir, replace_file,
};

use crate::control::{ask, json, site_of};
use crate::explain::live;
use crate::in_flight::occupy;
use crate::setup::{Site, ask_status, nobody, program, test};

/// An origin that says this name.
fn named(name: &str) -> OriginHandle {
    let options = OriginOptions {
        name: name.to_owned(),
        ..OriginOptions::default()
    };
    Origin::local(options).unwrap()
}

/// The name of the origin that answers.
fn who(proxy: &Proxy) -> String {
    let response = proxy.client().get("/origin/stats").unwrap();
    assert_eq!(response.status, 200, "{response:?}");
    let stats: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    stats["name"].as_str().unwrap().to_owned()
}

fn table(origin: &OriginHandle, keys: &str) -> String {
    format!("{{ address = \"{}\", {keys} }}", origin.address)
}

#[test]
fn a_backup_serves_while_nothing_else_can() {
    test(|| {
        let [first, second, third] = ["first", "second", "third"].map(named);
        let endpoints = [
            table(&third, "tier = 2"),
            table(&second, "backup = true"),
            first.address.to_string(),
        ];
        let proxy = site_of("", &endpoints);
        let tiers: Vec<_> = (0..3)
            .map(|at| json(&proxy, "show upstreams")[0]["endpoints"][at]["tier"].clone())
            .collect();
        assert_eq!(tiers, [2, 1, 0]);
        assert_eq!(who(&proxy), "first");
        ask(&proxy, &format!("stop app/{}", first.address));
        assert_eq!(who(&proxy), "second");
        ask(&proxy, &format!("drain app/{}", second.address));
        assert_eq!(who(&proxy), "third");
        ask(&proxy, &format!("ready app/{}", first.address));
        assert_eq!(who(&proxy), "first");
    });
}

/// The exchange that finds the first tier dead is served, too.
#[test]
fn a_retry_goes_to_the_next_tier() {
    test(|| {
        let backup = named("backup");
        let proxy = site_of("", &[nobody(), table(&backup, "backup = true")]);
        assert_eq!(who(&proxy), "backup");
        // Three connections that fail in a row make it unreachable.
        until("the first is out", || {
            assert_eq!(who(&proxy), "backup");
            json(&proxy, "show upstreams")[0]["endpoints"][0]["eligible"] == false
        });
    });
}

/// A name server that the program asks.
pub(crate) struct Dns(NameServer);

impl Deref for Dns {
    type Target = NameServer;

    fn deref(&self) -> &NameServer {
        &self.0
    }
}

impl DerefMut for Dns {
    fn deref_mut(&mut self) -> &mut NameServer {
        &mut self.0
    }
}

impl Dns {
    /// One that does not run yet.
    pub(crate) fn new() -> Self {
        Dns(NameServer::new().unwrap())
    }

    /// Answers with these lines of a file of hosts, and these further arguments.
    pub(crate) fn start(&mut self, hosts: &str, args: &[String]) {
        self.0.start(hosts, args).unwrap();
    }

    /// The program, with a control socket, that asks this name server.
    pub(crate) fn site(&self, upstream: &str, endpoints: &[String]) -> Proxy {
        let server = format!(
            "control = \"$DIR/control.sock\"\nresolvers = [\"127.0.0.1:{}\"]",
            self.port
        );
        let site = Site {
            server: &server,
            upstream,
            ..Site::default()
        };
        site.start(endpoints)
    }
}

/// Origins at the same port of several addresses of this machine.
pub(crate) fn at_one_port(addresses: &[&str]) -> (u16, Vec<OriginHandle>) {
    let listen = |address: &str, port: u16| {
        Origin::listen(OriginOptions {
            name: address.to_owned(),
            listen: format!("{address}:{port}").parse().unwrap(),
            ..OriginOptions::default()
        })
    };
    for _ in 0..20 {
        let first = listen(addresses[0], 0).unwrap();
        let shown = first.address.to_string();
        let port = shown.rsplit(':').next().unwrap().parse().unwrap();
        let others = addresses[1..].iter().map(|it| listen(it, port).ok());
        if let Some(mut others) = others.collect::<Option<Vec<_>>>() {
            others.insert(0, first);
            return (port, others);
        }
    }
    panic!("no port is free at all of {addresses:?}")
}

pub(crate) fn upstream(proxy: &Proxy) -> serde_json::Value {
    json(proxy, "show upstreams")[0].clone()
}

pub(crate) fn endpoint_names(proxy: &Proxy) -> Vec<String> {
    let upstream = upstream(proxy);
    let endpoints = upstream["endpoints"].as_array().unwrap().iter();
    endpoints
        .map(|it| it["name"].as_str().unwrap().to_owned())
        .collect()
}

#[track_caller]
fn until_names(proxy: &Proxy, expected: &[String]) {
    let mut names = Vec::new();
    until(&format!("the endpoints are {expected:?}"), || {
        names = endpoint_names(proxy);
        names == expected
    });
}

#[test]
fn a_name_is_looked_up_for_as_long_as_the_program_runs() {
    test(|| {
        let (port, origins) = at_one_port(&["127.0.0.2", "127.0.0.3"]);
        let name = |at: u8| format!("127.0.0.{at}:{port}");
        let mut dns = Dns::new();
        dns.start("127.0.0.2 app.test\n", &[]);
        let proxy = dns.site("balance = \"round-robin\"", &[format!("app.test:{port}")]);
        assert_eq!(endpoint_names(&proxy), [name(2)]);
        assert_eq!(who(&proxy), "127.0.0.2");
        dns.start("127.0.0.3 app.test\n127.0.0.2 app.test\n", &[]);
        until_names(&proxy, &[name(2), name(3)]);
        until("the other one serves", || who(&proxy) == "127.0.0.3");
        dns.start("127.0.0.3 app.test\n", &[]);
        until_names(&proxy, &[name(3)]);
        for _ in 0..5 {
            assert_eq!(who(&proxy), "127.0.0.3");
        }
        // Its connection was kept all along.
        assert_eq!(origins[1].stats().connections, 1);
        let log = proxy.stderr();
        assert!(
            log.contains(&format!(
                "endpoint {} joined (name app.test:{port}, TTL ",
                name(3)
            )),
            "{log}"
        );
        assert!(log.contains(&format!("endpoint {} left", name(2))), "{log}");
    });
}

#[test]
fn a_name_server_that_dies_keeps_its_last_list() {
    test(|| {
        let (port, _origins) = at_one_port(&["127.0.0.2"]);
        let mut dns = Dns::new();
        dns.start("127.0.0.2 app.test\n", &[]);
        let proxy = dns.site("", &[format!("app.test:{port}")]);
        dns.stop();
        until("it fails", || {
            upstream(&proxy)["source_failures"].as_u64() > Some(0)
        });
        let source = upstream(&proxy)["sources"][0].clone();
        assert_eq!(
            (&source["kind"], &source["endpoints"]),
            (&"name".into(), &1.into())
        );
        assert!(
            source["failing"].as_str().unwrap().starts_with("dns-"),
            "{source}"
        );
        assert!(source["read_unix_ms"].as_u64() > Some(0), "{source}");
        assert_eq!(who(&proxy), "127.0.0.2");
        // The same for a name that is gone.
        dns.start("127.0.0.2 other.test\n", &[]);
        until("it is not found", || {
            upstream(&proxy)["sources"][0]["failing"] == "dns-not-found"
        });
        assert_eq!(who(&proxy), "127.0.0.2");
        assert!(
            proxy.stderr().contains("its last list stays in use"),
            "{}",
            proxy.stderr()
        );
    });
}

#[test]
fn a_name_that_is_not_there_yet_is_no_failed_start() {
    test(|| {
        let (port, _origins) = at_one_port(&["127.0.0.2"]);
        let mut dns = Dns::new();
        let endpoint = [format!("app.test:{port}")];
        let proxy = dns.site("", &endpoint);
        assert!(endpoint_names(&proxy).is_empty());
        let refusing = dns.site("queue = { hold = false }", &endpoint);
        assert_eq!(refusing.client().get("/ping").unwrap().status, 503);
        let log = proxy.stderr();
        assert!(log.contains("it has given no endpoints yet"), "{log}");
        // It waits for the endpoint that comes.
        let mut waiting = occupy(&proxy, "/ping");
        until("it waits", || upstream(&proxy)["waiting"] == 1);
        dns.start("127.0.0.2 app.test\n", &[]);
        assert_eq!(waiting.read_response("GET").unwrap().status, 200);
    });
}

/// No answer at all: the start does not wait for the resolver's own timeouts.
#[test]
fn a_slow_name_server_delays_the_start_for_a_moment() {
    test(|| {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut dns = Dns::new();
        dns.port = silent.local_addr().unwrap().port();
        let started = Instant::now();
        let proxy = dns.site("queue = { hold = false }", &["app.test:80".to_owned()]);
        assert!(
            started.elapsed() < Duration::from_secs(8),
            "{:?}",
            started.elapsed()
        );
        assert_eq!(proxy.client().get("/ping").unwrap().status, 503);
    });
}

#[test]
fn a_thousand_addresses_without_a_ttl() {
    test(|| {
        let hosts: String = (0..1000)
            .map(|at| format!("127.1.{}.{} app.test\n", at / 250, at % 250 + 1))
            .collect();
        let mut dns = Dns::new();
        dns.start(&hosts, &["--local-ttl=0".to_owned()]);
        let proxy = dns.site(
            "health = { initial = \"up\", interval = \"10s\" }",
            &["app.test:1".to_owned()],
        );
        until("all are there", || {
            upstream(&proxy)["endpoints"].as_array().unwrap().len() == 1000
        });
        // The name is looked up about once a second, for both families each time. The first
        // lookup comes at a random moment within a second.
        let (before, at) = (dns.count("app.test"), Instant::now());
        until("it is asked three times", || {
            dns.count("app.test") >= before + 6
        });
        assert!(
            at.elapsed() > Duration::from_millis(1_800),
            "{:?}",
            at.elapsed()
        );
        let log = proxy.stderr();
        assert!(log.contains("listener web: listening"), "{log}");
    });
}

#[test]
fn families_of_addresses() {
    test(|| {
        let mut dns = Dns::new();
        let hosts = "127.0.0.2 both.test\n::1 both.test\n::1 six.test\n";
        dns.start(hosts, &[]);
        let endpoints = [
            "both.test:81".to_owned(),
            "six.test:82".to_owned(),
            "{ address = \"both.test:83\", family = \"6\" }".to_owned(),
            "{ address = \"both.test:84\", family = \"both\" }".to_owned(),
            "{ address = \"both.test:85\", family = \"4\", resolve = \"one\" }".to_owned(),
        ];
        let proxy = dns.site("", &endpoints);
        let expected = [
            "127.0.0.2:81",
            "[::1]:82",
            "[::1]:83",
            "127.0.0.2:84",
            "[::1]:84",
            "both.test:85",
        ];
        assert_eq!(endpoint_names(&proxy), expected);
    });
}

#[test]
fn the_records_of_a_service_are_endpoints() {
    test(|| {
        let (port, _first) = at_one_port(&["127.0.0.2", "127.0.0.3"]);
        let (other, _second) = at_one_port(&["127.0.0.4"]);
        let record = |host: &str, port: u16, priority: u16, weight: u16| {
            format!("--srv-host=_http._tcp.app.test,{host}.test,{port},{priority},{weight}")
        };
        let hosts = "127.0.0.2 a.test\n127.0.0.3 b.test\n127.0.0.4 c.test\n";
        let mut dns = Dns::new();
        let records = [
            record("a", port, 10, 3),
            record("b", port, 10, 1),
            record("c", other, 20, 0),
        ];
        dns.start(hosts, &records);
        let proxy = dns.site("", &["{ srv = \"_http._tcp.app.test\" }".to_owned()]);
        let shown = upstream(&proxy);
        let each = shown["endpoints"].as_array().unwrap().iter();
        let each: Vec<_> = each
            .map(|it| {
                (
                    it["name"].as_str().unwrap().to_owned(),
                    it["weight"].as_u64(),
                    it["tier"].as_u64(),
                )
            })
            .collect();
        let expected = [
            (format!("127.0.0.2:{port}"), Some(30), Some(0)),
            (format!("127.0.0.3:{port}"), Some(10), Some(0)),
            (format!("127.0.0.4:{other}"), Some(1), Some(1)),
        ];
        assert_eq!(each, expected);
        assert_eq!(shown["sources"][0]["kind"], "service");
        dns.start(hosts, &records[2..]);
        until_names(&proxy, &[format!("127.0.0.4:{other}")]);
        assert_eq!(who(&proxy), "127.0.0.4");
        // A host without an address does not affect the others.
        let records = [record("a", port, 10, 3), record("gone", port, 10, 1)];
        dns.start(hosts, &records);
        until_names(&proxy, &[format!("127.0.0.2:{port}")]);
        let said = "_http._tcp.app.test: no name server has an address for gone.test";
        until("it is said", || proxy.stderr().contains(said));
    });
}

#[test]
fn localhost_is_one_endpoint_at_the_address_that_accepts() {
    test(|| {
        let (port, mut origins) = at_one_port(&["[::1]"]);
        let proxy = site_of("", &[format!("localhost:{port}")]);
        assert_eq!(endpoint_names(&proxy), [format!("localhost:{port}")]);
        assert_eq!(who(&proxy), "[::1]");
        origins.clear();
        let options = OriginOptions {
            name: "four".to_owned(),
            listen: format!("127.0.0.1:{port}").parse().unwrap(),
            ..OriginOptions::default()
        };
        let _four = Origin::listen(options).unwrap();
        until("it is found at the other address", || {
            let response = proxy.client().get("/origin/stats").unwrap();
            response.status == 200 && response.text().contains("four")
        });
    });
}

#[test]
fn a_file_of_endpoints_is_read_whenever_it_is_replaced() {
    test(|| {
        let [first, second] = ["first", "second"].map(named);
        let dir = TempDir::new().unwrap();
        let file = dir.join("app.endpoints.json");
        let list = |origins: &[&OriginHandle]| {
            let each = origins
                .iter()
                .map(|it| format!("{{\"address\": \"{}\"}}", it.address));
            format!("[{}]", each.collect::<Vec<_>>().join(","))
        };
        let keys = format!("endpoints_file = \"{}\"", file.display());
        // The file does not exist yet.
        let proxy = site_of(&keys, &[]);
        let failing = |word: &str| {
            until(word, || upstream(&proxy)["sources"][0]["failing"] == word);
        };
        failing("file-unreadable");
        replace_file(&file, &list(&[&first]));
        until_names(&proxy, &[first.address.to_string()]);
        assert_eq!(who(&proxy), "first");
        replace_file(&file, &list(&[&first, &second]));
        until_names(
            &proxy,
            &[first.address.to_string(), second.address.to_string()],
        );
        for (text, word) in [
            ("[{\"address\": ", "file-malformed"),
            ("{\"version\": 9, \"endpoints_v9\": []}", "file-version"),
            ("[\"10.0.0.1\"]", "file-malformed"),
        ] {
            replace_file(&file, text);
            failing(word);
            assert_eq!(endpoint_names(&proxy).len(), 2, "{text}");
            assert_eq!(proxy.client().get("/ping").unwrap().status, 200);
        }
        let shown = ask(&proxy, "show upstreams");
        assert!(!shown.is_empty());
        replace_file(&file, &list(&[&second]));
        until_names(&proxy, &[second.address.to_string()]);
        assert_eq!(who(&proxy), "second");
        assert_eq!(
            first.stats().connections,
            1,
            "its connection was kept while it was there"
        );
        let log = proxy.stderr();
        assert!(log.contains("file-version: version 9"), "{log}");
        let source = upstream(&proxy)["sources"][0].clone();
        assert!(
            source["failures"].as_u64() > Some(3) && source["failing"].is_null(),
            "{source}"
        );
    });
}

fn ctl(proxy: &Proxy, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(program());
    command.arg("ctl").arg("--socket");
    command.arg(proxy.path("control.sock")).args(args);
    let output = run(command, Duration::from_secs(20)).unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn an_operator_changes_the_list() {
    test(|| {
        let [first, second] = ["first", "second"].map(named);
        let (one, two) = (first.address.to_string(), second.address.to_string());
        let proxy = site_of("", std::slice::from_ref(&one));
        assert_eq!(who(&proxy), "first");
        let place = format!("app/{two}");
        let (code, said) = ctl(
            &proxy,
            &["endpoint", "add", &place, "--weight", "3", "--tier", "1"],
        );
        assert_eq!(
            (code, said.trim()),
            (
                Some(0),
                &*format!("endpoint {place} is added; until the program ends")
            )
        );
        let added = upstream(&proxy)["endpoints"][1].clone();
        assert_eq!((&added["weight"], &added["tier"]), (&3.into(), &1.into()));
        assert_eq!(who(&proxy), "first");
        assert_eq!(
            ctl(&proxy, &["endpoint", "set", &place, "--tier", "0"]).0,
            Some(0)
        );
        until("both serve", || who(&proxy) == "second");
        // Exchanges in flight at a leaving endpoint are finished.
        let removed = format!("app/{one}");
        let mut slow = None;
        until("an exchange is in flight there", || {
            slow = Some(occupy(&proxy, "/slow/500"));
            first.stats().in_flight > 0
        });
        assert_eq!(ctl(&proxy, &["endpoint", "remove", &removed]).0, Some(0));
        assert_eq!(endpoint_names(&proxy), std::slice::from_ref(&two));
        assert_eq!(slow.unwrap().read_response("GET").unwrap().status, 200);
        assert_eq!(who(&proxy), "second");
        let source = upstream(&proxy)["sources"][0].clone();
        assert_eq!(source["kind"], "operator");
        assert_eq!(source["source"], format!("added {two}; removed {one}"));
        for (args, says) in [
            (&["add", &place][..], "already has an endpoint"),
            (&["remove", &removed], "has no endpoint"),
            (&["set", &place], "endpoint set needs weight"),
            (
                &["add", "app/app.internal:80"],
                "`app.internal:80` is a name",
            ),
            (&["add", "app/10.0.0.1"], "not a valid address"),
            (
                &["add", "other/10.0.0.1:80"],
                "there is no upstream `other`; known upstreams: app",
            ),
            (
                &["add", "app/10.0.0.1:80", "--save"],
                "set `server.state_file`",
            ),
        ] {
            let (code, said) = ctl(&proxy, &[&["endpoint"], args].concat());
            assert_eq!(code, Some(1), "{args:?}: {said}");
            assert!(said.contains(says), "{args:?}: {said}");
        }
        // It returns with its written settings.
        assert_eq!(ctl(&proxy, &["endpoint", "add", &removed]).0, Some(0));
        assert_eq!(endpoint_names(&proxy), [one, two]);
        let log = proxy.stderr();
        assert!(
            log.contains("is added, by the operator, over the control socket as uid"),
            "{log}"
        );
    });
}

#[test]
fn haproxys_commands_change_the_list() {
    test(|| {
        let (port, _origins) = at_one_port(&["127.0.0.2", "127.0.0.3"]);
        let [one, two] = [2, 3].map(|at| format!("127.0.0.{at}:{port}"));
        let proxy = site_of("", std::slice::from_ref(&one));
        let add = format!("add server app/spare {two} weight 20 check inter 2s");
        let said = ask(&proxy, &format!("{add} save"));
        assert!(said.contains("use `endpoint add … save`"), "{said}");
        assert_eq!(ask(&proxy, &add).trim(), "New server registered.");
        assert_eq!(endpoint_names(&proxy), [one.clone(), "spare".to_owned()]);
        assert_eq!(ask(&proxy, &format!("disable server app/{one}")).trim(), "");
        assert_eq!(who(&proxy), "127.0.0.3");
        let moved = ask(
            &proxy,
            &format!("set server app/spare addr 127.0.0.2 port {port}"),
        );
        assert_eq!(moved.trim(), "");
        assert_eq!(who(&proxy), "127.0.0.2");
        // The port stays.
        let moved = ask(&proxy, "set server app/spare addr 127.0.0.3");
        assert_eq!(moved.trim(), "");
        assert_eq!(who(&proxy), "127.0.0.3");
        // A percentage refers to the listed weight, however often it is set.
        for _ in 0..2 {
            let said = ask(&proxy, "set server app/spare weight 50%");
            assert_eq!(said.trim(), "");
        }
        let weight = ask(&proxy, "get weight app/spare");
        assert_eq!(weight.trim(), "10 (initial 20)");
        let states = ask(&proxy, "show servers state");
        assert!(
            states.contains(" app 2 spare 127.0.0.3 2 0 10 20 "),
            "{states}"
        );
        let usage = ask(&proxy, "set server app/spare frob 1");
        assert!(usage.contains("addr <ip> [port <port>]"), "{usage}");
        assert_eq!(
            ask(&proxy, "del server app/spare").trim(),
            "Server deleted."
        );
        assert!(ask(&proxy, "del server app/spare").contains("has no endpoint"));
        assert_eq!(endpoint_names(&proxy), std::slice::from_ref(&one));
        // One that the configuration lists comes and goes as often.
        for _ in 0..2 {
            let said = ask(&proxy, &format!("del server app/{one}"));
            assert_eq!(said.trim(), "Server deleted.");
            assert_eq!(endpoint_names(&proxy), [""; 0]);
            let said = ask(&proxy, &format!("add server app/{one} {one} weight 3"));
            assert_eq!(said.trim(), "New server registered.");
            assert_eq!(endpoint_names(&proxy), std::slice::from_ref(&one));
        }
    });
}

#[test]
fn changes_that_are_saved_hold_at_the_next_start() {
    test(|| {
        let [first, second, third] = ["first", "second", "third"].map(named);
        let dir = TempDir::new().unwrap();
        let file = dir.join("state.json");
        let start = |endpoints: &[&OriginHandle]| {
            let endpoints: Vec<_> = endpoints.iter().map(|it| it.address.to_string()).collect();
            let server = format!(
                "control = \"$DIR/control.sock\"\nstate_file = \"{}\"",
                file.display()
            );
            let site = Site {
                server: &server,
                ..Site::default()
            };
            site.start(&endpoints)
        };
        let address = |it: &OriginHandle| it.address.to_string();
        let proxy = start(&[&first]);
        let [of_first, of_second, of_third] =
            [&first, &second, &third].map(|it| format!("app/{}", it.address));
        assert_eq!(
            ctl(&proxy, &["endpoint", "add", &of_second, "--save"]).0,
            Some(0)
        );
        assert_eq!(ctl(&proxy, &["endpoint", "add", &of_third]).0, Some(0));
        assert_eq!(
            ctl(&proxy, &["endpoint", "remove", &of_first, "--save"]).0,
            Some(0)
        );
        drop(proxy);
        // The endpoint that was not saved is gone.
        let proxy = start(&[&first]);
        assert_eq!(endpoint_names(&proxy), [address(&second)]);
        assert_eq!(who(&proxy), "second");
        drop(proxy);
        // Another list in the configuration wins.
        let proxy = start(&[&first, &third]);
        assert_eq!(endpoint_names(&proxy), [address(&first), address(&third)]);
        let log = proxy.stderr();
        let lost = format!(
            "the changes are lost: added {}; removed {}",
            address(&second),
            address(&first)
        );
        assert!(log.contains(&lost), "{log}");
        drop(proxy);
        // One that is corrupt, or of a later version, is no failed start.
        for (text, word) in [
            ("{\"version\": 1, \"upstr", "state-malformed"),
            ("{\"version\": 2, \"upstreams\": {}}", "state-version"),
            (
                "{\"version\": 1, \"upstreams\": {\"app\": {\"listed\": \"0\", \"added\": {\"x\": {}}}}}",
                "state-malformed",
            ),
        ] {
            std::fs::write(&file, text).unwrap();
            let proxy = start(&[&first]);
            let log = proxy.stderr();
            assert!(log.contains(&format!(": {word}: ")), "{text}: {log}");
            assert_eq!(endpoint_names(&proxy), [address(&first)]);
            assert_eq!(
                ctl(&proxy, &["endpoint", "add", &of_second, "--save"]).0,
                Some(0)
            );
            let aside = std::fs::read_to_string(dir.join("state.json.bad")).unwrap();
            assert_eq!(aside, text);
        }
        let proxy = start(&[&first]);
        assert_eq!(endpoint_names(&proxy), [address(&first), address(&second)]);
    });
}

#[test]
fn drains_and_weights_that_are_saved_hold_at_the_next_start() {
    test(|| {
        let [first, second] = ["first", "second"].map(named);
        let dir = TempDir::new().unwrap();
        let file = dir.join("state.json");
        let endpoints = [&first, &second].map(|it| it.address.to_string());
        let server = format!(
            "control = \"$DIR/control.sock\"\nstate_file = \"{}\"",
            file.display()
        );
        let site = Site {
            server: &server,
            ..Site::default()
        };
        let [of_first, of_second] = [&first, &second].map(|it| format!("app/{}", it.address));
        let shown = |proxy: &Proxy| {
            let shown = json(proxy, "show upstreams");
            let endpoints = shown[0]["endpoints"].as_array().unwrap().clone();
            endpoints
                .iter()
                .map(|it| {
                    (
                        it["state"].as_str().unwrap().to_owned(),
                        it["weight"].as_u64().unwrap(),
                    )
                })
                .collect::<Vec<_>>()
        };
        let are =
            |states: [(&str, u64); 2]| states.map(|(state, weight)| (state.to_owned(), weight));
        let proxy = site.start(&endpoints);
        let (code, said) = ctl(&proxy, &["drain", &of_first, "--save"]);
        assert_eq!(code, Some(0), "{said}");
        assert!(
            said.ends_with("it gets no new requests; saved for the next start\n"),
            "{said}"
        );
        assert_eq!(
            ctl(&proxy, &["weight", &of_second, "7", "--save"]).0,
            Some(0)
        );
        assert_eq!(shown(&proxy), are([("draining", 1), ("up", 7)]));
        drop(proxy);
        let proxy = site.start(&endpoints);
        assert_eq!(shown(&proxy), are([("draining", 1), ("up", 7)]));
        let log = proxy.stderr();
        assert!(
            log.contains("by the operator, from the state file"),
            "{log}"
        );
        // A change that is not saved holds until the next start, and the answer says so.
        let otherwise = |saved: &str| format!("the state file still has {saved}, which the next");
        let (_, said) = ctl(&proxy, &["drain", &of_first]);
        assert!(!said.contains("warning"), "{said}");
        let (_, said) = ctl(&proxy, &["ready", &of_first]);
        assert!(said.contains(&otherwise("`drain`")), "{said}");
        let (_, said) = ctl(&proxy, &["weight", &of_second, "3"]);
        assert!(said.contains(&otherwise("weight 7")), "{said}");
        assert_eq!(shown(&proxy), are([("up", 1), ("up", 3)]));
        drop(proxy);
        let proxy = site.start(&endpoints);
        assert_eq!(shown(&proxy), are([("draining", 1), ("up", 7)]));
        let (_, said) = ctl(&proxy, &["ready", &of_first, "--save"]);
        assert!(!said.contains("warning"), "{said}");
        // Not saved.
        assert_eq!(ctl(&proxy, &["stop", &of_second]).0, Some(0));
        drop(proxy);
        let proxy = site.start(&endpoints);
        assert_eq!(shown(&proxy), are([("up", 1), ("up", 7)]));
        assert_eq!(ctl(&proxy, &["weight", &of_second, "2"]).0, Some(0));
        assert_eq!(
            ctl(&proxy, &["weight", &of_second, "1", "--save"]).0,
            Some(0)
        );
        assert_eq!(shown(&proxy), are([("up", 1), ("up", 1)]));
        let without = SITE_WITHOUT_STATE.start(&endpoints);
        let (code, said) = ctl(&without, &["drain", &of_first, "--save"]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("set `server.state_file`"), "{said}");
        assert_eq!(shown(&without), are([("up", 1), ("up", 1)]));
    });
}

const SITE_WITHOUT_STATE: Site<'_> = Site {
    bind: "127.0.0.1:0",
    listener: "",
    upstream: "",
    server: "control = \"$DIR/control.sock\"",
};

#[test]
fn explain_says_why_an_endpoint_is_there() {
    test(|| {
        let (port, _origins) = at_one_port(&["127.0.0.2", "127.0.0.3"]);
        let mut dns = Dns::new();
        dns.start("127.0.0.2 app.test\n", &[]);
        let proxy = dns.site("", &[format!("app.test:{port}")]);
        ask(&proxy, &format!("endpoint add app/127.0.0.3:{port}"));
        let mut command = Command::new(program());
        let config = std::fs::read_dir(proxy.dir()).unwrap();
        let mut config = config.map(|it| it.unwrap().path());
        let is_toml = |it: &PathBuf| it.extension().is_some_and(|it| it == "toml");
        let config = config.find(is_toml);
        command
            .args(["explain", "--live", "--config"])
            .arg(config.unwrap());
        command.args(["GET", "http://test.example/"]);
        command.current_dir(proxy.dir());
        let output = run(command, Duration::from_secs(20)).unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(
            said.contains(&format!("; from name app.test:{port}, TTL ")),
            "{said}"
        );
        assert!(said.contains("; from added by the operator"), "{said}");
    });
}

#[test]
fn the_diff_names_what_operators_have_changed() {
    test(|| {
        let [one, two, three] =
            ["first", "second", "third"].map(|it| named(it).address.to_string());
        let proxy = site_of("", std::slice::from_ref(&one));
        assert_eq!(ask(&proxy, "diff").trim(), "nothing changes");
        ask(&proxy, &format!("endpoint add app/{two}"));
        ask(&proxy, &format!("weight app/{one} 5"));
        let changed = format!("added {two}; weight 5 of {one}");
        let expected = format!(
            "nothing changes\nupstream app: the running list differs from the file: {changed} \
             (not saved: lost when the program ends)"
        );
        assert_eq!(ask(&proxy, "diff").trim(), expected);
        // Other changes of the file do not touch them.
        let path = proxy.path("evenkeel.toml");
        let config = std::fs::read_to_string(&path).unwrap();
        let retried = config.replace("[upstream.app]", "[upstream.app]\nretries = 1");
        replace_file(&path, &retried);
        let said = ask(&proxy, "reload");
        assert!(said.starts_with("reloaded: "), "{said}");
        assert_eq!(ask(&proxy, "diff").trim(), expected);
        // Another list wins.
        let listed = format!("endpoints = [\"{one}\"");
        let other = format!("endpoints = [\"{three}\", \"{one}\"");
        replace_file(&path, &retried.replace(&listed, &other));
        let said = ask(&proxy, "diff");
        let lost = format!(
            "upstream app: the operator's changes are lost, because the file has another list: \
             {changed}"
        );
        assert!(said.contains(&lost), "{said}");
        let said = ask(&proxy, "reload");
        assert!(said.starts_with("reloaded: "), "{said}");
        assert_eq!(endpoint_names(&proxy), [three, one.clone()]);
        for lost in [format!("added {two}"), format!("weight 5 of {one}")] {
            let said = format!("the changes are lost: {lost}");
            until("it is said", || proxy.stderr().contains(&said));
        }
        assert_eq!(ask(&proxy, "diff").trim(), "nothing changes");
    });
}

#[test]
fn the_age_of_a_list_is_a_metric() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let file = dir.join("app.json");
        let keys = format!("endpoints_file = {file:?}");
        let site = Site {
            upstream: &keys,
            server: "[status]\nbind = \"127.0.0.1:0\"",
            ..Site::default()
        };
        let proxy = site.start(&[]);
        let age = || {
            let metrics = ask_status(&proxy, "/metrics", "").text();
            let name = "evenkeel_source_age_seconds{";
            let mut lines = metrics.lines().filter_map(|it| it.strip_prefix(name));
            let (labels, value) = lines.next()?.split_once("} ")?;
            assert_eq!(labels, format!("upstream=\"app\",source={file:?}"));
            value.parse::<f64>().ok()
        };
        // It was never read.
        assert_eq!(age(), None);
        replace_file(&file, "[\"127.0.0.1:1\"]");
        until("it is read", || age().is_some());
        replace_file(&file, "[");
        until("it grows", || age() > Some(0.2));
    });
}

#[test]
fn explain_says_why_an_endpoint_is_not_there() {
    test(|| {
        let (port, _origins) = at_one_port(&["127.0.0.2", "127.0.0.3"]);
        let mut dns = Dns::new();
        let args = ["--local-ttl=1".to_owned()];
        dns.start("127.0.0.2 app.test\n127.0.0.3 app.test\n", &args);
        let name = format!("app.test:{port}");
        let [removed, added, unlisted] = [(); 3].map(|()| nobody());
        let written = [
            name.clone(),
            "gone.test:81".to_owned(),
            removed.clone(),
            unlisted.clone(),
        ];
        let proxy = dns.site("", &written);
        let at = |at: u8| format!("127.0.0.{at}:{port}");
        for change in [
            format!("remove app/{removed}"),
            format!("add app/{added}"),
            format!("remove app/{added}"),
        ] {
            let said = ask(&proxy, &format!("endpoint {change}"));
            assert!(said.starts_with("endpoint app/"), "{said}");
        }
        dns.start("127.0.0.2 app.test\n", &args);
        until_names(&proxy, &[at(2), unlisted.clone()]);
        let asked = |name: &str| {
            let args = ["--endpoint", name, "GET", "http://test.example/"];
            live(&proxy, &args)["action"]["asked"].clone()
        };
        let by = "removed by the operator, over the control socket as uid ";
        let nowhere = format!(
            "it is not written in the configuration; name {name} does not give it; \
             name gone.test:81 can't be read: dns-not-found: "
        );
        for (endpoint, is_there, why) in [
            (&*at(2), true, &*format!("name {name}, TTL ")),
            (&at(3), false, &format!("name {name} no longer gives it")),
            (&removed, false, by),
            (&added, false, by),
            (
                "gone.test:81",
                false,
                "it is a name, which can't be read: dns-not-found: ",
            ),
            ("10.9.9.9:1", false, &nowhere),
        ] {
            let found = asked(endpoint);
            assert_eq!(found["is_there"], is_there, "{found}");
            let said = found["why"].as_str().unwrap();
            assert!(said.starts_with(why), "{endpoint}: {said}");
        }
        let config = proxy.path("evenkeel.toml");
        let args = [
            "--live",
            "--endpoint",
            &removed,
            "GET",
            "http://test.example/",
        ];
        let output = crate::explain::explain(&config, &args);
        let text = String::from_utf8(output.stdout).unwrap();
        for line in [
            format!("  endpoints of name {name}: 1 endpoint, read "),
            "  endpoints of name gone.test:81: 0 endpoints; it currently can't be read: \
             dns-not-found: "
                .to_owned(),
            format!("  changed by the operator: removed {removed}\n"),
            format!("  no endpoint {added}: {by}"),
            format!("  endpoint {removed} is not there: {by}"),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
        // Without the process nothing is looked up.
        let offline = crate::explain::explain(&config, &["GET", "http://test.example/"]);
        let text = String::from_utf8(offline.stdout).unwrap();
        assert!(
            text.contains(&format!("  endpoints of name {name}\n")),
            "{text}"
        );
        let shown = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, shown.replace(&format!(", \"{unlisted}\""), "")).unwrap();
        let said = ask(&proxy, "reload");
        assert!(said.starts_with("reloaded: "), "{said}");
        assert_eq!(
            asked(&unlisted)["why"],
            "the configuration no longer lists it"
        );
    });
}
