//! Probes by HTTP/2: the text of HTTP/1 goes over a stream of a connection that carries nothing
//! else.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use evenkeel_proto::http1::{ChunkedDecoder, Piece};
use evenkeel_proto::{BodyFraming, Method, ResponseHead, Scheme, grpc};

use super::{Answer, ProbeFailure, http, read, send};
use crate::config::ProbeRequest;
use crate::net::stream::Stream;
use crate::upstream::http2::{Fault, Http2Connection, Step, StreamRequest};

/// The status of a service that is well: `SERVING` of `HealthCheckResponse.ServingStatus`.
const SERVING: u64 = 1;

/// Asks, and looks at the answer as far as that takes. Returns its status.
pub(super) async fn ask(
    stream: &mut Stream,
    request: &ProbeRequest,
    host: &str,
) -> Result<u16, ProbeFailure> {
    // As `http` writes it for a request that usually has a body.
    let framing = match request.method.as_str() {
        "POST" | "PUT" | "PATCH" => BodyFraming::Length { bytes: 0 },
        _ => BodyFraming::None,
    };
    over_http2(stream, framing, async |stream| {
        http::ask(stream, request, host).await
    })
    .await
}

/// Asks `grpc.health.v1.Health` how a service is; the server as a whole where it is empty.
pub(super) async fn ask_grpc(
    stream: &mut Stream,
    service: &str,
    host: &str,
) -> Result<Answer, ProbeFailure> {
    let message = check_request(service);
    let framing = BodyFraming::Length {
        bytes: message.len() as u64,
    };
    over_http2(stream, framing, async |stream| {
        let head = format!(
            "POST /grpc.health.v1.Health/Check HTTP/1.1\r\nHost: {host}\r\n\
             Content-Type: application/grpc\r\nUser-Agent: {}\r\nContent-Length: {}\r\n\r\n",
            http::USER_AGENT,
            message.len()
        );
        let request = [head.as_bytes(), &message].concat();
        // An answer may come even if not all was sent.
        let _ = send(stream, &request).await;
        let mut buffer = Vec::new();
        let head = http::read_head(stream, &mut buffer, Method::Post).await?;
        if head.status != 200 {
            return Err(ProbeFailure::Status(head.status));
        }
        let mut fields = head.fields.iter();
        let field = fields.find(|it| it.is_named(b"grpc-status", &buffer));
        if let Some(field) = field {
            return Err(call_failed(grpc::status(field.value.of(&buffer))));
        }
        buffer.drain(..head.wire.end);
        let (content, trailers) = read_all(stream, buffer, &head).await?;
        match grpc::value_in_lines(&trailers, b"grpc-status").and_then(grpc::status) {
            Some(0) => {}
            status => return Err(call_failed(status)),
        }
        match serving_status(&content) {
            Some(SERVING) => Ok(Answer::Words("SERVING".to_owned())),
            status => Err(ProbeFailure::NotServing { status }),
        }
    })
    .await
}

/// Why a call that ended so brought no answer.
fn call_failed(status: Option<u32>) -> ProbeFailure {
    match status {
        Some(0) => ProbeFailure::NotServing { status: None },
        Some(status) => ProbeFailure::Grpc { status },
        None => ProbeFailure::Malformed("no grpc-status"),
    }
}

/// A `HealthCheckRequest` as a message of gRPC.
fn check_request(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        // Field 1, by its length, seven bits at a time.
        message.push(0x0a);
        let mut len = service.len();
        while len >= 0x80 {
            message.push((len & 0x7f) as u8 | 0x80);
            len >>= 7;
        }
        message.push(len as u8);
        message.extend_from_slice(service.as_bytes());
    }
    let mut framed = vec![0];
    framed.extend((message.len() as u32).to_be_bytes());
    framed.extend(message);
    framed
}

/// The status in a `HealthCheckResponse`, which is a message of gRPC. 0 where it has none.
fn serving_status(content: &[u8]) -> Option<u64> {
    let (head, message) = content.split_at_checked(5)?;
    let len = u32::from_be_bytes(head[1..].try_into().ok()?) as usize;
    if head[0] != 0 || message.len() != len {
        return None;
    }
    match message {
        [] => Some(0),
        // Field 1, as a number below 128.
        [0x08, status @ 0..0x80] => Some(u64::from(*status)),
        _ => None,
    }
}

