//! The PROXY protocol on TCP connections: headers to endpoints and from clients, also with
//! HAProxy and nginx on the other side.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use evenkeel_proto::proxy_protocol::parse;
use evenkeel_testkit::deadline::until;
use evenkeel_testkit::process::{Peer, Running};
use evenkeel_testkit::{Proxy, RawClient, TempDir};

use super::hello::hello;
use super::{before, echo, line, saying, start};
use crate::proxy_protocol::{
    self, FROM_HERE, SIGNATURE, binary, binary_line, binary_with_checksum,
};
use crate::proxy_protocol_peers::{CLIENTS, FROM_PEER, haproxy};
use crate::setup::test;

/// A listener that reads headers, before these endpoints.
fn reading(presence: &str, endpoint: &str, upstream: &str) -> Proxy {
    start(
        presence,
        &format!(
            "[[route]]\nupstream = \"app\"\n[upstream.app]\nendpoints = [\"{endpoint}\"]\n{upstream}"
        ),
    )
}

#[test]
fn a_client_is_told_and_known_by_the_proxy_protocol() {
    test(|| {
        let origin = echo();
        let proxy = before(&[origin.address.to_string()], "proxy_protocol = \"v1\"");
        let mut client = proxy.client();
        client.send("hello").unwrap();
        let port = proxy.socket_addr("web").port();
        let expected = "PROXY TCP4 127.0.0.1 127.0.0.1 ";
        assert_eq!(
            client.read_len(expected.len()).unwrap(),
            expected.as_bytes()
        );
        let rest = format!(" {port}\r\nhello");
        let all = client.read_len("12345".len() + rest.len()).unwrap();
        assert!(all.ends_with(rest.as_bytes()), "{}", all.escape_ascii());
        // The PROXY header is not part of the client's bytes.
        let upstream = format!(
            "[[route]]\nmatch = {{ client = \"192.0.2.9\" }}\nupstream = \"app\"\n\
             [upstream.app]\nendpoints = [\"{}\"]",
            origin.address
        );
        let proxy = start("proxy_protocol = { from = [\"127.0.0.1\"] }", &upstream);
        let mut client = proxy.client();
        client
            .send("PROXY TCP4 192.0.2.9 192.0.2.1 4000 5432\r\nhello")
            .unwrap();
        assert_eq!(client.read_len(5).unwrap(), b"hello");
        drop(client);
        assert_eq!(line(&proxy)["client"], "192.0.2.9");
        // Without the header it is closed, and not answered.
        let mut client = proxy.client();
        client.send("hello").unwrap();
        assert!(client.is_closed());
        until("it is logged", || proxy.access_log().len() == 2);
        assert_eq!(proxy.access_log_json()[1]["end"], "proxy-header");
    });
}

