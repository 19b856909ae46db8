//! `evenkeel run --watch`: the configuration is loaded again whenever its files change.

use std::fs;
use std::os::unix::fs::symlink;

use evenkeel_testkit::deadline::until;
use evenkeel_testkit::{OriginHandle, Proxy, ProxySetup, RawClient, replace_file};
use rustix::process::Signal;

use crate::control::ask;
use crate::reload::{OTHER, SITE, with_hello, write};
use crate::setup::{assert_serves, figures, get, origin, test};
use crate::upgrade::Successors;

fn watched() -> (OriginHandle, Proxy, String) {
    let origin = origin();
    let config = SITE.config(&[origin.address.to_string()]);
    let setup = ProxySetup {
        args: ["--watch", "--set", "log.level=debug"]
            .map(str::to_owned)
            .to_vec(),
        ..ProxySetup::default()
    };
    let proxy = SITE.start_with(&[origin.address.to_string()], &setup);
    (origin, proxy, config)
}

/// Does this, and waits until it was seen that the files did not change.
#[track_caller]
fn says_the_same(proxy: &Proxy, write: impl FnOnce()) {
    let seen = || {
        let stderr = proxy.stderr();
        stderr.matches("files did not change").count()
    };
    let before = seen();
    write();
    until("it was looked at", || seen() > before);
}

/// The configuration with a route for this path first.
fn with_path(config: &str, path: &str) -> String {
    with_hello(config).replace("/hello", path)
}

fn status(client: &mut RawClient, path: &str) -> u16 {
    client.ask(get(path)).unwrap().status
}

#[track_caller]
fn answers(client: &mut RawClient, path: &str) {
    until(path, || status(client, path) == 200);
}

#[test]
fn a_changed_file_is_loaded() {
    test(|| {
        let (_origin, proxy, config) = watched();
        let mut client = proxy.client();
        write(&proxy, &with_path(&config, "/written"));
        answers(&mut client, "/written");
        let file = proxy.path("evenkeel.toml");
        let dir = proxy.dir().display().to_string();
        let config = config.replace("$DIR", &dir);
        replace_file(&file, &with_path(&config, "/renamed"));
        answers(&mut client, "/renamed");
        // Nothing new, whatever it looks like.
        let renamed = with_path(&config, "/renamed");
        says_the_same(&proxy, || {
            replace_file(&file, &format!("# A comment.\n{renamed}"));
        });
        // Mistakes are reported once.
        let refused = "reload refused: 1 mistake in the configuration";
        write(&proxy, &config.replace("workers = 1", "workers = -1"));
        until("it is refused", || proxy.stderr().contains(refused));
        says_the_same(&proxy, || {
            write(&proxy, &config.replace("workers = 1", "workers = -1"));
        });
        replace_file(&file, &renamed);
        // The file beside it overrides it.
        replace_file(
            &proxy.path("local.toml"),
            "[server]\ndrain_timeout = \"7s\"\n",
        );
        until("it is loaded", || figures(&proxy)["generation"] == 3);
        fs::remove_file(proxy.path("local.toml")).unwrap();
        until("it is loaded", || figures(&proxy)["generation"] == 4);
        fs::remove_file(&file).unwrap();
        until("that is a mistake", || {
            figures(&proxy)["reloads_refused"] == 2
        });
        fs::write(&file, with_path(&config, "/anew")).unwrap();
        answers(&mut client, "/anew");
        assert_eq!(
            proxy.stderr().matches(refused).count(),
            1,
            "{}",
            proxy.stderr()
        );
        let figures = figures(&proxy);
        assert_eq!(figures["generation"], 5);
        assert_eq!(figures["reloads_refused"], 2);
        assert_eq!(figures["listeners"][0]["open"], 1);
    });
}

#[test]
fn included_files_and_their_folders() {
    test(|| {
        let (_origin, proxy, config) = watched();
        let mut client = proxy.client();
        let folder = proxy.path("conf.d");
        let included = |name: &str, path: &str| {
            let text = format!(
                "[[route]]\nname = \"{name}\"\nmatch = {{ path = \"{path}\" }}\nanswer = {{ body = \"x\" }}\n"
            );
            replace_file(&folder.join(format!("{name}.toml")), &text);
        };
        write(&proxy, &format!("include = [\"conf.d/*.toml\"]\n{config}"));
        fs::create_dir(&folder).unwrap();
        included("one", "/one");
        answers(&mut client, "/one");
        included("two", "/two");
        answers(&mut client, "/two");
        included("one", "/other");
        answers(&mut client, "/other");
        fs::remove_dir_all(&folder).unwrap();
        until("they are gone", || status(&mut client, "/two") == 404);
        fs::create_dir(&folder).unwrap();
        included("three", "/three");
        answers(&mut client, "/three");
    });
}

