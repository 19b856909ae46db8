//! Machines without a common folder, which keep certificates together by a server.

use std::fs;
use std::time::Duration;

use evenkeel_testkit::deadline::{holds_within, until, within};
use evenkeel_testkit::tls::Authority;
use evenkeel_testkit::{OriginHandle, Proxy, RawClient, TempDir};
use redis::{Commands, Connection};

use super::{Issuer, connect, printed, shown, start, table};
use crate::setup::figures;
use evenkeel_testkit::servers::Server;

/// Machines ask the server every 10 s, and after pauses of 30 s at most.
const LONG: Duration = Duration::from_secs(45);
/// The longest time of a test.
const LIMIT: Duration = Duration::from_secs(180);

/// The shared parts: the issuer, the server and the key of the cluster.
struct Cluster {
    issuer: Issuer,
    redis: Server,
    keys: TempDir,
}

/// A machine with its own folder.
struct Machine {
    proxy: Proxy,
    _origin: OriginHandle,
    storage: TempDir,
}

impl Cluster {
    fn new() -> Self {
        Cluster::by(Server::redis())
    }

    fn by(redis: Server) -> Self {
        let cluster = Cluster {
            issuer: Issuer::new(),
            redis,
            keys: TempDir::new().unwrap(),
        };
        cluster.write_key("cluster.key", 7);
        cluster
    }

    fn write_key(&self, name: &str, byte: u8) {
        fs::write(self.keys.join(name), [byte; 32]).unwrap();
    }

    /// Starts a machine. The issuer looks for proof at `port`.
    fn machine_at(&self, port: u16, names: &[&str], shared: &str, key: &str) -> Machine {
        let key = self.keys.join(key).display().to_string();
        let sharing = format!("shared = {shared}\nencrypt_with = \"{key}\"\n");
        self.machine_on(TempDir::new().unwrap(), port, names, &sharing)
    }

    /// Starts a machine with this folder.
    fn machine_on(&self, storage: TempDir, port: u16, names: &[&str], sharing: &str) -> Machine {
        let more = format!(
            "challenges = [\"http-01\"]\n{sharing}\
             [[listener]]\nname = \"plain\"\nbind = \"127.0.0.1:{port}\"\n"
        );
        let pebble = &self.issuer.pebble;
        let tables = table(&pebble.directory(), pebble, &storage, &more);
        let (_origin, proxy) = start("127.0.0.1:0", names, &tables);
        Machine {
            proxy,
            _origin,
            storage,
        }
    }

    /// Starts a machine that the issuer does not come to.
    fn aside(&self, names: &[&str]) -> Machine {
        self.machine_at(0, names, &self.url(), "cluster.key")
    }

    /// Starts the machine that the issuer connects to.
    fn in_front(&self, names: &[&str]) -> Machine {
        self.machine_at(self.issuer.http_port, names, &self.url(), "cluster.key")
    }

    fn url(&self) -> String {
        format!("\"{}\"", self.redis.endpoint())
    }

    fn connection(&self) -> Connection {
        let url = format!("redis+unix://{}", self.redis.socket().display());
        redis::Client::open(url).unwrap().get_connection().unwrap()
    }

    fn keys(&self, pattern: &str) -> Vec<String> {
        let mut keys: Vec<_> = self.connection().keys(pattern).unwrap();
        keys.sort();
        keys
    }

    /// The records of this mark, with their values.
    fn records(&self, mark: &str) -> Vec<(String, Vec<u8>)> {
        let mut connection = self.connection();
        let mut dump = |key: String| {
            let value = redis::cmd("DUMP").arg(&key).query(&mut connection).unwrap();
            (key, value)
        };
        let keys = self.keys(&format!("*:{mark}:*"));
        keys.into_iter().map(&mut dump).collect()
    }

    fn remove(&self, key: &str) {
        self.connection().del::<_, ()>(key).unwrap();
    }

    fn orders(&self) -> (usize, usize) {
        let pebble = &self.issuer.pebble;
        (pebble.orders(), pebble.accounts())
    }

    /// Waits until a machine shows a certificate of the issuer's.
    #[track_caller]
    fn shown_by(&self, machine: &Machine, name: &str) -> Vec<u8> {
        let trusting = self.issuer.trusting();
        let mut certificate = None;
        let found = holds_within(LONG, || {
            let client: Option<RawClient> = connect(&machine.proxy, name, &trusting).ok();
            certificate = client.as_ref().map(shown);
            certificate.is_some()
        });
        assert!(found, "{name}: {}", machine.proxy.stderr());
        certificate.unwrap()
    }

