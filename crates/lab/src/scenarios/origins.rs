//! The origins of a scenario, each a process that can be ended and started
//! again where it was.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::bench::process::{LOAD_CORE, Process, free_address, pinned};
use crate::bench::proxy::Site;

/// The program of an origin, and its behaviour.
#[derive(Debug, Clone)]
pub enum Shape {
    /// `evenkeel origin` with these arguments: service times, threads, faults.
    /// It sleeps where a real one works, so that many fit on a core.
    Shaped(Vec<String>),
    /// `evenkeel-lab origin`: answers at once, as cheaply as can be.
    Plain,
}

impl Shape {
    /// One with these arguments.
    #[must_use]
    pub fn of(arguments: &[&str]) -> Self {
        Self::Shaped(arguments.iter().map(|&at| at.to_owned()).collect())
    }
}

/// Running origins, or some that have been ended; all end with this.
#[derive(Debug)]
pub struct Origins {
    shapes: Vec<Shape>,
    /// The address of each origin, whether it runs or not.
    pub addresses: Vec<SocketAddr>,
    processes: Vec<Option<Process>>,
    program: PathBuf,
    folder: PathBuf,
}

impl Origins {
    /// Starts one of each shape and waits until they accept.
    ///
    /// # Errors
    /// One of them can't be started.
    pub fn start(site: &Site, shapes: &[Shape]) -> io::Result<Self> {
        let addresses = shapes
            .iter()
            .map(|_| free_address())
            .collect::<io::Result<_>>()?;
        let mut origins = Self {
            shapes: shapes.to_vec(),
            addresses,
            processes: shapes.iter().map(|_| None).collect(),
            program: site.evenkeel.clone(),
            folder: site.folder.clone(),
        };
        for at in 0..shapes.len() {
            origins.start_one(at)?;
        }
        Ok(origins)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Ends the process of one.
    pub fn end(&mut self, at: usize) {
        self.processes[at] = None;
    }

    /// Starts one, on the address that is its own, and waits until it accepts.
    /// It ends with the thread that calls this.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start_one(&mut self, at: usize) -> io::Result<()> {
        let address = self.addresses[at];
        let listen = format!("--listen={address}");
        let started = match &self.shapes[at] {
            Shape::Plain => Process::start_lab(&[LOAD_CORE], &["origin", &listen]),
            Shape::Shaped(arguments) => {
                let output = fs::File::create(self.folder.join(format!("origin-{at}")))?;
                let mut command = pinned(&[LOAD_CORE], &self.program)?;
                command
                    .arg("origin")
                    .arg(listen)
                    .arg(format!("--name=o{at}"))
                    .arg(format!("--seed={}", at + 1))
                    .args(arguments)
                    .stderr(output);
                Process::start(command)
            }
        };
        let started = started.and_then(|mut process| {
            process.wait_for(address)?;
            Ok(process)
        });
        let process =
            started.map_err(|error| io::Error::other(format!("start origin {at}: {error}")))?;
        self.processes[at] = Some(process);
        Ok(())
    }
}
