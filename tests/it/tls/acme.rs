//! Certificates by ACME, from Pebble.

mod sharing;

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use evenkeel_testkit::deadline::{until, within};
use evenkeel_testkit::process::free_port;
use evenkeel_testkit::tls::trusting_pem;
use evenkeel_testkit::{OriginHandle, Pebble, PebbleSetup, Proxy, RawClient, RawOrigin, TempDir};
use rustls::ClientConfig;
use rustls::client::Resumption;

use super::{Issuing, LIMIT, TLS12, TLS13, counted};
use crate::setup::{Site, nobody, origin};

/// Pebble, and the ports at which it looks for proof.
struct Issuer {
    pebble: Pebble,
    http_port: u16,
    tls_port: u16,
    storage: TempDir,
}

impl Issuer {
    fn new() -> Self {
        let (http_port, tls_port) = (free_port().unwrap(), free_port().unwrap());
        Issuer {
            pebble: Pebble::start(http_port, tls_port).unwrap(),
            http_port,
            tls_port,
            storage: TempDir::new().unwrap(),
        }
    }

    /// The table `[acme]`, with further lines.
    fn table(&self, more: &str) -> String {
        table(&self.pebble.directory(), &self.pebble, &self.storage, more)
    }

    /// A listener of plain HTTP where Pebble looks for proof.
    fn plain(&self) -> String {
        let port = self.http_port;
        format!(
            "[[listener]]\nname = \"plain\"\nbind = \"127.0.0.1:{port}\"\n\
             redirect_to_https = true\n"
        )
    }

    /// Waits until a certificate of Pebble's is shown for a name.
    fn until_issued(&self, proxy: &Proxy, name: &str) -> RawClient {
        let trusting = self.trusting();
        let mut client = None;
        until(&format!("a certificate for {name}"), || {
            client = connect(proxy, name, &trusting).ok();
            client.is_some()
        });
        client.unwrap()
    }

    /// Of a client that resumes nothing: a session goes on with its certificate.
    fn trusting(&self) -> Arc<ClientConfig> {
        let config = trusting_pem(&self.pebble.root().unwrap(), TLS13).unwrap();
        let mut config = ClientConfig::clone(&config);
        config.resumption = Resumption::disabled();
        Arc::new(config)
    }
}

fn table(directory: &str, pebble: &Pebble, storage: &TempDir, more: &str) -> String {
    let (ca, storage) = (pebble.ca_path(), storage.path().join("acme"));
    format!(
        "[acme]\ndirectory = \"{directory}\"\nca = \"{}\"\nstorage = \"{}\"\n{more}\n",
        ca.display(),
        storage.display()
    )
}

/// Starts the program with a listener that orders certificates for these names.
fn start(bind: &str, names: &[&str], tables: &str) -> (OriginHandle, Proxy) {
    Site {
        bind,
        listener: &format!("tls = {{ acme = {{ names = {names:?} }} }}\n"),
        server: &format!(
            "control = \"$DIR/control.sock\"\n[status]\nbind = \"127.0.0.1:0\"\n{tables}"
        ),
        ..Site::default()
    }
    .with_origin()
}

fn connect(proxy: &Proxy, name: &str, config: &Arc<ClientConfig>) -> std::io::Result<RawClient> {
    RawClient::connect_tls(proxy.address("web"), name, config.clone())
}

/// The output of a command of the program.
fn printed(proxy: &Proxy, words: &[&str]) -> String {
    let mut command = Command::new(crate::setup::program());
    let config = proxy.path("evenkeel.toml");
    command
        .arg(words[0])
        .arg("--config")
        .arg(config)
        .args(&words[1..]);
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8(text).unwrap()
}

/// The certificate that a client is shown.
fn shown(client: &RawClient) -> Vec<u8> {
    client.tls().unwrap().peer_certificates().unwrap()[0].to_vec()
}