    /// Waits until a machine shows another certificate than this one.
    #[track_caller]
    fn until_replaced(&self, machine: &Machine, name: &str, before: &[u8]) {
        let found = holds_within(LONG, || self.shown_by(machine, name) != before);
        assert!(found, "{name}: {}", machine.proxy.stderr());
    }
}

impl Machine {
    fn certificates(&self) -> String {
        printed(&self.proxy, &["certificates"])
    }

    /// Waits until `evenkeel certificates` prints this.
    #[track_caller]
    fn until_printed(&self, text: &str) {
        let found = holds_within(LONG, || self.certificates().contains(text));
        assert!(found, "{text}: {}", self.certificates());
    }

    fn renew(&self, name: &str) {
        let text = printed(&self.proxy, &["ctl", "renew", name]);
        assert!(text.contains("is being ordered"), "{text}");
    }

    fn is_up(&self) -> bool {
        figures(&self.proxy)["acme_server"]["up"] == true
    }

    fn do_keys_differ(&self) -> bool {
        figures(&self.proxy)["acme_server"]["keys_differ"] == true
    }

    /// Waits until the event log contains this.
    #[track_caller]
    fn until_said(&self, text: &str) {
        let found = holds_within(LONG, || self.proxy.stderr().contains(text));
        assert!(found, "{text}: {}", self.proxy.stderr());
    }

    /// The accounts in the folder, by file.
    fn accounts(&self) -> Vec<(String, String)> {
        let entries = fs::read_dir(self.storage.path().join("acme/accounts")).unwrap();
        let account = |it: fs::DirEntry| {
            let text = fs::read_to_string(it.path()).unwrap();
            (it.file_name().into_string().unwrap(), text)
        };
        let mut accounts: Vec<_> = entries.map(|it| account(it.unwrap())).collect();
        accounts.sort();
        accounts
    }
}

#[test]
fn machines_share_certificates_and_no_secret_is_readable_at_redis() {
    assert_shared_without_a_secret(Server::redis());
}

#[test]
fn machines_share_certificates_and_no_secret_is_readable_at_valkey() {
    assert_shared_without_a_secret(Server::valkey());
}

fn assert_shared_without_a_secret(server: Server) {
    within(LIMIT, || {
        let mut cluster = Cluster::by(server);
        cluster.redis.start(&[]);
        let there = cluster.in_front(&["there.example.test", "both.example.test"]);
        // One machine orders, and the other one answers the challenge.
        let here = cluster.aside(&["here.example.test", "both.example.test"]);
        cluster.shown_by(&here, "here.example.test");
        cluster.shown_by(&there, "there.example.test");
        let both = cluster.shown_by(&here, "both.example.test");
        assert_eq!(cluster.shown_by(&there, "both.example.test"), both);
        assert_eq!(cluster.orders(), (3, 1));
        until("they are up", || here.is_up() && there.is_up());
        here.until_printed("is UP");

        let account = &here.accounts()[0].1;
        let account: serde_json::Value = serde_json::from_str(account).unwrap();
        let account = account["credentials"]["key_pkcs8"].as_str().unwrap();
        let pem = here
            .storage
            .path()
            .join("acme/certificates/both.example.test.pem");
        let pem = fs::read_to_string(pem).unwrap();
        let lines = pem.lines().skip_while(|it| !it.contains("PRIVATE KEY"));
        let key: String = lines.filter(|it| !it.contains("KEY")).collect();
        assert!(account.len() > 100 && key.len() > 100);
        let secrets = ["PRIVATE KEY", "CERTIFICATE", &account[..40], &key[..40]];
        let stored = cluster.keys("*");
        for kind in ["accounts/", "certificates/both.example.test", ":changed"] {
            assert!(stored.iter().any(|it| it.contains(kind)), "{stored:?}");
        }
        let mut connection = cluster.connection();
        for key in stored {
            let dumped: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut connection).unwrap();
            let is_text: Result<Vec<u8>, _> = connection.get(&key);
            let values = [dumped, is_text.unwrap_or_default()];
            for secret in secrets {
                let has = |it: &Vec<u8>| it.windows(secret.len()).any(|it| it == secret.as_bytes());
                assert!(!values.iter().any(has), "{key} has {secret}");
            }
            let left: i64 = connection.pttl(&key).unwrap();
            assert!(left > 0, "{key} stays for ever");
        }
    });
}

