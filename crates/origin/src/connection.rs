//! One connection to an origin: requests in, answers out, faults on the way.
//!
//! A request's way: head, body, slot, service time, fault, answer. While it
//! waits, the connection is read, so that a sender that leaves is noticed at
//! once; like a real server, the origin works on regardless.

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
use crate::request::{Request, take_head};
use crate::stream::{OriginStream, Socket};

/// A body up to this length is echoed once it has all arrived, so that
/// clients that send everything before they read do not block.
const ECHO_BUFFERED_MAX: usize = 16 << 20;
/// How much of the following requests is read ahead while one waits.
const READ_AHEAD_MAX: usize = 64 << 10;
const READ_LEN: usize = 64 << 10;

/// A connection with what has been read of it.
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

/// What becomes of the connection after an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Request,
    Close,
    Reset,
}

/// What goes wrong with a request.
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

    /// Closes after the last answer: says so, then reads what is under way,
    /// since closing with unread input would reset what was just sent.
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
        self.in_flight = Some(InFlight::new(&shared));
        let result = self.serve(&request, wanted).await;
        if result.is_err() {
            self.note_client_gone();
        }
        self.in_flight = None;
        result
    }

    async fn serve(&mut self, request: &Request, wanted: Page) -> io::Result<Next> {
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
        let _slot = match shared.service.is_limited() {
            true => self.watching(shared.service.slot()).await,
            false => None,
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
        request: &Request,
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

    async fn show_stats(&mut self, request: &Request) -> io::Result<Next> {
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
            // What is still done for it is not in flight any more.
            self.in_flight = None;
        }
    }

    // Reading.

    async fn fill(&mut self) -> io::Result<usize> {
        self.input
            .reserve(READ_LEN.min(4096.max(self.input.capacity() * 2)));
        self.stream.read_buf(&mut self.input).await
    }

    /// The next request's head; `None` once the sender has no more, or sends
    /// what is not HTTP (which is answered 400).
    async fn read_head(&mut self) -> io::Result<Option<Request>> {
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
        request: &Request,
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

    /// Writes an answer whose body is ready or made up here.
    async fn answer(
        &mut self,
        request: &Request,
        mut answer: Answer,
        fault: Fault,
    ) -> io::Result<Next> {
        let old_client = request.minor_version == 0;
        if old_client {
            answer.body = match answer.body {
                Body::Chunked { len } => Body::UntilClose { len },
                Body::ChunkedText { data, .. } => Body::Text { data },
                body => body,
            };
        }
        let until_close = matches!(answer.body, Body::UntilClose { .. })
            || (old_client && matches!(answer.body, Body::Events { .. }));
        let keep_alive = request.keep_alive && !until_close && fault != Fault::Cut;
        self.compose_head(request, &answer, keep_alive);
        if request.method == "HEAD" {
            self.flush_last().await?;
        } else {
            self.write_body(answer.body, fault, old_client).await?;
        }
        Ok(if keep_alive && !self.client_gone {
            Next::Request
        } else {
            Next::Close
        })
    }

    fn compose_head(&mut self, request: &Request, answer: &Answer, keep_alive: bool) {
        use std::io::Write;
        self.output.clear();
        let (status, reason) = (answer.status, page::reason(answer.status));
        // Writing to a vector cannot fail.
        let _ = write!(self.output, "HTTP/1.1 {status} {reason}\r\n");
        let _ = write!(self.output, "Server: {}\r\n", self.shared.options.name);
        for (name, value) in &answer.fields {
            let _ = write!(self.output, "{name}: {value}\r\n");
        }
        let len = match &answer.body {
            Body::Text { data } => Some(data.len() as u64),
            Body::Pattern { len } | Body::Drip { len, .. } => Some(*len),
            _ => None,
        };
        let chunked = match &answer.body {
            Body::Chunked { .. } | Body::ChunkedText { .. } => true,
            Body::Events { .. } => request.minor_version == 1,
            _ => false,
        };
        if let Some(len) = len {
            let _ = write!(self.output, "Content-Length: {len}\r\n");
        }
        if chunked {
            self.output
                .extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        if matches!(answer.body, Body::Chunked { .. }) {
            self.output
                .extend_from_slice(b"Trailer: X-Origin-Trailer\r\n");
        }
        let connection: &[u8] = match (keep_alive, request.minor_version) {
            (false, _) => b"Connection: close\r\n",
            (true, 0) => b"Connection: keep-alive\r\n",
            (true, _) => b"",
        };
        self.output.extend_from_slice(connection);
        self.output.extend_from_slice(b"\r\n");
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.output).await?;
        self.output.clear();
        Ok(())
    }

    /// The end of an answer. From its last byte on the sender may come again,
    /// before this thread goes on; so the request is no longer in flight.
    async fn flush_last(&mut self) -> io::Result<()> {
        self.in_flight = None;
        self.flush().await
    }

    /// Writes the head composed before, then the body, or half of it.
    async fn write_body(&mut self, body: Body, fault: Fault, old_client: bool) -> io::Result<()> {
        let part = |len: u64| if fault == Fault::Cut { len / 2 } else { len };
        let whole = fault != Fault::Cut;
        match body {
            Body::None => self.flush_last().await,
            Body::Text { data } => {
                let len = part(data.len() as u64) as usize;
                self.output.extend_from_slice(&data[..len]);
                self.flush_last().await
            }
            Body::Pattern { len } | Body::UntilClose { len } => self.write_pattern(part(len)).await,
            Body::Chunked { len } => self.write_chunked(part(len), whole).await,
            Body::ChunkedText { data, trailers } => {
                self.push_chunk(&data[..part(data.len() as u64) as usize]);
                if whole {
                    self.output.extend_from_slice(b"0\r\n");
                    self.output.extend_from_slice(&trailers);
                    self.output.extend_from_slice(b"\r\n");
                }
                self.flush_last().await
            }
            Body::Drip { len, every } => self.write_drip(part(len), every).await,
            Body::Events { count, every } => {
                self.write_events(count.map(part), every, !old_client, whole)
                    .await
            }
        }
    }

    async fn write_pattern(&mut self, len: u64) -> io::Result<()> {
        let block_len = page::BLOCK.len() as u64;
        let mut left = len;
        while left > block_len {
            self.output.extend_from_slice(&page::BLOCK);
            self.flush().await?;
            left -= block_len;
        }
        self.output.extend_from_slice(&page::BLOCK[..left as usize]);
        self.flush_last().await
    }

    async fn write_chunked(&mut self, len: u64, whole: bool) -> io::Result<()> {
        // A multiple of 26, so that every chunk begins with an `a`.
        const CHUNK_LEN: u64 = 26 * 630;
        let mut left = len;
        while left > 0 {
            let chunk_len = left.min(CHUNK_LEN);
            self.push_chunk(&page::BLOCK[..chunk_len as usize]);
            self.flush().await?;
            left -= chunk_len;
        }
        if whole {
            let end = format!("0\r\nX-Origin-Trailer: {len}\r\n\r\n");
            self.output.extend_from_slice(end.as_bytes());
        }
        self.flush_last().await
    }

    fn push_chunk(&mut self, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        self.output
            .extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
        self.output.extend_from_slice(data);
        self.output.extend_from_slice(b"\r\n");
    }

    async fn write_drip(&mut self, len: u64, every: Duration) -> io::Result<()> {
        self.flush().await?;
        for position in 0..len {
            self.output.push(page::payload_byte(position));
            if position + 1 < len {
                self.flush().await?;
                self.watching(tokio::time::sleep(every)).await;
            }
        }
        self.flush_last().await
    }

    async fn write_events(
        &mut self,
        count: Option<u64>,
        every: Duration,
        chunked: bool,
        whole: bool,
    ) -> io::Result<()> {
        let mut id = 0;
        while count.is_none_or(|count| id < count) {
            let event = format!("id: {id}\ndata: event {id}\n\n");
            match chunked {
                true => self.push_chunk(event.as_bytes()),
                false => self.output.extend_from_slice(event.as_bytes()),
            }
            self.flush().await?;
            id += 1;
            if count != Some(id) {
                self.watching(tokio::time::sleep(every)).await;
            }
        }
        if chunked && whole {
            self.output.extend_from_slice(b"0\r\n\r\n");
        }
        self.flush_last().await
    }

    /// Echoes a body too long to hold, as it arrives.
    async fn echo_stream(
        &mut self,
        request: &Request,
        mut body: BodyReader,
        mut data: Vec<u8>,
    ) -> io::Result<Next> {
        let framing = match request.framing {
            Framing::Length { len } => format!("Content-Length: {len}"),
            Framing::Chunked => "Transfer-Encoding: chunked".to_owned(),
        };
        let chunked = request.framing == Framing::Chunked;
        let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n");
        self.output.clear();
        self.output.extend_from_slice(head.as_bytes());
        loop {
            match chunked {
                true => self.push_chunk(&data),
                false => self.output.extend_from_slice(&data),
            }
            data.clear();
            if body.is_done() {
                break;
            }
            self.flush().await?;
            if self.input.is_empty() && self.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let before = self.input.len();
            self.take_body(&mut body, &mut data)?;
            if self.input.len() == before && !body.is_done() && self.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        if chunked {
            self.output.extend_from_slice(b"0\r\n");
            self.output.extend_from_slice(&body.trailers);
            self.output.extend_from_slice(b"\r\n");
        }
        self.flush_last().await?;
        Ok(if request.keep_alive {
            Next::Request
        } else {
            Next::Close
        })
    }

    /// Switches protocols and sends every byte back.
    async fn tunnel(&mut self, protocol: &str) -> io::Result<Next> {
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
        );
        self.stream.write_all(head.as_bytes()).await?;
        loop {
            self.stream.write_all(&self.input).await?;
            self.input.clear();
            if self.fill().await? == 0 {
                return Ok(Next::Close);
            }
        }
    }
}

fn echo_answer(request: &Request, body: Body) -> Answer {
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
