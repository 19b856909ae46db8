//! A call of gRPC, or of gRPC-Web: its status tells the outcome, whatever the status of HTTP is.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use evenkeel_proto::grpc::{self, Dialect};
use evenkeel_proto::{FieldKind, RequestHead, ResponseHead, Span};

/// A call, shared by its exchange and its stream.
#[derive(Debug)]
pub struct Call {
    /// The dialect of its client.
    pub dialect: Dialect,
    /// The time that its client allows.
    pub timeout: Option<Duration>,
    /// Whether the endpoint has answered in gRPC.
    is_answered: Cell<bool>,
    status: Cell<Option<u32>>,
    /// The endpoint's message beside the status, as it came.
    message: RefCell<Vec<u8>>,
    /// Further fields of a response that is nothing but its status.
    further: RefCell<Vec<(String, String)>>,
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
            is_answered: Cell::new(false),
            status: Cell::new(None),
            message: RefCell::default(),
            further: RefCell::default(),
        })
    }

    /// The status, once it has come.
    pub fn status(&self) -> Option<u32> {
        self.status.get()
    }

    /// The endpoint's message beside the status.
    pub fn message(&self) -> Vec<u8> {
        self.message.borrow().clone()
    }

    /// Fields that came with a status and nothing else, such as its details.
    pub fn further(&self) -> Vec<(String, String)> {
        self.further.borrow().clone()
    }

    /// The call is made once more.
    pub fn begin(&self) {
        self.status.set(None);
        self.further.borrow_mut().clear();
        self.message.borrow_mut().clear();
    }

    /// Whether the endpoint has answered in gRPC, and not as a server without gRPC.
    pub fn is_answered(&self) -> bool {
        self.is_answered.get()
    }

    /// Looks at the head of the response: it has the status where it `is_whole`.
    pub(super) fn note_head(&self, head: &ResponseHead, bytes: &[u8], is_whole: bool) {
        let value = |name: &[u8]| {
            let mut fields = head.fields.iter();
            let field = fields.find(|it| it.is_named(name, bytes))?;
            Some(field.value.of(bytes))
        };
        let content_type = value(b"content-type").and_then(Dialect::of);
        self.is_answered.set(content_type == Some(Dialect::Grpc));
        if is_whole {
            self.note(value(b"grpc-status"), value(b"grpc-message"));
            let text = |span: Span| String::from_utf8_lossy(span.of(bytes)).into_owned();
            let further = head.fields.iter().filter(|it| {
                let is_own = [
                    &b"content-type"[..],
                    b"server",
                    b"grpc-status",
                    b"grpc-message",
                ]
                .iter()
                .any(|name| it.is_named(name, bytes));
                it.kind == FieldKind::Other && !is_own
            });
            let further = further.map(|it| (text(it.name), text(it.value)));
            self.further.replace(further.collect());
        }
    }

    /// Looks at the trailers of the response: a status there counts more than one in its head.
    pub(super) fn note_trailers(&self, lines: &[u8]) {
        let value = |name| grpc::value_in_lines(lines, name);
        if let Some(status) = value(b"grpc-status") {
            self.note(Some(status), value(b"grpc-message"));
        }
    }

    fn note(&self, status: Option<&[u8]>, message: Option<&[u8]>) {
        self.status.set(status.and_then(grpc::status));
        let kept = &mut *self.message.borrow_mut();
        kept.clear();
        kept.extend_from_slice(message.unwrap_or_default());
    }
}
