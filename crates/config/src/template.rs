//! Templates of access log lines: text with fields in braces.

use super::setting::{Fault, FromText};
use super::value::is_token;

/// A template, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The parts of a line, in order.
    pub parts: Vec<Part>,
}

/// A piece of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// This text.
    Text(String),
    /// The exchange's value for this field.
    Field(LogField),
    /// The request's header field of this name.
    Header(String),
}

/// Defines the fields that a template can show, each with its word and help.
macro_rules! fields {
    ($($name:ident => $word:literal, $help:literal;)*) => {
        /// The fields of an exchange that a template can show.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum LogField {
            $( #[doc = $help] $name, )*
        }

        impl LogField {
            /// Every field.
            pub const ALL: &[LogField] = &[$(LogField::$name),*];

            /// The word for it in a template.
            pub fn word(self) -> &'static str {
                match self { $(LogField::$name => $word,)* }
            }

            /// A description of the field's value.
            pub fn help(self) -> &'static str {
                match self { $(LogField::$name => $help,)* }
            }
        }
    };
}

fields! {
    Time => "time", "when the exchange ended, as in `2026-11-21T09:05:01.123456Z`";
    UnixMs => "unix_ms", "the same in milliseconds since 1970";
    ClientIp => "client_ip", "address of the client; `unix` over a Unix socket";
    ClientPort => "client_port", "port of the client; 0 over a Unix socket, and where a trusted \
        proxy names the client";
    Connection => "connection", "number of the client's HTTP/2 connection, unique within the \
        process";
    Stream => "stream", "number of the request's stream on that connection";
    Listener => "listener", "name of the listener";
    Route => "route", "name of the route";
    Upstream => "upstream", "name of the upstream";
    Endpoint => "endpoint", "name of the last endpoint tried";
    Method => "method", "method of the request";
    Host => "host", "value of `Host`";
    Target => "target", "path and query of the request, as sent";
    Path => "path", "its path";
    Query => "query", "its query";
    Version => "version", "version of the request, as in `HTTP/1.1`";
    Request => "request", "the request line, or the bytes that came instead of one";
    Referer => "referer", "value of `Referer`";
    UserAgent => "user_agent", "value of `User-Agent`";
    Status => "status", "status sent to the client";
    BytesIn => "bytes_in", "bytes of the request, head and body";
    BytesOut => "bytes_out", "bytes of the response, head and body";
    BodyBytesOut => "body_bytes_out", "bytes of the response's body";
    User => "user", "the user, on a route with `auth`";
    RequestId => "request_id", "the request's id, with `request_id` of the listener";
    TraceId => "trace_id", "the id of the request's trace, with `trace` of the listener";
    Attempts => "attempts", "attempts made";
    Reason => "reason", "why that endpoint was chosen";
    Source => "source", "where the file came from: `hot` or `cold`";
    Cache => "cache", "what the cache did: `hit`, `stale`, `miss`, `revalidated` or `bypass`";
    CacheReason => "cache_reason", "why it was a `miss` or a `bypass`, in one word";
    CacheAgeS => "cache_age_s", "age of the stored response that was sent, in seconds";
    GrpcStatus => "grpc_status", "the status of a gRPC call, as a number";
    PacedMs => "paced_ms", "time held back by the route's `bandwidth`, in milliseconds";
    End => "end", "how the exchange ended, in a word";
    Termination => "termination", "the same as in `httplog`, such as `sH--`";
    HeadMs => "head_ms", "time to read the request's head, in milliseconds";
    HeadUs => "head_us", "the same in microseconds";
    QueueMs => "queue_ms", "time in the queue, in milliseconds";
    QueueUs => "queue_us", "the same in microseconds";
    ConnectMs => "connect_ms", "time to open a connection, in milliseconds";
    ConnectUs => "connect_us", "the same in microseconds";
    FirstByteMs => "first_byte_ms", "time from sending the request to the response's head, in \
        milliseconds";
    FirstByteUs => "first_byte_us", "the same in microseconds";
    TransferMs => "transfer_ms", "time from the response's head to the end, in milliseconds";
    TransferUs => "transfer_us", "the same in microseconds";
    TotalMs => "total_ms", "total time, in milliseconds";
    TotalUs => "total_us", "the same in microseconds";
}

/// Prefix of the name of a header field.
const HEADER: &str = "header:";

