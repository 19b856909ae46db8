//! Requests that no proxy may forward any further (`Max-Forwards: 0`).

use evenkeel_proto::{Method, RequestHead};

use super::AnswerStep;

/// The answer to such a request, as its final recipient (RFC 9110 §7.6.2).
pub(crate) struct LastHop {
    /// 200 to TRACE, 204 to OPTIONS.
    pub status: u16,
    /// The request itself, without secrets, as the answer to TRACE (§9.3.8).
    pub body: Vec<u8>,
}

impl LastHop {
    /// Type of the body.
    pub const CONTENT_TYPE: &str = "message/http";

    /// `None` where the request is handled normally.
    pub fn of(head: &RequestHead, bytes: &[u8]) -> Option<Self> {
        let is_last = head.hops_left(bytes) == Some(0);
        is_last.then(|| match head.method {
            Method::Trace => LastHop {
                status: 200,
                body: traced(head, bytes),
            },
            _ => LastHop {
                status: 204,
                body: Vec::new(),
            },
        })
    }

    /// The same, for `explain`.
    pub fn step(self) -> AnswerStep {
        AnswerStep {
            status: self.status,
            content_type: LastHop::CONTENT_TYPE.to_owned(),
            body_bytes: self.body.len(),
            file: None,
            headers: Vec::new(),
        }
    }
}

fn traced(head: &RequestHead, bytes: &[u8]) -> Vec<u8> {
    const SECRET: [&[u8]; 3] = [b"authorization", b"cookie", b"proxy-authorization"];
    let version = head.version.as_str().as_bytes();
    let mut traced = [head.line(bytes), b" ", version, b"\r\n"].concat();
    for field in &head.fields {
        if SECRET.iter().all(|name| !field.is_read_as(name, bytes)) {
            let (name, value) = (field.name.of(bytes), field.value.of(bytes));
            traced.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
        }
    }
    traced
}
