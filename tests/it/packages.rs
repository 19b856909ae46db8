//! What `make packages` builds: the unit, and the .deb. `make test-packages` installs it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::TempDir;
use evenkeel_testkit::deadline::within;
use evenkeel_testkit::process::{repository, run};

use crate::setup::{program, test};

/// Standard output of a command that has to succeed.
fn said(command: Command) -> String {
    let shown = format!("{command:?}");
    let output = run(command, Duration::from_secs(100)).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{shown}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

#[test]
fn the_unit_is_right_and_hardened() {
    test(|| {
        let packaging = repository().join("packaging");
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=yes", "--threshold=25"]);
        command.arg(packaging.join("evenkeel.service"));
        said(command);

        // It looks for the program, which is at another place here.
        let dir = TempDir::new().unwrap();
        for unit in ["evenkeel.service", "evenkeel.socket"] {
            let text = std::fs::read_to_string(packaging.join(unit)).unwrap();
            let text = text.replace("/usr/bin/evenkeel", &program());
            let text = text.replace("Documentation=man:evenkeel(1)\n", "");
            std::fs::write(dir.join(unit), text).unwrap();
        }
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--recursive-errors=one"]);
        let units = ["evenkeel.service", "evenkeel.socket"].map(|it| dir.join(it));
        command.args(units);
        let output = run(command, Duration::from_secs(30)).unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        let ours: Vec<_> = told.lines().filter(|it| it.contains("evenkeel.")).collect();
        assert!(ours.is_empty(), "{told}");
    });
}

#[test]
fn the_configurations_of_packages_are_fine() {
    test(|| {
        for name in ["evenkeel.toml", "container.toml"] {
            let file = repository().join("packaging").join(name);
            for arguments in [&["check", "--offline", "--config"][..], &["fmt", "--check"]] {
                let mut command = Command::new(program());
                command.args(arguments).arg(&file);
                said(command);
            }
        }
    });
}

#[test]
fn the_deb_holds_what_it_should() {
    within(Duration::from_secs(120), || {
        // Its own version: packages that were built stay.
        let version = "0.0.0~test";
        let mut build = Command::new(repository().join("scripts/packages"));
        build.args([
            "--arch",
            "amd64",
            "--only",
            "deb",
            "--fast",
            "--version",
            version,
        ]);
        let program = format!("amd64={}", program());
        build.args(["--program", &program]);
        said(build);
        let name = format!("target/packages/evenkeel_{version}-1_amd64.deb");
        let deb = repository().join(name);
        look_into(&deb);
        std::fs::remove_file(deb).unwrap();
    });
}

fn look_into(deb: &Path) {
    let mut command = Command::new("dpkg-deb");
    command.arg("--contents").arg(deb);
    let contents = said(command);
    for (mode, path) in [
        ("-rwxr-xr-x", "./usr/bin/evenkeel"),
        ("-rw-r--r--", "./etc/evenkeel/evenkeel.toml"),
        ("-rw-r--r--", "./etc/logrotate.d/evenkeel"),
        ("-rw-r--r--", "./usr/share/evenkeel/welcome/index.html"),
        ("-rw-r--r--", "./usr/share/man/man1/evenkeel.1.gz"),
        ("-rw-r--r--", "./usr/share/man/man1/evenkeel-ctl-drain.1.gz"),
        (
            "-rw-r--r--",
            "./usr/share/bash-completion/completions/evenkeel",
        ),
        ("-rw-r--r--", "./usr/share/zsh/vendor-completions/_evenkeel"),
        (
            "-rw-r--r--",
            "./usr/share/fish/vendor_completions.d/evenkeel.fish",
        ),
        ("-rw-r--r--", "./usr/share/doc/evenkeel/copyright"),
    ] {
        let line = contents
            .lines()
            .find(|it| it.ends_with(&format!(" {path}")));
        let line = line.unwrap_or_else(|| panic!("{path} is missing:\n{contents}"));
        assert!(line.starts_with(mode), "{line}");
        assert!(
            line.contains(" root/root ") || line.contains(" 0/0 "),
            "{line}"
        );
    }
    for unit in ["evenkeel.service", "evenkeel.socket"] {
        let path = format!("lib/systemd/system/{unit}");
        assert!(
            contents.lines().any(|it| it.ends_with(&path)),
            "{unit}:\n{contents}"
        );
    }
    let dir = TempDir::new().unwrap();
    let mut command = Command::new("dpkg-deb");
    command.arg("--control").arg(deb).arg(dir.path());
    said(command);
    let conffiles = std::fs::read_to_string(dir.join("conffiles")).unwrap();
    let mut conffiles: Vec<_> = conffiles.lines().collect();
    conffiles.sort_unstable();
    assert_eq!(
        conffiles,
        ["/etc/evenkeel/evenkeel.toml", "/etc/logrotate.d/evenkeel"]
    );
    for script in ["postinst", "prerm", "postrm"] {
        let mut command = Command::new("sh");
        command.arg("-n").arg(dir.join(script));
        said(command);
        let text = std::fs::read_to_string(dir.join(script)).unwrap();
        assert!(!text.contains("#DEBHELPER#"), "{text}");
    }
    let postinst = std::fs::read_to_string(dir.join("postinst")).unwrap();
    let enable = "deb-systemd-helper enable evenkeel.service";
    assert!(postinst.contains(enable), "{postinst}");
    assert!(!postinst.contains("enable evenkeel.socket"), "{postinst}");
}
