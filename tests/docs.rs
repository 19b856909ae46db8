//! The documentation: its examples work, its links lead somewhere, and it names every end of an
//! exchange.
//!
//! Every code block names its language, so that none escapes its check:
//!
//! | language | check |
//! |---|---|
//! | `toml` | It loads without a mistake or a warning. A part shows the tables that its keys belong to; listener, route, upstream and endpoints that it lacks are added |
//! | `sh`, `console` | The shell can parse it, and the verbs and options of `evenkeel` and the targets of `make` are there |
//! | `json` | Each line, or the whole, is JSON |
//! | `yaml`, `promql`, `ini`, `dockerfile`, `text` | Other programs' files, and output: nothing |

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod snippets;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use evenkeel::config::access_log::LogField;
use evenkeel::config::{self, Colour, NameLookup};
use evenkeel_metrics::end::{End, Failure};
use evenkeel_testkit::TempDir;
use snippets::Snippet;
use toml::de::{DeTable, DeValue};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(repository().join(name)).unwrap()
}

/// Every page: those at the top, and those below `docs`.
fn pages() -> Vec<PathBuf> {
    let folders = ["", "docs", "docs/decisions", "docs/internals"];
    let files = folders.iter().flat_map(|folder| {
        let entries = fs::read_dir(repository().join(folder)).unwrap();
        entries.map(|entry| entry.unwrap().path())
    });
    files
        .filter(|path| path.extension().is_some_and(|it| it == "md"))
        .collect()
}

/// The code blocks of every page in these languages.
fn snippets_in(languages: &[&str]) -> Vec<Snippet> {
    let all = pages()
        .into_iter()
        .flat_map(|page| snippets::of_page(&page));
    all.filter(|it| languages.contains(&it.language.as_str()))
        .collect()
}

/// Fails with all complaints at once.
fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// The targets of the links and pictures of a page.
fn link_targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0))
}

/// The places of a page that a link may name: headings as GitHub names them,
/// and anchors.
fn anchors(text: &str) -> BTreeSet<String> {
    let is_kept = |it: &char| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_');
    let of_heading = |title: &str| {
        let lower = title.trim_matches(['#', ' ']).to_lowercase();
        let kept: String = lower.chars().filter(is_kept).collect();
        kept.replace(' ', "-")
    };
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let written = text.split("<a id=\"").skip(1);
    let written = written.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()));
    headings.map(of_heading).chain(written).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut complaints = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for target in link_targets(&text) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let is_there = path.exists()
                && (anchor.is_empty()
                    || anchors(&fs::read_to_string(&path).unwrap()).contains(anchor));
            if !is_there {
                complaints.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn every_snippet_names_its_language() {
    const LANGUAGES: &[&str] = &[
        "toml",
        "sh",
        "console",
        "json",
        "yaml",
        "promql",
        "ini",
        "dockerfile",
        "text",
    ];
    let all = pages()
        .into_iter()
        .flat_map(|page| snippets::of_page(&page));
    let complaints: Vec<String> = all
        .filter(|it| !LANGUAGES.contains(&it.language.as_str()))
        .map(|it| format!("{}: `{}` is none of {LANGUAGES:?}", it.place, it.language))
        .collect();
    assert_none(&complaints);
}

/// The values of a key in a table of the first level: of each item, where the
/// table is a list or one by name.
fn inner<'a>(table: &'a DeTable<'a>, key: &str) -> Vec<(&'a str, &'a DeTable<'a>)> {
    let found = table.iter().find(|(name, _)| name.get_ref() == key);
    match found.map(|(_, value)| value.get_ref()) {
        Some(DeValue::Array(items)) => {
            let tables = items.iter().filter_map(|item| as_table(item.get_ref()));
            tables.map(|it| ("", it)).collect()
        }
        Some(DeValue::Table(named)) => named
            .iter()
            .filter_map(|(name, value)| Some((name.get_ref().as_ref(), as_table(value.get_ref())?)))
            .collect(),
        _ => Vec::new(),
    }
}

fn as_table<'a>(value: &'a DeValue<'a>) -> Option<&'a DeTable<'a>> {
    match value {
        DeValue::Table(table) => Some(table),
        _ => None,
    }
}

fn text_at<'a>(table: &'a DeTable<'a>, key: &str) -> Option<&'a str> {
    let (_, value) = table.iter().find(|(name, _)| name.get_ref() == key)?;
    match value.get_ref() {
        DeValue::String(text) => Some(text),
        _ => None,
    }
}

