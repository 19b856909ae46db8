//! Access logs as resolved: which requests are logged where, and how.

use std::path::PathBuf;
use std::time::Duration;

pub use super::template::{LogField, Part, Template};

/// The access logs of all listeners and routes.
#[derive(Debug, Clone, Default)]
pub struct AccessLogs {
    /// The destinations of lines, each once.
    pub destinations: Vec<LogDestination>,
    /// All different logs.
    pub logs: Vec<AccessLog>,
    /// Indexes in `logs`: for each listener one for each route, then one for requests that
    /// match no route.
    index: Vec<Option<usize>>,
    /// Entries of one listener in `index`.
    stride: usize,
}

/// One access log.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessLog {
    /// Index in [`AccessLogs::destinations`].
    pub destination: usize,
    /// Layout of a line.
    pub format: AccessLogFormat,
    /// Which requests get a line.
    pub selection: Selection,
}

/// A destination of lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogDestination {
    /// Standard output.
    Stdout,
    /// Appended to this file.
    File(PathBuf),
    /// One message a line.
    Syslog(Syslog),
}

/// A syslog daemon, and what its messages (RFC 5424) say beside the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Syslog {
    /// The address of the daemon.
    pub target: SyslogTarget,
    /// Facility, 0 to 23.
    pub facility: u8,
    /// Severity, 0 (emergency) to 7 (debug).
    pub severity: u8,
    /// The name of the program.
    pub app_name: String,
}

/// The address of a syslog daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyslogTarget {
    /// A UDP port of a host, which may be an address.
    Udp {
        /// Name or address, IPv6 without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix datagram socket.
    Unix(PathBuf),
}

/// Layout of an access log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// HAProxy's HTTP log format.
    Httplog,
    /// The combined format of Apache and nginx.
    Combined,
    /// One JSON object a line.
    Json,
    /// A text with fields in it.
    Template(Template),
}

/// Which requests get a line: all that a condition selects, and a sample of the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Selection {
    /// Whether to select requests that count as errors.
    pub errors: bool,
    /// Selects requests that took longer than this.
    pub slower_than: Option<Duration>,
    /// Part of the other requests, from 0 to 1.
    pub sample: f64,
}

impl AccessLogs {
    /// The table of what `of` says for each listener and each of `routes`
    /// routes, and for no route.
    pub(super) fn new(
        listeners: usize,
        routes: usize,
        of: impl Fn(usize, Option<usize>) -> Option<Settings>,
    ) -> Self {
        let mut logs = AccessLogs {
            stride: routes + 1,
            ..AccessLogs::default()
        };
        for listener in 0..listeners {
            for route in (0..routes).map(Some).chain([None]) {
                let index = of(listener, route).map(|settings| logs.index_of(settings));
                logs.index.push(index);
            }
        }
        logs
    }

    fn index_of(&mut self, settings: Settings) -> usize {
        let log = AccessLog {
            destination: position(&mut self.destinations, settings.destination),
            format: settings.format,
            selection: settings.selection,
        };
        position(&mut self.logs, log)
    }

    /// Index of the log of this listener's requests that `route` matched, or
    /// no route.
    pub fn of(&self, listener: usize, route: Option<usize>) -> Option<usize> {
        let column = route.unwrap_or(self.stride - 1);
        self.index[listener * self.stride + column]
    }
}

/// The index of `item`, which is added where it is not there.
fn position<T: PartialEq>(items: &mut Vec<T>, item: T) -> usize {
    let known = items.iter().position(|it| *it == item);
    known.unwrap_or_else(|| {
        items.push(item);
        items.len() - 1
    })
}

/// The settings of a log, before logs with equal settings become one.
pub(super) struct Settings {
    pub destination: LogDestination,
    pub format: AccessLogFormat,
    pub selection: Selection,
}

impl std::fmt::Display for LogDestination {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LogDestination::Stdout => out.write_str("on standard output"),
            LogDestination::File(path) => path.display().fmt(out),
            LogDestination::Syslog(Syslog { target, .. }) => match target {
                SyslogTarget::Udp { host, port } if host.contains(':') => {
                    write!(out, "udp://[{host}]:{port}")
                }
                SyslogTarget::Udp { host, port } => write!(out, "udp://{host}:{port}"),
                SyslogTarget::Unix(path) => path.display().fmt(out),
            },
        }
    }
}
