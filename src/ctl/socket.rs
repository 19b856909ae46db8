//! The control socket from outside: where it is, and asking it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel::config::{Config, NameLookup};
use evenkeel_net::Address;

use crate::cli::{Control, Source};
use crate::{load_quietly, note};

/// Longest silence of the process where `rates` may be asked for, which is
/// silent for as long as it is told to be.
pub const LONG_TIMEOUT: Duration = Duration::from_secs(75);
/// The same where it has nothing to wait for.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const MAX_ANSWER_LEN: u64 = 256 * 1024 * 1024;

/// Where a process takes commands.
#[derive(Debug, Clone)]
pub struct Socket {
    path: PathBuf,
}

impl Socket {
    /// The one named in the call, or else in the configuration.
    ///
    /// # Errors
    /// A sentence that says what is wrong and what to do.
    pub fn find(control: &Control) -> Result<Self, String> {
        if let Some(path) = &control.socket {
            return Ok(Socket { path: path.clone() });
        }
        let loaded = load_quietly(&control.source, NameLookup::Skip)?;
        Socket::configured(&loaded.config, &control.source)
    }

    /// The one of a configuration.
    ///
    /// # Errors
    /// As [`Socket::find`].
    pub fn configured(config: &Config, source: &Source) -> Result<Self, String> {
        match &config.server.control {
            Some(Address::Unix(path)) => {
                if source.verbose > 0 {
                    note(&format!("control socket {}", path.display()));
                }
                Ok(Socket { path: path.clone() })
            }
            _ => Err(format!(
                "{} has no control socket: add\n\n    [server]\n    control = \"/run/evenkeel/control.sock\"\n\n\
                 and start the program anew; `evenkeel ctl` and `evenkeel top` also take --socket",
                source.path().unwrap_or_default().display()
            )),
        }
    }

    /// Sends one line of commands, and gives the whole answer, unless the
    /// process is silent for longer than `timeout`.
    ///
    /// # Errors
    /// A sentence that says what is wrong and what to do.
    pub fn ask(&self, line: &str, timeout: Duration) -> Result<String, String> {
        let mut stream =
            UnixStream::connect(&self.path).map_err(|error| self.unreachable(&error))?;
        let mut exchange = || -> io::Result<Vec<u8>> {
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            stream.write_all(format!("{line}\n").as_bytes())?;
            let mut answer = Vec::new();
            (&stream).take(MAX_ANSWER_LEN).read_to_end(&mut answer)?;
            Ok(answer)
        };
        let answer = exchange().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                format!("{}: no answer within {timeout:?}", self.path.display())
            }
            _ => format!("{}: {error}", self.path.display()),
        })?;
        if answer.is_empty() {
            Err(format!(
                "{}: the process closed the connection without an answer",
                self.path.display()
            ))
        } else {
            Ok(String::from_utf8_lossy(&answer).into_owned())
        }
    }

    fn unreachable(&self, error: &io::Error) -> String {
        // Where it is named from the folder of the call, which may be another
        // one than the program's.
        let path = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        let path = path.display();
        match error.kind() {
            io::ErrorKind::NotFound => {
                format!(
                    "{path}: there is no such socket; is the program running? \
                     A process that drains has its socket at {path}.PID"
                )
            }
            io::ErrorKind::ConnectionRefused => {
                format!("{path}: nobody listens there; is the program running?")
            }
            io::ErrorKind::PermissionDenied => format!(
                "{path}: permission denied; the socket is for the user and the group that the program runs as"
            ),
            _ => format!("{path}: {error}"),
        }
    }
}
