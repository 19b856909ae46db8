//! Connect's conformance suite, with Evenkeel between its two sides
//! (<https://github.com/connectrpc/conformance>): the protocols Connect, gRPC and gRPC-Web,
//! all kinds of streams, and messages that break rules.
//!
//! For each run, `conformance/NAME.yaml` has the features that it covers, and why others are
//! left out; `conformance/NAME.txt` has the cases that do not pass, each with its reason. A
//! listed case that passes is a failure too.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::deadline::within;
use evenkeel_testkit::process::{repository, run};

use super::is_whole;
use crate::setup::program;

/// The longest time of one run.
const LIMIT: Duration = Duration::from_secs(300);

/// A side of the suite that is run through Evenkeel.
struct Run {
    /// The name of its features file and of its list.
    name: &'static str,
    /// The role of Evenkeel in the suite.
    role: &'static str,
    /// The program behind it, or before it.
    other: &'static str,
    /// The cases that `make test` runs.
    part: &'static [&'static str],
    /// How many cases it has, and how many `make test` runs: a suite that runs none proves
    /// nothing.
    cases: (usize, usize),
}

fn program_of_suite(name: &str) -> PathBuf {
    repository().join(".go/bin").join(name)
}

impl Run {
    fn mode(&self) -> &'static str {
        if self.role == "client" {
            "client"
        } else {
            "server"
        }
    }

    /// A run of the cases that match one of these patterns; of all cases without patterns.
    fn command(&self, patterns: &[&str]) -> Command {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("http2/conformance");
        let file = |kind| folder.join(format!("{}.{kind}", self.name));
        let mut command = Command::new(program_of_suite("connectconformance"));
        command.arg("--conf").arg(file("yaml"));
        let list = file("txt");
        if list.exists() {
            command.arg("--known-failing");
            command.arg(format!("@{}", list.display()));
        }
        command.args(["--mode", self.mode(), "--trace"]);
        command.args(patterns.iter().flat_map(|it| ["--run", *it]));
        command
            .arg("--")
            .arg(program_of_suite("conformance-between"));
        command.args([self.role, &program()]);
        command.arg(program_of_suite(self.other));
        command
    }

    /// Runs such cases. Returns whether each ended as expected, with the output of the suite.
    fn outcome(&self, patterns: &[&str]) -> (bool, String) {
        let output = run(self.command(patterns), LIMIT).unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!errors.contains("panic"), "{}:\n{errors}", self.name);
        (output.status.success(), format!("{said}\n{errors}"))
    }

    /// Fails unless each case ends as expected. The suite names the others, with the reason.
    #[track_caller]
    fn assert_conforms(&self) {
        let patterns = if is_whole() { &[] } else { self.part };
        let (passes, said) = self.outcome(patterns);
        let (all, part) = self.cases;
        let expected = if is_whole() { all } else { part };
        assert_eq!(count(&said), Some(expected), "{}: {said}", self.name);
        if passes {
            return;
        }
        // A busy machine misses the deadlines of the suite: only what happens twice counts.
        let failed = failed(&said);
        assert!(!failed.is_empty(), "{}: {said}", self.name);
        let (passes, again) = self.outcome(&failed);
        assert!(passes, "{}: {said}\n\nonce more: {again}", self.name);
    }
}

/// How many cases a run had, as it says at its end.
fn count(said: &str) -> Option<usize> {
    let (_, rest) = said.rsplit_once("Total cases: ")?;
    rest.lines().next()?.trim().parse().ok()
}

/// The cases that did not end as expected.
fn failed(said: &str) -> Vec<&str> {
    let lines = said.lines().filter_map(|it| it.strip_prefix("FAILED: "));
    lines.map(|it| it.trim_end_matches(':')).collect()
}

fn conforms(it: Run) {
    within(2 * LIMIT, move || it.assert_conforms());
}

#[test]
fn the_reference_server_behind_it() {
    conforms(Run {
        name: "server",
        role: "server",
        other: "referenceserver",
        part: &[
            "**/Codec:CODEC_PROTO/Compression:COMPRESSION_GZIP/TLS:false/**",
            "gRPC Unexpected Requests/**",
            "gRPC-Web Unexpected Requests/**",
            "TLS Client Certs/**/Compression:COMPRESSION_GZIP/**",
        ],
        cases: (10_756, 555),
    });
}

#[test]
fn the_server_of_grpc_go_behind_it() {
    conforms(Run {
        name: "grpc-server",
        role: "server",
        other: "grpcserver",
        part: &[],
        cases: (717, 717),
    });
}

#[test]
fn clients_of_http1_and_a_server_of_http2() {
    conforms(Run {
        name: "http1-to-http2",
        role: "server-http2",
        other: "referenceserver",
        part: &[],
        cases: (694, 694),
    });
}

#[test]
fn clients_of_http2_and_a_server_of_http1() {
    conforms(Run {
        name: "http2-to-http1",
        role: "server-http1",
        other: "referenceserver",
        part: &[],
        cases: (694, 694),
    });
}

/// The servers of this run break rules.
#[test]
fn the_reference_client_before_it() {
    conforms(Run {
        name: "client",
        role: "client",
        other: "referenceclient",
        part: &[
            "gRPC Unexpected Responses/**",
            "gRPC-Web Unexpected Responses/**",
            "gRPC Trailers/**",
            "HTTP to RPC Code Mapping/**/Compression:COMPRESSION_GZIP/**",
        ],
        cases: (5295, 170),
    });
}
