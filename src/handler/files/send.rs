//! Sends files: short ones in one piece with their heads, long ones in slices between which other
//! connections have a turn.

use std::os::fd::AsFd;
use std::sync::Arc;

use evenkeel_proto::Method;
use evenkeel_proto::coding::Coding;
use evenkeel_proto::http1::write::Persistence;
use evenkeel_proto::representation::ByteRange;

use super::super::multipart::Multipart;
use super::{FileRequest, fields, from_disk};
use crate::exchange::answer::{UnsentFile, begin_head, end_head, put, put_file, put_or};
use crate::exchange::{Exchange, box_cold};
use crate::files::{Fields, FileBytes, Holding, Hot, OpenFile, WHOLE_LEN, WhenFull};
use crate::metrics::end::{End, Failure};
use crate::net::buffer::{Buffer, SMALL_LEN};
use crate::net::stream::Follow;

/// Files up to this length, in bytes, are copied behind their heads. That takes one system call
/// less than sendfile or splice.
const COPIED_LEN: u64 = 2 * 1024;
/// Most bytes of a long file that are sent before other connections have a turn.
const SLICE_LEN: u64 = 256 * 1024;
/// Length of a slice in bytes, while slow clients hold much memory.
const SHORT_SLICE_LEN: u64 = 16 * 1024;

/// The source of a slice of a file.
enum Slice {
    /// Not known yet.
    Unknown,
    /// In memory.
    InMemory,
    /// Read from the disk.
    Read(ReadSlice),
}

/// A slice that is held until the client has received it.
struct ReadSlice {
    bytes: FileBytes,
    /// Expected length in bytes.
    wanted: u64,
    _holding: Holding,
}

impl ReadSlice {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// Why a file could not be copied into a buffer.
enum Uncomposed {
    /// The disk has to be asked.
    Cold,
    /// The file has become shorter or longer.
    Changed,
    Failed(std::io::Error),
}

/// A buffer for this many bytes.
fn buffer_for(len: usize) -> Buffer {
    if len <= SMALL_LEN {
        return Buffer::small();
    }
    let large = Buffer::large();
    match large.capacity() {
        capacity if capacity >= len => large,
        _ => Buffer::with_capacity(len),
    }
}

/// An answer with a file.
#[derive(Clone, Copy)]
pub(super) struct Sending<'a> {
    pub request: &'a FileRequest<'a>,
    /// The path of the file in its folder.
    pub path: &'a [u8],
    pub file: &'a Arc<OpenFile>,
    /// The whole file, where it is known already.
    pub bytes: Option<&'a [u8]>,
    /// The coding of its bytes.
    pub coding: Option<Coding>,
    pub persistence: Persistence,
}

