//! Logs and traces: the records that the program writes of its work.

use super::forms::{Switch, short_for};
use crate::access_log::SyslogTarget;
use crate::log_value::{AppName, Facility, LogPath, Only, Severity};
use crate::quantity::{DurationValue, Part, Timeout};
use crate::reserved::SpanField;
use crate::setting::{Map, Secret, options, sibling};
use crate::template::Template;
use crate::tree::Node;
use crate::value::{CollectorUrl, FieldValue, Text};
use crate::{AccessLogFormat, EventFormat, Level};

options! {
    /// How requests are logged, and where; one line each.
    pub struct AccessLogTable as "the access log" {
        /// The file to append lines to: an absolute path, or one from the folder that the
        /// program runs in. `"-"` is standard output. The signal USR1 reopens the file.
        path: LogPath = Depends(log_path_default, "`\"-\"`, unless `syslog` is written"),
        /// A syslog daemon that gets each line as a message: its address, or a table.
        syslog: Syslog = Optional("no syslog"),
        /// Layout of a line.
        format: AccessLogFormat = Depends(log_format_default, "`\"combined\"`, unless `template` is written"),
        /// A custom layout of a line: text with fields in braces, such as `{client_ip}
        /// {request} {status}`.
        template: Template = Optional("`format` says"),
        /// Which requests are always logged. With this or `slower_than`, only the part `sample`
        /// of the other requests is logged.
        only: Only = Default("'all'"),
        /// Requests that take longer than this are always logged. Of the other requests only
        /// the part `sample` is logged.
        slower_than: DurationValue = Optional("no such condition"),
        /// The part of the other requests to log, from 0 to 1: requests that neither `only` nor
        /// `slower_than` selects.
        sample: Part = Depends(sample_default, "`1`; `0` with `only = \"errors\"` or `slower_than`"),
    }
}

options! {
    /// How the requests of this listener or route are logged. A key that is left out comes from
    /// the `access_log` above it: for a route from its listener's, for a listener from the
    /// global one.
    pub struct OwnAccessLogTable as "the access log" {
        /// The file to append lines to; `"-"` is standard output. The signal USR1 reopens the
        /// file.
        path: LogPath = Optional("as above"),
        /// A syslog daemon that gets each line as a message: its address, or a table.
        syslog: Syslog = Optional("as above"),
        /// Layout of a line.
        format: AccessLogFormat = Optional("as above"),
        /// A custom layout of a line: text with fields in braces, such as `{client_ip}
        /// {request} {status}`.
        template: Template = Optional("as above"),
        /// Which requests are always logged. With this or `slower_than`, only the part `sample`
        /// of the other requests is logged.
        only: Only = Optional("as above"),
        /// Requests that take longer than this are always logged. Of the other requests only
        /// the part `sample` is logged.
        slower_than: DurationValue = Optional("as above"),
        /// The part of the other requests to log, from 0 to 1: requests that neither `only` nor
        /// `slower_than` selects.
        sample: Part = Optional("as above; if the global log has another `only` or `slower_than`, \
            as the global default"),
    }
}

options! {
    /// A syslog daemon, and the fields of the messages (RFC 5424) around each line.
    pub struct SyslogTable as "the syslog daemon" {
        /// The address of the daemon: `udp://HOST:PORT`, or the path of a Unix datagram socket.
        /// A host name is looked up when the first line is sent.
        to: SyslogTarget = Required,
        /// Facility of the messages.
        facility: Facility = Default("'local0'"),
        /// Severity of the messages.
        severity: Severity = Default("'info'"),
        /// The name of the program in the messages.
        app_name: AppName = Default("'evenkeel'"),
    }
}

options! {
    /// How the event log is written, and where it goes.
    pub struct LogTable as "the event log"
    for #[derive(Debug, Clone, Copy, PartialEq, Eq)] Log {
        /// The least severe level that is written.
        level: Level = Default("'info'"),
        /// The layout of a line, and where lines go.
        format: EventFormat = Default("'text'"),
    }
}

options! {
    /// The collector that gets the spans of sampled traces. It takes OTLP over HTTP, as JSON.
    pub struct OtlpTable as "the collector of spans"
    for #[derive(Debug, Clone, PartialEq, Eq)] Otlp with OtlpParts {
        /// Host and port.
        authority: String,
        /// Path and query.
        path: String,
    } {
        /// The URL of the collector; without a path, the path is `/v1/traces`.
        url: CollectorUrl = Required => by_hand,
        /// Value of `service.name`.
        service: Text = Default("'evenkeel'"),
        /// Further header fields of requests to the collector, such as a token: name to value.
        /// No output shows the values.
        headers: Map<SpanField, Secret<FieldValue>> = Default("{}"),
        /// Longest time that a request to the collector may take.
        timeout: Timeout = Default("'5s'"),
    }
}

fn log_path_default(log: &Node) -> Option<String> {
    log.entry("syslog").is_none().then(|| "'-'".into())
}

fn log_format_default(log: &Node) -> Option<String> {
    log.entry("template").is_none().then(|| "'combined'".into())
}

fn sample_default(log: &Node) -> Option<String> {
    let slower_than: Option<DurationValue> = sibling(log, "slower_than");
    let is_slow = slower_than.is_some_and(|it| !it.0.is_zero());
    let has_condition = is_slow || sibling(log, "only") == Some(Only::Errors);
    Some(if has_condition { "0" } else { "1" }.into())
}

/// The global access log.
pub type AccessLog = Switch<AccessLogTable>;

/// The access log of a listener or a route, which overrides the one above it.
pub type OwnAccessLog = Switch<OwnAccessLogTable>;

short_for!(
    /// A syslog daemon.
    Syslog, SyslogTable, "to", SyslogTarget
);
