//! Names of the fields that the configuration sets in messages of our own, and the ones
//! that it may not set, with the reason.

use evenkeel_proto::http1::edit::{SameName, is_same};

use super::setting::{Fault, FromText, resolve_to};
use super::value::is_token;

/// The kind of message that a field is in.
#[derive(Debug, Clone, Copy)]
enum Message {
    /// A fixed answer.
    Answer,
    /// The request of a probe.
    Probe,
    /// A request with spans to a collector.
    Spans,
    /// A client's request, or the response to it.
    Edited,
}

/// A name that may not be set, with the reason: for an answer, a probe, spans, and an edited
/// message.
struct Reserved {
    name: &'static str,
    answer: Option<&'static str>,
    probe: Option<&'static str>,
    spans: Option<&'static str>,
    edited: Option<&'static str>,
}

const LENGTH: Option<&str> = Some("Evenkeel knows the length of the body, and writes it");
const CONNECTION: Option<&str> = Some("whether the connection stays open depends on each request");
const PROBE: Option<&str> = Some("a probe has no body, and its connection is closed after it");
const FRAMING: Option<&str> = Some("it describes the connection, so Evenkeel writes it");
const SPANS: Option<&str> = Some("leave it out; the host is that of `url`");

const fn reserved(
    name: &'static str,
    answer: Option<&'static str>,
    probe: Option<&'static str>,
    spans: Option<&'static str>,
    edited: Option<&'static str>,
) -> Reserved {
    Reserved {
        name,
        answer,
        probe,
        spans,
        edited,
    }
}

const RESERVED: [Reserved; 13] = [
    reserved(
        "cdn-loop",
        None,
        None,
        None,
        Some("Evenkeel uses it to detect loops"),
    ),
    reserved("connection", CONNECTION, PROBE, None, FRAMING),
    reserved("content-length", LENGTH, PROBE, SPANS, FRAMING),
    reserved(
        "content-type",
        Some("write it as `content_type`"),
        None,
        SPANS,
        None,
    ),
    reserved(
        "date",
        Some("Evenkeel writes the time of each answer"),
        None,
        None,
        None,
    ),
    reserved("host", None, Some("write it as `host`"), SPANS, None),
    reserved("keep-alive", CONNECTION, None, None, FRAMING),
    reserved(
        "server",
        Some("Evenkeel writes `evenkeel`"),
        None,
        None,
        None,
    ),
    reserved("te", None, None, None, FRAMING),
    reserved("trailer", LENGTH, None, None, FRAMING),
    reserved("transfer-encoding", LENGTH, PROBE, SPANS, FRAMING),
    reserved("upgrade", CONNECTION, PROBE, None, FRAMING),
    reserved(
        "x-request-id",
        Some("write `request_id = { respond = true }` in the listener"),
        None,
        None,
        None,
    ),
];

/// The reserved field of such a message that `name` is, if it is one: its name in lower case,
/// and advice on what to do instead.
fn reserved_in(message: Message, name: &str) -> Option<(&'static str, &'static str)> {
    let field = RESERVED
        .iter()
        .find(|it| is_same(it.name.as_bytes(), name.as_bytes(), SameName::AsVariable))?;
    let why = match message {
        Message::Answer => field.answer,
        Message::Probe => field.probe,
        Message::Spans => field.spans,
        Message::Edited => field.edited,
    };
    Some((field.name, why?))
}

/// The name of a header field in the conditions of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderName(pub String);

impl FromText for HeaderName {
    const FORM: &'static str = FORM;

    fn from_text(text: &str) -> Result<Self, Fault> {
        token(text).map(Self)
    }
}

/// The name of a field that a fixed answer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerField(pub String);

impl FromText for AnswerField {
    const FORM: &'static str = FORM;

    fn from_text(text: &str) -> Result<Self, Fault> {
        let help = "write it without spaces, colons or quotes, as in Retry-After";
        let name = token(text).map_err(|fault| fault.help(help))?;
        not_reserved(Message::Answer, name).map(Self)
    }
}

/// The name of a field that a probe has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeField(pub String);

impl FromText for ProbeField {
    const FORM: &'static str = FORM;

    fn from_text(text: &str) -> Result<Self, Fault> {
        not_reserved(Message::Probe, token(text)?).map(Self)
    }
}

/// The name of a field that the requests with spans have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanField(pub String);

impl FromText for SpanField {
    const FORM: &'static str = FORM;

    fn from_text(text: &str) -> Result<Self, Fault> {
        let name = token(text)?;
        match reserved_in(Message::Spans, &name) {
            None => Ok(Self(name)),
            Some((own, help)) => {
                Err(Fault::new(format!("`{own}` is set by the exporter")).help(help))
            }
        }
    }
}

/// The name of a field that is edited.
macro_rules! edited_fields {
    ($($(#[doc = $about:literal])* $name:ident, $may_end:literal;)*) => {$(
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name(pub String);

        impl FromText for $name {
            const FORM: &'static str = FORM;

            fn from_text(text: &str) -> Result<Self, Fault> {
                let help = "write it without spaces, colons or quotes, as in X-User";
                let name = token(text).map_err(|fault| fault.help(help))?;
                no_pattern($may_end, &name)?;
                not_edited(name).map(Self)
            }
        }
    )*};
}

edited_fields! {
    /// The name of a field that a request is sent on with.
    RequestField, "";
    /// The name of a field that a response is sent on with.
    ResponseField, "";
    /// The name of a field to remove. A `*` at its end stands for any characters.
    RemovedField, "*";
}

/// Refuses a `*` in the name of a field, but at its end where it `may_end` in one.
fn no_pattern(may_end: &str, name: &str) -> Result<(), Fault> {
    if name.strip_suffix(may_end).unwrap_or(name).contains('*') {
        let fault = Fault::new(format!("`{name}` is not the name of one header"));
        return Err(fault.help("`*` works only in `remove`, at the end of a name"));
    }
    Ok(())
}

fn not_edited(name: String) -> Result<String, Fault> {
    match reserved_in(Message::Edited, &name) {
        None => Ok(name),
        Some((own, why)) => Err(Fault::new(format!("`{own}` can't be changed")).help(why)),
    }
}

resolve_to!(AnswerField => String, ProbeField => String, SpanField => String);

const FORM: &str = "the name of a header field";

fn token(text: &str) -> Result<String, Fault> {
    if is_token(text) {
        Ok(text.to_owned())
    } else {
        Err(Fault::new(format!("`{text}` is not a valid header name")))
    }
}

fn not_reserved(message: Message, name: String) -> Result<String, Fault> {
    match reserved_in(message, &name) {
        None => Ok(name),
        Some((_, why)) => Err(Fault::new(format!("`{name}` cannot be set in `headers`")).help(why)),
    }
}
