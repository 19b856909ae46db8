//! A probe by HTTP: a request, and its answer as far as that has to be read.
//!
//! The answer may be garbage, endless, or never come: at most 64 KiB of head and as much
//! of body are read.

use evenkeel_proto::http1::{BodyDecoder, Parsed, parse_odd_response, parse_response};
use evenkeel_proto::{BodyFraming, Method, ResponseError, ResponseHead};

use super::{Awaited, ProbeFailure, ReceivedExcerpt, read, send};
use crate::config::ProbeRequest;
use crate::net::stream::Stream;

/// Most that is read of a head, and of a body.
pub(super) const MAX_BYTES: usize = 64 * 1024;
pub(super) const USER_AGENT: &str = concat!("evenkeel-probe/", env!("CARGO_PKG_VERSION"));

/// The value of `Host`: a Unix socket has no name that could stand there.
pub(super) fn host(host: Option<&str>, port: Option<u16>, name: &str) -> String {
    if let Some(host) = host {
        return host.to_owned();
    }
    if name.starts_with("unix:") {
        return "localhost".to_owned();
    }
    match (port, name.rsplit_once(':')) {
        (Some(port), Some((host, _))) => format!("{host}:{port}"),
        _ => name.to_owned(),
    }
}

/// The request as sent.
fn request_bytes(request: &ProbeRequest, host: &str) -> Vec<u8> {
    let ProbeRequest { method, path, .. } = request;
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    let mut field = |name: &str, value: &str| {
        text.push_str(name);
        text.push_str(": ");
        text.push_str(value);
        text.push_str("\r\n");
    };
    let is_named = |name: &str| {
        let mut names = request.headers.iter().map(|(name, _)| name);
        names.any(|it| it.eq_ignore_ascii_case(name))
    };
    if !is_named("User-Agent") {
        field("User-Agent", USER_AGENT);
    }
    // RFC 9110 §8.6: without it an empty body looks forgotten.
    if ["POST", "PUT", "PATCH"].contains(&method.as_str()) {
        field("Content-Length", "0");
    }
    for (name, value) in &request.headers {
        field(name, value);
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// Asks, and looks at the answer as far as that takes. Returns its status.
pub(super) async fn ask(
    stream: &mut Stream,
    request: &ProbeRequest,
    host: &str,
) -> Result<u16, ProbeFailure> {
    // An answer may come even if not all was sent.
    let _ = send(stream, &request_bytes(request, host)).await;
    let mut buffer = Vec::new();
    let method = Method::from_token(request.method.as_bytes());
    let head = read_head(stream, &mut buffer, method).await?;
    if !request.expect.iter().any(|it| it.contains(&head.status)) {
        return Err(ProbeFailure::Status(head.status));
    }
    if let Some(wanted) = &request.body {
        buffer.drain(..head.wire.end);
        find_in_body(stream, buffer, head.wire.framing, wanted).await?;
    }
    Ok(head.status)
}

pub(super) fn closed() -> ProbeFailure {
    ProbeFailure::Closed {
        awaited: Awaited::Answer,
        came: ReceivedExcerpt::default(),
    }
}

/// Reads the head of the final response into `buffer`, with the first bytes of its body.
pub(super) async fn read_head(
    stream: &mut Stream,
    buffer: &mut Vec<u8>,
    method: Method,
) -> Result<ResponseHead, ProbeFailure> {
    let mut head = ResponseHead::default();
    // Interim responses count.
    let mut dropped = 0;
    loop {
        let parsed = if buffer.is_empty() {
            Parsed::Partial
        } else {
            parse(buffer, method, &mut head).map_err(ProbeFailure::Head)?
        };
        match parsed {
            Parsed::Complete if head.status == 101 => {
                return Err(ProbeFailure::Head(ResponseError::Upgrade));
            }
            Parsed::Complete if head.status < 200 => {
                dropped += head.wire.end;
                buffer.drain(..head.wire.end);
            }
            Parsed::Complete => return Ok(head),
            Parsed::Partial if dropped + buffer.len() >= MAX_BYTES => {
                return Err(ProbeFailure::Head(ResponseError::HeadTooLarge));
            }
            Parsed::Partial => match read(stream, buffer, MAX_BYTES - dropped).await {
                Ok(0) => return Err(closed()),
                Ok(_) => {}
                Err(error) => return Err(ProbeFailure::Broken(error)),
            },
        }
    }
}

/// Looks for a head at the front of `buffer`, and puts an odd one right. A probe takes the same
/// heads as an exchange.
fn parse(
    buffer: &mut Vec<u8>,
    method: Method,
    head: &mut ResponseHead,
) -> Result<Parsed, ResponseError> {
    if let Ok(parsed) = parse_response(buffer, method, head) {
        return Ok(parsed);
    }
    let mut restated = Vec::new();
    match parse_odd_response(buffer, method, head, &mut restated)? {
        Some(len) => {
            buffer.splice(..len, restated);
            Ok(Parsed::Complete)
        }
        None => Ok(Parsed::Partial),
    }
}

/// Reads the body, which begins with `input`, until `wanted` was found.
async fn find_in_body(
    stream: &mut Stream,
    mut input: Vec<u8>,
    framing: BodyFraming,
    wanted: &str,
) -> Result<(), ProbeFailure> {
    let mut decoder = BodyDecoder::new(framing);
    let mut content = Vec::new();
    let mut taken = 0;
    loop {
        input.truncate(MAX_BYTES - taken);
        let advance = decoder.strip(&mut input).map_err(ProbeFailure::Body)?;
        let start = content.len().saturating_sub(wanted.len());
        content.extend_from_slice(&input[..advance.kept]);
        if memchr::memmem::find(&content[start..], wanted.as_bytes()).is_some() {
            return Ok(());
        }
        input.drain(..advance.consumed);
        taken += advance.consumed;
        if decoder.is_done() || taken + input.len() >= MAX_BYTES {
            break;
        }
        match read(stream, &mut input, MAX_BYTES - taken).await {
            Ok(0) if matches!(framing, BodyFraming::UntilClose) => break,
            Ok(0) => return Err(closed()),
            Ok(_) => {}
            Err(error) => return Err(ProbeFailure::Broken(error)),
        }
    }
    Err(ProbeFailure::Content {
        wanted: wanted.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::net::tasks::Tasks;

    #[test]
    fn what_is_sent() {
        let mut request = ProbeRequest {
            method: "GET".into(),
            path: "/healthz".into(),
            host: None,
            headers: Vec::new(),
            expect: vec![200..=200],
            body: None,
        };
        let bytes = |request: &ProbeRequest, port, name: &str| {
            String::from_utf8(request_bytes(
                request,
                &host(request.host.as_deref(), port, name),
            ))
            .unwrap()
        };
        let agent = format!("User-Agent: {USER_AGENT}\r\n");
        assert_eq!(
            bytes(&request, None, "app:8080"),
            format!("GET /healthz HTTP/1.1\r\nHost: app:8080\r\nConnection: close\r\n{agent}\r\n")
        );
        for (port, name, host) in [
            (Some(81), "app:8080", "app:81"),
            (Some(81), "[::1]:8080", "[::1]:81"),
            (None, "unix:/run/app.sock", "localhost"),
        ] {
            let sent = bytes(&request, port, name);
            assert!(sent.contains(&format!("\r\nHost: {host}\r\n")), "{sent}");
        }
        request.method = "POST".into();
        request.host = Some("app.example".into());
        request.headers = vec![
            ("user-agent".into(), "mine".into()),
            ("X-A".into(), "b".into()),
        ];
        let sent = bytes(&request, Some(81), "app:8080");
        let fields = "Content-Length: 0\r\nuser-agent: mine\r\nX-A: b\r\n\r\n";
        assert!(
            sent.contains("Host: app.example\r\n") && sent.ends_with(fields),
            "{sent}"
        );
        assert!(!sent.contains(USER_AGENT), "{sent}");
    }

    #[test]
    fn content_is_found_across_two_reads() {
        let tasks = Tasks::of_this_thread().unwrap();
        let found = tasks.run_until(async {
            let (stream, mut other) = UnixStream::pair().unwrap();
            stream.set_nonblocking(true).unwrap();
            let mut stream = Stream::new(stream.into()).unwrap();
            other.write_all(b"ell").unwrap();
            drop(other);
            let begun = b"is it all w".to_vec();
            find_in_body(&mut stream, begun, BodyFraming::UntilClose, "all well").await
        });
        found.unwrap().unwrap();
    }
}
