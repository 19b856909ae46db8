//! A test server: `cargo run --release --example server-test [ADDR]`.
//!
//! Serves `/ping`, `/medium-payload`, `/large-payload`,
//! `/custom-payload?size=N` and the other pages of `evenkeel origin`.

use std::process::ExitCode;

use evenkeel_origin::{Origin, OriginOptions};

fn main() -> ExitCode {
    let mut options = OriginOptions {
        name: "server-test".to_owned(),
        ..OriginOptions::default()
    };
    if let Some(address) = std::env::args().nth(1) {
        match address.parse() {
            Ok(address) => options.listen = address,
            Err(message) => {
                eprintln!("server-test: {message}");
                return ExitCode::from(2);
            }
        }
    }
    let ended = Origin::listen(options).and_then(|origin| {
        eprintln!("server-test: listening on {}", origin.address);
        origin.wait()
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("server-test: {error}");
            ExitCode::FAILURE
        }
    }
}