/// Starts the program with a listener whose clients have certificates ordered by asking.
fn start_on_demand(issuer: &Issuer, on_demand: &str) -> (OriginHandle, Proxy) {
    let on_demand = format!("challenges = [\"http-01\"]\non_demand = {on_demand}");
    let tables = issuer.table(&on_demand) + &issuer.plain();
    Site {
        bind: "127.0.0.1:0",
        listener: "tls = { acme = true, unknown_name = \"refuse\" }\n",
        server: &format!(
            "control = \"$DIR/control.sock\"\n[status]\nbind = \"127.0.0.1:0\"\n{tables}"
        ),
        ..Site::default()
    }
    .with_origin()
}

#[test]
fn the_next_issuer_is_asked_with_its_external_account() {
    within(LIMIT, || {
        let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
        let http_port = free_port().unwrap();
        let setup = PebbleSetup {
            http_port,
            tls_port: free_port().unwrap(),
            external_accounts: vec![("kid-1".to_owned(), key.to_owned())],
            ..PebbleSetup::default()
        };
        let issuer = Issuer {
            pebble: Pebble::start_with(&setup).unwrap(),
            http_port,
            tls_port: setup.tls_port,
            storage: TempDir::new().unwrap(),
        };
        let key_file = issuer.storage.path().join("external.key");
        std::fs::write(&key_file, format!("{key}\n")).unwrap();
        let fallback = format!(
            "fallback = [{{ directory = \"{}\", ca = \"{}\", \
             external_account = {{ id = \"kid-1\", key_file = \"{}\" }} }}]",
            issuer.pebble.directory(),
            issuer.pebble.ca_path().display(),
            key_file.display()
        );
        // No server listens there.
        let dead = format!("https://127.0.0.1:{}/dir", free_port().unwrap());
        let tables = table(&dead, &issuer.pebble, &issuer.storage, &fallback) + &issuer.plain();
        let (_origin, proxy) = start("127.0.0.1:0", &["a.example.test"], &tables);
        issuer.until_issued(&proxy, "a.example.test");
    });
}

#[test]
fn a_client_waits_for_the_certificate_of_a_name_in_the_list() {
    within(LIMIT, || {
        let issuer = Issuer::new();
        let (origin, proxy) = start_on_demand(&issuer, "{ names = \"*.shops.example.test\" }");
        let trusting = issuer.trusting();
        let mut client = connect(&proxy, "one.shops.example.test", &trusting).unwrap();
        assert_eq!(client.get("/ping").unwrap().text(), "pong");
        // Of simultaneous clients, one starts the order.
        let clients = [0; 8].map(|_| {
            let (address, trusting) = (proxy.socket_addr("web"), trusting.clone());
            let connect = move || {
                RawClient::connect_tls(address, "Two.shops.example.test", trusting).unwrap()
            };
            std::thread::spawn(connect)
        });
        for client in clients {
            client.join().unwrap();
        }
        assert!(connect(&proxy, "shops.example.test", &trusting).is_err());
        assert_eq!(issuer.pebble.orders(), 2);
        let text = printed(&proxy, &["certificates"]);
        let rows = text.lines().filter(|it| it.contains("  valid  ")).count();
        assert_eq!(rows, 2, "{text}");
        // An existing certificate is read for its first client.
        drop(proxy);
        let (_origin, proxy) = start_on_demand(&issuer, "{ names = \"*.shops.example.test\" }");
        connect(&proxy, "one.shops.example.test", &trusting).unwrap();
        assert_eq!(issuer.pebble.orders(), 2);
        drop(origin);
    });
}

