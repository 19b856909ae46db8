//! The hand-over of knowledge about upstreams from one process to the next.

use std::os::unix::fs::PermissionsExt;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Origin, OriginOptions, Proxy, TempDir, replace_file};
use serde_json::Value;

use crate::control::{ask, json, site_of};
use crate::discovery::{Dns, at_one_port, endpoint_names, upstream};
use crate::explain::live;
use crate::setup::{Site, assert_serves, get, nobody, origin, program, test};
use crate::upgrade::Successors;

/// The endpoint at this place.
fn endpoint(proxy: &Proxy, at: usize) -> Value {
    upstream(proxy)["endpoints"][at].clone()
}

#[test]
fn balancers_go_on_from_what_they_have_learned() {
    test(|| {
        let fast = origin();
        let slow = Origin::local(OriginOptions {
            service: Some("fixed:40ms".parse().unwrap()),
            ..OriginOptions::default()
        })
        .unwrap();
        for balance in ["peak-ewma", "adaptive"] {
            let keys = format!("balance = \"{balance}\"");
            let endpoints = [&slow, &fast].map(|it| it.address.to_string());
            let proxy = site_of(&keys, &endpoints);
            let successors = Successors(&proxy);
            let mut client = proxy.client();
            for _ in 0..60 {
                assert_serves(&mut client);
            }
            let learned = || {
                let step = live(&proxy, &["GET", "http://test.example/"])["action"].clone();
                [0, 1].map(|at| {
                    let learned = &step["endpoints"][at]["learned"];
                    let kinds = ["slowness", "first_byte_us"];
                    let range = kinds.iter().find_map(|kind| learned[kind].as_array());
                    range.map(|it| it[0].as_f64().unwrap())
                })
            };
            let ratio = |[slow, fast]: [Option<f64>; 2]| Some(slow? / fast?);
            let before = ratio(learned());
            assert!(before > Some(1.2), "{balance}: {before:?}");
            successors.upgrade();
            let after = ratio(learned());
            // Learned factors fade, and show only when an endpoint answers.
            assert!(
                after > Some(1.1) && after < before.map(|it| it * 3.0),
                "{balance}: {after:?} after {before:?}"
            );
        }
    });
}

#[test]
fn what_operators_have_changed_holds_in_the_next_process() {
    test(|| {
        let origins = [origin(), origin(), origin()];
        let [one, two, three] = origins.each_ref().map(|it| it.address.to_string());
        let dir = TempDir::new().unwrap();
        let server = format!(
            "control = \"$DIR/control.sock\"\nstate_file = \"{}\"",
            dir.join("state.json").display()
        );
        let site = Site {
            server: &server,
            ..Site::default()
        };
        let proxy = site.start(&[one.clone(), two.clone()]);
        let successors = Successors(&proxy);
        for command in [
            format!("endpoint add app/{three} weight 4"),
            format!("endpoint remove app/{two} save"),
            format!("endpoint set app/{one} tier 1 save"),
            format!("weight app/{three} 7"),
            // The saved changes are not all changes.
            format!("endpoint add app/{two} save"),
            format!("endpoint remove app/{two}"),
        ] {
            let said = ask(&proxy, &command);
            assert!(said.contains("is "), "{command}: {said}");
        }
        let shown = |proxy: &Proxy| {
            let upstream = upstream(proxy);
            let endpoints = upstream["endpoints"].as_array().unwrap().iter();
            let endpoints = endpoints.map(|it| {
                let part = |key: &str| it[key].to_string();
                (part("name"), part("weight"), part("tier"))
            });
            let operator = upstream["sources"][0]["source"].to_string();
            (endpoints.collect::<Vec<_>>(), operator)
        };
        let before = shown(&proxy);
        assert_eq!(endpoint_names(&proxy), [one.clone(), three.clone()]);
        for _ in 0..2 {
            successors.upgrade();
            assert_eq!(shown(&proxy), before);
        }
        let text = live_text(&proxy);
        assert!(text.contains("; from added by the operator"), "{text}");
        // The file wins where it lists others.
        let path = proxy.path("evenkeel.toml");
        let config = std::fs::read_to_string(&path).unwrap();
        let listed = format!("endpoints = [\"{one}\", \"{two}\"]");
        assert!(config.contains(&listed), "{config}");
        let other = format!("endpoints = [\"{one}\", \"{two}\", \"{three}\"]");
        std::fs::write(&path, config.replace(&listed, &other)).unwrap();
        successors.upgrade();
        assert_eq!(endpoint_names(&proxy), [one, two, three]);
        assert_eq!(endpoint(&proxy, 2)["weight"], 1);
        until("the event log says what is lost", || {
            proxy.stderr().contains("the changes are lost: ")
        });
    });
}

