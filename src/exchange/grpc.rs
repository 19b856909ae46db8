//! gRPC calls: their deadlines, their status, and our own answers to gRPC clients.

use std::rc::Rc;

use evenkeel_proto::grpc::{self, Dialect};
use evenkeel_proto::http1::write::Persistence;
use evenkeel_proto::http2::ErrorCode;

use super::Exchange;
use super::answer::{Answer, send};
use crate::config::EndpointProtocol;
use crate::metrics::end::{End, Failure};
use crate::net::clock;
use crate::observe::access_log::GrpcStatus;
use crate::upstream::Upstream;
use crate::upstream::http2::Call;

impl Exchange<'_> {
    /// The gRPC call, to an endpoint that speaks HTTP/2.
    pub(super) fn call(&self) -> Option<&Rc<Call>> {
        self.rare.as_ref()?.call.as_ref()
    }

    /// Notes the request if it is a gRPC call. Its total time is then at most the client's
    /// timeout.
    pub(super) fn note_call(&mut self, upstream: &Upstream) {
        if upstream.config().protocol == EndpointProtocol::Http1 {
            return;
        }
        let Some(call) = Call::of(self.head, self.bytes) else {
            return;
        };
        if let Some(timeout) = call.timeout {
            let deadline = self.context.wheel.deadline(timeout);
            self.total_deadline = self.total_deadline.min(deadline);
        }
        self.rare().call = Some(Rc::new(call));
    }

    /// Whether the client's timeout is over. The endpoint knows it too, and may have ended the
    /// call for it.
    fn is_late(&self) -> bool {
        let timeout = self.call().and_then(|it| it.timeout);
        timeout.is_some_and(|it| clock::since(self.progress.arrived()) >= it)
    }

    /// The error code for a cut response. gRPC clients take `INTERNAL_ERROR` for a server's
    /// fault, and `CANCEL` after their deadline for a timeout.
    pub(crate) fn cut_code(&self) -> ErrorCode {
        if self.is_late() {
            ErrorCode::Cancel
        } else {
            ErrorCode::Internal
        }
    }

    /// The client's gRPC dialect, by the request's head; `None` for other clients.
    fn dialect(&self) -> Option<Dialect> {
        let head = self.head_read()?;
        let mut fields = head.fields.iter();
        let field = fields.find(|it| it.is_named(b"content-type", self.bytes))?;
        Dialect::of(field.value.of(self.bytes))
    }

    /// Answers a gRPC client with a gRPC status. `None` for any other client.
    pub(super) async fn answer_call(
        &mut self,
        end: End,
        status: u16,
        text: &str,
        persistence: Persistence,
    ) -> Option<Result<(), Failure>> {
        let dialect = self.dialect()?;
        let status = if self.is_late() {
            grpc::DEADLINE_EXCEEDED
        } else {
            status_of(end, status)
        };
        let mut message = Vec::new();
        grpc::push_message(&mut message, text);
        Some(
            self.send_status(dialect, status, &message, Vec::new(), persistence)
                .await,
        )
    }

    /// Sends the client the status of its call, after an endpoint gave one that was to be
    /// retried.
    pub(super) async fn answer_refused_call(
        &mut self,
        persistence: Persistence,
    ) -> Option<Result<(), Failure>> {
        let call = self.call()?.clone();
        let status = call.status()?;
        let message = call.message();
        let further = call.further();
        let sent = self.send_status(call.dialect, status, &message, further, persistence);
        Some(sent.await)
    }

    async fn send_status(
        &mut self,
        dialect: Dialect,
        status: u32,
        message: &[u8],
        mut headers: Vec<(String, String)>,
        persistence: Persistence,
    ) -> Result<(), Failure> {
        self.progress.figures.grpc = GrpcStatus::of(status);
        headers.push(("grpc-status".to_owned(), status.to_string()));
        if !message.is_empty() {
            let message = String::from_utf8_lossy(message).into_owned();
            headers.push(("grpc-message".to_owned(), message));
        }
        let answer = Answer {
            status: 200,
            content_type: str::from_utf8(dialect.name()).unwrap_or_default(),
            headers: &headers,
            ..Answer::EMPTY
        };
        send(self, &answer, persistence).await
    }
}

/// The status of our own answer.
fn status_of(end: End, status: u16) -> u32 {
    use Failure::{BodyTimeout, FirstByteTimeout, TotalTimeout, UpstreamStalled};
    match end {
        End::Failure(TotalTimeout | FirstByteTimeout | UpstreamStalled | BodyTimeout) => {
            grpc::DEADLINE_EXCEEDED
        }
        _ => grpc::of_http(status),
    }
}
