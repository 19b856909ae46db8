//! Running a configuration: workers, supervisor, shutdown.

use std::io;

use crate::config::{Address, Config};

/// Runs `config` until a signal ends it.
///
/// # Errors
///
/// Why it cannot go on.
pub fn run(config: Config) -> io::Result<()> {
    for listener in &config.listeners {
        match &listener.bind {
            Address::Tcp(address) => println!("{}: {address}", listener.name),
            Address::Unix(path) => println!("{}: unix:{}", listener.name, path.display()),
        }
    }
    Err(io::Error::other("not built in this branch"))
}
