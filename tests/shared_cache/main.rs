//! The tier of the cache that machines share, at real servers and at bad ones.
//!
//! A machine is a tier with its own memory. The event loop is that of workers.

// Integration tests are tests throughout; the lint's exception for tests does
// not see that.
#![allow(clippy::unwrap_used, missing_docs)]

mod failures;
mod purges;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel::cache::shared::{Outcome, Settings, Shared, SharedFigures, Stores};
use evenkeel::shared_server::Server as Address;
use evenkeel_cache::freshness::Lifetime;
use evenkeel_cache::key::KeyRules;
use evenkeel_cache::ledger::Position;
use evenkeel_cache::object::{Body, StoredHead};
use evenkeel_cache::purge::{Purge, Strength};
use evenkeel_cache::{Key, Memory, Object, Request, Response, Secret};
use evenkeel_net::{clock, tasks::Tasks};
use evenkeel_proto::http1::{Parsed, parse_request, parse_response};
use evenkeel_proto::{Method, RequestHead, ResponseHead, Scheme};
use evenkeel_testkit::deadline::{until, within};
use evenkeel_testkit::servers::Server;

/// Runs a test with the ordinary deadline.
fn test(body: impl FnOnce() + Send + 'static) {
    within(Duration::from_secs(30), body);
}

/// A tier with the stores of a machine.
struct Machine {
    shared: Arc<Shared>,
    memory: Arc<Memory>,
    /// The purges that the stores were asked to apply.
    purged: Arc<Mutex<Vec<String>>>,
    /// Up to where they have had the log.
    position: Arc<Mutex<Option<Position>>>,
}

struct Own {
    memory: Arc<Memory>,
    purged: Arc<Mutex<Vec<String>>>,
    position: Arc<Mutex<Option<Position>>>,
}

impl Stores for Own {
    fn purge(&self, what: Purge<'_>, strength: Strength) {
        self.memory.purge(what, strength);
        let (kind, text) = match what {
            Purge::Everything => ("everything", &b""[..]),
            Purge::Url(text) => ("url", text),
            Purge::Prefix(text) => ("prefix", text),
            Purge::Tag(text) => ("tag", text),
        };
        let said = format!("{kind} {} {strength:?}", text.escape_ascii());
        self.purged.lock().unwrap().push(said);
    }

    fn purge_count(&self) -> u64 {
        self.memory.purge_count()
    }

    fn position(&self) -> Option<Position> {
        *self.position.lock().unwrap()
    }

    fn note_position(&self, position: Position) {
        *self.position.lock().unwrap() = Some(position);
    }
}

/// A request for a path of `example.com`.
struct Asked {
    text: Vec<u8>,
    head: RequestHead,
}

impl Asked {
    fn view(&self) -> Request<'_> {
        Request {
            head: &self.head,
            bytes: &self.text,
            scheme: Scheme::Http,
        }
    }
}

fn asked(path: &str, fields: &str) -> Asked {
    let text = format!("GET {path} HTTP/1.1\r\nHost: example.com\r\n{fields}\r\n").into_bytes();
    let mut head = RequestHead::default();
    assert_eq!(parse_request(&text, &mut head), Ok(Parsed::Complete));
    Asked { text, head }
}

/// How a response is stored.
struct Content<'a> {
    /// Fields of the request, each with its end.
    asked: &'a str,
    /// Fields of the response.
    fields: &'a str,
    body: &'a [u8],
    lifetime: Lifetime,
}

impl Default for Content<'_> {
    fn default() -> Self {
        Content {
            asked: "",
            fields: "",
            body: b"body",
            lifetime: Lifetime {
                fresh: 60,
                ..Lifetime::default()
            },
        }
    }
}

impl Machine {
    fn start(settings: Settings) -> Self {
        // Each machine has its own secret.
        let secret = Secret(fastrand::u128(..).to_ne_bytes());
        let memory = Arc::new(Memory::new(1 << 20, secret));
        Self::over(settings, memory, Arc::default(), Arc::default())
    }

    /// A machine with these stores.
    fn over(
        settings: Settings,
        memory: Arc<Memory>,
        purged: Arc<Mutex<Vec<String>>>,
        position: Arc<Mutex<Option<Position>>>,
    ) -> Self {
        let own = Own {
            memory: memory.clone(),
            purged: purged.clone(),
            position: position.clone(),
        };
        let secret = *memory.secret();
        Machine {
            shared: Arc::new(Shared::start(settings, secret, Box::new(own)).unwrap()),
            memory,
            purged,
            position,
        }
    }

