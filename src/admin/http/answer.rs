//! Answers of the status listener: their bodies, and the fields that all of
//! them carry.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

pub(super) type Answer = Response<AnswerBody>;

/// Length of the pieces in which an answer is sent, in bytes. hyper puts up to sixteen of them
/// into one call.
const PIECE_LEN: usize = 16 * 1024;

/// Text, or messages as they happen.
pub(super) enum AnswerBody {
    /// The rest of the text; `None` once all was taken.
    Whole(Option<Bytes>),
    /// Written while it is sent.
    Pieces {
        pieces: mpsc::Receiver<Piece>,
        /// The rest of the last piece.
        rest: Option<Bytes>,
        _place: OwnedSemaphorePermit,
    },
    /// Messages, until the sender is dropped.
    Messages(mpsc::Receiver<Bytes>),
}

/// A part of an answer that is written while it is sent.
pub(super) enum Piece {
    /// The next bytes.
    Bytes(Bytes),
    /// The answer is complete.
    End,
}

/// The writer has ended without an end mark, for example after a panic.
#[derive(Debug)]
pub(super) struct CutOff;

impl fmt::Display for CutOff {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the answer was cut off")
    }
}

impl std::error::Error for CutOff {}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let frame = |bytes: Option<Bytes>| bytes.map(|bytes| Ok(Frame::data(bytes)));
        match self.get_mut() {
            AnswerBody::Whole(rest) => Poll::Ready(frame(next_piece(rest))),
            AnswerBody::Pieces { pieces, rest, .. } => {
                if rest.is_none() {
                    match ready!(pieces.poll_recv(cx)) {
                        Some(Piece::Bytes(bytes)) => *rest = Some(bytes),
                        Some(Piece::End) => return Poll::Ready(None),
                        // hyper closes the connection without the last chunk.
                        None => return Poll::Ready(Some(Err(CutOff))),
                    }
                }
                Poll::Ready(frame(next_piece(rest)))
            }
            AnswerBody::Messages(messages) => messages.poll_recv(cx).map(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, AnswerBody::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |it| it.len() as u64))
            }
            AnswerBody::Pieces { .. } | AnswerBody::Messages(_) => SizeHint::default(),
        }
    }
}

/// Takes the next piece of an answer. Many kernels let no other thread have the core while they
/// copy the bytes of one call.
fn next_piece(rest: &mut Option<Bytes>) -> Option<Bytes> {
    match rest {
        Some(bytes) if bytes.len() > PIECE_LEN => Some(bytes.split_to(PIECE_LEN)),
        _ => rest.take(),
    }
}

/// Fields that let a browser only show the answer. The page has its own content policy.
const FIELDS: [(HeaderName, &str); 6] = [
    (CACHE_CONTROL, "no-store"),
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

pub(super) fn answer(status: StatusCode, content_type: &'static str, body: AnswerBody) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let fields = answer.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in FIELDS {
        fields.insert(name, HeaderValue::from_static(value));
    }
    answer
}

pub(super) fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Answer {
    answer(status, content_type, AnswerBody::Whole(Some(body.into())))
}

/// Bytes that hold a place until the last of them is sent.
struct Placed {
    bytes: Vec<u8>,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Placed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// An answer that holds a place until it is sent or its connection ends.
pub(super) fn with_place(
    place: OwnedSemaphorePermit,
    content_type: &'static str,
    bytes: Vec<u8>,
) -> Answer {
    let placed = Placed {
        bytes,
        _place: place,
    };
    with_type(StatusCode::OK, content_type, Bytes::from_owner(placed))
}

/// The same for an answer that is written while it is sent: until its last piece is taken.
///
/// Invariant: the client sees the end of the answer only after [`Piece::End`].
pub(super) fn in_pieces(
    place: OwnedSemaphorePermit,
    content_type: &'static str,
    pieces: mpsc::Receiver<Piece>,
) -> Answer {
    let body = AnswerBody::Pieces {
        pieces,
        rest: None,
        _place: place,
    };
    answer(StatusCode::OK, content_type, body)
}

/// Hands all pieces of an answer to the sender, and then the end mark. Waits while enough pieces
/// are in transit.
pub(super) fn hand_over(pieces: impl Iterator<Item = Vec<u8>>, to: &mpsc::Sender<Piece>) {
    let pieces = pieces.map(|piece| Piece::Bytes(piece.into()));
    for piece in pieces.chain([Piece::End]) {
        // An error means that the client has left.
        if to.blocking_send(piece).is_err() {
            return;
        }
    }
}

pub(super) fn text(status: StatusCode, body: impl Into<String>) -> Answer {
    with_type(status, "text/plain; charset=utf-8", body.into())
}

pub(super) fn json(body: impl Into<Bytes>) -> Answer {
    with_type(StatusCode::OK, "application/json", body)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::thread;

    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Semaphore;

    use super::*;

    /// The answer with these pieces, as a client receives it.
    async fn sent(pieces: impl Iterator<Item = Vec<u8>> + Send + 'static) -> String {
        let (near, mut far) = tokio::io::duplex(64 * 1024);
        let (sender, receiver) = mpsc::channel(4);
        let writer = thread::spawn(move || hand_over(pieces, &sender));
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let answer = std::cell::Cell::new(Some(in_pieces(place, "text/plain", receiver)));
        let service = service_fn(|_| {
            let answer = answer.take().expect("one request");
            async move { Ok::<_, Infallible>(answer) }
        });
        let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        far.write_all(request).await.unwrap();
        let served = http1::Builder::new().serve_connection(TokioIo::new(near), service);
        let mut got = Vec::new();
        let (_, read) = tokio::join!(served, far.read_to_end(&mut got));
        read.unwrap();
        // A panic of the writer is the subject of some tests.
        let _ = writer.join();
        String::from_utf8(got).unwrap()
    }

    const LAST_CHUNK: &str = "0\r\n\r\n";

    #[tokio::test]
    async fn an_answer_in_pieces_has_an_end() {
        let got = sent(["one", "two"].into_iter().map(Into::into)).await;
        assert!(got.contains("one") && got.contains("two"), "{got}");
        assert!(got.ends_with(LAST_CHUNK), "{got}");
    }

    #[tokio::test]
    async fn an_answer_whose_writer_panics_has_none() {
        let pieces = (0..).map(|at| match at {
            0 => b"one".to_vec(),
            _ => panic!("this is a test"),
        });
        let got = sent(pieces).await;
        assert!(got.contains("one"), "{got}");
        assert!(!got.ends_with(LAST_CHUNK), "{got}");
    }
}
