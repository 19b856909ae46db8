//! Damage, foreign folders, and disks that fail.

use std::process::Command;

use evenkeel_testkit::deadline::until;

use super::*;

/// A folder with sealed segments and an unsealed one, and their objects.
fn filled() -> (TempDir, Vec<(String, Vec<u8>)>) {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path(), SMALL);
    let objects: Vec<_> = (0..40_u64)
        .map(|at| (format!("/{at}"), bytes(at, at as usize * 500)))
        .collect();
    for (path, body) in &objects {
        insert(&store, path, ("", ""), body);
    }
    insert(&store, "/long", ("", ""), &bytes(1, 1_500_000));
    assert!(store.wait_until_idle(DEADLINE));
    let image = image(folder.path());
    (image, objects)
}

/// Opens a damaged store; checks that all it finds is right; gives how many it found.
fn check(folder: &Path, objects: &[(String, Vec<u8>)], what: &str) -> usize {
    let store = match try_open(folder, SMALL) {
        Ok(store) => store,
        Err(CannotOpen::Damaged { .. } | CannotOpen::Version { .. }) => return 0,
        Err(error) => panic!("{what}: {error}"),
    };
    assert!(store.wait_until_idle(DEADLINE), "{what}");
    let mut count = 0;
    for (path, expected) in objects {
        if let Some(found) = body(&store, path, "") {
            assert!(found == *expected, "{what}: {path}");
            count += 1;
        }
    }
    if let Some(found) = body(&store, "/long", "") {
        assert!(found == bytes(1, 1_500_000), "{what}: /long");
    }
    // It can be written.
    insert(&store, "/after", ("", ""), b"after");
    assert!(store.wait_until_idle(DEADLINE), "{what}");
    assert_eq!(body(&store, "/after", "").unwrap(), b"after", "{what}");
    close(store);
    count
}

#[test]
fn flipped_bits_and_missing_ends_give_no_wrong_byte() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (whole, objects) = filled();
    assert_eq!(
        check(image(whole.path()).path(), &objects, "whole"),
        objects.len()
    );
    let mut names: Vec<_> = fs::read_dir(whole.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name != "lock")
        .collect();
    names.sort();
    let mut found = 0;
    for turn in 0..120 {
        let copy = image(whole.path());
        let path = copy.path().join(&names[random.usize(..names.len())]);
        let mut content = fs::read(&path).unwrap();
        let what = if turn % 3 == 0 {
            let len = random.usize(..content.len());
            content.truncate(len);
            format!("{turn}: {} bytes of {}", len, path.display())
        } else {
            // Near the beginning, where heads are, or anywhere.
            let end = if random.bool() { 200 } else { content.len() };
            let at = random.usize(..end.min(content.len()));
            content[at] ^= 1 << random.u8(..8);
            format!("{turn}: byte {at} of {}", path.display())
        };
        fs::write(&path, content).unwrap();
        found += check(copy.path(), &objects, &what);
    }
    // Most damage costs one object, or the objects after it.
    assert!(found > 120 * objects.len() / 4, "{found}");
}

/// Bytes of another record where the index expects one.
#[test]
fn an_index_that_does_not_match_its_data_finds_nothing_wrong() {
    let (image, objects) = filled();
    close(open_idle(image.path()));
    let names = fs::read_dir(image.path()).unwrap();
    let mut segments: Vec<_> = names
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().contains("segment-"))
        .collect();
    segments.sort();
    let oldest = segments.first().unwrap();
    let mut content = fs::read(oldest).unwrap();
    let middle = content.len() / 3;
    content[32..middle].rotate_left(8 * 40);
    fs::write(oldest, content).unwrap();
    let found = check(image.path(), &objects, "rotated");
    assert!(found < objects.len());
}

#[test]
fn a_damaged_record_is_counted_and_dropped() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path(), SMALL);
    for (path, len) in [("/short", 5000), ("/long", 1_500_000)] {
        insert(&store, path, ("", ""), &bytes(7, len));
    }
    close(store);
    let mut paths = fs::read_dir(folder.path())
        .unwrap()
        .map(|it| it.unwrap().path());
    let segments: Vec<_> = paths
        .by_ref()
        .filter(|path| path.to_str().unwrap().contains("segment-"))
        .collect();
    for segment in segments {
        let mut content = fs::read(&segment).unwrap();
        for (at, _) in bytes(7, 5000).windows(16).enumerate().skip(3000).take(1) {
            let part = &bytes(7, 5000)[at..at + 16];
            for found in memchr::memmem::find_iter(&content.clone(), part) {
                content[found] ^= 1;
            }
        }
        fs::write(&segment, content).unwrap();
    }
    let store = open_idle(folder.path());
    assert_eq!(store.figures().objects, 2);
    assert!(fetch(&store, "/short", "").is_none());
    assert!(fetch(&store, "/long", "").is_none());
    let figures = store.figures();
    assert_eq!((figures.damaged, figures.objects), (2, 0));
}

#[test]
fn a_folder_that_is_no_store_is_refused() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("letter.txt"), "dear").unwrap();
    let error = try_open(folder.path(), SMALL).unwrap_err().to_string();
    assert!(
        error.contains("\"letter.txt\"") && error.contains("empty"),
        "{error}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    let folder = TempDir::new().unwrap();
    close(open(folder.path(), SMALL));
    let head = folder.path().join("store");
    let mut content = fs::read(&head).unwrap();
    content[4] += 1;
    fs::write(&head, &content).unwrap();
    let error = try_open(folder.path(), SMALL).unwrap_err().to_string();
    assert!(error.contains("another version"), "{error}");
    content[4] -= 1;
    content[10] ^= 1;
    fs::write(&head, &content).unwrap();
    let error = try_open(folder.path(), SMALL).unwrap_err().to_string();
    assert!(error.contains("damaged"), "{error}");
    let file = folder.path().join("lock");
    assert!(matches!(try_open(&file, SMALL), Err(CannotOpen::Io { .. })));
}

