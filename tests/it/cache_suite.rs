//! The public suite for HTTP caches (<https://cache-tests.fyi>), with the program between
//! its client and its server.
//!
//! `cache_suite/expected.txt` lists the tests that do not pass, each with the reason: any
//! other difference is a failure here. The suite's tests of the kind `check` have no right
//! answer and are left out.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::deadline::within;
use evenkeel_testkit::process::{Running, run};
use evenkeel_testkit::{Proxy, TempDir};
use serde_json::Value;

use crate::setup::program;

/// Tests of the suite that are not for browsers.
const TESTS: usize = 350;

/// Most tests of required behaviour that may fail.
const MAX_REQUIRED_FAILURES: usize = 3;

/// Fewest tests of optional behaviour that must pass.
const MIN_OPTIMAL_PASSES: usize = 75;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("cache_suite")
}

/// The suite's server, and its port.
fn server(dir: &TempDir) -> (Running, String) {
    let mut command = Command::new("node");
    command
        .arg("server/server.mjs")
        .current_dir(folder().join("node_modules/http-cache-tests"))
        .env("npm_config_protocol", "http")
        .env("npm_config_port", "0")
        .env("npm_config_pidfile", dir.join("server.pid"));
    let mut server = Running::start(command).expect("`make setup` gets the suite");
    let line = server.line().unwrap();
    let port = line.trim_end_matches('/').rsplit(':').next();
    (server, port.unwrap().to_owned())
}

/// The outcome of a test of the suite.
struct Outcome {
    kind: String,
    /// The suite's: `pass`, `fail`, `setup` where the preparation failed, or `dependency`
    /// where a test did not pass on which this one builds.
    verdict: String,
    /// The first answer that was not as it should be.
    wrong: Option<String>,
}

impl Outcome {
    fn passes(&self) -> bool {
        self.verdict == "pass"
    }
}

type Outcomes = BTreeMap<String, Outcome>;

/// Runs the suite against a cache.
fn outcomes(proxy: &Proxy) -> Outcomes {
    let mut command = Command::new("node");
    command.arg(folder().join("run.mjs")).arg(proxy.url(""));
    let output = run(command, Duration::from_secs(60)).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let tests: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(tests.len() >= TESTS, "{} tests", tests.len());
    let outcome = |test: &Value| {
        let text = |key: &str| test[key].as_str().map(str::to_owned);
        let outcome = Outcome {
            kind: text("kind").unwrap(),
            verdict: text("verdict").unwrap(),
            wrong: text("wrong"),
        };
        (text("id").unwrap(), outcome)
    };
    let outcomes = tests.iter().map(outcome);
    outcomes.filter(|(_, it)| it.kind != "check").collect()
}

/// The tests that do not pass, with the reasons.
fn expected() -> BTreeMap<String, String> {
    let list = std::fs::read_to_string(folder().join("expected.txt")).unwrap();
    let lines = list.lines().filter(|it| !it.starts_with('#'));
    let pair = |line: &str| {
        let (id, reason) = line.split_once(": ").expect("a reason for each test");
        (id.to_owned(), reason.to_owned())
    };
    lines.map(pair).collect()
}

#[test]
fn the_public_suite_of_caches() {
    within(Duration::from_secs(120), || {
        let dir = TempDir::new().unwrap();
        let (_server, port) = server(&dir);
        let config = format!(
            "[server]\nworkers = 1\n[[listener]]\nname = 'web'\nbind = '127.0.0.1:0'\n\
             [[route]]\nupstream = 'app'\ncache = {{ heuristic = true }}\n\
             [upstream.app]\nendpoints = ['127.0.0.1:{port}']\n"
        );
        let proxy = Proxy::start(program(), &config).unwrap();
        let expected = expected();
        let mut found = outcomes(&proxy);
        // A passing test must not be on the list, and every other test must be.
        let is_news = |id: &str, it: &Outcome| it.passes() == expected.contains_key(id);
        // The suite depends on seconds of the clock, which a busy machine misses: only outcomes
        // that occur twice count.
        if found.iter().any(|(id, it)| is_news(id, it)) {
            let again = outcomes(&proxy).into_iter();
            found.extend(again.filter(|(id, it)| !is_news(id, it)));
        }

        let count = |kind: &str, verdict: &str| {
            let is_one = |it: &&Outcome| it.kind == kind && it.verdict == verdict;
            found.values().filter(is_one).count()
        };
        let failures = count("required", "fail");
        let optimal = count("optimal", "pass");
        let summary = format!(
            "required: {} pass, {failures} fail; optimal: {optimal} pass, {} fail",
            count("required", "pass"),
            count("optimal", "fail"),
        );
        println!("{summary}");
        let mut news = String::new();
        for (id, it) in found.iter().filter(|(id, it)| is_news(id, it)) {
            let wrong = it.wrong.as_deref().unwrap_or("nothing is wrong");
            news += &format!("\n{id} ({}): {}: {wrong}", it.kind, it.verdict);
        }
        for id in expected.keys().filter(|it| !found.contains_key(*it)) {
            news += &format!("\n{id} is no test of the suite");
        }
        assert!(news.is_empty(), "{summary}{news}");
        assert!(failures <= MAX_REQUIRED_FAILURES, "{summary}");
        assert!(optimal >= MIN_OPTIMAL_PASSES, "{summary}");
    });
}
