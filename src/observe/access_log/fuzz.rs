//! Assertions of the fuzz target on lines from arbitrary bytes. Each line is one line of
//! printable ASCII. No byte of a request ends the field or string that it is in. JSON has exactly
//! the bytes of the client.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_cache::report::Unanswered;
use evenkeel_policy::endpoint::{EndpointId, EndpointSettings, EndpointState};
use evenkeel_proto::http1::parse_request;
use evenkeel_proto::identity::hex;
use evenkeel_proto::{Field, FieldKind, RequestHead, Span};

use super::clock::Clock;
use super::names::{Name, Names, UpstreamNames};
use super::{
    Batch, Entries, Exchange, Figures, GrpcStatus, Layout, LineMaker, LoggedEndpoint, Open, Phase,
    Reason, Source, StreamPlace, Times,
};
use crate::config::AccessLogFormat;
use crate::config::access_log::{LogField, Part, Template};
use crate::metrics::end::End;
use crate::net::clock;

/// Bytes that are read as numbers, before the request.
const CHOICES_LEN: usize = 24;

/// Arbitrary bytes as a request, or as input that is not a head, with arbitrary figures and
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
    let names = || {
        let [listener, route, upstream, endpoint] =
            ["listener", "route", "upstream", "endpoint"].map(|key| Name::new(key, &name));
        Names {
            listeners: [listener].into(),
            routes: [route].into(),
            upstreams: vec![Arc::new(UpstreamNames::with_one_endpoint(
                upstream, endpoint,
            ))],
        }
    };
    let has = |bit: u8| choices[0] & (1 << bit) != 0;
    let number = |at: usize| u64::from(choices[at]) << (choices[at + 1] % 56);
    let time = |at: usize| Duration::from_micros(number(at));
    let ended = clock::now();
    let trace_id = hex::<32>(u128::from(number(5)));
    let figures = Figures {
        client_port: number(1) as u16,
        listener: 0,
        route: has(0).then_some(0),
        upstream: has(1).then_some(0),
        reason: has(3).then_some(Reason::Retry),
        source: has(2).then_some(Source::Cold),
        cache: has(4).then_some(crate::metrics::CacheResult::Revalidated),
        unanswered: has(5).then_some(Unanswered::MinUses),
        cache_age_ms: number(3) as u32,
        grpc: GrpcStatus::of(number(1) as u32),
        paced_ms: number(5) as u32,
        is_fetched: false,
        status: number(3) as u16,
        bytes_in: number(5),
        bytes_out: number(7),
        body_bytes_out: number(9),
        attempts: number(11) as u32,
        queued_behind: number(13) as u32,
        phase: PHASES[usize::from(choices[15]) % PHASES.len()],
        has_half_head: false,
        end: nth_end(choices[16]),
        times: Times {
            head: time(17),
            queue: has(5).then(|| time(18)),
            connect: has(6).then(|| time(19)),
            first_byte: has(7).then(|| time(20)),
            total: time(22),
        },
        responded: has(7).then_some(ended),
        ended: ended + time(21),
    };
    let settings = EndpointSettings {
        name: &name,
        fingerprint: 0,
        weight: 1,
        max_in_flight: None,
        tier: 0,
    };
    let state = EndpointState::new(EndpointId::new(0), &settings);
    let endpoint = LoggedEndpoint {
        id: state.id(),
        identity: state.identity(),
        state: &state,
    };
    let exchange = Exchange {
        figures: &figures,
        endpoint: has(2).then_some(endpoint),
        client: b"192.0.2.7",
        buf,
        head: has(4).then_some(&head),
        user: has(6).then(|| &buf[..buf.len().min(9)]),
        request_id: has(3).then(|| &buf[..buf.len().min(20)]),
        trace_id: has(3).then_some(&trace_id[..]),
        place: StreamPlace {
            connection: number(15) as u32,
            stream: number(16) as u32,
        },
        open: &|| Open {
            connections: 1,
            listener_connections: 1,
            ..Open::default()
        },
    };
    let parts: Vec<_> = LogField::ALL
        .iter()
        .map(|field| Part::Field(*field))
        .chain([Part::Header("x".into())])
        .flat_map(|part| [Part::Text("\"".into()), part, Part::Text("\"".into())])
        .collect();
    let count = parts.len() / 3 * 2;
    let formats = vec![
        AccessLogFormat::Json,
        AccessLogFormat::Combined,
        AccessLogFormat::Httplog,
        AccessLogFormat::Template(Template { parts }),
    ];
    let [json, combined, httplog, template] = lines(formats, names(), &exchange);
    check_json(&json, &exchange);
    check_quotes(&combined, 6);
    check_quotes(&httplog, 2);
    let fields = httplog.split('"').next().unwrap_or_default();
    assert_eq!(fields.split(' ').count(), 13, "{httplog}");
    check_quotes(&template, count);
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

/// A head whose parts are anywhere in the bytes, as no parser allows.
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
        path_span: span(5),
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

/// The lines of an exchange in four formats, without their ends.
fn lines(formats: Vec<AccessLogFormat>, names: Names, exchange: &Exchange<'_>) -> [String; 4] {
    let mut entries = Entries::default();
    for (log, format) in formats.iter().enumerate() {
        entries.push(log, format, exchange);
    }
    let batch = Batch {
        entries,
        layout: Arc::new(Layout {
            formats: formats.into(),
            names,
        }),
        clock: Clock::new(),
    };
    let mut out = Vec::new();
    LineMaker::default().write(&batch, &mut out);
    let is_plain = |byte: &u8| (0x20..0x7f).contains(byte) || *byte == b'\n';
    assert!(out.iter().all(is_plain), "{}", out.escape_ascii());
    let out = String::from_utf8_lossy(&out);
    let lines: Vec<_> = out.split_terminator('\n').map(str::to_owned).collect();
    assert!(out.ends_with('\n'));
    lines.try_into().expect("one line each")
}

fn check_quotes(line: &str, quotes: usize) {
    assert_eq!(line.matches('"').count(), quotes, "{line}");
}

/// Bytes decoded as UTF-8, with Latin-1 for invalid bytes.
fn letters(mut bytes: &[u8]) -> String {
    let mut letters = String::new();
    while !bytes.is_empty() {
        let (valid, rest) = match std::str::from_utf8(bytes) {
            Ok(all) => (all, &[][..]),
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                (std::str::from_utf8(valid).unwrap_or_default(), rest)
            }
        };
        letters += valid;
        letters.extend(rest.first().map(|&byte| char::from(byte)));
        bytes = rest.get(1..).unwrap_or_default();
    }
    letters
}

fn check_json(line: &str, exchange: &Exchange<'_>) {
    let figures = exchange.figures;
    let object: serde_json::Value = serde_json::from_str(line).expect("an object");
    if let Some(head) = exchange.head {
        for (key, span) in [
            ("method", head.method_span),
            ("host", head.host),
            ("target", head.target),
        ] {
            assert_eq!(object[key], letters(span.of(exchange.buf)), "{key}: {line}");
        }
    } else {
        let raw = Some(exchange.raw_line()).filter(|raw| !raw.is_empty());
        assert_eq!(
            object["raw"].as_str(),
            raw.map(letters).as_deref(),
            "{line}"
        );
    }
    assert_eq!(object["status"], figures.status, "{line}");
    assert_eq!(object["bytes_out"], figures.bytes_out, "{line}");
    assert_eq!(object["end"], figures.end.word(), "{line}");
    assert_eq!(
        object.get("route").is_some(),
        figures.route.is_some(),
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
