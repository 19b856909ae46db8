//! MySQL and MariaDB: a login without a password, and an orderly end.
//!
//! A client that leaves after the greeting counts as a connect error of its host. After
//! `max_connect_errors` of them in a row the server takes nobody from there. A login
//! that is refused does not count so.
//!
//! Source: MySQL Internals, "Client/Server Protocol", connection phase.

use super::{Dialogue, Fault, Step, until_zero, words};

/// Longest packet that is waited for.
const MAX_PACKET: usize = 4096;
/// The command that closes a session, as a packet.
const QUIT: &[u8] = b"\x01\0\0\0\x01";
/// UTF-8.
const CHARACTER_SET: u8 = 33;

const LONG_PASSWORD: u32 = 1;
const PROTOCOL_41: u32 = 1 << 9;
const SECURE_CONNECTION: u32 = 1 << 15;
const PLUGIN_AUTH: u32 = 1 << 19;

/// Errors after the greeting of a server that takes no client now.
///
/// They are out of memory and threads, too many connections, shutdown, blocked and unknown hosts.
const REFUSING: [u16; 8] = [1037, 1040, 1041, 1053, 1129, 1130, 1135, 1436];
/// Most changes of the way to log in.
const MAX_SWITCHES: u32 = 4;

/// Logs in to a MySQL or MariaDB server, and out again.
#[derive(Debug)]
pub struct Mysql<'a> {
    user: &'a str,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The server speaks first.
    Greeting,
    /// The login was sent to a server of this version.
    Login { version: String, switches: u32 },
}

impl<'a> Mysql<'a> {
    /// A login as this user.
    pub fn new(user: &'a str) -> Self {
        Mysql {
            user,
            stage: Stage::Greeting,
        }
    }

    fn hear_packet(&mut self, number: u8, payload: &[u8]) -> Option<Result<PacketOutcome, Fault>> {
        let (kind, rest) = payload.split_first()?;
        let Stage::Login { version, switches } = &mut self.stage else {
            if *kind == 0xff {
                let said = error(rest)?.1;
                return Some(Err(Fault::Refused { said }));
            }
            let greeting = Greeting::read(payload)?;
            let login = packet(number.wrapping_add(1), &greeting.login(self.user));
            self.stage = Stage::Login {
                version: greeting.version,
                switches: 0,
            };
            return Some(Ok(PacketOutcome::Send(login)));
        };
        let greeting = format!("greeting of {version}");
        Some(match kind {
            0x00 => Ok(PacketOutcome::Alive {
                seen: greeting,
                farewell: QUIT.to_vec(),
            }),
            // Another way to log in: without a password there, too. The server counts a
            // client as failed that leaves now.
            0xfe if *switches < MAX_SWITCHES => {
                *switches += 1;
                Ok(PacketOutcome::Send(packet(number.wrapping_add(1), b"")))
            }
            0x01 | 0xfe => Ok(PacketOutcome::Alive {
                seen: greeting,
                farewell: Vec::new(),
            }),
            0xff => {
                let (code, said) = error(rest)?;
                if REFUSING.contains(&code) {
                    Err(Fault::Refused { said })
                } else {
                    Ok(PacketOutcome::Alive {
                        seen: format!("{greeting}; {said}"),
                        farewell: Vec::new(),
                    })
                }
            }
            _ => return None,
        })
    }
}

/// The consequence of a packet.
enum PacketOutcome {
    Send(Vec<u8>),
    Alive { seen: String, farewell: Vec<u8> },
}