#[test]
fn a_crash_in_the_middle_leaves_the_order_to_another_machine() {
    within(LIMIT, || {
        let mut cluster = Cluster::new();
        cluster.redis.start(&[]);
        let front = cluster.in_front(&["front.example.test"]);
        cluster.shown_by(&front, "front.example.test");
        let are_gone = |kind: &str| cluster.keys(&format!("*:{kind}/*")).is_empty();
        until("its order is done with", || {
            are_gone("orders") && are_gone("challenges")
        });
        let one = cluster.aside(&["a.example.test"]);
        // The answer is there once the URL of the order is.
        until("a challenge", || !are_gone("challenges"));
        drop(one);
        assert!(!are_gone("orders"), "it was done before the crash");
        let leases = cluster.keys("*:leases/a.example.test");
        assert_eq!(leases.len(), 1);
        let other = cluster.aside(&["a.example.test"]);
        let trusting = cluster.issuer.trusting();
        // Its lease may still be the first one's.
        until("it is looked at", || other.is_up());
        assert!(connect(&other.proxy, "a.example.test", &trusting).is_err());
        cluster.remove(&leases[0]);
        cluster.shown_by(&other, "a.example.test");
        assert_eq!(cluster.orders(), (2, 1));
        until("the order is done with", || are_gone("orders"));
    });
}

#[test]
fn without_the_server_certificates_are_served_and_none_is_ordered() {
    within(LIMIT, || {
        let mut cluster = Cluster::new();
        let one = cluster.in_front(&["a.example.test"]);
        let no_server = "is DOWN";
        one.until_printed(no_server);
        one.until_printed("failed");
        assert_eq!(cluster.orders(), (0, 0));
        assert!(!one.is_up());
        cluster.redis.start(&[]);
        let first = cluster.shown_by(&one, "a.example.test");
        one.until_printed("is UP");

        // The server loses all records, since it has no file.
        cluster.redis.stop();
        one.renew("a.example.test");
        one.until_printed(no_server);
        assert_eq!(cluster.shown_by(&one, "a.example.test"), first);
        assert_eq!(cluster.orders(), (1, 1));
        cluster.redis.start(&["--requirepass", "secret"]);
        let says = |why: &str| {
            let found = holds_within(LONG, || one.proxy.stderr().contains(why));
            assert!(found, "{why}: {}", one.proxy.stderr());
        };
        says("NOAUTH");
        assert_eq!(cluster.orders(), (1, 1));
        cluster.redis.stop();
        cluster.redis.start(&["--maxmemory", "1"]);
        says("OOM");
        one.until_printed("OOM");
        assert_eq!(cluster.orders(), (1, 1));
        let room = ["CONFIG", "SET", "maxmemory", "0"];
        let mut command = redis::cmd(room[0]);
        command.arg(&room[1..]);
        command.query::<()>(&mut cluster.connection()).unwrap();
        // The renewal that was asked for, with the account of before.
        cluster.until_replaced(&one, "a.example.test", &first);
        assert_eq!(cluster.orders(), (2, 1));
        let second = cluster.shown_by(&one, "a.example.test");
        let other = cluster.aside(&["a.example.test"]);
        assert_eq!(cluster.shown_by(&other, "a.example.test"), second);
        assert_eq!(cluster.orders(), (2, 1));

        // A record written without the key counts as none.
        let keys = cluster.keys("*:certificates/*");
        assert_eq!(keys.len(), 1);
        cluster
            .connection()
            .set::<_, _, ()>(&keys[0], "x".repeat(5000))
            .unwrap();
        drop(other);
        let other = cluster.aside(&["a.example.test"]);
        let third = cluster.shown_by(&other, "a.example.test");
        assert_eq!(cluster.orders(), (3, 1));
        let said = other.proxy.stderr();
        assert!(said.contains("it was not encrypted with the key"), "{said}");
        cluster.until_replaced(&one, "a.example.test", &second);
        assert_eq!(cluster.shown_by(&one, "a.example.test"), third);
        let said = one.proxy.stderr();
        let count = said.matches("no new ones are ordered").count();
        assert!(count <= 4, "{said}");
        assert!(!said.contains("secret"), "{said}");
    });
}

