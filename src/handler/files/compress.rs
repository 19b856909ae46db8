//! Files that are compressed on demand: by a thread, once for all waiting requests. The worker
//! keeps the result.

use std::io::{self, Write};
use std::sync::Arc;

use evenkeel_proto::Method;
use evenkeel_proto::coding::Coding;
use evenkeel_proto::representation::{Precondition, Validators};
use rustix::io::Errno;

use super::fields::is_compressible;
use super::send::{Sending, follow_before, put_slices};
use super::{FileRequest, from_disk};
use crate::config::Compression;
use crate::exchange::Exchange;
use crate::files::{Compressed, HeldBytes, WHOLE_LEN};
use crate::metrics::end::{End, Failure};

// A file is compressed once for many answers, but the first answer waits. At these levels a
// megabyte of text takes some 15 ms with gzip, 50 ms with Brotli and 10 ms with zstd. For higher
// levels, compress the files in advance, and put the copies beside them.
const GZIP_LEVEL: u32 = 5;
const BROTLI_QUALITY: i32 = 5;
const ZSTD_LEVEL: i32 = 3;

/// Largest window of Brotli, as a power of two: that of its own default.
const BROTLI_WINDOW: u32 = 22;
/// Smallest window that wastes nothing worth saving.
const BROTLI_SMALLEST_WINDOW: u32 = 16;

/// Compresses bytes. Equal bytes have an equal result, as the entity tag says.
fn compress(bytes: &[u8], coding: Coding) -> io::Result<Vec<u8>> {
    match coding {
        Coding::Gzip => {
            let level = flate2::Compression::new(GZIP_LEVEL);
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(bytes)?;
            encoder.finish()
        }
        Coding::Brotli => {
            let window = usize::BITS - bytes.len().leading_zeros();
            let params = brotli::enc::BrotliEncoderParams {
                quality: BROTLI_QUALITY,
                lgwin: window.clamp(BROTLI_SMALLEST_WINDOW, BROTLI_WINDOW) as i32,
                size_hint: bytes.len(),
                ..Default::default()
            };
            let mut out = Vec::new();
            brotli::BrotliCompress(&mut &bytes[..], &mut out, &params)?;
            Ok(out)
        }
        Coding::Zstd => zstd::bulk::compress(bytes, ZSTD_LEVEL),
    }
}