impl Dialogue for Mysql<'_> {
    fn opening(&self) -> Vec<u8> {
        Vec::new()
    }

    fn awaited(&self) -> String {
        match self.stage {
            Stage::Greeting => "greeting".to_owned(),
            Stage::Login { .. } => "answer to the login".to_owned(),
        }
    }

    fn handle_input(&mut self, input: &[u8]) -> Result<Step, Fault> {
        let unexpected = || Fault::unexpected("a packet of MySQL", input);
        let Some([low, middle, high, number]) = input.first_chunk() else {
            return Ok(Step::Wait);
        };
        let len = u32::from_le_bytes([*low, *middle, *high, 0]) as usize;
        if len > MAX_PACKET || matches!(self.stage, Stage::Greeting) && *number != 0 {
            return Err(unexpected());
        }
        let Some(payload) = input.get(4..4 + len) else {
            return Ok(Step::Wait);
        };
        let heard = self.hear_packet(*number, payload);
        Ok(match heard.unwrap_or_else(|| Err(unexpected()))? {
            PacketOutcome::Send(send) => Step::Go {
                consumed: 4 + len,
                send,
            },
            PacketOutcome::Alive { seen, farewell } => Step::Alive { seen, farewell },
        })
    }
}

/// The greeting of a server.
struct Greeting {
    version: String,
    capabilities: u32,
}

impl Greeting {
    fn read(payload: &[u8]) -> Option<Self> {
        let rest = payload.strip_prefix(&[10])?;
        let version = until_zero(rest)?;
        // The number of the thread, 8 bytes of a challenge, and a zero byte.
        let rest = rest.get(version.len() + 1 + 4 + 8 + 1..)?;
        let low = u16::from_le_bytes(*rest.first_chunk()?);
        // After the character set and the status.
        let high = rest.get(5..7).and_then(<[u8]>::first_chunk);
        let high = high.map_or(0, |it| u16::from_le_bytes(*it));
        // MariaDB puts this first for old replicas.
        let version = version.strip_prefix(b"5.5.5-").unwrap_or(version);
        Some(Greeting {
            version: words(version),
            capabilities: u32::from(high) << 16 | u32::from(low),
        })
    }

    /// A login without a password, in what both sides can do.
    fn login(&self, user: &str) -> Vec<u8> {
        let wanted = LONG_PASSWORD | PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH;
        let capabilities = wanted & (self.capabilities | PROTOCOL_41);
        let mut login = capabilities.to_le_bytes().to_vec();
        login.extend_from_slice(&(1_u32 << 24).to_le_bytes());
        login.push(CHARACTER_SET);
        login.extend_from_slice(&[0; 23]);
        login.extend_from_slice(user.as_bytes());
        // The end of the name, and an answer to the challenge of length 0.
        login.extend_from_slice(&[0, 0]);
        if capabilities & PLUGIN_AUTH != 0 {
            login.extend_from_slice(b"mysql_native_password\0");
        }
        login
    }
}

fn packet(number: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_le_bytes();
    [&[len[0], len[1], len[2], number], payload].concat()
}