fn live_text(proxy: &Proxy) -> String {
    let config = proxy.path("evenkeel.toml");
    let args = ["--live", "GET", "http://test.example/"];
    let output = crate::explain::explain(&config, &args);
    String::from_utf8(output.stdout).unwrap()
}

/// An upgrade while no source can be asked.
#[test]
fn sources_keep_their_last_list() {
    test(|| {
        let (port, _origins) = at_one_port(&["127.0.0.2", "127.0.0.3"]);
        let [one, two] = [2, 3].map(|at| format!("127.0.0.{at}:{port}"));
        let mut dns = Dns::new();
        dns.start("127.0.0.2 app.test\n", &[]);
        let dir = TempDir::new().unwrap();
        let file = dir.join("app.endpoints.json");
        let list = format!("[{{\"address\": \"{two}\", \"weight\": 3, \"max_in_flight\": 9}}]");
        replace_file(&file, &list);
        let keys = format!("endpoints_file = \"{}\"", file.display());
        let proxy = dns.site(&keys, &[format!("app.test:{port}")]);
        let successors = Successors(&proxy);
        let expected = [one, two];
        assert_eq!(endpoint_names(&proxy), expected);
        dns.stop();
        std::fs::remove_file(&file).unwrap();
        for _ in 0..2 {
            successors.upgrade();
            assert_eq!(endpoint_names(&proxy), expected);
            let second = endpoint(&proxy, 1);
            assert_eq!(
                (&second["weight"], &second["max_in_flight"]),
                (&3.into(), &9.into())
            );
            assert_serves(&mut proxy.client());
        }
        until("the file fails", || {
            upstream(&proxy)["sources"][1]["failing"] == "file-unreadable"
        });
        assert!(upstream(&proxy)["sources"][0]["read_unix_ms"].as_u64() > Some(0));
    });
}

/// The new process gets the state at its readiness, not at its start.
#[test]
fn a_drain_while_the_next_process_starts_is_not_lost() {
    test(|| {
        let origins = [origin(), origin()];
        let [one, two] = origins.each_ref().map(|it| it.address.to_string());
        let dead = nobody();
        let proxy = site_of("", &[one.clone(), dead.clone()]);
        let successors = Successors(&proxy);
        let (marker, binary) = (proxy.path("started"), proxy.path("late"));
        let go = proxy.path("go");
        let lines = format!(
            "#!/bin/sh\n: > {}\nwhile [ ! -e {} ]; do sleep 0.05; done\nexec {} \"$@\"\n",
            marker.display(),
            go.display(),
            program()
        );
        std::fs::write(&binary, lines).unwrap();
        std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::thread::scope(|scope| {
            let upgrade = scope.spawn(|| ask(&proxy, &format!("upgrade {}", binary.display())));
            until("it starts", || marker.exists());
            ask(&proxy, &format!("drain app/{one}"));
            ask(&proxy, &format!("endpoint add app/{two}"));
            until("it can't be reached", || {
                let _ = proxy.client().ask(get("/ping"));
                endpoint(&proxy, 1)["state"] == "unreachable"
            });
            std::fs::write(&go, "").unwrap();
            let said = upgrade.join().unwrap();
            assert!(said.contains("has taken over"), "{said}");
        });
        until("the event log says so", || !successors.pids().is_empty());
        assert_eq!(endpoint_names(&proxy), [one, dead, two]);
        let states: Vec<_> = json(&proxy, "show upstreams")[0]["endpoints"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["state"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(states, ["draining", "unreachable", "up"]);
        assert_serves(&mut proxy.client());
    });
}

#[test]
fn the_last_probe_is_known() {
    test(|| {
        let origin = origin();
        let keys = "health = { path = \"/ping\", interval = \"1h\" }";
        let proxy = site_of(keys, &[origin.address.to_string()]);
        let successors = Successors(&proxy);
        until("it was probed", || {
            !endpoint(&proxy, 0)["last_probe"].is_null()
        });
        successors.upgrade();
        let probe = endpoint(&proxy, 0)["last_probe"].clone();
        assert_eq!(
            (&probe["passed"], &probe["end"]),
            (&true.into(), &"answered".into())
        );
    });
}