#[test]
fn a_server_is_asked_whether_a_name_may_have_a_certificate() {
    within(LIMIT, || {
        let issuer = Issuer::new();
        let (asked, is_down) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(AtomicBool::new(true)),
        );
        let server = {
            let (asked, is_down) = (asked.clone(), is_down.clone());
            RawOrigin::start(move |_, mut stream| {
                while let Ok(head) = stream.read_head() {
                    let path = head.split(' ').nth(1).unwrap();
                    let name = path.strip_prefix("/may?key=1&domain=").unwrap();
                    asked.lock().unwrap().push(name.to_owned());
                    let status = match name.starts_with("good") {
                        _ if is_down.load(SeqCst) => "503 Down",
                        true => "200 OK",
                        false => "404 None",
                    };
                    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                    stream.send(answer).unwrap();
                }
            })
            .unwrap()
        };
        let address = server.address;
        let on_demand = format!("{{ ask = \"http://{address}/may?key=1\" }}");
        let (origin, proxy) = start_on_demand(&issuer, &on_demand);
        let trusting = issuer.trusting();
        let good = || connect(&proxy, "good.example.test", &trusting);
        assert!(good().is_err() && good().is_err());
        assert_eq!(
            asked.lock().unwrap().len(),
            1,
            "a refusal holds for a moment"
        );
        until("it is told", || {
            let told = proxy.stderr();
            told.contains("does not say whether good.example.test may have")
        });
        is_down.store(false, SeqCst);
        until("it is asked again", || good().is_ok());
        for _ in 0..3 {
            assert!(connect(&proxy, "bad.example.test", &trusting).is_err());
        }
        good().unwrap();
        assert_eq!(
            asked.lock().unwrap().join(" "),
            "good.example.test good.example.test bad.example.test"
        );
        assert_eq!(issuer.pebble.orders(), 1);
        drop((origin, proxy));
    });
}

#[test]
fn a_certificate_comes_by_plain_http_and_lasts_over_a_restart() {
    within(LIMIT, || {
        let issuer = Issuer::new();
        let tables = issuer.table("challenges = [\"http-01\"]") + &issuer.plain();
        let (origin, proxy) = start(
            "127.0.0.1:0",
            &["a.example.test", "b.example.test"],
            &tables,
        );
        let mut client = issuer.until_issued(&proxy, "a.example.test");
        assert_eq!(client.get("/ping").unwrap().text(), "pong");
        let first = shown(&issuer.until_issued(&proxy, "b.example.test"));
        // Only challenges go before the redirect.
        let mut plain = RawClient::connect(proxy.address("plain")).unwrap();
        let path = "/.well-known/acme-challenge/other";
        assert_eq!(plain.get(path).unwrap().status, 404);
        assert_eq!(plain.get("/ping").unwrap().status, 308);
        until("all is well", || {
            counted(&proxy, "certificates_missing") == 0 && counted(&proxy, "certificates") == 2
        });
        let text = printed(&proxy, &["certificates"]);
        let rows: Vec<_> = text.lines().filter(|it| it.contains("  valid  ")).collect();
        assert_eq!(rows.len(), 2, "{text}");
        assert!(rows[0].starts_with("a.example.test"), "{text}");
        assert_eq!(issuer.pebble.orders(), 2);
        drop((origin, proxy));
        let (_origin, proxy) = start(
            "127.0.0.1:0",
            &["a.example.test", "b.example.test"],
            &tables,
        );
        let trusting = issuer.trusting();
        let client = connect(&proxy, "b.example.test", &trusting).unwrap();
        assert_eq!(shown(&client), first);
        // An operator may have it renewed. Others stay.
        let text = printed(&proxy, &["ctl", "renew", "b.example.test"]);
        assert!(text.contains("b.example.test is being ordered"), "{text}");
        until("another certificate", || {
            let client = connect(&proxy, "b.example.test", &trusting);
            client.is_ok_and(|it| shown(&it) != first)
        });
        assert_eq!(issuer.pebble.orders(), 3);
        assert_eq!(issuer.pebble.accounts(), 1);
        let text = printed(&proxy, &["ctl", "renew", "c.example.test"]);
        assert!(
            text.contains("ACME does not manage `c.example.test`"),
            "{text}"
        );
    });
}

