//! Routes by a client's first bytes: names in a ClientHello, and other beginnings.

use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::process::run;
use evenkeel_testkit::{Proxy, RawClient, RawOrigin};

use super::{line, saying, start};
use crate::setup::test;
use evenkeel_testkit::servers::Server;

/// How long a client has for its first bytes.
const FIRST_BYTES: Duration = Duration::from_millis(300);

/// Routes by a client's first bytes. Each origin answers with the name of its upstream.
fn routed() -> ([RawOrigin; 4], Proxy) {
    let names = ["named", "h2", "ssh", "other"];
    let origins = names.map(saying);
    let upstreams = names
        .iter()
        .zip(&origins)
        .map(|(name, origin)| format!("[upstream.{name}]\nendpoints = [\"{}\"]\n", origin.address));
    let upstreams: String = upstreams.collect();
    let routes = "[[route]]\nmatch = { listener = \"web\", sni = \"*.a.test\" }\nupstream = \"named\"\n\
         [[route]]\nmatch = { alpn = \"h2\" }\nupstream = \"h2\"\n\
         [[route]]\nmatch = { first_bytes = \"SSH-\" }\nupstream = \"ssh\"\n\
         [[route]]\nupstream = \"other\"\n";
    let timeouts = format!("timeouts = {{ first_bytes = \"{FIRST_BYTES:?}\" }}");
    let proxy = start(&timeouts, &format!("{routes}{upstreams}"));
    (origins, proxy)
}

/// A ClientHello without records, with this name, these protocols and this much padding.
/// `name_len` is the length that it declares for its name.
fn message(name: &str, name_len: usize, protocols: &[&str], padding: usize) -> Vec<u8> {
    let counted = |len: usize, count: usize, bytes: &[u8]| {
        let number = count.to_be_bytes();
        [&number[number.len() - len..], bytes].concat()
    };
    let prefixed = |len: usize, bytes: &[u8]| counted(len, bytes.len(), bytes);
    let extension = |kind: u16, data: &[u8]| [&kind.to_be_bytes()[..], &prefixed(2, data)].concat();
    let mut extensions = Vec::new();
    if padding > 0 {
        extensions.extend(extension(21, &vec![0; padding]));
    }
    if !name.is_empty() {
        let entry = [&[0][..], &counted(2, name_len, name.as_bytes())].concat();
        extensions.extend(extension(0, &prefixed(2, &entry)));
    }
    if !protocols.is_empty() {
        let names: Vec<u8> = protocols
            .iter()
            .flat_map(|it| prefixed(1, it.as_bytes()))
            .collect();
        extensions.extend(extension(16, &prefixed(2, &names)));
    }
    let body = [
        &[3, 3][..],
        &[7; 32],
        &prefixed(1, b""),
        &prefixed(2, &[0x13, 0x01]),
        &prefixed(1, &[0]),
        &prefixed(2, &extensions),
    ];
    [&[1][..], &prefixed(3, &body.concat())].concat()
}

/// A handshake message in records of at most this length.
fn in_records(message: &[u8], len: usize) -> Vec<u8> {
    let record = |piece: &[u8]| {
        let len = (piece.len() as u16).to_be_bytes();
        [&[22, 3, 1][..], &len, piece].concat()
    };
    message.chunks(len).flat_map(record).collect()
}

/// A ClientHello of TLS in one record, with this name and these protocols.
pub fn hello(name: &str, protocols: &[&str]) -> Vec<u8> {
    in_records(&message(name, name.len(), protocols, 0), 1 << 14)
}

#[test]
fn routes_go_by_what_a_client_says_first() {
    test(|| {
        let (_origins, proxy) = routed();
        for (first, expected) in [
            (hello("x.a.test", &["h2"]), "named"),
            (hello("X.A.TEST", &[]), "named"),
            (hello("a.test", &["http/1.1", "h2"]), "h2"),
            (hello("", &["h2"]), "h2"),
            (hello("b.test", &[]), "other"),
            (b"SSH-2.0-client\r\n".to_vec(), "ssh"),
            (b"SSX".to_vec(), "other"),
        ] {
            let mut client = proxy.client();
            client.send(&first).unwrap();
            let greeting = client.read_len(expected.len()).unwrap();
            assert_eq!(greeting, expected.as_bytes(), "{first:?}");
            let echo = client.read_len(first.len()).unwrap();
            assert_eq!(echo, first, "nothing is lost");
        }
        // Byte by byte.
        let mut client = RawClient::connect(proxy.socket_addr("web")).unwrap();
        for byte in hello("x.a.test", &[]) {
            client.send([byte]).unwrap();
        }
        assert_eq!(client.read_len(5).unwrap(), b"named");
        // One that waits for its server to begin.
        let mut client = proxy.client();
        assert_eq!(client.read_len(5).unwrap(), b"other");
    });
}

