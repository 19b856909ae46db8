//! h2spec, the public suite for servers of HTTP/2
//! (<https://github.com/summerwind/h2spec>).
//!
//! `h2spec/expected.txt` lists the cases that do not pass, each with where, and why by
//! RFC 9113: any other difference is a failure here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::TempDir;
use evenkeel_testkit::deadline::within;
use evenkeel_testkit::process::{repository, run};

use super::{Both, is_whole};

/// Number of cases in the suite, including its strict ones.
const CASES: usize = 146;

/// The longest time of one run: each case that fails takes two seconds.
const LIMIT: Duration = Duration::from_secs(400);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("http2/h2spec")
}

/// A case of the suite: its section, and its description.
type Case = (String, String);

/// Runs the suite against an address. Returns the fault of each case.
fn outcomes(address: &str, path: &str, more: &[&str]) -> BTreeMap<Case, Option<String>> {
    let dir = TempDir::new().unwrap();
    let report = dir.join("report.xml");
    let (host, port) = address.rsplit_once(':').unwrap();
    let mut command = Command::new(repository().join(".go/bin/h2spec"));
    command.args(["generic", "hpack", "http2", "--strict", "--timeout", "2"]);
    command.args(["--host", host, "--port", port, "--path", path]);
    command.arg("--junit-report").arg(&report).args(more);
    let output = run(command, LIMIT).unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let report = std::fs::read_to_string(&report).unwrap_or_else(|error| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        panic!("no report: {error}\n{said}\n{stderr}")
    });
    let outcomes = cases(&report);
    assert_eq!(outcomes.len(), CASES, "{said}");
    outcomes
}

/// The cases of a report of JUnit.
fn cases(report: &str) -> BTreeMap<Case, Option<String>> {
    let cases = report.split("<testcase ").skip(1).map(|rest| {
        let (case, _) = rest.split_once("</testcase>").unwrap();
        let (attributes, content) = case.split_once('>').unwrap();
        let case = (
            attribute(attributes, "package"),
            attribute(attributes, "classname"),
        );
        let content = content.trim();
        (case, (!content.is_empty()).then(|| plain(content)))
    });
    cases.collect()
}

fn attribute(attributes: &str, name: &str) -> String {
    let (_, rest) = attributes.split_once(&format!("{name}=\"")).unwrap();
    plain(rest.split('"').next().unwrap())
}

/// Text without tags and entities.
fn plain(text: &str) -> String {
    let mut plain = text.to_owned();
    for tag in ["<error>", "</error>", "<failure>", "</failure>"] {
        plain = plain.replace(tag, "");
    }
    for (entity, character) in [
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&#xA;", "\n"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&amp;", "&"),
    ] {
        plain = plain.replace(entity, character);
    }
    plain
}

/// The transport that the suite runs over.
#[derive(Debug, Clone, Copy)]
enum Over {
    /// On a listener that has HTTP/1 too.
    Plain,
    Tls,
}

/// When a response begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Responds {
    /// As soon as the head of its request is there.
    AtOnce,
    /// Once the request has come whole.
    Late,
}

/// The expected outcome of a listed case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Fails,
    /// Either, depending on the order of events.
    MayFail,
}

/// The cases that do not pass. The first word of a line says what is expected.
fn expected(over: Over, responds: Responds) -> BTreeMap<Case, Expected> {
    let list = std::fs::read_to_string(folder().join("expected.txt")).unwrap();
    let lines = list.lines().filter(|it| !it.starts_with('#'));
    let case = |line: &str| {
        let parts: Vec<&str> = line.split(" | ").collect();
        let [place, section, case, _why] = parts[..] else {
            panic!("place, section, case and reason in {line:?}")
        };
        let expected = match (place, over, responds) {
            ("everywhere", ..) | ("plain", Over::Plain, _) => Expected::Fails,
            ("at-once", _, Responds::AtOnce) => Expected::MayFail,
            ("plain", Over::Tls, _) | ("at-once", ..) => return None,
            _ => panic!("place {place:?}"),
        };
        Some(((section.to_owned(), case.to_owned()), expected))
    };
    lines.filter_map(case).collect()
}