impl Sending<'_> {
    /// The fields of answers with this file.
    pub fn fields(&self) -> &Fields {
        let make = || fields::make(self.request.settings, self.path, self.file, self.coding);
        self.file.fields.get_or_init(make)
    }

    /// Sends the whole file.
    ///
    /// # Errors
    /// The end of the exchange: the client has left or does not read, or the file can't be read
    /// or has changed.
    pub async fn whole(&self, status: u16, exchange: &mut Exchange<'_>) -> Result<(), End> {
        let fields = self.fields();
        let len = self.file.id.len;
        let head = |out: &mut Vec<u8>, exchange: &Exchange<'_>| {
            self.begin(out, status, exchange);
            out.extend_from_slice(fields.shared(status));
            out.extend_from_slice(fields.whole());
            self.end(out, exchange);
        };
        exchange.progress.figures.status = status;
        if exchange.head.method == Method::Head {
            return self.send_head(head, exchange).await;
        }
        match self.bytes {
            Some(bytes) if bytes.len() as u64 == len && !self.file.is_doubted() => {
                return self.joined(head, bytes, exchange).await;
            }
            Some(_) => return Err(Failure::FileChanged.into()),
            None if len > COPIED_LEN => {
                return box_cold(self.long(head, 0, len, exchange)).await;
            }
            None => {}
        }
        let (buffer, head_len) = match self.compose(head, exchange) {
            Ok(composed) => composed,
            Err(Uncomposed::Cold) => {
                return box_cold(self.long(head, 0, len, exchange)).await;
            }
            Err(Uncomposed::Changed) => return Err(Failure::FileChanged.into()),
            Err(Uncomposed::Failed(error)) => return Err(self.failed(exchange, &error)),
        };
        self.put_last(buffer.filled(), head_len, exchange).await
    }

    /// Puts a head and the whole file into a buffer, if the file is in memory. Returns the length
    /// of the head too.
    fn compose(
        &self,
        head: impl Fn(&mut Vec<u8>, &Exchange<'_>),
        exchange: &Exchange<'_>,
    ) -> Result<(Buffer, usize), Uncomposed> {
        let len = self.file.id.len as usize;
        let (mut buffer, head_len) = self.begin_with(head, len + 1, exchange);
        match self.file.read_whole_in_memory(&mut buffer.room()[..=len]) {
            Ok(Hot::Read(read)) if read == len => buffer.fill(len),
            Ok(Hot::Read(_)) => return Err(Uncomposed::Changed),
            Ok(Hot::Cold) => return Err(Uncomposed::Cold),
            Err(error) => return Err(Uncomposed::Failed(error)),
        }
        Ok((buffer, head_len))
    }

    /// Sends a head and the following bytes in one piece.
    async fn joined(
        &self,
        head: impl Fn(&mut Vec<u8>, &Exchange<'_>),
        bytes: &[u8],
        exchange: &mut Exchange<'_>,
    ) -> Result<(), End> {
        let (mut buffer, head_len) = self.begin_with(head, bytes.len(), exchange);
        let fits = buffer.append(bytes);
        debug_assert!(fits, "the buffer was made for it");
        self.put_last(buffer.filled(), head_len, exchange).await
    }

    /// A buffer with a head and room for this many more bytes, and the length of the head.
    fn begin_with(
        &self,
        head: impl Fn(&mut Vec<u8>, &Exchange<'_>),
        len: usize,
        exchange: &Exchange<'_>,
    ) -> (Buffer, usize) {
        let mut scratch = exchange.context.scratch.borrow_mut();
        scratch.clear();
        head(&mut scratch, exchange);
        let mut buffer = buffer_for(scratch.len() + len);
        let fits = buffer.append(&scratch);
        debug_assert!(fits, "the buffer was made for it");
        (buffer, scratch.len())
    }

    /// Whether the file stays open after the answer.
    fn is_kept(&self) -> bool {
        self.file.is_shared()
    }

    /// Sends a head without content.
    ///
    /// # Errors
    /// As for [`whole`](Self::whole).
    pub async fn head_only(&self, status: u16, exchange: &mut Exchange<'_>) -> Result<(), End> {
        let fields = self.fields();
        exchange.progress.figures.status = status;
        let head = |out: &mut Vec<u8>, exchange: &Exchange<'_>| {
            self.begin(out, status, exchange);
            out.extend_from_slice(fields.shared(status));
            if status == 416 {
                let len = self.file.id.len;
                out.extend_from_slice(format!("Content-Range: bytes */{len}\r\n").as_bytes());
            }
            if status != 304 {
                out.extend_from_slice(b"Content-Length: 0\r\n");
            }
            self.end(out, exchange);
        };
        self.send_head(head, exchange).await
    }

    /// Sends parts of the file: a single part as it is, several as `multipart/byteranges`
    /// (RFC 9110 §14.6).
    ///
    /// # Errors
    /// As for [`whole`](Self::whole).
    pub async fn ranges(
        &self,
        ranges: &[ByteRange],
        exchange: &mut Exchange<'_>,
    ) -> Result<(), End> {
        let fields = self.fields();
        let file_len = self.file.id.len;
        exchange.progress.figures.status = 206;
        if let [range] = ranges {
            let ByteRange { first, last } = *range;
            let head = |out: &mut Vec<u8>, exchange: &Exchange<'_>| {
                self.begin(out, 206, exchange);
                out.extend_from_slice(fields.shared(206));
                out.extend_from_slice(fields.content());
                let lines = format!(
                    "Content-Range: bytes {first}-{last}/{file_len}\r\nContent-Length: {}\r\n",
                    range.len()
                );
                out.extend_from_slice(lines.as_bytes());
                self.end(out, exchange);
            };
            return self.long(head, first, range.len(), exchange).await;
        }
        let multipart = Multipart::new(ranges, self.content_type_line(), file_len);
        let scratch = {
            let mut out = Vec::new();
            self.begin(&mut out, 206, exchange);
            out.extend_from_slice(fields.shared(206));
            if let Some(coding) = self.coding {
                let line = format!("Content-Encoding: {}\r\n", coding.name());
                out.extend_from_slice(line.as_bytes());
            }
            multipart.push_fields(&mut out);
            self.end(&mut out, exchange);
            out
        };
        let first_range = ranges.first().map_or((0, 0), |it| (it.first, it.len()));
        let mut slice = self
            .first_slice(first_range.0, first_range.1, exchange)
            .await?;
        self.put(&scratch, scratch.len(), Follow::More, exchange)
            .await?;
        for (part, range) in multipart.parts.iter().zip(ranges) {
            self.put(part, 0, Follow::More, exchange).await?;
            let known = std::mem::replace(&mut slice, Slice::Unknown);
            self.slices(range.first, range.len(), known, exchange)
                .await?;
        }
        self.put_last(&multipart.end, 0, exchange).await
    }

    pub(super) fn begin(&self, out: &mut Vec<u8>, status: u16, exchange: &Exchange<'_>) {
        // No clock is read.
        let arrived = exchange.progress.arrived();
        begin_head(out, exchange.context, status, arrived);
    }

    pub(super) fn end(&self, out: &mut Vec<u8>, exchange: &Exchange<'_>) {
        end_head(out, exchange, self.persistence);
    }

    pub(super) async fn send_head(
        &self,
        head: impl Fn(&mut Vec<u8>, &Exchange<'_>),
        exchange: &mut Exchange<'_>,
    ) -> Result<(), End> {
        let mut bytes = Vec::with_capacity(512);
        head(&mut bytes, exchange);
        self.put_last(&bytes, bytes.len(), exchange).await
    }

    /// A head, and a part of the file in slices.
    async fn long(
        &self,
        head: impl Fn(&mut Vec<u8>, &Exchange<'_>),
        offset: u64,
        len: u64,
        exchange: &mut Exchange<'_>,
    ) -> Result<(), End> {
        let first = self.first_slice(offset, len, exchange).await?;
        if let Slice::Read(slice) = &first {
            match slice.len() {
                read if read < slice.wanted => return Err(Failure::FileChanged.into()),
                read if read == len && read <= WHOLE_LEN => {
                    return self.joined(head, &slice.bytes, exchange).await;
                }
                _ => {}
            }
        }
        let mut bytes = exchange.context.scratch.take();
        bytes.clear();
        head(&mut bytes, exchange);
        let put = self.put(&bytes, bytes.len(), Follow::More, exchange);
        let result = put.await;
        exchange.context.scratch.replace(bytes);
        result?;
        self.slices(offset, len, first, exchange).await
    }

    /// Reads a slice of the `left` bytes from `offset` on.
    async fn ask_disk(
        &self,
        offset: u64,
        left: u64,
        when_full: WhenFull,
        exchange: &mut Exchange<'_>,
    ) -> Result<ReadSlice, End> {
        let (context, route) = (exchange.context, self.request.route);
        let memory = context.generation().files.answer_memory();
        let (wanted, holding) = match memory.hold_slice(SLICE_LEN.min(left)) {
            Some(holding) => (SLICE_LEN.min(left), holding),
            None => {
                let len = SHORT_SLICE_LEN.min(left);
                (len, memory.hold(len as usize))
            }
        };
        let slice = |bytes| ReadSlice {
            bytes,
            wanted,
            _holding: holding,
        };
        if let Some(bytes) = self.file.read_untold(offset, wanted) {
            return Ok(slice(bytes));
        }
        let reading = context
            .generation()
            .files
            .read(route, self.file, offset, wanted, when_full);
        match box_cold(from_disk(exchange, reading)).await {
            Ok(Ok(bytes)) => Ok(slice(bytes)),
            Ok(Err(error)) => Err(self.failed(exchange, &error.into())),
            Err(failure) => Err(failure.into()),
        }
    }

    #[cold]
    fn failed(&self, exchange: &Exchange<'_>, error: &std::io::Error) -> End {
        self.request
            .complain(exchange.context, Some(self.path), error);
        Failure::FileFailed.into()
    }

    /// Whether a part of the file can be sent without waiting for a disk.
    fn is_in_memory(&self, offset: u64, len: u64, exchange: &Exchange<'_>) -> bool {
        let now = exchange.context.wheel.now();
        self.file.is_in_memory(offset, len, now)
    }

    /// Looks for the first slice of a part of the file before anything is sent, as the disk may
    /// still refuse. Also checks a file that was already open for changes.
    async fn first_slice(
        &self,
        offset: u64,
        len: u64,
        exchange: &mut Exchange<'_>,
    ) -> Result<Slice, End> {
        if self.is_kept() && !self.file.is_unchanged() {
            return Err(Failure::FileChanged.into());
        }
        if exchange.side.can_send_file() && self.is_in_memory(offset, SLICE_LEN.min(len), exchange)
        {
            return Ok(Slice::InMemory);
        }
        let reading = self.ask_disk(offset, len, WhenFull::Refuse, exchange);
        reading.await.map(Slice::Read)
    }

    /// Sends a part of the file, after its head. `first` is the first slice, as far as known.
    async fn slices(
        &self,
        offset: u64,
        len: u64,
        first: Slice,
        exchange: &mut Exchange<'_>,
    ) -> Result<(), End> {
        let mut known = first;
        let mut at = offset;
        let end = offset + len;
        while at < end {
            let slice_len = SLICE_LEN.min(end - at);
            // The rest would be of another version.
            if matches!(known, Slice::Unknown) && !self.file.has_same_contents() {
                return Err(Failure::FileChanged.into());
            }
            let slice = match std::mem::replace(&mut known, Slice::Unknown) {
                Slice::Unknown
                    if !exchange.side.can_send_file()
                        || !self.is_in_memory(at, slice_len, exchange) =>
                {
                    Slice::Read(
                        self.ask_disk(at, end - at, WhenFull::Admit, exchange)
                            .await?,
                    )
                }
                slice => slice,
            };
            at += match slice {
                Slice::Read(slice) if slice.len() == slice.wanted => {
                    self.put(&slice.bytes, 0, Follow::Anything, exchange)
                        .await?;
                    slice.wanted
                }
                Slice::Read(_) => return Err(Failure::FileChanged.into()),
                Slice::InMemory | Slice::Unknown => {
                    self.send_file(at, slice_len, exchange).await?;
                    slice_len
                }
            };
            if at < end {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Sends a slice of the file without a copy.
    async fn send_file(
        &self,
        offset: u64,
        len: u64,
        exchange: &mut Exchange<'_>,
    ) -> Result<(), End> {
        let sent = put_file(exchange, self.file.as_fd(), offset, len).await;
        sent.map_err(|unsent| match unsent {
            UnsentFile::Short => Failure::FileChanged.into(),
            UnsentFile::Unreadable(error) => self.failed(exchange, &error),
            UnsentFile::Client(failure) => failure.into(),
        })
    }

    /// Sends bytes. The first `head_len` belong to the head.
    pub(super) fn put(
        &self,
        bytes: &[u8],
        head_len: usize,
        follow: Follow,
        exchange: &mut Exchange<'_>,
    ) -> impl Future<Output = Result<(), End>> {
        put_or(exchange, bytes, head_len, follow)
    }

    /// Sends the last bytes of an answer. The first `head_len` belong to the head.
    fn put_last(
        &self,
        bytes: &[u8],
        head_len: usize,
        exchange: &mut Exchange<'_>,
    ) -> impl Future<Output = Result<(), End>> {
        let follow = exchange.follow(self.persistence);
        self.put(bytes, head_len, follow, exchange)
    }
}

/// Sends the rest of an answer in slices, between which other connections have a turn.
///
/// # Errors
/// The client has left or does not read.
pub(super) async fn put_slices(
    exchange: &mut Exchange<'_>,
    bytes: &[u8],
    persistence: Persistence,
) -> Result<(), Failure> {
    let mut slices = bytes.chunks(SLICE_LEN as usize);
    while let Some(slice) = slices.next() {
        tokio::task::yield_now().await;
        let follow = follow_before(slices.len(), exchange, persistence);
        put(exchange, slice, 0, follow).await?;
    }
    Ok(())
}

/// What follows on the connection, with `left` bytes of the answer to go.
pub(super) fn follow_before(
    left: usize,
    exchange: &Exchange<'_>,
    persistence: Persistence,
) -> Follow {
    match left {
        0 => exchange.follow(persistence),
        _ => Follow::More,
    }
}
