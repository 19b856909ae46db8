//! Probes in protocols other than HTTP: their messages, and the meaning of the answers.
//!
//! A [`Dialogue`] is a probe's side of one conversation. It sees the bytes that have arrived and
//! gives the next step. The prober does the I/O and watches the time.
//!
//! ```text
//!            ┌────────────────────── Go ─────────────────────┐
//!            ▼                                               │
//! opening ─▶ handle_input ─ Wait: read more ─▶ handle_input ─┤
//!                                                            ├─ Alive ─▶ farewell, close
//!                                                            └─ Fault ─▶ close
//! ```

mod bytes;
mod mysql;
mod postgres;
mod redis;
mod smtp;
mod tls;

pub use bytes::{Bytes, MAX_LOOKED_AT};
pub use mysql::Mysql;
pub use postgres::Postgres;
pub use redis::Redis;
pub use smtp::Smtp;
pub use tls::Tls;

/// Most bytes of an answer that a message shows.
const MAX_EXCERPT: usize = 64;
/// Most characters of a server's words that a message shows.
const MAX_WORDS: usize = 120;

/// A probe's side of a conversation with a server.
pub trait Dialogue {
    /// The first bytes to send. Empty where the server speaks first.
    fn opening(&self) -> Vec<u8>;

    /// The message that the probe waits for, such as `greeting`.
    fn awaited(&self) -> String;

    /// Looks at the input that has arrived and was not consumed.
    ///
    /// # Errors
    /// The server is not well.
    fn handle_input(&mut self, input: &[u8]) -> Result<Step, Fault>;
}

/// The next step of a conversation.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes must arrive.
    Wait,
    /// The front of the input was understood, and something may be sent.
    Go {
        /// Length of the understood front.
        consumed: usize,
        /// Bytes to send; may be empty.
        send: Vec<u8>,
    },
    /// The server is well.
    Alive {
        /// The proof, for people.
        seen: String,
        /// Bytes to send before the connection is closed; may be empty.
        farewell: Vec<u8>,
    },
}

/// Why a server is not well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The server speaks the protocol, and serves nobody.
    Refused {
        /// Its own words.
        said: String,
    },
    /// The answer does not follow the protocol.
    Unexpected {
        /// The expected message.
        expected: String,
        /// The bytes that came instead, as an excerpt.
        came: String,
    },
    /// The answer lacks a text that it must contain.
    Missing {
        /// The text that was looked for, as an excerpt.
        wanted: String,
        /// Length of the searched input.
        looked_at: usize,
        /// How the answer begins, as an excerpt.
        came: String,
    },
}

impl Fault {
    /// Another answer than the one that a dialogue waits for.
    pub fn unexpected(expected: &str, came: &[u8]) -> Self {
        Fault::Unexpected {
            expected: expected.to_owned(),
            came: excerpt(came),
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Refused { said } => write!(out, "refused: {said}"),
            Fault::Unexpected { expected, came } => write!(out, "expected {expected}, got {came}"),
            Fault::Missing {
                wanted,
                looked_at,
                came,
            } => write!(
                out,
                "{wanted} is not in the first {looked_at} bytes, which begin with {came}"
            ),
        }
    }
}

impl std::error::Error for Fault {}

/// The beginning of some bytes, in quotes and escaped.
pub fn excerpt(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(MAX_EXCERPT)];
    let mut text = String::from("\"");
    for byte in shown {
        match byte {
            b'\'' => text.push('\''),
            byte => text.extend(byte.escape_ascii().map(char::from)),
        }
    }
    if shown.len() < bytes.len() {
        text.push('…');
    }
    text.push('"');
    text
}

/// The words of a server, on one line and not too long.
fn words(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut words = String::new();
    for (count, c) in text.trim_end().chars().enumerate() {
        if count == MAX_WORDS {
            words.push('…');
            break;
        }
        if c.is_control() {
            words.extend(c.escape_default());
        } else {
            words.push(c);
        }
    }
    words
}

/// The front of the input up to a zero byte.
fn until_zero(input: &[u8]) -> Option<&[u8]> {
    input
        .split(|it| *it == 0)
        .next()
        .filter(|it| it.len() < input.len())
}

#[cfg(test)]
mod testing {
    use super::{Dialogue, Fault, Step};

    /// How a conversation went.
    #[derive(Debug, PartialEq, Eq)]
    pub(super) struct Outcome {
        /// Bytes sent after the opening and before the farewell.
        pub sent: Vec<Vec<u8>>,
        /// The proof and the farewell; `Ok(None)` while more has to come.
        pub end: Result<Option<(String, Vec<u8>)>, Fault>,
    }

    /// Plays a server that says all of this.
    ///
    /// Asserts that the outcome is the same for every split into two pieces, and byte by byte.
    pub(super) fn play<D: Dialogue>(begin: impl Fn() -> D, said: &[u8]) -> Outcome {
        let whole = play_pieces(begin(), &[said]);
        for split in 0..=said.len() {
            let (first, rest) = said.split_at(split);
            assert_eq!(play_pieces(begin(), &[first, rest]), whole, "at {split}");
        }
        let bytes: Vec<_> = said.chunks(1).collect();
        assert_eq!(play_pieces(begin(), &bytes), whole, "byte by byte");
        whole
    }

    /// The proof, or the words of the fault; `None` while more has to come.
    pub(super) fn end_of<D: Dialogue>(
        begin: impl Fn() -> D,
        said: &[u8],
    ) -> Option<Result<String, String>> {
        match play(begin, said).end {
            Ok(alive) => alive.map(|(seen, _)| Ok(seen)),
            Err(fault) => Some(Err(fault.to_string())),
        }
    }

    fn play_pieces(mut dialogue: impl Dialogue, pieces: &[&[u8]]) -> Outcome {
        let mut input = Vec::new();
        let mut sent = Vec::new();
        for piece in pieces {
            input.extend_from_slice(piece);
            loop {
                match dialogue.handle_input(&input) {
                    Ok(Step::Wait) => break,
                    Ok(Step::Go { consumed, send }) => {
                        assert!(consumed > 0);
                        input.drain(..consumed);
                        sent.extend((!send.is_empty()).then_some(send));
                    }
                    Ok(Step::Alive { seen, farewell }) => {
                        let end = Ok(Some((seen, farewell)));
                        return Outcome { sent, end };
                    }
                    // How much of it had come does not matter here.
                    Err(Fault::Unexpected { expected, .. }) => {
                        let came = String::new();
                        let end = Err(Fault::Unexpected { expected, came });
                        return Outcome { sent, end };
                    }
                    Err(fault) => {
                        let end = Err(fault);
                        return Outcome { sent, end };
                    }
                }
            }
        }
        Outcome {
            sent,
            end: Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_and_words_are_short_and_printable() {
        assert_eq!(
            excerpt(b"+'PONG'\r\n\x00\xff\""),
            r#""+'PONG'\r\n\x00\xff\"""#
        );
        let long = [b'x'; MAX_EXCERPT + 1];
        let expected = format!("\"{}…\"", "x".repeat(MAX_EXCERPT));
        assert_eq!(excerpt(&long), expected);
        assert_eq!(words("läuft\u{1b}[1m\r\n".as_bytes()), "läuft\\u{1b}[1m");
        assert_eq!(words(&[b'x'; 500]).chars().count(), MAX_WORDS + 1);
    }
}
