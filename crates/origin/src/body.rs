//! Bodies of requests and responses, with a length or in chunks.
//!
//! No I/O. This is a test origin: clear rather than fast, and no example of
//! how strict a proxy has to be.

/// How a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// A number of bytes is announced.
    Length {
        /// That number.
        len: u64,
    },
    /// Chunks, the last of which is empty.
    Chunked,
}

/// The input is not HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The state of a body's reader.
///
/// ```text
/// Data ──(chunked)──> DataEnd ──> Size ──> Data | Trailers ──> Done
/// Data ──(length)───────────────────────────────────────────> Done
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadState {
    Size,
    Data { remaining: u64, chunked: bool },
    DataEnd,
    Trailers,
    Done,
}

/// Decodes a body piece by piece.
#[derive(Debug)]
pub struct BodyReader {
    state: ReadState,
    /// The trailer section's lines, each with its CRLF.
    pub trailers: Vec<u8>,
}

impl BodyReader {
    /// A reader at the beginning of a body.
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Chunked => ReadState::Size,
            Framing::Length { len: 0 } => ReadState::Done,
            Framing::Length { len } => ReadState::Data {
                remaining: len,
                chunked: false,
            },
        };
        BodyReader {
            state,
            trailers: Vec::new(),
        }
    }

    /// Whether the body has been read to its end.
    pub fn is_done(&self) -> bool {
        self.state == ReadState::Done
    }

    /// Moves the available part of the body from the front of `input` to `data`.
    ///
    /// # Errors
    /// The chunks are malformed.
    pub fn take(&mut self, input: &mut Vec<u8>, data: &mut Vec<u8>) -> Result<(), Malformed> {
        let mut at = 0;
        let result = loop {
            match self.step(&input[at..], data) {
                Ok(Some(used)) => at += used,
                Ok(None) => break Ok(()),
                Err(malformed) => break Err(malformed),
            }
        };
        input.drain(..at);
        result
    }

    /// One step; how many bytes it used, or `None` when it needs more.
    fn step(&mut self, input: &[u8], data: &mut Vec<u8>) -> Result<Option<usize>, Malformed> {
        match self.state {
            ReadState::Done => Ok(None),
            ReadState::Data { remaining, chunked } => {
                if input.is_empty() {
                    return Ok(None);
                }
                let used = input
                    .len()
                    .min(usize::try_from(remaining).unwrap_or(usize::MAX));
                data.extend_from_slice(&input[..used]);
                let remaining = remaining - used as u64;
                self.state = match (remaining, chunked) {
                    (0, true) => ReadState::DataEnd,
                    (0, false) => ReadState::Done,
                    _ => ReadState::Data { remaining, chunked },
                };
                Ok(Some(used))
            }
            ReadState::DataEnd => match take_line(input)? {
                Some([]) => {
                    self.state = ReadState::Size;
                    Ok(Some(2))
                }
                Some(_) => Err(Malformed),
                None => Ok(None),
            },
            ReadState::Size => {
                let Some(line) = take_line(input)? else {
                    return Ok(None);
                };
                let digits = line.split(|&byte| byte == b';').next().unwrap_or_default();
                let digits = std::str::from_utf8(digits).map_err(|_| Malformed)?;
                let size = u64::from_str_radix(digits.trim(), 16).map_err(|_| Malformed)?;
                self.state = match size {
                    0 => ReadState::Trailers,
                    _ => ReadState::Data {
                        remaining: size,
                        chunked: true,
                    },
                };
                Ok(Some(line.len() + 2))
            }
            ReadState::Trailers => {
                let Some(line) = take_line(input)? else {
                    return Ok(None);
                };
                if line.is_empty() {
                    self.state = ReadState::Done;
                } else {
                    self.trailers.extend_from_slice(&input[..line.len() + 2]);
                }
                Ok(Some(line.len() + 2))
            }
        }
    }
}

/// The line at the front of `input` without its CRLF, once it is all there.
fn take_line(input: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    const LINE_MAX: usize = 8192;
    match input.windows(2).position(|pair| pair == b"\r\n") {
        Some(end) => Ok(Some(&input[..end])),
        None if input.len() > LINE_MAX => Err(Malformed),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_in_pieces(wire: &[u8], step: usize) -> (Vec<u8>, Vec<u8>, bool) {
        let mut reader = BodyReader::new(Framing::Chunked);
        let (mut input, mut data) = (Vec::new(), Vec::new());
        for piece in wire.chunks(step) {
            input.extend_from_slice(piece);
            reader.take(&mut input, &mut data).unwrap();
        }
        (data, reader.trailers.clone(), reader.is_done())
    }

    #[test]
    fn a_chunked_body_whole_and_byte_by_byte() {
        let wire = b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nA: b\r\n\r\n";
        for step in [wire.len(), 1, 2, 3, 7] {
            let expected = (b"hello world".to_vec(), b"A: b\r\n".to_vec(), true);
            assert_eq!(
                read_in_pieces(wire, step),
                expected,
                "{step} bytes at a time"
            );
        }
    }
}
