//! The public suite for HTTP caches (<https://cache-tests.fyi>), with the program between
//! its client and its server.
//!
//! `cache_suite/expected.txt` lists the tests that fail, each with the reason. One that
//! fails or passes against that list fails here. The suite's tests of the kind `check` have
//! no right answer and are left out.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::deadline::within;
use evenkeel_testkit::process::{Running, run};
use evenkeel_testkit::{Proxy, TempDir};
use serde_json::Value;

use crate::setup::program;

/// Most tests that may fail of what a cache must do.
const MAX_REQUIRED_FAILURES: usize = 3;

/// Fewest tests that must pass of what a cache should do.
const MIN_OPTIMAL_PASSES: usize = 75;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/cache_suite")
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
    let mut server = Running::start(command).expect("the suite is there: run `make setup`");
    let line = server.line().unwrap();
    let port = line.trim_end_matches('/').rsplit(':').next();
    (server, port.unwrap().to_owned())
}

/// What a test of the suite found.
struct Outcome {
    kind: String,
    /// What was wrong; `None` where it passes.
    wrong: Option<String>,
}

/// Runs tests of the suite against a cache: those of these ids, or all.
fn outcomes(proxy: &Proxy, ids: &[&str]) -> BTreeMap<String, Outcome> {
    let mut command = Command::new("node");
    command
        .arg(folder().join("run.mjs"))
        .arg(proxy.url(""))
        .args(ids);
    let output = run(command, Duration::from_secs(60)).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let text = String::from_utf8(output.stdout).unwrap();
    // Before it stand the messages of single tests.
    let tests: Vec<Value> = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let outcome = |test: &Value| {
        let text = |key: &str| test[key].as_str().map(str::to_owned);
        let outcome = Outcome {
            kind: text("kind").unwrap(),
            wrong: text("wrong"),
        };
        (text("id").unwrap(), outcome)
    };
    tests.iter().map(outcome).collect()
}

/// The tests that fail, with the reasons.
fn expected() -> BTreeMap<String, String> {
    let list = std::fs::read_to_string(folder().join("expected.txt")).unwrap();
    let lines = list
        .lines()
        .filter(|it| !it.is_empty() && !it.starts_with('#'));
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
        let mut found = outcomes(&proxy, &[]);
        assert!(found.len() >= 350, "{} tests", found.len());
        found.retain(|_, outcome| outcome.kind != "check");

        // The suite goes by the clock, in seconds: what fails while the machine was busy
        // passes on its own.
        let is_news =
            |id: &String, outcome: &Outcome| outcome.wrong.is_some() != expected.contains_key(id);
        let news = found.iter().filter(|(id, outcome)| is_news(id, outcome));
        let again: Vec<String> = news.map(|(id, _)| id.clone()).collect();
        if !again.is_empty() {
            let ids: Vec<&str> = again.iter().map(String::as_str).collect();
            found.extend(outcomes(&proxy, &ids));
        }

        let count = |kind: &str, passes: bool| {
            let is_one = |it: &&Outcome| it.kind == kind && it.wrong.is_none() == passes;
            found.values().filter(is_one).count()
        };
        let summary = format!(
            "required: {} pass, {} fail; optimal: {} pass, {} fail",
            count("required", true),
            count("required", false),
            count("optimal", true),
            count("optimal", false),
        );
        println!("{summary}");
        let mut news = String::new();
        for (id, outcome) in &found {
            match (&outcome.wrong, expected.get(id)) {
                (Some(wrong), None) => news += &format!("\n{id} ({}) fails: {wrong}", outcome.kind),
                (None, Some(_)) => news += &format!("\n{id} passes: take it off the list"),
                _ => {}
            }
        }
        let unknown = expected.keys().filter(|it| !found.contains_key(*it));
        unknown.for_each(|id| news += &format!("\n{id} is no test of the suite"));
        assert!(news.is_empty(), "{summary}{news}");
        assert!(
            count("required", false) <= MAX_REQUIRED_FAILURES,
            "{summary}"
        );
        assert!(count("optimal", true) >= MIN_OPTIMAL_PASSES, "{summary}");
    });
}
