//! The command line: exit status, and what goes to which stream.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::path::PathBuf;
use std::process::{Command, Output};

fn evenkeel(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVENKEEL_") {
            command.env_remove(name);
        }
    }
    command
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// Every verb, with those of `ctl` and of `ctl show`.
fn verbs() -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut open = vec![Vec::new()];
    while let Some(above) = open.pop() {
        let mut arguments: Vec<&str> = above.iter().map(String::as_str).collect();
        arguments.push("--help");
        let help = evenkeel(&arguments);
        let lines = stdout(&help).lines().skip_while(|it| *it != "Commands:");
        let below = lines.skip(1).take_while(|line| !line.is_empty());
        // A line that goes on from the one before has no verb.
        let below = below.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let below = below.filter_map(|line| line.split_whitespace().next());
        for verb in below.filter(|verb| *verb != "help") {
            open.push([&above[..], &[verb.to_owned()]].concat());
        }
        found.push(above);
    }
    found
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn exit_status() {
    for (arguments, expected) in [
        (&["check", "-c", "examples/minimal.toml"][..], 0),
        (&["check", "--schema"], 0),
        (&["version"], 0),
        (&["--help"], 0),
        (&["check", "-c", "tests/config/types.toml", "--offline"], 1),
        (&["check", "-c", "examples/no-such-file.toml"], 1),
        (
            &[
                "check",
                "-c",
                "examples/minimal.toml",
                "--set",
                "server.workers=0",
            ],
            1,
        ),
        (&["chek"], 2),
        (&["check", "--colour"], 2),
        (&[], 2),
    ] {
        let output = evenkeel(arguments);
        assert_eq!(
            output.status.code(),
            Some(expected),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn mistakes_go_to_standard_error_without_colour() {
    let output = evenkeel(&["check", "-c", "tests/config/types.toml", "--offline"]);
    assert_eq!(stdout(&output), "");
    assert!(
        stderr(&output).contains("tests/config/types.toml:3:10"),
        "{}",
        stderr(&output)
    );
    assert!(!stderr(&output).contains('\x1b'));
}

#[test]
fn the_effective_configuration_can_be_run_as_it_is() {
    let arguments = [
        "check",
        "-c",
        "examples/limits.toml",
        "--print",
        "--set",
        "server.workers=3",
    ];
    let output = evenkeel(&arguments);
    assert!(
        stdout(&output).contains("workers = 3"),
        "{}",
        stdout(&output)
    );
    let path: PathBuf =
        std::env::temp_dir().join(format!("evenkeel-effective-{}.toml", std::process::id()));
    std::fs::write(&path, stdout(&output)).unwrap();
    let again = evenkeel(&["check", "--print", "-c", path.to_str().unwrap()]);
    let _ = std::fs::remove_file(&path);
    assert_eq!(stdout(&again), stdout(&output));
}

#[test]
fn every_verb_has_an_example_in_its_help() {
    let verbs: Vec<_> = verbs().into_iter().filter(|it| it.len() == 1).collect();
    assert!(verbs.contains(&vec!["run".to_owned()]), "{verbs:?}");
    for verb in verbs.iter().map(|it| it[0].as_str()) {
        let help = evenkeel(&[verb, "--help"]);
        let example = format!("\n  evenkeel {verb}");
        assert!(
            stdout(&help).contains(&example),
            "{verb}: {}",
            stdout(&help)
        );
    }
}

#[test]
fn verbose_names_the_layers() {
    let set = "server.workers=2";
    let output = evenkeel(&["check", "-v", "-c", "examples/minimal.toml", "--set", set]);
    let expected = "configuration from examples/minimal.toml, --set server.workers=2";
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
}

#[test]
fn help_fits_into_its_columns() {
    let verbs = verbs();
    assert!(verbs.len() > 25, "{verbs:?}");
    for (columns, widest) in [(None, 80), (Some("60"), 60), (Some("500"), 100)] {
        for verb in &verbs {
            let mut command = command(&[]);
            command.args(verb).arg("--help").env_remove("COLUMNS");
            command.envs(columns.map(|it| ("COLUMNS", it)));
            let help = command.output().unwrap();
            assert_eq!(help.status.code(), Some(0));
            // The usage is one line, and a word alone may be longer.
            let too_long = |line: &&str| {
                let is_breakable = line.trim().contains(' ') && !line.starts_with("Usage: ");
                is_breakable && line.chars().count() > widest
            };
            let too_long: Vec<_> = stdout(&help).lines().filter(too_long).collect();
            assert!(too_long.is_empty(), "{verb:?}: {too_long:#?}");
        }
    }
}

#[test]
fn help_says_what_the_program_is() {
    let help = evenkeel(&["--help"]);
    let first = stdout(&help).lines().next();
    let expected = "An HTTP load balancer, reverse proxy and file server";
    assert_eq!(first, Some(expected));
}

#[test]
fn every_error_begins_with_the_name_of_the_program() {
    for arguments in [
        &["chek"][..],
        &["check", "--colour"],
        &["check", "--schema", "--print"],
        &["explain", "GET"],
        &["explain", "GET", "not a URL"],
        &[
            "explain",
            "-c",
            "examples/minimal.toml",
            "--listener",
            "x",
            "GET",
            "http://a/",
        ],
        &["ctl"],
        &["ctl", "show", "nothing"],
        &["ctl", "rates", "0"],
        &[
            "ctl",
            "--socket",
            "/nowhere/evenkeel.sock",
            "show",
            "upstreams",
        ],
        &["top", "--interval", "x"],
        &["origin", "--threads", "x"],
        &["origin", "--listen", "192.0.2.1:1"],
        &["run", "-c", "examples/no-such-file.toml"],
    ] {
        let output = evenkeel(arguments);
        let said = stderr(&output);
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        // What is wrong in a file stands before it, with its place.
        let is_named = |line: &str| line.starts_with("evenkeel: ");
        let is_help = arguments == ["ctl"];
        assert!(
            is_help || said.lines().any(is_named),
            "{arguments:?}: {said}"
        );
        let is_of_clap = said.contains("error: ") && output.status.code() == Some(2);
        assert!(!is_of_clap, "{arguments:?}: {said}");
    }
}

#[test]
fn the_effective_configuration_says_when_requests_are_logged_by_default() {
    let print = |more: &[&str]| {
        let arguments = ["check", "--print", "-c", "examples/minimal.toml"];
        stdout(&evenkeel(&[&arguments[..], more].concat())).to_owned()
    };
    let comment = "# Access log: combined lines on standard output where that is a terminal";
    assert!(print(&[]).starts_with(comment), "{}", print(&[]));
    let off = print(&["--set", "access_log=false"]);
    assert!(off.starts_with("access_log = false\n"), "{off}");
    assert!(!off.contains(comment), "{off}");
}
