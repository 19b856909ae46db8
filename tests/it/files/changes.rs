//! Files and folders that change while they are served.

use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::deadline::{STEP, holds_within, until};
use evenkeel_testkit::process::Running;
use evenkeel_testkit::{Proxy, Response};

use super::{FileConfig, FileSite, OFTEN, bytes_of};
use crate::setup::{assert_logged, assert_refused, get, program, test};
use crate::words;

/// Open files are looked at again soon.
const CHECKED_OFTEN: FileConfig<'static> = FileConfig {
    server: "",
    disk: "check_interval = \"100ms\"",
    listener: "",
    route: "",
    files: "",
    tables: "",
};

/// Requests a file until its answer has changed as expected. Until then it must be the old
/// answer.
#[track_caller]
fn changes(site: &FileSite, path: &str, before: &[u8], after: impl Fn(&Response) -> bool) {
    let mut client = site.proxy.client();
    until(&format!("{path} changes"), || {
        let response = client.get(path).unwrap();
        let is_new = after(&response);
        let is_old = response.status == 200 && response.body == before;
        assert!(is_new || is_old, "neither old nor new: {}", response.head);
        is_new
    });
}

/// Longer than `check_interval`, plus a margin for a slow machine.
const TICKS: Duration = Duration::from_millis(300);

fn is(bytes: &[u8]) -> impl Fn(&Response) -> bool {
    move |response| response.status == 200 && response.body == bytes
}

/// Whether `/a` becomes this while an open file may still be served. Until then, an answer with
/// the old file may be cut off.
fn becomes_within_ticks(site: &FileSite, bytes: &[u8]) -> bool {
    let is_new = is(bytes);
    holds_within(TICKS, || {
        let response = site.proxy.client().get("/a");
        response.is_ok_and(|response| is_new(&response))
    })
}

#[test]
fn a_file_that_is_replaced_is_the_old_one_or_the_new_one() {
    test(|| {
        for (old, new) in [(10, 12), (12, 10), (10, 10), (10, 200_000), (200_000, 10)] {
            let site = CHECKED_OFTEN.start();
            let (old, new) = (vec![b'o'; old], vec![b'n'; new]);
            site.write("a", &old);
            site.keep_open("/a");
            std::fs::write(site.folder.join("b"), &new).unwrap();
            std::fs::rename(site.folder.join("b"), site.folder.join("a")).unwrap();
            changes(&site, "/a", &old, is(&new));
        }
    });
}

#[test]
fn a_file_that_is_written_over_in_its_place_is_seen_within_a_tick() {
    test(|| {
        for (old, new) in [
            (1_000, 2_000),
            (2_000, 1_000),
            (10_000, 20_000),
            (20_000, 10_000),
        ] {
            let site = FileConfig::default().start();
            let (old, new) = (vec![b'o'; old], vec![b'n'; new]);
            site.write("a", &old);
            site.keep_open("/a");
            site.write("a", &new);
            changes(&site, "/a", &old, is(&new));
        }
    });
}

#[test]
fn a_part_is_of_the_file_that_its_tag_names() {
    test(|| {
        let site = FileConfig::default().start();
        for len in [1_000, 10_000, 500_000] {
            site.write("a", vec![b'o'; len]);
            site.keep_open("/a");
            let tag = site.get("/a").field("ETag").map(str::to_owned).unwrap();
            std::fs::write(site.folder.join("a"), vec![b'n'; len]).unwrap();
            let request = format!(
                "GET /a HTTP/1.1\r\nHost: a\r\nRange: bytes=10-19\r\nIf-Range: {tag}\r\n\r\n"
            );
            let response = site.proxy.client().ask(&request).unwrap();
            assert_eq!(response.status, 200, "{}", response.head);
            assert!(response.body == vec![b'n'; len], "{len}");
        }
    });
}

