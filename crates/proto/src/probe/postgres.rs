//! PostgreSQL: the beginning of a login, as `pg_isready` does it.
//!
//! A request for a password shows that the server is well, and so does an error about
//! the login itself. The probe has no password.
//!
//! Source: PostgreSQL documentation, "Frontend/Backend Protocol", message formats.

use super::{Dialogue, Fault, Step, until_zero, words};

/// Version 3.0 of the protocol.
const VERSION: u32 = 3 << 16;
/// Longest error of a server of today; a longer one has no length (libpq has the same
/// bound).
const MAX_ERROR: usize = 30_000;
/// Longest other message that is waited for.
const MAX_MESSAGE: usize = 4096;
/// Closes a session.
const TERMINATE: &[u8] = b"X\0\0\0\x04";
/// Classes of SQLSTATE of a server that takes no client now.
///
/// They are insufficient resources, operator intervention (such as 57P03, "starting up"), system
/// error and internal error.
const REFUSING: [&[u8]; 4] = [b"53", b"57", b"58", b"XX"];

/// Begins a login to a PostgreSQL server.
#[derive(Debug)]
pub struct Postgres<'a> {
    user: &'a str,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The startup message was sent.
    Login,
    /// The server wants no password, and opens a session.
    Session,
}

impl<'a> Postgres<'a> {
    /// A login as this user.
    pub fn new(user: &'a str) -> Self {
        Postgres {
            user,
            stage: Stage::Login,
        }
    }

    fn unexpected(&self, input: &[u8]) -> Fault {
        Fault::unexpected("an answer of PostgreSQL", input)
    }

    fn alive(seen: impl Into<String>) -> Step {
        Step::Alive {
            seen: seen.into(),
            farewell: Vec::new(),
        }
    }

    fn hear_message(&mut self, kind: u8, body: &[u8], len: usize) -> Option<Result<Step, Fault>> {
        let go = Step::Go {
            consumed: len,
            send: Vec::new(),
        };
        let step = match (self.stage, kind) {
            (Stage::Login, b'R') => match body.first_chunk().map(|it| u32::from_be_bytes(*it))? {
                0 => {
                    self.stage = Stage::Session;
                    go
                }
                2..=20 => Self::alive("authentication request"),
                _ => return None,
            },
            (Stage::Session, b'Z') => Step::Alive {
                seen: "session opened".to_owned(),
                farewell: TERMINATE.to_vec(),
            },
            (_, b'E') => return Some(error(body)),
            (_, b'N' | b'v') | (Stage::Session, b'S' | b'K') => go,
            _ => return None,
        };
        Some(Ok(step))
    }
}

impl Dialogue for Postgres<'_> {
    fn opening(&self) -> Vec<u8> {
        let mut message = vec![0; 4];
        message.extend_from_slice(&VERSION.to_be_bytes());
        for (name, value) in [
            ("user", self.user),
            ("database", "postgres"),
            ("application_name", "evenkeel-probe"),
        ] {
            for text in [name, value] {
                message.extend_from_slice(text.as_bytes());
                message.push(0);
            }
        }
        message.push(0);
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_be_bytes());
        message
    }

    fn awaited(&self) -> String {
        match self.stage {
            Stage::Login => "answer to the login".to_owned(),
            Stage::Session => "session".to_owned(),
        }
    }

    fn handle_input(&mut self, input: &[u8]) -> Result<Step, Fault> {
        let Some(kind) = input.first().copied() else {
            return Ok(Step::Wait);
        };
        if !b"RENvZSK".contains(&kind) {
            return Err(self.unexpected(input));
        }
        let Some(len) = input[1..].first_chunk().map(|it| u32::from_be_bytes(*it)) else {
            return Ok(Step::Wait);
        };
        let len = len as usize;
        if kind == b'E' && !(8..=MAX_ERROR).contains(&len) {
            // A server that can't start a process for the connection.
            return match until_zero(&input[1..]) {
                Some(text) => Err(Fault::Refused { said: words(text) }),
                None if input.len() > MAX_MESSAGE => Err(self.unexpected(input)),
                None => Ok(Step::Wait),
            };
        }
        if len < 4 || kind != b'E' && len > MAX_MESSAGE {
            return Err(self.unexpected(input));
        }
        let Some(body) = input.get(5..1 + len) else {
            return Ok(Step::Wait);
        };
        let heard = self.hear_message(kind, body, 1 + len);
        heard.unwrap_or_else(|| Err(self.unexpected(input)))
    }
}

