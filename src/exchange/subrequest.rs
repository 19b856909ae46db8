//! The client's side of a request that another exchange makes for itself. It keeps the endpoint's
//! response, or drops that of a copy.
//!
//! Otherwise the exchange is like any other: it has a slot, waits in the queue, is retried and
//! has timeouts. It ends when its maker drops it.

use std::cell::RefCell;
use std::io;
use std::task::{Context as TaskContext, Poll};

use evenkeel_cache::Response;
use evenkeel_cache::object::StoredHead;
use evenkeel_proto::ResponseHead;

use crate::net::pipe::Pipe;
use crate::net::stream::Follow;

/// The side of an exchange whose response is kept or dropped.
#[derive(Debug)]
pub struct Subrequest {
    fate: Fate,
    /// The last head.
    head: RefCell<Option<KeptHead>>,
    body: Vec<u8>,
    /// Whether the body was longer than permitted.
    is_over: bool,
}

/// The fate of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Keep it, with a body of at most this many bytes.
    Kept { most: usize },
    /// Read and drop it, as the request is a copy.
    Dropped,
}

/// The head of a kept response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptHead {
    /// Status code.
    pub status: u16,
    /// Reason phrase.
    pub reason: Box<[u8]>,
    /// Its field lines with their ends, except fields of the connection and of the length.
    pub lines: Vec<u8>,
}

impl KeptHead {
    /// The values of the fields of this name, in order.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let lines = self.lines.split(|&byte| byte == b'\n');
        lines.filter_map(move |line| {
            let (own, value) = line.split_at_checked(name.len())?;
            let value = value.strip_prefix(b": ")?;
            own.eq_ignore_ascii_case(name.as_bytes())
                .then(|| value.trim_ascii())
        })
    }
}

/// A kept response.
#[derive(Debug)]
pub struct KeptResponse {
    /// Its head.
    pub head: KeptHead,
    /// Its body.
    pub body: Vec<u8>,
}

impl Subrequest {
    /// For a request whose response may have a body of this many bytes.
    pub fn new(most: usize) -> Self {
        Self::with(Fate::Kept { most })
    }

    /// For a copy of a request: its response is read and dropped.
    pub fn copy() -> Self {
        Self::with(Fate::Dropped)
    }

    fn with(fate: Fate) -> Self {
        Subrequest {
            fate,
            head: RefCell::default(),
            body: Vec::new(),
            is_over: false,
        }
    }

    /// Whether the request is a copy of another one.
    pub(super) fn is_copy(&self) -> bool {
        self.fate == Fate::Dropped
    }

    /// The response, once the exchange has ended; `None` without a whole one.
    pub fn response(self) -> Option<KeptResponse> {
        let head = self.head.into_inner().filter(|_| !self.is_over)?;
        Some(KeptResponse {
            head,
            body: self.body,
        })
    }

    /// Takes a head at the front of `bytes`. It replaces an earlier head.
    pub(super) fn take_head(&self, bytes: &[u8], head: &ResponseHead) {
        if self.is_copy() {
            return;
        }
        let kept = StoredHead::passing(&Response { head, bytes });
        self.head.replace(Some(KeptHead {
            status: head.status,
            reason: kept.reason().into(),
            lines: kept.lines().to_vec(),
        }));
    }

    /// Takes a part of the body.
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.fate {
            Fate::Dropped => {}
            Fate::Kept { most } if self.body.len() + bytes.len() > most => {
                self.is_over = true;
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            Fate::Kept { .. } => self.body.extend_from_slice(bytes),
        }
        Ok(bytes.len())
    }
}

/// The methods of a carrier: see `Carrier`. The whole request is there from the start.
impl Subrequest {
    pub(super) fn can_splice(&self) -> bool {
        false
    }

    pub(super) fn poll_read_ready(&self, _: &TaskContext<'_>) -> Poll<()> {
        Poll::Pending
    }

    pub(super) fn poll_read(&self, _: &TaskContext<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(0))
    }

    pub(super) fn poll_read_into(
        &self,
        _: &TaskContext<'_>,
        _: &mut Pipe,
        _: u64,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    pub(super) fn poll_write_ready(&self, _: &TaskContext<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    pub(super) fn poll_write(
        &mut self,
        _: &TaskContext<'_>,
        bytes: &[u8],
        _: Follow,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(self.append(bytes))
    }

    pub(super) fn try_write(&mut self, bytes: &[u8], _: Follow) -> Option<io::Result<usize>> {
        Some(self.append(bytes))
    }

    pub(super) fn poll_write_from(
        &self,
        _: &TaskContext<'_>,
        _: &mut Pipe,
        _: Follow,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    pub(super) fn close_notify(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_fields() {
        let head = KeptHead {
            lines: b"Remote-User: kim \r\nremote-groups: a\r\nRemote-User-Id: 7\r\nRemote-Groups: b\r\nX:\r\n".to_vec(),
            ..KeptHead::default()
        };
        let values = |name| head.values(name).collect::<Vec<_>>();
        assert_eq!(values("remote-user"), [b"kim"]);
        assert_eq!(values("Remote-Groups"), [b"a", b"b"]);
        assert!(values("Remote").is_empty());
        assert!(values("X-Other").is_empty());
    }

    #[test]
    fn a_body_that_is_too_long_is_no_response() {
        let mut side = Subrequest::new(3);
        side.head.replace(Some(KeptHead::default()));
        assert!(side.append(b"abc").is_ok());
        assert!(side.append(b"d").is_err());
        assert!(side.response().is_none());
    }
}