#[test]
fn included_files_that_come_late() {
    test(|| {
        let (_origin, proxy, config) = watched();
        let mut client = proxy.client();
        let is_refused =
            |times: u64| until("refused", || figures(&proxy)["reloads_refused"] == times);
        write(
            &proxy,
            &format!("include = [\"late/extra.toml\"]\n{config}"),
        );
        is_refused(1);
        fs::create_dir(proxy.path("late")).unwrap();
        let extra = "[[route]]\nmatch = { path = \"/late\" }\nanswer = { body = \"x\" }\n";
        fs::write(proxy.path("late/extra.toml"), extra).unwrap();
        answers(&mut client, "/late");
        // A pattern that is new together with a mistake.
        let route = "[[route]]\nmatch = { path = \"/l\" }\nupstream = \"late\"\n[[route]]";
        let config = with_path(&config, "/more").replacen("[[route]]", route, 1);
        fs::create_dir(proxy.path("more")).unwrap();
        write(&proxy, &format!("include = [\"more/*.toml\"]\n{config}"));
        is_refused(2);
        let upstream = "[upstream.late]\nendpoints = [\"127.0.0.1:1\"]\n";
        fs::write(proxy.path("more/late.toml"), upstream).unwrap();
        answers(&mut client, "/more");
    });
}

#[test]
fn a_config_map_of_kubernetes() {
    test(|| {
        let (_origin, proxy, config) = watched();
        let mut client = proxy.client();
        let dir = proxy.dir().display().to_string();
        let config = config.replace("$DIR", &dir);
        let version = |number: u32, config: &str| {
            let folder = format!("..{number}");
            fs::create_dir(proxy.path(&folder)).unwrap();
            fs::write(proxy.path(&folder).join("evenkeel.toml"), config).unwrap();
            let new = proxy.path("..data_tmp");
            symlink(&folder, &new).unwrap();
            fs::rename(&new, proxy.path("..data")).unwrap();
        };
        version(1, &config);
        symlink("..data/evenkeel.toml", proxy.path("link")).unwrap();
        fs::rename(proxy.path("link"), proxy.path("evenkeel.toml")).unwrap();
        for number in 2..5 {
            let path = format!("/version-{number}");
            version(number, &with_path(&config, &path));
            answers(&mut client, &path);
            fs::remove_dir_all(proxy.path(&format!("..{}", number - 1))).unwrap();
        }
        assert_eq!(figures(&proxy)["reloads"], 3);
        assert_eq!(figures(&proxy)["reloads_refused"], 0);
        let said = proxy.stderr();
        assert!(!said.contains("WARN"), "{said}");
    });
}

#[test]
fn what_was_refused_without_mistakes_is_tried_again() {
    test(|| {
        let (_origin, proxy, config) = watched();
        let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = holder.local_addr().unwrap();
        let other = OTHER.replace("127.0.0.1:0", &at.to_string());
        write(&proxy, &format!("{config}{other}"));
        let refused = || {
            proxy
                .stderr()
                .contains("reload refused: listener other: bind")
        };
        until("it is refused", refused);
        drop(holder);
        write(&proxy, &format!("{config}{other}"));
        until("it is in force", || {
            RawClient::connect(at).is_ok_and(|mut it| it.get("/ping").is_ok())
        });
    });
}

#[test]
fn with_hup_and_a_reload_to_confirm() {
    test(|| {
        let (_origin, proxy, config) = watched();
        let mut client = proxy.client();
        for turn in 0..5 {
            let path = format!("/turn-{turn}");
            write(&proxy, &with_path(&config, &path));
            proxy.signal(Signal::HUP);
            answers(&mut client, &path);
        }
        assert_serves(&mut client);
        // One that went back comes again with another content only.
        write(&proxy, &with_path(&config, "/trial"));
        let answer = ask(&proxy, "reload confirm 1s");
        assert!(answer.starts_with("reloaded: "), "{answer}");
        let is_back = || figures(&proxy)["reloads_reverted"] == 1;
        until("it goes back", is_back);
        let generation = figures(&proxy)["generation"].as_u64().unwrap();
        says_the_same(&proxy, || write(&proxy, &with_path(&config, "/trial")));
        write(&proxy, &with_path(&config, "/last"));
        answers(&mut client, "/last");
        assert_eq!(figures(&proxy)["generation"], generation + 1);
    });
}

#[test]
fn the_process_after_an_upgrade_watches_as_well() {
    test(|| {
        let (_origin, proxy, config) = watched();
        let successors = Successors(&proxy);
        successors.upgrade();
        write(&proxy, &with_path(&config, "/after"));
        until("it is loaded", || {
            status(&mut proxy.client(), "/after") == 200
        });
        assert_eq!(figures(&proxy)["pid"], successors.pids()[0]);
    });
}
