//! Requests as an origin reads them: the head, and the body piece by piece.
//!
//! No I/O. This is a test origin: clear rather than fast, and no example of
//! how strict a proxy has to be.

/// A request head, together with its bytes as received.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) minor_version: u8,
    pub(crate) keep_alive: bool,
    pub(crate) expects_continue: bool,
    pub(crate) framing: Framing,
    pub(crate) content_type: Option<String>,
    pub(crate) upgrade: Option<String>,
    pub(crate) raw: Vec<u8>,
}

impl Request {
    /// The target without its query.
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// A parameter of the query.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        let (_, query) = self.target.split_once('?')?;
        query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            (key == name).then_some(value)
        })
    }
}

/// How a request's body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Length { len: u64 },
    Chunked,
}

/// The input is not HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Takes a request head off the front of `input`; `None` while it is partial.
pub(crate) fn take_head(input: &mut Vec<u8>) -> Result<Option<Request>, Malformed> {
    let mut fields = [httparse::EMPTY_HEADER; 128];
    let mut head = httparse::Request::new(&mut fields);
    let len = match head.parse(input) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Malformed),
    };
    let minor_version = head.version.unwrap_or(0);
    let mut request = Request {
        method: head.method.unwrap_or_default().to_owned(),
        target: head.path.unwrap_or_default().to_owned(),
        minor_version,
        keep_alive: minor_version == 1,
        expects_continue: false,
        framing: Framing::Length { len: 0 },
        content_type: None,
        upgrade: None,
        raw: Vec::new(),
    };
    for field in head.headers.iter() {
        let value = std::str::from_utf8(field.value).unwrap_or_default().trim();
        note_field(&mut request, field.name, value)?;
    }
    request.raw = input[..len].to_vec();
    input.drain(..len);
    Ok(Some(request))
}

fn note_field(request: &mut Request, name: &str, value: &str) -> Result<(), Malformed> {
    let says = |word: &str| {
        value
            .split(',')
            .any(|item| item.trim().eq_ignore_ascii_case(word))
    };
    if name.eq_ignore_ascii_case("content-length") {
        let len = value.parse().map_err(|_| Malformed)?;
        if request.framing != Framing::Chunked {
            request.framing = Framing::Length { len };
        }
    } else if name.eq_ignore_ascii_case("transfer-encoding") {
        if !says("chunked") {
            return Err(Malformed);
        }
        request.framing = Framing::Chunked;
    } else if name.eq_ignore_ascii_case("connection") {
        if says("close") {
            request.keep_alive = false;
        } else if says("keep-alive") {
            request.keep_alive = true;
        }
    } else if name.eq_ignore_ascii_case("expect") {
        request.expects_continue = says("100-continue") && request.minor_version == 1;
    } else if name.eq_ignore_ascii_case("content-type") {
        request.content_type = Some(value.to_owned());
    } else if name.eq_ignore_ascii_case("upgrade") {
        request.upgrade = Some(value.to_owned());
    }
    Ok(())
}

/// Where a body's reader is.
///
/// ```text
/// Data ──(chunked)──> DataEnd ──> Size ──> Data | Trailers ──> Done
/// Data ──(length)───────────────────────────────────────────> Done
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    Data { remaining: u64, chunked: bool },
    DataEnd,
    Trailers,
    Done,
}

/// Decodes a request's body.
#[derive(Debug)]
pub(crate) struct BodyReader {
    state: State,
    /// The trailer section's lines, each with its CRLF.
    pub(crate) trailers: Vec<u8>,
}

impl BodyReader {
    pub(crate) fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Chunked => State::Size,
            Framing::Length { len: 0 } => State::Done,
            Framing::Length { len } => State::Data {
                remaining: len,
                chunked: false,
            },
        };
        BodyReader {
            state,
            trailers: Vec::new(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Moves what is there of the body from the front of `input` to `data`.
    pub(crate) fn take(
        &mut self,
        input: &mut Vec<u8>,
        data: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
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
            State::Done => Ok(None),
            State::Data { remaining, chunked } => {
                if input.is_empty() {
                    return Ok(None);
                }
                let used = input
                    .len()
                    .min(usize::try_from(remaining).unwrap_or(usize::MAX));
                data.extend_from_slice(&input[..used]);
                let remaining = remaining - used as u64;
                self.state = match (remaining, chunked) {
                    (0, true) => State::DataEnd,
                    (0, false) => State::Done,
                    _ => State::Data { remaining, chunked },
                };
                Ok(Some(used))
            }
            State::DataEnd => match take_line(input)? {
                Some([]) => {
                    self.state = State::Size;
                    Ok(Some(2))
                }
                Some(_) => Err(Malformed),
                None => Ok(None),
            },
            State::Size => {
                let Some(line) = take_line(input)? else {
                    return Ok(None);
                };
                let digits = line.split(|&byte| byte == b';').next().unwrap_or_default();
                let digits = std::str::from_utf8(digits).map_err(|_| Malformed)?;
                let size = u64::from_str_radix(digits.trim(), 16).map_err(|_| Malformed)?;
                self.state = match size {
                    0 => State::Trailers,
                    _ => State::Data {
                        remaining: size,
                        chunked: true,
                    },
                };
                Ok(Some(line.len() + 2))
            }
            State::Trailers => {
                let Some(line) = take_line(input)? else {
                    return Ok(None);
                };
                if line.is_empty() {
                    self.state = State::Done;
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

    #[test]
    fn a_head_says_what_matters() {
        let mut input = b"POST /a?size=7&x=y HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\
            Expect: 100-continue\r\nConnection: close\r\n\r\nabcnext"
            .to_vec();
        let request = take_head(&mut input).unwrap().unwrap();
        assert_eq!(input, b"abcnext");
        assert_eq!((request.path(), request.query("size")), ("/a", Some("7")));
        assert_eq!(request.framing, Framing::Length { len: 3 });
        assert!(request.expects_continue && !request.keep_alive);
    }
}
