//! The command line: exit status, and what goes to which stream.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::path::PathBuf;
use std::process::{Command, Output};

fn evenkeel(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVENKEEL_") {
            command.env_remove(name);
        }
    }
    command
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
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
    let help = evenkeel(&["--help"]);
    let verbs = stdout(&help)
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1);
    let verbs: Vec<_> = verbs
        .map_while(|line| line.split_whitespace().next())
        .collect();
    assert!(verbs.contains(&"run"), "{verbs:?}");
    for verb in verbs.into_iter().filter(|verb| *verb != "help") {
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
