//! The control socket from outside: its address, and commands to it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel::config::{self, Config, NameLookup, Report};
use evenkeel_net::Address;

use crate::cli::{Control, Source};
use crate::{mistakes_of, note, note_local, show, variables};

/// Longest silence of the process after a command such as `rates`, which may ask for silence.
pub const LONG_TIMEOUT: Duration = Duration::from_secs(75);
/// The same for other commands.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const MAX_ANSWER_LEN: u64 = 256 * 1024 * 1024;

/// The address at which a process takes commands.
#[derive(Debug, Clone)]
pub struct Socket {
    path: PathBuf,
    /// Of the file that names it.
    mistakes: Option<Mistakes>,
}

/// Mistakes in the configuration that names a socket: the process is asked all the same.
#[derive(Debug, Clone)]
struct Mistakes {
    file: String,
    /// How many there are.
    summary: String,
    /// All of them.
    report: Arc<Report>,
}

impl Socket {
    /// The one named in the call, or else in the configuration.
    ///
    /// # Errors
    /// A sentence with the mistake and the advice.
    pub fn find(control: &Control) -> Result<Self, String> {
        if let Some(path) = &control.socket {
            return Ok(Socket::at(path));
        }
        let source = &control.source;
        let file = source.path()?;
        let report = match config::load(&file, &source.sets, variables(), NameLookup::Skip) {
            Ok(loaded) => return Socket::configured(&loaded.config, source),
            Err(report) => report,
        };
        let mistakes = Mistakes {
            file: file.display().to_string(),
            summary: mistakes_of(&report),
            report: Arc::new(report),
        };
        match config::control_socket(&file, &source.sets, variables()) {
            Some(path) => Ok(Socket {
                path,
                mistakes: Some(mistakes),
            }),
            None => Err(mistakes.show()),
        }
    }

    fn at(path: &Path) -> Self {
        Socket {
            path: path.to_owned(),
            mistakes: None,
        }
    }

    /// Reports the mistakes of the file that names the socket, unless the answer has them.
    pub fn warn_of_mistakes(&self, answer: &str) {
        if let Some(Mistakes { file, summary, .. }) = &self.mistakes
            && !answer.contains(summary)
        {
            note(&format!(
                "warning: {file}: {summary}; `evenkeel check` shows them"
            ));
        }
    }

    /// The socket of a configuration.
    ///
    /// # Errors
    /// As [`Socket::find`].
    pub fn configured(config: &Config, source: &Source) -> Result<Self, String> {
        match &config.server.control {
            Some(Address::Unix(path)) => {
                if source.verbose > 0 {
                    note(&format!("control socket {}", path.display()));
                }
                Ok(Socket::at(path))
            }
            _ => Err(format!(
                "{} has no control socket: add\n\n    [server]\n    control = \
                 \"/run/evenkeel/control.sock\"\n\nand restart the program; `evenkeel ctl` and \
                 `evenkeel top` also accept --socket",
                source.path().unwrap_or_default().display()
            )),
        }
    }

    /// Sends one line of commands, and gives the whole answer, unless the
    /// process is silent for longer than `timeout`.
    ///
    /// # Errors
    /// A sentence with the mistake and the advice.
    pub fn ask(&self, line: &str, timeout: Duration) -> Result<String, String> {
        let mut stream = UnixStream::connect(&self.path).map_err(|error| match &self.mistakes {
            Some(mistakes) => mistakes.show(),
            None => self.unreachable(&error),
        })?;
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
        // The name is relative to the folder of the call, which may differ from the program's.
        let path = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        let path = path.display();
        match error.kind() {
            io::ErrorKind::NotFound => {
                format!(
                    "{path}: no such socket; is the program running? The socket of a draining \
                     process is {path}.PID"
                )
            }
            io::ErrorKind::ConnectionRefused => {
                format!("{path}: no process listens there; is the program running?")
            }
            io::ErrorKind::PermissionDenied => format!(
                "{path}: permission denied; only the user and the group of the running program \
                 may connect"
            ),
            _ => format!("{path}: {error}"),
        }
    }
}

impl Mistakes {
    /// Shows all of them. Gives a line for the end.
    fn show(&self) -> String {
        note_local(&self.report);
        show(&self.report);
        self.summary.clone()
    }
}
