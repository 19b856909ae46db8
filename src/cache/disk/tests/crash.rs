//! A process that writes is killed at any moment.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;

/// The folder of the child that is to be killed.
const FOLDER: &str = "EVENKEEL_TEST_CRASH_FOLDER";
/// How often one is killed.
const TIMES: &str = "EVENKEEL_TEST_CRASHES";

const PATHS: u64 = 400;

fn path(number: u64) -> String {
    format!("/dir-{}/{number}", number % 7)
}

/// The body of a version of an object. Its length depends on the version too.
fn body_of(version: u64) -> Vec<u8> {
    let len = match version % 50 {
        0 => 0,
        1 => 1_200_000,
        part => part * part * 20,
    };
    bytes(version, len as usize)
}

/// Not a test by itself: the tests below start this, and kill it.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let store = open(Path::new(&folder), SMALL);
    let mut random = fastrand::Rng::new();
    // Keys that were purged, or are being purged, are not stored again.
    let mut gone = HashSet::new();
    for turn in 0_u64.. {
        let number = random.u64(..PATHS);
        if turn % 40 == 39 {
            if gone.insert(number) {
                if turn % 80 == 39 {
                    let url = format!("http://h{}", path(number));
                    store
                        .purge(Purge::Url(url.as_bytes()), Strength::Hard)
                        .unwrap();
                } else {
                    remove(&store, &path(number));
                    assert!(store.wait_until_idle(DEADLINE));
                }
                println!("gone {number}");
            }
        } else if !gone.contains(&number) {
            let version = random.u64(..1 << 40) * PATHS + number;
            let asked = Asked::of(&path(number), "");
            let new = object(
                &store,
                &asked,
                &format!("Version: {version}\r\n"),
                &body_of(version),
            );
            // The queue may be full.
            let _ = store.insert(&asked.key(&store.secret()), new);
            // Asked for, so that some move on.
            fetch(&store, &path(random.u64(..PATHS / 10)), "");
        }
    }
}

fn start(folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "cache::disk::tests::crash::child", "--nocapture"]);
    command.env(FOLDER, folder).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// Kills a child after so many of its lines and this time. Gives the keys that it reported gone.
fn kill_amid_work(folder: &Path, lines: usize, then: Duration) -> HashSet<u64> {
    let mut child = start(folder);
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut gone = HashSet::new();
    let mut note = |line: &str| {
        if let Some(number) = line.strip_prefix("gone ") {
            gone.insert(number.parse().unwrap());
        }
    };
    let mut count = 0;
    while count < lines {
        note(&said.next().expect("the child goes on").unwrap());
        count += 1;
    }
    std::thread::sleep(then);
    child.kill().unwrap();
    child.wait().unwrap();
    // A last line may be cut off.
    let rest: Vec<_> = said.map_while(Result::ok).collect();
    for line in rest.iter().filter(|line| line.parse::<u64>().is_err()) {
        let number = line.strip_prefix("gone ");
        if number.is_some_and(|number| number.len() == 3 || line != rest.last().unwrap()) {
            note(line);
        }
    }
    gone
}

#[test]
fn a_kill_at_any_moment_costs_no_more_than_the_newest() {
    let times = std::env::var(TIMES).map_or(20, |times| times.parse().unwrap());
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = TempDir::new().unwrap();
    let mut all_found = 0;
    for turn in 0..times {
        let then = Duration::from_micros(random.u64(..60_000));
        let gone = kill_amid_work(folder.path(), random.usize(3..40), then);
        assert!(folder_bytes(folder.path()) <= SMALL + (2 << 20), "{turn}");
        let store = open_idle(folder.path());
        let mut found = 0;
        for number in 0..PATHS {
            let Some(stored) = fetch(&store, &path(number), "") else {
                continue;
            };
            assert!(!gone.contains(&number), "{turn}: {number} is gone");
            let version = stored.object.value("version").unwrap();
            let version: u64 = std::str::from_utf8(version).unwrap().parse().unwrap();
            assert_eq!(version % PATHS, number, "{turn}");
            assert!(whole_body(&stored) == body_of(version), "{turn}: {number}");
            found += 1;
        }
        let figures = store.figures();
        assert_eq!(figures.damaged, 0, "{turn}: {figures:?}");
        assert!(figures.bytes <= SMALL, "{turn}: {figures:?}");
        all_found += found;
        close(store);
    }
    assert!(all_found > times * 50, "{all_found}");
}