#[test]
fn a_certificate_comes_by_a_handshake_and_clients_see_nothing_of_that() {
    within(LIMIT, || {
        let issuer = Issuer::new();
        let tables = issuer.table("challenges = [\"tls-alpn-01\"]");
        let bind = format!("127.0.0.1:{}", issuer.tls_port);
        let (_origin, proxy) = start(&bind, &["a.example.test"], &tables);
        let mut client = issuer.until_issued(&proxy, "a.example.test");
        assert_eq!(client.get("/ping").unwrap().text(), "pong");
        let mut old =
            ClientConfig::clone(&trusting_pem(&issuer.pebble.root().unwrap(), TLS12).unwrap());
        old.alpn_protocols = vec![b"acme-tls/1".to_vec(), b"http/1.1".to_vec()];
        let mut client = connect(&proxy, "a.example.test", &Arc::new(old)).unwrap();
        assert_eq!(client.get("/ping").unwrap().text(), "pong");
        // No order asked for a proof.
        let mut proof = ClientConfig::clone(&issuer.trusting());
        proof.alpn_protocols = vec![b"acme-tls/1".to_vec()];
        let refused = connect(&proxy, "a.example.test", &Arc::new(proof));
        assert!(refused.is_err_and(|it| it.to_string().contains("NoApplicationProtocol")));
        assert!(!proxy.stderr().contains("ERROR"), "{}", proxy.stderr());
    });
}

#[test]
fn a_listener_of_tcp_gives_proof_in_a_handshake_too() {
    within(LIMIT, || {
        let issuer = Issuer::new();
        let tables = issuer.table("");
        let bind = format!("127.0.0.1:{}", issuer.tls_port);
        let origin = origin();
        let site = Site {
            bind: &bind,
            listener: "protocol = \"tcp\"\ntls = { acme = { names = [\"a.example.test\"] } }\n",
            server: &tables,
            ..Site::default()
        };
        let proxy = site.start(&[origin.address.to_string()]);
        let mut client = issuer.until_issued(&proxy, "a.example.test");
        assert_eq!(client.get("/ping").unwrap().text(), "pong");
    });
}

#[test]
fn a_name_is_ordered_once_its_own_certificate_has_expired_or_is_gone() {
    within(LIMIT, || {
        let issuer = Issuer::new();
        let own = Issuing::new();
        own.issue("a", &["a.example.test"]);
        let expired = own.authority.issue_with(&["b.example.test"], |params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 2, 1);
        });
        expired.unwrap().write(own.folder.path(), "b").unwrap();
        let tables = issuer.table("challenges = [\"http-01\"]") + &issuer.plain();
        let folder = own.folder.path().display();
        let origin = origin();
        let site = Site {
            listener: &format!(
                "tls = {{ acme = {{ names = [\"a.example.test\", \"b.example.test\"] }}, \
                 certificates = [{{ folder = '{folder}' }}] }}\n"
            ),
            server: &tables,
            ..Site::default()
        };
        let proxy = site.start(&[origin.address.to_string()]);
        issuer.until_issued(&proxy, "b.example.test");
        assert!(connect(&proxy, "a.example.test", &own.client(TLS13)).is_ok());
        assert_eq!(issuer.pebble.orders(), 1);
        for file in ["a.crt", "a.key"] {
            std::fs::remove_file(own.folder.join(file)).unwrap();
        }
        issuer.until_issued(&proxy, "a.example.test");
        assert_eq!(issuer.pebble.orders(), 2);
    });
}

#[test]
fn a_machine_answers_for_another_with_the_same_storage() {
    within(LIMIT, || {
        let issuer = Issuer::new();
        let table = issuer.table("challenges = [\"http-01\"]");
        // Pebble connects to this machine, which itself orders for another name.
        let (_origin, there) = start(
            "127.0.0.1:0",
            &["there.example.test"],
            &(table.clone() + &issuer.plain()),
        );
        let nowhere = "[[listener]]\nname = \"plain\"\nbind = \"127.0.0.1:0\"\n";
        let (_origin, here) = start("127.0.0.1:0", &["here.example.test"], &(table + nowhere));
        let mut client = issuer.until_issued(&here, "here.example.test");
        assert_eq!(client.get("/ping").unwrap().text(), "pong");
        issuer.until_issued(&there, "there.example.test");
        assert_eq!(issuer.pebble.orders(), 2);
        assert_eq!(issuer.pebble.accounts(), 1);
    });
}