    /// The same machine after a restart, with the content of its stores.
    fn restarted(self, settings: Settings, meanwhile: impl FnOnce()) -> Self {
        let Machine {
            shared,
            memory,
            purged,
            position,
        } = self;
        drop(shared);
        meanwhile();
        purged.lock().unwrap().clear();
        Self::over(settings, memory, purged, position)
    }

    /// A machine that uses this server, once it does.
    fn at(server: &Server) -> Self {
        let machine = Machine::start(settings(&at_socket(server.socket(), "")));
        machine.until_up();
        machine
    }

    #[track_caller]
    fn until_up(&self) {
        until("the server is asked", || self.figures().up);
    }

    /// Waits until the server is not asked, for this reason.
    #[track_caller]
    fn until_down(&self, why: Outcome) {
        until(why.word(), || {
            let figures = self.figures();
            let word = figures.failure.unwrap_or_default();
            !figures.up && word.starts_with(why.word())
        });
    }

    fn figures(&self) -> SharedFigures {
        self.shared.figures()
    }

    fn key(&self, path: &str) -> Key {
        KeyRules::default().key(self.memory.secret(), &asked(path, "").view())
    }

    /// A response that was asked for now.
    fn object(&self, path: &str, content: &Content<'_>) -> Object {
        let text = format!("HTTP/1.1 200 OK\r\n{}\r\n", content.fields).into_bytes();
        let mut head = ResponseHead::default();
        let parsed = parse_response(&text, Method::Get, &mut head);
        assert_eq!(parsed, Ok(Parsed::Complete));
        let response = Response {
            head: &head,
            bytes: &text,
        };
        let request = asked(path, content.asked);
        let secret = self.memory.secret();
        let head = StoredHead::of(secret, &request.view(), &response, 0).unwrap();
        let body = Body::of(content.body);
        let seen = self.memory.purge_count();
        let key = self.key(path);
        Object::new(&key, &head, &body, &content.lifetime, clock::now(), seen).unwrap()
    }

    /// The outcome of storing a response.
    #[track_caller]
    fn put_object(&self, object: &Object) -> &'static str {
        let before = self.figures().stores;
        self.shared.put(object);
        let mut word = "";
        until("it was stored or not", || {
            let after = self.figures().stores;
            let pairs = std::iter::zip(before.iter(), after.iter());
            let mut grown = pairs.filter(|((_, before), (_, after))| after > before);
            word = grown.next().map_or("", |(_, (word, _))| word);
            !word.is_empty()
        });
        word
    }

    #[track_caller]
    fn put(&self, path: &str, content: &Content<'_>) -> &'static str {
        self.put_object(&self.object(path, content))
    }

    /// A lookup: the response, or why there is none.
    #[track_caller]
    fn find(&self, path: &str, fields: &str) -> Result<Object, &'static str> {
        let before = self.figures().lookups;
        let request = asked(path, fields);
        let key = self.key(path);
        let shared = self.shared.clone();
        let worker = Tasks::of_this_thread().unwrap();
        let lookup = async move { shared.get(&key, &request.view()).await };
        let found = worker.run_until(lookup).unwrap();
        let after = self.figures().lookups;
        let pairs = std::iter::zip(before.iter(), after.iter());
        let mut grown = pairs.filter(|((_, before), (_, after))| after > before);
        let (_, (word, _)) = grown.next().unwrap();
        assert_eq!(found.is_some(), word == "hit", "{word}");
        found.ok_or(word)
    }

    /// The body that a lookup finds, or why it finds none.
    #[track_caller]
    fn body(&self, path: &str, fields: &str) -> Result<Vec<u8>, &'static str> {
        Ok(whole_body(&self.find(path, fields)?))
    }

    /// The purges that the stores were asked to apply since the last call.
    fn take_purged(&self) -> Vec<String> {
        std::mem::take(&mut self.purged.lock().unwrap())
    }
}

fn whole_body(object: &Object) -> Vec<u8> {
    let mut body = Vec::new();
    while let piece @ [_, ..] = object.body_at(body.len() as u64) {
        body.extend_from_slice(piece);
    }
    body
}

