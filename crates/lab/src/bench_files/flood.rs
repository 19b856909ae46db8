//! A load beside the one that is measured, on the same core.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::process::{ChildStdout, Stdio};

use crate::bench::process::Process;
use crate::bench::rounds::load_command;
use crate::load::Summary;

/// A load that goes on until it is awaited.
pub struct Flood {
    output: ChildStdout,
    _process: Process,
}

impl Flood {
    /// Starts a load that gives way to every other on its core: what it waits
    /// for there is not what the other measures.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(address: SocketAddr, arguments: &[String]) -> io::Result<Self> {
        let mut command = load_command(address, arguments)?;
        command.stdout(Stdio::piped());
        let mut process = Process::start(command)?;
        process.yield_to_others()?;
        let output = process.take_output();
        Ok(Self {
            output: output.ok_or_else(|| io::Error::other("load has no output"))?,
            _process: process,
        })
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// It said nothing.
    pub fn finish(mut self) -> io::Result<Summary> {
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        Ok(serde_json::from_str(&text)?)
    }
}