#[test]
fn until_there_is_a_certificate_clients_are_refused_or_warned() {
    within(LIMIT, || {
        let issuer = Issuer::new();
        let directory = format!("https://{}/dir", nobody());
        let site = |until_issued: &str| {
            let storage = TempDir::new().unwrap();
            let more = format!("challenges = [\"http-01\"]\nuntil_issued = \"{until_issued}\"");
            let tables = table(&directory, &issuer.pebble, &storage, &more);
            let plain = "[[listener]]\nname = \"plain\"\nbind = \"127.0.0.1:0\"\n";
            (
                start("127.0.0.1:0", &["a.example.test"], &(tables + plain)),
                storage,
            )
        };
        let trusting = issuer.trusting();
        let ((_origin, proxy), _storage) = site("refuse");
        let refused = connect(&proxy, "a.example.test", &trusting).err();
        let refused = refused.map(|it| it.to_string()).unwrap_or_default();
        assert!(refused.contains("UnrecognisedName"), "{refused}");
        let mut plain = RawClient::connect(proxy.address("plain")).unwrap();
        assert_eq!(plain.get("/ping").unwrap().text(), "pong");
        until("the failure is counted", || {
            counted(&proxy, "certificates_failed") == 1
        });
        assert_eq!(counted(&proxy, "certificates_missing"), 1);
        let text = printed(&proxy, &["certificates"]);
        let row = text
            .lines()
            .find(|it| it.starts_with("a.example.test"))
            .unwrap();
        assert!(
            row.contains("failed") && row.contains("onnection refused"),
            "{text}"
        );
        until("it is said", || {
            let said = proxy.stderr();
            said.contains("a.example.test") && said.contains("onnection refused")
        });
        let ((_origin, proxy), _storage) = site("self-signed");
        let refused = connect(&proxy, "a.example.test", &trusting).err();
        let refused = refused.map(|it| it.to_string()).unwrap_or_default();
        assert!(
            refused.contains("UnknownIssuer") || refused.contains("invalid peer certificate"),
            "{refused}"
        );
    });
}

#[test]
fn names_that_nobody_orders_get_no_self_signed_certificate() {
    within(LIMIT, || {
        let issuer = Issuer::new();
        let directory = format!("https://{}/dir", nobody());
        let more = "challenges = [\"http-01\"]\nuntil_issued = \"self-signed\"\n\
                    on_demand = { names = \"*.shops.example.test\" }\n\
                    [[listener]]\nname = \"plain\"\nbind = \"127.0.0.1:0\"\n";
        let tables = table(&directory, &issuer.pebble, &issuer.storage, more);
        let (_origin, proxy) = Site {
            listener: "tls = { acme = { names = [\"a.example.test\"] }, unknown_name = \"refuse\" }",
            server: &tables,
            ..Site::default()
        }
        .with_origin();
        let trusting = issuer.trusting();
        for (name, expected) in [
            ("A.example.test", "invalid peer certificate"),
            ("one.shops.example.test", "invalid peer certificate"),
            ("b.example.test", "UnrecognisedName"),
            ("shops.example.test", "UnrecognisedName"),
        ] {
            let refused = connect(&proxy, name, &trusting).err().unwrap().to_string();
            assert!(refused.contains(expected), "{name}: {refused}");
        }
    });
}