#[test]
fn a_header_may_be_split_anywhere() {
    test(|| {
        let origin = echo();
        let proxy = reading(FROM_HERE, &origin.address.to_string(), "");
        let mut count = 0;
        for (header, client) in [
            (proxy_protocol::line("192.0.2.7"), "192.0.2.7"),
            (binary_line(), "192.0.2.7"),
            (binary_with_checksum(), "192.0.2.7"),
            // Connections of the proxy's own.
            (binary(0x20, 0, b""), "127.0.0.1"),
            (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        ] {
            let all = [&header, &b"hello"[..]].concat();
            for cut in 1..=header.len() {
                let mut connection = proxy.client();
                connection.send(&all[..cut]).unwrap();
                connection.send(&all[cut..]).unwrap();
                assert_eq!(connection.read_len(5).unwrap(), b"hello", "cut at {cut}");
                drop(connection);
                count += 1;
                until("it is logged", || proxy.access_log().len() == count);
                let lines = proxy.access_log_json();
                let line = &lines[count - 1];
                assert_eq!(line["client"], client, "cut at {cut}: {line}");
                assert_eq!(line["bytes_in"], 5, "{line}");
            }
        }
    });
}

#[test]
fn a_header_that_lies_is_refused_and_nobody_else_is_believed() {
    test(|| {
        let origin = echo();
        let address = origin.address.to_string();
        let timeouts = "timeouts = { head = \"300ms\" }";
        let proxy = reading(&format!("{FROM_HERE}\n{timeouts}"), &address, "");
        let addresses = [192, 0, 2, 7, 10, 0, 0, 1, 0x12, 0x67, 0, 80];
        let with = |tlvs: &[u8]| binary(0x21, 0x11, &[&addresses[..], tlvs].concat());
        let mut wrong = binary_with_checksum();
        wrong[16] ^= 1;
        let mut longer = with(&[]);
        longer[15] += 200;
        for (header, end) in [
            (with(&[4, 0, 9, 0, 0]), "proxy-header"),
            (with(&[4, 0]), "proxy-header"),
            (binary(0x21, 0x11, &[0; 4]), "proxy-header"),
            (binary(0x21, 0x11, &[0; 4081]), "proxy-header"),
            (b"PROXY TCP4 192.0.2.7\r\n".to_vec(), "proxy-header"),
            (wrong, "proxy-header"),
            (longer, "proxy-header-timeout"),
            (SIGNATURE.to_vec(), "proxy-header-timeout"),
            (b"".to_vec(), "proxy-header-timeout"),
        ] {
            let before = proxy.access_log().len();
            let mut client = proxy.client();
            client.send(&header).unwrap();
            assert!(client.is_closed(), "{header:?}");
            until("it is logged", || proxy.access_log().len() == before + 1);
            let lines = proxy.access_log_json();
            assert_eq!(lines[before]["end"], end, "{header:?}");
        }
        let before = proxy.access_log().len();
        let mut cut = proxy.client();
        cut.send_last(&binary_line()[..20]).unwrap();
        assert!(cut.is_closed());
        until("it is logged", || proxy.access_log().len() == before + 1);
        assert_eq!(proxy.access_log_json()[before]["end"], "client-gone");
        assert_eq!(origin.connections(), 0);

        // From an address that is not trusted it is the client's own data.
        let from_elsewhere = "proxy_protocol = { from = [\"192.0.2.0/24\"] }";
        let proxy = reading(from_elsewhere, &address, "");
        let mut client = proxy.client();
        client.send(binary_line()).unwrap();
        assert_eq!(client.read_len(binary_line().len()).unwrap(), binary_line());
        drop(client);
        assert_eq!(line(&proxy)["client"], "127.0.0.1");
    });
}

#[test]
fn an_endpoint_is_told_the_name_that_a_client_of_tls_gives() {
    test(|| {
        let origin = echo();
        let listener = "proxy_protocol = { from = [\"127.0.0.1\"] }";
        let route = "[[route]]\nmatch = { sni = \"a.test\" }\nupstream = \"app\"\n";
        let upstream = format!(
            "[upstream.app]\nendpoints = [\"{}\"]\nproxy_protocol = \"v2\"",
            origin.address
        );
        let proxy = start(listener, &format!("{route}{upstream}"));
        let mut client = proxy.client();
        let first = hello("a.test", &[]);
        client.send([&binary_line(), &first[..]].concat()).unwrap();
        let fixed = client.read_len(16).unwrap();
        let len = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
        let bytes = [fixed, client.read_len(len).unwrap()].concat();
        let header = parse(&bytes).unwrap().unwrap();
        let connection = header.connection(&bytes);
        assert_eq!(
            connection.addresses.unwrap().0,
            "192.0.2.7:4711".parse().unwrap()
        );
        assert_eq!(connection.extensions.authority, Some(&b"a.test"[..]));
        assert_eq!(client.read_len(first.len()).unwrap(), first);
    });
}

#[test]
fn haproxy_in_mode_tcp_reads_and_writes_headers() {
    test(|| {
        let origin = echo();
        for version in ["v1", "v2"] {
            // Here, then HAProxy, then here again, then the origin: each tells the next.
            let last = reading(
                FROM_PEER,
                &origin.address.to_string(),
                "proxy_protocol = \"v1\"",
            );
            let dir = TempDir::new().unwrap();
            let send = if version == "v1" {
                "send-proxy"
            } else {
                "send-proxy-v2"
            };
            let backend = format!(
                " mode tcp\n default_backend app\nbackend app\n mode tcp\n \
                 server one {} source 127.0.0.2 {send}\n",
                last.address("web")
            );
            let (_haproxy, socket) = haproxy(&dir, &backend);
            let upstream = format!("proxy_protocol = \"{version}\"");
            let endpoint = format!("unix:{}", socket.display());
            let first = reading(FROM_HERE, &endpoint, &upstream);
            for (header, _) in CLIENTS {
                let header = format!("PROXY {header}\r\n");
                let mut client = first.client();
                client.send(format!("{header}hello")).unwrap();
                let told = client.read_len(header.len() + 5).unwrap();
                assert_eq!(
                    String::from_utf8(told).unwrap(),
                    format!("{header}hello"),
                    "{version}"
                );
            }
        }
    });
}

#[test]
fn nginx_as_a_stream_reads_and_writes_headers() {
    test(|| {
        let origin = echo();
        let last = reading(
            FROM_PEER,
            &origin.address.to_string(),
            "proxy_protocol = \"v1\"",
        );
        let dir = TempDir::new().unwrap();
        let at = dir.path().display();
        // No other socket listens at this address.
        let free = TcpListener::bind("127.0.77.2:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let config = format!(
            "load_module /usr/lib/nginx/modules/ngx_stream_module.so;
             daemon off; master_process off; pid {at}/nginx.pid; error_log {at}/error.log;
             events {{ worker_connections 64; }}
             stream {{
               server {{
                 listen unix:{at}/read.sock proxy_protocol;
                 return \"$proxy_protocol_addr $proxy_protocol_port \
                 $proxy_protocol_server_addr $proxy_protocol_server_port\";
               }}
               server {{
                 listen {free};
                 proxy_bind 127.0.0.2; proxy_protocol on; proxy_pass {};
               }}
             }}",
            last.address("web")
        );
        let reads = dir.join("read.sock");
        let _nginx = Running::start_peer(Peer::Nginx, &dir, &config, &reads).unwrap();
        for version in ["v1", "v2"] {
            let upstream = format!("proxy_protocol = \"{version}\"");
            let first = reading(FROM_HERE, &format!("unix:{}", reads.display()), &upstream);
            for (header, told) in CLIENTS {
                let mut client = first.client();
                client.send(format!("PROXY {header}\r\n")).unwrap();
                assert_eq!(client.read_to_end().unwrap(), told.as_bytes(), "{version}");
            }
        }
        let mut client = RawClient::connect(free).unwrap();
        client.send("hello").unwrap();
        let start = "PROXY TCP4 127.0.0.1 127.0.77.2 ";
        let told = client.read_len(start.len()).unwrap();
        assert_eq!(String::from_utf8(told).unwrap(), start);
        drop(client);
        assert_eq!(line(&last)["client"], "127.0.0.1");
    });
}

#[test]
fn a_silent_client_that_may_leave_the_header_out_is_taken_without_it() {
    test(|| {
        let origin = saying("220 ready\r\n");
        let optional = FROM_HERE.replace(" }", ", optional = true }");
        let timeouts = "timeouts = { first_bytes = \"300ms\", head = \"20s\" }";
        let address = origin.address.to_string();
        let proxy = reading(&format!("{optional}\n{timeouts}"), &address, "");
        // Its server begins.
        let begun = Instant::now();
        let mut client = proxy.client();
        assert_eq!(client.read_len(11).unwrap(), b"220 ready\r\n");
        let took = begun.elapsed();
        assert!((300..5000).contains(&took.as_millis()), "{took:?}");
        client.send("PROXY it is not\r\n").unwrap();
        assert_eq!(client.read_len(17).unwrap(), b"PROXY it is not\r\n");
        drop(client);
        let first = line(&proxy);
        assert_eq!(
            (&first["end"], &first["client"]),
            (&"tunnel".into(), &"127.0.0.1".into())
        );
        // A client that speaks first is routed without a wait, with a header and without.
        for (says, header) in [("hello", &b""[..]), ("hello", &binary_line())] {
            let begun = Instant::now();
            let mut client = proxy.client();
            client.send([header, says.as_bytes()].concat()).unwrap();
            assert_eq!(client.read_len(16).unwrap(), b"220 ready\r\nhello");
            assert!(begun.elapsed() < Duration::from_millis(300));
        }
        // A connection that may have begun a header is closed.
        let mut client = proxy.client();
        client.send("\r\n").unwrap();
        assert!(client.is_closed());
        until("all are logged", || proxy.access_log().len() == 4);
        let last = &proxy.access_log_json()[3];
        assert_eq!(last["end"], "proxy-header-timeout", "{last}");
    });
}
