//! A load beside the measured one, on the same core.

use std::io;
use std::net::SocketAddr;

use crate::bench::rounds::LoadProcess;
use crate::load::Summary;

/// A load that goes on until it is awaited.
pub struct Flood(LoadProcess);

impl Flood {
    /// Starts a load that yields to every other process on its core: its waits there do not
    /// affect the other measurement.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(address: SocketAddr, arguments: &[String]) -> io::Result<Self> {
        let process = LoadProcess::start(address, arguments)?;
        process.yield_to_others()?;
        Ok(Self(process))
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// It said nothing.
    pub fn finish(mut self) -> io::Result<Summary> {
        self.0.summary()
    }
}