#[test]
fn a_machine_with_another_key_says_so_until_all_have_it() {
    within(LIMIT, || {
        let mut cluster = Cluster::new();
        cluster.redis.start(&[]);
        cluster.write_key("other.key", 7);
        let one = cluster.in_front(&["a.example.test"]);
        let url = cluster.url();
        let other = cluster.machine_at(0, &["a.example.test"], &url, "other.key");
        let first = cluster.shown_by(&one, "a.example.test");
        assert_eq!(cluster.shown_by(&other, "a.example.test"), first);
        // The mark, the account, the certificate and its name.
        until("it is done", || cluster.keys("*").len() == 4);
        let stored = cluster.keys("*");
        cluster.write_key("other.key", 8);
        let another = "with another key than the one in";
        other.until_printed(another);
        let waiting = "evenkeel:acme:1:waiting".to_owned();
        let mut stored_now = cluster.keys("*");
        stored_now.retain(|it| *it != waiting);
        assert_eq!(stored_now, stored);
        // All have the other one. The mark of the first runs out.
        cluster.write_key("cluster.key", 8);
        let is_noticed = || one.proxy.stderr().contains(another);
        assert!(holds_within(LONG, is_noticed));
        assert_eq!(cluster.orders(), (1, 1));
        cluster.remove("evenkeel:acme:1:key");
        other.until_printed("is UP");
        one.until_printed("is UP");
        // With the account of before.
        other.renew("a.example.test");
        cluster.until_replaced(&other, "a.example.test", &first);
        cluster.until_replaced(&one, "a.example.test", &first);
        assert_eq!(cluster.orders(), (2, 1));
        let second = cluster.shown_by(&one, "a.example.test");
        assert_eq!(cluster.shown_by(&other, "a.example.test"), second);
        assert_eq!(cluster.keys("*:certificates/*").len(), 2);
    });
}

#[test]
fn machines_with_different_keys_say_so_on_both_sides_whoever_has_the_server() {
    within(LIMIT, || {
        let mut cluster = Cluster::new();
        cluster.redis.start(&[]);
        cluster.write_key("other.key", 8);
        let one = cluster.in_front(&["a.example.test"]);
        cluster.shown_by(&one, "a.example.test");
        let (key, waiting) = ("evenkeel:acme:1:key", "evenkeel:acme:1:waiting");
        let of = |key: &str| cluster.connection().get::<_, Option<String>>(key).unwrap();
        let mark = of(key).unwrap();
        until("the order is done with", || {
            cluster.keys(&format!("*:{mark}:*")).len() == 3
        });
        assert!(!one.do_keys_differ());
        let url = cluster.url();
        let other = cluster.machine_at(0, &["b.example.test"], &url, "other.key");
        other.until_printed("with another key than the one in");
        one.until_said("another machine has another key than the one in");
        assert!(other.do_keys_differ() && one.do_keys_differ());
        assert!(one.is_up() && !other.is_up());
        one.until_printed("machines with another key wait for this one");

        // The server loses the mark, and the other machine is the first to come back.
        let records = cluster.records(&mark);
        let other_mark = of(waiting).unwrap();
        assert_ne!(other_mark, mark);
        let mut connection = cluster.connection();
        connection.set_ex::<_, _, ()>(key, &other_mark, 60).unwrap();
        one.until_printed("with another key than the one in");
        other.until_said("another machine has another key than the one in");
        until("they are the other way round", || {
            other.is_up() && !one.is_up() && one.do_keys_differ() && other.do_keys_differ()
        });
        other.renew("b.example.test");
        until("it orders", || {
            !cluster.keys(&format!("*:{other_mark}:*")).is_empty()
        });
        assert_eq!(cluster.records(&mark), records);
        let said = one.proxy.stderr();
        assert_eq!(said.matches("another machine has").count(), 1, "{said}");

        // All have one key.
        cluster.write_key("other.key", 7);
        cluster.remove(key);
        cluster.remove(waiting);
        let is_well = |it: &Machine| it.is_up() && !it.do_keys_differ();
        assert!(holds_within(LONG, || is_well(&one) && is_well(&other)));
        one.until_said("all machines have the same key");
    });
}