/// The number and the words of an error.
fn error(rest: &[u8]) -> Option<(u16, String)> {
    let (code, text) = rest.split_first_chunk()?;
    let code = u16::from_le_bytes(*code);
    let text = match text {
        [b'#', _, _, _, _, _, text @ ..] => text,
        text => text,
    };
    Some((code, format!("{} ({code})", words(text))))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{end_of, play};
    use super::*;

    const VERSION: &str = "10.11.6-MariaDB";

    fn greeting(version: &str) -> Vec<u8> {
        let mut payload = vec![10];
        payload.extend_from_slice(version.as_bytes());
        payload.extend_from_slice(b"\0\x07\0\0\0saltsalt\0");
        let capabilities = (SECURE_CONNECTION | PROTOCOL_41 | PLUGIN_AUTH | 1).to_le_bytes();
        payload.extend_from_slice(&capabilities[..2]);
        payload.extend_from_slice(&[33, 2, 0]);
        payload.extend_from_slice(&capabilities[2..]);
        payload.extend_from_slice(b"\x15\0\0\0\0\0\0\0\0\0\0moresaltmore\0mysql_native_password\0");
        packet(0, &payload)
    }

    fn error_packet(number: u8, code: u16, text: &str) -> Vec<u8> {
        packet(
            number,
            &[&[0xff], &code.to_le_bytes()[..], text.as_bytes()].concat(),
        )
    }

    fn login() -> Mysql<'static> {
        Mysql::new("ek")
    }

    #[test]
    fn answers_to_the_login() {
        let version = "5.5.5-10.11.6-MariaDB";
        let seen = format!("greeting of {VERSION}");
        let denied = "Access denied for user 'ek'@'localhost' (using password: NO)";
        for (answer, expected) in [
            (packet(2, b"\0\0\0\x02\0\0\0"), Some(Ok(seen.clone()))),
            (
                error_packet(2, 1045, &format!("#28000{denied}")),
                Some(Ok(format!("{seen}; {denied} (1045)"))),
            ),
            (
                error_packet(2, 1040, "#08004Too many connections"),
                Some(Err("refused: Too many connections (1040)".to_owned())),
            ),
            (
                error_packet(2, 1053, "#08S01Server shutdown in progress"),
                Some(Err("refused: Server shutdown in progress (1053)".to_owned())),
            ),
            (packet(2, b"\x01\x04"), Some(Ok(seen.clone()))),
            (
                packet(2, b"what"),
                Some(Err("expected a packet of MySQL, got ".to_owned())),
            ),
            (
                packet(2, b""),
                Some(Err("expected a packet of MySQL, got ".to_owned())),
            ),
            (Vec::new(), None),
        ] {
            let said = [greeting(version), answer].concat();
            assert_eq!(end_of(login, &said), expected);
        }
    }

    #[test]
    fn an_orderly_end() {
        let switch = packet(2, b"\xfecaching_sha2_password\0saltsalt\0");
        let said = [greeting(VERSION), switch, packet(4, b"\0\0\0\x02\0\0\0")].concat();
        let outcome = play(login, &said);
        let [sent, switched] = &outcome.sent[..] else {
            panic!("{outcome:?}")
        };
        assert_eq!(sent[..4], [sent.len() as u8 - 4, 0, 0, 1]);
        assert!(sent.ends_with(b"\0ek\0\0mysql_native_password\0"));
        assert_eq!(switched, b"\0\0\0\x03");
        let farewell = outcome.end.unwrap().unwrap().1;
        assert_eq!(farewell, QUIT);
        // A server that asks for changes for ever is well enough.
        let switch = packet(2, b"\xfe");
        let switches = vec![switch; MAX_SWITCHES as usize + 1].concat();
        let said = [greeting(VERSION), switches].concat();
        assert!(end_of(login, &said).is_some_and(|it| it.is_ok()));
    }

    #[test]
    fn no_greeting() {
        let refused = |said: &str| Some(Err(format!("refused: {said}")));
        let unexpected = || Some(Err("expected a packet of MySQL, got ".to_owned()));
        let blocked = "Host '10.0.0.9' is blocked because of many connection errors";
        for (said, expected) in [
            (
                error_packet(0, 1040, "Too many connections"),
                refused("Too many connections (1040)"),
            ),
            (
                error_packet(0, 1129, blocked),
                refused(&format!("{blocked} (1129)")),
            ),
            (
                error_packet(0, 1130, "#HY000not allowed"),
                refused("not allowed (1130)"),
            ),
            (packet(0, b"\x09old"), unexpected()),
            (packet(0, b"\x0ano end"), unexpected()),
            (packet(0, b"\x0a1\0short"), unexpected()),
            (packet(0, b"\xff"), unexpected()),
            (packet(1, b"\x0a"), unexpected()),
            (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), unexpected()),
            (b"220 mail.example ESMTP\r\n".to_vec(), unexpected()),
            (greeting(VERSION)[..40].to_vec(), None),
            (Vec::new(), None),
        ] {
            let shown = said.escape_ascii().to_string();
            assert_eq!(end_of(login, &said), expected, "{shown}");
        }
    }
}
