//! A call of gRPC, or of gRPC-Web: what becomes of it is in its status, whatever the status
//! of HTTP says.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use evenkeel_proto::grpc::{self, Dialect};
use evenkeel_proto::{RequestHead, ResponseHead};

/// A call, shared by its exchange and its stream.
#[derive(Debug)]
pub struct Call {
    /// What its client speaks.
    pub dialect: Dialect,
    /// How long it may take, by its client.
    pub timeout: Option<Duration>,
    status: Cell<Option<u32>>,
    /// What the endpoint says beside the status, as it came.
    message: RefCell<Vec<u8>>,
}

impl Call {
    /// The call of a request; `None` for one of something else.
    pub fn of(head: &RequestHead, bytes: &[u8]) -> Option<Self> {
        let value = |name: &[u8]| {
            let mut fields = head.fields.iter();
            let field = fields.find(|it| it.is_named(name, bytes))?;
            Some(field.value.of(bytes))
        };
        Some(Call {
            dialect: Dialect::of(value(b"content-type")?)?,
            timeout: value(b"grpc-timeout").and_then(grpc::timeout),
            status: Cell::new(None),
            message: RefCell::default(),
        })
    }

    /// The status, once it has come.
    pub fn status(&self) -> Option<u32> {
        self.status.get()
    }

    /// What the endpoint says beside the status.
    pub fn message(&self) -> Vec<u8> {
        self.message.borrow().clone()
    }

    /// The call is made once more.
    pub fn begin(&self) {
        self.status.set(None);
        self.message.borrow_mut().clear();
    }

    /// Looks at the head of the response: it has the status where nothing else follows.
    pub(super) fn note_head(&self, head: &ResponseHead, bytes: &[u8]) {
        let value = |name: &[u8]| {
            let mut fields = head.fields.iter();
            let field = fields.find(|it| it.is_named(name, bytes))?;
            Some(field.value.of(bytes))
        };
        self.note(value(b"grpc-status"), value(b"grpc-message"));
    }

    /// Looks at the trailers of the response.
    pub(super) fn note_trailers(&self, lines: &[u8]) {
        if self.status.get().is_none() {
            let value = |name| grpc::value_in_lines(lines, name);
            self.note(value(b"grpc-status"), value(b"grpc-message"));
        }
    }

    fn note(&self, status: Option<&[u8]>, message: Option<&[u8]>) {
        self.status.set(status.and_then(grpc::status));
        let kept = &mut *self.message.borrow_mut();
        kept.clear();
        kept.extend_from_slice(message.unwrap_or_default());
    }
}
