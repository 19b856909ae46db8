//! The disk: cold files, one that is slow or broken, and more work than it can
//! do; and too few descriptors.

use std::fs::File;
use std::time::{Duration, Instant};

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{Proxy, ProxySetup, RawClient, Reads, SlowDisk, TempDir};
use rustix::fs::{Advice, fadvise};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::{FileConfig, FileSite, OFTEN, bytes_of};
use crate::setup::{assert_logged, assert_refused, get, program, test};
use crate::words;

/// Takes a file out of memory.
fn make_cold(path: &std::path::Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
}

#[test]
fn cold_files_are_the_same_files() {
    test(|| {
        let site = FileConfig::default().start();
        for len in [1, 5_000, 65_536, 65_537, 1_000_000] {
            let name = format!("{len}.bin");
            let path = site.write(&name, bytes_of(len));
            for _ in 0..4 {
                make_cold(&path);
                let response = site.get(&format!("/{name}"));
                assert_eq!(response.status, 200);
                assert!(response.body == bytes_of(len), "{len}");
            }
            make_cold(&path);
            let mut clients: Vec<RawClient> = (0..20).map(|_| site.proxy.client()).collect();
            for client in &mut clients {
                client.send(get(&format!("/{name}"))).unwrap();
            }
            for client in &mut clients {
                let response = client.read_response("GET").unwrap();
                assert!(response.body == bytes_of(len), "{len}");
            }
        }
    });
}

/// The sources of the answers with a file, as far as they are logged.
fn sources(site: &FileSite, name: &str) -> Vec<String> {
    let lines = site.proxy.access_log_json();
    let of_file = lines.iter().filter(|it| it["target"] == format!("/{name}"));
    of_file
        .map(|it| it["source"].as_str().unwrap().to_owned())
        .collect()
}

/// Asks for a file; where the answer came from.
fn source(site: &FileSite, name: &str, len: usize) -> String {
    let count = sources(site, name).len();
    let response = site.get(&format!("/{name}"));
    assert!(response.body == bytes_of(len), "{len}");
    until("it is logged", || sources(site, name).len() > count);
    sources(site, name).pop().unwrap()
}

#[test]
fn what_is_asked_for_often_needs_no_page_cache() {
    test(|| {
        let site = FileConfig::default().start();
        let longest = 65_536;
        // Too long to be kept.
        let clock = site.write("clock.bin", bytes_of(longest + 1));
        let clock_source = || source(&site, "clock.bin", longest + 1);
        for len in [0, 1, 1_000, 30_000, longest, longest + 1] {
            let name = format!("{len}.bin");
            let path = site.write(&name, bytes_of(len));
            site.keep_open(&format!("/{name}"));
            until("all are logged", || sources(&site, &name).len() == OFTEN);
            for _ in 0..2 {
                // A file just sent counts as in memory for a tick.
                until("it is in memory", || clock_source() == "hot");
                until("a tick is over", || {
                    make_cold(&clock);
                    clock_source() == "cold"
                });
                make_cold(&path);
                let expected = if len <= longest { "hot" } else { "cold" };
                assert_eq!(source(&site, &name, len), expected, "{len}");
            }
        }
    });
}

#[test]
fn a_file_system_that_lives_in_memory_serves_too() {
    test(|| {
        let folder = TempDir::new_in(std::path::Path::new("/dev/shm")).unwrap();
        let text = FileConfig::default().text(folder.path().to_str().unwrap());
        let proxy = Proxy::start(program(), &text).unwrap();
        for len in [0, 10, 5_000, 65_536, 1_000_000] {
            std::fs::write(folder.join("a"), bytes_of(len)).unwrap();
            until("the new length is known", || {
                let response = proxy.client().get("/a");
                response.is_ok_and(|it| it.status == 200 && it.body.len() == len)
            });
            for _ in 0..3 {
                assert!(proxy.client().get("/a").unwrap().body == bytes_of(len));
            }
        }
    });
}