/// Reads a body that begins with `input`: its content, and its trailers.
async fn read_all(
    stream: &mut Stream,
    mut input: Vec<u8>,
    head: &ResponseHead,
) -> Result<(Vec<u8>, Vec<u8>), ProbeFailure> {
    let mut decoder = ChunkedDecoder::default();
    let (mut content, mut at) = (Vec::new(), 0);
    if head.wire.framing != BodyFraming::Chunked {
        return Err(ProbeFailure::Malformed("no trailers"));
    }
    loop {
        match decoder.piece(&input[at..]).map_err(ProbeFailure::Body)? {
            Piece::Framing { len, .. } => at += len,
            Piece::Data { len } => {
                content.extend_from_slice(&input[at..at + len]);
                at += len;
            }
            Piece::End { len } => return Ok((content, input[at..at + len].to_vec())),
            Piece::NeedMore => match read(stream, &mut input, http::MAX_BYTES).await {
                Ok(0) => return Err(http::closed()),
                Ok(_) => {}
                Err(error) => return Err(ProbeFailure::Broken(error)),
            },
        }
    }
}

/// Does `work` with a stream over HTTP/2, on the connection `socket`.
async fn over_http2<T>(
    socket: &mut Stream,
    framing: BodyFraming,
    work: impl AsyncFnOnce(&mut Stream) -> Result<T, ProbeFailure>,
) -> Result<T, ProbeFailure> {
    let connection = Http2Connection::new(None, Duration::MAX);
    let scheme = if socket.is_encrypted() {
        Scheme::Https
    } else {
        Scheme::Http
    };
    let mut stream = connection.stream(StreamRequest {
        scheme,
        framing,
        call: None,
    });
    let begun = Instant::now();
    let done = {
        let mut work = pin!(work(&mut stream));
        poll_fn(|cx| {
            connection.register_driver(cx);
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            connection.flush(cx, socket);
            let now_ms = begun.elapsed().as_millis() as u64;
            if connection.take(cx, socket, now_ms) == Step::Yield {
                cx.waker().wake_by_ref();
            }
            connection.flush(cx, socket);
            Poll::Pending
        })
        .await
    };
    if done.is_ok() {
        connection.protocol.borrow_mut().shut_down();
        drop(stream);
        poll_fn(|cx| {
            connection.flush(cx, socket);
            Poll::Ready(())
        })
        .await;
    }
    match (done, connection.fault()) {
        (Err(_), Some(why)) => Err(ProbeFailure::Http2(why)),
        (Err(ProbeFailure::Broken(error)), None) => Err(match Fault::of(&error) {
            Some(Fault::Malformed(why)) => ProbeFailure::Head(why),
            Some(Fault::Untouched | Fault::Ended) => {
                ProbeFailure::Http2("it refuses the request (REFUSED_STREAM)")
            }
            Some(Fault::Cut(_)) => ProbeFailure::Broken(error),
            Some(Fault::Request(_)) | None => http::closed(),
        }),
        (done, _) => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_named() {
        assert_eq!(check_request(""), [0, 0, 0, 0, 0]);
        assert_eq!(check_request("ab"), *b"\0\0\0\0\x04\x0a\x02ab");
        let long = "x".repeat(200);
        let message = check_request(&long);
        assert_eq!(message[..8], *b"\0\0\0\0\xcb\x0a\xc8\x01");
        assert_eq!(message[8..], *long.as_bytes());
    }

    #[test]
    fn statuses_are_read() {
        assert_eq!(serving_status(b"\0\0\0\0\x02\x08\x01"), Some(1));
        assert_eq!(serving_status(b"\0\0\0\0\x02\x08\x02"), Some(2));
        assert_eq!(serving_status(b"\0\0\0\0\0"), Some(0));
        for odd in [&b""[..], b"\0\0", b"\x01\0\0\0\0", b"\0\0\0\0\x02\x08"] {
            assert_eq!(serving_status(odd), None);
        }
    }
}
