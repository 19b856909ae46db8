//! What the fuzz target asserts of the lines that any bytes make: that each is
//! one line of printable ASCII, that no byte of a request can end what it
//! stands in, and that JSON says what was sent.

use std::time::{Duration, Instant};

use evenkeel_proto::http1::parse_request;
use evenkeel_proto::{Field, FieldKind, RequestHead, Span};

use super::clock::Clock;
use super::line::{Line, Room};
use super::{Live, Name, Phase, Reason, Record, Times, write_line};
use crate::config::AccessLogFormat;
use crate::config::access_log::{LogField, Part, Template};
use crate::observe::end::End;

/// Bytes that stand for numbers, before the request.
const CHOICES_LEN: usize = 24;

/// Any bytes as a request, or what came in its place, with any figures and
/// names.
pub fn line(data: &[u8]) {
    let Some((choices, buf)) = data.split_at_checked(CHOICES_LEN) else {
        return;
    };
    let mut head = RequestHead::default();
    let is_parsed = parse_request(buf, &mut head).is_ok();
    if !is_parsed {
        head = head_anywhere(choices, buf);
    }
    let name = String::from_utf8_lossy(&buf[..buf.len().min(40)]);
    let names = ["listener", "route", "upstream", "endpoint"].map(|key| Name::new(key, &name));
    let has = |bit: u8| choices[0] & (1 << bit) != 0;
    let number = |at: usize| u64::from(choices[at]) << (choices[at + 1] % 56);
    let time = |at: usize| Duration::from_micros(number(at));
    let record = Record {
        client: b"192.0.2.7",
        client_port: number(1) as u16,
        listener: &names[0],
        route: has(0).then_some(&names[1]),
        upstream: has(1).then_some(&names[2]),
        endpoint: has(2).then_some(&names[3]),
        reason: has(3).then_some(Reason::Retry),
        buf,
        head: has(4).then_some(&head),
        status: number(3) as u16,
        bytes_in: number(5),
        bytes_out: number(7),
        body_bytes_out: number(9),
        attempts: number(11) as u32,
        queued_behind: number(13) as u32,
        phase: PHASES[usize::from(choices[15]) % PHASES.len()],
        end: nth_end(choices[16]),
        times: Times {
            head: time(17),
            queue: has(5).then(|| time(18)),
            connect: has(6).then(|| time(19)),
            first_byte: has(7).then(|| time(20)),
            transfer: has(7).then(|| time(21)),
            total: time(22),
        },
        request_id: has(3).then(|| &buf[..buf.len().min(20)]),
        trace_id: has(3).then(|| u128::from(number(5))),
        live: &Nothing,
    };
    check_json(&record);
    check_quoted(&AccessLogFormat::Combined, &record, 6);
    let httplog = check_quoted(&AccessLogFormat::Httplog, &record, 2);
    let fields = httplog.split('"').next().unwrap_or_default();
    assert_eq!(fields.split(' ').count(), 13, "{httplog}");
    let parts: Vec<_> = LogField::ALL
        .iter()
        .map(|field| Part::Field(*field))
        .chain([Part::Header("x".into())])
        .flat_map(|part| [Part::Text("\"".into()), part, Part::Text("\"".into())])
        .collect();
    let count = parts.len() / 3 * 2;
    check_quoted(
        &AccessLogFormat::Template(Template { parts }),
        &record,
        count,
    );
}

const PHASES: [Phase; 6] = [
    Phase::Head,
    Phase::Local,
    Phase::Queue,
    Phase::Connect,
    Phase::Response,
    Phase::Data,
];

fn nth_end(choice: u8) -> End {
    let nth = End::all().nth(usize::from(choice) % End::COUNT);
    nth.unwrap_or(End::Complete)
}

/// A head whose parts are anywhere in the bytes, as no parser would let them.
fn head_anywhere(choices: &[u8], buf: &[u8]) -> RequestHead {
    let span = |at: usize| {
        let (start, len) = (usize::from(choices[at]), usize::from(choices[at + 1]));
        Span::new(start.min(buf.len()), (start + len).min(buf.len()))
    };
    let field = |kind, at| Field {
        kind,
        name: span(at),
        value: span(at + 1),
    };
    RequestHead {
        method_span: span(1),
        target: span(3),
        path: span(5),
        query: span(7),
        host: span(9),
        fields: vec![
            field(FieldKind::Referer, 11),
            field(FieldKind::UserAgent, 13),
            field(FieldKind::Other, 15),
        ],
        ..RequestHead::default()
    }
}

/// Nothing else is open.
struct Nothing;

impl Live for Nothing {
    fn connections(&self) -> u64 {
        1
    }

    fn listener_connections(&self) -> u64 {
        1
    }

    fn upstream_exchanges(&self) -> u64 {
        0
    }

    fn endpoint_exchanges(&self) -> u64 {
        0
    }
}

/// The line without its end.
fn written(format: &AccessLogFormat, record: &Record<'_>) -> String {
    let mut out = Vec::new();
    let mut room = Room::default();
    let line = Line::new(&mut room, &mut out);
    write_line(line, format, record, &Clock::new(), Instant::now());
    assert_eq!(out.pop(), Some(b'\n'));
    let is_plain = out.iter().all(|byte| (0x20..0x7f).contains(byte));
    assert!(is_plain, "{}", out.escape_ascii());
    String::from_utf8_lossy(&out).into_owned()
}

fn check_quoted(format: &AccessLogFormat, record: &Record<'_>, quotes: usize) -> String {
    let line = written(format, record);
    assert_eq!(line.matches('"').count(), quotes, "{line}");
    line
}

fn check_json(record: &Record<'_>) {
    let line = written(&AccessLogFormat::Json, record);
    let object: serde_json::Value = serde_json::from_str(&line).expect("an object");
    let latin1 = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|&byte| char::from(byte))
            .collect::<String>()
    };
    if let Some(head) = record.head {
        for (key, span) in [
            ("method", head.method_span),
            ("host", head.host),
            ("target", head.target),
        ] {
            assert_eq!(object[key], latin1(span.of(record.buf)), "{key}: {line}");
        }
    } else {
        assert_eq!(object["raw"], latin1(record.raw_line()), "{line}");
    }
    assert_eq!(object["status"], record.status, "{line}");
    assert_eq!(object["bytes_out"], record.bytes_out, "{line}");
    assert_eq!(object["end"], record.end.word(), "{line}");
    assert_eq!(
        object.get("route").is_some(),
        record.route.is_some(),
        "{line}"
    );
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_make_one_line(data in proptest::collection::vec(any::<u8>(), 0..400)) {
            line(&data);
        }

        #[test]
        fn bytes_that_mean_something_make_one_line(
            choices in proptest::collection::vec(any::<u8>(), CHOICES_LEN),
            text in "[ -~\\x00-\\x1f\"\\\\{}|#%é]{0,200}",
        ) {
            line(&[choices.as_slice(), text.as_bytes()].concat());
        }
    }

    #[test]
    fn the_corpus_makes_lines() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/access_log_line");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).expect("the corpus is there") {
            let path = entry.expect("an entry").path();
            eprintln!("{}", path.display());
            line(&std::fs::read(path).expect("an input"));
            count += 1;
        }
        assert!(count > 10, "{count} inputs");
    }
}
