//! Logs and traces: where the program says what it did.

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
    /// Where and how requests are logged, one line each.
    pub struct AccessLogTable as "the access log" {
        /// The file that lines are appended to, an absolute path or one from the
        /// folder that the program runs in; `"-"` is standard output. USR1 opens
        /// it anew.
        path: LogPath = Depends(log_path_default, "`\"-\"`, unless `syslog` is written"),
        /// A syslog daemon that gets each line as a message: its place, or a
        /// table.
        syslog: Syslog = Optional("no syslog"),
        /// Layout of a line.
        format: AccessLogFormat = Depends(log_format_default, "`\"combined\"`, unless `template` is written"),
        /// A layout of one's own: text with fields in braces, such as
        /// `{client_ip} {request} {status}`.
        template: Template = Optional("`format` says"),
        /// Which requests are always logged; where this or `slower_than` is
        /// written, of the others only `sample` are.
        only: Only = Default("'all'"),
        /// Requests that take longer than this are always logged; of the others
        /// only `sample` are.
        slower_than: DurationValue = Optional("no such condition"),
        /// Part of the requests that is logged of those that no condition holds
        /// for, from 0 to 1.
        sample: Part = Depends(sample_default, "`1`; `0` with `only = \"errors\"` or `slower_than`"),
    }
}

options! {
    /// How the requests of this listener or route are logged. What is left out
    /// is as in the `access_log` above it: for a route that of the listener,
    /// for a listener the global one.
    pub struct OwnAccessLogTable as "the access log" {
        /// The file that lines are appended to; `"-"` is standard output. USR1
        /// opens it anew.
        path: LogPath = Optional("as above"),
        /// A syslog daemon that gets each line as a message: its place, or a
        /// table.
        syslog: Syslog = Optional("as above"),
        /// Layout of a line.
        format: AccessLogFormat = Optional("as above"),
        /// A layout of one's own: text with fields in braces, such as
        /// `{client_ip} {request} {status}`.
        template: Template = Optional("as above"),
        /// Which requests are always logged; where this or `slower_than` is
        /// written, of the others only `sample` are.
        only: Only = Optional("as above"),
        /// Requests that take longer than this are always logged; of the others
        /// only `sample` are.
        slower_than: DurationValue = Optional("as above"),
        /// Part of the requests that is logged of those that no condition holds
        /// for, from 0 to 1.
        sample: Part = Optional("as above; where the conditions are not, as with the global one"),
    }
}

options! {
    /// A syslog daemon, and what the messages (RFC 5424) say beside the line.
    pub struct SyslogTable as "the syslog daemon" {
        /// Where it listens: `udp://HOST:PORT`, or the path of a Unix datagram
        /// socket. A name is looked up when the first line is sent.
        to: SyslogTarget = Required,
        /// Facility of the messages.
        facility: Facility = Default("'local0'"),
        /// Severity of the messages.
        severity: Severity = Default("'info'"),
        /// The name of the program in them.
        app_name: AppName = Default("'evenkeel'"),
    }
}

options! {
    /// Where the event log goes.
    pub struct LogTable as "the event log"
    for #[derive(Debug, Clone, Copy, PartialEq, Eq)] Log {
        /// What is written: this and what is more severe.
        level: Level = Default("'info'"),
        /// What a line looks like, and where it goes.
        format: EventFormat = Default("'text'"),
    }
}

options! {
    /// Where the spans of sampled traces are sent: a collector that takes
    /// OTLP over HTTP, as JSON.
    pub struct OtlpTable as "the collector of spans"
    for #[derive(Debug, Clone, PartialEq, Eq)] Otlp with OtlpParts {
        /// Host and port.
        authority: String,
        /// Path and query.
        path: String,
    } {
        /// Its URL; without a path that is `/v1/traces`.
        url: CollectorUrl = Required => by_hand,
        /// Value of `service.name`.
        service: Text = Default("'evenkeel'"),
        /// Further fields of its requests, such as a token: name to value. No
        /// output shows the values.
        headers: Map<SpanField, Secret<FieldValue>> = Default("{}"),
        /// Longest time that it may take for a request.
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

/// The access log of a listener or a route, over the one above it.
pub type OwnAccessLog = Switch<OwnAccessLogTable>;

short_for!(
    /// A syslog daemon.
    Syslog, SyslogTable, "to", SyslogTarget
);
