//! Redis, and what speaks its protocol: `PING`.

use super::{Dialogue, Fault, Step, words};

/// Longest line that is waited for.
const MAX_LINE: usize = 1024;

/// Errors that only a server gives that is well: the probe has not logged in.
const ALIVE: [&[u8]; 3] = [b"-NOAUTH", b"-NOPERM", b"-WRONGPASS"];

/// Asks a Redis server with `PING`.
///
/// A server that loads its data, has lost its master or has too many clients answers
/// with an error, and is not well.
#[derive(Debug, Default)]
pub struct Redis;

impl Dialogue for Redis {
    fn opening(&self) -> Vec<u8> {
        b"PING\r\n".to_vec()
    }

    fn awaited(&self) -> String {
        "answer to PING".to_owned()
    }

    fn handle_input(&mut self, input: &[u8]) -> Result<Step, Fault> {
        let unexpected = || Fault::unexpected("+PONG", input);
        let Some(first) = input.first() else {
            return Ok(Step::Wait);
        };
        if !b"+-".contains(first) {
            return Err(unexpected());
        }
        let Some(end) = memchr::memchr(b'\n', input) else {
            let is_long = input.len() > MAX_LINE;
            return if is_long {
                Err(unexpected())
            } else {
                Ok(Step::Wait)
            };
        };
        let line = input[..end].trim_ascii_end();
        let code = line.split(|it| *it == b' ').next().unwrap_or_default();
        if line == b"+PONG" || ALIVE.contains(&code) {
            return Ok(Step::Alive {
                seen: words(line),
                farewell: Vec::new(),
            });
        }
        match line.strip_prefix(b"-") {
            Some(error) => Err(Fault::Refused { said: words(error) }),
            None => Err(unexpected()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::end_of;
    use super::*;

    #[test]
    fn answers() {
        let ok = |seen: &str| Some(Ok(seen.to_owned()));
        let refused = |said: &str| Some(Err(format!("refused: {said}")));
        let unexpected = || Some(Err("expected +PONG, got ".to_owned()));
        let loading = "LOADING Redis is loading the dataset in memory";
        let down = "MASTERDOWN Link with MASTER is down";
        for (said, expected) in [
            ("+PONG\r\n", ok("+PONG")),
            ("+PONG\n", ok("+PONG")),
            (
                "-NOAUTH Authentication required.\r\n",
                ok("-NOAUTH Authentication required."),
            ),
            ("-NOPERM no permissions\r\n", ok("-NOPERM no permissions")),
            (&format!("-{loading}\r\n"), refused(loading)),
            (&format!("-{down}\r\n"), refused(down)),
            (
                "-ERR max number of clients reached\r\n",
                refused("ERR max number of clients reached"),
            ),
            ("-NOAUTHENTICITY\r\n", refused("NOAUTHENTICITY")),
            ("+OK\r\n", unexpected()),
            ("HTTP/1.1 400 Bad Request\r\n", unexpected()),
            ("$4\r\nPONG\r\n", unexpected()),
            ("+PON", None),
            ("", None),
        ] {
            assert_eq!(end_of(|| Redis, said.as_bytes()), expected, "{said:?}");
        }
        let long = [b'+'; MAX_LINE + 1];
        assert_eq!(end_of(|| Redis, &long), unexpected());
    }
}