/// A whole configuration of a part: with a listener, a route, and the upstreams
/// and endpoints that it lacks.
fn whole(text: &str) -> Result<String, String> {
    let document = DeTable::parse(text).map_err(|error| error.to_string())?;
    let table = document.get_ref();
    let (listeners, routes) = (inner(table, "listener"), inner(table, "route"));
    let upstreams = inner(table, "upstream");
    let mut used: BTreeSet<&str> = BTreeSet::new();
    for (_, route) in &routes {
        used.extend(text_at(route, "upstream"));
        let files = route.iter().find(|(name, _)| name.get_ref() == "files");
        let files = files.and_then(|(_, files)| as_table(files.get_ref()));
        used.extend(files.and_then(|files| text_at(files, "upstream")));
        let split = route.iter().find(|(name, _)| name.get_ref() == "split");
        if let Some(DeValue::Array(parts)) = split.map(|(_, split)| split.get_ref()) {
            let parts = parts.iter().filter_map(|it| as_table(it.get_ref()));
            used.extend(parts.filter_map(|it| text_at(it, "upstream")));
        }
    }
    let mut whole = text.to_owned();
    for (name, upstream) in &upstreams {
        if !used.contains(name) && routes.is_empty() {
            let _ = write!(
                whole,
                "\n[[route]]\nmatch = {{ path = \"/{name}/*\" }}\nupstream = \"{name}\"\n"
            );
        }
        used.remove(name);
        if !upstream.iter().any(|(key, _)| key.get_ref() == "endpoints") {
            let _ = write!(
                whole,
                "\n[[upstream.{name}.endpoints]]\naddress = \"10.0.0.1:8080\"\nmax_in_flight = 16\n"
            );
        }
    }
    for name in used {
        let _ = write!(
            whole,
            "\n[upstream.{name}]\nendpoints = [\"10.0.0.1:8080\"]\n"
        );
    }
    if listeners.is_empty() {
        whole.push_str("\n[[listener]]\nbind = \":8080\"\n");
    }
    if routes.is_empty() && upstreams.is_empty() {
        whole.push_str("\n[[route]]\nanswer = {}\n");
    }
    Ok(whole)
}

/// A folder with the files that the pages expect beside the configuration.
fn folder_of_a_reader() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::copy(
        repository().join("examples/busy.gif"),
        folder.join("busy.gif"),
    )
    .unwrap();
    fs::write(folder.join("sorry.html"), "<h1>Back soon</h1>\n").unwrap();
    let token = folder.join("status-token");
    fs::write(&token, "6f1d0c5b9a3e4f7788aa0b1c2d3e4f50\n").unwrap();
    fs::set_permissions(token, fs::Permissions::from_mode(0o600)).unwrap();
    folder
}

/// Absolute folders in the pages. In the test they stand for folders of its own: a folder that
/// is missing on this machine is no mistake of a page. A port that needs a privilege is
/// replaced too.
const FOLDERS: &[&str] = &["/var/log/evenkeel", "/run/evenkeel", "/run", "/srv"];

fn in_folder(text: &str, folder: &Path) -> String {
    let mut text = text.replace("\":80\"", "\":8080\"");
    for (index, name) in FOLDERS.iter().enumerate() {
        let own = folder.join(index.to_string());
        fs::create_dir_all(&own).unwrap();
        for before in ["\"", "unix:"] {
            let own = format!("{before}{}/", own.display());
            text = text.replace(&format!("{before}{name}/"), &own);
        }
    }
    text
}

/// The mistakes and warnings of a configuration in a folder.
fn said_of(text: &str, folder: &Path) -> String {
    let path = folder.join("evenkeel.toml");
    let loaded = config::load_text(&path.to_string_lossy(), text, NameLookup::Skip);
    let report = match loaded {
        Ok(loaded) => loaded.warnings,
        Err(report) => report,
    };
    report.render(Colour::Off)
}

#[test]
fn configurations_load_without_a_warning() {
    let mut complaints = Vec::new();
    for snippet in snippets_in(&["toml"]) {
        let folder = folder_of_a_reader();
        let said = match whole(&snippet.text) {
            Ok(text) => said_of(&in_folder(&text, folder.path()), folder.path()),
            Err(error) => error,
        };
        if !said.is_empty() {
            complaints.push(format!("{}:\n{said}", snippet.place));
        }
    }
    assert_none(&complaints);
}

#[test]
fn the_configuration_of_the_readme_is_whole_and_short() {
    let snippets = snippets::of_page(&repository().join("README.md"));
    let text = &snippets
        .iter()
        .find(|it| it.language == "toml")
        .unwrap()
        .text;
    assert!(text.lines().count() <= 12, "{text}");
    assert_eq!(whole(text).as_ref(), Ok(text));
    let lines = read("README.md").lines().count();
    assert!(lines <= 120, "README.md has {lines} lines");
}

#[test]
fn recipes_are_whole() {
    let snippets = snippets::of_page(&repository().join("docs/recipes.md"));
    let complaints: Vec<String> = snippets
        .iter()
        .filter(|it| it.language == "toml" && whole(&it.text).as_ref() != Ok(&it.text))
        .map(|it| format!("{}: {}", it.place, it.heading))
        .collect();
    assert_none(&complaints);
}

