//! The kinds of value that the options of access logs take.

use std::path::PathBuf;

use super::access_log::{AccessLogFormat, SyslogTarget};
use super::diagnostics::Report;
use super::setting::{Fault, FromText, Setting};
use super::shape::{Choice, Shape};
use super::tree::Node;
use super::value::{choice, port_help};

choice!(AccessLogFormat {
    "combined" => AccessLogFormat::Combined, "the combined format of Apache and nginx";
    "httplog" => AccessLogFormat::Httplog, "HAProxy's HTTP log format, for `halog` and other \
        tools that read it";
    "json" => AccessLogFormat::Json, "one JSON object a line";
});

/// The requests that an access log selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Only {
    /// All.
    All,
    /// Requests that count as errors.
    Errors,
}

choice!(Only {
    "all" => Only::All, "every request";
    "errors" => Only::Errors, "requests that the error counters count: answered with 5xx (except \
        configured answers), or cut off because of the endpoint or this server";
});

/// Path of a file, or `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPath(pub PathBuf);

impl FromText for LogPath {
    const FORM: &'static str = "the path of a file, or `\"-\"` for standard output";

    fn from_text(text: &str) -> Result<Self, Fault> {
        if text.is_empty() {
            return Err(Fault::new("the path is empty").help("`\"-\"` is standard output"));
        }
        let fault = Fault::new(format!("`{text}` is not the path of a file"));
        if text.contains("://") {
            return Err(fault.help(format!("did you mean `syslog = \"{text}\"`?")));
        }
        if text == "/dev/log" {
            return Err(fault.help("it is a syslog daemon's socket: write `syslog = \"/dev/log\"`"));
        }
        Ok(Self(PathBuf::from(text)))
    }
}

/// The port of syslog over UDP (RFC 5426).
const SYSLOG_PORT: u16 = 514;

impl FromText for SyslogTarget {
    const FORM: &'static str =
        "the address of a syslog daemon, such as `\"udp://10.0.0.9:514\"` or `\"/dev/log\"`";
    const PATTERN: Option<&'static str> = Some("^(udp://.+|unix:.+|/.+)$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let path = text.strip_prefix("unix:").unwrap_or(text);
        if path.starts_with('/') {
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        let fault = Fault::new(format!(
            "`{text}` is not a valid address of a syslog daemon"
        ));
        let Some(host) = text.strip_prefix("udp://") else {
            return Err(match text.split_once("://") {
                Some((_, host)) => fault.help(format!(
                    "lines are sent over UDP or a Unix socket: \"udp://{host}\" or \"/dev/log\""
                )),
                None => fault.help(format!("did you mean `\"udp://{text}\"`?")),
            });
        };
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => match port.parse() {
                Ok(port) if port > 0 => (host, port),
                _ => return Err(fault.help(port_help(port, 1))),
            },
            _ => (host, SYSLOG_PORT),
        };
        let inner = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_host = match inner {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(is_name),
        };
        if is_host {
            Ok(Self::Udp {
                host: inner.unwrap_or(host).to_owned(),
                port,
            })
        } else {
            Err(fault.help("write a host and a port, as in \"udp://10.0.0.9:514\""))
        }
    }
}

/// The name of the program in syslog messages (RFC 5424 §6.2.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppName(pub String);

impl FromText for AppName {
    const FORM: &'static str = "a name of at most 48 printable ASCII characters without spaces";
    const PATTERN: Option<&'static str> = Some("^[!-~]{1,48}$");

    fn from_text(text: &str) -> Result<Self, Fault> {
        let is_allowed = text.bytes().all(|byte| byte.is_ascii_graphic());
        if is_allowed && (1..=48).contains(&text.len()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Fault::new(format!("`{text}` is not a valid program name"))
                .help("write 1 to 48 printable ASCII characters without spaces"))
        }
    }
}

/// The facility of syslog messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facility(pub u8);

choice!(Facility {
    "kern" => Facility(0), "0";
    "user" => Facility(1), "1";
    "mail" => Facility(2), "2";
    "daemon" => Facility(3), "3";
    "auth" => Facility(4), "4";
    "syslog" => Facility(5), "5";
    "lpr" => Facility(6), "6";
    "news" => Facility(7), "7";
    "uucp" => Facility(8), "8";
    "cron" => Facility(9), "9";
    "authpriv" => Facility(10), "10";
    "ftp" => Facility(11), "11";
    "local0" => Facility(16), "16";
    "local1" => Facility(17), "17";
    "local2" => Facility(18), "18";
    "local3" => Facility(19), "19";
    "local4" => Facility(20), "20";
    "local5" => Facility(21), "21";
    "local6" => Facility(22), "22";
    "local7" => Facility(23), "23";
});

/// The severity of syslog messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Severity(pub u8);

choice!(Severity {
    "emerg" => Severity(0), "0";
    "alert" => Severity(1), "1";
    "crit" => Severity(2), "2";
    "err" => Severity(3), "3";
    "warning" => Severity(4), "4";
    "notice" => Severity(5), "5";
    "info" => Severity(6), "6";
    "debug" => Severity(7), "7";
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_syslog_daemons() {
        let udp = |host: &str, port| {
            Some(SyslogTarget::Udp {
                host: host.into(),
                port,
            })
        };
        for (text, target) in [
            ("udp://10.0.0.9:5514", udp("10.0.0.9", 5514)),
            ("udp://logs.internal", udp("logs.internal", 514)),
            ("udp://[::1]:5514", udp("::1", 5514)),
            ("udp://[::1]", udp("::1", 514)),
            ("/dev/log", Some(SyslogTarget::Unix("/dev/log".into()))),
            ("unix:/run/log", Some(SyslogTarget::Unix("/run/log".into()))),
            ("10.0.0.9:514", None),
            ("tcp://10.0.0.9:514", None),
            ("udp://", None),
            ("udp://a b", None),
            ("udp://host:0", None),
            ("udp://::1", None),
        ] {
            assert_eq!(SyslogTarget::from_text(text).ok(), target, "{text}");
        }
    }
}