impl FromText for Template {
    const FORM: &'static str =
        "text with fields in braces, such as `\"{client_ip} {status} {total_ms}\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        if let Some(found) = text.chars().find(|it| it.is_control() && *it != '\t') {
            return Err(
                Fault::new(format!("{found:?} is not allowed in a template"))
                    .help("a template is one line; tabs are the only control characters in it"),
            );
        }
        let pieces = pieces(text).into_iter().map(|it| match it? {
            Piece::Text(text) => Ok(Part::Text(text)),
            Piece::Name(name) => field_part(name),
        });
        let parts: Vec<_> = pieces.collect::<Result<_, _>>()?;
        if !parts.iter().any(|it| !matches!(it, Part::Text(_))) {
            return Err(Fault::new("the template has no field")
                .help("write fields in braces, as in \"{client_ip} {request} {status}\""));
        }
        Ok(Self { parts })
    }
}

/// A piece of a text with names in braces.
pub(super) enum Piece<'a> {
    /// This text; its doubled braces are single ones.
    Text(String),
    /// The text between braces.
    Name(&'a str),
}

/// The pieces of a text with names in braces, up to a brace that opens or closes nothing.
pub(super) fn pieces(text: &str) -> Vec<Result<Piece<'_>, Fault>> {
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(brace) = rest.find(['{', '}']) {
        plain.push_str(&rest[..brace]);
        let at = &rest[brace..];
        if let Some(behind) = at.strip_prefix("{{").or_else(|| at.strip_prefix("}}")) {
            plain.push_str(&at[..1]);
            rest = behind;
            continue;
        }
        let Some(name) = at.strip_prefix('{') else {
            let fault = Fault::new("this `}` closes no field");
            pieces.push(Err(fault.help("write `}}` for a literal brace")));
            return pieces;
        };
        let Some((name, behind)) = name.split_once('}') else {
            let fault = Fault::new(format!("`{at}` is not closed"));
            pieces.push(Err(fault.help("write `{{` for a literal brace")));
            return pieces;
        };
        if !plain.is_empty() {
            pieces.push(Ok(Piece::Text(std::mem::take(&mut plain))));
        }
        pieces.push(Ok(Piece::Name(name)));
        rest = behind;
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Ok(Piece::Text(plain)));
    }
    pieces
}

fn field_part(name: &str) -> Result<Part, Fault> {
    if let Some(header) = name.strip_prefix(HEADER) {
        return if is_token(header) {
            Ok(Part::Header(header.to_owned()))
        } else {
            Err(Fault::new(format!("`{header}` is not a valid header name"))
                .help("write it as in {header:X-User}"))
        };
    }
    let known = LogField::ALL.iter().find(|it| it.word() == name);
    if let Some(field) = known {
        return Ok(Part::Field(*field));
    }
    let fault = Fault::new(format!("there is no field `{{{name}}}`"));
    let words: Vec<_> = LogField::ALL.iter().map(|it| it.word()).collect();
    Err(
        match super::diagnostics::nearest(name, words.iter().copied()) {
            Some(word) => fault.help(format!("did you mean `{{{word}}}`?")),
            None => fault.help(format!(
                "fields are {}, and header:NAME for a header",
                words.join(", ")
            )),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_templates_apart() {
        let text = |text: &str| Part::Text(text.into());
        let field = Part::Field;
        for (template, parts) in [
            (
                "{client_ip}:{client_port} {status}",
                vec![
                    field(LogField::ClientIp),
                    text(":"),
                    field(LogField::ClientPort),
                    text(" "),
                    field(LogField::Status),
                ],
            ),
            (
                "{{{status}}} \t{header:X-User}ü",
                vec![
                    text("{"),
                    field(LogField::Status),
                    text("} \t"),
                    Part::Header("X-User".into()),
                    text("ü"),
                ],
            ),
        ] {
            assert_eq!(Template::from_text(template).map(|it| it.parts), Ok(parts));
        }
    }

    #[test]
    fn says_what_is_wrong_with_one() {
        for (template, said) in [
            ("{stats}", "did you mean `{status}`?"),
            ("{zzzzzzzz}", "fields are time, "),
            ("{status", "{{"),
            ("status}", "}}"),
            ("{}", "fields are time, "),
            ("{header:a b}", "{header:X-User}"),
            ("{status}\n", "one line"),
            ("plain", "in braces"),
        ] {
            let fault = Template::from_text(template).expect_err(template);
            let help = fault.help.unwrap_or_default();
            assert!(help.contains(said), "{template}: {help}");
        }
    }

    #[test]
    fn every_field_has_a_word_of_its_own() {
        let words: std::collections::HashSet<_> =
            LogField::ALL.iter().map(|it| it.word()).collect();
        assert_eq!(words.len(), LogField::ALL.len());
    }
}