/// Fails unless the suite has the expected outcome at each path, and names the differences.
#[track_caller]
fn assert_conforms(both: &Both, over: Over, paths: &[(&str, Responds)]) {
    let news = paths.iter().map(|path| news_of(both, over, *path));
    let news: String = news.collect();
    assert!(news.is_empty(), "{over:?}:{news}");
}

/// The unexpected outcomes of the suite.
fn news_of(both: &Both, over: Over, (path, responds): (&str, Responds)) -> String {
    let (address, more) = match over {
        Over::Plain => (both.proxy.address("web"), &[][..]),
        Over::Tls => (both.proxy.address("tls"), &["--tls", "--insecure"][..]),
    };
    let expected = expected(over, responds);
    let is_news = |case: &Case, wrong: &Option<String>| match expected.get(case) {
        // A passing case must not be on the list, and every other case must be.
        None => wrong.is_some(),
        Some(Expected::Fails) => wrong.is_none(),
        Some(Expected::MayFail) => false,
    };
    let mut found = outcomes(address, path, more);
    // A busy machine misses the deadlines of the suite: only what happens twice counts.
    if found.iter().any(|(case, wrong)| is_news(case, wrong)) {
        let again = outcomes(address, path, more).into_iter();
        found.extend(again.filter(|(case, wrong)| !is_news(case, wrong)));
    }
    let mut news = String::new();
    for (case, wrong) in found.iter().filter(|(case, wrong)| is_news(case, wrong)) {
        let (section, case) = case;
        let wrong = wrong.as_deref().unwrap_or("nothing is wrong");
        let wrong = wrong.replace('\n', "\n    ");
        news += &format!("\n{path}: {section}: {case}\n    {wrong}");
    }
    for (section, case) in expected.keys().filter(|it| !found.contains_key(*it)) {
        news += &format!("\n{section}: {case}: is no case of the suite");
    }
    news
}

/// A program whose paths are served in every way that a route has.
fn every_handler(dir: &TempDir) -> Both {
    std::fs::write(dir.join("page.txt"), "a page of several words\n".repeat(20)).unwrap();
    let routes = format!(
        "[[route]]\nmatch = {{ path = \"/answer\" }}\n\
         answer = {{ body = \"a response that is longer than a few bytes\" }}\n\
         [[route]]\nmatch = {{ path = \"/page.txt\" }}\nfiles = {{ root = {:?} }}\n\
         [[route]]\nmatch = {{ path = \"/chunked/*\" }}\nupstream = \"app\"\n\
         cache = {{ ttl = {{ 200 = \"1m\" }} }}",
        dir.path()
    );
    Both::with(&routes)
}

/// A path of each of its handlers.
const PATHS: [(&str, Responds); 4] = [
    ("/custom-payload?size=1000", Responds::Late),
    ("/answer", Responds::AtOnce),
    ("/page.txt", Responds::AtOnce),
    ("/chunked/1000", Responds::AtOnce),
];

#[test]
fn the_public_suite_in_plain_text() {
    within(2 * LIMIT, || {
        let dir = TempDir::new().unwrap();
        let both = every_handler(&dir);
        let paths = if is_whole() { &PATHS[..] } else { &PATHS[..1] };
        assert_conforms(&both, Over::Plain, paths);
    });
}

#[test]
fn the_public_suite_over_tls() {
    within(2 * LIMIT, || {
        let dir = TempDir::new().unwrap();
        let both = every_handler(&dir);
        let paths = if is_whole() { &PATHS[..] } else { &PATHS[1..2] };
        assert_conforms(&both, Over::Tls, paths);
    });
}

#[test]
fn reports_of_the_suite_are_read() {
    let report = "<testsuite name=\"a\" package=\"p/0\"><testcase package=\"p/1\" \
        classname=\"Sends &#34;a&#34;\" time=\"0.1\"></testcase>\n<testcase package=\"p/2\" \
        classname=\"Sends b\" time=\"2\">\n <error>GOAWAY\nclosed</error>\n</testcase></testsuite>";
    let cases: Vec<_> = cases(report).into_iter().collect();
    let case = |section: &str, name: &str| (section.to_owned(), name.to_owned());
    assert_eq!(
        cases,
        [
            (case("p/1", "Sends \"a\""), None),
            (case("p/2", "Sends b"), Some("GOAWAY\nclosed".to_owned())),
        ]
    );
}
