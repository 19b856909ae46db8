//! `kill -9` under load: a small part of `evenkeel-lab cache-crash`.

use std::path::Path;
use std::time::Duration;

use evenkeel_testkit::caching::crash::{self, Plan};
use evenkeel_testkit::deadline::within;

use crate::setup::program;

#[test]
fn the_store_survives_being_killed_under_load() {
    within(Duration::from_secs(60), || {
        let program = program();
        let folder = std::env::temp_dir();
        let report = crash::run(Path::new(&program), &folder, &Plan::PART).unwrap();
        assert!(report.passes(), "{report}");
    });
}
