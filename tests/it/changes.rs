//! The program under load while it changes: a small part of `evenkeel-lab changes`.

use std::path::Path;
use std::time::Duration;

use evenkeel_testkit::changes::{Report, large, lists, reloads, upgrades};
use evenkeel_testkit::deadline::within;

use crate::setup::program;

/// Runs a part of a suite, which must find everything as it must be.
fn passes(run: impl FnOnce(&Path) -> std::io::Result<Report> + Send + 'static) {
    within(Duration::from_secs(90), || {
        let report = run(Path::new(&program())).unwrap();
        assert!(report.passes(), "{report}");
    });
}

#[test]
fn reloads_under_load() {
    passes(|program| reloads::run(program, &reloads::Plan::PART));
}

#[test]
fn upgrades_under_load() {
    passes(|program| upgrades::run(program, &upgrades::Plan::PART));
}

#[test]
fn lists_that_change_under_load() {
    passes(|program| lists::run(program, &lists::Plan::PART));
}

#[test]
fn a_large_configuration_loaded_again() {
    passes(|program| large::run(program, &large::Plan::PART));
}