#[test]
fn whatever_becomes_of_its_name_a_file_is_sent_to_its_end() {
    test(|| {
        let site = CHECKED_OFTEN.start();
        let bytes = bytes_of(20 << 20);
        let replace = |path: &Path| {
            std::fs::write(path.with_extension("new"), "new").unwrap();
            std::fs::rename(path.with_extension("new"), path).unwrap();
        };
        let delete = |path: &Path| std::fs::remove_file(path).unwrap();
        let link = |path: &Path| {
            std::fs::hard_link(path, path.with_extension("link")).unwrap();
        };
        let restrict = |path: &Path| {
            std::fs::set_permissions(path, Permissions::from_mode(0o444)).unwrap();
        };
        let changes: [&dyn Fn(&Path); 4] = [&replace, &delete, &link, &restrict];
        for (name, change) in ["replace", "delete", "link", "restrict"]
            .into_iter()
            .zip(changes)
        {
            let path = site.write(name, &bytes);
            let mut client = site.proxy.client();
            client.send(get(&format!("/{name}"))).unwrap();
            client.read_head().unwrap();
            change(&path);
            let body = client.read_len(bytes.len()).unwrap();
            assert!(body == bytes, "{name}: {} bytes", body.len());
        }
    });
}

#[test]
fn a_file_that_is_deleted_is_there_or_not() {
    test(|| {
        let site = CHECKED_OFTEN.start();
        site.write("a", "old");
        site.keep_open("/a");
        std::fs::remove_file(site.folder.join("a")).unwrap();
        changes(&site, "/a", b"old", |response| response.status == 404);
        site.write("a", "new");
        changes(&site, "/a", b"", is(b"new"));
    });
}

#[test]
fn a_file_that_becomes_a_folder_and_back() {
    test(|| {
        let site = CHECKED_OFTEN.start();
        site.write("a", "old");
        site.keep_open("/a");
        std::fs::remove_file(site.folder.join("a")).unwrap();
        site.write("a/index.html", "index");
        changes(&site, "/a", b"old", |response| response.status == 301);
        assert_eq!(site.get("/a/").text(), "index");
        std::fs::remove_dir_all(site.folder.join("a")).unwrap();
        site.write("a", "new");
        assert_eq!(site.get("/a").text(), "new");
    });
}

#[test]
fn a_file_that_is_cut_off_is_sent_as_it_was_or_as_it_is_or_not_to_its_end() {
    test(|| {
        for (old, new, asks, cut) in [
            (20, 10, OFTEN, 0),
            (20, 0, OFTEN, 0),
            (30_000, 10_000, OFTEN, 0),
            (30_000, 0, OFTEN, 0),
            // These are sent before they are looked at again.
            (30_000, 10_000, 4, 1),
            (30_000, 0, 4, 1),
            // These are looked at each time.
            (300_000, 100_000, OFTEN, 0),
            (300_000, 0, OFTEN, 0),
        ] {
            let site = FileConfig::default().start();
            let bytes = bytes_of(old);
            let path = site.write("a", &bytes);
            site.ask_so_often("/a", asks);
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(new).unwrap();
            let mut cut_count = 0;
            for _ in 0..4 {
                // An answer that says the old length ends before it.
                let Ok(response) = site.proxy.client().get("/a") else {
                    cut_count += 1;
                    continue;
                };
                assert_eq!(response.status, 200, "{old} to {new}");
                let is_kept = asks == OFTEN && old <= 30_000 && response.body == bytes;
                let is_cut_off = response.body == bytes[..new as usize];
                assert!(is_kept || is_cut_off, "{old} to {new}");
            }
            assert!(cut_count <= cut, "{old} to {new}: {cut_count}");
            let new = &bytes[..new as usize];
            assert!(becomes_within_ticks(&site, new), "{old} to {}", new.len());
            assert!(site.get("/a").body == new);
        }
    });
}

#[test]
fn a_file_that_grows_is_what_it_was_or_what_it_is() {
    test(|| {
        for (old, new) in [(20, 30), (20, 200_000), (100_000, 300_000)] {
            let site = CHECKED_OFTEN.start();
            let bytes = bytes_of(new);
            let path = site.write("a", &bytes[..old]);
            site.keep_open("/a");
            std::io::Write::write_all(
                &mut File::options().append(true).open(&path).unwrap(),
                &bytes[old..],
            )
            .unwrap();
            changes(&site, "/a", &bytes[..old], is(&bytes));
        }
    });
}

#[test]
fn an_answer_whose_file_is_cut_off_is_cut_off_too() {
    test(|| {
        let site = FileConfig::default().start();
        let bytes = bytes_of(50 << 20);
        let path = site.write("a", &bytes);
        let mut client = site.proxy.client();
        client.send(get("/a")).unwrap();
        client.read_head().unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(1000).unwrap();
        let rest = client.read_to_end();
        if let Ok(rest) = rest {
            assert!(rest.len() < bytes.len(), "nothing is missing");
        }
        assert_logged(&site.proxy, words::FILE_CHANGED);
        assert_eq!(site.get("/a").body.len(), 1000);
    });
}