/// A server, with more time for a lookup than it has by default: other tests take the
/// processor too.
fn settings(url: &str) -> Settings {
    Settings {
        timeout: Duration::from_secs(2),
        ..default_settings(url)
    }
}

fn default_settings(url: &str) -> Settings {
    Settings::new(Address::new(url).unwrap())
}

fn at_socket(path: &Path, options: &str) -> String {
    format!("redis+unix://{}{options}", path.display())
}

/// A connection of the test's own.
fn connect(server: &Server) -> redis::Connection {
    let client = redis::Client::open(at_socket(server.socket(), "")).unwrap();
    client.get_connection().unwrap()
}

/// A server, and machines that share it.
fn machines<const N: usize>(mut server: Server) -> (Server, [Machine; N]) {
    server.start(&[]);
    let machines = std::array::from_fn(|_| Machine::at(&server));
    (server, machines)
}

#[test]
fn machines_find_what_others_stored() {
    test(|| {
        for server in [Server::redis(), Server::valkey()] {
            let (server, [one, other]) = machines(server);
            let long: Vec<u8> = (0..300_000_u32).map(|at| at as u8).collect();
            for (path, body) in [("/empty", &b""[..]), ("/short", b"abc"), ("/long", &long)] {
                assert_eq!(other.find(path, "").unwrap_err(), "absent");
                let fields = "ETag: \"1\"\r\nSurrogate-Key: a b\r\n";
                let content = Content {
                    fields,
                    body,
                    ..Content::default()
                };
                assert_eq!(one.put(path, &content), "stored");
                let found = other.find(path, "").unwrap();
                assert!(whole_body(&found) == body);
                assert_eq!(
                    (found.status(), found.value("etag")),
                    (200, Some(&b"\"1\""[..]))
                );
            }
            let mut connection = connect(&server);
            let names: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
            assert_eq!(names.len(), 4, "{names:?}");
            for name in names.iter().filter(|it| !it.ends_with(":purges")) {
                let left = redis::cmd("PTTL").arg(name).query::<u64>(&mut connection);
                assert!((1..=60_000).contains(&left.unwrap()), "{name}");
                let digits = name.strip_prefix("evenkeel:1:").unwrap();
                assert_eq!(digits.len(), 64, "{name}");
            }
        }
    });
}

/// RFC 9111 §4.1.
#[test]
fn finds_the_variant_that_is_asked_for() {
    test(|| {
        let (server, [one, other]) = machines(Server::redis());
        let put = |machine: &Machine, asked: &str, fields: &str, body: &[u8]| {
            let content = Content {
                asked,
                fields,
                body,
                ..Content::default()
            };
            assert_eq!(machine.put("/a", &content), "stored");
        };
        let (german, english) = ("Accept-Language: de\r\n", "Accept-Language: en\r\n");
        put(&one, german, "Vary: Accept-Language\r\n", b"ja");
        put(&other, english, "Vary: Accept-Language\r\n", b"yes");
        for machine in [&one, &other] {
            assert_eq!(machine.body("/a", german), Ok(b"ja".to_vec()));
            assert_eq!(machine.body("/a", english), Ok(b"yes".to_vec()));
            assert_eq!(machine.body("/a", ""), Err("absent"));
        }
        // A response never answers a request that it does not fit, whatever its name.
        let mut connection = connect(&server);
        let names: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        let variants: Vec<_> = names
            .iter()
            .filter(|it| it.split(':').count() == 5)
            .collect();
        let [first, second] = variants[..] else {
            panic!("{names:?}");
        };
        let mut rename = |from: &str, to: &str| {
            let mut command = redis::cmd("RENAME");
            command.arg(from).arg(to).exec(&mut connection).unwrap();
        };
        rename(first, "aside");
        rename(second, first);
        rename("aside", second);
        for asked in [german, english] {
            assert_eq!(other.body("/a", asked), Err("absent"));
        }
        // The newest `Vary` holds.
        put(&one, english, "Vary: Accept-Language, X\r\n", b"x");
        assert_eq!(other.body("/a", english), Ok(b"x".to_vec()));
        assert_eq!(other.body("/a", german), Err("absent"));
        put(&one, "", "", b"any");
        assert_eq!(other.body("/a", german), Ok(b"any".to_vec()));
    });
}

