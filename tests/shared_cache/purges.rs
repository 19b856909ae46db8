//! Purges between machines, and machines that were cut off meanwhile.

use super::*;

/// Stores responses at paths, with a tag. A response requested before this machine has read its
/// own last purge from the log counts as purged, and is requested again.
fn put_all(machine: &Machine, paths: &[&str]) {
    let content = Content {
        fields: "Cache-Tag: red\r\n",
        ..Content::default()
    };
    for path in paths {
        until(path, || {
            assert_eq!(machine.put(path, &content), "stored", "{path}");
            machine.find(path, "").is_ok()
        });
    }
}

/// Waits until a machine has had a purge of others.
#[track_caller]
fn until_purged(machine: &Machine, expected: &str) {
    until(expected, || {
        let purged = machine.purged.lock().unwrap();
        purged.last().is_some_and(|it| it == expected)
    });
}

#[test]
fn a_purge_reaches_all_machines() {
    test(|| {
        use Purge::{Everything, Prefix, Tag, Url};
        for server in [Server::redis(), Server::valkey()] {
            let (_server, [one, other]) = machines(server);
            for (what, text, gone) in [
                (
                    Url(b"http://example.com/a/1"),
                    "url http://example.com/a/1",
                    &["/a/1"][..],
                ),
                (
                    Prefix(b"http://example.com/a"),
                    "prefix http://example.com/a",
                    &["/a/1", "/a/2"],
                ),
                (Tag(b"RED"), "tag RED", &["/a/1", "/a/2", "/b"]),
                (Everything, "everything ", &["/a/1", "/a/2", "/b"]),
            ] {
                let paths = ["/a/1", "/a/2", "/b"];
                put_all(&one, &paths);
                one.shared.purge(what, Strength::Soft);
                until_purged(&other, &format!("{text} Soft"));
                for path in paths {
                    let found = other.find(path, "").unwrap();
                    let is_purged = found.stored(clock::now()).is_purged;
                    assert_eq!(is_purged, gone.contains(&path), "{text} {path}");
                }
                one.shared.purge(what, Strength::Hard);
                // At once on this machine, and on the other one as soon as the server has it.
                for path in paths {
                    let is_gone = one.find(path, "").is_err();
                    assert_eq!(is_gone, gone.contains(&path), "{text} {path}");
                }
                until_purged(&other, &format!("{text} Hard"));
                for path in paths {
                    let is_gone = other.find(path, "").is_err();
                    assert_eq!(is_gone, gone.contains(&path), "{text} {path}");
                }
            }
            until("all are in the log", || one.figures().purges_waiting == 0);
            assert_eq!(one.figures().purges_sent, 8);
            assert_eq!(other.figures().purges_received, 8);
            assert_eq!(one.figures().purges_received, 0);
        }
    });
}

#[test]
fn what_was_asked_for_before_a_purge_is_not_stored_after_it() {
    test(|| {
        let (_server, [one, other]) = machines(Server::redis());
        let asked_here = one.object("/a", &Content::default());
        let asked_there = other.object("/a", &Content::default());
        let url = Purge::Url(b"http://example.com/a");
        one.shared.purge(url, Strength::Hard);
        until_purged(&other, "url http://example.com/a Hard");
        until("it is in the log", || one.figures().purges_waiting == 0);
        for (machine, object) in [(&one, &asked_here), (&other, &asked_there)] {
            // It can be stored, but not found.
            assert_eq!(machine.put_object(object), "stored");
            assert_eq!(one.find("/a", "").unwrap_err(), "purged");
            assert_eq!(other.find("/a", "").unwrap_err(), "purged");
        }
        put_all(&other, &["/a"]);
        assert!(one.find("/a", "").is_ok() && other.find("/a", "").is_ok());
        // It counts as old as the objects in memory, and not as newer.
        let found = one.find("/a", "").unwrap();
        one.shared.purge(url, Strength::Hard);
        assert!(!one.memory.insert(&one.key("/a"), found));
    });
}

/// A server, and two machines. The second machine logs in with its own user, so that it can be
/// cut off.
struct Divided {
    server: Server,
    one: Machine,
    other: Machine,
}

impl Divided {
    fn start() -> Self {
        let mut server = Server::redis();
        server.start(&[]);
        let mut acl = redis::cmd("ACL");
        acl.arg("SETUSER")
            .arg(&["b", "on", ">secret", "~*", "+@all"]);
        acl.exec(&mut connect(&server)).unwrap();
        let one = Machine::at(&server);
        let url = at_socket(server.socket(), "?user=b&pass=secret");
        let other = Machine::start(settings(&url));
        other.until_up();
        Divided { server, one, other }
    }

    fn ask(&self, command: &[&str]) {
        let mut asked = redis::cmd(command[0]);
        asked.arg(&command[1..]);
        asked.exec(&mut connect(&self.server)).unwrap();
    }

    fn cut_off(&self) {
        self.ask(&["ACL", "SETUSER", "b", "off"]);
        self.ask(&["CLIENT", "KILL", "USER", "b"]);
        self.other.until_down(Outcome::Password);
    }

    fn join(&self) {
        self.ask(&["ACL", "SETUSER", "b", "on"]);
        self.other.until_up();
    }
}

