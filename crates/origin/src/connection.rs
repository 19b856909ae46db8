//! One connection to an origin: requests in, answers out, faults on the way.
//!
//! A request's way: head, body, slot, service time, fault, answer. While it
//! waits, the connection is read, so that a sender that leaves is noticed at
//! once; like a real server, the origin works on regardless.

mod answering;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Shared;
use crate::body::{BodyReader, Framing};
use crate::page::{self, Answer, Body, Page};
use crate::request::{OriginRequest, take_head};
use crate::stream::{OriginStream, Socket};

/// A body up to this length is echoed once it has all arrived, so that
/// clients that send everything before they read do not block.
const ECHO_BUFFERED_MAX: usize = 16 << 20;
/// How much of the following requests is read ahead while one waits.
const READ_AHEAD_MAX: usize = 64 << 10;
const READ_LEN: usize = 64 << 10;

/// A connection with the bytes that were read ahead.
pub(super) struct Connection {
    stream: OriginStream,
    input: Vec<u8>,
    output: Vec<u8>,
    shared: Rc<Shared>,
    /// The sender has closed its side or broken the connection.
    client_gone: bool,
    /// While a request counts as in flight.
    in_flight: Option<InFlight>,
}

/// A request in flight, for as long as this lives.
struct InFlight(Rc<Shared>);

impl InFlight {
    fn new(shared: &Rc<Shared>) -> Self {
        shared.counters.request_begins();
        InFlight(Rc::clone(shared))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.counters.request_ends();
    }
}

/// The fate of the connection after an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Request,
    Close,
    Reset,
}

/// The fault that a request gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Fail,
    Reset,
    Cut,
    Garbage,
    Stall,
}

impl Connection {
    pub(super) fn new(socket: Socket, shared: Rc<Shared>) -> Self {
        let (input, output) = (Vec::with_capacity(4096), Vec::with_capacity(4096));
        Connection {
            stream: OriginStream::new(socket, Rc::clone(&shared)),
            input,
            output,
            shared,
            client_gone: false,
            in_flight: None,
        }
    }

    /// Serves requests until either side closes.
    pub(super) async fn run(mut self) {
        let shared = Rc::clone(&self.shared);
        let _open = shared.counters.connection_opens();
        loop {
            match self.exchange().await {
                Ok(Next::Request) => {}
                Ok(Next::Close) => {
                    self.close().await;
                    return;
                }
                Ok(Next::Reset) => return self.stream.reset(),
                Err(_) => return,
            }
        }
    }

    /// Closes after the last answer: announces the end, then reads the remaining input. Closing
    /// with unread input would reset the answer just sent.
    async fn close(&mut self) {
        const LINGER: Duration = Duration::from_secs(1);
        if self.stream.shutdown().await.is_err() {
            return;
        }
        let drained = async {
            while self.fill().await.is_ok_and(|len| len > 0) {
                self.input.clear();
            }
        };
        let _ = tokio::time::timeout(LINGER, drained).await;
    }

    async fn exchange(&mut self) -> io::Result<Next> {
        let Some(request) = self.read_head().await? else {
            return Ok(Next::Close);
        };
        let shared = Rc::clone(&self.shared);
        let wanted = page::find(&request);
        if matches!(wanted, Page::Stats) {
            return self.show_stats(&request).await;
        }
        shared.counters.requests.fetch_add(1, Relaxed);
        // An answer that is given at once overlaps with none.
        if shared.options.service.is_some() {
            self.hear_who_left().await;
        }
        if !self.client_gone {
            self.in_flight = Some(InFlight::new(&shared));
        }
        let result = self.serve(&request, wanted).await;
        if result.is_err() {
            self.note_client_gone();
        }
        self.in_flight = None;
        result
    }

