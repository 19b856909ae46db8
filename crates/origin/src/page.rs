//! The pages of an origin, and the answer for each path.

use std::time::Duration;

use crate::request::OriginRequest;

/// Length of the pattern block that large bodies repeat; a multiple of 26.
const BLOCK_LEN: usize = 26 * 2520;

/// The start of every generated body: the alphabet over and over.
pub(super) static BLOCK: [u8; BLOCK_LEN] = {
    let mut block = [0; BLOCK_LEN];
    let mut at = 0;
    while at < BLOCK_LEN {
        block[at] = b'a' + (at % 26) as u8;
        at += 1;
    }
    block
};

/// The byte at `position` of every body that an origin makes up (`/N`,
/// `/chunked/N`, `/drip/N/MS`, the payload pages): the alphabet over and over.
pub fn payload_byte(position: u64) -> u8 {
    b'a' + (position % 26) as u8
}

/// An answer: its status, fields beyond the framing, and body.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) fields: Vec<(&'static str, String)>,
    pub(super) body: Body,
}

impl Answer {
    pub(super) fn text(status: u16, text: impl Into<Vec<u8>>) -> Self {
        let fields = vec![("Content-Type", "text/plain".to_owned())];
        Answer {
            status,
            fields,
            body: Body::Text { data: text.into() },
        }
    }

    fn pattern(len: u64) -> Self {
        Answer {
            status: 200,
            fields: Vec::new(),
            body: Body::Pattern { len },
        }
    }
}

/// The body of an answer, and with it how its end is marked.
#[derive(Debug)]
pub(super) enum Body {
    /// No body and no length: 204, 304.
    None,
    /// Content-Length.
    Text { data: Vec<u8> },
    /// Content-Length; the alphabet.
    Pattern { len: u64 },
    /// Chunked, with trailers as lines that each end in CRLF.
    ChunkedText { data: Vec<u8>, trailers: Vec<u8> },
    /// Chunked, with a trailer; the alphabet.
    Chunked { len: u64 },
    /// Ended by closing the connection; the alphabet.
    UntilClose { len: u64 },
    /// Content-Length; one byte at a time.
    Drip { len: u64, every: Duration },
    /// Chunked server-sent events; endless without a count.
    Events { count: Option<u64>, every: Duration },
}

/// The page that a request asks for.
#[derive(Debug)]
pub(super) enum Page {
    /// An ordinary answer, once the request's body has been read.
    Answer { answer: Answer },
    /// `pong`, after its own service time.
    Slow { time: Duration },
    /// An informational answer before the final one.
    Interim { status: u16 },
    /// The request's own body.
    Echo,
    /// An answer before the request's body is read.
    Early,
    /// 101, then every byte back.
    Upgrade { protocol: String },
    /// The origin's counters.
    Stats,
}

/// Finds the page for a request.
pub(super) fn find(request: &OriginRequest) -> Page {
    let answer = |answer| Page::Answer { answer };
    let path = request.path();
    match path {
        "/ping" => return answer(Answer::text(200, "pong")),
        "/healthz" => return answer(Answer::text(200, "ok\n")),
        "/medium-payload" => return answer(Answer::pattern(20_000)),
        "/large-payload" => return answer(Answer::pattern(200_000)),
        "/custom-payload" => {
            return match request.query("size").map(str::parse) {
                Some(Ok(len)) => answer(Answer::pattern(len)),
                _ => answer(Answer::text(400, "expected ?size=N\n")),
            };
        }
        "/headers" => return answer(Answer::text(200, request.raw.clone())),
        "/close" => {
            let body = Body::UntilClose { len: 1000 };
            return answer(Answer {
                status: 200,
                fields: Vec::new(),
                body,
            });
        }
        "/echo" => return Page::Echo,
        "/early" => return Page::Early,
        "/origin/stats" => return Page::Stats,
        "/upgrade" => {
            return match &request.upgrade {
                Some(protocol) => Page::Upgrade {
                    protocol: protocol.clone(),
                },
                None => answer(Answer::text(426, "expected an Upgrade field\n")),
            };
        }
        _ => {}
    }
    let mut parts = path.trim_start_matches('/').split('/');
    let name = parts.next().unwrap_or_default();
    let numbers: Option<Vec<u64>> = parts.map(|part| part.parse().ok()).collect();
    numbered(name, numbers.as_deref())
        .unwrap_or_else(|| answer(Answer::text(404, "no such page\n")))
}

/// The pages whose path has numbers in it.
fn numbered(name: &str, numbers: Option<&[u64]>) -> Option<Page> {
    let page = match (name, numbers?) {
        ("chunked", &[len]) => streamed(Body::Chunked { len }, None),
        ("close", &[len]) => streamed(Body::UntilClose { len }, None),
        ("drip", &[len, ms]) => streamed(
            Body::Drip {
                len,
                every: Duration::from_millis(ms),
            },
            None,
        ),
        ("slow", &[ms]) => Page::Slow {
            time: Duration::from_millis(ms),
        },
        ("status", &[status]) => of_status(u16::try_from(status).ok()?)?,
        ("events", &[]) => events(None, 1000),
        ("events", &[count, ms]) => events(Some(count), ms),
        (len, &[]) => Page::Answer {
            answer: Answer::pattern(len.parse().ok()?),
        },
        _ => return None,
    };
    Some(page)
}

fn streamed(body: Body, content_type: Option<&str>) -> Page {
    let fields = content_type
        .map(|value| ("Content-Type", value.to_owned()))
        .into_iter()
        .collect();
    Page::Answer {
        answer: Answer {
            status: 200,
            fields,
            body,
        },
    }
}

fn events(count: Option<u64>, ms: u64) -> Page {
    let every = Duration::from_millis(ms);
    streamed(Body::Events { count, every }, Some("text/event-stream"))
}

fn of_status(status: u16) -> Option<Page> {
    match status {
        100 | 102 | 103 => Some(Page::Interim { status }),
        204 | 304 => {
            let fields = vec![("ETag", "\"1\"".to_owned())];
            Some(Page::Answer {
                answer: Answer {
                    status,
                    fields,
                    body: Body::None,
                },
            })
        }
        200..=599 => {
            let mut answer = Answer::text(status, format!("status {status}\n"));
            if (300..400).contains(&status) {
                answer.fields.push(("Location", "/ping".to_owned()));
            }
            Some(Page::Answer { answer })
        }
        _ => None,
    }
}

/// The reason phrase of a status.
pub(super) fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        102 => "Processing",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        304 => "Not Modified",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        426 => "Upgrade Required",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}
