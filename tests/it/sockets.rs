//! Unix sockets and IPv6, on both sides.

use std::path::Path;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::origin::OriginListener;
use evenkeel_testkit::{Origin, OriginHandle, OriginOptions, Proxy, RawClient, TempDir};

use crate::setup::{Site, assert_serves, figures, origin, program, test};

fn origin_at(address: &str) -> OriginHandle {
    let listener = OriginListener::bind(&address.parse().unwrap()).unwrap();
    Origin::start(OriginOptions::default(), listener).unwrap()
}

fn client_of(proxy: &Proxy) -> RawClient {
    let address = proxy.address("web");
    match address.strip_prefix("unix:") {
        Some(path) => RawClient::connect_unix(Path::new(path)).unwrap(),
        None => RawClient::connect(address).unwrap(),
    }
}

#[test]
fn every_kind_of_socket_on_each_side() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let unix_origin = format!("unix:{}", dir.join("origin.sock").display());
        for bind in ["127.0.0.1:0", "[::1]:0", "unix:$DIR/web.sock"] {
            for at in ["127.0.0.1:0", "[::1]:0", unix_origin.as_str()] {
                eprintln!("clients at {bind}, origin at {at}");
                let origin = origin_at(at);
                let proxy = Site {
                    bind,
                    ..Site::default()
                }
                .start(&[origin.address.to_string()]);
                let mut client = client_of(&proxy);
                assert_serves(&mut client);
                let response =
                    client.ask("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
                assert_eq!(response.unwrap().text(), "hi");
            }
        }
    });
}

#[test]
fn an_ipv6_client_is_named_as_forwarded_wants_it() {
    test(|| {
        let origin = origin();
        let proxy = Site {
            bind: "[::1]:0",
            upstream: "forward = [\"x-forwarded\", \"forwarded\"]",
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        let text = proxy
            .client()
            .get("/headers")
            .unwrap()
            .text()
            .to_lowercase();
        assert!(text.contains("for=\"[::1]\""), "{text}");
        assert!(text.contains("x-forwarded-for: ::1"), "{text}");
    });
}

#[test]
fn a_unix_socket_left_over_is_replaced_and_removed_at_the_end() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let path = dir.join("web.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let origin = origin();
        let bind = format!("unix:{}", path.display());
        let mut proxy = Site {
            bind: &bind,
            ..Site::default()
        }
        .start(&[origin.address.to_string()]);
        assert_serves(&mut client_of(&proxy));
        proxy.terminate();
        assert!(
            proxy
                .wait(evenkeel_testkit::deadline::STEP)
                .unwrap()
                .success()
        );
        assert!(!path.exists(), "the socket is left behind");
    });
}

/// With SO_REUSEPORT a second process would take a share of the connections
/// without anybody noticing.
#[test]
fn an_address_that_is_listened_on_is_refused() {
    test(|| {
        let origin = origin();
        let first = Site::default().start(&[origin.address.to_string()]);
        let taken = first.socket_addr("web").to_string();
        let config = Site {
            bind: &taken,
            ..Site::default()
        }
        .config(&[origin.address.to_string()]);
        let error = Proxy::start(program(), &config).expect_err("it must not start");
        assert!(
            error.to_string().contains("Address already in use"),
            "{error}"
        );
        assert_serves(&mut first.client());
    });
}

/// Another program that takes the path gets later connections. Open connections are still
/// served, and the event log reports it.
#[test]
fn a_path_that_another_program_takes_is_said() {
    test(|| {
        let origin = origin();
        let dir = TempDir::new().unwrap();
        let path = dir.join("web.sock");
        let bind = format!("unix:{}", path.display());
        let site = Site {
            bind: &bind,
            server: "control = \"$DIR/control.sock\"\n[status]\nbind = \"127.0.0.1:0\"",
            ..Site::default()
        };
        let proxy = site.start(&[origin.address.to_string()]);
        let mut client = RawClient::connect_unix(&path).unwrap();
        assert_serves(&mut client);
        std::fs::remove_file(&path).unwrap();
        until("it is said", || {
            proxy.stderr().contains("listener web: path-removed: ")
        });
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        until("it is said", || {
            proxy.stderr().contains("listener web: path-taken: ")
        });
        let lost = figures(&proxy)["listener_paths_lost"].clone();
        assert_eq!(
            lost,
            serde_json::json!({ "path-taken": 1, "path-removed": 1 })
        );
        // A reload neither ends open connections nor touches the other program's file.
        let said = crate::control::ask(&proxy, "reload");
        assert!(said.starts_with("reloaded: "), "{said}");
        assert_serves(&mut client);
        drop(proxy);
        assert!(path.exists());
        drop(other);
        // A listener that would be there is refused.
        let other = std::os::unix::net::UnixListener::bind(dir.join("new.sock")).unwrap();
        let proxy = Site {
            bind: "127.0.0.1:0",
            ..site
        }
        .start(&[origin.address.to_string()]);
        let config = std::fs::read_to_string(proxy.path("evenkeel.toml")).unwrap();
        let taken = dir.join("new.sock").display().to_string();
        let listener = format!("[[listener]]\nname = \"new\"\nbind = \"unix:{taken}\"\n");
        std::fs::write(proxy.path("evenkeel.toml"), config + &listener).unwrap();
        let said = crate::control::ask(&proxy, "reload");
        assert!(
            said.starts_with("error: ") && said.contains(&taken),
            "{said}"
        );
        until("it is said", || {
            let line = "(failed); the old configuration stays in force";
            proxy.stderr().contains(line)
        });
        assert_eq!(figures(&proxy)["reloads_refused_by_reason"]["failed"], 1);
        assert_serves(&mut proxy.client());
        drop(other);
    });
}
