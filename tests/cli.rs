//! The command line: exit status, and what goes to which stream.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use evenkeel_testkit::TempDir;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

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
        // A line that continues the one before has no verb.
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
        (
            &[
                "check",
                "-c",
                "crates/config/tests/config/types.toml",
                "--offline",
            ],
            1,
        ),
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
    let output = evenkeel(&[
        "check",
        "-c",
        "crates/config/tests/config/types.toml",
        "--offline",
    ]);
    assert_eq!(stdout(&output), "");
    assert!(
        stderr(&output).contains("crates/config/tests/config/types.toml:3:10"),
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

/// A call without a file can print its configuration, for its user to continue with.
#[test]
fn a_call_prints_the_configuration_that_it_stands_for() {
    let dir = TempDir::new().unwrap();
    for arguments in [
        &[
            "proxy",
            "--from",
            ":8080",
            "--to",
            "127.0.0.1:3000",
            "--cache",
        ][..],
        &[
            "proxy",
            "--acme",
            "a@example.com",
            "--host",
            "a.example.com",
            "--to",
            "10.0.0.1:80",
        ],
        &[
            "files",
            "src",
            "--listen",
            ":8080",
            "--single-page-app",
            "--compress",
        ],
    ] {
        let output = evenkeel(&[arguments, &["--print-config"]].concat());
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            stderr(&output)
        );
        let file = dir.join("evenkeel.toml");
        std::fs::write(&file, &output.stdout).unwrap();
        let config = file.to_str().unwrap();
        let checked = evenkeel(&["check", "--offline", "--config", config]);
        assert!(
            checked.status.success(),
            "{arguments:?}: {}",
            stderr(&checked)
        );
    }
    for (arguments, expected) in [
        (
            ["files", "nowhere"],
            "evenkeel: the folder nowhere can't be served",
        ),
        (
            ["files", "Cargo.toml"],
            "evenkeel: Cargo.toml is not a folder",
        ),
        (
            ["proxy", "--to=x"],
            "1 mistake in the configuration for these options",
        ),
    ] {
        let output = evenkeel(&arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = stderr(&output);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn init_writes_a_configuration_that_check_passes() {
    let dir = TempDir::new().unwrap();
    let init = |arguments: &[&str]| {
        let mut call = command(&[&["init"], arguments].concat());
        call.current_dir(dir.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    for (name, arguments) in [
        (
            "evenkeel.toml",
            &["--to", "127.0.0.1:3000", "--health", "/healthz", "--cache"][..],
        ),
        (
            "b.toml",
            &["b.toml", "--files", ".", "--single-page-app", "--compress"],
        ),
        (
            "c.toml",
            &[
                "c.toml",
                "--to=10.0.0.1:80",
                "--host=a.example",
                "--acme=you@example.com",
            ],
        ),
    ] {
        let output = init(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            stderr(&output)
        );
        let file = dir.join(name);
        let file = file.to_str().unwrap();
        for verb in [&["check", "--offline", "--config"][..], &["fmt", "--check"]] {
            let checked = evenkeel(&[verb, &[file]].concat());
            assert_eq!(stderr(&checked), "", "{verb:?} {arguments:?}");
            assert!(checked.status.success(), "{verb:?} {arguments:?}");
        }
    }
    let before = std::fs::read_to_string(dir.join("b.toml")).unwrap();
    for (arguments, status, expected) in [
        (
            &["b.toml", "--to=127.0.0.1:1"][..],
            1,
            "b.toml already exists: replace it with --force",
        ),
        (&["d.toml"], 2, "choose what to serve: `--to ADDRESS`"),
        (&["d.toml", "--to=nonsense"], 1, "nothing was written"),
        (
            &["d.toml", "--files=nowhere"],
            1,
            "the folder nowhere can't be served",
        ),
        (
            &["no/folder/d.toml", "--to=127.0.0.1:1"],
            1,
            "there is no folder no/folder for no/folder/d.toml",
        ),
    ] {
        let output = init(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    assert_eq!(std::fs::read_to_string(dir.join("b.toml")).unwrap(), before);
    assert!(!dir.join("d.toml").exists());
    assert!(
        init(&["b.toml", "--to=127.0.0.1:1", "--force"])
            .status
            .success()
    );
    assert_ne!(std::fs::read_to_string(dir.join("b.toml")).unwrap(), before);
}

#[test]
fn fmt_changes_white_space_alone() {
    let dir = TempDir::new().unwrap();
    let (odd, broken) = (dir.join("odd.toml"), dir.join("broken.toml"));
    let text = "[[listener]]\n   bind=\":80\"   # all\n[[route]]\nanswer={status=200}\n";
    std::fs::write(&odd, text).unwrap();
    std::fs::set_permissions(&odd, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::write(&broken, "a = [1\n").unwrap();
    std::os::unix::fs::symlink("odd.toml", dir.join("link.toml")).unwrap();
    // Only root can give a file away.
    let is_given = std::os::unix::fs::chown(&odd, Some(1234), Some(5678)).is_ok();
    let fmt = |arguments: &[&str]| {
        let mut call = command(&[&["fmt"], arguments].concat());
        call.current_dir(dir.path()).output().unwrap()
    };

    let output = fmt(&["--check", "odd.toml"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "evenkeel: odd.toml is not formatted\n");
    assert_eq!(std::fs::read_to_string(&odd).unwrap(), text);

    // A file with a mistake leaves the others their turn; a link stays a link.
    let output = fmt(&["broken.toml", "link.toml"]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("broken.toml:1:"), "{said}");
    assert!(
        said.contains("evenkeel: broken.toml is not changed"),
        "{said}"
    );
    assert!(said.contains("evenkeel: link.toml is formatted"), "{said}");
    let formatted = "[[listener]]\nbind = \":80\" # all\n\n[[route]]\nanswer = { status = 200 }\n";
    assert_eq!(std::fs::read_to_string(&odd).unwrap(), formatted);
    assert!(dir.join("link.toml").is_symlink());
    let metadata = std::fs::metadata(&odd).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o640);
    assert!(!is_given || (metadata.uid(), metadata.gid()) == (1234, 5678));
    assert!(fmt(&["--check", "odd.toml"]).status.success());

    let mut piped = command(&["fmt", "-"]);
    let mut piped = piped
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut piped.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let output = piped.wait_with_output().unwrap();
    assert_eq!(stdout(&output), formatted);
    // Without a name it is the file that `run` takes.
    std::fs::rename(&odd, dir.join("evenkeel.toml")).unwrap();
    assert!(fmt(&["--check"]).status.success());
    let output = fmt(&["nowhere.toml"]);
    assert!(stderr(&output).starts_with("evenkeel: read nowhere.toml: "));
}

/// The values of a document without their places.
fn values(table: &DeTable<'_>) -> String {
    let of = |(name, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
        format!("{}: {}", name.get_ref(), value_of(value.get_ref()))
    };
    table.iter().map(of).collect::<Vec<_>>().join("\n")
}

fn value_of(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Table(table) => format!("{{{}}}", values(table)),
        DeValue::Array(items) => {
            let items = items.iter().map(|it| value_of(it.get_ref()));
            format!("[{}]", items.collect::<Vec<_>>().join(", "))
        }
        value => format!("{value:?}"),
    }
}

/// Each file that is TOML can be formatted. What it says stays: only its white space changes.
#[test]
fn fmt_keeps_what_configurations_say() {
    let dir = TempDir::new().unwrap();
    let copy = dir.join("a.toml");
    let folders = ["examples", "packaging", "crates/config/tests/config"];
    let files = folders.iter().flat_map(|folder| {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
        std::fs::read_dir(folder)
            .unwrap()
            .map(|it| it.unwrap().path())
    });
    let mut formatted = 0;
    for file in files.filter(|it| it.extension().is_some_and(|it| it == "toml")) {
        let Ok(text) = std::fs::read_to_string(&file) else {
            continue;
        };
        std::fs::write(&copy, &text).unwrap();
        let is_toml = DeTable::parse(&text).is_ok();
        let output = evenkeel(&["fmt", copy.to_str().unwrap()]);
        assert_eq!(
            output.status.success(),
            is_toml,
            "{}: {}",
            file.display(),
            stderr(&output)
        );
        if !is_toml {
            continue;
        }
        let after = std::fs::read_to_string(&copy).unwrap();
        let values = |text: &str| values(DeTable::parse(text).unwrap().get_ref());
        assert_eq!(values(&text), values(&after), "{}", file.display());
        let comments = |text: &str| text.matches('#').count();
        assert_eq!(comments(&text), comments(&after), "{}", file.display());
        formatted += 1;
    }
    assert!(formatted > 50, "{formatted}");
}

#[test]
fn there_are_completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish"] {
        let script = evenkeel(&["completions", shell]);
        assert!(stdout(&script).contains("print-config"), "{shell}");
    }
    let dir = TempDir::new().unwrap();
    let folder = dir.join("man1");
    assert!(
        evenkeel(&["manual", folder.to_str().unwrap()])
            .status
            .success()
    );
    for page in ["evenkeel.1", "evenkeel-check.1", "evenkeel-ctl-drain.1"] {
        let text = std::fs::read_to_string(folder.join(page)).unwrap();
        assert!(text.starts_with(".ie"), "{page}: {text}");
    }
}

/// The page is derived: `make docs` writes it.
#[test]
fn the_page_of_the_command_line_is_up_to_date() {
    let mut page = std::fs::read_to_string("docs/command-line.md").unwrap_or_default();
    const START: &str = "<!-- from here on derived: make docs -->\n";
    let start = page.find(START).map_or(0, |it| it + START.len());
    let derived = page.split_off(start);
    let mut verbs = verbs();
    verbs.sort();
    let mut expected = String::new();
    for verb in verbs {
        let arguments: Vec<&str> = verb.iter().map(String::as_str).collect();
        let mut call = command(&[&arguments[..], &["--help"]].concat());
        let help = call.env("COLUMNS", "90").output().unwrap();
        let name = [&["evenkeel"], &arguments[..]].concat().join(" ");
        let depth = "#".repeat(3 + arguments.len().saturating_sub(1).min(2));
        let text = stdout(&help).trim_end();
        let text: Vec<_> = text.lines().map(str::trim_end).collect();
        let text = text.join("\n");
        let _ = write!(expected, "\n{depth} {name}\n\n```text\n{text}\n```\n");
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write("docs/command-line.md", page + &expected).unwrap();
    } else {
        assert!(
            derived == expected,
            "docs/command-line.md is out of date: run make docs"
        );
    }
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
    let expected = "HTTP and TCP load balancer, reverse proxy, cache and file server";
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
        // The message for a mistake in a file begins with the place of the mistake.
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

/// A folder of a test's own with these files.
struct Folder(TempDir);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().unwrap();
        for (file, text) in files {
            std::fs::write(folder.join(file), text).unwrap();
        }
        Self(folder)
    }

    fn evenkeel(&self, arguments: &[&str]) -> Output {
        let mut command = command(arguments);
        command.current_dir(self.0.path()).output().unwrap()
    }
}

const PLAIN: &str = "[[listener]]\nbind = '127.0.0.1:0'\n[[route]]\nanswer = {}\n";

#[test]
fn the_file_may_stand_alone() {
    let folder = Folder::new(&[("a.toml", PLAIN), ("evenkeel.toml", "colour = 1")]);
    for arguments in [
        &["check", "a.toml"][..],
        &["check", "--config", "a.toml"],
        &["check", "--print", "a.toml"],
        &["check", "a.toml", "--set", "server.workers=2"],
    ] {
        let output = folder.evenkeel(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    let output = command(&["check", "a.toml"])
        .env("EVENKEEL_CONFIG", "evenkeel.toml")
        .current_dir(folder.0.path())
        .output()
        .unwrap();
    assert_eq!(
        stdout(&output),
        "a.toml is fine: 1 listener, 1 route, 0 upstreams\n"
    );
    let output = folder.evenkeel(&["check", "a.toml", "--config", "a.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("cannot be used with"),
        "{}",
        stderr(&output)
    );
    let output = folder.evenkeel(&["check"]);
    assert!(
        stderr(&output).contains("evenkeel.toml:1:1"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_file_that_is_not_there_is_said_with_how_to_name_one() {
    let folder = Folder::new(&[]);
    for (arguments, expected) in [
        (
            &["check"][..],
            "evenkeel: no configuration file found: name it with --config FILE; the default is \
             evenkeel.toml, or else /etc/evenkeel/evenkeel.toml\n",
        ),
        (
            &["run", "x.toml"],
            "evenkeel: the file x.toml does not exist: name the configuration with --config FILE; \
             the default is evenkeel.toml, or else /etc/evenkeel/evenkeel.toml\n",
        ),
        (
            &["run", "."],
            "evenkeel: . is a folder: --config needs a file\n",
        ),
    ] {
        let output = folder.evenkeel(arguments);
        assert_eq!((output.status.code(), stderr(&output)), (Some(1), expected));
    }
    let output = folder.evenkeel(&["check", "/dev/zero"]);
    let said = stderr(&output);
    assert!(
        said.contains("read /dev/zero: it is larger than 16 MiB"),
        "{said}"
    );
    std::fs::write(folder.0.join("evenkeel.toml"), PLAIN).unwrap();
    let output = folder.evenkeel(&["check", "."]);
    let expected = "evenkeel: . is a folder: did you mean --config ./evenkeel.toml?\n";
    assert_eq!(stderr(&output), expected);
}

#[test]
fn the_local_file_is_named() {
    let files = [
        ("evenkeel.toml", PLAIN),
        ("local.toml", "[server]\nworkers = 0\n"),
    ];
    let folder = Folder::new(&files);
    let expected =
        "evenkeel: local.toml is part of the configuration: it overrides evenkeel.toml\n";
    let output = folder.evenkeel(&["check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with(expected), "{}", stderr(&output));
    std::fs::write(folder.0.join("local.toml"), "[server]\nworkers = 1\n").unwrap();
    let output = folder.evenkeel(&["check"]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), expected));
    // Standard output has only the requested text.
    let output = folder.evenkeel(&["check", "--print"]);
    assert!(
        stdout(&output).starts_with("# Access log"),
        "{}",
        stdout(&output)
    );
}

/// `check` warns of the same obstacles that make `run` fail.
#[test]
fn what_the_machine_does_not_have_is_said_before_and_at_the_start() {
    for (lines, place, warned, failed) in [
        (
            "[server]\ncontrol = 'nowhere/x.sock'\n",
            "evenkeel.toml:6:11",
            "the folder nowhere does not exist",
            "control socket: bind unix:nowhere/x.sock: No such file or directory (os error 2): \
             `mkdir -p nowhere`",
        ),
        (
            "[access_log]\npath = 'logs/access.log'\n",
            "evenkeel.toml:6:8",
            "the folder logs does not exist",
            "access log logs/access.log: No such file or directory (os error 2): `mkdir -p logs`",
        ),
        (
            "[[listener]]\nbind = 'unix:sockets/a.sock'\n",
            "evenkeel.toml:6:8",
            "the folder sockets does not exist",
            "`mkdir -p sockets`",
        ),
        (
            "[[listener]]\nbind = '192.0.2.77:18080'\n",
            "evenkeel.toml:6:8",
            "this machine does not have the address 192.0.2.77",
            "listener listener-2: bind 192.0.2.77:18080: Cannot assign requested address (os \
             error 99): write an address that `ip address` lists",
        ),
    ] {
        let text = format!("{PLAIN}{lines}");
        let folder = Folder::new(&[("evenkeel.toml", &text)]);
        let output = folder.evenkeel(&["check"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains(warned) && said.contains(place), "{said}");
        assert!(!stderr(&folder.evenkeel(&["check", "--offline"])).contains(warned));
        let output = folder.evenkeel(&["run"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.lines().last().unwrap().contains(failed), "{said}");
    }
}

/// The program where everybody can reach it. Another process writes it: a child that
/// another test starts meanwhile would hold our open file, and the copy could not be
/// run ("text file busy").
fn copy_of_program(folder: &Folder) -> PathBuf {
    let copy = folder.0.join("evenkeel");
    let mut command = Command::new("cp");
    command.arg(env!("CARGO_BIN_EXE_evenkeel")).arg(&copy);
    assert!(command.status().unwrap().success());
    copy
}

#[test]
fn a_port_for_privileged_processes_is_said_before_and_at_the_start() {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    let text = PLAIN.replace("127.0.0.1:0", "127.0.0.1:9");
    let folder = Folder::new(&[("evenkeel.toml", &text)]);
    let program = copy_of_program(&folder);
    let as_nobody = |verb: &str| {
        let mut command = Command::new(&program);
        command.arg(verb).current_dir(folder.0.path());
        if rustix::process::getuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.output().unwrap()
    };
    let output = as_nobody("check");
    let said = stderr(&output);
    // Some containers let everybody listen on every port.
    let set = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first_free: u16 = set.unwrap().trim().parse().unwrap();
    if first_free < 10 {
        assert!(!said.contains("may not listen"), "{said}");
        return;
    }
    assert!(
        said.contains("warning: this user may not listen on port 9"),
        "{said}"
    );
    assert!(said.contains("evenkeel.toml:2:8") && said.contains("CAP_NET_BIND_SERVICE"));
    let output = as_nobody("run");
    let said = stderr(&output).lines().last().unwrap();
    assert!(said.contains("Permission denied"), "{said}");
    assert!(
        said.contains("AmbientCapabilities=CAP_NET_BIND_SERVICE"),
        "{said}"
    );
}

#[test]
fn what_this_user_may_not_write_or_read_is_said_before_and_at_the_start() {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    let is_root = rustix::process::getuid().is_root();
    for (lines, modes, title, help) in [
        (
            "[server]\ncontrol = 'shut/x.sock'\n",
            &[("shut", 0o555)][..],
            "may not write to shut",
            "`chown 65534 shut`",
        ),
        (
            "[access_log]\npath = 'shut/access.log'\n",
            &[("shut", 0o555)],
            "may not write to shut",
            "`chown 65534 shut`",
        ),
        (
            "[access_log]\npath = 'open/access.log'\n",
            &[("open/access.log", 0o444)],
            "may not write to open/access.log",
            "`chown 65534 open/access.log`",
        ),
        (
            "[status]\nbind = '127.0.0.1:0'\ntoken_file = 'open/token'\n",
            &[("open/token", 0o000)],
            "read open/token: Permission denied",
            "`chown 65534 open/token`",
        ),
        (
            "[acme]\nstorage = 'shut/acme'\n[[listener]]\nbind = '127.0.0.1:0'\n\
             tls = { acme = { names = ['a.example.test'] } }\n",
            &[("shut", 0o555)],
            "may not write to $DIR/shut",
            "`chown 65534 $DIR/shut`",
        ),
        (
            "[tickets]\nkeys = 'open/token'\n",
            &[("open/token", 0o000)],
            "$DIR/open/token: cannot be read: Permission denied",
            "let user 65534 read it: `chown 65534 $DIR/open/token`",
        ),
    ] {
        let text = format!("{PLAIN}{lines}");
        let folder = Folder::new(&[("evenkeel.toml", &text)]);
        let program = copy_of_program(&folder);
        let mode = |name: &str, mode: u32| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(folder.0.join(name), mode).unwrap();
        };
        for name in ["shut", "open"] {
            std::fs::create_dir(folder.0.join(name)).unwrap();
        }
        for name in ["open/access.log", "open/token"] {
            std::fs::write(folder.0.join(name), "0123456789abcdef").unwrap();
        }
        for (name, bits) in modes {
            mode(name, *bits);
        }
        let said = |verb: &str| {
            let mut command = Command::new(&program);
            command.arg(verb).current_dir(folder.0.path());
            if is_root {
                command.uid(NOBODY).gid(NOBODY);
            }
            stderr(&command.output().unwrap()).to_owned()
        };
        let in_folder = |text: &str| text.replace("$DIR", &folder.0.path().display().to_string());
        let title = in_folder(title);
        let help = in_folder(help).replace(
            "65534",
            &if is_root {
                NOBODY.to_string()
            } else {
                rustix::process::getuid().as_raw().to_string()
            },
        );
        let (before, start) = (said("check"), said("run"));
        mode("shut", 0o755);
        assert!(
            before.contains(&title) && before.contains(&help),
            "{before}"
        );
        assert!(start.contains(&help), "{start}");
        assert!(start.contains("ermission denied"), "{start}");
    }
    // Standard output is no file of the folder.
    let text = format!("{PLAIN}[access_log]\npath = '-'\n");
    let folder = Folder::new(&[("evenkeel.toml", &text)]);
    let program = copy_of_program(&folder);
    let mode = |bits| std::fs::Permissions::from_mode(bits);
    std::fs::set_permissions(folder.0.path(), mode(0o555)).unwrap();
    let mut command = Command::new(&program);
    command.arg("check").current_dir(folder.0.path());
    if is_root {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().unwrap();
    std::fs::set_permissions(folder.0.path(), mode(0o755)).unwrap();
    assert_eq!(stderr(&output), "");
}

#[test]
fn check_looks_at_the_files_of_acme() {
    let ca = evenkeel_testkit::tls::Authority::new().unwrap().pem();
    let key = "key \"acme\" { algorithm hmac-sha256; secret \"YWJj\"; };\n";
    let account = |file: &str| format!("external_account = {{ id = 'a', key_file = '{file}' }}");
    for (lines, expected) in [
        ("ca = 'ca.pem'".to_owned(), ""),
        (
            "ca = 'gone.pem'".to_owned(),
            "/gone.pem: cannot be read: No such file",
        ),
        (
            "ca = 'tsig.key'".to_owned(),
            "/tsig.key: contains no certificate",
        ),
        (
            "fallback = [{ directory = 'letsencrypt', ca = 'gone.pem' }]".to_owned(),
            "/gone.pem: cannot be read: No such file",
        ),
        (account("account.key"), ""),
        (
            account("tsig.key"),
            "/tsig.key: there is no key in base64url in it",
        ),
        (
            account("empty.key"),
            "/empty.key: there is no key in base64url in it",
        ),
        ("storage = 'ca.pem'".to_owned(), "/ca.pem is not a folder"),
        (
            "storage = 'ca.pem/acme'".to_owned(),
            "/ca.pem is not a folder",
        ),
        (
            "dns = { server = '10.0.0.53', key_file = 'empty.key' }".to_owned(),
            "/empty.key: there is no key in it",
        ),
        (
            "dns = { server = '10.0.0.53', key_file = 'account.key' }".to_owned(),
            "/account.key: there is no key in it",
        ),
        (account("gone.key"), "/gone.key: No such file"),
        (
            account("open.key"),
            "every user of this machine can read the key",
        ),
        (
            "dns = { server = '10.0.0.53', key_file = 'tsig.key' }".to_owned(),
            "",
        ),
        (
            "dns = { server = '10.0.0.53', key_file = 'gone.key' }".to_owned(),
            "/gone.key: No such file",
        ),
        ("dns = { hook = 'hook' }".to_owned(), ""),
        (
            "dns = { hook = 'gone' }".to_owned(),
            "/gone cannot be run: No such file",
        ),
        (
            "dns = { hook = 'tsig.key' }".to_owned(),
            "/tsig.key cannot be run: Permission denied",
        ),
        (
            "dns = { hook = '.' }".to_owned(),
            "cannot be run: it is not a file",
        ),
    ] {
        let storage = if lines.starts_with("storage") {
            ""
        } else {
            "storage = 'acme'\n"
        };
        let text = format!(
            "{PLAIN}[[listener]]\nbind = '127.0.0.1:0'\n\
             tls = {{ acme = {{ names = ['a.example.test'] }} }}\n\
             [acme]\n{storage}{lines}\n"
        );
        let files = [
            ("evenkeel.toml", &*text),
            ("ca.pem", &ca),
            ("tsig.key", key),
            ("account.key", "YWJj\n"),
            ("empty.key", ""),
            ("open.key", "YWJj\n"),
            ("hook", "#!/bin/sh\n"),
        ];
        let folder = Folder::new(&files);
        for (file, mode) in [
            ("tsig.key", 0o600),
            ("account.key", 0o600),
            ("empty.key", 0o600),
            ("open.key", 0o644),
            ("hook", 0o755),
        ] {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(folder.0.join(file), mode).unwrap();
        }
        let output = folder.evenkeel(&["check"]);
        let said = stderr(&output);
        let is_fine = expected.is_empty() || expected.starts_with("every user");
        assert_eq!(output.status.success(), is_fine, "{lines}: {said}");
        assert_eq!(said.is_empty(), expected.is_empty(), "{lines}: {said}");
        assert!(said.contains(expected), "{lines}: {said}");
        assert_eq!(
            stderr(&folder.evenkeel(&["check", "--offline"])),
            "",
            "{lines}"
        );
    }
}

#[test]
fn secrets_go_to_no_folder_and_no_pipe() {
    for key_log in [".", "pipe"] {
        let text = format!(
            "{PLAIN}[[listener]]\nbind = '127.0.0.1:0'\n\
             tls = {{ acme = {{ names = ['a.example.test'] }}, key_log = '{key_log}' }}\n\
             [acme]\nstorage = 'acme'\n"
        );
        let folder = Folder::new(&[("evenkeel.toml", &text)]);
        let mut command = Command::new("mkfifo");
        assert!(
            command
                .arg(folder.0.join("pipe"))
                .status()
                .unwrap()
                .success()
        );
        for verb in ["check", "run"] {
            let output = folder.evenkeel(&[verb]);
            let said = stderr(&output);
            assert!(
                said.contains("write a regular file, not a folder or a pipe"),
                "{said}"
            );
            assert!(said.contains("evenkeel.toml:"), "{said}");
            assert!(!output.status.success(), "{said}");
        }
    }
}

#[test]
fn check_warns_of_keys_that_all_may_read_and_of_certificates_that_are_not_valid_yet() {
    let authority = evenkeel_testkit::tls::Authority::new().unwrap();
    let text = format!(
        "{PLAIN}[[listener]]\nbind = '127.0.0.1:0'\n\
         tls = {{ certificates = [{{ chain = 'a.crt', key = 'a.key' }}] }}\n"
    );
    let folder = Folder::new(&[("evenkeel.toml", &text)]);
    let issue = |begins: i32| {
        let issued = authority.issue_with(&["a.example.test"], |params| {
            params.not_before = rcgen::date_time_ymd(begins, 1, 1);
            params.not_after = rcgen::date_time_ymd(4000, 1, 1);
        });
        issued.unwrap().write(folder.0.path(), "a").unwrap();
    };
    let warned = |mode: u32| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.0.join("a.key"), mode).unwrap();
        let output = folder.evenkeel(&["check"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stderr(&output).to_owned()
    };
    issue(2020);
    assert_eq!(warned(0o640), "");
    let said = warned(0o644);
    assert!(
        said.contains("every user of this machine can read the private key in"),
        "{said}"
    );
    assert!(
        said.contains("/a.key") && said.contains("chmod 600"),
        "{said}"
    );
    issue(3999);
    let said = warned(0o600);
    assert!(said.contains("/a.crt is not valid yet"), "{said}");
}

#[test]
fn a_wrong_command_says_what_would_be_right() {
    for (arguments, expected) in [
        (
            &["chek"][..],
            "commands are run, proxy, files, init, fmt, check, explain, demo, origin, reload, confirm, upgrade, stop, ctl",
        ),
        (
            &["ctl", "frob"],
            "commands are show, rates, drain, ready, stop, weight, maintenance, reload, confirm, diff, endpoint, renew, purge, set",
        ),
        (
            &["ctl", "show", "foo"],
            "commands are upstreams, listeners, routes, files, cache, certificates, sessions",
        ),
        (
            &["ctl", "--socket", "x", "set", "foo"],
            "commands are log-level, server, weight",
        ),
        (
            &["ctl", "weight", "app/a", "-1"],
            "a weight must be a whole number from 0 to 1000000",
        ),
        (
            &["ctl", "weight", "app/a", "99999999999"],
            "a weight must be a whole number from 0 to 1000000",
        ),
        (
            &["ctl", "show", "sessions", "-3"],
            "the number of rows must be 1 to 10000",
        ),
        (
            &["ctl", "show", "errors", "x"],
            "the number of rows must be 1 to 10000",
        ),
        (
            &["ctl", "rates", "-1"],
            "the time must be 0.1 to 60 seconds",
        ),
        (
            &["ctl", "rates", "600"],
            "the time must be 0.1 to 60 seconds",
        ),
        (&["proxy"], "--to <ADDRESS>"),
        (
            &["proxy", "--to", ":1", "--acme", "a@example.com"],
            "--host <NAME>",
        ),
        (&["run", "-f", "x"], "evenkeel run --config FILE"),
        (&["check", "-f", "x"], "evenkeel check --config FILE"),
        (&["-t"], "`evenkeel check` checks"),
        (&["-c", "x", "check"], "write options after the command"),
        (
            &["ctl", "disable", "app/10.0.0.1:80"],
            "did you mean `evenkeel ctl stop app/10.0.0.1:80`?",
        ),
        (
            &["ctl", "enable", "app/a"],
            "did you mean `evenkeel ctl ready app/a`?",
        ),
    ] {
        let output = evenkeel(arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}