#[test]
fn a_client_that_waits_for_a_certificate_goes_on_after_a_reload() {
    within(LIMIT, || {
        let issuer = Issuer::new();
        let (asked, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(())));
        let server = {
            let (asked, gate) = (asked.clone(), gate.clone());
            RawOrigin::start(move |_, mut stream| {
                while stream.read_head().is_ok() {
                    asked.fetch_add(1, SeqCst);
                    drop(gate.lock().unwrap());
                    if stream
                        .send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                        .is_err()
                    {
                        return;
                    }
                }
            })
            .unwrap()
        };
        let on_demand = format!("on_demand = {{ ask = \"http://{}/\" }}\n", server.address);
        let challenges = "challenges = [\"http-01\"]\n";
        let tables = issuer.table(&format!("{challenges}{on_demand}")) + &issuer.plain();
        let (_origin, proxy) = Site {
            // Longer than this test.
            listener: "tls = { acme = true, unknown_name = \"refuse\" }\n\
                       timeouts = { handshake = \"10m\" }\n",
            server: &format!("control = \"$DIR/control.sock\"\n{tables}"),
            ..Site::default()
        }
        .with_origin();
        let waiting = |name: &'static str, asks: usize| {
            let (address, trusting) = (proxy.socket_addr("web"), issuer.trusting());
            let connect = move || RawClient::connect_tls(address, name, trusting).map(|_| ());
            let client = std::thread::spawn(connect);
            until("it is asked", || asked.load(SeqCst) == asks);
            client
        };
        let path = proxy.path("evenkeel.toml");
        let reload = |before: &str, now: &str| {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.contains(before), "{text}");
            std::fs::write(&path, text.replace(before, now)).unwrap();
            printed(&proxy, &["reload"]);
        };
        let closed = gate.lock().unwrap();
        let client = waiting("a.example.test", 1);
        reload(challenges, "challenges = [\"http-01\", \"tls-alpn-01\"]\n");
        until("it is asked anew", || asked.load(SeqCst) == 2);
        drop(closed);
        client.join().unwrap().unwrap();
        let closed = gate.lock().unwrap();
        let client = waiting("b.example.test", 3);
        reload(&on_demand, "on_demand = { names = \"c.example.test\" }\n");
        let refused = client.join().unwrap().unwrap_err().to_string();
        assert!(refused.contains("UnrecognisedName"), "{refused}");
        drop(closed);
        assert_eq!(issuer.pebble.orders(), 1);
    });
}

#[test]
fn a_host_that_comes_with_a_reload_gets_its_certificate() {
    within(LIMIT, || {
        let issuer = Issuer::new();
        let tables = issuer.table("challenges = [\"http-01\"]") + &issuer.plain();
        let route = |host: &str| {
            format!("[[route]]\nmatch = {{ host = \"{host}\" }}\nupstream = \"app\"\n")
        };
        let origin = origin();
        let site = Site {
            listener: "tls = { acme = true }\n",
            server: &format!(
                "control = \"$DIR/control.sock\"\n[status]\nbind = \"127.0.0.1:0\"\n{tables}{}",
                route("a.example.test")
            ),
            ..Site::default()
        };
        let proxy = site.start(&[origin.address.to_string()]);
        let client = issuer.until_issued(&proxy, "a.example.test");
        let first = shown(&client);
        let path = proxy.path("evenkeel.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text + &route("b.example.test")).unwrap();
        let said = printed(&proxy, &["reload"]);
        issuer.until_issued(&proxy, "b.example.test");
        let client = connect(&proxy, "a.example.test", &issuer.trusting()).unwrap();
        assert_eq!(shown(&client), first, "{said}");
        assert_eq!(issuer.pebble.orders(), 2);
    });
}

#[test]
fn a_reload_takes_in_the_new_content_of_the_authorities_of_an_issuer() {
    within(LIMIT, || {
        let issuer = Issuer::new();
        let ca = issuer.storage.path().join("ca.pem");
        let other = evenkeel_testkit::tls::Authority::new().unwrap().pem();
        std::fs::write(&ca, other).unwrap();
        let table = issuer.table("challenges = [\"http-01\"]");
        let table = table.replace(
            &issuer.pebble.ca_path().display().to_string(),
            &ca.display().to_string(),
        );
        let tables = table + &issuer.plain();
        let (_origin, proxy) = start("127.0.0.1:0", &["a.example.test"], &tables);
        until("the failure is counted", || {
            counted(&proxy, "certificates_failed") == 1
        });
        std::fs::copy(issuer.pebble.ca_path(), &ca).unwrap();
        printed(&proxy, &["reload"]);
        // The order is tried again as after a restart, or when an operator asks for it.
        until("the name is followed", || {
            printed(&proxy, &["ctl", "renew", "a.example.test"]).contains("is being ordered")
        });
        issuer.until_issued(&proxy, "a.example.test");
        assert_eq!(issuer.pebble.orders(), 1);
    });
}