    async fn serve(&mut self, request: &OriginRequest, wanted: Page) -> io::Result<Next> {
        let shared = Rc::clone(&self.shared);
        let mut body = BodyReader::new(request.framing);
        let mut data = Vec::new();
        if !matches!(wanted, Page::Early) {
            let keep = if matches!(wanted, Page::Echo) {
                ECHO_BUFFERED_MAX
            } else {
                0
            };
            self.read_body(request, &mut body, &mut data, keep).await?;
        }
        let _slot = if shared.service.is_limited() {
            self.watching(shared.service.slot()).await
        } else {
            None
        };
        let fault = self.draw_fault();
        let time = match (fault, shared.options.fail_fast, &wanted) {
            (Fault::Fail, Some(time), _) => time,
            (_, _, Page::Slow { time }) => shared.service.time(Some(*time)),
            _ => shared.service.time(None),
        };
        if !time.is_zero() {
            self.watching(shared.service.spend(time)).await;
        }
        match fault {
            Fault::None | Fault::Cut => self.show(request, wanted, body, data, fault).await,
            Fault::Fail => {
                self.answer(request, Answer::text(500, "asked to fail\n"), Fault::None)
                    .await
            }
            Fault::Reset => Ok(Next::Reset),
            Fault::Garbage => {
                self.stream
                    .write_all(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
                    .await?;
                Ok(Next::Close)
            }
            Fault::Stall => {
                while !self.client_gone {
                    self.input.clear();
                    if !matches!(self.fill().await, Ok(1..)) {
                        self.note_client_gone();
                    }
                }
                Ok(Next::Close)
            }
        }
    }

    /// Sends the page that was asked for.
    async fn show(
        &mut self,
        request: &OriginRequest,
        wanted: Page,
        mut body: BodyReader,
        data: Vec<u8>,
        fault: Fault,
    ) -> io::Result<Next> {
        match wanted {
            Page::Answer { answer } => self.answer(request, answer, fault).await,
            Page::Slow { .. } => self.answer(request, Answer::text(200, "pong"), fault).await,
            Page::Interim { status } => {
                let reason = page::reason(status);
                let head = format!("HTTP/1.1 {status} {reason}\r\nX-Interim: yes\r\n\r\n");
                self.stream.write_all(head.as_bytes()).await?;
                self.answer(request, Answer::text(200, "pong"), fault).await
            }
            Page::Early => {
                let next = self
                    .answer(request, Answer::text(200, "early"), fault)
                    .await?;
                self.read_body(request, &mut body, &mut Vec::new(), 0)
                    .await?;
                Ok(next)
            }
            Page::Echo if body.is_done() => {
                let body = match request.framing {
                    Framing::Chunked => Body::ChunkedText {
                        data,
                        trailers: body.trailers,
                    },
                    Framing::Length { .. } => Body::Text { data },
                };
                self.answer(request, echo_answer(request, body), fault)
                    .await
            }
            Page::Echo => self.echo_stream(request, body, data).await,
            Page::Upgrade { protocol } => self.tunnel(&protocol).await,
            Page::Stats => Ok(Next::Close),
        }
    }

    async fn show_stats(&mut self, request: &OriginRequest) -> io::Result<Next> {
        let stats = self.shared.counters.snapshot(&self.shared.options.name);
        let json = serde_json::to_vec(&stats).map_err(io::Error::other)?;
        let mut answer = Answer::text(200, json);
        answer.fields = vec![("Content-Type", "application/json".to_owned())];
        self.answer(request, answer, Fault::None).await
    }

    fn draw_fault(&self) -> Fault {
        let options = &self.shared.options;
        if self.shared.started.elapsed() < options.fail_after {
            return Fault::None;
        }
        let fault = [
            (options.fail_rate, Fault::Fail),
            (options.reset_rate, Fault::Reset),
            (options.cut_rate, Fault::Cut),
            (options.garbage_rate, Fault::Garbage),
            (options.stall_rate, Fault::Stall),
        ]
        .into_iter()
        .find(|&(rate, _)| self.shared.service.happens(rate));
        let Some((_, fault)) = fault else {
            return Fault::None;
        };
        self.shared.counters.faults.fetch_add(1, Relaxed);
        fault
    }

    fn note_client_gone(&mut self) {
        if !self.client_gone {
            self.client_gone = true;
            self.shared.counters.aborted.fetch_add(1, Relaxed);
            // The rest of the work for it does not count as in flight.
            self.in_flight = None;
        }
    }

    // Reading.

    async fn fill(&mut self) -> io::Result<usize> {
        self.input
            .reserve(READ_LEN.min(4096.max(self.input.capacity() * 2)));
        self.stream.read_buf(&mut self.input).await
    }

    /// Counts out connections that ended before this request came, and notes whether the
    /// request's own sender has left.
    ///
    /// Invariant: every exchange that counts as in flight here is in flight at the sender too.
    /// This number checks that a proxy keeps its limit.
    async fn hear_who_left(&mut self) {
        tokio::task::yield_now().await;
        tokio::select! {
            biased;
            filled = self.fill() => {
                if !matches!(filled, Ok(1..)) {
                    self.note_client_gone();
                }
            }
            () = std::future::ready(()) => {}
        }
    }

    /// The next request's head. `None` after the sender's last request, or after bytes that are
    /// not HTTP (which are answered 400).
    async fn read_head(&mut self) -> io::Result<Option<OriginRequest>> {
        loop {
            if !self.input.is_empty() {
                match take_head(&mut self.input) {
                    Ok(Some(request)) => return Ok(Some(request)),
                    Ok(None) => {}
                    Err(_) => {
                        self.stream
                            .write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
                            .await?;
                        return Ok(None);
                    }
                }
            }
            if self.client_gone || self.fill().await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Reads the request's body; what exceeds `keep` bytes is either dropped
    /// (`keep` of 0) or left for later.
    async fn read_body(
        &mut self,
        request: &OriginRequest,
        body: &mut BodyReader,
        data: &mut Vec<u8>,
        keep: usize,
    ) -> io::Result<()> {
        if request.expects_continue && !body.is_done() && self.input.is_empty() {
            self.stream
                .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
                .await?;
        }
        loop {
            self.take_body(body, data)?;
            if keep == 0 {
                data.clear();
            }
            if body.is_done() || (keep > 0 && data.len() >= keep) {
                return Ok(());
            }
            if self.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn take_body(&mut self, body: &mut BodyReader, data: &mut Vec<u8>) -> io::Result<()> {
        body.take(&mut self.input, data)
            .map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Waits for `future` and meanwhile reads ahead, to notice at once when
    /// the sender leaves.
    async fn watching<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        while !self.client_gone && self.input.len() < READ_AHEAD_MAX {
            tokio::select! {
                biased;
                output = &mut future => return output,
                filled = self.fill() => {
                    if !matches!(filled, Ok(1..)) {
                        self.note_client_gone();
                    }
                }
            }
        }
        future.await
    }

    // Writing.
}

fn echo_answer(request: &OriginRequest, body: Body) -> Answer {
    let fields = request
        .content_type
        .iter()
        .map(|content_type| ("Content-Type", content_type.clone()))
        .collect();
    Answer {
        status: 200,
        fields,
        body,
    }
}
