//! A client that asks for pages, many at once on one connection, and checks every byte.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::pages::{HOST, Pages, path};
use crate::deadline::STEP;

/// The source of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// From the store: the origin was not asked.
    Store,
    /// The origin, for this request or another.
    Origin,
}

/// Requests that are sent before their answers are read.
const AT_ONCE: usize = 32;

/// A connection that asks for pages.
#[derive(Debug)]
pub struct PageClient<'a> {
    pages: &'a Pages,
    stream: TcpStream,
    /// Bytes that were received and not read, from `read` on.
    input: Vec<u8>,
    read: usize,
    output: Vec<u8>,
}

impl<'a> PageClient<'a> {
    /// Connects.
    ///
    /// # Errors
    /// The connection is refused.
    pub fn connect(pages: &'a Pages, address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STEP))?;
        stream.set_write_timeout(Some(STEP))?;
        Ok(PageClient {
            pages,
            stream,
            input: Vec::new(),
            read: 0,
            output: Vec::new(),
        })
    }

    /// Asks for a page.
    ///
    /// # Errors
    /// As [`Self::ask_all`].
    pub fn ask(&mut self, number: u64) -> io::Result<Source> {
        self.send(&[number])?;
        self.answer(number)
    }

    /// Asks for some pages, and calls `note` for each.
    ///
    /// # Errors
    /// The connection ends, or nothing comes for a while. `InvalidData` for a wrong answer:
    /// another status, another page, or another body.
    pub fn ask_all(
        &mut self,
        numbers: &[u64],
        mut note: impl FnMut(u64, Source),
    ) -> io::Result<()> {
        for numbers in numbers.chunks(AT_ONCE) {
            self.send(numbers)?;
            for &number in numbers {
                note(number, self.answer(number)?);
            }
        }
        Ok(())
    }

    /// Asks for some pages over several connections, one at a time on each, and calls
    /// `note` for each.
    ///
    /// # Errors
    /// As [`Self::ask_all`].
    pub fn ask_over(
        clients: &mut [Self],
        numbers: &[u64],
        mut note: impl FnMut(u64, Source),
    ) -> io::Result<()> {
        for numbers in numbers.chunks(clients.len()) {
            for (client, &number) in clients.iter_mut().zip(numbers) {
                client.send(&[number])?;
            }
            for (client, &number) in clients.iter_mut().zip(numbers) {
                note(number, client.answer(number)?);
            }
        }
        Ok(())
    }

    fn send(&mut self, numbers: &[u64]) -> io::Result<()> {
        self.output.clear();
        for &number in numbers {
            let path = path(number);
            write!(self.output, "GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")?;
        }
        self.stream.write_all(&self.output)
    }

    fn answer(&mut self, number: u64) -> io::Result<Source> {
        let wrong = |what: String| {
            let message = format!("page {number}: {what}");
            Err(io::Error::new(io::ErrorKind::InvalidData, message))
        };
        let head = loop {
            match head_of(&self.input[self.read..])? {
                Some(head) => break head,
                None => self.fill()?,
            }
        };
        let pages = self.pages;
        let body = pages.body(number);
        let asked = Some(number);
        if head.status != 200 || head.page != asked || head.body_len != Some(body.len() as u64) {
            return wrong(format!("{head:?}"));
        }
        self.read += head.len;
        let mut rest = body;
        while !rest.is_empty() {
            let ready = &self.input[self.read..];
            let len = ready.len().min(rest.len());
            if ready[..len] != rest[..len] {
                return wrong(format!("its body is another one of {} bytes", body.len()));
            }
            rest = &rest[len..];
            self.read += len;
            if !rest.is_empty() {
                self.fill()?;
            }
        }
        Ok(head.source)
    }

    fn fill(&mut self) -> io::Result<()> {
        self.input.drain(..self.read);
        self.read = 0;
        let filled = self.input.len();
        self.input.resize(filled + (64 << 10), 0);
        let read = self.stream.read(&mut self.input[filled..]);
        let len = *read.as_ref().unwrap_or(&0);
        self.input.truncate(filled + len);
        match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Of a response's head.
#[derive(Debug)]
struct Head {
    len: usize,
    status: u16,
    page: Option<u64>,
    body_len: Option<u64>,
    source: Source,
}

fn head_of(input: &[u8]) -> io::Result<Option<Head>> {
    let mut fields = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut fields);
    let len = match response.parse(input) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    };
    let field = |name: &str| {
        let mut fields = response.headers.iter();
        let found = fields.find(|it| it.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    let is_hit = field("cache-status").is_some_and(|it| it.contains("; hit"));
    Ok(Some(Head {
        len,
        status: response.code.unwrap_or_default(),
        page: field("page").and_then(|it| it.parse().ok()),
        body_len: field("content-length").and_then(|it| it.parse().ok()),
        source: if is_hit {
            Source::Store
        } else {
            Source::Origin
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caching::origin::PageOrigin;
    use crate::caching::pages::Lengths;
    use crate::raw::RawOrigin;

    #[test]
    fn takes_what_the_origin_has() {
        let pages = Pages::new(Lengths::Mixed, "Cache-Control: max-age=9\r\n");
        let origin = PageOrigin::start(pages.clone()).unwrap();
        let mut client = PageClient::connect(&pages, origin.address).unwrap();
        let numbers: Vec<u64> = (0..500).collect();
        let mut asked = Vec::new();
        let note = |number, source| {
            assert_eq!(source, Source::Origin);
            asked.push(number);
        };
        client.ask_all(&numbers, note).unwrap();
        assert_eq!(asked, numbers);
        assert_eq!(origin.asked(), 500);
    }

    #[test]
    fn a_wrong_byte_is_seen() {
        let pages = Pages::new(Lengths::Same(400), "");
        for at in [0, 399] {
            let mut response = Vec::new();
            pages.push_response(1, &mut response);
            let body_at = response.len() - 400;
            response[body_at + at] ^= 1;
            let origin = RawOrigin::answering(response).unwrap();
            let mut client = PageClient::connect(&pages, origin.address).unwrap();
            let error = client.ask(1).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        }
    }
}