#[test]
fn a_beginning_that_does_not_come_whole_is_closed() {
    test(|| {
        let (origins, proxy) = routed();
        let mut client = proxy.client();
        client.send(&hello("x.a.test", &[])[..20]).unwrap();
        assert!(client.is_closed());
        assert_eq!(line(&proxy)["end"], "first-bytes-timeout");
        // A probe sends nothing, and no endpoint hears of it.
        drop(proxy.client());
        until("it is logged", || proxy.access_log().len() == 2);
        assert_eq!(proxy.access_log_json()[1]["end"], "client-gone");
        for origin in &origins {
            assert_eq!(origin.connections(), 0);
        }
    });
}

#[test]
fn a_hello_may_be_long_and_come_in_any_pieces() {
    test(|| {
        let (_origins, proxy) = routed();
        let named = message("x.a.test", 8, &["h2"], 0);
        let long = message("x.a.test", 8, &[], 20 << 10);
        let largest_record = 1 << 14;
        for (first, piece, expected) in [
            (in_records(&named, 7), 1, "named"),
            (in_records(&named, 7), 100, "named"),
            (in_records(&long, largest_record), 1460, "named"),
            (in_records(&long, 1000), 1460, "named"),
            // Lengths that lie: no name, and no offer, is believed.
            (
                in_records(&message("x.a.test", 0xffff, &["h2"], 0), largest_record),
                100,
                "other",
            ),
            (
                in_records(&message("x.a.test", 7, &["h2"], 0), largest_record),
                100,
                "other",
            ),
        ] {
            let mut client = proxy.client();
            for bytes in first.chunks(piece) {
                client.send(bytes).unwrap();
            }
            let greeting = client.read_len(expected.len()).unwrap();
            assert_eq!(greeting, expected.as_bytes(), "{}", first[5..].len());
            assert!(
                client.read_len(first.len()).unwrap() == first,
                "nothing is lost"
            );
        }
    });
}

#[test]
fn a_server_that_begins_is_reached_once_the_client_was_silent_for_long_enough() {
    test(|| {
        let (_origins, proxy) = routed();
        let begun = Instant::now();
        let mut client = proxy.client();
        assert_eq!(client.read_len(5).unwrap(), b"other");
        let took = begun.elapsed();
        assert!(took >= FIRST_BYTES, "{took:?}");
        client.send("QUIT\r\n").unwrap();
        assert_eq!(client.read_len(6).unwrap(), b"QUIT\r\n");
        drop(client);
        let line = line(&proxy);
        assert_eq!(line["end"], "tunnel", "{line}");
        assert_eq!(line["bytes_in"], 6, "{line}");
    });
}

#[test]
fn openssl_reaches_the_server_that_it_names() {
    test(|| {
        let names = ["db.example", "mail.example"];
        let servers = names.map(|name| {
            let mut server = Server::openssl();
            // It refuses every other name.
            server.start(&["-servername", name]);
            server
        });
        let routes = names.map(|name| {
            format!(
                "[[route]]\nmatch = {{ sni = \"{name}\" }}\nupstream = \"{}\"\n",
                name.replace('.', "-")
            )
        });
        let upstreams = [0, 1].map(|index: usize| {
            let (name, endpoint) = (names[index].replace('.', "-"), servers[index].endpoint());
            format!("[upstream.{name}]\nendpoints = [\"{endpoint}\"]\n")
        });
        let proxy = start("", &(routes.concat() + &upstreams.concat()));
        let address = proxy.socket_addr("web");
        let reaches = |name: &str, version: &str| {
            let mut command = Command::new("openssl");
            command.args(["s_client", "-brief", version, "-servername", name]);
            command.args(["-connect", &address.to_string()]);
            let output = run(command, Duration::from_secs(10)).unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            output.status.success() && said.contains("CONNECTION ESTABLISHED")
        };
        for name in names {
            for version in ["-tls1_2", "-tls1_3"] {
                assert!(reaches(name, version), "{name} {version}");
            }
        }
        assert!(!reaches("web.example", "-tls1_3"), "no route takes it");
        until("all are logged", || proxy.access_log().len() == 5);
        assert_eq!(proxy.access_log_json()[4]["end"], "no-route");
        // A page comes whole through the tunnel.
        for name in names {
            let mut command = Command::new("curl");
            command.args(["--silent", "--show-error", "--insecure", "--resolve"]);
            command.arg(format!("{name}:{}:{}", address.port(), address.ip()));
            command.arg(format!("https://{name}:{}/", address.port()));
            let output = run(command, Duration::from_secs(10)).unwrap();
            let page = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(page.contains("s_server"), "{name}: {output:?}");
            assert!(page.trim_end().ends_with("</HTML>"), "{page}");
        }
    });
}