#[test]
fn a_record_of_another_type_is_told_until_it_is_gone() {
    within(LIMIT, || {
        let mut cluster = Cluster::new();
        cluster.redis.start(&[]);
        let one = cluster.in_front(&["a.example.test"]);
        cluster.shown_by(&one, "a.example.test");
        let stored = || cluster.keys("*:certificates/a.example.test");
        until("it is stored", || stored().len() == 1 && one.is_up());
        let record = &stored()[0];
        let mut connection = cluster.connection();
        cluster.remove(record);
        connection.rpush::<_, _, ()>(record, "x").unwrap();
        one.renew("a.example.test");
        let advice = format!("at the key {record}: remove it with DEL");
        one.until_printed(&advice);
        assert!(!one.is_up());
        // The machine keeps renewing the mark, even while a record is unusable.
        for _ in 0..2 {
            let mut left = || connection.pttl::<_, i64>("evenkeel:acme:1:key").unwrap();
            let before = left();
            assert!(
                holds_within(LONG, || left() > before),
                "the mark is renewed"
            );
            assert!(!one.is_up());
        }
        cluster.remove(record);
        one.until_printed("is UP");
        let is_string = || {
            let kind = redis::cmd("TYPE")
                .arg(record)
                .query(&mut cluster.connection());
            kind == Ok("string".to_owned())
        };
        assert!(holds_within(LONG, is_string), "it is stored again");
        let said = one.proxy.stderr();
        for (text, count) in [("does only a part", 1), (" is UP", 2), (" is DOWN", 0)] {
            assert_eq!(said.matches(text).count(), count, "{text}: {said}");
        }
    });
}

#[test]
fn machines_that_had_an_account_each_use_one_and_lose_none() {
    within(LIMIT, || {
        let mut cluster = Cluster::new();
        cluster.redis.start(&[]);
        let port = cluster.issuer.http_port;
        // One after the other, because the issuer connects to one port.
        let alone = ["a.example.test", "b.example.test"].map(|name| {
            let storage = TempDir::new().unwrap();
            let machine = cluster.machine_on(storage, port, &[name], "");
            cluster.shown_by(&machine, name);
            (machine.accounts(), machine.storage)
        });
        assert_eq!(cluster.orders(), (2, 2));
        let key = cluster.keys.join("cluster.key").display().to_string();
        let sharing = format!("shared = {}\nencrypt_with = \"{key}\"\n", cluster.url());
        let [(of_one, one), (of_other, other)] = alone;
        let one = cluster.machine_on(one, port, &["a.example.test", "c.example.test"], &sharing);
        cluster.shown_by(&one, "c.example.test");
        let other = cluster.machine_on(other, 0, &["b.example.test", "d.example.test"], &sharing);
        cluster.shown_by(&other, "d.example.test");
        assert_eq!(cluster.orders(), (4, 2));
        assert_eq!(cluster.keys("*:accounts/*").len(), 1);
        assert_eq!(one.accounts(), of_one);
        let kept = other.accounts();
        assert_eq!(kept.len(), 2);
        assert!(kept.contains(&of_one[0]), "that of all");
        assert!(kept.iter().any(|it| it.1 == of_other[0].1), "its own, too");
        assert_ne!(of_one[0].1, of_other[0].1);
    });
}

#[test]
fn a_server_is_reached_by_tls_with_a_password() {
    within(LIMIT, || {
        let mut cluster = Cluster::new();
        let authority = Authority::new().unwrap();
        let ca = cluster.keys.join("ca.pem");
        fs::write(&ca, authority.pem()).unwrap();
        let certificate = authority.issue(&["localhost"]).unwrap();
        let args = ["--requirepass", "secret"];
        let port = cluster.redis.start_tls(&certificate, &args);
        let shared = |password: &str| {
            let ca = ca.display();
            format!("{{ url = \"rediss://:{password}@localhost:{port}\", ca = \"{ca}\" }}")
        };
        let names = ["a.example.test"];
        let wrong = cluster.machine_at(0, &names, &shared("wrong"), "cluster.key");
        wrong.until_printed("authentication failed");
        assert_eq!(cluster.orders(), (0, 0));
        let port = cluster.issuer.http_port;
        let right = cluster.machine_at(port, &names, &shared("secret"), "cluster.key");
        cluster.shown_by(&right, "a.example.test");
        assert_eq!(cluster.orders(), (1, 1));
    });
}
