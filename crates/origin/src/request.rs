//! Request heads as an origin reads them.
//!
//! No I/O. This is a test origin: clear rather than fast, and no example of
//! how strict a proxy has to be.

use crate::body::{Framing, Malformed};

/// A request head, together with its bytes as received.
#[derive(Debug)]
pub(crate) struct OriginRequest {
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

impl OriginRequest {
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

/// Takes a request head off the front of `input`; `None` while it is partial.
pub(crate) fn take_head(input: &mut Vec<u8>) -> Result<Option<OriginRequest>, Malformed> {
    let mut fields = [httparse::EMPTY_HEADER; 128];
    let mut head = httparse::Request::new(&mut fields);
    let len = match head.parse(input) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Malformed),
    };
    let minor_version = head.version.unwrap_or(0);
    let mut request = OriginRequest {
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

fn note_field(request: &mut OriginRequest, name: &str, value: &str) -> Result<(), Malformed> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