#[test]
fn curl_fails_where_the_file_is_cut_off_meanwhile() {
    const PARTIAL_FILE: i32 = 18;
    const RECEIVE_ERROR: i32 = 56;
    test(|| {
        let site = FileConfig::default().start();
        let path = site.write("a", bytes_of(50 << 20));
        let part = site.folder.join("part");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--limit-rate", "20M", "-o"])
            .arg(&part)
            .arg(site.proxy.url("/a"));
        let mut curl = Running::start(curl).unwrap();
        until("something has come", || {
            std::fs::metadata(&part).is_ok_and(|it| it.len() > 0)
        });
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(1000).unwrap();
        let code = curl.wait(STEP).expect("it ends").code();
        assert!(
            matches!(code, Some(PARTIAL_FILE | RECEIVE_ERROR)),
            "{code:?}"
        );
    });
}

#[test]
fn a_file_that_is_rewritten_all_the_time_is_never_a_mixture() {
    test(|| {
        let site = CHECKED_OFTEN.start();
        let versions: Vec<Vec<u8>> = (0..20_u8)
            .map(|it| vec![it; 3_000 + usize::from(it)])
            .collect();
        site.write("a", &versions[0]);
        let mut client = site.proxy.client();
        for version in &versions {
            std::fs::write(site.folder.join("b"), version).unwrap();
            std::fs::rename(site.folder.join("b"), site.folder.join("a")).unwrap();
            for _ in 0..20 {
                let response = client.get("/a").unwrap();
                assert_eq!(response.status, 200);
                assert!(versions.contains(&response.body), "a mixture");
            }
        }
        let last = versions.last().unwrap();
        until("the last is sent", || {
            client.get("/a").unwrap().body == *last
        });
    });
}

#[test]
fn a_folder_that_vanishes_is_an_error_until_it_returns() {
    test(|| {
        let site = CHECKED_OFTEN.start();
        site.write("a", "old");
        site.keep_open("/a");
        let (root, away) = (
            site.folder.path(),
            site.folder.path().with_extension("away"),
        );
        std::fs::rename(root, &away).unwrap();
        changes(&site, "/a", b"old", |response| response.status == 500);
        assert_refused(&site.get("/a"), words::FILE_FAILED);
        until("it is said", || {
            let said = site.proxy.stderr();
            said.contains("can no longer be opened")
        });
        std::fs::rename(&away, root).unwrap();
        assert_eq!(site.get("/a").text(), "old");
        until("that is said too", || {
            site.proxy.stderr().contains("is back")
        });
    });
}

#[test]
fn a_folder_may_come_after_the_start() {
    test(|| {
        let site = CHECKED_OFTEN.start();
        let root = site.folder.join("later");
        let text = CHECKED_OFTEN.text(root.to_str().unwrap());
        let proxy = Proxy::start(program(), &text).unwrap();
        assert_refused(&proxy.client().get("/a").unwrap(), words::FILE_FAILED);
        let open = format!("files: open the folder {}: No such file", root.display());
        until("the folder is named", || proxy.stderr().contains(&open));
        site.write("later/a", "a");
        assert_eq!(proxy.client().get("/a").unwrap().text(), "a");
    });
}

#[test]
fn a_deployment_swaps_the_link_that_is_the_folder() {
    test(|| {
        let site = CHECKED_OFTEN.start();
        for version in ["one", "two", "three"] {
            site.write(&format!("{version}/a"), version);
            site.write(&format!("{version}/{version}"), version);
        }
        let current = site.folder.join("current");
        let point_to = |version: &str| {
            let next = site.folder.join("next");
            symlink(version, &next).unwrap();
            std::fs::rename(&next, &current).unwrap();
        };
        point_to("one");
        let text = CHECKED_OFTEN.text(current.to_str().unwrap());
        let proxy = Proxy::start(program(), &text).unwrap();
        let mut client = proxy.client();
        for _ in 0..4 {
            assert_eq!(client.get("/a").unwrap().text(), "one");
        }
        point_to("two");
        let swapped = holds_within(Duration::from_secs(5), || {
            let text = client.get("/a").unwrap().text();
            assert!(text == "one" || text == "two", "{text}");
            text == "two"
        });
        assert!(swapped, "the old version is served for ever");
        assert_eq!(client.get("/one").unwrap().status, 404);
        assert_eq!(client.get("/two").unwrap().text(), "two");
    });
}
