//! Answers on a connection: heads, generated bodies, echoes.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt;

use super::{Connection, Fault, Next};
use crate::body::{BodyReader, Framing};
use crate::page::{self, Answer, Body};
use crate::request::OriginRequest;

impl Connection {
    /// Writes an answer whose body is ready or made up here.
    pub(super) async fn answer(
        &mut self,
        request: &OriginRequest,
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

    pub(super) fn compose_head(
        &mut self,
        request: &OriginRequest,
        answer: &Answer,
        keep_alive: bool,
    ) {
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

    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.output).await?;
        self.output.clear();
        Ok(())
    }

    /// The end of an answer. From its last byte on the sender may come again,
    /// before this thread goes on; so the request is no longer in flight.
    pub(super) async fn flush_last(&mut self) -> io::Result<()> {
        self.in_flight = None;
        self.flush().await
    }

    /// Writes the head composed before, then the body, or half of it.
    pub(super) async fn write_body(
        &mut self,
        body: Body,
        fault: Fault,
        old_client: bool,
    ) -> io::Result<()> {
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
            if chunked {
                self.push_chunk(event.as_bytes())
            } else {
                self.output.extend_from_slice(event.as_bytes())
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
    pub(super) async fn echo_stream(
        &mut self,
        request: &OriginRequest,
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
            if chunked {
                self.push_chunk(&data)
            } else {
                self.output.extend_from_slice(&data)
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
    pub(super) async fn tunnel(&mut self, protocol: &str) -> io::Result<Next> {
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
