//! Fields of messages of our own that the configuration may not set, and why.

/// The kind of message that a field is in.
#[derive(Debug, Clone, Copy)]
pub(super) enum Message {
    /// A fixed answer.
    Answer,
    /// The request of a probe.
    Probe,
    /// A request with spans to a collector.
    Spans,
}

/// A name, and why nobody may set it: for an answer, a probe and spans.
struct Reserved {
    name: &'static str,
    answer: Option<&'static str>,
    probe: Option<&'static str>,
    spans: Option<&'static str>,
}

const LENGTH: Option<&str> = Some("the length of the body is known");
const CONNECTION: Option<&str> = Some("what becomes of the connection depends on each request");
const PROBE: Option<&str> = Some("a probe has no body, and its connection is closed after it");
const SPANS: Option<&str> = Some("leave it out; the host is that of `url`");

const fn reserved(
    name: &'static str,
    answer: Option<&'static str>,
    probe: Option<&'static str>,
    spans: Option<&'static str>,
) -> Reserved {
    Reserved {
        name,
        answer,
        probe,
        spans,
    }
}

const RESERVED: [Reserved; 11] = [
    reserved("connection", CONNECTION, PROBE, None),
    reserved("content-length", LENGTH, PROBE, SPANS),
    reserved(
        "content-type",
        Some("write it as `content_type`"),
        None,
        SPANS,
    ),
    reserved(
        "date",
        Some("every answer has the time at which it is sent"),
        None,
        None,
    ),
    reserved("host", None, Some("write it as `host`"), SPANS),
    reserved("keep-alive", CONNECTION, None, None),
    reserved("server", Some("every answer says `evenkeel`"), None, None),
    reserved("trailer", LENGTH, None, None),
    reserved("transfer-encoding", LENGTH, PROBE, SPANS),
    reserved("upgrade", CONNECTION, PROBE, None),
    reserved(
        "x-request-id",
        Some("write `request_id = { respond = true }` in the listener"),
        None,
        None,
    ),
];

/// The field of such a message that nobody may set, if `name` is one: its name in
/// lower case, and what to do instead.
pub(super) fn reserved_in(message: Message, name: &str) -> Option<(&'static str, &'static str)> {
    let field = RESERVED
        .iter()
        .find(|it| it.name.eq_ignore_ascii_case(name))?;
    let why = match message {
        Message::Answer => field.answer,
        Message::Probe => field.probe,
        Message::Spans => field.spans,
    };
    Some((field.name, why?))
}