#[test]
fn a_machine_that_was_cut_off_applies_what_it_missed_first() {
    test(|| {
        let world = Divided::start();
        let Divided { one, other, .. } = &world;
        put_all(one, &["/a", "/b"]);
        assert!(other.find("/a", "").is_ok());
        let asked_before = other.object("/a", &Content::default());
        other.take_purged();
        world.cut_off();
        assert_eq!(other.find("/a", "").unwrap_err(), "down");
        let url = |path: &str| format!("http://example.com{path}");
        one.shared
            .purge(Purge::Url(url("/a").as_bytes()), Strength::Hard);
        one.shared.purge(Purge::Tag(b"other"), Strength::Soft);
        until("they are in the log", || one.figures().purges_waiting == 0);
        // A purge while the server can't be reached.
        other
            .shared
            .purge(Purge::Url(url("/b").as_bytes()), Strength::Hard);
        assert_eq!(other.figures().purges_waiting, 1);
        assert!(one.find("/b", "").is_ok());
        world.join();
        let expected = [
            "url http://example.com/b Hard",
            "url http://example.com/a Hard",
            "tag other Soft",
        ];
        assert_eq!(other.take_purged(), expected);
        assert_eq!(other.find("/a", "").unwrap_err(), "purged");
        assert_eq!(other.find("/b", "").unwrap_err(), "purged");
        assert_eq!(other.put_object(&asked_before), "stored");
        assert_eq!(one.find("/a", "").unwrap_err(), "purged");
        until_purged(one, "url http://example.com/b Hard");
        assert_eq!(one.find("/b", "").unwrap_err(), "purged");
        assert_eq!(other.figures().purged_unknown, 0);
    });
}

#[test]
fn a_removal_that_was_missed_is_a_purge() {
    test(|| {
        let world = Divided::start();
        let Divided { one, other, .. } = &world;
        put_all(one, &["/a", "/b"]);
        world.cut_off();
        other.shared.remove(&other.key("/a"));
        until("it waits", || other.figures().purges_waiting == 1);
        world.join();
        until_purged(one, "url http://example.com/a Hard");
        assert_eq!(one.find("/a", "").unwrap_err(), "purged");
        assert!(one.find("/b", "").is_ok() && other.find("/b", "").is_ok());
    });
}

#[test]
fn a_machine_that_missed_more_than_is_kept_purges_all_that_it_has() {
    test(|| {
        let world = Divided::start();
        let Divided { one, other, .. } = &world;
        put_all(one, &["/a", "/b"]);
        let asked_before = other.object("/a", &Content::default());
        other.take_purged();
        world.cut_off();
        one.shared
            .purge(Purge::Url(b"http://example.com/a"), Strength::Hard);
        one.shared.purge(Purge::Tag(b"x"), Strength::Hard);
        until("they are in the log", || one.figures().purges_waiting == 0);
        world.ask(&["XTRIM", "evenkeel:1:purges", "MAXLEN", "1"]);
        world.join();
        assert_eq!(other.take_purged(), ["everything  Hard"]);
        assert_eq!(other.figures().purged_unknown, 1);
        // Whether these were purged is not known there any more.
        assert_eq!(other.find("/a", "").unwrap_err(), "purged");
        assert_eq!(other.find("/b", "").unwrap_err(), "purged");
        assert_eq!(other.put_object(&asked_before), "old");
        assert!(one.find("/b", "").is_ok());
        // Responses stored from now on are found.
        put_all(other, &["/a"]);
        assert!(one.find("/a", "").is_ok() && other.find("/a", "").is_ok());
    });
}

#[test]
fn a_machine_that_starts_again_has_only_what_it_missed_purged() {
    test(|| {
        let mut server = Server::redis();
        server.start(&[]);
        let [one, other] = [Machine::at(&server), Machine::at(&server)];
        let purge = |machine: &Machine, url: &[u8]| {
            machine.shared.purge(Purge::Url(url), Strength::Hard);
            until("it is in the log", || machine.figures().purges_waiting == 0);
        };
        purge(&one, b"http://example.com/before");
        until_purged(&other, "url http://example.com/before Hard");
        let noted = |machine: &Machine| *machine.position.lock().unwrap();
        until("it is noted", || noted(&other) == noted(&one));
        let again = settings(&at_socket(server.socket(), ""));
        let other = other.restarted(again.clone(), || {
            purge(&one, b"http://example.com/meanwhile");
        });
        other.until_up();
        assert_eq!(
            other.take_purged(),
            ["url http://example.com/meanwhile Hard"]
        );
        // Responses from before are still found at the server.
        put_all(&one, &["/a"]);
        let other = other.restarted(again.clone(), || {});
        other.until_up();
        assert!(other.find("/a", "").is_ok());
        assert!(other.take_purged().is_empty());
        // A new log does not cover the responses stored here.
        let other = other.restarted(again, || {
            let mut connection = connect(&server);
            let delete = redis::cmd("DEL").arg("evenkeel:1:purges").clone();
            delete.exec(&mut connection).unwrap();
        });
        other.until_up();
        assert_eq!(other.take_purged(), ["everything  Hard"]);
    });
}

#[test]
fn a_log_that_is_lost_is_begun_anew() {
    test(|| {
        let (server, [one, other]) = machines(Server::redis());
        put_all(&one, &["/a"]);
        let asked_before = one.object("/b", &Content::default());
        one.take_purged();
        // As a server does that is short of memory.
        let mut connection = connect(&server);
        let delete = redis::cmd("DEL").arg("evenkeel:1:purges").clone();
        delete.exec(&mut connection).unwrap();
        for machine in [&one, &other] {
            until("it was noticed", || machine.figures().purged_unknown == 1);
            machine.until_up();
            assert_eq!(machine.find("/a", "").unwrap_err(), "purged");
        }
        assert_eq!(one.take_purged(), ["everything  Hard"]);
        assert_eq!(one.put_object(&asked_before), "old");
        put_all(&one, &["/a"]);
        assert!(other.find("/a", "").is_ok());
        let downs = one.figures().downs.occurred();
        assert_eq!(downs.iter().collect::<Vec<_>>(), [("log", 1)]);
    });
}