/// The program before a disk that is slow at will.
struct SlowSite {
    // Ends first: nothing that waits for it can be ended.
    disk: SlowDisk,
    proxy: Proxy,
}

impl SlowSite {
    /// `None` if an environment variable switches these tests off: they need the right to
    /// mount.
    fn start(
        files: &[(&'static str, usize)],
        config: FileConfig<'_>,
        setup: &ProxySetup,
    ) -> Option<Self> {
        if std::env::var_os("EVENKEEL_TEST_NO_MOUNT").is_some() {
            eprintln!("left out: EVENKEEL_TEST_NO_MOUNT is set");
            return None;
        }
        let file = |&(name, len): &(&'static str, usize)| (name, bytes_of(len));
        let files: Vec<_> = files.iter().map(file).collect();
        let disk = SlowDisk::start(&files).unwrap_or_else(|error| {
            panic!("make a slow disk: {error}; run as root, or set EVENKEEL_TEST_NO_MOUNT=1")
        });
        let mut text = config.text(disk.root().to_str().unwrap());
        let mut setup = setup.clone();
        if !setup.through.is_empty() {
            // Without root's rights it can't have it from another process.
            let opened = format!("exec 9<{}; exec \"$@\"", disk.root().display());
            let shell = ["sh", "-c", &opened, "sh"].map(str::to_owned);
            setup.through.splice(..0, shell);
            text = config.text("/proc/self/fd/9");
        }
        let proxy = Proxy::start_with(program(), &text, &setup).unwrap();
        Some(SlowSite { disk, proxy })
    }

    /// Makes the kernel cache the names, but not the files' content.
    fn learn_names(&self, names: &[&str]) {
        for name in names {
            std::fs::metadata(self.disk.root().join(name)).unwrap();
        }
    }

    /// A client that has asked for a file.
    fn asking(&self, path: &str) -> RawClient {
        let mut client = self.proxy.client();
        client.send(get(path)).unwrap();
        client
    }
}

#[test]
fn what_the_disk_can_not_take_is_refused_while_hot_files_are_served() {
    test(|| {
        let files = [("hot", 5_000), ("a", 5_000), ("b", 5_000), ("c", 100_000)];
        let overload = evenkeel_testkit::TempDir::new().unwrap();
        std::fs::write(overload.join("busy.gif"), "GIF89a").unwrap();
        let keys = format!(
            "[route.files.overload]\nretry_after = \"7s\"\nfile = {:?}\n",
            overload.join("busy.gif")
        );
        let config = FileConfig {
            disk: "in_flight = 1\nqueue = { max = 1, timeout = \"60s\" }",
            files: &keys,
            ..FileConfig::default()
        };
        let Some(site) = SlowSite::start(&files, config, &ProxySetup::default()) else {
            return;
        };
        let (proxy, disk) = (&site.proxy, &site.disk);
        assert!(proxy.client().get("/hot").unwrap().body == bytes_of(5_000));
        site.learn_names(&["a", "b", "c"]);
        disk.set_reads(Reads::Hold);
        let mut reading = site.asking("/a");
        until("the disk reads", || disk.waiting() == 1);
        let mut same = site.asking("/a");
        let mut waiting = site.asking("/b");
        // Which of them came first is not known: one more is too many.
        until("there is no room", || {
            let response = proxy.client().get("/c").unwrap();
            assert_refused_as_configured(&response);
            true
        });
        for _ in 0..3 {
            let begun = Instant::now();
            let hot = proxy.client().get("/hot").unwrap();
            assert!(hot.status == 200 && hot.body == bytes_of(5_000));
            assert!(begun.elapsed() < Duration::from_secs(1), "it waited");
            assert_refused_as_configured(&proxy.client().get("/c").unwrap());
        }
        assert_logged(proxy, words::DISK_BUSY);
        disk.set_reads(Reads::Serve);
        for client in [&mut reading, &mut same, &mut waiting] {
            let response = client.read_response("GET").unwrap();
            assert!(response.status == 200 && response.body == bytes_of(5_000));
        }
        let served = proxy.client().get("/c").unwrap();
        assert!(served.status == 200 && served.body == bytes_of(100_000));
    });
}

#[track_caller]
fn assert_refused_as_configured(response: &evenkeel_testkit::Response) {
    assert_eq!(response.status, 503, "{response:?}");
    assert_eq!(response.text(), "GIF89a");
    assert_eq!(response.field("Content-Type"), Some("image/gif"));
    assert_eq!(response.field("Retry-After"), Some("7"));
}

#[test]
fn one_read_serves_all_who_wait_for_it() {
    test(|| {
        let config = FileConfig::default();
        let files = [("hot", 100), ("a", 4_000)];
        let Some(site) = SlowSite::start(&files, config, &ProxySetup::default()) else {
            return;
        };
        let (proxy, disk) = (&site.proxy, &site.disk);
        assert_eq!(proxy.client().get("/hot").unwrap().status, 200);
        disk.set_reads(Reads::Hold);
        let before = disk.read_count();
        let mut clients: Vec<RawClient> = (0..30).map(|_| site.asking("/a")).collect();
        until("the disk reads", || disk.waiting() > 0);
        // All of them were seen by then: this one came after them.
        assert_eq!(proxy.client().get("/hot").unwrap().status, 200);
        disk.set_reads(Reads::Serve);
        for client in &mut clients {
            let response = client.read_response("GET").unwrap();
            assert!(response.status == 200 && response.body == bytes_of(4_000));
        }
        assert_eq!(disk.read_count(), before + 1);
    });
}

#[test]
fn the_event_loop_waits_for_no_disk() {
    test(|| {
        // Without rights over the files, as where the program and the files
        // have different owners.
        let restricted = ProxySetup {
            through: ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
                .map(str::to_owned)
                .to_vec(),
            ..ProxySetup::default()
        };
        // Also when clients already hold so many bytes that slices are short.
        let short = "answer_memory = \"1KiB\"";
        for (setup, server) in [
            (ProxySetup::default(), ""),
            (ProxySetup::default(), short),
            (restricted, ""),
        ] {
            let files = [("hot", 100), ("a", 1_000), ("b", 30_000), ("c", 300_000)];
            let config = FileConfig {
                server,
                route: "match = { path = [\"/hot\", \"/a\", \"/b\", \"/c\"] }",
                tables: "[[route]]\nanswer = { status = 200, body = \"pong\" }\n",
                ..FileConfig::default()
            };
            let Some(site) = SlowSite::start(&files, config, &setup) else {
                return;
            };
            assert_eq!(site.proxy.client().get("/hot").unwrap().status, 200);
            site.learn_names(&["a", "b", "c"]);
            for (name, len) in [("a", 1_000), ("b", 30_000), ("c", 300_000)] {
                let path = format!("/{name}");
                site.disk.set_reads(Reads::Hold);
                let first = site.asking(&path);
                until("the disk reads", || site.disk.waiting() > 0);
                // A file that is being read is not in memory yet either.
                let second = site.asking(&path);
                for _ in 0..3 {
                    let mut client = site.proxy.client();
                    client.set_step(Duration::from_secs(2));
                    let answer = client.get("/ping");
                    assert!(answer.is_ok(), "{path}: it waits: {:?}", setup.through);
                }
                site.disk.set_reads(Reads::Serve);
                for mut client in [first, second] {
                    let response = client.read_response("GET").unwrap();
                    assert!(response.status == 200 && response.body == bytes_of(len));
                }
            }
        }
    });
}

#[test]
fn a_read_that_fails_is_answered_and_logged() {
    test(|| {
        let config = FileConfig::default();
        let files = [("a", 4_000), ("b", 300_000)];
        let Some(site) = SlowSite::start(&files, config, &ProxySetup::default()) else {
            return;
        };
        site.disk.set_reads(Reads::Fail);
        for path in ["/a", "/b"] {
            let response = site.proxy.client().get(path).unwrap();
            assert_refused(&response, words::FILE_FAILED);
        }
        assert_logged(&site.proxy, words::FILE_FAILED);
        let said = site.proxy.stderr();
        assert!(said.contains("/a: Input/output error"), "{said}");
        site.disk.set_reads(Reads::Serve);
        for (name, len) in files {
            let response = site.proxy.client().get(&format!("/{name}")).unwrap();
            assert!(response.status == 200 && response.body == bytes_of(len));
        }
    });
}

#[test]
fn who_waits_for_the_same_bytes_under_two_names_gets_the_fields_of_each() {
    test(|| {
        let config = FileConfig {
            files: "precompressed = [\"gzip\"]",
            ..FileConfig::default()
        };
        let files = [("a.css", 4_000), ("a.css.gz", 4_000)];
        let Some(site) = SlowSite::start(&files, config, &ProxySetup::default()) else {
            return;
        };
        site.disk.set_reads(Reads::Hold);
        let mut plain = site.asking("/a.css.gz");
        let mut coded = site.proxy.client();
        coded
            .send("GET /a.css HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
            .unwrap();
        until("the disk reads", || site.disk.waiting() > 0);
        site.disk.set_reads(Reads::Serve);
        let plain = plain.read_response("GET").unwrap();
        assert_eq!(plain.field("Content-Encoding"), None, "{}", plain.head);
        assert_eq!(plain.field("Content-Type"), Some("application/gzip"));
        let coded = coded.read_response("GET").unwrap();
        assert_eq!(
            coded.field("Content-Encoding"),
            Some("gzip"),
            "{}",
            coded.head
        );
        let content_type = coded.field("Content-Type");
        assert_eq!(content_type, Some("text/css; charset=utf-8"));
    });
}

#[test]
fn a_client_that_leaves_does_not_take_the_read_of_others_along() {
    test(|| {
        let config = FileConfig::default();
        let files = [("hot", 100), ("a", 4_000)];
        let Some(site) = SlowSite::start(&files, config, &ProxySetup::default()) else {
            return;
        };
        site.disk.set_reads(Reads::Hold);
        let first = site.asking("/a");
        until("the disk reads", || site.disk.waiting() == 1);
        let mut second = site.asking("/a");
        first.reset();
        assert_logged(&site.proxy, words::CLIENT_GONE);
        site.disk.set_reads(Reads::Serve);
        let response = second.read_response("GET").unwrap();
        assert!(response.status == 200 && response.body == bytes_of(4_000));
    });
}

#[test]
fn a_disk_that_does_not_answer_is_not_waited_for() {
    test(|| {
        let config = FileConfig {
            listener: "timeouts = { body = \"300ms\" }",
            ..FileConfig::default()
        };
        let Some(site) = SlowSite::start(&[("a", 4_000)], config, &ProxySetup::default()) else {
            return;
        };
        site.disk.set_reads(Reads::Hold);
        let response = site.proxy.client().get("/a").unwrap();
        assert_refused(&response, words::DISK_TIMEOUT);
        assert_logged(&site.proxy, words::DISK_TIMEOUT);
        site.disk.set_reads(Reads::Serve);
        let response = site.proxy.client().get("/a").unwrap();
        assert!(response.status == 200 && response.body == bytes_of(4_000));
    });
}

/// A limit that leaves room for a few dozens of files and connections.
fn few_descriptors() -> ProxySetup {
    ProxySetup {
        open_files: Some(64),
        ..ProxySetup::default()
    }
}

/// Makes the lowest free number the program's limit of descriptors.
fn leave_no_descriptor(proxy: &Proxy) {
    let folder = format!("/proc/{}/fd", proxy.pid());
    let free =
        (0..).find(|number| std::fs::symlink_metadata(format!("{folder}/{number}")).is_err());
    let most = Rlimit {
        current: free,
        ..getrlimit(Resource::Nofile)
    };
    prlimit(Pid::from_raw(proxy.pid() as i32), Resource::Nofile, most).unwrap();
}

#[test]
fn out_of_descriptors_it_says_so() {
    test(|| {
        let site = FileConfig::default().start();
        let mut client = site.proxy.client();
        assert_eq!(client.get("/absent").unwrap().status, 404);
        // Other threads may still open and close some: a file may find one of theirs.
        let response = (0..50)
            .map(|number| {
                leave_no_descriptor(&site.proxy);
                site.write(&number.to_string(), "a");
                client.get(&format!("/{number}")).unwrap()
            })
            .find(|it| it.status != 200)
            .unwrap();
        assert_refused(&response, words::NO_DESCRIPTOR);
        assert!(response.field("Retry-After").is_some());
        assert_logged(&site.proxy, words::NO_DESCRIPTOR);
    });
}

#[test]
fn clients_in_the_middle_of_a_head_leave_room_for_files() {
    test(|| {
        let site = FileConfig::default().start_with(&few_descriptors());
        let mut first = site.proxy.client();
        assert_eq!(first.get("/absent").unwrap().status, 404);
        let mut crowd: Vec<RawClient> = (0..80).map(|_| site.proxy.client()).collect();
        for (number, client) in crowd.iter_mut().enumerate() {
            // Clients that had to leave get nothing more.
            let _ = client.send("G");
            site.write(&number.to_string(), "a");
            let response = first.get(&format!("/{number}")).unwrap();
            assert_eq!(response.status, 200);
        }
        assert_logged(&site.proxy, words::NO_DESCRIPTOR);
    });
}

#[test]
fn files_that_are_kept_open_leave_room_for_connections() {
    test(|| {
        let site = FileConfig::default().start_with(&few_descriptors());
        for number in 0..100 {
            site.write(&format!("{number}"), format!("{number}"));
        }
        let mut client = site.proxy.client();
        for _ in 0..3 {
            for number in 0..100 {
                for _ in 0..3 {
                    let response = client.get(&format!("/{number}")).unwrap();
                    assert_eq!(
                        (response.status, response.text()),
                        (200, format!("{number}"))
                    );
                }
            }
        }
        let mut others: Vec<RawClient> = (0..10).map(|_| site.proxy.client()).collect();
        for other in &mut others {
            assert_eq!(other.get("/1").unwrap().status, 200);
        }
    });
}

#[test]
fn a_worker_that_keeps_files_open_leaves_room_for_clients_of_others() {
    test(|| {
        const LIMIT: u32 = 96;
        let folder = TempDir::new().unwrap();
        for number in 0..100 {
            std::fs::write(folder.join(&number.to_string()), "a").unwrap();
        }
        let text = FileConfig::default().text(folder.path().to_str().unwrap());
        let text = text.replace("workers = 1", "workers = 2\nreserved_descriptors = 0");
        let setup = ProxySetup {
            open_files: Some(LIMIT),
            ..ProxySetup::default()
        };
        let proxy = Proxy::start_with(program(), &text, &setup).unwrap();
        let mut client = proxy.client();
        assert_eq!(client.get("/1").unwrap().status, 200);
        // As many as the limit allows, and none is closed again: the last that
        // would have done so is not asked for.
        for number in 0..100 {
            if proxy.open_files().unwrap() == LIMIT as usize {
                break;
            }
            for _ in 0..3 {
                assert_eq!(client.get(&format!("/{number}")).unwrap().status, 200);
            }
        }
        assert_eq!(
            proxy.open_files().unwrap(),
            LIMIT as usize,
            "all are in use"
        );
        // Some of them belong to the one worker, some to the other, which has
        // nothing to close itself.
        for _ in 0..10 {
            let mut client = proxy.client();
            until("it is served", || client.get("/1").unwrap().status == 200);
        }
    });
}
