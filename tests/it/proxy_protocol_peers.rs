//! The PROXY protocol with third-party peers. HAProxy and nginx read our headers, and we read
//! theirs. A test fails if its peer is missing.

use std::net::TcpListener;
use std::path::PathBuf;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::process::{Peer, Running};
use evenkeel_testkit::{Proxy, RawClient, TempDir};

use crate::foreign_origins::start_nginx;
use crate::proxy_protocol::forwarded_for;
use crate::setup::{Site, get, test};

/// The option of a listener whose clients are proxies.
pub const FROM_PEER: &str = "proxy_protocol = { from = \"127.0.0.2\" }";

/// HAProxy that reads headers at the Unix socket, and goes on as `rest` says.
pub fn haproxy(dir: &TempDir, rest: &str) -> (Running, PathBuf) {
    let socket = dir.join("haproxy.sock");
    let config = format!(
        "defaults\n mode http\n timeout client 5s\n timeout server 5s\n timeout connect 5s\n\
         frontend web\n bind unix@{} accept-proxy\n{rest}",
        socket.display()
    );
    let running = Running::start_peer(Peer::Haproxy, dir, &config, &socket).unwrap();
    (running, socket)
}

/// The program in front of an endpoint that reads headers of this version.
fn in_front_of(endpoint: PathBuf, version: &str) -> Proxy {
    let site = Site {
        listener: "proxy_protocol = { from = \"127.0.0.0/8\" }\nrequest_id = \"keep\"",
        upstream: &format!("proxy_protocol = \"{version}\"\nhealth = {{ interval = \"100ms\" }}"),
        ..Site::default()
    };
    site.start(&[format!("unix:{}", endpoint.display())])
}

/// Clients as headers of version 1 tell of them, and their addresses.
pub const CLIENTS: [(&str, &str); 2] = [
    (
        "TCP4 192.0.2.7 10.0.0.1 4711 80",
        "192.0.2.7 4711 10.0.0.1 80",
    ),
    (
        "TCP6 2001:db8::7 2001:db8::1 4711 80",
        "2001:db8::7 4711 2001:db8::1 80",
    ),
];

#[test]
fn haproxy_reads_what_is_written() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let answer = "http-request return status 200 content-type text/plain lf-string \
            \"%[src] %[src_port] %[dst] %[dst_port] %[fc_pp_authority] %[fc_pp_unique_id]\"";
        let (_haproxy, socket) = haproxy(&dir, &format!(" {answer}\n"));
        for (version, rest) in [("v1", "  "), ("v2", " a.example id-7")] {
            let proxy = in_front_of(socket.clone(), version);
            for (header, told) in CLIENTS {
                let mut client = proxy.client();
                client.send(format!("PROXY {header}\r\n")).unwrap();
                for _ in 0..3 {
                    let request = "GET / HTTP/1.1\r\nHost: a.example\r\nX-Request-ID: id-7\r\n\r\n";
                    let text = client.ask(request).unwrap().text();
                    assert_eq!(text, format!("{told}{rest}"), "{version}");
                }
            }
        }
    });
}

#[test]
fn nginx_reads_what_is_written() {
    test(|| {
        let dir = TempDir::new().unwrap();
        let socket = dir.join("headers.sock");
        let server = format!(
            "listen unix:{} proxy_protocol;
             return 200 \"$proxy_protocol_addr $proxy_protocol_port \
             $proxy_protocol_server_addr $proxy_protocol_server_port\";",
            socket.display()
        );
        let _nginx = start_nginx(&dir, "", &server);
        for version in ["v1", "v2"] {
            let proxy = in_front_of(socket.clone(), version);
            for (header, told) in CLIENTS {
                let mut client = proxy.client();
                client.send(format!("PROXY {header}\r\n")).unwrap();
                for _ in 0..3 {
                    assert_eq!(client.ask(get("/")).unwrap().text(), told, "{version}");
                }
            }
        }
    });
}

#[test]
fn what_haproxy_writes_is_read() {
    test(|| {
        let (origin, proxy) = Site {
            listener: FROM_PEER,
            ..Site::default()
        }
        .with_origin();
        for options in [
            "send-proxy",
            "send-proxy-v2",
            "send-proxy-v2 proxy-v2-options crc32c,unique-id,authority,ssl,cert-cn",
        ] {
            let dir = TempDir::new().unwrap();
            let backend = format!(
                " unique-id-format %[uuid()]\n default_backend app\nbackend app\n \
                 option httpchk GET /ping\n server one {} source 127.0.0.2 check inter 100ms {options}\n",
                proxy.address("web")
            );
            let probed = origin.stats().requests;
            let (_haproxy, socket) = haproxy(&dir, &backend);
            // The peer's own checks name no client.
            until("it is probed", || origin.stats().requests >= probed + 2);
            for (header, told) in CLIENTS {
                let mut client = RawClient::connect_unix(&socket).unwrap();
                client.send(format!("PROXY {header}\r\n")).unwrap();
                let response = client.ask(get("/headers")).unwrap();
                assert_eq!(response.status, 200, "{options}");
                let client = told.split(' ').next();
                assert_eq!(forwarded_for(&response).as_deref(), client, "{options}");
            }
        }
        let refused = proxy.access_log_json();
        let refused: Vec<_> = refused.iter().filter(|it| it["status"] != 200).collect();
        assert!(refused.is_empty(), "{refused:?}");
    });
}

#[test]
fn what_nginx_writes_is_read() {
    test(|| {
        let (_origin, proxy) = Site {
            listener: FROM_PEER,
            ..Site::default()
        }
        .with_origin();
        let dir = TempDir::new().unwrap();
        let at = dir.path().display();
        // No other socket listens at this address.
        let free = TcpListener::bind("127.0.77.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let config = format!(
            "load_module /usr/lib/nginx/modules/ngx_stream_module.so;
             daemon off; master_process off; pid {at}/nginx.pid; error_log {at}/error.log;
             events {{ worker_connections 64; }}
             stream {{ server {{
               listen {free}; listen unix:{at}/nginx.sock;
               proxy_bind 127.0.0.2; proxy_protocol on; proxy_pass {};
             }} }}",
            proxy.address("web")
        );
        let socket = dir.join("nginx.sock");
        let _nginx = Running::start_peer(Peer::Nginx, &dir, &config, &socket).unwrap();
        // A client with an address, and one without (`PROXY UNKNOWN`).
        let mut client = RawClient::connect(free).unwrap();
        let mut local = RawClient::connect_unix(&socket).unwrap();
        for _ in 0..3 {
            let response = client.ask(get("/headers")).unwrap();
            assert_eq!(forwarded_for(&response).as_deref(), Some("127.0.0.1"));
            let response = local.ask(get("/headers")).unwrap();
            assert_eq!(forwarded_for(&response).as_deref(), Some("127.0.0.2"));
        }
    });
}