/// The verdict on a server by its error.
fn error(body: &[u8]) -> Result<Step, Fault> {
    let (mut code, mut message) = (&b""[..], &b""[..]);
    let mut rest = body;
    while let [field, tail @ ..] = rest
        && let Some(value) = until_zero(tail)
    {
        match field {
            b'C' => code = value,
            b'M' => message = value,
            _ => {}
        }
        rest = &tail[value.len() + 1..];
    }
    let said = format!("{} ({})", words(message), words(code));
    let is_refusing = REFUSING.iter().any(|it| code.starts_with(it));
    if is_refusing || code.len() != 5 {
        Err(Fault::Refused { said })
    } else {
        Ok(Postgres::alive(said))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{end_of, play};
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let len = body.len() as u32 + 4;
        [&[kind], &len.to_be_bytes()[..], body].concat()
    }

    fn error_message(code: &str, text: &str) -> Vec<u8> {
        let body = format!("SFATAL\0VFATAL\0C{code}\0M{text}\0Fpostmaster.c\0\0");
        message(b'E', body.as_bytes())
    }

    fn login() -> Postgres<'static> {
        Postgres::new("ek")
    }

    #[test]
    fn the_opening() {
        let expected = b"\0\0\0\x46\0\x03\0\0user\0ek\0database\0postgres\0\
                         application_name\0evenkeel-probe\0\0";
        let opening = login().opening();
        assert_eq!(opening.len(), opening[3].into());
        assert_eq!(opening[4..], expected[4..]);
    }

    #[test]
    fn answers() {
        let ok = |seen: &str| Some(Ok(seen.to_owned()));
        let refused = |said: &str| Some(Err(format!("refused: {said}")));
        let unexpected = || Some(Err("expected an answer of PostgreSQL, got ".to_owned()));
        let starting = "the database system is starting up";
        let full = "sorry, too many clients already";
        let nobody = "role \"ek\" does not exist";
        for (said, expected) in [
            (
                message(b'R', b"\0\0\0\x05salt"),
                ok("authentication request"),
            ),
            (
                message(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0"),
                ok("authentication request"),
            ),
            (
                [
                    message(b'v', b"\0\x03\0\0\0\0\0\0"),
                    message(b'R', b"\0\0\0\x03"),
                ]
                .concat(),
                ok("authentication request"),
            ),
            (
                error_message("57P03", starting),
                refused(&format!("{starting} (57P03)")),
            ),
            (
                error_message("53300", full),
                refused(&format!("{full} (53300)")),
            ),
            (
                error_message("28000", nobody),
                ok(&format!("{nobody} (28000)")),
            ),
            (
                error_message("3D000", "no database"),
                ok("no database (3D000)"),
            ),
            (error_message("", "what?"), refused("what? ()")),
            (message(b'E', b"Mno end"), refused(" ()")),
            (
                b"Ecould not fork new process for connection: no\n\0".to_vec(),
                refused("could not fork new process for connection: no"),
            ),
            (b"HTTP/1.1 400 Bad Request".to_vec(), unexpected()),
            (b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), unexpected()),
            (message(b'Z', b"I"), unexpected()),
            (message(b'R', b"\0\0\0\xff"), unexpected()),
            (message(b'R', b""), unexpected()),
            (b"R\0\0\0\0".to_vec(), unexpected()),
            (b"R\0\xff\0\0".to_vec(), unexpected()),
            (b"R\0\0\0\x08\0\0\0".to_vec(), None),
            (Vec::new(), None),
        ] {
            let shown = said.escape_ascii().to_string();
            assert_eq!(end_of(login, &said), expected, "{shown}");
        }
    }

    #[test]
    fn a_session_is_opened_and_closed() {
        let ok = message(b'R', b"\0\0\0\0");
        let parameter = message(b'S', b"server_version\x0015.5\0");
        let key = message(b'K', b"\0\0\0\x01\0\0\0\x02");
        let begun = [&ok[..], &parameter, &key].concat();
        assert_eq!(end_of(login, &begun), None);
        let opened = [&begun[..], &message(b'Z', b"I")].concat();
        let outcome = play(login, &opened);
        assert!(outcome.sent.is_empty());
        let seen = "session opened".to_owned();
        assert_eq!(outcome.end, Ok(Some((seen, TERMINATE.to_vec()))));
        let reserved = "remaining connection slots are reserved";
        let full = [&begun[..], &error_message("53300", reserved)].concat();
        let said = format!("refused: {reserved} (53300)");
        assert_eq!(end_of(login, &full), Some(Err(said)));
    }
}