impl Sending<'_> {
    /// The best coding for the client, where compression suits the file.
    pub fn wanted_coding(&self, exchange: &Exchange<'_>) -> Option<Coding> {
        let FileRequest {
            settings,
            conditions,
            ..
        } = self.request;
        let compression = settings.compression.as_ref()?;
        let is_coded = self.coding.is_some();
        if is_coded || !conditions.has_accept_encoding() || !self.is_compressible(compression) {
            return None;
        }
        conditions.coding(exchange.bytes, &compression.codings)
    }

    fn is_compressible(&self, compression: &Compression) -> bool {
        let content_type = self.content_type_line().strip_prefix(b"Content-Type: ");
        let content_type = std::str::from_utf8(content_type.unwrap_or_default());
        content_type.is_ok_and(|it| is_compressible(compression, it, self.file.id.len))
    }

    /// Sends the compressed file, or what the request's conditions leave of it; ranges are
    /// ignored. Returns `false` where the plain file is to be sent.
    ///
    /// # Errors
    /// As for [`whole`](Self::whole).
    pub async fn compressed(
        &self,
        coding: Coding,
        status: u16,
        exchange: &mut Exchange<'_>,
    ) -> Result<bool, End> {
        let condition = match status {
            200 => self.precondition(coding, exchange),
            _ => Precondition::Met,
        };
        if condition == Precondition::NotModified {
            // Conditions do not need the bytes.
            return self.unsent(304, coding, exchange).await;
        }
        let Some(bytes) = self.bytes_in(coding, exchange).await? else {
            return Ok(false);
        };
        if condition == Precondition::Failed {
            return self.unsent(412, coding, exchange).await;
        }
        self.whole_in(coding, &bytes, status, exchange).await?;
        Ok(true)
    }

    fn precondition(&self, coding: Coding, exchange: &Exchange<'_>) -> Precondition {
        let conditions = self.request.conditions;
        if conditions.is_plain() {
            return Precondition::Met;
        }
        let mut entity_tag = Vec::new();
        push_entity_tag(&mut entity_tag, self.fields().entity_tag(), coding);
        let validators = Validators {
            entity_tag: &entity_tag,
            modified: self.fields().modified,
        };
        conditions.precondition(exchange.bytes, &validators)
    }

    /// The file in this coding; `None` where it does not get smaller, or no thread is free.
    async fn bytes_in(
        &self,
        coding: Coding,
        exchange: &mut Exchange<'_>,
    ) -> Result<Option<Arc<HeldBytes>>, End> {
        let context = exchange.context;
        let compressed = match context.generation().files.compressed(self.file, coding) {
            Some(compressed) => compressed,
            None => {
                let source = exchange.progress.figures.source;
                let making = context
                    .generation()
                    .files
                    .compress(self.file, coding, compress);
                match from_disk(exchange, making).await {
                    Ok(Ok(compressed)) => compressed,
                    Ok(Err(Errno::STALE)) => return Err(Failure::FileChanged.into()),
                    // Sending the plain file shows the error.
                    Ok(Err(_)) => Compressed::NotSmaller,
                    Err(Failure::DiskBusy) => {
                        exchange.progress.figures.source = source;
                        Compressed::NotSmaller
                    }
                    Err(failure) => return Err(failure.into()),
                }
            }
        };
        Ok(match compressed {
            Compressed::Smaller(bytes) => Some(bytes),
            Compressed::NotSmaller => None,
        })
    }

    /// Sends the whole compressed file.
    async fn whole_in(
        &self,
        coding: Coding,
        bytes: &[u8],
        status: u16,
        exchange: &mut Exchange<'_>,
    ) -> Result<(), End> {
        exchange.progress.figures.status = status;
        let body = match exchange.head.method {
            Method::Head => &[],
            _ => bytes,
        };
        let (first, rest) = body.split_at(body.len().min(WHOLE_LEN as usize));
        let mut out = exchange.context.scratch.take();
        out.clear();
        self.begin(&mut out, status, exchange);
        self.push_shared(&mut out, status, coding);
        out.extend_from_slice(self.content_type_line());
        let (name, len) = (coding.name(), bytes.len());
        let lines = format!("\r\nContent-Encoding: {name}\r\nContent-Length: {len}\r\n");
        out.extend_from_slice(lines.as_bytes());
        self.end(&mut out, exchange);
        let head_len = out.len();
        out.extend_from_slice(first);
        let follow = follow_before(rest.len(), exchange, self.persistence);
        let put = self.put(&out, head_len, follow, exchange).await;
        exchange.context.scratch.replace(out);
        put?;
        put_slices(exchange, rest, self.persistence)
            .await
            .map_err(End::Failure)
    }

    /// Sends a head without a body.
    async fn unsent(
        &self,
        status: u16,
        coding: Coding,
        exchange: &mut Exchange<'_>,
    ) -> Result<bool, End> {
        exchange.progress.figures.status = status;
        let head = |out: &mut Vec<u8>, exchange: &Exchange<'_>| {
            self.begin(out, status, exchange);
            self.push_shared(out, status, coding);
            if status != 304 {
                out.extend_from_slice(b"Content-Length: 0\r\n");
            }
            self.end(out, exchange);
        };
        self.send_head(head, exchange).await?;
        Ok(true)
    }

    /// The fields that do not describe the bytes, with the entity tag of the compressed file.
    fn push_shared(&self, out: &mut Vec<u8>, status: u16, coding: Coding) {
        let fields = self.fields();
        let shared = fields.shared(status);
        if shared.len() <= fields.entity_tag.start {
            return out.extend_from_slice(shared);
        }
        out.extend_from_slice(&shared[..fields.entity_tag.start]);
        push_entity_tag(out, fields.entity_tag(), coding);
        out.extend_from_slice(&shared[fields.entity_tag.end..]);
    }

    /// The field of that name, without the end of its line.
    pub fn content_type_line(&self) -> &[u8] {
        let content = self.fields().content();
        let end = memchr::memchr(b'\r', content).unwrap_or(content.len());
        &content[..end]
    }
}

/// Writes the entity tag of a file that is compressed here: the file's own, with the coding's
/// name appended within the quotes. Writes nothing where the file has none.
fn push_entity_tag(out: &mut Vec<u8>, tag: &[u8], coding: Coding) {
    let Some(tag) = tag.strip_suffix(b"\"") else {
        return;
    };
    out.extend_from_slice(tag);
    out.push(b'-');
    out.extend_from_slice(coding.name().as_bytes());
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn expand(bytes: &[u8], coding: Coding) -> Vec<u8> {
        let mut out = Vec::new();
        let read = match coding {
            Coding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut out),
            Coding::Brotli => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out),
            Coding::Zstd => zstd::stream::read::Decoder::new(bytes)
                .and_then(|mut decoder| decoder.read_to_end(&mut out)),
        };
        assert!(read.is_ok(), "{coding:?}: {read:?}");
        out
    }

    #[test]
    fn compresses_without_loss_and_always_alike() {
        let text = "a small file of many words, small words, many files\n".repeat(2_000);
        let mut random = fastrand::Rng::with_seed(7);
        let noise: Vec<u8> = (0..70_000).map(|_| random.u8(..)).collect();
        for coding in Coding::ALL {
            for bytes in [&b""[..], b"a", text.as_bytes(), &noise] {
                let compressed = compress(bytes, coding).expect("memory is no disk");
                assert_eq!(expand(&compressed, coding), bytes, "{coding:?}");
                let again = compress(bytes, coding).expect("memory is no disk");
                assert_eq!(compressed, again, "{coding:?}");
            }
            let compressed = compress(text.as_bytes(), coding).expect("memory is no disk");
            assert!(compressed.len() < text.len() / 50, "{coding:?}");
            let compressed = compress(&noise, coding).expect("memory is no disk");
            assert!(compressed.len() >= noise.len(), "{coding:?}");
        }
    }

    #[test]
    fn gives_each_coding_a_tag_of_its_own() {
        let mut tag = Vec::new();
        push_entity_tag(&mut tag, b"\"17f-2a\"", Coding::Brotli);
        assert_eq!(tag, b"\"17f-2a-br\"");
        tag.clear();
        push_entity_tag(&mut tag, b"", Coding::Brotli);
        assert_eq!(tag, b"");
    }
}