/// The commands of a shell snippet, continued lines in one.
fn commands(snippet: &Snippet) -> String {
    let lines = snippet.text.lines();
    match snippet.language.as_str() {
        "console" => lines
            .filter_map(|line| line.strip_prefix("$ "))
            .fold(String::new(), |all, line| all + line + "\n"),
        _ => snippet.text.clone(),
    }
}

/// The words of each simple command, without quotes. A `$…` that a shell would expand stays
/// unchanged.
fn simple_commands(text: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '\\') => match letters.next() {
                Some('\n') | None => {}
                Some(other) => word.get_or_insert_default().push(other),
            },
            (None, '#') if word.is_none() => while letters.next_if(|it| *it != '\n').is_some() {},
            (None, ' ' | '\n' | '|' | ';' | '&' | '>' | '<' | '(' | ')') => {
                commands.last_mut().unwrap().extend(word.take());
                if letter != ' ' {
                    commands.push(Vec::new());
                }
            }
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    commands.last_mut().unwrap().extend(word);
    commands.retain(|words| !words.is_empty());
    commands
}

/// The mistake in a command, if it is one of ours.
fn complaint(words: &[String]) -> Option<String> {
    let is_before = |word: &&String| word.contains('=') || matches!(word.as_str(), "sudo" | "exec");
    let words: Vec<&String> = words.iter().skip_while(is_before).collect();
    let (program, arguments) = words.split_first()?;
    if *program == "make" {
        let makefile = read("Makefile");
        let target = arguments.iter().find(|it| !it.contains('='))?;
        let is_there = makefile.contains(&format!("\n{target}:"));
        return (!is_there).then(|| format!("make has no target {target}"));
    }
    if program.rsplit('/').next() != Some("evenkeel") {
        return None;
    }
    // With --help nothing is done, but what stands before it must be known.
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let output = command.args(arguments).arg("--help").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then(|| format!("evenkeel {arguments:?}: {said}"))
}

fn complaints_of(place: &str, text: &str) -> Vec<String> {
    let all = simple_commands(text);
    let said = all.iter().filter_map(|words| complaint(words));
    said.map(|said| format!("{place}: {said}")).collect()
}

#[test]
fn commands_are_there() {
    let mut complaints = Vec::new();
    for snippet in snippets_in(&["sh", "console"]) {
        let text = commands(&snippet);
        if text.is_empty() {
            complaints.push(format!("{}: no command", snippet.place));
        }
        let mut shell = Command::new("bash");
        shell.args(["-n", "-c", &text]).stdin(Stdio::null());
        if !shell.status().unwrap().success() {
            complaints.push(format!("{}: not a shell's", snippet.place));
        }
        complaints.extend(complaints_of(&snippet.place, &text));
    }
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let inline = text.split('`').skip(1).step_by(2);
        let place = page.display().to_string();
        for command in inline.filter(|it| it.starts_with("evenkeel ") || it.starts_with("make ")) {
            complaints.extend(complaints_of(&place, command));
        }
    }
    assert_none(&complaints);
}

#[test]
fn json_is_json() {
    let is_json = |text: &str| serde_json::from_str::<serde_json::Value>(text).is_ok();
    let complaints: Vec<String> = snippets_in(&["json"])
        .into_iter()
        .filter(|it| !is_json(&it.text) && !it.text.lines().all(is_json))
        .map(|it| it.place)
        .collect();
    assert_none(&complaints);
}

#[test]
fn every_end_is_in_the_page_on_troubleshooting() {
    let page = read("docs/troubleshooting.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| row.split(" | ").collect())
        .collect();
    let row_of = |word: &str| rows.iter().find(|row| row[0] == format!("{word}`"));
    let mut complaints = Vec::new();
    for end in End::all() {
        let expected = match end {
            End::Complete | End::Tunnel => format!("| `{}` | ", end.word()),
            // No client can be answered: an answer needs a handshake.
            End::Failure(Failure::TlsHandshake | Failure::TlsHandshakeTimeout) => {
                format!("| `{}` | none | {} | ", end.word(), end.text())
            }
            _ => format!("| `{}` | {} | {} | ", end.word(), end.status(), end.text()),
        };
        let row = page.lines().find(|line| line.starts_with(&expected));
        let advice = row.and_then(|row| row.strip_prefix(&expected));
        if advice.is_none_or(|advice| advice.trim_matches(['|', ' ']).is_empty()) {
            let found = row_of(end.word());
            complaints.push(format!("no advice in {expected}… (found {found:?})"));
        }
    }
    let words: BTreeSet<&str> = End::all().map(End::word).collect();
    for row in rows.iter().filter(|row| row.len() == 4) {
        let word = row[0].trim_matches('`');
        if !words.contains(word) {
            complaints.push(format!("no exchange ends as {word}"));
        }
    }
    assert_none(&complaints);
}

#[test]
fn every_field_of_a_template_is_listed() {
    let page = read("docs/access-log.md");
    for field in LogField::ALL {
        let row = format!("| `{}` | {} |", field.word(), field.help());
        assert!(page.contains(&row), "docs/access-log.md lacks {row}");
    }
}
