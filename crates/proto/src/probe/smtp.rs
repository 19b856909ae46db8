//! SMTP (RFC 5321): the greeting, `EHLO` and `QUIT`.

use super::{Dialogue, Fault, Step, words};

/// Longest reply that is waited for: a greeting or a list of extensions.
const MAX_REPLY: usize = 8 * 1024;

/// Greets a mail server.
#[derive(Debug, Default)]
pub struct Smtp {
    /// The first line of its greeting, once that came.
    greeting: Option<String>,
}

impl Smtp {
    fn expected(&self) -> &'static str {
        match self.greeting {
            None => "a greeting of SMTP",
            Some(_) => "an answer to EHLO",
        }
    }
}

impl Dialogue for Smtp {
    fn opening(&self) -> Vec<u8> {
        Vec::new()
    }

    fn awaited(&self) -> String {
        let awaited = match self.greeting {
            None => "greeting",
            Some(_) => "answer to EHLO",
        };
        awaited.to_owned()
    }

    fn handle_input(&mut self, input: &[u8]) -> Result<Step, Fault> {
        let unexpected = |it: &Self| Fault::unexpected(it.expected(), input);
        let reply = match Reply::read(input) {
            Ok(Some(reply)) => reply,
            Ok(None) if input.len() <= MAX_REPLY => return Ok(Step::Wait),
            Ok(None) | Err(NoReply) => return Err(unexpected(self)),
        };
        match (reply.code[0], self.greeting.take()) {
            (b'2', None) => {
                self.greeting = Some(words(reply.first));
                Ok(Step::Go {
                    consumed: reply.len,
                    send: b"EHLO localhost\r\n".to_vec(),
                })
            }
            (b'2', Some(seen)) => Ok(Step::Alive {
                seen,
                farewell: b"QUIT\r\n".to_vec(),
            }),
            (b'4' | b'5', _) => Err(Fault::Refused {
                said: words(reply.first),
            }),
            (_, greeting) => {
                self.greeting = greeting;
                Err(unexpected(self))
            }
        }
    }
}

/// One reply of any number of lines.
struct Reply<'a> {
    code: [u8; 3],
    /// Its first line.
    first: &'a [u8],
    /// Length of all lines.
    len: usize,
}

/// The bytes are no reply.
struct NoReply;

impl<'a> Reply<'a> {
    /// Reads one; `None` where it is not there in full.
    fn read(input: &'a [u8]) -> Result<Option<Self>, NoReply> {
        let mut start = 0;
        let mut first = None;
        loop {
            let rest = &input[start..];
            // The first bytes show another protocol, which may never end a line.
            if !rest.iter().take(3).all(u8::is_ascii_digit) {
                return Err(NoReply);
            }
            if rest.get(3).is_some_and(|it| !b" -\r\n".contains(it)) {
                return Err(NoReply);
            }
            let Some(end) = memchr::memchr(b'\n', rest) else {
                return Ok(None);
            };
            let line = rest[..end].trim_ascii_end();
            let code = *line.first_chunk().ok_or(NoReply)?;
            start += end + 1;
            let first = *first.get_or_insert(line);
            if line.get(3) != Some(&b'-') {
                return Ok(Some(Reply {
                    code,
                    first,
                    len: start,
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{end_of, play};
    use super::*;

    #[test]
    fn answers() {
        let ok = |seen: &str| Some(Ok(seen.to_owned()));
        let refused = |said: &str| Some(Err(format!("refused: {said}")));
        let no_greeting = || Some(Err("expected a greeting of SMTP, got ".to_owned()));
        let no_answer = || Some(Err("expected an answer to EHLO, got ".to_owned()));
        for (said, expected) in [
            ("220 mx ESMTP\r\n250 mx\r\n", ok("220 mx ESMTP")),
            (
                "220-mx ESMTP\r\n220-no spam\r\n220 here\r\n250-mx\r\n250-SIZE 10\r\n250 HELP\r\n",
                ok("220-mx ESMTP"),
            ),
            ("220\r\n250\r\n", ok("220")),
            ("421 too busy\r\n", refused("421 too busy")),
            ("554 no\r\n", refused("554 no")),
            ("554-no\r\n554 service\r\n", refused("554-no")),
            ("220 mx\r\n502 what?\r\n", refused("502 what?")),
            ("220 mx\r\n421 closing\r\n", refused("421 closing")),
            ("354 go on\r\n", no_greeting()),
            ("220 mx\r\n354 go on\r\n", no_answer()),
            ("HTTP/1.1 400 Bad Request\r\n", no_greeting()),
            ("SSH-2.0-OpenSSH_9.2\r\n", no_greeting()),
            ("2200 mx\r\n", no_greeting()),
            ("22\r\n", no_greeting()),
            ("220-mx\r\nmore", no_greeting()),
            ("220 mx\r\n", None),
            ("220-mx\r\n", None),
            ("22", None),
            ("", None),
        ] {
            assert_eq!(end_of(Smtp::default, said.as_bytes()), expected, "{said:?}");
        }
        let endless = "220-x\r\n".repeat(MAX_REPLY / 7 + 1);
        assert_eq!(end_of_whole(endless.as_bytes()), no_greeting());
    }

    /// Every split of so much would take too long.
    fn end_of_whole(said: &[u8]) -> Option<Result<String, String>> {
        let fault = Smtp::default().handle_input(said).unwrap_err();
        let Fault::Unexpected { expected, .. } = fault else {
            panic!("{fault}")
        };
        Some(Err(format!("expected {expected}, got ")))
    }

    #[test]
    fn an_orderly_end() {
        let outcome = play(Smtp::default, b"220 mx\r\n250 mx\r\n");
        assert_eq!(outcome.sent, [b"EHLO localhost\r\n"]);
        assert_eq!(outcome.end.unwrap().unwrap().1, b"QUIT\r\n");
    }
}