#[test]
fn ages_and_times_go_by_the_servers_clock() {
    test(|| {
        let (server, [one, other]) = machines(Server::redis());
        let lifetime = |fresh, while_revalidate, initial_age| Lifetime {
            fresh,
            while_revalidate,
            initial_age: Duration::from_secs(initial_age),
            ..Lifetime::default()
        };
        let put = |path, lifetime| {
            let content = Content {
                lifetime,
                ..Content::default()
            };
            one.put(path, &content)
        };
        assert_eq!(put("/a", lifetime(100, 50, 20)), "stored");
        let stored = Instant::now();
        let age = || other.find("/a", "").unwrap().age(clock::now());
        let first = age();
        let most = Duration::from_secs(21) + stored.elapsed();
        assert!(
            (Duration::from_secs(20)..most).contains(&first),
            "{first:?}"
        );
        let second = Duration::from_secs(21);
        until("it is a second older", || age() >= second);
        assert!(stored.elapsed() >= Duration::from_millis(990));
        let left = |path: &str| {
            let name = name_of(&one, path);
            let mut command = redis::cmd("PTTL");
            command
                .arg(name)
                .query::<i64>(&mut connect(&server))
                .unwrap()
        };
        assert!((120_000..=130_000).contains(&left("/a")), "{}", left("/a"));
        let days = 72 * 3600;
        assert_eq!(put("/b", lifetime(days + 100, 0, 0)), "stored");
        assert!((days as i64 * 1000 - 10_000..=days as i64 * 1000).contains(&left("/b")));
        assert_eq!(put("/c", lifetime(10, 0, 10)), "short");
        let validated = Lifetime {
            always_validate: true,
            ..lifetime(100, 0, 0)
        };
        assert_eq!(put("/d", validated), "short");
        let soon = lifetime(2, 0, 0);
        assert_eq!(put("/e", soon), "stored");
        until("it has gone", || other.find("/e", "").is_err());
    });
}

#[test]
fn what_is_too_long_is_not_stored() {
    test(|| {
        let (_server, [one]) = machines(Server::redis());
        let body = vec![b'x'; 1 << 20];
        let put = |body| {
            let content = Content {
                body,
                ..Content::default()
            };
            one.put("/a", &content)
        };
        assert_eq!(put(&body), "long");
        assert_eq!(one.find("/a", "").unwrap_err(), "absent");
        assert_eq!(put(&body[..body.len() - 1000]), "stored");
        assert_eq!(one.body("/a", "").unwrap().len(), body.len() - 1000);
    });
}

#[test]
fn what_is_removed_does_not_come_back() {
    test(|| {
        let (server, [one, other]) = machines(Server::redis());
        let vary = Content {
            asked: "X: 1\r\n",
            fields: "Vary: X\r\n",
            ..Content::default()
        };
        assert_eq!(one.put("/a", &Content::default()), "stored");
        assert_eq!(one.put("/b", &vary), "stored");
        let asked_before = other.object("/a", &Content::default());
        for path in ["/a", "/b"] {
            other.shared.remove(&other.key(path));
        }
        until("they are removed", || other.figures().removals == 2);
        assert_eq!(one.find("/a", "").unwrap_err(), "removed");
        assert_eq!(one.find("/b", "X: 1\r\n").unwrap_err(), "removed");
        assert_eq!(other.put_object(&asked_before), "removed");
        assert_eq!(one.put("/b", &vary), "removed");
        // A moment later; names in `Vary` do not bring old variants back.
        let name = name_of(&one, "/b");
        redis::cmd("DEL")
            .arg(name)
            .exec(&mut connect(&server))
            .unwrap();
        let vary_too = Content {
            asked: "X: 2\r\n",
            ..vary
        };
        assert_eq!(one.put("/b", &vary_too), "stored");
        assert_eq!(other.find("/b", "X: 1\r\n").unwrap_err(), "absent");
        assert!(other.find("/b", "X: 2\r\n").is_ok());
        assert_eq!(one.take_purged(), ["everything  Hard"]);
    });
}

/// The name at the server of the response under a path's key.
fn name_of(machine: &Machine, path: &str) -> String {
    use sha2::{Digest, Sha256};
    let hash = Sha256::digest(&machine.key(path).bytes);
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("evenkeel:1:{digits}")
}