/// A removal that is lost with a part of its segment does not bring back older objects.
#[test]
fn a_segment_that_is_cut_off_brings_back_nothing_that_was_removed() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path(), SMALL);
    insert(&store, "/old", ("", ""), b"old");
    insert(&store, "/removed", ("", ""), b"removed");
    close(store);
    let store = open_idle(folder.path());
    insert(&store, "/middle", ("", ""), &bytes(1, 30_000));
    assert!(store.wait_until_idle(DEADLINE));
    remove(&store, "/removed");
    close(store);
    let store = open_idle(folder.path());
    insert(&store, "/new", ("", ""), b"new");
    close(store);
    let middle = folder.path().join("segment-0000000002");
    let mut content = fs::read(&middle).unwrap();
    // The summary of two frames, and a part of the removal.
    content.truncate(content.len() - 130);
    fs::write(&middle, content).unwrap();
    let store = open_idle(folder.path());
    assert_eq!(body(&store, "/new", "").unwrap(), b"new");
    assert!(body(&store, "/middle", "").is_some());
    assert!(body(&store, "/removed", "").is_none());
    assert!(body(&store, "/old", "").is_none());
    assert_eq!(store.figures().damaged, 1);
}

/// Purges may be missing then.
#[test]
fn a_log_of_purges_that_is_damaged_or_gone_costs_all_objects() {
    for is_gone in [true, false] {
        let folder = TempDir::new().unwrap();
        let store = open(folder.path(), SMALL);
        insert(&store, "/a", ("", ""), b"a");
        store.purge(Purge::Tag(b"x"), Strength::Hard).unwrap();
        close(store);
        let log = folder.path().join("purges");
        if is_gone {
            fs::remove_file(&log).unwrap();
        } else {
            let mut content = fs::read(&log).unwrap();
            *content.last_mut().unwrap() ^= 1;
            fs::write(&log, content).unwrap();
        }
        let store = open_idle(folder.path());
        assert!(fetch(&store, "/a", "").is_none());
        insert(&store, "/b", ("", ""), b"b");
        close(store);
        assert!(fetch(&open_idle(folder.path()), "/b", "").is_some());
    }
}

/// Runs a command; it has to succeed.
fn run(program: &str, arguments: &[&str]) {
    assert!(
        succeeds(program, arguments),
        "{program} {arguments:?}: run as root, or set EVENKEEL_TEST_NO_MOUNT=1"
    );
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let status = Command::new(program).args(arguments).status();
    let status = status.unwrap_or_else(|error| panic!("{program}: {error}"));
    status.success()
}

/// A file system in memory that is unmounted when it is dropped.
struct Mount(TempDir);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_disk_that_is_full_or_read_only_pauses_the_store() {
    if std::env::var_os("EVENKEEL_TEST_NO_MOUNT").is_some() {
        eprintln!("left out: EVENKEEL_TEST_NO_MOUNT is set");
        return;
    }
    let mount = Mount(TempDir::new().unwrap());
    let folder = mount.0.path().to_str().unwrap();
    run("mount", &["-t", "tmpfs", "-o", "size=3m", "tmpfs", folder]);
    let path = mount.0.path().join("store");
    let store = open(&path, SMALL);
    insert(&store, "/first", ("", ""), b"first");
    assert!(store.wait_until_idle(DEADLINE));
    let mut count = 0;
    while store.figures().phase == Phase::Working {
        let asked = Asked::of(&format!("/{count}"), "");
        let new = object(&store, &asked, "", &bytes(count, 60_000));
        let _ = store.insert(&asked.key(&store.secret()), new);
        assert!(store.wait_until_idle(DEADLINE));
        count += 1;
        assert!(count < 100);
    }
    let figures = store.figures();
    assert_eq!(figures.phase, Phase::Paused);
    assert!(figures.not_written.count("paused") == 1, "{figures:?}");
    // The store is read, and removals hold.
    assert_eq!(body(&store, "/first", "").unwrap(), b"first");
    assert!(body(&store, "/1", "").unwrap() == bytes(1, 60_000));
    remove(&store, "/1");
    assert!(body(&store, "/1", "").is_none());
    let asked = Asked::of("/new", "");
    let new = object(&store, &asked, "", b"new");
    let refused = store.insert(&asked.key(&store.secret()), new);
    assert_eq!(refused, Err(NotWritten::Paused));
    // With room again, the store goes on by itself, without removed responses.
    run("mount", &["-o", "remount,size=30m", folder]);
    let is_working = |state: &queue::State| state.phase() == Phase::Working && state.is_idle();
    assert!(store.shared.queue.wait_for(DEADLINE, is_working));
    insert(&store, "/new", ("", ""), b"new");
    assert!(store.wait_until_idle(DEADLINE));
    let killed = image(&path);
    close(store);
    for folder in [path.as_path(), killed.path()] {
        let store = open_idle(folder);
        assert!(body(&store, "/1", "").is_none());
        assert!(body(&store, "/2", "").unwrap() == bytes(2, 60_000));
        assert_eq!(body(&store, "/new", "").unwrap(), b"new");
    }
    // Read-only from the start.
    let store = open_idle(&path);
    close(store);
    // A process that another test starts has the store's files until it is another program.
    until("no file is open", || {
        succeeds("mount", &["-o", "remount,ro", folder])
    });
    let error = try_open(&path, SMALL).unwrap_err().to_string();
    assert!(error.contains("ead-only"), "{error}");
}
